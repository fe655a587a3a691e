//! What a path is that was given in place of a recording's folder: a part of one, or another tool's recording.

use crate::files::{MANIFEST_FILE, METADATA_FILE};
use crate::text::terminal::shell_path;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes at the begin of a file that tell what it is: more than the header of a tar archive.
const READ: u64 = 512;
/// Bytes that a field's tag and length take at most.
const TAG_AND_LENGTH: usize = 20;
/// Folders above a path in which a recording is looked for: a stream lies three below its recording.
const LEVELS: usize = 4;

/// Files of others, by their first bytes: where these stand, what they are, and what it is.
const KNOWN: [(usize, &[u8], &str); 7] = [
    (0, b"\x17\x08\x44tracing", "a recording of trace-cmd; `trace-cmd report` reads it"),
    (0, b"PERFILE2", "a recording of perf; `perf script` reads it"),
    (0, b"!<arch>", "an archive; give the folder of a trace"),
    (0, b"\x1f\x8b", "compressed (gzip); unpack it, and give the folder of the trace"),
    (0, b"\x28\xb5\x2f\xfd", "compressed (zstd); unpack it, and give the folder of the trace"),
    (0, b"\xfd7zXZ", "compressed (xz); unpack it, and give the folder of the trace"),
    (0, b"<!doctype html", "a page; open it in a browser"),
];
const PERFETTO: &str = "a Perfetto trace, it seems; `strata open` shows it";

/// How the metadata of a CTF 1.8 trace begins, as text and as packets, and that of CTF 2.
const CTF: [&[u8]; 3] = [b"/* CTF", b"\x57\x1d\xd1\x75", b"\x1e{"];

/// What lies at `path`, which is not a folder of a recording, and what to do; `None` for nothing that is known.
pub(super) fn recognised(path: &Path) -> Option<String> {
    // An empty path's parent, where a relative one has no more.
    let above = path.ancestors().skip(1).take(LEVELS).filter(|folder| !folder.as_os_str().is_empty());
    let trace = above.into_iter().find(|folder| folder.join(MANIFEST_FILE).is_file());
    if let Some(trace) = trace.filter(|_| path.exists()) {
        return Some(format!("a part of the trace {}; give that folder", shell_path(trace)));
    }
    if path.is_dir() {
        let metadata = first_bytes(&path.join(METADATA_FILE))?;
        let is_ctf = CTF.iter().any(|begin| metadata.starts_with(begin));
        return is_ctf.then(|| "a CTF trace that Strata did not record; babeltrace2 reads it".into());
    }
    if path.exists() && !path.is_file() {
        return Some("neither a folder nor a file; give the folder of a trace, or a file of `strata cut`".into());
    }
    let bytes = first_bytes(path)?;
    let known = KNOWN.iter().find(|(at, magic, _)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    let what = known.map_or("a file; give the folder of a trace, or a file of `strata cut`", |(.., what)| what);
    Some(if begins_with_packet(&bytes) { PERFETTO } else { what }.into())
}

/// How files begin that Perfetto's viewer unpacks itself: gzip and zip.
const UNPACKED_BY_PERFETTO: [&[u8]; 2] = [b"\x1f\x8b", b"PK\x03\x04"];

/// Whether the file at `path` begins as Perfetto's traces do, or may be such a trace that is compressed.
#[must_use]
pub fn is_perfetto_file(path: &Path) -> bool {
    let is_packed = |bytes: &[u8]| UNPACKED_BY_PERFETTO.iter().any(|begin| bytes.starts_with(begin));
    first_bytes(path).is_some_and(|bytes| begins_with_packet(&bytes) || is_packed(&bytes))
}

/// Whether a file that begins with `bytes` begins with a packet of Perfetto's: field 1 of a message, which is made of
/// fields itself, with field 1 or the file's end behind it. Text that begins with an empty line is not.
fn begins_with_packet(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.strip_prefix(b"\x0a").and_then(varint) else { return false };
    // Of a long packet only the begin was read.
    let read = rest.len().min(usize::try_from(length).unwrap_or(usize::MAX));
    let is_whole = read as u64 == length;
    let (packet, behind) = rest.split_at(read);
    let mut end: u64 = 0;
    while let Some(rest) = usize::try_from(end).ok().and_then(|end| packet.get(end..)).filter(|rest| !rest.is_empty()) {
        match field_length(rest) {
            Some(length) => end = end.saturating_add(length),
            // Tag and length of the last one may be cut.
            None => return !is_whole && end > 0 && bytes.len() as u64 == READ && rest.len() < TAG_AND_LENGTH,
        }
    }
    let fits = if is_whole { end == length } else { end <= length && bytes.len() as u64 == READ };
    end > 0 && fits && behind.first().is_none_or(|&tag| tag == 0x0a)
}

/// A number as protocol buffers have it, and what is behind it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)? + 1;
    let (number, rest) = bytes.split_at_checked(length)?;
    Some((number.iter().rev().fold(0, |sum: u64, byte| (sum << 7) | u64::from(byte & 0x7f)), rest))
}

/// Length of the field that `bytes` begin with, which may be cut short; `None` where that is none.
fn field_length(bytes: &[u8]) -> Option<u64> {
    let (tag, rest) = varint(bytes)?;
    // Field 0 does not exist.
    if tag >> 3 == 0 {
        return None;
    }
    let (behind, length) = match tag & 7 {
        0 => (varint(rest)?.1, 0),
        1 => (rest, 8),
        2 => varint(rest).map(|(length, behind)| (behind, length))?,
        5 => (rest, 4),
        _ => return None,
    };
    Some(((bytes.len() - behind.len()) as u64).saturating_add(length))
}

/// The first bytes of a file; `None` for what is none, a FIFO for instance, or cannot be read.
fn first_bytes(path: &Path) -> Option<Vec<u8>> {
    if !path.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(READ).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    fn recognised_as(bytes: &[u8]) -> String {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        recognised(&path).unwrap()
    }

    #[test]
    fn recordings_of_others_are_named() {
        // Field 8 of the packet is its time.
        let packet = b"\x0a\x02\x40\x05\x0a\x02\x40\x06";
        let files: [&[u8]; 4] = [b"\x17\x08\x44tracing6\0", b"PERFILE2....", packet, b"text"];

        let named = files.map(recognised_as);

        let expected = ["trace-cmd", "perf script", "Perfetto", "a file; give the folder"];
        assert!(named.iter().zip(expected).all(|(recognised, name)| recognised.contains(name)), "{named:?}");
    }

    #[test]
    fn trace_of_perfettos_may_be_compressed() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        let files: [&[u8]; 4] = [b"\x1f\x8b\x08", b"PK\x03\x04", b"\x0a\x02\x40\x05", b"PERFILE2"];

        let taken = files.map(|bytes| {
            fs::write(&path, bytes).unwrap();
            is_perfetto_file(&path)
        });

        assert_eq!(taken, [true, true, true, false]);
    }

    #[test]
    fn packet_that_is_longer_than_what_is_read_is_perfettos_too() {
        // Field 2 of a packet of 602 bytes: 599 bytes.
        let long = [&b"\x0a\xda\x04\x12\xd7\x04"[..], &[7; 599]].concat();
        let cut = &long[..300];

        let named = [&long, cut].map(recognised_as);

        assert_eq!(named.map(|recognised| recognised.contains("Perfetto")), [true, false]);
    }

    #[test]
    fn text_that_begins_with_an_empty_line_is_a_file() {
        let texts: [&[u8]; 4] = [b"\n", b"\n\n\n\nfour", b"\nhello, world: this is a text\n", b"\n\x02\x40\x05text"];

        assert!(
            texts.map(recognised_as).iter().all(|recognised| recognised.starts_with("a file; give")),
            "{:?}",
            texts.map(recognised_as)
        );
    }

    #[test]
    fn parts_of_a_recording_name_it() {
        let trace = TempDir::with_prefix("a b").unwrap();
        let layer = trace.path().join("vm0/guest-kernel");
        fs::create_dir_all(&layer).unwrap();
        fs::write(trace.path().join(MANIFEST_FILE), "{}").unwrap();
        fs::write(layer.join("stream_0"), "").unwrap();

        let parts = ["session.json", "vm0", "vm0/guest-kernel", "vm0/guest-kernel/stream_0"];
        let named = parts.map(|part| recognised(&trace.path().join(part)).unwrap());

        let expected = format!("a part of the trace '{}'; give that folder", trace.path().display());
        assert!(named.iter().all(|recognised| *recognised == expected), "{named:?}");
        assert_eq!(recognised(&trace.path().join("absent")), None);
    }

    #[test]
    fn device_is_neither_a_folder_nor_a_file() {
        assert!(recognised(Path::new("/dev/null")).unwrap().starts_with("neither a folder nor a file"));
    }

    #[test]
    fn foreign_ctf_is_distinguished_from_an_empty_folder() {
        let folder = TempDir::new().unwrap();

        assert_eq!(recognised(folder.path()), None);
        fs::write(folder.path().join("metadata"), "/* CTF 1.8 */").unwrap();

        assert!(recognised(folder.path()).unwrap().contains("babeltrace2 reads it"));
    }
}
