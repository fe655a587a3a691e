//! VMs on one host: two of strata's at the same time, then five that are recorded from outside.
//!
//! `one` and `two` are the traces of two VMs called vm0, whose vCPUs share a CPU. `outside` is the recording that
//! `strata attach` made of a guest that runs under `strata run` without a trace, `qemu` that of a guest under QEMU that has a
//! trace region as a device and loads the agent's module, `pmem` that of one which has it as persistent memory, `tiny`
//! that of a VMM of a few lines. `region.log` holds what `strata region create` printed. `plugged` and `again` are two
//! recordings of another guest under QEMU, which is given a region for each of them while it runs; `refused.log` is what
//! strata says of sockets that do not work, `left.log` what is in `/dev/shm` in the end. Beside them lie `NAME.log` and
//! `NAME.status` of each VMM, and `NAME-attach.log` and `NAME-attach.status`.

use crate::build::guest_image::{self, GuestImage};
use crate::build::{binaries, qemu_files};
use crate::fetch::module_tree::ModuleTree;
use crate::machine::host::{HostError, HostResult, HostRun};
use crate::machine::nested;
use crate::paths::Paths;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError};
use std::time::Duration;

/// Both are called vm0. Two seconds of computing in both at once make the host switch between them.
const HOST_SCRIPT: &str = include_str!("several_vms/host.sh");

/// What the guest with persistent memory has besides, as a distribution's udev loads it: it makes the memory a disk.
const PMEM_MODULES: [&str; 3] = ["virtio_pci", "nd_pmem", "virtio_pmem"];

/// What the guests do.
const GUEST_SCRIPTS: [(&str, &str); 5] = [
    ("work", include_str!("several_vms/work.sh")),
    // both vCPUs are at work when the recording begins: one that is halted is unknown until it wakes
    ("compute", include_str!("several_vms/compute.sh")),
    // the module is there before the host; applications come and go as long as both vCPUs compute: some before the
    // recording, and some while each of its layers is there
    ("traced", include_str!("several_vms/traced.sh")),
    // the region is a disk until the module is loaded, and again when the disks' driver is given the device back
    ("pmem", include_str!("several_vms/pmem.sh")),
    // the module waits for a region, which comes and goes twice; an application of each outlives it
    ("plugged", include_str!("several_vms/plugged.sh")),
];

/// Runs the VMs once for all tests of one test run.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub fn once_per_test_run(paths: &Paths) -> Result<HostResult, String> {
    scenarios::once(paths, "several-vms", run)
}

/// Runs the VMs in the run folder `name`, on an emulated host: its CPUs are known.
///
/// # Errors
///
/// When an image cannot be made or the host fails; what a VM does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let image = lab.paths.images().join("several-vms.cpio");
    guest_with(lab, lab.kernels.guest_image()?).write_file(&image)?;
    let with_pmem = lab.paths.images().join("several-vms-pmem.cpio");
    let modules = ModuleTree::open(&lab.kernels.modules)?;
    let modules = modules.closure(&[&guest_image::MODULES[..], &PMEM_MODULES].concat())?;
    guest_with(lab, GuestImage::new(&lab.kernels.busybox, &modules)).write_file(&with_pmem)?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("tiny-vmm", &binaries::build_tiny_vmm(&lab.paths)?)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("pmem.cpio", &with_pmem)
        .file("strata.ko", &lab.agent);
    request.files.extend(qemu_files::files()?);
    request.timeout = Duration::from_secs(900);
    let host = lab.kernels.nested_host(&lab.paths)?;
    let result = nested::run(&host, &lab.paths.runs(), &request).map_err(HostError::from)?;
    Ok(result.success(name)?)
}

/// The guest with what all of these have.
fn guest_with(lab: &Lab, guest: GuestImage) -> GuestImage {
    let guest = guest.program("workload", &lab.binaries.workload).file("strata.ko", &lab.agent);
    GUEST_SCRIPTS.iter().fold(guest, |guest, (name, text)| guest.script(name, text))
}
