//! A boot of a guest in a process of its own.
//!
//! What a VM's process has given up ([`strata_jail`]) it cannot have again, so whoever starts a guest again is another
//! process: one that opens nothing, has one thread, and waits. For each boot it forks a child, which does the rest, and
//! passes on the signals that ask for the end.
#![allow(unsafe_code)] // no crate in use here forks, or waits for signals without handlers

use super::on_reboot::BootEnd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, kill_process, pidfd_open, set_parent_process_death_signal,
    waitpid,
};
use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::exit;
use std::ptr;
use strata_recording::stop_signals::heeded;

/// Signals that ask for the end of the run.
const STOPS: [Signal; 3] = [Signal::HUP, Signal::INT, Signal::TERM];

/// How the process of a boot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum ProcessEnd {
    /// It said how the boot ended.
    Reported(BootEnd),
    /// A signal ended it.
    Killed(i32),
}

/// Starts processes and waits for them, in a process of one thread.
pub(in crate::run) struct BootProcesses {
    /// What was blocked before.
    before: libc::sigset_t,
    /// Gives those of [`STOPS`] that are heeded, which are blocked.
    stops: OwnedFd,
    /// The last of them.
    stopped_by: Option<Signal>,
}

impl BootProcesses {
    /// From now on signals that ask for the end are passed on to the processes.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(in crate::run) fn new() -> io::Result<Self> {
        let heeded = heeded();
        // SAFETY: every bit pattern of a set is valid; the sets outlive the calls, and only that for a descriptor,
        // which is nobody else's, fails. Whoever started us may ignore the end of children, which loses their statuses.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let (mut set, mut before) = mem::zeroed();
            libc::sigemptyset(&raw mut set);
            heeded.into_iter().for_each(|signal| {
                libc::sigaddset(&raw mut set, signal);
            });
            let stops = match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => return Err(io::Error::last_os_error()),
                stops => OwnedFd::from_raw_fd(stops),
            };
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            Ok(Self { before, stops, stopped_by: None })
        }
    }

    /// Whether, and by which signal, the end was requested.
    pub(in crate::run) const fn stopped_by(&self) -> Option<Signal> {
        self.stopped_by
    }

    /// Does `boot` in a process of its own and waits for its end. The process gets a signal to end when this one dies.
    ///
    /// # Errors
    /// There can be no further process, or it cannot be waited for.
    pub(in crate::run) fn run(&mut self, boot: impl FnOnce() -> BootEnd) -> io::Result<ProcessEnd> {
        let parent = getpid();
        // SAFETY: this process has one thread, so the child finds everything as it is here.
        match unsafe { libc::fork() } {
            0 => exit(self.lead(parent, boot).status().into()),
            child => match Pid::from_raw(child).filter(|child| child.as_raw_nonzero().get() > 0) {
                Some(child) => self.wait(child),
                None => Err(io::Error::last_os_error()),
            },
        }
    }

    /// What the child does.
    fn lead(&self, parent: Pid, boot: impl FnOnce() -> BootEnd) -> BootEnd {
        // SAFETY: the set is the one that was in force.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
        let dies_with_parent = set_parent_process_death_signal(Some(Signal::TERM));
        // A parent that died before was not told.
        if dies_with_parent.is_err() || getppid() != Some(parent) {
            return BootEnd::Failed;
        }
        boot()
    }

    /// Passes on signals to `child` until it ends. Those that came before its end are taken before it.
    fn wait(&mut self, child: Pid) -> io::Result<ProcessEnd> {
        let process = pidfd_open(child, PidfdFlags::empty())?;
        loop {
            let mut ready = [PollFd::new(&self.stops, PollFlags::IN), PollFd::new(&process, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            while let Some(signal) = self.next_stop() {
                self.stopped_by = Some(signal);
                // A child that has ended and is not waited for still has its number.
                let _ = kill_process(child, signal);
            }
            if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG)? {
                return Ok(match status.terminating_signal() {
                    Some(signal) => ProcessEnd::Killed(signal),
                    None => ProcessEnd::Reported(BootEnd::of_status(status.exit_status().unwrap_or_default())),
                });
            }
        }
    }

    /// A signal that asks for the end, if there is one.
    fn next_stop(&self) -> Option<Signal> {
        let mut signal = [0; size_of::<libc::signalfd_siginfo>()];
        read(&self.stops, &mut signal).ok()?;
        // The number is the first word.
        let number = signal.first_chunk().map(|word| u32::from_ne_bytes(*word))?;
        STOPS.into_iter().find(|stop| u32::try_from(stop.as_raw()) == Ok(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;
    use std::thread::sleep;
    use std::time::Duration;

    /// Longer than any test lasts.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn process_tells_how_its_boot_ended() {
        let mut processes = BootProcesses::new().unwrap();

        let ends = [BootEnd::Done, BootEnd::Failed, BootEnd::Rebooted].map(|end| processes.run(|| end).unwrap());

        assert_eq!(ends, [BootEnd::Done, BootEnd::Failed, BootEnd::Rebooted].map(ProcessEnd::Reported));
        assert_eq!(processes.stopped_by(), None);
    }

    #[test]
    fn process_that_is_killed_is_reported_with_the_signal() {
        let kill = || {
            let _ = kill_process(getpid(), Signal::KILL);
            BootEnd::Done
        };

        let end = BootProcesses::new().unwrap().run(kill).unwrap();

        assert_eq!(end, ProcessEnd::Killed(libc::SIGKILL));
    }

    #[test]
    fn signal_that_asks_for_the_end_is_passed_on_and_remembered() {
        let (process, thread) = (getpid().as_raw_nonzero().get(), gettid().as_raw_nonzero().get());
        let request_and_wait = || {
            // SAFETY: a system call without memory. A signal to the process might find another thread of the tests.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGTERM) };
            sleep(LONG);
            BootEnd::Rebooted
        };
        let mut processes = BootProcesses::new().unwrap();

        let end = processes.run(request_and_wait).unwrap();

        assert_eq!((end, processes.stopped_by()), (ProcessEnd::Killed(libc::SIGTERM), Some(Signal::TERM)));
    }
}
