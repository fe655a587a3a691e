//! Memory that outlives this process: a file, mapped. Every page that is used is reserved first: a page that cannot be had
//! when it is touched ends the process (SIGBUS), and a guest touches them when it likes. Where somebody else may cut the file
//! short, that is [taken care of](super::cut_file).
#![allow(unsafe_code)] // The memory is the mapping's raw address.

use crate::persistent_memory;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs, ftruncate};
use rustix::io::retry_on_intr;
use rustix::mm::{Advice, madvise};
use shared_ring::host::memory::HostMemory;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

/// Why memory that outlives this process cannot be had.
#[derive(Debug, Error)]
pub enum MappedFileError {
    /// The file system has no room for it.
    #[error(
        "{size} bytes for rings do not fit the {free} bytes left where the trace region lies: use smaller rings \
         (--sub-buffer-size, --sub-buffers) or fewer --process-slots, or set STRATA_RUNTIME_DIR to a private folder with \
         more room"
    )]
    NoRoom {
        /// Bytes that are needed.
        size: usize,
        /// Bytes left.
        free: u64,
    },
    /// The file system sets nothing aside.
    #[error(
        "the file system where the trace region lies sets no room aside (it has no fallocate), so that {size} bytes for \
         rings can run out while they are used: put it on tmpfs (set STRATA_RUNTIME_DIR to a private folder there, such \
         as /dev/shm/NAME, or create the region there)"
    )]
    NotSetAside {
        /// Bytes that are needed.
        size: usize,
    },
    /// The kernel refused the memory.
    #[error("cannot allocate {size} bytes for rings")]
    Refused {
        /// Bytes that are needed.
        size: usize,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// `size` bytes of memory, zeroed and reserved, that lie in the empty file `file`.
///
/// # Errors
/// When there is no room for them.
pub fn map(file: &File, size: usize) -> Result<HostMemory, MappedFileError> {
    let failed = |source| MappedFileError::Refused { size, source };
    check_room(file, size)?;
    let mapping = Arc::new(map_all(file, size).map_err(failed)?);
    reserve(file, 0..size).map_err(|source| no_room(file, size, source))?;
    persistent_memory::prepare(file, 0..size as u64).map_err(failed)?;
    Ok(memory_of(mapping, size))
}

/// The first `size` bytes of `mapping`, a multiple of 8, as memory that others may write.
pub(crate) fn memory_of(mapping: Arc<MmapRaw>, size: usize) -> HostMemory {
    assert!(size <= mapping.len(), "the memory lies inside its mapping");
    let base = mapping.as_mut_ptr();
    // SAFETY: the mapping is page-aligned, at least `size` bytes long, lives as long as its owner, and is accessed only
    // through such views and their parts.
    unsafe { HostMemory::new(base, size, mapping) }
}

/// The empty file `file`, made `size` bytes long and mapped. Nothing of it is reserved yet. It does not go into core dumps:
/// they would hold what the guest recorded.
pub(crate) fn map_all(file: &File, size: usize) -> io::Result<MmapRaw> {
    ftruncate(file, size as u64)?;
    map_existing(file, size)
}

/// The first `size` bytes of `file`, mapped in the same way.
pub(crate) fn map_existing(file: &File, size: usize) -> io::Result<MmapRaw> {
    let mapping = MmapOptions::new().len(size).map_raw(file)?;
    // SAFETY: the range is the mapping just made; the advice changes what is dumped, not what it holds.
    unsafe { madvise(mapping.as_mut_ptr().cast(), size, Advice::LinuxDontDump) }?;
    // SAFETY: as above; the advice changes what a child process gets.
    unsafe { madvise(mapping.as_mut_ptr().cast(), size, Advice::LinuxDontFork) }?;
    Ok(mapping)
}

/// Has the file system set aside the bytes `part` of `file`.
///
/// # Errors
/// When they do not fit, or the file system sets nothing aside: somebody else's files could take the room then, and a
/// page that is touched end this process.
pub(crate) fn reserve(file: &File, part: Range<usize>) -> io::Result<()> {
    // tmpfs gives up, and takes back what it has, when a signal comes.
    Ok(retry_on_intr(|| fallocate(file, FallocateFlags::empty(), part.start as u64, part.len() as u64))?)
}

/// Gives the bytes `part` of `file` back to the file system; they read as zero from then on. Where it cannot do that, they
/// stay reserved.
pub(crate) fn give_back(file: &File, part: Range<usize>) {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = fallocate(file, punch, part.start as u64, part.len() as u64);
}

/// Why `size` bytes of `file` cannot be had: there is less room, or what the system said.
pub(crate) fn no_room(file: &File, size: usize, source: io::Error) -> MappedFileError {
    match source.kind() {
        io::ErrorKind::StorageFull => MappedFileError::NoRoom { size, free: free(file).unwrap_or(0) },
        io::ErrorKind::Unsupported => MappedFileError::NotSetAside { size },
        _ => MappedFileError::Refused { size, source },
    }
}

/// Checks that `size` bytes fit the file system of `file`, if that knows a limit.
pub(crate) fn check_room(file: &File, size: usize) -> Result<(), MappedFileError> {
    match free(file) {
        Some(free) if free < size as u64 => Err(MappedFileError::NoRoom { size, free }),
        _ => Ok(()),
    }
}

/// Bytes left in the file system of `file`; `None` when it has no limit, or does not tell.
fn free(file: &File) -> Option<u64> {
    let space = fstatvfs(file).ok().filter(|space| space.f_blocks > 0)?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use strata_machine::test_guest::mapping_flags;

    #[test]
    fn memory_is_reserved_and_goes_into_no_core_dump_and_to_no_child() {
        let file = tempfile::tempfile().unwrap();

        let memory = map(&file, 1 << 20).unwrap();

        let flags = mapping_flags(memory.base().addr());
        assert!(["dd", "dc"].iter().all(|flag| flags.iter().any(|set| set == flag)), "{flags:?}");
        assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20);
    }

    #[test]
    fn memory_that_does_not_fit_is_refused_with_what_is_left() {
        let file = tempfile::tempfile().unwrap();

        let refused = map(&file, usize::MAX / 4).unwrap_err();

        assert!(matches!(refused, MappedFileError::NoRoom { size, free } if free < size as u64), "{refused}");
    }
}
