//! Names of the numbers that kernels and processors give: what a listing and a report show beside them.

pub mod access;
pub mod argument;
pub mod device;
pub mod errno;
pub mod lock;
pub mod msr;
pub mod signal;
pub mod softirq;
pub mod syscall;
pub mod task_state;
pub mod vector;
