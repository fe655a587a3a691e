//! Waiting for locks: of the guest's kernel by lock and call site, of its applications by futex.
//!
//! A wait for a kernel lock lasts from `lock:contention_begin` to `lock:contention_end` of its task; a lock that nobody
//! else holds has no such events. A mutex announces itself again when it stops spinning and goes to sleep: that is one
//! wait. The call site is the call stack where one was recorded (`strata:stack` behind `contention_begin`), else what
//! the task was doing: the system call, the interrupt, or neither. A lock has a name when it is a variable of the
//! kernel and the kernel's symbols were recorded.
//!
//! A wait for a futex is a `futex` system call that waits, from call to return. Waits that were not needed (the value
//! had changed) are counted apart.

use super::by_guest::{ByGuest, GuestCollector};
use super::distribution::BinnedDurations;
use super::ended::{Ended, Keep};
use super::histogram::Histogram;
use super::samples::{Sampled, Samples, ToldBy, VmSamples, steady_name, told};
use super::table::{Align, Table, write_more};
use super::{Report, ReportBuilder, ReportError, Window, duration, harmless, syscalls};
use crate::analysis::Passed;
use crate::clock::Clock;
use crate::event::{self, Arguments, Event, Tid};
use crate::kernel_symbols::KernelSymbols;
use crate::layer::LayerKind;
use crate::reader::{StreamRecord, Trace};
use crate::syscall_names;
use crate::timeline::Input;
use crate::timeline::guest::Guest;
use crate::timeline::states::{Runner, TaskIndex};
use foldhash::{HashMap, HashSet};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Rows that are shown as text; JSON has all.
const ROWS_SHOWN: usize = 20;
/// Calls of a stack that are shown as text.
const CALLS_SHOWN: usize = 4;
/// Most locks that a task can be waiting for at once that are followed: one per context.
const NESTED: usize = 8;

/// Flags of `lock:contention_begin`.
mod flag {
    pub const SPIN: u64 = 1;
    pub const READ: u64 = 2;
    pub const WRITE: u64 = 4;
    pub const RT: u64 = 8;
    pub const PERCPU: u64 = 16;
    pub const MUTEX: u64 = 32;
}

/// Operations of `futex(2)` that wait, without their modifiers.
const FUTEX_WAITS: [(u64, &str); 5] =
    [(0, "wait"), (6, "lock_pi"), (9, "wait_bitset"), (11, "wait_requeue_pi"), (13, "lock_pi2")];
const FUTEX_COMMAND: u64 = 0x7f;

/// Results of a futex wait.
const EAGAIN: i64 = -11;
const ETIMEDOUT: i64 = -110;

/// Waiting for locks in all guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocksReport {
    /// By VM.
    pub guests: Vec<GuestLocks>,
}

/// Waiting for locks in one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestLocks {
    /// Name of the VM.
    pub vm: String,
    /// Kernel locks by lock and call site, the one that was waited for longest first.
    pub kernel: Vec<KernelLock>,
    /// Futexes, the one that was waited for longest first.
    pub futexes: Vec<Futex>,
    /// Waits for kernel locks whose end is not in the trace, or during which records were lost. Not in the rows.
    pub unfinished: u64,
    /// Whether the events of kernel locks were recorded at all.
    pub kernel_locks_recorded: bool,
}

/// Waits that have something in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// Number.
    pub count: u64,
    /// All together, ns.
    pub total_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// How many took how long.
    pub histogram: Histogram,
}

impl Waits {
    fn of(times: &BinnedDurations, clock: &Clock) -> Self {
        let [total_ns, max_ns] = [times.sum.total, times.sum.max].map(|ticks| clock.ticks_to_ns(ticks));
        Self { count: times.sum.count, total_ns, max_ns, histogram: times.histogram(clock) }
    }
}

/// Waiting for a kernel lock at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelLock {
    /// Address of the lock.
    pub address: u64,
    /// Its name, where the kernel's symbols tell it.
    pub name: Option<String>,
    /// What it is.
    pub kind: String,
    /// What waited: a system call, `interrupt`, `-` for neither, or `unknown` where records that could tell are
    /// missing.
    pub context: String,
    /// The calls that led there, innermost first: symbols, else addresses. Empty without a recorded stack.
    pub calls: Vec<String>,
    /// The waits.
    #[serde(flatten)]
    pub waits: Waits,
    /// Who waited, the longest first.
    pub waiters: Vec<Waiter>,
}

/// A process that waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waiter {
    /// Its id.
    pub pid: Tid,
    /// Its name.
    pub comm: String,
    /// Its waits.
    #[serde(flatten)]
    pub waits: Waits,
}

/// Waiting for a futex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Futex {
    /// The process.
    pub pid: Tid,
    /// Its name.
    pub comm: String,
    /// Address of the futex in the process.
    pub address: u64,
    /// The operation.
    pub operation: String,
    /// Waits that waited.
    #[serde(flatten)]
    pub waits: Waits,
    /// Of them, those that ended because the time was up.
    pub timed_out: u64,
    /// Calls that did not wait, because the value had changed already. Not in the waits.
    pub not_needed: u64,
    /// Waits whose end is not in the trace, or during which records were lost. Not in the waits.
    pub unfinished: u64,
}

/// Makes the report.
///
/// # Errors
/// When no guest recorded lock contention or system calls.
pub fn report(trace: &Trace, window: Window) -> Result<LocksReport, ReportError> {
    super::make(trace, window, LockTimes::default())
}

/// The report in the making. Takes memory for each lock, call site and task that waits.
pub type LockTimes = ByGuest<Collector>;

/// A wait, for [`LockTimes::take_ended`]. Its end is not known where records are missing in which it may have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// For a lock of the guest's kernel.
    Kernel {
        /// Address of the lock.
        address: u64,
        /// What it is.
        kind: &'static str,
        /// What waited, as [`KernelLock::context`] says it.
        context: String,
        /// The addresses of the calls that led there, innermost first. Empty without a recorded stack.
        calls: Vec<u64>,
    },
    /// For a futex.
    Futex {
        /// Address of the futex in the process.
        address: u64,
        /// The operation.
        operation: &'static str,
        /// What the call returned; `None` where that is not known.
        result: Option<i64>,
    },
}

impl WaitEnd {
    /// How it ended: `unfinished` where `is_known` says that this is not known.
    #[must_use]
    pub const fn outcome(&self, is_known: bool) -> &'static str {
        match self {
            _ if !is_known => "unfinished",
            Self::Futex { result: Some(EAGAIN), .. } => "not-needed",
            Self::Futex { result: Some(ETIMEDOUT), .. } => "timed-out",
            Self::Kernel { .. } | Self::Futex { .. } => "waited",
        }
    }
}

impl LockTimes {
    /// The report in the making, which keeps each wait for [`take_ended`](Self::take_ended).
    #[must_use]
    pub fn keeping_ended() -> Self {
        Self::that_keeps_ended()
    }

    /// The waits that have ended since this was asked last. `at_end` says that no record is to come.
    pub fn take_ended(&mut self, at_end: bool) -> impl Iterator<Item = Ended<WaitEnd>> {
        self.collectors().flat_map(move |(vm, collector)| {
            if at_end {
                collector.end_all();
            }
            collector.kept.take().map(move |ended| Ended { vm, ..ended })
        })
    }
}

impl ReportBuilder for LockTimes {
    type Report = LocksReport;

    fn finish(mut self, trace: &Trace, passed: &Passed) -> Result<LocksReport, ReportError> {
        let mut guests = Vec::new();
        for (index, vm) in passed.timeline.vms.iter().enumerate() {
            let is_recorded = |name| trace.kernel_layers(&vm.name).any(|layer| event::is_recorded(layer, name));
            let kernel_locks_recorded = is_recorded(event::name::CONTENTION_BEGIN);
            if !kernel_locks_recorded && !is_recorded(event::name::SYSCALL_ENTER) {
                continue;
            }
            let collector = self.take(index);
            let Some(symbols) = passed.kernel_symbols(trace, index) else { continue };
            let guest = collector.finish(vm.name.clone(), &vm.guest, trace.clock(), symbols);
            guests.push(GuestLocks { kernel_locks_recorded, ..guest });
        }
        if guests.is_empty() {
            let missing = "no guest recorded lock:contention_begin and lock:contention_end, nor system calls; record with \
                           --agent and --events 'guest:lock:*,guest:raw_syscalls:*,guest:sched:*'";
            return Err(ReportError::Nothing { missing: missing.into() });
        }
        Ok(LocksReport { guests })
    }
}

/// What tells of waiting for locks.
const TOLD_BY: [ToldBy; 4] = [
    told(LayerKind::GuestKernel, event::name::CONTENTION_BEGIN),
    told(LayerKind::GuestKernel, event::name::SYSCALL_ENTER),
    told(LayerKind::GuestKernel, "raw_syscalls:sys_exit"),
    told(LayerKind::GuestKernel, event::name::SWITCH),
];

impl Sampled for LockTimes {
    fn samples(&mut self) -> Vec<(&'static [ToldBy], &mut Samples)> {
        vec![(&TOLD_BY, &mut self.samples)]
    }
}

/// Where a task waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    address: u64,
    flags: u64,
    context: Context,
    stack: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Context {
    Interrupt,
    Syscall(i64),
    Other,
    /// Records that could tell are missing.
    Unknown,
}

impl Context {
    fn name(self) -> String {
        match self {
            Self::Interrupt => "interrupt".into(),
            Self::Syscall(number) => syscalls::name(number),
            Self::Other => "-".into(),
            Self::Unknown => "unknown".into(),
        }
    }
}

/// A wait that has not ended.
#[derive(Clone, Debug)]
struct Waiting {
    place: Place,
    begin: u64,
    /// Whether records are missing in which it may have ended.
    across_gap: bool,
}

impl Waiting {
    fn ended(&self, runner: Runner, end: Option<u64>) -> Ended<WaitEnd> {
        let Place { address, flags, context, ref stack } = self.place;
        let (kind, context, calls) = (kind_of_lock(flags), context.name(), stack.clone());
        let task = match runner {
            Runner::Task(task) => Some(task),
            Runner::Idle(_) => None,
        };
        let what = WaitEnd::Kernel { address, kind, context, calls };
        Ended { vm: 0, task, begin: Some(self.begin), end, what }
    }
}

/// A system call that has not returned.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: i64,
    entered: u64,
    /// Address and operation, for a futex wait.
    futex: Option<(u64, &'static str)>,
    across_gap: bool,
}

#[derive(Clone, Debug, Default)]
struct FutexSums {
    waits: BinnedDurations,
    timed_out: u64,
    not_needed: u64,
    unfinished: u64,
}

impl FutexSums {
    fn extend(&mut self, other: &Self) {
        self.waits.extend(&other.waits);
        self.timed_out += other.timed_out;
        self.not_needed += other.not_needed;
        self.unfinished += other.unfinished;
    }
}

/// The waits in one guest.
#[derive(Debug, Default)]
pub struct Collector {
    waiting: HashMap<Runner, Vec<Waiting>>,
    calls: HashMap<TaskIndex, Call>,
    /// Whether records were missing at any time.
    had_gap: bool,
    /// If so: tasks of which it is known since whether they are in a system call, and CPUs of which it is not known
    /// whether they handle an interrupt.
    known: HashSet<TaskIndex>,
    lost_cpus: HashSet<u32>,
    /// By CPU: whose wait began with the record before this one.
    begun: HashMap<u32, Runner>,
    kernel: BTreeMap<Place, BTreeMap<Runner, BinnedDurations>>,
    futexes: BTreeMap<(TaskIndex, u64, &'static str), FutexSums>,
    unfinished: u64,
    /// Which VM each is of is not known here.
    kept: Keep<Ended<WaitEnd>>,
}

impl GuestCollector for Collector {
    fn add(&mut self, cpu: u32, input: &Input<'_>, guest: &Guest, runner: Option<Runner>, samples: &mut VmSamples<'_>) {
        let begun = self.begun.remove(&cpu);
        if self.had_gap && matches!(input.event, Some(Event::Switch { .. })) {
            self.lost_cpus.remove(&cpu);
        }
        let (Some(event), Some(runner)) = (input.event, runner) else { return };
        let time = input.time();
        if let (Event::SyscallEnter { .. } | Event::SyscallExit { .. }, Runner::Task(task)) = (event, runner)
            && self.had_gap
        {
            self.known.insert(task);
        }
        match (event, runner) {
            // While records of another CPU are missing, it could go on there.
            (Event::Switch { .. }, Runner::Task(task)) if guest.has_gap() => self.lose(runner, Some(task)),
            (Event::ContentionBegin { lock: Some(lock), flags }, _) => {
                self.begin(cpu, runner, (lock, flags), &input.record, guest);
            }
            (Event::ContentionEnd { lock }, _) => self.end(runner, lock, time, samples),
            (Event::Stack, _) => {
                let waiting = begun.and_then(|runner| self.waiting.get_mut(&runner)?.last_mut());
                if let Some(waiting) = waiting {
                    waiting.place.stack = event::stack(&input.record);
                }
            }
            (Event::SyscallEnter { number, arguments }, Runner::Task(task)) => {
                self.enter(task, number, &arguments, time);
            }
            (Event::SyscallExit { number, result }, Runner::Task(task)) => {
                if let Some((operation, ticks)) = self.exit(task, number, result, time) {
                    let comm = || guest.task_name(task).1;
                    samples.add(time, ticks, || format!("{}: futex {operation}", steady_name(&comm())));
                }
            }
            (Event::ProcessExit, Runner::Task(task)) => {
                self.calls.remove(&task);
                let waiting = self.waiting.remove(&runner).unwrap_or_default();
                waiting.into_iter().for_each(|waiting| self.end_unfinished(runner, waiting));
            }
            _ => {}
        }
    }

    /// What is waited for may be had, and waited for again, unseen.
    fn begin_gap(&mut self, cpu: u32, guest: &Guest) {
        let lost = |runner| guest.is_lost_with(runner, cpu);
        let waiting = self.waiting.iter_mut().filter(|&(&runner, _)| lost(runner));
        waiting.flat_map(|(_, waiting)| waiting).for_each(|waiting| waiting.across_gap = true);
        let calls = self.calls.iter_mut().filter(|&(&task, _)| lost(Runner::Task(task)));
        calls.for_each(|(_, call)| call.across_gap = true);
        self.known.retain(|&task| !lost(Runner::Task(task)));
        self.begun.remove(&cpu);
        self.lost_cpus.insert(cpu);
        self.had_gap = true;
    }

    fn keep_ended(&mut self) {
        self.kept.begin();
    }

    fn has_ended(&self) -> bool {
        !self.kept.is_empty()
    }
}

impl Collector {
    /// What `runner` does from now on may be missing.
    fn lose(&mut self, runner: Runner, task: Option<TaskIndex>) {
        self.waiting.get_mut(&runner).into_iter().flatten().for_each(|waiting| waiting.across_gap = true);
        if let Some(call) = task.and_then(|task| self.calls.get_mut(&task)) {
            call.across_gap = true;
        }
        if let Some(task) = task {
            self.known.remove(&task);
        }
    }

    fn begin(
        &mut self,
        cpu: u32,
        runner: Runner,
        (address, flags): (u64, u64),
        record: &StreamRecord<'_>,
        guest: &Guest,
    ) {
        let interrupted = guest.cpu(cpu).is_some_and(|cpu| cpu.view().0.interrupt.is_some());
        let call = match runner {
            Runner::Task(task) => self.calls.get(&task),
            Runner::Idle(_) => None,
        };
        let is_known = match runner {
            _ if self.lost_cpus.contains(&cpu) => false,
            Runner::Task(task) => interrupted || !self.had_gap || self.known.contains(&task),
            Runner::Idle(_) => true,
        };
        let context = match call {
            _ if !is_known => Context::Unknown,
            _ if interrupted => Context::Interrupt,
            Some(call) => Context::Syscall(call.number),
            None => Context::Other,
        };
        let waiting = self.waiting.entry(runner).or_default();
        if waiting.last().is_some_and(|waiting| waiting.place.address == address) {
            return;
        }
        // Ends that are not in the trace.
        let oldest = (waiting.len() == NESTED).then(|| waiting.remove(0));
        // Whether a mutex spins or sleeps changes while it is waited for.
        let flags = if flags & flag::MUTEX == 0 { flags } else { flags & !flag::SPIN };
        let place = Place { address, flags, context, stack: event::stack(record) };
        waiting.push(Waiting { place, begin: record.time, across_gap: false });
        self.begun.insert(cpu, runner);
        if let Some(oldest) = oldest {
            self.end_unfinished(runner, oldest);
        }
    }

    fn end(&mut self, runner: Runner, address: Option<u64>, time: u64, samples: &mut VmSamples<'_>) {
        let Some(waiting) = self.waiting.get_mut(&runner) else { return };
        let Some(at) = waiting.iter().rposition(|waiting| Some(waiting.place.address) == address) else { return };
        // What began inside of it and did not end before it will not end any more.
        let inside = waiting.split_off(at + 1);
        let ended = waiting.pop();
        inside.into_iter().for_each(|waiting| self.end_unfinished(runner, waiting));
        match ended {
            Some(ended @ Waiting { across_gap: false, .. }) => {
                self.kept.add(|| ended.ended(runner, Some(time)));
                let Waiting { place, begin, .. } = ended;
                let ticks = time.saturating_sub(begin);
                // Addresses differ from boot to boot.
                samples.add(time, ticks, || format!("{} in {}", kind_of_lock(place.flags), place.context.name()));
                self.kernel.entry(place).or_default().entry(runner).or_default().add(ticks);
            }
            Some(lost) => self.end_unfinished(runner, lost),
            None => {}
        }
    }

    /// It is not known when the wait was over.
    fn end_unfinished(&mut self, runner: Runner, waiting: Waiting) {
        self.unfinished += 1;
        self.kept.add(|| waiting.ended(runner, None));
    }

    /// No record is to come.
    fn end_all(&mut self) {
        for (runner, waiting) in std::mem::take(&mut self.waiting) {
            waiting.into_iter().for_each(|waiting| self.end_unfinished(runner, waiting));
        }
        for (task, call) in std::mem::take(&mut self.calls) {
            if let Some(futex) = call.futex {
                self.end_futex(task, &call, futex, None, |sums| sums.unfinished += 1);
            }
        }
    }

    /// A futex call of `task` is over, with the result `ended` at a time, where that is known.
    fn end_futex(
        &mut self,
        task: TaskIndex,
        call: &Call,
        (address, operation): (u64, &'static str),
        ended: Option<(u64, i64)>,
        count: impl FnOnce(&mut FutexSums),
    ) {
        count(self.futexes.entry((task, address, operation)).or_default());
        self.kept.add(|| {
            let what = WaitEnd::Futex { address, operation, result: ended.map(|(_, result)| result) };
            let end = ended.map(|(time, _)| time);
            Ended { vm: 0, task: Some(task), begin: Some(call.entered), end, what }
        });
    }

    fn enter(&mut self, task: TaskIndex, number: i64, arguments: &Arguments<'_>, time: u64) {
        let futex = (syscall_names::name(number) == Some("futex")).then(|| {
            let command = arguments.get(1)? & FUTEX_COMMAND;
            let &(_, operation) = FUTEX_WAITS.iter().find(|&&(wait, _)| wait == command)?;
            Some((arguments.get(0)?, operation))
        });
        let call = Call { number, entered: time, futex: futex.flatten(), across_gap: false };
        if let Some(before @ Call { futex: Some(futex), .. }) = self.calls.insert(task, call) {
            self.end_futex(task, &before, futex, None, |sums| sums.unfinished += 1);
        }
    }

    /// The call that `task` made returns: for a futex that it waited for, the operation, and for how long, ticks.
    fn exit(&mut self, task: TaskIndex, returned: i64, result: i64, time: u64) -> Option<(&'static str, u64)> {
        let call @ Call { number, entered, futex, across_gap } = self.calls.remove(&task)?;
        let futex = futex?;
        let returned = returned == number && !across_gap;
        let ticks = time.saturating_sub(entered);
        let has_waited = returned && result != EAGAIN;
        self.end_futex(task, &call, futex, returned.then_some((time, result)), |sums| match result {
            _ if !returned => sums.unfinished += 1,
            EAGAIN => sums.not_needed += 1,
            _ => {
                sums.waits.add(ticks);
                sums.timed_out += u64::from(result == ETIMEDOUT);
            }
        });
        has_waited.then_some((futex.1, ticks))
    }

    fn finish(mut self, vm: String, guest: &Guest, clock: &Clock, symbols: &KernelSymbols) -> GuestLocks {
        self.end_all();
        let kernel = self.kernel.iter().map(|(place, waiters)| {
            let mut processes: BTreeMap<Waited, BinnedDurations> = BTreeMap::new();
            let mut sum = BinnedDurations::default();
            for (&runner, waits) in waiters {
                processes.entry(Waited::of(runner, guest)).or_default().extend(waits);
                sum.extend(waits);
            }
            let waiter = |(process, sums): (&Waited, &BinnedDurations)| {
                let (pid, comm) = process.name(guest);
                Waiter { pid, comm, waits: Waits::of(sums, clock) }
            };
            let mut waiters: Vec<_> = processes.iter().map(waiter).collect();
            waiters.sort_by_key(|waiter| (std::cmp::Reverse(waiter.waits.total_ns), waiter.pid));
            KernelLock {
                address: place.address,
                name: name_of_lock(symbols, place.address),
                kind: kind_of_lock(place.flags).into(),
                context: place.context.name(),
                calls: calls(symbols, &place.stack),
                waits: Waits::of(&sum, clock),
                waiters,
            }
        });
        let mut kernel: Vec<_> = kernel.collect();
        kernel.sort_by_key(|row| (std::cmp::Reverse(row.waits.total_ns), row.address));
        let mut by_process: BTreeMap<(Waited, u64, &str), FutexSums> = BTreeMap::new();
        for (&(task, address, operation), waits) in &self.futexes {
            by_process.entry((Waited::Process(guest.process(task)), address, operation)).or_default().extend(waits);
        }
        let futex = |(&(process, address, operation), sums): (&(Waited, u64, &str), &FutexSums)| {
            let (pid, comm) = process.name(guest);
            Futex {
                pid,
                comm,
                address,
                operation: operation.into(),
                waits: Waits::of(&sums.waits, clock),
                timed_out: sums.timed_out,
                not_needed: sums.not_needed,
                unfinished: sums.unfinished,
            }
        };
        let mut futexes: Vec<_> = by_process.iter().map(futex).collect();
        futexes.sort_by_key(|row| (std::cmp::Reverse(row.waits.total_ns), row.pid, row.address));
        GuestLocks { vm, kernel, futexes, unfinished: self.unfinished, kernel_locks_recorded: true }
    }
}

/// Who waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waited {
    /// Idle CPUs, in their interrupts.
    Idle,
    /// A process.
    Process(TaskIndex),
}

impl Waited {
    fn of(runner: Runner, guest: &Guest) -> Self {
        match runner {
            Runner::Idle(_) => Self::Idle,
            Runner::Task(task) => Self::Process(guest.process(task)),
        }
    }

    /// Its id and name.
    fn name(self, guest: &Guest) -> (Tid, String) {
        match self {
            Self::Idle => (0, "idle".into()),
            Self::Process(process) => guest.task_name(process),
        }
    }
}

/// What the flags of `lock:contention_begin` say a lock is.
fn kind_of_lock(flags: u64) -> &'static str {
    let is = |flag| flags & flag != 0;
    match () {
        () if is(flag::MUTEX) => "mutex",
        () if is(flag::PERCPU) && is(flag::WRITE) => "percpu rwsem (write)",
        () if is(flag::PERCPU) => "percpu rwsem (read)",
        () if is(flag::RT) => "rt-mutex",
        () if is(flag::SPIN) && is(flag::READ) => "rwlock (read)",
        () if is(flag::SPIN) && is(flag::WRITE) => "rwlock (write)",
        () if is(flag::SPIN) => "spinlock",
        () if is(flag::READ) => "rwsem (read)",
        () if is(flag::WRITE) => "rwsem (write)",
        () => "sleeping lock",
    }
}

fn with_offset(name: &str, offset: u64) -> String {
    if offset == 0 { name.into() } else { format!("{name}+{offset:#x}") }
}

/// The name of the lock at `address`, where the kernel's symbols tell it.
#[must_use]
pub fn name_of_lock(symbols: &KernelSymbols, address: u64) -> Option<String> {
    symbols.find(address).map(|(symbol, offset)| with_offset(&symbol.label(), offset))
}

/// The calls of a stack, innermost first, without those of the tracer itself: symbols, else addresses.
#[must_use]
pub fn calls(symbols: &KernelSymbols, stack: &[u64]) -> Vec<String> {
    let is_tracer = |label: &String| label.contains("[strata]") || label.starts_with("__traceiter_");
    stack.iter().map(|&call| call_label(symbols, call)).skip_while(is_tracer).collect()
}

/// A return address as a symbol, else as it is.
fn call_label(symbols: &KernelSymbols, address: u64) -> String {
    // A return address may lie behind the end of a function that never returns: the call lies before it.
    let symbol = symbols.find(address.saturating_sub(1));
    symbol.map_or_else(|| format!("{address:#x}"), |(symbol, offset)| with_offset(&symbol.label(), offset + 1))
}

impl Report for LocksReport {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for guest in &self.guests {
            guest.write(out)?;
        }
        Ok(())
    }
}

impl GuestLocks {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.kernel_locks_recorded {
            let waits: u64 = self.kernel.iter().map(|lock| lock.waits.count).sum();
            writeln!(out, "{}: {waits} waits for locks of the guest's kernel", self.vm)?;
            self.write_kernel(out)?;
        } else {
            writeln!(
                out,
                "{}: locks of the guest's kernel were not recorded (guest:lock:contention_begin and _end)",
                self.vm
            )?;
        }
        let waits: u64 = self.futexes.iter().map(|futex| futex.waits.count).sum();
        writeln!(out, "\n{}: {waits} waits for futexes", self.vm)?;
        self.write_futexes(out)?;
        if self.unfinished > 0 {
            let unfinished = self.unfinished;
            writeln!(
                out,
                "NOTE: {unfinished} waits for kernel locks do not end in the trace; they are not in the table"
            )?;
        }
        Ok(())
    }

    fn write_kernel(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("lock", Align::Left),
            ("kind", Align::Left),
            ("count", Align::Right),
            ("time", Align::Right),
            ("longest", Align::Right),
            ("in", Align::Left),
            ("waiter", Align::Left),
            ("call site", Align::Left),
        ]);
        for lock in self.kernel.iter().take(ROWS_SHOWN) {
            let first = lock.waiters.first().map(|waiter| format!("{}/{}", waiter.pid, harmless(&waiter.comm)));
            let others = lock.waiters.len().saturating_sub(1);
            let others = if others > 0 { format!(" and {others} more") } else { String::new() };
            table.row([
                lock.name.clone().unwrap_or_else(|| format!("{:#x}", lock.address)),
                lock.kind.clone(),
                lock.waits.count.to_string(),
                duration(lock.waits.total_ns),
                duration(lock.waits.max_ns),
                lock.context.clone(),
                first.unwrap_or_default() + &others,
                lock.calls.iter().take(CALLS_SHOWN).cloned().collect::<Vec<_>>().join(" < "),
            ]);
        }
        if !table.is_empty() {
            table.write(out)?;
        }
        write_more(self.kernel.len(), ROWS_SHOWN, "rows", out)
    }

    fn write_futexes(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("futex", Align::Left),
            ("operation", Align::Left),
            ("process", Align::Left),
            ("count", Align::Right),
            ("time", Align::Right),
            ("longest", Align::Right),
            ("timed out", Align::Right),
            ("not needed", Align::Right),
            ("unfinished", Align::Right),
        ]);
        for futex in self.futexes.iter().take(ROWS_SHOWN) {
            table.row([
                format!("{:#x}", futex.address),
                futex.operation.clone(),
                format!("{}/{}", futex.pid, harmless(&futex.comm)),
                futex.waits.count.to_string(),
                duration(futex.waits.total_ns),
                duration(futex.waits.max_ns),
                futex.timed_out.to_string(),
                futex.not_needed.to_string(),
                futex.unfinished.to_string(),
            ]);
        }
        if !table.is_empty() {
            table.write(out)?;
        }
        write_more(self.futexes.len(), ROWS_SHOWN, "rows", out)
    }
}

#[cfg(test)]
mod tests;
