//! Real guests on a real host: all scenarios in one boot of the host, judged from the traces and files they leave.
//!
//! Shows: A guest that reboots is started again, with a recording for each boot.
//! Shows: Limits of disks and consoles hold and lose nothing.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::machine::host::HostResult;
use lab::paths::Paths;
use lab::process;
use lab::scenarios::results::assert_symbols;
use lab::scenarios::{self, guests};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_recording::manifest::Manifest;

const LAYERS: [&str; 4] = ["host-kernel", "vmm", "guest-kernel", "guest-user"];
/// More than the clock of any machine has, rounded up.
const TICKS_PER_NANOSECOND: u64 = 6;

/// The results of the scenarios, made by the first test that asks.
fn results() -> HostResult {
    guests::once_per_test_run(&Paths::of_workspace()).unwrap()
}

fn strata() -> Command {
    Command::new(binaries::located(&Paths::of_workspace(), Purpose::Test).strata)
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
#[derive(Clone, Debug, serde::Deserialize)]
struct Event {
    /// The trace clock.
    ticks: u64,
    layer: String,
    cpu: u32,
    event: String,
    fields: serde_json::Value,
}

fn events(trace: &Path) -> Vec<Event> {
    let text = process::capture(strata().arg("events").arg(trace).arg("--json")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn count(events: &[Event], layer: &str, name: &str) -> usize {
    events.iter().filter(|event| event.layer == layer && event.event == name).count()
}

/// `(ticks, name)` of what babeltrace2 prints, in its order; it must have nothing to complain about.
fn babeltrace_events(trace: &Path) -> Vec<(u64, String)> {
    let output =
        Command::new("babeltrace2").args(["--clock-cycles", "--no-delta", "--names=none"]).arg(trace).output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaints}");
    assert_eq!(complaints, "");
    String::from_utf8_lossy(&output.stdout).lines().map(parse_babeltrace_line).collect()
}

/// A line such as `[00000000123456789] host kvm:kvm_exit: { 0 }, { ... }`.
fn parse_babeltrace_line(line: &str) -> (u64, String) {
    let (ticks, rest) = line.strip_prefix('[').unwrap().split_once("] ").unwrap();
    let name = rest.split_once(": { ").unwrap().0;
    (ticks.parse().unwrap(), name.rsplit(' ').next().unwrap().to_owned())
}

/// How far a time falls behind the latest before it, at most, in ticks.
fn largest_step_back(ticks: impl Iterator<Item = u64>) -> u64 {
    ticks
        .scan(0, |latest: &mut u64, ticks| {
            *latest = ticks.max(*latest);
            Some(*latest - ticks)
        })
        .max()
        .unwrap_or(0)
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
    let mut ours: Vec<_> = events(&trace).into_iter().map(|event| (event.ticks, event.event)).collect();
    let mut theirs = babeltrace_events(&trace);

    assert_eq!(ours.len(), theirs.len());
    assert_eq!(largest_step_back(ours.iter().map(|event| event.0)), 0);
    // babeltrace2 merges by nanoseconds: what lies within one it may turn round
    let step_back = largest_step_back(theirs.iter().map(|event| event.0));
    assert!(step_back <= TICKS_PER_NANOSECOND, "{step_back} ticks back");
    ours.sort();
    theirs.sort();
    assert!(ours == theirs, "first difference: {:?}", ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs));
}

#[test]
fn check_finds_no_violation_in_a_large_trace() {
    let trace = trace("activity");
    let events = events(&trace);
    let guest = events.iter().filter(|event| event.layer.starts_with("guest-")).count();
    let exits = count(&events, "host-kernel", "kvm:kvm_exit");

    let verdict = process::capture(strata().arg("check").arg(&trace)).unwrap();

    println!("{guest} guest records, {exits} exits\n{verdict}");
    assert!(guest >= 100_000, "only {guest} guest records");
    assert!(exits >= 10_000, "only {exits} exits");
}

/// Times of the marker `name` around the burst of `size` events.
fn marker(events: &[Event], name: &str, size: u64) -> u64 {
    let found = events.iter().find(|event| event.event == name && event.fields["events"] == size);
    found.unwrap_or_else(|| panic!("no {name} of {size} events\n{}", log("burst"))).ticks
}

fn exits_between(events: &[Event], from: u64, to: u64) -> usize {
    let exits = events.iter().filter(|event| event.event == "kvm:kvm_exit");
    exits.filter(|event| (from..to).contains(&event.ticks)).count()
}

#[test]
fn number_of_exits_does_not_depend_on_the_number_of_user_events() {
    let trace = trace("burst");
    let session: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(trace.join("session.json")).unwrap()).unwrap();
    let second = session["clock"]["frequency_hz"].as_u64().unwrap();
    let events = events(&trace);
    let window = |size| (marker(&events, "workload:burst_begin", size), marker(&events, "workload:burst_end", size));
    let ((small_begin, small_end), (begin, end)) = (window(1_000), window(u64::from(guests::BURST_EVENTS)));
    let recorded = count(&events, "guest-user", "workload:burst");

    // the guest computes without recording for four seconds after the bursts: a timer interrupt is an exit there too
    let quiet_exits = exits_between(&events, end + second, end + 3 * second);
    let expected = quiet_exits * usize::try_from((end - begin) * 100 / second).unwrap() / 200;
    let exits = exits_between(&events, begin, end);
    println!(
        "{} exits during 1,000 events in {} us, {exits} during 1,000,000 in {} us ({recorded} recorded); \
         {expected} in as long a time without events",
        exits_between(&events, small_begin, small_end),
        (small_end - small_begin) * 1_000_000 / second,
        (end - begin) * 1_000_000 / second,
    );
    assert!(quiet_exits > 0);
    assert!(exits <= 2 * expected + 200, "{exits} exits, {expected} without events");
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
    assert_eq!(debugfs("cat /answer").trim(), guests::DISK_TEXT);
    let copy = results().output.join("random");
    debugfs(&format!("dump /random {}", copy.display()));
    let sum = process::capture(Command::new("md5sum").arg(&copy)).unwrap();
    assert_eq!(sum.split_whitespace().next(), Some(debugfs("cat /random.md5").trim()));
}

/// The most that a request of `(ticks, bytes)` found used, of a bucket that `per_second` bytes flow back into.
fn most_used(moved: &[(u64, u64)], per_second: u64, frequency: u64) -> u64 {
    let found = moved.iter().scan((0, 0), |(used, before): &mut (u64, u64), &(ticks, bytes)| {
        let returned = u128::from(ticks - *before) * u128::from(per_second) / u128::from(frequency);
        let found = used.saturating_sub(u64::try_from(returned).unwrap_or(u64::MAX));
        (*used, *before) = (found + bytes, ticks);
        Some(found)
    });
    found.max().unwrap_or(0)
}

#[test]
fn disk_of_a_guest_keeps_within_its_bandwidth_by_the_trace() {
    let trace = trace("disk");
    let frequency = Manifest::load(&trace).unwrap().clock.frequency_hz;
    let events = events(&trace);
    let begun = |event: &&Event| event.event == "vmm:block_request" && event.fields["done"] == 0;
    let moved: Vec<_> =
        events.iter().filter(begun).map(|event| (event.ticks, event.fields["bytes"].as_u64().unwrap())).collect();

    let used = most_used(&moved, guests::DISK_BANDWIDTH.per_second, frequency);

    let bytes: u64 = moved.iter().map(|(_, bytes)| bytes).sum();
    let waits = count(&events, "vmm", "vmm:disk_throttled");
    println!("{bytes} bytes in {} requests, which waited {waits} times and found {used} bytes used", moved.len());
    // who finds anything left begins; its record is made a moment later, and on a busy host the moments differ
    let slack = guests::DISK_BANDWIDTH.per_second / 4;
    assert!(used <= guests::DISK_BANDWIDTH.burst + slack, "{used} bytes used, and another request begun");
    assert!(bytes > 4 * guests::DISK_BANDWIDTH.burst && waits > 0, "{bytes} bytes, {waits} waits");
}

#[test]
fn panicking_guest_leaves_the_events_up_to_the_panic() {
    let trace = trace("panic");
    let events = events(&trace);
    let log = log("panic");

    assert!(log.contains("sysrq triggered crash"), "{log}");
    assert_eq!(status("panic"), 1);
    assert!(log.contains("strata: the guest's kernel panicked"), "{log}");
    for layer in LAYERS {
        assert!(events.iter().any(|event| event.layer == layer), "no events of {layer}");
    }
    // the write to /proc/sysrq-trigger: one vCPU's last system call, which never returned
    let last_calls: Vec<_> = (0..2).filter_map(|vcpu| last_system_call(&events, vcpu)).collect();
    assert!(last_calls.iter().any(|call| is_entered_write(call)), "{last_calls:?}");
    assert_eq!(babeltrace_events(&trace).len(), events.len());
    let death = process::capture(strata().args(["report", "death"]).arg(&trace)).unwrap();
    for wanted in ["the guest's kernel panicked", "Kernel panic - not syncing: sysrq triggered crash", ", in write"] {
        assert!(death.contains(wanted), "{wanted} is missing in\n{death}");
    }
}

fn last_system_call(events: &[Event], vcpu: u32) -> Option<&Event> {
    events.iter().rev().find(|event| event.cpu == vcpu && event.event.starts_with("raw_syscalls:"))
}

fn is_entered_write(call: &Event) -> bool {
    const WRITE: u64 = 1;
    call.event == "raw_syscalls:sys_enter" && call.fields["id"] == WRITE
}

#[test]
fn reboot_ends_the_run() {
    let log = log("reboot");

    assert_eq!(status("reboot"), 0, "{log}");
    assert!(log.to_lowercase().contains("reboot"), "{log}");
    assert!(!events(&trace("reboot")).is_empty());
}

#[test]
fn symbols_of_the_guests_kernel_are_saved_as_the_guest_has_them() {
    let trace = trace("reboot");
    let listed = process::capture(strata().arg("events").arg(&trace)).unwrap();

    assert_symbols(&trace, &log("reboot"));
    // where the guest was when it had the console print
    assert!(
        listed.lines().any(|line| line.contains("kvm_exit") && line.contains("(io_serial_")),
        "no symbol of the guest"
    );
}

/// The recording of `scenario`'s boot `boot`, in which babeltrace2 and `strata check` find nothing wrong.
fn clean_trace_of_boot(scenario: &str, boot: u32) -> Manifest {
    let first = trace(scenario);
    let trace = if boot == 1 { first } else { PathBuf::from(format!("{}-{boot}", first.display())) };
    let checked = strata().arg("check").arg(&trace).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let events = events(&trace);
    assert!(events.iter().any(|event| event.layer == "guest-kernel"), "no events of the guest in boot {boot}");
    assert_eq!(babeltrace_events(&trace).len(), events.len());
    Manifest::load(&trace).unwrap()
}

#[test]
fn guest_that_reboots_is_started_again_until_it_powers_off() {
    let log = log("reboot-once");

    let outcomes = [1, 2].map(|boot| clean_trace_of_boot("reboot-once", boot).outcome);

    assert_eq!(outcomes.map(Option::unwrap), ["the guest asked for a reboot", "the guest powered off"]);
    assert_eq!(status("reboot-once"), 0, "{log}");
    assert!(log.contains("strata: the guest is started again: boot 2") && log.contains("guest is up again"), "{log}");
}

#[test]
fn guest_that_was_started_again_is_stopped_by_a_signal_with_its_trace_complete() {
    let log = log("reboot-and-stay");

    let outcomes = [1, 2].map(|boot| clean_trace_of_boot("reboot-and-stay", boot).outcome);

    assert_eq!(outcomes.map(Option::unwrap), ["the guest asked for a reboot", "stopped"]);
    assert_eq!(status("reboot-and-stay"), 0, "{log}");
    assert!(!results().output.join("reboot-and-stay.trace-3").exists());
}

#[test]
fn interrupt_from_the_keyboard_ends_the_run_with_the_trace_complete() {
    let trace = trace("forever");
    let events = events(&trace);

    assert!(log("forever").contains("guest is up"));
    assert_eq!(status("forever"), 0, "{}", log("forever"));
    assert!(fs::read_to_string(trace.join("session.json")).unwrap().contains("\"outcome\": \""));
    for layer in ["host-kernel", "vmm", "guest-kernel"] {
        assert!(events.iter().any(|event| event.layer == layer), "no events of {layer}");
    }
    assert_eq!(babeltrace_events(&trace).len(), events.len());
}

#[test]
fn trace_with_a_truncated_stream_is_read_up_to_there_and_reported_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("trace");
    process::capture(Command::new("cp").arg("-r").arg(trace("reboot")).arg(&copy)).unwrap();
    let whole = events(&copy).len();
    let stream = copy.join("host-kernel/stream_0");
    let length = fs::metadata(&stream).unwrap().len();
    fs::File::options().write(true).open(&stream).unwrap().set_len(length / 2 + 100).unwrap();

    let listed = strata().arg("events").arg(&copy).arg("--json").output().unwrap();
    let checked = strata().arg("check").arg(&copy).output().unwrap();

    let lines = listed.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert!(lines > whole / 4 && lines < whole, "{lines} of {whole}");
    let complaint = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(complaint.starts_with("strata: ") && complaint.lines().count() == 1, "{complaint:?}");
    assert_eq!(checked.status.code(), Some(1), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn no_tracing_instance_is_left_on_the_host() {
    let instances = fs::read_to_string(results().output.join("instances")).unwrap();

    assert!(!instances.contains("strata"), "{instances}");
}
