//! The machine's devices, by ports, registers and virtqueues in a memory that the guest writes as it likes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::devices::run(data));
