//! What a QMP server says to `strata attach --qmp`, up to the port for a region.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::qmp_reply::run(data));
