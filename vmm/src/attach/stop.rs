//! Signals that ask this process to end, for waits that nothing else ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether signals have asked this process to end since this was made.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    signals: Arc<AtomicU32>,
    /// How many had come before.
    before: u32,
}

impl Stop {
    /// A signal has come.
    pub fn ask(&self) {
        // It carries nothing else: who looks at it only stops waiting.
        self.signals.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether one has come.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.signals.load(Ordering::Relaxed) != self.before
    }

    /// The same for what is done from now on: only a further signal counts.
    #[must_use]
    pub fn beginning_now(&self) -> Self {
        Self { before: self.signals.load(Ordering::Relaxed), signals: Arc::clone(&self.signals) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_signal_counts_for_what_is_done_behind_one() {
        let stop = Stop::default();

        stop.ask();
        let undoing = stop.beginning_now();
        let before = (stop.is_asked(), undoing.is_asked());
        stop.ask();

        assert_eq!((before, undoing.is_asked()), ((true, false), true));
    }
}
