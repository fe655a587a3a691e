//! Fields of the host kernel's events, of any declaration, place and size, and records of such types.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::event_format::run(data));
