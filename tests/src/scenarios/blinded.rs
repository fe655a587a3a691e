//! Guests in which a CPU never begins to record, or may not follow sessions: it is never there, or tasks that nothing ordinary
//! preempts keep every CPU. One boot of the host.
//!
//! Each scenario leaves `NAME.log`, `NAME.status` and `NAME.trace`. The second CPU of `absent` never comes; `alone` is the
//! same guest without one. `absent-status.log` is what `strata ctl status` said of the former, and `kept-control.log` what
//! it said while all CPUs of another were kept. There `kept-other.trace` and `kept-fresh.trace` are of sessions that were
//! made meanwhile, the latter of an event that no session had before.

use crate::build::binaries::{self, Purpose};
use crate::fetch::kernel_packages::{KernelChoice, Suite};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::{self, Lab, ProvisionError};
use crate::scenarios::ScenarioError;
use std::time::Duration;

/// The second CPU never comes.
const ABSENT: &str = include_str!("blinded/absent.sh");

/// A task on each CPU that nothing but a task of a higher real-time priority preempts.
const KEPT: &str = "\
keep_cpus 15
workload --events 100 > /dev/null && echo 'workload done'
";

const HOST_SCRIPT: &str = include_str!("blinded/host.sh");

/// Why the scenarios could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BlindedError {
    /// A kernel or its module could not be had.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// The host or an image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Runs all scenarios in the run folder `name`.
///
/// # Errors
///
/// When a kernel cannot be had, a module not be built, or the host fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, BlindedError> {
    let realtime = provision::kernel(&lab.paths, KernelChoice::realtime(Suite::Bookworm))?;
    let realtime_agent = provision::agent_for(&lab.paths, &realtime)?;
    let keep_cpus = binaries::build_example(&lab.paths, Purpose::Test, "keep_cpus").map_err(ScenarioError::from)?;
    let mut request = HostRun::new(name, HOST_SCRIPT).file("strata", &lab.binaries.strata);
    for (kernel, kernels, agent) in [("cloud", &lab.kernels, &lab.agent), ("rt", &realtime, &realtime_agent)] {
        let image = lab.paths.images().join(format!("blinded-{kernel}.cpio"));
        let mut guest = kernels.guest_image().map_err(ScenarioError::from)?;
        for (name, script) in [("absent", ABSENT), ("kept", KEPT)] {
            guest = guest.script(name, script);
        }
        guest = guest.program("workload", &lab.binaries.workload).program("keep_cpus", &keep_cpus);
        guest.write_file(&image).map_err(ScenarioError::from)?;
        request = request
            .file(&format!("vmlinux-{kernel}"), &kernels.vmlinux)
            .file(&format!("guest-{kernel}.cpio"), &image)
            .file(&format!("strata-{kernel}.ko"), agent);
    }
    request.timeout = Duration::from_secs(560);
    let result = lab.host.run(&lab.paths.runs(), &request).map_err(ScenarioError::from)?;
    Ok(result.success(name).map_err(ScenarioError::from)?)
}
