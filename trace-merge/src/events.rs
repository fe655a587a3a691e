//! The merged listing of all records, as columns or as JSON, one record a line; or their number.

mod count;
pub mod current_task;
mod field_values;
mod json;
mod known;
mod line;
mod nothing;
mod pipeline;
mod plan;
mod selection;
mod text;
mod time;

use crate::report::ReportError;
use json::Objects;
use pipeline::SelectedRecords;
use plan::Plan;
use selection::Selection;
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use strata_analysis::address_symbols::AddressSymbols;
use strata_analysis::filter::{FilterError, Filters};
use strata_analysis::task_choice::TaskChoice;
use strata_recording::event_terms::TermError;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{Damage, ReadError, Trace};
use text::Columns;
use thiserror::Error;
use time::Times;

/// What is listed, and how.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventsOptions {
    /// Only layers of these kinds; empty for all.
    pub layers: Vec<LayerKind>,
    /// Only records of these VMs; empty for all, and for the host's.
    pub vms: Vec<String>,
    /// Only records of the host's CPUs, the vCPUs and the VMM's threads of these numbers; empty for all.
    pub cpus: Vec<u32>,
    /// Only events that these [terms](strata_recording::event_terms) choose; empty for all.
    pub events: Vec<String>,
    /// Only records of these tasks and processes; empty for all, and for records without a task.
    pub tasks: Vec<TaskChoice>,
    /// Only records of whose fields these hold; none for all.
    pub filters: Filters,
    /// Only records this long after the first record of the recording, or later.
    pub from: Option<Duration>,
    /// Only records that are earlier than this long after the first record of the recording.
    pub to: Option<Duration>,
    /// Times as UTC in place of seconds since the first record.
    pub utc: bool,
    /// JSON objects in place of columns.
    pub json: bool,
    /// Only the number of records, in place of the records.
    pub count: bool,
}

/// Why records cannot be listed.
#[derive(Debug, Error)]
pub enum EventsError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A layer was requested that was not recorded.
    #[error("this trace has no {wanted} layer; it has {present}")]
    NoLayer {
        wanted: LayerKind,
        /// What there is.
        present: String,
    },
    /// A VM was requested that was not recorded.
    #[error("no VM of this trace is called \"{wanted}\"; it has {present}")]
    NoVm {
        wanted: String,
        /// The VMs that there are; the nearest ones, if any are near.
        present: String,
    },
    /// A CPU was requested that no layer has.
    #[error("no layer that is listed has a CPU {wanted}; the nearest are {nearest}")]
    NoCpu {
        wanted: u32,
        /// The nearest ones.
        nearest: String,
    },
    /// A name of events is none.
    #[error(transparent)]
    Events(#[from] TermError),
    /// An event was requested that no layer has.
    #[error("no event of the layers that are listed matches \"{wanted}\"{nearest}")]
    NoEvent {
        wanted: String,
        /// The nearest ones, in words; empty when none is near.
        nearest: String,
    },
    /// A filter is about a field that no event has, or has otherwise.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The part ends before it begins.
    #[error(transparent)]
    Window(#[from] ReportError),
    /// The listing cannot be written.
    #[error("the listing cannot be written")]
    Write(#[source] io::Error),
}

/// What a listing came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventsSummary {
    /// Records listed or counted.
    pub events: u64,
    /// What of the listed streams could not be read, as far as they were read.
    pub damage: Damage,
    /// Where there are none and only some were requested: why, for people.
    #[serde(skip)]
    pub nothing: Option<String>,
}

/// Lists or counts the records of the recording in `dir`, as [`list`] does.
///
/// # Errors
/// When the recording cannot be read, `options` ask for a layer, VM, CPU, event or field that is not in it, or `out` fails.
pub fn run(dir: &Path, options: &EventsOptions, out: &mut dyn Write) -> Result<EventsSummary, EventsError> {
    list(&Trace::open(dir)?, options, out)
}

/// Lists or counts the records of `trace`, and says why there are none. A reader that closes `out` ends the listing without
/// an error.
///
/// # Errors
/// When `options` ask for a layer, VM, CPU, event or field that is not in it, or `out` fails.
pub fn list(trace: &Trace, options: &EventsOptions, out: &mut dyn Write) -> Result<EventsSummary, EventsError> {
    let listed = match write_list(trace, options, out) {
        Err(EventsError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            return Ok(EventsSummary::default());
        }
        listed => listed?,
    };
    let nothing = if listed.events == 0 { nothing::reason(trace, options) } else { None };
    Ok(EventsSummary { nothing, ..listed })
}

fn write_list(trace: &Trace, options: &EventsOptions, out: &mut dyn Write) -> Result<EventsSummary, EventsError> {
    let selection = Selection::new(trace, options)?;
    let clock = trace.clock();
    let start = trace.start().unwrap_or(0);
    let window = trace.window(options.from, options.to).ok_or(ReportError::EmptyWindow)?;
    let (from, to) = (if options.from.is_some() { window.begin } else { 0 }, window.last());
    if options.count {
        let summary = count::count(&selection, from, to);
        return write_count(&summary, options.json, out).map(|()| summary).map_err(EventsError::Write);
    }
    let records = SelectedRecords::new(&selection, from, to);
    let times = Times::new(clock, start);
    let mut symbols = AddressSymbols::new(trace);
    let written = if options.json {
        pipeline::write(records, &Plan::new(Objects, &selection.streams, &mut symbols), &times, out)
    } else {
        let columns = Columns::new(&selection.streams, options.utc);
        pipeline::write(records, &Plan::new(columns, &selection.streams, &mut symbols), &times, out)
    };
    written.map(|(events, damage)| EventsSummary { events, damage, nothing: None }).map_err(EventsError::Write)
}

fn write_count(summary: &EventsSummary, json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, summary)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", summary.events)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    //! Shows: Parallel listing keeps the merge's order; counting agrees (1, 2, 5 workers; damage).

    use super::*;
    use shared_ring::event::{EventDescription, FieldDescription, FieldType};
    use std::fs;
    use strata_recording::manifest::{Manifest, Process};
    use strata_recording::reader::merge::Merge;
    use strata_recording::test_trace::event;
    use strata_recording::test_trace::{Field, TestTrace, manifest};
    use strata_recording::text::terminal;
    use strata_recording::writer::{LayerWriter, NewLayer};
    use tempfile::TempDir;

    const COMM: &str = "a\"b\x1b";

    /// A VMM record at tick 1000 (22:13:20 UTC), a user record one second later.
    fn recording() -> TempDir {
        let dir = TempDir::new().unwrap();
        let mut manifest = manifest();
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
            let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
            layer.add_events(std::slice::from_ref(&event)).unwrap();
            let payload = [&[0x34, 0x12, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..], b"say \"\xff\n\0"].concat();
            layer.record(1, time, 1, &payload).unwrap();
            layer.flush().unwrap();
            manifest.layers.push(layer.layer());
        }
        Manifest::save(&manifest, dir.path()).unwrap();
        dir
    }

    fn listing(dir: &TempDir, options: &EventsOptions) -> String {
        let mut out = Vec::new();
        run(dir.path(), options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The notice on a listing that `options` leave empty.
    fn nothing(options: EventsOptions) -> Option<String> {
        let listed = run(recording().path(), &options, &mut Vec::new()).unwrap();
        assert_eq!(listed.events, 0);
        listed.nothing
    }

    #[test]
    fn empty_listing_names_the_tasks_that_are_nearest_to_the_one_that_no_record_has() {
        let of_task = |task: &str| nothing(EventsOptions { tasks: vec![task.parse().unwrap()], ..Default::default() });

        let [near, far, list] = ["A\"b", "zzz", "a\"b,zz"].map(of_task).map(Option::unwrap);

        assert_eq!(near, "no record is of a task 'A\"b'; the nearest is a\"b\\u{1b}");
        assert_eq!(far, "no record is of a task 'zzz'");
        assert!(list.ends_with("; give --task once for each task"), "{list}");
    }

    #[test]
    fn empty_listing_says_when_there_are_records() {
        let window = |from, to| nothing(EventsOptions { from, to, ..Default::default() });
        let seconds = |seconds| Some(Duration::from_secs(seconds));

        let behind = "--from is after the end of the trace: its records are from 0 to 1.000000000 s";
        assert_eq!(window(seconds(100), None).as_deref(), Some(behind));
        let between = window(Some(Duration::from_millis(100)), Some(Duration::from_millis(200)));
        let next = "no record is in that part of the trace: the next one is at 1.000000000 s";
        assert_eq!(between.as_deref(), Some(next));
        let of_vmm = EventsOptions {
            from: Some(Duration::from_millis(100)),
            layers: vec![LayerKind::Vmm],
            ..EventsOptions::default()
        };
        let nearest = "no such record is in that part: the nearest is at 0.000000000 s";
        assert_eq!(nothing(of_vmm).as_deref(), Some(nearest));
    }

    #[test]
    fn part_that_ends_before_it_begins_is_refused() {
        let [from, to] = [2, 1].map(|seconds| Some(Duration::from_secs(seconds)));
        let options = EventsOptions { from, to, ..EventsOptions::default() };

        let refused = run(recording().path(), &options, &mut Vec::new()).unwrap_err();

        assert_eq!(refused.to_string(), "--from is later than --until");
    }

    #[test]
    fn record_at_the_end_of_a_part_is_in_the_next_one() {
        let dir = recording();
        let at = Some(Duration::from_secs(1));
        let number = |from, to| {
            let options = EventsOptions { from, to, ..EventsOptions::default() };
            let counted = listing(&dir, &EventsOptions { count: true, ..options.clone() });
            (run(dir.path(), &options, &mut Vec::new()).unwrap().events, counted)
        };

        let parts = [number(None, at), number(at, None), number(None, None)];

        assert_eq!(parts, [(1, "1\n".to_string()), (1, "1\n".to_string()), (2, "2\n".to_string())]);
    }

    fn filtered(text: &str) -> EventsOptions {
        EventsOptions { filters: text.parse().unwrap(), ..EventsOptions::default() }
    }

    #[test]
    fn empty_listing_says_that_a_filter_holds_of_no_record_or_of_no_event() {
        let on_value = nothing(filtered("count>0"));
        assert_eq!(on_value.as_deref(), Some("no record has count>0; it is from -1 to -1"));
        let dir = named_numbers();
        let apart = run(dir.path(), &filtered("exit_reason==interrupt && ret<0"), &mut Vec::new()).unwrap();
        assert_eq!(apart.nothing.as_deref(), Some("no event has all of the fields exit_reason, ret"));
    }

    #[test]
    fn empty_listing_names_the_values_nearest_to_one_that_no_record_has() {
        let dir = named_numbers();
        let notice = |text: &str| run(dir.path(), &filtered(text), &mut Vec::new()).unwrap().nothing.unwrap();

        assert_eq!(notice("exit_reason==interupt"), "no record has exit_reason==interupt; the nearest is interrupt");
        assert!(notice("id==writev && exit_reason == interrupt").starts_with("no event has all of the fields"));
        assert_eq!(notice("id==writev && abi==7"), "no record has abi==7; it is from 0 to 1");
    }

    #[test]
    fn filter_on_a_field_that_no_listed_event_has_names_those_there_are() {
        let refused = |options: &EventsOptions| {
            run(named_numbers().path(), options, &mut Vec::new()).map(|listed| listed.events).unwrap_err().to_string()
        };

        let all = refused(&filtered("rett<0"));
        let one = refused(&EventsOptions { events: vec!["*:sys_exit".into()], ..filtered("vec==1") });

        assert!(all.starts_with("'rett' is not a field of the events that are listed (nearest: ret"), "{all}");
        assert!(one.starts_with("'vec' is not a field of raw_syscalls:sys_exit"), "{one}");
        assert!(["cpu", "id", "ret"].iter().all(|field| one.contains(field)), "{one}");
        let text = refused(&EventsOptions { events: vec!["*:sys_exit".into()], ..filtered("ret==EIOO") });
        assert!(text.contains("write a number"), "{text}");
    }

    #[test]
    fn filters_narrow_the_listing_its_count_and_its_json_alike() {
        let dir = named_numbers();
        let lines = |options: &EventsOptions| listing(&dir, options).lines().count();
        for (text, expected) in [
            ("exit_reason==interrupt", 1),
            ("exit_reason!=interrupt", 2),
            ("id==writev && abi==0", 1),
            ("id=*get* ", 1),
            ("ret>=7 cpu==0", 2),
            ("ecx==0x6e0", 1),
            ("prev_state=disk*", 1),
        ] {
            let options = filtered(text);
            let count = listing(&dir, &EventsOptions { count: true, ..options.clone() });
            let of_json = lines(&EventsOptions { json: true, ..options.clone() });
            assert_eq!((lines(&options), count.trim(), of_json), (expected, expected.to_string().as_str(), expected));
        }
        let late = EventsOptions { from: Some(Duration::from_nanos(2)), ..filtered("ret==7") };
        let none = EventsOptions { events: vec!["kvm:*".into()], ..filtered("cpu==0") };
        assert_eq!((lines(&late), lines(&none)), (1, 5));
    }

    #[test]
    fn listing_that_is_not_empty_says_nothing() {
        let listed = run(recording().path(), &EventsOptions::default(), &mut Vec::new()).unwrap();

        assert_eq!((listed.events, listed.nothing), (2, None));
    }

    #[test]
    fn lines_have_aligned_columns_and_harmless_text() {
        let expected = concat!(
            "     0.000000000  -             vmm         vm0  thread 1  -        ",
            "test:event: address = 0x1234, count = -1, text = \"say \\\"\u{fffd}\\n\"\n",
            "     1.000000000  +1.000000000  guest-user  vm0  vcpu 1    42/a\"b?  ",
            "test:event: address = 0x1234, count = -1, text = \"say \\\"\u{fffd}\\n\"\n",
        );

        assert_eq!(listing(&recording(), &EventsOptions::default()), expected);
    }

    #[test]
    fn name_of_a_vm_and_of_a_field_in_a_forged_description_does_nothing_to_a_terminal() {
        let dir = recording();
        let path = dir.path().join("session.json");
        let mut description: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for layer in description["layers"].as_array_mut().unwrap() {
            layer["vm"] = "a\u{1b}[2J".into();
            layer["events"][0]["fields"][1]["name"] = "count\u{202e}".into();
        }
        fs::write(&path, description.to_string()).unwrap();

        let text = listing(&dir, &EventsOptions::default());
        let json = listing(&dir, &EventsOptions { json: true, ..EventsOptions::default() });

        assert!(text.contains(r"a\u{1b}[2J") && text.contains(r"count\u{202e} = -1"), "{text}");
        assert!(json.contains(r#""count\u202e":-1"#), "{json}");
        let acts = |character| character != '\n' && terminal::acts(character);
        assert!(!text.chars().chain(json.chars()).any(acts), "{text}{json}");
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
            "vm": "vm0", "cpu": 1, "pid": 42, "comm": COMM, "task": null, "event": "test:event",
            "fields": {"address": "0x1234", "count": -1, "text": "say \"\u{fffd}\n"},
        });
        assert_eq!(objects[1], expected);
        assert_eq!((objects.len(), &objects[0]["pid"]), (2, &serde_json::Value::Null));
    }

    #[test]
    fn floats_are_shown_as_they_read_back() {
        let field = |name: &str, ty| FieldDescription { name: name.into(), ty, hex: false };
        let (placed, behind) = (field("placed", FieldType::F64), field("behind", FieldType::F64));
        let fields = vec![placed, field("text", FieldType::String), behind];
        let event = EventDescription { id: 1, class: 0, name: "test:event".into(), fields };
        let (dir, mut manifest) = (TempDir::new().unwrap(), manifest());
        let new = NewLayer { kind: LayerKind::Vmm, vm: Some("vm0".into()), process: None, packet_size: 4096 };
        let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
        layer.add_events(&[event]).unwrap();
        for (time, [placed, behind]) in (1..).zip([[0.1, -2.0], [1e300, f64::NAN], [f64::NEG_INFINITY, 0.0]]) {
            layer.record(0, time, 1, &[&placed.to_le_bytes()[..], b"\0", &behind.to_le_bytes()].concat()).unwrap();
        }
        layer.flush().unwrap();
        manifest.layers.push(layer.layer());
        manifest.save(dir.path()).unwrap();

        let text = listing(&dir, &EventsOptions::default());
        let json = listing(&dir, &EventsOptions { json: true, ..EventsOptions::default() });

        let of_text = |line: &str| line.split_once("placed = ").unwrap().1.replace(", text = \"\", behind =", "");
        let expected = ["0.1 -2.0", "1e300 NaN", "-Infinity 0.0"];
        assert_eq!(text.lines().map(of_text).collect::<Vec<_>>(), expected);
        let fields = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["fields"].clone();
        let both = |fields: serde_json::Value| [fields["placed"].clone(), fields["behind"].clone()];
        let of_json: Vec<_> = json.lines().map(|line| both(fields(line))).collect();
        let expected = serde_json::json!([[0.1, -2.0], [1e300, "NaN"], ["-Infinity", 0.0]]);
        assert_eq!(serde_json::json!(of_json), expected);
        assert_eq!(listing(&dir, &EventsOptions { count: true, ..filtered("placed>0.05 behind<=0") }), "1\n");
    }

    /// Records whose numbers have names.
    fn named_numbers() -> TempDir {
        let dir = TempDir::new().unwrap();
        let mut manifest = manifest();
        let events = [
            event(1, "kvm:kvm_exit", &["exit_reason", "isa"]),
            event(2, "kvm:kvm_userspace_exit", &["reason", "errno"]),
            event(3, "irq:softirq_entry", &["vec", "other"]),
            event(4, "raw_syscalls:sys_exit", &["id", "ret"]),
            event(5, "raw_syscalls:sys_enter", &["id", "abi"]),
            event(6, "kvm:kvm_msr", &["ecx", "data"]),
            event(7, "sched:sched_switch", &["prev_state", "next_pid"]),
        ];
        let new = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size: 4096 };
        let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
        layer.add_events(&events).unwrap();
        for (time, (id, fields)) in (0..).zip([
            (1, [96_u32, 2]),
            (2, [6, 0]),
            (3, [1, 0]),
            (4, [1, 7]),
            (4, [9999, 7]),
            (1, [9999, 2]),
            (1, [1, 0]),
            (5, [20, 1]),
            (5, [20, 0]),
            (6, [0x6e0, 5]),
            (7, [2, 8]),
        ]) {
            layer.record(0, time, id, &fields.map(u32::to_le_bytes).concat()).unwrap();
        }
        layer.flush().unwrap();
        manifest.layers.push(layer.layer());
        Manifest::save(&manifest, dir.path()).unwrap();
        dir
    }

    #[test]
    fn numbers_with_names_are_shown_with_them() {
        let dir = named_numbers();
        let text = listing(&dir, &EventsOptions::default());
        let json = listing(&dir, &EventsOptions { json: true, ..EventsOptions::default() });

        let shown: Vec<_> = text.lines().map(|line| line.split(": ").nth(1).unwrap()).collect();
        let expected = [
            "exit_reason = 96 (interrupt), isa = 2",
            "reason = 6 (mmio), errno = 0",
            "vec = 1 (timer), other = 0",
            "id = 1 (write), ret = 7",
            "id = 9999, ret = 7",
            "exit_reason = 9999, isa = 2",
            "exit_reason = 1, isa = 0",
            "id = 20 (i386:getpid), abi = 1",
            "id = 20 (writev), abi = 0",
            "ecx = 1760 (TSC_DEADLINE), data = 5",
            "prev_state = 2 (disk sleep), next_pid = 8",
        ];
        assert_eq!(shown, expected);
        let fields =
            json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["fields"].clone());
        let expected = serde_json::json!([
            {"exit_reason": 96, "exit": "interrupt", "isa": 2},
            {"reason": 6, "exit": "mmio", "errno": 0},
            {"vec": 1, "softirq": "timer", "other": 0},
            {"id": 1, "call": "write", "ret": 7},
            {"id": 9999, "ret": 7},
            {"exit_reason": 9999, "isa": 2},
            {"exit_reason": 1, "isa": 0},
            {"id": 20, "call": "i386:getpid", "abi": 1},
            {"id": 20, "call": "writev", "abi": 0},
            {"ecx": 1760, "msr": "TSC_DEADLINE", "data": 5},
            {"prev_state": 2, "state": "disk sleep", "next_pid": 8},
        ]);
        assert_eq!(fields.collect::<Vec<_>>(), *expected.as_array().unwrap());
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
        assert_eq!(lines(EventsOptions { to: Some(Duration::from_millis(1_001)), ..EventsOptions::default() }), 2);
    }

    /// A recording of four streams with 3000 records each in packets of 4096 bytes, at times that are often equal.
    fn long_recording() -> TempDir {
        let dir = TempDir::new().unwrap();
        let mut manifest = manifest();
        for kind in [LayerKind::GuestKernel, LayerKind::Vmm] {
            let new = NewLayer { kind, vm: Some("vm0".into()), process: None, packet_size: 4096 };
            let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
            layer.add_events(&[event(1, "test:tick", &["number"])]).unwrap();
            for number in 0..3000_u32 {
                layer.record(0, u64::from(number / 3), 1, &number.to_le_bytes()).unwrap();
                layer.record(1, u64::from(number / 2), 1, &number.to_le_bytes()).unwrap();
            }
            layer.flush().unwrap();
            manifest.layers.push(layer.layer());
        }
        Manifest::save(&manifest, dir.path()).unwrap();
        dir
    }

    #[test]
    fn lines_are_in_the_merges_order_whatever_the_number_of_workers() {
        let dir = long_recording();
        let trace = Trace::open(dir.path()).unwrap();
        let options = EventsOptions::default();
        let selection = Selection::new(&trace, &options).unwrap();
        let mut symbols = AddressSymbols::new(&trace);
        let plan = Plan::new(Columns::new(&selection.streams, false), &selection.streams, &mut symbols);
        let number = |record: &[u8]| u32::from_le_bytes(record.try_into().unwrap());
        let expected: Vec<_> =
            Merge::new(trace.layers(), 0).map(|merged| (merged.source, number(merged.record.payload))).collect();

        for workers in [1, 2, 5] {
            let mut out = Vec::new();
            let records = SelectedRecords::new(&selection, 0, u64::MAX);
            let (events, damage) =
                pipeline::write_with(workers, records, &plan, &Times::new(trace.clock(), 0), &mut out).unwrap();

            let text = String::from_utf8(out).unwrap();
            let source = |line: &str| {
                usize::from(line.contains("guest-kernel")) * 2
                    + usize::from(line.contains("cpu 1 ") || line.contains("1  -"))
            };
            let found = text.lines().map(|line| (source(line), line.rsplit(' ').next().unwrap().parse().unwrap()));
            assert!(found.eq(expected.iter().copied()), "{workers} workers");
            assert_eq!((events, damage), (12_000, Damage::default()));
        }
    }

    #[test]
    fn count_is_the_number_of_lines_and_finds_the_same_damage() {
        let dir = long_recording();
        let stream = dir.path().join("vm0/vmm/stream_1");
        let mut bytes = std::fs::read(&stream).unwrap();
        [5, 6].iter().for_each(|packet| bytes[packet * 4096] ^= 1);
        bytes[8 * 4096 + 128 + 4] ^= 1;
        bytes.truncate(12 * 4096 + 50);
        std::fs::write(&stream, bytes).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        // 2 ticks are a nanosecond.
        let windows = [(None, None), (Some(100), None), (Some(100), Some(200)), (None, Some(7)), (Some(10_000), None)];

        for (from, to) in windows.map(|(from, to)| (from.map(Duration::from_nanos), to.map(Duration::from_nanos))) {
            let options = EventsOptions { from, to, ..EventsOptions::default() };
            let mut lines = Vec::new();
            let listed = list(&trace, &options, &mut lines).unwrap();
            let mut number = Vec::new();
            let counted = list(&trace, &EventsOptions { count: true, ..options }, &mut number).unwrap();

            assert_eq!(counted, listed, "{from:?} to {to:?}");
            assert_eq!(number, format!("{}\n", lines.iter().filter(|&&byte| byte == b'\n').count()).into_bytes());
        }
    }

    const KALLSYMS: &str =
        "ffffffff81000010 T hrtimer_wakeup\nffffffff81000100 t pv_native_safe_halt\nffffffff81000200 T next\n";

    /// A host's timer, where a guest left off, and a guest's stack: the symbols of both kernels are saved.
    fn with_addresses() -> TestTrace {
        let thread = |thread| ("common_pid", Field::Number(thread));
        let (function, other) = (Field::Hex(0xffff_ffff_8100_0010), Field::Hex(0xffff_8880_0000_1000));
        TestTrace::new()
            .host(0, 1, "timer:hrtimer_start", &[thread(7), ("hrtimer", other), ("function", function)])
            .host(0, 2, "kvm:kvm_exit", &[thread(101), ("guest_rip", Field::Hex(0xffff_ffff_8100_010b))])
            .host(0, 3, "kvm:kvm_exit", &[thread(7), ("guest_rip", Field::Hex(0xffff_ffff_8100_010b))])
            .guest(0, 4, "strata:stack", &[("stack", Field::Stack(&[0xffff_ffff_8100_0200, 0x1234]))])
            .kallsyms("host-kernel", KALLSYMS)
            .kallsyms("vm0/guest-kernel", KALLSYMS)
    }

    /// The fields of each line of `trace`.
    fn fields_of(trace: TestTrace, json: bool) -> Vec<String> {
        let (_dir, trace) = trace.open();
        let mut out = Vec::new();
        list(&trace, &EventsOptions { json, ..EventsOptions::default() }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let fields = |line: &str| match json {
            true => serde_json::from_str::<serde_json::Value>(line).unwrap()["fields"].to_string(),
            false => line.rsplit_once(": ").unwrap().1.to_owned(),
        };
        text.lines().map(fields).collect()
    }

    #[test]
    fn addresses_are_shown_with_the_symbols_of_their_kernel() {
        let expected = [
            "common_pid = 7, hrtimer = 0xffff888000001000, function = 0xffffffff81000010 (hrtimer_wakeup)",
            "common_pid = 101, guest_rip = 0xffffffff8100010b (pv_native_safe_halt+0xb)",
            "common_pid = 7, guest_rip = 0xffffffff8100010b",
            "stack = [18446744071578845696, 4660] (pv_native_safe_halt+0x100, 0x1234)",
        ];
        assert_eq!(fields_of(with_addresses(), false), expected);
    }

    #[test]
    fn json_has_symbols_beside_addresses() {
        let fields = fields_of(with_addresses(), true);

        let expected =
            r#"{"common_pid":101,"guest_rip":"0xffffffff8100010b","guest_rip_symbol":"pv_native_safe_halt+0xb"}"#;
        assert_eq!(fields[1], expected);
        assert_eq!(
            fields[3],
            r#"{"stack":[18446744071578845696,4660],"stack_symbol":["pv_native_safe_halt+0x100",null]}"#
        );
        assert!(fields[0].contains(r#""function_symbol":"hrtimer_wakeup""#) && !fields[0].contains("hrtimer_symbol"));
    }

    #[test]
    fn flags_are_shown_by_the_names_that_the_kernel_gives_them() {
        let gfp = [(0xcc0, "GFP_KERNEL"), (0x40, "__GFP_IO"), (0x100, "__GFP_ZERO")];
        let trace = || {
            [0xdc0, 0x140, 0]
                .into_iter()
                .fold(TestTrace::new().flags("kmem:kmalloc", "gfp_flags", &gfp), |trace, flags| {
                    trace.host(0, 1, "kmem:kmalloc", &[("gfp_flags", Field::Number(flags))])
                })
        };

        let (text, json) = (fields_of(trace(), false), fields_of(trace(), true));

        let names =
            ["gfp_flags = 3520 (GFP_KERNEL|__GFP_ZERO)", "gfp_flags = 320 (__GFP_IO|__GFP_ZERO)", "gfp_flags = 0"];
        assert_eq!(text, names);
        assert_eq!(json[0], r#"{"gfp_flags":3520,"gfp_flags_name":"GFP_KERNEL|__GFP_ZERO"}"#);
    }

    #[test]
    fn results_vectors_signals_and_flags_are_shown_by_name() {
        let trace = TestTrace::new()
            .guest(0, 1, "raw_syscalls:sys_exit", &[("id", Field::Number(257)), ("ret", Field::Number(-2))])
            .guest(0, 2, "irq_vectors:local_timer_entry", &[("vector", Field::Number(236))])
            .guest(0, 3, "signal:signal_deliver", &[("sig", Field::Number(9))])
            .guest(0, 4, "lock:contention_begin", &[("lock_addr", Field::Hex(16)), ("flags", Field::Number(1))])
            .guest(0, 5, "raw_syscalls:sys_enter", &[("id", Field::Number(10)), ("args", Field::Arguments([4096, 0]))])
            .guest(0, 6, "raw_syscalls:sys_enter", &[("id", Field::Number(257)), ("args", Field::Arguments([3, 0]))]);

        let text = fields_of(trace, false);

        let expected = [
            "id = 257 (openat), ret = -2 (ENOENT)",
            "vector = 236 (local_timer)",
            "sig = 9 (SIGKILL)",
            "lock_addr = 0x10, flags = 1 (spinlock)",
            "id = 10 (mprotect), start = 4096, len = 0, prot = 0 (PROT_NONE)",
            "id = 257 (openat), dfd = 3, filename = 0, flags = 0 (O_RDONLY), mode = 0",
        ];
        assert_eq!(text, expected);
    }

    #[test]
    fn json_has_names_of_results_and_arguments_under_keys_of_their_own() {
        let trace = TestTrace::new()
            .guest(0, 1, "raw_syscalls:sys_exit", &[("id", Field::Number(257)), ("ret", Field::Number(-2))])
            .guest(0, 2, "raw_syscalls:sys_enter", &[("id", Field::Number(10)), ("args", Field::Arguments([4096, 0]))]);

        let [exit, enter] = &fields_of(trace, true)[..] else { panic!("two records") };

        assert_eq!(exit, r#"{"call":"openat","id":257,"ret":-2,"ret_name":"ENOENT"}"#);
        assert!(enter.contains(r#""args_name":[null,null,"PROT_NONE",null,null,null]"#), "{enter}");
    }

    /// A recording of two VMs; `web` has two CPUs and tasks.
    fn two_vms() -> TempDir {
        let dir = TempDir::new().unwrap();
        let mut manifest = manifest();
        let text = FieldType::CharArray(8);
        let field = |name: &str, ty| FieldDescription { name: name.into(), ty, hex: false };
        let switch = EventDescription {
            id: 2,
            class: 0,
            name: "sched:sched_switch".into(),
            fields: vec![
                field("prev_pid", FieldType::I32),
                field("prev_comm", text),
                field("next_pid", FieldType::I32),
                field("next_comm", text),
            ],
        };
        for (vm, cpus) in [("web", 2), ("db", 1)] {
            let new = NewLayer { kind: LayerKind::GuestKernel, vm: Some(vm.into()), process: None, packet_size: 4096 };
            let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
            layer.add_events(&[event(1, "test:tick", &["number"]), switch.clone()]).unwrap();
            for cpu in 0..cpus {
                layer.record(cpu, 1, 2, b"\0\0\0\0swapper\0\x07\0\0\0dd\0\0\0\0\0\0").unwrap();
                layer.record(cpu, 2, 1, &7_u32.to_le_bytes()).unwrap();
                layer.record(cpu, 3, 2, b"\x07\0\0\0dd\0\0\0\0\0\0\x08\0\0\0\x1bsh\0\0\0\0\0").unwrap();
                layer.record(cpu, 4, 1, &8_u32.to_le_bytes()).unwrap();
            }
            layer.flush().unwrap();
            manifest.layers.push(layer.layer());
        }
        Manifest::save(&manifest, dir.path()).unwrap();
        dir
    }

    #[test]
    fn lines_of_a_kernel_name_the_task() {
        let dir = two_vms();
        let options =
            EventsOptions { events: vec!["test:*".into()], vms: vec!["db".into()], ..EventsOptions::default() };

        let text = listing(&dir, &options);
        let json = listing(&dir, &EventsOptions { json: true, ..options });

        let expected = concat!(
            "     0.000000000  -             guest-kernel  db  vcpu 0  7/dd                test:tick: number = 7\n",
            "     0.000000001  +0.000000001  guest-kernel  db  vcpu 0  8/?sh               test:tick: number = 8\n",
        );
        assert_eq!(text, expected);
        let tasks: Vec<_> =
            json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["task"].clone()).collect();
        assert_eq!(
            tasks,
            [serde_json::json!({"tid": 7, "comm": "dd"}), serde_json::json!({"tid": 8, "comm": "\u{1b}sh"})]
        );
    }

    /// The time since the line before, and the task or process, of the lines of events called `test:`.
    fn deltas_and_tasks(trace: TestTrace) -> Vec<(String, String)> {
        let (_dir, trace) = trace.open();
        let mut out = Vec::new();
        list(&trace, &EventsOptions::default(), &mut out).unwrap();
        let cells = |line: &str| {
            let (prefix, _) = line.split_once("test:").unwrap();
            let after_cpu = prefix.split_once("cpu ").unwrap().1;
            (line[18..30].trim().to_owned(), after_cpu[1..].trim().to_owned())
        };
        String::from_utf8(out).unwrap().lines().filter(|line| line.contains("test:")).map(cells).collect()
    }

    #[test]
    fn lines_say_the_time_since_the_line_before_and_do_not_repeat_its_task() {
        let trace = TestTrace::new().switch(0, 0, 0, 7).switch(1, 2, 0, 8);
        let on = |trace: TestTrace, cpu, time| trace.guest(cpu, time, "test:here", &[]);
        let trace = [(0, 4), (0, 6), (1, 10), (1, 2_000_000_010), (0, 2_000_000_010)]
            .into_iter()
            .fold(trace, |trace, (cpu, time)| on(trace, cpu, time));
        let trace = trace.user(42, 0, 2_000_000_012, "test:app", &[]).user(42, 0, 2_000_000_014, "test:app", &[]);

        let lines = deltas_and_tasks(trace);

        let expected = [
            ("+0.000000001", "7/seven"),
            ("+0.000000001", ""),
            ("+0.000000002", "8/eight"),
            ("+1.000000000", "7/seven"),
            ("+0.000000000", "8/eight"),
            ("+0.000000001", "42/process"),
            ("+0.000000001", ""),
        ];
        let lines: Vec<(&str, &str)> = lines.iter().map(|(delta, task)| (&**delta, &**task)).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn task_is_not_repeated_and_time_goes_on_where_another_worker_wrote_the_line_before() {
        let trace = TestTrace::new().switch(0, 0, 0, 7);

        let trace = (1..=5_000).fold(trace, |trace, number| trace.guest(0, 2 * number, "test:here", &[]));

        let lines = deltas_and_tasks(trace);
        assert!(lines.iter().all(|(delta, _)| delta == "+0.000000001"));
        assert_eq!(lines.iter().filter(|(_, task)| !task.is_empty()).count(), 1);
        assert_eq!(lines.len(), 5_000);
    }

    #[test]
    fn event_task_cpu_and_vm_narrow_the_listing_and_the_count() {
        let dir = two_vms();
        let lines = |options: EventsOptions| {
            let lines = listing(&dir, &options).lines().count();
            assert_eq!(listing(&dir, &EventsOptions { count: true, ..options }), format!("{lines}\n"));
            lines
        };
        let all = EventsOptions::default;
        let tasks = |tasks: &[&str]| tasks.iter().map(|task| task.parse().unwrap()).collect();

        assert_eq!(lines(all()), 12);
        assert_eq!(lines(EventsOptions { events: vec!["*:tick".into(), "sched:*".into()], ..all() }), 12);
        assert_eq!(lines(EventsOptions { events: vec!["sched:*".into()], ..all() }), 6);
        assert_eq!(lines(EventsOptions { cpus: vec![1], ..all() }), 4);
        assert_eq!(lines(EventsOptions { vms: vec!["web".into()], ..all() }), 8);
        assert_eq!(lines(EventsOptions { tasks: tasks(&["7"]), ..all() }), 6);
        assert_eq!(lines(EventsOptions { tasks: tasks(&["swap*", "7"]), cpus: vec![0], ..all() }), 6);
        assert_eq!(lines(EventsOptions { tasks: tasks(&["nobody"]), ..all() }), 0);
    }

    #[test]
    fn records_of_a_process_are_those_of_its_task() {
        let dir = recording();
        let lines = |task: &str| {
            let options = EventsOptions { tasks: vec![task.parse().unwrap()], ..EventsOptions::default() };
            listing(&dir, &options).lines().count()
        };

        assert_eq!([lines("42"), lines("a*"), lines("43")], [1, 1, 0]);
    }

    #[test]
    fn value_that_is_not_in_the_recording_is_refused_with_the_nearest() {
        let dir = two_vms();
        let refusal = |options| run(dir.path(), &options, &mut Vec::new()).unwrap_err().to_string();
        let all = EventsOptions::default;

        assert_eq!(
            refusal(EventsOptions { events: vec!["sched:sched_swich".into()], ..all() }),
            "no event of the layers that are listed matches \"sched:sched_swich\"; the nearest are guest-kernel:sched:sched_switch, \
             guest-kernel:sched:*"
        );
        assert_eq!(
            refusal(EventsOptions { events: vec!["zzz".into()], ..all() }),
            "no event of the layers that are listed matches \"zzz\""
        );
        assert_eq!(
            refusal(EventsOptions { vms: vec!["wep".into()], ..all() }),
            "no VM of this trace is called \"wep\"; it has web"
        );
        assert_eq!(
            refusal(EventsOptions { cpus: vec![7], ..all() }),
            "no layer that is listed has a CPU 7; the nearest are 1, 0"
        );
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
}
