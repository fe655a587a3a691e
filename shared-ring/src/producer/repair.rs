//! Going on behind records that are never finished: their task has died, or their system was replaced by another one.
//!
//! Such a record leaves a hole, and a sub-buffer with a hole is never entered again: a lap later nothing is recorded any
//! more. Once it is known that no record of the ring is open, each hole is exact: what was reserved in its sub-buffer and
//! not committed. The repair makes of it what readers pass over, and commits it.
//!
//! How long a hole is follows from the counts, where it begins does not: in discard mode at the first zero header word, in a
//! flight recorder at `commit_prefix`. That suffices for one record. Records that died inside one another, of one
//! sub-buffer, leave several holes, and only their sum is known. Then the sub-buffer is cut at the first one by a header
//! word of zero, and the consumer counts what lies behind as rejected.
#![allow(unsafe_code)] // The storage's methods are unsafe; offsets come from the geometry only.

use super::{LossCounts, Producer};
use crate::layout::{
    HOLE_ID, Mode, PACKET_HEADER_SIZE, PacketHeader, RECORD_HEADER_SIZE, RING_LOST_WRAPPED, RING_WRITE_COUNT,
    RecordHeader,
};
use crate::storage::{ATTEMPTS, Storage};
use core::mem::offset_of;

/// Bytes of the largest record that a hole is covered with.
const LARGEST_COVER: u64 = 1 << 16;

/// Which records of a ring are never finished.
/// For an example see [`Producer::repair_holes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// One at most since the last repair.
    One,
    /// Any number, at any instruction.
    Several,
}

/// Bytes of a sub-buffer that were reserved and not committed.
#[derive(Clone, Copy)]
struct Hole {
    /// Where they begin, from the beginning of the sub-buffer; the packet header left out.
    begin: u64,
    /// Where they end, if they lie at one place.
    end: u64,
    /// Whether a record is lost. In discard mode one is seen to be whole, which its context did not come to count.
    is_lost: bool,
}

/// What is reserved and committed in a sub-buffer, bytes.
#[derive(Clone, Copy)]
struct Filled {
    reserved: u64,
    committed: u64,
}

/// What the packets that are repaired count as lost.
struct Counts {
    /// What was lost when the packet behind was closed, without the record that is lost by the repair.
    behind: LossCounts,
    /// [`RING_LOST_WRAPPED`] before the repair counted the record that is lost: who closed a packet later counts it too.
    before: u64,
    /// Whether the record is not missing from an earlier packet.
    is_counted: bool,
}

impl Counts {
    /// Notes what the closed packet of the sub-buffer at `begin` counts, for the one before it. Loss is counted while no
    /// sub-buffer is open: when the one before was left, nothing was lost that this one does not count.
    fn note<S: Storage>(&mut self, producer: &Producer<S>, begin: u64, packet: usize) {
        let load = |field: usize| {
            // SAFETY: a packet header of the ring.
            unsafe { producer.storage.load(packet + field) }
        };
        // A flight recorder's consumer may have another one there just now.
        if load(offset_of!(PacketHeader, sequence)) == producer.geometry.sequence(begin) {
            let wrapped = load(offset_of!(PacketHeader, lost_wrapped));
            self.behind = LossCounts {
                full: load(offset_of!(PacketHeader, lost_full)),
                wrapped: wrapped.wrapping_sub(u64::from(wrapped > self.before)),
                too_large: load(offset_of!(PacketHeader, lost_too_large)),
            };
        }
    }
}

impl<S: Storage> Producer<S> {
    /// Commits, as bytes that readers pass over, what records that are never finished have reserved, and does what else
    /// their contexts have left undone. Returns whether there was such a record: it is counted as lost then
    /// ([`RING_LOST_WRAPPED`]), by the packet that it is missing from. Of [`Abandoned::Several`] one is counted, and the
    /// consumer counts the bytes that it cannot read.
    ///
    /// What this publishes pairs with the consumer as a [`commit`](super::Reservation::commit) does.
    ///
    /// ```
    /// # use shared_ring::{host::memory::HostMemory, layout::{Geometry, Mode}, producer::Producer, storage::Smp};
    /// use shared_ring::producer::Abandoned;
    ///
    /// # let geometry = Geometry::new(4096, 2)?;
    /// # let memory = HostMemory::private(geometry.ring_size(Mode::Discard));
    /// // SAFETY: the memory is zeroed, holds the ring, and outlives the producer.
    /// let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry, Mode::Discard) };
    /// std::mem::forget(producer.reserve(|| 1000, 5, 8));
    /// // SAFETY: the only record of the ring that is open will never be finished.
    /// assert!(unsafe { producer.repair_holes(Abandoned::One) });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// No reservation of the ring that there is now is ever committed or discarded, and no other call on a producer of it
    /// goes on: what interrupts this may record, and finishes before this goes on. The context is one that may use the
    /// storage: with CPU-local atomics, the same CPU.
    #[cold]
    #[inline(never)]
    pub unsafe fn repair_holes(&self, abandoned: Abandoned) -> bool {
        let behind = self.lost();
        let is_lost = self.sub_buffers_backwards().any(|begin| self.hole(begin).is_some_and(|hole| hole.is_lost));
        let is_uncounted = !is_lost || mutated!(RepairUncounted);
        let before = if is_uncounted { behind.wrapped } else { self.lose(RING_LOST_WRAPPED) };
        let mut counts = Counts { behind, before, is_counted: false };
        for begin in self.sub_buffers_backwards() {
            self.repair(begin, abandoned, &mut counts);
        }
        is_lost
    }

    /// Where the ring's last sub-buffers begin, the youngest first; free-running offsets.
    fn sub_buffers_backwards(&self) -> impl Iterator<Item = u64> {
        let geometry = self.geometry;
        // SAFETY: a ring's control word.
        let write = unsafe { self.storage.load(RING_WRITE_COUNT) };
        let end = geometry.sequence(write.wrapping_add(geometry.sub_buffer_size() - 1));
        let first = end.saturating_sub(geometry.sub_buffers().into());
        (first..end).rev().map(move |sequence| sequence.wrapping_mul(geometry.sub_buffer_size()))
    }

    /// How far the sub-buffer at `begin` is filled; `None` when its counts are not those of this lap.
    fn filled(&self, begin: u64) -> Option<Filled> {
        let geometry = self.geometry;
        for _ in 0..ATTEMPTS {
            // SAFETY: control words of the ring.
            let (before, committed, after) = unsafe {
                (
                    self.storage.load(RING_WRITE_COUNT),
                    self.storage.load(geometry.commit_count_offset(geometry.index(begin))),
                    self.storage.load(RING_WRITE_COUNT),
                )
            };
            // Who has come in between would have reserved, and committed all of it.
            if before == after {
                let reserved = before.wrapping_sub(begin).min(geometry.sub_buffer_size());
                let committed = committed.wrapping_sub(geometry.committed_before(begin));
                return (committed <= reserved).then_some(Filled { reserved, committed });
            }
        }
        None
    }

    /// The hole in the sub-buffer at `begin`.
    fn hole(&self, begin: u64) -> Option<Hole> {
        let filled = self.filled(begin)?;
        let missing = filled.reserved - filled.committed;
        if missing == 0 {
            return None;
        }
        let (at, is_lost) = match self.mode {
            Mode::Discard => self.walk_to_hole(begin, filled.reserved),
            Mode::FlightRecorder => (self.whole_up_to(begin).max(PACKET_HEADER_SIZE as u64), true),
        };
        // The first record's context commits the packet header with it.
        let end = if at == PACKET_HEADER_SIZE as u64 { missing } else { at.wrapping_add(missing) };
        Some(Hole { begin: at, end, is_lost })
    }

    /// Discard mode: where the first header word of zero lies among the first `reserved` bytes of the sub-buffer at `begin`.
    /// Where there is none, the end of its records, and `false`; a packet that was closed says itself where that is.
    fn walk_to_hole(&self, begin: u64, reserved: u64) -> (u64, bool) {
        let load = |at: u64| {
            // SAFETY: the word lies in the sub-buffer: multiples of 8 below its size.
            unsafe { self.storage.load(self.geometry.data_offset(begin.wrapping_add(at))) }
        };
        let content = load(offset_of!(PacketHeader, content_size) as u64) / 8;
        let is_closed = reserved == self.geometry.sub_buffer_size() && content != 0;
        let end = if is_closed { content.min(reserved) } else { reserved };
        let mut at = PACKET_HEADER_SIZE as u64;
        while at < end {
            let word = load(at);
            if word == 0 {
                return (at, true);
            }
            at += RecordHeader::from_word(word).record_size() as u64;
        }
        (at, false)
    }

    /// Flight recorder: bytes of the sub-buffer at `begin` before its first hole.
    fn whole_up_to(&self, begin: u64) -> u64 {
        let geometry = self.geometry;
        // SAFETY: a control word of the ring.
        let prefix = unsafe { self.storage.load(geometry.commit_prefix_offset(geometry.index(begin))) };
        let whole = prefix.wrapping_sub(geometry.committed_before(begin));
        if whole < geometry.sub_buffer_size() { whole & !7 } else { 0 }
    }

    /// Finishes the sub-buffer at `begin`; the one behind it is finished.
    fn repair(&self, begin: u64, abandoned: Abandoned, counts: &mut Counts) {
        let geometry = self.geometry;
        let Some(filled) = self.filled(begin) else { return };
        let is_closed = filled.reserved == geometry.sub_buffer_size();
        let Some(hole) = self.hole(begin) else {
            if is_closed {
                counts.note(self, begin, self.peek_packet(begin));
            }
            if !mutated!(RepairUnpublished) {
                self.publish_again(begin, filled.committed);
            }
            return;
        };
        // Whoever was to hold the sub-buffer, and to write its packet header, may be gone before.
        let packet = if mutated!(RepairUnheld) { self.peek_packet(begin) } else { self.enter(begin) };
        // SAFETY: the packet header lies inside the ring, in a sub-buffer that is not complete.
        unsafe { self.storage.store(packet + offset_of!(PacketHeader, sequence), geometry.sequence(begin)) };
        let is_cut = hole.is_lost && (abandoned == Abandoned::Several || hole.end > filled.reserved);
        if is_closed && (is_cut || hole.end == filled.reserved) {
            self.close_again(packet, hole.is_lost, counts);
        } else if is_closed {
            counts.note(self, begin, packet);
            self.count_lost(packet, hole.is_lost, counts);
        }
        counts.is_counted |= hole.is_lost;
        if is_cut {
            // SAFETY: the hole lies in a sub-buffer that is not complete, and nobody commits it but this.
            unsafe { self.storage.store_release(packet + in_packet(hole.begin), 0) };
        } else if hole.is_lost && !mutated!(RepairUncovered) {
            self.cover(packet, hole);
        }
        self.add_committed(begin, filled.reserved - filled.committed);
    }

    /// Makes records that readers pass over of `hole`.
    fn cover(&self, packet: usize, hole: Hole) {
        let mut at = hole.begin;
        while at < hole.end {
            let size = (hole.end - at).min(LARGEST_COVER);
            // A time that is not zero, since a header word of zero is a record that was never committed.
            let header = RecordHeader { time_low: u32::MAX, id: HOLE_ID, payload: payload_of(size) };
            // SAFETY: the hole lies in a sub-buffer that is not complete, and nobody commits it but this.
            unsafe { self.storage.store_release(packet + in_packet(at), header.to_word()) };
            at += size;
        }
    }

    /// Completes the packet header at offset `packet` in the place of who reserved the sub-buffer's last byte, and is gone.
    /// Where a record `is_lost` all of the sub-buffer is in use. The closing time stays unsaid: the host takes that of the
    /// last record.
    fn close_again(&self, packet: usize, is_lost: bool, counts: &Counts) {
        let LossCounts { full, wrapped, too_large } = counts.behind;
        // SAFETY: a packet header of the ring, in a sub-buffer that is not complete.
        unsafe {
            if is_lost && !mutated!(RepairUnclosed) {
                let bits = self.geometry.sub_buffer_size() * 8;
                self.storage.store(packet + offset_of!(PacketHeader, content_size), bits);
            }
            self.storage.store(packet + offset_of!(PacketHeader, lost_full), full);
            self.storage.store(packet + offset_of!(PacketHeader, lost_wrapped), wrapped);
            self.storage.store(packet + offset_of!(PacketHeader, lost_too_large), too_large);
        }
        self.count_lost(packet, is_lost, counts);
    }

    /// Has the packet header at offset `packet`, which is complete, count the record that is lost by the repair.
    fn count_lost(&self, packet: usize, is_lost: bool, counts: &Counts) {
        let at = packet + offset_of!(PacketHeader, lost_wrapped);
        // SAFETY: a packet header of the ring, in a sub-buffer that is not complete.
        unsafe {
            let wrapped = self.storage.load(at);
            if is_lost && !counts.is_counted && wrapped <= counts.before {
                self.storage.store(at, wrapped.wrapping_add(1));
            }
        }
    }

    /// All that is reserved in the sub-buffer at `begin`, `committed` bytes, is committed: who committed the last of them may
    /// not have come to say so. The next hole of a flight recorder is looked for where that says that it begins.
    fn publish_again(&self, begin: u64, committed: u64) {
        let geometry = self.geometry;
        let count = geometry.committed_before(begin).wrapping_add(committed);
        // SAFETY: a control word of the ring.
        let is_published = || unsafe { self.storage.load(geometry.commit_seq_offset(geometry.index(begin))) } == count;
        if committed < geometry.sub_buffer_size() || !is_published() {
            self.note_committed(geometry.table_offset(begin), count);
        }
    }
}

/// Payload of a record of `size` bytes, which are at most [`LARGEST_COVER`].
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the largest cover's payload has 16 bits")]
const fn payload_of(size: u64) -> u16 {
    size.saturating_sub(RECORD_HEADER_SIZE as u64) as u16
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
const fn in_packet(at: u64) -> usize {
    at as usize
}
