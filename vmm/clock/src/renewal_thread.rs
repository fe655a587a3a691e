//! Renews the vCPUs' clocks at a fixed interval.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that has a machine's clocks renewed until this is dropped.
pub struct RenewalThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RenewalThread {
    /// Calls `renew` every `interval_ns` from now on, on a thread that calls `begin` first. Where no thread can be made
    /// the clocks keep what was published at the start, whose bound says for how long that is good; so this does not
    /// fail.
    #[must_use]
    pub fn start(interval_ns: u64, begin: impl FnOnce() + Send + 'static, renew: impl Fn() + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let interval = Duration::from_nanos(interval_ns);
        let run = move || {
            begin();
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                renew();
            }
        };
        let thread = std::thread::Builder::new().name("strata-clock".into()).spawn(run).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for RenewalThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of `renew` has ended renewing: the bounds that were published still hold.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::RecvError;

    #[test]
    fn clocks_are_renewed_until_the_thread_is_dropped() {
        let (renewed, renewals) = channel();

        let thread = RenewalThread::start(1_000, || (), move || renewed.send(()).unwrap_or_default());
        let seen = renewals.iter().take(3).count();
        drop(thread);

        assert_eq!(seen, 3);
        // The thread has ended, and with it the sender.
        renewals.iter().for_each(drop);
        assert_eq!(renewals.recv(), Err(RecvError));
    }
}
