//! The rows of the timeline: slices of time one after another.

use super::category::Category;
use super::encoding::{put, put_bytes};
use super::names::Names;
use super::pyramid::Pyramid;
use serde::Serialize;

/// Runs of bins in the finest level of a row of a CPU, or of one of the many tasks.
const MOST_BINS: usize = 1 << 12;
const MOST_BINS_OF_TASK: usize = 1 << 10;

/// What a row shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RowKind {
    /// What a host's CPU runs.
    HostCpu,
    /// What a vCPU does.
    Vcpu,
    /// What a CPU of a guest does, from all layers.
    GuestCpu,
    /// What a guest's task really does.
    Task,
    /// Requests of a VM's disks.
    Disk,
    /// Packets of a VM's network devices.
    Net,
    /// Why a task took so long.
    Why,
    /// Records only: of applications, and of a VMM's other threads.
    Records,
}

/// A row in the making.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) kind: RowKind,
    /// What it is drawn below: the host's name or the VM's.
    pub(super) group: String,
    pub(super) name: String,
    /// Slices, those that are not kept included.
    slices: u64,
    /// When the first slice begins that is not kept, ns; `None` when all are.
    left_out_from: Option<u64>,
    /// Time that it was busy, ns: tasks are shown in that order.
    busy: u64,
    /// Width of the finest bins, ns.
    finest_ns: u64,
    #[serde(skip)]
    kept: u64,
    #[serde(skip)]
    gaps: Vec<u8>,
    #[serde(skip)]
    lengths: Vec<u8>,
    #[serde(skip)]
    names: Vec<u8>,
    #[serde(skip)]
    pyramid: Pyramid,
    /// When the last slice ended, and the last one that is kept, ns.
    #[serde(skip)]
    end: u64,
    #[serde(skip)]
    kept_end: u64,
}

/// Number of a row.
pub(super) type RowNumber = u32;

/// All rows.
#[derive(Debug)]
pub(super) struct Rows {
    rows: Vec<Row>,
    pub(super) names: Names,
    /// Slices that may yet be kept.
    left: u64,
}

impl Rows {
    /// None yet; keeps up to `most` slices.
    pub(super) fn new(most: u64) -> Self {
        Self { rows: Vec::new(), names: Names::default(), left: most }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, kind: RowKind, group: &str, name: &str) -> RowNumber {
        let most = if kind == RowKind::Task { MOST_BINS_OF_TASK } else { MOST_BINS };
        let pyramid = Pyramid::new(most);
        let harmless = strata_recording::text::terminal::harmless;
        self.rows.push(Row {
            kind,
            group: harmless(group),
            name: harmless(name),
            slices: 0,
            left_out_from: None,
            busy: 0,
            finest_ns: pyramid.finest_ns(),
            kept: 0,
            gaps: Vec::new(),
            lengths: Vec::new(),
            names: Vec::new(),
            pyramid,
            end: 0,
            kept_end: 0,
        });
        u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX)
    }

    /// Calls a row otherwise from now on.
    pub(super) fn rename(&mut self, row: RowNumber, name: &str) {
        if let Some(row) = self.rows.get_mut(row as usize) {
            row.name = strata_recording::text::terminal::harmless(name);
        }
    }

    /// Adds to `row` what it was from `begin` up to `end`, ns; what of it lies before the last slice's end is left out.
    pub(super) fn slice(&mut self, row: RowNumber, (begin, end): (u64, u64), category: Category, name: &str) {
        let name = self.names.number(category, name);
        let Some(row) = self.rows.get_mut(row as usize) else { return };
        let begin = begin.max(row.end);
        if begin >= end {
            return;
        }
        row.slices += 1;
        row.end = end;
        row.pyramid.add((begin, end), category);
        row.finest_ns = row.pyramid.finest_ns();
        if !matches!(category, Category::NotRecorded | Category::Idle | Category::Sleep | Category::Waiting) {
            row.busy += end - begin;
        }
        if self.left == 0 {
            row.left_out_from.get_or_insert(begin);
            return;
        }
        self.left -= 1;
        row.kept += 1;
        put(&mut row.gaps, begin - row.kept_end);
        put(&mut row.lengths, end - begin);
        put(&mut row.names, name.into());
        row.kept_end = end;
    }

    /// The rows, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }

    /// When the first slice begins that is not kept, ns.
    pub(super) fn left_out_from(&self) -> Option<u64> {
        self.rows.iter().filter_map(|row| row.left_out_from).min()
    }

    /// How many slices there are, those that are not kept included.
    pub(super) fn slices(&self) -> u64 {
        self.rows.iter().map(|row| row.slices).sum()
    }
}

impl Row {
    /// The slices that are kept: their number, and three columns, each behind its size: the time left out before each, its
    /// length, and the number of its name.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.gaps.len() + self.lengths.len() + self.names.len() + 32);
        put(&mut bytes, self.kept);
        for column in [&self.gaps, &self.lengths, &self.names] {
            put_bytes(&mut bytes, column);
        }
        bytes
    }

    /// Appends its levels.
    pub(super) fn put_levels(&self, bytes: &mut Vec<u8>) {
        self.pyramid.put(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::tests::numbers;
    use super::*;

    fn rows(most: u64) -> Rows {
        let mut rows = Rows::new(most);
        let row = rows.row(RowKind::Vcpu, "vm0", "vCPU 0");
        rows.slice(row, (10, 30), Category::Running, "guest");
        rows.slice(row, (25, 40), Category::Idle, "halted");
        rows.slice(row, (50, 60), Category::Running, "guest");
        rows.slice(row, (55, 60), Category::Idle, "halted");
        rows
    }

    #[test]
    fn slices_follow_each_other_and_are_found_by_the_distance() {
        let rows = rows(100);

        assert_eq!(numbers(&rows.rows[0].encoded()), [3, 3, 10, 0, 10, 3, 20, 10, 10, 3, 0, 1, 0]);
        assert_eq!((rows.slices(), rows.left_out_from(), rows.rows[0].busy), (3, None, 30));
    }

    #[test]
    fn slices_beyond_the_bound_are_counted_and_in_the_pyramid() {
        let rows = rows(1);

        assert_eq!(numbers(&rows.rows[0].encoded()), [1, 1, 10, 1, 20, 1, 0]);
        assert_eq!((rows.slices(), rows.left_out_from(), rows.rows[0].busy), (3, Some(30), 30));
        let mut levels = Vec::new();
        rows.rows[0].put_levels(&mut levels);
        assert_eq!(numbers(&levels), [1, 9, 1, 0, 1, 2, Category::Running as u64, 30, Category::Idle as u64, 10]);
    }
}
