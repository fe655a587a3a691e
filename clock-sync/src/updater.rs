//! The update side of the trace clock: what is published for one vCPU, when, and how wrong it can be.
//!
//! [`Updater`] is a state machine without clocks, memory or threads of its own. Its caller hands it what it has read of
//! the counter and of the trace clock, and publishes the [`Epoch`] it gets back in the vCPU's [`entry`](crate::entry).
//!
//! # What is known, and the bound that follows
//! An epoch's relation is a line: trace time as a function of the counter. The updater keeps an *envelope* beside it, the
//! interval in which the true trace clock minus that line lies. A [`Sample`] narrows the envelope to its own uncertainty;
//! every tick of the counter since then widens it by the drift that the counter may have. The epoch's bound is the end of
//! the envelope that is farther from the line: it needs no assumption beyond the [`CounterModel`]'s.
//!
//! # Why time never runs back
//! There are two kinds of update.
//! - [`Updater::renew`] continues the old line, or a faster one from a point of it. At every counter value from there on
//!   the new time is not below the old one, so it does not matter when the update becomes visible, or how long its
//!   writer or its reader is interrupted. The vCPU may run meanwhile.
//! - [`Updater::resynchronise`] may install any line that begins no earlier than the youngest time that anybody has
//!   *seen*. The vCPU must be out of the guest from that time on until the update is visible. A line that would have to
//!   begin earlier begins at what was seen, and is slowed down until the true clock has caught up.

use crate::counter::{BILLION, CounterModel, ModelError, Rate};
use crate::relation::Relation;

/// A vCPU's counter and the trace clock, read together.
///
/// ```
/// use clock_sync::updater::Sample;
///
/// // The trace clock was read before and after the counter.
/// let (before, counter, after) = (1_000, 77, 1_010);
/// let sample = Sample { counter, ticks: (before + after) / 2, uncertainty: (after - before) / 2 };
/// # assert_eq!(sample.uncertainty, 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The counter, ticks.
    pub counter: u64,
    /// The trace clock at that moment, ticks.
    pub ticks: u64,
    /// The true trace clock at that moment lies within this of `ticks`.
    pub uncertainty: u64,
}

/// Why a relation was published. The numbers are those that traces hold. Strata's own monitor has these: start,
/// periodic, a counter that was moved, resume. The others are for monitors that restore or migrate machines, that
/// notice the host's sleep, or whose counters change their speed or stand still.
///
/// ```
/// use clock_sync::updater::Cause;
///
/// assert_eq!((Cause::Resume as u8, Cause::Resume.name()), (5, "resume"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Cause {
    /// The first one.
    Start = 1,
    /// The counter will wrap, or the bound has grown.
    Periodic = 2,
    /// The counter changed its speed.
    FrequencyChange = 3,
    /// The counter was moved.
    OffsetChange = 4,
    /// The machine was paused and runs again.
    Resume = 5,
    /// The machine's state was restored from a snapshot.
    Restore = 6,
    /// The host was suspended and runs again.
    HostResume = 7,
    /// The vCPU runs on another host.
    Migration = 8,
    /// The counter stood still in a sleep state.
    WakeUp = 9,
}

impl Cause {
    /// Every cause, in the order of the numbers.
    pub const ALL: &'static [Self] = &[
        Self::Start,
        Self::Periodic,
        Self::FrequencyChange,
        Self::OffsetChange,
        Self::Resume,
        Self::Restore,
        Self::HostResume,
        Self::Migration,
        Self::WakeUp,
    ];

    /// The name used in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Periodic => "periodic",
            Self::FrequencyChange => "frequency_change",
            Self::OffsetChange => "offset_change",
            Self::Resume => "resume",
            Self::Restore => "restore",
            Self::HostResume => "host_resume",
            Self::Migration => "migration",
            Self::WakeUp => "wake_up",
        }
    }

    /// Whether the counter has run as its model says since the last update, so that what was known then still counts.
    #[must_use]
    const fn counter_ran_on(self) -> bool {
        matches!(self, Self::Periodic | Self::FrequencyChange | Self::Resume)
    }
}

/// The interval in which the true trace clock minus the published time lies, ticks, ends included.
///
/// ```
/// use clock_sync::updater::Envelope;
///
/// assert_eq!(Envelope { least: -40, most: 15 }.bound(), 40);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The true clock is at least this much ahead of the published time (behind it when negative).
    pub least: i64,
    /// The true clock is at most this much ahead of the published time.
    pub most: i64,
}

impl Envelope {
    fn new(least: i128, most: i128) -> Self {
        Self { least: saturate(least), most: saturate(most) }
    }

    /// Largest error, ticks.
    #[must_use]
    pub const fn bound(&self) -> u64 {
        let (least, most) = (self.least.unsigned_abs(), self.most.unsigned_abs());
        if least > most { least } else { most }
    }
}

/// A relation, the reason for it, and how wrong it can be while it holds. See [`Updater`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Epoch {
    /// Counts the vCPU's epochs from 1: the number of the clock entry's update.
    pub number: u64,
    /// Why it began.
    pub cause: Cause,
    /// What readers compute.
    pub relation: Relation,
    /// The envelope at the moment when the counter came to the base, late notice included.
    pub envelope: Envelope,
    /// The assumptions about the counter that the envelope rests on.
    pub model: CounterModel,
}

impl Epoch {
    /// The envelope of a time read at `counter`.
    #[must_use]
    pub fn envelope_at(&self, counter: u64) -> Envelope {
        self.read_after(self.model.distance(self.relation.hw_base, counter))
    }

    /// The envelope of a time read when the counter has come `distance` from the base. The reading may be late.
    fn read_after(&self, distance: i128) -> Envelope {
        let Envelope { least, most } = self.envelope_after(distance);
        Envelope::new(i128::from(least), i128::from(most) + self.model.lag_ticks())
    }

    /// The envelope at the moment when the counter comes to `distance` from the base.
    fn envelope_after(&self, distance: i128) -> Envelope {
        let reach = distance.abs();
        let (below, above) = (self.model.rate.ticks(reach), self.model.rate.ticks_up(reach));
        let drift = (above * i128::from(self.model.drift_ppb) + BILLION - 1) / BILLION;
        // What readers add to the base or take from it, whole ticks.
        let published = self.published().ticks(reach);
        let (least, most) =
            if distance < 0 { (published - above, published - below) } else { (below - published, above - published) };
        Envelope::new(i128::from(self.envelope.least) + least - drift, i128::from(self.envelope.most) + most + drift)
    }

    const fn published(&self) -> Rate {
        Rate { mult: self.relation.mult, shift: self.relation.shift }
    }

    /// Largest error of a time read at `counter`, trace ticks.
    #[must_use]
    pub fn bound_at(&self, counter: u64) -> u64 {
        self.envelope_at(counter).bound()
    }

    /// Largest error of any time read while the epoch holds, trace ticks: from its base until an update is due, and as
    /// long again, since that update may be late.
    #[must_use]
    pub fn bound(&self) -> u64 {
        let reach = i128::from(self.model.due_after()) * 2;
        // A slowed-down line is first ahead and then behind: either end of the epoch can be the worse.
        self.read_after(0).bound().max(self.read_after(reach).bound()).saturating_add(self.rounding())
    }

    /// By how many ticks a time can be worse than those at both ends of the epoch, since ticks are whole. True time, the
    /// published one and the drift are linear; each is rounded by less than a tick. Where the line has the counter's own
    /// rate, both are rounded alike, and the drift grows from one end to the other: one tick is left, or none.
    fn rounding(&self) -> u64 {
        match (self.published() == self.model.rate, self.model.rate.is_whole()) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => 3,
        }
    }
}

/// Why a relation could not be renewed.
///
/// ```
/// use clock_sync::counter::CounterModel;
/// use clock_sync::updater::{Cause, RenewError, Updater};
///
/// let mut updater = Updater::new(CounterModel::TSC)?;
/// assert_eq!(updater.renew(Cause::Periodic, 5), Err(RenewError::NotStarted));
/// # Ok::<(), clock_sync::counter::ModelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RenewError {
    /// Nothing has been published yet.
    NotStarted,
    /// The counter reads earlier than the epoch's base: it was moved, or has run for more than half a wrap.
    /// Resynchronise instead.
    Expired,
}

impl core::fmt::Display for RenewError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(match self {
            Self::NotStarted => "the clock has not been started",
            Self::Expired => "the counter has left the range of its relation: resynchronise it",
        })
    }
}

impl core::error::Error for RenewError {}

/// Decides what is published for one vCPU. See the module's documentation.
///
/// ```
/// use clock_sync::counter::CounterModel;
/// use clock_sync::updater::{Cause, Sample, Updater};
///
/// // Up to 100 ns wrong per millisecond, and measured to 30 ns at first.
/// let model = CounterModel { drift_ppb: 100_000, renew_after: 1_000_000, ..CounterModel::TSC };
/// let mut updater = Updater::new(model)?;
/// let start = updater.resynchronise(Cause::Start, None, Sample { counter: 0, ticks: 5_000, uncertainty: 30 }, None);
/// assert_eq!((start.number, start.relation.trace_time(700)), (1, 5_700));
/// assert_eq!((start.bound_at(0), start.bound_at(1_000_000)), (30, 130));
///
/// // A millisecond later the line is continued; its bound starts where the old one had come to.
/// let next = updater.renew(Cause::Periodic, 1_000_000)?;
/// assert_eq!((next.number, next.bound_at(1_000_000)), (2, 130));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Updater {
    model: CounterModel,
    current: Option<Epoch>,
    contradictions: u64,
}

impl Updater {
    /// An updater that has not published anything, of a counter that is as `model` says.
    ///
    /// # Errors
    /// When the counter's width is not supported, or its fastest rate is slower than its slowest.
    pub fn new(model: CounterModel) -> Result<Self, ModelError> {
        model.check()?;
        Ok(Self { model, current: None, contradictions: 0 })
    }

    /// The epoch that holds; `None` before the first.
    #[must_use]
    pub const fn current(&self) -> Option<&Epoch> {
        self.current.as_ref()
    }

    /// Samples that lay outside the envelope: the counter did not keep what its model promises. The sample was believed.
    #[must_use]
    pub const fn contradictions(&self) -> u64 {
        self.contradictions
    }

    /// Continues the line at `counter`, or lets it go faster where it was slowed down. The vCPU may run; call this at
    /// least twice per wrap and publish before half a wrap is over. `cause` is a reason that leaves the line as it was:
    /// [`Cause::Periodic`], or a pause through which the counter went on, or stood still and caught up.
    ///
    /// # Errors
    /// When there is nothing to continue, or the counter is not where the line holds.
    pub fn renew(&mut self, cause: Cause, counter: u64) -> Result<Epoch, RenewError> {
        let (old, time, envelope) = self.continued(counter)?;
        let wanted = self.slewed_rate(&envelope);
        let rate = if wanted.is_slower_than(old) { old } else { wanted };
        Ok(self.publish(cause, counter, time, envelope, rate))
    }

    /// The line at `counter`: its rate, its time there and its envelope.
    fn continued(&self, counter: u64) -> Result<(Rate, u64, Envelope), RenewError> {
        let old = self.current.ok_or(RenewError::NotStarted)?;
        let distance = self.model.distance(old.relation.hw_base, counter);
        if distance < 0 {
            return Err(RenewError::Expired);
        }
        // Rounded up: the new line must not be a fraction of a tick below the old one anywhere.
        let step = old.published().ticks_up(distance);
        let rounding = step - old.published().ticks(distance);
        let Envelope { least, most } = old.envelope_after(distance);
        let envelope = Envelope::new(i128::from(least) - rounding, i128::from(most) - rounding);
        Ok((old.published(), old.relation.trace_base.wrapping_add(low_bits(step)), envelope))
    }

    /// Begins a line from what was measured. From the moment when `seen` was the trace time until the update is visible,
    /// the vCPU does not run; `None` when it never ran. `rate` is the counter's from now on, if that changed.
    pub fn resynchronise(&mut self, cause: Cause, seen: Option<u64>, sample: Sample, rate: Option<Rate>) -> Epoch {
        let uncertainty = i128::from(sample.uncertainty);
        let measured = (-uncertainty - self.model.lag_ticks(), uncertainty);
        let (least, most) = match self.predict(cause, sample) {
            // Both are true: so is what they have in common.
            Some((least, most)) if least <= measured.1 && most >= measured.0 => {
                (least.max(measured.0), most.min(measured.1))
            }
            Some(_) => {
                self.contradictions += 1;
                measured
            }
            None => measured,
        };
        self.model.rate = rate.unwrap_or(self.model.rate);
        let middle = sample.ticks.wrapping_add(low_bits((least + most + self.model.lag_ticks()).div_euclid(2)));
        // Distances, not values, are compared: the trace clock is modulo 2^64.
        let seen = seen.filter(|&seen| signed_difference(seen, middle) > 0);
        let time = seen.unwrap_or(middle);
        let moved = signed_difference(time, sample.ticks);
        let late = self.model.late_ticks();
        let envelope = Envelope::new(least - moved - late, most - moved + late);
        let slewed = self.slewed_rate(&envelope);
        self.publish(cause, sample.counter, time, envelope, slewed)
    }

    /// Takes note of a change of speed to `rate` at `counter`, noticed late, where nothing but the counter itself can be
    /// read: the error adds up over such changes until the next [`resynchronise`](Self::resynchronise). The vCPU does
    /// not run meanwhile.
    ///
    /// # Errors
    /// As [`renew`](Self::renew).
    pub fn change_rate(&mut self, counter: u64, rate: Rate) -> Result<Epoch, RenewError> {
        let (_, time, Envelope { least, most }) = self.continued(counter)?;
        self.model.rate = rate;
        let late = self.model.late_ticks();
        let envelope = Envelope::new(i128::from(least) - late, i128::from(most) + late);
        let slewed = self.slewed_rate(&envelope);
        Ok(self.publish(Cause::FrequencyChange, counter, time, envelope, slewed))
    }

    /// Where the true clock lies at `sample`, relative to its ticks, by what was known before.
    fn predict(&self, cause: Cause, sample: Sample) -> Option<(i128, i128)> {
        let old = self.current.as_ref().filter(|_| cause.counter_ran_on())?;
        let distance = self.model.distance(old.relation.hw_base, sample.counter);
        // By the sample's own clock the counter may have come around: then its distance says nothing.
        let elapsed = signed_difference(sample.ticks, old.relation.trace_base);
        let half_wrap = self.model.rate.ticks(1 << (self.model.hw_bits - 1));
        let slack = i128::from(sample.uncertainty) + i128::from(old.envelope.bound());
        if distance < 0 || (self.model.hw_bits < 64 && elapsed + slack >= half_wrap) {
            return None;
        }
        let envelope = old.envelope_after(distance);
        let line = signed_difference(old.relation.trace_time(sample.counter), sample.ticks);
        Some((line + i128::from(envelope.least), line + i128::from(envelope.most)))
    }

    /// Makes the line through `time` at `counter` the current one.
    fn publish(&mut self, cause: Cause, counter: u64, time: u64, envelope: Envelope, rate: Rate) -> Epoch {
        let number = self.current.map_or(1, |epoch| epoch.number + 1);
        let Rate { mult, shift } = rate;
        let relation = Relation { hw_base: counter, trace_base: time, mult, shift, hw_bits: self.model.hw_bits };
        let epoch = Epoch { number, cause, relation, envelope, model: self.model };
        self.current = Some(epoch);
        epoch
    }

    /// The nominal rate, slowed down so far that a line ahead of the envelope's middle meets it when an update is due.
    fn slewed_rate(&self, envelope: &Envelope) -> Rate {
        let rate = self.model.rate;
        let ahead = -(i128::from(envelope.least) + i128::from(envelope.most) + self.model.lag_ticks()) / 2;
        let horizon = rate.ticks(i128::from(self.model.due_after())).max(1);
        let wanted = (ahead * BILLION / horizon).clamp(0, i128::from(self.model.slew_ppb));
        if wanted == 0 {
            return rate;
        }
        // A rate without a fraction cannot be slowed down: give it one.
        let fraction = if rate.shift < 32 { (32 - rate.shift).min(rate.mult.leading_zeros()) } else { 0 };
        let (mult, shift) = (rate.mult << fraction, rate.shift + fraction);
        let less = i128::from(mult) * wanted / BILLION;
        Rate { mult: mult - u64::try_from(less).unwrap_or(0), shift }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "trace time is modulo 2^64")]
const fn low_bits(ticks: i128) -> u64 {
    ticks as u64
}

/// `time` minus `earlier`, ticks: the trace clock is modulo 2^64.
const fn signed_difference(time: u64, earlier: u64) -> i128 {
    time.wrapping_sub(earlier) as i64 as i128
}

fn saturate(ticks: i128) -> i64 {
    i64::try_from(ticks).unwrap_or(if ticks < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::LateNotice;
    use proptest::prelude::*;

    /// 32 bits, 1 GHz beside a trace clock of 1 GHz, 100 parts in a million of drift.
    const NARROW: CounterModel = CounterModel {
        hw_bits: 32,
        rate: Rate { mult: 1 << 32, shift: 32 },
        drift_ppb: 100_000,
        slew_ppb: 1_000_000,
        late_notice: None,
        reading_lag: 0,
        renew_after: 1_000_000,
    };

    fn sample(counter: u64, ticks: u64, uncertainty: u64) -> Sample {
        Sample { counter, ticks, uncertainty }
    }

    #[test]
    fn tsc_offset_is_exact_for_ever() {
        let mut updater = Updater::new(CounterModel::TSC).unwrap();

        let epoch = updater.resynchronise(Cause::Start, None, sample(500, 1_000, 0), None);

        assert_eq!((epoch.number, epoch.bound(), epoch.relation.trace_time(700)), (1, 0, 1_200));
        assert_eq!(epoch.bound_at(1 << 59), 0);
    }

    #[test]
    fn bound_grows_by_the_drift_alone() {
        let mut updater = Updater::new(NARROW).unwrap();

        let epoch = updater.resynchronise(Cause::Start, None, sample(0, 5_000, 30), None);

        assert_eq!((epoch.bound_at(0), epoch.bound_at(1_000_000)), (30, 130));
        assert_eq!(epoch.bound(), 230);
    }

    #[test]
    fn sample_narrows_what_was_known_and_is_narrowed_by_it() {
        let mut updater = Updater::new(NARROW).unwrap();
        updater.resynchronise(Cause::Start, None, sample(0, 5_000, 30), None);

        // The line and its drift allow 1 005 000 ± 130, the sample 1 005 100 ± 50.
        let epoch = updater.resynchronise(Cause::Periodic, None, sample(1_000_000, 1_005_100, 50), None);

        assert_eq!((epoch.relation.trace_base, epoch.envelope), (1_005_090, Envelope { least: -40, most: 40 }));
        assert_eq!(updater.contradictions(), 0);
    }

    #[test]
    fn sample_outside_the_envelope_is_believed_and_counted() {
        let mut updater = Updater::new(NARROW).unwrap();
        updater.resynchronise(Cause::Start, None, sample(0, 5_000, 0), None);

        let epoch = updater.resynchronise(Cause::Periodic, None, sample(1_000_000, 1_100_000, 50), None);

        assert_eq!((epoch.relation.trace_base, epoch.envelope.bound(), updater.contradictions()), (1_100_000, 50, 1));
    }

    #[test]
    fn time_that_was_seen_is_kept_and_the_clock_slowed_until_the_true_one_has_caught_up() {
        let mut updater = Updater::new(NARROW).unwrap();
        updater.resynchronise(Cause::Start, None, sample(0, 5_000, 0), None);

        let epoch = updater.resynchronise(Cause::OffsetChange, Some(6_500), sample(77, 6_000, 0), None);

        assert_eq!((epoch.relation.trace_base, epoch.envelope), (6_500, Envelope { least: -500, most: -500 }));
        // Half a thousandth slower for a million ticks.
        assert_eq!(epoch.relation.trace_time(1_000_077), 1_006_000);
        assert_eq!(epoch.bound_at(1_000_077), 100);
    }

    #[test]
    fn renewing_ends_a_slow_down_that_has_done_its_work() {
        let mut updater = Updater::new(NARROW).unwrap();
        updater.resynchronise(Cause::Start, Some(1_500), sample(0, 1_000, 0), None);

        let epoch = updater.renew(Cause::Periodic, 1_000_000).unwrap();

        // One tick of rounding is left, to be worked off over the next million.
        assert_eq!((epoch.relation.trace_base, (1 << 32) - epoch.relation.mult), (1_001_001, 4_294));
    }

    #[test]
    fn counter_that_may_have_come_around_is_known_from_the_sample_alone() {
        let mut updater = Updater::new(NARROW).unwrap();
        updater.resynchronise(Cause::Start, None, sample(0, 0, 0), None);

        let epoch = updater.resynchronise(Cause::Periodic, None, sample(10, (1 << 32) + 10, 7), None);

        assert_eq!((epoch.envelope.bound(), updater.contradictions()), (7, 0));
        assert_eq!(updater.renew(Cause::Periodic, 5), Err(RenewError::Expired));
    }

    #[test]
    fn speed_changes_noticed_late_add_up_until_a_sample() {
        let (slow, fast) = (Rate::UNITY, Rate { mult: 1, shift: 1 });
        let late = LateNotice { cycles: 5_000, fastest: fast, slowest: slow };
        let model = CounterModel { late_notice: Some(late), rate: slow, ..CounterModel::TSC };
        let mut updater = Updater::new(model).unwrap();

        let start = updater.resynchronise(Cause::Start, None, sample(0, 0, 0), None).bound_at(0);
        let once = updater.change_rate(10_000, fast).unwrap().bound_at(10_000);
        let twice = updater.change_rate(20_000, slow).unwrap().bound_at(20_000);
        let measured = updater.resynchronise(Cause::Periodic, None, sample(30_000, 25_000, 0), None).bound_at(30_000);

        assert_eq!((start, once, twice, measured), (2_500, 5_000, 7_500, 2_500));
    }

    #[test]
    fn models_that_the_arithmetic_cannot_follow_are_refused() {
        let speeds = LateNotice { cycles: 5_000, fastest: Rate::UNITY, slowest: Rate { mult: 1, shift: 1 } };
        let refused = |model: CounterModel| Updater::new(model).unwrap_err();

        assert_eq!(refused(CounterModel { hw_bits: 0, ..NARROW }), ModelError::Width(0));
        assert_eq!(refused(CounterModel { slew_ppb: 1_000_000_000, ..NARROW }), ModelError::Slew(1_000_000_000));
        assert_eq!(refused(CounterModel { reading_lag: 1 << 62, ..NARROW }), ModelError::Lag(1 << 62));
        assert_eq!(refused(CounterModel { late_notice: Some(speeds), ..NARROW }), ModelError::Speeds);
    }

    proptest! {
        #[test]
        fn no_time_of_an_epoch_is_worse_than_its_bound(
            mult in 1_u64..1 << 34, shift in 0_u32..36, drift_ppb in 0_u32..1_000_000, ahead in 0_u64..2_000,
            uncertainty in 0_u64..100, due in 1_u64..1_000, lag in 0_u64..3,
        ) {
            let rate = Rate { mult, shift };
            let model = CounterModel { rate, drift_ppb, renew_after: due, reading_lag: lag, ..NARROW };
            let mut updater = Updater::new(model).unwrap();
            let seen = (ahead > 0).then_some((1 << 40) + ahead);
            let epoch = updater.resynchronise(Cause::Start, seen, sample(7, 1 << 40, uncertainty), None);
            let worst = (7..=7 + 2 * due).map(|counter| epoch.bound_at(counter)).max().unwrap();
            prop_assert!(worst <= epoch.bound(), "{} > {}: {:?}", worst, epoch.bound(), epoch);
            prop_assert!(worst + 3 >= epoch.bound(), "{} << {}: {:?}", worst, epoch.bound(), epoch);
        }

        #[test]
        fn renewed_line_is_nowhere_below_the_old_one(
            mult in 1_u64..1 << 40, shift in 0_u32..40, at in 0_u64..1 << 22, later in 0_u64..1 << 22,
        ) {
            let mut updater = Updater::new(CounterModel { rate: Rate { mult, shift }, hw_bits: 24, ..NARROW }).unwrap();
            let old = updater.resynchronise(Cause::Start, None, sample(0, 1 << 50, 0), None);
            let new = updater.renew(Cause::Periodic, at).unwrap();
            let counter = (at + later) & 0xff_ffff;
            let (was, is) = (old.relation.trace_time(counter), new.relation.trace_time(counter));
            prop_assert!(is >= was && is - was <= 1, "{was} {is}");
        }
    }
}
