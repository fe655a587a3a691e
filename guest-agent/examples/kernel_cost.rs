//! What two kernel paths cost, for comparing tracers: a system call that does nothing (`getppid`), and a round trip of
//! two tasks on one CPU over a pair of pipes.
//!
//! `kernel_cost [ROUNDS]` measures each path that many times (default 7), in turns, and says at its end for each turn
//! what one operation took: `kernel_cost: getppid 105.2 ns`, `kernel_cost: ping-pong 2210.0 ns`.

use anyhow::{Context, Result};
use rustix::io::{read, write};
use rustix::pipe::pipe;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::hint::black_box;
use std::thread;
use std::time::Instant;

/// System calls in a turn.
const CALLS: u32 = 20_000;
/// Round trips in a turn.
const ROUND_TRIPS: u32 = 4_000;
const DEFAULT_ROUNDS: usize = 7;

fn main() -> Result<()> {
    let rounds = match std::env::args().nth(1) {
        Some(text) => text.parse().with_context(|| format!("{text:?} is not a number of rounds"))?,
        None => DEFAULT_ROUNDS,
    };
    // tracers' daemons may have the others
    let mut first_cpu = CpuSet::new();
    first_cpu.set(0);
    sched_setaffinity(None, &first_cpu).context("cannot move to CPU 0")?;
    // the first turn only warms up
    let turns = (0..=rounds).map(|_| Ok((system_calls(), ping_pong()?))).collect::<Result<Vec<_>>>()?;
    for (getppid, ping_pong) in turns.into_iter().skip(1) {
        println!("kernel_cost: getppid {getppid:.1} ns");
        println!("kernel_cost: ping-pong {ping_pong:.1} ns");
    }
    Ok(())
}

/// Nanoseconds of a call of `getppid`.
fn system_calls() -> f64 {
    let began = Instant::now();
    for _ in 0..CALLS {
        black_box(rustix::process::getppid());
    }
    per_operation(began, CALLS)
}

/// Nanoseconds of a byte's way to the other task and back. Threads inherit the CPU.
fn ping_pong() -> Result<f64> {
    let (there_read, there_write) = pipe().context("cannot make a pipe")?;
    let (back_read, back_write) = pipe().context("cannot make a pipe")?;
    let partner = thread::spawn(move || -> Result<()> {
        let mut byte = [0];
        // ends with the other side's pipe
        while read(&there_read, &mut byte)? == 1 {
            write(&back_write, &byte)?;
        }
        Ok(())
    });
    let began = Instant::now();
    for _ in 0..ROUND_TRIPS {
        let mut byte = [0];
        write(&there_write, &byte)?;
        read(&back_read, &mut byte)?;
    }
    let took = per_operation(began, ROUND_TRIPS);
    drop(there_write);
    partner.join().map_err(|_| anyhow::anyhow!("the partner panicked"))??;
    Ok(took)
}

#[allow(clippy::cast_precision_loss, reason = "a turn lasts less than 2^53 ns")]
fn per_operation(began: Instant, operations: u32) -> f64 {
    began.elapsed().as_nanos() as f64 / f64::from(operations)
}
