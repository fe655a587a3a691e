//! Shows: Parts of a task's and vCPU's time add up to wall time to the tick.

use super::*;
use crate::report::{Report, scenario};
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

const DEAD: i64 = 0x10;

#[test]
fn short_tasks_that_name_themselves_are_a_row_each_and_their_makers_time_is_not_theirs() {
    let mut trace = TestTrace::new().named_switch((0, 900), (0, "swapper"), 0, (5, "sh"));
    for number in 0..400_i64 {
        let (tid, begin) = (1_000 + number, 1_000 + 1_000 * number.cast_unsigned());
        let name: &str = Box::leak(format!("job-{number}").into_boxed_str());
        let child = [("parent_pid", Number(5)), ("child_comm", Text("sh")), ("child_pid", Number(tid))];
        trace = trace.guest(0, begin, "sched:sched_process_fork", &child);
        trace = trace.named_switch((0, begin + 100), (5, "sh"), 0, (tid, "sh"));
        trace = trace.rename(0, begin + 300, tid, "sh", name);
        trace = trace.named_switch((0, begin + 700), (tid, name), DEAD, (5, "sh"));
    }
    let (_dir, trace) = trace.open();

    let report = report(&trace, Window::ALL).unwrap();

    let rows = |of: i64| report.vms[0].tasks.iter().filter(move |task| i64::from(task.tid) == of);
    let row = |task: &TaskReport| (task.comm.clone(), task.times.running, task.wall_ticks, task.born, task.ended);
    for number in 0..400 {
        let mut reported: Vec<_> = rows(1_000 + number).map(row).collect();
        reported.sort_unstable();
        let expected = [(format!("job-{number}"), 400, 400, false, true), ("sh".into(), 200, 300, true, false)];
        assert_eq!(reported, expected);
    }
    let own: Vec<_> = rows(5).map(|task| (task.comm.as_str(), task.times.running, task.times.runnable)).collect();
    assert_eq!(own, [("sh", 100 + 400 * 100 + 399 * 300, 400 * 600)]);
}

#[test]
fn name_from_before_the_window_holds_up_to_the_renaming_in_it() {
    let trace = TestTrace::new().named_switch((0, 1_000), (0, "swapper"), 0, (7, "sh")).rename(0, 5_000, 7, "sh", "dd");
    let (_dir, trace) = trace.named_switch((0, 9_000), (7, "dd"), DEAD, (0, "swapper")).open();

    let report = report(&trace, Window { begin: 3_000, end: 8_000 }).unwrap();

    let rows = |comm| report.vms[0].tasks.iter().filter(move |task| task.comm == comm).map(|task| task.times.running);
    assert_eq!((rows("sh").collect::<Vec<_>>(), rows("dd").collect::<Vec<_>>()), (vec![2_000], vec![3_000]));
}

#[test]
fn task_that_ran_before_the_first_switch_has_the_name_of_that_time() {
    let trace = TestTrace::new().guest(0, 1_000, "test:event", &[]).rename(0, 4_000, 7, "sh", "dd");
    let trace = trace.named_switch((0, 6_000), (7, "dd"), 1, (8, "x")).guest(0, 7_000, "test:event", &[]);
    let (_dir, trace) = trace.open();

    let report = report(&trace, Window::ALL).unwrap();

    let rows = report.vms[0].tasks.iter().filter(|task| task.tid == 7);
    let mut rows: Vec<_> = rows.map(|task| (task.comm.as_str(), task.wall_ticks)).collect();
    rows.sort_unstable();
    assert_eq!(rows, [("dd", 3_000), ("sh", 3_000)]);
}

#[test]
fn task_that_runs_another_program_is_two_rows_whose_parts_add_up() {
    let switch = |trace: TestTrace, time, prev, next| trace.named_switch((0, time), prev, 0, next);
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

/// [`scenario::preempted_in_an_exit`] in a guest that does not use its CPU 1, with what `more` adds.
fn with_unused_cpu(more: impl FnOnce(TestTrace) -> TestTrace) -> Tasks {
    let (_dir, trace) = more(scenario::preempted_in_an_exit().never_joined(1)).open();
    report(&trace, Window::ALL).unwrap()
}

const ENTRY_OF_VCPU_1: [(&str, strata_recording::test_trace::Field); 2] =
    [("common_pid", Number(101)), ("vcpu_id", Number(1))];
const HALT_OF_VCPU_1: [(&str, strata_recording::test_trace::Field); 4] =
    [("common_pid", Number(101)), ("exit_reason", Number(0x78)), ("isa", Number(2)), ("vcpu_id", Number(1))];

/// By name: the time in which what tasks did is known, ticks.
fn known(report: &Tasks) -> Vec<(&str, u64)> {
    report.vms[0].tasks.iter().map(|task| (&*task.comm, task.wall_ticks - task.times.unknown)).collect()
}

#[test]
fn cpu_that_its_guest_does_not_use_leaves_the_tasks_of_the_others_known() {
    let without = of_scenario();

    let with = with_unused_cpu(|trace| trace);

    assert_eq!(with.vms, without.vms);
}

#[test]
fn cpu_that_was_taken_offline_before_the_kernel_recorded_leaves_the_tasks_of_the_others_known() {
    let was_offline = with_unused_cpu(|trace| {
        trace.host(1, 100, "kvm:kvm_entry", &ENTRY_OF_VCPU_1).host(1, 200, "kvm:kvm_exit", &HALT_OF_VCPU_1)
    });
    // It may still be in the guest.
    let was_not = with_unused_cpu(|trace| trace.host(1, 100, "kvm:kvm_entry", &ENTRY_OF_VCPU_1));

    assert_eq!(known(&was_offline), known(&of_scenario()));
    assert!(known(&was_not) < known(&of_scenario()), "{:?}", known(&was_not));
}

#[test]
fn cpu_that_never_recorded_and_was_in_the_guest_makes_what_follows_unknown() {
    let report = with_unused_cpu(|trace| trace.host(1, 70_000, "kvm:kvm_entry", &ENTRY_OF_VCPU_1));

    let [app, all] = [&report, &of_scenario()].map(|report| task(report, "app").times);
    assert_eq!(app, Times { sleep: 2_000, unknown: all.sleep - 2_000, ..all });
}

#[test]
fn cpu_that_never_recorded_is_not_taken_for_unused_where_no_layer_tells() {
    let recording = || TestTrace::new().switch(0, 1_000, 0, 7).switch(0, 5_000, 7, 8).switch(0, 9_000, 8, 7);
    let known_of = |trace: TestTrace| {
        let (_dir, trace) = trace.open();
        let report = report(&trace, Window::ALL).unwrap();
        report.vms[0].tasks.iter().map(|task| task.times.runnable).sum::<u64>()
    };
    let host = |trace: TestTrace| trace.host(0, 500, "kvm:kvm_exit", &HALT_OF_VCPU_1);
    let reported = |trace: TestTrace| host(trace).host(0, 600, "kvm:kvm_entry", &[("common_pid", Number(100))]);
    let vmm = |trace: TestTrace, enters| {
        let trace = trace.vmm(0, 500, "vmm:vcpu_enter", &[("vcpu", Number(0))]);
        let trace = trace.vmm(0, 600, "vmm:vcpu_exit", &[("vcpu", Number(0)), ("reason", Number(5))]);
        trace.vmm(enters, 700, "vmm:vcpu_enter", &[("vcpu", Number(enters.into()))])
    };

    assert_eq!(known_of(recording()), 4_000);
    assert_eq!(known_of(recording().never_joined(1)), 0);
    assert_eq!(known_of(reported(recording().never_joined(1))), 4_000);
    // Without the host's kernel, the VMM says which vCPUs it runs.
    assert_eq!(known_of(vmm(recording().never_joined(1), 0)), 4_000);
    assert_eq!(known_of(vmm(recording().never_joined(1), 1)), 0);
    // An entry may be among what was lost.
    let lossy = reported(recording().never_joined(1)).lost(LayerKind::HostKernel, 0, 3);
    assert_eq!(known_of(lossy), 0);
}

#[test]
fn task_that_is_named_while_records_are_missing_was_there_before() {
    let wall = |trace: TestTrace| {
        let waking = [("comm", Text("late")), ("pid", Number(70)), ("target_cpu", Number(0))];
        let trace = trace.guest(0, 10_000, "sched:sched_waking", &waking);
        let trace = trace.named_switch((0, 20_000), (7, "seven"), 0, (70, "late"));
        let (_dir, trace) = trace.named_switch((0, 30_000), (70, "late"), 1, (7, "seven")).open();
        task(&report(&trace, Window::ALL).unwrap(), "late").wall_ticks
    };
    let begin = || TestTrace::new().switch(0, 1_000, 0, 7).switch(1, 1_000, 0, 8);

    let whole = wall(begin());
    let with_a_gap = wall(begin().switch(1, 2_000, 8, 0).lost(LayerKind::GuestKernel, 1, 3));

    assert_eq!((whole, with_a_gap), (29_000, 29_000));
}
