//! Packets of records that do not come out of a ring.

use shared_ring::consumer::Lost;
use shared_ring::layout::{
    CTF_MAGIC, EXTENDED_HEADER_SIZE, EXTENDED_ID, HOLE_ID, PACKET_HEADER_SIZE, PacketHeader, RECORD_HEADER_SIZE,
    RecordHeader,
};
use shared_ring::packet::write_header;

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
    /// Bytes in use; 0 when the next record begins a packet.
    used: usize,
    begin: u64,
    last: u64,
    sequence: u64,
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
        Self { uuid, cpu_id, packet: vec![0; packet_size], used: 0, begin: 0, last: 0, sequence: 0 }
    }

    /// Adds the record of an event of type `id` at `time` (ticks) to the packet.
    pub fn push(&mut self, time: u64, id: u16, payload: &[u8]) -> Push {
        if time < self.last || id == HOLE_ID || id == EXTENDED_ID {
            return Push::Refused;
        }
        let Ok(payload_size) = u16::try_from(payload.len()) else { return Push::TooLarge };
        let first = self.used == 0;
        let (begin, start) = if first { (time, PACKET_HEADER_SIZE) } else { (self.begin, self.used) };
        let extended = time - begin > u64::from(u32::MAX);
        let header =
            RecordHeader { time_low: low(time), id: if extended { EXTENDED_ID } else { id }, payload: payload_size };
        let end = start + header.record_size();
        if end > self.packet.len() {
            return if first { Push::TooLarge } else { Push::Full };
        }
        if first {
            self.packet.fill(0);
        }
        let mut at = start;
        let mut put = |bytes: &[u8]| {
            self.packet[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&header.to_word().to_le_bytes());
        if extended {
            put(&time.to_le_bytes());
            put(&u64::from(id).to_le_bytes());
        }
        put(payload);
        debug_assert!(at <= end && end - start >= RECORD_HEADER_SIZE + if extended { EXTENDED_HEADER_SIZE } else { 0 });
        (self.begin, self.last, self.used) = (begin, time, end);
        Push::Stored
    }

    /// Completes the packet with the totals of what the stream lost and rejected up to now, and hands it out: the next
    /// record begins another. `None` when it holds no record.
    pub fn finish(&mut self, lost: Lost, rejected_bytes: u64) -> Option<&mut [u8]> {
        if self.used == 0 {
            return None;
        }
        let header = PacketHeader {
            magic: CTF_MAGIC,
            uuid: self.uuid,
            stream_id: 0,
            time_begin: self.begin,
            time_end: self.last,
            content_size: self.used as u64 * 8,
            packet_size: self.packet.len() as u64 * 8,
            sequence: self.sequence,
            events_discarded: lost.total(),
            lost_full: lost.full,
            lost_wrapped: lost.wrapped,
            lost_too_large: lost.too_large,
            cpu_id: self.cpu_id,
            reserved: 0,
            rejected_bytes,
            overwritten: 0,
            reserved2: 0,
        };
        write_header(&mut self.packet, &header);
        self.sequence += 1;
        self.used = 0;
        Some(&mut self.packet)
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
const fn low(time: u64) -> u32 {
    time as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::packet::{Records, read_header};

    fn builder() -> PacketBuilder {
        PacketBuilder::new([7; 16], 1, 256)
    }

    fn records(packet: &[u8]) -> Vec<(u64, u16, Vec<u8>)> {
        let header = read_header(packet).unwrap();
        let content = usize::try_from(header.content_size / 8).unwrap();
        Records::new(packet, content, header.time_begin)
            .map(|record| (record.time, record.id, record.payload.to_vec()))
            .collect()
    }

    #[test]
    fn records_are_read_back_with_full_times() {
        let mut builder = builder();
        let times = [5, 5 + u64::from(u32::MAX), 5 + (1 << 32), u64::MAX];

        let pushed = times.map(|time| builder.push(time, 9, b"abc"));
        let packet = builder.finish(Lost::default(), 0).unwrap();

        assert_eq!(pushed, [Push::Stored; 4]);
        assert_eq!(records(packet), times.map(|time| (time, 9, b"abc".to_vec())));
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

        assert!(packet[PACKET_HEADER_SIZE + 8..].iter().all(|&byte| byte == 0));
        let header = read_header(packet).unwrap();
        assert_eq!((header.sequence, header.events_discarded, header.rejected_bytes), (1, 3, 4));
        assert!(builder.finish(Lost::default(), 0).is_none());
    }
}
