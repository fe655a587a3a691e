//! The host's half of a region: what it writes for the guest to read, and how it reads what the guest says.
//!
//! A host brings a mapping, and gets from here a [`Region`]: the superblock, sessions and their masks. It keeps its own
//! copy of everything that it writes and takes nothing back from memory. [`Parts`] is the reading side: agent, registries,
//! rings and process slots. Where they lie, the host knows by itself (it laid the region out, or checked a dead one's
//! superblock); what is in them comes from the guest.
//!
//! # A session, seen from both sides
//!
//! | host | | guest, on each vCPU (see [`guest`](crate::guest)) |
//! |---|---|---|
//! | [`open_session`](Region::open_session): settings, then `generation` (release) | → | `generation` (acquire), settings, `generation` once more |
//! | | ← | ring's `RING_ADOPTED` = generation; **full fence**; `generation` once more: it records if that is still the same |
//! | [`close_session`](Region::close_session): masks 0, `generation` 0; **full fence** | → | sees it at its next look, records no more, then `RING_ADOPTED` = 0 (release) |
//! | [`is_free`](Region::is_free): `RING_ADOPTED` of every ring (acquire) is 0: the rings are cleared and given away | | |
//!
//! The two full fences pair with each other: of a guest that adopts and a host that closes at the same time, at least one
//! sees what the other did. Either the guest finds `generation` changed and does not record, or the host finds the ring
//! adopted and waits.

pub mod memory;
pub mod words;

use crate::host::memory::{HostMemory, RegionMemory, RingMemory};
use crate::host::words::HostWords;
use crate::layout::{
    AgentState, CLOCK_ENTRY_SIZE, MAX_EVENTS, ProcessEntry, RING_ADOPTED, SESSION_SLOTS, SessionSlot, Superblock,
};
use crate::region::{RegionLayout, Rings};
use crate::registry::RegistryReader;
use crate::view::{ProcessState, RegionView, Session};
use core::mem::offset_of;
use core::ops::Range;
use thiserror::Error;
use zerocopy::IntoBytes;

/// Longest name of a session, bytes.
pub const MAX_SESSION_NAME: usize = 31;

/// Why the host cannot do this to a region.
/// For an example see [`Region`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The memory is smaller than the layout.
    #[error("a trace region of {wanted} bytes does not fit {size} bytes of memory")]
    TooSmall {
        /// Bytes of the memory.
        size: usize,
        /// Bytes of the region.
        wanted: usize,
    },
    /// A region has no such session slot.
    #[error("there is no session slot {slot}: a region has {SESSION_SLOTS}")]
    NoSuchSlot {
        /// Index of the slot.
        slot: usize,
    },
    /// The slot has a session.
    #[error("session slot {slot} is in use: close its session first")]
    InUse {
        /// Index of the slot.
        slot: usize,
    },
    /// The slot has no session.
    #[error("session slot {slot} is not in use: open a session first")]
    NotInUse {
        /// Index of the slot.
        slot: usize,
    },
    /// The slot's last session is closed, but the guest has not let go of its rings.
    #[error("the guest has not let go of session slot {slot} yet: try again")]
    NotReleased {
        /// Index of the slot.
        slot: usize,
    },
    /// The rings are larger than those that the slot was laid out for.
    #[error(
        "rings of {size} bytes do not fit session slot {slot}, which has room for {room} bytes each: use smaller ones"
    )]
    TooLarge {
        /// Index of the slot.
        slot: usize,
        /// Bytes of a ring.
        size: usize,
        /// Bytes that the slot has for each.
        room: usize,
    },
    /// The name does not fit its field.
    #[error("a session's name of {length} bytes is too long: use up to {MAX_SESSION_NAME}")]
    LongName {
        /// Bytes of the name.
        length: usize,
    },
}

/// The events that a session records: a bit per major class and one per event id.
///
/// ```
/// use shared_ring::host::EnabledEvents;
///
/// let mut enabled = EnabledEvents::NONE;
/// enabled.enable(65, 3);
/// assert_eq!((enabled.class_mask, enabled.events[1]), (1 << 3, 1 << 1));
/// ```
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

/// The host's writing side of one region.
///
/// ```
/// use shared_ring::guest::{self, SessionRings};
/// use shared_ring::host::{self, EnabledEvents};
/// use shared_ring::layout::{Geometry, Mode};
/// use shared_ring::region::{RegionConfig, RegionLayout, Rings};
/// use shared_ring::{host::memory::HostMemory, storage::Smp};
///
/// let rings = Rings { geometry: Geometry::new(4096, 4)?, mode: Mode::Discard };
/// let layout = RegionLayout::new(RegionConfig {
///     vcpus: 1,
///     sessions: [Some(rings), None, None, None],
///     process_rings: rings,
///     process_slots: 0,
///     registry_size: 4096,
///     process_registry_size: 4096,
/// })?;
/// let memory = HostMemory::private(layout.size);
/// let mut host = host::Region::create(memory.clone(), layout, [7; 16], 1_000_000_000)?;
/// host.open_session(0, "main", rings, |_, _| ())?;
/// host.enable(0, &EnabledEvents { class_mask: 1, ..EnabledEvents::NONE })?;
///
/// // SAFETY: the memory is aligned and lives to the end; this thread is the guest's only vCPU.
/// let (guest, own) = unsafe { (guest::Region::open(memory.base(), memory.size() as u64)?, SessionRings::new()) };
/// let follow = || unsafe { own.follow(guest.area(), 0, |ring| Smp::new(guest.pointer(ring))) };
/// follow();
/// assert!(own.producer(0).is_some_and(|producer| producer.record(|| 1_000, 1, &[0; 8])));
///
/// // The guest lets go of a session that is closed; then its rings are free.
/// host.close_session(0)?;
/// assert!(!host.is_free(0));
/// follow();
/// assert!(host.is_free(0) && own.producer(0).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Region<M = HostMemory> {
    memory: M,
    layout: RegionLayout,
    sessions: [SessionUse; SESSION_SLOTS],
    /// Number of the next use of a session slot.
    next_generation: u64,
}

/// What the host has written to a session slot.
#[derive(Clone, Copy, Debug, Default)]
struct SessionUse {
    /// 0 while the slot is not in use.
    generation: u64,
    class_mask: u64,
}

impl<M: RegionMemory> Region<M> {
    /// Writes the superblock of a fresh region, laid out by `layout`, to the beginning of `memory`, which is zeroed. No host
    /// is alive and no session is open. `clock_uuid` and `clock_frequency`, Hz, say what the trace clock is.
    ///
    /// # Errors
    /// When the memory is too small.
    pub fn create(
        memory: M,
        layout: RegionLayout,
        clock_uuid: [u8; 16],
        clock_frequency: u64,
    ) -> Result<Self, HostError> {
        if memory.size() < layout.size {
            return Err(HostError::TooSmall { size: memory.size(), wanted: layout.size });
        }
        memory.write(0, layout.superblock(clock_uuid, clock_frequency).as_bytes());
        Ok(Self { memory, layout, sessions: [SessionUse::default(); SESSION_SLOTS], next_generation: 1 })
    }

    /// The region, for a guest that may have seen sessions of an earlier host: the next use of a slot is number `generation`, not
    /// zero. The numbers of all earlier hosts must be below.
    #[must_use]
    pub fn numbered_from(self, generation: u64) -> Self {
        Self { next_generation: generation, ..self }
    }

    /// Where everything lies.
    #[must_use]
    pub const fn layout(&self) -> &RegionLayout {
        &self.layout
    }

    /// Tells the guest whether anybody reads its rings.
    pub fn set_alive(&mut self, alive: bool) {
        self.memory.store(offset_of!(Superblock, host_alive), u64::from(alive));
    }

    /// Tells the guest that the host raises global system interrupt `gsi` after it has changed a session or asked for a
    /// flush. Before the guest runs.
    pub fn set_doorbell(&mut self, gsi: u32) {
        // The word that holds both.
        let at = offset_of!(Superblock, process_mode);
        self.memory.store(at, u64::from(self.layout.config.process_rings.mode.code()) | u64::from(gsi) << 32);
    }

    /// Gives session slot `slot` to a session called `name` with rings of its own, every event off. Returns the number of
    /// this use of the slot. `zero` makes the given bytes of the memory zero: the rings, which no guest uses any more; a
    /// host that can give memory back to the system does that, others clear it.
    ///
    /// # Errors
    /// When there is no such slot, it is in use, the guest has not let go of it yet, or it has too little room; and when
    /// the name is too long. Nothing is changed then.
    pub fn open_session(
        &mut self,
        slot: usize,
        name: &str,
        rings: Rings,
        zero: impl FnOnce(&M, Range<usize>),
    ) -> Result<u64, HostError> {
        if self.used(slot)?.generation != 0 {
            return Err(HostError::InUse { slot });
        }
        if !self.is_free(slot) {
            return Err(HostError::NotReleased { slot });
        }
        if name.len() > MAX_SESSION_NAME {
            return Err(HostError::LongName { length: name.len() });
        }
        let mut padded = [0; 32];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        let generation = self.next_generation;
        let (begin, room) = (self.layout.session_rings[slot], self.layout.session_ring_stride[slot]);
        let Some(session) = self.layout.session(slot, padded, generation, rings) else {
            return Err(HostError::TooLarge { slot, size: rings.ring_size(), room });
        };
        self.next_generation += 1;
        zero(&self.memory, begin..begin + room * self.layout.config.vcpus as usize);
        let at = self.layout.session_slot(slot);
        // The guest believes nothing of the slot before it sees the generation, which comes last.
        let early = if mutated!(OpenWithoutRelease) { generation } else { 0 };
        self.memory.write(at, SessionSlot { generation: early, ..session }.as_bytes());
        self.memory.store(at + offset_of!(SessionSlot, generation), generation);
        self.sessions[slot] = SessionUse { generation, class_mask: 0 };
        Ok(generation)
    }

    /// Takes session slot `slot` back; its rings stay the guest's until [`is_free`](Self::is_free) says otherwise, which
    /// takes the guest a moment.
    ///
    /// # Errors
    /// When there is no such slot, or it is not in use.
    pub fn close_session(&mut self, slot: usize) -> Result<(), HostError> {
        self.enable(slot, &EnabledEvents::NONE)?;
        self.memory.store(self.layout.session_slot(slot) + offset_of!(SessionSlot, generation), 0);
        self.sessions[slot] = SessionUse::default();
        if !mutated!(CloseWithoutFence) {
            // Pairs with the fence of a vCPU that is adopting the session: one side sees the other. It also keeps what a
            // later session writes to the slot behind the 0, for those that are reading the slot.
            self.memory.fence_full();
        }
        Ok(())
    }

    /// Whether session slot `slot` can be given to a session: it is not in use, by the guest either. `false` when there is no
    /// such slot. The acquire loads pair with the release stores of vCPUs that let go: what they recorded comes before
    /// whatever the host does to the rings now.
    #[must_use]
    pub fn is_free(&self, slot: usize) -> bool {
        let Ok(used) = self.used(slot) else { return false };
        let has_rings = self.layout.session_ring_stride[slot] > 0;
        let adopted = |vcpu| self.memory.load(self.layout.kernel_ring(slot, vcpu) + RING_ADOPTED) != 0;
        let is_held = has_rings && (0..self.layout.config.vcpus).any(adopted) && !mutated!(FreeUnasked);
        used.generation == 0 && !is_held
    }

    /// Says which events the session in `slot` records from now on. The class mask changes last, so that no event is
    /// recorded by half of a setting that adds to the last one.
    ///
    /// # Errors
    /// When there is no such slot, or it is not in use.
    pub fn enable(&mut self, slot: usize, enabled: &EnabledEvents) -> Result<(), HostError> {
        if self.used(slot)?.generation == 0 {
            return Err(HostError::NotInUse { slot });
        }
        let at = self.layout.session_slot(slot);
        for (index, &word) in enabled.events.iter().enumerate() {
            self.memory.store(at + offset_of!(SessionSlot, event_enable) + index * 8, word);
        }
        self.memory.store(at + offset_of!(SessionSlot, class_mask), enabled.class_mask);
        self.sessions[slot].class_mask = enabled.class_mask;
        let any = self.sessions.iter().fold(0, |any, session| any | session.class_mask);
        self.memory.store(offset_of!(Superblock, any_class_mask), any);
        Ok(())
    }

    fn used(&self, slot: usize) -> Result<SessionUse, HostError> {
        self.sessions.get(slot).copied().ok_or(HostError::NoSuchSlot { slot })
    }
}

/// What the guest's agent says about itself: any values, from a guest.
/// For an example see [`CrashRegion`](crate::consumer::crash::CrashRegion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agent {
    /// [`AgentState::state`].
    pub state: u64,
    /// ABI version of the agent.
    pub abi_version: u64,
    /// The guest kernel's release, NUL-padded; any bytes.
    pub kernel_release: [u8; 64],
    /// [`AgentState::processes_refused`].
    pub processes_refused: u64,
    /// [`AgentState::processes_over_quota`].
    pub processes_over_quota: u64,
    /// [`AgentState::crash_kernel_at`], if that has happened.
    pub crash_kernel_at: Option<u64>,
    /// [`AgentState::schedule_at`], if the agent tells it.
    pub schedule_at: Option<u64>,
}

/// The process that a process slot belongs to, as the guest says.
/// For an example see [`CrashRegion`](crate::consumer::crash::CrashRegion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessOwner {
    /// Index of the slot.
    pub slot: u32,
    /// Process id in the guest.
    pub pid: u32,
    /// Its name, NUL-padded; any bytes.
    pub comm: [u8; 16],
}

/// The parts of a region that the guest writes. Where they lie is known; what is in them is copied before it is used.
/// For an example see [`CrashRegion`](crate::consumer::crash::CrashRegion).
#[derive(Clone, Debug)]
pub struct Parts {
    memory: HostMemory,
    /// For what the host writes among them.
    words: HostWords,
    view: RegionView,
}

impl Parts {
    /// The parts of the region in `memory` that `layout` places.
    ///
    /// # Errors
    /// When the memory is smaller than the layout.
    pub fn of(memory: HostMemory, layout: &RegionLayout) -> Result<Self, HostError> {
        if memory.size() < layout.size {
            return Err(HostError::TooSmall { size: memory.size(), wanted: layout.size });
        }
        Ok(Self { words: HostWords::protected(memory.clone()), memory, view: RegionView::of(layout) })
    }

    /// The parts of a region whose host writes through `words`.
    #[must_use]
    pub fn written_through(self, words: HostWords) -> Self {
        Self { words, ..self }
    }

    /// The parts that a superblock names, which was checked against the size of `memory`.
    pub(crate) fn checked(memory: HostMemory, view: RegionView) -> Self {
        Self { words: HostWords::protected(memory.clone()), memory, view }
    }

    /// Where they lie.
    #[must_use]
    pub const fn view(&self) -> &RegionView {
        &self.view
    }

    /// All of the region.
    #[must_use]
    pub const fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// What the guest's agent says about itself. The acquire load of the state pairs with the release store of an agent that
    /// announces itself.
    #[must_use]
    pub fn agent(&self) -> Agent {
        let word = |field| self.memory.load(self.view.agent() + field);
        let state = word(offset_of!(AgentState, state));
        let mut kernel_release = [0; 64];
        self.memory.read(self.view.agent() + offset_of!(AgentState, kernel_release), &mut kernel_release);
        Agent {
            state,
            abi_version: word(offset_of!(AgentState, abi_version)),
            kernel_release,
            processes_refused: word(offset_of!(AgentState, processes_refused)),
            processes_over_quota: word(offset_of!(AgentState, processes_over_quota)),
            crash_kernel_at: Some(word(offset_of!(AgentState, crash_kernel_at))).filter(|&time| time != 0),
            schedule_at: Some(word(offset_of!(AgentState, schedule_at))).filter(|&address| address != 0),
        }
    }

    /// The clock entry of `vcpu`, as `clock-sync` reads it; `None` when there is no such vCPU.
    #[must_use]
    pub fn clock_entry(&self, vcpu: u32) -> Option<HostMemory> {
        Some(self.memory.part(self.view.clock_entry(vcpu)?, CLOCK_ENTRY_SIZE))
    }

    /// The kernel's event registry, from its beginning.
    #[must_use]
    pub fn kernel_registry(&self) -> RegistryReader {
        let (at, size) = self.view.registry();
        RegistryReader::new(self.memory.part(at, size))
    }

    /// The memory of `vcpu`'s kernel ring of `session`; `None` when there is no such vCPU, or the session is another
    /// region's.
    #[must_use]
    pub fn kernel_ring(&self, session: &Session, vcpu: u32) -> Option<HostMemory> {
        let (at, size) = (session.ring(vcpu)?, session.rings.ring_size());
        (at + size <= self.memory.size()).then(|| self.memory.part(at, size))
    }

    /// How far process slot `slot` has come; `None` when there is no such slot. The acquire load pairs with the guest
    /// kernel's release stores: of an active slot the owner can be read, of a closed one all records.
    #[must_use]
    pub fn process_state(&self, slot: u32) -> Option<ProcessState> {
        let entry = self.view.process_entry(slot)?;
        Some(ProcessState::from_word(self.memory.load(entry + offset_of!(ProcessEntry, state))))
    }

    /// The process that has slot `slot`; `None` when there is no such slot.
    #[must_use]
    pub fn process_owner(&self, slot: u32) -> Option<ProcessOwner> {
        let entry = self.view.process_entry(slot)?;
        let mut comm = [0; 16];
        self.memory.read(entry + offset_of!(ProcessEntry, comm), &mut comm);
        #[allow(clippy::cast_possible_truncation, reason = "the low half of the word is the pid")]
        let pid = self.memory.load(entry + offset_of!(ProcessEntry, pid)) as u32;
        Some(ProcessOwner { slot, pid, comm })
    }

    /// The generation of slot `slot` that the host has read to its end; `None` when there is no such slot.
    #[must_use]
    pub fn acknowledged(&self, slot: u32) -> Option<u64> {
        Some(self.memory.load(self.view.process_ack(slot)?))
    }

    /// Tells the guest that `generation` of slot `slot` is read to its end, so that it may give the slot to another process.
    /// The release store pairs with the acquire load of the guest's kernel before it clears the slot. Nothing happens when
    /// there is no such slot.
    pub fn acknowledge(&self, slot: u32, generation: u32) {
        if let Some(at) = self.view.process_ack(slot) {
            self.words.store(at, u64::from(generation));
        }
    }

    /// The event registry of process slot `slot`, from its beginning; `None` when there is no such slot.
    #[must_use]
    pub fn process_registry(&self, slot: u32) -> Option<RegistryReader> {
        let (at, size) = self.view.process_registry(slot)?;
        Some(RegistryReader::new(self.memory.part(at, size)))
    }

    /// The memory of `vcpu`'s ring in process slot `slot`; `None` when there is no such slot or vCPU.
    #[must_use]
    pub fn process_ring(&self, slot: u32, vcpu: u32) -> Option<HostMemory> {
        Some(self.memory.part(self.view.process_ring(slot, vcpu)?, self.view.process_rings().ring_size()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Geometry, MAGIC, Mode, SESSION_TABLE_OFFSET};
    use crate::region::RegionConfig;

    fn rings(sub_buffers: u32) -> Rings {
        Rings { geometry: Geometry::new(4096, sub_buffers).unwrap(), mode: Mode::Discard }
    }

    fn layout() -> RegionLayout {
        RegionLayout::new(RegionConfig {
            vcpus: 2,
            sessions: [Some(rings(2)), Some(rings(2)), None, None],
            process_rings: rings(2),
            process_slots: 2,
            registry_size: 4096,
            process_registry_size: 4096,
        })
        .unwrap()
    }

    fn region() -> (HostMemory, Region) {
        let memory = HostMemory::private(layout().size);
        (memory.clone(), Region::create(memory, layout(), [7; 16], 1_000_000_000).unwrap())
    }

    fn clear(memory: &HostMemory, part: Range<usize>) {
        memory.clear(part.start, part.len());
    }

    fn any_class_mask(memory: &HostMemory) -> u64 {
        memory.load(offset_of!(Superblock, any_class_mask))
    }

    #[test]
    fn guest_learns_of_the_doorbell_and_nothing_else_changes() {
        let (memory, mut region) = region();
        let reported = || *RegionView::read(|offset| memory.load(offset), memory.size() as u64).unwrap().superblock();
        let before = reported();

        region.set_doorbell(3);

        let after = reported();
        assert_eq!((before.doorbell, after.doorbell), (0, 3));
        assert_eq!((after.process_mode, after.any_class_mask), (before.process_mode, before.any_class_mask));
    }

    #[test]
    fn fresh_region_says_what_it_is_and_has_no_session() {
        let (memory, region) = region();

        assert_eq!(memory.load(0), MAGIC);
        assert_eq!(memory.load(offset_of!(Superblock, region_size)), region.layout().size as u64);
        assert_eq!((memory.load(SESSION_TABLE_OFFSET), region.is_free(0)), (0, true));
    }

    #[test]
    fn memory_that_is_too_small_is_refused() {
        let (size, wanted) = (layout().size - 8, layout().size);
        let memory = || HostMemory::private(size);

        let errors =
            (Region::create(memory(), layout(), [0; 16], 1).map(|_| ()), Parts::of(memory(), &layout()).map(|_| ()));

        assert_eq!(errors, (Err(HostError::TooSmall { size, wanted }), Err(HostError::TooSmall { size, wanted })));
    }

    #[test]
    fn enabled_events_reach_the_session() {
        let (memory, mut region) = region();
        region.open_session(0, "main", rings(2), clear).unwrap();
        let mut enabled = EnabledEvents::NONE;
        enabled.enable(65, 3);

        region.enable(0, &enabled).unwrap();

        assert_eq!((memory.load(SESSION_TABLE_OFFSET), any_class_mask(&memory)), (1 << 3, 1 << 3));
        assert_eq!(memory.load(SESSION_TABLE_OFFSET + offset_of!(SessionSlot, event_enable) + 8), 2);
    }

    #[test]
    fn slot_is_given_out_once_the_guest_has_let_go_of_it() {
        let (memory, mut region) = region();
        let adopted = region.layout().kernel_ring(1, 1) + RING_ADOPTED;

        let first = region.open_session(1, "first", rings(2), clear);
        let twice = region.open_session(1, "twice", rings(2), clear);
        memory.store(adopted, 1);
        region.close_session(1).unwrap();
        let held = region.open_session(1, "held", rings(2), clear);
        memory.store(adopted, 0);
        memory.store(adopted + 4096, 7);
        let second = region.open_session(1, "second", rings(2), clear);

        assert_eq!((first, twice), (Ok(1), Err(HostError::InUse { slot: 1 })));
        assert_eq!((held, second), (Err(HostError::NotReleased { slot: 1 }), Ok(2)));
        assert_eq!(memory.load(adopted + 4096), 0);
    }

    #[test]
    fn what_cannot_be_opened_or_changed_is_refused_and_changes_nothing() {
        let (memory, mut region) = region();
        let before = memory.load(region.layout().session_slot(1) + offset_of!(SessionSlot, generation));
        let large = HostError::TooLarge { slot: 1, size: rings(4).ring_size(), room: rings(2).ring_size() };

        assert_eq!(region.open_session(4, "a", rings(2), clear), Err(HostError::NoSuchSlot { slot: 4 }));
        assert_eq!(region.open_session(1, "a", rings(4), clear), Err(large));
        assert_eq!(region.open_session(1, &"a".repeat(32), rings(2), clear), Err(HostError::LongName { length: 32 }));
        assert_eq!(region.close_session(1), Err(HostError::NotInUse { slot: 1 }));
        assert_eq!(region.enable(1, &EnabledEvents::NONE), Err(HostError::NotInUse { slot: 1 }));
        assert_eq!(memory.load(region.layout().session_slot(1) + offset_of!(SessionSlot, generation)), before);
    }

    #[test]
    fn closed_session_leaves_the_classes_of_the_others_on() {
        let (memory, mut region) = region();
        let of = |class: u32| EnabledEvents { class_mask: 1 << class, ..EnabledEvents::NONE };
        region.open_session(0, "main", rings(2), clear).unwrap();
        region.open_session(1, "other", rings(2), clear).unwrap();
        region.enable(0, &of(2)).unwrap();
        region.enable(1, &of(5)).unwrap();

        let both = any_class_mask(&memory);
        region.close_session(1).unwrap();

        assert_eq!((both, any_class_mask(&memory)), (1 << 2 | 1 << 5, 1 << 2));
    }
}
