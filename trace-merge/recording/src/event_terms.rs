//! Names of events as users write them: `layer:group:event`, and what is left out of it.
//!
//! Terms are separated by commas. `host-kernel:kvm:kvm_exit` is an event of a layer, `kvm:kvm_exit` of any layer,
//! `kvm_exit` of any group, `kvm` all of a group, `host-kernel:kvm` all of a layer's group, `host-kernel` all of a layer.
//! `*` and `?` are wildcards. A term with `!` takes events away. Later terms win.

use crate::layer::{LayerKind, UnknownLayer};
use crate::text::nearest::{best, similarity};
use thiserror::Error;
use wildmatch::WildMatch;

/// Why a term is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TermError {
    /// It has too many parts, or an empty one.
    #[error("'{term}' is not an event's name; write LAYER:GROUP:EVENT or less, as in 'sched:*' or 'kvm_exit'")]
    Malformed {
        /// The term as given.
        term: String,
    },
    /// Its layer does not exist.
    #[error("'{term}': '{layer}' is not a layer; {unknown}")]
    UnknownLayer {
        /// The term as given.
        term: String,
        /// Its layer.
        layer: String,
        /// The layers that there are.
        unknown: UnknownLayer,
    },
}

/// Events of a layer, or of all layers.
#[derive(Clone, Debug, PartialEq)]
struct Pattern {
    layer: Option<LayerKind>,
    /// Of the name of group and event.
    glob: WildMatch,
}

/// One term.
#[derive(Clone, Debug, PartialEq)]
pub struct EventTerm {
    text: String,
    takes_away: bool,
    /// Of these, one has to match: `vmm:control` is an event, as well as a group or event of the layer.
    patterns: Vec<Pattern>,
}

impl EventTerm {
    /// Parses one term.
    ///
    /// # Errors
    /// When it has more than three parts or an empty one, or begins with what is not a layer.
    pub fn parse(text: &str) -> Result<Self, TermError> {
        let (takes_away, glob) = text.strip_prefix('!').map_or((false, text), |glob| (true, glob));
        let parts: Vec<&str> = glob.split(':').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(TermError::Malformed { term: text.into() });
        }
        let pattern = |layer, glob: String| Pattern { layer, glob: WildMatch::new(&glob) };
        let group_or_event =
            |layer, name: &str| vec![pattern(layer, format!("{name}:*")), pattern(layer, format!("*:{name}"))];
        let patterns = match parts[..] {
            [name] => match LayerKind::from_name(name) {
                Some(layer) => vec![pattern(Some(layer), "*".into()), pattern(None, format!("{name}:*"))],
                None => group_or_event(None, name),
            },
            [first, name] => {
                let of_layer = LayerKind::from_name(first).map(|layer| group_or_event(Some(layer), name));
                of_layer.into_iter().flatten().chain([pattern(None, glob.into())]).collect()
            }
            [first, group, event] => {
                let layer = first.parse::<LayerKind>().map_err(|unknown| TermError::UnknownLayer {
                    term: text.into(),
                    layer: first.into(),
                    unknown,
                })?;
                vec![pattern(Some(layer), format!("{group}:{event}"))]
            }
            _ => return Err(TermError::Malformed { term: text.into() }),
        };
        Ok(Self { text: text.into(), takes_away, patterns })
    }

    /// Parses terms between commas; blanks around them do not matter.
    ///
    /// # Errors
    /// As [`Self::parse`], of the first term that is wrong.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, TermError> {
        text.split(',').map(str::trim).filter(|term| !term.is_empty()).map(Self::parse).collect()
    }

    /// The term as given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it takes events away.
    #[must_use]
    pub const fn takes_away(&self) -> bool {
        self.takes_away
    }

    /// Whether it is about the event `name` (group and event) of `layer`.
    #[must_use]
    pub fn matches(&self, layer: LayerKind, name: &str) -> bool {
        self.patterns.iter().any(|of| of.layer.is_none_or(|own| own == layer) && of.glob.matches(name))
    }

    /// The layer of the events that it is about, if it names one.
    #[must_use]
    pub fn layer(&self) -> Option<LayerKind> {
        self.patterns.first().and_then(|pattern| pattern.layer)
    }

    /// The names among `events`, of groups too, that are nearest to it, best first; may be empty.
    #[must_use]
    pub fn nearest<'e>(&self, events: impl Iterator<Item = (LayerKind, &'e str)>) -> Vec<String> {
        let wanted = self.text.trim_start_matches('!');
        let wanted = if self.layer().is_some() { wanted.split_once(':').map_or("", |(_, rest)| rest) } else { wanted };
        let wanted = wanted.replace(['*', '?'], "");
        let mut scored = Vec::new();
        for (layer, name) in events.filter(|(layer, _)| self.layer().is_none_or(|own| own == *layer)) {
            let (group, event) = name.split_once(':').unwrap_or((name, name));
            scored.push((similarity(&wanted, name).max(similarity(&wanted, event)), format!("{layer}:{name}")));
            let whole = format!("{group}:*");
            scored.push((similarity(&wanted, group).max(similarity(&wanted, &whole)), format!("{layer}:{whole}")));
        }
        best(scored)
    }
}

/// Whether `terms` choose the event `name` (group and event) of `layer`: the last one that is about it says so. Where none
/// is, it is chosen if the first term takes away.
#[must_use]
pub fn choose(terms: &[EventTerm], layer: LayerKind, name: &str) -> bool {
    let last = terms.iter().rev().find(|term| term.matches(layer, name));
    last.map_or_else(|| terms.first().is_none_or(EventTerm::takes_away), |term| !term.takes_away)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [(LayerKind, &str); 6] = [
        (LayerKind::HostKernel, "kvm:kvm_exit"),
        (LayerKind::HostKernel, "sched:sched_switch"),
        (LayerKind::Vmm, "vmm:control"),
        (LayerKind::Vmm, "vmm:vcpu_exit"),
        (LayerKind::GuestKernel, "sched:sched_switch"),
        (LayerKind::GuestKernel, "irq:softirq_entry"),
    ];

    /// Places of the events that `text` chooses.
    fn chosen(text: &str) -> Vec<usize> {
        let terms = EventTerm::parse_all(text).unwrap();
        (0..EVENTS.len()).filter(|&place| choose(&terms, EVENTS[place].0, EVENTS[place].1)).collect()
    }

    #[test]
    fn what_is_left_out_of_a_name_is_any() {
        for (text, expected) in [
            ("guest-kernel:sched:sched_switch", &[4][..]),
            ("sched:sched_switch", &[1, 4]),
            ("sched_switch", &[1, 4]),
            ("sched", &[1, 4]),
            ("guest:sched", &[4]),
            ("guest:sched_switch", &[4]),
            ("host-kernel", &[0, 1]),
            ("kvm_*", &[0]),
            ("vmm:control", &[2]),
            ("vmm", &[2, 3]),
            ("vmm:*", &[2, 3]),
            ("*", &[0, 1, 2, 3, 4, 5]),
            ("kvm_exit, irq:*", &[0, 5]),
        ] {
            assert_eq!(chosen(text), expected, "{text}");
        }
    }

    #[test]
    fn later_terms_win_and_one_that_takes_away_first_leaves_the_rest() {
        assert_eq!(chosen("sched,!host:sched_switch"), [4]);
        assert_eq!(chosen("!vmm,vmm:control"), [0, 1, 2, 4, 5]);
    }

    #[test]
    fn terms_that_are_none_are_refused() {
        let refused = |text| EventTerm::parse(text).unwrap_err().to_string();

        assert!(refused("a:b:c:d").contains("LAYER:GROUP:EVENT"), "{}", refused("a:b:c:d"));
        assert!(refused("sched:").contains("LAYER:GROUP:EVENT"), "{}", refused("sched:"));
        assert!(refused("gest:sched:*").contains("'gest' is not a layer"), "{}", refused("gest:sched:*"));
    }

    #[test]
    fn nearest_names_are_of_events_and_of_groups() {
        let near = |text| EventTerm::parse(text).unwrap().nearest(EVENTS.into_iter());

        assert_eq!(near("kvm_exitt")[0], "host-kernel:kvm:kvm_exit");
        assert_eq!(near("guest:shed:*")[0], "guest-kernel:sched:*");
        assert_eq!(near("SCHED_SWITCH")[0], "guest-kernel:sched:sched_switch");
        assert!(near("zzz").is_empty());
    }
}
