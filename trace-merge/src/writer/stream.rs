//! A stream's file: whole packets, one after another.

use super::WriteError;
use shared_ring::layout::{CTF_MAGIC, PacketHeader, padded};
use shared_ring::packet::{Records, read_header, write_header};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Appends packets to a stream's file. Of each packet only the content is written; the rest is a hole, so that the file
/// takes no more space than its records.
#[derive(Debug)]
pub struct StreamWriter {
    file: File,
    path: PathBuf,
    uuid: [u8; 16],
    packet_size: u64,
    packets: u64,
    records: u64,
    content_bytes: u64,
}

impl StreamWriter {
    /// Creates the file `path`, which must not exist, for packets of `packet_size` bytes of the trace `uuid`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path, packet_size: u64, uuid: [u8; 16]) -> Result<Self, WriteError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|source| WriteError::Create { path: path.into(), source })?;
        Ok(Self { file, path: path.into(), uuid, packet_size, packets: 0, records: 0, content_bytes: 0 })
    }

    /// Appends `packet`, after stating its content size as CTF means it: up to the end of the last record's payload.
    /// Returns its header.
    ///
    /// # Errors
    /// When it is no packet of this stream, or cannot be written whole; the file then ends with the packet before it.
    pub fn append(&mut self, packet: &mut [u8]) -> Result<PacketHeader, WriteError> {
        let Some((header, records)) = self.complete(packet) else {
            let (path, packet_size) = (self.path.clone(), self.packet_size);
            return Err(WriteError::NotAPacket { path, bytes: packet.len(), packet_size });
        };
        let content = usize::try_from(header.content_size / 8).unwrap_or(packet.len());
        let begin = self.packets * self.packet_size;
        let written = self
            .file
            .write_all_at(&packet[..content], begin)
            .and_then(|()| self.file.set_len(begin + self.packet_size));
        if let Err(source) = written {
            // A partial packet would end the reading of the stream; the first error is the one to report.
            let _ = self.file.set_len(begin);
            return Err(WriteError::Write { path: self.path.clone(), source });
        }
        self.packets += 1;
        self.records += records;
        self.content_bytes += content as u64;
        Ok(header)
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

    /// Corrects the header of `packet`; returns it with the number of records. `None` when it is no packet.
    fn complete(&self, packet: &mut [u8]) -> Option<(PacketHeader, u64)> {
        let mut header = read_header(packet)?;
        let whole = packet.len() as u64 == self.packet_size && header.packet_size == self.packet_size * 8;
        if header.magic != CTF_MAGIC || header.uuid != self.uuid || !whole {
            return None;
        }
        let content = usize::try_from(header.content_size.div_ceil(8)).ok().filter(|&bytes| bytes <= packet.len())?;
        let mut count = 0;
        let mut records = Records::new(packet, padded(content), header.time_begin);
        let mut end = records.offset();
        for record in &mut records {
            end = record.end - (padded(record.payload.len()) - record.payload.len());
            count += 1;
        }
        if records.damaged() {
            return None;
        }
        header.content_size = end as u64 * 8;
        write_header(packet, &header);
        Some((header, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::PacketBuilder;
    use shared_ring::consumer::Lost;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use tempfile::TempDir;

    const UUID: [u8; 16] = [7; 16];
    const SIZE: u64 = 1 << 20;

    fn stream(dir: &TempDir) -> StreamWriter {
        StreamWriter::create(&dir.path().join("stream_0"), SIZE, UUID).unwrap()
    }

    #[test]
    fn short_packet_takes_its_place_but_not_its_space() {
        let dir = TempDir::new().unwrap();
        let mut builder = PacketBuilder::new(UUID, 0, SIZE);
        builder.push(1, 1, b"abc");

        let header = stream(&dir).append(builder.finish(Lost::default(), 0).unwrap()).unwrap();

        let metadata = fs::metadata(dir.path().join("stream_0")).unwrap();
        assert_eq!(metadata.len(), SIZE);
        assert!(metadata.blocks() * 512 <= 64 << 10, "{} blocks", metadata.blocks());
        assert_eq!(header.content_size, (128 + 8 + 3) * 8);
    }

    #[test]
    fn bytes_that_are_no_packet_of_the_stream_are_refused() {
        let dir = TempDir::new().unwrap();
        let mut stream = stream(&dir);
        let mut other = PacketBuilder::new([8; 16], 0, SIZE);
        other.push(1, 1, b"abc");

        let refused = [stream.append(&mut [0; 100]), stream.append(other.finish(Lost::default(), 0).unwrap())];

        assert!(refused.iter().all(|result| matches!(result, Err(WriteError::NotAPacket { .. }))), "{refused:?}");
        assert_eq!(fs::metadata(dir.path().join("stream_0")).unwrap().len(), 0);
    }

    #[test]
    fn existing_stream_is_not_written_over() {
        let dir = TempDir::new().unwrap();
        let _first = stream(&dir);

        assert!(StreamWriter::create(&dir.path().join("stream_0"), SIZE, UUID).is_err());
    }
}
