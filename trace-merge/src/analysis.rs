//! One pass over a recording for any number of analyses.
//!
//! An [`Analysis`] is fed event by event and state by state and keeps what its result needs, no more: memory does not grow
//! with the recording. One thread merges and decodes, another one takes in: neither waits for the other but at the ends
//! of batches.

use crate::completeness::{Completeness, GapTotals};
use crate::event::{Decoder, Event, Task};
use crate::kernel_symbols::KernelSymbols;
use crate::layer::LayerKind;
use crate::merge::{Merge, MergedRecord, Step};
use crate::reader::{Stream, Trace, TraceLayer};
use crate::timeline::{Change, ChangeKind, Input, Origin, Timeline};
use crate::totals::Totals;
use crate::window::Window;
use shared_ring::layout::{RECORD_HEADER_SIZE, padded};
use std::sync::{OnceLock, mpsc};

/// Something that is computed from a recording in one pass.
///
/// What comes before the window is not told, but the timeline knows it: a state is that which the last record before told.
pub trait Analysis {
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

    /// What it is made of, for one that is nothing but several others: they are fed in its place.
    fn parts(&mut self) -> Option<Vec<&mut dyn Analysis>> {
        None
    }

    /// Takes in a record from before the window: for what is told once and holds from then on.
    fn before(&mut self, _input: &Input<'_>, _timeline: &Timeline) {}

    /// Takes in a record of the window, in time order. The timeline has taken it in already.
    fn record(&mut self, _input: &Input<'_>, _timeline: &Timeline) {}

    /// Takes in a state that has ended, cut to the window: the part of it in which anything was recorded.
    fn change(&mut self, _change: &Change, _timeline: &Timeline) {}

    /// Takes in that records of a stream are missing from `time` on, ticks, or that they go on. Told for the time before
    /// the window, too.
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
    /// By VM: the symbols of its guest's kernel, once they were asked for.
    symbols: OnceLock<Vec<KernelSymbols>>,
}

impl Passed {
    /// The symbols of the kernel of the guest `vm`. They may be recorded after what they name, so that the whole recording
    /// is looked through for them when they are asked for first.
    pub fn kernel_symbols(&self, trace: &Trace, vm: usize) -> Option<&KernelSymbols> {
        let of = |vm: &crate::timeline::Vm| KernelSymbols::of(trace.kernel_layers(&vm.name));
        self.symbols.get_or_init(|| self.timeline.vms.iter().map(of).collect()).get(vm)
    }
}

/// What goes from the thread that reads to the one that takes in.
#[derive(Clone, Copy, Debug)]
enum Item<'t> {
    Record(Input<'t>),
    Gap(Gap),
    /// Whose turn it is on a guest's CPU, as the switch to come tells.
    Foretold(Origin, Task<'t>),
}

/// Items that are handed on at once: enough that handing on costs nothing, few enough that they stay in the cache.
const BATCH: usize = 1024;
/// Batches on their way.
const BATCHES: usize = 4;

/// Reads `trace` once, and feeds `analyses` with what lies in `window`.
#[must_use]
pub fn pass(trace: &Trace, window: Window, analyses: &mut [&mut dyn Analysis]) -> Passed {
    let wanted =
        |layer: &&TraceLayer| analyses.iter().any(|analysis| analysis.layers().contains(&layer.description.kind));
    let layers: Vec<&TraceLayer> = trace.layers().iter().filter(wanted).collect();
    let mut feed = Feed::new(analyses);
    let mut timeline = Timeline::new(trace);
    // What was recorded lasts from the first record to the last one.
    let part = timeline.span.and_then(|span| span.intersection(&window));
    // The moment of the last record is in it.
    let moments =
        timeline.span.and_then(|span| Window { end: span.end.saturating_add(1), ..span }.intersection(&window));
    let none = Window { begin: window.begin, end: window.begin };
    let told = Told { window, states: part.unwrap_or(none), moments: moments.unwrap_or(none) };
    let reader = Reader::new(trace, layers, window, &timeline);
    let (completeness, totals) = std::thread::scope(|scope| {
        let (full, to_take) = mpsc::sync_channel(BATCHES);
        let (empty, to_fill) = mpsc::channel();
        let reading = scope.spawn(move || reader.read(&full, &to_fill));
        'all: for mut batch in to_take {
            for item in &batch {
                if !feed.take(item, &mut timeline, told) {
                    break 'all;
                }
            }
            batch.clear();
            // A reader that is done takes none back.
            let _ = empty.send(batch);
        }
        // A reader that waits for a batch would wait for ever if none could tell it that there will be no more.
        drop(empty);
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if let Some(span) = timeline.span {
        timeline.finish(span.end.min(window.end));
        feed.tell(&timeline, told);
    }
    Passed { timeline, window: part, completeness, totals, symbols: OnceLock::new() }
}

/// What of the recording is told.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// Which records.
    window: Window,
    /// When states last.
    states: Window,
    /// When they change.
    moments: Window,
}

/// Places in [`Feed::analyses`], in order.
type Takers = Vec<usize>;

/// The analyses that are fed, and which of them takes in what.
struct Feed<'a> {
    analyses: Vec<&'a mut dyn Analysis>,
    /// By kind of change.
    of_changes: [Takers; ChangeKind::ALL.len()],
    /// By source of the merge, and number of the event type: twice that, and one more for records that are no [`Event`].
    of_records: Vec<Vec<Option<Takers>>>,
}

impl<'a> Feed<'a> {
    fn new(analyses: &'a mut [&mut dyn Analysis]) -> Self {
        let mut fed: Vec<&mut dyn Analysis> = Vec::new();
        for analysis in analyses.iter_mut() {
            // Asked twice, since what is borrowed for the parts is not given back if there are none.
            if analysis.parts().is_some() {
                fed.extend(analysis.parts().into_iter().flatten());
            } else {
                fed.push(&mut **analysis);
            }
        }
        let of_changes = ChangeKind::ALL.map(|kind| places(&fed, |analysis| analysis.takes_change(kind)));
        Self { analyses: fed, of_changes, of_records: Vec::new() }
    }

    /// Takes in `item`; whether more is wanted.
    fn take(&mut self, item: &Item<'_>, timeline: &mut Timeline, told: Told) -> bool {
        match item {
            Item::Record(input) => {
                if input.time() > told.window.end && !self.analyses.iter().any(|analysis| analysis.is_unfinished()) {
                    return false;
                }
                timeline.apply(input);
                self.tell(timeline, told);
                self.record(input, timeline, told.window);
            }
            Item::Gap(gap) => {
                match gap.begins {
                    true => timeline.begin_gap(gap.time, gap.origin),
                    false => timeline.end_gap(gap.time, gap.origin),
                }
                self.tell(timeline, told);
                self.analyses.iter_mut().for_each(|analysis| analysis.gap(gap, timeline));
            }
            Item::Foretold(origin, task) => timeline.foretell(*origin, *task),
        }
        true
    }

    /// Hands a record to those that take it.
    fn record(&mut self, input: &Input<'_>, timeline: &Timeline, window: Window) {
        let number = 2 * usize::from(input.record.schema.description().id) + usize::from(input.event.is_none());
        if self.of_records.len() <= input.source {
            self.of_records.resize(input.source + 1, Vec::new());
        }
        let Some(of_source) = self.of_records.get_mut(input.source) else { return };
        if of_source.len() <= number {
            of_source.resize(number + 1, None);
        }
        let Some(known) = of_source.get_mut(number) else { return };
        let takers = known.get_or_insert_with(|| {
            let layer = input.origin.layer();
            places(&self.analyses, |analysis| analysis.layers().contains(&layer) && analysis.takes_record(input))
        });
        let (is_before, is_behind) = (input.time() < window.begin, input.time() >= window.end);
        for &mut place in takers {
            let Some(analysis) = self.analyses.get_mut(place) else { continue };
            if is_before {
                analysis.before(input, timeline);
            } else if !is_behind || analysis.is_unfinished() {
                analysis.record(input, timeline);
            }
        }
    }

    /// Tells the changes: what of them is to be told, and what lies behind it to those that are unfinished.
    fn tell(&mut self, timeline: &Timeline, told: Told) {
        for change in timeline.changes() {
            let kind = change.kind();
            let window = match kind {
                ChangeKind::Vcpu | ChangeKind::Cpu | ChangeKind::Task => told.states,
                ChangeKind::TaskName | ChangeKind::TaskState => told.moments,
            };
            let Window { begin, end } = change.window();
            // All of it, mostly: it is not copied then.
            let is_inside = begin >= window.begin && (end < window.end || (end == window.end && begin < end));
            let goes_on = end > window.end;
            for &place in self.of_changes.get(kind as usize).into_iter().flatten() {
                let Some(analysis) = self.analyses.get_mut(place) else { continue };
                if is_inside {
                    analysis.change(change, timeline);
                    continue;
                }
                let end = if goes_on && analysis.is_unfinished() { u64::MAX } else { window.end };
                if let Some(part) = change.within(&Window { end, ..window }) {
                    analysis.change(&part, timeline);
                }
            }
        }
    }
}

/// Where those of `analyses` are that take something.
fn places(analyses: &[&mut dyn Analysis], takes: impl Fn(&dyn Analysis) -> bool) -> Takers {
    analyses.iter().enumerate().filter(|(_, analysis)| takes(&***analysis)).map(|(place, _)| place).collect()
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
        }
    }

    /// Fills batches until the recording is at its end or nobody takes them.
    fn read(
        mut self,
        full: &mpsc::SyncSender<Vec<Item<'t>>>,
        to_fill: &mpsc::Receiver<Vec<Item<'t>>>,
    ) -> (Completeness, Vec<Totals>) {
        let mut made = 0;
        let mut is_at_end = false;
        while !is_at_end {
            let mut batch = match to_fill.try_recv() {
                Ok(batch) => batch,
                Err(_) if made <= BATCHES => {
                    made += 1;
                    Vec::with_capacity(BATCH + 2)
                }
                Err(_) => match to_fill.recv() {
                    Ok(batch) => batch,
                    Err(_) => break,
                },
            };
            while batch.len() < BATCH {
                let Some(step) = self.merge.next_step() else {
                    is_at_end = true;
                    break;
                };
                self.gaps.step(&step);
                self.add(step, &mut batch);
            }
            if full.send(batch).is_err() {
                break;
            }
        }
        let totals = self.totals();
        (self.gaps.finish(&self.merge, self.trace.manifest()), totals)
    }

    /// What the layers hold.
    fn totals(&self) -> Vec<Totals> {
        let is_whole = self.window.begin == self.trace.start().unwrap_or(0) && self.window.end == u64::MAX;
        let mut totals = vec![Totals::default(); self.trace.layers().len()];
        for ((layer, stream, records), counted) in self.merge.sources().zip(&self.counts) {
            let place = self.trace.layers().iter().position(|known| std::ptr::eq(known, layer));
            let Some(sum) = place.and_then(|place| totals.get_mut(place)) else { continue };
            let bytes =
                if is_whole || self.window == Window::ALL { records.counts().content_bytes } else { counted.bytes };
            *sum = sum.plus(&Totals {
                bytes,
                packets: records.counts().packets,
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
        if let Some(counts) = self.counts.get_mut(merged.source)
            && (self.window.begin..=self.window.end).contains(&time)
        {
            counts.events += 1;
            counts.bytes += (RECORD_HEADER_SIZE + padded(merged.record.payload.len())) as u64;
            counts.first.get_or_insert(time);
            counts.last = counts.last.max(Some(time));
        }
    }

    #[inline]
    fn add(&mut self, step: Step<'t>, batch: &mut Vec<Item<'t>>) {
        match step {
            Step::Record(merged) => {
                self.count(&merged);
                let Some(&Some(origin)) = self.origins.get(merged.source) else { return };
                if let Origin::Guest { .. } = origin
                    && let Some(met) = self.met.get_mut(merged.source)
                    && !std::mem::replace(met, true)
                    && let Some(task) = self.next_switch(&merged)
                {
                    batch.push(Item::Foretold(origin, task));
                }
                let event = self.decoder.event(&merged);
                batch.push(Item::Record(Input { origin, source: merged.source, event, record: merged.record }));
            }
            Step::GapBegin { source, time } => self.gap(source, time, true, batch),
            Step::GapEnd { source, time } => self.gap(source, time, false, batch),
        }
    }

    fn gap(&mut self, source: usize, time: u64, begins: bool, batch: &mut Vec<Item<'t>>) {
        let Some(&Some(origin)) = self.origins.get(source) else { return };
        if let Some(met) = self.met.get_mut(source) {
            *met = false;
        }
        batch.push(Item::Gap(Gap { time, origin, source, begins }));
    }

    /// Whom the first switch from `merged` on takes the CPU from, if no records are missing before it. The stream is read
    /// ahead for that: the switch may be far away.
    fn next_switch(&mut self, merged: &MergedRecord<'t>) -> Option<Task<'t>> {
        let &(layer, stream) = self.streams.get(merged.source)?;
        if !crate::event::is_recorded(layer, crate::event::name::SWITCH) {
            return None;
        }
        for (place, record) in layer.records(stream).starting_at(merged.record.time).enumerate() {
            if record.after_gap && place > 0 {
                return None;
            }
            if let Some(Event::Switch { prev, .. }) = self.decoder.read(merged.source, LayerKind::GuestKernel, &record)
            {
                return Some(prev);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
