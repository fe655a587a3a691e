//! Watches drained records for what triggers name.
//!
//! Records come stream by stream: those of one are in order, those of several are not. What conditions on times need of
//! a record is kept as a fact, until everything up to its time has come ([`Watch::settle`]); the facts are then looked
//! at in the order of their times. Conditions on events are judged at once.
//!
//! Memory is bounded: facts, and what has begun and not ended, are limited in number. Where that is not enough, what
//! began longest ago is forgotten, and does not trigger.

mod bounds;
mod fact;

use super::expression::{Condition, Measure, Trigger};
use super::silence::{Silence, Silent};
use super::vcpus::VcpuThreads;
use crate::live::guest_wakeups::{WakeupStep, WokenTasks, name_of};
use bounds::{Bounds, Timed};
use fact::{DiskFact, ExitFact, FactReader, Facts, GuestFact, HostFact, Request, settled};
use foldhash::{HashMap, HashMapExt};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use strata_analysis::event::Tid;
use strata_analysis::exit_reason::ExitReason;
use strata_analysis::filter::{CPU_FIELD, FieldValue, FilterPlan};
use strata_recording::layer::LayerKind;
use strata_recording::reader::StreamRecord;
use strata_recording::text::terminal::harmless;

/// Things of a kind that have begun and not ended, at most.
const MAX_OPEN: usize = 1 << 16;
/// Times that a trigger is reported to have fired in one go; more are counted only.
const MAX_FIRED: usize = 64;
/// A trigger that has fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// Which: its number.
    pub trigger: usize,
    /// When, ticks.
    pub time: u64,
    /// What happened, for people.
    pub what: String,
}

/// What a vCPU's thread does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ThreadState {
    #[default]
    Unknown,
    Runs,
    /// It has been ready to run since then, ticks.
    IsReady(u64),
    Blocked,
}

/// Which events of a layer matter, by their ids; found out with the first record of each.
type Interests = Vec<Option<Interest>>;

#[derive(Clone, Debug, Default)]
struct Interest {
    /// How it is read for the conditions on times, if any needs it.
    fact: Option<FactReader>,
    /// The triggers on the event itself whose fields it has, and how their filters are judged.
    triggers: Vec<(usize, FilterPlan)>,
}

impl Interest {
    /// Whether nobody looks at the event.
    fn is_none(&self) -> bool {
        self.fact.is_none() && self.triggers.is_empty()
    }
}

/// A trigger that is armed.
#[derive(Debug)]
struct Armed {
    /// Its number, which no other one has or gets.
    number: usize,
    trigger: Trigger,
    /// What happened before does not fire it, ticks.
    since: u64,
}

/// Triggers, and what they have seen so far.
#[derive(Debug)]
pub struct Watch {
    triggers: Vec<Armed>,
    /// By layer, in the order of [`LayerKind::ALL`]: since when it is looked at, ticks. Records that are older are not,
    /// as those that they belong to may be gone.
    since: [Option<u64>; LayerKind::ALL.len()],
    /// The same; the end of time for those that are not looked at.
    from: [u64; LayerKind::ALL.len()],
    ticks_per_second: u64,
    /// The same: whether records are missing of those that have been looked at since the last judgement.
    is_missing: [bool; LayerKind::ALL.len()],
    /// From which time on triggers are evaluated at all.
    bounds: Bounds,
    /// By layer, in the order of [`LayerKind::ALL`].
    interests: [Interests; LayerKind::ALL.len()],
    facts: Facts,
    fired: Vec<Fired>,
    /// How often each trigger, by its number, fired and is not in `fired`, which is full.
    uncounted: BTreeMap<usize, u64>,
    /// The VM's vCPU of each host thread.
    vcpus: VcpuThreads,
    /// By the place of the thread.
    threads: Vec<ThreadState>,
    /// By layer and vCPU: since when it is out of the guest, and why.
    exits: [Vec<Option<(u64, ExitReason)>>; LayerKind::ALL.len()],
    wakeups: WokenTasks,
    requests: HashMap<Request, u64>,
    silence: Silence,
    /// Whether that matters.
    has_hang: bool,
    /// Since when a vCPU was silent that was reported, by trigger.
    reported_silent: HashMap<(usize, u32), u64>,
    /// The triggers on the host's load, by their numbers, that it exceeds.
    loaded: BTreeSet<usize>,
}

impl Watch {
    /// Watches for nothing yet, in records of a clock of `ticks_per_second`.
    #[must_use]
    pub fn new(ticks_per_second: u64) -> Self {
        Self {
            uncounted: BTreeMap::new(),
            triggers: Vec::new(),
            since: Default::default(),
            from: [u64::MAX; LayerKind::ALL.len()],
            is_missing: [false; LayerKind::ALL.len()],
            ticks_per_second,
            bounds: Bounds::of(&[], ticks_per_second),
            interests: Default::default(),
            facts: Facts::default(),
            fired: Vec::new(),
            vcpus: VcpuThreads::default(),
            threads: Vec::new(),
            exits: Default::default(),
            wakeups: WokenTasks::default(),
            requests: HashMap::new(),
            silence: Silence::default(),
            has_hang: false,
            reported_silent: HashMap::new(),
            loaded: BTreeSet::new(),
        }
    }

    /// Watches for `trigger`, too, under a `number` that no other one has had, in what happens from `since` on, ticks.
    pub fn arm(&mut self, number: usize, trigger: Trigger, since: u64) {
        self.triggers.push(Armed { number, trigger, since });
        for layer in LayerKind::ALL {
            let looks = self.looks_at(layer);
            if let Some(known) = self.since.get_mut(layer as usize) {
                *known = known.filter(|_| looks).or_else(|| looks.then_some(since));
            }
        }
        self.learn_anew();
    }

    /// Watches no more for the trigger of this number.
    pub fn disarm(&mut self, number: usize) {
        self.triggers.retain(|armed| armed.number != number);
        self.fired.retain(|fired| fired.trigger != number);
        self.uncounted.remove(&number);
        self.loaded.remove(&number);
        self.reported_silent.retain(|&(of, _), _| of != number);
        for layer in LayerKind::ALL {
            let looks = self.looks_at(layer);
            if let Some(since) = self.since.get_mut(layer as usize) {
                *since = since.filter(|_| looks);
            }
        }
        self.learn_anew();
    }

    /// Forgets who looks at which records: the triggers are others.
    fn learn_anew(&mut self) {
        self.interests = Default::default();
        self.from = self.since.map(|since| since.unwrap_or(u64::MAX));
        self.bounds = Bounds::of(&self.triggers, self.ticks_per_second);
        self.has_hang = self.triggers.iter().any(|armed| matches!(armed.trigger.condition, Condition::Hang { .. }));
        // What has begun of layers that are not looked at any more, nobody would see the end of.
        for layer in LayerKind::ALL {
            if self.since.get(layer as usize).is_none_or(Option::is_none) {
                self.forget(layer);
            }
        }
    }

    /// Forgets what has begun in `layer`: its records no longer tell the end.
    pub fn forget(&mut self, layer: LayerKind) {
        self.facts.forget(layer);
        self.exits.get_mut(layer as usize).into_iter().for_each(Vec::clear);
        self.requests.retain(|&(of, _, _), _| of != layer);
        match layer {
            LayerKind::HostKernel => {
                self.threads.clear();
                self.silence = Silence::default();
            }
            LayerKind::GuestKernel => {
                self.wakeups.forget();
                self.silence.forget_guest();
            }
            LayerKind::Vmm | LayerKind::GuestUser => {}
        }
    }

    /// Records of `layer` are missing before the next [`Self::settle`], and with them ends of what has begun.
    pub fn lost(&mut self, layer: LayerKind) {
        if let Some(is_missing) = self.is_missing.get_mut(layer as usize) {
            *is_missing = true;
        }
    }

    /// The VM's vCPUs have these threads.
    pub fn set_vcpus(&mut self, threads: impl Iterator<Item = (u32, Tid)>) {
        self.vcpus.set(threads);
    }

    /// Whether any trigger looks at records of `layer`.
    #[must_use]
    pub fn looks_at(&self, layer: LayerKind) -> bool {
        self.triggers.iter().any(|armed| match &armed.trigger.condition {
            Condition::HostLoad { .. } => false,
            Condition::Event { layer: of, .. } => *of == layer,
            Condition::Hang { .. } => matches!(layer, LayerKind::HostKernel | LayerKind::GuestKernel),
            Condition::Longer { what, .. } => match what {
                Measure::Steal => layer == LayerKind::HostKernel,
                Measure::Wakeup => layer == LayerKind::GuestKernel,
                Measure::Exit(_) => matches!(layer, LayerKind::HostKernel | LayerKind::Vmm),
                Measure::Disk => matches!(layer, LayerKind::GuestKernel | LayerKind::Vmm),
            },
        })
    }

    /// What is taken in of applications from now on is another process's, which has numbered its event types itself.
    pub fn next_process(&mut self) {
        self.interests.get_mut(LayerKind::GuestUser as usize).into_iter().for_each(Vec::clear);
    }

    /// Takes in a record of the stream `cpu` of `layer`.
    pub fn record(&mut self, layer: LayerKind, cpu: u32, record: &StreamRecord<'_>) {
        if self.from.get(layer as usize).is_none_or(|&from| record.time < from) {
            return;
        }
        if self.has_hang && layer == LayerKind::GuestKernel {
            self.silence.recorded(cpu, record.time);
        }
        let id = usize::from(record.schema.description().id);
        let interest = self.interests.get(layer as usize).and_then(|of| of.get(id)).and_then(Option::as_ref);
        if interest.is_none_or(|interest| !interest.is_none()) {
            self.take_in(layer, id, cpu, record);
        }
    }

    /// Takes in a record that somebody may look at.
    #[inline(never)]
    fn take_in(&mut self, layer: LayerKind, id: usize, cpu: u32, record: &StreamRecord<'_>) {
        if self.facts.are_full() {
            self.settle_facts(u64::MAX);
        }
        if !matches!(self.interests.get(layer as usize).and_then(|of| of.get(id)), Some(Some(_))) {
            self.learn(layer, id, record);
        }
        let Some(Some(interest)) = self.interests.get(layer as usize).and_then(|of| of.get(id)) else { return };
        if let Some(fact) = &interest.fact {
            fact.read(layer, cpu, record, &self.vcpus, &mut self.facts);
        }
        for place in 0..interest.triggers.len() {
            self.judge(layer, id, place, cpu, record);
        }
    }

    /// Finds out who looks at records like `record`.
    #[cold]
    fn learn(&mut self, layer: LayerKind, id: usize, record: &StreamRecord<'_>) {
        let measures = self.triggers.iter().filter_map(|armed| match &armed.trigger.condition {
            Condition::Longer { what, .. } => Some(what),
            Condition::Hang { .. } => Some(&Measure::Steal),
            Condition::HostLoad { .. } | Condition::Event { .. } => None,
        });
        let is_meant = |trigger: &Trigger| matches!(&trigger.condition, Condition::Event { layer: of, name } if *of == layer && name.matches(record.schema.name()));
        let meant = self.triggers.iter().enumerate().filter(|(_, armed)| is_meant(&armed.trigger));
        let interest = Interest {
            fact: FactReader::new(layer, record.schema, record, measures),
            triggers: meant.filter_map(|(place, of)| Some((place, of.trigger.filters.plan(record.schema)?))).collect(),
        };
        let Some(of_layer) = self.interests.get_mut(layer as usize) else { return };
        if of_layer.len() <= id {
            of_layer.resize(id + 1, None);
        }
        if let Some(known) = of_layer.get_mut(id) {
            *known = Some(interest);
        }
    }

    /// Judges a record by one of the triggers on its event.
    fn judge(&mut self, layer: LayerKind, id: usize, place: usize, cpu: u32, record: &StreamRecord<'_>) {
        let interest = self.interests.get(layer as usize).and_then(|of| of.get(id)?.as_ref());
        let Some((armed, filters)) = interest.and_then(|interest| interest.triggers.get(place)) else { return };
        let Some(armed) = self.triggers.get(*armed) else { return };
        let (number, holds) = (armed.number, filters.holds(cpu, record));
        if holds {
            let what = format!("{} in {layer}, CPU {cpu}", harmless(record.schema.name()));
            self.fire(number, record.time, what);
        }
    }

    /// Looks at the facts that are older than `until`, ticks: everything up to there has come.
    pub fn settle(&mut self, until: u64) {
        for layer in LayerKind::ALL {
            if self.is_missing.get_mut(layer as usize).is_some_and(std::mem::take) {
                self.forget(layer);
            }
        }
        self.settle_facts(until);
        self.look_for_silence(until);
    }

    /// Fires for vCPUs that have been running so long up to `until`, ticks, without a record of their guest's kernel;
    /// once each time.
    fn look_for_silence(&mut self, until: u64) {
        for place in 0..self.triggers.len() {
            let Some(Armed {
                number, trigger: Trigger { condition: Condition::Hang { than_ns }, filters, .. }, ..
            }) = self.triggers.get(place)
            else {
                continue;
            };
            let number = *number;
            let mut silent = self.silence.silent(&self.vcpus, until);
            silent.retain(|silent| {
                self.nanoseconds(silent.ran) > *than_ns
                    && filters.iter().all(|filter| filter.holds(FieldValue::Number(silent.vcpu.into())))
            });
            for Silent { vcpu, since, ran } in silent {
                if self.reported_silent.insert((number, vcpu), since) != Some(since) {
                    let ran = Duration::from_nanos(self.nanoseconds(ran));
                    let what = format!("vCPU {vcpu} ran for {ran:?} without a record of the guest's kernel there");
                    self.fire(number, until, what);
                }
            }
        }
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.ticks_per_second.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Looks at the facts that are older than `until`, kind by kind, and tells what fires in the order of times.
    fn settle_facts(&mut self, until: u64) {
        let fired = self.fired.len();
        let mut facts = std::mem::take(&mut self.facts);
        let (host, exits) = (settled(&mut facts.host, until), settled(&mut facts.exits, until));
        let (guest, disk) = (settled(&mut facts.guest, until), settled(&mut facts.disk, until));
        facts.host.drain(..host).for_each(|(time, fact)| self.schedules(time, fact));
        facts.exits.drain(..exits).for_each(|(time, fact)| self.leaves_or_enters(time, fact));
        facts.guest.drain(..guest).for_each(|(time, fact)| self.wakes_or_switches(time, fact));
        facts.disk.drain(..disk).for_each(|(time, fact)| self.requests(time, fact));
        self.facts = facts;
        if let Some(new) = self.fired.get_mut(fired..) {
            new.sort_by_key(|fired| fired.time);
        }
    }

    fn schedules(&mut self, time: u64, fact: HostFact) {
        let (prev, is_ready, next) = match fact {
            HostFact::Switch { prev, is_ready, next } => (prev, is_ready, next),
            HostFact::Wake { thread } => {
                let state = place(&mut self.threads, thread);
                if *state == ThreadState::Blocked {
                    *state = ThreadState::IsReady(time);
                }
                return;
            }
        };
        if let Some((prev, vcpu)) = prev.and_then(|prev| Some((prev, self.vcpus.vcpu(prev)?))) {
            if is_ready {
                self.silence.is_preempted(prev, vcpu, time);
            } else {
                self.silence.blocks(prev);
            }
            let state = if is_ready { ThreadState::IsReady(time) } else { ThreadState::Blocked };
            *place(&mut self.threads, prev) = state;
        }
        let Some((next, vcpu)) = next.and_then(|next| Some((next, self.vcpus.vcpu(next)?))) else { return };
        self.silence.runs(next, time);
        let before = std::mem::replace(place(&mut self.threads, next), ThreadState::Runs);
        if let ThreadState::IsReady(since) = before
            && self.is_too_long(Timed::Steal, since, time)
        {
            let is_meant = |what: &Measure| matches!(what, Measure::Steal);
            self.took(time, since, is_meant, &[("vcpu", vcpu.into())], None, || {
                format!("vCPU {vcpu} was to run, and the host ran something else")
            });
        }
    }

    fn leaves_or_enters(&mut self, time: u64, ExitFact { layer, vcpu, reason }: ExitFact) {
        let Some(out) = self.exits.get_mut(layer as usize) else { return };
        let before = std::mem::replace(place(out, vcpu), reason.map(|reason| (time, reason)));
        let Some((since, reason)) = before.filter(|_| reason.is_none()) else { return };
        if !self.is_too_long(Timed::Exit, since, time) {
            return;
        }
        let name = reason.name();
        let is_meant = |what: &Measure| match what {
            Measure::Exit(Some(of)) => of.matches(&name),
            Measure::Exit(None) => !reason.is_halt(),
            _ => false,
        };
        self.took(time, since, is_meant, &[("vcpu", vcpu.into())], None, || {
            format!("vCPU {vcpu} was out of the guest for {name}")
        });
    }

    fn wakes_or_switches(&mut self, time: u64, GuestFact { step, cpu }: GuestFact) {
        let (prev, tid, comm) = match step {
            WakeupStep::Woken { tid } => return self.wakeups.wake(tid, time),
            WakeupStep::Switch { prev, next, comm } => (prev, next, comm),
        };
        let since = self.wakeups.switch(prev, tid);
        let Some(since) = since.filter(|&since| self.is_too_long(Timed::Wakeup, since, time)) else { return };
        let comm = name_of(&comm);
        let numbers = [("tid", i128::from(tid)), (CPU_FIELD, cpu.into())];
        let is_meant = |what: &Measure| matches!(what, Measure::Wakeup);
        self.took(time, since, is_meant, &numbers, Some(&comm), || {
            format!("{}/{tid} was woken and did not run", harmless(&comm))
        });
    }

    fn requests(&mut self, time: u64, DiskFact { request, is_done }: DiskFact) {
        if !is_done {
            self.requests.insert(request, time);
            limit(&mut self.requests);
            return;
        }
        let since = self.requests.remove(&request);
        let Some(since) = since.filter(|&since| self.is_too_long(Timed::Disk, since, time)) else { return };
        let (layer, _, sector) = request;
        let is_meant = |what: &Measure| matches!(what, Measure::Disk);
        self.took(time, since, is_meant, &[("sector", sector.into())], None, || {
            format!("a disk request at sector {sector} took, in {layer},")
        });
    }

    /// Whether `what` lasted from `since` to `time` and any trigger may be about that.
    #[inline]
    fn is_too_long(&self, what: Timed, since: u64, time: u64) -> bool {
        self.bounds.are_met(what, time.saturating_sub(since))
    }

    /// Something that `is_meant` by a trigger lasted from `since` to `time`, with these fields.
    #[cold]
    fn took(
        &mut self,
        time: u64,
        since: u64,
        is_meant: impl Fn(&Measure) -> bool,
        numbers: &[(&str, i128)],
        task: Option<&str>,
        what: impl Fn() -> String,
    ) {
        let ns = self.nanoseconds(time.saturating_sub(since));
        for place in 0..self.triggers.len() {
            let Some(Armed { number, trigger, .. }) = self.triggers.get(place) else { continue };
            let Trigger { condition: Condition::Longer { what: of, than_ns }, filters, .. } = trigger else { continue };
            let number = *number;
            let holds = filters.iter().all(|filter| {
                let value = numbers.iter().find(|(name, _)| *name == filter.field);
                let value = value.map(|&(_, value)| FieldValue::Number(value));
                let text = task.filter(|_| filter.field == "task").map(FieldValue::Text);
                value.or(text).is_some_and(|value| filter.holds(value))
            });
            if ns > *than_ns && holds && is_meant(of) {
                self.fire(number, time, format!("{} for {:?}", what(), Duration::from_nanos(ns)));
            }
        }
    }

    /// The host's tasks had to wait for a CPU in `percent` of the time up to `time`, ticks. Fires where that exceeds
    /// what a trigger says and did not before.
    pub fn host_load(&mut self, percent: u32, time: u64) {
        for place in 0..self.triggers.len() {
            let Some(Armed { number, trigger, .. }) = self.triggers.get(place) else { continue };
            let Condition::HostLoad { than_percent } = trigger.condition else { continue };
            let number = *number;
            if percent <= than_percent {
                self.loaded.remove(&number);
            } else if self.loaded.insert(number) {
                self.fire(number, time, format!("tasks of the host waited for a CPU in {percent}% of the last second"));
            }
        }
    }

    fn fire(&mut self, number: usize, time: u64, what: String) {
        let is_new = self.triggers.iter().any(|armed| armed.number == number && time >= armed.since);
        if !is_new {
            return;
        }
        if self.fired.len() < MAX_FIRED {
            self.fired.push(Fired { trigger: number, time, what });
        } else {
            *self.uncounted.entry(number).or_default() += 1;
        }
    }

    /// The triggers that have fired since the last call, and how often each, by its number, fired beyond that.
    pub fn take_fired(&mut self) -> (Vec<Fired>, BTreeMap<usize, u64>) {
        (std::mem::take(&mut self.fired), std::mem::take(&mut self.uncounted))
    }
}

/// What lies at `number`; what is not there yet begins as its default.
fn place<T: Clone + Default>(of: &mut Vec<T>, number: u32) -> &mut T {
    let number = number as usize;
    if of.len() <= number {
        of.resize(number + 1, T::default());
    }
    &mut of[number]
}

/// Forgets everything that has begun where it is too much: a guest may begin what it never ends.
fn limit<K, V>(open: &mut HashMap<K, V>) {
    if open.len() > MAX_OPEN {
        open.clear();
    }
}

#[cfg(test)]
mod tests;
