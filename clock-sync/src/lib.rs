#![doc = include_str!("../README.md")]
#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "std")]
pub mod calibration;
#[cfg(feature = "std")]
pub mod convex_hull;
pub mod counter;
pub mod entry;
pub mod relation;
#[cfg(all(feature = "std", target_arch = "x86_64"))]
pub mod skew;
#[cfg(target_arch = "x86_64")]
pub mod tsc;
pub mod updater;
