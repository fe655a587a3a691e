//! The clock entries of a machine's vCPUs while it runs: measured and published by each vCPU's own thread, when it is out
//! of the guest. Every update is an epoch with its own bound, an event of the VMM's layer and an entry of `session.json`.
//!
//! On a host whose trace clock is the TSC, a vCPU's counter is the host's plus the offset that KVM has for it: read from
//! KVM each time, and so exact. Where the host's TSCs cannot be relied upon, KVM moves the guest's TSC whenever the vCPU
//! is put on a CPU, and lets it catch up with the host's monotonic clock when the guest is entered. There the counter is
//! compared with `CLOCK_MONOTONIC_RAW` again and again, as it is in the guest (see [`super::counter_comparison`]), and an
//! epoch's bound is what is assumed of the counter, or what a comparison showed if that is more.

use super::counter_comparison::{CounterComparison, Meaning, Reading};
use super::region::TraceRegion;
use super::vmm_events::VmmTracer;
use crate::host_time::HostTime;
use crate::machine::{VcpuClock, tsc as guest_tsc};
use clock_sync::calibration::ticks_to_ns;
use clock_sync::relation::Relation;
use clock_sync::tsc;
use clock_sync::updater::{Cause, CounterModel, Epoch, Rate, Sample, Updater};
use kvm_ioctls::VcpuFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trace_merge::clock::ClockEpoch;

/// How often clocks are looked at where they are measured, nanoseconds.
pub const MEASURED_INTERVAL_NS: u64 = 100_000_000;
/// How often KVM's offsets are read again where they are exact, nanoseconds.
pub const EXACT_INTERVAL_NS: u64 = 1_000_000_000;
/// How wrong the rate of the host's TSC may be, parts in a billion. A counter that catches up whenever the guest is
/// entered is late by no more than what it loses in one stay, and a stay ends when the clock is looked at.
const RATE_ERROR_PPB: u64 = 200_000;
/// What the line that the counter catches up with may drift against the host's clock, parts in a billion: both are the
/// same clock, and the rest is rounding.
const DRIFT_PPB: u32 = 10_000;
/// How much the guest's clock is slowed down when it is ahead, parts in a billion.
const SLEW_PPB: u32 = 1_000_000;
/// The first reading is the narrowest of so many.
const FIRST_READINGS: u32 = 16;
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
    /// The largest jump ahead of a counter that was seen, ns. See [`Meaning::Jump`].
    largest_jump: AtomicU64,
}

struct VcpuState {
    updater: Updater,
    /// Offset of the last epoch, ticks.
    offset: Option<i64>,
    comparison: CounterComparison,
    /// Whether an epoch has begun since the clock was last looked at.
    renewed: bool,
}

impl VcpuClocks {
    /// Clocks for the vCPUs of `vm`, none of them published yet.
    #[must_use]
    pub fn new(vm: &str, host: HostFacts, region: Arc<TraceRegion>, vmm: Arc<VmmTracer>) -> Self {
        let model = model(&host);
        let state = || {
            let comparison = CounterComparison::new();
            Mutex::new(VcpuState { updater: Updater::new(model), offset: None, comparison, renewed: false })
        };
        let vcpus = (0..region.layout().config.vcpus).map(|_| state()).collect();
        Self {
            vm: vm.into(),
            host,
            region,
            vmm,
            vcpus,
            epochs: Mutex::new(Vec::new()),
            largest_jump: AtomicU64::new(0),
        }
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

    /// The epochs so far, in the order in which they began. Jumps of a counter are seen by chance, so the largest one that
    /// was seen counts for all of them.
    #[must_use]
    pub fn epochs(&self) -> Vec<ClockEpoch> {
        let mut epochs = self.known().clone();
        let jump = self.largest_jump.load(Ordering::Relaxed);
        epochs.iter_mut().for_each(|epoch| epoch.bound_ns = epoch.bound_ns.max(jump));
        epochs
    }

    /// A counter was seen ahead of its line by `observed` nanoseconds.
    fn jumped(&self, observed: u64) {
        self.largest_jump.fetch_max(observed.saturating_add(self.host.bound_ns), Ordering::Relaxed);
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

    /// The first line, before the vCPU has run: its counter will go on from the offset that it got.
    fn publish_first(&self, vcpu: u32, state: &mut VcpuState, fd: &VcpuFd, cause: Cause) {
        let read = || match self.host.first_offsets.get(vcpu as usize) {
            Some(&offset) => Some(self.bracketed(|| tsc::read_ordered().wrapping_add_signed(offset))),
            None => self.read_counter(fd),
        };
        let readings = (0..FIRST_READINGS).filter_map(|_| read());
        let Some(Reading { before, counter, after }) = readings.min_by_key(|reading| reading.after - reading.before)
        else {
            return;
        };
        let width = after - before;
        let sample = Sample { counter, ticks: before + width / 2, uncertainty: width.div_ceil(2).saturating_add(1) };
        let epoch = state.updater.resynchronise(cause, None, sample, None);
        self.announce_measured(vcpu, &epoch, "at its first offset");
    }

    /// Nothing is known but that time went on: the line goes on too, and its bound grows. KVM lets a counter that stood
    /// still catch up.
    fn publish_continued(&self, vcpu: u32, state: &mut VcpuState, cause: Cause) {
        let Some(old) = state.updater.current().map(|epoch| epoch.relation) else { return };
        let elapsed = self.host.time.now().saturating_sub(old.trace_base);
        let counter = old.hw_base.wrapping_add(counter_ticks(&old, elapsed));
        if let Ok(epoch) = state.updater.renew_because(cause, counter) {
            self.announce_measured(vcpu, &epoch, "before this epoch");
        }
    }

    /// A comparison has come about.
    fn publish_compared(&self, vcpu: u32, state: &mut VcpuState, sample: Sample) {
        let Some(old) = state.updater.current().copied() else { return };
        let shown = old.relation.trace_time(sample.counter);
        let observed = self.to_ns(shown.abs_diff(sample.ticks).saturating_add(sample.uncertainty));
        match state.comparison.meaning(&sample, shown, old.bound_at(sample.counter)) {
            Meaning::Nothing => {}
            Meaning::Jump => {
                self.jumped(observed);
                self.publish_continued(vcpu, state, Cause::Periodic);
                state.renewed = true;
            }
            Meaning::Line { contradicts } => {
                if contradicts {
                    self.raise_bound(vcpu, observed);
                }
                let epoch = state.updater.resynchronise(Cause::Periodic, Some(shown), sample, None);
                let how = format!("in the guest to within {} ns", self.to_ns(sample.uncertainty));
                self.announce_measured(vcpu, &epoch, &how);
                state.renewed = true;
            }
        }
    }

    /// The vCPU left the guest before `left`: its time must not be later.
    fn look_at_time(&self, state: &mut VcpuState, fd: &VcpuFd, left: u64) {
        let Some(old) = state.updater.current().copied() else { return };
        let Some(reading) = self.read_counter(fd) else { return };
        let shown = old.relation.trace_time(reading.counter);
        let ahead = state.comparison.ahead(&reading, shown, left);
        if let Some(ahead) = ahead.filter(|&ahead| ahead > old.bound_at(reading.counter)) {
            self.jumped(self.to_ns(ahead));
            state.comparison.want();
        }
    }

    fn announce_measured(&self, vcpu: u32, epoch: &Epoch, how: &str) {
        let bound = self.to_ns(epoch.bound()).saturating_add(self.host.bound_ns);
        let derivation = format!(
            "the guest's TSC compared with {} {how}, {} ppm of a stay in the guest, {} ppm of drift, and what \
             comparisons and exits showed",
            self.host.time.trace_clock(),
            RATE_ERROR_PPB / 1000,
            DRIFT_PPB / 1000
        );
        self.announce(vcpu, epoch, bound, derivation);
    }

    fn bracketed<C>(&self, read: impl FnOnce() -> C) -> Reading<C> {
        let before = self.host.time.now();
        let counter = read();
        Reading { before, counter, after: self.host.time.now() }
    }

    fn read_counter(&self, fd: &VcpuFd) -> Option<Reading> {
        let Reading { before, counter, after } = self.bracketed(|| guest_tsc::read_counter(fd));
        Some(Reading { before, counter: counter.ok()?, after })
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
    fn entering(&self, vcpu: u32, fd: &VcpuFd) -> Option<Duration> {
        if self.host.time == HostTime::Tsc {
            return None;
        }
        self.state(vcpu)?.comparison.entering(|| self.read_counter(fd))
    }

    fn interrupted(&self, vcpu: u32, fd: &VcpuFd) {
        if self.host.time == HostTime::Tsc {
            return;
        }
        let Some(mut state) = self.state(vcpu) else { return };
        let rate = Rate::from_frequencies(self.host.guest_tsc_hz, self.host.frequency).unwrap_or(Rate::UNITY);
        let ticks = |counter: u64| rate.ticks_of(counter);
        if let Some(sample) = state.comparison.interrupted(|| self.read_counter(fd), ticks) {
            self.publish_compared(vcpu, &mut state, sample);
        }
    }

    fn exited(&self, vcpu: u32, fd: &VcpuFd, left: u64) {
        if let Some(mut state) = self.state(vcpu) {
            self.look_at_time(&mut state, fd, left);
        }
    }

    fn now(&self) -> Option<u64> {
        (self.host.time == HostTime::MonotonicRaw).then(|| self.host.time.now())
    }

    fn publish(&self, vcpu: u32, fd: &VcpuFd, cause: Cause) {
        let Some(mut state) = self.state(vcpu) else { return };
        if self.host.time == HostTime::Tsc {
            return self.publish_exact(vcpu, &mut state, fd, cause);
        }
        state.comparison.want();
        match cause {
            _ if state.updater.current().is_none() => self.publish_first(vcpu, &mut state, fd, cause),
            Cause::Periodic if state.renewed => {}
            _ => self.publish_continued(vcpu, &mut state, cause),
        }
        state.renewed = false;
    }
}

/// How far the counter of `relation` runs while the trace clock runs `ticks`.
fn counter_ticks(relation: &Relation, ticks: u64) -> u64 {
    let scaled = (u128::from(ticks) << (relation.shift & 63)) / u128::from(relation.mult.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn model(host: &HostFacts) -> CounterModel {
    match host.time {
        HostTime::Tsc => CounterModel::TSC,
        HostTime::MonotonicRaw => CounterModel {
            rate: Rate::from_frequencies(host.guest_tsc_hz, host.frequency).unwrap_or(Rate::UNITY),
            drift_ppb: DRIFT_PPB,
            slew_ppb: SLEW_PPB,
            reading_lag: stay_ticks(host) * RATE_ERROR_PPB / 1_000_000_000,
            renew_after: stay_ticks(host),
            ..CounterModel::TSC
        },
    }
}

/// Counter ticks of the longest stay in the guest.
const fn stay_ticks(host: &HostFacts) -> u64 {
    host.guest_tsc_hz / (1_000_000_000 / MEASURED_INTERVAL_NS)
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
    fn counter_runs_as_far_as_its_relation_says() {
        let relation = Relation { hw_base: 0, trace_base: 0, mult: 1 << 31, shift: 32, hw_bits: 64 };

        let counter = counter_ticks(&relation, 1_000);

        assert_eq!((counter, relation.trace_time(counter)), (2_000, 1_000));
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
        // 20 µs.
        assert_eq!(model.reading_lag, 40_000);
    }
}
