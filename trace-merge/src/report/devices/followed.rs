//! Following something from milestone to milestone: what disk requests and packets have in common.

use super::flow_step::{FlowMilestone, StepTimes};
use crate::report::statistics::distribution::{Distribution, Durations};
use crate::report::statistics::ended::Keep;
use std::collections::BTreeMap;
use strata_analysis::timeline::{Origin, Timeline};
use strata_recording::clock::Clock;

/// Something that passes milestones.
pub(super) trait Followed: Clone {
    /// What it passes.
    type Milestone: FlowMilestone;

    /// How many of the slowest are shown in full.
    const SLOWEST: usize;

    /// When it passed `milestone`, ticks.
    fn at(&self, milestone: Self::Milestone) -> Option<u64>;

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

/// What is known of those that are at their end.
#[derive(Debug)]
pub(super) struct Ended<T: Followed> {
    steps: BTreeMap<(T::Milestone, T::Milestone), Durations>,
    total: Durations,
    /// The slowest first, each with its ticks.
    slowest: Vec<(u64, T)>,
    /// Those that were not taken yet, and their ticks.
    kept: Keep<(u64, T)>,
}

impl<T: Followed> Default for Ended<T> {
    fn default() -> Self {
        Self { steps: BTreeMap::new(), total: Durations::default(), slowest: Vec::new(), kept: Keep::none() }
    }
}

impl<T: Followed> Ended<T> {
    /// Keeps those that end from now on, to be taken one by one.
    pub(super) fn keep(&mut self) {
        self.kept.begin();
    }

    /// Whether some have ended that were not taken yet.
    pub(super) fn are_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Those that have ended since the last call, with their ticks.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (u64, T)> {
        self.kept.take()
    }

    /// One is at its end. Whether it is counted: it has passed anything.
    pub(super) fn record(&mut self, ended: T) -> bool {
        let passed = ended.passed();
        let (Some(&(_, begin)), Some(&(_, end))) = (passed.first(), passed.last()) else { return false };
        for step in passed.windows(2) {
            if let &[(from, left), (to, reached)] = step {
                self.steps.entry((from, to)).or_default().add(reached - left);
            }
        }
        self.total.add(end - begin);
        self.kept.add(|| (end - begin, ended.clone()));
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

    /// The slowest first, each with its ticks.
    pub(super) fn slowest(&self) -> &[(u64, T)] {
        &self.slowest
    }
}

/// Those of `followers`, by VM, whose VM a record of `origin` may be about, with their indices.
pub(super) fn concerned<'f, F>(
    followers: &'f mut [Option<F>],
    origin: Origin,
    timeline: &'f Timeline,
) -> impl Iterator<Item = (usize, &'f mut F)> {
    followers.iter_mut().enumerate().filter_map(move |(index, follower)| {
        let is_concerned = match origin {
            Origin::Host { host, .. } => timeline.vm(index).is_some_and(|vm| vm.host == host),
            Origin::Vmm { vm, .. } | Origin::Guest { vm, .. } => vm == index,
            Origin::User { .. } => false,
        };
        Some((index, follower.as_mut().filter(|_| is_concerned)?))
    })
}
