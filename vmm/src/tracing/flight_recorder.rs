//! Flight-recorder mode: nothing is written until somebody asks for it. Rings overwrite their oldest content themselves;
//! what would be gone otherwise is kept in memory up to a limit: the rings of processes that have ended, and the host
//! kernel's records.

use super::facts::Facts;
use super::host_layer::HostWindow;
use super::kept_layer::KeptLayer;
use super::kernel_rings::KernelRings;
use super::process_table::ProcessTable;
use super::ring_layer::RingLayer;
use super::streaming::{Looked, MAX_LOOKS};
use super::vmm_events::VmmTracer;
use super::vmm_layer::vmm_layer;
use shared_ring::event::EventDescription;
use shared_ring::registry::Tail;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use trace_merge::session::{Layer, Missing, Session};
use trace_merge::writer::{LayerWriter, WriteError};

/// Bytes of packets that are kept of processes that have ended.
const KEPT_BYTES: usize = 64 << 20;
/// Processes that have ended and are kept.
const KEPT_PROCESSES: usize = 256;

/// The layers of a recording in flight-recorder mode.
pub struct FlightRecorder {
    host: Option<HostWindow>,
    vmm: Option<Arc<VmmTracer>>,
    kernel: KernelRings,
    registry: Tail,
    kernel_events: Vec<EventDescription>,
    processes: Option<FlightProcesses>,
}

impl FlightRecorder {
    /// A flight recorder of the guest kernel's `kernel`, and of whatever else is given.
    #[must_use]
    pub fn new(
        host: Option<HostWindow>,
        vmm: Option<Arc<VmmTracer>>,
        kernel: KernelRings,
        processes: Option<ProcessTable>,
    ) -> Self {
        let (registry, processes) = (kernel.registry(), processes.map(FlightProcesses::new));
        Self { host, vmm, kernel, registry, kernel_events: Vec::new(), processes }
    }

    /// Looks what is new, and keeps what would be gone otherwise.
    pub fn look(&mut self, facts: &Facts) -> Looked {
        let new = self.registry.poll();
        let new_kernel_events = !new.is_empty();
        self.kernel_events.extend(new);
        if let Some(processes) = &mut self.processes {
            processes.look(facts.latest());
        }
        let busy = self.host.as_mut().is_some_and(HostWindow::poll);
        Looked { busy, news: new_kernel_events, new_kernel_events }
    }

    /// Writes everything that is there as layers of the recording `dir`, and leaves it where it is. The producers may be
    /// running: guest layers come first and the host's last, so that the periods of the vCPUs cover the guests' records.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn write(&mut self, facts: &Facts, dir: &Path, session: &Session) -> Result<Vec<Layer>, WriteError> {
        let finish = |mut layer: RingLayer| layer.finish(facts.latest()).map(|_| layer.layer());
        let mut layers = vec![finish(self.kernel.layer(dir, session)?)?];
        if let Some(processes) = &self.processes {
            for kept in &processes.kept {
                layers.push(kept.write(dir, session)?);
            }
            for number in processes.active() {
                let writer = LayerWriter::create(dir, session, processes.table.layer(number))?;
                let (registry, rings) = (processes.table.registry(number), processes.table.rings(number));
                layers.push(finish(RingLayer::new(writer, Some(registry), rings))?);
            }
        }
        if let Some(vmm) = &self.vmm {
            layers.push(finish(vmm_layer(vmm, &facts.vm, dir, session)?)?);
        }
        if let Some(host) = &mut self.host {
            let _ = (0..MAX_LOOKS).find(|_| !host.poll());
            layers.push(host.write(dir, session)?);
        }
        Ok(layers)
    }

    /// Stops the host's layer, and returns what is missing.
    pub fn finish(&mut self, facts: &Facts) -> Vec<Missing> {
        self.look(facts);
        self.host.as_mut().map(HostWindow::finish).unwrap_or_default()
    }

    /// Event types of the guest's kernel.
    #[must_use]
    pub fn kernel_events(&self) -> &[EventDescription] {
        &self.kernel_events
    }

    /// Processes whose records were given up because others came after them.
    #[must_use]
    pub fn dropped_processes(&self) -> u64 {
        self.processes.as_ref().map_or(0, |processes| processes.dropped)
    }
}

/// The processes of a guest: those that run, in their slots, and those that have ended, in memory.
struct FlightProcesses {
    table: ProcessTable,
    /// Last generation of each slot that has been kept and given back.
    given_back: Vec<u32>,
    /// Oldest first.
    kept: VecDeque<KeptLayer>,
    kept_bytes: usize,
    dropped: u64,
}

impl FlightProcesses {
    fn new(table: ProcessTable) -> Self {
        let given_back = (0..table.slots()).map(|_| 0).collect();
        Self { table, given_back, kept: VecDeque::new(), kept_bytes: 0, dropped: 0 }
    }

    /// Keeps what processes that have ended left in their slots, and gives the slots back.
    fn look(&mut self, latest: u64) {
        for (number, given_back) in (0..).zip(&mut self.given_back) {
            let state = self.table.state(number);
            if !state.is_in_use() || state.is_active() || state.generation == *given_back {
                continue;
            }
            let (layer, registry, rings) =
                (self.table.layer(number), self.table.registry(number), self.table.rings(number));
            let kept = KeptLayer::take(layer, registry, rings, latest);
            self.kept_bytes += kept.bytes();
            self.kept.push_back(kept);
            *given_back = state.generation;
            self.table.acknowledge(number, state.generation);
        }
        while self.kept.len() > KEPT_PROCESSES || (self.kept.len() > 1 && self.kept_bytes > KEPT_BYTES) {
            self.kept_bytes -= self.kept.pop_front().map_or(0, |oldest| oldest.bytes());
            self.dropped += 1;
        }
    }

    /// Slots of processes that run, and of those that have ended since the last look.
    fn active(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.given_back).filter_map(|(number, &given_back)| {
            let state = self.table.state(number);
            (state.is_in_use() && state.generation != given_back).then_some(number)
        })
    }
}
