//! The hot path: one CPU's rings and clock, reserve and commit.
#![allow(unsafe_code)] // Rings and clock entries are memory of the host: raw pointers.

use crate::region::RegionError;
use clock_sync::entry::Reader;
use clock_sync::tsc;
use shared_ring::guest::{Region, SessionRings};
use shared_ring::producer::{Abandoned, NotReserved, Reservation};
use shared_ring::storage::CpuLocal;

/// What a CPU records with.
#[derive(Debug)]
pub struct Recorder {
    clock: Reader,
    vcpu: u32,
    rings: SessionRings<CpuLocal>,
}

impl Recorder {
    /// The recorder of vCPU `vcpu`, which records nothing before [`follow_sessions`](Self::follow_sessions).
    ///
    /// # Errors
    /// When the region has no such vCPU.
    ///
    /// # Safety
    /// Only code that runs on that vCPU uses the recorder, without migrating between a reserve and its commit, and no
    /// other recorder of the vCPU is in use.
    pub unsafe fn new(region: &Region, vcpu: u32) -> Result<Self, RegionError> {
        let entry = region.view().clock_entry(vcpu).ok_or(RegionError::NoSuchVcpu)?;
        // SAFETY: the region's clock entries are mapped as long as the region is, aligned, and written by the host.
        let clock = unsafe { Reader::new(region.pointer(entry)) };
        Ok(Self { clock, vcpu, rings: SessionRings::new() })
    }

    /// Begins to record for sessions that are new, and stops for those that are gone. Without the vCPU's clock entry, which a
    /// host that comes to a running machine writes before it opens a session, it records for none.
    ///
    /// # Safety
    /// Called on the recorder's vCPU, in a task or a hard interrupt, with none of the vCPU's records unfinished, and not
    /// within itself: what interrupts it may record meanwhile, and finishes before it goes on.
    pub unsafe fn follow_sessions(&self, region: &Region) {
        if !self.clock.is_valid() {
            // SAFETY: passed on from the caller.
            unsafe { self.rings.release() };
            return;
        }
        // SAFETY: passed on from the caller; the offset is that of a ring, and only this vCPU uses its storage.
        unsafe { self.rings.follow(region.area(), self.vcpu, |ring| CpuLocal::new(region.pointer(ring))) };
    }

    /// Whether the host wants something of the recorder's vCPU: [`follow_sessions`](Self::follow_sessions) or
    /// [`flush`](Self::flush) with records to close. Any CPU, any context.
    #[must_use]
    pub fn is_wanted(&self, region: &Region) -> bool {
        if !self.clock.is_valid() {
            return self.rings.in_use() != 0;
        }
        // SAFETY: the offset is that of a ring, which lies inside the region.
        unsafe { self.rings.is_wanted(region.area(), self.vcpu, |ring| CpuLocal::new(region.pointer(ring))) }
    }

    /// The session slots that are recorded into, a bit each.
    #[must_use]
    pub fn sessions(&self) -> u64 {
        self.rings.in_use()
    }

    /// Stops recording for all sessions.
    ///
    /// # Safety
    /// As for [`follow_sessions`](Self::follow_sessions).
    pub unsafe fn release(&self) {
        // SAFETY: passed on from the caller.
        unsafe { self.rings.release() };
    }

    /// Closes the current sub-buffers of those rings whose consumer has asked for it.
    pub fn flush(&self) {
        self.rings.poll_flush_requests(|| self.clock.now(tsc::read));
    }

    /// The trace clock, ticks; `None` before a host has written the vCPU's clock entry. On that vCPU, in any context.
    #[must_use]
    pub fn now(&self) -> Option<u64> {
        self.clock.is_valid().then(|| self.clock.now(tsc::read))
    }

    /// Goes on behind records that are never finished: their tasks have died.
    ///
    /// # Safety
    /// As for [`follow_sessions`](Self::follow_sessions): no record of the vCPU is open that will be finished.
    pub unsafe fn repair(&self, abandoned: Abandoned) {
        // SAFETY: passed on from the caller.
        unsafe { self.rings.repair_holes(abandoned) };
    }

    /// Counts a record that is not made in the ring of session slot `session`, because the CPU is making another one in the
    /// same context. Any context, NMI included.
    pub fn lose_nested(&self, session: usize) {
        if let Some(producer) = self.rings.producer(session) {
            producer.lose_nested();
        }
    }

    /// A slot for event `id` with `payload` bytes in the ring of session slot `session`; `None` when there is no such
    /// session on this CPU, an error when the record was lost (and counted). Any context, NMI included.
    #[inline(always)]
    pub fn reserve(
        &self,
        session: usize,
        id: u16,
        payload: usize,
    ) -> Option<Result<Reservation<'_, CpuLocal>, NotReserved>> {
        let producer = self.rings.producer(session)?;
        Some(producer.try_reserve(|| Some(self.clock.now(tsc::read)), id, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::tests::{host_region, open};
    use shared_ring::consumer::Consumer;
    use shared_ring::event::{Event, EventDescription, Field, FieldType};
    use shared_ring::host;
    use shared_ring::host::memory::HostMemory;
    use std::vec::Vec;

    const VCPU: u32 = 1;
    const EVENT: Event =
        Event { id: 7, class: 1, name: "test:vector", fields: &[Field::new("vector", FieldType::U32)] };

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
            let mut record = recorder.reserve(session, EVENT.id, 4)?.ok()?;
            record.write(0, &vector.to_le_bytes()).unwrap();
            record.commit();
            Some(())
        });
        records.count()
    }

    /// Begins a session in `slot`, with the rings that the slot was made for.
    fn begin_session(host: &mut host::Region, slot: usize) {
        let rings = host.layout().config.sessions[slot].unwrap();
        host.open_session(slot, "other", rings, |_, _| ()).unwrap();
    }

    fn vectors(memory: &HostMemory, host: &host::Region, slot: usize) -> Vec<u32> {
        let rings = host.layout().config.sessions[slot].unwrap();
        let ring = memory.part(host.layout().kernel_ring(slot, VCPU), rings.ring_size());
        let mut consumer = Consumer::new(ring, rings.geometry, rings.mode, VCPU);
        let described = EventDescription::from(&EVENT);
        let (mut packet, mut vectors) = (Vec::new(), Vec::new());
        while let Some(delivered) = consumer.poll_stopped(&mut packet).ready() {
            let known = |id| (id == described.id).then_some(&described);
            let packet = delivered.accept([0; 16], u64::MAX, known).unwrap();
            vectors.extend(packet.records().map(|record| u32::from(record.payload[0])));
        }
        vectors
    }

    fn vec_of(range: core::ops::Range<u32>) -> Vec<u32> {
        range.collect()
    }

    #[test]
    fn consumer_reads_what_was_written_into_the_reserved_payload() {
        let (memory, host) = host_region();
        let recorder = recorder(&memory);

        record(&recorder, 0, 0..10);

        assert_eq!(vectors(&memory, &host, 0), vec_of(0..10));
    }

    #[test]
    fn sessions_record_side_by_side() {
        let (memory, mut host) = host_region();
        let recorder = recorder(&memory);
        begin_session(&mut host, 2);
        follow(&recorder, &memory);

        record(&recorder, 0, 0..3);
        record(&recorder, 2, 3..5);

        assert_eq!(recorder.sessions(), 0b101);
        assert_eq!((vectors(&memory, &host, 0), vectors(&memory, &host, 2)), (vec_of(0..3), vec_of(3..5)));
    }

    #[test]
    fn session_that_is_not_followed_yet_records_nothing() {
        let (memory, mut host) = host_region();
        let recorder = recorder(&memory);
        begin_session(&mut host, 2);

        assert_eq!(record(&recorder, 2, 0..3), 0);
        assert_eq!(record(&recorder, 7, 0..3), 0);
    }

    #[test]
    fn released_recorder_records_nothing() {
        let (memory, mut host) = host_region();
        let recorder = recorder(&memory);

        // SAFETY: this thread is the vCPU, and is not within a record.
        unsafe { recorder.release() };
        host.close_session(0).unwrap();

        assert_eq!((record(&recorder, 0, 0..1), host.is_free(0)), (0, true));
    }

    #[test]
    fn nested_record_is_counted_for_its_session_only() {
        let (memory, mut host) = host_region();
        let recorder = recorder(&memory);
        begin_session(&mut host, 2);
        follow(&recorder, &memory);
        let nested = |slot: usize| {
            let rings = host.layout().config.sessions[slot].unwrap();
            shared_ring::consumer::nested(&memory.part(host.layout().kernel_ring(slot, VCPU), rings.ring_size()))
        };

        recorder.lose_nested(2);
        recorder.lose_nested(7);

        assert_eq!((nested(0), nested(2)), (Some(0), Some(1)));
    }

    #[test]
    fn repaired_recorder_goes_on_behind_a_record_whose_task_died() {
        let (memory, mut host) = host_region();
        let recorder = recorder(&memory);
        begin_session(&mut host, 2);
        follow(&recorder, &memory);
        record(&recorder, 2, 0..1);
        core::mem::forget(recorder.reserve(2, EVENT.id, 4));

        // SAFETY: this thread is the vCPU, and finishes no record that is open.
        unsafe { recorder.repair(Abandoned::One) };
        let made = record(&recorder, 2, 1..5000);
        let left = vectors(&memory, &host, 2);

        assert_eq!((made, left.last()), (4999, Some(&(4999 % 256))));
    }

    #[test]
    fn flush_closes_the_sub_buffer_that_the_host_asks_for() {
        let (memory, host) = host_region();
        let recorder = recorder(&memory);
        let rings = host.layout().config.sessions[0].unwrap();
        let ring = memory.part(host.layout().kernel_ring(0, VCPU), rings.ring_size());
        let mut consumer = Consumer::new(ring, rings.geometry, rings.mode, VCPU);
        record(&recorder, 0, 0..1);

        recorder.flush();
        let was_empty = consumer.poll(&mut Vec::new()).is_empty();
        let request = consumer.request_flush();
        let wanted = recorder.is_wanted(&open(&memory));
        recorder.flush();

        assert!(wanted && !recorder.is_wanted(&open(&memory)) && consumer.is_flushed(request));
        assert!(was_empty && consumer.poll(&mut Vec::new()).is_ready());
    }

    #[test]
    fn vcpu_without_a_ring_gets_no_recorder() {
        let (memory, _host) = host_region();

        // SAFETY: this thread is the only user.
        let result = unsafe { Recorder::new(&open(&memory), 2) }.map(|_| ());

        assert_eq!(result, Err(RegionError::NoSuchVcpu));
    }

    #[test]
    fn vcpu_records_once_the_host_has_written_its_clock() {
        let (memory, host) = host_region();
        let number = host.layout().clock_entry(VCPU);
        let (written, wants) = (memory.load(number), |recorder: &Recorder| recorder.is_wanted(&open(&memory)));
        memory.store(number, 0);
        let recorder = recorder(&memory);

        let before = (record(&recorder, 0, 0..1), wants(&recorder));
        memory.store(number, written);
        let wanted = wants(&recorder);
        follow(&recorder, &memory);
        let recorded = (record(&recorder, 0, 0..1), wants(&recorder));
        memory.store(number, 0);
        let is_reported = wants(&recorder);
        follow(&recorder, &memory);

        assert_eq!((before, wanted, recorded, is_reported), ((0, false), true, (1, false), true));
        assert_eq!((record(&recorder, 0, 0..1), wants(&recorder)), (0, false));
    }
}
