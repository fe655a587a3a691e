//! The host's counter that a recording's trace clock counts.

use crate::time_namespace;
use clock_sync::tsc;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds in a second: the rate of the monotonic clock.
const NS_PER_SECOND: u64 = 1_000_000_000;

/// What the trace clock counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostTime {
    /// Ticks of the time stamp counter.
    #[default]
    Tsc,
    /// Nanoseconds of the kernel's `CLOCK_MONOTONIC_RAW`, where the TSCs of the host's CPUs cannot be relied upon.
    MonotonicRaw,
}

impl HostTime {
    /// What a trace clock counts on this host.
    #[must_use]
    pub fn of_this_host() -> Self {
        let available = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
        Self::for_clock_sources(&std::fs::read_to_string(available).unwrap_or_default())
    }

    /// What it counts on a host whose kernel could use the `available` clock sources. The kernel takes the TSC off that
    /// list when it has found it unstable or not the same on all CPUs.
    fn for_clock_sources(available: &str) -> Self {
        let usable = available.is_empty() || available.split_whitespace().any(|source| source == "tsc");
        if usable { Self::Tsc } else { Self::MonotonicRaw }
    }

    /// Whether the host's kernel does not rely any more on what this counts.
    #[must_use]
    pub fn is_given_up(self) -> bool {
        self == Self::Tsc && Self::of_this_host() != self
    }

    /// The trace clock now, ticks; not read before earlier loads were done.
    #[inline]
    #[must_use]
    pub fn now(self) -> u64 {
        match self {
            Self::Tsc => tsc::read_ordered(),
            Self::MonotonicRaw => {
                let now = clock_gettime(ClockId::MonotonicRaw);
                let (seconds, rest) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
                let shown = seconds.wrapping_mul(NS_PER_SECOND).wrapping_add(rest);
                shown.wrapping_sub_signed(time_namespace::monotonic_offset_ns())
            }
        }
    }

    /// Name of the tracefs clock that counts the same, also used in `session.json`.
    #[must_use]
    pub const fn trace_clock(self) -> &'static str {
        match self {
            Self::Tsc => "x86-tsc",
            Self::MonotonicRaw => strata_recording::clock::MONOTONIC_RAW,
        }
    }

    /// Rate, Hz, where the TSC has `tsc` Hz.
    #[must_use]
    pub const fn frequency(self, tsc: u64) -> u64 {
        match self {
            Self::Tsc => tsc,
            Self::MonotonicRaw => NS_PER_SECOND,
        }
    }

    /// Shortest time between two readings, ticks, of a few: what one reading can be off by.
    #[must_use]
    pub fn resolution(self) -> u64 {
        let intervals = (0..1000).map(|_| {
            let before = self.now();
            self.now().saturating_sub(before)
        });
        intervals.min().unwrap_or(0).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn tsc_is_used_unless_the_kernel_has_given_it_up() {
        assert_eq!(HostTime::for_clock_sources("kvm-clock tsc acpi_pm\n"), HostTime::Tsc);
        assert_eq!(HostTime::for_clock_sources("hpet acpi_pm \n"), HostTime::MonotonicRaw);
    }

    /// Set for the child process that tells its time.
    const TELL_VARIABLE: &str = "STRATA_TEST_TELL_TIME";

    #[test]
    fn time_of_the_kernel_is_the_same_in_every_time_namespace() {
        if std::env::var_os(TELL_VARIABLE).is_some() {
            println!("\nnow={}", HostTime::MonotonicRaw.now());
            return;
        }
        let this = "host_time::tests::time_of_the_kernel_is_the_same_in_every_time_namespace";
        let mut command = Command::new("unshare");
        command.args(["--time", "--monotonic", "86400", "--fork"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", this, "--nocapture"]).env(TELL_VARIABLE, "");

        let before = HostTime::MonotonicRaw.now();
        let output = command.output().unwrap();
        let after = HostTime::MonotonicRaw.now();

        let (printed, refused) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if refused.contains("unshare failed") {
            eprintln!("SKIPPED {this}: {refused}");
            return;
        }
        let reported =
            printed.lines().find_map(|line| line.strip_prefix("now=")).unwrap_or_else(|| panic!("{printed}{refused}"));
        assert!((before..=after).contains(&reported.parse().unwrap()), "{reported} is not within {before} to {after}");
    }

    #[test]
    fn both_clocks_run_forward() {
        for time in [HostTime::Tsc, HostTime::MonotonicRaw] {
            let before = time.now();
            assert!(time.now() >= before && time.resolution() > 0, "{time:?}");
        }
    }
}
