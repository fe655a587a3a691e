//! The trace clock of a recording: ticks, and what they are in nanoseconds and UTC.

pub mod length;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Nanoseconds in a second.
pub const NS_PER_SECOND: u64 = 1_000_000_000;

/// Highest frequency that a recording may state, Hz: the remainder of a second, in ticks, times 10⁹ fits 64 bits.
pub const MAX_FREQUENCY: u64 = u64::MAX / NS_PER_SECOND;

/// Source of a trace clock that counts `CLOCK_MONOTONIC_RAW`, because the host's kernel has given up the TSC.
pub const MONOTONIC_RAW: &str = "mono_raw";

/// The clock that every record of every layer of a recording carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Identity: traces whose clocks have the same UUID can be compared tick by tick.
    pub uuid: Uuid,
    /// Ticks per second; 1 to [`MAX_FREQUENCY`].
    pub frequency_hz: u64,
    /// One moment in both ticks and UTC.
    pub utc: UtcAnchor,
    /// What ticks, for example `x86-tsc`.
    pub source: String,
    /// How each vCPU's counter relates to the clock.
    #[serde(default)]
    pub vcpus: Vec<VcpuRelation>,
    /// The times of two records of different layers may be wrong against each other by this much, nanoseconds.
    pub error_bound_ns: u64,
    /// Where that bound comes from, one or a few sentences.
    pub bound_derivation: String,
    /// When it was noticed, up to a second late, that the host's kernel no longer relies on what ticks: later times can be
    /// wrong by more than any bound here. Ticks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up_ticks: Option<u64>,
    /// The relations that were published for the vCPUs, in order, each with its own bound.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<ClockEpoch>,
}

/// A relation of a vCPU's counter to the trace clock, from when it was published until the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockEpoch {
    /// Name of the VM.
    pub vm: String,
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Counts the vCPU's epochs from 1.
    pub number: u64,
    /// Why it began, as in `vmm:clock_update`.
    pub cause: String,
    /// Trace clock at its begin, ticks.
    pub from_ticks: u64,
    /// Largest error of the guest's times against the other layers' while it holds, ns.
    pub bound_ns: u64,
    /// Where that bound comes from.
    pub derivation: String,
}

/// One moment, as the trace clock and as UTC show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UtcAnchor {
    /// Trace clock, ticks.
    pub ticks: u64,
    /// Nanoseconds since 1970-01-01T00:00:00Z.
    pub utc_ns: u64,
    /// The two belong together up to this, nanoseconds. It moves a whole recording in UTC, never its records against
    /// each other.
    #[serde(default)]
    pub uncertainty_ns: u64,
}

impl From<clock_sync::calibration::CrossTimestamp> for UtcAnchor {
    fn from(both: clock_sync::calibration::CrossTimestamp) -> Self {
        Self { ticks: both.ticks, utc_ns: both.utc_ns, uncertainty_ns: both.uncertainty_ns }
    }
}

/// How one vCPU's counter relates to the trace clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuRelation {
    /// Name of the VM.
    pub vm: String,
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Guest counter minus host counter, ticks.
    pub tsc_offset: i64,
    /// How the offset is known, for example `set, read back and observed`.
    pub how: String,
}

/// Ticks of a clock as seconds and nanoseconds, of many moments in a row: divides once for a moment in the second of the one
/// before.
#[derive(Clone, Copy, Debug)]
pub struct Seconds {
    frequency: u64,
    second: u64,
    /// Ticks at its beginning.
    begin: u64,
}

impl Seconds {
    /// Of a clock with so many ticks per second.
    #[must_use]
    pub const fn new(frequency_hz: u64) -> Self {
        Self { frequency: frequency_hz, second: 0, begin: 0 }
    }

    /// Whole seconds and nanoseconds that `ticks` take, rounded down.
    #[inline]
    pub const fn of(&mut self, ticks: u64) -> (u64, u64) {
        if ticks.wrapping_sub(self.begin) >= self.frequency {
            self.second = ticks / self.frequency;
            self.begin = self.second * self.frequency;
        }
        // Less than the frequency, so that the product fits 64 bits.
        (self.second, (ticks - self.begin) * NS_PER_SECOND / self.frequency)
    }

    /// [`Clock::ticks_to_ns`].
    #[inline]
    pub const fn ns(&mut self, ticks: u64) -> u64 {
        let (seconds, nanoseconds) = self.of(ticks);
        seconds.saturating_mul(NS_PER_SECOND).saturating_add(nanoseconds)
    }
}

impl Clock {
    /// `ticks` in nanoseconds, rounded down; saturates.
    #[must_use]
    pub const fn ticks_to_ns(&self, ticks: u64) -> u64 {
        let (seconds, rest) = (ticks / self.frequency_hz, ticks % self.frequency_hz);
        // `rest` is below the frequency, and so times 10⁹ within 64 bits.
        seconds.saturating_mul(NS_PER_SECOND).saturating_add(rest * NS_PER_SECOND / self.frequency_hz)
    }

    /// Ticks that take at least `ns` nanoseconds; saturates.
    #[must_use]
    pub fn ns_to_ticks(&self, ns: u64) -> u64 {
        let ticks = (u128::from(ns) * u128::from(self.frequency_hz)).div_ceil(u128::from(NS_PER_SECOND));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Nanoseconds since 1970-01-01T00:00:00Z at `ticks`, rounded down within the anchor's direction.
    #[must_use]
    pub fn utc_ns(&self, ticks: u64) -> i128 {
        let anchor = i128::from(self.utc.utc_ns);
        if ticks >= self.utc.ticks {
            anchor + i128::from(self.ticks_to_ns(ticks - self.utc.ticks))
        } else {
            anchor - i128::from(self.ticks_to_ns(self.utc.ticks - ticks))
        }
    }

    /// The last time that a trace on this clock can tell, ticks: readers of CTF compute UTC in nanoseconds with 64 bits
    /// and a sign, and some of them in floating point, so that the last second is left out.
    #[must_use]
    pub fn last_ticks(&self) -> u64 {
        let room = i128::from(i64::MAX) - self.utc_ns(0).max(0) - i128::from(NS_PER_SECOND);
        self.ns_to_ticks(u64::try_from(room).unwrap_or(0))
    }

    /// UTC of tick 0 as CTF states it: whole seconds, and the rest in ticks.
    #[must_use]
    pub fn ctf_offset(&self) -> (i64, u64) {
        let frequency = i128::from(self.frequency_hz);
        let anchor_ticks = i128::from(self.utc.utc_ns) * frequency / i128::from(NS_PER_SECOND);
        let origin = anchor_ticks - i128::from(self.utc.ticks);
        let seconds = i64::try_from(origin.div_euclid(frequency)).unwrap_or(0);
        (seconds, u64::try_from(origin.rem_euclid(frequency)).unwrap_or(0))
    }

    /// What the error of `vcpu`'s times can be, by their epochs.
    #[must_use]
    pub fn tolerances(&self, vm: &str, vcpu: u32) -> Tolerances {
        let of_vcpu = self.epochs.iter().filter(|epoch| epoch.vm == vm && epoch.vcpu == vcpu);
        let mut epochs: Vec<_> = of_vcpu.map(|epoch| (epoch.from_ticks, self.ns_to_ticks(epoch.bound_ns))).collect();
        epochs.sort_unstable();
        Tolerances { otherwise: self.error_bound_ticks(), epochs }
    }

    /// Whether the bounds of the guests' times at `time`, ticks, are what comparisons saw, and no guarantee: where the host's
    /// kernel has given up the TSC, KVM lets a guest's counter jump ahead when the host itself is held up, and a jump that
    /// ends before the next comparison is not seen.
    #[must_use]
    pub fn guest_bounds_are_observed(&self, time: u64) -> bool {
        self.source == MONOTONIC_RAW || self.is_given_up(time)
    }

    /// Whether the host's kernel may have given up what ticks at `time`, ticks.
    #[must_use]
    pub fn is_given_up(&self, time: u64) -> bool {
        // It is noticed up to a second late.
        self.given_up_ticks.is_some_and(|noticed| time.saturating_add(self.frequency_hz) >= noticed)
    }

    /// The tolerance that the error bound asks for, ticks.
    #[must_use]
    pub fn error_bound_ticks(&self) -> u64 {
        self.ns_to_ticks(self.error_bound_ns)
    }
}

/// The error bounds of a vCPU's times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tolerances {
    /// Where no epoch is known.
    otherwise: u64,
    /// Begin and bound of each epoch, ticks, in the order of their begins.
    epochs: Vec<(u64, u64)>,
}

impl Tolerances {
    /// How far any time may be wrong, ticks.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.epochs.iter().map(|&(_, bound)| bound).max().unwrap_or(self.otherwise)
    }

    /// How far a time near `ticks` may be wrong, ticks. Near the border of two epochs, the worse of them counts: a
    /// wrong time may have been made by either.
    #[must_use]
    pub fn at(&self, ticks: u64) -> u64 {
        let next = self.epochs.partition_point(|&(from, _)| from <= ticks);
        let current = next.checked_sub(1).and_then(|index| self.epochs.get(index));
        let before = next.checked_sub(2).and_then(|index| self.epochs.get(index));
        let Some(&(from, bound)) = current.or_else(|| self.epochs.first()) else { return self.otherwise };
        let just_ended = before.filter(|&&(_, old)| ticks.saturating_sub(from) <= old.max(bound));
        let about_to_begin = self.epochs.get(next).filter(|&&(from, new)| from.saturating_sub(ticks) <= new.max(bound));
        [just_ended, about_to_begin].into_iter().flatten().map(|&(_, bound)| bound).fold(bound, u64::max)
    }
}

/// `utc_ns` nanoseconds since 1970 as RFC 3339 with nine decimals; a number of nanoseconds where there is no such date.
#[must_use]
pub fn rfc3339(utc_ns: i128) -> String {
    jiff::Timestamp::from_nanosecond(utc_ns)
        .map_or_else(|_| format!("{utc_ns} ns"), |timestamp| format!("{timestamp:.9}"))
}

/// Nanoseconds since 1970 that `text`, of RFC 3339, says; `None` for what is no such time.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<i128> {
    text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_nanosecond)
}

/// Nanoseconds since midnight that `text` says, as in `05:03:47.5`; `None` for what is no time of day.
#[must_use]
pub fn parse_time_of_day(text: &str) -> Option<u64> {
    // Other forms of ISO 8601 have no colon, and may be lengths of time here, or have a date.
    let is_plain = text.contains(':') && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.'));
    let time = text.parse::<jiff::civil::Time>().ok().filter(|_| is_plain)?;
    u64::try_from(time.duration_since(jiff::civil::Time::midnight()).as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_trace::clock;
    use proptest::prelude::*;

    fn epoch(vcpu: u32, number: u64, from_ticks: u64, bound_ns: u64) -> ClockEpoch {
        let (vm, cause, derivation) = ("vm0".into(), "periodic".into(), "measured".into());
        ClockEpoch { vm, vcpu, number, cause, from_ticks, bound_ns, derivation }
    }

    #[test]
    fn times_of_utc_are_read_as_they_are_written() {
        let (text, ns) = ("2023-11-14T22:13:20.000000001Z", 1_700_000_000_000_000_001);

        assert_eq!((parse_rfc3339(text), rfc3339(ns).as_str()), (Some(ns), text));
        assert_eq!(parse_rfc3339("2023-11-14T22:13:20Z"), Some(1_700_000_000_000_000_000));
        assert_eq!(parse_time_of_day("22:13:20.5"), Some(80_000_500_000_000));
        assert_eq!(["22", "221320", "1.5", "24:13:20", "2023-11-14T22:13:20"].map(parse_time_of_day), [None; 5]);
        assert_eq!(["2023-11-14", "22:13:20", "2023-11-14T22:13:20"].map(parse_rfc3339), [None; 3]);
    }

    #[test]
    fn last_time_is_the_last_one_whose_utc_fits_in_64_bits_with_a_sign() {
        let last = clock().last_ticks();

        let rest = i128::from(i64::MAX) - clock().utc_ns(last);

        assert!((0..=i128::from(2 * NS_PER_SECOND)).contains(&rest), "{rest} ns are left");
    }

    #[test]
    fn clock_that_began_before_1970_has_no_more_times_for_it() {
        let utc = UtcAnchor { ticks: u64::MAX, utc_ns: 0, uncertainty_ns: 0 };
        let early = Clock { utc, ..clock() };

        assert!(early.ticks_to_ns(early.last_ticks()) <= i64::MAX.unsigned_abs());
    }

    #[test]
    fn clock_beyond_the_range_of_utc_has_no_time() {
        let utc = UtcAnchor { ticks: 0, utc_ns: u64::MAX, uncertainty_ns: 0 };

        assert_eq!(Clock { utc, ..clock() }.last_ticks(), 0);
    }

    #[test]
    fn tolerance_is_the_epochs_and_the_worse_of_two_at_their_border() {
        let epochs = vec![epoch(0, 1, 1_000, 50), epoch(0, 2, 10_000, 500), epoch(1, 1, 0, 7)];
        let tolerances = Clock { epochs, ..clock() }.tolerances("vm0", 0);

        // 2 ticks are a nanosecond.
        assert_eq!(
            [0, 2_000, 9_500, 10_500, 20_000].map(|ticks| tolerances.at(ticks)),
            [100, 100, 1_000, 1_000, 1_000]
        );
        assert_eq!(clock().tolerances("vm0", 0).at(5), 200);
    }

    #[test]
    fn utc_is_exact_on_both_sides_of_the_anchor() {
        assert_eq!(rfc3339(clock().utc_ns(1000)), "2023-11-14T22:13:20.000000000Z");
        assert_eq!(rfc3339(clock().utc_ns(1007)), "2023-11-14T22:13:20.000000003Z");
        assert_eq!(rfc3339(clock().utc_ns(0)), "2023-11-14T22:13:19.999999500Z");
    }

    #[test]
    fn ctf_offset_is_the_utc_of_tick_zero() {
        assert_eq!(clock().ctf_offset(), (1_699_999_999, 1_999_999_000));
    }

    #[test]
    fn tolerance_is_never_rounded_to_nothing() {
        let slow = Clock { frequency_hz: 3, error_bound_ns: 1, ..clock() };

        assert_eq!(slow.error_bound_ticks(), 1);
    }

    proptest! {
        #[test]
        fn nanoseconds_of_many_moments_are_those_of_each(
            frequency_hz in prop_oneof![1..5_u64, 1..5_000_000_000_u64],
            moments: Vec<u64>,
            near in proptest::collection::vec(0..20_000_000_000_u64, 0..20),
        ) {
            let (clock, mut seconds) = (Clock { frequency_hz, ..clock() }, Seconds::new(frequency_hz));

            for ticks in moments.into_iter().chain(near) {
                prop_assert_eq!(seconds.ns(ticks), clock.ticks_to_ns(ticks));
            }
        }

        #[test]
        fn nanoseconds_are_the_exact_quotient(ticks in any::<u64>(), frequency in NS_PER_SECOND..=MAX_FREQUENCY) {
            let clock = Clock { frequency_hz: frequency, ..clock() };
            let exact = u128::from(ticks) * u128::from(NS_PER_SECOND) / u128::from(frequency);
            prop_assert_eq!(u128::from(clock.ticks_to_ns(ticks)), exact);
        }
    }
}
