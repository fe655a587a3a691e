//! A file of whole packets, one after another, as they are or compressed.

use super::WriteError;
use crate::files::access::Readers;
use crate::files::compression::{Compression, EXTENSION, Frames, compress};
use rustix::io::{pwritev, retry_on_intr};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Offset in a packet of the high half of its header's stream id, which is otherwise 0.
const NUMBER_OFFSET: usize = 22;
/// A hole smaller than this saves nothing: file systems give space in blocks of this size or a larger one.
pub(super) const BLOCK: usize = 4096;
static ZEROS: [u8; BLOCK] = [0; BLOCK];

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

    #[test]
    fn pieces_are_written_one_behind_the_other() {
        let file = tempfile::tempfile().unwrap();

        write_pieces(&file, 3, [b"ab", b"", b"cde", b"\0\0"]).unwrap();

        let mut bytes = [9; 10];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"\0\0\0abcde\0\0");
    }
}
