//! `strata` in namespaces, as in a container: what does not work there is refused with what helps, in one line. Needs root.
//!
//! Shows: In namespaces a layer works, or one line says why not.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::process::{Command, Output};

/// Without anything at `/proc`.
const WITHOUT_PROC: [&str; 5] = ["--mount", "sh", "-c", "umount -l /proc; exec \"$@\"", "sh"];

/// What `strata` does with `arguments` where unshare(1) with `unshare` puts it.
fn strata(unshare: &[&str], arguments: &[&str]) -> Output {
    let strata = env!("CARGO_BIN_EXE_strata");
    Command::new("unshare").args(unshare).arg(strata).args(arguments).output().unwrap()
}

/// The line in which `strata attach` refuses there.
fn refusal(unshare: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");

    let refused = strata(unshare, &["attach", "1", "--trace", trace.to_str().unwrap()]);

    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.lines().count() == 1, "{said}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{said}");
    said
}

/// What `strata doctor` says there of `subject`, with what helps.
fn diagnosis(unshare: &[&str], subject: &str) -> String {
    let said = String::from_utf8(strata(unshare, &["doctor"]).stdout).unwrap();
    let mut lines = said.lines().skip_while(|line| !line.starts_with(subject));
    format!("{}{}", lines.next().unwrap(), lines.next().unwrap())
}

#[test]
fn numbers_of_a_pid_namespace_are_refused_with_the_option_that_helps() {
    let contained = ["--pid", "--fork", "--mount-proc"];

    let (said, tracefs, attach) =
        (refusal(&contained), diagnosis(&contained, "tracefs"), diagnosis(&contained, "attach"));

    for text in [said, tracefs, attach] {
        assert!(text.contains("PID namespace") && text.contains("--pid=host"), "{text}");
    }
}

#[test]
fn process_that_proc_does_not_show_is_told_to_mount_it() {
    let said = [refusal(&WITHOUT_PROC), diagnosis(&WITHOUT_PROC, "tracefs")];

    for text in said {
        assert!(text.contains("mount -t proc proc /proc"), "{text}");
    }
}

#[test]
fn pid_namespace_is_told_under_the_hosts_proc_too() {
    let said = refusal(&["--pid", "--fork"]);

    assert!(said.contains("--pid=host"), "{said}");
}

#[test]
fn root_of_a_user_namespace_is_not_told_to_become_root() {
    let said = diagnosis(&["--user", "--map-root-user"], "permissions");

    assert!(said.contains("user namespace") && said.contains("sudo"), "{said}");
}
