//! The hot path: one CPU's rings and clock, reserve and commit; and which sessions' rings those are.
#![allow(unsafe_code)] // Rings and clock entries are memory of the host: raw pointers.

use crate::region::{Region, RegionError};
use clock_sync::entry::Reader;
use clock_sync::tsc;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use shared_ring::layout::{RING_ADOPTED, SESSION_SLOTS};
use shared_ring::producer::{Producer, Reservation};
use shared_ring::storage::{CpuLocal, Storage};

/// What a CPU records with.
#[derive(Debug)]
pub struct Recorder {
    clock: Reader,
    vcpu: u32,
    rings: [SessionRing; SESSION_SLOTS],
}

/// The CPU's ring of the session in one slot.
#[derive(Debug)]
struct SessionRing {
    /// Generation of the session that is recorded into; 0 while there is none.
    generation: AtomicU64,
    /// Initialised while `generation` is not 0, and changed only while it is.
    producer: UnsafeCell<MaybeUninit<Producer<CpuLocal>>>,
}

/// A record in the making: its payload is written by the caller, straight into the ring.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    // by reference: a copy would be written out for C with every record, and read back by its commit
    producer: &'r Producer<CpuLocal>,
    reservation: Reservation,
}

impl SessionRing {
    const fn unused() -> Self {
        Self { generation: AtomicU64::new(0), producer: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    #[inline(always)]
    fn producer(&self) -> Option<&Producer<CpuLocal>> {
        if self.generation.load(Ordering::Acquire) == 0 {
            return None;
        }
        // SAFETY: initialised, since the generation is not 0; only this CPU's `follow_sessions` changes it, which no
        // record of this CPU is interrupted by (its contract).
        Some(unsafe { (*self.producer.get()).assume_init_ref() })
    }

    /// Stops recording, then tells the host.
    fn let_go(&self) {
        let Some(producer) = self.producer().copied() else { return };
        self.generation.store(0, Ordering::Relaxed);
        // This CPU's interrupts see its stores in order.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a control word of the ring, which lies inside the region.
        unsafe { producer.storage().store_release(RING_ADOPTED, 0) };
    }

    /// Tells the host, then begins to record, if `is_current` says that the session is still there. The host looks in
    /// the opposite order before it gives the rings to another session: at least one of both sees the other.
    fn adopt(&self, producer: Producer<CpuLocal>, generation: u64, is_current: impl Fn() -> bool) {
        // SAFETY: a control word of the ring, inside the region. The exchange is a full memory barrier; this CPU is the
        // only one that writes the word, and it is 0 or left over from a system that ended without letting go.
        unsafe {
            let left = producer.storage().load(RING_ADOPTED);
            let told = producer.storage().compare_exchange_shared(RING_ADOPTED, left, generation);
            if !told || !is_current() {
                producer.storage().store_release(RING_ADOPTED, 0);
                return;
            }
            // Nobody looks at `producer` while the generation is 0.
            self.producer.get().write(MaybeUninit::new(producer));
        }
        self.generation.store(generation, Ordering::Release);
    }
}

impl Recorder {
    /// The recorder of vCPU `vcpu`, which records nothing before [`follow_sessions`](Self::follow_sessions).
    ///
    /// # Errors
    /// When the region has no such vCPU or the host has not written its clock entry.
    ///
    /// # Safety
    /// Only code that runs on that vCPU uses the recorder, without migrating between a reserve and its commit, and no
    /// other recorder of the vCPU is in use.
    pub unsafe fn new(region: &Region, vcpu: u32) -> Result<Self, RegionError> {
        // SAFETY: the region's clock entries are mapped as long as the region is, aligned, and written by the host.
        let clock = unsafe { Reader::new(region.clock_entry(vcpu)?) };
        if !clock.is_valid() {
            return Err(RegionError::NoClock);
        }
        Ok(Self { clock, vcpu, rings: [const { SessionRing::unused() }; SESSION_SLOTS] })
    }

    /// Begins to record for sessions that are new, and stops for those that are gone.
    ///
    /// # Safety
    /// Called in a task on the recorder's vCPU, not within a record: its interrupts may record meanwhile, and finish
    /// before it goes on.
    pub unsafe fn follow_sessions(&self, region: &Region) {
        for (slot, ring) in self.rings.iter().enumerate() {
            let session = region.session(slot);
            let generation = session.as_ref().map_or(0, |session| session.generation);
            if ring.generation.load(Ordering::Relaxed) == generation {
                continue;
            }
            ring.let_go();
            let Some(session) = session else { continue };
            let Some(at) = region.kernel_ring(&session, self.vcpu) else { continue };
            // SAFETY: `Region::session` found a whole ring of this geometry there, page-aligned; the host hands it out
            // zeroed, and changes it only after `let_go`.
            let producer = unsafe { Producer::new(CpuLocal::new(at), session.rings.geometry, session.rings.mode) };
            let is_current = || region.session(slot).is_some_and(|session| session.generation == generation);
            ring.adopt(producer, generation, is_current);
        }
    }

    /// The session slots that are recorded into, a bit each.
    #[must_use]
    pub fn sessions(&self) -> u64 {
        let bits = self.rings.iter().enumerate().map(|(slot, ring)| u64::from(ring.producer().is_some()) << slot);
        bits.fold(0, |sessions, bit| sessions | bit)
    }

    /// Stops recording for all sessions.
    ///
    /// # Safety
    /// As for [`follow_sessions`](Self::follow_sessions).
    pub unsafe fn release(&self) {
        self.rings.iter().for_each(SessionRing::let_go);
    }

    /// Closes the current sub-buffers of those rings whose consumer has asked for it.
    pub fn flush(&self) {
        for producer in self.rings.iter().filter_map(SessionRing::producer) {
            producer.poll_flush_request(|| self.clock.now(tsc::read));
        }
    }

    /// A slot for event `id` with `payload` bytes in the ring of session slot `session`; `None` when there is no such
    /// session on this CPU, or the record was lost (and counted). Any context, NMI included.
    #[inline(always)]
    pub fn reserve(&self, session: usize, id: u16, payload: usize) -> Option<Record<'_>> {
        let producer = self.rings.get(session)?.producer()?;
        let reservation = producer.reserve(|| self.clock.now(tsc::read), id, payload)?;
        Some(Record { producer, reservation })
    }
}

impl Record<'_> {
    /// Where the payload belongs; aligned to 8.
    #[must_use]
    #[inline(always)]
    pub fn payload(&self) -> *mut u8 {
        self.producer.storage().pointer(self.reservation.payload_offset())
    }

    /// Makes the record visible to the host once its sub-buffer is complete.
    #[inline(always)]
    pub fn commit(self) {
        self.producer.commit(self.reservation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::tests::{FIRST, host_region};
    use core::mem::offset_of;
    use shared_ring::consumer::{Consumer, Poll};
    use shared_ring::event::{Event, EventDescription, Field, FieldType};
    use shared_ring::host_memory::HostMemory;
    use shared_ring::layout::{Mode, SessionSlot};
    use shared_ring::packet::{Records, read_header};
    use shared_ring::region::RegionLayout;
    use std::vec::Vec;
    use zerocopy::IntoBytes;

    const VCPU: u32 = 1;
    const EVENT: Event =
        Event { id: 7, class: 1, name: "test:vector", fields: &[Field::new("vector", FieldType::U32)] };

    fn open(memory: &HostMemory) -> Region {
        // SAFETY: the memory is live and page-aligned.
        unsafe { Region::open(memory.base(), memory.size() as u64) }.unwrap()
    }

    /// The only recorder of its vCPU, used by this thread only.
    fn recorder(memory: &HostMemory) -> Recorder {
        // SAFETY: as the comment above says.
        let recorder = unsafe { Recorder::new(&open(memory), VCPU) }.unwrap();
        follow(&recorder, memory);
        recorder
    }

    fn follow(recorder: &Recorder, memory: &HostMemory) {
        // SAFETY: this thread is the vCPU, and is not within a record.
        unsafe { recorder.follow_sessions(&open(memory)) };
    }

    fn record(recorder: &Recorder, session: usize, vectors: core::ops::Range<u32>) -> usize {
        let records = vectors.filter_map(|vector| {
            let record = recorder.reserve(session, EVENT.id, 4)?;
            // SAFETY: the payload is four bytes of the ring, this thread's own until committed.
            unsafe { record.payload().cast::<u32>().write(vector) };
            record.commit();
            Some(())
        });
        records.count()
    }

    /// Begins a session in `slot`, with the rings that the slot was made for.
    fn begin_session(memory: &HostMemory, layout: &RegionLayout, slot: usize, generation: u64) {
        let session = layout.session(slot, [0; 32], generation, layout.config.sessions[slot].unwrap()).unwrap();
        memory.write(layout.session_slot(slot), session.as_bytes());
    }

    fn vectors(memory: &HostMemory, layout: &RegionLayout, slot: usize) -> Vec<u32> {
        let rings = layout.config.sessions[slot].unwrap();
        let ring = memory.part(layout.kernel_ring(slot, VCPU), rings.ring_size());
        let mut consumer = Consumer::new(ring, rings.geometry, rings.mode, VCPU);
        let described = EventDescription::from(&EVENT);
        let (mut packet, mut vectors) = (Vec::new(), Vec::new());
        while consumer.poll_stopped(&mut packet) == Poll::Copied {
            let known = |id| (id == described.id).then_some(&described);
            let accepted = consumer.accept(&mut packet, [0; 16], u64::MAX, known).unwrap();
            let begin = read_header(&packet).unwrap().time_begin;
            let records = Records::new(&packet, accepted.content, begin);
            vectors.extend(records.map(|record| u32::from(record.payload[0])));
        }
        vectors
    }

    fn adopted(memory: &HostMemory, layout: &RegionLayout, slot: usize) -> u64 {
        memory.load(layout.kernel_ring(slot, VCPU) + RING_ADOPTED)
    }

    #[test]
    fn consumer_reads_what_was_written_into_the_reserved_payload() {
        let (memory, layout) = host_region();
        let recorder = recorder(&memory);

        record(&recorder, 0, 0..10);

        assert_eq!(vectors(&memory, &layout, 0), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn sessions_record_side_by_side() {
        let (memory, layout) = host_region();
        let recorder = recorder(&memory);
        begin_session(&memory, &layout, 2, 9);
        follow(&recorder, &memory);

        record(&recorder, 0, 0..3);
        record(&recorder, 2, 3..5);

        assert_eq!(recorder.sessions(), 0b101);
        assert_eq!((vectors(&memory, &layout, 0), vectors(&memory, &layout, 2)), (vec_of(0..3), vec_of(3..5)));
        assert_eq!((adopted(&memory, &layout, 0), adopted(&memory, &layout, 2)), (FIRST, 9));
    }

    fn vec_of(range: core::ops::Range<u32>) -> Vec<u32> {
        range.collect()
    }

    #[test]
    fn session_that_is_not_followed_yet_records_nothing() {
        let (memory, layout) = host_region();
        let recorder = recorder(&memory);
        begin_session(&memory, &layout, 2, 9);

        assert_eq!(record(&recorder, 2, 0..3), 0);
        assert_eq!(record(&recorder, 7, 0..3), 0);
    }

    #[test]
    fn session_that_is_gone_is_let_go() {
        let (memory, layout) = host_region();
        let recorder = recorder(&memory);
        memory.store(layout.session_slot(0) + offset_of!(SessionSlot, generation), 0);

        let before = record(&recorder, 0, 0..1);
        follow(&recorder, &memory);

        assert_eq!((before, record(&recorder, 0, 0..1), recorder.sessions()), (1, 0, 0));
        assert_eq!(adopted(&memory, &layout, 0), 0);
    }

    #[test]
    fn session_that_ends_while_it_is_adopted_is_not_recorded() {
        let (memory, layout) = host_region();
        let ring = SessionRing::unused();
        // SAFETY: a whole ring lies there, zeroed; this thread is its only user.
        let producer = unsafe {
            let at = memory.base().add(layout.kernel_ring(0, VCPU));
            Producer::new(CpuLocal::new(at), layout.config.sessions[0].unwrap().geometry, Mode::Discard)
        };

        ring.adopt(producer, FIRST, || false);

        assert!(ring.producer().is_none());
        assert_eq!(adopted(&memory, &layout, 0), 0);
    }

    #[test]
    fn released_recorder_records_nothing() {
        let (memory, layout) = host_region();
        let recorder = recorder(&memory);

        // SAFETY: this thread is the vCPU, and is not within a record.
        unsafe { recorder.release() };

        assert_eq!((record(&recorder, 0, 0..1), adopted(&memory, &layout, 0)), (0, 0));
    }

    #[test]
    fn flush_closes_the_sub_buffer_that_the_host_asks_for() {
        let (memory, layout) = host_region();
        let recorder = recorder(&memory);
        let rings = layout.config.sessions[0].unwrap();
        let ring = memory.part(layout.kernel_ring(0, VCPU), rings.ring_size());
        let mut consumer = Consumer::new(ring, rings.geometry, rings.mode, VCPU);
        record(&recorder, 0, 0..1);

        recorder.flush();
        let before = consumer.poll(&mut Vec::new());
        let request = consumer.request_flush();
        recorder.flush();

        assert!(consumer.is_flushed(request));
        assert_eq!((before, consumer.poll(&mut Vec::new())), (Poll::Empty, Poll::Copied));
    }

    #[test]
    fn vcpu_without_a_clock_gets_no_recorder() {
        let (memory, layout) = host_region();
        memory.store(layout.clock_entry(0), 0);

        // SAFETY: this thread is the only user.
        let result = unsafe { Recorder::new(&open(&memory), 0) };

        assert_eq!(result.map(|_| ()), Err(RegionError::NoClock));
    }
}
