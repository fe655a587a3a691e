//! Counting records, on all CPUs: their order does not matter, so that each part of each stream is read by itself.

use super::EventsSummary;
use super::selection::Selection;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use strata_recording::reader::{Damage, Stream, StreamRecord, TraceLayer};

/// Bytes of a stream that are read at once; at least a packet.
const PART_BYTES: u64 = 4 << 20;

/// Some packets of a stream.
struct Part<'t> {
    layer: &'t TraceLayer,
    stream: &'t Stream,
    /// Index of the stream among all.
    number: usize,
    packets: Range<usize>,
    /// The first packet of the stream that is read at all.
    first: usize,
}

/// What was found of a stream.
#[derive(Clone, Copy, Default)]
struct Found {
    events: u64,
    read: u64,
    damage: Damage,
}

impl Found {
    const fn plus(&self, other: &Self) -> Self {
        Self {
            events: self.events + other.events,
            read: self.read + other.read,
            damage: self.damage.plus(&other.damage),
        }
    }
}

/// Counts the records of `selection` that are neither before `from` nor after `to` ticks.
pub(super) fn count(selection: &Selection<'_>, from: u64, to: u64) -> EventsSummary {
    let streams = &selection.streams;
    let windows: Vec<_> = streams.iter().map(|(_, stream)| stream.packets_within(from, to)).collect();
    let parts: Vec<_> = streams
        .iter()
        .zip(&windows)
        .enumerate()
        .flat_map(|(number, (&(layer, stream), window))| {
            let of_part = usize::try_from(PART_BYTES / layer.description.packet_size).unwrap_or(1).max(1);
            // Who runs is followed from the beginning to the end.
            let packets = if selection.needs_tasks { window.len().max(1) } else { of_part };
            let ranges = window.clone().step_by(packets).map(move |start| start..(start + packets).min(window.end));
            ranges.map(move |packets| Part { layer, stream, number, packets, first: window.start })
        })
        .collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = vec![Found::default(); streams.len()];
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            found[part.number] = found[part.number].plus(&count_part(selection, part, from, to));
        }
        found
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(parts.len());
    let found: Vec<Vec<Found>> = thread::scope(|scope| {
        let helpers: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let own = work();
        // Counting does not panic; if it did, so would this.
        let joined =
            helpers.into_iter().map(|helper| helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(own).chain(joined).collect()
    });
    let mut summary = EventsSummary::default();
    for (number, (_, stream)) in streams.iter().enumerate() {
        let of_stream = found.iter().fold(Found::default(), |sum, found| sum.plus(&found[number]));
        let damage = stream.with_missing(of_stream.damage, &windows[number], of_stream.read);
        summary.events += of_stream.events;
        summary.damage = summary.damage.plus(&damage);
    }
    summary
}

fn count_part<'t>(selection: &Selection<'t>, part: &Part<'t>, from: u64, to: u64) -> Found {
    let mut records = part.layer.records(part.stream).of_packets(part.packets.clone(), part.first);
    let within = |record: &StreamRecord<'_>| (from..=to).contains(&record.time);
    let events = if selection.is_partial() {
        let mut filter = selection.filter(part.layer, part.stream);
        records.by_ref().filter(|record| filter.take(record).is_ok() && within(record)).count()
    } else {
        records.by_ref().filter(within).count()
    } as u64;
    Found { events, read: records.read(), damage: records.damage() }
}
