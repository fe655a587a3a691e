//! Flight-recorder mode: nothing is written until somebody asks for it. Rings overwrite their oldest content
//! themselves. The rings of processes that have ended and the host kernel's records are buffered in memory, up to a
//! limit.

use super::buffered_layer::BufferedLayer;
use super::guest_processes::{MAX_DESCRIPTIONS, MAX_PROCESS_DESCRIPTION};
use super::host_layer::HostWindow;
use super::kernel_rings::KernelRings;
use super::polling::{MAX_POLLS, Polled};
use super::process_table::ProcessTable;
use super::recording::Recording;
use super::ring_layer::{Latest, RingLayer};
use super::trigger::{TriggerRequest, Triggers};
use super::vmm_events::VmmTracer;
use super::vmm_layer::{vmm_layer, vmm_tail};
use shared_ring::event::EventDescription;
use shared_ring::registry::RegistryReader;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use trace_merge::layer::LayerKind;
use trace_merge::manifest::{Layer, Manifest, Missing};
use trace_merge::schema::SchemaTable;
use trace_merge::writer::{LayerWriter, WriteError};

/// Most bytes of packets and event types of processes that have ended.
const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Most processes that have ended and whose packets are buffered.
const MAX_BUFFERED_PROCESSES: usize = 256;

/// What of a flight recorder could be written.
#[derive(Debug, Default)]
pub struct WrittenLayers {
    /// The layers that are whole.
    pub layers: Vec<Layer>,
    /// Those that are not, in their order, and why.
    pub failures: Vec<(LayerKind, WriteError)>,
}

impl WrittenLayers {
    fn add(&mut self, kind: LayerKind, written: Result<Layer, WriteError>) {
        match written {
            Ok(layer) => self.layers.push(layer),
            Err(error) => self.failures.push((kind, error)),
        }
    }
}

/// The layers of a recording in flight-recorder mode.
pub struct FlightRecorder {
    host: Option<HostWindow>,
    vmm: Option<Arc<VmmTracer>>,
    kernel: Option<FlightKernel>,
    processes: Option<FlightProcesses>,
    triggers: Option<Triggers>,
}

impl FlightRecorder {
    /// A flight recorder of what is given.
    #[must_use]
    pub fn new(
        host: Option<HostWindow>,
        vmm: Option<Arc<VmmTracer>>,
        kernel: Option<KernelRings>,
        processes: Option<ProcessTable>,
    ) -> Self {
        let (kernel, processes) = (kernel.map(FlightKernel::new), processes.map(FlightProcesses::new));
        Self { host, vmm, kernel, processes, triggers: None }
    }

    /// Watches for what `request` names from now on, in records of a clock of `ticks_per_second`.
    pub fn arm(&mut self, request: TriggerRequest, ticks_per_second: u64) {
        let host = self.host.as_ref().map(HostWindow::events).unwrap_or_default();
        let kernel = self.kernel.as_ref().map(|kernel| kernel.rings.tail());
        let tails = kernel.into_iter().chain(self.vmm.as_deref().map(vmm_tail)).collect();
        self.triggers = Some(Triggers::new(request, SchemaTable::new(&host), tails, ticks_per_second));
    }

    /// The triggers, if any are armed.
    pub const fn triggers(&mut self) -> Option<&mut Triggers> {
        self.triggers.as_mut()
    }

    /// Whether it is watched for triggers.
    #[must_use]
    pub const fn is_watched(&self) -> bool {
        self.triggers.is_some()
    }

    /// The host's kernel, if it is traced.
    pub const fn host(&mut self) -> Option<&mut HostWindow> {
        self.host.as_mut()
    }

    /// Reads what the guest has registered, and buffers the host kernel's records and the rings of processes that have
    /// ended.
    pub fn poll(&mut self, recording: &Recording) -> Polled {
        let new_kernel_events = self.kernel.as_mut().is_some_and(FlightKernel::poll);
        if let Some(processes) = &mut self.processes {
            processes.poll(recording.earliest(), &|| recording.latest());
        }
        if let Some(triggers) = &mut self.triggers {
            triggers.set_vcpus(&recording.vcpu_threads.lock().unwrap_or_else(PoisonError::into_inner));
            triggers.look(&|| recording.latest());
        }
        let triggers = &mut self.triggers;
        let more = self.host.as_mut().is_some_and(|host| host.poll(triggers.as_mut()));
        Polled { more, new_kernel_events }
    }

    /// Writes everything that is there as layers of the recording in `dir`, and leaves it where it is. The producers
    /// may be running: guest layers come first and the host's last, so that the periods of the vCPUs cover the guests'
    /// records. What cannot be written is left out.
    pub fn write(&mut self, recording: &Recording, dir: &Path, manifest: &Manifest) -> WrittenLayers {
        let finish = |mut layer: RingLayer| layer.finish(&|| recording.latest()).map(|_| layer.layer());
        let mut written = WrittenLayers::default();
        if let Some(kernel) = &self.kernel {
            written.add(LayerKind::GuestKernel, kernel.rings.layer(dir, manifest).and_then(finish));
        }
        if let Some(processes) = &self.processes {
            for buffered in &processes.ended {
                written.add(LayerKind::GuestUser, buffered.write(dir, manifest));
            }
            let mut left = MAX_DESCRIPTIONS;
            for number in processes.active() {
                let writer = LayerWriter::create(dir, manifest, processes.table.layer(number));
                let (registry, rings) = (processes.table.registry(number), processes.table.rings(number));
                let finished = writer.and_then(|writer| {
                    let mut layer = RingLayer::new(writer, registry, rings);
                    layer.limit_descriptions(MAX_PROCESS_DESCRIPTION.min(left));
                    layer.finish(&|| recording.latest())?;
                    left -= layer.described_bytes();
                    Ok(layer.layer())
                });
                written.add(LayerKind::GuestUser, finished);
            }
        }
        if let Some(vmm) = &self.vmm {
            written.add(LayerKind::Vmm, vmm_layer(vmm, &recording.vm, None, dir, manifest).and_then(finish));
        }
        if let Some(host) = &mut self.host {
            let triggers = &mut self.triggers;
            let _ = (0..MAX_POLLS).find(|_| !host.poll(triggers.as_mut()));
            for layer in host.write(dir, manifest) {
                written.add(LayerKind::HostKernel, layer);
            }
        }
        written
    }

    /// Stops the host's layer, and returns what is missing that was not told yet.
    pub fn finish(&mut self, recording: &Recording) -> Vec<Missing> {
        self.poll(recording);
        let Some(host) = &mut self.host else { return Vec::new() };
        let mut missing = host.finish();
        missing.extend(host.tell_end());
        missing
    }

    /// What is missing of the host's layer since it ended early; once.
    pub fn ends(&mut self) -> Vec<Missing> {
        self.host.iter_mut().filter_map(HostWindow::tell_end).collect()
    }

    /// Whether the guest's processes are among the layers.
    #[must_use]
    pub const fn has_processes(&self) -> bool {
        self.processes.is_some()
    }

    /// Event types of the guest's kernel.
    #[must_use]
    pub fn kernel_events(&self) -> &[EventDescription] {
        self.kernel.as_ref().map_or(&[], |kernel| &kernel.events)
    }

    /// What is missing because buffered packets of processes were dropped to make room for those of later ones.
    #[must_use]
    pub fn missing_processes(&self) -> Option<Missing> {
        let dropped = self.processes.as_ref().map_or(0, |processes| processes.dropped);
        (dropped > 0).then(|| Missing {
            layer: LayerKind::GuestUser,
            reason: format!("{dropped} processes that had ended gave way to later ones"),
            fix: "take a snapshot earlier, or trace fewer short-lived processes".into(),
        })
    }
}

/// The rings of a guest's kernel, and the event types that it has registered so far.
struct FlightKernel {
    rings: KernelRings,
    registry: RegistryReader,
    events: Vec<EventDescription>,
}

impl FlightKernel {
    fn new(rings: KernelRings) -> Self {
        Self { registry: rings.registry(), rings, events: Vec::new() }
    }

    /// Reads what was registered since the last time; says whether that is anything.
    fn poll(&mut self) -> bool {
        let known = self.events.len();
        self.events.extend(self.registry.poll());
        self.events.len() > known
    }
}

/// The processes of a guest: those that run, in their slots, and those that have ended, in memory.
struct FlightProcesses {
    table: ProcessTable,
    /// Last generation of each slot that has been buffered and given back.
    given_back: Vec<u32>,
    /// Processes that have ended, oldest first.
    ended: VecDeque<BufferedLayer>,
    /// Bytes of their packets.
    ended_bytes: usize,
    dropped: u64,
}

impl FlightProcesses {
    fn new(table: ProcessTable) -> Self {
        let given_back = (0..table.slots()).map(|_| 0).collect();
        Self { table, given_back, ended: VecDeque::new(), ended_bytes: 0, dropped: 0 }
    }

    /// Buffers what processes that have ended left in their slots, and gives the slots back. A process that is new
    /// cannot have recorded before `earliest` of the last poll, nor after `latest`.
    fn poll(&mut self, earliest: u64, latest: Latest<'_>) {
        self.table.look(earliest);
        for (number, given_back) in (0..).zip(&mut self.given_back) {
            let state = self.table.state(number);
            if !state.is_in_use() || state.is_active() || state.generation == *given_back {
                continue;
            }
            let Some(registry) = self.table.registry(number) else { continue };
            let buffered = BufferedLayer::drain(self.table.layer(number), registry, self.table.rings(number), latest);
            self.ended_bytes += buffered.bytes();
            self.ended.push_back(buffered);
            *given_back = state.generation;
            self.table.acknowledge(number, state.generation);
        }
        while self.ended.len() > MAX_BUFFERED_PROCESSES
            || (self.ended.len() > 1 && self.ended_bytes > MAX_BUFFERED_BYTES)
        {
            self.ended_bytes -= self.ended.pop_front().map_or(0, |oldest| oldest.bytes());
            self.dropped += 1;
        }
    }

    /// Slots of processes that run, and of those that have ended since the last poll.
    fn active(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.given_back).filter_map(|(number, &given_back)| {
            let state = self.table.state(number);
            (state.is_in_use() && state.generation != given_back).then_some(number)
        })
    }
}
