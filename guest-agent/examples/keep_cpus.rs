//! Keeps every CPU: a task on each that computes, and that no ordinary task of the system preempts, nor its work queues. Above
//! them one task makes system calls on each CPU in turn.
//!
//! `keep_cpus SECONDS`, as root, on a machine that nothing else is wanted of.
#![allow(unsafe_code)] // Priorities of the real-time scheduler.

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long real-time tasks may run of a period, microseconds; -1 for all of it.
const LIMIT: &str = "/proc/sys/kernel/sched_rt_runtime_us";
/// Of the tasks that keep the CPUs: below that of interrupts which are tasks, so that the console goes on.
const KEEPER: i32 = 10;
/// Of the task above them.
const CALLER: i32 = 60;
/// Between two rounds of system calls.
const PAUSE: Duration = Duration::from_millis(100);

static DONE: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    match seconds.context("usage: keep_cpus SECONDS").and_then(|seconds| keep(Duration::from_secs(seconds))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keep_cpus: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn keep(time: Duration) -> Result<()> {
    let cpus = thread::available_parallelism()?.get();
    let limit = fs::read_to_string(LIMIT).context(LIMIT)?;
    fs::write(LIMIT, "-1").context(LIMIT)?;
    set_priority(CALLER)?;
    thread::scope(|scope| {
        let keepers: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || compute_on(cpu))).collect();
        println!("keep_cpus: all {cpus} CPUs are kept");
        let called = call_on_each(cpus, time);
        DONE.store(true, Ordering::Relaxed);
        for keeper in keepers {
            keeper.join().map_err(|_| anyhow::anyhow!("a task that keeps a CPU has panicked"))??;
        }
        called
    })?;
    fs::write(LIMIT, limit.trim()).context(LIMIT)?;
    println!("keep_cpus: done");
    Ok(())
}

fn compute_on(cpu: usize) -> Result<()> {
    move_to(cpu)?;
    set_priority(KEEPER)?;
    while !DONE.load(Ordering::Relaxed) {
        black_box(cpu);
    }
    Ok(())
}

fn call_on_each(cpus: usize, time: Duration) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        for cpu in 0..cpus {
            move_to(cpu)?;
            for _ in 0..20 {
                let _ = rustix::process::getppid();
            }
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Keeps this thread on one CPU.
fn move_to(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).with_context(|| format!("cannot move to CPU {cpu}"))
}

/// Gives this thread a priority of the real-time scheduler's first-in-first-out policy.
fn set_priority(priority: i32) -> Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: reads the parameters, which live; changes nothing but how this thread is scheduled.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    ensure!(result == 0, "cannot get priority {priority}: {}", std::io::Error::last_os_error());
    Ok(())
}
