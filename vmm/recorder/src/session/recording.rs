//! A recording in the making: its folder and its manifest, which is kept up to date with what the guest's agent and the
//! VMM say.

use crate::guest_symbols::GuestSymbols;
use crate::live::vcpu_activity::VcpuThreads;
use crate::region::{EnabledEvents, MAIN_SESSION, TraceRegion, enabled_among, guest_text};
use crate::selection::{Selection, SelectionError};
use crate::session::{cpu_limits, thread_times};
use crate::vmm_events::VmmTracer;
use shared_ring::event::EventDescription;
use shared_ring::host::Agent;
use shared_ring::layout::AGENT_ABSENT;
use shared_ring::region::Rings;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use strata_abi::class;
use strata_analysis::event::name::RECORDING_STOPS;
use strata_clock::{EpochSink, VcpuClocks, kernel_clocks};
use strata_host_kernel::namespace::recorded_thread_id;
use strata_recording::clock_snapshots::ClockLog;
use strata_recording::files::MANIFEST_FILE;
use strata_recording::files::access::Readers;
use strata_recording::files::reserve::Reserve;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Guest, Layer, Manifest, ManifestError, Missing, VcpuThread, event_bytes};
use strata_recording::writer::{Rotation, WriteError};
use thiserror::Error;

/// Most vCPUs whose threads are named: KVM has no more on x86.
const MAX_VCPUS: u32 = 4096;

/// Why a recording cannot go on.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// A layer cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The manifest cannot be written.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Adds to a recording that is complete but for that, whose manifest it gets, and the size that the recording keeps
/// within, if it does. It is called on the recorder's thread, which may write files.
pub type AtCompletion = Box<dyn FnOnce(Manifest, Option<&Rotation>) -> Result<Manifest, RecordingError> + Send>;

/// Takes from the running guest what a snapshot is to have beside the layers of the flight recorder. It gets the
/// snapshot's folder before those layers are written, and what it returns adds to them. It is called on the recorder's
/// thread.
pub type AtSnapshot = Box<dyn FnMut(&Path) -> AtCompletion + Send>;

/// A recording in the making, besides its records.
pub struct Recording {
    /// Its folder, absolute; `None` for a flight recorder that writes nothing but snapshots.
    pub dir: Option<PathBuf>,
    /// Who may read it, and snapshots of it.
    pub readers: Readers,
    /// Its manifest, as of the last update.
    pub manifest: Manifest,
    /// The size that it keeps within, if it does.
    pub rotation: Option<Rotation>,
    /// Room for the last manifest.
    pub reserve: Reserve,
    /// Name of the VM.
    pub vm: String,
    /// Which events are wanted.
    pub selection: Selection,
    /// Index and host thread of each vCPU, filled in as they start or are found.
    pub vcpu_threads: VcpuThreads,
    /// The vCPUs' clocks.
    pub clocks: Arc<VcpuClocks>,
    /// What only the process that runs the VM has; `None` where that is another one.
    pub guest: Option<GuestSide>,
}

/// The guest's side of a recording: memory that is shared with the guest, and what is known of the guest's agent.
pub struct GuestSide {
    /// The region shared with the guest.
    pub region: Arc<TraceRegion>,
    /// The session slot that is recorded.
    pub slot: usize,
    /// Geometry and mode of the guest kernel's rings in that slot.
    pub rings: Rings,
    /// The VMM's own events; only the session that the VM was started with has them.
    pub vmm: Option<Arc<VmmTracer>>,
    /// The events that the file of the guest's module declares; empty when the host does not have that file.
    pub events: Arc<[EventDescription]>,
    /// Whether the guest was given an agent; without one its layers are expected to stay empty.
    pub agent: bool,
    /// The symbols of the guest's kernel, where its image is known.
    pub symbols: Option<Arc<GuestSymbols>>,
    /// Folder beside the region for a copy of the manifest, which `strata recover` reads.
    pub beside_region: Option<PathBuf>,
}

/// Where new epochs of a vCPU's clock go: to the guest, which reads them from `region`, and to the VMM's own events, if
/// `vmm` records them.
#[must_use]
pub fn epoch_sink(region: Arc<TraceRegion>, vmm: Option<Arc<VmmTracer>>) -> EpochSink {
    let vcpus = region.layout().config.vcpus;
    Box::new(move |vcpu, epoch, bound_ns| {
        // A VM that another process runs may be given more vCPUs than its region has room for.
        if vcpu < vcpus {
            region.publish_clock(vcpu, &epoch.relation);
        }
        if let Some(vmm) = &vmm {
            vmm.clock_update(vcpu, epoch.number, &epoch.relation, epoch.cause, bound_ns);
        }
    })
}

/// Why the guest's layers are missing when strata gave it no agent; true until the guest's own says hello.
pub const NO_AGENT: &str = "no agent was given to the guest, and it has not brought one";

impl Recording {
    /// A recording of the VM `vm` that is written nowhere, begins with `manifest` and has no guest's side.
    #[must_use]
    pub fn new(manifest: Manifest, vm: String, selection: Selection, clocks: Arc<VcpuClocks>) -> Self {
        Self {
            dir: None,
            readers: Readers::default(),
            manifest,
            rotation: None,
            reserve: Reserve::default(),
            vm,
            selection,
            vcpu_threads: VcpuThreads::default(),
            clocks,
            guest: None,
        }
    }

    /// The recording, in the folder `dir` and within the size of `rotation`, of a session called `name` that is made
    /// while the VM of this one runs and records `selection` of the guest's kernel into the rings of `guest`.
    #[must_use]
    pub fn of_guest_kernel(
        &self,
        name: &str,
        selection: Selection,
        dir: Option<PathBuf>,
        rotation: Option<Rotation>,
        guest: GuestSide,
    ) -> Self {
        let missing = [LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestUser].map(|layer| Missing {
            layer,
            reason: format!(
                "session '{name}' was made while the VM ran, and such a session records the guest's kernel only"
            ),
            fix: format!("see the trace of session {MAIN_SESSION}"),
        });
        let manifest = Manifest { layers: Vec::new(), missing: missing.into(), ..self.manifest.clone() };
        Self {
            dir,
            rotation,
            readers: self.readers,
            vcpu_threads: Arc::clone(&self.vcpu_threads),
            guest: Some(guest),
            ..Self::new(manifest, self.vm.clone(), selection, Arc::clone(&self.clocks))
        }
    }

    /// The youngest time that a record may carry. One second of slack leaves it to `strata check` to judge a clock that
    /// is a little wrong; what lies further ahead would spoil the order of everything after it.
    #[must_use]
    pub fn latest(&self) -> u64 {
        self.clocks.time().now().saturating_add(self.manifest.clock.frequency_hz)
    }

    /// The oldest time that a record may carry whose ring is made now, with as much slack.
    #[must_use]
    pub fn earliest(&self) -> u64 {
        self.clocks.time().now().saturating_sub(self.manifest.clock.frequency_hz)
    }

    /// Updates the manifest with what the agent says about the guest and with the threads of the vCPUs; says whether it
    /// changed.
    pub fn update(&mut self) -> bool {
        let guest_changed = self.update_guest();
        self.update_threads() || guest_changed
    }

    /// Updates the vCPUs' epochs in the manifest.
    fn update_clock(&mut self) {
        let clock = &mut self.manifest.clock;
        clock.epochs = self.clocks.epochs();
        let worst = clock.epochs.iter().map(|epoch| epoch.bound_ns).max().unwrap_or(0);
        clock.error_bound_ns = clock.error_bound_ns.max(worst);
    }

    /// Reads the kernel's clocks, and adds what they show to `log`, which writes it into the recording's folder, if it has
    /// one, and beside the region. Notes in the manifest when the kernel gives up the clock that times count; says whether
    /// it has since the last look.
    pub fn read_clocks(&mut self, log: &mut ClockLog) -> bool {
        let time = self.clocks.time();
        let is_given_up = self.manifest.clock.given_up_ticks.is_none() && time.is_given_up();
        if is_given_up {
            self.manifest.clock.given_up_ticks = Some(time.now());
        }
        let snapshot = kernel_clocks::read(time, self.manifest.clock.frequency_hz);
        let begin = self.begin();
        let beside = self.guest.as_ref().and_then(|guest| guest.beside_region.as_deref());
        let dirs: Vec<&Path> = self.dir.as_deref().into_iter().chain(beside).collect();
        // What cannot be written is kept: that the disk is full is reported when the manifest is saved.
        let _ = log.add(snapshot, Instant::now(), begin, &dirs);
        is_given_up
    }

    /// From when on something of each stream is there, ticks: what is older was dropped.
    fn begin(&self) -> u64 {
        let streams = self.manifest.layers.iter().flat_map(|layer| &layer.streams);
        streams.map(|stream| stream.dropped.map_or(0, |dropped| dropped.until)).min().unwrap_or(0)
    }

    fn update_guest(&mut self) -> bool {
        let Some(side) = &self.guest else { return false };
        let agent = side.region.parts().agent();
        let Some(vm) = self.manifest.vms.iter_mut().find(|vm| vm.name == self.vm) else { return false };
        vm.restored_words = side.region.restore();
        side.report_kernel(&agent);
        let counts = (agent.processes_refused, agent.processes_over_quota);
        if let Some(guest) = &mut vm.guest {
            let new = counts != (guest.processes_refused, guest.processes_over_quota);
            (guest.processes_refused, guest.processes_over_quota) = counts;
            return new;
        }
        if agent.state == AGENT_ABSENT {
            return false;
        }
        let kernel = guest_text(&agent.kernel_release);
        vm.guest = Some(Guest { kernel, agent_abi: agent.abi_version, processes_refused: 0, processes_over_quota: 0 });
        // The agent has come up after all: the guest has brought its own.
        self.manifest.missing.retain(|missing| missing.reason != NO_AGENT);
        true
    }

    /// When the guest's kernel was left for its crash kernel, ticks, if it was: by then, its rings change no more. What the
    /// guest says of the future is not believed.
    #[must_use]
    pub fn crash_kernel_at(&self) -> Option<u64> {
        let time = self.guest.as_ref()?.region.parts().agent().crash_kernel_at?;
        Some(time.min(self.clocks.time().now()))
    }

    /// Words of the trace region that the guest had changed although they are the host's, and that were restored.
    #[must_use]
    pub fn restored_words(&self) -> u64 {
        self.manifest.vm(&self.vm).map_or(0, |vm| vm.restored_words)
    }

    /// Number of the VM's vCPUs.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        self.manifest.vm(&self.vm).map_or(0, |vm| vm.vcpus)
    }

    /// The vCPUs that have no ring, since they were added to the VM beyond the CPUs that its region has room for.
    pub fn vcpus_without_ring(&self) -> Range<u32> {
        let rings = self.guest.as_ref().map(|guest| guest.region.layout().config.vcpus);
        rings.unwrap_or(u32::MAX)..self.vcpus()
    }

    fn update_threads(&mut self) -> bool {
        let Some(vm) = self.manifest.vms.iter_mut().find(|vm| vm.name == self.vm) else { return false };
        let (threads, earlier) = {
            let threads = self.vcpu_threads.lock().unwrap_or_else(PoisonError::into_inner);
            (in_vcpu_order(threads.current()), threads.earlier().map(earlier_thread).collect::<Vec<_>>())
        };
        let new = vm.vcpu_threads != threads || vm.earlier_vcpu_threads != earlier;
        // vCPUs may be added to a VM that another process runs.
        vm.vcpus = vm.vcpus.max(u32::try_from(threads.len()).unwrap_or(u32::MAX));
        (vm.vcpu_threads, vm.earlier_vcpu_threads) = (threads, earlier);
        new
    }

    /// The part of applications' layers that is missing so far because processes had no slot to record into.
    #[must_use]
    pub fn missing_processes(&self) -> Option<Missing> {
        self.manifest.vm(&self.vm)?.guest.as_ref()?.missing_processes()
    }

    /// The symbols of the guest's kernel, compressed, if they are known. If they are being read, that is waited for, and
    /// `meanwhile` called again and again.
    pub fn symbols(&self, meanwhile: &mut dyn FnMut()) -> Option<&[u8]> {
        let side = self.guest.as_ref()?;
        side.report_kernel(&side.region.parts().agent());
        side.symbols.as_deref()?.wait(meanwhile)
    }

    /// What is missing of the symbols of the guest's kernel, if its image is known and it said where it lies.
    #[must_use]
    pub fn missing_symbols(&self) -> Option<Missing> {
        self.guest.as_ref()?.symbols.as_ref()?.missing()
    }

    /// The layers that are missing at the end of the guest because of the guest.
    #[must_use]
    pub fn missing_at_end(&self) -> Vec<Missing> {
        let mut missing = Vec::new();
        let has_guest_greeted = self.manifest.vms.iter().any(|vm| vm.name == self.vm && vm.guest.is_some());
        if self.guest.as_ref().is_some_and(|guest| guest.agent) && !has_guest_greeted {
            missing.extend([LayerKind::GuestKernel, LayerKind::GuestUser].map(|layer| Missing {
                layer,
                reason: "the agent was given to the guest, but did not come up".into(),
                fix: "look for 'strata' in the guest's console output".into(),
            }));
        }
        missing.extend(self.missing_processes());
        missing.extend(self.missing_symbols());
        missing
    }

    /// Writes the manifest with `layers` into the recording's folder, if it has one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&mut self, layers: Vec<Layer>) -> Result<(), ManifestError> {
        self.manifest.layers = layers;
        if self.dir.is_some() {
            self.update_clock();
            note_threads(&mut self.manifest, &self.vm, &self.vcpu_threads);
        }
        match (&self.dir, &self.rotation) {
            (Some(dir), Some(rotation)) => rotation.save(dir, &mut self.manifest, &mut self.reserve),
            (Some(dir), None) => self.manifest.save_reserving(dir, &mut self.reserve),
            (None, _) => Ok(()),
        }
    }

    /// Keeps room on the disk for `events`, which the manifest is to have before it is next saved. A recording that keeps
    /// within a size does not fill its disk.
    pub fn expect_events(&mut self, events: &[EventDescription]) {
        if let (Some(dir), None) = (&self.dir, &self.rotation) {
            self.reserve.expect(&dir.join(MANIFEST_FILE), events.iter().map(event_bytes).sum());
        }
    }

    /// Writes the manifest with `layers` for the last time, also where the disk is full.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save_last(&mut self, layers: Vec<Layer>) -> Result<(), ManifestError> {
        self.reserve.release();
        self.save(layers)
    }

    /// Writes the manifest without layers beside the region, if this recording does so.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save_beside_region(&self) -> Result<(), ManifestError> {
        let folder = self.guest.as_ref().and_then(|guest| guest.beside_region.as_ref());
        let Some(folder) = folder else { return Ok(()) };
        Manifest { layers: Vec::new(), ..self.manifest.clone() }.save(folder)
    }
}

impl GuestSide {
    /// The session that a VM is started with, which records into the guest kernel's `rings` in `region`. Without the VMM's
    /// own events, and with no agent that the host knows of.
    #[must_use]
    pub fn new(region: Arc<TraceRegion>, rings: Rings) -> Self {
        Self {
            region,
            slot: 0,
            rings,
            vmm: None,
            events: Arc::default(),
            agent: false,
            symbols: None,
            beside_region: None,
        }
    }

    /// Reports to the symbols of the guest's kernel where it lies, if `agent` says so.
    fn report_kernel(&self, agent: &Agent) {
        if let (Some(symbols), Some(address)) = (&self.symbols, agent.schedule_at) {
            symbols.report(address);
        }
    }

    /// The enable bits of the session for those that `selection` wants of `registered`, the events of the agent's
    /// registry, and of the events that the module's file declares and the registry does not have yet. The registry is
    /// right about its ids. It is read while the agent writes it: without the declared events, wanted ones would be off
    /// for that time.
    #[must_use]
    pub fn enabled(&self, registered: &[EventDescription], selection: &Selection) -> EnabledEvents {
        enabled_guest_events(registered_or_declared(registered, &self.events), selection)
    }

    /// The selection that `events` stands for, checked against the guest's events: those that its agent has registered,
    /// else those that its module's file declares. Nothing is checked while neither is known.
    ///
    /// # Errors
    /// When a term is not a glob, or matches none of the guest's events.
    pub fn select(&self, events: &str) -> Result<Selection, SelectionError> {
        let selection = Selection::parse(events)?;
        let registered = self.region.parts().kernel_registry().poll();
        let known = if registered.is_empty() { &*self.events } else { &registered };
        if !known.is_empty() {
            let names = known.iter().map(|event| event.name.clone()).collect();
            selection.check(&[(LayerKind::GuestKernel, names)])?;
        }
        Ok(selection)
    }
}

/// Writes into `manifest` what the threads of this process, which records the VM called `vm`, have used so far, and what
/// control groups have kept from the VM's `threads`.
pub fn note_threads(manifest: &mut Manifest, vm: &str, threads: &VcpuThreads) {
    if let Some(vm) = manifest.vms.iter_mut().find(|of| of.name == vm) {
        thread_times::update(&mut vm.strata_threads);
        let threads: Vec<u32> = threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .current()
            .iter()
            .map(|&(_, thread)| thread)
            .collect();
        let process = vm.attached.as_ref().map(|attached| attached.pid);
        cpu_limits::update(&mut vm.cpu_limits, process, threads.into_iter());
    }
}

/// The host threads of `vcpus` by the vCPUs' indices, -1 for a vCPU whose thread is not known.
fn in_vcpu_order(vcpus: &[(u32, u32)]) -> Vec<i32> {
    let known: BTreeMap<u32, u32> = vcpus.iter().copied().collect();
    let count = known.last_key_value().map_or(0, |(&last, _)| last.saturating_add(1).min(MAX_VCPUS));
    (0..count).map(|vcpu| known.get(&vcpu).map_or(-1, |tid| recorded_thread_id(tid.cast_signed()))).collect()
}

fn earlier_thread((vcpu, tid): (u32, u32)) -> VcpuThread {
    VcpuThread { vcpu, tid: recorded_thread_id(tid.cast_signed()) }
}

/// The `registered` events, and the `declared` ones whose ids are not among them.
fn registered_or_declared<'a>(
    registered: &'a [EventDescription],
    declared: &'a [EventDescription],
) -> impl Iterator<Item = &'a EventDescription> {
    let ids: BTreeSet<u16> = registered.iter().map(|event| event.id).collect();
    registered.iter().chain(declared.iter().filter(move |event| !ids.contains(&event.id)))
}

/// The enable bits of those `events` of the guest's kernel that `selection` includes, and of applications if it
/// includes them. With any event of the kernel goes the one that says when a CPU stops to record: without it, what the
/// CPU did last would seem to go on.
#[must_use]
pub fn enabled_guest_events<'a>(
    events: impl IntoIterator<Item = &'a EventDescription>,
    selection: &Selection,
) -> EnabledEvents {
    let events: Vec<&EventDescription> = events.into_iter().collect();
    let mut enabled = enabled_among(events.iter().copied(), |name| selection.includes(LayerKind::GuestKernel, name));
    if enabled.class_mask != 0 {
        let mark = events.iter().filter(|event| event.name == RECORDING_STOPS);
        mark.for_each(|event| enabled.enable(event.id, event.class));
    }
    if selection.includes_applications() {
        enabled.class_mask |= 1 << class::USER;
    }
    enabled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u16, name: &str) -> EventDescription {
        EventDescription { id, class: class::SCHED, name: name.into(), fields: Vec::new() }
    }

    #[test]
    fn declared_events_stay_enabled_while_the_registry_is_half_read() {
        let declared = [event(64, "a:first"), event(65, "a:second")];

        let bits = enabled_guest_events(
            registered_or_declared(&declared[..1], &declared),
            &Selection::parse("guest-kernel:a:second").unwrap(),
        );

        assert_eq!(bits.events[1], 1 << 1);
    }

    #[test]
    fn mark_of_a_cpu_that_stops_goes_with_any_event_and_not_alone() {
        let events = [event(64, RECORDING_STOPS), event(65, "a:second")];
        let enabled = |selection| enabled_guest_events(&events, &Selection::parse(selection).unwrap()).events[1];

        assert_eq!((enabled("guest-kernel:a:second"), enabled("guest-kernel:a:other")), (0b11, 0));
    }

    #[test]
    fn threads_are_named_by_vcpu_also_where_one_is_not_known() {
        assert_eq!(in_vcpu_order(&[(2, 72), (0, 70)]), [70, -1, 72]);
        assert_eq!(in_vcpu_order(&[(0, 70), (0, 71)]), [71]);
        assert_eq!(in_vcpu_order(&[]), Vec::<i32>::new());
    }

    #[test]
    fn registry_wins_over_the_module_file() {
        let (registered, declared) = ([event(64, "a:registered")], [event(64, "a:declared")]);

        let names: Vec<_> = registered_or_declared(&registered, &declared).map(|event| event.name.as_str()).collect();

        assert_eq!(names, ["a:registered"]);
    }
}
