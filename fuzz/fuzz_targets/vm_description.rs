//! `vm.json` in the folder of a VM that may be another user's, as `ps` and whoever looks for a VM read it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::vm_description::run(data));
