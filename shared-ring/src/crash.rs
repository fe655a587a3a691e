//! Reading a region whose host, or guest, has died: from its bytes alone, without any state of the host.
//!
//! The region is the only truth here, and it may be damaged, or made to harm: every place that it names is checked
//! against its size first, and what is read goes through the same [`Consumer`] as a running guest's records. A ring
//! delivers everything that was committed, in order, up to the first hole in each sub-buffer, and its consumer counts
//! what is missing: records lost, sub-buffers overwritten, bytes reserved but never committed.

use crate::consumer::Consumer;
use crate::host_memory::HostMemory;
use crate::layout::{
    ABI_VERSION, AgentState, CLOCK_ENTRY_SIZE, CLOCK_OFFSET, Geometry, MAGIC, MAX_PROCESS_SLOTS, MAX_VCPUS, Mode,
    PAGE_SIZE, PROCESS_ACTIVE, PROCESS_CLOSED, ProcessEntry, REGISTRY_HEADER_SIZE, SESSION_SLOT_SIZE, SESSION_SLOTS,
    SESSION_TABLE_OFFSET, SessionSlot, Superblock,
};
use crate::region::Rings;
use crate::registry::Tail;
use core::mem::offset_of;
use std::vec::Vec;
use thiserror::Error;
use zerocopy::FromBytes;

/// Why bytes are not a region that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CrashError {
    /// There are fewer bytes than a superblock and a session table take.
    #[error("{size} bytes are too few for a trace region: the file is cut, or something else")]
    TooSmall {
        /// Number of bytes.
        size: usize,
    },
    /// It does not begin with the magic number.
    #[error("this is not a trace region: it does not begin with the magic number")]
    NotARegion,
    /// The layout has another major version.
    #[error(
        "the trace region has version {}.{}, this program reads {}.x: use the version of strata that made it",
        .found >> 16, .found & 0xffff, ABI_VERSION >> 16
    )]
    OtherVersion {
        /// `major << 16 | minor`.
        found: u32,
    },
    /// A part does not lie inside the region.
    #[error("the trace region is damaged: its {part} does not lie inside it")]
    Outside {
        /// The part.
        part: &'static str,
    },
    /// A count or a size is outside the limits of the layout.
    #[error("the trace region is damaged: its {what} is impossible")]
    Impossible {
        /// What it is that cannot be.
        what: &'static str,
    },
}

/// A region as its host left it.
#[derive(Debug)]
pub struct CrashRegion {
    memory: HostMemory,
    superblock: Superblock,
    process_rings: Rings,
}

/// A session as its host left it.
#[derive(Clone, Copy, Debug)]
pub struct CrashSession {
    /// Index of its slot.
    pub slot: usize,
    /// Name, NUL-padded.
    pub name: [u8; 32],
    /// Geometry and mode of its rings.
    pub rings: Rings,
    offset: usize,
    stride: usize,
}

/// What the guest's agent had said about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashAgent {
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
}

/// A guest process that had a slot of the user ring pool, and was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashProcess {
    /// Index of its slot.
    pub slot: u32,
    /// Process id in the guest, as the guest says.
    pub pid: u32,
    /// Its name, NUL-padded; any bytes.
    pub comm: [u8; 16],
}

impl CrashRegion {
    /// The region in `memory`, which nobody else writes any more: a copy of a region file, or a private mapping of one.
    /// Reading rings changes the memory.
    ///
    /// # Errors
    /// When it is not a region, or has another version, or its parts do not lie inside it.
    pub fn open(memory: HostMemory) -> Result<Self, CrashError> {
        let size = memory.size();
        if size < CLOCK_OFFSET {
            return Err(CrashError::TooSmall { size });
        }
        let mut bytes = [0; size_of::<Superblock>()];
        memory.read(0, &mut bytes);
        let superblock = Superblock::read_from_bytes(&bytes).map_err(|_| CrashError::NotARegion)?;
        if superblock.magic != MAGIC {
            return Err(CrashError::NotARegion);
        }
        if superblock.abi_version >> 16 != ABI_VERSION >> 16 {
            return Err(CrashError::OtherVersion { found: superblock.abi_version });
        }
        let impossible = |what| CrashError::Impossible { what };
        if superblock.vcpus == 0 || superblock.vcpus > MAX_VCPUS {
            return Err(impossible("number of vCPUs"));
        }
        if superblock.process_slots > MAX_PROCESS_SLOTS {
            return Err(impossible("number of process slots"));
        }
        let process_rings =
            rings(superblock.process_sub_buffer_size, superblock.process_sub_buffers, superblock.process_mode)
                .ok_or(impossible("geometry of process rings"))?;
        let region = Self { memory, superblock, process_rings };
        region.check_parts()?;
        Ok(region)
    }

    /// A region from the bytes of its file.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CrashError> {
        let memory = HostMemory::private(bytes.len() / 8 * 8);
        memory.write(0, &bytes[..memory.size()]);
        Self::open(memory)
    }

    fn check_parts(&self) -> Result<(), CrashError> {
        let superblock = &self.superblock;
        let (vcpus, slots) = (u64::from(superblock.vcpus), u64::from(superblock.process_slots));
        let of_slot = (vcpus * self.process_rings.ring_size() as u64)
            .checked_add(superblock.process_registry_size)
            .and_then(|size| size.checked_add(PAGE_SIZE as u64));
        if superblock.registry_size < REGISTRY_HEADER_SIZE as u64
            || superblock.process_registry_size < REGISTRY_HEADER_SIZE as u64
            || !superblock.process_registry_size.is_multiple_of(8)
            || !superblock.process_stride.is_multiple_of(8)
            || of_slot.is_none_or(|size| size > superblock.process_stride)
        {
            return Err(CrashError::Impossible { what: "size of a registry or a process slot" });
        }
        self.place("clock entries", CLOCK_OFFSET as u64, vcpus * CLOCK_ENTRY_SIZE as u64)?;
        self.place("agent state", superblock.agent_offset, size_of::<AgentState>() as u64)?;
        self.place("process table", superblock.process_table_offset, slots * size_of::<ProcessEntry>() as u64)?;
        self.place("process acknowledgements", superblock.process_ack_offset, slots * 8)?;
        self.place("event registry", superblock.registry_offset, superblock.registry_size)?;
        let pool = slots.checked_mul(superblock.process_stride).ok_or(CrashError::Outside { part: "process pool" })?;
        self.place("process pool", superblock.process_pool_offset, pool)?;
        Ok(())
    }

    /// What the host said about the region.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Number of vCPUs, which is that of the rings in every set.
    #[must_use]
    pub const fn vcpus(&self) -> u32 {
        self.superblock.vcpus
    }

    /// Geometry and mode of the rings of processes.
    #[must_use]
    pub const fn process_rings(&self) -> Rings {
        self.process_rings
    }

    /// The session in `slot`; `None` when the slot was not in use.
    ///
    /// # Errors
    /// When the session's rings cannot be, or do not lie inside the region.
    pub fn session(&self, slot: usize) -> Result<Option<CrashSession>, CrashError> {
        if slot >= SESSION_SLOTS {
            return Ok(None);
        }
        let mut bytes = [0; SESSION_SLOT_SIZE];
        self.memory.read(SESSION_TABLE_OFFSET + slot * SESSION_SLOT_SIZE, &mut bytes);
        let Ok(session) = SessionSlot::read_from_bytes(&bytes) else { return Ok(None) };
        if session.generation == 0 {
            return Ok(None);
        }
        let rings = rings(session.sub_buffer_size, session.sub_buffers, session.mode)
            .filter(|rings| rings.ring_size() as u64 <= session.ring_stride)
            .ok_or(CrashError::Impossible { what: "geometry of a session's rings" })?;
        let outside = CrashError::Outside { part: "session's rings" };
        let size = u64::from(self.superblock.vcpus).checked_mul(session.ring_stride).ok_or(outside)?;
        let (offset, _) = self.place("session's rings", session.rings_offset, size)?;
        let stride = usize::try_from(session.ring_stride).map_err(|_| outside)?;
        if !stride.is_multiple_of(8) {
            return Err(outside);
        }
        Ok(Some(CrashSession { slot, name: session.name, rings, offset, stride }))
    }

    /// What the guest's agent had said about itself.
    #[must_use]
    pub fn agent(&self) -> CrashAgent {
        let agent = word(self.superblock.agent_offset);
        let mut kernel_release = [0; 64];
        self.memory.read(agent + offset_of!(AgentState, kernel_release), &mut kernel_release);
        CrashAgent {
            state: self.memory.load(agent + offset_of!(AgentState, state)),
            abi_version: self.memory.load(agent + offset_of!(AgentState, abi_version)),
            kernel_release,
            processes_refused: self.memory.load(agent + offset_of!(AgentState, processes_refused)),
            processes_over_quota: self.memory.load(agent + offset_of!(AgentState, processes_over_quota)),
        }
    }

    /// The clock entry of `vcpu`, as `clock-sync` reads it; `None` when there is no such vCPU.
    #[must_use]
    pub fn clock_entry(&self, vcpu: u32) -> Option<HostMemory> {
        let known = vcpu < self.superblock.vcpus;
        known.then(|| self.memory.part(CLOCK_OFFSET + vcpu as usize * CLOCK_ENTRY_SIZE, CLOCK_ENTRY_SIZE))
    }

    /// The kernel's event registry.
    #[must_use]
    pub fn kernel_registry(&self) -> Tail {
        Tail::new(self.memory.part(word(self.superblock.registry_offset), word(self.superblock.registry_size)))
    }

    /// What is left in `vcpu`'s kernel ring of `session`: read it with [`Consumer::poll_stopped`]. `None` when there is
    /// no such vCPU.
    #[must_use]
    pub fn kernel_ring(&self, session: &CrashSession, vcpu: u32) -> Option<Consumer> {
        let offset = session.offset + vcpu as usize * session.stride;
        let known = vcpu < self.superblock.vcpus;
        known.then(|| {
            let ring = self.memory.part(offset, session.rings.ring_size());
            Consumer::resume(ring, session.rings.geometry, session.rings.mode, vcpu)
        })
    }

    /// The processes whose records the host had not read to their end.
    #[must_use]
    pub fn processes(&self) -> Vec<CrashProcess> {
        (0..self.superblock.process_slots).filter_map(|slot| self.process(slot)).collect()
    }

    #[allow(clippy::cast_possible_truncation, reason = "the words hold halves")]
    fn process(&self, slot: u32) -> Option<CrashProcess> {
        let entry = word(self.superblock.process_table_offset) + slot as usize * size_of::<ProcessEntry>();
        let state = self.memory.load(entry + offset_of!(ProcessEntry, state));
        let acknowledged = self.memory.load(word(self.superblock.process_ack_offset) + slot as usize * 8);
        let in_use = matches!(state as u32, PROCESS_ACTIVE | PROCESS_CLOSED) && acknowledged != state >> 32;
        in_use.then(|| {
            let mut comm = [0; 16];
            self.memory.read(entry + offset_of!(ProcessEntry, comm), &mut comm);
            CrashProcess { slot, pid: self.memory.load(entry + offset_of!(ProcessEntry, pid)) as u32, comm }
        })
    }

    /// The event registry of the process in `slot`; `None` when there is no such slot.
    #[must_use]
    pub fn process_registry(&self, slot: u32) -> Option<Tail> {
        let registry = self.process_slot(slot)? + PAGE_SIZE;
        Some(Tail::new(self.memory.part(registry, word(self.superblock.process_registry_size))))
    }

    /// What is left in the ring of `vcpu` of the process in `slot`; `None` when there is no such slot or vCPU.
    #[must_use]
    pub fn process_ring(&self, slot: u32, vcpu: u32) -> Option<Consumer> {
        let rings = self.process_rings;
        let first = self.process_slot(slot)? + PAGE_SIZE + word(self.superblock.process_registry_size);
        let known = vcpu < self.superblock.vcpus;
        known.then(|| {
            let ring = self.memory.part(first + vcpu as usize * rings.ring_size(), rings.ring_size());
            Consumer::resume(ring, rings.geometry, rings.mode, vcpu)
        })
    }

    fn process_slot(&self, slot: u32) -> Option<usize> {
        let known = slot < self.superblock.process_slots;
        known.then(|| word(self.superblock.process_pool_offset) + slot as usize * word(self.superblock.process_stride))
    }

    /// `size` bytes at `offset`, if they are whole words inside the region.
    fn place(&self, part: &'static str, offset: u64, size: u64) -> Result<(usize, usize), CrashError> {
        let end = offset.checked_add(size).and_then(|end| usize::try_from(end).ok());
        let inside = end.is_some_and(|end| end <= self.memory.size());
        if inside && offset.is_multiple_of(8) && size.is_multiple_of(8) {
            Ok((word(offset), word(size)))
        } else {
            Err(CrashError::Outside { part })
        }
    }
}

fn rings(sub_buffer_size: u64, sub_buffers: u32, mode: u32) -> Option<Rings> {
    Some(Rings { geometry: Geometry::new(sub_buffer_size, sub_buffers)?, mode: Mode::from_code(mode)? })
}

#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
const fn word(value: u64) -> usize {
    value as usize
}
