//! Events that come in pairs: a system call and its return, an interrupt's entry and exit, a vCPU's entry into the guest
//! and its exit. One alone is a violation unless something explains it: the beginning or the end of the recording, lost
//! records, a change of the recorded events, or what is known to happen in a kernel.
//!
//! What is known to happen: `exit` never returns; a new task begins with a return; a call that a seccomp filter refuses
//! has a return only; a task that dies inside a call does not return; `exec` in a thread gives it its process's first
//! thread's id; the return from a signal handler shows the registers of another call; KVM may enter a guest again without
//! telling of an exit. Once the guest removes a kernel module its pairs are not followed any more: it may have been the
//! agent.
//!
//! A task that slept without being interruptible runs again only after it was woken: the guest's own causality across
//! its CPUs.

use crate::event_index::EventIndex;
use crate::guest_tasks::{GuestTasks, Tid};
use crate::merge::MergedRecord;
use crate::session::LayerKind;
use crate::syscall_names;
use serde::Serialize;
use std::collections::HashMap;

/// `prev_state` of a task that sleeps without being interruptible.
const UNINTERRUPTIBLE: i64 = 2;

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
    /// All of them, in the order in which they are shown.
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
    /// Which.
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
    /// What is wrong.
    pub what: String,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Switch,
    SyscallEnter,
    SyscallExit,
    Exec,
    ProcessExit,
    Wakeup,
    Entry(Pair),
    Exit(Pair),
    GuestEntry,
    GuestExit,
    RunBegin,
    RunEnd,
    Control,
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "sched:sched_switch" => Kind::Switch,
        "raw_syscalls:sys_enter" => Kind::SyscallEnter,
        "raw_syscalls:sys_exit" => Kind::SyscallExit,
        "sched:sched_process_exec" => Kind::Exec,
        "sched:sched_process_exit" => Kind::ProcessExit,
        "sched:sched_wakeup" | "sched:sched_wakeup_new" => Kind::Wakeup,
        "irq:irq_handler_entry" => Kind::Entry(Pair::Irq),
        "irq:irq_handler_exit" => Kind::Exit(Pair::Irq),
        "irq:softirq_entry" => Kind::Entry(Pair::Softirq),
        "irq:softirq_exit" => Kind::Exit(Pair::Softirq),
        "kvm:kvm_entry" => Kind::GuestEntry,
        "kvm:kvm_exit" => Kind::GuestExit,
        "vmm:vcpu_enter" => Kind::RunBegin,
        "vmm:vcpu_exit" => Kind::RunEnd,
        "vmm:control" => Kind::Control,
        _ => {
            let vector = name.strip_prefix("irq_vectors:")?;
            match (vector.ends_with("_entry"), vector.ends_with("_exit")) {
                (true, _) => Kind::Entry(Pair::Vector),
                (_, true) => Kind::Exit(Pair::Vector),
                _ => return None,
            }
        }
    })
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

/// Matches the pairs of one VM. Takes its records in time order: guest kernel, VMM, and host.
pub struct Pairs<'t> {
    tasks: GuestTasks,
    index: EventIndex<Kind>,
    /// Host threads of the vCPUs, in their order.
    vcpu_threads: &'t [i32],
    /// How far clocks of the guest's CPUs may be apart, ticks.
    tolerance: u64,
    calls: HashMap<Tid, Call>,
    cpus: HashMap<u32, Cpu>,
    sleepers: HashMap<Tid, Sleeper>,
    entries: HashMap<i64, Place>,
    runs: HashMap<i64, Place>,
    /// When the first second half of each pair was met: tracepoints are not all enabled at once.
    second_half: HashMap<Pair, u64>,
    counts: HashMap<Pair, (u64, u64, u64)>,
    /// Whether wake-ups are recorded.
    wakeups_are_recorded: bool,
    alone: Vec<Alone>,
    shown: usize,
    /// Tasks that ran without having been woken. One that is being killed does so, and then dies.
    unwoken: Vec<(Tid, Alone)>,
    /// Whether a module was removed from the guest's kernel: it may have been the agent, whose probes go one by one, and
    /// come back so.
    is_over: bool,
}

impl<'t> Pairs<'t> {
    /// Pairs of a VM whose guest has `tasks` and whose vCPUs run in the host's threads `vcpu_threads`. Clocks of its
    /// CPUs agree within `tolerance` ticks. The first `shown` events that are alone are kept.
    #[must_use]
    pub fn new(tasks: GuestTasks, vcpu_threads: &'t [i32], tolerance: u64, shown: usize) -> Self {
        Self {
            tasks,
            index: EventIndex::new(kind),
            vcpu_threads,
            tolerance,
            calls: HashMap::new(),
            cpus: HashMap::new(),
            sleepers: HashMap::new(),
            entries: HashMap::new(),
            runs: HashMap::new(),
            second_half: HashMap::new(),
            counts: HashMap::new(),
            wakeups_are_recorded: false,
            alone: Vec::new(),
            shown,
            unwoken: Vec::new(),
            is_over: false,
        }
    }

    /// Looks at the next record.
    pub fn add(&mut self, merged: &MergedRecord<'_>) {
        let kind = self.index.kind(merged);
        match merged.layer.description.kind {
            LayerKind::GuestKernel => self.add_guest(merged, kind),
            LayerKind::HostKernel => self.add_host(merged, kind),
            LayerKind::Vmm => self.add_vmm(merged, kind),
            LayerKind::GuestUser => {}
        }
    }

    /// What was found: counts of the pairs of which there was any event, and the events that are alone.
    #[must_use]
    pub fn finish(mut self) -> (Vec<PairCount>, Vec<Alone>) {
        for (_, alone) in std::mem::take(&mut self.unwoken) {
            self.keep(Pair::Wakeup, alone);
        }
        let count = |pair| {
            let &(balanced, explained, unbalanced) = self.counts.get(&pair)?;
            Some(PairCount { pair, balanced, explained, unbalanced })
        };
        (Pair::ALL.into_iter().filter_map(count).collect(), self.alone)
    }

    fn balanced(&mut self, pair: Pair) {
        self.counts.entry(pair).or_default().0 += 1;
    }

    fn explained(&mut self, pair: Pair, count: usize) {
        if count > 0 {
            self.counts.entry(pair).or_default().1 += count as u64;
        }
    }

    fn unbalanced(&mut self, pair: Pair, merged: &MergedRecord<'_>, what: impl FnOnce() -> String) {
        self.keep(pair, alone(merged, what()));
    }

    fn keep(&mut self, pair: Pair, alone: Alone) {
        self.counts.entry(pair).or_default().2 += 1;
        if self.alone.len() < self.shown {
            self.alone.push(alone);
        }
    }

    /// Nothing that was known of the guest's tasks and CPUs holds any more.
    fn forget_guest(&mut self) {
        let calls = std::mem::take(&mut self.calls).len();
        self.explained(Pair::Syscall, calls);
        for cpu in std::mem::take(&mut self.cpus).into_values() {
            for (pair, ..) in cpu.interrupts {
                self.explained(pair, 1);
            }
        }
        self.sleepers.clear();
        self.unwoken.clear();
        self.second_half.clear();
    }

    fn add_guest(&mut self, merged: &MergedRecord<'_>, kind: Option<Kind>) {
        if self.is_over {
            return;
        }
        let record = &merged.record;
        let tid = self.tasks.running(merged, matches!(kind, Some(Kind::Switch)));
        if record.after_gap {
            self.forget_guest();
        }
        let cpu = merged.stream.description.cpu_id;
        match (kind, tid) {
            (Some(Kind::Switch), _) => self.switch(cpu, merged),
            (Some(Kind::Entry(pair)), _) => {
                let number = interrupt_number(merged, pair);
                self.cpus.entry(cpu).or_default().interrupts.push((pair, number, record.time));
            }
            (Some(Kind::Exit(pair)), _) => self.interrupt_exit(cpu, pair, merged),
            (Some(Kind::Wakeup), _) => {
                self.wakeups_are_recorded = true;
                let Some(woken) = tid_of(record.number("pid")) else { return };
                match self.sleepers.get(&woken) {
                    Some(Sleeper::Asleep) => {
                        self.sleepers.insert(woken, Sleeper::Woken);
                    }
                    Some(&Sleeper::RanUnwoken(ran)) if record.time.saturating_sub(ran) <= self.tolerance => {
                        self.sleepers.remove(&woken);
                        self.balanced(Pair::Wakeup);
                    }
                    _ => {}
                }
            }
            (Some(Kind::SyscallEnter), Some(tid)) => self.syscall_enter(tid, merged),
            (Some(Kind::SyscallExit), Some(tid)) => self.syscall_exit(tid, merged),
            (Some(Kind::Exec), Some(tid)) => {
                if let (Some(old), Some(new)) = (tid_of(record.number("old_pid")), tid_of(record.number("pid")))
                    && old != new
                {
                    let died = self.calls.remove(&new);
                    self.explained(Pair::Syscall, usize::from(died.is_some()));
                    // Whoever runs has changed its id.
                    let call = self.calls.remove(&old).or_else(|| self.calls.remove(&tid));
                    self.calls.extend(call.map(|call| (new, call)));
                }
            }
            (Some(Kind::ProcessExit), Some(tid)) => {
                let call = self.calls.remove(&tid);
                self.explained(Pair::Syscall, usize::from(call.is_some()));
                self.sleepers.remove(&tid);
                let killed = self.unwoken.extract_if(.., |(unwoken, _)| *unwoken == tid).count();
                self.explained(Pair::Wakeup, killed);
            }
            _ => {}
        }
    }

    fn switch(&mut self, cpu: u32, merged: &MergedRecord<'_>) {
        let record = &merged.record;
        self.leave_interrupts(cpu, merged);
        let (prev, next) = (tid_of(record.number("prev_pid")), tid_of(record.number("next_pid")));
        if let Some(prev) = prev.filter(|&prev| prev != 0) {
            if let Some(Sleeper::RanUnwoken(_)) = self.sleepers.remove(&prev) {
                self.unwoken.push((prev, alone(merged, format!("task {prev} ran without having been woken"))));
            }
            if record.number("prev_state").is_some_and(|state| state & 0xff == UNINTERRUPTIBLE) {
                self.sleepers.insert(prev, Sleeper::Asleep);
            }
        }
        let Some(next) = next else { return };
        match self.sleepers.get(&next) {
            Some(Sleeper::Woken) => {
                self.sleepers.remove(&next);
                self.balanced(Pair::Wakeup);
            }
            Some(Sleeper::Asleep) if self.wakeups_are_recorded => {
                self.sleepers.insert(next, Sleeper::RanUnwoken(record.time));
            }
            _ => {
                self.sleepers.remove(&next);
            }
        }
    }

    /// The CPU is in a task's context: every interrupt has ended.
    fn leave_interrupts(&mut self, cpu: u32, merged: &MergedRecord<'_>) {
        let state = self.cpus.entry(cpu).or_default();
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
        if self.second_half.get(&pair).is_some_and(|&first| first < entered) {
            self.unbalanced(pair, merged, what);
        } else {
            self.explained(pair, 1);
        }
    }

    fn interrupt_exit(&mut self, cpu: u32, pair: Pair, merged: &MergedRecord<'_>) {
        let number = interrupt_number(merged, pair);
        self.second_half.entry(pair).or_insert(merged.record.time);
        let state = self.cpus.entry(cpu).or_default();
        let is_known = state.is_known;
        match state.interrupts.last() {
            Some(&(open, of, _)) if (open, of) == (pair, number) => {
                state.interrupts.pop();
                self.balanced(pair);
            }
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

    fn syscall_enter(&mut self, tid: Tid, merged: &MergedRecord<'_>) {
        let Some(number) = merged.record.number("id") else { return };
        if syscall_names::name(number) == Some("delete_module") {
            self.forget_guest();
            self.is_over = true;
            return;
        }
        let never_returns = matches!(syscall_names::name(number), Some("exit" | "exit_group"));
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

    fn syscall_exit(&mut self, tid: Tid, merged: &MergedRecord<'_>) {
        let Some(number) = merged.record.number("id") else { return };
        self.second_half.entry(Pair::Syscall).or_insert(merged.record.time);
        match self.calls.remove(&tid) {
            Some(call) if call.number == number || syscall_names::name(call.number) == Some("rt_sigreturn") => {
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

    fn add_host(&mut self, merged: &MergedRecord<'_>, kind: Option<Kind>) {
        let record = &merged.record;
        if record.after_gap {
            self.entries.clear();
        }
        let is_entry = match kind {
            Some(Kind::GuestEntry) => true,
            Some(Kind::GuestExit) => false,
            _ => return,
        };
        let Some(thread) = record.number("common_pid") else { return };
        if !self.vcpu_threads.iter().any(|&known| i64::from(known) == thread) {
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

    fn add_vmm(&mut self, merged: &MergedRecord<'_>, kind: Option<Kind>) {
        let record = &merged.record;
        if record.after_gap {
            self.runs.clear();
        }
        let place = match kind {
            Some(Kind::RunBegin) => Place::Inside,
            Some(Kind::RunEnd) => Place::Outside,
            Some(Kind::Control) => {
                if record.text("what").is_some_and(|what| what.starts_with("events_")) {
                    self.forget_guest();
                }
                return;
            }
            _ => return,
        };
        let Some(vcpu) = record.number("vcpu") else { return };
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
    syscall_names::name(number).map_or_else(|| format!("call {number}"), Into::into)
}

fn tid_of(number: Option<i64>) -> Option<Tid> {
    number.and_then(|number| Tid::try_from(number).ok())
}

fn interrupt_number(merged: &MergedRecord<'_>, pair: Pair) -> i64 {
    let field = match pair {
        Pair::Irq => "irq",
        Pair::Softirq => "vec",
        _ => "vector",
    };
    merged.record.number(field).unwrap_or(-1)
}

#[cfg(test)]
mod tests;
