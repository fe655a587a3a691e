//! Ticks as seconds and as UTC, for many records in a row: what does not change from one to the next is kept.

use super::line::{Lines, Literal};
use strata_recording::clock::{Clock, NS_PER_SECOND, rfc3339};

/// What of a number of ticks changes from one record to the next lies below this.
const MILLION: u64 = 1_000_000;

/// Ticks to seconds and nanoseconds; divides once for a moment in the second of the one before.
#[derive(Clone, Copy, Debug)]
struct Seconds {
    frequency: u64,
    second: u64,
    /// Ticks at its beginning.
    begin: u64,
}

impl Seconds {
    const fn new(frequency: u64) -> Self {
        Self { frequency, second: 0, begin: 0 }
    }

    /// Whole seconds and nanoseconds that `ticks` take, rounded down.
    #[inline]
    fn of(&mut self, ticks: u64) -> (u64, u64) {
        if ticks.wrapping_sub(self.begin) >= self.frequency {
            self.second = ticks / self.frequency;
            self.begin = self.second * self.frequency;
        }
        // Less than the frequency, so that the product fits 64 bits.
        (self.second, (ticks - self.begin) * NS_PER_SECOND / self.frequency)
    }
}

/// The times of a listing's records.
#[derive(Clone, Debug)]
pub(super) struct Times<'t> {
    clock: &'t Clock,
    start: u64,
    since_start: Seconds,
    since_anchor: Seconds,
    since_before: Seconds,
    /// The second of UTC that was shown last, ns since 1970, and its text up to the decimals.
    utc_second: i128,
    utc_text: Literal,
    /// The millions of ticks that were shown last, and their text.
    millions: u64,
    millions_text: Literal,
}

impl<'t> Times<'t> {
    /// Times on `clock`, of a recording whose first record is at `start` ticks.
    pub(super) const fn new(clock: &'t Clock, start: u64) -> Self {
        let seconds = Seconds::new(clock.frequency_hz);
        Self {
            clock,
            start,
            since_start: seconds,
            since_anchor: seconds,
            since_before: seconds,
            utc_second: i128::MIN,
            utc_text: Literal::EMPTY,
            millions: 0,
            millions_text: Literal::EMPTY,
        }
    }

    /// Writes `time`, ticks.
    #[inline]
    pub(super) fn write_ticks(&mut self, lines: &mut Lines, time: u64) {
        let millions = time / MILLION;
        if millions == 0 {
            return lines.decimal(time);
        }
        if millions != self.millions {
            self.enter_million(millions);
        }
        lines.literal(&self.millions_text);
        lines.six_digits(time % MILLION);
    }

    #[cold]
    fn enter_million(&mut self, millions: u64) {
        (self.millions, self.millions_text) = (millions, Literal::from(millions.to_string().as_bytes()));
    }

    /// Whole seconds and nanoseconds from the first record to `time`.
    #[inline]
    pub(super) fn since_start(&mut self, time: u64) -> (u64, u64) {
        self.since_start.of(time.saturating_sub(self.start))
    }

    /// Whole seconds and nanoseconds from `before` to `time`; none where that is earlier.
    #[inline]
    pub(super) fn since(&mut self, before: u64, time: u64) -> (u64, u64) {
        self.since_before.of(time.saturating_sub(before))
    }

    /// Writes UTC at `time`, without the `Z`.
    #[inline]
    pub(super) fn write_utc(&mut self, lines: &mut Lines, time: u64) {
        let fraction = self.find_utc_second(time);
        lines.literal(&self.utc_text);
        lines.nanoseconds(*b"", fraction);
    }

    /// Finds the second of UTC at `time`, and the nanoseconds in it.
    #[inline]
    fn find_utc_second(&mut self, time: u64) -> u64 {
        let ns = match time.checked_sub(self.clock.utc.ticks) {
            Some(after) => {
                let (seconds, fraction) = self.since_anchor.of(after);
                i128::from(self.clock.utc.utc_ns)
                    + i128::from(seconds) * i128::from(NS_PER_SECOND)
                    + i128::from(fraction)
            }
            None => self.clock.utc_ns(time),
        };
        match u64::try_from(ns.wrapping_sub(self.utc_second)) {
            Ok(fraction @ 0..NS_PER_SECOND) => fraction,
            _ => self.enter_utc_second(ns),
        }
    }

    #[cold]
    fn enter_utc_second(&mut self, ns: i128) -> u64 {
        let fraction = ns.rem_euclid(i128::from(NS_PER_SECOND));
        self.utc_second = ns - fraction;
        let text = rfc3339(self.utc_second);
        let second = text.split('.').next().unwrap_or_default();
        self.utc_text = Literal::from(format!("{second}.").as_bytes());
        // Less than a second.
        u64::try_from(fraction).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_recording::test_trace::clock;

    proptest! {
        #[test]
        fn times_are_those_of_the_clock(
            frequency in prop_oneof![1..5_u64, NS_PER_SECOND - 2..NS_PER_SECOND + 2, 1_u64..5_000_000_000],
            ticks in proptest::collection::vec(0..15_000_000_000_u64, 1..20),
            anchor in 0..10_000_000_000_u64,
        ) {
            let mut clock = Clock { frequency_hz: frequency, ..clock() };
            clock.utc.ticks = anchor;
            let mut times = Times::new(&clock, 0);
            for ticks in ticks {
                let (seconds, ns) = times.since_start(ticks);
                prop_assert_eq!(u128::from(seconds) * 1_000_000_000 + u128::from(ns),
                    u128::from(ticks) * 1_000_000_000 / u128::from(frequency));
                let mut lines = Lines::default();
                times.write_ticks(&mut lines, ticks);
                prop_assert_eq!(String::from_utf8_lossy(lines.text()), ticks.to_string());
                let expected = rfc3339(clock.utc_ns(ticks));
                let mut lines = Lines::default();
                times.write_utc(&mut lines, ticks);
                // Where there is no such date, the clock says the number of nanoseconds.
                if let Some(expected) = expected.strip_suffix('Z') {
                    prop_assert_eq!(lines.text(), expected.as_bytes());
                }
            }
        }
    }
}
