//! Moments of a trace, as `--from` and `--until` take them.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;
use strata_recording::clock::length::{LENGTH, parse_length};
use strata_recording::clock::{Clock, NS_PER_SECOND, parse_rfc3339, parse_time_of_day, rfc3339};
use strata_recording::reader::{ReadError, Trace};
use thiserror::Error;

/// A moment of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So long after the first record.
    AfterStart(Duration),
    /// So long before the last record.
    BeforeEnd(Duration),
    /// Nanoseconds since 1970-01-01T00:00:00Z.
    Utc(i128),
    /// Nanoseconds since midnight UTC of the first day of the recording on which it has that time.
    TimeOfDay(u64),
}

/// Why a moment cannot be found in a recording.
#[derive(Debug, Error)]
pub enum MomentError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It is not in it.
    #[error("{wanted} lies outside of the trace: its records are from {begin} to {end}")]
    Outside {
        wanted: Moment,
        /// UTC of the first record.
        begin: String,
        /// UTC of the last record.
        end: String,
    },
}

/// What is not a moment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "write a time after the first record in {LENGTH}; with a minus it is before the last record, as in -2s; or UTC, as in \
     05:03:47 or 2026-11-27T05:03:47Z"
)]
pub struct BadMoment;

impl FromStr for Moment {
    type Err = BadMoment;

    fn from_str(text: &str) -> Result<Self, BadMoment> {
        if text.contains(':') {
            let of_day = || parse_time_of_day(text).map(Self::TimeOfDay);
            return parse_rfc3339(text).map(Self::Utc).or_else(of_day).ok_or(BadMoment);
        }
        let (is_before_end, length) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let length = parse_length(length).ok_or(BadMoment)?;
        Ok(if is_before_end { Self::BeforeEnd(length) } else { Self::AfterStart(length) })
    }
}

impl From<Duration> for Moment {
    fn from(after: Duration) -> Self {
        Self::AfterStart(after)
    }
}

impl Moment {
    /// How long after the first record of the recording in `trace` what begins at this moment begins; 0 for what would be
    /// before that record. The recording is opened only to find its end, or UTC in it.
    ///
    /// # Errors
    /// When the recording cannot be read, or has nothing at that time of UTC.
    pub fn begin(self, trace: &Path) -> Result<Duration, MomentError> {
        let first = Some(Duration::ZERO);
        self.after_start(trace, first, |clock, length| clock.ticks_to_ns(length), |ns| ns.saturating_sub(1))
    }

    /// The same of what ends at this moment. The last record is not behind the end: `-0s` is the first moment after it.
    ///
    /// # Errors
    /// When the recording cannot be read, has nothing at that time of UTC, or begins later.
    pub fn end(self, trace: &Path) -> Result<Duration, MomentError> {
        let behind = |clock: &Clock, length: u64| {
            let after = length.saturating_add(1);
            let ns = clock.ticks_to_ns(after);
            // Rounded up.
            ns.saturating_add(u64::from(clock.ns_to_ticks(ns) < after))
        };
        self.after_start(trace, None, behind, |ns| ns.saturating_add(1))
    }

    /// What lies before the end by more than the recording's length is `before_all`, else outside. `ns` is how long a recording
    /// is of so many ticks. UTC is shown without parts of a nanosecond: `near` is next to a
    /// moment, so that the record which is shown with it is inside.
    fn after_start(
        self,
        trace: &Path,
        before_all: Option<Duration>,
        ns: impl FnOnce(&Clock, u64) -> u64,
        near: impl FnOnce(u64) -> u64,
    ) -> Result<Duration, MomentError> {
        if let Self::AfterStart(after) = self {
            return Ok(after);
        }
        let trace = Trace::open(trace)?;
        let (start, clock) = (trace.start().unwrap_or(0), trace.clock());
        let end = trace.end().unwrap_or(start);
        let ends = [clock.utc_ns(start), clock.utc_ns(end)];
        let outside = || {
            let [begin, end] = ends.map(rfc3339);
            MomentError::Outside { wanted: self, begin, end }
        };
        let utc = match self {
            Self::AfterStart(after) => return Ok(after),
            Self::BeforeEnd(before) => {
                let length = Duration::from_nanos(ns(clock, end.saturating_sub(start)));
                return length.checked_sub(before).or(before_all).ok_or_else(outside);
            }
            Self::Utc(utc) => utc,
            Self::TimeOfDay(of_day) => first_at(clock.utc_ns(start), of_day),
        };
        let [begin, end] = ends;
        // Who writes a whole second may mean any moment in it.
        if utc < begin - begin.rem_euclid(SECOND) || utc > end + SECOND {
            return Err(outside());
        }
        Ok(Duration::from_nanos(near(u64::try_from((utc - begin).max(0)).unwrap_or(u64::MAX))))
    }
}

const SECOND: i128 = NS_PER_SECOND as i128;
const DAY: i128 = 24 * 3600 * SECOND;

/// The first moment that is `of_day` ns behind midnight and not before the second of `begin`, ns since 1970.
fn first_at(begin: i128, of_day: u64) -> i128 {
    let begin = begin - begin.rem_euclid(SECOND);
    let same_day = begin - begin.rem_euclid(DAY) + i128::from(of_day);
    if same_day < begin { same_day + DAY } else { same_day }
}

impl fmt::Display for Moment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, length) = match self {
            Self::AfterStart(after) => ("", *after),
            Self::BeforeEnd(before) => ("-", *before),
            Self::Utc(utc) => return formatter.write_str(&rfc3339(*utc)),
            Self::TimeOfDay(of_day) => {
                let (seconds, ns) = (of_day / NS_PER_SECOND, of_day % NS_PER_SECOND);
                let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
                return write!(formatter, "{hours:02}:{minutes:02}:{seconds:02}.{ns:09}");
            }
        };
        write!(formatter, "{sign}{}.{:09}", length.as_secs(), length.subsec_nanos())
    }
}

/// What of a recording is meant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part {
    /// Its begin, since the first record.
    pub from: Option<Duration>,
    /// Its end.
    pub to: Option<Duration>,
}

impl Part {
    /// What lies between `from` and `to` of the recording in `trace`.
    ///
    /// # Errors
    /// When the recording cannot be read, to find its end or UTC in it, or has nothing at that time of UTC.
    pub fn of(trace: &Path, from: Option<Moment>, to: Option<Moment>) -> Result<Self, MomentError> {
        let from = from.map(|moment| moment.begin(trace)).transpose()?;
        Ok(Self { from, to: to.map(|moment| moment.end(trace)).transpose()? })
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
            "5:",
            "25:00:00",
            "2026-11-27",
            "2026-11-27T05:03:47",
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
        let nothing = before(9_000).end(dir.path());
        assert!(matches!(nothing, Err(MomentError::Outside { .. })), "{nothing:?}");
    }

    #[test]
    fn what_ends_with_the_last_record_has_it_and_so_has_what_begins_with_it() {
        // The last record is half a nanosecond after a whole one.
        let trace = TestTrace::new().guest(0, 1_000, "test:event", &[]).guest(0, 5_001, "test:event", &[]);
        let (dir, trace) = trace.open();
        let last = Moment::BeforeEnd(Duration::ZERO);

        let window = trace.window(Some(last.begin(dir.path()).unwrap()), Some(last.end(dir.path()).unwrap())).unwrap();

        assert!((window.begin..=window.last()).contains(&5_001), "{window:?}");
    }

    /// A trace from 22:13:20.25 on for two seconds of 14 November 2023, UTC; two ticks are a nanosecond.
    fn at_evening() -> (tempfile::TempDir, Trace) {
        let trace = TestTrace::new().guest(0, 500_001_001, "test:event", &[]);
        trace.guest(0, 4_500_001_000, "test:event", &[]).open()
    }

    #[test]
    fn utc_is_counted_from_the_first_record_by_date_or_time_of_day() {
        let (dir, _trace) = at_evening();
        let begin = |text: &str| text.parse::<Moment>().unwrap().begin(dir.path()).unwrap().as_nanos();

        assert_eq!((begin("2023-11-14T22:13:21.25Z"), begin("22:13:21.25")), (999_999_999, 999_999_999));
        assert_eq!((begin("2023-11-14T23:13:21.25+01:00"), begin("22:13:20")), (999_999_999, 0));
    }

    #[test]
    fn record_is_in_the_part_that_begins_or_ends_with_the_utc_it_is_shown_with() {
        let (dir, trace) = at_evening();
        let utc = |time| Moment::Utc(trace.clock().utc_ns(time));
        let [from, to] = [utc(500_001_001).begin(dir.path()), utc(4_500_001_000).end(dir.path())].map(Result::unwrap);

        let window = trace.window(Some(from), Some(to)).unwrap();

        assert!(window.begin <= 500_001_001 && window.last() >= 4_500_001_000, "{window:?}");
    }

    #[test]
    fn utc_outside_of_the_trace_is_refused_with_the_time_that_it_has() {
        let (dir, _trace) = at_evening();
        let refused = |text: &str| text.parse::<Moment>().unwrap().begin(dir.path()).unwrap_err().to_string();

        let [day, hour] = ["2023-11-13T22:13:21Z", "05:03:47"].map(refused);

        let covers = "its records are from 2023-11-14T22:13:20.250000000Z to 2023-11-14T22:13:22.250000000Z";
        assert_eq!(hour, format!("05:03:47.000000000 lies outside of the trace: {covers}"));
        assert_eq!(day, format!("2023-11-13T22:13:21.000000000Z lies outside of the trace: {covers}"));
    }
}
