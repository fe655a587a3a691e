//! Measuring on a machine that others use too: short chunks, medians, and cases that take turns.
//!
//! A *chunk* is a few hundred microseconds of one case, too short to be interrupted often. A *sample* is the median of
//! many chunks, so that an interrupted one does not show. The cases take turns, one sample each, so that whatever slows
//! the machine down for a while slows all of them down; what a case costs is the median of its samples.
#![allow(unsafe_code)] // Reads the TSC.

use anyhow::Context;
use core::arch::x86_64::{_mm_lfence, _rdtsc};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Operations in a chunk.
pub const CHUNK: u64 = 5_000;

/// Chunks in a sample.
pub const CHUNKS: usize = 41;

/// The TSC, after everything before it and before everything after it.
#[inline(always)]
pub fn ordered_ticks() -> u64 {
    // SAFETY: every x86-64 processor has both instructions.
    unsafe {
        _mm_lfence();
        let ticks = _rdtsc();
        _mm_lfence();
        ticks
    }
}

/// The TSC, with no ordering: what a producer stamps its records with.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { _rdtsc() }
}

/// How fast the TSC runs.
#[derive(Clone, Copy, Debug)]
pub struct TickRate {
    per_nanosecond: f64,
}

#[allow(clippy::cast_precision_loss, reason = "counts and times of a benchmark stay far below 2^53")]
impl TickRate {
    /// Compares the TSC with the monotonic clock for a fifth of a second.
    pub fn measure() -> Self {
        let (clock, begin) = (Instant::now(), ordered_ticks());
        std::thread::sleep(Duration::from_millis(200));
        let (elapsed, end) = (clock.elapsed(), ordered_ticks());
        Self { per_nanosecond: (end - begin) as f64 / elapsed.as_nanos() as f64 }
    }

    /// Ticks per second.
    pub fn hertz(self) -> f64 {
        self.per_nanosecond * 1e9
    }

    /// Nanoseconds that `ticks` are.
    pub fn nanoseconds(self, ticks: f64) -> f64 {
        ticks / self.per_nanosecond
    }
}

/// Ticks per operation: the median over [`CHUNKS`] calls of `chunk`, which does [`CHUNK`] operations and returns the
/// ticks that they took.
#[allow(clippy::cast_precision_loss, reason = "as above")]
pub fn sample(mut chunk: impl FnMut() -> u64) -> f64 {
    let mut took: Vec<f64> = (0..CHUNKS).map(|_| chunk() as f64 / CHUNK as f64).collect();
    median(&mut took)
}

/// The ticks that [`CHUNK`] calls of `operation` take; it is given the number of the call.
#[inline(always)]
pub fn chunk_of(mut operation: impl FnMut(u64)) -> u64 {
    let begin = ordered_ticks();
    for number in 0..CHUNK {
        operation(number);
    }
    ordered_ticks() - begin
}

/// The median; NaN when there is nothing.
pub fn median(values: &mut [f64]) -> f64 {
    quantile(values, 1, 2)
}

/// The value below which `numerator / denominator` of `values` lie; NaN when there is nothing. Sorts them.
pub fn quantile(values: &mut [f64], numerator: usize, denominator: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get((values.len() * numerator / denominator).min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Something that is measured in turn with others.
pub struct Case {
    /// Name of the case in the results: `group/name`.
    pub key: &'static str,
    /// What it is, for readers.
    pub label: String,
    /// Takes one sample: nanoseconds per operation.
    pub sample: Box<dyn FnMut() -> anyhow::Result<f64>>,
}

/// What a case cost.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// [`Case::key`].
    pub key: &'static str,
    /// [`Case::label`].
    pub label: String,
    /// Median of the samples, nanoseconds per operation.
    pub nanoseconds: f64,
    /// First and third quartile of the samples.
    pub quartiles: [f64; 2],
    /// Number of samples.
    pub samples: usize,
}

impl Measured {
    /// The summary of `samples`.
    pub fn of(key: &'static str, label: &str, mut samples: Vec<f64>) -> Self {
        Self {
            key,
            label: label.to_owned(),
            nanoseconds: median(&mut samples),
            quartiles: [quantile(&mut samples, 1, 4), quantile(&mut samples, 3, 4)],
            samples: samples.len(),
        }
    }
}

/// Lets `cases` take `repetitions` turns, after one that only warms up.
///
/// # Errors
/// When a case fails.
pub fn interleave(cases: &mut [Case], repetitions: usize) -> anyhow::Result<Vec<Measured>> {
    let mut samples = vec![Vec::with_capacity(repetitions); cases.len()];
    for turn in 0..=repetitions {
        for (case, samples) in cases.iter_mut().zip(&mut samples) {
            let took = (case.sample)().with_context(|| case.label.clone())?;
            if turn > 0 {
                samples.push(took);
            }
        }
    }
    Ok(cases.iter().zip(samples).map(|(case, samples)| Measured::of(case.key, &case.label, samples)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_odd_number_is_the_middle_one() {
        assert_eq!(median(&mut [3.0, 1.0, 20.0]), 3.0);
    }

    #[test]
    fn quantile_of_nothing_is_not_a_number() {
        assert!(quantile(&mut [], 1, 4).is_nan());
    }

    #[test]
    fn interleaved_cases_take_turns_after_a_warm_up() {
        let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let mut cases: Vec<Case> = [("a", 1.0), ("b", 2.0)]
            .into_iter()
            .map(|(key, took)| {
                let order = std::rc::Rc::clone(&order);
                let sample = Box::new(move || {
                    order.borrow_mut().push(key);
                    Ok(took)
                });
                Case { key, label: key.to_owned(), sample }
            })
            .collect();

        let measured = interleave(&mut cases, 2).unwrap();

        assert_eq!(*order.borrow(), ["a", "b", "a", "b", "a", "b"]);
        assert_eq!((measured[1].nanoseconds, measured[1].samples), (2.0, 2));
    }
}
