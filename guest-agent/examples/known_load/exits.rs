//! Loads that leave the guest again and again for a known reason.

use super::{ns, pin, set_port_access, spin};
use anyhow::Result;
use std::arch::x86_64::__cpuid;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The guest's CPU on which this happens.
const CPU: usize = 1;
/// The first serial port's data register.
const SERIAL_PORT: u16 = 0x3f8;
/// Bytes of a line that is written there.
const LINE: u32 = 64;
/// Who computes and finds that so much time has passed at once was stopped.
const STANDSTILL: Duration = Duration::from_millis(500);
/// Size of a page, bytes.
const PAGE: usize = 4096;

/// Asks for the processor's features, which each time is an exit that KVM handles.
pub fn cpuid(count: u64) -> Result<()> {
    pin(None, CPU)?;
    let begin = Instant::now();
    for _ in 0..count {
        black_box(__cpuid(0));
    }
    println!("known: cpuid pid={} count={count} total_ns={}", std::process::id(), ns(begin.elapsed()));
    Ok(())
}

/// Touches memory that neither the guest nor the host has used before: the host has to find pages for it.
pub fn fresh_memory(mib: usize) -> Result<()> {
    pin(None, CPU)?;
    let begin = Instant::now();
    let mut memory = vec![0_u8; mib << 20];
    memory.iter_mut().step_by(PAGE).for_each(|byte| *black_box(byte) = 1);
    println!("known: fresh_memory pid={} total_ns={}", std::process::id(), ns(begin.elapsed()));
    Ok(())
}

/// Writes bytes to the serial port: exits that the VMM handles.
pub fn port(count: u32) -> Result<()> {
    pin(None, CPU)?;
    set_port_access(SERIAL_PORT)?;
    let begin = Instant::now();
    for number in 1..=count {
        out(if number % LINE == 0 { b'\n' } else { b'.' });
    }
    println!("known: port pid={} count={count} total_ns={}", std::process::id(), ns(begin.elapsed()));
    Ok(())
}

/// Computes for `time`, and tells of how much of that it noticed nothing: the machine stood still.
pub fn standstill(time: Duration) -> Result<()> {
    pin(None, CPU)?;
    println!("begins: standstill");
    let begin = Instant::now();
    let (mut last, mut missed) = (begin, Duration::ZERO);
    while last - begin < time {
        spin(1000);
        let now = Instant::now();
        missed += if now - last > STANDSTILL { now - last } else { Duration::ZERO };
        last = now;
    }
    println!("known: standstill pid={} missed_ns={}", std::process::id(), ns(missed));
    Ok(())
}

/// Writes a byte to the serial port.
#[allow(unsafe_code, reason = "no library writes to ports")]
fn out(byte: u8) {
    // SAFETY: the kernel has allowed it; the port puts out a byte, and touches no memory.
    unsafe { std::arch::asm!("out dx, al", in("dx") SERIAL_PORT, in("al") byte, options(nomem, nostack)) };
}
