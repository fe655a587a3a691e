//! The kernel of a guest without our module is traced through its own ring, to its last event before a panic, and at a
//! snapshot while it runs.
//!
//! Shows: A kernel without our module is traced to its last event; before 6.12 it is refused.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::scenarios::agentless::{self, KERNELS, NamedKernel, SNAPSHOT};
use lab::scenarios::results::{Results, assert_contains, assert_symbols};
use lab::{process, provision};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;

/// Times that the guest's CPUs may halt behind its last event: with a load that sleeps, they do so a hundred times a second
/// before the panic, which itself may take seconds on an emulated host, and waits without halting.
const HALTS: usize = 20;
/// Largest share of a snapshot that may lie behind the guest's last event: the rings are read one after the other.
const SILENT_SHARE: f64 = 0.15;
/// The largest bound of a clock that is worth having, ns.
const BOUND_NS: u64 = 1_000_000;

fn strata(arguments: &[&str], trace: &Path) -> String {
    let program = binaries::located(&Paths::of_workspace(), Purpose::Test).strata;
    process::capture_any(Command::new(program).args(arguments).arg(trace)).unwrap()
}

/// The events of `layer`, with the time of each, s.
fn events(layer: &str, path: &Path) -> Vec<(f64, String)> {
    let listed = strata(&["events", "--layer", layer], path);
    let time = |line: &str| line.split_whitespace().next()?.parse().ok();
    listed.lines().filter(|line| line.contains(layer)).map(|line| (time(line).unwrap(), line.to_owned())).collect()
}

/// Times that the guest's CPUs halted behind its last event.
fn halts_behind_last_event(path: &Path) -> usize {
    let (host, guest) = (events("host-kernel", path), events("guest-kernel", path));
    let last = guest.last().unwrap().0;
    let is_halt = |line: &str| line.contains("kvm:kvm_exit: ") && line.contains("(hlt)");
    let halts: Vec<f64> = host.into_iter().filter(|(_, line)| is_halt(line)).map(|(time, _)| time).collect();
    assert!(halts.len() > 10 * HALTS, "{} halts", halts.len());
    halts.into_iter().filter(|time| *time > last).count()
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
    judge("agentless", &KERNELS[..1]);
}

#[test]
#[ignore = "tier all: every kernel"]
fn every_kernel_without_a_module_is_traced_to_its_last_event() {
    judge("agentless-everywhere", &KERNELS);
}

/// Runs the guests of `kernels` in the run folder `name`, and judges what they left.
fn judge(name: &str, kernels: &[NamedKernel]) {
    let lab = provision::lab(&Paths::of_workspace()).unwrap();
    let results = Results(agentless::run(&lab, name, kernels).unwrap().output);

    for (name, _) in kernels {
        let trace = results.trace(name);
        assert!(guest_records(&trace) > 1000);
        let death: Value = serde_json::from_str(&strata(&["report", "death", "--json"], &trace)).unwrap();
        assert_contains(death["outcome"].as_str().unwrap(), &["panicked"]);
        // The shell wrote to sysrq-trigger.
        let cpus = death["vms"][0]["cpus"].as_array().unwrap();
        let reported: Vec<_> = cpus.iter().map(|cpu| cpu["guest"].as_str().unwrap_or_default()).collect();
        assert!(reported.iter().any(|guest| guest.contains("sh/") || guest.contains("init")), "{reported:?}");
        assert_symbols(&trace, &results.text(&format!("{name}.log")));
        let events = strata(&["events", "--layer", "guest-kernel"], &trace);
        assert_contains(&events, &["sched:sched_switch: ", "sched:sched_process_exec: ", "irq:"]);
        let halts = halts_behind_last_event(&trace);
        println!("{name}: {halts} halts behind the guest's last event");
        assert!(halts <= HALTS, "{halts}");
    }

    assert_eq!(results.text(&format!("{SNAPSHOT}.status")).trim(), "0", "{}", results.text(&format!("{SNAPSHOT}.log")));
    let snapshot = results.trace(SNAPSHOT);
    assert!(guest_records(&snapshot) > 1000);
    assert_symbols(&snapshot, &results.text(&format!("{}.log", KERNELS[0].0)));
    let manifest = Trace::open(&snapshot).unwrap().manifest().clone();
    assert_contains(manifest.outcome.as_deref().unwrap(), &["snapshot of a running VM"]);
    assert_contains(&manifest.clock.bound_derivation, &["traced without an agent, in kvm-clock's time"]);
    let (vmm, guest) = (events("vmm", &snapshot), events("guest-kernel", &snapshot));
    let (begin, end, last) = (vmm[0].0, vmm.last().unwrap().0, guest.last().unwrap().0);
    println!("the VMM records from {begin} s to {end} s, the guest to {last} s");
    assert!((end - last) / (end - begin) < SILENT_SHARE);

    assert!(guest_records(&results.trace("elf")) > 100);
    let events = strata(&["events", "--layer", "guest-kernel"], &results.trace("elf"));
    assert!(!events.contains("irq:") && events.contains("sched:sched_wakeup: "));

    assert_eq!(results.text("old.status").trim(), "2");
    assert_contains(&results.text("old.log"), &["--agentless: the kernel", "older than Linux 6.12", "use --agent"]);
}
