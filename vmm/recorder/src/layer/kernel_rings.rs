//! The guest kernel's rings of one session: everything that a layer of it is made of.

use crate::layer::ring::RingLayer;
use crate::trigger::tail::Tail;
use shared_ring::consumer::{self, Consumer};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{MAX_SUB_BUFFER_SIZE, MAX_SUB_BUFFERS, MIN_SUB_BUFFER_SIZE, MIN_SUB_BUFFERS};
use shared_ring::region::{RegionLayout, Rings};
use shared_ring::registry::RegistryReader;
use std::path::Path;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Manifest;
use strata_recording::writer::{LayerWriter, NewLayer, Rotation, WriteError};

/// The sizes that a sub-buffer may have, for messages.
#[must_use]
pub fn sub_buffer_sizes() -> String {
    format!("a power of two from {}K to {}M", MIN_SUB_BUFFER_SIZE >> 10, MAX_SUB_BUFFER_SIZE >> 20)
}

/// The numbers of sub-buffers that a ring may have, for messages.
#[must_use]
pub fn sub_buffer_counts() -> String {
    format!("a power of two from {MIN_SUB_BUFFERS} to {MAX_SUB_BUFFERS}")
}

/// The guest kernel's rings in a session slot.
#[derive(Clone, Debug)]
pub struct KernelRings {
    memory: HostMemory,
    layout: RegionLayout,
    slot: usize,
    rings: Rings,
    vm: String,
    earliest: u64,
    rotation: Option<Rotation>,
}

impl KernelRings {
    /// The rings of session slot `slot`, used as `rings`, in the region `memory` of the VM called `vm`. A record cannot
    /// be older than `earliest`, ticks: when the slot was given to the session.
    #[must_use]
    pub const fn new(
        memory: HostMemory,
        layout: RegionLayout,
        slot: usize,
        rings: Rings,
        vm: String,
        earliest: u64,
    ) -> Self {
        Self { memory, layout, slot, rings, vm, earliest, rotation: None }
    }

    /// Their layer keeps within the size of `rotation`, if there is one.
    #[must_use]
    pub fn within(self, rotation: Option<&Rotation>) -> Self {
        Self { rotation: rotation.cloned(), ..self }
    }

    /// When the slot was given to the session, ticks.
    #[must_use]
    pub const fn earliest(&self) -> u64 {
        self.earliest
    }

    /// Geometry and mode.
    #[must_use]
    pub const fn rings(&self) -> Rings {
        self.rings
    }

    /// The vCPUs that have not begun to record for the session, or to be ready to.
    #[must_use]
    pub fn not_joined(&self) -> Vec<u32> {
        (0..self.layout.config.vcpus).filter(|&vcpu| !consumer::has_joined(&self.ring(vcpu))).collect()
    }

    /// Records that were not made inside others; `None` where no agent has counted them.
    #[must_use]
    pub fn nested(&self) -> Option<u64> {
        let rings = (0..self.layout.config.vcpus).map(|vcpu| self.ring(vcpu)).filter(consumer::has_joined);
        let counts = rings.map(|ring| consumer::nested(&ring));
        counts.reduce(|sum, count| Some(sum?.saturating_add(count?)))?
    }

    fn ring(&self, vcpu: u32) -> HostMemory {
        self.memory.part(self.layout.kernel_ring(self.slot, vcpu), self.rings.ring_size())
    }

    /// The kernel's event registry, from its beginning.
    #[must_use]
    pub fn registry(&self) -> RegistryReader {
        RegistryReader::new(self.memory.part(self.layout.registry, self.layout.registry_size))
    }

    /// What is new in these rings, which are in flight-recorder mode.
    #[must_use]
    pub fn tail(&self) -> Tail {
        let memories = (0..self.layout.config.vcpus).map(|vcpu| self.ring(vcpu)).collect();
        Tail::new(LayerKind::GuestKernel, self.rings, memories, self.earliest, &[], Some(self.registry()))
    }

    /// A layer of these rings, new in the recording `dir`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn layer(&self, dir: &Path, manifest: &Manifest) -> Result<RingLayer, WriteError> {
        let layer = NewLayer {
            kind: LayerKind::GuestKernel,
            vm: Some(self.vm.clone()),
            process: None,
            packet_size: self.rings.geometry.sub_buffer_size(),
        };
        let writer = LayerWriter::create_in_progress(self.rotation.as_ref(), dir, manifest, layer)?;
        let ring =
            |vcpu| Consumer::new(self.ring(vcpu), self.rings.geometry, self.rings.mode, vcpu).since(self.earliest);
        Ok(RingLayer::new(writer, Some(self.registry()), (0..self.layout.config.vcpus).map(ring).collect()))
    }
}
