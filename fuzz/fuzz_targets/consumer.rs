//! A ring whose memory changes between the calls of its reader, and between check and use.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::consumer::run(data));
