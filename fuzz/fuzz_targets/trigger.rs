//! Expressions of triggers and of filters, as the command line gives them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::trigger::run(data));
