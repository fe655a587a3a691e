//! The ring's memory: what producers and the consumer see of the world.
//!
//! Each access asks the world first whether something happens before it, then takes place, and tells the oracle. Those of a
//! context that has died, while it is taken down, do nothing.

use super::World;
use shared_ring::host::memory::RingMemory;
use shared_ring::layout::{
    RING_HEADER_SIZE, RING_LOST_FULL, RING_LOST_TOO_LARGE, RING_LOST_WRAPPED, RING_READ_COUNT, RING_SUB_BUFFER_TABLE,
    RING_WRITE_COUNT, SUB_BUFFER_ENTRY_SIZE,
};
use shared_ring::storage::Storage;
use std::cell::Cell;

/// A view of the memory, for one producer or consumer.
#[derive(Clone, Copy)]
pub struct Memory(pub &'static World);

impl Memory {
    fn cell(&self, offset: usize) -> &Cell<u64> {
        assert_eq!(offset % 8, 0, "words are aligned");
        &self.0.words[offset / 8]
    }

    fn data_words(offset: usize, size: usize) -> core::ops::Range<usize> {
        let first = (offset - RING_HEADER_SIZE) / 8;
        first..first + size.div_ceil(8)
    }

    /// Tells the oracle about a store by the running context.
    fn touched(&self, offset: usize, size: usize) {
        if offset >= RING_HEADER_SIZE {
            self.0.oracle.borrow_mut().touches(self.0.current.get(), Self::data_words(offset, size));
        }
    }

    /// Tells the oracle about an addition or store of the running context to a control word.
    fn counted(&self, offset: usize) {
        let Some(current) = self.0.current.get() else { return };
        let mut oracle = self.0.oracle.borrow_mut();
        let index = (offset.wrapping_sub(RING_SUB_BUFFER_TABLE)) / SUB_BUFFER_ENTRY_SIZE;
        if [RING_LOST_FULL, RING_LOST_WRAPPED, RING_LOST_TOO_LARGE].contains(&offset) {
            oracle.lost(current, offset, self.cell(RING_WRITE_COUNT).get());
        } else if oracle.attempts[current].whole && offset == self.0.geometry.commit_count_offset(index) {
            oracle.committed(current);
        }
    }
}

impl Storage for Memory {
    unsafe fn load(&self, offset: usize) -> u64 {
        if self.0.dying.get() {
            return self.cell(offset).get();
        }
        self.0.step();
        let value = self.cell(offset).get();
        if let (Some(current), RING_WRITE_COUNT) = (self.0.current.get(), offset) {
            self.0.oracle.borrow_mut().attempts[current].seen = value;
        }
        value
    }

    unsafe fn load_acquire(&self, offset: usize) -> u64 {
        if self.0.dying.get() {
            return self.cell(offset).get();
        }
        self.0.step();
        self.cell(offset).get()
    }

    unsafe fn store(&self, offset: usize, value: u64) {
        if self.0.dying.get() {
            return;
        }
        self.0.step();
        self.touched(offset, 8);
        self.cell(offset).set(value);
        self.counted(offset);
    }

    unsafe fn store_release(&self, offset: usize, value: u64) {
        if self.0.dying.get() {
            return;
        }
        self.0.step();
        self.touched(offset, 8);
        self.cell(offset).set(value);
        if let (Some(current), true) = (self.0.current.get(), offset >= RING_HEADER_SIZE) {
            self.0.oracle.borrow_mut().attempts[current].whole = true;
        }
    }

    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        if self.0.dying.get() {
            return true;
        }
        self.0.step();
        let cell = self.cell(offset);
        if cell.get() != current {
            return false;
        }
        cell.set(new);
        if let (Some(attempt), true) = (self.0.current.get(), offset == RING_WRITE_COUNT) {
            self.0.oracle.borrow_mut().reserved(attempt, current, new);
        }
        true
    }

    unsafe fn compare_exchange_shared(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { Storage::compare_exchange(self, offset, current, new) }
    }

    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        if self.0.dying.get() {
            return self.cell(offset).get();
        }
        self.0.step();
        let cell = self.cell(offset);
        let before = cell.replace(cell.get().wrapping_add(value));
        self.counted(offset);
        before
    }

    fn fence_release(&self) {}

    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        // Two steps, so that something can happen in the middle of a payload.
        let middle = (bytes.len() / 16) * 8;
        for (start, part) in [(0, &bytes[..middle]), (middle, &bytes[middle..])] {
            if part.is_empty() {
                continue;
            }
            self.0.step();
            self.touched(offset + start, part.len());
            for (at, chunk) in part.chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                self.cell(offset + start + at * 8).set(u64::from_le_bytes(word));
            }
        }
        if let Some(attempt) = self.0.current.get() {
            self.0.oracle.borrow_mut().attempts[attempt].written = Some(offset);
        }
    }
}

impl RingMemory for Memory {
    fn size(&self) -> usize {
        self.0.words.len() * 8
    }

    fn load(&self, offset: usize) -> u64 {
        self.0.step();
        self.cell(offset).get()
    }

    fn store(&self, offset: usize, value: u64) {
        self.0.step();
        if offset == RING_READ_COUNT {
            self.0.oracle.borrow_mut().given_back(self.cell(offset).get(), value);
        }
        self.cell(offset).set(value);
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        // Two steps, so that something can happen in the middle of a copy.
        let middle = (out.len() / 16) * 8;
        for (at, chunk) in out.chunks_mut(8).enumerate() {
            if at == 0 || at * 8 == middle {
                self.0.step();
            }
            chunk.copy_from_slice(&self.cell(offset + at * 8).get().to_le_bytes()[..chunk.len()]);
        }
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.0.step();
        if self.cell(offset).get() != current {
            return false;
        }
        self.cell(offset).set(new);
        if offset == RING_READ_COUNT {
            self.0.advanced.set(self.0.advanced.get() + self.0.geometry.sequence(new - current));
        }
        true
    }

    fn fence_acquire(&self) {}

    fn clear(&self, offset: usize, size: usize) {
        self.0.step();
        self.0.oracle.borrow_mut().touches_as_consumer(Self::data_words(offset, size));
        for at in 0..size / 8 {
            self.cell(offset + at * 8).set(0);
        }
    }
}
