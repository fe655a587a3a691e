//! The listing as columns: time, layer, VM, CPU, process, event, fields.

use super::line::{Lines, Literal};
use super::plan::Form;
use super::time::Times;
use crate::reader::{Stream, TraceLayer};
use crate::schema::{Elements, Schema, Value};
use shared_ring::event::FieldDescription;
use std::fmt::Write;

/// Columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    /// Times as UTC in place of seconds since the first record.
    pub(super) utc: bool,
}

impl Form for Columns {
    const END: &'static [u8] = b"\n";

    /// Layer, VM, CPU and process of each stream, in columns as wide as their widest entry.
    fn prefixes(streams: &[(&TraceLayer, &Stream)]) -> Vec<Vec<u8>> {
        let cells: Vec<[String; 4]> = streams.iter().map(|(layer, stream)| cells(layer, stream)).collect();
        let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2), width(3)];
        let row = |row: &[String; 4]| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("  {cell:width$}"));
            let mut line: String = cells.collect();
            line.push_str("  ");
            line.into_bytes()
        };
        cells.iter().map(row).collect()
    }

    fn event(schema: &Schema, first: &FieldDescription) -> Vec<u8> {
        format!("{}: {} = ", schema.name(), first.name).into_bytes()
    }

    fn field(field: &FieldDescription) -> Vec<u8> {
        format!(", {} = ", field.name).into_bytes()
    }

    fn empty_event(schema: &Schema) -> Vec<u8> {
        format!("{}\n", schema.name()).into_bytes()
    }

    #[inline]
    fn time(&self, lines: &mut Lines, times: &mut Times<'_>, time: u64) {
        if self.utc {
            let (second, fraction) = times.utc(time);
            lines.extend(second.as_bytes());
            lines.push(b'.');
            lines.nanoseconds(fraction);
            return lines.push(b'Z');
        }
        let (seconds, fraction) = times.since_start(time);
        match seconds {
            0..10 => {
                lines.extend(b"     ");
                lines.decimal(seconds);
            }
            // Writing lines cannot fail.
            _ => drop(write!(lines, "{seconds:>6}")),
        }
        lines.push(b'.');
        lines.nanoseconds(fraction);
    }

    fn meaning(lines: &mut Lines, _: &str, name: &str) {
        lines.extend(b" (");
        lines.extend(name.as_bytes());
        lines.push(b')');
    }

    fn arguments(lines: &mut Lines, _: &Literal, field: &FieldDescription, values: Elements<'_>, names: &[&str]) {
        for (name, value) in names.iter().zip(values.iter()) {
            lines.extend(b", ");
            lines.extend(name.as_bytes());
            lines.extend(b" = ");
            Self::value(lines, field, value);
        }
    }

    #[inline]
    fn value(lines: &mut Lines, field: &FieldDescription, value: Value<'_>) {
        match value {
            Value::Unsigned(number) if field.hex => lines.hex(number),
            Value::Unsigned(number) => lines.decimal(number),
            Value::Signed(number) => lines.signed(number),
            Value::Text(text) => lines.quoted(text),
            Value::Array(elements) => {
                lines.push(b'[');
                for (index, element) in elements.iter().enumerate() {
                    lines.extend(if index == 0 { b"" } else { b", " });
                    Self::value(lines, field, element);
                }
                lines.push(b']');
            }
        }
    }
}

fn cells(layer: &TraceLayer, stream: &Stream) -> [String; 4] {
    let description = &layer.description;
    let process = description.process.as_ref().map_or_else(
        || "-".into(),
        |process| {
            let mut cell = format!("{}/", process.pid);
            cell.extend(process.comm.chars().map(|character| if character.is_control() { '?' } else { character }));
            cell
        },
    );
    [
        description.kind.name().into(),
        description.vm.as_deref().unwrap_or("-").into(),
        format!("{} {}", description.kind.stream_of(), stream.description.cpu_id),
        process,
    ]
}
