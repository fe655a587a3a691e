//! Benchmarks that `cargo xtask bench` runs.

pub mod clock;
pub mod guest;
pub mod merge;
pub mod ring;
pub mod usage;
