//! What `strata report` says about a guest whose loads know their own cost.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::path::PathBuf;

use lab::paths::Paths;
use lab::{analysis, process};

#[test]
fn ground_truth() {
    let result = analysis::once_per_test_run(&Paths::of_workspace()).unwrap();
    let log: PathBuf = result.output.join("guest.log");
    println!("{:?}", analysis::known(&log, "convoy"));
    println!("{}", process::capture(std::process::Command::new("cat").arg(&result.script_log)).unwrap());
}
