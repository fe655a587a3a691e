//! Shows: A recording of another VMM's VM is confined, and undoes in the end what it changed.

use super::stand_in::{HOLDS_VARIABLE, QMP_VARIABLE, REGION_VARIABLE, reported};
use super::*;
use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};

/// A user who owns nothing.
const NOBODY: u32 = 65534;
/// Longest wait for something that happens sooner, also where others keep the host busy.
const LIMIT: Duration = Duration::from_secs(60);
/// `CapEff` of a process without capabilities, and with CAP_DAC_OVERRIDE.
const NONE: &str = "0000000000000000";
const FILES_OF_OTHERS: &str = "0000000000000002";

/// What `/proc` says of a thread.
type Status = BTreeMap<String, String>;

fn status_of(folder: &Path) -> Option<Status> {
    let text = fs::read_to_string(folder.join("status")).ok()?;
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    Some(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

fn threads(process: u32) -> Vec<Status> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| status_of(&task.path())).collect()
}

/// Waits until `is_so`; whether it came to be.
pub(super) fn comes(is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(10));
    }
    is_so()
}

/// The tracing instances of `process`.
fn instances(process: u32) -> usize {
    // Where strata mounts tracefs for itself, too.
    let script = format!("{} ls /sys/kernel/tracing/instances", WITH_DEBUGFS.split("exec").next().unwrap());
    let listed = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    let prefix = format!("strata-{process}-");
    String::from_utf8_lossy(&listed.stdout).lines().filter(|name| name.starts_with(&prefix)).count()
}

/// The process that takes a region away from the QEMU that `strata` recorded.
fn unplugging(strata: u32) -> Option<Status> {
    let children = fs::read_to_string(format!("/proc/{strata}/task/{strata}/children")).ok()?;
    let mut all = children.split_whitespace().filter_map(|child| status_of(&Path::new("/proc").join(child)));
    all.find(|child| child["Name"] == "strata-unplug")
}

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

fn regions_of(pid: &str) -> usize {
    let entries = fs::read_dir("/dev/shm").unwrap().flatten();
    let prefix = format!("strata-attach-{pid}-");
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

impl Bench {
    /// A VMM that does what these variables ask for.
    fn vmm(&self, variables: &[(&str, &Path)]) -> Vmm {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(variables.iter().map(|(name, value)| (name, value.as_os_str())));
        Vmm::start_with(60, VCPUS, &mut command)
    }

    /// A VMM that is another user's, who may open KVM.
    fn vmm_of_nobody(&self) -> Vmm {
        let device = self.path("kvm");
        let script = format!(
            "mknod {0} c 10 232 && chmod 600 {0} && chown {NOBODY} {0} && mount --bind {0} /dev/kvm && \
             exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups -- \"$@\"",
            device.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", &script, "sh"]).arg(std::env::current_exe().unwrap());
        Vmm::start_with(60, VCPUS, &mut command)
    }

    /// The socket of a QEMU, in a folder that is closed to all but another user.
    fn socket_of_nobody(&self) -> PathBuf {
        let folder = self.path("qemu");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        folder.join("qmp")
    }
}

#[test]
fn each_thread_of_a_recording_has_given_up_capabilities_and_system_calls() {
    let bench = Bench::new();
    let vmm = Vmm::start(60);
    let recording = bench.attach(&vmm, &["--drain", "idle"]);
    let strata = recording.id();

    let is_filtered =
        |thread: &Status| thread["Seccomp"] == "2" && thread["Seccomp_filters"].parse::<u32>().unwrap() > 1;
    let all_filtered = comes(|| threads(strata).iter().all(is_filtered));
    let threads = threads(strata);
    let status = text(&bench.strata(&["ctl", "tiny", "status"]));
    signal(strata, "-TERM");
    let recorded = recording.wait_with_output().unwrap();

    assert!(all_filtered, "{threads:?}");
    let names: Vec<_> = threads.iter().map(|thread| thread["Name"].as_str()).collect();
    for name in recording_threads() {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for thread in &threads {
        let of = |field: &str| thread[field].as_str();
        assert_eq!((of("CapEff"), of("CapPrm"), of("CapBnd"), of("NoNewPrivs")), (NONE, NONE, NONE, "1"), "{thread:?}");
    }
    assert!(status.contains("user 0, no capabilities") && status.contains("seccomp"), "{status}");
    assert!(recorded.status.success() && text(&recorded).contains("detached by a signal"), "{}", text(&recorded));
    judge(&bench.path("trace"), vmm.0.id());
    assert_eq!((instances(strata), fs::read_dir(bench.path("run")).unwrap().count()), (0, 0));
}

#[test]
fn clients_have_files_made_where_the_recording_may_make_them_and_nowhere_else() {
    let bench = Bench::new();
    let vmm = Vmm::start(60);
    fs::create_dir(bench.path("offered")).unwrap();
    let offered = bench.path("offered").display().to_string();
    let recording = bench.attach(&vmm, &["--mode", "flight-recorder", "--writable", &offered]);

    let snapshot = |name: &str| text(&bench.strata(&["ctl", "tiny", "snapshot", bench.path(name).to_str().unwrap()]));
    let outside = ["elsewhere", "run/elsewhere", "trace/inside"].map(snapshot);
    let inside = ["trace-snapshots/one", "offered/two"].map(snapshot);
    text(&bench.strata(&["ctl", "tiny", "detach"]));
    let recorded = recording.wait_with_output().unwrap();

    assert!(outside.iter().all(|printed| printed.contains("start it with --writable DIR")), "{outside:?}");
    assert!(inside.iter().all(|printed| printed.contains("records in")), "{inside:?}");
    assert!(recorded.status.success(), "{}", text(&recorded));
    assert!(!bench.path("elsewhere").exists() && !bench.path("trace/inside").exists());
    for name in ["trace-snapshots/one", "offered/two", "trace"] {
        assert!(Trace::open(&bench.path(name)).is_ok(), "{name}");
    }
}

#[test]
fn recording_with_every_option_makes_no_forbidden_call() {
    let bench = Bench::new();
    let region = bench.path("region").display().to_string();
    let made = ["--cpus", "2", "--process-slots", "1", "--mode", "flight-recorder"];
    text(&bench.strata(&[&["region", "create", &region], &made[..]].concat()));
    let vmm = bench.vmm(&[(REGION_VARIABLE, &bench.path("region"))]);
    let streaming = "--max-size 16M --compress zstd --readable-by all --limit host-kernel=1000000 --drain idle \
        --recorder-cpus 0 --trigger steal>1ns --trigger-every 50ms";
    let keeping = format!("--mode flight-recorder --region {region} --trigger steal>1ns --trigger-after 1ms");
    let request = |command: &str| bench.strata(&[&["ctl", "tiny"], &*command.split(' ').collect::<Vec<_>>()].concat());
    let folder = |name: &str| bench.path("kept-snapshots").join(name).display().to_string();
    let of_all =
        ["status", "trigger add host-load>1% --every 1s", "trigger list", "trigger remove host-load>1%", "flush"];
    let of_sessions = [
        "session create calls --mode flight-recorder",
        "session start calls",
        &format!("snapshot {}", folder("whole")),
        &format!("snapshot --session calls {}", folder("calls")),
        "session stop calls",
        "session destroy calls",
        &format!("session create more --trace {}", folder("more")),
        "session destroy more",
    ];

    let begun = bench.attach(&vmm, &streaming.split_whitespace().collect::<Vec<_>>());
    let requested = of_all.map(|command| (command, request(command)));
    let has_fired = comes(|| text(&request("trigger list")).contains("marked"));
    request("detach");
    let streamed = begun.wait_with_output().unwrap();
    let begun = bench.attach_into("kept", &vmm, &keeping.split(' ').collect::<Vec<_>>());
    let also_requested = of_sessions.map(|command| (command.to_owned(), request(command)));
    let has_written = comes(|| bench.path("kept-snapshots/trigger-1/session.json").exists());
    request("detach");
    let kept = begun.wait_with_output().unwrap();

    for recorded in [&streamed, &kept] {
        assert!(recorded.status.success(), "{}", text(recorded));
    }
    let requested = requested.iter().map(|(command, answer)| (*command, answer));
    for (command, answer) in requested.chain(also_requested.iter().map(|(command, answer)| (command.as_str(), answer)))
    {
        assert!(answer.status.success(), "{command}: {}", text(answer));
    }
    assert!(has_fired && has_written, "{}{}", text(&streamed), text(&kept));
    for name in ["trace", "kept", "kept-snapshots/whole", "kept-snapshots/trigger-1"] {
        assert!(check::check(&Trace::open(&bench.path(name)).unwrap(), 10).unwrap().passed(), "{name}");
    }
}

#[test]
fn recording_in_a_folder_of_another_user_keeps_the_one_capability_that_this_takes() {
    let bench = Bench::new();
    let vmm = Vmm::start(60);
    let home = bench.path("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();

    let recording = bench.attach_into("home/trace", &vmm, &["--compress", "zstd"]);
    let capabilities = threads(recording.id()).into_iter().map(|thread| thread["CapPrm"].clone()).collect::<Vec<_>>();
    text(&bench.strata(&["ctl", "tiny", "detach"]));
    let recorded = recording.wait_with_output().unwrap();

    assert!(capabilities.iter().all(|set| set == FILES_OF_OTHERS), "{capabilities:?}");
    assert!(recorded.status.success(), "{}", text(&recorded));
    assert!(Trace::open(&home.join("trace")).is_ok());
}

#[test]
fn jail_that_is_off_or_logs_is_as_of_a_vm() {
    let bench = Bench::new();
    let vmm = Vmm::start(60);

    let off = bench.attach(&vmm, &["--jail", "off"]);
    let kept = threads(off.id());
    text(&bench.strata(&["ctl", "tiny", "detach"]));
    let off = off.wait_with_output().unwrap();
    let log = bench.attach_into("log", &vmm, &["--jail", "log"]);
    let status = text(&bench.strata(&["ctl", "tiny", "status"]));
    text(&bench.strata(&["ctl", "tiny", "detach"]));
    let log = log.wait_with_output().unwrap();
    let both = bench.refused(WITH_DEBUGFS, &[&vmm.pid(), "--jail", "off", "--writable", "/tmp"]);

    assert!(kept.iter().all(|thread| thread["Seccomp"] == "0" && thread["CapEff"] != NONE), "{kept:?}");
    assert!(status.contains("seccomp that logs"), "{status}");
    assert!(off.status.success() && log.status.success(), "{}{}", text(&off), text(&log));
    assert!(both.contains("--jail"), "{both}");
}

#[test]
fn region_of_a_vm_is_recorded_from_within_the_jail() {
    let bench = Bench::new();
    let region = bench.path("region");
    text(&bench.strata(&["region", "create", region.to_str().unwrap(), "--cpus", "2", "--process-slots", "1"]));
    let vmm = bench.vmm(&[(REGION_VARIABLE, &region)]);

    let recording = bench.attach(&vmm, &["--region", region.to_str().unwrap()]);
    let session = ["session", "create", "x", "--mode", "flight-recorder"];
    let session = text(&bench.strata(&[&["ctl", "tiny"], &session[..]].concat()));
    text(&bench.strata(&["ctl", "tiny", "detach"]));
    let recorded = recording.wait_with_output().unwrap();

    assert!(recorded.status.success(), "{session}{}", text(&recorded));
    assert!(Trace::open(&bench.path("trace")).is_ok() && region.exists());
}

#[test]
fn region_file_that_is_cut_short_ends_the_recording_in_good_order() {
    for size in [0, 64 << 10] {
        let bench = Bench::new();
        let region = bench.path("region");
        text(&bench.strata(&["region", "create", region.to_str().unwrap(), "--cpus", "2", "--process-slots", "1"]));
        let vmm = bench.vmm(&[(REGION_VARIABLE, &region)]);

        let recording = bench.attach(&vmm, &["--region", region.to_str().unwrap()]);
        std::thread::sleep(Duration::from_millis(500));
        fs::File::options().write(true).open(&region).unwrap().set_len(size).unwrap();
        let recorded = recording.wait_with_output().unwrap();

        let printed = text(&recorded);
        assert!(printed.contains(&format!("'{}' was cut short", region.display())), "{printed}");
        assert!(recorded.status.code() == Some(1) && !printed.contains("has written over"), "{printed}");
        let trace = Trace::open(&bench.path("trace")).unwrap();
        let layers = trace.manifest().layers.iter().filter(|layer| layer.kind == LayerKind::HostKernel);
        let of_host: u64 = layers.flat_map(|layer| &layer.streams).map(|stream| stream.records).sum();
        assert!(of_host > 100 && check::check(&trace, 10).unwrap().passed(), "{of_host}");
        assert!(trace.manifest().outcome.as_ref().unwrap().contains("cut short"));
        assert_eq!(vmm.descriptors(), 3);
    }
}

#[test]
fn region_that_qemu_was_given_is_taken_away_by_a_process_that_can_do_little_else() {
    let bench = Bench::new();
    let socket = bench.socket_of_nobody();
    let vmm = bench.vmm(&[(QMP_VARIABLE, &socket)]);
    chown(&socket, Some(NOBODY), Some(NOBODY)).unwrap();

    let recording = bench.attach(&vmm, &["--qmp", socket.to_str().unwrap()]);
    let plugged = regions_of(&vmm.pid());
    let capabilities = threads(recording.id()).into_iter().map(|thread| thread["CapPrm"].clone()).collect::<Vec<_>>();
    let process = unplugging(recording.id()).unwrap();
    text(&bench.strata(&["ctl", "tiny", "detach"]));
    let recorded = recording.wait_with_output().unwrap();

    assert!(recorded.status.success(), "{}", text(&recorded));
    let reported = reported(&socket);
    assert_eq!(reported[reported.len() - 2..], ["device_del", "object-del"], "{reported:?}");
    assert_eq!((plugged, regions_of(&vmm.pid())), (1, 0));
    assert!(capabilities.iter().all(|set| set == NONE), "{capabilities:?}");
    let of = |field: &str| process[field].as_str();
    assert_eq!((of("CapPrm"), of("CapBnd"), of("NoNewPrivs"), of("Seccomp")), (FILES_OF_OTHERS, NONE, "1", "2"));
}

#[test]
fn region_of_a_vm_that_has_ended_leaves_no_file() {
    let bench = Bench::new();
    let socket = bench.socket_of_nobody();
    let mut vmm = bench.vmm(&[(QMP_VARIABLE, &socket)]);
    let pid = vmm.pid();

    let recording = bench.attach(&vmm, &["--qmp", socket.to_str().unwrap()]);
    vmm.0.kill().unwrap();
    vmm.0.wait().unwrap();
    let recorded = recording.wait_with_output().unwrap();

    assert!(recorded.status.success() && text(&recorded).contains("the VM ended"), "{}", text(&recorded));
    assert_eq!(regions_of(&pid), 0);
}

#[test]
fn vm_that_ends_while_its_guest_holds_the_region_leaves_nothing() {
    let bench = Bench::new();
    let socket = bench.socket_of_nobody();
    let mut vmm = bench.vmm(&[(QMP_VARIABLE, &socket), (HOLDS_VARIABLE, Path::new("1"))]);
    let pid = vmm.pid();

    let recording = bench.attach(&vmm, &["--qmp", socket.to_str().unwrap()]);
    signal(recording.id(), "-TERM");
    let is_requested = comes(|| reported(&socket).last().is_some_and(|last| last == "device_del"));
    vmm.0.kill().unwrap();
    vmm.0.wait().unwrap();
    let recorded = recording.wait_with_output().unwrap();

    assert!(is_requested);
    assert!(recorded.status.success() && !text(&recorded).contains("stays plugged"), "{}", text(&recorded));
    assert_eq!(regions_of(&pid), 0);
}

#[test]
fn second_signal_ends_the_wait_for_a_guest_that_holds_the_region() {
    let bench = Bench::new();
    let socket = bench.socket_of_nobody();
    let vmm = bench.vmm(&[(QMP_VARIABLE, &socket), (HOLDS_VARIABLE, Path::new("1"))]);

    let recording = bench.attach(&vmm, &["--qmp", socket.to_str().unwrap()]);
    signal(recording.id(), "-TERM");
    let is_requested = comes(|| reported(&socket).last().is_some_and(|last| last == "device_del"));
    signal(recording.id(), "-TERM");
    let recorded = recording.wait_with_output().unwrap();

    assert!(is_requested);
    let printed = text(&recorded);
    assert!(
        recorded.status.code() == Some(1) && printed.contains("stays plugged into QEMU: a signal ended"),
        "{printed}"
    );
    assert!(Trace::open(&bench.path("trace")).is_ok());
}

#[test]
fn recording_that_is_killed_leaves_no_process_and_its_region_to_the_next_one() {
    let bench = Bench::new();
    let socket = bench.socket_of_nobody();
    let vmm = bench.vmm(&[(QMP_VARIABLE, &socket)]);
    let mut killed = bench.attach(&vmm, &["--qmp", socket.to_str().unwrap()]);
    let process = PathBuf::from("/proc").join(&unplugging(killed.id()).unwrap()["Pid"]);

    killed.kill().unwrap();
    killed.wait().unwrap();
    let has_ended = comes(|| status_of(&process).is_none_or(|status| status["State"].starts_with('Z')));
    let (is_untraced, left) = (comes(|| instances(killed.id()) == 0), regions_of(&vmm.pid()));
    let next = bench.attach_into("next", &vmm, &["--qmp", socket.to_str().unwrap(), "--duration", "100ms"]);
    let next = next.wait_with_output().unwrap();

    assert!(has_ended && is_untraced);
    assert!(next.status.success(), "{}", text(&next));
    assert_eq!((left, regions_of(&vmm.pid())), (1, 0));
}

#[test]
fn host_that_hides_processes_is_warned_of_what_the_jail_costs_there() {
    let bench = Bench::new();
    let vmm = bench.vmm_of_nobody();
    let hidden = format!("mount -t proc -o hidepid=2,gid=65534 proc /proc; {WITH_DEBUGFS}");
    let trace = bench.path("trace").display().to_string();
    let arguments = ["attach", &vmm.pid(), "--trace", &trace, "--duration", "200ms"];

    let printed = |more: &[&str]| text(&bench.command(&hidden, &[&arguments, more].concat()).output().unwrap());
    let confined = printed(&[]);
    fs::remove_dir_all(&trace).unwrap();
    let off = printed(&["--jail", "off"]);

    assert!(confined.contains("(hidepid)") && confined.contains("its time was over"), "{confined}");
    assert!(!off.contains("(hidepid)") && off.contains("its time was over"), "{off}");
}
