//! Reading a region from its bytes alone.
//!
//! Shows: A crashed ring is readable from its region's bytes.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)] // Tests: producers over raw memory, no rustdoc, panics wanted.

use proptest::prelude::*;
use shared_ring::consumer::crash::CrashRegion;
use shared_ring::consumer::{Consumer, Lost};
use shared_ring::event::{Event, EventDescription, Field, FieldType};
use shared_ring::guest;
use shared_ring::host;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{AGENT_ALIVE, Geometry, MAX_VCPUS, Mode, PACKET_HEADER_SIZE, SESSION_SLOTS};
use shared_ring::producer::Producer;
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use shared_ring::registry::Registry;
use shared_ring::storage::{CpuLocal, Smp};
use shared_ring::view::ViewError;

const EVENT: Event = Event { id: 5, class: 0, name: "test:event", fields: &[Field::new("value", FieldType::U64)] };
const PER_SUB_BUFFER: u64 = (4096 - PACKET_HEADER_SIZE as u64) / 16;
/// Session slots of the regions below.
const DISCARD: usize = 0;
const RECORDER: usize = 2;

fn rings(mode: Mode) -> Rings {
    Rings { geometry: Geometry::new(4096, 4).unwrap(), mode }
}

/// A region with two vCPUs, a discarding session in slot 0, a flight recorder in slot 2, a process in slot 1
/// and one that has ended.
struct Region {
    memory: HostMemory,
    layout: RegionLayout,
}

impl Region {
    fn new() -> Self {
        let layout = RegionLayout::new(RegionConfig {
            vcpus: 2,
            sessions: [Some(rings(Mode::Discard)), None, Some(rings(Mode::FlightRecorder)), None],
            process_rings: rings(Mode::FlightRecorder),
            process_slots: 2,
            registry_size: 4096,
            process_registry_size: 4096,
        })
        .unwrap();
        let memory = HostMemory::private(layout.size);
        let mut host = host::Region::create(memory.clone(), layout, [3; 16], 1_000).unwrap();
        for (slot, mode) in [(DISCARD, Mode::Discard), (RECORDER, Mode::FlightRecorder)] {
            host.open_session(slot, "a", rings(mode), |_, _| ()).unwrap();
        }
        // SAFETY: the memory is aligned, as large as it says, and outlives the guest's side.
        let guest = unsafe { guest::Region::open(memory.base(), memory.size() as u64) }.unwrap();
        guest.announce(b"6.1", 0, AGENT_ALIVE);
        // SAFETY: this thread is the only one that claims slots, and no process maps them.
        let claim = |pid| unsafe { guest.claim_process_slot(pid, &[0; 16], &[0; MAX_VCPUS as usize]) };
        let claimed = [76, 77].map(claim);
        assert_eq!(claimed, [Some(0), Some(1)]);
        guest.close_process_slot(0);
        host::Parts::of(memory.clone(), &layout).unwrap().acknowledge(0, 1);
        for registry in [layout.registry, layout.process_slot(1) + 4096] {
            // SAFETY: the registry lies inside the memory, which outlives it; this is its only writer.
            assert!(unsafe { Registry::new(Smp::new(memory.base().add(registry)), 4096) }.append(&EVENT));
        }
        Self { memory, layout }
    }

    fn producer_at(&self, offset: usize, mode: Mode) -> Producer<CpuLocal> {
        // SAFETY: a whole ring lies there, zeroed, and the memory outlives the producer (each test keeps the region).
        unsafe { Producer::new(CpuLocal::new(self.memory.base().add(offset)), rings(mode).geometry, mode) }
    }

    fn producer(&self, slot: usize, vcpu: u32, mode: Mode) -> Producer<CpuLocal> {
        self.producer_at(self.layout.kernel_ring(slot, vcpu), mode)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.size()];
        self.memory.read(0, &mut bytes);
        bytes
    }

    fn crash(&self) -> CrashRegion {
        CrashRegion::from_bytes(&self.bytes()).unwrap()
    }
}

fn record(producer: &Producer<CpuLocal>, values: std::ops::Range<u64>) {
    values.for_each(|value| assert!(producer.record(|| 1000 + value, 5, &value.to_le_bytes())));
}

fn drain(mut consumer: Consumer, events: &[EventDescription]) -> (Vec<u64>, Consumer) {
    let (mut packet, mut values) = (Vec::new(), Vec::new());
    while let Some(delivered) = consumer.poll_stopped(&mut packet).ready() {
        let known = |id| events.iter().find(|event| event.id == id);
        let Some(packet) = delivered.accept([3; 16], u64::MAX, known) else { continue };
        values.extend(packet.records().map(|record| u64::from_le_bytes(record.payload.try_into().unwrap())));
    }
    consumer.finish();
    (values, consumer)
}

fn recovered(crash: &CrashRegion, slot: usize, vcpu: u32) -> (Vec<u64>, Consumer) {
    let session = crash.session(slot).unwrap().unwrap();
    drain(crash.kernel_ring(&session, vcpu).unwrap(), &crash.kernel_registry().poll())
}

#[test]
fn both_modes_are_recovered_from_bytes_alone() {
    let region = Region::new();
    record(&region.producer(DISCARD, 0, Mode::Discard), 0..PER_SUB_BUFFER + 7);
    record(&region.producer(RECORDER, 1, Mode::FlightRecorder), 0..9 * PER_SUB_BUFFER + 2);

    let crash = region.crash();
    let (discarding, _) = recovered(&crash, DISCARD, 0);
    let (recorder, consumer) = recovered(&crash, RECORDER, 1);

    assert_eq!(discarding, (0..PER_SUB_BUFFER + 7).collect::<Vec<_>>());
    assert_eq!(recorder, (6 * PER_SUB_BUFFER..9 * PER_SUB_BUFFER + 2).collect::<Vec<_>>());
    assert_eq!((consumer.overwritten(), consumer.rejected_bytes()), (6, 0));
    assert_eq!(recovered(&crash, RECORDER, 0).0, []);
}

#[test]
fn what_the_dead_host_had_read_is_not_recovered_again() {
    let region = Region::new();
    let producer = region.producer(DISCARD, 0, Mode::Discard);
    let ring = region.memory.part(region.layout.kernel_ring(DISCARD, 0), rings(Mode::Discard).ring_size());
    let mut host = Consumer::new(ring, rings(Mode::Discard).geometry, Mode::Discard, 0);
    let described = EventDescription::from(&EVENT);
    let mut packet = Vec::new();
    for lap in 0..5 {
        record(&producer, lap * PER_SUB_BUFFER..(lap + 1) * PER_SUB_BUFFER);
        host.poll(&mut packet).ready().unwrap().accept([0; 16], u64::MAX, |_| Some(&described)).unwrap();
    }
    record(&producer, 5 * PER_SUB_BUFFER..6 * PER_SUB_BUFFER + 1);

    let (values, consumer) = recovered(&region.crash(), DISCARD, 0);

    assert_eq!(values, (5 * PER_SUB_BUFFER..6 * PER_SUB_BUFFER + 1).collect::<Vec<_>>());
    assert_eq!((consumer.lost(), consumer.rejected_bytes()), (Lost::default(), 0));
}

#[test]
fn hole_ends_its_sub_buffer_only_and_is_counted() {
    let region = Region::new();
    let discarding = region.producer(DISCARD, 0, Mode::Discard);
    let recorder = region.producer(RECORDER, 0, Mode::FlightRecorder);
    for producer in [&discarding, &recorder] {
        record(producer, 0..3);
        std::mem::forget(producer.reserve(|| 1003, 5, 8).unwrap());
        record(producer, 4..PER_SUB_BUFFER + 2);
    }

    let crash = region.crash();
    for slot in [DISCARD, RECORDER] {
        let (values, consumer) = recovered(&crash, slot, 0);

        assert_eq!(values, (0..3).chain(PER_SUB_BUFFER..PER_SUB_BUFFER + 2).collect::<Vec<_>>());
        assert_eq!(consumer.rejected_bytes(), 16 * (PER_SUB_BUFFER - 3));
    }
}

#[test]
fn sub_buffer_in_the_dead_consumers_hands_is_recovered() {
    let region = Region::new();
    record(&region.producer(RECORDER, 0, Mode::FlightRecorder), 0..6 * PER_SUB_BUFFER);
    let (index, spare) = (3, 4);
    let at = region.layout.kernel_ring(RECORDER, 0) + rings(Mode::FlightRecorder).geometry.exchange_offset(index);
    // The word that docs/abi.md gives an entry whose data the consumer has, with its spare in their place.
    let lap_tag = region.memory.load(at) >> 18;
    region.memory.store(at, lap_tag << 18 | 1 << 17 | (spare ^ index) as u64);

    let (values, _) = recovered(&region.crash(), RECORDER, 0);

    assert_eq!(values, (2 * PER_SUB_BUFFER..6 * PER_SUB_BUFFER).collect::<Vec<_>>());
}

#[test]
fn process_is_recovered_with_its_events() {
    let region = Region::new();
    let offset = region.layout.process_ring(1, 1);
    record(&region.producer_at(offset, Mode::FlightRecorder), 0..5);

    let crash = region.crash();
    let processes = crash.processes();
    let events = crash.process_registry(1).unwrap().poll();
    let (values, _) = drain(crash.process_ring(1, 1).unwrap(), &events);

    assert_eq!(processes.iter().map(|process| (process.slot, process.pid)).collect::<Vec<_>>(), [(1, 77)]);
    assert_eq!(values, [0, 1, 2, 3, 4]);
    assert!(crash.process_ring(2, 0).is_none() && crash.process_ring(1, 2).is_none());
}

#[test]
fn process_that_was_read_to_its_end_is_not_recovered_again() {
    let region = Region::new();
    region.memory.store(region.layout.process_ack + 8, 1);

    assert_eq!(region.crash().processes(), []);
}

#[test]
fn unused_session_slots_are_empty() {
    let crash = Region::new().crash();

    let in_use: Vec<usize> = (0..=SESSION_SLOTS).filter(|&slot| crash.session(slot).unwrap().is_some()).collect();

    assert_eq!(in_use, [DISCARD, RECORDER]);
    assert_eq!(crash.agent().state, AGENT_ALIVE);
}

#[test]
fn other_bytes_are_refused_with_a_reason() {
    let bytes = Region::new().bytes();
    let damaged = |at: usize, value: u64| {
        let mut bytes = bytes.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        CrashRegion::from_bytes(&bytes).map(|_| ()).unwrap_err()
    };

    assert_eq!(CrashRegion::from_bytes(&bytes[..100]).map(|_| ()), Err(ViewError::TooSmall { size: 96 }));
    assert_eq!(damaged(0, 1), ViewError::NotARegion);
    assert_eq!(damaged(8, 9 << 16), ViewError::OtherVersion { found: 9 << 16 });
    let (size, wanted) = (bytes.len() as u64 - 8, bytes.len() as u64);
    assert_eq!(CrashRegion::from_bytes(&bytes[..bytes.len() - 8]).map(|_| ()), Err(ViewError::Cut { size, wanted }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_regions_are_read_without_harm(damage in proptest::collection::vec((0_usize..400, any::<u64>()), 1..6)) {
        let region = Region::new();
        record(&region.producer(DISCARD, 0, Mode::Discard), 0..PER_SUB_BUFFER + 7);
        record(&region.producer(RECORDER, 1, Mode::FlightRecorder), 0..7 * PER_SUB_BUFFER);
        let mut bytes = region.bytes();
        // Superblock, session slots, and the control words of both rings.
        let places: Vec<usize> = (0..21).map(|word| word * 8)
            .chain((0..10).map(|word| region.layout.session_slot(RECORDER) + word * 8))
            .chain((0..30).map(|word| region.layout.kernel_ring(DISCARD, 0) + word * 8))
            .chain((0..16).map(|word| region.layout.kernel_ring(DISCARD, 0) + 4096 + word * 8))
            .chain((0..30).map(|word| region.layout.kernel_ring(RECORDER, 1) + word * 8))
            .chain((0..16).map(|word| region.layout.kernel_ring(RECORDER, 1) + 4096 + word * 8))
            .collect();
        for (place, value) in damage {
            let at = places[place % places.len()];
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }

        let crash = CrashRegion::from_bytes(&bytes);
        for crash in crash.iter() {
            let events = crash.kernel_registry().poll();
            for session in (0..SESSION_SLOTS).filter_map(|slot| crash.session(slot).ok().flatten()) {
                for ring in (0..crash.vcpus()).filter_map(|vcpu| crash.kernel_ring(&session, vcpu)) {
                    let (values, _) = drain(ring, &events);
                    prop_assert!(values.len() as u64 <= 5 * PER_SUB_BUFFER);
                }
            }
        }
    }
}
