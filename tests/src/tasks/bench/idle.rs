//! `cargo xtask bench idle`: what a recorder costs the host while the guest does nothing.

use super::run_example;
use crate::paths::Paths;
use crate::process::ProcessError;
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

/// Prints the table; writes it to a file too, if one is given.
///
/// # Errors
///
/// When cargo or the measurement fails.
pub fn run(paths: &Paths, options: &Options) -> Result<(), ProcessError> {
    let arguments = [options.seconds.to_string(), options.repetitions.to_string()];
    run_example(paths, ("vmm", "idle_cost"), &arguments, options.json.as_deref())
}
