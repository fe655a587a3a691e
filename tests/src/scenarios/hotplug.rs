//! What a kernel does beside being traced, all at once: a CPU goes and comes, modules with tracepoints go and come, and the
//! host changes which events it wants. One boot of the host.
//!
//! Leaves in the results: `hotplug.trace`, `hotplug.log`, `hotplug.status`, and what `strata ctl` said in `control.log`.

use crate::build::test_module::{self, TestModuleError};
use crate::fetch::module_tree::{ModuleTree, ModulesError};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::Lab;
use crate::scenarios::ScenarioError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Times that the CPU goes and comes in a test.
pub const CYCLES: u64 = 12;
/// A guest prints this when its kernel's log holds no warning.
pub const CLEAN: &str = "guest kernel log is clean";
/// Real modules with tracepoints of their own.
const MODULES: [&str; 1] = ["jbd2"];

/// Why the scenario could not be run.
#[derive(Debug, thiserror::Error)]
pub enum HotplugError {
    /// The module with foreign tracepoints could not be built.
    #[error(transparent)]
    TestModule(#[from] TestModuleError),
    /// The kernel package lacks a module.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The host or the image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// `@CYCLES@` and `@MODULES@`, in the order of loading, are filled in.
const CHANGING: &str = include_str!("hotplug/changing.sh");

/// `@SECONDS@` is filled in.
const HOST_SCRIPT: &str = include_str!("hotplug/host.sh");

/// Runs it in the run folder `name`; the CPU goes and comes `cycles` times.
///
/// # Errors
///
/// When a module cannot be had, the guest image not be made or the host fails; what the guest does is for the caller to
/// judge.
pub fn run(lab: &Lab, name: &str, cycles: u64) -> Result<HostResult, HotplugError> {
    let colliding = test_module::build(&lab.paths, &lab.kernels, test_module::COLLIDING)?;
    let mut modules = ModuleTree::open(&lab.kernels.modules)?.closure(&MODULES)?;
    modules.push(colliding);
    let named = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names: Vec<String> = modules.iter().map(named).collect();
    let script = CHANGING.replace("@CYCLES@", &cycles.to_string()).replace("@MODULES@", &names.join(" "));
    let image = lab.paths.images().join("hotplug.cpio");
    let mut guest = lab.kernels.guest_image().map_err(ScenarioError::from)?;
    guest = guest.script("changing", &script).program("workload", &lab.binaries.workload);
    for (module, name) in modules.iter().zip(&names) {
        guest = guest.file(&format!("modules/{name}"), module);
    }
    let other = lab.paths.images().join("strata-other-release.ko");
    write_other_release(&lab.agent, &lab.kernels.packages.release, &other)
        .map_err(|source| HotplugError::File { path: other.clone(), source })?;
    guest = guest.file("modules/other-release.ko", &other);
    guest.write_file(&image).map_err(ScenarioError::from)?;
    let limit = 150 + 5 * cycles;
    let mut request = HostRun::new(name, &HOST_SCRIPT.replace("@SECONDS@", &limit.to_string()))
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    request.timeout = Duration::from_secs(2 * limit + 100);
    let result = lab.host.run(&lab.paths.runs(), &request).map_err(ScenarioError::from)?;
    Ok(result.success(name).map_err(ScenarioError::from)?)
}

/// Writes a copy of `module` that says everywhere that it is for another release than `release`. The kernel itself takes it:
/// it looks at the versions of symbols only.
fn write_other_release(module: &Path, release: &str, copy: &Path) -> io::Result<()> {
    let mut bytes = fs::read(module)?;
    let other: Vec<u8> =
        release.bytes().map(|byte| if byte.is_ascii_digit() { b'0' + (byte - b'0' + 1) % 10 } else { byte }).collect();
    let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(release.as_bytes())).collect();
    for at in places {
        bytes[at..at + other.len()].copy_from_slice(&other);
    }
    fs::write(copy, bytes)
}
