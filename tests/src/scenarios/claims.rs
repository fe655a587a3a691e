//! How long processes of a guest wait for their slots of the trace region, with few vCPUs and with many: a slot has a ring for
//! each. One boot of the host.
//!
//! Leaves in the results, for each number of vCPUs: `claims-N.log` and `claims-N.status`.

use crate::build::binaries::{self, Purpose};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::Lab;
use crate::scenarios::ScenarioError;
use std::time::Duration;

/// vCPUs of the guest that the other one is compared with.
pub const FEW: u32 = 2;
/// How long is measured with each of [`OTHERS`], seconds.
const SECONDS: u32 = 20;
/// Numbers of other processes that claim slots meanwhile.
const OTHERS: &str = "0 1 4";

/// What stands between two `@` is filled in.
const CLAIMING: &str = include_str!("claims/claiming.sh");

/// What stands between two `@` is filled in.
const HOST_SCRIPT: &str = include_str!("claims/host.sh");

/// Runs guests of [`FEW`] and of `vcpus` vCPUs, one after the other, in the run folder `name`.
///
/// # Errors
///
/// When the program or the guest image cannot be made or the host fails; what the guests do is for the caller to judge.
pub fn run(lab: &Lab, name: &str, vcpus: u32) -> Result<HostResult, ScenarioError> {
    let claims = binaries::build_example(&lab.paths, Purpose::Test, "claims")?;
    let image = lab.paths.images().join("claims.cpio");
    let script = CLAIMING.replace("@SECONDS@", &SECONDS.to_string()).replace("@OTHERS@", OTHERS);
    lab.kernels.guest_image()?.script("claiming", &script).program("claims", &claims).write_file(&image)?;
    let limit = 200 + 5 * u64::from(vcpus);
    let host_script = HOST_SCRIPT
        .replace("@FEW@", &FEW.to_string())
        .replace("@MANY@", &vcpus.to_string())
        .replace("@LIMIT@", &limit.to_string());
    let mut request = HostRun::new(name, &host_script)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    request.timeout = Duration::from_secs(2 * limit + 100);
    // the region lies in half of it at most: 16 slots of a mebibyte for each vCPU, and the kernel's rings
    request.memory_mib = 4096 + 64 * vcpus;
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}
