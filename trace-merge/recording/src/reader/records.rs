//! The records of a stream, packet by packet.

use super::gaps::PacketGaps;
use super::{Damage, Stream};
use crate::schema::{Schema, SchemaTable, Value};
use shared_ring::consumer::Lost;
use shared_ring::layout::{PacketHeader, RECORD_HEADER_SIZE, padded};
use shared_ring::packet::{Record, Records};
use std::borrow::Cow;
use std::ops::Range;

/// Memory of a stream is given back in pieces of this size, bytes, one piece behind the packet that is being read:
/// records that were handed out a moment ago are still looked at.
const RELEASE_BYTES: usize = 1 << 16;
/// So much before a piece is given back once more, bytes: who looks at a record for longer than that has brought its page
/// back, which would stay.
const RELEASE_AGAIN_BYTES: usize = 16 * RELEASE_BYTES;

/// A record of a stream whose type is known and whose payload fits it.
#[derive(Clone, Copy, Debug)]
pub struct StreamRecord<'t> {
    /// Time, trace clock ticks.
    pub time: u64,
    /// Its event type.
    pub schema: &'t Schema,
    /// Its payload.
    pub payload: &'t [u8],
    /// Index in the file of the packet that holds it.
    pub packet: usize,
    /// Whether records of its stream may be missing between the record before it and this one, or before it when it is
    /// the stream's first: they were lost, overwritten or damaged. What was known of a state before a gap may no longer
    /// hold after it. A stream that is there from its beginning does not begin with a gap.
    pub after_gap: bool,
}

impl<'t> StreamRecord<'t> {
    /// The value of the field `name`.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Value<'t>> {
        self.schema.value(self.schema.position_of(name)?, self.payload)
    }

    /// The integer field `name`; one that does not fit wraps, so that a cast gives its bits.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.value(name)? {
            Value::Unsigned(number) => Some(number.cast_signed()),
            Value::Signed(number) => Some(number),
            Value::Float(_) | Value::Text(_) | Value::Array(_) => None,
        }
    }

    /// The integer field `name` as an unsigned one: an address, a size.
    #[must_use]
    pub fn unsigned(&self, name: &str) -> Option<u64> {
        self.number(name).map(i64::cast_unsigned)
    }

    /// Argument `index` of a system call, of `raw_syscalls:sys_enter`.
    #[must_use]
    pub fn argument(&self, index: usize) -> Option<u64> {
        match self.value("args")? {
            Value::Array(arguments) => arguments.get(index),
            _ => None,
        }
    }

    /// The addresses in the array field `name`; none when there is no such field.
    #[must_use]
    pub fn addresses(&self, name: &str) -> Vec<u64> {
        match self.value(name) {
            Some(Value::Array(addresses)) => (0..addresses.len()).filter_map(|index| addresses.get(index)).collect(),
            _ => Vec::new(),
        }
    }

    /// The text field `name`; what is not UTF-8 in it is replaced.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<Cow<'t, str>> {
        match self.value(name)? {
            Value::Text(text) => Some(String::from_utf8_lossy(text)),
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) | Value::Array(_) => None,
        }
    }
}

/// What the header of the last packet that was read says about the stream up to there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Records lost, by reason.
    pub lost: Lost,
    /// Bytes that the recorder could not accept.
    pub rejected_bytes: u64,
    /// Packets read.
    pub packets: u64,
    /// Bytes in use in them, headers included.
    pub content_bytes: u64,
    /// Whether a packet counted less loss than the one before it.
    pub counts_went_back: bool,
}

impl StreamCounts {
    const EMPTY: Self = Self {
        lost: Lost { full: 0, wrapped: 0, too_large: 0 },
        rejected_bytes: 0,
        packets: 0,
        content_bytes: 0,
        counts_went_back: false,
    };
}

/// Walks the records of a stream in the order of the file, in constant memory whatever the size of the file.
#[derive(Clone, Debug)]
pub struct StreamRecords<'t> {
    stream: &'t Stream,
    schemas: &'t SchemaTable,
    /// The packets that are read.
    packets: Range<usize>,
    next_packet: usize,
    current: Option<CurrentPacket<'t>>,
    /// Times that are wanted, ticks.
    from: u64,
    to: u64,
    /// Sequence number that the next packet has when none is missing; `None` when the one before was not looked at.
    sequence: Option<u64>,
    /// Whether damaged packets lie between the last one that was read and the next.
    skipped: bool,
    /// Whether records may be missing before the next one.
    gap: bool,
    /// Whether another kernel took the machine over in a gap of what is wanted.
    another_kernel: bool,
    /// Whether records may be missing between the last one that is handed on and the end of what is wanted, once that is
    /// known.
    gap_at_end: Option<EndGap>,
    packet_gaps: PacketGaps,
    /// When the last packet that was read ends, ticks.
    packet_end: u64,
    /// Offset in the file up to which its memory was given back.
    released: usize,
    counts: StreamCounts,
    /// Records read.
    read: u64,
    damage: Damage,
}

/// Where records may be missing at the end of what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndGap {
    None,
    /// Behind the last record: some were lost.
    BehindRecord,
    /// From this time on, ticks: up to there the stream is complete, and it goes on.
    From(u64),
}

impl EndGap {
    const fn behind_record(is: bool) -> Self {
        if is { Self::BehindRecord } else { Self::None }
    }
}

#[derive(Clone, Debug)]
struct CurrentPacket<'t> {
    records: Records<'t>,
    /// Bytes in use, the last record's padding included.
    content: usize,
    index: usize,
    /// Whether records may be missing between any two of its records.
    gap_inside: bool,
}

impl<'t> StreamRecords<'t> {
    pub(super) fn new(stream: &'t Stream, schemas: &'t SchemaTable) -> Self {
        Self {
            stream,
            schemas,
            next_packet: 0,
            packets: 0..stream.packets(),
            current: None,
            from: 0,
            to: u64::MAX,
            sequence: Some(stream.beginning.next),
            skipped: false,
            gap: stream.begins_late(),
            another_kernel: false,
            gap_at_end: None,
            packet_gaps: stream.beginning.gaps(&stream.description),
            packet_end: 0,
            released: 0,
            counts: StreamCounts::EMPTY,
            read: 0,
            damage: Damage::NONE,
        }
    }

    /// Leaves out records before `from` ticks.
    #[must_use]
    pub fn starting_at(self, from: u64) -> Self {
        self.within(from, u64::MAX)
    }

    /// Leaves out records before `from` and after `to` ticks. Of packets that hold only such, but for the few of
    /// [`Stream::packets_within`] and one on either side, which show where gaps are, not even the headers are looked at.
    /// Damage in packets outside the window is not counted.
    #[must_use]
    pub fn within(mut self, from: u64, to: u64) -> Self {
        (self.from, self.to) = (from, to);
        let packets = self.stream.packets_within(from, to);
        let Some(before) = packets.start.checked_sub(1) else { return self.narrow(packets, None) };
        if let Some((_, header)) = before.checked_sub(1).and_then(|index| self.stream.packet(index)) {
            self.packet_gaps = PacketGaps::after(&header);
        }
        // Whether a gap is open when the window begins.
        self.gap = false;
        let mut narrowed = self.narrow(packets, None);
        narrowed.next_packet = before;
        narrowed
    }

    /// Reads only the packets `packets` of the file, as a part of those from `first` on: sequence numbers go on from the
    /// packets between, without which nothing is known of them. Whether records are missing before the first one is not
    /// known.
    #[must_use]
    pub fn of_packets(mut self, packets: Range<usize>, first: usize) -> Self {
        let before = (first..packets.start).rev().find_map(|index| Some((index, self.stream.packet(index)?.1)));
        // Damaged packets in between have had their numbers.
        let sequence = match &before {
            Some((index, header)) => Some(header.sequence.saturating_add((packets.start - index) as u64)),
            None if first == 0 => Some(self.stream.beginning.next.saturating_add(packets.start as u64)),
            None => None,
        };
        if let Some((_, header)) = &before {
            self.packet_gaps = PacketGaps::after(header);
        }
        self.narrow(packets, sequence)
    }

    fn narrow(mut self, packets: Range<usize>, sequence: Option<u64>) -> Self {
        if packets.start > 0 {
            self.sequence = sequence;
        }
        self.released = packets.start.saturating_mul(self.stream.packet_size);
        (self.next_packet, self.packets) = (packets.start, packets);
        self
    }

    /// What could not be read so far; complete once the records are at their end.
    #[must_use]
    pub const fn damage(&self) -> Damage {
        self.damage
    }

    /// Bytes of the stream so far in which records may have been that cannot be read any more, of damaged and missing
    /// packets all.
    #[must_use]
    pub fn unread_bytes(&self) -> u64 {
        let Damage { packets, missing_packets, bytes, records, truncated_bytes, missing_records: _ } = self.damage;
        let whole = packets.saturating_add(missing_packets).saturating_mul(self.stream.packet_size as u64);
        let headers = records.saturating_mul(RECORD_HEADER_SIZE as u64);
        [whole, bytes, headers, truncated_bytes].into_iter().fold(0, u64::saturating_add)
    }

    /// What the packets read so far say.
    #[must_use]
    pub const fn counts(&self) -> StreamCounts {
        self.counts
    }

    /// Records of the whole stream that were lost, by reason, as the packets read so far and the manifest say. Counts only
    /// grow, so that the larger is the later: a running recorder's are in its packets, a finished one's in the manifest.
    #[must_use]
    pub fn lost(&self) -> Lost {
        let (described, read) = (self.stream.description.lost, self.counts.lost);
        Lost {
            full: described.full.max(read.full),
            wrapped: described.wrapped.max(read.wrapped),
            too_large: described.too_large.max(read.too_large),
        }
    }

    /// Bytes of the whole stream that the recorder could not accept, as the packets read so far and the manifest say.
    #[must_use]
    pub fn rejected_bytes(&self) -> u64 {
        self.stream.description.rejected_bytes.max(self.counts.rejected_bytes)
    }

    /// Number of records read so far, those that do not fit their event type or were left out included.
    #[must_use]
    pub const fn read(&self) -> u64 {
        self.read
    }

    /// Whether records may be missing between the last one that was handed on (or the beginning of what is wanted, if
    /// there was none) and the end of what is wanted. Known once the records are at their end; `false` before.
    #[must_use]
    pub fn ends_in_gap(&self) -> bool {
        self.gap_at_end.is_some_and(|gap| gap != EndGap::None)
    }

    /// From when on records may be missing at the end for no other reason than that the stream goes on, or that its
    /// recorder was killed, ticks. Known once the records are at their end; `None` before.
    #[must_use]
    pub const fn goes_on_from(&self) -> Option<u64> {
        match self.gap_at_end {
            Some(EndGap::From(time)) => Some(time),
            _ => None,
        }
    }

    /// Whether another kernel took the machine over in one of the gaps of what is wanted. Known once the records are at their
    /// end.
    #[must_use]
    pub const fn another_kernel(&self) -> bool {
        self.another_kernel
    }

    /// Those of the event type `schema` among the first `most` records that are read, for who asks neither for gaps nor for
    /// damage: all others are passed over without a look at what they hold.
    pub fn of_type(mut self, schema: &'t Schema, most: usize) -> impl Iterator<Item = StreamRecord<'t>> {
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        std::iter::from_fn(move || self.next_of(schema, most))
    }

    fn next_of(&mut self, schema: &'t Schema, most: u64) -> Option<StreamRecord<'t>> {
        while self.read < most {
            let Some(packet) = &mut self.current else {
                if self.enter_packet() {
                    continue;
                }
                return None;
            };
            let Some(Record { time, id, payload, .. }) = packet.records.next() else {
                self.current = None;
                continue;
            };
            self.read += 1;
            if id == schema.description().id && schema.accepts(payload) {
                return Some(StreamRecord { time, schema, payload, packet: packet.index, after_gap: false });
            }
        }
        None
    }

    /// Index of the packet that is being read; `None` between packets.
    pub fn packet(&self) -> Option<usize> {
        self.current.as_ref().map(|current| current.index)
    }

    /// Enters the next packet that can be believed; `false` at the end of what is to be read.
    #[cold]
    #[inline(never)]
    fn enter_packet(&mut self) -> bool {
        while self.next_packet < self.packets.end {
            let index = self.next_packet;
            self.next_packet += 1;
            if index == self.packets.start && index > 0 {
                // What lies before the packets that are read was looked at for its gaps only.
                (self.read, self.damage, self.counts) = (0, Damage::NONE, StreamCounts::EMPTY);
            }
            let Some((packet, header)) = self.stream.packet(index) else {
                self.damage.packets += 1;
                self.skipped = true;
                self.sequence = self.sequence.map(|sequence| sequence.saturating_add(1));
                continue;
            };
            self.note(&header);
            self.gap |= self.is_loss_counted_later(index);
            self.release_before(index);
            let content = padded(usize::try_from(header.content_size.div_ceil(8)).unwrap_or(0));
            let records = Records::new(packet, content, header.time_begin);
            let gap_inside = self.packet_gaps.is_inside();
            self.current = Some(CurrentPacket { records, content: content.min(packet.len()), index, gap_inside });
            return true;
        }
        if self.gap_at_end.is_none() {
            self.gap_at_end = Some(if self.gap { EndGap::BehindRecord } else { self.gap_that_follows() });
        }
        self.damage = self.stream.with_missing(self.damage, &self.packets, self.read);
        // With the header of the packet behind them, which was looked at, came what lies around it: whoever reads the
        // packets there may have let go of them already.
        self.release(self.packets.end.saturating_mul(self.stream.packet_size).saturating_add(RELEASE_BYTES));
        false
    }

    /// Where records may be missing between the packets that were read and the packet after them, or behind the stream's
    /// last one.
    fn gap_that_follows(&self) -> EndGap {
        let (stream, end) = (self.stream, self.packets.end);
        if end < stream.packets() {
            let Some((_, header)) = stream.packet(end) else { return EndGap::BehindRecord };
            let is_next = self.sequence.is_none_or(|sequence| sequence == header.sequence);
            let mut packet_gaps = self.packet_gaps;
            return EndGap::behind_record(packet_gaps.enter(&header, self.skipped || !is_next));
        }
        let records = || match self.packets.start {
            0 => self.read,
            _ => stream.records_in(0..end),
        };
        let is_lossy = self.skipped
            || self.packet_gaps.is_behind_last(&stream.description)
            || stream.ends_early(self.sequence.unwrap_or(0), records);
        match stream.goes_on_from(self.packet_end) {
            Some(time) if !is_lossy && time < self.to => EndGap::From(time),
            _ => EndGap::behind_record(is_lossy),
        }
    }

    /// Whether what was lost before the packet `index`, which was entered, may be counted only after it: it may be the
    /// sub-buffer that a producer left open when it stopped.
    fn is_loss_counted_later(&self, index: usize) -> bool {
        match self.stream.packet(index + 1) {
            Some((_, next)) => self.packet_gaps.is_more_in_empty(&next),
            None => {
                index + 1 == self.stream.packets() && self.packet_gaps.is_more_in_manifest(&self.stream.description)
            }
        }
    }

    fn note(&mut self, header: &PacketHeader) {
        let expected = self.sequence.unwrap_or(header.sequence);
        // A number that went back counts as one packet out of place.
        let gap = header.sequence.checked_sub(expected).unwrap_or(1);
        self.damage.missing_packets = self.damage.missing_packets.saturating_add(gap);
        self.gap |= self.packet_gaps.enter(header, gap > 0 || self.skipped);
        (self.sequence, self.skipped) = (Some(header.sequence.saturating_add(1)), false);
        self.packet_end = header.time_end;
        let (now, before) = (header, self.counts.lost);
        self.counts.counts_went_back |=
            now.lost_full < before.full || now.lost_wrapped < before.wrapped || now.lost_too_large < before.too_large;
        self.counts.packets += 1;
        self.counts.content_bytes += header.content_size.div_ceil(8);
        self.counts.rejected_bytes = header.rejected_bytes;
        self.counts.lost =
            Lost { full: header.lost_full, wrapped: header.lost_wrapped, too_large: header.lost_too_large };
    }

    /// Gives back the memory of what lies well before the packet `index`.
    fn release_before(&mut self, index: usize) {
        let begin = index.saturating_mul(self.stream.packet_size);
        if begin.saturating_sub(self.released) >= 2 * RELEASE_BYTES {
            self.release(begin - RELEASE_BYTES);
        }
    }

    /// Gives back the memory of the file up to the offset `until`.
    fn release(&mut self, until: usize) {
        if until > self.released {
            self.stream.release(self.released.saturating_sub(RELEASE_AGAIN_BYTES)..until);
            self.released = until;
        }
    }
}

impl<'t> Iterator for StreamRecords<'t> {
    type Item = StreamRecord<'t>;

    #[inline(always)]
    fn next(&mut self) -> Option<StreamRecord<'t>> {
        loop {
            let Some((packet, record)) =
                self.current.as_mut().and_then(|packet| packet.records.next().map(|record| (packet, record)))
            else {
                if self.go_on() {
                    continue;
                }
                return None;
            };
            let (packet, gap_inside) = (packet.index, packet.gap_inside);
            self.read += 1;
            let (time, payload) = (record.time, record.payload);
            let Some(schema) = self.schemas.get(record.id).filter(|schema| schema.accepts(payload)) else {
                self.pass_unknown();
                continue;
            };
            let after_gap = if schema.stops_recording() || !(self.from..=self.to).contains(&time) {
                match self.judge(schema, time, payload, gap_inside) {
                    Some(after_gap) => after_gap,
                    None => continue,
                }
            } else {
                std::mem::replace(&mut self.gap, gap_inside)
            };
            return Some(StreamRecord { time, schema, payload, packet, after_gap });
        }
    }
}

impl StreamRecords<'_> {
    /// Goes on behind the last record of a packet, or to the first one; `false` at the end of what is to be read.
    #[cold]
    #[inline(never)]
    fn go_on(&mut self) -> bool {
        if let Some(packet) = self.current.take() {
            let unread = packet.content.saturating_sub(packet.records.offset());
            self.damage.bytes = self.damage.bytes.saturating_add(unread as u64);
            if unread > 0 {
                self.packet_gaps.note_unread();
            }
        }
        self.enter_packet()
    }

    /// Passes a record over whose type is unknown, or that does not fit it.
    #[cold]
    fn pass_unknown(&mut self) {
        self.damage.records += 1;
        self.gap = true;
    }

    /// Whether records may be missing before a record behind which others are, or that lies outside of what is wanted;
    /// `None` for the latter, which is passed over.
    #[cold]
    #[inline(never)]
    fn judge(&mut self, schema: &Schema, time: u64, payload: &[u8], gap_inside: bool) -> Option<bool> {
        let stops = schema.stops_recording();
        if time < self.from {
            self.gap = gap_inside || stops;
            self.another_kernel = stops && schema.is_of_another_kernel(payload);
            return None;
        }
        if time > self.to {
            self.gap_at_end.get_or_insert(EndGap::behind_record(self.gap));
            return None;
        }
        self.another_kernel |= stops && schema.is_of_another_kernel(payload);
        Some(std::mem::replace(&mut self.gap, gap_inside || stops))
    }
}
