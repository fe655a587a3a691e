//! Real guests on a real host: all scenarios in one boot of the host, judged from the traces and files they leave.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::host::HostResult;
use lab::paths::Paths;
use lab::{binaries, process, scenarios};

const LAYERS: [&str; 4] = ["host-kernel", "vmm", "guest-kernel", "guest-user"];

/// The results of the scenarios, made by the first test that asks.
fn results() -> HostResult {
    scenarios::once_per_test_run(&Paths::of_workspace()).unwrap()
}

fn strata() -> Command {
    Command::new(binaries::located(&Paths::of_workspace()).strata)
}

fn trace(scenario: &str) -> PathBuf {
    results().output.join(format!("{scenario}.trace"))
}

fn log(scenario: &str) -> String {
    // a console's bytes need not be text
    let path = results().output.join(format!("{scenario}.log"));
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}

fn status(scenario: &str) -> i32 {
    let path = results().output.join(format!("{scenario}.status"));
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// One event of `strata events --json`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    nanoseconds: i64,
    layer: String,
    name: String,
    fields: serde_json::Value,
}

fn events(trace: &Path) -> Vec<Event> {
    let text = process::capture(strata().arg("events").arg(trace).arg("--json")).unwrap();
    text.lines()
        .map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            Event {
                nanoseconds: value["ns"].as_i64().unwrap(),
                layer: value["layer"].as_str().unwrap().to_owned(),
                name: value["name"].as_str().unwrap().to_owned(),
                fields: value["fields"].clone(),
            }
        })
        .collect()
}

fn count(events: &[Event], layer: &str, name: &str) -> usize {
    events.iter().filter(|event| event.layer == layer && event.name == name).count()
}

/// `(nanoseconds, name)` of what babeltrace2 prints, in its order.
fn babeltrace_events(trace: &Path) -> Vec<(i64, String)> {
    let output = Command::new("babeltrace2")
        .args(["--clock-seconds", "--no-delta", "--names", "none"])
        .arg(trace)
        .output()
        .unwrap();
    let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{warnings}");
    assert_eq!(warnings, "");
    String::from_utf8_lossy(&output.stdout).lines().map(parse_babeltrace_line).collect()
}

/// A line such as `[1700000000.123456789] sched_switch: { 0 }, { ... }`.
fn parse_babeltrace_line(line: &str) -> (i64, String) {
    let (time, rest) = line.strip_prefix('[').unwrap().split_once("] ").unwrap();
    let (seconds, fraction) = time.split_once('.').unwrap();
    let nanoseconds = seconds.parse::<i64>().unwrap() * 1_000_000_000 + fraction.parse::<i64>().unwrap();
    let name = rest.split_once(": {").unwrap().0;
    (nanoseconds, name.rsplit(' ').next().unwrap().to_owned())
}

/// Names by time; those of one nanosecond sorted, because their order is the reader's choice.
fn by_time(events: impl Iterator<Item = (i64, String)>) -> BTreeMap<i64, Vec<String>> {
    let mut groups: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for (time, name) in events {
        groups.entry(time).or_default().push(name);
    }
    groups.values_mut().for_each(|names| names.sort());
    groups
}

/// The first group that differs, for a message that can be read.
fn first_difference(ours: &BTreeMap<i64, Vec<String>>, theirs: &BTreeMap<i64, Vec<String>>) -> Option<(i64, String)> {
    ours.keys()
        .chain(theirs.keys())
        .find(|time| ours.get(time) != theirs.get(time))
        .map(|time| (*time, format!("ours {:?}, babeltrace2's {:?}", ours.get(time), theirs.get(time))))
}

#[test]
fn trace_of_an_active_guest_has_events_of_every_layer() {
    let events = events(&trace("activity"));

    let missing: Vec<_> = LAYERS.iter().filter(|layer| !events.iter().any(|event| event.layer == **layer)).collect();

    assert!(missing.is_empty(), "no events of {missing:?}\n{}", log("activity"));
    assert_eq!(status("activity"), 0);
}

#[test]
fn babeltrace2_prints_every_event_in_the_same_order() {
    let trace = trace("activity");
    let ours = events(&trace);
    let theirs = babeltrace_events(&trace);

    assert_eq!(ours.len(), theirs.len());
    assert!(ours.is_sorted_by_key(|event| event.nanoseconds));
    assert!(theirs.is_sorted_by_key(|event| event.0));
    let ours = by_time(ours.into_iter().map(|event| (event.nanoseconds, event.name)));
    let theirs = by_time(theirs.into_iter());
    assert_eq!(first_difference(&ours, &theirs), None);
}

#[test]
fn check_finds_no_violation_in_a_large_trace() {
    let trace = trace("activity");
    let events = events(&trace);
    let guest = events.iter().filter(|event| event.layer.starts_with("guest-")).count();
    let exits = count(&events, "host-kernel", "kvm_exit");

    let verdict = process::capture(strata().arg("check").arg(&trace)).unwrap();

    println!("{guest} guest records, {exits} exits\n{verdict}");
    assert!(guest >= 100_000, "only {guest} guest records");
    assert!(exits >= 10_000, "only {exits} exits");
}

#[test]
fn disk_written_by_the_guest_is_intact() {
    let disk = results().output.join("disk.img");
    let debugfs = |request: &str| {
        let mut command = Command::new(process::find_program("debugfs").unwrap());
        process::capture(command.args(["-R", request]).arg(&disk)).unwrap()
    };

    let mut check = Command::new(process::find_program("e2fsck").unwrap());
    process::capture(check.args(["-f", "-n"]).arg(&disk)).unwrap();

    assert_eq!(status("disk"), 0, "{}", log("disk"));
    assert!(log("disk").contains(scenarios::DISK_ORIGINAL));
    assert_eq!(debugfs("cat /answer").trim(), scenarios::DISK_TEXT);
    let copy = results().output.join("random");
    debugfs(&format!("dump /random {}", copy.display()));
    let sum = process::capture(Command::new("md5sum").arg(&copy)).unwrap();
    assert_eq!(sum.split_whitespace().next(), Some(debugfs("cat /random.md5").trim()));
}

#[test]
fn panicking_guest_leaves_the_events_up_to_the_panic() {
    let trace = trace("panic");
    let events = events(&trace);
    let log = log("panic");

    assert!(log.contains("sysrq triggered crash"), "{log}");
    assert_ne!(status("panic"), 0);
    for layer in LAYERS {
        assert!(events.iter().any(|event| event.layer == layer), "no events of {layer}");
    }
    assert_eq!(babeltrace_events(&trace).len(), events.len());
}

#[test]
fn reboot_ends_the_run() {
    let log = log("reboot");

    assert_eq!(status("reboot"), 0, "{log}");
    assert!(log.to_lowercase().contains("reboot"), "{log}");
    assert!(!events(&trace("reboot")).is_empty());
}

#[test]
fn interrupt_from_the_keyboard_ends_the_run_with_the_trace_complete() {
    let trace = trace("forever");
    let events = events(&trace);

    assert!(log("forever").contains("guest is up"));
    for layer in ["host-kernel", "vmm", "guest-kernel"] {
        assert!(events.iter().any(|event| event.layer == layer), "no events of {layer}");
    }
    assert_eq!(babeltrace_events(&trace).len(), events.len());
}

#[test]
fn no_tracing_instance_is_left_on_the_host() {
    let instances = fs::read_to_string(results().output.join("instances")).unwrap();

    assert!(!instances.contains("strata"), "{instances}");
}
