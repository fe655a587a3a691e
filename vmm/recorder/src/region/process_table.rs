//! The process table of a region: which guest processes record, and where their rings and registries lie.

use crate::region::guest_text;
use crate::trigger::tail::Tail;
use shared_ring::consumer::Consumer;
use shared_ring::host::{Parts, ProcessOwner};
use shared_ring::region::Rings;
use shared_ring::registry::RegistryReader;
use shared_ring::view::ProcessState;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Process;
use strata_recording::writer::NewLayer;

/// The process table of one region. What it says comes from a guest.
#[derive(Debug)]
pub struct ProcessTable {
    parts: Parts,
    vm: String,
    claims: Vec<Claim>,
    /// When the table was last looked at, ticks: what is new then was not there before.
    looked: u64,
}

/// Who has had a slot last.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    generation: u32,
    /// When the process cannot have had the slot yet, ticks.
    before: u64,
    /// Who had the slot when this host came.
    found: Option<Found>,
}

/// A process that had a slot when a host came to a guest that had another host before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It runs, and may have recorded for the other host.
    Running,
    /// It has ended; nobody reads what it left.
    Ended,
}

impl ProcessTable {
    /// The table of the VM called `vm`, which writes `parts` from `begin` ticks on.
    #[must_use]
    pub fn new(parts: Parts, vm: String, begin: u64) -> Self {
        let claims = vec![Claim::default(); parts.view().process_slots() as usize];
        Self { parts, vm, claims, looked: begin }
    }

    /// The table of a guest that runs already and that other hosts may have read: of processes that have ended meanwhile
    /// nothing is read.
    #[must_use]
    pub fn of_running_guest(parts: Parts, vm: String, begin: u64) -> Self {
        let mut table = Self::new(parts, vm, begin);
        for (number, claim) in (0..).zip(&mut table.claims) {
            let state = table.parts.process_state(number).unwrap_or_default();
            if !state.is_in_use() {
                continue;
            }
            let found = if state.is_active() { Found::Running } else { Found::Ended };
            *claim = Claim { generation: state.generation, before: 0, found: Some(found) };
            if found == Found::Ended {
                table.parts.acknowledge(number, state.generation);
            }
        }
        table
    }

    /// Notes which slots have new owners, at `now` ticks: no record of theirs is older than the look before this one.
    pub fn look(&mut self, now: u64) {
        for (number, claim) in (0..).zip(&mut self.claims) {
            let generation = self.parts.process_state(number).map_or(0, |state| state.generation);
            if claim.generation != generation {
                *claim = Claim { generation, before: self.looked, found: None };
            }
        }
        self.looked = self.looked.max(now);
    }

    /// Number of slots.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.parts.view().process_slots()
    }

    /// Number of vCPUs: of rings of each slot.
    #[must_use]
    pub const fn vcpus(&self) -> u32 {
        self.parts.view().vcpus()
    }

    /// What the guest says about slot `number`; one that was never used when there is no such slot.
    #[must_use]
    pub fn state(&self, number: u32) -> ProcessState {
        let state = self.parts.process_state(number).unwrap_or_default();
        let claim = self.claims.get(number as usize).copied().unwrap_or_default();
        let is_over = claim.found == Some(Found::Ended) && claim.generation == state.generation;
        if is_over { ProcessState::default() } else { state }
    }

    /// Tells the guest that `generation` of slot `number` is read to its end, so that it may use the slot again.
    pub fn acknowledge(&self, number: u32, generation: u32) {
        self.parts.acknowledge(number, generation);
    }

    /// The layer of the process that has slot `number`.
    #[must_use]
    pub fn layer(&self, number: u32) -> NewLayer {
        let process = |owner: ProcessOwner| Process { pid: owner.pid, comm: guest_text(&owner.comm) };
        NewLayer {
            kind: LayerKind::GuestUser,
            vm: Some(self.vm.clone()),
            process: self.parts.process_owner(number).map(process),
            packet_size: self.parts.view().process_rings().geometry.sub_buffer_size(),
        }
    }

    /// The event registry of slot `number`, from its beginning; `None` when there is no such slot.
    #[must_use]
    pub fn registry(&self, number: u32) -> Option<RegistryReader> {
        self.parts.process_registry(number)
    }

    /// What is new in the rings of slot `number`, which are in flight-recorder mode.
    #[must_use]
    pub fn tail(&self, number: u32) -> Tail {
        let rings = self.parts.view().process_rings();
        let memories = (0..self.vcpus()).filter_map(|vcpu| self.parts.process_ring(number, vcpu)).collect();
        let before = self.claims.get(number as usize).map_or(0, |claim| claim.before);
        Tail::new(LayerKind::GuestUser, rings, memories, before, &[], self.registry(number))
    }

    /// Consumers of the rings of slot `number`, from their beginning, by vCPU. They take no record from before its owner had it.
    #[must_use]
    pub fn rings(&self, number: u32) -> Vec<Consumer> {
        let Rings { geometry, mode } = self.parts.view().process_rings();
        let claim = self.claims.get(number as usize).copied().unwrap_or_default();
        let ring = |vcpu| {
            let memory = self.parts.process_ring(number, vcpu)?;
            let consumer = match claim.found {
                // Where the other host stopped, in the middle of a sub-buffer: what it has read of that comes once more.
                Some(_) => Consumer::resume(memory, geometry, mode, vcpu),
                None => Consumer::new(memory, geometry, mode, vcpu),
            };
            Some(consumer.since(claim.before))
        };
        (0..self.vcpus()).filter_map(ring).collect()
    }
}
