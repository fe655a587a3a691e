//! Which tasks and waits are reported, by the request.

use super::*;

#[test]
fn task_is_called_by_its_last_name_also_where_it_had_another_one() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(0, 2_000, A, 0, M).switch(0, 6_000, M, 1, A);
    let fields = [
        ("prev_comm", Text("server")),
        ("prev_pid", Number(A)),
        ("prev_state", Number(1)),
        ("next_comm", Text("swapper")),
        ("next_pid", Number(0)),
    ];
    let trace = scene.guest(0, 7_000, "sched:sched_switch", &fields).end(8_000);

    let path = worst(trace, "server");

    assert_eq!(leaves(&path.steps), [("server/10", Cause::WaitsForCpu, "middle/13", 4_000)]);
    assert!(path.summary.contains("server/10 was ready and its guest ran middle/13"), "{}", path.summary);
    assert!(!path.summary.contains("was waiting for it"), "{}", path.summary);
}

#[test]
fn intervals_end_with_the_next_event_of_the_task_that_matches() {
    let at = |scene: Scene, time, event| Scene(scene.0.user(10, 0, time, event, &[("n", Number(1))]));
    let scene = at(Scene::new().switch(0, 1_500, 0, 0, A), 2_000, "app:begin");
    let scene = at(at(scene, 2_700, "app:end"), 3_000, "app:begin").switch(0, 3_500, A, 0, M);
    let scene = at(at(scene, 4_000, "app:begin").switch(0, 5_000, M, 1, A), 6_000, "app:end");
    let trace = scene.switch(0, 7_000, A, 1, 0).end(8_000);

    let requested = CriticalPathOptions { event: Some("app:*".into()), ..options("a") };
    let answer = request(trace, &requested).unwrap();

    let windows: Vec<_> = answer.paths.iter().map(|path| (path.window.begin, path.window.end)).collect();
    // The one at 4000 is another task's.
    assert_eq!(windows, [(3_000, 6_000), (2_000, 2_700), (2_700, 3_000)]);
    assert_eq!(share(&answer.paths[0], Cause::WaitsForCpu), 1_500);
}

#[test]
fn task_that_does_not_exist_is_refused_with_the_nearest() {
    let refused = |task: &str| request(futex_of_b(|scene| scene), &options(task)).unwrap_err().to_string();

    assert_eq!(
        refused("frist"),
        "no task in the window is 'frist'; the nearest are first, init; strata report tasks lists all"
    );
    assert!(refused("99").contains("the nearest are 14, 11, 10"), "{}", refused("99"));
}

/// Whose waits are reported, and when.
fn waits(answer: &CriticalPaths) -> Vec<(&str, u64, u64)> {
    answer.paths.iter().map(|path| (path.task.as_str(), path.window.begin, path.window.end)).collect()
}

#[test]
fn longest_waits_of_a_name_are_those_of_all_its_threads() {
    let answer = request(threads_of_web(), &options("web")).unwrap();

    assert_eq!(waits(&answer), [("web/21", 7_000, 20_000), ("web/20", 2_000, 12_500), ("web/21", 3_000, 6_000)]);
    assert_eq!(answer.task_count, 2);
    assert!(answer.paths[1].summary.starts_with("web/20 of vm0 took 5.250 µs"), "{}", answer.paths[1].summary);
}

#[test]
fn only_the_longest_waits_of_all_threads_are_reported() {
    let requested = CriticalPathOptions { worst: Some(1), ..options("w*") };

    assert_eq!(waits(&request(threads_of_web(), &requested).unwrap()), [("web/21", 7_000, 20_000)]);
}

#[test]
fn one_thread_of_a_name_is_reported_as_if_there_were_no_other() {
    let whole = |task: &str| request(threads_of_web(), &options(task)).unwrap();
    let requested = CriticalPathOptions { worst: Some(2), ..options("web/21") };

    let (of_one, of_all) =
        (request(threads_of_web(), &requested).unwrap(), request(threads_of_web(), &options("web")).unwrap());

    assert_eq!(of_one.paths, [of_all.paths[0].clone(), of_all.paths[2].clone()]);
    let begin = |answer: &CriticalPaths| (answer.paths.len(), answer.task_count, answer.paths[0].window.begin);
    assert_eq!((begin(&whole("web/20")), begin(&whole("21/web"))), ((1, 1, 1_020), (1, 1, 1_020)));
}

#[test]
fn process_is_all_its_threads() {
    const CLONE_THREAD: i64 = 0x1_0000;
    let flags = [("pid", Number(21)), ("comm", Text("web")), ("clone_flags", Number(CLONE_THREAD))];
    let fork = [
        ("parent_comm", Text("web")),
        ("parent_pid", Number(20)),
        ("child_comm", Text("web")),
        ("child_pid", Number(21)),
    ];
    let scene = Scene::new().switch(1, 1_100, 1, 0, 20).guest(1, 1_200, "task:task_newtask", &flags);
    let scene = scene.guest(1, 1_210, "sched:sched_process_fork", &fork).switch(1, 1_300, 20, 1, 1);

    let answer = request(threads(scene).end(22_000), &options("20")).unwrap();

    assert_eq!(waits(&answer)[..2], [("web/21", 7_000, 20_000), ("web/20", 2_000, 12_500)]);
}

#[test]
fn without_a_task_it_is_the_longest_waits_of_all_but_those_for_work_of_the_kernel() {
    // Task M waits in no system call until it is woken at 20,900.
    let scene = threads(Scene::new().switch(0, 1_100, 0, 0, M).switch(0, 1_200, M, 1, 0)).wake(1, 20_900, M, 0);
    let trace = scene.switch(0, 21_000, 20, 1, M).end(22_000);
    let requested = CriticalPathOptions { worst: Some(2), ..CriticalPathOptions::default() };

    let answer = request(trace, &requested).unwrap();

    assert_eq!(waits(&answer), [("web/21", 7_000, 20_000), ("web/20", 2_000, 12_500)]);
}

#[test]
fn without_recorded_system_calls_no_task_is_taken_for_one_of_the_kernel() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(0, 2_000, A, 1, 0).wake(1, 12_000, A, 0);
    let trace = scene.switch(0, 12_500, 0, 0, A).end(14_000);
    let requested = CriticalPathOptions { worst: Some(1), ..CriticalPathOptions::default() };

    assert_eq!(waits(&request(trace, &requested).unwrap()), [("a/10", 2_000, 12_500)]);
}

#[test]
fn tasks_are_drawn_in_rows_of_their_own() {
    let answer = request(threads_of_web(), &options("web")).unwrap();

    let rows = answer.by_task();

    let begins: Vec<Vec<u64>> = rows.iter().map(|row| row.iter().map(|path| path.window.begin).collect()).collect();
    assert_eq!(begins, [vec![2_000], vec![3_000, 7_000]]);
}

#[test]
fn window_without_records_and_empty_intervals_are_refused() {
    let refused = |options| request(futex_of_b(|scene| scene), &options).unwrap_err().to_string();

    let late = refused(CriticalPathOptions { from: Some(Duration::from_secs(9)), ..options("a") });
    let event = refused(CriticalPathOptions { event: Some("app:*".into()), ..options("a") });
    let vm = refused(CriticalPathOptions { vm: Some("vm1".into()), ..options("a") });

    assert!(late.starts_with("--from is after the end of the trace: its records are from 0 to"), "{late}");
    assert!(event.starts_with("a/10 does not have two records in the window of events that match 'app:*'"), "{event}");
    assert_eq!(vm, "no VM is called 'vm1'; there is vm0");
}
