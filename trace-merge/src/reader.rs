//! Opening a recording and reading its streams. Every packet and record is checked before it is handed on; what cannot
//! be believed is skipped and counted as [`Damage`].
#![allow(unsafe_code)] // Streams are memory-mapped files.

use crate::clock::Clock;
use crate::schema::{Schema, Schemas, Value};
use crate::session::{Layer, LayerKind, Session, SessionError, StreamDescription};
use memmap2::Mmap;
use shared_ring::consumer::Lost;
use shared_ring::layout::{CTF_MAGIC, PACKET_HEADER_SIZE, PacketHeader, padded};
use shared_ring::packet::{Records, read_header};
use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a recording cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Its description cannot be read.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A stream is there but cannot be opened.
    #[error("{}: cannot be opened; check its permissions", .path.display())]
    Stream {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What of a stream could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// Packets whose header is not that of a packet of this stream.
    pub packets: u64,
    /// Packets that are missing between others, by their sequence numbers.
    pub missing_packets: u64,
    /// Bytes inside packets that are no records.
    pub bytes: u64,
    /// Records of unknown type, or whose payload does not fit their type.
    pub records: u64,
    /// Bytes at the end of the file that are no whole packet.
    pub truncated_bytes: u64,
    /// Records that `session.json` says were written and that are not there, for whichever of these reasons or because
    /// whole packets were cut off.
    pub missing_records: u64,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            (self.packets, "damaged packets"),
            (self.missing_packets, "missing packets"),
            (self.bytes, "unreadable bytes inside packets"),
            (self.records, "records that do not fit their event type"),
            (self.truncated_bytes, "bytes of a truncated packet"),
            (self.missing_records, "records that were written are not there"),
        ];
        let mut separator = "";
        for (count, what) in parts.into_iter().filter(|&(count, _)| count > 0) {
            write!(formatter, "{separator}{count} {what}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl Damage {
    /// Whether anything was damaged.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Both.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            packets: self.packets.saturating_add(other.packets),
            // Sequence numbers come out of the file: any number can be missing.
            missing_packets: self.missing_packets.saturating_add(other.missing_packets),
            bytes: self.bytes.saturating_add(other.bytes),
            records: self.records.saturating_add(other.records),
            truncated_bytes: self.truncated_bytes.saturating_add(other.truncated_bytes),
            missing_records: self.missing_records.saturating_add(other.missing_records),
        }
    }
}

/// A recording, opened.
#[derive(Debug)]
pub struct Trace {
    folder: PathBuf,
    session: Session,
    layers: Vec<TraceLayer>,
}

/// A layer of a recording, opened.
#[derive(Debug)]
pub struct TraceLayer {
    /// What `session.json` says about it.
    pub description: Layer,
    /// Its event types.
    pub schemas: Schemas,
    /// Its streams, in the order of their CPUs.
    pub streams: Vec<Stream>,
}

/// A stream of a layer, mapped.
#[derive(Debug)]
pub struct Stream {
    /// What `session.json` says about it. For a stream that it does not list (its recorder was killed before it could),
    /// what the file's name says.
    pub description: StreamDescription,
    /// Whether `session.json` says that the stream holds records, but its file is empty or not there.
    pub absent: bool,
    /// Whether loss that a packet counts lies behind the packet. A ring is found full when a packet is to be opened; of
    /// loss in the host's kernel one learns with the records after it.
    loss_lies_behind: bool,
    /// `None` for an empty or absent file, which cannot be mapped.
    map: Option<Mmap>,
    packet_size: usize,
    uuid: [u8; 16],
}

impl Trace {
    /// Opens the recording in `dir`.
    ///
    /// # Errors
    /// When `dir` is no recording or one of its streams cannot be opened. Streams that are missing or damaged are no
    /// errors: see [`Stream::absent`] and [`StreamRecords::damage`].
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        let session = Session::load(dir)?;
        let mut layers = Vec::with_capacity(session.layers.len());
        for layer in &session.layers {
            layers.push(TraceLayer::open(dir, layer)?);
        }
        layers.sort_by(|left, right| {
            let key = |layer: &TraceLayer| (layer.description.kind, layer.description.path.clone());
            key(left).cmp(&key(right))
        });
        Ok(Self { folder: dir.into(), session, layers })
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What `session.json` says.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// The clock of all records.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.session.clock
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

    /// Time of the first record of all, ticks; `None` when there is none.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        let streams = self.layers.iter().flat_map(|layer| layer.streams.iter().map(|stream| layer.records(stream)));
        streams.filter_map(|mut records| records.next()).map(|record| record.time).min()
    }
}

impl TraceLayer {
    fn open(dir: &Path, layer: &Layer) -> Result<Self, ReadError> {
        let folder = dir.join(&layer.path);
        let mut descriptions = layer.streams.clone();
        for found in unlisted_streams(&folder, &layer.streams) {
            descriptions.push(found);
        }
        descriptions.sort_by_key(|stream| stream.cpu_id);
        let streams = descriptions.into_iter().map(|stream| Stream::open(&folder, layer, stream));
        Ok(Self {
            description: layer.clone(),
            schemas: Schemas::new(&layer.events),
            streams: streams.collect::<Result<_, _>>()?,
        })
    }

    /// The records of `stream`, which is one of this layer's.
    #[must_use]
    pub const fn records<'t>(&'t self, stream: &'t Stream) -> StreamRecords<'t> {
        StreamRecords {
            stream,
            schemas: &self.schemas,
            next_packet: 0,
            current: None,
            from: 0,
            sequence: None,
            skipped: 0,
            gap: false,
            gap_follows: false,
            overwritten: 0,
            tail: Tail::EMPTY,
            read: 0,
            passed_over: false,
            damage: NO_DAMAGE,
        }
    }
}

/// Stream files in `folder` that `listed` does not name.
fn unlisted_streams(folder: &Path, listed: &[StreamDescription]) -> Vec<StreamDescription> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|file| !listed.iter().any(|stream| stream.file == *file))
        .filter_map(|file| {
            let cpu_id = file.strip_prefix("stream_")?.parse().ok()?;
            let lost = Lost::default();
            Some(StreamDescription {
                file,
                cpu_id,
                records: 0,
                lost,
                rejected_bytes: 0,
                corrupt: false,
                overwritten: 0,
            })
        })
        .collect()
}

impl Stream {
    fn open(folder: &Path, layer: &Layer, description: StreamDescription) -> Result<Self, ReadError> {
        let path = folder.join(&description.file);
        let map = match map_file(&path) {
            Ok(map) => map,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(ReadError::Stream { path, source }),
        };
        let absent = map.is_none() && description.records > 0;
        let packet_size = usize::try_from(layer.packet_size).unwrap_or(usize::MAX);
        let loss_lies_behind = layer.kind != LayerKind::HostKernel;
        Ok(Self { description, absent, loss_lies_behind, map, packet_size, uuid: layer.uuid.into_bytes() })
    }

    fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Number of packets that the file has room for.
    const fn packets_in(&self, bytes: usize) -> usize {
        bytes / self.packet_size
    }

    /// The headers of the packets that can be believed, with their indices in the file, in its order.
    pub fn headers(&self) -> impl Iterator<Item = (usize, PacketHeader)> {
        let packets = 0..self.packets_in(self.bytes().len());
        packets.filter_map(|index| Some((index, self.packet(index)?.1)))
    }

    /// The `index`th packet of the file and its header; `None` when it is no packet of this stream.
    fn packet(&self, index: usize) -> Option<(&[u8], PacketHeader)> {
        let begin = index.checked_mul(self.packet_size)?;
        let packet = self.bytes().get(begin..begin.checked_add(self.packet_size)?)?;
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

/// Maps a file for reading; `None` when it is empty.
fn map_file(path: &Path) -> io::Result<Option<Mmap>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("is no regular file"));
    }
    if metadata.len() == 0 {
        return Ok(None);
    }
    // SAFETY: the mapping is read-only, and a recorder only ever appends to a stream: bytes that are mapped do not
    // change. (Someone who truncates a recording that is being read ends the reader with SIGBUS; nothing else.)
    unsafe { Mmap::map(&file) }.map(Some)
}

/// A record of a stream whose type is known and whose payload fits it.
#[derive(Clone, Copy, Debug)]
pub struct StreamRecord<'t> {
    /// Time, trace clock ticks.
    pub time: u64,
    /// Its event type.
    pub schema: &'t Schema,
    /// Its payload.
    pub payload: &'t [u8],
    /// Index in the file of the packet that holds it.
    pub packet: usize,
    /// Whether records of its stream may be missing between the record before it and this one: they were lost,
    /// overwritten or damaged. What was known of a state before a gap may no longer hold after it. The beginning of a
    /// stream is no gap.
    pub after_gap: bool,
}

impl<'t> StreamRecord<'t> {
    /// The value of the field `name`.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Value<'t>> {
        self.schema.fields(self.payload).find(|(field, _)| field.name == name).map(|(_, value)| value)
    }

    /// The integer field `name`; one that does not fit wraps, so that a cast gives its bits.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.value(name)? {
            Value::Unsigned(number) => Some(number.cast_signed()),
            Value::Signed(number) => Some(number),
            Value::Text(_) | Value::Array(_) => None,
        }
    }

    /// The integer field `name` as an unsigned one: an address, a size.
    #[must_use]
    pub fn unsigned(&self, name: &str) -> Option<u64> {
        self.number(name).map(i64::cast_unsigned)
    }

    /// Argument `index` of a system call, of `raw_syscalls:sys_enter`.
    #[must_use]
    pub fn argument(&self, index: usize) -> Option<u64> {
        match self.value("args")? {
            Value::Array(arguments) => arguments.get(index),
            _ => None,
        }
    }

    /// The addresses in the array field `name`; none when there is no such field.
    #[must_use]
    pub fn addresses(&self, name: &str) -> Vec<u64> {
        match self.value(name) {
            Some(Value::Array(addresses)) => (0..addresses.len()).filter_map(|index| addresses.get(index)).collect(),
            _ => Vec::new(),
        }
    }

    /// The text field `name`; what is no UTF-8 in it is replaced.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<Cow<'t, str>> {
        match self.value(name)? {
            Value::Text(text) => Some(String::from_utf8_lossy(text)),
            Value::Unsigned(_) | Value::Signed(_) | Value::Array(_) => None,
        }
    }
}

/// What the header of the last packet that was read says about the stream up to there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Records lost, by reason.
    pub lost: Lost,
    /// Bytes that the recorder could not accept.
    pub rejected_bytes: u64,
    /// Packets read.
    pub packets: u64,
    /// Bytes in use in them, headers included.
    pub content_bytes: u64,
}

impl Tail {
    const EMPTY: Self =
        Self { lost: Lost { full: 0, wrapped: 0, too_large: 0 }, rejected_bytes: 0, packets: 0, content_bytes: 0 };
}

const NO_DAMAGE: Damage =
    Damage { packets: 0, missing_packets: 0, bytes: 0, records: 0, truncated_bytes: 0, missing_records: 0 };

/// Walks the records of a stream in the order of the file, in constant memory.
#[derive(Clone, Debug)]
pub struct StreamRecords<'t> {
    stream: &'t Stream,
    schemas: &'t Schemas,
    next_packet: usize,
    current: Option<CurrentPacket<'t>>,
    from: u64,
    /// Sequence number of the last packet that was read.
    sequence: Option<u64>,
    /// Damaged packets since then.
    skipped: u64,
    /// Whether records may be missing before the next one.
    gap: bool,
    /// Whether records may be missing after the current packet.
    gap_follows: bool,
    /// Sub-buffers that a flight recorder had overwritten by the last packet that was read.
    overwritten: u64,
    tail: Tail,
    /// Records read.
    read: u64,
    /// Whether packets were not looked into, so that `read` is not all.
    passed_over: bool,
    damage: Damage,
}

#[derive(Clone, Debug)]
struct CurrentPacket<'t> {
    records: Records<'t>,
    /// Bytes in use, the last record's padding included.
    content: usize,
    index: usize,
}

impl<'t> StreamRecords<'t> {
    /// Leaves out records before `from` ticks; whole packets of them are not even looked into.
    #[must_use]
    pub const fn starting_at(mut self, from: u64) -> Self {
        self.from = from;
        self
    }

    /// What could not be read so far; complete once the records are at their end.
    #[must_use]
    pub const fn damage(&self) -> Damage {
        self.damage
    }

    /// What the packets read so far say.
    #[must_use]
    pub const fn tail(&self) -> Tail {
        self.tail
    }

    /// Enters the next packet that can be believed; `false` at the end of the file.
    fn enter_packet(&mut self) -> bool {
        let bytes = self.stream.bytes().len();
        while self.next_packet < self.stream.packets_in(bytes) {
            let index = self.next_packet;
            self.next_packet += 1;
            let Some((packet, header)) = self.stream.packet(index) else {
                self.damage.packets += 1;
                self.skipped += 1;
                continue;
            };
            self.note(&header);
            if header.time_end < self.from {
                self.passed_over = true;
                continue;
            }
            let content = padded(usize::try_from(header.content_size.div_ceil(8)).unwrap_or(0));
            let records = Records::new(packet, content, header.time_begin);
            self.current = Some(CurrentPacket { records, content: content.min(packet.len()), index });
            return true;
        }
        self.damage.truncated_bytes = (bytes % self.stream.packet_size) as u64;
        if !self.passed_over {
            // A running recorder's description lags behind, never ahead.
            self.damage.missing_records = self.stream.description.records.saturating_sub(self.read);
        }
        false
    }

    fn note(&mut self, header: &PacketHeader) {
        let expected = self.sequence.map_or(0, |last| last.saturating_add(1)).saturating_add(self.skipped);
        // A number that went back counts as one packet out of place.
        let gap = header.sequence.checked_sub(expected).unwrap_or(1);
        self.damage.missing_packets = self.damage.missing_packets.saturating_add(gap);
        self.note_gaps(header, gap > 0);
        (self.sequence, self.skipped) = (Some(header.sequence), 0);
        self.tail.packets += 1;
        self.tail.content_bytes += header.content_size.div_ceil(8);
        self.tail.rejected_bytes = header.rejected_bytes;
        self.tail.lost =
            Lost { full: header.lost_full, wrapped: header.lost_wrapped, too_large: header.lost_too_large };
    }
}

impl StreamRecords<'_> {
    /// Finds out whether records may be missing before or after the packet that `header` begins. Rejected and overwritten
    /// bytes may have lain on either side.
    const fn note_gaps(&mut self, header: &PacketHeader, packets_are_missing: bool) {
        let before = &self.tail;
        let lost = header.lost_full > before.lost.full
            || header.lost_wrapped > before.lost.wrapped
            || header.lost_too_large > before.lost.too_large;
        let around = header.rejected_bytes > before.rejected_bytes
            || header.overwritten > self.overwritten
            || (lost && !self.stream.loss_lies_behind);
        let is_first = before.packets == 0;
        self.gap |= !is_first && (packets_are_missing || self.skipped > 0 || self.gap_follows || around);
        self.gap_follows = lost || around;
        self.overwritten = header.overwritten;
    }
}

impl<'t> Iterator for StreamRecords<'t> {
    type Item = StreamRecord<'t>;

    fn next(&mut self) -> Option<StreamRecord<'t>> {
        loop {
            let Some(packet) = &mut self.current else {
                if self.enter_packet() {
                    continue;
                }
                return None;
            };
            let Some(record) = packet.records.next() else {
                let unread = packet.content.saturating_sub(packet.records.offset());
                self.damage.bytes = self.damage.bytes.saturating_add(unread as u64);
                self.gap_follows |= unread > 0;
                self.current = None;
                continue;
            };
            let index = packet.index;
            self.read += 1;
            match self.schemas.get(record.id).filter(|schema| schema.accepts(record.payload)) {
                Some(_) if record.time < self.from => {}
                Some(schema) => {
                    let (time, payload) = (record.time, record.payload);
                    let after_gap = std::mem::take(&mut self.gap);
                    return Some(StreamRecord { time, schema, payload, packet: index, after_gap });
                }
                None => {
                    self.damage.records += 1;
                    self.gap = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod gap_tests;
#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::session::tests::session;
    use crate::writer::{LayerWriter, NewLayer};
    use proptest::prelude::*;
    use shared_ring::event::{EventDescription, FieldDescription, FieldType};
    use tempfile::TempDir;

    const SIZE: usize = 4096;

    /// An event type with `u32` fields of the given names.
    pub(crate) fn event(id: u16, name: &str, fields: &[&str]) -> EventDescription {
        let field = |name: &&str| FieldDescription { name: (*name).into(), ty: FieldType::U32, hex: false };
        EventDescription { id, class: 0, name: name.into(), fields: fields.iter().map(field).collect() }
    }

    /// A recording of one guest-kernel stream of three packets, 600 records at ticks 1000, 1001, …
    fn recording() -> (TempDir, PathBuf) {
        let dir = TempDir::new().unwrap();
        let new =
            NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size: SIZE as u64 };
        let mut layer = LayerWriter::create(dir.path(), &session(), new).unwrap();
        layer.add_events(&[event(1, "test:tick", &["number"])]).unwrap();
        for number in 0..600_u32 {
            layer.record(0, 1000 + u64::from(number), 1, &number.to_le_bytes()).unwrap();
        }
        layer.flush().unwrap();
        Session { layers: vec![layer.layer()], ..session() }.save(dir.path()).unwrap();
        let stream = dir.path().join("vm0/guest-kernel/stream_0");
        (dir, stream)
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
    fn stream_that_the_session_does_not_list_is_found() {
        let (dir, _) = recording();
        let mut listed = Session::load(dir.path()).unwrap();
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

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
