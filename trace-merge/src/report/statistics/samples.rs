//! When what a report sums up happened, for the comparison of two recordings: beside its sums a report keeps, for each
//! of the equal parts that a recording is cut into, how many there were, how long they took and how that is
//! distributed.

use super::histogram;
use crate::report::Window;
use foldhash::HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use strata_analysis::timeline::Timeline;
use strata_recording::layer::LayerKind;

/// Parts that a recording is cut into.
pub const PARTS: usize = 20;
/// Rows that are kept of a report, at most: names are the guest's choice.
const ROWS: usize = 4096;
/// Classes of a histogram for each power of two, as a power of two: a class is at most a 32nd of its times wide.
const CLASS_BITS: u32 = 5;

/// The parts of the time that is compared: of a VM its guest's kernel's records, where there are any, since what came
/// before is how long it took to start.
#[derive(Clone, Debug)]
pub struct Parts {
    all: Window,
    /// By VM.
    vms: Vec<Window>,
}

impl Parts {
    /// The parts of `window` of the recording that `timeline` begins; `None` when it holds nothing.
    #[must_use]
    pub fn new(timeline: &Timeline, window: &Window) -> Option<Self> {
        let all = timeline.span?.intersection(window)?;
        let of_vm = |span: Option<Window>| span.and_then(|span| span.intersection(&all)).unwrap_or(all);
        Some(Self { all, vms: timeline.vms.iter().map(|vm| of_vm(vm.kernel_span)).collect() })
    }

    /// What is cut into parts for the VM at `vm`, or for the hosts.
    #[must_use]
    pub fn window(&self, vm: Option<usize>) -> Window {
        vm.and_then(|vm| self.vms.get(vm).copied()).unwrap_or(self.all)
    }

    /// The part in which `time` lies.
    #[must_use]
    pub fn place(&self, vm: Option<usize>, time: u64) -> Option<usize> {
        let window = self.window(vm);
        // The last moment is that of the last record.
        if time < window.begin || time > window.end {
            return None;
        }
        let place = u128::from(time - window.begin) * PARTS as u128 / u128::from(window.length().max(1));
        Some(usize::try_from(place).unwrap_or(PARTS).min(PARTS - 1))
    }

    /// Where the part `place` begins.
    fn begin(window: &Window, place: usize) -> u64 {
        // Rounded up: it is the first moment that `place` puts there.
        let ticks = (u128::from(window.length()) * place as u128).div_ceil(PARTS as u128);
        window.begin.saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX))
    }
}

/// A row of a report, as it is distinguished in every recording: without numbers of threads and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub what: String,
    /// Whether its time is spent on waiting for something to do: more of it costs nothing.
    pub waits: bool,
}

impl From<String> for Row {
    fn from(what: String) -> Self {
        Self { what, waits: false }
    }
}

/// An event whose records a report goes by.
#[derive(Clone, Copy, Debug)]
pub struct ReportedBy {
    /// In which kind of layer; `None` for that of the kernel whose row it is.
    pub layer: Option<LayerKind>,
    /// Which events; may be a glob. One that matches is enough.
    pub event: &'static str,
}

/// Events of a kind of layer.
pub(crate) const fn reported(layer: LayerKind, event: &'static str) -> ReportedBy {
    ReportedBy { layer: Some(layer), event }
}

/// Events of the kernel whose row it is.
pub(crate) const fn reported_by_itself(event: &'static str) -> ReportedBy {
    ReportedBy { layer: None, event }
}

/// What lies in one part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Number.
    pub count: u64,
    /// All together, ticks.
    pub ticks: u64,
    /// How many of each class of times.
    classes: BTreeMap<u16, u64>,
}

impl Part {
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        (self.count, self.ticks) = (self.count + other.count, self.ticks.saturating_add(other.ticks));
        other.classes.iter().for_each(|(&class, count)| *self.classes.entry(class).or_default() += count);
        self
    }

    /// The time that `percent` of 100 take at most, by nearest rank, right to a 32nd; 0 of none, ticks.
    #[must_use]
    pub fn quantile(&self, percent: u64) -> u64 {
        let rank = (self.count.saturating_mul(percent)).div_ceil(100).max(1);
        let mut sum = 0;
        let of_rank = self.classes.iter().find(|(_, count)| {
            sum += **count;
            sum >= rank
        });
        of_rank.map_or(0, |(&class, _)| middle(class))
    }

    /// The classes of times and how many there are of each: the middle of the class, ticks.
    pub fn classes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.classes.iter().map(|(&class, &count)| (middle(class), count))
    }
}

fn class(ticks: u64) -> u16 {
    histogram::class(ticks, CLASS_BITS)
}

/// The middle of a class.
fn middle(class: u16) -> u64 {
    let [begin, end] = [class, class.saturating_add(1)].map(|class| histogram::begin(class, CLASS_BITS));
    begin.saturating_add((end - begin) / 2)
}

/// A row in all parts.
#[derive(Clone, Debug)]
pub struct Series {
    /// Whether its time is spent on waiting for something to do.
    pub waits: bool,
    /// Whether it is a share of time, and not made of times that can be counted.
    pub is_share: bool,
    /// By part.
    pub parts: Vec<Part>,
}

/// What a report keeps beside its sums; nothing unless samples are kept. Memory grows with the rows; there are
/// at most 4096.
#[derive(Debug, Default)]
pub struct Samples {
    parts: Option<Arc<Parts>>,
    /// By VM, or host, and row.
    rows: HashMap<(Option<usize>, String), Series>,
    /// Times that had no place for a row.
    refused: u64,
}

impl Samples {
    /// Begins to keep.
    pub(crate) fn begin(&mut self, parts: Arc<Parts>) {
        self.parts = Some(parts);
    }

    /// Whether it keeps anything.
    pub(crate) const fn is_on(&self) -> bool {
        self.parts.is_some()
    }

    /// What was kept, by VM, or host, and row; and of how many times there was no place for a row.
    pub(crate) fn take(&mut self) -> (HashMap<(Option<usize>, String), Series>, u64) {
        (std::mem::take(&mut self.rows), self.refused)
    }

    /// Adds something that took `ticks` and was over at `time`.
    #[inline]
    pub(crate) fn add<R: Into<Row>>(&mut self, vm: Option<usize>, time: u64, ticks: u64, row: impl FnOnce() -> R) {
        let Some(parts) = &self.parts else { return };
        if let Some(place) = parts.place(vm, time) {
            self.count(vm, row().into(), place, ticks);
        }
    }

    fn count(&mut self, vm: Option<usize>, row: Row, place: usize, ticks: u64) {
        if let Some(part) = self.series(vm, row, false).and_then(|series| series.parts.get_mut(place)) {
            part.count += 1;
            part.ticks = part.ticks.saturating_add(ticks);
            *part.classes.entry(class(ticks)).or_default() += 1;
        }
    }

    /// Adds a state that lasted for `window`: to each part what lies in it.
    #[inline]
    pub(crate) fn add_state<R: Into<Row>>(&mut self, vm: Option<usize>, window: Window, row: impl FnOnce() -> R) {
        if let Some(parts) = self.parts.clone() {
            self.spread(vm, &parts, window, row().into());
        }
    }

    fn spread(&mut self, vm: Option<usize>, parts: &Parts, window: Window, row: Row) {
        let all = parts.window(vm);
        let Some(inside) = window.intersection(&all) else { return };
        let (Some(first), Some(last)) = (parts.place(vm, inside.begin), parts.place(vm, inside.end)) else { return };
        let Some(series) = self.series(vm, row, true) else { return };
        for (place, part) in series.parts.iter_mut().enumerate().take(last + 1).skip(first) {
            let of_part = Window { begin: Parts::begin(&all, place), end: Parts::begin(&all, place + 1) };
            let ticks = of_part.intersection(&inside).map_or(0, |within| within.length());
            part.ticks = part.ticks.saturating_add(ticks);
        }
    }

    fn series(&mut self, vm: Option<usize>, row: Row, is_share: bool) -> Option<&mut Series> {
        let key = (vm, row.what);
        if self.rows.len() >= ROWS && !self.rows.contains_key(&key) {
            self.refused += 1;
            return None;
        }
        let new = || Series { waits: row.waits, is_share, parts: vec![Part::default(); PARTS] };
        Some(self.rows.entry(key).or_insert_with(new))
    }
}

/// The samples of one VM.
#[derive(Debug)]
pub struct VmSamples<'s> {
    pub(crate) samples: &'s mut Samples,
    pub(crate) vm: usize,
}

impl VmSamples<'_> {
    /// Adds something that took `ticks` and was over at `time`.
    #[inline]
    pub(crate) fn add<R: Into<Row>>(&mut self, time: u64, ticks: u64, row: impl FnOnce() -> R) {
        self.samples.add(Some(self.vm), time, ticks, row);
    }
}

/// A report in the making that can keep samples.
pub(crate) trait Sampled: strata_analysis::Analysis {
    /// Where it keeps them, each with the events that tell of them.
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)>;
}

/// `comm` as it is in every recording: a worker of the kernel has a number of its own in each.
pub(crate) fn steady_name(comm: &str) -> &str {
    if comm.starts_with("kworker/") { "kworker" } else { comm }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_of_a_class_is_within_a_32nd_of_each_time_in_it() {
        let times = (0..64).flat_map(|bit| [1_u64 << bit, (1_u64 << bit) + (1_u64 << bit) / 3, (1_u64 << bit) - 1]);

        let off = times.filter(|&time| middle(class(time)).abs_diff(time) > time / 32);

        assert_eq!(off.collect::<Vec<u64>>(), Vec::<u64>::new());
    }

    #[test]
    fn quantiles_are_those_of_the_nearest_rank_over_all_parts() {
        let part = |times: std::ops::RangeInclusive<u64>| {
            times.fold(Part::default(), |part, time| {
                part.plus(&Part { count: 1, ticks: time, classes: BTreeMap::from([(class(time), 1)]) })
            })
        };

        let both = part(1..=10).plus(&part(11..=20));

        assert_eq!((both.count, both.ticks, both.quantile(50), both.quantile(99)), (20, 210, 10, 20));
        assert_eq!(Part::default().quantile(50), 0);
    }

    fn samples() -> Samples {
        let mut samples = Samples::default();
        let window = Window { begin: 1000, end: 3000 };
        samples.begin(Arc::new(Parts { all: window, vms: Vec::new() }));
        samples
    }

    fn row() -> Row {
        "row".to_string().into()
    }

    #[test]
    fn state_is_cut_where_parts_end() {
        let mut samples = samples();

        samples.add_state(None, Window { begin: 950, end: 1_150 }, row);
        samples.add_state(None, Window { begin: 2_950, end: 3_000 }, row);

        let (rows, refused) = samples.take();
        let ticks: Vec<u64> = rows[&(None, "row".to_string())].parts.iter().map(|part| part.ticks).collect();
        assert_eq!((&ticks[..3], ticks[19], ticks.iter().sum::<u64>(), refused), (&[100, 50, 0][..], 50, 200, 0));
    }

    #[test]
    fn time_counts_in_the_part_in_which_it_is_over_and_outside_of_all_nowhere() {
        let mut samples = samples();

        [999, 1_000, 1_099, 1_100, 3_000, 3_001].into_iter().for_each(|time| samples.add(None, time, 7, row));

        let (rows, _) = samples.take();
        let counts: Vec<u64> = rows[&(None, "row".to_string())].parts.iter().map(|part| part.count).collect();
        assert_eq!((&counts[..2], counts[19], counts.iter().sum::<u64>()), (&[2, 1][..], 1, 4));
    }

    #[test]
    fn rows_beyond_the_limit_are_counted_and_take_no_memory() {
        let mut samples = samples();

        (0..=ROWS).for_each(|number| samples.add(None, 1_000, 1, || number.to_string()));

        let (rows, refused) = samples.take();
        assert_eq!((rows.len(), refused), (ROWS, 1));
    }

    #[test]
    fn report_that_was_not_requested_keeps_nothing() {
        let mut samples = Samples::default();

        samples.add(None, 1_000, 1, row);

        assert!(samples.take().0.is_empty());
    }
}
