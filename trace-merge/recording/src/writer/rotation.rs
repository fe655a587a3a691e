//! A recording that keeps within a size: before a packet is written that would exceed it, the oldest chunks of all streams
//! are deleted.
//!
//! A stream's first chunk is the file `stream_CPU`, each further one `stream_CPU_NUMBER`, after the number of its first
//! packet. Packets carry their stream's number in the high half of the header's stream id, so that readers of CTF know
//! which files are one stream.

use super::WriteError;
use super::chunks::{ChunkLedger, StreamIndex, WrittenPacket};
use super::packet_file::{PacketFile, StoredPacket, stored_path, stream_file};
use crate::files::compression::{Compression, TABLE_BYTES, TABLE_ENTRY};
use crate::files::reserve::{Reserve, blocks, room_after};
use crate::files::{MANIFEST_FILE, MAX_MANIFEST_BYTES, METADATA_FILE};
use crate::manifest::{Dropped, Layer, Manifest, ManifestError, replace_text};
use shared_ring::consumer::Lost;
use shared_ring::packet::Packet;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Smallest size that a recording can keep within, bytes: descriptions of a kernel's events, and chunks of packets of a
/// sensible size.
pub const MIN_ROTATED_SIZE: u64 = 16 << 20;
/// Bytes of the disk that an empty folder takes.
const FOLDER: u64 = blocks(1);
/// How often `session.json` is there: the one that is read, the one that is written, and room for the last.
const MANIFESTS: u64 = 3;

/// The size that the layers of one recording share. Copies are the same.
#[derive(Clone, Debug)]
pub struct Rotation {
    files: Arc<Mutex<RotatedFiles>>,
}

/// A stream of a recording that keeps within a size. Its file is closed with it; its packets stay until they are the oldest.
#[derive(Debug)]
pub(super) struct RotatedStream {
    rotation: Rotation,
    index: StreamIndex,
}

#[derive(Debug)]
struct RotatedFiles {
    ledger: ChunkLedger,
    /// By [`StreamIndex`].
    streams: Vec<StreamFiles>,
    /// The streams of the layers, by folder and CPU.
    numbers: HashMap<PathBuf, Vec<(u32, StreamIndex)>>,
    /// Places of streams whose layers are forgotten.
    free: Vec<StreamIndex>,
    /// Bytes that `session.json` took at most.
    manifest: u64,
    /// Bytes of the journal, or more.
    journal: u64,
}

#[derive(Debug)]
struct StreamFiles {
    folder: PathBuf,
    cpu_id: u32,
    /// The stream's number in its layer.
    number: u16,
    compression: Option<Compression>,
    /// The file of the current chunk, with the number of the chunk's first packet.
    open: Option<(u64, PacketFile)>,
    /// Number of the first packet of the first chunk of all.
    begin: Option<u64>,
}

impl Rotation {
    /// A recording that is to take `limit` bytes at most.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let ledger = ChunkLedger::new(limit);
        let files = RotatedFiles {
            ledger,
            streams: Vec::new(),
            numbers: HashMap::new(),
            free: Vec::new(),
            manifest: 0,
            journal: 0,
        };
        Self { files: Arc::new(Mutex::new(files)) }
    }

    /// The size, bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.lock().ledger.limit()
    }

    /// A new stream of `cpu_id` in the layer whose folder is `layer`.
    pub(super) fn stream(
        &self,
        layer: &Path,
        cpu_id: u32,
        compression: Option<Compression>,
    ) -> Result<RotatedStream, WriteError> {
        let mut files = self.lock();
        let Ok(number) = u16::try_from(files.numbers.get(layer).map_or(0, Vec::len)) else {
            let source = io::Error::other("a layer of a recording of a limited size has 65536 streams at most");
            return Err(WriteError::Create { path: layer.join(stream_file(cpu_id)), source });
        };
        let stream = StreamFiles { folder: layer.into(), cpu_id, number, compression, open: None, begin: None };
        let index = match files.free.pop() {
            Some(index) => index,
            None => files.ledger.add_stream(),
        };
        match files.streams.get_mut(index) {
            Some(place) => *place = stream,
            None => files.streams.push(stream),
        }
        files.numbers.entry(layer.into()).or_default().push((cpu_id, index));
        drop(files);
        Ok(RotatedStream { rotation: self.clone(), index })
    }

    /// Writes `manifest`, to which it adds what was dropped of each stream, as `session.json` of the recording `dir`, with
    /// room for the last one in `reserve`.
    ///
    /// # Errors
    /// When it does not fit or cannot be written, or what is old cannot be deleted.
    pub fn save(&self, dir: &Path, manifest: &mut Manifest, reserve: &mut Reserve) -> Result<(), ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        manifest.max_size = Some(self.limit());
        self.describe(dir, &mut manifest.layers);
        let text = manifest.text(&path, MAX_MANIFEST_BYTES)?;
        let reserved = self.lock().reserve_manifest(&path, text.len() as u64);
        if reserved.map_err(|error| ManifestError::Write { path: path.clone(), source: io::Error::other(error) })? {
            // Something may have been dropped for it.
            self.describe(dir, &mut manifest.layers);
            replace_text(&path, &manifest.text(&path, MAX_MANIFEST_BYTES)?, reserve)?;
        } else {
            replace_text(&path, &text, reserve)?;
        }
        self.lock().release_journal();
        Ok(())
    }

    /// Makes room for the folder of a layer and the description in it, `path`, which grows from `before` to `after` bytes.
    pub(super) fn reserve_description(&self, path: &Path, before: u64, after: u64) -> Result<(), WriteError> {
        self.lock().replace_fixed(path, folder_bytes(before), folder_bytes(after))
    }

    /// Makes room for the file `path` of `bytes` beside layers.
    pub(super) fn reserve_file(&self, path: &Path, bytes: u64) -> Result<(), WriteError> {
        let mut files = self.lock();
        if !files.ledger.holds(blocks(bytes)) {
            return Err(WriteError::NoRoom { path: path.into(), limit: files.ledger.limit() });
        }
        files.replace_fixed(path, 0, blocks(bytes))
    }

    /// Makes room for `bytes` more of the journal, `path`.
    pub(super) fn reserve_journal(&self, path: &Path, bytes: u64) -> Result<(), WriteError> {
        let mut files = self.lock();
        let (before, after) = (files.journal, files.journal.saturating_add(bytes));
        files.replace_fixed(path, blocks(before), blocks(after))?;
        files.journal = after;
        drop(files);
        Ok(())
    }

    /// Makes room for `session.clocks`, `path`, which grows from `before` to `after` bytes. It is there twice while it is
    /// replaced.
    ///
    /// # Errors
    /// When it does not fit, or what is old cannot be deleted.
    pub fn reserve_clocks(&self, path: &Path, before: u64, after: u64) -> Result<(), WriteError> {
        self.lock().replace_fixed(path, 2 * blocks(before), 2 * blocks(after))
    }

    /// Bytes of the journal.
    #[cfg(test)]
    pub(super) fn journal_bytes(&self) -> u64 {
        self.lock().journal
    }

    /// Says of the streams of `layers`, which lie in the recording `dir`, what was dropped of them.
    pub fn describe(&self, dir: &Path, layers: &mut [Layer]) {
        let files = self.lock();
        for layer in layers {
            let Some(numbers) = files.numbers.get(&dir.join(&layer.path)) else { continue };
            for stream in &mut layer.streams {
                let found = numbers.iter().find(|(cpu_id, _)| *cpu_id == stream.cpu_id);
                let dropped = found.map_or_else(Dropped::default, |&(_, index)| files.ledger.dropped(index));
                stream.dropped = Some(dropped);
            }
        }
    }

    /// Deletes the folder of `layer` in the recording `dir`, whose writer is gone, if its packets have all been dropped, or
    /// it never had any while others' were dropped. Says whether it did.
    ///
    /// # Errors
    /// When it cannot be deleted.
    pub fn forget_if_dropped(&self, dir: &Path, layer: &Layer) -> io::Result<bool> {
        let folder = dir.join(&layer.path);
        let mut files = self.lock();
        let numbers = files.numbers.get(&folder).map(Vec::as_slice).unwrap_or_default();
        let has_loss = layer.streams.iter().any(|stream| stream.packets == 0 && stream.lost.total() > 0);
        if has_loss || !files.ledger.has_dropped() || !numbers.iter().all(|&(_, index)| files.ledger.is_empty(index)) {
            return Ok(false);
        }
        let metadata = folder.join(METADATA_FILE);
        let bytes = fs::metadata(&metadata)?.len();
        fs::remove_file(metadata)?;
        fs::remove_dir(&folder)?;
        files.ledger.remove_fixed(folder_bytes(bytes));
        for (_, index) in files.numbers.remove(&folder).unwrap_or_default() {
            files.ledger.clear(index);
            files.free.push(index);
        }
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, RotatedFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RotatedStream {
    /// Appends `packet`, of `packet_size` bytes, after it has made room for it.
    pub(super) fn append(&self, packet: &Packet<'_>, packet_size: u64) -> Result<(), WriteError> {
        self.rotation.lock().append(self.index, packet, packet_size)
    }
}

impl Drop for RotatedStream {
    fn drop(&mut self) {
        if let Some(stream) = self.rotation.lock().streams.get_mut(self.index) {
            stream.open = None;
        }
    }
}

impl RotatedFiles {
    fn append(&mut self, index: StreamIndex, packet: &Packet<'_>, packet_size: u64) -> Result<(), WriteError> {
        let header = packet.header();
        let stream = &self.streams[index];
        let path = stream.folder.join(stream_file(header.cpu_id));
        let number = stream.number.to_le_bytes();
        let stored = StoredPacket::new(packet.content(), Some(&number), packet_size, stream.compression)
            .map_err(|source| WriteError::Write { path: path.clone(), source })?;
        let mut bytes = self.disk_bytes(index, header.time_begin, &stored, packet_size);
        self.make_room(&path, bytes)?;
        let current = self.ledger.current(index, header.time_begin).map(|chunk| chunk.first);
        if current.is_none() {
            // The chunk that it would have gone to may just have been dropped.
            bytes = self.disk_bytes(index, header.time_begin, &stored, packet_size);
            self.make_room(&path, bytes)?;
        }
        self.streams[index].file_of(current, header.sequence, packet_size)?.append(&stored)?;
        let lost = Lost { full: header.lost_full, wrapped: header.lost_wrapped, too_large: header.lost_too_large };
        self.ledger.add(
            index,
            WrittenPacket {
                sequence: header.sequence,
                time_begin: header.time_begin,
                time_end: header.time_end,
                records: packet.record_count(),
                bytes,
                lost,
                rejected_bytes: header.rejected_bytes,
            },
        );
        Ok(())
    }

    /// Bytes of the disk that `packet`, the next one of the stream `index`, takes, which begins at `time_begin`.
    fn disk_bytes(&self, index: StreamIndex, time_begin: u64, packet: &StoredPacket<'_>, packet_size: u64) -> u64 {
        match packet {
            StoredPacket::AsItIs { pieces, .. } => {
                blocks(pieces.iter().map(|piece| piece.len() as u64).sum()).min(packet_size.max(1))
            }
            // Frames lie close together: the file's last block, and the table, are counted with its first frame.
            StoredPacket::Frame(frame) => {
                let file = if self.ledger.current(index, time_begin).is_none() { blocks(1) + TABLE_BYTES } else { 0 };
                file + (frame.len() + TABLE_ENTRY) as u64
            }
        }
    }

    /// Makes room for `session.json`, `path`, which becomes `bytes` long, [`MANIFESTS`] times. Says whether it takes more than
    /// before.
    fn reserve_manifest(&mut self, path: &Path, bytes: u64) -> Result<bool, WriteError> {
        if blocks(bytes) <= self.manifest {
            return Ok(false);
        }
        // More than now: counts get more digits, and every byte more would make room again.
        let after = room_after(bytes);
        self.replace_fixed(path, MANIFESTS * self.manifest, MANIFESTS * after)?;
        self.manifest = after;
        Ok(true)
    }

    /// The journal is gone, with `session.json` saved.
    fn release_journal(&mut self) {
        let bytes = std::mem::take(&mut self.journal);
        self.ledger.remove_fixed(blocks(bytes));
    }

    /// What does not go takes `after` bytes where it took `before`; there is room for it, for `path`.
    fn replace_fixed(&mut self, path: &Path, before: u64, after: u64) -> Result<(), WriteError> {
        self.make_room(path, after.saturating_sub(before))?;
        self.ledger.remove_fixed(before);
        self.ledger.add_fixed(after);
        Ok(())
    }

    /// Deletes the oldest chunks until `bytes` more fit, which are for `path`.
    fn make_room(&mut self, path: &Path, bytes: u64) -> Result<(), WriteError> {
        while !self.ledger.fits(bytes) {
            let Some((index, chunk)) = self.ledger.oldest() else {
                return Err(WriteError::NoRoom { path: path.into(), limit: self.ledger.limit() });
            };
            self.streams[index].delete(chunk.first)?;
            self.ledger.drop_oldest();
        }
        Ok(())
    }
}

impl StreamFiles {
    /// The file of the chunk that begins with the packet `current`, or of the one that begins with `next`.
    fn file_of(&mut self, current: Option<u64>, next: u64, packet_size: u64) -> Result<&mut PacketFile, WriteError> {
        let (first, file) = match self.open.take() {
            Some((first, file)) if current == Some(first) => (first, file),
            _ => {
                self.begin.get_or_insert(next);
                (next, PacketFile::create(&self.path(next), packet_size, self.compression)?)
            }
        };
        Ok(&mut self.open.insert((first, file)).1)
    }

    /// The file of the chunk that begins with the packet `first`.
    fn path(&self, first: u64) -> PathBuf {
        let name = stream_file(self.cpu_id);
        self.folder.join(if self.begin == Some(first) { name } else { format!("{name}_{first}") })
    }

    /// Deletes the chunk that begins with the packet `first`.
    fn delete(&mut self, first: u64) -> Result<(), WriteError> {
        // The file takes its space until it is closed.
        self.open = self.open.take().filter(|(open, _)| *open != first);
        let path = stored_path(&self.path(first), self.compression);
        fs::remove_file(&path).map_err(|source| WriteError::Write { path, source })
    }
}

/// Bytes of the disk that the folder of a layer and its description of `metadata` bytes take; without description nothing.
const fn folder_bytes(metadata: u64) -> u64 {
    if metadata == 0 { 0 } else { FOLDER + blocks(metadata) }
}
