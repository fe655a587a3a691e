//! The kernel's clocks and the trace clock, read together.

use crate::host_time::HostTime;
use crate::time_namespace;
use clock_sync::calibration::read_bracketed;
use rustix::time::{ClockId, clock_gettime};
use strata_recording::clock_snapshots::{ClockReading, ClockSnapshot};

/// What the kernel's clocks show now, each bracketed by the trace clock, which counts `time` with `frequency` Hz. What a
/// time namespace adds for this process is taken off: the clocks are those that the kernel's own records carry.
#[must_use]
pub fn read(time: HostTime, frequency: u64) -> ClockSnapshot {
    let monotonic_offset = time_namespace::monotonic_offset_ns();
    let of = |id, offset: i64| {
        let bracketed = read_bracketed(|| time.now(), frequency, || shown(id));
        ClockReading {
            ticks: bracketed.ticks,
            ns: bracketed.value.wrapping_sub_signed(offset),
            uncertainty_ns: bracketed.uncertainty_ns,
        }
    };
    ClockSnapshot {
        host: None,
        monotonic_raw: of(ClockId::MonotonicRaw, monotonic_offset),
        monotonic: of(ClockId::Monotonic, monotonic_offset),
        boottime: of(ClockId::Boottime, time_namespace::boottime_offset_ns()),
        realtime: of(ClockId::Realtime, 0),
    }
}

/// What the clock `id` shows, ns.
fn shown(id: ClockId) -> u64 {
    let now = clock_gettime(id);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostClock;
    use std::time::Duration;

    #[test]
    fn clocks_read_twice_agree_about_the_time_between() {
        let host = HostClock::observe(None);
        let frequency = host.trace_frequency();
        let first = read(host.time, frequency);
        std::thread::sleep(Duration::from_millis(50));
        let second = read(host.time, frequency);

        for (first, second) in first.readings().into_iter().zip(second.readings()) {
            let passed = clock_sync::calibration::ticks_to_ns(second.ticks - first.ticks, frequency);
            // The rate was measured against a clock that is steered: by a thousandth at most.
            let allowed = first.uncertainty_ns + second.uncertainty_ns + passed / 500 + 1;
            assert!((second.ns - first.ns).abs_diff(passed) <= allowed, "{first:?} {second:?}");
        }
        assert!(first.boottime.ns >= first.monotonic.ns && first.realtime.ns > 1_500_000_000_000_000_000);
    }
}
