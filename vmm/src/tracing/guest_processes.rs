//! Guest processes that record: follows the process table, drains each process's rings into a layer of its own, and
//! gives slots back.

use super::region::guest_text;
use super::ring_layer::{Producers, RingLayer};
use shared_ring::consumer::Consumer;
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{PAGE_SIZE, PROCESS_ACTIVE, PROCESS_CLOSED, ProcessEntry};
use shared_ring::region::RegionLayout;
use shared_ring::registry::Tail;
use std::mem::offset_of;
use std::path::Path;
use trace_merge::session::{Layer, LayerKind, Process, Session};
use trace_merge::writer::{LayerWriter, NewLayer, WriteError};

/// Most processes that one recording keeps apart: a guest that opens and closes slots without end must not fill the
/// trace folder with folders.
const MAX_PROCESSES: usize = 4096;

/// Follows the process table of one region.
#[derive(Debug)]
pub struct GuestProcesses {
    memory: HostMemory,
    layout: RegionLayout,
    vm: String,
    slots: Vec<Slot>,
    /// Layers of processes that have ended.
    ended: Vec<Layer>,
    /// Processes that were not recorded because there were too many.
    refused: u64,
}

/// What the host knows of a slot.
#[derive(Debug, Default)]
struct Slot {
    /// Last generation that was seen.
    generation: u32,
    /// The process that owns the slot, while it is drained.
    layer: Option<RingLayer>,
}

/// A slot's state word, as a guest wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    generation: u32,
    status: u32,
}

#[allow(clippy::cast_possible_truncation, reason = "the word holds two halves")]
const fn state(word: u64) -> State {
    State { generation: (word >> 32) as u32, status: word as u32 }
}

impl GuestProcesses {
    /// The processes of the VM called `vm`, whose region `memory` is laid out by `layout`.
    #[must_use]
    pub fn new(memory: HostMemory, layout: RegionLayout, vm: String) -> Self {
        let slots = (0..layout.config.process_slots).map(|_| Slot::default()).collect();
        Self { memory, layout, vm, slots, ended: Vec::new(), refused: 0 }
    }

    /// Looks at every slot: begins layers of new processes, drains, and gives back the slots of processes that are gone.
    /// `guest` says whether the guest itself has stopped. Returns the packets written and whether `session.json` has
    /// something new to say.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn drain(
        &mut self,
        dir: &Path,
        session: &Session,
        guest: Producers,
        latest: u64,
    ) -> Result<(u64, bool), WriteError> {
        let mut packets = 0;
        let mut news = false;
        for number in 0..self.layout.config.process_slots {
            let state = state(self.memory.load(self.entry(number)));
            let in_use = matches!(state.status, PROCESS_ACTIVE | PROCESS_CLOSED);
            if in_use && state.generation != self.slots[number as usize].generation {
                self.begin(dir, session, number, state.generation)?;
                news = true;
            }
            let slot = &mut self.slots[number as usize];
            let Some(layer) = &mut slot.layer else { continue };
            let closed = state.status != PROCESS_ACTIVE || state.generation != slot.generation;
            if closed || guest == Producers::Stopped {
                packets += layer.finish(latest)?.packets;
                self.ended.extend(slot.layer.take().map(|layer| layer.layer()));
                let acknowledged = u64::from(slot.generation);
                self.memory.store(self.layout.process_ack + number as usize * 8, acknowledged);
                news = true;
            } else {
                let drained = layer.drain(Producers::Running, latest)?;
                packets += drained.packets;
                news |= drained.new_events > 0;
            }
        }
        Ok((packets, news))
    }

    /// What `session.json` says about the processes so far.
    pub fn layers(&self) -> impl Iterator<Item = Layer> + '_ {
        let running = self.slots.iter().filter_map(|slot| slot.layer.as_ref()).map(RingLayer::layer);
        self.ended.iter().cloned().chain(running)
    }

    /// Processes that were not recorded because there were too many.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    fn entry(&self, number: u32) -> usize {
        self.layout.process_table + number as usize * size_of::<ProcessEntry>()
    }

    fn begin(&mut self, dir: &Path, session: &Session, number: u32, generation: u32) -> Result<(), WriteError> {
        // A guest kernel that reuses a slot without waiting for the host spoils that process's records, nothing else.
        self.ended.extend(self.slots[number as usize].layer.take().map(|layer| layer.layer()));
        self.slots[number as usize].generation = generation;
        if self.ended.len() >= MAX_PROCESSES {
            self.refused += 1;
            self.memory.store(self.layout.process_ack + number as usize * 8, u64::from(generation));
            return Ok(());
        }
        let layer = NewLayer {
            kind: LayerKind::GuestUser,
            vm: Some(self.vm.clone()),
            process: Some(self.process(number)),
            packet_size: self.layout.config.process_rings.sub_buffer_size(),
        };
        let writer = LayerWriter::create(dir, session, layer)?;
        let registry = self.layout.process_slot(number) + PAGE_SIZE;
        let registry = Tail::new(self.memory.part(registry, self.layout.process_registry_size));
        let rings = (0..self.layout.config.vcpus).map(|vcpu| {
            let size = self.layout.config.process_rings.ring_size();
            let ring = self.memory.part(self.layout.process_ring(number, vcpu), size);
            Consumer::new(ring, self.layout.config.process_rings, vcpu)
        });
        self.slots[number as usize].layer = Some(RingLayer::new(writer, Some(registry), rings.collect()));
        Ok(())
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
