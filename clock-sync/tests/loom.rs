//! The clock entry under a model checker: every interleaving of one reader with the updates of one writer, and every
//! value that the memory model lets a load return.
//!
//! What is run is `clock_sync::entry` itself, over the checker's atomics. Each published relation gives the same time
//! for the counter value 0, so any other time was computed from words of two updates.
//!
//! The checker tries a store before another thread's load only if that load was the last access of the word. The writer,
//! which nobody else's stores concern, therefore reads the number without telling the checker.
//!
//! Shows: Clock readers never see half an update.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)] // Tests: untracked loads, no rustdoc, panics wanted.

use clock_sync::entry::{ENTRY_SIZE, EntryMemory, Reader, Writer};
use clock_sync::relation::Relation;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64 as Counter;

/// What every relation of these tests gives for the counter value 0.
const TIME: u64 = 1_000_000;

/// Which of the protocol's orders the memory keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Orders {
    All,
    NoAcquireFence,
    NoReleaseFence,
    NoReleaseStore,
}

#[derive(Clone)]
struct ModelMemory {
    words: Arc<Vec<AtomicU64>>,
    orders: Orders,
    is_writer: bool,
}

impl ModelMemory {
    fn new(orders: Orders) -> Self {
        Self { words: Arc::new((0..ENTRY_SIZE / 8).map(|_| AtomicU64::new(0)).collect()), orders, is_writer: false }
    }

    fn of_writer(&self) -> Self {
        Self { is_writer: true, ..self.clone() }
    }
}

impl EntryMemory for ModelMemory {
    fn load(&self, offset: usize) -> u64 {
        if self.is_writer {
            // SAFETY: no other thread stores.
            return unsafe { self.words[offset / 8].unsync_load() };
        }
        self.words[offset / 8].load(Ordering::Relaxed)
    }

    fn load_acquire(&self, offset: usize) -> u64 {
        self.words[offset / 8].load(Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u64) {
        self.words[offset / 8].store(value, Ordering::Relaxed);
    }

    fn store_release(&self, offset: usize, value: u64) {
        let order = if self.orders == Orders::NoReleaseStore { Ordering::Relaxed } else { Ordering::Release };
        self.words[offset / 8].store(value, order);
    }

    fn acquire_fence(&self) {
        if self.orders != Orders::NoAcquireFence {
            fence(Ordering::Acquire);
        }
    }

    fn release_fence(&self) {
        if self.orders != Orders::NoReleaseFence {
            fence(Ordering::Release);
        }
    }
}

fn relation(step: u64) -> Relation {
    Relation { hw_base: step, trace_base: TIME + step, ..Relation::IDENTITY }
}

/// How a reader gets the time.
type Read = fn(&Reader<ModelMemory>, &ModelMemory) -> u64;

/// The entry's own reader.
fn numbered(reader: &Reader<ModelMemory>, _memory: &ModelMemory) -> u64 {
    reader.now(|| 0)
}

/// The paper's reader: takes the current slot and never looks back.
fn bare_pair(reader: &Reader<ModelMemory>, memory: &ModelMemory) -> u64 {
    let number = memory.load_acquire(0);
    reader.relation(number).trace_time(0)
}

/// Runs one reading beside `updates` updates in every way there is; from three updates on, in every way that takes a
/// thread off its CPU three times at most where it does not wait. Returns the number of executions, or `None` when
/// one of them read a mixture.
fn explore(orders: Orders, updates: u64, read: Read) -> Option<u64> {
    let executions = std::sync::Arc::new(Counter::new(0));
    let counted = std::sync::Arc::clone(&executions);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = (updates > 2).then_some(3);
        model.check(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let memory = ModelMemory::new(orders);
            let mut writer = Writer::over(memory.of_writer());
            writer.publish(&relation(1));
            let updating = loom::thread::spawn(move || {
                for step in 2..2 + updates {
                    writer.publish(&relation(step));
                }
            });
            assert_eq!(read(&Reader::over(memory.clone()), &memory), TIME, "a mixture of two updates");
            updating.join().unwrap();
        });
    }));
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    println!("{executions} executions");
    outcome.is_ok().then_some(executions)
}

#[test]
fn reader_descheduled_over_two_updates_never_sees_a_mixture() {
    assert!(explore(Orders::All, 2, numbered).is_some_and(|executions| executions > 10));
}

#[test]
fn reader_descheduled_over_three_updates_never_sees_a_mixture() {
    assert!(explore(Orders::All, 3, numbered).is_some_and(|executions| executions > 10));
}

#[test]
fn bare_pair_is_safe_as_long_as_a_reading_misses_one_update_only() {
    assert!(explore(Orders::All, 1, bare_pair).is_some_and(|executions| executions > 3));
}

#[test]
fn bare_pair_read_over_two_updates_yields_a_mixture() {
    assert_eq!(explore(Orders::All, 2, bare_pair), None);
}

#[test]
fn without_the_readers_fence_a_mixture_is_found() {
    assert_eq!(explore(Orders::NoAcquireFence, 2, numbered), None);
}

#[test]
fn without_the_writers_fence_a_mixture_is_found() {
    assert_eq!(explore(Orders::NoReleaseFence, 2, numbered), None);
}

#[test]
fn without_the_release_of_the_number_a_half_written_slot_is_found() {
    assert_eq!(explore(Orders::NoReleaseStore, 1, numbered), None);
}
