//! Guests without our module, whose kernel's own ring the host reads at their end and at snapshots. One boot of the
//! host.
//!
//! Each kernel leaves `NAME.log`, `NAME.status` and `NAME.trace` of a guest that panics, with its
//! bzImage, which moves itself at random; of the first of [`KERNELS`], [`SNAPSHOT`] is a snapshot of its flight recorder while the
//! guest was at work. `elf` is the ELF image of the first, powered off, with another choice of events and a flight
//! recorder; `old` is what strata says of a kernel before Linux 6.12.

use crate::fetch::kernel_packages::{KernelChoice, Suite};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::{self, Lab, ProvisionError};
use crate::scenarios::ScenarioError;
use std::time::Duration;

/// A kernel, by the name of what it leaves.
pub type NamedKernel = (&'static str, KernelChoice);

/// The kernels, the oldest one first, which stands for all.
pub const KERNELS: [NamedKernel; 2] = [
    ("panic-6.12", KernelChoice::cloud(Suite::BookwormBackports)),
    ("panic-7", KernelChoice::cloud(Suite::TrixieBackports)),
];

/// The snapshot of the running guest.
pub const SNAPSHOT: &str = "running";

const GUEST_SCRIPT: &str = include_str!("agentless/guest.sh");

const HOST_SCRIPT: &str = include_str!("agentless/host.sh");

/// Why the scenarios could not be run.
#[derive(Debug, thiserror::Error)]
pub enum AgentlessError {
    /// A kernel could not be had.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// The host or an image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Runs all of them in the run folder `name`, with panics of `kernels`: the first of [`KERNELS`], and any others.
///
/// # Errors
///
/// When a kernel cannot be had or the host fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str, kernels: &[NamedKernel]) -> Result<HostResult, AgentlessError> {
    let others: Vec<_> = kernels.iter().skip(1).map(|(name, _)| *name).collect();
    let script = HOST_SCRIPT.replace("@OTHERS@", &others.join(" "));
    let mut request =
        HostRun::new(name, &script).file("strata", &lab.binaries.strata).file("old.vmlinux", &lab.kernels.vmlinux);
    request.timeout = Duration::from_secs(600);
    for (index, (name, choice)) in kernels.iter().enumerate() {
        let kernel = provision::kernel(&lab.paths, *choice)?;
        let image = lab.paths.images().join(format!("agentless-{name}.cpio"));
        let guest = kernel.guest_image().map_err(ScenarioError::from)?.program("workload", &lab.binaries.workload);
        let guest = guest.script("panic", GUEST_SCRIPT).script("hello", "workload --events 2000 > /dev/null\n");
        guest.write_file(&image).map_err(ScenarioError::from)?;
        request = request.file(&format!("{name}.cpio"), &image).file(&format!("{name}.bzimage"), &kernel.bzimage);
        if index == 0 {
            request = request.file("elf.vmlinux", &kernel.vmlinux);
        }
    }
    Ok(lab
        .host
        .run(&lab.paths.runs(), &request)
        .map_err(ScenarioError::from)?
        .success(name)
        .map_err(ScenarioError::from)?)
}
