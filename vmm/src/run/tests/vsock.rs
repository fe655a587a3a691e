//! Whole runs with a socket device, in a closed jail: a hand-written guest whose driver asks for a connection to the
//! host and sends a word. They need `/dev/kvm`, of any kind, and root.

use super::net::{store, wait_for};
use super::vm_process::{LIMIT, NOBODY, SLEEP, Vm};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;
use strata_recording::reader::Trace;
use tempfile::TempDir;

/// Registers of the second device, behind the disk, and offsets of `virtio_mmio.h`.
const DEVICE: u32 = 0xd000_1000;
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
/// Guest-physical addresses: a page for each part of a queue, and its buffers.
const QUEUES: [u32; 2] = [0x100_0000, 0x110_0000];
const AVAILABLE: u32 = 0x1000;
const USED: u32 = 0x2000;
const BUFFER: u32 = 0x3000;
const CID: u32 = 9;
/// Ports of the guest and of the host.
const PORTS: (u32, u32) = (1024, 77);

/// Instructions: puts a packet of the operation `op` with `length` bytes of data into the send queue, as its `number`th,
/// notifies the device, and waits until it has taken it.
fn send(code: &mut Vec<u8>, number: u32, op: u32, length: u32) {
    let base = QUEUES[1];
    let header = [CID, 0, 2, 0, PORTS.0, PORTS.1, length, op << 16 | 1, 0, 4096, 0];
    for (at, word) in (0..).zip(header) {
        store(code, base + BUFFER + at * 4, word);
    }
    // "word", behind the header in the same buffer.
    store(code, base + BUFFER + 44, u32::from_le_bytes(*b"word"));
    store(code, base, base + BUFFER);
    store(code, base + 8, 44 + length);
    store(code, base + 12, 0);
    store(code, base + AVAILABLE, number << 16);
    store(code, base + USED + 2, 0);
    store(code, DEVICE + QUEUE_NOTIFY, 1);
    // The index, behind the flags.
    wait_for(code, base + USED + 2);
}

/// A guest that makes the device ready, asks for a connection, waits for the answer, sends a word and resets the machine.
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
    let receive = QUEUES[0];
    store(&mut code, receive, receive + BUFFER);
    store(&mut code, receive + 8, 2048);
    store(&mut code, receive + 12, 2);
    store(&mut code, receive + AVAILABLE, 1 << 16);
    store(&mut code, DEVICE + QUEUE_NOTIFY, 0);
    send(&mut code, 1, 1, 0);
    wait_for(&mut code, receive + USED + 2);
    send(&mut code, 2, 5, 4);
    // mov edx, 0x602; mov al, 1; out dx, al; hlt
    code.extend([0xba, 0x02, 0x06, 0x00, 0x00, 0xb0, 0x01, 0xee, 0xf4]);
    code
}

/// A private folder of this user.
fn private_folder(uid: u32) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    chown(folder.path(), Some(uid), Some(uid)).unwrap();
    folder
}

fn option(socket: &Path) -> String {
    format!("cid={CID},path={}", socket.display())
}

/// Connects to the socket as soon as somebody listens, which is a moment after it is there.
fn connect_when_there(socket: &Path) -> UnixStream {
    let begin = Instant::now();
    loop {
        if let Ok(stream) = UnixStream::connect(socket) {
            return stream;
        }
        assert!(begin.elapsed() < LIMIT, "nobody listens at {}", socket.display());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn guest_reaches_the_host_under_the_jail_and_the_connection_is_traced() {
    let folder = private_folder(0);
    let socket = folder.path().join("vsock");
    let listener = UnixListener::bind(folder.path().join("vsock_77")).unwrap();
    let service = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut printed = Vec::new();
        stream.read_to_end(&mut printed).unwrap();
        printed
    });

    let mut vm = Vm::start(&guest(), 0, &["--vsock", &option(&socket), "--events", "vmm:*:*"]);
    vm.end();

    let printed = vm.printed();
    assert!(printed.contains("OUTCOME"), "{printed}");
    assert_eq!(service.join().unwrap(), b"word");
    assert!(!socket.exists(), "{printed}");
    let trace = Trace::open(&vm.path("traces/trace")).unwrap();
    let options = trace_merge::events::EventsOptions { json: true, ..Default::default() };
    let mut listing = Vec::new();
    trace_merge::events::list(&trace, &options, &mut listing).unwrap();
    let reported = |event: &str, fields: &[&str]| -> Vec<Vec<u64>> {
        let records = String::from_utf8(listing.clone()).unwrap();
        let records = records.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let of_event = records.filter(|record| record["event"] == event);
        of_event.map(|record| fields.iter().map(|field| record["fields"][field].as_u64().unwrap()).collect()).collect()
    };
    assert_eq!(reported("vmm:vsock_begin", &["connection", "guest_port", "host_port", "by"]), [[1, 1024, 77, 1]]);
    let packets = |event| reported(event, &["connection", "id", "op", "bytes", "done"]);
    assert_eq!(packets("vmm:vsock_send"), [[0, 1, 1, 0, 0], [1, 1, 1, 0, 1], [0, 2, 5, 4, 0], [1, 2, 5, 4, 1]]);
    assert_eq!(packets("vmm:vsock_receive"), [[1, 1, 2, 0, 0], [1, 1, 2, 0, 1]]);
}

#[test]
fn socket_belongs_to_the_user_that_the_vm_runs_as_and_goes_with_it() {
    let folder = private_folder(NOBODY);
    let socket = folder.path().join("vsock");

    let mut vm = Vm::start(SLEEP, NOBODY, &["--vsock", &option(&socket), "--user", "65534:65534"]);
    // The guest has no driver for it: whoever calls waits.
    let _caller = connect_when_there(&socket);
    let found = fs::symlink_metadata(&socket).unwrap();
    vm.status();
    vm.stop();

    let printed = vm.printed();
    assert_eq!((found.uid(), found.mode() & 0o777), (NOBODY, 0o600), "{printed}");
    assert!(!socket.exists(), "{printed}");
}

#[test]
fn socket_that_cannot_be_had_is_refused_in_a_line() {
    let folder = private_folder(0);
    let refused = |socket: PathBuf| {
        let mut vm = Vm::start(SLEEP, 0, &["--vsock", &option(&socket)]);
        vm.end();
        vm.printed()
    };
    fs::write(folder.path().join("file"), "").unwrap();

    let (taken, missing) = (refused(folder.path().join("file")), refused(folder.path().join("none/vsock")));

    assert!(taken.contains("REFUSED --vsock") && taken.contains("the file exists"), "{taken}");
    assert!(missing.contains("REFUSED --vsock") && missing.contains("there is no such folder"), "{missing}");
}
