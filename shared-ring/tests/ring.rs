//! The producer and the consumer together on one ring.
//!
//! Shows: Records come out complete, in order, once; losses are counted exactly (real sizes).
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)] // Tests: producers over raw memory, no rustdoc, panics wanted.

use shared_ring::consumer::{Consumer, LargestLost, Lost, Poll};
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{Geometry, Mode, PACKET_HEADER_SIZE, RING_HEADER_SIZE, RING_WRITE_COUNT};
use shared_ring::packet::Packet;
use shared_ring::producer::{NotReserved, OutsidePayload, Producer, Reservation};
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
    while let Some(delivered) = consumer.poll_stopped(&mut packet).ready() {
        let known = |id| (id == event.id).then_some(&event);
        records.extend(delivered.accept(UUID, u64::MAX, known).iter().flat_map(values));
    }
    consumer.finish();
    assert!(!consumer.is_corrupt());
    records
}

/// Times and payload values of a packet.
fn values(packet: &Packet<'_>) -> Vec<(u64, u64)> {
    let values = packet.records().map(|record| (record.time, u64::from_le_bytes(record.payload.try_into().unwrap())));
    values.collect()
}

/// The next packet of a running ring.
fn next<'c>(consumer: &'c mut Consumer, buffer: &'c mut Vec<u8>, event: &EventDescription) -> Packet<'c> {
    consumer.poll(buffer).ready().unwrap().accept(UUID, u64::MAX, |_| Some(event)).unwrap()
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
fn ring_is_quarter_full_until_what_waits_in_it_is_read() {
    let (memory, producer, mut consumer) = ring();
    let clock = ticking(0);
    let is_quarter_full = |consumer: &Consumer| (memory.load(RING_WRITE_COUNT) >= 2048, consumer.is_quarter_full());

    let mut seen = vec![is_quarter_full(&consumer)];
    while producer.record(&clock, 5, &[0; 8]) {
        seen.push(is_quarter_full(&consumer));
    }
    let full = consumer.is_quarter_full();
    drain(&mut consumer);

    assert!(seen.iter().all(|(expected, reported)| expected == reported), "{seen:?}");
    assert_eq!((full, consumer.is_quarter_full()), (true, false));
}

#[test]
fn loss_stands_in_the_packet_that_was_closed_after_it() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);
    let mut packet = Vec::new();
    let event = event();
    let fill = || while producer.record(&clock, 5, &[0; 8]) {};

    fill();
    let before = *next(&mut consumer, &mut packet, &event).header();
    fill();
    next(&mut consumer, &mut packet, &event);
    let after = *next(&mut consumer, &mut packet, &event).header();

    assert_eq!((before.events_discarded, before.sequence), (0, 0));
    assert_eq!((after.events_discarded, after.lost_full, after.sequence), (1, 1, 2));
}

#[test]
fn packet_ends_when_its_producer_closed_it() {
    let (_memory, producer, mut consumer) = ring();
    let (mut buffer, event) = (Vec::new(), event());
    producer.record(|| 10, 5, &[0; 8]);
    producer.force_switch(|| 25);
    producer.record(|| 40, 5, &[0; 8]);
    producer.force_switch(|| 0);

    let closed = *next(&mut consumer, &mut buffer, &event).header();
    let without_a_time = *next(&mut consumer, &mut buffer, &event).header();

    assert_eq!((closed.time_begin, closed.time_end), (10, 25));
    assert_eq!((without_a_time.time_begin, without_a_time.time_end), (40, 40));
}

#[test]
fn closing_time_that_is_too_late_is_not_believed() {
    let (_memory, producer, mut consumer) = ring();
    let (mut buffer, event) = (Vec::new(), event());
    producer.record(|| 10, 5, &[0; 8]);
    producer.force_switch(|| 5000);

    let delivered = consumer.poll(&mut buffer).ready().unwrap();

    assert_eq!(delivered.accept(UUID, 1000, |_| Some(&event)).unwrap().header().time_end, 10);
}

#[test]
fn packet_that_is_not_accepted_stays_in_the_ring() {
    let (_memory, producer, mut consumer) = ring();
    let (mut buffer, event) = (Vec::new(), event());
    producer.record(|| 10, 5, &1_u64.to_le_bytes());
    producer.force_switch(|| 11);
    producer.record(|| 12, 5, &2_u64.to_le_bytes());

    for _ in 0..100 {
        drop(consumer.poll(&mut buffer));
        drop(consumer.poll_stopped(&mut buffer));
    }
    let first = values(&next(&mut consumer, &mut buffer, &event));
    let looked = consumer.poll_stopped(&mut buffer).is_ready();

    assert_eq!((first, looked), (vec![(10, 1)], true));
    assert_eq!(drain(&mut consumer), [(12, 2)]);
    assert_eq!((consumer.lost(), consumer.rejected_bytes()), (Lost::default(), 0));
}

#[test]
fn record_that_fits_no_sub_buffer_is_counted_as_too_large() {
    let (_memory, producer, mut consumer) = ring();

    let before = consumer.largest_lost();
    let recorded =
        [(5, 4096), (6, 5000), (7, 4500)].map(|(id, bytes)| producer.record(ticking(0), id, &vec![0; bytes]));
    consumer.finish();

    assert_eq!(recorded, [false; 3]);
    assert_eq!(consumer.lost(), Lost { too_large: 3, ..Lost::default() });
    assert_eq!((before, consumer.largest_lost()), (None, Some(LargestLost { id: 6, payload: 5000 })));
}

#[test]
fn record_that_would_wrap_over_an_unfinished_one_is_counted_as_wrapped() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    let unfinished = producer.reserve(&clock, 5, 8).unwrap();
    while producer.record(&clock, 5, &[1; 8]) {}
    let was_empty = consumer.poll(&mut Vec::new()).is_empty();
    unfinished.commit();
    consumer.finish();

    assert!(was_empty);
    assert_eq!(consumer.lost(), Lost { wrapped: 1, ..Lost::default() });
    assert!(consumer.poll(&mut Vec::new()).is_ready());
}

#[test]
fn smaller_record_does_not_follow_a_lost_one_into_its_packet() {
    let (memory, producer, mut consumer) = ring();
    let clock = ticking(0);
    let mut buffer = Vec::new();
    let event = event();
    // A sub-buffer holds 248 such records: in the second one there is room for one more.
    (0..2 * 248 - 1).for_each(|_| assert!(producer.record(&clock, 5, &[0; 8])));

    let lost = [producer.record(&clock, 5, &[0; 16]), producer.record(&clock, 5, &[0; 8])];
    let closed = memory.load(RING_WRITE_COUNT);
    let counts = [(); 2].map(|()| next(&mut consumer, &mut buffer, &event).header().lost_full);
    assert!(producer.record(&clock, 5, &[0; 8]));
    let open = consumer.poll_stopped(&mut buffer).ready().unwrap().accept(UUID, u64::MAX, |_| Some(&event)).unwrap();

    assert_eq!((lost, closed, counts, open.header().lost_full), ([false; 2], 2 * 4096, [0; 2], 2));
}

#[test]
fn stopped_ring_is_read_up_to_its_first_hole() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    producer.record(&clock, 5, &1_u64.to_le_bytes());
    std::mem::forget(producer.reserve(&clock, 5, 8).unwrap());
    producer.record(&clock, 5, &3_u64.to_le_bytes());
    let records = drain(&mut consumer);

    assert_eq!(records, [(0, 1)]);
    assert_eq!(consumer.rejected_bytes(), 32);
}

#[test]
fn record_that_gets_no_time_gives_back_what_fills_it() {
    let (_memory, producer, mut consumer) = ring();
    let fill = |record: &mut Reservation<'_, CpuLocal>| record.write(0, &2_u64.to_le_bytes()).unwrap();
    assert!(producer.record(|| 1000, 5, &1_u64.to_le_bytes()));

    let (why, fill) = producer.record_with(|| None, 5, 8, fill).unwrap_err();
    let recorded = producer.record_with(|| Some(1001), 5, 8, fill).is_ok();

    assert_eq!((why, recorded), (NotReserved::NoTime, true));
    assert_eq!(drain(&mut consumer), [(1000, 1), (1001, 2)]);
}

#[test]
fn dropped_reservation_leaves_no_record_and_loses_no_other() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    producer.record(&clock, 5, &1_u64.to_le_bytes());
    drop(producer.reserve(&clock, 5, 8));
    producer.reserve(&clock, 5, 16).unwrap().discard();
    producer.record(&clock, 5, &2_u64.to_le_bytes());
    let records = drain(&mut consumer);

    assert_eq!(records, [(0, 1), (3, 2)]);
    assert_eq!((consumer.lost(), consumer.rejected_bytes()), (Lost::default(), 0));
}

#[test]
fn reservation_that_a_panic_leaves_is_discarded() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut reservation = producer.reserve(&clock, 5, 8).unwrap();
        reservation.payload()[8] = 1;
        reservation.commit();
    }));
    while producer.record(&clock, 5, &7_u64.to_le_bytes()) {}
    let records = drain(&mut consumer);

    assert!(panicked.is_err());
    assert_eq!(records.len(), 2 * (4096 - PACKET_HEADER_SIZE) / 16 - 1);
    assert_eq!(consumer.rejected_bytes(), 0);
}

#[test]
fn ring_is_reused_clean_after_records_were_discarded() {
    let (memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    for _ in 0..300 {
        drop(producer.reserve(&clock, 5, 8));
        producer.record(&clock, 5, &1_u64.to_le_bytes());
    }
    let records = drain(&mut consumer);

    assert_eq!(records.len(), 4096 / 16 - PACKET_HEADER_SIZE / 16);
    assert!((RING_HEADER_SIZE..memory.size()).step_by(8).all(|offset| memory.load(offset) == 0));
}

#[test]
fn forgotten_reservation_costs_counted_records_only() {
    let (_memory, producer, mut consumer) = ring();
    let clock = ticking(0);

    producer.record(&clock, 5, &1_u64.to_le_bytes());
    std::mem::forget(producer.reserve(&clock, 5, 8).unwrap());
    let recorded = 1 + (0..2000).filter(|_| producer.record(&clock, 5, &2_u64.to_le_bytes())).count();
    let delivered = drain(&mut consumer).len();

    let rejected = usize::try_from(consumer.rejected_bytes()).unwrap() / 16 - 1;
    assert_eq!(consumer.lost(), Lost { wrapped: 2001 - recorded as u64, ..Lost::default() });
    assert_eq!((delivered, delivered + rejected), (1 + (4096 - PACKET_HEADER_SIZE) / 16, recorded));
}

#[test]
fn bytes_outside_the_payload_are_refused() {
    let (_memory, producer, mut consumer) = ring();
    let mut reservation = producer.reserve(|| 1, 5, 8).unwrap();

    let refused = [
        reservation.write(1, &[0; 8]),
        reservation.write(0, &[0; 9]),
        reservation.write(9, &[]),
        reservation.write(usize::MAX, &[0; 8]),
    ];
    let written = [reservation.write(4, &[1; 4]), reservation.write(8, &[])];
    assert_eq!((reservation.payload_size(), reservation.payload().len()), (8, 8));
    reservation.commit();

    assert_eq!((refused, written), ([Err(OutsidePayload); 4], [Ok(()); 2]));
    assert_eq!(drain(&mut consumer), [(1, 0x0101_0101_0000_0000)]);
}

#[test]
fn raw_reservation_is_committed_as_the_one_it_was() {
    let (_memory, producer, mut consumer) = ring();
    let mut reservation = producer.reserve(|| 1, 5, 8).unwrap();
    reservation.write(0, &3_u64.to_le_bytes()).unwrap();

    // SAFETY: used once, below, while the producer is where it was, by the same thread.
    let raw = unsafe { reservation.into_raw() };
    // SAFETY: as above.
    unsafe { Reservation::from_raw(raw) }.commit();

    assert_eq!(drain(&mut consumer), [(1, 3)]);
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

    let running = consumer.poll(&mut Vec::new()).is_corrupt();
    let stopped = consumer.poll_stopped(&mut Vec::new()).is_corrupt();

    assert_eq!((running, stopped, consumer.is_corrupt()), (true, true, true));
}

#[test]
fn write_count_that_ran_away_closes_the_stopped_ring() {
    let (memory, _producer, mut consumer) = ring();
    memory.store(RING_WRITE_COUNT, u64::MAX);

    assert!(consumer.poll_stopped(&mut Vec::new()).is_corrupt());
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
                Poll::Ready(delivered) => {
                    records.extend(values(&delivered.accept(UUID, u64::MAX, |_| Some(&event)).unwrap()));
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

#[test]
fn look_shows_what_is_committed_of_an_open_sub_buffer_and_takes_nothing() {
    let (_memory, producer, mut consumer) = ring();
    let (event, mut buffer) = (event(), Vec::new());
    let known = |id| (id == event.id).then_some(&event);
    let now = ticking(1000);
    let is_empty = consumer.look(&mut buffer, u64::MAX, known).is_none();
    (0..3_u64).for_each(|number| assert!(producer.record(&now, 5, &number.to_le_bytes())));

    let looked = consumer.look(&mut buffer, u64::MAX, known).map(|packet| values(&packet));
    let again = consumer.look(&mut buffer, u64::MAX, known).map(|packet| values(&packet));
    producer.force_switch(&now);
    let closed = consumer.look(&mut buffer, u64::MAX, known).is_none();

    assert!(is_empty && closed);
    assert_eq!(looked, Some(vec![(1000, 0), (1001, 1), (1002, 2)]));
    assert_eq!((again, drain(&mut consumer)), (looked.clone(), looked.unwrap_or_default()));
}

#[test]
fn look_waits_for_a_record_that_is_being_made() {
    let (_memory, producer, consumer) = ring();
    let (event, mut buffer) = (event(), Vec::new());
    let known = |id| (id == event.id).then_some(&event);
    let now = ticking(1000);
    assert!(producer.record(&now, 5, &1_u64.to_le_bytes()));

    let reservation = producer.reserve(&now, 5, 8);
    let meanwhile = consumer.look(&mut buffer, u64::MAX, known).is_none();
    drop(reservation);
    let afterwards = consumer.look(&mut buffer, u64::MAX, known).map(|packet| values(&packet));

    assert!(meanwhile);
    assert_eq!(afterwards, Some(vec![(1000, 1)]));
}
