//! Puts the records of two tracing instances into one order for each CPU.
//!
//! One instance has the events of the machine's threads, the other one the context switches of the whole host. Both
//! are read in turn, so that what comes is held until nothing earlier can come from the other one. Of the context
//! switches only those that matter are handed on, with the few before them: see [`super::switch_filter`].

use super::reader::{HostItem, HostRecord};
use std::collections::{BTreeMap, VecDeque};

/// Most switches of a CPU that are held back because they may turn out to matter. A thread that waits behind more of
/// them than this misses the first ones.
const MAX_HELD_BACK: usize = 256;

/// Which of the instances an item comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The one with the events of the machine's threads.
    Machine,
    /// The one with the context switches of the host.
    Switches,
}

/// Counts of what was not handed on as it came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterleaveStats {
    /// Context switches that do not concern the machine.
    pub unrelated: u64,
    /// Records that came too late for their place and got the time of the one before them.
    pub times_raised: u64,
}

/// Holds items until their turn.
#[derive(Debug, Default)]
pub struct Interleaver {
    cpus: BTreeMap<u32, Cpu>,
    stats: InterleaveStats,
}

#[derive(Debug, Default)]
struct Cpu {
    machine: Queue,
    switches: Queue,
    held_back: VecDeque<HeldBack>,
    /// Time of the record handed on last.
    last_time: u64,
}

/// Items of one instance in their order.
#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Queued>,
    /// Payloads of the items, one after the other, from `begin` on.
    payloads: Vec<u8>,
    begin: usize,
    last_time: u64,
}

#[derive(Debug, Clone, Copy)]
struct Queued {
    time: u64,
    item: QueuedItem,
}

#[derive(Debug, Clone, Copy)]
enum QueuedItem {
    Record { event_id: u16, common_pid: i32, bytes: usize },
    Lost { count: Option<u64> },
}

/// A switch that does not matter yet.
#[derive(Debug)]
struct HeldBack {
    time: u64,
    event_id: u16,
    common_pid: i32,
    payload: Box<[u8]>,
}

impl Interleaver {
    /// Takes an item; those of one instance and CPU come in order.
    pub fn push(&mut self, origin: Origin, item: HostItem<'_>) {
        match item {
            HostItem::Record(record) => {
                let HostRecord { cpu, time, event_id, common_pid, payload } = record;
                let queue = self.queue(cpu, origin);
                queue.payloads.extend_from_slice(payload);
                queue.last_time = time;
                queue.items.push_back(Queued {
                    time,
                    item: QueuedItem::Record { event_id, common_pid, bytes: payload.len() },
                });
            }
            HostItem::Lost { cpu, count } => {
                let queue = self.queue(cpu, origin);
                queue.items.push_back(Queued { time: queue.last_time, item: QueuedItem::Lost { count } });
            }
        }
    }

    fn queue(&mut self, cpu: u32, origin: Origin) -> &mut Queue {
        let cpu = self.cpus.entry(cpu).or_default();
        match origin {
            Origin::Machine => &mut cpu.machine,
            Origin::Switches => &mut cpu.switches,
        }
    }

    /// Hands on the items of `cpu` whose time is `until` or earlier. `matters` says which switches do.
    pub fn release(
        &mut self,
        cpu: u32,
        until: u64,
        matters: &mut dyn FnMut(HostRecord<'_>) -> bool,
        sink: &mut dyn FnMut(HostItem<'_>),
    ) {
        let Some(held) = self.cpus.get_mut(&cpu) else { return };
        while let Some((origin, queued)) = held.pop(until) {
            let queue = match origin {
                Origin::Machine => &mut held.machine,
                Origin::Switches => &mut held.switches,
            };
            let (event_id, common_pid, payload) = match queued.item {
                QueuedItem::Record { event_id, common_pid, bytes } => (event_id, common_pid, queue.take(bytes)),
                QueuedItem::Lost { count } => {
                    sink(HostItem::Lost { cpu, count });
                    continue;
                }
            };
            let mut record = HostRecord { cpu, time: queued.time, event_id, common_pid, payload };
            if origin == Origin::Switches && !matters(record) {
                if held.held_back.len() == MAX_HELD_BACK {
                    held.held_back.pop_front();
                    self.stats.unrelated += 1;
                }
                held.held_back.push_back(HeldBack { time: queued.time, event_id, common_pid, payload: payload.into() });
                continue;
            }
            let mut hand_on = |mut record: HostRecord<'_>| {
                self.stats.times_raised += u64::from(record.time < held.last_time);
                record.time = record.time.max(held.last_time);
                held.last_time = record.time;
                sink(HostItem::Record(record));
            };
            for before in held.held_back.drain(..) {
                let HeldBack { time, event_id, common_pid, payload } = before;
                hand_on(HostRecord { cpu, time, event_id, common_pid, payload: &payload });
            }
            record.time = queued.time;
            hand_on(record);
        }
        held.machine.tidy();
        held.switches.tidy();
    }

    /// Counts so far.
    pub fn stats(&self) -> InterleaveStats {
        let held_back: usize = self.cpus.values().map(|cpu| cpu.held_back.len()).sum();
        InterleaveStats { unrelated: self.stats.unrelated + held_back as u64, ..self.stats }
    }
}

impl Cpu {
    /// Takes the earlier one of the two first items, if its time is `until` or earlier.
    fn pop(&mut self, until: u64) -> Option<(Origin, Queued)> {
        let time = |queue: &Queue| queue.items.front().map(|item| item.time);
        let (origin, first) = match (time(&self.machine), time(&self.switches)) {
            (Some(machine), Some(switch)) if switch < machine => (Origin::Switches, switch),
            (Some(machine), _) => (Origin::Machine, machine),
            (None, switch) => (Origin::Switches, switch?),
        };
        if first > until {
            return None;
        }
        let queue = match origin {
            Origin::Machine => &mut self.machine,
            Origin::Switches => &mut self.switches,
        };
        queue.items.pop_front().map(|item| (origin, item))
    }
}

impl Queue {
    /// The payload of the item taken last, of `bytes` bytes.
    fn take(&mut self, bytes: usize) -> &[u8] {
        let payload = &self.payloads[self.begin..self.begin + bytes];
        self.begin += bytes;
        payload
    }

    /// Gives the memory of the items that were taken to those to come.
    fn tidy(&mut self) {
        self.payloads.drain(..self.begin);
        self.begin = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time: u64, payload: &[u8]) -> HostItem<'_> {
        HostItem::Record(HostRecord { cpu: 0, time, event_id: 1, common_pid: 2, payload })
    }

    /// What comes out up to `until`: the times, or `None` for a loss. Switches matter whose payload is not empty.
    fn released(interleaver: &mut Interleaver, until: u64) -> Vec<Option<u64>> {
        let mut times = Vec::new();
        interleaver.release(0, until, &mut |record| !record.payload.is_empty(), &mut |item| {
            times.push(match item {
                HostItem::Record(record) => Some(record.time),
                HostItem::Lost { .. } => None,
            });
        });
        times
    }

    #[test]
    fn records_of_both_sources_come_out_in_order_up_to_the_time_given() {
        let mut interleaver = Interleaver::default();
        [1, 4, 9].into_iter().for_each(|time| interleaver.push(Origin::Machine, record(time, b"m")));
        [2, 3, 8].into_iter().for_each(|time| interleaver.push(Origin::Switches, record(time, b"s")));

        assert_eq!(released(&mut interleaver, 8), [1, 2, 3, 4, 8].map(Some));
        assert_eq!(released(&mut interleaver, 9), [Some(9)]);
    }

    #[test]
    fn payloads_stay_with_their_records() {
        let mut interleaver = Interleaver::default();
        interleaver.push(Origin::Machine, record(1, b"one"));
        interleaver.push(Origin::Switches, record(2, b"two"));
        interleaver.push(Origin::Machine, record(3, b"three"));
        let mut payloads = Vec::new();
        let mut sink = |item: HostItem<'_>| {
            let HostItem::Record(record) = item else { panic!("{item:?}") };
            payloads.push(record.payload.to_vec());
        };

        interleaver.release(0, 2, &mut |_| true, &mut sink);
        interleaver.push(Origin::Machine, record(4, b"four"));
        interleaver.release(0, 4, &mut |_| true, &mut sink);

        assert_eq!(payloads, [b"one".to_vec(), b"two".to_vec(), b"three".to_vec(), b"four".to_vec()]);
    }

    #[test]
    fn switches_that_do_not_matter_come_out_before_the_one_that_does() {
        let mut interleaver = Interleaver::default();
        [1, 2].into_iter().for_each(|time| interleaver.push(Origin::Switches, record(time, b"")));

        assert_eq!(released(&mut interleaver, 5), []);
        assert_eq!(interleaver.stats().unrelated, 2);
        interleaver.push(Origin::Switches, record(6, b"s"));

        assert_eq!(released(&mut interleaver, 6), [1, 2, 6].map(Some));
        assert_eq!(interleaver.stats(), InterleaveStats::default());
    }

    #[test]
    fn switches_that_do_not_matter_are_dropped_beyond_the_limit() {
        let mut interleaver = Interleaver::default();
        let count = MAX_HELD_BACK as u64 + 10;
        (0..count).for_each(|time| interleaver.push(Origin::Switches, record(time, b"")));
        interleaver.push(Origin::Machine, record(count, b"m"));

        let times = released(&mut interleaver, count);

        assert_eq!(times, (10..=count).map(Some).collect::<Vec<_>>());
        assert_eq!(interleaver.stats().unrelated, 10);
    }

    #[test]
    fn record_that_comes_too_late_gets_the_time_of_the_one_before_it() {
        let mut interleaver = Interleaver::default();
        interleaver.push(Origin::Machine, record(10, b"m"));
        released(&mut interleaver, 10);
        interleaver.push(Origin::Switches, record(9, b"s"));

        assert_eq!(released(&mut interleaver, 10), [Some(10)]);
        assert_eq!(interleaver.stats().times_raised, 1);
    }

    #[test]
    fn loss_keeps_its_place_among_the_records_of_its_instance() {
        let mut interleaver = Interleaver::default();
        interleaver.push(Origin::Machine, record(1, b"m"));
        interleaver.push(Origin::Machine, HostItem::Lost { cpu: 0, count: Some(3) });
        interleaver.push(Origin::Machine, record(5, b"m"));
        interleaver.push(Origin::Switches, record(2, b"s"));

        assert_eq!(released(&mut interleaver, 9), [Some(1), None, Some(2), Some(5)]);
    }
}
