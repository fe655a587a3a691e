//! The clock entries of a machine's vCPUs while it runs: measured and published by each vCPU's own thread, when it is out
//! of the guest. Every update is an epoch with its own bound, an event of the VMM's layer and an entry of `session.json`.
//!
//! On a host whose trace clock is the TSC, a vCPU's counter is the host's plus the offset that KVM has for it: read from
//! KVM each time, and so exact. Where the host's TSCs cannot be relied upon, KVM moves the guest's TSC whenever the vCPU
//! is put on a CPU, and catches up by the host's system clock. There the counter is read each time and compared with
//! `CLOCK_MONOTONIC_RAW`, and an epoch's bound is what is assumed of the counter or what the next comparison showed,
//! whichever is more.

use super::region::TraceRegion;
use super::vmm_events::VmmTracer;
use crate::host_time::HostTime;
use crate::machine::{VcpuClock, tsc as guest_tsc};
use clock_sync::calibration::ticks_to_ns;
use clock_sync::tsc;
use clock_sync::updater::{Cause, CounterModel, Epoch, Rate, Sample, Updater};
use kvm_ioctls::VcpuFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trace_merge::clock::ClockEpoch;

/// How often clocks are looked at where they are measured, nanoseconds.
pub const MEASURED_INTERVAL_NS: u64 = 100_000_000;
/// How often KVM's offsets are read again where they are exact, nanoseconds.
pub const EXACT_INTERVAL_NS: u64 = 1_000_000_000;
/// What the guest's counter may drift against the host's clock between two measurements, parts in a billion.
const DRIFT_PPB: u32 = 500_000;
/// How much the guest's clock is slowed down when it is ahead, parts in a billion.
const SLEW_PPB: u32 = 1_000_000;
/// Most epochs that are kept one by one; beyond that, periodic ones are put together.
const MAX_EPOCHS: usize = 4096;

/// What is known of the host.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// What the trace clock counts.
    pub time: HostTime,
    /// Rate of the trace clock, Hz.
    pub frequency: u64,
    /// Error of the host's own times, ns.
    pub bound_ns: u64,
    /// Rate of the guest's TSC, Hz.
    pub guest_tsc_hz: u64,
    /// Offset that each vCPU's counter got at first, ticks.
    pub first_offsets: Vec<i64>,
    /// Whether KVM does with an offset what it says; else guest and host read the same counter.
    pub offset_honoured: bool,
}

/// The clocks of one machine's vCPUs.
pub struct VcpuClocks {
    vm: String,
    host: HostFacts,
    region: Arc<TraceRegion>,
    vmm: Arc<VmmTracer>,
    vcpus: Vec<Mutex<VcpuState>>,
    epochs: Mutex<Vec<ClockEpoch>>,
}

struct VcpuState {
    updater: Updater,
    /// Offset of the last epoch, ticks.
    offset: Option<i64>,
    /// Counter and clock when the vCPU left the guest.
    left: Option<Sample>,
}

impl VcpuClocks {
    /// Clocks for the vCPUs of `vm`, none of them published yet.
    #[must_use]
    pub fn new(vm: &str, host: HostFacts, region: Arc<TraceRegion>, vmm: Arc<VmmTracer>) -> Self {
        let model = model(&host);
        let state = || Mutex::new(VcpuState { updater: Updater::new(model), offset: None, left: None });
        let vcpus = (0..region.layout().config.vcpus).map(|_| state()).collect();
        Self { vm: vm.into(), host, region, vmm, vcpus, epochs: Mutex::new(Vec::new()) }
    }

    /// What the trace clock counts.
    #[must_use]
    pub const fn time(&self) -> HostTime {
        self.host.time
    }

    /// How often the clocks are to be looked at, ns.
    #[must_use]
    pub const fn interval_ns(&self) -> u64 {
        match self.host.time {
            HostTime::Tsc => EXACT_INTERVAL_NS,
            HostTime::MonotonicRaw => MEASURED_INTERVAL_NS,
        }
    }

    /// The epochs so far, in the order in which they began.
    #[must_use]
    pub fn epochs(&self) -> Vec<ClockEpoch> {
        self.known().clone()
    }

    fn known(&self) -> MutexGuard<'_, Vec<ClockEpoch>> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self, vcpu: u32) -> Option<MutexGuard<'_, VcpuState>> {
        Some(self.vcpus.get(vcpu as usize)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The offset that KVM has for the vCPU's counter now, as far as it matters.
    fn offset(&self, fd: &VcpuFd) -> Option<i64> {
        if self.host.offset_honoured { guest_tsc::read_offset(fd).ok() } else { Some(0) }
    }

    fn publish_exact(&self, vcpu: u32, state: &mut VcpuState, fd: &VcpuFd, cause: Cause) {
        let Some(offset) = self.offset(fd) else { return };
        let cause = match (cause, state.offset) {
            (Cause::Periodic, Some(known)) if known == offset => return,
            (Cause::Periodic | Cause::Resume, Some(known)) if known != offset => Cause::OffsetChange,
            (cause, _) => cause,
        };
        let now = self.host.time.now();
        let sample = Sample { counter: now.wrapping_add_signed(offset), ticks: now, uncertainty: 0 };
        // The old relation was exact as well, so nobody has seen a time after now.
        let epoch = state.updater.resynchronise(cause, None, sample, None);
        state.offset = Some(offset);
        let derivation = match (self.host.offset_honoured, cause) {
            (false, _) => "guest and host read the same counter".to_owned(),
            (true, _) => format!("KVM's offset of {offset} ticks, read when the epoch began, is exact"),
        };
        self.announce(vcpu, &epoch, self.host.bound_ns, derivation);
    }

    fn publish_measured(&self, vcpu: u32, state: &mut VcpuState, cause: Cause) {
        let Some(mut sample) = state.left.take() else { return };
        let mut seen = None;
        if let Some(old) = state.updater.current() {
            let shown = old.relation.trace_time(sample.counter);
            seen = Some(shown);
            let observed = shown.abs_diff(sample.ticks).saturating_add(sample.uncertainty);
            self.raise_bound(vcpu, self.to_ns(observed));
            if shown < sample.ticks {
                // The counter lags: it stood still while the vCPU was off its CPU, and catches up when it is entered. How
                // much of the lag is left then is not known, so all of it counts as error, and the line stays.
                if cause == Cause::Periodic {
                    return;
                }
                sample = Sample { ticks: shown, uncertainty: old.bound_at(sample.counter), ..sample };
            }
        }
        let epoch = state.updater.resynchronise(cause, seen, sample, None);
        let bound = self.to_ns(epoch.bound()).saturating_add(self.host.bound_ns);
        let derivation = format!(
            "the guest's TSC compared with {} to within {} ns, {} ppm of drift, and what the next comparison showed",
            self.host.time.trace_clock(),
            self.to_ns(sample.uncertainty),
            DRIFT_PPB / 1000
        );
        self.announce(vcpu, &epoch, bound, derivation);
    }

    fn to_ns(&self, ticks: u64) -> u64 {
        ticks_to_ns(ticks, self.host.frequency)
    }

    /// The vCPU's last epoch turned out to be wrong by `observed` nanoseconds at its end.
    fn raise_bound(&self, vcpu: u32, observed: u64) {
        let bound = observed.saturating_add(self.host.bound_ns);
        if let Some(epoch) = self.known().iter_mut().rev().find(|epoch| epoch.vcpu == vcpu) {
            epoch.bound_ns = epoch.bound_ns.max(bound);
        }
    }

    fn announce(&self, vcpu: u32, epoch: &Epoch, bound_ns: u64, derivation: String) {
        self.region.publish_clock(vcpu, &epoch.relation);
        self.vmm.clock_update(vcpu, epoch.number, &epoch.relation, epoch.cause, bound_ns);
        let mut epochs = self.known();
        if epochs.len() >= MAX_EPOCHS {
            thin(&mut epochs);
        }
        epochs.push(ClockEpoch {
            vm: self.vm.clone(),
            vcpu,
            number: epoch.number,
            cause: epoch.cause.name().into(),
            from_ticks: epoch.relation.trace_base,
            bound_ns,
            derivation,
        });
    }
}

impl VcpuClock for VcpuClocks {
    fn left_guest(&self, vcpu: u32, fd: &VcpuFd) {
        if self.host.time == HostTime::Tsc {
            return;
        }
        let Some(mut state) = self.state(vcpu) else { return };
        // KVM stops the counter when it puts the vCPU away, which was just before the first of these readings.
        let before = self.host.time.now();
        let first = self.host.first_offsets.get(vcpu as usize).filter(|_| state.updater.current().is_none());
        let counter = match first {
            // The vCPU has not run, so KVM has not let its counter catch up yet: by its first offset it will.
            Some(&offset) => Some(tsc::read_ordered().wrapping_add_signed(offset)),
            None => guest_tsc::read_counter(fd).ok(),
        };
        let uncertainty = self.host.time.now().saturating_sub(before).saturating_add(1);
        state.left = counter.map(|counter| Sample { counter, ticks: before, uncertainty });
    }

    fn publish(&self, vcpu: u32, fd: &VcpuFd, cause: Cause) {
        let Some(mut state) = self.state(vcpu) else { return };
        match self.host.time {
            HostTime::Tsc => self.publish_exact(vcpu, &mut state, fd, cause),
            HostTime::MonotonicRaw => self.publish_measured(vcpu, &mut state, cause),
        }
    }
}

fn model(host: &HostFacts) -> CounterModel {
    match host.time {
        HostTime::Tsc => CounterModel::TSC,
        HostTime::MonotonicRaw => CounterModel {
            rate: Rate::from_frequencies(host.guest_tsc_hz, host.frequency).unwrap_or(Rate::UNITY),
            drift_ppb: DRIFT_PPB,
            slew_ppb: SLEW_PPB,
            reading_lag: 1,
            renew_after: host.guest_tsc_hz / (1_000_000_000 / MEASURED_INTERVAL_NS),
            ..CounterModel::TSC
        },
    }
}

/// Puts each two successive periodic epochs of a vCPU together; the bound is the worse of the two.
fn thin(epochs: &mut Vec<ClockEpoch>) {
    let periodic = Cause::Periodic.name();
    let mut kept: Vec<ClockEpoch> = Vec::with_capacity(epochs.len());
    let mut merged = std::collections::BTreeMap::new();
    for epoch in epochs.drain(..) {
        let last = kept.iter_mut().rev().find(|last| last.vcpu == epoch.vcpu);
        let once = merged.get(&epoch.vcpu).copied().unwrap_or(false);
        match last {
            Some(last) if epoch.cause == periodic && !once => {
                last.bound_ns = last.bound_ns.max(epoch.bound_ns);
                merged.insert(epoch.vcpu, true);
            }
            _ => {
                merged.insert(epoch.vcpu, false);
                kept.push(epoch);
            }
        }
    }
    *epochs = kept;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(vcpu: u32, number: u64, cause: Cause, bound_ns: u64) -> ClockEpoch {
        let (vm, derivation) = ("vm0".into(), String::new());
        ClockEpoch { vm, vcpu, number, cause: cause.name().into(), from_ticks: number * 10, bound_ns, derivation }
    }

    #[test]
    fn thinned_epochs_keep_causes_and_the_worse_bound() {
        let mut epochs = vec![
            epoch(0, 1, Cause::Start, 5),
            epoch(1, 1, Cause::Start, 5),
            epoch(0, 2, Cause::Periodic, 9),
            epoch(0, 3, Cause::Periodic, 4),
            epoch(0, 4, Cause::Resume, 3),
            epoch(1, 2, Cause::Periodic, 1),
        ];

        thin(&mut epochs);

        let left: Vec<_> = epochs.iter().map(|epoch| (epoch.vcpu, epoch.number, epoch.bound_ns)).collect();
        assert_eq!(left, [(0, 1, 9), (1, 1, 5), (0, 3, 4), (0, 4, 3)]);
    }

    #[test]
    fn guest_tsc_beside_the_monotonic_clock_is_renewed_ten_times_a_second() {
        let host = HostFacts {
            time: HostTime::MonotonicRaw,
            frequency: 1_000_000_000,
            bound_ns: 50,
            guest_tsc_hz: 2_000_000_000,
            first_offsets: Vec::new(),
            offset_honoured: true,
        };

        let model = model(&host);

        assert_eq!((model.due_after(), model.rate), (200_000_000, Rate { mult: 1 << 31, shift: 32 }));
    }
}
