//! Answers of a VM, which may be another user's, as `ctl`, `top` and `metrics` show them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::control_answer::run(data));
