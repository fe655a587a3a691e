//! What an event's fields are, and how they are copied out of a raw record.
//!
//! The kernel describes each event in its `format` file. An [`EventSchema`] is that description brought into the form
//! in which every layer records: a flat list of integers, character arrays and strings, packed without alignment.
//! Short arrays of integers become one field per element, other arrays the hexadecimal text of their bytes. What has no
//! such form is left out and listed in [`EventSchema::skipped`].

pub(crate) mod copy_plan;
pub(crate) mod format_file;
pub(crate) mod print_flags;
pub(crate) mod print_format;

use copy_plan::CopyPlan;
use format_file::{Element, Field, FormatFile, Shape, SkippedField};
use print_flags::Flags;
use print_format::hex_fields;
use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer, MAX_FIELDS, MAX_NAME};
use shared_ring::layout::{EXTENDED_ID, HOLE_ID};
use std::fmt;
use std::ops::Range;
use strata_abi::class;

/// Fixed arrays of integers up to this many elements become one field per element: enough for the arguments of a system
/// call.
const MAX_EXPANDED_ELEMENTS: u16 = 16;
/// The largest array of anything else that becomes hexadecimal text, bytes.
const MAX_HEX_BYTES: u16 = 256;

/// Why an event's description could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The format file has no name or no number.
    #[error("the format file of `{event}` has no event number")]
    NoNumber {
        /// `group:name`.
        event: String,
    },
    /// The format file has a line that no kernel writes.
    #[error("the format file of `{event}` has the line {line:?}, which no kernel is known to write")]
    Malformed {
        /// `group:name`.
        event: String,
        /// The line.
        line: String,
    },
    /// The number is not one that records can carry.
    #[error("the format file of `{event}` gives number {number}, but records can carry 1 to 65534")]
    NumberOutOfRange {
        /// `group:name`.
        event: String,
        /// The number given.
        number: u32,
    },
    /// The name is too long or has unusual characters.
    #[error("the event name `{event}` cannot be recorded")]
    Name {
        /// `group:name`.
        event: String,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A field lies outside of the record.
    #[error("a record of {length} bytes is too short for field {field} of event {event_id}")]
    TooShort {
        /// The event's number.
        event_id: u16,
        /// Index of the field in the description.
        field: usize,
        /// Bytes of the record.
        length: usize,
    },
    /// The encoded fields would take more than the 65,535 bytes that a record can hold.
    #[error("a record of event {event_id} would take {length} bytes")]
    TooLong {
        /// The event's number.
        event_id: u16,
        /// Bytes of the encoded fields.
        length: usize,
    },
}

/// An event as the kernel names it: `group:name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventName {
    /// The group, such as `kvm`.
    pub group: String,
    /// The name in the group, such as `kvm_exit`.
    pub name: String,
}

impl EventName {
    /// Splits `group:name`; `None` if there is no colon, or nothing on one of its sides, or something that cannot be
    /// part of a file name.
    pub fn parse(text: &str) -> Option<Self> {
        let (group, name) = text.split_once(':')?;
        let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['/', '\0']);
        (is_plain(group) && is_plain(name)).then(|| Self { group: group.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.group, self.name)
    }
}

/// Description of an event: its number, the fields that are recorded, and where they are in a raw record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSchema {
    /// Group and name.
    pub name: EventName,
    /// The event as it is recorded. Its id is the kernel's number of the event (`common_type` of its records), valid
    /// until the next boot; its first field is `common_pid`; `_N` is appended to the name of an array for its element
    /// N.
    pub description: EventDescription,
    /// The recorded fields whose numbers are flags that the kernel names: masks and names, in the order in which it looks
    /// for them.
    pub flags: Vec<(String, Flags)>,
    /// The fields that are not recorded.
    pub skipped: Vec<SkippedField>,
    /// Where each field comes from.
    sources: Vec<FieldSource>,
    /// How to copy them, if all lie at fixed places.
    plan: Option<CopyPlan>,
}

/// Where a field's bytes are in a raw record. Offsets count from `common_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldSource {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let start = if self.relative { at + 4 + offset } else { offset };
        record.get(start..start + length)
    }
}

/// Where the fields of an event lie in its records, one behind the other as they are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u16,
    pub(super) end: u16,
    /// Whether there are texts in it.
    pub(super) has_texts: bool,
}

impl EventSchema {
    /// Reads a tracefs `format` file of a 64-bit little-endian kernel. A field without a form that layers record is
    /// listed in [`skipped`](Self::skipped).
    ///
    /// # Errors
    /// The file is not one of a kernel, or the event has no number, a number or name that records cannot carry, or not
    /// the fields that every record starts with.
    pub fn parse(name: &EventName, format_file: &str) -> Result<Self, SchemaError> {
        let event = || name.to_string();
        let file = FormatFile::parse(format_file).map_err(|line| SchemaError::Malformed { event: event(), line })?;
        let number = file.number.ok_or_else(|| SchemaError::NoNumber { event: event() })?;
        let id = u16::try_from(number)
            .ok()
            .filter(|id| !matches!(*id, HOLE_ID | EXTENDED_ID))
            .ok_or_else(|| SchemaError::NumberOutOfRange { event: event(), number })?;
        let full_name = name.to_string();
        if full_name.len() > MAX_NAME || !full_name.chars().all(|c| c.is_ascii_alphanumeric() || "_:.-".contains(c)) {
            return Err(SchemaError::Name { event: full_name });
        }
        let common_number = |name: &'static str, offset, size, expected| {
            let is_it = |field: &&Field| {
                (&*field.name, field.offset, field.size, field.shape) == (name, offset, size, Shape::Value)
            };
            let found = file.common.iter().find(is_it);
            found.ok_or_else(|| SchemaError::CommonField { event: event(), field: name, expected })
        };
        common_number("common_type", 0, 2, "a number of 2 bytes at offset 0")?;
        let pid = common_number("common_pid", 4, 4, "a number of 4 bytes at offset 4")?;
        let mut schema = Self {
            name: name.clone(),
            description: EventDescription { id, class: class::HOST_KERNEL, name: full_name, fields: Vec::new() },
            flags: Vec::new(),
            skipped: Vec::new(),
            sources: Vec::new(),
            plan: None,
        };
        let hex = hex_fields(&file.print_format);
        for field in std::iter::once(pid).chain(&file.own) {
            let hex = field.is_pointer || hex.contains(&&*field.name);
            if !Self::convert(field, hex).is_some_and(|converted| schema.add(converted)) {
                schema.skipped.push(field.skipped());
            }
        }
        let is_recorded = |field: &str| schema.description.fields.iter().any(|known| known.name == field);
        let flags = print_flags::flags(&file.print_format).into_iter();
        schema.flags =
            flags.filter(|(field, _)| is_recorded(field)).map(|(field, flags)| (field.into(), flags)).collect();
        schema.plan = schema.copy_plan();
        Ok(schema)
    }

    /// How to copy the fields, if all lie at fixed places and are what a record can hold.
    fn copy_plan(&self) -> Option<CopyPlan> {
        let places = self.sources.iter().zip(&self.description.fields).map(|(source, field)| match *source {
            FieldSource::Fixed { offset, bytes } => {
                let start = usize::from(offset);
                Some((start..start + usize::from(bytes), matches!(field.ty, FieldType::CharArray(_))))
            }
            _ => None,
        });
        let plan = CopyPlan::new(places.collect::<Option<Vec<_>>>()?);
        (plan.bytes() <= usize::from(u16::MAX)).then_some(plan)
    }

    /// The fields that we record for one of the format file's; `None` if it has no form that we record.
    fn convert(field: &Field, hex: bool) -> Option<Vec<(FieldDescription, FieldSource)>> {
        let (offset, bytes) = (u16::try_from(field.offset).ok()?, u16::try_from(field.size).ok()?);
        offset.checked_add(bytes)?;
        // A negative number in base 16 would be harder to read than its bits.
        let signed = field.is_signed && !hex;
        let (ty, hex, source) = match field.shape {
            Shape::Value => (integer(bytes, signed)?, hex, FieldSource::Fixed { offset, bytes }),
            Shape::Array(Element::Char) => (FieldType::CharArray(bytes), false, FieldSource::Fixed { offset, bytes }),
            Shape::Array(Element::Integer(element @ 2..)) if bytes / element <= MAX_EXPANDED_ELEMENTS => {
                let ty = integer(element, signed)?;
                let elements = (0..bytes / element).map(|index| {
                    let name = format!("{}_{index}", field.name);
                    let source = FieldSource::Fixed { offset: offset + index * element, bytes: element };
                    (FieldDescription { name, ty, hex }, source)
                });
                return Some(elements.collect());
            }
            Shape::Array(element) if element == Element::Integer(1) || bytes <= MAX_HEX_BYTES => {
                (FieldType::String, false, FieldSource::FixedHex { offset, bytes })
            }
            Shape::Located { element: Element::Char, is_relative } => {
                (FieldType::String, false, FieldSource::Located(Locator { offset, relative: is_relative }))
            }
            Shape::Located { is_relative, .. } => {
                (FieldType::String, false, FieldSource::LocatedHex(Locator { offset, relative: is_relative }))
            }
            Shape::Rest(Element::Char) => (FieldType::String, false, FieldSource::Rest { offset }),
            _ => return None,
        };
        Some(vec![(FieldDescription { name: field.name.clone(), ty, hex }, source)])
    }

    /// Adds fields, unless a description cannot have them: too many, a name that is none or is taken, or more bytes
    /// than a record can hold.
    fn add(&mut self, fields: Vec<(FieldDescription, FieldSource)>) -> bool {
        let present = &self.description.fields;
        let sources = self.sources.iter().chain(fields.iter().map(|(_, source)| source));
        let bytes: usize = sources.map(|source| source.least_bytes()).sum();
        let fits = present.len() + fields.len() <= MAX_FIELDS
            && bytes <= usize::from(u16::MAX)
            && fields.iter().all(|(field, _)| {
                is_identifier(&field.name) && !present.iter().any(|present| present.name == field.name)
            });
        if fits {
            for (field, source) in fields {
                self.description.fields.push(field);
                self.sources.push(source);
            }
        }
        fits
    }

    /// The kernel's number of the event: `common_type` of its records.
    pub fn id(&self) -> u16 {
        self.description.id
    }

    /// Where in a raw record the field of this name lies; `None` if there is no such field or it has no fixed place.
    pub fn place(&self, field: &str) -> Option<Range<usize>> {
        let index = self.description.fields.iter().position(|known| known.name == field)?;
        match self.sources[index] {
            FieldSource::Fixed { offset, bytes } => Some(usize::from(offset)..usize::from(offset) + usize::from(bytes)),
            _ => None,
        }
    }

    /// Appends the fields of `record`, a raw record starting at `common_type`, to `out`, as [`Self::description`] lays
    /// them out. Nothing is appended in case of an error.
    ///
    /// # Errors
    /// A field lies outside of the record, or the fields take more than a record can hold.
    #[inline]
    pub fn encode(&self, record: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        match &self.plan {
            Some(plan) if plan.copy(record, out) => Ok(()),
            _ => self.encode_each(record, out),
        }
    }

    /// The fields of `record` as [`encode`](Self::encode) lays them out: where they lie in `record` if they lie there
    /// so, else in `buffer`, whose content before is gone.
    ///
    /// # Errors
    /// As those of [`encode`](Self::encode).
    #[inline(always)]
    pub fn encoded<'a>(&self, record: &'a [u8], buffer: &'a mut Vec<u8>) -> Result<&'a [u8], RecordError> {
        if let Some(fields) = self.plan.as_ref().and_then(|plan| plan.in_place(record)) {
            return Ok(fields);
        }
        buffer.clear();
        self.encode(record, buffer)?;
        Ok(buffer)
    }

    /// Where in a record all that is encoded of it lies in one piece, if that is so: to be taken as it is, but for
    /// [what is not part of its texts](Self::clear_behind_texts), where there are any.
    pub(super) fn run(&self) -> Option<Run> {
        let plan = self.plan.as_ref()?;
        let run = plan.only_run()?;
        let (start, end) = (u16::try_from(run.start).ok()?, u16::try_from(run.end).ok()?);
        Some(Run { start, end, has_texts: plan.has_texts() })
    }

    /// Clears in what was taken of a record's [run](Self::run) what is not part of its texts.
    #[inline]
    pub fn clear_behind_texts(&self, taken: &mut [u8]) {
        if let Some(plan) = &self.plan {
            plan.clear_behind_texts(taken);
        }
    }

    /// As [`encode`](Self::encode), one field after the other.
    fn encode_each(&self, record: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        let start = out.len();
        let fields = self.description.fields.iter().zip(&self.sources);
        let missing = fields.enumerate().find_map(|(index, (field, source))| {
            let encoded = source.encode(field.ty, record, out);
            encoded.is_none().then_some(index)
        });
        let length = out.len() - start;
        let result = match missing {
            Some(field) => Err(RecordError::TooShort { event_id: self.id(), field, length: record.len() }),
            None if length > usize::from(u16::MAX) => Err(RecordError::TooLong { event_id: self.id(), length }),
            None => Ok(()),
        };
        if result.is_err() {
            out.truncate(start);
        }
        result
    }
}

impl FieldSource {
    /// Bytes that its value takes, at least.
    fn least_bytes(self) -> usize {
        match self {
            Self::Fixed { bytes, .. } => usize::from(bytes),
            Self::FixedHex { bytes, .. } => 2 * usize::from(bytes) + 1,
            Self::Located(_) | Self::LocatedHex(_) | Self::Rest { .. } => 1,
        }
    }

    /// Appends the value that lies here in `record`. `None` if it lies outside of it; `out` may then have grown.
    fn encode(self, ty: FieldType, record: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let fixed = |offset: u16, bytes: u16| {
            let offset = usize::from(offset);
            record.get(offset..offset + usize::from(bytes))
        };
        match self {
            Self::Fixed { offset, bytes } => {
                let value = fixed(offset, bytes)?;
                if let FieldType::CharArray(_) = ty {
                    // The kernel leaves what was in memory before behind the NUL.
                    let text = until_nul(value);
                    out.extend_from_slice(text);
                    out.resize(out.len() + (value.len() - text.len()), 0);
                } else {
                    out.extend_from_slice(value);
                }
            }
            Self::FixedHex { offset, bytes } => append_hex(fixed(offset, bytes)?, out),
            Self::Located(locator) => append_string(locator.resolve(record)?, out),
            Self::LocatedHex(locator) => append_hex(locator.resolve(record)?, out),
            Self::Rest { offset } => append_string(record.get(usize::from(offset)..)?, out),
        }
        Some(())
    }
}

/// The type of an integer of this many bytes, if there is one.
fn integer(bytes: u16, signed: bool) -> Option<FieldType> {
    Integer::of(usize::from(bytes), signed).map(FieldType::of_integer)
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
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

pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
