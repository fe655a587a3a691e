use super::*;
use crate::report::{scenario, summary};
use strata_recording::test_trace::{Field, TestTrace};

/// The thread that preempts the vCPU in [`scenario::preempted_in_an_exit`].
const HOG: i32 = 200;

fn cost_of(trace: TestTrace, window: Window) -> RecordingCost {
    let (_dir, trace) = trace.open();
    summary::report(&trace, window).unwrap().cost
}

fn text_of(cost: &RecordingCost) -> String {
    let mut out = Vec::new();
    write_cost(cost, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// A vCPU that has left nothing but the guest's records: one each 200 ticks, the first 300 after one another each
/// 60.
fn evenly_recorded(records: u64) -> TestTrace {
    let times = (0..records).map(|number| 10_000 + if number < 300 { number * 60 } else { number * 200 });
    times.fold(TestTrace::new(), |trace, time| {
        trace.guest(0, time, "irq_vectors:local_timer_entry", &[("vector", Field::Number(236))])
    })
}

#[test]
fn thread_of_strata_that_ran_instead_of_a_vcpu_is_charged_for_it() {
    let trace = scenario::preempted_in_an_exit().strata_thread(HOG, "strata-recorder", 5_000);

    let cost = &cost_of(trace, Window::ALL).vms[0];

    // Preempted for 18000 ticks, and 1000 more until it ran on an idle CPU; a tick is half a nanosecond.
    assert_eq!(cost.vcpus_waited, Taken { total_ns: 9_500, by_strata_ns: 9_000, by_recording_ns: 9_000 });
    assert_eq!(cost.tasks_stolen, Taken { total_ns: 9_000, by_strata_ns: 9_000, by_recording_ns: 9_000 });
    assert_eq!(cost.thieves, [Thief { thread: "hog/200".into(), ns: 9_000, records: true }]);
    assert_eq!(cost.threads[0].cpu_ns, 5_000);
}

#[test]
fn thread_that_serves_a_device_does_not_record() {
    let trace = scenario::preempted_in_an_exit().strata_thread(HOG, "strata-disk0", 5_000);

    let cost = cost_of(trace, Window::ALL);

    let taken = cost.vms[0].tasks_stolen;
    assert_eq!(taken, Taken { total_ns: 9_000, by_strata_ns: 9_000, by_recording_ns: 0 });
    assert!(!cost.vms[0].thieves[0].records);
    assert!(text_of(&cost).contains("9.000 µs of 9.000 µs (100.0 %), 0 ns of it by those that record (0.0 %)"));
}

#[test]
fn thread_of_somebody_else_is_not_charged_to_strata() {
    let trace = scenario::preempted_in_an_exit().strata_thread(HOG + 1, "strata-recorder", 5_000);

    let cost = &cost_of(trace, Window::ALL).vms[0];

    assert_eq!((cost.vcpus_waited.by_strata_ns, cost.tasks_stolen.by_strata_ns), (0, 0));
    assert_eq!(cost.tasks_stolen.total_ns, 9_000);
}

#[test]
fn vcpus_threads_are_not_the_recorders() {
    let trace = scenario::preempted_in_an_exit()
        .strata_thread(100, "vcpu0", 90_000)
        .strata_thread(7, "strata-clock", 10)
        .strata_thread(8, "strata-recorder", 20);

    let cost = cost_of(trace, Window::ALL);

    let names: Vec<&str> = cost.vms[0].threads.iter().map(|thread| thread.name.as_str()).collect();
    assert_eq!(names, ["strata-recorder", "strata-clock"]);
    assert!(text_of(&cost).contains("strata's threads: 30 ns (strata-recorder 20 ns, strata-clock 10 ns)"));
}

#[test]
fn time_behind_the_window_does_not_count() {
    let trace = scenario::preempted_in_an_exit().strata_thread(HOG, "strata-recorder", 5_000);

    let cost = &cost_of(trace, Window { begin: 9_000, end: 30_000 }).vms[0];

    assert_eq!(cost.tasks_stolen, Taken { total_ns: 4_000, by_strata_ns: 4_000, by_recording_ns: 4_000 });
    assert_eq!(cost.guest_ns, 5_000);
}

#[test]
fn record_costs_what_the_shortest_times_between_two_are() {
    let cost = cost_of(evenly_recorded(1_000), Window::ALL);

    let records = &cost.records[0];
    assert_eq!((records.layer, records.records), (LayerKind::GuestKernel, 1_000));
    assert_eq!((records.each_ns, records.estimated_ns), (Some(30), Some(30_000)));
    assert!(cost.disk_bytes >= 16_000, "{}", cost.disk_bytes);
}

#[test]
fn records_that_the_agent_makes_in_a_loop_do_not_tell_what_a_probe_costs() {
    let symbols = (0..500_u64)
        .fold(evenly_recorded(1_000), |trace, number| trace.symbol(1_000_000 + number * 2, number * 0x100, "function"));

    assert_eq!(cost_of(symbols, Window::ALL).records[0].each_ns, Some(30));
}

#[test]
fn few_records_do_not_tell_what_one_costs() {
    let cost = cost_of(evenly_recorded(20), Window::ALL);

    assert_eq!((cost.records[0].each_ns, cost.records[0].estimated_ns), (None, None));
    assert!(text_of(&cost).contains("not known; it is written when a recording ends"), "{}", text_of(&cost));
}

#[test]
fn time_across_lost_records_does_not_tell_what_one_costs() {
    let rare = (0..150_u64).fold(TestTrace::new(), |trace, number| {
        let trace =
            trace.guest(0, 10_000 + number * 500, "irq_vectors:local_timer_entry", &[("vector", Field::Number(236))]);
        if number < 100 { trace.lost(LayerKind::GuestKernel, 0, 1) } else { trace }
    });

    assert_eq!(cost_of(rare, Window::ALL).records[0].each_ns, None);
}
