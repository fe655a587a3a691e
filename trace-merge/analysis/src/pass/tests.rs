use super::*;
use crate::event::Tid;
use crate::timeline::states::Current;
use crate::timeline::{Change, Input};
use strata_recording::layer::LayerKind;
use strata_recording::test_trace::TestTrace;

/// Keeps all that the pass feeds it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Heard {
    /// It is unfinished until it has heard a record at this time.
    until: u64,
    is_without_states: bool,
    /// Without one, the kinds that are the default.
    layers: Option<&'static [LayerKind]>,
    before: Vec<u64>,
    records: Vec<u64>,
    /// Whose turn it was on the CPU at each record.
    recorders: Vec<(u64, Option<Tid>)>,
    /// When tasks were something.
    tasks: Vec<Window>,
    /// When a task went into another state.
    moments: Vec<u64>,
    gaps: Vec<(u64, bool)>,
}

impl Heard {
    fn until(until: u64) -> Self {
        Self { until, ..Self::default() }
    }
}

impl Analysis for Heard {
    fn layers(&self) -> &'static [LayerKind] {
        self.layers.unwrap_or(&[LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestKernel])
    }

    fn needs_states(&self) -> bool {
        !self.is_without_states
    }

    fn before(&mut self, input: &Input<'_>, _timeline: &Timeline) {
        self.before.push(input.time());
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.records.push(input.time());
        let tid = match timeline.recorder() {
            Current::Unknown => None,
            Current::Idle => Some(0),
            Current::Task(task) => timeline.vms[0].guest.task(task).map(|task| task.tid),
        };
        self.recorders.push((input.time(), tid));
    }

    fn change(&mut self, change: &Change, _timeline: &Timeline) {
        match *change {
            Change::Task { window, .. } => self.tasks.push(window),
            Change::TaskState { time, .. } => self.moments.push(time),
            Change::Vcpu { .. } | Change::Cpu { .. } | Change::TaskName { .. } => {}
        }
    }

    fn gap(&mut self, gap: &Gap, _timeline: &Timeline) {
        self.gaps.push((gap.time, gap.begins));
    }

    fn is_unfinished(&self) -> bool {
        self.records.last().copied().unwrap_or(0) < self.until
    }
}

/// Has read the symbols of the first guest's kernel.
struct Reads(Arc<KernelSymbols>);

impl Analysis for Reads {
    fn kernel_symbols(&self, vm: usize) -> Option<Arc<KernelSymbols>> {
        (vm == 0).then(|| Arc::clone(&self.0))
    }
}

fn tick(trace: TestTrace, time: u64) -> TestTrace {
    trace.guest(0, time, "test:tick", &[])
}

/// A recording with a record every 10 ticks from 10 to 60.
fn ticks() -> TestTrace {
    (1..=6).map(|number| number * 10).fold(TestTrace::new(), tick)
}

fn heard(trace: TestTrace, window: Window) -> Heard {
    let (_dir, trace) = trace.open();
    let mut heard = Heard::default();
    let _ = pass(&trace, window, &mut [&mut heard]);
    heard
}

#[test]
fn records_before_the_window_and_in_it_are_distinguished_and_those_behind_it_are_not_reported() {
    let heard = heard(ticks(), Window { begin: 20, end: 40 });

    assert_eq!((heard.before, heard.records), (vec![10], vec![20, 30]));
}

#[test]
fn unfinished_analysis_hears_what_comes_behind_the_window_and_a_finished_one_does_not() {
    let (_dir, trace) = ticks().open();
    let (mut unfinished, mut finished) = (Heard::until(50), Heard::default());

    let _ = pass(&trace, Window { begin: 20, end: 30 }, &mut [&mut unfinished, &mut finished]);

    assert_eq!((unfinished.records, finished.records), (vec![20, 30, 40, 50], vec![20]));
}

#[test]
fn symbols_that_an_analysis_has_read_are_not_read_again() {
    let (_dir, trace) = ticks().open();
    let read = Arc::new(KernelSymbols::of_kallsyms(b"ffffffff81000000 T start\n"));

    let passed = pass(&trace, Window::ALL, &mut [&mut Reads(Arc::clone(&read))]);

    assert_eq!(passed.kernel_symbols(&trace, 0), Some(&*read));
    assert_eq!(passed.kernel_symbols(&trace, 1), None);
}

#[test]
fn progress_is_up_to_where_the_recording_was_read() {
    let (_dir, trace) = ticks().open();

    let all = [0, 1].map(|feeds| {
        let mut reported = Vec::new();
        let _ = pass_on(feeds, &trace, Window::ALL, &mut [&mut Heard::default()], |time| reported.push(time));
        reported
    });

    assert_eq!(all.each_ref().map(|reported| reported.last()), [Some(&60); 2]);
    assert!(all.iter().all(|reported| reported.is_sorted()), "{all:?}");
}

#[test]
fn what_is_heard_does_not_depend_on_the_number_of_threads() {
    let records = u64::try_from(BATCH * (BATCHES + 4)).unwrap();
    let trace = (1..=records).map(|number| number * 10).fold(TestTrace::new(), |trace, time| {
        let (prev, next) = (i64::from(time % 20 == 0), i64::from(time % 20 != 0));
        trace.switch(0, time, prev, next)
    });
    let (_dir, trace) = trace.lost(LayerKind::GuestKernel, 0, 3).open();
    let window = Window { begin: 5_000, end: 9_000 };
    let all: Vec<Heard> = [0, 70_000, 0, 20_000, 9_010].map(Heard::until).into();
    let on = |feeds| {
        let mut heard = all.clone();
        let mut analyses: Vec<&mut dyn Analysis> = heard.iter_mut().map(|heard| heard as &mut dyn Analysis).collect();
        let passed = pass_on(feeds, &trace, window, &mut analyses, |_| ());
        (heard, passed.totals, format!("{:?}", passed.timeline.changes()))
    };

    let alone = on(1);

    assert_eq!(alone.0.iter().map(|heard| heard.records.len()).collect::<Vec<_>>(), [400, 6_501, 400, 1_501, 402]);
    assert_eq!(alone, on(0));
    assert_eq!(alone, on(2));
    assert_eq!(alone, on(3));
    assert_eq!(alone, on(8));
}

#[test]
fn states_are_left_out_where_nobody_asks_for_them_and_who_runs_is_known_all_the_same() {
    let (_dir, trace) = TestTrace::new().switch(0, 10, 0, 7).switch(0, 20, 7, 8).switch(0, 30, 8, 0).open();
    let without = || Heard { is_without_states: true, ..Heard::default() };
    let (mut alone, mut with, mut beside) = (without(), Heard::default(), without());

    let left_out = pass(&trace, Window::ALL, &mut [&mut alone]);
    let _ = pass(&trace, Window::ALL, &mut [&mut with, &mut beside]);

    assert!(left_out.timeline.changes().is_empty());
    assert_eq!((alone.tasks.len(), alone.moments.len()), (0, 0));
    assert!(!with.tasks.is_empty() && with.tasks == beside.tasks);
    assert_eq!(alone.recorders, with.recorders);
    assert_eq!(alone.recorders, [(10, Some(0)), (20, Some(7)), (30, Some(8))]);
}

#[test]
fn reader_that_is_ahead_ends_when_no_more_is_wanted() {
    /// So slow that the reader has filled all batches before the window is at its end.
    struct Slow(u64);
    impl Analysis for Slow {
        fn record(&mut self, _input: &Input<'_>, _timeline: &Timeline) {
            std::thread::sleep(std::time::Duration::from_millis(100));
            self.0 += 1;
        }
    }
    let records = u64::try_from(BATCH * (BATCHES + 4)).unwrap();
    let (_dir, trace) = (1..=records).map(|number| number * 10).fold(TestTrace::new(), tick).open();
    let mut slow = Slow(0);

    let _ = pass(&trace, Window { begin: 20, end: 40 }, &mut [&mut slow]);

    assert_eq!(slow.0, 2);
}

#[test]
fn states_are_cut_to_the_window_and_those_from_before_it_are_known() {
    let trace = TestTrace::new().switch(0, 10, 0, 7).switch(0, 30, 7, 0);

    assert_eq!(heard(trace, Window { begin: 15, end: 25 }).tasks, [Window { begin: 15, end: 25 }]);
}

#[test]
fn states_last_no_longer_than_the_recording() {
    let trace = tick(TestTrace::new().switch(0, 10, 0, 7), 40);

    assert_eq!(heard(trace, Window::ALL).tasks, [Window { begin: 10, end: 40 }]);
}

#[test]
fn change_of_the_last_record_is_reported_where_the_window_reaches_it() {
    let trace = || tick(TestTrace::new(), 10).switch(0, 30, 0, 7);

    let changed = |end| heard(trace(), Window { begin: 0, end }).moments;

    assert_eq!((changed(u64::MAX), changed(30)), (vec![30], vec![]));
}

#[test]
fn gap_before_the_window_is_reported() {
    let trace = tick(TestTrace::new(), 10).lost(LayerKind::GuestKernel, 0, 3);

    let heard = heard(tick(tick(trace, 30), 60), Window { begin: 50, end: 70 });

    // What a packet counts as lost lies around it.
    assert_eq!(heard.gaps, [(0, true), (10, false), (10, true), (30, false)]);
    assert_eq!(heard.records, [60]);
}

#[test]
fn who_runs_follows_from_the_switch_to_come_at_the_beginning_and_after_a_gap() {
    let trace = tick(tick(TestTrace::new(), 10).switch(0, 20, 7, 0), 30).lost(LayerKind::GuestKernel, 0, 3);

    let heard = heard(tick(trace, 50).switch(0, 60, 8, 0), Window::ALL);

    assert_eq!(heard.recorders, [(10, Some(7)), (20, Some(7)), (30, Some(0)), (50, Some(8)), (60, Some(8))]);
}

#[test]
fn who_runs_does_not_follow_from_a_switch_behind_a_gap() {
    let trace = tick(TestTrace::new(), 10).lost(LayerKind::GuestKernel, 0, 3).switch(0, 20, 7, 0);

    assert_eq!(heard(trace, Window::ALL).recorders, [(10, None), (20, Some(7))]);
}

#[test]
fn layer_that_nobody_asks_for_is_not_read() {
    let (_dir, trace) = tick(TestTrace::new().host(0, 5, "test:tick", &[]), 10).open();
    let mut heard = Heard { layers: Some(&[LayerKind::GuestKernel]), ..Heard::default() };

    let passed = pass(&trace, Window::ALL, &mut [&mut heard]);

    let mut events: Vec<u64> = passed.totals.iter().map(|totals| totals.events).collect();
    events.sort_unstable();
    assert_eq!((heard.records, events), (vec![10], vec![0, 1]));
}

#[test]
fn records_are_counted_in_the_window_only() {
    let (_dir, trace) = ticks().open();

    let passed = pass(&trace, Window { begin: 20, end: 40 }, &mut [&mut Heard::until(60)]);

    let totals = passed.totals[0];
    assert_eq!((totals.events, totals.first, totals.last), (2, Some(20), Some(30)));
}

#[test]
fn parts_of_an_analysis_are_fed_in_its_place() {
    #[derive(Default)]
    struct Both {
        parts: [Heard; 2],
        heard: u64,
    }
    impl Analysis for Both {
        fn parts(&mut self) -> Option<Vec<&mut dyn Analysis>> {
            Some(self.parts.iter_mut().map(|part| part as &mut dyn Analysis).collect())
        }

        fn record(&mut self, _input: &Input<'_>, _timeline: &Timeline) {
            self.heard += 1;
        }
    }
    let (_dir, trace) = ticks().open();
    let mut both = Both::default();

    let _ = pass(&trace, Window::ALL, &mut [&mut both]);

    assert_eq!((both.parts.map(|part| part.records.len()), both.heard), ([6, 6], 0));
}
