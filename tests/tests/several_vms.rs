//! VMs on one host, in one boot of it. Two at the same time, their vCPUs on one CPU: the two traces become one, with both
//! VMs beside a host that is there once. Then five that are recorded from outside: of strata itself, of QEMU, with its
//! guest, twice, of QEMU that is given a region while it runs, and of a VMM of a few lines.
//!
//! Shows: VMs of another VMM are recorded undisturbed; refusals leave nothing.
//! Shows: A running QEMU gets a region while recorded, and gives it back when its guest lets go; its guest outlives the region.
//! Shows: A QEMU guest is recorded through a device that it can write completely.
//! Shows: One host's VMs are merged without loss, doubles or clock change.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::process;
use lab::scenarios::results::assert_babeltrace2_agrees;
use lab::scenarios::several_vms;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_analysis::completeness::LayerCompleteness;
use strata_analysis::vcpu::{SwitchSource, Switches};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::reader::merge::Merge;
use trace_merge::check;
use trace_merge::join::join;

/// The folder of what the host left, made by the first test that asks.
fn output() -> PathBuf {
    let result = several_vms::once_per_test_run(&Paths::of_workspace()).unwrap();
    println!("{}", fs::read_to_string(&result.script_log).unwrap());
    result.output
}

/// Records of the host's kernel in `trace`.
fn host_records(trace: &Trace) -> u64 {
    trace.layers_of(LayerKind::HostKernel).map(|layer| Merge::new([layer], 0).count() as u64).sum()
}

/// What strata says, which must have nothing to complain about.
fn strata(arguments: &[&str], trace: &Path) -> String {
    let program = binaries::located(&Paths::of_workspace(), Purpose::Test).strata;
    process::capture(Command::new(program).args(arguments).arg(trace)).unwrap()
}

#[test]
fn vms_of_one_host_are_merged_side_by_side() {
    let output = output();
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| output.join(name));
    let merged = folder.path().join("merged");

    let joined = join(&one, std::slice::from_ref(&two), &[], &merged).unwrap();

    let trace = Trace::open(&merged).unwrap();
    let names: Vec<_> = trace.manifest().vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!((names, joined.relation.is_none()), (vec!["vm0", "vm0-2"], true));
    let apart = host_records(&Trace::open(&one).unwrap()) + host_records(&Trace::open(&two).unwrap());
    println!("{apart} host records, {} of them twice", joined.shared_host_events);
    assert!(joined.shared_host_events > 0);
    assert_eq!(host_records(&trace), apart - joined.shared_host_events);
    for vm in &trace.manifest().vms {
        let switches = Switches::new(&trace, vm, SwitchSource::HostKernel).count();
        assert!(switches > 1000, "{}: {switches}", vm.name);
    }
    let checked = check::check(&trace, 10).unwrap();
    assert!(checked.passed(), "{:?}", checked.violations);
    assert_eq!(checked.periods.iter().map(|periods| periods.vm.as_str()).collect::<Vec<_>>(), ["vm0", "vm0-2"]);
    assert_babeltrace2_agrees(&merged);
    assert!(strata(&["report"], &merged).contains("vm0-2"));
}

/// Asserts that the recording `name` of a VMM's process with 2 vCPUs was made from outside, is whole, and tells what both
/// did: in the guest, in KVM and in the VMM. The VMM ended by itself with `status`. Returns the number of exits.
fn judge_recording_from_outside(name: &str, status: &str) -> u64 {
    let output = output();
    let printed = |file: &str| fs::read_to_string(output.join(file)).unwrap();
    let path = output.join(name);
    let trace = Trace::open(&path).unwrap();
    let (manifest, vm) = (trace.manifest(), &trace.manifest().vms[0]);
    assert_eq!(
        (printed(&format!("{name}.status")).trim(), printed(&format!("{name}-attach.status")).trim()),
        (status, "0")
    );
    assert_eq!(manifest.outcome.as_deref(), Some("the VM ended"));
    assert_eq!((vm.vcpus, vm.vcpu_threads.len(), vm.attached.is_some()), (2, 2, true), "{vm:?}");
    // KVM gives both vCPUs one offset, with which their counters began at 0 or so.
    let offsets: Vec<i64> = manifest.clock.vcpus.iter().map(|relation| relation.tsc_offset).collect();
    assert!(offsets.len() == 2 && offsets.iter().all(|offset| *offset < 0), "{offsets:?}");

    let checked = check::check(&trace, 10).unwrap();
    assert!(checked.passed(), "{checked:?}");
    assert!(checked.completeness.layers.iter().all(LayerCompleteness::is_complete), "{:?}", checked.completeness);
    assert_babeltrace2_agrees(&path);
    let vcpus: Value = serde_json::from_str(&strata(&["report", "vcpus", "--json"], &path)).unwrap();
    for vcpu in vcpus["vms"][0]["vcpus"].as_array().unwrap() {
        let parts = vcpu["parts"].as_array().unwrap();
        let ticks = |states: &[&str]| {
            let of_states = parts.iter().filter(|part| states.contains(&part["state"].as_str().unwrap()));
            of_states.map(|part| part["ticks"].as_u64().unwrap()).sum::<u64>()
        };
        let all: u64 = parts.iter().map(|part| part["ticks"].as_u64().unwrap()).sum();
        assert_eq!(vcpu["wall_ticks"], all, "{vcpu}");
        assert!(
            [&["guest"][..], &["kvm"], &["vmm", "blocked_in_vmm"]].iter().all(|states| ticks(states) > 0),
            "{vcpu}"
        );
        assert!(ticks(&["unknown"]) < all / 10, "{vcpu}");
    }
    let exits: Value = serde_json::from_str(&strata(&["report", "exits", "--json"], &path)).unwrap();
    println!("{name}: {exits}");
    Switches::new(&trace, vm, SwitchSource::HostKernel).filter(|switch| switch.exit.is_some()).count() as u64
}

#[test]
fn guest_of_strata_is_recorded_from_outside() {
    let exits = judge_recording_from_outside("outside", "0");

    assert!(exits > 1000, "{exits}");
}

#[test]
fn guest_of_qemu_is_recorded_from_outside() {
    let exits = judge_recording_from_outside("qemu", "0");

    let trace = Trace::open(&output().join("qemu")).unwrap();
    assert_eq!(trace.manifest().vms[0].attached.as_ref().unwrap().comm, "qemu-system-x86");
    assert!(exits > 1000, "{exits}");
}

/// Asserts that the recording `name` has the layers that a guest of another VMM can have, and that each of its records is
/// where it can be. Returns what the guest said.
fn judge_guest_with_a_region(name: &str) -> String {
    let path = output().join(name);
    let printed = fs::read_to_string(output().join(format!("{name}.log"))).unwrap();
    println!("{printed}");

    let trace = Trace::open(&path).unwrap();
    let (manifest, vm) = (trace.manifest(), &trace.manifest().vms[0]);
    let records = |kind| trace.layers_of(kind).map(|layer| Merge::new([layer], 0).count()).sum::<usize>();

    assert!(!printed.contains("WARNING: CPU") && !printed.contains("BUG:") && !printed.contains("Oops"), "{printed}");
    assert!(vm.guest.as_ref().is_some_and(|guest| guest.kernel.contains("cloud")), "{vm:?}");
    assert_eq!(
        (vm.restored_words, manifest.missing.iter().map(|missing| missing.layer).collect::<Vec<_>>()),
        (0, vec![LayerKind::Vmm])
    );
    let counts = [LayerKind::HostKernel, LayerKind::GuestKernel, LayerKind::GuestUser, LayerKind::Vmm].map(records);
    println!("host kernel, guest kernel, applications, VMM: {counts:?}");
    assert!(counts[1] > 1000 && counts[2] > 100 && counts[3] == 0, "{counts:?}");
    let checked = check::check(&trace, 10).unwrap();
    println!("{:?}", checked.periods);
    assert!(checked.passed(), "{:?}", checked.violations);
    let tasks = strata(&["report", "tasks", "--json"], &path);
    assert!(tasks.contains("workload"), "{tasks}");
    printed
}

#[test]
fn guest_of_qemu_with_a_region_is_recorded_in_every_layer_but_the_vmm() {
    println!("{}", fs::read_to_string(output().join("region.log")).unwrap());

    let printed = judge_guest_with_a_region("qemu");

    assert!(printed.contains("trace region in PCI device"), "{printed}");
}

#[test]
fn guest_of_qemu_with_the_region_in_persistent_memory_is_recorded_in_every_layer_but_the_vmm() {
    let exits = judge_recording_from_outside("pmem", "0");

    let printed = judge_guest_with_a_region("pmem");

    assert!(exits > 1000, "{exits}");
    assert!(printed.contains("trace region in virtio device") && printed.contains("mapped write-back"), "{printed}");
    // The module takes the device from the kernel's own driver, which gets it back when it is unloaded.
    assert!(["1 disks before", "0 disks with", "1 disks after"].iter().all(|part| printed.contains(part)), "{printed}");
}

#[test]
fn running_qemu_is_given_a_region_for_each_recording_and_left_as_it_was() {
    let output = output();
    let printed = |name: &str| fs::read_to_string(output.join(name)).unwrap();
    let guest = printed("plugged.log");
    println!("{guest}{}", printed("refused.log"));

    for name in ["plugged", "again"] {
        let path = output.join(name);
        let trace = Trace::open(&path).unwrap();
        let records = |kind| trace.layers_of(kind).map(|layer| Merge::new([layer], 0).count()).sum::<usize>();
        let counts = [LayerKind::HostKernel, LayerKind::GuestKernel, LayerKind::GuestUser].map(records);
        println!("{name}: host kernel, guest kernel, applications: {counts:?}");
        assert!(counts[0] > 1000 && counts[1] > 1000 && counts[2] > 100, "{counts:?}");
        let checked = check::check(&trace, 10).unwrap();
        assert!(checked.passed(), "{:?}", checked.violations);
        assert_babeltrace2_agrees(&path);
        assert_eq!(printed(&format!("{name}-attach.status")).trim(), "0");
        let reported = printed(&format!("{name}-attach.log"));
        assert!(reported.contains("into port strata-port") && !reported.contains("stays plugged"), "{reported}");
    }

    assert_eq!((printed("plugged.status").trim(), printed("left.log").as_str()), ("0", ""));
    assert_eq!(guest.matches("the trace region is gone with PCI device").count(), 2, "{guest}");
    assert_eq!(guest.matches("outlives its region").count(), 2, "{guest}");
    assert!(!guest.contains("WARNING: CPU") && !guest.contains("BUG:") && !guest.contains("Oops"), "{guest}");
    assert_eq!(printed("refused.log").matches("give the QMP socket of the VM's QEMU").count(), 2);
    assert!(!printed("refused.log").contains("status 0") && !output.join("refused").exists());
}

#[test]
fn vm_of_another_vmm_is_recorded_from_outside() {
    let exits = judge_recording_from_outside("tiny", "7");

    let printed = fs::read_to_string(output().join("tiny.log")).unwrap();
    let accesses: u64 = printed.trim().strip_suffix(" accesses").unwrap().parse().unwrap();
    println!("{exits} exits recorded, {accesses} accesses in all");
    assert!(exits > 100);
}
