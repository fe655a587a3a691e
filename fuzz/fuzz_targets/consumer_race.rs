//! A ring whose memory another thread changes all the time while it is read.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::consumer_race::run(data));
