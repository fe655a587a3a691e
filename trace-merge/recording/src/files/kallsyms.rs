//! The symbols of a kernel beside its layer, in `LAYER.kallsyms.zst`: what `/proc/kallsyms` had, compressed with zstd.

use crate::files::access::Readers;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What follows the path of a layer in that of its symbols.
const EXTENSION: &str = ".kallsyms.zst";
/// Symbols of a kernel take less, bytes: those of a distribution with its modules take 10 MB.
const MAX_BYTES: u64 = 32 << 20;
/// What is compressed at once, bytes.
const PART: usize = 256 << 10;
/// Level of compression: higher ones take twice as long for a twentieth.
const LEVEL: i32 = 3;

/// Where the symbols of the layer at `path` lie.
#[must_use]
pub fn file_of(path: &str) -> String {
    format!("{path}{EXTENSION}")
}

/// Writes `text`, which `/proc/kallsyms` has, beside the layer at `path` of the recording in `folder`. Calls `meanwhile`
/// behind each part, which takes some milliseconds.
///
/// # Errors
/// When it cannot be written.
pub fn write(folder: &Path, path: &str, text: &[u8], meanwhile: &mut dyn FnMut()) -> io::Result<()> {
    write_compressed(folder, path, &compressed(text, meanwhile)?)
}

/// Writes `bytes`, which are [`compressed`], beside the layer at `path` of the recording in `folder`.
///
/// # Errors
/// When they cannot be written.
pub fn write_compressed(folder: &Path, path: &str, bytes: &[u8]) -> io::Result<()> {
    write_to(&folder.join(file_of(path)), bytes)
}

/// Where the symbols of the layer in `folder` lie.
pub(crate) fn beside(folder: &Path) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(EXTENSION);
    folder.with_file_name(name)
}

/// `text`, which `/proc/kallsyms` has, compressed. Calls `meanwhile` behind each part of it.
///
/// # Errors
/// When there is no memory for it.
pub fn compressed(text: &[u8], meanwhile: &mut dyn FnMut()) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), LEVEL)?;
    for part in text.chunks(PART) {
        encoder.write_all(part)?;
        meanwhile();
    }
    encoder.finish()
}

/// Writes `bytes`, which are [`compressed`], to `path`.
pub(crate) fn write_to(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Readers::of(path.parent().unwrap_or(Path::new(".")))?.write_atomically(path, bytes)
}

/// The text in `bytes` of such a file. What follows more than a kernel has is left out.
///
/// # Errors
/// When they are damaged.
pub(crate) fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    zstd::stream::read::Decoder::new(bytes)?.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn symbols_are_read_as_they_were_written() {
        let dir = TempDir::new().unwrap();
        let text = b"ffffffff81000000 T _text\n".repeat(20_000);

        let mut parts = 0;
        write(dir.path(), "host-kernel", &text, &mut || parts += 1).unwrap();

        let bytes = fs::read(dir.path().join("host-kernel.kallsyms.zst")).unwrap();
        assert_eq!(read(&bytes).unwrap(), text);
        assert_eq!(parts, 2);
        assert!(bytes.len() < 200 && read(&bytes[..bytes.len() - 5]).is_err());
    }
}
