//! A process that runs a virtual machine, as `/proc` shows it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_recording::text::terminal::foreign::Foreign;
use thiserror::Error;

/// Where processes are.
const PROC: &str = "/proc";

/// What the link of a descriptor of a virtual machine says, in `/proc/PID/fd`.
const MACHINE_LINK: &str = "anon_inode:kvm-vm";

/// Why a process cannot be held, or looked into.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// There is no such process.
    #[error("there is no process {pid}, or it has just ended; `strata attach` alone lists those that run a VM")]
    NoProcess { pid: u32 },
    /// The number is that of a thread.
    #[error("{pid} is a thread of process {process}; give {process}")]
    Thread { pid: u32, process: u32 },
    /// The process cannot be held.
    #[error("this kernel cannot hold a process by its number: use Linux 5.3 or later")]
    Pidfd(#[source] io::Error),
    /// The process's descriptors cannot be seen.
    #[error("cannot see the descriptors of process {pid}: run strata as root, outside of containers")]
    Descriptors {
        pid: u32,
        #[source]
        source: io::Error,
    },
}

/// A thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub tid: u32,
    pub comm: Foreign<String>,
}

/// A process, held so that its number cannot come to mean another one unnoticed.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub comm: Foreign<String>,
    pidfd: OwnedFd,
    folder: PathBuf,
}

impl Process {
    /// The process `pid`.
    ///
    /// # Errors
    /// There is no such process, it is a thread of another one, or this kernel cannot hold processes.
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        let folder = Path::new(PROC).join(pid.to_string());
        let none = || ProcessError::NoProcess { pid };
        let status = fs::read_to_string(folder.join("status")).map_err(|_| none())?;
        match leader(&status) {
            Some(process) if process != pid => return Err(ProcessError::Thread { pid, process }),
            _ => {}
        }
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(none)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => none(),
            errno => ProcessError::Pidfd(errno.into()),
        })?;
        let comm = comm(&folder);
        let process = Self { pid, comm, pidfd, folder };
        if process.ends_within(Duration::ZERO) { Err(none()) } else { Ok(process) }
    }

    /// Waits until the process has ended, for `limit` at most; says whether it has.
    #[must_use]
    pub fn ends_within(&self, limit: Duration) -> bool {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // An interrupted wait is only a look too many.
        matches!(poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&limit)), Ok(1..))
    }

    /// What its end is seen by.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// From now on its end is seen by `pidfd`: the one before, of this number or another, is closed already.
    pub fn hold_by(&mut self, pidfd: OwnedFd) {
        mem::forget(mem::replace(&mut self.pidfd, pidfd));
    }

    /// Its threads.
    #[must_use]
    pub fn tasks(&self) -> Vec<Task> {
        let task = |tid: u32| Task { tid, comm: comm(&self.folder.join("task").join(tid.to_string())) };
        numbers(&self.folder.join("task")).unwrap_or_default().into_iter().map(task).collect()
    }

    /// Its descriptors of virtual machines.
    ///
    /// # Errors
    /// This user may not see them, or the process has just ended.
    pub fn machines(&self) -> Result<Vec<u32>, ProcessError> {
        let folder = self.folder.join("fd");
        let descriptors = numbers(&folder).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ProcessError::NoProcess { pid: self.pid },
            _ => ProcessError::Descriptors { pid: self.pid, source },
        })?;
        let is_machine = |descriptor: &u32| {
            fs::read_link(folder.join(descriptor.to_string())).is_ok_and(|link| link == Path::new(MACHINE_LINK))
        };
        Ok(descriptors.into_iter().filter(is_machine).collect())
    }
}

/// The process of a thread, from the contents of `/proc/TID/status`.
fn leader(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The name of the thread or process of `folder`; empty if it has ended.
pub(super) fn comm(folder: &Path) -> Foreign<String> {
    let name = fs::read(folder.join("comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().into()
}

/// The entries of `folder` that are numbers, in order.
pub(super) fn numbers(folder: &Path) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(folder)?.flatten();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_names_its_process() {
        assert_eq!(leader("Name:\tqemu\nTgid:\t77\nNgid:\t0\nPid:\t79\n"), Some(77));
        assert_eq!(leader("Name:\tqemu\n"), None);
    }

    #[test]
    fn this_process_has_threads_and_goes_on() {
        let process = Process::open(std::process::id()).unwrap();

        let (tasks, has_ended) = (process.tasks(), process.ends_within(Duration::from_millis(1)));

        assert!(tasks.iter().any(|task| task.tid == std::process::id()), "{tasks:?}");
        assert!(!has_ended && !process.comm.raw().is_empty());
    }

    #[test]
    fn process_that_ends_is_seen_to() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();

        let before = process.ends_within(Duration::ZERO);
        child.kill().unwrap();
        child.wait().unwrap();

        assert!(!before && process.ends_within(Duration::from_secs(10)));
        assert!(Process::open(child.id()).unwrap_err().to_string().contains("no process"));
    }

    #[test]
    fn thread_is_refused_with_its_process() {
        let (report, reported) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            report.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            let _ = ended.recv();
        });

        let error = Process::open(reported.recv().unwrap()).unwrap_err().to_string();
        drop(end);
        thread.join().unwrap();

        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    }
}
