//! What programs took, and what that is held against.

use super::super::quantile;
use super::super::usage::Usage;
use serde::Serialize;

/// What a program took for some records, over all samples.
#[derive(Clone, Copy, Debug, Serialize)]
pub(in super::super) struct Taken {
    /// Records a second: median and quartiles.
    pub(in super::super) events_per_second: f64,
    pub(in super::super) quartiles: [f64; 2],
    /// Processor time for a record, ns: median.
    pub(in super::super) cpu_ns: f64,
    /// Most memory, KiB, of all samples.
    pub(in super::super) peak_kib: u64,
}

impl Taken {
    #[allow(clippy::cast_precision_loss, reason = "far fewer records than a double counts exactly")]
    pub(in super::super) fn new(events: u64, samples: &[Usage]) -> Self {
        let events = events as f64;
        let mut rates: Vec<f64> = samples.iter().map(|usage| events / usage.wall).collect();
        let mut cpu: Vec<f64> = samples.iter().map(|usage| usage.cpu * 1e9 / events).collect();
        Self {
            events_per_second: quantile(&mut rates, 2),
            quartiles: [quantile(&mut rates, 1), quantile(&mut rates, 3)],
            cpu_ns: quantile(&mut cpu, 2),
            peak_kib: samples.iter().map(|usage| usage.peak_kib).max().unwrap_or(0),
        }
    }

    /// The columns of a table: rate, quartiles, processor time, memory.
    pub(in super::super) fn columns(&self) -> String {
        let [low, high] = self.quartiles.map(|rate| rate / 1e6);
        let (rate, memory) = (self.events_per_second / 1e6, self.peak_kib.div_ceil(1024));
        format!("{rate:.2} | {low:.2}–{high:.2} | {:.0} | {memory}", self.cpu_ns)
    }
}

/// One thing that is to be reached.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Goal {
    pub(super) goal: String,
    pub(super) limit: f64,
    pub(super) value: f64,
    pub(super) met: bool,
}

impl Goal {
    pub(super) fn at_least(goal: String, limit: f64, value: f64) -> Self {
        Self { goal, limit, value, met: value >= limit }
    }

    pub(super) fn at_most(goal: String, limit: f64, value: f64) -> Self {
        Self { goal, limit, value, met: value <= limit }
    }

    /// What was measured, and whether that is enough.
    #[cfg(test)]
    pub(super) const fn outcome(&self) -> (f64, bool) {
        (self.value, self.met)
    }
}
