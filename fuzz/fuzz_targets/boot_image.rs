//! A kernel and an initrd, put into a guest's memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::boot_image::run(data));
