//! How a thread of a running machine brings about the end of the run.

use super::{Outcome, RunError};
use std::sync::{Arc, mpsc};
use std::thread;
use vmm_sys_util::eventfd::EventFd;

/// What each thread beside the event loop has of the run's end.
#[derive(Clone)]
pub struct RunEnd {
    /// Takes the outcome from the thread that brings it about.
    pub outcomes: mpsc::Sender<Outcome>,
    /// Wakes the event loop.
    pub wake: Arc<EventFd>,
}

impl RunEnd {
    /// The run ends with `outcome`, if no other came before.
    pub fn end(&self, outcome: Outcome) {
        // The receiver lives until the threads were joined.
        let _ = self.outcomes.send(outcome);
        self.look();
    }

    /// Has the event loop look at what has changed.
    pub fn look(&self) {
        // Fails only when the counter is full, and then the loop is about to look.
        let _ = self.wake.write(1);
    }
}

/// Tells the machine when the thread that holds this unwinds, so that a panic ends the run and does not hang it.
pub struct PanicGuard(pub RunEnd);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end(Outcome::Failed(RunError::panicked(&thread::current())));
        }
    }
}
