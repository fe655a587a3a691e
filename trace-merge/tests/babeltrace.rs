//! babeltrace2 is the judge of what is written: it must read every layer without a warning, and see what our own reader
//! sees.
//!
//! Shows: babeltrace2 reads what the writer wrote, and a part that is cut out of it, with the same values.
//! Shows: Recordings of earlier versions are read as babeltrace2 reads them.
#![allow(unsafe_code)] // Producers are made from raw memory.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)] // A test binary: nothing to document, may panic.

use serde_json::Value;
use shared_ring::consumer::{Consumer, Poll};
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{Geometry, Mode};
use shared_ring::producer::Producer;
use shared_ring::storage::Smp;
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use strata_recording::clock::{Clock, UtcAnchor};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Host, Manifest, Process, Started, Vm};
use strata_recording::reader::Trace;
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;
use trace_merge::cut::{CutOptions, cut};
use trace_merge::events::{self, EventsOptions};

const EVERY_TYPE: u16 = 1;
const EMPTY: u16 = 2;
/// The largest id that is not reserved.
const LAST: u16 = 0xfffe;

/// Ticks of a machine that has been up for a month.
const ORIGIN: u64 = 30 * 86_400 * 2_445_406_000;

fn manifest() -> Manifest {
    let utc_ns = 1_795_169_710_123_456_789;
    let whole = strata_recording::test_trace::manifest_of(vec![Vm { name: "vm0".into(), vcpus: 2, ..Vm::default() }]);
    let clock = Clock {
        frequency_hz: 2_445_406_000,
        utc: UtcAnchor { ticks: ORIGIN, utc_ns, uncertainty_ns: 100 },
        error_bound_ns: 100,
        ..whole.clock
    };
    let host = Host { hostname: "test \"machine\"".into(), ..whole.host };
    Manifest { started: Started::at(utc_ns), clock, host, ..whole }
}

fn event_types() -> Vec<EventDescription> {
    use FieldType::{CharArray, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
    let types = [U8, U16, U32, U64, I8, I16, I32, I64, F64, String, CharArray(16)];
    // Names that mean something in TSDL are field names like any other.
    let names = ["int", "string", "event", "_under", "align", "f5", "struct", "id", "float", "text", "comm"];
    let decimal = types.iter().zip(names).map(|(&ty, name)| FieldDescription { name: name.into(), ty, hex: false });
    let hex =
        types[..8].iter().zip(names).map(|(&ty, name)| FieldDescription { name: format!("{name}_hex"), ty, hex: true });
    let event = |id, name: &str, fields| EventDescription { id, class: 0, name: name.into(), fields };
    vec![
        event(EVERY_TYPE, "test:every_type", decimal.chain(hex).collect()),
        event(EMPTY, "test:empty", Vec::new()),
        event(LAST, "test:last-id.of:all", vec![FieldDescription { name: "only".into(), ty: String, hex: false }]),
    ]
}

/// A payload of [`EVERY_TYPE`] that differs with `number`. No text is empty: babeltrace2 2.0.4 shows an empty text as
/// the one that was in the same memory before.
fn every_type(number: u64) -> Vec<u8> {
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let integers = [&spread[..1], &spread[..2], &spread[..4], &spread[..8]].concat();
    let text = "x".repeat(usize::try_from(1 + number % 23).unwrap());
    let comm = [format!("comm{number}").as_bytes(), &[0; 16]].concat();
    // As many digits as babeltrace2 prints.
    let float = (f64::from(u16::try_from(number).unwrap()) / -8.0).to_le_bytes();
    [&integers[..], &integers, &float, text.as_bytes(), b"\0", &comm[..16], &integers, &integers].concat()
}

/// Every third record of each kind; the last type's text varies in length.
fn record(layer: &mut LayerWriter, cpu_id: u32, time: u64, number: u64) {
    let (id, payload) = match number % 3 {
        0 => (EVERY_TYPE, every_type(number)),
        1 => (EMPTY, Vec::new()),
        _ => (LAST, format!("number {number}\0").into_bytes()),
    };
    layer.record(cpu_id, time, id, &payload).unwrap();
}

/// A recording of all four layers, of two streams each. Records of different streams are several nanoseconds apart, so
/// that their order does not depend on how ticks are rounded; some follow a pause that needs extended headers.
fn record_all(dir: &Path) {
    let mut manifest = manifest();
    for (index, kind) in (0_u64..).zip(LayerKind::ALL) {
        let process = (kind == LayerKind::GuestUser).then(|| Process { pid: 42, comm: "app".into() });
        let vm = (kind != LayerKind::HostKernel).then(|| "vm0".into());
        let mut layer = LayerWriter::create(dir, &manifest, NewLayer { kind, vm, process, packet_size: 4096 }).unwrap();
        layer.add_events(&event_types()[..2]).unwrap();
        layer.add_events(&event_types()).unwrap();
        for number in 0..900 {
            let pause = if number % 90 > 80 { 5 << 32 } else { 0 };
            let time = ORIGIN + (number / 90) * (11 << 32) + number * 1000 + pause;
            record(&mut layer, 0, time + index * 100, number);
            record(&mut layer, 7, time + index * 100 + 50, number + 1);
        }
        layer.flush().unwrap();
        manifest.layers.push(layer.layer());
    }
    manifest.save(dir).unwrap();
}

/// Runs babeltrace2 on `dir`; its output and what it complained about.
fn babeltrace2(dir: &Path) -> (String, String) {
    let output = Command::new("babeltrace2")
        .args(["--clock-seconds", "--no-delta", "--fields=trace:hostname", "--names=payload"])
        .arg(dir)
        .output()
        .expect("babeltrace2 must be installed to judge the recording format: apt-get install babeltrace2");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

fn our_events(dir: &Path) -> Vec<Value> {
    let mut out = Vec::new();
    let options = EventsOptions { json: true, ..EventsOptions::default() };
    let summary = events::run(dir, &options, &mut out).unwrap();
    assert!(!summary.damage.any(), "{}", summary.damage);
    let lines = String::from_utf8(out).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Time of a babeltrace2 line (`[seconds.nanoseconds] …`), ns.
fn their_time(line: &str) -> i128 {
    let (time, _) = line.strip_prefix('[').unwrap().split_once(']').unwrap();
    time.replace('.', "").parse().unwrap()
}

fn our_time(event: &Value) -> i128 {
    let timestamp: jiff::Timestamp = event["utc"].as_str().unwrap().parse().unwrap();
    timestamp.as_nanosecond()
}

/// Name and payload of one of our events the way that babeltrace2 prints them, before and after the packet's context.
fn as_they_print(event: &Value) -> (String, String) {
    let name = event["event"].as_str().unwrap();
    let types = event_types();
    let fields = &types.iter().find(|known| known.name == name).unwrap().fields;
    let printed = fields.iter().map(|field| {
        let value = &event["fields"][&field.name];
        match field.hex {
            true => {
                let number = value.as_u64().map(|number| format!("{number:#x}"));
                let digits = number.as_deref().or_else(|| value.as_str()).unwrap()[2..].to_uppercase();
                format!("{} = 0x{digits}", field.name)
            }
            false if field.ty == FieldType::F64 => format!("{} = {}", field.name, value.as_f64().unwrap()),
            false => format!("{} = {value}", field.name),
        }
    });
    let fields = printed.collect::<Vec<_>>().join(", ");
    let space = if fields.is_empty() { "" } else { " " };
    (format!(" {name}: {{ "), format!(" }}, {{{space}{fields} }}"))
}

#[test]
fn every_layer_reads_the_same_in_babeltrace2() {
    let dir = TempDir::new().unwrap();
    record_all(dir.path());

    let (listing, complaints) = babeltrace2(dir.path());
    let theirs: Vec<&str> = listing.lines().collect();
    let ours = our_events(dir.path());

    assert_eq!(complaints, "");
    assert_eq!((theirs.len(), ours.len()), (4 * 2 * 900, 4 * 2 * 900));
    for (theirs, ours) in theirs.iter().zip(&ours) {
        // babeltrace2 converts ticks with doubles, and offset and ticks each on its own: a month has 2⁵¹·² ns.
        let apart = their_time(theirs) - our_time(ours);
        assert!((-2..=2).contains(&apart), "{apart} ns: {theirs}\n{ours}");
        let (name, payload) = as_they_print(ours);
        assert!(theirs.contains(&name) && theirs.ends_with(&payload), "{theirs}\nis not\n{name}…{payload}");
    }
}

/// Each folder of `tests/recordings` is what the version wrote whose name it has.
#[test]
fn recordings_of_earlier_versions_read_the_same_in_babeltrace2() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let kept: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();

    for dir in &kept {
        let (listing, complaints) = babeltrace2(dir);
        let theirs: Vec<&str> = listing.lines().collect();
        let ours = our_events(dir);

        assert_eq!((complaints.as_str(), theirs.len(), ours.len()), ("", 1500, 1500), "{}", dir.display());
        for (theirs, ours) in theirs.iter().zip(&ours) {
            let apart = their_time(theirs) - our_time(ours);
            let name = format!(" {}: {{ ", ours["event"].as_str().unwrap());
            assert!((-2..=2).contains(&apart) && theirs.contains(&name), "{theirs}\n{ours}");
        }
        let trace = Trace::open(dir).unwrap();
        assert_eq!(trace.layers().iter().find_map(|layer| layer.metadata_problem()), None);
    }
    assert!(!kept.is_empty());
}

#[test]
fn part_that_is_cut_out_reads_the_same_in_babeltrace2() {
    let dir = TempDir::new().unwrap();
    let (whole, part) = (dir.path().join("whole"), dir.path().join("part"));
    fs::create_dir(&whole).unwrap();
    record_all(&whole);
    let [from, to] = [25, 75].map(|seconds| Some(Duration::from_secs(seconds)));
    let within = EventsOptions { from, to, ..EventsOptions::default() };
    let wanted = events::run(&whole, &within, &mut std::io::sink()).unwrap().events;

    let written = cut(&whole, &CutOptions { from, to, ..CutOptions::default() }, &part).unwrap();

    let (listing, complaints) = babeltrace2(&part);
    assert_eq!((complaints.as_str(), listing.lines().count() as u64), ("", wanted));
    assert!(0 < wanted && wanted < 4 * 2 * 900 && written.records == wanted, "{wanted}");
    let (whole, _) = babeltrace2(&whole);
    assert!(whole.contains(&listing), "the same lines");
}

#[test]
fn loss_is_reported_by_babeltrace2_with_our_count() {
    let dir = TempDir::new().unwrap();
    let mut manifest = manifest();
    let new = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size: 4096 };
    let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
    layer.add_events(&event_types()).unwrap();
    record(&mut layer, 0, ORIGIN, 0);
    layer.flush().unwrap();
    layer.add_lost(0, 17);
    record(&mut layer, 0, ORIGIN + 100, 1);
    layer.flush().unwrap();
    manifest.layers.push(layer.layer());
    manifest.save(dir.path()).unwrap();

    let (listing, complaints) = babeltrace2(dir.path());

    assert_eq!(listing.lines().count(), 2);
    assert!(complaints.contains("discarded 17 events"), "{complaints}");
}

#[test]
fn layer_without_records_is_accepted() {
    let dir = TempDir::new().unwrap();
    let manifest = manifest();
    let new = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size: 4096 };
    let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
    layer.add_events(&event_types()).unwrap();

    assert_eq!(babeltrace2(dir.path()), (String::new(), String::new()));
}

fn poll<'c>(consumer: &'c mut Consumer, buffer: &'c mut Vec<u8>, is_stopped: bool) -> Poll<'c> {
    if is_stopped { consumer.poll_stopped(buffer) } else { consumer.poll(buffer) }
}

/// Records until the ring is full, twice, with a drain after each; the layer's stream is what came out of the ring.
#[test]
fn ring_reads_the_same_in_babeltrace2() {
    let dir = TempDir::new().unwrap();
    let mut manifest = manifest();
    let geometry = Geometry::new(4096, 4).unwrap();
    let new = NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size: 4096 };
    let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
    layer.add_events(&event_types()).unwrap();
    let memory = HostMemory::private(geometry.ring_size(Mode::Discard));
    // SAFETY: the memory covers the ring, is zeroed, and outlives the producer.
    let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry, Mode::Discard) };
    let mut consumer = Consumer::new(memory.clone(), geometry, Mode::Discard, 1);
    let time = Cell::new(ORIGIN);
    let now = || time.replace(time.get() + 1000);
    let mut packet = Vec::new();
    let mut recorded = 0;
    for is_stopped in [false, true] {
        // Texts of different lengths, so that packets end with different paddings.
        while producer.record(now, LAST, format!("{}\0", "x".repeat(1 + recorded % 40)).as_bytes()) {
            recorded += 1;
        }
        while let Some(delivered) = poll(&mut consumer, &mut packet, is_stopped).ready() {
            let packet = delivered.accept(layer.uuid(), u64::MAX, |id| layer.event(id)).unwrap();
            layer.append(&packet).unwrap();
        }
    }
    consumer.finish();
    layer.set_loss(1, consumer.lost(), consumer.rejected_bytes(), consumer.is_corrupt());
    layer.flush().unwrap();
    manifest.layers.push(layer.layer());
    manifest.save(dir.path()).unwrap();

    let (listing, complaints) = babeltrace2(dir.path());
    let ours = our_events(dir.path());

    // Each time the ring was full, one record was lost; the last loss stands in a packet of its own.
    assert_eq!(complaints.matches("discarded 1 event").count(), 2, "{complaints}");
    assert_eq!(manifest.layers[0].streams[0].lost.full, 2);
    assert_eq!((listing.lines().count(), ours.len()), (recorded, recorded));
    for (theirs, ours) in listing.lines().zip(&ours) {
        let (name, payload) = as_they_print(ours);
        assert!(theirs.contains(&name) && theirs.ends_with(&payload), "{theirs}\nis not\n{name}…{payload}");
    }
}
