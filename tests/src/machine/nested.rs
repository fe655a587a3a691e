//! The nested lab: a software-emulated AMD machine with SVM, whose stock Debian kernel is the host.
//!
//! QEMU boots the kernel with an initramfs that holds busybox, KVM's modules, the run's files and its script. The
//! host's console goes to one log, the script's output to another as it comes, and the script's results come back as a
//! tar stream on a raw disk. On its console the host says every few seconds that it lives.

use crate::build::initramfs::{Initramfs, InitramfsError};
use crate::machine::disk_space::{self, DiskSpaceError};
use crate::machine::emulator::{Emulator, Time};
use crate::machine::host::{GUEST_CMDLINE, HostResult, HostRun, fresh_run_folder, last_line};
use crate::process::{self, ProcessError};
use crate::process_group::GoesOnSignal;
use crate::progress;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The modules of the emulated host, besides what they depend on.
pub const MODULES: [&str; 1] = ["kvm-amd"];

/// Those of one with persistent memory.
pub const MODULES_WITH_PERSISTENT_MEMORY: [&str; 4] = ["kvm-amd", "virtio_pci", "nd_pmem", "virtio_pmem"];

/// Those that it needs to hand back its results, once its script has ended: what a virtio disk does takes this machine's
/// time, so that a host that has one is not the same twice.
pub const MODULES_FOR_RESULTS: [&str; 2] = ["virtio_pci", "virtio_blk"];

/// Room for a run's results; the file is sparse.
const RESULT_DISK_BYTES: u64 = 4 << 30;
/// Room that a run may take on the disk besides its files, most of it for its results.
const RUN_BYTES: u64 = 512 << 20;
/// For the kernels of an emulated host and of its guests: the processor has no fault to mitigate, and a mitigated kernel
/// takes more of the emulator's time for each call and return.
const UNMITIGATED: &str = "mitigations=off";
/// What makes the host end rather than go on without one of its CPUs.
const PANICS: &str = "panic=-1 oops=panic softlockup_panic=1 watchdog_thresh=30 \
                      rcupdate.rcu_cpu_stall_timeout=60 sysctl.kernel.panic_on_rcu_stall=1";
/// Leaves CPU 0 to the host's kernel. No guest may run there: QEMU's `cpu_clear_ignne()`, of whichever CPU restores the
/// state of its FPU, reads, changes and writes the flags of the first CPU without a lock, among them those that say
/// whether a guest is running and whether its memory is nested (docs/qemu.md, "The other fault").
const HOUSEKEEPING: &str = "isolcpus=0";
/// The firmware that does no more than to start a kernel, of QEMU's own files. SeaBIOS looks for disks and keyboards first,
/// and takes three times the processor time up to the kernel's first line.
const FIRMWARE: &str = "qboot.rom";
/// Virtual time: one thread, in which an instruction takes 4 ns, and in which nobody waits for a timer. A seed follows.
const VIRTUAL_TIME: [&str; 7] = [
    "-accel",
    "tcg,thread=single",
    "-icount",
    "shift=2,sleep=off",
    "-rtc",
    "base=2026-01-01T00:00:00,clock=vm",
    "-seed",
];
/// The rate of the TSC in virtual time.
const VIRTUAL_TSC_KHZ: u32 = 1_000_000;
/// That CPU, on which threads that are placed there may run: they take nothing from guests.
pub const SPARE_CPU: &str = "0";
/// How the lines begin with which the host says that it lives.
const HEARTBEAT: &str = "lab: up for ";
/// A host that has not written to its console for so long, of processor time, is dead: alive, it writes every five
/// seconds of its own.
const SILENCE: Duration = Duration::from_secs(90);
/// As long for one that has not come as far as its script. It needs 15 to 25 s for that, and says something all the time.
const SILENCE_OF_BOOT: Duration = Duration::from_secs(30);
/// How often a host is booted that does not come up.
const BOOTS: u32 = 4;
/// What second chances were given for, in the folder of all runs.
const SECOND_CHANCES: &str = "second-chances.log";
/// The script's exit status, beside its results.
const STATUS_FILE: &str = ".lab-status";

const INIT: &str = r#"#!/bin/busybox sh
# The emulated host: set up what a Linux host has, run the script, hand back its results.
/bin/busybox mkdir -p /proc /sys /dev /tmp /out /root
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
while read -r module; do
    insmod "/lib/strata-lab/$module" || echo "lab: cannot load $module"
done < /lib/strata-lab/order
stty -F /dev/ttyS1 raw
(while read -r up idle < /proc/uptime && echo "lab: up for $up s"; do sleep 5; done) &
export LAB=/lab LAB_OUT=/out GUEST='@GUEST@' HOME=/root PATH=/lab:/bin
cd /lab
setsid sh /lab/.script < /dev/null > /dev/ttyS1 2>&1
echo $? > /out/.lab-status
echo "lab: the script ended with status $(cat /out/.lab-status)"
for module in $(cat /lib/strata-lab/results); do
    grep -q "^${module%.ko} " /proc/modules || insmod "/lib/strata-lab/$module" || echo "lab: cannot load $module"
done
tar cf - -C /out . | dd of=/dev/vda bs=1M conv=notrunc,fsync
# nothing else is synced where the host is to crash
[ -e /tmp/crash ] && echo c > /proc/sysrq-trigger
sync
poweroff -f
"#;

/// Why the emulated host gave no result.
#[derive(Debug, thiserror::Error)]
pub enum NestedError {
    /// A file of the run could not be made.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// There is no room for the results.
    #[error(transparent)]
    DiskSpace(#[from] DiskSpaceError),
    /// The host's initramfs could not be made.
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    /// QEMU could not be started, failed, or took too long.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The host stopped or fell silent before it could begin with the script.
    #[error("the emulated host did not come up for run {name}: it ended after \"{last_line}\"; see {}", console.display())]
    NotBooted {
        /// Name of the run.
        name: String,
        /// The last line on the host's console.
        last_line: String,
        /// The host's console.
        console: PathBuf,
    },
    /// The host stopped or fell silent before the script ended.
    #[error(
        "the emulated host died before the script of run {name} ended, after \"{last_line}\"; see {} and {}",
        console.display(), script.display()
    )]
    Died {
        /// Name of the run.
        name: String,
        /// The last line on the host's console.
        last_line: String,
        /// The host's console.
        console: PathBuf,
        /// The script's output.
        script: PathBuf,
    },
    /// The script did not end in its time.
    #[error("the script of run {name} was stopped after {seconds} s, after \"{last_line}\"; see {}", script.display())]
    Late {
        /// Name of the run.
        name: String,
        /// The time that it was given.
        seconds: u64,
        /// The last line that it wrote.
        last_line: String,
        /// The script's output.
        script: PathBuf,
    },
}

/// What an emulated host is made of.
#[derive(Clone, Debug)]
pub struct NestedHost {
    /// The ELF kernel.
    pub kernel: PathBuf,
    /// The module files that it loads, in this order.
    pub modules: Vec<PathBuf>,
    /// The same, if it has persistent memory.
    pub modules_with_persistent_memory: Vec<PathBuf>,
    /// Those that it loads once the script has ended.
    pub modules_for_results: Vec<PathBuf>,
    /// A static busybox.
    pub busybox: PathBuf,
    /// What emulates it.
    pub emulator: Emulator,
}

/// Boots the host, runs the script and fetches its results into `runs/NAME/out`.
///
/// A host that does not come up as far as its script is booted again, [`BOOTS`] times in all: nothing that is tested
/// has run. That is reported (docs/verification.md, "The nested lab"). One that dies, falls silent, or does not end its
/// script in time has failed. What becomes of a guest is for the caller to judge.
///
/// # Errors
///
/// When a file cannot be made, QEMU fails, or the host fails too often.
pub fn run(host: &NestedHost, runs: &Path, request: &HostRun) -> Result<HostResult, NestedError> {
    let mut boots = 0;
    loop {
        let mishap = match run_once(host, runs, request) {
            Err(mishap @ NestedError::NotBooted { .. }) if boots + 1 < BOOTS => {
                boots += 1;
                mishap
            }
            result => return result,
        };
        let kept = format!("{}-failed-{boots}", request.name);
        let _ = fs::remove_dir_all(runs.join(&kept));
        let _ = fs::rename(runs.join(&request.name), runs.join(&kept));
        let note = format!("run {}: {mishap}; kept as {kept}, booted once more", request.name);
        progress::note(&note);
        log_second_chance(runs, &note);
    }
}

/// Writes down what happened: test runners keep what a test says to themselves when it passes.
fn log_second_chance(runs: &Path, note: &str) {
    let log = fs::File::options().create(true).append(true).open(runs.join(SECOND_CHANCES));
    let _ = log.and_then(|mut log| writeln!(log, "{note}"));
}

/// The second chances that runs in the folder `runs` were given since the last call, a line each.
#[must_use]
pub fn take_second_chances(runs: &Path) -> Vec<String> {
    let log = runs.join(SECOND_CHANCES);
    let text = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    text.lines().map(str::to_owned).collect()
}

fn run_once(host: &NestedHost, runs: &Path, run: &HostRun) -> Result<HostResult, NestedError> {
    let file_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| NestedError::File { path, source }
    };
    let folder = fresh_run_folder(runs, &run.name).map_err(file_error(runs))?;
    let output = folder.join("out");
    let console_log = folder.join("console.log");
    let script_log = folder.join("script.log");
    let initramfs = folder.join("host.cpio");
    let disk = folder.join("result.img");
    let _goes = [&initramfs, &disk].map(|path| GoesOnSignal::new(path));

    let files = run.files.iter().filter_map(|(_, path)| fs::metadata(path).ok()).map(|file| file.len());
    disk_space::require(&folder, RUN_BYTES + files.sum::<u64>())?;
    host_initramfs(host, run).write_file(&initramfs)?;
    fs::File::create(&disk).and_then(|file| file.set_len(RESULT_DISK_BYTES)).map_err(file_error(&disk))?;
    let qemu_log_path = folder.join("qemu.log");
    let qemu_log = fs::File::create(&qemu_log_path).map_err(file_error(&qemu_log_path))?;
    let errors = qemu_log.try_clone().map_err(file_error(&qemu_log_path))?;
    let mut qemu = Command::new(&host.emulator.program);
    qemu.args(arguments(host, run, &folder)).stdin(Stdio::null()).stdout(qemu_log).stderr(errors);
    let died = || {
        let name = run.name.clone();
        let console = console_log.clone();
        let last_line = last_line(&console_log, |line| line.contains("Kernel panic"))
            .or_else(|| last_line(&console_log, |line| !line.starts_with(HEARTBEAT)))
            .unwrap_or_default();
        if has_booted(&console_log) {
            NestedError::Died { name, last_line, console, script: script_log.clone() }
        } else {
            NestedError::NotBooted { name, last_line, console }
        }
    };
    let ended = process::wait_with_heartbeat(&mut qemu, &console_log, |silence| {
        let up = uptime(&console_log);
        if silence.is_of_the_dead(if up.is_some() { SILENCE } else { SILENCE_OF_BOOT }) {
            return Some(died());
        }
        up.is_some_and(|up| up > run.timeout).then(|| NestedError::Late {
            name: run.name.clone(),
            seconds: run.timeout.as_secs(),
            last_line: last_line(&script_log, |_| true).unwrap_or_default(),
            script: script_log.clone(),
        })
    });
    let _ = fs::remove_file(&initramfs);
    if ended.is_err() {
        let _ = fs::remove_file(&disk);
    }
    let status = ended?;
    // killed by a signal, QEMU has failed at its job, not at its arguments
    if status.code().is_none() {
        return Err(died());
    }
    if !status.success() {
        return Err(process::failed("qemu-system-x86_64".to_owned(), status, &qemu_log_path).into());
    }

    let mut tar = Command::new("tar");
    tar.arg("xf").arg(&disk).arg("-C").arg(&output).arg("--no-same-owner");
    let unpacked = process::run_logged(&mut tar, &folder.join("tar.log"));
    let _ = fs::remove_file(&disk);
    unpacked.map_err(|_| died())?;
    let status_file = output.join(STATUS_FILE);
    let status = fs::read_to_string(&status_file).ok().and_then(|text| text.trim().parse().ok()).ok_or_else(died)?;
    let _ = fs::remove_file(&status_file);
    Ok(HostResult { status, output, script_log, console_log: Some(console_log) })
}

/// Whether the host whose console went to `log` came as far as its script: it said that it lives.
fn has_booted(log: &Path) -> bool {
    uptime(log).is_some()
}

/// How long the host whose console goes to `log` has been up by its own clock, as it said last.
fn uptime(log: &Path) -> Option<Duration> {
    let line = last_line(log, |line| line.starts_with(HEARTBEAT))?;
    let seconds = line.strip_prefix(HEARTBEAT)?.split(' ').next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn host_initramfs(host: &NestedHost, run: &HostRun) -> Initramfs {
    let modules = if run.persistent_memory.is_some() { &host.modules_with_persistent_memory } else { &host.modules };
    let mut image = Initramfs::new()
        .busybox(&host.busybox)
        .modules("order", modules)
        .modules("results", &host.modules_for_results)
        .bytes("init", 0o755, INIT.replace("@GUEST@", &format!("{GUEST_CMDLINE} {UNMITIGATED}")))
        .bytes("lab/.script", 0o755, run.script.as_str());
    for (name, path) in &run.files {
        image = image.file(&format!("lab/{name}"), 0o755, path);
    }
    image
}

/// QEMU's arguments.
fn arguments(host: &NestedHost, run: &HostRun, folder: &Path) -> Vec<String> {
    let in_folder = |name: &str| folder.join(name).display().to_string();
    let memory = run.memory_mib.to_string();
    let (memory, persistent) = match &run.persistent_memory {
        None => (memory, Vec::new()),
        Some(file) => {
            let bytes = fs::metadata(file).map_or(0, |file| file.len());
            let backend =
                format!("memory-backend-file,id=persistent,share=on,mem-path={},size={bytes}", file.display());
            // not an NVDIMM: Linux maps one that was not set up for it only through the page cache
            let device = "virtio-pmem-pci,memdev=persistent".to_owned();
            let options = vec!["-object".to_owned(), backend, "-device".to_owned(), device];
            (format!("{memory}M,slots=1,maxmem={}M", 2 * run.memory_mib), options)
        }
    };
    let time = match host.emulator.time {
        Time::Virtual { seed } => VIRTUAL_TIME.into_iter().map(str::to_owned).chain([seed.to_string()]).collect(),
        Time::Real => vec!["-accel".to_owned(), "tcg,thread=multi".to_owned()],
    };
    let arguments = [
        "-machine",
        "q35",
        "-cpu",
        "EPYC,+svm,+npt",
        "-smp",
        // two for the script and its guests: see HOUSEKEEPING
        "3",
        "-m",
        &memory,
        "-display",
        "none",
        "-monitor",
        "none",
        "-nic",
        "none",
        "-bios",
        FIRMWARE,
        "-no-reboot",
        "-serial",
        &format!("file:{}", in_folder("console.log")),
        "-serial",
        &format!("file:{}", in_folder("script.log")),
        "-drive",
        // by default a machine whose disk's file cannot grow any more is stopped, and stands still for ever
        &format!("file={},format=raw,if=virtio,werror=report,cache=unsafe", in_folder("result.img")),
        "-kernel",
        &host.kernel.display().to_string(),
        "-initrd",
        &in_folder("host.cpio"),
        "-append",
        &format!(
            "console=ttyS0 cryptomgr.notests {UNMITIGATED} {PANICS} {HOUSEKEEPING} {}{}",
            tsc_rate(host.emulator.time),
            run.kernel_arguments
        ),
    ];
    time.into_iter().chain(persistent).chain(arguments.map(str::to_owned)).collect()
}

/// The TSC counts nanoseconds of virtual time. In real time it is this machine's. Its rate is told to the kernel, which would measure it against an emulated
/// timer: on a busy machine that came out a tenth of what it is, and all of the host's time ran ten times too fast.
pub(crate) fn tsc_rate(time: Time) -> String {
    if time != Time::Real {
        return format!("tsc_early_khz={VIRTUAL_TSC_KHZ} ");
    }
    let measured =
        clock_sync::calibration::measure_frequency(clock_sync::tsc::read_ordered, Duration::from_millis(200));
    measured.map_or_else(String::new, |hz| format!("tsc_early_khz={} ", hz / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> NestedHost {
        NestedHost {
            kernel: "vmlinux".into(),
            modules: Vec::new(),
            modules_with_persistent_memory: Vec::new(),
            modules_for_results: Vec::new(),
            busybox: "busybox".into(),
            emulator: Emulator { program: "qemu-system-x86_64".into(), time: Time::Real },
        }
    }

    #[test]
    fn arguments_hold_what_the_run_asks_for() {
        let mut request = HostRun::new("x", "true");
        request.memory_mib = 1234;
        request.kernel_arguments = "clocksource=hpet".to_owned();

        let arguments = arguments(&host(), &request, Path::new("/runs/x"));

        assert!(arguments.windows(2).any(|pair| pair == ["-m", "1234"]));
        let kernel = arguments.last().unwrap();
        assert!(kernel.contains(" tsc_early_khz=") && kernel.ends_with(" clocksource=hpet"), "{kernel}");
        // a CPU that no guest runs on, and two for guests
        assert!(kernel.contains(" isolcpus=0 ") && arguments.windows(2).any(|pair| pair == ["-smp", "3"]));
        assert!(arguments.contains(&"file:/runs/x/script.log".to_owned()));
    }

    #[test]
    fn persistent_memory_is_the_file_that_the_run_names() {
        let mut request = HostRun::new("x", "true");
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(128 << 20).unwrap();
        request.persistent_memory = Some(file.path().to_path_buf());

        let arguments = arguments(&host(), &request, Path::new("/runs/x")).join(" ");

        let backend = format!("share=on,mem-path={},size=134217728 ", file.path().display());
        assert!(arguments.contains(&backend) && arguments.contains(" -m 4096M,slots=1,maxmem=8192M "), "{arguments}");
    }

    #[test]
    fn second_chances_are_reported_once() {
        let runs = tempfile::tempdir().unwrap();
        log_second_chance(runs.path(), "run a: died");
        log_second_chance(runs.path(), "run b: died");

        let reported = [(); 2].map(|()| take_second_chances(runs.path()));

        assert_eq!(reported, [vec!["run a: died".to_owned(), "run b: died".to_owned()], Vec::new()]);
    }

    #[test]
    fn host_has_booted_when_it_has_said_that_it_lives() {
        let folder = tempfile::tempdir().unwrap();
        let [hung, alive] = ["hung", "alive"].map(|name| folder.path().join(name));
        fs::write(&hung, "[    3.5] clocksource: Switched to clocksource tsc\n").unwrap();
        fs::write(&alive, "[    3.5] Run /init\nlab: up for 4.02 s\n[   9.1] Kernel panic\n").unwrap();

        assert_eq!([&hung, &alive].map(|log| has_booted(log)), [false, true]);
        assert_eq!(uptime(&alive), Some(Duration::from_millis(4020)));
    }

    #[test]
    fn host_in_virtual_time_is_emulated_by_one_thread_from_the_seed_on() {
        let request = HostRun::new("x", "true");
        let mut host = host();
        host.emulator.time = Time::Virtual { seed: 7 };

        let [real, virtual_time] = [&self::host(), &host].map(|host| arguments(host, &request, Path::new("/runs/x")));

        assert!(virtual_time.windows(2).any(|pair| pair == ["-seed", "7"]), "{virtual_time:?}");
        assert!(
            virtual_time.contains(&"tcg,thread=single".to_owned()) && real.contains(&"tcg,thread=multi".to_owned())
        );
        assert!(virtual_time.last().unwrap().contains(" tsc_early_khz=1000000 "));
        assert!(!real.iter().any(|argument| argument == "-icount"));
    }

    #[test]
    fn host_says_that_it_lives_as_the_lab_listens_for_it() {
        assert!(INIT.contains(&format!("echo \"{HEARTBEAT}")));
    }

    #[test]
    fn run_with_a_missing_file_names_it_and_starts_nothing() {
        let runs = tempfile::tempdir().unwrap();
        let request = HostRun::new("x", "true").file("strata", Path::new("/nonexistent/strata"));
        let mut host = host();
        host.busybox = "/proc/self/exe".into();

        let error = run(&host, runs.path(), &request).unwrap_err();

        assert!(error.to_string().contains("/nonexistent/strata"));
        assert!(!runs.path().join("x/console.log").exists());
    }
}
