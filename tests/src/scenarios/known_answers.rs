//! A guest whose tasks wait for causes that are known, for the end-to-end tests of `strata why`: each load says itself
//! how long it waited, and for whom.
//!
//! One guest with two vCPUs and a slow disk does one load after the other; those that others wait for run on its
//! second vCPU, which has a CPU of the host for itself. Five loads are disturbed from outside, once they have said
//! that they begin: by a pause of the machine, by a process that computes on that CPU, by one that does so in bursts
//! and before all others, by a second VM, which is paused but for that time, and by one like the second on the CPU of the
//! host's thread that moves the guest's packets (vhost-net). Beside `trace` and `guest.log` there
//! are what those know of themselves, `hog.log`, `bursts.log`, `holdup.log` and `neighbour.log`, the second VM's `neighbour`, and
//! `blind`, the trace of a session that began in the first VM before all loads and records no interrupts.

use crate::machine::host::HostResult;
use crate::paths::Paths;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError, analysis};

/// Name of the second VM.
pub const NEIGHBOUR: &str = "neighbour";
/// Delay of each request to the disk, ms.
pub const DISK_DELAY_MS: u64 = 500;
/// Reads of the disk, in each of the two loads that read.
pub const READS: u64 = 3;

/// Modules of the guest beside the usual ones, and those of its host.
const MODULES: [&[&str]; 2] = [&["virtio_net"], &["tun", "vhost_net"]];

const GUEST_SCRIPT: &str = include_str!("known_answers/guest.sh");

const NEIGHBOUR_SCRIPT: &str = include_str!("known_answers/neighbour.sh");

const HOST_SCRIPT: &str = include_str!("known_answers/host.sh");

/// Runs the VMs once for all tests of one test run.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub fn once_per_test_run(paths: &Paths) -> Result<HostResult, String> {
    scenarios::once(paths, "known-answers", run)
}

/// Runs the VMs in the run folder `name`.
///
/// # Errors
///
/// When an image cannot be made, or the host or the first guest fails.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let scripts = [("loads", GUEST_SCRIPT), ("neighbour", NEIGHBOUR_SCRIPT)];
    analysis::run_loads(lab, name, &scripts, HOST_SCRIPT, MODULES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_vm_has_the_name_that_tests_look_for() {
        assert!(HOST_SCRIPT.contains(&format!("--name {NEIGHBOUR} ")));
    }

    #[test]
    fn scripts_do_what_the_constants_say() {
        assert!(HOST_SCRIPT.contains(&format!("delay={DISK_DELAY_MS}ms")));
        assert!(["reads", "chain"].iter().all(|load| GUEST_SCRIPT.contains(&format!("{load} /dev/vda {READS}\n"))));
    }
}
