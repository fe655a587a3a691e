//! The process table of a region: which guest processes record, and where their rings and registries lie.

use super::region::guest_text;
use shared_ring::consumer::Consumer;
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{PAGE_SIZE, PROCESS_ACTIVE, PROCESS_CLOSED, ProcessEntry};
use shared_ring::region::RegionLayout;
use shared_ring::registry::Tail;
use std::mem::offset_of;
use trace_merge::session::{LayerKind, Process};
use trace_merge::writer::NewLayer;

/// The process table of one region. What it says comes from a guest.
#[derive(Debug)]
pub struct ProcessTable {
    memory: HostMemory,
    layout: RegionLayout,
    vm: String,
}

/// A slot's state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// Number of the slot's use, counted by the guest.
    pub generation: u32,
    status: u32,
}

impl SlotState {
    /// Whether a process has the slot, or had it and the host has not given it back yet.
    #[must_use]
    pub const fn is_in_use(self) -> bool {
        matches!(self.status, PROCESS_ACTIVE | PROCESS_CLOSED)
    }

    /// Whether the process may still record.
    #[must_use]
    pub const fn is_active(self) -> bool {
        self.status == PROCESS_ACTIVE
    }
}

impl ProcessTable {
    /// The table of the VM called `vm`, whose region `memory` is laid out by `layout`.
    #[must_use]
    pub const fn new(memory: HostMemory, layout: RegionLayout, vm: String) -> Self {
        Self { memory, layout, vm }
    }

    /// Number of slots.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.layout.config.process_slots
    }

    /// What the guest says about slot `number`.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "the word holds two halves")]
    pub fn state(&self, number: u32) -> SlotState {
        let word = self.memory.load(self.entry(number));
        SlotState { generation: (word >> 32) as u32, status: word as u32 }
    }

    /// Tells the guest that `generation` of slot `number` is read to its end, so that it may use the slot again.
    pub fn acknowledge(&self, number: u32, generation: u32) {
        self.memory.store(self.layout.process_ack + number as usize * 8, u64::from(generation));
    }

    /// The layer of the process that has slot `number`.
    #[must_use]
    pub fn layer(&self, number: u32) -> NewLayer {
        NewLayer {
            kind: LayerKind::GuestUser,
            vm: Some(self.vm.clone()),
            process: Some(self.process(number)),
            packet_size: self.layout.config.process_rings.geometry.sub_buffer_size(),
        }
    }

    /// The event registry of slot `number`, from its beginning.
    #[must_use]
    pub fn registry(&self, number: u32) -> Tail {
        let registry = self.layout.process_slot(number) + PAGE_SIZE;
        Tail::new(self.memory.part(registry, self.layout.process_registry_size))
    }

    /// Consumers of the rings of slot `number`, from their beginning, by vCPU.
    #[must_use]
    pub fn rings(&self, number: u32) -> Vec<Consumer> {
        let (vcpus, rings) = (self.layout.config.vcpus, self.layout.config.process_rings);

        let ring = |vcpu| {
            let memory = self.memory.part(self.layout.process_ring(number, vcpu), rings.ring_size());
            Consumer::new(memory, rings.geometry, rings.mode, vcpu)
        };
        (0..vcpus).map(ring).collect()
    }

    fn entry(&self, number: u32) -> usize {
        self.layout.process_table + number as usize * size_of::<ProcessEntry>()
    }

    fn process(&self, number: u32) -> Process {
        let entry = self.entry(number);
        let mut comm = [0; 16];
        self.memory.read(entry + offset_of!(ProcessEntry, comm), &mut comm);
        #[allow(clippy::cast_possible_truncation, reason = "the low half of the word is the pid")]
        let pid = self.memory.load(entry + offset_of!(ProcessEntry, pid)) as u32;
        Process { pid, comm: guest_text(&comm) }
    }
}
