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

/// Largest share of a recording that may lie behind the guest's last event: an emulated host takes long for a panic, and
/// to read the rings for a snapshot, one after the other.
const SILENT_SHARE: f64 = 0.25;
/// The largest bound of a clock that is worth having, ns.
const BOUND_NS: u64 = 1_000_000;

fn strata(arguments: &[&str], trace: &Path) -> String {
    let program = binaries::located(&Paths::of_workspace(), Purpose::Test).strata;
    process::capture_any(Command::new(program).args(arguments).arg(trace)).unwrap()
}

/// The times of the first and the last record of `layer`, s.
fn ends(layer: &str, path: &Path) -> [f64; 2] {
    let events = strata(&["events", "--layer", layer], path);
    let mut lines = events.lines().filter(|line| line.contains(layer));
    let first = lines.next().unwrap();
    [first, lines.next_back().unwrap()].map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
}

/// The share of the VMM's records that lies behind the guest's last event.
fn silent_share(path: &Path) -> f64 {
    let ([begin, end], [_, last]) = (ends("vmm", path), ends("guest-kernel", path));
    println!("{}: the VMM records from {begin} s to {end} s, the guest to {last} s", path.display());
    (end - last) / (end - begin)
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
        assert!(silent_share(&trace) < SILENT_SHARE);
    }

    assert_eq!(results.text(&format!("{SNAPSHOT}.status")).trim(), "0", "{}", results.text(&format!("{SNAPSHOT}.log")));
    let snapshot = results.trace(SNAPSHOT);
    assert!(guest_records(&snapshot) > 1000);
    let manifest = Trace::open(&snapshot).unwrap().manifest().clone();
    assert_contains(manifest.outcome.as_deref().unwrap(), &["snapshot of a running VM"]);
    assert_contains(&manifest.clock.bound_derivation, &["traced without an agent, in kvm-clock's time"]);
    assert!(silent_share(&snapshot) < SILENT_SHARE);

    assert!(guest_records(&results.trace("elf")) > 100);
    let events = strata(&["events", "--layer", "guest-kernel"], &results.trace("elf"));
    assert!(!events.contains("irq:") && events.contains("sched:sched_wakeup: "));

    assert_eq!(results.text("old.status").trim(), "1");
    assert_contains(&results.text("old.log"), &["--agentless: the kernel", "older than Linux 6.12", "use --agent"]);
}
