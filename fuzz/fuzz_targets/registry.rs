//! An event registry that is rewritten while it is followed.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::registry::run(data));
