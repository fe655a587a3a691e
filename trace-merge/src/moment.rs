//! Moments of a trace, as `--from` and `--until` take them.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;
use strata_recording::clock::Clock;
use strata_recording::reader::{ReadError, Trace};
use thiserror::Error;

/// Units, and how many nanoseconds they are.
const UNITS: [(&str, u64); 8] = [
    ("", 1_000_000_000),
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A moment of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So long after the first record.
    AfterStart(Duration),
    /// So long before the last record.
    BeforeEnd(Duration),
}

/// What is no moment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "write a time after the first record in seconds, or with ns, us, ms, s, m or h, as in 1.5 or 500ms; with a minus it \
     is before the last record, as in -2s"
)]
pub struct BadMoment;

impl FromStr for Moment {
    type Err = BadMoment;

    fn from_str(text: &str) -> Result<Self, BadMoment> {
        let (is_before_end, length) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let length = parse_length(length).ok_or(BadMoment)?;
        Ok(if is_before_end { Self::BeforeEnd(length) } else { Self::AfterStart(length) })
    }
}

/// A length of time: seconds, or with a unit behind the number, exact to the nanosecond. `None` for what is none.
#[must_use]
pub fn parse_length(text: &str) -> Option<Duration> {
    let number = text.trim_end_matches(char::is_alphabetic);
    let (_, unit_ns) = UNITS.into_iter().find(|(unit, _)| *unit == &text[number.len()..])?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let whole_ns = whole.parse::<u64>().ok()?.checked_mul(unit_ns)?;
    let billionths: u64 = format!("{fraction:0<9}").parse().ok()?;
    let fraction_ns = u128::from(billionths) * u128::from(unit_ns);
    if !fraction_ns.is_multiple_of(1_000_000_000) {
        return None;
    }
    let fraction_ns = u64::try_from(fraction_ns / 1_000_000_000).ok()?;
    Some(Duration::from_nanos(whole_ns.checked_add(fraction_ns)?))
}

impl From<Duration> for Moment {
    fn from(after: Duration) -> Self {
        Self::AfterStart(after)
    }
}

impl Moment {
    /// How long after the first record of the recording in `trace` what begins at this moment begins; 0 for what would be
    /// before that record. The recording is opened only to find its end.
    ///
    /// # Errors
    /// When the recording cannot be read.
    pub fn begin(self, trace: &Path) -> Result<Duration, ReadError> {
        self.after_start(trace, |clock, length| clock.ticks_to_ns(length))
    }

    /// The same of what ends at this moment. The last record is not behind the end: `-0s` is the first moment after it.
    ///
    /// # Errors
    /// When the recording cannot be read.
    pub fn end(self, trace: &Path) -> Result<Duration, ReadError> {
        self.after_start(trace, |clock, length| {
            let after = length.saturating_add(1);
            let ns = clock.ticks_to_ns(after);
            // Rounded up.
            ns.saturating_add(u64::from(clock.ns_to_ticks(ns) < after))
        })
    }

    fn after_start(self, trace: &Path, ns: impl FnOnce(&Clock, u64) -> u64) -> Result<Duration, ReadError> {
        match self {
            Self::AfterStart(after) => Ok(after),
            Self::BeforeEnd(before) => {
                let trace = Trace::open(trace)?;
                let length = trace.end().unwrap_or(0).saturating_sub(trace.start().unwrap_or(0));
                Ok(Duration::from_nanos(ns(trace.clock(), length)).saturating_sub(before))
            }
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, length) = match self {
            Self::AfterStart(after) => ("", after),
            Self::BeforeEnd(before) => ("-", before),
        };
        write!(formatter, "{sign}{}.{:09}", length.as_secs(), length.subsec_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::test_trace::TestTrace;

    #[test]
    fn moments_are_read_with_units_exactly() {
        let ns = |text: &str| match text.parse() {
            Ok(Moment::AfterStart(after)) => Some(after.as_nanos()),
            _ => None,
        };

        let read = ["1.5", "1.5s", "500ms", "0.000000001", "1.5us", "2µs", "7ns", "2m", "0.5h"].map(ns);

        let expected =
            [1_500_000_000, 1_500_000_000, 500_000_000, 1, 1_500, 2_000, 7, 120_000_000_000, 1_800_000_000_000];
        assert_eq!(read, expected.map(Some));
        assert_eq!("-2s".parse(), Ok(Moment::BeforeEnd(Duration::from_secs(2))));
    }

    #[test]
    fn what_is_no_moment_or_more_exact_than_a_nanosecond_is_refused() {
        let texts = [
            "",
            "-",
            "s",
            ".5",
            "1e3",
            "1,5",
            "1.0000000001",
            "1.5ns",
            "2d",
            "--1",
            "99999999999999999999",
            "5.",
            "5.s",
        ];

        assert!(texts.iter().all(|text| text.parse::<Moment>().is_err()), "{:?}", texts.map(str::parse::<Moment>));
    }

    #[test]
    fn moment_before_the_end_is_counted_from_the_last_record_and_not_before_the_first() {
        // Two ticks are a nanosecond.
        let trace = TestTrace::new().guest(0, 1_000, "test:event", &[]).guest(0, 5_000, "test:event", &[]);
        let (dir, _trace) = trace.open();
        let before = |before| Moment::BeforeEnd(Duration::from_nanos(before));
        let begin = |ns| before(ns).begin(dir.path()).unwrap().as_nanos();

        assert_eq!((begin(500), begin(2_000), begin(9_000)), (1_500, 0, 0));
    }

    #[test]
    fn what_ends_with_the_last_record_has_it_and_so_has_what_begins_with_it() {
        // The last record is half a nanosecond after a whole one.
        let trace = TestTrace::new().guest(0, 1_000, "test:event", &[]).guest(0, 5_001, "test:event", &[]);
        let (dir, trace) = trace.open();
        let last = Moment::BeforeEnd(Duration::ZERO);

        let window = trace.window(Some(last.begin(dir.path()).unwrap()), Some(last.end(dir.path()).unwrap())).unwrap();

        assert!((window.begin..window.end).contains(&5_001), "{window:?}");
    }
}
