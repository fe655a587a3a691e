//! The agent on the lab's kernels, under hardship, and where it cannot work: judged from consoles and traces.
//!
//! Shows: The agent loads, records and unloads under load, on each kernel.
//! Shows: The agent stands hot-plugged CPUs, suspend, hibernation, and a reset of the region's device.
//! Shows: The agent takes the place of the initrd's `/init` and puts it back; the kernel command line stays as it is.
//! Shows: An agent without a region, or with one that does not fit, says so and harms nothing.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::fetch::kernel_packages::KernelChoice;
use lab::paths::Paths;
use lab::scenarios::agent;
use lab::scenarios::results::{Results, assert_contains};
use lab::{process, provision};
use std::path::Path;
use std::process::Command;
use strata_recording::layer::LayerKind;

/// What strata says of a trace that it finds nothing wrong with.
fn strata(arguments: &[&str], trace: &Path) -> String {
    let program = binaries::located(&Paths::of_workspace(), Purpose::Test).strata;
    process::capture(Command::new(program).args(arguments).arg(trace)).unwrap()
}

#[test]
fn agent_records_on_old_and_new_kernels_and_harms_no_guest() {
    judge("agent", &agent::SAMPLE);
}

#[test]
#[ignore = "tier all: a quarter of an hour"]
fn agent_records_on_every_kernel_and_harms_no_guest() {
    judge("agent-everywhere", &KernelChoice::all().collect::<Vec<_>>());
}

/// Runs the scenarios on `kernels` in the run folder `name`, and judges what they left.
fn judge(name: &str, kernels: &[KernelChoice]) {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let folder = agent::run(&lab, name, kernels).unwrap().output;
    let results = Results(folder);

    // loaded, unloaded, CPUs taken away, on each kernel; the trace has all of it and is in order
    let kernels = kernels.iter().map(KernelChoice::to_string);
    for kernel in kernels.chain([agent::COUNTED_CALLS.to_owned()]) {
        let console = results.console(&kernel);
        let reloaded = format!("reloaded {} times", agent::RELOADS);
        let (one, both) = ("CPUs online: 0\n", "CPUs online: 0-1\n");
        let wanted = ["agent loaded", "workload done\n", &reloaded, one, both, "workload done again"];
        assert_contains(&console.replace('\r', ""), &wanted);
        assert_contains(&console, &["not hibernated", "region reset", "slots used after a reset: 0", agent::CLEAN]);
        assert!(!console.contains("cannot load again"), "{console}");
        let records =
            [LayerKind::GuestKernel, LayerKind::GuestUser].map(|layer| results.records(&kernel, layer).unwrap());
        assert!(records[0] > 5_000 && records[1] > 800, "{kernel}: {records:?} of kernel and user\n{console}");
        let trace = results.trace(&kernel);
        assert_contains(&strata(&["check"], &trace), &["0 violations"]);
        let count: usize = strata(&["events", "--count"], &trace).trim().parse().unwrap();
        assert_eq!(process::capture(Command::new("babeltrace2").arg(&trace)).unwrap().lines().count(), count);
    }

    // kernels other than a cloud's can have devices sleep without the machine
    assert_contains(&results.console(&agent::SAMPLE[1].to_string()), &["devices slept"]);

    // a kernel that counts its calls: it has put its instruction, a shift of the CPU's count, before the module's functions
    let counted = results.console(agent::COUNTED_CALLS);
    assert_contains(&counted, &["spectre_v2:Mitigation: Retpolines", "retbleed:Mitigation: Stuffing"]);
    for function in agent::CALLED {
        let before = counted.lines().find(|line| line.starts_with(&format!("before {function}:"))).unwrap();
        assert_contains(before, &[" 65 48 c1 3d "]);
    }

    // a kernel that takes signed modules only: said, with what to do, and the guest works
    let unsigned = results.console("unsigned");
    assert_contains(&unsigned, &["agent not loaded", "module.sig_enforce=1", "workload done"]);
    assert!(!unsigned.contains("there is a device"), "{unsigned}");

    // no region: said, without effect
    assert_contains(&results.text("inject.log"), &["command line stays as it is"]);
    let absent = results.console("absent");
    assert_contains(&absent, &["this machine offers no trace region; not loaded", "agent not loaded", "workload done"]);
    assert!(!absent.contains("there is a device"), "{absent}");

    // a region of a later version: refused, said, without effect
    let newer = results.console("newer");
    assert_contains(&newer, &["another version", "use the module that belongs to the host's strata"]);
    assert_contains(&newer, &["agent not loaded", "workload done"]);
    assert!(!newer.contains("there is a device"), "{newer}");
    assert_contains(&results.text("newer-region.log"), &["the guest has written nothing"]);

    // the agent's program ran in place of /init, put that back, and became it
    for console in [unsigned, absent, newer] {
        assert_contains(&console, &["the first program is the guest's: /bin/busybox sh /init"]);
    }
}
