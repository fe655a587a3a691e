//! What a region says about itself, checked: superblock, session slots and process slots.
//!
//! Whoever did not lay a region out knows it through these views only: the guest's kernel, a process in the guest, and the
//! host that reads what a dead one has left. Each view is made in the same way. The words are copied once, by a `load` that
//! the caller brings; the copy is checked against what the caller knows by itself (the size of its mapping); from then on
//! only the copy is used. A view hands out offsets, and every offset that it hands out lies inside the region.
//!
//! Nothing here panics, allocates or formats: the kernel module is built from it.

use crate::layout::{
    ABI_VERSION, AgentState, CLOCK_ENTRY_SIZE, CLOCK_OFFSET, Geometry, MAGIC, MAX_PROCESS_SLOTS, MAX_VCPUS, Mode,
    PAGE_SIZE, ProcessEntry, ProcessHeader, REGISTRY_HEADER_SIZE, SESSION_SLOT_SIZE, SESSION_SLOTS,
    SESSION_TABLE_OFFSET, SessionSlot, Superblock,
};
use crate::region::{RegionLayout, Rings};
use core::mem::offset_of;

mod process_slot;

pub use process_slot::{ProcessSlotView, ProcessState};

/// Why words are not what they should describe.
/// For an example see [`RegionView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "std", derive(thiserror::Error))]
#[non_exhaustive]
pub enum ViewError {
    /// There are fewer bytes than a superblock and a session table take.
    #[cfg_attr(
        feature = "std",
        error("{size} bytes are too few for a trace region: the file is cut, or is something else")
    )]
    TooSmall {
        /// Number of bytes.
        size: u64,
    },
    /// There are fewer bytes than the superblock says.
    #[cfg_attr(feature = "std", error("the trace region is cut: {size} of its {wanted} bytes are here"))]
    Cut {
        /// Number of bytes.
        size: u64,
        /// Number of bytes that the superblock names.
        wanted: u64,
    },
    /// The bytes do not begin with the magic number.
    #[cfg_attr(
        feature = "std",
        error("this is not a trace region or a process slot: it does not begin with the magic number")
    )]
    NotARegion,
    /// The layout has another major version.
    #[cfg_attr(
        feature = "std",
        error(
            "the trace region has version {}.{}, this program reads {}.x: use programs of the same version on both sides",
            .found >> 16, .found & 0xffff, ABI_VERSION >> 16
        )
    )]
    OtherVersion {
        /// `major << 16 | minor`.
        found: u32,
    },
    /// A part does not lie where such parts lie.
    #[cfg_attr(feature = "std", error("the trace region is damaged: its {part} does not lie inside it"))]
    Outside {
        /// The part.
        part: &'static str,
    },
    /// A count or a size is outside the limits of the layout.
    #[cfg_attr(feature = "std", error("the trace region is damaged: its {what} is impossible"))]
    Impossible {
        /// What it is that cannot be.
        what: &'static str,
    },
}

/// A superblock that was checked, and with it where everything lies.
///
/// ```
/// use shared_ring::view::{RegionView, ViewError};
///
/// // Bytes that are not a region.
/// assert_eq!(RegionView::read(|_offset| 0, 1 << 20).unwrap_err(), ViewError::NotARegion);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RegionView {
    superblock: Superblock,
    process_rings: Rings,
}

impl RegionView {
    /// Copies the superblock through `load`, which reads the word at an offset of the region, and checks it against
    /// `size`, the number of bytes that the caller knows to be there. `load` is not called when they are too few.
    ///
    /// # Errors
    /// When this is not a region, it has another major version, or its parts do not fit their places.
    pub fn read(load: impl Fn(usize) -> u64, size: u64) -> Result<Self, ViewError> {
        if size < CLOCK_OFFSET as u64 {
            return Err(ViewError::TooSmall { size });
        }
        Self::check(superblock(load), size)
    }

    /// The view of the one who laid the region out, who needs to check nothing.
    #[must_use]
    pub const fn of(layout: &RegionLayout) -> Self {
        Self { superblock: layout.superblock([0; 16], 0), process_rings: layout.config.process_rings }
    }

    fn check(superblock: Superblock, size: u64) -> Result<Self, ViewError> {
        if superblock.magic != MAGIC {
            return Err(ViewError::NotARegion);
        }
        if superblock.abi_version >> 16 != ABI_VERSION >> 16 {
            return Err(ViewError::OtherVersion { found: superblock.abi_version });
        }
        if superblock.vcpus == 0 || superblock.vcpus > MAX_VCPUS {
            return Err(ViewError::Impossible { what: "number of vCPUs" });
        }
        if superblock.process_slots > MAX_PROCESS_SLOTS {
            return Err(ViewError::Impossible { what: "number of process slots" });
        }
        let process_rings =
            rings(superblock.process_sub_buffer_size, superblock.process_sub_buffers, superblock.process_mode)
                .ok_or(ViewError::Impossible { what: "geometry of process rings" })?;
        let view = Self { superblock, process_rings };
        view.check_process_slots()?;
        if superblock.region_size > size {
            return Err(ViewError::Cut { size, wanted: superblock.region_size });
        }
        view.check_parts()?;
        Ok(view)
    }

    fn check_process_slots(&self) -> Result<(), ViewError> {
        let Superblock { registry_size, process_registry_size, process_stride, .. } = self.superblock;
        let used = u64::from(self.superblock.vcpus)
            .checked_mul(self.process_rings.ring_size() as u64)
            .and_then(|rings| rings.checked_add(process_registry_size))
            .and_then(|size| size.checked_add(PAGE_SIZE as u64));
        let fits = registry_size >= REGISTRY_HEADER_SIZE as u64
            && registry_size % 8 == 0
            && process_registry_size >= REGISTRY_HEADER_SIZE as u64
            && is_page(process_registry_size)
            && is_page(process_stride)
            && used.is_some_and(|used| used <= process_stride);
        if fits { Ok(()) } else { Err(ViewError::Impossible { what: "size of a registry or a process slot" }) }
    }

    fn check_parts(&self) -> Result<(), ViewError> {
        let superblock = &self.superblock;
        let (vcpus, slots) = (u64::from(superblock.vcpus), u64::from(superblock.process_slots));
        let (writable, end) = (superblock.guest_writable_offset, superblock.region_size);
        let pool = slots.checked_mul(superblock.process_stride);
        if !is_page(end) || !is_page(writable) {
            return Err(ViewError::Impossible { what: "size" });
        }
        let inside = |part, offset, size, from, to| {
            if is_page(offset) && lies_in(offset, size, from, to) { Ok(()) } else { Err(ViewError::Outside { part }) }
        };
        inside("host's area", 0, CLOCK_OFFSET as u64, 0, writable)?;
        inside("clock entries", CLOCK_OFFSET as u64, vcpus * CLOCK_ENTRY_SIZE as u64, 0, writable)?;
        inside("process acknowledgements", superblock.process_ack_offset, slots * 8, 0, writable)?;
        inside("agent state", superblock.agent_offset, size_of::<AgentState>() as u64, writable, end)?;
        let table = slots * size_of::<ProcessEntry>() as u64;
        inside("process table", superblock.process_table_offset, table, writable, end)?;
        inside("event registry", superblock.registry_offset, superblock.registry_size, writable, end)?;
        let pool = pool.ok_or(ViewError::Outside { part: "process pool" })?;
        inside("process pool", superblock.process_pool_offset, pool, writable, end)
    }

    /// The superblock as it was copied.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Number of vCPUs, which is that of the rings in every set.
    #[must_use]
    pub const fn vcpus(&self) -> u32 {
        self.superblock.vcpus
    }

    /// Number of process slots.
    #[must_use]
    pub const fn process_slots(&self) -> u32 {
        self.superblock.process_slots
    }

    /// Geometry and mode of the rings of process slots.
    #[must_use]
    pub const fn process_rings(&self) -> Rings {
        self.process_rings
    }

    /// Bytes that only the host writes, from the region's beginning.
    #[must_use]
    pub const fn host_area_size(&self) -> usize {
        to_usize(self.superblock.guest_writable_offset)
    }

    /// Offset of the agent's state.
    #[must_use]
    pub const fn agent(&self) -> usize {
        to_usize(self.superblock.agent_offset)
    }

    /// Offset and size of the kernel's event registry.
    #[must_use]
    pub const fn registry(&self) -> (usize, usize) {
        (to_usize(self.superblock.registry_offset), to_usize(self.superblock.registry_size))
    }

    /// Offset of `vcpu`'s clock entry; `None` when there is no such vCPU.
    #[must_use]
    pub const fn clock_entry(&self, vcpu: u32) -> Option<usize> {
        if vcpu < self.superblock.vcpus { Some(CLOCK_OFFSET + vcpu as usize * CLOCK_ENTRY_SIZE) } else { None }
    }

    /// Offset of the table entry of process slot `slot`; `None` when there is no such slot.
    #[must_use]
    pub const fn process_entry(&self, slot: u32) -> Option<usize> {
        let at = to_usize(self.superblock.process_table_offset) + slot as usize * size_of::<ProcessEntry>();
        if slot < self.superblock.process_slots { Some(at) } else { None }
    }

    /// Offset of the host's acknowledgement of process slot `slot`; `None` when there is no such slot.
    #[must_use]
    pub const fn process_ack(&self, slot: u32) -> Option<usize> {
        let at = to_usize(self.superblock.process_ack_offset) + slot as usize * 8;
        if slot < self.superblock.process_slots { Some(at) } else { None }
    }

    /// Bytes of a process slot.
    #[must_use]
    pub const fn process_slot_size(&self) -> usize {
        to_usize(self.superblock.process_stride)
    }

    /// Offset of process slot `slot`; `None` when there is no such slot.
    #[must_use]
    pub const fn process_slot(&self, slot: u32) -> Option<usize> {
        if slot < self.superblock.process_slots {
            Some(to_usize(self.superblock.process_pool_offset) + slot as usize * self.process_slot_size())
        } else {
            None
        }
    }

    /// Offset and size of the event registry of process slot `slot`; `None` when there is no such slot.
    #[must_use]
    pub const fn process_registry(&self, slot: u32) -> Option<(usize, usize)> {
        match self.process_slot(slot) {
            Some(at) => Some((at + PAGE_SIZE, to_usize(self.superblock.process_registry_size))),
            None => None,
        }
    }

    /// Offset of `vcpu`'s ring in process slot `slot`; `None` when there is no such slot or vCPU.
    #[must_use]
    pub const fn process_ring(&self, slot: u32, vcpu: u32) -> Option<usize> {
        match self.process_registry(slot) {
            Some((at, size)) if vcpu < self.superblock.vcpus => {
                Some(at + size + vcpu as usize * self.process_rings.ring_size())
            }
            _ => None,
        }
    }

    /// What the guest's kernel writes to the beginning of each process slot, for the given map from its CPU numbers to
    /// vCPUs.
    #[must_use]
    pub const fn process_header(&self, vcpu_of_cpu: &[u16; MAX_VCPUS as usize]) -> ProcessHeader {
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

    /// The session that `settings` describe; `None` when their slot is not in use.
    ///
    /// # Errors
    /// When the session's rings cannot be, or do not lie inside the part that the guest may write.
    pub fn session(&self, settings: &SessionSettings) -> Result<Option<Session>, ViewError> {
        if settings.generation == 0 {
            return Ok(None);
        }
        let rings = rings(settings.sub_buffer_size, settings.sub_buffers, settings.mode)
            .filter(|rings| rings.ring_size() as u64 <= settings.ring_stride)
            .ok_or(ViewError::Impossible { what: "geometry of a session's rings" })?;
        let (from, to) = (self.superblock.guest_writable_offset, self.superblock.region_size);
        let fits = u64::from(self.superblock.vcpus).checked_mul(settings.ring_stride).is_some_and(|size| {
            is_page(settings.rings_offset)
                && is_page(settings.ring_stride)
                && lies_in(settings.rings_offset, size, from, to)
        });
        if !fits {
            return Err(ViewError::Outside { part: "session's rings" });
        }
        Ok(Some(Session {
            slot: settings.slot,
            generation: settings.generation,
            name: settings.name,
            rings,
            vcpus: self.superblock.vcpus,
            offset: to_usize(settings.rings_offset),
            stride: to_usize(settings.ring_stride),
        }))
    }
}

/// Offset of session slot `slot`; `None` when there is no such slot.
#[must_use]
pub const fn session_slot(slot: usize) -> Option<usize> {
    if slot < SESSION_SLOTS { Some(SESSION_TABLE_OFFSET + slot * SESSION_SLOT_SIZE) } else { None }
}

/// The settings of a [`SessionSlot`] without its masks, as they were copied; not checked.
/// For an example see [`HostArea::session`](crate::guest::HostArea::session).
#[derive(Clone, Copy, Debug)]
pub struct SessionSettings {
    slot: usize,
    generation: u64,
    mode: u32,
    sub_buffers: u32,
    sub_buffer_size: u64,
    rings_offset: u64,
    ring_stride: u64,
    name: [u8; 32],
}

impl SessionSettings {
    /// Copies the settings of session slot `slot` that belong to `generation`, through `load`, which reads the word at an
    /// offset of the slot.
    #[must_use]
    pub fn copy(slot: usize, generation: u64, load: impl Fn(usize) -> u64) -> Self {
        let (mode, sub_buffers) = halves(load(offset_of!(SessionSlot, mode)));
        let mut name = [0; 32];
        copy_words(&mut name, |offset| load(offset_of!(SessionSlot, name) + offset));
        Self {
            slot,
            generation,
            mode,
            sub_buffers,
            sub_buffer_size: load(offset_of!(SessionSlot, sub_buffer_size)),
            rings_offset: load(offset_of!(SessionSlot, rings_offset)),
            ring_stride: load(offset_of!(SessionSlot, ring_stride)),
            name,
        }
    }
}

/// A session whose rings were found to lie inside the region.
/// For an example see [`HostArea::session`](crate::guest::HostArea::session).
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Index of its slot.
    pub slot: usize,
    /// Number of this use of the session's slot, not zero.
    pub generation: u64,
    /// Name, NUL-padded.
    pub name: [u8; 32],
    /// Geometry and mode of the rings.
    pub rings: Rings,
    vcpus: u32,
    offset: usize,
    stride: usize,
}

impl Session {
    /// Offset in the region of `vcpu`'s ring; `None` when there is no such vCPU.
    #[must_use]
    pub const fn ring(&self, vcpu: u32) -> Option<usize> {
        if vcpu < self.vcpus { Some(self.offset + vcpu as usize * self.stride) } else { None }
    }
}

/// Fills `bytes`, a whole number of words, with the words that `load` reads at offsets from their beginning.
fn copy_words(bytes: &mut [u8], load: impl Fn(usize) -> u64) {
    for (word, bytes) in bytes.chunks_exact_mut(8).enumerate() {
        // Byte by byte: copying slices compares their lengths, and can panic.
        bytes.iter_mut().zip(load(word * 8).to_le_bytes()).for_each(|(to, from)| *to = from);
    }
}

/// Copies a superblock word by word.
fn superblock(word: impl Fn(usize) -> u64) -> Superblock {
    let low = |offset| halves(word(offset)).0;
    let high = |offset: usize| halves(word(offset - 4)).1;
    let mut clock_uuid = [0; 16];
    copy_words(&mut clock_uuid, |offset| word(offset_of!(Superblock, clock_uuid) + offset));
    Superblock {
        magic: word(offset_of!(Superblock, magic)),
        abi_version: low(offset_of!(Superblock, abi_version)),
        vcpus: high(offset_of!(Superblock, vcpus)),
        features: word(offset_of!(Superblock, features)),
        region_size: word(offset_of!(Superblock, region_size)),
        guest_writable_offset: word(offset_of!(Superblock, guest_writable_offset)),
        agent_offset: word(offset_of!(Superblock, agent_offset)),
        process_table_offset: word(offset_of!(Superblock, process_table_offset)),
        registry_offset: word(offset_of!(Superblock, registry_offset)),
        registry_size: word(offset_of!(Superblock, registry_size)),
        process_ack_offset: word(offset_of!(Superblock, process_ack_offset)),
        process_pool_offset: word(offset_of!(Superblock, process_pool_offset)),
        process_stride: word(offset_of!(Superblock, process_stride)),
        process_slots: low(offset_of!(Superblock, process_slots)),
        process_sub_buffers: high(offset_of!(Superblock, process_sub_buffers)),
        process_sub_buffer_size: word(offset_of!(Superblock, process_sub_buffer_size)),
        process_registry_size: word(offset_of!(Superblock, process_registry_size)),
        host_alive: word(offset_of!(Superblock, host_alive)),
        clock_uuid,
        clock_frequency: word(offset_of!(Superblock, clock_frequency)),
        any_class_mask: word(offset_of!(Superblock, any_class_mask)),
        process_mode: low(offset_of!(Superblock, process_mode)),
        doorbell: high(offset_of!(Superblock, doorbell)),
    }
}

fn rings(sub_buffer_size: u64, sub_buffers: u32, mode: u32) -> Option<Rings> {
    Some(Rings { geometry: Geometry::new(sub_buffer_size, sub_buffers).ok()?, mode: Mode::from_code(mode)? })
}

/// Whether `size` bytes at `offset` lie inside `from..to`.
const fn lies_in(offset: u64, size: u64, from: u64, to: u64) -> bool {
    match offset.checked_add(size) {
        Some(end) => offset >= from && end <= to,
        None => false,
    }
}

const fn is_page(value: u64) -> bool {
    value % PAGE_SIZE as u64 == 0
}

/// The low and the high half of a word.
#[allow(clippy::cast_possible_truncation, reason = "each cast takes one half")]
const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
const fn to_usize(value: u64) -> usize {
    value as usize
}

#[cfg(test)]
mod tests {
    //! Shows: Superblocks and slots that leave the region are refused.

    use super::*;
    use crate::layout::SUPERBLOCK;
    use crate::region::RegionConfig;
    use std::vec::Vec;
    use zerocopy::IntoBytes;

    pub(super) fn process_rings() -> Rings {
        Rings { geometry: Geometry::new(4096, 2).unwrap(), mode: Mode::FlightRecorder }
    }

    pub(super) fn layout() -> RegionLayout {
        RegionLayout::new(RegionConfig {
            vcpus: 2,
            sessions: [Some(process_rings()), None, None, None],
            process_rings: process_rings(),
            process_slots: 3,
            registry_size: 4096,
            process_registry_size: 4096,
        })
        .unwrap()
    }

    pub(super) fn word(bytes: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
    }

    fn bytes() -> Vec<u8> {
        layout().superblock([7; 16], 1_000_000_000).as_bytes().to_vec()
    }

    fn view(bytes: &[u8]) -> Result<RegionView, ViewError> {
        RegionView::read(|offset| word(bytes, offset), layout().size as u64)
    }

    fn settings(change: impl FnOnce(&mut SessionSlot)) -> SessionSettings {
        let mut session = layout().session(0, [b'n'; 32], 5, process_rings()).unwrap();
        change(&mut session);
        SessionSettings::copy(0, session.generation, |offset| word(session.as_bytes(), offset))
    }

    #[test]
    fn superblock_of_a_layout_is_copied_whole_and_gives_the_layouts_places() {
        let (layout, bytes) = (layout(), bytes());

        let view = view(&bytes).unwrap();

        assert_eq!(view.superblock().as_bytes(), bytes);
        assert_eq!((view.host_area_size(), view.agent()), (layout.guest_writable, layout.agent));
        assert_eq!(view.registry(), (layout.registry, layout.registry_size));
        assert_eq!(view.clock_entry(1), Some(layout.clock_entry(1)));
        assert_eq!(view.process_entry(2), Some(layout.process_table + 128));
        assert_eq!(view.process_ack(2), Some(layout.process_ack + 16));
        assert_eq!(view.process_slot(2), Some(layout.process_slot(2)));
        assert_eq!(view.process_registry(1), Some((layout.process_slot(1) + PAGE_SIZE, 4096)));
        assert_eq!(view.process_ring(1, 1), Some(layout.process_ring(1, 1)));
    }

    #[test]
    fn view_has_no_part_beyond_the_last() {
        let view = RegionView::of(&layout());

        assert_eq!((view.clock_entry(2), session_slot(SESSION_SLOTS)), (None, None));
        assert_eq!((view.process_entry(3), view.process_ack(3), view.process_slot(3)), (None, None, None));
        assert_eq!((view.process_ring(0, 2), view.process_ring(3, 0)), (None, None));
    }

    #[test]
    fn words_of_something_else_are_refused_with_a_reason() {
        let changed = |offset: usize, value: u64| {
            let mut bytes = bytes();
            bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
            view(&bytes).map(|_| ()).unwrap_err()
        };
        let few = RegionView::read(|_| unreachable!("there are no words"), 4096).map(|_| ());
        let cut = RegionView::read(|offset| word(&bytes(), offset), layout().size as u64 - 1).map(|_| ());

        assert_eq!(few, Err(ViewError::TooSmall { size: 4096 }));
        assert_eq!(cut, Err(ViewError::Cut { size: layout().size as u64 - 1, wanted: layout().size as u64 }));
        assert_eq!(changed(0, 1), ViewError::NotARegion);
        assert_eq!(changed(8, 9 << 16 | 2 << 32), ViewError::OtherVersion { found: 9 << 16 });
        assert_eq!(changed(8, u64::from(ABI_VERSION)), ViewError::Impossible { what: "number of vCPUs" });
        assert_eq!(changed(104, 4097), ViewError::Impossible { what: "geometry of process rings" });
    }

    #[test]
    fn every_offset_and_size_that_leaves_the_region_is_refused() {
        let places = SUPERBLOCK.fields.iter().filter(|(name, _)| {
            name.ends_with("_offset") || name.ends_with("_stride") || name.ends_with("registry_size")
        });

        let refused = places.filter(|&&(_, at)| {
            [u64::MAX - 7, u64::MAX - 4095, layout().size as u64 + 4096].into_iter().all(|value| {
                let mut bytes = bytes();
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                view(&bytes).is_err()
            })
        });

        assert_eq!(refused.count(), 9);
    }

    #[test]
    fn session_gives_a_ring_per_vcpu() {
        let (view, layout) = (RegionView::of(&layout()), layout());

        let session = view.session(&settings(|_| ())).unwrap().unwrap();

        assert_eq!((session.generation, session.name, session.rings), (5, [b'n'; 32], process_rings()));
        assert_eq!(
            [0, 1, 2].map(|vcpu| session.ring(vcpu)),
            [0, 1, 2].map(|vcpu| (vcpu < 2).then(|| layout.kernel_ring(0, vcpu)))
        );
        assert!(view.session(&settings(|session| session.generation = 0)).unwrap().is_none());
    }

    #[test]
    fn session_whose_rings_cannot_be_there_is_refused() {
        let view = RegionView::of(&layout());
        let refused = |change: fn(&mut SessionSlot)| view.session(&settings(change)).map(|_| ()).unwrap_err();
        let outside = ViewError::Outside { part: "session's rings" };
        let impossible = ViewError::Impossible { what: "geometry of a session's rings" };

        assert_eq!(refused(|session| session.rings_offset = 0), outside);
        assert_eq!(refused(|session| session.rings_offset += 8), outside);
        assert_eq!(refused(|session| session.ring_stride = u64::MAX - 4095), outside);
        assert_eq!(refused(|session| session.ring_stride -= 4096), impossible);
        assert_eq!(refused(|session| session.mode = 9), impossible);
    }
}
