//! An event type that describes itself to Perfetto, and the fields of its records.

use crate::perfetto::proto::wire::{Fields, Key, put_bytes_behind, put_message_behind, put_number_behind};
use crate::perfetto::proto::{DescriptorProto, FieldDescriptorProto, FieldType, GenericEventDescriptor};
use shared_ring::event::FieldDescription;
use std::cell::RefCell;
use strata_analysis::address_symbols::AddressSymbols;
use strata_analysis::field_names::{FieldNames, Name};
use strata_analysis::kernel_symbols::SymbolOffset;
use strata_recording::reader::{StreamRecord, TraceLayer};
use strata_recording::schema::{Elements, FloatText, PlacedField, Schema, Value, hex_digits, is_text_in_json};
use strata_recording::text::terminal::harmless;

/// Perfetto refuses fields with this number and above.
const FIELDS_END: u32 = 32;
/// What the host's kernel says with each event: Perfetto knows the thread of an event otherwise.
const THREAD: &str = "common_pid";

/// An event type that describes itself.
#[derive(Debug)]
pub(in crate::perfetto) struct GenericType {
    /// Its number among the fields of Perfetto's own ones.
    pub(in crate::perfetto) number: u32,
    /// Its fields, as far as Perfetto takes them.
    fields: Vec<GenericField>,
}

/// A field of such an event type.
#[derive(Debug)]
struct GenericField {
    /// What stands before its value; `None` where it is not written.
    key: Option<FieldKey>,
    /// The names of its numbers, where they have any; and what stands before a name.
    names: Option<(FieldKey, FieldNames)>,
    /// Those that were written last, encoded, where they are few.
    written: RefCell<[Option<Written>; WRITTEN]>,
    /// Where it lies, if that is the same in all payloads.
    place: Option<PlacedField>,
    /// Whether its number is text.
    is_text: bool,
    /// Whether its numbers are hexadecimal in text.
    hex: bool,
}

/// Names of a field that are kept encoded.
const WRITTEN: usize = 16;

/// A name as it was written.
#[derive(Debug)]
struct Written {
    /// The number, and what else its name depends on.
    of: (u64, Option<i64>),
    field: Vec<u8>,
}

/// What stands before a value.
#[derive(Clone, Copy, Debug)]
struct FieldKey {
    field: u32,
    of_number: Key,
    with_length: Key,
}

impl FieldKey {
    const fn new(field: u32) -> Self {
        Self { field, of_number: Key::of_number(field), with_length: Key::with_length(field) }
    }
}

impl GenericType {
    pub(in crate::perfetto) fn new(
        number: u32,
        layer: &TraceLayer,
        schema: &Schema,
        symbols: &mut AddressSymbols<'_>,
    ) -> Self {
        let fields = &schema.description().fields;
        let mut placed = schema.placed_fields().iter();
        // Names come behind all fields.
        let mut free = (1..FIELDS_END).skip(fields.len());
        let field = |(position, (number, field)): (usize, (u32, &FieldDescription))| {
            let names = FieldNames::of(layer, schema, position, symbols);
            GenericField {
                key: (field.name != THREAD).then(|| FieldKey::new(number)),
                names: names.and_then(|names| Some((FieldKey::new(free.next()?), names))),
                written: RefCell::default(),
                place: placed.next().copied(),
                is_text: is_text_in_json(field),
                hex: field.hex,
            }
        };
        Self { number, fields: (1..FIELDS_END).zip(fields).enumerate().map(field).collect() }
    }

    /// What Perfetto gets of it, the event type `schema`.
    pub(in crate::perfetto) fn describe(&self, schema: &Schema) -> GenericEventDescriptor {
        let name = schema.name();
        let described = |name: &str, number: u32, of: FieldType| FieldDescriptorProto {
            name: Some(harmless(name)),
            number: Some(number.cast_signed()),
            r#type: Some(of.into()),
        };
        let fields = || self.fields.iter().zip(&schema.description().fields);
        let values = fields().filter_map(|(of, field)| Some(described(&field.name, of.key?.field, field_type(field))));
        let names = fields().filter_map(|(of, field)| {
            let (key, names) = of.names.as_ref()?;
            Some(described(&names.key(field), key.field, FieldType::String))
        });
        let event = DescriptorProto {
            // Without the name of its group, as the kernel's own tools list it.
            name: Some(harmless(name.split_once(':').map_or(name, |(_, name)| name))),
            field: values.chain(names).collect(),
        };
        GenericEventDescriptor { field_id: Some(self.number.cast_signed()), event_descriptor: Some(event) }
    }

    /// Appends the fields of `record`, one of its records, as its description has them.
    pub(in crate::perfetto) fn encode(&self, record: &StreamRecord<'_>, out: &mut impl Fields) {
        let mut behind = None;
        for field in &self.fields {
            if let Some(PlacedField::Integer(place)) = field.place {
                let Some(bits) = place.bits(record.payload) else { return };
                field.encode_number(bits, record.payload, out);
                continue;
            }
            let value = match field.place {
                Some(place) => place.read(record.payload),
                None => behind.get_or_insert_with(|| record.schema.values_behind_placed(record.payload)).next(),
            };
            match value {
                Some(Value::Unsigned(bits)) => field.encode_unplaced_number(bits, record.payload, out),
                Some(Value::Signed(number)) => {
                    field.encode_unplaced_number(number.cast_unsigned(), record.payload, out);
                }
                Some(Value::Float(number)) => field.encode_text(FloatText(number).to_string().as_bytes(), out),
                Some(Value::Text(text)) => field.encode_text(text, out),
                Some(Value::Array(elements)) => field.encode_list(elements, out),
                None => return,
            }
        }
    }
}

impl GenericField {
    /// Appends the number that is `bits`, and the name of what it stands for in `payload`, where it has one.
    #[inline(always)]
    fn encode_number(&self, bits: u64, payload: &[u8], out: &mut impl Fields) {
        match self.key {
            Some(key) if self.is_text => put_message_behind(key.with_length, out, |out| append_hex(bits, out)),
            Some(key) => put_number_behind(key.of_number, bits, out),
            None => {}
        }
        if let Some((key, names)) = &self.names {
            match names.are_few() {
                true => self.encode_one_of_few((*key, names), (bits, payload), out),
                false => encode_name(*key, names, (bits, payload), out),
            }
        }
    }

    #[inline(never)]
    fn encode_one_of_few(
        &self,
        (key, names): (FieldKey, &FieldNames),
        (bits, payload): (u64, &[u8]),
        out: &mut impl Fields,
    ) {
        let of = (bits, names.beside().and_then(|field| field.read(payload)));
        let mut written = self.written.borrow_mut();
        let [lowest, ..] = bits.to_le_bytes();
        let Some(written) = written.get_mut(usize::from(lowest) % WRITTEN) else { return };
        match written {
            Some(written) if written.of == of => out.put_slice(&written.field),
            _ => {
                let mut field = Vec::new();
                encode_name(key, names, (bits, payload), &mut field);
                out.put_slice(&field);
                *written = Some(Written { of, field });
            }
        }
    }

    #[inline(never)]
    fn encode_unplaced_number(&self, bits: u64, payload: &[u8], out: &mut impl Fields) {
        self.encode_number(bits, payload, out);
    }

    fn encode_text(&self, text: &[u8], out: &mut impl Fields) {
        if let Some(key) = self.key {
            put_bytes_behind(key.with_length, String::from_utf8_lossy(text).as_bytes(), out);
        }
    }

    fn encode_list(&self, elements: Elements<'_>, out: &mut impl Fields) {
        if let Some(key) = self.key {
            put_message_behind(key.with_length, out, |out| append_list(elements, self.hex, out));
        }
    }
}

/// Appends the name of what the number that is `bits` stands for in `payload`, where it has one.
#[inline(never)]
fn encode_name(key: FieldKey, names: &FieldNames, (bits, payload): (u64, &[u8]), out: &mut impl Fields) {
    match names.name(bits, payload) {
        Some(Name::Text(name)) => put_bytes_behind(key.with_length, name.as_bytes(), out),
        Some(Name::Symbol(symbol)) => put_message_behind(key.with_length, out, |out| append_symbol(symbol, out)),
        None => {}
    }
}

/// Appends `symbol` as it displays itself, without what formatting costs.
fn append_symbol(SymbolOffset { symbol, offset }: SymbolOffset<'_>, out: &mut impl Fields) {
    out.put_slice(symbol.name.as_bytes());
    if offset > 0 {
        out.put_slice(b"+");
        append_hex(offset, out);
    }
    if let Some(module) = symbol.module {
        out.put_slice(b" [");
        out.put_slice(module.as_bytes());
        out.put_slice(b"]");
    }
}

fn append_hex(number: u64, out: &mut impl Fields) {
    let (digits, length) = hex_digits(number);
    // Both are there, in sixteen bytes.
    let (Some(first), Some(second)) = (digits.first_chunk(), digits.last_chunk()) else { return };
    let (first, second) = (u64::from_le_bytes(*first), u64::from_le_bytes(*second));
    out.put_word(u64::from(u16::from_le_bytes(*b"0x")), 2);
    out.put_word(first, length.min(8));
    if length > 8 {
        out.put_word(second, length - 8);
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

/// Appends the numbers of an array as text.
pub(super) fn append_list(elements: Elements<'_>, hex: bool, out: &mut impl Fields) {
    out.put_slice(b"[");
    for (index, element) in elements.iter().enumerate() {
        out.put_slice(if index == 0 { b"" } else { b", " });
        match element {
            Value::Unsigned(number) if hex => append_hex(number, out),
            Value::Unsigned(number) => out.put_text(format_args!("{number}")),
            Value::Signed(number) => out.put_text(format_args!("{number}")),
            Value::Float(_) | Value::Text(_) | Value::Array(_) => {}
        }
    }
    out.put_slice(b"]");
}
