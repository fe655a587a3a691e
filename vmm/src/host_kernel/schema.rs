//! What an event's fields are, and how they are copied out of a raw record.
//!
//! The kernel describes each event in its `format` file. An [`EventSchema`] is that description brought into the form
//! in which we record: a flat list of integers, character arrays and strings, packed without alignment. What has no
//! such form is left out and listed in [`EventSchema::skipped`].

use std::fmt;

use tracepoint_decode::{PerfEventFormat, PerfFieldArray, PerfFieldFormat};

use super::print_format::hex_fields;

/// Fixed arrays of integers up to this many elements become one field per element; longer ones are skipped. Enough for
/// the arguments of a system call and for everything else in Linux that is not a table.
const MAX_EXPANDED_ELEMENTS: u16 = 16;

/// Why an event's description could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The format file has no name or no number.
    #[error("the format file of `{event}` has no event number")]
    NoNumber {
        /// `group:name`.
        event: String,
    },
    /// The number does not fit into the 16 bits that records have for it.
    #[error("the format file of `{event}` gives number {number}, but records have 16 bits for it")]
    NumberTooLarge {
        /// `group:name`.
        event: String,
        /// The number given.
        number: u32,
    },
    /// The fields that every record starts with are missing or have another layout.
    #[error("the format file of `{event}` lacks the usual field `{field}` ({expected})")]
    CommonField {
        /// `group:name`.
        event: String,
        /// The field.
        field: &'static str,
        /// Where it should be.
        expected: &'static str,
    },
}

/// Why a record could not be encoded by a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record of {len} bytes is too short for field {field} of event {event_id}")]
pub struct RecordTooShort {
    /// The event's number.
    pub event_id: u16,
    /// Index of the field in [`EventSchema::fields`].
    pub field: usize,
    /// Bytes of the record.
    pub len: usize,
}

/// An event as the kernel names it: `group:name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventName {
    /// The group, such as `kvm`.
    pub group: String,
    /// The name in the group, such as `kvm_exit`.
    pub name: String,
}

impl EventName {
    /// Splits `group:name`; `None` if there is no colon, or nothing on one of its sides, or something that cannot be part of a
    /// file name.
    pub fn parse(text: &str) -> Option<Self> {
        let (group, name) = text.split_once(':')?;
        let is_plain =
            |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['/', '\0']);
        (is_plain(group) && is_plain(name)).then(|| Self {
            group: group.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.group, self.name)
    }
}

/// Type of a field as we record it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// Little-endian integer.
    Integer {
        /// Bytes: 1, 2, 4 or 8.
        bytes: u16,
        /// Two's complement.
        signed: bool,
        /// Meant to be shown in base 16.
        hex: bool,
    },
    /// This many bytes of text; what follows the first NUL is zero.
    CharArray(u16),
    /// Text and a final NUL.
    String,
}

/// A field of an event, in the order in which it is encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaField {
    /// The kernel's name of the field; with `_N` appended for element N of an expanded array.
    pub name: String,
    /// Its type.
    pub kind: FieldKind,
    source: Source,
}

/// A field that is not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedField {
    /// The kernel's name of the field.
    pub name: String,
    /// Its declaration in the format file.
    pub declaration: String,
}

/// Description of an event: its number and the fields that are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSchema {
    /// The kernel's number of the event, valid until the next boot: `common_type` of its records.
    pub id: u16,
    /// Group and name.
    pub name: EventName,
    /// The fields that are recorded; the first one is `common_pid`.
    pub fields: Vec<SchemaField>,
    /// The fields that are not.
    pub skipped: Vec<SkippedField>,
}

/// Where a field's bytes are in a raw record. Offsets count from `common_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// At a fixed place.
    Fixed { offset: u16, bytes: u16 },
    /// Bytes at a fixed place, written as hexadecimal digits.
    FixedHex { offset: u16, bytes: u16 },
    /// Text that a locator word points to.
    Located(Locator),
    /// Bytes that a locator word points to, written as hexadecimal digits.
    LocatedHex(Locator),
    /// Text from here to the end of the record.
    Rest { offset: u16 },
}

/// Place of a `__data_loc` or `__rel_loc` word: length in the upper half, offset in the lower one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Locator {
    offset: u16,
    /// The offset counts from the end of the locator instead of the start of the record.
    relative: bool,
}

impl Locator {
    /// The bytes that the locator in `record` points to.
    fn resolve(self, record: &[u8]) -> Option<&[u8]> {
        let at = usize::from(self.offset);
        let word = u32::from_le_bytes(*record.get(at..)?.first_chunk()?);
        let length = usize::try_from(word >> 16).ok()?;
        let offset = usize::try_from(word & 0xffff).ok()?;
        let start = if self.relative {
            at + 4 + offset
        } else {
            offset
        };
        record.get(start..start + length)
    }
}

impl EventSchema {
    /// Reads a tracefs `format` file of a 64-bit little-endian kernel.
    pub fn parse(name: &EventName, format_file: &str) -> Result<Self, SchemaError> {
        let event = || name.to_string();
        let format = PerfEventFormat::parse(true, &name.group, format_file)
            .ok_or_else(|| SchemaError::NoNumber { event: event() })?;
        let id = u16::try_from(format.id()).map_err(|_| SchemaError::NumberTooLarge {
            event: event(),
            number: format.id(),
        })?;
        let (common, own) = format.fields().split_at(format.common_field_count());
        let has = |field: &str, offset, size| {
            common
                .iter()
                .any(|f| f.name() == field && f.offset() == offset && f.size() == size)
        };
        if !has("common_type", 0, 2) {
            return Err(SchemaError::CommonField {
                event: event(),
                field: "common_type",
                expected: "2 bytes at offset 0",
            });
        }
        if !has("common_pid", 4, 4) {
            return Err(SchemaError::CommonField {
                event: event(),
                field: "common_pid",
                expected: "4 bytes at offset 4",
            });
        }
        let mut schema = Self {
            id,
            name: name.clone(),
            fields: vec![SchemaField {
                name: "common_pid".to_owned(),
                kind: FieldKind::Integer {
                    bytes: 4,
                    signed: true,
                    hex: false,
                },
                source: Source::Fixed {
                    offset: 4,
                    bytes: 4,
                },
            }],
            skipped: Vec::new(),
        };
        let hex = hex_fields(format.print_fmt());
        for field in own {
            schema.add(field, &hex);
        }
        Ok(schema)
    }

    /// Adds a field of the format file in the form in which we record it, or to the skipped ones.
    fn add(&mut self, field: &PerfFieldFormat, hex_names: &[&str]) {
        let name = field.name().to_owned();
        let offset = field.offset();
        let size = field.size();
        let (is_char, is_pointer) = declared_as(field.field());
        let hex = is_pointer || hex_names.contains(&field.name());
        let locator = |relative| Locator { offset, relative };
        // 0 for text and for what the parser knows no element size of, such as a bitmap of CPUs.
        let element = u16::from(field.element_size());
        let (kind, source) = match field.array() {
            PerfFieldArray::None if matches!(size, 1 | 2 | 4 | 8) => {
                let kind = FieldKind::Integer {
                    bytes: size,
                    // A negative number in base 16 would be harder to read than its bits.
                    signed: field.signed().unwrap_or(false) && !hex,
                    hex,
                };
                (
                    kind,
                    Source::Fixed {
                        offset,
                        bytes: size,
                    },
                )
            }
            PerfFieldArray::Fixed if is_char => (
                FieldKind::CharArray(size),
                Source::Fixed {
                    offset,
                    bytes: size,
                },
            ),
            PerfFieldArray::Fixed if element == 1 => (
                FieldKind::String,
                Source::FixedHex {
                    offset,
                    bytes: size,
                },
            ),
            PerfFieldArray::Fixed
                if matches!(element, 2 | 4 | 8) && size / element <= MAX_EXPANDED_ELEMENTS =>
            {
                let kind = FieldKind::Integer {
                    bytes: element,
                    signed: field.signed().unwrap_or(false) && !hex,
                    hex,
                };
                self.fields
                    .extend((0..size / element).map(|index| SchemaField {
                        name: format!("{name}_{index}"),
                        kind,
                        source: Source::Fixed {
                            offset: offset + index * element,
                            bytes: element,
                        },
                    }));
                return;
            }
            PerfFieldArray::DataLoc4 if is_char => {
                (FieldKind::String, Source::Located(locator(false)))
            }
            PerfFieldArray::RelLoc4 if is_char => {
                (FieldKind::String, Source::Located(locator(true)))
            }
            PerfFieldArray::DataLoc4 if element == 1 => {
                (FieldKind::String, Source::LocatedHex(locator(false)))
            }
            PerfFieldArray::RelLoc4 if element == 1 => {
                (FieldKind::String, Source::LocatedHex(locator(true)))
            }
            PerfFieldArray::RestOfEvent if is_char => (FieldKind::String, Source::Rest { offset }),
            _ => {
                self.skipped.push(SkippedField {
                    name,
                    declaration: field.field().to_owned(),
                });
                return;
            }
        };
        self.fields.push(SchemaField { name, kind, source });
    }

    /// Appends the fields of `record`, a raw record starting at `common_type`, to `out`: little-endian, in the order
    /// of [`Self::fields`], without alignment. Nothing is appended if the record is too short for one of them.
    pub fn encode(&self, record: &[u8], out: &mut Vec<u8>) -> Result<(), RecordTooShort> {
        let start = out.len();
        for (index, field) in self.fields.iter().enumerate() {
            if field.encode(record, out).is_none() {
                out.truncate(start);
                return Err(RecordTooShort {
                    event_id: self.id,
                    field: index,
                    len: record.len(),
                });
            }
        }
        Ok(())
    }
}

impl SchemaField {
    /// Appends the field's value. `None` if it lies outside of the record; `out` may then have grown.
    fn encode(&self, record: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let fixed = |offset: u16, bytes: u16| {
            let offset = usize::from(offset);
            record.get(offset..offset + usize::from(bytes))
        };
        match self.source {
            Source::Fixed { offset, bytes } => {
                let value = fixed(offset, bytes)?;
                if let FieldKind::CharArray(_) = self.kind {
                    // The kernel leaves what was in memory before behind the NUL.
                    let text = until_nul(value);
                    out.extend_from_slice(text);
                    out.resize(out.len() + (value.len() - text.len()), 0);
                } else {
                    out.extend_from_slice(value);
                }
            }
            Source::FixedHex { offset, bytes } => append_hex(fixed(offset, bytes)?, out),
            Source::Located(locator) => append_string(locator.resolve(record)?, out),
            Source::LocatedHex(locator) => append_hex(locator.resolve(record)?, out),
            Source::Rest { offset } => append_string(record.get(usize::from(offset)..)?, out),
        }
        Some(())
    }
}

/// Appends the text in `bytes` and a NUL.
fn append_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(until_nul(bytes));
    out.push(0);
}

/// Appends two hexadecimal digits per byte and a NUL.
fn append_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 0xf)]);
    }
    out.push(0);
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// Whether a declaration of the format file is of plain `char`, and whether it is a pointer.
fn declared_as(declaration: &str) -> (bool, bool) {
    let is_pointer = declaration.contains('*');
    let mut words = declaration.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let has_char = words.clone().any(|word| word == "char");
    let has_sign = words.any(|word| word == "unsigned" || word == "signed");
    (has_char && !has_sign && !is_pointer, is_pointer)
}

#[cfg(test)]
mod tests;
