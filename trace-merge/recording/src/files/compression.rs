//! Compressed streams: a packet is a frame of zstd (RFC 8878).
//!
//! Behind the last one lies a table of their sizes in zstd's seekable format (`contrib/seekable_format` of zstd), a frame that
//! decompressors pass over. So `zstd -d` makes the stream of CTF of such a file, and a reader decompresses the packets that it
//! wants alone.
//!
//! A recorder that is killed leaves no table: then the frames say how long they are.

use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::str::FromStr;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{find_frame_compressed_size, get_frame_content_size};

/// What follows the name of a stream's file when it is compressed.
pub(crate) const EXTENSION: &str = ".zst";
/// The level at which a record costs the least CPU time among those that compress well.
const LEVEL: i32 = 1;
/// First word of the frame that holds the table.
const TABLE_MAGIC: u32 = 0x184D_2A5E;
/// Last word of the file.
const FOOTER_MAGIC: u32 = 0x8F92_EAB1;
/// Bytes of the table before its entries: the magic, and how many bytes follow.
const TABLE_HEADER: usize = 8;
/// Bytes of an entry: those of a frame, compressed and decompressed.
pub(crate) const TABLE_ENTRY: usize = 8;
/// Bytes behind the entries: their number, what they hold, and the magic.
const TABLE_FOOTER: usize = 9;
/// Bytes of the table beside its entries.
pub(crate) const TABLE_BYTES: u64 = (TABLE_HEADER + TABLE_FOOTER) as u64;

/// Bytes to which any file may be decompressed.
pub(crate) const MOST_OF_ANY: u64 = 1 << 30;

/// Bytes to which a file of `compressed` bytes may be decompressed: [`MOST_OF_ANY`], or `ratio` times its own where that
/// is more. What repeats without end is not a recording.
pub(crate) const fn most_decompressed(compressed: u64, ratio: u64) -> u64 {
    let most = compressed.saturating_mul(ratio);
    if most > MOST_OF_ANY { most } else { MOST_OF_ANY }
}

/// How the streams of a recording are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// By zstd, packet by packet.
    Zstd,
}

/// A name that is none of [`Compression`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write zstd")]
pub struct UnknownCompression;

impl Compression {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::Zstd];

    /// The name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
        }
    }
}

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Self, UnknownCompression> {
        Self::ALL.into_iter().find(|compression| compression.name() == text).ok_or(UnknownCompression)
    }
}

/// What compressing takes again for every packet: about a megabyte, hence one for a thread and not for a stream.
struct Packer {
    compressor: Compressor<'static>,
    /// The packet as it is to be read back.
    packet: Vec<u8>,
}

impl Packer {
    fn new() -> io::Result<Self> {
        let mut compressor = Compressor::new(LEVEL)?;
        // A packet that was damaged on the disk differs from one that was not.
        compressor.include_checksum(true)?;
        Ok(Self { compressor, packet: Vec::new() })
    }
}

thread_local! {
    static PACKER: RefCell<Option<Packer>> = const { RefCell::new(None) };
    static UNPACKER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// The frame of a packet of `packet_size` bytes: `pieces` one behind the other, and zeros.
pub(crate) fn compress(pieces: &[&[u8]], packet_size: usize) -> io::Result<Vec<u8>> {
    PACKER.with_borrow_mut(|packer| {
        let packer = match packer {
            Some(packer) => packer,
            none => none.insert(Packer::new()?),
        };
        packer.packet.clear();
        pieces.iter().for_each(|piece| packer.packet.extend_from_slice(piece));
        packer.packet.resize(packet_size, 0);
        packer.compressor.compress(&packer.packet)
    })
}

/// Decompresses `frame` into `packet`. Says whether it is a frame of so many bytes.
pub(crate) fn decompress(frame: &[u8], packet: &mut [u8]) -> bool {
    UNPACKER.with_borrow_mut(|unpacker| {
        let unpacker = match unpacker {
            Some(unpacker) => unpacker,
            none => match Decompressor::new() {
                Ok(new) => none.insert(new),
                Err(_) => return false,
            },
        };
        unpacker.decompress_to_buffer(frame, packet).is_ok_and(|bytes| bytes == packet.len())
    })
}

/// Where the frames of a file end that is being written or read, bytes from its beginning.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Frames {
    ends: Vec<u64>,
}

impl Frames {
    /// Those of the file `bytes`, of packets of `packet_size` bytes each, and how many bytes lie behind them that are none.
    pub(crate) fn of(bytes: &[u8], packet_size: usize) -> (Self, u64) {
        match Self::of_table(bytes, packet_size) {
            Some(frames) => (frames, 0),
            None => Self::found(bytes, packet_size),
        }
    }

    /// As the table at the end of `bytes` says, if there is one that can be believed.
    fn of_table(bytes: &[u8], packet_size: usize) -> Option<Self> {
        let (rest, footer) = bytes.split_last_chunk::<TABLE_FOOTER>()?;
        let count = usize::try_from(word(footer, 0)?).ok()?;
        if footer[4] != 0 || word(footer, 5)? != FOOTER_MAGIC {
            return None;
        }
        let entries = count.checked_mul(TABLE_ENTRY)?;
        let begin = rest.len().checked_sub(entries)?.checked_sub(TABLE_HEADER)?;
        let (header, entries) = rest.get(begin..)?.split_at(TABLE_HEADER);
        if word(header, 0)? != TABLE_MAGIC || usize::try_from(word(header, 4)?).ok()? != entries.len() + TABLE_FOOTER {
            return None;
        }
        let mut frames = Self::default();
        for entry in entries.chunks_exact(TABLE_ENTRY) {
            if usize::try_from(word(entry, 4)?).ok()? != packet_size {
                return None;
            }
            frames.add(u64::from(word(entry, 0)?));
        }
        (frames.bytes() == begin as u64).then_some(frames)
    }

    /// As the frames themselves say, up to one that is not whole.
    fn found(bytes: &[u8], packet_size: usize) -> (Self, u64) {
        let mut frames = Self::default();
        let mut rest = bytes;
        while matches!(get_frame_content_size(rest), Ok(Some(size)) if size == packet_size as u64) {
            let Some((_, after)) = find_frame_compressed_size(rest).ok().and_then(|size| rest.split_at_checked(size))
            else {
                break;
            };
            frames.add((rest.len() - after.len()) as u64);
            rest = after;
        }
        (frames, rest.len() as u64)
    }

    /// Adds a frame of `bytes` bytes.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.ends.push(self.bytes().saturating_add(bytes));
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// How many there are.
    pub(crate) const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Where the frame `index` lies.
    pub(crate) fn range(&self, index: usize) -> Option<Range<usize>> {
        let end = *self.ends.get(index)?;
        let begin = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        Some(usize::try_from(begin).ok()?..usize::try_from(end).ok()?)
    }

    /// Their table, of packets of `packet_size` bytes; `None` when they are too many or too large for one.
    pub(crate) fn table(&self, packet_size: u64) -> Option<Vec<u8>> {
        let count = u32::try_from(self.len()).ok()?;
        let following = u32::try_from(self.len() * TABLE_ENTRY + TABLE_FOOTER).ok()?;
        let packet_size = u32::try_from(packet_size).ok()?;
        let mut table = [TABLE_MAGIC.to_le_bytes(), following.to_le_bytes()].concat();
        for index in 0..self.len() {
            let bytes = u32::try_from(self.range(index)?.len()).ok()?;
            table.extend(bytes.to_le_bytes());
            table.extend(packet_size.to_le_bytes());
        }
        table.extend(count.to_le_bytes());
        table.push(0);
        table.extend(FOOTER_MAGIC.to_le_bytes());
        Some(table)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    //! Shows: A compressed recording reads as the plain one, even growing or damaged, and keeps its size.

    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 256;

    /// A file of three packets, and its frames. Each packet is its number, repeated.
    fn file() -> (Vec<u8>, Frames) {
        let (mut bytes, mut frames) = (Vec::new(), Frames::default());
        for number in 1..=3 {
            let frame = compress(&[&[number; 100], &[number; 2 * 10]], SIZE).unwrap();
            frames.add(frame.len() as u64);
            bytes.extend(frame);
        }
        (bytes, frames)
    }

    #[test]
    fn packet_is_read_back_with_zeros_behind_it() {
        let frame = compress(&[b"abc", b"de"], SIZE).unwrap();
        let mut packet = [9; SIZE];

        let is_whole = decompress(&frame, &mut packet);

        assert!(is_whole && packet.starts_with(b"abcde") && packet[5..].iter().all(|&byte| byte == 0));
        assert!(!decompress(&frame, &mut [0; SIZE - 1]) && !decompress(&frame, &mut [0; SIZE + 1]));
    }

    #[test]
    fn damaged_packet_is_known_by_its_checksum() {
        let mut frame = compress(&[b"abc"], SIZE).unwrap();
        let last = frame.len() - 1;
        frame[last] ^= 1;

        assert!(!decompress(&frame, &mut [0; SIZE]));
    }

    #[test]
    fn frames_are_found_by_their_table_and_without_it() {
        let (bytes, frames) = file();
        let with_table = [bytes.clone(), frames.table(SIZE as u64).unwrap()].concat();

        let by_table = Frames::of_table(&with_table, SIZE);
        let without = Frames::of(&bytes, SIZE);

        assert_eq!((by_table, without), (Some(frames), (file().1, 0)));
    }

    #[test]
    fn frame_that_is_cut_is_counted_as_bytes_behind_the_whole_ones() {
        let (bytes, frames) = file();

        let (found, behind) = Frames::of(&bytes[..bytes.len() - 3], SIZE);

        assert_eq!(found.len(), 2);
        assert_eq!(behind, bytes.len() as u64 - 3 - found.bytes());
        assert_eq!(found.range(1), frames.range(1));
    }

    #[test]
    fn table_of_packets_of_another_size_is_not_believed() {
        let (bytes, frames) = file();
        let other = [bytes.clone(), frames.table(512).unwrap()].concat();

        assert_eq!(Frames::of_table(&other, SIZE), None);
        assert_eq!(Frames::of(&other, SIZE).0, frames);
    }

    proptest! {
        #[test]
        fn arbitrary_files_are_survived(
            bytes in proptest::collection::vec(any::<u8>(), 0..400), changes in proptest::collection::vec((0..400_usize, any::<u8>()), 0..8)
        ) {
            let (mut changed, frames) = file();
            changed.extend(frames.table(SIZE as u64).unwrap());
            for (at, value) in changes {
                if let Some(byte) = changed.get_mut(at) { *byte = value; }
            }
            for bytes in [&bytes, &changed] {
                let (frames, behind) = Frames::of(bytes, SIZE);
                prop_assert!(frames.bytes() + behind <= bytes.len() as u64);
                for index in 0..frames.len() {
                    decompress(&bytes[frames.range(index).unwrap()], &mut [0; SIZE]);
                }
            }
        }
    }
}
