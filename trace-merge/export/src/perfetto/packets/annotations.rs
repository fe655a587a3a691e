//! The fields of a record as annotations of an event of a track.

use super::generic_type::append_list;
use crate::perfetto::proto::field;
use crate::perfetto::proto::wire::{put_bytes, put_double, put_message, put_number};
use strata_recording::reader::StreamRecord;
use strata_recording::schema::Value;

/// Appends the fields of `record` to an event of a track.
pub(super) fn put_fields(record: &StreamRecord<'_>, out: &mut Vec<u8>) {
    for (field, value) in record.schema.fields(record.payload) {
        put_message(field::TRACK_EVENT_ANNOTATION, out, |out| {
            put_value(field.hex, value, out);
            put_bytes(field::ANNOTATION_NAME, field.name.as_bytes(), out);
        });
    }
}

fn put_value(hex: bool, value: Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Unsigned(number) if hex => put_number(field::ANNOTATION_POINTER, number, out),
        Value::Unsigned(number) => put_number(field::ANNOTATION_UNSIGNED, number, out),
        Value::Signed(number) => put_number(field::ANNOTATION_SIGNED, number.cast_unsigned(), out),
        Value::Float(number) => put_double(field::ANNOTATION_DOUBLE, number, out),
        Value::Text(text) => put_bytes(field::ANNOTATION_TEXT, String::from_utf8_lossy(text).as_bytes(), out),
        Value::Array(elements) => put_message(field::ANNOTATION_TEXT, out, |out| append_list(elements, hex, out)),
    }
}
