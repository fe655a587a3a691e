//! The consumer of a ring, with another thread changing the ring's memory all the time.
//!
//! Inputs are those of [`consumer`](crate::consumer): its steps are taken by this thread, its changes by the other one,
//! over and over.

use crate::consumer::{Checked, REPLACE, STEPS, rings};
use crate::script::{Input, Op, Script};
use shared_ring::host::memory::HostMemory;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Most steps of an input, which are taken three times each.
const MAX_STEPS: usize = 64;

/// Ends the changes when the steps end, also where a finding ends them.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives an input to the reader and checks what must hold.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let rings = rings(input.byte());
    let memory = HostMemory::private(rings.ring_size());
    let (changes, steps): (Vec<Op<'_>>, Vec<Op<'_>>) =
        Script::new(input.0, STEPS).partition(|op| !matches!(op, Op::Step { .. }));
    if changes.is_empty() || steps.is_empty() {
        return;
    }
    let rounds = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                changes.iter().for_each(|change| change.apply(&memory));
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let ended = Ended(&done);
        while rounds.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let mut checked = Checked::of_ring(memory.clone(), rings, false);
        for op in steps.iter().cycle().take(3 * steps.len().min(MAX_STEPS)) {
            match *op {
                Op::Step { kind: REPLACE, argument } => {
                    checked = Checked::of_ring(memory.clone(), rings, argument % 2 == 1);
                }
                Op::Step { kind, argument } => checked.step(kind, argument, || {}),
                _ => {}
            }
        }
        drop(ended);
        // The scope alone waits for the closure, not for the thread's end: what is freed there looks leaked until then.
        changer.join().expect("changing memory does not panic");
    });
}
