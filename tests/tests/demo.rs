//! The demonstration as a user runs it.
//!
//! Shows: The demonstration prints the layers and leaves a trace that babeltrace2 reads.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::fs;
use std::process::Command;

fn demo(out: &str) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(["demo", "--out", out]).output().unwrap()
}

#[test]
fn demo_prints_the_layers_and_leaves_a_trace_that_babeltrace2_reads() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("trace");

    let shown = demo(out.to_str().unwrap());

    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success(), "{text}{}", String::from_utf8_lossy(&shown.stderr));
    for word in ["host-kernel", "/vmm", "/guest-kernel", "/guest-user", "lost", "clock:", "0 violations", "babeltrace2"]
    {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    assert!(text.contains(out.to_str().unwrap()));
    let read = Command::new("babeltrace2").arg(&out).output().unwrap();
    assert_eq!((read.status.success(), String::from_utf8_lossy(&read.stderr).as_ref()), (true, ""));
    let total = text.lines().find(|line| line.starts_with("all ")).unwrap().split_whitespace().nth(1).unwrap();
    let lines = read.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines.to_string(), total);
}

#[test]
fn demo_into_a_folder_that_exists_is_refused_and_leaves_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "precious").unwrap();

    let refused = demo(folder.path().to_str().unwrap());

    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(complaint.contains("--out"));
    assert_eq!(fs::read_to_string(folder.path().join("file")).unwrap(), "precious");
}
