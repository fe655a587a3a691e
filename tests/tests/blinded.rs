//! CPUs that never begin to record, or are kept from following sessions: the former is reported, the latter does no harm.
//!
//! Shows: A CPU that never records is reported; real-time tasks on every CPU stop no session (6.1 cloud, RT).
//! Shows: A vCPU that was never in the guest makes no task's time unknown.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::scenarios::blinded;
use lab::scenarios::results::{Results, assert_contains};
use lab::{process, provision};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{StreamRecord, Trace};
use trace_merge::report::Window;
use trace_merge::report::scheduling::tasks::TaskReport;
use trace_merge::report::scheduling::{tasks, vcpus};

fn strata(arguments: &[&str], trace: &Path) -> String {
    let program = binaries::located(&Paths::of_workspace(), Purpose::Test).strata;
    process::capture_any(Command::new(program).args(arguments).arg(trace)).unwrap()
}

/// Of the guest kernel's records of each vCPU, those that are `wanted`.
fn count_on_vcpus(trace: &Path, wanted: impl Fn(&StreamRecord<'_>) -> bool) -> Vec<usize> {
    let trace = Trace::open(trace).unwrap();
    let layer = trace.layers_of(LayerKind::GuestKernel).next().unwrap();
    layer.streams.iter().map(|stream| layer.records(stream).filter(|record| wanted(record)).count()).collect()
}

/// By state: for how long it is not known what tasks did, ticks.
fn unknown<'t>(tasks: impl Iterator<Item = &'t TaskReport>) -> BTreeMap<&'static str, u64> {
    let mut unknown = BTreeMap::new();
    for part in tasks.flat_map(|task| &task.parts).filter(|part| part.state.contains("unknown")) {
        *unknown.entry(part.state).or_default() += part.ticks;
    }
    unknown
}

/// Asserts that the guest whose second vCPU never comes has tasks, and as much is known of them as without such a vCPU.
#[track_caller]
fn assert_absent_vcpu_leaves_tasks_known(absent: &Path, alone: &Path) {
    let [absent, alone] = [absent, alone].map(|trace| Trace::open(trace).unwrap());

    let [with, without] = [&absent, &alone].map(|trace| tasks::report(trace, Window::ALL).unwrap().vms.remove(0).tasks);
    let of_vcpus = vcpus::report(&absent, Window::ALL).unwrap();

    let of_vcpu = |number: usize| {
        let parts = &of_vcpus.vms[0].vcpus[number].parts;
        parts.iter().filter(|part| part.state == "guest").map(|part| part.ticks).sum::<u64>()
    };
    assert!(of_vcpu(0) > 0 && of_vcpu(1) == 0, "{of_vcpus:?}");
    // Those that slept when the recording began are unknown until they wake, in both: for how long depends on the machine.
    for tasks in [with, without] {
        assert!(tasks.iter().any(|task| task.born && task.comm == "workload"));
        assert_eq!(unknown(tasks.iter().filter(|task| task.born)), BTreeMap::new());
    }
}

#[test]
fn cpu_that_never_comes_is_reported_and_cpus_that_are_kept_follow_sessions() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let folder = blinded::run(&lab, "blinded").unwrap().output;
    let results = Results(folder);

    // a CPU that never comes: told by status, reports and check
    assert_contains(&results.console("absent"), &["workload done"]);
    let reported = [results.text("absent-status.log"), strata(&["report", "summary"], &results.trace("absent"))];
    reported.iter().for_each(|text| assert_contains(text, &["vCPU 1"]));
    let check = strata(&["check"], &results.trace("absent"));
    assert_contains(&check, &["vCPU 1 never began to record", "0 violations"]);
    assert_contains(&results.console("alone"), &["workload done"]);
    assert_absent_vcpu_leaves_tasks_known(&results.trace("absent"), &results.trace("alone"));

    // tasks that keep every CPU: sessions that are made meanwhile record on all of them, also what none did before
    let kept = results.console("kept");
    assert_contains(&kept, &["CPUs are kept", "keep_cpus: done", "workload done"]);
    assert_contains(&results.text("kept-control.log"), &["session other records", "session fresh records"]);
    let calls = count_on_vcpus(&results.trace("kept-other"), |record| record.schema.name() == "raw_syscalls:sys_enter");
    assert!(
        calls.len() == 2 && calls.iter().all(|&calls| calls > 100),
        "{calls:?}\n{}",
        results.text("kept-control.log")
    );
    let ticks =
        count_on_vcpus(&results.trace("kept-fresh"), |record| record.schema.name() == "timer:hrtimer_expire_entry");
    assert!(
        ticks.len() == 2 && ticks.iter().all(|&ticks| ticks > 100),
        "{ticks:?}\n{}",
        results.text("kept-control.log")
    );
    assert_contains(&strata(&["check"], &results.trace("kept")), &["0 violations"]);
}
