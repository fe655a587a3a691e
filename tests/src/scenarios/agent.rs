//! The agent on kernels of the lab, under load, and where it cannot be loaded: guests whose processors are emulated.
//!
//! Each scenario leaves `NAME.log` (the guest's console), `NAME.status` and, with a trace, `NAME.trace`. Those named after a
//! kernel, and the one with a kernel that counts its calls, load and unload the module under load, take a CPU away and
//! back, let the machine sleep, as far as it can, and reset the region's device. `newer-region.log` says so when the guest of
//! that name has not written to its region.

use crate::fetch::kernel_packages::{KernelChoice, Suite};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::{self, Kernels, Lab, ProvisionError};
use crate::scenarios::{ScenarioError, emulated};
use shared_ring::layout::{ABI_VERSION, SUPERBLOCK};
use std::path::PathBuf;

/// The oldest kernel and the newest one; [`COUNTED_CALLS`]'s lies between them.
pub const SAMPLE: [KernelChoice; 2] = [KernelChoice::DEFAULT, KernelChoice::realtime(Suite::TrixieBackports)];
/// A guest prints this when all went well and its kernel's log holds no warning.
pub const CLEAN: &str = "guest kernel log is clean";
/// A guest whose kernel counts its calls (`retbleed=stuff`).
pub const COUNTED_CALLS: &str = "counted-calls";
/// Its kernel.
const COUNTED_CALLS_KERNEL: KernelChoice = KernelChoice::cloud(Suite::BookwormBackports);
/// Functions of the module's Rust half that its C half calls. What the kernel has put before each is shown in a line
/// `before FUNCTION:` and 16 bytes.
pub const CALLED: [&str; 3] = ["strata_reserve", "strata_commit", "strata_process_publish"];
/// Times that the module is unloaded and loaded again.
pub const RELOADS: u32 = 3;

/// What the module has to pass on every kernel. It lies where the boot overlay put it.
const HARDSHIP: &str = include_str!("agent/hardship.sh");

/// The hardship, and what lies before functions then: read from the kernel's memory, since its log names only the first
/// function that has no room before it, which is one of its own.
const COUNTED: &str = include_str!("agent/counted.sh");

/// A guest without an agent that works still does its work.
const WITHOUT: &str = include_str!("agent/without.sh");

/// What stands between two `@` is filled in.
const HOST_SCRIPT: &str = include_str!("agent/host.sh");

/// Why the scenarios could not be run.
#[derive(Debug, thiserror::Error)]
pub enum AgentScenarioError {
    /// A kernel or its module could not be had.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// A guest or an image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Runs all scenarios in the run folder `name`, those under load on each of `kernels`.
///
/// # Errors
///
/// When a kernel cannot be had, its module not be built, or the script fails; what a guest does is for the caller to
/// judge.
pub fn run(lab: &Lab, name: &str, kernels: &[KernelChoice]) -> Result<HostResult, AgentScenarioError> {
    let mut request = HostRun::new(name, &host_script(kernels));
    let fixed = [KernelChoice::DEFAULT, COUNTED_CALLS_KERNEL];
    let others = fixed.into_iter().filter(|choice| !kernels.contains(choice));
    for choice in kernels.iter().copied().chain(others) {
        let (kernels, agent) = if choice == KernelChoice::DEFAULT {
            (lab.kernels.clone(), lab.agent.clone())
        } else {
            let kernels = provision::kernel(&lab.paths, choice)?;
            let agent = provision::agent_for(&lab.paths, &kernels)?;
            (kernels, agent)
        };
        let image = guest_image(lab, &kernels, choice)?;
        request = request
            .file(&format!("vmlinux-{choice}"), &kernels.vmlinux)
            .file(&format!("guest-{choice}.cpio"), &image)
            .file(&format!("strata-{choice}.ko"), &agent);
    }
    Ok(emulated(lab, &request)?)
}

fn guest_image(lab: &Lab, kernels: &Kernels, kernel: KernelChoice) -> Result<PathBuf, ScenarioError> {
    let image = lab.paths.images().join(format!("agent-{kernel}.cpio"));
    kernels
        .emulated_guest_image()?
        .script("hardship", HARDSHIP)
        .script("counted", &COUNTED.replace("@CALLED@", &CALLED.join(" ")))
        .script("without", WITHOUT)
        .program("workload", &lab.binaries.workload)
        .write_file(&image)?;
    Ok(image)
}

fn host_script(kernels: &[KernelChoice]) -> String {
    // a layout that is one major version ahead, as printf's octal escapes
    let newer = ABI_VERSION + (1 << 16);
    let bytes: String = newer.to_le_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect();
    let offset = SUPERBLOCK.fields.iter().find(|(name, _)| *name == "abi_version").map_or(0, |(_, offset)| *offset);
    HOST_SCRIPT
        .replace("@KERNELS@", &kernels.iter().map(KernelChoice::to_string).collect::<Vec<_>>().join(" "))
        .replace("@COUNTED_CALLS@", COUNTED_CALLS)
        .replace("@COUNTED_CALLS_KERNEL@", &COUNTED_CALLS_KERNEL.to_string())
        .replace("@VERSION@", &bytes)
        .replace("@OFFSET@", &offset.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_is_given_the_next_major_version() {
        let script = host_script(&SAMPLE);

        let (minor, major) = (ABI_VERSION & 0xffff, (ABI_VERSION >> 16) + 1);
        assert!(script.contains(&format!("\\{minor:03o}\\000\\{major:03o}\\000' | dd")), "{script}");
        assert!(
            script.contains("seek=8 ") && !["@OFFSET", "@KERNELS", "@COUNTED"].iter().any(|mark| script.contains(mark))
        );
    }
}
