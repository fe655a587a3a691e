//! System calls of each guest process: how often, how long, how they failed, and the page faults inside them.
//!
//! A call lasts from `raw_syscalls:sys_enter` to `raw_syscalls:sys_exit` of its thread. Of that, its CPU time is the
//! time during which its thread had a CPU of the guest, interrupts included (what the host took from that CPU is
//! another report's subject). The kernel has no event for the end of a page fault: the next record on the CPU bounds
//! its time from above.
//!
//! Counted apart, and never timed: calls that were interrupted by a signal (the kernel restarts them or fails them with
//! `EINTR`), calls whose return is not in the trace, returns whose call is not, and calls during which records were
//! lost.

use super::by_guest::{ByGuest, GuestCollector};
use super::distribution::BinnedDurations;
use super::ended::{Ended, Keep};
use super::histogram::Histogram;
use super::samples::{Row, Sampled, Samples, ToldBy, VmSamples, steady_name, told};
use super::table::{Align, Table, write_more};
use super::{Report, ReportBuilder, ReportError, Window, duration, harmless};
use crate::analysis::Passed;
use crate::clock::Clock;
use crate::event::{self, Event, Tid};
use crate::layer::LayerKind;
use crate::reader::Trace;
use crate::syscall_names;
use crate::timeline::Input;
use crate::timeline::guest::Guest;
use crate::timeline::states::{Runner, TaskIndex};
use foldhash::{HashMap, HashSet};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Processes that are shown one by one as text; JSON has all.
const PROCESSES_SHOWN: usize = 20;

/// Return values by which the kernel says that a signal interrupted a call: `ERESTARTSYS` to `ERESTART_RESTARTBLOCK`.
const INTERRUPTED: std::ops::RangeInclusive<i64> = -516..=-512;
/// Return values that are errors.
const ERRORS: std::ops::RangeInclusive<i64> = -4095..=-1;

/// The system calls of all guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SyscallsReport {
    /// By VM.
    pub guests: Vec<GuestSyscalls>,
}

/// The system calls of one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestSyscalls {
    /// Name of the VM.
    pub vm: String,
    /// All processes together.
    pub total: Calls,
    /// By process, the one with the most time first.
    pub processes: Vec<ProcessSyscalls>,
    /// Calls and returns of which no switch tells whose they are.
    pub unattributed: u64,
}

/// The system calls of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSyscalls {
    /// Its id in the guest's initial namespace.
    pub pid: Tid,
    /// Its latest name.
    pub comm: String,
    /// Its calls.
    #[serde(flatten)]
    pub calls: Calls,
}

/// System calls by name, and what happened outside of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// By call, the one that took longest first.
    pub syscalls: Vec<SyscallRow>,
    /// CPU time outside system calls (user level, and interrupts there), ns.
    pub user_cpu_ns: u64,
    /// Page faults outside system calls.
    pub user_page_faults: u64,
    /// What they took at most, ns.
    pub user_page_faults_at_most_ns: u64,
}

/// One system call of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SyscallRow {
    /// Name; `syscall_N` for a number without one. The ABI before it where that is not x86-64's own.
    pub name: String,
    /// Which table the number is of: `x86_64`, `i386` or `x32`.
    pub abi: &'static str,
    /// Number.
    pub number: i64,
    /// Calls that returned, interrupted ones included, and those that never return (`exit`).
    pub count: u64,
    /// Time from call to return, ns.
    pub total_ns: u64,
    /// Of that, the time on a CPU of the guest, ns.
    pub cpu_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// How many that returned took how long.
    pub histogram: Histogram,
    /// Calls that returned an error, interrupted ones not included.
    pub errors: u64,
    /// Calls that a signal interrupted.
    pub interrupted: u64,
    /// Page faults inside.
    pub page_faults: u64,
    /// What they took at most, ns.
    pub page_faults_at_most_ns: u64,
    /// Calls whose return is not in the trace, or during which records were lost; not in `count`.
    pub unfinished: u64,
    /// Returns whose call is not in the trace; not in `count`. The return with which a new task begins, of the call
    /// that made it, is none of them.
    pub returns_only: u64,
}

/// Makes the report.
///
/// # Errors
/// When no guest recorded system calls.
pub fn report(trace: &Trace, window: Window) -> Result<SyscallsReport, ReportError> {
    super::make(trace, window, SyscallTimes::default())
}

/// The report in the making. Takes memory for each task and each call that it makes.
pub type SyscallTimes = ByGuest<Collector>;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned.
    Returned,
    /// A signal interrupted it.
    Interrupted,
    /// It never returns: `exit`.
    NeverReturns,
    /// Its return is not in the trace, or records were lost meanwhile.
    Unfinished,
    /// Only its return is in the trace.
    ReturnOnly,
}

impl Outcome {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Returned => "returned",
            Self::Interrupted => "interrupted",
            Self::NeverReturns => "never-returns",
            Self::Unfinished => "unfinished",
            Self::ReturnOnly => "return-only",
        }
    }
}

/// A call, for [`SyscallTimes::take_ended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEnd {
    /// Its number, as [`syscall_names`] has it.
    pub number: i64,
    /// How it ended.
    pub outcome: Outcome,
    /// What it returned.
    pub result: Option<i64>,
    /// Of its time, that on a CPU of the guest, ticks; `None` where its end is not known.
    pub cpu: Option<u64>,
    /// Page faults inside.
    pub page_faults: u64,
    /// What they took at most, ticks.
    pub page_faults_at_most: u64,
}

impl CallEnd {
    /// Whether it returned an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.outcome == Outcome::Returned && self.result.is_some_and(|result| ERRORS.contains(&result))
    }
}

impl SyscallTimes {
    /// The report in the making, which keeps each call for [`take_ended`](Self::take_ended), and does not add up those that
    /// returned.
    #[must_use]
    pub fn keeping_ended() -> Self {
        Self::that_keeps_ended()
    }

    /// The calls that have ended since this was asked last. `at_end` says that no record is to come.
    pub fn take_ended(&mut self, at_end: bool) -> impl Iterator<Item = Ended<CallEnd>> {
        self.collectors().flat_map(move |(vm, collector)| {
            if at_end {
                collector.end_open();
            }
            collector.kept.take().map(move |ended| Ended { vm, ..ended })
        })
    }
}

impl ReportBuilder for SyscallTimes {
    type Report = SyscallsReport;

    fn finish(mut self, trace: &Trace, passed: &Passed) -> Result<SyscallsReport, ReportError> {
        let vms = passed.timeline.vms.iter().enumerate();
        let guests = vms.map(|(index, vm)| self.take(index).finish(vm.name.clone(), &vm.guest, trace.clock()));
        let guests: Vec<_> = guests.filter(|guest| !guest.total.syscalls.is_empty()).collect();
        if guests.is_empty() {
            let missing = "no guest recorded raw_syscalls:sys_enter and sys_exit; record with --agent and \
                           --events 'guest:raw_syscalls:*,guest:sched:*'";
            return Err(ReportError::Nothing { missing: missing.into() });
        }
        Ok(SyscallsReport { guests })
    }
}

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

/// The row that a call of `task` counts in where recordings are compared: of all tasks of one name.
fn sampled_row(guest: &Guest, task: TaskIndex, number: i64) -> Row {
    let call = name(number);
    let waits = WAITING_CALLS.contains(&&*call);
    Row { what: format!("{}: {call}", steady_name(&guest.task_name(task).1)), waits }
}

/// What a call is called; `syscall_N` for a number without a name.
#[must_use]
pub fn name(number: i64) -> String {
    let (_, id) = syscall_names::abi(number);
    syscall_names::shown(number).map_or_else(|| format!("syscall_{id}"), Into::into)
}

/// What tells of system calls.
const TOLD_BY: [ToldBy; 3] = [
    told(LayerKind::GuestKernel, event::name::SYSCALL_ENTER),
    told(LayerKind::GuestKernel, "raw_syscalls:sys_exit"),
    told(LayerKind::GuestKernel, event::name::SWITCH),
];

impl Sampled for SyscallTimes {
    fn samples(&mut self) -> Vec<(&'static [ToldBy], &mut Samples)> {
        vec![(&TOLD_BY, &mut self.samples)]
    }
}

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
        let (abi, id) = syscall_names::abi(number);
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
    /// Threads of which a call or a return was met.
    met: HashSet<TaskIndex>,
    /// By task.
    tasks: Vec<Process>,
    cpus: HashMap<u32, Cpu>,
    unattributed: u64,
    /// Which VM each is of is not known here.
    kept: Keep<Ended<CallEnd>>,
}

impl GuestCollector for Collector {
    fn add(&mut self, cpu: u32, input: &Input<'_>, guest: &Guest, runner: Option<Runner>, samples: &mut VmSamples<'_>) {
        let time = input.time();
        self.end_fault(cpu, time);
        let Some(event) = input.event else { return };
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
            (Event::SyscallEnter { number, .. }, Some(task)) => self.enter(task, number, time),
            (Event::SyscallExit { number, result }, Some(task)) => {
                self.exit(task, (number, result), time, guest, samples);
            }
            (Event::SyscallEnter { .. } | Event::SyscallExit { .. }, None) => self.unattributed += 1,
            (Event::PageFault { .. }, Some(task)) => {
                self.add_faults(task, Faults { count: 1, ticks: 0 });
                self.cpus.entry(cpu).and_modify(|cpu| cpu.fault = Some((task, time)));
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
        self.cpus.remove(&cpu);
    }

    fn keep_ended(&mut self) {
        self.kept.begin();
    }

    fn has_ended(&self) -> bool {
        !self.kept.is_empty()
    }
}

impl Collector {
    fn finish(mut self, vm: String, guest: &Guest, clock: &Clock) -> GuestSyscalls {
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
    fn end_open(&mut self) {
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
        let fault = self.cpus.get_mut(&cpu).and_then(|cpu| cpu.fault.take());
        if let Some((task, begin)) = fault {
            self.add_faults(task, Faults { count: 0, ticks: time.saturating_sub(begin) });
        }
    }

    fn enter(&mut self, task: TaskIndex, number: i64, time: u64) {
        if matches!(syscall_names::name(number), Some("exit" | "exit_group")) {
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
        let is_return = syscall_names::is_return(open.number, number);
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

impl Report for SyscallsReport {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for guest in &self.guests {
            let count: u64 = guest.total.syscalls.iter().map(|row| row.count).sum();
            writeln!(out, "{}: {count} system calls of {} processes", guest.vm, guest.processes.len())?;
            write_calls(&guest.total, out)?;
            for process in guest.processes.iter().take(PROCESSES_SHOWN) {
                writeln!(out, "\npid {}: {}", process.pid, harmless(&process.comm))?;
                write_calls(&process.calls, out)?;
            }
            if guest.processes.len() > PROCESSES_SHOWN {
                writeln!(out)?;
            }
            write_more(guest.processes.len(), PROCESSES_SHOWN, "processes", out)?;
            if guest.unattributed > 0 {
                let unattributed = guest.unattributed;
                writeln!(out, "NOTE: of {unattributed} calls and returns no context switch tells whose they are")?;
            }
        }
        writeln!(
            out,
            "\ntime: from call to return; on CPU: of that, with a CPU of the guest; faults take at most the time given"
        )
    }
}

fn write_calls(calls: &Calls, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("syscall", Align::Left),
        ("count", Align::Right),
        ("time", Align::Right),
        ("on CPU", Align::Right),
        ("longest", Align::Right),
        ("errors", Align::Right),
        ("interrupted", Align::Right),
        ("unfinished", Align::Right),
        ("faults", Align::Right),
        ("fault time", Align::Right),
    ]);
    for row in &calls.syscalls {
        table.row([
            row.name.clone(),
            row.count.to_string(),
            duration(row.total_ns),
            duration(row.cpu_ns),
            duration(row.max_ns),
            row.errors.to_string(),
            row.interrupted.to_string(),
            (row.unfinished + row.returns_only).to_string(),
            row.page_faults.to_string(),
            duration(row.page_faults_at_most_ns),
        ]);
    }
    let user = [
        "(user level)".into(),
        String::new(),
        String::new(),
        duration(calls.user_cpu_ns),
        String::new(),
        String::new(),
        String::new(),
        String::new(),
        calls.user_page_faults.to_string(),
        duration(calls.user_page_faults_at_most_ns),
    ];
    table.row(user);
    table.write(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerKind;
    use crate::test_trace::Field::{Arguments, Hex, Number};
    use crate::test_trace::TestTrace;

    const ALL: Window = Window { begin: 0, end: u64::MAX };

    fn enter(trace: TestTrace, cpu: u32, time: u64, id: i64) -> TestTrace {
        trace.guest(cpu, time, "raw_syscalls:sys_enter", &[("id", Number(id)), ("args", Arguments([0; 2]))])
    }

    fn exit(trace: TestTrace, cpu: u32, time: u64, id: i64, ret: i64) -> TestTrace {
        trace.guest(cpu, time, "raw_syscalls:sys_exit", &[("id", Number(id)), ("ret", Number(ret))])
    }

    fn fault(trace: TestTrace, time: u64) -> TestTrace {
        trace.guest(0, time, "exceptions:page_fault_user", &[("address", Hex(0))])
    }

    fn guest(trace: TestTrace) -> GuestSyscalls {
        let (_dir, trace) = trace.open();
        report(&trace, ALL).unwrap().guests.remove(0)
    }

    fn row<'r>(guest: &'r GuestSyscalls, pid: Tid, name: &str) -> &'r SyscallRow {
        let process = guest.processes.iter().find(|process| process.pid == pid).unwrap();
        process.calls.syscalls.iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn blocked_call_is_timed_across_cpus_and_its_cpu_time_is_less() {
        let trace = enter(TestTrace::new().switch(0, 100, 0, 7), 0, 200, 0);
        let trace = trace.switch(0, 300, 7, 0).switch(1, 900, 0, 7);

        let guest = guest(exit(trace, 1, 1000, 0, 5));

        let read = row(&guest, 7, "read");
        // A tick is half a nanosecond.
        assert_eq!((read.count, read.total_ns, read.cpu_ns, read.max_ns), (1, 400, 100, 400));
        assert_eq!(guest.processes[0].calls.user_cpu_ns, 50);
        assert_eq!(guest.processes[0].comm, "seven");
    }

    #[test]
    fn calls_of_one_number_and_two_abis_have_rows_of_their_own() {
        let call = |trace: TestTrace, time, id, abi| {
            let fields = [("id", Number(id)), ("abi", Number(abi))];
            let trace = trace.guest(0, time, "raw_syscalls:sys_enter", &fields);
            trace.guest(0, time + 10, "raw_syscalls:sys_exit", &fields)
        };
        let trace = call(call(TestTrace::new().switch(0, 1, 0, 7), 100, 20, 0), 200, 20, 1);
        // A 64-bit program begins a 32-bit one: it returns from the other ABI's execve.
        let trace = trace.guest(0, 300, "raw_syscalls:sys_enter", &[("id", Number(59)), ("abi", Number(0))]);
        let trace = trace.guest(0, 310, "raw_syscalls:sys_exit", &[("id", Number(11)), ("abi", Number(1))]);

        let guest = guest(trace);

        let (writev, getpid) = (row(&guest, 7, "writev"), row(&guest, 7, "i386:getpid"));
        assert_eq!((writev.abi, writev.number, writev.count), ("x86_64", 20, 1));
        assert_eq!((getpid.abi, getpid.number, getpid.count), ("i386", 20, 1));
        assert_eq!((row(&guest, 7, "execve").count, guest.processes[0].calls.syscalls.len()), (1, 3));
    }

    #[test]
    fn errors_and_interruptions_are_told_apart() {
        let mut trace = TestTrace::new().switch(0, 1, 0, 7);
        for (time, ret) in [(10, -2), (20, -512), (30, -516), (40, 3), (50, -4096)] {
            trace = exit(enter(trace, 0, time, 1), 0, time + 5, 1, ret);
        }

        let guest = guest(trace);

        let write = row(&guest, 7, "write");
        assert_eq!((write.count, write.errors, write.interrupted), (5, 1, 2));
    }

    #[test]
    fn calls_of_one_process_are_not_another_ones() {
        let trace = enter(TestTrace::new().switch(0, 1, 0, 7).switch(1, 2, 0, 8), 0, 10, 0);
        let trace = exit(enter(trace, 1, 20, 0), 1, 30, 0, 0);

        let guest = guest(exit(trace, 0, 110, 0, 0));

        assert_eq!((row(&guest, 7, "read").total_ns, row(&guest, 8, "read").total_ns), (50, 5));
        assert_eq!((guest.total.syscalls[0].count, guest.total.syscalls[0].max_ns), (2, 50));
    }

    #[test]
    fn faults_belong_to_the_call_or_to_the_user_level() {
        let trace = fault(enter(TestTrace::new().switch(0, 1, 0, 7), 0, 10, 0), 20);
        let trace = fault(exit(trace, 0, 60, 0, 0), 100);

        let guest = guest(trace.guest(0, 300, "test:tick", &[]));

        let read = row(&guest, 7, "read");
        assert_eq!((read.page_faults, read.page_faults_at_most_ns), (1, 20));
        let calls = &guest.processes[0].calls;
        assert_eq!((calls.user_page_faults, calls.user_page_faults_at_most_ns), (1, 100));
    }

    #[test]
    fn what_did_not_end_or_begin_in_the_trace_is_counted_apart() {
        let trace = exit(TestTrace::new().switch(0, 1, 0, 7), 0, 5, 1, 0);
        let trace = enter(enter(trace, 0, 10, 0), 0, 20, 35);

        let guest = guest(trace);

        assert_eq!((row(&guest, 7, "write").returns_only, row(&guest, 7, "write").count), (1, 0));
        assert_eq!((row(&guest, 7, "read").unfinished, row(&guest, 7, "nanosleep").unfinished), (1, 1));
    }

    #[test]
    fn call_during_which_records_were_lost_is_not_timed() {
        let trace = enter(TestTrace::new().switch(0, 1, 0, 7), 0, 10, 0).lost(LayerKind::GuestKernel, 0, 3);

        let guest = guest(exit(trace, 0, 100, 0, 0).switch(0, 110, 7, 0));

        let read = row(&guest, 7, "read");
        assert_eq!((read.count, read.total_ns, read.unfinished), (0, 0, 1));
    }

    /// A trace in which task 7 is on CPU 0, and the records of CPU 1 are missing from tick 50 on.
    fn without_cpu_1() -> TestTrace {
        let trace = TestTrace::new().switch(0, 1, 0, 7).switch(1, 2, 0, 8).guest(1, 50, "test:tick", &[]);
        trace.lost(LayerKind::GuestKernel, 1, 1)
    }

    #[test]
    fn call_that_leaves_its_cpu_while_records_of_another_one_are_missing_is_not_timed() {
        let trace = enter(without_cpu_1(), 0, 60, 0).switch(0, 70, 7, 0).switch(0, 80, 0, 7);

        let guest = guest(exit(trace, 0, 90, 0, 0));

        let read = row(&guest, 7, "read");
        assert_eq!((read.count, read.total_ns, read.unfinished), (0, 0, 1));
    }

    #[test]
    fn call_that_stays_on_its_cpu_while_records_of_another_one_are_missing_is_timed() {
        let guest = guest(exit(enter(without_cpu_1(), 0, 60, 0), 0, 90, 0, 0));

        let read = row(&guest, 7, "read");
        assert_eq!((read.count, read.total_ns, read.unfinished), (1, 15, 0));
    }

    #[test]
    fn call_that_never_returns_is_counted_and_the_return_from_a_signal_is_a_return() {
        let trace = enter(TestTrace::new().switch(0, 1, 0, 7), 0, 10, 15);
        let trace = enter(exit(trace, 0, 20, -1, 0), 0, 30, 231);

        let guest = guest(trace);

        assert_eq!((row(&guest, 7, "rt_sigreturn").count, row(&guest, 7, "exit_group").count), (1, 1));
        assert_eq!(row(&guest, 7, "exit_group").unfinished, 0);
    }

    #[test]
    fn new_task_begins_with_a_return_that_does_not_count() {
        let fork = [("parent_pid", Number(7)), ("child_pid", Number(8))];
        let trace = TestTrace::new().switch(0, 1, 0, 7).guest(0, 5, "sched:sched_process_fork", &fork);
        let trace = exit(trace.switch(0, 6, 7, 8), 0, 10, 56, 0);

        let guest = guest(exit(enter(trace, 0, 20, 1), 0, 30, 1, 0));

        let names: Vec<_> = guest.total.syscalls.iter().map(|row| (&*row.name, row.returns_only)).collect();
        assert_eq!(names, [("write", 0)]);
    }

    #[test]
    fn table_names_processes_and_calls() {
        let (_dir, trace) = exit(enter(TestTrace::new().switch(0, 1, 0, 7), 0, 10, 0), 0, 2010, 0, -9).open();
        let mut out = Vec::new();

        report(&trace, ALL).unwrap().write_text(&mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("vm0: 1 system calls of 1 processes"), "{text}");
        assert!(text.contains("pid 7: seven"), "{text}");
        assert!(text.contains("read              1  1.000 µs"), "{text}");
    }

    #[test]
    fn trace_without_system_calls_says_how_to_record_them() {
        let (_dir, trace) = TestTrace::new().switch(0, 1, 0, 7).open();

        assert!(report(&trace, ALL).unwrap_err().to_string().contains("raw_syscalls"));
    }
}
