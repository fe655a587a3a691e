//! `cargo xtask bench clock`: what reading the trace clock costs.

use super::run_example;
use crate::paths::Paths;
use crate::process::ProcessError;
use std::path::Path;

/// Prints the comparison's table; writes it to `json` too, if that is given.
///
/// # Errors
///
/// When cargo or the comparison fails.
pub fn run(paths: &Paths, json: Option<&Path>) -> Result<(), ProcessError> {
    run_example(paths, ("clock-sync", "read_cost"), &[], json)
}
