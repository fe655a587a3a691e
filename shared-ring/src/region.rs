//! Where the parts of a region lie, for a given number of vCPUs and ring geometry.

use crate::layout::{
    ABI_VERSION, CLOCK_ENTRY_SIZE, CLOCK_OFFSET, FEATURE_FLOAT_FIELDS, FEATURE_RESTARTABLE_RINGS, Geometry, MAGIC,
    MAX_EVENTS, MAX_PROCESS_SLOTS, MAX_VCPUS, Mode, PAGE_SIZE, ProcessEntry, SESSION_SLOT_SIZE, SESSION_SLOTS,
    SESSION_TABLE_OFFSET, SessionSlot, Superblock,
};

/// Geometry and mode of a set of rings.
/// For an example see [`RegionLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Sub-buffers of each ring.
    pub geometry: Geometry,
    /// What happens when a ring is full.
    pub mode: Mode,
}

impl Rings {
    /// Bytes of one ring.
    #[must_use]
    pub const fn ring_size(self) -> usize {
        self.geometry.ring_size(self.mode)
    }
}

/// Largest event registry, bytes.
pub const MAX_REGISTRY_SIZE: usize = 1 << 30;

/// Why a region cannot be laid out.
/// For an example see [`RegionLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// The number of vCPUs is not within 1..=[`MAX_VCPUS`].
    Vcpus {
        /// vCPUs that were requested.
        vcpus: u32,
    },
    /// There are more than [`MAX_PROCESS_SLOTS`] process slots.
    ProcessSlots {
        /// Slots that were requested.
        slots: u32,
    },
    /// A registry is larger than [`MAX_REGISTRY_SIZE`].
    RegistrySize {
        /// Bytes that were requested.
        bytes: usize,
    },
}

impl core::fmt::Display for LayoutError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Vcpus { vcpus } => {
                write!(formatter, "a region for {vcpus} vCPUs is not possible: give 1 to {MAX_VCPUS}")
            }
            Self::ProcessSlots { slots } => {
                write!(formatter, "{slots} process slots are not possible: give at most {MAX_PROCESS_SLOTS}")
            }
            Self::RegistrySize { bytes } => {
                write!(
                    formatter,
                    "an event registry of {bytes} bytes is not possible: give at most {MAX_REGISTRY_SIZE}"
                )
            }
        }
    }
}

impl core::error::Error for LayoutError {}

/// What a region is made for.
/// For an example see [`RegionLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// Number of vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// The kernel's rings in each session slot: what the slot's first session uses, and the room that any later one has.
    /// A slot without rings has no room.
    pub sessions: [Option<Rings>; SESSION_SLOTS],
    /// The rings in each process slot.
    pub process_rings: Rings,
    /// Number of process slots, up to [`MAX_PROCESS_SLOTS`].
    pub process_slots: u32,
    /// Bytes of the kernel's event registry, rounded up to whole pages.
    pub registry_size: usize,
    /// Bytes of each process's event registry, rounded up to whole pages.
    pub process_registry_size: usize,
}

/// Offsets and sizes, bytes; all multiples of [`PAGE_SIZE`].
///
/// ```text
/// 0                    superblock, session table, clock entries, process acknowledgements   host writes, guest reads
/// guest_writable       agent state, process table, kernel registry                          guest kernel writes
/// session_rings        per session slot: one ring per vCPU                                  guest kernel writes
/// process_pool         per slot: header, registry, one ring per vCPU                        one process each
/// ```
///
/// ```
/// # use shared_ring::{layout::{Geometry, Mode, SESSION_SLOTS}, region::{RegionConfig, RegionLayout, Rings}};
/// let rings = Rings { geometry: Geometry::new(4096, 4)?, mode: Mode::Discard };
/// let mut sessions = [None; SESSION_SLOTS];
/// sessions[0] = Some(rings);
/// let (registry_size, process_registry_size) = (65_536, 4096);
/// let config =
///     RegionConfig { vcpus: 2, sessions, process_rings: rings, process_slots: 8, registry_size, process_registry_size };
/// let layout = RegionLayout::new(config)?;
/// assert_eq!(layout.kernel_ring(0, 1) - layout.kernel_ring(0, 0), rings.ring_size());
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// ```
/// use shared_ring::layout::{Geometry, MAGIC, Mode};
/// use shared_ring::region::{RegionConfig, RegionLayout, Rings};
///
/// let rings = Rings { geometry: Geometry::new(4096, 4)?, mode: Mode::Discard };
/// let layout = RegionLayout::new(RegionConfig {
///     vcpus: 2,
///     sessions: [Some(rings), None, None, None],
///     process_rings: rings,
///     process_slots: 8,
///     registry_size: 4096,
///     process_registry_size: 4096,
/// })?;
/// assert_eq!(layout.superblock([7; 16], 1_000_000_000).magic, MAGIC);
/// assert_eq!(layout.kernel_ring(0, 1) - layout.kernel_ring(0, 0), rings.ring_size());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionLayout {
    /// What it was computed from.
    pub config: RegionConfig,
    /// The host's acknowledgement words, one per process slot.
    pub process_ack: usize,
    /// First byte that the guest may write.
    pub guest_writable: usize,
    /// The agent's state page.
    pub agent: usize,
    /// The process table.
    pub process_table: usize,
    /// The kernel's event registry.
    pub registry: usize,
    /// Size of the kernel's event registry.
    pub registry_size: usize,
    /// Per session slot: the kernel's ring of vCPU 0.
    pub session_rings: [usize; SESSION_SLOTS],
    /// Per session slot: distance between two kernel rings, the room that a ring has; zero where there are none.
    pub session_ring_stride: [usize; SESSION_SLOTS],
    /// First process slot.
    pub process_pool: usize,
    /// Distance between two process slots.
    pub process_stride: usize,
    /// First ring of a process slot, from the slot's start.
    pub process_rings: usize,
    /// Distance between two rings of a process slot.
    pub process_ring_stride: usize,
    /// Size of a process slot's event registry.
    pub process_registry_size: usize,
    /// Size of the region.
    pub size: usize,
}

impl RegionLayout {
    /// Places the parts.
    ///
    /// # Errors
    /// When `config` asks for no vCPU, or for more than a region describes.
    pub const fn new(config: RegionConfig) -> Result<Self, LayoutError> {
        if config.vcpus == 0 || config.vcpus > MAX_VCPUS {
            return Err(LayoutError::Vcpus { vcpus: config.vcpus });
        }
        if config.process_slots > MAX_PROCESS_SLOTS {
            return Err(LayoutError::ProcessSlots { slots: config.process_slots });
        }
        if config.registry_size > MAX_REGISTRY_SIZE {
            return Err(LayoutError::RegistrySize { bytes: config.registry_size });
        }
        if config.process_registry_size > MAX_REGISTRY_SIZE {
            return Err(LayoutError::RegistrySize { bytes: config.process_registry_size });
        }
        let vcpus = config.vcpus as usize;
        let slots = config.process_slots as usize;
        let registry_size = pages(config.registry_size);
        let process_registry_size = pages(config.process_registry_size);
        let process_ack = pages(CLOCK_OFFSET + vcpus * CLOCK_ENTRY_SIZE);
        let agent = process_ack + PAGE_SIZE;
        let process_table = agent + PAGE_SIZE;
        let registry = process_table + pages(slots * size_of::<ProcessEntry>());
        let mut session_rings = [0; SESSION_SLOTS];
        let mut session_ring_stride = [0; SESSION_SLOTS];
        let mut process_pool = registry + registry_size;
        let mut slot = 0;
        while slot < SESSION_SLOTS {
            session_rings[slot] = process_pool;
            if let Some(rings) = config.sessions[slot] {
                session_ring_stride[slot] = rings.ring_size();
            }
            process_pool += vcpus * session_ring_stride[slot];
            slot += 1;
        }
        let process_rings = PAGE_SIZE + process_registry_size;
        let process_ring_stride = config.process_rings.ring_size();
        let process_stride = process_rings + vcpus * process_ring_stride;
        Ok(Self {
            config,
            process_ack,
            guest_writable: agent,
            agent,
            process_table,
            registry,
            registry_size,
            session_rings,
            session_ring_stride,
            process_pool,
            process_stride,
            process_rings,
            process_ring_stride,
            process_registry_size,
            size: process_pool + slots * process_stride,
        })
    }

    /// The superblock of a region laid out like this, with no host alive yet.
    #[must_use]
    pub const fn superblock(&self, clock_uuid: [u8; 16], clock_frequency: u64) -> Superblock {
        Superblock {
            magic: MAGIC,
            abi_version: ABI_VERSION,
            vcpus: self.config.vcpus,
            features: FEATURE_RESTARTABLE_RINGS | FEATURE_FLOAT_FIELDS,
            region_size: self.size as u64,
            guest_writable_offset: self.guest_writable as u64,
            agent_offset: self.agent as u64,
            process_table_offset: self.process_table as u64,
            registry_offset: self.registry as u64,
            registry_size: self.registry_size as u64,
            process_ack_offset: self.process_ack as u64,
            process_pool_offset: self.process_pool as u64,
            process_stride: self.process_stride as u64,
            process_slots: self.config.process_slots,
            process_sub_buffers: self.config.process_rings.geometry.sub_buffers(),
            process_sub_buffer_size: self.config.process_rings.geometry.sub_buffer_size(),
            process_registry_size: self.process_registry_size as u64,
            host_alive: 0,
            clock_uuid,
            clock_frequency,
            any_class_mask: 0,
            process_mode: self.config.process_rings.mode.code(),
            doorbell: 0,
        }
    }

    /// A session in `slot`, with every event off, whose kernel rings are `rings`. `generation` is the number of this use
    /// of the slot, not zero. `None` when the slot has too little room for such rings.
    #[must_use]
    pub const fn session(&self, slot: usize, name: [u8; 32], generation: u64, rings: Rings) -> Option<SessionSlot> {
        if slot >= SESSION_SLOTS || rings.ring_size() > self.session_ring_stride[slot] {
            return None;
        }
        Some(SessionSlot {
            class_mask: 0,
            mode: rings.mode.code(),
            sub_buffers: rings.geometry.sub_buffers(),
            sub_buffer_size: rings.geometry.sub_buffer_size(),
            rings_offset: self.session_rings[slot] as u64,
            ring_stride: self.session_ring_stride[slot] as u64,
            name,
            generation,
            reserved: [0; 54],
            event_enable: [0; MAX_EVENTS / 64],
        })
    }

    /// Offset of session slot `slot`.
    #[must_use]
    pub const fn session_slot(&self, slot: usize) -> usize {
        SESSION_TABLE_OFFSET + slot * SESSION_SLOT_SIZE
    }

    /// Offset of `vcpu`'s clock entry.
    #[must_use]
    pub const fn clock_entry(&self, vcpu: u32) -> usize {
        CLOCK_OFFSET + vcpu as usize * CLOCK_ENTRY_SIZE
    }

    /// Offset of `vcpu`'s kernel ring in session slot `slot`.
    #[must_use]
    pub const fn kernel_ring(&self, slot: usize, vcpu: u32) -> usize {
        self.session_rings[slot] + vcpu as usize * self.session_ring_stride[slot]
    }

    /// Offset of process slot `slot`.
    #[must_use]
    pub const fn process_slot(&self, slot: u32) -> usize {
        self.process_pool + slot as usize * self.process_stride
    }

    /// Offset of `vcpu`'s ring in process slot `slot`.
    #[must_use]
    pub const fn process_ring(&self, slot: u32, vcpu: u32) -> usize {
        self.process_slot(slot) + self.process_rings + vcpu as usize * self.process_ring_stride
    }
}

/// `bytes` rounded up to whole pages.
const fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_SIZE) * PAGE_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RegionConfig {
        let rings = |size, count, mode| Rings { geometry: Geometry::new(size, count).unwrap(), mode };
        let recorder = rings(1 << 12, 4, Mode::FlightRecorder);
        RegionConfig {
            vcpus: 3,
            sessions: [Some(rings(1 << 16, 8, Mode::Discard)), None, Some(recorder), None],
            process_rings: rings(1 << 14, 4, Mode::Discard),
            process_slots: 5,
            registry_size: 100_000,
            process_registry_size: 4096,
        }
    }

    #[test]
    fn parts_follow_one_another_without_overlap() {
        let layout = RegionLayout::new(config()).unwrap();

        assert!(layout.clock_entry(3) <= layout.process_ack);
        assert!(layout.process_ack + 8 * 5 <= layout.guest_writable);
        assert_eq!(layout.kernel_ring(0, 3), layout.kernel_ring(2, 0));
        assert_eq!(layout.kernel_ring(2, 3), layout.process_pool);
        assert_eq!(layout.process_ring(0, 3), layout.process_slot(1));
        assert_eq!(layout.process_slot(5), layout.size);
    }

    #[test]
    fn every_part_begins_on_a_page() {
        let layout = RegionLayout::new(config()).unwrap();

        let offsets =
            [layout.agent, layout.process_table, layout.registry, layout.kernel_ring(0, 1), layout.process_ring(2, 1)];
        assert!(offsets.iter().all(|offset| offset % PAGE_SIZE == 0));
    }

    #[test]
    fn session_takes_rings_that_fit_its_slots_room() {
        let layout = RegionLayout::new(config()).unwrap();
        let rings = |size, count| Rings { geometry: Geometry::new(size, count).unwrap(), mode: Mode::FlightRecorder };

        let fitting = layout.session(2, [0; 32], 7, rings(1 << 12, 2)).unwrap();

        assert_eq!(fitting.rings_offset, layout.kernel_ring(2, 0) as u64);
        assert_eq!((fitting.generation, fitting.sub_buffers), (7, 2));
        assert!(layout.session(2, [0; 32], 7, rings(1 << 12, 8)).is_none());
        assert!(layout.session(1, [0; 32], 7, rings(1 << 12, 2)).is_none());
    }

    #[test]
    fn region_for_no_vcpu_is_refused() {
        let refused = [
            RegionConfig { vcpus: 0, ..config() },
            RegionConfig { vcpus: MAX_VCPUS + 1, ..config() },
            RegionConfig { process_slots: MAX_PROCESS_SLOTS + 1, ..config() },
            RegionConfig { registry_size: usize::MAX, ..config() },
            RegionConfig { process_registry_size: usize::MAX, ..config() },
        ];
        let reasons = refused.map(|config| RegionLayout::new(config).unwrap_err());

        assert_eq!(reasons[0], LayoutError::Vcpus { vcpus: 0 });
        assert_eq!(reasons[1], LayoutError::Vcpus { vcpus: MAX_VCPUS + 1 });
        assert_eq!(reasons[2], LayoutError::ProcessSlots { slots: MAX_PROCESS_SLOTS + 1 });
        assert_eq!([reasons[3], reasons[4]], [LayoutError::RegistrySize { bytes: usize::MAX }; 2]);
    }
}
