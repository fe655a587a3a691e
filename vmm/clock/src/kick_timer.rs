//! Sends a signal after a short time, or when a thread has run for that time.
//!
//! A vCPU's thread that is signalled leaves the guest at once: the timer's interrupt comes to the CPU that runs it.
#![allow(unsafe_code)] // no crate in use here wraps POSIX timers

use std::io;
use std::mem;
use std::ptr;
use std::time::Duration;

/// A timer that sends a signal to a thread.
pub struct KickTimer(libc::timer_t);

// SAFETY: it is the number of a timer of the process, which any thread may use.
unsafe impl Send for KickTimer {}
// SAFETY: as above; the kernel orders what threads do with it.
unsafe impl Sync for KickTimer {}

impl KickTimer {
    /// A timer for the calling thread, not armed. `signal` needs a handler that does no more than the kick's.
    ///
    /// # Errors
    /// The kernel has no timer left for this user.
    pub fn for_this_thread(signal: libc::c_int) -> io::Result<Self> {
        Self::new(libc::CLOCK_MONOTONIC, signal, rustix::thread::gettid().as_raw_nonzero().get())
    }

    /// A timer that counts the time for which the calling thread runs, in a guest too, and tells the thread `told` of
    /// this process; not armed. `signal` needs a handler.
    ///
    /// # Errors
    /// The kernel has no timer left for this user, or there is no such thread.
    pub fn on_time_of_this_thread(signal: libc::c_int, signalled: libc::pid_t) -> io::Result<Self> {
        Self::new(libc::CLOCK_THREAD_CPUTIME_ID, signal, signalled)
    }

    fn new(clock: libc::clockid_t, signal: libc::c_int, signalled: libc::pid_t) -> io::Result<Self> {
        // SAFETY: every bit pattern of it is valid; the members that matter are set.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = signalled;
        let mut timer = ptr::null_mut();
        // SAFETY: both structures outlive the call; the kernel looks whether the thread is one of this process.
        let result = unsafe { libc::timer_create(clock, &raw mut event, &raw mut timer) };
        if result == 0 { Ok(Self(timer)) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends the signal once, after `delay`.
    pub fn arm(&self, delay: Duration) {
        let nanoseconds = libc::c_long::from(delay.subsec_nanos().max(1));
        let seconds = libc::time_t::try_from(delay.as_secs()).unwrap_or(libc::time_t::MAX);
        let once = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds },
        };
        // SAFETY: the timer exists until this is dropped; the structure outlives the call. It fails
        // when the thread whose time it counts has ended, which then does nothing to be told of.
        unsafe { libc::timer_settime(self.0, 0, &raw const once, ptr::null_mut()) };
    }
}

impl Drop for KickTimer {
    fn drop(&mut self) {
        // SAFETY: made by `for_this_thread`, and nobody can use it any more.
        unsafe { libc::timer_delete(self.0) };
    }
}
