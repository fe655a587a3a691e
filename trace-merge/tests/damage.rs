//! Whatever happened to a recording's files, every tool ends, and says that something is wrong instead of panicking.
//!
//! Shows: Damaged streams, headers and packets are survived and found.
#![allow(missing_docs, clippy::unwrap_used)] // A test binary: nothing to document, may panic.

use proptest::prelude::*;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::layout::{PACKET_HEADER_SIZE, PacketHeader};
use std::fs;
use std::mem::offset_of;
use std::path::Path;
use strata_recording::files::MANIFEST_FILE;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, Vm};
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;
use trace_merge::check::{self, CheckOptions};
use trace_merge::critical_path::{self, CriticalPathError, CriticalPathOptions};
use trace_merge::events::{self, EventsOptions};
use trace_merge::report::death::LastMoments;
use trace_merge::report::{self, ReportError, ReportOptions, registry};

const SIZE: usize = 4096;
const STREAMS: [&str; 2] = ["host-kernel/stream_0", "vm0/guest-kernel/stream_0"];

fn event(id: u16, name: &str, fields: &[(&str, FieldType)]) -> EventDescription {
    let field = |&(name, ty): &(&str, FieldType)| FieldDescription { name: name.into(), ty, hex: false };
    EventDescription { id, class: 0, name: name.into(), fields: fields.iter().map(field).collect() }
}

/// Ids of the events of [`behaviour`], in an order in which their pairs are whole.
const BEHAVIOUR: [u16; 12] = [3, 5, 7, 10, 11, 12, 8, 6, 4, 9, 13, 14];

/// Event types that the reports on a guest's behaviour go by; each with three numbers and a text.
fn behaviour() -> Vec<EventDescription> {
    let types = [
        (3, "raw_syscalls:sys_enter", ["id", "arg0", "arg1"]),
        (4, "raw_syscalls:sys_exit", ["id", "ret", "unused"]),
        (5, "lock:contention_begin", ["flags", "lock_addr", "unused"]),
        (6, "lock:contention_end", ["ret", "lock_addr", "unused"]),
        (7, "irq:irq_handler_entry", ["irq", "unused", "unused2"]),
        (8, "irq:irq_handler_exit", ["irq", "ret", "unused"]),
        (9, "strata:mapping", ["end", "begin", "pid"]),
        (10, "strata:sample", ["ip", "user", "pid"]),
        (11, "block:block_rq_issue", ["sector", "dev", "nr_sector"]),
        (12, "block:block_rq_complete", ["sector", "dev", "nr_sector"]),
        (13, "irq_vectors:local_timer_entry", ["vector", "unused", "unused2"]),
        (14, "irq_vectors:local_timer_exit", ["vector", "unused", "unused2"]),
    ];
    let description = |(id, name, numbers): (u16, &str, [&str; 3])| {
        let text = if name.starts_with("irq:") { "name" } else { "rwbs" };
        let mut fields: Vec<_> = numbers.iter().map(|&number| (number, FieldType::U64)).collect();
        fields.push((text, FieldType::String));
        event(id, name, &fields)
    };
    types.into_iter().map(description).collect()
}

/// A recording that passes its check: vCPU 0 in the guest half of the time, a record with text in each period.
fn record(dir: &Path) {
    let vm = Vm { name: "vm0".into(), vcpus: 1, ..Vm::default() };
    let mut manifest = Manifest { outcome: None, ..strata_recording::test_trace::manifest_of(vec![vm]) };
    let new =
        |kind, vm: Option<&str>| NewLayer { kind, vm: vm.map(Into::into), process: None, packet_size: SIZE as u64 };
    let mut host = LayerWriter::create(dir, &manifest, new(LayerKind::HostKernel, None)).unwrap();
    let vcpu = ("vcpu_id", FieldType::U32);
    let exit = event(2, "kvm:kvm_exit", &[vcpu, ("exit_reason", FieldType::U32)]);
    host.add_events(&[event(1, "kvm:kvm_entry", &[vcpu]), exit]).unwrap();
    let guest = new(LayerKind::GuestKernel, Some("vm0"));
    let mut guest = LayerWriter::create(dir, &manifest, guest).unwrap();
    let pid = FieldType::I32;
    let switch = [("prev_pid", pid), ("prev_state", FieldType::I64), ("next_pid", pid)];
    let text = event(1, "test:text", &[("text", FieldType::String)]);
    guest.add_events(&[text, event(2, "sched:sched_switch", &switch)]).unwrap();
    guest.add_events(&behaviour()).unwrap();
    for number in 0..300 {
        host.record(0, number * 100, 1, &[0; 4]).unwrap();
        guest.record(0, number * 100 + 25, 1, format!("number {number}\0").as_bytes()).unwrap();
        let pid = |number: u64| [u8::try_from(number % 7).unwrap(), 0, 0, 0];
        let switch = [&pid(number)[..], &[0; 8], &pid(number + 1)].concat();
        guest.record(0, number * 100 + 30, 2, &switch).unwrap();
        for (after, id) in (31..).zip(BEHAVIOUR) {
            // All fields are 64 bits wide: a number that is a call, a lock, an interrupt, an address, a sector.
            let payload = [[202_u64, 9, 3].map(u64::to_le_bytes).concat(), b"R\0".to_vec()].concat();
            guest.record(0, number * 100 + after, id, &payload).unwrap();
        }
        host.record(0, number * 100 + 50, 2, &[0; 8]).unwrap();
    }
    for mut layer in [host, guest] {
        layer.flush().unwrap();
        manifest.layers.push(layer.layer());
    }
    manifest.save(dir).unwrap();
}

/// Runs every tool in both forms; whether each came to a result.
fn run_all(dir: &Path) -> [bool; 6] {
    let mut out = Vec::new();
    let mut list = |json| events::run(dir, &EventsOptions { json, utc: true, ..EventsOptions::default() }, &mut out);
    let listed = [list(false).is_ok(), list(true).is_ok()];
    let mut report = |json| {
        let options = ReportOptions { json, ..ReportOptions::default() };
        let made = report::run(dir, &options, &mut out, |trace, window| registry::all(trace, window, None)).map(drop);
        assert!(matches!(made, Ok(()) | Err(ReportError::Read(_))), "{made:?}");
        let ended = report::run(dir, &options, &mut out, |trace, window| Ok(LastMoments::new(trace, window)));
        assert!(matches!(ended, Ok(_) | Err(ReportError::Read(_) | ReportError::Nothing { .. })), "{ended:?}");
        made
    };
    let reported = [report(false).is_ok(), report(true).is_ok()];
    let why = critical_path::run(dir, &CriticalPathOptions::of("*".parse().unwrap()), &mut out);
    assert!(!matches!(why, Err(CriticalPathError::Report(_))), "{why:?}");
    let mut check = |json| check::run(dir, &CheckOptions { json, ..CheckOptions::default() }, &mut out);
    let checked = [check(false).is_ok(), check(true).is_ok()];
    [listed[0], listed[1], reported[0], reported[1], checked[0], checked[1]]
}

fn passes(dir: &Path) -> bool {
    check::run(dir, &CheckOptions::default(), &mut Vec::new()).is_ok_and(|result| result.passed())
}

/// Replaces words of a file.
fn change_words(path: &Path, changes: &[(usize, u64)]) {
    let mut bytes = fs::read(path).unwrap();
    for &(at, value) in changes {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
}

/// Words of a packet header: times, sizes, sequence number, counts.
fn header_word() -> impl Strategy<Value = usize> {
    (3..PACKET_HEADER_SIZE / 8).prop_map(|word| word * 8)
}

/// Numbers that sums and products go wrong on.
fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(1 << 63),
        Just((1 << 63) - 1),
        0..100_000_u64,
        (0..100_000_u64).prop_map(u64::wrapping_neg),
        any::<u64>(),
    ]
}

/// Everything in a description that can be replaced, as a JSON pointer.
fn pointers(value: &serde_json::Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        serde_json::Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| pointers(value, &format!("{at}/{name}"), found));
        }
        serde_json::Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| pointers(value, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

/// Values of all kinds, that a number or a text of a description may be replaced by.
fn json() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        extreme().prop_map(Into::into),
        Just((-1).into()),
        Just(serde_json::Value::Null),
        Just(serde_json::json!([])),
        Just(serde_json::json!({})),
        Just("".into()),
        Just("kvm:kvm_exit".into()),
        Just("..".into()),
        Just("string".into()),
        Just("char_array".into()),
        Just("\u{1b}[2J\n".into()),
        Just(serde_json::json!({"char_array": 65535})),
    ]
}

#[test]
fn packets_of_two_streams_that_claim_to_be_the_last_ever_are_summed_up() {
    let dir = TempDir::new().unwrap();
    record(dir.path());
    for stream in STREAMS {
        change_words(&dir.path().join(stream), &[(offset_of!(PacketHeader, sequence), u64::MAX)]);
    }

    assert_eq!(run_all(dir.path()), [true; 6]);
    assert!(!passes(dir.path()));
}

/// A guest writes its own loss counts.
#[test]
fn losses_of_two_layers_beyond_counting_are_summed_up() {
    let dir = TempDir::new().unwrap();
    record(dir.path());
    let mut manifest = Manifest::load(dir.path()).unwrap();
    for layer in &mut manifest.layers {
        layer.streams[0].lost.full = u64::MAX;
        layer.streams[0].overwritten = u64::MAX;
    }
    manifest.save(dir.path()).unwrap();

    assert_eq!(run_all(dir.path()), [true; 6]);
}

#[test]
fn whole_recording_passes() {
    let dir = TempDir::new().unwrap();
    record(dir.path());

    assert!(passes(dir.path()));
    assert_eq!(run_all(dir.path()), [true; 6]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn damaged_streams_are_survived(
        changes in proptest::collection::vec((0..2_usize, 0..2 * SIZE, any::<u8>()), 1..60),
    ) {
        let dir = TempDir::new().unwrap();
        record(dir.path());
        for (stream, at, value) in changes {
            let path = dir.path().join(STREAMS[stream]);
            let mut bytes = fs::read(&path).unwrap();
            bytes[at] = value;
            fs::write(&path, bytes).unwrap();
        }
        // A host layer without a readable record leaves nothing to check against, which is an error.
        prop_assert_eq!(&run_all(dir.path())[..4], &[true; 4]);
    }

    #[test]
    fn packet_headers_of_extreme_numbers_are_survived(
        changes in proptest::collection::vec((0..2_usize, 0..2_usize, header_word(), extreme()), 1..8),
    ) {
        let dir = TempDir::new().unwrap();
        record(dir.path());
        for (stream, packet, at, value) in changes {
            change_words(&dir.path().join(STREAMS[stream]), &[(packet * SIZE + at, value)]);
        }
        prop_assert_eq!(&run_all(dir.path())[..4], &[true; 4]);
    }

    #[test]
    fn description_of_other_values_is_survived(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), json()), 1..4),
    ) {
        let dir = TempDir::new().unwrap();
        record(dir.path());
        let path = dir.path().join(MANIFEST_FILE);
        let mut description: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for (at, value) in changes {
            let mut found = Vec::new();
            pointers(&description, "", &mut found);
            *description.pointer_mut(&found[at.index(found.len())]).unwrap() = value;
        }
        fs::write(&path, description.to_string()).unwrap();
        let results = run_all(dir.path());
        prop_assert_eq!(results[0], results[2]);
    }

    #[test]
    fn truncated_streams_are_survived_and_found(stream in 0..2_usize, left in 0..SIZE) {
        let dir = TempDir::new().unwrap();
        record(dir.path());
        let path = dir.path().join(STREAMS[stream]);
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(left as u64).unwrap();
        prop_assert_eq!(&run_all(dir.path())[..4], &[true; 4]);
        prop_assert!(!passes(dir.path()));
    }

    #[test]
    fn truncated_description_is_refused_by_all(fraction in 0.0..0.99) {
        let dir = TempDir::new().unwrap();
        record(dir.path());
        let path = dir.path().join(MANIFEST_FILE);
        let text = fs::read(&path).unwrap();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let left = (text.len() as f64 * fraction) as usize;
        fs::write(&path, &text[..left]).unwrap();
        prop_assert_eq!(run_all(dir.path()), [false; 6]);
    }

    #[test]
    fn edited_description_is_survived(at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let dir = TempDir::new().unwrap();
        record(dir.path());
        let path = dir.path().join(MANIFEST_FILE);
        let mut text = fs::read(&path).unwrap();
        let at = at.index(text.len());
        text[at] = value;
        fs::write(&path, text).unwrap();
        let results = run_all(dir.path());
        prop_assert_eq!(results[0], results[2]);
    }
}

#[test]
fn critical_path_adds_up_where_times_of_damaged_records_go_back() {
    let dir = TempDir::new().unwrap();
    record(dir.path());
    let path = dir.path().join(STREAMS[1]);
    let mut bytes = fs::read(&path).unwrap();
    (bytes[2372], bytes[7696]) = (15, 0);
    fs::write(&path, bytes).unwrap();

    assert_eq!(&run_all(dir.path())[..4], &[true; 4]);
}

#[test]
fn check_finds_metadata_that_is_damaged_wherever_it_is() {
    let dir = TempDir::new().unwrap();
    record(dir.path());
    let path = dir.path().join("vm0/guest-kernel/metadata");
    let text = fs::read_to_string(&path).unwrap();
    let event = text.find("\nevent {").unwrap();
    let cut = |range: std::ops::Range<usize>| {
        let mut damaged = text.clone();
        damaged.replace_range(range, "");
        fs::write(&path, damaged).unwrap();
        let result = check::run(dir.path(), &CheckOptions::default(), &mut Vec::new()).unwrap();
        (result.passed(), result.damaged)
    };

    let whole = cut(0..0);
    // The last bytes, all of the event types, and a part in the middle.
    let damaged = [text.len() - 10..text.len(), event..text.len(), event + 20..event + 40].map(cut);

    assert_eq!((whole, damaged), ((true, 0), [(false, 1); 3]));
}

#[test]
fn check_finds_the_metadata_that_is_gone_or_another_layers() {
    let (gone, others) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    record(gone.path());
    record(others.path());
    let whole = [passes(gone.path()), passes(others.path())];

    fs::remove_file(gone.path().join("vm0/guest-kernel/metadata")).unwrap();
    fs::copy(others.path().join("host-kernel/metadata"), others.path().join("vm0/guest-kernel/metadata")).unwrap();

    let problems = [&gone, &others].map(|dir| {
        let result = check::run(dir.path(), &CheckOptions::default(), &mut Vec::new()).unwrap();
        (result.passed(), result.damaged)
    });
    assert_eq!((whole, problems), ([true; 2], [(false, 1); 2]));
}
