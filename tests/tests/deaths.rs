//! Every death of a guest's kernel leaves a trace that says what each CPU was doing.
//!
//! Shows: Deaths of guests and hosts are reported with what each CPU did: oops, lockups, hangs, faults, resets.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::scenarios::deaths::{self, other_kernel};
use lab::scenarios::results::{Results, assert_contains};
use lab::{process, provision};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn strata(arguments: &[&str], trace: &Path) -> String {
    let program = binaries::located(&Paths::of_workspace(), Purpose::Test).strata;
    process::capture_any(Command::new(program).args(arguments).arg(trace)).unwrap()
}

/// What `strata report death` says of a trace.
struct Death(Value);

impl Death {
    /// Of a trace that is clean, and that others can read.
    fn of(trace: &Path) -> Self {
        assert_contains(&strata(&["check"], trace), &["0 violations"]);
        let listed = process::capture(Command::new("babeltrace2").arg(trace)).unwrap();
        assert!(listed.lines().count() > 1000, "{listed}");
        let text = strata(&["report", "death"], trace);
        println!("{}", text.lines().take(60).collect::<Vec<_>>().join("\n"));
        Self(serde_json::from_str(&strata(&["report", "death", "--json"], trace)).unwrap())
    }

    fn outcome(&self) -> &str {
        self.0["outcome"].as_str().unwrap()
    }

    fn vm(&self) -> &Value {
        &self.0["vms"][0]
    }

    /// What the guest's kernel printed last.
    fn console(&self) -> String {
        let lines = self.vm()["console"].as_array().unwrap().iter();
        lines.map(|line| format!("{}\n", line["text"].as_str().unwrap())).collect()
    }

    /// What the guest's kernel did on `cpu`.
    fn guest(&self, cpu: usize) -> &str {
        self.vm()["cpus"][cpu]["guest"].as_str().unwrap()
    }
}

#[test]
fn every_death_is_reported_with_what_each_cpu_did() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let results = Results(deaths::run(&lab, "deaths").unwrap().output);
    let death = |name: &str| {
        println!("== {name}");
        Death::of(&results.trace(name))
    };

    let oops = death("oops");
    assert_contains(&oops.console(), &["BUG: ", "Kernel panic", "Fatal exception"]);
    let soft_lockup = death("soft-lockup");
    assert_contains(&soft_lockup.console(), &["soft lockup", "Kernel panic"]);
    let hung_task = death("hung-task");
    assert_contains(&hung_task.console(), &["insmod", "blocked for more than", "Kernel panic"]);
    for panicked in [&oops, &soft_lockup, &hung_task] {
        assert_contains(panicked.outcome(), &["panicked"]);
    }
    for by_task in [&oops, &soft_lockup] {
        assert_contains(by_task.guest(1), &["insmod/"]);
    }
    assert!((0..2).any(|cpu| hung_task.guest(cpu).contains("khungtaskd")), "{}", hung_task.vm());

    let triple_fault = death("triple-fault");
    assert_contains(triple_fault.outcome(), &["triple fault on vCPU 1"]);
    assert_contains(triple_fault.guest(1), &["insmod/"]);
    assert_contains(&triple_fault.console(), &["dying: triple-fault"]);

    let reboot = death("reboot");
    assert_contains(reboot.outcome(), &["reboot"]);
    assert_contains(&reboot.console(), &["sysrq: Resetting"]);

    // a panic that goes on in another kernel is one all the same, and what that kernel does is not known
    let text = |name: &str| strata(&["report", "tasks"], &results.trace(name));
    let crash = death("crash-kernel");
    assert_contains(crash.outcome(), &["panicked"]);
    assert_contains(crash.guest(1), &["insmod/"]);
    assert_contains(&crash.console(), &["BUG: ", "dying"]);
    assert_contains(&text("crash-kernel"), &["crash-kernel/guest-kernel: another kernel ran, "]);
    assert_contains(&results.text("crash-kernel.log"), &[other_kernel::GREETING]);
    assert_eq!(results.text("crash-kernel.status").trim(), "1");
    assert!(!results.0.join("crash-kernel.trace-2").exists(), "the guest was started again");
    let kept = Death::of(&results.0.join("crash-kernel.trace-snapshots/trigger-1"));
    assert_contains(kept.outcome(), &["guest-panic"]);
    assert_contains(kept.guest(1), &["insmod/"]);
    let kexec = death("kexec");
    assert_contains(kexec.outcome(), &["powered off"]);
    assert_contains(&text("kexec"), &["kexec/guest-kernel: another kernel ran, "]);
    assert_contains(&results.text("kexec.log"), &[other_kernel::GREETING]);
    assert_eq!(results.text("kexec.status").trim(), "0");

    let hang = Death::of(&results.0.join("hang.trace-snapshots/trigger-1"));
    assert_contains(hang.outcome(), &["guest-hang=1s vcpu=1"]);
    assert_contains(&hang.console(), &["dying: hang"]);
    assert_contains(hang.guest(1), &["insmod/"]);

    // the monitor died with its host: what its guest's CPUs did is known up to then
    if results.trace("crashed").exists() {
        let crashed = death("crashed");
        assert_contains(crashed.outcome(), &["recovered"]);
        let last = ["events", "--layer", "host-kernel", "--event", "sched:*", "--from", "-500ms", "--count"];
        let last: u64 = strata(&last, &results.trace("crashed")).trim().parse().unwrap();
        assert!(last > 0, "the host's last records are lost with it");
    }

    // what was recorded until the disk was full, and that it was, is told by every report
    let full = death("full");
    assert_contains(full.outcome(), &["stopped"]);
    assert_contains(&strata(&["report", "death"], &results.trace("full")), &["No space left on device"]);
}
