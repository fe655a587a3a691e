//! Kicks a vCPU's own thread after a short time. The timer's interrupt comes to the CPU that runs the vCPU, so the
//! guest is left at once.
#![allow(unsafe_code)] // no crate in use here wraps POSIX timers

use std::io;
use std::mem;
use std::ptr;
use std::time::Duration;

/// A timer that sends a signal to the thread that made it.
pub struct KickTimer(libc::timer_t);

impl KickTimer {
    /// A timer for the calling thread, not armed. `signal` needs a handler that does no more than the kick's.
    ///
    /// # Errors
    /// The kernel has no timer left for this user.
    pub fn for_this_thread(signal: libc::c_int) -> io::Result<Self> {
        // SAFETY: every bit pattern of it is valid; the members that matter are set.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer = ptr::null_mut();
        // SAFETY: both structures outlive the call; the thread is this one and so exists.
        let result = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
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
        // SAFETY: the timer exists until this is dropped; the structure outlives the call. It cannot fail then.
        unsafe { libc::timer_settime(self.0, 0, &raw const once, ptr::null_mut()) };
    }
}

impl Drop for KickTimer {
    fn drop(&mut self) {
        // SAFETY: made by `for_this_thread`, and nobody can use it any more.
        unsafe { libc::timer_delete(self.0) };
    }
}
