//! When a vCPU's counter is compared with the trace clock, and what a comparison says.
//!
//! KVM stops the counter of a vCPU that is off its CPU, and lets it catch up when the guest is entered. So only what
//! the counter shows *in* the guest counts. The vCPU is let in for some microseconds and taken out by a timer: it left
//! the guest after the clock read before it went in, and before the clock read afterwards, and KVM shows the counter as
//! it was then. Between the two readings lies one entry and one exit, which is what the comparison is uncertain by. One
//! that took unusually long, because the host had something else to do, is tried again.

use clock_sync::updater::Sample;
use std::time::Duration;

/// Attempts per comparison that is wanted. A vCPU that is halted cannot be compared, and need not be.
const ATTEMPTS: u32 = 6;
/// The shortest and longest time that the guest is let run for a comparison, nanoseconds.
const STAY_NS: (u64, u64) = (500, 250_000);

/// After so many comparisons in a row that contradict the line, the counter is believed to have jumped ahead for good.
const LASTING_JUMP: u32 = 5;

/// What follows from a comparison for the line that readers compute by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// It is less certain than what is known.
    Nothing,
    /// A line is to go by it. `contradicts` if what was known was wrong.
    Line {
        /// Whether the line before is farther off than its bound.
        contradicts: bool,
    },
    /// The counter is ahead by more than the bound. KVM lets a counter catch up too far if it is held up between
    /// reading its two clocks; such a counter stops whenever the vCPU is away, and so comes back to its line, which
    /// stays.
    Jump,
}

/// Counter and clock, read while the vCPU is out of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterReading<C = u64> {
    /// The clock before, ticks.
    pub before: u64,
    /// The counter as KVM has it, ticks.
    pub counter: C,
    /// The clock afterwards, ticks.
    pub after: u64,
}

/// The comparisons of one vCPU.
#[derive(Clone, Debug)]
pub struct CounterComparison {
    attempts: u32,
    /// How long the vCPU is let in at the next attempt.
    stay_ns: u64,
    /// How long it was let in when that was enough.
    enough_ns: u64,
    entered: Option<CounterReading>,
    /// What comparisons took at best, ticks; forgotten by and by.
    usual_width: u64,
    /// Comparisons in a row that showed a jump ahead.
    jumps: u32,
}

impl Default for CounterComparison {
    fn default() -> Self {
        Self::new()
    }
}

impl CounterComparison {
    /// No comparison is wanted yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            attempts: 0,
            stay_ns: STAY_NS.0,
            enough_ns: STAY_NS.0 * 16,
            entered: None,
            usual_width: u64::MAX,
            jumps: 0,
        }
    }

    /// A comparison is wanted.
    pub const fn want(&mut self) {
        self.attempts = ATTEMPTS;
        // A little less each time: what is longer than it has to be makes the comparison less certain.
        let less = self.enough_ns - self.enough_ns / 4;
        self.stay_ns = if less < STAY_NS.0 { STAY_NS.0 } else { less };
    }

    /// The vCPU is about to enter the guest; `read` reads counter and clock. How long it is to stay there, if a
    /// comparison is wanted.
    pub fn entering(&mut self, read: impl FnOnce() -> Option<CounterReading>) -> Option<Duration> {
        self.entered = None;
        self.attempts = self.attempts.checked_sub(1)?;
        self.entered = Some(read()?);
        Some(Duration::from_nanos(self.stay_ns))
    }

    /// The vCPU was interrupted. The comparison, if it was in the guest since [`entering`](Self::entering); `ticks`
    /// says how many of the clock's a number of the counter's are.
    pub fn interrupted(
        &mut self,
        read: impl FnOnce() -> Option<CounterReading>,
        ticks: impl Fn(u64) -> u64,
    ) -> Option<Sample> {
        let entered = self.entered.take()?;
        let left = read()?;
        // Out of the guest, both readings begin at the same count, and run on only while they are made.
        let readings =
            (entered.after.saturating_sub(entered.before)).saturating_add(left.after.saturating_sub(left.before));
        let advance = left.counter.wrapping_sub(entered.counter);
        if advance.cast_signed() <= 0 || ticks(advance) <= readings {
            self.stay_ns = (self.stay_ns * 2).min(STAY_NS.1);
            return None;
        }
        self.enough_ns = self.stay_ns;
        // The counter may have been read at any moment between leaving and the end of its reading.
        let width = left.after.saturating_sub(entered.after);
        if width <= self.usual_width.saturating_add(self.usual_width / 2) {
            self.attempts = 0;
        }
        self.usual_width = width.min(self.usual_width.saturating_add(self.usual_width / 16));
        let ticks = entered.after.wrapping_add(width / 2);
        Some(Sample { counter: left.counter, ticks, uncertainty: width.div_ceil(2).saturating_add(1) })
    }
}

impl CounterComparison {
    /// How far the vCPU's time was ahead when it left the guest by itself, at most, ticks; `None` if nothing shows that
    /// it was ahead. `shown` is the time that the line gives for `reading`, taken since; the guest was left before
    /// `left`, by about as long as a comparison takes at most.
    #[must_use]
    pub const fn ahead(&self, reading: &CounterReading, shown: u64, left: u64) -> Option<u64> {
        // Out of the guest the counter runs on only while it is read.
        let took = reading.after.saturating_sub(reading.before);
        let ahead = shown.wrapping_sub(left).cast_signed();
        if ahead <= 0 || ahead.unsigned_abs() <= took {
            return None;
        }
        let exit = if self.usual_width == u64::MAX { 0 } else { self.usual_width };
        Some(ahead.unsigned_abs().saturating_add(exit))
    }

    /// What `sample` means, at whose counter the line shows `shown` and has the bound `known`.
    pub const fn conclusion(&mut self, sample: &Sample, shown: u64, known: u64) -> Conclusion {
        let ahead = shown.wrapping_sub(sample.ticks).cast_signed();
        let contradicts = ahead.unsigned_abs().saturating_sub(sample.uncertainty) > known;
        if !contradicts && sample.uncertainty > known {
            return Conclusion::Nothing;
        }
        self.jumps = if contradicts && ahead > 0 { self.jumps + 1 } else { 0 };
        if self.jumps > 0 && self.jumps < LASTING_JUMP {
            return Conclusion::Jump;
        }
        self.jumps = 0;
        Conclusion::Line { contradicts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reading that takes 10 ticks; counter and clock have the same rate here.
    fn reading(before: u64, counter: u64) -> impl FnOnce() -> Option<CounterReading> {
        move || Some(CounterReading { before, counter, after: before + 10 })
    }

    fn wanted() -> CounterComparison {
        let mut comparison = CounterComparison::new();
        comparison.want();
        comparison
    }

    #[test]
    fn comparison_lies_between_entry_and_exit() {
        let mut comparison = wanted();

        let stay = comparison.entering(reading(1_000, 70));
        let sample = comparison.interrupted(reading(1_090, 150), |ticks| ticks);

        assert_eq!(stay, Some(Duration::from_nanos(6_000)));
        // From 1010, when it went in, to 1100, when the counter had been read.
        assert_eq!(sample, Some(Sample { counter: 150, ticks: 1_055, uncertainty: 46 }));
        assert_eq!(comparison.entering(reading(1_200, 200)), None);
    }

    #[test]
    fn counter_that_stood_still_was_not_in_the_guest_and_stays_longer_next_time() {
        let mut comparison = wanted();

        comparison.entering(reading(1_000, 70));
        let sample = comparison.interrupted(reading(1_090, 75), |ticks| ticks);

        assert_eq!(sample, None);
        assert_eq!(comparison.entering(reading(1_200, 70)), Some(Duration::from_nanos(12_000)));
    }

    #[test]
    fn vcpu_that_never_runs_is_left_alone_after_some_attempts() {
        let mut comparison = wanted();

        let stays: Vec<_> = (0..8).map(|_| comparison.entering(reading(0, 0)).is_some()).collect();

        assert_eq!(stays, [true, true, true, true, true, true, false, false]);
    }

    #[test]
    fn comparison_that_took_unusually_long_is_tried_again() {
        let mut comparison = wanted();
        comparison.entering(reading(1_000, 70));
        comparison.interrupted(reading(1_090, 150), |ticks| ticks);
        comparison.want();

        comparison.entering(reading(2_000, 1_070));
        let sample = comparison.interrupted(reading(2_490, 1_550), |ticks| ticks);

        assert_eq!(sample.map(|sample| sample.uncertainty), Some(246));
        assert!(comparison.entering(reading(3_000, 2_070)).is_some());
    }

    #[test]
    fn interruption_without_an_entry_says_nothing() {
        let mut comparison = wanted();

        assert_eq!(comparison.interrupted(reading(1_000, 70), |ticks| ticks), None);
    }

    const SAMPLE: Sample = Sample { counter: 0, ticks: 10_000, uncertainty: 30 };

    #[test]
    fn comparison_within_the_bound_narrows_the_line() {
        assert_eq!(wanted().conclusion(&SAMPLE, 10_070, 50), Conclusion::Line { contradicts: false });
        assert_eq!(wanted().conclusion(&SAMPLE, 9_930, 50), Conclusion::Line { contradicts: false });
    }

    #[test]
    fn comparison_less_certain_than_what_is_known_means_nothing() {
        assert_eq!(wanted().conclusion(&SAMPLE, 10_000, 20), Conclusion::Nothing);
    }

    #[test]
    fn counter_behind_its_line_is_believed_at_once() {
        assert_eq!(wanted().conclusion(&SAMPLE, 9_900, 50), Conclusion::Line { contradicts: true });
    }

    #[test]
    fn jump_ahead_is_believed_when_it_lasts() {
        let mut comparison = wanted();

        let conclusions: Vec<_> = (0..6).map(|_| comparison.conclusion(&SAMPLE, 10_100, 50)).collect();

        let lasts = Conclusion::Line { contradicts: true };
        assert_eq!(conclusions, [[Conclusion::Jump; 4].as_slice(), &[lasts, Conclusion::Jump]].concat());
    }

    #[test]
    fn time_later_than_the_exit_is_ahead_by_as_much_and_by_what_an_exit_takes() {
        let mut comparison = wanted();
        comparison.entering(reading(1_000, 70));
        comparison.interrupted(reading(1_090, 150), |ticks| ticks);
        let reading = CounterReading { before: 2_000, counter: 1_000, after: 2_010 };

        let ahead = [1_950, 1_985, 2_050].map(|shown| comparison.ahead(&reading, shown, 1_980));

        // It took 90 to go in, come out and read.
        assert_eq!(ahead, [None, None, Some(70 + 90)]);
    }

    #[test]
    fn jump_that_was_made_up_for_in_between_is_another_one() {
        let mut comparison = wanted();

        let shown = [10_100, 10_100, 10_100, 10_100, 10_000, 10_100];
        let conclusions = shown.map(|shown| comparison.conclusion(&SAMPLE, shown, 50));

        assert_eq!(conclusions[5], Conclusion::Jump);
    }
}
