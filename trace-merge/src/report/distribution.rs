//! How a number of durations is distributed.

use crate::clock::Clock;
use serde::Serialize;

/// Durations, collected. Takes 8 bytes for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    ticks: Vec<u64>,
}

/// What durations come to. Of none, everything is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Distribution {
    /// Their number.
    pub count: u64,
    /// All together, ns.
    pub total_ns: u64,
    /// The one in the middle: half of all are not longer, ns.
    pub p50_ns: u64,
    /// 99 of 100 are not longer, ns.
    pub p99_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
}

impl Durations {
    /// Adds one, in ticks.
    pub fn add(&mut self, ticks: u64) {
        self.ticks.push(ticks);
    }

    /// Their number.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.ticks.len() as u64
    }

    /// What they come to: percentiles by the nearest rank.
    #[must_use]
    pub fn distribution(&self, clock: &Clock) -> Distribution {
        let mut sorted = self.ticks.clone();
        sorted.sort_unstable();
        let rank = |percent: usize| {
            let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
            clock.ticks_to_ns(sorted.get(index).copied().unwrap_or(0))
        };
        let total = sorted.iter().fold(0_u64, |sum, &ticks| sum.saturating_add(ticks));
        Distribution {
            count: self.count(),
            total_ns: clock.ticks_to_ns(total),
            p50_ns: rank(50),
            p99_ns: rank(99),
            max_ns: rank(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::clock;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut durations = Durations::default();
        (1..=200).rev().for_each(|ticks| durations.add(2 * ticks));

        let distribution = durations.distribution(&clock());

        let expected = Distribution { count: 200, total_ns: 20_100, p50_ns: 100, p99_ns: 198, max_ns: 200 };
        assert_eq!(distribution, expected);
    }

    #[test]
    fn of_nothing_everything_is_0() {
        assert_eq!(Durations::default().distribution(&clock()), Distribution::default());
    }
}
