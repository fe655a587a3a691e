//! The waits in one guest, as its records tell them.

use super::names::{calls, name_of_lock};
use super::{EAGAIN, ETIMEDOUT, Futex, GuestLocks, KernelLock, WaitEnd, Waiter};
use crate::report::kernels::by_guest::GuestCollector;
use crate::report::kernels::syscalls;
use crate::report::statistics::distribution::BinnedDurations;
use crate::report::statistics::ended::{Ended, Keep};
use crate::report::statistics::samples::{VmSamples, steady_name};
use foldhash::{HashMap, HashSet};
use std::collections::BTreeMap;
use strata_analysis::event::{self, Arguments, Event, Tid};
use strata_analysis::kernel_symbols::KernelSymbols;
use strata_analysis::names;
use strata_analysis::names::lock::flag;
use strata_analysis::timeline::Input;
use strata_analysis::timeline::by_number::ByNumber;
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::{Runner, TaskIndex};
use strata_recording::clock::Clock;
use strata_recording::reader::StreamRecord;

/// Most locks that a task can be waiting for at once that are followed: one per context.
const NESTED: usize = 8;

/// Operations of `futex(2)` that wait, without their modifiers.
const FUTEX_WAITS: [(u64, &str); 5] =
    [(0, "wait"), (6, "lock_pi"), (9, "wait_bitset"), (11, "wait_requeue_pi"), (13, "lock_pi2")];
const FUTEX_COMMAND: u64 = 0x7f;

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
        let (kind, context, calls) = (names::lock::kind(flags), context.name(), stack.clone());
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
    /// If so: tasks that are known since to be in a system call or not, and CPUs where it is not known
    /// whether they handle an interrupt.
    known: HashSet<TaskIndex>,
    lost_cpus: HashSet<u32>,
    /// By CPU: whose wait began with the record before this one.
    begun: ByNumber<Runner>,
    kernel: BTreeMap<Place, BTreeMap<Runner, BinnedDurations>>,
    futexes: BTreeMap<(TaskIndex, u64, &'static str), FutexSums>,
    unfinished: u64,
    /// Which VM each is of is not known here.
    pub(super) kept: Keep<Ended<WaitEnd>>,
}

impl GuestCollector for Collector {
    fn add(&mut self, cpu: u32, input: &Input<'_>, guest: &Guest, runner: Option<Runner>, samples: &mut VmSamples<'_>) {
        let begun = self.begun.remove(cpu);
        if self.had_gap && matches!(input.event, Some(Event::Switch { .. })) {
            self.lost_cpus.remove(&cpu);
        }
        let (Some(event), Some(runner)) = (&input.event, runner) else { return };
        let time = input.time();
        if let (Event::SyscallEnter { .. } | Event::SyscallExit { .. }, Runner::Task(task)) = (event, runner)
            && self.had_gap
        {
            self.known.insert(task);
        }
        match (event, runner) {
            // While records of another CPU are missing, it could go on there.
            (Event::Switch { .. }, Runner::Task(task)) if guest.has_gap() => self.lose(runner, Some(task)),
            (&Event::ContentionBegin { lock: Some(lock), flags }, _) => {
                self.begin(cpu, runner, (lock, flags), &input.record, guest);
            }
            (&Event::ContentionEnd { lock }, _) => self.end(runner, lock, time, samples),
            (Event::Stack, _) => {
                let waiting = begun.and_then(|runner| self.waiting.get_mut(&runner)?.last_mut());
                if let Some(waiting) = waiting {
                    waiting.place.stack = event::stack(&input.record);
                }
            }
            (Event::SyscallEnter { number, arguments }, Runner::Task(task)) => {
                self.enter(task, *number, arguments, time);
            }
            (&Event::SyscallExit { number, result }, Runner::Task(task)) => {
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
        self.begun.remove(cpu);
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
                samples.add(time, ticks, || format!("{} in {}", names::lock::kind(place.flags), place.context.name()));
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
    pub(super) fn end_all(&mut self) {
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
        let futex = names::syscall::is_futex(number).then(|| {
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

    pub(super) fn finish(mut self, vm: String, guest: &Guest, clock: &Clock, symbols: &KernelSymbols) -> GuestLocks {
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
                Waiter { pid, comm, waits: sums.times(clock) }
            };
            let mut waiters: Vec<_> = processes.iter().map(waiter).collect();
            waiters.sort_by_key(|waiter| (std::cmp::Reverse(waiter.waits.total_ns), waiter.pid));
            KernelLock {
                address: place.address,
                name: name_of_lock(symbols, place.address),
                kind: names::lock::kind(place.flags).into(),
                context: place.context.name(),
                calls: calls(symbols, &place.stack),
                waits: sum.times(clock),
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
                waits: sums.waits.times(clock),
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
