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

mod collector;
mod names;

pub use collector::Collector;
pub use names::{calls, name_of_lock};

use super::by_guest::ByGuest;
use crate::report::description::{Description, Requested};
use crate::report::rows::columns;
use crate::report::rows::columns::{Column, ReportRow, Unit, Value, column, figure, times};
use crate::report::sink::Sink;
use crate::report::statistics::distribution::Times;
use crate::report::statistics::ended::Ended;
use crate::report::statistics::samples::{ReportedBy, Sampled, Samples, reported};
use crate::report::{Report, ReportBuilder, ReportError, Window};
use serde::Serialize;
use std::io;
use strata_analysis::Passed;
use strata_analysis::event::{self, Tid};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "locks",
    about: "Waiting for locks of the guest's kernel, by lock and call site, and for futexes",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[
        columns::rows::<KernelLock>("guests[].kernel[]"),
        columns::rows::<Waiter>("guests[].kernel[].waiters[]"),
        columns::rows::<Futex>("guests[].futexes[]"),
    ],
    begin: |_, _, _| Ok(Box::new(LockTimes::default())),
};

/// Rows that are shown as text; JSON has all.
const ROWS_SHOWN: usize = 20;
/// Calls of a stack that are shown as text.
const CALLS_SHOWN: usize = 4;
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
    #[serde(serialize_with = "columns::serialize")]
    pub kernel: Vec<KernelLock>,
    /// Futexes, the one that was waited for longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub futexes: Vec<Futex>,
    /// Waits for kernel locks whose end is not in the trace, or during which records were lost. Not in the rows.
    pub unfinished: u64,
    /// Whether the events of kernel locks were recorded at all.
    pub kernel_locks_recorded: bool,
}

/// Waiting for a kernel lock at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLock {
    /// Address of the lock.
    pub address: u64,
    /// Its name, where the kernel's symbols tell it.
    pub name: Option<String>,
    pub kind: String,
    /// What waited: a system call, `interrupt`, `-` for neither, or `unknown` where records that could tell are
    /// missing.
    pub context: String,
    /// The calls that led there, innermost first: symbols, else addresses. Empty without a recorded stack.
    pub calls: Vec<String>,
    /// The waits.
    pub waits: Times,
    /// Who waited, the longest first.
    pub waiters: Vec<Waiter>,
}

/// A process that waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Its id.
    pub pid: Tid,
    pub comm: String,
    /// Its waits.
    pub waits: Times,
}

/// Waiting for a futex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Futex {
    pub pid: Tid,
    pub comm: String,
    /// Address of the futex in the process.
    pub address: u64,
    /// The operation.
    pub operation: String,
    /// Waits that waited.
    pub waits: Times,
    /// Of them, those that ended because the time was up.
    pub timed_out: u64,
    /// Calls that did not wait, because the value had changed already. Not in the waits.
    pub not_needed: u64,
    /// Waits whose end is not in the trace, or during which records were lost. Not in the waits.
    pub unfinished: u64,
}

impl ReportRow for KernelLock {
    const COLUMNS: &'static [Column<Self>] = &[
        column("", "lock", Unit::Text, "Its name, where the kernel's symbols tell it, else its address", |row| {
            row.name.clone().unwrap_or_else(|| format!("{:#x}", row.address)).into()
        }),
        column("address", "", Unit::Address, "Address of the lock", |row| row.address.into()),
        column("name", "", Unit::Text, "Its name, where the kernel's symbols tell it", |row| row.name.as_ref().into()),
        column("kind", "kind", Unit::Text, "What it is", |row| (&row.kind).into()),
        times(figure::TIMES, "How many waits", |row| (&row.waits).into()),
        column(
            "context",
            "in",
            Unit::Text,
            "What waited: a system call, `interrupt`, `-` for neither, or `unknown`",
            |row| (&row.context).into(),
        ),
        column("waiters", "", Unit::Rows, "Who waited, the longest first", |row| Value::rows(&row.waiters)),
        column("", "waiter", Unit::Text, "Who waited longest, and how many others did", |row| {
            row.shown_waiters().into()
        }),
        column("calls", "", Unit::Texts, "The calls that led there, innermost first: symbols, else addresses", |row| {
            row.calls.as_slice().into()
        }),
        column("", "call site", Unit::Text, "The innermost of the calls that led there", |row| {
            row.shown_calls().into()
        }),
    ];
}

impl ReportRow for Waiter {
    const COLUMNS: &'static [Column<Self>] = &[
        column("pid", "", Unit::Number, "Id of the process", |row| row.pid.into()),
        column("comm", "", Unit::Text, "Its name", |row| (&row.comm).into()),
        times(figure::TIMES_IN_JSON, "How many waits", |row| (&row.waits).into()),
    ];
}

impl ReportRow for Futex {
    const COLUMNS: &'static [Column<Self>] = &[
        column("address", "futex", Unit::Address, "Address of the futex in the process", |row| row.address.into()),
        column("operation", "operation", Unit::Text, "What the program requested of the kernel", |row| {
            (&row.operation).into()
        }),
        column("pid", "", Unit::Number, "Id of the process", |row| row.pid.into()),
        column("comm", "", Unit::Text, "Its name", |row| (&row.comm).into()),
        column("", "process", Unit::Text, "The process", |row| format!("{}/{}", row.comm, row.pid).into()),
        times(figure::TIMES, "How many waits", |row| (&row.waits).into()),
        column(
            "timed_out",
            "timed out",
            Unit::Count,
            "Of the waits, those that ended because the time was up",
            |row| row.timed_out.into(),
        ),
        column(
            "not_needed",
            "not needed",
            Unit::Count,
            "Calls that did not wait, because the value had changed already; not in `count`",
            |row| row.not_needed.into(),
        ),
        column(
            "unfinished",
            "unfinished",
            Unit::Count,
            "Waits whose end is not in the trace, or during which records were lost; not in `count`",
            |row| row.unfinished.into(),
        ),
    ];
}

/// Makes the report.
///
/// # Errors
/// When no guest recorded lock contention or system calls.
pub fn report(trace: &Trace, window: Window) -> Result<LocksReport, ReportError> {
    crate::report::make(trace, window, LockTimes::default())
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

    /// The waits that have ended since the last call. `at_end` says that no record is to come.
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
            return Err(ReportError::nothing(
                "no guest recorded lock:contention_begin and lock:contention_end, nor system calls",
                "record with --agent and --events 'guest:lock:*,guest:raw_syscalls:*,guest:sched:*'",
            ));
        }
        Ok(LocksReport { guests })
    }
}

/// What tells of waiting for locks.
const REPORTED_BY: [ReportedBy; 4] = [
    reported(LayerKind::GuestKernel, event::name::CONTENTION_BEGIN),
    reported(LayerKind::GuestKernel, event::name::SYSCALL_ENTER),
    reported(LayerKind::GuestKernel, "raw_syscalls:sys_exit"),
    reported(LayerKind::GuestKernel, event::name::SWITCH),
];

impl Sampled for LockTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples)]
    }
}

impl Report for LocksReport {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for guest in &self.guests {
            guest.write(out)?;
        }
        Ok(())
    }
}

impl GuestLocks {
    fn write(&self, out: &mut dyn Sink) -> io::Result<()> {
        if self.kernel_locks_recorded {
            let waits: u64 = self.kernel.iter().map(|lock| lock.waits.count).sum();
            let waits = counted(waits, "wait", "waits");
            writeln!(out, "{}: {waits} for locks of the guest's kernel", self.vm)?;
            write_rows(&self.kernel, out)?;
        } else {
            writeln!(
                out,
                "{}: locks of the guest's kernel were not recorded (guest:lock:contention_begin and _end)",
                self.vm
            )?;
        }
        let waits: u64 = self.futexes.iter().map(|futex| futex.waits.count).sum();
        writeln!(out, "\n{}: {} for futexes", self.vm, counted(waits, "wait", "waits"))?;
        write_rows(&self.futexes, out)?;
        if self.unfinished > 0 {
            let unfinished = counted(self.unfinished, "wait", "waits");
            writeln!(out, "NOTE: not in the table: {unfinished} for kernel locks without an end in the trace")?;
        }
        Ok(())
    }
}

fn write_rows<R: ReportRow>(rows: &[R], out: &mut dyn Sink) -> io::Result<()> {
    columns::write_first(rows, ROWS_SHOWN, ["row", "rows"], out)
}

impl KernelLock {
    fn shown_waiters(&self) -> String {
        let first = self.waiters.first().map(|waiter| format!("{}/{}", waiter.comm, waiter.pid));
        let others = self.waiters.len().saturating_sub(1);
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        first.unwrap_or_default() + &others
    }

    fn shown_calls(&self) -> String {
        self.calls.iter().take(CALLS_SHOWN).cloned().collect::<Vec<_>>().join(" < ")
    }
}

#[cfg(test)]
mod tests;
