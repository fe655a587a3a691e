//! Ticks as seconds and as UTC, for many records in a row: what does not change from one to the next is kept.

use super::line::{Lines, Literal, SECONDS};
use strata_recording::clock::{Clock, NS_PER_SECOND, Seconds, rfc3339};

/// What of a number of ticks changes from one record to the next lies below this.
const MILLION: u64 = 1_000_000;

/// In place of a second and what is to be added to its nanoseconds: no sum is less than a second.
const NO_SECOND: (u64, u64) = (0, NS_PER_SECOND);

/// Text that stands before the digits that change from one record to the next, and the number that it shows.
#[derive(Clone, Debug)]
struct Kept<N> {
    of: N,
    text: Literal,
}

impl<N> Kept<N> {
    /// Keeps `text` of `of`.
    #[cold]
    #[inline(never)]
    fn enter(&mut self, of: N, text: impl FnOnce() -> String) {
        *self = Self { of, text: Literal::from(text().as_bytes()) };
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
    /// The second since the start that was shown last, in the column of seconds where it fits.
    column: (u64, Option<[u8; SECONDS + 1]>),
    /// The same in JSON, with what comes before it.
    json_second: Kept<u64>,
    /// The second of UTC that was shown last, ns since 1970, with the text that the caller wants before it.
    utc_second: Kept<i128>,
    /// A second since the anchor, and by how many ns what UTC's second above has of it is ahead of its own, wrapping.
    utc_ahead: (u64, u64),
    /// The millions of ticks that were shown last, with the text that the caller wants before them.
    millions: Kept<u64>,
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
            column: (u64::MAX, None),
            json_second: Kept { of: u64::MAX, text: Literal::EMPTY },
            utc_second: Kept { of: i128::MIN, text: Literal::EMPTY },
            utc_ahead: NO_SECOND,
            millions: Kept { of: 0, text: Literal::EMPTY },
        }
    }

    /// Writes `time`, ticks, behind `before`, which is the same in all calls.
    #[inline(always)]
    pub(super) fn write_ticks(&mut self, lines: &mut Lines, before: &str, time: u64) {
        let millions = time / MILLION;
        if millions == 0 {
            return write_short(lines, before, time);
        }
        if millions != self.millions.of {
            self.millions.enter(millions, || format!("{before}{millions}"));
        }
        lines.literal(&self.millions.text);
        lines.six_digits(time % MILLION);
    }

    /// Writes the seconds from the first record to `time`, behind `before`, which is the same in all calls.
    #[inline(always)]
    pub(super) fn write_since_start(&mut self, lines: &mut Lines, before: &str, time: u64) {
        let (second, nanoseconds) = self.since_start.of(time.saturating_sub(self.start));
        if second != self.json_second.of {
            self.json_second.enter(second, || format!("{before}{second}."));
        }
        lines.literal(&self.json_second.text);
        lines.nanoseconds(nanoseconds);
    }

    /// Writes the column of the seconds from the first record to `time` and that of the seconds since `before`, ticks.
    #[inline(always)]
    pub(super) fn write_columns(&mut self, lines: &mut Lines, time: u64, before: Option<u64>) {
        let (second, nanoseconds) = self.since_start.of(time.saturating_sub(self.start));
        if let Some(before) = before
            && second == self.column.0
            && let Some(column) = &self.column.1
            && let (since @ 0..10, since_nanoseconds) = self.since_before.of(time.saturating_sub(before))
        {
            let since = u8::try_from(since).unwrap_or(0);
            return lines.time_columns(column, nanoseconds, (since, since_nanoseconds));
        }
        self.write_long_columns(lines, time, before);
    }

    /// The same of the first line in a second, and where the columns are wider than in most lines.
    #[cold]
    #[inline(never)]
    fn write_long_columns(&mut self, lines: &mut Lines, time: u64, before: Option<u64>) {
        let (second, nanoseconds) = self.since_start.of(time.saturating_sub(self.start));
        let column = format!("{second:>6}.");
        lines.extend(column.as_bytes());
        lines.nanoseconds(nanoseconds);
        self.column = (second, format!("{column} ").as_bytes().try_into().ok());
        self.write_since(lines, time, before);
    }

    /// Writes the column of the seconds since `before`, ticks.
    pub(super) fn write_since(&mut self, lines: &mut Lines, time: u64, before: Option<u64>) {
        let Some(before) = before else { return lines.constant(b"  -           ") };
        let (seconds, nanoseconds) = self.since_before.of(time.saturating_sub(before));
        lines.constant(b"  +");
        lines.decimal(seconds);
        lines.push(b'.');
        lines.nanoseconds(nanoseconds);
    }

    /// Writes UTC at `time`, without the `Z`, behind `before`, which is the same in all calls.
    #[inline(always)]
    pub(super) fn write_utc(&mut self, lines: &mut Lines, before: &str, time: u64) {
        let nanoseconds = self.find_utc_second(before, time);
        lines.literal(&self.utc_second.text);
        lines.nanoseconds(nanoseconds);
    }

    /// Finds the second of UTC at `time`, and the nanoseconds in it.
    #[inline(always)]
    fn find_utc_second(&mut self, before: &str, time: u64) -> u64 {
        let Some(after) = time.checked_sub(self.clock.utc.ticks) else { return self.compute_utc_second(before, time) };
        let (second, fraction) = self.since_anchor.of(after);
        match (second == self.utc_ahead.0, fraction.wrapping_add(self.utc_ahead.1)) {
            (true, nanoseconds @ 0..NS_PER_SECOND) => nanoseconds,
            _ => {
                let nanoseconds = self.compute_utc_second(before, time);
                self.utc_ahead = (second, nanoseconds.wrapping_sub(fraction));
                nanoseconds
            }
        }
    }

    /// The same where it is not known from the record before.
    #[inline(never)]
    fn compute_utc_second(&mut self, before: &str, time: u64) -> u64 {
        let ns = self.clock.utc_ns(time);
        match u64::try_from(ns.wrapping_sub(self.utc_second.of)) {
            Ok(fraction @ 0..NS_PER_SECOND) => fraction,
            _ => self.enter_utc_second(before, ns),
        }
    }

    #[cold]
    #[inline(never)]
    fn enter_utc_second(&mut self, before: &str, ns: i128) -> u64 {
        let fraction = ns.rem_euclid(i128::from(NS_PER_SECOND));
        let of = ns - fraction;
        let text = rfc3339(of);
        let second = text.split('.').next().unwrap_or_default();
        self.utc_second.enter(of, || format!("{before}{second}."));
        self.utc_ahead = NO_SECOND;
        // Less than a second.
        u64::try_from(fraction).unwrap_or(0)
    }
}

/// Writes `number` behind `before`.
#[cold]
#[inline(never)]
fn write_short(lines: &mut Lines, before: &str, number: u64) {
    lines.extend(before.as_bytes());
    lines.decimal(number);
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
                let ns = u128::from(ticks) * 1_000_000_000 / u128::from(frequency);
                let (seconds, ns) = (ns / 1_000_000_000, ns % 1_000_000_000);
                let text = |write: &mut dyn FnMut(&mut Lines)| {
                    let mut lines = Lines::default();
                    write(&mut lines);
                    String::from_utf8(lines.text()).unwrap()
                };
                let since_start = text(&mut |lines| times.write_since_start(lines, "s", ticks));
                prop_assert_eq!(since_start, format!("s{seconds}.{ns:09}"));
                for before in [None, Some(ticks / 2), Some(ticks), Some(ticks + 1)] {
                    let since = before.map(|before| u128::from(ticks.saturating_sub(before)) * 1_000_000_000);
                    let since = since.map(|since| since / u128::from(frequency));
                    let since = since.map_or("-           ".into(), |since| {
                        format!("+{}.{:09}", since / 1_000_000_000, since % 1_000_000_000)
                    });
                    let columns = text(&mut |lines| times.write_columns(lines, ticks, before));
                    prop_assert_eq!(columns, format!("{seconds:>6}.{ns:09}  {since}"));
                    prop_assert_eq!(text(&mut |lines| times.write_since(lines, ticks, before)), format!("  {since}"));
                }
                prop_assert_eq!(text(&mut |lines| times.write_ticks(lines, "t", ticks)), format!("t{ticks}"));
                let expected = rfc3339(clock.utc_ns(ticks));
                let mut lines = Lines::default();
                times.write_utc(&mut lines, "", ticks);
                // Where there is no such date, the clock says the number of nanoseconds.
                if let Some(expected) = expected.strip_suffix('Z') {
                    prop_assert_eq!(lines.text(), expected.as_bytes());
                }
            }
        }
    }
}
