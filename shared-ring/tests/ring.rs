//! The producer and the consumer together on one ring.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)] // Tests: producers over raw memory, no rustdoc, panics wanted.

use shared_ring::consumer::{Consumer, Lost, Poll};
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{Geometry, Mode, PACKET_HEADER_SIZE, RING_WRITE_COUNT};
use shared_ring::packet::{Records, read_header};
use shared_ring::producer::{NotReserved, Producer};
use shared_ring::storage::{CpuLocal, Smp};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

const UUID: [u8; 16] = [7; 16];

fn geometry() -> Geometry {
    Geometry::new(4096, 2).unwrap()
}

fn event() -> EventDescription {
    let field = |name: &str, ty| FieldDescription { name: name.into(), ty, hex: false };
    EventDescription { id: 5, class: 0, name: "test:event".into(), fields: vec![field("value", FieldType::U64)] }
}

/// A ring, its CPU-local producer and its consumer. The producer is used from one thread at a time.
fn ring() -> (HostMemory, Producer<CpuLocal>, Consumer) {
    let memory = HostMemory::private(geometry().ring_size(Mode::Discard));
    // SAFETY: the memory covers the ring, is zeroed, and outlives the producer (each test keeps it).
    let producer = unsafe { Producer::new(CpuLocal::new(memory.base()), geometry(), Mode::Discard) };
    let consumer = Consumer::new(memory.clone(), geometry(), Mode::Discard, 1);
    (memory, producer, consumer)
}

/// A clock that ticks once per reading.
fn ticking(from: u64) -> impl Fn() -> u64 {
    let time = Cell::new(from);
    move || time.replace(time.get() + 1)
}

/// Everything that the stopped ring still holds, as (time, payload value), and the consumer's verdicts.
fn drain(consumer: &mut Consumer) -> Vec<(u64, u64)> {
    let mut packet = Vec::new();
    let mut records = Vec::new();
    let event = event();
    while consumer.poll_stopped(&mut packet) == Poll::Copied {
        let known = |id| (id == event.id).then_some(&event);
        let Some(accepted) = consumer.accept(&mut packet, UUID, u64::MAX, known) else { continue };
        let begin = read_header(&packet).unwrap().time_begin;
        records.extend(
            Records::new(&packet, accepted.content, begin)
                .map(|record| (record.time, u64::from_le_bytes(record.payload.try_into().unwrap()))),
        );
    }
    consumer.finish();
    assert!(!consumer.is_corrupt());
    records
}

#[test]
fn records_come_out_in_order_with_their_times() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(1000);

    let recorded = (0..300).filter(|&value: &u64| producer.record(&clock, 5, &value.to_le_bytes())).count();
    let records = drain(&mut consumer);

    assert_eq!(recorded, 300);
    assert_eq!(records, (0..300).map(|value| (1000 + value, value)).collect::<Vec<_>>());
    assert_eq!((consumer.lost(), consumer.rejected_bytes()), (Lost::default(), 0));
}

#[test]
fn clock_that_refuses_reserves_and_counts_nothing() {
    let (memory, producer, mut consumer) = ring();

    let refused = producer.try_reserve(|| None, 5, 8).err();
    let records = drain(&mut consumer);

    assert_eq!(refused, Some(NotReserved::NoTime));
    assert_eq!((memory.load(RING_WRITE_COUNT), records.len(), consumer.lost()), (0, 0, Lost::default()));
}

#[test]
fn reserve_when_full_counts_the_loss() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    let recorded = (0..1000).filter(|value: &u64| producer.record(&clock, 5, &value.to_le_bytes())).count();
    let records = drain(&mut consumer);

    assert_eq!(recorded, 2 * (4096 - PACKET_HEADER_SIZE) / 16);
    assert_eq!(records.len(), recorded);
    assert_eq!(consumer.lost(), Lost { full: 1000 - recorded as u64, ..Lost::default() });
}

#[test]
fn loss_stands_in_the_packet_that_was_closed_after_it() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);
    let mut packet = Vec::new();
    let event = event();
    let fill = || while producer.record(&clock, 5, &[0; 8]) {};

    fill();
    assert_eq!(consumer.poll(&mut packet), Poll::Copied);
    consumer.accept(&mut packet, UUID, u64::MAX, |_| Some(&event));
    let before = read_header(&packet).unwrap();
    fill();
    consumer.poll(&mut packet);
    consumer.accept(&mut packet, UUID, u64::MAX, |_| Some(&event));
    consumer.poll(&mut packet);
    consumer.accept(&mut packet, UUID, u64::MAX, |_| Some(&event));
    let after = read_header(&packet).unwrap();

    assert_eq!((before.events_discarded, before.sequence), (0, 0));
    assert_eq!((after.events_discarded, after.lost_full, after.sequence), (1, 1, 2));
}

#[test]
fn record_that_fits_no_sub_buffer_is_counted_as_too_large() {
    let (_memory, producer, mut consumer) = ring();

    let recorded = producer.record(ticking(0), 5, &[0; 4096]);
    consumer.finish();

    assert!(!recorded);
    assert_eq!(consumer.lost(), Lost { too_large: 1, ..Lost::default() });
}

#[test]
fn record_that_would_wrap_over_an_unfinished_one_is_counted_as_wrapped() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    let unfinished = producer.reserve(&clock, 5, 8).unwrap();
    while producer.record(&clock, 5, &[1; 8]) {}
    let polled = consumer.poll(&mut Vec::new());
    producer.commit(unfinished);
    consumer.finish();

    assert_eq!(polled, Poll::Empty);
    assert_eq!(consumer.lost(), Lost { wrapped: 1, ..Lost::default() });
    assert_eq!(consumer.poll(&mut Vec::new()), Poll::Copied);
}

#[test]
fn stopped_ring_is_read_up_to_its_first_hole() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    producer.record(&clock, 5, &1_u64.to_le_bytes());
    let _never_committed = producer.reserve(&clock, 5, 8).unwrap();
    producer.record(&clock, 5, &3_u64.to_le_bytes());
    let records = drain(&mut consumer);

    assert_eq!(records, [(0, 1)]);
    assert_eq!(consumer.rejected_bytes(), 32);
}

#[test]
fn record_nested_into_a_reserve_keeps_times_in_order() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(10);
    let interrupted = Cell::new(false);
    let clock_with_an_interrupt = || {
        let time = clock();
        if !interrupted.replace(true) {
            producer.record(&clock, 5, &2_u64.to_le_bytes());
        }
        time
    };

    producer.record(clock_with_an_interrupt, 5, &1_u64.to_le_bytes());
    let records = drain(&mut consumer);

    assert_eq!(records, [(11, 2), (12, 1)]);
}

#[test]
fn time_far_from_the_packets_beginning_survives() {
    let (_memory, producer, mut consumer) = ring();
    let times = [100, (1 << 32) + 99, (1 << 32) + 100, 1 << 50];

    for (value, &time) in times.iter().enumerate() {
        producer.record(|| time, 5, &(value as u64).to_le_bytes());
    }
    let records = drain(&mut consumer);

    assert_eq!(records, [(times[0], 0), (times[1], 1), (times[2], 2), (times[3], 3)]);
}

#[test]
fn record_of_an_unknown_event_cuts_the_packet() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    producer.record(&clock, 5, &1_u64.to_le_bytes());
    producer.record(&clock, 6, &2_u64.to_le_bytes());
    let records = drain(&mut consumer);

    assert_eq!(records, [(0, 1)]);
    assert_eq!(consumer.rejected_bytes(), 16);
}

#[test]
fn control_words_that_contradict_each_other_close_the_ring() {
    let (memory, producer, mut consumer) = ring();
    producer.record(ticking(0), 5, &[0; 8]);
    memory.store(geometry().commit_seq_offset(0), 12345);

    let polls = [consumer.poll(&mut Vec::new()), consumer.poll_stopped(&mut Vec::new())];

    assert_eq!(polls, [Poll::Corrupt, Poll::Corrupt]);
    assert!(consumer.is_corrupt());
}

#[test]
fn write_count_that_ran_away_closes_the_stopped_ring() {
    let (memory, _producer, mut consumer) = ring();
    memory.store(RING_WRITE_COUNT, u64::MAX);

    assert_eq!(consumer.poll_stopped(&mut Vec::new()), Poll::Corrupt);
}

#[test]
fn threads_share_a_ring_without_losing_or_doubling_a_record() {
    const EACH: u64 = 20_000;
    let geometry = Geometry::new(4096, 4).unwrap();
    let memory = HostMemory::private(geometry.ring_size(Mode::Discard));
    // SAFETY: the memory covers the ring, is zeroed and outlives the threads.
    let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry, Mode::Discard) };
    let mut consumer = Consumer::new(memory, geometry, Mode::Discard, 0);
    let clock = AtomicU64::new(0);
    let now = || clock.fetch_add(1, Ordering::AcqRel);
    let record_all =
        |thread: u64| (0..EACH).filter(|value| producer.record(now, 5, &(thread << 32 | value).to_le_bytes())).count();

    let (recorded, mut records) = std::thread::scope(|scope| {
        let threads = [0, 1, 2].map(|thread| scope.spawn(move || record_all(thread)));
        let mut records = Vec::new();
        let mut packet = Vec::new();
        let event = event();
        while threads.iter().any(|thread| !thread.is_finished()) {
            match consumer.poll(&mut packet) {
                Poll::Copied => {
                    let accepted = consumer.accept(&mut packet, UUID, u64::MAX, |_| Some(&event)).unwrap();
                    let begin = read_header(&packet).unwrap().time_begin;
                    records.extend(
                        Records::new(&packet, accepted.content, begin)
                            .map(|record| (record.time, u64::from_le_bytes(record.payload.try_into().unwrap()))),
                    );
                }
                _ => std::thread::yield_now(),
            }
        }
        (threads.map(|thread| thread.join().unwrap()).iter().sum::<usize>(), records)
    });
    records.extend(drain(&mut consumer));

    assert!(records.is_sorted_by_key(|&(time, _)| time));
    let mut values: Vec<u64> = records.iter().map(|&(_, value)| value).collect();
    values.sort_unstable();
    values.dedup();
    assert_eq!((values.len(), records.len()), (recorded, recorded));
    assert_eq!(consumer.lost().total(), 3 * EACH - recorded as u64);
    assert_eq!(consumer.rejected_bytes(), 0);
}
