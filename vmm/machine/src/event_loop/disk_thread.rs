//! A disk's own thread, on which its requests are served: a disk that is slow holds up no other device.

use super::{EventLoop, add_wake};
use crate::error::MachineError;
use crate::outcome::run_end::{PanicGuard, RunEnd};
use crate::outcome::{Outcome, RunError};
use crate::virtio::mmio::{MmioTransport, QueueEvents};
use event_manager::SubscriberOps;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use strata_jail::policy::Thread;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// What the name of such a thread begins with, before the disk's number; recordings tell them by it.
const NAME: &str = "strata-disk";

/// A disk's thread. It ends, and is waited for, when this is dropped.
pub struct DiskThread {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl DiskThread {
    /// Serves `disk`, the machine's disk `index`, on a thread of its own from now on. What keeps it from going on ends
    /// the run by `end`.
    ///
    /// # Errors
    /// No thread or file descriptor is left.
    pub fn spawn(index: usize, disk: &Arc<MmioTransport>, end: RunEnd) -> Result<Self, MachineError> {
        let stop = Arc::new(EventFd::new(EFD_NONBLOCK).map_err(MachineError::Device)?);
        let mut manager = EventLoop::new().map_err(MachineError::EventLoop)?;
        manager.add_subscriber(Box::new(QueueEvents(Arc::clone(disk))));
        let stopped = add_wake(&mut manager, &stop);
        let run = move || {
            let _panic = PanicGuard(end.clone());
            strata_jail::enter(Thread::Disk);
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = manager.run() {
                    return end.end(Outcome::Failed(RunError::EventLoop(error)));
                }
            }
        };
        let thread = Builder::new().name(format!("{NAME}{index}")).spawn(run).map_err(MachineError::Thread)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Has the thread end after the requests that it is serving, without waiting for it.
    pub fn stop(&self) {
        // Fails only when the counter is full, that is when it was notified already.
        let _ = self.stop.write(1);
    }
}

impl Drop for DiskThread {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic has ended the run by itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::mmio::tests::activate;
    use crate::virtio::{Served, VirtioDevice};
    use std::sync::mpsc::{self, Receiver};
    use std::time::{Duration, Instant};
    use virtio_queue::{Error, Queue};
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    /// Longest wait for a thread to do what it should.
    const LIMIT: Duration = Duration::from_secs(60);

    /// A device that does the same each time that it is served.
    struct Doing<F>(F);

    impl<F: FnMut() + Send> VirtioDevice for Doing<F> {
        fn device_type(&self) -> u32 {
            2
        }
        fn features(&self) -> u64 {
            0
        }
        fn queue_sizes(&self) -> &[u16] {
            &[16]
        }
        fn read_config(&self, _: u64, _: &mut [u8]) {}
        fn serve(&mut self, _: usize, _: &mut Queue, _: &GuestMemoryMmap, _: Instant) -> Result<Served, Error> {
            (self.0)();
            Ok(Served::default())
        }
    }

    /// A disk whose driver is ready, and which does `what` each time that it is served.
    fn disk(what: impl FnMut() + Send + 'static) -> Arc<MmioTransport> {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
        let interrupt = EventFd::new(EFD_NONBLOCK).unwrap();
        let disk = MmioTransport::new(Box::new(Doing(what)), memory, interrupt).unwrap();
        activate(&disk, 0x1000);
        Arc::new(disk)
    }

    fn run_end() -> (RunEnd, Receiver<Outcome>) {
        let (outcomes, received) = mpsc::channel();
        (RunEnd { outcomes, wake: Arc::new(EventFd::new(EFD_NONBLOCK).unwrap()) }, received)
    }

    fn notify(disk: &MmioTransport) {
        disk.notify_events()[0].write(1).unwrap();
    }

    #[test]
    fn disk_is_served_while_another_one_is_slow() {
        let (end, _outcomes) = run_end();
        let (is_slow, slow_is_served) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let slow = disk(move || {
            is_slow.send(()).unwrap();
            may_go_on.recv_timeout(LIMIT).unwrap();
        });
        let (answer, answered) = mpsc::channel();
        let other = disk(move || answer.send(()).unwrap());
        let _threads = [&slow, &other].map(|disk| DiskThread::spawn(0, disk, end.clone()).unwrap());

        notify(&slow);
        slow_is_served.recv_timeout(LIMIT).unwrap();
        notify(&other);
        let meanwhile = answered.recv_timeout(LIMIT);
        go_on.send(()).unwrap();

        assert!(meanwhile.is_ok());
    }

    #[test]
    fn thread_that_is_dropped_has_ended() {
        let (end, outcomes) = run_end();
        let (answer, answered) = mpsc::channel();
        let disk = disk(move || answer.send(()).unwrap());
        let thread = DiskThread::spawn(7, &disk, end).unwrap();
        notify(&disk);
        answered.recv_timeout(LIMIT).unwrap();

        drop(thread);
        notify(&disk);

        // Nobody else holds the disk or the other end of the channel.
        assert_eq!((Arc::strong_count(&disk), outcomes.try_recv().err()), (1, Some(mpsc::TryRecvError::Disconnected)));
        assert!(answered.try_recv().is_err());
    }

    #[test]
    fn thread_that_panics_ends_the_run() {
        let (end, outcomes) = run_end();
        let disk = disk(|| panic!("as a test does"));
        let _thread = DiskThread::spawn(3, &disk, end).unwrap();

        notify(&disk);
        let outcome = outcomes.recv_timeout(LIMIT).unwrap();

        assert_eq!(outcome.to_string(), "the thread 'strata-disk3' panicked");
    }
}
