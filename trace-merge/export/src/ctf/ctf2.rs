//! What CTF 2's `metadata` file says: fragments of JSON (CTF2-SPEC-2.0), each between a record separator and a newline
//! (RFC 7464). They describe the same bytes as the recording's own TSDL ([`strata_recording::metadata`]), and skip the same gaps by
//! the alignment of what follows.

use serde_json::{Map, Value, json};
use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer};
use shared_ring::layout::EXTENDED_ID;
use strata_recording::metadata::{EnvironmentValue, TraceDescription, count_name, environment};

/// Precedes each fragment.
const RECORD_SEPARATOR: char = '\u{1e}';
/// The clock's name in the file.
const CLOCK: &str = "strata";
/// Bits to whose multiples packets' and records' headers are aligned.
const WORD: u32 = 64;

/// The whole text of a layer's `metadata` file.
#[must_use]
pub fn metadata(trace: &TraceDescription, events: &[EventDescription]) -> String {
    let fragments = [preamble(trace), clock(trace), trace_class(trace), data_stream_class()];
    let fragments = fragments.into_iter().chain(events.iter().map(event_record_class));
    fragments.map(|fragment| format!("{RECORD_SEPARATOR}{fragment}\n")).collect()
}

fn preamble(trace: &TraceDescription) -> Value {
    json!({ "type": "preamble", "version": 2, "uuid": trace.uuid.as_bytes() })
}

fn clock(trace: &TraceDescription) -> Value {
    let clock = &trace.clock;
    let (seconds, cycles) = clock.ctf_offset();
    json!({
        "type": "clock-class",
        "id": CLOCK,
        "name": CLOCK,
        "uid": clock.uuid.to_string(),
        "description": format!("Trace clock, ticks of {}", clock.source),
        "frequency": clock.frequency_hz,
        "precision": clock.error_bound_ticks(),
        "origin": "unix-epoch",
        "offset-from-origin": { "seconds": seconds, "cycles": cycles },
    })
}

fn trace_class(trace: &TraceDescription) -> Value {
    let environment: Map<String, Value> = environment(trace)
        .into_iter()
        .map(|(name, value)| match value {
            EnvironmentValue::Text(text) => (name.to_owned(), Value::from(text)),
            EnvironmentValue::Number(number) => (name.to_owned(), Value::from(number)),
        })
        .collect();
    let class = with_roles(unsigned(if trace.has_numbered_streams { 16 } else { 32 }), &["data-stream-class-id"]);
    let number = trace.has_numbered_streams.then(|| ("number", with_roles(unsigned(16), &["data-stream-id"])));
    let uuid = json!({ "type": "static-length-blob", "length": 16, "roles": ["metadata-stream-uuid"] });
    let members = [("magic", with_roles(unsigned(32), &["packet-magic-number"])), ("uuid", uuid), ("class", class)];
    json!({
        "type": "trace-class",
        "uid": trace.uuid.to_string(),
        "environment": environment,
        "packet-header-field-class": structure(members.into_iter().chain(number), 1),
    })
}

/// Packet context and record header: the bytes of `PacketHeader` from its 24th on, and of `RecordHeader`.
fn data_stream_class() -> Value {
    let of_role = |name, role| (name, with_roles(unsigned(64), &[role]));
    let count = |name| (name, unsigned(64));
    let context = [
        of_role("timestamp_begin", "default-clock-timestamp"),
        of_role("timestamp_end", "packet-end-default-clock-timestamp"),
        of_role("content_size", "packet-content-length"),
        of_role("packet_size", "packet-total-length"),
        of_role("packet_seq_num", "packet-sequence-number"),
        of_role("events_discarded", "discarded-event-record-counter-snapshot"),
        count("lost_full"),
        count("lost_wrapped"),
        count("lost_too_large"),
        ("cpu_id", unsigned(32)),
        ("rejected_bytes", with(unsigned(64), "alignment", WORD)),
        count("overwritten"),
        ("reserved", json!({ "type": "static-length-string", "length": 8 })),
    ];
    let extended = [
        ("timestamp", with_roles(unsigned(64), &["default-clock-timestamp"])),
        ("id", with_roles(unsigned(16), &["event-record-class-id"])),
        ("end", empty()),
    ];
    let option = |name, first, last, class| json!({ "name": name, "selector-field-ranges": [[first, last]], "field-class": class });
    let header = [
        ("timestamp", with_roles(unsigned(32), &["default-clock-timestamp"])),
        ("id", with_roles(unsigned(16), &["event-record-class-id"])),
        (
            "rest",
            json!({
                "type": "variant",
                "selector-field-location": { "origin": "event-record-header", "path": ["id"] },
                "options": [
                    option("compact", 0, EXTENDED_ID - 1, empty()),
                    option("extended", EXTENDED_ID, EXTENDED_ID, structure(extended, WORD)),
                ],
            }),
        ),
    ];
    json!({
        "type": "data-stream-class",
        "id": 0,
        "default-clock-class-id": CLOCK,
        "packet-context-field-class": structure(context, 1),
        "event-record-header-field-class": structure(header, WORD),
    })
}

fn event_record_class(event: &EventDescription) -> Value {
    let in_place = event.fields.iter().map(|field| in_place(event, field));
    // What lies behind the last field, with the counts that stand in their places.
    let behind = event.fields.iter().filter_map(|field| {
        let count = json!({ "origin": "event-record-payload", "path": [count_name(event, &field.name)] });
        let class = match field.ty {
            FieldType::Sequence(element) => json!({
                "type": "dynamic-length-array",
                "length-field-location": count,
                "element-field-class": integer(element, field.hex),
            }),
            FieldType::Text => {
                json!({ "type": "dynamic-length-string", "length-field-location": count })
            }
            _ => return None,
        };
        Some((field.name.clone(), class))
    });
    json!({
        "type": "event-record-class",
        "id": event.id,
        "data-stream-class-id": 0,
        "name": event.name,
        "payload-field-class": structure(in_place.chain(behind), 1),
    })
}

/// What stands in the place of `field`: its value, or its count.
fn in_place(event: &EventDescription, field: &FieldDescription) -> (String, Value) {
    let name = field.name.clone();
    match (field.ty, field.ty.integer()) {
        (_, Some(value)) => (name, integer(value, field.hex)),
        (FieldType::F64, _) => (name, with(unsigned(64), "type", "fixed-length-floating-point-number")),
        (FieldType::CharArray(length), _) => (name, json!({ "type": "static-length-string", "length": length })),
        (FieldType::Array(element, length), _) => {
            let element = integer(element, field.hex);
            (name, json!({ "type": "static-length-array", "length": length, "element-field-class": element }))
        }
        (FieldType::Sequence(_) | FieldType::Text, _) => (count_name(event, &name), unsigned(16)),
        _ => (name, json!({ "type": "null-terminated-string" })),
    }
}

/// Hexadecimal is shown of the bits, whatever the sign.
fn integer(integer: Integer, hex: bool) -> Value {
    let class = unsigned(integer.size() * 8);
    match (integer.is_signed(), hex) {
        (_, true) => with(class, "preferred-display-base", 16),
        (true, false) => with(class, "type", "fixed-length-signed-integer"),
        (false, false) => class,
    }
}

/// Byte-aligned: fields follow each other without padding.
fn unsigned(bits: usize) -> Value {
    json!({ "type": "fixed-length-unsigned-integer", "length": bits, "byte-order": "little-endian", "alignment": 8 })
}

fn structure<N: Into<String>>(members: impl IntoIterator<Item = (N, Value)>, alignment: u32) -> Value {
    let member = |(name, class): (N, Value)| json!({ "name": name.into(), "field-class": class });
    let members: Vec<Value> = members.into_iter().map(member).collect();
    json!({ "type": "structure", "minimum-alignment": alignment, "member-classes": members })
}

/// No bytes, but for those that bring what follows to a word.
fn empty() -> Value {
    structure::<String>([], WORD)
}

fn with_roles(class: Value, roles: &[&str]) -> Value {
    with(class, "roles", roles)
}

fn with(mut class: Value, property: &str, value: impl Into<Value>) -> Value {
    class[property] = value.into();
    class
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::test_trace::trace_description as trace;

    fn event(fields: &[(&str, FieldType, bool)]) -> EventDescription {
        let field =
            |(name, ty, hex): &(&str, FieldType, bool)| FieldDescription { name: (*name).into(), ty: *ty, hex: *hex };
        EventDescription { id: 7, class: 0, name: "test:event".into(), fields: fields.iter().map(field).collect() }
    }

    /// Names and types of the payload's members.
    fn payload(event: &EventDescription) -> Vec<(String, String)> {
        let class = event_record_class(event);
        let members = class["payload-field-class"]["member-classes"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        members.map(|member| (text(&member["name"]), text(&member["field-class"]["type"]))).collect()
    }

    #[test]
    fn each_fragment_is_one_line_of_json_behind_a_separator() {
        let text = metadata(&trace(), &[event(&[])]);

        let types: Vec<String> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line.strip_prefix(RECORD_SEPARATOR).unwrap()).unwrap())
            .map(|fragment| fragment["type"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(types, ["preamble", "clock-class", "trace-class", "data-stream-class", "event-record-class"]);
    }

    #[test]
    fn what_lies_behind_the_last_field_refers_to_the_count_in_its_place() {
        let event = event(&[
            ("name", FieldType::Text, false),
            ("name_length", FieldType::U8, false),
            ("values", FieldType::Sequence(Integer::I32), false),
        ]);

        let (names, types): (Vec<_>, Vec<_>) = payload(&event).into_iter().unzip();

        assert_eq!(names, ["name_length_", "name_length", "values_length", "name", "values"]);
        assert_eq!(types[3..], ["dynamic-length-string", "dynamic-length-array"]);
    }

    #[test]
    fn sign_is_kept_but_where_bits_are_shown() {
        let fields =
            [("signed", FieldType::I64, false), ("bits", FieldType::I64, true), ("float", FieldType::F64, false)];
        let types = payload(&event(&fields));

        let types: Vec<_> = types.iter().map(|(_, ty)| ty.as_str()).collect();
        let [signed, bits, float] = ["signed-integer", "unsigned-integer", "floating-point-number"];
        assert_eq!(types, [signed, bits, float].map(|class| format!("fixed-length-{class}")));
    }

    #[test]
    fn numbered_streams_are_distinguished_by_their_packets() {
        let members = |has_numbered_streams| {
            let class = trace_class(&TraceDescription { has_numbered_streams, ..trace() });
            class["packet-header-field-class"]["member-classes"].as_array().unwrap().len()
        };

        assert_eq!((members(false), members(true)), (3, 4));
    }
}
