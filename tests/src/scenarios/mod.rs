//! What guests and hosts do in the end-to-end tests: a file for each boot of a host, and for each script with guests whose
//! processors are emulated ([`crate::machine::emulated_guest`]): those that need nothing of KVM.
//!
//! Each scenario leaves `NAME.log` (what `strata run` and the guest's console wrote), `NAME.status` (its exit status)
//! and, with a trace, `NAME.trace`; what else it leaves stands in its file.

pub mod agent;
pub mod agentless;
pub mod analysis;
pub mod applications;
pub mod blinded;
pub mod claims;
pub mod container;
pub mod deaths;
pub mod debian_guest;
pub mod debug_kernel;
pub mod dying_task;
pub mod flight_check;
pub mod flight_recorder;
pub mod format_file;
pub mod guests;
pub mod hotplug;
pub mod idle;
pub mod known_answers;
pub mod libvirt;
pub mod network;
pub mod other_vmms;
pub mod results;
pub mod several_vms;
pub mod tracepoints;

use crate::build::initramfs::InitramfsError;
use crate::fetch::apt::PackageError;
use crate::fetch::module_tree::{ModuleTree, ModulesError};
use crate::machine::direct::DirectError;
use crate::machine::host::{HostError, HostResult, HostRun};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::provision::{self, Lab, ProvisionError};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the disk image holds before the guest sees it.
pub const DISK_ORIGINAL: &str = "written by the host";

/// Why the scenarios could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The guest image lacks a module.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// The guest image could not be made.
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    /// A program that the host needs cannot be had.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// The disk image could not be made.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The host failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// What runs emulated guests could not be had.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
}

impl From<DirectError> for ScenarioError {
    fn from(error: DirectError) -> Self {
        Self::Host(error.into())
    }
}

/// Runs the script of `run` with guests whose processors are emulated, to its end.
///
/// # Errors
///
/// When their program cannot be built or the script fails.
pub(crate) fn emulated(lab: &Lab, run: &HostRun) -> Result<HostResult, ScenarioError> {
    Ok(provision::emulated_guests(&lab.paths)?.run(&lab.paths.runs(), run)?.success(&run.name)?)
}

/// The files of these modules of the host and of what they depend on, in the order of loading, each with its name.
///
/// # Errors
///
/// When one is missing.
pub(crate) fn host_modules(lab: &Lab, names: &[&str]) -> Result<Vec<(String, PathBuf)>, ModulesError> {
    let named = |path: PathBuf| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path);
    Ok(ModuleTree::open(&lab.kernels.modules)?.closure(names)?.into_iter().map(named).collect())
}

/// Makes an ext4 image of 32 MiB at `path` that holds the file `original`.
///
/// # Errors
///
/// When `mke2fs` fails.
pub fn make_disk(path: &Path, logs: &Path) -> Result<(), ProcessError> {
    let script = r#"
        rm -f "$1" && truncate -s 32M "$1" && mkdir -p "$1.content" && printf '%s\n' "$2" > "$1.content/original" &&
        PATH="$PATH:/sbin:/usr/sbin" mke2fs -q -t ext4 -d "$1.content" "$1" && rm -r "$1.content""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "make-disk"]).arg(path).arg(DISK_ORIGINAL);
    process::run_logged(&mut command, &logs.join("make-disk.log"))
}

/// What the first test to ask for the results leaves for the others.
#[derive(Debug, Serialize, Deserialize)]
enum Outcome {
    Done(HostResult),
    Failed(String),
}

/// Has `run` run once for all tests of one test run, in a run folder whose name begins with `kind`.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub(crate) fn once(
    paths: &Paths,
    kind: &str,
    run: fn(&Lab, &str) -> Result<HostResult, ScenarioError>,
) -> Result<HostResult, String> {
    let prefix = format!("{kind}-");
    // nextest gives every test a process and tells them all the same id; cargo test runs all of a file's in one process
    let id = std::env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| std::process::id().to_string());
    let name = format!("{prefix}{id}");
    let runs = paths.runs();
    let record = runs.join(&name).join("outcome.json");
    let io_error = |error: io::Error| format!("cannot use {}: {error}", runs.display());
    fs::create_dir_all(&runs).map_err(io_error)?;
    let lock = fs::File::create(runs.join(format!("{kind}.lock"))).map_err(io_error)?;
    lock.lock().map_err(io_error)?;
    let known = fs::read(&record).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let outcome = match known {
        Some(outcome) => outcome,
        None => {
            for entry in fs::read_dir(&runs).map_err(io_error)?.flatten() {
                let found = entry.file_name().to_string_lossy().into_owned();
                let is_of_this_run = found == name || found.starts_with(&format!("{name}-"));
                if found.starts_with(&prefix) && !is_of_this_run && entry.path().is_dir() {
                    fs::remove_dir_all(entry.path()).map_err(io_error)?;
                }
            }
            let outcome = match provision::lab(paths).map_err(|error| describe(&error)) {
                Ok(lab) => match run(&lab, &name) {
                    Ok(result) => Outcome::Done(result),
                    Err(error) => Outcome::Failed(describe(&error)),
                },
                Err(error) => Outcome::Failed(error),
            };
            fs::create_dir_all(runs.join(&name)).map_err(io_error)?;
            fs::write(&record, serde_json::to_vec(&outcome).unwrap_or_default()).map_err(io_error)?;
            outcome
        }
    };
    match outcome {
        Outcome::Done(result) => Ok(result),
        Outcome::Failed(message) => Err(message),
    }
}

/// An error with its sources on one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
