//! `cargo xtask bench wide`: what a look at the rings of a wide guest costs, and how producers get on beside each other
//! and the recorder.

use super::run_example;
use crate::paths::Paths;
use crate::process::ProcessError;
use std::path::Path;

/// Prints the tables of so many turns; writes them to the file `json` too, if one is given.
///
/// # Errors
///
/// When cargo or the measurement fails.
pub fn run(paths: &Paths, repetitions: u16, json: Option<&Path>) -> Result<(), ProcessError> {
    run_example(paths, ("vmm", "wide_cost"), &[repetitions.to_string()], json)
}
