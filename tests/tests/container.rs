//! Containers of the image that `cargo xtask dist` makes: in each a guest runs, and strata says what it cannot record.
//!
//! Shows: In a container of `dist`'s image a guest is recorded; with the host's PID namespace, in every layer (`--all`).
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::paths::Paths;
use lab::scenarios::container;
use lab::scenarios::results::{Results, assert_contains};
use lab::{process, provision};
use std::fs;
use std::process::Command;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Manifest;
use strata_recording::reader::Trace;
use trace_merge::check;

#[test]
#[ignore = "tier all: the image for containers, a form of package"]
fn guest_in_a_container_is_recorded_and_one_line_says_what_cannot_be() {
    let lab = provision::lab(&Paths::of_workspace()).unwrap();
    let result = container::run(&lab, "container").unwrap();
    println!("{}", fs::read_to_string(&result.script_log).unwrap());
    let results = Results(result.output);

    for (name, missing) in [("usual", vec![LayerKind::HostKernel]), ("privileged", Vec::new())] {
        let printed = results.console(name);
        assert_contains(&printed, &["workload done"]);
        let trace = results.trace(name);
        let layers = Manifest::load(&trace).unwrap().missing;
        assert_eq!(layers.iter().map(|missing| missing.layer).collect::<Vec<_>>(), missing, "{name}: {printed}");
        let told = printed.lines().filter(|line| line.contains(" is missing: "));
        assert_eq!(told.count(), missing.len(), "{name}: {printed}");
        for kind in [LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestKernel, LayerKind::GuestUser] {
            let records = results.records(name, kind).unwrap();
            assert_eq!(records > 100, !missing.contains(&kind), "{name}: {records} of {kind}\n{printed}");
        }
        assert!(check::check(&Trace::open(&trace).unwrap(), 10).unwrap().passed(), "{name}");
        let count = process::capture(Command::new(&lab.binaries.strata).args(["events", "--count"]).arg(&trace));
        let count: usize = count.unwrap().trim().parse().unwrap();
        assert_eq!(process::capture(Command::new("babeltrace2").arg(&trace)).unwrap().lines().count(), count, "{name}");
    }
    assert_contains(&results.console("usual"), &["PID namespace", "--pid=host"]);
    assert_contains(&results.console("doctor"), &["PID namespace", "--pid=host"]);
}
