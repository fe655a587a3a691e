//! What records do not show is reported as unknown, and never guessed.

use super::*;

#[test]
fn task_that_runs_when_an_interrupt_wakes_another_did_not_wake_it() {
    let trace = futex_of_b(|scene| {
        let scene = scene.begin_interrupt(1, 6_000, "irq", 25).wake(1, 6_010, A, 0);
        scene.end_interrupt(1, 6_020, "irq", 25).switch(0, 6_500, 0, 0, A).switch(0, 7_000, A, 1, 0)
    });

    let requested = CriticalPathOptions { worst: Some(2), ..options("a") };
    let answer = request(trace, &requested).unwrap();

    let [longer, shorter] = &answer.paths[..] else { panic!("{answer:#?}") };
    assert_eq!((longer.wall_ticks, longer.steps[0].woken_by.as_deref()), (5_500, Some("b/11")));
    assert_eq!((shorter.wall_ticks, shorter.steps[0].cause), (4_500, Cause::Interrupt));
}

#[test]
fn wait_is_not_followed_where_interrupts_were_not_recorded() {
    let scene = Scene(TestTrace::new()).host_switch(0, 900, 0, 0, VCPU0).enter(0, 1_000).exit(1, 1_001, IOIO);
    let scene = scene.switch(0, 1_060, 14, 1, 0).switch(1, 1_070, 14, 1, B).switch(0, 1_500, 0, 0, A);
    let trace = scene.switch(0, 2_000, A, 1, 0).wake(1, 3_000, A, 0).switch(0, 3_100, 0, 0, A).0;

    let requested = CriticalPathOptions { worst: Some(1), ..options("a") };
    let answer = request(trace, &requested).unwrap();

    let wait = &answer.paths[0].steps[0];
    assert_eq!((wait.cause, wait.steps.len()), (Cause::WakerUnknown, 0));
    assert!(wait.detail.as_deref().unwrap().contains("interrupts were not recorded"), "{wait:?}");
    assert!(answer.warnings.iter().any(|warning| warning.contains("softirq_entry")), "{:?}", answer.warnings);
}

#[test]
fn what_the_waker_did_where_records_are_lost_is_not_known() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(1, 1_600, 1, 1, B).switch(0, 2_000, A, 1, 0);
    let scene = scene.call(1, 4_000, READ);
    let lost = Scene(scene.0.lost(strata_recording::layer::LayerKind::GuestKernel, 1, 5)).call(1, 7_000, READ);
    let scene = lost.switch(1, 8_000, B, 0, M).switch(1, 9_000, M, 1, B).wake(1, 9_500, A, 0);
    let trace = scene.switch(0, 9_600, 0, 0, A).end(10_000);

    let answer = request(trace, &options("a")).unwrap();

    let path = &answer.paths[0];
    let lost = path.steps.iter().find(|step| step.begin == 4_000).unwrap();
    assert_eq!((lost.cause, lost.detail.as_deref(), lost.end), (Cause::Unknown, Some("records are lost here"), 9_500));
    assert!(path.summary.contains("it is not known what a/10 did: records are lost here"), "{}", path.summary);
}

#[test]
fn task_that_was_not_made_yet_is_followed_to_who_made_it() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(1, 1_600, 1, 1, B).switch(0, 2_000, A, 1, 0);
    let fork = [("parent_pid", Number(B)), ("child_comm", Text("c")), ("child_pid", Number(C))];
    let scene = scene.guest(1, 5_000, "sched:sched_process_fork", &fork).switch(1, 5_500, B, 1, C);
    let trace = scene.wake(1, 8_000, A, 0).switch(0, 8_100, 0, 0, A).end(9_000);

    let path = worst(trace, "a");

    assert_eq!(
        leaves(&path.steps)[..3],
        [
            ("b/11", Cause::Running, "", 3_000),
            ("c/12", Cause::WaitsForCpu, "b/11", 500),
            ("c/12", Cause::Running, "", 2_500),
        ]
    );
}

#[test]
fn wait_that_goes_on_beyond_the_window_is_reported_as_such() {
    let requested = CriticalPathOptions { to: Some(Duration::from_nanos(3_000)), ..options("a") };

    let path = request(futex_of_b(|scene| scene), &requested).unwrap().paths.remove(0);

    // The first record is at tick 900, the window's end at 6900.
    assert_eq!(path.steps.last().map(|step| (step.cause, step.ticks)), Some((Cause::NotWoken, 4_900)));
}

#[test]
fn more_than_is_kept_of_a_wait_is_not_known_and_reported() {
    let (_dir, trace) = futex_of_b(calls_of_b).open();
    let requested = CriticalPathOptions { worst: Some(1), ..options("a") };

    let (answer, _) = critical_paths_within(&trace, &requested, 20).unwrap();

    let path = &answer.paths[0];
    let limit = path.limit_met.unwrap();
    assert_eq!(path.steps.last().map(|step| (step.cause, step.begin)), Some((Cause::Unknown, limit)));
    let mut text = Vec::new();
    answer.write_text(&mut text).unwrap();
    assert!(String::from_utf8(text).unwrap().contains("choose a shorter window"));
}

#[test]
fn what_is_not_kept_of_a_wait_is_missing_in_those_that_are_under_way_too() {
    let (_dir, trace) = threads_of_web().open();

    let (answer, _) = critical_paths_within(&trace, &options("web"), 12).unwrap();

    let limits: Vec<_> = answer.paths.iter().map(|path| path.limit_met.is_some()).collect();
    assert_eq!(limits, [true, true, false]);
}
