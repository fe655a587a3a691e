//! Shows: Each finding of `strata report` appears above its threshold, not below.

use super::super::scenario;
use super::*;
use crate::report::devices::flows::Milestone;
use crate::report::kernels::exits::ReasonExits;
use crate::report::kernels::exits::functions::FunctionExits;
use crate::report::kernels::exits::longest::Longest;
use crate::report::kernels::exits::operations::OperationExits;
use crate::report::kernels::irqs::{CpuTimes, Interrupt};
use crate::report::kernels::locks::KernelLock;
use crate::report::rows::columns::Object;
use crate::report::scheduling::times::Times;
use crate::report::statistics::distribution;
use crate::report::statistics::distribution::Distribution;
use crate::report::summary::cost::{Taken, Thief};
use strata_analysis::event::KvmAccess;
use strata_recording::test_trace::manifest;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

fn time(count: u64, total_ns: u64, p99_ns: u64) -> Distribution {
    Distribution { count, total_ns, p50_ns: p99_ns / 2, p99_ns, max_ns: p99_ns, ..Distribution::default() }
}

/// A guest whose tasks ran for 2000 ticks (1000 ns); `hog` stole `stolen` of them.
fn with_thief(stolen: u64) -> VmTasks {
    let part = Part { state: "stolen", detail: Some("hog/200".into()), ticks: stolen, ns: stolen / 2 };
    let task = TaskReport {
        tid: 10,
        comm: "app".into(),
        cgroup: None,
        own: None,
        born: false,
        ended: false,
        wall_ticks: 9_000,
        wall_ns: 4_500,
        times: Times { running: 2_000 - stolen, stolen, ..Times::default() },
        times_ns: Times { running: 1_000 - stolen / 2, stolen: stolen / 2, ..Times::default() },
        parts: vec![part],
    };
    VmTasks { vm: "vm0".into(), window: Window { begin: 0, end: 9_000 }, warnings: Vec::new(), tasks: vec![task] }
}

fn with_exits(kvm_ns: u64, halted_ns: u64) -> VmExits {
    let reason = ReasonExits {
        reason: "ioio".into(),
        count: 7,
        time: time(7, kvm_ns + 1, kvm_ns),
        longest: None,
        kvm_ns,
        vmm_ns: 1,
        stolen_ns: 0,
        halted_ns,
        blocked_ns: 0,
    };
    VmExits {
        vm: "vm0".into(),
        warnings: Vec::new(),
        count: 7,
        unfinished: 0,
        reasons: vec![reason],
        functions: Vec::new(),
        is_nested: false,
        other_functions: 0,
        operations: Vec::new(),
        accesses: Vec::new(),
        other_operations: 0,
        other_accesses: 0,
    }
}

fn with_lock(total_ns: u64) -> GuestLocks {
    let lock = KernelLock {
        address: 0x1000,
        name: Some("big_lock".into()),
        kind: "mutex".into(),
        context: "write".into(),
        calls: Vec::new(),
        waits: distribution::Times { count: 4, total_ns, max_ns: total_ns, ..distribution::Times::default() },
        waiters: Vec::new(),
    };
    GuestLocks { vm: "vm0".into(), kernel: vec![lock], futexes: Vec::new(), unfinished: 0, kernel_locks_recorded: true }
}

/// Requests of 100 ms all together; the slowest took `p99_ns`, and the host's part was `host_ns`.
fn with_disk(p99_ns: u64, host_ns: u64) -> VmFlows {
    let step = |from, to, total_ns| StepTimes { from, to, times: time(5, total_ns, p99_ns) };
    VmFlows {
        vm: "vm0".into(),
        total: time(5, 100 * MS, p99_ns),
        steps: vec![
            step(Milestone::Started, Milestone::Finished, host_ns),
            step(Milestone::Finished, Milestone::Raised, 40 * MS),
        ],
        host_io: time(0, 0, 0),
        slowest: Vec::new(),
        guest_block_events: true,
        unfinished: 0,
        across_lost_records: 0,
    }
}

fn with_timer(count: u64) -> LayerInterrupts {
    let times = distribution::Times { count, total_ns: count * 1_000, max_ns: 1_000, ..distribution::Times::default() };
    let timer = Interrupt {
        kind: InterruptKind::Vector,
        number: 236,
        name: "local_timer".into(),
        cpus: vec![CpuTimes { cpu: 1, times: times.clone(), unfinished: 0 }],
        times,
        unfinished: 0,
    };
    LayerInterrupts { layer: LayerKind::GuestKernel, vm: Some("vm0".into()), interrupts: vec![timer] }
}

#[test]
fn hundredth_of_the_requests_is_of_a_hundred_or_more() {
    let of = |count| slowest_of(&Distribution { max_ns: 7 * MS, ..time(count, 100 * MS, 5 * MS) }, "a");

    assert_eq!(of(1), "the one disk request of a took 7.000 ms");
    assert_eq!(of(99), "the slowest of 99 disk requests of a took 7.000 ms");
    assert_eq!(of(100), "one in a hundred of 100 disk requests of a took longer than 5.000 ms");
}

#[test]
fn thief_is_one_from_its_threshold_on() {
    let clock = manifest().clock;

    let found = thief(&with_thief(100), &RecordingCost::default(), &clock, NextCommand::on_any()).unwrap();

    assert_eq!(found.text, "the host ran hog/200 for 50 ns, 5.0 % of the time in which tasks of vm0 were to run");
    assert_eq!((found.thousandths, found.next.text.as_str()), (50, "strata why trace --task app/10 --vm vm0"));
    assert_eq!(thief(&with_thief(99), &RecordingCost::default(), &clock, NextCommand::on_any()), None);
}

#[test]
fn limit_is_no_thief_and_hides_none() {
    let clock = manifest().clock;
    let mut tasks = with_thief(200);
    let [task] = &mut *tasks.tasks else { panic!() };
    for nobody in [state_names::NOT_ALLOWED, state_names::IDLE_FOR_LONG, state_names::IDLE_HOST_CPU, "not known"] {
        task.parts.push(Part { detail: Some(nobody.into()), ticks: 900, ..task.parts[0].clone() });
    }

    let found = thief(&tasks, &RecordingCost::default(), &clock, NextCommand::on_any()).unwrap();

    assert!(found.text.starts_with("the host ran hog/200 for 100 ns, "), "{}", found.text);
}

#[test]
fn exits_are_a_storm_from_their_threshold_on_and_halts_never() {
    let found = exit_storm(&with_exits(99, 0), &with_thief(0), 1_000, NextCommand::on_any()).unwrap();

    assert_eq!(found.text, "7 exits of vm0 for ioio took 100 ns, 10.0 % of what its tasks were to run");
    assert_eq!(exit_storm(&with_exits(98, 0), &with_thief(0), 1_000, NextCommand::on_any()), None);
    assert_eq!(exit_storm(&with_exits(99, 1), &with_thief(0), 1_000, NextCommand::on_any()), None);
}

const LONGEST: Longest = Longest { ticks: 5, begin: 1, vcpu: 0 };

/// Exits that take long, `count` of 7 for a register.
fn with_operation(count: u64) -> VmExits {
    let operation = KvmAccess::Msr { register: 0x6e0, is_write: true };
    let operation = OperationExits { reason: "ioio".into(), operation, time: time(count, 10, 5), longest: LONGEST };
    VmExits { operations: vec![operation], ..with_exits(99, 0) }
}

#[test]
fn finding_on_exits_names_what_most_of_them_are_about() {
    let text = |count| exit_storm(&with_operation(count), &with_thief(0), 1_000, NextCommand::on_any()).unwrap().text;

    let [most, some] = [text(4), text(3)];

    assert!(most.starts_with("7 exits of vm0 for ioio, most of them (4) writes of TSC_DEADLINE, took"), "{most}");
    assert!(some.starts_with("7 exits of vm0 for ioio, 3 of them writes of TSC_DEADLINE, took"), "{some}");
}

#[test]
fn finding_on_exits_names_the_function_of_the_guest_where_a_notable_part_of_them_is() {
    let function = |function: &str, is_named, count| FunctionExits {
        reason: "ioio".into(),
        function: function.into(),
        is_named,
        count,
        total_ns: 10,
        max_ns: 5,
        longest: LONGEST,
    };
    let text = |functions| {
        let exits = VmExits { functions, ..with_operation(4) };
        exit_storm(&exits, &with_thief(0), 1_000, NextCommand::on_any()).unwrap().text
    };

    let texts = [
        text(vec![function("io_serial_in", true, 2), function("native_write_msr", true, 4)]),
        text(vec![function("io_serial_in", true, 2), function("0xffffffff81000000", false, 5)]),
        text(vec![function("io_serial_in", true, 1)]),
    ];

    let before = "7 exits of vm0 for ioio, most of them (4) writes of TSC_DEADLINE";
    assert!(texts[0].starts_with(&format!("{before}, most of them (4) in native_write_msr, took")), "{}", texts[0]);
    assert!(texts[1].starts_with(&format!("{before}, 2 of them in io_serial_in, took")), "{}", texts[1]);
    assert!(texts[2].starts_with(&format!("{before}, took")), "{}", texts[2]);
}

#[test]
fn finding_on_exits_leads_to_the_task_that_lost_most_by_them() {
    let mut tasks = with_thief(0);
    tasks.tasks[0].parts = vec![Part { state: "exit", detail: Some("ioio".into()), ticks: 8, ns: 4 }];

    let found = exit_storm(&with_exits(99, 0), &tasks, 1_000, NextCommand::on_any()).unwrap();

    assert!(found.evidence.ends_with("app/10 lost most by it"), "{}", found.evidence);
    assert_eq!(found.next.text, "strata why trace --task app/10 --vm vm0");
}

#[test]
fn json_says_which_task_and_which_report_come_next() {
    let why = thief(&with_thief(100), &RecordingCost::default(), &manifest().clock, NextCommand::on_any()).unwrap();
    let report = exit_storm(&with_exits(99, 0), &with_thief(0), 1_000, NextCommand::on_any()).unwrap();

    let [why, report] = [why, report].map(|finding| serde_json::to_value(Object::of(&finding)).unwrap());

    let task = serde_json::json!({ "vm": "vm0", "comm": "app", "tid": 10 });
    assert_eq!((&why["next_task"], &why["next_report"]), (&task, &serde_json::Value::Null));
    assert_eq!((&report["next_task"], &report["next_report"]), (&serde_json::Value::Null, &"exits".into()));
    assert_eq!(report["next"], "strata report exits trace");
}

#[test]
fn lock_is_a_convoy_from_its_threshold_on() {
    let found = convoy(&with_lock(50 * MS), SECOND, NextCommand::on_any()).unwrap();

    assert_eq!(
        found.text,
        "tasks of vm0 waited 4 times for the mutex big_lock, 50.000 ms all together, 5.0 % of the time"
    );
    assert_eq!(convoy(&with_lock(49 * MS), SECOND, NextCommand::on_any()), None);
}

#[test]
fn disk_is_slow_above_its_threshold_where_one_step_is_most_of_it() {
    let found = slow_disk(&with_disk(10 * MS + 1, 50 * MS), SECOND, NextCommand::on_any()).unwrap();

    assert!(
        found.text.contains("50.0 % of the requests' time is VMM and host I/O (started → finished)"),
        "{}",
        found.text
    );
    assert_eq!(found.thousandths, 50);
    assert!(found.text.starts_with("the slowest of 5 disk requests of vm0 took "), "{}", found.text);
    assert_eq!(slow_disk(&with_disk(10 * MS, 50 * MS), SECOND, NextCommand::on_any()), None);
    assert_eq!(slow_disk(&with_disk(10 * MS + 1, 49 * MS), SECOND, NextCommand::on_any()), None);
}

#[test]
fn timer_interrupts_are_a_storm_above_their_threshold() {
    let found = timer_storm(&with_timer(2_001), SECOND, NextCommand::on_any()).unwrap();

    assert_eq!(found.text, "the timer of CPU 1 of vm0 interrupted 2001 times in a second");
    assert_eq!(timer_storm(&with_timer(2_000), SECOND, NextCommand::on_any()), None);
}

#[test]
fn clock_is_a_finding_above_its_threshold() {
    let clock = |error_bound_ns| Clock { error_bound_ns, ..manifest().clock };

    assert!(clock_bound(&clock(1_001)).unwrap().text.contains("only within 1.001 µs"));
    assert_eq!(clock_bound(&clock(1_000)), None);
}

#[test]
fn clock_that_the_host_gave_up_meanwhile_is_a_finding() {
    let clock = Clock { given_up_ticks: Some(9_000_000_000), ..manifest().clock };

    let found = clock_given_up(&clock, 9_000_000_000).unwrap();

    assert!(found.text.contains("gave up the TSC") && found.evidence.contains("2023-11-14T22:13:24"), "{found:?}");
    assert_eq!(clock_given_up(&clock, 1_000_000_000), None, "before that");
    assert_eq!(clock_given_up(&manifest().clock, u64::MAX), None);
}

#[test]
fn report_opens_with_its_findings_the_costliest_first() {
    let (_dir, trace) = scenario::preempted_in_an_exit().open();
    let mut text = Vec::new();

    let overview = super::super::make(&trace, Window::ALL, OverviewBuilder::new(&trace, Window::ALL)).unwrap();
    overview.write_text(&mut text).unwrap();

    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("What stands out:\n1. the host ran hog/200 for 9.000 µs, "), "{text}");
    assert!(overview.findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.thousandths)), "{text}");
    assert!(text.contains("\nrecorded by strata "), "{text}");
}

#[test]
fn lost_records_are_a_finding_and_none_are_not() {
    let whole = scenario::preempted_in_an_exit().open();
    let lossy = scenario::preempted_and(|trace| trace.lost(LayerKind::HostKernel, 0, 3)).open();
    let losses = |trace: &Trace| {
        let overview = super::super::make(trace, Window::ALL, OverviewBuilder::new(trace, Window::ALL)).unwrap();
        overview.findings.into_iter().filter(|finding| finding.kind == FindingKind::Loss).collect::<Vec<_>>()
    };

    let found = losses(&lossy.1);

    assert!(found[0].text.starts_with("3 records of the host-kernel layer are lost"), "{found:?}");
    assert_eq!(losses(&whole.1), []);
}

/// What recording cost a guest from whose tasks 1000 ns were stolen, `by_recording_ns` of it by the recorder, and more by
/// the thread of a disk.
fn with_cost(by_recording_ns: u64) -> VmCost {
    let disk = Thief { thread: "strata-disk0/6".into(), ns: 500, records: false };
    let recorder = Thief { thread: "strata-recorder/7".into(), ns: by_recording_ns, records: true };
    let tasks_stolen = Taken { total_ns: 1_000, by_strata_ns: 500 + by_recording_ns, by_recording_ns };
    VmCost { vm: "vm0".into(), tasks_stolen, thieves: vec![disk, recorder], ..VmCost::default() }
}

#[test]
fn recording_is_a_finding_where_its_share_of_stolen_and_of_all_time_are_large() {
    let found = own_cost(&with_cost(200), 20_000).unwrap();

    assert_eq!(
        found.text,
        "recording itself took 200 ns from tasks of vm0: 20.0 % of all stolen time, 1.0 % of the time in which they \
         were to run"
    );
    assert!(found.next.text.contains("--recorder-cpus") && found.evidence.contains("strata-recorder/7"), "{found:?}");
    assert_eq!(own_cost(&with_cost(200), 20_001), None);
    assert_eq!(own_cost(&with_cost(199), 10_000), None);
}

#[test]
fn thread_of_strata_is_reported_as_recording_and_not_as_a_thief() {
    let (_dir, trace) = scenario::preempted_in_an_exit().strata_thread(200, "strata-recorder", 1).open();

    let overview = super::super::make(&trace, Window::ALL, OverviewBuilder::new(&trace, Window::ALL)).unwrap();

    let kinds: Vec<FindingKind> = overview.findings.iter().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&FindingKind::Recording) && !kinds.contains(&FindingKind::Thief), "{kinds:?}");
}
