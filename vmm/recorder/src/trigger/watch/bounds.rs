//! From which time on something is too long for any trigger: nearly nothing is, and is not looked at any further.

use super::Armed;
use crate::trigger::expression::{Condition, Measure};

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timed {
    Steal,
    Wakeup,
    Exit,
    Disk,
}

impl Timed {
    const fn of(measure: &Measure) -> Self {
        match measure {
            Measure::Steal => Self::Steal,
            Measure::Wakeup => Self::Wakeup,
            Measure::Exit(_) => Self::Exit,
            Measure::Disk => Self::Disk,
        }
    }
}

/// The shortest time of each that any trigger fires at, ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds([u64; 4]);

impl Bounds {
    /// Those of `triggers`, in a clock of `ticks_per_second`.
    pub(super) fn of(triggers: &[Armed], ticks_per_second: u64) -> Self {
        let mut bounds = [u64::MAX; 4];
        for armed in triggers {
            let Condition::Longer { what, than_ns } = &armed.trigger.condition else { continue };
            let ticks = (u128::from(*than_ns) + 1) * u128::from(ticks_per_second.max(1));
            let ticks = u64::try_from(ticks.div_ceil(1_000_000_000)).unwrap_or(u64::MAX);
            if let Some(bound) = bounds.get_mut(Timed::of(what) as usize) {
                *bound = ticks.min(*bound);
            }
        }
        Self(bounds)
    }

    /// Whether any trigger may fire at `what` that took so many `ticks`.
    #[inline]
    pub(super) fn are_met(&self, what: Timed, ticks: u64) -> bool {
        self.0.get(what as usize).is_some_and(|&bound| ticks >= bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::expression::Trigger;

    #[test]
    fn least_time_of_all_triggers_is_the_first_tick_that_is_a_nanosecond_more() {
        let armed = |text| Armed { number: 1, trigger: Trigger::parse(text).unwrap(), since: 0 };
        let triggers = ["steal>2ns", "steal>1ns", "exit:mmio>10ns"].map(armed);
        let first = |bounds: Bounds, what| (0..100).find(|&ticks| bounds.are_met(what, ticks));

        // 2 ns: 4 ticks, 6 and two thirds, and half a tick.
        let steal =
            [2_000_000_000, 3_333_333_333, 250_000_000].map(|hz| first(Bounds::of(&triggers, hz), Timed::Steal));
        let others = [Timed::Exit, Timed::Wakeup].map(|what| first(Bounds::of(&triggers, 2_000_000_000), what));

        assert_eq!((steal, others), ([Some(4), Some(7), Some(1)], [Some(22), None]));
    }
}
