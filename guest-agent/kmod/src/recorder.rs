//! The hot path: one CPU's ring and clock, reserve and commit.
#![allow(unsafe_code)] // Rings and clock entries are memory of the host: raw pointers.

use crate::region::{Region, RegionError};
use clock_sync::entry::Reader;
use clock_sync::tsc;
use shared_ring::producer::{Producer, Reservation};
use shared_ring::storage::CpuLocal;

/// What a CPU records with.
#[derive(Clone, Copy, Debug)]
pub struct Recorder {
    producer: Producer<CpuLocal>,
    clock: Reader,
}

/// A record in the making: its payload is written by the caller, straight into the ring.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    producer: Producer<CpuLocal>,
    reservation: Reservation,
}

impl Recorder {
    /// The recorder of vCPU `vcpu`.
    ///
    /// # Errors
    /// When the region has no such vCPU or the host has not written its clock entry.
    ///
    /// # Safety
    /// Only code that runs on that vCPU uses the recorder, without migrating between a reserve and its commit, and no
    /// other recorder of the vCPU is in use.
    pub unsafe fn new(region: &Region, vcpu: u32) -> Result<Self, RegionError> {
        let ring = region.kernel_ring(vcpu)?;
        // SAFETY: the region's clock entries are mapped as long as the region is, aligned, and written by the host.
        let clock = unsafe { Reader::new(region.clock_entry(vcpu)?) };
        if !clock.is_valid() {
            return Err(RegionError::NoClock);
        }
        // SAFETY: `Region::open` found a whole ring of this geometry there, page-aligned; the host hands it out zeroed.
        let producer = unsafe { Producer::new(CpuLocal::new(ring), region.kernel_rings()) };
        Ok(Self { producer, clock })
    }

    /// A slot for event `id` with `payload` bytes; `None` when it was lost (and counted). Any context, NMI included.
    #[inline(always)]
    pub fn reserve(&self, id: u16, payload: usize) -> Option<Record> {
        let reservation = self.producer.reserve(|| self.clock.now(tsc::read), id, payload)?;
        Some(Record { producer: self.producer, reservation })
    }
}

impl Record {
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
    use crate::catalog::EVENTS;
    use crate::region::tests::host_region;
    use shared_ring::consumer::{Consumer, Poll};
    use shared_ring::event::EventDescription;
    use shared_ring::packet::{Records, read_header};
    use std::vec::Vec;

    #[test]
    fn consumer_reads_what_was_written_into_the_reserved_payload() {
        let (memory, layout) = host_region();
        // SAFETY: the memory is live and page-aligned; this thread is the vCPU's only user.
        let recorder =
            unsafe { Recorder::new(&Region::open(memory.base(), memory.size() as u64).unwrap(), 1) }.unwrap();
        let softirq = &EVENTS[7];

        for vector in 0..10_u32 {
            let record = recorder.reserve(softirq.id, 4).unwrap();
            // SAFETY: the payload is four bytes of the ring, this thread's own until committed.
            unsafe { record.payload().cast::<u32>().write(vector) };
            record.commit();
        }

        let ring = memory.part(layout.kernel_ring(1), layout.kernel_ring_stride);
        let mut consumer = Consumer::new(ring, layout.config.kernel_rings, 1);
        let mut packet = Vec::new();
        let described = EventDescription::from(softirq);
        let polled = consumer.poll_stopped(&mut packet);
        let accepted =
            consumer.accept(&mut packet, [0; 16], u64::MAX, |id| (id == softirq.id).then_some(&described)).unwrap();
        let begin = read_header(&packet).unwrap().time_begin;
        let vectors: Vec<_> =
            Records::new(&packet, accepted.content, begin).map(|record| u32::from(record.payload[0])).collect();
        assert_eq!(polled, Poll::Copied);
        assert_eq!(vectors, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn vcpu_without_a_clock_gets_no_recorder() {
        let (memory, layout) = host_region();
        memory.store(layout.clock_entry(0), 0);
        // SAFETY: the memory is live and page-aligned.
        let region = unsafe { Region::open(memory.base(), memory.size() as u64) }.unwrap();

        // SAFETY: this thread is the only user.
        let result = unsafe { Recorder::new(&region, 0) };

        assert_eq!(result.unwrap_err(), RegionError::NoClock);
    }
}
