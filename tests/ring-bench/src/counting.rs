//! One case and nothing else, so that a program which runs this one can count what the case takes.

use crate::ring_cases;
use crate::sampling::{CHUNK, CHUNKS, Case, TickRate, chunk_of, sample};
use crate::user_level;
use anyhow::Context;
use std::hint::black_box;

/// Takes so many samples of the case that is called `key`.
///
/// # Errors
/// When there is no such case, or records were lost.
pub fn run(key: &str, samples: u32) -> anyhow::Result<()> {
    let rate = TickRate::measure();
    let mut cases = vec![call_case(rate), user_level::locked_case(rate)?];
    cases.extend(ring_cases::floor_cases(rate)?);
    cases.extend(ring_cases::cases(rate)?);
    let case = cases.iter_mut().find(|case| case.key == key).with_context(|| format!("there is no case {key}"))?;
    for _ in 0..samples {
        (case.sample)()?;
    }
    println!("{}", u64::from(samples) * CHUNK * CHUNKS as u64);
    Ok(())
}

/// What stands around every case: the loop, and a call.
fn call_case(rate: TickRate) -> Case {
    let sample = move || {
        let took = sample(|| {
            chunk_of(|number| {
                black_box(returns(black_box(&number), number));
            })
        });
        Ok(rate.nanoseconds(took))
    };
    Case { key: "floor/call", label: "loop and call".to_owned(), sample: Box::new(sample) }
}

#[inline(never)]
fn returns(_: &u64, number: u64) -> bool {
    black_box(number);
    true
}
