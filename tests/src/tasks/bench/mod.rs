//! Benchmarks that `cargo xtask bench` runs.

pub mod clock;
pub mod export;
pub mod fleet;
mod goal;
pub mod guest;
pub mod host;
pub mod idle;
pub mod instructions;
pub mod machine;
pub mod merge;
pub mod ring;
pub mod usage;
pub mod why;
pub mod wide;

use crate::build::binaries;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::process_group::GoesOnSignal;
use anyhow::Context;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A folder in the lab for what a benchmark writes. It goes when it is dropped, and when a signal ends the benchmark.
#[derive(Debug)]
struct BenchFolder {
    _goes: GoesOnSignal,
    folder: TempDir,
}

impl BenchFolder {
    /// A new one, whose name begins with `prefix`.
    fn new(paths: &Paths, prefix: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(paths.lab()).with_context(|| format!("cannot create {}", paths.lab().display()))?;
        let folder = TempDir::with_prefix_in(prefix, paths.lab())
            .with_context(|| format!("cannot write to {}", paths.lab().display()))?;
        Ok(Self { _goes: GoesOnSignal::new(folder.path()), folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Builds `example` of `package` with optimisation, and has it print its tables; `arguments` come before the file for the
/// results, if there is one.
fn run_example(
    paths: &Paths,
    (package, example): (&str, &str),
    arguments: &[String],
    json: Option<&Path>,
) -> Result<(), ProcessError> {
    let mut command = binaries::cargo(paths, &paths.builds().join("bench"));
    command.args(["run", "--quiet", "--release", "-p", package, "--example", example, "--"]);
    // where the caller is, which is not where cargo runs
    let json = json.map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
    command.args(arguments).args(json);
    process::run_visible(&mut command)
}

/// The `quarters` quarter of `values`; 0 when there are none.
fn quantile(values: &mut [f64], quarters: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len().saturating_sub(1) * quarters + 2) / 4).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_of_the_sorted_values() {
        let mut values = [5.0, 1.0, 4.0, 2.0, 3.0];

        assert_eq!([1, 2, 3].map(|quarters| quantile(&mut values, quarters)), [2.0, 3.0, 4.0]);
        assert!(quantile(&mut [], 2).abs() < f64::EPSILON);
    }
}
