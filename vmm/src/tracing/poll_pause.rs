//! How long the recorder waits before it looks at the rings again: short while records come, longer and longer while
//! none do. The producer never wakes it, so this is what bounds the delay of delivery.

use std::time::Duration;

/// The pause after the first look that found nothing.
const SHORTEST: Duration = Duration::from_millis(1);

/// An adaptive timer.
#[derive(Clone, Copy, Debug)]
pub struct PollPause {
    next: Duration,
}

impl PollPause {
    /// A timer that has just found something.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: SHORTEST }
    }

    /// The pause after a look that found records (`busy`: none, look again at once) or did not: twice the last one, at
    /// most `longest`.
    pub fn after(&mut self, busy: bool, longest: Duration) -> Duration {
        if busy {
            *self = Self::new();
            return Duration::ZERO;
        }
        let pause = self.next.min(longest);
        self.next = (pause * 2).min(longest);
        pause
    }
}

impl Default for PollPause {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_millis(5);

    #[test]
    fn pauses_grow_while_nothing_comes() {
        let mut timer = PollPause::new();

        let pauses = [(); 5].map(|()| timer.after(false, LONGEST).as_millis());

        assert_eq!(pauses, [1, 2, 4, 5, 5]);
    }

    #[test]
    fn records_make_the_timer_fast_again() {
        let mut timer = PollPause::new();
        timer.after(false, LONGEST);
        timer.after(false, LONGEST);

        assert_eq!(timer.after(true, LONGEST), Duration::ZERO);
        assert_eq!(timer.after(false, LONGEST), SHORTEST);
    }
}
