//! The monitor of docs/embedding.md, run on this machine's KVM.

use shared_ring::layout::MAGIC;

#[path = "../examples/embedding.rs"]
mod embedding;

#[test]
fn guest_finds_the_region_by_cpuid_and_reads_it() {
    let said = embedding::run().unwrap();

    assert_eq!(said, MAGIC.to_le_bytes());
}
