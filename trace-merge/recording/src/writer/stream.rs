//! A stream's files: whole packets, one after another, as they are or compressed.

use super::WriteError;
use super::rotation::RotatedStream;
use crate::access::Readers;
use crate::compression::{Compression, EXTENSION, Frames, compress};
use rustix::io::{pwritev, retry_on_intr};
use shared_ring::packet::Packet;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Offset in a packet of the high half of its header's stream id, which is otherwise 0.
const NUMBER_OFFSET: usize = 22;
/// A hole smaller than this saves nothing: file systems give space in blocks of this size or a larger one.
const BLOCK: usize = 4096;
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Appends packets to a stream's file, or to its files where the recording keeps within a size. Of each packet only the
/// content is written; the rest is a hole, so that the file takes no more space than its records. If packets are
/// compressed, their frames follow each other without holes.
#[derive(Debug)]
pub struct StreamWriter {
    files: Files,
    path: PathBuf,
    uuid: [u8; 16],
    packet_size: u64,
    packets: u64,
    records: u64,
    content_bytes: u64,
}

#[derive(Debug)]
enum Files {
    One(PacketFile, Option<Compression>),
    Rotated(RotatedStream),
}

/// A file of whole packets.
#[derive(Debug)]
pub(super) struct PacketFile {
    file: File,
    path: PathBuf,
    packet_size: u64,
    packets: u64,
    /// Where they lie, if they are compressed.
    frames: Option<Frames>,
}

/// A packet as it is written into a file.
#[derive(Debug)]
pub(super) enum StoredPacket<'p> {
    /// Its pieces, and the bytes of zeros behind them.
    AsItIs { pieces: [&'p [u8]; 3], zeros: usize },
    /// Compressed.
    Frame(Vec<u8>),
}

impl<'p> StoredPacket<'p> {
    /// A packet of `content` that takes `packet_size` bytes of its stream, with the stream's `number`, two bytes, in its
    /// header.
    pub(super) fn new(
        content: &'p [u8],
        number: Option<&'p [u8; 2]>,
        packet_size: u64,
        compression: Option<Compression>,
    ) -> io::Result<Self> {
        let (before, after) = match number {
            Some(number) => (content.get(..NUMBER_OFFSET), content.get(NUMBER_OFFSET + number.len()..)),
            None => (Some(content), Some(&[][..])),
        };
        let is_short = || io::Error::new(io::ErrorKind::InvalidInput, "a packet without a header");
        let (before, after) = before.zip(after).ok_or_else(is_short)?;
        let pieces = [before, number.map_or(&[][..], |number| &number[..]), after];
        let packet_size = usize::try_from(packet_size).unwrap_or(usize::MAX);
        match compression {
            None => Ok(Self::AsItIs { pieces, zeros: packet_size.saturating_sub(content.len()) }),
            Some(Compression::Zstd) => Ok(Self::Frame(compress(&pieces, packet_size)?)),
        }
    }
}

impl PacketFile {
    /// Creates the file `path`, which must not exist, for the readers of its folder and packets of `packet_size` bytes.
    pub(super) fn create(path: &Path, packet_size: u64, compression: Option<Compression>) -> Result<Self, WriteError> {
        let path = &stored_path(path, compression);
        let folder = path.parent().unwrap_or(path);
        let file = Readers::of(folder)
            .and_then(|readers| readers.create_file(path))
            .map_err(|source| WriteError::Create { path: path.into(), source })?;
        Ok(Self { file, path: path.into(), packet_size, packets: 0, frames: compression.map(|_| Frames::default()) })
    }

    /// Appends `packet`. If it cannot be written whole, the file ends with the packet before it.
    pub(super) fn append(&mut self, packet: &StoredPacket<'_>) -> Result<(), WriteError> {
        let begin = self.frames.as_ref().map_or(self.packets * self.packet_size, Frames::bytes);
        let written = match packet {
            StoredPacket::AsItIs { pieces, zeros } => self.write(begin, *pieces, *zeros),
            StoredPacket::Frame(frame) => self.file.write_all_at(frame, begin),
        };
        if let Err(source) = written {
            // A partial packet would end the reading of the stream; the first error is the one to report.
            let _ = self.file.set_len(begin);
            return Err(WriteError::Write { path: self.path.clone(), source });
        }
        if let (Some(frames), StoredPacket::Frame(frame)) = (&mut self.frames, packet) {
            frames.add(frame.len() as u64);
        }
        self.packets += 1;
        Ok(())
    }

    /// A packet that is full but for less than a block is written with the zeros behind its content: one system call,
    /// in whole blocks, costs two thirds of a shorter write and a change of the file's length.
    fn write(&self, begin: u64, [before, number, after]: [&[u8]; 3], zeros: usize) -> io::Result<()> {
        let zeros = ZEROS.get(..zeros).filter(|zeros| zeros.len() < BLOCK);
        write_pieces(&self.file, begin, [before, number, after, zeros.unwrap_or_default()])?;
        if zeros.is_none() {
            self.file.set_len(begin + self.packet_size)?;
        }
        Ok(())
    }
}

impl Drop for PacketFile {
    /// Writes the table of compressed packets. Without it, where the disk is full, they are found one by one.
    fn drop(&mut self) {
        let Some(frames) = self.frames.as_ref().filter(|frames| frames.len() > 0) else { return };
        let Some(table) = frames.table(self.packet_size) else { return };
        if self.file.write_all_at(&table, frames.bytes()).is_err() {
            let _ = self.file.set_len(frames.bytes());
        }
    }
}

/// Writes `pieces` one behind the other, from `begin` on: in one system call, unless the system takes less at a time.
fn write_pieces(file: &File, begin: u64, pieces: [&[u8]; 4]) -> io::Result<()> {
    let mut written = retry_on_intr(|| pwritev(file, &pieces.map(IoSlice::new), begin))?;
    let mut at = begin;
    for piece in pieces {
        let done = written.min(piece.len());
        file.write_all_at(&piece[done..], at + done as u64)?;
        written -= done;
        at += piece.len() as u64;
    }
    Ok(())
}

impl StreamWriter {
    /// Creates the file `path`, behind whose name the form stands if packets are compressed. It must not exist. It is for
    /// the readers of its folder and packets of `packet_size` bytes of the trace `uuid`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(
        path: &Path,
        packet_size: u64,
        uuid: [u8; 16],
        compression: Option<Compression>,
    ) -> Result<Self, WriteError> {
        let file = PacketFile::create(path, packet_size, compression)?;
        Ok(Self::of(Files::One(file, compression), path, packet_size, uuid))
    }

    /// A stream whose first file is `path`, in a recording that keeps within a size.
    pub(super) fn rotated(stream: RotatedStream, path: &Path, packet_size: u64, uuid: [u8; 16]) -> Self {
        Self::of(Files::Rotated(stream), path, packet_size, uuid)
    }

    fn of(files: Files, path: &Path, packet_size: u64, uuid: [u8; 16]) -> Self {
        Self { files, path: path.into(), uuid, packet_size, packets: 0, records: 0, content_bytes: 0 }
    }

    /// Appends `packet`.
    ///
    /// # Errors
    /// When it is not a packet of this stream, or cannot be written whole; the stream then ends with the packet before it.
    pub fn append(&mut self, packet: &Packet<'_>) -> Result<(), WriteError> {
        let (header, content) = (packet.header(), packet.content());
        if header.uuid != self.uuid || header.packet_size != self.packet_size * 8 {
            let (path, packet_size) = (self.path.clone(), self.packet_size);
            return Err(WriteError::NotAPacket { path, bytes: content.len(), packet_size });
        }
        match &mut self.files {
            Files::One(file, compression) => {
                let stored = StoredPacket::new(content, None, self.packet_size, *compression);
                let error = |source| WriteError::Write { path: self.path.clone(), source };
                file.append(&stored.map_err(error)?)?;
            }
            Files::Rotated(stream) => stream.append(packet, self.packet_size)?,
        }
        self.packets += 1;
        self.records += packet.record_count();
        self.content_bytes += content.len() as u64;
        Ok(())
    }

    /// Packets written.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// Records written.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Bytes written, packet headers included and holes not.
    #[must_use]
    pub const fn content_bytes(&self) -> u64 {
        self.content_bytes
    }
}

/// Name of a stream's file, or of the first of its files.
pub(super) fn stream_file(cpu_id: u32) -> String {
    format!("stream_{cpu_id}")
}

/// Where the file of a stream lies whose uncompressed one would be `path`.
pub(super) fn stored_path(path: &Path, compression: Option<Compression>) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(compression.map_or("", |Compression::Zstd| EXTENSION));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{PacketBuilder, Push};
    use shared_ring::consumer::Lost;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use tempfile::TempDir;

    const UUID: [u8; 16] = [7; 16];
    const SIZE: u64 = 1 << 20;

    fn stream(dir: &TempDir) -> StreamWriter {
        StreamWriter::create(&dir.path().join("stream_0"), SIZE, UUID, None).unwrap()
    }

    #[test]
    fn short_packet_takes_its_place_but_not_its_space() {
        let dir = TempDir::new().unwrap();
        let mut builder = PacketBuilder::new(UUID, 0, SIZE);
        builder.push(1, 1, b"abc");

        let packet = builder.finish(Lost::default(), 0).unwrap();
        stream(&dir).append(&packet).unwrap();

        let metadata = fs::metadata(dir.path().join("stream_0")).unwrap();
        assert_eq!(metadata.len(), SIZE);
        assert!(metadata.blocks() * 512 <= 64 << 10, "{} blocks", metadata.blocks());
        assert_eq!(packet.header().content_size, (128 + 8 + 3) * 8);
    }

    #[test]
    fn pieces_are_written_one_behind_the_other() {
        let file = tempfile::tempfile().unwrap();

        write_pieces(&file, 3, [b"ab", b"", b"cde", b"\0\0"]).unwrap();

        let mut bytes = [9; 10];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"\0\0\0abcde\0\0");
    }

    #[test]
    fn packet_that_lacks_less_than_a_block_is_read_back_as_it_was_with_zeros_behind_it() {
        let dir = TempDir::new().unwrap();
        let mut builder = PacketBuilder::new(UUID, 0, SIZE);
        let payload = vec![0xff; 60_000];
        let pushed = (0..17).map(|time| builder.push(time, 1, &payload)).filter(|push| *push == Push::Stored).count();
        let rest = vec![0xff; 1 << 15];
        builder.push(17, 1, &rest[..28_000]);

        let packet = builder.finish(Lost::default(), 0).unwrap();
        let mut expected = packet.content().to_vec();
        let mut stream = stream(&dir);
        stream.append(&packet).unwrap();
        stream.append(&packet).unwrap();

        let hole = usize::try_from(SIZE).unwrap() - expected.len();
        expected.resize(expected.len() + hole, 0);
        let written = fs::read(dir.path().join("stream_0")).unwrap();
        assert_eq!((pushed, hole > 0 && hole < BLOCK), (17, true), "{hole}");
        assert!(written == [&expected[..], &expected[..]].concat());
    }

    #[test]
    fn packets_of_another_stream_are_refused() {
        let dir = TempDir::new().unwrap();
        let mut stream = stream(&dir);
        let others = [PacketBuilder::new([8; 16], 0, SIZE), PacketBuilder::new(UUID, 0, SIZE / 2)];

        let refused = others.map(|mut other| {
            other.push(1, 1, b"abc");
            stream.append(&other.finish(Lost::default(), 0).unwrap())
        });

        assert!(refused.iter().all(|result| matches!(result, Err(WriteError::NotAPacket { .. }))), "{refused:?}");
        assert_eq!(fs::metadata(dir.path().join("stream_0")).unwrap().len(), 0);
    }

    #[test]
    fn existing_stream_is_not_written_over() {
        let dir = TempDir::new().unwrap();
        let _first = stream(&dir);

        assert!(StreamWriter::create(&dir.path().join("stream_0"), SIZE, UUID, None).is_err());
    }
}
