//! A process's slot of the trace region: its event registry and one ring per vCPU, next to the host's area.
#![allow(unsafe_code)] // Rings and clock entries are memory shared with the host: raw pointers.

use crate::event_type::Payload;
use crate::rseq_area;
use clock_sync::entry::{ENTRY_SIZE, Reader};
use shared_ring::event::Event;
use shared_ring::layout::{
    CLOCK_OFFSET, Geometry, MAGIC, MAX_VCPUS, Mode, PAGE_SIZE, ProcessHeader, RING_LOST_FULL, SESSION_SLOT_SIZE,
    SESSION_SLOTS, SESSION_TABLE_OFFSET,
};
use shared_ring::producer::{NotReserved, Producer};
use shared_ring::registry::Registry;
use shared_ring::storage::{Smp, Storage};
use std::any::Any;
use std::cell::Cell;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use thiserror::Error;

/// Attempts to record on the CPU on which the thread runs, before the record is given up.
const ATTEMPTS: usize = 16;

/// Why a slot cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingsError {
    /// The slot's header is not one.
    #[error("the kernel module mapped something that is not a process slot")]
    NotASlot,
    /// The header's sizes contradict each other or the mappings.
    #[error("the sizes in the process slot do not add up")]
    BadLayout,
}

/// Which CPU a thread is on, and that CPU's counter.
pub(crate) trait CpuCounter {
    /// The number of a CPU that the thread was on just now; it may be on another one already.
    fn cpu(&self) -> u32;

    /// The CPU's number and its TSC, read in one instruction.
    fn read(&self) -> (u32, u64);
}

/// `RDTSCP`, with the CPU number that Linux keeps in `TSC_AUX`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rdtscp;

impl CpuCounter for Rdtscp {
    #[inline(always)]
    fn cpu(&self) -> u32 {
        rseq_area::cpu().unwrap_or_else(|| self.read().0)
    }

    #[inline(always)]
    fn read(&self) -> (u32, u64) {
        let mut aux = 0;
        // SAFETY: the tracer was opened only after CPUID said that the processor has the instruction. It waits for all
        // earlier loads, as a ring that several CPUs share needs.
        let ticks = unsafe { core::arch::x86_64::__rdtscp(&raw mut aux) };
        // The NUMA node is in the bits above.
        (aux & 0xfff, ticks)
    }
}

impl Rdtscp {
    /// Whether the processor has it.
    pub(crate) fn is_available() -> bool {
        let highest = core::arch::x86_64::__cpuid(0x8000_0000).eax;
        highest >= 0x8000_0001 && core::arch::x86_64::__cpuid(0x8000_0001).edx >> 27 & 1 == 1
    }
}

/// What came of an attempt to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// The record is in its ring.
    Yes,
    /// The ring counted it as lost.
    Lost,
    /// The thread is on a CPU that has no ring, or kept migrating; nobody counted it.
    NoRing,
}

#[derive(Clone, Copy, Debug)]
struct Ring {
    producer: Producer<Smp>,
    clock: Reader,
}

/// The rings of one process.
pub(crate) struct ProcessRings {
    rings: Vec<Ring>,
    /// Ring of each CPU number, [`MAX_VCPUS`] of them in the slot's header: the kernel adds CPUs that come online later.
    ring_of_cpu: *const AtomicU16,
    registry: Registry<Smp>,
    class_mask: *const AtomicU64,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: everything is accessed through atomics, the registry under the tracer's lock; the owner is Send and Sync.
unsafe impl Send for ProcessRings {}
// SAFETY: as above.
unsafe impl Sync for ProcessRings {}

impl std::fmt::Debug for ProcessRings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ProcessRings").field("rings", &self.rings.len()).finish_non_exhaustive()
    }
}

impl ProcessRings {
    /// The rings in `slot`, with the host's area at `host_area`; both are addresses and sizes in bytes.
    ///
    /// # Errors
    /// When the slot's header does not describe rings that fit.
    ///
    /// # Safety
    /// Both are page-aligned, and stay mapped (the slot writable) as long as `owner` lives. Only this value, and the
    /// host, write the slot.
    pub(crate) unsafe fn new(
        host_area: (*mut u8, usize),
        slot: (*mut u8, usize),
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, RingsError> {
        if slot.1 < size_of::<ProcessHeader>() {
            return Err(RingsError::BadLayout);
        }
        // SAFETY: the slot's first bytes are mapped and aligned (contract, and the check above).
        let header = unsafe { slot.0.cast::<ProcessHeader>().read() };
        if header.magic != MAGIC {
            return Err(RingsError::NotASlot);
        }
        let places = Places::check(&header, host_area.1, slot.1).ok_or(RingsError::BadLayout)?;
        let rings = (0..header.vcpus as usize)
            .map(|vcpu| {
                // SAFETY: `check` found the clock entries and the rings to lie inside their mappings, which live as
                // long as the owner; the kernel module handed out the rings zeroed.
                unsafe {
                    let ring = slot.0.add(places.rings + vcpu * places.ring_stride);
                    Ring {
                        producer: Producer::new(Smp::new(ring), places.geometry, places.mode),
                        clock: Reader::new(host_area.0.add(CLOCK_OFFSET + vcpu * ENTRY_SIZE)),
                    }
                }
            })
            .collect();
        // SAFETY: `check` found the registry and the session's mask to lie inside the mappings, the header does (above).
        let (registry, class_mask, ring_of_cpu) = unsafe {
            (
                Registry::new(Smp::new(slot.0.add(PAGE_SIZE)), places.registry_size),
                host_area.0.add(places.class_mask).cast_const().cast(),
                slot.0.add(offset_of!(ProcessHeader, vcpu_of_cpu)).cast_const().cast(),
            )
        };
        Ok(Self { rings, ring_of_cpu, registry, class_mask, _owner: owner })
    }

    /// Where the session says, bit by bit, which classes of events it wants. As live as the owner.
    pub(crate) const fn class_mask(&self) -> *const AtomicU64 {
        self.class_mask
    }

    /// Counts records that were lost without a ring that could: as lost for want of room, in the first ring.
    #[cold]
    pub(crate) fn count_lost(&self, records: u64) {
        if let Some(ring) = self.rings.first() {
            // SAFETY: a control word of the ring, which is added to by whoever loses a record.
            unsafe { ring.producer.storage().fetch_add(RING_LOST_FULL, records) };
        }
    }

    /// Describes `event` to the host. One caller at a time. `false` when the registry is full.
    pub(crate) fn append(&self, event: &Event) -> bool {
        self.registry.append(event)
    }

    /// Records an event of `size` payload bytes, which `fill` writes, in the ring of the CPU on which its time is read.
    #[inline]
    pub(crate) fn record(
        &self,
        counter: &impl CpuCounter,
        id: u16,
        size: usize,
        fill: impl FnOnce(&mut Payload<'_>),
    ) -> Recorded {
        for _ in 0..ATTEMPTS {
            let cpu = counter.cpu();
            let Some(ring) = self.ring_of(cpu) else { return Recorded::NoRing };
            let read_on = Cell::new(cpu);
            let now = || {
                let time = ring.clock.now(|| {
                    let (cpu, ticks) = counter.read();
                    read_on.set(cpu);
                    ticks
                });
                (read_on.get() == cpu).then_some(time)
            };
            match ring.producer.try_reserve(now, id, size) {
                Ok(reservation) => {
                    // SAFETY: the payload is `size` bytes inside the ring, this thread's own until committed, and the
                    // host looks at them only afterwards.
                    let bytes = unsafe {
                        let at = ring.producer.storage().pointer(reservation.payload_offset());
                        std::slice::from_raw_parts_mut(at, size)
                    };
                    fill(&mut Payload::new(bytes));
                    ring.producer.commit(reservation);
                    return Recorded::Yes;
                }
                Err(NotReserved::Lost) => return Recorded::Lost,
                // The thread has migrated in between.
                Err(NotReserved::NoTime) => {}
            }
        }
        Recorded::NoRing
    }

    /// Closes the current sub-buffer of every ring that holds records, so that the host can have them now.
    pub(crate) fn flush(&self, counter: &impl CpuCounter) {
        for ring in &self.rings {
            ring.producer.force_switch(|| ring.clock.now(|| counter.read().1));
        }
    }

    #[inline(always)]
    fn ring_of(&self, cpu: u32) -> Option<&Ring> {
        if cpu >= MAX_VCPUS {
            return None;
        }
        // SAFETY: one of the table's words, in the slot's header, which the owner keeps mapped.
        let ring = unsafe { &*self.ring_of_cpu.add(cpu as usize) }.load(Ordering::Relaxed);
        self.rings.get(usize::from(ring))
    }
}

/// Offsets and sizes of a slot's parts, bytes; checked.
struct Places {
    geometry: Geometry,
    mode: Mode,
    rings: usize,
    ring_stride: usize,
    registry_size: usize,
    class_mask: usize,
}

impl Places {
    fn check(header: &ProcessHeader, host_size: usize, slot_size: usize) -> Option<Self> {
        let geometry = Geometry::new(header.sub_buffer_size, header.sub_buffers)?;
        let mode = Mode::from_code(header.mode)?;
        let rings = usize::try_from(header.rings_offset).ok()?;
        let ring_stride = usize::try_from(header.ring_stride).ok()?;
        let registry_size = usize::try_from(header.registry_size).ok()?;
        let session = header.session as usize;
        let vcpus = header.vcpus as usize;
        let end = rings.checked_add(vcpus.checked_mul(ring_stride)?)?;
        let fits = vcpus <= MAX_VCPUS as usize
            && rings.is_multiple_of(8)
            && ring_stride.is_multiple_of(8)
            && ring_stride >= geometry.ring_size(mode)
            && end <= slot_size
            && PAGE_SIZE.checked_add(registry_size)? <= rings
            && session < SESSION_SLOTS
            && CLOCK_OFFSET + vcpus * ENTRY_SIZE <= host_size;
        let class_mask = SESSION_TABLE_OFFSET + session * SESSION_SLOT_SIZE;
        fits.then_some(Self { geometry, mode, rings, ring_stride, registry_size, class_mask })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clock_sync::entry::Writer;
    use clock_sync::relation::Relation;
    use shared_ring::consumer::{Consumer, Poll};
    use shared_ring::event::{EventDescription, class};
    use shared_ring::host_memory::HostMemory;
    use shared_ring::layout::REGISTRY_HEADER_SIZE;
    use shared_ring::packet::{Records, read_header};
    use shared_ring::region::{RegionConfig, RegionLayout, Rings};
    use shared_ring::registry::parse;

    #[repr(align(4096))]
    struct Page(#[allow(dead_code, reason = "only its bytes matter")] [u8; PAGE_SIZE]);

    /// A record's time, id and payload.
    type Drained = (u64, u16, Vec<u8>);

    /// A region with one process slot and two vCPUs, as the host and the kernel module set it up.
    pub(crate) struct Region {
        pub(crate) memory: HostMemory,
        pub(crate) layout: RegionLayout,
    }

    impl Region {
        pub(crate) fn new() -> Self {
            let rings = |sub_buffers, mode| Rings { geometry: Geometry::new(4096, sub_buffers).unwrap(), mode };
            let layout = RegionLayout::new(RegionConfig {
                vcpus: 2,
                sessions: [Some(rings(2, Mode::Discard)), None, None, None],
                process_rings: rings(4, Mode::Discard),
                process_slots: 1,
                registry_size: 4096,
                process_registry_size: 4096,
            })
            .unwrap();
            let pages: Arc<Vec<Page>> = Arc::new((0..layout.size / PAGE_SIZE).map(|_| Page([0; PAGE_SIZE])).collect());
            let base: *mut u8 = pages.as_ptr().cast_mut().cast();
            // SAFETY: the pages live as long as the memory and are used through raw pointers and atomics only.
            let memory = unsafe { HostMemory::new(base, layout.size, pages) };
            let mut vcpu_of_cpu = [u16::MAX; MAX_VCPUS as usize];
            (vcpu_of_cpu[0], vcpu_of_cpu[3]) = (0, 1);
            let header = ProcessHeader {
                magic: MAGIC,
                abi_version: shared_ring::layout::ABI_VERSION,
                vcpus: 2,
                registry_size: 4096,
                rings_offset: layout.process_rings as u64,
                ring_stride: layout.process_ring_stride as u64,
                sub_buffer_size: 4096,
                sub_buffers: 4,
                session: 0,
                host_area_size: layout.guest_writable as u64,
                mode: Mode::Discard.code(),
                reserved: 0,
                vcpu_of_cpu,
            };
            // SAFETY: header and clock entries lie inside the memory, which nobody else uses yet.
            unsafe {
                base.add(layout.process_slot(0)).cast::<ProcessHeader>().write(header);
                for vcpu in 0..2 {
                    Writer::new(base.add(layout.clock_entry(vcpu))).publish(&Relation::IDENTITY);
                }
            }
            memory.store(SESSION_TABLE_OFFSET, 1 << class::USER);
            Self { memory, layout }
        }

        pub(crate) fn rings(&self) -> Result<ProcessRings, RingsError> {
            let at = |offset: usize| self.memory.base().wrapping_add(offset);
            let slot = (at(self.layout.process_slot(0)), self.layout.process_stride);
            // SAFETY: both lie inside the memory, which the owner keeps alive, and are page-aligned.
            unsafe { ProcessRings::new((at(0), self.layout.guest_writable), slot, Arc::new(self.memory.clone())) }
        }

        /// What the host reads: the described event types, and the records of `vcpu`.
        pub(crate) fn drain(&self, vcpu: u32) -> (Vec<EventDescription>, Vec<Drained>) {
            let registry = self.layout.process_slot(0) + PAGE_SIZE;
            let mut bytes = vec![0; usize::try_from(self.memory.load(registry)).unwrap()];
            self.memory.read(registry + REGISTRY_HEADER_SIZE, &mut bytes);
            let mut events = Vec::new();
            parse(&bytes, &mut events).unwrap();
            let ring = self.memory.part(self.layout.process_ring(0, vcpu), self.layout.process_ring_stride);
            let rings = self.layout.config.process_rings;
            let mut consumer = Consumer::new(ring, rings.geometry, rings.mode, vcpu);
            let (mut packet, mut records) = (Vec::new(), Vec::new());
            while consumer.poll_stopped(&mut packet) == Poll::Copied {
                let known = |id| events.iter().find(|event: &&EventDescription| event.id == id);
                let accepted = consumer.accept(&mut packet, [0; 16], u64::MAX, known).unwrap();
                let begin = read_header(&packet).unwrap().time_begin;
                records.extend(
                    Records::new(&packet, accepted.content, begin)
                        .map(|record| (record.time, record.id, record.payload.to_vec())),
                );
            }
            (events, records)
        }
    }

    /// A thread that is where the script says at each reading; the last place holds.
    pub(crate) struct Scripted {
        cpus: Vec<u32>,
        readings: Cell<usize>,
    }

    impl Scripted {
        pub(crate) fn new(cpus: &[u32]) -> Self {
            Self { cpus: cpus.to_vec(), readings: Cell::new(0) }
        }
    }

    impl CpuCounter for Scripted {
        fn cpu(&self) -> u32 {
            self.read().0
        }

        fn read(&self) -> (u32, u64) {
            let reading = self.readings.replace(self.readings.get() + 1);
            (self.cpus[reading.min(self.cpus.len() - 1)], 1000 + reading as u64)
        }
    }

    const EVENT: Event = Event { id: 7, class: class::USER, name: "test:event", fields: &[] };

    #[test]
    fn record_lands_in_the_ring_of_its_cpu() {
        let region = Region::new();
        let rings = region.rings().unwrap();
        rings.append(&EVENT);

        let recorded = rings.record(&Scripted::new(&[3]), 7, 0, |_| ());

        assert_eq!(recorded, Recorded::Yes);
        assert_eq!(region.drain(0).1, []);
        assert_eq!(region.drain(1).1, [(1001, 7, vec![])]);
    }

    #[test]
    fn thread_that_migrates_before_the_time_is_read_uses_the_other_ring() {
        let region = Region::new();
        let rings = region.rings().unwrap();
        rings.append(&EVENT);

        let recorded = rings.record(&Scripted::new(&[0, 3]), 7, 0, |_| ());

        assert_eq!(recorded, Recorded::Yes);
        assert_eq!(region.drain(0).1, []);
        assert_eq!(region.drain(1).1, [(1003, 7, vec![])]);
    }

    #[test]
    fn flush_hands_the_host_what_there_is() {
        let region = Region::new();
        let rings = region.rings().unwrap();
        rings.record(&Scripted::new(&[3]), 7, 0, |_| ());
        let ring = region.memory.part(region.layout.process_ring(0, 1), region.layout.process_ring_stride);
        let mut consumer = Consumer::new(ring, Geometry::new(4096, 4).unwrap(), Mode::Discard, 1);

        let before = consumer.poll(&mut Vec::new());
        rings.flush(&Scripted::new(&[0]));

        assert_eq!((before, consumer.poll(&mut Vec::new())), (Poll::Empty, Poll::Copied));
    }

    #[test]
    fn cpu_without_a_ring_records_nothing() {
        let rings = Region::new().rings().unwrap();

        assert_eq!(rings.record(&Scripted::new(&[1]), 7, 0, |_| ()), Recorded::NoRing);
        assert_eq!(rings.record(&Scripted::new(&[4000]), 7, 0, |_| ()), Recorded::NoRing);
    }

    #[test]
    fn cpu_that_comes_online_later_gets_its_ring() {
        let region = Region::new();
        let rings = region.rings().unwrap();
        rings.append(&EVENT);

        let before = rings.record(&Scripted::new(&[1]), 7, 0, |_| ());
        let table = region.layout.process_slot(0) + offset_of!(ProcessHeader, vcpu_of_cpu);
        region.memory.write(table, &[0, 0, 1, 0, 0xff, 0xff, 1, 0]);
        let after = rings.record(&Scripted::new(&[1]), 7, 0, |_| ());

        assert_eq!((before, after), (Recorded::NoRing, Recorded::Yes));
        assert_eq!(region.drain(1).1.len(), 1);
    }

    #[test]
    fn losses_that_no_ring_counted_are_the_first_rings() {
        let region = Region::new();
        let ring = region.layout.process_ring(0, 0);

        region.rings().unwrap().count_lost(3);

        assert_eq!(region.memory.load(ring + RING_LOST_FULL), 3);
    }

    #[test]
    fn slot_without_a_header_is_refused() {
        let region = Region::new();
        region.memory.store(region.layout.process_slot(0), 0);

        assert_eq!(region.rings().unwrap_err(), RingsError::NotASlot);
    }

    #[test]
    fn rings_that_leave_the_slot_are_refused() {
        let region = Region::new();
        let rings_offset = region.layout.process_slot(0) + std::mem::offset_of!(ProcessHeader, rings_offset);
        region.memory.store(rings_offset, region.layout.process_rings as u64 + 8);

        assert_eq!(region.rings().unwrap_err(), RingsError::BadLayout);
    }
}
