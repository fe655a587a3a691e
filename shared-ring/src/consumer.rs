//! The host's half of a ring: deliver whole sub-buffers, believe nothing (algorithms 6 and 7 of the paper, with a copy
//! in place of a shared page).
//!
//! The consumer keeps its own read count, geometry and position; of the guest's memory it reads only words and bytes,
//! which it copies before it looks at them. A ring whose control words contradict each other is *corrupt*: it delivers
//! nothing more, and the rest of the system sees that as loss.

use crate::event::EventDescription;
use crate::host_memory::{HostMemory, RingMemory};
use crate::layout::{
    CTF_MAGIC, Geometry, PacketHeader, RING_LOST_FULL, RING_LOST_TOO_LARGE, RING_LOST_WRAPPED, RING_READ_COUNT,
    RING_WRITE_COUNT,
};
use crate::packet::{read_header, validate, write_header};
use std::vec::Vec;

/// Records that a producer could not write, by reason; totals since the ring began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Lost {
    /// The ring was full.
    pub full: u64,
    /// The record would have wrapped over an unfinished writer.
    pub wrapped: u64,
    /// The record was too large for a sub-buffer.
    pub too_large: u64,
}

impl Lost {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.full.saturating_add(self.wrapped).saturating_add(self.too_large)
    }

    /// Both, by reason.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            full: self.full.saturating_add(other.full),
            wrapped: self.wrapped.saturating_add(other.wrapped),
            too_large: self.too_large.saturating_add(other.too_large),
        }
    }

    /// Counts only grow: what a hostile producer lowers stays where it was.
    const fn raised_to(&self, other: &Self) -> Self {
        const fn max(left: u64, right: u64) -> u64 {
            if left > right { left } else { right }
        }
        Self {
            full: max(self.full, other.full),
            wrapped: max(self.wrapped, other.wrapped),
            too_large: max(self.too_large, other.too_large),
        }
    }
}

/// What happened when a consumer looked for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// A sub-buffer was copied into the packet buffer; [`Consumer::accept`] comes next.
    Copied,
    /// Nothing is ready.
    Empty,
    /// The ring's control words contradict each other; it is not read again.
    Corrupt,
}

/// A packet that was accepted: what its bytes hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Number of records.
    pub records: u64,
    /// Bytes in use, packet header included; the rest of the packet buffer is zero.
    pub content: usize,
    /// Time of the last record, ticks.
    pub time_end: u64,
}

/// Reads one ring. One consumer per ring; it may run on any thread.
#[derive(Debug)]
pub struct Consumer<M = HostMemory> {
    memory: M,
    geometry: Geometry,
    cpu_id: u32,
    /// Free-running bytes consumed; the host's own truth, of which the ring holds a copy for the producer.
    read_count: u64,
    /// Packets written so far: the sequence number of the next one.
    packets: u64,
    time_end: u64,
    lost: Lost,
    rejected_bytes: u64,
    corrupt: bool,
    /// Whether the last sub-buffer of a stopped ring was consumed.
    exhausted: bool,
    /// Bytes of the sub-buffer that was copied last, without padding.
    claimed: usize,
}

impl<M: RingMemory> Consumer<M> {
    /// A consumer of the ring of `geometry` that begins at the first byte of `memory`, written by CPU `cpu_id`.
    ///
    /// # Panics
    /// When the ring does not fit `memory`.
    #[must_use]
    pub fn new(memory: M, geometry: Geometry, cpu_id: u32) -> Self {
        assert!(memory.size() >= geometry.ring_size(), "the ring lies inside its memory");
        Self {
            memory,
            geometry,
            cpu_id,
            read_count: 0,
            packets: 0,
            time_end: 0,
            lost: Lost::default(),
            rejected_bytes: 0,
            corrupt: false,
            exhausted: false,
            claimed: 0,
        }
    }

    /// Size of the packet buffer that [`poll`](Self::poll) fills, bytes.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
    pub const fn packet_size(&self) -> usize {
        self.geometry.sub_buffer_size() as usize
    }

    /// Number of sub-buffers: packets that the ring holds at most.
    #[must_use]
    pub const fn sub_buffers(&self) -> u32 {
        self.geometry.sub_buffers()
    }

    /// The CPU, vCPU or thread that the packets are marked with.
    #[must_use]
    pub const fn cpu_id(&self) -> u32 {
        self.cpu_id
    }

    /// Records lost so far, by reason, as far as packets and [`finish`](Self::finish) have shown.
    #[must_use]
    pub const fn lost(&self) -> Lost {
        self.lost
    }

    /// Bytes that were reserved by the producer but could not be accepted: never committed, or not valid.
    #[must_use]
    pub const fn rejected_bytes(&self) -> u64 {
        self.rejected_bytes
    }

    /// Whether the ring was found corrupt.
    #[must_use]
    pub const fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// READGETSUBBUF: copies the next fully committed sub-buffer into `packet` (resized to
    /// [`packet_size`](Self::packet_size)). The acquire load of `commit_seq` pairs with the producer's publishing.
    pub fn poll(&mut self, packet: &mut Vec<u8>) -> Poll {
        if self.corrupt {
            return Poll::Corrupt;
        }
        let index = self.geometry.index(self.read_count);
        let committed = self.memory.load(self.geometry.commit_seq_offset(index));
        let before = self.geometry.committed_before(self.read_count);
        // Sub-buffer ready (2): one whole sub-buffer more than the laps before.
        match committed.wrapping_sub(before) {
            0 => Poll::Empty,
            ahead if ahead == self.geometry.sub_buffer_size() => {
                self.copy(packet);
                let content = read_header(packet).map_or(0, |header| header.content_size / 8);
                self.claimed = usize::try_from(content).unwrap_or(usize::MAX).min(packet.len());
                Poll::Copied
            }
            _ => {
                self.corrupt = true;
                Poll::Corrupt
            }
        }
    }

    /// Like [`poll`](Self::poll), for a ring whose producers have stopped for good (the guest is dead or its process is
    /// gone): also copies sub-buffers that are not complete, which [`accept`](Self::accept) then cuts at their first
    /// hole.
    pub fn poll_stopped(&mut self, packet: &mut Vec<u8>) -> Poll {
        match self.poll(packet) {
            Poll::Empty => {}
            other => return other,
        }
        let reserved = self.memory.load(RING_WRITE_COUNT).wrapping_sub(self.read_count);
        if reserved == 0 || self.exhausted {
            return Poll::Empty;
        }
        if reserved > self.geometry.data_size() {
            self.corrupt = true;
            return Poll::Corrupt;
        }
        // The last sub-buffer is consumed whole though it was not written whole: the counts no longer compare after it.
        self.exhausted = reserved < self.geometry.sub_buffer_size();
        self.copy(packet);
        self.claimed = usize::try_from(reserved).unwrap_or(usize::MAX).min(packet.len());
        Poll::Copied
    }

    /// READPUTSUBBUF, after [`Poll::Copied`]: cuts `packet` to what can be believed, rewrites its header, clears the
    /// sub-buffer in the ring and gives it back. The release store of the read count pairs with the producer's acquire
    /// load.
    ///
    /// `uuid` is the layer's trace, `latest` the trace clock now (a record cannot be younger), `known` finds an event
    /// type by id. Returns `None` when nothing in the packet could be believed; it was then consumed all the same, and
    /// its bytes are counted as rejected.
    pub fn accept<'k>(
        &mut self,
        packet: &mut [u8],
        uuid: [u8; 16],
        latest: u64,
        known: impl Fn(u16) -> Option<&'k EventDescription>,
    ) -> Option<Accepted> {
        let header = read_header(packet)?;
        let mut contents = validate(packet, self.claimed, header.time_begin, self.time_end..=latest, known);
        if mutated!(TrustContentSize) {
            contents.content = self.claimed;
        }
        let claimed_loss =
            Lost { full: header.lost_full, wrapped: header.lost_wrapped, too_large: header.lost_too_large };
        // A header cannot report more loss than the ring's own counters do by now.
        if claimed_loss.total() <= self.live_lost().total() {
            self.lost = self.lost.raised_to(&claimed_loss);
        }
        self.rejected_bytes = self.rejected_bytes.saturating_add(contents.rejected as u64);
        self.give_back(contents.rejected > 0, contents.content);
        if contents.records == 0 {
            return None;
        }
        packet[contents.content..].fill(0);
        self.time_end = contents.time_end;
        let accepted = Accepted { records: contents.records, content: contents.content, time_end: contents.time_end };
        let header = self.header(packet.len(), uuid, contents.time_begin, accepted);
        write_header(packet, &header);
        self.packets += 1;
        Some(accepted)
    }

    /// Takes over the ring's final loss counts, once its producers have stopped.
    pub fn finish(&mut self) {
        self.lost = self.lost.raised_to(&self.live_lost());
    }

    fn live_lost(&self) -> Lost {
        Lost {
            full: self.memory.load(RING_LOST_FULL),
            wrapped: self.memory.load(RING_LOST_WRAPPED),
            too_large: self.memory.load(RING_LOST_TOO_LARGE),
        }
    }

    fn copy(&self, packet: &mut Vec<u8>) {
        packet.resize(self.packet_size(), 0);
        self.memory.read(self.geometry.data_offset(self.read_count), packet);
    }

    fn give_back(&mut self, damaged: bool, content: usize) {
        let used = if damaged { self.packet_size() } else { content };
        if !mutated!(GiveBackUncleared) {
            self.memory.clear(self.geometry.data_offset(self.read_count), used);
        }
        self.read_count += self.geometry.sub_buffer_size();
        self.memory.store(RING_READ_COUNT, self.read_count);
    }

    fn header(&self, packet_size: usize, uuid: [u8; 16], time_begin: u64, accepted: Accepted) -> PacketHeader {
        PacketHeader {
            magic: CTF_MAGIC,
            uuid,
            stream_id: 0,
            time_begin,
            time_end: accepted.time_end,
            content_size: accepted.content as u64 * 8,
            packet_size: packet_size as u64 * 8,
            sequence: self.packets,
            events_discarded: self.lost.total(),
            lost_full: self.lost.full,
            lost_wrapped: self.lost.wrapped,
            lost_too_large: self.lost.too_large,
            cpu_id: self.cpu_id,
            reserved: 0,
            rejected_bytes: self.rejected_bytes,
            reserved2: [0; 2],
        }
    }
}
