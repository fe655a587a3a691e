//! The synthetic 64-bit trace clock: what a guest reads, what its VMM writes, and the arithmetic between two clocks.
//!
//! The trace clock counts host TSC ticks. A guest computes it from its own counter by a [`relation::Relation`] that the
//! VMM publishes in a [`entry`] per vCPU, in memory that the guest can only read; [`updater`] decides what it publishes
//! and when, and bounds its error. With the feature `std`,
//! [`calibration`] relates the trace clock to UTC, and [`convex_hull`] relates two clocks that were never read together.
#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "std")]
pub mod calibration;
#[cfg(feature = "std")]
pub mod convex_hull;
pub mod entry;
pub mod relation;
#[cfg(target_arch = "x86_64")]
pub mod tsc;
pub mod updater;
#[cfg(all(feature = "std", target_arch = "x86_64"))]
pub mod warp;
