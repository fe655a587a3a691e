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

mod collector;

pub use collector::Collector;

use super::by_guest::ByGuest;
use crate::report::description::{Description, Requested};
use crate::report::rows::columns;
use crate::report::rows::columns::{Column, ReportRow, Unit, column};
use crate::report::rows::table::write_more;
use crate::report::sink::{Sink, rows_shown, write_place};
use crate::report::statistics::ended::Ended;
use crate::report::statistics::histogram::Histogram;
use crate::report::statistics::samples::{ReportedBy, Sampled, Samples, reported};
use crate::report::{Report, ReportBuilder, ReportError, Window, duration};
use serde::Serialize;
use serde_json::json;
use std::io;
use strata_analysis::event::{self, Tid};
use strata_analysis::{Passed, names};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "syscalls",
    about: "System calls of each guest process: count, time, errors, page faults inside",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[columns::rows::<SyscallRow>("guests[].processes[].syscalls[]")],
    begin: |_, _, _| Ok(Box::new(SyscallTimes::default())),
};

/// Processes that are shown one by one as text; JSON has all.
const PROCESSES_SHOWN: usize = 20;

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
    /// Calls and returns that no switch gives to a task.
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
    #[serde(serialize_with = "columns::serialize")]
    pub syscalls: Vec<SyscallRow>,
    /// CPU time outside system calls (user level, and interrupts there), ns.
    pub user_cpu_ns: u64,
    /// Page faults outside system calls.
    pub user_page_faults: u64,
    /// What they took at most, ns.
    pub user_page_faults_at_most_ns: u64,
}

/// One system call of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

impl ReportRow for SyscallRow {
    const COLUMNS: &'static [Column<Self>] = &[
        column(
            "name",
            "syscall",
            Unit::Text,
            "Name; `syscall_N` for a number without one; in front of it the ABI where that is not x86-64's own",
            |row| (&row.name).into(),
        ),
        column("abi", "", Unit::Text, "Which table the number is of: `x86_64`, `i386` or `x32`", |row| row.abi.into()),
        column("number", "", Unit::Number, "Number", |row| row.number.into()),
        column(
            "count",
            "count",
            Unit::Count,
            "Calls that returned, interrupted ones included, and those that never return (`exit`)",
            |row| row.count.into(),
        ),
        column("total_ns", "time", Unit::Ns, "Time from call to return", |row| row.total_ns.into()),
        column("cpu_ns", "on CPU", Unit::Ns, "Of that, the time on a CPU of the guest", |row| row.cpu_ns.into()),
        column("max_ns", "longest", Unit::Ns, "The longest", |row| row.max_ns.into()),
        column("histogram", "", Unit::Histogram, "How many that returned took how long", |row| (&row.histogram).into()),
        column("errors", "errors", Unit::Count, "Calls that returned an error, interrupted ones not included", |row| {
            row.errors.into()
        }),
        column("interrupted", "interrupted", Unit::Count, "Calls that a signal interrupted", |row| {
            row.interrupted.into()
        }),
        column(
            "unfinished",
            "",
            Unit::Count,
            "Calls whose return is not in the trace, or during which records were lost; not in `count`",
            |row| row.unfinished.into(),
        ),
        column("returns_only", "", Unit::Count, "Returns whose call is not in the trace; not in `count`", |row| {
            row.returns_only.into()
        }),
        column("", "unfinished", Unit::Count, "Both", |row| (row.unfinished + row.returns_only).into()),
        column("page_faults", "faults", Unit::Count, "Page faults inside", |row| row.page_faults.into()),
        column("page_faults_at_most_ns", "fault time", Unit::Ns, "What they took at most", |row| {
            row.page_faults_at_most_ns.into()
        }),
    ];
}

/// Makes the report.
///
/// # Errors
/// When no guest recorded system calls.
pub fn report(trace: &Trace, window: Window) -> Result<SyscallsReport, ReportError> {
    crate::report::make(trace, window, SyscallTimes::default())
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
    /// Its number, as [`names::syscall`] has it.
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

    /// The calls that have ended since the last call. `at_end` says that no record is to come.
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
            return Err(ReportError::nothing(
                "no guest recorded raw_syscalls:sys_enter and sys_exit",
                "record with --agent and --events 'guest:raw_syscalls:*,guest:sched:*'",
            ));
        }
        Ok(SyscallsReport { guests })
    }
}

/// What a call is called; `syscall_N` for a number without a name.
#[must_use]
pub fn name(number: i64) -> String {
    let (_, id) = names::syscall::abi(number);
    names::syscall::shown(number).map_or_else(|| format!("syscall_{id}"), Into::into)
}

/// What tells of system calls.
const REPORTED_BY: [ReportedBy; 3] = [
    reported(LayerKind::GuestKernel, event::name::SYSCALL_ENTER),
    reported(LayerKind::GuestKernel, "raw_syscalls:sys_exit"),
    reported(LayerKind::GuestKernel, event::name::SWITCH),
];

impl Sampled for SyscallTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples)]
    }
}

impl Report for SyscallsReport {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for guest in &self.guests {
            let count: u64 = guest.total.syscalls.iter().map(|row| row.count).sum();
            let calls = counted(count, "system call", "system calls");
            let processes = counted(guest.processes.len(), "process", "processes");
            writeln!(out, "{}: {calls} of {processes}", guest.vm)?;
            write_calls(&guest.total, out)?;
            let shown = rows_shown(out, PROCESSES_SHOWN);
            for process in guest.processes.iter().take(shown) {
                let (pid, comm) = (process.pid, &process.comm);
                writeln!(out)?;
                write_place(out, || json!({ "vm": guest.vm, "comm": comm, "pid": pid }));
                writeln!(out, "pid {pid}: {}", harmless(comm))?;
                write_calls(&process.calls, out)?;
            }
            if guest.processes.len() > shown {
                writeln!(out)?;
            }
            write_more(guest.processes.len(), shown, ["process", "processes"], out)?;
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

fn write_calls(calls: &Calls, out: &mut dyn Sink) -> io::Result<()> {
    let mut table = columns::table(&calls.syscalls);
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
    use strata_recording::layer::LayerKind;
    use strata_recording::test_trace::Field::{Arguments, Hex, Number};
    use strata_recording::test_trace::TestTrace;

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
    fn errors_and_interruptions_are_distinguished() {
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
        assert!(text.contains("vm0: 1 system call of 1 process"), "{text}");
        assert!(text.contains("pid 7: seven"), "{text}");
        assert!(text.contains("read              1  1.000 µs"), "{text}");
    }

    #[test]
    fn trace_without_system_calls_says_how_to_record_them() {
        let (_dir, trace) = TestTrace::new().switch(0, 1, 0, 7).open();

        assert!(report(&trace, ALL).unwrap_err().to_string().contains("raw_syscalls"));
    }
}
