//! A reader that closes standard output, as `head` does, ends a listing quietly.
//!
//! Shows: A reader that closes its pipe ends commands without an error.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::path::Path;
use std::process::{Command, Output};

/// `strata` with a standard output that nobody reads.
fn unread(arguments: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let folder = tempfile::tempdir().unwrap();
    let mut strata = Command::new(env!("CARGO_BIN_EXE_strata"));
    strata.args(arguments).env("STRATA_RUNTIME_DIR", folder.path()).stdout(writer);
    strata.output().unwrap()
}

/// Asserts that `strata` has nothing to say about its closed output.
fn assert_quiet(arguments: &[&str]) {
    let output = unread(arguments);

    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    assert!(output.status.success(), "{arguments:?}: {}", output.status);
}

#[test]
fn completions_end_quietly() {
    assert_quiet(&["completions", "bash"]);
}

#[test]
fn lists_end_quietly() {
    assert_quiet(&["events", "--list", "vmm"]);
    assert_quiet(&["events", "--list", "vmm", "--json"]);
    assert_quiet(&["ps"]);
    assert_quiet(&["ps", "--json"]);
}

#[test]
fn help_ends_quietly() {
    assert_quiet(&["--help"]);
    assert_quiet(&["run", "--help"]);
    assert_quiet(&["--version"]);
}

#[test]
fn exports_end_quietly_and_a_page_is_written_to_standard_output() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/example.strata");
    assert_quiet(&["export", example, "--format", "perfetto", "-o", "-"]);
    // That it takes a while may be said.
    let page = unread(&["report", example, "--html", "-"]);
    assert!(
        page.status.success() && !Path::new("-").exists() && !String::from_utf8_lossy(&page.stderr).contains("written")
    );
}

#[test]
fn diagnosis_ends_quietly_whatever_the_machine_can_do() {
    let output = unread(&["doctor"]);

    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.code().is_some_and(|code| code <= 1), "{}", output.status);
}
