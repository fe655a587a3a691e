//! `trace-cmd` as judge of what is read: pages with their format files as a trace.dat file, and the values in its report.

use crate::schema::{EventName, EventSchema, until_nul};
use shared_ring::event::FieldType;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// Option of a trace.dat file: the clocks, the one used in brackets.
const OPTION_CLOCK: u16 = 4;

/// What each CPU recorded: its pages as read, each in a whole page.
pub(crate) type Pages = BTreeMap<u32, Vec<Vec<u8>>>;

/// A recording with what the kernel says of it in tracefs.
pub(crate) struct TraceDat<'p> {
    pub(crate) header_page: Vec<u8>,
    pub(crate) header_event: Vec<u8>,
    /// The events' format files.
    pub(crate) formats: Vec<(EventName, Vec<u8>)>,
    /// The file `trace_clock`.
    pub(crate) clocks: Vec<u8>,
    pub(crate) pages: &'p Pages,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
}

impl TraceDat<'_> {
    /// The recording as a file of version 6, as `trace-cmd record` writes it.
    fn bytes(&self) -> Vec<u8> {
        let mut file = b"\x17\x08\x44tracing6\0\x00\x08".to_vec();
        let page_bytes = self.pages.values().flatten().map(Vec::len).max().unwrap();
        file.extend(u32::try_from(page_bytes).unwrap().to_le_bytes());
        for (name, content) in [("header_page", &self.header_page), ("header_event", &self.header_event)] {
            file.extend(name.as_bytes());
            file.push(0);
            append_sized(&mut file, content);
        }
        // No events of ftrace's own.
        file.extend(0_u32.to_le_bytes());
        let mut groups: BTreeMap<&str, Vec<&[u8]>> = BTreeMap::new();
        for (name, format) in &self.formats {
            groups.entry(&name.group).or_default().push(format);
        }
        file.extend(u32::try_from(groups.len()).unwrap().to_le_bytes());
        for (group, formats) in groups {
            file.extend(group.as_bytes());
            file.push(0);
            file.extend(u32::try_from(formats.len()).unwrap().to_le_bytes());
            formats.iter().for_each(|format| append_sized(&mut file, format));
        }
        // Neither symbols of the kernel, nor formats of printk, nor names of threads.
        file.extend([0; 4 + 4 + 8]);
        file.extend(u32::try_from(self.pages.len()).unwrap().to_le_bytes());
        file.extend(b"options  \0");
        file.extend(OPTION_CLOCK.to_le_bytes());
        file.extend(u32::try_from(self.clocks.len() + 1).unwrap().to_le_bytes());
        file.extend(&self.clocks);
        file.push(0);
        file.extend(0_u16.to_le_bytes());
        file.extend(b"flyrecord\0");
        let begin = (file.len() + self.pages.len() * 16).next_multiple_of(page_bytes);
        let mut offset = begin;
        for pages in self.pages.values() {
            let size = pages.len() * page_bytes;
            file.extend((offset as u64).to_le_bytes());
            file.extend((size as u64).to_le_bytes());
            offset += size;
        }
        file.resize(begin, 0);
        for page in self.pages.values().flatten() {
            let end = file.len() + page_bytes;
            file.extend(page);
            file.resize(end, 0);
        }
        file
    }

    /// The lines of `trace-cmd report`, with the fields as they are.
    pub(crate) fn report(&self) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.dat");
        fs::write(&path, self.bytes()).unwrap();
        let output = Command::new("trace-cmd").args(["report", "-R", "-N", "-i"]).arg(path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn append_sized(file: &mut Vec<u8>, content: &[u8]) {
    file.extend((content.len() as u64).to_le_bytes());
    file.extend(content);
}

/// The fields of a record that `schema` has packed: of each its name, its type and its bytes.
pub(crate) fn packed_fields<'s>(schema: &'s EventSchema, packed: &'s [u8]) -> Vec<(&'s str, FieldType, &'s [u8])> {
    let mut rest = packed;
    let mut fields = Vec::new();
    for field in &schema.description.fields {
        let length = field.ty.fixed_size().unwrap_or_else(|| rest.iter().position(|byte| *byte == 0).unwrap() + 1);
        let (bytes, behind) = rest.split_at(length);
        fields.push((&*field.name, field.ty, bytes));
        rest = behind;
    }
    assert!(rest.is_empty(), "{}", schema.name);
    fields
}

/// The value of a packed field that is no part of an array.
pub(crate) fn value_of_field(ty: FieldType, bytes: &[u8]) -> Value {
    if let FieldType::CharArray(_) | FieldType::String = ty {
        return Value::Text(String::from_utf8_lossy(until_nul(bytes)).into_owned());
    }
    let mut number = [0; 8];
    number[..bytes.len()].copy_from_slice(bytes);
    Value::Number(u64::from_le_bytes(number))
}

/// The values of these fields, in their order, in what a line has behind the event's name: ` NAME=VALUE NAME=VALUE`. A
/// value may hold spaces.
pub(crate) fn values_in<'t>(names: &[&str], text: &'t str) -> Vec<&'t str> {
    let (mut before, mut rest) = (Vec::new(), text.trim_end());
    for name in names {
        let split = rest.split_once(&format!(" {name}="));
        let (value_before, behind) = split.unwrap_or_else(|| panic!("no {name} in {text}"));
        before.push(value_before);
        rest = behind;
    }
    // what stands before a name is the value of the one before it
    before.into_iter().chain([rest]).skip(1).collect()
}

/// A number of `size` bytes, or a text if that is 0.
pub(crate) fn value_of_text(text: &str, size: usize) -> Value {
    if let Some(array) = text.strip_prefix("ARRAY[") {
        let bytes = array.trim_end_matches(']').split(", ").filter(|byte| !byte.is_empty());
        let byte = |byte| u8::from_str_radix(byte, 16).unwrap_or_else(|_| panic!("{byte:?} in {text}"));
        return Value::Bytes(bytes.map(byte).collect());
    }
    if size == 0 {
        return Value::Text(text.to_owned());
    }
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => {
            text.parse::<i128>().ok().and_then(|number| Some(u64::from_le_bytes(*number.to_le_bytes().first_chunk()?)))
        }
    };
    let number = number.unwrap_or_else(|| panic!("{text:?} is not a number"));
    let mask = u64::MAX >> (64 - 8 * size);
    Value::Number(number & mask)
}

/// Whether there is a trace-cmd; prints that `test` is left out where there is none.
pub(crate) fn has_trace_cmd(test: &str) -> bool {
    let found = Command::new("trace-cmd").arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED {test}: trace-cmd is not installed here (apt-get install trace-cmd)");
    }
    found
}
