//! VMM.
pub mod host_kernel;
