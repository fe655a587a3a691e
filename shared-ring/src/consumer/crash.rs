//! Reading a region whose host, or guest, has died: from its bytes alone, without any state of the host.
//!
//! The region is the only truth here, and it may be damaged, or made to harm: every place that it names is checked
//! against its size first, and what is read goes through the same [`Consumer`] as a running guest's records. A ring
//! delivers what was committed, in order, up to the first hole in each sub-buffer, as far as the ring says where that is,
//! and its consumer counts what is missing: records lost, sub-buffers overwritten, bytes of which nothing says that they
//! are whole.

use crate::consumer::Consumer;
use crate::host::memory::HostMemory;
use crate::host::{Agent, Parts, ProcessOwner};
use crate::layout::{SessionSlot, Superblock};
use crate::region::Rings;
use crate::registry::RegistryReader;
use crate::view::{RegionView, Session, SessionSettings, ViewError, session_slot};
use core::mem::offset_of;
use std::vec::Vec;

/// A region as its host left it.
///
/// ```
/// use shared_ring::consumer::crash::CrashRegion;
/// use shared_ring::view::ViewError;
///
/// let error = CrashRegion::from_bytes(b"not a region").map(drop).unwrap_err();
/// assert!(matches!(error, ViewError::TooSmall { .. }));
/// ```
#[derive(Debug)]
pub struct CrashRegion {
    parts: Parts,
}

impl CrashRegion {
    /// The region in `memory`, which nobody else writes any more: a copy of a region file, or a private mapping of one.
    /// Reading rings changes the memory.
    ///
    /// # Errors
    /// When it is not a region, or has another version, or its parts do not lie inside it.
    pub fn open(memory: HostMemory) -> Result<Self, ViewError> {
        let view = RegionView::read(|offset| memory.load(offset), memory.size() as u64)?;
        Ok(Self { parts: Parts::checked(memory, view) })
    }

    /// A region from the bytes of its file.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ViewError> {
        let memory = HostMemory::private(bytes.len() / 8 * 8);
        memory.write(0, &bytes[..memory.size()]);
        Self::open(memory)
    }

    /// What the host said about the region.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        self.parts.view().superblock()
    }

    /// Number of vCPUs, which is that of the rings in every set.
    #[must_use]
    pub const fn vcpus(&self) -> u32 {
        self.parts.view().vcpus()
    }

    /// Geometry and mode of the rings of processes.
    #[must_use]
    pub const fn process_rings(&self) -> Rings {
        self.parts.view().process_rings()
    }

    /// The session in `slot`; `None` when there is no such slot, or it was not in use.
    ///
    /// # Errors
    /// When the session's rings cannot be, or do not lie inside the region.
    pub fn session(&self, slot: usize) -> Result<Option<Session>, ViewError> {
        let Some(at) = session_slot(slot) else { return Ok(None) };
        let load = |offset| self.parts.memory().load(at + offset);
        let settings = SessionSettings::copy(slot, load(offset_of!(SessionSlot, generation)), load);
        self.parts.view().session(&settings)
    }

    /// What the guest's agent had said about itself.
    #[must_use]
    pub fn agent(&self) -> Agent {
        self.parts.agent()
    }

    /// The clock entry of `vcpu`, as `clock-sync` reads it; `None` when there is no such vCPU.
    #[must_use]
    pub fn clock_entry(&self, vcpu: u32) -> Option<HostMemory> {
        self.parts.clock_entry(vcpu)
    }

    /// The kernel's event registry.
    #[must_use]
    pub fn kernel_registry(&self) -> RegistryReader {
        self.parts.kernel_registry()
    }

    /// What is left in `vcpu`'s kernel ring of `session`: read it with [`Consumer::poll_stopped`]. `None` when there is
    /// no such vCPU.
    #[must_use]
    pub fn kernel_ring(&self, session: &Session, vcpu: u32) -> Option<Consumer> {
        let Rings { geometry, mode } = session.rings;
        Some(Consumer::resume(self.parts.kernel_ring(session, vcpu)?, geometry, mode, vcpu))
    }

    /// The processes whose records the host had not read to their end.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessOwner> {
        (0..self.parts.view().process_slots()).filter_map(|slot| self.process(slot)).collect()
    }

    fn process(&self, slot: u32) -> Option<ProcessOwner> {
        let state = self.parts.process_state(slot)?;
        let is_left = state.is_in_use() && self.parts.acknowledged(slot)? != u64::from(state.generation);
        if is_left { self.parts.process_owner(slot) } else { None }
    }

    /// The event registry of the process in `slot`; `None` when there is no such slot.
    #[must_use]
    pub fn process_registry(&self, slot: u32) -> Option<RegistryReader> {
        self.parts.process_registry(slot)
    }

    /// What is left in the ring of `vcpu` of the process in `slot`; `None` when there is no such slot or vCPU.
    #[must_use]
    pub fn process_ring(&self, slot: u32, vcpu: u32) -> Option<Consumer> {
        let Rings { geometry, mode } = self.process_rings();
        Some(Consumer::resume(self.parts.process_ring(slot, vcpu)?, geometry, mode, vcpu))
    }
}
