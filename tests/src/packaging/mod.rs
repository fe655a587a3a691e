//! `cargo xtask package`: Strata as Debian packages.

pub mod contents;
pub mod deb;

pub use contents::{PackagingError, VERSION, build};
