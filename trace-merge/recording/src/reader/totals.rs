//! What a layer's streams add up to: records, bytes, and everything that is not there.

use crate::reader::{Damage, Stream, TraceLayer};
use crate::text::counted::counted;
use crate::window::Window;
use serde::Serialize;
use shared_ring::consumer::Lost;

/// What streams add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Records that can be read.
    pub events: u64,
    /// Bytes in use in packets that can be read, packet headers included.
    pub bytes: u64,
    /// Packets that can be read.
    pub packets: u64,
    /// Records that the producers lost, by reason.
    pub lost: Lost,
    /// Bytes that the recorder could not accept.
    pub rejected_bytes: u64,
    /// Streams whose ring was found corrupt and given up.
    pub corrupt_streams: u64,
    /// Streams whose file is not there.
    pub absent_streams: u64,
    /// What of the files could not be read.
    pub damage: Damage,
    /// Time of the first record, ticks.
    #[serde(rename = "first_ticks")]
    pub first: Option<u64>,
    /// Time of the last record, ticks.
    #[serde(rename = "last_ticks")]
    pub last: Option<u64>,
}

impl Totals {
    /// Reads `stream` of `layer` from beginning to end.
    #[must_use]
    pub fn of_stream(layer: &TraceLayer, stream: &Stream) -> Self {
        let mut records = layer.records(stream);
        let (mut events, mut first, mut last) = (0, None, None);
        for record in records.by_ref() {
            events += 1;
            first = Some(first.map_or(record.time, |first: u64| first.min(record.time)));
            last = last.max(Some(record.time));
        }
        let counts = records.counts();
        Self {
            events,
            bytes: counts.content_bytes,
            packets: counts.packets,
            lost: records.lost(),
            rejected_bytes: records.rejected_bytes(),
            corrupt_streams: u64::from(stream.description.corrupt),
            absent_streams: u64::from(stream.absent),
            damage: records.damage(),
            first,
            last,
        }
    }

    /// Reads all streams of `layer`.
    #[must_use]
    pub fn of_layer(layer: &TraceLayer) -> Self {
        let streams = layer.streams.iter().map(|stream| Self::of_stream(layer, stream));
        streams.fold(Self::default(), |sum, stream| sum.plus(&stream))
    }

    /// What `layer` lacks in the part `window` of a recording that begins at `start`, ticks: parts add up to the whole.
    #[must_use]
    pub fn lacking(layer: &TraceLayer, window: Window, start: u64) -> Self {
        let [before, until] = [window.begin, window.end].map(|time| {
            let streams = layer.streams.iter().map(|stream| lacked_before(stream, time, start));
            streams.fold(Self::default(), |sum, stream| sum.plus(&stream))
        });
        let lost = Lost {
            full: until.lost.full.saturating_sub(before.lost.full),
            wrapped: until.lost.wrapped.saturating_sub(before.lost.wrapped),
            too_large: until.lost.too_large.saturating_sub(before.lost.too_large),
        };
        Self {
            lost,
            rejected_bytes: until.rejected_bytes.saturating_sub(before.rejected_bytes),
            corrupt_streams: until.corrupt_streams.saturating_sub(before.corrupt_streams),
            absent_streams: until.absent_streams.saturating_sub(before.absent_streams),
            ..Self::default()
        }
    }

    /// Both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            events: self.events + other.events,
            bytes: self.bytes + other.bytes,
            packets: self.packets + other.packets,
            lost: self.lost.plus(&other.lost),
            rejected_bytes: self.rejected_bytes.saturating_add(other.rejected_bytes),
            corrupt_streams: self.corrupt_streams + other.corrupt_streams,
            absent_streams: self.absent_streams + other.absent_streams,
            damage: self.damage.plus(&other.damage),
            first: self.first.into_iter().chain(other.first).min(),
            last: self.last.max(other.last),
        }
    }

    /// Everything that is not there, in one line; `None` when all is.
    #[must_use]
    pub fn incomplete(&self) -> Option<String> {
        let counts = [
            (self.lost.full, "record lost because a ring was full", "records lost because a ring was full"),
            (self.lost.wrapped, "record lost to an unfinished writer", "records lost to an unfinished writer"),
            (self.lost.too_large, "record too large for a packet", "records too large for a packet"),
            (self.rejected_bytes, "byte rejected by the recorder", "bytes rejected by the recorder"),
            (self.corrupt_streams, "ring given up", "rings given up"),
            (self.absent_streams, "stream file empty or gone", "stream files empty or gone"),
        ];
        let there = counts.into_iter().filter(|&(count, ..)| count > 0);
        let mut parts: Vec<String> = there.map(|(count, one, many)| counted(count, one, many)).collect();
        if self.damage.any() {
            parts.push(self.damage.to_string());
        }
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// What `stream`, of a recording that begins at `start`, lacks that belongs before `time`, ticks: what a packet counts
/// belongs to its end, and what only the description knows behind the last packet.
fn lacked_before(stream: &Stream, time: u64, start: u64) -> Totals {
    let mut lacked = Totals::default();
    if time <= start {
        return lacked;
    }
    let next = stream.packets_within(time, u64::MAX).start;
    if let Some(last) = (0..next).rev().find_map(|index| stream.header(index)) {
        lacked.lost.full = last.lost_full;
        lacked.lost.wrapped = last.lost_wrapped;
        lacked.lost.too_large = last.lost_too_large;
        lacked.rejected_bytes = last.rejected_bytes;
    }
    if (next..stream.packets()).all(|index| stream.header(index).is_none()) {
        let described = &stream.description;
        lacked.lost.full = lacked.lost.full.max(described.lost.full);
        lacked.lost.wrapped = lacked.lost.wrapped.max(described.lost.wrapped);
        lacked.lost.too_large = lacked.lost.too_large.max(described.lost.too_large);
        lacked.rejected_bytes = lacked.rejected_bytes.max(described.rejected_bytes);
        lacked.corrupt_streams = u64::from(described.corrupt);
        lacked.absent_streams = u64::from(stream.absent);
    }
    lacked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_totals_have_nothing_to_say() {
        let totals = Totals { events: 5, bytes: 6, packets: 1, ..Totals::default() };

        assert_eq!(totals.incomplete(), None);
    }

    #[test]
    fn everything_that_is_not_there_is_reported() {
        let totals = Totals {
            lost: Lost { full: 1, wrapped: 2, too_large: 3 },
            rejected_bytes: 4,
            corrupt_streams: 5,
            absent_streams: 6,
            damage: Damage {
                packets: 7,
                missing_packets: 8,
                bytes: 9,
                records: 10,
                truncated_bytes: 11,
                missing_records: 12,
            },
            ..Totals::default()
        };

        let printed = totals.plus(&Totals::default()).incomplete().unwrap();

        let numbers: Vec<u32> =
            printed.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
        assert_eq!(numbers, (1..=12).collect::<Vec<_>>());
    }
}
