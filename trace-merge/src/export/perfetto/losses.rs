//! What is not there: periods in which records of a stream may be missing, how many were lost, and a note of it all.

use super::packets::{Machine, Name, PacketWriter, number, text};
use super::proto::TrackEvent;
use super::running::NOT_RECORDED;
use super::tracks::{self, Kind, uuid};
use crate::analysis::Gap;
use crate::clock::Clock;
use crate::merge::Merge;
use crate::reader::{Stream, Trace, TraceLayer};
use crate::report::harmless;
use crate::window::Window;
use std::collections::BTreeMap;
use std::io::Write;

/// Draws gaps and losses.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// By source of the merge: what the stream is called.
    names: Vec<String>,
    /// By source: when the gap began that lasts, ns.
    open: BTreeMap<usize, u64>,
    /// Whether a gap was drawn; by source, whether its track is described.
    any: bool,
    described: Vec<bool>,
}

fn name(layer: &TraceLayer, stream: &Stream) -> String {
    let described = &layer.description;
    let vm = described.vm.as_ref().or(described.host.as_ref()).map_or_else(String::new, |name| format!("{name} "));
    let process = described.process.as_ref().map_or_else(String::new, |process| format!(" {}", process.pid));
    let (kind, number) = (described.kind, stream.description.cpu_id);
    format!("{vm}{kind}{process} {} {number}", kind.stream_of())
}

impl Losses {
    /// Describes streams, and draws how many records were lost of each, as its packets say.
    pub(super) fn introduce<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        trace: &Trace,
        clock: &Clock,
        window: Window,
    ) {
        for (source, (layer, stream)) in Merge::new(trace.layers(), 0).streams().enumerate() {
            let name = name(layer, stream);
            let track = uuid(Kind::Lost, 0, source);
            let mut before = 0;
            let mut told = false;
            for (_, header) in stream.headers() {
                let lost = header.events_discarded;
                if lost == before {
                    continue;
                }
                if !std::mem::replace(&mut told, true) {
                    let descriptor = tracks::counter(track, None, format!("{name}: records lost"), "records");
                    out.track(Machine::HOST, clock.ticks_to_ns(window.begin), descriptor);
                }
                before = lost;
                // Lost before this packet, or in it.
                if (window.begin..=window.end).contains(&header.time_end) {
                    out.counter(Machine::HOST, track, clock.ticks_to_ns(header.time_end), lost);
                }
            }
            self.names.push(name);
        }
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
            let name = self.names.get(source).map_or("a stream", String::as_str);
            out.track(Machine::HOST, window.0, tracks::named(track, Some(group), name));
        }
        out.slice(Machine::HOST, track, window, Name::Few(NOT_RECORDED), TrackEvent::default());
    }
}

/// What holds for all of an export.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notes<'n> {
    /// What is missing, one line.
    pub(super) incomplete: Option<&'n str>,
    pub(super) records: u64,
    pub(super) drawn: u64,
    pub(super) clock: &'n Clock,
}

impl Notes<'_> {
    /// Draws them over all of the window, ns.
    pub(super) fn write<W: Write>(&self, out: &mut PacketWriter<W>, window: (u64, u64)) {
        let track = uuid(Kind::Notes, 0, 0);
        out.track(Machine::HOST, window.0, tracks::named(track, None, "what this trace holds"));
        let annotations = vec![
            number("records", self.records),
            number("records_drawn", self.drawn),
            number("clock_error_bound_ns", self.clock.error_bound_ns),
            text("clock_error_bound_from", &self.clock.bound_derivation),
            text("clock", &self.clock.source),
        ];
        let event = TrackEvent { debug_annotations: annotations, ..TrackEvent::default() };
        let name = format!("{} of {} records are drawn", self.drawn, self.records);
        out.slice(Machine::HOST, track, window, Name::Few(&name), event);
        if let Some(incomplete) = self.incomplete {
            let event = TrackEvent { debug_annotations: vec![text("missing", incomplete)], ..TrackEvent::default() };
            out.instant(Machine::HOST, track, window.0, Name::Few(&harmless(incomplete)), event);
        }
    }
}
