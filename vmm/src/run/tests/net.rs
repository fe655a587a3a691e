//! Whole runs with a network, in a closed jail: a hand-written guest whose driver sends one packet over a tap and
//! takes one from it. They need `/dev/kvm`, of any kind, root, and the programs `unshare`, `ip` and `bash`.

use super::vm_process::ARGUMENTS_VARIABLE;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use strata_machine::test_guest;
use strata_recorder::control::directory;
use strata_recording::reader::Trace;
use tempfile::TempDir;

/// Registers of the first device, and offsets of `virtio_mmio.h`.
const DEVICE: u32 = 0xd000_0000;
const DRIVER_FEATURES: u32 = 0x020;
const DRIVER_FEATURES_SELECT: u32 = 0x024;
const QUEUE_SELECT: u32 = 0x030;
const QUEUE_SIZE: u32 = 0x038;
const QUEUE_READY: u32 = 0x044;
const QUEUE_NOTIFY: u32 = 0x050;
const STATUS: u32 = 0x070;
const QUEUE_DESCRIPTORS: u32 = 0x080;
const QUEUE_AVAILABLE: u32 = 0x090;
const QUEUE_USED: u32 = 0x0a0;
/// Guest-physical addresses: a page for each part of a queue, and one for its buffer.
const QUEUES: [u32; 2] = [0x100_0000, 0x110_0000];
const AVAILABLE: u32 = 0x1000;
const USED: u32 = 0x2000;
const BUFFER: u32 = 0x3000;
/// Bytes of the packet that the guest sends: a virtio header and a frame, to everybody, of an experimental protocol.
const PACKET: u32 = 12 + 60;

/// Instructions: a register or memory word is `value`, `mov edi, address; mov dword [rdi], value`.
pub(super) fn store(code: &mut Vec<u8>, address: u32, value: u32) {
    code.push(0xbf);
    code.extend(address.to_le_bytes());
    code.extend([0xc7, 0x07]);
    code.extend(value.to_le_bytes());
}

/// Instructions: waits until the word at `address` is not 0, `mov edi, address; cmp dword [rdi], 0; je -5`.
pub(super) fn wait_for(code: &mut Vec<u8>, address: u32) {
    code.push(0xbf);
    code.extend(address.to_le_bytes());
    code.extend([0x83, 0x3f, 0x00, 0x74, 0xfb]);
}

/// A guest that makes the device ready, gives it a buffer to fill and a packet to send, waits for both and resets the
/// machine.
fn guest() -> Vec<u8> {
    let mut code = Vec::new();
    let mut device = |register: u32, value: u32| store(&mut code, DEVICE + register, value);
    device(STATUS, 3);
    // Version 1, and nothing else.
    device(DRIVER_FEATURES_SELECT, 1);
    device(DRIVER_FEATURES, 1);
    device(STATUS, 3 | 8);
    for (queue, base) in (0..).zip(QUEUES) {
        device(QUEUE_SELECT, queue);
        device(QUEUE_SIZE, 4);
        device(QUEUE_DESCRIPTORS, base);
        device(QUEUE_AVAILABLE, base + AVAILABLE);
        device(QUEUE_USED, base + USED);
        device(QUEUE_READY, 1);
    }
    device(STATUS, 3 | 8 | 4);
    let [receive, send] = QUEUES;
    // The frame: to ff:ff:ff:ff:ff:ff, from 52:54:00:12:34:56, protocol 0x88b5.
    for (offset, word) in [(12, 0xffff_ffff), (16, 0x5452_ffff), (20, 0x5634_1200), (24, 0xb588)] {
        store(&mut code, send + BUFFER + offset, word);
    }
    // Descriptors (the device writes to the buffer of the first), and an index of one chain.
    for (base, length, flags) in [(receive, 2048, 2), (send, PACKET, 0)] {
        store(&mut code, base, base + BUFFER);
        store(&mut code, base + 8, length);
        store(&mut code, base + 12, flags);
        store(&mut code, base + AVAILABLE, 1 << 16);
    }
    store(&mut code, DEVICE + QUEUE_NOTIFY, 0);
    store(&mut code, DEVICE + QUEUE_NOTIFY, 1);
    wait_for(&mut code, send + USED);
    wait_for(&mut code, receive + USED);
    // mov edx, 0x602; mov al, 1; out dx, al; hlt
    code.extend([0xba, 0x02, 0x06, 0x00, 0x00, 0xb0, 0x01, 0xee, 0xf4]);
    code
}

/// Runs the guest, with these arguments, in a network of its own where `setup` was done before; then does `after`.
fn run(setup: &str, arguments: &[&str], after: &str) -> (TempDir, Output) {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("guest"), test_guest::elf(&guest())).unwrap();
    fs::create_dir(path("runtime")).unwrap();
    fs::set_permissions(path("runtime"), fs::Permissions::from_mode(0o700)).unwrap();
    let (kernel, trace) = (path("guest"), path("trace"));
    let usual = ["--kernel", &kernel, "--memory", "64M", "--trace", &trace, "--process-slots", "1"];
    let all: Vec<&str> = usual.into_iter().chain(arguments.iter().copied()).collect();
    let script = format!("{setup}\n\"$0\" \"$@\"\n{after}");
    let mut command = Command::new("unshare");
    command.args(["--net", "timeout", "60", "bash", "-c", &script]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "run::tests::vm_process::child_that_runs_a_guest", "--nocapture"]);
    command.env(ARGUMENTS_VARIABLE, all.join("\n")).env(directory::RUNTIME_VARIABLE, path("runtime"));
    (folder, command.env_remove("SUDO_UID").output().unwrap())
}

/// Makes a tap with an address, so that the host has something to tell of itself.
const TAP: &str = "ip tuntap add strata7 mode tap && ip addr add 192.168.77.1/24 dev strata7 && ip link set strata7 up";

#[test]
fn packets_pass_the_tap_in_both_directions_under_the_jail_and_are_traced_with_ids() {
    // Somebody on the host looks for the guest, until it has ended.
    let seek = "(while sleep 0.1; do echo > /dev/udp/192.168.77.2/9; done) > /dev/null 2>&1 &";
    let setup = format!("{TAP}\n{seek}");
    let arguments = ["--net", "tap=strata7,mac=52:54:00:12:34:56", "--events", "vmm:*:*"];

    let (folder, output) = run(&setup, &arguments, "kill $!; ip -s link show strata7");

    let (printed, link) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(printed.contains("OUTCOME"), "{printed}\n{link}");
    // What the host received is the frame of the guest.
    let received = link.lines().skip_while(|line| !line.contains("RX:")).nth(1).unwrap_or_default();
    let received: Vec<&str> = received.split_whitespace().take(2).collect();
    assert_eq!(received, ["60", "1"], "{link}");
    let trace = Trace::open(&folder.path().join("trace")).unwrap();
    let options = trace_merge::events::EventsOptions { json: true, ..Default::default() };
    let mut listing = Vec::new();
    trace_merge::events::list(&trace, &options, &mut listing).unwrap();
    let reported = |event: &str| -> Vec<[u64; 3]> {
        let records = String::from_utf8(listing.clone()).unwrap();
        let records = records.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let of_event = records.filter(|record| record["event"] == event);
        of_event.map(|record| ["id", "bytes", "done"].map(|field| record["fields"][field].as_u64().unwrap())).collect()
    };
    assert_eq!(reported("vmm:net_send"), [[1, 60, 0], [1, 60, 1]]);
    let receives = reported("vmm:net_receive");
    assert!(receives.len() >= 2 && [receives[0][2], receives[1][2]] == [0, 1], "{receives:?}");
}

#[test]
fn device_that_is_missing_or_not_a_tap_is_refused_in_a_line() {
    let (_, missing) = run(TAP, &["--net", "tap=strata9"], "ip link show");
    let (_, no_tap) = run(TAP, &["--net", "tap=lo"], "true");

    let printed = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed(&missing).contains("REFUSED there is no tap 'strata9': make it with"), "{}", printed(&missing));
    assert!(!String::from_utf8_lossy(&missing.stdout).contains("strata9"));
    assert!(printed(&no_tap).contains("REFUSED the network device 'lo' is not a tap"), "{}", printed(&no_tap));
}
