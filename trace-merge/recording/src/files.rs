//! The files of a recording: where they are, in its folder or in one file ([`packed`]), how they are opened, and how they
//! are compressed.

pub mod access;
pub mod compression;
pub mod kallsyms;
pub(crate) mod mapped_file;
pub mod packed;
pub mod removed_on_signal;
pub mod reserve;
pub mod trace_folder;

use mapped_file::MappedFile;
use packed::Packed;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file in a recording's folder that says what it holds.
pub const MANIFEST_FILE: &str = "session.json";
/// Name of the file beside it that says what came since it was saved.
pub const JOURNAL_FILE: &str = "session.journal";
/// Name of the file beside them with what the host's clocks showed.
pub const CLOCKS_FILE: &str = "session.clocks";
/// Name of the file in a layer's folder that describes its streams.
pub const METADATA_FILE: &str = "metadata";
/// Largest `session.json` that is read or written, bytes.
pub const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// Where temporary files are if the user does not say: rather not in `/tmp`, which is often memory. An image for containers
/// may have nothing else.
const TEMPORARY_FOLDERS: [&str; 2] = ["/var/tmp", "/tmp"];

/// Where temporary files are: `$TMPDIR`, else `/var/tmp`, or `/tmp` where that is not there.
pub(crate) fn temporary_folder() -> PathBuf {
    temporary_folder_of(env::var_os("TMPDIR"), Path::is_dir)
}

fn temporary_folder_of(named: Option<OsString>, is_there: impl Fn(&Path) -> bool) -> PathBuf {
    let [first, other] = TEMPORARY_FOLDERS.map(PathBuf::from);
    named.map_or_else(|| if is_there(&first) { first } else { other }, PathBuf::from)
}

/// Opens a file for reading. Anything but a regular file is refused: opening a FIFO would wait for a writer.
///
/// # Errors
/// When it cannot be opened, or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = i32::from_ne_bytes(rustix::fs::OFlags::NONBLOCK.bits().to_ne_bytes());
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    Ok(file)
}

/// The files of a recording. Their paths are relative to its folder.
#[derive(Clone, Debug)]
pub(crate) enum Files {
    /// In a folder.
    Folder(PathBuf),
    /// In one file.
    Packed(Arc<Packed>),
}

impl Files {
    /// Where the file `path` would be.
    pub(crate) fn place(&self, path: &str) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.join(path),
            Self::Packed(packed) => packed.path().join(path),
        }
    }

    /// How a user decompresses a stream's file, for a message.
    pub(crate) const fn unpacking(&self) -> &'static str {
        match self {
            Self::Folder(_) => "`zstd -d --rm` of the file",
            Self::Packed(_) => "`tar --zstd -xf` of the trace, and `zstd -d --rm` of the file in it",
        }
    }

    /// Names of the files in `folder`, in no order; none where there is no such folder.
    pub(crate) fn names_in(&self, folder: &str) -> Vec<String> {
        match self {
            Self::Folder(root) => {
                let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
                entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
            }
            Self::Packed(packed) => packed.names_in(folder),
        }
    }

    /// Whether there is a file `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.join(path).is_file(),
            Self::Packed(packed) => packed.file(path).is_ok(),
        }
    }

    /// The file `path`, mapped; `None` when it is empty.
    ///
    /// # Errors
    /// When it is not there, or cannot be opened.
    pub(crate) fn map(&self, path: &str) -> io::Result<Option<MappedFile>> {
        match self {
            Self::Folder(folder) => MappedFile::of(&folder.join(path)),
            Self::Packed(packed) => packed.file(path),
        }
    }

    /// The content of the file `path`, which is not a stream.
    ///
    /// # Errors
    /// When it is not there, cannot be read, or has more than [`MAX_MANIFEST_BYTES`].
    pub(crate) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        match self {
            Self::Folder(folder) => read_bounded(open_regular(&folder.join(path))?),
            Self::Packed(packed) => {
                let file = packed.file(path)?;
                let bytes = file.as_deref().unwrap_or_default();
                refuse_larger(bytes.len() as u64)?;
                Ok(bytes.to_vec())
            }
        }
    }
}

fn read_bounded(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    refuse_larger(file.metadata()?.len())?;
    file.take(MAX_MANIFEST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn refuse_larger(bytes: u64) -> io::Result<()> {
    if bytes > MAX_MANIFEST_BYTES {
        return Err(io::Error::other(format!("larger than {MAX_MANIFEST_BYTES} bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_are_where_the_user_says_or_on_a_disk_or_else_in_tmp() {
        assert_eq!(temporary_folder_of(Some("/mine".into()), |_| true), Path::new("/mine"));
        assert_eq!(temporary_folder_of(None, |_| true), Path::new("/var/tmp"));
        assert_eq!(temporary_folder_of(None, |_| false), Path::new("/tmp"));
    }
}
