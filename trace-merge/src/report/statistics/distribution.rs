//! How times are distributed.

use super::histogram::{Classes, Histogram, begin, class};
use serde::Serialize;
use strata_recording::clock::Clock;

/// How many there are, and how long they take, ns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Distribution {
    /// Number.
    pub count: u64,
    /// All together.
    pub total_ns: u64,
    /// Half of them take at most this.
    pub p50_ns: u64,
    /// 99 in 100 of them take at most this.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How many there are of each length.
    pub histogram: Histogram,
}

/// How many there are, and how long they take, ns, where quantiles would take too much memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Number.
    pub count: u64,
    /// All together.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How many there are of each length.
    pub histogram: Histogram,
}

/// Number, sum and longest of times, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DurationSum {
    pub(crate) count: u64,
    pub(crate) total: u64,
    pub(crate) max: u64,
}

impl DurationSum {
    pub(crate) fn add(&mut self, ticks: u64) {
        *self = self.plus(&Self { count: 1, total: ticks, max: ticks });
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            count: self.count + other.count,
            total: self.total.saturating_add(other.total),
            max: self.max.max(other.max),
        }
    }
}

/// The same with how many times have each length.
#[derive(Clone, Debug, Default)]
pub(crate) struct BinnedDurations {
    pub(crate) sum: DurationSum,
    classes: Classes,
}

impl BinnedDurations {
    pub(crate) fn add(&mut self, ticks: u64) {
        self.sum.add(ticks);
        self.classes.add(ticks);
    }

    /// Adds the times of `other`.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.sum = self.sum.plus(&other.sum);
        self.classes.extend(&other.classes);
    }

    pub(crate) fn histogram(&self, clock: &Clock) -> Histogram {
        self.classes.histogram(clock)
    }

    pub(crate) fn times(&self, clock: &Clock) -> Times {
        let [total_ns, max_ns] = [self.sum.total, self.sum.max].map(|ticks| clock.ticks_to_ns(ticks));
        Times { count: self.sum.count, total_ns, max_ns, histogram: self.histogram(clock) }
    }
}

/// Up to this many times are kept as they are.
const EXACT: usize = 4096;
/// Classes of more times for each power of two, as a power of two: their quantiles are right to a thousandth.
const CLASS_BITS: u32 = 10;

/// Times as they come, in ticks, in bounded memory, for quantiles alone: those of up to 4096 times are exact, and those of
/// more right to a thousandth of their value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quantiles {
    /// The times themselves, as long as they are few.
    few: Vec<u64>,
    /// How many of more times each class has; as many as that are counted at most.
    many: Vec<u32>,
}

impl Quantiles {
    /// Adds one, in ticks.
    pub(crate) fn add(&mut self, ticks: u64) {
        if !self.many.is_empty() {
            self.count(ticks);
            return;
        }
        self.few.push(ticks);
        if self.few.len() > EXACT {
            std::mem::take(&mut self.few).into_iter().for_each(|earlier| self.count(earlier));
        }
    }

    fn count(&mut self, ticks: u64) {
        let class = usize::from(class(ticks, CLASS_BITS));
        if self.many.len() <= class {
            self.many.resize(class + 1, 0);
        }
        if let Some(count) = self.many.get_mut(class) {
            *count = count.saturating_add(1);
        }
    }

    /// What so many thousandths of them take at most, ticks, by nearest rank; 0 of none.
    pub(crate) fn quantiles<const N: usize>(&self, thousandths: [u16; N]) -> [u64; N] {
        let rank = |number: u64, thousandths: u16| (number * u64::from(thousandths)).div_ceil(1000).max(1);
        if self.many.is_empty() {
            let mut few = self.few.clone();
            few.sort_unstable();
            let index = |thousandths| usize::try_from(rank(few.len() as u64, thousandths) - 1).unwrap_or(usize::MAX);
            return thousandths.map(|thousandths| few.get(index(thousandths)).copied().unwrap_or(0));
        }
        let number = self.many.iter().copied().map(u64::from).sum();
        thousandths.map(|thousandths| {
            let mut up_to = 0;
            let reaches = |&count: &u32| {
                up_to += u64::from(count);
                up_to >= rank(number, thousandths)
            };
            let class = self.many.iter().position(reaches).unwrap_or(0);
            // The longest time of the class.
            u16::try_from(class + 1).map_or(u64::MAX, |next| begin(next, CLASS_BITS) - 1)
        })
    }
}

/// Times as they come, in ticks, in bounded memory: number, sum and longest are exact always, the quantiles of up to
/// 4096 times too, and those of more to a thousandth of their value.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    binned: BinnedDurations,
    quantiles: Quantiles,
}

impl Durations {
    /// Adds one, in ticks.
    pub fn add(&mut self, ticks: u64) {
        self.binned.add(ticks);
        self.quantiles.add(ticks);
    }

    /// Their number.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.binned.sum.count
    }

    /// All together, ticks.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.binned.sum.total
    }

    /// The longest, ticks; 0 of none.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.binned.sum.max
    }

    /// How they are distributed: quantiles by nearest rank.
    #[must_use]
    pub fn distribution(&self, clock: &Clock) -> Distribution {
        let [p50, p99] = self.quantiles([500, 990]);
        let DurationSum { count, total, max } = self.binned.sum;
        Distribution {
            count,
            total_ns: clock.ticks_to_ns(total),
            p50_ns: clock.ticks_to_ns(p50),
            p99_ns: clock.ticks_to_ns(p99),
            max_ns: clock.ticks_to_ns(max),
            histogram: self.binned.histogram(clock),
        }
    }

    /// What so many thousandths of them take at most, ticks, by nearest rank; 0 of none.
    #[must_use]
    pub fn quantiles<const N: usize>(&self, thousandths: [u16; N]) -> [u64; N] {
        self.quantiles.quantiles(thousandths).map(|ticks| ticks.min(self.max()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::test_trace::manifest;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let clock = manifest().clock;
        let of = |times: Vec<u64>| {
            let mut durations = Durations::default();
            times.into_iter().for_each(|time| durations.add(time));
            durations.distribution(&clock)
        };

        // A tick is half a nanosecond.
        let hundred = of((1..=100).rev().map(|number| number * 2).collect());
        assert_eq!((hundred.p50_ns, hundred.p99_ns, hundred.max_ns, hundred.total_ns), (50, 99, 100, 5050));
        let two = of(vec![2, 4]);
        assert_eq!((two.count, two.p50_ns, two.p99_ns), (2, 1, 2));
        assert_eq!(of(vec![]), Distribution::default());
    }
    #[test]
    fn quantiles_of_many_are_right_to_a_thousandth_and_the_rest_is_exact() {
        let clock = manifest().clock;
        let mut durations = Durations::default();
        (1..=100_000_u64).for_each(|number| durations.add(number * 2_000));

        let Distribution { count, total_ns, p50_ns, p99_ns, max_ns, histogram } = durations.distribution(&clock);

        assert_eq!((count, total_ns, max_ns), (100_000, 5_000_050_000 * 1_000, 100_000_000));
        assert_eq!(histogram.bins.iter().map(|bin| bin.1).sum::<u64>(), count);
        assert!(p50_ns.abs_diff(50_000_000) <= 50_000 && p99_ns.abs_diff(99_000_000) <= 99_000, "{p50_ns} {p99_ns}");
    }
}
