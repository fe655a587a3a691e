//! Where the parts of a region lie, for a given number of vCPUs and ring geometry.

use crate::layout::{
    ABI_VERSION, CLOCK_ENTRY_SIZE, CLOCK_OFFSET, Geometry, MAGIC, MAX_EVENTS, MAX_PROCESS_SLOTS, MAX_VCPUS,
    MODE_DISCARD, PAGE_SIZE, ProcessEntry, SessionSlot, Superblock,
};

/// What a region is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// Number of vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// Geometry of the kernel's rings.
    pub kernel_rings: Geometry,
    /// Geometry of the rings in each process slot.
    pub process_rings: Geometry,
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
/// kernel_rings         one ring per vCPU                                                    guest kernel writes
/// process_pool         per slot: header, registry, one ring per vCPU                        one process each
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Ring of vCPU 0.
    pub kernel_rings: usize,
    /// Distance between two kernel rings.
    pub kernel_ring_stride: usize,
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
    /// Places the parts; `None` when `config` asks for no vCPU, or for more vCPUs or slots than a region describes.
    #[must_use]
    pub const fn new(config: RegionConfig) -> Option<Self> {
        if config.vcpus == 0 || config.vcpus > MAX_VCPUS || config.process_slots > MAX_PROCESS_SLOTS {
            return None;
        }
        let vcpus = config.vcpus as usize;
        let slots = config.process_slots as usize;
        let registry_size = pages(config.registry_size);
        let process_registry_size = pages(config.process_registry_size);
        let process_ack = pages(CLOCK_OFFSET + vcpus * CLOCK_ENTRY_SIZE);
        let agent = process_ack + PAGE_SIZE;
        let process_table = agent + PAGE_SIZE;
        let registry = process_table + pages(slots * size_of::<ProcessEntry>());
        let kernel_rings = registry + registry_size;
        let kernel_ring_stride = config.kernel_rings.ring_size();
        let process_pool = kernel_rings + vcpus * kernel_ring_stride;
        let process_rings = PAGE_SIZE + process_registry_size;
        let process_ring_stride = config.process_rings.ring_size();
        let process_stride = process_rings + vcpus * process_ring_stride;
        Some(Self {
            config,
            process_ack,
            guest_writable: agent,
            agent,
            process_table,
            registry,
            registry_size,
            kernel_rings,
            kernel_ring_stride,
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
            features: 0,
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
            process_sub_buffers: self.config.process_rings.sub_buffers(),
            process_sub_buffer_size: self.config.process_rings.sub_buffer_size(),
            process_registry_size: self.process_registry_size as u64,
            host_alive: 0,
            clock_uuid,
            clock_frequency,
        }
    }

    /// The session that records into this region's kernel rings in discard mode, with every event off.
    #[must_use]
    pub const fn session(&self, name: [u8; 32]) -> SessionSlot {
        SessionSlot {
            class_mask: 0,
            mode: MODE_DISCARD,
            sub_buffers: self.config.kernel_rings.sub_buffers(),
            sub_buffer_size: self.config.kernel_rings.sub_buffer_size(),
            rings_offset: self.kernel_rings as u64,
            ring_stride: self.kernel_ring_stride as u64,
            name,
            reserved: [0; 55],
            event_enable: [0; MAX_EVENTS / 64],
        }
    }

    /// Offset of `vcpu`'s clock entry.
    #[must_use]
    pub const fn clock_entry(&self, vcpu: u32) -> usize {
        CLOCK_OFFSET + vcpu as usize * CLOCK_ENTRY_SIZE
    }

    /// Offset of `vcpu`'s kernel ring.
    #[must_use]
    pub const fn kernel_ring(&self, vcpu: u32) -> usize {
        self.kernel_rings + vcpu as usize * self.kernel_ring_stride
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
        RegionConfig {
            vcpus: 3,
            kernel_rings: Geometry::new(1 << 16, 8).unwrap(),
            process_rings: Geometry::new(1 << 14, 4).unwrap(),
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
        assert_eq!(layout.kernel_ring(3), layout.process_pool);
        assert_eq!(layout.process_ring(0, 3), layout.process_slot(1));
        assert_eq!(layout.process_slot(5), layout.size);
    }

    #[test]
    fn every_part_begins_on_a_page() {
        let layout = RegionLayout::new(config()).unwrap();

        let offsets =
            [layout.agent, layout.process_table, layout.registry, layout.kernel_ring(1), layout.process_ring(2, 1)];
        assert!(offsets.iter().all(|offset| offset % PAGE_SIZE == 0));
    }

    #[test]
    fn region_for_no_vcpu_is_refused() {
        assert_eq!(RegionLayout::new(RegionConfig { vcpus: 0, ..config() }), None);
    }
}
