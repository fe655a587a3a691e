//! Parts of files, shared among the processes of a round.
#![allow(unsafe_code)] // Shared memory is raw addresses.

use anyhow::Context;
use memmap2::{MmapOptions, MmapRaw};
use rustix::mm::{Advice, madvise};
use shared_ring::host::memory::HostMemory;
use std::fs::OpenOptions;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// What a mapping of a file may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
}

/// The bytes `part` of the file `path`, whole pages. A child made by `fork` does not have those
/// that can be written, as in a guest.
///
/// # Errors
/// When the file cannot be mapped.
pub fn map(path: &Path, part: Range<usize>, access: Access) -> anyhow::Result<HostMemory> {
    let failed = || format!("cannot map {}", path.display());
    let writable = access == Access::Write;
    let file = OpenOptions::new().read(true).write(writable).open(path).with_context(failed)?;
    let mut options = MmapOptions::new();
    let options = options.offset(part.start as u64).len(part.len());
    let mapping: MmapRaw =
        if writable { options.map_raw(&file) } else { options.map_raw_read_only(&file) }.with_context(failed)?;
    if writable {
        // SAFETY: the range is the mapping just made; the advice changes what a child process gets.
        unsafe { madvise(mapping.as_mut_ptr().cast(), part.len(), Advice::LinuxDontFork) }?;
    }
    let base = mapping.as_mut_ptr();
    // SAFETY: the mapping is page-aligned, as long as the part, lives as long as its owner, and is accessed through
    // atomics only. One that is read only is not written: its users load.
    Ok(unsafe { HostMemory::new(base, part.len() / 8 * 8, Arc::new(mapping)) })
}
