//! Groups of processes that do not outlive this one. A signal that ends it ends them first, then removes what they had
//! half made; where it is killed outright, the kernel ends the process that leads each.

#![allow(unsafe_code)] // A child learns what ends it before it becomes another program.

use crate::progress;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process_group, pidfd_open,
    pidfd_send_signal, set_parent_process_death_signal, test_kill_process_group, waitid, waitpgid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use strata_recording::files::removed_on_signal;

/// How long groups may take to end: nextest gives its tests ten seconds.
const GRACE: Duration = Duration::from_secs(15);
/// Pause between two looks at them.
const PAUSE: Duration = Duration::from_millis(20);

/// What a signal ends and removes.
static GOING: Mutex<Going> = Mutex::new(Going { groups: Vec::new(), paths: Vec::new() });

struct Going {
    groups: Vec<Pid>,
    paths: Vec<PathBuf>,
}

fn going() -> MutexGuard<'static, Going> {
    GOING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child that leads a group of its own. It is for the thread that started it to wait for: the kernel ends the child with
/// that thread.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    id: Pid,
}

impl Group {
    /// Starts `command`.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        take_signals();
        // SAFETY: the closure makes one system call; it neither allocates nor takes a lock.
        unsafe { command.process_group(0).pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
        // held meanwhile, so that a signal that comes now ends this one, too
        let mut going = going();
        let child = command.spawn()?;
        let id = Pid::from_child(&child);
        going.groups.push(id);
        Ok(Self { child, id })
    }

    /// The child's status if it has ended.
    ///
    /// # Errors
    ///
    /// When the system does not say.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        // held, so that no signal ends a group whose id is somebody else's by now
        let mut going = going();
        let status = self.child.try_wait()?;
        if status.is_some() {
            going.groups.retain(|group| *group != self.id);
        }
        Ok(status)
    }

    /// The processor time that the child's threads have had, as far as they run; none of a child that has ended.
    pub(crate) fn processor_time(&self) -> Duration {
        let threads = fs::read_dir(format!("/proc/{}/task", self.id)).into_iter().flatten().flatten();
        let accounts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
        Duration::from_nanos(accounts.filter_map(|account| account.split(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// Waits for the child's end.
    ///
    /// # Errors
    ///
    /// When the system does not tell the child's status.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            // without the lock, and the child keeps its id
            let _ = waitid(WaitId::Pid(self.id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
        }
    }

    /// Kills the whole group. A child that has not been waited for keeps its id, so the group cannot be somebody else's.
    pub(crate) fn kill(&mut self) {
        if let Ok(None) = self.try_wait() {
            let _ = kill_process_group(self.id, Signal::KILL);
            let _ = self.wait();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Removes a file, or a folder with all that is in it, when a signal ends this process, after the groups that may be writing
/// there. Until it is dropped.
#[derive(Debug)]
pub(crate) struct GoesOnSignal(PathBuf);

impl GoesOnSignal {
    pub(crate) fn new(path: &Path) -> Self {
        take_signals();
        going().paths.push(path.to_path_buf());
        Self(path.to_path_buf())
    }
}

impl Drop for GoesOnSignal {
    fn drop(&mut self) {
        going().paths.retain(|path| *path != self.0);
    }
}

/// Has signals end the groups, once for the process. Where they cannot be taken, they end this process alone.
fn take_signals() {
    static TAKEN: Once = Once::new();
    TAKEN.call_once(|| {
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
        let _ = thread::Builder::new().name("lab-signals".into()).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end_all();
                std::process::exit(128 + signal);
            }
        });
    });
}

/// Ends all groups, and removes what is to go. Nothing else is started any more: the lock is kept.
fn end_all() {
    progress::note("a signal: what was started is ended");
    let going = going();
    let begun = Instant::now();
    // some may have left their group, as what `timeout` starts does
    let descendants = descendants();
    let send = |signal| {
        for group in &going.groups {
            // a group that has ended meanwhile is what is wanted
            let _ = kill_process_group(*group, signal);
        }
    };
    send(Signal::TERM);
    while going.groups.iter().any(|group| is_there(*group)) && begun.elapsed() < GRACE {
        thread::sleep(PAUSE);
    }
    send(Signal::KILL);
    for process in descendants {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    going.paths.iter().for_each(|path| removed_on_signal::remove(path));
    std::mem::forget(going);
}

/// The processes that this one, or what it started, has started.
fn descendants() -> Vec<OwnedFd> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(Pid, Pid)> = entries
        .filter_map(|entry| {
            let process = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            Some((process, parent(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
        })
        .collect();
    let mut found = vec![getpid()];
    let mut index = 0;
    while let Some(parent) = found.get(index).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        index += 1;
    }
    found.into_iter().skip(1).filter_map(|process| pidfd_open(process, PidfdFlags::empty()).ok()).collect()
}

/// The parent of the process that this line of `/proc/PID/stat` describes. A program's name may hold spaces and brackets.
fn parent(stat: &str) -> Option<Pid> {
    Pid::from_raw(stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?)
}

/// Whether a group still has a process. Who waits for the child waits for the lock now, so the dead are taken here.
fn is_there(group: Pid) -> bool {
    let _ = waitpgid(group, WaitOptions::NOHANG);
    test_kill_process_group(group).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    /// Names the folder that the test's own process, started again, works in.
    const FOLDER: &str = "STRATA_TEST_GROUP_FOLDER";

    #[test]
    #[ignore = "child process: run by the tests below"]
    fn has_a_group_and_a_folder() {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        let half_made = folder.join("half-made");
        fs::create_dir(&half_made).unwrap();
        let _goes = GoesOnSignal::new(&half_made);
        // the first process of the group starts another one, and one that leaves the group
        let script = "sleep 600 & echo $! > $0/second; setsid sleep 600 & echo $! > $0/third; echo $$ > $0/first; wait";
        let mut group = Group::spawn(Command::new("sh").args(["-c", script]).arg(&folder)).unwrap();
        while !folder.join("first").exists() {
            thread::sleep(PAUSE);
        }
        println!("ready");
        group.wait().unwrap();
    }

    /// The status of that process when it gets `signal`, the folder that it worked in, and the processes that it started.
    fn end_by(signal: Signal) -> (ExitStatus, tempfile::TempDir, [Pid; 3]) {
        let folder = tempfile::tempdir().unwrap();
        let test = format!("{}::has_a_group_and_a_folder", module_path!().split_once("::").unwrap().1);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&test, "--exact", "--nocapture", "--ignored"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("ready")));
        let process = |name: &str| {
            let text = fs::read_to_string(folder.path().join(name)).unwrap();
            Pid::from_raw(text.trim().parse().unwrap()).unwrap()
        };
        let processes = ["first", "second", "third"].map(process);
        rustix::process::kill_process(Pid::from_child(&child), signal).unwrap();
        (child.wait().unwrap(), folder, processes)
    }

    /// Waits for the end of a process that is nobody's child here: it may lie dead until its new parent looks.
    #[track_caller]
    fn assert_ends(process: Pid) {
        let begun = Instant::now();
        let state = || fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
        let is_alive = || !matches!(state().rsplit(") ").next().and_then(|rest| rest.chars().next()), None | Some('Z'));
        while is_alive() {
            assert!(begun.elapsed() < GRACE, "{}", state());
            thread::sleep(PAUSE);
        }
    }

    #[test]
    fn parent_is_read_behind_a_name_with_brackets() {
        let stat = "42 (a) b (c) S 7 42 42 0 -1";

        assert_eq!((parent(stat), parent("")), (Pid::from_raw(7), None));
    }

    #[test]
    fn signal_ends_what_was_started_and_removes_what_was_half_made() {
        let (status, folder, processes) = end_by(Signal::INT);

        assert_eq!(status.code(), Some(128 + SIGINT));
        processes.into_iter().for_each(assert_ends);
        assert!(!folder.path().join("half-made").exists());
    }

    #[test]
    fn child_of_a_process_that_is_killed_outright_ends() {
        let (status, _folder, [first, second, third]) = end_by(Signal::KILL);

        assert_eq!(status.code(), None);
        assert_ends(first);
        for other in [second, third] {
            let _ = rustix::process::kill_process(other, Signal::KILL);
        }
    }

    #[test]
    fn group_ends_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let script = "sleep 600 & echo $! > $0/second; wait";
        let group = Group::spawn(Command::new("sh").args(["-c", script]).arg(folder.path())).unwrap();
        let second = folder.path().join("second");
        let text = || fs::read_to_string(&second).unwrap_or_default();
        while !text().ends_with('\n') {
            thread::sleep(PAUSE);
        }

        drop(group);

        assert_ends(Pid::from_raw(text().trim().parse().unwrap()).unwrap());
    }
}
