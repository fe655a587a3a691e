//! Reading the time-stamp counter.
#![allow(unsafe_code)] // The instructions are intrinsics.

/// Reads the TSC, ticks. The processor may execute it ahead of earlier loads; interrupts of the same CPU still see
/// program order, so this is the read for CPU-local rings. Any context, NMI included.
#[must_use]
#[inline(always)]
pub fn read() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC; operating systems that forbid it to user level do not run here.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads the TSC after all earlier loads have been executed, ticks: the read for rings that threads of several CPUs
/// share, where a time read early could lie before one that another CPU has already recorded.
#[must_use]
#[inline(always)]
pub fn read_ordered() -> u64 {
    // SAFETY: every x86-64 processor has LFENCE and RDTSC.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}
