//! Loads whose cost is known, for tests that compare it with what reports make of their traces.
//!
//! Each load prints a line `known: NAME KEY=VALUE...` with what it knows of itself.

mod exits;
mod waits;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, WaitOptions};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use waits::Hold;

const USAGE: &str = "usage: known_load compute CPU SECONDS | hog CPU SECONDS PERCENT | pin THREAD CPU | \
                     convoy THREADS ROUNDS MILLISECONDS | reads FILE COUNT | syscalls | contained MILLISECONDS | \
                     held NAME sleeping|computing MILLISECONDS | chain FILE COUNT | request MILLISECONDS | \
                     inversion MILLISECONDS | competition MILLISECONDS | sleeps NAME CPU MILLISECONDS COUNT | \
                     child MILLISECONDS | cpuid COUNT | fresh-memory MEBIBYTES | port BYTES | \
                     standstill MILLISECONDS | renames COUNT | bursts CPU COUNT MILLISECONDS THREAD";
/// Within each of these the hog computes for its share, then sleeps.
const PERIOD: Duration = Duration::from_millis(50);
/// Size and alignment of a direct read, bytes.
const BLOCK: usize = 4096;
/// System calls of the mix, by name and number of calls. None is made by the program for any other reason.
const MIX: [(&str, u32); 4] = [("getppid", 5000), ("getpriority", 700), ("statfs", 300), ("getegid", 40)];
/// The same of i386's table, by their numbers there.
const MIX_I386: [(&str, u32, u32); 2] = [("getpid", 20, 900), ("getuid32", 199, 60)];

/// What the threads of a convoy want.
static CONVOY: Mutex<u64> = Mutex::new(0);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("known_load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    match words {
        ["compute", cpu, seconds] => compute(number(cpu)?, Duration::from_secs(number(seconds)?)),
        ["hog", cpu, seconds, percent] => hog(number(cpu)?, Duration::from_secs(number(seconds)?), number(percent)?),
        ["pin", thread, cpu] => pin(Some(number(thread)?), number(cpu)?),
        ["convoy", threads, rounds, ms] => {
            convoy(number(threads)?, number(rounds)?, Duration::from_millis(number(ms)?));
            Ok(())
        }
        ["reads", file, count] => reads(file, number(count)?),
        ["syscalls"] => syscalls(),
        ["contained", ms] => contained(ms),
        ["burn", ms] => burn(Duration::from_millis(number(ms)?)),
        ["held", name, "sleeping", ms] => waits::held(name, Hold::Sleeping, Duration::from_millis(number(ms)?)),
        ["held", name, "computing", ms] => waits::held(name, Hold::Computing, Duration::from_millis(number(ms)?)),
        ["chain", file, count] => waits::chain(file, number(count)?),
        ["request", ms] => waits::request(Duration::from_millis(number(ms)?)),
        ["inversion", ms] => waits::inversion(Duration::from_millis(number(ms)?)),
        ["competition", ms] => waits::competition(Duration::from_millis(number(ms)?)),
        ["sleeps", name, cpu, ms, count] => {
            waits::sleeps(name, number(cpu)?, Duration::from_millis(number(ms)?), number(count)?)
        }
        ["child", ms] => waits::child(ms),
        ["cpuid", count] => exits::cpuid(number(count)?),
        ["fresh-memory", mib] => exits::fresh_memory(number(mib)?),
        ["port", count] => exits::port(number(count)?),
        ["standstill", ms] => exits::standstill(Duration::from_millis(number(ms)?)),
        ["renames", count] => renames(number(count)?),
        ["bursts", cpu, count, ms, thread] => {
            bursts(number(cpu)?, number(count)?, Duration::from_millis(number(ms)?), number(thread)?)
        }
        _ => bail!("{USAGE}"),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().ok().with_context(|| format!("{text:?} is not a number that fits; {USAGE}"))
}

/// Keeps a thread, or this one, on one CPU.
fn pin(thread: Option<i32>, cpu: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(thread.and_then(Pid::from_raw), &cpus).with_context(|| format!("cannot move to CPU {cpu}"))
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn spin(iterations: u64) {
    for iteration in 0..iterations {
        black_box(iteration);
    }
}

/// Whole nanoseconds of `time`.
fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Computes until `time` has passed.
fn compute_for(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        spin(10_000);
    }
}

/// Computes until it has used `time` of the CPU: how much it was.
fn burn_for(time: Duration) -> Duration {
    let begin = cpu_time();
    while cpu_time() - begin < time {
        spin(10_000);
    }
    cpu_time() - begin
}

/// Has the kernel schedule this thread by `policy` (`SCHED_*`), with that one's lowest priority.
#[allow(unsafe_code, reason = "no library makes this call")]
fn set_policy(policy: i32) -> Result<()> {
    let priority = i32::from(policy == libc::SCHED_FIFO);
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: changes this thread's policy; the parameters are read only.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    ensure!(result == 0, "cannot change the scheduling policy: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Lets this thread read and write `port` by itself.
#[allow(unsafe_code, reason = "no library makes this call")]
fn set_port_access(port: u16) -> Result<()> {
    // SAFETY: allows port accesses; each is unsafe by itself.
    let result = unsafe { libc::ioperm(port.into(), 1, 1) };
    ensure!(result == 0, "cannot use port {port:#x}: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Computes on `cpu` for `time`, `count` times, and as long in between not: before all tasks that are not real-time. It
/// begins when `thread`, which is kept on that CPU, too, sleeps: that thread is woken late then, and never interrupted.
fn bursts(cpu: usize, count: u32, time: Duration, thread: i32) -> Result<()> {
    pin(None, cpu)?;
    set_policy(libc::SCHED_FIFO)?;
    let mut computed = Duration::ZERO;
    for _ in 0..count {
        while !is_asleep(thread)? {
            thread::sleep(Duration::from_millis(1));
        }
        let begin = Instant::now();
        compute_for(time);
        computed += begin.elapsed();
        thread::sleep(time);
    }
    println!("known: bursts pid={} computed_ns={}", std::process::id(), ns(computed));
    Ok(())
}

/// Whether `thread` of any process is asleep, by its state in `/proc`.
fn is_asleep(thread: i32) -> Result<bool> {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).context("no such thread")?;
    // the name before the state may hold anything, parentheses too
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    Ok(state == Some('S'))
}

/// Computes on `cpu` for a time, as one task that is always ready.
fn compute(cpu: usize, time: Duration) -> Result<()> {
    pin(None, cpu)?;
    println!("known: compute pid={} begins", std::process::id());
    compute_for(time);
    println!("known: compute pid={} ends", std::process::id());
    Ok(())
}

/// Computes on `cpu` for a share of the time. How much it did is what the scheduler says, from when it came there.
fn hog(cpu: usize, time: Duration, percent: u32) -> Result<()> {
    pin(None, cpu)?;
    let (begin, elsewhere) = (Instant::now(), cpu_time());
    while begin.elapsed() < time {
        let (period, used) = (Instant::now(), cpu_time());
        while cpu_time() - used < PERIOD * percent / 100 {
            spin(1000);
        }
        thread::sleep(PERIOD.saturating_sub(period.elapsed()));
    }
    println!("known: hog pid={} cpu_ns={}", std::process::id(), (cpu_time() - elsewhere).as_nanos());
    Ok(())
}

/// Has threads hold the same lock in turn, each for a time.
fn convoy(threads: usize, rounds: u32, hold: Duration) {
    let waited = AtomicU64::new(0);
    let begin = Barrier::new(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                begin.wait();
                for _ in 0..rounds {
                    let requested = Instant::now();
                    let mut count = CONVOY.lock().unwrap_or_else(PoisonError::into_inner);
                    let wait = u64::try_from(requested.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    waited.fetch_add(wait, Ordering::Relaxed);
                    *count += 1;
                    thread::sleep(hold);
                }
            });
        }
    });
    let address = &raw const CONVOY;
    println!(
        "known: convoy pid={} address={} size={} locks={} waited_ns={}",
        std::process::id(),
        address.addr(),
        size_of_val(&CONVOY),
        threads * usize::try_from(rounds).unwrap_or(0),
        waited.load(Ordering::Relaxed),
    );
}

/// A buffer that direct reads accept.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

/// Reads blocks of a file past the page cache, one after the other: how long that took, and how long it waited.
fn read_blocks(path: &str, count: u64) -> Result<[Duration; 2]> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())
        .with_context(|| format!("cannot open {path}"))?;
    let file = File::from(file);
    let mut block = Box::new(Aligned([0; BLOCK]));
    let (begin, used) = (Instant::now(), cpu_time());
    for index in 0..count {
        file.read_exact_at(&mut block.0, index * BLOCK as u64).with_context(|| format!("cannot read {path}"))?;
    }
    let took = begin.elapsed();
    Ok([took, took.saturating_sub(cpu_time() - used)])
}

fn reads(path: &str, count: u64) -> Result<()> {
    let [took, waited] = read_blocks(path, count)?;
    println!("known: reads pid={} count={count} total_ns={} waited_ns={}", std::process::id(), ns(took), ns(waited));
    Ok(())
}

/// Has a child burn processor time as the first process of a pid namespace.
fn contained(ms: &str) -> Result<()> {
    new_pid_namespace().context("cannot make a pid namespace")?;
    let status = Command::new(std::env::current_exe()?).args(["burn", ms]).status()?;
    ensure!(status.success(), "the child ended with {status}");
    Ok(())
}

/// The next children of this process are in a pid namespace of their own.
#[allow(unsafe_code, reason = "no library makes this call without more")]
fn new_pid_namespace() -> std::io::Result<()> {
    // SAFETY: changes what pids children get, and nothing of this process.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Uses processor time, and says what this process is called here and in the initial pid namespace, whose /proc it sees.
fn burn(time: Duration) -> Result<()> {
    while cpu_time() < time {
        spin(10_000);
    }
    let pid = std::fs::read_link("/proc/self")?;
    let namespace = std::fs::read_link("/proc/self/ns/pid")?;
    let namespace = namespace.to_string_lossy().replace(|character: char| !character.is_ascii_digit(), "");
    println!(
        "known: burn pid={} own={} namespace={namespace} cpu_ns={}",
        pid.display(),
        std::process::id(),
        cpu_time().as_nanos()
    );
    Ok(())
}

/// Has `count` children, one after the other, give themselves a name of their own, `r` and their process id.
fn renames(count: u32) -> Result<()> {
    for _ in 0..count {
        let child = fork()?;
        let Some(child) = child else {
            let name = std::ffi::CString::new(format!("r{}", std::process::id()))?;
            let is_named = rustix::thread::set_name(&name).is_ok();
            std::process::exit(i32::from(!is_named));
        };
        let status = rustix::process::waitpid(Some(child), WaitOptions::empty())?;
        ensure!(status.is_some_and(|(_, status)| status.exit_status() == Some(0)), "a child took no name");
    }
    println!("known: renames pid={} count={count}", std::process::id());
    Ok(())
}

/// The child, in its parent.
#[allow(unsafe_code, reason = "no library makes this call")]
fn fork() -> Result<Option<Pid>> {
    // SAFETY: this process has one thread, so that no lock stays held in the child.
    let child = unsafe { libc::fork() };
    ensure!(child >= 0, "cannot fork: {}", std::io::Error::last_os_error());
    Ok(Pid::from_raw(child))
}

/// Makes the system calls of the mix, and no others of these names.
fn syscalls() -> Result<()> {
    for (name, calls) in MIX {
        for _ in 0..calls {
            match name {
                "getppid" => drop(rustix::process::getppid()),
                "getpriority" => drop(rustix::process::getpriority_process(None)),
                "statfs" => drop(rustix::fs::statfs("/").context("cannot look at the root file system")?),
                _ => drop(rustix::process::getegid()),
            }
        }
    }
    for (_, number, calls) in MIX_I386 {
        (0..calls).for_each(|_| call_i386(number));
    }
    let own = MIX.iter().map(|(name, calls)| format!("{name}={calls}"));
    let i386 = MIX_I386.iter().map(|(name, _, calls)| format!("i386:{name}={calls}"));
    println!("known: syscalls pid={} {}", std::process::id(), own.chain(i386).collect::<Vec<_>>().join(" "));
    Ok(())
}

/// Makes system call `number` of i386's table, one that takes no arguments and changes nothing, as 32-bit programs do.
#[allow(unsafe_code, reason = "no library makes calls of another ABI")]
fn call_i386(number: u32) {
    // SAFETY: the kernel changes rax, and r8 to r11, which 32-bit programs have not; such a call touches no memory.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inout("rax") u64::from(number) => _,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
            options(nostack),
        );
    }
}
