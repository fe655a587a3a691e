//! A file of a recording, mapped for reading.
#![allow(unsafe_code)] // Streams are memory-mapped files.

use memmap2::{Mmap, UncheckedAdvice};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A file of a recording, mapped for reading: a whole mapping or a part of one.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Arc<Mmap>,
    range: Range<usize>,
}

impl MappedFile {
    /// All of `file`; `None` when it is empty.
    pub(crate) fn of(file: &File) -> io::Result<Option<Self>> {
        if file.metadata()?.len() == 0 {
            return Ok(None);
        }
        // SAFETY: the mapping is read-only, and a recorder only ever appends to a stream's files or deletes them whole: bytes
        // that are mapped do not change. (Someone who truncates a recording that is being read ends the reader with SIGBUS;
        // nothing else.)
        let map = Arc::new(unsafe { Mmap::map(file) }?);
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
