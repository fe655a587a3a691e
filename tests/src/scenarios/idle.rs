//! A guest that does nothing, without the agent, with it and no session, and with a session: how often its CPUs wake up. One
//! boot of the host.
//!
//! Leaves in the results: `idle.trace`, `idle.log`, `idle.status`, and what `strata ctl` said in `control.log`. In the log, a
//! line `idle STATE: LABEL COUNT` for each kind of interrupt in each [`STATES`], and `own STATE COUNT`: how often the guest's
//! kernel ran anything of the agent.

use crate::machine::host::{HostResult, HostRun};
use crate::provision::Lab;
use crate::scenarios::ScenarioError;
use std::time::Duration;

/// What the guest is in, one after the other.
pub const STATES: [&str; 3] = ["without", "module", "session"];
/// How long the guest does nothing in each of [`STATES`], seconds.
pub const SECONDS: u64 = 20;

/// `@SECONDS@` is filled in. Sums what the CPUs have counted.
const IDLING: &str = include_str!("idle/idling.sh");

/// `@SECONDS@` is filled in.
const HOST_SCRIPT: &str = include_str!("idle/host.sh");

/// Runs it in the run folder `name`.
///
/// # Errors
///
/// When the guest image cannot be made or the host fails; what the guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let image = lab.paths.images().join("idle.cpio");
    let script = IDLING.replace("@SECONDS@", &SECONDS.to_string());
    let guest = lab.kernels.guest_image()?.script("idling", &script).file("modules/strata.ko", &lab.agent);
    guest.write_file(&image)?;
    let limit = 240 + 4 * SECONDS;
    let mut request = HostRun::new(name, &HOST_SCRIPT.replace("@SECONDS@", &limit.to_string()))
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image);
    request.timeout = Duration::from_secs(2 * limit + 100);
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}
