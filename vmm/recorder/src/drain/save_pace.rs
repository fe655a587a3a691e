//! When the manifest of a recording in progress is written again: not at each change, since a guest makes as many as it
//! likes, but at most once a second, and never so often that it takes much of the recorder's time.

use std::time::{Duration, Instant};

/// Least time between two saves: what `session.json` says is this old at most, unless saving takes long.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same while nothing is new but what time it is and what the recorder has used.
const QUIET_INTERVAL: Duration = Duration::from_secs(10);
/// A save may take one part in so many of the recorder's time: nothing is drained meanwhile.
const SHARE: u32 = 20;

/// When to save next.
#[derive(Clone, Copy, Debug)]
pub struct SavePace {
    next: Instant,
    /// When one is due though nothing is new.
    next_quiet: Instant,
}

impl SavePace {
    /// A pace whose first save is due at `now`.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { next: now, next_quiet: now }
    }

    /// Whether a save is due at `now`, when there `is_news` since the last one or not.
    #[must_use]
    pub fn is_due(&self, now: Instant, is_news: bool) -> bool {
        now >= if is_news { self.next } else { self.next_quiet }
    }

    /// A save took from `begin` to `end`.
    pub fn saved(&mut self, begin: Instant, end: Instant) {
        self.next = end + INTERVAL.max((end - begin) * SHARE);
        self.next_quiet = self.next.max(end + QUIET_INTERVAL);
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
        let first = pace.is_due(begin, false);

        pace.saved(begin, end);

        assert!(first && !pace.is_due(end, true) && !pace.is_due(end + Duration::from_millis(999), true));
        assert!(pace.is_due(end + INTERVAL, true));
    }

    #[test]
    fn slow_saves_are_rare() {
        let begin = Instant::now();
        let end = begin + Duration::from_millis(500);
        let mut pace = SavePace::new(begin);

        pace.saved(begin, end);

        assert!(!pace.is_due(end + Duration::from_millis(9_999), true));
        assert!(pace.is_due(end + Duration::from_secs(10), true));
    }

    #[test]
    fn saves_without_news_are_rare() {
        let begin = Instant::now();
        let mut pace = SavePace::new(begin);

        pace.saved(begin, begin);

        assert!(!pace.is_due(begin + Duration::from_millis(9_999), false));
        assert!(pace.is_due(begin + QUIET_INTERVAL, false));
    }
}
