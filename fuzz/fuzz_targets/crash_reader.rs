//! A region whose host or guest has died, as a file that holds anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::crash_reader::run(data));
