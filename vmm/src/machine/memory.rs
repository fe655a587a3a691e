//! Guest memory: RAM, and the shared slots behind it, as KVM memory slots.
#![allow(unsafe_code)] // KVM takes memory slots by address

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use vm_memory::mmap::{FromRangesError, MmapRegionError};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion};
use vmm_sys_util::errno;

use super::config::SharedSlot;
use super::layout::{self, Range};

/// Why guest memory cannot be created.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the variant means")]
pub enum MemoryError {
    #[error("cannot map {size} bytes of guest memory")]
    Map {
        size: u64,
        #[source]
        source: FromRangesError,
    },
    #[error("{size} bytes of guest memory are more than this host can address")]
    Size { size: u64 },
    #[error("guest memory at {address:#x} has no host address")]
    HostAddress {
        address: u64,
        #[source]
        source: vm_memory::GuestMemoryError,
    },
    #[error("KVM refused the memory slot of {size:#x} bytes at {address:#x}")]
    Slot {
        address: u64,
        size: u64,
        #[source]
        source: errno::Error,
    },
}

/// Size of a huge page, bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Maps `size` bytes of RAM, zeroed, around the hole below 4 GiB, where the host can back it with huge pages.
///
/// # Errors
/// The host refuses.
pub fn create(size: u64) -> Result<GuestMemoryMmap, MemoryError> {
    let map_error = |source: FromRangesError| MemoryError::Map { size, source };
    let region = |range: Range| {
        let bytes = usize::try_from(range.size).map_err(|_| MemoryError::Size { size })?;
        let mapping = aligned(bytes).map_err(|source| map_error(source.into()))?;
        let region = GuestRegionMmap::new(mapping, GuestAddress(range.start));
        region.ok_or_else(|| map_error(FromRangesError::InvalidGuestRegion))
    };
    let regions = layout::ram_ranges(size).into_iter().map(region).collect::<Result<Vec<_>, _>>()?;
    GuestMemoryMmap::from_regions(regions).map_err(|source| map_error(source.into()))
}

/// Anonymous memory that begins at a multiple of [`HUGE_PAGE`] if that can be had: KVM maps a huge page only where host
/// and guest address agree in their low bits. It is a condition, not a promise: the host decides what backs the memory.
fn aligned(bytes: usize) -> Result<MmapRegion, MmapRegionError> {
    let first = MmapRegion::new(bytes)?;
    let excess = first.as_ptr().addr() % HUGE_PAGE;
    let mapping = if excess == 0 {
        first
    } else {
        // Linux places mappings downwards: behind one that takes up the excess, the next begins at the boundary.
        drop(first);
        let filler = MmapRegion::<()>::new(excess)?;
        let second = MmapRegion::new(bytes)?;
        drop(filler);
        second
    };
    // SAFETY: the range is the mapping just made; the advice changes how its pages are found, not what they hold. A
    // kernel without huge pages refuses, and nothing is lost.
    let _ = unsafe { rustix::mm::madvise(mapping.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    Ok(mapping)
}

/// Gives RAM and shared slots to the virtual machine. Both must outlive it.
///
/// # Errors
/// KVM refuses a slot.
pub fn register(
    vm: &VmFd,
    memory: &GuestMemoryMmap,
    slots: &[SharedSlot],
    region: Option<Range>,
) -> Result<(), MemoryError> {
    let mut number = 0;
    for ram in memory.iter() {
        let address = ram.start_addr();
        let host = memory
            .get_host_address(address)
            .map_err(|source| MemoryError::HostAddress { address: address.0, source })?;
        set_slot(vm, number, Range { start: address.0, size: ram.len() }, host, 0)?;
        number += 1;
    }
    let mut address = region.map_or(0, |region| region.start);
    for slot in slots {
        let host = slot.mapping.as_mut_ptr().wrapping_add(slot.offset);
        let flags = if slot.read_only { KVM_MEM_READONLY } else { 0 };
        let size = slot.size as u64;
        set_slot(vm, number, Range { start: address, size }, host, flags)?;
        number += 1;
        address += size;
    }
    Ok(())
}

fn set_slot(vm: &VmFd, slot: u32, range: Range, host: *mut u8, flags: u32) -> Result<(), MemoryError> {
    let region = kvm_userspace_memory_region {
        slot,
        flags,
        guest_phys_addr: range.start,
        memory_size: range.size,
        userspace_addr: host as u64,
    };
    // SAFETY: the range is mapped: RAM by vm-memory, shared slots by their mapping, inside which the checked
    // configuration has them. `Machine` keeps both until no vCPU can run any more. Nothing else in this
    // process uses the memory through references: RAM only by vm-memory's volatile accesses, shared slots by
    // raw pointers.
    unsafe { vm.set_user_memory_region(region) }.map_err(|source| MemoryError::Slot {
        address: range.start,
        size: range.size,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::Bytes;

    #[test]
    fn memory_is_zeroed_and_has_its_size() {
        let memory = create(1 << 20).unwrap();
        let last: u8 = memory.read_obj(GuestAddress((1 << 20) - 1)).unwrap();
        assert_eq!((last, memory.last_addr().0), (0, (1 << 20) - 1));
    }

    #[test]
    fn memory_beyond_the_hole_starts_at_four_gib() {
        let memory = create(layout::HOLE_START + 4096).unwrap();
        let addresses = [layout::HOLE_START, layout::HOLE_END].map(GuestAddress);
        assert_eq!(addresses.map(|address| memory.address_in_range(address)), [false, true]);
    }

    #[test]
    fn ram_begins_where_huge_pages_can_back_it() {
        // An odd mapping in between moves the next one off the boundary.
        let _odd = MmapRegion::<()>::new(4096).unwrap();

        let memory = create(16 << 20).unwrap();

        let begin = memory.get_host_address(GuestAddress(0)).unwrap();
        assert_eq!(begin.addr() % HUGE_PAGE, 0);
    }
}
