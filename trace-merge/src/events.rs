//! The merged listing of all records, as columns or as JSON, one record a line.

use crate::clock::{Clock, NS_PER_SECOND, rfc3339};
use crate::merge::{Merge, MergedRecord};
use crate::reader::{Damage, ReadError, Stream, Trace, TraceLayer};
use crate::schema::Value;
use crate::session::LayerKind;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// What is listed, and how.
#[derive(Clone, Debug, Default)]
pub struct EventsOptions {
    /// Only layers of these kinds; empty for all.
    pub layers: Vec<LayerKind>,
    /// Only records this long after the first record of the recording, or later.
    pub from: Option<Duration>,
    /// Only records this long after the first record of the recording, or earlier.
    pub to: Option<Duration>,
    /// Times as UTC in place of seconds since the first record.
    pub utc: bool,
    /// JSON objects in place of columns.
    pub json: bool,
}

/// Why records cannot be listed.
#[derive(Debug, Error)]
pub enum EventsError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A layer was asked for that was not recorded.
    #[error("this trace has no {wanted} layer; it has {present}")]
    NoLayer {
        /// What was asked for.
        wanted: LayerKind,
        /// What there is.
        present: String,
    },
    /// The listing cannot be written.
    #[error("the listing cannot be written")]
    Write(#[source] io::Error),
}

/// What a listing came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventsSummary {
    /// Records listed.
    pub events: u64,
    /// What of the listed streams could not be read, as far as they were read.
    pub damage: Damage,
}

/// Parses a number of seconds with up to nine decimals, as `--from` and `--to` take it.
///
/// # Errors
/// What is wrong, in words.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let refuse = || format!("\"{text}\" is no number of seconds; write for example 1.5");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return Err(refuse());
    }
    let seconds = whole.parse().map_err(|_| refuse())?;
    let nanoseconds = format!("{fraction:0<9}").parse().map_err(|_| refuse())?;
    Ok(Duration::new(seconds, nanoseconds))
}

/// Lists the records of the recording in `dir`. A reader that closes `out` ends the listing without an error.
///
/// # Errors
/// When the recording cannot be read, a layer is not in it, or `out` fails.
pub fn run(dir: &Path, options: &EventsOptions, out: &mut dyn Write) -> Result<EventsSummary, EventsError> {
    let trace = Trace::open(dir)?;
    match list(&trace, options, out) {
        Err(EventsError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(EventsSummary::default()),
        other => other,
    }
}

/// Lists the records of `trace`.
///
/// # Errors
/// When a layer is not in it, or `out` fails.
pub fn list(trace: &Trace, options: &EventsOptions, out: &mut dyn Write) -> Result<EventsSummary, EventsError> {
    let layers = selected(trace, &options.layers)?;
    let clock = trace.clock();
    let start = trace.start().unwrap_or(0);
    let moment = |after: Duration| {
        let ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        start.saturating_add(clock.ns_to_ticks(ns))
    };
    let from = options.from.map_or(start, moment);
    let to = options.to.map_or(u64::MAX, moment);
    let mut merge = Merge::new(layers, from);
    let mut printer = Printer::new(&merge, clock, start, options);
    let mut buffer = Vec::with_capacity(2 * FLUSH_BYTES);
    let mut summary = EventsSummary::default();
    for merged in merge.by_ref().take_while(|merged| merged.record.time <= to) {
        printer.print(&mut buffer, &merged);
        summary.events += 1;
        if buffer.len() >= FLUSH_BYTES {
            out.write_all(&buffer).map_err(EventsError::Write)?;
            buffer.clear();
        }
    }
    out.write_all(&buffer).and_then(|()| out.flush()).map_err(EventsError::Write)?;
    summary.damage = merge.damage();
    Ok(summary)
}

/// Output is handed on in pieces of about this size, bytes.
const FLUSH_BYTES: usize = 1 << 16;

fn selected<'t>(trace: &'t Trace, kinds: &[LayerKind]) -> Result<Vec<&'t TraceLayer>, EventsError> {
    if let Some(&wanted) = kinds.iter().find(|&&kind| trace.layers_of(kind).next().is_none()) {
        let mut present: Vec<_> = trace.layers().iter().map(|layer| layer.description.kind.name()).collect();
        present.dedup();
        let present = if present.is_empty() { "none".into() } else { present.join(", ") };
        return Err(EventsError::NoLayer { wanted, present });
    }
    let wanted = |layer: &&TraceLayer| kinds.is_empty() || kinds.contains(&layer.description.kind);
    Ok(trace.layers().iter().filter(wanted).collect())
}

/// Writes records as lines; what is the same for all records of a stream is made once.
struct Printer<'t> {
    clock: &'t Clock,
    start: u64,
    json: bool,
    utc: bool,
    /// For each source of the merge: what comes between the time and the event.
    prefixes: Vec<Vec<u8>>,
    /// The second of UTC that was printed last, and its text.
    second: (i128, String),
}

impl<'t> Printer<'t> {
    fn new(merge: &Merge<'t>, clock: &'t Clock, start: u64, options: &EventsOptions) -> Self {
        let prefixes = if options.json { json_prefixes(merge) } else { column_prefixes(merge) };
        Self { clock, start, json: options.json, utc: options.utc, prefixes, second: (i128::MIN, String::new()) }
    }

    fn print(&mut self, line: &mut Vec<u8>, merged: &MergedRecord<'_>) {
        if self.json { self.print_json(line, merged) } else { self.print_columns(line, merged) }
    }

    fn print_columns(&mut self, line: &mut Vec<u8>, merged: &MergedRecord<'_>) {
        let record = &merged.record;
        if self.utc {
            self.put_utc(line, record.time);
        } else {
            let (seconds, ns) = self.since_start(record.time);
            put(line, format_args!("{seconds:>6}.{ns:09}"));
        }
        line.extend_from_slice(self.prefix(merged.source));
        line.extend_from_slice(record.schema.name().as_bytes());
        let mut separator = ": ";
        for (field, value) in record.schema.fields(record.payload) {
            line.extend_from_slice(separator.as_bytes());
            line.extend_from_slice(field.name.as_bytes());
            line.extend_from_slice(b" = ");
            put_value(line, value, field.hex);
            separator = ", ";
        }
        line.push(b'\n');
    }

    fn print_json(&mut self, line: &mut Vec<u8>, merged: &MergedRecord<'_>) {
        let record = &merged.record;
        let (seconds, ns) = self.since_start(record.time);
        put(line, format_args!("{{\"seconds\":{seconds}.{ns:09},\"ticks\":{},\"utc\":\"", record.time));
        self.put_utc(line, record.time);
        line.push(b'"');
        line.extend_from_slice(self.prefix(merged.source));
        put_json(line, record.schema.name());
        line.extend_from_slice(b",\"fields\":{");
        let mut separator = "";
        for (field, value) in record.schema.fields(record.payload) {
            line.extend_from_slice(separator.as_bytes());
            put_json(line, &field.name);
            line.push(b':');
            put_json_value(line, value);
            separator = ",";
        }
        line.extend_from_slice(b"}}\n");
    }

    fn prefix(&self, source: usize) -> &[u8] {
        self.prefixes.get(source).map_or(&[], Vec::as_slice)
    }

    /// Whole seconds and nanoseconds from the first record to `time`.
    const fn since_start(&self, time: u64) -> (u64, u64) {
        let ns = self.clock.ticks_to_ns(time.saturating_sub(self.start));
        (ns / NS_PER_SECOND, ns % NS_PER_SECOND)
    }

    fn put_utc(&mut self, line: &mut Vec<u8>, time: u64) {
        let ns = self.clock.utc_ns(time);
        let (second, fraction) = (ns.div_euclid(i128::from(NS_PER_SECOND)), ns.rem_euclid(i128::from(NS_PER_SECOND)));
        if self.second.0 != second {
            let text = rfc3339(second * i128::from(NS_PER_SECOND));
            // Up to the decimals, which are those of each record.
            self.second = (second, text.split('.').next().unwrap_or_default().into());
        }
        put(line, format_args!("{}.{fraction:09}Z", self.second.1));
    }
}

/// Writing to a `Vec` cannot fail.
fn put(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = line.write_fmt(text);
}

/// `text` in quotes, so that neither a quote nor a terminal control in it acts.
fn put_text(line: &mut Vec<u8>, text: &[u8]) {
    line.push(b'"');
    let plain = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    if text.iter().all(|&byte| plain(byte)) {
        line.extend_from_slice(text);
    } else {
        for character in String::from_utf8_lossy(text).chars() {
            match character {
                '"' | '\\' => put(line, format_args!("\\{character}")),
                control if control.is_control() => put(line, format_args!("{}", control.escape_default())),
                other => put(line, format_args!("{other}")),
            }
        }
    }
    line.push(b'"');
}

/// A value in columns.
fn put_value(line: &mut Vec<u8>, value: Value<'_>, hex: bool) {
    match value {
        Value::Unsigned(number) if hex => put(line, format_args!("{number:#x}")),
        Value::Unsigned(number) => put(line, format_args!("{number}")),
        Value::Signed(number) => put(line, format_args!("{number}")),
        Value::Text(text) => put_text(line, text),
        Value::Array(elements) => {
            line.push(b'[');
            for (index, element) in elements.iter().enumerate() {
                line.extend_from_slice(if index == 0 { b"" } else { b", " });
                put_value(line, element, hex);
            }
            line.push(b']');
        }
    }
}

/// A value as JSON.
fn put_json_value(line: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Unsigned(number) => put(line, format_args!("{number}")),
        Value::Signed(number) => put(line, format_args!("{number}")),
        Value::Text(text) => put_json(line, &String::from_utf8_lossy(text)),
        Value::Array(elements) => {
            line.push(b'[');
            for (index, element) in elements.iter().enumerate() {
                line.extend_from_slice(if index == 0 { b"" } else { b"," });
                put_json_value(line, element);
            }
            line.push(b']');
        }
    }
}

fn put_json(line: &mut Vec<u8>, text: &str) {
    // A string is always serialisable, and a `Vec` always writable.
    let _ = serde_json::to_writer(line, text);
}

/// Layer, VM, CPU and process of each source, in columns as wide as their widest entry.
fn column_prefixes(merge: &Merge<'_>) -> Vec<Vec<u8>> {
    let cells: Vec<[String; 4]> = merge.streams().map(|(layer, stream)| cells(layer, stream)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3)];
    let row = |row: &[String; 4]| {
        let mut line = Vec::new();
        for (cell, width) in row.iter().zip(widths) {
            put(&mut line, format_args!("  {cell:width$}"));
        }
        line.extend_from_slice(b"  ");
        line
    };
    cells.iter().map(row).collect()
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

/// `,"layer":…,"vm":…,"cpu":…,"pid":…,"comm":…,"event":` of each source; what does not apply is null.
fn json_prefixes(merge: &Merge<'_>) -> Vec<Vec<u8>> {
    let prefix = |(layer, stream): (&TraceLayer, &Stream)| {
        let description = &layer.description;
        let mut line = Vec::new();
        put(&mut line, format_args!(",\"layer\":\"{}\",\"vm\":", description.kind));
        put_json_or_null(&mut line, description.vm.as_deref());
        put(&mut line, format_args!(",\"cpu\":{}", stream.description.cpu_id));
        match &description.process {
            Some(process) => put(&mut line, format_args!(",\"pid\":{},\"comm\":", process.pid)),
            None => put(&mut line, format_args!(",\"pid\":null,\"comm\":")),
        }
        put_json_or_null(&mut line, description.process.as_ref().map(|process| process.comm.as_str()));
        line.extend_from_slice(b",\"event\":");
        line
    };
    merge.streams().map(prefix).collect()
}

fn put_json_or_null(line: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => put_json(line, text),
        None => line.extend_from_slice(b"null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::session;
    use crate::session::{Process, Session};
    use crate::writer::{LayerWriter, NewLayer};
    use shared_ring::event::{EventDescription, FieldDescription, FieldType};
    use tempfile::TempDir;

    const COMM: &str = "a\"b\x1b";

    /// A VMM record at tick 1000 (22:13:20 UTC), a user record one second later.
    fn recording() -> TempDir {
        let dir = TempDir::new().unwrap();
        let mut session = session();
        let field = |name: &str, ty, hex| FieldDescription { name: name.into(), ty, hex };
        let fields = vec![
            field("address", FieldType::U64, true),
            field("count", FieldType::I32, false),
            field("text", FieldType::String, false),
        ];
        let event = EventDescription { id: 1, class: 0, name: "test:event".into(), fields };
        let layers = [
            (LayerKind::Vmm, None, 1000),
            (LayerKind::GuestUser, Some(Process { pid: 42, comm: COMM.into() }), 2_000_001_000),
        ];
        for (kind, process, time) in layers {
            let new = NewLayer { kind, vm: Some("vm0".into()), process, packet_size: 4096 };
            let mut layer = LayerWriter::create(dir.path(), &session, new).unwrap();
            layer.add_events(std::slice::from_ref(&event)).unwrap();
            let payload = [&[0x34, 0x12, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..], b"say \"\xff\n\0"].concat();
            layer.record(1, time, 1, &payload).unwrap();
            layer.flush().unwrap();
            session.layers.push(layer.layer());
        }
        Session::save(&session, dir.path()).unwrap();
        dir
    }

    fn listing(dir: &TempDir, options: &EventsOptions) -> String {
        let mut out = Vec::new();
        run(dir.path(), options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_have_aligned_columns_and_harmless_text() {
        let expected = concat!(
            "     0.000000000  vmm         vm0  thread 1  -        ",
            "test:event: address = 0x1234, count = -1, text = \"say \\\"\u{fffd}\\n\"\n",
            "     1.000000000  guest-user  vm0  vcpu 1    42/a\"b?  ",
            "test:event: address = 0x1234, count = -1, text = \"say \\\"\u{fffd}\\n\"\n",
        );

        assert_eq!(listing(&recording(), &EventsOptions::default()), expected);
    }

    #[test]
    fn utc_is_the_clocks() {
        let listing = listing(&recording(), &EventsOptions { utc: true, ..EventsOptions::default() });

        let times: Vec<&str> = listing.lines().map(|line| &line[..30]).collect();
        assert_eq!(times, ["2023-11-14T22:13:20.000000000Z", "2023-11-14T22:13:21.000000000Z"]);
    }

    #[test]
    fn json_lines_are_json() {
        let listing = listing(&recording(), &EventsOptions { json: true, ..EventsOptions::default() });

        let objects: Vec<serde_json::Value> = listing.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = serde_json::json!({
            "seconds": 1.0, "ticks": 2_000_001_000_u64, "utc": "2023-11-14T22:13:21.000000000Z", "layer": "guest-user",
            "vm": "vm0", "cpu": 1, "pid": 42, "comm": COMM, "event": "test:event",
            "fields": {"address": 0x1234, "count": -1, "text": "say \"\u{fffd}\n"},
        });
        assert_eq!(objects[1], expected);
        assert_eq!((objects.len(), &objects[0]["pid"]), (2, &serde_json::Value::Null));
    }

    #[test]
    fn layer_and_time_narrow_the_listing() {
        let dir = recording();
        let lines = |options| listing(&dir, &options).lines().count();
        let half = Some(Duration::from_millis(500));

        assert_eq!(lines(EventsOptions { layers: vec![LayerKind::Vmm], ..EventsOptions::default() }), 1);
        assert!(listing(&dir, &EventsOptions { from: half, ..EventsOptions::default() }).contains("guest-user"));
        assert!(listing(&dir, &EventsOptions { to: half, ..EventsOptions::default() }).contains("vmm"));
        assert_eq!(lines(EventsOptions { from: half, ..EventsOptions::default() }), 1);
        assert_eq!(lines(EventsOptions { to: half, ..EventsOptions::default() }), 1);
        assert_eq!(lines(EventsOptions { to: Some(Duration::from_secs(1)), ..EventsOptions::default() }), 2);
    }

    #[test]
    fn layer_that_was_not_recorded_is_named_with_those_that_were() {
        let options = EventsOptions { layers: vec![LayerKind::HostKernel], ..EventsOptions::default() };

        let error = run(recording().path(), &options, &mut Vec::new()).unwrap_err().to_string();

        assert_eq!(error, "this trace has no host-kernel layer; it has vmm, guest-user");
    }

    /// Fails as a pipe does whose reader is gone.
    struct ClosedPipe;

    impl Write for ClosedPipe {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn closed_pipe_is_no_error() {
        assert!(run(recording().path(), &EventsOptions::default(), &mut ClosedPipe).is_ok());
    }

    #[test]
    fn seconds_are_read_exactly() {
        assert_eq!(parse_seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_seconds("0.000000001"), Ok(Duration::from_nanos(1)));
        assert!(
            ["", ".5", "-1", "1e3", "1.0000000001", "99999999999999999999"]
                .map(parse_seconds)
                .iter()
                .all(Result::is_err)
        );
    }
}
