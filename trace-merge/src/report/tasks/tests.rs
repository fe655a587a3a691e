use super::*;
use crate::report::scenario;
use strata_recording::layer::LayerKind;
use strata_recording::test_trace::Field::{Number, Text};
use strata_recording::test_trace::TestTrace;

fn of_scenario() -> Tasks {
    let (_dir, trace) = scenario::preempted_in_an_exit().open();
    report(&trace, Window::ALL).unwrap()
}

fn task<'r>(report: &'r Tasks, comm: &str) -> &'r TaskReport {
    report.vms[0].tasks.iter().find(|task| task.comm == comm).unwrap()
}

#[test]
fn time_of_a_task_is_split_by_what_its_vcpu_did() {
    let report = of_scenario();

    let app = task(&report, "app");
    assert_eq!(
        app.times,
        Times {
            running: 9_000 + 9_000 + 4_000,
            stolen: 18_000,
            exits: 2_000 + 5_000 + 2_000 + 3_000,
            vmm: 5_000,
            sleep: 23_000,
            ..Times::default()
        }
    );
    assert_eq!((app.wall_ticks, app.wall_ns), (80_000, 40_000));
    let stolen = app.parts.iter().find(|part| part.state == "stolen").unwrap();
    assert_eq!((stolen.detail.as_deref(), stolen.ns), (Some("hog/200"), 9_000));
}

#[test]
fn time_before_a_tasks_first_event_is_unknown() {
    let report = of_scenario();

    let late = task(&report, "late");
    assert_eq!(late.times, Times { unknown: 49_000, runnable: 8_000, running: 2_000, ..Times::default() });
    assert!(late.ended && !late.born);
}

#[test]
fn parts_add_up_in_every_window() {
    let (_dir, trace) = scenario::preempted_in_an_exit().open();
    for (begin, end) in [(0, 12_000), (21_000, 46_500), (61_500, 69_000), (69_000, u64::MAX)] {
        let report = report(&trace, Window { begin, end }).unwrap();

        for task in &report.vms[0].tasks {
            assert_eq!(task.times.parts().iter().sum::<u64>(), task.wall_ticks);
            assert_eq!(task.parts.iter().map(|part| part.ticks).sum::<u64>(), task.wall_ticks);
        }
    }
}

#[test]
fn window_without_guest_records_has_nothing_to_report() {
    let (_dir, trace) = scenario::preempted_in_an_exit().open();

    let error = report(&trace, Window { begin: 0, end: 10_500 }).unwrap_err();

    assert!(error.to_string().contains("--agent"), "{error}");
}

#[test]
fn lost_records_make_time_unknown_and_the_parts_still_add_up() {
    let trace = scenario::preempted_and(|trace| trace.lost(LayerKind::HostKernel, 0, 3));
    let (_dir, trace) = trace.open();

    let report = report(&trace, Window::ALL).unwrap();

    let app = task(&report, "app");
    // Until the VMM tells where the vCPU is again.
    assert_eq!((app.times.unknown, app.times.stolen), (45_000 - 22_000, 0));
    assert_eq!(app.times.parts().iter().sum::<u64>(), app.wall_ticks);
}

#[test]
fn time_behind_the_end_of_the_hosts_stream_is_unknown_unless_that_came_to_its_end() {
    let entry = [("common_pid", Number(100)), ("vcpu_id", Number(0))];
    let exit = [("common_pid", Number(100)), ("exit_reason", Number(0x78)), ("isa", Number(2)), ("vcpu_id", Number(0))];
    let host = || TestTrace::new().host(0, 9_000, "kvm:kvm_exit", &exit).host(0, 10_000, "kvm:kvm_entry", &entry);
    let recording = || host().switch(0, 11_000, 0, 7).switch(0, 50_000, 7, 0);
    let times = |trace: TestTrace| {
        let (_dir, trace) = trace.open();
        task(&report(&trace, Window::ALL).unwrap(), "seven").times
    };

    assert_eq!(times(recording()), Times { running: 39_000, ..Times::default() });
    assert_eq!(times(recording().unfinished()), Times { unknown: 39_000, ..Times::default() });
}

#[test]
fn table_names_the_thief_and_shows_no_column_of_nothing() {
    let mut out = Vec::new();

    of_scenario().write_text(&mut out).unwrap();

    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("vm0: stolen while running: 9.000 µs"), "{text}");
    assert!(text.contains("hog/200"), "{text}");
    assert!(!text.contains("lock"), "{text}");
}

fn short(tid: i32, comm: &str) -> TaskReport {
    TaskReport {
        tid,
        comm: comm.into(),
        cgroup: None,
        own: None,
        born: true,
        ended: true,
        wall_ticks: 10,
        wall_ns: 5,
        times: Times { running: 10, ..Times::default() },
        parts: Vec::new(),
    }
}

#[test]
fn short_lived_tasks_of_one_name_are_one_row() {
    let window = Window { begin: 0, end: 1000 };
    let tasks = vec![short(1, "sh"), short(2, "sh"), short(3, "ls"), TaskReport { born: false, ..short(4, "sh") }];
    let vm = VmTasks { vm: "vm0".into(), window, warnings: Vec::new(), tasks };

    let mut rows: Vec<(String, usize, u64)> =
        vm.rows().into_iter().map(|row| (row.name(), row.tasks, row.times.running)).collect();

    rows.sort();
    assert_eq!(rows, [("ls/3".into(), 1, 10), ("sh ×2".into(), 2, 20), ("sh/4".into(), 1, 10)]);
}

#[test]
fn rows_that_are_too_many_are_one_and_nothing_is_lost() {
    let window = Window { begin: 0, end: 1000 };
    let tasks = (0..100).map(|tid| TaskReport { born: false, ..short(tid, "task") }).collect();
    let vm = VmTasks { vm: "vm0".into(), window, warnings: Vec::new(), tasks };

    let rows = vm.rows();

    assert_eq!((rows.len(), rows[SHOWN].tasks), (SHOWN + 1, 100 - SHOWN));
    assert_eq!(rows.iter().map(|row| row.times.running).sum::<u64>(), 1000);
}

#[test]
fn task_that_runs_another_program_is_two_rows_whose_parts_add_up() {
    let switch = |trace: TestTrace, time, prev: (i64, &'static str), next: (i64, &'static str)| {
        let prev_fields = [("prev_comm", Text(prev.1)), ("prev_pid", Number(prev.0)), ("prev_state", Number(0))];
        let next_fields = [("next_comm", Text(next.1)), ("next_pid", Number(next.0))];
        trace.guest(0, time, "sched:sched_switch", &[&prev_fields[..], &next_fields].concat())
    };
    let exec = [("pid", Number(7)), ("old_pid", Number(7)), ("filename", Text("/bin/ls"))];
    let trace = switch(TestTrace::new(), 1_000, (0, "swapper"), (7, "sh"));
    let trace = trace.guest(0, 5_000, "sched:sched_process_exec", &exec);
    let trace = switch(switch(trace, 11_000, (7, "ls"), (8, "other")), 12_000, (8, "other"), (0, "swapper"));
    let (_dir, trace) = trace.open();

    let report = report(&trace, Window::ALL).unwrap();

    let (before, after) = (task(&report, "sh"), task(&report, "ls"));
    assert_eq!((before.tid, before.wall_ticks, before.times.running), (7, 4_000, 4_000));
    assert_eq!(
        (after.tid, after.wall_ticks, after.times),
        (7, 7_000, Times { running: 6_000, runnable: 1_000, ..Times::default() })
    );
    for task in [before, after] {
        assert_eq!(task.parts.iter().map(|part| part.ticks).sum::<u64>(), task.wall_ticks);
    }
}
