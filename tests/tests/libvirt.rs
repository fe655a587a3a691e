//! Domains of libvirt under AppArmor, recorded from outside: paused, with a vCPU that is plugged in, out and in again, and
//! destroyed meanwhile; by name, number and UUID.
//!
//! Shows: libvirt's domains are recorded by name, number and UUID, paused, whatever thread runs a vCPU (`--all`).
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::paths::Paths;
use lab::provision;
use lab::scenarios::results::{Results, assert_babeltrace2_agrees, assert_contains};
use lab::scenarios::{analysis, libvirt};
use std::collections::BTreeSet;
use strata_recording::layer::LayerKind;
use strata_recording::reader::merge::Merge;
use strata_recording::reader::{StreamRecord, Trace};
use trace_merge::check;

/// What the domain's QEMU is confined by: libvirt names a profile after the domain's UUID.
const PROFILE: &str = "libvirt-";

#[test]
#[ignore = "tier all: libvirt in a Debian of its own"]
fn domains_of_libvirt_are_recorded_whatever_becomes_of_them() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let host = libvirt::run(&lab, "libvirt").unwrap();
    println!("{}", std::fs::read_to_string(&host.script_log).unwrap());
    let results = Results(host.output.clone());
    println!("{}{}", results.text("web-attach.log"), results.text("web.log"));

    // confined, with the device as `strata region create` prints it
    assert!(results.text("confined").starts_with(PROFILE), "{}", results.text("confined"));
    let path = host.output.join("web");
    let trace = Trace::open(&path).unwrap();
    let vm = &trace.manifest().vms[0];
    assert_eq!((vm.name.as_str(), vm.vcpus, results.text("web-attach.status").trim()), ("web", 3, "0"));
    assert_eq!(trace.manifest().outcome.as_deref(), Some("the VM ended"));
    let checked = check::check(&trace, 10).unwrap();
    assert!(checked.passed(), "{:?}", checked.violations);
    let count: usize = trace.layers_of(LayerKind::GuestUser).map(|layer| Merge::new([layer], 0).count()).sum();
    assert!(count > 100, "{count}");

    // the third vCPU, and the thread that runs it from when it is plugged in again
    let layers = trace.layers_of(LayerKind::HostKernel);
    let entries = layers.flat_map(|layer| layer.streams.iter().flat_map(|stream| layer.records(stream)));
    let entries = entries.filter(|record| record.schema.name() == "kvm:kvm_entry");
    let entered = |record: StreamRecord<'_>| (record.time, record.number("vcpu_id"), record.number("common_pid"));
    let entries: BTreeSet<_> = entries.map(entered).collect();
    let threads: BTreeSet<i64> =
        entries.iter().filter(|entry| entry.1 == Some(2)).filter_map(|entry| entry.2).collect();
    let known = vm.all_vcpu_threads().filter(|&(vcpu, _)| vcpu == 2).map(|(_, tid)| tid.into());
    assert_eq!((threads.len(), threads), (2, known.collect()));

    // no vCPU is in the guest while the domain is paused
    let suspended = analysis::known(&host.output.join("known.log"), "suspended").unwrap()["us"];
    let times: Vec<u64> = entries.iter().map(|entry| entry.0).collect();
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    let longest_us = u128::from(longest) * 1_000_000 / u128::from(trace.manifest().clock.frequency_hz);
    assert!(longest_us >= suspended.into(), "{longest_us} us, not {suspended}");

    // by each of its names
    for by in ["name", "number", "uuid"] {
        let log = results.text(&format!("by-{by}.log"));
        assert_eq!(results.text(&format!("by-{by}.status")).trim(), "0", "{log}");
        let trace = Trace::open(&host.output.join(format!("by-{by}"))).unwrap();
        assert_eq!(trace.manifest().vms[0].name, "my-web--1-");
        assert_contains(&log, &["the trace calls libvirt's domain 'my web (1)' my-web--1-"]);
        assert!(check::check(&trace, 10).unwrap().passed());
    }
    assert_contains(&results.text("by-nobody.log"), &["libvirt runs no domain 'my web'; it runs my web (1)"]);
    assert_babeltrace2_agrees(&path);
}
