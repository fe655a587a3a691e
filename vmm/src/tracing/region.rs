//! The trace region of a running machine: one memory object that the guest sees too.
#![allow(unsafe_code)] // Clock entries and host views are made from the mapping's raw address.

use crate::machine::SharedSlot;
use clock_sync::entry::Writer;
use clock_sync::relation::Relation;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs, ftruncate};
use shared_ring::event::{EventDescription, MAX_NAME};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{MAX_EVENTS, RING_ADOPTED, SESSION_SLOTS, SessionSlot, Superblock};
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use std::fs::File;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// The file system has no room for it.
    #[error(
        "a trace region of {size} bytes does not fit the {free} bytes left where it lies: use smaller rings \
         (--sub-buffer-size, --sub-buffers), or set STRATA_RUNTIME_DIR to a private folder with more room"
    )]
    NoRoom {
        /// Size of the region, bytes.
        size: usize,
        /// Bytes left.
        free: u64,
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
    clocks: Vec<Mutex<Writer>>,
    file: File,
    /// Number of the next use of a session slot.
    next_generation: AtomicU64,
}

/// Name of the session that a VM is started with, in slot 0.
pub const MAIN_SESSION: &str = "main";

impl TraceRegion {
    /// A fresh region in `file`, which is empty: initialised, with its first session inactive and no clock entry valid.
    /// Only what is used of it takes memory.
    ///
    /// # Errors
    /// When `config` is too large or there is no room for it.
    pub fn create(file: File, config: RegionConfig, clock: Uuid, clock_frequency: u64) -> Result<Self, RegionError> {
        let too_large = RegionError::TooLarge { vcpus: config.vcpus, process_slots: config.process_slots };
        let layout = RegionLayout::new(config).ok_or(too_large)?;
        let failed = |source| RegionError::Memory { size: layout.size, source };
        check_room(&file, layout.size)?;
        ftruncate(&file, layout.size as u64).map_err(|errno| failed(errno.into()))?;
        let mapping = MmapOptions::new().len(layout.size).map_raw(&file).map_err(failed)?;
        let mapping = Arc::new(mapping);
        let base = mapping.as_mut_ptr();
        // SAFETY: the mapping is page-aligned, `layout.size` bytes long, lives as long as its owner, and is accessed
        // only through atomics: by this view and its parts, by the clock writers below, and by the guest.
        let memory = unsafe { HostMemory::new(base, layout.size, Arc::clone(&mapping) as _) };
        memory.write(0, layout.superblock(*clock.as_bytes(), clock_frequency).as_bytes());
        let clock_writer = |vcpu| {
            // SAFETY: the entry lies inside the mapping, which this struct keeps alive beside the writers; there is
            // one writer per entry, and the guest maps the entries read-only.
            Mutex::new(unsafe { Writer::new(base.add(layout.clock_entry(vcpu))) })
        };
        let clocks = (0..config.vcpus).map(clock_writer).collect();
        let region = Self { layout, mapping, memory, clocks, file, next_generation: AtomicU64::new(1) };
        if let Some(rings) = config.sessions[0] {
            region.open_session(0, MAIN_SESSION, rings);
        }
        Ok(region)
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
    pub fn publish_clock(&self, vcpu: u32, relation: &Relation) -> u64 {
        self.clocks[vcpu as usize].lock().unwrap_or_else(PoisonError::into_inner).publish(relation)
    }

    /// Gives session slot `slot` out to a session called `name`, inactive, with `rings`. `false` when the slot is in use,
    /// the guest has not let go of it yet, or it has too little room.
    pub fn open_session(&self, slot: usize, name: &str, rings: Rings) -> bool {
        if slot >= SESSION_SLOTS || !self.is_free(slot) {
            return false;
        }
        let mut padded = [0; 32];
        let bytes = &name.as_bytes()[..name.len().min(padded.len() - 1)];
        padded[..bytes.len()].copy_from_slice(bytes);
        let number = self.next_generation.fetch_add(1, Ordering::Relaxed);
        let Some(session) = self.layout.session(slot, padded, number, rings) else { return false };
        self.clear_rings(slot);
        let at = self.layout.session_slot(slot);
        // The guest believes nothing of the slot before it sees the generation, which comes last.
        self.memory.write(at, SessionSlot { generation: 0, ..session }.as_bytes());
        self.memory.store(at + offset_of!(SessionSlot, generation), number);
        true
    }

    /// Takes session slot `slot` back. The guest lets go of it within a moment: see [`is_free`](Self::is_free).
    pub fn close_session(&self, slot: usize) {
        self.set_enabled(slot, &EnabledEvents::NONE);
        self.memory.store(self.layout.session_slot(slot) + offset_of!(SessionSlot, generation), 0);
        // A CPU of the guest that is adopting the session tells so first and looks at the generation again afterwards:
        // with this barrier here and one there, one side sees the other.
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Whether session slot `slot` is not in use, by the guest either.
    #[must_use]
    pub fn is_free(&self, slot: usize) -> bool {
        let generation = self.layout.session_slot(slot) + offset_of!(SessionSlot, generation);
        let adopted = |vcpu| self.memory.load(self.layout.kernel_ring(slot, vcpu) + RING_ADOPTED) != 0;
        let has_rings = self.layout.session_ring_stride[slot] > 0;
        self.memory.load(generation) == 0 && !(has_rings && (0..self.layout.config.vcpus).any(adopted))
    }

    /// Clears the rings of `slot`, and gives their memory back where the file system can do that.
    fn clear_rings(&self, slot: usize) {
        let (begin, size) = (
            self.layout.session_rings[slot],
            self.layout.session_ring_stride[slot] * self.layout.config.vcpus as usize,
        );
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if size > 0 && fallocate(&self.file, punch, begin as u64, size as u64).is_err() {
            self.memory.clear(begin, size);
        }
    }

    /// Says which events the session in `slot` records from now on. The guest sees the class mask change last when events
    /// are added, so that none is recorded by half a setting.
    pub fn set_enabled(&self, slot: usize, enabled: &EnabledEvents) {
        let session = self.layout.session_slot(slot);
        for (index, &word) in enabled.events.iter().enumerate() {
            self.memory.store(session + offset_of!(SessionSlot, event_enable) + index * 8, word);
        }
        self.memory.store(session + offset_of!(SessionSlot, class_mask), enabled.class_mask);
        let mask = |slot| self.memory.load(self.layout.session_slot(slot) + offset_of!(SessionSlot, class_mask));
        let any = (0..SESSION_SLOTS).fold(0, |any, slot| any | mask(slot));
        self.memory.store(offset_of!(Superblock, any_class_mask), any);
    }

    /// Tells the guest whether anybody reads its rings.
    pub fn set_host_alive(&self, alive: bool) {
        self.memory.store(offset_of!(Superblock, host_alive), u64::from(alive));
    }
}

/// Checks that `size` bytes fit the file system of `file`, if that knows a limit: a page that cannot be had later would end
/// the machine.
pub(super) fn check_room(file: &File, size: usize) -> Result<(), RegionError> {
    let Ok(space) = fstatvfs(file) else { return Ok(()) };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if space.f_blocks > 0 && free < size as u64 { Err(RegionError::NoRoom { size, free }) } else { Ok(()) }
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
    use shared_ring::layout::{Geometry, MAGIC, Mode, SESSION_TABLE_OFFSET};

    fn rings() -> Rings {
        Rings { geometry: Geometry::new(4096, 2).unwrap(), mode: Mode::Discard }
    }

    fn region() -> TraceRegion {
        let config = RegionConfig {
            vcpus: 2,
            sessions: [Some(rings()), Some(rings()), None, None],
            process_rings: rings(),
            process_slots: 2,
            registry_size: 4096,
            process_registry_size: 4096,
        };
        TraceRegion::create(tempfile::tempfile().unwrap(), config, Uuid::nil(), 1_000_000_000).unwrap()
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
        let region = region();
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

        region.set_enabled(0, &enabled);

        assert_eq!(region.memory().load(SESSION_TABLE_OFFSET), 1 << 3);
        assert_eq!(region.memory().load(offset_of!(Superblock, any_class_mask)), 1 << 3);
        assert_eq!(region.memory().load(SESSION_TABLE_OFFSET + offset_of!(SessionSlot, event_enable) + 8), 2);
    }

    #[test]
    fn slot_is_given_out_once_the_guest_has_let_go_of_it() {
        let region = region();
        let adopted = region.layout().kernel_ring(1, 1) + RING_ADOPTED;

        assert!(region.open_session(1, "other", rings()));
        assert!(!region.open_session(1, "third", rings()));
        region.memory().store(adopted, 2);
        region.close_session(1);
        assert!(!region.is_free(1));
        region.memory().store(adopted, 0);
        region.memory().store(adopted + 4096, 7);

        assert!(region.open_session(1, "third", rings()));
        assert_eq!(region.memory().load(adopted + 4096), 0);
        assert!(!region.open_session(2, "no room", rings()));
    }

    #[test]
    fn closed_session_leaves_the_classes_of_the_others_on() {
        let region = region();
        let any = || region.memory().load(offset_of!(Superblock, any_class_mask));
        let of = |class: u32| EnabledEvents { class_mask: 1 << class, ..EnabledEvents::NONE };
        region.open_session(1, "other", rings());
        region.set_enabled(0, &of(2));
        region.set_enabled(1, &of(5));

        assert_eq!(any(), 1 << 2 | 1 << 5);
        region.close_session(1);
        assert_eq!(any(), 1 << 2);
    }

    #[test]
    fn text_of_a_guest_is_made_harmless() {
        assert_eq!(guest_text(b"6.1.0\x1b[2J\0junk"), "6.1.0?[2J");
    }
}
