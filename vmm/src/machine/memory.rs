//! Guest memory: RAM, and the shared slots behind it, as KVM memory slots.
#![allow(unsafe_code)] // KVM takes memory slots by address

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
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
        source: vm_memory::mmap::FromRangesError,
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

/// Maps `size` bytes of RAM, zeroed, around the hole below 4 GiB.
///
/// # Errors
/// The host refuses.
pub fn create(size: u64) -> Result<GuestMemoryMmap, MemoryError> {
    let ranges = layout::ram_ranges(size)
        .into_iter()
        .map(|range| Ok((GuestAddress(range.start), usize::try_from(range.size)?)))
        .collect::<Result<Vec<_>, std::num::TryFromIntError>>()
        .map_err(|_| MemoryError::Size { size })?;
    GuestMemoryMmap::from_ranges(&ranges).map_err(|source| MemoryError::Map { size, source })
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
}
