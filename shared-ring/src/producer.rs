//! Recording: LTTng's reserve/commit scheme on one ring (Desnoyers & Dagenais, *Lockless multi-core high-throughput
//! buffering scheme for kernel tracing*, 2012; equations and algorithms below are that paper's).
//!
//! A record is *reserved* by moving `write_count` forward with a compare-and-swap, written, and *committed* by adding
//! its size to the commit count of its sub-buffer. Contexts nest at any instruction (task, soft interrupt, interrupt,
//! NMI) and a vCPU may be descheduled at any instruction for any time: nothing here waits for another context, and a
//! sub-buffer is published only when every byte reserved in it is committed.
//!
//! Three rules of this implementation go beyond the paper:
//!
//! - The record's header word is written last, with release order. Memory that was reserved but not committed holds a
//!   zero header word (the host clears a sub-buffer before it gives it back), so that a partly written sub-buffer can
//!   be read after a crash up to its first hole.
//! - A record whose time is 2³² ticks or more after the beginning of its packet carries the full time. A context that
//!   interrupts another one between the reservation of a new sub-buffer and the writing of its begin time reads an
//!   older begin time there (the last lap's, or zero). It can then only see a *larger* distance than the true one, and
//!   extends a record without need; it never leaves a needed extension out.
//! - Host and guest share no CPU, so publishing is a release operation and needs no inter-processor interrupt.
#![allow(unsafe_code)] // The storage's methods are unsafe; offsets come from the geometry only.

use crate::layout::{
    EXTENDED_HEADER_SIZE, EXTENDED_ID, Geometry, PACKET_HEADER_SIZE, PacketHeader, RECORD_HEADER_SIZE, RING_LOST_FULL,
    RING_LOST_TOO_LARGE, RING_LOST_WRAPPED, RING_READ_COUNT, RING_WRITE_COUNT, RecordHeader, padded,
};
use crate::storage::Storage;
use core::mem::offset_of;

/// One ring's recording side.
///
/// May be used from any context that its [`Storage`] allows, NMI included: no locks, no waiting, no allocation, and a
/// bounded number of steps unless other contexts keep recording in between.
#[derive(Clone, Copy, Debug)]
pub struct Producer<S> {
    storage: S,
    geometry: Geometry,
}

/// A reserved record: write exactly the asked-for payload at `payload_offset`, then [`commit`](Producer::commit).
#[derive(Clone, Copy, Debug)]
#[must_use = "a reserved record that is never committed blocks its sub-buffer"]
pub struct Reservation {
    /// Offset in the ring of the record's header word.
    header_offset: usize,
    /// Offset in the ring of the payload, a multiple of 8.
    payload_offset: usize,
    /// Bytes of the whole record.
    size: u64,
    header: RecordHeader,
    /// Index of the record's sub-buffer.
    sub_buffer: usize,
    time: u64,
}

/// Why [`Producer::try_reserve`] reserved nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReserved {
    /// The record is lost; one of the ring's loss counters shows it.
    Lost,
    /// The clock refused; nothing was counted.
    NoTime,
}

impl Reservation {
    /// Offset in the ring of the payload, bytes; a multiple of 8.
    #[must_use]
    #[inline(always)]
    pub const fn payload_offset(&self) -> usize {
        self.payload_offset
    }

    /// The record's time, trace clock ticks.
    #[must_use]
    #[inline(always)]
    pub const fn time(&self) -> u64 {
        self.time
    }
}

impl<S: Storage> Producer<S> {
    /// A producer for the ring that begins at the storage's first byte.
    ///
    /// # Safety
    /// `storage` covers `geometry.ring_size()` bytes, zeroed before the ring's first use, and only producers and the
    /// ring's consumer write there.
    #[must_use]
    pub const unsafe fn new(storage: S, geometry: Geometry) -> Self {
        Self { storage, geometry }
    }

    /// The memory recorded into.
    #[inline(always)]
    pub const fn storage(&self) -> &S {
        &self.storage
    }

    /// Records one event: reserve, copy `payload`, commit. `false` when it was lost (and counted).
    #[inline(always)]
    pub fn record(&self, now: impl Fn() -> u64, id: u16, payload: &[u8]) -> bool {
        let Some(reservation) = self.reserve(now, id, payload.len()) else { return false };
        if mutated!(CommitBeforeWrite) {
            self.commit(reservation);
        }
        if mutated!(HeaderBeforePayload) {
            // SAFETY: as in `commit`.
            unsafe { self.storage.store_release(reservation.header_offset, reservation.header.to_word()) };
        }
        // SAFETY: the reservation is `payload.len()` bytes inside the ring and this context's own until committed.
        unsafe { self.storage.write(reservation.payload_offset, payload) };
        if !mutated!(CommitBeforeWrite) {
            self.commit(reservation);
        }
        true
    }

    /// RESERVESLOT (algorithms 1 and 2): a slot for event `id` with `payload` bytes, or `None` when the record is lost,
    /// which one of the ring's three loss counters then shows.
    ///
    /// `now` reads the trace clock, ticks. It is called inside the reserve loop, after `write_count` was read, so that
    /// times in a ring never decrease. On an SMP storage it must not be executed ahead of earlier loads.
    #[inline(always)]
    pub fn reserve(&self, now: impl Fn() -> u64, id: u16, payload: usize) -> Option<Reservation> {
        self.try_reserve(|| Some(now()), id, payload).ok()
    }

    /// [`reserve`](Self::reserve) with a clock that may refuse: a thread that finds, while it reads the time, that it
    /// has left the CPU whose ring this is, gives up without having reserved anything and takes the other CPU's ring.
    ///
    /// # Errors
    /// The record was lost (and counted), or `now` returned `None`.
    #[inline(always)]
    pub fn try_reserve(
        &self,
        now: impl Fn() -> Option<u64>,
        id: u16,
        payload: usize,
    ) -> Result<Reservation, NotReserved> {
        let geometry = self.geometry;
        let largest = RECORD_HEADER_SIZE + EXTENDED_HEADER_SIZE + padded(payload);
        if payload > usize::from(u16::MAX) || PACKET_HEADER_SIZE + largest > sub_buffer_bytes(geometry) {
            return self.lose(RING_LOST_TOO_LARGE);
        }
        let too_early = if mutated!(TimeBeforeLoop) { now() } else { None };
        loop {
            // SAFETY: a ring's control word.
            let write = unsafe { self.storage.load(RING_WRITE_COUNT) };
            let Some(time) = too_early.or_else(&now) else { return Err(NotReserved::NoTime) };
            let used = geometry.within(write);
            if used == 0 {
                // The last record filled its sub-buffer exactly, or nothing was recorded yet.
                match self.try_open(write, write, time, id, payload) {
                    Attempt::Done(reservation) => return Ok(reservation),
                    Attempt::Lost(counter) => return self.lose(counter),
                    Attempt::Retry => continue,
                }
            }
            // SAFETY: the packet header of the current sub-buffer lies inside the ring.
            let begin = unsafe { self.storage.load(self.packet_word(write, offset_of!(PacketHeader, time_begin))) };
            let distance = time.wrapping_sub(begin);
            let extended = distance >> 32 != 0 && !(mutated!(ExtendedThresholdOffByOne) && distance == 1 << 32);
            let size = record_bytes(payload, extended);
            if used + size > geometry.sub_buffer_size() {
                let next = write - used + geometry.sub_buffer_size();
                match self.try_open(write, next, time, id, payload) {
                    Attempt::Done(reservation) => return Ok(reservation),
                    Attempt::Lost(counter) => return self.lose(counter),
                    Attempt::Retry => continue,
                }
            }
            if mutated!(ReserveNotAtomic) {
                // SAFETY: a ring's control word.
                unsafe { self.storage.store(RING_WRITE_COUNT, write) };
            }
            // SAFETY: a ring's control word.
            if unsafe { self.storage.compare_exchange(RING_WRITE_COUNT, write, write + size) } {
                if used + size == geometry.sub_buffer_size() {
                    self.close(write, time, geometry.sub_buffer_size());
                }
                return Ok(self.reservation(write, time, id, payload, extended));
            }
        }
    }

    /// COMMITSLOT (algorithm 3): makes the record part of its sub-buffer, and publishes the sub-buffer when it was the
    /// last one missing. The consumer's acquire load of `commit_seq` pairs with the publishing.
    #[inline(always)]
    pub fn commit(&self, reservation: Reservation) {
        // SAFETY: the reservation's header word lies inside the ring and is this context's own.
        unsafe { self.storage.store_release(reservation.header_offset, reservation.header.to_word()) };
        self.add_committed(reservation.sub_buffer, reservation.size);
    }

    /// TRYRESERVESLOT at the beginning of sub-buffer `target` (a free-running offset), leaving the one that `write`
    /// lies in unless `write == target`.
    #[cold]
    #[inline(never)]
    fn try_open(&self, write: u64, target: u64, time: u64, id: u16, payload: usize) -> Attempt {
        let geometry = self.geometry;
        let index = geometry.index(target);
        // SAFETY: control words of the ring.
        let (committed, read) = unsafe {
            (self.storage.load(geometry.commit_count_offset(index)), self.storage.load_acquire(RING_READ_COUNT))
        };
        if committed != geometry.committed_before(target) && !mutated!(NoFullyCommittedTest) {
            // Not fully committed (3): either the reader is a whole lap behind, or contexts that nest between another
            // one's reserve and commit have written a whole lap. A stale `write` shows up here too: look again.
            // SAFETY: a ring's control word.
            if unsafe { self.storage.load(RING_WRITE_COUNT) } != write {
                return Attempt::Retry;
            }
            return Attempt::Lost(RING_LOST_WRAPPED);
        }
        if target.wrapping_sub(read) >= geometry.data_size() && !mutated!(NoFullTest) {
            // Buffer full (1), discard mode.
            return Attempt::Lost(RING_LOST_FULL);
        }
        let first = target + PACKET_HEADER_SIZE as u64;
        let size = record_bytes(payload, false);
        // SAFETY: a ring's control word.
        if !unsafe { self.storage.compare_exchange(RING_WRITE_COUNT, write, first + size) } {
            return Attempt::Retry;
        }
        if write != target {
            // SWITCHOLDSUBBUF: the rest of the old sub-buffer is padding.
            let used = geometry.within(write);
            self.close(write, time, used);
            if !mutated!(PaddingNotCommitted) {
                self.add_committed(geometry.index(write), geometry.sub_buffer_size() - used);
            }
            if mutated!(PublishWhenLeft) {
                self.publish(geometry.index(write), geometry.committed_before(write) + geometry.sub_buffer_size());
            }
        }
        // SWITCHNEWSUBBUF.
        // SAFETY: the new sub-buffer's packet header lies inside the ring and was reserved by this context.
        unsafe {
            self.storage.store(self.packet_word(target, offset_of!(PacketHeader, time_begin)), time);
            self.storage.store(self.packet_word(target, offset_of!(PacketHeader, sequence)), geometry.sequence(target));
        }
        self.add_committed(index, PACKET_HEADER_SIZE as u64);
        if geometry.within(first + size) == 0 {
            self.close(target, time, geometry.sub_buffer_size());
        }
        Attempt::Done(self.reservation(first, time, id, payload, false))
    }

    /// ENDSWITCHCURRENT: completes the packet header of `position`'s sub-buffer, of which `used` bytes hold data.
    /// Whoever reserved the sub-buffer's last byte calls this before committing it.
    #[inline(never)]
    fn close(&self, position: u64, time: u64, used: u64) {
        // SAFETY: control words and a packet header of the ring; only the context that reserved the sub-buffer's last
        // byte writes these fields.
        unsafe {
            let full = self.storage.load(RING_LOST_FULL);
            let wrapped = self.storage.load(RING_LOST_WRAPPED);
            let too_large = self.storage.load(RING_LOST_TOO_LARGE);
            self.storage.store(self.packet_word(position, offset_of!(PacketHeader, time_end)), time);
            self.storage.store(self.packet_word(position, offset_of!(PacketHeader, content_size)), used * 8);
            self.storage.store(self.packet_word(position, offset_of!(PacketHeader, lost_full)), full);
            self.storage.store(self.packet_word(position, offset_of!(PacketHeader, lost_wrapped)), wrapped);
            self.storage.store(self.packet_word(position, offset_of!(PacketHeader, lost_too_large)), too_large);
        }
    }

    #[inline(always)]
    fn add_committed(&self, sub_buffer: usize, bytes: u64) {
        let geometry = self.geometry;
        let word = geometry.commit_count_offset(sub_buffer);
        let before = if mutated!(CommitCountNotAtomic) {
            self.add_in_two_steps(word, bytes)
        } else {
            // SAFETY: a control word of the ring.
            unsafe { self.storage.fetch_add(word, bytes) }
        };
        let committed = before.wrapping_add(bytes);
        if geometry.within(committed) == 0 {
            self.publish(sub_buffer, committed);
        }
    }

    /// Raises `commit_seq` to `committed`, never back: a context that was interrupted here must not undo what the
    /// interrupting one published.
    #[cold]
    #[inline(never)]
    fn publish(&self, sub_buffer: usize, committed: u64) {
        let word = self.geometry.commit_seq_offset(sub_buffer);
        loop {
            // SAFETY: a control word of the ring.
            let published = unsafe { self.storage.load(word) };
            let is_newer = (committed.wrapping_sub(published)).cast_signed() > 0;
            if mutated!(PublishWithoutRelease) || mutated!(PublishGoesBack) {
                let order = if mutated!(PublishGoesBack) { S::store_release } else { S::store };
                // SAFETY: a control word of the ring.
                return unsafe { order(&self.storage, word, committed) };
            }
            // SAFETY: a control word of the ring.
            if !is_newer || unsafe { self.storage.compare_exchange(word, published, committed) } {
                return;
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn lose(&self, counter: usize) -> Result<Reservation, NotReserved> {
        if mutated!(LossNotAtomic) {
            self.add_in_two_steps(counter, 1);
            return Err(NotReserved::Lost);
        }
        // SAFETY: a control word of the ring.
        unsafe { self.storage.fetch_add(counter, 1) };
        Err(NotReserved::Lost)
    }

    /// What a context may not do to a word that another one can change in between; for mutants.
    #[allow(dead_code, reason = "only mutants do this")]
    fn add_in_two_steps(&self, word: usize, value: u64) -> u64 {
        // SAFETY: a control word of the ring, from the callers.
        unsafe {
            let before = self.storage.load(word);
            self.storage.store(word, before.wrapping_add(value));
            before
        }
    }

    #[inline(always)]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the low half of the time is what the header holds; the payload was checked"
    )]
    fn reservation(&self, at: u64, time: u64, id: u16, payload: usize, extended: bool) -> Reservation {
        let header_offset = self.geometry.data_offset(at);
        let mut header = RecordHeader { time_low: time as u32, id, payload: payload as u16 };
        let mut payload_offset = header_offset + RECORD_HEADER_SIZE;
        if extended {
            header.id = EXTENDED_ID;
            // SAFETY: the reservation includes the extended header.
            unsafe {
                self.storage.store(payload_offset, time);
                self.storage.store(payload_offset + 8, u64::from(id));
            }
            payload_offset += EXTENDED_HEADER_SIZE;
        }
        Reservation {
            header_offset,
            payload_offset,
            size: record_bytes(payload, extended),
            header,
            sub_buffer: self.geometry.index(at),
            time,
        }
    }

    /// Offset in the ring of a word of the packet header of `position`'s sub-buffer.
    #[inline(always)]
    fn packet_word(&self, position: u64, field: usize) -> usize {
        self.geometry.data_offset(position - self.geometry.within(position)) + field
    }
}

enum Attempt {
    Done(Reservation),
    Lost(usize),
    Retry,
}

#[inline(always)]
const fn record_bytes(payload: usize, extended: bool) -> u64 {
    let extension = if extended { EXTENDED_HEADER_SIZE } else { 0 };
    (RECORD_HEADER_SIZE + extension + padded(payload)) as u64
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
const fn sub_buffer_bytes(geometry: Geometry) -> usize {
    geometry.sub_buffer_size() as usize
}
