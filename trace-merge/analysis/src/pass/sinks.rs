//! Where what was read goes: to analyses at once, or in batches to other threads.

use super::analysis::Gap;
use super::feed::{Batch, Feed, Item};
use super::reader::Sink;
use crate::event::Task;
use crate::timeline::{Input, Origin};
use shared_ring::layout::RECORD_HEADER_SIZE;
use std::sync::{Arc, mpsc};

/// Items that are handed on at once: enough that handing on costs nothing, few enough that they stay in the cache.
pub(super) const BATCH: usize = 1024;
/// Bytes of records that are handed on at once. What is on its way is looked at once more, so that its pages have to stay.
const BATCH_BYTES: usize = 1 << 16;
/// Batches on their way to each that takes them in.
pub(super) const BATCHES: usize = 4;

/// Takes in each item where it was read.
pub(super) struct Alone<'a, R> {
    pub feed: Feed<'a>,
    pub items: usize,
    /// Time of the last record, ticks.
    pub until: Option<u64>,
    /// Gets, now and then, the time up to which the recording was read, ticks.
    pub report: R,
}

impl<'t, R: FnMut(u64)> Sink<'t> for Alone<'_, R> {
    fn begin(&mut self) -> bool {
        !self.feed.analyses.is_empty()
    }

    fn record(&mut self, input: &Input<'t>) -> bool {
        self.items += 1;
        self.until = Some(input.time());
        if self.items.is_multiple_of(BATCH) {
            (self.report)(input.time());
        }
        self.feed.take_record(input)
    }

    fn gap(&mut self, gap: Gap) -> bool {
        self.feed.take_gap(&gap);
        true
    }

    fn announced(&mut self, origin: Origin, task: Task<'t>) {
        self.feed.timeline.announce(origin, task);
    }
}

/// Hands items on to other threads, in batches.
pub(super) struct Batches<'t, R> {
    /// To those that take more.
    pub full: Vec<mpsc::SyncSender<Batch<'t>>>,
    /// Batches to be filled once more.
    pub empty: mpsc::Receiver<Vec<Item<'t>>>,
    pub batch: Vec<Item<'t>>,
    /// Bytes of its records.
    pub bytes: usize,
    /// As that of [`Alone`].
    pub report: R,
}

impl<R: FnMut(u64)> Batches<'_, R> {
    /// Hands on what was put together; whether anybody takes more.
    #[inline(never)]
    fn hand_on(&mut self) -> bool {
        self.batch.last().and_then(Item::time).into_iter().for_each(&mut self.report);
        let next = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(BATCH + 2));
        let batch = Arc::new(std::mem::replace(&mut self.batch, next));
        self.bytes = 0;
        // Who has enough takes no more.
        self.full.retain(|full| full.send(Arc::clone(&batch)).is_ok());
        !self.full.is_empty()
    }

    /// Hands on the rest. Those that take it in wait for more until there is nobody who could send it.
    pub(super) fn finish(mut self) {
        self.hand_on();
    }
}

impl<'t, R: FnMut(u64)> Sink<'t> for Batches<'t, R> {
    fn begin(&mut self) -> bool {
        !self.full.is_empty()
    }

    fn record(&mut self, input: &Input<'t>) -> bool {
        self.bytes += RECORD_HEADER_SIZE + input.record.payload.len();
        self.batch.push(Item::Record(*input));
        (self.batch.len() < BATCH && self.bytes < BATCH_BYTES) || self.hand_on()
    }

    fn gap(&mut self, gap: Gap) -> bool {
        self.batch.push(Item::Gap(gap));
        self.batch.len() < BATCH || self.hand_on()
    }

    fn announced(&mut self, origin: Origin, task: Task<'t>) {
        self.batch.push(Item::Announced(origin, task));
    }
}
