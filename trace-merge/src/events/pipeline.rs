//! Formatting on all CPUs: workers take turns at the merge, each taking the next records in order, with their tasks; they format what they
//! took at the same time, and the calling thread writes the results in the order in which they were taken.

use super::line::Lines;
use super::plan::{Form, Plan, Selected};
use super::selection::{Selection, StreamFilter};
use super::time::Times;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use strata_recording::reader::merge::{Merge, MergedRecord};
use strata_recording::reader::{Damage, Stream, StreamRecord};

/// Records that a worker takes at once: enough that taking turns costs nothing beside formatting them, few enough that
/// they and their lines stay in a CPU's cache.
const BATCH: usize = 1024;
/// Buffers of a worker: while one is being written it fills the other.
const BUFFERS: usize = 2;

/// The records of a selection in the order of a merge, each with its task where one is known.
pub(super) struct SelectedRecords<'t> {
    merge: Merge<'t>,
    /// By source of the merge.
    filters: Vec<StreamFilter<'t>>,
}

impl<'t> SelectedRecords<'t> {
    /// The records of `selection` that are neither before `from` nor after `to` ticks.
    pub(super) fn new(selection: &Selection<'t>, from: u64, to: u64) -> Self {
        let streams = &selection.streams;
        let mut layers: Vec<_> = streams.iter().map(|&(layer, _)| layer).collect();
        // The streams of a layer follow one another.
        layers.dedup_by(|left, right| std::ptr::eq(*left, *right));
        let is_selected = |stream: &Stream| streams.iter().any(|&(_, selected)| std::ptr::eq(selected, stream));
        Self {
            merge: Merge::of_streams(layers, is_selected, from, to),
            filters: streams.iter().map(|&(layer, stream)| selection.filter(layer, stream)).collect(),
        }
    }
}

impl<'t> Iterator for SelectedRecords<'t> {
    type Item = Selected<'t>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let merged = self.merge.next()?;
            if let Ok(task) = self.filters.get_mut(merged.source)?.take(&merged.record) {
                let MergedRecord { record: StreamRecord { time, schema, payload, .. }, source, .. } = merged;
                return Some(Selected { time, schema, payload, source, task });
            }
        }
    }
}

/// Writes the lines of `records` to `out`. Returns their number and what could not be read.
pub(super) fn write<F: Form>(
    records: SelectedRecords<'_>,
    plan: &Plan<F>,
    times: &Times<'_>,
    out: &mut dyn Write,
) -> io::Result<(u64, Damage)> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    write_with(workers, records, plan, times, out)
}

/// [`write`] with a number of workers.
pub(super) fn write_with<F: Form>(
    workers: usize,
    records: SelectedRecords<'_>,
    plan: &Plan<F>,
    times: &Times<'_>,
    out: &mut dyn Write,
) -> io::Result<(u64, Damage)> {
    let turn = Mutex::new(Turn { records, batches: 0, taken: 0, last: None });
    thread::scope(|scope| {
        let (filled, received) = channel();
        let (mut returns, mut working) = (Vec::new(), Vec::new());
        for worker in 0..workers {
            let (give_back, empty) = channel();
            for _ in 0..BUFFERS {
                // The receiver is here.
                let _ = give_back.send(Lines::default());
            }
            returns.push(give_back);
            let (turn, filled, times) = (&turn, filled.clone(), times.clone());
            working.push(scope.spawn(move || format(turn, plan, times, worker, &empty, &filled)));
        }
        drop(filled);
        let written = write_in_order(&received, &returns, out);
        // The workers end when nobody takes what they make.
        drop((received, returns));
        working.into_iter().for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        written
    })?;
    let turn = turn.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((turn.taken, turn.records.merge.damage()))
}

/// What workers take turns at.
struct Turn<'t> {
    records: SelectedRecords<'t>,
    /// Batches and records taken.
    batches: u64,
    taken: u64,
    /// The record taken last.
    last: Option<Selected<'t>>,
}

/// The lines of a batch.
struct Filled {
    /// Counts the batches from 0.
    number: u64,
    /// Whose buffer this is.
    worker: usize,
    lines: Lines,
}

/// A worker: formats batches until the merge is at its end or nobody wants more.
fn format<'t, F: Form>(
    turn: &Mutex<Turn<'t>>,
    plan: &Plan<F>,
    mut times: Times<'_>,
    worker: usize,
    empty: &Receiver<Lines>,
    filled: &Sender<Filled>,
) {
    let mut batch: Vec<Selected<'t>> = Vec::with_capacity(BATCH);
    let mut known = plan.nothing_known();
    // A buffer comes before the turn: who has the oldest batch can always finish it.
    while let Ok(mut lines) = empty.recv() {
        batch.clear();
        let (number, before) = {
            let mut turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            // In a loop of its own: extending goes through a function for each record.
            while batch.len() < BATCH
                && let Some(record) = turn.records.next()
            {
                batch.push(record);
            }
            turn.taken += batch.len() as u64;
            turn.batches += 1;
            (turn.batches - 1, std::mem::replace(&mut turn.last, batch.last().copied()))
        };
        if batch.is_empty() {
            return;
        }
        lines.clear();
        let mut before = before.as_ref();
        for record in &batch {
            plan.write(&mut lines, (&mut times, &mut known), record, before);
            before = Some(record);
        }
        if filled.send(Filled { number, worker, lines }).is_err() {
            return;
        }
    }
}

fn write_in_order(received: &Receiver<Filled>, returns: &[Sender<Lines>], out: &mut dyn Write) -> io::Result<()> {
    let mut waiting = BTreeMap::new();
    let mut next = 0;
    for filled in received {
        waiting.insert(filled.number, filled);
        while let Some(Filled { worker, lines, .. }) = waiting.remove(&next) {
            lines.write_to(out)?;
            next += 1;
            // A worker that has ended needs no buffer.
            let _ = returns[worker].send(lines);
        }
    }
    out.flush()
}
