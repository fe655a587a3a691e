//! A vCPU's counter: how fast it makes the trace clock run, and what is assumed of it.

use crate::relation::COUNTER_WIDTHS;

/// Parts in a billion.
pub(crate) const BILLION: i128 = 1_000_000_000;

/// How fast a counter makes the trace clock run: `mult / 2^shift` trace ticks per counter tick.
///
/// ```
/// use clock_sync::counter::Rate;
///
/// // A counter of 2 GHz against a trace clock that counts nanoseconds.
/// let rate = Rate::from_frequencies(2_000_000_000, 1_000_000_000)?;
/// assert_eq!(rate.ticks_of(10), 5);
/// assert_eq!(rate, Rate::new(1 << 31, 32)?);
/// # Ok::<(), clock_sync::counter::RateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Not 0.
    pub(crate) mult: u64,
    /// Below 64.
    pub(crate) shift: u32,
}

/// Why there is no such rate.
///
/// ```
/// use clock_sync::counter::{Rate, RateError};
///
/// assert_eq!(Rate::new(0, 32), Err(RateError::Zero));
/// assert_eq!(Rate::new(1, 64), Err(RateError::Shift(64)));
/// assert_eq!(Rate::from_frequencies(1, 1 << 40), Err(RateError::Range));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateError {
    /// The multiplier, or a frequency, is 0.
    Zero,
    /// This shift is not below 64.
    Shift(u32),
    /// One trace tick is 2^32 counter ticks or more, or one counter tick is 2^32 trace ticks or more.
    Range,
}

impl core::fmt::Display for RateError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Zero => {
                formatter.write_str("a clock of rate 0 stands still: multiplier and frequencies must not be 0")
            }
            Self::Shift(shift) => write!(formatter, "a shift of {shift} is too large: it must be below 64"),
            Self::Range => formatter.write_str("the two frequencies are a factor of 2^32 or more apart"),
        }
    }
}

impl core::error::Error for RateError {}

impl Rate {
    /// The counter and the trace clock have the same rate.
    pub const UNITY: Self = Self { mult: 1, shift: 0 };

    /// `mult / 2^shift` trace ticks per counter tick.
    ///
    /// # Errors
    /// When `mult` is 0 or `shift` is not below 64.
    pub const fn new(mult: u64, shift: u32) -> Result<Self, RateError> {
        match (mult, shift) {
            (0, _) => Err(RateError::Zero),
            (_, 64..) => Err(RateError::Shift(shift)),
            (mult, shift) => Ok(Self { mult, shift }),
        }
    }

    /// The rate of a counter of `counter_hz` against a trace clock of `trace_hz`, rounded to 2^-32.
    ///
    /// # Errors
    /// When a frequency is 0, or the frequencies are a factor of 2^32 or more apart.
    pub fn from_frequencies(counter_hz: u64, trace_hz: u64) -> Result<Self, RateError> {
        if counter_hz == 0 || trace_hz == 0 {
            return Err(RateError::Zero);
        }
        if counter_hz == trace_hz {
            return Ok(Self::UNITY);
        }
        // 32 bits of fraction leave room for ratios below 2^32 and are exact to 0.12 parts in a billion at ratio 1.
        let mult = ((u128::from(trace_hz) << 32) + u128::from(counter_hz) / 2) / u128::from(counter_hz);
        let mult = u64::try_from(mult).ok().filter(|&mult| mult > 0).ok_or(RateError::Range)?;
        Ok(Self { mult, shift: 32 })
    }

    /// Trace ticks per counter tick, times 2^[`shift`](Self::shift). Not 0.
    #[must_use]
    pub const fn mult(self) -> u64 {
        self.mult
    }

    /// What [`mult`](Self::mult) is shifted by. Below 64.
    #[must_use]
    pub const fn shift(self) -> u32 {
        self.shift
    }

    pub(crate) const fn is_slower_than(self, other: Self) -> bool {
        ((self.mult as u128) << (other.shift & 63)) < ((other.mult as u128) << (self.shift & 63))
    }

    /// Whether a counter tick takes whole trace ticks.
    pub(crate) const fn is_whole(self) -> bool {
        self.mult.trailing_zeros() >= self.shift
    }

    /// Trace ticks that `counter_ticks` take, rounded down; `u64::MAX` when they are more.
    #[must_use]
    pub fn ticks_of(self, counter_ticks: u64) -> u64 {
        let ticks = (u128::from(counter_ticks) * u128::from(self.mult)) >> self.shift;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Trace ticks that `counter_ticks` take, rounded down.
    pub(crate) const fn ticks(self, counter_ticks: i128) -> i128 {
        (counter_ticks * self.mult as i128) >> (self.shift & 63)
    }

    /// Trace ticks that `counter_ticks` take, rounded up.
    pub(crate) const fn ticks_up(self, counter_ticks: i128) -> i128 {
        -((-counter_ticks * self.mult as i128) >> (self.shift & 63))
    }
}

/// A counter whose speed changes, with the change noticed only afterwards.
///
/// ```
/// use clock_sync::counter::{CounterModel, LateNotice, Rate};
///
/// // Nanoseconds per cycle: a half and a whole one. A change is noticed up to 5000 cycles late.
/// let (fast, slow) = (Rate::new(1, 1)?, Rate::UNITY);
/// let late = LateNotice { cycles: 5_000, fastest: fast, slowest: slow };
/// let model = CounterModel { rate: slow, late_notice: Some(late), ..CounterModel::TSC };
/// # Ok::<(), clock_sync::counter::RateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateNotice {
    /// The most cycles that the counter has counted at its new speed when the change is noticed.
    pub cycles: u64,
    /// Rate at the highest speed: the fewest trace ticks per cycle.
    pub fastest: Rate,
    /// Rate at the lowest speed: the most trace ticks per cycle.
    pub slowest: Rate,
}

impl LateNotice {
    /// The most trace ticks that a change not noticed yet makes the clock wrong.
    pub(crate) const fn ticks(&self) -> i128 {
        self.slowest.ticks_up(self.cycles as i128) - self.fastest.ticks(self.cycles as i128)
    }
}

/// What is assumed of a vCPU's counter. Begin with [`CounterModel::TSC`] and change what differs, so that fields that are
/// added later have their defaults.
///
/// ```
/// use clock_sync::counter::{CounterModel, Rate};
///
/// let acpi_pm_timer = CounterModel {
///     hw_bits: 24,
///     rate: Rate::from_frequencies(3_579_545, 1_000_000_000)?,
///     drift_ppb: 100_000,
///     reading_lag: 1,
///     ..CounterModel::TSC
/// };
/// // A quarter of a wrap.
/// assert_eq!(acpi_pm_timer.due_after(), 1 << 22);
/// # Ok::<(), clock_sync::counter::RateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterModel {
    /// Width, one of [`COUNTER_WIDTHS`].
    pub hw_bits: u32,
    /// Nominal rate.
    pub rate: Rate,
    /// The true rate lies within this of the nominal one, parts in a billion.
    pub drift_ppb: u32,
    /// The most that the clock is slowed down to let the true one catch up, parts in a billion; below a billion.
    pub slew_ppb: u32,
    /// How late changes of speed are noticed; `None` for a counter that has one speed.
    pub late_notice: Option<LateNotice>,
    /// A reading is up to this many counter ticks late: 0 for a counter that the trace clock itself counts; 1 for one
    /// whose edges are not the trace clock's; more for a source that may step back. Readers see such a step as it is,
    /// not as a wrap.
    pub reading_lag: u64,
    /// The epoch's bound holds for this many counter ticks after its base: the caller updates before they are over.
    /// At most a quarter of the counter's wrap is used.
    pub renew_after: u64,
}

impl CounterModel {
    /// A 64-bit TSC of the trace clock's own rate, which the hardware keeps exactly.
    pub const TSC: Self = Self {
        hw_bits: 64,
        rate: Rate::UNITY,
        drift_ppb: 0,
        slew_ppb: 0,
        late_notice: None,
        reading_lag: 0,
        renew_after: u64::MAX,
    };

    /// The counter ticks after an epoch's base at which the next update is due: at most a quarter of the counter's wrap,
    /// so that an update that comes a quarter of a wrap late is still in time.
    #[must_use]
    pub const fn due_after(&self) -> u64 {
        // 2^60 ticks are years, and their arithmetic fits.
        let quarter = if self.hw_bits >= 62 { 1 << 60 } else { 1 << self.hw_bits.saturating_sub(2) };
        if self.renew_after < quarter { self.renew_after } else { quarter }
    }

    pub(crate) fn check(&self) -> Result<(), ModelError> {
        if !COUNTER_WIDTHS.contains(&self.hw_bits) {
            return Err(ModelError::Width(self.hw_bits));
        }
        if i128::from(self.slew_ppb) >= BILLION {
            return Err(ModelError::Slew(self.slew_ppb));
        }
        let cycles = self.late_notice.map_or(0, |late| late.cycles);
        if cycles.max(self.reading_lag) >= 1 << 62 {
            return Err(ModelError::Lag(cycles.max(self.reading_lag)));
        }
        if self.late_ticks() < 0 {
            return Err(ModelError::Speeds);
        }
        Ok(())
    }

    pub(crate) fn lag_ticks(&self) -> i128 {
        self.rate.ticks_up(i128::from(self.reading_lag))
    }

    pub(crate) fn late_ticks(&self) -> i128 {
        self.late_notice.as_ref().map_or(0, LateNotice::ticks)
    }

    /// `counter` minus `base`, ticks: within half a wrap on either side.
    pub(crate) const fn distance(&self, base: u64, counter: u64) -> i128 {
        let unused = 64 - self.hw_bits;
        (((counter.wrapping_sub(base) << unused) as i64) >> unused) as i128
    }
}

/// Why a [`CounterModel`] cannot be used.
///
/// ```
/// use clock_sync::counter::{CounterModel, ModelError};
/// use clock_sync::updater::Updater;
///
/// let model = CounterModel { hw_bits: 80, ..CounterModel::TSC };
/// assert_eq!(Updater::new(model).unwrap_err(), ModelError::Width(80));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelError {
    /// This width is not one of [`COUNTER_WIDTHS`].
    Width(u32),
    /// [`CounterModel::slew_ppb`] is this, a billion or more: the clock would stand still or run back.
    Slew(u32),
    /// [`CounterModel::reading_lag`] or [`LateNotice::cycles`] is this, 2^62 or more.
    Lag(u64),
    /// [`LateNotice::fastest`] is slower than [`LateNotice::slowest`].
    Speeds,
}

impl core::fmt::Display for ModelError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Width(bits) => {
                write!(formatter, "a counter of {bits} bits is not supported: the widths are {COUNTER_WIDTHS:?}")
            }
            Self::Slew(ppb) => {
                write!(
                    formatter,
                    "a clock slowed down by {ppb} parts in a billion stands still: give less than a billion"
                )
            }
            Self::Lag(ticks) => write!(formatter, "{ticks} ticks of delay are too many: give less than 2^62"),
            Self::Speeds => {
                formatter.write_str("the counter's fastest rate is slower than its slowest one: exchange them")
            }
        }
    }
}

impl core::error::Error for ModelError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_of_two_frequencies_is_their_ratio() {
        assert_eq!(Rate::from_frequencies(1_000, 1_000), Ok(Rate::UNITY));
        assert_eq!(Rate::from_frequencies(2_000, 1_000), Ok(Rate { mult: 1 << 31, shift: 32 }));
        assert_eq!(Rate::from_frequencies(0, 1_000), Err(RateError::Zero));
        assert_eq!(Rate::from_frequencies(1, 1 << 40), Err(RateError::Range));
    }

    #[test]
    fn ticks_that_do_not_fit_saturate() {
        assert_eq!(Rate::new(u64::MAX, 0).unwrap().ticks_of(u64::MAX), u64::MAX);
    }
}
