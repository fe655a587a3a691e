//! Writing a recording as one file, as [`packed`](crate::files::packed) reads it.

use crate::files::MANIFEST_FILE;
use crate::files::packed::limit_of;
use crate::reader::{ReadError, Trace};
use std::io::{self, Write};
use std::path::PathBuf;
use tar::{EntryType, Header};
use thiserror::Error;
use zstd::stream::write::Encoder;

/// The level of compression: higher ones take four times as long, for a hundredth of the size.
const LEVEL: i32 = 9;
/// Permissions that the files get when the archive is unpacked: they are their owner's alone.
const MODE: u32 = 0o600;

/// Why a recording is not written as one file.
#[derive(Debug, Error)]
pub enum PackError {
    /// A file of it cannot be read.
    #[error("{}: cannot be read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be written.
    #[error("the one file cannot be written; check the space and the permissions of its folder")]
    Write(#[source] io::Error),
    /// The name of one of its files does not fit into an archive.
    #[error("{path:?} is too long a name for an archive: give a folder to -o")]
    Name {
        /// The name.
        path: String,
    },
    /// What was written would not be read again.
    #[error("{bytes} bytes compress to {packed}: strata would refuse to unpack such a file; give a folder to -o")]
    TooLarge {
        /// Bytes of the archive.
        bytes: u64,
        /// Bytes of the archive, compressed.
        packed: u64,
    },
    /// The recording cannot be read.
    #[error(transparent)]
    Trace(#[from] ReadError),
}

/// Writes the files of `trace`, and no others that lie beside them, as one file to `out`. It is the same for the same
/// files, whenever and by whomever it is written. Returns how many bytes it has.
///
/// # Errors
/// When a file cannot be read or written, or nobody could read the result.
pub fn pack(trace: &Trace, out: impl Write) -> Result<u64, PackError> {
    let mut packed = Counting { inner: out, bytes: 0 };
    let mut compressed = Encoder::new(&mut packed, LEVEL).map_err(PackError::Write)?;
    compressed.include_checksum(true).map_err(PackError::Write)?;
    let mut archive = tar::Builder::new(Counting { inner: compressed, bytes: 0 });
    for path in trace.file_paths() {
        add(&mut archive, trace, &path)?;
    }
    let Counting { inner, bytes } = archive.into_inner().map_err(PackError::Write)?;
    inner.finish().and_then(|out| out.flush()).map_err(PackError::Write)?;
    if bytes > limit_of(packed.bytes) {
        return Err(PackError::TooLarge { bytes, packed: packed.bytes });
    }
    Ok(packed.bytes)
}

/// Adds the file `path` of `trace` to `archive`.
fn add(archive: &mut tar::Builder<impl Write>, trace: &Trace, path: &str) -> Result<(), PackError> {
    let content = match trace.files().map(path) {
        Ok(content) => content,
        // Its recorder still runs, and may have removed it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path != MANIFEST_FILE => return Ok(()),
        Err(source) => return Err(PackError::Read { path: trace.files().place(path), source }),
    };
    let content = content.as_deref().unwrap_or_default();
    let mut header = Header::new_ustar();
    header.set_path(path).map_err(|_| PackError::Name { path: path.into() })?;
    header.set_entry_type(EntryType::Regular);
    header.set_mode(MODE);
    header.set_size(content.len() as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    archive.append(&header, content).map_err(PackError::Write)
}

/// Counts what is written.
struct Counting<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes = self.bytes.saturating_add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
