//! Which events are recorded: globs over `layer:group:event`.
//!
//! A selection is a list of terms, separated by commas: `host:kvm:*,guest:sched:sched_switch,!guest:irq:*`. Terms
//! apply in order; one with `!` takes events away. A selection whose first term takes away starts from the default. A
//! term without a layer (`sched:*`) means every layer, one without an event (`host:kvm`, `guest:*`) all of the group.
//! The name of a preset stands for its terms: `default,guest:net:*`.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use wildmatch::WildMatch;

/// The name of what is recorded when nobody says otherwise.
pub const DEFAULT: &str = "default";

/// Named selections. Not every kernel has each of their events.
const PRESETS: [(&str, &[&str]); 5] = [
    ("minimal", &[HOST, "vmm:*:*", "user:*:*", SCHEDULING]),
    ("default", &[HOST, "vmm:*:*", "user:*:*", SCHEDULING, ACTIVITY, REQUESTS]),
    ("io", &[HOST, "vmm:*:*", "user:*:*", SCHEDULING, ACTIVITY, STORAGE]),
    ("net", &[HOST, "vmm:*:*", "user:*:*", SCHEDULING, ACTIVITY, NETWORK]),
    ("all", &["host:kvm:*", "host:sched:*", "vmm:*:*", "user:*:*", "guest:*:*"]),
];

/// What tells which thread of the host did what to the guest.
const HOST: &str = "host:kvm:*,host:sched:*";
/// Who runs, who wants to, and the life of tasks.
const SCHEDULING: &str = "guest:sched:sched_switch,guest:sched:sched_wak*,guest:sched:sched_process_*,\
    guest:sched:sched_migrate_task,guest:task:*";
/// What tasks and interrupts do: calls, faults, signals, waiting for locks, deferred work.
const ACTIVITY: &str = "guest:raw_syscalls:*,guest:exceptions:*,guest:signal:*,guest:irq:*,\
    guest:irq_vectors:local_timer_*,guest:irq_vectors:reschedule_*,guest:irq_vectors:call_function*,\
    guest:lock:contention_*,guest:workqueue:workqueue_execute_*,guest:timer:hrtimer_expire_*,guest:timer:timer_expire_*";
/// Requests to block devices.
const REQUESTS: &str = "guest:block:block_rq_*";
/// Storage from the file system down.
const STORAGE: &str = "guest:block:*,guest:writeback:*,guest:ext4:*,guest:jbd2:*,guest:filemap:*,guest:io_uring:*";
/// The network from the socket down.
const NETWORK: &str = "guest:net:*,guest:napi:*,guest:skb:*,guest:sock:*,guest:tcp:*,guest:udp:*,guest:icmp:*,guest:qdisc:*,\
    guest:neigh:*,guest:fib:*,guest:fib6:*,guest:bridge:*";

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

impl FromStr for Layer {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let layer = Self::ALL.into_iter().find(|layer| layer.name() == name);
        layer.ok_or_else(|| format!("'{name}' is no layer of events; there are host, vmm, guest and user"))
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
    /// A term that is no glob.
    #[error(
        "'{term}' is no event glob; write LAYER:GROUP:EVENT with layer host, guest, vmm or user, as in 'guest:sched:*', or \
         a preset: minimal, default, io, net or all"
    )]
    Malformed {
        /// The term as given.
        term: String,
    },
    /// A term that chooses among the events of applications, which the host does not know beforehand.
    #[error("'{term}': events of applications are chosen as a whole; write 'user:*' or '!user:*'")]
    UserEvent {
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
    /// `None` stands for every layer.
    layer: Option<Layer>,
    pattern: WildMatch,
    /// Part of a preset, which need not match anything.
    preset: bool,
}

impl Term {
    fn matches(&self, layer: Layer, name: &str) -> bool {
        self.layer.is_none_or(|own| own == layer) && self.pattern.matches(name)
    }
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
        let base = starts_from_default.then_some(DEFAULT);
        let mut terms = Vec::new();
        for word in base.into_iter().chain(given()) {
            match PRESETS.iter().find(|(name, _)| *name == word) {
                Some((_, parts)) => {
                    for term in parts.iter().flat_map(|part| part.split(',')) {
                        terms.push(Term { preset: true, ..parse_term(term.trim())? });
                    }
                }
                None => terms.push(parse_term(word)?),
            }
        }
        Ok(Self { terms })
    }

    /// Whether `name` (`group:event`) of `layer` is recorded.
    #[must_use]
    pub fn includes(&self, layer: Layer, name: &str) -> bool {
        self.terms.iter().rev().find(|term| term.matches(layer, name)).is_some_and(|term| !term.take_away)
    }

    /// Whether applications may record.
    #[must_use]
    pub fn includes_applications(&self) -> bool {
        self.includes(Layer::User, "any:event")
    }

    /// Checks that each term matches an event of `catalogues` (events as `group:event` for each layer whose events are
    /// known), so that a misspelt one is not silently nothing. Terms for other layers are passed over.
    ///
    /// # Errors
    /// The first term that matches nothing, with the nearest names.
    pub fn check(&self, catalogues: &[(Layer, Vec<String>)]) -> Result<(), SelectionError> {
        for term in self.terms.iter().filter(|term| !term.preset) {
            let of_term: Vec<_> =
                catalogues.iter().filter(|(layer, _)| term.layer.is_none_or(|own| own == *layer)).collect();
            let matches = of_term.iter().any(|(layer, names)| names.iter().any(|name| term.matches(*layer, name)));
            if !of_term.is_empty() && !matches {
                return Err(SelectionError::Unknown { term: term.text.clone(), nearest: nearest(term, &of_term) });
            }
        }
        Ok(())
    }
}

fn parse_term(text: &str) -> Result<Term, SelectionError> {
    let (take_away, glob) = text.strip_prefix('!').map_or((false, text), |glob| (true, glob));
    let first = glob.split(':').next().unwrap_or_default();
    let layer = Layer::ALL.into_iter().find(|known| known.name() == first);
    let pattern = match layer {
        Some(layer) => glob[layer.name().len()..].strip_prefix(':').unwrap_or("*"),
        None => glob,
    };
    let pattern = match pattern.matches(':').count() {
        // `host:kvm` and `guest:*` mean the whole group or layer.
        0 if layer.is_some() => format!("{pattern}:*"),
        1 => pattern.into(),
        _ => return Err(SelectionError::Malformed { term: text.into() }),
    };
    if layer == Some(Layer::User) && pattern != "*:*" {
        return Err(SelectionError::UserEvent { term: text.into() });
    }
    Ok(Term { text: text.into(), take_away, layer, pattern: WildMatch::new(&pattern), preset: false })
}

/// The events and groups whose names resemble `term` the most.
fn nearest(term: &Term, catalogues: &[&(Layer, Vec<String>)]) -> Vec<String> {
    let wanted = term.text.trim_start_matches('!');
    let wanted = term.layer.map_or(wanted, |layer| wanted[layer.name().len()..].trim_start_matches(':'));
    let similarity = |candidate: &str| strsim::jaro_winkler(wanted, candidate);
    let mut candidates: Vec<(f64, String)> = Vec::new();
    for (layer, names) in catalogues {
        for name in names {
            let (group, event) = name.split_once(':').unwrap_or((name, name));
            candidates.push((similarity(name).max(similarity(event)), format!("{layer}:{name}")));
            let whole = format!("{group}:*");
            candidates.push((similarity(&whole).max(similarity(group)), format!("{layer}:{whole}")));
        }
    }
    candidates.retain(|(score, _)| *score >= MIN_SIMILARITY);
    candidates.sort_by(|left, right| right.0.total_cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
    candidates.dedup_by(|left, right| left.1 == right.1);
    candidates.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogues() -> Vec<(Layer, Vec<String>)> {
        let guest = ["sched:sched_switch", "sched:sched_wakeup", "irq:irq_handler_entry"];
        vec![(Layer::Guest, guest.map(String::from).to_vec()), (Layer::Host, vec!["kvm:kvm_exit".into()])]
    }

    fn refusal(text: &str) -> String {
        Selection::parse(text).and_then(|selection| selection.check(&catalogues())).unwrap_err().to_string()
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
    fn presets_stand_for_their_terms_and_match_what_there_is() {
        let net = Selection::parse("net,!guest:irq:*").unwrap();
        let all = Selection::parse("all").unwrap();

        assert!(net.includes(Layer::Guest, "tcp:tcp_probe") && net.includes(Layer::Guest, "sched:sched_waking"));
        assert!(
            !net.includes(Layer::Guest, "block:block_rq_issue") && !net.includes(Layer::Guest, "irq:softirq_entry")
        );
        assert!(all.includes(Layer::Guest, "kmem:kfree") && all.includes_applications());
        assert_eq!(net.check(&catalogues()), Ok(()));
        assert!(PRESETS.iter().all(|(name, _)| Selection::parse(name).is_ok()));
    }

    #[test]
    fn default_leaves_out_what_dominates_the_volume() {
        let default = Selection::parse(DEFAULT).unwrap();
        let includes = |name| default.includes(Layer::Guest, name);

        assert!(["sched:sched_waking", "raw_syscalls:sys_enter", "block:block_rq_issue"].into_iter().all(includes));
        assert!(!["kmem:kmalloc", "tlb:tlb_flush", "power:cpu_idle"].into_iter().any(includes));
    }

    #[test]
    fn group_alone_means_all_its_events() {
        let selection = Selection::parse("host:kvm,guest:*").unwrap();

        assert!(selection.includes(Layer::Host, "kvm:kvm_exit"));
        assert!(selection.includes(Layer::Guest, "irq:irq_handler_entry"));
    }

    #[test]
    fn term_without_a_layer_means_every_layer() {
        let selection = Selection::parse("sched:sched_switch").unwrap();

        assert!(selection.includes(Layer::Guest, "sched:sched_switch"));
        assert!(selection.includes(Layer::Host, "sched:sched_switch"));
        assert_eq!(selection.check(&catalogues()), Ok(()));
    }

    #[test]
    fn term_that_is_no_glob_is_refused() {
        assert!(refusal("sched_switch").contains("LAYER:GROUP:EVENT"));
        assert!(refusal("guest:a:b:c").contains("LAYER:GROUP:EVENT"));
    }

    #[test]
    fn applications_are_chosen_as_a_whole() {
        assert!(Selection::parse("guest:*").is_ok_and(|selection| !selection.includes_applications()));
        assert!(Selection::parse("!guest:*").is_ok_and(|selection| selection.includes_applications()));
        assert!(Selection::parse("user:app:*").is_err_and(|error| error.to_string().contains("as a whole")));
    }

    #[test]
    fn misspelt_event_is_answered_with_the_nearest_names() {
        assert!(refusal("guest:sched:sched_swich").contains("nearest: guest:sched:sched_switch"));
        assert!(refusal("kvm:kvm_exitt").contains("nearest: host:kvm:kvm_exit"));
        assert!(refusal("host:kmv").contains("nearest: host:kvm:*"));
    }

    #[test]
    fn term_for_a_layer_that_is_not_known_is_passed_over() {
        let selection = Selection::parse("guest:sched:*,vmm:nothing:*").unwrap();

        assert_eq!(selection.check(&catalogues()), Ok(()));
    }
}
