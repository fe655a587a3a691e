//! The listing as columns: time, time since the line before, layer, VM, CPU, task or process, event, fields. A task or
//! process that is that of the line before, in the same stream, is not repeated.

use super::current_task::Task;
use super::line::Lines;
use super::plan::{Call, FieldPlan, Form, Notation, bits};
use super::time::Times;
use shared_ring::event::FieldDescription;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{Stream, TraceLayer};
use strata_recording::schema::{Elements, Schema};
use strata_recording::text::terminal;

/// Columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    /// Times as UTC in place of seconds since the first record.
    utc: bool,
    /// Characters of the widest layer, VM, CPU, and task or process.
    widths: [usize; 4],
}

/// Room for the tasks of a kernel, characters: a longer one moves what follows it on its line.
const TASK_WIDTH: usize = 18;

impl Columns {
    /// Columns as wide as their widest entry in the lines of `streams`.
    pub(super) fn new(streams: &[(&TraceLayer, &Stream)], utc: bool) -> Self {
        let mut widths = [0; 4];
        for (layer, stream) in streams {
            for (width, cell) in widths.iter_mut().zip(cells(layer, stream)) {
                *width = cell.chars().count().max(*width);
            }
            if matches!(layer.description.kind, LayerKind::HostKernel | LayerKind::GuestKernel) {
                widths[3] = widths[3].max(TASK_WIDTH);
            }
        }
        Self { utc, widths }
    }
}

impl Form for Columns {
    const END: &'static [u8] = b"\n";

    fn prefix(&self, layer: &TraceLayer, stream: &Stream) -> Vec<u8> {
        let cells = cells(layer, stream);
        let cells = cells.iter().zip(self.widths).take(3).map(|(cell, width)| format!("  {cell:width$}"));
        let mut line: String = cells.collect();
        line.push_str("  ");
        line.into_bytes()
    }

    #[inline]
    fn task(&self, lines: &mut Lines, task: Option<Task<'_>>) {
        let begin = lines.len();
        match task {
            Some(Task { tid, comm }) => {
                lines.signed(tid.into());
                if let Some(comm) = comm {
                    lines.push(b'/');
                    lines.name(comm);
                }
            }
            None => lines.push(b'-'),
        }
        lines.pad_to(begin + self.widths[3]);
        lines.constant(b"  ");
    }

    fn same_task(&self) -> Option<Vec<u8>> {
        Some(vec![b' '; self.widths[3] + 2])
    }

    fn no_task(&self, layer: &TraceLayer, is_same: bool) -> Vec<u8> {
        let (width, is_repeated) = (self.widths[3], is_same && layer.description.process.is_some());
        let process = if is_repeated { String::new() } else { process(layer) };
        format!("{process:width$}  ").into_bytes()
    }

    fn event(schema: &Schema, first: &FieldDescription) -> Vec<u8> {
        format!("{}: {} = ", terminal::harmless(schema.name()), terminal::harmless(&first.name)).into_bytes()
    }

    fn field(field: &FieldDescription) -> Vec<u8> {
        format!(", {} = ", terminal::harmless(&field.name)).into_bytes()
    }

    fn empty_event(schema: &Schema) -> Vec<u8> {
        format!("{}\n", terminal::harmless(schema.name())).into_bytes()
    }

    #[inline(always)]
    fn time(&self, lines: &mut Lines, times: &mut Times<'_>, time: u64, before: Option<u64>) {
        if self.utc {
            write_utc(lines, times, time, before);
        } else {
            times.write_columns(lines, time, before);
        }
    }

    fn around_name(_: &str, _: bool) -> [Vec<u8>; 2] {
        [b" (".into(), b")".into()]
    }

    const QUOTE: &'static [u8] = b"";

    fn nameless(lines: &mut Lines, number: u64) {
        lines.hex(number);
    }

    fn arguments(lines: &mut Lines, field: &FieldPlan, values: Elements<'_>, call: &Call) {
        for (index, (argument, value)) in call.names.iter().zip(values.iter()).enumerate() {
            lines.constant(b", ");
            lines.extend(argument.as_bytes());
            lines.constant(b" = ");
            field.value::<Self>(lines, value);
            if let Some(name) = call.values.and_then(|names| names.name(index, bits(value)?)) {
                lines.constant(b" (");
                lines.extend(name.as_bytes());
                lines.push(b')');
            }
        }
    }

    fn float(lines: &mut Lines, number: f64) {
        lines.float(number);
    }

    fn notation(field: &FieldDescription) -> Notation {
        if field.hex { Notation::Hexadecimal } else { Notation::Decimal }
    }

    #[inline]
    fn text(lines: &mut Lines, text: &[u8]) {
        lines.quoted(text);
    }

    const BETWEEN: &'static [u8] = b", ";
}

#[inline(never)]
fn write_utc(lines: &mut Lines, times: &mut Times<'_>, time: u64, before: Option<u64>) {
    times.write_utc(lines, "", time);
    lines.push(b'Z');
    times.write_since(lines, time, before);
}

fn cells(layer: &TraceLayer, stream: &Stream) -> [String; 4] {
    let description = &layer.description;
    [
        description.kind.name().into(),
        description.vm.as_deref().map_or_else(|| "-".into(), terminal::harmless),
        format!("{} {}", description.kind.stream_of(), stream.description.cpu_id),
        process(layer),
    ]
}

/// The process that the records of `layer` belong to.
fn process(layer: &TraceLayer) -> String {
    layer.description.process.as_ref().map_or_else(
        || "-".into(),
        |process| {
            let mut cell = format!("{}/", process.pid);
            cell.extend(process.comm.chars().map(|character| if terminal::acts(character) { '?' } else { character }));
            cell
        },
    )
}
