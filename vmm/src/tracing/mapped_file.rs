//! Memory of this process that outlives it: a file, mapped.
#![allow(unsafe_code)] // The memory is the mapping's raw address.

use super::region::{RegionError, check_room};
use memmap2::MmapOptions;
use rustix::fs::ftruncate;
use shared_ring::host_memory::HostMemory;
use std::fs::File;
use std::sync::Arc;

/// `size` bytes of memory, zeroed, that lie in the empty file `file`. Only what is used takes space.
///
/// # Errors
/// When there is no room for them.
pub fn map(file: &File, size: usize) -> Result<HostMemory, RegionError> {
    let failed = |source| RegionError::Memory { size, source };
    check_room(file, size)?;
    ftruncate(file, size as u64).map_err(|errno| failed(errno.into()))?;
    let mapping = Arc::new(MmapOptions::new().len(size).map_raw(file).map_err(failed)?);
    let base = mapping.as_mut_ptr();
    // SAFETY: the mapping is page-aligned, `size` bytes long, lives as long as its owner, and is accessed only through
    // this view and its parts.
    Ok(unsafe { HostMemory::new(base, size, mapping) })
}
