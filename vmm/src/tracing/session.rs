//! A session: rings of the guest's kernel in a slot of the region, a choice of events, and the recording of both.
//!
//! The session that a VM is started with records every layer. One that is made while the VM runs records the guest's
//! kernel only, with mode, ring sizes and events of its own. The session of a recording that is attached to another
//! process's VM records the host's kernel only, and has no rings.

use super::flight_recorder::{FlightRecorder, WrittenLayers};
use super::guest_processes::GuestProcesses;
use super::host_layer::{HostHistory, HostLayer, HostWindow};
use super::kernel_rings::{KernelRings, sub_buffer_counts, sub_buffer_sizes};
use super::layers::Layers;
use super::polling::Found;
use super::process_table::ProcessTable;
use super::record_limit::{LayerLimits, LimitError};
use super::recording::{AtSnapshot, GuestSide, Recording, RecordingError, note_threads};
use super::region::{EnabledEvents, MAIN_SESSION, RegionError};
use super::save_pace::SavePace;
use super::selection::SelectionError;
use super::streaming::Streaming;
use super::trigger::expression::Trigger;
use super::trigger::host_load::HostLoad;
use super::trigger::{AFTER, ArmError, TriggerRequest, Triggers};
use super::vcpu_activity::VcpuActivity;
use super::vmm_events::{EVENTS, GuestEvents, VmmTracer};
use super::vmm_layer::vmm_layer;
use super::work_alarm::WorkAlarms;
use super::written_layer::WrittenLayer;
use crate::control::protocol::{LayerLimit, LayerStatus, Live, SessionStatus, TraceStatus};
use crate::host_kernel::HostTracer;
use shared_ring::event::EventDescription;
use shared_ring::layout::{AGENT_ABSENT, Mode};
use shared_ring::region::Rings;
use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use strata_abi::class;
use thiserror::Error;
use trace_merge::layer::LayerKind;
use trace_merge::manifest::{Layer, Manifest, StreamDescription, is_vm_name};
use trace_merge::trace_folder::{TraceFolder, TraceFolderError, free_beside};
use trace_merge::writer::{MIN_ROTATED_SIZE, Rotation};

/// Longest name of a session, bytes: what a session slot holds.
pub const MAX_NAME: usize = 31;
/// The host kernel's records that a flight recorder holds unless told otherwise, bytes.
pub const HOST_HISTORY: usize = 64 << 20;
/// How long the guest's CPUs may take to let go of a session's rings.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two checks whether they have.
const RELEASE_PAUSE: Duration = Duration::from_millis(5);

/// Why a request to a session is refused, or fails.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The name cannot be a session's.
    #[error("'{0}' is not a session name: use up to {MAX_NAME} letters, digits, '.', '_' and '-'")]
    Name(String),
    /// The name is taken.
    #[error("there is a session '{0}' already")]
    Exists(String),
    /// No session has the name.
    #[error("no session is called '{name}'; there are {}", known.join(", "))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The rings have an impossible geometry.
    #[error("the size of a sub-buffer must be {}, and their number {}", sub_buffer_sizes(), sub_buffer_counts())]
    Geometry,
    /// A session in discard mode has no folder.
    #[error("a session in discard mode needs a folder to be written to: give --trace DIR")]
    NoFolder,
    /// A flight recorder keeps within its rings.
    #[error("--max-size is for sessions in discard mode: what a flight recorder holds depends on its rings")]
    BoundedBySize,
    /// The size that the recording is to keep within leaves no room.
    #[error("a recording can keep within {} MiB or more", MIN_ROTATED_SIZE >> 20)]
    TooSmall,
    /// A layer's records cannot be limited so.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A path would mean another place for the VM's process.
    #[error("'{}' is not an absolute path", .0.display())]
    RelativePath(PathBuf),
    /// All slots are in use.
    #[error("all session slots are in use: destroy a session first")]
    NoSlot,
    /// The rings do not fit a slot.
    #[error(
        "rings of {size} bytes are too large for a session made while the VM runs: {room} bytes are reserved for each"
    )]
    TooLarge {
        /// Size of one ring, bytes.
        size: usize,
        /// Bytes reserved for one ring.
        room: usize,
    },
    /// The slot cannot be had, or there is no memory for the rings.
    #[error(transparent)]
    Slot(#[from] RegionError),
    /// Another process runs the VM.
    #[error(
        "this recording is attached to a VM that another process runs, and has no layer of its guest to choose sessions \
         or events of; `strata ctl VM detach` ends it"
    )]
    Attached,
    /// The first session cannot be destroyed.
    #[error("session {0} ends with the VM; `session stop {0}` stops it")]
    EndsWithVm(String),
    /// There is nothing to take a snapshot of.
    #[error(
        "session {name} is written to {} all the time: read that, after `strata ctl VM flush`; snapshots are for sessions \
         in flight-recorder mode",
        dir.display()
    )]
    NotFlightRecorder {
        /// The session.
        name: String,
        /// Folder of its recording.
        dir: PathBuf,
    },
    /// No session is written while the guest runs.
    #[error("a flight recorder is written by a snapshot: use `strata ctl VM snapshot DIR`")]
    NothingToFlush,
    /// A trigger cannot be armed, or removed.
    #[error(transparent)]
    Trigger(#[from] ArmError),
    /// The request is not about the recording.
    #[error("the recorder does not serve this request")]
    NotServed,
    /// The choice of events cannot be used.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The folder cannot take a recording.
    #[error(transparent)]
    Folder(#[from] TraceFolderError),
    /// A snapshot, or the beginning or end of a session's recording, cannot be written.
    #[error(transparent)]
    NotWritten(RecordingError),
}

/// What the first session of a recorder is made of: that of a VM that this process starts, or one that is attached to
/// another process's VM.
pub struct Sources {
    /// The recording, without layers.
    pub recording: Recording,
    /// The host's kernel, if it can be traced.
    pub host: Option<HostTracer>,
    /// Whether records are written as they come. The rings of a guest's side have the same mode.
    pub mode: Mode,
    /// Where a flight recorder holds the host kernel's records.
    pub host_history: HostHistory,
    /// The choice of events as the user gave it.
    pub events: String,
    /// What keeps layers within rates.
    pub limits: LayerLimits,
    /// File descriptors that the streams of guest processes may take.
    pub process_descriptors: usize,
    /// What wakes the recorder when the guest works.
    pub alarms: Arc<WorkAlarms>,
    /// Told what the user should know at once, a line each.
    pub say: Say,
    /// Called when a layer has ended early.
    pub on_failure: Option<OnFailure>,
    /// What is watched for from the start.
    pub triggers: Option<TriggerRequest>,
    /// What tells the host's load, where that can be had.
    pub host_load: Option<HostLoad>,
    /// Takes what snapshots have beside the layers.
    pub at_snapshot: Option<AtSnapshot>,
}

/// What happens when a layer ends early; called again with the next poll while it returns `false`. It is called on the
/// recorder's thread.
pub type OnFailure = Box<dyn FnMut() -> bool + Send>;

/// Tells the user a line. It is called on the recorder's thread.
pub type Say = fn(&str);

/// A session that is to be made while the VM runs.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Its name.
    pub name: String,
    /// Geometry and mode of its rings.
    pub rings: Rings,
    /// Its choice of events.
    pub events: String,
    /// Folder of its recording, absolute.
    pub trace: Option<PathBuf>,
    /// Size that the recording keeps within, bytes.
    pub max_size: Option<u64>,
    /// What keeps its layer within a rate.
    pub limits: Vec<LayerLimit>,
}

impl NewSession {
    /// Checks everything that can be checked without the region, beside sessions that are called `taken`.
    ///
    /// # Errors
    /// When the name cannot be used, or the folder is missing or relative.
    pub fn check<'a>(&self, mut taken: impl Iterator<Item = &'a str>) -> Result<(), SessionError> {
        if !is_vm_name(&self.name) || self.name.len() > MAX_NAME {
            return Err(SessionError::Name(self.name.clone()));
        }
        if taken.any(|name| name == self.name) {
            return Err(SessionError::Exists(self.name.clone()));
        }
        self.limits()?;
        match &self.trace {
            None if self.rings.mode == Mode::Discard => Err(SessionError::NoFolder),
            _ if self.max_size.is_some() && self.rings.mode == Mode::FlightRecorder => Err(SessionError::BoundedBySize),
            _ if self.max_size.is_some_and(|size| size < MIN_ROTATED_SIZE) => Err(SessionError::TooSmall),
            Some(path) if !path.is_absolute() => Err(SessionError::RelativePath(path.clone())),
            _ => Ok(()),
        }
    }

    fn limits(&self) -> Result<LayerLimits, LimitError> {
        LayerLimits::new(&self.limits, self.rings.mode, &[LayerKind::GuestKernel])
    }
}

/// The first of `free` slots (number, bytes reserved for a ring) that has room for rings of `size` bytes.
fn choose_slot(size: usize, free: impl Iterator<Item = (usize, usize)>) -> Result<usize, SessionError> {
    let mut largest = None;
    for (slot, room) in free.filter(|&(_, room)| room > 0) {
        if size <= room {
            return Ok(slot);
        }
        largest = largest.max(Some(room));
    }
    Err(largest.map_or(SessionError::NoSlot, |room| SessionError::TooLarge { size, room }))
}

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
    /// When the manifest is written again.
    pace: SavePace,
    /// Whether the manifest lacks packets, or what was said since it was written.
    is_news: bool,
    /// The copy of the manifest beside the region lacks something of the guest.
    is_copy_old: bool,
    /// What was said of layers that go on: each line once.
    notices_told: BTreeSet<String>,
    /// Whether it was told that the manifest cannot be written.
    is_save_failure_told: bool,
    /// Whether it was told that the guest writes over the host's words.
    is_tampering_told: bool,
    say: Say,
    on_failure: Option<OnFailure>,
    /// Whether a layer has ended early, and what is to happen then has not happened yet.
    is_failure_new: bool,
}

impl Session {
    /// The first session: every layer of `sources`, recording.
    ///
    /// # Errors
    /// When its recording cannot be written.
    pub fn main(sources: Sources) -> Result<Self, RecordingError> {
        let Sources { recording, host, mode, host_history, events, process_descriptors, say, on_failure, .. } = sources;
        let (request, load, limits) = (sources.triggers, sources.host_load, sources.limits);
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
                let host = host.map(|tracer| HostWindow::new(tracer, host_history));
                Layers::FlightRecorder(Box::new(FlightRecorder::new(host, vmm, kernel.clone(), processes)))
            }
        };
        let mut triggers = layers.triggers(&recording, load);
        let TriggerRequest { triggers: asked, every, after } = request.unwrap_or_default();
        for trigger in asked {
            // What it is about was checked before. One too many, or given twice, is said, and the VM starts.
            if let Err(refusal) = triggers.arm(trigger, every, after, 0) {
                say(&format!("--trigger: {refusal}"));
            }
        }
        let mut session = Self {
            name: MAIN_SESSION.into(),
            mode,
            events,
            active: true,
            kernel,
            layers,
            triggers: Some(triggers),
            at_snapshot: sources.at_snapshot,
            recording,
            pace: SavePace::new(Instant::now()),
            is_news: false,
            is_copy_old: false,
            notices_told: BTreeSet::new(),
            is_save_failure_told: false,
            is_tampering_told: false,
            say,
            on_failure,
            is_failure_new: false,
        };
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
            region: Arc::clone(region),
            slot,
            rings,
            vmm: None,
            events: Arc::clone(&side.events),
            agent: side.agent,
            beside_region: None,
        };
        let rotation = max_size.map(Rotation::new);
        let recording = main.recording.of_guest_kernel(&name, selection, trace, rotation, guest);
        region.open_session(slot, &name, rings)?;
        let started = Self::with_kernel_rings(name, rings.mode, events, recording, &limits, main.say);
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
        say: Say,
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
        let mut session = Self {
            name,
            mode,
            events,
            active: false,
            kernel,
            layers,
            triggers: None,
            at_snapshot: None,
            recording,
            pace: SavePace::new(Instant::now()),
            is_news: false,
            is_copy_old: false,
            notices_told: BTreeSet::new(),
            is_save_failure_told: false,
            // The first session tells it.
            is_tampering_told: true,
            say,
            on_failure: None,
            is_failure_new: false,
        };
        session.save(false)?;
        session.expect_declared_events();
        Ok(session)
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
    /// that cannot be written ends, which is told and noted; the others go on.
    pub fn poll(&mut self) -> Found {
        let begun = self.is_watched().then(|| self.recording.clocks.time().now());
        let polled = self.layers.poll(&self.recording, armed(&mut self.triggers, &self.recording));
        self.act_on_triggers(begun.filter(|_| !polled.found.has_more()));
        if polled.new_kernel_events {
            self.recording.expect_events(&self.layers.kernel_events());
            if self.active {
                self.enable();
            }
        }
        let is_changed = self.recording.update();
        self.is_copy_old |= is_changed;
        self.is_news |= polled.found > Found::Nothing || polled.new_kernel_events || is_changed;
        self.tell_tampering();
        self.note_ends();
        self.tell_notices();
        if self.is_failure_new {
            self.is_failure_new = self.on_failure.as_mut().is_some_and(|on_failure| !on_failure());
        }
        if self.pace.is_due(Instant::now(), self.is_news) {
            self.save_or_tell(self.is_copy_old);
        }
        polled.found
    }

    /// Whether a poll can wait: nobody watches what is recorded, and there is room for it.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        !self.is_watched() && self.layers.can_wait()
    }

    /// Whether it is watched for triggers.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.triggers.as_ref().is_some_and(Triggers::is_armed)
    }

    /// Judges what was recorded up to `until`, ticks, if that has all been looked at, else events alone; tells and
    /// marks the triggers that fire.
    fn tell_triggers(&mut self, until: Option<u64>) {
        let Some(triggers) = self.triggers.as_mut().filter(|triggers| triggers.is_armed()) else { return };
        if !self.active {
            triggers.guest_is_off();
        }
        let now = Instant::now();
        triggers.look_at_load(now, self.recording.clocks.time());
        let vmm = self.recording.guest.as_ref().and_then(|guest| guest.vmm.as_deref());
        for (trigger, what) in triggers.settle(until.unwrap_or(0), now) {
            (self.say)(&what);
            vmm.into_iter().for_each(|vmm| vmm.triggered(trigger));
        }
    }

    /// Tells the triggers that fire up to `until`, and takes the snapshot that is due.
    fn act_on_triggers(&mut self, until: Option<u64>) {
        self.tell_triggers(until);
        let due = self.triggers.as_ref().and_then(|triggers| triggers.due(Instant::now()));
        if let Some(why) = due.map(ToOwned::to_owned) {
            let taken = self.snapshot_for(&why);
            match &taken {
                Ok(folder) => (self.say)(&format!("snapshot in {}", folder.display())),
                Err(problem) => (self.say)(&format!("no snapshot: {problem}; recording goes on")),
            }
            self.triggers.iter_mut().for_each(|triggers| triggers.taken(taken.clone()));
        }
    }

    /// Watches for the trigger `expression` from now on; returns its number. It may lead to another snapshot, or mark,
    /// `every` so often, and to a snapshot a time `after` it has fired.
    ///
    /// # Errors
    /// When it is no trigger, or about what is not recorded, or cannot be armed.
    pub fn arm(
        &mut self,
        expression: &str,
        every: Option<Duration>,
        after: Option<Duration>,
    ) -> Result<usize, SessionError> {
        let trigger = Trigger::parse(expression).map_err(ArmError::from)?;
        let request = TriggerRequest { triggers: vec![trigger.clone()], ..TriggerRequest::default() };
        for layer in LayerKind::ALL {
            if let Some(known) = self.known_events(layer) {
                request.check(layer, &known, &self.recording.selection).map_err(ArmError::from)?;
            }
        }
        let now = self.recording.clocks.time().now();
        let Some(triggers) = &mut self.triggers else { return Err(SessionError::NotServed) };
        Ok(triggers.arm(trigger, every, after.unwrap_or(AFTER), now)?)
    }

    /// Watches no more for the trigger of this number or expression, which is returned.
    ///
    /// # Errors
    /// When there is none.
    pub fn disarm(&mut self, wanted: &str) -> Result<String, SessionError> {
        let Some(triggers) = &mut self.triggers else { return Err(SessionError::NotServed) };
        Ok(triggers.disarm(wanted)?)
    }

    /// The events of `layer`, where they are all known by now.
    fn known_events(&self, layer: LayerKind) -> Option<Vec<EventDescription>> {
        let guest = self.recording.guest.as_ref();
        match layer {
            LayerKind::HostKernel => Some(self.layers.host_events()),
            LayerKind::Vmm => Some(match guest.and_then(|guest| guest.vmm.as_ref()) {
                Some(_) => EVENTS.iter().map(EventDescription::from).collect(),
                None => Vec::new(),
            }),
            LayerKind::GuestKernel => match guest {
                None => Some(Vec::new()),
                Some(guest) if !guest.events.is_empty() => Some(guest.events.to_vec()),
                Some(_) => Some(self.layers.kernel_events()).filter(|events| !events.is_empty()),
            },
            LayerKind::GuestUser => None,
        }
    }

    /// Takes a snapshot beside the recording because of a trigger; its folder, or why there is none.
    fn snapshot_for(&mut self, why: &str) -> Result<PathBuf, String> {
        let folder = self.recording.dir.as_deref().and_then(|dir| free_beside(dir, "trigger"));
        let folder = folder.ok_or("there are too many folders of earlier ones beside the recording: remove some")?;
        self.snapshot_as(&folder, &format!("snapshot of a running VM, by {why}")).map_err(|error| chain(&error))?;
        Ok(folder)
    }

    /// Tells once that the guest has changed what only the host writes.
    fn tell_tampering(&mut self) {
        let restored = self.recording.restored_words();
        if restored > 0 && !self.is_tampering_told {
            self.is_tampering_told = true;
            (self.say)(&format!(
                "the guest has written over {restored} words of the trace region that are the host's: restored; its own layers \
                 may be wrong, the others are not touched"
            ));
        }
    }

    /// Tells and notes which layers have ended early.
    fn note_ends(&mut self) {
        let ends = self.layers.ends();
        for end in &ends {
            (self.say)(&format!("session {}: {}: {} ({})", self.name, end.layer, end.reason, end.fix));
        }
        self.is_failure_new |= !ends.is_empty();
        self.is_news |= !ends.is_empty();
        self.recording.manifest.missing.extend(ends);
    }

    /// Tells what the user is to know of layers that go on: which have met their limits, each kind of layer once (how
    /// often is in the manifest), and which would not outlive this process.
    fn tell_notices(&mut self) {
        for line in self.layers.notices() {
            if self.notices_told.insert(line.clone()) {
                (self.say)(&format!("session {}: {line}", self.name));
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
    fn save_or_tell(&mut self, beside_region: bool) {
        match self.save(beside_region) {
            Ok(()) => self.is_save_failure_told = false,
            Err(error) if !self.is_save_failure_told => {
                self.is_save_failure_told = true;
                (self.say)(&format!(
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
        self.recording.selection = self.guest()?.select(&events)?;
        self.events = events;
        if self.active {
            // Marked on both sides: pairs of events that the change separates lie around it.
            self.mark(GuestEvents::Changed);
            self.enable();
            self.mark(GuestEvents::Changed);
        }
        Ok(())
    }

    /// Has the rings deliver what they hold, and writes it; `Some(false)` when a CPU of the guest did not answer in
    /// time, `None` for a flight recorder, which is not written now.
    ///
    /// # Errors
    /// When the manifest cannot be written.
    pub fn flush(&mut self) -> Result<Option<bool>, SessionError> {
        let Layers::Streaming(layers) = &mut self.layers else { return Ok(None) };
        let vmm = self.recording.guest.as_ref().and_then(|guest| guest.vmm.as_deref());
        let triggers = self.triggers.as_mut().filter(|triggers| triggers.is_armed());
        let answered = layers.flush(&self.recording, triggers, || vmm.into_iter().for_each(VmmTracer::flush));
        self.note_ends();
        self.save(false).map_err(SessionError::NotWritten)?;
        Ok(Some(answered))
    }

    /// Writes what a flight recorder holds to the new folder `dir`; tracing goes on. Returns the number of records.
    ///
    /// # Errors
    /// When the session is not a flight recorder, or `dir` cannot take a recording.
    pub fn snapshot(&mut self, dir: &Path) -> Result<u64, SessionError> {
        self.snapshot_as(dir, "snapshot of a running VM")
    }

    fn snapshot_as(&mut self, dir: &Path, outcome: &str) -> Result<u64, SessionError> {
        let Layers::FlightRecorder(recorder) = &mut self.layers else {
            let dir = self.recording.dir.clone().unwrap_or_default();
            return Err(SessionError::NotFlightRecorder { name: self.name.clone(), dir });
        };
        if !dir.is_absolute() {
            return Err(SessionError::RelativePath(dir.into()));
        }
        let mut folder = TraceFolder::create(dir, self.recording.readers)?;
        let mut triggers = self.triggers.as_mut().filter(|triggers| triggers.is_armed());
        recorder.poll(&self.recording, triggers.as_deref_mut());
        // Before the other layers, so that the vCPUs' periods cover the guest's records.
        let taken = self.at_snapshot.as_mut().map(|take| take(dir));
        let written = write_snapshot(recorder, &self.recording, triggers, dir, outcome);
        let completed = written.and_then(|manifest| match taken {
            Some(add) => add(manifest),
            None => Ok(manifest),
        });
        let manifest = completed.map_err(SessionError::NotWritten)?;
        folder.keep();
        let streams = manifest.layers.iter().flat_map(|layer| &layer.streams);
        Ok(streams.map(|stream| stream.records).fold(0, u64::saturating_add))
    }

    /// Gives the slot back, and waits a moment for the guest to let go of it.
    fn release(guest: &GuestSide) {
        let region = &guest.region;
        region.close_session(guest.slot);
        let begun = Instant::now();
        // A guest that does not answer keeps the slot; what is in its rings is read all the same.
        while !region.is_free(guest.slot) && begun.elapsed() < RELEASE_LIMIT {
            std::thread::sleep(RELEASE_PAUSE);
        }
    }

    /// Ends it while the VM runs: completes its recording, then gives the memory of its rings back.
    ///
    /// # Errors
    /// When the recording cannot be written.
    pub fn destroy(self) -> Result<(), RecordingError> {
        let slot = self.recording.guest.as_ref().map(|guest| {
            Self::release(guest);
            (Arc::clone(&guest.region), guest.slot)
        });
        let completed = self.complete("session destroyed");
        slot.iter().for_each(|(region, slot)| region.vacate(*slot));
        completed.map(drop)
    }

    /// Writes what stopped producers have left and how the session ended, if it has a folder; returns the manifest.
    /// Triggers are shown the last records, too. What led to a snapshot that was not taken in time is said with the
    /// end: the recording itself is that snapshot.
    ///
    /// # Errors
    /// When the recording cannot be written.
    pub fn complete(mut self, outcome: &str) -> Result<Manifest, RecordingError> {
        self.recording.update();
        let triggers = armed(&mut self.triggers, &self.recording);
        self.layers.stop(&mut self.recording, triggers);
        self.tell_triggers(Some(self.recording.clocks.time().now()));
        let untaken = self.triggers.as_ref().and_then(Triggers::untaken);
        let outcome = untaken.map_or_else(|| outcome.into(), |why| format!("{outcome}; {why}"));
        let layers = self.layers.finish(&mut self.recording);
        self.recording.manifest.outcome = Some(outcome);
        self.recording.save_last(layers)?;
        Ok(self.recording.manifest)
    }

    /// What `strata ctl VM status` says about it.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        let guest = self.recording.guest.as_ref();
        let has_agent = guest.is_some_and(|guest| guest.region.parts().agent().state != AGENT_ABSENT);
        let geometry = guest.map(|guest| guest.rings.geometry);
        SessionStatus {
            name: self.name.clone(),
            mode: self.mode.into(),
            active: self.active,
            sub_buffer_size: geometry.map_or(0, |geometry| geometry.sub_buffer_size()),
            sub_buffers: geometry.map_or(0, |geometry| geometry.sub_buffers()),
            events: self.events.clone(),
            trace: self.recording.dir.clone(),
            not_joined: self.kernel.as_ref().filter(|_| has_agent).map(KernelRings::not_joined).unwrap_or_default(),
            nested: self.kernel.as_ref().and_then(KernelRings::nested),
        }
    }

    /// What `strata ctl VM status` says about its recording, beside `sessions`.
    #[must_use]
    pub fn trace_status(&mut self, sessions: Vec<SessionStatus>) -> TraceStatus {
        let triggers = self.triggers.as_ref().map(Triggers::status);
        let Recording { dir, manifest, guest, vm, rotation, .. } = &self.recording;
        let mut layers = self.layers.written();
        if let (Some(dir), Some(rotation)) = (dir, rotation) {
            rotation.describe(dir, &mut layers);
        }
        let vm = manifest.vm(vm);
        let missing_processes = self.recording.missing_processes();
        let missing = manifest.missing.iter().chain(&missing_processes);
        TraceStatus {
            dir: dir.clone().unwrap_or_default(),
            region: vm.and_then(|vm| vm.region.clone()).unwrap_or_default(),
            region_size: guest.as_ref().map_or(0, |guest| guest.region.layout().size as u64),
            guest_kernel: vm.and_then(|vm| vm.guest.as_ref()).map(|guest| guest.kernel.clone()),
            restored_words: self.recording.restored_words(),
            sessions,
            triggers: triggers.unwrap_or_default(),
            layers: layers.iter().map(layer_status).collect(),
            missing: missing
                .map(|missing| format!("{}: {} ({})", missing.layer, missing.reason, missing.fix))
                .collect(),
        }
    }

    /// What the VM does now, and what is recorded of it.
    pub fn live(&mut self) -> Live {
        let host = self.layers.watch(&self.recording);
        let guest = self.layers.watch_guest(&self.recording);
        let vmm = self.recording.guest.as_ref().and_then(|guest| guest.vmm.as_deref());
        let disks = vmm.map(VmmTracer::disk_times).unwrap_or_default();
        let TraceStatus { layers, missing, .. } = self.trace_status(Vec::new());
        Live { host, guest, disks, layers, missing, ..Live::default() }
    }

    /// Sets the session's enable bits by the events that are registered so far.
    fn enable(&self) {
        let Some(guest) = &self.recording.guest else { return };
        let mut enabled = guest.enabled(&self.layers.kernel_events(), &self.recording.selection);
        if !self.layers.has_processes() {
            // Applications record into rings of their own, which belong to the session that has them as layers.
            enabled.class_mask &= !(1 << class::USER);
        }
        guest.region.set_enabled(guest.slot, &enabled);
    }

    /// Marks `change`, and has those forget what they know of the guest that its records can no longer end.
    fn mark(&mut self, change: GuestEvents) {
        self.layers.forget_guest();
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

/// The triggers, if any is armed, which know the vCPUs of `recording` by now.
fn armed<'t>(triggers: &'t mut Option<Triggers>, recording: &Recording) -> Option<&'t mut Triggers> {
    let triggers = triggers.as_mut().filter(|triggers| triggers.is_armed())?;
    triggers.set_vcpus(&recording.vcpu_threads.lock().unwrap_or_else(PoisonError::into_inner));
    Some(triggers)
}

/// The guest kernel's rings of `recording`, if it has a guest's side.
fn kernel_rings(recording: &Recording) -> Option<KernelRings> {
    let GuestSide { region, slot, rings, .. } = recording.guest.as_ref()?;
    let (memory, layout) = (region.memory().clone(), *region.layout());
    let kernel = KernelRings::new(memory, layout, *slot, *rings, recording.vm.clone(), recording.earliest());
    Some(kernel.within(recording.rotation.as_ref()))
}

fn write_snapshot(
    recorder: &mut FlightRecorder,
    recording: &Recording,
    triggers: Option<&mut Triggers>,
    dir: &Path,
    outcome: &str,
) -> Result<Manifest, RecordingError> {
    let mut manifest = recording.manifest.clone();
    manifest.outcome = Some(outcome.into());
    manifest.missing.extend(recording.missing_processes());
    note_threads(&mut manifest, &recording.vm);
    let WrittenLayers { layers, failures } = recorder.write(recording, triggers, dir, &manifest);
    if let Some((_, error)) = failures.into_iter().next() {
        return Err(error.into());
    }
    manifest.layers = layers;
    manifest.save(dir)?;
    Ok(manifest)
}

/// The error and its sources on one line.
fn chain(error: &dyn Error) -> String {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

fn layer_status(layer: &Layer) -> LayerStatus {
    // The guest has a say in what it lost: no sum of it may overflow.
    let sum = |count: fn(&StreamDescription) -> u64| layer.streams.iter().map(count).fold(0, u64::saturating_add);
    LayerStatus {
        path: layer.path.clone(),
        records: sum(|stream| stream.records),
        lost: sum(|stream| stream.lost.total()),
        overwritten: sum(|stream| stream.overwritten),
        dropped: sum(|stream| stream.dropped.map_or(0, |dropped| dropped.records)),
        limit: layer.limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::layout::Geometry;

    fn new(name: &str, mode: Mode, trace: Option<&str>) -> NewSession {
        let rings = Rings { geometry: Geometry::new(4096, 2).unwrap(), mode };
        NewSession {
            name: name.into(),
            rings,
            events: "guest:*".into(),
            trace: trace.map(PathBuf::from),
            max_size: None,
            limits: Vec::new(),
        }
    }

    fn refusal(session: &NewSession) -> String {
        session.check(["main", "io"].into_iter()).unwrap_err().to_string()
    }

    #[test]
    fn session_needs_a_name_of_its_own() {
        let long = "a".repeat(MAX_NAME + 1);

        assert!(refusal(&new("io", Mode::FlightRecorder, None)).contains("'io' already"));
        assert!(refusal(&new("../x", Mode::FlightRecorder, None)).contains("not a session name"));
        assert!(refusal(&new(&long, Mode::FlightRecorder, None)).contains("up to 31 letters"));
        assert!(new("net", Mode::FlightRecorder, None).check(["main"].into_iter()).is_ok());
    }

    #[test]
    fn session_in_discard_mode_needs_an_absolute_folder() {
        assert!(refusal(&new("net", Mode::Discard, None)).contains("--trace DIR"));
        assert!(refusal(&new("net", Mode::Discard, Some("here"))).contains("'here' is not an absolute path"));
        assert!(new("net", Mode::Discard, Some("/tmp/net")).check(["main"].into_iter()).is_ok());
    }

    #[test]
    fn first_slot_with_room_is_chosen() {
        assert_eq!(choose_slot(100, [(1, 0), (2, 50), (3, 100)].into_iter()).unwrap(), 3);
    }

    #[test]
    fn rings_that_fit_no_free_slot_are_refused_with_the_room_that_there_is() {
        let error = choose_slot(100, [(1, 50), (2, 80)].into_iter()).unwrap_err();

        assert!(matches!(error, SessionError::TooLarge { size: 100, room: 80 }), "{error}");
    }

    #[test]
    fn session_without_a_free_slot_is_refused() {
        assert!(matches!(choose_slot(1, [(3, 0)].into_iter()), Err(SessionError::NoSlot)));
    }
}
