//! Guest processes that record, written out as they do: drains each process's rings into a layer of its own, and gives
//! slots back.

use super::process_table::ProcessTable;
use super::ring_layer::{Producers, RingLayer};
use std::path::Path;
use trace_merge::manifest::{Layer, Manifest};
use trace_merge::writer::{LayerWriter, WriteError};

/// Most processes that one recording keeps apart: a guest that opens and closes slots without end must not fill the
/// trace folder with folders.
pub const MAX_PROCESSES: usize = 4096;

/// Follows the process table of one region.
#[derive(Debug)]
pub struct GuestProcesses {
    table: ProcessTable,
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

impl GuestProcesses {
    /// The processes of `table`.
    #[must_use]
    pub fn new(table: ProcessTable) -> Self {
        let slots = (0..table.slots()).map(|_| Slot::default()).collect();
        Self { table, slots, ended: Vec::new(), refused: 0 }
    }

    /// Polls every slot: begins layers of new processes, drains, and gives back the slots of processes that are gone.
    /// `guest` says whether the guest itself has stopped. Returns the packets written and whether the manifest
    /// has changed.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn drain(
        &mut self,
        dir: &Path,
        manifest: &Manifest,
        guest: Producers,
        latest: u64,
    ) -> Result<(u64, bool), WriteError> {
        let mut packets = 0;
        let mut changed = false;
        for number in 0..self.table.slots() {
            let state = self.table.state(number);
            if state.is_in_use() && state.generation != self.slots[number as usize].generation {
                self.begin(dir, manifest, number, state.generation)?;
                changed = true;
            }
            let slot = &mut self.slots[number as usize];
            let Some(layer) = &mut slot.layer else { continue };
            let closed = !state.is_active() || state.generation != slot.generation;
            if closed || guest == Producers::Stopped {
                packets += layer.finish(latest)?.packets;
                self.ended.extend(slot.layer.take().map(|layer| layer.layer()));
                self.table.acknowledge(number, slot.generation);
                changed = true;
            } else {
                let drained = layer.drain(Producers::Running, latest)?;
                packets += drained.packets;
                changed |= drained.new_events > 0;
            }
        }
        Ok((packets, changed))
    }

    /// The layers of all processes so far, as the manifest describes them.
    pub fn layers(&self) -> impl Iterator<Item = Layer> + '_ {
        let running = self.slots.iter().filter_map(|slot| slot.layer.as_ref()).map(RingLayer::layer);
        self.ended.iter().cloned().chain(running)
    }

    /// The layers of processes that are running.
    pub fn running(&mut self) -> impl Iterator<Item = &mut RingLayer> {
        self.slots.iter_mut().filter_map(|slot| slot.layer.as_mut())
    }

    /// Processes that were not recorded because there were too many.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    fn begin(&mut self, dir: &Path, manifest: &Manifest, number: u32, generation: u32) -> Result<(), WriteError> {
        // A guest kernel that reuses a slot without waiting for the host spoils that process's records, nothing else.
        self.ended.extend(self.slots[number as usize].layer.take().map(|layer| layer.layer()));
        self.slots[number as usize].generation = generation;
        if self.ended.len() >= MAX_PROCESSES {
            self.refused += 1;
            self.table.acknowledge(number, generation);
            return Ok(());
        }
        let writer = LayerWriter::create(dir, manifest, self.table.layer(number))?;
        let registry = self.table.registry(number);
        let rings = self.table.rings(number);
        self.slots[number as usize].layer = Some(RingLayer::new(writer, registry, rings));
        Ok(())
    }
}
