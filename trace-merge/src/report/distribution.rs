//! How times are distributed.

use crate::clock::Clock;
use serde::Serialize;

/// How many there are, and how long they take, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
}

impl Distribution {
    /// The distribution of `times`, in ticks of `clock`; exact, by nearest rank.
    #[must_use]
    pub fn of(mut times: Vec<u64>, clock: &Clock) -> Self {
        times.sort_unstable();
        let rank = |percent: usize| {
            let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
            times.get(index).map_or(0, |&time| clock.ticks_to_ns(time))
        };
        let total = times.iter().fold(0_u64, |sum, &time| sum.saturating_add(time));
        Self {
            count: times.len() as u64,
            total_ns: clock.ticks_to_ns(total),
            p50_ns: rank(50),
            p99_ns: rank(99),
            max_ns: rank(100),
        }
    }
}

/// Times as they come, in ticks. Takes 8 bytes for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    ticks: Vec<u64>,
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

    /// How they are distributed.
    #[must_use]
    pub fn distribution(&self, clock: &Clock) -> Distribution {
        Distribution::of(self.ticks.clone(), clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::session;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let clock = session().clock;
        let of = |times| Distribution::of(times, &clock);

        // A tick is half a nanosecond.
        let hundred = of((1..=100).rev().map(|number| number * 2).collect());
        assert_eq!((hundred.p50_ns, hundred.p99_ns, hundred.max_ns, hundred.total_ns), (50, 99, 100, 5050));
        let two = of(vec![2, 4]);
        assert_eq!((two.count, two.p50_ns, two.p99_ns), (2, 1, 2));
        assert_eq!(of(vec![]), Distribution::default());
    }
}
