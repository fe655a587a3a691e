//! A trace region in which processes come, go, and lie.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::guest_processes::run(data));
