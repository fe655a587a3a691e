//! Reads of a disk, past the guest's cache.

use anyhow::{Context, Result, anyhow};
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::io::pread;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// A small read, bytes; direct reads are aligned to it.
const SMALL: usize = 4096;
/// Small reads of one thread in an operation.
const BATCH: u64 = 64;
/// Threads that make small reads, each waiting for its own.
const READERS: u64 = 4;
/// A large read, bytes.
const LARGE: usize = 1 << 20;

/// Times small reads at random places by several threads, and large ones in order.
pub fn read(device: &str) -> Result<()> {
    let disk = open(device, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).with_context(|| device.to_owned())?;
    let size = seek(&disk, SeekFrom::End(0)).with_context(|| format!("size of {device}"))?;
    anyhow::ensure!(size >= LARGE as u64, "{device} is smaller than {LARGE} bytes");
    let places = Places { next: AtomicU64::new(0), blocks: size / SMALL as u64 };
    super::time("disk-read-4k", "ns/read", || {
        thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(|| small_reads(&disk, &places))).collect();
            readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| anyhow!("a reader panicked"))?)
        })?;
        Ok(READERS * BATCH)
    })?;
    let mut buffer = Aligned::new(LARGE);
    let mut offset = 0;
    super::time("disk-read-1m", "ns/read", || {
        if offset + LARGE as u64 > size {
            offset = 0;
        }
        anyhow::ensure!(pread(&disk, buffer.bytes(), offset)? == LARGE, "a read ended early");
        offset += LARGE as u64;
        Ok(1)
    })
}

/// Blocks of a disk in an order that no read-ahead guesses; the same each time.
struct Places {
    next: AtomicU64,
    blocks: u64,
}

impl Places {
    /// The offset of the next one, bytes.
    fn next(&self) -> u64 {
        // Fibonacci hashing (Knuth, TAOCP volume 3, 6.4).
        let step = self.next.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        step % self.blocks * SMALL as u64
    }
}

fn small_reads(disk: &OwnedFd, places: &Places) -> Result<()> {
    let mut buffer = Aligned::new(SMALL);
    for _ in 0..BATCH {
        anyhow::ensure!(pread(disk, buffer.bytes(), places.next())? == SMALL, "a read ended early");
    }
    Ok(())
}

/// Bytes at an address that direct reads take.
struct Aligned {
    bytes: Vec<u8>,
    size: usize,
}

impl Aligned {
    fn new(size: usize) -> Self {
        Self { bytes: vec![0; size + SMALL], size }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.bytes.as_ptr().align_offset(SMALL);
        &mut self.bytes[start..start + self.size]
    }
}
