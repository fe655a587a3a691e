//! Events of the guest around events of the VMM: on each CPU in turn, an event, a write to a port that no device has
//! (which leaves the guest and which the VMM records), and another event, all with one number.
//!
//! `exchange [N [SECONDS]]` does N of them on each CPU (default 5 000), and then goes on, one a millisecond, until
//! SECONDS have passed there (default 0). Needs root, for the port.
#![allow(unsafe_code)] // Ports are reached by instructions.

use anyhow::{Context, Result};
use guest_agent::{EventType, tracer};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};

/// A port without a device.
const PORT: u16 = 0x2e0;

static BEFORE: EventType<(u32, u32)> = EventType::new("exchange:before", &["number", "cpu"]);
static AFTER: EventType<(u32, u32)> = EventType::new("exchange:after", &["number", "cpu"]);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: u32| match arguments.next() {
        Some(text) => text.parse().with_context(|| format!("{text:?} is not a number")),
        None => Ok(default),
    };
    let (count, seconds) = (argument(5_000)?, argument(0)?);
    // SAFETY: the call takes numbers only.
    let allowed = unsafe { libc::ioperm(PORT.into(), 4, 1) };
    anyhow::ensure!(allowed == 0, "port {PORT:#x} may not be used: {}", std::io::Error::last_os_error());
    if let Some(error) = tracer().error() {
        println!("exchange: not traced: {error}");
    }
    let cpus = sched_getaffinity(None).context("cannot ask for the CPUs")?;
    let mut number = 0;
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu)) {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).context("cannot move to a CPU")?;
        let cpu = u32::try_from(cpu)?;
        let until = Instant::now() + Duration::from_secs(seconds.into());
        for _ in 0..count {
            exchange(number, cpu);
            number += 1;
        }
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            exchange(number, cpu);
            number += 1;
        }
    }
    println!("exchange: {number} done");
    Ok(())
}

fn exchange(number: u32, cpu: u32) {
    BEFORE.record((number, cpu));
    write_port(number);
    AFTER.record((number, cpu));
}

fn write_port(value: u32) {
    // SAFETY: the kernel allowed the port, and no device is there.
    unsafe { std::arch::asm!("out dx, eax", in("dx") PORT, in("eax") value, options(nomem, nostack, preserves_flags)) }
}
