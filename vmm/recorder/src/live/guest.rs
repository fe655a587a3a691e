//! What the guest's tasks wait for: wake-ups, by the records of the guest's kernel as they are made.
//!
//! [`GuestWatch`] is shown what is new in the rings a few times a second, puts the records of all vCPUs in order, and
//! pairs a task's being woken with its next turn. Memory is bounded: by the records of two looks, and the tasks that
//! are woken and do not run.

use super::{LATE_SECONDS, MAX_HELD, UNASKED};
use crate::control::protocol::{LiveGuest, LiveWakeup, Times};
use crate::live::guest_wakeups::{WakeupStep, WokenTasks, name_of};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use strata_analysis::event::Decoder;
use strata_clock::HostTime;
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::reader::StreamRecord;

/// The events that tell of wake-ups.
const EVENTS: [&str; 3] = ["sched:sched_switch", "sched:sched_waking", "sched:sched_wakeup_new"];
/// Pause between two looks at what is new in the rings.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Wake-ups that are kept of each second.
const WORST: usize = 5;

/// What the guest's tasks waited for, since it was first asked for.
#[derive(Debug)]
pub struct GuestWatch {
    clock: Clock,
    time: HostTime,
    decoder: Decoder,
    /// By number of the event type, whether it is one of [`EVENTS`].
    reports: Vec<Option<bool>>,
    /// Time, vCPU and what happened there.
    held: Vec<(u64, u32, WakeupStep)>,
    tasks: WokenTasks,
    /// Records that are older are passed over, ticks.
    from: u64,
    since: u64,
    /// Up to where records were taken in, ticks.
    until: u64,
    looked: Option<Instant>,
    requested: Instant,
    wakeups: Times,
    /// By second of the clock, the longest first.
    worst: BTreeMap<u64, Vec<LiveWakeup>>,
}

impl GuestWatch {
    /// Begins to watch, at a time of `time`, which is what `clock` is about.
    #[must_use]
    pub fn new(clock: &Clock, time: HostTime) -> Self {
        let now = time.now();
        Self {
            clock: clock.clone(),
            time,
            decoder: Decoder::default(),
            reports: Vec::new(),
            held: Vec::new(),
            tasks: WokenTasks::default(),
            from: now,
            since: now,
            until: now,
            looked: None,
            requested: Instant::now(),
            wakeups: Times::default(),
            worst: BTreeMap::new(),
        }
    }

    /// Whether nobody has asked for long.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        self.requested.elapsed() > UNASKED
    }

    /// The time at which a look at all rings begins, ticks; `None` when it is too early for one.
    pub fn begin_look(&mut self) -> Option<u64> {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_PAUSE) {
            return None;
        }
        self.looked = Some(Instant::now());
        Some(self.time.now())
    }

    /// Takes in a record of the guest's kernel on `cpu`; those of a vCPU come in order.
    #[inline]
    pub fn record(&mut self, cpu: u32, record: &StreamRecord<'_>) {
        let id = usize::from(record.schema.description().id);
        if record.time < self.from || !self.reports(id, record.schema.name()) {
            return;
        }
        let event = self.decoder.read(0, LayerKind::GuestKernel, record);
        if let Some(step) = event.as_ref().and_then(WakeupStep::of) {
            self.held.push((record.time, cpu, step));
            if self.held.len() >= MAX_HELD {
                self.settle(u64::MAX);
            }
        }
    }

    /// Whether records of the event type `id`, which is called `name`, tell of wake-ups.
    fn reports(&mut self, id: usize, name: &str) -> bool {
        if let Some(Some(known)) = self.reports.get(id) {
            return *known;
        }
        if self.reports.len() <= id {
            self.reports.resize(id + 1, None);
        }
        *self.reports[id].insert(EVENTS.contains(&name))
    }

    /// Records are missing, or others are recorded from now on: what was woken before may have run unseen.
    pub fn forget(&mut self) {
        self.from = self.time.now();
        self.held.clear();
        self.tasks.forget();
    }

    /// A look that began at `begun` has come to its end: all that is older has come.
    pub fn end_look(&mut self, begun: u64) {
        self.settle(begun);
        self.until = self.until.max(begun);
    }

    /// Takes in what is held up to `until`, ticks.
    fn settle(&mut self, until: u64) {
        let mut held = std::mem::take(&mut self.held);
        // Stable: of one time, those of one vCPU stay in their order.
        held.sort_by_key(|&(time, _, _)| time);
        let left = held.partition_point(|&(time, _, _)| time < until);
        for (time, cpu, step) in held.drain(..left) {
            self.take(time, cpu, &step);
        }
        self.held = held;
    }

    fn take(&mut self, time: u64, cpu: u32, step: &WakeupStep) {
        match step {
            WakeupStep::Woken { tid } => self.tasks.wake(*tid, time),
            WakeupStep::Switch { prev, next, comm } => {
                let Some(woken) = self.tasks.switch(*prev, *next) else { return };
                let ns = self.clock.ticks_to_ns(time.saturating_sub(woken));
                self.wakeups.add(ns);
                let at_ns = self.clock.ticks_to_ns(time);
                let of_second = self.worst.entry(at_ns / 1_000_000_000).or_default();
                if of_second.len() == WORST && of_second.last().is_some_and(|last| last.ns >= ns) {
                    return;
                }
                let place = of_second.partition_point(|known| known.ns >= ns);
                of_second.insert(place, LiveWakeup { task: name_of(comm).into(), tid: *next, cpu, at_ns, ns });
                of_second.truncate(WORST);
                while self.worst.len() > LATE_SECONDS {
                    self.worst.pop_first();
                }
            }
        }
    }

    /// What there is so far, and that somebody has asked.
    pub fn request(&mut self) -> LiveGuest {
        self.requested = Instant::now();
        let mut worst: Vec<LiveWakeup> = self.worst.values().flatten().cloned().collect();
        worst.sort_by_key(|wakeup| Reverse(wakeup.ns));
        LiveGuest {
            since_ns: self.clock.ticks_to_ns(self.since),
            until_ns: self.clock.ticks_to_ns(self.until),
            wakeups: self.wakeups.clone(),
            worst,
        }
    }
}

#[cfg(test)]
mod tests;
