//! `cargo xtask package`: Strata as Debian packages.

pub mod contents;
pub mod deb;
pub mod materials;

pub use contents::{PackagingError, VERSION, build};
