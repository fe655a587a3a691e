//! VMs of VMMs that other people make, recorded from outside while their guests do what is known: of alioth and of libkrun.
//!
//! Shows: VMs of alioth and libkrun are recorded undisturbed; exits, ports, times and a pause are the guests' (`--all`).
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::paths::Paths;
use lab::provision;
use lab::scenarios::other_vmms::{self, COMPUTED_SECONDS, PAUSED_SECONDS, PORTS_READ, WRITTEN};
use lab::scenarios::results::{Results, assert_babeltrace2_agrees, assert_contains};
use std::collections::BTreeSet;
use std::fs;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{StreamRecord, Trace};
use trace_merge::check;
use trace_merge::report::Window;
use trace_merge::report::kernels::exits;
use trace_merge::report::scheduling::vcpus;

const NS: u64 = 1_000_000_000;
/// The console's port.
const CONSOLE: u64 = 0x3f8;

/// What the host left of a VM of another VMM.
struct Recorded {
    results: Results,
    name: &'static str,
    trace: Trace,
}

impl Recorded {
    fn open(results: &Results, name: &'static str) -> Self {
        let trace = Trace::open(&results.0.join(name)).unwrap();
        Self { results: results.clone(), name, trace }
    }

    /// Of the host's kernel, what `take` takes of the records of the event `event`.
    fn of_event<T>(&self, event: &str, take: impl Fn(&StreamRecord<'_>) -> T) -> Vec<T> {
        let layers = self.trace.layers_of(LayerKind::HostKernel);
        let streams = layers.flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream)));
        let records = streams.flat_map(|(layer, stream)| layer.records(stream));
        records.filter(|record| record.schema.name() == event).map(|record| take(&record)).collect()
    }

    /// The threads that accessed ports, with port and value of each access, reads or writes.
    fn accesses(&self, is_write: bool) -> Vec<(i64, u64, u64)> {
        let number = |record: &StreamRecord<'_>, name| record.unsigned(name).unwrap();
        let accesses = self.of_event("kvm:kvm_pio", |record| {
            let (port, value) = (number(record, "port"), number(record, "val"));
            (record.number("rw").unwrap() == 1, (record.number("common_pid").unwrap(), port, value))
        });
        accesses.into_iter().filter(|(writes, _)| *writes == is_write).map(|(_, access)| access).collect()
    }

    /// For how long each vCPU was in states that are `wanted`, ns.
    fn times(&self, wanted: impl Fn(&str) -> bool) -> Vec<u64> {
        let report = vcpus::report(&self.trace, Window::ALL).unwrap();
        let of =
            |vcpu: &vcpus::VcpuReport| vcpu.parts.iter().filter(|part| wanted(part.state)).map(|part| part.ns).sum();
        report.vms[0].vcpus.iter().map(of).collect()
    }

    /// Asserts that the VM, whose process is called `process`, was found and recorded, is described completely, and ended as
    /// it would have without that, and that its vCPUs computed for as long as they did.
    #[track_caller]
    fn assert_is_whole(&self, process: &str) {
        let text = |end: &str| self.results.text(&format!("{}{end}", self.name));
        println!("{}{}{}", text(".log"), text("-attach.log"), text("-ps.log"));
        let (manifest, vm) = (self.trace.manifest(), &self.trace.manifest().vms[0]);
        let attached = vm.attached.as_ref().unwrap();
        assert_eq!((text(".status").trim(), text("-attach.status").trim()), ("0", "0"));
        assert_eq!(manifest.outcome.as_deref(), Some("the VM ended"));
        assert_eq!(attached.comm, process);
        assert_contains(&text("-listed.log"), &[&format!("{}  {process}", attached.pid)]);
        assert_contains(&text("-ps.log"), &[self.name, "attached", process, "recorded by process"]);

        // Each exit is one of a vCPU's thread, and in the report.
        let threads: BTreeSet<i64> = vm.vcpu_threads.iter().map(|&tid| tid.into()).collect();
        assert_eq!((vm.vcpus, threads.len(), vm.earlier_vcpu_threads.len()), (2, 2, 0), "{vm:?}");
        let exits = self.of_event("kvm:kvm_exit", |record| record.number("common_pid").unwrap());
        assert_eq!(exits.iter().copied().collect::<BTreeSet<_>>(), threads);
        let report = exits::report(&self.trace, Window::ALL).unwrap();
        assert_eq!((report.vms[0].count, exits.len() > 1000), (exits.len() as u64, true));
        let [unknown, all] = [self.times(|state| state == "unknown"), self.times(|_| true)];
        assert!(unknown.iter().zip(&all).all(|(unknown, all)| unknown < &(all / 10)), "{unknown:?} of {all:?}");

        // Otherwise the guest sleeps nearly all the time.
        let rests = ["halted", "blocked_in_kvm", "blocked_in_vmm", "ended", "unknown"];
        let computed = self.times(|state| !rests.contains(&state));
        let least = u64::from(COMPUTED_SECONDS) * NS;
        println!("{}: {} exits, computed {computed:?} ns, unknown {unknown:?} ns", self.name, exits.len());
        assert!(computed.iter().all(|ns| (least..least + least / 2).contains(ns)), "{computed:?}");

        assert!(check::check(&self.trace, 10).unwrap().passed());
        assert_babeltrace2_agrees(&self.results.0.join(self.name));
    }
}

#[test]
#[ignore = "tier all: what several_vms tries of QEMU and of a VMM of a few lines; alioth takes minutes to build"]
fn vms_of_alioth_and_libkrun_are_recorded_undisturbed_with_what_their_guests_know() {
    let lab = provision::lab(&Paths::of_workspace()).unwrap();
    let result = other_vmms::run(&lab, "other-vmms").unwrap();
    println!("{}", fs::read_to_string(&result.script_log).unwrap());
    let results = Results(result.output);

    let alioth = Recorded::open(&results, "alioth");
    alioth.assert_is_whole("alioth");
    let (character, times) = WRITTEN;
    let written =
        alioth.accesses(true).into_iter().filter(|&(_, port, value)| (port, value) == (CONSOLE, character.into()));
    assert_eq!(written.count(), times);

    let libkrun = Recorded::open(&results, "libkrun");
    libkrun.assert_is_whole("libkrun VM");
    let (first, ports) = PORTS_READ;
    let wanted: Vec<_> = (u64::from(first)..).take(ports).collect();
    let thread = i64::from(libkrun.trace.manifest().vms[0].vcpu_threads[1]);
    let read = libkrun.accesses(false).into_iter().filter(|(_, port, _)| wanted.contains(port));
    let mut read: Vec<_> = read.filter(|&(tid, ..)| tid == thread).map(|(_, port, _)| port).collect();
    read.sort_unstable();
    assert_eq!(read, wanted);
    let paused = libkrun.times(|state| state == "blocked_in_vmm");
    let least = u64::from(PAUSED_SECONDS) * NS;
    println!("libkrun: paused {paused:?} ns");
    assert!(paused.iter().all(|ns| (least..least + least / 2).contains(ns)), "{paused:?}");
    let ended = ["libkrun-load.status", "libkrun-resumed.status"].map(|name| results.text(name));
    assert_eq!(ended, ["0\n", "0\n"]);
}
