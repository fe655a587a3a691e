//! Whole runs in a closed jail, each in a process of its own, with a hand-written guest. They need `/dev/kvm`, of any
//! kind, and root.
//!
//! Shows: Each thread's filter ends the process at a forbidden call; a run with every option needs none.
//! Shows: Limits of disks and consoles hold and lose nothing.

use super::vm_process::{
    ARGUMENTS_VARIABLE, FLOOD, LIMIT, NOBODY, SLEEP, TRIPLE_FAULT, Vm, instances_of, thread_names,
};
use crate::cli::{Cli, Command};
use crate::run::*;
use clap::Parser;
use rustix::io::{FdFlags, fcntl_setfd};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use strata_recorder::control::protocol::{Answer, Mode, Request};
use strata_recorder::control::{client, found_vm, wait_trigger};
use strata_recorder::drain::cpu_list::CpuList;
use strata_recorder::drain::scheduling::{Drain, Scheduling};
use strata_recorder::session::RecordingRequest;
use strata_recording::clock_snapshots;
use strata_recording::files::compression::Compression;
use strata_recording::layer::LayerKind;
use tempfile::TempDir;

/// Every kind of request; sessions and snapshots go to `traces`.
fn requests(traces: &Path, snapshot: bool) -> Vec<Request> {
    let name = || "calls".to_owned();
    let create = |mode, trace| Request::SessionCreate {
        name: name(),
        mode,
        sub_buffer_size: None,
        sub_buffers: None,
        events: Some("guest:*".into()),
        trace,
        max_size: None,
        limits: Vec::new(),
    };
    let mut requests = vec![
        Request::Pause,
        Request::Resume,
        create(Mode::Discard, Some(traces.join("discard"))),
        Request::SessionStart { name: name() },
        Request::SessionEvents { name: name(), events: "guest:sched:*".into() },
        Request::SessionStop { name: name() },
        Request::SessionDestroy { name: name() },
        create(Mode::FlightRecorder, Some(traces.join("flight"))),
        Request::SessionStart { name: name() },
        Request::Snapshot { dir: traces.join("snapshot"), session: Some(name()) },
        Request::SessionDestroy { name: name() },
    ];
    requests.push(match snapshot {
        true => Request::Snapshot { dir: traces.join("whole"), session: None },
        false => Request::Flush,
    });
    requests.push(Request::Status);
    requests
}

/// Runs a guest as `uid` and asks everything of it; returns what was recorded.
fn whole_run(uid: u32, arguments: &[&str], snapshot: bool) -> (Vm, Manifest) {
    let mut vm = Vm::start(SLEEP, uid, arguments);
    let status = vm.status();
    let threads = vm.threads();
    let refused: Vec<_> = requests(&vm.path("traces/trace-snapshots"), snapshot)
        .iter()
        .filter_map(|request| vm.request(request).err().map(|error| format!("{request:?}: {error}")))
        .collect();
    let outside = ["elsewhere", "traces/beside", "traces/trace/inside"]
        .map(|name| vm.request(&Request::Snapshot { dir: vm.path(name), session: Some("main".into()) }));
    let open = open_files(vm.process.id());
    let ended = vm.stop();

    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{ended}: {}", vm.printed());
    // The kernel traces no other process because somebody took over this one.
    let of_tracing = open.into_iter().filter(|(file, is_written)| *is_written && file.starts_with("/sys"));
    let others: Vec<_> = of_tracing.filter(|(file, _)| !file.ends_with("tracing_on")).collect();
    assert_eq!(others, []);
    assert_eq!(refused, Vec::<String>::new());
    for refusal in outside.map(|answer| answer.unwrap_err().to_string()) {
        let offered = format!("give a folder in '{}', or start", vm.path("traces/trace-snapshots").display());
        assert!(refusal.contains("out of strata's reach") && refusal.contains(&offered), "{refusal}");
        assert!(refusal.contains("--writable DIR"), "{refusal}");
    }
    assert!(status.jail.as_ref().unwrap().raw().contains(&format!("user {uid}, no capabilities")), "{status:?}");
    for (name, thread) in &threads {
        let of = |field: &str| thread[field].as_str();
        assert_eq!(of("Uid"), format!("{uid}\t{uid}\t{uid}\t{uid}"), "{name}");
        assert_eq!((of("CapEff"), of("CapPrm")), ("0000000000000000", "0000000000000000"), "{name}");
        assert_eq!((of("NoNewPrivs"), of("Seccomp")), ("1", "2"), "{name}");
    }
    for name in thread_names() {
        assert!(threads.keys().any(|thread| name.starts_with(thread.as_str())), "{name} is not in {threads:?}");
    }
    assert_eq!(fs::read_dir(vm.path("runtime")).unwrap().count(), 0);
    let manifest = vm.manifest();
    let mut used = manifest.vms[0].strata_threads.iter().filter(|thread| thread.cpu_ns > 0);
    assert!(used.any(|thread| thread.name == "strata-recorder"), "{:?}", manifest.vms[0].strata_threads);
    assert!(clock_snapshots::beside(&vm.path("traces/trace")).len() >= 2);
    (vm, manifest)
}

/// What is written while a VM runs, when somebody else decides what: on a thread that is confined as its recorder is.
#[test]
fn recorder_writes_its_recording_and_nothing_that_lies_beside_it() {
    let home = TempDir::new().unwrap();
    let path = |name: &str| home.path().join(name);
    let trace = path("trace");
    fs::create_dir(path(".ssh")).unwrap();
    fs::create_dir(path("runtime")).unwrap();
    fs::set_permissions(path("runtime"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(path(".bashrc"), []).unwrap();
    let Command::Run(args) = Cli::parse_from(["strata", "run", "--kernel", "k", "--no-agent", "--trace", "t"]).command
    else {
        panic!("it is not a run");
    };
    let request = RunRequest::from(*args);
    let directory = VmDirectory::create(&path("runtime"), &describe_vm(&request)).unwrap();
    let (folder, snapshots) = RecordingRequest::new(&trace).files.create().unwrap();
    let places = places(&directory, Some((&folder, &snapshots)));
    let write = |name: &str| fs::File::options().append(true).create(true).open(path(name)).is_ok();

    let confined = || {
        let is_confined = places.confine().unwrap().is_some();
        let beside = [".bashrc", ".ssh/authorized_keys", "new", "runtime/new"].map(write);
        let within = ["trace/new", "trace-snapshots/new"].map(write);
        is_confined.then_some((beside, within))
    };
    let seen = std::thread::scope(|scope| scope.spawn(confined).join().unwrap());

    assert_eq!(seen, strata_jail::files::version().map(|_| ([false; 4], [true; 2])));
}

fn owners(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let below =
        entries.flat_map(|path| if path.is_dir() { owners(&path) } else { vec![path.metadata().unwrap().uid()] });
    below.chain([folder.metadata().unwrap().uid()]).collect()
}

#[test]
fn run_as_another_user_records_every_layer_it_can_and_leaves_that_users_files() {
    let (vm, manifest) = whole_run(NOBODY, &["--user", "65534:65534"], false);

    let records = |kind| -> u64 {
        manifest
            .layers
            .iter()
            .filter(|layer| layer.kind == kind)
            .flat_map(|layer| &layer.streams)
            .map(|stream| stream.records)
            .sum()
    };
    let has_tracefs = strata_host_kernel::Tracefs::find().and_then(|tracefs| tracefs.available_events()).is_ok();
    assert!(records(LayerKind::Vmm) > 0);
    assert_eq!(records(LayerKind::HostKernel) > 0, has_tracefs, "{:?} {}", manifest.missing, vm.printed());
    assert!(owners(&vm.path("traces")).iter().all(|&owner| owner == NOBODY));
    assert_eq!(instances_of(vm.process.id()), 0);
}

#[test]
fn root_stays_root_without_its_capabilities() {
    let (vm, manifest) = whole_run(0, &[], false);

    assert!(manifest.outcome.is_some());
    assert_eq!(instances_of(vm.process.id()), 0);
}

#[test]
fn flight_recorder_takes_snapshots_under_the_jail() {
    let (vm, _) = whole_run(NOBODY, &["--user", "65534:65534", "--mode", "flight-recorder"], true);

    assert!(strata_recording::reader::Trace::open(&vm.path("traces/trace-snapshots/whole")).is_ok());
}

#[test]
fn snapshots_and_sessions_are_compressed_as_the_recording_is() {
    let arguments = ["--user", "65534:65534", "--mode", "flight-recorder", "--compress", "zstd"];
    let (vm, _) = whole_run(NOBODY, &arguments, true);

    let [whole, snapshot, session] = ["whole", "snapshot", "discard"].map(|name| {
        let trace = strata_recording::reader::Trace::open(&vm.path("traces/trace-snapshots").join(name)).unwrap();
        (trace.manifest().compression, strata_recording::reader::merge::Merge::new(trace.layers(), 0).count() > 0)
    });
    // Without an agent, a session of the guest's kernel has no record.
    let zstd = Some(Compression::Zstd);
    assert_eq!((whole, snapshot, session), ((zstd, true), (zstd, false), (zstd, false)));
}

#[test]
fn vm_that_a_client_stops_ends_as_by_a_signal() {
    let mut vm = Vm::start(SLEEP, NOBODY, &["--user", "65534:65534"]);

    vm.status();
    let answer = vm.request(&Request::Stop);
    let ended = vm.end();

    assert!(matches!(answer, Ok(Answer::Done { .. })), "{answer:?}");
    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{ended}: {}", vm.printed());
    assert!(vm.manifest().outcome.is_some());
    assert_eq!(fs::read_dir(vm.path("runtime")).unwrap().count(), 0);
}

#[test]
fn recorder_runs_on_the_cpus_that_it_is_given_and_the_vcpus_where_they_did() {
    let all = CpuList::of_this_thread().unwrap();
    let first = all.split_first().map_or_else(|| all.clone(), |(first, _)| first);
    let mut vm = Vm::start(SLEEP, 0, &["--recorder-cpus", &first.to_string()]);

    vm.status();
    let threads = vm.threads();
    vm.stop();

    let cpus = |name: &str| threads[name]["Cpus_allowed_list"].clone();
    assert_eq!((cpus("strata-recorder"), cpus("strata-clock")), (first.to_string(), first.to_string()));
    assert_eq!(cpus("vcpu0"), all.to_string());
}

#[test]
fn recorder_that_drains_in_idle_times_changes_its_priority_under_the_jail() {
    if (Scheduling { cpus: None, drain: Drain::Idle }).try_out().unwrap().drain == Drain::Always {
        eprintln!("SKIPPED: without CAP_SYS_RESOURCE there are no idle times under the jail");
        return;
    }
    let mut vm = Vm::start(FLOOD, NOBODY, &["--user", "65534:65534", "--drain", "idle", "--recorder-cpus", "0"]);

    vm.status();
    let threads = vm.threads();
    // The guest keeps CPUs busy, and sleeps: the recorder goes from one priority to the other again and again.
    std::thread::sleep(Duration::from_secs(1));
    vm.insist(&Request::Pause);
    std::thread::sleep(Duration::from_secs(1));
    let ended = vm.stop();

    assert_eq!(threads[strata_recording::manifest::RECORDING_THREADS[1]]["Cpus_allowed_list"], "0");
    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{ended}: {}", vm.printed());
    let manifest = vm.manifest();
    assert!(manifest.layers.iter().flat_map(|layer| &layer.streams).any(|stream| stream.records > 0));
}

#[test]
fn trigger_takes_a_snapshot_of_a_real_vm_under_its_jail() {
    let resumed = "event:vmm:vmm:control what==resumed";
    let arguments =
        ["--user", "65534:65534", "--mode", "flight-recorder", "--trigger-after", "1ms", "--trigger-every", "50ms"];
    let triggers = ["--trigger", resumed, "--trigger", "event:vmm:vmm:control what==rebooted", "--trigger", "exit>1ns"];
    let has_tracefs = strata_host_kernel::Tracefs::find().and_then(|tracefs| tracefs.available_events()).is_ok();
    let of_host = ["--trigger", "steal>1ns", "--trigger", "steal>3600s"].into_iter().filter(|_| has_tracefs);
    let all: Vec<&str> = arguments.into_iter().chain(triggers).chain(of_host).collect();
    let mut vm = Vm::start(SLEEP, NOBODY, &all);

    vm.insist(&Request::Status);
    let found = vm.find().unwrap();
    let waiting = std::thread::spawn(move || wait_trigger::wait(&found, Some(LIMIT), &[]));
    let status = loop {
        // It is resumed each time.
        let status = vm.status();
        if waiting.is_finished() && !status.trace.as_ref().unwrap().triggers[0].snapshots.is_empty() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let happened = waiting.join().unwrap().unwrap();
    vm.stop();

    let triggers = status.trace.unwrap().triggers;
    assert!(triggers[0].fired >= 1 && triggers[2].fired >= 1, "{triggers:?}");
    assert_eq!((triggers[1].fired, triggers[1].snapshots.len()), (0, 0));
    assert!(triggers.get(3).is_none_or(|stolen| stolen.fired >= 1), "{triggers:?}");
    assert!(triggers.get(4).is_none_or(|stolen| stolen.fired == 0), "{triggers:?}");
    assert!(happened.triggers.iter().all(|trigger| !trigger.snapshots.is_empty()), "{happened:?}");
    let snapshot = strata_recording::reader::Trace::open(triggers[0].snapshots[0].raw()).unwrap();
    assert!(
        snapshot.manifest().outcome.as_ref().unwrap().contains("by trigger '"),
        "{:?}",
        snapshot.manifest().outcome
    );
    assert!(vm.printed().contains(&format!("trigger '{resumed}': vmm:control in vmm")), "{}", vm.printed());
}

#[test]
fn other_vms_are_frozen_with_the_one_that_is_waited_for() {
    let recorder = ["--user", "65534:65534", "--mode", "flight-recorder"];
    let watched = ["--trigger", "event:vmm:vmm:control what==resumed", "--trigger-every", "50ms"];
    let mut vm = Vm::start(SLEEP, NOBODY, &recorder.into_iter().chain(watched).collect::<Vec<_>>());
    let mut neighbour = Vm::start(SLEEP, NOBODY, &recorder);
    let mut unrecorded = Vm::start(SLEEP, NOBODY, &["--user", "65534:65534"]);
    let found = |vm: &Vm| vm.find().unwrap();

    for vm in [&mut vm, &mut neighbour, &mut unrecorded] {
        vm.status();
    }
    let (watched, others) = (found(&vm), [found(&neighbour), found(&unrecorded)]);
    let waiting = std::thread::spawn(move || wait_trigger::wait(&watched, Some(LIMIT), &others));
    while !waiting.is_finished() {
        vm.status();
        std::thread::sleep(Duration::from_millis(10));
    }
    let others = waiting.join().unwrap().unwrap().others;
    let ended = [&mut vm, &mut neighbour, &mut unrecorded].map(Vm::stop);

    assert!(ended.iter().all(ExitStatus::success), "{ended:?}");
    assert_eq!(others[0].snapshot, Some(neighbour.path("traces/trace-snapshots/trigger-1").into()), "{others:?}");
    assert!(strata_recording::reader::Trace::open(&neighbour.path("traces/trace-snapshots/trigger-1")).is_ok());
    assert!(others[1].problem.as_ref().unwrap().raw().contains("is written to"), "{others:?}");
}

#[test]
fn guest_that_fails_ends_the_run_under_the_jail() {
    let mut vm = Vm::start(TRIPLE_FAULT, NOBODY, &["--user", "65534:65534"]);

    let ended = vm.end();

    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{ended}: {}", vm.printed());
    assert!(vm.manifest().outcome.is_some());
}

#[test]
fn guest_that_floods_a_limited_console_waits_and_can_be_stopped() {
    let begin = Instant::now();
    let arguments = ["--user", "65534:65534", "--console-bandwidth", "4K"];
    let mut vm = Vm::start_in(FLOOD, NOBODY, &arguments, |folder, command| {
        command.stdout(fs::File::create(folder.join("console")).unwrap());
    });

    let end = Instant::now() + LIMIT;
    let mut limits = vm.status().limits;
    while limits[0].waits == 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
        limits = vm.status().limits;
    }
    let ended = vm.stop();

    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{ended}: {}", vm.printed());
    assert_eq!(
        (limits[0].device.to_string(), limits[0].limits.to_string()),
        ("console".to_owned(), "bandwidth=4096:4096".to_owned())
    );
    assert!(limits[0].waits > 0, "{limits:?}");
    let trace = strata_recording::reader::Trace::open(&vm.path("traces/trace")).unwrap();
    let mut vmm =
        trace.layers_of(LayerKind::Vmm).flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream)));
    let waits = |record: strata_recording::reader::StreamRecord<'_>| record.schema.name() == "vmm:console_throttled";
    assert!(vmm.any(|(layer, stream)| layer.records(stream).any(waits)));
    // the guest prints zeros; a burst of them waits, and is written when it ends
    let printed = fs::read(vm.path("console")).unwrap().iter().filter(|&&byte| byte == 0).count() as f64;
    let allowed = 2.0 * 4096.0 + 4096.0 * begin.elapsed().as_secs_f64();
    assert!((4096.0..=allowed).contains(&printed), "{printed} bytes of {allowed}");
}

#[test]
fn killed_vm_leaves_its_region_to_its_user_and_no_instance() {
    let mut vm = Vm::start(SLEEP, NOBODY, &["--user", "65534:65534"]);
    vm.status();

    vm.process.kill().unwrap();
    vm.process.wait().unwrap();
    let found = client::find(&[found_vm::RuntimeFolder::named(vm.path("runtime"))], "vm0");

    let end = Instant::now() + LIMIT;
    while instances_of(vm.process.id()) > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(instances_of(vm.process.id()), 0);
    let Err(client::ClientError::Dead { region, .. }) = found else { panic!("{found:?}") };
    assert_eq!(region.raw().metadata().unwrap().uid(), NOBODY);
    let clocks = [vm.path("traces/trace").as_path(), region.raw().parent().unwrap()].map(clock_snapshots::beside);
    assert!(clocks.iter().all(|clocks| !clocks.is_empty()), "{clocks:?}");
}

#[test]
fn sudo_runs_the_vm_as_the_user_who_called_it() {
    let mut vm = Vm::start_in(SLEEP, NOBODY, &[], |_, command| {
        command.env("SUDO_UID", "65534").env("SUDO_GID", "65534");
    });

    let status = vm.status();
    let ended = vm.stop();

    assert!(ended.success() && status.jail.unwrap().raw().contains("user 65534, no capabilities"), "{}", vm.printed());
    assert!(owners(&vm.path("traces")).iter().all(|&owner| owner == NOBODY));
}

#[test]
fn trace_folder_that_the_user_cannot_have_is_refused_with_what_to_do() {
    let mut vm = Vm::start(SLEEP, 0, &["--user", "65534:65534"]);

    vm.end();

    let printed = vm.printed();
    assert!(printed.contains("REFUSED the VM runs as the user 65534") && printed.contains("--user root"), "{printed}");
}

#[test]
fn user_who_may_open_kvm_runs_a_guest_without_root() {
    let mut vm = Vm::start_in(SLEEP, NOBODY, &[], |folder, command| {
        // A /dev/kvm of that user's, for this command alone.
        let device = folder.join("kvm");
        let script = format!(
            "mknod {0} c 10 232 && chmod 600 {0} && chown 65534 {0} && mount --bind {0} /dev/kvm && chown 65534 {1}/guest {1}/disk && \
             exec setpriv --reuid 65534 --regid 65534 --clear-groups -- \"$@\"",
            device.display(),
            folder.display(),
        );
        let mut wrapped = std::process::Command::new("unshare");
        wrapped.args(["--mount", "--", "sh", "-c", &script, "sh"]);
        wrapped.arg(command.get_program()).args(command.get_args());
        wrapped.stdin(Stdio::null()).stdout(Stdio::null());
        wrapped.stderr(fs::File::create(folder.join("said")).unwrap());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        *command = wrapped;
    });

    let status = vm.status();
    let ended = vm.stop();

    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{}", vm.printed());
    assert!(status.jail.unwrap().raw().contains("user 65534, no capabilities"));
    let layers = vm.manifest().layers;
    let records = |kind| layers.iter().filter(move |layer| layer.kind == kind).flat_map(|layer| &layer.streams);
    assert!(records(LayerKind::Vmm).any(|stream| stream.records > 0));
    assert_eq!(records(LayerKind::HostKernel).count(), 0);
}

#[test]
fn terminal_is_the_console_and_is_left_as_it_was() {
    let (user, terminal) = terminal();
    let modes = || rustix::termios::tcgetattr(&terminal).unwrap().local_modes;
    let before = modes();
    let mut vm = Vm::start_in(FLOOD, NOBODY, &["--user", "65534:65534", "--console-bandwidth", "4K"], |_, command| {
        command.stdin(terminal.try_clone().unwrap()).stdout(terminal.try_clone().unwrap());
    });

    vm.status();
    let during = modes();
    let mut shown = [0; 64];
    rustix::io::read(&user, &mut shown).unwrap();
    rustix::io::write(&user, b"typed").unwrap();
    let reader =
        std::thread::spawn(move || while rustix::io::read(&user, &mut [0; 4096]).is_ok_and(|read| read > 0) {});
    let ended = vm.stop();
    let after = modes();
    drop(terminal);
    reader.join().unwrap();

    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{ended}: {}", vm.printed());
    assert_ne!(during, before);
    assert_eq!(after, before);
}

/// The two sides of a terminal: that of its user, and that of programs.
fn terminal() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
    use rustix::fs::{Mode, OFlags, open};
    let user = open("/dev/ptmx", OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let (mut number, unlocked) = (0i32, 0i32);
    #[allow(unsafe_code)] // rustix has these calls behind a feature that nothing else needs
    // SAFETY: both take the address of an int that lives as long as the call.
    let answers = unsafe {
        use std::os::fd::AsRawFd;
        let unlock = libc::ioctl(user.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked);
        (unlock, libc::ioctl(user.as_raw_fd(), libc::TIOCGPTN, &raw mut number))
    };
    assert_eq!(answers, (0, 0));
    let terminal = open(format!("/dev/pts/{number}"), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    (user, terminal)
}

#[test]
fn jail_that_logs_gives_up_all_but_the_calls() {
    let mut vm = Vm::start(SLEEP, NOBODY, &["--user", "65534:65534", "--jail", "log"]);

    let status = vm.status();
    let ended = vm.stop();

    assert!(ended.success(), "{}", vm.printed());
    let jail = status.jail.unwrap().into_raw();
    assert!(jail.contains("no capabilities, landlock ") && jail.contains("seccomp that logs"));
}

#[test]
fn jail_that_is_off_gives_up_nothing() {
    let mut vm = Vm::start(SLEEP, 0, &["--jail", "off"]);

    let status = vm.status();
    let threads = vm.threads();
    let ended = vm.stop();

    assert!(ended.success());
    assert_eq!(status.jail, Some("off".into()));
    assert!(threads.values().all(|thread| thread["Seccomp"] == "0" && thread["Uid"].starts_with("0\t")));
}

#[test]
fn recording_and_snapshots_that_others_may_read_are_made_under_the_jail() {
    let arguments = ["--user", "65534:65534", "--mode", "flight-recorder", "--readable-by", "all"];
    let (vm, _) = whole_run(NOBODY, &arguments, true);

    let mode = |name: &str| vm.path(name).metadata().unwrap().permissions().mode() & 0o777;
    let folders = ["traces/trace", "traces/trace-snapshots", "traces/trace-snapshots/whole"];
    assert_eq!(folders.map(mode), [0o755; 3]);
    assert_eq!(mode("traces/trace-snapshots/whole/session.json"), 0o644);
}

#[test]
fn snapshots_go_into_folders_that_are_named_at_the_start() {
    let mut named = PathBuf::new();
    let usual = ["--user", "65534:65534", "--mode", "flight-recorder"];
    let folder = TempDir::new().unwrap();
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    named.push(folder.path().join("snapshot"));
    let mut vm = Vm::start(SLEEP, NOBODY, &[&usual[..], &["--writable", folder.path().to_str().unwrap()]].concat());

    vm.status();
    let answer = vm.request(&Request::Snapshot { dir: named.clone(), session: None });
    let ended = vm.stop();

    assert!(answer.is_ok() && ended.success(), "{answer:?} {}", vm.printed());
    assert!(strata_recording::reader::Trace::open(&named).is_ok());
    // Nothing went into the folder that is made for them.
    assert!(!vm.path("traces/trace-snapshots").exists());
}

/// The files that a process has open, and whether for writing.
fn open_files(process: u32) -> Vec<(PathBuf, bool)> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let files = entries.filter_map(|entry| {
        let file = fs::read_link(entry.path()).ok()?;
        let about = Path::new("/proc").join(process.to_string()).join("fdinfo").join(entry.file_name());
        let about = fs::read_to_string(about).ok()?;
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
        Some((file, i32::from_str_radix(flags, 8).ok()? & libc::O_ACCMODE != libc::O_RDONLY))
    });
    files.collect()
}

#[test]
#[allow(unsafe_code)]
fn descriptors_of_who_started_the_vm_are_closed_but_for_those_that_options_name() {
    let mut secret = PathBuf::new();
    let mut vm = Vm::start_in(SLEEP, NOBODY, &["--user", "65534:65534"], |folder, command| {
        secret = folder.join("secret");
        let files = [fs::File::create(&secret).unwrap(), fs::File::open(folder.join("guest")).unwrap()];
        // The kernel is named by a descriptor.
        let named = format!("/dev/fd/{}", files[1].as_raw_fd());
        let arguments = command.get_envs().find(|(name, _)| *name == ARGUMENTS_VARIABLE).unwrap().1.unwrap();
        let kernel = folder.join("guest").display().to_string();
        let arguments = arguments.to_str().unwrap().replace(&kernel, &named);
        command.env(ARGUMENTS_VARIABLE, arguments);
        let pass = move || files.iter().try_for_each(|file| Ok(fcntl_setfd(file, FdFlags::empty())?));
        // SAFETY: what is done before the program runs is one system call for each file.
        unsafe { command.pre_exec(pass) };
    });

    vm.status();
    let open = open_files(vm.process.id());
    let ended = vm.stop();

    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{}", vm.printed());
    assert!(open.iter().any(|(file, _)| file.ends_with("region")), "{open:?}");
    assert!(!open.iter().any(|(file, _)| *file == secret), "{open:?}");
}

#[test]
fn untraced_vm_is_in_its_jail_too() {
    let mut vm = Vm::start(SLEEP, NOBODY, &["--user", "65534:65534", "--cpus", "1"]);

    let status = vm.status();
    let paused = vm.request(&Request::Pause);
    let ended = vm.stop();

    assert!(paused.is_ok() && ended.success(), "{}", vm.printed());
    assert!(status.trace.is_none() && status.jail.unwrap().raw().contains("seccomp"));
}
