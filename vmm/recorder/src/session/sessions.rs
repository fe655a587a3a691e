//! All sessions of a VM, the one that it was started with first. Control requests about what is recorded are answered
//! here.

use crate::control::protocol::{Answer, Request, Status};
use crate::drain::polling::Found;
use crate::guest_symbols::chain;
use crate::region::MAIN_SESSION;
use crate::session::recording::RecordingError;
use crate::session::{NewSession, RecordedVm, RecordingBuilder, Session, SessionError};
use shared_ring::layout::Geometry;
use shared_ring::region::Rings;
use std::time::{Duration, Instant};
use strata_recording::manifest::Manifest;
use strata_recording::writer::Rotation;

/// Size (bytes) and number of the sub-buffers of a session that is made without saying them.
const DEFAULT_RINGS: (u64, u32) = (128 << 10, 16);

/// How long a flush waits for the guest's CPUs, of all sessions together.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);
/// How long the guest's CPUs may take to let go of a session's rings.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two checks whether they have.
const RELEASE_PAUSE: Duration = Duration::from_millis(5);

/// The sessions of a VM.
pub struct Sessions {
    /// Never empty: the first one is that of the VM, and is not destroyed.
    sessions: Vec<Session>,
    /// Slots of sessions that were destroyed, which the guest had not let go of yet.
    leaving: Vec<usize>,
}

impl Sessions {
    /// The session that `vm` is started with, of the recording `requested`.
    ///
    /// # Errors
    /// When its recording cannot be written.
    pub fn start(requested: RecordingBuilder, vm: RecordedVm) -> Result<Self, RecordingError> {
        Ok(Self { sessions: vec![Session::main(requested, vm)?], leaving: Vec::new() })
    }

    /// Polls every session once; says how much there was.
    pub fn poll(&mut self) -> Found {
        if let Some(guest) = &self.sessions[0].recording.guest {
            self.leaving.retain(|&slot| !guest.region.vacate(slot));
        }
        self.sessions.iter_mut().map(Session::poll).max().unwrap_or_default()
    }

    /// Whether a poll of all of them can wait.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        self.sessions.iter().all(Session::can_wait)
    }

    /// Whether any session is written while the guest runs.
    #[must_use]
    pub fn any_streaming(&self) -> bool {
        self.sessions.iter().any(Session::is_streaming)
    }

    /// Whether any session is watched for triggers.
    #[must_use]
    pub fn any_watched(&self) -> bool {
        self.sessions.iter().any(Session::is_watched)
    }

    /// Does what `request` asks for. The answer says what is wrong with a request.
    pub fn answer(&mut self, request: Request) -> Answer {
        self.execute(request).unwrap_or_else(|refusal| Answer::refusal(&refusal))
    }

    /// The size that the recording of the first session keeps within, if it does.
    #[must_use]
    pub fn rotation(&self) -> Option<Rotation> {
        self.sessions[0].recording.rotation.clone()
    }

    /// Completes all recordings, whose producers have stopped; returns the manifest of the first session.
    ///
    /// # Errors
    /// That of the first session; of another one it is reported, and does not concern the VM.
    pub fn complete(self, outcome: &str) -> Result<Manifest, RecordingError> {
        let mut sessions = self.sessions.into_iter();
        #[allow(clippy::expect_used, reason = "the list begins with the VM's own session, which is not destroyed")]
        let completed = sessions.next().expect("there is a first session").complete(outcome);
        for session in sessions {
            let (name, notify) = (session.name.clone(), session.notify);
            if let Err(error) = session.complete(outcome) {
                notify(&format!("session {name}: {}", chain(&error)));
            }
        }
        completed
    }

    fn execute(&mut self, request: Request) -> Result<Answer, SessionError> {
        match request {
            Request::Status => {
                let sessions = self.sessions.iter().map(Session::status).collect();
                let trace = Some(self.sessions[0].trace_status(sessions));
                Ok(Answer::Status(Box::new(Status { trace, ..Status::default() })))
            }
            Request::Live => Ok(Answer::Live(Box::new(self.sessions[0].live()))),
            Request::Snapshot { dir, session } => {
                let records = self.find(session.as_deref().unwrap_or(MAIN_SESSION))?.snapshot(&dir)?;
                Ok(Answer::done(format!("{records} records in {}", dir.display())))
            }
            Request::Flush => self.flush(FLUSH_LIMIT),
            Request::TriggerAdd { trigger, every_ms, after_ms } => {
                let (every, after) = (every_ms.map(Duration::from_millis), after_ms.map(Duration::from_millis));
                let number = self.sessions[0].arm(&trigger, every, after)?;
                Ok(Answer::done(format!("trigger {number} is armed: {}", trigger.trim())))
            }
            Request::TriggerRemove { trigger } => {
                let trigger = self.sessions[0].disarm(trigger.trim())?;
                Ok(Answer::done(format!("trigger {trigger} is removed")))
            }
            Request::SessionCreate { name, mode, sub_buffer_size, sub_buffers, events, trace, max_size, limits } => {
                let rings = Rings { geometry: geometry(sub_buffer_size, sub_buffers)?, mode: mode.into() };
                let events = events.unwrap_or_else(|| self.main().events().into());
                self.create(NewSession { name, rings, events, trace, max_size, limits })
            }
            Request::SessionStart { name } => {
                self.find(&name)?.start()?;
                Ok(Answer::done(format!("session {name} records")))
            }
            Request::SessionStop { name } => {
                self.find(&name)?.stop()?;
                Ok(Answer::done(format!("session {name} is stopped; what it recorded stays")))
            }
            Request::SessionEvents { name, events } => {
                let session = self.find(&name)?;
                session.choose(events)?;
                Ok(Answer::done(format!("session {name} records {} of the guest", session.events())))
            }
            Request::SessionDestroy { name } => self.destroy(&name),
            Request::Pause | Request::Resume | Request::Balloon { .. } | Request::Stop | Request::Detach => {
                Err(SessionError::NotServed)
            }
        }
    }

    /// Writes what all sessions hold; waits for the guest's CPUs for at most `limit`.
    pub(crate) fn flush(&mut self, limit: Duration) -> Result<Answer, SessionError> {
        // All are asked at once: a guest that does not answer is waited for once.
        let requests: Vec<_> = self.sessions.iter_mut().map(Session::request_flush).collect();
        let deadline = Instant::now() + limit;
        let sessions = self.sessions.iter_mut().zip(&requests);
        // Each is written, whatever became of the others.
        let flushed: Vec<_> = sessions.map(|(session, requests)| session.flush(requests, deadline)).collect();
        let flushed: Vec<Option<bool>> = flushed.into_iter().collect::<Result<_, _>>()?;
        match flushed.into_iter().flatten().reduce(|all, answered| all && answered) {
            None => Err(SessionError::NothingToFlush),
            Some(true) => Ok(Answer::done("flushed")),
            Some(false) => {
                Ok(Answer::done("flushed; the guest did not answer in time, so that its latest records come later"))
            }
        }
    }

    fn create(&mut self, new: NewSession) -> Result<Answer, SessionError> {
        new.check(self.sessions.iter().map(Session::name))?;
        let name = new.name.clone();
        let session = Session::of_guest_kernel(new, self.main())?;
        // It may have the slot of one that the guest has let go of meanwhile.
        let slot = session.recording.guest.as_ref().map(|guest| guest.slot);
        self.leaving.retain(|&leaving| Some(leaving) != slot);
        self.sessions.push(session);
        Ok(Answer::done(format!("session {name} is made; `session start {name}` starts it")))
    }

    fn destroy(&mut self, name: &str) -> Result<Answer, SessionError> {
        match self.position(name)? {
            0 => Err(SessionError::EndsWithVm(name.into())),
            index => {
                let session = self.sessions.remove(index);
                session.leave();
                let begun = Instant::now();
                // A guest that does not answer keeps the slot; what is in its rings is read all the same.
                while !session.is_left() && begun.elapsed() < RELEASE_LIMIT {
                    self.poll();
                    std::thread::sleep(RELEASE_PAUSE);
                }
                let (destroyed, leaving) = session.destroy();
                self.leaving.extend(leaving);
                destroyed.map_err(SessionError::NotWritten)?;
                Ok(Answer::done(format!("session {name} is gone")))
            }
        }
    }

    fn main(&self) -> &Session {
        &self.sessions[0]
    }

    fn find(&mut self, name: &str) -> Result<&mut Session, SessionError> {
        let index = self.position(name)?;
        Ok(&mut self.sessions[index])
    }

    fn position(&self, name: &str) -> Result<usize, SessionError> {
        let known = || self.sessions.iter().map(|session| session.name().to_owned()).collect();
        let found = self.sessions.iter().position(|session| session.name() == name);
        found.ok_or_else(|| SessionError::Unknown { name: name.into(), known: known() })
    }
}

/// The geometry of sub-buffers of `size` bytes, `count` of them for each ring, or the default of either.
fn geometry(size: Option<u64>, count: Option<u32>) -> Result<Geometry, SessionError> {
    let (size, count) = (size.unwrap_or(DEFAULT_RINGS.0), count.unwrap_or(DEFAULT_RINGS.1));
    Geometry::new(size, count).map_err(|_| SessionError::Geometry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_that_is_not_given_is_the_default() {
        assert_eq!(geometry(None, None).unwrap(), Geometry::new(128 << 10, 16).unwrap());
        assert_eq!(geometry(Some(4096), None).unwrap(), Geometry::new(4096, 16).unwrap());
    }

    #[test]
    fn impossible_geometry_is_refused_with_its_limits() {
        let error = geometry(Some(100), Some(3)).unwrap_err().to_string();

        assert!(error.contains("from 4K to 4M,") && error.contains("from 2 to 256"), "{error}");
    }
}
