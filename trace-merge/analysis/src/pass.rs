//! One pass over a recording for any number of analyses.
//!
//! An [`Analysis`] is fed event by event and state by state and keeps what its result needs, no more: memory does not grow
//! with the recording. One thread merges and decodes. The analyses are shared out among others, and each keeps the
//! timeline for itself: nobody waits for anybody but at the ends of batches. On one processor one thread does it all.

use crate::completeness::{Completeness, GapTotals};
use crate::event::{Decoder, Event, Task};
use crate::kernel_symbols::KernelSymbols;
use crate::timeline::{Change, ChangeKind, Input, Origin, Timeline};
use shared_ring::layout::{RECORD_HEADER_SIZE, padded};
use std::collections::HashMap;
use std::num::NonZero;
use std::ptr;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use strata_recording::layer::LayerKind;
use strata_recording::reader::merge::{Merge, MergedRecord, Step};
use strata_recording::reader::totals::Totals;
use strata_recording::reader::{Stream, Trace, TraceLayer};
use strata_recording::window::Window;

/// Something that is computed from a recording in one pass.
///
/// What comes before the window is not told, but the timeline knows it: a state is that which the last record before told.
pub trait Analysis: Send {
    /// The kinds of layers whose records it asks for. The timeline needs kernels and VMMs.
    fn layers(&self) -> &'static [LayerKind] {
        &[LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestKernel]
    }

    /// Whether it takes in records like `input`, of one of its layers: asked once for each event type of a stream, so that
    /// the answer may only go by where the record comes from and which [`Event`] it is, or that it is none.
    fn takes_record(&self, _input: &Input<'_>) -> bool {
        true
    }

    /// Whether it takes in changes like `change`: asked once for each kind of change.
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        true
    }

    /// Whether it asks for states, be it as changes or by looking at the timeline: what vCPUs, and CPUs and tasks of guests
    /// do. Where nobody does, they are not worked out. Who runs, and who is who, the timeline knows all the same.
    fn needs_states(&self) -> bool {
        true
    }

    /// What it is made of, for one that is nothing but several others: they are fed in its place.
    fn parts(&mut self) -> Option<Vec<&mut dyn Analysis>> {
        None
    }

    /// Takes in a record from before the window: for what is recorded once and holds from then on.
    fn before(&mut self, _input: &Input<'_>, _timeline: &Timeline) {}

    /// Takes in a record of the window, in time order. The timeline has taken it in already.
    fn record(&mut self, _input: &Input<'_>, _timeline: &Timeline) {}

    /// Takes in a state that has ended, cut to the window: the part of it in which anything was recorded.
    fn change(&mut self, _change: &Change, _timeline: &Timeline) {}

    /// Takes in that records of a stream are missing from a time on, or that they go on. Told for the time before the
    /// window, too.
    fn gap(&mut self, _gap: &Gap, _timeline: &Timeline) {}

    /// Whether it asks for records behind the window, too: something that began in it is not over.
    fn is_unfinished(&self) -> bool {
        false
    }
}

/// An edge of a period in which records of a stream are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Trace clock, ticks.
    pub time: u64,
    /// The stream.
    pub origin: Origin,
    /// Number of the stream in the merge.
    pub source: usize,
    /// Whether the period begins, and does not end.
    pub begins: bool,
}

/// What a pass found.
#[derive(Debug)]
pub struct Passed {
    /// The timeline at the end of the pass.
    pub timeline: Timeline,
    /// The part of the recording that was looked at; `None` when it holds no record of kernels and VMMs.
    pub window: Option<Window>,
    /// What was damaged, lost or is unknown in the layers that were read.
    pub completeness: Completeness,
    /// What each layer that was read holds in the window, in the order of [`Trace::layers`].
    pub totals: Vec<Totals>,
    /// By VM: the symbols of its guest's kernel, once they were requested.
    symbols: OnceLock<Vec<KernelSymbols>>,
}

impl Passed {
    /// The symbols of the kernel of the guest `vm`. They may be recorded after what they name, so that the whole recording
    /// is looked through for them when they are requested first.
    pub fn kernel_symbols(&self, trace: &Trace, vm: usize) -> Option<&KernelSymbols> {
        let of = |vm: &crate::timeline::Vm| KernelSymbols::of_guest(trace, &vm.name);
        self.symbols.get_or_init(|| self.timeline.vms.iter().map(of).collect()).get(vm)
    }
}

/// What goes from the thread that reads to the one that takes in.
#[derive(Clone, Copy, Debug)]
enum Item<'t> {
    Record(Input<'t>),
    Gap(Gap),
    /// Whose turn it is on a guest's CPU, as the switch to come tells.
    Announced(Origin, Task<'t>),
}

impl Item<'_> {
    /// Its time, ticks; `None` of what has none.
    const fn time(&self) -> Option<u64> {
        match self {
            Self::Record(input) => Some(input.record.time),
            Self::Gap(gap) => Some(gap.time),
            Self::Announced(..) => None,
        }
    }
}

/// Items that are handed on at once: enough that handing on costs nothing, few enough that they stay in the cache.
const BATCH: usize = 1024;
/// Bytes of records that are handed on at once. What is on its way is looked at once more, so that its pages have to stay.
const BATCH_BYTES: usize = 1 << 16;
/// Batches on their way to each that takes them in.
const BATCHES: usize = 4;
/// Threads among which analyses are shared out, at most: each keeps a timeline, and more would wait for the one that reads.
const FEEDS: usize = 4;

/// A batch on its way to all that take it in; the last of them gives it back.
type Batch<'t> = Arc<Vec<Item<'t>>>;

/// Reads `trace` once, and feeds `analyses` with what lies in `window`.
#[must_use]
pub fn pass(trace: &Trace, window: Window, analyses: &mut [&mut dyn Analysis]) -> Passed {
    pass_reporting(trace, window, analyses, |_| ())
}

/// [`pass`], which tells `report` now and then up to where it has read, ticks.
#[must_use]
pub fn pass_reporting(
    trace: &Trace,
    window: Window,
    analyses: &mut [&mut dyn Analysis],
    report: impl FnMut(u64),
) -> Passed {
    // One of the processors is busy with reading.
    let others = thread::available_parallelism().map_or(1, NonZero::get).saturating_sub(1);
    pass_on(others.min(FEEDS), trace, window, analyses, report)
}

/// [`pass`] with the analyses shared out among `feeds` threads beside this one; with none, this one does all. What they
/// find does not depend on it.
fn pass_on(
    feeds: usize,
    trace: &Trace,
    window: Window,
    analyses: &mut [&mut dyn Analysis],
    report: impl FnMut(u64),
) -> Passed {
    let wanted =
        |layer: &&TraceLayer| analyses.iter().any(|analysis| analysis.layers().contains(&layer.description.kind));
    let layers: Vec<&TraceLayer> = trace.layers().iter().filter(wanted).collect();
    let mut timeline = Timeline::new(trace);
    if !analyses.iter().any(|analysis| analysis.needs_states()) {
        timeline.leave_out_states();
    }
    // What was recorded lasts from the first record to the last one.
    let part = timeline.span.and_then(|span| span.intersection(&window));
    // The moment of the last record is in it.
    let moments =
        timeline.span.and_then(|span| Window { end: span.end.saturating_add(1), ..span }.intersection(&window));
    let none = Window { begin: window.begin, end: window.begin };
    let reported = Reported { window, states: part.unwrap_or(none), moments: moments.unwrap_or(none) };
    let reader = Reader::new(trace, layers, window, &timeline);
    let (timeline, completeness, totals) = match feeds {
        0 => {
            let fed = shared_out(analyses, 1).pop().unwrap_or_default();
            let mut alone = Alone { feed: Feed::new(fed, timeline, reported), items: 0, until: None, report };
            let (completeness, totals) = reader.read(&mut alone);
            alone.until.into_iter().for_each(&mut alone.report);
            (alone.feed.finish(), completeness, totals)
        }
        _ => thread::scope(|scope| {
            let (empty, to_fill) = mpsc::channel();
            let (full, taking): (Vec<_>, Vec<_>) = shared_out(analyses, feeds)
                .into_iter()
                .map(|fed| {
                    let (full, to_take) = mpsc::sync_channel(BATCHES);
                    let (feed, empty) = (Feed::new(fed, timeline.clone(), reported), empty.clone());
                    (full, scope.spawn(move || feed.take_all(&to_take, &empty)))
                })
                .unzip();
            let mut batches = Batches { full, empty: to_fill, batch: Vec::with_capacity(BATCH + 2), bytes: 0, report };
            let (completeness, totals) = reader.read(&mut batches);
            batches.finish();
            let taken =
                taking.into_iter().map(|feed| feed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            // That of whoever went on for longest behind the window, as if one had taken in everything.
            let (_, last) = taken.max_by_key(|&(items, _)| items).unwrap_or((0, timeline));
            (last, completeness, totals)
        }),
    };
    Passed { timeline, window: part, completeness, totals, symbols: OnceLock::new() }
}

/// The analyses, with the parts of those that have some in their place, in at most `feeds` groups.
fn shared_out<'a>(analyses: &'a mut [&mut dyn Analysis], feeds: usize) -> Vec<Vec<&'a mut dyn Analysis>> {
    let mut groups: Vec<Vec<&mut dyn Analysis>> = Vec::new();
    let mut turn = 0;
    let mut add = |analysis: &'a mut dyn Analysis| {
        match groups.get_mut(turn % feeds.max(1)) {
            Some(group) => group.push(analysis),
            None => groups.push(vec![analysis]),
        }
        turn += 1;
    };
    for analysis in analyses {
        // Asked twice, since what is borrowed for the parts is not given back if there are none.
        if analysis.parts().is_some() {
            analysis.parts().into_iter().flatten().for_each(&mut add);
        } else {
            add(&mut **analysis);
        }
    }
    groups
}

/// What of the recording is reported.
#[derive(Clone, Copy, Debug)]
struct Reported {
    /// Which records.
    window: Window,
    /// When states last.
    states: Window,
    /// When they change.
    moments: Window,
}

/// Places in [`Feed::analyses`], in order.
type Takers = Vec<usize>;

/// Analyses that are fed, which of them takes in what, and the timeline that they look at.
struct Feed<'a> {
    analyses: Vec<&'a mut dyn Analysis>,
    timeline: Timeline,
    reported: Reported,
    /// By kind of change.
    of_changes: [Takers; ChangeKind::ALL.len()],
    /// By source of the merge, and number of the event type: twice that, and one more for records that are no [`Event`].
    of_records: Vec<Vec<Option<Takers>>>,
}

impl<'a> Feed<'a> {
    fn new(analyses: Vec<&'a mut dyn Analysis>, mut timeline: Timeline, reported: Reported) -> Self {
        let of_changes = ChangeKind::ALL.map(|kind| places(&analyses, |analysis| analysis.takes_change(kind)));
        timeline.tell_only(|kind| of_changes.get(kind as usize).is_some_and(|takers| !takers.is_empty()));
        Self { analyses, timeline, reported, of_changes, of_records: Vec::new() }
    }

    /// Takes in batches until there are no more or none is wanted, and gives back those that nobody else has: how many
    /// items it took in, and the timeline at the end.
    fn take_all<'t>(
        mut self,
        batches: &mpsc::Receiver<Batch<'t>>,
        empty: &mpsc::Sender<Vec<Item<'t>>>,
    ) -> (u64, Timeline) {
        let mut items = 0;
        'all: for batch in batches {
            for item in batch.iter() {
                if !self.take(item) {
                    break 'all;
                }
                items += 1;
            }
            if let Some(mut batch) = Arc::into_inner(batch) {
                batch.clear();
                // A reader that is done takes none back.
                let _ = empty.send(batch);
            }
        }
        (items, self.finish())
    }

    /// Reports what lasts up to the end; the timeline there.
    fn finish(mut self) -> Timeline {
        if let Some(span) = self.timeline.span {
            self.timeline.finish(span.end.min(self.reported.window.end));
            self.report();
        }
        self.timeline
    }

    /// Takes in `item`; whether more is wanted.
    fn take(&mut self, item: &Item<'_>) -> bool {
        match item {
            Item::Record(input) => return self.take_record(input),
            Item::Gap(gap) => self.take_gap(gap),
            Item::Announced(origin, task) => self.timeline.announce(*origin, *task),
        }
        true
    }

    /// Takes in a record; whether more is wanted.
    #[inline]
    fn take_record(&mut self, input: &Input<'_>) -> bool {
        if input.time() > self.reported.window.end && !self.analyses.iter().any(|analysis| analysis.is_unfinished()) {
            return false;
        }
        self.timeline.apply(input);
        if !self.timeline.changes().is_empty() {
            self.report();
        }
        self.record(input);
        true
    }

    fn take_gap(&mut self, gap: &Gap) {
        // A stream may be known for longer than any record was made: no state lasts there.
        if gap.begins && self.timeline.span.is_some_and(|span| gap.time > span.end) {
            return;
        }
        match gap.begins {
            true => self.timeline.begin_gap(gap.time, gap.origin),
            false => self.timeline.end_gap(gap.time, gap.origin),
        }
        self.report();
        for analysis in &mut self.analyses {
            if gap.time <= self.reported.window.end || analysis.is_unfinished() {
                analysis.gap(gap, &self.timeline);
            }
        }
    }

    /// Hands a record to those that take it.
    #[inline]
    fn record(&mut self, input: &Input<'_>) {
        let number = 2 * usize::from(input.record.schema.description().id) + usize::from(input.event.is_none());
        let known = self.of_records.get(input.source).and_then(|of_source| of_source.get(number));
        if !matches!(known, Some(Some(_))) {
            self.find_out(input, number);
        }
        let known = self.of_records.get(input.source).and_then(|of_source| of_source.get(number));
        let Some(Some(takers)) = known else { return };
        if takers.is_empty() {
            return;
        }
        let Window { begin, end } = self.reported.window;
        let (is_before, is_behind) = (input.time() < begin, input.time() >= end);
        for &place in takers {
            let Some(analysis) = self.analyses.get_mut(place) else { continue };
            if is_before {
                analysis.before(input, &self.timeline);
            } else if !is_behind || analysis.is_unfinished() {
                analysis.record(input, &self.timeline);
            }
        }
    }

    /// Finds out who takes records like `input`.
    #[cold]
    #[inline(never)]
    fn find_out(&mut self, input: &Input<'_>, number: usize) {
        if self.of_records.len() <= input.source {
            self.of_records.resize(input.source + 1, Vec::new());
        }
        let Some(of_source) = self.of_records.get_mut(input.source) else { return };
        if of_source.len() <= number {
            of_source.resize(number + 1, None);
        }
        let layer = input.origin.layer();
        let takes = |analysis: &dyn Analysis| analysis.layers().contains(&layer) && analysis.takes_record(input);
        if let Some(takers) = of_source.get_mut(number) {
            *takers = Some(places(&self.analyses, takes));
        }
    }

    /// Reports the changes: those in the window, and what lies behind it to those that are unfinished.
    fn report(&mut self) {
        for change in self.timeline.changes() {
            let kind = change.kind();
            let takers = self.of_changes.get(kind as usize).map_or(&[][..], Vec::as_slice);
            if takers.is_empty() {
                continue;
            }
            let window = match kind {
                ChangeKind::Vcpu | ChangeKind::Cpu | ChangeKind::Task => self.reported.states,
                ChangeKind::TaskName | ChangeKind::TaskState => self.reported.moments,
            };
            let Window { begin, end } = change.window();
            // All of it, mostly: it is not copied then.
            let is_inside = begin >= window.begin && (end < window.end || (end == window.end && begin < end));
            let goes_on = end > window.end;
            for &place in takers {
                let Some(analysis) = self.analyses.get_mut(place) else { continue };
                if is_inside {
                    analysis.change(change, &self.timeline);
                    continue;
                }
                let end = if goes_on && analysis.is_unfinished() { u64::MAX } else { window.end };
                if let Some(part) = change.within(&Window { end, ..window }) {
                    analysis.change(&part, &self.timeline);
                }
            }
        }
    }
}

/// Where those of `analyses` are that take something.
fn places(analyses: &[&mut dyn Analysis], takes: impl Fn(&dyn Analysis) -> bool) -> Takers {
    analyses.iter().enumerate().filter(|(_, analysis)| takes(&***analysis)).map(|(place, _)| place).collect()
}

/// What takes in what is read, in time order; each says whether more is wanted. There is one reader for all kinds of it:
/// made for each, the merge would be too long to become part of it.
trait Sink<'t> {
    /// Whether anything is wanted.
    fn begin(&mut self) -> bool;

    fn record(&mut self, input: &Input<'t>) -> bool;

    fn gap(&mut self, gap: Gap) -> bool;

    fn announced(&mut self, origin: Origin, task: Task<'t>);
}

/// Takes in each item where it was read.
struct Alone<'a, R> {
    feed: Feed<'a>,
    items: usize,
    /// Time of the last record, ticks.
    until: Option<u64>,
    /// What is told now and then up to where was read, ticks.
    report: R,
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
struct Batches<'t, R> {
    /// To those that take more.
    full: Vec<mpsc::SyncSender<Batch<'t>>>,
    /// Batches to be filled once more.
    empty: mpsc::Receiver<Vec<Item<'t>>>,
    batch: Vec<Item<'t>>,
    /// Bytes of its records.
    bytes: usize,
    /// As that of [`Alone`].
    report: R,
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
    fn finish(mut self) {
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

/// Merges and decodes.
struct Reader<'t> {
    trace: &'t Trace,
    window: Window,
    merge: Merge<'t>,
    streams: Vec<(&'t TraceLayer, &'t Stream)>,
    /// By source of the merge; `None` for a VM that the manifest does not name.
    origins: Vec<Option<Origin>>,
    decoder: Decoder,
    /// By source of the merge: whether its first record, or its first one after a gap, was met.
    met: Vec<bool>,
    gaps: GapTotals,
    /// By source of the merge: records in the window, their bytes, and the first and last time.
    counts: Vec<Totals>,
    /// By source of the merge: packets that had been read with the first record behind the window. How much farther the
    /// reader goes depends on who takes in what it reads.
    packets: Vec<u64>,
}

impl<'t> Reader<'t> {
    fn new(trace: &'t Trace, layers: Vec<&'t TraceLayer>, window: Window, timeline: &Timeline) -> Self {
        let merge = Merge::new(layers, 0);
        let streams: Vec<(&TraceLayer, &Stream)> = merge.streams().collect();
        let origins = streams.iter().map(|(layer, stream)| timeline.origin(layer, stream.description.cpu_id)).collect();
        let sources = streams.len();
        Self {
            trace,
            window,
            merge,
            streams,
            origins,
            decoder: Decoder::default(),
            met: vec![false; sources],
            gaps: GapTotals::new(sources, window),
            counts: vec![Totals::default(); sources],
            packets: Vec::new(),
        }
    }

    /// Reads until the recording is at its end or `sink` wants no more.
    fn read(mut self, sink: &mut dyn Sink<'t>) -> (Completeness, Vec<Totals>) {
        let mut is_wanted = sink.begin();
        while is_wanted && let Some(step) = self.merge.next_step() {
            self.gaps.step(&step);
            is_wanted = self.add(&step, sink);
        }
        let totals = self.totals();
        (self.gaps.finish(&self.merge, self.trace.manifest()), totals)
    }

    /// What the layers hold.
    fn totals(&self) -> Vec<Totals> {
        let is_whole = self.window.begin == self.trace.start().unwrap_or(0) && self.window.end == u64::MAX;
        let mut totals = vec![Totals::default(); self.trace.layers().len()];
        let places: HashMap<*const TraceLayer, usize> =
            self.trace.layers().iter().enumerate().map(|(place, layer)| (ptr::from_ref(layer), place)).collect();
        for (source, ((layer, stream, records), counted)) in self.merge.sources().zip(&self.counts).enumerate() {
            let place = places.get(&ptr::from_ref(layer));
            let Some(sum) = place.and_then(|place| totals.get_mut(*place)) else { continue };
            let bytes =
                if is_whole || self.window == Window::ALL { records.counts().content_bytes } else { counted.bytes };
            *sum = sum.plus(&Totals {
                bytes,
                packets: self.packets.get(source).copied().unwrap_or(records.counts().packets),
                lost: records.lost(),
                rejected_bytes: records.rejected_bytes(),
                corrupt_streams: u64::from(stream.description.corrupt),
                absent_streams: u64::from(stream.absent),
                damage: records.damage(),
                ..*counted
            });
        }
        totals
    }

    fn count(&mut self, merged: &MergedRecord<'t>) {
        let time = merged.record.time;
        if time > self.window.end {
            self.count_packets();
        } else if time >= self.window.begin
            && let Some(counts) = self.counts.get_mut(merged.source)
        {
            counts.events += 1;
            counts.bytes += (RECORD_HEADER_SIZE + padded(merged.record.payload.len())) as u64;
            counts.first.get_or_insert(time);
            counts.last = counts.last.max(Some(time));
        }
    }

    #[cold]
    fn count_packets(&mut self) {
        if self.packets.is_empty() {
            self.packets = self.merge.sources().map(|(_, _, records)| records.counts().packets).collect();
        }
    }

    /// Hands a step on; whether more is wanted.
    #[inline(always)]
    fn add(&mut self, step: &Step<'t>, sink: &mut dyn Sink<'t>) -> bool {
        match *step {
            Step::Record(ref merged) => {
                self.count(merged);
                let Some(&Some(origin)) = self.origins.get(merged.source) else { return true };
                if let Origin::Guest { .. } = origin
                    && self.met.get(merged.source) == Some(&false)
                {
                    self.meet(merged, origin, sink);
                }
                let event = self.decoder.event(merged);
                sink.record(&Input { origin, source: merged.source, event, record: merged.record })
            }
            Step::GapBegin { source, time } => self.gap(source, time, true, sink),
            Step::GapEnd { source, time } => self.gap(source, time, false, sink),
        }
    }

    /// Takes in the first record of a guest's CPU, or its first one after a gap.
    #[inline(never)]
    fn meet(&mut self, merged: &MergedRecord<'t>, origin: Origin, sink: &mut dyn Sink<'t>) {
        if let Some(met) = self.met.get_mut(merged.source) {
            *met = true;
        }
        if let Some(task) = self.next_switch(merged) {
            sink.announced(origin, task);
        }
    }

    #[inline(never)]
    fn gap(&mut self, source: usize, time: u64, begins: bool, sink: &mut dyn Sink<'t>) -> bool {
        let Some(&Some(origin)) = self.origins.get(source) else { return true };
        if let Some(met) = self.met.get_mut(source) {
            *met = false;
        }
        sink.gap(Gap { time, origin, source, begins })
    }

    /// Whom the first switch from `merged` on takes the CPU from, if no records are missing before it. The stream is read
    /// ahead for that: the switch may be far away.
    fn next_switch(&mut self, merged: &MergedRecord<'t>) -> Option<Task<'t>> {
        let &(layer, stream) = self.streams.get(merged.source)?;
        if !crate::event::is_recorded(layer, crate::event::name::SWITCH) {
            return None;
        }
        let source = merged.source;
        let records = || layer.records(stream).starting_at(merged.record.time);
        let mut prev = None;
        for (place, record) in records().enumerate() {
            if record.after_gap && place > 0 {
                return None;
            }
            if let Some(Event::Switch { prev: switched_out, .. }) =
                self.decoder.read(source, LayerKind::GuestKernel, &record)
            {
                prev = Some(switched_out);
                break;
            }
        }
        let prev = prev?;
        // It may get its name on the way.
        if crate::event::is_recorded(layer, crate::event::name::RENAME) {
            for record in records() {
                match self.decoder.read(source, LayerKind::GuestKernel, &record) {
                    Some(Event::Rename(rename)) if rename.ends_with(prev) => {
                        return Some(Task { comm: rename.before, ..prev });
                    }
                    Some(Event::Switch { .. }) => break,
                    _ => {}
                }
            }
        }
        Some(prev)
    }
}

#[cfg(test)]
mod tests;
