//! Events of signal handlers, which may have interrupted the allocator: the library takes nothing from there, whether a
//! process connects, registers an event type, records or is refused.
//!
//! Shows: Signal handlers connect, register and record without the allocator.
#![allow(unsafe_code, reason = "an allocator, and signal handlers")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod connected;

use connected::{connected, succeeds_without_the_c_librarys_areas};
use guest_agent::{EventType, FieldType, RuntimeEventType, Text, Tracer, tracer};
use shared_ring::host::memory::HostMemory;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// Counts the requests of a handler.
struct Watched;

/// Id of the thread that is in a handler; 0 when none is.
static IN_HANDLER: AtomicU64 = AtomicU64::new(0);
static TAKEN_IN_HANDLER: AtomicUsize = AtomicUsize::new(0);

fn this_thread() -> u64 {
    // SAFETY: takes nothing and returns a number.
    unsafe { libc::gettid() }.unsigned_abs().into()
}

// SAFETY: all is passed on.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IN_HANDLER.load(Ordering::Relaxed) == this_thread() {
            TAKEN_IN_HANDLER.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// What the handler does, which tells whether it went well; one test at a time.
static ACTION: Mutex<fn() -> bool> = Mutex::new(|| false);
static RUNNING: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static WENT_WELL: AtomicBool = AtomicBool::new(false);

extern "C" fn handler(_: libc::c_int) {
    IN_HANDLER.store(this_thread(), Ordering::Relaxed);
    // SAFETY: `in_handler` stored such a function.
    let action = unsafe { std::mem::transmute::<*mut (), fn() -> bool>(RUNNING.load(Ordering::Relaxed)) };
    WENT_WELL.store(action(), Ordering::Relaxed);
    IN_HANDLER.store(0, Ordering::Relaxed);
}

/// Does it in a signal handler; returns whether it went well, and how often the allocator was asked meanwhile.
fn in_handler(action: fn() -> bool) -> (bool, usize) {
    let mut current = ACTION.lock().unwrap();
    *current = action;
    RUNNING.store(action as *mut (), Ordering::Relaxed);
    TAKEN_IN_HANDLER.store(0, Ordering::Relaxed);
    // SAFETY: the handler uses what is meant for handlers only, which is what is tried.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t);
        libc::raise(libc::SIGUSR1);
    }
    (WENT_WELL.load(Ordering::Relaxed), TAKEN_IN_HANDLER.load(Ordering::Relaxed))
}

/// The tracer of a process that is connected, with a ring for all CPUs or one for each.
fn tracer_of_region(vcpus: u16) -> Tracer {
    connected(4096, vcpus, |layout| HostMemory::private(layout.size)).2
}

#[test]
fn first_event_of_a_process_takes_nothing_of_the_allocator() {
    static FIRST: EventType<(u32,)> = EventType::new("test:first_in_handler", &["number"]);
    // Whether it is recorded depends on the machine.
    let connect = || FIRST.record((1,)) == tracer().error().is_none();

    assert_eq!(in_handler(connect), (true, 0));
}

#[test]
fn event_type_is_registered_without_the_allocator() {
    static OPENED: EventType<(Text, u32)> = EventType::new("test:opened_in_handler", &["name", "flags"]);
    static TRACER: OnceLock<Tracer> = OnceLock::new();
    TRACER.get_or_init(|| tracer_of_region(1));
    let record = || TRACER.get().is_some_and(|tracer| OPENED.record_with(tracer, ("a", 1)));

    assert_eq!(in_handler(record), (true, 0));
}

#[test]
fn event_type_is_made_at_run_time_without_the_allocator() {
    let make = || {
        let fields = [("twice", FieldType::U8, false), ("twice", FieldType::U8, false), ("", FieldType::String, false)];
        RuntimeEventType::new("test:made in a handler", &fields).is_some_and(|made| made.fields() == 3)
    };

    assert_eq!(in_handler(make), (true, 0));
}

#[test]
fn first_record_of_a_thread_takes_nothing_of_the_allocator() {
    static COUNTED: EventType<(u32,)> = EventType::new("test:counted_in_handler", &["number"]);
    static TRACER: OnceLock<Tracer> = OnceLock::new();
    assert!(TRACER.get_or_init(|| tracer_of_region(256)).is_restartable());
    let record = || TRACER.get().is_some_and(|tracer| COUNTED.record_with(tracer, (1,)));

    let threads = [(); 3].map(|()| std::thread::spawn(move || in_handler(record)).join().unwrap());

    assert_eq!(threads, [(true, 0); 3]);
}

#[test]
fn so_it_is_in_areas_that_the_library_registers() {
    assert!(succeeds_without_the_c_librarys_areas(&["--skip", "so_it_is"]));
}
