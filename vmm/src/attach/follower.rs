//! Follows a VM while it is recorded: its vCPUs' threads and TSC offsets, its end, and that of its region's file.

use super::Ending;
use super::failure::AttachError;
use super::vm::{ForeignVm, Look};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use strata_clock::VcpuClocks;
use strata_jail::policy::Thread;
use strata_recorder::live::vcpu_activity::VcpuThreads;
use strata_recorder::region::TraceRegion;

/// How often it is looked whether the VM has ended.
const WAIT: Duration = Duration::from_millis(100);
/// Of so many waits, one is followed by a look at the vCPUs: once a second.
const WAITS_PER_LOOK: u32 = 10;

/// Follows a VM until it is dropped.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Where what a look shows goes.
#[derive(Clone)]
pub struct Sinks {
    /// The threads of the vCPUs.
    pub threads: VcpuThreads,
    /// The vCPUs' clocks.
    pub clocks: Arc<VcpuClocks>,
}

impl Sinks {
    /// Takes what `look` shows.
    pub fn take(&self, look: &Look) {
        for vcpu in &look.vcpus {
            // One that runs at another rate is told by no offset.
            if let Some(tsc) = vcpu.tsc.filter(|tsc| !tsc.is_scaled()) {
                self.clocks.observe_offset(vcpu.vcpu, tsc.offset);
            }
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // A vCPU that is taken away, or whose thread has just ended, has run all the same.
        for &(vcpu, tid) in &look.threads {
            threads.set(vcpu, tid);
        }
    }
}

impl Follower {
    /// Follows `vm`, and its `region` if it has one; `ended` hears when either has ended.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        vm: ForeignVm,
        region: Option<Arc<TraceRegion>>,
        sinks: Sinks,
        ended: Sender<Ending>,
    ) -> Result<Self, AttachError> {
        let stop = Arc::new(AtomicBool::new(false));
        let requested = Arc::clone(&stop);
        let follow = move || {
            strata_jail::enter(Thread::Follower);
            // Nobody listens when the recording has ended for another reason.
            let _ = follow(&vm, region.as_deref(), &sinks, &requested).map(|ending| ended.send(ending));
        };
        let thread = std::thread::Builder::new().name("strata-follower".into()).spawn(follow);
        Ok(Self { stop, thread: Some(thread.map_err(AttachError::Threads)?) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Follows `vm` until it or the file of its `region` ends, which it says, or `requested` says to stop.
fn follow(vm: &ForeignVm, region: Option<&TraceRegion>, sinks: &Sinks, requested: &AtomicBool) -> Option<Ending> {
    loop {
        for _ in 0..WAITS_PER_LOOK {
            if vm.has_ended_within(WAIT) {
                return Some(Ending::VmEnded);
            }
            if region.is_some_and(TraceRegion::is_cut) {
                return Some(Ending::RegionCut);
            }
            if requested.load(Ordering::Relaxed) {
                return None;
            }
        }
        // What cannot be read now may be in a second; the end is seen above.
        if let Ok(Some(look)) = vm.look() {
            sinks.take(&look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_clock::{ClockParameters, DebugfsVcpu, HostTime, VcpuTsc};

    fn look(vcpus: &[(u32, i64)], threads: &[(u32, u32)]) -> Look {
        let tsc = |offset| Some(VcpuTsc { offset, ratio: 0, fraction_bits: 0 });
        let vcpu = |&(vcpu, offset)| DebugfsVcpu { vcpu, thread: None, tsc: tsc(offset) };
        Look { vcpus: vcpus.iter().map(vcpu).collect(), threads: threads.to_vec() }
    }

    #[test]
    fn threads_and_offsets_are_followed_and_what_is_gone_stays_known() {
        let parameters = ClockParameters {
            time: HostTime::Tsc,
            frequency: 1_000_000_000,
            bound_ns: 1,
            guest_tsc_hz: 1_000_000_000,
            first_offsets: Vec::new(),
            offset_honoured: true,
        };
        let clocks = Arc::new(VcpuClocks::new("vm0", 2, parameters, Box::new(|_, _, _| ())));
        let sinks = Sinks { threads: VcpuThreads::default(), clocks: Arc::clone(&clocks) };

        sinks.take(&look(&[(0, -5), (1, -5)], &[(0, 70)]));
        sinks.take(&look(&[(0, -5), (1, -9)], &[(1, 71)]));
        sinks.take(&look(&[(0, -5)], &[(0, 72)]));

        let threads = sinks.threads.lock().unwrap().clone();
        assert_eq!(threads.current(), [(0, 72), (1, 71)]);
        assert_eq!(threads.earlier().collect::<Vec<_>>(), [(0, 70)]);
        // The last of them begins with the second look, before which the first of the vCPU's cannot be trusted.
        assert_eq!(clocks.epochs().iter().map(|epoch| epoch.vcpu).collect::<Vec<_>>(), [0, 1, 1, 1]);
    }
}
