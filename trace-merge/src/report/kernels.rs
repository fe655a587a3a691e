//! Reports on the work of kernels: exits, system calls, locks, interrupts and sampled functions.

mod by_guest;
pub mod exits;
pub mod functions;
pub mod irqs;
pub mod locks;
pub mod syscalls;
