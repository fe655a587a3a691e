//! A format file of a host kernel's event, and records that it is to be read by.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::event_format::run(data));
