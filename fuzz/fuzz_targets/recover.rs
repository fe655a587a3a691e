//! `strata recover` on a file that holds anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::recover::run(data));
