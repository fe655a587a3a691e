//! Benchmarks: what recording an event costs.

pub mod ring;
