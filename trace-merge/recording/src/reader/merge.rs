//! One order for the records of many streams: by time, then layer, stream and position; and for the gaps between them.

use crate::reader::{Damage, Stream, StreamRecord, StreamRecords, TraceLayer};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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

/// What comes next in a merge.
///
/// While a gap of a stream is open, records of the stream may be missing. It begins after all records of the moment of
/// the stream's last record before it, and ends before all records of the moment of the stream's first record after it.
/// Where both are of one moment, the gap begins and ends right before the second one. A gap that is open when the merge
/// begins begins before all records; one that is open when the merge ends does not end.
///
/// Behind a stream that goes on, or whose recorder was killed, is a gap from where it is complete up to the end of the
/// recording. Behind that which ends last there is none.
#[derive(Clone, Copy, Debug)]
pub enum Step<'t> {
    /// A record.
    Record(MergedRecord<'t>),
    /// A gap of a stream begins.
    GapBegin {
        /// Number of the stream in the merge, as in [`MergedRecord::source`].
        source: usize,
        /// Time of the stream's last record before the gap, ticks; the merge's beginning when there is none. Of a stream that
        /// goes on, when that is later: up to when it is complete.
        time: u64,
    },
    /// The open gap of a stream ends.
    GapEnd {
        /// Number of the stream in the merge, as in [`MergedRecord::source`].
        source: usize,
        /// Time of the stream's first record after the gap, ticks.
        time: u64,
    },
}

/// Merges streams. Holds one record of each.
#[derive(Debug)]
pub struct Merge<'t> {
    sources: Vec<Source<'t>>,
    /// What comes next of all; [`NOTHING`] at the end. It is kept apart from what comes next of the others, as a stream's
    /// records often follow one another: then nothing is moved.
    first: Entry,
    /// What comes next of each other source that is not at its end.
    others: BinaryHeap<Reverse<Entry>>,
}

#[derive(Debug)]
struct Source<'t> {
    layer: &'t TraceLayer,
    stream: &'t Stream,
    records: StreamRecords<'t>,
    /// The next record; the last one that was handed on where it is [`Pending::Taken`].
    next: Option<StreamRecord<'t>>,
    /// What comes next.
    pending: Pending,
    /// When a gap ends that no record follows, ticks.
    end_without_record: Option<u64>,
}

/// What comes next of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Record,
    /// The record was handed on: what comes next is still to be read. It is not read with it, so that no record has to
    /// be put aside for another.
    Taken,
    /// A gap begins, at this time.
    GapBegin(u64),
    /// The open gap ends.
    GapEnd,
}

/// Where a step stands among those of its moment: gaps end before the records and begin after them.
#[derive(Clone, Copy)]
enum Rank {
    BeforeRecords = 0,
    Record = 1,
    AfterRecords = 2,
}

impl<'t> Merge<'t> {
    /// All streams of `layers`, from the first record that is not before `from` ticks.
    #[must_use]
    pub fn new(layers: impl IntoIterator<Item = &'t TraceLayer>, from: u64) -> Self {
        Self::within(layers, from, u64::MAX)
    }

    /// The records of all streams of `layers` that are neither before `from` nor after `to` ticks. Only packets that may
    /// hold such are read, and one beside them on either side.
    #[must_use]
    pub fn within(layers: impl IntoIterator<Item = &'t TraceLayer>, from: u64, to: u64) -> Self {
        Self::of_streams(layers, |_| true, from, to)
    }

    /// [`Merge::within`] of those streams of `layers` that are wanted.
    #[must_use]
    pub fn of_streams(
        layers: impl IntoIterator<Item = &'t TraceLayer>,
        is_wanted: impl Fn(&Stream) -> bool,
        from: u64,
        to: u64,
    ) -> Self {
        let mut sources = Vec::new();
        let mut heap = BinaryHeap::new();
        for layer in layers {
            let first_of_layer = sources.len();
            for stream in layer.streams.iter().filter(|stream| is_wanted(stream)) {
                let mut records = layer.records(stream).within(from, to);
                let next = records.next();
                let number = sources.len();
                let begin = match next {
                    Some(record) => record.after_gap.then_some(from),
                    None => records.ends_in_gap().then(|| records.goes_on_from().map_or(from, |time| time.max(from))),
                };
                let pending = begin.map_or(Pending::Record, Pending::GapBegin);
                let rank = if begin == Some(from) { Rank::BeforeRecords } else { Rank::AfterRecords };
                let first = match (begin, next) {
                    (Some(begin), _) => Some(entry(number, begin, rank)),
                    (None, next) => next.map(|record| entry(number, record.time, Rank::Record)),
                };
                heap.extend(first.map(Reverse));
                sources.push(Source { layer, stream, records, next, pending, end_without_record: None });
            }
            // What a flight recorder overwrote of a stream that is all gone was older than the rest of the others.
            let of_layer = first_of_layer..;
            let first =
                sources[of_layer.clone()].iter().filter_map(|source: &Source<'_>| Some(source.next?.time)).min();
            for source in &mut sources[of_layer] {
                let overwritten = first.filter(|_| source.stream.is_overwritten_whole());
                source.end_without_record =
                    source.stream.dropped_whole_until().map(|until| until.max(from)).or(overwritten);
            }
        }
        let first = heap.pop().map_or(NOTHING, |Reverse(first)| first);
        Self { sources, first, others: heap }
    }

    /// The merged streams, in the order of [`MergedRecord::source`].
    pub fn streams(&self) -> impl Iterator<Item = (&'t TraceLayer, &'t Stream)> {
        self.sources.iter().map(|source| (source.layer, source.stream))
    }

    /// The merged streams with what was read of them, in the order of [`MergedRecord::source`].
    pub fn sources(&self) -> impl Iterator<Item = (&'t TraceLayer, &'t Stream, &StreamRecords<'t>)> {
        self.sources.iter().map(|source| (source.layer, source.stream, &source.records))
    }

    /// What could not be read so far of all streams; complete once the merge is at its end.
    #[must_use]
    pub fn damage(&self) -> Damage {
        self.sources.iter().fold(Damage::default(), |sum, source| sum.plus(&source.records.damage()))
    }

    /// The next record, or the beginning or end of a gap, in the order of their times; see [`Step`]. The records are those
    /// that the iterator gives, in the same order.
    #[inline(always)]
    pub fn next_step(&mut self) -> Option<Step<'t>> {
        loop {
            let place = self.first;
            let index = source_of(place);
            // None has the number that stands in `NOTHING`.
            let source = self.sources.get_mut(index)?;
            match source.pending {
                Pending::Taken => match source.read_next(index) {
                    Some(next) => self.go_on(next),
                    None => self.end_first(),
                },
                Pending::Record => {
                    source.pending = Pending::Taken;
                    let (layer, stream) = (source.layer, source.stream);
                    // Field by field, as the bytes between them are copied otherwise.
                    let StreamRecord { time, schema, payload, packet, after_gap } = source.next?;
                    let record = StreamRecord { time, schema, payload, packet, after_gap };
                    return Some(Step::Record(MergedRecord { record, layer, stream, source: index }));
                }
                Pending::GapBegin(_) | Pending::GapEnd => {
                    let (step, next) = source.pass_gap(index, place);
                    match next {
                        Some(next) => self.go_on(next),
                        None => self.end_first(),
                    }
                    return step;
                }
            }
        }
    }

    /// Takes `next`, what comes next of the source whose turn it was.
    #[inline(always)]
    fn go_on(&mut self, next: Entry) {
        self.first = match self.others.peek_mut() {
            // Changes the top in place, which is one sift where a pop and a push are two.
            Some(mut top) if top.0 < next => std::mem::replace(&mut *top, Reverse(next)).0,
            _ => next,
        };
    }

    /// The source whose turn it was is at its end.
    #[cold]
    fn end_first(&mut self) {
        self.first = self.others.pop().map_or(NOTHING, |Reverse(first)| first);
    }
}

impl<'t> Source<'t> {
    /// Reads the record behind the one that was handed on. What comes next; `None` at the source's end.
    #[inline(always)]
    fn read_next(&mut self, index: usize) -> Option<Entry> {
        let last = self.next.as_ref().map_or(0, |last| last.time);
        self.next = self.records.next();
        match &self.next {
            Some(following) if !following.after_gap => {
                self.pending = Pending::Record;
                Some(entry(index, following.time, Rank::Record))
            }
            _ => self.behind(index, last),
        }
    }

    /// What comes after the record of time `last`, where that is a gap, or the source's end.
    #[cold]
    #[inline(never)]
    fn behind(&mut self, index: usize, last: u64) -> Option<Entry> {
        let (begin, rank) = match &self.next {
            // A gap between two records of one moment has no place after the one moment and before the other; nor has
            // one in a stream whose times go back.
            Some(following) if following.time <= last => (last, Rank::Record),
            Some(_) => (last, Rank::AfterRecords),
            None if !self.records.ends_in_gap() => return None,
            None => (self.records.goes_on_from().map_or(last, |time| time.max(last)), Rank::AfterRecords),
        };
        self.pending = Pending::GapBegin(begin);
        Some(entry(index, begin, rank))
    }

    /// The beginning or the end of a gap, whose turn it is, and what comes after it; its own place in the order is
    /// `place`.
    #[cold]
    #[inline(never)]
    fn pass_gap(&mut self, source: usize, place: Entry) -> (Option<Step<'t>>, Option<Entry>) {
        match (self.pending, &self.next) {
            (Pending::GapBegin(time), next) => {
                self.pending = Pending::GapEnd;
                let end = match next {
                    Some(next) if next.time > time => Some(entry(source, next.time, Rank::BeforeRecords)),
                    Some(_) => Some(place),
                    None => self
                        .end_without_record
                        .filter(|&end| self.is_reported_until(end))
                        .map(|end| entry(source, end.max(time), Rank::BeforeRecords)),
                };
                (Some(Step::GapBegin { source, time }), end)
            }
            (_, Some(next)) => {
                self.pending = Pending::Record;
                let time = next.time;
                (Some(Step::GapEnd { source, time }), Some(entry(source, time, Rank::Record)))
            }
            (_, None) => {
                let Some(time) = self.end_without_record.take() else { return (None, None) };
                let begin = self.stream.goes_on_from(time);
                self.pending = begin.map_or(self.pending, Pending::GapBegin);
                let next = begin.map(|begin| entry(source, begin, Rank::AfterRecords));
                (Some(Step::GapEnd { source, time }), next)
            }
        }
    }

    /// Whether anything is known of the time from `end` on, where a gap ends that no record follows.
    fn is_reported_until(&self, end: u64) -> bool {
        self.stream.complete_until().is_none_or(|until| until > end)
    }
}

impl<'t> Iterator for Merge<'t> {
    type Item = MergedRecord<'t>;

    #[inline(always)]
    fn next(&mut self) -> Option<MergedRecord<'t>> {
        loop {
            if let Step::Record(record) = self.next_step()? {
                return Some(record);
            }
        }
    }
}

/// Time, then rank, then source: earlier sources come first among equal times. One number, which is compared at once.
type Entry = u128;

/// Behind all of them. There are not so many sources.
const NOTHING: Entry = Entry::MAX;

/// Where the rank stands in an entry: above the source's number.
const RANK_SHIFT: u32 = 62;

#[inline]
const fn entry(source: usize, time: u64, rank: Rank) -> Entry {
    (time as u128) << 64 | (rank as u128) << RANK_SHIFT | source as u128
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the low bits are the source's number, as `entry` put it there")]
const fn source_of(entry: Entry) -> usize {
    entry as u64 as usize & ((1 << RANK_SHIFT) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerKind;
    use crate::manifest::{Manifest, StreamDescription};
    use crate::reader::Trace;
    use crate::test_trace::event;
    use crate::test_trace::manifest;
    use crate::writer::{LayerWriter, NewLayer};
    use proptest::prelude::*;
    use tempfile::TempDir;

    /// Times of the streams of a VMM layer and of a guest-kernel layer.
    type Times = [Vec<Vec<u64>>; 2];

    fn recording(times: &Times) -> (TempDir, Trace) {
        let dir = TempDir::new().unwrap();
        let mut manifest = manifest();
        for (kind, streams) in [LayerKind::GuestKernel, LayerKind::Vmm].into_iter().zip(times.iter().rev()) {
            let new = NewLayer { kind, vm: Some("vm0".into()), process: None, packet_size: 256 };
            let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
            layer.add_events(&[event(1, "test:event", &[])]).unwrap();
            for (cpu_id, times) in (0..).zip(streams) {
                times.iter().for_each(|&time| layer.record(cpu_id, time, 1, &[]).unwrap());
            }
            layer.flush().unwrap();
            manifest.layers.push(layer.layer());
        }
        Manifest::save(&manifest, dir.path()).unwrap();
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

    /// A VMM layer with the streams `times`; the stream in place `n` counts a loss after its first `losses[n]` records.
    fn lossy(times: &[Vec<u64>], losses: &[usize]) -> (TempDir, Trace) {
        let dir = TempDir::new().unwrap();
        let mut manifest = manifest();
        let new = NewLayer { kind: LayerKind::Vmm, vm: Some("vm0".into()), process: None, packet_size: 256 };
        let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
        layer.add_events(&[event(1, "test:event", &[])]).unwrap();
        for ((cpu_id, times), &records) in (0..).zip(times).zip(losses) {
            let (before, after) = times.split_at(records.min(times.len()));
            before.iter().for_each(|&time| layer.record(cpu_id, time, 1, &[]).unwrap());
            layer.add_lost(cpu_id, 1);
            after.iter().for_each(|&time| layer.record(cpu_id, time, 1, &[]).unwrap());
        }
        layer.flush().unwrap();
        manifest.layers.push(layer.layer());
        manifest.save(dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        (dir, trace)
    }

    /// The steps as text: `r` for a record, `(` and `)` for the ends of a gap, then the stream and the time.
    fn steps(trace: &Trace, from: u64, to: u64) -> Vec<String> {
        let mut merge = Merge::within(trace.layers(), from, to);
        let text = |step: Step<'_>| match step {
            Step::Record(merged) => format!("r{} {}", merged.source, merged.record.time),
            Step::GapBegin { source, time } => format!("({source} {time}"),
            Step::GapEnd { source, time } => format!("){source} {time}"),
        };
        std::iter::from_fn(|| merge.next_step()).map(text).collect()
    }

    #[test]
    fn gap_begins_after_the_records_of_its_moment_and_ends_before_them() {
        let (_dir, trace) = lossy(&[vec![3, 8, 8, 9], vec![3, 5, 8]], &[1, 0]);

        let expected = [
            "(0 0", "(1 0", ")0 3", ")1 3", "r0 3", "r1 3", "(0 3", "r1 5", ")0 8", "r0 8", "r0 8", "r1 8", "(1 8",
            "r0 9",
        ];
        assert_eq!(steps(&trace, 0, u64::MAX), expected);
    }

    #[test]
    fn gap_between_records_of_one_moment_lies_between_them() {
        let (_dir, trace) = lossy(&[vec![5, 5], vec![5]], &[1, 9]);

        assert_eq!(
            steps(&trace, 0, u64::MAX),
            ["(0 0", "(1 0", ")0 5", ")1 5", "r0 5", "(0 5", ")0 5", "r0 5", "r1 5", "(1 5"]
        );
    }

    #[test]
    fn gap_that_is_open_at_an_edge_of_the_window_is_open_there() {
        let (_dir, trace) = lossy(&[vec![10, 20], vec![5, 15, 25]], &[1, 9]);

        assert_eq!(steps(&trace, 12, 18), ["(0 12", "r1 15"]);
        assert_eq!(steps(&trace, 12, 30), ["(0 12", "r1 15", ")0 20", "r0 20", "r1 25", "(1 25"]);
        assert_eq!(steps(&trace, 10, 14), ["(0 10", ")0 10", "r0 10", "(0 10"]);
    }

    #[test]
    fn gap_of_a_stream_that_was_overwritten_whole_ends_with_the_layers_first_record() {
        let (dir, _) = recording(&[vec![vec![4, 5], vec![]], vec![]]);
        let mut manifest = Manifest::load(dir.path()).unwrap();
        let idle = StreamDescription {
            file: "stream_9".into(),
            cpu_id: 9,
            records: 0,
            packets: 0,
            overwritten: 3,
            ..manifest.layers[1].streams[0].clone()
        };
        manifest.layers[1].streams.push(idle);
        manifest.save(dir.path()).unwrap();

        let steps = steps(&Trace::open(dir.path()).unwrap(), 0, u64::MAX);

        assert_eq!(steps, ["(1 0", ")1 4", "r0 4", "r0 5"]);
    }

    /// The recording of `times`, which goes on.
    fn unfinished(times: &Times, change: impl FnOnce(&mut Manifest)) -> (TempDir, Trace) {
        let (dir, _) = recording(times);
        let mut manifest = Manifest::load(dir.path()).unwrap();
        manifest.outcome = None;
        // Every vCPU and thread has a stream.
        manifest.vms.clear();
        change(&mut manifest);
        manifest.save(dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        (dir, trace)
    }

    #[test]
    fn gap_behind_a_stream_that_goes_on_is_reported_where_others_have_records() {
        let (_dir, trace) = unfinished(&[vec![vec![1, 8], vec![2]], vec![vec![3, 4]]], |_| ());

        assert_eq!(steps(&trace, 0, u64::MAX), ["r0 1", "r1 2", "(1 2", "r2 3", "r2 4", "(2 4", "r0 8"]);
        assert_eq!(steps(&trace, 0, 4), ["r0 1", "r1 2", "(1 2", "r2 3", "r2 4"]);
        assert_eq!(steps(&trace, 5, u64::MAX), ["(1 5", "(2 5", "r0 8"]);
    }

    #[test]
    fn gap_behind_a_stream_begins_when_somebody_looked_at_it_last() {
        let times = [vec![vec![1, 8], vec![2]], vec![vec![3, 4]]];
        let (_dir, trace) = unfinished(&times, |manifest| {
            let streams = manifest.layers.iter_mut().flat_map(|layer| &mut layer.streams);
            streams.zip([6, 9, 8]).for_each(|(stream, until)| stream.complete_until = Some(until));
        });

        // Those of the guest's kernel were written first.
        assert_eq!(steps(&trace, 0, u64::MAX), ["r0 1", "r1 2", "r2 3", "r2 4", "(2 6", "r0 8"]);
        assert_eq!(steps(&trace, 5, u64::MAX), ["(2 6", "r0 8"]);
        assert_eq!(steps(&trace, 7, u64::MAX), ["(2 7", "r0 8"]);
    }

    #[test]
    fn gap_of_a_stream_that_was_overwritten_whole_ends_until_it_was_looked_at() {
        let overwritten = |complete_until| {
            let (dir, _) = recording(&[vec![vec![4, 5, 9], vec![]], vec![]]);
            let mut manifest = Manifest::load(dir.path()).unwrap();
            manifest.outcome = Some(format!("{} by a test", crate::manifest::SNAPSHOT));
            manifest.vms.clear();
            let idle = StreamDescription {
                file: "stream_9".into(),
                cpu_id: 9,
                overwritten: 3,
                complete_until,
                ..StreamDescription::default()
            };
            manifest.layers[1].streams.push(idle);
            manifest.save(dir.path()).unwrap();
            steps(&Trace::open(dir.path()).unwrap(), 0, u64::MAX)
        };

        assert_eq!(overwritten(Some(7)), ["(1 0", ")1 4", "r0 4", "r0 5", "(1 7", "r0 9"]);
        assert_eq!(overwritten(None), ["(1 0", "r0 4", "r0 5", "r0 9"]);
    }

    #[test]
    fn complete_streams_have_no_gaps() {
        let (_dir, trace) = recording(&[vec![vec![1, 8], vec![2]], vec![vec![3, 4]]]);

        assert_eq!(steps(&trace, 0, u64::MAX), ["r0 1", "r1 2", "r2 3", "r2 4", "r0 8"]);
        assert_eq!(steps(&trace, 2, 3), ["r1 2", "r2 3"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn steps_hold_each_streams_gaps_in_time_order(
            mut streams in proptest::collection::vec(proptest::collection::vec(0..50_u64, 1..40), 1..4),
            losses in proptest::collection::vec(0..40_usize, 4),
        ) {
            streams.iter_mut().for_each(|times| times.sort_unstable());
            let (_dir, trace) = lossy(&streams, &losses);
            let mut merge = Merge::new(trace.layers(), 0);
            let (mut records, mut is_open, mut latest) = (Vec::new(), vec![false; streams.len()], 0);
            while let Some(step) = merge.next_step() {
                let time = match step {
                    Step::Record(merged) => {
                        prop_assert!(!is_open[merged.source]);
                        records.push((merged.source, merged.record.time));
                        merged.record.time
                    }
                    Step::GapBegin { source, time } => {
                        prop_assert!(!std::mem::replace(&mut is_open[source], true));
                        time
                    }
                    Step::GapEnd { source, time } => {
                        prop_assert!(std::mem::replace(&mut is_open[source], false));
                        time
                    }
                };
                prop_assert!(time >= latest);
                latest = time;
            }
            let plain: Vec<_> =
                Merge::new(trace.layers(), 0).map(|merged| (merged.source, merged.record.time)).collect();
            prop_assert_eq!(records, plain);
        }

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
