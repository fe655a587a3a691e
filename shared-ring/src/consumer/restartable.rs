//! Rings whose records are made by restartable sequences ([`restartable`](crate::restartable)): the write count says
//! what is there. Everything below it is whole; nothing else in the ring tells of what is committed.

use super::{Consumer, Copied, Found};
use crate::event::EventDescription;
use crate::host::memory::RingMemory;
use crate::layout::{Mode, PACKET_HEADER_SIZE, RING_RESTARTABLE, RING_WRITE_COUNT};
use crate::packet::{Packet, read_header, validate};
use std::vec::Vec;

/// How a ring's records are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Making {
    /// Nothing was recorded when the consumer looked last.
    NotKnown,
    ReserveAndCommit,
    Restartable,
}

impl<M: RingMemory> Consumer<M> {
    /// How the ring's records are made. The guest says it before it records, so the write count is read first: who sees
    /// a record sees this too.
    pub(super) fn making(&self) -> Making {
        if self.making != Making::NotKnown {
            return self.making;
        }
        let is_written = self.memory.load(RING_WRITE_COUNT) != 0 || self.read_count != 0;
        match (is_written, self.memory.load(RING_RESTARTABLE) == 1) {
            (false, _) => Making::NotKnown,
            (true, true) => Making::Restartable,
            (true, false) => Making::ReserveAndCommit,
        }
    }

    /// Copies the next sub-buffer: if it is complete, or, if `unfinished` ones are wanted, what there is of it.
    pub(super) fn find_restartable(&mut self, buffer: &mut Vec<u8>, unfinished: bool) -> Found {
        let write = self.memory.load(RING_WRITE_COUNT);
        if self.exhausted && !self.corrupt {
            return Found::Empty;
        }
        if self.corrupt || write < self.read_count || write > u64::MAX / 2 {
            return Found::Corrupt;
        }
        match self.mode {
            Mode::Discard => self.find_discard(buffer, write, unfinished),
            Mode::FlightRecorder => self.find_recorder(buffer, write, unfinished),
        }
    }

    fn find_discard(&self, buffer: &mut Vec<u8>, write: u64, unfinished: bool) -> Found {
        let there = write - self.read_count;
        if there > self.geometry.data_size() {
            return Found::Corrupt;
        }
        let is_open = there < self.geometry.sub_buffer_size();
        if there == 0 || is_open && !unfinished {
            return Found::Empty;
        }
        self.copy(buffer, self.geometry.data_offset(self.read_count));
        if !is_open {
            return Found::Copied(Copied::complete(buffer), None);
        }
        Found::Copied(Copied::open(there, buffer), Some(self.live_lost()))
    }

    /// One look, from `self.read_count` on: at most one lap. The producer writes on meanwhile. It stores into a
    /// sub-buffer of the next lap only after the write count has come to it: what was copied is a sub-buffer of this
    /// lap if the write count has not come there after the copy.
    fn find_recorder(&mut self, buffer: &mut Vec<u8>, write: u64, unfinished: bool) -> Found {
        let geometry = self.geometry;
        let size = geometry.sub_buffer_size();
        let current = write - geometry.within(write);
        let oldest = (current + size).saturating_sub(geometry.data_size());
        if self.read_count < oldest {
            self.pass_over_overwritten(geometry.sequence(oldest - self.read_count));
        }
        while self.read_count < write {
            let is_open = self.read_count + size > write;
            if is_open && !unfinished {
                return Found::Empty;
            }
            let lost = self.live_lost();
            self.copy(buffer, geometry.data_offset(self.read_count));
            self.memory.fence_acquire();
            let after = self.memory.load(RING_WRITE_COUNT);
            if after.wrapping_sub(self.read_count) >= geometry.data_size() && !mutated!(PositionNotRechecked) {
                self.pass_over_overwritten(1);
                continue;
            }
            if !is_open {
                return Found::Copied(self.unless_another_packet(buffer, Copied::complete(buffer)), None);
            }
            let copied = self.unless_another_packet(buffer, Copied::open(write - self.read_count, buffer));
            // What was lost behind it is not counted in it: nothing was if it is still open.
            return Found::Copied(copied, (after.wrapping_sub(self.read_count) < size).then_some(lost));
        }
        Found::Empty
    }

    /// [`look`](Consumer::look) at such a ring.
    pub(super) fn look_restartable<'b, 'k>(
        &self,
        buffer: &'b mut Vec<u8>,
        latest: u64,
        known: impl Fn(u16) -> Option<&'k EventDescription>,
    ) -> Option<Packet<'b>> {
        let there = self.memory.load(RING_WRITE_COUNT).checked_sub(self.read_count)?;
        if there <= PACKET_HEADER_SIZE as u64 || there >= self.geometry.sub_buffer_size() {
            return None;
        }
        self.copy(buffer, self.geometry.data_offset(self.read_count));
        let begin = read_header(buffer)?.time_begin;
        let contents = validate(buffer, usize::try_from(there).ok()?, begin, self.time_end..=latest, known);
        let header = self.header([0; 16], &contents, contents.time_end);
        Packet::new(buffer, header, contents.records).filter(|_| contents.records > 0)
    }
}

impl Copied {
    /// The first `there` bytes of a sub-buffer that is open, the last one of its ring.
    fn open(there: u64, packet: &[u8]) -> Self {
        let claimed = usize::try_from(there).unwrap_or(usize::MAX).min(packet.len());
        Self { claimed, uncommitted: 0, is_complete: false, is_last: true }
    }
}
