//! Decoding payloads by the event types of a layer.

use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer};
use std::fmt;

/// The event behind which records of a stream are missing: a CPU of a guest goes offline, the agent is unloaded, or another
/// kernel takes the machine over.
pub const RECORDING_STOPS: &str = "strata:recording_stops";
/// Its field that says whether another kernel does.
const ANOTHER_KERNEL: &str = "another_kernel";

/// An event type, ready for decoding.
#[derive(Clone, Debug)]
pub struct Schema {
    description: EventDescription,
    /// Its place among the event types of its layer.
    position: usize,
    /// Bytes of the payload, when no field varies.
    fixed_size: Option<usize>,
    /// The first fields, as long as they are numbers and text of a fixed size.
    placed: Vec<PlacedField>,
    /// Bytes that they take.
    placed_size: usize,
    /// Where the counts of elements lie that are behind the last field; `None` when a field varies in its place, or none
    /// has elements there.
    counts: Option<Box<Counts>>,
    /// Whether a field's elements lie behind the last field.
    has_elements_behind: bool,
    /// Whether it is [`RECORDING_STOPS`].
    stops_recording: bool,
}

/// The elements behind the last field of payloads whose fields take no more or less in their places.
#[derive(Clone, Debug)]
struct Counts {
    /// Bytes of the fields in their places.
    in_place: usize,
    /// Offset of each field that holds a count of elements, and bytes of an element.
    fields: Vec<(usize, usize)>,
}

impl Counts {
    /// Those of `fields`; `None` where one varies in its place, or none has elements behind.
    fn of(fields: &[FieldDescription]) -> Option<Self> {
        let mut counts = Self { in_place: 0, fields: Vec::new() };
        for field in fields {
            counts.fields.extend(field.ty.element_behind().map(|element| (counts.in_place, element)));
            counts.in_place += field.ty.size_in_place()?;
        }
        (!counts.fields.is_empty()).then_some(counts)
    }

    /// Whether `payload` has as many bytes as it says.
    fn accept(&self, payload: &[u8]) -> bool {
        let mut size = self.in_place;
        for &(offset, element) in &self.fields {
            let Some(&count) = payload.get(offset..).and_then(<[u8]>::first_chunk) else { return false };
            size += element * usize::from(u16::from_le_bytes(count));
        }
        payload.len() == size
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// An unsigned integer, or a signed one that is shown as bits.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// Floating point.
    Float(f64),
    /// Text up to its NUL byte; not necessarily UTF-8.
    Text(&'a [u8]),
    /// Integers.
    Array(Elements<'a>),
}

/// The integers of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements<'a> {
    bytes: &'a [u8],
    integer: Integer,
    hex: bool,
}

impl<'a> Elements<'a> {
    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / self.integer.size()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The elements: [`Value::Unsigned`] or [`Value::Signed`].
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let Self { bytes, integer, hex } = *self;
        bytes.chunks_exact(integer.size()).map(move |bytes| integer_value(bytes, integer, hex))
    }

    /// Element `index` as its bits say; `None` when there is none.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        let size = self.integer.size();
        self.bytes.get(index * size..(index + 1) * size).map(unsigned)
    }
}

fn integer_value<'a>(bytes: &[u8], integer: Integer, hex: bool) -> Value<'a> {
    if integer.is_signed() && !hex { Value::Signed(signed(bytes)) } else { Value::Unsigned(unsigned(bytes)) }
}

/// A field that lies at the same place in every payload of its event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacedField {
    /// An integer, with a sign where [`Schema::fields`] tells it with one.
    Integer(IntegerField),
    /// Floating point: the integer has its bits.
    Float(IntegerField),
    /// Text of [`FieldType::CharArray`].
    Text(TextField),
}

impl PlacedField {
    /// The field's value; `None` when the payload ends before it.
    #[must_use]
    #[inline]
    pub fn read<'a>(&self, payload: &'a [u8]) -> Option<Value<'a>> {
        Some(match self {
            Self::Integer(field) if field.signed => Value::Signed(field.bits(payload)?.cast_signed()),
            Self::Integer(field) => Value::Unsigned(field.bits(payload)?),
            Self::Float(field) => Value::Float(f64::from_bits(field.bits(payload)?)),
            Self::Text(field) => Value::Text(field.read(payload)?),
        })
    }
}

/// Where text of [`FieldType::CharArray`] lies in every payload of its event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextField {
    offset: usize,
    size: usize,
}

impl TextField {
    /// The text, up to its first zero; `None` when the payload ends before it.
    #[must_use]
    #[inline]
    pub fn read<'a>(&self, payload: &'a [u8]) -> Option<&'a [u8]> {
        payload.get(self.offset..self.offset + self.size).map(up_to_zero)
    }
}

/// Where an integer field lies in every payload of its event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerField {
    offset: usize,
    size: usize,
    signed: bool,
    /// Where eight bytes are read that it is among the last of, as far as there are eight before its end.
    word: usize,
    /// Bits of them behind it.
    behind: u32,
    /// Bits of 64 that it does not have.
    unused: u32,
}

impl IntegerField {
    const fn new(offset: usize, integer: Integer, signed: bool) -> Self {
        let unused = match integer.size() {
            1 => 56,
            2 => 48,
            4 => 32,
            _ => 0,
        };
        let (size, word) = (integer.size(), (offset + integer.size()).saturating_sub(8));
        let (mut behind, mut bytes) = (u64::BITS, 0);
        while behind > 0 && bytes < offset + size {
            (behind, bytes) = (behind - 8, bytes + 1);
        }
        Self { offset, size, signed, word, behind, unused }
    }

    /// Whether its value has a sign.
    #[must_use]
    pub const fn is_signed(&self) -> bool {
        self.signed
    }

    /// The field's value, where 64 bits with a sign can hold it; `None` when the payload ends before it, too.
    #[must_use]
    #[inline]
    pub fn read(&self, payload: &[u8]) -> Option<i64> {
        let bits = self.bits(payload)?.cast_signed();
        (self.signed || bits >= 0).then_some(bits)
    }

    /// The field's value as 64 bits, which have its sign where it has one; `None` when the payload ends before it.
    #[must_use]
    #[inline]
    pub fn bits(&self, payload: &[u8]) -> Option<u64> {
        // Eight bytes at once where there are so many, whatever the field's size: those around it are shifted out.
        let bits = match payload.get(self.word..).and_then(<[u8]>::first_chunk) {
            Some(&bytes) => u64::from_le_bytes(bytes) << self.behind,
            None => unsigned(payload.get(self.offset..self.offset + self.size)?) << self.unused,
        };
        Some(if self.signed { (bits.cast_signed() >> self.unused).cast_unsigned() } else { bits >> self.unused })
    }
}

impl Schema {
    /// The event type `description`.
    #[must_use]
    pub fn new(description: EventDescription) -> Self {
        let fixed_size = description.fields.iter().map(|field| field.ty.fixed_size()).sum();
        let has_elements_behind = description.fields.iter().any(|field| field.ty.element_behind().is_some());
        let stops_recording = description.name == RECORDING_STOPS;
        let (placed, placed_size) = placed_fields(&description.fields);
        let counts = Counts::of(&description.fields).map(Box::new);
        Self { description, position: 0, fixed_size, placed, placed_size, counts, has_elements_behind, stops_recording }
    }

    /// What the event type is.
    #[must_use]
    pub const fn description(&self) -> &EventDescription {
        &self.description
    }

    /// Its place among the event types of its layer, in the order of [`SchemaTable::iter`].
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// The event's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.description.name
    }

    /// Whether records are missing from this one up to the next one of the stream.
    #[must_use]
    #[inline]
    pub const fn stops_recording(&self) -> bool {
        self.stops_recording
    }

    /// Whether a record of the type with `payload` says that another kernel takes the machine over. Agents before 0.2.0 do not
    /// say it.
    #[must_use]
    #[cold]
    pub fn is_of_another_kernel(&self, payload: &[u8]) -> bool {
        let is_so = |position| matches!(self.value(position, payload), Some(Value::Unsigned(1) | Value::Signed(1)));
        self.stops_recording && self.position_of(ANOTHER_KERNEL).is_some_and(is_so)
    }

    /// Whether `payload` is exactly what the fields ask for.
    #[must_use]
    #[inline]
    pub fn accepts(&self, payload: &[u8]) -> bool {
        match self.fixed_size {
            Some(size) => payload.len() == size,
            None => self.accepts_varying(payload),
        }
    }

    #[inline(never)]
    fn accepts_varying(&self, payload: &[u8]) -> bool {
        match &self.counts {
            Some(counts) => counts.accept(payload),
            None => self.description.accepts(payload),
        }
    }

    /// Where elements behind the last field begin in `payload`; `None` when it ends before.
    fn elements(&self, payload: &[u8]) -> Option<usize> {
        match &self.counts {
            Some(counts) => Some(counts.in_place),
            None => self.description.place_of_elements(payload).map(|(at, _)| at),
        }
    }

    /// The fields of `payload` with their values; ends early where the payload does.
    #[must_use]
    pub fn fields<'a>(&'a self, payload: &'a [u8]) -> Fields<'a> {
        // Without elements behind the last field nobody looks for them.
        let behind = if self.has_elements_behind {
            self.elements(payload).and_then(|at| payload.get(at..)).unwrap_or_default()
        } else {
            &[]
        };
        let rest = payload.get(self.placed_size..).unwrap_or_default();
        Fields { fields: self.description.fields.iter(), placed: self.placed.iter(), payload, rest, behind }
    }

    /// The values of the fields behind [`placed_fields`](Self::placed_fields); ends early where the payload does.
    pub fn values_behind_placed<'a>(&'a self, payload: &'a [u8]) -> impl Iterator<Item = Value<'a>> {
        let mut fields = self.fields(payload);
        (fields.fields, fields.placed) = (self.description.fields[self.placed.len()..].iter(), [].iter());
        fields.map(|(_, value)| value)
    }

    /// The position of the field `name` among the fields.
    #[must_use]
    #[inline]
    pub fn position_of(&self, name: &str) -> Option<usize> {
        self.description.fields.iter().position(|field| field.name == name)
    }

    /// The value of the field at `position` in `payload`; `None` when the payload ends before it.
    #[must_use]
    #[inline]
    pub fn value<'a>(&'a self, position: usize, payload: &'a [u8]) -> Option<Value<'a>> {
        match self.placed.get(position) {
            Some(field) => field.read(payload),
            None => self.values_behind_placed(payload).nth(position - self.placed.len()),
        }
    }

    /// The first fields, as long as they are numbers and text of a fixed size.
    #[must_use]
    pub fn placed_fields(&self) -> &[PlacedField] {
        &self.placed
    }

    /// Where the integer field `name` lies; `None` when there is none, or when a field before it varies
    /// in its place.
    #[must_use]
    pub fn integer(&self, name: &str) -> Option<IntegerField> {
        let mut offset = 0;
        for field in &self.description.fields {
            if field.name == name {
                let integer = field.ty.integer()?;
                return Some(IntegerField::new(offset, integer, integer.is_signed()));
            }
            offset += field.ty.size_in_place()?;
        }
        None
    }
}

/// The first of `fields`, as long as they are numbers and text of a fixed size, and the bytes that they take.
fn placed_fields(fields: &[FieldDescription]) -> (Vec<PlacedField>, usize) {
    let (mut placed, mut offset) = (Vec::new(), 0);
    for &FieldDescription { ty, hex, .. } in fields {
        let size = ty.size_in_place().unwrap_or(0);
        placed.push(match (ty, ty.integer()) {
            (_, Some(integer)) => PlacedField::Integer(IntegerField::new(offset, integer, integer.is_signed() && !hex)),
            (FieldType::F64, _) => PlacedField::Float(IntegerField::new(offset, Integer::U64, false)),
            (FieldType::CharArray(_), _) => PlacedField::Text(TextField { offset, size }),
            _ => break,
        });
        offset += size;
    }
    (placed, offset)
}

/// The fields of a payload.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    fields: std::slice::Iter<'a, FieldDescription>,
    /// Of those to come.
    placed: std::slice::Iter<'a, PlacedField>,
    payload: &'a [u8],
    /// The fields to come that are not placed.
    rest: &'a [u8],
    /// Elements of the fields to come.
    behind: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a FieldDescription, Value<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let field = self.fields.next()?;
        let value = match self.placed.next() {
            Some(placed) => placed.read(self.payload)?,
            None => self.walk(field)?,
        };
        Some((field, value))
    }
}

impl<'a> Fields<'a> {
    /// The value of `field`, the next of those that are not placed.
    fn walk(&mut self, field: &FieldDescription) -> Option<Value<'a>> {
        let size = match field.ty.size_in_place() {
            Some(size) => size,
            None => self.rest.iter().position(|&byte| byte == 0)? + 1,
        };
        let (mut bytes, rest) = self.rest.split_at_checked(size)?;
        self.rest = rest;
        if let (Some(element), &[low, high]) = (field.ty.element_behind(), bytes) {
            (bytes, self.behind) =
                self.behind.split_at_checked(element * usize::from(u16::from_le_bytes([low, high])))?;
        }
        Some(match (field.ty, field.ty.integer()) {
            (_, Some(integer)) => integer_value(bytes, integer, field.hex),
            (FieldType::F64, _) => Value::Float(f64::from_bits(unsigned(bytes))),
            (FieldType::Array(integer, _) | FieldType::Sequence(integer), _) => {
                Value::Array(Elements { bytes, integer, hex: field.hex })
            }
            _ => Value::Text(up_to_zero(bytes)),
        })
    }
}

/// `bytes` up to the first zero. Names of tasks, which have 16, are looked at in one go.
#[inline]
pub fn up_to_zero(bytes: &[u8]) -> &[u8] {
    const ONES: u128 = u128::MAX / 0xff;
    let length = match <[u8; 16]>::try_from(bytes).map(u128::from_le_bytes) {
        // The lowest of these bits is the top one of the first byte that is zero.
        Ok(name) => (name.wrapping_sub(ONES) & !name & (ONES << 7)).trailing_zeros() as usize / 8,
        Err(_) => bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()),
    };
    &bytes[..length]
}

/// A little-endian integer of 1 to 8 bytes.
fn unsigned(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)),
    }
}

/// A little-endian two's complement integer of 1 to 8 bytes.
fn signed(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len().min(8);
    (unsigned(bytes) << unused).cast_signed() >> unused
}

/// The event types of a layer, by id.
#[derive(Clone, Debug, Default)]
pub struct SchemaTable {
    schemas: Vec<Schema>,
    /// Index in `schemas` by id; [`NO_SCHEMA`] for ids without an event type.
    by_id: Vec<u16>,
}

/// In place of the index of an event type.
const NO_SCHEMA: u16 = u16::MAX;

impl SchemaTable {
    /// The event types `events`; of several with one id the first counts.
    #[must_use]
    pub fn new(events: &[EventDescription]) -> Self {
        let mut schemas = Self::default();
        schemas.add(events);
        schemas
    }

    /// Adds the event types `events`; of several with one id the first counts.
    pub fn add(&mut self, events: &[EventDescription]) {
        for event in events {
            let id = usize::from(event.id);
            if self.by_id.len() <= id {
                self.by_id.resize(id + 1, NO_SCHEMA);
            }
            let position = self.schemas.len();
            let number = u16::try_from(position).ok().filter(|&number| number != NO_SCHEMA);
            if let (NO_SCHEMA, Some(number)) = (self.by_id[id], number) {
                self.schemas.push(Schema { position, ..Schema::new(event.clone()) });
                self.by_id[id] = number;
            }
        }
    }

    /// The event type of `id`.
    #[must_use]
    #[inline]
    pub fn get(&self, id: u16) -> Option<&Schema> {
        self.schemas.get(usize::from(*self.by_id.get(usize::from(id))?))
    }

    /// All event types.
    pub fn iter(&self) -> impl Iterator<Item = &Schema> {
        self.schemas.iter()
    }
}

/// Whether the numbers of `field` are text in JSON: those of 64 bits that are shown in hexadecimal, as addresses are.
/// Many programs read a number of JSON as floating point, which cannot hold them.
#[must_use]
pub fn is_text_in_json(field: &FieldDescription) -> bool {
    let integer = match field.ty {
        FieldType::Array(element, _) | FieldType::Sequence(element) => Some(element),
        ty => ty.integer(),
    };
    field.hex && integer.is_some_and(|integer| integer.size() == 8)
}

/// Floating point as text: the shortest that reads back as it, or `NaN`, `Infinity`, `-Infinity`. The first is a number of
/// JSON, too.
#[derive(Clone, Copy, Debug)]
pub struct FloatText(pub f64);

impl fmt::Display for FloatText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("Infinity"),
            f64::NEG_INFINITY => f.write_str("-Infinity"),
            number => write!(f, "{number:?}"),
        }
    }
}

/// The hexadecimal digits of `number`, at least one, and how many they are.
#[must_use]
#[inline]
pub fn hex_digits(number: u64) -> ([u8; 16], usize) {
    let unused = (number | 1).leading_zeros() / 4;
    let length = (u64::BITS / 4 - unused) as usize;
    let bits = number << (4 * unused);
    let high = eight_digits(bits >> 32);
    let low = if length > 8 { eight_digits(bits & u64::from(u32::MAX)) } else { 0 };
    ((u128::from(low) << 64 | u128::from(high)).to_le_bytes(), length)
}

/// The eight hexadecimal digits of a number of 32 bits, the first in the lowest byte.
#[inline]
const fn eight_digits(number: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    // A digit in each byte, the last one in the lowest.
    let halves = (number | number << 16) & 0x0000_ffff_0000_ffff;
    let bytes = (halves | halves << 8) & 0x00ff_00ff_00ff_00ff;
    let digits = (bytes | bytes << 4) & (ONES * 0xf);
    // Ten and more reach the next four bits with six more.
    let is_letter = (digits + ONES * 6) >> 4 & ONES;
    (digits + ONES * b'0' as u64 + is_letter * (b'a' - b'0' - 10) as u64).swap_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(fields: &[(&str, FieldType, bool)]) -> Schema {
        let fields = fields.iter().map(|&(name, ty, hex)| FieldDescription { name: name.into(), ty, hex }).collect();
        Schema::new(EventDescription { id: 3, class: 0, name: "test:event".into(), fields })
    }

    fn values<'a>(schema: &'a Schema, payload: &'a [u8]) -> Vec<Value<'a>> {
        schema.fields(payload).map(|(_, value)| value).collect()
    }

    #[test]
    fn values_of_all_kinds_are_decoded() {
        let schema = schema(&[
            ("a", FieldType::I16, false),
            ("b", FieldType::I16, true),
            ("c", FieldType::String, false),
            ("d", FieldType::CharArray(4), false),
            ("e", FieldType::U64, false),
        ]);
        let payload = [&[0xfe, 0xff, 0xfe, 0xff][..], b"hi\0ab\0\0", &u64::MAX.to_le_bytes()].concat();

        let expected = [
            Value::Signed(-2),
            Value::Unsigned(0xfffe),
            Value::Text(b"hi"),
            Value::Text(b"ab"),
            Value::Unsigned(u64::MAX),
        ];
        assert!(schema.accepts(&payload));
        assert_eq!(values(&schema, &payload), expected);
    }

    #[test]
    fn integer_is_read_in_its_place_at_the_end_of_a_payload_too() {
        let schema = schema(&[
            ("a", FieldType::I16, false),
            ("b", FieldType::U8, false),
            ("c", FieldType::I32, false),
            ("d", FieldType::U16, false),
            ("e", FieldType::I64, false),
        ]);
        let payload =
            [0xfe, 0xff, 0x80, 0xfd, 0xff, 0xff, 0xff, 0xfb, 0xff, 0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let read = |payload: &[u8]| ["a", "b", "c", "d", "e"].map(|name| schema.integer(name).unwrap().read(payload));

        let all = [Some(-2), Some(0x80), Some(-3), Some(0xfffb), Some(-4)];
        assert_eq!(read(&payload), all);
        assert_eq!(read(&[&payload[..], &[0x55; 8]].concat()), all);
        for (length, known) in [(16, 4), (9, 4), (8, 3), (7, 3), (6, 2), (3, 2), (2, 1), (1, 0)] {
            let found = read(&payload[..length]);
            assert_eq!((&found[..known], &found[known..]), (&all[..known], &[None; 5][known..]), "{length} bytes");
        }
    }

    #[test]
    fn arrays_and_elements_behind_the_last_field_are_decoded() {
        let schema = schema(&[
            ("name", FieldType::Text, false),
            ("values", FieldType::Sequence(Integer::I16), false),
            ("args", FieldType::Array(Integer::U16, 2), true),
            ("last", FieldType::U8, false),
        ]);
        let payload = b"\x03\0\x02\0\x01\0\xff\xff\x09ab\0\xff\xff\x05\0";

        let values = values(&schema, payload);
        let elements = |value: &Value<'_>| match value {
            Value::Array(elements) => elements.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>(),
            _ => vec![],
        };

        assert!(schema.accepts(payload) && !schema.accepts(&payload[..15]));
        assert_eq!(values[0], Value::Text(b"ab"));
        assert_eq!(elements(&values[1]), ["Signed(-1)", "Signed(5)"]);
        assert_eq!(elements(&values[2]), ["Unsigned(1)", "Unsigned(65535)"]);
        assert_eq!(values[3], Value::Unsigned(9));
        assert_eq!(schema.integer("last").unwrap().read(payload), Some(9));
    }

    #[test]
    fn short_payload_is_refused_and_decoded_as_far_as_it_goes() {
        let schema = schema(&[("a", FieldType::U8, false), ("b", FieldType::U32, false)]);

        assert!(!schema.accepts(&[1, 2]));
        assert_eq!(values(&schema, &[1, 2]), [Value::Unsigned(1)]);
    }

    #[test]
    fn integer_is_found_behind_fixed_fields_only() {
        let fixed = schema(&[("a", FieldType::CharArray(3), false), ("b", FieldType::I32, false)]);
        let varying = schema(&[("a", FieldType::String, false), ("b", FieldType::I32, false)]);

        let field = fixed.integer("b").unwrap();
        assert_eq!(field.read(&[0, 0, 0, 0xff, 0xff, 0xff, 0xff]), Some(-1));
        assert_eq!(field.read(&[0; 6]), None);
        assert_eq!((varying.integer("b"), fixed.integer("a"), fixed.integer("c")), (None, None, None));
    }

    #[test]
    fn text_ends_at_its_first_zero_or_with_its_field() {
        let name = |text: &[u8]| up_to_zero(text).to_vec();

        assert_eq!(
            [name(b"web\0garbage\0\0\0\0\0"), name(b"\0\x01\x01\x01\x01\0\0\0\0\0\0\0\0\0\0\0")],
            [&b"web"[..], b""]
        );
        assert_eq!(
            [name(b"sixteen bytes \xff\x80"), name(b"a\0b"), name(b"ab")],
            [&b"sixteen bytes \xff\x80"[..], b"a", b"ab"]
        );
    }

    #[test]
    fn first_of_two_types_with_one_id_counts() {
        let first = schema(&[("a", FieldType::U8, false)]).description;
        let second = EventDescription { name: "test:other".into(), ..first.clone() };

        let mut schemas = SchemaTable::new(&[first]);
        schemas.add(&[second]);

        assert_eq!(schemas.get(3).map(Schema::name), Some("test:event"));
        assert!(schemas.get(2).is_none() && schemas.get(0xffff).is_none());
        assert_eq!(schemas.iter().count(), 1);
    }
}
