//! The reading of an initrd, which may come out of a guest's disk, for the `/init` whose place the agent's program takes.

use std::io::Cursor;
use vmm::agent::initrd::{GuestInit, InitrdError, find_init_within};

/// Bytes of the largest initrd that is read, decompressed, and of what a decompressor may take.
const LARGEST: u64 = 16 << 20;

/// Runs an input.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let Ok(init) = init(data) else { return };
    assert!(init.content.len() as u64 <= LARGEST);
    assert!(matches!(init.mode & 0o170_000, 0o100_000 | 0o120_000), "{:o}", init.mode);
}

/// The `/init` of an input.
///
/// # Errors
/// Those of the reader.
pub fn init(data: &[u8]) -> Result<GuestInit, InitrdError> {
    find_init_within(Cursor::new(data), LARGEST)
}
