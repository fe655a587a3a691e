//! The ring of a guest's own kernel, in memory that the guest writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::guest_ring::run(data));
