//! Applications in a guest, whose processor is emulated: programs record by every interface, are forked, killed and moved, are
//! more than there are slots, and try what they may not.
//!
//! Leaves in the results: `applications.trace`, `applications.log` (the guest's console), and `host-status.log`: what
//! `strata-agent status` says where there is no trace region.

use crate::build::binaries;
use crate::machine::host::{HostResult, HostRun};
use crate::provision::Lab;
use crate::scenarios::{ScenarioError, emulated};

/// Processes of a crowd of root's, who may have all slots.
pub const CROWD: u32 = 40;
/// Processes of a crowd of another user's, and of one of two users'.
pub const USERS_CROWD: u32 = 20;

/// Starts with one CPU; the second one comes online when a process records already.
const GUEST_SCRIPT: &str = include_str!("applications/guest.sh");

const HOST_SCRIPT: &str = include_str!("applications/host.sh");

/// Runs the guest in the run folder `name`.
///
/// # Errors
///
/// When a program cannot be built, the guest image cannot be made, or the guest fails; what the programs
/// in the guest do is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let programs = binaries::build_applications(&lab.paths)?;
    let image = lab.paths.images().join("applications.cpio");
    let script = GUEST_SCRIPT.replace("USERS_CROWD", &USERS_CROWD.to_string()).replace("CROWD", &CROWD.to_string());
    let guest = lab.kernels.emulated_guest_image()?.script("applications", &script);
    programs.iter().fold(guest, |guest, (name, file)| guest.program(name, file)).write_file(&image)?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    for (name, file) in programs.iter().filter(|(name, _)| *name == "strata-agent") {
        request = request.file(name, file);
    }
    emulated(lab, &request)
}
