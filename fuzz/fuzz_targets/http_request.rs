//! Heads of requests to `strata metrics` and `strata open`, of whatever page or program connects.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::http_request::run(data));
