//! Packets of records that do not come out of a ring.

use shared_ring::consumer::Lost;
use shared_ring::layout::{
    CTF_MAGIC, EXTENDED_ID, HOLE_ID, PACKET_HEADER_SIZE, PACKET_IN_GAP, PacketHeader, RECORD_ALIGNMENT,
    RECORD_HEADER_SIZE, RecordHeader, padded,
};
use shared_ring::packet::Packet;

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// It is in the packet.
    Stored,
    /// It does not fit any more: [`PacketBuilder::finish`] comes first.
    Full,
    /// It fits no packet.
    TooLarge,
    /// It is older than the one before it, or its id is reserved.
    Refused,
}

/// Builds the packets of one stream, with the record layout of the rings.
#[derive(Debug)]
pub struct PacketBuilder {
    uuid: [u8; 16],
    cpu_id: u32,
    packet: Vec<u8>,
    /// Bytes in use, without the last record's padding; 0 when the next record begins a packet.
    used: usize,
    begin: u64,
    /// No later record or packet is older, ticks.
    last: u64,
    /// Records in the packet.
    records: u64,
    sequence: u64,
    /// What the last packet counted as lost and rejected; `None` before the first.
    counted: Option<(Lost, u64)>,
    overwritten: u64,
}

impl PacketBuilder {
    /// A builder of packets of `packet_size` bytes (a multiple of 8 that holds a packet header and a record) for the
    /// stream of `cpu_id` in the trace `uuid`.
    ///
    /// # Panics
    /// When `packet_size` is smaller than that.
    #[must_use]
    pub fn new(uuid: [u8; 16], cpu_id: u32, packet_size: u64) -> Self {
        let packet_size = usize::try_from(packet_size).unwrap_or(usize::MAX);
        assert!(packet_size >= 2 * PACKET_HEADER_SIZE && packet_size.is_multiple_of(8), "a packet holds a record");
        Self {
            uuid,
            cpu_id,
            packet: vec![0; packet_size],
            used: 0,
            begin: 0,
            last: 0,
            records: 0,
            sequence: 0,
            counted: None,
            overwritten: 0,
        }
    }

    /// A builder of what follows the packet of `header` in its stream.
    ///
    /// # Panics
    /// As for [`new`](Self::new).
    #[must_use]
    pub fn following(header: &PacketHeader) -> Self {
        let lost = Lost { full: header.lost_full, wrapped: header.lost_wrapped, too_large: header.lost_too_large };
        Self {
            last: header.time_end,
            sequence: header.sequence.saturating_add(1),
            counted: Some((lost, header.rejected_bytes)),
            overwritten: header.overwritten,
            ..Self::new(header.uuid, header.cpu_id, header.packet_size / 8)
        }
    }

    /// Adds the record of an event of type `id` at `time` (ticks) to the packet.
    #[inline(always)]
    pub fn push(&mut self, time: u64, id: u16, payload: &[u8]) -> Push {
        let stored = self.open().is_some_and(|mut packet| packet.push(time, id, payload).is_some());
        if stored { Push::Stored } else { self.push_at_boundary(time, id, payload) }
    }

    /// The packet, if it has a record: for more of them.
    #[inline(always)]
    pub fn open(&mut self) -> Option<OpenPacket<'_>> {
        let Self { packet, used, begin, last, records, .. } = self;
        (*used > 0).then(|| OpenPacket {
            packet,
            begin: *begin,
            used: *used,
            last: *last,
            records: *records,
            kept: (used, last, records),
        })
    }

    /// [Adds](Self::push) the first record of a packet, one that needs an extended header, or none.
    #[cold]
    fn push_at_boundary(&mut self, time: u64, id: u16, payload: &[u8]) -> Push {
        if time < self.last || is_reserved(id) {
            return Push::Refused;
        }
        let Ok(payload_size) = u16::try_from(payload.len()) else { return Push::TooLarge };
        let first = self.used == 0;
        let (begin, start) = if first { (time, PACKET_HEADER_SIZE) } else { (self.begin, padded(self.used)) };
        let extended = time - begin > u64::from(u32::MAX);
        let header =
            RecordHeader { time_low: low(time), id: if extended { EXTENDED_ID } else { id }, payload: payload_size };
        let end = start + header.record_size();
        let Some(record) = self.packet.get_mut(start..end) else {
            return if first { Push::TooLarge } else { Push::Full };
        };
        let (head, stored) = record.split_at_mut(record.len() - padded(payload.len()));
        let (word, extension) = head.split_at_mut(RECORD_HEADER_SIZE);
        word.copy_from_slice(&header.to_word().to_le_bytes());
        if extended {
            let (full_time, full_id) = extension.split_at_mut(size_of::<u64>());
            full_time.copy_from_slice(&time.to_le_bytes());
            full_id.copy_from_slice(&u64::from(id).to_le_bytes());
        }
        store(stored, payload);
        (self.begin, self.last, self.used) = (begin, time, start + header.unpadded_size());
        self.records += 1;
        Push::Stored
    }

    /// Completes the packet with the totals of what the stream lost and rejected up to now, and hands it out: the next
    /// record begins another. The packet ends with its last record.
    ///
    /// A packet without records is handed out if there was one before it that counted less. `None` when there is nothing
    /// to tell.
    pub fn finish(&mut self, lost: Lost, rejected_bytes: u64) -> Option<Packet<'_>> {
        self.finish_at(0, lost, rejected_bytes)
    }

    /// As [`finish`](Self::finish); the packet ends at `time` (ticks), if its last record is not younger.
    pub fn finish_at(&mut self, time: u64, lost: Lost, rejected_bytes: u64) -> Option<Packet<'_>> {
        if self.used == 0 {
            self.counted.filter(|&counted| counted != (lost, rejected_bytes))?;
            (self.begin, self.used) = (self.last, PACKET_HEADER_SIZE);
        }
        self.complete(time, lost, rejected_bytes, 0)
    }

    /// As [`finish_at`](Self::finish_at), for a packet that lies in a gap, which it says ([`PACKET_IN_GAP`]). One without
    /// records lies at `time`, and is always handed out.
    pub fn finish_in_gap(&mut self, time: u64, lost: Lost, rejected_bytes: u64) -> Option<Packet<'_>> {
        if self.used == 0 {
            (self.begin, self.used) = (self.last.max(time), PACKET_HEADER_SIZE);
        }
        self.complete(time, lost, rejected_bytes, PACKET_IN_GAP)
    }

    /// Whether the next record begins a packet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn complete(&mut self, time: u64, lost: Lost, rejected_bytes: u64, flags: u32) -> Option<Packet<'_>> {
        self.last = self.last.max(time);
        self.counted = Some((lost, rejected_bytes));
        let header = PacketHeader {
            magic: CTF_MAGIC,
            uuid: self.uuid,
            stream_id: 0,
            time_begin: self.begin,
            time_end: self.last,
            content_size: self.used as u64 * 8,
            packet_size: self.packet.len() as u64 * 8,
            sequence: self.sequence,
            events_discarded: lost.events_discarded(),
            lost_full: lost.full,
            lost_wrapped: lost.wrapped,
            lost_too_large: lost.too_large,
            cpu_id: self.cpu_id,
            flags,
            rejected_bytes,
            overwritten: self.overwritten,
            reserved2: 0,
        };
        self.sequence = self.sequence.saturating_add(1);
        self.used = 0;
        Packet::new(&mut self.packet, header, std::mem::take(&mut self.records))
    }
}

/// A packet with a record, to which more are added: what changes with each of them is kept out of memory, if this is
/// given to nothing that is not inlined.
#[derive(Debug)]
pub struct OpenPacket<'b> {
    packet: &'b mut [u8],
    begin: u64,
    used: usize,
    last: u64,
    records: u64,
    /// Where the builder keeps the last three.
    kept: (&'b mut usize, &'b mut u64, &'b mut u64),
}

impl OpenPacket<'_> {
    /// Adds the record of an event of type `id` at `time` (ticks), and returns its payload as it is in the packet. `None`
    /// if [`PacketBuilder::push`] has to, or to say why not.
    #[inline(always)]
    pub fn push(&mut self, time: u64, id: u16, payload: &[u8]) -> Option<&mut [u8]> {
        let payload_size = u16::try_from(payload.len()).ok()?;
        if time < self.last || time - self.begin > u64::from(u32::MAX) || is_reserved(id) {
            return None;
        }
        let header = RecordHeader { time_low: low(time), id, payload: payload_size };
        let start = padded(self.used);
        let record = self.packet.get_mut(start..)?.get_mut(..RECORD_HEADER_SIZE + padded(payload.len()))?;
        let (word, stored) = record.split_at_mut(RECORD_HEADER_SIZE);
        word.copy_from_slice(&header.to_word().to_le_bytes());
        (self.used, self.last) = (start + RECORD_HEADER_SIZE + payload.len(), time);
        self.records += 1;
        Some(store(stored, payload))
    }
}

impl Drop for OpenPacket<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let (used, last, records) = &mut self.kept;
        (**used, **last, **records) = (self.used, self.last, self.records);
    }
}

/// Copies `payload` to the beginning of `stored`, which is as long with its padding, and returns it there.
#[inline(always)]
fn store<'s>(stored: &'s mut [u8], payload: &[u8]) -> &'s mut [u8] {
    // An earlier packet has left its bytes where padding will be.
    if let Some(padding) = stored.last_chunk_mut() {
        *padding = [0; RECORD_ALIGNMENT];
    }
    let stored = &mut stored[..payload.len()];
    let is_copied = copy_ends::<32>(stored, payload) || copy_ends::<16>(stored, payload);
    if !is_copied {
        stored.copy_from_slice(payload);
    }
    stored
}

/// Copies what is `N` to 2 `N` bytes long by its first and its last `N` bytes: without the call that copies any length,
/// before which all that is kept in registers would go to memory.
#[inline(always)]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) -> bool {
    if from.len() > 2 * N || to.len() != from.len() {
        return false;
    }
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk()) {
        *to = *from;
    }
    let (Some(to), Some(from)) = (to.last_chunk_mut::<N>(), from.last_chunk()) else { return false };
    *to = *from;
    true
}

const fn is_reserved(id: u16) -> bool {
    id == HOLE_ID || id == EXTENDED_ID
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
const fn low(time: u64) -> u32 {
    time as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn builder() -> PacketBuilder {
        PacketBuilder::new([7; 16], 1, 256)
    }

    fn records(packet: &Packet<'_>) -> Vec<(u64, u16, Vec<u8>)> {
        packet.records().map(|record| (record.time, record.id, record.payload.to_vec())).collect()
    }

    #[test]
    fn records_are_read_back_with_full_times() {
        let mut builder = builder();
        let times = [5, 5 + u64::from(u32::MAX), 5 + (1 << 32), u64::MAX];

        let pushed = times.map(|time| builder.push(time, 9, b"abc"));
        let packet = builder.finish(Lost::default(), 0).unwrap();

        assert_eq!(pushed, [Push::Stored; 4]);
        assert_eq!(records(&packet), times.map(|time| (time, 9, b"abc".to_vec())));
        assert_eq!(packet.record_count(), 4);
    }

    #[test]
    fn record_that_fits_exactly_is_stored_and_the_next_is_not() {
        let mut builder = builder();

        assert_eq!(builder.push(0, 1, &[1; 120]), Push::Stored);
        assert_eq!(builder.push(0, 1, &[]), Push::Full);
        assert_eq!(builder.push(0, 1, &[1; 121]), Push::Full);
        builder.finish(Lost::default(), 0).unwrap();
        assert_eq!(builder.push(0, 1, &[1; 121]), Push::TooLarge);
        assert_eq!(builder.push(0, 1, &[1; 70_000]), Push::TooLarge);
    }

    #[test]
    fn time_that_goes_back_is_refused_across_packets() {
        let mut builder = builder();
        builder.push(10, 1, &[]);
        builder.finish(Lost::default(), 0).unwrap();

        assert_eq!(builder.push(9, 1, &[]), Push::Refused);
        assert_eq!(builder.push(10, 1, &[]), Push::Stored);
        assert_eq!(builder.push(10, 0, &[]), Push::Refused);
    }

    #[test]
    fn next_packet_holds_nothing_of_the_one_before() {
        let mut builder = builder();
        builder.push(1, 1, &[0xff; 100]);
        builder.finish(Lost::default(), 0).unwrap();
        builder.push(2, 1, &[]);

        let packet = builder.finish(Lost { full: 3, ..Lost::default() }, 4).unwrap();

        assert_eq!(packet.content().len(), PACKET_HEADER_SIZE + 8);
        let header = packet.header();
        assert_eq!((header.sequence, header.events_discarded, header.rejected_bytes), (1, 3, 4));
    }

    #[test]
    fn padding_holds_nothing_of_an_earlier_packet() {
        let mut builder = builder();
        builder.push(1, 1, &[0xff; 100]);
        builder.finish(Lost::default(), 0).unwrap();
        builder.push(2, 1, &[1; 3]);
        builder.push(3, 1, &[2; 8]);

        let packet = builder.finish(Lost::default(), 0).unwrap();

        assert_eq!(packet.content()[PACKET_HEADER_SIZE + 8..][..8], [1, 1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(records(&packet), [(2, 1, vec![1; 3]), (3, 1, vec![2; 8])]);
    }

    #[test]
    fn loss_beyond_counting_is_a_number_that_babeltrace2_takes() {
        let mut builder = builder();
        builder.push(1, 1, &[]);

        let packet = builder.finish(Lost { full: u64::MAX, ..Lost::default() }, 0).unwrap();

        assert_eq!((packet.header().lost_full, packet.header().events_discarded), (u64::MAX, u64::MAX - 1));
    }

    #[test]
    fn packet_without_records_tells_of_loss_after_the_last_one() {
        let mut builder = builder();
        let lost = |full| Lost { full, ..Lost::default() };

        assert!(builder.finish(lost(1), 0).is_none(), "there is nothing to follow");
        builder.push(7, 1, &[]);
        builder.finish(lost(1), 0).unwrap();
        assert!(builder.finish(lost(1), 0).is_none(), "there is nothing new");
        let empty = *builder.finish(lost(3), 2).unwrap().header();
        let reported = builder.finish(lost(3), 2).is_some();
        let mut next = PacketBuilder::following(&empty);
        let after = *next.finish_at(9, lost(3), 5).unwrap().header();

        assert_eq!((empty.time_begin, empty.time_end, empty.content_size), (7, 7, PACKET_HEADER_SIZE as u64 * 8));
        assert_eq!((empty.sequence, empty.lost_full, empty.rejected_bytes, reported), (1, 3, 2, false));
        assert_eq!((after.time_begin, after.time_end, after.sequence, after.rejected_bytes), (7, 9, 2, 5));
        assert_eq!((after.uuid, after.cpu_id, after.packet_size), (empty.uuid, 1, 256 * 8));
    }

    #[test]
    fn packet_ends_when_it_is_closed() {
        let mut builder = builder();
        builder.push(7, 1, &[]);
        let end = builder.finish_at(20, Lost::default(), 0).unwrap().header().time_end;

        assert_eq!((end, builder.push(19, 1, &[]), builder.push(20, 1, &[])), (20, Push::Refused, Push::Stored));
        assert_eq!(builder.finish_at(3, Lost::default(), 0).unwrap().header().time_end, 20);
    }

    #[test]
    fn open_packet_leaves_to_the_builder_what_is_not_just_one_record_more() {
        let mut builder = builder();
        let closed = builder.open().is_none();
        builder.push(5, 1, b"abc");
        let mut packet = builder.open().unwrap();

        let refused = [(4, 1), (6 + u64::from(u32::MAX), 1), (5, HOLE_ID), (5, EXTENDED_ID)]
            .map(|(time, id)| packet.push(time, id, &[]).is_none());
        let (too_large, fits) = (packet.push(5, 1, &[0; 105]).is_none(), packet.push(6, 2, &[7; 104]).is_some());
        drop(packet);
        let pushed = builder.push(6, 3, &[]);

        assert_eq!((closed, refused, too_large, fits, pushed), (true, [true; 4], true, true, Push::Full));
        let packet = builder.finish(Lost::default(), 0).unwrap();
        assert_eq!(records(&packet), [(5, 1, b"abc".to_vec()), (6, 2, vec![7; 104])]);
    }

    proptest! {
        #[test]
        fn payloads_of_any_length_are_read_back_with_zeros_behind_them(
            payloads in proptest::collection::vec(proptest::collection::vec(1..=255_u8, 0..100), 1..20),
        ) {
            let mut builder = PacketBuilder::new([7; 16], 1, 4096);
            builder.push(0, 1, &[0xff; 3000]);
            builder.finish(Lost::default(), 0).unwrap();

            for payload in &payloads {
                prop_assert_eq!(builder.push(1, 1, payload), Push::Stored);
            }

            let packet = builder.finish(Lost::default(), 0).unwrap();
            let payloads_read: Vec<_> = packet.records().map(|record| record.payload.to_vec()).collect();
            let zeros = packet.content()[PACKET_HEADER_SIZE..].iter().filter(|byte| **byte == 0).count();
            // A record's header has five bytes of zeros: half of the id, half of the length, and three of the time.
            let padding: usize = payloads.iter().rev().skip(1).map(|payload| padded(payload.len()) - payload.len()).sum();
            let empty = payloads.iter().filter(|payload| payload.is_empty()).count();
            prop_assert_eq!(zeros, padding + 5 * payloads.len() + empty);
            prop_assert_eq!(payloads_read, payloads);
        }
    }
}
