//! Events that come in pairs: a system call and its return, an interrupt's entry and exit, a vCPU's entry into the guest
//! and its exit. One alone is a violation unless something explains it: the beginning or the end of the recording, lost
//! records, a change of the recorded events, or what is known to happen in a kernel.
//!
//! What is known to happen: `exit` never returns; a new task begins with a return; a call that a seccomp filter refuses
//! has a return only; a task that dies inside a call does not return; `exec` in a thread gives it its process's first
//! thread's id; the return from a signal handler shows the registers of another call; KVM may enter a guest again without
//! telling of an exit. On a preemptible-RT kernel tasks handle soft interrupts, and are switched then.
//!
//! A task that slept without being interruptible runs again only after it was woken: the guest's own causality across
//! its CPUs.

use foldhash::{HashMap, HashSet};
use serde::Serialize;
use strata_analysis::event::{Event, Interrupt, Task, Tid, WakeupStage};
use strata_analysis::names;
use strata_analysis::timeline::by_number::ByNumber;
use strata_recording::layer::LayerKind;
use strata_recording::reader::merge::MergedRecord;

/// `prev_state` of a task that sleeps without being interruptible.
const UNINTERRUPTIBLE: u64 = 2;

/// What comes in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pair {
    /// `raw_syscalls:sys_enter` and `sys_exit` of a task.
    Syscall,
    /// `irq:irq_handler_entry` and `_exit` of a CPU.
    Irq,
    /// `irq:softirq_entry` and `_exit` of a CPU.
    Softirq,
    /// Entry and exit of one of `irq_vectors` of a CPU.
    Vector,
    /// `kvm:kvm_entry` and `kvm_exit` of a vCPU.
    GuestEntry,
    /// `vmm:vcpu_enter` and `vcpu_exit` of a vCPU.
    Run,
    /// `sched:sched_wakeup` before a task that slept runs.
    Wakeup,
}

impl Pair {
    /// All of them, in the order of their numbers, in which they are shown.
    pub const ALL: [Self; 7] =
        [Self::Syscall, Self::Irq, Self::Softirq, Self::Vector, Self::GuestEntry, Self::Run, Self::Wakeup];

    /// What the pairs are, in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Syscall => "system calls",
            Self::Irq => "interrupt handlers",
            Self::Softirq => "soft interrupts",
            Self::Vector => "interrupt vectors",
            Self::GuestEntry => "entries into the guest",
            Self::Run => "runs of vCPUs",
            Self::Wakeup => "wake-ups of sleepers",
        }
    }
}

/// Pairs of one kind in a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PairCount {
    pub pair: Pair,
    /// Those that are whole.
    pub balanced: u64,
    /// Events that are alone for a reason that is known.
    pub explained: u64,
    /// Events that are alone for no known reason.
    pub unbalanced: u64,
}

/// An event that is alone for no known reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alone {
    /// The stream's file, relative to the recording's folder.
    pub stream: String,
    /// When it was noticed, ticks.
    pub time: u64,
    /// The event at which it was noticed.
    pub event: String,
    pub what: String,
}

/// A system call that has not returned.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: i64,
    entered: u64,
}

/// Where a vCPU is, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Inside,
    Outside,
}

/// A CPU of the guest.
#[derive(Clone, Debug, Default)]
struct Cpu {
    /// Interrupts being handled: kind, number, entry; the innermost last.
    interrupts: Vec<(Pair, i64, u64)>,
    /// Whether it is known that no other interrupt is being handled.
    is_known: bool,
}

/// A task that slept without being interruptible.
#[derive(Clone, Copy, Debug)]
enum Sleeper {
    /// It sleeps.
    Asleep,
    /// It was woken.
    Woken,
    /// It runs since then (ticks), and was not woken before: allowed for as long as clocks may differ.
    RanUnwoken(u64),
}

/// Matches the pairs of one VM. Takes its records in time order, of guest kernel, VMM and host, and the gaps between them.
/// What is recorded while a gap of its layer is open is not matched: the other half may be what is missing.
#[derive(Debug)]
pub struct Pairs {
    /// By CPU of the guest: the task that runs, where it is known.
    running: ByNumber<Tid>,
    /// Streams with an open gap: of the guest's kernel, of CPUs that may run tasks; of the host's kernel, of the VMM.
    guest_gaps: u32,
    host_gaps: u32,
    vmm_gaps: u32,
    /// CPUs of the guest that go offline: they run no tasks until they record again.
    offline: HashSet<u32>,
    /// Host threads of the vCPUs, in their order.
    vcpu_threads: Vec<i32>,
    /// How far clocks of the guest's CPUs may be apart, ticks.
    tolerance: u64,
    calls: HashMap<Tid, Call>,
    cpus: ByNumber<Cpu>,
    sleepers: HashMap<Tid, Sleeper>,
    entries: HashMap<Tid, Place>,
    runs: ByNumber<Place>,
    /// When the first second half of each pair was met: tracepoints are not all enabled at once.
    second_half: [Option<u64>; Pair::ALL.len()],
    /// Interrupts whose entry was met: each vector has tracepoints of its own, all other numbers share theirs.
    entered: HashSet<(Pair, i64)>,
    /// Those that are whole, explained and unbalanced; `None` where there was no event of the pair.
    counts: [Option<(u64, u64, u64)>; Pair::ALL.len()],
    /// Whether wake-ups are recorded.
    wakeups_are_recorded: bool,
    alone: Vec<Alone>,
    shown: usize,
    /// How often tasks ran without having been woken, and when they did so first. One that is being killed does so, and
    /// then dies.
    unwoken: HashMap<Tid, (u64, Alone)>,
    /// On a preemptible-RT kernel: the soft interrupts that each task handles, the innermost last.
    soft_interrupts_of: Option<HashMap<Tid, Vec<i64>>>,
}

impl Pairs {
    /// Pairs of a VM whose vCPUs run in the host's threads `vcpu_threads`. Clocks of its CPUs agree within `tolerance`
    /// ticks. The first `shown` events that are alone are kept.
    #[must_use]
    pub fn new(vcpu_threads: Vec<i32>, tolerance: u64, shown: usize) -> Self {
        Self {
            running: ByNumber::default(),
            guest_gaps: 0,
            host_gaps: 0,
            vmm_gaps: 0,
            offline: HashSet::default(),
            vcpu_threads,
            tolerance,
            calls: HashMap::default(),
            cpus: ByNumber::default(),
            sleepers: HashMap::default(),
            entries: HashMap::default(),
            runs: ByNumber::default(),
            second_half: Default::default(),
            entered: HashSet::default(),
            counts: Default::default(),
            wakeups_are_recorded: false,
            alone: Vec::new(),
            shown,
            unwoken: HashMap::default(),
            soft_interrupts_of: None,
        }
    }

    /// The guest's kernel is a preemptible-RT one: its tasks handle soft interrupts, and may be preempted meanwhile.
    #[must_use]
    pub fn with_preemptible_soft_interrupts(mut self) -> Self {
        self.soft_interrupts_of = Some(HashMap::default());
        self
    }

    /// A gap of the stream `cpu` of a layer of `kind` begins.
    pub fn begin_gap(&mut self, kind: LayerKind, cpu: u32) {
        match kind {
            LayerKind::GuestKernel => {
                self.guest_gaps += u32::from(!self.offline.contains(&cpu));
                self.running.remove(cpu);
                let interrupts = self.cpus.remove(cpu).unwrap_or_default().interrupts;
                interrupts.into_iter().for_each(|(pair, ..)| self.explained(pair, 1));
                self.forget_tasks();
            }
            LayerKind::HostKernel => {
                self.host_gaps += 1;
                self.entries.clear();
            }
            LayerKind::Vmm => {
                self.vmm_gaps += 1;
                self.runs = ByNumber::default();
                // What changed the recorded events may be missing.
                self.forget_guest();
            }
            LayerKind::GuestUser => {}
        }
    }

    /// The gap of the stream `cpu` of a layer of `kind` ends.
    pub fn end_gap(&mut self, kind: LayerKind, cpu: u32) {
        let gaps = match kind {
            LayerKind::GuestKernel if self.offline.remove(&cpu) => return,
            LayerKind::GuestKernel => &mut self.guest_gaps,
            LayerKind::HostKernel => &mut self.host_gaps,
            LayerKind::Vmm => {
                // Interrupts were not followed.
                self.cpus = ByNumber::default();
                &mut self.vmm_gaps
            }
            LayerKind::GuestUser => return,
        };
        *gaps = gaps.saturating_sub(1);
    }

    /// Looks at the next record, which says `event`.
    pub fn record(&mut self, merged: &MergedRecord<'_>, event: &Event<'_>) {
        match merged.layer.description.kind {
            LayerKind::GuestKernel => self.add_guest(merged, event),
            LayerKind::HostKernel => self.add_host(merged, event),
            LayerKind::Vmm => self.add_vmm(merged, event),
            LayerKind::GuestUser => {}
        }
    }

    /// What was found: counts of the pairs that had any event, and the events that are alone.
    #[must_use]
    pub fn finish(mut self) -> (Vec<PairCount>, Vec<Alone>) {
        let mut unwoken: Vec<_> = std::mem::take(&mut self.unwoken).into_values().collect();
        unwoken.sort_by_key(|(_, first)| first.time);
        for (times, first) in unwoken {
            self.keep(Pair::Wakeup, first);
            self.counts[Pair::Wakeup as usize].get_or_insert_default().2 += times - 1;
        }
        let count = |pair| {
            let (balanced, explained, unbalanced) = self.counts[pair as usize]?;
            Some(PairCount { pair, balanced, explained, unbalanced })
        };
        (Pair::ALL.into_iter().filter_map(count).collect(), self.alone)
    }

    fn balanced(&mut self, pair: Pair) {
        self.counts[pair as usize].get_or_insert_default().0 += 1;
    }

    fn explained(&mut self, pair: Pair, count: usize) {
        if count > 0 {
            self.counts[pair as usize].get_or_insert_default().1 += count as u64;
        }
    }

    fn unbalanced(&mut self, pair: Pair, merged: &MergedRecord<'_>, what: impl FnOnce() -> String) {
        self.keep(pair, alone(merged, what()));
    }

    fn keep(&mut self, pair: Pair, alone: Alone) {
        self.counts[pair as usize].get_or_insert_default().2 += 1;
        if self.alone.len() < self.shown {
            self.alone.push(alone);
        }
    }

    /// Nothing that was known of the guest's tasks holds any more.
    fn forget_tasks(&mut self) {
        let calls = std::mem::take(&mut self.calls).len();
        self.explained(Pair::Syscall, calls);
        let soft = self.soft_interrupts_of.as_mut().map_or(0, |of| of.drain().map(|(_, open)| open.len()).sum());
        self.explained(Pair::Softirq, soft);
        self.sleepers.clear();
        self.unwoken.clear();
        self.second_half = Default::default();
        self.entered.clear();
    }

    /// Nothing that was known of the guest's tasks and CPUs holds any more.
    fn forget_guest(&mut self) {
        self.forget_tasks();
        let cpus = std::mem::take(&mut self.cpus);
        for &(pair, ..) in cpus.values().flat_map(|cpu| &cpu.interrupts) {
            self.explained(pair, 1);
        }
    }

    fn add_guest(&mut self, merged: &MergedRecord<'_>, event: &Event<'_>) {
        let record = &merged.record;
        let cpu = merged.stream.description.cpu_id;
        let tid = self.running.get(cpu).copied();
        // Where records of the VMM are missing, the recorded events may have been changed.
        let is_whole = self.vmm_gaps == 0;
        // A task may have gone on where records of another CPU are missing.
        let are_tasks_whole = is_whole && self.guest_gaps == 0;
        match (*event, tid) {
            (Event::RecordingStops { is_offline: true }, _) => {
                self.offline.insert(cpu);
            }
            (Event::Switch { prev, prev_state, next }, _) => {
                self.leave_interrupts(cpu, merged);
                self.running.insert(cpu, next.tid);
                if are_tasks_whole {
                    self.switch(prev, prev_state, next, merged);
                }
            }
            _ if !is_whole => {}
            (Event::InterruptEnter(Interrupt::Softirq(number)), tid) if self.soft_interrupts_of.is_some() => {
                if let (Some(tid), Some(of)) = (tid, &mut self.soft_interrupts_of) {
                    of.entry(tid).or_default().push(number.into());
                }
            }
            (Event::InterruptExit(Interrupt::Softirq(number)), tid) if self.soft_interrupts_of.is_some() => {
                self.soft_interrupt_exit(tid, number.into(), merged);
            }
            (Event::InterruptEnter(interrupt), _) => {
                let (pair, number) = numbered(interrupt);
                self.entered.insert(tracepoint(pair, number));
                self.cpus.get_or_insert_with(cpu, Cpu::default).interrupts.push((pair, number, record.time));
            }
            (Event::InterruptExit(interrupt), _) => self.interrupt_exit(cpu, interrupt, merged),
            _ if !are_tasks_whole => {}
            (Event::Wakeup { task, stage: WakeupStage::Wakeup | WakeupStage::New, .. }, _) => {
                self.wakeups_are_recorded = true;
                match self.sleepers.get(&task.tid) {
                    Some(Sleeper::Asleep) => {
                        self.sleepers.insert(task.tid, Sleeper::Woken);
                    }
                    Some(&Sleeper::RanUnwoken(ran)) if record.time.saturating_sub(ran) <= self.tolerance => {
                        self.sleepers.remove(&task.tid);
                        self.balanced(Pair::Wakeup);
                    }
                    _ => {}
                }
            }
            (Event::SyscallEnter { number, .. }, Some(tid)) => self.syscall_enter(tid, number, merged),
            (Event::SyscallExit { number, .. }, Some(tid)) => self.syscall_exit(tid, number, merged),
            (Event::Exec { tid: new, old_tid: old, .. }, Some(tid)) => {
                if let (Some(old), Some(new)) = (old, new)
                    && old != new
                {
                    let died = self.calls.remove(&new);
                    self.explained(Pair::Syscall, usize::from(died.is_some()));
                    // Whoever runs has changed its id.
                    let call = self.calls.remove(&old).or_else(|| self.calls.remove(&tid));
                    self.calls.extend(call.map(|call| (new, call)));
                }
            }
            (Event::ProcessExit, Some(tid)) => {
                let call = self.calls.remove(&tid);
                self.explained(Pair::Syscall, usize::from(call.is_some()));
                self.sleepers.remove(&tid);
                let killed = self.unwoken.remove(&tid).map_or(0, |(times, _)| times);
                self.explained(Pair::Wakeup, usize::try_from(killed).unwrap_or(usize::MAX));
            }
            _ => {}
        }
    }

    fn switch(&mut self, prev: Task<'_>, prev_state: u64, next: Task<'_>, merged: &MergedRecord<'_>) {
        let (prev, next) = (prev.tid, next.tid);
        if prev != 0 {
            if let Some(Sleeper::RanUnwoken(_)) = self.sleepers.remove(&prev) {
                let first = || (0, alone(merged, format!("task {prev} ran without having been woken")));
                self.unwoken.entry(prev).or_insert_with(first).0 += 1;
            }
            if prev_state & 0xff == UNINTERRUPTIBLE {
                self.sleepers.insert(prev, Sleeper::Asleep);
            }
        }
        match self.sleepers.get(&next) {
            Some(Sleeper::Woken) => {
                self.sleepers.remove(&next);
                self.balanced(Pair::Wakeup);
            }
            // A CPU that goes offline, or comes back, may have woken it without a record.
            Some(Sleeper::Asleep) if self.wakeups_are_recorded && self.offline.is_empty() => {
                self.sleepers.insert(next, Sleeper::RanUnwoken(merged.record.time));
            }
            _ => {
                self.sleepers.remove(&next);
            }
        }
    }

    /// The CPU is in a task's context: every interrupt has ended.
    fn leave_interrupts(&mut self, cpu: u32, merged: &MergedRecord<'_>) {
        let state = self.cpus.get_or_insert_with(cpu, Cpu::default);
        state.is_known = true;
        for (pair, number, entered) in std::mem::take(&mut state.interrupts) {
            self.alone_or_explained(pair, entered, merged, || {
                format!("{} {number} has not ended, but tasks are switched", pair.name())
            });
        }
    }

    /// A first half without its second: explained when no second half was ever recorded before it.
    fn alone_or_explained(
        &mut self,
        pair: Pair,
        entered: u64,
        merged: &MergedRecord<'_>,
        what: impl FnOnce() -> String,
    ) {
        if self.second_half[pair as usize].is_some_and(|first| first < entered) {
            self.unbalanced(pair, merged, what);
        } else {
            self.explained(pair, 1);
        }
    }

    fn interrupt_exit(&mut self, cpu: u32, interrupt: Interrupt, merged: &MergedRecord<'_>) {
        let (pair, number) = numbered(interrupt);
        self.second_half[pair as usize].get_or_insert(merged.record.time);
        let state = self.cpus.get_or_insert_with(cpu, Cpu::default);
        let is_known = state.is_known;
        match state.interrupts.last() {
            Some(&(open, of, _)) if (open, of) == (pair, number) => {
                state.interrupts.pop();
                self.balanced(pair);
            }
            // The tracepoint of the exit was enabled before that of the entry.
            _ if !self.entered.contains(&tracepoint(pair, number)) => self.explained(pair, 1),
            None if !is_known => self.explained(pair, 1),
            Some(&(open, of, entered)) => {
                // One of the two is alone. Both are dropped if the outer one is meant.
                let at = state.interrupts.iter().rposition(|&(open, of, _)| (open, of) == (pair, number));
                let inner = at.map_or_else(Vec::new, |at| state.interrupts.split_off(at));
                let what = || format!("it ends, but {} {of} inside has not", open.name());
                if inner.is_empty() && !is_known {
                    self.explained(pair, 1);
                } else {
                    self.alone_or_explained(open, entered, merged, what);
                }
            }
            None => self.unbalanced(pair, merged, || "it ends, but has not begun".into()),
        }
    }

    /// On a preemptible-RT kernel task `tid`, where it is known, has handled a soft interrupt.
    fn soft_interrupt_exit(&mut self, tid: Option<Tid>, number: i64, merged: &MergedRecord<'_>) {
        let Some(tid) = tid else { return };
        let open = self.soft_interrupts_of.as_mut().and_then(|of| of.get_mut(&tid)).and_then(Vec::pop);
        match open {
            Some(open) if open == number => self.balanced(Pair::Softirq),
            // It began before the task was known to run.
            None => self.explained(Pair::Softirq, 1),
            Some(open) => {
                let what = || format!("it ends, but soft interrupt {open} of task {tid} has not");
                self.unbalanced(Pair::Softirq, merged, what);
            }
        }
    }

    fn syscall_enter(&mut self, tid: Tid, number: i64, merged: &MergedRecord<'_>) {
        let never_returns = names::syscall::never_returns(number);
        let call = Call { number, entered: merged.record.time };
        let before = if never_returns { self.calls.remove(&tid) } else { self.calls.insert(tid, call) };
        if let Some(before) = before {
            self.alone_or_explained(Pair::Syscall, before.entered, merged, || {
                format!("task {tid} begins a call, but has not returned from {}", call_name(before.number))
            });
        }
        if never_returns {
            self.explained(Pair::Syscall, 1);
        }
    }

    fn syscall_exit(&mut self, tid: Tid, number: i64, merged: &MergedRecord<'_>) {
        self.second_half[Pair::Syscall as usize].get_or_insert(merged.record.time);
        match self.calls.remove(&tid) {
            Some(call) if names::syscall::is_return(call.number, number) => {
                self.balanced(Pair::Syscall);
            }
            Some(call) => {
                let (call, number) = (call_name(call.number), call_name(number));
                self.unbalanced(Pair::Syscall, merged, || {
                    format!("task {tid} returns from {number}, but is in {call}")
                });
            }
            // A new task's first return, or a call that a seccomp filter refused.
            None => self.explained(Pair::Syscall, 1),
        }
    }

    fn add_host(&mut self, merged: &MergedRecord<'_>, event: &Event<'_>) {
        if self.host_gaps > 0 {
            return;
        }
        let (thread, is_entry) = match *event {
            Event::KvmEntry { tid, .. } => (tid, true),
            Event::KvmExit { tid, .. } => (tid, false),
            _ => return,
        };
        if !self.vcpu_threads.contains(&thread) {
            return;
        }
        let place = if is_entry { Place::Inside } else { Place::Outside };
        match (self.entries.insert(thread, place), place) {
            (Some(Place::Inside), Place::Outside) => self.balanced(Pair::GuestEntry),
            (Some(Place::Outside), Place::Outside) => {
                self.unbalanced(Pair::GuestEntry, merged, || {
                    "the vCPU leaves the guest, but has not entered it".into()
                });
            }
            (None, Place::Outside) | (Some(Place::Inside), Place::Inside) => self.explained(Pair::GuestEntry, 1),
            (_, Place::Inside) => {}
        }
    }

    fn add_vmm(&mut self, merged: &MergedRecord<'_>, event: &Event<'_>) {
        let (vcpu, place) = match *event {
            Event::VmmEnter { vcpu } => (vcpu, Place::Inside),
            Event::VmmExit { vcpu, .. } => (vcpu, Place::Outside),
            Event::Control { what } => {
                if what.starts_with(b"events_") {
                    self.forget_guest();
                }
                return;
            }
            _ => return,
        };
        if self.vmm_gaps > 0 {
            return;
        }
        match (self.runs.insert(vcpu, place), place) {
            (Some(Place::Inside), Place::Outside) => self.balanced(Pair::Run),
            (None, Place::Outside) => self.explained(Pair::Run, 1),
            (Some(before), now) if before == now => {
                let what = if now == Place::Inside { "begins" } else { "ends" };
                self.unbalanced(Pair::Run, merged, || format!("a run of vCPU {vcpu} {what} twice"));
            }
            (_, Place::Inside | Place::Outside) => {}
        }
    }
}

fn alone(merged: &MergedRecord<'_>, what: String) -> Alone {
    Alone {
        stream: format!("{}/{}", merged.layer.description.path, merged.stream.description.file),
        time: merged.record.time,
        event: merged.record.schema.name().into(),
        what,
    }
}

fn call_name(number: i64) -> String {
    names::syscall::shown(number).map_or_else(|| format!("call {}", names::syscall::abi(number).1), Into::into)
}

/// What the tracepoints of an interrupt are shared by: those of a vector by nothing else.
const fn tracepoint(pair: Pair, number: i64) -> (Pair, i64) {
    match pair {
        Pair::Vector => (pair, number),
        _ => (pair, 0),
    }
}

/// Which pair the entry and the exit of `interrupt` are, and its number among those.
fn numbered(interrupt: Interrupt) -> (Pair, i64) {
    match interrupt {
        Interrupt::Irq(number) => (Pair::Irq, number.into()),
        Interrupt::Softirq(number) => (Pair::Softirq, number.into()),
        Interrupt::Vector(number) => (Pair::Vector, number.into()),
    }
}

#[cfg(test)]
mod tests;
