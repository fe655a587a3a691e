//! `docs/abi.md` and the code state the same layout.
//!
//! Shows: `docs/abi.md` says what the code says.
#![allow(missing_docs, clippy::unwrap_used)] // A test.

use shared_ring::layout::{AGENT, PACKET, PROCESS_ENTRY, PROCESS_HEADER, SESSION, SUPERBLOCK};

#[test]
fn document_names_every_field_at_its_offset() {
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/abi.md")).unwrap();

    let missing: Vec<String> = [SUPERBLOCK, SESSION, AGENT, PROCESS_ENTRY, PROCESS_HEADER, PACKET]
        .iter()
        .flat_map(|structure| structure.fields.iter().map(|(field, offset)| format!("| {offset} | `{field}` |")))
        .filter(|row| !document.contains(row.as_str()))
        .collect();

    assert!(missing.is_empty(), "docs/abi.md lacks these rows: {missing:#?}");
}
