//! The guest kernel module's Rust half: which events it records, how it attaches to the trace region, and the hot path.
//!
//! The module is a thin C shim (the `.c` files beside this crate: kernel interfaces, tracepoint probes, the character
//! device) over this crate. Built as usual it is a plain library: the host reads the [`catalog`] from it, and the tests
//! run everything but the entry points. Feature `kernel` adds those and the panic handler, for the object that the
//! module is linked from.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod catalog;
#[cfg(feature = "kernel")]
pub mod kernel;
pub mod process;
pub mod recorder;
pub mod region;
