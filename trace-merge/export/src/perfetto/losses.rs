//! What is not there: periods in which records of a stream may be missing, how many were lost, and a note of it all.

use super::host_clocks::HostClocks;
use super::kernel::running::NOT_RECORDED;
use super::packets::{Machine, Name, PacketWriter, number, text};
use super::proto::TrackEvent;
use super::tracks::{self, Kind, uuid};
use crate::stream_name;
use std::collections::BTreeMap;
use std::io::Write;
use strata_analysis::Gap;
use strata_recording::clock::Clock;
use strata_recording::reader::merge::Merge;
use strata_recording::reader::{Stream, Trace};
use strata_recording::text::terminal::harmless;
use strata_recording::window::Window;

/// Draws gaps and losses.
#[derive(Debug)]
pub(super) struct Losses<'t> {
    /// By source of the merge.
    streams: Vec<Counted<'t>>,
    /// By source: when the gap began that lasts, ns.
    open: BTreeMap<usize, u64>,
    /// Whether a gap was drawn; by source, whether its track is described.
    any: bool,
    described: Vec<bool>,
}

/// A stream, and how many of its records were lost.
#[derive(Debug)]
struct Counted<'t> {
    stream: &'t Stream,
    /// What it is called.
    name: String,
    /// The packet whose header was looked at last.
    packet: Option<usize>,
    /// Records lost up to its end.
    lost: u64,
    /// Whether the counter is described.
    described: bool,
}

impl<'t> Losses<'t> {
    /// Of the streams of `trace`, in the order of a merge of all of its layers.
    pub(super) fn new(trace: &'t Trace) -> Self {
        let merge = Merge::new(trace.layers(), 0);
        let counted = |(layer, stream)| Counted {
            stream,
            name: stream_name(layer, stream),
            packet: None,
            lost: 0,
            described: false,
        };
        Self {
            streams: merge.streams().map(counted).collect(),
            open: BTreeMap::new(),
            any: false,
            described: Vec::new(),
        }
    }

    /// Takes in a record of the packet `packet`: draws how many were lost up to the end of it, if those are more now.
    pub(super) fn record<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        (source, packet): (usize, usize),
        clock: &Clock,
        window: Window,
    ) {
        let Some(counted) = self.streams.get_mut(source).filter(|counted| counted.packet != Some(packet)) else {
            return;
        };
        counted.packet = Some(packet);
        let Some(header) = counted.stream.header(packet) else { return };
        if out.muted || header.events_discarded == counted.lost {
            return;
        }
        counted.lost = header.events_discarded;
        let (track, time) = (uuid(Kind::Lost, 0, source), header.time_end.clamp(window.begin, window.end));
        let time = clock.ticks_to_ns(time);
        if !std::mem::replace(&mut counted.described, true) {
            let descriptor = tracks::counter(track, None, format!("{}: records lost", counted.name), "records");
            out.track(Machine::HOST, time, descriptor);
        }
        out.counter(Machine::HOST, track, time, counted.lost);
    }

    /// Records of a stream are missing from `time` on, or go on, ns.
    pub(super) fn gap<W: Write>(&mut self, out: &mut PacketWriter<W>, gap: &Gap, time: u64) {
        if gap.begins {
            self.open.insert(gap.source, time);
        } else if let Some(begin) = self.open.remove(&gap.source) {
            self.draw(out, gap.source, (begin, time));
        }
    }

    /// Draws what does not end before `time`, ns.
    pub(super) fn finish<W: Write>(&mut self, out: &mut PacketWriter<W>, time: u64) {
        for (source, begin) in std::mem::take(&mut self.open) {
            self.draw(out, source, (begin, time));
        }
    }

    fn draw<W: Write>(&mut self, out: &mut PacketWriter<W>, source: usize, window: (u64, u64)) {
        if out.muted || window.0 >= window.1 {
            return;
        }
        let (group, track) = (uuid(Kind::Missing, 0, 0), uuid(Kind::Gaps, 0, source));
        if !std::mem::replace(&mut self.any, true) {
            out.track(Machine::HOST, window.0, tracks::named(group, None, "records may be missing"));
        }
        if self.described.len() <= source {
            self.described.resize(source + 1, false);
        }
        if let Some(described) = self.described.get_mut(source)
            && !std::mem::replace(described, true)
        {
            let name = self.streams.get(source).map_or("a stream", |counted| &counted.name);
            out.track(Machine::HOST, window.0, tracks::named(track, Some(group), name));
        }
        out.slice(Machine::HOST, track, window, Name::Few(NOT_RECORDED), None);
    }
}

/// What holds for all of an export.
#[derive(Debug)]
pub(super) struct Notes<'n> {
    /// What is missing, one line.
    pub(super) incomplete: Option<&'n str>,
    pub(super) records: u64,
    pub(super) drawn: u64,
    pub(super) clock: &'n Clock,
    pub(super) host_clocks: &'n HostClocks,
}

impl Notes<'_> {
    /// Draws them over all of the window, ns.
    pub(super) fn write<W: Write>(&self, out: &mut PacketWriter<W>, window: (u64, u64)) {
        let track = uuid(Kind::Notes, 0, 0);
        out.track(Machine::HOST, window.0, tracks::named(track, None, "what this trace holds"));
        let mut annotations = vec![
            number("records", self.records),
            number("records_drawn", self.drawn),
            number("clock_error_bound_ns", self.clock.error_bound_ns),
            text("clock_error_bound_from", &self.clock.bound_derivation),
            text("clock", &self.clock.source),
        ];
        if let (snapshots @ 1.., uncertainty_ns) = self.host_clocks.known() {
            annotations.push(number("clock_snapshots", snapshots));
            annotations.push(number("clock_snapshots_error_bound_ns", uncertainty_ns));
        }
        let event = TrackEvent { debug_annotations: annotations, ..TrackEvent::default() };
        let name = format!("{} of {} records are drawn", self.drawn, self.records);
        out.slice(Machine::HOST, track, window, Name::Few(&name), Some(&event));
        if let Some(incomplete) = self.incomplete {
            let event = TrackEvent { debug_annotations: vec![text("missing", incomplete)], ..TrackEvent::default() };
            out.instant(Machine::HOST, track, window.0, Name::Few(&harmless(incomplete)), &event);
        }
    }
}
