//! What crosses CPUs, under a model checker of the C11 memory model: a producer in one thread, the consumer in another,
//! every interleaving, and every value that the memory model lets a load return.
//!
//! What is run is the crate's own `Producer` and `Consumer`, over the checker's atomics. Two peculiarities of the checker
//! shape the memory below:
//!
//! - It tries a store before another thread's earlier load only if that load was the *last* access of the word. So a
//!   thread reads the words that only itself writes without telling the checker, and words that both sides write are
//!   loaded by an addition of zero.
//! - It remembers seven stores per word, which bounds how much a model can write.
//!
//! Shows: What crosses CPUs keeps to the C11 memory model (loom).
#![allow(unsafe_code, missing_docs, clippy::expect_used)] // Tests.

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use shared_ring::Mutant;
use shared_ring::consumer::{Consumer, Delivered};
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host::memory::RingMemory;
use shared_ring::layout::{
    Geometry, Mode, RING_FLUSH_DONE, RING_FLUSH_REQUEST, RING_HEADER_SIZE, RING_LOST_FULL, RING_LOST_TOO_LARGE,
    RING_LOST_WRAPPED, RING_OVERWRITTEN, RING_READ_COUNT, RING_RESTARTABLE, RING_WRITE_COUNT,
};
use shared_ring::producer::{Abandoned, Producer};
use shared_ring::storage::Storage;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Counter;

/// Who accesses the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The only producer.
    Producer,
    /// One of several.
    Producers,
    Consumer,
}

/// How words that both sides write are loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SharedLoads {
    /// As the code says: the checker may return older values, and may miss an interleaving.
    Plain,
    /// By adding zero: the checker misses no interleaving, and returns the last value.
    Exchanging,
}

/// Who writes a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    Producer,
    Consumer,
    Both,
}

struct Word {
    value: AtomicU64,
    writer: Writer,
}

#[derive(Clone)]
struct ModelMemory {
    words: Arc<HashMap<usize, Word>>,
    size: usize,
    side: Side,
    loads: SharedLoads,
}

impl ModelMemory {
    fn new(geometry: Geometry, mode: Mode, loads: SharedLoads) -> Self {
        let size = geometry.ring_size(mode);
        let counters = [
            RING_WRITE_COUNT,
            RING_LOST_FULL,
            RING_LOST_WRAPPED,
            RING_LOST_TOO_LARGE,
            RING_OVERWRITTEN,
            RING_FLUSH_DONE,
            RING_RESTARTABLE,
        ];
        let table = (0..geometry.sub_buffers() as usize).flat_map(|index| {
            [
                (geometry.commit_count_offset(index), Writer::Producer),
                (geometry.commit_seq_offset(index), Writer::Producer),
                (geometry.commit_prefix_offset(index), Writer::Producer),
                (geometry.exchange_offset(index), Writer::Both),
            ]
        });
        let pushed = if mode == Mode::FlightRecorder { Writer::Both } else { Writer::Consumer };
        let words = [(RING_READ_COUNT, pushed), (RING_FLUSH_REQUEST, Writer::Consumer)]
            .into_iter()
            .chain(counters.map(|offset| (offset, Writer::Producer)))
            .chain(table)
            .chain((RING_HEADER_SIZE..size).step_by(8).map(|offset| (offset, Writer::Both)))
            .map(|(offset, writer)| (offset, Word { value: AtomicU64::new(0), writer }))
            .collect();
        Self { words: Arc::new(words), size, side: Side::Consumer, loads }
    }

    fn of(&self, side: Side) -> Self {
        Self { side, ..self.clone() }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        &self.words[&offset].value
    }

    fn load_as(&self, offset: usize, order: Ordering) -> u64 {
        let Word { value, writer } = &self.words[&offset];
        let is_data = offset >= RING_HEADER_SIZE;
        match (self.side, writer) {
            // SAFETY: this thread is the only one that stores into the word.
            (Side::Producer, Writer::Producer) | (Side::Consumer, Writer::Consumer) => unsafe { value.unsync_load() },
            (Side::Producers, Writer::Producer) if offset != RING_FLUSH_DONE => value.fetch_add(0, order),
            (_, Writer::Both) if !is_data && self.loads == SharedLoads::Exchanging => value.fetch_add(0, order),
            _ => value.load(order),
        }
    }
}

impl Storage for ModelMemory {
    unsafe fn load(&self, offset: usize) -> u64 {
        self.load_as(offset, Ordering::Relaxed)
    }

    unsafe fn load_acquire(&self, offset: usize) -> u64 {
        self.load_as(offset, Ordering::Acquire)
    }

    unsafe fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    unsafe fn store_release(&self, offset: usize, value: u64) {
        let Word { value: word, writer } = &self.words[&offset];
        if offset < RING_HEADER_SIZE && *writer == Writer::Both && self.loads == SharedLoads::Exchanging {
            // The checker does not order a store among additions that do not synchronise with it.
            word.swap(value, Ordering::Release);
            return;
        }
        self.word(offset).store(value, Ordering::Release);
    }

    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.word(offset).compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    unsafe fn compare_exchange_shared(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { Storage::compare_exchange(self, offset, current, new) }
    }

    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        self.word(offset).fetch_add(value, Ordering::AcqRel)
    }

    fn fence_release(&self) {
        fence(Ordering::Release);
    }

    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        for (at, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(offset + at * 8).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }
}

impl RingMemory for ModelMemory {
    fn size(&self) -> usize {
        self.size
    }

    fn load(&self, offset: usize) -> u64 {
        self.load_as(offset, Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        for (at, chunk) in out.chunks_mut(8).enumerate() {
            let word = self.word(offset + at * 8).load(Ordering::Relaxed);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.word(offset).compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }

    fn clear(&self, offset: usize, size: usize) {
        for at in (0..size).step_by(8) {
            self.word(offset + at).store(0, Ordering::Relaxed);
        }
    }
}

/// Events have as many payload bytes as their id says: their number, over and over.
fn payload(number: u64, size: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(size / 8)
}

fn event(payload: usize) -> EventDescription {
    let field = |at: usize| FieldDescription { name: format!("word{at}"), ty: FieldType::U64, hex: false };
    let id = u16::try_from(payload).expect("small");
    EventDescription { id, class: 0, name: "test:event".into(), fields: (0..payload / 8).map(field).collect() }
}

/// Takes over a packet: numbers and times of records, whose payloads are whole.
fn accept<M: RingMemory>(delivered: Delivered<'_, M>) -> Vec<(u64, u64)> {
    let events = [event(8), event(40), event(96)];
    let known = |id| events.iter().find(|event| event.id == id);
    let Some(packet) = delivered.accept([7; 16], u64::MAX, known) else { return Vec::new() };
    packet
        .records()
        .map(|record| {
            let number = u64::from_le_bytes(record.payload[..8].try_into().expect("eight bytes"));
            assert_eq!(record.payload, payload(number, usize::from(record.id)), "a torn payload was delivered");
            (number, record.time)
        })
        .collect()
}

/// Everything that a consumer finds in a ring whose producers it takes for stopped.
fn read_all<M: RingMemory>(mut consumer: Consumer<M>) -> Vec<(u64, u64)> {
    let mut packet = Vec::new();
    let mut delivered = Vec::new();
    while let Some(found) = consumer.poll_stopped(&mut packet).ready() {
        delivered.extend(accept(found));
    }
    assert!(!consumer.is_corrupt(), "the consumer found the ring corrupt");
    delivered
}

/// Record `number` of a model was recorded at this time.
const fn time_of(number: u64) -> u64 {
    1000 + number
}

/// Records an event of each of `sizes` payload bytes, numbered from `first`, by the only producer of the ring; says which
/// were recorded.
fn record(producer: &Producer<ModelMemory>, first: u64, sizes: &[usize]) -> Vec<(u64, u64)> {
    (first..)
        .zip(sizes)
        .filter(|&(number, &size)| {
            let id = u16::try_from(size).expect("small");
            producer.record(|| time_of(number), id, &payload(number, size))
        })
        .map(|(number, _)| (number, time_of(number)))
        .collect()
}

fn producer(memory: &ModelMemory, side: Side, mode: Mode) -> Producer<ModelMemory> {
    // SAFETY: the memory covers the ring and was zeroed before its first use.
    unsafe { Producer::new(memory.of(side), geometry(), mode) }
}

fn consumer(memory: &ModelMemory, mode: Mode) -> Consumer<ModelMemory> {
    Consumer::new(memory.of(Side::Consumer), geometry(), mode, 0)
}

/// Two sub-buffers; each holds one record of 96 payload bytes, or two of 40.
const fn geometry() -> Geometry {
    Geometry::for_verification(256, 2)
}

/// Most executions of one model: those whose number explodes, since each of many racing loads may return either of two
/// values, are cut there. The checker goes depth first from the last choice.
const MOST_EXECUTIONS: usize = 40_000;

/// Runs `model` in every way there is, with at most `preemptions` of them where a thread would go on. Returns the number
/// of executions, or `None` when one of them failed.
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> Option<u64> {
    let executions = Arc::new(Counter::new(0));
    let counted = Arc::clone(&executions);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.max_branches = 20_000;
        builder.max_permutations = Some(MOST_EXECUTIONS);
        builder.check(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            model();
        });
    }));
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    println!("{executions} executions");
    outcome.is_ok().then_some(executions)
}

/// A producer that fills `records` sub-buffers, beside a consumer that looks `polls` times, then again when the producer
/// has stopped.
fn publish_and_consume(records: usize, polls: usize) -> impl Fn() + Send + Sync + 'static {
    move || {
        let memory = ModelMemory::new(geometry(), Mode::Discard, SharedLoads::Plain);
        let mut consumer = consumer(&memory, Mode::Discard);
        let producer = producer(&memory, Side::Producer, Mode::Discard);
        let producing = loom::thread::spawn(move || record(&producer, 0, &vec![96; records]));
        let mut packet = Vec::new();
        let mut delivered = Vec::new();
        for _ in 0..polls {
            if let Some(found) = consumer.poll(&mut packet).ready() {
                delivered.extend(accept(found));
            }
        }
        let recorded = producing.join().expect("the producer does not panic");
        while let Some(found) = consumer.poll_stopped(&mut packet).ready() {
            delivered.extend(accept(found));
        }
        consumer.finish();
        assert!(!consumer.is_corrupt(), "the consumer found the ring corrupt");
        assert_eq!(delivered, recorded, "what was recorded is not what was delivered");
        assert_eq!(consumer.lost().total(), (records - recorded.len()) as u64, "losses are not exact");
    }
}

/// A flight recorder with two full sub-buffers, into which a producer records `records` more that take one each, beside a
/// consumer that looks `polls` times.
fn exchange(records: usize, polls: usize, loads: SharedLoads) -> impl Fn() + Send + Sync + 'static {
    move || {
        let mode = Mode::FlightRecorder;
        let memory = ModelMemory::new(geometry(), mode, loads);
        let producer = producer(&memory, Side::Producer, mode);
        record(&producer, 0, &[96, 96]);
        let mut reader = consumer(&memory, mode);
        let producing = loom::thread::spawn(move || record(&producer, 2, &vec![96; records]));
        let mut packet = Vec::new();
        let mut delivered = Vec::new();
        for _ in 0..polls {
            if let Some(found) = reader.poll(&mut packet).ready() {
                let records = accept(found);
                assert!(!records.is_empty(), "a complete sub-buffer was not delivered");
                delivered.extend(records);
            }
        }
        let recorded = producing.join().expect("the producer does not panic");
        assert!(!reader.is_corrupt(), "the consumer found the ring corrupt");
        assert_eq!(recorded.len(), records, "a flight recorder loses nothing for want of room");
        assert!(delivered.is_sorted_by(|left, right| left < right), "delivered twice, or out of order: {delivered:?}");
        assert!(delivered.iter().all(|&(number, time)| time == time_of(number)), "a time of another record");
        check_last_sub_buffers(&memory, &recorded);
    }
}

/// A snapshot that reads also what is not complete. Before it, events of `before` payload bytes are recorded; beside it,
/// events of `beside`.
fn snapshot(
    before: &'static [usize],
    beside: &'static [usize],
    loads: SharedLoads,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let mode = Mode::FlightRecorder;
        let memory = ModelMemory::new(geometry(), mode, loads);
        let producer = producer(&memory, Side::Producer, mode);
        record(&producer, 0, before);
        let snapshot = consumer(&memory, mode);
        let producing = loom::thread::spawn(move || record(&producer, before.len() as u64, beside));
        let seen = read_all(snapshot);
        let recorded = producing.join().expect("the producer does not panic");
        assert_eq!(recorded.len(), beside.len(), "a flight recorder loses nothing for want of room");
        assert!(seen.is_sorted_by(|left, right| left < right), "a snapshot is out of order: {seen:?}");
        assert!(seen.iter().all(|&(number, time)| time == time_of(number)), "a time of another record");
        check_last_sub_buffers(&memory, &recorded);
    }
}

/// Two threads record into the sub-buffer that the consumer is about to take: one opens it, and the other one may find it
/// opened and not entered yet.
fn entered() -> impl Fn() + Send + Sync + 'static {
    move || {
        let mode = Mode::FlightRecorder;
        let memory = ModelMemory::new(geometry(), mode, SharedLoads::Exchanging);
        let before = producer(&memory, Side::Producers, mode);
        record(&before, 0, &[96, 96, 8]);
        let mut reader = consumer(&memory, mode);
        let recording = [3, 4].map(|number| {
            let producer = producer(&memory, Side::Producers, mode);
            // whichever comes first
            loom::thread::spawn(move || producer.record(|| time_of(3), 8, &payload(number, 8)))
        });
        let mut packet = Vec::new();
        let mut delivered = Vec::new();
        if let Some(found) = reader.poll(&mut packet).ready() {
            delivered = accept(found);
        }
        for thread in recording {
            assert!(
                thread.join().expect("a producer does not panic"),
                "a flight recorder loses nothing for want of room"
            );
        }
        assert!(!reader.is_corrupt(), "the consumer found the ring corrupt");
        assert!(matches!(delivered[..], [] | [(0, _)] | [(1, _), (2, _)]), "not a sub-buffer: {delivered:?}");
        let mut seen: Vec<_> = read_all(consumer(&memory, mode)).iter().map(|&(number, _)| number).collect();
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3, 4], "the last sub-buffers are not whole");
    }
}

/// A thread stops for ever in its second record, beside another one that records. If that comes behind it, so that there was
/// no other hole when it reserved, what lies before the hole is read all the same.
fn stopped_beside_another() -> impl Fn() + Send + Sync + 'static {
    move || {
        let mode = Mode::FlightRecorder;
        let memory = ModelMemory::new(geometry(), mode, SharedLoads::Exchanging);
        record(&producer(&memory, Side::Producers, mode), 0, &[8]);
        let stops = producer(&memory, Side::Producers, mode);
        let goes_on = producer(&memory, Side::Producers, mode);
        let stopping = loom::thread::spawn(move || {
            record(&stops, 1, &[8]);
            std::mem::forget(stops.reserve(|| time_of(2), 8, 8));
        });
        goes_on.record(|| time_of(1), 8, &payload(3, 8));
        stopping.join().expect("the producer does not panic");
        let seen: Vec<_> = read_all(consumer(&memory, mode)).iter().map(|&(number, _)| number).collect();
        // Behind the packet header there are the records 0 and 1 and the hole, of 16 bytes each.
        let is_behind = memory.load_as(geometry().data_offset(128 + 3 * 16) + 8, Ordering::Relaxed) == 3;
        assert!(seen == [0, 1] || !is_behind, "records before the hole are missing: {seen:?}");
    }
}

/// Two threads record, one of them the first record of the ring. A record behind theirs that is never finished hides
/// neither, whoever says last what is whole.
fn two_before_a_hole() -> impl Fn() + Send + Sync + 'static {
    move || {
        let mode = Mode::FlightRecorder;
        let memory = ModelMemory::new(geometry(), mode, SharedLoads::Exchanging);
        let [one, other, stops] = [(); 3].map(|()| producer(&memory, Side::Producers, mode));
        let recording = loom::thread::spawn(move || assert!(one.record(|| time_of(0), 8, &payload(0, 8))));
        assert!(other.record(|| time_of(0), 8, &payload(1, 8)));
        recording.join().expect("the producer does not panic");
        std::mem::forget(stops.reserve(|| time_of(1), 8, 8));
        let mut seen: Vec<_> = read_all(consumer(&memory, mode)).iter().map(|&(number, _)| number).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1], "records before the hole are missing");
    }
}

/// A ring whose first record is never finished, which its producer repairs, and records on, beside a consumer that looks
/// `polls` times, or takes a snapshot of a flight recorder.
fn repaired(mode: Mode, polls: usize, loads: SharedLoads) -> impl Fn() + Send + Sync + 'static {
    move || {
        let memory = ModelMemory::new(geometry(), mode, loads);
        let producer = producer(&memory, Side::Producer, mode);
        record(&producer, 0, &[8]);
        std::mem::forget(producer.reserve(|| time_of(1), 8, 8));
        record(&producer, 2, &[8]);
        let mut reader = consumer(&memory, mode);
        let repairing = loom::thread::spawn(move || {
            // SAFETY: the thread that made the record of this ring that is open never finishes it.
            let is_lost = unsafe { producer.repair_holes(Abandoned::One) };
            (is_lost, record(&producer, 3, &[96]))
        });
        let mut packet = Vec::new();
        let mut delivered = Vec::new();
        for _ in 0..polls {
            if let Some(found) = reader.poll(&mut packet).ready() {
                delivered.extend(accept(found));
            }
        }
        let snapshot = if polls == 0 { read_all(consumer(&memory, mode)) } else { Vec::new() };
        let (is_lost, recorded) = repairing.join().expect("the producer does not panic");
        assert!(is_lost && recorded.len() == 1, "the ring does not go on");
        let all = [0, 2, 3].map(|number| (number, time_of(number)));
        assert!(snapshot.iter().all(|seen| all.contains(seen)), "a snapshot holds another record: {snapshot:?}");
        while let Some(found) = reader.poll_stopped(&mut packet).ready() {
            delivered.extend(accept(found));
        }
        assert_eq!(delivered, all, "what was recorded is not what was delivered");
        assert_eq!(reader.rejected_bytes(), 0, "bytes of a repaired ring were not understood");
    }
}

/// When all is quiet, a snapshot holds the last records, up to the last one, and so does a second snapshot.
fn check_last_sub_buffers(memory: &ModelMemory, recorded: &[(u64, u64)]) {
    for _ in 0..2 {
        let seen = read_all(consumer(memory, Mode::FlightRecorder));
        assert_eq!(seen.last(), recorded.last(), "the last record is missing");
        assert!(seen.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "records are missing in {seen:?}");
        assert!(seen.len() > 1, "a sub-buffer is missing");
    }
}

/// A thread records while another one, of the same ring, closes its sub-buffer for a host that asked for it.
fn forced_switch(mode: Mode) -> impl Fn() + Send + Sync + 'static {
    move || {
        let memory = ModelMemory::new(geometry(), mode, SharedLoads::Exchanging);
        let recording = producer(&memory, Side::Producers, mode);
        let switching = producer(&memory, Side::Producers, mode);
        assert!(recording.record(|| time_of(0), 8, &payload(0, 8)));
        let mut reader = consumer(&memory, mode);
        let request = reader.request_flush();
        let thread = loom::thread::spawn(move || switching.poll_flush_request(|| time_of(1)));
        assert!(recording.record(|| time_of(1), 40, &payload(1, 40)));
        thread.join().expect("a switch does not panic");
        assert!(reader.is_flushed(request), "the request was not honoured");
        let mut packet = Vec::new();
        let mut delivered = accept(reader.poll(&mut packet).ready().expect("the requested packet is ready"));
        assert_eq!(delivered.first(), Some(&(0, time_of(0))), "what was recorded before is missing");
        while let Some(found) = reader.poll_stopped(&mut packet).ready() {
            delivered.extend(accept(found));
        }
        assert_eq!(delivered, [(0, time_of(0)), (1, time_of(1))]);
    }
}

#[test]
fn published_sub_buffers_are_delivered_whole() {
    assert!(explore(None, publish_and_consume(2, 1)).is_some_and(|executions| executions > 3));
}

#[test]
fn sub_buffers_that_are_given_back_are_reused_clean() {
    assert!(explore(None, publish_and_consume(3, 2)).is_some_and(|executions| executions > 10));
}

#[test]
fn writer_and_consumer_exchange_sub_buffers() {
    assert!(explore(Some(2), exchange(1, 2, SharedLoads::Plain)).is_some_and(|executions| executions > 10));
    assert!(explore(Some(2), exchange(1, 2, SharedLoads::Exchanging)).is_some_and(|executions| executions > 10));
}

#[test]
fn writer_laps_the_consumer() {
    assert!(explore(Some(2), exchange(3, 1, SharedLoads::Exchanging)).is_some_and(|executions| executions > 10));
}

#[test]
fn writers_enter_a_sub_buffer_that_the_consumer_is_about_to_take() {
    assert!(explore(Some(2), entered()).is_some_and(|executions| executions > 10));
}

#[test]
fn snapshot_reads_an_unfinished_sub_buffer() {
    assert!(explore(Some(2), snapshot(&[40; 3], &[40], SharedLoads::Plain)).is_some_and(|executions| executions > 10));
    assert!(
        explore(Some(2), snapshot(&[40; 3], &[40], SharedLoads::Exchanging)).is_some_and(|executions| executions > 10)
    );
}

#[test]
fn snapshot_reads_a_sub_buffer_that_the_writer_enters_again() {
    assert!(
        explore(Some(1), snapshot(&[96, 96, 8], &[96, 40], SharedLoads::Plain))
            .is_some_and(|executions| executions > 10)
    );
}

#[test]
fn ring_is_repaired_beside_its_consumer() {
    assert!(explore(Some(2), repaired(Mode::Discard, 2, SharedLoads::Plain)).is_some_and(|executions| executions > 10));
    let recorder = |polls, loads| explore(Some(2), repaired(Mode::FlightRecorder, polls, loads));
    assert!(recorder(2, SharedLoads::Plain).is_some_and(|executions| executions > 10));
    assert!(recorder(2, SharedLoads::Exchanging).is_some_and(|executions| executions > 10));
    assert!(recorder(0, SharedLoads::Plain).is_some_and(|executions| executions > 10));
}

#[test]
fn forced_switch_beside_a_record() {
    assert!(explore(None, forced_switch(Mode::Discard)).is_some_and(|executions| executions > 10));
    assert!(explore(Some(2), forced_switch(Mode::FlightRecorder)).is_some_and(|executions| executions > 10));
}

#[test]
fn records_before_one_that_is_never_finished_are_read() {
    assert!(explore(Some(2), stopped_beside_another()).is_some());
    assert!(explore(Some(2), two_before_a_hole()).is_some_and(|executions| executions > 10));
}

/// Mutants that cross CPUs: those that no order of steps shows, and the writer reference, which two CPUs dispute.
fn survives(mutant: Mutant) -> Option<u64> {
    mutant.run(|| match mutant {
        Mutant::PublishWithoutRelease => explore(None, publish_and_consume(2, 1)),
        Mutant::PublishGoesBack => explore(Some(2), two_before_a_hole()),
        Mutant::EnterWithoutReference => explore(Some(2), exchange(3, 1, SharedLoads::Exchanging)),
        Mutant::EnterUnheld => explore(Some(2), entered()),
        Mutant::EnterWithoutFence => explore(Some(1), snapshot(&[96, 96, 8], &[96, 40], SharedLoads::Plain)),
        _ => unreachable!("the explorer's"),
    })
}

#[test]
fn publishing_less_than_before_hides_records_before_the_first_hole() {
    assert_eq!(survives(Mutant::PublishGoesBack), None);
}

#[test]
fn publishing_without_release_delivers_bytes_that_were_not_written() {
    assert_eq!(survives(Mutant::PublishWithoutRelease), None);
}

#[test]
fn entering_without_a_reference_gives_the_consumer_what_is_written() {
    assert_eq!(survives(Mutant::EnterWithoutReference), None);
}

#[test]
fn entering_what_no_writer_holds_gives_the_consumer_what_is_written() {
    assert_eq!(survives(Mutant::EnterUnheld), None);
}

#[test]
fn entering_without_a_fence_gives_a_snapshot_what_is_written() {
    assert_eq!(survives(Mutant::EnterWithoutFence), None);
}
