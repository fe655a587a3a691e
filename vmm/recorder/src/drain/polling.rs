//! Polling of the layers: what a poll finds, and how long the recorder waits before the next one. A producer never wakes
//! the recorder, so the pause bounds the delay of delivery, and what a ring has to hold meanwhile: it grows while there is
//! room in every ring, and is short after one of them was half full. What a poll leaves because it was long enough is
//! taken at once. When no record has come for a while, and something else wakes the recorder when the guest works, it
//! sleeps.

use std::time::Duration;
use strata_host_kernel::Rest;

/// The pause after the first poll that found room in every ring.
const SHORTEST: Duration = Duration::from_millis(1);

/// The pause while nothing is recorded and the recorder is woken when the guest works: the host kernel's buffers (8 MiB
/// for each CPU) hold 200,000 records a second meanwhile.
pub const SLEEP: Duration = Duration::from_secs(1);

/// Polls that find nothing, one after the other, before the recorder sleeps.
const QUIET_POLLS: u32 = 32;

/// Polls with a pause behind them, after a sleep that the guest's work has ended, before the recorder sleeps again: work
/// need not fill a packet, and would wake it over and over. No more, since a guest that is as good as idle works, too.
const POLLS_AFTER_WORK: u32 = 1;

/// Most polls in a row of layers that have something new each time.
pub const MAX_POLLS: usize = 256;

/// How much a poll found in the rings, the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// No packet.
    #[default]
    Nothing,
    /// Packets, which were fewer than half of what their rings hold.
    Packets,
    /// There is more, but every ring had room: poll again at once.
    More,
    /// A ring was half full: poll again at once, and sooner from then on.
    Backlog,
}

impl Found {
    /// What `packets` are to a ring of so many `sub_buffers`.
    #[must_use]
    pub const fn in_ring(packets: u32, sub_buffers: u32) -> Self {
        match packets {
            0 => Self::Nothing,
            _ if packets.saturating_mul(2) < sub_buffers => Self::Packets,
            _ => Self::Backlog,
        }
    }

    /// Whether to poll again at once.
    #[must_use]
    pub fn has_more(self) -> bool {
        self >= Self::More
    }
}

/// A poll of the host's kernel that has left nothing has found nothing that counts.
impl From<Rest> for Found {
    fn from(rest: Rest) -> Self {
        match rest {
            Rest::Nothing => Self::Nothing,
            Rest::Pages => Self::More,
            Rest::Backlog => Self::Backlog,
        }
    }
}

/// An adaptive interval.
#[derive(Clone, Copy, Debug)]
pub struct PollInterval {
    next: Duration,
    /// Polls that have found nothing since one found something.
    quiet: u32,
}

impl PollInterval {
    /// The interval after a poll that found a backlog.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: SHORTEST, quiet: 0 }
    }

    /// The pause before the next poll: none when there is more, else twice the last one, at most `longest`.
    pub fn after(&mut self, found: Found, longest: Duration) -> Duration {
        if found == Found::Backlog {
            *self = Self::new();
        }
        if found.has_more() {
            self.quiet = 0;
            return Duration::ZERO;
        }
        let pause = self.next.min(longest);
        self.next = (pause * 2).min(longest);
        self.quiet = if found == Found::Nothing { self.quiet.saturating_add(1) } else { 0 };
        pause
    }

    /// The guest's work has ended a sleep.
    pub const fn woken(&mut self) {
        self.quiet = QUIET_POLLS - POLLS_AFTER_WORK;
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
    fn pauses_grow_while_rings_have_room() {
        let mut interval = PollInterval::new();

        let found = [Found::Nothing, Found::Packets, Found::Packets, Found::Nothing, Found::Packets];
        let pauses = found.map(|found| interval.after(found, LONGEST).as_millis());

        assert_eq!(pauses, [1, 2, 4, 5, 5]);
    }

    #[test]
    fn ring_that_was_half_full_is_a_backlog() {
        let found = [(0, 8), (1, 8), (3, 8), (4, 8), (8, 8), (1, 2)].map(|(packets, of)| Found::in_ring(packets, of));

        let (some, backlog) = (Found::Packets, Found::Backlog);
        assert_eq!(found, [Found::Nothing, some, some, backlog, backlog, backlog]);
    }

    #[test]
    fn silence_has_lasted_when_many_polls_have_found_nothing() {
        let mut interval = PollInterval::new();

        let quiet: Vec<_> =
            (0..=QUIET_POLLS).map(|_| (interval.after(Found::Nothing, LONGEST), interval.is_quiet()).1).collect();
        interval.after(Found::Packets, LONGEST);

        assert_eq!(quiet.iter().position(|is_quiet| *is_quiet), Some(QUIET_POLLS as usize));
        assert!(!interval.is_quiet());
    }

    #[test]
    fn work_that_fills_no_packet_is_silence_again_after_a_pause() {
        let mut interval = PollInterval::new();
        for _ in 0..=QUIET_POLLS {
            interval.after(Found::Nothing, LONGEST);
        }

        interval.woken();
        let pauses = [(); 3].map(|()| (interval.after(Found::Nothing, LONGEST), interval.is_quiet()));

        assert_eq!(pauses, [(LONGEST, false), (LONGEST, true), (LONGEST, true)]);
    }

    #[test]
    fn backlog_makes_the_interval_short_again() {
        let mut interval = PollInterval::new();
        interval.after(Found::Packets, LONGEST);
        interval.after(Found::Nothing, LONGEST);

        assert_eq!(interval.after(Found::Backlog, LONGEST), Duration::ZERO);
        assert_eq!(interval.after(Found::Nothing, LONGEST), SHORTEST);
    }

    #[test]
    fn more_is_taken_at_once_and_pauses_grow_on() {
        let mut interval = PollInterval::new();

        let found = [Found::Nothing, Found::More, Found::More, Found::Nothing, Found::More, Found::Nothing];
        let pauses = found.map(|found| interval.after(found, LONGEST).as_millis());

        assert_eq!(pauses, [1, 0, 0, 2, 0, 4]);
    }
}
