//! The listing as JSON, one object a line.

use super::current_task::Task;
use super::line::Lines;
use super::plan::{Call, FieldPlan, Form, Notation, bits};
use super::time::Times;
use shared_ring::event::FieldDescription;
use std::fmt::Write;
use strata_recording::reader::{Stream, TraceLayer};
use strata_recording::schema::{Elements, Schema, Value, is_text_in_json};
use strata_recording::text::terminal::harmless_json;

/// JSON objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Objects;

impl Form for Objects {
    const END: &'static [u8] = b"}}\n";

    /// `Z","layer":…,"vm":…,"cpu":…,"pid":…,"comm":…,"task":`; what does not apply is null.
    fn prefix(&self, layer: &TraceLayer, stream: &Stream) -> Vec<u8> {
        prefix(layer, stream)
    }

    #[inline]
    fn task(&self, lines: &mut Lines, task: Option<Task<'_>>) {
        match task {
            Some(Task { tid, comm }) => {
                lines.constant(b"{\"tid\":");
                lines.signed(tid.into());
                lines.constant(b",\"comm\":");
                match comm {
                    Some(comm) => lines.json(comm),
                    None => lines.constant(b"null"),
                }
                lines.push(b'}');
            }
            None => lines.constant(b"null"),
        }
        lines.constant(b",\"event\":");
    }

    fn same_task(&self) -> Option<Vec<u8>> {
        None
    }

    fn no_task(&self, _: &TraceLayer, _: bool) -> Vec<u8> {
        b"null,\"event\":".to_vec()
    }

    fn event(schema: &Schema, first: &FieldDescription) -> Vec<u8> {
        format!("{},\"fields\":{{{}:", quoted(schema.name()), quoted(&first.name)).into_bytes()
    }

    fn field(field: &FieldDescription) -> Vec<u8> {
        format!(",{}:", quoted(&field.name)).into_bytes()
    }

    fn empty_event(schema: &Schema) -> Vec<u8> {
        format!("{},\"fields\":{{}}}}\n", quoted(schema.name())).into_bytes()
    }

    #[inline(always)]
    fn time(&self, lines: &mut Lines, times: &mut Times<'_>, time: u64, _: Option<u64>) {
        times.write_since_start(lines, "{\"seconds\":", time);
        times.write_ticks(lines, ",\"ticks\":", time);
        times.write_utc(lines, ",\"utc\":\"", time);
    }

    fn around_name(key: &str, is_list: bool) -> [Vec<u8>; 2] {
        let (open, close) = if is_list { ("[", "]") } else { ("\"", "\"") };
        [format!(",{}:{open}", quoted(key)).into_bytes(), close.into()]
    }

    const QUOTE: &'static [u8] = b"\"";

    fn nameless(lines: &mut Lines, _: u64) {
        lines.constant(b"null");
    }

    fn arguments(lines: &mut Lines, field: &FieldPlan, values: Elements<'_>, call: &Call) {
        lines.literal(&field.before);
        field.value::<Self>(lines, Value::Array(values));
        let Some(names) = call.values else { return };
        let name = |(index, value)| Some(names.name(index, bits(value)?));
        let names: Vec<_> = values.iter().enumerate().filter_map(name).collect();
        if names.iter().all(Option::is_none) {
            return;
        }
        lines.constant(b",\"args_name\":[");
        for (index, name) in names.iter().enumerate() {
            lines.extend(if index == 0 { b"" } else { Self::BETWEEN });
            match name {
                Some(name) => lines.json(name.as_bytes()),
                None => lines.constant(b"null"),
            }
        }
        lines.push(b']');
    }

    fn float(lines: &mut Lines, number: f64) {
        let quote: &[u8] = if number.is_finite() { b"" } else { b"\"" };
        lines.extend(quote);
        lines.float(number);
        lines.extend(quote);
    }

    fn notation(field: &FieldDescription) -> Notation {
        if is_text_in_json(field) { Notation::Quoted } else { Notation::Decimal }
    }

    #[inline]
    fn text(lines: &mut Lines, text: &[u8]) {
        lines.json(text);
    }

    const BETWEEN: &'static [u8] = b",";
}

fn prefix(layer: &TraceLayer, stream: &Stream) -> Vec<u8> {
    let description = &layer.description;
    let text = |text: Option<&str>| text.map_or_else(|| "null".into(), quoted);
    let process = description.process.as_ref();
    let mut line = format!("Z\",\"layer\":\"{}\",\"vm\":{}", description.kind, text(description.vm.as_deref()));
    // Writing to a string cannot fail.
    let _ = write!(line, ",\"cpu\":{}", stream.description.cpu_id);
    let pid = process.map_or_else(|| "null".into(), |process| process.pid.to_string());
    let _ = write!(line, ",\"pid\":{pid},\"comm\":{}", text(process.map(|process| process.comm.as_str())));
    line.push_str(",\"task\":");
    line.into_bytes()
}

/// `text` as a JSON string.
fn quoted(text: &str) -> String {
    harmless_json(&serde_json::Value::from(text).to_string())
}
