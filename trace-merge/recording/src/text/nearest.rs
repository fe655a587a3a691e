//! The nearest names to one that does not exist.

/// Most names that are suggested.
const MAX_SUGGESTIONS: usize = 3;
/// Similarity (0 to 1) below which a name is not suggested.
const MIN_SIMILARITY: f64 = 0.6;

/// What is as similar but for the case of letters is this much less similar.
const OTHER_CASE: f64 = 0.95;

/// How similar `candidate` is to `wanted`: from 0 to 1, which means equal (Jaro-Winkler, which favours a common beginning).
#[must_use]
pub fn similarity(wanted: &str, candidate: &str) -> f64 {
    let in_any_case = strsim::jaro_winkler(&wanted.to_lowercase(), &candidate.to_lowercase());
    strsim::jaro_winkler(wanted, candidate).max(OTHER_CASE * in_any_case)
}

/// The best of `scored` names (similarity, name), best first: three at most, none that is not similar.
#[must_use]
pub fn best(mut scored: Vec<(f64, String)>) -> Vec<String> {
    scored.retain(|(score, _)| *score >= MIN_SIMILARITY);
    scored.sort_by(|left, right| right.0.total_cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
    scored.dedup_by(|left, right| left.1 == right.1);
    scored.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect()
}

/// The names among `candidates` that are nearest to `wanted`, best first; may be empty.
#[must_use]
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    best(candidates.into_iter().map(|name| (similarity(wanted, name), name.to_owned())).collect())
}

/// `names` as what stands behind the reason why there is none of a name: empty without any.
#[must_use]
pub fn in_words(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => format!("; the nearest is {only}"),
        several => format!("; the nearest are {}", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_come_best_first() {
        assert_eq!(nearest("taks", ["vcpus", "tasks", "task"]), ["task", "tasks"]);
    }

    #[test]
    fn name_in_another_case_is_near_and_the_right_case_is_nearer() {
        assert_eq!(nearest("DD", ["db", "dd", "Dd"]), ["Dd", "dd", "db"]);
    }

    #[test]
    fn one_name_is_the_nearest_and_several_are() {
        let words = [&[][..], &["dd"], &["dd", "db"]]
            .map(|names| in_words(&names.iter().map(|&name| name.into()).collect::<Vec<_>>()));

        assert_eq!(words, ["", "; the nearest is dd", "; the nearest are dd, db"]);
    }

    #[test]
    fn nothing_is_suggested_for_a_name_like_no_other() {
        assert_eq!(nearest("qqq", ["vcpus", "tasks"]), [""; 0]);
    }

    #[test]
    fn three_names_at_most_are_suggested() {
        assert_eq!(nearest("vm", ["vm1", "vm2", "vm3", "vm4"]), ["vm1", "vm2", "vm3"]);
    }
}
