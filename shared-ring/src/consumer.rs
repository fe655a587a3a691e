//! The host's half of a ring: deliver whole sub-buffers, believe nothing (algorithms 6 and 7 of the paper, with a copy
//! in place of a shared page).
//!
//! The consumer keeps its own read count, geometry and position; of the guest's memory it reads only words and bytes,
//! which it copies before it looks at them. A ring whose control words contradict each other is *corrupt*: it delivers
//! nothing more, and the rest of the system sees that as loss.
//!
//! In discard mode what was read is given back to the producer. In flight-recorder mode reading takes nothing away: the
//! consumer exchanges its spare for the sub-buffer that it reads, copies it, and undoes the exchange, so that a second
//! consumer after this one finds everything again. It goes from the oldest sub-buffer to the youngest, and skips what the
//! producer has overwritten in between.

use crate::event::EventDescription;
use crate::exchange::{self, ExchangeWord, Take};
use crate::host_memory::{HostMemory, RingMemory};
use crate::layout::{
    CTF_MAGIC, Geometry, Mode, PACKET_HEADER_SIZE, PacketHeader, RING_FLUSH_DONE, RING_FLUSH_REQUEST, RING_LOST_FULL,
    RING_LOST_TOO_LARGE, RING_LOST_WRAPPED, RING_OVERWRITTEN, RING_READ_COUNT, RING_WRITE_COUNT,
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

/// Loss counts come from producers that may lie: sums stay at the largest number.
impl std::iter::Sum for Lost {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, lost| sum.plus(&lost))
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
    mode: Mode,
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
    /// Bytes of it that were reserved, but are known not to be committed.
    uncommitted: u64,
    /// Whether the sub-buffer that was copied last is not complete.
    is_partial: bool,
    /// Flight recorder: the physical sub-buffer that is the consumer's own.
    spare: usize,
    /// Flight recorder: sub-buffers that were overwritten before anybody had read them.
    overwritten: u64,
}

impl<M: RingMemory> Consumer<M> {
    /// A consumer of the ring of `geometry` and `mode` that begins at the first byte of `memory`, written by CPU
    /// `cpu_id`. In discard mode nobody has read the ring yet. A flight recorder may have had other consumers, one after
    /// another.
    ///
    /// # Panics
    /// When the ring does not fit `memory`.
    #[must_use]
    pub fn new(memory: M, geometry: Geometry, mode: Mode, cpu_id: u32) -> Self {
        assert!(memory.size() >= geometry.ring_size(mode), "the ring lies inside its memory");
        let spare = match mode {
            Mode::Discard => Some(0),
            Mode::FlightRecorder => exchange::find_spare(&memory, geometry),
        };
        Self {
            memory,
            geometry,
            mode,
            cpu_id,
            read_count: 0,
            packets: 0,
            time_end: 0,
            lost: Lost::default(),
            rejected_bytes: 0,
            corrupt: spare.is_none(),
            exhausted: false,
            claimed: 0,
            uncommitted: 0,
            is_partial: false,
            spare: spare.unwrap_or(0),
            overwritten: 0,
        }
    }

    /// Like [`new`](Self::new), for a ring whose earlier consumer is gone: begins where the ring says that it stopped.
    ///
    /// # Panics
    /// As for [`new`](Self::new).
    #[must_use]
    pub fn resume(memory: M, geometry: Geometry, mode: Mode, cpu_id: u32) -> Self {
        let mut consumer = Self::new(memory, geometry, mode, cpu_id);
        if mode == Mode::Discard {
            let read = consumer.memory.load(RING_READ_COUNT);
            consumer.read_count = read;
            // Control words of a later time than half of all would be nonsense, and spare the arithmetic its overflow.
            consumer.corrupt = geometry.within(read) != 0 || read > u64::MAX / 2;
        }
        consumer
    }

    /// Asks the producer to close its current sub-buffer, at its next timer or slow path. Returns the request's number.
    pub fn request_flush(&mut self) -> u64 {
        let request = self.memory.load(RING_FLUSH_REQUEST).wrapping_add(1);
        self.memory.store(RING_FLUSH_REQUEST, request);
        request
    }

    /// Whether the producer says that it has honoured [`request_flush`](Self::request_flush) number `request`.
    #[must_use]
    pub fn is_flushed(&self, request: u64) -> bool {
        self.memory.load(RING_FLUSH_DONE) >= request
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

    /// Flight recorder: sub-buffers that were overwritten before a consumer had read them, as far as packets and
    /// [`finish`](Self::finish) have shown.
    #[must_use]
    pub const fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// What happens when the ring is full.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
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
        self.uncommitted = 0;
        self.is_partial = false;
        if self.mode == Mode::FlightRecorder {
            return self.poll_flight_recorder(packet, false);
        }
        let index = self.geometry.index(self.read_count);
        let committed = self.memory.load(self.geometry.commit_seq_offset(index));
        let before = self.geometry.committed_before(self.read_count);
        // Sub-buffer ready (2): one whole sub-buffer more than the laps before.
        match committed.wrapping_sub(before) {
            0 => Poll::Empty,
            ahead if ahead == self.geometry.sub_buffer_size() => {
                self.copy(packet, self.geometry.data_offset(self.read_count));
                self.claim_content(packet);
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
    /// hole. Once the sub-buffer that was written last is copied there is nothing more to come.
    ///
    /// In flight-recorder mode the producers may be running: this is how a snapshot gets their latest records too.
    pub fn poll_stopped(&mut self, packet: &mut Vec<u8>) -> Poll {
        let reserved = self.memory.load(RING_WRITE_COUNT).wrapping_sub(self.read_count);
        if self.mode == Mode::Discard && !self.corrupt && (reserved == 0 || self.exhausted) {
            // Where all is read, commit counts that a hole kept back would look wrong for the next lap.
            return Poll::Empty;
        }
        match self.poll(packet) {
            Poll::Empty if self.mode == Mode::FlightRecorder => return self.poll_flight_recorder(packet, true),
            Poll::Empty => {}
            other => return other,
        }
        if reserved > self.geometry.data_size() {
            self.corrupt = true;
            return Poll::Corrupt;
        }
        // The last sub-buffer is consumed whole though it was not written whole: the counts no longer compare after it.
        self.exhausted = reserved < self.geometry.sub_buffer_size();
        self.copy(packet, self.geometry.data_offset(self.read_count));
        self.claimed = usize::try_from(reserved).unwrap_or(usize::MAX).min(packet.len());
        Poll::Copied
    }

    /// One look at a flight recorder, from `self.read_count` on: at most one lap. `unfinished` says whether sub-buffers
    /// that are not complete are wanted.
    fn poll_flight_recorder(&mut self, packet: &mut Vec<u8>, unfinished: bool) -> Poll {
        let geometry = self.geometry;
        let write = self.memory.load(RING_WRITE_COUNT);
        let used = geometry.within(write);
        // Where the sub-buffer begins that is being written, or will be next.
        let current = write - used;
        if self.exhausted {
            return Poll::Empty;
        }
        if write < self.read_count || write > u64::MAX / 2 {
            self.corrupt = true;
            return Poll::Corrupt;
        }
        let end = if used == 0 { write } else { current + geometry.sub_buffer_size() };
        self.read_count = self.read_count.max(end.saturating_sub(geometry.data_size()));
        while self.read_count < end {
            match exchange::take(&self.memory, geometry, self.read_count, self.spare) {
                Take::Taken(physical) => {
                    self.copy(packet, geometry.physical_offset(physical));
                    self.spare = exchange::give_back(&self.memory, geometry, self.read_count, physical, self.spare);
                    self.claim_content(packet);
                    self.disbelieve_other_packets(packet);
                    return Poll::Copied;
                }
                Take::Unfinished(_) if !unfinished => return Poll::Empty,
                Take::Unfinished(physical) => {
                    let reserved = if self.read_count == current { used } else { geometry.sub_buffer_size() };
                    self.exhausted = self.read_count == current;
                    if self.copy_unfinished(packet, physical, reserved) {
                        return Poll::Copied;
                    }
                    self.rejected_bytes = self.rejected_bytes.saturating_add(self.uncommitted);
                    self.uncommitted = 0;
                }
                Take::Overwritten => {}
                Take::Corrupt => {
                    self.corrupt = true;
                    return Poll::Corrupt;
                }
            }
            self.read_count += geometry.sub_buffer_size();
        }
        Poll::Empty
    }

    /// Copies what is committed without a hole of the sub-buffer at `self.read_count`, which is behind `physical` and of
    /// which `reserved` bytes were reserved. `false` when there is no record in it, or no longer.
    ///
    /// The producer may be at work: bytes below `commit_prefix` are written once per lap, and the exchange word says after
    /// the copy whether the lap was still the same.
    fn copy_unfinished(&mut self, packet: &mut Vec<u8>, physical: usize, reserved: u64) -> bool {
        let geometry = self.geometry;
        let index = geometry.index(self.read_count);
        let of_lap = |committed: u64| {
            let bytes = committed.checked_sub(geometry.committed_before(self.read_count));
            bytes.filter(|&bytes| bytes <= geometry.sub_buffer_size()).unwrap_or(0)
        };
        let prefix = of_lap(self.memory.load(geometry.commit_prefix_offset(index)));
        // A context that died just after its commit left nothing out. The write count is read after the commit count:
        // then it counts every record that is counted there.
        let committed = of_lap(self.memory.load(geometry.commit_count_offset(index)));
        let reached = self.memory.load(RING_WRITE_COUNT).wrapping_sub(self.read_count);
        let is_whole = committed == reached.min(geometry.sub_buffer_size());
        let content = if is_whole { committed } else { prefix };
        self.uncommitted = reserved.saturating_sub(content);
        if content <= PACKET_HEADER_SIZE as u64 {
            self.uncommitted = reserved;
            return false;
        }
        self.copy(packet, geometry.physical_offset(physical));
        self.memory.fence_acquire();
        let word = ExchangeWord::from_word(self.memory.load(geometry.exchange_offset(index)));
        let wanted = exchange::tag_of(geometry, self.read_count);
        if word.tag() > wanted || word.tag() == wanted && word.is_referenced() {
            self.uncommitted = 0;
            return false;
        }
        self.is_partial = true;
        self.claimed = usize::try_from(content).unwrap_or(usize::MAX).min(packet.len());
        self.disbelieve_other_packets(packet);
        true
    }

    /// A sub-buffer that does not hold the packet that belongs here is taken for empty.
    fn disbelieve_other_packets(&mut self, packet: &[u8]) {
        let expected = self.geometry.sequence(self.read_count);
        if read_header(packet).is_none_or(|header| header.sequence != expected) {
            self.uncommitted = self.uncommitted.saturating_add(self.claimed as u64);
            self.claimed = 0;
        }
    }

    /// Believes the packet's own header about its size, which [`accept`](Self::accept) checks.
    fn claim_content(&mut self, packet: &[u8]) {
        let content = read_header(packet).map_or(0, |header| header.content_size / 8);
        self.claimed = usize::try_from(content).unwrap_or(usize::MAX).min(packet.len());
    }

    /// READPUTSUBBUF, after [`Poll::Copied`]: cuts `packet` to what can be believed, rewrites its header, and in discard
    /// mode clears the sub-buffer in the ring and gives it back. The release store of the read count pairs with the
    /// producer's acquire load.
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
        self.overwritten = self.overwritten.max(self.live_overwritten());
        let rejected = (contents.rejected as u64).saturating_add(self.uncommitted);
        self.rejected_bytes = self.rejected_bytes.saturating_add(rejected);
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
        self.overwritten = self.overwritten.max(self.live_overwritten());
    }

    fn live_overwritten(&self) -> u64 {
        match self.mode {
            Mode::Discard => 0,
            Mode::FlightRecorder => self.memory.load(RING_OVERWRITTEN),
        }
    }

    fn live_lost(&self) -> Lost {
        Lost {
            full: self.memory.load(RING_LOST_FULL),
            wrapped: self.memory.load(RING_LOST_WRAPPED),
            too_large: self.memory.load(RING_LOST_TOO_LARGE),
        }
    }

    fn copy(&self, packet: &mut Vec<u8>, offset: usize) {
        packet.resize(self.packet_size(), 0);
        self.memory.read(offset, packet);
    }

    fn give_back(&mut self, damaged: bool, content: usize) {
        let next = self.read_count + self.geometry.sub_buffer_size();
        match self.mode {
            Mode::Discard => {
                let used = if damaged { self.packet_size() } else { content };
                if !mutated!(GiveBackUncleared) {
                    self.memory.clear(self.geometry.data_offset(self.read_count), used);
                }
                self.memory.store(RING_READ_COUNT, next);
            }
            // Fails when the producer has pushed the count, or when this was read before. What is not complete stays.
            Mode::FlightRecorder if !self.is_partial => {
                let _ = self.memory.compare_exchange(RING_READ_COUNT, self.read_count, next);
            }
            Mode::FlightRecorder => {}
        }
        self.read_count = next;
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
            overwritten: self.overwritten,
            reserved2: 0,
        }
    }
}
