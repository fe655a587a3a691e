//! The kernel of a guest without our module is traced through its own ring, to its last event before a panic, and at a
//! snapshot while it runs.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::scenarios::agentless::{self, KERNELS, SNAPSHOT};
use lab::scenarios::results::{Results, assert_contains};
use lab::{process, provision};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use trace_merge::layer::LayerKind;
use trace_merge::reader::Trace;

/// Longest time between the guest's last event and the machine's end, s: a panic on an emulated host.
const END_SECONDS: f64 = 3.0;
/// Longest time between the guest's last event in a snapshot and the snapshot's end, s: the rings are read one after
/// the other, on an emulated host.
const SNAPSHOT_SECONDS: f64 = 3.0;
/// The largest bound of a clock that is worth having, ns.
const BOUND_NS: u64 = 1_000_000;

fn strata(arguments: &[&str], trace: &Path) -> String {
    let program = binaries::located(&Paths::of_workspace(), Purpose::Test).strata;
    process::capture_any(Command::new(program).args(arguments).arg(trace)).unwrap()
}

/// The time of the last record of `layer`, s.
fn last(layer: &str, path: &Path) -> f64 {
    let events = strata(&["events", "--layer", layer], path);
    let line = events.lines().rfind(|line| line.contains(layer)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The records of the guest's kernel in a trace that is clean and that others can read.
fn guest_records(path: &Path) -> u64 {
    println!("== {}\n{}", path.display(), strata(&["report"], path));
    assert_contains(&strata(&["check"], path), &["0 violations"]);
    let listed = process::capture(Command::new("babeltrace2").arg(path)).unwrap();
    let trace = Trace::open(path).unwrap();
    assert!(trace.manifest().clock.error_bound_ns < BOUND_NS, "{:?}", trace.manifest().clock);
    let kinds = [LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestKernel];
    let counts = kinds.map(|kind| {
        let streams = trace.layers_of(kind).flat_map(|layer| layer.description.streams.iter());
        streams.map(|stream| stream.records).sum::<u64>()
    });
    println!("{counts:?}, {:?}", trace.manifest().missing);
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
    assert_eq!(u64::try_from(listed.lines().count()).unwrap(), counts.iter().sum::<u64>());
    counts[2]
}

#[test]
fn kernel_without_a_module_is_traced_to_its_last_event() {
    let lab = provision::lab(&Paths::of_workspace()).unwrap();
    let results = Results(agentless::run(&lab, "agentless").unwrap().output);

    for (name, _) in KERNELS {
        let trace = results.trace(name);
        assert!(guest_records(&trace) > 1000);
        let death: Value = serde_json::from_str(&strata(&["report", "death", "--json"], &trace)).unwrap();
        assert_contains(death["outcome"].as_str().unwrap(), &["panicked"]);
        // The shell wrote to sysrq-trigger.
        let cpus = death["vms"][0]["cpus"].as_array().unwrap();
        let told: Vec<_> = cpus.iter().map(|cpu| cpu["guest"].as_str().unwrap_or_default()).collect();
        assert!(told.iter().any(|guest| guest.contains("sh/") || guest.contains("init")), "{told:?}");
        let events = strata(&["events", "--layer", "guest-kernel"], &trace);
        assert_contains(&events, &["sched:sched_switch: ", "sched:sched_process_exec: ", "irq:"]);
        let silent = last("vmm", &trace) - last("guest-kernel", &trace);
        println!("the guest's last event lies {silent} s before the VMM's");
        assert!(silent < END_SECONDS, "{silent}");
    }

    assert_eq!(results.text(&format!("{SNAPSHOT}.status")).trim(), "0", "{}", results.text(&format!("{SNAPSHOT}.log")));
    let snapshot = results.trace(SNAPSHOT);
    assert!(guest_records(&snapshot) > 1000);
    let manifest = Trace::open(&snapshot).unwrap().manifest().clone();
    assert_contains(manifest.outcome.as_deref().unwrap(), &["snapshot of a running VM"]);
    assert_contains(&manifest.clock.bound_derivation, &["traced without an agent, in kvm-clock's time"]);
    let until_end = last("vmm", &snapshot) - last("guest-kernel", &snapshot);
    println!("the snapshot's last event of the guest lies {until_end} s before the VMM's");
    assert!(until_end < SNAPSHOT_SECONDS, "{until_end}");

    assert!(guest_records(&results.trace("elf")) > 100);
    let events = strata(&["events", "--layer", "guest-kernel"], &results.trace("elf"));
    assert!(!events.contains("irq:") && events.contains("sched:sched_wakeup: "));

    assert_eq!(results.text("old.status").trim(), "1");
    assert_contains(&results.text("old.log"), &["--agentless: the kernel", "older than Linux 6.12", "use --agent"]);
}
