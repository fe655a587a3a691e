//! The trace region that a virtual machine shares with its host, and the lockless rings in it.
//!
//! The crate has three parts, and data flows one way through them:
//!
//! 1. [`layout`] fixes every byte of the region; [`region`] places the parts for a given machine.
//! 2. [`producer`] records events from any context (task, interrupt, NMI, or a thread) into a ring. It runs on a
//!    [`storage::Storage`], so that one implementation serves the guest kernel (CPU-local atomics), user level and the
//!    VMM (SMP atomics), and the checkers.
//! 3. [`consumer`] (feature `std`, on by default) is the host's half: it trusts nothing, copies each sub-buffer out,
//!    validates it against the event descriptions of [`registry`], and hands on CTF packets.
#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(not(target_endian = "little"))]
compile_error!("the trace region is little-endian");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("ring counters are free-running 64-bit offsets");

#[macro_use]
mod mutants;

#[cfg(feature = "std")]
pub mod c_header;
#[cfg(feature = "std")]
pub mod consumer;
#[cfg(feature = "std")]
pub mod crash;
pub mod event;
pub mod exchange;
#[cfg(feature = "std")]
pub mod host_memory;
pub mod layout;
#[cfg(feature = "verification")]
pub use mutants::Mutant;
#[cfg(feature = "std")]
pub mod packet;
pub mod producer;
pub mod region;
pub mod registry;
pub mod storage;
