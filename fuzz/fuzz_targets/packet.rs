//! One packet with the event types that it should consist of.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::packet::run(data));
