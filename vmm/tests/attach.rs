//! `strata attach` on this machine's KVM: to a VMM that knows nothing of strata, whose guest is a few instructions.
//! Needs root, KVM, and a kernel with tracefs and debugfs; what is mounted for it is seen by the test alone.
//!
//! Shows: VMs of another VMM are recorded undisturbed; refusals leave nothing.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

#[path = "attach/jail.rs"]
mod jail;
#[path = "attach/stand_in.rs"]
mod stand_in;
#[path = "attach/taken_over.rs"]
mod taken_over;
#[path = "../../tests/tiny-vmm/src/main.rs"]
mod tiny_vmm;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use strata_analysis::event::{Decoder, Event};
use strata_recorder::drain::scheduling::{Drain, Scheduling};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Manifest;
use strata_recording::reader::Trace;
use strata_recording::reader::merge::Merge;
use tempfile::TempDir;
use trace_merge::check;
use trace_merge::report::scheduling::vcpus::VcpuTimes;
use trace_merge::report::{self, Window};

/// Makes this program a VMM for so many seconds.
const VMM_VARIABLE: &str = "STRATA_TEST_VMM_SECONDS";
/// Makes that VMM one of a single vCPU that never sleeps.
const BUSY_VARIABLE: &str = "STRATA_TEST_VMM_BUSY";
/// Gives the vCPU of that VMM to another thread when half of the time is over.
const HAND_OVER_VARIABLE: &str = "STRATA_TEST_VMM_HANDS_OVER";
/// vCPUs of the VMM.
const VCPUS: u8 = 2;
/// Runs a command where debugfs and tracefs are mounted, whatever is mounted elsewhere.
const WITH_DEBUGFS: &str = "mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug; exec \"$@\"";
/// Runs a command where debugfs is not.
const WITHOUT_DEBUGFS: &str =
    "while mountpoint -q /sys/kernel/debug; do umount -l /sys/kernel/debug; done; exec \"$@\"";

/// Not a test of its own, but the VMM that the others attach to: a process of its own.
#[test]
fn vmm_that_is_attached_to() {
    let Ok(seconds) = std::env::var(VMM_VARIABLE) else { return };
    stand_in::begin();
    let usual = (VCPUS, tiny_vmm::ACCESSES_PER_SLEEP);
    let (vcpus, per_sleep) = std::env::var(BUSY_VARIABLE).map_or(usual, |_| (1, u64::MAX));
    let threads = std::env::var(HAND_OVER_VARIABLE).map_or(1, |_| 2);
    let accesses = tiny_vmm::run(Duration::from_secs(seconds.parse().unwrap()), vcpus, per_sleep, threads).unwrap();
    println!("\n{accesses} accesses");
    std::process::exit(tiny_vmm::STATUS.into());
}

/// A VMM to attach to; killed when it is dropped.
struct Vmm(Child);

impl Vmm {
    /// A VMM that ends after `seconds`, once its vCPUs run.
    fn start(seconds: u32) -> Self {
        Self::start_with(seconds, VCPUS, &mut Command::new(std::env::current_exe().unwrap()))
    }

    /// One of a single vCPU that never sleeps.
    fn start_busy(seconds: u32) -> Self {
        Self::start_with(seconds, 1, Command::new(std::env::current_exe().unwrap()).env(BUSY_VARIABLE, ""))
    }

    fn start_with(seconds: u32, vcpus: u8, command: &mut Command) -> Self {
        command.args(["--exact", "vmm_that_is_attached_to", "--nocapture"]).env(VMM_VARIABLE, seconds.to_string());
        let vmm = Self(command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap());
        let begun = Instant::now();
        while vmm.descriptors() < 1 + usize::from(vcpus) {
            assert!(begun.elapsed() < Duration::from_secs(10), "the VMM does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(100));
        vmm
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Number of its descriptors that are KVM's own.
    fn descriptors(&self) -> usize {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.0.id())).into_iter().flatten().flatten();
        let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("anon_inode:kvm-v")).count()
    }

    /// Waits for its end: its exit status, and how often its guest accessed the port.
    fn end(mut self) -> (Option<i32>, u64) {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let accesses = lines.filter_map(|line| line.strip_suffix(" accesses")?.parse().ok()).last();
        (self.0.wait().unwrap().code(), accesses.unwrap())
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder for one test, in which the folders of VMs lie, too.
struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, mounts: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", mounts, "sh", env!("CARGO_BIN_EXE_strata")]).args(arguments);
        command.env("STRATA_RUNTIME_DIR", self.path("run"));
        command
    }

    fn strata(&self, arguments: &[&str]) -> Output {
        self.command(WITH_DEBUGFS, arguments).output().unwrap()
    }

    /// A recording of `vmm` into the folder `trace` that has begun.
    fn attach(&self, vmm: &Vmm, arguments: &[&str]) -> Child {
        self.attach_into("trace", vmm, arguments)
    }

    /// The same into the folder of that name.
    fn attach_into(&self, name: &str, vmm: &Vmm, arguments: &[&str]) -> Child {
        let trace = self.path(name).display().to_string();
        let pid = vmm.pid();
        let all = [&["attach", &pid, "--trace", &trace, "--name", "tiny"], arguments].concat();
        let mut command = self.command(WITH_DEBUGFS, &all);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        // The lines before are about a region.
        let mut printed = BufReader::new(child.stderr.as_mut().unwrap());
        let mut first = String::new();
        let begins = format!("attached to process {pid} as tiny");
        while !first.contains(&begins) {
            let before = first.len();
            printed.read_line(&mut first).unwrap();
            assert!(first.len() > before, "{first}");
        }
        child
    }

    /// The one line with which these arguments are refused; nothing is left behind.
    fn refused(&self, mounts: &str, arguments: &[&str]) -> String {
        let trace = self.path("refused").display().to_string();
        let all = [&["attach", "--trace", &trace], arguments].concat();
        let output = self.command(mounts, &all).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(!Path::new(&trace).exists(), "{text}");
        text
    }
}

/// The threads of a recording that drains in idle times: the watchdog is among them only where it could give the recorder
/// its priority back.
fn recording_threads() -> Vec<&'static str> {
    let requested = Scheduling { cpus: None, drain: Drain::Idle };
    let has_watchdog = requested.try_out().unwrap().drain == Drain::Idle;
    let watchdog = has_watchdog.then_some("strata-watchdog");
    let others = ["strata", "strata-recorder", "strata-control", "strata-follower", "strata-signals"];
    others.into_iter().chain(watchdog).collect()
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// Asserts that the trace in `path` is whole, says what it is of, and tells what both vCPUs did; returns how often they
/// returned to the VMM. Where KVM emulates the guest, it tells of no entries and exits, but of these.
fn judge(path: &Path, pid: u32) -> u64 {
    let trace = Trace::open(path).unwrap();
    let manifest = trace.manifest();
    let vm = &manifest.vms[0];
    assert_eq!((vm.attached.as_ref().unwrap().pid, vm.vcpus, vm.vcpu_threads.len()), (pid, 2, 2), "{vm:?}");
    // A flight recorder keeps KVM's events apart.
    assert!(!manifest.layers.is_empty() && manifest.layers.iter().all(|layer| layer.kind == LayerKind::HostKernel));
    let missing = |kind| manifest.missing.iter().any(|missing| missing.layer == kind);
    assert!([LayerKind::Vmm, LayerKind::GuestKernel, LayerKind::GuestUser].into_iter().all(missing));
    assert_eq!(manifest.clock.vcpus.len(), 2, "{:?}", manifest.clock);
    let checked = check::check(&trace, 10).unwrap();
    assert!(checked.passed(), "{:?}", checked.violations);

    // Where this user may see the kernel's addresses, their symbols lie beside the layer.
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    let are_shown = symbols.lines().any(|line| !line.starts_with("0000000000000000"));
    assert_eq!(trace.kallsyms(None).is_some(), are_shown);

    let vcpus = report::make(&trace, Window::ALL, VcpuTimes::default()).unwrap();
    let json = serde_json::to_value(&vcpus).unwrap();
    for vcpu in json["vms"][0]["vcpus"].as_array().unwrap() {
        let parts = vcpu["parts"].as_array().unwrap();
        let ticks = |state: &str| {
            let of_state = parts.iter().filter(|part| state.is_empty() || part["state"] == state);
            of_state.map(|part| part["ticks"].as_u64().unwrap()).sum::<u64>()
        };
        assert_eq!(vcpu["wall_ticks"], ticks(""), "{vcpu}");
        assert!(ticks("blocked_in_vmm") > 0 && ticks("vmm") > 0, "{vcpu}");
        assert!(vm.vcpu_threads.contains(&i32::try_from(vcpu["tid"].as_i64().unwrap()).unwrap()), "{vcpu}");
    }
    if let Ok(read) = Command::new("babeltrace2").arg(path).output() {
        assert_eq!(String::from_utf8_lossy(&read.stderr), "");
    }
    let mut count = Command::new(env!("CARGO_BIN_EXE_strata"));
    count.args(["events", "--count", "--event", "kvm:kvm_userspace_exit"]).arg(path);
    let returns = text(&count.output().unwrap()).trim().parse().unwrap();
    assert!(returns > 100, "{returns}");
    returns
}

/// Asserts that what `strata top --once --json` showed of the VM is what the report says of the same time of the
/// recording in `path`, but for a tenth of it: at its begin the live view does not know yet what vCPUs do.
fn agree(top: &str, path: &Path) {
    let trace = Trace::open(path).unwrap();
    let top: serde_json::Value = serde_json::from_str(top).unwrap_or_else(|error| panic!("{error}: {top}"));
    let (vm, host) = (&top["vms"][0], &top["vms"][0]["host"]);
    let (from, until) = (host["since_ns"].as_u64().unwrap(), host["until_ns"].as_u64().unwrap());
    let window = Window { begin: trace.clock().ns_to_ticks(from), end: trace.clock().ns_to_ticks(until) };
    let report = report::make(&trace, window, VcpuTimes::default());
    let report = report.unwrap_or_else(|error| panic!("{error}: {from} to {until}: {top}"));
    let json = serde_json::to_value(&report).unwrap();
    let reported = json["vms"][0]["vcpus"].as_array().unwrap();
    assert_eq!(reported.len(), host["vcpus"].as_array().unwrap().len());
    for (live, reported) in host["vcpus"].as_array().unwrap().iter().zip(reported) {
        for (of_live, states) in [
            (&["vmm_ns", "blocked_ns"][..], &["vmm", "blocked_in_vmm", "blocked_in_kvm"][..]),
            (&["preempted_ns", "woken_ns"], &["preempted", "woken", "not_allowed"]),
            (&["guest_ns", "kvm_ns"], &["guest", "kvm"]),
        ] {
            let of_live: u64 = of_live.iter().map(|part| live[part].as_u64().unwrap()).sum();
            let parts = reported["parts"].as_array().unwrap().iter();
            let is_its = |part: &&serde_json::Value| states.contains(&part["state"].as_str().unwrap());
            let of_report: u64 = parts.filter(is_its).map(|part| part["ns"].as_u64().unwrap()).sum();
            assert!(of_live.abs_diff(of_report) <= (until - from) / 10, "{states:?}: {live} {reported}");
        }
    }
    assert!(
        host["records"].as_u64().unwrap() > 100 && vm["own_threads"].to_string().contains("strata-recorder"),
        "{top}"
    );
}

#[test]
fn vm_of_another_vmm_is_recorded_until_it_ends_and_is_not_disturbed() {
    let bench = Bench::new();
    let vmm = Vmm::start(10);
    let pid = vmm.0.id();

    let recording = bench.attach(&vmm, &[]);
    let recorded = recording.wait_with_output().unwrap();
    let (status, accesses) = vmm.end();

    assert!(recorded.status.success() && text(&recorded).contains("the VM ended"), "{}", text(&recorded));
    assert_eq!(status, Some(tiny_vmm::STATUS.into()));
    let returns = judge(&bench.path("trace"), pid);
    println!("{returns} returns to the VMM recorded, {accesses} accesses in all");
    assert!(returns <= accesses);
    assert_eq!(Manifest::load(&bench.path("trace")).unwrap().outcome.as_deref(), Some("the VM ended"));
    // Neither a socket nor a folder of the VM is left.
    assert_eq!(fs::read_dir(bench.path("run")).unwrap().count(), 0);
}

/// From the first to the last return from KVM to the VMM of each host thread.
fn returns_by_thread(trace: &Trace) -> BTreeMap<i32, Window> {
    let mut windows: BTreeMap<i32, Window> = BTreeMap::new();
    let mut decoder = Decoder::default();
    for merged in Merge::new(trace.layers(), 0) {
        if let Some(Event::KvmUserspaceExit { tid }) = decoder.event(&merged) {
            let time = merged.record.time;
            windows.entry(tid).or_insert(Window { begin: time, end: time }).end = time;
        }
    }
    windows
}

#[test]
fn vcpu_that_is_handed_to_another_thread_is_known_on_both() {
    let bench = Bench::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let vmm = Vmm::start_with(16, VCPUS, command.env(HAND_OVER_VARIABLE, ""));

    let recorded = bench.attach(&vmm, &[]).wait_with_output().unwrap();

    assert!(recorded.status.success(), "{}", text(&recorded));
    let trace = Trace::open(&bench.path("trace")).unwrap();
    let vm = &trace.manifest().vms[0];
    let earlier: Vec<i32> = vm.earlier_vcpu_threads.iter().map(|thread| thread.tid).collect();
    assert_eq!((vm.vcpu_threads.len(), earlier.len()), (2, 2), "{vm:?}");
    let windows = returns_by_thread(&trace);
    assert!(earlier.iter().chain(&vm.vcpu_threads).all(|tid| windows.contains_key(tid)), "{windows:?} {vm:?}");
    for (tid, window) in windows {
        let vcpu = vm.vcpu_of_thread(tid).unwrap() as usize;
        let report = serde_json::to_value(report::make(&trace, window, VcpuTimes::default()).unwrap()).unwrap();
        let parts = report["vms"][0]["vcpus"][vcpu]["parts"].as_array().unwrap();
        assert!(parts.iter().all(|part| part["state"] != "unknown" || part["ticks"] == 0), "{tid}: {parts:?}");
    }
    assert!(check::check(&trace, 10).unwrap().passed());
}

/// A control group that lets its threads have 3 ms in 10 ms, all together; removed when it is dropped.
struct LimitedGroup(PathBuf);

impl LimitedGroup {
    /// `None` where this host has no group that could be limited.
    fn create(name: &str) -> Option<Self> {
        let name = format!("strata-{name}-{}", std::process::id());
        let settings = [
            ("/sys/fs/cgroup/cpu", [("cpu.cfs_period_us", "10000"), ("cpu.cfs_quota_us", "3000")].as_slice()),
            ("/sys/fs/cgroup", &[("cpu.max", "3000 10000")]),
        ];
        settings.into_iter().find_map(|(hierarchy, limits)| {
            let group = Self(Path::new(hierarchy).join(&name));
            fs::create_dir(&group.0).ok()?;
            limits.iter().try_for_each(|(file, value)| fs::write(group.0.join(file), value)).ok()?;
            Some(group)
        })
    }

    fn take(&self, process: &str) {
        fs::write(self.0.join("cgroup.procs"), process).unwrap();
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        let begun = Instant::now();
        while fs::remove_dir(&self.0).is_err() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Processor time in which this machine's CPUs worked for anything but the process `pid`.
fn time_of_others(pid: &str) -> Duration {
    let numbers = |text: &str| -> Vec<i64> { text.split(' ').filter_map(|word| word.parse().ok()).collect() };
    let all = fs::read_to_string("/proc/stat").unwrap();
    let own = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = numbers(all.lines().next().unwrap())[..] else {
        panic!("{all}")
    };
    // Behind the name: state, nine fields, its time in user mode and in the kernel.
    let own = numbers(own.rsplit_once(')').unwrap().1);
    let ticks = user + nice + system + irq + softirq + steal - own[10] - own[11];
    // The kernel shows programs a hundredth of a second as a tick, whatever its own is.
    Duration::from_millis(u64::try_from(ticks).unwrap() * 10)
}

#[test]
fn time_that_a_control_group_throttles_is_reported_as_not_allowed_and_no_more_of_it() {
    let bench = Bench::new();
    let Some(group) = LimitedGroup::create("throttled") else {
        eprintln!("SKIPPED: no control group of this host can be limited");
        return;
    };
    let vmm = Vmm::start_busy(60);
    group.take(&vmm.pid());
    let before = time_of_others(&vmm.pid());

    let recorded = bench.attach(&vmm, &["--duration", "6s"]).wait_with_output().unwrap();
    let others = u64::try_from((time_of_others(&vmm.pid()) - before).as_nanos()).unwrap();

    assert!(recorded.status.success(), "{}", text(&recorded));
    let trace = Trace::open(&bench.path("trace")).unwrap();
    let report = report::make(&trace, Window::ALL, VcpuTimes::default()).unwrap();
    let name = group.0.file_name().unwrap().to_str().unwrap();
    let limits = &trace.manifest().vms[0].cpu_limits;
    let counted = limits.iter().find(|limit| limit.cgroup.ends_with(name)).unwrap().counted();
    let parts = report.vms[0].vcpus.iter().flat_map(|vcpu| &vcpu.parts);
    let waited = |states: &[&str]| -> u64 {
        parts.clone().filter(|part| states.contains(&part.state)).map(|part| part.ns).sum()
    };
    let (limited, ready) = (waited(&["not_allowed"]), waited(&["not_allowed", "preempted", "woken"]));
    println!("not allowed {limited} ns, ready {ready} ns, {counted:?}");
    // Where others run meanwhile, the time is theirs: on a host that does nothing else the two are the same. Others who
    // begin to run while the vCPU waits for the group's next period are not recorded, and it may wait for them, too.
    let tolerance = counted.throttled_ns / 100;
    assert!(counted.throttled > 10, "{counted:?}");
    assert!(limited <= counted.throttled_ns + tolerance + others, "{limited} {counted:?} {others}");
    assert!(ready + tolerance >= counted.throttled_ns, "{ready} {counted:?}");
}

#[test]
fn recording_from_outside_is_listed_queried_refused_to_others_and_detached() {
    let bench = Bench::new();
    let vmm = Vmm::start(60);
    let recording = bench.attach(&vmm, &[]);

    let listed = text(&bench.strata(&["ps"]));
    let status = text(&bench.strata(&["ctl", "tiny", "status"]));
    let second = bench.refused(WITH_DEBUGFS, &[&vmm.pid()]);
    let pause = text(&bench.strata(&["ctl", "tiny", "pause"]));
    let session = text(&bench.strata(&["ctl", "tiny", "session", "create", "x", "--mode", "flight-recorder"]));
    let stop = text(&bench.strata(&["ctl", "tiny", "session", "stop", "main"]));
    let top = text(&bench.strata(&["top", "tiny", "--once", "--json"]));
    let shown = text(&bench.strata(&["top", "--all", "--once", "--interval", "0.2"]));
    let flushed = text(&bench.strata(&["ctl", "tiny", "flush"]));
    let detached = text(&bench.strata(&["ctl", "tiny", "detach"]));
    let recorded = recording.wait_with_output().unwrap();

    assert!(listed.contains("tiny") && listed.contains("attached"), "{listed}");
    assert!(status.contains(&format!("run by process {}", vmm.pid())) && !status.contains("agent"), "{status}");
    assert!(second.contains("is recorded already") && second.contains("detach"), "{second}");
    assert!(pause.contains("another process runs this VM"), "{pause}");
    assert!([&session, &stop].iter().all(|printed| printed.contains("attached to a VM")), "{session}{stop}");
    agree(&top, &bench.path("trace"));
    assert!(shown.contains("tiny: process") && shown.contains("strata-recorder"), "{shown}");
    assert_eq!(flushed, "flushed\n");
    assert!(detached.starts_with("detached"), "{detached}");
    assert!(recorded.status.success() && text(&recorded).contains("the VM goes on"), "{}", text(&recorded));
    assert_eq!(vmm.descriptors(), 3);
    judge(&bench.path("trace"), vmm.0.id());
}

#[test]
fn flight_recorder_of_another_vmm_is_written_on_request_and_when_its_time_is_over() {
    let bench = Bench::new();
    let vmm = Vmm::start(60);
    let recording = bench.attach(&vmm, &["--mode", "flight-recorder", "--duration", "8s"]);
    std::thread::sleep(Duration::from_millis(500));

    let snapshot = bench.path("trace-snapshots/asked");
    let top = text(&bench.strata(&["top", "tiny", "--once", "--json", "--interval", "0.3"]));
    let taken = text(&bench.strata(&["ctl", "tiny", "snapshot", snapshot.to_str().unwrap()]));
    let recorded = recording.wait_with_output().unwrap();

    assert!(taken.contains("records in"), "{taken}");
    // A busy host's records of that time may have given way in the end.
    agree(&top, &snapshot);
    assert!(text(&recorded).contains("its time was over"), "{}", text(&recorded));
    let (early, late) = (judge(&snapshot, vmm.0.id()), judge(&bench.path("trace"), vmm.0.id()));
    assert!(early < late, "{early} {late}");
}

#[test]
fn region_that_does_not_fit_the_vm_is_named_with_the_way_out() {
    let bench = Bench::new();
    let vmm = Vmm::start(60);
    let pid = vmm.pid();
    let path = |name: &str| bench.path(name).display().to_string();
    let made = |name: &str, options: &[&str]| {
        let output = bench.strata(&[&["region", "create", &path(name), "--process-slots", "1"], options].concat());
        assert!(text(&output).contains("-device ivshmem-plain,memdev=strata"), "{}", text(&output));
        path(name)
    };
    let (one, two) = (made("one", &["--cpus", "1"]), made("two", &["--cpus", "2"]));
    let recorder = made("recorder", &["--cpus", "2", "--mode", "flight-recorder"]);
    fs::write(path("other"), [0; 8192]).unwrap();

    let few = bench.refused(WITH_DEBUGFS, &[&pid, "--region", &one]);
    let unmapped = bench.refused(WITH_DEBUGFS, &[&pid, "--region", &two]);
    let mode = bench.refused(WITH_DEBUGFS, &[&pid, "--region", &recorder]);
    let other = bench.refused(WITH_DEBUGFS, &[&pid, "--region", &path("other")]);
    let missing = bench.refused(WITH_DEBUGFS, &[&pid, "--region", &path("missing")]);
    let again = text(&bench.strata(&["region", "create", &two, "--cpus", "2"]));

    for (printed, expected) in [
        (few, "make one with --cpus 2"),
        (unmapped, "start the VM with what"),
        (mode, "was made for --mode flight-recorder"),
        (other, "is not the file of a trace region"),
        (missing, "No such file"),
        (again, "exists already"),
    ] {
        assert!(printed.contains(expected), "{expected} is not in: {printed}");
    }
    assert_eq!(vmm.descriptors(), 3);
}

#[test]
fn what_cannot_be_attached_to_is_named_with_the_way_out() {
    let bench = Bench::new();
    let vmm = Vmm::start(60);
    let (pid, own) = (vmm.pid(), std::process::id().to_string());
    fs::write(bench.path("file"), "").unwrap();
    let file = bench.path("file").display().to_string();

    let none = bench.refused(WITH_DEBUGFS, &["4194300"]);
    let no_vm = bench.refused(WITH_DEBUGFS, &[&own]);
    let unmounted = bench.refused(WITHOUT_DEBUGFS, &[&pid]);
    let descriptor = bench.refused(WITH_DEBUGFS, &[&pid, "--vm", "999"]);
    let misspelt = bench.refused(WITH_DEBUGFS, &[&pid, "--events", "host-kernel:kvm:kvm_exti"]);
    let no_host = bench.refused(WITH_DEBUGFS, &[&pid, "--events", "guest-kernel:sched:*"]);
    let exists = text(&bench.strata(&["attach", &pid, "--trace", &file]));
    let user = ["--reuid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_strata"), "attach", &pid, "--trace", "t"];
    let not_root = text(&Command::new("setpriv").args(user).output().unwrap());

    for (printed, expected) in [
        (none, "no process 4194300"),
        (no_vm, "runs no VM"),
        (unmounted, "mount -t debugfs"),
        (descriptor, "no VM of descriptor 999"),
        (misspelt, "kvm:kvm_exit"),
        (no_host, "no event of the host's kernel"),
        (exists, "exists and is not an empty folder"),
        (not_root, "needs root"),
    ] {
        assert!(printed.contains(expected), "{expected} is not in: {printed}");
    }
    assert_eq!(vmm.descriptors(), 3);
}
