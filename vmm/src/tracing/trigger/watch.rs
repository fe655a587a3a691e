//! Watches drained records for what triggers name.
//!
//! Records come stream by stream: those of one are in order, those of several are not. What conditions on times need of a
//! record is kept as a fact, until everything up to its time has come ([`Watch::settle`]); the facts are then looked at in
//! the order of their times. Conditions on events are judged at once.
//!
//! Memory is bounded: facts, and what has begun and not ended, are limited in number. Where that is not enough, what began
//! longest ago is forgotten, and does not trigger.

use super::expression::{CPU_FIELD, Condition, FieldValue, Measure, Trigger};
use super::silence::{Silence, Silent};
use std::collections::HashMap;
use std::time::Duration;
use trace_merge::event::{Decoder, Event, Tid, WakeupStage};
use trace_merge::exit_reason::ExitReason;
use trace_merge::layer::LayerKind;
use trace_merge::reader::StreamRecord;
use trace_merge::report::harmless;
use trace_merge::schema::Value;

/// Facts that are kept at most: a second of a busy host.
const MAX_FACTS: usize = 1 << 18;
/// Things of a kind that have begun and not ended, at most.
const MAX_OPEN: usize = 1 << 16;
/// Times that a trigger is said to have fired in one go; more are counted only.
const MAX_FIRED: usize = 64;
/// Longest text of a field that is compared, bytes; what is behind it is left out.
const MAX_TEXT: usize = 256;
/// Bits of a switch's `prev_state` that say what the task waits for.
const WAITS_FOR: u64 = 0xff;

/// A trigger that has fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// Which: its place among all.
    pub trigger: usize,
    /// When, ticks.
    pub time: u64,
    /// What happened, for people.
    pub what: String,
}

/// A record's part in a condition on a time.
#[derive(Clone, Debug)]
enum Fact {
    /// The host's CPU goes from one thread to another.
    HostSwitch { prev: Tid, is_ready: bool, next: Tid },
    /// The host wakes a thread.
    HostWake { tid: Tid },
    /// A vCPU leaves the guest, as this layer tells.
    Exit { layer: LayerKind, vcpu: u32, reason: ExitReason },
    /// A vCPU enters the guest.
    Enter { layer: LayerKind, vcpu: u32 },
    /// The guest wakes a task.
    GuestWake { tid: Tid },
    /// The guest's CPU goes to a task.
    GuestSwitch { tid: Tid, cpu: u32, comm: Comm },
    /// A request to a disk begins.
    DiskBegin { request: Request },
    /// A request to a disk ends.
    DiskEnd { request: Request },
}

/// A task's name, as a kernel has it: up to its first zero.
type Comm = [u8; 16];

/// A request to a disk: the layer that tells, its device there, the first sector.
type Request = (LayerKind, u64, u64);

/// What a vCPU's thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    Runs,
    /// It has been ready to run since then, ticks.
    IsReady(u64),
    Blocked,
}

/// Which events of a layer matter, by their ids; found out with the first record of each.
type Interests = Vec<Option<Interest>>;

#[derive(Clone, Debug, Default)]
struct Interest {
    /// Whether a condition on a time needs it.
    is_fact: bool,
    /// The triggers on the event itself.
    triggers: Vec<usize>,
}

/// Triggers, and what they have seen so far.
#[derive(Debug)]
pub struct Watch {
    triggers: Vec<Trigger>,
    ticks_per_second: u64,
    decoder: Decoder,
    /// By layer, in the order of [`LayerKind::ALL`].
    interests: [Interests; LayerKind::ALL.len()],
    facts: Vec<(u64, Fact)>,
    fired: Vec<Fired>,
    /// How often each trigger fired and is not in `fired`, which is full.
    uncounted: Vec<u64>,
    /// The VM's vCPU of each host thread.
    vcpus: HashMap<Tid, u32>,
    threads: HashMap<Tid, ThreadState>,
    exits: HashMap<(LayerKind, u32), (u64, ExitReason)>,
    wakeups: HashMap<Tid, u64>,
    requests: HashMap<Request, u64>,
    silence: Silence,
    /// Whether that matters.
    has_hang: bool,
    /// Since when a vCPU was silent that was told of, by trigger.
    told_silent: HashMap<(usize, u32), u64>,
}

impl Watch {
    /// Watches for `triggers` in records of a clock of `ticks_per_second`.
    #[must_use]
    pub fn new(triggers: Vec<Trigger>, ticks_per_second: u64) -> Self {
        let has_hang = triggers.iter().any(|trigger| matches!(trigger.condition, Condition::Hang { .. }));
        Self {
            uncounted: vec![0; triggers.len()],
            triggers,
            ticks_per_second,
            decoder: Decoder::default(),
            interests: Default::default(),
            facts: Vec::new(),
            fired: Vec::new(),
            vcpus: HashMap::new(),
            threads: HashMap::new(),
            exits: HashMap::new(),
            wakeups: HashMap::new(),
            requests: HashMap::new(),
            silence: Silence::default(),
            has_hang,
            told_silent: HashMap::new(),
        }
    }

    /// The triggers.
    #[must_use]
    pub fn triggers(&self) -> &[Trigger] {
        &self.triggers
    }

    /// The VM's vCPUs have these threads.
    pub fn set_vcpus(&mut self, threads: impl Iterator<Item = (u32, Tid)>) {
        self.vcpus = threads.map(|(vcpu, tid)| (tid, vcpu)).collect();
    }

    /// Whether any trigger looks at records of `layer`.
    #[must_use]
    pub fn looks_at(&self, layer: LayerKind) -> bool {
        self.triggers.iter().any(|trigger| match &trigger.condition {
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

    /// Takes in a record of the stream `cpu` of `layer`.
    pub fn record(&mut self, layer: LayerKind, cpu: u32, record: &StreamRecord<'_>) {
        if self.has_hang && layer == LayerKind::GuestKernel {
            self.silence.recorded(cpu, record.time);
        }
        let id = usize::from(record.schema.description().id);
        let is_known = self.interests.get(layer as usize).is_some_and(|of| matches!(of.get(id), Some(Some(_))));
        if !is_known {
            self.learn(layer, id, record);
        }
        let Some(Some(interest)) = self.interests.get(layer as usize).and_then(|of| of.get(id)) else { return };
        let is_fact = interest.is_fact;
        for place in 0..interest.triggers.len() {
            self.judge(layer, id, place, cpu, record);
        }
        if is_fact && let Some(fact) = self.fact(layer, cpu, record) {
            if self.facts.len() >= MAX_FACTS {
                self.settle(u64::MAX);
            }
            self.facts.push((record.time, fact));
        }
    }

    /// Finds out who looks at records like `record`.
    fn learn(&mut self, layer: LayerKind, id: usize, record: &StreamRecord<'_>) {
        let event = self.decoder.read(layer as usize, layer, record);
        let is_timed = |trigger: &Trigger| {
            matches!(&trigger.condition, Condition::Hang { .. } if needs(&Measure::Steal, layer, event.as_ref()))
                || matches!(&trigger.condition, Condition::Longer { what, .. } if needs(what, layer, event.as_ref()))
        };
        let is_meant = |trigger: &Trigger| matches!(&trigger.condition, Condition::Event { layer: of, name } if *of == layer && name.matches(record.schema.name()));
        let interest = Interest {
            is_fact: self.triggers.iter().any(is_timed),
            triggers: (0..self.triggers.len()).filter(|&place| is_meant(&self.triggers[place])).collect(),
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
        let Some(&number) = interest.and_then(|interest| interest.triggers.get(place)) else { return };
        let Some(trigger) = self.triggers.get(number) else { return };
        let holds = trigger.filters.iter().all(|filter| match record.value(&filter.field) {
            Some(Value::Unsigned(value)) => filter.holds(FieldValue::Number(value.into())),
            Some(Value::Signed(value)) => filter.holds(FieldValue::Number(value.into())),
            Some(Value::Text(text)) => {
                let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
                filter.holds(FieldValue::Text(&String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)])))
            }
            Some(Value::Array(_)) => false,
            None => filter.field == CPU_FIELD && filter.holds(FieldValue::Number(cpu.into())),
        });
        if holds {
            let what = format!("{} in {layer}, CPU {cpu}", harmless(record.schema.name()));
            self.fire(number, record.time, what);
        }
    }

    /// What `record` says that conditions on times need.
    fn fact(&mut self, layer: LayerKind, cpu: u32, record: &StreamRecord<'_>) -> Option<Fact> {
        let event = self.decoder.read(layer as usize, layer, record)?;
        let vcpu_of =
            |tid: Tid, said: Option<u32>| self.vcpus.get(&tid).copied().or(said.filter(|_| self.vcpus.is_empty()));
        Some(match (layer, event) {
            (LayerKind::HostKernel, Event::Switch { prev, prev_state, next }) => {
                if !self.vcpus.contains_key(&prev.tid) && !self.vcpus.contains_key(&next.tid) {
                    return None;
                }
                Fact::HostSwitch { prev: prev.tid, is_ready: prev_state & WAITS_FOR == 0, next: next.tid }
            }
            (LayerKind::HostKernel, Event::Wakeup { task, .. }) if self.vcpus.contains_key(&task.tid) => {
                Fact::HostWake { tid: task.tid }
            }
            (LayerKind::HostKernel, Event::KvmExit { tid, vcpu, reason }) => {
                Fact::Exit { layer, vcpu: vcpu_of(tid, vcpu)?, reason }
            }
            (LayerKind::HostKernel, Event::KvmEntry { tid, vcpu }) => Fact::Enter { layer, vcpu: vcpu_of(tid, vcpu)? },
            (LayerKind::Vmm, Event::VmmExit { vcpu, reason }) => Fact::Exit { layer, vcpu, reason },
            (LayerKind::Vmm, Event::VmmEnter { vcpu }) => Fact::Enter { layer, vcpu },
            (LayerKind::Vmm, Event::DiskRequest { disk, is_done, sector, .. }) => {
                let request = (layer, disk.into(), sector);
                if is_done { Fact::DiskEnd { request } } else { Fact::DiskBegin { request } }
            }
            (LayerKind::GuestKernel, Event::BlockIssue(of)) => {
                Fact::DiskBegin { request: (layer, of.device?, of.sector?) }
            }
            (LayerKind::GuestKernel, Event::BlockComplete(of)) => {
                Fact::DiskEnd { request: (layer, of.device?, of.sector?) }
            }
            (LayerKind::GuestKernel, Event::Wakeup { task, stage, .. }) if stage != WakeupStage::Wakeup => {
                Fact::GuestWake { tid: task.tid }
            }
            (LayerKind::GuestKernel, Event::Switch { next, .. }) if next.tid > 0 => {
                let mut comm = Comm::default();
                comm.iter_mut().zip(next.comm).for_each(|(to, from)| *to = *from);
                Fact::GuestSwitch { tid: next.tid, cpu, comm }
            }
            _ => return None,
        })
    }

    /// Looks at the facts that are older than `until`, ticks: everything up to there has come.
    pub fn settle(&mut self, until: u64) {
        let mut facts = std::mem::take(&mut self.facts);
        // Stable: of one time, those of one stream stay in their order.
        facts.sort_by_key(|&(time, _)| time);
        let left = facts.split_off(facts.partition_point(|&(time, _)| time < until));
        for (time, fact) in facts {
            self.look_at(time, fact);
        }
        self.facts = left;
        self.look_for_silence(until);
    }

    /// The guest's kernel records no more: its silence means nothing from now on.
    pub fn forget_guest(&mut self) {
        self.silence.forget_guest();
    }

    /// Fires for vCPUs that have been running so long up to `until`, ticks, without a record of their guest's kernel;
    /// once each time.
    fn look_for_silence(&mut self, until: u64) {
        for number in 0..self.triggers.len() {
            let Some(Trigger { condition: Condition::Hang { than_ns }, filters, .. }) = self.triggers.get(number)
            else {
                continue;
            };
            let mut silent = self.silence.silent(&self.vcpus, until);
            silent.retain(|silent| {
                self.nanoseconds(silent.ran) > *than_ns
                    && filters.iter().all(|filter| filter.holds(FieldValue::Number(silent.vcpu.into())))
            });
            for Silent { vcpu, since, ran } in silent {
                if self.told_silent.insert((number, vcpu), since) != Some(since) {
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

    fn look_at(&mut self, time: u64, fact: Fact) {
        match fact {
            Fact::HostSwitch { prev, is_ready, next } => {
                if let Some(&vcpu) = self.vcpus.get(&prev) {
                    if is_ready {
                        self.silence.is_preempted(prev, vcpu, time);
                    } else {
                        self.silence.blocks(prev);
                    }
                    let state = if is_ready { ThreadState::IsReady(time) } else { ThreadState::Blocked };
                    self.threads.insert(prev, state);
                }
                let Some(&vcpu) = self.vcpus.get(&next) else { return };
                self.silence.runs(next, time);
                if let Some(ThreadState::IsReady(since)) = self.threads.insert(next, ThreadState::Runs) {
                    self.took(
                        time,
                        since,
                        |what| matches!(what, Measure::Steal),
                        &[("vcpu", vcpu.into())],
                        None,
                        || format!("vCPU {vcpu} was to run, and the host ran something else"),
                    );
                }
                limit(&mut self.threads);
            }
            Fact::HostWake { tid } => {
                if self.threads.get(&tid) == Some(&ThreadState::Blocked) {
                    self.threads.insert(tid, ThreadState::IsReady(time));
                }
            }
            Fact::Exit { layer, vcpu, reason } => {
                self.exits.insert((layer, vcpu), (time, reason));
                limit(&mut self.exits);
            }
            Fact::Enter { layer, vcpu } => {
                let Some((since, reason)) = self.exits.remove(&(layer, vcpu)) else { return };
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
            Fact::GuestWake { tid } => {
                self.wakeups.entry(tid).or_insert(time);
                limit(&mut self.wakeups);
            }
            Fact::GuestSwitch { tid, cpu, comm } => {
                let Some(since) = self.wakeups.remove(&tid) else { return };
                let comm = comm.split(|&byte| byte == 0).next().unwrap_or_default();
                let comm = String::from_utf8_lossy(comm);
                let numbers = [("tid", i128::from(tid)), (CPU_FIELD, cpu.into())];
                self.took(
                    time,
                    since,
                    |what| matches!(what, Measure::Wakeup),
                    &numbers,
                    Some(&comm),
                    || format!("{}/{tid} was woken and did not run", harmless(&comm)),
                );
            }
            Fact::DiskBegin { request } => {
                self.requests.insert(request, time);
                limit(&mut self.requests);
            }
            Fact::DiskEnd { request } => {
                let Some(since) = self.requests.remove(&request) else { return };
                let (layer, _, sector) = request;
                self.took(
                    time,
                    since,
                    |what| matches!(what, Measure::Disk),
                    &[("sector", sector.into())],
                    None,
                    || format!("a disk request at sector {sector} took, in {layer},"),
                );
            }
        }
    }

    /// Something that `is_meant` by a trigger lasted from `since` to `time`, with these fields.
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
        for number in 0..self.triggers.len() {
            let Some(Trigger { condition: Condition::Longer { what: of, than_ns }, filters, .. }) =
                self.triggers.get(number)
            else {
                continue;
            };
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

    fn fire(&mut self, trigger: usize, time: u64, what: String) {
        if self.fired.len() < MAX_FIRED {
            self.fired.push(Fired { trigger, time, what });
        } else if let Some(count) = self.uncounted.get_mut(trigger) {
            *count += 1;
        }
    }

    /// The triggers that have fired since the last call, and how often each fired beyond that.
    pub fn take_fired(&mut self) -> (Vec<Fired>, Vec<u64>) {
        let none = vec![0; self.triggers.len()];
        (std::mem::take(&mut self.fired), std::mem::replace(&mut self.uncounted, none))
    }
}

/// Whether `what` is told by `event` of `layer`.
fn needs(what: &Measure, layer: LayerKind, event: Option<&Event<'_>>) -> bool {
    let (Some(event), kernel) = (event, LayerKind::GuestKernel) else { return false };
    match what {
        Measure::Steal => {
            layer == LayerKind::HostKernel && matches!(event, Event::Switch { .. } | Event::Wakeup { .. })
        }
        Measure::Wakeup => layer == kernel && matches!(event, Event::Switch { .. } | Event::Wakeup { .. }),
        Measure::Exit(_) => matches!(
            event,
            Event::KvmEntry { .. } | Event::KvmExit { .. } | Event::VmmEnter { .. } | Event::VmmExit { .. }
        ),
        Measure::Disk => {
            matches!(event, Event::DiskRequest { .. })
                || layer == kernel && matches!(event, Event::BlockIssue(_) | Event::BlockComplete(_))
        }
    }
}

/// Forgets everything that has begun where it is too much: a guest may begin what it never ends.
fn limit<K, V>(open: &mut HashMap<K, V>) {
    if open.len() > MAX_OPEN {
        open.clear();
    }
}

#[cfg(test)]
mod tests;
