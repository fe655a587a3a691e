//! What a VM does now: a summary of the host kernel's records as they are drained, for whoever asks on the control
//! socket; that of the guest's is in [`guest`].
//!
//! It is kept only while somebody asks, and from then on: [`HostWatch`] takes in the records that tell of vCPUs, puts
//! those of all CPUs in order, and feeds them to the [`Timeline`] of the reports, so that its states are theirs. Memory
//! is bounded: by the records of two polls, and by the number of vCPUs, host threads and exit reasons.

pub mod disk_times;
pub mod guest;
pub mod guest_wakeups;
pub mod threads_of_vcpus;
pub mod vcpu_activity;

use crate::control::protocol::{Late, LiveExits, LiveVcpu, Thief, Times, Watched};
use shared_ring::event::EventDescription;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use strata_analysis::event::{Decoder, Event};
use strata_analysis::exit_reason::ExitReason;
use strata_analysis::timeline::vcpu::{Preemptor, VcpuState};
use strata_analysis::timeline::{Change, Input, Origin, Timeline};
use strata_clock::HostTime;
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Vm;
use strata_recording::reader::StreamRecord;
use strata_recording::schema::Schema;

/// The events that tell of vCPUs.
const EVENTS: [&str; 8] = [
    "kvm:kvm_entry",
    "kvm:kvm_exit",
    "kvm:kvm_userspace_exit",
    "sched:sched_switch",
    "sched:sched_waking",
    "sched:sched_wakeup",
    "sched:sched_wakeup_new",
    "sched:sched_migrate_task",
];
/// For how long nobody may ask before it ends.
const UNASKED: Duration = Duration::from_secs(120);
/// Records that are held until those of other CPUs have come. What is more is taken in as it is.
const MAX_HELD: usize = 1 << 16;
/// Names of those who preempt that are kept apart.
pub const MAX_THIEVES: usize = 256;
/// Exit reasons that are kept apart.
pub const MAX_REASONS: usize = 256;
/// Host threads whose names the timeline knows, at most; then it begins anew.
const MAX_THREADS: usize = 1 << 16;
/// Seconds whose latest turn is kept.
const LATE_SECONDS: usize = 16;
/// Who preempts beyond [`MAX_THIEVES`].
const OTHERS: &str = "(others)";

/// A record that waits for its turn.
#[derive(Clone, Copy, Debug)]
struct Held {
    time: u64,
    cpu: u32,
    /// Number of the event type; `None` where records were lost.
    id: Option<u16>,
    /// Where its payload lies.
    at: usize,
    size: usize,
}

/// What the host does for a VM's vCPUs, since it was first asked for.
#[derive(Debug)]
pub struct HostWatch {
    vm: Vm,
    clock: Clock,
    time: HostTime,
    /// By number of the event type.
    schemas: Vec<Option<Schema>>,
    decoder: Decoder,
    timeline: Timeline,
    held: Vec<Held>,
    payloads: Vec<u8>,
    /// The time that the last poll began at, ticks: what is older has come by the end of the next one.
    polled: u64,
    /// Up to where records were taken in, ticks.
    until: u64,
    since: u64,
    requested: Instant,
    records: u64,
    lost: u64,
    sums: Sums,
}

/// Sums of states.
#[derive(Debug, Default)]
struct Sums {
    vcpus: BTreeMap<u32, VcpuSums>,
    /// By name, ns.
    thieves: BTreeMap<String, u64>,
    exits: BTreeMap<ExitReason, Times>,
    ready: Times,
    /// The turn that came latest in each second, by second of the clock.
    late: BTreeMap<u64, Late>,
}

#[derive(Debug, Default)]
struct VcpuSums {
    times: LiveVcpu,
    /// Since when it has been ready without its turn, ticks, and what ran for longest meanwhile, and how long, ns.
    ready: Option<(u64, Preemptor, u64)>,
    /// The exit that is not over.
    exit: Option<(ExitReason, u64)>,
}

impl HostWatch {
    /// Begins to watch `vm` by records of `events`, whose times count `time`, which is what `clock` is about.
    #[must_use]
    pub fn new<'e>(vm: &Vm, clock: &Clock, time: HostTime, events: impl Iterator<Item = &'e EventDescription>) -> Self {
        let now = time.now();
        let mut schemas: Vec<Option<Schema>> = Vec::new();
        for event in events.filter(|event| EVENTS.contains(&event.name.as_str())) {
            let place = usize::from(event.id);
            if schemas.len() <= place {
                schemas.resize(place + 1, None);
            }
            schemas[place] = Some(Schema::new(event.clone()));
        }
        let timeline = begin(vm, clock, &schemas);
        Self {
            vm: vm.clone(),
            clock: clock.clone(),
            time,
            schemas,
            decoder: Decoder::default(),
            timeline,
            held: Vec::new(),
            payloads: Vec::new(),
            polled: now,
            until: now,
            since: now,
            requested: Instant::now(),
            records: 0,
            lost: 0,
            sums: Sums::default(),
        }
    }

    /// Whether it is of `vm` as it is now: its vCPUs have the same threads.
    #[must_use]
    pub fn is_of(&self, vm: &Vm) -> bool {
        self.vm.vcpu_threads == vm.vcpu_threads
    }

    /// Whether nobody has asked for long.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        self.requested.elapsed() > UNASKED
    }

    /// Takes in a record of `cpu`; those of a CPU come in order.
    #[inline]
    pub fn add(&mut self, cpu: u32, time: u64, id: u16, payload: &[u8]) {
        self.records += 1;
        if !matches!(self.schemas.get(usize::from(id)), Some(Some(_))) {
            return;
        }
        let (at, size) = (self.payloads.len(), payload.len());
        self.payloads.extend_from_slice(payload);
        self.hold(Held { time, cpu, id: Some(id), at, size });
    }

    /// Takes in that `records` of `cpu` were lost.
    pub fn add_lost(&mut self, cpu: u32, records: u64) {
        self.lost = self.lost.saturating_add(records);
        let last = self.held.iter().rev().find(|held| held.cpu == cpu);
        let time = last.map_or(self.until, |held| held.time);
        self.hold(Held { time, cpu, id: None, at: 0, size: 0 });
    }

    fn hold(&mut self, held: Held) {
        self.held.push(held);
        if self.held.len() >= MAX_HELD {
            self.release(u64::MAX);
        }
    }

    /// The time at which a poll begins, ticks.
    #[must_use]
    pub fn begin_poll(&self) -> u64 {
        self.time.now()
    }

    /// A poll that began at `begun` has come to its end: all that is older than the poll before it has come.
    pub fn end_poll(&mut self, begun: u64) {
        let until = std::mem::replace(&mut self.polled, begun);
        self.release(until);
    }

    /// Takes in what is held up to `until`.
    fn release(&mut self, until: u64) {
        let mut held = std::mem::take(&mut self.held);
        held.sort_by_key(|held| held.time);
        let left = held.partition_point(|held| held.time <= until);
        let payloads = std::mem::take(&mut self.payloads);
        for held in &held[..left] {
            self.take(held, &payloads);
        }
        if until < u64::MAX {
            self.until = self.until.max(until);
        }
        // What is left moves to the front.
        for held in &held[left..] {
            let at = self.payloads.len();
            self.payloads.extend_from_slice(payloads.get(held.at..held.at + held.size).unwrap_or_default());
            self.held.push(Held { at, ..*held });
        }
        if self.timeline.hosts.iter().any(|host| host.known_threads() > MAX_THREADS) {
            self.timeline = begin(&self.vm, &self.clock, &self.schemas);
        }
    }

    fn take(&mut self, held: &Held, payloads: &[u8]) {
        // One that was held back for longer than a poll comes now.
        let time = held.time.max(self.until);
        self.until = time;
        let origin = Origin::Host { host: 0, cpu: held.cpu, only_kvm: false };
        let Some(schema) = held.id.and_then(|id| self.schemas.get(usize::from(id))?.as_ref()) else {
            self.timeline.begin_gap(time, origin);
            self.sums.take_changes(&self.timeline, &self.clock, self.since);
            self.timeline.end_gap(time, origin);
            self.sums.vcpus.values_mut().for_each(|vcpu| (vcpu.exit, vcpu.ready) = (None, None));
            return;
        };
        let payload = payloads.get(held.at..held.at + held.size).unwrap_or_default();
        let record = StreamRecord { time, schema, payload, packet: 0, after_gap: false };
        let event = self.decoder.read(0, LayerKind::HostKernel, &record);
        let input = Input { origin, source: 0, event, record };
        self.timeline.apply(&input);
        self.sums.take_changes(&self.timeline, &self.clock, self.since);
        self.sums.take_crossing(&input, &self.timeline, &self.clock);
    }

    /// What there is so far, and that somebody has asked.
    pub fn request(&mut self) -> Watched {
        self.requested = Instant::now();
        // What lasts is counted up to where records have come.
        self.timeline.finish(self.until);
        self.sums.take_changes(&self.timeline, &self.clock, self.since);
        let ns = |ticks: u64| self.clock.ticks_to_ns(ticks);
        let vcpus = self.sums.vcpus.iter().map(|(&vcpu, sums)| LiveVcpu { vcpu, ..sums.times }).collect();
        let mut thieves: Vec<Thief> =
            self.sums.thieves.iter().map(|(name, &ns)| Thief { name: name.clone().into(), ns }).collect();
        thieves.sort_by_key(|thief| std::cmp::Reverse(thief.ns));
        let exit = |(reason, times): (&ExitReason, &Times)| LiveExits {
            reason: reason.name().into_owned().into(),
            times: times.clone(),
        };
        Watched {
            since_ns: ns(self.since),
            until_ns: ns(self.until.max(self.since)),
            vcpus,
            thieves,
            exits: self.sums.exits.iter().map(exit).collect(),
            ready: self.sums.ready.clone(),
            late: self.sums.late.values().cloned().collect(),
            records: self.records,
            lost: self.lost,
        }
    }
}

fn begin(vm: &Vm, clock: &Clock, schemas: &[Option<Schema>]) -> Timeline {
    Timeline::of_running_vm(vm, clock, |name| schemas.iter().flatten().any(|schema| schema.name() == name))
}

impl Sums {
    /// Takes in the states that have ended, as far as they lie behind `since`.
    fn take_changes(&mut self, timeline: &Timeline, clock: &Clock, since: u64) {
        for change in timeline.changes() {
            let Change::Vcpu { vcpu, window, state, .. } = *change else { continue };
            // From moment to moment, so that what is rounded off does not add up.
            let [begin, end] = [window.begin.max(since), window.end.max(since)].map(|time| clock.ticks_to_ns(time));
            let ns = end - begin;
            let sums = self.vcpus.entry(vcpu).or_default();
            *sums.times.of(state) += ns;
            let VcpuState::Stolen { by, .. } = state else {
                if let Some((begun, by, _)) = sums.ready.take()
                    && state != VcpuState::Unknown
                {
                    let ns = clock.ticks_to_ns(window.begin.saturating_sub(begun));
                    self.ready.add(ns);
                    let at_ns = clock.ticks_to_ns(window.begin);
                    self.note_late(Late { vcpu, at_ns, ns, by: name(by, timeline).into() });
                }
                continue;
            };
            match &mut sums.ready {
                Some((_, longest, of_longest)) if ns > *of_longest => (*longest, *of_longest) = (by, ns),
                Some(_) => {}
                none => *none = Some((window.begin.max(since), by, ns)),
            }
            let name = name(by, timeline);
            let known = self.thieves.len() < MAX_THIEVES || self.thieves.contains_key(&name);
            *self.thieves.entry(if known { name } else { OTHERS.into() }).or_default() += ns;
        }
    }

    /// Keeps `late` if it is the latest of its second.
    fn note_late(&mut self, late: Late) {
        let second = late.at_ns / 1_000_000_000;
        if self.late.get(&second).is_none_or(|known| known.ns < late.ns) {
            self.late.insert(second, late);
        }
        while self.late.len() > LATE_SECONDS {
            self.late.pop_first();
        }
    }

    /// Takes in that a vCPU leaves the guest, or enters it.
    fn take_crossing(&mut self, input: &Input<'_>, timeline: &Timeline, clock: &Clock) {
        let (tid, vcpu, reason) = match input.event {
            Some(Event::KvmEntry { tid, vcpu }) => (tid, vcpu, None),
            Some(Event::KvmExit { tid, vcpu, reason }) => (tid, vcpu, Some(reason)),
            _ => return,
        };
        let Some((_, vcpu)) = timeline.vcpu_of_event(0, tid, vcpu) else { return };
        let sums = self.vcpus.entry(vcpu).or_default();
        // KVM may go back into the guest without saying so: the next exit ends the one before.
        let ended = std::mem::replace(&mut sums.exit, reason.map(|reason| (reason, input.time())));
        if let Some((reason, begun)) = ended
            && (self.exits.len() < MAX_REASONS || self.exits.contains_key(&reason))
        {
            let ns = clock.ticks_to_ns(input.time().saturating_sub(begun));
            self.exits.entry(reason).or_default().add(ns);
        }
    }
}

/// The name of who preempts.
fn name(by: Preemptor, timeline: &Timeline) -> String {
    match (by, timeline.hosts.first()) {
        (Preemptor::Thread(thread), Some(host)) => host.thread_name(thread),
        (Preemptor::Idle, _) => "(idle, had yet to begin)".into(),
        (Preemptor::NotAllowed, _) => "(idle, not allowed to run: a CPU limit)".into(),
        (Preemptor::IdleForLong, _) => "(idle for long: a CPU limit, or not recorded)".into(),
        (Preemptor::Thread(_), None) | (Preemptor::Unknown, _) => "(not known)".into(),
    }
}

impl LiveVcpu {
    /// The time in `state`.
    const fn of(&mut self, state: VcpuState) -> &mut u64 {
        match state {
            VcpuState::Guest | VcpuState::KvmRun => &mut self.guest_ns,
            VcpuState::Kvm(_) => &mut self.kvm_ns,
            VcpuState::Vmm(_) => &mut self.vmm_ns,
            VcpuState::Stolen { woken: false, .. } => &mut self.preempted_ns,
            VcpuState::Stolen { woken: true, .. } => &mut self.woken_ns,
            VcpuState::Halted => &mut self.halted_ns,
            VcpuState::BlockedInKvm(_) | VcpuState::BlockedInVmm(_) => &mut self.blocked_ns,
            VcpuState::Unknown | VcpuState::Ended => &mut self.unknown_ns,
        }
    }
}

#[cfg(test)]
mod tests;
