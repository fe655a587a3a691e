//! A recording whose description and streams hold anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::trace_folder::run(data));
