//! Compressed recordings: what they read as, what they are when something is missing, and what they become for other tools.
//!
//! Shows: A compressed recording reads as the plain one, even growing or damaged, and keeps its size.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)] // A test binary: nothing to document, may panic.

use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_export::{Options, ctf};
use strata_recording::files::compression::Compression;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, Vm};
use strata_recording::reader::merge::Merge;
use strata_recording::reader::{Damage, Trace};
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;

const PACKET_SIZE: u64 = 4096;
const RECORDS: u64 = 20_000;
const STREAM: &str = "vm0/guest-kernel/stream_0.zst";

/// A layer of two streams in `dir`, whose records hold their numbers, one every microsecond.
fn write(dir: &Path, compression: Option<Compression>) -> (LayerWriter, Manifest) {
    let vm = Vm { name: "vm0".into(), vcpus: 2, ..Vm::default() };
    let manifest = Manifest { compression, ..strata_recording::test_trace::manifest_of(vec![vm]) };
    let field = FieldDescription { name: "number".into(), ty: FieldType::U64, hex: false };
    let event = EventDescription { id: 1, class: 0, name: "test:tick".into(), fields: vec![field] };
    let kind = LayerKind::GuestKernel;
    let new = NewLayer { kind, vm: Some("vm0".into()), process: None, packet_size: PACKET_SIZE };
    let mut layer = LayerWriter::create(dir, &manifest, new).unwrap();
    layer.add_events(&[event]).unwrap();
    for number in 0..RECORDS {
        layer.record(u32::from(number % 2 == 1), 1_000_000 + number * 1000, 1, &number.to_le_bytes()).unwrap();
    }
    layer.flush().unwrap();
    let manifest = Manifest { layers: vec![layer.layer()], ..manifest };
    manifest.save(dir).unwrap();
    (layer, manifest)
}

fn compressed() -> TempDir {
    let dir = TempDir::new().unwrap();
    write(dir.path(), Some(Compression::Zstd));
    dir
}

/// The numbers in the records of the window, and what was found damaged.
fn read(dir: &Path, begin: u64, end: u64) -> (Vec<u64>, Damage) {
    let trace = Trace::open(dir).unwrap();
    let mut merge = Merge::within(trace.layers(), begin, end);
    let numbers = merge.by_ref().map(|merged| merged.record.unsigned("number").unwrap()).collect();
    (numbers, merge.damage())
}

fn whole(dir: &Path) -> (Vec<u64>, Damage) {
    read(dir, 0, u64::MAX)
}

fn change(dir: &TempDir, change: impl FnOnce(&mut Vec<u8>)) {
    let path = dir.path().join(STREAM);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The lines that babeltrace2 reads, without a complaint.
fn babeltrace2(dir: &Path) -> String {
    let output = Command::new("babeltrace2").arg(dir).output().expect("babeltrace2 must be installed");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn compressed_recording_reads_as_the_other_and_takes_less() {
    let (plain, compressed) = (TempDir::new().unwrap(), compressed());
    write(plain.path(), None);

    let bytes = |dir: &TempDir| {
        let files = files(&dir.path().join("vm0/guest-kernel"));
        let streams = files.iter().filter(|path| !path.ends_with("metadata"));
        streams.map(|path| fs::metadata(path).unwrap().len()).sum::<u64>()
    };
    assert_eq!(whole(compressed.path()), ((0..RECORDS).collect(), Damage::default()));
    assert_eq!(whole(compressed.path()), whole(plain.path()));
    assert!(bytes(&compressed) * 2 < bytes(&plain), "{} of {}", bytes(&compressed), bytes(&plain));
}

#[test]
fn part_of_a_compressed_recording_is_that_part() {
    let dir = compressed();

    let (numbers, damage) = read(dir.path(), 6_000_000, 6_999_999);

    assert_eq!((numbers, damage), ((5000..6000).collect(), Damage::default()));
}

#[test]
fn running_recorders_streams_are_read_without_their_table() {
    let dir = TempDir::new().unwrap();

    let (running, _) = write(dir.path(), Some(Compression::Zstd));
    let before = whole(dir.path());
    let length = fs::metadata(dir.path().join(STREAM)).unwrap().len();
    drop(running);

    assert!(fs::metadata(dir.path().join(STREAM)).unwrap().len() > length, "no table was written");
    assert_eq!(before, whole(dir.path()));
}

#[test]
fn packet_that_is_cut_is_counted() {
    let dir = TempDir::new().unwrap();
    let (running, _) = write(dir.path(), Some(Compression::Zstd));
    std::mem::forget(running);
    change(&dir, |bytes| bytes.truncate(bytes.len() - 10));

    let (numbers, damage) = whole(dir.path());

    assert!(damage.truncated_bytes > 0 && damage.missing_records > 0, "{damage:?}");
    assert_eq!(numbers.len() as u64 + damage.missing_records, RECORDS);
}

#[test]
fn damaged_packet_is_skipped_and_the_next_is_read() {
    let dir = compressed();
    change(&dir, |bytes| bytes[100] ^= 0x10);

    let (numbers, damage) = whole(dir.path());

    assert_eq!((damage.packets, numbers.last()), (1, Some(&(RECORDS - 1))));
    assert_eq!(numbers.len() as u64 + damage.missing_records, RECORDS);
}

#[test]
fn zstd_makes_of_a_compressed_stream_what_the_export_to_ctf_holds() {
    let (dir, out) = (compressed(), TempDir::new().unwrap());
    let trace = Trace::open(dir.path()).unwrap();

    let exported = ctf::export(&trace, ctf::Version::V1_8, &Options::default(), out.path()).unwrap();

    let decompressed = zstd::stream::decode_all(&*fs::read(dir.path().join(STREAM)).unwrap()).unwrap();
    assert_eq!(exported.records, RECORDS);
    assert!(decompressed == fs::read(out.path().join("vm0/guest-kernel/stream_0")).unwrap());
}

#[test]
fn babeltrace2_reads_the_export_to_ctf_as_it_does_the_recording() {
    let (plain, compressed, out) = (TempDir::new().unwrap(), compressed(), TempDir::new().unwrap());
    write(plain.path(), None);

    let trace = Trace::open(compressed.path()).unwrap();
    ctf::export(&trace, ctf::Version::V1_8, &Options::default(), out.path()).unwrap();

    let lines = babeltrace2(out.path());
    assert_eq!(lines.lines().count() as u64, RECORDS);
    assert!(lines == babeltrace2(plain.path()));
}
