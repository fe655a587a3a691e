//! The recorder: a thread that looks after every layer while the machine runs, does what the control socket asks for,
//! and completes the recording when the machine has stopped.

use super::facts::Facts;
use super::flight_recorder::FlightRecorder;
use super::guest_processes::GuestProcesses;
use super::host_layer::{HostLayer, HostWindow};
use super::kernel_rings::KernelRings;
use super::poll_pause::PollPause;
use super::process_table::ProcessTable;
use super::region::{EnabledEvents, MAIN_SESSION};
use super::ring_layer::Producers;
use super::selection::Selection;
use super::sessions::{ExtraSessions, check_guest_events};
use super::streaming::{Looked, Streaming};
use super::vmm_events::{GuestEvents, VmmTracer};
use super::vmm_layer::vmm_layer;
use crate::control::protocol::{Answer, LayerStatus, Request, SessionStatus, Status, TraceStatus};
use crate::host_kernel::HostTracer;
use crate::run::trace_folder::{TraceFolder, TraceFolderError};
use shared_ring::layout::Mode;
use shared_ring::region::Rings;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;
use trace_merge::session::{Layer, Session, SessionError, StreamDescription};
use trace_merge::writer::WriteError;

/// Longest pause between two looks at all layers: rings fill in milliseconds at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
/// The same in flight-recorder mode, where only the host kernel's buffers must not overflow.
const LONGEST_FLIGHT_PAUSE: Duration = Duration::from_millis(64);
/// Least time between two rewritings of `session.json` for counts alone.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// The host kernel's records that a flight recorder holds, bytes.
const HOST_WINDOW: usize = 64 << 20;

/// Why a recording failed.
#[derive(Debug, Error)]
pub enum RecorderError {
    /// A layer cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// `session.json` cannot be written.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A folder cannot take a recording.
    #[error(transparent)]
    Folder(#[from] TraceFolderError),
    /// The recorder's thread could not be started.
    #[error("cannot start the recorder's thread")]
    Thread(#[source] std::io::Error),
    /// The recorder's thread panicked: a bug.
    #[error("the recorder panicked; the trace ends early")]
    Panicked,
}

/// What there is to record.
pub struct Sources {
    /// What is known of the recording.
    pub facts: Facts,
    /// The monitor's own events.
    pub vmm: Arc<VmmTracer>,
    /// The host's kernel, if it can be traced.
    pub host: Option<HostTracer>,
    /// The guest kernel's rings of the first session.
    pub rings: Rings,
    /// The choice of events as the user gave it.
    pub events: String,
    /// File of the region.
    pub region_file: PathBuf,
}

/// What the recorder's thread is told.
enum Command {
    Control(Request, SyncSender<Answer>),
    /// The machine has ended like this.
    Finish(String),
}

/// A running recorder.
#[derive(Debug)]
pub struct Recorder {
    commands: Sender<Command>,
    thread: JoinHandle<Result<Session, RecorderError>>,
}

/// Passes requests on to a recorder.
#[derive(Clone, Debug)]
pub struct RecorderControl {
    commands: Sender<Command>,
}

impl RecorderControl {
    /// Has the recorder do what `request` asks for, and waits for its answer.
    #[must_use]
    pub fn ask(&self, request: Request) -> Answer {
        let (reply, answer) = sync_channel(1);
        let sent = self.commands.send(Command::Control(request, reply));
        // Either end is gone when the recording is being completed or has failed.
        sent.ok()
            .and_then(|()| answer.recv().ok())
            .unwrap_or_else(|| Answer::refused("the VM is ending, or its recording has failed"))
    }
}

impl Recorder {
    /// Begins to record.
    ///
    /// # Errors
    /// When the recording's folder cannot be written.
    pub fn start(sources: Sources) -> Result<Self, RecorderError> {
        let mut recording = Recording::create(sources)?;
        let (commands, told) = channel();
        let thread = std::thread::Builder::new()
            .name("strata-recorder".into())
            .spawn(move || recording.run(&told))
            .map_err(RecorderError::Thread)?;
        Ok(Self { commands, thread })
    }

    /// What passes requests on to this recorder.
    #[must_use]
    pub fn control(&self) -> RecorderControl {
        RecorderControl { commands: self.commands.clone() }
    }

    /// Completes the recording: takes what the stopped machine has left and writes `outcome`. Call this when all vCPU
    /// threads have ended.
    ///
    /// # Errors
    /// What kept the recorder from writing, now or earlier.
    pub fn finish(self, outcome: String) -> Result<Session, RecorderError> {
        // The receiver is gone when the recorder has failed; joining it tells why.
        let _ = self.commands.send(Command::Finish(outcome));
        self.thread.join().map_err(|_| RecorderError::Panicked)?
    }
}

/// The layers of a recording, by mode.
pub(super) enum Layers {
    Streaming(Box<Streaming>),
    FlightRecorder(Box<FlightRecorder>),
}

impl Layers {
    /// One look at every layer.
    pub(super) fn look(&mut self, facts: &Facts) -> Result<Looked, WriteError> {
        match self {
            Self::Streaming(layers) => layers.drain(facts, Producers::Running),
            Self::FlightRecorder(layers) => Ok(layers.look(facts)),
        }
    }

    /// The bits that the guest's session gets.
    pub(super) fn enabled(&self, facts: &Facts) -> EnabledEvents {
        match self {
            Self::Streaming(layers) => facts.enabled(&layers.kernel_events()),
            Self::FlightRecorder(layers) => facts.enabled(layers.kernel_events()),
        }
    }

    /// What has been written so far.
    pub(super) fn written(&self) -> Vec<Layer> {
        match self {
            Self::Streaming(layers) => layers.layers(),
            Self::FlightRecorder(_) => Vec::new(),
        }
    }

    /// Writes everything that stopped producers have left into the folder of `facts`, and notes what is missing.
    pub(super) fn finish(&mut self, facts: &mut Facts) -> Result<Vec<Layer>, WriteError> {
        let (missing, layers, dropped) = match self {
            Self::Streaming(streaming) => {
                let missing = streaming.finish(facts)?;
                (missing, streaming.layers(), streaming.refused_processes())
            }
            Self::FlightRecorder(recorder) => {
                let missing = recorder.finish(facts);
                let (dir, session) = (facts.dir.clone(), facts.session.clone());
                (missing, recorder.write(facts, &dir, &session)?, recorder.dropped_processes())
            }
        };
        facts.session.missing.extend(missing);
        facts.session.missing.extend(facts.missing_at_end(dropped));
        Ok(layers)
    }
}

struct Recording {
    facts: Facts,
    layers: Layers,
    rings: Rings,
    events: String,
    /// Whether the guest's layers record.
    active: bool,
    extra: ExtraSessions,
    vmm: Arc<VmmTracer>,
    region_file: PathBuf,
    saved: Instant,
}

impl Recording {
    fn create(sources: Sources) -> Result<Self, RecorderError> {
        let Sources { facts, vmm, host, rings, events, region_file } = sources;
        let (memory, layout) = (facts.region.memory().clone(), *facts.region.layout());
        let kernel = KernelRings::new(memory.clone(), layout, 0, rings, facts.vm.clone());
        let processes = ProcessTable::new(memory, layout, facts.vm.clone());
        let layers = match rings.mode {
            Mode::Discard => {
                let (dir, session) = (&facts.dir, &facts.session);
                Layers::Streaming(Box::new(Streaming {
                    host: host.map(|tracer| HostLayer::create(dir, session, tracer)).transpose()?,
                    vmm: Some(vmm_layer(&vmm, &facts.vm, dir, session)?),
                    guest_kernel: kernel.layer(dir, session)?,
                    processes: Some(GuestProcesses::new(processes)),
                }))
            }
            Mode::FlightRecorder => {
                let host = host.map(|tracer| HostWindow::new(tracer, HOST_WINDOW));
                let vmm = Some(Arc::clone(&vmm));
                Layers::FlightRecorder(Box::new(FlightRecorder::new(host, vmm, kernel, Some(processes))))
            }
        };
        let extra = ExtraSessions::default();
        let saved = Instant::now();
        let mut recording = Self { facts, layers, rings, events, active: true, extra, vmm, region_file, saved };
        recording.save(true)?;
        Ok(recording)
    }

    fn run(&mut self, told: &Receiver<Command>) -> Result<Session, RecorderError> {
        let mut timer = PollPause::new();
        loop {
            let busy = self.look()?;
            let longest = match self.layers {
                Layers::FlightRecorder(_) if self.extra.streams() == 0 => LONGEST_FLIGHT_PAUSE,
                _ => LONGEST_PAUSE,
            };
            match told.recv_timeout(timer.after(busy, longest)) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Command::Control(request, reply)) => {
                    let answer = self.answer(request)?;
                    // A client that is gone does not want to know.
                    let _ = reply.send(answer);
                }
                Ok(Command::Finish(outcome)) => return self.finish(outcome),
                Err(RecvTimeoutError::Disconnected) => return self.finish("the monitor failed".into()),
            }
        }
    }

    /// One look at every layer; says whether to look again at once.
    fn look(&mut self) -> Result<bool, RecorderError> {
        let looked = self.layers.look(&self.facts)?;
        if looked.new_kernel_events && self.active {
            self.facts.region.set_enabled(0, &self.layers.enabled(&self.facts));
        }
        let facts_changed = self.facts.look();
        let extra = self.extra.look()?;
        if looked.news || facts_changed || self.saved.elapsed() >= SAVE_INTERVAL {
            self.save(facts_changed)?;
        }
        Ok(looked.busy || extra)
    }

    fn finish(&mut self, outcome: String) -> Result<Session, RecorderError> {
        self.facts.look();
        self.extra.finish(&outcome)?;
        let layers = self.layers.finish(&mut self.facts)?;
        self.facts.session.outcome = Some(outcome);
        self.facts.save(layers)?;
        Ok(self.facts.session.clone())
    }

    fn save(&mut self, beside_region: bool) -> Result<(), RecorderError> {
        let layers = self.layers.written();
        self.facts.save(layers)?;
        if beside_region {
            self.facts.save_beside_region()?;
        }
        self.saved = Instant::now();
        Ok(())
    }

    /// Does what `request` asks for. An error is the recording's own; what is wrong with the request is in the answer.
    fn answer(&mut self, request: Request) -> Result<Answer, RecorderError> {
        Ok(match request {
            Request::Status => {
                let trace = Some(self.status());
                Answer::Status(Box::new(Status { trace, ..Status::default() }))
            }
            Request::Snapshot { dir, session } => {
                let written = match session.as_deref().filter(|name| *name != MAIN_SESSION) {
                    None => snapshot(&mut self.layers, &self.facts, &dir),
                    Some(name) => self.extra.snapshot(name, &dir),
                };
                written.unwrap_or_else(|error| Answer::refused(chain(&error)))
            }
            Request::Flush => match &mut self.layers {
                Layers::Streaming(layers) => {
                    let answered = layers.flush(&self.facts, || self.vmm.flush())?;
                    self.extra.flush()?;
                    self.save(false)?;
                    Answer::done(if answered {
                        "flushed".to_owned()
                    } else {
                        "flushed; the guest did not answer in time, so that its latest records come later".to_owned()
                    })
                }
                Layers::FlightRecorder(_) => {
                    Answer::refused("a flight recorder is written by a snapshot: use `strata ctl VM snapshot DIR`")
                }
            },
            Request::SessionStart { name } if name == MAIN_SESSION => {
                self.active = true;
                self.vmm.guest_events(GuestEvents::On);
                self.facts.region.set_enabled(0, &self.layers.enabled(&self.facts));
                Answer::done(format!("session {name} records"))
            }
            Request::SessionStop { name } if name == MAIN_SESSION => {
                self.active = false;
                self.facts.region.set_enabled(0, &EnabledEvents::NONE);
                self.vmm.guest_events(GuestEvents::Off);
                Answer::done(format!("session {name} is stopped; what it recorded stays"))
            }
            Request::SessionEvents { name, events } if name == MAIN_SESSION => {
                self.choose(events).unwrap_or_else(Answer::refused)
            }
            Request::SessionDestroy { name } if name == MAIN_SESSION => {
                Answer::refused(format!("session {name} ends with the VM; `session stop {name}` stops it"))
            }
            other => self.extra.answer(other, &self.facts, &self.events)?,
        })
    }

    /// Records the guest's `events` from now on; an error is what to tell the user. The host's events and the monitor's
    /// stay as they were chosen at the start.
    fn choose(&mut self, events: String) -> Result<Answer, String> {
        let selection = Selection::parse(&events).map_err(|error| chain(&error))?;
        check_guest_events(&selection, &self.facts)?;
        self.facts.selection = selection;
        self.events = events;
        if self.active {
            // Said on both sides: pairs of events that the change cuts lie around it.
            self.vmm.guest_events(GuestEvents::Changed);
            self.facts.region.set_enabled(0, &self.layers.enabled(&self.facts));
            self.vmm.guest_events(GuestEvents::Changed);
        }
        Ok(Answer::done(format!("session {MAIN_SESSION} records {} of the guest", self.events)))
    }

    fn status(&self) -> TraceStatus {
        let main = SessionStatus {
            name: MAIN_SESSION.into(),
            mode: self.rings.mode.into(),
            active: self.active,
            sub_buffer_size: self.rings.geometry.sub_buffer_size(),
            sub_buffers: self.rings.geometry.sub_buffers(),
            events: self.events.clone(),
            trace: Some(self.facts.dir.clone()),
        };
        let vm = self.facts.session.vm(&self.facts.vm);
        let unslotted = self.facts.missing_processes();
        let missing = self.facts.session.missing.iter().chain(&unslotted);
        TraceStatus {
            dir: self.facts.dir.clone(),
            region: self.region_file.clone(),
            region_size: self.facts.region.layout().size as u64,
            guest_kernel: vm.and_then(|vm| vm.guest.as_ref()).map(|guest| guest.kernel.clone()),
            sessions: std::iter::once(main).chain(self.extra.statuses()).collect(),
            layers: self.layers.written().iter().map(layer_status).collect(),
            missing: missing
                .map(|missing| format!("{}: {} ({})", missing.layer, missing.reason, missing.fix))
                .collect(),
        }
    }
}

/// Writes what a flight recorder holds to the new folder `dir`; tracing goes on.
pub(super) fn snapshot(layers: &mut Layers, facts: &Facts, dir: &Path) -> Result<Answer, RecorderError> {
    let recorder = match layers {
        Layers::FlightRecorder(recorder) => recorder,
        Layers::Streaming(_) => {
            let at = facts.dir.display();
            return Ok(Answer::refused(format!(
                "this session is written to {at} all the time: read that, after `strata ctl VM flush`; snapshots are for \
                 sessions in flight-recorder mode"
            )));
        }
    };
    if !dir.is_absolute() {
        return Ok(Answer::refused(format!("'{}' is no absolute path", dir.display())));
    }
    let mut folder = TraceFolder::create(dir)?;
    recorder.look(facts);
    let mut session = facts.session.clone();
    session.outcome = Some("snapshot of a running VM".into());
    session.missing.extend(facts.missing_processes());
    session.layers = recorder.write(facts, dir, &session)?;
    session.save(dir)?;
    folder.keep();
    let records: u64 = session.layers.iter().flat_map(|layer| &layer.streams).map(|stream| stream.records).sum();
    Ok(Answer::done(format!("{records} records in {}", dir.display())))
}

/// An error and its sources on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
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
    }
}

#[cfg(test)]
mod tests;
