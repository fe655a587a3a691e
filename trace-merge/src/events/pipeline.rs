//! Formatting on all CPUs: workers take turns at the merge, each taking the next records in order; they format what they
//! took at the same time, and the calling thread writes the results in the order in which they were taken.

use super::line::Lines;
use super::plan::{Form, Plan};
use super::time::Times;
use crate::merge::{Merge, MergedRecord};
use crate::reader::Damage;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Records that a worker takes at once: enough that taking turns costs nothing beside formatting them, few enough that
/// they and their lines stay in a CPU's cache.
const BATCH: usize = 1024;
/// Buffers of a worker: while one is being written it fills the other.
const BUFFERS: usize = 2;

/// Writes the lines of all records of `merge` to `out`. Returns their number and what could not be read.
pub(super) fn write<F: Form>(
    merge: Merge<'_>,
    plan: &Plan<F>,
    times: &Times<'_>,
    out: &mut dyn Write,
) -> io::Result<(u64, Damage)> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    write_with(workers, merge, plan, times, out)
}

/// [`write`] with a number of workers.
pub(super) fn write_with<F: Form>(
    workers: usize,
    merge: Merge<'_>,
    plan: &Plan<F>,
    times: &Times<'_>,
    out: &mut dyn Write,
) -> io::Result<(u64, Damage)> {
    let turn = Mutex::new(Turn { merge, batches: 0, records: 0 });
    thread::scope(|scope| {
        let (filled, received) = channel();
        let mut returns = Vec::new();
        for worker in 0..workers {
            let (give_back, empty) = channel();
            for _ in 0..BUFFERS {
                // The receiver is here.
                let _ = give_back.send(Lines::default());
            }
            returns.push(give_back);
            let (turn, filled, times) = (&turn, filled.clone(), times.clone());
            scope.spawn(move || format(turn, plan, times, worker, &empty, &filled));
        }
        drop(filled);
        // Returning early drops `received` and `returns`, at which the workers end.
        write_in_order(&received, &returns, out)
    })?;
    let turn = turn.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((turn.records, turn.merge.damage()))
}

/// What workers take turns at.
struct Turn<'t> {
    merge: Merge<'t>,
    /// Batches and records taken.
    batches: u64,
    records: u64,
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
    let mut batch: Vec<MergedRecord<'t>> = Vec::with_capacity(BATCH);
    // A buffer comes before the turn: who has the oldest batch can always finish it.
    while let Ok(mut lines) = empty.recv() {
        batch.clear();
        let number = {
            let mut turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            batch.extend(turn.merge.by_ref().take(BATCH));
            turn.records += batch.len() as u64;
            turn.batches += 1;
            turn.batches - 1
        };
        if batch.is_empty() {
            return;
        }
        lines.clear();
        batch.iter().for_each(|merged| plan.write(&mut lines, &mut times, merged));
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
            out.write_all(lines.text())?;
            next += 1;
            // A worker that has ended needs no buffer.
            let _ = returns[worker].send(lines);
        }
    }
    out.flush()
}
