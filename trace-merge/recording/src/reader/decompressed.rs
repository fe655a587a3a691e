//! A compressed file of a stream, as if it were not: each packet is decompressed when it is first asked for, into a temporary
//! file that is mapped. So its bytes stay where they are for as long as the stream is open, as those of any stream do, while
//! the memory that they take can be given back.
#![allow(unsafe_code)] // Streams are memory-mapped files.

use crate::compression::{Frames, decompress};
use memmap2::{Mmap, MmapOptions, MmapRaw, UncheckedAdvice};
use std::env;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::slice;
use std::sync::{Once, OnceLock};

/// Where the temporary file is if the user does not say: not in `/tmp`, which is often memory.
const FOLDER: &str = "/var/tmp";

/// A compressed file, and its packets as far as they have been asked for.
#[derive(Debug)]
pub(super) struct DecompressedFile {
    compressed: Mmap,
    frames: Frames,
    /// Bytes behind the whole frames.
    truncated_bytes: u64,
    packet_size: usize,
    /// Whether each packet is in its place in the temporary file, as far as that has been asked.
    packets: Vec<OnceLock<bool>>,
    temporary: Temporary,
}

/// A file of which parts are written while others are read.
#[derive(Debug)]
struct Temporary {
    file: File,
    map: MmapRaw,
}

impl DecompressedFile {
    /// The file whose content is `compressed`, of packets of `packet_size` bytes.
    ///
    /// # Errors
    /// When no temporary file of the size of all packets can be made.
    pub(super) fn of(compressed: Mmap, packet_size: usize) -> io::Result<Self> {
        let (frames, truncated_bytes) = Frames::of(&compressed, packet_size);
        let temporary = Temporary::of(frames.len().saturating_mul(packet_size))?;
        let packets = (0..frames.len()).map(|_| OnceLock::new()).collect();
        Ok(Self { compressed, frames, truncated_bytes, packet_size, packets, temporary })
    }

    /// Packets in it.
    pub(super) const fn packets(&self) -> usize {
        self.packets.len()
    }

    /// Bytes that they take as they are stored.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.frames.bytes()
    }

    /// Bytes behind the last packet that are none.
    pub(super) const fn truncated_bytes(&self) -> u64 {
        self.truncated_bytes
    }

    /// The packet `index`; `None` when there is none, it is damaged, or the disk of the temporary file is full, which is said.
    pub(super) fn packet(&self, index: usize) -> Option<&[u8]> {
        self.packets.get(index)?.get_or_init(|| self.decompress(index)).then(|| {
            // SAFETY: this packet was written into its place, which lies in the file, and is not written again: `OnceLock`
            // orders the one before this, and rules the other out.
            unsafe { self.temporary.bytes(index * self.packet_size, self.packet_size) }
        })
    }

    /// Decompresses the packet `index` into its place. Says whether it is there then.
    fn decompress(&self, index: usize) -> bool {
        let frame = self.frames.range(index).and_then(|range| self.compressed.get(range));
        let mut packet = vec![0; self.packet_size];
        if !frame.is_some_and(|frame| decompress(frame, &mut packet)) {
            return false;
        }
        let written = self.temporary.file.write_all_at(&packet, index as u64 * self.packet_size as u64);
        written.inspect_err(tell_once).is_ok()
    }

    /// Lets go of the memory that the bytes `range` of the packets in the temporary file take in this process.
    pub(super) fn release(&self, range: Range<usize>) {
        self.temporary.release(&range);
    }
}

impl Temporary {
    /// A file of `bytes` zeros without a name, which takes no space yet, in `$TMPDIR` or `/var/tmp`.
    fn of(bytes: usize) -> io::Result<Self> {
        let folder = temporary_folder();
        let made = tempfile::tempfile_in(&folder).and_then(|file| {
            file.set_len(bytes as u64)?;
            // A mapping is not empty.
            let map = MmapOptions::new().len(bytes.max(1)).map_raw_read_only(&file)?;
            Ok(Self { file, map })
        });
        made.map_err(|source| {
            io::Error::other(format!("{} cannot hold what it is decompressed to ({source})", folder.display()))
        })
    }

    /// The bytes `begin..begin + length`.
    ///
    /// # Safety
    /// They lie in the file, and are not written while the reference lives.
    unsafe fn bytes(&self, begin: usize, length: usize) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`, the file has no name by which somebody could change it or its length,
        // and the caller vouches for these bytes.
        unsafe { slice::from_raw_parts(self.map.as_ptr().add(begin), length) }
    }

    /// Lets go of the memory that the bytes `range` take in this process. They stay readable.
    fn release(&self, range: &Range<usize>) {
        let length = range.end.saturating_sub(range.start);
        // SAFETY: the mapping is shared and read-only, so that its pages hold nothing but what the file holds: whoever reads
        // them after this gets the same bytes from the file again.
        let released = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, length) };
        // A kernel that refuses leaves the memory taken, which harms nothing.
        let _ = released;
    }
}

fn temporary_folder() -> PathBuf {
    env::var_os("TMPDIR").map_or_else(|| PathBuf::from(FOLDER), PathBuf::from)
}

/// Says on standard error that packets are taken for damaged that are not, the first time.
fn tell_once(error: &io::Error) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let folder = temporary_folder();
        let folder = folder.display();
        eprintln!(
            "strata: {folder} cannot hold the decompressed trace, so that packets of it cannot be read: {error}; set TMPDIR to \
             a folder with more room"
        );
    });
}
