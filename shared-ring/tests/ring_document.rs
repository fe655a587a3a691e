//! `docs/ring.md` names every mutant, so that each rule of the ring is explained and shown to be needed.
//!
//! Shows: `docs/ring.md` explains every mutant.

use shared_ring::Mutant;

#[test]
fn every_mutant_is_explained() {
    let text = include_str!("../../docs/ring.md");

    let missing: Vec<_> = Mutant::ALL.iter().filter(|mutant| !text.contains(&format!("`{mutant:?}`"))).collect();

    assert!(missing.is_empty(), "docs/ring.md does not name {missing:?}");
}
