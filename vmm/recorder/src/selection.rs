//! Which events are recorded.
//!
//! A selection is a list of [terms](strata_recording::event_terms), separated by commas:
//! `host-kernel:kvm:*,sched_switch,!guest-kernel:irq`. One whose first term takes away starts from the default. The name
//! of a preset stands for its terms: `default,guest-kernel:net`.

use strata_recording::event_terms::{EventTerm, TermError};
use strata_recording::layer::LayerKind;
use strata_recording::text::nearest::{best, similarity};
use thiserror::Error;

/// The name of what is recorded when nobody says otherwise.
pub const DEFAULT: &str = "default";

/// Named selections. Not every kernel has each of their events.
const PRESETS: [(&str, &[&str]); 5] = [
    ("minimal", &[HOST, "vmm:*:*", "guest-user:*:*", SCHEDULING, CONSOLE]),
    ("default", &[HOST, "vmm:*:*", "guest-user:*:*", SCHEDULING, CONSOLE, ACTIVITY, REQUESTS]),
    ("io", &[HOST, "vmm:*:*", "guest-user:*:*", SCHEDULING, CONSOLE, ACTIVITY, STORAGE]),
    ("net", &[HOST, "vmm:*:*", "guest-user:*:*", SCHEDULING, CONSOLE, ACTIVITY, NETWORK]),
    ("all", &[HOST, "vmm:*:*", "guest-user:*:*", "guest-kernel:*:*"]),
];

/// The events that tell which thread of the host did what to the guest, and what it is called.
const HOST: &str = "host-kernel:kvm:*,host-kernel:sched:*,host-kernel:task:task_rename";
/// Who runs, who wants to, the life of tasks, and where they belong.
const SCHEDULING: &str = "guest-kernel:sched:sched_switch,guest-kernel:sched:sched_wak*,guest-kernel:sched:sched_process_*,\
    guest-kernel:sched:sched_migrate_task,guest-kernel:task:*,guest-kernel:strata:task,guest-kernel:strata:cgroup,\
    guest-kernel:cgroup:cgroup_mkdir,guest-kernel:cgroup:cgroup_attach_task";
/// What the kernel prints: warnings, and the text of a panic.
const CONSOLE: &str = "guest-kernel:printk:console";
/// What tasks and interrupts do: calls, faults, signals, waiting for locks, deferred work.
const ACTIVITY: &str = "guest-kernel:raw_syscalls:*,guest-kernel:exceptions:*,guest-kernel:signal:*,guest-kernel:irq:*,\
    guest-kernel:irq_vectors:local_timer_*,guest-kernel:irq_vectors:reschedule_*,guest-kernel:irq_vectors:call_function*,\
    guest-kernel:lock:contention_*,guest-kernel:workqueue:workqueue_execute_*,guest-kernel:timer:hrtimer_expire_*,guest-kernel:timer:timer_expire_*";
/// Requests to block devices.
const REQUESTS: &str = "guest-kernel:block:block_rq_*";
/// Storage from the file system down.
const STORAGE: &str = "guest-kernel:block:*,guest-kernel:writeback:*,guest-kernel:ext4:*,guest-kernel:jbd2:*,guest-kernel:filemap:*,guest-kernel:io_uring:*";
/// The network from the socket down.
const NETWORK: &str = "guest-kernel:net:*,guest-kernel:napi:*,guest-kernel:skb:*,guest-kernel:sock:*,guest-kernel:tcp:*,guest-kernel:udp:*,guest-kernel:icmp:*,guest-kernel:qdisc:*,\
    guest-kernel:neigh:*,guest-kernel:fib:*,guest-kernel:fib6:*,guest-kernel:bridge:*";

/// Why a selection cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectionError {
    /// A term that is none.
    #[error(transparent)]
    Term(#[from] TermError),
    /// A term that chooses among the events of applications, which the host does not know beforehand.
    #[error("'{term}': events of applications are chosen as a whole; write 'guest-user:*' or '!guest-user:*'")]
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

/// What no event is called: only a term that means all events matches it.
const UNNAMED: &str = "\u{0}:\u{0}";

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() {
        "write LAYER:GROUP:EVENT with * and ? as wildcards, as in 'host-kernel:kvm:*' or 'guest-kernel:sched:sched_switch'"
            .into()
    } else {
        format!("nearest: {}", nearest.join(", "))
    }
}

#[derive(Clone, Debug)]
struct Term {
    term: EventTerm,
    /// Part of a preset, which need not match anything.
    preset: bool,
}

/// A parsed selection.
#[derive(Clone, Debug)]
pub struct Selection {
    terms: Vec<Term>,
    /// Those for events of the host and the VMM, where these were chosen otherwise.
    elsewhere: Option<Vec<Term>>,
}

impl Selection {
    /// Parses comma-separated terms.
    ///
    /// # Errors
    /// A term that is not a glob, or names a layer that does not exist.
    pub fn parse(text: &str) -> Result<Self, SelectionError> {
        let given = || text.split(',').map(str::trim).filter(|term| !term.is_empty());
        let starts_from_default = given().next().is_none_or(|term| term.starts_with('!'));
        let base = starts_from_default.then_some(DEFAULT);
        let mut terms = Vec::new();
        for word in base.into_iter().chain(given()) {
            match PRESETS.iter().find(|(name, _)| *name == word) {
                Some((_, parts)) => {
                    for term in parts.iter().flat_map(|part| part.split(',')) {
                        terms.push(Term { term: EventTerm::parse(term.trim())?, preset: true });
                    }
                }
                None => terms.push(Term { term: chosen(word)?, preset: false }),
            }
        }
        Ok(Self { terms, elsewhere: None })
    }

    /// This one of the guest's events, and `before` of the others.
    #[must_use]
    pub fn of_guest(self, before: Self) -> Self {
        Self { terms: self.terms, elsewhere: Some(before.elsewhere.unwrap_or(before.terms)) }
    }

    /// Whether `name` (`group:event`) of `layer` is recorded.
    #[must_use]
    pub fn includes(&self, layer: LayerKind, name: &str) -> bool {
        let is_of_guest = matches!(layer, LayerKind::GuestKernel | LayerKind::GuestUser);
        let terms = self.elsewhere.as_ref().filter(|_| !is_of_guest).unwrap_or(&self.terms);
        let last = terms.iter().rev().find(|of| of.term.matches(layer, name));
        last.is_some_and(|of| !of.term.takes_away())
    }

    /// Whether applications may record.
    #[must_use]
    pub fn includes_applications(&self) -> bool {
        self.includes(LayerKind::GuestUser, UNNAMED)
    }

    /// Checks that each term matches an event of `catalogues` (events as `group:event` for each layer whose events are
    /// known), so that a misspelt one is not silently nothing. Terms for other layers are passed over.
    ///
    /// # Errors
    /// The first term that matches nothing, with the nearest names.
    pub fn check(&self, catalogues: &[(LayerKind, Vec<String>)]) -> Result<(), SelectionError> {
        let all = || catalogues.iter().flat_map(|(layer, names)| names.iter().map(|name| (*layer, name.as_str())));
        for Term { term, .. } in self.terms.iter().filter(|of| !of.preset) {
            let is_known = catalogues.iter().any(|(layer, _)| term.layer().is_none_or(|own| own == *layer));
            if is_known && !all().any(|(layer, name)| term.matches(layer, name)) {
                let presets = PRESETS.iter().map(|(name, _)| (similarity(term.text(), name), (*name).to_owned()));
                let nearest = best(presets.collect()).into_iter().chain(term.nearest(all())).collect();
                return Err(SelectionError::Unknown { term: term.text().into(), nearest });
            }
        }
        Ok(())
    }
}

fn chosen(text: &str) -> Result<EventTerm, SelectionError> {
    let term = EventTerm::parse(text)?;
    if term.layer() == Some(LayerKind::GuestUser) && !is_of_all_applications(&term) {
        return Err(SelectionError::UserEvent { term: text.into() });
    }
    Ok(term)
}

/// Whether it is about all events of applications, whose names nobody knows beforehand.
fn is_of_all_applications(term: &EventTerm) -> bool {
    term.matches(LayerKind::GuestUser, UNNAMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogues() -> Vec<(LayerKind, Vec<String>)> {
        let guest = ["sched:sched_switch", "sched:sched_wakeup", "irq:irq_handler_entry"];
        vec![
            (LayerKind::GuestKernel, guest.map(String::from).to_vec()),
            (LayerKind::HostKernel, vec!["kvm:kvm_exit".into()]),
        ]
    }

    fn refusal(text: &str) -> String {
        Selection::parse(text).and_then(|selection| selection.check(&catalogues())).unwrap_err().to_string()
    }

    #[test]
    fn events_of_the_host_stay_chosen_when_those_of_the_guest_are_others() {
        let parse = |text| Selection::parse(text).unwrap();
        let included =
            |selection: &Selection| LayerKind::ALL.map(|layer| selection.includes(layer, "sched:sched_switch"));

        let first = parse("guest:block:*").of_guest(parse("host:*,vmm:*,guest:*"));
        let second = parse("all").of_guest(parse("guest:*").of_guest(parse("host:*")));

        let chosen = |host, vmm, guest, user| {
            LayerKind::ALL.map(|layer| match layer {
                LayerKind::HostKernel => host,
                LayerKind::Vmm => vmm,
                LayerKind::GuestKernel => guest,
                LayerKind::GuestUser => user,
            })
        };
        assert_eq!(included(&first), chosen(true, true, false, false));
        assert_eq!(included(&second), chosen(true, false, true, true));
    }

    #[test]
    fn later_terms_decide() {
        let selection = Selection::parse("guest-kernel:sched:*,!guest-kernel:sched:sched_wakeup").unwrap();

        assert!(selection.includes(LayerKind::GuestKernel, "sched:sched_switch"));
        assert!(!selection.includes(LayerKind::GuestKernel, "sched:sched_wakeup"));
        assert!(!selection.includes(LayerKind::HostKernel, "sched:sched_switch"));
    }

    #[test]
    fn taking_away_first_starts_from_the_default() {
        let selection = Selection::parse("!guest:irq:*").unwrap();

        assert!(selection.includes(LayerKind::GuestKernel, "sched:sched_switch"));
        assert!(!selection.includes(LayerKind::GuestKernel, "irq:irq_handler_entry"));
        assert!(selection.includes(LayerKind::HostKernel, "kvm:kvm_exit"));
    }

    #[test]
    fn presets_stand_for_their_terms_and_match_what_there_is() {
        let net = Selection::parse("net,!guest:irq:*").unwrap();
        let all = Selection::parse("all").unwrap();

        assert!(
            net.includes(LayerKind::GuestKernel, "tcp:tcp_probe")
                && net.includes(LayerKind::GuestKernel, "sched:sched_waking")
        );
        assert!(
            !net.includes(LayerKind::GuestKernel, "block:block_rq_issue")
                && !net.includes(LayerKind::GuestKernel, "irq:softirq_entry")
        );
        assert!(all.includes(LayerKind::GuestKernel, "kmem:kfree") && all.includes_applications());
        assert_eq!(net.check(&catalogues()), Ok(()));
        assert!(PRESETS.iter().all(|(name, _)| Selection::parse(name).is_ok()));
    }

    #[test]
    fn presets_record_the_names_of_tasks() {
        for (preset, _) in PRESETS {
            let selection = Selection::parse(preset).unwrap();

            for layer in [LayerKind::HostKernel, LayerKind::GuestKernel] {
                assert!(selection.includes(layer, "task:task_rename"), "{preset}, {layer}");
            }
        }
    }

    #[test]
    fn default_leaves_out_what_dominates_the_volume() {
        let default = Selection::parse(DEFAULT).unwrap();
        let includes = |name| default.includes(LayerKind::GuestKernel, name);

        assert!(["sched:sched_waking", "raw_syscalls:sys_enter", "block:block_rq_issue"].into_iter().all(includes));
        assert!(
            ["strata:task", "strata:cgroup", "cgroup:cgroup_attach_task", "printk:console"].into_iter().all(includes)
        );
        assert!(!["kmem:kmalloc", "tlb:tlb_flush", "power:cpu_idle"].into_iter().any(includes));
    }

    #[test]
    fn group_alone_means_all_its_events() {
        let selection = Selection::parse("host:kvm,guest:*").unwrap();

        assert!(selection.includes(LayerKind::HostKernel, "kvm:kvm_exit"));
        assert!(selection.includes(LayerKind::GuestKernel, "irq:irq_handler_entry"));
    }

    #[test]
    fn term_without_a_layer_means_every_layer() {
        let selection = Selection::parse("sched:sched_switch").unwrap();

        assert!(selection.includes(LayerKind::GuestKernel, "sched:sched_switch"));
        assert!(selection.includes(LayerKind::HostKernel, "sched:sched_switch"));
        assert_eq!(selection.check(&catalogues()), Ok(()));
    }

    #[test]
    fn layers_have_one_name_and_a_short_form() {
        for text in ["guest:sched:*", "guest-kernel:sched:*"] {
            let selection = Selection::parse(text).unwrap();

            assert!(selection.includes(LayerKind::GuestKernel, "sched:sched_switch"), "{text}");
            assert!(!selection.includes(LayerKind::HostKernel, "sched:sched_switch"), "{text}");
            assert_eq!(selection.check(&catalogues()), Ok(()), "{text}");
        }
    }

    #[test]
    fn unknown_layer_is_answered_with_those_that_there_are() {
        let refused = refusal("gest-kernel:sched:*");

        assert!(refused.contains("'gest-kernel' is not a layer; layers are host-kernel, vmm"), "{refused}");
        assert!(refused.contains("nearest: guest-kernel"), "{refused}");
    }

    #[test]
    fn event_is_known_by_its_own_name_and_misspelt_presets_name_the_preset() {
        let selection = Selection::parse("sched_switch").unwrap();

        assert!(selection.includes(LayerKind::GuestKernel, "sched:sched_switch"));
        assert!(!selection.includes(LayerKind::GuestKernel, "sched:sched_wakeup"));
        assert_eq!(selection.check(&catalogues()), Ok(()));
        assert!(refusal("defualt").ends_with("nearest: default"), "{}", refusal("defualt"));
    }

    #[test]
    fn term_that_is_not_a_glob_is_refused() {
        assert!(refusal("guest-kernel:a:b:c").contains("LAYER:GROUP:EVENT"));
        assert!(refusal("guest:a:b").contains("no event matches 'guest:a:b'"));
    }

    #[test]
    fn applications_are_chosen_as_a_whole() {
        assert!(Selection::parse("guest:*").is_ok_and(|selection| !selection.includes_applications()));
        assert!(Selection::parse("!guest:*").is_ok_and(|selection| selection.includes_applications()));
        assert!(Selection::parse("user:app:*").is_err_and(|error| error.to_string().contains("as a whole")));
    }

    #[test]
    fn misspelt_event_is_answered_with_the_nearest_names() {
        assert!(refusal("guest:sched:sched_swich").contains("nearest: guest-kernel:sched:sched_switch"));
        assert!(refusal("kvm:kvm_exitt").contains("nearest: host-kernel:kvm:kvm_exit"));
        assert!(refusal("host:kmv").contains("nearest: host-kernel:kvm:*"));
    }

    #[test]
    fn term_for_a_layer_that_is_not_known_is_passed_over() {
        let selection = Selection::parse("guest:sched:*,vmm:nothing:*").unwrap();

        assert_eq!(selection.check(&catalogues()), Ok(()));
    }
}
