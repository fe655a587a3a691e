//! A session: rings of the guest's kernel in a slot of the region, a choice of events, and the recording of both.
//!
//! The session that a VM is started with records every layer. One that is made while the VM runs records the guest's
//! kernel only, with mode, ring sizes and events of its own. The session of a recording that is attached to another
//! process's VM records the host's kernel only, and has no rings.

mod builder;
pub mod cpu_limits;
mod error;
pub mod flight_recorder;
pub mod layers;
mod new_session;
pub mod recording;
mod request;
pub mod sessions;
mod snapshot;
mod status;
pub mod streaming;
pub mod thread_times;
mod triggers;

pub use builder::{Notify, OnFailure, RecordedVm, RecordingBuilder};
pub use error::SessionError;
pub use new_session::NewSession;
pub use request::{FilesRequest, HOST_HISTORY, LayersRequest, RecordingRequest, RequestError};

use crate::drain::polling::Found;
use crate::drain::save_pace::SavePace;
use crate::guest_symbols::chain;
use crate::layer::guest_processes::GuestProcesses;
use crate::layer::host::{HostHistory, HostLayer, HostWindow};
use crate::layer::kernel_rings::KernelRings;
use crate::layer::limit::LayerLimits;
use crate::layer::vmm::vmm_layer;
use crate::layer::written::WrittenLayer;
use crate::live::vcpu_activity::VcpuActivity;
use crate::region::process_table::ProcessTable;
use crate::region::{EnabledEvents, MAIN_SESSION};
use crate::session::flight_recorder::FlightRecorder;
use crate::session::layers::Layers;
use crate::session::recording::{AtSnapshot, GuestSide, Recording, RecordingError};
use crate::session::streaming::Streaming;
use crate::trigger::{TriggerRequest, Triggers};
use crate::vmm_events::{GuestEvents, VmmTracer};
use new_session::choose_slot;
use shared_ring::layout::Mode;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use strata_abi::class;
use strata_recording::clock_snapshots::{ClockLog, Keep};
use strata_recording::files::trace_folder::TraceFolder;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Manifest};
use strata_recording::writer::Rotation;
use triggers::armed;

/// Longest name of a session, bytes: what a session slot holds.
pub const MAX_NAME: usize = 31;

/// A session.
pub struct Session {
    name: String,
    mode: Mode,
    events: String,
    /// Whether the guest's layers record.
    active: bool,
    /// The guest kernel's rings, which are among the layers if there is a guest's side.
    kernel: Option<KernelRings>,
    layers: Layers,
    /// What is watched for; of the session that the VM is started with.
    triggers: Option<Triggers>,
    /// Takes what snapshots have beside the layers; of the session that the VM is started with.
    at_snapshot: Option<AtSnapshot>,
    recording: Recording,
    /// What the kernel's clocks showed.
    clock_log: ClockLog,
    /// When the manifest is written again.
    pace: SavePace,
    /// Whether the manifest lacks packets, or what was reported since it was written.
    is_news: bool,
    /// The copy of the manifest beside the region lacks something of the guest.
    is_copy_old: bool,
    /// Number of the event types of the guest's kernel that it has taken in.
    known_events: usize,
    /// What was reported of layers that go on: each line once.
    notices_reported: BTreeSet<String>,
    /// Whether it was reported that the manifest cannot be written.
    is_save_failure_reported: bool,
    /// Whether it was reported that the guest writes over the host's words.
    is_tampering_reported: bool,
    /// Number of the vCPUs without a ring that were reported.
    reported_without_ring: usize,
    notify: Notify,
    on_failure: Option<OnFailure>,
    /// Whether a layer has ended early, and what is to happen then has not happened yet.
    is_failure_new: bool,
}

impl Session {
    /// The first session: every layer of the recording `requested` of `vm`, recording.
    ///
    /// # Errors
    /// When its recording cannot be written.
    pub fn main(requested: RecordingBuilder, vm: RecordedVm) -> Result<Self, RecordingError> {
        let RecordingBuilder { request, limits, host, process_descriptors, notify, .. } = requested;
        let recording = vm.recording(&request, requested.selection, requested.guest, requested.missing);
        let LayersRequest { mode, events, host_history, .. } = request.layers;
        let history = HostHistory { limit: host_history.unwrap_or(HOST_HISTORY), file: requested.history_file };
        let limiter = |layer| limits.of(layer, Instant::now());
        let rotation = recording.rotation.as_ref();
        let kernel = kernel_rings(&recording);
        let vmm = recording.guest.as_ref().and_then(|guest| guest.vmm.clone());
        let table = |guest: &GuestSide| {
            let table =
                if guest.region.is_behind_device() { ProcessTable::of_running_guest } else { ProcessTable::new };
            table(guest.region.parts().clone(), recording.vm.clone(), recording.earliest())
        };
        let processes = recording.guest.as_ref().map(table);
        let layers = match &recording.dir {
            Some(dir) if mode == Mode::Discard => {
                let manifest = &recording.manifest;
                let vmm = vmm.map(|vmm| vmm_layer(&vmm, &recording.vm, rotation, dir, manifest)).transpose()?;
                let vmm = vmm.map(|layer| layer.within_rate(limiter(LayerKind::Vmm)));
                let guest_kernel = kernel.as_ref().map(|kernel| kernel.layer(dir, manifest)).transpose()?;
                let guest_kernel = guest_kernel.map(|layer| layer.within_rate(limiter(LayerKind::GuestKernel)));
                let host = host.map(|tracer| HostLayer::create(rotation, dir, manifest, tracer)).transpose()?;
                let written = |table| {
                    let processes = GuestProcesses::new(table, process_descriptors).within(rotation);
                    processes
                        .within_rate(limits.clone())
                        .following(VcpuActivity::of(Arc::clone(&recording.vcpu_threads)))
                };
                Layers::Streaming(Box::new(Streaming {
                    dir: dir.clone(),
                    host: host.map(|layer| layer.within_rate(limiter(LayerKind::HostKernel))),
                    vmm: vmm.map(WrittenLayer::new),
                    guest_kernel: guest_kernel.map(WrittenLayer::new),
                    processes: processes.map(written),
                }))
            }
            _ => {
                let host = host.map(|tracer| HostWindow::new(tracer, history));
                Layers::FlightRecorder(Box::new(FlightRecorder::new(host, vmm, kernel.clone(), processes)))
            }
        };
        let mut triggers = layers.triggers(&recording, requested.host_load);
        let TriggerRequest { triggers: wanted, every, after } = request.triggers;
        for trigger in wanted {
            // What it is about was checked before. One too many, or given twice, is reported, and the VM starts.
            if let Err(refusal) = triggers.arm(trigger, every, after, 0) {
                notify(&format!("--trigger: {refusal}"));
            }
        }
        let mut session = Self::of(MAIN_SESSION.into(), mode, events, kernel, layers, recording, notify);
        session.active = true;
        session.triggers = Some(triggers);
        session.at_snapshot = requested.at_snapshot;
        session.on_failure = requested.on_failure;
        session.save(true)?;
        session.expect_declared_events();
        Ok(session)
    }

    /// A session of the guest's kernel in the VM of `main`, stopped.
    ///
    /// # Errors
    /// When its events, its rings or its folder cannot be used, no slot is free, or another process runs the VM.
    pub fn of_guest_kernel(new: NewSession, main: &Self) -> Result<Self, SessionError> {
        let limits = new.limits()?;
        let NewSession { name, rings, events, trace, max_size, .. } = new;
        let side = main.guest()?;
        let selection = side.select(&events)?;
        let region = &side.region;
        let rooms = region.layout().session_ring_stride;
        let free = (1..rooms.len()).filter(|&slot| region.is_free(slot)).map(|slot| (slot, rooms[slot]));
        let slot = choose_slot(rings.ring_size(), free)?;
        let mut folder = trace.as_deref().map(|dir| TraceFolder::create(dir, main.recording.readers)).transpose()?;
        let guest = GuestSide {
            slot,
            events: Arc::clone(&side.events),
            agent: side.agent,
            symbols: side.symbols.clone(),
            ..GuestSide::new(Arc::clone(region), rings)
        };
        let rotation = max_size.map(Rotation::new);
        let recording = main.recording.of_guest_kernel(&name, selection, trace, rotation, guest);
        region.open_session(slot, &name, rings)?;
        let started = Self::with_kernel_rings(name, rings.mode, events, recording, &limits, main.notify);
        match started {
            Ok(session) => {
                folder.iter_mut().for_each(TraceFolder::keep);
                Ok(session)
            }
            Err(error) => {
                region.close_session(slot);
                region.vacate(slot);
                Err(SessionError::NotWritten(error))
            }
        }
    }

    fn with_kernel_rings(
        name: String,
        mode: Mode,
        events: String,
        recording: Recording,
        limits: &LayerLimits,
        notify: Notify,
    ) -> Result<Self, RecordingError> {
        let kernel = kernel_rings(&recording);
        let layers = match &recording.dir {
            Some(dir) if mode == Mode::Discard => {
                let guest_kernel = kernel.as_ref().map(|kernel| kernel.layer(dir, &recording.manifest)).transpose()?;
                let limiter = limits.of(LayerKind::GuestKernel, Instant::now());
                let guest_kernel = guest_kernel.map(|layer| layer.within_rate(limiter));
                Layers::Streaming(Box::new(Streaming {
                    dir: dir.clone(),
                    host: None,
                    vmm: None,
                    guest_kernel: guest_kernel.map(WrittenLayer::new),
                    processes: None,
                }))
            }
            _ => Layers::FlightRecorder(Box::new(FlightRecorder::new(None, None, kernel.clone(), None))),
        };
        let mut session = Self::of(name, mode, events, kernel, layers, recording, notify);
        // the first session tells it
        session.is_tampering_reported = true;
        session.save(false)?;
        session.expect_declared_events();
        Ok(session)
    }

    /// A stopped one that nobody watches, about which nothing was reported yet.
    fn of(
        name: String,
        mode: Mode,
        events: String,
        kernel: Option<KernelRings>,
        layers: Layers,
        mut recording: Recording,
        notify: Notify,
    ) -> Self {
        let keep = if mode == Mode::Discard { Keep::Written } else { Keep::Latest };
        let mut clock_log = ClockLog::new(keep, recording.rotation.clone());
        recording.read_clocks(&mut clock_log);
        Self {
            name,
            mode,
            events,
            active: false,
            kernel,
            layers,
            triggers: None,
            at_snapshot: None,
            recording,
            clock_log,
            pace: SavePace::new(Instant::now()),
            is_news: false,
            is_copy_old: false,
            known_events: 0,
            notices_reported: BTreeSet::new(),
            is_save_failure_reported: false,
            is_tampering_reported: false,
            reported_without_ring: 0,
            notify,
            on_failure: None,
            is_failure_new: false,
        }
    }

    /// What only the process that runs the VM has.
    fn guest(&self) -> Result<&GuestSide, SessionError> {
        self.recording.guest.as_ref().ok_or(SessionError::Attached)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its choice of events, as the user gave it.
    #[must_use]
    pub fn events(&self) -> &str {
        &self.events
    }

    /// Whether it is written while the guest runs.
    #[must_use]
    pub const fn is_streaming(&self) -> bool {
        matches!(self.layers, Layers::Streaming(_))
    }

    /// Polls every layer once, and keeps enable bits and manifest up to date; says how much there was. A layer
    /// that cannot be written ends, which is reported and noted; the others go on.
    pub fn poll(&mut self) -> Found {
        let begun = self.is_watched().then(|| self.recording.clocks.time().now());
        let found = self.layers.poll(&self.recording, armed(&mut self.triggers, &self.recording));
        self.act_on_triggers(begun.filter(|_| !found.has_more()));
        let has_new_events = self.learn_events();
        let is_given_up = self.clock_log.is_due(Instant::now()) && self.recording.read_clocks(&mut self.clock_log);
        let is_changed = self.recording.update() || is_given_up;
        self.is_copy_old |= is_changed;
        self.is_news |= found > Found::Nothing || has_new_events || is_changed;
        self.report_tampering();
        self.report_vcpus_without_ring();
        self.note_ends();
        self.report_notices();
        if self.is_failure_new {
            self.is_failure_new = self.on_failure.as_mut().is_some_and(|on_failure| !on_failure());
        }
        if self.pace.is_due(Instant::now(), self.is_news) {
            self.save_or_report(self.is_copy_old);
        }
        found
    }

    /// Takes in the event types that the guest's kernel has registered since the last call, whoever has read them; says
    /// whether there are any.
    fn learn_events(&mut self) -> bool {
        let known = self.layers.kernel_events().len();
        if std::mem::replace(&mut self.known_events, known) == known {
            return false;
        }
        self.recording.expect_events(self.layers.kernel_events());
        if self.active {
            self.enable();
        }
        true
    }

    /// Whether a poll can wait: nobody watches what is recorded, and there is room for it.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        !self.is_watched() && self.layers.can_wait()
    }

    /// Tells once that the guest has changed what only the host writes.
    fn report_tampering(&mut self) {
        let restored = self.recording.restored_words();
        if restored > 0 && !self.is_tampering_reported {
            self.is_tampering_reported = true;
            (self.notify)(&format!(
                "the guest has written over {restored} words of the trace region that are the host's: restored; its own layers \
                 may be wrong, the others are not touched"
            ));
        }
    }

    /// Reports vCPUs that were added beyond the region's, each once.
    fn report_vcpus_without_ring(&mut self) {
        let without_ring = self.recording.vcpus_without_ring();
        if without_ring.len() <= self.reported_without_ring {
            return;
        }
        let vcpus = without_ring.end;
        let new: Vec<String> =
            without_ring.clone().skip(self.reported_without_ring).map(|vcpu| vcpu.to_string()).collect();
        self.reported_without_ring = without_ring.len();
        (self.notify)(&format!(
            "vCPU {} was added without a ring in the trace region: what the guest does there is not recorded (give the VM a \
             region made with 'strata region create --cpus {vcpus}')",
            new.join(", ")
        ));
    }

    /// Tells and notes which layers have ended early.
    fn note_ends(&mut self) {
        let ends = self.layers.ends();
        for end in &ends {
            (self.notify)(&format!("session {}: {}: {} ({})", self.name, end.layer, end.reason, end.fix));
        }
        self.is_failure_new |= !ends.is_empty();
        self.is_news |= !ends.is_empty();
        self.recording.manifest.missing.extend(ends);
    }

    /// Tells what the user is to know of layers that go on: which have met their limits, each kind of layer once (how
    /// often is in the manifest), and which would not outlive this process.
    fn report_notices(&mut self) {
        for line in self.layers.notices() {
            if self.notices_reported.insert(line.clone()) {
                (self.notify)(&format!("session {}: {line}", self.name));
            }
        }
    }

    /// Keeps room on the disk for the event types that the guest's module declares: the disk may be full by the time that
    /// the guest has them.
    fn expect_declared_events(&mut self) {
        let declared = self.recording.guest.as_ref().map(|guest| Arc::clone(&guest.events));
        self.recording.expect_events(declared.as_deref().unwrap_or_default());
    }

    /// Saves the manifest. Where that fails, the records go on, and the next save may do better: told once.
    fn save_or_report(&mut self, beside_region: bool) {
        match self.save(beside_region) {
            Ok(()) => self.is_save_failure_reported = false,
            Err(error) if !self.is_save_failure_reported => {
                self.is_save_failure_reported = true;
                (self.notify)(&format!(
                    "session {}: {}; recording goes on, and it is tried again",
                    self.name,
                    chain(&error)
                ));
            }
            Err(_) => {}
        }
    }

    /// Records the guest's events from now on.
    ///
    /// # Errors
    /// When another process runs the VM.
    pub fn start(&mut self) -> Result<(), SessionError> {
        self.guest()?;
        self.active = true;
        self.mark(GuestEvents::On);
        self.enable();
        Ok(())
    }

    /// Records no event of the guest from now on. What was recorded stays.
    ///
    /// # Errors
    /// When another process runs the VM.
    pub fn stop(&mut self) -> Result<(), SessionError> {
        let guest = self.guest()?;
        guest.region.set_enabled(guest.slot, &EnabledEvents::NONE);
        self.active = false;
        self.mark(GuestEvents::Off);
        Ok(())
    }

    /// Records `events` of the guest from now on. Events of other layers stay as they were chosen at the start.
    ///
    /// # Errors
    /// When `events` cannot be used, or another process runs the VM; then everything stays as it is.
    pub fn choose(&mut self, events: String) -> Result<(), SessionError> {
        let chosen = self.guest()?.select(&events)?;
        self.recording.selection = chosen.of_guest(self.recording.selection.clone());
        self.events = events;
        if self.active {
            // Marked on both sides: pairs of events that the change separates lie around it.
            self.mark(GuestEvents::Changed);
            self.enable();
            self.mark(GuestEvents::Changed);
        }
        Ok(())
    }

    /// Asks the guest to deliver what its rings hold. Returns the requests that [`flush`](Self::flush) waits for: none
    /// for a flight recorder, which is not written now.
    pub fn request_flush(&mut self) -> Vec<u64> {
        let Layers::Streaming(layers) = &mut self.layers else { return Vec::new() };
        layers.request_flush()
    }

    /// Writes what the rings deliver at `requests` to the guest, until `deadline`; `Some(false)` when a CPU of the guest
    /// did not answer in time, `None` for a flight recorder.
    ///
    /// # Errors
    /// When the manifest cannot be written.
    pub fn flush(&mut self, requests: &[u64], deadline: Instant) -> Result<Option<bool>, SessionError> {
        let Layers::Streaming(layers) = &mut self.layers else { return Ok(None) };
        let vmm = self.recording.guest.as_ref().and_then(|guest| guest.vmm.as_deref());
        let triggers = self.triggers.as_mut().filter(|triggers| triggers.is_armed());
        let flush_vmm = || vmm.into_iter().for_each(VmmTracer::flush);
        let answered = layers.flush(&self.recording, (requests, deadline), triggers, flush_vmm);
        self.note_ends();
        self.save(false).map_err(SessionError::NotWritten)?;
        Ok(Some(answered))
    }

    /// Gives the slot back. The guest lets go of it a moment later.
    pub fn leave(&self) {
        self.recording.guest.iter().for_each(|guest| guest.region.close_session(guest.slot));
    }

    /// Whether the guest has let go of the slot.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.recording.guest.as_ref().is_none_or(|guest| guest.region.is_free(guest.slot))
    }

    /// Ends it, which has been [left](Self::leave), while the VM runs: completes its recording, then gives the memory of its
    /// rings back. Where the guest has not let go of them by then, their slot is returned, too.
    pub fn destroy(self) -> (Result<(), RecordingError>, Option<usize>) {
        let rings = self.recording.guest.as_ref().map(|guest| (Arc::clone(&guest.region), guest.slot));
        let completed = self.complete("session destroyed");
        let kept = rings.filter(|(region, slot)| !region.vacate(*slot));
        (completed.map(drop), kept.map(|(_, slot)| slot))
    }

    /// Writes what stopped producers have left and how the session ended, if it has a folder; returns the manifest.
    /// Triggers see the last records, too. What led to a snapshot that was not taken in time stands with the
    /// end: the recording itself is that snapshot.
    ///
    /// # Errors
    /// When the recording cannot be written, or of a flight recorder any of its layers; the others are in it then.
    pub fn complete(mut self, outcome: &str) -> Result<Manifest, RecordingError> {
        self.recording.update();
        let triggers = armed(&mut self.triggers, &self.recording);
        self.layers.stop(&mut self.recording, triggers);
        self.report_triggers(Some(self.recording.clocks.time().now()));
        self.recording.read_clocks(&mut self.clock_log);
        let untaken = self.triggers.as_ref().and_then(Triggers::untaken);
        let outcome = untaken.map_or_else(|| outcome.into(), |why| format!("{outcome}; {why}"));
        let crash_kernel_at = self.recording.crash_kernel_at();
        let (mut layers, failure) = self.layers.finish(&mut self.recording);
        Layer::note_crash_kernel(&mut layers, crash_kernel_at);
        self.recording.manifest.outcome = Some(outcome);
        self.recording.save_last(layers)?;
        failure.map_or(Ok(self.recording.manifest), |error| Err(error.into()))
    }

    /// Sets the session's enable bits by the events that are registered so far.
    fn enable(&self) {
        let Some(guest) = &self.recording.guest else { return };
        let mut enabled = guest.enabled(self.layers.kernel_events(), &self.recording.selection);
        if !self.layers.has_processes() {
            // Applications record into rings of their own, which belong to the session that has them as layers.
            enabled.class_mask &= !(1 << class::USER);
        }
        guest.region.set_enabled(guest.slot, &enabled);
    }

    /// Marks `change`, and has those forget what they know of the guest that its records can no longer end.
    fn mark(&mut self, change: GuestEvents) {
        self.layers.forget_guest();
        self.triggers.iter_mut().for_each(Triggers::forget_guest);
        let guest = self.recording.guest.as_ref();
        guest.and_then(|guest| guest.vmm.as_deref()).into_iter().for_each(|vmm| vmm.guest_events(change));
    }

    fn save(&mut self, beside_region: bool) -> Result<(), RecordingError> {
        let begin = Instant::now();
        let saved = self.recording.save(self.layers.written());
        let saved = saved.and_then(|()| if beside_region { self.recording.save_beside_region() } else { Ok(()) });
        self.pace.saved(begin, Instant::now());
        self.is_news = saved.is_err();
        self.is_copy_old &= !(beside_region && saved.is_ok());
        Ok(saved?)
    }
}

/// The guest kernel's rings of `recording`, if it has a guest's side.
fn kernel_rings(recording: &Recording) -> Option<KernelRings> {
    let GuestSide { region, slot, rings, .. } = recording.guest.as_ref()?;
    let (memory, layout) = (region.memory().clone(), *region.layout());
    let kernel = KernelRings::new(memory, layout, *slot, *rings, recording.vm.clone(), recording.earliest());
    Some(kernel.within(recording.rotation.as_ref()))
}
