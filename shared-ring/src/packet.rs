//! Packets: what a sub-buffer is once it left the region. Pure functions over bytes that nobody else writes any more.

use crate::event::EventDescription;
use crate::layout::{
    EXTENDED_HEADER_SIZE, EXTENDED_ID, HOLE_ID, PACKET_HEADER_SIZE, PacketHeader, RECORD_ALIGNMENT, RECORD_HEADER_SIZE,
    RecordHeader, padded,
};
use core::mem::offset_of;

/// A record of a packet.
/// For an example see [`Records`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<'a> {
    /// Full time, trace clock ticks.
    pub time: u64,
    /// Event id.
    pub id: u16,
    /// Payload without padding.
    pub payload: &'a [u8],
    /// Offset in the packet of the byte after the record.
    pub end: usize,
}

/// Walks the records of a packet. Ends at the first zero header word and at the first record that does not fit, which
/// [`damaged`](Records::damaged) then tells apart.
///
/// ```
/// use shared_ring::layout::{PACKET_HEADER_SIZE, RecordHeader};
/// use shared_ring::packet::Records;
///
/// let mut packet = vec![0; PACKET_HEADER_SIZE];
/// packet.extend(RecordHeader { time_low: 1_005, id: 3, payload: 8 }.to_word().to_le_bytes());
/// packet.extend(7_u64.to_le_bytes());
/// let records: Vec<_> = Records::new(&packet, packet.len(), 1_000).collect();
/// assert_eq!((records.len(), records[0].time, records[0].id), (1, 1_005, 3));
/// ```
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    offset: usize,
    begin: u64,
    damaged: bool,
}

impl<'a> Records<'a> {
    /// The records of `packet`, whose first `content` bytes are in use, dated from `begin` ticks.
    #[must_use]
    pub fn new(packet: &'a [u8], content: usize, begin: u64) -> Self {
        let bytes = packet.get(..content).unwrap_or(packet);
        Self { bytes, offset: PACKET_HEADER_SIZE, begin, damaged: false }
    }

    /// Whether the walk ended at bytes that are not a record.
    #[must_use]
    pub const fn damaged(&self) -> bool {
        self.damaged
    }

    /// Offset in the packet of the next record.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }
}

/// What lies at a place in a sub-buffer.
enum Parsed<'a> {
    Record(Record<'a>),
    /// A record that its producer discarded after it had reserved it.
    Discarded {
        /// Offset of the byte after it.
        end: usize,
    },
}

/// The record at `offset` in `bytes`, dated from `begin`; `None` when there is none that ends inside them.
#[inline(always)]
fn parse(bytes: &[u8], offset: usize, begin: u64) -> Option<Parsed<'_>> {
    match parse_short(bytes, offset, begin) {
        Some(record) => Some(Parsed::Record(record)),
        None => parse_rare(bytes, offset, begin),
    }
}

/// The same of records with a short header that were not discarded, which most are; `None` for others, too.
#[inline(always)]
fn parse_short(bytes: &[u8], offset: usize, begin: u64) -> Option<Record<'_>> {
    let rest = bytes.get(offset..)?;
    let RecordHeader { time_low, id, payload } = RecordHeader::from_word(read_word(rest, 0)?);
    let time = full_time(time_low, begin)?;
    let end = RECORD_HEADER_SIZE + usize::from(payload);
    if matches!(id, EXTENDED_ID | HOLE_ID) || padded(end) > rest.len() {
        return None;
    }
    Some(Record { time, id, payload: rest.get(RECORD_HEADER_SIZE..end)?, end: offset + padded(end) })
}

/// The time whose low half is `low_half` in a packet dated from `begin`; `None` where there is none so late.
#[inline(always)]
fn full_time(low_half: u32, begin: u64) -> Option<u64> {
    begin.checked_add(u64::from(low_half.wrapping_sub(low(begin))))
}

/// What [`parse`] finds where [`parse_short`] finds nothing.
#[cold]
#[inline(never)]
fn parse_rare(bytes: &[u8], offset: usize, begin: u64) -> Option<Parsed<'_>> {
    let rest = bytes.get(offset..)?;
    let header = RecordHeader::from_word(read_word(rest, 0)?);
    let size = header.record_size();
    let record = rest.get(..size)?;
    let (end, discarded) = (offset + size, Parsed::Discarded { end: offset + size });
    match header.id {
        // A header word of zero was never written: nothing was committed there.
        HOLE_ID => full_time(header.time_low, begin).filter(|_| header.to_word() != 0).map(|_| discarded),
        EXTENDED_ID => {
            let time = read_word(record, RECORD_HEADER_SIZE)?;
            let id = u16::try_from(low(read_word(record, RECORD_HEADER_SIZE + 8)?)).ok()?;
            let start = RECORD_HEADER_SIZE + EXTENDED_HEADER_SIZE;
            let payload = record.get(start..start + usize::from(header.payload))?;
            match id {
                EXTENDED_ID => None,
                HOLE_ID => Some(discarded),
                id => Some(Parsed::Record(Record { time, id, payload, end })),
            }
        }
        // Its time is later than any.
        _ => None,
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        if self.damaged {
            return None;
        }
        let record = match parse_short(self.bytes, self.offset, self.begin) {
            Some(record) => record,
            // Taken apart, so that the record above never lies in memory.
            None => match self.next_rare() {
                Some(Record { time, id, payload, end }) => Record { time, id, payload, end },
                None => return None,
            },
        };
        self.offset = record.end;
        Some(record)
    }
}

impl<'a> Records<'a> {
    /// A record with an extended header; else the walk ends: whether at bytes that nobody wrote, or that are too few for a
    /// header, is kept.
    #[cold]
    #[inline(never)]
    fn next_rare(&mut self) -> Option<Record<'a>> {
        if let Some(Parsed::Record(record)) = parse_rare(self.bytes, self.offset, self.begin) {
            return Some(record);
        }
        let header = self.bytes.get(self.offset..).and_then(|rest| read_word(rest, 0));
        self.damaged = header.is_some_and(|word| word != 0);
        None
    }
}

/// What a packet was found to hold.
/// For an example see [`validate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// Number of records.
    pub records: u64,
    /// Bytes in use: packet header and whole, valid records, the last one's padding included.
    pub content: usize,
    /// Bytes up to the end of the last record's payload: `content` without its padding.
    pub unpadded: usize,
    /// Time of the first record, ticks; `earliest` when there is none.
    pub time_begin: u64,
    /// Time of the last record, ticks; `earliest` when there is none.
    pub time_end: u64,
    /// Bytes that were understood, before discarded records were taken out of them.
    pub read: usize,
    /// Bytes after those that the producer had claimed.
    pub rejected: usize,
}

/// A packet that can be stored as it is: a header that is right, and whole records in the order of their times.
///
/// Consumers make it of what they accept, and a recording takes it without walking it again.
/// For an example see [`Consumer`](crate::consumer::Consumer).
#[derive(Debug)]
pub struct Packet<'a> {
    /// Up to the end of the last record, its padding included.
    bytes: &'a [u8],
    /// Up to the end of the last record's payload.
    content: usize,
    header: PacketHeader,
    records: u64,
}

impl<'a> Packet<'a> {
    /// The packet in `buffer`, over whose beginning it writes `header`. The first `header.content_size` bits are in use;
    /// they end with the payload of the last record, whose padding lies in the buffer too. That they hold `records` records
    /// is the caller's word.
    ///
    /// `None` when `content_size` is not a whole number of bytes that includes a header and, with padding, fits the buffer.
    #[must_use]
    pub fn new(buffer: &'a mut [u8], header: PacketHeader, records: u64) -> Option<Self> {
        let content = usize::try_from(header.content_size / 8).ok()?;
        if header.content_size % 8 != 0 || content < PACKET_HEADER_SIZE {
            return None;
        }
        let bytes = buffer.get_mut(..content.checked_next_multiple_of(RECORD_ALIGNMENT)?)?;
        write_header(bytes, &header);
        Some(Self { bytes, content, header, records })
    }

    /// The packet's header, which its first bytes hold too.
    #[must_use]
    pub const fn header(&self) -> &PacketHeader {
        &self.header
    }

    /// Number of records.
    #[must_use]
    pub const fn record_count(&self) -> u64 {
        self.records
    }

    /// The bytes in use: the header, and the records up to the end of the last one's payload. A packet of
    /// `header.packet_size` bits is these bytes, then zeros.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.bytes[..self.content]
    }

    /// The records.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::new(self.bytes, self.bytes.len(), self.header.time_begin)
    }
}

/// Event types that [`validate`] remembers at a time.
const SEEN_EVENTS: usize = 64;

/// An event type that [`validate`] has met: most have payloads of one size, which is much quicker compared than looked
/// for field by field.
#[derive(Clone, Copy)]
struct KnownEvent<'k> {
    /// 0, which no record has, for none.
    id: u16,
    description: Option<&'k EventDescription>,
    /// Bytes of every payload; `None` when they differ.
    size: Option<usize>,
}

impl<'k> KnownEvent<'k> {
    const NONE: Self = Self { id: HOLE_ID, description: None, size: None };

    fn new(id: u16, description: Option<&'k EventDescription>) -> Self {
        let size = description.and_then(|event| event.fields.iter().map(|field| field.ty.fixed_size()).sum());
        Self { id, description, size }
    }

    #[inline]
    fn accepts(&self, payload: &[u8]) -> bool {
        match self.size {
            Some(size) => payload.len() == size,
            None => self.description.is_some_and(|event| event.accepts(payload)),
        }
    }
}

/// Finds how much of a packet can be believed: records of known events whose payloads fit them, in times that do not
/// decrease, lie within `earliest..=latest` and not before the packet's own `begin`. Stops at the first that does not, and
/// at bytes that were reserved but never committed. Takes out records that their producer discarded: what follows them
/// moves up.
///
/// A packet is stored with the time of its first record as its beginning. No time before `begin` means that the short
/// times, which count from the beginning, are the same from there.
///
/// `claimed` is the number of bytes that the producer says are in use. `known` finds an event type by id.
#[must_use]
pub fn validate<'k>(
    packet: &mut [u8],
    claimed: usize,
    begin: u64,
    times: core::ops::RangeInclusive<u64>,
    known: impl Fn(u16) -> Option<&'k EventDescription>,
) -> Contents {
    let earliest = *times.start();
    let mut seen = [KnownEvent::NONE; SEEN_EVENTS];
    let claimed = claimed.clamp(PACKET_HEADER_SIZE.min(packet.len()), packet.len());
    let mut contents = Contents {
        content: PACKET_HEADER_SIZE,
        unpadded: PACKET_HEADER_SIZE,
        time_begin: earliest,
        time_end: earliest,
        read: PACKET_HEADER_SIZE,
        ..Contents::default()
    };
    let bytes = &packet[..claimed];
    let mut discarded = 0;
    while let Some(parsed) = parse(bytes, contents.read, begin) {
        let record = match parsed {
            Parsed::Record(record) => record,
            Parsed::Discarded { .. } if mutated!(DiscardEndsPacket) => break,
            Parsed::Discarded { end } => {
                discarded += end - contents.read;
                contents.read = end;
                continue;
            }
        };
        let in_order = record.time >= contents.time_end.max(begin) && times.contains(&record.time);
        let event = &mut seen[usize::from(record.id) % SEEN_EVENTS];
        if event.id != record.id {
            *event = KnownEvent::new(record.id, known(record.id));
        }
        if !in_order || !event.accepts(record.payload) {
            break;
        }
        if contents.records == 0 {
            contents.time_begin = record.time;
        }
        contents.records += 1;
        contents.time_end = record.time;
        contents.read = record.end;
        contents.content = record.end - discarded;
        contents.unpadded = contents.content - (padded(record.payload.len()) - record.payload.len());
    }
    contents.rejected = claimed.saturating_sub(contents.read);
    if discarded > 0 {
        take_out_discarded(packet, contents.read, begin);
    }
    contents
}

/// Moves the records among the first `read` bytes of `packet`, which were understood, over the discarded ones.
#[cold]
fn take_out_discarded(packet: &mut [u8], read: usize, begin: u64) {
    let (mut at, mut to) = (PACKET_HEADER_SIZE, PACKET_HEADER_SIZE);
    while let Some(parsed) = parse(&packet[..read], at, begin) {
        match parsed {
            Parsed::Discarded { end } => at = end,
            Parsed::Record(Record { end, .. }) => {
                packet.copy_within(at..end, to);
                to += end - at;
                at = end;
            }
        }
    }
}

/// The header of a packet, from its bytes; `None` when there are too few.
#[must_use]
pub fn read_header(packet: &[u8]) -> Option<PacketHeader> {
    let packet = packet.get(..PACKET_HEADER_SIZE)?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(packet.get(4..20)?);
    let word = |offset| read_word(packet, offset);
    Some(PacketHeader {
        magic: low(word(0)?),
        uuid,
        stream_id: low(word(16)? >> 32),
        time_begin: word(offset_of!(PacketHeader, time_begin))?,
        time_end: word(offset_of!(PacketHeader, time_end))?,
        content_size: word(offset_of!(PacketHeader, content_size))?,
        packet_size: word(offset_of!(PacketHeader, packet_size))?,
        sequence: word(offset_of!(PacketHeader, sequence))?,
        events_discarded: word(offset_of!(PacketHeader, events_discarded))?,
        lost_full: word(offset_of!(PacketHeader, lost_full))?,
        lost_wrapped: word(offset_of!(PacketHeader, lost_wrapped))?,
        lost_too_large: word(offset_of!(PacketHeader, lost_too_large))?,
        cpu_id: low(word(offset_of!(PacketHeader, cpu_id))?),
        flags: low(word(offset_of!(PacketHeader, cpu_id))? >> 32),
        rejected_bytes: word(offset_of!(PacketHeader, rejected_bytes))?,
        overwritten: word(offset_of!(PacketHeader, overwritten))?,
        reserved2: 0,
    })
}

/// Writes `header` over the first [`PACKET_HEADER_SIZE`] bytes of `packet`.
///
/// # Panics
/// When `packet` is shorter than that.
pub fn write_header(packet: &mut [u8], header: &PacketHeader) {
    let mut put = |offset: usize, bytes: &[u8]| packet[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0, &header.magic.to_le_bytes());
    put(4, &header.uuid);
    put(20, &header.stream_id.to_le_bytes());
    let words = [
        header.time_begin,
        header.time_end,
        header.content_size,
        header.packet_size,
        header.sequence,
        header.events_discarded,
        header.lost_full,
        header.lost_wrapped,
        header.lost_too_large,
    ];
    for (index, word) in words.iter().enumerate() {
        put(offset_of!(PacketHeader, time_begin) + index * 8, &word.to_le_bytes());
    }
    put(offset_of!(PacketHeader, cpu_id), &header.cpu_id.to_le_bytes());
    put(offset_of!(PacketHeader, flags), &header.flags.to_le_bytes());
    put(offset_of!(PacketHeader, rejected_bytes), &header.rejected_bytes.to_le_bytes());
    put(offset_of!(PacketHeader, overwritten), &header.overwritten.to_le_bytes());
    put(offset_of!(PacketHeader, reserved2), &[0; 8]);
}

/// The little-endian word at `offset`; `None` past the end.
#[must_use]
#[inline]
pub fn read_word(bytes: &[u8], offset: usize) -> Option<u64> {
    let word = bytes.get(offset..offset.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
const fn low(word: u64) -> u32 {
    word as u32
}
