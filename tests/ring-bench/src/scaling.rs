//! Several producers at once, and rings of several sizes.

use crate::ring_cases::{Ring, SUB_BUFFER_SIZE, SUB_BUFFERS, probe, sample_ring};
use crate::sampling::{Case, Measured, TickRate, median, ordered_ticks, ticks};
use anyhow::Context;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use shared_ring::layout::Mode;
use shared_ring::producer::Producer;
use shared_ring::storage::Storage;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// What an event costs while `producers` threads record.
#[derive(Clone, Debug, Serialize)]
pub struct Scaling {
    /// Number of threads, each on its own CPU.
    pub producers: usize,
    /// Each on its own ring, CPU-local atomics: nanoseconds per event of one thread, median over turns and threads.
    pub own_rings: f64,
    /// Nanoseconds with one producer over nanoseconds with this many: 1 is perfect.
    pub efficiency: f64,
    /// What `rdtsc` alone takes while as many threads do nothing else, ns: a processor slows down when more of it is
    /// used.
    pub clock: f64,
    /// `efficiency` over that of `rdtsc` alone: what is left is the rings'.
    pub beside_clock: f64,
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
    let one_ring = Arc::new(Ring::new(SUB_BUFFER_SIZE, 4 * SUB_BUFFERS, Mode::FlightRecorder)?);
    let shared: Vec<Arc<Ring>> = std::iter::repeat_n(one_ring, cpus.len()).collect();
    let [mut own_samples, mut shared_samples, mut clock_samples] =
        [const { Vec::new() }; 3].map(|none| vec![none; counts.len()]);
    for turn in 0..=repetitions {
        for (index, &count) in counts.iter().enumerate() {
            let own = together(&cpus[..count], &rings, Work::Own)?;
            let one = together(&cpus[..count], &shared, Work::Shared)?;
            let clock = together(&cpus[..count], &rings, Work::Clock)?;
            if turn > 0 {
                own_samples[index].extend(own);
                shared_samples[index].extend(one);
                clock_samples[index].extend(clock);
            }
        }
    }
    let [own, clock, shared] = [own_samples, clock_samples, shared_samples].map(|samples| {
        samples.into_iter().map(|mut samples| rate.nanoseconds(median(&mut samples))).collect::<Vec<f64>>()
    });
    Ok((0..counts.len())
        .map(|index| Scaling {
            producers: counts[index],
            own_rings: own[index],
            efficiency: own[0] / own[index],
            clock: clock[index],
            beside_clock: own[0] / own[index] * clock[index] / clock[0],
            shared_ring: shared[index],
        })
        .collect())
}

fn flight_recorder() -> anyhow::Result<Ring> {
    Ring::new(SUB_BUFFER_SIZE, SUB_BUFFERS, Mode::FlightRecorder)
}

/// Events in a chunk of a thread that has a ring for itself.
const OWN_EVENTS: u64 = 200;

/// Events in a chunk of one of several threads that share a ring: few, since a record that many threads contend for
/// takes hundreds of times as long as another one, and a chunk must still be much shorter than a time slice.
const SHARED_EVENTS: u64 = 20;

/// A chunk that takes longer than this was interrupted, ticks (about half a millisecond).
const INTERRUPTED: u64 = 1_000_000;

/// What threads do together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Each records into a ring of its own.
    Own,
    /// All record into one ring.
    Shared,
    /// They read the clock.
    Clock,
}

/// When a chunk began and ended, ticks.
type Span = (u64, u64);

/// Ticks per event of each thread, from the chunks during which all the other threads recorded too. A thread whose
/// neighbours were descheduled all the time has none.
fn together(cpus: &[usize], rings: &[Arc<Ring>], work: Work) -> anyhow::Result<Vec<f64>> {
    let events = if work == Work::Shared { SHARED_EVENTS } else { OWN_EVENTS };
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
                match work {
                    // Whoever is descheduled in the middle of a record makes the others lose theirs.
                    Work::Shared => Ok(record_for_a_while(&ring.smp(), events)),
                    Work::Clock => Ok(for_a_while(events, |_| {
                        black_box(ticks());
                    })),
                    Work::Own => {
                        let spans = record_for_a_while(&ring.local(), events);
                        ring.check_nothing_lost()?;
                        Ok(spans)
                    }
                }
            })
        })
        .collect();
    let spans = threads
        .into_iter()
        .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a producer panicked"))?)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let medians = (0..spans.len()).map(|thread| median(&mut concurrent_chunks(&spans, thread, events)));
    Ok(medians.filter(|took| took.is_finite()).collect())
}

/// Records chunk after chunk, of so many `events`, into a flight recorder.
fn record_for_a_while<S: Storage>(producer: &Producer<S>, events: u64) -> Vec<Span> {
    let producer = black_box(producer);
    for_a_while(events, |number| {
        black_box(probe::<S, 2>(producer, ticks, number));
    })
}

/// Does chunk after chunk of so many operations.
fn for_a_while(operations: u64, mut operation: impl FnMut(u64)) -> Vec<Span> {
    let begin = Instant::now();
    let mut spans = Vec::new();
    while begin.elapsed() < Duration::from_millis(30) {
        let start = ordered_ticks();
        for number in 0..operations {
            operation(number);
        }
        spans.push((start, ordered_ticks()));
    }
    spans
}

/// Ticks per event of those chunks of `thread`, of so many `events`, during which each of the others was in an
/// undisturbed chunk of its own.
#[allow(clippy::cast_precision_loss, reason = "a chunk takes far less than 2^53 ticks")]
fn concurrent_chunks(spans: &[Vec<Span>], thread: usize, events: u64) -> Vec<f64> {
    let undisturbed: Vec<Vec<Span>> = spans
        .iter()
        .map(|spans| spans.iter().copied().filter(|(begin, end)| end - begin < INTERRUPTED).collect())
        .collect();
    // Chunks of one thread follow each other: the first that ends after `begin` is the only one to look at.
    let overlaps = |&(begin, end): &Span, others: &[Span]| {
        let first = others.partition_point(|&(_, to)| to <= begin);
        others.get(first).is_some_and(|&(from, _)| from < end)
    };
    undisturbed[thread]
        .iter()
        .filter(|span| {
            let mut others = undisturbed.iter().enumerate().filter(|&(other, _)| other != thread);
            others.all(|(_, others)| overlaps(span, others))
        })
        .map(|(begin, end)| (end - begin) as f64 / events as f64)
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_count_while_the_other_thread_records() {
        let (alone, beside) = ((0, 100), (1000, 1200));
        let spans = [vec![alone, beside], vec![(1100, 1200), (1300, 1400)]];

        assert_eq!(concurrent_chunks(&spans, 0, 100), [2.0]);
    }
}
