//! Which events are recorded: globs over `layer:group:event`.
//!
//! A selection is a list of terms, separated by commas: `host:kvm:*,guest:sched:sched_switch,!guest:irq:*`. Terms
//! apply in order; one with `!` takes events away. A selection whose first term takes away starts from the default.

use std::fmt;
use thiserror::Error;
use wildmatch::WildMatch;

/// What is recorded when nobody says otherwise.
pub const DEFAULT: &str = "host:kvm:*,host:sched:*,vmm:*:*,guest:*:*,user:*:*";

/// Names suggested for a glob that matches nothing.
const MAX_SUGGESTIONS: usize = 3;
/// Similarity (0 to 1) below which a name is no suggestion.
const MIN_SIMILARITY: f64 = 0.6;

/// A layer of events, as selections name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The host's kernel.
    Host,
    /// The VMM itself.
    Vmm,
    /// The guest's kernel.
    Guest,
    /// The guest's applications.
    User,
}

impl Layer {
    const ALL: [Self; 4] = [Self::Host, Self::Vmm, Self::Guest, Self::User];

    const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Vmm => "vmm",
            Self::Guest => "guest",
            Self::User => "user",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Why a selection cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectionError {
    /// A term without a layer.
    #[error("'{term}' is no event glob: write LAYER:GROUP:EVENT with layer host, guest, vmm or user, as in 'guest:sched:*'")]
    NoLayer {
        /// The term as given.
        term: String,
    },
    /// A term that matches nothing.
    #[error("no event matches '{term}'; {}", suggestion(.nearest))]
    Unknown {
        /// The term as given.
        term: String,
        /// The nearest names, best first; may be empty.
        nearest: Vec<String>,
    },
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() {
        "write LAYER:GROUP:EVENT with * and ? as wildcards, as in 'host:kvm:*' or 'guest:sched:sched_switch'".into()
    } else {
        format!("nearest: {}", nearest.join(", "))
    }
}

#[derive(Clone, Debug)]
struct Term {
    text: String,
    take_away: bool,
    layer: Layer,
    pattern: WildMatch,
}

/// A parsed selection.
#[derive(Clone, Debug)]
pub struct Selection {
    terms: Vec<Term>,
}

impl Selection {
    /// Parses comma-separated terms.
    ///
    /// # Errors
    /// A term that names no layer.
    pub fn parse(text: &str) -> Result<Self, SelectionError> {
        let given = || text.split(',').map(str::trim).filter(|term| !term.is_empty());
        let starts_from_default = given().next().is_none_or(|term| term.starts_with('!'));
        let base = if starts_from_default { DEFAULT } else { "" };
        let terms = base.split(',').filter(|term| !term.is_empty()).chain(given()).map(parse_term);
        Ok(Self { terms: terms.collect::<Result<_, _>>()? })
    }

    /// Whether `name` (`group:event`) of `layer` is recorded.
    #[must_use]
    pub fn includes(&self, layer: Layer, name: &str) -> bool {
        let decides = |term: &&Term| term.layer == layer && term.pattern.matches(name);
        self.terms.iter().rev().find(decides).is_some_and(|term| !term.take_away)
    }

    /// Checks that each term for `layer` matches one of `names` (`group:event`), so that a misspelt one is not silently
    /// nothing.
    ///
    /// # Errors
    /// The first term that matches nothing, with the nearest names.
    pub fn check(&self, layer: Layer, names: &[String]) -> Result<(), SelectionError> {
        let matches_nothing = |term: &&Term| term.layer == layer && !names.iter().any(|name| term.pattern.matches(name));
        match self.terms.iter().find(matches_nothing) {
            None => Ok(()),
            Some(term) => Err(SelectionError::Unknown { term: term.text.clone(), nearest: nearest(term, names) }),
        }
    }
}

fn parse_term(text: &str) -> Result<Term, SelectionError> {
    let (take_away, glob) = text.strip_prefix('!').map_or((false, text), |glob| (true, glob));
    let no_layer = || SelectionError::NoLayer { term: text.into() };
    let (layer, pattern) = glob.split_once(':').ok_or_else(no_layer)?;
    let layer = Layer::ALL.into_iter().find(|known| known.name() == layer).ok_or_else(no_layer)?;
    // `host:kvm` and `guest:*` mean the whole group or layer.
    let pattern = if pattern.contains(':') { pattern.into() } else { format!("{pattern}:*") };
    Ok(Term { text: text.into(), take_away, layer, pattern: WildMatch::new(&pattern) })
}

/// The events and groups whose names resemble `term` the most.
fn nearest(term: &Term, names: &[String]) -> Vec<String> {
    let wanted = term.text.trim_start_matches('!').split_once(':').map_or("", |(_, rest)| rest);
    let similarity = |candidate: &str| strsim::jaro_winkler(wanted, candidate);
    let mut candidates: Vec<(f64, String)> = Vec::new();
    for name in names {
        let (group, event) = name.split_once(':').unwrap_or((name, name));
        candidates.push((similarity(name).max(similarity(event)), format!("{}:{name}", term.layer)));
        let whole = format!("{group}:*");
        candidates.push((similarity(&whole).max(similarity(group)), format!("{}:{whole}", term.layer)));
    }
    candidates.retain(|(score, _)| *score >= MIN_SIMILARITY);
    candidates.sort_by(|left, right| right.0.total_cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
    candidates.dedup_by(|left, right| left.1 == right.1);
    candidates.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["sched:sched_switch", "sched:sched_wakeup", "irq:irq_handler_entry"].map(String::from).to_vec()
    }

    #[test]
    fn later_terms_decide() {
        let selection = Selection::parse("guest:sched:*,!guest:sched:sched_wakeup").unwrap();

        assert!(selection.includes(Layer::Guest, "sched:sched_switch"));
        assert!(!selection.includes(Layer::Guest, "sched:sched_wakeup"));
        assert!(!selection.includes(Layer::Host, "sched:sched_switch"));
    }

    #[test]
    fn taking_away_first_starts_from_the_default() {
        let selection = Selection::parse("!guest:irq:*").unwrap();

        assert!(selection.includes(Layer::Guest, "sched:sched_switch"));
        assert!(!selection.includes(Layer::Guest, "irq:irq_handler_entry"));
        assert!(selection.includes(Layer::Host, "kvm:kvm_exit"));
    }

    #[test]
    fn group_alone_means_all_its_events() {
        let selection = Selection::parse("host:kvm,guest:*").unwrap();

        assert!(selection.includes(Layer::Host, "kvm:kvm_exit"));
        assert!(selection.includes(Layer::Guest, "irq:irq_handler_entry"));
    }

    #[test]
    fn term_without_a_layer_is_refused() {
        let error = Selection::parse("sched:sched_switch").unwrap_err();

        assert!(error.to_string().contains("LAYER:GROUP:EVENT"), "{error}");
    }

    #[test]
    fn misspelt_event_is_answered_with_the_nearest_names() {
        let selection = Selection::parse("guest:sched:sched_swich").unwrap();

        let error = selection.check(Layer::Guest, &names()).unwrap_err();

        assert_eq!(
            error.to_string().split("; ").nth(1).unwrap().split(", ").next(),
            Some("nearest: guest:sched:sched_switch")
        );
    }

    #[test]
    fn term_that_matches_is_accepted() {
        let selection = Selection::parse("guest:sched:*,host:nothing:*").unwrap();

        assert_eq!(selection.check(Layer::Guest, &names()), Ok(()));
    }
}
