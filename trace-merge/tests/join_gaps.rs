//! Recordings that lost records and were damaged are merged: the result has their gaps where they have them, and no others.
//!
//! Shows: Merged recordings have their sources' gaps and no others (proptest).
#![allow(missing_docs, clippy::unwrap_used)] // A test binary: nothing to document, may panic.

use proptest::prelude::*;
use shared_ring::consumer::Lost;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use std::path::{Path, PathBuf};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Host, Manifest, Vm};
use strata_recording::reader::merge::{Merge, Step};
use strata_recording::reader::{Trace, TraceLayer};
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;
use trace_merge::join::join;
use uuid::Uuid;

const PACKET_SIZE: usize = 256;

/// What a stream records.
#[derive(Clone, Debug)]
enum Item {
    /// A record, so many ticks after the one before it.
    Record(u64),
    Lost,
    Rejected,
    TooLarge,
}

/// A stream, and what happens to its file.
#[derive(Clone, Debug, Default)]
struct Written {
    items: Vec<Item>,
    /// Packets that are damaged, by their number modulo how many there are.
    damaged: Vec<usize>,
    /// Packets that are cut off at the end.
    cut: usize,
    overwritten: u64,
}

fn manifest() -> Manifest {
    let whole = strata_recording::test_trace::manifest_of(vec![Vm { name: "vm0".into(), vcpus: 1, ..Vm::default() }]);
    let clock = Clock { uuid: Uuid::new_v4(), ..whole.clock };
    Manifest { clock, host: Host { boot_id: "boot".into(), ..whole.host }, ..whole }
}

/// Writes a run of one host to the folder `name` of `dir`: the host's kernel, whose records hold `run`, and a guest's.
fn write(dir: &Path, name: &str, run: u32, host: &Written, guest: &Written) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir(&path).unwrap();
    let mut manifest = manifest();
    for (kind, written) in [(LayerKind::HostKernel, host), (LayerKind::GuestKernel, guest)] {
        let vm = (kind == LayerKind::GuestKernel).then(|| "vm0".into());
        let new = NewLayer { kind, vm, process: None, packet_size: PACKET_SIZE as u64 };
        let mut layer = LayerWriter::create(&path, &manifest, new).unwrap();
        let field = FieldDescription { name: "run".into(), ty: FieldType::U32, hex: false };
        layer
            .add_events(&[EventDescription { id: 1, class: 0, name: "test:tick".into(), fields: vec![field] }])
            .unwrap();
        let mut time = 1000;
        for item in &written.items {
            match item {
                Item::Record(after) => {
                    time += after;
                    layer.record(0, time, 1, &run.to_le_bytes()).unwrap();
                }
                Item::Lost => layer.add_lost(0, 1),
                Item::Rejected => layer.add_rejected(0, 8),
                Item::TooLarge => layer.record(0, time, 1, &[0; PACKET_SIZE]).unwrap(),
            }
        }
        layer.set_overwritten(0, written.overwritten);
        layer.flush().unwrap();
        manifest.layers.push(layer.layer());
        let stream = path.join(&layer.layer().path).join("stream_0");
        if let Ok(mut bytes) = std::fs::read(&stream) {
            let packets = bytes.len() / PACKET_SIZE;
            written.damaged.iter().for_each(|number| bytes[number % packets * PACKET_SIZE] ^= 1);
            bytes.truncate((packets - written.cut.min(packets)) * PACKET_SIZE);
            std::fs::write(&stream, bytes).unwrap();
        }
    }
    manifest.save(&path).unwrap();
    path
}

/// The times of all records, each with whether records may be missing before it; and whether some may be at the end.
fn gaps<'t>(layers: impl IntoIterator<Item = &'t TraceLayer>) -> (Vec<(u64, bool)>, bool) {
    let mut merge = Merge::new(layers, 0);
    let (mut records, mut open, mut since) = (Vec::new(), 0_u32, false);
    while let Some(step) = merge.next_step() {
        match step {
            Step::Record(merged) => {
                records.push((merged.record.time, since));
                since = open > 0;
            }
            Step::GapBegin { .. } => (open, since) = (open + 1, true),
            Step::GapEnd { .. } => open -= 1,
        }
    }
    (records, open > 0)
}

fn lost(trace: &Trace) -> Lost {
    let streams = trace.layers().iter().flat_map(|layer| layer.streams.iter());
    streams.map(|stream| stream.description.lost).sum()
}

/// Merges two runs and compares the gaps.
fn check(runs: &[[Written; 2]; 2]) -> Result<(), TestCaseError> {
    let dir = TempDir::new().unwrap();
    let one = write(dir.path(), "one", 1, &runs[0][0], &runs[0][1]);
    let two = write(dir.path(), "two", 2, &runs[1][0], &runs[1][1]);
    let out = dir.path().join("merged");

    join(&one, std::slice::from_ref(&two), &[], &out).unwrap();

    let [one, two, merged] = [one, two, out].map(|path| Trace::open(&path).unwrap());
    let layers = |trace: &'_ Trace| trace.kernel_layers("vm0").map(gaps_of).collect::<Vec<_>>();
    prop_assert_eq!(layers(&merged), layers(&one));
    prop_assert_eq!(merged.kernel_layers("vm0-2").map(gaps_of).collect::<Vec<_>>(), layers(&two));
    let hosts = [&one, &two].into_iter().flat_map(|trace| trace.layers_of(LayerKind::HostKernel));
    prop_assert_eq!(gaps(merged.layers_of(LayerKind::HostKernel)), gaps(hosts));
    prop_assert_eq!(lost(&merged), [lost(&one), lost(&two)].into_iter().sum());
    Ok(())
}

fn gaps_of(layer: &TraceLayer) -> (Vec<(u64, bool)>, bool) {
    gaps([layer])
}

fn written() -> impl Strategy<Value = Written> {
    let item = prop_oneof![
        12 => (0..9_u64).prop_map(Item::Record),
        1 => Just(Item::Lost),
        1 => Just(Item::Rejected),
        1 => Just(Item::TooLarge),
    ];
    let damaged = proptest::collection::vec(any::<usize>(), 0..3);
    let cut = prop_oneof![3 => Just(0), 1 => 0..3_usize];
    let overwritten = prop_oneof![3 => Just(0), 1 => Just(5_u64)];
    (proptest::collection::vec(item, 0..80), damaged, cut, overwritten)
        .prop_map(|(items, damaged, cut, overwritten)| Written { items, damaged, cut, overwritten })
}

fn records(gap_after: Option<usize>) -> Written {
    let records = (0..6).map(|_| Item::Record(10));
    let items = records.enumerate().flat_map(|(index, record)| {
        let lost = (gap_after == Some(index)).then_some(Item::Lost);
        [Some(record), lost].into_iter().flatten()
    });
    Written { items: items.collect(), ..Written::default() }
}

#[test]
fn gap_of_one_run_lies_between_all_records_that_another_run_has_meanwhile() {
    let dir = TempDir::new().unwrap();
    let far = Written { items: vec![Item::Record(5), Item::Lost, Item::Record(40)], ..Written::default() };
    let one = write(dir.path(), "one", 1, &far, &records(None));
    let two = write(dir.path(), "two", 2, &records(None), &records(None));
    let out = dir.path().join("merged");

    join(&one, &[two], &[], &out).unwrap();

    let merged = Trace::open(&out).unwrap();
    let (records, at_end) = gaps(merged.layers_of(LayerKind::HostKernel));
    let after_gap: Vec<u64> = records.iter().filter(|record| record.1).map(|record| record.0).collect();
    assert_eq!((after_gap, at_end), (vec![1005, 1010, 1020, 1030, 1040, 1045], false));
}

#[test]
fn copied_stream_has_the_gaps_of_its_source() {
    check(&[[records(Some(2)), records(Some(3))], [records(None), records(Some(5))]]).unwrap();
}

#[test]
fn layers_of_a_recording_that_goes_on_go_on_beside_those_that_ended() {
    let dir = TempDir::new().unwrap();
    let one = write(dir.path(), "one", 1, &records(None), &records(None));
    let two = write(dir.path(), "two", 2, &records(None), &records(None));
    let mut manifest = Manifest::load(&two).unwrap();
    manifest.outcome = None;
    manifest.layers.iter_mut().for_each(|layer| layer.streams[0].complete_until = Some(2000));
    manifest.save(&two).unwrap();
    let out = dir.path().join("merged");

    join(&one, &[two], &[], &out).unwrap();

    let merged = Trace::open(&out).unwrap();
    let reported = |layer: &TraceLayer| (layer.has_ended(), layer.streams[0].description.complete_until);
    assert_eq!(merged.kernel_layers("vm0").map(reported).collect::<Vec<_>>(), [(true, None)]);
    assert_eq!(merged.kernel_layers("vm0-2").map(reported).collect::<Vec<_>>(), [(false, Some(2000))]);
    assert_eq!(merged.layers_of(LayerKind::HostKernel).map(reported).collect::<Vec<_>>(), [(false, Some(2000))]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn merged_recordings_have_the_gaps_of_both(one in [written(), written()], two in [written(), written()]) {
        check(&[one, two])?;
    }
}
