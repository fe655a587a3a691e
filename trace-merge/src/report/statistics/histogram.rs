//! How many times there are of each length: classes that are as wide as the times in them are long.

use serde::Serialize;
use strata_recording::clock::Clock;

/// Classes that are counted for each power of two, as a power of two.
const CLASS_BITS: u32 = 2;
/// Bins that are reported, unless the times span more powers of two: there are two or four classes in a bin then.
const MOST_BINS: usize = 48;

/// How many times there are of each length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Where the first bin begins, ns.
    pub from_ns: u64,
    /// From the shortest times to the longest, with no gap between: where each bin ends, ns, and how many times lie in
    /// it. At most 64; borders are rounded down to a nanosecond.
    pub bins: Vec<(u64, u64)>,
}

/// How many times of each class there are, in bounded memory; exact.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    /// The class that is counted first.
    first: u16,
    counts: Vec<u64>,
}

impl Classes {
    /// Counts a time, ticks.
    pub(crate) fn add(&mut self, ticks: u64) {
        self.count(class(ticks, CLASS_BITS), 1);
    }

    /// Counts the times of `other`, too.
    pub(crate) fn extend(&mut self, other: &Self) {
        (other.first..).zip(&other.counts).filter(|&(_, &count)| count > 0).for_each(|(class, &count)| {
            self.count(class, count);
        });
    }

    fn count(&mut self, class: u16, count: u64) {
        if self.counts.is_empty() {
            self.first = class;
        }
        if let Some(before) = self.first.checked_sub(class).filter(|&before| before > 0) {
            self.counts.splice(0..0, (0..before).map(|_| 0));
            self.first = class;
        }
        let place = usize::from(class - self.first);
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0);
        }
        if let Some(counted) = self.counts.get_mut(place) {
            *counted += count;
        }
    }

    /// The same in so few bins that they can be reported.
    pub(crate) fn histogram(&self, clock: &Clock) -> Histogram {
        let last = usize::from(self.first) + self.counts.len().saturating_sub(1);
        let bins_of = |shift: u32| (last >> shift) + 1 - usize::from(self.first >> shift);
        let shift = (0..CLASS_BITS).find(|&shift| bins_of(shift) <= MOST_BINS).unwrap_or(CLASS_BITS);
        let border = |bin: u16| clock.ticks_to_ns(begin(bin << shift, CLASS_BITS));
        let mut histogram = Histogram { from_ns: border(self.first >> shift), bins: Vec::new() };
        for (class, &count) in (self.first..).zip(&self.counts) {
            let below = border((class >> shift) + 1);
            match histogram.bins.last_mut() {
                // A bin is never shorter than a nanosecond.
                Some(bin) if bin.0 == below => bin.1 += count,
                _ => histogram.bins.push((below, count)),
            }
        }
        histogram
    }
}

/// The class of a time: linear within each power of two, which has `2^bits` classes, as in H. Gil's and G. Tene's
/// `HdrHistogram`.
pub(crate) fn class(ticks: u64, bits: u32) -> u16 {
    let shift = (u64::BITS - ticks.leading_zeros()).saturating_sub(bits + 1);
    let upper = if ticks >> bits == 0 { 0 } else { shift + 1 };
    let lower = (ticks >> shift) & ((1 << bits) - 1);
    // With 5 bits at most 60 * 32 + 31.
    u16::try_from(u64::from(upper << bits) + lower).unwrap_or(u16::MAX)
}

/// The shortest time of a class; saturates.
pub(crate) fn begin(class: u16, bits: u32) -> u64 {
    let (upper, lower) = (u32::from(class) >> bits, u64::from(class) & ((1 << bits) - 1));
    let Some(shift) = upper.checked_sub(1) else { return lower };
    ((1 << bits) + lower).saturating_mul(1_u64.checked_shl(shift).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_recording::test_trace::manifest;

    fn classes(times: &[u64]) -> Classes {
        let mut classes = Classes::default();
        times.iter().for_each(|&time| classes.add(time));
        classes
    }

    #[test]
    fn times_lie_in_the_bins_that_hold_them_and_the_bins_between_are_reported() {
        // A tick is half a nanosecond.
        let histogram = classes(&[16, 17, 25, 16]).histogram(&manifest().clock);

        assert_eq!(histogram, Histogram { from_ns: 8, bins: vec![(10, 3), (12, 0), (14, 1)] });
    }

    #[test]
    fn no_time_has_no_bin() {
        assert_eq!(Classes::default().histogram(&manifest().clock), Histogram::default());
    }

    /// As many short ones as long ones.
    fn time() -> impl Strategy<Value = u64> {
        (0..64_u32, any::<u64>()).prop_map(|(shift, time)| time >> shift)
    }

    proptest! {
        #[test]
        fn bins_are_few_and_hold_as_many_times_as_lie_between_their_borders(
            times in proptest::collection::vec(time(), 1..60),
            split in 0..60_usize,
        ) {
            // Where a tick is a nanosecond, borders are exact.
            let clock = Clock { frequency_hz: 1_000_000_000, ..manifest().clock };
            let (left, right) = times.split_at(split.min(times.len()));
            let mut both = classes(left);
            both.extend(&classes(right));

            let histogram = both.histogram(&clock);

            prop_assert!(histogram.bins.len() <= 64, "{}", histogram.bins.len());
            let mut from = histogram.from_ns;
            for &(below, count) in &histogram.bins {
                // The last border saturates.
                let is_in = |time: u64| time >= from && (time < below || below == u64::MAX);
                prop_assert_eq!(times.iter().filter(|&&time| is_in(time)).count() as u64, count);
                from = below;
            }
            prop_assert_eq!(histogram.bins.iter().map(|bin| bin.1).sum::<u64>(), times.len() as u64);
        }
    }
}
