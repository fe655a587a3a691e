//! Requests to a running VM, as its control thread reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::control_request::run(data));
