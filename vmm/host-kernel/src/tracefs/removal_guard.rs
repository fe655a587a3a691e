//! Removes a tracing instance when this process ends in any way, abort and SIGKILL included.
//!
//! An instance left behind keeps its buffers and keeps tracing. Code of ours that runs at the end cannot be relied on,
//! and by then this process may no longer be root. So a child process, forked while we are, waits for the end of a pipe
//! that only we hold open. It has no other input, runs no program, and is confined to what it is there for.
#![allow(unsafe_code)] // a child without a program: only `fork` makes one, and it may not allocate

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};
use seccompiler::{BpfProgram, apply_filter};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};
use strata_jail::blocked_signals::BlockedSignals;
use strata_jail::filter::{self, Filter, Offence};
use strata_jail::inherited::close_from;
use strata_jail::policy::Thread;

/// How often the child tries to remove an instance that something still holds open, and what it waits between.
const TRIES: u32 = 1000;
const PAUSE_NS: libc::c_long = 10_000_000;
/// How long its end is waited for: with nothing open, a removal takes a few hundredths of a second.
const PATIENCE: Duration = Duration::from_millis(500);
const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// The child process. When dropped it removes the instance, which is waited for; if something holds that open, it is
/// left alone with its work.
#[derive(Debug)]
pub(super) struct RemovalGuard {
    child: Pid,
    /// `None` only inside of `drop`.
    pipe: Option<OwnedFd>,
}

impl RemovalGuard {
    /// Starts guarding the folder `instance`.
    pub(super) fn spawn(instance: &Path) -> io::Result<Self> {
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
        let task = Task {
            folder: text(instance)?,
            switch: text(&instance.join("tracing_on"))?,
            filters: Filter::new(Thread::Guard, Offence::Kill, None).map_err(io::Error::other)?.programs().to_vec(),
            has_seccomp: filter::is_available(),
        };
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let blocked = BlockedSignals::all();
        // SAFETY: the child calls only `Task::run`, which neither allocates nor takes a lock.
        let child = match unsafe { libc::fork() } {
            0 => task.run(reader.as_raw_fd()),
            child => Pid::from_raw(child).filter(|child| child.as_raw_nonzero().get() > 0),
        };
        let error = io::Error::last_os_error();
        drop(blocked);
        let child = child.ok_or(error)?;
        Ok(Self { child, pipe: Some(writer) })
    }
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        self.pipe = None;
        let end = Instant::now() + PATIENCE;
        // An error means that there is no such child: nothing to wait for.
        while matches!(waitpid(Some(self.child), WaitOptions::NOHANG), Ok(None)) && Instant::now() < end {
            thread::sleep(LOOK_PAUSE);
        }
    }
}

/// Everything that the child needs, made before it is forked.
struct Task {
    folder: CString,
    switch: CString,
    filters: Vec<BpfProgram>,
    has_seccomp: bool,
}

impl Task {
    /// What the child does: waits for the end of `pipe`, then stops tracing and removes the folder as soon as nothing
    /// holds it open. It neither allocates nor takes a lock: other threads of its parent may have held one.
    fn run(&self, pipe: RawFd) -> ! {
        // SAFETY: system calls, with memory of this frame and of `self`, in a process of one thread.
        unsafe {
            libc::setpgid(0, 0);
            libc::prctl(libc::PR_SET_NAME, c"strata-guard".as_ptr());
            libc::dup2(pipe, 0);
            close_from(1);
            libc::chdir(c"/".as_ptr());
            self.confine();
            let mut byte = 0_u8;
            loop {
                match libc::read(0, (&raw mut byte).cast(), 1) {
                    -1 if *libc::__errno_location() == libc::EINTR => {}
                    1 => {}
                    _ => break,
                }
            }
            let switch = libc::open(self.switch.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if switch >= 0 {
                libc::write(switch, c"0".as_ptr().cast(), 1);
                libc::close(switch);
            }
            for _ in 0..TRIES {
                if libc::rmdir(self.folder.as_ptr()) == 0 || *libc::__errno_location() == libc::ENOENT {
                    break;
                }
                let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NS };
                libc::nanosleep(&raw const pause, ptr::null_mut());
            }
            libc::_exit(0)
        }
    }

    /// Gives up capabilities, which the owner of the folder does not need, and system calls.
    fn confine(&self) {
        let header = [CAPABILITY_VERSION, 0];
        let none = [0_u32; 6];
        // SAFETY: the kernel reads a header and two times three words.
        unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
        if self.has_seccomp && !self.filters.iter().all(|filter| apply_filter(filter).is_ok()) {
            // SAFETY: ends this process; the instance is removed when strata starts the next time.
            unsafe { libc::_exit(1) };
        }
    }
}
