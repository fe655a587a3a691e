//! Fields of the host kernel's events, of any declaration, place and size, and records of such types.

use crate::ftrace_page::format_file;
use crate::script::Input;
use std::fmt::Write as _;
use vmm::host_kernel::{EventName, EventSchema};

/// A field as a format file declares it.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// Type and name, in C.
    pub declaration: &'a [u8],
    /// Where it lies in a record, bytes.
    pub offset: u16,
    /// Its size, bytes.
    pub size: u16,
    /// Whether it has a sign.
    pub is_signed: bool,
}

/// An input: the fields, then a record.
///
/// # Panics
/// When there are more than 255 fields, or a declaration is longer than 65535 bytes.
#[must_use]
pub fn encode(fields: &[Field<'_>], record: &[u8]) -> Vec<u8> {
    let mut input = vec![u8::try_from(fields.len()).expect("a format file has few fields")];
    for field in fields {
        let length = u16::try_from(field.declaration.len()).expect("a declaration is short");
        input.extend(length.to_le_bytes());
        input.extend(field.declaration);
        input.extend(field.offset.to_le_bytes());
        input.extend(field.size.to_le_bytes());
        input.push(field.is_signed.into());
    }
    input.extend(record);
    input
}

/// Runs an input.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut lines = String::new();
    for _ in 0..input.byte() {
        // What ends a declaration in the file does not stand in one.
        let text = String::from_utf8_lossy(input.block()).replace([';', '\n', '\r'], " ");
        let (offset, size, signed) = (input.u16(), input.u16(), input.byte() & 1);
        // Writing to a string does not fail.
        let _ = writeln!(lines, "\tfield:{text};\toffset:{offset};\tsize:{size};\tsigned:{signed};");
    }
    let name = EventName::parse("group:event").expect("the name has a group");
    let schema = EventSchema::parse(&name, &format_file(&lines)).expect("the file has a number and the common fields");

    let mut out = Vec::new();
    match schema.encode(input.0, &mut out) {
        Ok(()) => assert!(schema.description.accepts(&out), "a record that was copied fits its description"),
        Err(_) => assert!(out.is_empty(), "nothing is kept of a record that does not fit"),
    }
}
