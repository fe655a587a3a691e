//! Sessions made while the VM runs: rings of their own for the guest's kernel, with their own mode, size and choice of
//! events, beside the session that the VM was started with.

use super::facts::Facts;
use super::flight_recorder::FlightRecorder;
use super::kernel_rings::KernelRings;
use super::recorder::{Layers, RecorderError, chain, snapshot};
use super::region::{EnabledEvents, MAIN_SESSION};
use super::selection::{Layer, Selection};
use super::streaming::Streaming;
use crate::control::protocol::{Answer, Request, SessionStatus};
use crate::run::trace_folder::TraceFolder;
use shared_ring::event::class;
use shared_ring::layout::{Geometry, Mode, SESSION_SLOTS};
use shared_ring::region::Rings;
use shared_ring::registry::Tail;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trace_merge::session::{LayerKind, Missing, is_vm_name};

/// Sub-buffers of a session that does not say how many, and their size, bytes.
const DEFAULT_RINGS: (u64, u32) = (128 << 10, 16);
/// Longest name, bytes: what a session slot holds.
const MAX_NAME: usize = 31;
/// How long the guest's CPUs may take to let go of a session's rings.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);
/// How long is waited between two looks whether they have.
const RELEASE_PAUSE: Duration = Duration::from_millis(5);

/// The sessions besides the first.
#[derive(Default)]
pub struct ExtraSessions {
    sessions: Vec<ExtraSession>,
}

struct ExtraSession {
    name: String,
    slot: usize,
    rings: Rings,
    events: String,
    active: bool,
    layers: Layers,
    facts: Facts,
    /// Where the recording goes.
    folder: Option<TraceFolder>,
}

impl ExtraSessions {
    /// One look at every session; says whether to look again at once.
    ///
    /// # Errors
    /// When a recording cannot be written.
    pub fn look(&mut self) -> Result<bool, RecorderError> {
        let mut busy = false;
        for session in &mut self.sessions {
            let looked = session.layers.look(&session.facts)?;
            busy |= looked.busy;
            if looked.new_kernel_events && session.active {
                session.enable();
            }
            if (session.facts.look() || looked.news) && session.folder.is_some() {
                let layers = session.layers.written();
                session.facts.save(layers)?;
            }
        }
        Ok(busy)
    }

    /// How many sessions are written out all the time.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.sessions.iter().filter(|session| session.rings.mode == Mode::Discard).count()
    }

    /// How each session is.
    pub fn statuses(&self) -> impl Iterator<Item = SessionStatus> + '_ {
        self.sessions.iter().map(|session| SessionStatus {
            name: session.name.clone(),
            mode: session.rings.mode.into(),
            active: session.active,
            sub_buffer_size: session.rings.geometry.sub_buffer_size(),
            sub_buffers: session.rings.geometry.sub_buffers(),
            events: session.events.clone(),
            trace: session.folder.as_ref().map(|folder| folder.path().into()),
        })
    }

    /// Writes what session `name` holds, if it is a flight recorder, to the new folder `dir`.
    ///
    /// # Errors
    /// When `dir` cannot be written.
    pub fn snapshot(&mut self, name: &str, dir: &Path) -> Result<Answer, RecorderError> {
        match self.find(name) {
            Some(session) => snapshot(&mut session.layers, &session.facts, dir),
            None => Ok(no_such(name)),
        }
    }

    /// Has the sessions that are written out all the time deliver what they hold.
    ///
    /// # Errors
    /// When a recording cannot be written.
    pub fn flush(&mut self) -> Result<(), RecorderError> {
        for session in &mut self.sessions {
            if let Layers::Streaming(layers) = &mut session.layers {
                layers.flush(&session.facts, || ())?;
            }
        }
        Ok(())
    }

    /// Creates, starts, stops or destroys a session. `main` and `events` are the first session's, from which others take
    /// what they are not told.
    ///
    /// # Errors
    /// When a recording that had begun cannot be written.
    pub fn answer(&mut self, request: Request, main: &Facts, events: &str) -> Result<Answer, RecorderError> {
        match request {
            Request::SessionCreate { name, mode, sub_buffer_size, sub_buffers, events: own, trace } => {
                let (size, count) = DEFAULT_RINGS;
                let geometry = Geometry::new(sub_buffer_size.unwrap_or(size), sub_buffers.unwrap_or(count));
                let Some(geometry) = geometry else {
                    return Ok(Answer::refused(
                        "sub-buffers must have a power of two from 4K to 4M bytes, and their number be one from 2 to 256",
                    ));
                };
                let rings = Rings { geometry, mode: mode.into() };
                let created = self.create(name, rings, own.unwrap_or_else(|| events.into()), trace, main);
                Ok(created.unwrap_or_else(Answer::refused))
            }
            Request::SessionStart { name } => Ok(self.find(&name).map_or_else(
                || no_such(&name),
                |session| {
                    session.active = true;
                    session.enable();
                    Answer::done(format!("session {name} records"))
                },
            )),
            Request::SessionStop { name } => Ok(self.find(&name).map_or_else(
                || no_such(&name),
                |session| {
                    session.active = false;
                    session.facts.region.set_enabled(session.slot, &EnabledEvents::NONE);
                    Answer::done(format!("session {name} is stopped; what it recorded stays"))
                },
            )),
            Request::SessionEvents { name, events } => {
                let Some(session) = self.find(&name) else { return Ok(no_such(&name)) };
                Ok(session.choose(events).unwrap_or_else(Answer::refused))
            }
            Request::SessionDestroy { name } => {
                let Some(index) = self.sessions.iter().position(|session| session.name == name) else {
                    return Ok(no_such(&name));
                };
                let mut session = self.sessions.remove(index);
                session.release();
                session.complete("session destroyed")?;
                Ok(Answer::done(format!("session {name} is gone")))
            }
            Request::Status | Request::Snapshot { .. } | Request::Flush | Request::Pause | Request::Resume => {
                Ok(Answer::refused("not a session's request"))
            }
        }
    }

    /// Completes the recordings of all sessions, whose producers have stopped.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn finish(&mut self, outcome: &str) -> Result<(), RecorderError> {
        self.sessions.drain(..).try_for_each(|mut session| session.complete(outcome))
    }

    fn find(&mut self, name: &str) -> Option<&mut ExtraSession> {
        self.sessions.iter_mut().find(|session| session.name == name)
    }

    /// Makes a session, inactive; an error is what to tell the user.
    fn create(
        &mut self,
        name: String,
        rings: Rings,
        events: String,
        trace: Option<PathBuf>,
        main: &Facts,
    ) -> Result<Answer, String> {
        if !is_vm_name(&name) || name.len() > MAX_NAME {
            return Err(format!("'{name}' is no session name: use up to {MAX_NAME} letters, digits, '.', '_' and '-'"));
        }
        if name == MAIN_SESSION || self.find(&name).is_some() {
            return Err(format!("there is a session '{name}' already"));
        }
        if rings.mode == Mode::Discard && trace.is_none() {
            return Err("a session in discard mode needs a folder to be written to: give --trace DIR".into());
        }
        if let Some(relative) = trace.as_ref().filter(|path| !path.is_absolute()) {
            return Err(format!("'{}' is no absolute path", relative.display()));
        }
        let selection = Selection::parse(&events).map_err(|error| chain(&error))?;
        check_guest_events(&selection, main)?;
        let region = &main.region;
        let room = |slot: usize| region.layout().session_ring_stride[slot];
        let slot = (1..SESSION_SLOTS).find(|&slot| room(slot) > 0 && region.is_free(slot));
        let slot = slot.ok_or("all session slots are in use: destroy a session first")?;
        let room = room(slot);
        if rings.ring_size() > room {
            return Err(format!(
                "rings of {} bytes are too large for a session made while the VM runs: {room} bytes are reserved for each",
                rings.ring_size()
            ));
        }
        let mut folder = trace.as_deref().map(TraceFolder::create).transpose().map_err(|error| chain(&error))?;
        let mut session = main.session.clone();
        session.layers.clear();
        session.missing = [LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestUser]
            .map(|layer| Missing {
                layer,
                reason: format!("a session made while the VM runs records the guest's kernel only, '{name}' is one"),
                fix: format!("see the trace of session {MAIN_SESSION}"),
            })
            .into();
        let mut facts = Facts {
            dir: trace.unwrap_or_default(),
            session,
            vm: main.vm.clone(),
            region: Arc::clone(region),
            selection,
            guest_events: Arc::clone(&main.guest_events),
            vcpu_threads: Arc::clone(&main.vcpu_threads),
            clocks: Arc::clone(&main.clocks),
            agent: main.agent,
            beside_region: None,
        };
        let kernel = KernelRings::new(region.memory().clone(), *region.layout(), slot, rings, main.vm.clone());
        if !region.open_session(slot, &name, rings) {
            return Err("the session's slot was taken just now: try again".into());
        }
        let layers = match rings.mode {
            Mode::FlightRecorder => Layers::FlightRecorder(Box::new(FlightRecorder::new(None, None, kernel, None))),
            Mode::Discard => match kernel.layer(&facts.dir, &facts.session) {
                Ok(guest_kernel) => {
                    let (host, vmm, processes) = (None, None, None);
                    Layers::Streaming(Box::new(Streaming { host, vmm, guest_kernel, processes }))
                }
                Err(error) => {
                    region.close_session(slot);
                    return Err(chain(&error));
                }
            },
        };
        if let Some(folder) = &mut folder {
            if let Err(error) = facts.save(layers.written()) {
                region.close_session(slot);
                return Err(chain(&error));
            }
            folder.keep();
        }
        let answer = Answer::done(format!("session {name} is made; `session start {name}` starts it"));
        self.sessions.push(ExtraSession { name, slot, rings, events, active: false, layers, facts, folder });
        Ok(answer)
    }
}

impl ExtraSession {
    fn enable(&mut self) {
        // Event types may have come while nobody looked; the session's own view of the registry says.
        let mut enabled = self.layers.enabled(&self.facts);
        // Applications record into their own rings, which follow the first session.
        enabled.class_mask &= !(1 << class::USER);
        self.facts.region.set_enabled(self.slot, &enabled);
    }

    /// Records `events` from now on; an error is what to tell the user.
    fn choose(&mut self, events: String) -> Result<Answer, String> {
        let selection = Selection::parse(&events).map_err(|error| chain(&error))?;
        check_guest_events(&selection, &self.facts)?;
        self.facts.selection = selection;
        self.events = events;
        if self.active {
            self.enable();
        }
        Ok(Answer::done(format!("session {} records {}", self.name, self.events)))
    }

    /// Takes the slot back from the guest, and waits a moment for it to let go.
    fn release(&mut self) {
        self.facts.region.close_session(self.slot);
        let begun = Instant::now();
        // A guest that does not answer keeps the slot; what is in its rings is read all the same.
        while !self.facts.region.is_free(self.slot) && begun.elapsed() < RELEASE_LIMIT {
            std::thread::sleep(RELEASE_PAUSE);
        }
    }

    /// Writes what is left, if there is a folder for it.
    fn complete(&mut self, outcome: &str) -> Result<(), RecorderError> {
        if self.folder.is_none() {
            return Ok(());
        }
        let layers = self.layers.finish(&mut self.facts)?;
        self.facts.session.outcome = Some(outcome.into());
        self.facts.save(layers)?;
        Ok(())
    }
}

/// Checks `selection` against the guest's events: those that its agent has registered by now, else those of the module's
/// file. When nobody knows them yet, it is as it is.
pub(super) fn check_guest_events(selection: &Selection, main: &Facts) -> Result<(), String> {
    let layout = main.region.layout();
    let registered = Tail::new(main.region.memory().part(layout.registry, layout.registry_size)).poll();
    let events = if registered.is_empty() { &*main.guest_events } else { &registered };
    if events.is_empty() {
        return Ok(());
    }
    let known = events.iter().map(|event| event.name.clone()).collect();
    selection.check(&[(Layer::Guest, known)]).map_err(|error| chain(&error))
}

fn no_such(name: &str) -> Answer {
    Answer::refused(format!("no session is called '{name}'; `strata ctl VM status` lists them"))
}
