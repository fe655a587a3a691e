//! Benchmarks that `cargo xtask bench` runs.

pub mod clock;
pub mod merge;
pub mod ring;
pub mod usage;
