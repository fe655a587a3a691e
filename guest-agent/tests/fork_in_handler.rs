//! Signal handlers that fork in the midst of a record. The child, too, returns into that record: where the slot was, it finds
//! zeroed memory, as in a guest (there the kernel module sees to it), and goes on without harm to itself or its parent.
//!
//! Shows: An application records across forks in signal handlers.
#![allow(unsafe_code, reason = "signal handlers that fork")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod connected;

use connected::{connected, succeeds_without_the_c_librarys_areas};
use guest_agent::EventType;
use shared_ring::consumer::Consumer;
use shared_ring::event::EventDescription;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{PAGE_SIZE, REGISTRY_HEADER_SIZE};
use shared_ring::packet::Packet;
use shared_ring::registry::parse;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// Of each kind of ring.
const FORKS: u32 = 3000;
static EVENT: EventType<(u32,)> = EventType::new("test:interrupted", &["number"]);

static FORKED: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// The thread that records. A timer's signal may come to any of the process.
static RECORDER: AtomicI32 = AtomicI32::new(0);

fn this_thread() -> i32 {
    // SAFETY: takes nothing and returns a number.
    unsafe { libc::gettid() }
}

extern "C" fn fork_in_handler(signal: libc::c_int) {
    let recorder = RECORDER.load(Ordering::Relaxed);
    if this_thread() != recorder {
        // SAFETY: sends a signal to a thread of this process that is there until it has recorded all.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), recorder, signal) };
        return;
    }
    let number = FORKED.load(Ordering::Relaxed);
    // SAFETY: the child does what handlers may, and ends.
    let child =
        unsafe { if number.is_multiple_of(2) { i64::from(libc::fork()) } else { libc::syscall(libc::SYS_fork) } };
    if child == 0 {
        IS_CHILD.store(true, Ordering::Relaxed);
        return;
    }
    let mut status = -1;
    // SAFETY: waits for a child of this process.
    let waited = unsafe { libc::waitpid(i32::try_from(child).unwrap_or(-1), &raw mut status, 0) };
    FAILED.fetch_add(u32::from(waited <= 0 || status != 0), Ordering::Relaxed);
    FORKED.store(number + 1, Ordering::Relaxed);
}

/// Private memory of this process; a child finds the bytes from `wiped` on zeroed.
fn memory(size: usize, wiped: usize) -> HostMemory {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which is never undone; its last part is only this one's.
    unsafe {
        let base = libc::mmap(ptr::null_mut(), size, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        let advised = libc::madvise(base.byte_add(wiped), size - wiped, libc::MADV_WIPEONFORK);
        assert_eq!(advised, 0);
        HostMemory::new(base.cast(), size, Arc::new(()))
    }
}

/// The numbers of the records that the process has made since the last time.
fn drain(consumer: &mut Consumer, known: &EventDescription, numbers: &mut Vec<u32>) {
    let mut packet = Vec::new();
    while let Some(delivered) = consumer.poll(&mut packet).ready() {
        // one that was opened for a record that another CPU's ring got is empty
        let packet = delivered.accept([0; 16], u64::MAX, |id| (id == known.id).then_some(known));
        let records = packet.iter().flat_map(Packet::records);
        numbers.extend(records.map(|record| u32::from_le_bytes(record.payload[..4].try_into().unwrap())));
    }
}

fn arm_timer() {
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let once = libc::itimerval { it_interval: never, it_value: libc::timeval { tv_usec: 20, ..never } };
    // SAFETY: the timer is this process's own; children do not inherit it.
    let armed = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const once, ptr::null_mut()) };
    assert_eq!(armed, 0);
}

/// Interrupts records by handlers that fork, in a process with `vcpus` rings.
fn interrupt(vcpus: u16) {
    let (memory, layout, tracer) =
        connected(65536, vcpus, |layout| memory(layout.size.next_multiple_of(PAGE_SIZE), layout.process_slot(0)));
    assert_eq!(tracer.is_restartable(), vcpus > 1, "each CPU with a ring of its own");
    let rings = layout.config.process_rings;
    let ring = |vcpu| memory.part(layout.process_ring(0, vcpu), layout.process_ring_stride);
    let consumer = |vcpu| Consumer::new(ring(vcpu), rings.geometry, rings.mode, vcpu);
    let mut consumers: Vec<_> = (0..u32::from(vcpus)).map(consumer).collect();
    assert!(EVENT.register(&tracer));
    let registry = layout.process_slot(0) + PAGE_SIZE;
    let mut bytes = vec![0; usize::try_from(memory.load(registry)).unwrap()];
    memory.read(registry + REGISTRY_HEADER_SIZE, &mut bytes);
    let mut known = Vec::new();
    parse(&bytes, &mut known).unwrap();
    RECORDER.store(this_thread(), Ordering::Relaxed);
    FORKED.store(0, Ordering::Relaxed);
    // SAFETY: the handler does what is tried here.
    unsafe { libc::signal(libc::SIGALRM, fork_in_handler as *const () as libc::sighandler_t) };

    let (mut recorded, mut numbers) = (0, Vec::new());
    for fork in 0..FORKS {
        arm_timer();
        while FORKED.load(Ordering::Relaxed) == fork {
            let was_recorded = EVENT.record_with(&tracer, (recorded,));
            if IS_CHILD.load(Ordering::Relaxed) {
                // SAFETY: ends the child, behind the record that was interrupted.
                unsafe { libc::_exit(0) };
            }
            recorded += u32::from(was_recorded);
        }
        tracer.flush();
        consumers.iter_mut().for_each(|consumer| drain(consumer, &known[0], &mut numbers));
    }

    assert_eq!(FAILED.load(Ordering::Relaxed), 0);
    assert!(consumers.iter().all(|consumer| consumer.rejected_bytes() == 0));
    numbers.sort_unstable();
    assert!(recorded > FORKS && numbers.iter().copied().eq(0..recorded), "{recorded}, not {}", numbers.len());
}

#[test]
fn record_that_a_forking_handler_interrupts_is_there_once_and_harms_no_child() {
    // One after the other: there is one timer, and one handler.
    interrupt(1);
    let cpus = std::thread::available_parallelism().unwrap().get().clamp(2, 256);
    interrupt(u16::try_from(cpus).unwrap());
}

#[test]
fn so_it_is_in_areas_that_the_library_registers() {
    assert!(succeeds_without_the_c_librarys_areas(&["--skip", "so_it_is"]));
}
