//! `cargo xtask bench clock`: what reading the trace clock costs.

use crate::build::binaries;
use crate::paths::Paths;
use crate::process::{self, ProcessError};

/// Builds the comparison with optimisation and prints its table.
///
/// # Errors
///
/// When cargo or the comparison fails.
pub fn run(paths: &Paths) -> Result<(), ProcessError> {
    let mut command = binaries::cargo(paths, &paths.builds().join("bench"));
    command.args(["run", "--quiet", "--release", "-p", "clock-sync", "--example", "read_cost"]);
    process::run_visible(&mut command)
}
