//! Which of a host's context switches are worth keeping: those of the machine's threads, and those that say who ran
//! instead of them.
//!
//! A switch matters if it is one of the machine's threads that leaves or comes, or if it happens on a CPU on which such
//! a thread waits to go on. Whether a thread that comes has waited behind others is only known when it comes: the last
//! few switches of a CPU are therefore held back, and count if one of the machine's threads follows.

use crate::schema::EventSchema;
use std::collections::BTreeMap;
use std::ops::Range;

/// The bits of a task's state that say what it waits for; none of them means that it could go on.
const WAITING: u64 = 0xff;

/// A context switch, from a record of `sched:sched_switch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// CPU that it happened on.
    pub cpu: u32,
    /// When, ticks.
    pub time: u64,
    /// Thread that left the CPU.
    pub prev: u32,
    /// Its state, as the kernel gives it.
    pub prev_state: u64,
    /// Thread that came.
    pub next: u32,
}

/// Where the fields of a switch lie in a raw record.
#[derive(Clone, Debug)]
pub struct SwitchFields {
    prev: Range<usize>,
    prev_state: Range<usize>,
    next: Range<usize>,
}

impl SwitchFields {
    /// The fields of the event that `schema` describes; `None` if it has not those of `sched:sched_switch`.
    pub fn of(schema: &EventSchema) -> Option<Self> {
        let place = |field| schema.place(field).filter(|place| place.len() <= 8);
        Some(Self { prev: place("prev_pid")?, prev_state: place("prev_state")?, next: place("next_pid")? })
    }

    /// The switch in `record`, a raw record of `cpu`; `None` if it is too short.
    pub fn read(&self, cpu: u32, time: u64, record: &[u8]) -> Option<Switch> {
        let number = |place: &Range<usize>| {
            let mut bytes = [0; 8];
            bytes[..place.len()].copy_from_slice(record.get(place.clone())?);
            Some(u64::from_le_bytes(bytes))
        };
        let thread = |place| u32::try_from(number(place)?).ok();
        let (prev, next) = (thread(&self.prev)?, thread(&self.next)?);
        Some(Switch { cpu, time, prev, prev_state: number(&self.prev_state)?, next })
    }
}

/// Where one of the machine's threads runs, or waits for being run again.
#[derive(Clone, Copy, Debug)]
struct ThreadLocation {
    /// `None` while it is blocked.
    cpu: Option<u32>,
    since: u64,
}

/// Decides about the switches of all CPUs; those of one CPU come in order.
#[derive(Debug, Default)]
pub struct SwitchFilter {
    /// The machine's threads, and where they are as far as that is known.
    threads: BTreeMap<u32, Option<ThreadLocation>>,
}

impl SwitchFilter {
    /// From now on these are the machine's threads.
    pub fn set_threads(&mut self, threads: impl IntoIterator<Item = u32>) {
        let mut known = std::mem::take(&mut self.threads);
        self.threads = threads.into_iter().map(|thread| (thread, known.remove(&thread).flatten())).collect();
    }

    /// Whether `switch` matters by itself. If it does not, it may still be one that a thread of the machine waited for.
    pub fn matters(&mut self, switch: Switch) -> bool {
        let Switch { cpu, time, prev, prev_state, next } = switch;
        let left = self.note(prev, ThreadLocation { cpu: (prev_state & WAITING == 0).then_some(cpu), since: time });
        let came = self.note(next, ThreadLocation { cpu: Some(cpu), since: time });
        left || came
            || self.threads.values().flatten().any(|location| location.cpu == Some(cpu) && location.since <= time)
    }

    /// Takes over where `thread` is, unless another CPU has given a later location; says whether it is the machine's.
    fn note(&mut self, thread: u32, location: ThreadLocation) -> bool {
        let Some(known) = self.threads.get_mut(&thread) else { return false };
        if known.is_none_or(|known| known.since <= location.since) {
            *known = Some(location);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNABLE: u64 = 0;
    const PREEMPTED: u64 = 0x100;
    const SLEEPING: u64 = 1;

    fn filter() -> SwitchFilter {
        let mut filter = SwitchFilter::default();
        filter.set_threads([10, 11]);
        filter
    }

    fn switch(cpu: u32, time: u64, prev: u32, prev_state: u64, next: u32) -> Switch {
        Switch { cpu, time, prev, prev_state, next }
    }

    #[test]
    fn switches_between_strangers_do_not_matter() {
        assert!(!filter().matters(switch(0, 1, 90, RUNNABLE, 91)));
    }

    #[test]
    fn switches_of_the_machines_threads_matter() {
        let mut filter = filter();

        assert!(filter.matters(switch(0, 1, 90, SLEEPING, 10)));
        assert!(filter.matters(switch(0, 2, 10, SLEEPING, 90)));
    }

    #[test]
    fn strangers_matter_while_a_preempted_thread_waits_behind_them() {
        let mut filter = filter();
        filter.matters(switch(0, 1, 90, SLEEPING, 10));
        filter.matters(switch(0, 2, 10, PREEMPTED, 90));

        assert!(filter.matters(switch(0, 3, 90, RUNNABLE, 91)));
        assert!(!filter.matters(switch(1, 3, 90, RUNNABLE, 91)));
    }

    #[test]
    fn strangers_do_not_matter_once_the_thread_has_blocked_or_moved() {
        let mut filter = filter();
        filter.matters(switch(0, 1, 10, SLEEPING, 90));
        filter.matters(switch(1, 2, 11, RUNNABLE, 90));
        filter.matters(switch(2, 3, 0, RUNNABLE, 11));

        assert!(!filter.matters(switch(0, 4, 90, RUNNABLE, 91)));
        assert!(!filter.matters(switch(1, 4, 90, RUNNABLE, 91)));
    }

    #[test]
    fn older_news_from_another_cpu_does_not_undo_newer() {
        let mut filter = filter();
        filter.matters(switch(0, 100, 90, RUNNABLE, 10));
        filter.matters(switch(1, 50, 10, RUNNABLE, 90));

        assert!(!filter.matters(switch(1, 101, 90, RUNNABLE, 91)));
        assert!(filter.matters(switch(0, 102, 90, RUNNABLE, 91)));
    }

    #[test]
    fn thread_that_is_no_longer_the_machines_does_not_matter() {
        let mut filter = filter();
        filter.matters(switch(0, 1, 10, RUNNABLE, 90));

        filter.set_threads([11]);

        assert!(!filter.matters(switch(0, 2, 90, RUNNABLE, 91)));
        assert!(!filter.matters(switch(0, 3, 91, RUNNABLE, 10)));
    }
}
