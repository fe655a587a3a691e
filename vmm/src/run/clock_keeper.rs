//! Has the vCPUs' clocks looked at, again and again.

use crate::machine::MachineControl;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that has a machine's clocks looked at until this is dropped.
pub struct ClockKeeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ClockKeeper {
    /// Begins to look every `interval_ns`. Without a thread the clocks keep what was published at the start, whose bound
    /// says for how long that is good; so this does not fail.
    pub fn start(machine: MachineControl, interval_ns: u64) -> Self {
        let (stop, stopped) = channel();
        let interval = Duration::from_nanos(interval_ns);
        let look = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                machine.renew_clocks();
            }
        };
        let thread = std::thread::Builder::new().name("strata-clock".into()).spawn(look).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for ClockKeeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
