//! A guest, whose processor is emulated, in which a task dies in a probe, in the midst of a record; its CPU and the other one
//! then fill their rings several times over.
//!
//! Leaves the results of a guest for each mode, by its name. On each CPU `/tmp/after-CPU` is executed after the death and the
//! laps.

use crate::build::test_module::{self, TestModuleError};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::Lab;
use crate::scenarios::{ScenarioError, emulated};

/// The guests, each called by the mode in which it records.
pub const GUESTS: [&str; 2] = [DISCARD, "flight-recorder"];
/// The first one.
pub const DISCARD: &str = "discard";
/// Bytes that a program reads one by one on each CPU, after the death.
pub const CALLS: u64 = 30_000;
/// Sub-buffers of a ring. A lap of them takes far fewer records than [`CALLS`] make.
const SUB_BUFFERS: u32 = 4;

/// `@CALLS@` is filled in.
const GUEST_SCRIPT: &str = include_str!("dying_task/guest.sh");

/// `@GUESTS@` and `@SUB_BUFFERS@` are filled in.
const HOST_SCRIPT: &str = include_str!("dying_task/host.sh");

/// Why the scenario could not be run.
#[derive(Debug, thiserror::Error)]
pub enum DyingTaskError {
    /// The module with the fault could not be built.
    #[error(transparent)]
    TestModule(#[from] TestModuleError),
    /// A guest or an image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Runs a guest in each mode, in the run folder `name`.
///
/// # Errors
///
/// When the module or the image cannot be made or the script fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, DyingTaskError> {
    let faulting = test_module::build(&lab.paths, &lab.kernels, test_module::FAULTING)?;
    let image = lab.paths.images().join("dying-task.cpio");
    let guest = lab.kernels.emulated_guest_image().map_err(ScenarioError::from)?;
    let guest = guest.script("dying", &GUEST_SCRIPT.replace("@CALLS@", &CALLS.to_string()));
    guest.file("modules/faulting.ko", &faulting).write_file(&image).map_err(ScenarioError::from)?;
    let script = HOST_SCRIPT.replace("@GUESTS@", &GUESTS.join(" ")).replace("@SUB_BUFFERS@", &SUB_BUFFERS.to_string());
    let request = HostRun::new(name, &script)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    Ok(emulated(lab, &request)?)
}
