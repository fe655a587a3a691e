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
#![allow(unsafe_code, missing_docs, clippy::expect_used)] // Tests.

use loom::sync::atomic::{AtomicU64, Ordering};
use shared_ring::Mutant;
use shared_ring::consumer::{Consumer, Poll};
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host_memory::RingMemory;
use shared_ring::layout::{
    Geometry, RING_HEADER_SIZE, RING_LOST_FULL, RING_LOST_TOO_LARGE, RING_LOST_WRAPPED, RING_READ_COUNT,
    RING_SUB_BUFFER_TABLE, RING_WRITE_COUNT,
};
use shared_ring::packet::Records;
use shared_ring::producer::Producer;
use shared_ring::storage::Storage;
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Counter;

/// Who accesses the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Producer,
    Consumer,
}

#[derive(Clone)]
struct ModelMemory {
    words: Arc<HashMap<usize, AtomicU64>>,
    size: usize,
    side: Side,
}

impl ModelMemory {
    fn new(geometry: Geometry) -> Self {
        let size = geometry.ring_size();
        let table = (0..geometry.sub_buffers() as usize)
            .flat_map(|index| [geometry.commit_count_offset(index), geometry.commit_seq_offset(index)]);
        let words = [RING_WRITE_COUNT, RING_READ_COUNT, RING_LOST_FULL, RING_LOST_WRAPPED, RING_LOST_TOO_LARGE]
            .into_iter()
            .chain(table)
            .chain((RING_HEADER_SIZE..size).step_by(8))
            .map(|offset| (offset, AtomicU64::new(0)))
            .collect();
        Self { words: Arc::new(words), size, side: Side::Consumer }
    }

    fn of(&self, side: Side) -> Self {
        Self { side, ..self.clone() }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        &self.words[&offset]
    }

    /// Control words that only the producer's CPU writes.
    fn is_producers(offset: usize) -> bool {
        offset < RING_HEADER_SIZE && offset != RING_READ_COUNT && (offset < RING_SUB_BUFFER_TABLE || offset % 16 < 16)
    }

    fn load_as(&self, offset: usize, order: Ordering) -> u64 {
        match (self.side, offset) {
            // SAFETY: the producer's thread is the only one that stores into these words.
            (Side::Producer, _) if Self::is_producers(offset) => unsafe { self.word(offset).unsync_load() },
            // SAFETY: the consumer's thread is the only one that stores into this word.
            (Side::Consumer, RING_READ_COUNT) => unsafe { self.word(offset).unsync_load() },
            _ => self.word(offset).load(order),
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
        self.word(offset).store(value, Ordering::Release);
    }

    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.word(offset).compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        self.word(offset).fetch_add(value, Ordering::AcqRel)
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

    fn clear(&self, offset: usize, size: usize) {
        for at in (0..size).step_by(8) {
            self.word(offset + at).store(0, Ordering::Relaxed);
        }
    }
}

/// An event of `PAYLOAD` bytes: its number, over and over.
const EVENT: u16 = 5;

fn payload<const PAYLOAD: usize>(number: u64) -> [u8; PAYLOAD] {
    let mut bytes = [0; PAYLOAD];
    bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    bytes
}

fn event(payload: usize) -> EventDescription {
    let field = |at: usize| FieldDescription { name: format!("word{at}"), ty: FieldType::U64, hex: false };
    EventDescription { id: EVENT, class: 0, name: "test:event".into(), fields: (0..payload / 8).map(field).collect() }
}

/// Takes over what `consumer` holds in `packet`: numbers of records whose payload is whole and whose time is theirs.
fn accept<M: RingMemory>(consumer: &mut Consumer<M>, packet: &mut [u8], event: &EventDescription) -> Vec<u64> {
    let Some(accepted) = consumer.accept(packet, [7; 16], u64::MAX, |id| (id == EVENT).then_some(event)) else {
        return Vec::new();
    };
    let begin = shared_ring::packet::read_header(packet).expect("a packet has a header").time_begin;
    Records::new(packet, accepted.content, begin)
        .map(|record| {
            let number = u64::from_le_bytes(record.payload[..8].try_into().expect("eight bytes"));
            assert!(record.payload.chunks(8).all(|word| word == number.to_le_bytes()), "a torn payload was delivered");
            assert_eq!(record.time, 1000 + number, "a record was delivered with another one's time");
            number
        })
        .collect()
}

/// Runs `model` in every way there is, with at most `preemptions` of them where a thread would go on. Returns the number
/// of executions, or `None` when one of them failed.
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> Option<u64> {
    let executions = Arc::new(Counter::new(0));
    let counted = Arc::clone(&executions);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.max_branches = 20_000;
        builder.check(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            model();
        });
    }));
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    println!("{executions} executions");
    outcome.is_ok().then_some(executions)
}

/// A producer that records `RECORDS` events of 96 bytes, each of which fills a sub-buffer of 256 bytes with two of them in
/// the ring, beside a consumer that looks `POLLS` times, then once more when the producer has stopped.
fn publish_and_consume<const RECORDS: u64, const POLLS: usize>() {
    let geometry = Geometry::for_verification(256, 2);
    let memory = ModelMemory::new(geometry);
    let mut consumer = Consumer::new(memory.of(Side::Consumer), geometry, 0);
    let storage = memory.of(Side::Producer);
    let producing = loom::thread::spawn(move || {
        // SAFETY: the memory covers the ring and is zeroed.
        let producer = unsafe { Producer::new(storage, geometry) };
        let recorded = Cell::new(Vec::new());
        for number in 0..RECORDS {
            if producer.record(|| 1000 + number, EVENT, &payload::<96>(number)) {
                let mut numbers = recorded.take();
                numbers.push(number);
                recorded.set(numbers);
            }
        }
        recorded.into_inner()
    });
    let event = event(96);
    let mut packet = Vec::new();
    let mut delivered = Vec::new();
    for _ in 0..POLLS {
        if consumer.poll(&mut packet) == Poll::Copied {
            delivered.extend(accept(&mut consumer, &mut packet, &event));
        }
    }
    let recorded = producing.join().expect("the producer does not panic");
    while consumer.poll_stopped(&mut packet) == Poll::Copied {
        delivered.extend(accept(&mut consumer, &mut packet, &event));
    }
    consumer.finish();
    assert!(!consumer.is_corrupt(), "the consumer found the ring corrupt");
    assert_eq!(delivered, recorded, "what was recorded is not what was delivered");
    assert_eq!(consumer.lost().total(), RECORDS - recorded.len() as u64, "losses are not exact");
}

#[test]
fn published_sub_buffers_are_delivered_whole() {
    assert!(explore(None, publish_and_consume::<2, 1>).is_some_and(|executions| executions > 3));
}

#[test]
fn sub_buffers_that_are_given_back_are_reused_clean() {
    assert!(explore(Some(3), publish_and_consume::<3, 2>).is_some_and(|executions| executions > 10));
}

#[test]
fn publishing_without_release_delivers_bytes_that_were_not_written() {
    let found = Mutant::PublishWithoutRelease.run(|| explore(None, publish_and_consume::<2, 1>));

    assert_eq!(found, None);
}
