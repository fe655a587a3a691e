//! The system calls of one guest, as its records tell them.

use super::{CallEnd, Calls, ERRORS, GuestSyscalls, Outcome, ProcessSyscalls, SyscallRow, name};
use crate::report::kernels::by_guest::GuestCollector;
use crate::report::statistics::distribution::BinnedDurations;
use crate::report::statistics::ended::{Ended, Keep};
use crate::report::statistics::samples::{Row, VmSamples, steady_name};
use foldhash::{HashMap, HashSet};
use std::collections::BTreeMap;
use strata_analysis::event::Event;
use strata_analysis::names;
use strata_analysis::timeline::Input;
use strata_analysis::timeline::by_number::ByNumber;
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::{Runner, TaskIndex};
use strata_recording::clock::Clock;

/// Return values by which the kernel says that a signal interrupted a call: `ERESTARTSYS` to `ERESTART_RESTARTBLOCK`.
const INTERRUPTED: std::ops::RangeInclusive<i64> = -516..=-512;

/// Calls that wait for something to do, as long as there is nothing.
const WAITING_CALLS: [&str; 15] = [
    "clock_nanosleep",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "nanosleep",
    "pause",
    "poll",
    "ppoll",
    "pselect6",
    "restart_syscall",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "select",
    "wait4",
    "waitid",
];

/// A call that has not returned yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    number: i64,
    entered: u64,
    cpu: u64,
    faults: Faults,
    /// Whether records are missing in which it may have ended and begun again.
    across_gap: bool,
}

impl Open {
    const fn new(number: i64, entered: u64) -> Self {
        Self { number, entered, cpu: 0, faults: Faults { count: 0, ticks: 0 }, across_gap: false }
    }
}

/// Page faults, and what they took at most, ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    count: u64,
    ticks: u64,
}

impl Faults {
    const fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, ticks: self.ticks.saturating_add(other.ticks) }
    }
}

/// A row in the making; times in ticks.
#[derive(Clone, Debug, Default)]
struct Sums {
    count: u64,
    /// Of those that returned.
    times: BinnedDurations,
    cpu: u64,
    errors: u64,
    interrupted: u64,
    faults: Faults,
    unfinished: u64,
    returns_only: u64,
}

impl Sums {
    fn extend(&mut self, other: &Self) {
        self.count += other.count;
        self.times.extend(&other.times);
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.errors += other.errors;
        self.interrupted += other.interrupted;
        self.faults = self.faults.plus(other.faults);
        self.unfinished += other.unfinished;
        self.returns_only += other.returns_only;
    }

    fn row(&self, number: i64, clock: &Clock) -> SyscallRow {
        let ns = |ticks| clock.ticks_to_ns(ticks);
        let (abi, id) = names::syscall::abi(number);
        SyscallRow {
            name: name(number),
            abi: abi.name(),
            number: id,
            count: self.count,
            total_ns: ns(self.times.sum.total),
            cpu_ns: ns(self.cpu),
            max_ns: ns(self.times.sum.max),
            histogram: self.times.histogram(clock),
            errors: self.errors,
            interrupted: self.interrupted,
            page_faults: self.faults.count,
            page_faults_at_most_ns: ns(self.faults.ticks),
            unfinished: self.unfinished,
            returns_only: self.returns_only,
        }
    }
}

/// A process in the making.
#[derive(Clone, Debug, Default)]
struct Process {
    calls: BTreeMap<i64, Sums>,
    user_cpu: u64,
    user_faults: Faults,
}

impl Process {
    fn plus(mut self, other: &Self) -> Self {
        for (&number, sums) in &other.calls {
            self.calls.entry(number).or_default().extend(sums);
        }
        self.user_cpu = self.user_cpu.saturating_add(other.user_cpu);
        self.user_faults = self.user_faults.plus(other.user_faults);
        self
    }

    fn calls(&self, clock: &Clock) -> Calls {
        let met = self.calls.iter().filter(|(_, sums)| sums.count + sums.unfinished + sums.returns_only > 0);
        let mut syscalls: Vec<_> = met.map(|(&number, sums)| sums.row(number, clock)).collect();
        syscalls.sort_by_key(|row| std::cmp::Reverse((row.total_ns, row.count)));
        Calls {
            syscalls,
            user_cpu_ns: clock.ticks_to_ns(self.user_cpu),
            user_page_faults: self.user_faults.count,
            user_page_faults_at_most_ns: clock.ticks_to_ns(self.user_faults.ticks),
        }
    }

    fn time(&self) -> u64 {
        self.calls.values().fold(self.user_cpu, |sum, call| sum.saturating_add(call.times.sum.total))
    }
}

/// What a CPU did last.
#[derive(Clone, Copy, Debug)]
struct Cpu {
    /// Up to where its time is accounted for.
    accounted: u64,
    /// A page fault that nothing has followed yet, and whose.
    fault: Option<(TaskIndex, u64)>,
}

/// The calls of one guest.
#[derive(Debug, Default)]
pub struct Collector {
    open: HashMap<TaskIndex, Open>,
    /// Threads with a call or a return.
    met: HashSet<TaskIndex>,
    /// By task.
    tasks: Vec<Process>,
    cpus: ByNumber<Cpu>,
    unattributed: u64,
    /// Which VM each is of is not known here.
    pub(super) kept: Keep<Ended<CallEnd>>,
}

impl GuestCollector for Collector {
    fn add(&mut self, cpu: u32, input: &Input<'_>, guest: &Guest, runner: Option<Runner>, samples: &mut VmSamples<'_>) {
        let time = input.time();
        self.end_fault(cpu, time);
        let Some(event) = &input.event else { return };
        match event {
            Event::Switch { .. }
            | Event::SyscallEnter { .. }
            | Event::SyscallExit { .. }
            | Event::PageFault { .. }
            | Event::ProcessExit => self.account(cpu, runner, time),
            _ => return,
        }
        let task = match runner {
            Some(Runner::Task(task)) => Some(task),
            Some(Runner::Idle(_)) => return,
            None => None,
        };
        match (event, task) {
            (&Event::SyscallEnter { number, .. }, Some(task)) => self.enter(task, number, time),
            (&Event::SyscallExit { number, result }, Some(task)) => {
                self.exit(task, (number, result), time, guest, samples);
            }
            (Event::SyscallEnter { .. } | Event::SyscallExit { .. }, None) => self.unattributed += 1,
            (Event::PageFault { .. }, Some(task)) => {
                self.add_faults(task, Faults { count: 1, ticks: 0 });
                self.cpus.get_mut(cpu).into_iter().for_each(|cpu| cpu.fault = Some((task, time)));
            }
            // A killed task's call never returns.
            (Event::ProcessExit, Some(task)) => {
                if let Some(open) = self.open.remove(&task) {
                    self.end_unfinished(task, &open);
                }
            }
            // While records of another CPU are missing, it could go on there.
            (Event::Switch { .. }, Some(task)) if guest.has_gap() => {
                if let Some(open) = self.open.get_mut(&task) {
                    open.across_gap = true;
                }
            }
            _ => {}
        }
    }

    /// What is open may end and begin again unseen.
    fn begin_gap(&mut self, cpu: u32, guest: &Guest) {
        let open = self.open.iter_mut().filter(|&(&task, _)| guest.is_lost_with(Runner::Task(task), cpu));
        open.for_each(|(_, open)| open.across_gap = true);
        self.cpus.remove(cpu);
    }

    fn keep_ended(&mut self) {
        self.kept.begin();
    }

    fn has_ended(&self) -> bool {
        !self.kept.is_empty()
    }
}

impl Collector {
    pub(super) fn finish(mut self, vm: String, guest: &Guest, clock: &Clock) -> GuestSyscalls {
        self.end_open();
        let mut processes: BTreeMap<TaskIndex, Process> = BTreeMap::new();
        for (task, calls) in self.tasks.iter().enumerate() {
            let process = processes.entry(guest.process(task)).or_default();
            *process = std::mem::take(process).plus(calls);
        }
        let total = processes.values().fold(Process::default(), Process::plus).calls(clock);
        let mut by_time: Vec<_> = processes.iter().collect();
        by_time.sort_by_key(|&(&task, process)| (std::cmp::Reverse(process.time()), guest.task_name(task).0));
        let process = |(&task, process): (&TaskIndex, &Process)| {
            let (pid, comm) = guest.task_name(task);
            ProcessSyscalls { pid, comm, calls: process.calls(clock) }
        };
        let processes = by_time.into_iter().map(process).filter(|process| !process.calls.syscalls.is_empty());
        GuestSyscalls { vm, total, processes: processes.collect(), unattributed: self.unattributed }
    }

    /// No record is to come.
    pub(super) fn end_open(&mut self) {
        for (task, open) in std::mem::take(&mut self.open) {
            self.end_unfinished(task, &open);
        }
    }

    /// It is not known when the call was over.
    fn end_unfinished(&mut self, task: TaskIndex, open: &Open) {
        self.sums(task, open.number).unfinished += 1;
        self.keep(task, open, None, Outcome::Unfinished, None);
    }

    /// Keeps the call, if calls are kept, and says so.
    fn keep(&mut self, task: TaskIndex, open: &Open, end: Option<u64>, outcome: Outcome, result: Option<i64>) -> bool {
        self.kept.add(|| {
            let Open { number, entered, cpu, faults, .. } = *open;
            let cpu = end.map(|_| cpu);
            let Faults { count: page_faults, ticks: page_faults_at_most } = faults;
            let what = CallEnd { number, outcome, result, cpu, page_faults, page_faults_at_most };
            Ended { vm: 0, task: Some(task), begin: Some(entered), end, what }
        })
    }

    /// The return of a call that is not in the trace.
    fn add_return(&mut self, task: TaskIndex, number: i64, result: i64, time: u64) {
        self.sums(task, number).returns_only += 1;
        let (outcome, result) = (Outcome::ReturnOnly, Some(result));
        let what = CallEnd { number, outcome, result, cpu: None, page_faults: 0, page_faults_at_most: 0 };
        self.kept.add(|| Ended { vm: 0, task: Some(task), begin: None, end: Some(time), what });
    }

    fn task(&mut self, task: TaskIndex) -> &mut Process {
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, Process::default);
        }
        &mut self.tasks[task]
    }

    fn sums(&mut self, task: TaskIndex, number: i64) -> &mut Sums {
        self.task(task).calls.entry(number).or_default()
    }

    /// Gives the time of `cpu` since the last event to its task: to the call that it is in, or to its user level.
    fn account(&mut self, cpu: u32, runner: Option<Runner>, time: u64) {
        let before = self.cpus.insert(cpu, Cpu { accounted: time, fault: None });
        let (Some(before), Some(Runner::Task(task))) = (before, runner) else { return };
        let ticks = time.saturating_sub(before.accounted);
        match self.open.get_mut(&task) {
            Some(open) => open.cpu = open.cpu.saturating_add(ticks),
            None => {
                let process = self.task(task);
                process.user_cpu = process.user_cpu.saturating_add(ticks);
            }
        }
    }

    fn add_faults(&mut self, task: TaskIndex, faults: Faults) {
        match self.open.get_mut(&task) {
            Some(open) => open.faults = open.faults.plus(faults),
            None => {
                let process = self.task(task);
                process.user_faults = process.user_faults.plus(faults);
            }
        }
    }

    /// The record at `time` bounds the fault that came before it on `cpu`.
    fn end_fault(&mut self, cpu: u32, time: u64) {
        let fault = self.cpus.get_mut(cpu).and_then(|cpu| cpu.fault.take());
        if let Some((task, begin)) = fault {
            self.add_faults(task, Faults { count: 0, ticks: time.saturating_sub(begin) });
        }
    }

    fn enter(&mut self, task: TaskIndex, number: i64, time: u64) {
        if names::syscall::never_returns(number) {
            self.open.remove(&task);
            self.sums(task, number).count += 1;
            self.keep(task, &Open::new(number, time), None, Outcome::NeverReturns, None);
            return;
        }
        self.met.insert(task);
        if let Some(before) = self.open.insert(task, Open::new(number, time)) {
            self.end_unfinished(task, &before);
        }
    }

    fn exit(
        &mut self,
        task: TaskIndex,
        (number, result): (i64, i64),
        time: u64,
        guest: &Guest,
        samples: &mut VmSamples<'_>,
    ) {
        let Some(open) = self.open.remove(&task) else {
            let was_born = guest.task(task).is_some_and(|task| task.born.is_some());
            let is_first = self.met.insert(task) && was_born;
            if !is_first {
                self.add_return(task, number, result, time);
            }
            return;
        };
        let is_return = names::syscall::is_return(open.number, number);
        if !is_return || open.across_gap {
            self.end_unfinished(task, &open);
            if !is_return {
                self.add_return(task, number, result, time);
            }
            return;
        }
        let is_interrupted = INTERRUPTED.contains(&result);
        let outcome = if is_interrupted { Outcome::Interrupted } else { Outcome::Returned };
        if self.keep(task, &open, Some(time), outcome, Some(result)) {
            return;
        }
        let ticks = time.saturating_sub(open.entered);
        samples.add(time, ticks, || sampled_row(guest, task, open.number));
        let sums = self.sums(task, open.number);
        sums.count += 1;
        sums.times.add(ticks);
        sums.cpu = sums.cpu.saturating_add(open.cpu);
        sums.errors += u64::from(ERRORS.contains(&result) && !is_interrupted);
        sums.interrupted += u64::from(is_interrupted);
        sums.faults = sums.faults.plus(open.faults);
    }
}

/// The row that a call of `task` counts in where recordings are compared: of all tasks of one name.
fn sampled_row(guest: &Guest, task: TaskIndex, number: i64) -> Row {
    let call = name(number);
    let waits = WAITING_CALLS.contains(&&*call);
    Row { what: format!("{}: {call}", steady_name(&guest.task_name(task).1)), waits }
}
