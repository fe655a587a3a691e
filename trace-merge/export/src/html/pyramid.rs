//! A row from afar: how the time of equal bins is shared among categories, in levels where each has bins four times as
//! wide as the one before.
//!
//! The page draws a pixel from the bins that it covers, so that what it takes to draw a row does not depend on how many
//! slices it has; nothing short is lost, and nothing is drawn longer than it was. The finest bins are as wide as they have
//! to be so that there are not too many, however long the recording is.

use super::category::Category;
use super::encoding::put;

/// Width of the finest bins of a short row: 2 to this, ns.
const FINEST: u32 = 9;
/// Each level's bins are as wide as this many of the level before: 2 to this.
const FACTOR: u32 = 2;
/// Bins below which there is no coarser level.
const FEW: usize = 512;

/// Bins one after another; each is shared out in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    /// Number of the first bin.
    first: u64,
    /// How many there are: more than one only where all of them are of one category, from edge to edge.
    count: u64,
    /// The time of each category in each bin, ns, by category. What is missing to the width is nothing's.
    times: Vec<(Category, u64)>,
}

/// Bins of one width, in order; only those that hold anything.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Level {
    /// 2 to this is the width, ns.
    shift: u32,
    runs: Vec<Run>,
}

impl Level {
    const fn new(shift: u32) -> Self {
        Self { shift, runs: Vec::new() }
    }

    /// Adds `time` of `category` to the bin `bin`, which is the last one or comes after it.
    fn add(&mut self, bin: u64, category: Category, time: u64) {
        let full = 1 << self.shift;
        match self.runs.last_mut() {
            Some(last) if last.first + last.count > bin => {
                match last.times.iter_mut().find(|(known, _)| *known == category) {
                    Some((_, known)) => *known += time,
                    None => last.times.push((category, time)),
                }
            }
            Some(last) if time == full && last.first + last.count == bin && last.times == [(category, full)] => {
                last.count += 1;
            }
            _ => self.runs.push(Run { first: bin, count: 1, times: vec![(category, time)] }),
        }
    }

    /// Adds what `category` took from `begin` up to `end`, ns, which comes after all that was added.
    fn slice(&mut self, (begin, end): (u64, u64), category: Category) {
        let (first, last) = (begin >> self.shift, (end - 1) >> self.shift);
        self.add(first, category, end.min((first + 1) << self.shift) - begin);
        if first == last {
            return;
        }
        self.full((first + 1, last), category);
        self.add(last, category, end - (last << self.shift));
    }

    /// Adds that the bins from `first` up to `end` are of `category` from edge to edge.
    fn full(&mut self, (first, end): (u64, u64), category: Category) {
        let Some(count) = end.checked_sub(first).filter(|&count| count > 0) else { return };
        self.add(first, category, 1 << self.shift);
        if let Some(last) = self.runs.last_mut() {
            last.count += count - 1;
        }
    }

    /// The same time in bins `2^by` times as wide.
    fn coarser(&self, by: u32) -> Self {
        let mut coarser = Self::new(self.shift + by);
        for run in &self.runs {
            let end = run.first + run.count;
            let (inner, inner_end) = ((run.first + (1 << by) - 1) >> by, end >> by);
            let add = |coarser: &mut Self, bins: std::ops::Range<u64>| {
                if !bins.is_empty() {
                    for &(category, time) in &run.times {
                        coarser.add(bins.start >> by, category, time * (bins.end - bins.start));
                    }
                }
            };
            if inner >= inner_end {
                let border = (inner << by).clamp(run.first, end);
                add(&mut coarser, run.first..border);
                add(&mut coarser, border..end);
                continue;
            }
            add(&mut coarser, run.first..inner << by);
            if let [(category, _)] = run.times[..] {
                coarser.full((inner, inner_end), category);
            }
            add(&mut coarser, inner_end << by..end);
        }
        coarser
    }

    /// Appends it: the shift and the number of runs; then of each run the bins left out before it, its bins, the number of
    /// its categories, and each with its time.
    fn put(&self, bytes: &mut Vec<u8>) {
        put(bytes, self.shift.into());
        put(bytes, self.runs.len() as u64);
        let mut next = 0;
        for run in &self.runs {
            put(bytes, run.first - next);
            put(bytes, run.count);
            put(bytes, run.times.len() as u64);
            for &(category, time) in &run.times {
                put(bytes, category as u64);
                put(bytes, time);
            }
            next = run.first + run.count;
        }
    }
}

/// The levels of a row in the making: the finest of them, within its bound.
#[derive(Clone, Debug)]
pub(super) struct Pyramid {
    finest: Level,
    most: usize,
}

impl Pyramid {
    /// Of a row in which nothing is yet, with up to `most` runs of bins in its finest level.
    pub(super) const fn new(most: usize) -> Self {
        Self { finest: Level::new(FINEST), most }
    }

    /// Adds what `category` took from `begin` up to `end`, ns: longer than no time, and after all that was added.
    pub(super) fn add(&mut self, window: (u64, u64), category: Category) {
        self.finest.slice(window, category);
        while self.finest.runs.len() > self.most {
            self.finest = self.finest.coarser(1);
        }
    }

    /// Width of the finest bins, ns.
    pub(super) const fn finest_ns(&self) -> u64 {
        1 << self.finest.shift
    }

    /// Appends the number of levels, and the levels, the finest first.
    pub(super) fn put(&self, bytes: &mut Vec<u8>) {
        let levels = self.levels();
        put(bytes, levels.len() as u64);
        levels.iter().for_each(|level| level.put(bytes));
    }

    fn levels(&self) -> Vec<Level> {
        let mut levels = vec![self.finest.clone()];
        while let Some(coarsest) = levels.last().filter(|level| level.runs.len() > FEW) {
            let next = coarsest.coarser(FACTOR);
            levels.push(next);
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    //! Shows: Each level of a page's bins holds its slices' time in each state (proptest).

    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Times = BTreeMap<(u64, Category), u64>;

    /// The time of each bin of a level and category.
    fn times(level: &Level) -> Times {
        let mut times = Times::new();
        for run in &level.runs {
            for bin in run.first..run.first + run.count {
                for &(category, time) in &run.times {
                    *times.entry((bin, category)).or_default() += time;
                }
            }
        }
        times
    }

    /// The same from the slices themselves.
    fn expected(slices: &[(u64, u64, Category)], shift: u32) -> Times {
        let mut times = Times::new();
        for &(begin, end, category) in slices {
            for bin in begin >> shift..=(end - 1) >> shift {
                let (from, to) = (begin.max(bin << shift), end.min((bin + 1) << shift));
                *times.entry((bin, category)).or_default() += to - from;
            }
        }
        times
    }

    fn slices() -> impl Strategy<Value = Vec<(u64, u64, Category)>> {
        let lengths = prop_oneof![1..20_u64, 1..3_000_u64, 500..200_000_u64];
        let gaps = prop_oneof![Just(0), Just(0), 0..5_000_u64];
        let slice = (gaps, lengths, 0..4_usize);
        proptest::collection::vec(slice, 1..80).prop_map(|parts| {
            let mut time = 0;
            let slice = |(gap, length, category): (u64, u64, usize)| {
                let begin = time + gap;
                time = begin + length;
                (begin, time, Category::ALL[category])
            };
            parts.into_iter().map(slice).collect()
        })
    }

    proptest! {
        #[test]
        fn each_level_holds_what_the_slices_do(slices in slices(), most in 2..60_usize) {
            let mut pyramid = Pyramid::new(most);
            slices.iter().for_each(|&(begin, end, category)| pyramid.add((begin, end), category));

            prop_assert!(pyramid.finest.runs.len() <= most);
            let mut level = pyramid.finest;
            for _ in 0..8 {
                prop_assert_eq!(times(&level), expected(&slices, level.shift));
                level = level.coarser(FACTOR);
            }
        }
    }

    #[test]
    fn long_slice_takes_few_runs_at_any_width() {
        let mut pyramid = Pyramid::new(100);

        pyramid.add((100, 3_600_000_000_100), Category::Idle);

        assert_eq!((pyramid.finest.runs.len(), pyramid.finest_ns()), (3, 512));
    }

    #[test]
    fn coarser_levels_are_made_until_bins_are_few() {
        let mut pyramid = Pyramid::new(1 << 14);
        (0..10_000).for_each(|number| pyramid.add((number * 1024, number * 1024 + 1), Category::Running));

        let levels = pyramid.levels();

        let sizes: Vec<_> = levels.iter().map(|level| (level.shift, level.runs.len())).collect();
        assert_eq!(sizes, [(9, 10_000), (11, 5_000), (13, 1_250), (15, 313)]);
    }
}
