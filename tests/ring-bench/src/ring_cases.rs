//! Our ring, as a probe calls it: one function call per event, payload and settings not known to the compiler.
#![allow(unsafe_code)] // Rings live in memory that is mapped here.

use crate::sampling::{CHUNK, Case, TickRate, chunk_of, sample, ticks};
use anyhow::Context;
use clock_sync::entry::{ENTRY_SIZE, Reader, Writer};
use clock_sync::relation::Relation;
use rustix::mm::{MapFlags, ProtFlags};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{Geometry, Mode, RING_LOST_FULL, RING_LOST_WRAPPED, RING_WRITE_COUNT};
use shared_ring::producer::Producer;
use shared_ring::storage::{CpuLocal, Smp, Storage};
use std::hint::black_box;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The event id that all records bear.
pub const EVENT_ID: u16 = 7;

/// The rings of the main table: 4 sub-buffers of 256 KiB, which is what LTTng-UST is given too.
pub const SUB_BUFFER_SIZE: u64 = 256 << 10;
/// Sub-buffers of a ring.
pub const SUB_BUFFERS: u32 = 4;

/// A shared mapping, all of it present, as the trace region is.
#[derive(Debug)]
pub struct SharedMapping {
    base: *mut u8,
    size: usize,
}

// SAFETY: the mapping belongs to the process; its users access it atomically.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// `size` bytes of zeros.
    ///
    /// # Errors
    /// When the kernel has no memory.
    pub fn new(size: usize) -> anyhow::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags) }
                .with_context(|| format!("cannot map {size} bytes"))?;
        Ok(Self { base: base.cast(), size })
    }

    /// Address of the first byte; page-aligned.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// Clears all of it. Nobody else uses it meanwhile.
    pub fn clear(&self) {
        // SAFETY: the mapping is this value's own, writable and `size` bytes long.
        unsafe { ptr::write_bytes(self.base, 0, self.size) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nobody uses it any more. Failure leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.size) };
    }
}

/// A ring and its memory.
#[derive(Debug)]
pub struct Ring {
    /// The memory.
    pub mapping: Arc<SharedMapping>,
    /// Its sub-buffers.
    pub geometry: Geometry,
    /// What happens when it is full.
    pub mode: Mode,
}

impl Ring {
    /// A ring of `sub_buffers` sub-buffers of `sub_buffer_size` bytes.
    ///
    /// # Errors
    /// When the layout does not allow it, or there is no memory.
    pub fn new(sub_buffer_size: u64, sub_buffers: u32, mode: Mode) -> anyhow::Result<Self> {
        let geometry = Geometry::new(sub_buffer_size, sub_buffers).context("the ring's sub-buffers")?;
        Ok(Self { mapping: Arc::new(SharedMapping::new(geometry.ring_size(mode))?), geometry, mode })
    }

    /// A producer with the atomics of one CPU. Only the calling thread uses the ring.
    pub fn local(&self) -> Producer<CpuLocal> {
        // SAFETY: the ring has the mapping for itself, which outlives the producer in all cases of this program; one
        // thread records.
        unsafe { Producer::new(CpuLocal::new(self.mapping.base()), self.geometry, self.mode) }
    }

    /// A producer with the atomics that threads need.
    pub fn smp(&self) -> Producer<Smp> {
        // SAFETY: as for `local`; any thread may record.
        unsafe { Producer::new(Smp::new(self.mapping.base()), self.geometry, self.mode) }
    }

    /// The ring as its consumer sees it.
    pub fn host_memory(&self) -> HostMemory {
        let owner: Arc<SharedMapping> = Arc::clone(&self.mapping);
        // SAFETY: the owner keeps the mapping, and while a consumer is used all access is atomic.
        unsafe { HostMemory::new(self.mapping.base(), self.geometry.ring_size(self.mode), owner) }
    }

    fn word(&self, offset: usize) -> u64 {
        // SAFETY: a control word of the ring: aligned, inside the mapping, accessed atomically.
        unsafe { AtomicU64::from_ptr(self.mapping.base().add(offset).cast()) }.load(Ordering::Relaxed)
    }

    /// Makes room for `bytes` in discard mode by beginning anew; nobody else uses the ring.
    fn make_room(&self, bytes: u64) {
        if self.mode == Mode::Discard && self.word(RING_WRITE_COUNT) + bytes > self.geometry.data_size() {
            self.mapping.clear();
        }
    }

    /// Fails if records were lost: a benchmark of losing records is not one of recording them.
    ///
    /// # Errors
    /// When the ring counted lost records.
    pub fn check_nothing_lost(&self) -> anyhow::Result<()> {
        let (full, wrapped) = (self.word(RING_LOST_FULL), self.word(RING_LOST_WRAPPED));
        anyhow::ensure!(full + wrapped == 0, "records were lost while measuring: {full} full, {wrapped} wrapped");
        Ok(())
    }
}

/// One event of `WORDS` words, as a tracepoint's probe records it.
#[inline(never)]
pub fn probe<S: Storage, const WORDS: usize>(producer: &Producer<S>, now: impl Fn() -> u64, value: u64) -> bool {
    let mut words = [[0; 8]; WORDS];
    for (word, number) in words.iter_mut().zip(0..) {
        *word = (value ^ number).to_le_bytes();
    }
    producer.record(now, EVENT_ID, words.as_flattened())
}

/// Ticks of one event on `ring`, in discard mode with room for it.
pub fn sample_ring<S: Storage, const WORDS: usize>(
    ring: &Ring,
    producer: &Producer<S>,
    now: impl Fn() -> u64 + Copy,
) -> f64 {
    // Room for the chunk's records, the packet headers and the padding at the ends of sub-buffers.
    let room = (CHUNK * (8 + 8 * WORDS as u64)) * 5 / 4;
    sample(|| {
        ring.make_room(room);
        let producer = black_box(producer);
        chunk_of(|number| {
            black_box(probe::<S, WORDS>(producer, now, number));
        })
    })
}

/// A trace clock entry with the relation of a vCPU whose TSC is scaled and moved.
struct ClockEntry {
    _mapping: SharedMapping,
    reader: Reader,
}

impl ClockEntry {
    fn new() -> anyhow::Result<Self> {
        let mapping = SharedMapping::new(ENTRY_SIZE.next_multiple_of(4096))?;
        let relation = Relation { hw_base: ticks(), trace_base: 1 << 40, ..Relation::IDENTITY };
        // SAFETY: the entry lies inside the mapping, which lives as long as the reader, and has no other writer.
        let reader = unsafe {
            Writer::new(mapping.base()).publish(&relation);
            Reader::new(mapping.base())
        };
        Ok(Self { _mapping: mapping, reader })
    }
}

fn ring_case<const WORDS: usize>(
    key: &'static str,
    label: &str,
    rate: TickRate,
    mode: Mode,
    smp: bool,
) -> anyhow::Result<Case> {
    let ring = Ring::new(SUB_BUFFER_SIZE, SUB_BUFFERS, mode)?;
    let sample = move || {
        let took = if smp {
            sample_ring::<_, WORDS>(&ring, &ring.smp(), ticks)
        } else {
            sample_ring::<_, WORDS>(&ring, &ring.local(), ticks)
        };
        ring.check_nothing_lost()?;
        Ok(rate.nanoseconds(took))
    };
    Ok(Case { key, label: label.to_owned(), sample: Box::new(sample) })
}

/// Our ring with every kind of atomics, mode and payload; and the masks that stand before it.
///
/// # Errors
/// When there is no memory.
pub fn cases(rate: TickRate) -> anyhow::Result<Vec<Case>> {
    const D: Mode = Mode::Discard;
    const F: Mode = Mode::FlightRecorder;
    let mut cases = vec![
        ring_case::<2>("ring/discard/local/16", "strata, discard, CPU-local, 16 B", rate, D, false)?,
        ring_case::<4>("ring/discard/local/32", "strata, discard, CPU-local, 32 B", rate, D, false)?,
        ring_case::<8>("ring/discard/local/64", "strata, discard, CPU-local, 64 B", rate, D, false)?,
        ring_case::<2>("ring/discard/smp/16", "strata, discard, SMP, 16 B", rate, D, true)?,
        ring_case::<4>("ring/discard/smp/32", "strata, discard, SMP, 32 B", rate, D, true)?,
        ring_case::<8>("ring/discard/smp/64", "strata, discard, SMP, 64 B", rate, D, true)?,
        ring_case::<2>("ring/flight/local/16", "strata, flight recorder, CPU-local, 16 B", rate, F, false)?,
        ring_case::<4>("ring/flight/local/32", "strata, flight recorder, CPU-local, 32 B", rate, F, false)?,
        ring_case::<8>("ring/flight/local/64", "strata, flight recorder, CPU-local, 64 B", rate, F, false)?,
        ring_case::<2>("ring/flight/smp/16", "strata, flight recorder, SMP, 16 B", rate, F, true)?,
        ring_case::<4>("ring/flight/smp/32", "strata, flight recorder, SMP, 32 B", rate, F, true)?,
        ring_case::<8>("ring/flight/smp/64", "strata, flight recorder, SMP, 64 B", rate, F, true)?,
    ];
    let (ring, clock) = (Ring::new(SUB_BUFFER_SIZE, SUB_BUFFERS, D)?, ClockEntry::new()?);
    cases.push(Case {
        key: "ring/trace-clock/local/16",
        label: "strata, discard, CPU-local, 16 B, guest trace clock".to_owned(),
        sample: Box::new(move || {
            // All of it, so that the closure keeps the mapping too.
            let clock = &clock;
            let now = || clock.reader.now(ticks);
            let took = sample_ring::<_, 2>(&ring, &ring.local(), now);
            ring.check_nothing_lost()?;
            Ok(rate.nanoseconds(took))
        }),
    });
    cases.push(mask_case("mask/off", "strata, nothing enabled", rate, 0)?);
    cases.push(mask_case("mask/class", "strata, other classes enabled", rate, !(1 << CLASS))?);
    Ok(cases)
}

/// The class that the masked events belong to.
const CLASS: u32 = 5;

/// What stands before every probe: one word is read and tested.
fn mask_case(key: &'static str, label: &str, rate: TickRate, mask: u64) -> anyhow::Result<Case> {
    let word = AtomicU64::new(mask);
    let ring = Ring::new(SUB_BUFFER_SIZE, SUB_BUFFERS, Mode::Discard)?;
    let sample = move || {
        let (word, producer) = (black_box(&word), ring.local());
        let took = sample(|| {
            chunk_of(|number| {
                if word.load(Ordering::Relaxed) >> CLASS & 1 == 1 {
                    probe::<_, 2>(&producer, ticks, number);
                }
            })
        });
        anyhow::ensure!(ring.word(RING_WRITE_COUNT) == 0, "a masked event was recorded");
        Ok(rate.nanoseconds(took))
    };
    Ok(Case { key, label: label.to_owned(), sample: Box::new(sample) })
}

/// What nothing that stamps and stores an event can beat: the clock alone, and the stores alone.
///
/// # Errors
/// When there is no memory.
pub fn floor_cases(rate: TickRate) -> anyhow::Result<Vec<Case>> {
    let rdtsc = move || {
        Ok(rate.nanoseconds(sample(|| {
            chunk_of(|_| {
                black_box(ticks());
            })
        })))
    };
    let mut cases = vec![Case { key: "floor/rdtsc", label: "one rdtsc".to_owned(), sample: Box::new(rdtsc) }];
    cases.push(minimum_case(rate)?);
    cases.push(copy_case::<2>("floor/copy/16", rate)?);
    cases.push(copy_case::<4>("floor/copy/32", rate)?);
    cases.push(copy_case::<8>("floor/copy/64", rate)?);
    Ok(cases)
}

/// The instructions without which no ring of this kind records an event, and nothing else: read the clock, compare and
/// exchange the write count, store header and payload, add to a commit count. No loss, no sub-buffers, no consumer.
fn minimum_case(rate: TickRate) -> anyhow::Result<Case> {
    let buffer = SharedMapping::new(4096 + (1 << 20))?;
    let sample = move || {
        // SAFETY: the counts lie in the buffer's first page, which nothing else uses; only this thread records.
        let storage = unsafe { CpuLocal::new(buffer.base()) };
        let took = sample(|| {
            let storage = black_box(&storage);
            chunk_of(|number| {
                black_box(record_minimum(storage, number));
            })
        });
        // The mapping stays with the closure.
        black_box(&buffer);
        Ok(rate.nanoseconds(took))
    };
    let label = "rdtsc, CAS, store of 24 B, add: nothing else".to_owned();
    Ok(Case { key: "floor/minimum", label, sample: Box::new(sample) })
}

#[inline(never)]
#[allow(clippy::cast_possible_truncation, reason = "an offset of less than 2^20")]
fn record_minimum(storage: &CpuLocal, value: u64) -> bool {
    const COMMIT_COUNT: usize = 64;
    // SAFETY: the offsets are those of two counts, and of 24 bytes in the mebibyte behind their page, aligned to 8.
    unsafe {
        let write = storage.load(0);
        let time = ticks();
        if !storage.compare_exchange(0, write, write + 24) {
            return false;
        }
        // Half of the buffer, so that no record leaves it.
        let at = 4096 + (write & ((1 << 19) - 1)) as usize;
        storage.store_release(at, time << 32 | u64::from(EVENT_ID));
        storage.write(at + 8, [value.to_le_bytes(), (!value).to_le_bytes()].as_flattened());
        storage.fetch_add(COMMIT_COUNT, 24);
    }
    true
}

/// Copies payload after payload into a buffer as large as the rings: `memcpy`, and nothing else.
fn copy_case<const WORDS: usize>(key: &'static str, rate: TickRate) -> anyhow::Result<Case> {
    let size = 1 << 20;
    let buffer = SharedMapping::new(size)?;
    let mut at = 0;
    let sample = move || {
        let took = sample(|| {
            chunk_of(|number| {
                copy_payload::<WORDS>(buffer.base().wrapping_add(at), number);
                at += 8 * WORDS;
                if at + 8 * WORDS > size {
                    at = 0;
                }
            })
        });
        Ok(rate.nanoseconds(took))
    };
    Ok(Case { key, label: format!("copy of {} B, no clock", 8 * WORDS), sample: Box::new(sample) })
}

#[inline(never)]
fn copy_payload<const WORDS: usize>(to: *mut u8, value: u64) {
    let mut words = [[0_u8; 8]; WORDS];
    for (word, number) in words.iter_mut().zip(0..) {
        *word = (value ^ number).to_le_bytes();
    }
    let bytes = words.as_flattened();
    // SAFETY: the one caller keeps `to..to + 8 * WORDS` inside its buffer, which nobody else uses.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
}
