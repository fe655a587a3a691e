//! An event type that describes itself to Perfetto, and the fields of its records.

use super::proto::wire::{put_bytes, put_message, put_number};
use super::proto::{DescriptorProto, FieldDescriptorProto, FieldType, GenericEventDescriptor};
use shared_ring::event::FieldDescription;
use std::io::Write;
use strata_analysis::address_symbols::AddressSymbols;
use strata_analysis::field_names::FieldNames;
use strata_recording::reader::{StreamRecord, TraceLayer};
use strata_recording::schema::{Elements, PlacedField, Schema, Value, hex_digits, is_text_in_json};
use strata_recording::terminal::harmless;

/// Perfetto refuses fields with this number and above.
const FIELDS_END: u32 = 32;
/// What the host's kernel says with each event: Perfetto knows the thread of an event otherwise.
const THREAD: &str = "common_pid";

/// An event type that describes itself.
#[derive(Debug)]
pub(super) struct GenericType {
    /// Its number among the fields of Perfetto's own ones.
    pub(super) number: u32,
    /// Its fields, as far as Perfetto takes them.
    fields: Vec<GenericField>,
}

/// A field of such an event type.
#[derive(Debug)]
struct GenericField {
    /// `None` where it is not written.
    number: Option<u32>,
    /// The names of its numbers, where they have any; and the number of the field for the names.
    names: Option<(u32, FieldNames)>,
    /// Where it lies, if that is the same in all payloads.
    place: Option<PlacedField>,
    /// Whether its number is text.
    is_text: bool,
    /// Whether its numbers are hexadecimal in text.
    hex: bool,
}

impl GenericType {
    pub(super) fn new(number: u32, layer: &TraceLayer, schema: &Schema, symbols: &mut AddressSymbols<'_>) -> Self {
        let fields = &schema.description().fields;
        let mut placed = schema.placed_fields().iter();
        // Names come behind all fields.
        let mut free = (1..FIELDS_END).skip(fields.len());
        let field = |(position, (number, field)): (usize, (u32, &FieldDescription))| {
            let names = FieldNames::of(layer, schema, position, symbols);
            GenericField {
                number: (field.name != THREAD).then_some(number),
                names: names.and_then(|names| Some((free.next()?, names))),
                place: placed.next().copied(),
                is_text: is_text_in_json(field),
                hex: field.hex,
            }
        };
        Self { number, fields: (1..FIELDS_END).zip(fields).enumerate().map(field).collect() }
    }

    /// What Perfetto is told of it, the event type `schema`.
    pub(super) fn describe(&self, schema: &Schema) -> GenericEventDescriptor {
        let name = schema.name();
        let described = |name: &str, number: u32, of: FieldType| FieldDescriptorProto {
            name: Some(harmless(name)),
            number: Some(number.cast_signed()),
            r#type: Some(of.into()),
        };
        let fields = || self.fields.iter().zip(&schema.description().fields);
        let values = fields().filter_map(|(of, field)| Some(described(&field.name, of.number?, field_type(field))));
        let names = fields().filter_map(|(of, field)| {
            let (number, names) = of.names.as_ref()?;
            Some(described(&names.key(field), *number, FieldType::String))
        });
        let event = DescriptorProto {
            // Without the name of its group, as the kernel's own tools list it.
            name: Some(harmless(name.split_once(':').map_or(name, |(_, name)| name))),
            field: values.chain(names).collect(),
        };
        GenericEventDescriptor { field_id: Some(self.number.cast_signed()), event_descriptor: Some(event) }
    }

    /// Appends the fields of `record`, one of its records, as its description has them.
    pub(super) fn encode(&self, record: &StreamRecord<'_>, out: &mut Vec<u8>) {
        let mut behind = None;
        for field in &self.fields {
            let value = match field.place {
                Some(place) => place.read(record.payload),
                None => behind.get_or_insert_with(|| record.schema.values_behind_placed(record.payload)).next(),
            };
            let Some(value) = value else { return };
            if let Some(number) = field.number {
                field.encode(number, value, out);
            }
            if let Some((number, names)) = &field.names {
                encode_name(*number, names, value, record.payload, out);
            }
        }
    }
}

impl GenericField {
    fn encode(&self, number: u32, value: Value<'_>, out: &mut Vec<u8>) {
        match value {
            Value::Unsigned(value) if self.is_text => put_message(number, out, |out| {
                let (digits, length) = hex_digits(value);
                out.extend_from_slice(b"0x");
                out.extend_from_slice(digits.get(..length).unwrap_or_default());
            }),
            Value::Unsigned(value) => put_number(number, value, out),
            Value::Signed(value) => put_number(number, value.cast_unsigned(), out),
            Value::Text(text) => put_bytes(number, String::from_utf8_lossy(text).as_bytes(), out),
            Value::Array(elements) => put_bytes(number, list(elements, self.hex).as_bytes(), out),
        }
    }
}

/// Appends the name of what `value` in `payload` stands for, where it has one, as the field `number`.
fn encode_name(number: u32, names: &FieldNames, value: Value<'_>, payload: &[u8], out: &mut Vec<u8>) {
    let bits = match value {
        Value::Unsigned(bits) => bits,
        Value::Signed(bits) => bits.cast_unsigned(),
        Value::Text(_) | Value::Array(_) => return,
    };
    if let Some(name) = names.name(bits, payload) {
        // Memory takes all that is written.
        put_message(number, out, |out| drop(write!(out, "{name}")));
    }
}

/// Addresses are text: SQL has no unsigned integers of 64 bits.
fn field_type(field: &FieldDescription) -> FieldType {
    match field.ty.integer() {
        Some(integer) if integer.is_signed() && !field.hex => FieldType::Int64,
        Some(_) if !is_text_in_json(field) => FieldType::Uint64,
        _ => FieldType::String,
    }
}

/// The numbers of an array as text.
pub(super) fn list(elements: Elements<'_>, hex: bool) -> String {
    let elements: Vec<String> = elements
        .iter()
        .map(|element| match element {
            Value::Unsigned(number) if hex => format!("{number:#x}"),
            Value::Unsigned(number) => number.to_string(),
            Value::Signed(number) => number.to_string(),
            Value::Text(_) | Value::Array(_) => String::new(),
        })
        .collect();
    format!("[{}]", elements.join(", "))
}
