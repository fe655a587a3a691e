//! The answer: its parts add up, and its text has all of them.

use super::*;

#[test]
fn path_is_the_same_when_it_is_walked_in_parts() {
    let (_dir, trace) = futex_of_b(calls_of_b).open();
    let path = |most| critical_paths_within(&trace, &options("a"), most).unwrap().0.paths;

    let (whole, parts) = (path(1_000_000), path(200));

    let what = |paths: &[CriticalPath]| (paths.len(), paths[0].window, paths[0].shares.clone(), paths[0].limit_met);
    assert_eq!(what(&whole), what(&parts));
    // It runs when a part ends.
    assert_eq!(whole[0].steps.len() + 1, parts[0].steps.len());
}

#[test]
fn time_of_the_task_itself_is_that_of_the_report_on_tasks() {
    let (_dir, trace) = scenario::preempted_in_an_exit().open();
    let report = tasks::report(&trace, Window::ALL).unwrap();

    let (answer, _) = critical_paths(&trace, &options("app")).unwrap();

    let times = report.vms[0].tasks.iter().find(|task| task.tid == 10).unwrap().times;
    let path = &answer.paths[0];
    assert_eq!(share(path, Cause::Running), times.running);
    assert_eq!(share(path, Cause::Preempted), times.stolen);
    assert_eq!((share(path, Cause::Exit), share(path, Cause::Vmm)), (times.exits, times.vmm));
    assert_eq!(share(path, Cause::Unknown), times.unknown);
}

#[test]
fn text_has_the_paragraph_and_a_tree_of_which_each_level_adds_up() {
    let trace = futex_of_b(|scene| scene.host_switch(1, 4_000, 101, 0x100, HOG).host_switch(1, 9_000, HOG, 1, 101));
    let requested = CriticalPathOptions { worst: Some(1), ..options("a") };
    let mut text = Vec::new();

    request(trace, &requested).unwrap().write_text(&mut text).unwrap();

    let text = String::from_utf8(text).unwrap();
    let tree = "    5.250 µs  100.0 %  a/10\n    \
        5.000 µs   95.2 %    waits for futex (futex), until b/11 woke it  [0.000005550 guest-kernel sched:sched_waking 1]\n    \
        1.000 µs   19.0 %      b/11: runs on vCPU 1  [0.000000350 guest-kernel sched:sched_switch 1]\n    \
        2.500 µs   47.6 %      b/11: the host runs hog/200 in place of vCPU 1  [0.000001550 host-kernel sched:sched_switch 1]\n    \
        1.500 µs   28.5 %      b/11: runs on vCPU 1  [0.000004050 host-kernel sched:sched_switch 1]\n      \
        250 ns    4.7 %    ready; idle and yet to begin on vCPU 0  [0.000005550 guest-kernel sched:sched_waking 1]\n";
    assert!(text.contains(tree), "{text}");
}

#[test]
fn cpu_that_its_guest_does_not_use_takes_nothing_from_the_answer() {
    let requested = |trace: TestTrace| {
        let (_dir, trace) = trace.open();
        format!("{:?}", critical_paths(&trace, &options("app")).unwrap().0)
    };
    let recording = crate::report::scenario::preempted_in_an_exit;

    assert_eq!(requested(recording().never_joined(1)), requested(recording()));
}
