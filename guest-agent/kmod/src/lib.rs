//! The guest kernel module's Rust half: which events it records, how it attaches to the trace region, and the hot path.
//!
//! The module is a thin C shim (the `.c` files beside this crate: kernel interfaces, tracepoint probes, the character
//! device) over this crate. Built as usual it is a plain library: the tests run everything but
//! the entry points. Feature `kernel` adds those and the panic handler, for the object that the module is linked from;
//! feature `host` adds reading the events out of a module's file.
#![no_std]

#[cfg(any(test, feature = "host"))]
extern crate std;

pub mod catalog;
#[cfg(feature = "kernel")]
pub mod kernel;
#[cfg(feature = "host")]
pub mod module_file;
pub mod print_format;
pub mod recorder;
pub mod region;
