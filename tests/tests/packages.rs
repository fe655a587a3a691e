//! A Debian on its disk image: booted with its own kernel and initrd, and with Strata's packages in it, installed by
//! dpkg, built by DKMS, started by systemd.
//!
//! Shows: Packages install, DKMS builds, systemd starts the agent and `strata metrics`, a user of group `strata` records.
//! Shows: A Python program of a user of group `strata` records, and so do two copies of the library in one.
//! Shows: A distribution boots from its image, fails no unit, runs apt-get, powers off.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::scenarios::debian_guest;
use lab::{packaging, process, provision};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Manifest;

#[test]
fn debian_boots_from_its_image_and_its_packages_connect_it() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let folder = debian_guest::run(&lab, "packages").unwrap().output;
    let console = fs::read(folder.join("debian.log")).unwrap();
    let console = String::from_utf8_lossy(&console).replace('\r', "");
    println!("{console}");
    let reported: Vec<&str> = console.lines().filter_map(|line| line.split("report: ").nth(1)).collect();
    let has = |wanted: &str| reported.iter().any(|line| line.contains(wanted));

    // its own kernel and initrd
    assert!(console.contains("strata: boots /boot/vmlinuz-6"), "{console}");
    assert!(console.contains(" with /boot/initrd.img-6"), "{console}");
    assert!(has("root /dev/vda ext4 rw"), "{reported:#?}");
    assert!(has("failed units: 0"), "{reported:#?}");
    // over the network, from its host
    assert!(has("apt: Setting up lab-greeting (1.0)") && has("installed a greeting of the lab"), "{reported:#?}");
    assert!(has("source of randomness virtio_rng"), "{reported:#?}");
    assert_eq!(fs::read_to_string(folder.join("debian.status")).unwrap().trim(), "0", "{console}");
    assert!(console.contains("strata: the guest powered off"), "{console}");
    let busy = fs::read_to_string(folder.join("busy.log")).unwrap();
    assert!(busy.contains("debian.img' is locked by process ") && busy.contains("(strata)"), "{busy}");

    assert!(has("unit active"), "{reported:#?}");
    assert!(has("device root:strata 660"), "{reported:#?}");
    for name in ["strata", "strata-agent", "strata-dkms", "libstrata1", "python3-strata"] {
        assert!(has(&format!("package {name} {} ii", packaging::VERSION)), "{reported:#?}");
    }
    assert!(has("strata is loaded") && has("drains the rings"), "{reported:#?}");
    // the host's units, as systemd confines them
    assert!(has("metrics: # HELP strata_vcpu_seconds") && has("metrics active"), "{reported:#?}");
    assert!(!has("verify: "), "{reported:#?}");
    // a member of the group who is not root records
    assert!(has("workload done"), "{reported:#?}");
    assert!(has("shop.py: 101 recorded, 1 lost, connected"), "{reported:#?}");
    assert!(has("copies: [True, True] [None, None]"), "{reported:#?}");
    assert!(has("after stopping: inactive, 0 modules") && has("unloaded"), "{reported:#?}");

    let trace = folder.join("debian.trace");
    let manifest = Manifest::load(&trace).unwrap();
    assert_eq!(manifest.missing.iter().filter(|missing| missing.layer != LayerKind::HostKernel).count(), 0);
    let records = |kind: LayerKind| -> u64 {
        let layers = manifest.layers.iter().filter(|layer| layer.kind == kind);
        layers.flat_map(|layer| &layer.streams).map(|stream| stream.records).sum()
    };
    assert!(records(LayerKind::GuestKernel) > 1_000 && records(LayerKind::GuestUser) > 400);
    let strata = binaries::located(&paths, Purpose::Test).strata;
    let verdict = process::capture(Command::new(&strata).arg("check").arg(&trace)).unwrap();
    assert!(verdict.contains("0 violations"), "{verdict}");
    let listed =
        |arguments: &[&str]| process::capture(Command::new(&strata).arg("events").arg(&trace).args(arguments)).unwrap();
    let events = listed(&["--event", "pyshop:sold"]);
    let sold: Vec<&str> = events.lines().filter(|line| line.contains("pyshop:sold: ")).collect();
    assert_eq!(sold.len(), 100, "{events}");
    let last = "what = \"brötchen\", pieces = 99, flags = 0x73, change = -99, open = 1, price = 49.5";
    assert!(sold[99].contains(last), "{events}");

    // each copy by a slot of its own
    let events = listed(&["--event", "copies:*", "--json"]);
    let copies: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: BTreeSet<_> = copies.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["copies:strata", "copies:strata_copy"]), "{events}");
    let pid = &copies[0]["pid"];
    assert!(pid.is_u64() && copies.iter().all(|event| event["pid"] == *pid), "{events}");
    let processes = manifest.layers.iter().filter_map(|layer| layer.process.as_ref());
    assert_eq!(processes.filter(|process| *pid == process.pid).count(), 2, "{events}");

    let host = paths.builds().join("debs").join(format!("strata_{}_amd64.deb", packaging::VERSION));
    let contents = process::capture(Command::new("dpkg-deb").arg("--contents").arg(host)).unwrap();
    for file in [
        "man/man1/strata.1.gz",
        "man/man1/strata-run.1.gz",
        "bash-completion/completions/strata",
        "doc/strata/docs/example.strata",
    ] {
        assert!(contents.contains(file), "{contents}");
    }
}
