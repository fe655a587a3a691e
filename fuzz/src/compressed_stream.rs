//! A compressed stream of a recording, forged or damaged.
//!
//! The first byte of an input says what follows: the file itself (even), or what its frames decompress to, `u16` length and
//! bytes each, and behind an empty one the end of the file (odd).

use crate::script::Input;
use crate::trace_folder::{FOLDERS, PACKET_SIZE, manifest};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use strata_recording::files::MANIFEST_FILE;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::reader::merge::Merge;
use tempfile::TempDir;

/// The recording's folder, with a description of one layer.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let dir = TempDir::new().expect("the folder for temporary files is writable").keep();
        let mut manifest = manifest();
        manifest.layers.retain(|layer| layer.kind == LayerKind::GuestUser);
        manifest.layers[0].streams.clear();
        fs::create_dir_all(dir.join(FOLDERS[2])).expect("the new folder is writable");
        let description = serde_json::to_vec(&manifest).expect("a description can be written");
        fs::write(dir.join(MANIFEST_FILE), description).expect("the folder is writable");
        dir
    })
}

/// The file that an input describes.
fn file(data: &[u8]) -> Vec<u8> {
    let Some((kind, rest)) = data.split_first() else { return Vec::new() };
    if kind % 2 == 0 {
        return rest.to_vec();
    }
    let mut input = Input(rest);
    let mut file = Vec::new();
    loop {
        match input.block() {
            [] => break,
            packet => file.extend(zstd::bulk::compress(packet, 1).expect("there is memory")),
        }
    }
    file.extend(input.0);
    file
}

/// Gives an input to the reader and checks what must hold.
///
/// # Panics
/// When a property that the target checks does not hold, or when files cannot be written.
pub fn run(data: &[u8]) {
    records(data);
}

/// Gives an input to the reader, checks what must hold, and returns how many records it finds.
///
/// # Panics
/// As [`run`].
pub fn records(data: &[u8]) -> usize {
    fs::write(folder().join(FOLDERS[2]).join("stream_1.zst"), file(data)).expect("the folder is writable");
    let trace = Trace::open(folder()).expect("the description is whole");
    let mut found = 0;
    for layer in trace.layers() {
        for stream in &layer.streams {
            let mut records = layer.records(stream);
            found += records.by_ref().count();
            assert!(!records.damage().to_string().contains('\n'));
            assert_eq!(layer.records(stream).starting_at(0).count(), found, "a second look finds the same");
        }
    }
    // A frame takes a few bytes at least, and is a packet.
    let most = data.len() / 2 * usize::try_from(PACKET_SIZE).expect("512 bytes") / 8;
    assert!(found <= most, "{found} records of {} bytes", data.len());
    assert_eq!(Merge::new(trace.layers(), 0).count(), found);
    found
}
