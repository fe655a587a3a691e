//! Moments of a trace, as `--from` and `--to` take them.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;
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
        let number = length.trim_end_matches(char::is_alphabetic);
        let (_, unit_ns) = UNITS.into_iter().find(|(unit, _)| *unit == &length[number.len()..]).ok_or(BadMoment)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
            return Err(BadMoment);
        }
        let whole_ns = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit_ns)).ok_or(BadMoment)?;
        let billionths: u64 = format!("{fraction:0<9}").parse().map_err(|_| BadMoment)?;
        let fraction_ns = u128::from(billionths) * u128::from(unit_ns);
        if !fraction_ns.is_multiple_of(1_000_000_000) {
            return Err(BadMoment);
        }
        let fraction_ns = u64::try_from(fraction_ns / 1_000_000_000).map_err(|_| BadMoment)?;
        let length = Duration::from_nanos(whole_ns.checked_add(fraction_ns).ok_or(BadMoment)?);
        Ok(if is_before_end { Self::BeforeEnd(length) } else { Self::AfterStart(length) })
    }
}

impl From<Duration> for Moment {
    fn from(after: Duration) -> Self {
        Self::AfterStart(after)
    }
}

impl Moment {
    /// How long it is after the first record of the recording in `trace`, which is opened only to find its end; 0 for
    /// what would be before that record.
    ///
    /// # Errors
    /// When the recording cannot be read.
    pub fn after_start(self, trace: &Path) -> Result<Duration, ReadError> {
        match self {
            Self::AfterStart(after) => Ok(after),
            Self::BeforeEnd(before) => {
                let trace = Trace::open(trace)?;
                let length = trace.end().unwrap_or(0).saturating_sub(trace.start().unwrap_or(0));
                Ok(Duration::from_nanos(trace.clock().ticks_to_ns(length)).saturating_sub(before))
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
        let texts = ["", "-", "s", ".5", "1e3", "1,5", "1.0000000001", "1.5ns", "2d", "--1", "99999999999999999999"];

        assert!(texts.iter().all(|text| text.parse::<Moment>().is_err()), "{:?}", texts.map(str::parse::<Moment>));
    }

    #[test]
    fn moment_before_the_end_is_counted_from_the_last_record_and_not_before_the_first() {
        // Two ticks are a nanosecond.
        let trace = TestTrace::new().guest(0, 1_000, "test:event", &[]).guest(0, 5_000, "test:event", &[]);
        let (dir, _trace) = trace.open();
        let after =
            |before| Moment::BeforeEnd(Duration::from_nanos(before)).after_start(dir.path()).unwrap().as_nanos();

        assert_eq!((after(500), after(2_000), after(9_000)), (1_500, 0, 0));
    }
}
