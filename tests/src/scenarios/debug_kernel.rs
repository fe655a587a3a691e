//! The agent on a kernel that checks itself ([`crate::build::debug_kernel`]): everything that it can be asked for, at once and
//! again and again, on a processor that QEMU emulates. This machine is the host: such a kernel is too slow for a host that is
//! emulated itself, and what that host's virtualisation gets wrong would look like the kernel's mistake.
//!
//! Leaves in its folder: `console.log`, `recorder.log` and the recording `trace`.

use crate::build::binaries::{self, Purpose};
use crate::build::debug_kernel::DebugKernel;
use crate::build::guest_image::GuestImage;
use crate::build::initramfs::InitramfsError;
use crate::build::qemu_files;
use crate::build::test_module::{self, TestModuleError};
use crate::fetch::apt::{PackageError, recreate};
use crate::machine::emulator::Time;
use crate::machine::nested;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::process_group::{GoesOnSignal, Group};
use crate::provision::{self, ProvisionError};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Processors of the guest.
pub const CPUS: u32 = 3;
/// The trace region: as large as the device of [`CPUS`] processors needs.
const REGION_SIZE: &str = "128M";
/// How long QEMU may take to open its monitor's socket.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long the guest may take to boot, and to come to an end, beside the time that it works.
const SLACK: Duration = Duration::from_secs(600);

/// What no line of a kernel's log may hold: the checkers' reports, and those of the kernel itself.
const REPORTS: &str =
    "BUG|WARNING|KASAN|ODEBUG|INFO: |Oops|Call Trace|stalls|blocked for more|general protection|suspicious";

/// `@SECONDS@` and `@REPORTS@` are filled in. Everything goes on at once until the time is over; then the checkers are shown
/// to be awake by what they have to report.
const GUEST_SCRIPT: &str = "\
insmod /strata.ko
dmesg | grep 'strata: '
end=$(($(cut -d . -f 1 /proc/uptime) + @SECONDS@))
goes_on() { [ $(cut -d . -f 1 /proc/uptime) -lt $end ]; }
# tells how often each of the things that go on at once was done
count() { echo \"$1: $2 times\"; }
(n=0; while goes_on; do cat /proc/interrupts /proc/*/stat; n=$((n + 1)); done > /dev/null 2>&1; count 'kernel load' $n >&2) &
(n=0; while goes_on; do
    echo 0 > /sys/devices/system/cpu/cpu2/online; sleep 0.2
    echo 1 > /sys/devices/system/cpu/cpu2/online; sleep 0.2
    n=$((n + 1))
done; count 'CPU taken and given back' $n) &
(n=0; while goes_on; do
    insmod /colliding.ko; sleep 0.1; rmmod colliding
    n=$((n + 1))
done; count 'module with tracepoints loaded' $n) &
(n=0; while goes_on; do workload --events 20; n=$((n + 1)); done > /dev/null 2>&1; count 'workload' $n >&2) &
n=0
while goes_on; do
    for life in fork exec kill migrate fork-in-handler 'crowd 20'; do
        goes_on || break
        processes $life > /tmp/life 2>&1 || { echo \"processes $life:\"; cat /tmp/life; }
    done
    # a process that is just recording keeps the module
    until rmmod strata 2> /dev/null; do sleep 0.1; done
    insmod /strata.ko || echo 'cannot load again'
    n=$((n + 1))
done
count 'processes, then the module loaded again' $n
wait
workload --events 20 > /dev/null && echo 'workload done'
until rmmod strata 2> /dev/null; do sleep 0.1; done
if dmesg | grep -v hw-vuln | grep -E -A 30 '@REPORTS@'; then
    echo 'the log has reports'
else
    echo 'the log has no report'
fi
echo '== provoked'
insmod /provoking.ko
dmesg | grep -E '@REPORTS@'
";

/// What the guest's console says of each checker that was provoked.
const PROVOKED: [&str; 4] =
    ["KASAN: ", "sleeping function called from invalid context", "ODEBUG: free active", "possible circular locking"];

/// Why the guest could not be run.
#[derive(Debug, thiserror::Error)]
pub enum DebugKernelRunError {
    /// A program or package could not be had.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// The agent's module or a program of ours could not be built.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// A module for the test could not be built.
    #[error(transparent)]
    TestModule(#[from] TestModuleError),
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The guest's image could not be made.
    #[error(transparent)]
    Image(#[from] InitramfsError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// QEMU did not come up.
    #[error("QEMU did not open its monitor: see {}", .0.display())]
    NoMonitor(PathBuf),
}

/// What became of the guest.
#[derive(Debug)]
pub struct DebugKernelRun {
    /// The folder with what it left.
    pub folder: PathBuf,
    /// What the guest wrote to its console.
    pub console: String,
    /// What the recorder said.
    pub recorder: String,
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
/// When something cannot be built or QEMU not be started; what the guest does is for the caller to judge.
pub fn run(
    paths: &Paths,
    kernel: &DebugKernel,
    name: &str,
    seconds: u64,
) -> Result<DebugKernelRun, DebugKernelRunError> {
    let folder = paths.runs().join(name);
    recreate(&folder)?;
    let file = |path: &Path| {
        let path = path.to_path_buf();
        move |source| DebugKernelRunError::File { path, source }
    };
    let image = folder.join("guest.cpio");
    guest_image(paths, kernel, seconds, &image)?;
    let binaries = provision::programs(paths)?;
    let recorder = binaries::build_region_recorder(paths)?;

    // in memory, as a region has to be
    let region = tempfile::tempdir_in("/dev/shm").map_err(file(Path::new("/dev/shm")))?;
    let _goes = GoesOnSignal::new(region.path());
    let region_file = region.path().join("region");
    let mut create = Command::new(&binaries.strata);
    create.args(["region", "create", "--cpus", &CPUS.to_string(), "--size", REGION_SIZE]).arg(&region_file);
    process::run_logged(&mut create, &folder.join("region.log"))?;

    let console = folder.join("console.log");
    let log = folder.join("recorder.log");
    let monitor = region.path().join("qmp");
    let mut qemu = Qemu::start(kernel, &image, &region_file, &monitor, &console)?;
    qemu.wait_for(&monitor).map_err(|()| DebugKernelRunError::NoMonitor(console.clone()))?;
    let mut record = Command::new(recorder);
    let output = File::create(&log).map_err(file(&log))?;
    record.arg(&region_file).arg(&monitor).arg(folder.join("trace")).stdin(Stdio::null());
    record.stdout(output.try_clone().map_err(file(&log))?).stderr(output);
    let limit = Duration::from_secs(seconds) + SLACK;
    process::wait_with_timeout(&mut record, limit, &log)?;
    drop(qemu);
    let text = |path: &Path| {
        let bytes = fs::read(path).map_err(file(path))?;
        Ok::<_, DebugKernelRunError>(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(DebugKernelRun { console: text(&console)?, recorder: text(&log)?, folder })
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

/// A QEMU that ends when this is dropped.
struct Qemu(Group);

impl Qemu {
    /// One that waits on `monitor` for its start.
    fn start(
        kernel: &DebugKernel,
        image: &Path,
        region: &Path,
        monitor: &Path,
        console: &Path,
    ) -> Result<Self, DebugKernelRunError> {
        let file = |source| DebugKernelRunError::File { path: console.into(), source };
        let output = File::create(console).map_err(file)?;
        let mut command = Command::new(qemu_files::PROGRAM);
        command.args(["-nodefaults", "-display", "none", "-no-reboot", "-S", "-machine", "q35", "-serial", "stdio"]);
        // the model whose emulation the lab relies on elsewhere
        command.args(["-accel", "tcg,thread=multi", "-cpu", "EPYC", "-smp", &CPUS.to_string(), "-m", "2G"]);
        let memory = format!("memory-backend-file,id=strata,share=on,mem-path={},size={REGION_SIZE}", region.display());
        command.args(["-object", &memory, "-device", "ivshmem-plain,memdev=strata"]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", monitor.display()));
        command.arg("-kernel").arg(&kernel.kernels.bzimage).arg("-initrd").arg(image);
        let arguments =
            format!("console=ttyS0 panic=-1 log_buf_len=4M {}lab.script=work", nested::tsc_rate(Time::Real));
        command.arg("-append").arg(arguments).stdin(Stdio::null());
        command.stdout(output.try_clone().map_err(file)?).stderr(output);
        let started = Group::spawn(&mut command);
        let started = started.map_err(|source| ProcessError::Start { program: qemu_files::PROGRAM.to_owned(), source });
        Ok(Self(started?))
    }

    /// Waits until there is a `socket`.
    fn wait_for(&mut self, socket: &Path) -> Result<(), ()> {
        let begun = Instant::now();
        while !socket.exists() {
            let ended = !matches!(self.0.try_wait(), Ok(None));
            if ended || begun.elapsed() > START_LIMIT {
                return Err(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
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
