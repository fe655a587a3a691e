//! The files of a stream: one, or chunks whose oldest were dropped to keep the recording within its size.

use super::ReadError;
use super::decompressed::DecompressedFile;
use super::gaps::PacketGaps;
use crate::files::Files;
use crate::files::compression::EXTENSION;
use crate::files::mapped_file::MappedFile;
use crate::manifest::StreamDescription;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// A file of a stream, mapped.
#[derive(Debug)]
pub(super) struct Chunk {
    packets: Packets,
    /// Index of its first packet among those of the stream that are there.
    pub(super) first: usize,
}

#[derive(Debug)]
enum Packets {
    AsTheyAre(MappedFile),
    Compressed(DecompressedFile),
}

impl Chunk {
    /// Whole packets in it.
    pub(super) fn packets(&self, packet_size: usize) -> usize {
        match &self.packets {
            Packets::AsTheyAre(map) => map.len() / packet_size,
            Packets::Compressed(file) => file.packets(),
        }
    }

    /// Bytes of its whole packets as they are stored.
    pub(super) fn stored_bytes(&self, packet_size: usize) -> u64 {
        match &self.packets {
            Packets::AsTheyAre(_) => self.packets(packet_size) as u64 * packet_size as u64,
            Packets::Compressed(file) => file.stored_bytes(),
        }
    }

    /// Bytes of it behind the whole packets.
    pub(super) fn truncated_bytes(&self, packet_size: usize) -> u64 {
        match &self.packets {
            Packets::AsTheyAre(map) => (map.len() % packet_size) as u64,
            Packets::Compressed(file) => file.truncated_bytes(),
        }
    }

    /// The packet `index` of it; `None` when there is none, or it cannot be decompressed.
    pub(super) fn packet(&self, index: usize, packet_size: usize) -> Option<&[u8]> {
        match &self.packets {
            Packets::AsTheyAre(map) => {
                let begin = index.checked_mul(packet_size)?;
                map.get(begin..begin.checked_add(packet_size)?)
            }
            Packets::Compressed(file) => file.packet(index),
        }
    }

    /// Lets go of the memory that the bytes `range` of its packets take in this process. They stay readable.
    pub(super) fn release(&self, range: Range<usize>) {
        match &self.packets {
            Packets::AsTheyAre(map) => map.release(&range),
            Packets::Compressed(file) => file.release(range),
        }
    }
}

/// The files of the streams of a layer, by the streams' files and the numbers of the files' first packets.
#[derive(Debug, Default)]
pub(super) struct StreamFiles {
    chunks: BTreeMap<String, BTreeMap<u64, String>>,
}

impl StreamFiles {
    /// Those of the names `names`.
    pub(super) fn of(names: Vec<String>) -> Self {
        let mut files = Self::default();
        for file in names {
            let name = file.strip_suffix(EXTENSION).unwrap_or(&file);
            let Some(rest) = name.strip_prefix("stream_") else { continue };
            let (cpu, number) =
                rest.split_once('_').map_or((rest, Some(0)), |(cpu, number)| (cpu, number.parse().ok()));
            if let (Ok(_), Some(number)) = (cpu.parse::<u32>(), number) {
                files.chunks.entry(format!("stream_{cpu}")).or_default().insert(number, file);
            }
        }
        files
    }

    /// Names of the files of the stream whose first file is called `file`: the first one, and what followed it.
    pub(super) fn names<'f>(&'f self, file: &'f str) -> impl Iterator<Item = (u64, &'f str)> {
        let chunks = self.chunks.get(file);
        let first = chunks.and_then(|chunks| chunks.get(&0)).map_or(file, String::as_str);
        let rotated = chunks.into_iter().flatten().filter(|(number, _)| **number != 0);
        std::iter::once((0, first)).chain(rotated.map(|(&number, name)| (number, name.as_str())))
    }

    /// Descriptions of streams that `listed` does not name.
    pub(super) fn unlisted(&self, listed: &[StreamDescription]) -> impl Iterator<Item = StreamDescription> {
        let unlisted = self.chunks.keys().filter(|&file| !listed.iter().any(|stream| stream.file == *file));
        unlisted.filter_map(|file| {
            let cpu_id = file.strip_prefix("stream_")?.parse().ok()?;
            Some(nothing_of(cpu_id))
        })
    }
}

/// The description of the stream of `cpu_id`, which has none of its own.
pub(super) fn nothing_of(cpu_id: u32) -> StreamDescription {
    StreamDescription { file: format!("stream_{cpu_id}"), cpu_id, ..StreamDescription::default() }
}

/// Maps what is there of the stream of the layer in `folder` whose first file is `file`; also gives the number of its
/// first packet, if anything is there.
pub(super) fn map(
    files: &Files,
    folder: &str,
    streams: &StreamFiles,
    file: &str,
    packet_size: usize,
) -> Result<(Vec<Chunk>, Option<u64>), ReadError> {
    let (mut chunks, mut found): (Vec<Chunk>, _) = (Vec::new(), None);
    for (number, name) in streams.names(file) {
        let path = format!("{folder}/{name}");
        let failed = |source| ReadError::Stream { path: files.place(&path), source };
        let map = match files.map(&path) {
            Ok(map) => map,
            // Its recorder still runs, and may have dropped it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(failed(source)),
        };
        if let Some(map) = map {
            found.get_or_insert(number);
            let first = chunks.last().map_or(0, |chunk| chunk.first + chunk.packets(packet_size));
            let packets = match name.ends_with(EXTENSION) {
                true => {
                    let file = DecompressedFile::of(map, packet_size, files.unpacking());
                    Packets::Compressed(file.map_err(failed)?)
                }
                false => Packets::AsTheyAre(map),
            };
            chunks.push(Chunk { packets, first });
        }
    }
    Ok((chunks, found))
}

/// How a stream begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beginning {
    /// Number of the first packet that is there; if none is, of the next one.
    pub(super) next: u64,
    /// Whether the manifest speaks of just what was dropped. That of a recorder that runs, or was killed, lags behind.
    is_described: bool,
}

impl Beginning {
    /// Of the stream that `description` describes, whose first packet that is there has the number `found`; `is_finished`
    /// says whether its recorder came to its end.
    pub(super) fn of(description: &StreamDescription, found: Option<u64>, is_finished: bool) -> Self {
        let described = description.dropped.unwrap_or_default();
        let next = match found {
            Some(number) => number,
            // What is not there of a recording that drops, was dropped, unless the last word on it says otherwise.
            None if description.dropped.is_some() && !is_finished => description.packets.max(described.next),
            None => described.next,
        };
        Self { next, is_described: next == described.next }
    }

    /// Whether the manifest speaks of just what was dropped.
    pub(super) const fn is_described(&self) -> bool {
        self.is_described
    }

    /// Whether anything was dropped.
    pub(super) const fn is_dropped(&self) -> bool {
        self.next > 0
    }

    /// Records that were dropped; all, where that is not known.
    pub(super) fn dropped_records(&self, description: &StreamDescription) -> u64 {
        let described = description.dropped.unwrap_or_default();
        if self.is_described { described.records } else { description.records }
    }

    /// What the packets that were dropped counted of lost records, as far as it is known.
    pub(super) fn gaps(&self, description: &StreamDescription) -> PacketGaps {
        match description.dropped {
            Some(dropped) if self.is_described => PacketGaps::counting(dropped.lost, dropped.rejected_bytes),
            _ => PacketGaps::new(),
        }
    }
}
