//! The trace region of a running machine: one memory object that the guest sees too.
#![allow(unsafe_code)] // Clock entries and host views are made from the mapping's raw address, which parts are closed by.

pub mod cut_file;
pub mod mapped_file;
pub mod process_table;
pub mod region_file;

use crate::persistent_memory;
use crate::region::cut_file::CutFile;
use crate::region::mapped_file::{MappedFileError, check_room, give_back, map_all, no_room, reserve};
use crate::region::region_file::{RegionFile, RegionFileError};
use clock_sync::entry::{EntryMemory, Writer};
use clock_sync::relation::Relation;
use memmap2::MmapRaw;
use rustix::mm::{MprotectFlags, mprotect};
use shared_ring::consumer;
use shared_ring::event::{EventDescription, MAX_NAME};
pub use shared_ring::host::EnabledEvents;
use shared_ring::host::memory::{HostMemory, RingMemory};
use shared_ring::host::words::HostWords;
use shared_ring::host::{HostError, Parts, Region};
use shared_ring::layout::{PAGE_SIZE, RING_ADOPTED, RING_HEADER_SIZE, SESSION_SLOTS};
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
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
    /// The file of another VMM's device cannot be used.
    #[error(transparent)]
    File(#[from] RegionFileError),
}

/// A part of the region that the guest gets in a memory slot of its own.
#[derive(Clone, Debug)]
pub struct RegionSlot {
    /// The host's mapping of the whole region.
    pub mapping: Arc<MmapRaw>,
    /// Where in the mapping the slot begins, bytes; a multiple of 4096.
    pub offset: usize,
    /// Size of the slot, bytes; a multiple of 4096.
    pub size: usize,
    /// Whether writes by the guest are to be refused.
    pub read_only: bool,
}

/// What interrupts the guest.
struct Doorbell(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Doorbell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Doorbell")
    }
}

/// The region: its bytes, its layout and the host's writers in it.
///
/// All of its memory that the guest can touch is reserved: nothing that a guest does takes more of the host's. The rings of
/// a session slot are when a session is opened in it; until then they are closed to the guest, whose VM KVM ends if it
/// tries (KVM that only emulates takes them for nothing).
#[derive(Debug)]
pub struct TraceRegion {
    layout: RegionLayout,
    parts: Parts,
    words: HostWords,
    clocks: Vec<Mutex<Writer<ClockEntry>>>,
    host: Mutex<Region<HostWords>>,
    doorbell: OnceLock<Doorbell>,
    /// Words that the guest had changed and that were the host's.
    restored: AtomicU64,
    backing: Backing,
}

/// What a region's memory lies in.
#[derive(Debug)]
enum Backing {
    /// A file of this process, which runs the VM.
    Own { mapping: Arc<MmapRaw>, file: File },
    /// The file of a device of another VMM's, all of it reserved.
    Device {
        /// Nobody else records into the file as long as it is locked.
        #[expect(dead_code, reason = "kept, not read")]
        lock: File,
        memory: Arc<CutFile>,
    },
}

/// A vCPU's clock entry, as its writer has it.
#[derive(Debug)]
struct ClockEntry {
    words: HostWords,
    at: usize,
}

impl EntryMemory for ClockEntry {
    fn load(&self, offset: usize) -> u64 {
        self.words.load(self.at + offset)
    }

    fn load_acquire(&self, offset: usize) -> u64 {
        self.words.load(self.at + offset)
    }

    fn store(&self, offset: usize, value: u64) {
        self.words.store(self.at + offset, value);
    }

    fn store_release(&self, offset: usize, value: u64) {
        self.words.store(self.at + offset, value);
    }

    fn acquire_fence(&self) {
        fence(Ordering::Acquire);
    }

    fn release_fence(&self) {
        fence(Ordering::Release);
    }
}

/// Pause between two looks whether the guest has let go of its rings.
const SETTLE_PAUSE: Duration = Duration::from_millis(10);

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
            reserve(&file, part.clone()).map_err(|source| no_room(&file, needed, source))?;
            persistent_memory::prepare(&file, part.start as u64..part.end as u64).map_err(failed)?;
        }
        for part in on_demand {
            protect(&mapping, part, MprotectFlags::empty()).map_err(failed)?;
        }
        let base = mapping.as_mut_ptr();
        // SAFETY: the mapping is page-aligned, `layout.size` bytes long, lives as long as its owner, and is accessed
        // only through atomics: by this view and its parts, by the clock writers below, and by the guest.
        let memory = unsafe { HostMemory::new(base, layout.size, Arc::clone(&mapping) as _) };
        let words = HostWords::protected(memory.clone());
        let host = Region::create(words.clone(), layout, *clock.as_bytes(), clock_frequency)?;
        let region = Self::of(layout, Parts::of(memory, &layout)?, words, host, 0, Backing::Own { mapping, file });
        if let Some(rings) = config.sessions[0] {
            region.open_session(0, MAIN_SESSION, rings)?;
        }
        Ok(region)
    }

    /// The region in the file of another VMM's device, with no session and no clock entry valid. What an earlier host has left
    /// is taken back; the guest has to [`settle`](Self::settle) before a session can be opened.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn behind_device(file: RegionFile, clock: Uuid, clock_frequency: u64) -> Result<Self, RegionError> {
        let RegionConfig { vcpus, process_slots, .. } = file.config;
        let layout = RegionLayout::new(file.config).map_err(|_| RegionError::TooLarge { vcpus, process_slots })?;
        let mapped = file.map()?;
        let memory = mapped.memory();
        let words = HostWords::of_region(memory.clone(), &layout, *clock.as_bytes(), clock_frequency);
        // Above whatever an earlier host has counted to: none makes a billion sessions or epochs a second.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2).max(1);
        let host = Region::create(words.clone(), layout, *clock.as_bytes(), clock_frequency)?.numbered_from(number);
        let parts = Parts::of(memory, &layout)?.written_through(words.clone());
        Ok(Self::of(layout, parts, words, host, number, Backing::Device { lock: file.file, memory: mapped }))
    }

    /// The region of these parts, whose clock entries had fewer than `number` updates.
    fn of(
        layout: RegionLayout,
        parts: Parts,
        words: HostWords,
        host: Region<HostWords>,
        number: u64,
        backing: Backing,
    ) -> Self {
        let entry = |vcpu| ClockEntry { words: words.clone(), at: layout.clock_entry(vcpu) };
        let clocks = (0..layout.config.vcpus).map(|vcpu| Mutex::new(Writer::after(entry(vcpu), number))).collect();
        let (host, doorbell, restored) = (Mutex::new(host), OnceLock::new(), AtomicU64::new(0));
        Self { layout, parts, words, clocks, host, doorbell, restored, backing }
    }

    /// Whether it lies behind a device, where the guest can write all of it.
    #[must_use]
    pub const fn is_behind_device(&self) -> bool {
        matches!(self.backing, Backing::Device { .. })
    }

    /// Whether its file was cut short by who else may write it: what was behind the end is gone, and reads as zero.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(&self.backing, Backing::Device { memory, .. } if memory.is_cut())
    }

    /// Waits until the guest has let go of the rings of all closed sessions, `limit` at most. Then they are taken from it: it has
    /// been reset, or does not answer, and what it still writes there harms its own records only. Says whether it has let go.
    pub fn settle(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        while !(0..SESSION_SLOTS).all(|slot| self.is_free(slot)) {
            if begun.elapsed() >= limit {
                for slot in (0..SESSION_SLOTS).filter(|&slot| self.layout.session_ring_stride[slot] > 0) {
                    let rings = (0..self.layout.config.vcpus).map(|vcpu| self.layout.kernel_ring(slot, vcpu));
                    rings.for_each(|ring| self.memory().store(ring + RING_ADOPTED, 0));
                }
                return false;
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
        true
    }

    /// Closes all sessions, and waits until the guest has let go of them, `limit` at most: what it recorded is complete then.
    pub fn end_sessions(&self, limit: Duration) {
        (0..SESSION_SLOTS).for_each(|slot| self.close_session(slot));
        self.settle(limit);
    }

    /// Whether a vCPU has begun to record for the session in slot 0, or is ready to.
    #[must_use]
    pub fn has_guest(&self) -> bool {
        let ring = |vcpu| self.memory().part(self.layout.kernel_ring(0, vcpu), RING_HEADER_SIZE);
        (0..self.layout.config.vcpus).any(|vcpu| consumer::has_joined(&ring(vcpu)))
    }

    /// Puts right what the guest has changed of the host's words. Says how many words were not what the host had written, in
    /// all; none where the guest cannot write them.
    pub fn restore(&self) -> u64 {
        let changed = self.words.restore();
        // What went with the file nobody has changed.
        let changed = if self.is_cut() { 0 } else { changed };
        self.restored.fetch_add(changed, Ordering::Relaxed).saturating_add(changed)
    }

    /// Has `ring` called from now on, from any thread, when the guest is to look at its sessions: it raises the guest's
    /// edge-triggered global system interrupt `gsi`, which is not 0. Once, before the guest runs.
    pub fn set_doorbell(&self, gsi: u32, ring: impl Fn() + Send + Sync + 'static) {
        self.host().set_doorbell(gsi);
        // A second one would be rung by nobody, and is not announced to a running guest.
        let _ = self.doorbell.set(Doorbell(Box::new(ring)));
    }

    /// Has the guest look at its sessions and at requests to its rings.
    pub fn ring_doorbell(&self) {
        if let Some(doorbell) = self.doorbell.get() {
            (doorbell.0)();
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

    /// The memory slots that the guest gets: what only the host writes, read-only; then the rest. None where a device of
    /// another VMM's shows it the region.
    #[must_use]
    pub fn slots(&self) -> Vec<RegionSlot> {
        let Backing::Own { mapping, .. } = &self.backing else { return Vec::new() };
        let slot =
            |offset, end, read_only| RegionSlot { mapping: Arc::clone(mapping), offset, size: end - offset, read_only };
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
        let zero = |memory: &HostWords, _| {
            parts.iter().for_each(|part| memory.clear(part.start, part.len()));
            if let Backing::Own { file, .. } = &self.backing {
                // Where it fails, a crash of the host may take the first records.
                let _ = persistent_memory::commit(file);
            }
        };
        let opened = self
            .reserve_rings(&parts)
            .and_then(|()| Ok(self.host().open_session(slot, name, rings, zero).map(|_| ())?));
        match &opened {
            Ok(()) => self.ring_doorbell(),
            Err(_) => drop(self.vacate(slot)),
        }
        opened
    }

    /// Has memory for the rings at `parts`.
    fn reserve_rings(&self, parts: &[Range<usize>]) -> Result<(), RegionError> {
        let Backing::Own { mapping, file } = &self.backing else { return Ok(()) };
        let size = parts.iter().map(Range::len).sum();
        let reserved = parts.iter().try_for_each(|part| {
            reserve(file, part.clone())?;
            protect(mapping, part.clone(), MprotectFlags::READ | MprotectFlags::WRITE)
        });
        reserved.map_err(|source| no_room(file, size, source).into())
    }

    /// Gives the memory of session slot `slot`'s rings back, if nobody uses them; `false` where the guest still does. The
    /// caller has read what it wants of them.
    pub fn vacate(&self, slot: usize) -> bool {
        let is_free = self.host().is_free(slot);
        let Backing::Own { mapping, file } = &self.backing else { return true };
        if slot == 0 || !is_free {
            return is_free;
        }
        for part in self.ring_parts(slot, usize::MAX).into_iter().map(without_first_page) {
            // Whoever can touch it keeps it.
            if protect(mapping, part.clone(), MprotectFlags::empty()).is_ok() {
                give_back(file, part);
            }
        }
        true
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

    fn host(&self) -> MutexGuard<'_, Region<HostWords>> {
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
    //! Shows: A QEMU guest is recorded through a device that it can write completely.

    use super::*;
    use crate::region::region_file;
    use clock_sync::entry::Reader;
    use shared_ring::layout::{Geometry, MAX_PROCESS_SLOTS, MAX_VCPUS, Mode};
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

    /// The region of another VMM's device, and its memory as the guest has it.
    fn behind_device() -> (tempfile::TempDir, TraceRegion, HostMemory) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        region_file::create(&path, region_file::tests::SHAPE, None).unwrap();
        let region = TraceRegion::behind_device(RegionFile::open(&path).unwrap(), Uuid::nil(), 1_000).unwrap();
        let memory = region.memory().clone();
        (folder, region, memory)
    }

    #[test]
    fn guest_that_writes_over_the_hosts_words_changes_nothing_but_its_count() {
        let (_folder, region, memory) = behind_device();
        let host_area = region.layout().guest_writable;
        let enabled = EnabledEvents { class_mask: 6, events: [1; 64] };
        region.publish_clock(1, &Relation::from_tsc_offset(-500, 1_000));
        region.open_session(0, MAIN_SESSION, rings()).unwrap();
        region.set_enabled(0, &enabled);
        region.set_host_alive(true);
        region.parts().acknowledge(1, 7);
        let words = |memory: &HostMemory| (0..host_area).step_by(8).map(|at| memory.load(at)).collect::<Vec<_>>();
        let written = words(&memory);
        let untouched = region.restore();

        (0..host_area).step_by(8).for_each(|at| memory.store(at, 0xbad));
        let restored = region.restore();
        (0..host_area).step_by(4096).for_each(|at| memory.store(at, u64::MAX));
        let number = region.publish_clock(1, &Relation::from_tsc_offset(-600, 2_000));
        region.close_session(0);
        let again = region.restore();

        assert_eq!((untouched, restored), (0, host_area as u64 / 8));
        assert!(again > restored && again < restored + 8, "{again}");
        assert!(number > 1_000_000_000 && words(&memory)[0] == written[0]);
        assert_eq!(memory.load(region.layout().session_slot(0) + 72), 0);
    }

    #[test]
    fn hosts_words_that_went_with_the_file_were_changed_by_nobody() {
        let (folder, region, _memory) = behind_device();

        let before = (region.restore(), region.is_cut());
        File::options().write(true).open(folder.path().join("region")).unwrap().set_len(0).unwrap();
        let after = (region.restore(), region.is_cut());

        assert_eq!((before, after), ((0, false), (0, true)));
    }

    #[test]
    fn host_that_comes_again_takes_the_rings_of_a_guest_that_was_reset() {
        let (_folder, region, memory) = behind_device();
        let adopted = region.layout().kernel_ring(0, 1) + RING_ADOPTED;
        region.open_session(0, MAIN_SESSION, rings()).unwrap();
        let first = memory.load(region.layout().session_slot(0) + 72);
        memory.store(adopted, first);
        let had_guest = region.has_guest();

        region.end_sessions(Duration::ZERO);
        region.open_session(0, MAIN_SESSION, rings()).unwrap();

        assert!(had_guest && !region.has_guest());
        assert_eq!(memory.load(region.layout().session_slot(0) + 72), first + 1);
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
