//! A stream of a layer: its packets, and which of them can be believed.

use super::chunks::{self, Beginning, Chunk, StreamFiles};
use super::gaps::PacketGaps;
use super::{Damage, LayerState, ReadError};
use crate::files::Files;
use crate::manifest::{Layer, StreamDescription};
use shared_ring::layout::{CTF_MAGIC, PACKET_HEADER_SIZE, PacketHeader, padded};
use shared_ring::packet::{Records, read_header};
use std::ops::Range;

/// A stream of a layer, mapped.
#[derive(Debug)]
pub struct Stream {
    /// What `session.json` says about it. For a stream that it does not list (its recorder was killed before it could),
    /// what the file's name says.
    pub description: StreamDescription,
    /// Whether `session.json` says that the stream holds records, but its file is empty or not there.
    pub absent: bool,
    /// What is there of it, in its order. An empty file cannot be mapped, and is none.
    chunks: Vec<Chunk>,
    /// What was dropped of its beginning.
    pub(super) beginning: Beginning,
    /// Whether records may come, or would have come, behind the last packet: the layer did not come to its end.
    goes_on: bool,
    /// When the last packet of all streams ends, ticks; where all have ended, 0.
    pub(super) recording_end: u64,
    pub(super) packet_size: usize,
    uuid: [u8; 16],
}

impl Stream {
    pub(super) fn open(
        files: &Files,
        layer: &Layer,
        description: StreamDescription,
        found: &StreamFiles,
        state: LayerState,
    ) -> Result<Self, ReadError> {
        let packet_size = usize::try_from(layer.packet_size).unwrap_or(usize::MAX);
        let (chunks, first) = chunks::map(files, &layer.path, found, &description.file, packet_size)?;
        let beginning = Beginning::of(&description, first, state.is_finished);
        let absent = chunks.is_empty() && description.records > beginning.dropped_records(&description);
        let (goes_on, uuid) = (!state.has_ended, layer.uuid.into_bytes());
        Ok(Self { description, absent, chunks, beginning, goes_on, recording_end: 0, packet_size, uuid })
    }

    /// Whether records may be missing behind its last packet although nothing was lost: its layer goes on, or its recorder
    /// was killed.
    #[must_use]
    pub const fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// From when on records may be missing because it goes on, ticks, if that is before the end of the recording: it is there
    /// up to `there`, the end of its last packet.
    pub fn goes_on_from(&self, there: u64) -> Option<u64> {
        let from = self.description.complete_until.map_or(there, |until| until.max(there));
        (self.goes_on && from < self.recording_end).then_some(from)
    }

    /// Up to when all of the stream is there if it goes on, ticks.
    pub fn complete_until(&self) -> Option<u64> {
        let there = self.last_packet_end();
        self.goes_on.then(|| self.description.complete_until.map_or(there, |until| until.max(there)))
    }

    /// Whether the stream begins later than what it records did: a flight recorder overwrote its beginning, or it was
    /// dropped to keep within a size.
    #[must_use]
    pub const fn begins_late(&self) -> bool {
        self.description.overwritten > 0 || self.beginning.is_dropped()
    }

    /// How much of its beginning is not there: what a flight recorder overwrote, and packets that were dropped.
    #[must_use]
    pub const fn begins_late_by(&self) -> u64 {
        self.description.overwritten.saturating_add(self.beginning.next)
    }

    /// From when on the stream is there, ticks, if its beginning was dropped to keep within a size.
    #[must_use]
    pub fn dropped_until(&self) -> Option<u64> {
        let until = self.description.dropped.filter(|_| self.beginning.is_described()).map(|dropped| dropped.until);
        let first = || self.headers().next().map(|(_, header)| header.time_begin);
        until.filter(|_| self.beginning.is_dropped()).or_else(|| first().filter(|_| self.beginning.is_dropped()))
    }

    /// Number of whole packets in the file, readable or not.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.chunks.last().map_or(0, |chunk| chunk.first + chunk.packets(self.packet_size))
    }

    /// Bytes that its packets took on the disk: what is there as it is stored, and what was dropped.
    pub fn stored_bytes(&self) -> u64 {
        let there = self.chunks.iter().map(|chunk| chunk.stored_bytes(self.packet_size)).sum::<u64>();
        there.saturating_add(self.description.dropped.map_or(0, |dropped| dropped.bytes))
    }

    /// Bytes behind the whole packets of its files.
    pub fn truncated_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.truncated_bytes(self.packet_size)).sum()
    }

    /// The packets that may hold records of the times `from..=to`, ticks. Looks at the headers of a few packets, as
    /// many as the number of packets has binary digits: times do not decrease within a stream, so that the packets are
    /// their own index. Damaged packets beside the first or last one of that time are taken in.
    #[must_use]
    pub fn packets_within(&self, from: u64, to: u64) -> Range<usize> {
        let packets = self.packets();
        let first = if from == 0 { 0 } else { self.partition_point(0..packets, |header| header.time_end < from) };
        if to == u64::MAX {
            return first..packets;
        }
        let last = self.partition_point(first..packets, |header| header.time_begin <= to);
        let damaged = (last..packets).take_while(|&index| self.packet(index).is_none()).count();
        first..last + damaged
    }

    /// The end of those packets at the beginning of `within` for which `is_before` holds, found by bisection. It lies
    /// right behind a packet for which it holds, or at the beginning of `within`.
    fn partition_point(&self, within: Range<usize>, is_before: impl Fn(&PacketHeader) -> bool) -> usize {
        let Range { mut start, mut end } = within;
        while start < end {
            let middle = start + (end - start) / 2;
            // Of damaged packets nothing is known: the next one that can be believed decides.
            let known = (middle..end).find_map(|index| Some((index, self.packet(index)?.1)));
            match known {
                Some((index, header)) if is_before(&header) => start = index + 1,
                _ => end = middle,
            }
        }
        start
    }

    /// `damage` of the packets `packets`, in which `read` records were, completed by what is in no packet.
    pub fn with_missing(&self, damage: Damage, packets: &Range<usize>, read: u64) -> Damage {
        let (whole, to_the_end) = (*packets == (0..self.packets()), packets.end == self.packets());
        // A running recorder's description lags behind, never ahead.
        let dropped = self.beginning.dropped_records(&self.description);
        let there = self.description.records.saturating_sub(dropped);
        let missing_records = if whole { there.saturating_sub(read) } else { 0 };
        // What was being written when the stream was opened, or when its recorder was killed, is not damaged.
        let truncated_bytes = if to_the_end && !self.goes_on { self.truncated_bytes() } else { 0 };
        Damage { truncated_bytes, missing_records, ..damage }
    }

    /// Lets go of the memory that `packets` take in this process. They stay readable.
    pub fn release_packets(&self, packets: Range<usize>) {
        let offset = |index: usize| index.saturating_mul(self.packet_size);
        self.release(offset(packets.start)..offset(packets.end));
    }

    /// Lets go of the memory that the bytes `range` of the packets take in this process. They stay readable.
    pub(super) fn release(&self, range: Range<usize>) {
        for chunk in &self.chunks {
            let begin = chunk.first.saturating_mul(self.packet_size);
            let length = chunk.packets(self.packet_size) * self.packet_size;
            let (from, to) = (range.start.max(begin), range.end.min(begin + length));
            if from < to {
                chunk.release(from - begin..to - begin);
            }
        }
    }

    /// Whether the file lacks packets or records at its end that the manifest counts: `next_sequence` is the sequence
    /// number after the last packet that the file holds, and `records` gives the number of records in all of its packets.
    pub(super) fn ends_early(&self, next_sequence: u64, records: impl FnOnce() -> u64) -> bool {
        let described = &self.description;
        let is_cut = match described.packets {
            // The manifest is older than this count, or no packet was written. Whether the records that are missing were
            // the last ones is not known.
            0 => described.records > records(),
            packets => next_sequence < packets,
        };
        is_cut || self.absent || (self.truncated_bytes() > 0 && !self.goes_on)
    }

    /// Number of records, of known types or not, in the packets `packets` that can be read.
    pub fn records_in(&self, packets: Range<usize>) -> u64 {
        let counts = packets.filter_map(|index| {
            let (packet, header) = self.packet(index)?;
            let content = usize::try_from(header.content_size.div_ceil(8)).ok()?;
            Some(Records::new(packet, padded(content), header.time_begin).count() as u64)
        });
        counts.sum()
    }

    /// The header of the packet `index`; `None` when it cannot be believed.
    pub fn header(&self, index: usize) -> Option<PacketHeader> {
        Some(self.packet(index)?.1)
    }

    /// The headers of the packets that can be believed, with their indices in the file, in its order.
    pub fn headers(&self) -> impl Iterator<Item = (usize, PacketHeader)> {
        (0..self.packets()).filter_map(|index| Some((index, self.packet(index)?.1)))
    }

    /// Whether all that is known of the stream is that a flight recorder overwrote what it held: nothing was recorded in
    /// it since.
    pub fn is_overwritten_whole(&self) -> bool {
        let described = &self.description;
        let is_empty = self.chunks.is_empty() && described.records == 0 && described.packets == 0;
        is_empty && described.overwritten > 0 && !PacketGaps::new().is_behind_last(described)
    }

    /// Until when nothing is known of a stream that was dropped whole, ticks: nothing was recorded in it since.
    pub fn dropped_whole_until(&self) -> Option<u64> {
        let is_whole = self.chunks.is_empty() && self.beginning.is_dropped() && !self.absent;
        let ends_there = is_whole && !self.beginning.gaps(&self.description).is_behind_last(&self.description);
        self.description.dropped.filter(|_| ends_there).map(|dropped| dropped.until)
    }

    /// When its last packet that can be believed ends, ticks; 0 when there is none.
    pub(super) fn last_packet_end(&self) -> u64 {
        (0..self.packets()).rev().find_map(|index| self.packet(index)).map_or(0, |(_, header)| header.time_end)
    }

    /// The `index`th packet of the file and its header; `None` when it is not a packet of this stream.
    pub fn packet(&self, index: usize) -> Option<(&[u8], PacketHeader)> {
        let chunk = match self.chunks.as_slice() {
            [only] => only,
            chunks => chunks.get(chunks.partition_point(|chunk| chunk.first <= index).checked_sub(1)?)?,
        };
        let packet = chunk.packet(index - chunk.first, self.packet_size)?;
        let header = read_header(packet)?;
        let content = usize::try_from(header.content_size.div_ceil(8)).ok()?;
        let believable = header.magic == CTF_MAGIC
            && header.uuid == self.uuid
            && header.packet_size == self.packet_size as u64 * 8
            && header.cpu_id == self.description.cpu_id
            && (PACKET_HEADER_SIZE..=self.packet_size).contains(&content)
            && header.time_begin <= header.time_end;
        believable.then_some((packet, header))
    }
}
