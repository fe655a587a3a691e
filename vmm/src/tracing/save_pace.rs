//! When the manifest of a recording in progress is written again: not at each change, of which a guest makes as many as it
//! likes, but at most once a second, and never so often that it takes much of the recorder's time.

use std::time::{Duration, Instant};

/// Least time between two saves: what `session.json` says is this old at most, unless saving takes long.
const INTERVAL: Duration = Duration::from_secs(1);
/// A save may take one part in so many of the recorder's time: nothing is drained meanwhile.
const SHARE: u32 = 20;

/// When to save next.
#[derive(Clone, Copy, Debug)]
pub struct SavePace {
    next: Instant,
}

impl SavePace {
    /// A pace whose first save is due at `now`.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { next: now }
    }

    /// Whether a save is due at `now`.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// A save took from `begin` to `end`.
    pub fn saved(&mut self, begin: Instant, end: Instant) {
        self.next = end + INTERVAL.max((end - begin) * SHARE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_saves_are_a_second_apart() {
        let begin = Instant::now();
        let end = begin + Duration::from_millis(1);
        let mut pace = SavePace::new(begin);
        let first = pace.is_due(begin);

        pace.saved(begin, end);

        assert!(first && !pace.is_due(end) && !pace.is_due(end + Duration::from_millis(999)));
        assert!(pace.is_due(end + INTERVAL));
    }

    #[test]
    fn slow_saves_are_rare() {
        let begin = Instant::now();
        let end = begin + Duration::from_millis(500);
        let mut pace = SavePace::new(begin);

        pace.saved(begin, end);

        assert!(!pace.is_due(end + Duration::from_millis(9_999)));
        assert!(pace.is_due(end + Duration::from_secs(10)));
    }
}
