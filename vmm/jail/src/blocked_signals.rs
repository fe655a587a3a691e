//! Signals kept from a thread while it forks.
#![allow(unsafe_code)] // sets of signals are memory that C functions fill

use std::mem;
use std::ptr;

/// Signals of this thread, blocked until this is dropped. A child that is forked meanwhile keeps them so: what is meant
/// for its parent, such as Ctrl-C, does not end it.
#[derive(Debug)]
#[must_use = "they are blocked until it is dropped"]
pub struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks all signals.
    pub fn all() -> Self {
        // SAFETY: every bit pattern of a set is valid, and the set outlives the call.
        let all = unsafe {
            let mut all = mem::zeroed();
            libc::sigfillset(&raw mut all);
            all
        };
        Self::block(&all)
    }

    /// Blocks `signals`, beside those that are blocked already.
    pub fn of(signals: &[libc::c_int]) -> Self {
        // SAFETY: every bit pattern of a set is valid, and the set outlives the calls.
        let set = unsafe {
            let mut set = mem::zeroed();
            libc::sigemptyset(&raw mut set);
            signals.iter().for_each(|&signal| {
                libc::sigaddset(&raw mut set, signal);
            });
            set
        };
        Self::block(&set)
    }

    fn block(signals: &libc::sigset_t) -> Self {
        // SAFETY: both sets outlive the call, which fails for wrong arguments only.
        unsafe {
            let mut before = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::from_ref(signals), &raw mut before);
            Self { before }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of `SIGINT` and `SIGUSR1` are blocked in this thread.
    fn blocked() -> [bool; 2] {
        // SAFETY: the set outlives the calls, which only look.
        unsafe {
            let mut now = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut now);
            [libc::SIGINT, libc::SIGUSR1].map(|signal| libc::sigismember(&raw const now, signal) == 1)
        }
    }

    #[test]
    fn signals_are_blocked_until_it_is_dropped() {
        let some = BlockedSignals::of(&[libc::SIGINT]);
        let with_some = blocked();
        let all = BlockedSignals::all();
        let with_all = blocked();
        drop(all);
        let with_some_again = blocked();
        drop(some);

        assert_eq!(
            [with_some, with_all, with_some_again, blocked()],
            [[true, false], [true, true], [true, false], [false, false]]
        );
    }
}
