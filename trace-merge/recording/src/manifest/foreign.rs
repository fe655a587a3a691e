//! What a path is that was given in place of a recording's folder: a part of one, or another tool's recording.

use super::MANIFEST_FILE;
use crate::terminal::shell_path;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes at the begin of a file that tell what it is: more than the header of a tar archive.
const READ: u64 = 512;
/// Folders above a path in which a recording is looked for: a stream lies three below its recording.
const LEVELS: usize = 4;

/// Files of others, by their first bytes: where these stand, what they are, and what it is.
const KNOWN: [(usize, &[u8], &str); 9] = [
    (0, b"\x17\x08\x44tracing", "a recording of trace-cmd; `trace-cmd report` reads it"),
    (0, b"PERFILE2", "a recording of perf; `perf script` reads it"),
    (0, b"!<arch>", "an archive; give the folder of a trace"),
    (0, b"\x1f\x8b", "compressed (gzip); unpack it, and give the folder of the trace"),
    (0, b"\x28\xb5\x2f\xfd", "compressed (zstd); unpack it, and give the folder of the trace"),
    (0, b"\xfd7zXZ", "compressed (xz); unpack it, and give the folder of the trace"),
    (257, b"ustar", "an archive (tar); unpack it, and give the folder of the trace"),
    (0, b"<!doctype html", "a page; open it in a browser"),
    // A message of Perfetto's: field 1, a packet.
    (0, b"\x0a", "a Perfetto trace, it seems; `strata open` shows it"),
];

/// How the metadata of a CTF 1.8 trace begins, as text and as packets, and that of CTF 2.
const CTF: [&[u8]; 3] = [b"/* CTF", b"\x57\x1d\xd1\x75", b"\x1e{"];

/// What lies at `path`, which is no folder of a recording, and what to do; `None` for nothing that is known.
pub(super) fn told(path: &Path) -> Option<String> {
    // An empty path's parent, where a relative one has no more.
    let above = path.ancestors().skip(1).take(LEVELS).filter(|folder| !folder.as_os_str().is_empty());
    let trace = above.into_iter().find(|folder| folder.join(MANIFEST_FILE).is_file());
    if let Some(trace) = trace.filter(|_| path.exists()) {
        return Some(format!("a part of the trace {}; give that folder", shell_path(trace)));
    }
    if path.is_dir() {
        let metadata = first_bytes(&path.join("metadata"))?;
        let is_ctf = CTF.iter().any(|begin| metadata.starts_with(begin));
        return is_ctf.then(|| "a CTF trace that Strata did not record; babeltrace2 reads it".into());
    }
    let bytes = first_bytes(path)?;
    let known = KNOWN.iter().find(|(at, magic, _)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    Some(known.map_or("a file; give the folder of a trace", |(.., what)| what).into())
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

    fn told_of(bytes: &[u8]) -> String {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        told(&path).unwrap()
    }

    #[test]
    fn recordings_of_others_are_named() {
        let tar = [&[0; 257][..], b"ustar\0"].concat();
        let files: [&[u8]; 5] = [b"\x17\x08\x44tracing6\0", b"PERFILE2....", b"\x0a\x10packet", &tar, b"text"];

        let named = files.map(told_of);

        let expected = ["trace-cmd", "perf script", "Perfetto", "tar", "a file; give the folder"];
        assert!(named.iter().zip(expected).all(|(told, name)| told.contains(name)), "{named:?}");
    }

    #[test]
    fn parts_of_a_recording_name_it() {
        let trace = TempDir::with_prefix("a b").unwrap();
        let layer = trace.path().join("vm0/guest-kernel");
        fs::create_dir_all(&layer).unwrap();
        fs::write(trace.path().join(MANIFEST_FILE), "{}").unwrap();
        fs::write(layer.join("stream_0"), "").unwrap();

        let parts = ["session.json", "vm0", "vm0/guest-kernel", "vm0/guest-kernel/stream_0"];
        let named = parts.map(|part| told(&trace.path().join(part)).unwrap());

        let expected = format!("a part of the trace '{}'; give that folder", trace.path().display());
        assert!(named.iter().all(|told| *told == expected), "{named:?}");
        assert_eq!(told(&trace.path().join("absent")), None);
    }

    #[test]
    fn foreign_ctf_is_told_from_an_empty_folder() {
        let folder = TempDir::new().unwrap();

        assert_eq!(told(folder.path()), None);
        fs::write(folder.path().join("metadata"), "/* CTF 1.8 */").unwrap();

        assert!(told(folder.path()).unwrap().contains("babeltrace2 reads it"));
    }
}
