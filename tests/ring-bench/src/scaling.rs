//! Several producers at once, and rings of several sizes.

use std::sync::{Arc, Barrier};

use anyhow::Context;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use shared_ring::layout::Mode;

use crate::ring_cases::{Ring, SUB_BUFFER_SIZE, SUB_BUFFERS, sample_ring};
use crate::sampling::{Case, Measured, TickRate, median, ticks};

/// What an event costs while `producers` threads record.
#[derive(Clone, Debug, Serialize)]
pub struct Scaling {
    /// Number of threads, each on its own CPU.
    pub producers: usize,
    /// Each on its own ring, CPU-local atomics: nanoseconds per event of one thread, median over turns and threads.
    pub own_rings: f64,
    /// Nanoseconds with one producer over nanoseconds with this many: 1 is perfect.
    pub efficiency: f64,
    /// All on one ring, SMP atomics: what per-CPU rings are for.
    pub shared_ring: f64,
}

/// Measures 1, 2, 4, … producers up to the number of `cpus`.
///
/// # Errors
/// When there is no memory or a thread cannot be started.
pub fn scaling(cpus: &[usize], rate: TickRate, repetitions: usize) -> anyhow::Result<Vec<Scaling>> {
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |&count| Some(count * 2)).take_while(|&count| count < cpus.len()).collect();
    counts.push(cpus.len());
    let rings: Vec<Arc<Ring>> = cpus.iter().map(|_| flight_recorder().map(Arc::new)).collect::<anyhow::Result<_>>()?;
    let shared: Vec<Arc<Ring>> =
        vec![Arc::new(Ring::new(SUB_BUFFER_SIZE, 4 * SUB_BUFFERS, Mode::FlightRecorder)?); cpus.len()];
    let mut own_samples = vec![Vec::new(); counts.len()];
    let mut shared_samples = vec![Vec::new(); counts.len()];
    for turn in 0..=repetitions {
        for (index, &count) in counts.iter().enumerate() {
            let own = together(&cpus[..count], &rings, false)?;
            let one = together(&cpus[..count], &shared, true)?;
            if turn > 0 {
                own_samples[index].extend(own);
                shared_samples[index].extend(one);
            }
        }
    }
    let own: Vec<f64> = own_samples.iter_mut().map(|samples| rate.nanoseconds(median(samples))).collect();
    Ok(counts
        .iter()
        .zip(&mut shared_samples)
        .enumerate()
        .map(|(index, (&producers, shared))| Scaling {
            producers,
            own_rings: own[index],
            efficiency: own[0] / own[index],
            shared_ring: rate.nanoseconds(median(shared)),
        })
        .collect())
}

fn flight_recorder() -> anyhow::Result<Ring> {
    Ring::new(SUB_BUFFER_SIZE, SUB_BUFFERS, Mode::FlightRecorder)
}

/// Ticks per event of each thread, all of them recording at the same time.
fn together(cpus: &[usize], rings: &[Arc<Ring>], smp: bool) -> anyhow::Result<Vec<f64>> {
    let barrier = Arc::new(Barrier::new(cpus.len()));
    let threads: Vec<_> = cpus
        .iter()
        .zip(rings)
        .map(|(&cpu, ring)| {
            let (barrier, ring) = (Arc::clone(&barrier), Arc::clone(ring));
            std::thread::spawn(move || {
                let pinned = pin(cpu);
                barrier.wait();
                pinned?;
                if smp {
                    // Whoever is descheduled in the middle of a record makes the others lose theirs.
                    return Ok(sample_ring::<_, 2>(&ring, &ring.smp(), ticks));
                }
                let took = sample_ring::<_, 2>(&ring, &ring.local(), ticks);
                ring.check_nothing_lost()?;
                Ok(took)
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a producer panicked"))?).collect()
}

/// Keeps the calling thread, and the programs that it starts, on `cpu`.
///
/// # Errors
/// When the kernel refuses.
pub fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

/// Rings of 4 sub-buffers, 256 KiB to 64 MiB altogether: what larger rings cost in caches and address translation.
///
/// # Errors
/// When there is no memory.
pub fn ring_sizes(rate: TickRate, repetitions: usize) -> anyhow::Result<Vec<Measured>> {
    let sizes: [(&str, u64, u32); 5] = [
        ("size/256K", 64 << 10, 4),
        ("size/1M", 256 << 10, 4),
        ("size/4M", 1 << 20, 4),
        ("size/16M", 4 << 20, 4),
        ("size/64M", 4 << 20, 16),
    ];
    let mut cases = Vec::new();
    for (key, sub_buffer_size, sub_buffers) in sizes {
        let ring = Ring::new(sub_buffer_size, sub_buffers, Mode::FlightRecorder)?;
        let label = format!("{} KiB", ring.geometry.data_size() >> 10);
        let sample = move || {
            let took = sample_ring::<_, 2>(&ring, &ring.local(), ticks);
            ring.check_nothing_lost()?;
            Ok(rate.nanoseconds(took))
        };
        cases.push(Case { key, label, sample: Box::new(sample) });
    }
    crate::sampling::interleave(&mut cases, repetitions)
}
