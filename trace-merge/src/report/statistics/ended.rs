//! What reports count, one by one: kept for an export that lists it.

use strata_analysis::Analysis;
use strata_analysis::timeline::states::TaskIndex;

/// One of what a report counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended<R> {
    /// Index of the VM.
    pub vm: usize,
    /// The guest's task; `None` for what is not a task's, and for idle CPUs.
    pub task: Option<TaskIndex>,
    /// When it began, ticks; `None` where the trace does not tell.
    pub begin: Option<u64>,
    /// When it was over, ticks; `None` where the trace does not tell.
    pub end: Option<u64>,
    /// What it was.
    pub what: R,
}

/// An analysis that keeps what it counts one by one, for whoever lists it.
pub trait KeepsEnded: Analysis {
    /// Whether anything was kept since it was taken last. Asked after each record.
    fn has_ended(&self) -> bool;
}

/// Keeps what has ended since it was requested last, if it is requested.
#[derive(Clone, Debug)]
pub(crate) struct Keep<R> {
    kept: Option<Vec<R>>,
}

impl<R> Default for Keep<R> {
    fn default() -> Self {
        Self::none()
    }
}

impl<R> Keep<R> {
    /// Keeps nothing.
    pub(crate) const fn none() -> Self {
        Self { kept: None }
    }

    /// Keeps from now on.
    pub(crate) fn begin(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// Keeps what `make` makes, and says so; without being asked for, nothing is made.
    pub(crate) fn add(&mut self, make: impl FnOnce() -> R) -> bool {
        match &mut self.kept {
            Some(kept) => {
                kept.push(make());
                true
            }
            None => false,
        }
    }

    /// Whether there is nothing that was kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.as_ref().is_none_or(Vec::is_empty)
    }

    /// What was kept. The memory stays where it is.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = R> {
        self.kept.iter_mut().flat_map(|kept| kept.drain(..))
    }
}
