//! The agent on a kernel that checks itself ([`crate::build::debug_kernel`]): everything that it can be asked for, at once and
//! again and again, on a processor that is emulated: such a kernel is too slow for a host that is emulated itself, and what
//! that host's virtualisation gets wrong would look like the kernel's mistake.
//!
//! Leaves in its results: `debug.log` (the guest's console), `debug.trace`, and what `strata ctl` said in `control.log`.

use crate::build::binaries::{self, Purpose};
use crate::build::debug_kernel::DebugKernel;
use crate::build::guest_image::GuestImage;
use crate::build::initramfs::InitramfsError;
use crate::build::test_module::{self, TestModuleError};
use crate::machine::direct::DirectError;
use crate::machine::host::HostRun;
use crate::paths::Paths;
use crate::process::ProcessError;
use crate::provision::{self, ProvisionError};
use crate::scenarios::results::Results;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Processors of the guest.
const CPUS: u32 = 3;
/// How long the guest may take to boot, and to come to an end, beside the time that it works.
const SLACK: Duration = Duration::from_secs(1500);

/// What no line of a kernel's log may hold: the checkers' reports, and those of the kernel itself.
const REPORTS: &str =
    "BUG|WARNING|KASAN|ODEBUG|INFO: |Oops|Call Trace|stalls|blocked for more|general protection|suspicious";

/// `@SECONDS@` and `@REPORTS@` are filled in. Everything goes on at once until the time is over; then the checkers are shown
/// to be awake by what they have to report.
const GUEST_SCRIPT: &str = include_str!("debug_kernel/guest.sh");

/// What the guest's console says of each checker that was provoked.
const PROVOKED: [&str; 4] =
    ["KASAN: ", "sleeping function called from invalid context", "ODEBUG: free active", "possible circular locking"];

/// `@CPUS@` is filled in. Changes what the main session records, and has others come, be written as snapshots and go, until
/// the guest has ended.
const HOST_SCRIPT: &str = include_str!("debug_kernel/host.sh");

/// Why the guest could not be run.
#[derive(Debug, thiserror::Error)]
pub enum DebugKernelRunError {
    /// The agent's module or a program of ours could not be built.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// A module for the test could not be built.
    #[error(transparent)]
    TestModule(#[from] TestModuleError),
    /// A program could not be built.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The guest's image could not be made.
    #[error(transparent)]
    Image(#[from] InitramfsError),
    /// The script could not be run.
    #[error(transparent)]
    Script(#[from] DirectError),
}

/// What became of the guest.
#[derive(Debug)]
pub struct DebugKernelRun {
    /// The folder with what it left.
    pub folder: PathBuf,
    /// What the guest wrote to its console.
    pub console: String,
    /// What `strata ctl` said, and last how many rounds of sessions there were.
    pub control: String,
}

impl DebugKernelRun {
    /// What is not as it should be: nothing, when the guest came to its end, its log has no report of a checker, and every
    /// checker was awake.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        complaints(&self.console)
    }
}

fn complaints(console: &str) -> Vec<String> {
    let (log, provoked) = console.split_once("== provoked").unwrap_or((console, ""));
    let expected = ["workload done", "the log has no report"];
    let absent =
        expected.into_iter().filter(|text| !log.contains(text)).map(|text| format!("the guest did not say '{text}'"));
    let silent = PROVOKED.into_iter().filter(|text| !provoked.contains(text));
    let asleep = silent.map(|text| format!("no checker reported '{text}' when it was provoked"));
    // reports that only the console saw: the kernel's log is finite
    let reports = log
        .lines()
        .filter(|line| ["BUG: ", "WARNING: ", "KASAN: ", "ODEBUG: "].iter().any(|report| line.contains(report)));
    absent.chain(asleep).chain(reports.map(|line| format!("reported: {line}"))).collect()
}

/// Runs the guest on `kernel` for `seconds` in the run folder `name`.
///
/// # Errors
///
/// When something cannot be built or the script not be run; what the guest does is for the caller to judge.
pub fn run(
    paths: &Paths,
    kernel: &DebugKernel,
    name: &str,
    seconds: u64,
) -> Result<DebugKernelRun, DebugKernelRunError> {
    let image = paths.images().join(format!("{name}.cpio"));
    guest_image(paths, kernel, seconds, &image)?;
    let mut request = HostRun::new(name, &HOST_SCRIPT.replace("@CPUS@", &CPUS.to_string()))
        .file("bzImage", &kernel.kernels.bzimage)
        .file("guest.cpio", &image);
    request.timeout = Duration::from_secs(seconds) + SLACK;
    let folder = provision::emulated_guests(paths)?.run(&paths.runs(), &request)?.output;
    let results = Results(folder.clone());
    Ok(DebugKernelRun { console: results.text("debug.log"), control: results.text("control.log"), folder })
}

fn guest_image(paths: &Paths, kernel: &DebugKernel, seconds: u64, image: &Path) -> Result<(), DebugKernelRunError> {
    let agent = provision::agent_for(paths, &kernel.kernels)?;
    let module = |module| test_module::build_with(paths, &kernel.kernels, module, kernel.make());
    let script = GUEST_SCRIPT.replace("@SECONDS@", &seconds.to_string()).replace("@REPORTS@", REPORTS);
    Ok(GuestImage::new(&kernel.kernels.busybox, &[])
        .script("work", &script)
        .program("workload", &binaries::build_example(paths, Purpose::Test, "workload")?)
        .program("processes", &binaries::build_example(paths, Purpose::Test, "processes")?)
        .file("strata.ko", &agent)
        .file("colliding.ko", &module(test_module::COLLIDING)?)
        .file("provoking.ko", &module(test_module::PROVOKING)?)
        .write_file(image)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "workload done\nthe log has no report\n== provoked\n\
                        BUG: KASAN: slab-out-of-bounds\nBUG: sleeping function called from invalid context\n\
                        ODEBUG: free active\nWARNING: possible circular locking dependency detected\n";

    #[test]
    fn guest_whose_checkers_report_what_was_provoked_only_is_good() {
        assert_eq!(complaints(GOOD), Vec::<String>::new());
    }

    #[test]
    fn reports_sleeping_checkers_and_early_ends_are_complained_of() {
        let reported = format!("BUG: KASAN: use-after-free in strata\n{GOOD}");
        let asleep = GOOD.replace("ODEBUG", "nothing");

        assert_eq!(complaints(&reported).len(), 1, "{reported}");
        assert_eq!(complaints(&asleep).len(), 1, "{asleep}");
        assert_eq!(complaints("guest is up").len(), 6);
    }
}
