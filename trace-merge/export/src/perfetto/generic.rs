//! Records that Perfetto has no form for: events that describe themselves, each type of them once, with the fields that
//! they have.

use super::packets::{FtraceKind, Machine, PacketWriter};
use super::proto::{DescriptorProto, FieldDescriptorProto, FieldType, GenericEventDescriptor};
use super::wire::{put_bytes, put_number};
use shared_ring::event::FieldDescription;
use std::io::Write;
use strata_recording::reader::StreamRecord;
use strata_recording::schema::{Elements, Schema, Value, is_text_in_json};
use strata_recording::terminal::harmless;

/// The least number of a type of event that describes itself, among the fields of Perfetto's own ones.
const FIRST: u32 = 1 << 16;
/// Perfetto refuses fields with this number and above.
const FIELDS_END: u32 = 32;
/// What the host's kernel says with each event: Perfetto knows the thread of an event otherwise.
const THREAD: &str = "common_pid";

/// Writes such records.
#[derive(Debug, Default)]
pub(super) struct GenericRecords {
    /// By layer and event type: its number.
    numbers: Vec<Vec<Option<u32>>>,
    described: u32,
}

impl GenericRecords {
    /// Writes a record of the layer `layer`.
    pub(super) fn record<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        (layer, place): (usize, (Machine, u32)),
        by: (u64, i64),
        record: &StreamRecord<'_>,
    ) {
        if !out.muted {
            let event = self.number(out, (layer, place), record.schema);
            out.ftrace(place, by, FtraceKind::Generic { event, record });
        }
    }

    /// The number of the event type `schema` of the layer `layer`, which is described afterwards.
    fn number<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        (layer, place): (usize, (Machine, u32)),
        schema: &Schema,
    ) -> u32 {
        if self.numbers.len() <= layer {
            self.numbers.resize(layer + 1, Vec::new());
        }
        let next = FIRST + self.described;
        let Some(numbers) = self.numbers.get_mut(layer) else { return next };
        if numbers.len() <= schema.position() {
            numbers.resize(schema.position() + 1, None);
        }
        let Some(number) = numbers.get_mut(schema.position()) else { return next };
        if let Some(number) = *number {
            return number;
        }
        *number = Some(next);
        self.described += 1;
        out.describe_event(place, describe(next, schema));
        next
    }
}

fn describe(number: u32, schema: &Schema) -> GenericEventDescriptor {
    let name = schema.name();
    let field = |(number, field): (u32, &FieldDescription)| FieldDescriptorProto {
        name: Some(harmless(&field.name)),
        number: Some(number.cast_signed()),
        r#type: Some(field_type(field).into()),
    };
    let fields = (1..FIELDS_END).zip(&schema.description().fields);
    let event = DescriptorProto {
        // Without the name of its group, as the kernel's own tools list it.
        name: Some(harmless(name.split_once(':').map_or(name, |(_, name)| name))),
        field: fields.filter(|(_, field)| field.name != THREAD).map(field).collect(),
    };
    GenericEventDescriptor { field_id: Some(number.cast_signed()), event_descriptor: Some(event) }
}

/// Addresses are text: SQL has no unsigned integers of 64 bits.
fn field_type(field: &FieldDescription) -> FieldType {
    match field.ty.integer() {
        Some(integer) if integer.is_signed() && !field.hex => FieldType::Int64,
        Some(_) if !is_text_in_json(field) => FieldType::Uint64,
        _ => FieldType::String,
    }
}

/// Appends the fields of `record` as its description has them.
pub(super) fn encode(record: &StreamRecord<'_>, out: &mut Vec<u8>) {
    let fields = record.schema.fields(record.payload);
    for (number, (field, value)) in (1..FIELDS_END).zip(fields).filter(|(_, (field, _))| field.name != THREAD) {
        match value {
            Value::Unsigned(value) if is_text_in_json(field) => {
                put_bytes(number, format!("{value:#x}").as_bytes(), out)
            }
            Value::Unsigned(value) => put_number(number, value, out),
            Value::Signed(value) => put_number(number, value.cast_unsigned(), out),
            Value::Text(text) => put_bytes(number, String::from_utf8_lossy(text).as_bytes(), out),
            Value::Array(elements) => put_bytes(number, list(elements, field.hex).as_bytes(), out),
        }
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
