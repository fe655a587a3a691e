//! `cargo xtask bench ring`: builds the benchmark with optimisation and runs it with what it compares itself to.

use crate::build::kmod;
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;
use crate::provision::{self, ProvisionError};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What the benchmark measures beside the ring.
const LTTNG: [Tool; 2] = [
    Tool { program: "lttng-sessiond", package: "lttng-tools" },
    Tool { program: "lttng-gen-tp", package: "liblttng-ust-dev" },
];

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Samples per case.
    pub repetitions: usize,
    /// Where to write the results as JSON.
    pub json: Option<PathBuf>,
    /// Whether to put the tables into [`document`].
    pub update_document: bool,
}

/// The document that shows the results.
#[must_use]
pub fn document(paths: &Paths) -> PathBuf {
    paths.workspace().join("docs/performance.md")
}

/// Runs the benchmark; its tables go to standard output.
///
/// Where LTTng-UST or the module's object code cannot be had, or ftrace not be used, the rest is measured and the tables say what is missing.
///
/// # Errors
///
/// When the benchmark cannot be built, or fails.
pub fn run(paths: &Paths, options: &Options) -> anyhow::Result<()> {
    if let Err(error) = tools::install(paths, &LTTNG) {
        progress::note(&format!("without LTTng-UST: {error}"));
    }
    build(paths)?;
    let mut command = cargo(paths, "run");
    command.args(["--", "--repetitions", &options.repetitions.to_string(), "--folder"]).arg(paths.lab());
    match module_objects(paths) {
        Ok(folder) => {
            command.arg("--module-objects").arg(folder);
        }
        Err(error) => progress::note(&format!("without the module's object code: {error}")),
    }
    if let Some(file) = &options.json {
        command.arg("--json").arg(std::path::absolute(file)?);
    }
    if options.update_document {
        command.arg("--document").arg(document(paths));
    }
    let status = command.stdin(Stdio::null()).status()?;
    anyhow::ensure!(status.success(), "the ring benchmark failed");
    Ok(())
}

/// Builds the benchmark; its program.
pub(super) fn build(paths: &Paths) -> Result<PathBuf, ProcessError> {
    progress::step("building the ring benchmark", || {
        process::run_logged(&mut cargo(paths, "build"), &paths.logs().join("ring-bench-build.log"))
    })?;
    Ok(paths.target().join("release/ring-bench"))
}

/// The folder in which the guest kernel module is built for the default kernel, built now.
fn module_objects(paths: &Paths) -> Result<PathBuf, ProvisionError> {
    let kernels = provision::kernels(paths, false)?;
    provision::agent_for(paths, &kernels)?;
    Ok(kmod::work_folder(paths, &kernels.packages.release))
}

fn cargo(paths: &Paths, verb: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(paths.workspace()).args([verb, "--quiet", "--release", "--package", "ring-bench"]);
    command
}
