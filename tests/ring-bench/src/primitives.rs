//! The operations that tracers synchronise with, as in tables II–VI of Desnoyers & Dagenais, *Synchronization for fast
//! and reentrant operating system kernel tracing* (2010), on this processor.
//!
//! Each is measured alone and *behind stores that miss*: eight stores to lines that are in no cache stand before each
//! operation, and what these stores cost without it is subtracted. A locked instruction waits until they have left the
//! store buffer; one without `LOCK` does not. Disabling interrupts cannot be measured here: it is not for user mode.
#![allow(unsafe_code)] // Single instructions.

use crate::ring_cases::SharedMapping;
use crate::sampling::{CHUNK, Case, TickRate, chunk_of, sample, ticks};
use core::arch::asm;
use core::arch::x86_64::{__rdtscp, _mm_lfence, _mm_mfence, _mm_sfence};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// Larger than any cache that one core can fill.
const MISSES: usize = 256 << 20;
/// Stores before each operation.
const STORES: usize = 8;
/// From one store to the next: another page, so that the prefetcher does not help.
const STRIDE: usize = 4096 + 64;

#[repr(align(64))]
struct Word(AtomicU64);

/// `cmpxchg` without `LOCK`.
#[inline(always)]
fn local_compare_exchange(word: &AtomicU64, current: u64, new: u64) -> u64 {
    let before;
    // SAFETY: the word is valid and only this thread writes it.
    unsafe {
        asm!("cmpxchg qword ptr [{}], {}", in(reg) word.as_ptr(), in(reg) new, inout("rax") current => before, options(nostack))
    };
    before
}

/// `xadd` without `LOCK`.
#[inline(always)]
fn local_add(word: &AtomicU64, value: u64) -> u64 {
    let before;
    // SAFETY: the word is valid and only this thread writes it.
    unsafe { asm!("xadd qword ptr [{}], {}", in(reg) word.as_ptr(), inout(reg) value => before, options(nostack)) };
    before
}

#[inline(always)]
fn add_one(word: &AtomicU64, amount: i64) {
    // SAFETY: the word is valid and only this thread writes it.
    unsafe { asm!("add qword ptr [{}], {}", in(reg) word.as_ptr(), in(reg) amount, options(nostack)) };
}

/// Where the stores that miss go.
struct Misses {
    memory: SharedMapping,
    at: std::cell::Cell<usize>,
}

impl Misses {
    #[inline(always)]
    fn store(&self) {
        let mut at = self.at.get();
        for _ in 0..STORES {
            // SAFETY: `at` stays below the mapping's size and a multiple of 8; only this thread uses the mapping.
            unsafe { self.memory.base().add(at).cast::<u64>().write_volatile(at as u64) };
            at = (at + STRIDE) % MISSES;
        }
        self.at.set(at);
    }
}

/// Two cases: `operation` alone, and behind stores that miss. It is given two words and a number.
fn both(
    keys: [&'static str; 2],
    label: &str,
    rate: TickRate,
    misses: &Rc<Misses>,
    operation: impl Fn(&AtomicU64, &AtomicU64, u64) + Copy + 'static,
) -> [Case; 2] {
    let alone = move || {
        let words = (Word(AtomicU64::new(0)), Word(AtomicU64::new(0)));
        let (first, second) = black_box((&words.0.0, &words.1.0));
        Ok(rate.nanoseconds(sample(|| chunk_of(|number| operation(first, second, number)))))
    };
    let misses = Rc::clone(misses);
    let behind = move || {
        let words = (Word(AtomicU64::new(0)), Word(AtomicU64::new(0)));
        let (first, second) = black_box((&words.0.0, &words.1.0));
        let mut stores = Vec::new();
        let mut with = Vec::new();
        // In turns: memory is what neighbours disturb most.
        for _ in 0..9 {
            stores.push(chunk_of(|_| misses.store()));
            with.push(chunk_of(|number| {
                misses.store();
                operation(first, second, number);
            }));
        }
        stores.sort_unstable();
        with.sort_unstable();
        Ok(rate.nanoseconds(per_operation(with[4]) - per_operation(stores[4])))
    };
    [
        Case { key: keys[0], label: label.to_owned(), sample: Box::new(alone) },
        Case { key: keys[1], label: label.to_owned(), sample: Box::new(behind) },
    ]
}

#[allow(clippy::cast_precision_loss, reason = "a chunk takes far less than 2^53 ticks")]
fn per_operation(ticks: u64) -> f64 {
    ticks as f64 / CHUNK as f64
}

macro_rules! operations {
    ($rate:ident, $misses:ident: $($key:literal, $label:literal => |$first:pat_param, $second:pat_param, $number:pat_param| $body:expr;)*) => {
        vec![$(both(
            [concat!("primitive/", $key), concat!("primitive-behind-stores/", $key)],
            $label,
            $rate,
            &$misses,
            |$first: &AtomicU64, $second: &AtomicU64, $number: u64| $body,
        )),*]
    };
}

/// Every operation of the tables.
///
/// # Errors
/// When there is no memory.
pub fn cases(rate: TickRate) -> anyhow::Result<Vec<Case>> {
    let misses = Rc::new(Misses { memory: SharedMapping::new(MISSES)?, at: std::cell::Cell::new(0) });
    let cases = operations! { rate, misses:
        "nothing", "empty loop" => |_, _, number| { black_box(number); };
        "cas-local", "CAS, local" => |word, _, _| { black_box(local_compare_exchange(word, 0, 0)); };
        "cas-sync", "CAS, synchronised (LOCK)" => |word, _, _| {
            let _ = black_box(word.compare_exchange(0, 0, Ordering::SeqCst, Ordering::SeqCst));
        };
        "xadd-local", "fetch-and-add, local" => |word, _, _| { black_box(local_add(word, 24)); };
        "xadd-sync", "fetch-and-add, synchronised (LOCK)" => |word, _, _| {
            black_box(word.fetch_add(24, Ordering::SeqCst));
        };
        "preempt", "preemption disable and enable (a count up and down)" => |count, _, _| {
            add_one(count, 1);
            compiler_fence(Ordering::SeqCst);
            add_one(count, -1);
        };
        "preempt-cas-local", "preemption disabled, CAS local (table V)" => |count, word, _| {
            add_one(count, 1);
            black_box(local_compare_exchange(word, 0, 0));
            add_one(count, -1);
        };
        "seqlock", "sequence lock, read side" => |sequence, word, _| { black_box(read_seqlock(sequence, word)); };
        "seqlock-cas-sync", "sequence lock read, CAS synchronised (table IV)" => |sequence, word, _| {
            black_box(read_seqlock(sequence, sequence));
            let _ = black_box(word.compare_exchange(0, 0, Ordering::SeqCst, Ordering::SeqCst));
        };
        "spin-lock", "spin lock and unlock, no contention (table III, without disabling interrupts)" => |lock, word, number| {
            while lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                std::hint::spin_loop();
            }
            word.store(number, Ordering::Relaxed);
            lock.store(0, Ordering::Release);
        };
        "rdtsc", "rdtsc" => |_, _, _| { black_box(ticks()); };
        "rdtscp", "rdtscp" => |_, _, _| {
            let mut cpu = 0;
            // SAFETY: every x86-64 processor of the last fifteen years has it.
            black_box(unsafe { __rdtscp(&raw mut cpu) });
        };
        "lfence-rdtsc", "lfence; rdtsc" => |_, _, _| {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_lfence() };
            black_box(ticks());
        };
        "lfence", "lfence" => |_, _, _| {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_lfence() };
        };
        "sfence", "sfence" => |_, _, _| {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_sfence() };
        };
        "mfence", "mfence" => |_, _, _| {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_mfence() };
        };
        "clock-gettime", "clock_gettime(CLOCK_MONOTONIC)" => |_, _, _| {
            black_box(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic));
        };
    };
    Ok(cases.into_iter().flatten().collect())
}

#[inline(always)]
fn read_seqlock(sequence: &AtomicU64, word: &AtomicU64) -> u64 {
    loop {
        let before = sequence.load(Ordering::Acquire);
        let value = word.load(Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Acquire);
        if before & 1 == 0 && sequence.load(Ordering::Relaxed) == before {
            return value;
        }
    }
}
