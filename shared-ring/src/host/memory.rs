//! The host's view of memory that a guest may be writing at the same time.
//!
//! Every access is a relaxed or ordered atomic one, so that the host reads *some* bytes and never undefined ones; what
//! they are worth is checked after they were copied. Offsets are the host's own, computed from what it laid out itself:
//! an offset outside the memory is a bug of the host and panics.
#![allow(unsafe_code)] // The memory belongs to a mapping that the guest shares: raw pointers.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// What the consumer does to a ring's memory. [`HostMemory`] is what hosts use; model checkers bring their own, so that
/// the very consumer that hosts run is what they check. Offsets of words are multiples of 8.
/// For an example see [`HostMemory`].
pub trait RingMemory {
    /// Bytes of the memory.
    fn size(&self) -> usize;
    /// Reads a word, and everything written before it was published with release order.
    fn load(&self, offset: usize) -> u64;
    /// Publishes a word: what was written before is visible to whoever reads it with acquire order.
    fn store(&self, offset: usize, value: u64);
    /// Replaces a word if it is `current`; says whether it was. Acquires and releases.
    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool;
    /// Copies `out.len()` bytes out, with no ordering.
    fn read(&self, offset: usize, out: &mut [u8]);
    /// Keeps later [`load`](Self::load)s behind earlier [`read`](Self::read)s.
    fn fence_acquire(&self);
    /// Clears `size` bytes, a multiple of 8, with no ordering.
    fn clear(&self, offset: usize, size: usize);
}

impl RingMemory for HostMemory {
    fn size(&self) -> usize {
        Self::size(self)
    }

    fn load(&self, offset: usize) -> u64 {
        Self::load(self, offset)
    }

    fn store(&self, offset: usize, value: u64) {
        Self::store(self, offset, value);
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        Self::compare_exchange(self, offset, current, new)
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        Self::read(self, offset, out);
    }

    fn fence_acquire(&self) {
        core::sync::atomic::fence(Ordering::Acquire);
    }

    fn clear(&self, offset: usize, size: usize) {
        Self::clear(self, offset, size);
    }
}

/// What a host does to the words that it shares with a guest besides its rings. Offsets of words are multiples of 8.
/// For an example see [`HostMemory`].
pub trait RegionMemory: RingMemory {
    /// Copies `bytes` in, with no ordering.
    fn write(&self, offset: usize, bytes: &[u8]);
    /// Keeps earlier stores before later loads, as seen by whoever has such a fence too.
    fn fence_full(&self);
}

impl RegionMemory for HostMemory {
    fn write(&self, offset: usize, bytes: &[u8]) {
        Self::write(self, offset, bytes);
    }

    fn fence_full(&self) {
        core::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Memory that this process maps and another machine writes; cheap to clone.
///
/// ```
/// use shared_ring::host::memory::HostMemory;
///
/// let memory = HostMemory::private(64);
/// memory.write(8, &7_u64.to_le_bytes());
/// assert_eq!((memory.load(8), memory.part(8, 16).load(0)), (7, 7));
/// ```
#[derive(Clone)]
pub struct HostMemory {
    base: *mut u8,
    size: usize,
    /// Keeps the mapping alive.
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: all access is atomic, and the owner that keeps the memory alive is Send and Sync.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl std::fmt::Debug for HostMemory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("HostMemory").field("size", &self.size).finish_non_exhaustive()
    }
}

impl HostMemory {
    /// The `size` bytes at `base`, which stay mapped readable and writable as long as `owner` lives.
    ///
    /// # Safety
    /// The above; and this process touches the memory through atomic accesses only. `base` and `size` are multiples
    /// of 8.
    #[must_use]
    pub unsafe fn new(base: *mut u8, size: usize, owner: Arc<dyn Send + Sync>) -> Self {
        assert!(base.addr() % 8 == 0 && size % 8 == 0, "host memory is made of whole words");
        Self { base, size, _owner: owner }
    }

    /// `size` bytes of this process's own memory, zeroed; `size` is rounded up to whole words.
    #[must_use]
    pub fn private(size: usize) -> Self {
        let words: Arc<[AtomicU64]> = (0..size.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let base = words.as_ptr().cast_mut().cast();
        let size = words.len() * 8;
        // SAFETY: the words are atomics, live as long as the owner, and allow writes through a shared reference.
        unsafe { Self::new(base, size, Arc::new(words)) }
    }

    /// Bytes of the memory.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Address of the first byte in this process.
    #[must_use]
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// The part of this memory from `offset` on, `size` bytes long.
    #[must_use]
    pub fn part(&self, offset: usize, size: usize) -> Self {
        self.check(offset, size);
        Self { base: self.base.wrapping_add(offset), size, _owner: Arc::clone(&self._owner) }
    }

    /// Reads the word at `offset`, and everything written before it was published with release order.
    #[must_use]
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Publishes `value` at `offset`: what was written before is visible to whoever reads it with acquire order.
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Replaces the word at `offset` if it is `current`; says whether it was. Acquires and releases.
    #[must_use]
    pub fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.word(offset).compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Copies `out.len()` bytes out, word by word.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let words = self.words(offset, out.len().div_ceil(8));
        let mut whole = out.chunks_exact_mut(8);
        for (to, from) in whole.by_ref().zip(words) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_le_bytes());
        }
        let rest = whole.into_remainder();
        if let (Some(from), false) = (words.last(), rest.is_empty()) {
            rest.copy_from_slice(&from.load(Ordering::Relaxed).to_le_bytes()[..rest.len()]);
        }
    }

    /// Copies `bytes` in, word by word; the last word is padded with zeros.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let words = self.words(offset, bytes.len().div_ceil(8));
        for (to, from) in words.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..from.len()].copy_from_slice(from);
            to.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// Clears `size` bytes, a multiple of 8.
    pub fn clear(&self, offset: usize, size: usize) {
        for word in self.words(offset, size / 8) {
            word.store(0, Ordering::Relaxed);
        }
    }

    fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        self.check(offset, count * 8);
        // SAFETY: aligned and inside the mapping (checked above), which the owner keeps alive; accessed atomically.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).cast(), count) }
    }

    fn check(&self, offset: usize, size: usize) {
        let fits = offset % 8 == 0 && offset.checked_add(size).is_some_and(|end| end <= self.size);
        assert!(fits, "{size} bytes at {offset:#x} are outside {:#x} bytes of host memory", self.size);
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        // SAFETY: aligned and inside the mapping (checked above), which the owner keeps alive; accessed atomically.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_end_in_mid_word_are_copied_whole() {
        let memory = HostMemory::private(32);
        memory.write(8, b"hello, world");
        let mut out = [0; 12];

        memory.read(8, &mut out);

        assert_eq!(&out, b"hello, world");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn access_outside_the_memory_panics() {
        let _ = HostMemory::private(16).load(16);
    }
}
