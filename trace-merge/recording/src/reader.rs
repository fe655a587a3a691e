//! Opening a recording and reading its streams. Every packet and record is checked before it is handed on; what cannot
//! be believed is skipped and counted as [`Damage`].

use self::chunks::{Beginning, Chunk, StreamFiles};
use self::gaps::PacketGaps;
use crate::clock::Clock;
use crate::files::Files;
use crate::layer::LayerKind;
use crate::manifest::{JOURNAL_FILE, Layer, MANIFEST_FILE, Manifest, ManifestError, StreamDescription};
use crate::metadata;
use crate::packed::{Packed, PackedError};
use crate::schema::SchemaTable;
use crate::window::Window;
use shared_ring::layout::{CTF_MAGIC, PACKET_HEADER_SIZE, PacketHeader, padded};
use shared_ring::packet::{Records, read_header};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

mod chunks;
mod damage;
mod decompressed;
mod gaps;
mod records;

pub use damage::Damage;
pub use damage::write_counts;
pub use records::{StreamCounts, StreamRecord, StreamRecords};

/// Why a recording cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Its description cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It is one file, and cannot be unpacked.
    #[error(transparent)]
    Packed(#[from] PackedError),
    /// A stream is there but cannot be opened.
    #[error("{}: cannot be opened; check what it is and its permissions", .path.display())]
    Stream {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A recording, opened.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    files: Files,
    manifest: Manifest,
    layers: Vec<TraceLayer>,
}

/// A layer of a recording, opened.
#[derive(Debug)]
pub struct TraceLayer {
    /// What `session.json` says about it.
    pub description: Layer,
    /// Its event types.
    pub schemas: SchemaTable,
    /// Its streams, in the order of their CPUs.
    pub streams: Vec<Stream>,
    has_ended: bool,
    files: Files,
}

/// How far a layer has come.
#[derive(Clone, Copy, Debug)]
struct LayerState {
    /// Whether its recording came to its end.
    is_finished: bool,
    /// Whether it came to its end itself: see [`Manifest::has_ended`].
    has_ended: bool,
}

/// A stream of a layer, mapped.
#[derive(Debug)]
pub struct Stream {
    /// What `session.json` says about it. For a stream that it does not list (its recorder was killed before it could),
    /// what the file's name says.
    pub description: StreamDescription,
    /// Whether `session.json` says that the stream holds records, but its file is empty or not there.
    pub absent: bool,
    /// What is there of it, in its order. An empty file cannot be mapped, and is none.
    chunks: Vec<Chunk>,
    /// What was dropped of its beginning.
    beginning: Beginning,
    /// Whether records may come, or would have come, behind the last packet: the layer did not come to its end.
    goes_on: bool,
    /// When the last packet of all streams ends, ticks; where all have ended, 0.
    recording_end: u64,
    packet_size: usize,
    uuid: [u8; 16],
}

impl Trace {
    /// Opens the recording at `path`: its folder, or the one file that it was [packed](crate::packed) into.
    ///
    /// # Errors
    /// When there is no recording or one of its streams cannot be opened. Streams that are missing or damaged are no
    /// errors: see [`Stream::absent`] and [`StreamRecords::damage`].
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let (files, manifest) = match Packed::open(path)? {
            Some(packed) => {
                let files = Files::Packed(Arc::new(packed));
                let manifest = Manifest::of(&files)?;
                (files, manifest)
            }
            None => (Files::Folder(path.into()), Manifest::load(path)?),
        };
        let mut layers = Vec::with_capacity(manifest.layers.len());
        for layer in &manifest.layers {
            layers.push(TraceLayer::open(&files, layer, &manifest)?);
        }
        if layers.iter().any(|layer| !layer.has_ended) {
            let end = layers.iter().flat_map(|layer| &layer.streams).map(Stream::last_packet_end).max().unwrap_or(0);
            layers.iter_mut().flat_map(|layer| &mut layer.streams).for_each(|stream| stream.recording_end = end);
        }
        layers.sort_by(|left, right| {
            let key = |layer: &TraceLayer| (layer.description.kind, layer.description.path.clone());
            key(left).cmp(&key(right))
        });
        Ok(Self { path: path.into(), files, manifest, layers })
    }

    /// Its folder or file, as it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its files.
    pub(crate) const fn files(&self) -> &Files {
        &self.files
    }

    /// Where its files lie below its folder, `session.json` first; some of them may not be there.
    pub(crate) fn file_paths(&self) -> Vec<String> {
        let mut others = BTreeSet::new();
        for TraceLayer { description: Layer { path, .. }, streams, .. } in &self.layers {
            let found = StreamFiles::of(self.files.names_in(path));
            let names = streams.iter().flat_map(|stream| found.names(&stream.description.file)).map(|(_, name)| name);
            others.extend(names.chain([metadata::FILE]).map(|name| format!("{path}/{name}")));
        }
        let journal = self.manifest.outcome.is_none().then_some(JOURNAL_FILE);
        [MANIFEST_FILE].into_iter().chain(journal).map(Into::into).chain(others).collect()
    }

    /// What `session.json` says.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The clock of all records.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.manifest.clock
    }

    /// The layers, in the order in which records of the same time are shown.
    #[must_use]
    pub fn layers(&self) -> &[TraceLayer] {
        &self.layers
    }

    /// The layers of one kind.
    pub fn layers_of(&self, kind: LayerKind) -> impl Iterator<Item = &TraceLayer> {
        self.layers.iter().filter(move |layer| layer.description.kind == kind)
    }

    /// The guest-kernel layers of the VM called `vm`.
    pub fn kernel_layers<'t>(&'t self, vm: &str) -> impl Iterator<Item = &'t TraceLayer> {
        self.layers_of(LayerKind::GuestKernel).filter(move |layer| layer.description.vm.as_deref() == Some(vm))
    }

    /// Time of the first record of all, ticks; `None` when there is none.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        let streams = self.layers.iter().flat_map(|layer| layer.streams.iter().map(|stream| layer.records(stream)));
        streams.filter_map(|mut records| records.next()).map(|record| record.time).min()
    }

    /// Time of the last record of all, ticks, as far as packets tell; `None` when there is none.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        let ends = self.layers.iter().flat_map(|layer| &layer.streams).map(Stream::last_packet_end);
        ends.max().filter(|&end| end > 0)
    }

    /// The part of it between `from` and `to` after its first record; `None` when that ends before it begins. Without
    /// `to` it ends at `u64::MAX`, because only reading the recording tells when it ends.
    #[must_use]
    pub fn window(&self, from: Option<Duration>, to: Option<Duration>) -> Option<Window> {
        let start = self.start().unwrap_or(0);
        let moment = |after: Duration| {
            let ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
            start.saturating_add(self.clock().ns_to_ticks(ns))
        };
        let window = Window { begin: from.map_or(start, moment), end: to.map_or(u64::MAX, moment) };
        (window.begin <= window.end).then_some(window)
    }
}

impl TraceLayer {
    fn open(files: &Files, layer: &Layer, manifest: &Manifest) -> Result<Self, ReadError> {
        let found = StreamFiles::of(files.names_in(&layer.path));
        let mut descriptions = layer.streams.clone();
        descriptions.extend(found.unlisted(&layer.streams));
        let state = LayerState { is_finished: manifest.outcome.is_some(), has_ended: manifest.has_ended(layer) };
        if !state.has_ended {
            // Of a stream that goes on and has no packet yet, all is missing so far.
            let is_known = |cpu_id| descriptions.iter().any(|stream| stream.cpu_id == cpu_id);
            let unseen: Vec<_> = manifest.streams_of(layer).filter(|&cpu_id| !is_known(cpu_id)).collect();
            descriptions.extend(unseen.into_iter().map(chunks::nothing_of));
        }
        descriptions.sort_by_key(|stream| stream.cpu_id);
        let streams = descriptions.into_iter().map(|stream| Stream::open(files, layer, stream, &found, state));
        Ok(Self {
            description: layer.clone(),
            schemas: SchemaTable::new(&layer.events),
            streams: streams.collect::<Result<_, _>>()?,
            has_ended: state.has_ended,
            files: files.clone(),
        })
    }

    /// What is wrong with its `metadata`, which other readers of CTF read in place of `session.json`; `None` when it is
    /// this layer's.
    #[must_use]
    pub fn metadata_problem(&self) -> Option<String> {
        let text = match self.files.read(&format!("{}/{}", self.description.path, metadata::FILE)) {
            Ok(text) => text,
            Err(error) => {
                return Some(format!("it cannot be read ({error}), so no other reader of CTF reads the layer"));
            }
        };
        let text = String::from_utf8_lossy(&text);
        let is_its = text.starts_with(metadata::FIRST_LINE) && text.contains(&self.description.uuid.to_string());
        (!is_its).then(|| "it is not the text that describes this layer, so no other reader of CTF reads it".into())
    }

    /// Whether it came to its end: see [`Manifest::has_ended`].
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The records of `stream`, which is one of this layer's.
    #[must_use]
    pub fn records<'t>(&'t self, stream: &'t Stream) -> StreamRecords<'t> {
        StreamRecords::new(stream, &self.schemas)
    }
}

impl Stream {
    fn open(
        files: &Files,
        layer: &Layer,
        description: StreamDescription,
        found: &StreamFiles,
        state: LayerState,
    ) -> Result<Self, ReadError> {
        let packet_size = usize::try_from(layer.packet_size).unwrap_or(usize::MAX);
        let (chunks, first) = chunks::map(files, &layer.path, found, &description.file, packet_size)?;
        let beginning = Beginning::of(&description, first, state.is_finished);
        let absent = chunks.is_empty() && description.records > beginning.dropped_records(&description);
        let (goes_on, uuid) = (!state.has_ended, layer.uuid.into_bytes());
        Ok(Self { description, absent, chunks, beginning, goes_on, recording_end: 0, packet_size, uuid })
    }

    /// Whether records may be missing behind its last packet although nothing was lost: its layer goes on, or its recorder
    /// was killed.
    #[must_use]
    pub const fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// From when on records may be missing because it goes on, ticks, if that is before the end of the recording: it is there
    /// up to `there`, the end of its last packet.
    pub fn goes_on_from(&self, there: u64) -> Option<u64> {
        let from = self.description.complete_until.map_or(there, |until| until.max(there));
        (self.goes_on && from < self.recording_end).then_some(from)
    }

    /// Up to when all of the stream is there if it goes on, ticks.
    pub fn complete_until(&self) -> Option<u64> {
        let there = self.last_packet_end();
        self.goes_on.then(|| self.description.complete_until.map_or(there, |until| until.max(there)))
    }

    /// Whether the stream begins later than what it records did: a flight recorder overwrote its beginning, or it was
    /// dropped to keep within a size.
    #[must_use]
    pub const fn begins_late(&self) -> bool {
        self.description.overwritten > 0 || self.beginning.is_dropped()
    }

    /// How much of its beginning is not there: what a flight recorder overwrote, and packets that were dropped.
    #[must_use]
    pub const fn begins_late_by(&self) -> u64 {
        self.description.overwritten.saturating_add(self.beginning.next)
    }

    /// From when on the stream is there, ticks, if its beginning was dropped to keep within a size.
    #[must_use]
    pub fn dropped_until(&self) -> Option<u64> {
        let until = self.description.dropped.filter(|_| self.beginning.is_described()).map(|dropped| dropped.until);
        let first = || self.headers().next().map(|(_, header)| header.time_begin);
        until.filter(|_| self.beginning.is_dropped()).or_else(|| first().filter(|_| self.beginning.is_dropped()))
    }

    /// Number of whole packets in the file, readable or not.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.chunks.last().map_or(0, |chunk| chunk.first + chunk.packets(self.packet_size))
    }

    /// Bytes that its packets took on the disk: what is there as it is stored, and what was dropped.
    pub fn stored_bytes(&self) -> u64 {
        let there = self.chunks.iter().map(|chunk| chunk.stored_bytes(self.packet_size)).sum::<u64>();
        there.saturating_add(self.description.dropped.map_or(0, |dropped| dropped.bytes))
    }

    /// Bytes behind the whole packets of its files.
    pub fn truncated_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.truncated_bytes(self.packet_size)).sum()
    }

    /// The packets that may hold records of the times `from..=to`, ticks. Looks at the headers of a few packets, as
    /// many as the number of packets has binary digits: times do not decrease within a stream, so that the packets are
    /// their own index. Damaged packets beside the first or last one of that time are taken in.
    #[must_use]
    pub fn packets_within(&self, from: u64, to: u64) -> Range<usize> {
        let packets = self.packets();
        let first = if from == 0 { 0 } else { self.partition_point(0..packets, |header| header.time_end < from) };
        if to == u64::MAX {
            return first..packets;
        }
        let last = self.partition_point(first..packets, |header| header.time_begin <= to);
        let damaged = (last..packets).take_while(|&index| self.packet(index).is_none()).count();
        first..last + damaged
    }

    /// The end of those packets at the beginning of `within` for which `is_before` holds, found by bisection. It lies
    /// right behind a packet for which it holds, or at the beginning of `within`.
    fn partition_point(&self, within: Range<usize>, is_before: impl Fn(&PacketHeader) -> bool) -> usize {
        let Range { mut start, mut end } = within;
        while start < end {
            let middle = start + (end - start) / 2;
            // Of damaged packets nothing is known: the next one that can be believed decides.
            let known = (middle..end).find_map(|index| Some((index, self.packet(index)?.1)));
            match known {
                Some((index, header)) if is_before(&header) => start = index + 1,
                _ => end = middle,
            }
        }
        start
    }

    /// `damage` of the packets `packets`, in which `read` records were, completed by what is in no packet.
    pub fn with_missing(&self, damage: Damage, packets: &Range<usize>, read: u64) -> Damage {
        let (whole, to_the_end) = (*packets == (0..self.packets()), packets.end == self.packets());
        // A running recorder's description lags behind, never ahead.
        let dropped = self.beginning.dropped_records(&self.description);
        let there = self.description.records.saturating_sub(dropped);
        let missing_records = if whole { there.saturating_sub(read) } else { 0 };
        // What was being written when the stream was opened, or when its recorder was killed, is not damaged.
        let truncated_bytes = if to_the_end && !self.goes_on { self.truncated_bytes() } else { 0 };
        Damage { truncated_bytes, missing_records, ..damage }
    }

    /// Lets go of the memory that the bytes `range` of the packets take in this process. They stay readable.
    fn release(&self, range: Range<usize>) {
        for chunk in &self.chunks {
            let begin = chunk.first.saturating_mul(self.packet_size);
            let length = chunk.packets(self.packet_size) * self.packet_size;
            let (from, to) = (range.start.max(begin), range.end.min(begin + length));
            if from < to {
                chunk.release(from - begin..to - begin);
            }
        }
    }

    /// Whether the file lacks packets or records at its end that the manifest counts: `next_sequence` is the sequence
    /// number after the last packet that the file holds, and `records` gives the number of records in all of its packets.
    fn ends_early(&self, next_sequence: u64, records: impl FnOnce() -> u64) -> bool {
        let described = &self.description;
        let is_cut = match described.packets {
            // The manifest is older than this count, or no packet was written. Whether the records that are missing were
            // the last ones is not known.
            0 => described.records > records(),
            packets => next_sequence < packets,
        };
        is_cut || self.absent || (self.truncated_bytes() > 0 && !self.goes_on)
    }

    /// Number of records, of known types or not, in the packets `packets` that can be read.
    pub fn records_in(&self, packets: Range<usize>) -> u64 {
        let counts = packets.filter_map(|index| {
            let (packet, header) = self.packet(index)?;
            let content = usize::try_from(header.content_size.div_ceil(8)).ok()?;
            Some(Records::new(packet, padded(content), header.time_begin).count() as u64)
        });
        counts.sum()
    }

    /// The header of the packet `index`; `None` when it cannot be believed.
    pub fn header(&self, index: usize) -> Option<PacketHeader> {
        Some(self.packet(index)?.1)
    }

    /// The headers of the packets that can be believed, with their indices in the file, in its order.
    pub fn headers(&self) -> impl Iterator<Item = (usize, PacketHeader)> {
        (0..self.packets()).filter_map(|index| Some((index, self.packet(index)?.1)))
    }

    /// Whether all that is known of the stream is that a flight recorder overwrote what it held: nothing was recorded in
    /// it since.
    pub fn is_overwritten_whole(&self) -> bool {
        let described = &self.description;
        let is_empty = self.chunks.is_empty() && described.records == 0 && described.packets == 0;
        is_empty && described.overwritten > 0 && !PacketGaps::new().is_behind_last(described)
    }

    /// Until when nothing is known of a stream that was dropped whole, ticks: nothing was recorded in it since.
    pub fn dropped_whole_until(&self) -> Option<u64> {
        let is_whole = self.chunks.is_empty() && self.beginning.is_dropped() && !self.absent;
        let ends_there = is_whole && !self.beginning.gaps(&self.description).is_behind_last(&self.description);
        self.description.dropped.filter(|_| ends_there).map(|dropped| dropped.until)
    }

    /// When its last packet that can be believed ends, ticks; 0 when there is none.
    fn last_packet_end(&self) -> u64 {
        (0..self.packets()).rev().find_map(|index| self.packet(index)).map_or(0, |(_, header)| header.time_end)
    }

    /// The `index`th packet of the file and its header; `None` when it is no packet of this stream.
    pub fn packet(&self, index: usize) -> Option<(&[u8], PacketHeader)> {
        let chunk = match self.chunks.as_slice() {
            [only] => only,
            chunks => chunks.get(chunks.partition_point(|chunk| chunk.first <= index).checked_sub(1)?)?,
        };
        let packet = chunk.packet(index - chunk.first, self.packet_size)?;
        let header = read_header(packet)?;
        let content = usize::try_from(header.content_size.div_ceil(8)).ok()?;
        let believable = header.magic == CTF_MAGIC
            && header.uuid == self.uuid
            && header.packet_size == self.packet_size as u64 * 8
            && header.cpu_id == self.description.cpu_id
            && (PACKET_HEADER_SIZE..=self.packet_size).contains(&content)
            && header.time_begin <= header.time_end;
        believable.then_some((packet, header))
    }
}

#[cfg(test)]
mod gap_tests;
#[cfg(test)]
mod tests {
    //! Shows: A window reads only its packets, and equals the filtered whole (proptest).

    use super::*;
    use crate::test_trace::{event, manifest};
    use crate::writer::{LayerWriter, NewLayer};
    use proptest::prelude::*;
    use std::fs;
    use tempfile::TempDir;

    const SIZE: usize = 4096;

    /// A recording of one guest-kernel stream in `dir`: its file. Each record holds its number.
    fn write(dir: &TempDir, times: &[u64], packet_size: usize) -> PathBuf {
        let packet_size = packet_size as u64;
        let new = NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size };
        let mut layer = LayerWriter::create(dir.path(), &manifest(), new).unwrap();
        layer.add_events(&[event(1, "test:tick", &["number"])]).unwrap();
        for (number, &time) in (0_u32..).zip(times) {
            layer.record(0, time, 1, &number.to_le_bytes()).unwrap();
        }
        layer.flush().unwrap();
        Manifest { layers: vec![layer.layer()], ..manifest() }.save(dir.path()).unwrap();
        dir.path().join("vm0/guest-kernel/stream_0")
    }

    /// A recording of one guest-kernel stream of three packets, 600 records at ticks 1000, 1001, …
    fn recording() -> (TempDir, PathBuf) {
        let dir = TempDir::new().unwrap();
        let stream = write(&dir, &(1000..1600).collect::<Vec<_>>(), SIZE);
        (dir, stream)
    }

    /// A stream of 64 full packets of 248 records each, at ticks 0, 1, …
    fn long_recording(dir: &TempDir) -> PathBuf {
        write(dir, &(0..64 * 248).collect::<Vec<_>>(), SIZE)
    }

    fn read(dir: &TempDir) -> (Vec<u64>, Damage) {
        let trace = Trace::open(dir.path()).unwrap();
        let layer = &trace.layers()[0];
        let mut records = layer.records(&layer.streams[0]);
        let times = records.by_ref().map(|record| record.time).collect();
        (times, records.damage())
    }

    fn change(stream: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(stream).unwrap();
        change(&mut bytes);
        fs::write(stream, bytes).unwrap();
    }

    #[test]
    fn whole_stream_is_read_in_order() {
        let (dir, _) = recording();

        assert_eq!(read(&dir), ((1000..1600).collect(), Damage::default()));
    }

    #[test]
    fn truncated_last_packet_is_counted() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes.truncate(2 * SIZE + 100));

        let (times, damage) = read(&dir);

        assert_eq!(
            (times.len(), damage),
            (496, Damage { truncated_bytes: 100, missing_records: 104, ..Damage::default() })
        );
    }

    #[test]
    fn packets_cut_off_at_the_end_are_missed() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes.truncate(2 * SIZE));

        let (times, damage) = read(&dir);

        assert_eq!((times.len(), damage), (496, Damage { missing_records: 104, ..Damage::default() }));
    }

    #[test]
    fn damaged_packet_is_skipped_and_the_next_is_read() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes[SIZE] ^= 1);

        let (times, damage) = read(&dir);

        assert_eq!((times.len(), times.last()), (352, Some(&1599)));
        assert_eq!(damage, Damage { packets: 1, missing_records: 248, ..Damage::default() });
    }

    #[test]
    fn missing_packet_is_counted() {
        let (dir, stream) = recording();
        change(&stream, |bytes| drop(bytes.drain(SIZE..2 * SIZE)));

        let (times, damage) = read(&dir);

        assert_eq!(
            (times.len(), damage),
            (352, Damage { missing_packets: 1, missing_records: 248, ..Damage::default() })
        );
    }

    #[test]
    fn hole_in_a_packet_loses_its_rest() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes[PACKET_HEADER_SIZE + 16..PACKET_HEADER_SIZE + 24].fill(0));

        let (times, damage) = read(&dir);

        assert_eq!((times.len(), damage), (353, Damage { bytes: 247 * 16, missing_records: 247, ..Damage::default() }));
    }

    #[test]
    fn record_of_unknown_type_is_left_out() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes[PACKET_HEADER_SIZE + 4] = 9);

        let (times, damage) = read(&dir);

        assert_eq!((times.len(), damage), (599, Damage { records: 1, ..Damage::default() }));
    }

    #[test]
    fn stream_that_the_manifest_does_not_list_is_found() {
        let (dir, _) = recording();
        let mut listed = Manifest::load(dir.path()).unwrap();
        listed.layers[0].streams.clear();
        listed.save(dir.path()).unwrap();

        assert_eq!(read(&dir).0.len(), 600);
    }

    #[test]
    fn stream_whose_file_is_gone_is_absent() {
        let (dir, stream) = recording();
        fs::remove_file(stream).unwrap();

        let trace = Trace::open(dir.path()).unwrap();

        assert!(trace.layers()[0].streams[0].absent);
        assert_eq!(trace.start(), None);
    }

    #[test]
    fn fifo_in_the_place_of_a_stream_is_refused_at_once() {
        let (dir, stream) = recording();
        fs::remove_file(&stream).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &stream, rustix::fs::FileType::Fifo, mode, 0).unwrap();

        let error = Trace::open(dir.path()).unwrap_err();

        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "is not a regular file");
    }

    #[test]
    fn later_start_passes_over_what_is_before() {
        let (dir, _) = recording();
        let trace = Trace::open(dir.path()).unwrap();
        let layer = &trace.layers()[0];

        let times: Vec<u64> = layer.records(&layer.streams[0]).starting_at(1400).map(|record| record.time).collect();

        assert_eq!(times, (1400..1600).collect::<Vec<_>>());
        let mut later = layer.records(&layer.streams[0]).starting_at(1400);
        assert_eq!((later.by_ref().count(), later.damage()), (200, Damage::default()));
        assert_eq!(trace.start(), Some(1000));
    }

    #[test]
    fn packets_outside_the_window_are_not_looked_at() {
        let dir = TempDir::new().unwrap();
        let stream = long_recording(&dir);
        // All but packets 31 (the window's), the one after it, and those that bisecting 64 packets for it meets.
        let kept = [31, 32, 16, 48, 24, 28, 30, 40, 36, 34, 33];
        change(&stream, |bytes| {
            let packets = bytes.chunks_mut(SIZE).enumerate().filter(|(index, _)| !kept.contains(index));
            packets.for_each(|(_, packet)| packet.fill(0xff));
        });
        let trace = Trace::open(dir.path()).unwrap();
        let layer = &trace.layers()[0];

        let mut records = layer.records(&layer.streams[0]).within(31 * 248, 31 * 248 + 9);

        assert_eq!(records.by_ref().map(|record| record.time).collect::<Vec<_>>(), (7688..7698).collect::<Vec<_>>());
        assert_eq!((records.damage(), records.counts().packets), (Damage::default(), 1));
    }

    #[test]
    fn window_beside_damaged_packets_takes_them_in() {
        let dir = TempDir::new().unwrap();
        let stream = long_recording(&dir);
        change(&stream, |bytes| [29, 30, 33].iter().for_each(|packet| bytes[packet * SIZE] ^= 1));
        let trace = Trace::open(dir.path()).unwrap();
        let stream = &trace.layers()[0].streams[0];

        let mut records = trace.layers()[0].records(stream).within(31 * 248, 33 * 248 - 1);

        assert_eq!((stream.packets(), stream.packets_within(31 * 248, 33 * 248 - 1)), (64, 29..34));
        assert_eq!((records.by_ref().count(), records.damage()), (2 * 248, Damage { packets: 3, ..Damage::default() }));
    }

    #[test]
    fn parts_of_a_damaged_stream_have_the_damage_of_the_whole() {
        let dir = TempDir::new().unwrap();
        let stream = long_recording(&dir);
        change(&stream, |bytes| {
            bytes.drain(40 * SIZE..42 * SIZE);
            [9, 10, 11, 20].iter().for_each(|packet| bytes[packet * SIZE] ^= 1);
            bytes.truncate(60 * SIZE + 77);
        });
        let trace = Trace::open(dir.path()).unwrap();
        let (layer, stream) = (&trace.layers()[0], &trace.layers()[0].streams[0]);
        let mut whole = layer.records(stream);
        let count = whole.by_ref().count();

        let parts = [0..10, 10..11, 11..20, 20..21, 21..40, 40..60];
        let parts = parts.map(|packets| {
            let mut records = layer.records(stream).of_packets(packets, 0);
            (records.by_ref().count(), records.damage())
        });

        let sum = parts.iter().fold(Damage::default(), |sum, (_, damage)| sum.plus(damage));
        assert_eq!(parts.iter().map(|(count, _)| count).sum::<usize>(), count);
        assert_eq!(Damage { missing_records: whole.damage().missing_records, ..sum }, whole.damage());
        assert_eq!((sum.packets, sum.missing_packets, sum.truncated_bytes), (4, 2, 77));
    }

    /// Bytes of the file `path` that are in this process's memory.
    fn resident(path: &Path) -> usize {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let of_file = maps.split_inclusive("VmFlags").filter(|map| map.contains(path.to_str().unwrap()));
        let kib = of_file.map(|map| {
            let line = map.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap()
        });
        kib.sum::<usize>() << 10
    }

    #[test]
    fn stream_that_was_read_in_parts_takes_no_memory() {
        let dir = TempDir::new().unwrap();
        let stream = long_recording(&dir);
        let trace = Trace::open(dir.path()).unwrap();
        let (layer, layer_stream) = (&trace.layers()[0], &trace.layers()[0].streams[0]);

        // Each behind the one after it, as threads may come to read them.
        let counts =
            [48..64, 32..48, 16..32, 0..16].map(|part| layer.records(layer_stream).of_packets(part, 0).count());
        let after = resident(&stream);
        let held = layer.records(layer_stream).next().map(|_| resident(&stream));

        assert_eq!((counts, after), ([16 * 248; 4], 0));
        assert!(held.unwrap() >= SIZE, "{held:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn window_holds_what_a_filter_leaves(
            mut times in proptest::collection::vec(0..200_u64, 0..400), from in 0..200_u64, length in 0..200_u64,
        ) {
            times.sort_unstable();
            let (dir, to) = (TempDir::new().unwrap(), from + length);
            write(&dir, &times, 256);
            let trace = Trace::open(dir.path()).unwrap();
            let layer = &trace.layers()[0];
            let found = layer.streams.iter().flat_map(|stream| layer.records(stream).within(from, to));
            let found: Vec<u64> = found.map(|record| record.time).collect();
            times.retain(|time| (from..=to).contains(time));
            prop_assert_eq!(found, times);
        }

        #[test]
        fn arbitrary_streams_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..3 * SIZE)) {
            let (dir, stream) = recording();
            fs::write(&stream, &bytes).unwrap();
            let (times, _) = read(&dir);
            prop_assert!(times.len() <= bytes.len() / 8);
        }

        #[test]
        fn damaged_streams_are_survived(changes in proptest::collection::vec((0..3 * SIZE, any::<u8>()), 1..40)) {
            let (dir, stream) = recording();
            change(&stream, |bytes| changes.iter().for_each(|&(at, value)| bytes[at] = value));
            let (times, _) = read(&dir);
            prop_assert!(times.len() <= 3 * (SIZE - PACKET_HEADER_SIZE) / 8);
        }
    }
}
