//! The C view of the region, generated so that no number is typed twice.

use crate::layout::{
    ABI_VERSION, AGENT, AGENT_ALIVE, AGENT_GONE, CLOCK_ENTRY_SIZE, CLOCK_OFFSET, MAGIC, MAX_EVENTS, PACKET, PAGE_SIZE,
    PROCESS_ACTIVE, PROCESS_CLOSED, PROCESS_ENTRY, PROCESS_FREE, PROCESS_HEADER, SESSION, SESSION_SLOT_SIZE,
    SESSION_SLOTS, SESSION_TABLE_OFFSET, SUPERBLOCK,
};
use std::fmt::Write;
use std::string::{String, ToString};

/// A C header with the layout's constants, and with `more` of them: names and values. Every name gets the prefix `STRATA_`.
///
/// ```
/// let header = shared_ring::layout::c_header::c_header(&[("MY_PORT", 0x505)]);
/// assert!(header.contains("#define STRATA_SUPERBLOCK_REGION_SIZE 24\n"));
/// assert!(header.contains("#define STRATA_MY_PORT 1285\n"));
/// ```
#[must_use]
pub fn c_header(more: &[(&str, u64)]) -> String {
    let mut out = String::from(
        "/* Generated from the shared-ring crate; do not edit. */\n#ifndef STRATA_ABI_H\n#define STRATA_ABI_H\n\n",
    );
    let mut define = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "#define STRATA_{name} {value}");
    };
    define("MAGIC", format!("{MAGIC:#x}ULL"));
    for (name, value) in [
        ("ABI_VERSION", u64::from(ABI_VERSION)),
        ("PAGE_SIZE", PAGE_SIZE as u64),
        ("SESSION_TABLE_OFFSET", SESSION_TABLE_OFFSET as u64),
        ("SESSION_SLOT_SIZE", SESSION_SLOT_SIZE as u64),
        ("CLOCK_OFFSET", CLOCK_OFFSET as u64),
        ("CLOCK_ENTRY_SIZE", CLOCK_ENTRY_SIZE as u64),
        ("AGENT_ALIVE", AGENT_ALIVE),
        ("AGENT_GONE", AGENT_GONE),
        ("PROCESS_FREE", u64::from(PROCESS_FREE)),
        ("PROCESS_ACTIVE", u64::from(PROCESS_ACTIVE)),
        ("PROCESS_CLOSED", u64::from(PROCESS_CLOSED)),
        ("SESSION_SLOTS", SESSION_SLOTS as u64),
        ("MAX_EVENTS", MAX_EVENTS as u64),
    ] {
        define(name, value.to_string());
    }
    for structure in [SUPERBLOCK, SESSION, AGENT, PROCESS_ENTRY, PROCESS_HEADER, PACKET] {
        define(&format!("{}_SIZE", structure.name), structure.size.to_string());
        for (field, offset) in structure.fields {
            define(&format!("{}_{}", structure.name, field.to_uppercase()), offset.to_string());
        }
    }
    for (name, value) in more {
        define(name, value.to_string());
    }
    out.push_str("\n#endif\n");
    out
}
