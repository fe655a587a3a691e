//! The thread's rseq area: memory in which the kernel keeps the number of the CPU that the thread is on.
//!
//! The C library registers one for each thread (glibc since 2.35) and says where it lies, relative to the thread
//! pointer. Reading it costs a load, where `RDTSCP` waits for everything before it. See
//! `docs/adr/0001-user-level-atomics.md`. Where it registers none, this library does, for restartable sequences only
//! (`own_rseq_area`).
#![allow(unsafe_code)] // Memory that the C library and the kernel share.

pub mod own;

use core::arch::asm;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Offset of `cpu_id` in the kernel's `struct rseq`.
const CPU_ID: usize = 4;
/// [`OFFSET`] before anybody has asked.
const NOT_REQUESTED: isize = 0;
/// [`OFFSET`] where the C library keeps no area. An area is aligned to 32 bytes, and does not lie where the thread pointer
/// points to.
const NO_AREA: isize = 1;

/// Where the C library put the area, bytes from the thread pointer. Not a lock: a signal handler may interrupt its thread
/// where that asks first. Whoever asks finds the same.
static OFFSET: AtomicIsize = AtomicIsize::new(NOT_REQUESTED);

/// The calling thread's area: the C library's, or one that this registers now. `None` when there is neither.
#[inline(always)]
pub(crate) fn area() -> Option<NonNull<u8>> {
    let offset = offset();
    if offset == NO_AREA {
        return own::area();
    }
    // SAFETY: the C library has its area there, which is not at address 0. (A test would be on every record's way.)
    Some(unsafe { NonNull::new_unchecked(at(offset)) })
}

#[inline(always)]
fn offset() -> isize {
    match OFFSET.load(Ordering::Relaxed) {
        NOT_REQUESTED => request_area(),
        known => known,
    }
}

/// The area that lies at `offset` in the calling thread.
#[inline(always)]
fn at(offset: isize) -> *mut u8 {
    let thread: *mut u8;
    // SAFETY: on x86-64 the first word behind the thread pointer is the thread pointer.
    unsafe { asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags)) };
    thread.wrapping_offset(offset)
}

/// The number of the CPU that `area` says its thread is on; `None` when nobody keeps it.
///
/// # Safety
/// `area` is what [`area`] returned in this thread.
#[inline(always)]
pub(crate) unsafe fn cpu_in(area: *mut u8) -> Option<u32> {
    // SAFETY: the area lies there as long as the thread lives (the C library says so, see `request_area`; ours is never
    // unmapped). The kernel writes it only while the thread does not run, so a volatile read sees one value.
    let cpu = unsafe { area.add(CPU_ID).cast::<u32>().read_volatile() };
    // A thread whose registration failed has -1 or -2 there.
    (cpu.cast_signed() >= 0).then_some(cpu)
}

/// The number of the CPU that this thread was on just now; `None` when the C library does not have it kept.
#[inline(always)]
pub(crate) fn cpu() -> Option<u32> {
    let offset = offset();
    // SAFETY: this thread's area.
    if offset == NO_AREA { None } else { unsafe { cpu_in(at(offset)) } }
}

/// Finds [`OFFSET`], which is what this returns. Not by `dlsym`, which takes locks: the addresses are in the program's own
/// tables, where they are zero in a C library that has no such constants (before 2.35).
#[cold]
fn request_area() -> isize {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: loads two words of the table of addresses that the program was linked with.
    unsafe {
        asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
            offset = out(reg) offset,
            size = out(reg) size,
            options(nostack, readonly, preserves_flags, pure),
        );
    }
    let found = if offset.is_null() || size.is_null() {
        NO_AREA
    } else {
        // SAFETY: glibc documents these as constants of the types `ptrdiff_t` and `unsigned int`.
        let (offset, size) = unsafe { (offset.read(), size.read()) };
        // Zero when registering is switched off.
        if size > 0 { offset } else { NO_AREA }
    };
    OFFSET.store(found, Ordering::Relaxed);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn area_agrees_with_the_kernel() {
        let agreed = (0..1000).any(|_| {
            // SAFETY: takes nothing and returns a number.
            let kernel = unsafe { libc::sched_getcpu() };
            cpu().is_none_or(|cpu| i64::from(cpu) == i64::from(kernel))
        });

        assert!(agreed);
    }

    #[test]
    fn area_is_where_the_c_library_says() {
        let constant = |name: &core::ffi::CStr| {
            // SAFETY: looks a name up in the program's own libraries.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
        };
        let (offset, size) = (constant(c"__rseq_offset").cast::<isize>(), constant(c"__rseq_size").cast::<u32>());
        // SAFETY: null, or constants of these types.
        let expected = unsafe { offset.as_ref().filter(|_| size.as_ref().is_some_and(|size| *size > 0)) };

        assert_eq!(request_area(), expected.copied().unwrap_or(NO_AREA));
    }
}
