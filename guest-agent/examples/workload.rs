//! A program that works a little and records what it does: files, computing, page faults, sleeps, child processes, on
//! every CPU at once.
//!
//! `workload [--events N]` does rounds of work until about N events are recorded. `workload --burst [N]...` records N
//! events in a tight loop, between two marker events, and says how long it took. `workload --exits` leaves the guest as
//! often as it can, by an instruction that any process may use, until it is killed.

use anyhow::{Context, Result, bail};
use guest_agent::{EventType, Hex, Text, tracer};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: workload [--events N] | --burst [N]... | --exits";
/// Events that a round of work records.
const EVENTS_PER_ROUND: u64 = 7;
/// A child process is started every so many rounds.
const ROUNDS_PER_CHILD: u64 = 8;
const DEFAULT_EVENTS: u64 = 4_000;
const DEFAULT_BURSTS: [u64; 2] = [1_000, 1_000_000];

static ROUND_BEGIN: EventType<(u32, u64)> = EventType::new("workload:round_begin", &["thread", "round"]);
static ROUND_END: EventType<(u32, u64)> = EventType::new("workload:round_end", &["thread", "round"]);
static FILE_WRITTEN: EventType<(Text, u64)> = EventType::new("workload:file_written", &["path", "bytes"]);
static FILE_READ: EventType<(Text, u64)> = EventType::new("workload:file_read", &["path", "bytes"]);
static COMPUTED: EventType<(u64, Hex<u64>)> = EventType::new("workload:computed", &["iterations", "checksum"]);
static TOUCHED: EventType<(Hex<u64>, u32)> = EventType::new("workload:touched", &["address", "pages"]);
static SLEPT: EventType<(u64,)> = EventType::new("workload:slept", &["ns"]);
static CHILD: EventType<(u32, Text)> = EventType::new("workload:child", &["pid", "what"]);
static BURST_BEGIN: EventType<(u64,)> = EventType::new("workload:burst_begin", &["events"]);
static BURST: EventType<(u64,)> = EventType::new("workload:burst", &["number"]);
static BURST_END: EventType<(u64, u64)> = EventType::new("workload:burst_end", &["events", "recorded"]);

enum Task {
    Rounds { events: u64 },
    Bursts(Vec<u64>),
    Exits,
    Child,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workload: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<Task> {
    let number = |text: &String| text.parse::<u64>().with_context(|| format!("{text:?} is not a number of events"));
    match arguments {
        [] => Ok(Task::Rounds { events: DEFAULT_EVENTS }),
        [option, events] if option == "--events" => Ok(Task::Rounds { events: number(events)? }),
        [option] if option == "--child" => Ok(Task::Child),
        [option] if option == "--exits" => Ok(Task::Exits),
        [option] if option == "--burst" => Ok(Task::Bursts(DEFAULT_BURSTS.to_vec())),
        [option, sizes @ ..] if option == "--burst" => {
            Ok(Task::Bursts(sizes.iter().map(number).collect::<Result<_>>()?))
        }
        _ => bail!("{USAGE}"),
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Child => {
            CHILD.record((std::process::id(), "born"));
            Ok(())
        }
        Task::Exits => loop {
            std::hint::black_box(std::arch::x86_64::__cpuid(0));
        },
        Task::Rounds { events } => {
            print_what_is_connected();
            rounds(events)
        }
        Task::Bursts(sizes) => {
            print_what_is_connected();
            sizes.into_iter().for_each(burst);
            Ok(())
        }
    }
}

fn print_what_is_connected() {
    match tracer().error() {
        None if tracer().is_enabled() => println!("workload: traced"),
        None => println!("workload: connected, but no session wants applications' events"),
        Some(error) => println!("workload: not traced: {error}"),
    }
}

/// Records `events` events as fast as possible.
fn burst(events: u64) {
    BURST_BEGIN.record((events,));
    let began = Instant::now();
    let recorded = (0..events).filter(|&number| BURST.record((number,))).count() as u64;
    let took = began.elapsed();
    // The ring may be full: the marker waits for the reader.
    let _ = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(10));
        BURST_END.record((events, recorded))
    });
    println!(
        "workload: burst of {events} events took {} us, {recorded} recorded, {} not",
        took.as_micros(),
        events - recorded
    );
}

fn rounds(events: u64) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    let rounds = events.div_ceil(EVENTS_PER_ROUND * threads as u64);
    let workers: Vec<_> = (0..threads).map(|number| thread::spawn(move || work(number, rounds))).collect();
    for worker in workers {
        worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    println!("workload: {threads} threads did {rounds} rounds each");
    Ok(())
}

/// One thread, on CPU `number` where the kernel allows it.
fn work(number: usize, rounds: u64) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(number);
    // A machine with other CPUs than 0, 1, 2... does the work where it likes.
    let _ = sched_setaffinity(None, &cpus);
    let thread = u32::try_from(number)?;
    let path = std::env::temp_dir().join(format!("workload-{}-{number}", std::process::id()));
    for round in 0..rounds {
        ROUND_BEGIN.record((thread, round));
        files(&path)?;
        compute(round);
        touch_pages();
        sleep();
        if round % ROUNDS_PER_CHILD == 0 {
            child()?;
        }
        ROUND_END.record((thread, round));
    }
    Ok(())
}

fn files(path: &std::path::Path) -> Result<()> {
    let cannot = |what: &str| format!("cannot {what} {}", path.display());
    let name = path.to_string_lossy();
    let mut file = fs::File::create(path).with_context(|| cannot("create"))?;
    for _ in 0..4 {
        file.write_all(&[0x5a; 1024]).with_context(|| cannot("write"))?;
    }
    FILE_WRITTEN.record((&name, 4 * 1024));
    let mut content = Vec::new();
    fs::File::open(path).and_then(|mut file| file.read_to_end(&mut content)).with_context(|| cannot("read"))?;
    FILE_READ.record((&name, content.len() as u64));
    fs::remove_file(path).with_context(|| cannot("remove"))
}

fn compute(seed: u64) {
    const ITERATIONS: u64 = 20_000;
    let checksum = (0..ITERATIONS).fold(seed, |sum, step| std::hint::black_box(sum.rotate_left(5) ^ step));
    COMPUTED.record((ITERATIONS, checksum));
}

fn touch_pages() {
    const PAGES: u32 = 64;
    // Large enough that the allocator maps it anew, and every page faults.
    let mut memory = vec![0_u8; PAGES as usize * 4096];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let address = std::hint::black_box(memory.as_ptr()).addr() as u64;
    TOUCHED.record((address, PAGES));
}

fn sleep() {
    let began = Instant::now();
    thread::sleep(Duration::from_micros(200));
    SLEPT.record((u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),));
}

fn child() -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(program).arg("--child").spawn().context("cannot start a child process")?;
    CHILD.record((child.id(), "started"));
    let status = child.wait().context("cannot wait for the child process")?;
    if !status.success() {
        bail!("the child process failed: {status}");
    }
    CHILD.record((child.id(), "gone"));
    Ok(())
}
