//! Whatever a guest writes into its rings and registries, and whenever it does: the host's readers end, stay inside
//! the memory, and hand on only what can be believed. The fuzz targets look further in the same direction.
//!
//! Shows: Hostile regions cause no panic and no access outside; reading ends (proptest, concurrent change).
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)] // Tests: producers over raw memory, no rustdoc, panics wanted.

use proptest::collection::vec;
use proptest::prelude::*;
use shared_ring::consumer::{Consumer, Delivered};
use shared_ring::event::{Event, EventDescription, Field, FieldType};
use shared_ring::host::memory::{HostMemory, RingMemory};
use shared_ring::layout::{
    EXTENDED_ID, Geometry, Mode, PACKET_HEADER_SIZE, PacketHeader, REGISTRY_HEADER_SIZE, RING_LOST_FULL,
    RING_RESTARTABLE, RING_WRITE_COUNT, RecordHeader, padded,
};
use shared_ring::packet::{Packet, Records, read_header, validate, write_header};
use shared_ring::producer::Producer;
use shared_ring::registry::{Registry, RegistryReader};
use shared_ring::restartable::{Draft, RestartableProducer, RestartableThread, publish_by_steps, record};
use shared_ring::storage::{CpuLocal, Smp, Storage};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

const UUID: [u8; 16] = [7; 16];
const LATEST: u64 = 1 << 60;
const NUMBER: Event = Event { id: 5, class: 0, name: "test:number", fields: &[Field::new("value", FieldType::U64)] };
const TEXT: Event = Event { id: 6, class: 1, name: "test:text", fields: &[Field::new("text", FieldType::String)] };

fn geometry() -> Geometry {
    Geometry::new(4096, 2).unwrap()
}

/// Words of a ring; a flight recorder has a sub-buffer more.
fn words() -> usize {
    geometry().ring_size(Mode::FlightRecorder) / 8
}

fn memory() -> HostMemory {
    HostMemory::private(words() * 8)
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Discard), Just(Mode::FlightRecorder)]
}

/// A ring that a real producer has filled and wrapped, read up to half of a lap, with its consumer.
fn used_ring(mode: Mode) -> (HostMemory, Consumer) {
    let memory = memory();
    // SAFETY: the memory covers the ring, is zeroed, and outlives the producer, which this thread alone uses.
    let producer = unsafe { Producer::new(CpuLocal::new(memory.base()), geometry(), mode) };
    let mut consumer = Consumer::new(memory.clone(), geometry(), mode, 1);
    let time = Cell::new(1000);
    let clock = || time.replace(time.get() + 1);
    let mut packet = Vec::new();
    for value in 0..600_u64 {
        producer.record(clock, NUMBER.id, &value.to_le_bytes());
        producer.record(clock, TEXT.id, b"some text\0");
        if let (250, Some(delivered)) = (value, consumer.poll(&mut packet).ready()) {
            accept(delivered, |_| ());
        }
    }
    (memory, consumer)
}

/// A thread that nothing disturbs.
struct Alone;

impl RestartableThread<Smp> for Alone {
    fn begin(&self) -> Option<u32> {
        Some(0)
    }

    unsafe fn publish(&self, ring: &Smp, to: usize, words: &[u64], position: u64) -> bool {
        publish_by_steps(
            to,
            words,
            position,
            || true,
            |offset, word| {
                // SAFETY: passed on from the caller.
                unsafe { ring.store_release(offset, word) };
                true
            },
        )
    }

    unsafe fn count(&self, ring: &Smp, counter: usize) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { ring.fetch_add(counter, 1) };
        true
    }

    fn end(&self) {}
}

/// As [`used_ring`], of restartable records.
fn used_restartable_ring(mode: Mode) -> (HostMemory, Consumer) {
    let memory = memory();
    // SAFETY: as in `used_ring`.
    let producer = unsafe { RestartableProducer::new(Smp::new(memory.base()), geometry(), mode) };
    producer.announce();
    let mut consumer = Consumer::new(memory.clone(), geometry(), mode, 1);
    let time = Cell::new(1000);
    let mut packet = Vec::new();
    for value in 0..600_u64 {
        for (id, payload) in [(NUMBER.id, value.to_le_bytes().as_slice()), (TEXT.id, b"some text\0".as_slice())] {
            let mut words = [0; Draft::words(10)];
            let mut draft = Draft::new(&mut words, id, payload.len()).unwrap();
            draft.payload().copy_from_slice(payload);
            record(&Alone, |_| Some((&producer, || time.replace(time.get() + 1))), draft);
        }
        if let (250, Some(delivered)) = (value, consumer.poll(&mut packet).ready()) {
            accept(delivered, |_| ());
        }
    }
    (memory, consumer)
}

/// Accepts a packet, calling `between` each time that the consumer asks for an event type.
fn accept<'c>(delivered: Delivered<'c>, between: impl Fn(u16)) -> Option<Packet<'c>> {
    let events = [EventDescription::from(&NUMBER), EventDescription::from(&TEXT)];
    delivered.accept(UUID, LATEST, |id| {
        between(id);
        events.iter().find(|event| event.id == id)
    })
}

/// Everything that holds for an accepted packet, whatever the guest wrote; its end.
fn check(packet: &Packet<'_>, earliest: u64) -> u64 {
    let header = packet.header();
    let mut records = packet.records();
    let times: Vec<u64> = records.by_ref().map(|record| record.time).collect();
    assert!(!records.damaged());
    assert_eq!(records.offset(), padded(packet.content().len()));
    assert_eq!(times.len() as u64, packet.record_count());
    assert_eq!(times.first(), Some(&header.time_begin));
    assert!(times.is_sorted() && header.time_begin >= earliest && header.time_end <= LATEST);
    assert!(times.last() <= Some(&header.time_end));
    assert_eq!((header.uuid, header.content_size), (UUID, packet.content().len() as u64 * 8));
    header.time_end
}

/// Reads the ring as a stopped one until nothing is left, with `between` as in [`accept`]; the number of packets.
fn drain(consumer: &mut Consumer, between: impl Fn(u16)) -> u32 {
    let mut packet = Vec::new();
    let (mut earliest, mut copied) = (0, 0);
    while let (Some(delivered), true) = (consumer.poll_stopped(&mut packet).ready(), copied <= MOST) {
        copied += 1;
        if let Some(packet) = accept(delivered, &between) {
            earliest = check(&packet, earliest);
        }
    }
    consumer.finish();
    copied
}

#[test]
fn loss_beyond_counting_is_a_number_that_readers_of_ctf_take() {
    let memory = memory();
    // SAFETY: the memory covers the ring, is zeroed, and outlives the producer, which this thread alone uses.
    let producer = unsafe { Producer::new(CpuLocal::new(memory.base()), geometry(), Mode::Discard) };
    memory.store(RING_LOST_FULL, u64::MAX);
    producer.record(|| 1000, NUMBER.id, &[0; 8]);
    producer.force_switch(|| 1001);
    let mut consumer = Consumer::new(memory, geometry(), Mode::Discard, 1);
    let mut buffer = Vec::new();

    let packet = accept(consumer.poll(&mut buffer).ready().unwrap(), |_| ()).unwrap();

    assert_eq!((packet.header().lost_full, packet.header().events_discarded), (u64::MAX, u64::MAX - 1));
}

/// Values that a careless reader goes wrong on, beside arbitrary ones.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..64_u32).prop_map(|bit| 1 << bit),
        (0..64_u32).prop_map(|bit| (1 << bit) - 1),
        (0..20_000_u64).prop_map(u64::wrapping_neg),
        0..20_000_u64,
        (any::<u32>(), any::<u16>(), 0..64_u16).prop_map(|(time_low, id, payload)| RecordHeader {
            time_low,
            id: id % 8,
            payload
        }
        .to_word()),
        (any::<u32>(), any::<u16>()).prop_map(|(time_low, payload)| RecordHeader {
            time_low,
            id: EXTENDED_ID,
            payload
        }
        .to_word()),
    ]
}

/// Words of a ring: any of them, and more often those that a consumer goes by.
fn word() -> impl Strategy<Value = usize> {
    let control = vec![
        RING_WRITE_COUNT / 8,
        geometry().commit_count_offset(0) / 8,
        geometry().commit_seq_offset(0) / 8,
        geometry().commit_seq_offset(1) / 8,
        geometry().exchange_offset(0) / 8,
        geometry().exchange_offset(1) / 8,
    ];
    prop_oneof![0..words(), geometry().data_offset(0) / 8..words(), proptest::sample::select(control)]
}

/// Sub-buffers that a ring whose memory stands still can make a consumer copy: a lap of complete ones, and a lap that
/// its write count claims behind them.
const MOST: u32 = 4;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn ring_of_arbitrary_words_is_read_to_an_end(
        values in vec(value(), words()), write in value(), restartable in 0..2_u64, mode in mode(),
    ) {
        let memory = memory();
        for (index, &value) in values.iter().enumerate() {
            memory.store(index * 8, value);
        }
        memory.store(RING_WRITE_COUNT, write);
        memory.store(RING_RESTARTABLE, restartable);
        prop_assert!(drain(&mut Consumer::new(memory, geometry(), mode, 1), |_| ()) <= MOST);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn ring_with_some_words_changed_is_read_to_an_end(
        changes in vec((word(), value()), 1..20), mode in mode(),
    ) {
        let (memory, mut consumer) = used_ring(mode);
        changes.iter().for_each(|&(word, value)| memory.store(word * 8, value));
        prop_assert!(drain(&mut consumer, |_| ()) <= MOST);
    }

    #[test]
    fn restartable_ring_with_some_words_changed_is_read_to_an_end(
        changes in vec((word(), value()), 1..20), kind in 0..3_u64, mode in mode(),
    ) {
        let (memory, mut consumer) = used_restartable_ring(mode);
        changes.iter().for_each(|&(word, value)| memory.store(word * 8, value));
        memory.store(RING_RESTARTABLE, kind);
        let events = [EventDescription::from(&NUMBER), EventDescription::from(&TEXT)];
        let known = |id| events.iter().find(|event| event.id == id);
        prop_assert!(consumer.look(&mut Vec::new(), LATEST, known).is_none_or(|packet| packet.record_count() > 0));
        prop_assert!(drain(&mut consumer, |_| ()) <= MOST);
    }

    #[test]
    fn ring_that_changes_while_it_is_validated_is_read_to_an_end(
        changes in vec((word(), value()), 1..200), restartable in any::<bool>(), mode in mode(),
    ) {
        let (memory, mut consumer) = if restartable { used_restartable_ring(mode) } else { used_ring(mode) };
        let next = Cell::new(0);
        drain(&mut consumer, |_| {
            let (word, value) = changes[next.replace(next.get() + 1) % changes.len()];
            memory.store(word * 8, value);
        });
        prop_assert!(consumer.lost().total() >= consumer.lost().full);
    }

    #[test]
    fn packet_of_arbitrary_words_is_believed_the_same_twice(
        values in vec(value(), 16..200), claimed in 0..2000_usize, begin in value(), earliest in value(),
    ) {
        let mut packet: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let events = [EventDescription::from(&NUMBER), EventDescription::from(&TEXT)];
        let known = |id| events.iter().find(|event| event.id == id);
        let contents = validate(&mut packet, claimed, begin, earliest..=u64::MAX, known);
        let again = validate(&mut packet, contents.content, begin, earliest..=u64::MAX, known);
        prop_assert!(contents.content + contents.rejected <= packet.len());
        prop_assert_eq!((again.records, again.content, again.rejected), (contents.records, contents.content, 0));
    }

    #[test]
    fn registry_that_changes_while_it_is_followed_is_read_once(
        changes in vec((0..64_usize, value()), 1..100),
    ) {
        const SIZE: usize = 512;
        let memory = HostMemory::private(SIZE);
        // SAFETY: the memory outlives the registry, which is its only writer.
        let registry = unsafe { Registry::new(CpuLocal::new(memory.base()), SIZE) };
        let mut reader = RegistryReader::new(memory.clone());
        registry.append(&NUMBER);
        registry.append(&TEXT);
        let mut events = reader.poll().len();
        for (word, value) in changes {
            memory.store(word * 8, value);
            events += reader.poll().len();
        }
        prop_assert!((2..=(SIZE - REGISTRY_HEADER_SIZE) / 16).contains(&events));
    }
}

fn read_while_another_thread_changes_the_ring(mode: Mode) -> u32 {
    let (memory, _) = used_ring(mode);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1_u64;
            while !done.load(Ordering::Relaxed) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                memory.store((state >> 33) as usize % words() * 8, state >> (state % 64));
            }
        });
        let consumer = || Consumer::resume(memory.clone(), geometry(), mode, 1);
        let copied: u32 = (0..20).map(|_| drain(&mut consumer(), |_| ())).sum();
        done.store(true, Ordering::Relaxed);
        copied
    })
}

#[test]
fn ring_that_another_thread_changes_all_the_time_is_read_to_an_end() {
    // The other thread may have ruined a ring's control words before it is read at all.
    let modes = [Mode::Discard, Mode::FlightRecorder].into_iter().cycle().take(20);
    let copied: u32 = modes.map(read_while_another_thread_changes_the_ring).sum();

    assert!(copied > 0);
}

/// The memory of a guest that changes a word just before the host does, and changes it back just after.
struct Flickering {
    memory: HostMemory,
    attempts: Cell<u32>,
}

impl RingMemory for Flickering {
    fn size(&self) -> usize {
        self.memory.size()
    }

    fn load(&self, offset: usize) -> u64 {
        self.memory.load(offset)
    }

    fn store(&self, offset: usize, value: u64) {
        self.memory.store(offset, value);
    }

    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> bool {
        self.attempts.set(self.attempts.get() + 1);
        assert!(self.attempts.get() < 1000, "a guest keeps the host from going on");
        false
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        self.memory.read(offset, out);
    }

    fn fence_acquire(&self) {}

    fn clear(&self, offset: usize, size: usize) {
        self.memory.clear(offset, size);
    }
}

#[test]
fn sub_buffer_that_cannot_be_taken_is_passed_over() {
    let (memory, _) = used_ring(Mode::FlightRecorder);
    let memory = Flickering { memory, attempts: Cell::new(0) };
    let mut consumer = Consumer::new(memory, geometry(), Mode::FlightRecorder, 1);

    assert!(consumer.poll(&mut Vec::new()).is_empty());
    assert!(!consumer.is_corrupt());
}

#[test]
fn packet_without_room_for_a_header_has_none() {
    assert!(read_header(&[0; PACKET_HEADER_SIZE - 1]).is_none());
    assert!(read_header(&[0; PACKET_HEADER_SIZE]).is_some());
}

/// A sub-buffer of records, as a guest may write one.
fn packet(begin: u64, records: &[(u64, bool)]) -> Vec<u8> {
    let mut packet = vec![0; PACKET_HEADER_SIZE];
    let header = read_header(&packet).unwrap();
    write_header(&mut packet, &PacketHeader { time_begin: begin, ..header });
    for &(time, extended) in records {
        let id = if extended { EXTENDED_ID } else { NUMBER.id };
        let time_low = u32::try_from(time & u64::from(u32::MAX)).unwrap();
        packet.extend(RecordHeader { time_low, id, payload: 8 }.to_word().to_le_bytes());
        if extended {
            packet.extend([time, NUMBER.id.into()].map(u64::to_le_bytes).concat());
        }
        packet.extend([0; 8]);
    }
    packet
}

/// Dated from the time of its first record, as it is stored, a packet has the times that it was accepted with.
#[test]
fn record_from_before_the_packet_began_does_not_move_the_others() {
    let begin = 1 << 34;
    let event = EventDescription::from(&NUMBER);
    let mut packet = packet(begin, &[(5, true), (begin + 3, false), (begin + 6, false)]);

    let contents = validate(&mut packet, usize::MAX, begin, 0..=LATEST, |_| Some(&event));
    let times: Vec<u64> =
        Records::new(&packet, contents.content, contents.time_begin).map(|record| record.time).collect();

    assert!(times.is_sorted() && times.last().is_none_or(|&last| last == contents.time_end), "{times:?} {contents:?}");
}

#[test]
fn far_record_after_the_packet_began_is_believed() {
    let begin = 1 << 34;
    let event = EventDescription::from(&NUMBER);
    let mut packet = packet(begin, &[(begin, false), (begin + 3, false), (begin + (1 << 33), true)]);

    let contents = validate(&mut packet, usize::MAX, begin, 0..=LATEST, |_| Some(&event));

    assert_eq!((contents.records, contents.time_end), (3, begin + (1 << 33)));
}

/// 64 event types are remembered at a time, by the low bits of their ids.
#[test]
fn event_types_with_equal_low_bits_are_distinguished() {
    let number = EventDescription::from(&NUMBER);
    let text = EventDescription { id: NUMBER.id + 64, ..EventDescription::from(&TEXT) };
    let mut packet = packet(1000, &[(1000, false), (1001, false), (1002, false)]);
    let second = PACKET_HEADER_SIZE + 16;
    packet[second..second + 8]
        .copy_from_slice(&RecordHeader { time_low: 1001, id: text.id, payload: 8 }.to_word().to_le_bytes());
    packet[second + 8..second + 16].copy_from_slice(b"7 bytes\0");
    let known = |id| [&number, &text].into_iter().find(|event| event.id == id);
    let whole = validate(&mut packet, usize::MAX, 1000, 0..=LATEST, known);

    packet[second + 8] = 0;
    let cut = validate(&mut packet, usize::MAX, 1000, 0..=LATEST, known);

    assert_eq!((whole.records, cut.records), (3, 1));
}

#[test]
fn draft_holds_no_more_than_a_record_can() {
    let mut words = vec![0; Draft::words(65_536)];

    let made = [65_535, 65_536].map(|payload| Draft::new(&mut words, 5, payload).is_some());

    assert_eq!(made, [true, false]);
}
