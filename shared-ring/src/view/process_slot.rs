//! A process slot: what its header says, and its state in the process table.

use super::{ViewError, halves, lies_in, rings, session_slot, to_usize};
use crate::layout::{
    ABI_VERSION, CLOCK_ENTRY_SIZE, CLOCK_OFFSET, MAGIC, MAX_VCPUS, PAGE_SIZE, PROCESS_ACTIVE, PROCESS_CLOSED,
    PROCESS_FREE, ProcessHeader, REGISTRY_HEADER_SIZE,
};
use crate::region::Rings;
use core::mem::offset_of;

/// A process slot as its process sees it, whose parts were found to lie inside the slot and the host's area.
/// For an example see [`RegionView`].
#[derive(Clone, Copy, Debug)]
pub struct ProcessSlotView {
    /// Number of rings, one per vCPU.
    pub vcpus: u32,
    /// Geometry and mode of the rings.
    pub rings: Rings,
    /// Offset in the host's area of the class mask that the process honours.
    pub class_mask: usize,
    registry_size: usize,
    rings_offset: usize,
    ring_stride: usize,
}

impl ProcessSlotView {
    /// Copies the header of a slot through `load`, which reads the word at an offset of the slot, and checks it against the
    /// sizes of the two mappings: that of the host's area and that of the slot, bytes. `load` is not called when the slot
    /// is too small for a header.
    ///
    /// # Errors
    /// When this is not a process slot, it has another major version, or its parts do not fit.
    pub fn read(load: impl Fn(usize) -> u64, host_area: usize, slot: usize) -> Result<Self, ViewError> {
        if slot < PAGE_SIZE || host_area < CLOCK_OFFSET {
            return Err(ViewError::TooSmall { size: slot.min(host_area) as u64 });
        }
        if load(offset_of!(ProcessHeader, magic)) != MAGIC {
            return Err(ViewError::NotARegion);
        }
        let (abi_version, vcpus) = halves(load(offset_of!(ProcessHeader, abi_version)));
        if abi_version >> 16 != ABI_VERSION >> 16 {
            return Err(ViewError::OtherVersion { found: abi_version });
        }
        let (sub_buffers, session) = halves(load(offset_of!(ProcessHeader, sub_buffers)));
        let (mode, _) = halves(load(offset_of!(ProcessHeader, mode)));
        let rings = rings(load(offset_of!(ProcessHeader, sub_buffer_size)), sub_buffers, mode)
            .ok_or(ViewError::Impossible { what: "geometry of process rings" })?;
        let registry_size = load(offset_of!(ProcessHeader, registry_size));
        let rings_offset = load(offset_of!(ProcessHeader, rings_offset));
        let ring_stride = load(offset_of!(ProcessHeader, ring_stride));
        let registry_fits = registry_size >= REGISTRY_HEADER_SIZE as u64
            && lies_in(PAGE_SIZE as u64, registry_size, PAGE_SIZE as u64, rings_offset);
        if vcpus == 0 || vcpus > MAX_VCPUS || !registry_fits {
            return Err(ViewError::Impossible { what: "process slot" });
        }
        let rings_fit = u64::from(vcpus)
            .checked_mul(ring_stride)
            .is_some_and(|size| lies_in(rings_offset, size, PAGE_SIZE as u64, slot as u64));
        let are_aligned = rings_offset % 8 == 0 && ring_stride % 8 == 0;
        if !rings_fit || !are_aligned || ring_stride < rings.ring_size() as u64 {
            return Err(ViewError::Outside { part: "process's rings" });
        }
        let class_mask = session_slot(session as usize).ok_or(ViewError::Impossible { what: "process's session" })?;
        if CLOCK_OFFSET + vcpus as usize * CLOCK_ENTRY_SIZE > host_area {
            return Err(ViewError::Outside { part: "clock entries" });
        }
        Ok(Self {
            vcpus,
            rings,
            class_mask,
            registry_size: to_usize(registry_size),
            rings_offset: to_usize(rings_offset),
            ring_stride: to_usize(ring_stride),
        })
    }

    /// Offset in the slot, and size, of the event registry.
    #[must_use]
    pub const fn registry(&self) -> (usize, usize) {
        (PAGE_SIZE, self.registry_size)
    }

    /// Offset in the slot of `vcpu`'s ring; `None` when there is no such vCPU.
    #[must_use]
    pub const fn ring(&self, vcpu: u32) -> Option<usize> {
        if vcpu < self.vcpus { Some(self.rings_offset + vcpu as usize * self.ring_stride) } else { None }
    }

    /// Offset in the host's area of `vcpu`'s clock entry; `None` when there is no such vCPU.
    #[must_use]
    pub const fn clock_entry(&self, vcpu: u32) -> Option<usize> {
        if vcpu < self.vcpus { Some(CLOCK_OFFSET + vcpu as usize * CLOCK_ENTRY_SIZE) } else { None }
    }
}

/// [`ProcessEntry::state`]: which use of a process slot this is, and how far it has come. By default never used.
///
/// ```
/// use shared_ring::layout::PROCESS_ACTIVE;
/// use shared_ring::view::ProcessState;
///
/// let state = ProcessState::from_word(3 << 32 | u64::from(PROCESS_ACTIVE));
/// assert_eq!(state.generation, 3);
/// assert!(state.is_active() && state.is_in_use());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// Number of the slot's use, counted by the guest.
    pub generation: u32,
    /// [`PROCESS_FREE`], [`PROCESS_ACTIVE`] or [`PROCESS_CLOSED`]; anything else where a guest says so.
    pub status: u32,
}

impl ProcessState {
    /// The state that `word` holds; every word is one.
    #[must_use]
    #[inline]
    pub const fn from_word(word: u64) -> Self {
        let (status, generation) = halves(word);
        Self { generation, status }
    }

    /// The state as it lies in memory.
    #[must_use]
    #[inline]
    pub const fn to_word(self) -> u64 {
        (self.generation as u64) << 32 | self.status as u64
    }

    /// Whether a process has the slot, or had it and the host has not given it back yet.
    #[must_use]
    #[inline]
    pub const fn is_in_use(self) -> bool {
        matches!(self.status, PROCESS_ACTIVE | PROCESS_CLOSED)
    }

    /// Whether the process may still record.
    #[must_use]
    #[inline]
    pub const fn is_active(self) -> bool {
        self.status == PROCESS_ACTIVE
    }

    /// The state in which the slot can be given away; `None` when it cannot. `acknowledged` is the host's word for the
    /// slot, loaded with acquire order: what the host did with the slot comes before the slot's next use.
    #[must_use]
    #[inline]
    pub fn next(self, acknowledged: impl FnOnce() -> u64) -> Option<Self> {
        let is_free = match self.status {
            PROCESS_FREE => true,
            PROCESS_CLOSED => acknowledged() == self.generation as u64,
            _ => false,
        };
        is_free.then_some(Self { generation: self.generation.wrapping_add(1), status: PROCESS_ACTIVE })
    }
}

#[cfg(test)]
mod tests {
    //! Shows: Superblocks and slots that leave the region are refused.

    use super::super::RegionView;
    use super::super::tests::{layout, process_rings, word};
    use super::*;
    use crate::layout::SESSION_TABLE_OFFSET;
    use zerocopy::IntoBytes;

    fn header(change: impl FnOnce(&mut ProcessHeader)) -> Result<ProcessSlotView, ViewError> {
        let mut header = RegionView::of(&layout()).process_header(&[0; MAX_VCPUS as usize]);
        change(&mut header);
        let load = |offset| word(header.as_bytes(), offset);
        ProcessSlotView::read(load, layout().guest_writable, layout().process_stride)
    }

    #[test]
    fn process_slot_is_seen_as_the_region_lays_it_out() {
        let layout = layout();

        let slot = header(|_| ()).unwrap();

        assert_eq!((slot.vcpus, slot.rings, slot.registry()), (2, process_rings(), (PAGE_SIZE, 4096)));
        assert_eq!((slot.ring(1), slot.ring(2)), (Some(layout.process_ring(0, 1) - layout.process_slot(0)), None));
        assert_eq!((slot.clock_entry(1), slot.clock_entry(2)), (Some(layout.clock_entry(1)), None));
        assert_eq!(slot.class_mask, SESSION_TABLE_OFFSET);
    }

    #[test]
    fn process_slot_that_leaves_its_mappings_is_refused() {
        let refused = |change: fn(&mut ProcessHeader)| header(change).map(|_| ()).unwrap_err();
        let outside = ViewError::Outside { part: "process's rings" };

        assert_eq!(refused(|header| header.magic = 0), ViewError::NotARegion);
        assert_eq!(refused(|header| header.abi_version = 9 << 16), ViewError::OtherVersion { found: 9 << 16 });
        assert_eq!(refused(|header| header.rings_offset += 8), outside);
        assert_eq!(refused(|header| header.ring_stride -= 8), outside);
        assert_eq!(refused(|header| header.ring_stride = u64::MAX - 7), outside);
        assert_eq!(refused(|header| header.session = 4), ViewError::Impossible { what: "process's session" });
        assert_eq!(refused(|header| header.registry_size = 8192), ViewError::Impossible { what: "process slot" });
        assert_eq!(refused(|header| header.vcpus = 257), ViewError::Impossible { what: "process slot" });
    }

    #[test]
    fn slot_can_be_given_away_when_free_or_drained() {
        let state = |generation, status| ProcessState { generation, status };

        assert_eq!(state(0, PROCESS_FREE).next(|| 9), Some(state(1, PROCESS_ACTIVE)));
        assert_eq!(state(3, PROCESS_CLOSED).next(|| 3), Some(state(4, PROCESS_ACTIVE)));
        assert_eq!(state(3, PROCESS_CLOSED).next(|| 2), None);
        assert_eq!(state(3, PROCESS_ACTIVE).next(|| 3), None);
        assert_eq!(ProcessState::from_word(state(3, PROCESS_CLOSED).to_word()), state(3, PROCESS_CLOSED));
    }
}
