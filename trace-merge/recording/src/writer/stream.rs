//! A stream: packets that go into its file, or into its files where the recording keeps within a size.

use super::WriteError;
use super::packet_file::{PacketFile, StoredPacket};
use super::rotation::RotatedStream;
use crate::files::compression::Compression;
use shared_ring::packet::Packet;
use std::path::{Path, PathBuf};

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

#[cfg(test)]
mod tests {
    use super::super::packet_file::BLOCK;
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
