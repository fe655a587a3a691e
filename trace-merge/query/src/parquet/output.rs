//! Where rows go to: row groups, on their way to the thread that writes files.

use super::Times;
use super::columns::chunk::Chunk;
use super::places::{Hour, Place};
use crate::tables::Lead;
use parquet::errors::ParquetError;
use parquet::schema::types::SchemaDescriptor;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use strata_recording::reader::Trace;

/// Row groups on their way, beside the one that is written.
const ON_THE_WAY: usize = 1;
/// Bytes that are kept of all rows in the making before those that take more than their share are handed on.
const MOST_KEPT: usize = 48 << 20;
/// Bytes of a row group, about.
const MOST_OF_GROUP: usize = 16 << 20;

/// What files of one kind have in common: the table, the columns, whose rows they hold.
#[derive(Debug)]
pub(super) struct Shape {
    /// No other has it.
    pub(super) number: u64,
    pub(super) table: String,
    /// Of the table of an event type: the event's name as it is recorded.
    pub(super) event: Option<String>,
    /// What rows begin with.
    pub(super) lead: Lead,
    pub(super) schema: SchemaDescriptor,
    pub(super) place: Place,
}

/// Rows that lie in one hour, on their way to the files of their shape.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) shape: Arc<Shape>,
    pub(super) hour: Hour,
    pub(super) rows: usize,
    pub(super) chunks: Vec<Chunk>,
}

/// Where rows go to.
#[derive(Clone, Debug)]
pub(super) struct Output {
    sender: mpsc::SyncSender<io::Result<Group>>,
    rows: Arc<AtomicU64>,
    shapes: Arc<AtomicU64>,
    kept: Arc<AtomicUsize>,
    pub(super) times: Arc<Times>,
    /// Which recording the rows are of.
    pub(super) recording: Arc<str>,
}

impl Output {
    /// For the rows of `trace`, and where they come out.
    pub(super) fn new(trace: &Trace) -> (Self, mpsc::Receiver<io::Result<Group>>) {
        let (sender, groups) = mpsc::sync_channel(ON_THE_WAY);
        let (times, recording) = (Arc::new(Times::new(trace)), recording_id(trace).into());
        let (rows, shapes, kept) = (Arc::default(), Arc::default(), Arc::default());
        (Self { sender, rows, shapes, kept, times, recording }, groups)
    }

    /// Hands on a row group, or why there is none.
    pub(super) fn send(&self, group: io::Result<Group>) {
        if let Ok(group) = &group {
            self.rows.fetch_add(group.rows as u64, Ordering::Relaxed);
        }
        // A writer that has failed takes no more; it says why.
        let _ = self.sender.send(group);
    }

    /// `rows`, or none: then the export fails, and says why.
    pub(super) fn taken<R>(&self, rows: Result<R, ParquetError>) -> Option<R> {
        rows.map_err(|error| self.send(Err(into_io(error)))).ok()
    }

    /// A number that no other shape has.
    pub(super) fn next_shape(&self) -> u64 {
        self.shapes.fetch_add(1, Ordering::Relaxed)
    }

    /// Rows so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Takes in that rows in the making that took `before` bytes take `now`; whether they are to be handed on: they
    /// are enough, or all take too much, and these more than half of an equal share.
    pub(super) fn is_too_much(&self, before: usize, now: usize) -> bool {
        let others = self.kept.fetch_sub(before, Ordering::Relaxed).saturating_sub(before);
        self.kept.fetch_add(now, Ordering::Relaxed);
        let shapes = usize::try_from(self.shapes.load(Ordering::Relaxed)).unwrap_or(usize::MAX).max(1);
        now > MOST_OF_GROUP || (others + now > MOST_KEPT && now > MOST_KEPT / 2 / shapes)
    }
}

/// What a recording is called in its tables: the same each time that it is exported, and no other recording is.
pub(crate) fn recording_id(trace: &Trace) -> String {
    let manifest = trace.manifest();
    let id = manifest.layers.first().map_or(manifest.clock.uuid, |layer| layer.uuid);
    id.simple().to_string()
}

/// `error` as one of writing.
pub(super) fn into_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made_recording;

    #[test]
    fn rows_are_handed_on_when_they_are_a_row_group_or_all_take_too_much() {
        let (_dir, trace) = made_recording::open();
        let (output, _groups) = Output::new(&trace);
        output.shapes.store(4, Ordering::Relaxed);
        let (small, half_a_share) = (MOST_KEPT / 100, MOST_KEPT / 8);

        let of_group = [MOST_OF_GROUP, MOST_OF_GROUP + 1].map(|bytes| {
            let is_enough = output.is_too_much(0, bytes);
            output.is_too_much(bytes, 0);
            is_enough
        });
        let of_all = [MOST_OF_GROUP, MOST_OF_GROUP, half_a_share + 1, small, MOST_OF_GROUP, half_a_share + 1, small]
            .map(|bytes| output.is_too_much(0, bytes));

        assert_eq!(of_group, [false, true]);
        assert_eq!(of_all, [false, false, false, false, true, true, false]);
    }
}
