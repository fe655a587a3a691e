//! The recorder: a thread that polls every session while the machine runs, answers what the control socket asks about
//! them, and completes their recordings when the machine has stopped.

use crate::control::protocol::{Answer, Request};
use crate::drain::polling::{Found, PollInterval, SLEEP};
use crate::drain::scheduling::Watchdog;
use crate::drain::work_alarm::{Bell, Sleeper, WorkAlarms, sleeper};
use crate::session::recording::{AtCompletion, RecordingError};
use crate::session::sessions::Sessions;
use crate::session::{RecordedVm, RecordingBuilder};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use strata_jail::policy::Thread;
use strata_recording::manifest::Manifest;
use thiserror::Error;

/// Longest pause between two polls of all layers: rings fill in milliseconds at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
/// The same while all sessions are flight recorders without triggers, so that only the host kernel's buffers must not
/// overflow, and for a recorder that works in idle times: the less often it looks, the less it is in somebody's way.
const LONGEST_RARE_PAUSE: Duration = Duration::from_millis(64);

/// Longest time between two polls where the recorder works in idle times, there are none, and there is room in every
/// ring: what is shown of a running VM is so old at most.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The outcome of a recording that nobody has finished.
const FAILED: &str = "the VMM failed";

/// Why the recorder failed.
#[derive(Debug, Error)]
pub enum RecorderError {
    /// The recording cannot go on.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The recorder's thread could not be started.
    #[error("cannot start the recorder's thread")]
    Thread(#[source] std::io::Error),
    /// The recorder's thread panicked: a bug.
    #[error("the recorder panicked; the trace ends early")]
    Panicked,
}

/// A command to the recorder's thread.
enum Command {
    Control(Request, SyncSender<Answer>),
    /// The machine has stopped, with this outcome; what is to be done when the recording is complete.
    Finish(String, Option<AtCompletion>),
}

/// A running recorder. Dropping it completes the recording of a VMM that has failed.
#[derive(Debug)]
pub struct Recorder {
    commands: Sender<Command>,
    bell: Bell,
    /// Joined once.
    thread: Option<JoinHandle<Result<Manifest, RecordingError>>>,
}

/// Passes requests on to a recorder.
#[derive(Clone, Debug)]
pub struct RecorderControl {
    commands: Sender<Command>,
    bell: Bell,
}

impl RecorderControl {
    /// Passes `request` on, and waits for the answer.
    #[must_use]
    pub fn request(&self, request: Request) -> Answer {
        let (reply, answer) = sync_channel(1);
        let sent = self.commands.send(Command::Control(request, reply));
        self.bell.ring();
        // Either end is gone when the recording is being completed or has failed.
        sent.ok()
            .and_then(|()| answer.recv().ok())
            .unwrap_or_else(|| Answer::refused("the VM is ending, or its recording has failed"))
    }
}

impl Recorder {
    /// Begins the recording `requested` of `vm`, on a thread that runs as it says.
    ///
    /// # Errors
    /// When the recording's folder cannot be written.
    pub fn start(mut requested: RecordingBuilder, vm: RecordedVm) -> Result<Self, RecorderError> {
        let (alarms, scheduling) = requested.begin();
        let sessions = Sessions::start(requested, vm)?;
        let (commands, received) = channel();
        let (sleeper, bell) = sleeper().map_err(RecorderError::Thread)?;
        // Whoever starts a thread that records is to find the one that it wakes.
        let (ready, is_ready) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("strata-recorder".into())
            .spawn(move || {
                let watchdog = scheduling.begin();
                alarms.wake_this_thread();
                let _ = ready.send(());
                strata_jail::enter(Thread::Recorder);
                run(sessions, &received, sleeper, &alarms, watchdog)
            })
            .map_err(RecorderError::Thread)?;
        // It fails with the thread, whose result says why.
        let _ = is_ready.recv();
        Ok(Self { commands, bell, thread: Some(thread) })
    }

    /// What passes requests on to this recorder.
    #[must_use]
    pub fn control(&self) -> RecorderControl {
        RecorderControl { commands: self.commands.clone(), bell: self.bell.clone() }
    }

    /// Completes the recording: takes what the stopped machine has left and writes `outcome`. Call this when all vCPU
    /// threads have ended.
    ///
    /// # Errors
    /// What kept the recorder from writing, now or earlier.
    pub fn finish(self, outcome: String) -> Result<Manifest, RecorderError> {
        self.finish_with(outcome, None)
    }

    /// As [`finish`](Self::finish); then does what is `last`.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish), and those of `last`.
    pub fn finish_with(mut self, outcome: String, last: Option<AtCompletion>) -> Result<Manifest, RecorderError> {
        Ok(self.end(outcome, last).ok_or(RecorderError::Panicked)??)
    }

    /// Has the thread complete the recording, and waits for it. None when it has panicked, or was waited for before.
    fn end(&mut self, outcome: String, last: Option<AtCompletion>) -> Option<Result<Manifest, RecordingError>> {
        let thread = self.thread.take()?;
        // The receiver is gone when the recorder has failed; its result says why.
        let _ = self.commands.send(Command::Finish(outcome, last));
        self.bell.ring();
        thread.join().ok()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Whoever drops it has failed and says why; its folder goes next.
        let _ = self.end(FAILED.into(), None);
    }
}

fn run(
    mut sessions: Sessions,
    commands: &Receiver<Command>,
    mut sleeper: Sleeper,
    alarms: &WorkAlarms,
    watchdog: Option<Watchdog>,
) -> Result<Manifest, RecordingError> {
    let mut interval = PollInterval::new();
    let mut polled = Instant::now();
    loop {
        let was_late = watchdog.as_ref().is_some_and(Watchdog::was_late);
        let waits = was_late && polled.elapsed() < LONGEST_WAIT && sessions.can_wait();
        let found = if waits { Found::Nothing } else { sessions.poll() };
        polled = if waits { polled } else { Instant::now() };
        let is_prompt = sessions.any_streaming() && watchdog.is_none() || sessions.any_watched();
        let longest = if is_prompt { LONGEST_PAUSE } else { LONGEST_RARE_PAUSE };
        let mut pause = interval.after(found, longest);
        // Triggers are about what takes no time of the guest's, too.
        if interval.is_quiet() && !sessions.any_watched() && alarms.arm() {
            pause = SLEEP;
        }
        if let Some(watchdog) = &watchdog {
            watchdog.looked(found.has_more(), pause);
        }
        if !pause.is_zero() && sleeper.sleep(pause) && pause == SLEEP {
            interval.woken();
            watchdog.iter().for_each(Watchdog::was_woken);
        }
        // All of them: the bell does not ring again for those that have come.
        loop {
            match commands.try_recv() {
                Err(TryRecvError::Empty) => break,
                Ok(Command::Control(request, reply)) => {
                    if polled.elapsed() > LONGEST_RARE_PAUSE {
                        // The answer is to be about now.
                        sessions.poll();
                        polled = Instant::now();
                    }
                    let answer = sessions.answer(request);
                    // The client may be gone.
                    let _ = reply.send(answer);
                }
                Ok(Command::Finish(outcome, last)) => {
                    drop(watchdog);
                    let rotation = sessions.rotation();
                    let manifest = sessions.complete(&outcome)?;
                    return match last {
                        Some(last) => last(manifest, rotation.as_ref()),
                        None => Ok(manifest),
                    };
                }
                Err(TryRecvError::Disconnected) => {
                    drop(watchdog);
                    return sessions.complete(FAILED);
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
