//! Recording: LTTng's reserve/commit scheme on one ring (Desnoyers & Dagenais, *Lockless multi-core high-throughput
//! buffering scheme for kernel tracing*, 2012; equations and algorithms below are that paper's).
//!
//! A record is *reserved* by moving `write_count` forward with a compare-and-swap, written, and *committed* by adding
//! its size to the commit count of its sub-buffer. Reserving gives a [`Reservation`], to be committed once or
//! discarded. Contexts nest at any instruction (task, soft interrupt, interrupt,
//! NMI) and a vCPU may be descheduled at any instruction for any time: nothing here waits for another context, and a
//! sub-buffer is published only when every byte reserved in it is committed.
//!
//! Rules of this implementation that go beyond the paper:
//!
//! - The record's header word is written last, with release order. In discard mode memory that was reserved but not
//!   committed holds a zero header word (the host clears a sub-buffer before it gives it back), so that a partly written
//!   sub-buffer can be read after a crash up to its first hole.
//! - In flight-recorder mode nobody clears, and the hole is found by counting. While everything that is reserved in the
//!   sub-buffer is committed (`commit_count` equals what `write_count` says, read after it), a reader sees that all of it is
//!   whole. Otherwise the hole begins at `commit_prefix`, which a record raises from its beginning to its end when it is
//!   committed. Where the word, or the commit count, does not say the record's beginning, since another context was or is
//!   inside this one or the record is the sub-buffer's first, the word is raised if all that is reserved is committed. So
//!   it says, where contexts nest, at least what was recorded before the first record whose context has not returned; where
//!   threads overlap, what was recorded up to the last moment at which one of them saw no hole. It is never lowered. To
//!   compare the commit count alone with the record's beginning would not do: two nested records of equal size commit as
//!   many bytes as the interrupted one has reserved.
//! - In flight-recorder mode a sub-buffer is entered for a new lap only after `commit_seq` of the last one was published,
//!   which comes after its exchange word was released; see [`exchange`].
//! - A flight recorder's record that stays inside a sub-buffer which a writer holds already goes where the exchange word
//!   said *before* the record was reserved. Nothing can have changed since: the compare-and-swap shows that `write_count`,
//!   which never goes back, was the same all the while, so the lap is not complete, and no consumer exchanges what is held.
//! - A forced switch leaves the sub-buffer and opens no other: the next record does. An idle ring holds no empty packets.
//! - A record is counted as lost, full or wrapped, only while no sub-buffer is open: whoever finds no room for it closes the
//!   open one and looks again. So a smaller record cannot follow it into the same packet, and the loss lies between two
//!   packets.
//! - A record whose time is 2³² ticks or more after the beginning of its packet carries the full time. A context that
//!   interrupts another one between the reservation of a new sub-buffer and the writing of its begin time reads an
//!   older begin time there (the last lap's, or zero). It can then only see a *larger* distance than the true one, and
//!   extends a record without need; it never leaves a needed extension out.
//! - Host and guest share no CPU, so publishing is a release operation and needs no inter-processor interrupt.
#![allow(unsafe_code)] // The storage's methods are unsafe; offsets come from the geometry only.

mod repair;
mod reservation;

pub use repair::Abandoned;
pub use reservation::{OutsidePayload, RawReservation, Reservation};

use crate::exchange;
use crate::layout::{
    ENTRY_COMMIT_PREFIX, ENTRY_COMMIT_SEQ, EXTENDED_HEADER_SIZE, EXTENDED_ID, Geometry, Mode, PACKET_HEADER_SIZE,
    PacketHeader, RECORD_HEADER_SIZE, RING_FLUSH_DONE, RING_FLUSH_REQUEST, RING_HEADER_SIZE, RING_LARGEST_LOST,
    RING_LOST_FULL, RING_LOST_TOO_LARGE, RING_LOST_WRAPPED, RING_NESTED, RING_OVERWRITTEN, RING_READ_COUNT,
    RING_SUB_BUFFER_TABLE, RING_WRITE_COUNT, RecordHeader, SUB_BUFFER_ENTRY_SIZE, padded,
};
use crate::storage::{ATTEMPTS, Storage};
use core::mem::{ManuallyDrop, offset_of};

/// Counts a record of the event `id` with `payload` bytes as larger than a sub-buffer of the ring `storage`, and notes it if
/// it is the largest so far: where contexts lose records at once, one of theirs. In any context.
///
/// # Safety
///
/// The storage begins with a ring.
#[cold]
#[inline(never)]
pub unsafe fn lose_too_large<S: Storage>(storage: &S, id: u16, payload: usize) {
    let bytes = u32::try_from(payload).unwrap_or(u32::MAX);
    // SAFETY: control words of the ring.
    unsafe {
        storage.fetch_add(RING_LOST_TOO_LARGE, 1);
        let noted = storage.load(RING_LARGEST_LOST);
        if noted & u64::from(u32::MAX) < u64::from(bytes) {
            storage.store(RING_LARGEST_LOST, u64::from(id) << 32 | u64::from(bytes));
        }
    }
}

/// Where `commit_prefix` of the first sub-buffer lies.
const PREFIX_IN_TABLE: usize = RING_SUB_BUFFER_TABLE + ENTRY_COMMIT_PREFIX;

/// One ring's recording side.
///
/// May be used from any context that its [`Storage`] allows, NMI included: no locks, no waiting, no allocation, and a
/// bounded number of steps ([`ATTEMPTS`]), whatever the memory holds.
///
/// ```
/// # use shared_ring::event::{Event, EventDescription, Field, FieldType};
/// # use shared_ring::{consumer::Consumer, host::memory::HostMemory, producer::Producer, storage::Smp};
/// # use shared_ring::layout::{Geometry, Mode};
/// # let geometry = Geometry::new(4096, 4)?;
/// # let memory = HostMemory::private(geometry.ring_size(Mode::Discard));
/// # // SAFETY: the memory is zeroed, holds the ring, and outlives the producer.
/// # let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry, Mode::Discard) };
/// # const TICK: Event = Event { id: 1, class: 0, name: "a:tick", fields: &[Field::new("number", FieldType::U64)] };
/// # let known = EventDescription::from(&TICK);
/// use std::cell::Cell;
///
/// let clock = Cell::new(0);
/// let now = || clock.replace(clock.get() + 1);
/// assert!(producer.record(now, TICK.id, &7_u64.to_le_bytes()));
/// // The consumer gets whole sub-buffers: this closes the one that has been begun.
/// assert!(producer.force_switch(now));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Producer<S> {
    storage: S,
    geometry: Geometry,
    mode: Mode,
}

/// Why [`Producer::try_reserve`] reserved nothing.
/// For an example see [`Producer::try_reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReserved {
    /// The record is lost; one of the ring's loss counters shows it.
    Lost,
    /// The clock refused; nothing was counted.
    NoTime,
    /// Each of [`ATTEMPTS`] attempts was overtaken: more contexts than there can be have recorded meanwhile, or the memory
    /// is no longer a ring's. The record is counted as lost, if the memory still counts. Callers that can find out
    /// which, do, before they record here again.
    Stuck,
}

impl core::fmt::Display for NotReserved {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(match self {
            Self::Lost => "the ring has no room for the record, which is counted as lost",
            Self::NoTime => "the clock gave no time for the record",
            Self::Stuck => "the ring's memory does not keep what is written to it, or never rests",
        })
    }
}

impl core::error::Error for NotReserved {}

/// What writes `payload` into a record of its size.
#[inline(always)]
fn whole<S: Storage>(payload: &[u8]) -> impl FnOnce(&mut Reservation<'_, S>) {
    // SAFETY: the record is reserved with the payload's size.
    move |record| unsafe { record.write_whole(payload) }
}

impl<S: Storage> Producer<S> {
    /// A producer for the ring that begins at the storage's first byte.
    ///
    /// # Safety
    /// `storage` covers `geometry.ring_size(mode)` bytes, zeroed before the ring's first use, and only producers of the
    /// same mode and the ring's consumer write there.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(storage: S, geometry: Geometry, mode: Mode) -> Self {
        Self { storage, geometry, mode }
    }

    /// The memory recorded into.
    #[inline(always)]
    pub const fn storage(&self) -> &S {
        &self.storage
    }

    /// Records one event: reserve, copy `payload`, commit. `false` when it was lost (and counted).
    #[inline(always)]
    pub fn record(&self, now: impl Fn() -> u64, id: u16, payload: &[u8]) -> bool {
        let now = move || Some(now());
        self.record_inside(&now, id, payload.len(), whole(payload)).is_ok()
            || self.record_payload_slowly(now, id, payload)
    }

    /// Records one event with `payload` bytes, which `fill` writes: [`try_reserve`](Self::try_reserve) and commit, with less
    /// to do between them.
    ///
    /// # Errors
    /// As for [`try_reserve`](Self::try_reserve). `fill` was not called then, and is given back.
    #[inline(always)]
    pub fn record_with<F: FnOnce(&mut Reservation<'_, S>)>(
        &self,
        now: impl Fn() -> Option<u64>,
        id: u16,
        payload: usize,
        fill: F,
    ) -> Result<(), (NotReserved, F)> {
        match self.record_inside(&now, id, payload, fill) {
            Ok(()) => Ok(()),
            Err(fill) => self.record_slowly(now, id, payload, fill),
        }
    }

    /// [`record_with`](Self::record_with)'s fast path; gives `fill` back where the slow path is needed.
    #[inline(always)]
    fn record_inside<F: FnOnce(&mut Reservation<'_, S>)>(
        &self,
        now: &impl Fn() -> Option<u64>,
        id: u16,
        payload: usize,
        fill: F,
    ) -> Result<(), F> {
        // Each mode its own way, in which nothing asks for the mode again.
        match self.mode {
            Mode::Discard => self.record_in(Mode::Discard, now, id, payload, fill),
            Mode::FlightRecorder => self.record_in(Mode::FlightRecorder, now, id, payload, fill),
        }
    }

    #[inline(always)]
    fn record_in<F: FnOnce(&mut Reservation<'_, S>)>(
        &self,
        mode: Mode,
        now: &impl Fn() -> Option<u64>,
        id: u16,
        payload: usize,
        fill: F,
    ) -> Result<(), F> {
        match self.reserve_inside(mode, now, id, payload) {
            Some((reservation, end)) => {
                Self::finish(mode, reservation, end, fill);
                Ok(())
            }
            None => Err(fill),
        }
    }

    /// [`record`](Self::record)'s slow path. It returns only a `bool`: a larger result would lie in memory, and the
    /// fast path's with it.
    #[cold]
    #[inline(never)]
    fn record_payload_slowly(&self, now: impl Fn() -> Option<u64>, id: u16, payload: &[u8]) -> bool {
        self.record_slowly(now, id, payload.len(), whole(payload)).is_ok()
    }

    /// [`record_with`](Self::record_with)'s slow path: all of it, arguments by value, so that the fast path keeps
    /// nothing ready for it.
    #[cold]
    #[inline(never)]
    fn record_slowly<F: FnOnce(&mut Reservation<'_, S>)>(
        &self,
        now: impl Fn() -> Option<u64>,
        id: u16,
        payload: usize,
        fill: F,
    ) -> Result<(), (NotReserved, F)> {
        match self.reserve_slowly(now, id, payload) {
            Ok(reservation) => {
                let end = reservation.end();
                Self::finish(self.mode, reservation, end, fill);
                Ok(())
            }
            Err(why) => Err((why, fill)),
        }
    }

    /// Writes a record, which ends `end` bytes behind the beginning of its sub-buffer, by `fill`, and commits it. `mode` is
    /// the producer's.
    #[inline(always)]
    fn finish(mode: Mode, mut reservation: Reservation<'_, S>, end: u64, fill: impl FnOnce(&mut Reservation<'_, S>)) {
        if mutated!(CommitBeforeWrite) {
            reservation.commit_in(mode, end);
        }
        if mutated!(HeaderBeforePayload) {
            reservation.write_header();
        }
        fill(&mut reservation);
        let mut reservation = ManuallyDrop::new(reservation);
        if !mutated!(CommitBeforeWrite) {
            reservation.commit_in(mode, end);
        }
    }

    /// RESERVESLOT (algorithms 1 and 2): a slot for event `id` with `payload` bytes, or `None` when the record is lost,
    /// which one of the ring's three loss counters then shows.
    ///
    /// `now` reads the trace clock, ticks. It is called inside the reserve loop, after `write_count` was read, so that
    /// times in a ring never decrease. On an SMP storage it must not be executed ahead of earlier loads.
    #[inline(always)]
    pub fn reserve(&self, now: impl Fn() -> u64, id: u16, payload: usize) -> Option<Reservation<'_, S>> {
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
    ) -> Result<Reservation<'_, S>, NotReserved> {
        let inside = match self.mode {
            Mode::Discard => self.reserve_inside(Mode::Discard, &now, id, payload),
            Mode::FlightRecorder => self.reserve_inside(Mode::FlightRecorder, &now, id, payload),
        };
        match inside {
            Some((reservation, _)) => Ok(reservation),
            None => self.reserve_slowly(now, id, payload),
        }
    }

    /// RESERVESLOT's fast path, for most records: inside a sub-buffer that a writer holds, with a short header, and no
    /// other context in between. Else, or if `now` is `None`, `None`; nothing was reserved then. Also gives where the record
    /// ends in its sub-buffer.
    ///
    /// `mode` is the producer's, known to the compiler.
    #[inline(always)]
    fn reserve_inside(
        &self,
        mode: Mode,
        now: &impl Fn() -> Option<u64>,
        id: u16,
        payload: usize,
    ) -> Option<(Reservation<'_, S>, u64)> {
        // By reference: most of it is used once, by the instruction that loads it.
        let geometry = &self.geometry;
        let too_early = if mutated!(TimeBeforeLoop) { now() } else { None };
        let write = self.write_count();
        let (used, size) = (geometry.within(write), record_bytes(payload, false));
        if payload > usize::from(u16::MAX) || used == 0 || !geometry.is_inside(used + size) {
            return None;
        }
        let start = match mode {
            Mode::Discard => geometry.start(write),
            // SAFETY: the storage covers a flight-recorder ring (contract of `new`).
            Mode::FlightRecorder => unsafe { exchange::peek_held(&self.storage, *geometry, write) }?,
        };
        let packet = RING_HEADER_SIZE + in_memory(start);
        let time = too_early.or_else(now)?;
        // The time affects only a branch, not the new write count: so the clock's latency stays out of the chain from
        // record to record.
        if self.is_extended(packet, time) || !self.advance(write, write + size) {
            return None;
        }
        if mode == Mode::FlightRecorder {
            exchange::show_hold(&self.storage);
        }
        let place = Place { position: write, at: packet + in_memory(used), extended: false, opens: false };
        Some((self.reservation(place, time, id, payload), used + size))
    }

    /// `write_count`. What an attempt reads afterwards, of the clock and of the sub-buffer, is not older: acquire, which
    /// pairs with the release of [`advance`](Self::advance) by which another thread moved it there.
    #[inline(always)]
    fn write_count(&self) -> u64 {
        // SAFETY: a ring's control word.
        unsafe { self.storage.load_acquire(RING_WRITE_COUNT) }
    }

    /// Moves `write_count` from `write` to `new`; `false` when it was not `write` any more.
    #[inline(always)]
    fn advance(&self, write: u64, new: u64) -> bool {
        if mutated!(ReserveNotAtomic) {
            // SAFETY: a ring's control word.
            unsafe { self.storage.store(RING_WRITE_COUNT, write) };
        }
        // SAFETY: a ring's control word.
        unsafe { self.storage.compare_exchange(RING_WRITE_COUNT, write, new) }
    }

    /// RESERVESLOT in whichever way leads there.
    #[cold]
    #[inline(never)]
    fn reserve_slowly(
        &self,
        now: impl Fn() -> Option<u64>,
        id: u16,
        payload: usize,
    ) -> Result<Reservation<'_, S>, NotReserved> {
        let largest = RECORD_HEADER_SIZE + EXTENDED_HEADER_SIZE + padded(payload);
        if payload > usize::from(u16::MAX) || PACKET_HEADER_SIZE + largest > sub_buffer_bytes(self.geometry) {
            // SAFETY: the storage is a ring.
            unsafe { lose_too_large(&self.storage, id, payload) };
            return Err(NotReserved::Lost);
        }
        let too_early = if mutated!(TimeBeforeLoop) { now() } else { None };
        for _ in 0..ATTEMPTS {
            let write = self.write_count();
            let Some(time) = too_early.or_else(&now) else { return Err(NotReserved::NoTime) };
            match self.reserve_at(write, time, payload) {
                Attempt::Done(place) => return Ok(self.reservation(place, time, id, payload)),
                Attempt::Lost(counter) => {
                    self.lose(counter);
                    return Err(NotReserved::Lost);
                }
                Attempt::Retry => {}
            }
        }
        self.lose(RING_LOST_WRAPPED);
        Err(NotReserved::Stuck)
    }

    /// Whether a record of `time` inside the sub-buffer whose packet header lies at offset `packet` needs its full time.
    #[inline(always)]
    fn is_extended(&self, packet: usize, time: u64) -> bool {
        // SAFETY: the packet header lies inside the ring.
        let begin = unsafe { self.storage.load(packet + offset_of!(PacketHeader, time_begin)) };
        let distance = time.wrapping_sub(begin);
        distance >> 32 != 0 && !(mutated!(ExtendedThresholdOffByOne) && distance == 1 << 32)
    }

    /// An attempt at RESERVESLOT while `write_count` is `write`.
    #[inline(never)]
    fn reserve_at(&self, write: u64, time: u64, payload: usize) -> Attempt {
        let geometry = self.geometry;
        let used = geometry.within(write);
        if used == 0 {
            // The last record filled its sub-buffer exactly, or nothing was recorded yet.
            return self.try_open(write, write, time, payload);
        }
        let extended = self.is_extended(self.peek_packet(write), time);
        let size = record_bytes(payload, extended);
        if used + size > geometry.sub_buffer_size() {
            return self.try_open(write, self.end_of_sub_buffer(write), time, payload);
        }
        let lost = self.lost();
        if !self.advance(write, write + size) {
            return Attempt::Retry;
        }
        let at = self.enter(write);
        if used + size == geometry.sub_buffer_size() {
            self.close(at - in_memory(used), time, geometry.sub_buffer_size(), &lost);
        }
        Attempt::Done(Place { position: write, at, extended, opens: false })
    }

    /// TRYRESERVESLOT at the beginning of sub-buffer `target` (a free-running offset), leaving the one that `write`
    /// lies in unless `write == target`.
    fn try_open(&self, write: u64, target: u64, time: u64, payload: usize) -> Attempt {
        let geometry = self.geometry;
        let index = geometry.index(target);
        let commit_word = match self.mode {
            Mode::Discard => geometry.commit_count_offset(index),
            // Published after the exchange word was released.
            Mode::FlightRecorder if mutated!(ReuseBeforeRelease) => geometry.commit_count_offset(index),
            Mode::FlightRecorder => geometry.commit_seq_offset(index),
        };
        // SAFETY: control words of the ring.
        let (committed, read, flush) = unsafe {
            (
                self.storage.load_acquire(commit_word),
                self.storage.load_acquire(RING_READ_COUNT),
                self.storage.load(RING_FLUSH_REQUEST),
            )
        };
        if committed != geometry.committed_before(target) && !mutated!(NoFullyCommittedTest) {
            // Not fully committed (3): either the reader is a whole lap behind, or contexts that nest between another
            // one's reserve and commit have written a whole lap. A stale `write` shows up here too.
            return self.find_no_room(write, target, time, RING_LOST_WRAPPED);
        }
        let is_full = target.wrapping_sub(read) >= geometry.data_size() && !mutated!(NoFullTest);
        if self.mode == Mode::Discard && is_full {
            // Buffer full (1).
            return self.find_no_room(write, target, time, RING_LOST_FULL);
        }
        let lost = self.lost();
        let first = target.wrapping_add(PACKET_HEADER_SIZE as u64);
        let size = record_bytes(payload, false);
        if !self.advance(write, first.wrapping_add(size)) {
            return Attempt::Retry;
        }
        if self.mode == Mode::FlightRecorder {
            self.push_reader(target);
        }
        if write != target {
            // SWITCHOLDSUBBUF.
            self.leave(write, time, &lost);
        }
        // Whatever was requested before the old sub-buffer was left is done.
        // SAFETY: a control word of the ring.
        unsafe { self.storage.store(RING_FLUSH_DONE, flush) };
        // SWITCHNEWSUBBUF.
        let packet = self.enter(target);
        // SAFETY: the new sub-buffer's packet header lies inside the ring and was reserved by this context.
        unsafe {
            self.storage.store(packet + offset_of!(PacketHeader, time_begin), time);
            self.storage.store(packet + offset_of!(PacketHeader, sequence), geometry.sequence(target));
        }
        if geometry.within(first.wrapping_add(size)) == 0 {
            self.close(packet, time, geometry.sub_buffer_size(), &lost);
        }
        Attempt::Done(Place { position: first, at: packet + PACKET_HEADER_SIZE, extended: false, opens: true })
    }

    /// The sub-buffer at `target` is not free, and the record does not fit where `write` lies: it is lost, which `counter`
    /// is to show. First the sub-buffer that is open is closed: a smaller record might still fit, and the loss would lie
    /// between two records of one packet.
    #[cold]
    #[inline(never)]
    fn find_no_room(&self, write: u64, target: u64, time: u64, counter: usize) -> Attempt {
        if write != target && !mutated!(LossLeavesOpen) {
            // Whether this context closed it or another one was faster: there may be room by now.
            self.try_switch(write, time);
            return Attempt::Retry;
        }
        // SAFETY: a ring's control word.
        if unsafe { self.storage.load(RING_WRITE_COUNT) } != write {
            return Attempt::Retry;
        }
        Attempt::Lost(counter)
    }

    /// FORCESWITCH (algorithm 4): closes the current sub-buffer if it holds data, so that the consumer can have it.
    /// Returns whether it did. Any context that may record.
    pub fn force_switch(&self, now: impl Fn() -> u64) -> bool {
        let geometry = self.geometry;
        for _ in 0..ATTEMPTS {
            let write = self.write_count();
            let time = now();
            if geometry.within(write) == 0 {
                return false;
            }
            if self.try_switch(write, time) {
                return true;
            }
            if mutated!(ForceSwitchGivesUp) {
                return false;
            }
        }
        false
    }

    /// The end of the sub-buffer around `position`. In memory that is no longer a ring's, `position` may be near
    /// `u64::MAX`.
    #[inline(always)]
    const fn end_of_sub_buffer(&self, position: u64) -> u64 {
        (position - self.geometry.within(position)).wrapping_add(self.geometry.sub_buffer_size())
    }

    /// Reserves the rest of the sub-buffer in whose middle `write` lies, and closes it. `false` when another context was
    /// faster.
    fn try_switch(&self, write: u64, time: u64) -> bool {
        let next = self.end_of_sub_buffer(write);
        let lost = self.lost();
        let is_switched = self.advance(write, next);
        if is_switched {
            self.leave(write, time, &lost);
        }
        is_switched
    }

    /// Closes the current sub-buffer if the consumer has asked for that since the last time. Returns whether there was a
    /// new request. Called when the host has asked; a record that opens a sub-buffer honours the request as well.
    pub fn poll_flush_request(&self, now: impl Fn() -> u64) -> bool {
        // SAFETY: control words of the ring.
        let (wanted, done) =
            unsafe { (self.storage.load_acquire(RING_FLUSH_REQUEST), self.storage.load(RING_FLUSH_DONE)) };
        if wanted == done {
            return false;
        }
        self.force_switch(now);
        // SAFETY: a control word of the ring.
        unsafe { self.storage.store_release(RING_FLUSH_DONE, wanted) };
        true
    }

    /// PUSHREADER: moves the read count in front of the sub-buffer at `target`, which is about to be overwritten, and
    /// counts what the consumer has not read.
    fn push_reader(&self, target: u64) {
        let geometry = self.geometry;
        for _ in 0..ATTEMPTS {
            // SAFETY: a control word of the ring.
            let read = unsafe { self.storage.load(RING_READ_COUNT) };
            // A nested writer may have pushed it further, even to `target` itself.
            if (target.wrapping_sub(read) as i64) < geometry.data_size() as i64 {
                return;
            }
            let oldest = target.wrapping_sub(geometry.data_size()).wrapping_add(geometry.sub_buffer_size());
            // SAFETY: control words of the ring.
            unsafe {
                if mutated!(PushNotAtomic) {
                    self.storage.store(RING_READ_COUNT, read);
                }
                if self.storage.compare_exchange_shared(RING_READ_COUNT, read, oldest) {
                    self.storage.fetch_add(RING_OVERWRITTEN, geometry.sequence(oldest.wrapping_sub(read)));
                    return;
                }
            }
        }
    }

    /// SWITCHOLDSUBBUF: the rest of `position`'s sub-buffer, which this context has reserved, is padding.
    fn leave(&self, position: u64, time: u64, lost: &LossCounts) {
        let geometry = self.geometry;
        let used = geometry.within(position);
        let at = self.enter(position);
        self.close(at - in_memory(geometry.within(position)), time, used, lost);
        if !mutated!(PaddingNotCommitted) {
            self.add_committed(position, geometry.sub_buffer_size() - used);
        }
        if mutated!(PublishWhenLeft) {
            let committed = geometry.committed_before(position) + geometry.sub_buffer_size();
            self.publish(geometry.table_offset(position), committed);
        }
    }

    /// ENDSWITCHCURRENT: completes the packet header at offset `packet` of the ring; `used` bytes of the packet hold data.
    /// Whoever reserved the sub-buffer's last byte calls this before committing it, with what [`lost`](Self::lost) gave
    /// before the reservation.
    #[inline(never)]
    fn close(&self, packet: usize, time: u64, used: u64, lost: &LossCounts) {
        let lost = if mutated!(CountLossAfterSwitch) { &self.lost() } else { lost };
        // SAFETY: a packet header of the ring; only the context that reserved the sub-buffer's last byte writes these
        // fields.
        unsafe {
            self.storage.store(packet + offset_of!(PacketHeader, time_end), time);
            self.storage.store(packet + offset_of!(PacketHeader, content_size), used * 8);
            self.storage.store(packet + offset_of!(PacketHeader, lost_full), lost.full);
            self.storage.store(packet + offset_of!(PacketHeader, lost_wrapped), lost.wrapped);
            self.storage.store(packet + offset_of!(PacketHeader, lost_too_large), lost.too_large);
        }
    }

    /// What was lost so far. A sub-buffer's packet counts what was lost up to its last byte's reservation: read before the
    /// compare-and-swap, which fails when `write_count` has changed since. Read after it, the counts would hold what
    /// nested contexts lost behind later packets.
    #[inline(always)]
    fn lost(&self) -> LossCounts {
        // SAFETY: control words of the ring.
        unsafe {
            LossCounts {
                full: self.storage.load(RING_LOST_FULL),
                wrapped: self.storage.load(RING_LOST_WRAPPED),
                too_large: self.storage.load(RING_LOST_TOO_LARGE),
            }
        }
    }

    /// COMMITSLOT (algorithm 3) of a record that ends `end` bytes behind the beginning of its sub-buffer (the first one: as
    /// much farther as the packet header is long, so that it matches no commit count), whose entry lies at
    /// `entry` of the sub-buffer table: adds its `bytes` to the commit count, and does what follows from that. `mode` is
    /// the producer's.
    #[inline(always)]
    fn commit_in(&self, mode: Mode, entry: usize, bytes: u64, end: u64) {
        let before = self.add_to_count(entry, bytes);
        let committed = before.wrapping_add(bytes);
        let is_done = match mode {
            Mode::Discard => self.geometry.within(committed) != 0,
            Mode::FlightRecorder => self.extend_prefix(entry, before, committed, end),
        };
        if !is_done {
            self.note_committed(RING_SUB_BUFFER_TABLE + entry, committed);
        }
    }

    /// Raises `commit_prefix` from `before` to `committed`, the commit count around a record that ends at `end`: if as much
    /// was committed before as lies before the record, and none of that was a hole, there is none before its end. `false` if
    /// not all of this is so, or the sub-buffer is full.
    #[inline(always)]
    fn extend_prefix(&self, entry: usize, before: u64, committed: u64, end: u64) -> bool {
        let reached = self.geometry.within(committed);
        let is_next = reached == end || mutated!(PrefixOutOfOrder) && reached != 0;
        // SAFETY: a control word of the ring.
        is_next && unsafe { self.storage.compare_exchange_at::<PREFIX_IN_TABLE>(entry, before, committed) }
    }

    /// Commits `bytes` of the sub-buffer around `position` that are no record, or not this context's.
    fn add_committed(&self, position: u64, bytes: u64) {
        let entry = self.geometry.offset_in_table(position);
        let before = self.add_to_count(entry, bytes);
        self.note_committed(RING_SUB_BUFFER_TABLE + entry, before.wrapping_add(bytes));
    }

    /// Adds `bytes` to the commit count at `entry` of the sub-buffer table; what it was.
    #[inline(always)]
    fn add_to_count(&self, entry: usize, bytes: u64) -> u64 {
        if mutated!(CommitCountNotAtomic) {
            return self.add_in_two_steps(RING_SUB_BUFFER_TABLE + entry, bytes);
        }
        // SAFETY: a control word of the ring.
        unsafe { self.storage.fetch_add_at::<RING_SUB_BUFFER_TABLE>(entry, bytes) }
    }

    /// Publishes the sub-buffer whose commit count, at offset `entry`, has become `committed`, if nothing is missing;
    /// otherwise a flight recorder says what is whole.
    #[cold]
    #[inline(never)]
    fn note_committed(&self, entry: usize, committed: u64) {
        if self.geometry.within(committed) == 0 {
            self.publish(entry, committed);
        } else if self.mode == Mode::FlightRecorder {
            self.note_whole(entry);
        }
    }

    /// Raises `commit_prefix` to what is committed in the sub-buffer with the table entry at offset `entry`, if it is the
    /// open one and that is all that was reserved there.
    fn note_whole(&self, entry: usize) {
        let geometry = self.geometry;
        // The write count is looked at behind the commit count: else records that were reserved in between would count for
        // as much as an earlier one has reserved and not committed.
        // SAFETY: control words of the ring.
        let (committed, write) = unsafe {
            let too_early = mutated!(PrefixOfLater).then(|| self.storage.load(RING_WRITE_COUNT));
            let committed = self.storage.load_acquire(entry);
            (committed, too_early.unwrap_or_else(|| self.storage.load_acquire(RING_WRITE_COUNT)))
        };
        let reserved = geometry.committed_before(write).wrapping_add(geometry.within(write));
        let is_whole = geometry.table_offset(write) == entry && committed == reserved || mutated!(PrefixOverHole);
        if is_whole && !mutated!(PrefixLeftBehind) {
            self.raise(entry + ENTRY_COMMIT_PREFIX, committed);
        }
    }

    /// All of a lap is committed in the sub-buffer whose commit count lies at offset `word`: the consumer may have it, then
    /// the next lap may begin.
    #[cold]
    #[inline(never)]
    fn publish(&self, word: usize, committed: u64) {
        if self.mode == Mode::FlightRecorder {
            let index = (word - RING_SUB_BUFFER_TABLE) / SUB_BUFFER_ENTRY_SIZE;
            // The commit count is one sub-buffer's size per lap: the tag is their number.
            let tag = self.geometry.sequence(committed);
            // SAFETY: `index` is one of the ring's; only one addition made its commit count this one.
            unsafe { exchange::complete(&self.storage, self.geometry, index, tag) };
        }
        self.raise(word + ENTRY_COMMIT_SEQ, committed);
    }

    /// Raises a published count to `committed`, never back: a context that was interrupted here must not undo what the
    /// interrupting one published.
    #[inline(always)]
    fn raise(&self, word: usize, committed: u64) {
        for _ in 0..ATTEMPTS {
            // SAFETY: a control word of the ring.
            let published = unsafe { self.storage.load(word) };
            let is_newer = committed.wrapping_sub(published) as i64 > 0;
            if mutated!(PublishWithoutRelease) {
                // SAFETY: a control word of the ring.
                return unsafe { self.storage.store(word, committed) };
            }
            if mutated!(PublishGoesBack) {
                // SAFETY: a control word of the ring.
                return unsafe { self.storage.store_release(word, committed) };
            }
            // SAFETY: a control word of the ring.
            if !is_newer || unsafe { self.storage.compare_exchange(word, published, committed) } {
                return;
            }
        }
    }

    /// Tells the consumer that this producer counts what [`lose_nested`](Self::lose_nested) is called for. What is counted
    /// already stays. Not while another context records here.
    pub fn count_nested(&self) {
        // SAFETY: a control word of the ring.
        unsafe {
            if self.storage.load(RING_NESTED) == 0 {
                self.storage.store(RING_NESTED, 1);
            }
        }
    }

    /// Counts a record that is not made because making another one, in the same context, led to it.
    #[cold]
    #[inline(never)]
    pub fn lose_nested(&self) {
        // SAFETY: a control word of the ring.
        unsafe { self.storage.fetch_add(RING_NESTED, 1) };
    }

    /// Counts a lost record. Returns what was counted before.
    #[cold]
    #[inline(never)]
    fn lose(&self, counter: usize) -> u64 {
        if mutated!(LossNotAtomic) {
            return self.add_in_two_steps(counter, 1);
        }
        // SAFETY: a control word of the ring.
        unsafe { self.storage.fetch_add(counter, 1) }
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
    fn reservation(&self, place: Place, time: u64, id: u16, payload: usize) -> Reservation<'_, S> {
        let mut header = RecordHeader { time_low: time as u32, id, payload: payload as u16 };
        let mut payload_offset = place.at + RECORD_HEADER_SIZE;
        if place.extended {
            header.id = EXTENDED_ID;
            // SAFETY: the reservation includes the extended header.
            unsafe {
                self.storage.store(payload_offset, time);
                self.storage.store(payload_offset + 8, u64::from(id));
            }
            payload_offset += EXTENDED_HEADER_SIZE;
        }
        // SAFETY: these bytes were just reserved, by this producer, and nobody has committed them.
        unsafe {
            Reservation::from_raw(RawReservation {
                producer: self,
                header_offset: place.at,
                payload_offset,
                size: record_bytes(payload, place.extended) + if place.opens { PACKET_HEADER_SIZE as u64 } else { 0 },
                header: header.to_word(),
                entry: self.geometry.offset_in_table(place.position),
            })
        }
    }

    /// Offset in the ring of the packet header of `position`'s sub-buffer, to be read only: nothing keeps a flight recorder's
    /// consumer from exchanging a sub-buffer that no writer holds. What is read there is the header of this packet or of an
    /// earlier one.
    fn peek_packet(&self, position: u64) -> usize {
        let geometry = self.geometry;
        match self.mode {
            Mode::Discard => geometry.data_offset(position - geometry.within(position)),
            // SAFETY: the storage covers a flight-recorder ring (contract of `new`); the index is one of its own.
            Mode::FlightRecorder => unsafe { exchange::peek(&self.storage, geometry, geometry.index(position)) },
        }
    }

    /// Offset in the ring of `position`, which this context has reserved, and from now until it commits, its own.
    #[inline(always)]
    fn enter(&self, position: u64) -> usize {
        let geometry = self.geometry;
        match self.mode {
            Mode::Discard => geometry.data_offset(position),
            Mode::FlightRecorder => {
                // SAFETY: as in `peek_packet`.
                let start = unsafe { exchange::hold(&self.storage, geometry, geometry.index(position)) };
                start + in_memory(geometry.within(position))
            }
        }
    }
}

/// Totals of lost records, by reason.
struct LossCounts {
    full: u64,
    wrapped: u64,
    too_large: u64,
}

/// Where a record is reserved.
struct Place {
    /// Free-running offset.
    position: u64,
    /// Offset in the ring.
    at: usize,
    /// Whether it carries its full time.
    extended: bool,
    /// Whether it is the first one of its sub-buffer, whose packet header is committed with it.
    opens: bool,
}

/// What came of an attempt.
enum Attempt {
    Done(Place),
    /// This counter shows it.
    Lost(usize),
    /// Another context was faster.
    Retry,
}

#[inline(always)]
const fn record_bytes(payload: usize, extended: bool) -> u64 {
    let extension = if extended { EXTENDED_HEADER_SIZE } else { 0 };
    (RECORD_HEADER_SIZE + extension + padded(payload)) as u64
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
const fn in_memory(bytes: u64) -> usize {
    bytes as usize
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
const fn sub_buffer_bytes(geometry: Geometry) -> usize {
    geometry.sub_buffer_size() as usize
}
