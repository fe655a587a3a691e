//! Polling of the layers: what a poll finds, and how long the recorder waits before the next one. A producer never wakes
//! the recorder, so the pause bounds the delay of delivery: a short time while records come, longer and longer while none
//! come. When none have come for a while, and something else wakes it when the guest works, it sleeps.

use std::time::Duration;

/// The pause after the first poll that found nothing.
const SHORTEST: Duration = Duration::from_millis(1);

/// The pause while nothing is recorded and the recorder is woken when the guest works: the host kernel's buffers (8 MiB
/// for each CPU) hold 200,000 records a second meanwhile.
pub const SLEEP: Duration = Duration::from_secs(1);

/// Polls that find nothing, one after the other, before the recorder sleeps.
const QUIET_POLLS: u32 = 32;

/// Most polls in a row of layers that have something new each time.
pub const MAX_POLLS: usize = 256;

/// What one poll of all layers found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// There were packets: poll again at once.
    pub more: bool,
    /// The guest's kernel has registered event types.
    pub new_kernel_events: bool,
}

/// An adaptive interval.
#[derive(Clone, Copy, Debug)]
pub struct PollInterval {
    next: Duration,
    /// Polls that have found nothing since one found something.
    quiet: u32,
}

impl PollInterval {
    /// The interval after a poll that found records.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: SHORTEST, quiet: 0 }
    }

    /// The pause before the next poll: none when there are `more` records, else twice the last one, at most `longest`.
    pub fn after(&mut self, more: bool, longest: Duration) -> Duration {
        if more {
            *self = Self::new();
            return Duration::ZERO;
        }
        let pause = self.next.min(longest);
        self.next = (pause * 2).min(longest);
        self.quiet = self.quiet.saturating_add(1);
        pause
    }

    /// Whether nothing has come for so long that the recorder may sleep, if it is woken when something comes.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.quiet > QUIET_POLLS
    }
}

impl Default for PollInterval {
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
        let mut interval = PollInterval::new();

        let pauses = [(); 5].map(|()| interval.after(false, LONGEST).as_millis());

        assert_eq!(pauses, [1, 2, 4, 5, 5]);
    }

    #[test]
    fn silence_has_lasted_when_many_polls_have_found_nothing() {
        let mut interval = PollInterval::new();

        let quiet: Vec<_> =
            (0..=QUIET_POLLS).map(|_| (interval.after(false, LONGEST), interval.is_quiet()).1).collect();
        interval.after(true, LONGEST);

        assert_eq!(quiet.iter().position(|is_quiet| *is_quiet), Some(QUIET_POLLS as usize));
        assert!(!interval.is_quiet());
    }

    #[test]
    fn records_make_the_interval_short_again() {
        let mut interval = PollInterval::new();
        interval.after(false, LONGEST);
        interval.after(false, LONGEST);

        assert_eq!(interval.after(true, LONGEST), Duration::ZERO);
        assert_eq!(interval.after(false, LONGEST), SHORTEST);
    }
}
