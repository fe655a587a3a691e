//! Flight recorder, snapshots, a panic, and a monitor that is killed: judged from the traces that they leave.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::paths::Paths;
use lab::{binaries, flight, process, provision};

/// One event of `strata events --json`.
#[derive(Debug, Clone, serde::Deserialize)]
struct Event {
    /// The trace clock.
    ticks: u64,
    layer: String,
    event: String,
}

struct Results {
    folder: PathBuf,
    strata: PathBuf,
}

impl Results {
    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join(name)).unwrap_or_default()).into_owned()
    }

    fn events(&self, trace: &str) -> Vec<Event> {
        let text =
            process::capture(Command::new(&self.strata).arg("events").arg(self.folder.join(trace)).arg("--json"));
        text.unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What `strata check` says about a trace that must pass it, and that babeltrace2 must read without a complaint.
    fn check(&self, trace: &str) -> String {
        let path = self.folder.join(trace);
        babeltrace_reads(&path, self.events(trace).len());
        process::capture(Command::new(&self.strata).arg("check").arg(path)).unwrap()
    }

    fn frequency(&self, trace: &str) -> u64 {
        let session: serde_json::Value = serde_json::from_str(&self.text(&format!("{trace}/session.json"))).unwrap();
        session["clock"]["frequency_hz"].as_u64().unwrap()
    }
}

fn babeltrace_reads(trace: &Path, events: usize) {
    let output = Command::new("babeltrace2").args(["--clock-cycles", "--names=none"]).arg(trace).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{}", trace.display());
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), events, "{}", trace.display());
}

fn last(events: &[Event], layer: &str) -> u64 {
    events.iter().rev().find(|event| event.layer == layer).unwrap().ticks
}

fn has_layers(events: &[Event], layers: &[&str]) -> bool {
    layers.iter().all(|layer| events.iter().any(|event| event.layer == *layer))
}

#[test]
fn flight_recorder_is_there_when_asked_for_after_a_panic_and_after_a_kill() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let folder = flight::run(&lab, "flight").unwrap().output;
    let results = Results { folder, strata: binaries::located(&paths).strata };
    let said = results.text("control.log");
    println!("{said}");

    // while it runs
    let all = ["host-kernel", "vmm", "guest-kernel", "guest-user"];
    let (first, second) = (results.events("snapshot1.trace"), results.events("snapshot2.trace"));
    assert!(has_layers(&first, &all) && has_layers(&second, &all), "{said}");
    assert!(results.check("snapshot1.trace").contains("0 violations"));
    assert!(results.check("snapshot2.trace").contains("0 violations"));
    assert!(last(&second, "guest-kernel") > last(&first, "guest-kernel"));
    assert!(results.text("during.ps").contains("running"), "{}", results.text("during.ps"));
    let calls = results.events("calls.trace");
    assert!(!calls.is_empty() && calls.iter().all(|event| event.event.starts_with("raw_syscalls:")), "{said}");
    assert!(results.check("calls.trace").contains("CAUSALITY WAS NOT CHECKED"));

    // after the panic: the guest's last record is at its death, which the monitor has seen too
    let panicked = results.events("flight.trace");
    assert_eq!(results.text("flight.status").trim(), "1", "{}", results.text("flight.log"));
    assert!(has_layers(&panicked, &all));
    assert!(results.check("flight.trace").contains("0 violations"));
    let (guest, monitor) = (last(&panicked, "guest-kernel"), last(&panicked, "vmm"));
    assert!(guest > last(&second, "guest-kernel"));
    assert!(monitor.abs_diff(guest) < results.frequency("flight.trace"), "guest {guest}, monitor {monitor}");

    // after the kill: what the guest and the monitor had recorded is left, beyond the snapshot taken just before
    let recovered = results.events("recovered.trace");
    assert!(has_layers(&recovered, &["vmm", "guest-kernel"]), "{said}");
    let checked = results.check("recovered.trace");
    assert!(checked.contains("from the vmm layer") && checked.contains("0 violations"), "{checked}");
    assert!(last(&recovered, "guest-kernel") > last(&results.events("before.trace"), "guest-kernel"));
    let after = results.text("after.ps");
    assert!(after.contains("recoverable") && !after.contains("running"), "{after}");
}
