//! A compressed file of a stream, as if it were not: each packet is decompressed when it is first asked for, into a temporary
//! file that is mapped. So its bytes stay where they are for as long as the stream is open, as those of any stream do, while
//! the memory that they take can be given back.
//!
//! A foreign file may hold packets of a few bytes that decompress to gigabytes. The pages of zeros at a packet's end are not
//! written, and of all other bytes no more than [`Room`] has.
#![allow(unsafe_code)] // Streams are memory-mapped files.

use crate::files::compression::{Frames, MOST_OF_ANY, decompress, most_decompressed};
use crate::files::mapped_file::MappedFile;
use crate::files::temporary_folder;
use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

/// How many times its own size a file may be decompressed to, without the zeros. Records compress to a third, or to a
/// fortieth where all are alike.
const ROOM_RATIO: u64 = 100;

/// A page that nobody has written.
const PAGE: [u8; 4096] = [0; 4096];

/// A compressed file, and its packets as far as they have been requested.
#[derive(Debug)]
pub(super) struct DecompressedFile {
    compressed: MappedFile,
    frames: Frames,
    /// Bytes behind the whole frames.
    truncated_bytes: u64,
    packet_size: usize,
    /// Whether each packet is in its place in the temporary file, as far as that is known.
    packets: Vec<OnceLock<bool>>,
    temporary: Temporary,
    room: Room,
    /// What makes the file readable where it has no room here.
    remedy: &'static str,
}

/// Bytes that may still be written to the temporary file.
#[derive(Debug)]
struct Room(AtomicU64);

/// A file whose parts are written while others are read.
#[derive(Debug)]
struct Temporary {
    file: File,
    map: MmapRaw,
}

impl DecompressedFile {
    /// The file whose content is `compressed`, of packets of `packet_size` bytes. `remedy` makes it readable where it
    /// takes more room than it may.
    ///
    /// # Errors
    /// When no temporary file of the size of all packets can be made.
    pub(super) fn of(compressed: MappedFile, packet_size: usize, remedy: &'static str) -> io::Result<Self> {
        let room = Room::of(compressed.len());
        Self::with_room(compressed, packet_size, room, remedy)
    }

    fn with_room(compressed: MappedFile, packet_size: usize, room: Room, remedy: &'static str) -> io::Result<Self> {
        let (frames, truncated_bytes) = Frames::of(&compressed, packet_size);
        let temporary = Temporary::of(frames.len().saturating_mul(packet_size))?;
        let packets = (0..frames.len()).map(|_| OnceLock::new()).collect();
        Ok(Self { compressed, frames, truncated_bytes, packet_size, packets, temporary, room, remedy })
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

    /// The packet `index`; `None` when there is none, it is damaged, or there is no room for it, which is reported.
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
        // The file has zeros already.
        let zeros: usize =
            packet.rchunks(PAGE.len()).take_while(|end| **end == PAGE[..end.len()]).map(<[u8]>::len).sum();
        packet.truncate(packet.len() - zeros);
        if !self.room.take(packet.len() as u64) {
            note_once(|| self.too_large());
            return false;
        }
        let place = index as u64 * self.packet_size as u64;
        let written = self.temporary.file.write_all_at(&packet, place);
        if let Err(error) = &written {
            let folder = temporary_folder();
            note_once(|| {
                format!(
                    "{} cannot hold what they are decompressed to: {error}; set TMPDIR to a folder with more room",
                    folder.display()
                )
            });
        }
        written.is_ok()
    }

    /// That it takes more room than it may, and what to do.
    fn too_large(&self) -> String {
        format!(
            "a stream takes over {} GiB, and over {ROOM_RATIO} times the bytes of its file; {} makes it readable if you have \
             the space",
            MOST_OF_ANY >> 30,
            self.remedy
        )
    }

    /// Lets go of the memory that the bytes `range` of the packets in the temporary file take in this process.
    pub(super) fn release(&self, range: Range<usize>) {
        self.temporary.release(&range);
    }
}

impl Room {
    /// For what a file of `compressed` bytes is decompressed to.
    fn of(compressed: usize) -> Self {
        Self(AtomicU64::new(most_decompressed(compressed as u64, ROOM_RATIO)))
    }

    /// Takes `bytes` of it, if it has so many.
    fn take(&self, bytes: u64) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(bytes)).is_ok()
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

/// Says on standard error, the first time, why packets are taken for damaged that are not.
fn note_once(reason: impl FnOnce() -> String) {
    static SAID: Once = Once::new();
    SAID.call_once(|| eprintln!("strata: packets of the recording cannot be read: {}", reason()));
}

#[cfg(test)]
mod tests {
    //! Shows: A recording that decompresses to many times its size fills no disk.

    use super::*;
    use crate::files::compression::compress;
    use std::io::Write;

    const SIZE: usize = 1 << 16;

    /// A file of a packet for each of `contents`, which zeros follow.
    fn file(contents: &[&[u8]], room: u64) -> DecompressedFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        contents.iter().for_each(|content| file.write_all(&compress(&[content], SIZE).unwrap()).unwrap());
        let map = MappedFile::of(file.as_file()).unwrap().unwrap();
        DecompressedFile::with_room(map, SIZE, Room(AtomicU64::new(room)), "`zstd -d`").unwrap()
    }

    #[test]
    fn zeros_behind_a_packet_take_no_room() {
        let file = file(&[&[7; 100], &[8; 100], &[]], 2 * PAGE.len() as u64);

        let sums: Vec<_> = (0..3)
            .map(|index| file.packet(index).map(|packet| packet.iter().map(|byte| u32::from(*byte)).sum::<u32>()))
            .collect();

        assert_eq!(sums, [Some(700), Some(800), Some(0)]);
    }

    #[test]
    fn packet_without_room_is_not_there_and_a_smaller_one_is() {
        let file = file(&[&[7; 100], &[8; PAGE.len() + 1], &[9; 100]], 2 * PAGE.len() as u64);

        let are_there: Vec<bool> = (0..3).map(|index| file.packet(index).is_some()).collect();

        assert_eq!(are_there, [true, false, true]);
    }

    #[test]
    fn room_grows_with_the_file() {
        let [small, large] = [0, 1 << 30].map(|compressed| Room::of(compressed).0.into_inner());

        assert_eq!((small, large), (1 << 30, 100 << 30));
    }
}
