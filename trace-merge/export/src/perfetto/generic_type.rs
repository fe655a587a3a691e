//! An event type that describes itself to Perfetto, and the fields of its records.

use super::proto::wire::{Key, put_bytes_behind, put_message_behind, put_number_behind};
use super::proto::{DescriptorProto, FieldDescriptorProto, FieldType, GenericEventDescriptor};
use shared_ring::event::FieldDescription;
use std::io::Write;
use strata_analysis::address_symbols::AddressSymbols;
use strata_analysis::field_names::{FieldNames, Name};
use strata_analysis::kernel_symbols::SymbolOffset;
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
    /// What stands before its value; `None` where it is not written.
    key: Option<ValueKey>,
    /// The names of its numbers, where they have any; and the number of the field for the names.
    names: Option<(u32, FieldNames)>,
    /// Where it lies, if that is the same in all payloads.
    place: Option<PlacedField>,
    /// Whether its number is text.
    is_text: bool,
    /// Whether its numbers are hexadecimal in text.
    hex: bool,
}

/// What stands before a value.
#[derive(Clone, Copy, Debug)]
struct ValueKey {
    field: u32,
    of_number: Key,
    with_length: Key,
}

impl ValueKey {
    const fn new(field: u32) -> Self {
        Self { field, of_number: Key::of_number(field), with_length: Key::with_length(field) }
    }
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
                key: (field.name != THREAD).then(|| ValueKey::new(number)),
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
        let values = fields().filter_map(|(of, field)| Some(described(&field.name, of.key?.field, field_type(field))));
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
            if let Some(key) = field.key {
                field.encode(key, value, out);
            }
            if let Some((number, names)) = &field.names {
                encode_name(*number, names, value, record.payload, out);
            }
        }
    }
}

impl GenericField {
    #[inline]
    fn encode(&self, key: ValueKey, value: Value<'_>, out: &mut Vec<u8>) {
        match value {
            Value::Unsigned(value) if self.is_text => {
                put_message_behind(key.with_length, out, |out| append_hex(value, out));
            }
            Value::Unsigned(value) => put_number_behind(key.of_number, value, out),
            Value::Signed(value) => put_number_behind(key.of_number, value.cast_unsigned(), out),
            Value::Text(text) => put_bytes_behind(key.with_length, String::from_utf8_lossy(text).as_bytes(), out),
            Value::Array(elements) => {
                put_message_behind(key.with_length, out, |out| append_list(elements, self.hex, out));
            }
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
    let key = Key::with_length(number);
    match names.name(bits, payload) {
        Some(Name::Text(name)) => put_bytes_behind(key, name.as_bytes(), out),
        Some(Name::Symbol(symbol)) => put_message_behind(key, out, |out| append_symbol(symbol, out)),
        None => {}
    }
}

/// Appends `symbol` as it displays itself, without what formatting costs.
fn append_symbol(SymbolOffset { symbol, offset }: SymbolOffset<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(symbol.name.as_bytes());
    if offset > 0 {
        out.push(b'+');
        append_hex(offset, out);
    }
    if let Some(module) = symbol.module {
        out.extend_from_slice(b" [");
        out.extend_from_slice(module.as_bytes());
        out.push(b']');
    }
}

fn append_hex(number: u64, out: &mut Vec<u8>) {
    let (digits, length) = hex_digits(number);
    out.extend_from_slice(b"0x");
    out.extend_from_slice(digits.get(..length).unwrap_or_default());
}

/// Addresses are text: SQL has no unsigned integers of 64 bits.
fn field_type(field: &FieldDescription) -> FieldType {
    match field.ty.integer() {
        Some(integer) if integer.is_signed() && !field.hex => FieldType::Int64,
        Some(_) if !is_text_in_json(field) => FieldType::Uint64,
        _ => FieldType::String,
    }
}

/// Appends the numbers of an array as text.
pub(super) fn append_list(elements: Elements<'_>, hex: bool, out: &mut Vec<u8>) {
    out.push(b'[');
    for (index, element) in elements.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"" } else { b", " });
        match element {
            Value::Unsigned(number) if hex => append_hex(number, out),
            // Memory takes all that is written.
            Value::Unsigned(number) => drop(write!(out, "{number}")),
            Value::Signed(number) => drop(write!(out, "{number}")),
            Value::Text(_) | Value::Array(_) => {}
        }
    }
    out.push(b']');
}
