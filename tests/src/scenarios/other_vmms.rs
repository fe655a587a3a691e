//! VMs of VMMs that other people make, recorded from outside, one after the other: of alioth, with the lab's guest, and of
//! libkrun, with a kernel of its own.
//!
//! Each guest does a load of known cost once it is recorded. Of each, `NAME` is the recording, `NAME.log` what VMM and
//! guest wrote, `NAME.status` how the VMM ended, `NAME-listed.log` the list of `strata attach` before and `NAME-ps.log`
//! that of `strata ps` during the recording, and `NAME-attach.log` and `NAME-attach.status` are those of `strata attach`.

use crate::build::shared_objects;
use crate::fetch::other_vmms;
use crate::machine::host::{HostError, HostResult, HostRun};
use crate::machine::nested;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError};
use std::path::PathBuf;

/// How long each vCPU computes, s.
pub const COMPUTED_SECONDS: u32 = 3;
/// What alioth's guest writes to its console, character by character: this character, so many times.
pub const WRITTEN: (char, usize) = ('~', 1000);
/// Of how many ports libkrun's guest reads a byte each, from this one on, on its vCPU 1.
pub const PORTS_READ: (u16, usize) = (0x2000, 500);
/// How long libkrun's guest is paused, s.
pub const PAUSED_SECONDS: u32 = 3;

/// The scripts, in which these figures are filled in.
const ALIOTH_LOAD: &str = include_str!("other_vmms/alioth_load.sh");
const HOST_SCRIPT: &str = include_str!("other_vmms/host.sh");

/// Runs the VMs in the run folder `name`, on an emulated host: what it has is known.
///
/// # Errors
///
/// When a VMM cannot be had, an image not be made, or the host fails; what a VM does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let mut vmms = other_vmms::libkrun(&lab.paths)?;
    vmms.push(("alioth".to_owned(), other_vmms::alioth(&lab.paths)?));
    run_with(lab, name, vmms)
}

/// The same, with the files of the VMMs by their names on the host.
fn run_with(lab: &Lab, name: &str, vmms: Vec<(String, PathBuf)>) -> Result<HostResult, ScenarioError> {
    let [image, disk] = ["other-vmms.cpio", "other-vmms.img"].map(|name| lab.paths.images().join(name));
    lab.kernels.emulated_guest_image()?.script("load", &filled(ALIOTH_LOAD)).write_file(&image)?;
    scenarios::make_disk(&disk, &lab.paths.logs())?;
    let programs: Vec<_> = vmms.iter().map(|(_, path)| path.clone()).collect();
    let mut request = HostRun::new(name, &filled(HOST_SCRIPT))
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("disk.img", &disk);
    request.files.extend(vmms);
    request.files.extend(shared_objects::named(&programs)?);
    request.files.extend(scenarios::host_modules(lab, &["loop"])?);
    let host = lab.kernels.nested_host(&lab.paths)?;
    let result = nested::run(&host, &lab.paths.runs(), &request).map_err(HostError::from)?;
    Ok(result.success(name)?)
}

fn filled(script: &str) -> String {
    let ((character, times), (first, ports)) = (WRITTEN, PORTS_READ);
    [
        ("@COMPUTED_SECONDS@", COMPUTED_SECONDS.to_string()),
        ("@CHARACTER@", character.to_string()),
        ("@TIMES@", times.to_string()),
        ("@FIRST_PORT@", first.to_string()),
        ("@PORTS@", ports.to_string()),
        ("@PAUSED_SECONDS@", PAUSED_SECONDS.to_string()),
    ]
    .iter()
    .fold(script.to_owned(), |script, (name, value)| script.replace(name, value))
}
