//! Images of kernels, compressed.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::kernel_image::run(data));
