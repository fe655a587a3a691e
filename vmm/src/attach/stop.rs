//! What asks this process to end, for waits that nothing else ends: signals, or who has it done.
#![allow(unsafe_code)] // what a signal does is given to the kernel as a function

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::low_level::register;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What asks this process to end since this was made.
#[derive(Clone, Debug)]
pub enum Stop {
    /// Signals: all that have come, and how many of them before.
    Signals(Arc<AtomicU32>, u32),
    /// Whatever comes from the other end, or its end.
    Word(Arc<UnixStream>),
}

impl Stop {
    /// What `signals` ask from now on. They end this process no more.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn by_signals(signals: &[i32]) -> io::Result<Self> {
        let come = Arc::<AtomicU32>::default();
        for &signal in signals {
            let come = Arc::clone(&come);
            let count = move || {
                // It carries nothing else: who looks at it only stops waiting.
                come.fetch_add(1, Ordering::Relaxed);
            };
            // SAFETY: to add to a number is async-signal-safe.
            unsafe { register(signal, count) }?;
        }
        Ok(Self::Signals(come, 0))
    }

    /// Whether it has asked.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        match self {
            Self::Signals(come, before) => come.load(Ordering::Relaxed) != *before,
            // An interrupted look is made again.
            Self::Word(link) => {
                matches!(poll(&mut [PollFd::new(link, PollFlags::IN)], Some(&Timespec::default())), Ok(1..))
            }
        }
    }

    /// The same for what is done from now on: only a further signal counts.
    #[must_use]
    pub fn beginning_now(&self) -> Self {
        match self {
            Self::Signals(come, _) => Self::Signals(Arc::clone(come), come.load(Ordering::Relaxed)),
            Self::Word(_) => self.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::SIGHUP;
    use std::io::Write;
    use strata_recording::stop_signals::STOPS;

    impl Default for Stop {
        fn default() -> Self {
            Self::Signals(Arc::default(), 0)
        }
    }

    impl Stop {
        /// A signal has come.
        pub fn request(&self) {
            let Self::Signals(come, _) = self else { return };
            come.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn further_signal_counts_for_what_is_done_behind_one() {
        let stop = Stop::default();

        stop.request();
        let undoing = stop.beginning_now();
        let before = (stop.is_requested(), undoing.is_requested());
        stop.request();

        assert_eq!((before, undoing.is_requested()), ((true, false), true));
    }

    #[test]
    fn signal_asks_instead_of_ending_the_process() {
        let stop = Stop::by_signals(&STOPS).unwrap();

        let before = stop.is_requested();
        signal_hook::low_level::raise(SIGHUP).unwrap();

        assert_eq!((before, stop.is_requested()), (false, true));
    }

    #[test]
    fn word_and_end_of_the_other_side_ask() {
        let [(ours, mut theirs), (left, other)] = [(); 2].map(|()| UnixStream::pair().unwrap());
        let stops = [ours, left].map(|link| Stop::Word(Arc::new(link)));

        let before = stops.each_ref().map(Stop::is_requested);
        theirs.write_all(b"x").unwrap();
        drop(other);

        assert_eq!((before, stops.each_ref().map(|stop| stop.beginning_now().is_requested())), ([false; 2], [true; 2]));
    }
}
