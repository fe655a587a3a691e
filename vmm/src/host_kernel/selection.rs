//! Chooses events by globs such as `kvm:*`.

use wildmatch::WildMatch;

use super::schema::EventName;

/// Names suggested for a glob that matches nothing.
const MAX_SUGGESTIONS: usize = 3;
/// Similarity (0 to 1) below which a name is no suggestion.
const MIN_SIMILARITY: f64 = 0.6;

/// A glob that matches no event of this kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no kernel event matches `{glob}`; {}", suggestion(.nearest))]
pub struct UnknownEvents {
    /// The glob as given.
    pub glob: String,
    /// The nearest names and groups, best first; may be empty.
    pub nearest: Vec<String>,
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() {
        "write GROUP:NAME with * and ? as wildcards, as in kvm:* or sched:sched_switch".to_owned()
    } else {
        format!("nearest: {}", nearest.join(", "))
    }
}

/// Parses the contents of tracefs' `available_events`: one `group:name` per line. Other lines are ignored.
pub fn parse_available(text: &str) -> Vec<EventName> {
    text.lines().filter_map(EventName::parse).collect()
}

/// The available events that match at least one of the globs, in the order of `available`, each once. `*` stands for any
/// characters, `?` for one. Fails on the first glob that matches nothing.
pub fn select<S: AsRef<str>>(available: &[EventName], globs: &[S]) -> Result<Vec<EventName>, UnknownEvents> {
    let names: Vec<String> = available.iter().map(EventName::to_string).collect();
    let mut chosen = vec![false; available.len()];
    for glob in globs {
        let glob = glob.as_ref().trim();
        let pattern = WildMatch::new(glob);
        let mut any = false;
        for (chosen, name) in chosen.iter_mut().zip(&names) {
            if pattern.matches(name) {
                *chosen = true;
                any = true;
            }
        }
        if !any {
            return Err(UnknownEvents { glob: glob.to_owned(), nearest: nearest(glob, available, &names) });
        }
    }
    Ok(available.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(name, _)| name.clone()).collect())
}

/// The events and groups whose names resemble `glob` the most.
fn nearest(glob: &str, available: &[EventName], names: &[String]) -> Vec<String> {
    let mut candidates: Vec<(f64, String)> = Vec::new();
    for (event, full) in available.iter().zip(names) {
        // A name without its group is a likely mistake, and so is a group without `:*`.
        let event_score = strsim::jaro_winkler(glob, full).max(strsim::jaro_winkler(glob, &event.name));
        candidates.push((event_score, full.clone()));
        let group = format!("{}:*", event.group);
        let group_score = strsim::jaro_winkler(glob, &group).max(strsim::jaro_winkler(glob, &event.group));
        candidates.push((group_score, group));
    }
    candidates.retain(|(score, _)| *score >= MIN_SIMILARITY);
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    candidates.dedup_by(|a, b| a.1 == b.1);
    candidates.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn available() -> Vec<EventName> {
        parse_available(
            "kvm:kvm_exit\nkvm:kvm_entry\nsched:sched_switch\nsched:sched_waking\nnot an event\nirq:softirq_entry\n",
        )
    }

    fn chosen(globs: &[&str]) -> Vec<String> {
        select(&available(), globs).unwrap().iter().map(EventName::to_string).collect()
    }

    #[test]
    fn a_group_glob_selects_the_group() {
        assert_eq!(chosen(&["kvm:*"]), ["kvm:kvm_exit", "kvm:kvm_entry"]);
    }

    #[test]
    fn overlapping_globs_select_each_event_once() {
        assert_eq!(chosen(&["sched:sched_w*", "*:*_?witch", "sched:*"]), ["sched:sched_switch", "sched:sched_waking"]);
    }

    #[test]
    fn no_globs_select_nothing() {
        assert_eq!(chosen(&[]), Vec::<String>::new());
    }

    #[test]
    fn a_misspelt_event_names_the_nearest() {
        let error = select(&available(), &["kvm:*", "sched:sched_swich"]).unwrap_err();

        assert_eq!(error.glob, "sched:sched_swich");
        assert_eq!(error.nearest[0], "sched:sched_switch");
        assert_eq!(error.to_string().split("; ").next().unwrap(), "no kernel event matches `sched:sched_swich`");
    }

    #[test]
    fn a_bare_group_suggests_its_glob() {
        assert_eq!(select(&available(), &["kvm"]).unwrap_err().nearest[0], "kvm:*");
    }

    #[test]
    fn a_bare_name_suggests_the_full_one() {
        assert_eq!(select(&available(), &["softirq_entry"]).unwrap_err().nearest[0], "irq:softirq_entry");
    }

    #[test]
    fn nothing_alike_explains_the_form() {
        let error = select(&available(), &["0"]).unwrap_err();

        assert_eq!(error.nearest, Vec::<String>::new());
        assert!(error.to_string().contains("GROUP:NAME"));
    }
}
