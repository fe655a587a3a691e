//! One order for the records of many streams: by time, then layer, stream and position.

use crate::reader::{Damage, Stream, StreamRecord, StreamRecords, TraceLayer};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// A record of a merge, and where it comes from.
#[derive(Clone, Copy, Debug)]
pub struct MergedRecord<'t> {
    /// The record.
    pub record: StreamRecord<'t>,
    /// Its layer.
    pub layer: &'t TraceLayer,
    /// Its stream.
    pub stream: &'t Stream,
    /// Number of its stream in the merge: in the order of layers and streams.
    pub source: usize,
}

/// Merges streams. Holds one record of each.
#[derive(Debug)]
pub struct Merge<'t> {
    sources: Vec<Source<'t>>,
    /// The next record of each source that has one.
    heap: BinaryHeap<Entry>,
}

#[derive(Debug)]
struct Source<'t> {
    layer: &'t TraceLayer,
    stream: &'t Stream,
    records: StreamRecords<'t>,
    next: Option<StreamRecord<'t>>,
}

impl<'t> Merge<'t> {
    /// All streams of `layers`, from the first record that is not before `from` ticks.
    #[must_use]
    pub fn new(layers: impl IntoIterator<Item = &'t TraceLayer>, from: u64) -> Self {
        Self::within(layers, from, u64::MAX)
    }

    /// The records of all streams of `layers` that are neither before `from` nor after `to` ticks. Only packets that may
    /// hold such are read.
    #[must_use]
    pub fn within(layers: impl IntoIterator<Item = &'t TraceLayer>, from: u64, to: u64) -> Self {
        let mut sources = Vec::new();
        for layer in layers {
            for stream in &layer.streams {
                let mut records = layer.records(stream).within(from, to);
                let next = records.next();
                sources.push(Source { layer, stream, records, next });
            }
        }
        let firsts = sources.iter().enumerate();
        let heap = firsts.filter_map(|(index, source)| Some(entry(index, source.next.as_ref()?.time))).collect();
        Self { sources, heap }
    }

    /// The merged streams, in the order of [`MergedRecord::source`].
    pub fn streams(&self) -> impl Iterator<Item = (&'t TraceLayer, &'t Stream)> {
        self.sources.iter().map(|source| (source.layer, source.stream))
    }

    /// What could not be read so far of all streams; complete once the merge is at its end.
    #[must_use]
    pub fn damage(&self) -> Damage {
        self.sources.iter().fold(Damage::default(), |sum, source| sum.plus(&source.records.damage()))
    }
}

impl<'t> Iterator for Merge<'t> {
    type Item = MergedRecord<'t>;

    #[inline]
    fn next(&mut self) -> Option<MergedRecord<'t>> {
        let mut top = self.heap.peek_mut()?;
        let index = source_of(*top);
        let source = self.sources.get_mut(index)?;
        let following = source.records.next();
        let record = std::mem::replace(&mut source.next, following)?;
        match following {
            // Changes the top in place, which is one sift where a pop and a push are two.
            Some(following) => *top = entry(index, following.time),
            None => drop(PeekMut::pop(top)),
        }
        Some(MergedRecord { record, layer: source.layer, stream: source.stream, source: index })
    }
}

/// Time, then source: earlier sources come first among equal times. One number, which is compared at once.
type Entry = Reverse<u128>;

#[inline]
const fn entry(source: usize, time: u64) -> Entry {
    Reverse((time as u128) << 64 | source as u128)
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the low half is the source's number, as `entry` put it there")]
const fn source_of(entry: Entry) -> usize {
    entry.0 as u64 as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Trace;
    use crate::reader::tests::event;
    use crate::session::tests::session;
    use crate::session::{LayerKind, Session};
    use crate::writer::{LayerWriter, NewLayer};
    use proptest::prelude::*;
    use tempfile::TempDir;

    /// Times of the streams of a VMM layer and of a guest-kernel layer.
    type Times = [Vec<Vec<u64>>; 2];

    fn recording(times: &Times) -> (TempDir, Trace) {
        let dir = TempDir::new().unwrap();
        let mut session = session();
        for (kind, streams) in [LayerKind::GuestKernel, LayerKind::Vmm].into_iter().zip(times.iter().rev()) {
            let new = NewLayer { kind, vm: Some("vm0".into()), process: None, packet_size: 256 };
            let mut layer = LayerWriter::create(dir.path(), &session, new).unwrap();
            layer.add_events(&[event(1, "test:event", &[])]).unwrap();
            for (cpu_id, times) in (0..).zip(streams) {
                times.iter().for_each(|&time| layer.record(cpu_id, time, 1, &[]).unwrap());
            }
            layer.flush().unwrap();
            session.layers.push(layer.layer());
        }
        Session::save(&session, dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        (dir, trace)
    }

    fn merged(trace: &Trace, from: u64) -> Vec<(u64, LayerKind, u32)> {
        Merge::new(trace.layers(), from)
            .map(|merged| (merged.record.time, merged.layer.description.kind, merged.stream.description.cpu_id))
            .collect()
    }

    #[test]
    fn ties_are_ordered_by_layer_then_stream() {
        let (_dir, trace) = recording(&[vec![vec![5], vec![5]], vec![vec![1, 5, 5]]]);

        let expected = [
            (1, LayerKind::GuestKernel, 0),
            (5, LayerKind::Vmm, 0),
            (5, LayerKind::Vmm, 1),
            (5, LayerKind::GuestKernel, 0),
            (5, LayerKind::GuestKernel, 0),
        ];
        assert_eq!(merged(&trace, 0), expected);
    }

    #[test]
    fn later_start_is_honoured_in_every_stream() {
        let (_dir, trace) = recording(&[vec![vec![1, 8], vec![2]], vec![vec![3, 4]]]);

        assert_eq!(merged(&trace, 4), [(4, LayerKind::GuestKernel, 0), (8, LayerKind::Vmm, 0)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn merge_is_the_sorted_union(mut streams in proptest::collection::vec(proptest::collection::vec(0..50_u64, 0..40), 0..5)) {
            streams.iter_mut().for_each(|times| times.sort_unstable());
            let mut expected: Vec<u64> = streams.concat();
            expected.sort_unstable();

            let (_dir, trace) = recording(&[streams, vec![]]);

            let times: Vec<u64> = merged(&trace, 0).into_iter().map(|(time, ..)| time).collect();
            prop_assert_eq!(times, expected);
        }
    }
}
