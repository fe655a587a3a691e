//! Flight recorder, snapshots, a panic, and a VMM that is killed: judged from the traces that they leave. The same
//! for minutes: `cargo xtask lab flight --seconds 180`.
//!
//! Shows: A flight recorder is read while it runs, after a panic, after its VMM's kill (both readers).
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::provision;
use lab::scenarios::{flight_check, flight_recorder};
use serde_json::Value;

#[test]
fn flight_recorder_is_there_when_requested_after_a_panic_and_after_a_kill() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let folder = flight_recorder::run(&lab, "flight", flight_recorder::SECONDS).unwrap().output;
    println!("{}", std::fs::read_to_string(folder.join("control.log")).unwrap());

    let top: Value = serde_json::from_slice(&std::fs::read(folder.join("top.json")).unwrap()).unwrap();
    let vm = &top["vms"][0];
    let reads = vm["disks"].as_array().unwrap().iter().find(|of| of["kind"] == "read").unwrap();
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap();
    // Some milliseconds each, and at least the disk's delay.
    assert!(number(reads, "count") >= 5, "{top}");
    assert!(number(reads, "total_ns") >= number(reads, "count") * flight_recorder::DISK_DELAY_MS * 1_000_000, "{top}");
    // Each read puts a task to sleep, which is woken; what it waits for its turn is below the period.
    let (wakeups, worst) = (&vm["guest"]["wakeups"], vm["guest"]["worst"].as_array().unwrap());
    assert!(number(wakeups, "count") >= number(reads, "count"), "{top}");
    assert!(worst.iter().any(|wakeup| number(wakeup, "ns") > 0 && wakeup["task"] != ""), "{top}");
    assert!(worst.iter().all(|wakeup| number(wakeup, "ns") < number(vm, "period_ns")), "{top}");

    let findings = flight_check::check(&folder, &binaries::located(&paths, Purpose::Test).strata).unwrap();

    findings.iter().for_each(|finding| println!("{finding}"));
    assert!(findings.iter().all(|finding| finding.records > 0), "{findings:?}");
}
