//! The whole machine under KVM, with hand-written guests. These tests need `/dev/kvm`, of any kind.

use super::{Block, DiskThread, MmioTransport, Peripherals, RunEnd, VcpuContext, hypervisor, stop_all, vcpu};
use crate::test_guest::{Console, config};
use crate::*;
use clock_sync::tsc::read_ordered as host_tsc;
use memmap2::{MmapMut, MmapRaw};
use rustix::mm::{MprotectFlags, mprotect};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};
use strata_observer::{ControlEvent, NoObserver, Observer};
use tempfile::TempDir;
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Prints "ok" on the serial port and powers off.
const HELLO: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, // mov $0x3f8,%dx
    0xb0, b'o', // mov $'o',%al
    0xee, // out %al,(%dx)
    0xb0, b'k', // mov $'k',%al
    0xee, // out %al,(%dx)
    0x66, 0xba, 0x00, 0x06, // mov $0x600,%dx
    0xb0, 0x34, // mov $0x34,%al
    0xee, // out %al,(%dx)
    0xeb, 0xfe, // jmp .
];
/// Resets by the keyboard controller.
const RESET: &[u8] = &[
    0xb0, 0xfe, // mov $0xfe,%al
    0xe6, 0x64, // out %al,$0x64
    0xeb, 0xfe, // jmp .
];
/// Says that it panicked, then resets by the reset register.
const PANIC: &[u8] = &[
    0x66, 0xba, 0x05, 0x05, // mov $0x505,%dx
    0xb0, 0x01, // mov $1,%al
    0xee, // out %al,(%dx)
    0x66, 0xba, 0x02, 0x06, // mov $0x602,%dx
    0xee, // out %al,(%dx)
    0xeb, 0xfe, // jmp .
];
/// Raises an exception for which there is no handler.
const TRIPLE_FAULT: &[u8] = &[0x0f, 0x0b]; // ud2
/// Never ends.
const SPIN: &[u8] = &[0xeb, 0xfe]; // jmp .
/// Waits for a byte on the serial port, prints the next one, powers off.
const ECHO: &[u8] = &[
    0x66, 0xba, 0xfd, 0x03, // mov $0x3fd,%dx
    0xec, // in (%dx),%al
    0xa8, 0x01, // test $1,%al
    0x74, 0xfb, // je -5
    0x66, 0xba, 0xf8, 0x03, // mov $0x3f8,%dx
    0xec, // in (%dx),%al
    0xfe, 0xc0, // inc %al
    0xee, // out %al,(%dx)
    0x66, 0xba, 0x00, 0x06, // mov $0x600,%dx
    0xb0, 0x34, // mov $0x34,%al
    0xee, // out %al,(%dx)
    0xeb, 0xfe, // jmp .
];
/// Finds the trace region by CPUID, writes what it found into its first page, reads and writes the second, read-only
/// one, and powers off.
const DISCOVER: &[u8] = &[
    0xb8, 0x00, 0x01, 0x00, 0x40, // mov $0x40000100,%eax
    0x0f, 0xa2, // cpuid
    0x41, 0x89, 0xc0, // mov %eax,%r8d
    0x41, 0x89, 0xd9, // mov %ebx,%r9d
    0x41, 0x89, 0xca, // mov %ecx,%r10d
    0x41, 0x89, 0xd3, // mov %edx,%r11d
    0xb8, 0x01, 0x01, 0x00, 0x40, // mov $0x40000101,%eax
    0x0f, 0xa2, // cpuid
    0x41, 0x89, 0xc4, // mov %eax,%r12d
    0x48, 0xc1, 0xe1, 0x20, // shl $32,%rcx
    0x89, 0xdb, // mov %ebx,%ebx
    0x48, 0x09, 0xd9, // or %rbx,%rcx
    // A page directory for the fifth GiB, with one large page.
    0x48, 0xc7, 0x04, 0x25, 0x20, 0xa0, 0, 0, 0x03, 0xf0, 0, 0, // movq $0xf003,0xa020
    0x48, 0xb8, 0x83, 0, 0, 0, 0x01, 0, 0, 0, // mov $0x100000083,%rax
    0x48, 0x89, 0x04, 0x25, 0x00, 0xf0, 0, 0, // mov %rax,0xf000
    0x44, 0x89, 0x01, // mov %r8d,(%rcx)
    0x44, 0x89, 0x49, 0x04, // mov %r9d,4(%rcx)
    0x44, 0x89, 0x51, 0x08, // mov %r10d,8(%rcx)
    0x44, 0x89, 0x59, 0x0c, // mov %r11d,12(%rcx)
    0x44, 0x89, 0x61, 0x10, // mov %r12d,16(%rcx)
    0x89, 0x51, 0x14, // mov %edx,20(%rcx)
    0x48, 0x89, 0x49, 0x18, // mov %rcx,24(%rcx)
    0x48, 0x8b, 0x81, 0x00, 0x10, 0, 0, // mov 0x1000(%rcx),%rax
    0x48, 0x89, 0x41, 0x28, // mov %rax,40(%rcx)
    0xc7, 0x81, 0x00, 0x10, 0, 0, 0x77, 0, 0, 0, // movl $0x77,0x1000(%rcx)
    0x66, 0xba, 0x00, 0x06, // mov $0x600,%dx
    0xb0, 0x34, // mov $0x34,%al
    0xee, // out %al,(%dx)
    0xeb, 0xfe, // jmp .
];

/// Looks at the interrupt controller until the doorbell's interrupt has come, and powers off.
const AWAIT_DOORBELL: &[u8] = &[
    0xb0, 0x0a, // mov $0xa,%al
    0xe6, 0x20, // out %al,$0x20
    0xe4, 0x20, // in $0x20,%al
    0xa8, 0x08, // test $8,%al
    0x74, 0xf6, // jz to the beginning
    0x66, 0xba, 0x00, 0x06, // mov $0x600,%dx
    0xb0, 0x34, // mov $0x34,%al
    0xee, // out %al,(%dx)
    0xeb, 0xfe, // jmp .
];

/// What a run told its observer.
#[derive(Default)]
struct Log {
    enters: AtomicU32,
    exits: AtomicU32,
    console: AtomicU32,
    control: Mutex<Vec<ControlEvent>>,
    threads: Mutex<Vec<(u32, u32)>>,
    mmio_writes: Mutex<Vec<(u64, u64)>>,
}

impl Observer for Log {
    fn vcpu_thread_started(&self, vcpu: u32, tid: u32) {
        self.threads.lock().unwrap().push((vcpu, tid));
    }
    fn vcpu_enter(&self, _: u32) {
        self.enters.fetch_add(1, Ordering::Relaxed);
    }
    fn vcpu_exit(&self, _: u32, _: u32) {
        self.exits.fetch_add(1, Ordering::Relaxed);
    }
    fn mmio_access(&self, _: u32, address: u64, _: u8, write: bool, value: u64) {
        if write {
            self.mmio_writes.lock().unwrap().push((address, value));
        }
    }
    fn console_output(&self, bytes: u32) {
        self.console.fetch_add(bytes, Ordering::Relaxed);
    }
    fn control(&self, event: ControlEvent) {
        self.control.lock().unwrap().push(event);
    }
}

/// Runs `machine`; returns its outcome, its console output and what its observer got.
fn run(machine: Machine, input: Option<File>) -> (Outcome, Vec<u8>, Arc<Log>) {
    let console = Console::default();
    let log = Arc::new(Log::default());
    let options = RunOptions {
        observer: log.clone(),
        console_output: Box::new(console.clone()),
        console_input: input,
        clock: None,
        notify: Arc::new(|_: &str| ()),
        at_end: None,
    };
    let outcome = machine.run(options).unwrap();
    let output = console.written();
    (outcome, output, log)
}

fn run_code(code: &[u8]) -> (Outcome, Vec<u8>, Arc<Log>) {
    let folder = TempDir::new().unwrap();
    run(Machine::new(config(&folder, code)).unwrap(), None)
}

fn shared_pages(pages: usize) -> Arc<MmapRaw> {
    Arc::new(MmapRaw::from(MmapMut::map_anon(pages * 4096).unwrap()))
}

fn slot(mapping: &Arc<MmapRaw>, page: usize, read_only: bool) -> SharedSlot {
    SharedSlot { mapping: Arc::clone(mapping), offset: page * 4096, size: 4096, read_only }
}

/// Reads a little-endian word of shared memory.
#[allow(unsafe_code)]
fn peek(mapping: &MmapRaw, offset: usize) -> u32 {
    assert!(offset + 4 <= mapping.len());
    // SAFETY: the word lies in the mapping, as just checked, and no guest is running.
    unsafe { mapping.as_ptr().add(offset).cast::<u32>().read_volatile() }
}

#[test]
fn guest_prints_and_powers_off() {
    let (outcome, output, log) = run_code(HELLO);
    assert!(matches!(outcome, Outcome::PowerOff), "{outcome:?}");
    assert_eq!((output.as_slice(), log.console.load(Ordering::Relaxed)), (&b"ok"[..], 2));
}

#[test]
fn every_entry_has_its_exit() {
    let (_, _, log) = run_code(HELLO);
    let counts = [&log.enters, &log.exits].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts, [3, 3]);
}

#[test]
fn start_and_end_of_a_run_are_observed() {
    let (_, _, log) = run_code(HELLO);
    assert_eq!(*log.control.lock().unwrap(), [ControlEvent::Started, ControlEvent::PoweredOff]);
}

#[test]
fn doorbell_raises_its_interrupt_in_the_guest() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new(config(&folder, AWAIT_DOORBELL)).unwrap();
    let doorbell = machine.doorbell().unwrap();
    let rung = std::thread::spawn(move || {
        doorbell.ring();
        doorbell.gsi()
    });

    let (outcome, ..) = run(machine, None);

    assert!(matches!(outcome, Outcome::PowerOff), "{outcome:?}");
    assert_eq!(rung.join().unwrap(), 3);
}

#[test]
fn reset_ends_the_run() {
    let (outcome, ..) = run_code(RESET);
    assert!(matches!(outcome, Outcome::Reboot), "{outcome:?}");
}

#[test]
fn reset_after_a_panic_is_a_panic() {
    let (outcome, _, log) = run_code(PANIC);
    assert!(matches!(outcome, Outcome::Panic), "{outcome:?}");
    assert!(log.control.lock().unwrap().contains(&ControlEvent::GuestPanicked));
}

#[test]
fn triple_fault_ends_the_run() {
    let (outcome, ..) = run_code(TRIPLE_FAULT);
    assert!(matches!(outcome, Outcome::TripleFault { vcpu: 0, state: Some(_) }), "{outcome:?}");
}

#[test]
fn guest_that_never_ends_is_stopped() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new(MachineConfig { cpus: 2, ..config(&folder, SPIN) }).unwrap();
    let stop = machine.stop_handle();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stop.stop();
    });
    let (outcome, _, log) = run(machine, None);
    stopper.join().unwrap();
    assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
    assert_eq!(
        *log.control.lock().unwrap(),
        [ControlEvent::Started, ControlEvent::StopRequested, ControlEvent::Stopped]
    );
}

/// Pauses the machine as soon as it runs.
fn pause_once_it_runs(control: &MachineControl) {
    while control.pause() == Err(ControlError::NotRunning) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn paused_guest_stays_out_until_it_is_resumed() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new(MachineConfig { cpus: 2, ..config(&folder, SPIN) }).unwrap();
    let (stop, control) = (machine.stop_handle(), machine.control());
    let log = Arc::new(Log::default());
    let options = RunOptions {
        observer: log.clone(),
        console_output: Box::new(Console::default()),
        console_input: None,
        clock: None,
        notify: Arc::new(|_: &str| ()),
        at_end: None,
    };
    let observed = Arc::clone(&log);
    let controller = std::thread::spawn(move || {
        pause_once_it_runs(&control);
        let balance = || (observed.enters.load(Ordering::Relaxed), observed.exits.load(Ordering::Relaxed));
        let before = balance();
        control.renew_clocks();
        let again = control.pause();
        std::thread::sleep(Duration::from_millis(50));
        let after = balance();
        let paused = control.resume().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let resumed = balance();
        stop.stop();
        (before, again, after, paused, resumed)
    });
    let outcome = machine.run(options).unwrap();
    let (before, again, after, paused, resumed) = controller.join().unwrap();

    assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
    assert_eq!((before.0, before, again), (before.1, after, Err(ControlError::Paused)));
    assert!(paused >= Duration::from_millis(50) && resumed.0 > after.0, "{paused:?} {resumed:?}");
    use ControlEvent::{Paused, Resumed, Started, StopRequested, Stopped};
    assert_eq!(*log.control.lock().unwrap(), [Started, Paused, Resumed, StopRequested, Stopped]);
}

#[test]
fn paused_guest_can_be_stopped() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new(config(&folder, SPIN)).unwrap();
    let (stop, control) = (machine.stop_handle(), machine.control());
    let controller = std::thread::spawn(move || {
        pause_once_it_runs(&control);
        stop.stop();
        control
    });
    let (outcome, ..) = run(machine, None);
    let control = controller.join().unwrap();

    assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
    assert_eq!(control.resume(), Err(ControlError::NotPaused));
}

#[test]
fn running_machine_gets_a_request_for_memory_that_it_can_do_without() {
    let folder = TempDir::new().unwrap();
    let requested = |balloon: bool, bytes: &'static [u64]| {
        let machine = Machine::new(MachineConfig { balloon, ..config(&folder, SPIN) }).unwrap();
        let (stop, control) = (machine.stop_handle(), machine.control());
        let controller = std::thread::spawn(move || {
            pause_once_it_runs(&control);
            let answers: Vec<_> = bytes.iter().map(|bytes| control.want_back(*bytes)).collect();
            let now = control.balloon();
            stop.stop();
            (answers, now)
        });
        run(machine, None);
        controller.join().unwrap()
    };
    // Of 64 MiB a guest needs 32.
    const MOST: u64 = 32 << 20;

    let (without, _) = requested(false, &[0]);
    let (answers, now) = requested(true, &[MOST, MOST + 4096, 4097, u64::MAX]);

    let state = BalloonState { wanted: MOST, ..BalloonState::default() };
    let refused = |bytes| Err(ControlError::BalloonSize { bytes, most: MOST });
    assert_eq!(without, [Err(ControlError::NoBalloon)]);
    assert_eq!(answers, [Ok(state), refused(MOST + 4096), refused(4097), refused(u64::MAX)]);
    assert_eq!(now, Ok(state));
}

#[test]
fn run_that_is_stopped_before_it_starts_ends_at_once() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new(config(&folder, SPIN)).unwrap();
    machine.stop_handle().stop();
    let (outcome, ..) = run(machine, None);
    assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
}

/// Keeps a vCPU's thread from going on until a disk is gone whose observer this is, for a minute at most.
struct WaitsForDisk {
    disk: Weak<dyn Observer>,
    is_gone: AtomicBool,
}

impl Observer for WaitsForDisk {
    fn vcpu_thread_started(&self, _: u32, _: u32) {
        let is_gone = (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            self.disk.strong_count() == 0
        });
        self.is_gone.store(is_gone, Ordering::Relaxed);
    }
}

#[test]
fn disk_that_a_vcpu_waits_for_is_stopped_before_the_vcpu_is_joined() {
    let vm = hypervisor::create_vm(&hypervisor::open().unwrap()).unwrap();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
    let event = || EventFd::new(EFD_NONBLOCK).unwrap();
    let (outcomes, _received) = mpsc::channel();
    let end = RunEnd { outcomes, wake: Arc::new(event()) };
    let of_disk: Arc<dyn Observer> = Arc::new(NoObserver);
    let waits = Arc::new(WaitsForDisk { disk: Arc::downgrade(&of_disk), is_gone: AtomicBool::new(false) });
    let block = Block::new(tempfile::tempfile().unwrap(), 512, false, 0, of_disk);
    let disk = Arc::new(MmioTransport::new(Box::new(block), memory.clone(), event()).unwrap());
    let disk_thread = DiskThread::spawn(0, &disk, end.clone()).unwrap();
    drop(disk);
    let observer: Arc<dyn Observer> = waits.clone();
    let console = Box::new(Console::default());
    let peripherals =
        Peripherals::detached(&memory, Vec::new(), Vec::new(), None, console, &observer, Instant::now()).unwrap();
    let context = VcpuContext { peripherals: Arc::new(peripherals), observer, clock: None, end };
    let vcpu = vcpu::spawn(0, vm.create_vcpu(0).unwrap(), context).unwrap();

    let stopped = stop_all(vec![vcpu], vec![disk_thread]);

    assert!(stopped.is_ok() && waits.is_gone.load(Ordering::Relaxed));
}

#[test]
fn each_vcpu_has_a_thread_of_its_own() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new(MachineConfig { cpus: 3, ..config(&folder, HELLO) }).unwrap();
    let (.., log) = run(machine, None);
    let mut threads = log.threads.lock().unwrap().clone();
    threads.sort_unstable();
    let vcpus: Vec<u32> = threads.iter().map(|(vcpu, _)| *vcpu).collect();
    threads.dedup_by_key(|(_, tid)| *tid);
    assert_eq!((vcpus, threads.len()), (vec![0, 1, 2], 3));
}

#[test]
fn console_input_reaches_the_guest() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new(config(&folder, ECHO)).unwrap();
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"a").unwrap();
    let (_, output, _) = run(machine, Some(File::from(OwnedFd::from(reader))));
    assert_eq!(output, b"b");
}

#[test]
fn guest_finds_the_trace_region_by_cpuid() {
    let folder = TempDir::new().unwrap();
    let shared = shared_pages(2);
    let config = MachineConfig {
        shared_slots: vec![slot(&shared, 0, false), slot(&shared, 1, true)],
        discovery: Some(DiscoveryLeaf { abi_version: 9 }),
        ..config(&folder, DISCOVER)
    };
    let machine = Machine::new(config).unwrap();
    let region = machine.trace_region().unwrap();
    run(machine, None);
    let found = [0, 4, 8, 12, 16, 20, 24, 28].map(|at| peek(&shared, at));
    let signature: Vec<u8> = found[1..4].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!((found[0], signature.as_slice()), (0x4000_0101, &b"STRATATRACE\0"[..]));
    assert_eq!((region.start, region.size), (1 << 32, 2 * 4096));
    assert_eq!(found[4..], [9, 2, 0, 1]);
}

#[test]
fn write_to_a_read_only_slot_is_observed_and_has_no_effect() {
    let folder = TempDir::new().unwrap();
    let shared = shared_pages(2);
    let config = MachineConfig {
        shared_slots: vec![slot(&shared, 0, false), slot(&shared, 1, true)],
        discovery: Some(DiscoveryLeaf { abi_version: 9 }),
        ..config(&folder, DISCOVER)
    };
    let (outcome, _, log) = run(Machine::new(config).unwrap(), None);
    assert!(matches!(outcome, Outcome::PowerOff), "{outcome:?}");
    assert_eq!(*log.mmio_writes.lock().unwrap(), [(0x1_0000_1000, 0x77)]);
    assert_eq!(peek(&shared, 4096), 0);
}

#[test]
fn tsc_offset_is_applied_to_every_vcpu_or_refused() {
    let folder = TempDir::new().unwrap();
    let config = MachineConfig { cpus: 2, tsc_offset: Some(-12_345_678), ..config(&folder, HELLO) };
    let result = Machine::new(config).map(|machine| machine.tsc_offsets().map(<[i64]>::to_vec));
    let applied = matches!(&result, Ok(Some(offsets)) if *offsets == [-12_345_678; 2]);
    let refused = matches!(&result, Err(MachineError::TscOffset { vcpu: 0, found: 0, .. }));
    assert!(applied || refused, "{result:?}");
}

#[test]
fn all_vcpus_have_the_same_tsc_offset_by_default() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new(MachineConfig { cpus: 4, ..config(&folder, HELLO) }).unwrap();
    let offsets = machine.tsc_offsets().unwrap();
    assert_eq!((offsets.len(), offsets.iter().all(|offset| *offset == offsets[0])), (4, true));
}

#[test]
fn clock_reading_lies_between_readings_around_it() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new(config(&folder, HELLO)).unwrap();
    let before = host_tsc();
    let reading = machine.cross_timestamp(1_000_000_000);
    assert!((before..=host_tsc()).contains(&reading.ticks));
}

#[test]
fn bad_configuration_is_refused_before_anything_is_created() {
    let folder = TempDir::new().unwrap();
    let result = Machine::new(MachineConfig { cpus: 0, ..config(&folder, HELLO) });
    assert!(matches!(result.err(), Some(MachineError::Config(ConfigError::NoCpus))));
}

/// Says what this process, and so its guest, may do with a page of shared memory.
#[allow(unsafe_code)]
fn protect(mapping: &MmapRaw, page: usize, access: MprotectFlags) {
    assert!((page + 1) * 4096 <= mapping.len());
    // SAFETY: the page lies in the mapping, as just checked, and nobody in this process reads or writes it while it is
    // closed.
    unsafe { mprotect(mapping.as_mut_ptr().add(page * 4096).cast(), 4096, access) }.unwrap();
}

#[test]
fn guest_cannot_write_shared_memory_that_is_closed() {
    let folder = TempDir::new().unwrap();
    let mapping = shared_pages(2);
    protect(&mapping, 1, MprotectFlags::empty());
    let shared_slots = vec![slot(&mapping, 0, false), slot(&mapping, 1, false)];
    let discovery = Some(DiscoveryLeaf { abi_version: 9 });

    let config = MachineConfig { shared_slots, discovery, ..config(&folder, DISCOVER) };
    let (outcome, ..) = run(Machine::new(config).unwrap(), None);
    protect(&mapping, 1, MprotectFlags::READ);

    // KVM ends the run; one that emulates takes the page for a device that is not there.
    assert!(matches!(outcome, Outcome::Failed(RunError::Kvm { .. }) | Outcome::PowerOff), "{outcome:?}");
    assert_eq!((peek(&mapping, 0), peek(&mapping, 4096)), (0x4000_0101, 0));
}
