//! What exits were about: what the guest accessed, as KVM's events and the VMM's devices tell.

use super::VmExits;
use super::longest::{self, Longest};
use crate::report::rows::columns;
use crate::report::rows::columns::{Column, ReportRow, Unit, Value, column, distribution, figure};
use crate::report::scheduling::state_names;
use crate::report::sink::Sink;
use crate::report::statistics::distribution::{Distribution, Durations};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::event::{Access, KvmAccess};
use strata_analysis::exit_reason::ExitReason;
use strata_analysis::names;
use strata_recording::clock::Clock;
use strata_recording::text::counted::counted;

/// Things that have a row, by VM and kind of row: what there is to access is the guest's choice.
const MOST: usize = 4096;
/// Rows that the text shows.
const MOST_SHOWN: usize = 40;

/// The exits for one reason that are about one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationExits {
    /// Name of the reason.
    pub reason: String,
    /// What the guest did.
    pub operation: KvmAccess,
    /// Time from each exit until the vCPU was in the guest again.
    pub time: Distribution,
    /// The longest of them.
    pub longest: Longest,
}

impl OperationExits {
    /// The kind of what the guest accessed.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.operation {
            KvmAccess::Msr { .. } => "msr",
            KvmAccess::Cpuid { .. } => "cpuid",
            KvmAccess::Port { .. } => "port",
            KvmAccess::Page { .. } => "mmio",
        }
    }

    /// Number of the register, leaf or port, or address of the page.
    #[must_use]
    pub fn number(&self) -> u64 {
        match self.operation {
            KvmAccess::Msr { register: number, .. } | KvmAccess::Cpuid { leaf: number } => number.into(),
            KvmAccess::Port { port, .. } => port.into(),
            KvmAccess::Page { address, .. } => address,
        }
    }

    /// Name of the register, where it has one.
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        match self.operation {
            KvmAccess::Msr { register, .. } => names::msr::name(register),
            _ => None,
        }
    }

    /// Whether the guest wrote; `None` where it neither read nor wrote.
    #[must_use]
    pub const fn is_write(&self) -> Option<bool> {
        match self.operation {
            KvmAccess::Msr { is_write, .. } | KvmAccess::Port { is_write, .. } | KvmAccess::Page { is_write, .. } => {
                Some(is_write)
            }
            KvmAccess::Cpuid { .. } => None,
        }
    }

    /// Several of them, in words.
    pub(crate) fn plural(&self) -> String {
        let what = match (self.kind(), self.name()) {
            (_, Some(name)) => name.into(),
            ("msr", None) => format!("MSR {:#x}", self.number()),
            ("cpuid", None) => format!("CPUID leaf {:#x}", self.number()),
            ("mmio", None) => format!("memory at {:#x}", self.number()),
            (kind, None) => format!("{kind} {:#x}", self.number()),
        };
        let done = if self.is_write() == Some(true) { "writes" } else { "reads" };
        format!("{done} of {what}")
    }
}

/// The accesses to one place of the VMM's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessExits {
    /// The port, or the page of device memory.
    pub place: String,
    /// Time in the VMM of each exit that made one.
    pub time: Distribution,
    /// The one that took longest there.
    pub longest: Longest,
}

impl ReportRow for OperationExits {
    const COLUMNS: &'static [Column<Self>] = &[
        column("reason", "reason", Unit::Text, "Name of the reason", |row| (&row.reason).into()),
        column("kind", "kind", Unit::Text, "What the guest accessed: msr, cpuid, port, mmio", |row| row.kind().into()),
        column("number", "number", Unit::Address, "The register, leaf or port, or the page's address", |row| {
            row.number().into()
        }),
        column("name", "name", Unit::Text, "Name of the register", |row| row.name().into()),
        column("direction", "direction", Unit::Text, "read or write", |row| {
            row.is_write().map(|is_write| if is_write { "write" } else { "read" }).into()
        }),
        distribution("time", figure::DISTRIBUTION, "From the exit until the vCPU was in the guest again", |row| {
            (&row.time).into()
        }),
        column("longest", "", Unit::Object, longest::MEANING, |row| Value::object(&row.longest)),
    ];
}

impl ReportRow for AccessExits {
    const COLUMNS: &'static [Column<Self>] = &[
        column("place", "place", Unit::Text, "The port, or the page of device memory", |row| (&row.place).into()),
        distribution("time", figure::DISTRIBUTION, "Time in the VMM of each exit that accessed it", |row| {
            (&row.time).into()
        }),
        column("longest", "", Unit::Object, longest::MEANING, |row| Value::object(&row.longest)),
    ];
}

/// What the exits of a VM were about, in the making.
#[derive(Debug, Default)]
pub(super) struct Operations {
    operations: TimesBy<(ExitReason, KvmAccess)>,
    accesses: TimesBy<Access>,
}

impl Operations {
    /// Adds `exit`, in which the guest did `operation` first.
    pub(super) fn add(&mut self, reason: ExitReason, operation: KvmAccess, exit: Longest) {
        self.operations.add((reason, operation), exit);
    }

    /// Adds the part in the VMM of `exit`, in which the guest accessed a device there.
    pub(super) fn add_access(&mut self, access: Access, exit: Longest) {
        self.accesses.add(access, exit);
    }

    /// The rows, those that took longest first.
    pub(super) fn rows(self, clock: &Clock) -> (Bounded<OperationExits>, Bounded<AccessExits>) {
        let operation = |(reason, operation): (ExitReason, _), (time, longest)| OperationExits {
            reason: reason.name().into_owned(),
            operation,
            time,
            longest,
        };
        let access = |access, (time, longest)| AccessExits { place: state_names::access(access), time, longest };
        (self.operations.rows(clock, operation, |row| &row.time), self.accesses.rows(clock, access, |row| &row.time))
    }
}

/// Rows, and how many exits have none.
#[derive(Debug)]
pub(super) struct Bounded<R> {
    pub(super) rows: Vec<R>,
    pub(super) others: u64,
}

/// Times by what a guest chose: of the first [`MOST`] things.
#[derive(Debug)]
struct TimesBy<K> {
    times: BTreeMap<K, (Durations, Longest)>,
    /// Exits for other things.
    others: u64,
}

impl<K> Default for TimesBy<K> {
    fn default() -> Self {
        Self { times: BTreeMap::new(), others: 0 }
    }
}

impl<K: Ord> TimesBy<K> {
    fn add(&mut self, key: K, exit: Longest) {
        if self.times.len() >= MOST && !self.times.contains_key(&key) {
            self.others += 1;
            return;
        }
        let (times, longest) = self.times.entry(key).or_insert_with(|| (Durations::default(), exit));
        times.add(exit.ticks);
        *longest = longest.or(exit);
    }

    /// A row of each, which `make` makes; `time` tells its time.
    fn rows<R>(
        self,
        clock: &Clock,
        make: impl Fn(K, (Distribution, Longest)) -> R,
        time: fn(&R) -> &Distribution,
    ) -> Bounded<R> {
        let times = self.times.into_iter();
        let mut rows: Vec<R> =
            times.map(|(key, (times, longest))| make(key, (times.distribution(clock), longest))).collect();
        rows.sort_by_key(|row| Reverse((time(row).total_ns, time(row).count)));
        Bounded { rows, others: self.others }
    }
}

/// Writes what the exits of `vm` were about.
pub(super) fn write(vm: &VmExits, out: &mut dyn Sink) -> io::Result<()> {
    if !vm.operations.is_empty() {
        writeln!(out, "\n{}: what exits were about, as KVM's events tell, and the time of the exits", vm.vm)?;
        write_rows(&vm.operations, out)?;
        write_others(vm.other_operations, out)?;
    }
    if !vm.accesses.is_empty() {
        writeln!(out, "\n{}: accesses to devices, and the time in the VMM", vm.vm)?;
        write_rows(&vm.accesses, out)?;
        write_others(vm.other_accesses, out)?;
    }
    Ok(())
}

/// Writes the first [`MOST_SHOWN`] of `rows`.
pub(super) fn write_rows<R: ReportRow>(rows: &[R], out: &mut dyn Sink) -> io::Result<()> {
    columns::write_first(rows, MOST_SHOWN, ["row", "rows"], out)
}

fn write_others(others: u64, out: &mut dyn Sink) -> io::Result<()> {
    match others {
        0 => Ok(()),
        others => {
            let exits = counted(others, "exit was", "exits were");
            writeln!(out, "{exits} about other things than the first {MOST}, which have rows")
        }
    }
}
