//! The trace region of a running machine: one memory object that the guest sees too.
#![allow(unsafe_code)] // Clock entries and host views are made from the mapping's raw address.

use crate::machine::SharedSlot;
use clock_sync::entry::Writer;
use clock_sync::relation::Relation;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use shared_ring::event::{EventDescription, MAX_NAME};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{MAX_EVENTS, SESSION_TABLE_OFFSET, SessionSlot, Superblock};
use shared_ring::region::{RegionConfig, RegionLayout};
use std::fs::File;
use std::mem::offset_of;
use std::sync::Arc;
use thiserror::Error;
use uuid::Uuid;
use zerocopy::IntoBytes;

/// Why a trace region could not be made.
#[derive(Debug, Error)]
pub enum RegionError {
    /// More vCPUs or process slots than a region describes.
    #[error("a trace region cannot serve {vcpus} vCPUs and {process_slots} processes")]
    TooLarge {
        /// vCPUs asked for.
        vcpus: u32,
        /// Process slots asked for.
        process_slots: u32,
    },
    /// The kernel refused the memory.
    #[error("cannot allocate a trace region of {size} bytes")]
    Memory {
        /// Size of the region, bytes.
        size: usize,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// The events that a session records: a bit per major class and one per event id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnabledEvents {
    /// Bit *n* enables major class *n*.
    pub class_mask: u64,
    /// Bit `id % 64` of word `id / 64` enables event `id`.
    pub events: [u64; MAX_EVENTS / 64],
}

impl EnabledEvents {
    /// No event.
    pub const NONE: Self = Self { class_mask: 0, events: [0; MAX_EVENTS / 64] };

    /// Adds an event by id and class.
    pub fn enable(&mut self, id: u16, class: u8) {
        self.class_mask |= 1 << (class & 63);
        if let Some(word) = self.events.get_mut(usize::from(id) / 64) {
            *word |= 1 << (id % 64);
        }
    }
}

/// The region: its bytes, its layout and the host's writers in it.
#[derive(Debug)]
pub struct TraceRegion {
    layout: RegionLayout,
    mapping: Arc<MmapRaw>,
    memory: HostMemory,
    clocks: Vec<Writer>,
}

impl TraceRegion {
    /// A fresh region, initialised, with its session inactive and no clock entry valid.
    ///
    /// # Errors
    /// When `config` is too large or the kernel has no memory for it.
    pub fn create(config: RegionConfig, clock: Uuid, clock_frequency: u64) -> Result<Self, RegionError> {
        let too_large = RegionError::TooLarge { vcpus: config.vcpus, process_slots: config.process_slots };
        let layout = RegionLayout::new(config).ok_or(too_large)?;
        let failed = |source| RegionError::Memory { size: layout.size, source };
        let file = memfd_create("strata-trace-region", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        ftruncate(&file, layout.size as u64).map_err(|errno| failed(errno.into()))?;
        let mapping = MmapOptions::new().len(layout.size).map_raw(&File::from(file)).map_err(failed)?;
        let mapping = Arc::new(mapping);
        let base = mapping.as_mut_ptr();
        // SAFETY: the mapping is page-aligned, `layout.size` bytes long, lives as long as its owner, and is accessed
        // only through atomics: by this view and its parts, by the clock writers below, and by the guest.
        let memory = unsafe { HostMemory::new(base, layout.size, Arc::clone(&mapping) as _) };
        memory.write(0, layout.superblock(*clock.as_bytes(), clock_frequency).as_bytes());
        let mut name = [0; 32];
        name[..4].copy_from_slice(b"main");
        memory.write(SESSION_TABLE_OFFSET, layout.session(name).as_bytes());
        let clock_writer = |vcpu| {
            // SAFETY: the entry lies inside the mapping, which this struct keeps alive beside the writers; there is
            // one writer per entry, and the guest maps the entries read-only.
            unsafe { Writer::new(base.add(layout.clock_entry(vcpu))) }
        };
        let clocks = (0..config.vcpus).map(clock_writer).collect();
        Ok(Self { layout, mapping, memory, clocks })
    }

    /// Where everything lies.
    #[must_use]
    pub const fn layout(&self) -> &RegionLayout {
        &self.layout
    }

    /// The host's view of the whole region.
    #[must_use]
    pub const fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// The memory slots that the guest gets: what only the host writes, read-only; then the rest.
    #[must_use]
    pub fn slots(&self) -> Vec<SharedSlot> {
        let slot = |offset, end, read_only| SharedSlot {
            mapping: Arc::clone(&self.mapping),
            offset,
            size: end - offset,
            read_only,
        };
        let boundary = self.layout.guest_writable;
        vec![slot(0, boundary, true), slot(boundary, self.layout.size, false)]
    }

    /// Publishes how `vcpu`'s counter relates to the trace clock from now on; returns the number of the update.
    ///
    /// # Panics
    /// When there is no such vCPU.
    pub fn publish_clock(&mut self, vcpu: u32, relation: &Relation) -> u64 {
        self.clocks[vcpu as usize].publish(relation)
    }

    /// Says which events the session records from now on. The guest sees the class mask change last when events are
    /// added, so that none is recorded by half a setting.
    pub fn set_enabled(&self, enabled: &EnabledEvents) {
        let session = SESSION_TABLE_OFFSET;
        for (index, &word) in enabled.events.iter().enumerate() {
            self.memory.store(session + offset_of!(SessionSlot, event_enable) + index * 8, word);
        }
        self.memory.store(session + offset_of!(SessionSlot, class_mask), enabled.class_mask);
    }

    /// Tells the guest whether anybody reads its rings.
    pub fn set_host_alive(&self, alive: bool) {
        self.memory.store(offset_of!(Superblock, host_alive), u64::from(alive));
    }
}

/// `text` from NUL-padded bytes that a guest wrote: up to the first NUL, printable ASCII only, everything else as `?`.
#[must_use]
pub fn guest_text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let shown = |&byte: &u8| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' };
    text.iter().take(MAX_NAME).map(shown).collect()
}

/// The bits of [`EnabledEvents`] for the events of `catalogue` that `chosen` accepts.
#[must_use]
pub fn enabled_among<'a>(
    catalogue: impl IntoIterator<Item = &'a EventDescription>,
    chosen: impl Fn(&str) -> bool,
) -> EnabledEvents {
    let mut enabled = EnabledEvents::NONE;
    for event in catalogue.into_iter().filter(|event| chosen(&event.name)) {
        enabled.enable(event.id, event.class);
    }
    enabled
}

#[cfg(test)]
mod tests {
    use super::*;
    use clock_sync::entry::Reader;
    use shared_ring::layout::{Geometry, MAGIC};

    fn region() -> TraceRegion {
        let rings = Geometry::new(4096, 2).unwrap();
        let config = RegionConfig {
            vcpus: 2,
            kernel_rings: rings,
            process_rings: rings,
            process_slots: 2,
            registry_size: 4096,
            process_registry_size: 4096,
        };
        TraceRegion::create(config, Uuid::nil(), 1_000_000_000).unwrap()
    }

    #[test]
    fn guest_gets_the_hosts_words_read_only_and_the_rest_writable() {
        let region = region();

        let slots = region.slots();

        assert_eq!((slots[0].offset, slots[0].read_only), (0, true));
        assert_eq!((slots[1].offset, slots[1].read_only), (slots[0].size, false));
        assert_eq!(slots[1].offset + slots[1].size, region.layout().size);
    }

    #[test]
    fn fresh_region_says_what_it_is() {
        let region = region();

        assert_eq!(region.memory().load(0), MAGIC);
        assert_eq!(region.memory().load(offset_of!(Superblock, region_size)), region.layout().size as u64);
        assert_eq!(region.memory().load(SESSION_TABLE_OFFSET), 0);
    }

    #[test]
    fn published_clock_is_what_a_guest_reads() {
        let mut region = region();
        region.publish_clock(1, &Relation::from_tsc_offset(-500, 1_000));

        let entry = region.memory().part(region.layout().clock_entry(1), 256);
        // SAFETY: the entry is inside the region, which outlives the reader.
        let reader = unsafe { Reader::new(entry.base()) };

        assert_eq!(reader.now(|| 700), 1_200);
    }

    #[test]
    fn enabled_events_reach_the_session() {
        let region = region();
        let mut enabled = EnabledEvents::NONE;
        enabled.enable(65, 3);

        region.set_enabled(&enabled);

        assert_eq!(region.memory().load(SESSION_TABLE_OFFSET), 1 << 3);
        assert_eq!(region.memory().load(SESSION_TABLE_OFFSET + offset_of!(SessionSlot, event_enable) + 8), 2);
    }

    #[test]
    fn text_of_a_guest_is_made_harmless() {
        assert_eq!(guest_text(b"6.1.0\x1b[2J\0junk"), "6.1.0?[2J");
    }
}
