//! What `strata run` does, in a process of its own with a hand-written guest, for tests. It needs `/dev/kvm`, of any kind, and
//! root.

use crate::cli::{Cli, Command};
use crate::run::*;
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use strata_jail::inherited::Inherited;
use strata_machine::test_guest;
use strata_recorder::control::protocol::{Answer, Request, Status};
use strata_recorder::control::{client, found_vm};
use tempfile::TempDir;

/// Arguments of `strata run` for the child process, a line each.
pub(super) const ARGUMENTS_VARIABLE: &str = "STRATA_TEST_RUN";
/// Sleeps for ever.
pub(super) const SLEEP: &[u8] = &[
    0xf4, // hlt
    0xeb, 0xfd, // jmp -3
];
/// Raises an exception for which there is no handler.
pub(super) const TRIPLE_FAULT: &[u8] = &[0x0f, 0x0b]; // ud2
/// Writes strings to the console for ever.
pub(super) const FLOOD: &[u8] = &[
    0xba, 0xf8, 0x03, 0x00, 0x00, // mov edx, 0x3f8
    0xbe, 0x00, 0x00, 0x20, 0x00, // mov esi, 0x20_0000
    0xb9, 0x00, 0x10, 0x00, 0x00, // mov ecx, 4096
    0xf3, 0x6e, // rep outsb
    0xeb, 0xed, // jmp -19
];
/// A user who owns nothing.
pub(super) const NOBODY: u32 = 65534;
/// Longest wait for a child to do what it should.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Does nothing unless a test runs it: then what `strata run` does, with any kind of KVM.
#[test]
fn child_that_runs_a_guest() {
    let Ok(arguments) = std::env::var(ARGUMENTS_VARIABLE) else { return };
    let Command::Run(args) = Cli::parse_from(["strata", "run"].into_iter().chain(arguments.lines())).command else {
        return;
    };
    let on_reboot = args.on_reboot;
    let mut request = RunRequest::from(*args);
    request.jail.inherited = Inherited::note();
    let notify: Notify = |line| eprintln!("{line}");
    let run = |request: &RunRequest| {
        let jail = Jail::choose(&request.jail)?;
        let plan = Plan::check(request, &jail)?;
        run_plan(plan, jail, notify)
    };
    let boot = |request: &RunRequest| match run(request) {
        Ok(report) => {
            eprintln!(
                "OUTCOME {}",
                if report.trace_failed { "trace failed".into() } else { report.outcome.to_string() }
            );
            BootEnd::from(&report)
        }
        Err(error) => {
            eprintln!("REFUSED {:#}", anyhow::Error::from(error));
            BootEnd::NotRun
        }
    };
    match on_reboot {
        OnReboot::Stop => drop(boot(&request)),
        OnReboot::Restart => match run_boots(request, boot, notify) {
            Ok(end) => eprintln!("END {end:?}"),
            Err(error) => eprintln!("REFUSED {error}"),
        },
    }
}

/// A VM in a process of its own.
pub(super) struct Vm {
    folder: TempDir,
    pub(super) process: Child,
}

impl Vm {
    /// Runs `code` as the user `uid`, with further arguments.
    pub(super) fn start(code: &[u8], uid: u32, arguments: &[&str]) -> Self {
        Self::start_in(code, uid, arguments, |_, _| ())
    }

    /// The same, after `change` was made to the VM's folder and to the command that starts it.
    pub(super) fn start_in(
        code: &[u8],
        uid: u32,
        arguments: &[&str],
        change: impl FnOnce(&Path, &mut std::process::Command),
    ) -> Self {
        let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("guest"), test_guest::elf(code)).unwrap();
        fs::write(path("disk"), [0; 4096]).unwrap();
        // Only root can read them.
        for name in ["guest", "disk"] {
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        for name in ["runtime", "traces"] {
            fs::create_dir(path(name)).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o700)).unwrap();
            chown(path(name), Some(uid), Some(uid)).unwrap();
        }
        let (kernel, disk, trace) = (path("guest"), path("disk"), path("traces/trace"));
        let [kernel, disk, trace] = [kernel, disk, trace].map(|path| path.display().to_string());
        let usual = ["--kernel", &kernel, "--disk", &disk, "--memory", "64M"];
        let traced = ["--trace", &trace, "--process-slots", "1"].into_iter().filter(|_| !arguments.contains(&"--cpus"));
        let all: Vec<&str> = usual.into_iter().chain(traced).chain(arguments.iter().copied()).collect();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "run::tests::vm_process::child_that_runs_a_guest", "--nocapture"])
            .env(ARGUMENTS_VARIABLE, all.join("\n"))
            .env(directory::RUNTIME_VARIABLE, path("runtime"))
            .env_remove("SUDO_UID")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(path("said")).unwrap());
        change(folder.path(), &mut command);
        let process = command.spawn().unwrap();
        Self { folder, process }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn printed(&self) -> String {
        fs::read_to_string(self.path("said")).unwrap()
    }

    /// Asks until the VM answers and its guest runs: it may not have come up yet.
    pub(super) fn status(&mut self) -> Box<Status> {
        self.insist(&Request::Pause);
        self.insist(&Request::Resume);
        match self.insist(&Request::Status) {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// The VM's folder. The process of a test has its first thread stay root, so that nobody believes the folder of the
    /// user whom the other threads become: it is looked at as one's own.
    pub(super) fn find(&self) -> Option<found_vm::FoundVm> {
        let entries = fs::read_dir(self.path("runtime")).unwrap();
        entries.flatten().find_map(|entry| found_vm::look_at(entry.path()))
    }

    pub(super) fn insist(&mut self, request: &Request) -> Answer {
        let end = Instant::now() + LIMIT;
        loop {
            match self.find().map(|vm| client::call(&vm.socket(), request)) {
                Some(Ok(answer)) => return answer,
                failed => {
                    let has_ended = self.process.try_wait().unwrap().is_some();
                    assert!(Instant::now() < end && !has_ended, "{failed:?}: {}", self.printed());
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    pub(super) fn request(&self, request: &Request) -> Result<Answer, client::ClientError> {
        let vm = self.find().unwrap();
        client::call(&vm.socket(), request)
    }

    /// What `/proc` says of each thread under the jail, by name: all but that of the test harness. A thread that has
    /// just begun has the name of the one that made it, so they are listed until each that a traced VM has is there.
    pub(super) fn threads(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let end = Instant::now() + LIMIT;
        loop {
            let threads = self.threads_now();
            let is_there = |name: &String| threads.keys().any(|thread| name.starts_with(thread.as_str()));
            if thread_names().iter().all(is_there) || Instant::now() > end {
                return threads;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn threads_now(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap().flatten();
        let tasks = tasks.filter(|task| task.file_name().to_str() != Some(&self.process.id().to_string()));
        let read = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap();
            let fields = status.lines().filter_map(|line| line.split_once(":\t"));
            let fields: BTreeMap<_, _> = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            (fields["Name"].clone(), fields)
        };
        tasks.map(read).collect()
    }

    /// Stops it as Ctrl-C does, and waits for its end.
    pub(super) fn stop(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        self.end()
    }

    pub(super) fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < end, "it does not end: {}", self.printed());
            match self.process.try_wait().unwrap() {
                Some(status) => return status,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    pub(super) fn manifest(&self) -> Manifest {
        strata_recording::reader::Trace::open(&self.path("traces/trace")).unwrap().manifest().clone()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The threads of a traced VM with a disk. By these names reports tell which thread serves which disk, and which record.
pub(super) fn thread_names() -> [String; 7] {
    let disk = format!("{}0", strata_recording::manifest::DISK_THREAD);
    let [recorder, _, clock, symbols] = strata_recording::manifest::RECORDING_THREADS;
    ["vcpu0", &disk, recorder, "strata-control", clock, symbols, "strata-console"].map(str::to_owned)
}

/// How many tracefs instances the process has.
pub(super) fn instances_of(process: u32) -> usize {
    let instances = fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten().flatten();
    let prefix = format!("strata-{process}-");
    instances.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}
