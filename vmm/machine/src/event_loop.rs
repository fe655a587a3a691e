//! The loop on which devices are served, and what ends it.

pub(crate) mod disk_thread;

use super::error::MachineError;
use super::outcome::{Outcome, RunError};
use super::virtio::mmio::{MmioTransport, QueueEvents};
use crate::devices::power::PowerPorts;
use crate::devices::serial::{ConsoleInput, SerialPort};
use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

/// How long a guest whose kernel panicked may go on (to print, to write a dump) before its run is ended. Its crash
/// kernel may as long as it likes.
const PANIC_GRACE: Duration = Duration::from_secs(10);
/// Serves whatever subscribed to it.
pub type EventLoop = EventManager<Box<dyn MutEventSubscriber + Send>>;

/// Wakes the event loop and remembers that it did.
struct Wake {
    event: Arc<EventFd>,
    woken: Arc<AtomicBool>,
}

impl MutEventSubscriber for Wake {
    fn process(&mut self, _: Events, _: &mut EventOps) {
        let _ = self.event.read();
        self.woken.store(true, Ordering::Relaxed);
    }

    fn init(&mut self, ops: &mut EventOps) {
        // A fresh descriptor of our own: refused only when the host has no memory for it.
        let _ = ops.add(Events::new(&*self.event, EventSet::IN));
    }
}

/// Adds a subscriber that reports in the returned flag whether `event` was signalled.
pub fn add_wake(manager: &mut EventLoop, event: &Arc<EventFd>) -> Arc<AtomicBool> {
    let woken = Arc::new(AtomicBool::new(false));
    manager.add_subscriber(Box::new(Wake { event: Arc::clone(event), woken: Arc::clone(&woken) }));
    woken
}

/// A loop that serves `devices` and feeds `input` into the serial port.
///
/// # Errors
/// The loop or its subscribers cannot be made.
pub fn create(
    devices: &[Arc<MmioTransport>],
    port: &Arc<SerialPort>,
    input: Option<File>,
) -> Result<EventLoop, MachineError> {
    let mut manager = EventLoop::new().map_err(MachineError::EventLoop)?;
    for device in devices {
        manager.add_subscriber(Box::new(QueueEvents(Arc::clone(device))));
    }
    manager.add_subscriber(Box::new(ConsoleInput::new(Arc::clone(port), input)));
    Ok(manager)
}

/// Serves the devices until the guest ends, the host asks for it, or a panicked guest has had its time.
pub fn drive(
    manager: &mut EventLoop,
    outcomes: &mpsc::Receiver<Outcome>,
    stopped: &AtomicBool,
    power: &PowerPorts,
) -> Outcome {
    let mut deadline = None;
    loop {
        let timeout = deadline.map(|deadline: Instant| {
            i32::try_from(deadline.saturating_duration_since(Instant::now()).as_millis() + 1).unwrap_or(i32::MAX)
        });
        if let Err(error) = manager.run_with_timeout(timeout.unwrap_or(-1)) {
            return Outcome::Failed(RunError::EventLoop(error));
        }
        if let Ok(outcome) = outcomes.try_recv() {
            return outcome;
        }
        if stopped.load(Ordering::Relaxed) {
            return Outcome::Stopped;
        }
        if power.is_at_its_end() {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + PANIC_GRACE);
            if Instant::now() >= deadline {
                return Outcome::Panic;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::power::PANIC_PORT;
    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    fn event() -> Arc<EventFd> {
        Arc::new(EventFd::new(EFD_NONBLOCK).unwrap())
    }

    #[test]
    fn outcome_wins_over_a_stop() {
        let mut manager = EventLoop::new().unwrap();
        let stop = event();
        let stopped = add_wake(&mut manager, &stop);
        let (sender, outcomes) = mpsc::channel();
        sender.send(Outcome::PowerOff).unwrap();
        stop.write(1).unwrap();
        let outcome = drive(&mut manager, &outcomes, &stopped, &PowerPorts::default());
        assert!(matches!(outcome, Outcome::PowerOff), "{outcome:?}");
    }

    #[test]
    fn panicked_guest_that_is_stopped_has_its_end_at_once() {
        let mut manager = EventLoop::new().unwrap();
        let stop = event();
        let stopped = add_wake(&mut manager, &stop);
        let (_sender, outcomes) = mpsc::channel();
        let power = PowerPorts::default();
        power.write(PANIC_PORT, 1);
        stop.write(1).unwrap();
        let before = Instant::now();
        let outcome = drive(&mut manager, &outcomes, &stopped, &power);
        assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
        assert!(before.elapsed() < PANIC_GRACE);
    }
}
