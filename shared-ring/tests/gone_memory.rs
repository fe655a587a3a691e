//! A producer whose ring's memory is gone.
//!
//! Shows: A producer gives up on memory that is gone.
#![allow(unsafe_code, missing_docs, clippy::expect_used)] // Tests.

use shared_ring::layout::{Geometry, Mode};
use shared_ring::producer::{NotReserved, Producer};
use shared_ring::storage::{ATTEMPTS, Storage};
use std::cell::Cell;

/// Memory that is not there any more, as a PCI BAR that is not decoded: what is loaded is all ones, what is stored is gone.
/// Counts the accesses.
#[derive(Clone, Copy, Debug)]
struct Gone<'c>(&'c Cell<usize>);

impl Gone<'_> {
    fn step(&self) {
        self.0.set(self.0.get() + 1);
        assert!(self.0.get() < 64 * ATTEMPTS, "a producer without end");
    }
}

impl Storage for Gone<'_> {
    unsafe fn load(&self, _: usize) -> u64 {
        self.step();
        u64::MAX
    }
    unsafe fn load_acquire(&self, _: usize) -> u64 {
        self.step();
        u64::MAX
    }
    unsafe fn store(&self, _: usize, _: u64) {
        self.step();
    }
    unsafe fn store_release(&self, _: usize, _: u64) {
        self.step();
    }
    unsafe fn compare_exchange(&self, _: usize, current: u64, _: u64) -> bool {
        self.step();
        current == u64::MAX
    }
    unsafe fn compare_exchange_shared(&self, _: usize, current: u64, _: u64) -> bool {
        self.step();
        current == u64::MAX
    }
    unsafe fn fetch_add(&self, _: usize, _: u64) -> u64 {
        self.step();
        u64::MAX
    }
    fn fence_release(&self) {}
    unsafe fn write(&self, _: usize, _: &[u8]) {
        self.step();
    }
}

#[test]
fn producer_gives_up_on_memory_that_is_gone() {
    for mode in [Mode::Discard, Mode::FlightRecorder] {
        let accesses = Cell::new(0);
        // SAFETY: nothing is accessed.
        let producer = unsafe { Producer::new(Gone(&accesses), Geometry::new(131_072, 16).expect("a geometry"), mode) };

        let refused = producer.try_reserve(|| Some(1 << 40), 5, 8).err();
        let recorded = producer.record(|| 1 << 40, 5, &[0; 8]);
        producer.force_switch(|| 1 << 40);
        producer.poll_flush_request(|| 1 << 40);

        assert_eq!((refused, recorded), (Some(NotReserved::Stuck), false), "{mode:?}");
    }
}
