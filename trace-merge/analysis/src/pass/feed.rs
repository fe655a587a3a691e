//! Feeding analyses with records, gaps and states.

use super::analysis::{Analysis, Gap};
use crate::event::Task;
use crate::timeline::{ChangeKind, Input, Origin, Timeline};
use std::sync::{Arc, mpsc};
use strata_recording::window::Window;

/// What goes from the thread that reads to the one that takes in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item<'t> {
    Record(Input<'t>),
    Gap(Gap),
    /// Whose turn it is on a guest's CPU, as the switch to come tells.
    Announced(Origin, Task<'t>),
}

impl Item<'_> {
    /// Its time, ticks; `None` of what has none.
    pub(super) const fn time(&self) -> Option<u64> {
        match self {
            Self::Record(input) => Some(input.record.time),
            Self::Gap(gap) => Some(gap.time),
            Self::Announced(..) => None,
        }
    }
}

/// A batch on its way to all that take it in; the last of them gives it back.
pub(super) type Batch<'t> = Arc<Vec<Item<'t>>>;

/// What of the recording is reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported {
    /// Which records.
    pub window: Window,
    /// When states last.
    pub states: Window,
    /// When they change.
    pub moments: Window,
}

/// Places in [`Feed::analyses`], in order.
type Takers = Vec<usize>;

/// Analyses that are fed, which of them takes in what, and the timeline that they look at.
pub(super) struct Feed<'a> {
    pub analyses: Vec<&'a mut dyn Analysis>,
    pub timeline: Timeline,
    reported: Reported,
    /// By kind of change.
    of_changes: [Takers; ChangeKind::ALL.len()],
    /// By source of the merge, and number of the event type: twice that, and one more for records that are no [`Event`].
    of_records: Vec<Vec<Option<Takers>>>,
}

impl<'a> Feed<'a> {
    pub(super) fn new(analyses: Vec<&'a mut dyn Analysis>, mut timeline: Timeline, reported: Reported) -> Self {
        let of_changes = ChangeKind::ALL.map(|kind| places(&analyses, |analysis| analysis.takes_change(kind)));
        timeline.report_only(|kind| of_changes.get(kind as usize).is_some_and(|takers| !takers.is_empty()));
        Self { analyses, timeline, reported, of_changes, of_records: Vec::new() }
    }

    /// Takes in batches until there are no more or none is wanted, and gives back those that nobody else has: how many
    /// items it took in, and the timeline at the end.
    pub(super) fn take_all<'t>(
        mut self,
        batches: &mpsc::Receiver<Batch<'t>>,
        empty: &mpsc::Sender<Vec<Item<'t>>>,
    ) -> (u64, Timeline) {
        let mut items = 0;
        'all: for batch in batches {
            for item in batch.iter() {
                if !self.take(item) {
                    break 'all;
                }
                items += 1;
            }
            if let Some(mut batch) = Arc::into_inner(batch) {
                batch.clear();
                // A reader that is done takes none back.
                let _ = empty.send(batch);
            }
        }
        (items, self.finish())
    }

    /// Reports what lasts up to the end; the timeline there.
    pub(super) fn finish(mut self) -> Timeline {
        if let Some(span) = self.timeline.span {
            self.timeline.finish(span.end.min(self.reported.window.end));
            self.report();
        }
        self.timeline
    }

    /// Takes in `item`; whether more is wanted.
    fn take(&mut self, item: &Item<'_>) -> bool {
        match item {
            Item::Record(input) => return self.take_record(input),
            Item::Gap(gap) => self.take_gap(gap),
            Item::Announced(origin, task) => self.timeline.announce(*origin, *task),
        }
        true
    }

    /// Takes in a record; whether more is wanted.
    #[inline]
    pub(super) fn take_record(&mut self, input: &Input<'_>) -> bool {
        if input.time() > self.reported.window.end && !self.analyses.iter().any(|analysis| analysis.is_unfinished()) {
            return false;
        }
        self.timeline.apply(input);
        if !self.timeline.changes().is_empty() {
            self.report();
        }
        self.record(input);
        true
    }

    pub(super) fn take_gap(&mut self, gap: &Gap) {
        // A stream may be known for longer than any record was made: no state lasts there.
        if gap.begins && self.timeline.span.is_some_and(|span| gap.time > span.end) {
            return;
        }
        match gap.begins {
            true => self.timeline.begin_gap(gap.time, gap.origin),
            false => self.timeline.end_gap(gap.time, gap.origin),
        }
        self.report();
        for analysis in &mut self.analyses {
            if gap.time <= self.reported.window.end || analysis.is_unfinished() {
                analysis.gap(gap, &self.timeline);
            }
        }
    }

    /// Hands a record to those that take it.
    #[inline]
    fn record(&mut self, input: &Input<'_>) {
        let number = 2 * usize::from(input.record.schema.description().id) + usize::from(input.event.is_none());
        let Self { analyses, timeline, reported, of_records, .. } = self;
        let takers = match of_records.get(input.source).and_then(|of_source| of_source.get(number)) {
            Some(Some(takers)) => takers,
            _ => find_out(of_records, analyses, input, number),
        };
        if takers.is_empty() {
            return;
        }
        let Window { begin, end } = reported.window;
        let (is_before, is_behind) = (input.time() < begin, input.time() >= end);
        for &place in takers {
            let Some(analysis) = analyses.get_mut(place) else { continue };
            if is_before {
                analysis.before(input, timeline);
            } else if !is_behind || analysis.is_unfinished() {
                analysis.record(input, timeline);
            }
        }
    }

    /// Reports the changes: those in the window, and what lies behind it to those that are unfinished.
    fn report(&mut self) {
        for change in self.timeline.changes() {
            let kind = change.kind();
            let takers = self.of_changes.get(kind as usize).map_or(&[][..], Vec::as_slice);
            if takers.is_empty() {
                continue;
            }
            let window = match kind {
                ChangeKind::Vcpu | ChangeKind::Cpu | ChangeKind::Task => self.reported.states,
                ChangeKind::TaskName | ChangeKind::TaskState => self.reported.moments,
            };
            let Window { begin, end } = change.window();
            // All of it, mostly: it is not copied then.
            let is_inside = begin >= window.begin && (end < window.end || (end == window.end && begin < end));
            let goes_on = end > window.end;
            for &place in takers {
                let Some(analysis) = self.analyses.get_mut(place) else { continue };
                if is_inside {
                    analysis.change(change, &self.timeline);
                    continue;
                }
                let end = if goes_on && analysis.is_unfinished() { u64::MAX } else { window.end };
                if let Some(part) = change.within(&Window { end, ..window }) {
                    analysis.change(&part, &self.timeline);
                }
            }
        }
    }
}

/// Finds out who takes records like `input`, of the type with this number in [`Feed::of_records`].
#[cold]
#[inline(never)]
fn find_out<'r>(
    of_records: &'r mut Vec<Vec<Option<Takers>>>,
    analyses: &[&mut dyn Analysis],
    input: &Input<'_>,
    number: usize,
) -> &'r [usize] {
    if of_records.len() <= input.source {
        of_records.resize(input.source + 1, Vec::new());
    }
    let Some(of_source) = of_records.get_mut(input.source) else { return &[] };
    if of_source.len() <= number {
        of_source.resize(number + 1, None);
    }
    let Some(takers) = of_source.get_mut(number) else { return &[] };
    let layer = input.origin.layer();
    let takes = |analysis: &dyn Analysis| analysis.layers().contains(&layer) && analysis.takes_record(input);
    takers.insert(places(analyses, takes))
}

/// Where those of `analyses` are that take something.
fn places(analyses: &[&mut dyn Analysis], takes: impl Fn(&dyn Analysis) -> bool) -> Takers {
    analyses.iter().enumerate().filter(|(_, analysis)| takes(&***analysis)).map(|(place, _)| place).collect()
}
