//! Pauses a running machine, has its vCPUs' clocks renewed, asks it for memory, and shows what it has.

use crate::config::MEMORY_MIN;
use crate::vcpu::{VcpuHandle, VcpuRemote};
use crate::virtio::balloon::{BalloonRemote, BalloonState, PAGE};
use kvm_ioctls::VmFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use strata_clock::guest_tsc::{self, KvmClock};
use strata_observer::{ControlEvent, Observer};
use vm_memory::GuestMemoryMmap;

/// How long vCPUs get to leave the guest. A device access in progress is finished first.
const PARKING_TIME: Duration = Duration::from_secs(10);

/// Why a machine was not paused or resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// It has not started yet, or has ended.
    #[error("the guest is not running")]
    NotRunning,
    /// It is paused already.
    #[error("the guest is paused already; resume it with `strata ctl VM resume`")]
    Paused,
    /// It is not paused.
    #[error("the guest is not paused")]
    NotPaused,
    /// A vCPU did not leave the guest in time; the others go on.
    #[error("a vCPU did not leave the guest within {} seconds; the guest runs on", PARKING_TIME.as_secs())]
    Stuck,
    /// The machine has no such device.
    #[error("the VM has no balloon: run it with --balloon")]
    NoBalloon,
    /// The guest cannot do without so much.
    #[error("{bytes} bytes cannot be asked for: write a multiple of {PAGE}, {most} at most")]
    BalloonSize {
        /// What was requested, bytes.
        bytes: u64,
        /// Most that can be, bytes: all but what a guest needs at least.
        most: u64,
    },
}

/// Controls a machine while it runs, from any thread.
#[derive(Clone, Default)]
pub struct MachineControl(Arc<Mutex<RunningMachine>>);

#[derive(Default)]
struct RunningMachine {
    /// The vCPUs, while their threads exist.
    vcpus: Vec<VcpuRemote>,
    observer: Option<Arc<dyn Observer>>,
    guest: Option<RunningGuest>,
    paused: Option<Instant>,
    balloon: Option<BalloonRemote>,
    /// Bytes that can be requested at most.
    most: u64,
}

/// The memory and the clock of a guest that runs. Both stay as long as this does, also when the guest has ended.
#[derive(Clone)]
pub struct RunningGuest {
    // Declared in the order in which they are to be dropped: the VM uses the memory.
    vm: Arc<VmFd>,
    memory: GuestMemoryMmap,
}

impl RunningGuest {
    pub(super) const fn new(vm: Arc<VmFd>, memory: GuestMemoryMmap) -> Self {
        Self { vm, memory }
    }

    /// The memory, which the guest may write while it is read.
    #[must_use]
    pub const fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// What kvm-clock shows now, if KVM can relate it to the host's TSC.
    #[must_use]
    pub fn kvm_clock(&self) -> Option<KvmClock> {
        guest_tsc::kvm_clock(&self.vm)
    }
}

impl MachineControl {
    fn state(&self) -> MutexGuard<'_, RunningMachine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine of `guest`, with `size` bytes of RAM, runs: it can be controlled.
    pub(super) fn attach(
        &self,
        handles: &[VcpuHandle],
        observer: &Arc<dyn Observer>,
        (guest, size): (RunningGuest, u64),
        balloon: Option<BalloonRemote>,
    ) {
        let mut state = self.state();
        state.balloon = balloon;
        state.most = size.saturating_sub(MEMORY_MIN);
        state.vcpus = handles.iter().map(VcpuHandle::remote).collect();
        state.observer = Some(Arc::clone(observer));
        state.guest = Some(guest);
    }

    /// The machine ends: its threads are about to be joined.
    pub(super) fn detach(&self) {
        *self.state() = RunningMachine::default();
    }

    /// Takes all vCPUs out of the guest and keeps them out. Devices finish what they have begun. Returns when every
    /// vCPU is out.
    ///
    /// # Errors
    /// The machine does not run, is paused already, or a vCPU does not leave the guest; nothing has changed then.
    pub fn pause(&self) -> Result<(), ControlError> {
        let mut state = self.state();
        match (state.vcpus.is_empty(), state.paused) {
            (true, _) => return Err(ControlError::NotRunning),
            (false, Some(_)) => return Err(ControlError::Paused),
            (false, None) => {}
        }
        let (parked, all_parked) = mpsc::channel();
        let all_live = state.vcpus.iter().all(|vcpu| vcpu.pause(parked.clone()));
        drop(parked);
        let all_out = match all_live {
            true => await_parked(&all_parked, state.vcpus.len(), PARKING_TIME),
            false => Err(ControlError::NotRunning),
        };
        if let Err(error) = all_out {
            state.vcpus.iter().for_each(VcpuRemote::resume);
            return Err(error);
        }
        state.paused = Some(Instant::now());
        if let Some(observer) = &state.observer {
            observer.control(ControlEvent::Paused);
        }
        Ok(())
    }

    /// Lets a paused machine go on. Returns how long it was paused.
    ///
    /// # Errors
    /// The machine is not paused.
    pub fn resume(&self) -> Result<Duration, ControlError> {
        let mut state = self.state();
        let since = state.paused.take().ok_or(ControlError::NotPaused)?;
        if let Some(observer) = &state.observer {
            observer.control(ControlEvent::Resumed);
        }
        state.vcpus.iter().for_each(VcpuRemote::resume);
        Ok(since.elapsed())
    }

    /// The guest's memory and clock, while the machine runs.
    #[must_use]
    pub fn guest(&self) -> Option<RunningGuest> {
        self.state().guest.clone()
    }

    /// Whether the machine is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.state().paused.is_some()
    }

    /// How the machine's balloon is.
    ///
    /// # Errors
    /// The machine does not run, or has none.
    pub fn balloon(&self) -> Result<BalloonState, ControlError> {
        let state = self.state();
        if state.vcpus.is_empty() {
            return Err(ControlError::NotRunning);
        }
        state.balloon.as_ref().map(BalloonRemote::state).ok_or(ControlError::NoBalloon)
    }

    /// Wants `bytes` of the guest's memory back from now on, 0 for none, and tells the guest. It does what it can, when
    /// it can.
    ///
    /// # Errors
    /// The machine does not run or has no balloon, or `bytes` is not a number of pages that a guest can do without.
    pub fn want_back(&self, bytes: u64) -> Result<BalloonState, ControlError> {
        let state = self.state();
        if state.vcpus.is_empty() {
            return Err(ControlError::NotRunning);
        }
        let balloon = state.balloon.as_ref().ok_or(ControlError::NoBalloon)?;
        let most = state.most;
        if bytes > most || !bytes.is_multiple_of(PAGE) {
            return Err(ControlError::BalloonSize { bytes, most });
        }
        balloon.want(bytes);
        if let Some(observer) = &state.observer {
            observer.balloon_wanted(bytes);
        }
        Ok(balloon.state())
    }

    /// Has every vCPU leave the guest for a moment and renew its clock. Without effect while the machine is paused
    /// or does not run.
    pub fn renew_clocks(&self) {
        let state = self.state();
        if state.paused.is_none() {
            state.vcpus.iter().for_each(VcpuRemote::renew_clock);
        }
    }
}

/// Waits until `count` vCPUs have said that they are out of the guest, for `time` at most.
///
/// # Errors
/// One has ended, or does not leave the guest in time.
fn await_parked(parked: &mpsc::Receiver<()>, count: usize, time: Duration) -> Result<(), ControlError> {
    let deadline = Instant::now() + time;
    (0..count).try_for_each(|_| {
        let left = deadline.saturating_duration_since(Instant::now());
        parked.recv_timeout(left).map_err(|error| match error {
            // Those that are out have let go of their end of it.
            mpsc::RecvTimeoutError::Disconnected => ControlError::NotRunning,
            mpsc::RecvTimeoutError::Timeout => ControlError::Stuck,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::await_parked;
    use crate::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn machine_that_does_not_run_is_neither_paused_nor_resumed_nor_shown() {
        let control = MachineControl::default();

        assert_eq!(control.pause(), Err(ControlError::NotRunning));
        assert_eq!(control.resume(), Err(ControlError::NotPaused));
        assert!(control.guest().is_none());
    }

    #[test]
    fn vcpu_that_has_ended_is_not_waited_for() {
        let (out, parked) = mpsc::channel();
        out.send(()).unwrap();
        let stays = await_parked(&parked, 2, Duration::from_millis(1));
        out.send(()).unwrap();
        drop(out);

        let has_ended = await_parked(&parked, 2, Duration::from_secs(600));

        assert_eq!((stays, has_ended), (Err(ControlError::Stuck), Err(ControlError::NotRunning)));
    }

    #[test]
    fn machine_that_does_not_run_gets_no_request_for_memory() {
        let control = MachineControl::default();

        assert_eq!(control.balloon(), Err(ControlError::NotRunning));
        assert_eq!(control.want_back(4096), Err(ControlError::NotRunning));
    }
}
