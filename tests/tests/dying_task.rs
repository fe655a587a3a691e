//! A task that dies in a probe takes one record with it, and no other: its CPU records on, lap after lap.
//!
//! Shows: After a task dies in a probe, its CPU's ring goes on for laps, in both modes; what is missing is counted.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::scenarios::dying_task::{self, CALLS, DISCARD, GUESTS};
use lab::scenarios::results::{Results, assert_contains};
use lab::{process, provision};
use std::path::Path;
use std::process::Command;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{StreamRecord, Trace};

fn check(trace: &Path) -> String {
    let program = binaries::located(&Paths::of_workspace(), Purpose::Test).strata;
    process::capture_any(Command::new(program).arg("check").arg(trace)).unwrap()
}

/// Of the guest kernel's records of each vCPU, those that are `wanted`.
fn count_on_vcpus(trace: &Trace, wanted: impl Fn(u32, &StreamRecord<'_>) -> bool) -> Vec<u64> {
    let layer = trace.layers_of(LayerKind::GuestKernel).next().unwrap();
    let count = |cpu, stream| layer.records(stream).filter(|record| wanted(cpu, record)).count() as u64;
    layer.streams.iter().map(|stream| count(stream.description.cpu_id, stream)).collect()
}

/// How often the program `/tmp/after-N` was executed on vCPU N, for each.
fn executed_after(trace: &Trace) -> Vec<u64> {
    count_on_vcpus(trace, |cpu, record| {
        record.schema.name() == "sched:sched_process_exec"
            && record.text("filename") == Some(format!("/tmp/after-{cpu}").into())
    })
}

#[test]
fn cpu_records_on_for_laps_after_a_task_died_in_a_probe() {
    let lab = provision::lab(&Paths::of_workspace()).unwrap();
    let results = Results(dying_task::run(&lab, "dying-task").unwrap().output);
    for guest in GUESTS {
        let (console, path) = (results.console(guest), results.trace(guest));
        let trace = Trace::open(&path).unwrap();

        assert_contains(&console, &["BUG: ", "dd done on CPU 0", "dd done on CPU 1"]);
        assert!(!console.contains("nobody looked at the event"), "{console}");
        assert_eq!(executed_after(&trace), [1, 1], "{guest}: {console}");
        assert_contains(&check(&path), &["0 violations"]);
    }

    // what a ring loses while nobody drains it is counted
    let trace = Trace::open(&results.trace(DISCARD)).unwrap();
    let reads = count_on_vcpus(&trace, |_, record| {
        record.schema.name() == "raw_syscalls:sys_enter" && record.number("id") == Some(0)
    });
    let layer = trace.layers_of(LayerKind::GuestKernel).next().unwrap();
    let lost: Vec<u64> = layer.streams.iter().map(|stream| stream.description.lost.total()).collect();
    let accounted: Vec<u64> = reads.iter().zip(&lost).map(|(reads, lost)| reads + lost).collect();
    assert!(accounted.iter().all(|count| *count >= CALLS), "{reads:?} read, {lost:?} lost");
    assert_contains(&check(&results.trace(DISCARD)), &["records not made inside others"]);
}
