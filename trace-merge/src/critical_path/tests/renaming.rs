//! Tests: a task is called in each report as it has called itself, from then on.

use crate::critical_path::{CriticalPathOptions, critical_paths};
use crate::report::devices::{flows, net_flows};
use crate::report::kernels::{functions, locks, syscalls};
use crate::report::scheduling::wakeups;
use crate::report::{Window, death, make};
use strata_recording::reader::Trace;
use strata_recording::test_trace::Field::{Hex, Number, Text};
use strata_recording::test_trace::TestTrace;
use tempfile::TempDir;

const ALL: Window = Window { begin: 0, end: u64::MAX };
const DEAD: i64 = 0x10;

/// Task 7 comes to run at tick 1000, called `sh`, and calls itself `dd` at 2000. It does what `doing` adds at 3000 and
/// later, before the first switch that says so, at 20000.
fn renamed(doing: impl FnOnce(TestTrace) -> TestTrace) -> (TempDir, Trace) {
    let trace = TestTrace::new().named_switch((0, 1_000), (0, "swapper"), 0, (7, "sh")).rename(0, 2_000, 7, "sh", "dd");
    doing(trace).named_switch((0, 20_000), (7, "dd"), DEAD, (0, "swapper")).open()
}

#[test]
fn syscalls_are_those_of_the_process_under_its_name() {
    let call = [("id", Number(1))];
    let (_dir, trace) = renamed(|trace| {
        trace.guest(0, 3_000, "raw_syscalls:sys_enter", &call).guest(0, 4_000, "raw_syscalls:sys_exit", &call)
    });

    let report = syscalls::report(&trace, ALL).unwrap();

    assert_eq!(report.guests[0].processes[0].comm, "dd");
}

#[test]
fn who_waits_for_a_lock_has_the_name_of_that_time() {
    let lock = [("lock_addr", Hex(0xffff_ffff_8200_0000)), ("flags", Hex(1))];
    let (_dir, trace) = renamed(|trace| {
        trace.guest(0, 3_000, "lock:contention_begin", &lock).guest(0, 4_000, "lock:contention_end", &lock)
    });

    let report = locks::report(&trace, ALL).unwrap();

    assert_eq!(report.guests[0].kernel[0].waiters[0].comm, "dd");
}

#[test]
fn request_is_issued_under_the_name_of_that_time() {
    let block = [("dev", Number(254 << 20)), ("sector", Number(64)), ("nr_sector", Number(8)), ("rwbs", Text("R"))];
    let request = |done| {
        let place = [("disk", Number(0)), ("kind", Text("read")), ("sector", Number(64)), ("bytes", Number(4096))];
        [&place[..], &[("done", Number(done))]].concat()
    };
    let (_dir, trace) = renamed(|trace| {
        let trace = trace.guest(0, 3_000, "block:block_rq_issue", &block);
        let trace =
            trace.vmm(2, 3_100, "vmm:block_request", &request(0)).vmm(2, 3_200, "vmm:block_request", &request(1));
        trace.guest(0, 3_300, "block:block_rq_complete", &block)
    });

    let report = flows::report(&trace, ALL).unwrap();

    assert_eq!(report.vms[0].slowest[0].issuer.as_ref().map(|task| &*task.comm), Some("dd"));
}

#[test]
fn packet_is_sent_under_the_name_of_that_time() {
    let packet = [("skbaddr", Hex(0x10)), ("len", Number(98)), ("name", Text("eth0"))];
    let sent = |done| [("net", Number(0)), ("id", Number(1)), ("bytes", Number(98)), ("done", Number(done))];
    let (_dir, trace) = renamed(|trace| {
        let trace = trace.guest(0, 2_900, "raw_syscalls:sys_enter", &[("id", Number(44))]);
        let trace = trace.guest(0, 3_000, "net:net_dev_queue", &packet);
        let trace = trace.guest(0, 3_010, "net:net_dev_start_xmit", &packet);
        trace.vmm(2, 3_100, "vmm:net_send", &sent(0)).vmm(2, 3_120, "vmm:net_send", &sent(1))
    });

    let mut flows = net_flows::NetFlowTimes::keeping_ended(&trace);
    let passed = strata_analysis::pass(&trace, ALL, &mut [&mut flows]);

    let names = flows.take_ended(&passed.timeline, true).into_iter().map(|(_, (_, flow))| flow.task.unwrap().comm);
    assert_eq!(names.collect::<Vec<_>>(), ["dd"]);
}

#[test]
fn samples_are_those_of_the_process_under_its_name() {
    let sample = [("ip", Hex(0x40_1234)), ("pid", Number(7)), ("tid", Number(7)), ("user", Number(1))];
    let (_dir, trace) = renamed(|trace| trace.guest(0, 3_000, "strata:sample", &sample));

    let report = functions::report(&trace, ALL, None).unwrap();

    assert_eq!(report.kernels[0].processes[0].comm, "dd");
}

#[test]
fn task_that_runs_at_the_end_has_the_name_that_it_gave_itself() {
    let (_dir, trace) = TestTrace::new()
        .named_switch((0, 1_000), (0, "swapper"), 0, (7, "sh"))
        .rename(0, 2_000, 7, "sh", "dd")
        .guest(0, 3_000, "test:event", &[])
        .open();

    let death = make(&trace, ALL, death::LastMoments::new(&trace, ALL)).unwrap();

    assert!(death.vms[0].cpus[0].guest.starts_with("dd/7"), "{}", death.vms[0].cpus[0].guest);
}

#[test]
fn wakeup_is_that_of_the_name_that_another_thread_gave_the_task_meanwhile() {
    let waking = [("pid", Number(7)), ("target_cpu", Number(0))];
    let (_dir, trace) = TestTrace::new()
        .named_switch((0, 1_000), (7, "sh"), 1, (0, "swapper"))
        .named_switch((1, 1_100), (0, "swapper"), 0, (8, "sh"))
        .guest(1, 2_000, "sched:sched_waking", &waking)
        .rename(1, 2_100, 7, "sh", "dd")
        .named_switch((0, 3_000), (0, "swapper"), 0, (7, ""))
        .open();

    let report = wakeups::report(&trace, ALL).unwrap();

    let names: Vec<_> = report.vms[0].tasks.iter().map(|task| &*task.comm).collect();
    assert_eq!((names, &*report.vms[0].worst[0].comm), (vec!["dd"], "dd"));
}

#[test]
fn task_is_found_by_the_name_that_it_had_before_the_window() {
    let (_dir, trace) = renamed(|trace| trace.guest(0, 3_000, "test:event", &[]));
    let requested = |name: &str| {
        let from = Some(std::time::Duration::from_nanos(250));
        let options = CriticalPathOptions { from, ..CriticalPathOptions::of(name.parse().unwrap()) };
        critical_paths(&trace, &options).unwrap().0.paths.remove(0)
    };

    let [by_last, by_former] = [requested("dd"), requested("sh")];

    assert!(by_last.summary.contains("dd/7"), "{}", by_last.summary);
    assert_eq!(by_last.summary, by_former.summary);
}
