//! Domains of libvirt, confined by AppArmor as Debian does it, that are recorded from outside.
//!
//! The host's root is a Debian 13 with libvirt's daemons and QEMU, on persistent memory. Leaves `web`, the recording of a
//! domain with a region while it is paused, gets, loses and gets a third vCPU, and is destroyed; beside it
//! `web-attach.log`, `web-attach.status`, the guest's console `web.log`, the profile that confines its QEMU in
//! `confined`, and in `known.log` for how long it was paused at least. `by-name`, `by-number` and `by-uuid` are recordings
//! of a domain whose name has a blank; `by-nobody.log` is the answer for one that is not there.

use crate::build::debian_root::DebianRoot;
use crate::machine::host::{HostError, HostResult, HostRun};
use crate::machine::nested;
use crate::process;
use crate::provision::Lab;
use crate::scenarios::ScenarioError;
use std::process::Command;
use std::time::Duration;

/// Makes the image `$2` of the root `$1`, of whole pages as blocks and a multiple of 128 MiB.
const MAKE_IMAGE: &str = include_str!("libvirt/make_image.sh");
const HOST_SCRIPT: &str = include_str!("libvirt/host.sh");
const GUEST_SCRIPT: &str = include_str!("libvirt/guest.sh");

/// Runs the domains in the run folder `name`.
///
/// # Errors
///
/// When the root or an image cannot be made, or the host fails; what a domain does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let root = DebianRoot::libvirt(&lab.paths)?;
    let images = lab.paths.images();
    let (debian, guest) = (images.join("libvirt.img"), images.join("libvirt.cpio"));
    let mut make = Command::new("sh");
    make.args(["-c", MAKE_IMAGE, "make-image"]).arg(root.folder()).arg(&debian);
    process::run_logged(&mut make, &lab.paths.logs().join("libvirt-image.log"))?;
    lab.kernels
        .guest_image()?
        .program("workload", &lab.binaries.workload)
        .file("strata.ko", &lab.agent)
        .script("work", GUEST_SCRIPT)
        .write_file(&guest)?;
    let scripts = lab.paths.workspace().join("tests/src/scenarios/libvirt");
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &guest)
        .file("domains.sh", &scripts.join("domains.sh"))
        .file("domain.xml", &scripts.join("domain.xml"));
    request.persistent_memory = Some(debian);
    request.timeout = Duration::from_secs(900);
    let host = lab.kernels.nested_host(&lab.paths)?;
    Ok(nested::run(&host, &lab.paths.runs(), &request).map_err(HostError::from)?.success(name)?)
}
