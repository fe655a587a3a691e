//! Which vCPUs may have recorded since rings were looked at: those whose threads have run since.
//!
//! A guest of many vCPUs and many processes has a ring for each of either, and nothing happens in most. A vCPU that
//! does nothing stays in `KVM_RUN`, so that exits do not tell; the CPU time of its thread does, to the nanosecond, and
//! the guest takes no part in it.
#![allow(unsafe_code)] // The clock of another thread is requested by a number that no library makes up.

use super::threads_of_vcpus::ThreadsOfVcpus;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

/// Looks after which every ring is looked at once, whoever ran. An application's thread that was moved to another CPU in
/// the middle of a record commits it to the ring of the first one, whose thread may sleep for long by then.
const EVERY_RING: u64 = 64;

/// The host threads of a VM's vCPUs, as they are found.
pub type VcpuThreads = Arc<Mutex<ThreadsOfVcpus>>;

/// Follows the vCPUs of one VM.
#[derive(Debug, Default)]
pub struct VcpuActivity {
    threads: VcpuThreads,
    /// Number of the latest look.
    look: u64,
    /// Of each vCPU, the CPU time of its thread, ns, if it is known, and the latest look by which it had run.
    vcpus: Vec<(Option<u64>, u64)>,
}

impl VcpuActivity {
    /// Follows `threads`. A vCPU whose thread is not there, or is not of this process, is taken to run always.
    #[must_use]
    pub fn of(threads: VcpuThreads) -> Self {
        Self { threads, ..Self::default() }
    }

    /// Notes which of `vcpus` vCPUs have run. To be called before any ring is read; returns the number of this look.
    pub fn look(&mut self, vcpus: u32) -> u64 {
        let mut times = vec![None; vcpus as usize];
        for &(vcpu, thread) in self.threads.lock().unwrap_or_else(PoisonError::into_inner).current() {
            if let Some(time) = times.get_mut(vcpu as usize) {
                *time = thread_time(thread);
            }
        }
        self.note(&times)
    }

    fn note(&mut self, times: &[Option<u64>]) -> u64 {
        self.look += 1;
        self.vcpus.resize(times.len(), (None, 0));
        for ((before, ran), &time) in self.vcpus.iter_mut().zip(times) {
            if time.is_none() || *before != time || self.look.is_multiple_of(EVERY_RING) {
                (*before, *ran) = (time, self.look);
            }
        }
        self.look
    }

    /// Whether `vcpu` may have recorded what was not there yet at the look with the number `look`; 0 is before the first.
    #[must_use]
    pub fn may_have_recorded(&self, vcpu: usize, look: u64) -> bool {
        self.vcpus.get(vcpu).is_none_or(|&(_, ran)| ran > look)
    }
}

/// CPU time of `thread` of this process, ns; `None` when there is no such thread.
fn thread_time(thread: u32) -> Option<u64> {
    // As the kernel's CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED have it (linux/posix-timers.h).
    let thread = i32::try_from(thread).ok().filter(|thread| thread >> 28 == 0)?;
    let clock = (!thread << 3) | 4 | 2;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the structure outlives the call, which writes it when it succeeds.
    let time = unsafe { (libc::clock_gettime(clock, time.as_mut_ptr()) == 0).then(|| time.assume_init()) }?;
    Some(u64::try_from(time.tv_sec).ok()? * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn vcpu_whose_time_stands_still_has_nothing_new() {
        let mut activity = VcpuActivity::default();

        let first = activity.note(&[Some(5), Some(7)]);
        let second = activity.note(&[Some(6), Some(7)]);

        let of_vcpus = |look| [0, 1].map(|vcpu| activity.may_have_recorded(vcpu, look));
        assert_eq!(of_vcpus(0), [true, true]);
        assert_eq!(of_vcpus(first), [true, false]);
        assert_eq!(of_vcpus(second), [false, false]);
    }

    #[test]
    fn vcpu_whose_thread_is_not_known_may_always_have_recorded() {
        let mut activity = VcpuActivity::default();

        let looks = [(); 2].map(|()| activity.note(&[None]));

        assert!(activity.may_have_recorded(0, looks[0]) && activity.may_have_recorded(1, looks[1]));
    }

    #[test]
    fn every_ring_is_looked_at_now_and_then() {
        let mut activity = VcpuActivity::default();

        let looks: Vec<bool> = (1..=2 * EVERY_RING)
            .map(|number| {
                activity.note(&[Some(5)]);
                activity.may_have_recorded(0, number - 1)
            })
            .collect();

        assert_eq!(looks.iter().filter(|&&looked| looked).count(), 3, "the first one, and two of 128");
    }

    #[test]
    fn thread_that_runs_has_run_and_one_that_is_not_there_is_not_known() {
        let this = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let mut activity = VcpuActivity::of(Arc::new(Mutex::new([(0, this)].into_iter().collect())));

        let look = activity.look(1);
        activity.look(1);

        assert!(activity.vcpus[0].0.is_some() && activity.may_have_recorded(0, look), "{:?}", activity.vcpus);
        // The kernel's largest number is 2^22.
        assert_eq!([1 << 23, 1 << 29].map(thread_time), [None; 2]);
    }
}
