//! What crosses CPUs in a ring of restartable sequences, under a model checker of the C11 memory model: the ring's CPU
//! in one thread, the consumer in another. What disturbs a sequence on its own CPU is the explorer's
//! (`tests/explorer_restartable`).
//!
//! The crate's own producer and consumer run over the checker's atomics; a sequence is `publish_by_steps`, whose last
//! store is a release operation, as every store is on x86. As in `tests/loom.rs`, a thread reads what only itself
//! writes without the checker's knowledge. Of a sub-buffer's bytes it sees only the words in which two laps differ:
//! the packet's begin and sequence number, a record's header and the first word of its payload. More would be too many
//! executions.
//!
//! Shows: A restartable ring's thread may be disturbed or killed at any step.
#![allow(unsafe_code, missing_docs, clippy::expect_used)] // Tests.

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use shared_ring::Mutant;
use shared_ring::consumer::Consumer;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host::memory::RingMemory;
use shared_ring::layout::{
    Geometry, Mode, RING_ADOPTED, RING_FLUSH_DONE, RING_FLUSH_REQUEST, RING_HEADER_SIZE, RING_LOST_FULL,
    RING_LOST_TOO_LARGE, RING_LOST_WRAPPED, RING_NESTED, RING_READ_COUNT, RING_RESTARTABLE, RING_WRITE_COUNT,
};
use shared_ring::restartable::{Draft, Recorded, RestartableProducer, RestartableThread, publish_by_steps, record};
use shared_ring::storage::Storage;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Counter;

/// Of each sub-buffer, the words that the checker sees.
const TOLD: [usize; 4] = [24, 56, 128, 136];

enum Word {
    Model(AtomicU64),
    /// Not told to the checker.
    Last(Counter),
}

impl Word {
    fn load(&self, order: Ordering) -> u64 {
        match self {
            Self::Model(word) => word.load(order),
            Self::Last(word) => word.load(order),
        }
    }

    fn store(&self, value: u64, order: Ordering) {
        match self {
            Self::Model(word) => word.store(value, order),
            Self::Last(word) => word.store(value, order),
        }
    }

    fn model(&self) -> &AtomicU64 {
        match self {
            Self::Model(word) => word,
            Self::Last(_) => unreachable!("a control word"),
        }
    }
}

/// A ring's words, as one side sees them.
#[derive(Clone)]
struct ModelMemory {
    words: Arc<HashMap<usize, Word>>,
    size: usize,
    is_producer: bool,
}

impl ModelMemory {
    fn new(mode: Mode) -> Self {
        let size = geometry().ring_size(mode);
        let control = [
            RING_WRITE_COUNT,
            RING_READ_COUNT,
            RING_LOST_FULL,
            RING_LOST_WRAPPED,
            RING_LOST_TOO_LARGE,
            RING_FLUSH_DONE,
            RING_FLUSH_REQUEST,
            RING_ADOPTED,
            RING_NESTED,
            RING_RESTARTABLE,
        ];
        let table = (0..geometry().sub_buffers() as usize).map(|index| geometry().exchange_offset(index));
        let words = control.into_iter().chain(table).chain((RING_HEADER_SIZE..size).step_by(8));
        let is_reported =
            |offset: usize| offset < RING_HEADER_SIZE || TOLD.contains(&((offset - RING_HEADER_SIZE) % 256));
        let word = |offset| match is_reported(offset) {
            true => Word::Model(AtomicU64::new(0)),
            false => Word::Last(Counter::new(0)),
        };
        let words = words.map(|offset| (offset, word(offset))).collect();
        Self { words: Arc::new(words), size, is_producer: false }
    }

    fn of_producer(&self) -> Self {
        Self { is_producer: true, ..self.clone() }
    }

    fn load_as(&self, offset: usize, order: Ordering) -> u64 {
        let word = &self.words[&offset];
        let is_hosts = matches!(offset, RING_READ_COUNT | RING_FLUSH_REQUEST);
        if self.is_producer != is_hosts && offset < RING_HEADER_SIZE {
            // SAFETY: this thread is the only one that stores into the word.
            return if self.is_producer { unsafe { word.model().unsync_load() } } else { word.load(order) };
        }
        word.load(order)
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
        self.words[&offset].store(value, Ordering::Relaxed);
    }

    unsafe fn store_release(&self, offset: usize, value: u64) {
        self.words[&offset].store(value, Ordering::Release);
    }

    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.words[&offset].model().compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    unsafe fn compare_exchange_shared(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { Storage::compare_exchange(self, offset, current, new) }
    }

    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        self.words[&offset].model().fetch_add(value, Ordering::AcqRel)
    }

    fn fence_release(&self) {
        fence(Ordering::Release);
    }

    unsafe fn write(&self, _: usize, _: &[u8]) {
        unreachable!("restartable producers write by sequences");
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
        self.words[&offset].store(value, Ordering::Release);
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        for (at, chunk) in out.chunks_mut(8).enumerate() {
            let word = self.words[&(offset + at * 8)].load(Ordering::Relaxed);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.words[&offset].model().compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }

    fn clear(&self, offset: usize, size: usize) {
        for at in (0..size).step_by(8) {
            self.words[&(offset + at)].store(0, Ordering::Relaxed);
        }
    }
}

/// A thread that nothing disturbs; the order of its sequences' last store.
struct Undisturbed(Ordering);

impl RestartableThread<ModelMemory> for Undisturbed {
    fn begin(&self) -> Option<u32> {
        Some(0)
    }

    unsafe fn publish(&self, storage: &ModelMemory, to: usize, words: &[u64], position: u64) -> bool {
        publish_by_steps(
            to,
            words,
            position,
            || true,
            |offset, word| {
                let order = if offset == RING_WRITE_COUNT { self.0 } else { Ordering::Relaxed };
                storage.words[&offset].store(word, order);
                true
            },
        )
    }

    unsafe fn count(&self, storage: &ModelMemory, counter: usize) -> bool {
        storage.words[&counter].model().fetch_add(1, Ordering::AcqRel);
        true
    }

    fn end(&self) {}
}

/// Two sub-buffers; each holds one record of 88 payload bytes.
const fn geometry() -> Geometry {
    Geometry::for_verification(256, 2)
}

/// Payload bytes of a record.
const SIZE: usize = 88;

const fn time_of(number: u64) -> u64 {
    1000 + number
}

/// Records numbers `numbers`; says which were recorded.
fn record_all(memory: &ModelMemory, mode: Mode, numbers: std::ops::Range<u64>, last_store: Ordering) -> Vec<u64> {
    // SAFETY: the memory covers the ring and was zeroed before its first use; one thread at a time records.
    let producer = unsafe { RestartableProducer::new(memory.of_producer(), geometry(), mode) };
    numbers
        .filter(|&number| {
            let mut words = [0; Draft::words(SIZE)];
            let mut draft = Draft::new(&mut words, 88, SIZE).expect("as many as it takes");
            draft.payload()[..8].copy_from_slice(&number.to_le_bytes());
            record(&Undisturbed(last_store), |_| Some((&producer, || time_of(number))), draft) == Recorded::Yes
        })
        .collect()
}

fn ring(mode: Mode) -> ModelMemory {
    let memory = ModelMemory::new(mode);
    // SAFETY: as in `record_all`.
    unsafe { RestartableProducer::new(memory.of_producer(), geometry(), mode) }.announce();
    memory
}

/// What a consumer finds once, or until there is nothing more.
fn read(consumer: &mut Consumer<ModelMemory>, stopped: bool, seen: &mut Vec<u64>) -> bool {
    let field = |at: usize| FieldDescription { name: format!("word{at}"), ty: FieldType::U64, hex: false };
    let event =
        EventDescription { id: 88, class: 0, name: "test:event".into(), fields: (0..SIZE / 8).map(field).collect() };
    let mut buffer = Vec::new();
    let found = if stopped { consumer.poll_stopped(&mut buffer) } else { consumer.poll(&mut buffer) };
    assert!(!found.is_corrupt(), "the consumer found the ring corrupt");
    let Some(delivered) = found.ready() else { return false };
    if let Some(packet) = delivered.accept([7; 16], u64::MAX, |_| Some(&event)) {
        for record in packet.records() {
            let number = u64::from_le_bytes(record.payload[..8].try_into().expect("eight bytes"));
            assert_eq!(record.payload[8..], [0; SIZE - 8], "a torn payload was delivered");
            assert_eq!(record.time, time_of(number), "a time of another record");
            seen.push(number);
        }
    }
    true
}

/// `records` records beside a consumer that looks `polls` times, then again when all is quiet.
fn publish_and_consume(records: u64, polls: usize, last_store: Ordering) -> impl Fn() + Send + Sync + 'static {
    move || {
        let memory = ring(Mode::Discard);
        let mut consumer = Consumer::new(memory.clone(), geometry(), Mode::Discard, 0);
        let written = memory.clone();
        let producing = loom::thread::spawn(move || record_all(&written, Mode::Discard, 0..records, last_store));
        let mut seen = Vec::new();
        (0..polls).for_each(|_| {
            read(&mut consumer, false, &mut seen);
        });
        let recorded = producing.join().expect("the producer does not panic");
        while read(&mut consumer, true, &mut seen) {}
        consumer.finish();
        assert_eq!((seen.as_slice(), consumer.rejected_bytes()), (recorded.as_slice(), 0));
        assert_eq!(consumer.lost().total(), records - recorded.len() as u64, "losses are not exact");
    }
}

/// A snapshot of a flight recorder that holds two records, beside a third one, which goes where the first one is.
fn snapshot() -> impl Fn() + Send + Sync + 'static {
    || {
        let mode = Mode::FlightRecorder;
        let memory = ring(mode);
        assert_eq!(record_all(&memory, mode, 0..2, Ordering::Release), [0, 1]);
        let mut consumer = Consumer::new(memory.clone(), geometry(), mode, 0);
        let written = memory.clone();
        let producing = loom::thread::spawn(move || record_all(&written, mode, 2..3, Ordering::Release));
        let mut seen = Vec::new();
        while read(&mut consumer, true, &mut seen) {}
        assert_eq!(producing.join().expect("the producer does not panic"), [2]);
        assert!(seen.is_sorted_by(|left, right| left < right), "a snapshot is out of order: {seen:?}");
        assert_eq!(consumer.rejected_bytes(), 0, "of {seen:?}");
    }
}

/// As in `tests/loom.rs`.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> Option<u64> {
    let executions = Arc::new(Counter::new(0));
    let counted = Arc::clone(&executions);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 20_000;
        builder.max_permutations = Some(20_000);
        builder.check(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            model();
        });
    }));
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    println!("{executions} executions");
    outcome.is_ok().then_some(executions)
}

#[test]
fn what_is_below_the_position_is_delivered_whole() {
    assert!(explore(2, publish_and_consume(2, 1, Ordering::Release)).is_some_and(|executions| executions > 3));
}

#[test]
fn sub_buffers_that_are_given_back_are_reused() {
    assert!(explore(2, publish_and_consume(3, 2, Ordering::Release)).is_some_and(|executions| executions > 10));
}

#[test]
fn snapshot_drops_what_the_writer_has_come_to() {
    assert!(explore(2, snapshot()).is_some_and(|executions| executions > 10));
}

#[test]
fn position_without_release_delivers_bytes_that_were_not_written() {
    assert_eq!(explore(2, publish_and_consume(2, 1, Ordering::Relaxed)), None);
}

#[test]
fn overwriting_without_a_fence_gives_a_snapshot_what_is_written() {
    assert_eq!(Mutant::OverwriteWithoutFence.run(|| explore(2, snapshot())), None);
}

#[test]
fn position_that_is_not_looked_at_again_gives_a_snapshot_what_is_written() {
    assert_eq!(Mutant::PositionNotRechecked.run(|| explore(2, snapshot())), None);
}
