//! What `cargo xtask` does besides tests of its own: the suite, the demonstration, fuzzing, torture,
//! benchmarks.

pub mod bench;
pub mod changes;
mod circles;
pub mod demo;
pub mod dependencies;
pub mod documents;
pub mod fuzz;
pub mod kmod_matrix;
pub mod library_crates;
mod map;
pub mod markers;
pub mod pictures;
mod promises;
pub mod query;
pub mod scripts;
pub mod sources;
pub mod suite;
pub mod summary;
pub mod test_results;
pub mod torture;
