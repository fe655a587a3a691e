//! A process's slot of the trace region: its event registry and one ring per vCPU, next to the host's area.
#![allow(unsafe_code)] // Rings and clock entries are memory shared with the host: raw pointers.

use crate::device::Mapping;
use crate::fields::Payload;
use crate::permanent;
use crate::restartable_thread::ThisThread;
use crate::rseq_area::{self, own::BlockedSignals};
use clock_sync::entry::Reader;
use rustix::thread::CpuSet;
use shared_ring::event::{Event, FieldType};
use shared_ring::layout::{
    FEATURE_FLOAT_FIELDS, FEATURE_RESTARTABLE_RINGS, MAX_VCPUS, ProcessHeader, RING_LOST_FULL, Superblock,
};
use shared_ring::producer::{NotReserved, Producer, Reservation, lose_too_large};
use shared_ring::region::Rings;
use shared_ring::registry::{MAX_ENTRY, Registry, encode_parts};
pub(crate) use shared_ring::restartable::Recorded;
use shared_ring::restartable::{self, Draft, RestartableProducer, RestartableThread};
use shared_ring::storage::{Smp, Storage};
use shared_ring::view::{ProcessSlotView, ViewError};
use std::any::Any;
use std::io;
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};

/// Bytes of the stack of the thread that visits other CPUs.
const VISITOR_STACK: usize = 64 << 10;

/// Attempts to record on the CPU on which the thread runs, before the record is given up.
const ATTEMPTS: usize = 16;

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

/// The processor's time stamp counter, in no order with what is around it.
#[inline(always)]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[derive(Clone, Copy, Debug)]
struct Ring {
    producer: Producer<Smp>,
    /// Of the same ring: one of the two is used.
    restartable: RestartableProducer<Smp>,
    clock: Reader,
}

/// What keeps a slot and the host's area mapped.
pub(crate) enum Owner {
    /// The slot's mapping; the host's area is never unmapped.
    Slot(#[expect(dead_code, reason = "kept, not read")] Mapping),
    /// What the caller of [`Tracer::over`](crate::Tracer::over) gave.
    Caller(#[expect(dead_code, reason = "kept, not read")] Arc<dyn Any + Send + Sync>),
}

/// Why a slot cannot be recorded into.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RingsError {
    /// Its header does not describe rings that fit.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The kernel has no memory for what is to be known of the rings.
    #[error(transparent)]
    Memory(#[from] io::Error),
}

/// The rings of one process.
pub(crate) struct ProcessRings {
    rings: &'static [Ring],
    /// Whether each record is one restartable sequence.
    is_restartable: bool,
    /// The slot's first word, which is not 0.
    header: *const AtomicU64,
    /// Ring of each CPU number, [`MAX_VCPUS`] of them in the slot's header: the kernel adds CPUs that come online
    /// later.
    ring_of_cpu: *const AtomicU16,
    registry: Registry<Smp>,
    /// Whether the host knows of floating point.
    takes_floats: bool,
    class_mask: *const AtomicU64,
    _owner: Owner,
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
    /// When the slot's header does not describe rings that fit, or the kernel has no memory.
    ///
    /// # Safety
    /// Both are aligned to 8, and stay mapped (the slot writable) as long as `owner` lives. Only this value, and the
    /// host, write the slot.
    pub(crate) unsafe fn new(
        host_area: (*mut u8, usize),
        slot: (*mut u8, usize),
        owner: Owner,
    ) -> Result<Self, RingsError> {
        // SAFETY: the slot is mapped and aligned (contract); its header is only read when it is there (`read`).
        let view = ProcessSlotView::read(|offset| unsafe { Smp::new(slot.0).load(offset) }, host_area.1, slot.1)?;
        let ring = |vcpu| {
            let (ring, clock) = (view.ring(vcpu)?, view.clock_entry(vcpu)?);
            // SAFETY: the view found the clock entries and the rings to lie inside their mappings, which live as long
            // as the owner; the kernel module handed out the rings zeroed.
            Some(unsafe {
                let (memory, Rings { geometry, mode }) = (Smp::new(slot.0.add(ring)), view.rings);
                Ring {
                    producer: Producer::new(memory, geometry, mode),
                    restartable: RestartableProducer::new(memory, geometry, mode),
                    clock: Reader::new(host_area.0.add(clock)),
                }
            })
        };
        let rings = permanent::keep_all(view.vcpus as usize, (0..view.vcpus).filter_map(ring))?;
        let (registry, registry_size) = view.registry();
        // SAFETY: the view found the registry and the session's mask to lie inside the mappings, and the slot to have a
        // header.
        let (registry, class_mask, ring_of_cpu) = unsafe {
            (
                Registry::new(Smp::new(slot.0.add(registry)), registry_size),
                host_area.0.add(view.class_mask).cast_const().cast(),
                slot.0.add(offset_of!(ProcessHeader, vcpu_of_cpu)).cast_const().cast(),
            )
        };
        // SAFETY: the superblock lies at the beginning of the host's area, in which the view found clock entries behind it.
        let features = unsafe { Smp::new(host_area.0).load(offset_of!(Superblock, features)) };
        let takes_floats = features & FEATURE_FLOAT_FIELDS != 0;
        let header = slot.0.cast_const().cast();
        Ok(Self {
            rings,
            is_restartable: false,
            header,
            ring_of_cpu,
            registry,
            takes_floats,
            class_mask,
            _owner: owner,
        })
    }

    /// The rings, where each record is one restartable sequence, if that is possible: the host reads such rings, no
    /// two CPUs have one ring, and the calling thread has an rseq area, or gets one now. Of other threads the same is
    /// expected. Otherwise as they were. Before the first record.
    ///
    /// # Safety
    /// `host_area` is the address that [`new`](Self::new) was given.
    pub(crate) unsafe fn restartable_if_possible(self, host_area: *mut u8) -> Self {
        // SAFETY: the superblock lies at the beginning of the host's area, which is mapped.
        let features = unsafe { Smp::new(host_area).load(offset_of!(Superblock, features)) };
        let rings_of_cpus = || (0..MAX_VCPUS).filter_map(|cpu| self.ring_of(cpu));
        let own_rings = (self.rings.iter()).all(|ring| rings_of_cpus().filter(|of| ptr::eq(*of, ring)).count() <= 1);
        // Last: it may register the thread.
        let has_area = || ThisThread::current().is_some_and(|thread| thread.cpu().is_some());
        let is_restartable = features & FEATURE_RESTARTABLE_RINGS != 0 && own_rings && has_area();
        if is_restartable {
            self.rings.iter().for_each(|ring| ring.restartable.announce());
        }
        Self { is_restartable, ..self }
    }

    /// Whether each record is one restartable sequence.
    pub(crate) const fn is_restartable(&self) -> bool {
        self.is_restartable
    }

    /// Whether the slot is there: in the place of its parent's, a child finds zeroed memory.
    pub(crate) fn is_there(&self) -> bool {
        // SAFETY: the first word of the slot's header, which the owner keeps mapped.
        unsafe { &*self.header }.load(Ordering::Relaxed) != 0
    }

    /// Where the session says, bit by bit, which classes of events it wants. As live as the owner.
    pub(crate) const fn class_mask(&self) -> *const AtomicU64 {
        self.class_mask
    }

    /// Counts records that were lost without a ring that could: as lost for want of room, in this thread's ring.
    #[cold]
    pub(crate) fn count_lost(&self, counter: &impl CpuCounter, records: u64) {
        if let Some(ring) = self.ring_here(counter) {
            // SAFETY: a control word of the ring, which is added to by whoever loses a record.
            unsafe { ring.producer.storage().fetch_add(RING_LOST_FULL, records) };
        }
    }

    /// Describes `event` to the host. One caller at a time. `false` when the registry is full.
    pub(crate) fn append(&self, event: &Event) -> bool {
        let fields = event.fields.iter().map(|field| match field.ty {
            FieldType::F64 if !self.takes_floats => (field.name, FieldType::U64, true),
            ty => (field.name, ty, field.hex),
        });
        let mut entry = [0; MAX_ENTRY];
        let size = encode_parts(event.id, event.class, &[event.name], fields, &mut entry);
        size.and_then(|size| entry.get(..size)).is_some_and(|entry| self.registry.append_encoded(entry))
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
        if self.is_restartable {
            return self.record_restartable(id, size, fill);
        }
        let fill = move |record: &mut Reservation<'_, Smp>| fill(&mut Payload::new(record.payload()));
        match self.record_here(counter, id, size, fill) {
            Ok(recorded) => recorded,
            Err(fill) => self.record_elsewhere(counter, id, size, fill),
        }
    }

    /// An attempt at [`record`](Self::record); `fill` is given back when the thread migrates meanwhile.
    #[inline(always)]
    fn record_here<F: FnOnce(&mut Reservation<'_, Smp>)>(
        &self,
        counter: &impl CpuCounter,
        id: u16,
        size: usize,
        fill: F,
    ) -> Result<Recorded, F> {
        let cpu = counter.cpu();
        let Some(ring) = self.ring_of(cpu) else { return Ok(Recorded::NoRing) };
        let clock = ring.clock;
        let now = move || {
            let (time, read_on) = clock.now_and(|| {
                let (cpu, ticks) = counter.read();
                (ticks, cpu)
            });
            (read_on == cpu).then_some(time)
        };
        match ring.producer.record_with(now, id, size, fill) {
            Ok(()) => Ok(Recorded::Yes),
            Err((NotReserved::NoTime, fill)) => Err(fill),
            Err(_) => Ok(Recorded::Lost),
        }
    }

    /// Further attempts, of a thread that has migrated.
    #[cold]
    #[inline(never)]
    fn record_elsewhere(
        &self,
        counter: &impl CpuCounter,
        id: u16,
        size: usize,
        mut fill: impl FnOnce(&mut Reservation<'_, Smp>),
    ) -> Recorded {
        for _ in 1..ATTEMPTS {
            fill = match self.record_here(counter, id, size, fill) {
                Ok(recorded) => return recorded,
                Err(fill) => fill,
            };
        }
        Recorded::NoRing
    }

    /// As [`record`](Self::record), by restartable sequences. The record is put together on the thread's stack, in as
    /// little of it as its size allows: handlers may have a small one.
    #[inline(always)]
    fn record_restartable(&self, id: u16, size: usize, fill: impl FnOnce(&mut Payload<'_>)) -> Recorded {
        match size {
            0..=32 => self.record_draft::<{ Draft::words(32) }>(id, size, fill),
            33..=256 => self.record_large_draft::<{ Draft::words(256) }>(id, size, fill),
            257..=2560 => self.record_large_draft::<{ Draft::words(2560) }>(id, size, fill),
            _ => self.record_large_draft::<{ Draft::words(u16::MAX as usize) }>(id, size, fill),
        }
    }

    #[inline(never)]
    fn record_large_draft<const WORDS: usize>(
        &self,
        id: u16,
        size: usize,
        fill: impl FnOnce(&mut Payload<'_>),
    ) -> Recorded {
        self.record_draft::<WORDS>(id, size, fill)
    }

    #[inline(always)]
    fn record_draft<const WORDS: usize>(&self, id: u16, size: usize, fill: impl FnOnce(&mut Payload<'_>)) -> Recorded {
        let Some(thread) = ThisThread::current() else { return Recorded::NoRing };
        let mut words = [0; WORDS];
        let Some(mut draft) = Draft::new(&mut words, id, size) else { return self.lose_too_large(id, size) };
        fill(&mut Payload::new(draft.payload()));
        let ring_of = |cpu| self.ring_of(cpu).map(|ring| (&ring.restartable, || ring.clock.now(ticks)));
        restartable::record(&thread, ring_of, draft)
    }

    /// Counts a record that is larger than any can be.
    #[cold]
    fn lose_too_large(&self, id: u16, size: usize) -> Recorded {
        let Some(ring) = self.ring_here(&Rdtscp) else { return Recorded::NoRing };
        // SAFETY: the ring's own storage.
        unsafe { lose_too_large(ring.producer.storage(), id, size) };
        Recorded::Lost
    }

    /// Closes the current sub-buffer of every ring that holds records, so that the host can have them now.
    ///
    /// The clock of a ring is that of its CPU. A sub-buffer that is closed from another CPU gets no closing time: the host
    /// then takes the time of its last record.
    pub(crate) fn flush(&self, counter: &impl CpuCounter) {
        if self.is_restartable {
            return self.flush_restartable();
        }
        for ring in self.rings {
            ring.producer.force_switch(|| {
                let (time, read_on) = ring.clock.now_and(|| {
                    let (cpu, ticks) = counter.read();
                    (ticks, cpu)
                });
                let is_its_own = self.ring_of(read_on).is_some_and(|here| std::ptr::eq(here, ring));
                if is_its_own { time } else { 0 }
            });
        }
    }

    /// A thread goes to each CPU whose ring holds records, as only there its sub-buffer can be closed. What it cannot reach
    /// (a CPU that is gone, or not the process's) stays until its sub-buffer is full, or the process ends.
    fn flush_restartable(&self) {
        let Some(thread) = ThisThread::current() else { return };
        let Some(here) = thread.cpu() else { return };
        self.close(&thread, here);
        let is_open = |&cpu: &u32| self.ring_of(cpu).is_some_and(|ring| ring.restartable.is_open());
        let others: Vec<u32> = (0..MAX_VCPUS).filter(|&cpu| cpu != here).filter(is_open).collect();
        if others.is_empty() {
            return;
        }
        // A thread that says where it may run is never allowed onto CPUs that its control group gets later: not the
        // program's. No handler of the program's runs on this one, which has all signals blocked from its beginning on.
        let _blocked = BlockedSignals::all();
        let visit = || others.iter().for_each(|&cpu| self.close_there(cpu));
        thread::scope(|scope| {
            let visitor = thread::Builder::new().name("strata-flush".into()).stack_size(VISITOR_STACK);
            let _ = visitor.spawn_scoped(scope, visit).map(ScopedJoinHandle::join);
        });
    }

    /// Moves this thread to `cpu`, if that may be, and closes what is open there.
    fn close_there(&self, cpu: u32) {
        let mut there = CpuSet::new();
        there.set(cpu as usize);
        if let Some(thread) = ThisThread::current()
            && rustix::thread::sched_setaffinity(None, &there).is_ok()
        {
            self.close(&thread, cpu);
        }
    }

    /// Closes what is open in the ring of `wanted`, if `thread`, which is this one, is there.
    fn close(&self, thread: &ThisThread, wanted: u32) {
        for _ in 0..restartable::ATTEMPTS {
            let Some(cpu) = thread.begin() else { return };
            let Some(ring) = self.ring_of(cpu).filter(|_| cpu == wanted) else { return thread.end() };
            if ring.restartable.force_switch(thread, || ring.clock.now(ticks)) {
                return;
            }
        }
    }

    /// The ring in which this thread's losses are counted: its CPU's, as a loss is a gap of that ring's records. The
    /// first one where that CPU has none.
    fn ring_here(&self, counter: &impl CpuCounter) -> Option<&Ring> {
        self.ring_of(counter.cpu()).or_else(|| self.rings.first())
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clock_sync::entry::Writer;
    use clock_sync::relation::Relation;
    use shared_ring::consumer::Consumer;
    use shared_ring::event::{EventDescription, Field};
    use shared_ring::guest;
    use shared_ring::host::memory::HostMemory;
    use shared_ring::host::{self, EnabledEvents};
    use shared_ring::layout::{Geometry, Mode, PAGE_SIZE, REGISTRY_HEADER_SIZE};
    use shared_ring::region::{RegionConfig, RegionLayout, Rings};
    use shared_ring::registry::parse;
    use std::cell::Cell;
    use strata_abi::class;

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
            let memory = HostMemory::private(layout.size);
            let mut host = host::Region::create(memory.clone(), layout, [0; 16], 1_000_000_000).unwrap();
            host.open_session(0, "main", rings(2, Mode::Discard), |_, _| ()).unwrap();
            host.enable(0, &EnabledEvents { class_mask: 1 << class::USER, ..EnabledEvents::NONE }).unwrap();
            let mut vcpu_of_cpu = [u16::MAX; MAX_VCPUS as usize];
            (vcpu_of_cpu[0], vcpu_of_cpu[3]) = (0, 1);
            // SAFETY: the memory is aligned, as large as it says, and lives; nobody else writes the clock entries.
            let kernel = unsafe {
                for vcpu in 0..2 {
                    Writer::new(memory.base().add(layout.clock_entry(vcpu))).publish(&Relation::IDENTITY);
                }
                guest::Region::open(memory.base(), memory.size() as u64).unwrap()
            };
            // SAFETY: this thread is the only one that claims slots.
            assert_eq!(unsafe { kernel.claim_process_slot(1, &[0; 16], &vcpu_of_cpu) }, Some(0));
            Self { memory, layout }
        }

        pub(crate) fn rings(&self) -> Result<ProcessRings, RingsError> {
            let at = |offset: usize| self.memory.base().wrapping_add(offset);
            let slot = (at(self.layout.process_slot(0)), self.layout.process_stride);
            let owner = Owner::Caller(Arc::new(self.memory.clone()));
            // SAFETY: both lie inside the memory, which the owner keeps alive, and are aligned.
            unsafe { ProcessRings::new((at(0), self.layout.guest_writable), slot, owner) }
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
            while let Some(delivered) = consumer.poll_stopped(&mut packet).ready() {
                let known = |id| events.iter().find(|event: &&EventDescription| event.id == id);
                let packet = delivered.accept([0; 16], u64::MAX, known).unwrap();
                records.extend(packet.records().map(|record| (record.time, record.id, record.payload.to_vec())));
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

        let was_empty = consumer.poll(&mut Vec::new()).is_empty();
        rings.flush(&Scripted::new(&[0]));

        assert!(was_empty && consumer.poll(&mut Vec::new()).is_ready());
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

    /// What each ring of `region` counts as lost for want of room.
    fn lost(region: &Region) -> [u64; 2] {
        [0, 1].map(|vcpu| region.memory.load(region.layout.process_ring(0, vcpu) + RING_LOST_FULL))
    }

    #[test]
    fn losses_that_no_ring_counted_are_those_of_the_threads_ring() {
        let region = Region::new();

        region.rings().unwrap().count_lost(&Scripted::new(&[3]), 3);

        assert_eq!(lost(&region), [0, 3]);
    }

    #[test]
    fn losses_on_a_cpu_without_a_ring_are_the_first_rings() {
        let region = Region::new();

        region.rings().unwrap().count_lost(&Scripted::new(&[1]), 3);

        assert_eq!(lost(&region), [3, 0]);
    }

    #[test]
    fn floats_are_described_as_their_bits_to_a_host_that_does_not_know_them() {
        const WEIGHED: Event = Event { fields: &[Field::new("weight", FieldType::F64)], ..EVENT };
        let [new, old] = [Region::new(), Region::new()];
        old.memory.store(offset_of!(Superblock, features), FEATURE_RESTARTABLE_RINGS);

        let described = [new, old].map(|region| {
            assert!(region.rings().unwrap().append(&WEIGHED));
            let field = &region.drain(0).0[0].fields[0];
            (field.ty, field.hex)
        });

        assert_eq!(described, [(FieldType::F64, false), (FieldType::U64, true)]);
    }

    #[test]
    fn slot_without_a_header_is_refused() {
        let region = Region::new();
        region.memory.store(region.layout.process_slot(0), 0);

        assert!(matches!(region.rings().unwrap_err(), RingsError::View(ViewError::NotARegion)));
    }

    #[test]
    fn rings_that_leave_the_slot_are_refused() {
        let region = Region::new();
        let rings_offset = region.layout.process_slot(0) + offset_of!(ProcessHeader, rings_offset);
        region.memory.store(rings_offset, region.layout.process_rings as u64 + 8);

        let error = region.rings().unwrap_err();
        assert!(matches!(error, RingsError::View(ViewError::Outside { part: "process's rings" })), "{error}");
    }
}
