//! The lives of processes that record: forked, executed, killed in the middle of a record, moved between CPUs, and more
//! of them than there are slots.
//!
//! `processes fork | fork-in-handler | exec | kill | migrate | late-cpu CPU | crowd N [UID GID [USERS]]`
#![allow(unsafe_code)] // Forks without the C library's knowledge, too.

use anyhow::{Context, Result, bail, ensure};
use guest_agent::{EventType, Text, event, tracer};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const USAGE: &str =
    "usage: processes fork | fork-in-handler | exec | kill | migrate | late-cpu CPU | crowd N [UID GID [USERS]]";
/// Events of each process of a crowd.
const EVENTS_OF_CROWD: u32 = 10;
/// How often threads change their CPU.
const MOVES: u32 = 200;
/// The most that a thing may take that another process has to do.
const PATIENCE: Duration = Duration::from_secs(10);

static LIFE: EventType<(Text, u32)> = EventType::new("processes:life", &["what", "pid"]);
static INTERRUPTED: EventType<(u32, u64)> = EventType::new("processes:interrupted", &["pid", "number"]);
static FORKED: EventType<(u32, u32)> = EventType::new("processes:forked_in_handler", &["pid", "number"]);
static CROWD: EventType<(u32, u32)> = EventType::new("processes:crowd", &["process", "number"]);
static LATE: EventType<(u64,)> = EventType::new("processes:late", &["number"]);
static ENDLESS: EventType<(u64, Text)> = EventType::new("processes:endless", &["number", "text"]);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("processes: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["fork"] => forks(),
        ["fork-in-handler"] => forks_in_handlers(),
        ["exec"] => exec(),
        ["executed"] => {
            live("executed");
            Ok(())
        }
        ["kill"] => kill(),
        ["migrate"] => migrate(),
        ["late-cpu", cpu] => late_cpu(number(cpu)?),
        ["crowd", processes] => crowd(number(processes)?, None),
        ["crowd", processes, uid, gid] => {
            crowd(number(processes)?, Some(Users { first: number(uid)?, count: 1, group: number(gid)? }))
        }
        ["crowd", processes, uid, gid, users] => {
            crowd(number(processes)?, Some(Users { first: number(uid)?, count: number(users)?, group: number(gid)? }))
        }
        _ => bail!("{USAGE}"),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().ok().with_context(|| format!("{text:?} is not a number that fits; {USAGE}"))
}

/// Whose processes a crowd's are: those of `count` users in turn, the first user's first.
#[derive(Clone, Copy)]
struct Users {
    first: u32,
    count: u32,
    group: u32,
}

impl Users {
    /// Whose process number `process` of `processes` is.
    fn of(self, process: u32, processes: u32) -> u32 {
        self.first + process * self.count / processes.max(1)
    }
}

fn live(what: &str) -> bool {
    LIFE.record((what, std::process::id()))
}

/// A parent, a child by `fork`, a child by the bare system call, and a child's child, each with its own rings.
fn forks() -> Result<()> {
    live("parent before");
    let child = fork(|| {
        live("child");
        let grandchild = fork(|| Ok(i32::from(!live("grandchild"))))?;
        Ok(i32::from(wait(grandchild)? != 0))
    })?;
    // SAFETY: the child records and ends; the C library does not know of it, which is what is tried.
    let bare = unsafe { libc::syscall(libc::SYS_fork) };
    if bare == 0 {
        let recorded = live("bare child");
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!recorded)) };
    }
    let ends = [wait(child)?, wait(i32::try_from(bare)?)?];
    live("parent after");
    ensure!(ends == [0, 0], "the children ended with {ends:?}");
    println!("processes: forked");
    Ok(())
}

/// Forks by handlers of signals; most come in the midst of a record.
const FORKS: u32 = 1000;
/// Time from arming the timer until such a signal, µs.
const FORK_AFTER: i64 = 20;

/// Children that handlers have forked, and those of them that did not end well.
static FORKED_IN_HANDLERS: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);
/// Set in such a child.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Forks, by the C library and by the bare system call in turn. The child records, some of them, and then returns into what
/// the handler has interrupted, which is a record of its parent's; from there it goes on to its end.
extern "C" fn fork_in_handler(_: libc::c_int) {
    let number = FORKED_IN_HANDLERS.load(Ordering::Relaxed);
    // SAFETY: a process of one thread forks; its child does what handlers may.
    let child =
        unsafe { if number.is_multiple_of(2) { i64::from(libc::fork()) } else { libc::syscall(libc::SYS_fork) } };
    if child == 0 {
        IS_CHILD.store(true, Ordering::Relaxed);
        if number.is_multiple_of(100) {
            FORKED.record((std::process::id(), number));
        }
        return;
    }
    let mut status = -1;
    // SAFETY: waits for a child of this process.
    let waited = unsafe { libc::waitpid(i32::try_from(child).unwrap_or(-1), &raw mut status, 0) };
    FAILED.fetch_add(u32::from(waited <= 0 || status != 0), Ordering::Relaxed);
    FORKED_IN_HANDLERS.store(number + 1, Ordering::Relaxed);
}

/// A process that does nothing but record while handlers fork: each of its records has to be there, once.
fn forks_in_handlers() -> Result<()> {
    let own = std::process::id();
    ensure!(tracer().connect(), "nothing is recorded: {:?}", tracer().error());
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let once = libc::itimerval { it_interval: never, it_value: libc::timeval { tv_usec: FORK_AFTER, ..never } };
    // SAFETY: the handler does what is tried here.
    unsafe { libc::signal(libc::SIGALRM, fork_in_handler as *const () as libc::sighandler_t) };
    let mut recorded = 0_u64;
    for fork in 0..FORKS {
        // SAFETY: the timer is this process's own, and children do not inherit it.
        let armed = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const once, std::ptr::null_mut()) };
        ensure!(armed == 0, "cannot arm a timer: {}", Error::last_os_error());
        while FORKED_IN_HANDLERS.load(Ordering::Relaxed) == fork {
            let was_recorded = INTERRUPTED.record((own, recorded));
            if IS_CHILD.load(Ordering::Relaxed) {
                // Behind the record that was interrupted.
                std::process::exit(0);
            }
            recorded += u64::from(was_recorded);
        }
    }
    let failed = FAILED.load(Ordering::Relaxed);
    println!("processes: {FORKS} forks in handlers, {failed} failed, {recorded} recorded");
    ensure!(failed == 0, "children ended badly");
    Ok(())
}

/// A process that records, and is another program afterwards.
fn exec() -> Result<()> {
    live("before exec");
    Err(Command::new(std::env::current_exe()?).arg("executed").exec()).context("cannot execute this program again")
}

/// A child that does nothing but record, killed in the middle of it.
fn kill() -> Result<()> {
    let child = fork(|| {
        for number in 0_u64.. {
            ENDLESS.record((number, "the quick brown fox jumps over the lazy dog"));
        }
        Ok(0)
    })?;
    thread::sleep(Duration::from_millis(300));
    // SAFETY: sends a signal to the child made above.
    unsafe { libc::kill(child, libc::SIGKILL) };
    let status = wait(child)?;
    ensure!(libc::WIFSIGNALED(status), "the child ended by itself");
    println!("processes: killed {child}");
    Ok(())
}

/// Threads that record while they are moved from CPU to CPU; each event is numbered, and none may be missing.
fn migrate() -> Result<()> {
    let cpus = thread::available_parallelism()?.get();
    let worker = |thread: u32| {
        let mut recorded = 0_u32;
        for step in 0..MOVES {
            let mut only = CpuSet::new();
            only.set((step as usize + thread as usize) % cpus);
            let _ = sched_setaffinity(None, &only);
            for _ in 0..5 {
                recorded += u32::from(event!("processes:moved", thread: u32 = thread, number: u32 = recorded));
            }
        }
        recorded
    };
    tracer().connect();
    let recorded: Vec<u32> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || worker(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0)).collect()
    });
    let (recorded, tracer) = (recorded.iter().sum::<u32>(), tracer());
    println!("processes: moved, {recorded} recorded, {} lost, restartable {}", tracer.lost(), tracer.is_restartable());
    Ok(())
}

/// Records on a CPU that comes online when this process has its rings already.
fn late_cpu(cpu: usize) -> Result<()> {
    ensure!(live("waits for a CPU"), "nothing is recorded: {:?}", tracer().error());
    println!("processes: waits for CPU {cpu}");
    let mut only = CpuSet::new();
    only.set(cpu);
    let began = Instant::now();
    while sched_setaffinity(None, &only).is_err() {
        ensure!(began.elapsed() < PATIENCE, "CPU {cpu} does not come");
        thread::sleep(Duration::from_millis(20));
    }
    let recorded = event!("processes:late_cpu", cpu: u32 = u32::try_from(cpu)?);
    println!("processes: on CPU {cpu}, recorded {recorded}, {} lost", tracer().lost());
    Ok(())
}

/// `processes` children that record at the same time, as another user if `user` says so. None of them may fail. The
/// last one goes on when the others are gone, until it has a slot.
fn crowd(processes: u32, users: Option<Users>) -> Result<()> {
    let (ready, signal_ready) = pipe()?;
    let (go_on, signal_to_go_on) = pipe()?;
    let member = |process: u32| -> Result<i32> {
        if let Some(users) = users {
            let (uid, gid) = (users.of(process, processes), users.group);
            // SAFETY: changes this child's user and nothing else.
            let changed = unsafe { libc::setgroups(1, &gid) == 0 && libc::setgid(gid) == 0 && libc::setuid(uid) == 0 };
            ensure!(changed, "cannot become user {uid}: {}", Error::last_os_error());
        }
        (0..EVENTS_OF_CROWD).for_each(|number| {
            CROWD.record((process, number));
        });
        // SAFETY: closes this child's own copy, and waits for the parent through the others.
        unsafe { libc::close(signal_to_go_on) };
        write_byte(signal_ready)?;
        wait_for_byte(go_on);
        if process + 1 == processes {
            // the others go now
            thread::sleep(Duration::from_millis(200));
            let began = Instant::now();
            let mut number = 0;
            while !LATE.record((number,)) && began.elapsed() < PATIENCE {
                number += 1;
                thread::sleep(Duration::from_millis(1));
            }
            println!("processes: the last one recorded after {number} attempts");
        }
        Ok(0)
    };
    let mut children = Vec::new();
    for process in 0..processes {
        children.push(fork(|| member(process))?);
        // one after the other, so that the last one is the last to ask for a slot
        wait_for_byte(ready);
    }
    // SAFETY: the children wait for the last writer of this pipe to close it.
    unsafe { libc::close(signal_to_go_on) };
    for child in children {
        let status = wait(child)?;
        ensure!(status == 0, "a process of the crowd ended with {status}");
    }
    println!("processes: a crowd of {processes}");
    Ok(())
}

fn pipe() -> Result<(i32, i32)> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two numbers.
    let made = unsafe { libc::pipe(ends.as_mut_ptr()) };
    ensure!(made == 0, "cannot make a pipe: {}", Error::last_os_error());
    Ok((ends[0], ends[1]))
}

fn write_byte(pipe: i32) -> Result<()> {
    // SAFETY: the kernel reads one byte.
    let written = unsafe { libc::write(pipe, [0_u8].as_ptr().cast(), 1) };
    ensure!(written == 1, "cannot write to a pipe: {}", Error::last_os_error());
    Ok(())
}

/// Waits for a byte, or for the last writer to be gone.
fn wait_for_byte(pipe: i32) {
    let mut byte = 0_u8;
    // SAFETY: the kernel writes one byte.
    unsafe { libc::read(pipe, (&raw mut byte).cast(), 1) };
}

/// A child that does `action` and ends with the status that it returns.
fn fork(action: impl FnOnce() -> Result<i32>) -> Result<i32> {
    // SAFETY: this program has one thread where it forks.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = action().unwrap_or_else(|error| {
            eprintln!("processes: {error:#}");
            1
        });
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    ensure!(child > 0, "cannot fork: {}", Error::last_os_error());
    Ok(child)
}

/// Waits for a child; how it ended, as `wait` says it.
fn wait(child: i32) -> Result<i32> {
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure!(waited == child, "cannot wait for {child}: {}", Error::last_os_error());
    Ok(status)
}
