#![doc = include_str!("../README.md")]
#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(not(target_endian = "little"))]
compile_error!("the trace region is little-endian");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("ring counters are free-running 64-bit offsets");

#[macro_use]
mod mutants;

#[cfg(feature = "std")]
pub mod consumer;
pub mod event;
mod exchange;
pub mod guest;
#[cfg(feature = "std")]
pub mod host;
pub mod layout;
#[cfg(feature = "verification")]
pub use mutants::Mutant;
#[cfg(feature = "std")]
pub mod packet;
pub mod producer;
pub mod region;
pub mod registry;
pub mod restartable;
pub mod storage;
pub mod view;
