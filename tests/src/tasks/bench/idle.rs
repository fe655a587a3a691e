//! `cargo xtask bench idle`: what a recorder costs the host while the guest does nothing.

use crate::build::binaries;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use std::path::PathBuf;

/// What to measure.
#[derive(Debug)]
pub struct Options {
    /// How long the guest does nothing in each turn, seconds.
    pub seconds: u32,
    /// Turns.
    pub repetitions: u16,
    /// File for the results.
    pub json: Option<PathBuf>,
}

/// Builds the recorder with optimisation and prints its table; writes it to a file too, if one is given.
///
/// # Errors
///
/// When cargo or the measurement fails.
pub fn run(paths: &Paths, options: &Options) -> Result<(), ProcessError> {
    let mut command = binaries::cargo(paths, &paths.builds().join("bench"));
    command.args(["run", "--quiet", "--release", "-p", "vmm", "--example", "idle_cost", "--"]);
    command.args([options.seconds.to_string(), options.repetitions.to_string()]);
    if let Some(file) = &options.json {
        // where the caller is, which is not where cargo runs
        command.arg(std::path::absolute(file).unwrap_or_else(|_| file.clone()));
    }
    process::run_visible(&mut command)
}
