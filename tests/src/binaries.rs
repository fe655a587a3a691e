//! Static builds of what runs where no libraries are: `strata` on the emulated host, the workload in the guest.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths::Paths;
use crate::process::{self, ProcessError};

/// Named explicitly, so that the flags of the build do not reach build scripts and procedural macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The static programs.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// The command `strata`.
    pub strata: PathBuf,
    /// The guest's example workload.
    pub workload: PathBuf,
}

/// Builds both programs, in release mode.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build(paths: &Paths) -> Result<Binaries, ProcessError> {
    let target_folder = static_target(paths);
    cargo_build(paths, &target_folder, &["-p", "vmm", "--bin", "strata"], "build-strata")?;
    cargo_build(paths, &target_folder, &["-p", "guest-agent", "--example", "workload"], "build-workload")?;
    Ok(located(paths))
}

/// Builds the guest's program that exchanges events with the monitor.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_exchange(paths: &Paths) -> Result<PathBuf, ProcessError> {
    let target_folder = static_target(paths);
    cargo_build(paths, &target_folder, &["-p", "guest-agent", "--example", "exchange"], "build-exchange")?;
    Ok(target_folder.join(TARGET).join("release/examples/exchange"))
}

/// Builds the guest's program that measures paths of its kernel.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_kernel_cost(paths: &Paths) -> Result<PathBuf, ProcessError> {
    let target_folder = static_target(paths);
    cargo_build(paths, &target_folder, &["-p", "guest-agent", "--example", "kernel_cost"], "build-kernel-cost")?;
    Ok(target_folder.join(TARGET).join("release/examples/kernel_cost"))
}

/// Where [`build`] puts the programs, without building them.
#[must_use]
pub fn located(paths: &Paths) -> Binaries {
    let release = static_target(paths).join(TARGET).join("release");
    Binaries { strata: release.join("strata"), workload: release.join("examples/workload") }
}

fn static_target(paths: &Paths) -> PathBuf {
    paths.builds().join("static")
}

/// A cargo command in the workspace that keeps to `target_folder` and takes no flags from the caller's environment.
#[must_use]
pub fn cargo(paths: &Paths, target_folder: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(paths.workspace())
        .env("CARGO_TARGET_DIR", target_folder)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    command
}

fn cargo_build(paths: &Paths, target_folder: &Path, what: &[&str], log: &str) -> Result<(), ProcessError> {
    let mut command = cargo(paths, target_folder);
    command
        .args(["build", "--release", "--target", TARGET])
        .args(what)
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    process::run_logged(&mut command, &paths.logs().join(format!("{log}.log")))
}
