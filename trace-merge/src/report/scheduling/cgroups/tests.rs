use super::*;
use crate::report::make;
use crate::report::scheduling::tasks;
use strata_recording::test_trace::Field::{Number, Text};
use strata_recording::test_trace::{Field, TestTrace};

/// A record of `strata:task` of a task in the initial pid namespace.
fn found(trace: TestTrace, time: u64, tid: i64, cgroup: i64) -> TestTrace {
    described(trace, time, tid, [tid, 0], cgroup, false)
}

fn described(trace: TestTrace, time: u64, tid: i64, [own, level]: [i64; 2], cgroup: i64, is_new: bool) -> TestTrace {
    let fields = [
        ("tid", Number(tid)),
        ("pid", Number(tid)),
        ("vtid", Number(own)),
        ("vpid", Number(own)),
        ("ns_level", Number(level)),
        ("ns_inum", Number(4_026_531_836 + level)),
        ("cgroup", Number(cgroup)),
        ("is_new", Number(is_new.into())),
    ];
    trace.guest(0, time, event::name::TASK, &fields)
}

fn cgroup(trace: TestTrace, time: u64, id: i64, path: &'static str) -> TestTrace {
    trace.guest(0, time, "strata:cgroup", &[("id", Number(id)), ("path", Text(path))])
}

fn attach(trace: TestTrace, time: u64, root: i64, pid: i64, id: i64, path: &'static str) -> TestTrace {
    let fields = [("dst_root", Number(root)), ("dst_id", Number(id)), ("pid", Number(pid)), ("dst_path", Text(path))];
    trace.guest(0, time, "cgroup:cgroup_attach_task", &fields)
}

fn fork(trace: TestTrace, time: u64, parent: i64, child: i64) -> TestTrace {
    let fields = [("parent_pid", Number(parent)), ("child_comm", Text("task")), ("child_pid", Number(child))];
    trace.guest(0, time, "sched:sched_process_fork", &fields)
}

/// Running time by cgroup, ticks.
fn running(trace: TestTrace) -> Vec<(String, u64)> {
    let (_dir, trace) = trace.open();
    let report = make(&trace, Window::ALL, CgroupTimes::new(Window::ALL)).unwrap();
    let of = |cgroup: &CgroupReport| {
        assert_eq!(cgroup.times.parts().iter().sum::<u64>(), cgroup.wall_ticks);
        (cgroup.path.clone().unwrap_or_else(|| "?".into()), cgroup.times.running)
    };
    report.vms[0].cgroups.iter().map(of).collect()
}

fn by_path(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|&(path, ticks)| (path.into(), ticks)).collect()
}

#[test]
fn time_before_a_tasks_record_is_its_cgroups_too() {
    let trace = TestTrace::new().switch(0, 1_000, 0, 7);
    let trace = cgroup(found(trace, 2_000, 7, 30), 2_500, 30, "/web");
    let trace = trace.switch(0, 5_000, 7, 8).switch(0, 6_000, 8, 0);

    assert_eq!(running(trace), by_path(&[("/web", 4_000), ("?", 1_000)]));
}

#[test]
fn task_that_is_moved_takes_its_time_to_two_cgroups() {
    let trace = found(TestTrace::new(), 500, 7, 1);
    let trace = cgroup(trace, 600, 1, "/").switch(0, 1_000, 0, 7);
    let trace = attach(trace, 4_000, 0, 7, 30, "/web").switch(0, 9_000, 7, 0);

    assert_eq!(running(trace), by_path(&[("/web", 5_000), ("/", 3_000)]));
}

#[test]
fn task_that_runs_another_program_before_it_is_moved_is_where_it_was_until_then() {
    let trace = found(TestTrace::new(), 500, 7, 1);
    let trace = cgroup(trace, 600, 1, "/").switch(0, 1_000, 0, 7);
    let exec = [("pid", Number(7)), ("old_pid", Number(7)), ("filename", Text("/bin/web"))];
    let trace = trace.guest(0, 2_000, "sched:sched_process_exec", &exec);
    let trace = attach(trace, 4_000, 0, 7, 30, "/web");
    let fields = [
        ("prev_comm", Text("web")),
        ("prev_pid", Number(7)),
        ("prev_state", Number(1)),
        ("next_comm", Text("swapper")),
        ("next_pid", Number(0)),
    ];
    let trace = trace.guest(0, 9_000, "sched:sched_switch", &fields);

    assert_eq!(running(trace), by_path(&[("/web", 5_000), ("/", 3_000)]));
}

#[test]
fn what_other_hierarchies_do_moves_no_task() {
    let trace = cgroup(found(TestTrace::new(), 500, 7, 1), 600, 1, "/").switch(0, 1_000, 0, 7);
    let trace = attach(trace, 4_000, 3, 7, 99, "/cpuset").switch(0, 9_000, 7, 0);

    assert_eq!(running(trace), by_path(&[("/", 8_000)]));
}

#[test]
fn child_is_in_its_makers_cgroup_unless_a_record_moves_it() {
    let trace = cgroup(found(TestTrace::new(), 500, 7, 30), 600, 30, "/web").switch(0, 1_000, 0, 7);
    let trace = fork(trace, 2_000, 7, 8);
    let trace = fork(described(trace, 2_500, 9, [9, 0], 31, true), 2_600, 7, 9);
    let trace = cgroup(trace, 2_700, 31, "/db");
    let trace = trace.switch(0, 3_000, 7, 8).switch(0, 6_000, 8, 9).switch(0, 7_000, 9, 0);

    assert_eq!(running(trace), by_path(&[("/web", 2_000 + 3_000), ("/db", 1_000)]));
}

#[test]
fn cgroup_without_a_path_is_named_by_its_id() {
    let trace = found(TestTrace::new(), 500, 7, 30).switch(0, 1_000, 0, 7).switch(0, 2_000, 7, 0);

    assert_eq!(running(trace), by_path(&[("#30", 1_000)]));
}

#[test]
fn tasks_are_shown_with_their_cgroup_and_what_they_are_called_in_their_own_namespace() {
    let trace = cgroup(described(TestTrace::new(), 500, 7, [1, 1], 30, false), 600, 30, "/web\u{1b}");
    let (_dir, trace) = trace.switch(0, 1_000, 0, 7).switch(0, 2_000, 7, 0).open();
    let report = tasks::report(&trace, Window::ALL).unwrap();
    let mut text = Vec::new();

    report.write_text(&mut text).unwrap();

    let task = &report.vms[0].tasks[0];
    let own = task.own.unwrap();
    assert_eq!((task.tid, own.tid, own.pid, own.namespace), (7, 1, 1, 4_026_531_837));
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("own tid  cgroup") && text.contains("/web\\u{1b}"), "{text}");
}

#[test]
fn report_without_a_known_cgroup_says_what_is_missing() {
    let none = TestTrace::new().switch(0, 1_000, 0, 7).switch(0, 2_000, 7, 0);
    let without = [("tid", 7), ("pid", 7), ("vtid", 7), ("vpid", 7), ("ns_level", 0), ("ns_inum", 1), ("is_new", 0)];
    let fields: Vec<(&'static str, Field)> = without.map(|(name, number)| (name, Number(number))).to_vec();
    let no_cgroups = TestTrace::new().switch(0, 1_000, 0, 7).guest(0, 1_500, event::name::TASK, &fields);
    let error = |trace: TestTrace| {
        let (_dir, trace) = trace.open();
        make(&trace, Window::ALL, CgroupTimes::new(Window::ALL)).unwrap_err().to_string()
    };

    assert!(error(none).contains("no strata:task among its events"));
    assert!(error(no_cgroups).contains("CONFIG_CGROUPS"));
}
