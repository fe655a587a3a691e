//! A vCPU's clock entry: numbered slots that the VMM writes and the guest reads without ever waiting.
//!
//! An entry holds a number and two slots; slot `number % 2` is current. The writer fills the other slot and then
//! publishes the next number. A reader takes the number, reads the current slot and the counter, and keeps the result
//! if the number has not changed. A reader that is descheduled for one update reads a slot that nobody touched; for two
//! or more, the number tells, and it looks again. The two bare slots of Desnoyers and Dagenais (*Synchronization for
//! Fast and Reentrant Operating System Kernel Tracing*, section 5.3) lack the number: there the update runs on the
//! reader's own CPU, here on another one that can outrun it.
//!
//! | offset | what |
//! |---|---|
//! | 0 | number (`u64`), 0 before the first update: the entry is not valid yet |
//! | 64, 128 | slots: `hw_base`, `trace_base`, `mult` (`u64` each), `shift`, `hw_bits` (`u32` each) |
#![allow(unsafe_code)] // The entry lies in memory shared with another operating system: raw pointers.

use crate::relation::Relation;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Size of an entry, bytes.
pub const ENTRY_SIZE: usize = 256;
/// Offset of the number.
const NUMBER: usize = 0;
/// Offset of slot 0.
const SLOTS: usize = 64;
/// Distance between the slots: a cache line.
const SLOT_STRIDE: usize = 64;

/// The words of one entry, and the orders in which they are read and written.
///
/// [`Reader`] and [`Writer`] are written over this trait, so that a model checker can run the very code that guests and
/// VMMs run, on memory of its own. Offsets are multiples of 8 below [`ENTRY_SIZE`].
///
/// ```
/// use clock_sync::entry::{ENTRY_SIZE, EntryMemory, Reader, Writer};
/// use clock_sync::relation::Relation;
/// use std::sync::atomic::{AtomicU64, Ordering, fence};
///
/// #[derive(Default)]
/// struct Words([AtomicU64; ENTRY_SIZE / 8]);
///
/// impl EntryMemory for &Words {
///     fn load(&self, offset: usize) -> u64 {
///         self.0[offset / 8].load(Ordering::Relaxed)
///     }
///     fn load_acquire(&self, offset: usize) -> u64 {
///         self.0[offset / 8].load(Ordering::Acquire)
///     }
///     fn store(&self, offset: usize, value: u64) {
///         self.0[offset / 8].store(value, Ordering::Relaxed);
///     }
///     fn store_release(&self, offset: usize, value: u64) {
///         self.0[offset / 8].store(value, Ordering::Release);
///     }
///     fn acquire_fence(&self) {
///         fence(Ordering::Acquire);
///     }
///     fn release_fence(&self) {
///         fence(Ordering::Release);
///     }
/// }
///
/// let words = Words::default();
/// assert_eq!(Writer::over(&words).publish(&Relation::IDENTITY), 1);
/// assert_eq!(Reader::over(&words).now(|| 5), 5);
/// ```
pub trait EntryMemory {
    /// Reads the word at `offset` with no ordering.
    fn load(&self, offset: usize) -> u64;
    /// Reads the word at `offset` before everything that follows.
    fn load_acquire(&self, offset: usize) -> u64;
    /// Writes the word at `offset` with no ordering.
    fn store(&self, offset: usize, value: u64);
    /// Writes the word at `offset` after everything that precedes.
    fn store_release(&self, offset: usize, value: u64);
    /// Keeps earlier loads before later loads and stores.
    fn acquire_fence(&self);
    /// Keeps earlier loads and stores before later stores.
    fn release_fence(&self);
}

/// An entry in memory that is shared with another operating system: what [`Reader::new`] and [`Writer::new`] work on.
/// For an example see [`Reader`].
#[derive(Clone, Copy, Debug)]
pub struct MappedEntry {
    base: *mut u8,
}

// SAFETY: all access is atomic; `Reader::new` and `Writer::new`, which make it, bind its callers.
unsafe impl Send for MappedEntry {}
// SAFETY: as above.
unsafe impl Sync for MappedEntry {}

impl MappedEntry {
    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the constructors' callers vouch for `ENTRY_SIZE` live, aligned bytes; offsets here are below that.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }
}

impl EntryMemory for MappedEntry {
    #[inline(always)]
    fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn load_acquire(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn store_release(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    #[inline(always)]
    fn acquire_fence(&self) {
        fence(Ordering::Acquire);
    }

    #[inline(always)]
    fn release_fence(&self) {
        fence(Ordering::Release);
    }
}

/// Offset in the entry of word `word` of the slot that update `number` fills.
#[inline(always)]
const fn slot(number: u64, word: usize) -> usize {
    SLOTS + (number & 1) as usize * SLOT_STRIDE + word * 8
}

/// The guest's side.
///
/// ```
/// use clock_sync::entry::{ENTRY_SIZE, Reader, Writer};
/// use clock_sync::relation::Relation;
///
/// let mut memory = [0_u64; ENTRY_SIZE / 8];
/// let base = memory.as_mut_ptr().cast::<u8>();
/// // SAFETY: the memory is aligned, outlives both, and is used by them only.
/// let (reader, mut writer) = unsafe { (Reader::new(base), Writer::new(base)) };
/// assert!(!reader.is_valid());
///
/// // The guest's counter is 100 ticks behind the trace clock.
/// writer.publish(&Relation::from_tsc_offset(-100, 1_000));
/// assert_eq!(reader.now(|| 950), 1_050);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reader<M = MappedEntry> {
    memory: M,
}

impl Reader {
    /// A reader of the entry at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 8; the [`ENTRY_SIZE`] bytes there stay readable while the reader is used and are written
    /// through a [`Writer`] only.
    #[must_use]
    pub const unsafe fn new(base: *const u8) -> Self {
        Self { memory: MappedEntry { base: base.cast_mut() } }
    }
}

impl<M: EntryMemory> Reader<M> {
    /// A reader of the entry that `memory` holds.
    #[must_use]
    pub const fn over(memory: M) -> Self {
        Self { memory }
    }

    /// Whether the entry has ever been written. Until then the trace clock is not known.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.memory.load_acquire(NUMBER) != 0
    }

    /// The trace clock, ticks. `counter` reads the hardware counter of the vCPU whose entry this is.
    ///
    /// Any context, NMI included. Takes another look only when the relation changed meanwhile, so it never waits for
    /// the writer. The loads pair with the release operations of [`Writer::publish`].
    #[inline(always)]
    pub fn now(&self, counter: impl Fn() -> u64) -> u64 {
        self.now_and(|| (counter(), ())).0
    }

    /// [`now`](Self::now) with what else `counter` says in the same reading: which CPU's counter it is.
    #[inline(always)]
    pub fn now_and<T>(&self, counter: impl Fn() -> (u64, T)) -> (u64, T) {
        loop {
            let number = self.memory.load_acquire(NUMBER);
            let relation = self.relation(number);
            let (ticks, besides) = counter();
            let time = relation.trace_time(ticks);
            // Keeps the loads of the slot before the second load of the number.
            self.memory.acquire_fence();
            if self.memory.load(NUMBER) == number {
                return (time, besides);
            }
        }
    }

    /// The relation in the slot of update `number`, as its words are right now: a mixture when the writer is filling
    /// it, which is why [`now`](Self::now) looks at the number again.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the last word holds two halves")]
    pub fn relation(&self, number: u64) -> Relation {
        let word = |index| self.memory.load(slot(number, index));
        let widths = word(3);
        Relation {
            hw_base: word(0),
            trace_base: word(1),
            mult: word(2),
            shift: widths as u32 & 63,
            hw_bits: (widths >> 32) as u32,
        }
    }
}

/// The VMM's side; one writer per entry. For an example see [`Reader`].
#[derive(Debug)]
pub struct Writer<M = MappedEntry> {
    memory: M,
    /// Number of the last update: the writer's own, which is not read back from where others may have changed it.
    number: u64,
}

impl Writer {
    /// A writer of the entry at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 8, the [`ENTRY_SIZE`] bytes there, zeroed, stay writable while the writer is used, and nobody
    /// else writes them.
    #[must_use]
    pub const unsafe fn new(base: *mut u8) -> Self {
        Self::over(MappedEntry { base })
    }
}

impl<M: EntryMemory> Writer<M> {
    /// The writer of the entry that `memory` holds, zeroed; nobody else writes it.
    #[must_use]
    pub const fn over(memory: M) -> Self {
        Self::after(memory, 0)
    }

    /// The writer of an entry that had another writer before: its updates are numbered from `number + 1` on. The last
    /// writer's must all be below, so that no reader takes an update for one that it has begun to read.
    #[must_use]
    pub const fn after(memory: M, number: u64) -> Self {
        Self { memory, number }
    }

    /// Publishes a new relation. Readers use the old one or the new one, never a mixture. Returns the entry's number,
    /// which counts updates from 1.
    pub fn publish(&mut self, relation: &Relation) -> u64 {
        let number = self.number.wrapping_add(1);
        // The slot about to be filled was current two updates ago: whoever still reads it must be able to see that the
        // number has moved on since, so the last number comes before these stores.
        self.memory.release_fence();
        let widths = u64::from(relation.shift) | u64::from(relation.hw_bits) << 32;
        for (index, word) in [relation.hw_base, relation.trace_base, relation.mult, widths].into_iter().enumerate() {
            self.memory.store(slot(number, index), word);
        }
        self.memory.store_release(NUMBER, number);
        self.number = number;
        number
    }
}

#[cfg(test)]
mod tests {
    //! Shows: Clock readers never see half an update.

    use super::*;
    use std::cell::Cell;

    fn entry() -> Box<[u64; ENTRY_SIZE / 8]> {
        Box::new([0; ENTRY_SIZE / 8])
    }

    fn both(memory: &mut [u64; ENTRY_SIZE / 8]) -> (Reader, Writer) {
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the callers keep the memory alive and use it through these two only.
        unsafe { (Reader::new(base), Writer::new(base)) }
    }

    #[test]
    fn reader_follows_the_last_published_relation() {
        let mut memory = entry();
        let (reader, mut writer) = both(&mut memory);

        let before = reader.is_valid();
        let first = writer.publish(&Relation::from_tsc_offset(-100, 1000));
        let early = reader.now(|| 950);
        let second = writer.publish(&Relation::from_tsc_offset(50, 2000));
        let late = reader.now(|| 2150);

        assert!(!before && reader.is_valid());
        assert_eq!((first, early, second, late), (1, 1050, 2, 2100));
    }

    #[test]
    fn writer_after_another_one_goes_on_numbering_whatever_the_entry_says() {
        let mut memory = entry();
        memory[0] = u64::MAX;
        let (reader, _) = both(&mut memory);
        let mut writer = Writer::after(MappedEntry { base: memory.as_mut_ptr().cast() }, 40);

        let numbers = [7, 9].map(|base| writer.publish(&Relation::from_tsc_offset(0, base)));

        assert_eq!((numbers, reader.now(|| 5)), ([41, 42], 5));
    }

    #[test]
    fn reader_that_is_overtaken_by_two_updates_looks_again() {
        let mut memory = entry();
        let (reader, mut writer) = both(&mut memory);
        writer.publish(&Relation::IDENTITY);
        let writer = Cell::new(Some(writer));
        let counter = || {
            // The first reading of the counter is interrupted by two updates.
            if let Some(mut writer) = writer.take() {
                writer.publish(&Relation::from_tsc_offset(1000, 0));
                writer.publish(&Relation::from_tsc_offset(500, 0));
            }
            2000
        };

        assert_eq!(reader.now(counter), 1500);
    }

    #[test]
    fn reader_beside_a_busy_writer_never_sees_a_mixture() {
        let mut memory = entry();
        let (reader, mut writer) = both(&mut memory);
        // Every published relation gives the same time for the counter value 0.
        let relation = |step: u64| Relation { hw_base: step, trace_base: 1_000_000 + step, ..Relation::IDENTITY };
        writer.publish(&relation(0));

        let wrong = std::thread::scope(|scope| {
            let readings = scope.spawn(move || (0..200_000).filter(|_| reader.now(|| 0) != 1_000_000).count());
            for step in 1..100_000 {
                writer.publish(&relation(step));
            }
            readings.join().unwrap()
        });

        assert_eq!(wrong, 0);
    }
}
