//! Parts that are cut out of recordings.

use super::*;
use strata_recording::reader::merge::Merge;
use trace_merge::cut::{CutOptions, cut};

/// A recording of `seed`, changed, with a part of it that begins and ends at these times.
fn cut_out(seed: u64, changes: &[(usize, Change)], times: (u64, u64)) -> Option<(TempDir, Window)> {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("whole")).unwrap();
    let whole = dir.path().join("whole");
    record(&whole, seed);
    changes.iter().for_each(|&(stream, change)| apply(&whole, stream, change));
    let start = Trace::open(&whole).unwrap().start()?;
    let after = |time: u64| Some(Duration::from_nanos(time.saturating_sub(start)));
    let options = CutOptions { from: after(times.0), to: after(times.1), ..CutOptions::default() };
    cut(&whole, &options, &dir.path().join("part")).ok()?;
    Some((dir, Window { begin: times.0, end: times.1 }))
}

/// The records between `begin` and `end`: time, stream and payload.
fn records_of(dir: &Path, window: Window) -> Vec<(u64, String, u32, Vec<u8>)> {
    let trace = Trace::open(dir).unwrap();
    let merge = Merge::within(trace.layers(), window.begin, window.last());
    let reported = merge.map(|merged| {
        let stream = (merged.layer.description.path.clone(), merged.stream.description.cpu_id);
        (merged.record.time, stream.0, stream.1, merged.record.payload.to_vec())
    });
    reported.collect()
}

/// By stream: before which of its records others may be missing, and whether some were lost behind the last.
fn gaps_of(dir: &Path, window: Window) -> BTreeMap<(String, u32), (Vec<bool>, bool)> {
    let trace = Trace::open(dir).unwrap();
    let streams = trace.layers().iter().flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream)));
    let reported = streams.map(|(layer, stream)| {
        let mut records = layer.records(stream).within(window.begin, window.last());
        let before: Vec<bool> = records.by_ref().map(|record| record.after_gap).collect();
        let is_behind = records.ends_in_gap() && records.goes_on_from().is_none();
        ((layer.description.path.clone(), stream.description.cpu_id), (before, is_behind))
    });
    reported.filter(|(_, (before, _))| !before.is_empty()).collect()
}

fn known_within(dir: &Path, window: Window) -> Vec<Figures> {
    vec![
        figures_within(dir, window, tasks_by_state),
        figures_within(dir, window, vcpus_by_state),
        figures_within(dir, window, wakeups::report),
        figures_within(dir, window, exits::report),
    ]
}

#[test]
fn figures_of_a_part_are_the_originals_once_its_records_have_shown_the_states() {
    let (dir, part) = cut_out(7, &[], (60_000, 200_000)).unwrap();
    let reported = Window { begin: 120_000, ..part };

    let [whole, cut] = ["whole", "part"].map(|name| {
        let trace = Trace::open(&dir.path().join(name)).unwrap();
        serde_json::to_value(tasks::report(&trace, reported).unwrap().vms).unwrap()
    });

    assert_eq!(cut, whole);
    assert!(cut[0]["tasks"].as_array().unwrap().len() >= 4, "{cut}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn part_has_the_records_of_its_time_passes_the_check_and_enlarges_no_figure(
        seed in any::<u64>(),
        changes in proptest::collection::vec(change(), 0..3),
        (from, length) in (0..250_000_u64, 1..250_000_u64),
    ) {
        let Some((dir, window)) = cut_out(seed, &changes, (from, from + length)) else { return Ok(()) };
        let (whole, part) = (dir.path().join("whole"), dir.path().join("part"));

        prop_assert_eq!(records_of(&part, Window::ALL), records_of(&whole, window));
        let [gaps, gaps_of_part] = [gaps_of(&whole, window), gaps_of(&part, Window::ALL)];
        prop_assert_eq!(gaps.keys().collect::<Vec<_>>(), gaps_of_part.keys().collect::<Vec<_>>());
        for (whole, part) in gaps.values().zip(gaps_of_part.values()) {
            prop_assert!(!whole.0[0] || part.0[0], "a gap before the first record");
            prop_assert_eq!((&whole.0[1..], whole.1), (&part.0[1..], part.1));
        }
        if let Ok(checked) = check::check(&Trace::open(&part).unwrap(), 10) {
            prop_assert!(checked.passed(), "{:?}", checked.violations);
        }
        for (whole, part) in known_within(&whole, window).iter().zip(known_within(&part, window)) {
            let grown = grown(whole, &part);
            prop_assert!(grown.is_empty(), "{grown:#?}");
        }
    }
}
