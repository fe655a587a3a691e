//! Records that are restartable sequences, on this machine's kernel: threads that are moved to and fro and interrupted
//! by handlers that record, processes that are killed in the midst of it, and children of such handlers.
//!
//! Shows: Disturbed threads' records arrive once or are counted; killed processes leave all they recorded.
//! Shows: Restartable rings also hold in rseq areas that the library registers.
#![allow(unsafe_code, reason = "signals, forks, shared memory")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod connected;

use connected::{SUB_BUFFERS, connected, succeeds_without_the_c_librarys_areas};
use guest_agent::{EventType, Tracer};
use rustix::thread::{CpuSet, Pid};
use shared_ring::consumer::Consumer;
use shared_ring::event::EventDescription;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{PAGE_SIZE, REGISTRY_HEADER_SIZE};
use shared_ring::region::RegionLayout;
use shared_ring::registry::parse;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Who recorded, and the number of the record among theirs.
static EVENT: EventType<(u32, u64)> = EventType::new("test:numbered", &["who", "number"]);
/// What handlers are as recorders.
const HANDLER: u32 = 1000;

/// CPUs of this machine; two where there is one, so that each is a vCPU of its own.
fn cpus() -> u16 {
    u16::try_from(thread::available_parallelism().unwrap().get().clamp(2, 256)).unwrap()
}

/// Memory that children share.
fn shared(size: usize) -> HostMemory {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which is never undone.
    unsafe {
        let base = libc::mmap(ptr::null_mut(), size, access, flags, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        HostMemory::new(base.cast(), size, Arc::new(()))
    }
}

fn described(memory: &HostMemory, layout: &RegionLayout) -> Vec<EventDescription> {
    let registry = layout.process_slot(0) + PAGE_SIZE;
    let mut bytes = vec![0; usize::try_from(memory.load(registry)).unwrap()];
    memory.read(registry + REGISTRY_HEADER_SIZE, &mut bytes);
    let mut known = Vec::new();
    parse(&bytes, &mut known).unwrap();
    known
}

/// The host's reader of all rings of the process, and what it has read.
struct Host {
    consumers: Vec<Consumer>,
    known: Vec<EventDescription>,
    /// By recorder: the numbers of records, with their times.
    records: BTreeMap<u32, Vec<(u64, u64)>>,
}

impl Host {
    fn new(memory: &HostMemory, layout: &RegionLayout) -> Self {
        let rings = layout.config.process_rings;
        let ring = |vcpu| memory.part(layout.process_ring(0, vcpu), layout.process_ring_stride);
        let consumer = |vcpu| Consumer::new(ring(vcpu), rings.geometry, rings.mode, vcpu);
        let consumers = (0..layout.config.vcpus).map(consumer).collect();
        Self { consumers, known: described(memory, layout), records: BTreeMap::new() }
    }

    /// Takes what is there, of rings that are recorded into (not `stopped`) as much as they hold; of rings whose
    /// process is gone also what is in open sub-buffers.
    fn drain(&mut self, stopped: bool) {
        let mut buffer = Vec::new();
        for consumer in &mut self.consumers {
            let mut latest = 0;
            // Else a reader that is slower than the recorders never comes back.
            let mut left = if stopped { u32::MAX } else { SUB_BUFFERS };
            while left > 0
                && let Some(delivered) =
                    (if stopped { consumer.poll_stopped(&mut buffer) } else { consumer.poll(&mut buffer) }).ready()
            {
                left -= 1;
                let known = |id| self.known.iter().find(|event| event.id == id);
                let Some(packet) = delivered.accept([0; 16], u64::MAX, known) else { continue };
                for record in packet.records() {
                    assert!(record.time >= latest, "the time runs back");
                    latest = record.time;
                    let who = u32::from_le_bytes(record.payload[..4].try_into().unwrap());
                    let number = u64::from_le_bytes(record.payload[4..].try_into().unwrap());
                    self.records.entry(who).or_default().push((number, record.time));
                }
            }
            assert!(!consumer.is_corrupt() && consumer.rejected_bytes() == 0, "the ring is damaged");
        }
    }

    fn lost(&mut self) -> u64 {
        self.consumers.iter_mut().for_each(Consumer::finish);
        self.consumers.iter().map(|consumer| consumer.lost().total()).sum()
    }

    /// The numbers of `who`, sorted.
    fn numbers(&self, who: u32) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.records.get(&who).into_iter().flatten().map(|&(number, _)| number).collect();
        numbers.sort_unstable();
        numbers
    }
}

fn this_thread() -> i32 {
    // SAFETY: takes nothing and returns a number.
    unsafe { libc::gettid() }
}

fn move_to(thread: Option<i32>, cpu: u16) {
    let mut there = CpuSet::new();
    there.set(usize::from(cpu));
    // The thread may be gone, and the CPU not this process's.
    let _ = rustix::thread::sched_setaffinity(thread.and_then(Pid::from_raw), &there);
}

static TRACER: AtomicPtr<Tracer> = AtomicPtr::new(ptr::null_mut());
static BY_HANDLERS: AtomicU64 = AtomicU64::new(0);
static TRIED_BY_HANDLERS: AtomicU64 = AtomicU64::new(0);

extern "C" fn record_in_handler(_: libc::c_int) {
    // SAFETY: null, or what the test leaked.
    if let Some(tracer) = unsafe { TRACER.load(Ordering::Acquire).as_ref() } {
        let number = TRIED_BY_HANDLERS.fetch_add(1, Ordering::Relaxed);
        BY_HANDLERS.fetch_add(u64::from(EVENT.record_with(tracer, (HANDLER, number))), Ordering::Relaxed);
    }
}

#[test]
fn records_of_threads_that_are_moved_and_interrupted_arrive_once_or_are_counted() {
    const THREADS: u32 = 4;
    let (memory, layout, tracer) = connected(1 << 16, cpus(), |layout| HostMemory::private(layout.size));
    assert!(tracer.is_restartable() && EVENT.register(&tracer));
    let tracer: &Tracer = Box::leak(Box::new(tracer));
    TRACER.store(ptr::from_ref(tracer).cast_mut(), Ordering::Release);
    // SAFETY: the handler records, which handlers may.
    unsafe { libc::signal(libc::SIGUSR2, record_in_handler as *const () as libc::sighandler_t) };
    let mut host = Host::new(&memory, &layout);
    let (ids, running) = ([const { AtomicI32::new(0) }; THREADS as usize], AtomicU32::new(THREADS));
    let end = Instant::now() + Duration::from_secs(2);

    let recorded: Vec<Vec<bool>> = thread::scope(|scope| {
        let recorders = (0..THREADS).map(|who| {
            let (ids, running) = (&ids, &running);
            let record = move || {
                ids[who as usize].store(this_thread(), Ordering::Release);
                let mut recorded = Vec::new();
                while Instant::now() < end {
                    let first = recorded.len() as u64;
                    recorded.extend((first..first + 100).map(|number| EVENT.record_with(tracer, (who, number))));
                }
                running.fetch_sub(1, Ordering::Release);
                // Signals may still be on their way.
                while running.load(Ordering::Acquire) > 0 {
                    thread::yield_now();
                }
                recorded
            };
            scope.spawn(record)
        });
        let recorders: Vec<_> = recorders.collect();
        let mut turn = 0_u16;
        while running.load(Ordering::Acquire) > 0 {
            turn = turn.wrapping_add(1);
            let id = ids[usize::from(turn % 4)].load(Ordering::Acquire);
            if id != 0 && Instant::now() < end {
                move_to(Some(id), turn / 4 % cpus());
                // SAFETY: sends a signal to a thread of this process, which stays until all have recorded.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGUSR2) };
            }
            host.drain(false);
        }
        recorders.into_iter().map(|recorder| recorder.join().unwrap()).collect()
    });
    TRACER.store(ptr::null_mut(), Ordering::Release);
    host.drain(true);

    let expected = |recorded: &[bool]| (0..).zip(recorded).filter(|(_, is_there)| **is_there).map(|(n, _)| n).collect();
    for (who, recorded) in (0..).zip(&recorded) {
        let expected: Vec<u64> = expected(recorded);
        assert_eq!(host.numbers(who), expected, "records of thread {who}");
    }
    let by_handlers = host.numbers(HANDLER).len() as u64;
    let tried = recorded.iter().map(Vec::len).sum::<usize>() as u64 + TRIED_BY_HANDLERS.load(Ordering::Relaxed);
    let delivered: usize = host.records.values().map(Vec::len).sum();
    assert!(by_handlers > 0 && by_handlers == BY_HANDLERS.load(Ordering::Relaxed));
    assert_eq!(delivered as u64 + host.lost(), tried);
}

#[test]
fn process_killed_in_the_midst_of_records_leaves_all_that_it_had_recorded() {
    for round in 0..40_u64 {
        let done = shared(PAGE_SIZE);
        let (memory, layout, tracer) = connected(4 << 20, cpus(), |layout| shared(layout.size));
        assert!(EVENT.register(&tracer));
        // SAFETY: the child records, and is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // As the kernel module has it, but for the slot, which the child needs here: this one is its parent's.
            // SAFETY: parent and child do not record at once: the parent does not.
            let again = unsafe { again(&memory, &layout) };
            for number in 0.. {
                if !again.is_restartable() || !EVENT.record_with(&again, (0, number)) {
                    break;
                }
                done.store(0, number + 1);
            }
            loop {
                thread::sleep(Duration::from_secs(1));
            }
        }
        thread::sleep(Duration::from_micros(3000 + 131 * round));
        let mut status = 0;
        // SAFETY: kills and waits for the child made above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &raw mut status, 0);
        }

        let mut host = Host::new(&memory, &layout);
        host.drain(true);
        let (numbers, done) = (host.numbers(0), done.load(0));
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "a record is missing");
        assert!((done..=done + 1).contains(&(numbers.len() as u64)), "{} records, not {done}", numbers.len());
    }
}

/// A tracer of the slot of [`connected`], for a child.
///
/// # Safety
/// Nobody else records into the slot.
unsafe fn again(memory: &HostMemory, layout: &RegionLayout) -> Tracer {
    let at = |offset: usize| memory.base().wrapping_add(offset);
    let slot = (at(layout.process_slot(0)), layout.process_stride);
    // SAFETY: the memory is kept by the tracer; the rest is passed on from the caller.
    unsafe { Tracer::over((at(0), layout.guest_writable), slot, Arc::new(memory.clone())) }.unwrap()
}

#[test]
fn flush_hands_over_the_rings_of_all_cpus_and_lets_the_thread_go() {
    let (memory, layout, tracer) = connected(4096, cpus(), |layout| HostMemory::private(layout.size));
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let mut recorded = 0;
    for cpu in (0..cpus()).filter(|&cpu| allowed.is_set(usize::from(cpu))) {
        move_to(None, cpu);
        recorded += u64::from(EVENT.record_with(&tracer, (0, u64::from(cpu))));
    }
    rustix::thread::sched_setaffinity(None, &allowed).unwrap();
    let mut host = Host::new(&memory, &layout);

    host.drain(false);
    let before = host.numbers(0).len();
    tracer.flush();
    host.drain(false);

    assert_eq!((before, host.numbers(0).len() as u64), (0, recorded));
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), allowed);
}

#[test]
fn payloads_of_every_size_arrive_whole_or_are_counted() {
    let (memory, layout, tracer) = connected(1 << 16, cpus(), |layout| HostMemory::private(layout.size));
    static SIZED: std::sync::OnceLock<&guest_agent::RuntimeEventType> = std::sync::OnceLock::new();
    let sized = SIZED.get_or_init(|| {
        let fields = [("text", guest_agent::FieldType::String, false)];
        guest_agent::RuntimeEventType::new("test:sized", &fields).unwrap()
    });
    let sizes = [1_usize, 8, 31, 32, 33, 256, 257, 2560, 2561, 40_000, 70_000];

    let recorded = sizes.map(|size| {
        sized.record(&tracer, size, |payload| {
            payload.put(&vec![b'a'; size - 1]);
            payload.put(&[0]);
        })
    });

    let rings = layout.config.process_rings;
    let (known, mut seen, mut lost, mut largest) = (described(&memory, &layout), Vec::new(), 0, Vec::new());
    for vcpu in 0..layout.config.vcpus {
        let ring = memory.part(layout.process_ring(0, vcpu), layout.process_ring_stride);
        let mut consumer = Consumer::new(ring, rings.geometry, rings.mode, vcpu);
        let mut buffer = Vec::new();
        while let Some(delivered) = consumer.poll_stopped(&mut buffer).ready() {
            let packet = delivered.accept([0; 16], u64::MAX, |id| known.iter().find(|event| event.id == id)).unwrap();
            seen.extend(packet.records().map(|record| record.payload.len()));
        }
        consumer.finish();
        assert_eq!(consumer.rejected_bytes(), 0);
        lost += consumer.lost().too_large;
        largest.extend(consumer.largest_lost().map(|lost| lost.payload as usize));
    }
    seen.sort_unstable();
    assert_eq!((recorded.iter().filter(|recorded| **recorded).count(), seen.as_slice()), (10, &sizes[..10]));
    assert_eq!((lost, largest), (1, vec![70_000]));
}

#[test]
fn host_that_does_not_read_such_rings_gets_the_others() {
    let features = std::mem::offset_of!(shared_ring::layout::Superblock, features);
    let (memory, layout, first) = connected(4096, cpus(), |layout| HostMemory::private(layout.size));
    memory.store(features, 0);
    let (_, _, shared_by_all) = connected(4096, 1, |layout| HostMemory::private(layout.size));

    // SAFETY: nothing was recorded by the first tracer.
    let second = unsafe { again(&memory, &layout) };

    let are_restartable = [&first, &second, &shared_by_all].map(Tracer::is_restartable);
    assert_eq!(are_restartable, [true, false, false]);
    assert!(EVENT.record_with(&second, (0, 1)) && EVENT.record_with(&shared_by_all, (0, 1)));
}

#[test]
fn all_of_this_holds_in_areas_that_the_library_registers() {
    let others = ["--skip", "all_of_this_holds", "--skip", "none_can_be_registered"];
    assert!(succeeds_without_the_c_librarys_areas(&others));
}

/// Registers an rseq area for the calling thread, as another library may do where the C library does not.
fn register_as_another_library() {
    const SIZE: usize = 32;
    const SIGNATURE: u32 = 0x5305_3053;
    let area = shared(PAGE_SIZE).base();
    // SAFETY: the memory is never unmapped.
    assert_eq!(unsafe { libc::syscall(libc::SYS_rseq, area, SIZE, 0, SIGNATURE) }, 0);
}

#[test]
#[ignore = "child process: run by process_records_where_none_can_be_registered"]
fn first_thread_has_anothers() {
    register_as_another_library();
    let (memory, layout, tracer) = connected(4096, cpus(), |layout| HostMemory::private(layout.size));

    let recorded = [EVENT.record_with(&tracer, (0, 0)), EVENT.record_with(&tracer, (0, 1))];
    let of_another_thread = thread::scope(|scope| scope.spawn(|| EVENT.record_with(&tracer, (0, 2))).join().unwrap());

    let mut host = Host::new(&memory, &layout);
    host.drain(true);
    assert!(!tracer.is_restartable() && of_another_thread);
    assert_eq!((recorded, host.numbers(0)), ([true; 2], vec![0, 1, 2]));
}

#[test]
#[ignore = "child process: run by process_records_where_none_can_be_registered"]
fn later_thread_has_anothers() {
    let (memory, layout, tracer) = connected(4096, cpus(), |layout| HostMemory::private(layout.size));

    let of_another_thread = thread::scope(|scope| {
        let record = || {
            register_as_another_library();
            [EVENT.record_with(&tracer, (0, 0)), EVENT.record_with(&tracer, (0, 1))]
        };
        scope.spawn(record).join().unwrap()
    });
    let recorded = EVENT.record_with(&tracer, (0, 2));

    let mut host = Host::new(&memory, &layout);
    host.drain(true);
    assert!(tracer.is_restartable() && recorded);
    assert_eq!((of_another_thread, tracer.lost(), host.lost()), ([false; 2], 2, 2));
    assert_eq!(host.numbers(0), [2]);
}

#[test]
fn process_records_where_none_can_be_registered() {
    assert!(succeeds_without_the_c_librarys_areas(&["thread_has_anothers", "--ignored"]));
}
