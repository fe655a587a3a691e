//! A record between reserve and commit.

use super::Producer;
use crate::layout::{EXTENDED_ID, HOLE_ID, Mode, RECORD_HEADER_SIZE, RING_HEADER_SIZE, RecordHeader};
use crate::storage::{MappedStorage, Storage};
use core::marker::PhantomData;
use core::mem::ManuallyDrop;

/// A record that is reserved: fill its payload, then [`commit`](Self::commit) it.
///
/// It belongs to the producer that reserved it, cannot be copied, and ends in one of three ways:
///
/// - committed: the consumer delivers it;
/// - dropped, or [`discard`](Self::discard)ed, or left by a panic: its bytes are committed as a record that the consumer
///   passes over. Nothing else is lost, and nothing is counted, as if it had never been reserved;
/// - leaked (`core::mem::forget`): like a context that dies between reserve and commit, it blocks its sub-buffer. A
///   running ring's consumer delivers nothing from this sub-buffer on; the producer goes on for a lap of the ring and then
///   counts each further record as lost ([`RING_LOST_WRAPPED`](crate::layout::RING_LOST_WRAPPED)), until the ring is
///   [repaired](Producer::repair_holes). When the ring is read
///   as a stopped one, everything before the leaked record and in the other sub-buffers is delivered, and the bytes behind
///   it in its sub-buffer are counted as rejected.
///
/// Payload bytes that nobody writes keep what the sub-buffer held before: zeros, or in flight-recorder mode an older
/// record's bytes.
///
/// Any context that its [`Storage`] allows, NMI included.
///
/// ```
/// # use shared_ring::{host::memory::HostMemory, layout::{Geometry, Mode}, producer::Producer, storage::Smp};
/// # let geometry = Geometry::new(4096, 2)?;
/// # let memory = HostMemory::private(geometry.ring_size(Mode::Discard));
/// // SAFETY: the memory is zeroed, holds the ring, and outlives the producer.
/// let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry, Mode::Discard) };
/// let mut reservation = producer.reserve(|| 1000, 5, 12).ok_or("the ring is full")?;
/// reservation.write(0, &7_u32.to_le_bytes())?;
/// reservation.payload()[4..].fill(0xff);
/// reservation.commit();
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// A record is committed once:
///
/// ```compile_fail,E0382
/// # use shared_ring::{producer::Producer, storage::Smp};
/// fn twice(producer: &Producer<Smp>) {
///     let reservation = producer.reserve(|| 1000, 5, 8).unwrap();
///     reservation.commit();
///     reservation.commit();
/// }
/// ```
///
/// It cannot be copied, nor committed by another producer, whose ring may be smaller:
///
/// ```compile_fail,E0599
/// # use shared_ring::{producer::Producer, storage::Smp};
/// fn copied(producer: &Producer<Smp>) {
///     let reservation = producer.reserve(|| 1000, 5, 8).unwrap();
///     reservation.clone().commit();
/// }
/// ```
///
/// ```compile_fail,E0599
/// # use shared_ring::{producer::Producer, storage::Smp};
/// fn foreign(large: &Producer<Smp>, small: &Producer<Smp>) {
///     let reservation = large.reserve(|| 1000, 5, 8).unwrap();
///     small.commit(reservation);
/// }
/// ```
///
/// It does not outlive its producer:
///
/// ```compile_fail,E0515
/// # use shared_ring::{producer::{Producer, Reservation}, storage::Smp};
/// fn outlives<'r>(producer: Producer<Smp>) -> Option<Reservation<'r, Smp>> {
///     producer.reserve(|| 1000, 5, 8)
/// }
/// ```
#[derive(Debug)]
#[must_use = "a reservation that is dropped discards its record: commit it"]
pub struct Reservation<'p, S: Storage> {
    raw: RawReservation<S>,
    producer: PhantomData<&'p Producer<S>>,
}

/// A [`Reservation`] without its ties, for code that cannot keep a borrow: a C caller between two calls.
#[derive(Debug)]
pub struct RawReservation<S> {
    /// By reference: a copy would be written out for C with every record, and read back by its commit.
    pub(super) producer: *const Producer<S>,
    /// Offset in the ring of the record's header word.
    pub(super) header_offset: usize,
    /// Offset in the ring of the payload, a multiple of 8.
    pub(super) payload_offset: usize,
    /// Bytes that are committed with it: of the whole record, and of the packet header where it is the first one.
    pub(super) size: u64,
    /// The header word, made up already: put together in memory from its three fields, it would be read back by one load
    /// that has to wait for three stores.
    pub(super) header: u64,
    /// Where in the sub-buffer table the entry of the record's sub-buffer lies.
    pub(super) entry: usize,
}

/// Bytes were to be written outside the payload that was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsidePayload;

impl core::fmt::Display for OutsidePayload {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("the bytes do not lie inside the payload that was reserved")
    }
}

impl core::error::Error for OutsidePayload {}

impl<S: Storage> Reservation<'_, S> {
    /// Bytes of the payload, as reserved.
    #[must_use]
    #[inline(always)]
    pub const fn payload_size(&self) -> usize {
        RecordHeader::from_word(self.raw.header).payload as usize
    }

    /// Writes `bytes` into the payload, from its byte `at` on.
    ///
    /// # Errors
    /// When they do not lie inside the payload; nothing is written then.
    #[inline(always)]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), OutsidePayload> {
        let end = at.checked_add(bytes.len()).ok_or(OutsidePayload)?;
        if end > self.payload_size() {
            return Err(OutsidePayload);
        }
        // SAFETY: the bytes lie inside the payload, which lies inside the ring and is this context's own until committed.
        unsafe { self.producer().storage.write(self.raw.payload_offset + at, bytes) };
        Ok(())
    }

    /// Writes the payload.
    ///
    /// # Safety
    /// `bytes` is at most as long as the payload.
    #[inline(always)]
    pub(super) unsafe fn write_whole(&mut self, bytes: &[u8]) {
        // SAFETY: as in `write`; the length is the caller's promise.
        unsafe { self.producer().storage.write(self.raw.payload_offset, bytes) };
    }

    /// COMMITSLOT (algorithm 3): makes the record part of its sub-buffer, and publishes the sub-buffer when it was the
    /// last one missing. The consumer's acquire load of `commit_seq` pairs with the publishing.
    #[inline(always)]
    pub fn commit(self) {
        // The record is committed, not discarded.
        ManuallyDrop::new(self).commit_as_reserved();
    }

    /// Commits the record's bytes without the record: the consumer passes over them. The same as dropping it.
    #[inline(always)]
    pub fn discard(self) {
        drop(self);
    }

    /// Gives up the tie to the producer.
    ///
    /// # Safety
    /// Nothing but [`from_raw`](Self::from_raw) ends the record from now on: call it once, and commit or discard what it
    /// returns. Otherwise the record is leaked, with the consequences that [`Reservation`] lists.
    #[inline(always)]
    pub unsafe fn into_raw(self) -> RawReservation<S> {
        let this = ManuallyDrop::new(self);
        // SAFETY: read once, and not dropped.
        unsafe { core::ptr::read(&raw const this.raw) }
    }

    /// The reservation that [`into_raw`](Self::into_raw) gave up.
    ///
    /// # Safety
    /// `raw` is what `into_raw` returned, and is used once. The producer that reserved it is still at the same place and
    /// stays there for the lifetime of what is returned. The context is one that may use the producer's storage: with
    /// CPU-local atomics, the same CPU.
    #[inline(always)]
    pub const unsafe fn from_raw(raw: RawReservation<S>) -> Self {
        Self { raw, producer: PhantomData }
    }

    #[inline(always)]
    const fn producer(&self) -> &Producer<S> {
        // SAFETY: the producer is borrowed for the reservation's lifetime, or its place was promised to `from_raw`.
        unsafe { &*self.raw.producer }
    }

    /// Commits the record in whichever mode and place it was reserved.
    #[inline(always)]
    fn commit_as_reserved(&mut self) {
        self.commit_in(self.producer().mode, self.end());
    }

    /// What [`commit`](Self::commit) does, where the producer's `mode` and the record's [`end`](Self::end) are known.
    #[inline(always)]
    pub(super) fn commit_in(&mut self, mode: Mode, end: u64) {
        self.write_header();
        self.producer().commit_in(mode, self.raw.entry, self.raw.size, end);
    }

    /// Bytes from the beginning of its sub-buffer to the end of the record, where the packet header is not committed with it.
    #[inline(always)]
    pub(super) const fn end(&self) -> u64 {
        self.producer().geometry.within((self.raw.header_offset - RING_HEADER_SIZE) as u64) + self.raw.size
    }

    /// Stores the header word, which says that the record is whole.
    #[inline(always)]
    pub(super) fn write_header(&mut self) {
        // SAFETY: the header word lies inside the ring and is this context's own.
        unsafe { self.producer().storage.store_release(self.raw.header_offset, self.raw.header) };
    }

    /// Makes of the record one that the consumer passes over: its event id becomes [`HOLE_ID`].
    #[cold]
    #[inline(never)]
    fn end_as_discarded(&mut self) {
        let header = RecordHeader::from_word(self.raw.header);
        if mutated!(DiscardNotCommitted) {
            return;
        }
        if mutated!(DiscardDelivered) {
            return self.commit_as_reserved();
        }
        if header.id == EXTENDED_ID {
            let id = self.raw.header_offset + RECORD_HEADER_SIZE + 8;
            // SAFETY: the extended header's second word lies inside the record, which is this context's own.
            unsafe { self.producer().storage.store(id, HOLE_ID.into()) };
        } else {
            // A time that is not zero, since a header word of zero is a record that was never committed.
            self.raw.header = RecordHeader { time_low: u32::MAX, id: HOLE_ID, payload: header.payload }.to_word();
        }
        self.commit_as_reserved();
    }
}

impl<S: MappedStorage> Reservation<'_, S> {
    /// The payload in its place, for writers that fill it field by field; aligned to 8.
    #[must_use]
    #[inline(always)]
    pub fn payload(&mut self) -> &mut [u8] {
        let size = self.payload_size();
        // SAFETY: the payload lies inside the ring, whose bytes lie one after another and are alive (contracts of
        // `MappedStorage` and `Producer::new`), and it is this context's own until committed. The consumer, which may
        // copy it meanwhile, believes only what is committed.
        unsafe {
            let at = self.producer().storage.pointer(self.raw.payload_offset);
            core::slice::from_raw_parts_mut(at, size)
        }
    }
}

impl<S: Storage> Drop for Reservation<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        self.end_as_discarded();
    }
}
