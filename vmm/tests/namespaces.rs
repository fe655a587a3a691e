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

    let printed = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && printed.lines().count() == 1, "{printed}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{printed}");
    printed
}

/// What `strata doctor` says there of `subject`, with what helps.
fn diagnosis(unshare: &[&str], subject: &str) -> String {
    let printed = String::from_utf8(strata(unshare, &["doctor"]).stdout).unwrap();
    let mut lines = printed.lines().skip_while(|line| !line.starts_with(subject));
    format!("{}{}", lines.next().unwrap(), lines.next().unwrap())
}

#[test]
fn numbers_of_a_pid_namespace_are_refused_with_the_option_that_helps() {
    let contained = ["--pid", "--fork", "--mount-proc"];

    let (printed, tracefs, attach) =
        (refusal(&contained), diagnosis(&contained, "tracefs"), diagnosis(&contained, "attach"));

    for text in [printed, tracefs, attach] {
        assert!(text.contains("PID namespace") && text.contains("--pid=host"), "{text}");
    }
    let permissions = diagnosis(&contained, "permissions");
    assert!(permissions.contains("root") && !permissions.contains("every layer"), "{permissions}");
}

#[test]
fn process_that_proc_does_not_show_gets_the_advice_to_mount_it() {
    let printed = [refusal(&WITHOUT_PROC), diagnosis(&WITHOUT_PROC, "tracefs")];

    for text in printed {
        assert!(text.contains("mount -t proc proc /proc"), "{text}");
    }
}

#[test]
fn pid_namespace_is_recognised_under_the_hosts_proc_too() {
    let printed = refusal(&["--pid", "--fork"]);

    assert!(printed.contains("--pid=host"), "{printed}");
}

#[test]
fn root_of_a_user_namespace_gets_no_advice_to_become_root() {
    let printed = diagnosis(&["--user", "--map-root-user"], "permissions");

    assert!(printed.contains("user namespace") && printed.contains("sudo"), "{printed}");
}
