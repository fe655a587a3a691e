//! Following something from milestone to milestone: what disk requests and packets have in common.

use super::flow_step::{FlowMilestone, StepTimes};
use crate::report::statistics::distribution::{Distribution, Durations};
use crate::report::statistics::ended::Keep;
use std::collections::BTreeMap;
use std::fmt::Debug;
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::TaskIndex;
use strata_recording::clock::Clock;

/// Something that passes milestones.
pub trait Followed: Clone + Debug + Default + Send {
    /// What it passes.
    type Milestone: FlowMilestone;
    /// One that has ended, as reports show it.
    type Flow;

    /// How many of the slowest are shown in full.
    const SLOWEST: usize;

    /// When it passed each milestone, ticks.
    fn times(&self) -> &[Option<u64>];

    /// The same, to be noted.
    fn times_mut(&mut self) -> &mut [Option<u64>];

    /// The task that it wakes.
    fn woken(&mut self) -> &mut Option<TaskIndex>;

    /// What it was, having taken `ticks`.
    fn flow(&self, ticks: u64, guest: &Guest, clock: &Clock) -> Self::Flow;

    /// When it passed `milestone`, ticks.
    fn at(&self, milestone: Self::Milestone) -> Option<u64> {
        self.times()[milestone.place()]
    }

    /// Passes `milestone` at `time`, unless it has already.
    fn pass(&mut self, milestone: Self::Milestone, time: u64) {
        self.times_mut()[milestone.place()].get_or_insert(time);
    }

    /// The guest handles the interrupt that the VMM raised for it at `raised`.
    fn pass_handler(&mut self, raised: u64, handler: Handler) {
        // What came before the VMM raised the interrupt was another one's.
        if let Some(injected) = handler.injected.filter(|&injected| injected >= raised) {
            self.pass(Self::Milestone::INJECTED, injected);
        }
        self.pass(Self::Milestone::HANDLED, handler.time);
    }

    /// The milestones that were passed, in time order: one whose event came late does not turn time back.
    fn passed(&self) -> Vec<(Self::Milestone, u64)> {
        let mut passed: Vec<(Self::Milestone, u64)> = Vec::new();
        for &milestone in Self::Milestone::ALL {
            let Some(time) = self.at(milestone) else { continue };
            if passed.last().is_none_or(|&(_, before)| before <= time) {
                passed.push((milestone, time));
            }
        }
        passed
    }
}

/// A device's handler that the guest entered.
#[derive(Clone, Copy, Debug)]
pub struct Handler {
    pub(super) time: u64,
    /// When KVM injected the interrupt.
    pub(super) injected: Option<u64>,
}

/// What is known of those that are at their end.
#[derive(Debug)]
pub(super) struct Ended<T: Followed> {
    steps: BTreeMap<(T::Milestone, T::Milestone), Durations>,
    total: Durations,
    /// The slowest first, each with its ticks.
    slowest: Vec<(u64, T)>,
}

impl<T: Followed> Default for Ended<T> {
    fn default() -> Self {
        Self { steps: BTreeMap::new(), total: Durations::default(), slowest: Vec::new() }
    }
}

impl<T: Followed> Ended<T> {
    /// One is at its end, and kept with its ticks. Whether it is counted: it has passed anything.
    pub(super) fn record(&mut self, ended: T, kept: &mut Keep<(u64, T)>) -> bool {
        let passed = ended.passed();
        let (Some(&(_, begin)), Some(&(_, end))) = (passed.first(), passed.last()) else { return false };
        for step in passed.windows(2) {
            if let &[(from, left), (to, reached)] = step {
                self.steps.entry((from, to)).or_default().add(reached - left);
            }
        }
        self.total.add(end - begin);
        kept.add(|| (end - begin, ended.clone()));
        let place = self.slowest.partition_point(|&(ticks, _)| ticks >= end - begin);
        if place < T::SLOWEST {
            self.slowest.insert(place, (end - begin, ended));
            self.slowest.truncate(T::SLOWEST);
        }
        true
    }

    /// Their times from the first milestone to the last.
    pub(super) fn total(&self, clock: &Clock) -> Distribution {
        self.total.distribution(clock)
    }

    /// Their steps, in order.
    pub(super) fn steps(&self, clock: &Clock) -> Vec<StepTimes<T::Milestone>> {
        let step = |(&(from, to), times): (&(T::Milestone, T::Milestone), &Durations)| StepTimes {
            from,
            to,
            times: times.distribution(clock),
        };
        self.steps.iter().map(step).collect()
    }

    /// Whether any met `milestone`.
    pub(super) fn met(&self, milestone: T::Milestone) -> bool {
        self.steps.keys().any(|&(from, to)| from == milestone || to == milestone)
    }

    /// The slowest first.
    pub(super) fn slowest(&self, guest: &Guest, clock: &Clock) -> impl Iterator<Item = T::Flow> {
        self.slowest.iter().map(|(ticks, slow)| slow.flow(*ticks, guest, clock))
    }
}
