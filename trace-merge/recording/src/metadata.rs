//! The `metadata` file of a layer: CTF 1.8 TSDL text, for babeltrace2, Trace Compass and whatever else reads CTF.
//!
//! The text describes bytes that [`shared_ring::layout`] fixes. Three turns in it are due to readers:
//!
//! - Gaps (the payload size in a record header, reserved words) are skipped by the alignment of what follows, empty
//!   structures where nothing does: babeltrace2 warns about header fields whose meaning it does not know.
//! - Each payload field's name begins with an underscore, which readers strip: a field may then be called `int`.
//! - Readers want a packet's content to end exactly with the payload of its last record, without the padding that
//!   brings it to 8 bytes; [`crate::writer`] states it so.

use crate::clock::Clock;
use crate::layer::LayerKind;
use crate::manifest::{Host, Layer, Manifest, Process};
use serde::Serialize;
use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer};
use shared_ring::layout::{CTF_MAGIC, EXTENDED_ID};
use std::fmt::Write;
use uuid::Uuid;

/// What a layer's metadata tells beyond its event types.
#[derive(Clone, Debug)]
pub struct TraceDescription {
    /// UUID of the layer's trace.
    pub uuid: Uuid,
    /// Kind of the layer.
    pub kind: LayerKind,
    /// Name of the VM.
    pub vm: Option<String>,
    /// The process, for a user layer.
    pub process: Option<Process>,
    /// The clock.
    pub clock: Clock,
    /// The machine that recorded.
    pub host: Host,
    /// Version of Strata that recorded.
    pub strata: String,
    /// Whether a stream may lie in several files, whose packets all carry its number in the layer.
    pub has_numbered_streams: bool,
}

impl TraceDescription {
    /// That of a layer of a recording.
    #[must_use]
    pub fn of(layer: &Layer, manifest: &Manifest) -> Self {
        Self {
            uuid: layer.uuid,
            kind: layer.kind,
            vm: layer.vm.clone(),
            process: layer.process.clone(),
            clock: manifest.clock.clone(),
            host: manifest.host.clone(),
            strata: manifest.strata.clone(),
            has_numbered_streams: manifest.max_size.is_some(),
        }
    }
}

/// What each such text begins with, as CTF asks for.
pub const FIRST_LINE: &str = "/* CTF 1.8 */";

/// The whole text of a layer's `metadata` file.
#[must_use]
pub fn tsdl(trace: &TraceDescription, events: &[EventDescription]) -> String {
    let mut text = format!("{FIRST_LINE}\n\n");
    text.push_str(TYPES);
    write_trace(&mut text, trace);
    write_environment(&mut text, trace);
    write_clock(&mut text, &trace.clock);
    write_stream(&mut text);
    text.push_str(&event_types(events));
    text
}

/// What `events` add at the end of [`tsdl`]'s text.
#[must_use]
pub fn event_types(events: &[EventDescription]) -> String {
    events.iter().map(event_type).collect()
}

/// How what describes an event, or something else as a whole, ends.
pub const BLOCK_ENDS: &str = "\n};\n";

/// What `event` adds to it: up to [`BLOCK_ENDS`].
#[must_use]
pub fn event_type(event: &EventDescription) -> String {
    let mut text = String::new();
    write_event(&mut text, event);
    text
}

/// Integers are byte-aligned: fields follow each other without padding.
const TYPES: &str = "\
typealias integer { size = 8; align = 8; signed = false; } := u8;
typealias integer { size = 16; align = 8; signed = false; } := u16;
typealias integer { size = 32; align = 8; signed = false; } := u32;
typealias integer { size = 64; align = 8; signed = false; } := u64;
typealias integer { size = 8; align = 8; signed = true; } := i8;
typealias integer { size = 16; align = 8; signed = true; } := i16;
typealias integer { size = 32; align = 8; signed = true; } := i32;
typealias integer { size = 64; align = 8; signed = true; } := i64;
typealias integer { size = 8; align = 8; signed = false; base = 16; } := hex8;
typealias integer { size = 16; align = 8; signed = false; base = 16; } := hex16;
typealias integer { size = 32; align = 8; signed = false; base = 16; } := hex32;
typealias integer { size = 64; align = 8; signed = false; base = 16; } := hex64;
typealias integer { size = 8; align = 8; signed = false; encoding = UTF8; } := text8;
typealias floating_point { exp_dig = 11; mant_dig = 53; byte_order = le; align = 8; } := f64;
";

/// `fmt::Write` to a `String` cannot fail; this says so once.
macro_rules! put {
    ($text:expr, $($argument:tt)*) => {{
        let _ = writeln!($text, $($argument)*);
    }};
}

fn write_trace(text: &mut String, trace: &TraceDescription) {
    let uuid = trace.uuid;
    let stream =
        if trace.has_numbered_streams { "u16 stream_id;\n\t\tu16 stream_instance_id;" } else { "u32 stream_id;" };
    put!(text, "\ntrace {{\n\tmajor = 1;\n\tminor = 8;\n\tuuid = \"{uuid}\";\n\tbyte_order = le;");
    put!(text, "\tpacket.header := struct {{\n\t\tu32 magic; /* {CTF_MAGIC:#x} */\n\t\tu8 uuid[16];");
    put!(text, "\t\t{stream}\n\t}};\n}};");
}

/// A value of a trace's environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum EnvironmentValue {
    /// Text.
    Text(String),
    /// A number.
    Number(u32),
}

/// What a layer's metadata tells readers about where the trace comes from, by name.
#[must_use]
pub fn environment(trace: &TraceDescription) -> Vec<(&'static str, EnvironmentValue)> {
    // Trace Compass takes the names of a kernel's events and fields to be those of this tracer. perf takes them from the
    // kernel as they are, as Strata does.
    let (domain, tracer) = match trace.kind {
        LayerKind::HostKernel | LayerKind::GuestKernel => ("kernel", "perf"),
        LayerKind::Vmm | LayerKind::GuestUser => ("ust", "strata"),
    };
    // What babeltrace2 shows as the host of an event: the machine whose code recorded it.
    let hostname = match (&trace.vm, trace.kind) {
        (Some(vm), LayerKind::GuestKernel | LayerKind::GuestUser) => vm,
        _ => &trace.host.hostname,
    };
    let mut values = vec![
        ("domain", domain),
        ("tracer_name", tracer),
        ("recorded_by", "strata"),
        ("tracer_version", &trace.strata),
        ("layer", trace.kind.name()),
        ("hostname", hostname),
        ("host_kernel_release", &trace.host.kernel),
    ];
    values.extend(trace.vm.as_deref().map(|vm| ("vm", vm)));
    let mut values: Vec<_> =
        values.into_iter().map(|(name, text)| (name, EnvironmentValue::Text(text.into()))).collect();
    if let Some(process) = &trace.process {
        values.push(("vpid", EnvironmentValue::Number(process.pid)));
        values.push(("procname", EnvironmentValue::Text(process.comm.clone())));
    }
    values
}

fn write_environment(text: &mut String, trace: &TraceDescription) {
    put!(text, "\nenv {{");
    for (name, value) in environment(trace) {
        match value {
            EnvironmentValue::Text(value) => put!(text, "\t{name} = {};", quoted(&value)),
            EnvironmentValue::Number(value) => put!(text, "\t{name} = {value};"),
        }
    }
    put!(text, "}};");
}

fn write_clock(text: &mut String, clock: &Clock) {
    let (offset_s, offset) = clock.ctf_offset();
    put!(text, "\nclock {{\n\tname = \"strata\";\n\tuuid = \"{}\";", clock.uuid);
    put!(text, "\tdescription = {};", quoted(&format!("Trace clock, ticks of {}", clock.source)));
    put!(text, "\tfreq = {};\n\tprecision = {};", clock.frequency_hz, clock.error_bound_ticks());
    put!(text, "\toffset_s = {offset_s};\n\toffset = {offset};\n\tabsolute = true;\n}};");
    put!(text, "typealias integer {{ size = 32; align = 8; signed = false; map = clock.strata.value; }} := time32;");
    put!(text, "typealias integer {{ size = 64; align = 8; signed = false; map = clock.strata.value; }} := time64;");
}

/// Packet context and record header: the bytes of `PacketHeader` from its 24th on, and of `RecordHeader`.
fn write_stream(text: &mut String) {
    text.push_str(
        "\nstream {\n\tid = 0;\n\tpacket.context := struct {\n\t\ttime64 timestamp_begin;\n\t\ttime64 timestamp_end;\n\
         \t\tu64 content_size;\n\t\tu64 packet_size;\n\t\tu64 packet_seq_num;\n\t\tu64 events_discarded;\n\
         \t\tu64 lost_full;\n\t\tu64 lost_wrapped;\n\t\tu64 lost_too_large;\n\t\tu32 cpu_id;\n\
         \t\t/* 4 bytes of flags before it, skipped by its alignment */\n\
         \t\tinteger { size = 64; align = 64; signed = false; } rejected_bytes;\n\t\tu64 overwritten;\n\t\ttext8 reserved[8];\n\t};\n",
    );
    let (last, extended) = (EXTENDED_ID - 1, EXTENDED_ID);
    put!(text, "\tevent.header := struct {{\n\t\ttime32 timestamp;");
    put!(text, "\t\tenum : u16 {{ compact = 1 ... {last}, extended = {extended} }} id;");
    put!(text, "\t\t/* 2 bytes of payload size before it, skipped by its alignment */");
    put!(text, "\t\tvariant <id> {{\n\t\t\tstruct {{ }} align(64) compact;");
    put!(text, "\t\t\tstruct {{\n\t\t\t\ttime64 timestamp;\n\t\t\t\tu16 id;");
    put!(text, "\t\t\t\tstruct {{ }} align(64) end;\n\t\t\t}} align(64) extended;\n\t\t}} v;\n\t}} align(64);\n}};");
}

fn write_event(text: &mut String, event: &EventDescription) {
    put!(text, "\nevent {{\n\tname = {};\n\tid = {};\n\tstream_id = 0;", quoted(&event.name), event.id);
    put!(text, "\tfields := struct {{");
    for field in &event.fields {
        write_field(text, event, field);
    }
    // What lies behind the last field, with the counts that stand in their places.
    for field in &event.fields {
        let (name, count) = (&field.name, count_name(event, &field.name));
        match field.ty {
            FieldType::Sequence(integer) => put!(text, "\t\t{} _{name}[_{count}];", integer_type(integer, field.hex)),
            FieldType::Text => put!(text, "\t\ttext8 _{name}[_{count}];"),
            _ => {}
        }
    }
    put!(text, "\t}};\n}};");
}

/// The name of the element count of field `name`, unlike that of any field.
pub fn count_name(event: &EventDescription, name: &str) -> String {
    let mut count = format!("{name}_length");
    while event.fields.iter().any(|field| field.name == count) {
        count.push('_');
    }
    count
}

const fn integer_type(integer: Integer, hex: bool) -> &'static str {
    // Hexadecimal is shown of the bits, whatever the sign.
    match (integer, hex) {
        (Integer::U8, false) => "u8",
        (Integer::U16, false) => "u16",
        (Integer::U32, false) => "u32",
        (Integer::U64, false) => "u64",
        (Integer::I8, false) => "i8",
        (Integer::I16, false) => "i16",
        (Integer::I32, false) => "i32",
        (Integer::I64, false) => "i64",
        (Integer::U8 | Integer::I8, true) => "hex8",
        (Integer::U16 | Integer::I16, true) => "hex16",
        (Integer::U32 | Integer::I32, true) => "hex32",
        (Integer::U64 | Integer::I64, true) => "hex64",
    }
}

fn write_field(text: &mut String, event: &EventDescription, field: &FieldDescription) {
    let name = &field.name;
    match (field.ty, field.ty.integer()) {
        (_, Some(integer)) => put!(text, "\t\t{} _{name};", integer_type(integer, field.hex)),
        (FieldType::F64, _) => put!(text, "\t\tf64 _{name};"),
        (FieldType::CharArray(length), _) => put!(text, "\t\ttext8 _{name}[{length}];"),
        (FieldType::Array(integer, length), _) => {
            put!(text, "\t\t{} _{name}[{length}];", integer_type(integer, field.hex));
        }
        (FieldType::Sequence(_) | FieldType::Text, _) => put!(text, "\t\tu16 _{};", count_name(event, name)),
        _ => put!(text, "\t\tstring _{name};"),
    }
}

/// `value` as a TSDL string literal on one line.
fn quoted(value: &str) -> String {
    let mut literal = String::with_capacity(value.len() + 2);
    literal.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => literal.extend(['\\', character]),
            control if control.is_control() => literal.push('?'),
            other => literal.push(other),
        }
    }
    literal.push('"');
    literal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_trace::trace_description as trace;

    #[test]
    fn text_begins_with_the_signature_that_readers_look_for() {
        assert!(tsdl(&trace(), &[]).starts_with("/* CTF 1.8 */"));
    }

    #[test]
    fn hostile_text_stays_inside_its_literal() {
        let text = tsdl(&trace(), &[]);

        assert!(text.contains("\tprocname = \"say \\\"hi\\\"\\\\?\";\n"), "{text}");
    }

    #[test]
    fn clock_states_utc_of_tick_zero() {
        let text = tsdl(&trace(), &[]);

        assert!(text.contains("freq = 2000000000;"), "{text}");
        assert!(text.contains("offset_s = 1699999999;\n\toffset = 1999999000;\n\tabsolute = true;"), "{text}");
    }

    #[test]
    fn elements_behind_the_last_field_are_described_by_their_counts() {
        let field = |name: &str, ty| FieldDescription { name: name.into(), ty, hex: false };
        let event = EventDescription {
            id: 1,
            class: 0,
            name: "test:event".into(),
            fields: vec![
                field("name", FieldType::Text),
                field("name_length", FieldType::U8),
                field("values", FieldType::Sequence(Integer::I32)),
                field("mac", FieldType::Array(Integer::U8, 6)),
            ],
        };

        let text = tsdl(&trace(), &[event]);

        let expected = "\tfields := struct {\n\t\tu16 _name_length_;\n\t\tu8 _name_length;\n\t\tu16 _values_length;\n\
                        \t\tu8 _mac[6];\n\t\ttext8 _name[_name_length_];\n\t\ti32 _values[_values_length];\n\t};\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn guest_events_are_the_guests() {
        let text = tsdl(&trace(), &[]);

        assert!(text.contains("hostname = \"vm0\";") && text.contains("vpid = 42;"), "{text}");
    }
}
