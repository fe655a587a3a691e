//! One file with a recording, forged or damaged.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::packed_trace::run(data));
