//! The thread's rseq area: memory in which the kernel keeps the number of the CPU that the thread is on.
//!
//! The C library registers one for each thread (glibc since 2.35) and says where it lies, relative to the thread
//! pointer. Reading it costs a load, where `RDTSCP` waits for everything before it. See
//! `docs/adr/0001-user-level-atomics.md`.
#![allow(unsafe_code)] // Memory that the C library and the kernel share.

use core::arch::asm;
use std::sync::OnceLock;

/// Offset of `cpu_id` in the kernel's `struct rseq`.
const CPU_ID: usize = 4;

/// The number of the CPU that this thread was on just now; `None` when nobody keeps it.
#[inline(always)]
pub(crate) fn cpu() -> Option<u32> {
    static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
    let offset = (*OFFSET.get_or_init(offset))?;
    let thread: *const u8;
    // SAFETY: on x86-64 the first word behind the thread pointer is the thread pointer.
    unsafe { asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags)) };
    // SAFETY: the area lies there as long as the thread lives (the C library says so, see `offset`). The kernel writes
    // it only while the thread does not run, so a volatile read sees one value.
    let cpu = unsafe { thread.wrapping_offset(offset).add(CPU_ID).cast::<u32>().read_volatile() };
    // A thread whose registration failed has -1 or -2 there.
    (cpu.cast_signed() >= 0).then_some(cpu)
}

/// Where the C library put the area, bytes from the thread pointer.
#[cold]
fn offset() -> Option<isize> {
    let constant = |name: &core::ffi::CStr| {
        // SAFETY: looks a name up in the program's own libraries.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let (offset, size) = (constant(c"__rseq_offset")?, constant(c"__rseq_size")?);
    // SAFETY: glibc documents these as constants of the types `ptrdiff_t` and `unsigned int`.
    let (offset, size) = unsafe { (offset.cast::<isize>().read(), size.cast::<u32>().read()) };
    // Zero when registering is switched off.
    (size > 0).then_some(offset)
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
}
