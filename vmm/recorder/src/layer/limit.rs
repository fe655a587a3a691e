//! Limits of the records of a layer. A layer that is over its rate is held back: its rings are not drained, so that its
//! producers drop what does not fit and count it, as they do when a ring is full for any other reason. The layer of the
//! host's kernel has no rings of ours; what is too much of it is dropped where it is read, and counted there.
//!
//! Each layer has its own limit, and each process of the guest too: what one of them uses up, no other lacks.

use crate::control::protocol::LayerLimit;
use shared_ring::layout::Mode;
use std::time::{Duration, Instant};
use strata_rate_limit::{RateLimit, TokenBucket};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::RecordLimit;
use thiserror::Error;

/// A layer that is held back goes on when it has one part in so many of its burst again: each time that it goes on
/// costs a gap in its streams, and a packet.
const RESUME_PART: u64 = 4;

/// Why limits cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LimitError {
    /// The rings of a flight recorder overwrite what they hold: nothing is drained that could be held back.
    #[error("--limit is for --mode discard: what a flight recorder holds depends on its rings")]
    FlightRecorder,
    /// A layer has two limits.
    #[error("--limit: {0} is given two limits: give one for each layer")]
    Twice(LayerKind),
    /// The recording does not have the layer.
    #[error("--limit: this recording has no layer {0}")]
    NotRecorded(LayerKind),
    /// Nothing would ever be recorded.
    #[error("--limit: {0} needs a rate and a burst of 1 or more: leave the layer out with --events instead")]
    Nothing(LayerKind),
}

/// The limits of a recording's layers, at most one for each.
#[derive(Clone, Debug, Default)]
pub struct LayerLimits(Vec<LayerLimit>);

impl LayerLimits {
    /// The limits `given` for a recording of `layers` in `mode`.
    ///
    /// # Errors
    /// When there is one that cannot be kept, or that is not clear.
    pub fn new(given: &[LayerLimit], mode: Mode, layers: &[LayerKind]) -> Result<Self, LimitError> {
        if !given.is_empty() && mode == Mode::FlightRecorder {
            return Err(LimitError::FlightRecorder);
        }
        for (index, limit) in given.iter().enumerate() {
            if given[..index].iter().any(|earlier| earlier.layer == limit.layer) {
                return Err(LimitError::Twice(limit.layer));
            }
            if !layers.contains(&limit.layer) {
                return Err(LimitError::NotRecorded(limit.layer));
            }
            if limit.per_second == 0 || limit.burst == 0 {
                return Err(LimitError::Nothing(limit.layer));
            }
        }
        Ok(Self(given.to_vec()))
    }

    /// What keeps a new layer of kind `layer` within its limit, if it has one, from `now` on.
    #[must_use]
    pub fn of(&self, layer: LayerKind, now: Instant) -> Option<RecordLimiter> {
        self.0.iter().find(|limit| limit.layer == layer).map(|limit| RecordLimiter::new(*limit, now))
    }
}

/// Keeps one layer within its limit. Time comes in as a value: nothing here looks at a clock.
#[derive(Clone, Debug)]
pub struct RecordLimiter {
    limit: LayerLimit,
    bucket: TokenBucket,
    /// While the layer is held back: when it was looked at last.
    requested: Option<Instant>,
    times: u64,
    held: Duration,
    is_reported: bool,
}

impl RecordLimiter {
    /// A layer that may have a whole burst at `now`.
    #[must_use]
    pub const fn new(limit: LayerLimit, now: Instant) -> Self {
        let LayerLimit { per_second, burst, .. } = limit;
        let bucket = TokenBucket::new(RateLimit { per_second, burst }, now);
        Self { limit, bucket, requested: None, times: 0, held: Duration::ZERO, is_reported: false }
    }

    /// Whether records may be taken at `now`; as many as come together, then, since what is too much of them is owed.
    pub fn admits(&mut self, now: Instant) -> bool {
        let available = self.bucket.available(now);
        let Some(requested) = self.requested else {
            if available == 0 {
                self.times += 1;
                self.requested = Some(now);
            }
            return available > 0;
        };
        self.held += now.saturating_duration_since(requested);
        let goes_on = available >= (self.limit.burst / RESUME_PART).max(1);
        self.requested = (!goes_on).then_some(now);
        goes_on
    }

    /// Counts `records` that were taken at `now`.
    pub fn take(&mut self, records: u64, now: Instant) {
        self.bucket.take(records, now);
    }

    /// The limit, and how often it was met until somebody last asked for records.
    #[must_use]
    pub fn state(&self) -> RecordLimit {
        let LayerLimit { per_second, burst, .. } = self.limit;
        let held_ns = u64::try_from(self.held.as_nanos()).unwrap_or(u64::MAX);
        RecordLimit { per_second, burst, times: self.times, held_ns }
    }

    /// That the limit was met, for the user; once.
    pub fn report(&mut self) -> Option<String> {
        if self.times == 0 || self.is_reported {
            return None;
        }
        self.is_reported = true;
        let LayerLimit { layer, per_second, burst } = self.limit;
        Some(format!(
            "{layer} makes more than {per_second} records a second (and {burst} at once): what is more is dropped and \
             counted as lost; --limit {layer}=RATE:BURST takes more, and --events records less"
        ))
    }
}

#[cfg(test)]
mod tests {
    //! Shows: A layer's limit holds, its loss is exact, others lose nothing.

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LIMIT: LayerLimit = LayerLimit { layer: LayerKind::GuestUser, per_second: 1000, burst: 100 };

    fn refusal(given: &[LayerLimit]) -> String {
        LayerLimits::new(given, Mode::Discard, &[LayerKind::GuestUser]).unwrap_err().to_string()
    }

    #[test]
    fn layer_over_its_rate_is_held_back_until_a_part_of_its_burst_is_there() {
        let begin = Instant::now();
        let mut limiter = RecordLimiter::new(LIMIT, begin);
        let first = limiter.admits(begin);
        limiter.take(100, begin);

        let admitted = [0, 24, 25, 26].map(|ms| limiter.admits(begin + ms * MS));

        assert!(first);
        assert_eq!(admitted, [false, false, true, true]);
        assert_eq!(limiter.state(), RecordLimit { per_second: 1000, burst: 100, times: 1, held_ns: 25_000_000 });
    }

    #[test]
    fn layer_within_its_rate_is_never_held_back() {
        let begin = Instant::now();
        let mut limiter = RecordLimiter::new(LIMIT, begin);

        let admitted = (0..1000).filter(|ms| {
            let now = begin + *ms * MS;
            limiter.take(1, now);
            limiter.admits(now)
        });

        assert_eq!(admitted.count(), 1000);
        assert_eq!((limiter.state().times, limiter.report()), (0, None));
    }

    #[test]
    fn what_came_together_is_owed() {
        let begin = Instant::now();
        let mut limiter = RecordLimiter::new(LIMIT, begin);

        limiter.take(8100, begin);

        assert_eq!([0, 8024, 8025].map(|ms| limiter.admits(begin + ms * MS)), [false, false, true]);
    }

    #[test]
    fn limit_that_was_met_is_reported_once_with_how_to_raise_it() {
        let begin = Instant::now();
        let mut limiter = RecordLimiter::new(LIMIT, begin);
        limiter.take(100, begin);
        limiter.admits(begin);

        let reported = limiter.report().unwrap();

        assert!(reported.starts_with("guest-user makes more than 1000 records a second"), "{reported}");
        assert!(reported.contains("--limit guest-user=RATE:BURST"), "{reported}");
        assert_eq!(limiter.report(), None);
    }

    #[test]
    fn limits_that_cannot_be_kept_are_refused() {
        let vmm = LayerLimit { layer: LayerKind::Vmm, ..LIMIT };

        assert!(refusal(&[LIMIT, LIMIT]).contains("guest-user is given two limits"));
        assert!(refusal(&[LIMIT, vmm]).contains("this recording has no layer vmm"));
        assert!(refusal(&[LayerLimit { per_second: 0, ..LIMIT }]).contains("1 or more"));
        assert!(refusal(&[LayerLimit { burst: 0, ..LIMIT }]).contains("1 or more"));
        let flight = LayerLimits::new(&[LIMIT], Mode::FlightRecorder, &[LayerKind::GuestUser]);
        assert_eq!(flight.unwrap_err(), LimitError::FlightRecorder);
        assert!(LayerLimits::new(&[], Mode::FlightRecorder, &[]).is_ok());
    }

    #[test]
    fn each_layer_has_the_limit_that_it_was_given() {
        let vmm = LayerLimit { layer: LayerKind::Vmm, per_second: 7, burst: 9 };
        let limits = LayerLimits::new(&[LIMIT, vmm], Mode::Discard, &LayerKind::ALL).unwrap();

        let of = |layer| limits.of(layer, Instant::now()).map(|limiter| limiter.state().to_string());

        assert_eq!(LayerKind::ALL.map(of), [None, Some("7:9".into()), None, Some("1000:100".into())]);
    }

    proptest::proptest! {
        /// Packets of any size, looked for at any times: no more than the burst, the rate and one packet are taken.
        #[test]
        fn rate_is_kept(
            per_second in 1u64..1_000_000,
            burst in 1u64..100_000,
            steps in proptest::collection::vec((0u64..50_000_000, 1u64..10_000), 1..200),
        ) {
            let begin = Instant::now();
            let mut limiter = RecordLimiter::new(LayerLimit { per_second, burst, ..LIMIT }, begin);
            let (mut now, mut taken, mut last) = (begin, 0u128, 0);
            for (pause, packet) in steps {
                now += Duration::from_nanos(pause);
                if limiter.admits(now) {
                    limiter.take(packet, now);
                    (taken, last) = (taken + u128::from(packet), u128::from(packet));
                }
                let came = u128::from(per_second) * (now - begin).as_nanos() / 1_000_000_000;
                proptest::prop_assert!(taken <= u128::from(burst) + came + last);
            }
        }
    }
}
