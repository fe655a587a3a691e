//! Counters of the timeline: how often something happens, and how many records are lost, in bins of one width.

use super::encoding::put;
use serde::Serialize;

/// Bins of a counter.
const MOST_BINS: u64 = 4096;
/// The shortest bins: 2 to this, ns.
const SHORTEST: u32 = 14;
/// Counters that are kept.
const MOST_COUNTERS: usize = 512;

/// What the value of a counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CounterKind {
    /// How many there are in a second.
    Rate,
    /// How many there were so far.
    Total,
}

/// A counter in the making.
#[derive(Debug, Serialize)]
struct Counter {
    kind: CounterKind,
    /// What it is drawn below, as rows are.
    group: String,
    name: String,
    /// What is counted.
    what: &'static str,
    /// By bin, up to the last one that holds anything.
    #[serde(skip)]
    bins: Vec<u64>,
}

/// All counters.
#[derive(Debug, Serialize)]
pub(super) struct Counters {
    /// Width of all bins: 2 to this, ns.
    shift: u32,
    counters: Vec<Counter>,
    /// How many are not kept.
    left_out: u64,
}

/// Number of a counter.
pub(super) type CounterNumber = usize;

impl Counters {
    /// None yet, over `length` ns.
    pub(super) fn new(length: u64) -> Self {
        let shift = (SHORTEST..u64::BITS).find(|&shift| length >> shift < MOST_BINS).unwrap_or(SHORTEST);
        Self { shift, counters: Vec::new(), left_out: 0 }
    }

    /// Adds a counter; `None` where there are too many.
    pub(super) fn counter(
        &mut self,
        kind: CounterKind,
        group: &str,
        name: &str,
        what: &'static str,
    ) -> Option<CounterNumber> {
        if self.counters.len() >= MOST_COUNTERS {
            self.left_out += 1;
            return None;
        }
        let [group, name] = [group, name].map(strata_recording::text::terminal::harmless);
        self.counters.push(Counter { kind, group, name, what, bins: Vec::new() });
        Some(self.counters.len() - 1)
    }

    /// Counts `count` of the counter `number` at `time`, ns.
    pub(super) fn add(&mut self, number: Option<CounterNumber>, time: u64, count: u64) {
        let Some(counter) = number.and_then(|number| self.counters.get_mut(number)) else { return };
        let place = usize::try_from((time >> self.shift).min(MOST_BINS - 1)).unwrap_or(0);
        if place >= counter.bins.len() {
            counter.bins.resize(place + 1, 0);
        }
        if let Some(bin) = counter.bins.get_mut(place) {
            *bin = bin.saturating_add(count);
        }
    }

    /// Of each counter the number of its bins, and what each holds.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for counter in &self.counters {
            put(&mut bytes, counter.bins.len() as u64);
            counter.bins.iter().for_each(|&count| put(&mut bytes, count));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::tests::numbers;
    use super::*;

    #[test]
    fn bins_are_as_wide_as_the_length_needs() {
        let shifts = [0, 1 << 26, (1 << 26) - 1, 1 << 53].map(|length| Counters::new(length).shift);

        assert_eq!(shifts, [14, 15, 14, 42]);
    }

    #[test]
    fn what_is_counted_lies_in_the_bin_of_its_time() {
        let mut counters = Counters::new(100 << 14);
        let first = counters.counter(CounterKind::Rate, "vm0", "vCPU 0: exits", "exits");
        let second = counters.counter(CounterKind::Total, "vm0", "lost", "records");

        [0, 1, 16_383, 16_384, 50_000].into_iter().for_each(|time| counters.add(first, time, 1));
        counters.add(second, u64::MAX, 7);

        let numbers = numbers(&counters.encoded());
        assert_eq!(numbers[..6], [4, 3, 1, 0, 1, 4096]);
        assert_eq!((numbers.len(), numbers.last()), (4102, Some(&7)));
    }

    #[test]
    fn too_many_counters_are_counted_and_take_no_memory() {
        let mut counters = Counters::new(1);

        let numbers: Vec<_> = (0..=MOST_COUNTERS).map(|_| counters.counter(CounterKind::Rate, "", "", "")).collect();
        counters.add(numbers[MOST_COUNTERS], 0, 1);

        assert_eq!((numbers[MOST_COUNTERS], counters.left_out, counters.counters.len()), (None, 1, MOST_COUNTERS));
    }
}
