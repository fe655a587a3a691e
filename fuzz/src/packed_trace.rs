//! One file with a recording, forged or damaged.
//!
//! An input is a tar archive, whose checksums are put right here; what begins as zstd's frames do is the file as it is.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use strata_recording::one_file::pack::pack;
use strata_recording::reader::Trace;
use strata_recording::reader::merge::Merge;
use tempfile::TempDir;

/// What a frame of zstd begins with.
const ZSTD_MAGIC: &[u8] = b"\x28\xb5\x2f\xfd";

/// Bytes of a header of an archive, which begins at a multiple of them.
const HEADER: usize = 512;
/// What a header says of itself, and where.
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");
/// Where its checksum is: the sum of its bytes, with blanks in place of that.
const CHECKSUM: Range<usize> = 148..156;

/// `archive` with the checksums that its headers should have, so that changed ones are looked at.
fn with_checksums(archive: &[u8]) -> Vec<u8> {
    let mut archive = archive.to_vec();
    let (at, magic) = TAR_MAGIC;
    for header in archive.chunks_exact_mut(HEADER).filter(|header| header[at..].starts_with(magic)) {
        header[CHECKSUM].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    archive
}

/// Where the file of an input is: the same for the whole process, since each takes the place of the one before it.
fn place() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE
        .get_or_init(|| TempDir::new().expect("the folder for temporary files is writable").keep().join("input.strata"))
}

/// Gives an input to the reader and checks what must hold.
///
/// # Panics
/// When a property that the target checks does not hold, or when files cannot be written.
pub fn run(data: &[u8]) {
    let file = match data.starts_with(ZSTD_MAGIC) {
        true => data.to_vec(),
        false => with_checksums(data),
    };
    fs::write(place(), file).expect("the folder is writable");
    let trace = match Trace::open(place()) {
        Ok(trace) => trace,
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    };
    let records = Merge::new(trace.layers(), 0).count();
    assert!(trace.layers().iter().all(|layer| layer.metadata_problem().is_none_or(|problem| !problem.is_empty())));
    let mut again = Vec::new();
    // A name may be too long for an archive of ours.
    let Ok(_) = pack(&trace, &mut again) else { return };
    fs::write(place(), again).expect("the folder is writable");
    let packed = Trace::open(place()).expect("what was packed is read");
    assert_eq!(packed.manifest(), trace.manifest());
    assert_eq!(Merge::new(packed.layers(), 0).count(), records);
}
