//! Every tracepoint of a guest's kernel: a guest whose processor is emulated records all events at once, tells how its own
//! kernel lays them out, and unloads the module under load; and another one's choice of events is changed while it runs.
//!
//! Leaves in the results: `all.trace` and `all.log`; `guest.tar` with the kernel's `format` files in `formats` and the
//! kernel's messages in `dmesg`; `chosen.trace`, and what `strata ctl` said in `control.log`.

use crate::machine::host::{HostResult, HostRun};
use crate::provision::{Kernels, Lab};
use crate::scenarios::{ScenarioError, emulated};
use std::path::Path;

/// Records everything, and ends with the module unloaded under load. The raw disk takes an archive.
const ALL: &str = include_str!("tracepoints/all.sh");

/// Works until it is stopped. What the module said is for whoever reads the log of a run that failed.
const CHOSEN: &str = include_str!("tracepoints/chosen.sh");

const HOST_SCRIPT: &str = include_str!("tracepoints/host.sh");

/// Runs it with guests of the kernel `kernels` and its agent `agent`, in the run folder `name`.
///
/// # Errors
///
/// When the guest image cannot be made or the script fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, kernels: &Kernels, agent: &Path, name: &str) -> Result<HostResult, ScenarioError> {
    let image = lab.paths.images().join(format!("{name}.cpio"));
    kernels
        .emulated_guest_image()?
        .script("all", ALL)
        .script("chosen", CHOSEN)
        .program("workload", &lab.binaries.workload)
        .write_file(&image)?;
    let request = HostRun::new(name, HOST_SCRIPT)
        .file("vmlinux", &kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", agent);
    emulated(lab, &request)
}
