//! The clock entries of a machine's vCPUs while it runs: measured and published by each vCPU's own thread, when it is
//! out of the guest. Every update is an epoch with its own bound. It is handed to the machine's [`EpochSink`], and kept
//! for the recording's list of epochs.
//!
//! On a host whose trace clock is the TSC, a vCPU's counter is the host's plus the offset that KVM has for it: read
//! from KVM each time, and so exact. Where the host's TSCs cannot be relied upon, KVM moves the guest's TSC whenever
//! the vCPU is put on a CPU, and lets it catch up with the host's monotonic clock when the guest is entered. There the
//! counter is compared with `CLOCK_MONOTONIC_RAW` again and again, as it is in the guest (see [`CounterComparison`]),
//! and an epoch's bound is what is assumed of the counter, or what a comparison showed if that is more.

use super::counter_comparison::{Conclusion, CounterComparison, CounterReading};
use super::guest_tsc;
use super::host_time::HostTime;
use clock_sync::calibration::ticks_to_ns;
use clock_sync::counter::{CounterModel, Rate};
use clock_sync::relation::Relation;
use clock_sync::tsc;
use clock_sync::updater::{Cause, Epoch, Sample, Updater};
use kvm_ioctls::VcpuFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use strata_recording::clock::ClockEpoch;

/// How often clocks are renewed where they are measured, nanoseconds.
const MEASURED_INTERVAL_NS: u64 = 100_000_000;
/// How often KVM's offsets are read again where they are exact, nanoseconds.
const EXACT_INTERVAL_NS: u64 = 1_000_000_000;
/// How wrong the rate of the host's TSC may be, parts in a billion. A counter that catches up whenever the guest is
/// entered is late by no more than what it loses in one stay, and a stay ends when the clock is renewed.
const RATE_ERROR_PPB: u64 = 200_000;
/// What the line that the counter catches up with may drift against the host's clock, parts in a billion: both are the
/// same clock, and the rest is rounding.
const DRIFT_PPB: u32 = 10_000;
/// How much the guest's clock is slowed down when it is ahead, parts in a billion.
const SLEW_PPB: u32 = 1_000_000;
/// The first reading is the narrowest of so many.
const FIRST_READINGS: u32 = 16;
/// Most epochs that are kept: when there are as many, successive ones are put together, periodic ones first. Their numbers
/// tell how many there were.
const MAX_EPOCHS: usize = 4096;

/// What a machine's clocks begin with.
#[derive(Clone, Debug)]
pub struct ClockParameters {
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

impl ClockParameters {
    /// How many ticks of the trace clock a tick of the guest's counter is.
    fn rate(&self) -> Rate {
        Rate::from_frequencies(self.guest_tsc_hz, self.frequency).unwrap_or(Rate::UNITY)
    }
}

/// Takes each new epoch of a vCPU's clock, with the bound of its times in nanoseconds; called on the vCPU's thread, out
/// of the guest. It publishes the relation to the guest before it returns: the vCPU enters the guest afterwards.
pub type EpochSink = Box<dyn Fn(u32, &Epoch, u64) + Send + Sync>;

/// The clocks of one machine's vCPUs.
///
/// Every method with a vCPU's descriptor is called on that vCPU's thread while it is out of the guest.
pub struct VcpuClocks {
    vm: String,
    parameters: ClockParameters,
    sink: EpochSink,
    vcpus: Vec<Mutex<VcpuClock>>,
    epochs: Mutex<Vec<ClockEpoch>>,
    /// The largest jump ahead of a counter that was seen, ns. See [`Conclusion::Jump`].
    largest_jump: AtomicU64,
}

struct VcpuClock {
    updater: Updater,
    /// Offset of the last epoch, ticks.
    offset: Option<i64>,
    /// When it was seen last, trace clock.
    seen: u64,
    comparison: CounterComparison,
    /// Whether an epoch has begun since the last periodic renewal.
    renewed: bool,
}

impl VcpuClocks {
    /// Clocks for the `vcpus` vCPUs of `vm`, none of them published yet; `sink` gets every epoch.
    #[must_use]
    pub fn new(vm: &str, vcpus: u32, parameters: ClockParameters, sink: EpochSink) -> Self {
        let model = model(&parameters);
        #[allow(clippy::expect_used, reason = "an invariant")]
        let updater = Updater::new(model).expect("64 bits, a constant slew, a lag of some milliseconds");
        let state = || {
            let comparison = CounterComparison::new();
            Mutex::new(VcpuClock { updater: updater.clone(), offset: None, seen: 0, comparison, renewed: false })
        };
        let vcpus = (0..vcpus).map(|_| state()).collect();
        let (epochs, largest_jump) = (Mutex::new(Vec::new()), AtomicU64::new(0));
        Self { vm: vm.into(), parameters, sink, vcpus, epochs, largest_jump }
    }

    /// What the trace clock counts.
    #[must_use]
    pub const fn time(&self) -> HostTime {
        self.parameters.time
    }

    /// How often the clocks are to be renewed, ns.
    #[must_use]
    pub const fn interval_ns(&self) -> u64 {
        match self.parameters.time {
            HostTime::Tsc => EXACT_INTERVAL_NS,
            HostTime::MonotonicRaw => MEASURED_INTERVAL_NS,
        }
    }

    /// The epochs so far, in the order in which they began. Jumps of a counter are seen by chance, so the largest one
    /// that was seen counts for all of them.
    #[must_use]
    pub fn epochs(&self) -> Vec<ClockEpoch> {
        let mut epochs = self.known().clone();
        let jump = self.largest_jump.load(Ordering::Relaxed);
        epochs.iter_mut().for_each(|epoch| epoch.bound_ns = epoch.bound_ns.max(jump));
        epochs
    }

    /// vCPU `vcpu` is about to enter the guest. `Some` if it is to be taken out again after that time, so that its
    /// counter can be compared: [`interrupted`](Self::interrupted) is called then.
    pub fn entering(&self, vcpu: u32, fd: &VcpuFd) -> Option<Duration> {
        if self.parameters.time == HostTime::Tsc {
            return None;
        }
        self.state(vcpu)?.comparison.entering(|| self.read_counter(fd))
    }

    /// The vCPU was taken out of the guest, or was interrupted before it came there.
    pub fn interrupted(&self, vcpu: u32, fd: &VcpuFd) {
        if self.parameters.time == HostTime::Tsc {
            return;
        }
        let Some(mut state) = self.state(vcpu) else { return };
        let rate = self.parameters.rate();
        let ticks = |counter: u64| rate.ticks_of(counter);
        if let Some(sample) = state.comparison.interrupted(|| self.read_counter(fd), ticks) {
            self.publish_compared(vcpu, &mut state, sample);
        }
    }

    /// The trace clock, ticks, if [`exited`](Self::exited) is to be called.
    #[must_use]
    pub fn exit_time(&self) -> Option<u64> {
        (self.parameters.time == HostTime::MonotonicRaw).then(|| self.parameters.time.now())
    }

    /// The vCPU left the guest by itself before the trace clock was `left`, and has not entered it again: its own time
    /// must not be later.
    pub fn exited(&self, vcpu: u32, fd: &VcpuFd, left: u64) {
        let Some(mut state) = self.state(vcpu) else { return };
        let Some(old) = state.updater.current().copied() else { return };
        let Some(reading) = self.read_counter(fd) else { return };
        let shown = old.relation.trace_time(reading.counter);
        let ahead = state.comparison.ahead(&reading, shown, left);
        if let Some(ahead) = ahead.filter(|&ahead| ahead > old.bound_at(reading.counter)) {
            self.jumped(self.to_ns(ahead));
            state.comparison.want();
        }
    }

    /// The vCPU's relation may have changed for `cause`, or some time is over: begins an epoch if need be.
    pub fn publish(&self, vcpu: u32, fd: &VcpuFd, cause: Cause) {
        let Some(mut state) = self.state(vcpu) else { return };
        if self.parameters.time == HostTime::Tsc {
            let Some(offset) = self.offset(fd) else { return };
            let derivation = if self.parameters.offset_honoured {
                format!("KVM's offset of {offset} ticks, read when the epoch began, is exact")
            } else {
                "guest and host read the same counter".to_owned()
            };
            return self.publish_exact(vcpu, &mut state, offset, cause, derivation);
        }
        state.comparison.want();
        match cause {
            _ if state.updater.current().is_none() => self.publish_first(vcpu, &mut state, fd, cause),
            Cause::Periodic if state.renewed => {}
            _ => self.publish_continued(vcpu, &mut state, cause),
        }
        state.renewed = false;
    }

    /// A counter was seen ahead of its line by `observed` nanoseconds.
    fn jumped(&self, observed: u64) {
        self.largest_jump.fetch_max(observed.saturating_add(self.parameters.bound_ns), Ordering::Relaxed);
    }

    fn known(&self) -> MutexGuard<'_, Vec<ClockEpoch>> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self, vcpu: u32) -> Option<MutexGuard<'_, VcpuClock>> {
        Some(self.vcpus.get(vcpu as usize)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The offset that KVM has for the vCPU's counter now, as far as it matters.
    fn offset(&self, fd: &VcpuFd) -> Option<i64> {
        if self.parameters.offset_honoured { guest_tsc::read_offset(fd).ok() } else { Some(0) }
    }

    /// The offset of the vCPU's counter is `offset` ticks, as it was seen from outside of the process that runs it.
    /// Nothing follows from it on a host that has given up its TSC: KVM moves the offset there whenever it likes.
    pub fn observe_offset(&self, vcpu: u32, offset: i64) {
        if self.parameters.time != HostTime::Tsc {
            return;
        }
        let Some(mut state) = self.state(vcpu) else { return };
        let cause = if state.offset.is_none() { Cause::Start } else { Cause::Periodic };
        let interval = Duration::from_nanos(self.interval_ns()).as_secs();
        let derivation = format!(
            "KVM's offset of {offset} ticks, seen in its debugfs when the epoch began; it can have changed {interval} s \
             earlier. Nothing but times of the guest's own layers depends on it"
        );
        self.publish_exact(vcpu, &mut state, offset, cause, derivation);
    }

    fn publish_exact(&self, vcpu: u32, state: &mut VcpuClock, offset: i64, cause: Cause, derivation: String) {
        let now = self.parameters.time.now();
        let before = std::mem::replace(&mut state.seen, now);
        let cause = match (cause, state.offset) {
            (Cause::Periodic, Some(known)) if known == offset => return,
            (Cause::Periodic | Cause::Resume, Some(known)) if known != offset => {
                self.doubt(vcpu, before, known.abs_diff(offset));
                Cause::OffsetChange
            }
            (cause, _) => cause,
        };
        let sample = Sample { counter: now.wrapping_add_signed(offset), ticks: now, uncertainty: 0 };
        // What the guest stamped since it moved its counter is of the old relation, and may be after now.
        let epoch = state.updater.resynchronise(cause, None, sample, None);
        state.offset = Some(offset);
        self.announce(vcpu, &epoch, self.parameters.bound_ns, derivation);
    }

    /// At some moment since `before` (trace clock) the guest has moved the counter of the vCPU by `moved` ticks.
    fn doubt(&self, vcpu: u32, before: u64, moved: u64) {
        let mut epochs = self.known();
        let Some(last) = epochs.iter().rev().find(|epoch| epoch.vcpu == vcpu) else { return };
        let doubted = ClockEpoch {
            cause: Cause::Periodic.name().into(),
            from_ticks: before.max(last.from_ticks),
            bound_ns: last.bound_ns.saturating_add(self.to_ns(moved)),
            derivation: format!(
                "the guest moved its counter by {moved} ticks before the next epoch; it is not known when"
            ),
            ..last.clone()
        };
        epochs.push(doubted);
    }

    /// The first line, before the vCPU has run: its counter will go on from the offset that it got.
    fn publish_first(&self, vcpu: u32, state: &mut VcpuClock, fd: &VcpuFd, cause: Cause) {
        let read = || match self.parameters.first_offsets.get(vcpu as usize) {
            Some(&offset) => Some(self.bracketed(|| tsc::read_ordered().wrapping_add_signed(offset))),
            None => self.read_counter(fd),
        };
        let readings = (0..FIRST_READINGS).filter_map(|_| read());
        let Some(CounterReading { before, counter, after }) =
            readings.min_by_key(|reading| reading.after - reading.before)
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
    fn publish_continued(&self, vcpu: u32, state: &mut VcpuClock, cause: Cause) {
        let Some(old) = state.updater.current().map(|epoch| epoch.relation) else { return };
        let elapsed = self.parameters.time.now().saturating_sub(old.trace_base);
        let counter = old.hw_base.wrapping_add(counter_ticks(&old, elapsed));
        if let Ok(epoch) = state.updater.renew(cause, counter) {
            self.announce_measured(vcpu, &epoch, "before this epoch");
        }
    }

    /// A comparison has come about.
    fn publish_compared(&self, vcpu: u32, state: &mut VcpuClock, sample: Sample) {
        let Some(old) = state.updater.current().copied() else { return };
        let shown = old.relation.trace_time(sample.counter);
        let observed = self.to_ns(shown.abs_diff(sample.ticks).saturating_add(sample.uncertainty));
        match state.comparison.conclusion(&sample, shown, old.bound_at(sample.counter)) {
            Conclusion::Nothing => {}
            Conclusion::Jump => {
                self.jumped(observed);
                self.publish_continued(vcpu, state, Cause::Periodic);
                state.renewed = true;
            }
            Conclusion::Line { contradicts } => {
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

    fn announce_measured(&self, vcpu: u32, epoch: &Epoch, how: &str) {
        let bound = self.to_ns(epoch.bound()).saturating_add(self.parameters.bound_ns);
        let derivation = format!(
            "the guest's TSC compared with {} {how}, {} ppm of a stay in the guest, {} ppm of drift, and what \
             comparisons and exits showed",
            self.parameters.time.trace_clock(),
            RATE_ERROR_PPB / 1000,
            DRIFT_PPB / 1000
        );
        self.announce(vcpu, epoch, bound, derivation);
    }

    fn bracketed<C>(&self, read: impl FnOnce() -> C) -> CounterReading<C> {
        let before = self.parameters.time.now();
        let counter = read();
        CounterReading { before, counter, after: self.parameters.time.now() }
    }

    fn read_counter(&self, fd: &VcpuFd) -> Option<CounterReading> {
        let CounterReading { before, counter, after } = self.bracketed(|| guest_tsc::read_counter(fd));
        Some(CounterReading { before, counter: counter.ok()?, after })
    }

    fn to_ns(&self, ticks: u64) -> u64 {
        ticks_to_ns(ticks, self.parameters.frequency)
    }

    /// The vCPU's last epoch turned out to be wrong by `observed` nanoseconds at its end.
    fn raise_bound(&self, vcpu: u32, observed: u64) {
        let bound = observed.saturating_add(self.parameters.bound_ns);
        if let Some(epoch) = self.known().iter_mut().rev().find(|epoch| epoch.vcpu == vcpu) {
            epoch.bound_ns = epoch.bound_ns.max(bound);
        }
    }

    fn announce(&self, vcpu: u32, epoch: &Epoch, bound_ns: u64, derivation: String) {
        (self.sink)(vcpu, epoch, bound_ns);
        let mut epochs = self.known();
        if epochs.len() >= MAX_EPOCHS {
            fold(&mut epochs);
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

/// How far the counter of `relation` runs while the trace clock runs `ticks`.
fn counter_ticks(relation: &Relation, ticks: u64) -> u64 {
    let scaled = (u128::from(ticks) << (relation.shift & 63)) / u128::from(relation.mult.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn model(parameters: &ClockParameters) -> CounterModel {
    match parameters.time {
        HostTime::Tsc => CounterModel::TSC,
        HostTime::MonotonicRaw => CounterModel {
            rate: parameters.rate(),
            drift_ppb: DRIFT_PPB,
            slew_ppb: SLEW_PPB,
            reading_lag: stay_ticks(parameters) * RATE_ERROR_PPB / 1_000_000_000,
            renew_after: stay_ticks(parameters),
            ..CounterModel::TSC
        },
    }
}

/// Counter ticks of the longest stay in the guest.
const fn stay_ticks(parameters: &ClockParameters) -> u64 {
    parameters.guest_tsc_hz / (1_000_000_000 / MEASURED_INTERVAL_NS)
}

/// Makes room among `epochs`: a quarter at least.
fn fold(epochs: &mut Vec<ClockEpoch>) {
    let periodic = Cause::Periodic.name();
    let enough = epochs.len() / 4 * 3;
    thin(epochs, |epoch| epoch.cause == periodic);
    // A guest causes others, by writing its TSC for instance, and each is not a reason to keep more.
    let mut before = usize::MAX;
    while epochs.len() > enough && epochs.len() < before {
        before = epochs.len();
        thin(epochs, |_| true);
    }
}

/// Puts each two successive epochs of a vCPU together whose second one `may_go`; the bound is the worse of the two.
fn thin(epochs: &mut Vec<ClockEpoch>, may_go: impl Fn(&ClockEpoch) -> bool) {
    let mut kept: Vec<ClockEpoch> = Vec::with_capacity(epochs.len());
    let mut merged = std::collections::BTreeMap::new();
    for epoch in epochs.drain(..) {
        let last = kept.iter_mut().rev().find(|last| last.vcpu == epoch.vcpu);
        let once = merged.get(&epoch.vcpu).copied().unwrap_or(false);
        match last {
            Some(last) if may_go(&epoch) && !once => {
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

        thin(&mut epochs, |epoch| epoch.cause == Cause::Periodic.name());

        let left: Vec<_> = epochs.iter().map(|epoch| (epoch.vcpu, epoch.number, epoch.bound_ns)).collect();
        assert_eq!(left, [(0, 1, 9), (1, 1, 5), (0, 3, 4), (0, 4, 3)]);
    }

    #[test]
    fn epochs_that_a_guest_causes_are_put_together_too() {
        let number = MAX_EPOCHS as u64;
        let mut epochs: Vec<_> = (1..=number).map(|number| epoch(0, number, Cause::Resume, number)).collect();

        fold(&mut epochs);

        assert_eq!(epochs.len(), MAX_EPOCHS / 2);
        assert_eq!((epochs[0].number, epochs[0].bound_ns), (1, 2));
        assert_eq!(epochs.iter().map(|epoch| epoch.bound_ns).max(), Some(number));
    }

    #[test]
    fn offset_that_is_seen_to_change_begins_an_epoch_and_one_that_stays_does_not() {
        let parameters = ClockParameters {
            time: HostTime::Tsc,
            frequency: 1_000_000_000,
            bound_ns: 50,
            guest_tsc_hz: 1_000_000_000,
            first_offsets: Vec::new(),
            offset_honoured: true,
        };
        let clocks =
            |time| VcpuClocks::new("vm0", 1, ClockParameters { time, ..parameters.clone() }, Box::new(|_, _, _| ()));
        let (exact, given_up) = (clocks(HostTime::Tsc), clocks(HostTime::MonotonicRaw));

        for clocks in [&exact, &given_up] {
            [-7, -7, -7, 9, 9].into_iter().for_each(|offset| clocks.observe_offset(0, offset));
            clocks.observe_offset(1, 0);
        }

        let causes: Vec<_> = exact.epochs().into_iter().map(|epoch| (epoch.vcpu, epoch.cause)).collect();
        let expected = [Cause::Start, Cause::Periodic, Cause::OffsetChange].map(|cause| (0, cause.name().into()));
        assert_eq!(causes, expected);
        let [start, doubted, changed] = &*exact.epochs() else { panic!() };
        assert!(changed.derivation.contains("offset of 9 ticks"));
        assert_eq!([start, doubted, changed].map(|epoch| epoch.bound_ns), [50, 66, 50]);
        assert!(start.from_ticks < doubted.from_ticks && doubted.from_ticks < changed.from_ticks);
        assert!(given_up.epochs().is_empty());
    }

    #[test]
    fn counter_runs_as_far_as_its_relation_says() {
        let relation = Relation { hw_base: 0, trace_base: 0, mult: 1 << 31, shift: 32, hw_bits: 64 };

        let counter = counter_ticks(&relation, 1_000);

        assert_eq!((counter, relation.trace_time(counter)), (2_000, 1_000));
    }

    #[test]
    fn guest_tsc_beside_the_monotonic_clock_is_renewed_ten_times_a_second() {
        let parameters = ClockParameters {
            time: HostTime::MonotonicRaw,
            frequency: 1_000_000_000,
            bound_ns: 50,
            guest_tsc_hz: 2_000_000_000,
            first_offsets: Vec::new(),
            offset_honoured: true,
        };

        let model = model(&parameters);

        assert_eq!((model.due_after(), model.rate), (200_000_000, Rate::new(1 << 31, 32).unwrap()));
        // 20 µs.
        assert_eq!(model.reading_lag, 40_000);
    }
}
