//! Relating the trace clock to UTC by cross timestamps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The trace clock and UTC, read together.
///
/// ```
/// use clock_sync::calibration::{CrossTimestamp, frequency};
///
/// let first = CrossTimestamp { ticks: 1_000, utc_ns: 5_000_000_000, uncertainty_ns: 0 };
/// let last = CrossTimestamp { ticks: 2_300_001_000, utc_ns: 6_000_000_000, uncertainty_ns: 0 };
/// assert_eq!(frequency(&first, &last), Some(2_300_000_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossTimestamp {
    /// Trace clock, ticks.
    pub ticks: u64,
    /// UTC, ns since 1970.
    pub utc_ns: u64,
    /// The trace clock showed `ticks` within this of `utc_ns`, ns.
    pub uncertainty_ns: u64,
}

/// Reads `clock` (the trace clock, ticks) and UTC together, as [`read_bracketed`] does.
#[must_use]
pub fn read_together(clock: impl Fn() -> u64, frequency: u64) -> CrossTimestamp {
    let utc = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let Bracketed { ticks, value, uncertainty_ns } = read_bracketed(clock, frequency, utc);
    CrossTimestamp { ticks, utc_ns: u64::try_from(value.as_nanos()).unwrap_or(u64::MAX), uncertainty_ns }
}

/// What something showed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bracketed<T> {
    /// Trace clock, ticks.
    pub ticks: u64,
    /// What was read.
    pub value: T,
    /// It was read within this of `ticks`, ns.
    pub uncertainty_ns: u64,
}

/// Reads `clock` (the trace clock, ticks) and, with `read`, something else together: the tightest of several brackets
/// clock–read–clock. The uncertainty is half the tightest bracket, converted with `frequency` (Hz).
#[must_use]
pub fn read_bracketed<T>(clock: impl Fn() -> u64, frequency: u64, read: impl Fn() -> T) -> Bracketed<T> {
    const BRACKETS: usize = 16;
    let bracket = || {
        let before = clock();
        let value = read();
        let after = clock();
        (after.wrapping_sub(before), before, value)
    };
    let mut best = bracket();
    for _ in 1..BRACKETS {
        let next = bracket();
        if next.0 < best.0 {
            best = next;
        }
    }
    let (width, before, value) = best;
    Bracketed {
        ticks: before.wrapping_add(width / 2),
        value,
        uncertainty_ns: ticks_to_ns(width.div_ceil(2), frequency),
    }
}

/// `ticks` of a clock of `frequency` Hz, in ns, rounded down; saturates.
#[must_use]
pub fn ticks_to_ns(ticks: u64, frequency: u64) -> u64 {
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(frequency.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Rate of a clock from two cross timestamps, Hz; `None` when they are less than a millisecond apart or out of order.
#[must_use]
pub fn frequency(first: &CrossTimestamp, last: &CrossTimestamp) -> Option<u64> {
    let ns = last.utc_ns.checked_sub(first.utc_ns).filter(|&ns| ns >= 1_000_000)?;
    let ticks = last.ticks.checked_sub(first.ticks)?;
    u64::try_from(u128::from(ticks) * 1_000_000_000 / u128::from(ns)).ok()
}

/// Measures the rate of `clock` against UTC, which takes `duration`, Hz. `None` when the clock stood still, UTC went back,
/// or `duration` is less than a millisecond.
#[must_use]
pub fn measure_frequency(clock: impl Fn() -> u64, duration: Duration) -> Option<u64> {
    // The rate is not known yet: nominal nanoseconds do for the bracket's width, which is not used.
    let reading = || read_together(&clock, 1_000_000_000);
    let first = reading();
    std::thread::sleep(duration);
    frequency(&first, &reading()).filter(|&frequency| frequency > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn frequency_comes_from_two_readings() {
        let first = CrossTimestamp { ticks: 1_000, utc_ns: 5_000_000_000, uncertainty_ns: 0 };
        let last = CrossTimestamp { ticks: 1_000 + 2_300_000_000, utc_ns: 6_000_000_000, uncertainty_ns: 0 };

        assert_eq!(frequency(&first, &last), Some(2_300_000_000));
        assert_eq!(frequency(&last, &first), None);
    }

    #[test]
    fn clock_that_stands_still_has_no_frequency() {
        assert_eq!(measure_frequency(|| 7, Duration::from_millis(2)), None);
    }

    #[test]
    fn ticks_become_nanoseconds() {
        assert_eq!(ticks_to_ns(2_300, 2_300_000_000), 1_000);
        assert_eq!(ticks_to_ns(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn tightest_bracket_counts_and_its_middle_is_the_time() {
        // Brackets of 100, 98, … ticks: the last is the tightest, 70, with its begin at 1510.
        let (times, reads) = (Cell::new(0), Cell::new(100));
        let clock = || times.replace(times.get() + reads.get());
        let read = || reads.replace(reads.get() - 1);

        let read = read_bracketed(clock, 1_000_000_000, read);

        let begin = read.ticks - read.uncertainty_ns;
        assert_eq!((read.value, read.uncertainty_ns), (85, 43));
        assert!(begin < times.get(), "{begin}");
    }

    #[test]
    fn reading_lies_inside_its_bracket() {
        let reading = read_together(crate::tsc::read_ordered, 1_000_000_000);

        assert!(reading.ticks <= crate::tsc::read_ordered());
        assert!(reading.utc_ns > 1_500_000_000_000_000_000);
    }
}
