//! Partition tables and ext4 file systems that a guest is to boot from.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strata_fuzz::bootable_disk::run(data));
