//! A compressed stream of a recording, forged or damaged.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::compressed_stream::run(data));
