//! A ring whose producer goes on behind records that are never finished.
//!
//! Shows: A ring goes on behind an unfinished record.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)] // Tests: producers over raw memory, no rustdoc, panics wanted.

use shared_ring::consumer::Consumer;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{Geometry, Mode, PACKET_HEADER_SIZE};
use shared_ring::producer::{Abandoned, Producer};
use shared_ring::storage::CpuLocal;
use std::cell::Cell;

const MODES: [Mode; 2] = [Mode::Discard, Mode::FlightRecorder];
/// Records with a payload of 8 bytes that a sub-buffer holds.
const PER_SUB_BUFFER: u64 = (4096 - PACKET_HEADER_SIZE as u64) / 16;

struct Ring {
    memory: HostMemory,
    geometry: Geometry,
    mode: Mode,
    producer: Producer<CpuLocal>,
    consumer: Consumer,
    event: EventDescription,
    clock: Cell<u64>,
}

impl Ring {
    /// A ring of four sub-buffers, used by one thread.
    fn new(mode: Mode, sub_buffer_size: u64) -> Self {
        let geometry = Geometry::new(sub_buffer_size, 4).unwrap();
        let memory = HostMemory::private(geometry.ring_size(mode));
        // SAFETY: the memory covers the ring, is zeroed, and lives as long as the producer.
        let producer = unsafe { Producer::new(CpuLocal::new(memory.base()), geometry, mode) };
        let consumer = Consumer::new(memory.clone(), geometry, mode, 0);
        let field = FieldDescription { name: "value".into(), ty: FieldType::U64, hex: false };
        let event = EventDescription { id: 5, class: 0, name: "test:event".into(), fields: vec![field] };
        Self { memory, geometry, mode, producer, consumer, event, clock: Cell::new(1000) }
    }

    fn now(&self) -> u64 {
        self.clock.replace(self.clock.get() + 1)
    }

    /// Records these values; says how many there was room for.
    fn record(&self, values: std::ops::Range<u64>) -> u64 {
        values.map(|value| u64::from(self.producer.record(|| self.now(), 5, &value.to_le_bytes()))).sum()
    }

    /// Reserves a record of `payload` bytes, writes them, and leaves it.
    fn abandon(&self, payload: usize) {
        let mut reservation = self.producer.reserve(|| self.now(), 5, payload).unwrap();
        reservation.payload().fill(0x05);
        std::mem::forget(reservation);
    }

    fn repair(&self, abandoned: Abandoned) -> bool {
        // SAFETY: this thread is the only one that uses the ring, and finishes none of its open records.
        unsafe { self.producer.repair_holes(abandoned) }
    }

    /// The values that the consumer finds while the ring is running.
    fn deliver(&mut self) -> Vec<u64> {
        let (mut buffer, mut values) = (Vec::new(), Vec::new());
        while let Some(delivered) = self.consumer.poll(&mut buffer).ready() {
            let packet = delivered.accept([7; 16], u64::MAX, |id| (id == 5).then_some(&self.event));
            let records = packet.iter().flat_map(|packet| packet.records());
            values.extend(records.map(|record| u64::from_le_bytes(record.payload.try_into().unwrap())));
        }
        values
    }

    /// Records these values, more than the ring holds, and what of them is delivered meanwhile.
    fn record_and_deliver(&mut self, values: std::ops::Range<u64>) -> (u64, Vec<u64>) {
        let (mut made, mut delivered) = (0, Vec::new());
        for first in values.clone().step_by(100) {
            made += self.record(first..values.end.min(first + 100));
            delivered.extend(self.deliver());
        }
        self.producer.force_switch(|| self.now());
        delivered.extend(self.deliver());
        (made, delivered)
    }

    /// What a new consumer of the ring finds as it stands.
    fn snapshot(&mut self) -> Vec<u64> {
        self.consumer = Consumer::new(self.memory.clone(), self.geometry, self.mode, 0);
        self.deliver()
    }
}

#[test]
fn record_that_is_never_finished_stops_the_ring_until_it_is_repaired() {
    for mode in MODES {
        let mut ring = Ring::new(mode, 4096);
        ring.abandon(8);

        let (before, delivered) = ring.record_and_deliver(0..10_000);
        let is_lost = ring.repair(Abandoned::One);
        let stuck = ring.deliver();
        let (after, all) = ring.record_and_deliver(10_000..20_000);

        assert_eq!((before, delivered), (4 * PER_SUB_BUFFER - 1, vec![]), "{mode:?}");
        assert!(is_lost, "{mode:?}");
        assert_eq!(stuck, (0..4 * PER_SUB_BUFFER - 1).collect::<Vec<_>>(), "{mode:?}");
        assert_eq!((after, all), (10_000, (10_000..20_000).collect()), "{mode:?}");
        ring.consumer.finish();
        let lost = ring.consumer.lost();
        assert_eq!((lost.total(), lost.wrapped), (10_000 - before + 1, lost.total()), "{mode:?}");
        assert_eq!((ring.consumer.rejected_bytes(), ring.consumer.overwritten()), (0, 0), "{mode:?}");
    }
}

#[test]
fn repair_in_the_midst_of_a_packet_is_counted_by_that_packet() {
    for mode in MODES {
        let mut ring = Ring::new(mode, 4096);
        ring.record(0..10);
        ring.abandon(40);
        ring.record(10..PER_SUB_BUFFER + 50);

        ring.repair(Abandoned::One);
        let mut buffer = Vec::new();
        let delivered = ring.consumer.poll(&mut buffer).ready().unwrap();
        let packet = delivered.accept([7; 16], u64::MAX, |_| Some(&ring.event)).unwrap();

        assert_eq!((packet.header().lost_wrapped, packet.record_count()), (1, PER_SUB_BUFFER - 3), "{mode:?}");
    }
}

#[test]
fn ring_without_open_records_is_left_as_it_is() {
    for mode in MODES {
        let mut ring = Ring::new(mode, 4096);
        let empty = ring.repair(Abandoned::One);
        ring.record(0..PER_SUB_BUFFER * 3 + 10);

        let is_lost = [empty, ring.repair(Abandoned::One), ring.repair(Abandoned::Several)];
        let (made, values) = ring.record_and_deliver(PER_SUB_BUFFER * 3 + 10..PER_SUB_BUFFER * 4);

        assert_eq!(is_lost, [false; 3], "{mode:?}");
        assert_eq!((made, values), (PER_SUB_BUFFER - 10, (0..PER_SUB_BUFFER * 4).collect()), "{mode:?}");
    }
}

#[test]
fn repair_says_for_the_next_one_what_is_whole() {
    let mut ring = Ring::new(Mode::FlightRecorder, 4096);
    ring.record(0..1);
    let prefix = ring.geometry.commit_prefix_offset(0);
    let before = ring.memory.load(prefix);
    ring.record(1..2);
    // The second record's context died right after it had committed.
    ring.memory.store(prefix, before);

    let is_lost = ring.repair(Abandoned::One);
    ring.abandon(40);
    ring.repair(Abandoned::One);
    ring.record(2..3);
    ring.producer.force_switch(|| ring.now());

    assert_eq!((is_lost, ring.deliver(), ring.consumer.rejected_bytes()), (false, vec![0, 1, 2], 0));
}

#[test]
fn hole_larger_than_a_record_can_be_is_covered() {
    for mode in MODES {
        let mut ring = Ring::new(mode, 1 << 18);
        ring.record(0..1);
        // More than 2^32 ticks later: the record carries its full time, and has 24 bytes beside its payload.
        ring.clock.set(1 << 33);
        ring.abandon(u16::MAX.into());
        ring.record(1..2);

        ring.repair(Abandoned::One);
        ring.producer.force_switch(|| ring.now());

        assert_eq!((ring.deliver(), ring.consumer.rejected_bytes()), (vec![0, 1], 0), "{mode:?}");
    }
}

#[test]
fn what_an_unfinished_record_wrote_is_cleared_with_its_sub_buffer() {
    let mut ring = Ring::new(Mode::Discard, 4096);
    ring.record(0..1);
    // To the end of the sub-buffer.
    ring.abandon(4096 - PACKET_HEADER_SIZE - 16 - 8);
    ring.repair(Abandoned::One);

    let values = ring.deliver();
    let mut bytes = vec![0; 4096];
    ring.memory.read(ring.geometry.data_offset(0), &mut bytes);

    assert_eq!((values, bytes), (vec![0], vec![0; 4096]));
}

#[test]
fn several_unfinished_records_cut_their_sub_buffer_at_the_first() {
    for mode in MODES {
        let mut ring = Ring::new(mode, 4096);
        // In a flight recorder, what the holes hold is records of earlier laps.
        ring.record_and_deliver(0..5 * PER_SUB_BUFFER);
        ring.record(9000..9001);
        ring.abandon(8);
        ring.record(9001..9002);
        ring.abandon(8);
        ring.record(9002..9003);

        let is_lost = ring.repair(Abandoned::Several);
        let (_, values) = ring.record_and_deliver(10_000..12_000);

        assert!(is_lost, "{mode:?}");
        assert_eq!(values[..2], [9000, 10_000 + PER_SUB_BUFFER - 5], "{mode:?}");
        assert_eq!(values.len() as u64, 2000 - (PER_SUB_BUFFER - 5) + 1, "{mode:?}");
        assert_eq!(ring.consumer.rejected_bytes(), (PER_SUB_BUFFER - 1) * 16, "{mode:?}");
    }
}

#[test]
fn flight_recorder_outlives_a_record_that_is_never_finished() {
    let mut ring = Ring::new(Mode::FlightRecorder, 4096);
    ring.record(0..2000);
    ring.abandon(8);
    ring.record(2000..4000);
    ring.repair(Abandoned::One);

    let made = ring.record(4000..8000);
    ring.producer.force_switch(|| ring.now());
    let values = ring.snapshot();

    assert_eq!((made, values.last()), (4000, Some(&7999)));
    assert!(values.len() as u64 > 3 * PER_SUB_BUFFER && values.is_sorted(), "{values:?}");
}
