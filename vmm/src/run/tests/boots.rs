//! Guests that are started again, each boot in its closed jail, with hand-written guests. They need `/dev/kvm`, of any
//! kind, and root.
//!
//! Shows: A guest that reboots is started again, with a recording for each boot.

use super::vm_process::{LIMIT, NOBODY, SLEEP, Vm};
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use strata_recording::reader::Trace;

/// Writes to the reset register.
const REBOOT: &[u8] = &[
    0xba, 0x02, 0x06, 0x00, 0x00, // mov edx, 0x602
    0xb0, 0x01, // mov al, 1
    0xee, // out dx, al
    0xf4, // hlt
];
/// Without the host's kernel, whose tracing a boot would wait for.
const ARGUMENTS: [&str; 6] = ["--user", "65534:65534", "--on-reboot", "restart", "--events", "vmm:*:*"];

fn outcome(trace: &Path) -> Option<String> {
    Trace::open(trace).ok()?.manifest().outcome.clone()
}

#[test]
fn guest_that_only_reboots_is_given_up_with_a_recording_of_each_boot() {
    let mut vm = Vm::start(REBOOT, NOBODY, &ARGUMENTS);

    vm.end();

    let printed = vm.printed();
    assert_eq!(printed.matches("OUTCOME the guest asked for a reboot").count(), 5, "{printed}");
    assert!(printed.contains("the guest is started again: boot 5\n") && !printed.contains("boot 6"), "{printed}");
    assert!(printed.contains("5 times in a row within 2 s of its start: it is given up\nEND Failed"), "{printed}");
    let outcomes = ["trace", "trace-2", "trace-3", "trace-4", "trace-5"].map(|name| {
        let trace = vm.path("traces").join(name);
        outcome(&trace)
    });
    assert_eq!(
        outcomes,
        [const { Some("the guest asked for a reboot") }; 5].map(|reported| reported.map(str::to_owned))
    );
    assert_eq!(fs::read_dir(vm.path("runtime")).unwrap().count(), 0);
}

#[test]
fn flight_recorder_is_written_at_each_reboot() {
    let arguments = [&ARGUMENTS[..], &["--mode", "flight-recorder"]].concat();
    let mut vm = Vm::start(REBOOT, NOBODY, &arguments);

    vm.end();

    assert!(outcome(&vm.path("traces/trace")).is_some() && outcome(&vm.path("traces/trace-5")).is_some());
}

#[test]
fn recording_of_a_later_boot_that_is_there_is_refused_before_the_first() {
    let mut vm = Vm::start_in(REBOOT, NOBODY, &ARGUMENTS, |folder, _| {
        fs::create_dir(folder.join("traces/trace-3")).unwrap();
        fs::write(folder.join("traces/trace-3/session.json"), "").unwrap();
    });

    vm.end();

    let printed = vm.printed();
    assert!(printed.contains("traces/trace-3' is where the trace of a later boot goes"), "{printed}");
    assert!(!printed.contains("OUTCOME") && !vm.path("traces/trace").exists(), "{printed}");
}

#[test]
fn guest_that_fails_is_not_started_again() {
    let mut vm = Vm::start(&[0x0f, 0x0b], NOBODY, &ARGUMENTS); // ud2

    vm.end();

    let printed = vm.printed();
    assert!(printed.contains("OUTCOME triple fault") && printed.contains("END Failed"), "{printed}");
    assert!(!vm.path("traces/trace-2").exists());
}

#[test]
fn vm_ends_in_good_order_with_the_process_that_would_start_it_again() {
    let mut vm = Vm::start(SLEEP, NOBODY, &ARGUMENTS);
    vm.status();

    vm.process.kill().unwrap();
    vm.process.wait().unwrap();

    let end = Instant::now() + LIMIT;
    while fs::read_dir(vm.path("runtime")).unwrap().count() > 0 && Instant::now() < end {
        sleep(Duration::from_millis(10));
    }
    assert_eq!(fs::read_dir(vm.path("runtime")).unwrap().count(), 0, "{}", vm.printed());
    assert_eq!(outcome(&vm.path("traces/trace")).as_deref(), Some("stopped"));
}
