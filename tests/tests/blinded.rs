//! CPUs that never begin to record, or are kept from following sessions: the former is reported, the latter does no harm.
//!
//! Shows: A CPU that never records is reported; real-time tasks on every CPU stop no session (6.1 cloud, RT).
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::scenarios::blinded;
use lab::scenarios::results::{Results, assert_contains};
use lab::{process, provision};
use std::path::Path;
use std::process::Command;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{StreamRecord, Trace};

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
