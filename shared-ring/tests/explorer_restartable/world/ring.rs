//! A CPU's ring as producers and the consumer see it, and the thread that runs, as the kernel restarts it.

use super::{Area, State, World};
use shared_ring::host::memory::RingMemory;
use shared_ring::layout::RING_WRITE_COUNT;
use shared_ring::restartable::{RestartableThread, publish_by_steps};
use shared_ring::storage::Storage;
use std::cell::Cell;

/// A CPU's ring as its producer and its consumer see it.
#[derive(Clone, Copy)]
pub struct Ring {
    pub world: &'static World,
    pub cpu: usize,
}

impl Ring {
    pub fn word(&self, offset: usize) -> &Cell<u64> {
        assert_eq!(offset % 8, 0, "words are aligned");
        &self.world.rings[self.cpu][offset / 8]
    }
}

impl Storage for Ring {
    unsafe fn load(&self, offset: usize) -> u64 {
        self.world.step();
        self.word(offset).get()
    }

    unsafe fn load_acquire(&self, offset: usize) -> u64 {
        self.world.step();
        self.word(offset).get()
    }

    unsafe fn store(&self, offset: usize, value: u64) {
        self.world.step();
        self.word(offset).set(value);
    }

    unsafe fn store_release(&self, offset: usize, value: u64) {
        self.world.step();
        self.word(offset).set(value);
    }

    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.world.step();
        let is_current = self.word(offset).get() == current;
        if is_current {
            self.word(offset).set(new);
        }
        is_current
    }

    unsafe fn compare_exchange_shared(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { Storage::compare_exchange(self, offset, current, new) }
    }

    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        self.world.step();
        self.world.counted(self.cpu, offset);
        self.word(offset).replace(self.word(offset).get() + value)
    }

    fn fence_release(&self) {}

    unsafe fn write(&self, _: usize, _: &[u8]) {
        unreachable!("restartable producers write by sequences");
    }
}

impl RingMemory for Ring {
    fn size(&self) -> usize {
        self.world.rings[self.cpu].len() * 8
    }

    fn load(&self, offset: usize) -> u64 {
        self.world.step();
        self.word(offset).get()
    }

    fn store(&self, offset: usize, value: u64) {
        self.world.step();
        self.word(offset).set(value);
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        // Two steps, so that something can happen in the middle of a copy.
        let middle = (out.len() / 16) * 8;
        for (at, chunk) in out.chunks_mut(8).enumerate() {
            if at == 0 || at * 8 == middle {
                self.world.step();
            }
            chunk.copy_from_slice(&self.word(offset + at * 8).get().to_le_bytes()[..chunk.len()]);
        }
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.world.step();
        let is_current = self.word(offset).get() == current;
        if is_current {
            self.word(offset).set(new);
        }
        is_current
    }

    fn fence_acquire(&self) {}

    fn clear(&self, offset: usize, size: usize) {
        self.world.step();
        (0..size / 8).for_each(|at| self.word(offset + at * 8).set(0));
    }
}

/// The thread that runs, as the kernel restarts it.
pub struct Kernel(pub &'static World);

impl Kernel {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.thread.get();
        change(&mut state);
        self.0.thread.set(state);
    }
}

impl RestartableThread<Ring> for Kernel {
    fn begin(&self) -> Option<u32> {
        self.0.step();
        self.change(|state| state.area = Area::Witness);
        self.0.step();
        Some(self.0.thread.get().cpu as u32)
    }

    unsafe fn publish(&self, ring: &Ring, to: usize, words: &[u64], position: u64) -> bool {
        let world = self.0;
        world.step();
        // One instruction: the witness becomes the sequence.
        let is_undisturbed = || world.thread.get().area == Area::Witness;
        let mut disturbed = world.thread.get().disturbed;
        let witness = is_undisturbed();
        if witness {
            self.change(|state| state.area = Area::Sequence);
        }
        publish_by_steps(
            to,
            words,
            position,
            || witness,
            |offset, word| {
                world.step();
                if world.thread.get().disturbed != disturbed {
                    disturbed = u64::MAX;
                    return false;
                }
                if offset == RING_WRITE_COUNT {
                    world.positioned(ring, to, words, word);
                }
                ring.word(offset).set(word);
                true
            },
        )
    }

    unsafe fn count(&self, ring: &Ring, counter: usize) -> bool {
        self.0.step();
        if self.0.thread.get().area != Area::Witness {
            return false;
        }
        self.change(|state| state.area = Area::Sequence);
        let disturbed = self.0.thread.get().disturbed;
        self.0.step();
        if self.0.thread.get().disturbed != disturbed {
            return false;
        }
        self.0.counted(ring.cpu, counter);
        ring.word(counter).set(ring.word(counter).get() + 1);
        true
    }

    fn end(&self) {
        self.0.step();
        self.change(|state| state.area = Area::Clear);
    }
}
