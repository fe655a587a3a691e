//! Merging and decoding what a pass feeds.

use super::analysis::Gap;
use crate::completeness::{Completeness, GapTotals};
use crate::event::{Decoder, Event, Task};
use crate::timeline::{Input, Origin, Timeline};
use shared_ring::layout::{RECORD_HEADER_SIZE, padded};
use std::collections::HashMap;
use std::ptr;
use strata_recording::layer::LayerKind;
use strata_recording::reader::merge::{Merge, MergedRecord, Step};
use strata_recording::reader::totals::Totals;
use strata_recording::reader::{Stream, Trace, TraceLayer};
use strata_recording::window::Window;

/// What takes in what is read, in time order; each says whether more is wanted. There is one reader for all kinds of it:
/// made for each, the merge would be too long to become part of it.
pub(super) trait Sink<'t> {
    /// Whether anything is wanted.
    fn begin(&mut self) -> bool;

    fn record(&mut self, input: &Input<'t>) -> bool;

    fn gap(&mut self, gap: Gap) -> bool;

    fn announced(&mut self, origin: Origin, task: Task<'t>);
}

/// Merges and decodes.
pub(super) struct Reader<'t> {
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
    pub(super) fn new(trace: &'t Trace, layers: Vec<&'t TraceLayer>, window: Window, timeline: &Timeline) -> Self {
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
    pub(super) fn read(mut self, sink: &mut dyn Sink<'t>) -> (Completeness, Vec<Totals>) {
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
        if time > self.window.last() {
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
                let event = self.decoder.read(merged.source, origin.layer(), &merged.record);
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
