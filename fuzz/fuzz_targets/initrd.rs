//! The reading of an initrd, which may come out of a guest's disk, for its `/init`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::initrd::run(data));
