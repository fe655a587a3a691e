//! The C view of the region and of an agent's events, generated so that no number is typed twice.

use crate::event::{Event, FieldType};
use crate::layout::{
    ABI_VERSION, AGENT, AGENT_ALIVE, AGENT_GONE, CLOCK_ENTRY_SIZE, CLOCK_OFFSET, CPUID_SIGNATURE, MAGIC, PACKET,
    PAGE_SIZE, PANIC_PORT, PANIC_PORT_PANICKED, PROCESS_ACTIVE, PROCESS_CLOSED, PROCESS_ENTRY, PROCESS_FREE,
    PROCESS_HEADER, SESSION, SESSION_SLOT_SIZE, SESSION_SLOTS, SESSION_TABLE_OFFSET, SUPERBLOCK,
};
use std::fmt::Write;
use std::string::{String, ToString};

/// A C header with the layout's constants, and for each of `events` its id, its class and its payload as a packed
/// structure (`struct strata_GROUP_EVENT`, integer types as in the kernel). Events with strings have no structure.
#[must_use]
pub fn c_header(events: &[Event]) -> String {
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
        ("PANIC_PORT", u64::from(PANIC_PORT)),
        ("PANIC_PORT_PANICKED", u64::from(PANIC_PORT_PANICKED)),
        ("PROCESS_FREE", u64::from(PROCESS_FREE)),
        ("PROCESS_ACTIVE", u64::from(PROCESS_ACTIVE)),
        ("PROCESS_CLOSED", u64::from(PROCESS_CLOSED)),
        ("SESSION_SLOTS", SESSION_SLOTS as u64),
    ] {
        define(name, value.to_string());
    }
    for (index, register) in CPUID_SIGNATURE.chunks_exact(4).enumerate() {
        let value = u32::from_le_bytes([register[0], register[1], register[2], register[3]]);
        define(&format!("CPUID_SIGNATURE_{index}"), format!("{value:#x}U"));
    }
    for structure in [SUPERBLOCK, SESSION, AGENT, PROCESS_ENTRY, PROCESS_HEADER, PACKET] {
        define(&format!("{}_SIZE", structure.name), structure.size.to_string());
        for (field, offset) in structure.fields {
            define(&format!("{}_{}", structure.name, field.to_uppercase()), offset.to_string());
        }
    }
    for event in events {
        let name = identifier(event.name);
        define(&format!("EVENT_{}", name.to_uppercase()), event.id.to_string());
        define(&format!("CLASS_OF_{}", name.to_uppercase()), event.class.to_string());
    }
    for event in events.iter().filter(|event| event.fixed_size().is_some()) {
        let _ = writeln!(out, "\nstruct strata_{} {{", identifier(event.name));
        for field in event.fields {
            let _ = writeln!(out, "\t{};", member(field.name, field.ty));
        }
        out.push_str("} __attribute__((packed));\n");
    }
    out.push_str("\n#endif\n");
    out
}

fn identifier(name: &str) -> String {
    name.replace([':', '-', '.'], "_")
}

fn member(name: &str, ty: FieldType) -> String {
    let integer = match ty {
        FieldType::U8 => "__u8",
        FieldType::U16 => "__u16",
        FieldType::U32 => "__u32",
        FieldType::U64 => "__u64",
        FieldType::I8 => "__s8",
        FieldType::I16 => "__s16",
        FieldType::I32 => "__s32",
        FieldType::I64 => "__s64",
        FieldType::CharArray(length) => return format!("char {name}[{length}]"),
        FieldType::String => return format!("char {name}[]"),
    };
    format!("{integer} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Field, class};

    #[test]
    fn event_becomes_constants_and_a_packed_structure() {
        const EVENT: Event = Event {
            id: 3,
            class: class::SCHED,
            name: "sched:sched_wakeup",
            fields: &[Field::new("comm", FieldType::CharArray(16)), Field::new("pid", FieldType::I32)],
        };

        let header = c_header(&[EVENT]);

        assert!(header.contains("#define STRATA_EVENT_SCHED_SCHED_WAKEUP 3\n"));
        assert!(header.contains(
            "struct strata_sched_sched_wakeup {\n\tchar comm[16];\n\t__s32 pid;\n} __attribute__((packed));"
        ));
        assert!(header.contains("#define STRATA_SUPERBLOCK_REGION_SIZE 24\n"));
    }
}
