//! The trace region of a running machine: one memory object that the guest sees too.
#![allow(unsafe_code)] // Clock entries and host views are made from the mapping's raw address.

use crate::machine::SharedSlot;
use clock_sync::entry::Writer;
use clock_sync::relation::Relation;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs, ftruncate};
use shared_ring::event::{EventDescription, MAX_NAME};
pub use shared_ring::host::EnabledEvents;
use shared_ring::host::{HostError, Parts, Region};
use shared_ring::host_memory::HostMemory;
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;
use uuid::Uuid;

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
    /// The region does not take what is written to it.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The region: its bytes, its layout and the host's writers in it.
#[derive(Debug)]
pub struct TraceRegion {
    layout: RegionLayout,
    mapping: Arc<MmapRaw>,
    parts: Parts,
    clocks: Vec<Mutex<Writer>>,
    file: File,
    host: Mutex<Region>,
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
        let layout = RegionLayout::new(config).map_err(|_| too_large)?;
        let failed = |source| RegionError::Memory { size: layout.size, source };
        check_room(&file, layout.size)?;
        ftruncate(&file, layout.size as u64).map_err(|errno| failed(errno.into()))?;
        let mapping = MmapOptions::new().len(layout.size).map_raw(&file).map_err(failed)?;
        let mapping = Arc::new(mapping);
        let base = mapping.as_mut_ptr();
        // SAFETY: the mapping is page-aligned, `layout.size` bytes long, lives as long as its owner, and is accessed
        // only through atomics: by this view and its parts, by the clock writers below, and by the guest.
        let memory = unsafe { HostMemory::new(base, layout.size, Arc::clone(&mapping) as _) };
        let host = Mutex::new(Region::create(memory.clone(), layout, *clock.as_bytes(), clock_frequency)?);
        let parts = Parts::of(memory, &layout)?;
        let clock_writer = |vcpu| {
            // SAFETY: the entry lies inside the mapping, which this struct keeps alive beside the writers; there is
            // one writer per entry, and the guest maps the entries read-only.
            Mutex::new(unsafe { Writer::new(base.add(layout.clock_entry(vcpu))) })
        };
        let clocks = (0..config.vcpus).map(clock_writer).collect();
        let region = Self { layout, mapping, parts, clocks, file, host };
        if let Some(rings) = config.sessions[0] {
            region.open_session(0, MAIN_SESSION, rings)?;
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
        self.parts.memory()
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

    /// What the guest writes.
    #[must_use]
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Gives session slot `slot` to a session called `name`, inactive, with `rings`.
    ///
    /// # Errors
    /// When the slot is in use, the guest has not let go of it yet, or it has too little room.
    pub fn open_session(&self, slot: usize, name: &str, rings: Rings) -> Result<(), HostError> {
        self.host().open_session(slot, name, rings, |memory, part| self.zero(memory, part)).map(|_| ())
    }

    /// Takes session slot `slot` back, if it is in use. The guest lets go of it within a moment: see
    /// [`is_free`](Self::is_free).
    pub fn close_session(&self, slot: usize) {
        // What is not open is closed.
        let _ = self.host().close_session(slot);
    }

    /// Whether session slot `slot` is not in use, by the guest either.
    #[must_use]
    pub fn is_free(&self, slot: usize) -> bool {
        self.host().is_free(slot)
    }

    /// Says which events the session in `slot` records from now on. A slot without a session records none.
    pub fn set_enabled(&self, slot: usize, enabled: &EnabledEvents) {
        // A session that is gone has nothing to enable.
        let _ = self.host().enable(slot, enabled);
    }

    /// Tells the guest whether anybody reads its rings.
    pub fn set_host_alive(&self, alive: bool) {
        self.host().set_alive(alive);
    }

    fn host(&self) -> MutexGuard<'_, Region> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Zeroes a part of the region, and gives its memory back where the file system can do that.
    fn zero(&self, memory: &HostMemory, part: Range<usize>) {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if !part.is_empty() && fallocate(&self.file, punch, part.start as u64, part.len() as u64).is_err() {
            memory.clear(part.start, part.len());
        }
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
    use shared_ring::layout::{Geometry, Mode, RING_ADOPTED};

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
    fn published_clock_is_what_a_guest_reads() {
        let region = region();
        region.publish_clock(1, &Relation::from_tsc_offset(-500, 1_000));

        let entry = region.memory().part(region.layout().clock_entry(1), 256);
        // SAFETY: the entry is inside the region, which outlives the reader.
        let reader = unsafe { Reader::new(entry.base()) };

        assert_eq!(reader.now(|| 700), 1_200);
    }

    #[test]
    fn rings_of_a_slot_that_is_given_out_again_are_zero() {
        let region = region();
        let adopted = region.layout().kernel_ring(1, 1) + RING_ADOPTED;

        region.open_session(1, "other", rings()).unwrap();
        region.memory().store(adopted, 2);
        region.close_session(1);
        let held = region.open_session(1, "third", rings());
        region.memory().store(adopted, 0);
        region.memory().store(adopted + 4096, 7);
        region.open_session(1, "third", rings()).unwrap();

        assert_eq!(held, Err(HostError::NotReleased { slot: 1 }));
        assert_eq!(region.memory().load(adopted + 4096), 0);
        assert!(region.open_session(2, "no room", rings()).is_err());
    }

    #[test]
    fn text_of_a_guest_is_made_harmless() {
        assert_eq!(guest_text(b"6.1.0\x1b[2J\0junk"), "6.1.0?[2J");
    }
}
