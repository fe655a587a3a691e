//! The memory that a producer records into, and the atomics that fit who else writes there.
//!
//! A ring of the guest kernel is written by one vCPU only, so its read-modify-write operations need to be atomic
//! against interrupts but not against other CPUs: [`CpuLocal`]. Threads can migrate at any instruction: [`Smp`]. The
//! producer is written once, over [`Storage`].
#![allow(unsafe_code)] // Rings live in memory that is shared with another operating system: raw pointers.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Attempts at a reservation, a forced switch, or one of the words that contexts change by compare-and-swap, before it is
/// given up. An attempt fails only if another context has got on meanwhile, so that contexts which interrupt each other
/// take a few at most; threads of many CPUs that record into one ring without pause, some more.
pub const ATTEMPTS: usize = 256;

/// Shared memory addressed by byte offsets, with the atomics of its kind.
///
/// # Safety
///
/// Callers of the methods pass offsets of whole words (`offset % 8 == 0`) or byte ranges that lie inside the memory
/// for which the storage was made; implementations may rely on it.
/// For an example see [`Smp`].
pub trait Storage {
    /// Reads a word with no ordering.
    ///
    /// # Safety
    /// `offset` is a multiple of 8 and the word lies inside the storage.
    unsafe fn load(&self, offset: usize) -> u64;

    /// Reads a word; what its [`store_release`](Self::store_release) published is visible afterwards.
    ///
    /// # Safety
    /// As for [`load`](Self::load).
    unsafe fn load_acquire(&self, offset: usize) -> u64;

    /// Writes a word with no ordering.
    ///
    /// # Safety
    /// As for [`load`](Self::load).
    unsafe fn store(&self, offset: usize, value: u64);

    /// Writes a word after everything written before it.
    ///
    /// # Safety
    /// As for [`load`](Self::load).
    unsafe fn store_release(&self, offset: usize, value: u64);

    /// Replaces the word if it is `current`; says whether it was. Acquires and releases.
    ///
    /// # Safety
    /// As for [`load`](Self::load).
    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool;

    /// [`compare_exchange`](Self::compare_exchange) of a word that the host writes in the same way, on another CPU.
    ///
    /// # Safety
    /// As for [`load`](Self::load).
    unsafe fn compare_exchange_shared(&self, offset: usize, current: u64, new: u64) -> bool;

    /// Adds to the word and returns what it was before. Acquires and releases.
    ///
    /// # Safety
    /// As for [`load`](Self::load).
    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64;

    /// [`compare_exchange`](Self::compare_exchange) of the word `AT` bytes behind `offset`, which need no instruction of
    /// their own where the processor's adds them.
    ///
    /// # Safety
    /// As for [`load`](Self::load), of `offset + AT`.
    #[inline(always)]
    unsafe fn compare_exchange_at<const AT: usize>(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { self.compare_exchange(offset + AT, current, new) }
    }

    /// [`fetch_add`](Self::fetch_add) in the same way.
    ///
    /// # Safety
    /// As for [`load`](Self::load), of `offset + AT`.
    #[inline(always)]
    unsafe fn fetch_add_at<const AT: usize>(&self, offset: usize, value: u64) -> u64 {
        // SAFETY: passed on from the caller.
        unsafe { self.fetch_add(offset + AT, value) }
    }

    /// Keeps earlier loads and stores before later stores, as a reader sees them that keeps its loads in order.
    fn fence_release(&self);

    /// Copies `bytes` in, with no ordering.
    ///
    /// # Safety
    /// `offset..offset + bytes.len()` lies inside the storage and no other context writes it meanwhile.
    unsafe fn write(&self, offset: usize, bytes: &[u8]);
}

/// A [`Storage`] whose bytes lie one after another in this program's address space.
///
/// # Safety
///
/// [`pointer`](Self::pointer) returns the address of the storage's byte at `offset`, which may be read and written
/// as long as the storage is used, for every `offset` inside the storage.
pub unsafe trait MappedStorage: Storage {
    /// Address of the byte at `offset`.
    #[must_use]
    fn pointer(&self, offset: usize) -> *mut u8;
}

/// Memory that any thread may write: the processor's locked instructions.
///
/// ```
/// use shared_ring::storage::{Smp, Storage};
///
/// let mut memory = [0_u64; 2];
/// // SAFETY: the memory is aligned and outlives the storage; offset 8 lies in it.
/// let before = unsafe {
///     let storage = Smp::new(memory.as_mut_ptr().cast());
///     storage.fetch_add(8, 5)
/// };
/// assert_eq!((before, memory), (0, [0, 5]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Smp {
    base: *mut u8,
}

// SAFETY: every access through the pointer is atomic or, by the contract of `write`, to bytes that this context owns.
unsafe impl Send for Smp {}
// SAFETY: as above.
unsafe impl Sync for Smp {}

impl Smp {
    /// A storage that begins at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 8 and the memory behind it outlives every use of the storage.
    #[must_use]
    pub const unsafe fn new(base: *mut u8) -> Self {
        Self { base }
    }

    #[inline(always)]
    unsafe fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the caller passes the offset of a whole word inside the storage, which is alive (see `new`); words
        // of the storage are accessed atomically only.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }
}

// SAFETY: the storage begins at `base`; whoever made it says that the memory is alive (see `new`).
unsafe impl MappedStorage for Smp {
    #[inline(always)]
    fn pointer(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(offset)
    }
}

impl Storage for Smp {
    #[inline(always)]
    unsafe fn load(&self, offset: usize) -> u64 {
        // SAFETY: passed on from the caller.
        unsafe { self.word(offset) }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    unsafe fn load_acquire(&self, offset: usize) -> u64 {
        // SAFETY: passed on from the caller.
        unsafe { self.word(offset) }.load(Ordering::Acquire)
    }

    #[inline(always)]
    unsafe fn store(&self, offset: usize, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe { self.word(offset) }.store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    unsafe fn store_release(&self, offset: usize, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe { self.word(offset) }.store(value, Ordering::Release);
    }

    #[inline(always)]
    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { self.word(offset) }.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    unsafe fn compare_exchange_shared(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { self.compare_exchange(offset, current, new) }
    }

    #[inline(always)]
    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        // SAFETY: passed on from the caller.
        unsafe { self.word(offset) }.fetch_add(value, Ordering::AcqRel)
    }

    #[inline(always)]
    fn fence_release(&self) {
        // No instruction on x86.
        fence(Ordering::Release);
    }

    #[inline(always)]
    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: the range lies inside the storage and is this context's own (contract of the method); `bytes` is a
        // Rust slice and so cannot overlap it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) }
    }
}

/// Memory that one CPU writes, from any of its contexts: `cmpxchg` and `xadd` without `LOCK`.
///
/// An instruction is atomic against interrupts and NMIs of its own CPU. A vCPU counts as one CPU whichever host CPU
/// runs it, since a host context switch orders memory. The host reads what is published with [`Storage::store_release`]
/// or one of the read-modify-write operations: x86 keeps stores in order, so neither needs a fence.
/// For an example see [`Smp`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct CpuLocal {
    smp: Smp,
}

#[cfg(target_arch = "x86_64")]
impl CpuLocal {
    /// A storage that begins at `base`.
    ///
    /// # Safety
    /// As for [`Smp::new`]; and only code that cannot leave its CPU between entry and return calls the storage's
    /// methods (preemption is disabled), always on the same CPU.
    #[must_use]
    pub const unsafe fn new(base: *mut u8) -> Self {
        // SAFETY: passed on from the caller.
        Self { smp: unsafe { Smp::new(base) } }
    }
}

// SAFETY: as for `Smp`.
#[cfg(target_arch = "x86_64")]
unsafe impl MappedStorage for CpuLocal {
    #[inline(always)]
    fn pointer(&self, offset: usize) -> *mut u8 {
        self.smp.pointer(offset)
    }
}

#[cfg(target_arch = "x86_64")]
impl Storage for CpuLocal {
    #[inline(always)]
    unsafe fn load(&self, offset: usize) -> u64 {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.load(offset) }
    }

    #[inline(always)]
    unsafe fn load_acquire(&self, offset: usize) -> u64 {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.load_acquire(offset) }
    }

    #[inline(always)]
    unsafe fn store(&self, offset: usize, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.store(offset, value) }
    }

    #[inline(always)]
    unsafe fn store_release(&self, offset: usize, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.store_release(offset, value) }
    }

    #[inline(always)]
    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { self.compare_exchange_at::<0>(offset, current, new) }
    }

    /// The outcome is in the flags, so that a jump is all that is left to do.
    #[cfg(asm_label)]
    #[inline(always)]
    unsafe fn compare_exchange_at<const AT: usize>(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: the word lies inside the storage (contract of the method). The asm block may touch memory (no
        // `nomem`), so the compiler moves no access across it.
        unsafe {
            core::arch::asm!(
                "cmpxchg qword ptr [{word} + {at}], {new}",
                "jne {changed}",
                word = in(reg) self.smp.base.add(offset),
                at = const AT,
                new = in(reg) new,
                inout("rax") current => _,
                changed = label { return false },
                options(nostack),
            );
        }
        true
    }

    /// The same for older compilers.
    #[cfg(not(asm_label))]
    #[inline(always)]
    unsafe fn compare_exchange_at<const AT: usize>(&self, offset: usize, current: u64, new: u64) -> bool {
        let found: u64;
        // SAFETY: as above.
        unsafe {
            core::arch::asm!(
                "cmpxchg qword ptr [{word} + {at}], {new}",
                word = in(reg) self.smp.base.add(offset),
                at = const AT,
                new = in(reg) new,
                inout("rax") current => found,
                options(nostack),
            );
        }
        found == current
    }

    #[inline(always)]
    unsafe fn compare_exchange_shared(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.compare_exchange(offset, current, new) }
    }

    #[inline(always)]
    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        // SAFETY: passed on from the caller.
        unsafe { self.fetch_add_at::<0>(offset, value) }
    }

    #[inline(always)]
    unsafe fn fetch_add_at<const AT: usize>(&self, offset: usize, value: u64) -> u64 {
        let before: u64;
        // SAFETY: as for `compare_exchange`.
        unsafe {
            core::arch::asm!(
                "xadd qword ptr [{base} + {offset} + {at}], {value}",
                base = in(reg) self.smp.base,
                offset = in(reg) offset,
                at = const AT,
                value = inout(reg) value => before,
                options(nostack),
            );
        }
        before
    }

    #[inline(always)]
    fn fence_release(&self) {
        self.smp.fence_release();
    }

    #[inline(always)]
    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.write(offset, bytes) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn exercise(storage: &impl Storage) -> (bool, bool, u64, u64) {
        // SAFETY: the tests below pass storages of eight words, owned by the calling thread.
        unsafe {
            storage.store(8, 5);
            let first = storage.compare_exchange(8, 5, 7);
            let second = storage.compare_exchange(8, 5, 9);
            let third = storage.compare_exchange_shared(8, 5, 9) || !storage.compare_exchange_shared(8, 7, 7);
            let before = storage.fetch_add(8, 10);
            storage.write(16, &[1, 2, 3]);
            (first, second || third, before, storage.load(8) + (storage.load(16) << 32))
        }
    }

    #[test]
    fn cpu_local_and_smp_atomics_do_the_same() {
        let mut words = [0_u64; 8];
        // SAFETY: `words` outlives both storages and is used through one at a time.
        let (local, smp) = unsafe { (CpuLocal::new(words.as_mut_ptr().cast()), Smp::new(words.as_mut_ptr().cast())) };

        let expected = (true, false, 7, 17 + (0x03_02_01_u64 << 32));
        assert_eq!(exercise(&local), expected);
        assert_eq!(exercise(&smp), expected);
    }
}
