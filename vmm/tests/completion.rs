//! What a shell is offered for a command line.
//!
//! Shows: Shells complete names of running VMs, and VMs, events, columns and tables of the trace that is named.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use strata_recorder::control::directory::{VmDescription, VmDirectory};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/example.strata");

/// What `strata` offers a bash for the last of `words`, with VMs in the folder `runtime`.
fn offered(runtime: &Path, words: &[&str]) -> Vec<String> {
    let mut strata = Command::new(env!("CARGO_BIN_EXE_strata"));
    strata.env("STRATA_COMPLETE", "bash").env("_CLAP_IFS", "\n").env("STRATA_RUNTIME_DIR", runtime);
    strata.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).args(["--", "strata"]).args(words);
    let output = strata.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect()
}

#[test]
fn names_of_running_vms_are_offered() {
    let runtime = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
    let _vms = ["web", "db"]
        .map(|name| VmDirectory::create(runtime.path(), &VmDescription::of_this_process(name, 1)).unwrap());

    let all = offered(runtime.path(), &["top", ""]);

    assert!(all.contains(&"web".into()) && all.contains(&"db".into()), "{all:?}");
    assert_eq!(offered(runtime.path(), &["ctl", "we"]), ["web"]);
}

#[test]
fn what_the_trace_has_is_offered() {
    let runtime = tempfile::tempdir().unwrap();
    let offered = |words: &[&str]| offered(runtime.path(), words);

    assert_eq!(offered(&["events", EXAMPLE, "--vm", ""]), ["vm0"]);
    assert_eq!(offered(&["events", EXAMPLE, "--event", "kvm_ex"]), ["kvm_exit"]);
    assert_eq!(offered(&["report", "tasks", EXAMPLE, "--sort", "wall_n"]), ["wall_ns"]);
    assert_eq!(offered(&["report", "irqs", EXAMPLE, "--table", "v"]), ["vectors"]);
}

#[test]
fn commands_and_values_are_offered() {
    let runtime = tempfile::tempdir().unwrap();

    assert_eq!(offered(runtime.path(), &["repo"]), ["report"]);
    assert_eq!(offered(runtime.path(), &["export", "--format", "per"]), ["perfetto"]);
}

#[test]
fn script_of_each_shell_asks_this_program() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = Command::new(env!("CARGO_BIN_EXE_strata")).args(["completions", shell]).output().unwrap();

        let script = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && script.contains("STRATA_COMPLETE") && script.contains("strata"),
            "{shell}: {script}"
        );
    }
}
