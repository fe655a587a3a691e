//! Benchmarks that `cargo xtask bench` runs.

pub mod clock;
pub mod ring;
