//! Recordings that keep within a size: what is on the disk while they are written, and what of them is read.
//!
//! Shows: A recording keeps within its size, holds the newest records, and is readable while it grows.
//! Shows: A compressed recording reads as the plain one, even growing or damaged, and keeps its size.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)] // A test binary: nothing to document, may panic.
#[allow(dead_code, reason = "an example's main")]
#[path = "../recording/examples/write_layers/main.rs"]
mod write_layers;

use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use strata_analysis::completeness::Completeness;
use strata_recording::files::compression::Compression;
use strata_recording::files::reserve::Reserve;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Dropped, Manifest, Vm};
use strata_recording::reader::merge::{Merge, Step};
use strata_recording::reader::{Damage, Trace};
use strata_recording::window::Window;
use strata_recording::writer::{LayerWriter, NewLayer, Rotation, WriteError};
use tempfile::TempDir;
use trace_merge::check::check;

/// Size that the recordings keep within: sixty-four chunks of two packets.
const LIMIT: u64 = 512 << 10;
const PACKET_SIZE: u64 = 4096;
/// Records that a packet holds.
const IN_PACKET: u64 = 165;
/// Enough for ten times the size, in two streams for each of two layers.
const RECORDS: u64 = 10 * (LIMIT / PACKET_SIZE) * IN_PACKET;
/// Ticks between two records.
const STEP: u64 = 1000;
const BEGIN: u64 = 1_000_000;

fn manifest() -> Manifest {
    strata_recording::test_trace::manifest_of(vec![Vm { name: "vm0".into(), vcpus: 2, ..Vm::default() }])
}

/// A recording in the making, which keeps within a size if it has one.
struct Recorder {
    dir: TempDir,
    rotation: Option<Rotation>,
    reserve: Reserve,
    manifest: Manifest,
    /// Of the guest's kernel and of the VMM.
    layers: [LayerWriter; 2],
    /// Records so far.
    number: u64,
}

impl Recorder {
    fn new(rotation: Option<Rotation>) -> Self {
        Self::with(rotation, None)
    }

    fn with(rotation: Option<Rotation>, compression: Option<Compression>) -> Self {
        let (dir, mut manifest) = (TempDir::new().unwrap(), manifest());
        (manifest.outcome, manifest.compression) = (None, compression);
        let field = FieldDescription { name: "number".into(), ty: FieldType::U64, hex: false };
        let event = EventDescription { id: 1, class: 0, name: "test:tick".into(), fields: vec![field] };
        let layers = [LayerKind::GuestKernel, LayerKind::Vmm].map(|kind| {
            let new = NewLayer { kind, vm: Some("vm0".into()), process: None, packet_size: PACKET_SIZE };
            let mut layer = LayerWriter::create_in_progress(rotation.as_ref(), dir.path(), &manifest, new).unwrap();
            layer.add_events(std::slice::from_ref(&event)).unwrap();
            layer
        });
        let mut recorder = Self { dir, rotation, reserve: Reserve::default(), manifest, layers, number: 0 };
        recorder.save();
        recorder
    }

    fn within(limit: u64) -> Self {
        Self::new(Some(Rotation::new(limit)))
    }

    /// Records as many, in one stream after the other, each with its number; now and then one of the guest's is lost.
    fn record(&mut self, records: u64) {
        for number in self.number..self.number + records {
            let layer = &mut self.layers[usize::from(number % 4 >= 2)];
            let cpu = u32::from(number % 2 == 1);
            if number % 10_007 == 0 {
                layer.add_lost(cpu, 1);
            }
            layer.record(cpu, BEGIN + number * STEP, 1, &number.to_le_bytes()).unwrap();
        }
        self.number += records;
    }

    fn save(&mut self) {
        self.manifest.layers = self.layers.iter().map(LayerWriter::layer).collect();
        match &self.rotation {
            Some(rotation) => rotation.save(self.dir.path(), &mut self.manifest, &mut self.reserve).unwrap(),
            None => self.manifest.save_reserving(self.dir.path(), &mut self.reserve).unwrap(),
        }
    }

    fn finish(mut self) -> TempDir {
        self.layers.iter_mut().for_each(|layer| layer.flush().unwrap());
        self.manifest.outcome = Some("power-off".into());
        self.save();
        self.dir
    }
}

/// Bytes that `dir` takes on the disk, without itself and the folders of VMs.
fn disk_usage(dir: &Path) -> u64 {
    let below = fs::read_dir(dir).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() { disk_usage(&path) } else { metadata.blocks() * 512 }
    });
    below.sum()
}

/// The numbers in the records of each stream.
fn numbers(trace: &Trace) -> Vec<Vec<u64>> {
    let streams = trace.layers().iter().flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream)));
    let numbers = streams.map(|(layer, stream)| {
        let records = layer.records(stream);
        records.map(|record| record.unsigned("number").unwrap()).collect::<Vec<_>>()
    });
    numbers.collect()
}

/// Whether `numbers` are those of one stream, one after another without a gap.
fn are_consecutive(numbers: &[u64]) -> bool {
    numbers.windows(2).all(|pair| pair[1] == pair[0] + 4)
}

fn damage(trace: &Trace) -> Damage {
    let mut merge = Merge::within(trace.layers(), 0, u64::MAX);
    merge.by_ref().for_each(drop);
    merge.damage()
}

/// What babeltrace2 complains about, and how many records it reads.
fn babeltrace2(dir: &Path) -> (String, u64) {
    let output = Command::new("babeltrace2").arg(dir).output().expect("babeltrace2 must be installed");
    let complaints = String::from_utf8(output.stderr).unwrap();
    (complaints, output.stdout.iter().filter(|&&byte| byte == b'\n').count() as u64)
}

#[test]
fn size_is_kept_at_every_moment_and_the_newest_records_are_there() {
    let mut recorder = Recorder::within(LIMIT);
    let mut most = 0;

    for round in 0..RECORDS / 50 {
        recorder.record(50);
        (0..u64::from(round % 100 == 0)).for_each(|_| recorder.save());
        most = disk_usage(recorder.dir.path()).max(most);
    }
    let dir = recorder.finish();
    let trace = Trace::open(dir.path()).unwrap();

    let kept = numbers(&trace);
    let most = disk_usage(dir.path()).max(most);
    assert!((LIMIT - LIMIT / 8..=LIMIT).contains(&most), "{most}");
    assert!(kept.iter().all(|numbers| are_consecutive(numbers)));
    // The last of each stream, and the first ones a few chunks of four streams apart at most.
    assert!(kept.iter().all(|numbers| *numbers.last().unwrap() >= RECORDS / 50 * 50 - 4));
    let first = kept.iter().map(|numbers| numbers[0]);
    assert!(first.clone().max().unwrap() - first.min().unwrap() <= 4 * 3 * IN_PACKET);
    assert_eq!(damage(&trace), Damage::default());
    assert_eq!(trace.manifest().max_size, Some(LIMIT));
}

#[test]
fn compressed_recording_keeps_its_size_and_reaches_further_back() {
    let mut compressed = Recorder::with(Some(Rotation::new(LIMIT)), Some(Compression::Zstd));
    let mut plain = Recorder::within(LIMIT);
    let mut most = 0;

    for round in 0..RECORDS / 50 {
        compressed.record(50);
        plain.record(50);
        (0..u64::from(round % 100 == 0)).for_each(|_| compressed.save());
        most = disk_usage(compressed.dir.path()).max(most);
    }
    let [compressed, plain] = [compressed.finish(), plain.finish()];
    let trace = Trace::open(compressed.path()).unwrap();

    let [kept, kept_plain] = [numbers(&trace), numbers(&Trace::open(plain.path()).unwrap())];
    let most = disk_usage(compressed.path()).max(most);
    assert!((LIMIT - LIMIT / 4..=LIMIT).contains(&most), "{most}");
    assert!(kept.iter().all(|numbers| are_consecutive(numbers)));
    assert!(kept.iter().zip(&kept_plain).all(|(compressed, plain)| compressed.len() > 2 * plain.len()));
    assert_eq!(damage(&trace), Damage::default());
}

#[test]
fn babeltrace2_reads_what_is_left_as_streams_of_one_trace() {
    let mut recorder = Recorder::within(LIMIT);

    // Too few for a loss.
    recorder.number = 1;
    recorder.record(10_000);
    let of_one = recorder.finish();
    let mut recorder = Recorder::within(LIMIT);
    recorder.record(RECORDS);
    let dir = recorder.finish();

    let kept: u64 = numbers(&Trace::open(dir.path()).unwrap()).iter().map(|numbers| numbers.len() as u64).sum();
    let (complaints, records) = babeltrace2(dir.path());
    assert!(kept < RECORDS / 5 && kept > RECORDS / 20, "{kept}");
    assert_eq!(records, kept);
    // What was lost before is not known of the first packets that count it, of each stream once; and nothing else.
    assert!(complaints.lines().all(|line| line.contains("discarded")), "{complaints}");
    assert!(complaints.lines().filter(|line| line.contains("may have")).count() <= 4, "{complaints}");
    assert_eq!(babeltrace2(of_one.path()), (String::new(), 10_000));
}

#[test]
fn recorder_that_is_killed_leaves_a_recording_at_every_moment() {
    let mut recorder = Recorder::within(LIMIT);

    for round in 0..60 {
        recorder.record(RECORDS / 60);
        // The manifest lags behind by up to seven rounds.
        (0..u64::from(round % 7 == 0)).for_each(|_| recorder.save());
        let trace = Trace::open(recorder.dir.path()).unwrap();
        let kept = numbers(&trace);

        assert!(kept.iter().all(|numbers| are_consecutive(numbers)), "round {round}");
        assert!(trace.layers().iter().all(|layer| layer.streams.iter().all(|stream| !stream.absent)));
        assert_eq!(damage(&trace), Damage::default(), "round {round}");
    }
    let (complaints, records) = babeltrace2(recorder.dir.path());
    assert!(complaints.lines().all(|line| line.contains("discarded")) && records > 0, "{complaints}");
}

/// The steps of a merge from `from` on, as text.
fn steps(trace: &Trace, from: u64) -> Vec<String> {
    let mut merge = Merge::within(trace.layers(), from, u64::MAX);
    let text = |step: Step<'_>| match step {
        Step::Record(merged) => format!("{} {:?}", merged.record.time, merged.record.unsigned("number")),
        Step::GapBegin { source, time } => format!("{time} gap of {source}"),
        Step::GapEnd { source, time } => format!("{time} end of the gap of {source}"),
    };
    std::iter::from_fn(|| merge.next_step()).map(text).collect()
}

#[test]
fn from_where_all_streams_are_there_it_reads_as_the_complete_recording_does() {
    let [kept, complete] = [Recorder::within(LIMIT), Recorder::new(None)].map(|mut recorder| {
        recorder.record(RECORDS);
        recorder.finish()
    });
    let (kept, complete) = (Trace::open(kept.path()).unwrap(), Trace::open(complete.path()).unwrap());
    let first = numbers(&kept).iter().map(|numbers| numbers[0]).max().unwrap();

    let from = BEGIN + first * STEP + STEP;

    let expected = steps(&complete, from);
    assert!(expected.iter().any(|step| step.contains("gap")), "a loss in what is kept");
    assert_eq!(steps(&kept, from), expected);
    let of = |trace: &Trace| Completeness::of(trace.layers(), Window { begin: from, end: u64::MAX }, trace.manifest());
    let gaps = |trace| of(trace).layers.iter().map(|layer| (layer.gaps, layer.gap_ns)).collect::<Vec<_>>();
    assert_eq!(gaps(&kept), gaps(&complete));
    assert!(of(&kept).line().unwrap().contains("2 streams whose beginning was dropped"), "{:?}", of(&kept).line());
}

/// A recording of all layers of a machine that computes, waits, forks, reads and is interrupted.
fn machine(max_size: Option<u64>) -> (TempDir, Trace) {
    let dir = TempDir::new().unwrap();
    write_layers::write(&dir.path().join("trace"), 150_000, max_size).unwrap();
    let trace = Trace::open(&dir.path().join("trace")).unwrap();
    (dir, trace)
}

#[test]
fn check_passes_what_is_left_of_a_machine() {
    let (dir, kept) = machine(Some(3 << 20));
    let (_complete_dir, complete) = machine(None);

    let [of_kept, of_complete] = [&kept, &complete].map(|trace| check(trace, 5).unwrap());

    let records = |trace: &Trace| Merge::new(trace.layers(), 0).count();
    assert!(of_kept.passed() && of_complete.passed(), "{of_kept:?}");
    assert!(disk_usage(dir.path()) <= 3 << 20);
    assert!(records(&kept) < records(&complete) / 2, "{}", records(&kept));
    let (complaints, listed) = babeltrace2(dir.path());
    assert_eq!((complaints.as_str(), listed), ("", records(&kept) as u64));
}

#[test]
fn what_lies_before_a_streams_first_record_is_unknown() {
    let mut recorder = Recorder::within(LIMIT);
    recorder.record(RECORDS);
    let dir = recorder.finish();
    let trace = Trace::open(dir.path()).unwrap();

    let steps = steps(&trace, 0);

    let first: Vec<u64> = numbers(&trace).iter().map(|numbers| BEGIN + numbers[0] * STEP).collect();
    assert!((0..4).all(|source| steps[source] == format!("0 gap of {source}")), "{:?}", &steps[..4]);
    assert!((0..4).all(|source| steps.contains(&format!("{} end of the gap of {source}", first[source]))));
}

#[test]
fn stream_that_was_dropped_whole_is_unknown_up_to_its_last_record() {
    let mut recorder = Recorder::within(LIMIT);
    recorder.layers[0].record(9, BEGIN - 1, 1, &[0; 8]).unwrap();
    recorder.layers[0].flush().unwrap();

    recorder.record(RECORDS);
    let dir = recorder.finish();
    let trace = Trace::open(dir.path()).unwrap();

    let guest = trace.layers().iter().find(|layer| layer.description.kind == LayerKind::GuestKernel).unwrap();
    let idle = guest.streams.iter().find(|stream| stream.description.cpu_id == 9).unwrap();
    let dropped = idle.description.dropped.unwrap();
    assert_eq!((dropped.packets, dropped.records, dropped.until, idle.absent), (1, 1, BEGIN - 1, false));
    assert!(steps(&trace, 0).contains(&format!("{} end of the gap of 4", BEGIN - 1)));
    assert_eq!(damage(&trace), Damage::default());
    assert!(steps(&trace, BEGIN).iter().all(|step| !step.contains("gap of 4") || step.starts_with(&BEGIN.to_string())));
}

#[test]
fn manifest_says_what_was_dropped_of_each_stream() {
    let mut recorder = Recorder::within(LIMIT);
    recorder.record(RECORDS);
    let dir = recorder.finish();

    let trace = Trace::open(dir.path()).unwrap();

    let streams: Vec<_> = trace.layers().iter().flat_map(|layer| &layer.streams).collect();
    for (stream, numbers) in streams.iter().zip(numbers(&trace)) {
        let Dropped { packets, records, until, next, .. } = stream.description.dropped.unwrap();
        assert_eq!(records + numbers.len() as u64, stream.description.records);
        assert_eq!((packets, next), (stream.description.packets - stream.packets() as u64, packets));
        assert!(until < BEGIN + numbers[0] * STEP && until >= BEGIN + (numbers[0] - 4) * STEP);
    }
}

#[test]
fn description_that_leaves_no_room_is_refused() {
    let rotation = Rotation::new(8 << 10);
    let dir = TempDir::new().unwrap();
    let new = NewLayer { kind: LayerKind::Vmm, vm: Some("vm0".into()), process: None, packet_size: PACKET_SIZE };
    let mut layer = LayerWriter::create_in_progress(Some(&rotation), dir.path(), &manifest(), new).unwrap();

    let name = |id: u16| format!("test:{}{id}", "x".repeat(100));
    let event = |id| EventDescription { id, class: 0, name: name(id), fields: Vec::new() };
    let error = layer.add_events(&(1..100).map(event).collect::<Vec<_>>()).unwrap_err();

    assert!(matches!(error, WriteError::NoRoom { limit: 8192, .. }), "{error}");
    assert!(error.to_string().contains("--max-size"), "{error}");
}

#[test]
fn layer_whose_packets_are_all_gone_is_forgotten_with_its_folder() {
    let mut recorder = Recorder::within(LIMIT);
    let process = strata_recording::manifest::Process { pid: 7, comm: "app".into() };
    let new = NewLayer {
        kind: LayerKind::GuestUser,
        vm: Some("vm0".into()),
        process: Some(process),
        packet_size: PACKET_SIZE,
    };
    let rotation = recorder.rotation.clone().unwrap();
    let mut process = LayerWriter::create_in_progress(Some(&rotation), recorder.dir.path(), &manifest(), new).unwrap();
    process.record(0, BEGIN, 1, &[]).unwrap();
    process.flush().unwrap();
    let ended = process.layer();
    drop(process);
    let folder = recorder.dir.path().join(&ended.path);

    let before = rotation.forget_if_dropped(recorder.dir.path(), &ended).unwrap();
    let was_there = folder.is_dir();
    recorder.record(RECORDS);
    let after = rotation.forget_if_dropped(recorder.dir.path(), &ended).unwrap();

    assert_eq!((before, was_there, after, folder.exists()), (false, true, true, false));
}
