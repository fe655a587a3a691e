//! Limits of rates by token buckets. Time comes in as a value: nothing here looks at a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Billionths of a token, in which buckets count: what `per_second` tokens come to in a nanosecond is whole.
const BILLIONTHS: u128 = 1_000_000_000;

/// A limit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// What may be used each second, from 1 on.
    pub per_second: u64,
    /// What may be used at once after a pause, from 1 on.
    pub burst: u64,
}

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Requests, of any kind.
    Operations,
    /// Bytes moved.
    Bytes,
    /// Packets, of a network.
    Packets,
}

impl Resource {
    /// Its name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operations => "iops",
            Self::Bytes => "bandwidth",
            Self::Packets => "pps",
        }
    }
}

/// Tokens that come at a steady rate, up to a burst.
///
/// Who finds a whole token may take as many as the deed costs. What was not there is owed: nobody finds a token until
/// it has come. So a deed that is larger than the burst is done as well, and in any time `t` no more is taken than
/// `burst + per_second × t` and the last deed.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    limit: RateLimit,
    /// What a full bucket has more than this one, billionths of tokens.
    missing: u128,
    /// When `missing` was so.
    at: Instant,
}

impl TokenBucket {
    /// A full bucket.
    #[must_use]
    pub const fn new(limit: RateLimit, now: Instant) -> Self {
        Self { limit, missing: 0, at: now }
    }

    /// Whole tokens that are there. A time before an earlier one counts as that one.
    pub fn available(&mut self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.at).as_nanos();
        self.at = self.at.max(now);
        self.missing = self.missing.saturating_sub(elapsed.saturating_mul(self.limit.per_second.into()));
        let there = (u128::from(self.limit.burst) * BILLIONTHS).saturating_sub(self.missing) / BILLIONTHS;
        u64::try_from(there).unwrap_or(u64::MAX)
    }

    /// The time until there is a whole token; zero if there is one.
    pub fn wait(&mut self, now: Instant) -> Duration {
        if self.available(now) > 0 {
            return Duration::ZERO;
        }
        let owed = (self.missing + BILLIONTHS).saturating_sub(u128::from(self.limit.burst) * BILLIONTHS);
        let nanoseconds = owed.div_ceil(self.limit.per_second.max(1).into());
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// Takes `tokens`, whether they are there or not.
    pub fn take(&mut self, tokens: u64, now: Instant) {
        self.available(now);
        self.missing = self.missing.saturating_add(u128::from(tokens) * BILLIONTHS);
    }
}

/// How often something had to wait for its limits, and for how long; for whoever asks, on any thread.
#[derive(Debug, Default)]
pub struct ThrottleCounts {
    times: AtomicU64,
    nanoseconds: AtomicU64,
}

impl ThrottleCounts {
    /// How often it had to wait.
    #[must_use]
    pub fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    /// How long in all. A wait counts from its beginning on.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    fn add(&self, wait: Duration) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// A wait for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What has been used up, for the longest.
    pub resource: Resource,
    /// How long to wait.
    pub time: Duration,
    /// Whether it begins now. Who asks again meanwhile gets the rest of the same wait.
    pub begins: bool,
}

/// The limits of one device. Dealt with by one thread; what it counts is for all.
#[derive(Debug)]
pub struct Throttle {
    buckets: Vec<(Resource, TokenBucket)>,
    shortest: Duration,
    /// When the last wait ends.
    until: Option<Instant>,
    counts: Arc<ThrottleCounts>,
}

impl Throttle {
    /// A device that may use what `limits` say. It waits for `shortest` at least, so that a limit costs few timers:
    /// what comes in that time is to be less than a burst.
    #[must_use]
    pub fn new(
        limits: impl IntoIterator<Item = (Resource, RateLimit)>,
        shortest: Duration,
        counts: Arc<ThrottleCounts>,
        now: Instant,
    ) -> Self {
        let buckets = limits.into_iter().map(|(resource, limit)| (resource, TokenBucket::new(limit, now)));
        Self { buckets: buckets.collect(), shortest, until: None, counts }
    }

    /// Whether the next deed may be done at `now`.
    ///
    /// # Errors
    /// It has to wait.
    pub fn admit(&mut self, now: Instant) -> Result<(), Wait> {
        if let Some(rest) = self.until.map(|until| until.saturating_duration_since(now)).filter(|rest| !rest.is_zero())
        {
            let resource = self.emptiest(now).map_or(Resource::Operations, |(resource, _)| resource);
            return Err(Wait { resource, time: rest, begins: false });
        }
        let Some((resource, time)) = self.emptiest(now).filter(|(_, time)| !time.is_zero()) else {
            self.until = None;
            return Ok(());
        };
        let time = time.max(self.shortest);
        self.until = now.checked_add(time);
        self.counts.add(time);
        Err(Wait { resource, time, begins: true })
    }

    /// Whole tokens of `resource` that are there; without a limit there is no end of them.
    pub fn available(&mut self, resource: Resource, now: Instant) -> u64 {
        let bucket = self.buckets.iter_mut().find(|(limited, _)| *limited == resource);
        bucket.map_or(u64::MAX, |(_, bucket)| bucket.available(now))
    }

    /// Counts a deed that was done.
    pub fn charge(&mut self, operations: u64, bytes: u64, now: Instant) {
        for (resource, bucket) in &mut self.buckets {
            match resource {
                Resource::Operations | Resource::Packets => bucket.take(operations, now),
                Resource::Bytes => bucket.take(bytes, now),
            }
        }
    }

    /// The resource that has to be waited for longest, and how long.
    fn emptiest(&mut self, now: Instant) -> Option<(Resource, Duration)> {
        self.buckets.iter_mut().map(|(resource, bucket)| (*resource, bucket.wait(now))).max_by_key(|(_, time)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RateLimit = RateLimit { per_second: 10, burst: 4 };
    const MS: Duration = Duration::from_millis(1);

    fn throttle(
        limits: &[(Resource, RateLimit)],
        shortest: Duration,
        begin: Instant,
    ) -> (Throttle, Arc<ThrottleCounts>) {
        let counts = Arc::new(ThrottleCounts::default());
        (Throttle::new(limits.iter().copied(), shortest, Arc::clone(&counts), begin), counts)
    }

    #[test]
    fn burst_is_there_at_once_and_the_rate_afterwards() {
        let begin = Instant::now();
        let mut bucket = TokenBucket::new(LIMIT, begin);

        bucket.take(4, begin);
        let there = [0, 99, 100, 250, 10_000].map(|ms| bucket.available(begin + ms * MS));

        assert_eq!(there, [0, 0, 1, 2, 4]);
    }

    #[test]
    fn wait_ends_when_there_is_a_token_and_not_before() {
        let begin = Instant::now();
        let mut bucket = TokenBucket::new(RateLimit { per_second: 3, burst: 1 }, begin);
        bucket.take(1, begin);

        let wait = bucket.wait(begin);

        let mut later = bucket.clone();
        assert_eq!(wait, Duration::from_nanos(333_333_334));
        assert_eq!(bucket.available(begin + wait - Duration::from_nanos(1)), 0);
        assert_eq!(later.available(begin + wait), 1);
    }

    #[test]
    fn more_than_the_burst_is_owed() {
        let begin = Instant::now();
        let mut bucket = TokenBucket::new(LIMIT, begin);

        bucket.take(24, begin);

        assert_eq!(bucket.wait(begin), 2100 * MS);
    }

    #[test]
    fn time_that_runs_back_gives_nothing_twice() {
        let begin = Instant::now();
        let mut bucket = TokenBucket::new(LIMIT, begin);
        bucket.take(4, begin);

        let there = [1000, 0, 1000].map(|ms| (bucket.available(begin + ms * MS), bucket.take(1, begin + ms * MS)).0);

        assert_eq!(there, [4, 3, 2]);
    }

    #[test]
    fn longest_wait_of_both_limits_counts() {
        let begin = Instant::now();
        let slow = RateLimit { per_second: 100, burst: 100 };
        let (mut throttle, _) = throttle(&[(Resource::Operations, LIMIT), (Resource::Bytes, slow)], MS, begin);
        let admitted = throttle.admit(begin);

        throttle.charge(4, 200, begin);

        assert_eq!(admitted, Ok(()));
        assert_eq!(throttle.admit(begin), Err(Wait { resource: Resource::Bytes, time: 1010 * MS, begins: true }));
    }

    #[test]
    fn wait_is_counted_once_however_often_somebody_queries_it() {
        let begin = Instant::now();
        let (mut throttle, counts) = throttle(&[(Resource::Operations, LIMIT)], MS, begin);
        throttle.charge(4, 0, begin);

        let requested = [0, 40, 100].map(|ms| throttle.admit(begin + ms * MS).map_err(|wait| (wait.time, wait.begins)));

        assert_eq!(requested, [Err((100 * MS, true)), Err((60 * MS, false)), Ok(())]);
        assert_eq!((counts.times(), counts.time()), (1, 100 * MS));
    }

    #[test]
    fn short_waits_are_put_together() {
        let begin = Instant::now();
        let fast = RateLimit { per_second: 1_000_000, burst: 10_000 };
        let (mut throttle, _) = throttle(&[(Resource::Operations, fast)], 5 * MS, begin);
        throttle.charge(10_000, 0, begin);

        let wait = throttle.admit(begin).unwrap_err().time;

        assert_eq!((wait, throttle.admit(begin + wait)), (5 * MS, Ok(())));
        assert_eq!(throttle.available(Resource::Operations, begin + wait), 5000);
        assert_eq!(throttle.available(Resource::Bytes, begin + wait), u64::MAX);
    }

    proptest::proptest! {
        /// Whoever asks whenever, and takes whatever: no more than the burst, the rate and one deed; and who waits as
        /// long as the answer says gets something.
        #[test]
        fn rate_is_kept_and_nobody_waits_in_vain(
            per_second in 1u64..100_000,
            burst in 1u64..1000,
            steps in proptest::collection::vec((0u64..200_000_000, 1u64..5000), 1..100),
        ) {
            let begin = Instant::now();
            let mut bucket = TokenBucket::new(RateLimit { per_second, burst }, begin);
            let (mut now, mut taken, mut last) = (begin, 0u128, 0);
            for (pause, cost) in steps {
                now += Duration::from_nanos(pause);
                let wait = bucket.wait(now);
                if wait.is_zero() {
                    bucket.take(cost, now);
                    (taken, last) = (taken + u128::from(cost), u128::from(cost));
                } else {
                    proptest::prop_assert!(bucket.clone().wait(now + wait).is_zero());
                }
                let came = u128::from(per_second) * (now - begin).as_nanos() / BILLIONTHS;
                proptest::prop_assert!(taken <= u128::from(burst) + came + last);
            }
        }
    }
}
