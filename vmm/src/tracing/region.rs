//! The trace region of a running machine: one memory object that the guest sees too.
#![allow(unsafe_code)] // Clock entries and host views are made from the mapping's raw address, which parts are closed by.

use super::mapped_file::{MappedFileError, check_room, give_back, map_all, no_room, reserve};
use crate::machine::{Doorbell, SharedSlot};
use clock_sync::entry::Writer;
use clock_sync::relation::Relation;
use memmap2::MmapRaw;
use rustix::mm::{MprotectFlags, mprotect};
use shared_ring::event::{EventDescription, MAX_NAME};
pub use shared_ring::host::EnabledEvents;
use shared_ring::host::{HostError, Parts, Region};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{PAGE_SIZE, SESSION_SLOTS};
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
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
    /// Its memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MappedFileError),
    /// The region does not take what is written to it.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The region: its bytes, its layout and the host's writers in it.
///
/// All of its memory that the guest can touch is reserved: nothing that a guest does takes more of the host's. The rings of
/// a session slot are when a session is opened in it; until then they are closed to the guest, whose VM KVM ends if it
/// tries (KVM that only emulates takes them for nothing).
#[derive(Debug)]
pub struct TraceRegion {
    layout: RegionLayout,
    mapping: Arc<MmapRaw>,
    parts: Parts,
    clocks: Vec<Mutex<Writer>>,
    file: File,
    host: Mutex<Region>,
    doorbell: OnceLock<Doorbell>,
}

/// Name of the session that a VM is started with, in slot 0.
pub const MAIN_SESSION: &str = "main";

impl TraceRegion {
    /// A fresh region in `file`, which is empty: initialised, with its first session inactive and no clock entry valid.
    /// All of it is reserved but for the rings of the other sessions.
    ///
    /// # Errors
    /// When `config` is too large or there is no room for it.
    pub fn create(file: File, config: RegionConfig, clock: Uuid, clock_frequency: u64) -> Result<Self, RegionError> {
        let too_large = RegionError::TooLarge { vcpus: config.vcpus, process_slots: config.process_slots };
        let layout = RegionLayout::new(config).map_err(|_| too_large)?;
        let failed = |source| MappedFileError::Refused { size: layout.size, source };
        let (always, on_demand) = parts_to_reserve(&layout);
        let needed = always.iter().map(Range::len).sum();
        check_room(&file, needed)?;
        let mapping = Arc::new(map_all(&file, layout.size).map_err(failed)?);
        for part in always {
            reserve(&file, part).map_err(|source| no_room(&file, needed, source))?;
        }
        for part in on_demand {
            protect(&mapping, part, MprotectFlags::empty()).map_err(failed)?;
        }
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
        let region = Self { layout, mapping, parts, clocks, file, host, doorbell: OnceLock::new() };
        if let Some(rings) = config.sessions[0] {
            region.open_session(0, MAIN_SESSION, rings)?;
        }
        Ok(region)
    }

    /// Has `doorbell` rung from now on when the guest is to look at its sessions. Once, before the guest runs.
    pub fn set_doorbell(&self, doorbell: Doorbell) {
        self.host().set_doorbell(doorbell.gsi());
        // A second one would be rung by nobody, and is not announced to a running guest.
        let _ = self.doorbell.set(doorbell);
    }

    /// Has the guest look at its sessions and at what is asked of its rings.
    pub fn ring_doorbell(&self) {
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring();
        }
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

    /// Gives session slot `slot` to a session called `name`, inactive, with `rings`, whose memory is reserved.
    ///
    /// # Errors
    /// When the slot is in use, the guest has not let go of it yet, it has too little room, or there is too little memory.
    pub fn open_session(&self, slot: usize, name: &str, rings: Rings) -> Result<(), RegionError> {
        let parts = self.ring_parts(slot, rings.ring_size());
        let size = parts.iter().map(Range::len).sum();
        let reserved = parts.iter().try_for_each(|part| {
            reserve(&self.file, part.clone())?;
            protect(&self.mapping, part.clone(), MprotectFlags::READ | MprotectFlags::WRITE)
        });
        let zero = |memory: &HostMemory, _| parts.iter().for_each(|part| memory.clear(part.start, part.len()));
        let opened = reserved
            .map_err(|source| no_room(&self.file, size, source).into())
            .and_then(|()| Ok(self.host().open_session(slot, name, rings, zero).map(|_| ())?));
        match &opened {
            Ok(()) => self.ring_doorbell(),
            Err(_) => self.vacate(slot),
        }
        opened
    }

    /// Gives the memory of session slot `slot`'s rings back, if nobody uses them. The caller has read what it wants of them.
    pub fn vacate(&self, slot: usize) {
        let host = self.host();
        if slot == 0 || !host.is_free(slot) {
            return;
        }
        for part in self.ring_parts(slot, usize::MAX).into_iter().map(without_first_page) {
            // Whoever can touch it keeps it.
            if protect(&self.mapping, part.clone(), MprotectFlags::empty()).is_ok() {
                give_back(&self.file, part);
            }
        }
    }

    /// The first `size` bytes of each vCPU's ring in session slot `slot`, or as many as there are.
    fn ring_parts(&self, slot: usize, size: usize) -> Vec<Range<usize>> {
        let room = self.layout.session_ring_stride.get(slot).map_or(0, |&room| size.min(room));
        let ring = |vcpu| self.layout.kernel_ring(slot, vcpu)..self.layout.kernel_ring(slot, vcpu) + room;
        if room == 0 { Vec::new() } else { (0..self.layout.config.vcpus).map(ring).collect() }
    }

    /// Takes session slot `slot` back, if it is in use. The guest lets go of it within a moment: see
    /// [`is_free`](Self::is_free).
    pub fn close_session(&self, slot: usize) {
        // What is not open is closed.
        let _ = self.host().close_session(slot);
        self.ring_doorbell();
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
        self.ring_doorbell();
    }

    /// Tells the guest whether anybody reads its rings.
    pub fn set_host_alive(&self, alive: bool) {
        self.host().set_alive(alive);
    }

    fn host(&self) -> MutexGuard<'_, Region> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What of a region is always reserved, and what only while a session has it: the rings in the slots after the first but for
/// their first pages, where the host looks whether the guest has let go.
fn parts_to_reserve(layout: &RegionLayout) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let mut always = vec![0..layout.session_rings[1], layout.process_pool..layout.size];
    let mut on_demand = Vec::new();
    for slot in (1..SESSION_SLOTS).filter(|&slot| layout.session_ring_stride[slot] > 0) {
        for begin in (0..layout.config.vcpus).map(|vcpu| layout.kernel_ring(slot, vcpu)) {
            always.push(begin..begin + PAGE_SIZE);
            on_demand.push(without_first_page(begin..begin + layout.session_ring_stride[slot]));
        }
    }
    always.retain(|part| !part.is_empty());
    (always, on_demand)
}

const fn without_first_page(ring: Range<usize>) -> Range<usize> {
    ring.start + PAGE_SIZE..ring.end
}

/// Says what may be done with `part`, whole pages, of `mapping`: by this process, and through it by the guest.
fn protect(mapping: &MmapRaw, part: Range<usize>, access: MprotectFlags) -> io::Result<()> {
    assert!(part.start <= part.end && part.end <= mapping.len(), "the layout lies inside its mapping");
    // SAFETY: the range lies inside the mapping, as was just checked. Nobody holds a reference into it, only addresses;
    // memory that is closed is not accessed: rings of a slot without a session are looked at in their first pages alone.
    unsafe { mprotect(mapping.as_mut_ptr().add(part.start).cast(), part.len(), access) }?;
    Ok(())
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
    use shared_ring::layout::{Geometry, MAX_PROCESS_SLOTS, MAX_VCPUS, Mode, RING_ADOPTED};
    use std::os::unix::fs::MetadataExt;

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

        assert!(matches!(held, Err(RegionError::Host(HostError::NotReleased { slot: 1 }))), "{held:?}");
        assert_eq!(region.memory().load(adopted + 4096), 0);
        assert!(region.open_session(2, "no room", rings()).is_err());
    }

    #[test]
    fn text_of_a_guest_is_made_harmless() {
        assert_eq!(guest_text(b"6.1.0\x1b[2J\0junk"), "6.1.0?[2J");
    }

    /// Pages of `file` that take memory.
    fn pages(file: &File) -> u64 {
        file.metadata().unwrap().blocks() * 512 / 4096
    }

    /// A region whose sessions after the first have rings of 64 pages, and the memory that lies in a file beside it.
    fn region_in_memory() -> (TraceRegion, File) {
        let large = Rings { geometry: Geometry::new(32 << 10, 8).unwrap(), mode: Mode::Discard };
        let config = RegionConfig {
            vcpus: 2,
            sessions: [Some(rings()), Some(large), Some(large), None],
            process_rings: rings(),
            process_slots: 2,
            registry_size: 4096,
            process_registry_size: 4096,
        };
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let region = TraceRegion::create(file.try_clone().unwrap(), config, Uuid::nil(), 1_000_000_000).unwrap();
        (region, file)
    }

    #[test]
    fn all_that_the_guest_can_touch_is_reserved() {
        let (region, file) = region_in_memory();
        let layout = region.layout();
        let closed = (1..3).map(|slot| 2 * (layout.session_ring_stride[slot] - PAGE_SIZE)).sum::<usize>();
        let open = (layout.size - closed).div_ceil(PAGE_SIZE) as u64;
        let before = pages(&file);

        (0..layout.session_rings[1]).step_by(PAGE_SIZE).for_each(|at| region.memory().store(at, 1));
        (layout.process_pool..layout.size).step_by(PAGE_SIZE).for_each(|at| region.memory().store(at, 1));

        assert_eq!((before, pages(&file)), (open, open));
    }

    #[test]
    fn rings_of_a_session_are_reserved_while_it_has_them() {
        let (region, file) = region_in_memory();
        let before = pages(&file);

        region.open_session(1, "extra", rings()).unwrap();
        let opened = pages(&file);
        region.vacate(1);
        let in_use = pages(&file);
        region.close_session(1);
        region.vacate(1);
        let vacated = pages(&file);
        region.open_session(1, "again", rings()).unwrap();

        let more = 2 * (rings().ring_size() / PAGE_SIZE - 1) as u64;
        assert_eq!([opened, in_use, vacated, pages(&file)], [before + more, before + more, before, before + more]);
        assert_eq!(region.memory().load(region.layout().kernel_ring(1, 1) + 4096), 0);
    }

    #[test]
    fn region_that_does_not_fit_is_refused_with_the_bytes_that_it_needs() {
        let rings = Rings { geometry: Geometry::new(4 << 20, 256).unwrap(), mode: Mode::Discard };
        let config = RegionConfig {
            vcpus: MAX_VCPUS,
            sessions: [Some(rings), None, None, None],
            process_rings: rings,
            process_slots: MAX_PROCESS_SLOTS,
            registry_size: 4096,
            process_registry_size: 4096,
        };

        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let error = TraceRegion::create(file, config, Uuid::nil(), 1_000_000_000).unwrap_err();

        assert!(
            matches!(error, RegionError::Memory(MappedFileError::NoRoom { size, .. }) if size > 4 << 40),
            "{error}"
        );
        assert!(error.to_string().contains("fewer --process-slots"), "{error}");
    }
}
