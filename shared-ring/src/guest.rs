//! The guest's half of a region: what the host tells everyone, which sessions a vCPU records for, and process slots.
//!
//! - [`HostArea`] is what only the host writes: superblock, sessions, clock entries. The guest's kernel has it, and so does
//!   every process that records.
//! - [`SessionRings`] follows the sessions on one vCPU: it adopts rings, records into them through their producers, and
//!   lets go of them. [`host`](crate::host) draws both sides of that agreement.
//! - [`Region`] is all of it, for the guest's kernel: the agent's state, and giving process slots to processes.
//!
//! A guest that finds something impossible in the region uses nothing of it. No function panics, waits or allocates.
#![allow(unsafe_code)] // The region is memory of the host: raw pointers, and storages whose methods are unsafe.

mod process_slots;
mod session_rings;

pub use process_slots::CLEARED_AT_ONCE;
pub use session_rings::SessionRings;

use crate::layout::{ABI_VERSION, AgentState, MAX_EVENTS, SessionSlot, Superblock};
use crate::registry::Registry;
use crate::storage::{MappedStorage, Smp, Storage};
use crate::view::{RegionView, Session, SessionSettings, ViewError, session_slot};
use core::mem::offset_of;
use core::sync::atomic::{Ordering, fence};

/// Memory that the host writes too, with the fences that reading it takes.
/// For an example see [`host::Region`](crate::host::Region).
pub trait GuestMemory: Storage {
    /// Keeps earlier loads before later loads and stores.
    fn fence_acquire(&self);
    /// Keeps earlier stores before later loads, as seen by whoever has such a fence too.
    fn fence_full(&self);
}

impl GuestMemory for Smp {
    #[inline(always)]
    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }

    #[inline(always)]
    fn fence_full(&self) {
        fence(Ordering::SeqCst);
    }
}

/// What the host tells everyone, at the beginning of a region.
/// For an example see [`host::Region`](crate::host::Region).
#[derive(Clone, Copy, Debug)]
pub struct HostArea<S = Smp> {
    storage: S,
    view: RegionView,
}

impl<S: GuestMemory> HostArea<S> {
    /// The host's area that begins at the storage's first byte.
    ///
    /// # Safety
    /// `storage` covers [`view.host_area_size()`](RegionView::host_area_size) bytes, which the host alone writes.
    #[must_use]
    pub const unsafe fn new(storage: S, view: RegionView) -> Self {
        Self { storage, view }
    }

    /// What was checked of the region.
    #[must_use]
    pub const fn view(&self) -> &RegionView {
        &self.view
    }

    /// Whether a host reads the rings.
    #[must_use]
    pub fn is_host_alive(&self) -> bool {
        // SAFETY: a word of the superblock, inside the area.
        unsafe { self.storage.load(offset_of!(Superblock, host_alive)) != 0 }
    }

    /// The session in `slot`; `None` when the slot is not in use, or its settings are changing, or they cannot be used.
    ///
    /// The acquire load of the generation pairs with the host's release store that opens the session: settings and rings are
    /// as the host made them. The acquire fence pairs with the host's fence after closing it: settings of a later session are
    /// seen together with the changed generation.
    #[must_use]
    pub fn session(&self, slot: usize) -> Option<Session> {
        let at = session_slot(slot)?;
        // SAFETY: the session table lies inside the area.
        let generation = unsafe { self.storage.load_acquire(at + offset_of!(SessionSlot, generation)) };
        if generation == 0 {
            return None;
        }
        // SAFETY: as above.
        let settings = SessionSettings::copy(slot, generation, |offset| unsafe { self.storage.load(at + offset) });
        self.storage.fence_acquire();
        if !self.is_current(slot, generation) && !mutated!(SettingsNotRechecked) {
            return None;
        }
        self.view.session(&settings).ok().flatten()
    }

    /// The classes of events that the session in `slot` records, a bit each; 0 when there is no such slot.
    #[must_use]
    pub fn class_mask(&self, slot: usize) -> u64 {
        let Some(at) = session_slot(slot) else { return 0 };
        // SAFETY: the session table lies inside the area.
        unsafe { self.storage.load(at + offset_of!(SessionSlot, class_mask)) }
    }

    /// Whether the session in `slot` records event `id` of class `class`. `false` when there is no such slot or event.
    #[must_use]
    pub fn is_enabled(&self, slot: usize, class: u8, id: u16) -> bool {
        let Some(at) = session_slot(slot) else { return false };
        if usize::from(id) >= MAX_EVENTS || self.class_mask(slot) >> (class & 63) & 1 == 0 {
            return false;
        }
        let word = at + offset_of!(SessionSlot, event_enable) + usize::from(id) / 64 * 8;
        // SAFETY: the session table lies inside the area, and the word in the slot, which has a bit for each event.
        unsafe { self.storage.load(word) >> (id % 64) & 1 == 1 }
    }

    /// Whether session slot `slot` is still in use as `generation`.
    fn is_current(&self, slot: usize, generation: u64) -> bool {
        let Some(at) = session_slot(slot) else { return false };
        // SAFETY: the session table lies inside the area.
        unsafe { self.storage.load(at + offset_of!(SessionSlot, generation)) == generation }
    }
}

/// A region in the guest's kernel.
/// For an example see [`host::Region`](crate::host::Region).
#[derive(Clone, Copy, Debug)]
pub struct Region {
    area: HostArea,
}

impl Region {
    /// The region at `base`, where `size` bytes are mapped.
    ///
    /// # Errors
    /// When it is not a region, has another major version, or its parts do not fit their places.
    ///
    /// # Safety
    /// `base` is aligned to 8, and `size` bytes there stay mapped while the region and what is made from it are used:
    /// readable, and writable from the superblock's `guest_writable_offset` on.
    pub unsafe fn open(base: *mut u8, size: u64) -> Result<Self, ViewError> {
        // SAFETY: passed on from the caller.
        let storage = unsafe { Smp::new(base) };
        // SAFETY: the superblock is mapped when `size` says so, and is not loaded otherwise (`read`).
        let view = RegionView::read(|offset| unsafe { storage.load(offset) }, size)?;
        // SAFETY: the view was checked against the size of the mapping.
        Ok(Self { area: unsafe { HostArea::new(storage, view) } })
    }

    /// What the host tells everyone.
    #[must_use]
    pub const fn area(&self) -> &HostArea {
        &self.area
    }

    /// What was checked of the region.
    #[must_use]
    pub const fn view(&self) -> &RegionView {
        &self.area.view
    }

    /// The address of an offset that the region's view gives.
    #[must_use]
    pub fn pointer(&self, offset: usize) -> *mut u8 {
        self.area.storage.pointer(offset)
    }

    /// The kernel's event registry, for writing.
    ///
    /// # Safety
    /// Nobody else writes it while this is used: one agent at a time.
    #[must_use]
    pub unsafe fn registry(&self) -> Registry<Smp> {
        let (at, size) = self.view().registry();
        // SAFETY: the registry lies inside the region (checked by `open`); the rest is passed on from the caller.
        unsafe { Registry::new(self.part(at), size) }
    }

    /// Tells the host that the agent of kernel `release` (cut to the field) is alive, and where the kernel's function
    /// `schedule` lies, or 0. After this the host reads the rings. The release store of the state pairs with the host's
    /// acquire load.
    pub fn announce(&self, release: &[u8], schedule_at: u64, state: u64) {
        let agent = self.part(self.view().agent());
        let mut name = [0_u8; 64];
        // The last byte stays NUL.
        for (to, from) in name.iter_mut().take(63).zip(release) {
            *to = *from;
        }
        // SAFETY: the agent's state lies inside the region (checked by `open`), the name being 8 words of it.
        unsafe {
            agent.store(offset_of!(AgentState, abi_version), u64::from(ABI_VERSION));
            for (word, bytes) in name.chunks_exact(8).enumerate() {
                let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
                agent.store(offset_of!(AgentState, kernel_release) + word * 8, value);
            }
            agent.store(offset_of!(AgentState, crash_kernel_at), 0);
            agent.store(offset_of!(AgentState, schedule_at), schedule_at);
            agent.store_release(offset_of!(AgentState, state), state);
        }
    }

    /// Tells the host another state without touching the rest.
    pub fn set_state(&self, state: u64) {
        // SAFETY: as in `announce`.
        unsafe { self.part(self.view().agent()).store_release(offset_of!(AgentState, state), state) };
    }

    /// Tells the host that the kernel is left for its crash kernel at `time`, ticks, while other CPUs may still record. Any
    /// context.
    pub fn note_crash_kernel(&self, time: u64) {
        // SAFETY: as in `announce`.
        unsafe { self.part(self.view().agent()).store_release(offset_of!(AgentState, crash_kernel_at), time) };
    }

    /// The part of the region at `offset`, a multiple of 8 that the view gave.
    fn part(&self, offset: usize) -> Smp {
        // SAFETY: the region is aligned to 8 and outlives what is made from it (contract of `open`).
        unsafe { Smp::new(self.pointer(offset)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;
    use crate::host::EnabledEvents;
    use crate::host::memory::HostMemory;
    use crate::layout::{AGENT_ALIVE, AGENT_GONE, Geometry, Mode};
    use crate::region::{RegionConfig, RegionLayout, Rings};

    /// A region for two vCPUs with two process slots, a session in slot 0 and room for one in slot 2, and both sides of it.
    pub(super) struct Sides {
        pub(super) memory: HostMemory,
        pub(super) host: host::Region,
        pub(super) guest: Region,
    }

    pub(super) fn rings(mode: Mode) -> Rings {
        Rings { geometry: Geometry::new(4096, 4).unwrap(), mode }
    }

    pub(super) fn sides() -> Sides {
        let layout = RegionLayout::new(RegionConfig {
            vcpus: 2,
            sessions: [Some(rings(Mode::Discard)), None, Some(rings(Mode::FlightRecorder)), None],
            process_rings: rings(Mode::FlightRecorder),
            process_slots: 2,
            registry_size: 4096,
            process_registry_size: 4096,
        })
        .unwrap();
        let memory = HostMemory::private(layout.size);
        let mut host = host::Region::create(memory.clone(), layout, [7; 16], 1_000).unwrap();
        host.open_session(0, "main", rings(Mode::Discard), |_, _| ()).unwrap();
        // SAFETY: the memory is aligned and as large as it says, and lives as long as the sides do.
        let guest = unsafe { Region::open(memory.base(), memory.size() as u64) }.unwrap();
        Sides { memory, host, guest }
    }

    #[test]
    fn guest_finds_the_session_that_the_host_opened() {
        let sides = sides();

        let session = sides.guest.area().session(0).unwrap();

        assert_eq!((session.slot, session.generation, session.rings), (0, 1, rings(Mode::Discard)));
        assert_eq!(&session.name[..5], b"main\0");
        assert_eq!(session.ring(1), Some(sides.host.layout().kernel_ring(0, 1)));
        assert!((1..9).all(|slot| sides.guest.area().session(slot).is_none()));
    }

    #[test]
    fn session_whose_rings_leave_the_region_is_not_a_session() {
        let sides = sides();
        let at = sides.host.layout().session_slot(0) + offset_of!(SessionSlot, rings_offset);

        sides.memory.store(at, sides.host.layout().size as u64);

        assert!(sides.guest.area().session(0).is_none());
    }

    #[test]
    fn guest_sees_the_events_that_the_host_enables() {
        let mut sides = sides();
        let mut enabled = EnabledEvents::NONE;
        enabled.enable(65, 3);
        sides.host.enable(0, &enabled).unwrap();

        let area = sides.guest.area();
        let seen = [(0, 3, 65), (0, 3, 64), (0, 2, 65), (2, 3, 65), (0, 3, u16::MAX), (9, 3, 65)]
            .map(|(slot, class, id)| area.is_enabled(slot, class, id));

        assert_eq!(seen, [true, false, false, false, false, false]);
        assert_eq!((area.class_mask(0), area.class_mask(9)), (1 << 3, 0));
    }

    #[test]
    fn guest_sees_whether_the_host_is_alive() {
        let mut sides = sides();

        let before = sides.guest.area().is_host_alive();
        sides.host.set_alive(true);

        assert_eq!((before, sides.guest.area().is_host_alive()), (false, true));
    }

    #[test]
    fn host_reads_what_the_agent_announces() {
        let sides = sides();
        let parts = host::Parts::of(sides.memory.clone(), sides.host.layout()).unwrap();

        sides.guest.announce(b"6.1.0-test", 0xffff_ffff_81c0_0000, AGENT_ALIVE);
        sides.guest.count_refused_process(false);
        let alive = parts.agent();
        sides.guest.set_state(AGENT_GONE);

        assert_eq!((alive.state, parts.agent().state), (AGENT_ALIVE, AGENT_GONE));
        assert_eq!((alive.abi_version, alive.processes_refused), (u64::from(ABI_VERSION), 1));
        assert_eq!(&alive.kernel_release[..11], b"6.1.0-test\0");
        assert_eq!(alive.schedule_at, Some(0xffff_ffff_81c0_0000));
    }

    #[test]
    fn kernel_that_was_left_for_its_crash_kernel_is_so_until_an_agent_comes() {
        let sides = sides();
        let parts = host::Parts::of(sides.memory.clone(), sides.host.layout()).unwrap();
        let crash_kernel_at = || parts.agent().crash_kernel_at;

        sides.guest.announce(b"6.1.0-test", 0, AGENT_ALIVE);
        let alive = crash_kernel_at();
        sides.guest.note_crash_kernel(17);
        let left = crash_kernel_at();
        sides.guest.announce(b"6.1.0-next", 0, AGENT_ALIVE);

        assert_eq!((alive, left, crash_kernel_at()), (None, Some(17), None));
    }
}
