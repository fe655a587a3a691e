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
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
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
/// How a folder is opened.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

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
    let flags = i32::from_ne_bytes(OFlags::NONBLOCK.bits().to_ne_bytes());
    regular(File::options().read(true).custom_flags(flags).open(path)?)
}

/// `file`, if it is a regular one.
fn regular(file: File) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    Ok(file)
}

/// Opens the regular file `path` of the recording in `folder` for reading. Below the folder no link is followed: a recording
/// may come from somebody else, and a link lead to what only its reader may read.
fn open_below(folder: &Path, path: &str) -> io::Result<File> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut at = openat(CWD, folder, FOLDER, Mode::empty())?;
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    for folder in folders.split('/').filter(|folder| !folder.is_empty()) {
        at = openat(&at, folder, FOLDER | OFlags::NOFOLLOW, Mode::empty()).map_err(of_a_link)?;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    regular(openat(&at, name, flags, Mode::empty()).map_err(of_a_link)?.into())
}

/// Why a file is not opened that may be a link, or lie behind one.
fn of_a_link(errno: Errno) -> io::Error {
    match errno {
        Errno::LOOP | Errno::NOTDIR => {
            io::Error::other("a link, or behind one: `cp -rL` makes a recording without links")
        }
        errno => errno.into(),
    }
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
            Self::Folder(folder) => MappedFile::of(&open_below(folder, path)?),
            Self::Packed(packed) => packed.file(path),
        }
    }

    /// The content of the file `path`, which is not a stream.
    ///
    /// # Errors
    /// When it is not there, cannot be read, or has more than [`MAX_MANIFEST_BYTES`].
    pub(crate) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        match self {
            Self::Folder(folder) => read_bounded(open_below(folder, path)?),
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
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    #[test]
    fn links_in_a_recording_are_not_followed() {
        let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        fs::write(elsewhere.path().join("key"), "secret").unwrap();
        fs::create_dir(folder.path().join("vm0")).unwrap();
        fs::write(folder.path().join("vm0/stream_0"), "records").unwrap();
        symlink(elsewhere.path().join("key"), folder.path().join("vm0/stream_1")).unwrap();
        symlink(elsewhere.path(), folder.path().join("vm1")).unwrap();
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        let read = |folder: &Path, path| Files::Folder(folder.into()).read(path).map_err(|error| error.to_string());

        let of_links = ["vm0/stream_1", "vm1/key"].map(|path| read(folder.path(), path).unwrap_err());
        assert!(of_links.iter().all(|error| error.contains("`cp -rL`")), "{of_links:?}");
        assert_eq!(read(folder.path(), "vm0/stream_0").unwrap(), b"records");
        assert_eq!(read(&link, "vm0/stream_0").unwrap(), b"records", "a link to the recording is its reader's own");
    }

    #[test]
    fn temporary_files_are_where_the_user_says_or_on_a_disk_or_else_in_tmp() {
        assert_eq!(temporary_folder_of(Some("/mine".into()), |_| true), Path::new("/mine"));
        assert_eq!(temporary_folder_of(None, |_| true), Path::new("/var/tmp"));
        assert_eq!(temporary_folder_of(None, |_| false), Path::new("/tmp"));
    }
}
