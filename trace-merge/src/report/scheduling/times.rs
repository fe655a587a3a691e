//! What the time of tasks is made of, and the table that shows it.

use crate::report::duration;
use crate::report::rows::columns::{Column, Object, ReportRow, Unit, column};
use crate::report::rows::table::{Align, Table};
use serde_json::Value;
use strata_analysis::timeline::fused::{self, Fused};
use strata_analysis::timeline::states::BlockedOn;
use strata_recording::clock::Clock;

/// What a task's time is made of, in ticks by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// It ran for real. Without a host-kernel layer also what that would tell apart.
    pub running: u64,
    /// Interrupts ran on top of it.
    pub interrupted: u64,
    /// It was ready, and the guest ran something else.
    pub runnable: u64,
    /// It was ready, and the host ran something else in place of the vCPU that it waited for.
    pub runnable_stolen: u64,
    /// The guest had it running, the host ran something else.
    pub stolen: u64,
    /// The guest had it running, KVM handled an exit.
    pub exits: u64,
    /// The guest had it running, the VMM handled an exit.
    pub vmm: u64,
    /// It waited for I/O.
    pub io: u64,
    /// It waited for a lock of the kernel or for a futex.
    pub lock: u64,
    /// It slept for a time.
    pub sleep: u64,
    /// It waited for something else.
    pub waiting: u64,
    /// Not known: the records do not tell.
    pub unknown: u64,
}

impl Times {
    /// Adds that `state` lasted for `ticks`.
    pub(super) fn add(&mut self, state: Fused, ticks: u64) {
        if let Some(part) = self.parts_mut().into_iter().nth(place_of(state)) {
            *part += ticks;
        }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut sum = *self;
        for (part, more) in sum.parts_mut().into_iter().zip(other.parts()) {
            *part = part.saturating_add(more);
        }
        sum
    }

    /// The same of ticks, ns, each rounded down.
    pub(super) fn in_ns(mut self, clock: &Clock) -> Self {
        self.parts_mut().into_iter().for_each(|part| *part = clock.ticks_to_ns(*part));
        self
    }

    /// All of them, in the order of the fields.
    #[must_use]
    pub const fn parts(&self) -> [u64; 12] {
        [
            self.running,
            self.interrupted,
            self.runnable,
            self.runnable_stolen,
            self.stolen,
            self.exits,
            self.vmm,
            self.io,
            self.lock,
            self.sleep,
            self.waiting,
            self.unknown,
        ]
    }

    const fn parts_mut(&mut self) -> [&mut u64; 12] {
        [
            &mut self.running,
            &mut self.interrupted,
            &mut self.runnable,
            &mut self.runnable_stolen,
            &mut self.stolen,
            &mut self.exits,
            &mut self.vmm,
            &mut self.io,
            &mut self.lock,
            &mut self.sleep,
            &mut self.waiting,
            &mut self.unknown,
        ]
    }

    /// How long it had the CPU or wanted it, as the guest sees it.
    pub(super) const fn wanted(&self) -> u64 {
        self.running + self.interrupted + self.runnable + self.runnable_stolen + self.stolen + self.exits + self.vmm
    }
}

/// Which of [`Times::parts`] the time in `state` is.
const fn place_of(state: Fused) -> usize {
    match state {
        Fused::Running(fused::Running::Interrupt(_)) | Fused::RunningOrStolen(fused::Running::Interrupt(_)) => 1,
        Fused::Running(_) | Fused::RunningOrStolen(_) => 0,
        Fused::Runnable | Fused::NotAllowed => 2,
        Fused::RunnableStolen(_) => 3,
        Fused::Stolen(_) => 4,
        Fused::Kvm(_) | Fused::Halted => 5,
        Fused::Vmm(_) => 6,
        Fused::Blocked(BlockedOn::Io) => 7,
        Fused::Blocked(BlockedOn::Lock | BlockedOn::Futex) => LOCK,
        Fused::Blocked(BlockedOn::Sleep) => 9,
        Fused::Blocked(BlockedOn::Uninterruptible | BlockedOn::Event | BlockedOn::Stopped) => 10,
        Fused::Unknown | Fused::VcpuUnknown => 11,
    }
}

/// The last of [`Times::parts`] that is not spent on waiting for something to do.
const LOCK: usize = 8;

/// The heading of the part that the time in `state` is; `None` where the task waits for something to do, or the records
/// do not tell.
pub(super) fn heading_of(state: Fused) -> Option<&'static str> {
    let part = place_of(state);
    Times::COLUMNS.get(part).filter(|_| part <= LOCK).map(|column| column.heading)
}

impl ReportRow for Times {
    const COLUMNS: &'static [Column<Self>] = &[
        column("running", "running", Unit::PartNs, "It ran for real", |row| row.running.into()),
        column("interrupted", "interrupted", Unit::PartNs, "Interrupts ran on top of it", |row| row.interrupted.into()),
        column("runnable", "runnable", Unit::PartNs, "It was ready, the guest ran something else", |row| {
            row.runnable.into()
        }),
        column(
            "runnable_stolen",
            "runnable, stolen",
            Unit::PartNs,
            "It was ready, the host ran something else in place of its vCPU",
            |row| row.runnable_stolen.into(),
        ),
        column("stolen", "stolen", Unit::PartNs, "The guest had it running, the host ran something else", |row| {
            row.stolen.into()
        }),
        column("exits", "in exits", Unit::PartNs, "The guest had it running, KVM handled an exit", |row| {
            row.exits.into()
        }),
        column("vmm", "in VMM", Unit::PartNs, "The guest had it running, the VMM handled an exit", |row| {
            row.vmm.into()
        }),
        column("io", "I/O", Unit::PartNs, "It waited for I/O", |row| row.io.into()),
        column("lock", "lock", Unit::PartNs, "It waited for a lock of the kernel or for a futex", |row| {
            row.lock.into()
        }),
        column("sleep", "sleep", Unit::PartNs, "It slept for a time", |row| row.sleep.into()),
        column("waiting", "waiting", Unit::PartNs, "It waited for something else", |row| row.waiting.into()),
        column("unknown", "unknown", Unit::PartNs, "Not known: the records do not tell", |row| row.unknown.into()),
    ];
}

/// The table of times: a row for each of `rows`, which begins with the cells of `columns` and goes on with its times,
/// at `frequency` Hz; what else it is made of stands behind them. Parts that no row has are not worth a column.
pub(super) fn table_of_times(
    columns: &[(&str, Align)],
    frequency: u64,
    rows: impl IntoIterator<Item = (Vec<String>, Times, Value)>,
) -> Table {
    let rows: Vec<_> = rows.into_iter().collect();
    let is_there = |part: usize| rows.iter().any(|(_, times, _)| times.parts()[part] > 0);
    let parts: Vec<_> = Times::COLUMNS.iter().enumerate().filter(|&(part, _)| is_there(part)).collect();
    let headings = parts.iter().map(|(_, column)| (column.heading, column.unit.align()));
    let described = columns.iter().map(|_| (String::new(), ""));
    let described = described.chain(parts.iter().map(|(_, part)| (format!("times.{}", part.key), part.meaning)));
    let headings: Vec<_> = columns.iter().copied().chain(headings).collect();
    let mut table = Table::new(&headings).described(described);
    for (cells, times, mut data) in rows {
        let of_part = |&(part, _): &(usize, _)| shown(times.parts()[part], frequency);
        data["times"] = serde_json::to_value(Object::of(&times)).unwrap_or_default();
        table.row_of(cells.into_iter().chain(parts.iter().map(of_part)), data);
    }
    table
}

/// `ticks` at `frequency` Hz for a table.
pub(super) fn shown(ticks: u64, frequency: u64) -> String {
    if ticks == 0 { "-".into() } else { duration(in_ns(ticks, frequency)) }
}

/// `ticks` at `frequency` Hz, ns, rounded down.
pub(super) fn in_ns(ticks: u64, frequency: u64) -> u64 {
    let ns = u128::from(ticks) * u128::from(strata_recording::clock::NS_PER_SECOND) / u128::from(frequency.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}
