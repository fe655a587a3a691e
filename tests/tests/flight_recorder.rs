//! Flight recorder, snapshots, a panic, and a VMM that is killed: judged from the traces that they leave. The same
//! for minutes: `cargo xtask lab flight --seconds 180`.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries;
use lab::paths::Paths;
use lab::provision;
use lab::scenarios::{flight_check, flight_recorder};

#[test]
fn flight_recorder_is_there_when_asked_for_after_a_panic_and_after_a_kill() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let folder = flight_recorder::run(&lab, "flight", flight_recorder::SECONDS).unwrap().output;
    println!("{}", std::fs::read_to_string(folder.join("control.log")).unwrap());

    let findings = flight_check::check(&folder, &binaries::located(&paths).strata).unwrap();

    findings.iter().for_each(|finding| println!("{finding}"));
    assert!(findings.iter().all(|finding| finding.records > 0), "{findings:?}");
}
