//! Which chunks of a recording's streams are there, and which goes next: the arithmetic of a recording that keeps within a
//! size, apart from its files.
//!
//! A stream is cut into chunks of a sixty-fourth of the size, and the chunk whose last record is the oldest of all
//! streams' goes first. So all streams reach back to about the same moment, and idle ones keep what they have until it is
//! older than that.

use crate::manifest::Dropped;
use shared_ring::consumer::Lost;
use std::collections::{BTreeSet, VecDeque};

/// A chunk takes one part in so many of the recording's size: so much more than needed goes at once, at most.
const CHUNKS: u64 = 64;

/// A stream of the recording: its index.
pub type StreamIndex = usize;

/// What is known of a packet that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenPacket {
    /// Its number in its stream.
    pub sequence: u64,
    /// Time of its begin, ticks.
    pub time_begin: u64,
    /// Time of its end, ticks.
    pub time_end: u64,
    /// Records in it.
    pub records: u64,
    /// Bytes of the disk that it takes.
    pub bytes: u64,
    /// Records of its stream that were lost up to it.
    pub lost: Lost,
    /// Bytes of its stream that were rejected up to it.
    pub rejected_bytes: u64,
}

/// Packets of a stream that lie in one file and go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Number of its first packet in the stream.
    pub first: u64,
    /// Packets.
    pub packets: u64,
    /// When its first packet begins, ticks.
    begin: u64,
    records: u64,
    bytes: u64,
    last: WrittenPacket,
}

#[derive(Debug, Default)]
struct StreamChunks {
    /// The oldest first; packets are added to the last.
    chunks: VecDeque<Chunk>,
    dropped: Dropped,
}

/// The chunks of all streams of a recording.
#[derive(Debug)]
pub struct ChunkLedger {
    limit: u64,
    chunk_bytes: u64,
    /// Bytes that do not go: descriptions.
    fixed: u64,
    /// Bytes of all chunks.
    used: u64,
    has_dropped: bool,
    streams: Vec<StreamChunks>,
    /// End of the oldest chunk of each stream that has any, and the stream.
    oldest: BTreeSet<(u64, StreamIndex)>,
}

impl ChunkLedger {
    /// Of a recording without streams that is to take `limit` bytes at most.
    pub const fn new(limit: u64) -> Self {
        let chunk_bytes = limit / CHUNKS;
        Self { limit, chunk_bytes, fixed: 0, used: 0, has_dropped: false, streams: Vec::new(), oldest: BTreeSet::new() }
    }

    /// The size that the recording keeps within, bytes.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Another stream.
    pub fn add_stream(&mut self) -> StreamIndex {
        self.streams.push(StreamChunks::default());
        self.streams.len() - 1
    }

    /// Bytes that do not go become `bytes` more.
    pub const fn add_fixed(&mut self, bytes: u64) {
        self.fixed = self.fixed.saturating_add(bytes);
    }

    /// Bytes that do not go become `bytes` less.
    pub const fn remove_fixed(&mut self, bytes: u64) {
        self.fixed = self.fixed.saturating_sub(bytes);
    }

    /// Whether `bytes` more fit once all chunks are deleted.
    pub const fn holds(&self, bytes: u64) -> bool {
        self.fixed.saturating_add(bytes) <= self.limit
    }

    /// Whether `bytes` more keep within the size.
    pub const fn fits(&self, bytes: u64) -> bool {
        self.fixed.saturating_add(self.used).saturating_add(bytes) <= self.limit
    }

    /// The chunk that goes next, and its stream; `None` when there is none.
    pub fn oldest(&self) -> Option<(StreamIndex, Chunk)> {
        let &(_, stream) = self.oldest.first()?;
        Some((stream, *self.streams.get(stream)?.chunks.front()?))
    }

    /// Takes the chunk off that [`oldest`](Self::oldest) names: its file is gone.
    pub fn drop_oldest(&mut self) {
        let Some((_, stream)) = self.oldest.pop_first() else { return };
        let Some(StreamChunks { chunks, dropped }) = self.streams.get_mut(stream) else { return };
        let Some(chunk) = chunks.pop_front() else { return };
        self.used -= chunk.bytes;
        self.has_dropped = true;
        dropped.packets += chunk.packets;
        dropped.records += chunk.records;
        dropped.bytes += chunk.bytes;
        dropped.until = chunk.last.time_end;
        dropped.lost = chunk.last.lost;
        dropped.rejected_bytes = chunk.last.rejected_bytes;
        dropped.next = chunk.last.sequence.saturating_add(1);
        if let Some(next) = chunks.front() {
            dropped.next = next.first;
            self.oldest.insert((next.last.time_end, stream));
        }
    }

    /// The chunk that the next packet of `stream`, which begins at `time_begin`, belongs to; `None` when it begins one.
    pub fn current(&self, stream: StreamIndex, time_begin: u64) -> Option<&Chunk> {
        let chunk = self.streams.get(stream)?.chunks.back()?;
        // babeltrace2 reads a stream's files in the order of their beginnings: no two may begin at one moment.
        (chunk.bytes < self.chunk_bytes || chunk.begin == time_begin).then_some(chunk)
    }

    /// Adds a packet to the current chunk of `stream`, or begins one with it.
    pub fn add(&mut self, stream: StreamIndex, packet: WrittenPacket) {
        let is_full = self.current(stream, packet.time_begin).is_none();
        let Some(StreamChunks { chunks, .. }) = self.streams.get_mut(stream) else { return };
        self.used += packet.bytes;
        let is_only = chunks.len() <= 1;
        match chunks.back_mut().filter(|_| !is_full) {
            Some(chunk) => {
                if is_only {
                    self.oldest.remove(&(chunk.last.time_end, stream));
                    self.oldest.insert((packet.time_end, stream));
                }
                chunk.packets += 1;
                chunk.records += packet.records;
                chunk.bytes += packet.bytes;
                chunk.last = packet;
            }
            None => {
                if chunks.is_empty() {
                    self.oldest.insert((packet.time_end, stream));
                }
                let WrittenPacket { sequence: first, time_begin: begin, records, bytes, .. } = packet;
                chunks.push_back(Chunk { first, packets: 1, begin, records, bytes, last: packet });
            }
        }
    }

    /// What of `stream` was dropped so far.
    pub fn dropped(&self, stream: StreamIndex) -> Dropped {
        self.streams.get(stream).map(|stream| stream.dropped).unwrap_or_default()
    }

    /// Whether nothing of `stream` is there any more.
    pub fn is_empty(&self, stream: StreamIndex) -> bool {
        self.streams.get(stream).is_none_or(|stream| stream.chunks.is_empty())
    }

    /// Forgets what was dropped of `stream`, which is all gone: its place is for another.
    pub fn clear(&mut self, stream: StreamIndex) {
        if let Some(stream) = self.streams.get_mut(stream).filter(|stream| stream.chunks.is_empty()) {
            stream.dropped = Dropped::default();
        }
    }

    /// Whether anything was dropped of any stream.
    pub const fn has_dropped(&self) -> bool {
        self.has_dropped
    }
}

#[cfg(test)]
mod tests {
    //! Shows: A recording keeps within its size, holds the newest records, and is readable while it grows.

    use super::*;
    use proptest::prelude::*;

    /// Sixty-four chunks of 100 bytes.
    const LIMIT: u64 = 6400;

    fn packet(sequence: u64, time_end: u64, bytes: u64) -> WrittenPacket {
        let (time_begin, lost) = (time_end, Lost::default());
        WrittenPacket { sequence, time_begin, time_end, records: 2, bytes, lost, rejected_bytes: 0 }
    }

    /// Adds a packet as a writer does; returns the chunks that went.
    fn write(ledger: &mut ChunkLedger, stream: StreamIndex, packet: WrittenPacket) -> Vec<(StreamIndex, u64)> {
        let mut gone = Vec::new();
        while let Some((stream, chunk)) = ledger.oldest().filter(|_| !ledger.fits(packet.bytes)) {
            gone.push((stream, chunk.first));
            ledger.drop_oldest();
        }
        ledger.add(stream, packet);
        gone
    }

    #[test]
    fn chunk_is_full_when_it_has_its_share_of_the_size() {
        let mut ledger = ChunkLedger::new(LIMIT);
        let stream = ledger.add_stream();

        let begins: Vec<u64> = (0..5)
            .map(|sequence| {
                ledger.add(stream, packet(sequence, sequence, 50));
                ledger.streams[stream].chunks.back().unwrap().first
            })
            .collect();

        assert_eq!(begins, [0, 0, 2, 2, 4]);
    }

    #[test]
    fn chunk_of_one_moment_takes_the_next_packet_too() {
        let mut ledger = ChunkLedger::new(LIMIT);
        let stream = ledger.add_stream();

        ledger.add(stream, packet(0, 7, 100));
        ledger.add(stream, WrittenPacket { time_begin: 7, ..packet(1, 9, 100) });
        ledger.add(stream, packet(2, 9, 100));

        let firsts: Vec<u64> = ledger.streams[stream].chunks.iter().map(|chunk| chunk.first).collect();
        assert_eq!(firsts, [0, 2]);
    }

    #[test]
    fn chunk_that_ended_first_goes_first_whatever_its_stream() {
        let mut ledger = ChunkLedger::new(LIMIT);
        let [idle, busy] = [ledger.add_stream(), ledger.add_stream()];
        write(&mut ledger, idle, packet(0, 1_015, 10));

        let gone: Vec<_> =
            (0..67).flat_map(|number| write(&mut ledger, busy, packet(number, 1_000 + 10 * number, 100))).collect();

        assert_eq!(gone, [(busy, 0), (busy, 1), (idle, 0), (busy, 2)]);
        assert!(ledger.is_empty(idle) && !ledger.is_empty(busy));
    }

    #[test]
    fn what_went_is_counted_with_the_last_of_it() {
        let mut ledger = ChunkLedger::new(LIMIT);
        let stream = ledger.add_stream();
        let lost = Lost { full: 7, ..Lost::default() };

        ledger.add(stream, WrittenPacket { lost, rejected_bytes: 3, ..packet(0, 5, 100) });
        ledger.add(stream, packet(4, 9, 100));
        ledger.drop_oldest();

        let expected = Dropped { packets: 1, records: 2, bytes: 100, until: 5, next: 4, lost, rejected_bytes: 3 };
        assert_eq!(ledger.dropped(stream), expected);
    }

    #[test]
    fn descriptions_take_their_part_of_the_size() {
        let mut ledger = ChunkLedger::new(LIMIT);

        ledger.add_fixed(6_000);
        let full = (ledger.fits(400), ledger.fits(401));
        ledger.remove_fixed(1_000);

        assert_eq!((full, ledger.fits(1_400)), ((true, false), true));
    }

    proptest! {
        #[test]
        fn size_is_kept_and_the_newest_of_each_stream_stay(
            packets in proptest::collection::vec((0..4_usize, 1..200_u64), 0..400)
        ) {
            let mut ledger = ChunkLedger::new(LIMIT);
            let streams = [(); 4].map(|()| ledger.add_stream());
            let mut sequences = [0; 4];
            let mut latest_gone = 0;
            for (time, (stream, bytes)) in (1..).zip(packets) {
                while let Some((_, chunk)) = ledger.oldest().filter(|_| !ledger.fits(bytes)) {
                    // In the order of their ends, so that nothing older than what went is left whole.
                    prop_assert!(chunk.last.time_end > latest_gone);
                    latest_gone = chunk.last.time_end;
                    ledger.drop_oldest();
                }
                ledger.add(streams[stream], packet(sequences[stream], time, bytes));
                sequences[stream] += 1;
                let kept = ledger.streams.iter().flat_map(|stream| &stream.chunks);
                prop_assert_eq!(kept.map(|chunk| chunk.bytes).sum::<u64>(), ledger.used);
                prop_assert!(ledger.used <= LIMIT);
            }
            for stream in streams {
                let StreamChunks { chunks, dropped } = &ledger.streams[stream];
                let ends = chunks.iter().scan(dropped.packets, |next, chunk| {
                    let is_next = chunk.first == *next;
                    *next += chunk.packets;
                    Some(is_next)
                });
                prop_assert!(ends.into_iter().all(|is_next| is_next));
                prop_assert_eq!(dropped.packets + chunks.iter().map(|chunk| chunk.packets).sum::<u64>(), sequences[stream]);
                prop_assert!(chunks.iter().all(|chunk| chunk.last.time_end > latest_gone));
            }
        }
    }
}
