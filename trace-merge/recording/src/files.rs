//! Where the files of a recording are: in its folder, or in one file ([`packed`](crate::packed)).
#![allow(unsafe_code)] // Streams are memory-mapped files.

use crate::manifest::{MAX_MANIFEST_BYTES, open_regular};
use crate::packed::Packed;
use memmap2::{Mmap, UncheckedAdvice};
use std::env;
use std::fs;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where temporary files are if the user does not say: not in `/tmp`, which is often memory.
const TEMPORARY_FOLDER: &str = "/var/tmp";

/// Where temporary files are: `$TMPDIR` or `/var/tmp`.
pub(crate) fn temporary_folder() -> PathBuf {
    env::var_os("TMPDIR").map_or_else(|| PathBuf::from(TEMPORARY_FOLDER), PathBuf::from)
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

    /// The content of the file `path`, which is no stream.
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

fn read_bounded(file: fs::File) -> io::Result<Vec<u8>> {
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

/// A file of a recording, mapped for reading: a whole mapping or a part of one.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Arc<Mmap>,
    range: Range<usize>,
}

impl MappedFile {
    /// The file at `path`; `None` when it is empty.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
        let file = open_regular(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(None);
        }
        // SAFETY: the mapping is read-only, and a recorder only ever appends to a stream's files or deletes them whole: bytes
        // that are mapped do not change. (Someone who truncates a recording that is being read ends the reader with SIGBUS;
        // nothing else.)
        let map = Arc::new(unsafe { Mmap::map(&file) }?);
        let range = 0..map.len();
        Ok(Some(Self { map, range }))
    }

    /// The bytes `range` of `map`; `None` when there are none.
    pub(crate) fn part(map: &Arc<Mmap>, range: Range<usize>) -> Option<Self> {
        map.get(range.clone()).filter(|bytes| !bytes.is_empty())?;
        Some(Self { map: Arc::clone(map), range })
    }

    /// Lets go of the memory that the bytes `range` of it take in this process. They stay readable.
    pub(crate) fn release(&self, range: &Range<usize>) {
        let begin = self.range.start.saturating_add(range.start).min(self.range.end);
        let length = range.end.saturating_sub(range.start).min(self.range.end - begin);
        // SAFETY: the mapping is shared and read-only, so that its pages hold nothing but what the file holds: whoever
        // reads them after this gets the same bytes from the file again.
        let released = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, begin, length) };
        // A kernel that refuses leaves the memory taken, which harms nothing.
        let _ = released;
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.get(self.range.clone()).unwrap_or_default()
    }
}
