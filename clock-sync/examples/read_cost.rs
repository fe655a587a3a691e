//! What reading the trace clock costs, beside the bare counter, the system's clock, and the ways of the literature.
//!
//! All variants run in turn in one process, many short rounds each; the table shows the medians of the rounds and their
//! ratio to the bare counter's in the same round, so that a change of the machine's speed concerns all of them alike.
//! Build with `--release`. `read_cost FILE` writes them to FILE as JSON, too.
#![allow(unsafe_code)] // Entries are raw memory, and the system's clock is read by its C interface.

use clock_sync::entry::{ENTRY_SIZE, Reader, Writer};
use clock_sync::relation::Relation;
use clock_sync::tsc;
use serde_json::json;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

/// Readings of a round.
const READINGS: u32 = 20_000;
/// Rounds of each variant.
const ROUNDS: usize = 301;

/// An entry's memory, a whole number of cache lines.
#[repr(align(64))]
struct Memory([u64; ENTRY_SIZE / 8]);

fn reader(relation: &Relation) -> Reader {
    let memory = Box::leak(Box::new(Memory([0; ENTRY_SIZE / 8])));
    let base = memory.0.as_mut_ptr().cast::<u8>();
    // SAFETY: the memory is aligned, is never freed, and is used by these two only.
    let (reader, mut writer) = unsafe { (Reader::new(base), Writer::new(base)) };
    writer.publish(relation);
    reader
}

/// The relation's words under a sequence lock: readers wait while the writer is at work.
struct Seqlock {
    sequence: AtomicU64,
    words: [AtomicU64; 4],
}

impl Seqlock {
    #[inline(always)]
    fn now(&self, counter: impl Fn() -> u64) -> u64 {
        loop {
            let sequence = self.sequence.load(Ordering::Acquire);
            if sequence & 1 == 0 {
                let time = relation(&self.words).trace_time(counter());
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == sequence {
                    return time;
                }
            }
            std::hint::spin_loop();
        }
    }
}

/// Two slots and an index, without a number: right only where the update runs on the reader's own CPU.
struct TwoSlots {
    index: AtomicU64,
    slots: [[AtomicU64; 4]; 2],
}

impl TwoSlots {
    #[inline(always)]
    fn now(&self, counter: impl Fn() -> u64) -> u64 {
        let index = self.index.load(Ordering::Acquire);
        relation(&self.slots[(index & 1) as usize]).trace_time(counter())
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the last word holds two halves")]
fn relation(words: &[AtomicU64; 4]) -> Relation {
    let word = |index: usize| words[index].load(Ordering::Relaxed);
    let widths = word(3);
    let (shift, hw_bits) = (widths as u32 & 63, (widths >> 32) as u32);
    Relation { hw_base: word(0), trace_base: word(1), mult: word(2), shift, hw_bits }
}

fn words(relation: &Relation) -> [AtomicU64; 4] {
    let widths = u64::from(relation.shift) | u64::from(relation.hw_bits) << 32;
    [relation.hw_base, relation.trace_base, relation.mult, widths].map(AtomicU64::new)
}

/// Nanoseconds per reading of one round.
#[inline(never)]
fn round(read: impl Fn() -> u64) -> f64 {
    let began = Instant::now();
    for _ in 0..READINGS {
        black_box(read());
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(READINGS)
}

/// First quartile, median and third quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarters| values[(values.len() - 1) * quarters / 4])
}

fn system_clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A variant's name, and one round of it.
type Variant<'v> = (&'static str, Box<dyn Fn() -> f64 + 'v>);

fn main() -> std::io::Result<()> {
    let offset = Relation::from_tsc_offset(-1_000_000_007, tsc::read());
    let narrow =
        Relation { hw_base: tsc::read() & 0xffff_ffff, trace_base: 1 << 40, hw_bits: 32, ..Relation::IDENTITY };
    let scaled = Relation { mult: 3_000_000_019, shift: 32, ..offset };
    let (ours, ours_narrow, ours_scaled) = (reader(&offset), reader(&narrow), reader(&scaled));
    let seqlock = Seqlock { sequence: AtomicU64::new(2), words: words(&offset) };
    let two_slots = TwoSlots { index: AtomicU64::new(1), slots: [words(&offset), words(&offset)] };
    // The entries are memory that somebody else may change: the optimiser is not to look into them.
    let (seqlock, two_slots) = (black_box(&seqlock), black_box(&two_slots));
    let variants: [Variant<'_>; 9] = [
        ("rdtsc", Box::new(|| round(tsc::read))),
        ("rdtsc after lfence", Box::new(|| round(tsc::read_ordered))),
        ("clock_gettime(CLOCK_MONOTONIC)", Box::new(|| round(system_clock))),
        ("trace clock, 64-bit TSC with an offset", Box::new(|| round(|| ours.now(tsc::read)))),
        ("trace clock, extended from 32 bits", Box::new(|| round(|| ours_narrow.now(|| tsc::read() & 0xffff_ffff)))),
        ("trace clock, 64 bits and scaled", Box::new(|| round(|| ours_scaled.now(tsc::read)))),
        ("trace clock, TSC after lfence", Box::new(|| round(|| ours.now(tsc::read_ordered)))),
        ("sequence lock, 64-bit TSC", Box::new(|| round(|| seqlock.now(tsc::read)))),
        ("two slots without a number, 64-bit TSC", Box::new(|| round(|| two_slots.now(tsc::read)))),
    ];
    let mut costs = vec![Vec::with_capacity(ROUNDS); variants.len()];
    let mut ratios = costs.clone();
    for _ in 0..ROUNDS {
        let once: Vec<f64> = variants.iter().map(|(_, run)| run()).collect();
        for (index, cost) in once.iter().enumerate() {
            costs[index].push(*cost);
            ratios[index].push(cost / once[0]);
        }
    }
    println!("| reading | beside rdtsc, median (quartiles) | ns, median (quartiles) |");
    println!("|---|---:|---:|");
    let mut rows = Vec::new();
    for (((name, _), costs), ratios) in variants.iter().zip(costs).zip(ratios) {
        let (costs, ratios) = (quartiles(costs), quartiles(ratios));
        let cell = |[first, median, third]: [f64; 3]| format!("{median:.2} ({first:.2}–{third:.2})");
        println!("| {name} | {} | {} |", cell(ratios), cell(costs));
        rows.push(json!({ "reading": name, "rounds": ROUNDS, "nanoseconds": costs, "beside_rdtsc": ratios }));
    }
    match std::env::args_os().nth(1) {
        Some(file) => std::fs::write(file, json!({ "readings": rows }).to_string()),
        None => Ok(()),
    }
}
