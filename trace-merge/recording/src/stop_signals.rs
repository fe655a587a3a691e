//! Signals that ask for the end of a recording, or of what is made of one.
#![allow(unsafe_code)] // the kernel says by a structure of C's what it does at a signal

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{mem, ptr};

/// Signals that ask for the end.
pub const STOPS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Those of [`STOPS`] that this process heeds. Whoever started it may have it outlive its terminal (`nohup`).
#[must_use]
pub fn heeded() -> Vec<i32> {
    heeded_but(is_ignored)
}

fn heeded_but(is_ignored: impl Fn(i32) -> bool) -> Vec<i32> {
    // A shell has what it starts in the background ignore SIGINT, which is sent to it by its number all the same.
    STOPS.into_iter().filter(|&signal| signal != SIGHUP || !is_ignored(signal)).collect()
}

/// Whether `signal` does nothing to this process.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: every bit pattern of an action is valid; it outlives the call, which fails for wrong arguments only.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, ptr::null(), &raw mut action);
        action.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::SIGPIPE;

    #[test]
    fn hangup_that_is_ignored_asks_for_nothing() {
        let (all, behind_nohup, in_background) =
            (heeded_but(|_| false), heeded_but(|signal| signal == SIGHUP), heeded_but(|signal| signal == SIGINT));

        assert_eq!((&all[..], &in_background[..]), (&STOPS[..], &STOPS[..]));
        assert_eq!(behind_nohup, [SIGINT, SIGTERM]);
    }

    #[test]
    fn signal_that_does_nothing_is_seen_to() {
        // Rust's programs are told of pipes that nobody reads by errors.
        assert_eq!([SIGPIPE, SIGTERM].map(is_ignored), [true, false]);
    }
}
