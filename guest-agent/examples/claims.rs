//! How long processes wait for their slots of the trace region: maps this process's slot and gives it back, over and over,
//! alone and beside other processes that do the same.
//!
//! `claims SECONDS [OTHERS]...` has all slots claimed once, so that the host has given the guest their memory. Then it prints a
//! row of a table for each thing that was waited for, `SECONDS` long for each number of other processes:
//!
//! - `slot`: a slot was mapped, which the kernel clears first: a mebibyte for each vCPU;
//! - `refusal`: this process has as many slots as it gets, and asked for another: what it waits for are the others;
//! - `nothing`: it asked for what the device does not have: a refusal for which nobody waits, so that the rest is the machine;
//! - `no slot`: there was none that the host had read to its end;
//! - `return`: the slot was given back.
//!
//! Needs a guest that Strata traces and the right to use the device.
#![allow(unsafe_code)] // Maps the device, and forks.

use anyhow::{Context, Result, bail, ensure};
use guest_agent::DEVICE;
use hdrhistogram::Histogram;
use shared_ring::layout::{PAGE_SIZE, Superblock};
use std::fs::{self, File, OpenOptions};
use std::io::Error;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::ptr::{self, NonNull};
use std::thread;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: claims SECONDS [OTHERS]...";
/// How many slots there are.
const SLOTS: &str = "/sys/class/misc/strata/slots";
/// Slots that a process gets: `STRATA_SLOTS_PER_PROCESS` of the module.
const SLOTS_OF_PROCESS: usize = 4;
/// Offsets in the device.
const SLOT: i64 = 0;
const HOST_AREA: i64 = 1 << 32;
const NOTHING: i64 = 3 << 32;
/// Refusals for each slot: they are quick, and one of them is to come while another process keeps the lock.
const REFUSALS: u32 = 200;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("claims: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let numbers = arguments.iter().map(|text| text.parse::<u32>().with_context(|| format!("{text:?}: {USAGE}")));
    let numbers = numbers.collect::<Result<Vec<_>>>()?;
    let [seconds, others @ ..] = numbers.as_slice() else { bail!(USAGE) };
    let device = Device::open()?;
    claim_all(&device)?;
    // All but one, so that the one that is claimed and given back below is the last.
    for _ in 1..SLOTS_OF_PROCESS {
        device.keep_slot()?;
    }
    for &others in others {
        let children = (0..others).map(|_| fork_claimer(&device)).collect::<Result<Vec<_>>>()?;
        let waits = device.claim_for(Duration::from_secs(u64::from(*seconds)));
        for child in children {
            end(child)?;
        }
        waits?.print(others);
    }
    Ok(())
}

/// How long was waited for what, nanoseconds.
struct Waits {
    slot: Histogram<u64>,
    refusal: Histogram<u64>,
    nothing: Histogram<u64>,
    no_slot: Histogram<u64>,
    return_: Histogram<u64>,
}

impl Waits {
    fn new() -> Result<Self> {
        let histogram = || Histogram::new(3);
        Ok(Self {
            slot: histogram()?,
            refusal: histogram()?,
            nothing: histogram()?,
            no_slot: histogram()?,
            return_: histogram()?,
        })
    }

    fn print(&self, others: u32) {
        let rows = [
            ("slot", &self.slot),
            ("refusal", &self.refusal),
            ("nothing", &self.nothing),
            ("no slot", &self.no_slot),
            ("return", &self.return_),
        ];
        for (what, waits) in rows {
            let [median, high, worst] = [0.5, 0.99, 1.0].map(|part| waits.value_at_quantile(part) / 1000);
            println!("| {others} | {what} | {} | {median} | {high} | {worst} |", waits.len());
        }
    }
}

struct Device {
    file: File,
    /// Bytes of a slot.
    slot: usize,
}

impl Device {
    fn open() -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(DEVICE);
        let mut device = Self { file: file.with_context(|| format!("cannot open {DEVICE}"))?, slot: PAGE_SIZE };
        let superblock = device.map(HOST_AREA, libc::PROT_READ).context("cannot map the host's area")?;
        // SAFETY: the superblock lies in the page that was mapped, and only the host writes it, before a guest runs.
        let stride =
            unsafe { superblock.byte_add(offset_of!(Superblock, process_stride)).cast::<u64>().read_volatile() };
        device.unmap(superblock)?;
        device.slot = usize::try_from(stride)?;
        Ok(device)
    }

    fn map(&self, offset: i64, access: i32) -> Result<NonNull<u8>, Error> {
        let file = self.file.as_raw_fd();
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let at = unsafe { libc::mmap(ptr::null_mut(), self.slot, access, libc::MAP_SHARED, file, offset) };
        if at == libc::MAP_FAILED {
            Err(Error::last_os_error())
        } else {
            NonNull::new(at.cast()).ok_or_else(Error::last_os_error)
        }
    }

    fn map_slot(&self) -> Result<NonNull<u8>, Error> {
        self.map(SLOT, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps a slot that this process keeps, when the host has read one to its end.
    fn keep_slot(&self) -> Result<()> {
        loop {
            match self.map_slot() {
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => thread::sleep(Duration::from_millis(1)),
                kept => return kept.map(|_| ()).context("cannot keep a slot"),
            }
        }
    }

    fn unmap(&self, at: NonNull<u8>) -> Result<()> {
        // SAFETY: a mapping of this program's, which nobody uses any more.
        let unmapped = unsafe { libc::munmap(at.as_ptr().cast(), self.slot) };
        ensure!(unmapped == 0, "cannot unmap: {}", Error::last_os_error());
        Ok(())
    }

    /// Claims the slot and gives it back for so long.
    fn claim_for(&self, time: Duration) -> Result<Waits> {
        let mut waits = Waits::new()?;
        let began = Instant::now();
        while began.elapsed() < time {
            let claimed = timed(|| self.map_slot());
            match claimed.result {
                Ok(slot) => {
                    waits.slot.record(claimed.nanoseconds)?;
                    for _ in 0..REFUSALS {
                        let refused = timed(|| self.map_slot());
                        ensure!(errno(&refused.result) == Some(libc::EBUSY), "a process has got a slot too many");
                        waits.refusal.record(refused.nanoseconds)?;
                        let refused = timed(|| self.map(NOTHING, libc::PROT_READ));
                        ensure!(errno(&refused.result) == Some(libc::EINVAL), "the device has more than it should");
                        waits.nothing.record(refused.nanoseconds)?;
                    }
                    let returned = timed(|| self.unmap(slot));
                    returned.result?;
                    waits.return_.record(returned.nanoseconds)?;
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    waits.no_slot.record(claimed.nanoseconds)?;
                    // until the host has read one to its end
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error).context("cannot map the slot"),
            }
        }
        Ok(waits)
    }
}

fn errno<T>(result: &Result<T, Error>) -> Option<i32> {
    result.as_ref().err().and_then(Error::raw_os_error)
}

struct Timed<T> {
    result: T,
    nanoseconds: u64,
}

fn timed<T>(action: impl FnOnce() -> T) -> Timed<T> {
    let began = Instant::now();
    let result = action();
    Timed { result, nanoseconds: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX) }
}

/// Children that have all slots at the same time, and are gone then.
fn claim_all(device: &Device) -> Result<()> {
    let slots = fs::read_to_string(SLOTS).with_context(|| format!("cannot read {SLOTS}"))?.trim().parse::<u32>()?;
    let began = Instant::now();
    let children = (0..slots).map(|_| fork_owner(device)).collect::<Result<Vec<_>>>()?;
    for &child in &children {
        let mut status = 0;
        // SAFETY: waits for a child of this process, until it stops.
        let waited = unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) };
        ensure!(waited == child && libc::WIFSTOPPED(status), "a process has got no slot");
    }
    println!("claims: {slots} slots cleared for the first time in {} ms", began.elapsed().as_millis());
    children.into_iter().try_for_each(end)
}

/// A child that does `action` until it is killed; it ends when that fails.
fn fork_to(mut action: impl FnMut() -> Result<()>) -> Result<i32> {
    // SAFETY: this program has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        while action().is_ok() {}
        // SAFETY: ends the child.
        unsafe { libc::_exit(1) };
    }
    ensure!(child > 0, "cannot fork: {}", Error::last_os_error());
    Ok(child)
}

/// A child that has a slot and stops.
fn fork_owner(device: &Device) -> Result<i32> {
    fork_to(|| {
        device.map_slot()?;
        // SAFETY: stops this process.
        unsafe { libc::raise(libc::SIGSTOP) };
        Ok(())
    })
}

/// A child that claims and gives back.
fn fork_claimer(device: &Device) -> Result<i32> {
    fork_to(|| match device.map_slot() {
        Ok(slot) => device.unmap(slot),
        Err(_) => {
            thread::sleep(Duration::from_millis(1));
            Ok(())
        }
    })
}

fn end(child: i32) -> Result<()> {
    let mut status = 0;
    // SAFETY: ends a child of this process, and waits for it.
    let waited = unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, 0)
    };
    ensure!(waited == child && libc::WIFSIGNALED(status), "process {child} ended by itself");
    Ok(())
}
