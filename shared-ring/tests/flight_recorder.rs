//! Flight-recorder mode, and forced switches: overwriting, exchange, snapshots, what a crash leaves.
//!
//! Shows: Records come out complete, in order, once; losses are counted exactly (real sizes).
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)] // Tests: producers over raw memory, no rustdoc, panics wanted.

use shared_ring::consumer::{Consumer, Delivered, Lost};
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host::memory::{HostMemory, RingMemory};
use shared_ring::layout::{Geometry, Mode, PACKET_HEADER_SIZE, RING_OVERWRITTEN, RING_READ_COUNT, RING_WRITE_COUNT};
use shared_ring::producer::Producer;
use shared_ring::storage::{CpuLocal, Smp};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const UUID: [u8; 16] = [7; 16];
/// Records of 16 bytes that a sub-buffer of 4096 bytes holds.
const PER_SUB_BUFFER: u64 = (4096 - PACKET_HEADER_SIZE as u64) / 16;

fn geometry() -> Geometry {
    Geometry::new(4096, 4).unwrap()
}

fn event() -> EventDescription {
    let field = |name: &str, ty| FieldDescription { name: name.into(), ty, hex: false };
    EventDescription { id: 5, class: 0, name: "test:event".into(), fields: vec![field("value", FieldType::U64)] }
}

fn ring(mode: Mode) -> (HostMemory, Producer<CpuLocal>) {
    let memory = HostMemory::private(geometry().ring_size(mode));
    // SAFETY: the memory covers the ring, is zeroed, and outlives the producer (each test keeps it).
    let producer = unsafe { Producer::new(CpuLocal::new(memory.base()), geometry(), mode) };
    (memory, producer)
}

fn recorder() -> (HostMemory, Producer<CpuLocal>) {
    ring(Mode::FlightRecorder)
}

fn ticking(from: u64) -> impl Fn() -> u64 {
    let time = Cell::new(from);
    move || time.replace(time.get() + 1)
}

fn record(producer: &Producer<CpuLocal>, values: std::ops::Range<u64>) {
    values.for_each(|value| assert!(producer.record(|| 1000 + value, 5, &value.to_le_bytes())));
}

/// Values of a packet that was just copied, if it is accepted.
fn accept<M: RingMemory>(delivered: Delivered<'_, M>) -> Vec<u64> {
    let event = event();
    let known = |id| (id == event.id).then_some(&event);
    let Some(packet) = delivered.accept(UUID, u64::MAX, known) else { return Vec::new() };
    packet.records().map(|record| u64::from_le_bytes(record.payload.try_into().unwrap())).collect()
}

/// All that a new consumer finds, running producers or not.
fn snapshot(memory: &HostMemory) -> (Consumer, Vec<u64>) {
    let mut consumer = Consumer::new(memory.clone(), geometry(), Mode::FlightRecorder, 1);
    let (mut packet, mut values) = (Vec::new(), Vec::new());
    while let Some(delivered) = consumer.poll_stopped(&mut packet).ready() {
        values.extend(accept(delivered));
    }
    consumer.finish();
    (consumer, values)
}

#[test]
fn oldest_sub_buffers_are_overwritten_and_counted() {
    let (memory, producer) = recorder();
    let recorded = 10 * PER_SUB_BUFFER + 3;

    record(&producer, 0..recorded);
    let (consumer, values) = snapshot(&memory);

    assert_eq!(values, (7 * PER_SUB_BUFFER..recorded).collect::<Vec<_>>());
    assert_eq!((consumer.overwritten(), consumer.lost(), consumer.rejected_bytes()), (7, Lost::default(), 0));
}

/// The memory of a module of an older build, which reserves another record between two loads of the host: it says what is
/// whole before it reserves more, and not when it has committed.
struct OfOlderProducer {
    memory: HostMemory,
    has_reserved: Cell<bool>,
}

impl RingMemory for OfOlderProducer {
    fn size(&self) -> usize {
        self.memory.size()
    }

    fn load(&self, offset: usize) -> u64 {
        let value = self.memory.load(offset);
        if offset == geometry().commit_count_offset(0) && !self.has_reserved.replace(true) {
            self.memory.store(geometry().commit_prefix_offset(0), value);
            self.memory.store(RING_WRITE_COUNT, self.memory.load(RING_WRITE_COUNT) + 16);
        }
        value
    }

    fn store(&self, offset: usize, value: u64) {
        self.memory.store(offset, value);
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.memory.compare_exchange(offset, current, new)
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        self.memory.read(offset, out);
    }

    fn fence_acquire(&self) {
        RingMemory::fence_acquire(&self.memory);
    }

    fn clear(&self, offset: usize, size: usize) {
        self.memory.clear(offset, size);
    }
}

#[test]
fn snapshot_has_what_an_older_producer_says_before_it_reserves_more() {
    let (memory, producer) = recorder();
    record(&producer, 0..3);
    memory.store(geometry().commit_prefix_offset(0), 0);
    let memory = OfOlderProducer { memory, has_reserved: Cell::new(false) };
    let mut consumer = Consumer::new(memory, geometry(), Mode::FlightRecorder, 1);

    let values = consumer.poll_stopped(&mut Vec::new()).ready().map(accept);

    assert_eq!(values, Some(vec![0, 1, 2]));
}

/// What a consumer finds that begins with the sub-buffer `sequence`.
fn tail(memory: &HostMemory, sequence: u64) -> Vec<u64> {
    let mut consumer = Consumer::new(memory.clone(), geometry(), Mode::FlightRecorder, 1).starting_at(sequence);
    let (mut packet, mut values) = (Vec::new(), Vec::new());
    while let Some(delivered) = consumer.poll_stopped(&mut packet).ready() {
        values.extend(accept(delivered));
    }
    values
}

#[test]
fn consumer_begins_at_the_given_record_or_with_the_oldest_that_is_left() {
    let (memory, producer) = recorder();
    let recorded = 10 * PER_SUB_BUFFER + 3;

    record(&producer, 0..recorded);

    assert_eq!(tail(&memory, 9), (9 * PER_SUB_BUFFER..recorded).collect::<Vec<_>>());
    assert_eq!(tail(&memory, 10), (10 * PER_SUB_BUFFER..recorded).collect::<Vec<_>>());
    assert_eq!(tail(&memory, 2), (7 * PER_SUB_BUFFER..recorded).collect::<Vec<_>>());
    // Beyond what there is: damage, and nothing to read.
    assert_eq!([tail(&memory, 11), tail(&memory, u64::MAX)], [[0; 0], [0; 0]]);
}

#[test]
fn packet_behind_overwritten_sub_buffers_counts_them() {
    let (memory, producer) = recorder();
    let mut consumer = Consumer::new(memory.clone(), geometry(), Mode::FlightRecorder, 1);
    let mut buffer = Vec::new();
    let event = event();
    let mut next = || {
        let packet = consumer.poll(&mut buffer).ready().unwrap().accept(UUID, u64::MAX, |_| Some(&event)).unwrap();
        packet.header().overwritten
    };

    record(&producer, 0..2 * PER_SUB_BUFFER);
    let first = next();
    record(&producer, 2 * PER_SUB_BUFFER..8 * PER_SUB_BUFFER);
    // A producer that was interrupted before it counted them.
    memory.store(RING_OVERWRITTEN, 0);
    let counted = [first, next(), next()];

    assert_eq!(counted, [0, 3, 3]);
}

#[test]
fn unfinished_packet_of_a_snapshot_counts_what_was_lost_before_it() {
    let (memory, producer) = recorder();
    let clock = ticking(0);
    let unfinished = producer.reserve(&clock, 5, 8).unwrap();
    let lost = (0..2000).filter(|_| !producer.record(&clock, 5, &[1; 8])).count() as u64;
    unfinished.commit();
    assert!(producer.record(&clock, 5, &[1; 8]));

    let mut consumer = Consumer::new(memory, geometry(), Mode::FlightRecorder, 1);
    let (mut buffer, mut counted) = (Vec::new(), Vec::new());
    let event = event();
    while let Some(delivered) = consumer.poll_stopped(&mut buffer).ready() {
        counted.push(delivered.accept(UUID, u64::MAX, |_| Some(&event)).unwrap().header().lost_wrapped);
    }

    assert_eq!(counted, [0, 0, 0, lost]);
}

#[test]
fn full_flight_recorder_holds_as_many_packets_as_it_has_sub_buffers() {
    let (memory, producer) = recorder();

    record(&producer, 0..6 * PER_SUB_BUFFER);

    assert_eq!(snapshot(&memory).1, (2 * PER_SUB_BUFFER..6 * PER_SUB_BUFFER).collect::<Vec<_>>());
}

#[test]
fn two_snapshots_in_a_row_hold_the_same() {
    let (memory, producer) = recorder();
    record(&producer, 0..9 * PER_SUB_BUFFER + 1);

    let first = snapshot(&memory).1;
    let second = snapshot(&memory).1;

    assert_eq!(first.len() as u64, 3 * PER_SUB_BUFFER + 1);
    assert_eq!(first, second);
}

#[test]
fn snapshot_while_recording_goes_on_leaves_the_ring_intact() {
    let (memory, producer) = recorder();

    let ends: Vec<(u64, u64)> = (0..20)
        .map(|round| {
            record(&producer, round * 100..(round + 1) * 100);
            let values = snapshot(&memory).1;
            assert!(values.is_sorted());
            (values.len() as u64, *values.last().unwrap())
        })
        .collect();

    assert!(ends.iter().enumerate().all(|(round, &(_, last))| last == round as u64 * 100 + 99));
    assert!(ends.iter().skip(11).all(|&(held, _)| held > 3 * PER_SUB_BUFFER && held <= 4 * PER_SUB_BUFFER));
}

#[test]
fn sub_buffer_that_was_read_is_not_counted_as_overwritten() {
    let (memory, producer) = recorder();
    record(&producer, 0..3 * PER_SUB_BUFFER);

    snapshot(&memory);
    record(&producer, 0..3 * PER_SUB_BUFFER);

    assert_eq!(memory.load(RING_OVERWRITTEN), 0);
    assert_eq!(memory.load(RING_READ_COUNT), 3 * 4096);
}

#[test]
fn consumer_that_keeps_polling_sees_every_record_once() {
    let (memory, producer) = recorder();
    let mut consumer = Consumer::new(memory.clone(), geometry(), Mode::FlightRecorder, 1);
    let (mut packet, mut values) = (Vec::new(), Vec::new());

    for round in 0..40 {
        record(&producer, round * 200..(round + 1) * 200);
        while let Some(delivered) = consumer.poll(&mut packet).ready() {
            values.extend(accept(delivered));
        }
    }

    assert_eq!(values, (0..40 * 200 / PER_SUB_BUFFER * PER_SUB_BUFFER).collect::<Vec<_>>());
    assert_eq!(memory.load(RING_OVERWRITTEN), 0);
}

#[test]
fn write_count_that_goes_back_closes_the_ring() {
    let (memory, producer) = recorder();
    record(&producer, 0..2 * PER_SUB_BUFFER);
    let mut consumer = Consumer::new(memory.clone(), geometry(), Mode::FlightRecorder, 0);
    let mut packet = Vec::new();
    accept(consumer.poll(&mut packet).ready().unwrap());

    memory.store(RING_WRITE_COUNT, 100);

    assert!(consumer.poll(&mut packet).is_corrupt());
}

#[test]
fn packet_that_does_not_belong_is_not_believed() {
    let (memory, producer) = recorder();
    record(&producer, 0..PER_SUB_BUFFER);
    memory.store(geometry().physical_offset(0) + std::mem::offset_of!(shared_ring::layout::PacketHeader, sequence), 4);

    let (consumer, values) = snapshot(&memory);

    assert_eq!((values, consumer.rejected_bytes()), (vec![], 4096));
}

#[test]
fn unfinished_sub_buffer_is_read_up_to_its_first_hole() {
    let (memory, producer) = recorder();
    record(&producer, 0..10 * PER_SUB_BUFFER + 2);

    std::mem::forget(producer.reserve(|| 9000, 5, 8).unwrap());
    assert!(producer.record(|| 9001, 5, &9_u64.to_le_bytes()));
    let (consumer, values) = snapshot(&memory);

    assert_eq!(values.last(), Some(&(10 * PER_SUB_BUFFER + 1)));
    assert_eq!(consumer.rejected_bytes(), 32);
}

#[test]
fn hole_in_an_older_sub_buffer_hides_none_of_the_younger_ones() {
    let (memory, producer) = recorder();
    record(&producer, 0..PER_SUB_BUFFER + 2);
    std::mem::forget(producer.reserve(|| 1000 + PER_SUB_BUFFER + 2, 5, 8).unwrap());
    record(&producer, PER_SUB_BUFFER + 3..3 * PER_SUB_BUFFER);

    let (consumer, values) = snapshot(&memory);

    let missing = PER_SUB_BUFFER + 2..2 * PER_SUB_BUFFER;
    assert_eq!(values, (0..missing.start).chain(missing.end..3 * PER_SUB_BUFFER).collect::<Vec<_>>());
    assert_eq!(consumer.rejected_bytes(), 16 * (PER_SUB_BUFFER - 2));
}

#[test]
fn nested_records_of_equal_size_hide_no_hole() {
    let (memory, producer) = recorder();
    record(&producer, 0..1);
    std::mem::forget(producer.reserve(|| 2000, 5, 8).unwrap());
    let second = producer.reserve(|| 2001, 5, 8).unwrap();
    // Two more records commit as many bytes as lie before the end of `second`.
    assert!(producer.record(|| 2002, 5, &7_u64.to_le_bytes()));
    second.commit();

    let (consumer, values) = snapshot(&memory);

    assert_eq!((values, consumer.rejected_bytes()), (vec![0], 48));
}

#[test]
fn outermost_commit_makes_nested_records_readable() {
    let (memory, producer) = recorder();
    let outer = producer.reserve(|| 1, 5, 8).unwrap();
    assert!(producer.record(|| 2, 5, &2_u64.to_le_bytes()));
    outer.commit();

    assert_eq!(snapshot(&memory).1.len(), 2);
}

#[test]
fn record_over_an_unfinished_lap_is_lost_as_wrapped() {
    let (memory, producer) = recorder();
    let clock = ticking(0);

    let unfinished = producer.reserve(&clock, 5, 8).unwrap();
    let recorded = (0..2000).filter(|_| producer.record(&clock, 5, &[1; 8])).count() as u64;
    unfinished.commit();
    let again = producer.record(&clock, 5, &[1; 8]);
    let (consumer, _) = snapshot(&memory);

    assert_eq!(recorded, 4 * PER_SUB_BUFFER - 1);
    assert!(again);
    assert_eq!(consumer.lost(), Lost { wrapped: 2000 - recorded, ..Lost::default() });
}

#[test]
fn time_far_from_the_packets_beginning_survives_a_lap() {
    let (memory, producer) = recorder();
    record(&producer, 0..5 * PER_SUB_BUFFER + 1);
    let far = 1 << 40;

    assert!(producer.record(|| far, 5, &1_u64.to_le_bytes()));
    let mut consumer = Consumer::new(memory, geometry(), Mode::FlightRecorder, 1);
    let mut packet = Vec::new();
    let mut last = 0;
    let event = event();
    while let Some(delivered) = consumer.poll_stopped(&mut packet).ready() {
        let packet = delivered.accept(UUID, u64::MAX, |_| Some(&event)).unwrap();
        last = packet.records().last().map_or(last, |record| record.time);
    }

    assert_eq!(last, far);
}

#[test]
fn forced_switch_delivers_what_there_is() {
    for mode in [Mode::Discard, Mode::FlightRecorder] {
        let (memory, producer) = ring(mode);
        let mut consumer = Consumer::new(memory, geometry(), mode, 1);
        let mut packet = Vec::new();
        record(&producer, 0..3);
        let was_empty = consumer.poll(&mut packet).is_empty();

        let switched = producer.force_switch(|| 5000);

        assert!(was_empty && switched);
        assert_eq!(accept(consumer.poll(&mut packet).ready().unwrap()), [0, 1, 2]);
        assert_eq!(consumer.rejected_bytes(), 0);
    }
}

#[test]
fn forced_switch_of_an_empty_sub_buffer_does_nothing() {
    let (memory, producer) = ring(Mode::Discard);

    let at_first = producer.force_switch(|| 1);
    record(&producer, 0..1);
    let switches = [producer.force_switch(|| 5000), producer.force_switch(|| 5001)];

    assert_eq!((at_first, switches), (false, [true, false]));
    assert_eq!(memory.load(RING_WRITE_COUNT), 4096);
}

#[test]
fn forced_switch_waits_for_an_unfinished_record() {
    let (memory, producer) = ring(Mode::Discard);
    let mut consumer = Consumer::new(memory, geometry(), Mode::Discard, 1);
    let mut packet = Vec::new();
    let unfinished = producer.reserve(|| 1, 5, 8).unwrap();

    producer.force_switch(|| 2);
    let was_empty = consumer.poll(&mut packet).is_empty();
    unfinished.commit();

    assert!(was_empty && consumer.poll(&mut packet).is_ready());
}

#[test]
fn recording_goes_on_after_a_forced_switch() {
    for mode in [Mode::Discard, Mode::FlightRecorder] {
        let (memory, producer) = ring(mode);
        record(&producer, 0..3);
        producer.force_switch(|| 2000);
        record(&producer, 1003..1005);

        let mut consumer = Consumer::new(memory, geometry(), mode, 1);
        let (mut packet, mut values) = (Vec::new(), Vec::new());
        while let Some(delivered) = consumer.poll_stopped(&mut packet).ready() {
            values.extend(accept(delivered));
        }
        assert_eq!(values, [0, 1, 2, 1003, 1004]);
    }
}

#[test]
fn flush_request_is_honoured_once() {
    let (memory, producer) = ring(Mode::Discard);
    let mut consumer = Consumer::new(memory, geometry(), Mode::Discard, 1);
    record(&producer, 0..1);

    let idle = producer.poll_flush_request(|| 2000);
    let request = consumer.request_flush();
    let before = consumer.is_flushed(request);
    let honoured = [producer.poll_flush_request(|| 2001), producer.poll_flush_request(|| 2002)];

    assert_eq!((idle, before, honoured), (false, false, [true, false]));
    assert!(consumer.is_flushed(request));
    assert!(consumer.poll(&mut Vec::new()).is_ready());
}

#[test]
fn record_that_opens_a_sub_buffer_honours_the_flush_request() {
    let (memory, producer) = ring(Mode::Discard);
    let mut consumer = Consumer::new(memory, geometry(), Mode::Discard, 1);
    record(&producer, 0..PER_SUB_BUFFER);

    let request = consumer.request_flush();
    record(&producer, PER_SUB_BUFFER..PER_SUB_BUFFER + 1);

    assert!(consumer.is_flushed(request));
}

#[test]
fn snapshots_beside_running_threads_are_always_whole() {
    let memory = HostMemory::private(geometry().ring_size(Mode::FlightRecorder));
    // SAFETY: the memory covers the ring, is zeroed and outlives the threads.
    let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry(), Mode::FlightRecorder) };
    let clock = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let now = || clock.fetch_add(1, Ordering::AcqRel);
    let run = |thread: u64| {
        let mut value = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            value += u64::from(producer.record(now, 5, &(thread << 32 | value).to_le_bytes()));
        }
    };

    let snapshots: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || run(thread)));
        while memory.load(RING_WRITE_COUNT) < 8 * 4096 {
            std::thread::yield_now();
        }
        let snapshots = (0..300)
            .map(|_| {
                let (consumer, values) = snapshot(&memory);
                assert!(!consumer.is_corrupt());
                values
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        snapshots
    });

    // Each thread's values grow by one from record to record: a torn or foreign byte would show.
    let of_thread = |values: &[u64], thread: u64| -> Vec<u64> {
        values.iter().filter(|&&value| value >> 32 == thread).copied().collect()
    };
    assert!(snapshots.iter().any(|values| values.len() as u64 > PER_SUB_BUFFER));
    for values in &snapshots {
        assert!(values.iter().all(|value| value >> 32 < 2));
        assert!((0..2).all(|thread| of_thread(values, thread).is_sorted()));
    }
    let (consumer, last) = snapshot(&memory);
    assert!(last.len() as u64 > 3 * PER_SUB_BUFFER);
    assert_eq!((consumer.rejected_bytes(), consumer.lost().total()), (0, consumer.lost().wrapped));
}
