//! What a recording says about its clock: rate, relation to UTC, relation of each vCPU, and how wrong all that can be.

use super::host_time::HostTime;
use super::kernel_clocks;
use super::vcpu_clocks::ClockParameters;
use clock_sync::calibration::{self, CrossTimestamp};
use clock_sync::skew::Comparison;
use clock_sync::tsc;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::Duration;
use strata_recording::clock::{Clock, VcpuRelation};
use uuid::Uuid;

/// How long the CPUs' TSCs are compared, at a time.
const COMPARISON: Duration = Duration::from_millis(20);
/// How often they are compared at most, while other work keeps the CPUs from reading at the same time.
const MOST_COMPARISONS: usize = 25;
/// What they have to agree within for one comparison to be enough, ns.
const GOOD_AGREEMENT: u64 = 500;
/// After so many comparisons that show nothing better, there is nothing better to see.
const ENOUGH_WITHOUT_GAIN: usize = 5;
/// How long the TSC's rate is measured where KVM does not tell it.
const RATE_MEASUREMENT: Duration = Duration::from_millis(100);
/// Largest number of CPUs that are compared with one another; comparing more would delay the start.
const MAX_COMPARED_CPUS: usize = 256;

/// What is known about the host's TSC.
#[derive(Clone, Debug)]
pub struct HostClock {
    /// Rate, Hz.
    pub frequency: u64,
    /// Where the rate comes from.
    pub rate_source: &'static str,
    /// What comparing the CPUs showed.
    pub agreement: Agreement,
    /// Clock source that the host's kernel uses, `tsc` where it trusts the TSC; empty where it does not say.
    pub clocksource: String,
    /// What a trace clock counts here.
    pub time: HostTime,
}

/// How far the TSCs of the CPUs agree that this process may use.
#[derive(Clone, Copy, Debug)]
pub struct Agreement {
    /// What two of them differ by at most, ticks ([`Comparison::bound`]).
    pub bound: u64,
    /// Number of CPUs that were compared.
    pub cpus: usize,
    /// Number of CPUs of the host that are online; `None` where the kernel does not say.
    pub online: Option<usize>,
    /// Number of readings.
    pub readings: u64,
}

impl HostClock {
    /// Looks at the host's TSC; `khz` is its rate as KVM has it. Takes a few hundredths of a second, half a second where
    /// other work keeps the CPUs busy.
    #[must_use]
    pub fn observe(khz: Option<u32>) -> Self {
        let (frequency, rate_source) = match khz.filter(|&khz| khz > 0) {
            Some(khz) => (u64::from(khz) * 1000, "KVM"),
            None => (measured_rate(), "measured against the system clock"),
        };
        let clocksource = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let clocksource = clocksource.unwrap_or_default().trim().into();
        let time = HostTime::of_this_host();
        // The first reading finds out how clocks are read, by calls that a process may not make that has confined itself.
        let _ = kernel_clocks::read(time, frequency);
        // Where times do not count the TSC, nothing asks how well it agrees.
        let most = if time == HostTime::Tsc { MOST_COMPARISONS } else { 1 };
        Self { frequency, rate_source, agreement: compare_cpus(frequency, most), clocksource, time }
    }

    /// Whether the host's kernel trusts the TSC.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.clocksource == "tsc"
    }

    /// Rate of the trace clock, Hz.
    #[must_use]
    pub const fn trace_frequency(&self) -> u64 {
        self.time.frequency(self.frequency)
    }

    /// How far two records' times can be wrong against each other, ns.
    #[must_use]
    pub fn error_bound_ns(&self) -> u64 {
        if self.time == HostTime::MonotonicRaw {
            return self.time.resolution().saturating_add(1);
        }
        calibration::ticks_to_ns(self.agreement.bound, self.frequency).saturating_add(1)
    }

    /// Where the bound comes from.
    #[must_use]
    pub fn bound_derivation(&self) -> String {
        if self.time == HostTime::MonotonicRaw {
            return format!(
                "the host's kernel has given up the TSC as a clock source (it uses '{}'), so times are those of \
                 CLOCK_MONOTONIC_RAW, the same on all CPUs; shortest time between two readings, rounded up; the guest's \
                 counter is compared with it again and again: see the epochs",
                self.clocksource
            );
        }
        let trust = if self.is_trusted() {
            "the host's kernel uses the TSC as its clock source".into()
        } else {
            format!("the host's kernel uses '{}' as its clock source, not the TSC", self.clocksource)
        };
        let Agreement { bound, cpus, online, readings } = self.agreement;
        let of_all = online.map(|online| format!(" of the host's {online}")).unwrap_or_default();
        format!(
            "{readings} readings of the TSC by {cpus}{of_all} CPUs, each after another's or its own, show that no two \
             differ by more than {bound} ticks; rounded up to whole nanoseconds at {} Hz ({}); {trust}; KVM applies \
             TSC offsets exactly",
            self.frequency, self.rate_source,
        )
    }

    /// What the clocks begin with of a machine whose TSC runs as the host's does, with the offset that KVM says.
    #[must_use]
    pub fn parameters(&self) -> ClockParameters {
        ClockParameters {
            time: self.time,
            frequency: self.trace_frequency(),
            bound_ns: self.error_bound_ns(),
            guest_tsc_hz: self.frequency,
            first_offsets: Vec::new(),
            offset_honoured: true,
        }
    }

    /// The clock as `session.json` states it.
    #[must_use]
    pub fn statement(&self, uuid: Uuid, utc: CrossTimestamp, vcpus: Vec<VcpuRelation>) -> Clock {
        Clock {
            uuid,
            frequency_hz: self.trace_frequency(),
            utc: utc.into(),
            source: self.time.trace_clock().into(),
            vcpus,
            error_bound_ns: self.error_bound_ns(),
            bound_derivation: self.bound_derivation(),
            given_up_ticks: None,
            epochs: Vec::new(),
        }
    }
}

fn measured_rate() -> u64 {
    calibration::measure_frequency(tsc::read_ordered, RATE_MEASUREMENT).unwrap_or(1_000_000_000)
}

/// Compares the TSCs, of `frequency`, Hz, of the CPUs that this process may use, `most` times at most.
fn compare_cpus(frequency: u64, most: usize) -> Agreement {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(MAX_COMPARED_CPUS).collect();
    let mut comparison = Comparison::new(cpus.len());
    let (mut bound, mut without_gain) = (comparison.bound(), 0);
    for _ in 0..most {
        comparison.observe(COMPARISON, |thread| {
            let mut only = CpuSet::new();
            if let Some(&cpu) = cpus.get(thread) {
                only.set(cpu);
                // A thread that cannot be bound compares whatever CPU it is on.
                let _ = sched_setaffinity(None, &only);
            }
        });
        let before = std::mem::replace(&mut bound, comparison.bound());
        without_gain = if bound < before { 0 } else { without_gain + 1 };
        let is_good = calibration::ticks_to_ns(bound, frequency) <= GOOD_AGREEMENT;
        if is_good || without_gain == ENOUGH_WITHOUT_GAIN {
            break;
        }
    }
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|list| count_cpus(&list));
    Agreement { bound, cpus: cpus.len(), online, readings: comparison.readings() }
}

/// How many CPUs a `list` of the kernel's names, which is like `0-3,8`.
fn count_cpus(list: &str) -> Option<usize> {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim_end().split(',').map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> HostClock {
        HostClock {
            frequency: 2_000_000_000,
            rate_source: "KVM",
            agreement: Agreement { bound: 120, cpus: 2, online: Some(8), readings: 5 },
            clocksource: "hpet".into(),
            time: HostTime::Tsc,
        }
    }

    #[test]
    fn bound_covers_what_was_observed() {
        assert_eq!(clock().error_bound_ns(), 61);
    }

    #[test]
    fn derivation_says_that_the_host_does_not_trust_its_tsc() {
        assert!(clock().bound_derivation().contains("uses 'hpet' as its clock source, not the TSC"));
    }

    #[test]
    fn derivation_says_how_many_of_the_hosts_cpus_were_compared() {
        let unknown = HostClock { agreement: Agreement { online: None, ..clock().agreement }, ..clock() };

        let derivations = [clock(), unknown].map(|clock| clock.bound_derivation());

        assert!(derivations[0].contains(" by 2 of the host's 8 CPUs, "), "{derivations:?}");
        assert!(derivations[1].contains(" by 2 CPUs, "), "{derivations:?}");
    }

    #[test]
    fn cpus_of_the_kernels_lists_are_counted() {
        assert_eq!(["0\n", "0-3\n", "0-3,8,10-11\n"].map(count_cpus), [Some(1), Some(4), Some(7)]);
        assert_eq!(["", "\n", "3-0", "0-x"].map(count_cpus), [None; 4]);
    }

    #[test]
    fn host_without_a_usable_tsc_counts_monotonic_time() {
        let clock = HostClock { time: HostTime::MonotonicRaw, ..clock() };

        assert_eq!((clock.time, clock.trace_frequency()), (HostTime::MonotonicRaw, 1_000_000_000));
        assert!(clock.bound_derivation().contains("given up the TSC"));
    }

    #[test]
    fn this_hosts_clock_can_be_observed() {
        let observed = HostClock::observe(None);

        assert!(observed.frequency > 100_000_000, "{observed:?}");
        assert!(observed.agreement.readings > 0);
    }
}
