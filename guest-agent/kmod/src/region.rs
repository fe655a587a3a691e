//! The trace region as the guest kernel sees it: checked once, then described to the rest of the module.
#![allow(unsafe_code)] // The region is memory of the host: raw pointers.

use crate::catalog::Descriptors;
use core::mem::offset_of;
use shared_ring::layout::{
    ABI_VERSION, AgentState, CLOCK_ENTRY_SIZE, CLOCK_OFFSET, Geometry, MAGIC, MAX_PROCESS_SLOTS, MAX_VCPUS, Mode,
    PAGE_SIZE, ProcessEntry, ProcessHeader, REGISTRY_HEADER_SIZE, REGISTRY_USED, SESSION_SLOT_SIZE, SESSION_SLOTS,
    SESSION_TABLE_OFFSET, SessionSlot, Superblock,
};
use shared_ring::region::Rings;
use shared_ring::registry::{MAX_ENTRY, Registry};
use shared_ring::storage::{Smp, Storage};

/// Why a region cannot be used. The C shim says so in words; formatting code has no place in the kernel object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// The bytes do not begin with a region's magic number.
    NotARegion,
    /// The host's layout has another major version.
    OtherVersion,
    /// Offsets and sizes contradict each other or the size of the mapping.
    BadLayout,
    /// An agent with other events has used the region's registry.
    OtherAgent,
    /// The event registry is too small for the catalogue.
    RegistryFull,
    /// The region has no ring for this vCPU.
    NoSuchVcpu,
    /// The host has not written this vCPU's clock entry.
    NoClock,
}

impl RegionError {
    /// The negative Linux error number that stands for it.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotARegion => -19,   // ENODEV
            Self::OtherVersion => -93, // EPROTONOSUPPORT
            Self::BadLayout => -22,    // EINVAL
            Self::OtherAgent => -17,   // EEXIST
            Self::RegistryFull => -28, // ENOSPC
            Self::NoSuchVcpu => -34,   // ERANGE
            Self::NoClock => -61,      // ENODATA
        }
    }
}

/// A region whose layout was checked.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    base: *mut u8,
    superblock: Superblock,
    process_rings: Rings,
}

/// A session whose rings were found to lie inside the region.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Number of this use of the session's slot, not zero.
    pub generation: u64,
    /// Geometry and mode of the rings.
    pub rings: Rings,
    offset: u64,
    stride: u64,
}

impl Region {
    /// The region at `base`, `size` bytes of which are mapped.
    ///
    /// # Errors
    /// When it is not a region, has another major version, or its parts do not fit their places.
    ///
    /// # Safety
    /// `base` is page-aligned, and `size` bytes there (at least a page) stay mapped while the region and what is made
    /// from it are used: readable, and writable from the superblock's `guest_writable_offset` on.
    pub unsafe fn open(base: *mut u8, size: u64) -> Result<Self, RegionError> {
        if size < CLOCK_OFFSET as u64 {
            return Err(RegionError::BadLayout);
        }
        // SAFETY: the first page is mapped; the host may be writing its state words, hence the volatile copy.
        let superblock = unsafe { base.cast::<Superblock>().read_volatile() };
        if superblock.magic != MAGIC {
            return Err(RegionError::NotARegion);
        }
        if superblock.abi_version >> 16 != ABI_VERSION >> 16 {
            return Err(RegionError::OtherVersion);
        }
        Self::check(base, size, &superblock).ok_or(RegionError::BadLayout)
    }

    fn check(base: *mut u8, size: u64, superblock: &Superblock) -> Option<Self> {
        let process_rings = Rings {
            geometry: Geometry::new(superblock.process_sub_buffer_size, superblock.process_sub_buffers)?,
            mode: Mode::from_code(superblock.process_mode)?,
        };
        let vcpus = u64::from(superblock.vcpus);
        let slots = u64::from(superblock.process_slots);
        let writable = superblock.guest_writable_offset;
        let end = superblock.region_size;
        let process_used = (PAGE_SIZE as u64)
            .checked_add(superblock.process_registry_size)?
            .checked_add(vcpus * process_rings.ring_size() as u64)?;
        let pages = [
            end,
            writable,
            superblock.agent_offset,
            superblock.process_table_offset,
            superblock.registry_offset,
            superblock.process_pool_offset,
            superblock.process_stride,
            superblock.process_registry_size,
        ];
        let fits = vcpus >= 1
            && vcpus <= u64::from(MAX_VCPUS)
            && slots <= u64::from(MAX_PROCESS_SLOTS)
            && end <= size
            && pages.iter().all(|value| value.is_multiple_of(PAGE_SIZE as u64))
            && lies_in(CLOCK_OFFSET as u64, vcpus * CLOCK_ENTRY_SIZE as u64, 0, writable)
            && superblock.process_ack_offset.is_multiple_of(8)
            && lies_in(superblock.process_ack_offset, slots * 8, 0, writable)
            && lies_in(superblock.agent_offset, size_of::<AgentState>() as u64, writable, end)
            && lies_in(superblock.process_table_offset, slots * size_of::<ProcessEntry>() as u64, writable, end)
            && superblock.registry_size >= REGISTRY_HEADER_SIZE as u64
            && lies_in(superblock.registry_offset, superblock.registry_size, writable, end)
            && superblock.process_registry_size >= REGISTRY_HEADER_SIZE as u64
            && superblock.process_stride >= process_used
            && lies_in(superblock.process_pool_offset, slots.checked_mul(superblock.process_stride)?, writable, end);
        fits.then_some(Self { base, superblock: *superblock, process_rings })
    }

    /// What the host says about the region.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The session in `slot`; `None` when the slot is not in use, or its rings do not lie inside the region.
    #[must_use]
    pub fn session(&self, slot: usize) -> Option<Session> {
        if slot >= SESSION_SLOTS {
            return None;
        }
        let at = SESSION_TABLE_OFFSET + slot * SESSION_SLOT_SIZE;
        let table = self.storage_at(at as u64);
        // SAFETY: the session table lies inside the region (checked by `open`); a volatile copy takes the host's words as
        // they are.
        let (before, head, after) = unsafe {
            let before = table.load_acquire(offset_of!(SessionSlot, generation));
            let head = self.at(at as u64).cast::<SessionHead>().read_volatile();
            (before, head, table.load_acquire(offset_of!(SessionSlot, generation)))
        };
        // The host is about to change what it changes only between generations.
        if before == 0 || before != after {
            return None;
        }
        let rings = Rings {
            geometry: Geometry::new(head.sub_buffer_size, head.sub_buffers)?,
            mode: Mode::from_code(head.mode)?,
        };
        let size = u64::from(self.superblock.vcpus).checked_mul(head.ring_stride)?;
        let fits = head.rings_offset.is_multiple_of(PAGE_SIZE as u64)
            && head.ring_stride.is_multiple_of(PAGE_SIZE as u64)
            && head.ring_stride >= rings.ring_size() as u64
            && lies_in(head.rings_offset, size, self.superblock.guest_writable_offset, self.superblock.region_size);
        fits.then_some(Session { generation: before, rings, offset: head.rings_offset, stride: head.ring_stride })
    }

    /// `vcpu`'s clock entry.
    ///
    /// # Errors
    /// When the region has no such vCPU.
    pub fn clock_entry(&self, vcpu: u32) -> Result<*const u8, RegionError> {
        self.known(vcpu)?;
        Ok(self.at((CLOCK_OFFSET + vcpu as usize * CLOCK_ENTRY_SIZE) as u64).cast_const())
    }

    /// `vcpu`'s ring of `session`; `None` when the region has no such vCPU.
    #[must_use]
    pub fn kernel_ring(&self, session: &Session, vcpu: u32) -> Option<*mut u8> {
        let known = vcpu < self.superblock.vcpus;
        known.then(|| self.at(session.offset + u64::from(vcpu) * session.stride))
    }

    const fn known(&self, vcpu: u32) -> Result<(), RegionError> {
        if vcpu < self.superblock.vcpus { Ok(()) } else { Err(RegionError::NoSuchVcpu) }
    }

    /// Writes the events of `catalogue` to the kernel's event registry, or finds that an agent with the same ones has done
    /// so.
    ///
    /// # Errors
    /// When another catalogue is there already, or this one does not fit.
    pub fn publish_catalogue(&self, catalogue: Descriptors<'_>) -> Result<(), RegionError> {
        let storage = self.storage_at(self.superblock.registry_offset);
        let mut entry = [0_u8; MAX_ENTRY];
        // SAFETY: the registry's header lies inside the region (checked by `open`).
        if unsafe { storage.load_acquire(REGISTRY_USED) } != 0 {
            return self.compare_catalogue(catalogue, &mut entry);
        }
        // SAFETY: the registry lies inside the region (checked by `open`); one agent is loaded at a time.
        let registry = unsafe { Registry::new(storage, offset(self.superblock.registry_size)) };
        for index in 0..catalogue.len() {
            let appended = catalogue
                .encode(index, &mut entry)
                .and_then(|size| entry.get(..size))
                .is_some_and(|bytes| registry.append_encoded(bytes));
            if !appended {
                return Err(RegionError::RegistryFull);
            }
        }
        Ok(())
    }

    fn compare_catalogue(&self, catalogue: Descriptors<'_>, entry: &mut [u8; MAX_ENTRY]) -> Result<(), RegionError> {
        let mut at = self.superblock.registry_offset + REGISTRY_HEADER_SIZE as u64;
        let end = self.superblock.registry_offset + self.superblock.registry_size;
        for index in 0..catalogue.len() {
            let bytes = catalogue.encode(index, entry).and_then(|size| entry.get(..size));
            let bytes = bytes.ok_or(RegionError::OtherAgent)?;
            if at + bytes.len() as u64 > end {
                return Err(RegionError::OtherAgent);
            }
            for &byte in bytes {
                // SAFETY: inside the registry (checked just above), hence inside the region.
                if unsafe { self.at(at).read_volatile() } != byte {
                    return Err(RegionError::OtherAgent);
                }
                at += 1;
            }
        }
        Ok(())
    }

    /// Tells the host that the agent of kernel `release` (cut to the field) is alive. After this the host reads the
    /// rings.
    pub fn announce(&self, release: &[u8], state: u64) {
        let agent = self.storage_at(self.superblock.agent_offset);
        let mut name = [0_u8; 64];
        // The last byte stays NUL.
        for (to, from) in name.iter_mut().take(63).zip(release) {
            *to = *from;
        }
        // SAFETY: the agent's state lies inside the region (checked by `open`) and is written by the agent only.
        unsafe {
            agent.store(offset_of!(AgentState, abi_version), u64::from(ABI_VERSION));
            agent.write(offset_of!(AgentState, kernel_release), &name);
            agent.store_release(offset_of!(AgentState, state), state);
        }
    }

    /// Tells the host another state without touching the rest.
    pub fn set_state(&self, state: u64) {
        // SAFETY: as in `announce`.
        unsafe {
            self.storage_at(self.superblock.agent_offset).store_release(offset_of!(AgentState, state), state);
        }
    }

    /// The header of a process slot, for the given map from the kernel's CPU numbers to vCPUs.
    #[must_use]
    pub fn process_header(&self, vcpu_of_cpu: &[u16; MAX_VCPUS as usize]) -> ProcessHeader {
        ProcessHeader {
            magic: MAGIC,
            abi_version: ABI_VERSION,
            vcpus: self.superblock.vcpus,
            registry_size: self.superblock.process_registry_size,
            rings_offset: PAGE_SIZE as u64 + self.superblock.process_registry_size,
            ring_stride: self.process_rings.ring_size() as u64,
            sub_buffer_size: self.process_rings.geometry.sub_buffer_size(),
            sub_buffers: self.process_rings.geometry.sub_buffers(),
            session: 0,
            host_area_size: self.superblock.guest_writable_offset,
            mode: self.process_rings.mode.code(),
            reserved: 0,
            vcpu_of_cpu: *vcpu_of_cpu,
        }
    }

    /// The address of `offset`, which the caller has found to lie inside the region.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        self.base.wrapping_add(self::offset(offset))
    }

    /// Word access to the part of the region at `offset`, a multiple of 8 found to lie inside the region.
    pub(crate) fn storage_at(&self, offset: u64) -> Smp {
        // SAFETY: the region is page-aligned and outlives what is made from it (contract of `open`).
        unsafe { Smp::new(self.at(offset)) }
    }
}

/// The settings of a [`SessionSlot`], without its event bitmap.
#[repr(C)]
#[derive(Clone, Copy)]
struct SessionHead {
    class_mask: u64,
    mode: u32,
    sub_buffers: u32,
    sub_buffer_size: u64,
    rings_offset: u64,
    ring_stride: u64,
}

const _: () = {
    assert!(offset_of!(SessionHead, sub_buffers) == offset_of!(SessionSlot, sub_buffers));
    assert!(offset_of!(SessionHead, sub_buffer_size) == offset_of!(SessionSlot, sub_buffer_size));
    assert!(offset_of!(SessionHead, rings_offset) == offset_of!(SessionSlot, rings_offset));
    assert!(offset_of!(SessionHead, ring_stride) == offset_of!(SessionSlot, ring_stride));
};

/// Whether `size` bytes at `offset` lie inside `from..to`.
const fn lies_in(offset: u64, size: u64, from: u64, to: u64) -> bool {
    match offset.checked_add(size) {
        Some(end) => offset >= from && end <= to,
        None => false,
    }
}

#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
pub(crate) const fn offset(value: u64) -> usize {
    value as usize
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::catalog::tests::descriptors;
    use clock_sync::entry::Writer;
    use clock_sync::relation::Relation;
    use shared_ring::host_memory::HostMemory;
    use shared_ring::layout::{AGENT_ALIVE, AGENT_GONE, SUPERBLOCK};
    use shared_ring::region::{RegionConfig, RegionLayout};
    use shared_ring::registry::parse;
    use std::sync::Arc;
    use std::vec::Vec;

    /// Generation of the session in slot 0.
    pub(crate) const FIRST: u64 = 1;

    /// Page-aligned memory laid out as a host lays out a region, for two vCPUs and two process slots, with a session in
    /// slot 0 and room for one in slot 2.
    pub(crate) fn host_region() -> (HostMemory, RegionLayout) {
        let rings = |sub_buffers, mode| Rings { geometry: Geometry::new(4096, sub_buffers).unwrap(), mode };
        let layout = RegionLayout::new(RegionConfig {
            vcpus: 2,
            sessions: [Some(rings(4, Mode::Discard)), None, Some(rings(4, Mode::FlightRecorder)), None],
            process_rings: rings(2, Mode::FlightRecorder),
            process_slots: 2,
            registry_size: 16384,
            process_registry_size: 4096,
        })
        .unwrap();
        let pages: Arc<Vec<Page>> = Arc::new((0..layout.size / PAGE_SIZE).map(|_| Page([0; PAGE_SIZE])).collect());
        let base = pages.as_ptr().cast_mut().cast();
        // SAFETY: the pages live as long as the memory and are used through it, and through raw pointers, only.
        let memory = unsafe { HostMemory::new(base, layout.size, pages) };
        let superblock = Superblock { host_alive: 1, ..layout.superblock([1; 16], 1_000_000_000) };
        let session = layout.session(0, [0; 32], FIRST, layout.config.sessions[0].unwrap()).unwrap();
        // SAFETY: both structures lie in the memory's first pages; nobody else uses it yet.
        unsafe {
            base.cast::<Superblock>().write(superblock);
            base.add(SESSION_TABLE_OFFSET).cast::<SessionSlot>().write(session);
            for vcpu in 0..2 {
                Writer::new(base.add(layout.clock_entry(vcpu))).publish(&Relation::IDENTITY);
            }
        }
        (memory, layout)
    }

    #[repr(align(4096))]
    struct Page(#[allow(dead_code, reason = "only its bytes matter")] [u8; PAGE_SIZE]);

    fn open(memory: &HostMemory) -> Result<Region, RegionError> {
        // SAFETY: the memory is page-aligned, live, and as large as it says.
        unsafe { Region::open(memory.base(), memory.size() as u64) }
    }

    #[test]
    fn region_laid_out_by_a_host_is_accepted() {
        let (memory, layout) = host_region();

        let region = open(&memory).unwrap();
        let session = region.session(0).unwrap();

        assert_eq!(region.kernel_ring(&session, 1).unwrap(), memory.base().wrapping_add(layout.kernel_ring(0, 1)));
        assert_eq!(region.kernel_ring(&session, 2), None);
        assert!((1..9).all(|slot| region.session(slot).is_none()));
    }

    #[test]
    fn session_whose_rings_leave_the_region_is_no_session() {
        let (memory, layout) = host_region();
        let region = open(&memory).unwrap();

        memory.store(layout.session_slot(0) + offset_of!(SessionSlot, rings_offset), layout.size as u64);

        assert!(region.session(0).is_none());
    }

    #[test]
    fn memory_without_the_magic_number_is_no_region() {
        let (memory, _) = host_region();
        memory.store(0, 1);

        assert_eq!(open(&memory).unwrap_err(), RegionError::NotARegion);
    }

    #[test]
    fn other_major_version_is_refused() {
        let (memory, _) = host_region();
        memory.store(8, u64::from(ABI_VERSION + (1 << 16)) | 2 << 32);

        assert_eq!(open(&memory).unwrap_err(), RegionError::OtherVersion);
    }

    #[test]
    fn every_offset_that_leaves_the_region_is_refused() {
        let offsets = SUPERBLOCK.fields.iter().filter(|(name, _)| name.ends_with("_offset") || *name == "region_size");

        let refused: Vec<_> = offsets
            .map(|(_, at)| {
                let (memory, layout) = host_region();
                memory.store(*at, layout.size as u64 + PAGE_SIZE as u64);
                open(&memory).map(|_| ())
            })
            .collect();

        assert_eq!(refused.len(), 7);
        assert!(refused.iter().all(|result| *result == Err(RegionError::BadLayout)));
    }

    #[test]
    fn region_larger_than_its_mapping_is_refused() {
        let (memory, layout) = host_region();

        // SAFETY: the memory is live and larger than claimed here.
        let result = unsafe { Region::open(memory.base(), layout.size as u64 - 1) };

        assert_eq!(result.unwrap_err(), RegionError::BadLayout);
    }

    #[test]
    fn catalogue_is_published_once_and_found_again() {
        let (memory, layout) = host_region();
        let region = open(&memory).unwrap();

        let first = region.publish_catalogue(descriptors());
        let used = usize::try_from(memory.load(layout.registry)).unwrap();
        let second = region.publish_catalogue(descriptors());
        let mut bytes = std::vec![0; used];
        memory.read(layout.registry + REGISTRY_HEADER_SIZE, &mut bytes);
        let mut events = Vec::new();
        parse(&bytes, &mut events).unwrap();

        assert_eq!((first, second), (Ok(()), Ok(())));
        assert_eq!(memory.load(layout.registry), used as u64);
        assert_eq!(events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>(), ["test:first", "test:second"]);
    }

    #[test]
    fn registry_of_another_agent_is_left_alone() {
        let (memory, layout) = host_region();
        let region = open(&memory).unwrap();
        region.publish_catalogue(descriptors()).unwrap();
        let first = layout.registry + REGISTRY_HEADER_SIZE;
        memory.store(first, memory.load(first) ^ 1 << 40);

        assert_eq!(region.publish_catalogue(descriptors()), Err(RegionError::OtherAgent));
    }

    #[test]
    fn agent_states_follow_one_another() {
        let (memory, layout) = host_region();
        let region = open(&memory).unwrap();

        region.announce(b"6.1.0-test", AGENT_ALIVE);
        let alive = memory.load(layout.agent);
        region.set_state(AGENT_GONE);
        let mut release = [0; 10];
        memory.read(layout.agent + offset_of!(AgentState, kernel_release), &mut release);

        assert_eq!((alive, memory.load(layout.agent)), (AGENT_ALIVE, AGENT_GONE));
        assert_eq!(&release, b"6.1.0-test");
    }
}
