//! Bounding how far the TSCs of a host's CPUs disagree.

use crate::tsc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What comparing CPUs showed, each with each other.
///
/// If CPU *b* reads its TSC after it learned what *a* had read, the distance of the two readings is the time between
/// them plus what *b* is ahead of *a*. The least distance of many is the most that *b* can be ahead: nothing is assumed
/// about how long a word takes from one CPU to another. Distances add up along a path of CPUs, and the shortest path
/// counts.
///
/// ```
/// use clock_sync::skew::Comparison;
/// use std::time::Duration;
///
/// // A monitor gives each thread a CPU of its own; the threads here run where the scheduler puts them.
/// let mut comparison = Comparison::new(2);
/// comparison.observe(Duration::from_millis(1), |_thread| ());
/// println!("TSCs differ by {} ticks at most, {} readings", comparison.bound(), comparison.readings());
/// # assert!(comparison.readings() > 0);
/// ```
#[derive(Debug)]
pub struct Comparison {
    cpus: usize,
    /// By CPU that read first and CPU that read later: the least distance, ticks; [`i64::MAX`] before there is any.
    least: Vec<i64>,
    readings: u64,
}

/// A reading of one CPU, for the others to see, on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Published(AtomicU64);

impl Comparison {
    /// Of `cpus` CPUs, at least one; nothing is known yet.
    #[must_use]
    pub fn new(cpus: usize) -> Self {
        let cpus = cpus.max(1);
        Self { cpus, least: vec![i64::MAX; cpus * cpus], readings: 0 }
    }

    /// Number of readings.
    #[must_use]
    pub const fn readings(&self) -> u64 {
        self.readings
    }

    /// Has a thread for each CPU read its TSC and what the others have read, for `duration`. `place(n)` is called first
    /// on thread *n*, to bind it to a CPU. What was observed before still counts.
    pub fn observe(&mut self, duration: Duration, place: impl Fn(usize) + Sync) {
        let published: Vec<Published> = (0..self.cpus).map(|_| Published::default()).collect();
        let over = AtomicBool::new(false);
        let together = Barrier::new(self.cpus);
        let observe_one = &|cpu: usize| {
            place(cpu);
            let mut to_here = vec![i64::MAX; published.len()];
            let mut readings = 0;
            let publish = |now| published[cpu].0.store(now, Ordering::Release);
            publish(tsc::read_ordered());
            together.wait();
            let start = Instant::now();
            // Once at least, so that each CPU has met each.
            loop {
                // From its own place on, so that not all ask one CPU at a time.
                for other in (cpu..published.len()).chain(0..cpu) {
                    // Pairs with the release in `publish`: what was read there was read before.
                    let then = published[other].0.load(Ordering::Acquire);
                    let now = tsc::read_ordered();
                    publish(now);
                    to_here[other] = to_here[other].min(now.wrapping_sub(then) as i64);
                    readings += 1;
                }
                if over.load(Ordering::Relaxed) || start.elapsed() >= duration {
                    over.store(true, Ordering::Relaxed);
                    break;
                }
            }
            (to_here, readings)
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..self.cpus).map(|cpu| scope.spawn(move || observe_one(cpu))).collect();
            started.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
        });
        for (cpu, (to_here, readings)) in all.into_iter().enumerate() {
            self.readings += readings;
            to_here.into_iter().enumerate().for_each(|(first, distance)| self.met(first, cpu, distance));
        }
    }

    /// CPU `later` read `distance` ticks more than what it knew that `first` had read.
    fn met(&mut self, first: usize, later: usize, distance: i64) {
        let least = &mut self.least[first * self.cpus + later];
        *least = (*least).min(distance);
    }

    /// How far the times of two readings can be wrong against each other, ticks: on two CPUs the most that one can be
    /// ahead of the other, on one CPU the shortest time between two readings. [`u64::MAX`] for CPUs that were not
    /// compared.
    #[must_use]
    pub fn bound(&self) -> u64 {
        let mut shortest = self.least.clone();
        // Floyd and Warshall's algorithm.
        for between in 0..self.cpus {
            let onward = shortest[between * self.cpus..][..self.cpus].to_vec();
            for from_first in shortest.chunks_mut(self.cpus) {
                let to_there = from_first[between];
                for (least, &onward) in from_first.iter_mut().zip(&onward) {
                    if to_there != i64::MAX && onward != i64::MAX {
                        *least = (*least).min(to_there.saturating_add(onward));
                    }
                }
            }
        }
        let longest = shortest.into_iter().max().unwrap_or(i64::MAX);
        if longest == i64::MAX { u64::MAX } else { longest.max(0).unsigned_abs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of CPUs whose readings on one CPU lie 20 ticks apart, with `distances` between two.
    fn comparison(cpus: usize, distances: &[(usize, usize, i64)]) -> Comparison {
        let mut comparison = Comparison::new(cpus);
        (0..cpus).for_each(|cpu| comparison.met(cpu, cpu, 20));
        distances.iter().for_each(|&(first, later, distance)| comparison.met(first, later, distance));
        comparison
    }

    #[test]
    fn skew_is_as_much_as_the_cpu_that_is_behind_leaves_open() {
        // The second CPU is 70 ticks ahead, a word takes 90: no reading steps back.
        let comparison = comparison(2, &[(0, 1, 160), (1, 0, 20), (0, 1, 400)]);

        assert_eq!(comparison.bound(), 160);
    }

    #[test]
    fn distances_add_up_along_the_shortest_path() {
        let near = [(0, 1, 50), (1, 0, 50), (1, 2, 60), (2, 1, -10)];

        let comparison = comparison(3, &[&near[..], &[(0, 2, 9_000), (2, 0, 9_000)]].concat());

        assert_eq!(comparison.bound(), 110);
    }

    #[test]
    fn one_cpu_is_as_wrong_as_a_reading_takes() {
        assert_eq!(comparison(1, &[]).bound(), 20);
    }

    #[test]
    fn cpus_that_never_met_have_no_bound() {
        assert_eq!(comparison(2, &[(0, 1, 50)]).bound(), u64::MAX);
    }

    #[test]
    fn observed_cpus_have_a_bound() {
        let mut comparison = Comparison::new(2);

        comparison.observe(Duration::from_millis(2), |_| ());

        assert!(comparison.readings() > 4 && (1..u64::MAX).contains(&comparison.bound()), "{comparison:?}");
    }
}
