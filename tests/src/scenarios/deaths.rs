//! Deaths of a guest's kernel, each of another cause, of a recording, and of the host. One boot of the host.
//!
//! Each leaves `NAME.log`, `NAME.status` and `NAME.trace`: `oops`, `soft-lockup` and `hung-task` end in the panic that
//! the guest's kernel is told to make of them, `triple-fault` and `reboot` in the machine's end. `crash-kernel` has a crash
//! kernel, which reboots, `crash-kernel.trace-snapshots/trigger-1` what the trigger on the panic before it kept; `kexec`
//! boots another kernel, which powers off. `hang` is a guest of which no CPU goes on, `hang.trace-snapshots/trigger-1`
//! what the trigger on it kept, and SIGTERM its end; `full` is stopped since the disk of its recording is full. On an
//! emulated host `crashed.trace` is what was recovered of a guest's region in persistent memory after the host crashed.

pub mod other_kernel;

use crate::build::binaries::{self, Purpose};
use crate::build::test_module::{self, TestModuleError};
use crate::machine::host::{Host, HostResult, HostRun};
use crate::process::{self, ProcessError};
use crate::provision::Lab;
use crate::scenarios::ScenarioError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Bytes of the persistent memory.
const PERSISTENT_BYTES: u64 = 320 << 20;
/// Where the VMs' folders lie in it.
const RUNTIME: &str = "runtime";

/// What the module is loaded for, on vCPU 1, and what is to be set before that.
const BY_MODULE: [(&str, &str); 5] = [
    ("oops", "echo 1 > /proc/sys/kernel/panic_on_oops"),
    ("soft-lockup", "cd /proc/sys/kernel && echo 1 > watchdog_thresh && echo 1 > softlockup_panic"),
    (
        "hung-task",
        "cd /proc/sys/kernel && echo 1 > hung_task_panic && echo 2 > hung_task_timeout_secs && \
         echo 1 > hung_task_check_interval_secs",
    ),
    ("hang", ""),
    ("triple-fault", ""),
];

/// What ends in another kernel of the machine: after a panic, and by kexec.
const OTHER_KERNEL: [(&str, &str); 2] =
    [("crash-kernel", include_str!("deaths/crash-kernel.sh")), ("kexec", include_str!("deaths/kexec.sh"))];

/// Reboots as `reboot` does, but without asking anybody.
const REBOOT: &str = include_str!("deaths/reboot.sh");

/// Records until it is stopped, or its host is no more.
const WORKING: &str = "\
echo 'guest is up'
while :; do workload --events 500 > /dev/null; done
";

const HOST_SCRIPT: &str = include_str!("deaths/host.sh");

/// Why the scenarios could not be run.
#[derive(Debug, thiserror::Error)]
pub enum DeathsError {
    /// The module that ends its kernel could not be built.
    #[error(transparent)]
    TestModule(#[from] TestModuleError),
    /// The host or the image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The persistent memory could not be made or read.
    #[error("cannot use the persistent memory {}", path.display())]
    PersistentMemory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A program that makes or reads it failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Causes all of them, in the run folder `name`.
///
/// # Errors
///
/// When the module cannot be built or the host fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, DeathsError> {
    let dying = test_module::build(&lab.paths, &lab.kernels, test_module::DYING)?;
    let image = lab.paths.images().join("deaths.cpio");
    let mut guest = lab.kernels.guest_image().map_err(ScenarioError::from)?;
    guest = guest.program("workload", &lab.binaries.workload).file("modules/dying.ko", &dying);
    for (how, set) in BY_MODULE {
        let load = format!("taskset 2 insmod /modules/dying.ko how={how}");
        guest = guest.script(how, &format!("workload --events 100 > /dev/null\n{set}\n{load}\nsleep 60\n"));
    }
    for (kernel, end) in [("reset", other_kernel::RESET), ("power-off", other_kernel::POWER_OFF)] {
        guest = guest.bytes(&format!("modules/{kernel}.bzimage"), other_kernel::image(end));
    }
    for (name, script) in OTHER_KERNEL {
        guest = guest.script(name, script);
    }
    let second_kernel = binaries::build_example(&lab.paths, Purpose::Test, "second_kernel")?;
    guest = guest.program("second_kernel", &second_kernel);
    guest = guest.script("reboot", REBOOT).script("full", WORKING).script("crashed", WORKING);
    guest.write_file(&image).map_err(ScenarioError::from)?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    request.timeout = Duration::from_secs(900);
    let persistent = lab.paths.images().join("deaths-persistent.img");
    let is_emulated = matches!(lab.host, Host::Nested(_));
    if is_emulated {
        make_persistent_memory(lab, &persistent)?;
        request.persistent_memory = Some(persistent.clone());
    }
    let result = lab.host.run(&lab.paths.runs(), &request).map_err(ScenarioError::from)?;
    let result = result.success(name).map_err(ScenarioError::from)?;
    if is_emulated {
        recover_from_persistent_memory(lab, &persistent, &result.output)?;
    }
    Ok(result)
}

/// An empty ext4 of whole pages as blocks, which the host maps without its page cache.
fn make_persistent_memory(lab: &Lab, path: &Path) -> Result<(), DeathsError> {
    let made = fs::File::create(path).and_then(|file| file.set_len(PERSISTENT_BYTES));
    made.map_err(|source| DeathsError::PersistentMemory { path: path.to_path_buf(), source })?;
    let mut format = Command::new("mke2fs");
    format.args(["-q", "-F", "-t", "ext4", "-b", "4096"]).arg(path);
    Ok(process::run_logged(&mut format, &lab.paths.logs().join("deaths-mke2fs.log"))?)
}

/// Takes the region out of the file system of a host that crashed, and recovers it as `crashed.trace` in `output`.
fn recover_from_persistent_memory(lab: &Lab, path: &Path, output: &Path) -> Result<(), DeathsError> {
    let error = |source| DeathsError::PersistentMemory { path: path.to_path_buf(), source };
    let logs = lab.paths.logs();
    // What the host had only in its journal, as a host that boots again would find it. Its status says what it mended.
    process::capture_any(Command::new("e2fsck").args(["-fy"]).arg(path))?;
    let mut dump = Command::new("debugfs");
    dump.arg("-R").arg(format!("rdump /{RUNTIME} {}", output.display())).arg(path);
    process::run_logged(&mut dump, &logs.join("deaths-debugfs.log"))?;
    let folders = fs::read_dir(output.join(RUNTIME)).map_err(error)?;
    let names: Vec<PathBuf> = folders.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>().map_err(error)?;
    let is_crashed = |folder: &&PathBuf| folder.join("region").exists();
    let none = || error(io::Error::new(io::ErrorKind::NotFound, "no VM left a region in it"));
    let region = names.iter().find(is_crashed).ok_or_else(none)?.join("region");
    let mut recover = Command::new(&lab.binaries.strata);
    recover.arg("recover").arg(region).arg("-o").arg(output.join("crashed.trace"));
    Ok(process::run_logged(&mut recover, &logs.join("deaths-recover.log"))?)
}
