//! Observing whether the TSCs of a host's CPUs agree.

use crate::tsc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a comparison of CPUs showed.
///
/// ```
/// use clock_sync::warp;
/// use std::time::Duration;
///
/// // A monitor gives each thread a CPU of its own; the threads here run where the scheduler puts them.
/// let warp = warp::observe(2, Duration::from_millis(1), |_thread| ());
/// println!("TSCs differ by {} ticks at most, {} readings", warp.largest_step_back, warp.readings);
/// # assert!(warp.readings > 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warp {
    /// Largest step back that was seen when the CPUs read the TSC one after the other, ticks.
    pub largest_step_back: u64,
    /// Shortest time between two readings on one CPU, ticks: what a single reading can be off by.
    pub shortest_reading: u64,
    /// Number of readings.
    pub readings: u64,
}

/// Has `threads` threads read the TSC in turn for `duration`, each one's reading after the last one's, and looks for
/// readings that lie before an earlier one, as Linux does when it brings up a CPU. `place(n)` is called first on thread
/// *n*, to bind it to a CPU.
#[must_use]
pub fn observe(threads: usize, duration: Duration, place: impl Fn(usize) + Sync) -> Warp {
    let last = Mutex::new(0_u64);
    let over = AtomicBool::new(false);
    let together = Barrier::new(threads);
    let observe_one = &|number| {
        place(number);
        let mut own = Warp { shortest_reading: u64::MAX, ..Warp::default() };
        together.wait();
        let start = Instant::now();
        while !over.load(Ordering::Relaxed) {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            let now = tsc::read_ordered();
            own.largest_step_back = own.largest_step_back.max(last.saturating_sub(now));
            *last = now.max(*last);
            drop(last);
            own.shortest_reading = own.shortest_reading.min(tsc::read_ordered().saturating_sub(now));
            own.readings += 1;
            if start.elapsed() >= duration {
                over.store(true, Ordering::Relaxed);
            }
        }
        own
    };
    let all = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|number| scope.spawn(move || observe_one(number))).collect();
        started.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    all.into_iter().fold(Warp { shortest_reading: u64::MAX, ..Warp::default() }, |sum, one| Warp {
        largest_step_back: sum.largest_step_back.max(one.largest_step_back),
        shortest_reading: sum.shortest_reading.min(one.shortest_reading),
        readings: sum.readings + one.readings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_never_steps_back() {
        let warp = observe(1, Duration::from_millis(2), |_| ());

        assert_eq!(warp.largest_step_back, 0);
        assert!(warp.readings > 1 && warp.shortest_reading > 0);
    }
}
