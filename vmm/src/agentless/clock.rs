//! From the times of the guest's ring to those of the trace clock.
//!
//! The ring has the kernel's `local` clock, nanoseconds of its scheduler. In a guest with kvm-clock that is kvm-clock
//! less what it showed when the kernel began to use it, a number in the kernel's memory. What kvm-clock shows at one
//! time of the host's TSC comes from KVM, and between two settings by KVM it goes as the TSC does, at the rate that KVM
//! has for it. KVM sets it to the host's monotonic clock whenever a vCPU joins it, so that it may have moved by what
//! the two drifted apart since: that is measured over the whole run, and is the bound.

use clock_sync::tsc;
use rustix::time::{ClockId, clock_gettime};
use strata_clock::guest_tsc::KvmClock;

const NS_PER_SECOND: i128 = 1_000_000_000;
/// Readings; the narrowest counts.
const READINGS: u32 = 16;
/// Rounding of kvm-clock, of the subtraction and of ours, ns.
const ROUNDING_NS: u64 = 3;

/// The host's monotonic clock and its TSC, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostReading {
    raw_ns: i128,
    tsc: u64,
    /// Ticks within which both were read.
    width: u64,
}

impl HostReading {
    /// Reads both now.
    #[must_use]
    pub fn now() -> Self {
        let read = |_| {
            let before = tsc::read_ordered();
            let raw = clock_gettime(ClockId::MonotonicRaw);
            let width = tsc::read_ordered().wrapping_sub(before);
            let raw_ns = i128::from(raw.tv_sec) * NS_PER_SECOND + i128::from(raw.tv_nsec);
            Self { raw_ns, tsc: before, width }
        };
        let first = read(0);
        (1..READINGS).map(read).fold(first, |best, next| if next.width < best.width { next } else { best })
    }

    /// The TSC, ticks.
    #[must_use]
    pub const fn tsc(&self) -> u64 {
        self.tsc
    }

    /// How far the two clocks have drifted apart since `earlier`, where the TSC has `hz`, ns; at most.
    #[must_use]
    pub fn drift_ns(&self, earlier: &Self, hz: u64) -> u64 {
        let of_ticks = |ticks: u64| i128::from(ticks) * NS_PER_SECOND / i128::from(hz.max(1));
        let drift = (self.raw_ns - earlier.raw_ns) - of_ticks(self.tsc.wrapping_sub(earlier.tsc));
        let unsure = of_ticks(self.width.saturating_add(earlier.width)) + 1;
        u64::try_from(drift.abs() + unsure).unwrap_or(u64::MAX)
    }
}

/// The ring's clock, related to the host's TSC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalClock {
    /// kvm-clock less this is the ring's clock, ns.
    pub offset_ns: u64,
    /// What kvm-clock showed once.
    pub kvm: KvmClock,
    /// Rate of the TSC, Hz.
    pub hz: u64,
    /// How far the host's clocks drifted apart during the run, ns.
    pub drift_ns: u64,
}

impl LocalClock {
    /// The host's TSC at `local`, a time of the ring; `None` for what is no time of a TSC.
    #[must_use]
    pub fn ticks(&self, local: u64) -> Option<u64> {
        let ns = i128::from(local) + i128::from(self.offset_ns) - i128::from(self.kvm.ns);
        let ticks = ns.checked_mul(i128::from(self.hz))?.div_euclid(NS_PER_SECOND);
        u64::try_from(i128::from(self.kvm.tsc) + ticks).ok()
    }

    /// By how much the times may be wrong beside what the trace clock itself is, ns.
    #[must_use]
    pub const fn bound_ns(&self) -> u64 {
        self.drift_ns.saturating_add(ROUNDING_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_tsc() {
        let kvm = KvmClock { ns: 5_000, tsc: 100_000 };
        let clock = LocalClock { offset_ns: 1_000, kvm, hz: 2_000_000_000, drift_ns: 7 };

        assert_eq!(clock.ticks(4_000), Some(100_000));
        assert_eq!(clock.ticks(4_500), Some(101_000));
        assert_eq!(clock.ticks(0), Some(92_000));
        assert_eq!(clock.bound_ns(), 10);
    }

    #[test]
    fn time_before_the_tsc_began_is_none() {
        let kvm = KvmClock { ns: u64::MAX, tsc: 10 };
        let clock = LocalClock { offset_ns: 0, kvm, hz: u64::MAX, drift_ns: 0 };

        assert_eq!(clock.ticks(0), None);
        assert_eq!(LocalClock { kvm: KvmClock { ns: 0, tsc: 10 }, ..clock }.ticks(u64::MAX), None);
    }

    #[test]
    fn drift_is_what_one_clock_gained_and_what_reading_may_hide() {
        let begin = HostReading { raw_ns: 0, tsc: 0, width: 10 };
        let end = HostReading { raw_ns: 1_000_000_100, tsc: 1_000_000_000, width: 20 };

        assert_eq!(end.drift_ns(&begin, 1_000_000_000), 131);
    }
}
