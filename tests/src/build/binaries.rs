//! Static builds of programs for places without libraries: `strata` for the emulated host, the workload for the guest.

use crate::paths::Paths;
use crate::process::{self, ProcessError};
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Builds one of the guest's example programs.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_example(paths: &Paths, name: &str) -> Result<PathBuf, ProcessError> {
    let target_folder = static_target(paths);
    cargo_build(paths, &target_folder, &["-p", "guest-agent", "--example", name], &format!("build-{name}"))?;
    Ok(target_folder.join(TARGET).join("release/examples").join(name))
}

/// Builds the VMM of a few lines that `strata attach` is tried with: for the host.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_tiny_vmm(paths: &Paths) -> Result<PathBuf, ProcessError> {
    let target_folder = static_target(paths);
    cargo_build(paths, &target_folder, &["-p", "vmm", "--example", "tiny_vmm"], "build-tiny-vmm")?;
    Ok(target_folder.join(TARGET).join("release/examples/tiny_vmm"))
}

/// Builds the host of guests whose processor is emulated: for this machine, beside `strata`.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_region_recorder(paths: &Paths) -> Result<PathBuf, ProcessError> {
    let target_folder = static_target(paths);
    cargo_build(paths, &target_folder, &["-p", "vmm", "--example", "region_recorder"], "build-region-recorder")?;
    Ok(target_folder.join(TARGET).join("release/examples/region_recorder"))
}

/// Builds the guest's `strata-agent`.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_agent(paths: &Paths) -> Result<PathBuf, ProcessError> {
    let target_folder = static_target(paths);
    cargo_build(paths, &target_folder, &["-p", "guest-agent", "--bin", "strata-agent"], "build-strata-agent")?;
    Ok(target_folder.join(TARGET).join("release/strata-agent"))
}

/// Builds the programs that show what applications can record and what not, and `strata-agent`: for the guest, each a
/// static program. Returns their names and files.
///
/// # Errors
///
/// When cargo or a compiler fails; the error names its log.
pub fn build_applications(paths: &Paths) -> Result<Vec<(&'static str, PathBuf)>, ProcessError> {
    let target_folder = static_target(paths);
    let release = target_folder.join(TARGET).join("release");
    let mut programs = vec![("strata-agent", build_agent(paths)?)];
    for example in ["isolation", "processes"] {
        programs.push((example, build_example(paths, example)?));
    }
    cargo_build(paths, &target_folder, &["-p", "tracing-strata", "--example", "orders"], "build-orders")?;
    cargo_build(paths, &target_folder, &["-p", "strata-c-api"], "build-c-api")?;
    let c_api = paths.workspace().join("guest-agent/c-api");
    for (compiler, source, program) in [("gcc", "shop.c", "shop"), ("g++", "baker.cpp", "baker")] {
        let mut command = Command::new(compiler);
        command.args(["-O2", "-static", "-pthread", "-o"]).arg(release.join(program));
        command.arg("-I").arg(c_api.join("include")).arg(c_api.join("examples").join(source));
        command.arg(release.join("libstrata.a"));
        process::run_logged(&mut command, &paths.logs().join(format!("build-{program}.log")))?;
    }
    programs.push(("orders", release.join("examples/orders")));
    programs.extend(["shop", "baker"].map(|name| (name, release.join(name))));
    Ok(programs)
}

/// Builds the library for applications in C: the shared one and the static one, in this order.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_c_library(paths: &Paths) -> Result<[PathBuf; 2], ProcessError> {
    // a shared library cannot have the C library in it
    let target_folder = paths.builds().join("c-library");
    let mut command = cargo(paths, &target_folder);
    command.args(["build", "--release", "--target", TARGET, "-p", "strata-c-api"]);
    process::run_logged(&mut command, &paths.logs().join("build-c-library.log"))?;
    let release = target_folder.join(TARGET).join("release");
    Ok(["libstrata.so", "libstrata.a"].map(|name| release.join(name)))
}

/// Builds the program that builds the guest kernel module where there is no cargo.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_module_builder(paths: &Paths) -> Result<PathBuf, ProcessError> {
    let target_folder = static_target(paths);
    cargo_build(paths, &target_folder, &["-p", "strata-kmod-build"], "build-module-builder")?;
    Ok(target_folder.join(TARGET).join("release/strata-kmod-build"))
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
