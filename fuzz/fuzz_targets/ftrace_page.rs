//! A page of the host kernel's trace buffer, and its records as fields.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::ftrace_page::run(data));
