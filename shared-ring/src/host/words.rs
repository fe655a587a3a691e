//! What only the host writes of a region, also where the guest can write it.
//!
//! A VMM maps that part read-only into its guest. Behind a device of another VMM's the guest can write all of a region. There
//! the host keeps a copy of what it wrote, takes nothing back from memory, and puts right what the guest has changed.

use crate::host::memory::{HostMemory, RegionMemory, RingMemory};
use crate::region::RegionLayout;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// A region's memory, as the host's writing side has it. Cheap to clone; clones share the copy.
///
/// ```
/// use shared_ring::host::memory::{HostMemory, RingMemory};
/// use shared_ring::host::words::HostWords;
///
/// let memory = HostMemory::private(8192);
/// let words = HostWords::kept(memory.clone(), HostMemory::private(4096));
/// words.store(16, 7);
/// memory.store(16, 8); // the guest
/// assert_eq!((words.load(16), words.restore(), memory.load(16)), (7, 1, 7));
/// ```
#[derive(Clone, Debug)]
pub struct HostWords {
    memory: HostMemory,
    /// The copy of the memory's first bytes. A lock, so that nobody compares a word while it is written.
    kept: Option<Arc<Mutex<HostMemory>>>,
}

impl HostWords {
    /// The words in `memory`, whose part that the host writes the guest cannot write.
    #[must_use]
    pub const fn protected(memory: HostMemory) -> Self {
        Self { memory, kept: None }
    }

    /// The words in `memory`; the guest can write them all. `kept` is the host's own copy of its first bytes, which are
    /// made what the copy says.
    ///
    /// # Panics
    /// When the copy is larger than the memory.
    #[must_use]
    pub fn kept(memory: HostMemory, kept: HostMemory) -> Self {
        assert!(kept.size() <= memory.size(), "the host's part lies inside the region");
        let words = Self { memory, kept: Some(Arc::new(Mutex::new(kept))) };
        words.restore();
        words
    }

    /// The words of a region that is laid out by `layout` in `memory`, all of which the guest can write: the superblock, with what
    /// the trace clock is ([`host::Region::create`](crate::host::Region::create)), and nothing else yet. Whatever an earlier
    /// host has written there is taken back. The superblock's magic number never goes away.
    ///
    /// # Panics
    /// When the memory is smaller than the host's part.
    #[must_use]
    pub fn of_region(memory: HostMemory, layout: &RegionLayout, clock_uuid: [u8; 16], clock_frequency: u64) -> Self {
        let copy = HostMemory::private(layout.guest_writable);
        copy.write(0, layout.superblock(clock_uuid, clock_frequency).as_bytes());
        Self::kept(memory, copy)
    }

    /// Makes the host's part what the host has written; says how many words (8 bytes) were something else.
    pub fn restore(&self) -> u64 {
        let Some(kept) = self.copy() else { return 0 };
        let mut changed = 0;
        for at in (0..kept.size()).step_by(8) {
            let word = kept.load(at);
            if self.memory.load(at) != word {
                self.memory.store(at, word);
                changed += 1;
            }
        }
        changed
    }

    /// The copy, if there is one.
    fn copy(&self) -> Option<MutexGuard<'_, HostMemory>> {
        self.kept.as_ref().map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The copy, if there is one and `offset` lies in it.
    fn copy_of(&self, offset: usize) -> Option<MutexGuard<'_, HostMemory>> {
        self.copy().filter(|kept| offset < kept.size())
    }
}

impl RingMemory for HostWords {
    fn size(&self) -> usize {
        self.memory.size()
    }

    fn load(&self, offset: usize) -> u64 {
        self.copy_of(offset).map_or_else(|| self.memory.load(offset), |kept| kept.load(offset))
    }

    fn store(&self, offset: usize, value: u64) {
        let kept = self.copy_of(offset);
        kept.iter().for_each(|kept| kept.store(offset, value));
        self.memory.store(offset, value);
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        match self.copy_of(offset) {
            None => self.memory.compare_exchange(offset, current, new),
            Some(kept) => {
                let exchanged = kept.compare_exchange(offset, current, new);
                self.memory.store(offset, kept.load(offset));
                exchanged
            }
        }
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        match self.copy_of(offset) {
            None => self.memory.read(offset, out),
            Some(kept) => kept.read(offset, out),
        }
    }

    fn fence_acquire(&self) {
        self.memory.fence_acquire();
    }

    fn clear(&self, offset: usize, size: usize) {
        let kept = self.copy_of(offset);
        kept.iter().for_each(|kept| kept.clear(offset, size));
        self.memory.clear(offset, size);
    }
}

impl RegionMemory for HostWords {
    fn write(&self, offset: usize, bytes: &[u8]) {
        let kept = self.copy_of(offset);
        kept.iter().for_each(|kept| kept.write(offset, bytes));
        self.memory.write(offset, bytes);
    }

    fn fence_full(&self) {
        self.memory.fence_full();
    }
}

#[cfg(test)]
mod tests {
    //! Shows: A QEMU guest is recorded through a device that it can write completely.

    use super::*;

    fn words() -> (HostMemory, HostWords) {
        let memory = HostMemory::private(64);
        (memory.clone(), HostWords::kept(memory, HostMemory::private(32)))
    }

    #[test]
    fn memory_becomes_what_the_copy_says() {
        let memory = HostMemory::private(64);
        (0..64).step_by(8).for_each(|at| memory.store(at, 9));
        let copy = HostMemory::private(32);
        copy.store(8, 5);

        let words = HostWords::kept(memory.clone(), copy);

        assert_eq!([0, 8, 24, 32].map(|at| memory.load(at)), [0, 5, 0, 9]);
        assert_eq!((words.load(8), words.load(32), words.restore()), (5, 9, 0));
    }

    #[test]
    fn whatever_the_host_wrote_is_restored_and_what_the_guest_wrote_is_left() {
        let (memory, words) = words();
        words.store(0, 1);
        words.write(8, &2_u64.to_le_bytes());
        words.store(16, 3);
        assert!(words.compare_exchange(16, 3, 4));
        words.store(40, 6);

        (0..64).step_by(8).for_each(|at| memory.store(at, 99));
        let read = [0, 8, 16, 24].map(|at| words.load(at));

        assert_eq!((read, words.restore(), words.restore()), ([1, 2, 4, 0], 4, 0));
        assert_eq!([0, 8, 16, 24, 32, 40].map(|at| memory.load(at)), [1, 2, 4, 0, 99, 99]);
    }

    #[test]
    fn part_that_the_guest_cannot_write_needs_no_copy() {
        let memory = HostMemory::private(64);
        let words = HostWords::protected(memory.clone());

        memory.store(0, 3);

        assert_eq!((words.load(0), words.restore()), (3, 0));
    }
}
