//! `cargo xtask bench clock`: what reading the trace clock costs.

use crate::build::binaries;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use std::path::Path;

/// Builds the comparison with optimisation and prints its table; writes it to `json` too, if that is given.
///
/// # Errors
///
/// When cargo or the comparison fails.
pub fn run(paths: &Paths, json: Option<&Path>) -> Result<(), ProcessError> {
    let mut command = binaries::cargo(paths, &paths.builds().join("bench"));
    command.args(["run", "--quiet", "--release", "-p", "clock-sync", "--example", "read_cost"]);
    if let Some(file) = json {
        // where the caller is, which is not where cargo runs
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        command.arg("--").arg(file);
    }
    process::run_visible(&mut command)
}
