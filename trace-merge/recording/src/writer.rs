//! The writing side of a recording: one [`LayerWriter`] per layer.
//!
//! The order of writes is what keeps a recording readable at every moment, its recorder's sudden death included: event
//! types reach `metadata` and the recording's journal before the first record that uses them reaches a stream, and streams
//! grow by whole packets. (`session.json` is the recorder's to save, from [`LayerWriter::layer`].)

mod chunks;
mod packet;
mod packet_file;
mod rotation;
mod stream;
mod streams;

pub use packet::{OpenPacket, PacketBuilder, Push};
pub use rotation::{MIN_ROTATED_SIZE, Rotation};
pub use stream::StreamWriter;

use crate::clock::Clock;
use crate::files::access::{Readers, append_line, open_to_append};
use crate::files::compression::Compression;
use crate::files::kallsyms;
use crate::files::{JOURNAL_FILE, METADATA_FILE};
use crate::layer::LayerKind;
use crate::layer::loss::LargestLost;
use crate::manifest::{
    Layer, MAX_PACKET_SIZE, MIN_PACKET_SIZE, Manifest, Process, StreamDescription, is_vm_name, journal,
};
use crate::metadata::{TraceDescription, event_types, tsdl};
use crate::text::terminal;
use packet_file::stream_file;
use shared_ring::consumer::{self, Lost};
use shared_ring::event::{EventDescription, MAX_FIELDS, MAX_NAME};
use shared_ring::layout::{EXTENDED_ID, HOLE_ID, PacketHeader};
use shared_ring::packet::Packet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use streams::Streams;
use thiserror::Error;
use uuid::Uuid;

/// Why a layer cannot be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// A folder cannot be made.
    #[error("{}: cannot be created; give a new folder on a disk with space", .path.display())]
    Create {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("{}: cannot be written; check the space on its disk", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What does not go leaves no room in a recording that keeps within a size.
    #[error("{}: does not fit the recording's {limit} bytes beside what describes it; give it a larger --max-size", .path.display())]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The recording's size, bytes.
        limit: u64,
    },
    /// What was to be appended is not a packet of this layer.
    #[error("{}: refused {bytes} bytes that are not a packet of {packet_size} bytes of this layer", .path.display())]
    NotAPacket {
        /// The stream file.
        path: PathBuf,
        /// Bytes that were given.
        bytes: usize,
        /// Bytes of a packet of the layer.
        packet_size: u64,
    },
    /// An event type cannot be described in CTF, or contradicts an earlier one.
    #[error("event type \"{name}\" (id {id}): {problem}")]
    Event {
        /// Name of the event type.
        name: String,
        /// Id of the event type.
        id: u16,
        /// What is wrong.
        problem: &'static str,
    },
    /// A layer's VM name or packet size is not possible.
    #[error("layer {kind}: {problem}")]
    Layer {
        /// Kind of the layer.
        kind: LayerKind,
        /// What is wrong.
        problem: String,
    },
}

/// A layer that is to be recorded.
#[derive(Clone, Debug)]
pub struct NewLayer {
    /// Kind of the layer.
    pub kind: LayerKind,
    /// Name of the VM; `None` for the host's kernel and only for it.
    pub vm: Option<String>,
    /// The process, for [`LayerKind::GuestUser`] and only for it.
    pub process: Option<Process>,
    /// Bytes of each packet: the sub-buffer size of the layer's rings.
    pub packet_size: u64,
}

impl NewLayer {
    /// The layer's folder, relative to the recording's.
    fn path(&self) -> Result<String, WriteError> {
        let refuse = |problem: String| Err(WriteError::Layer { kind: self.kind, problem });
        if !(MIN_PACKET_SIZE..=MAX_PACKET_SIZE).contains(&self.packet_size) || !self.packet_size.is_multiple_of(8) {
            return refuse(format!("packets of {} bytes are not possible", self.packet_size));
        }
        match (self.kind, &self.vm, &self.process) {
            (LayerKind::HostKernel, None, None) => Ok(self.kind.name().into()),
            (LayerKind::Vmm | LayerKind::GuestKernel, Some(vm), None) if is_vm_name(vm) => {
                Ok(format!("{vm}/{}", self.kind))
            }
            (LayerKind::GuestUser, Some(vm), Some(process)) if is_vm_name(vm) => {
                Ok(format!("{vm}/{}/{}", self.kind, process.pid))
            }
            (_, Some(vm), _) if !is_vm_name(vm) => {
                refuse(format!("\"{vm}\" is not a VM name; use letters, digits, '.', '_' and '-'"))
            }
            _ => {
                refuse("needs a VM exactly when it is not the host's, a process exactly when it is a user layer".into())
            }
        }
    }
}

/// Writes one layer: its folder, `metadata`, and a stream per CPU, vCPU or thread, opened by its first packet.
#[derive(Debug)]
pub struct LayerWriter {
    path: String,
    trace: TraceDescription,
    events: Vec<EventDescription>,
    /// Index in `events` plus one, by id; 0 for ids without an event type. Looked at for every record.
    by_id: Vec<u16>,
    streams: Streams,
    place: Place,
    /// Bytes of `metadata`.
    metadata_bytes: u64,
}

/// Where the streams of a layer are written to.
#[derive(Debug)]
struct Place {
    folder: PathBuf,
    /// The journal of a recording that goes on.
    journal: Option<PathBuf>,
    packet_size: u64,
    uuid: [u8; 16],
    /// The recording's size, if it keeps within one.
    rotation: Option<Rotation>,
    compression: Option<Compression>,
}

/// A stream of a layer, and what `session.json` will say about it.
#[derive(Debug, Default)]
struct LayerStream {
    writer: Option<StreamWriter>,
    builder: Option<PacketBuilder>,
    /// Header of the last packet.
    last: Option<PacketHeader>,
    lost: Lost,
    largest_lost: Option<LargestLost>,
    rejected_bytes: u64,
    corrupt: bool,
    nested: Option<u64>,
    never_joined: bool,
    overwritten: u64,
    complete_until: Option<u64>,
    /// Whether the next record is to begin a packet, because something was lost before it.
    cut: bool,
    gap: Gap,
}

/// Whether a stream is in a gap, see [`LayerWriter::begin_gap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gap {
    #[default]
    None,
    /// No packet says so yet.
    Untold,
    Reported,
}

impl LayerWriter {
    /// Creates the folder of `layer` in the recording `dir`, with `metadata` but no event types yet. Clock, host,
    /// version, and whether streams are compressed come from `manifest`. `session.json` is saved when the layer is complete.
    ///
    /// A process id that was used before in this recording gets a folder of its own: `42-2` after `42`. So does a
    /// second layer of the host's kernel, which holds what a flight recorder keeps apart.
    ///
    /// # Errors
    /// When the layer is not possible, exists already, or cannot be written.
    pub fn create(dir: &Path, manifest: &Manifest, layer: NewLayer) -> Result<Self, WriteError> {
        Self::create_with(None, None, dir, manifest, layer)
    }

    /// As [`create`](Self::create), in a recording whose `session.json` is saved again and again while it goes on: event types
    /// go to its journal too. It keeps within the size of `rotation`, if there is one.
    ///
    /// # Errors
    /// As those of [`create`](Self::create), and when the layer's description does not fit.
    pub fn create_in_progress(
        rotation: Option<&Rotation>,
        dir: &Path,
        manifest: &Manifest,
        layer: NewLayer,
    ) -> Result<Self, WriteError> {
        Self::create_with(rotation, Some(dir.join(JOURNAL_FILE)), dir, manifest, layer)
    }

    fn create_with(
        rotation: Option<&Rotation>,
        journal: Option<PathBuf>,
        dir: &Path,
        manifest: &Manifest,
        layer: NewLayer,
    ) -> Result<Self, WriteError> {
        let readers = Readers::of_made(dir).map_err(|source| WriteError::Create { path: dir.into(), source })?;
        let path = create_folder(dir, layer.path()?, layer.kind, readers)?;
        let trace = TraceDescription {
            uuid: Uuid::new_v4(),
            kind: layer.kind,
            vm: layer.vm,
            process: layer.process,
            clock: manifest.clock.clone(),
            host: manifest.host.clone(),
            strata: manifest.strata.clone(),
            has_numbered_streams: rotation.is_some(),
        };
        let place = Place {
            folder: dir.join(&path),
            journal,
            packet_size: layer.packet_size,
            uuid: trace.uuid.into_bytes(),
            rotation: rotation.cloned(),
            compression: manifest.compression,
        };
        let mut writer = Self {
            path,
            trace,
            events: Vec::new(),
            by_id: Vec::new(),
            streams: Streams::default(),
            place,
            metadata_bytes: 0,
        };
        writer.write_metadata()?;
        Ok(writer)
    }

    /// UUID of the layer's trace: what packets carry.
    #[must_use]
    pub const fn uuid(&self) -> [u8; 16] {
        *self.trace.uuid.as_bytes()
    }

    /// Bytes of each packet.
    #[must_use]
    pub const fn packet_size(&self) -> u64 {
        self.place.packet_size
    }

    /// Kind of the layer.
    #[must_use]
    pub const fn kind(&self) -> LayerKind {
        self.trace.kind
    }

    /// The event type of that id, if the layer has it.
    #[must_use]
    pub fn event(&self, id: u16) -> Option<&EventDescription> {
        let number = usize::from(*self.by_id.get(usize::from(id))?);
        self.events.get(number.checked_sub(1)?)
    }

    /// The layer's event types.
    #[must_use]
    pub fn events(&self) -> &[EventDescription] {
        &self.events
    }

    /// Whether the layer has any event type.
    #[must_use]
    pub const fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Writes `text`, which `/proc/kallsyms` has, as the symbols of its kernel beside the layer.
    ///
    /// # Errors
    /// When it cannot be written, or a recording that keeps within a size has no room for it.
    pub fn save_kallsyms(&self, text: &[u8]) -> Result<(), WriteError> {
        let failed = |source| WriteError::Write { path: kallsyms::beside(&self.place.folder), source };
        self.save_compressed_kallsyms(&kallsyms::compressed(text, &mut || {}).map_err(failed)?)
    }

    /// The same of symbols that are [`kallsyms::compressed`].
    ///
    /// # Errors
    /// As those of [`save_kallsyms`](Self::save_kallsyms).
    pub fn save_compressed_kallsyms(&self, bytes: &[u8]) -> Result<(), WriteError> {
        let path = kallsyms::beside(&self.place.folder);
        if let Some(rotation) = &self.place.rotation {
            rotation.reserve_file(&path, bytes.len() as u64)?;
        }
        kallsyms::write_to(&path, bytes).map_err(|source| WriteError::Write { path, source })
    }

    /// Adds event types, to the end of `metadata` too, and to the journal of a recording that goes on. Those that the layer
    /// has already are passed over; those that are not possible are not added, while the others are. Returns how many were
    /// added.
    ///
    /// # Errors
    /// When `metadata` cannot be written; otherwise the first event type that was refused.
    pub fn add_events(&mut self, events: &[EventDescription]) -> Result<usize, WriteError> {
        let mut refused = None;
        let known = self.events.len();
        for event in events {
            match (self.event(event.id), event_problem(event)) {
                (Some(known), _) if known == event => {}
                (Some(_), _) => {
                    refused.get_or_insert_with(|| refusal(event, "its id belongs to another event type"));
                }
                (None, Some(problem)) => {
                    refused.get_or_insert_with(|| refusal(event, problem));
                }
                (None, None) => {
                    self.insert(event);
                }
            }
        }
        let added = self.events.len() - known;
        if added > 0 {
            // Not the whole text once more: a process may add one event type at a time.
            let text = event_types(&self.events[known..]);
            self.append_metadata(&text)?;
            // Where it cannot be written, `session.json` will say it first.
            let _ = self.append_to_journal(known);
        }
        refused.map_or(Ok(added), Err)
    }

    fn insert(&mut self, event: &EventDescription) {
        let id = usize::from(event.id);
        if self.by_id.len() <= id {
            self.by_id.resize(id + 1, 0);
        }
        self.events.push(event.clone());
        // There are fewer ids than numbers.
        self.by_id[id] = u16::try_from(self.events.len()).unwrap_or(0);
    }

    /// States another clock (its rate or its UTC is known better now) and rewrites `metadata`. The clock of
    /// `session.json` must become the same.
    ///
    /// # Errors
    /// When `metadata` cannot be written.
    pub fn set_clock(&mut self, clock: &Clock) -> Result<(), WriteError> {
        if self.trace.clock == *clock {
            return Ok(());
        }
        self.trace.clock = clock.clone();
        self.write_metadata()
    }

    /// Appends `packet` to the stream of its CPU, as [`shared_ring::consumer::Consumer`] accepts it: records of this
    /// layer's event types under this layer's [`uuid`](Self::uuid).
    ///
    /// # Errors
    /// When it is not a packet of this layer or cannot be written; the stream then ends with the packet before it.
    pub fn append(&mut self, packet: &Packet<'_>) -> Result<(), WriteError> {
        let stream = self.streams.of(packet.header().cpu_id);
        stream.append(&self.place, packet)
    }

    /// Records an event of this layer at `time` (ticks) in the stream of `cpu_id`, for layers that do not come out of a
    /// ring. Packets are written when they are full and by [`flush`](Self::flush). A record that is older than the one
    /// before it, or that fits no packet, is left out and counted.
    ///
    /// # Errors
    /// When a full packet cannot be written.
    #[inline(always)]
    pub fn record(&mut self, cpu_id: u32, time: u64, id: u16, payload: &[u8]) -> Result<(), WriteError> {
        let stream = self.streams.of(cpu_id);
        let builder = stream.builder.as_mut().filter(|_| !stream.cut);
        if builder.is_some_and(|builder| builder.push(time, id, payload) == Push::Stored) {
            return Ok(());
        }
        stream.record_at_boundary(&self.place, cpu_id, time, id, payload)
    }

    /// The packet of `cpu_id` that is being built: for the records that it takes as they come, one after the other. `None`
    /// where the next one goes the longer way, by [`record`](Self::record).
    #[inline(always)]
    pub fn open(&mut self, cpu_id: u32) -> Option<OpenPacket<'_>> {
        let stream = self.streams.of(cpu_id);
        stream.builder.as_mut().filter(|_| !stream.cut)?.open()
    }

    /// Counts `records` that the source of `cpu_id` overwrote or dropped because they were not read in time. The next
    /// record begins a packet, so that packets' counts tell where the loss was.
    pub fn add_lost(&mut self, cpu_id: u32, records: u64) {
        let stream = self.streams.of(cpu_id);
        stream.cut = true;
        stream.lost.full = stream.lost.full.saturating_add(records);
    }

    /// Counts `bytes` of the source of `cpu_id` that could not be understood.
    pub fn add_rejected(&mut self, cpu_id: u32, bytes: u64) {
        let stream = self.streams.of(cpu_id);
        stream.cut = true;
        stream.rejected_bytes = stream.rejected_bytes.saturating_add(bytes);
    }

    /// Begins a gap of the stream of `cpu_id` behind the last record: until [`end_gap`](Self::end_gap), records may be
    /// missing between any two records, and the packets say so.
    ///
    /// # Errors
    /// When a packet cannot be written.
    pub fn begin_gap(&mut self, cpu_id: u32) -> Result<(), WriteError> {
        let stream = self.streams.of(cpu_id);
        if stream.gap == Gap::None {
            stream.flush_at(0, &self.place)?;
            // What was lost before the gap is told by now. An empty packet at the next record, for the gap alone, would
            // begin when that record's does: readers could not tell which of their files is the first.
            stream.cut = false;
            stream.gap = Gap::Untold;
        }
        Ok(())
    }

    /// Ends the gap of the stream of `cpu_id` at `time` (ticks), or behind its last record, before the next one. A gap in
    /// which nothing was recorded is told by a packet without records, which before the first record needs a time.
    ///
    /// # Errors
    /// When a packet cannot be written.
    pub fn end_gap(&mut self, cpu_id: u32, time: Option<u64>) -> Result<(), WriteError> {
        let stream = self.streams.of(cpu_id);
        let is_empty = stream.last.is_none() && stream.builder.as_ref().is_none_or(PacketBuilder::is_empty);
        if is_empty && time.is_none() {
            stream.gap = Gap::None;
            return Ok(());
        }
        if stream.gap == Gap::Untold && stream.builder.is_none() {
            let builder = stream.last.as_ref().map(PacketBuilder::following);
            stream.builder =
                Some(builder.unwrap_or_else(|| PacketBuilder::new(self.place.uuid, cpu_id, self.place.packet_size)));
        }
        let ended = stream.flush_at(time.unwrap_or(0), &self.place);
        stream.gap = Gap::None;
        ended
    }

    /// Takes over a ring's final counts for the stream of `cpu_id`: loss after the last packet included.
    pub fn set_loss(&mut self, cpu_id: u32, lost: Lost, rejected_bytes: u64, corrupt: bool) {
        let stream = self.streams.of(cpu_id);
        (stream.lost, stream.rejected_bytes, stream.corrupt) = (lost, rejected_bytes, corrupt);
    }

    /// Takes over the largest record that the stream of `cpu_id` lost as larger than a sub-buffer.
    pub fn set_largest_lost(&mut self, cpu_id: u32, largest: Option<LargestLost>) {
        self.streams.of(cpu_id).largest_lost = largest;
    }

    /// What a ring says of such a record, with its event's name; `None` when the layer has no such event.
    #[must_use]
    pub fn named(&self, lost: consumer::LargestLost) -> Option<LargestLost> {
        self.event(lost.id).map(|event| LargestLost { event: event.name.clone(), bytes: lost.payload })
    }

    /// Says of all streams that records may be missing behind their last: what they were read from failed.
    pub fn set_corrupt(&mut self) {
        self.streams.values_mut().for_each(|stream| stream.corrupt = true);
    }

    /// Takes over how many records of `cpu_id` were not made inside others, where somebody counted them.
    pub fn set_nested(&mut self, cpu_id: u32, nested: Option<u64>) {
        self.streams.of(cpu_id).nested = nested;
    }

    /// Takes over that `cpu_id`, a vCPU, never began to record.
    pub fn set_never_joined(&mut self, cpu_id: u32) {
        self.streams.of(cpu_id).never_joined = true;
    }

    /// Takes over how often a flight recorder overwrote the oldest content of `cpu_id` before it was written.
    pub fn set_overwritten(&mut self, cpu_id: u32, overwritten: u64) {
        self.streams.of(cpu_id).overwritten = overwritten;
    }

    /// Takes over that all records of `cpu_id` up to `time` (ticks) were handed to this: the stream is complete up to there,
    /// also if it has no packet at all. Of one whose records wait for their packet to be written, packets alone tell.
    pub fn set_complete_until(&mut self, cpu_id: u32, time: u64) {
        let stream = self.streams.of(cpu_id);
        if stream.builder.as_ref().is_none_or(PacketBuilder::is_empty) {
            stream.complete_until = Some(time);
        }
    }

    /// Writes the records that [`record`](Self::record) still holds, and for streams that lost something after their
    /// last packet, an empty packet that says so. Of a stream out of a ring nothing may follow then.
    ///
    /// # Errors
    /// When a packet cannot be written.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        for stream in self.streams.values_mut() {
            stream.flush_at(0, &self.place)?;
        }
        Ok(())
    }

    /// Bytes that the layer's records take so far, packet headers included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.writers().map(StreamWriter::content_bytes).sum()
    }

    fn writers(&self) -> impl Iterator<Item = &StreamWriter> {
        self.streams.iter().filter_map(|(_, stream)| stream.writer.as_ref())
    }

    /// Records written so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.writers().map(StreamWriter::records).sum()
    }

    /// What `session.json` says about the layer.
    #[must_use]
    pub fn layer(&self) -> Layer {
        let streams = self.streams.iter().map(|(cpu_id, stream)| StreamDescription {
            file: stream_file(cpu_id),
            cpu_id,
            packets: stream.writer.as_ref().map_or(0, StreamWriter::packets),
            records: stream.writer.as_ref().map_or(0, StreamWriter::records),
            lost: stream.lost,
            largest_lost: stream.largest_lost.clone(),
            rejected_bytes: stream.rejected_bytes,
            corrupt: stream.corrupt,
            nested: stream.nested,
            never_joined: stream.never_joined,
            overwritten: stream.overwritten,
            complete_until: stream.complete_until,
            dropped: None,
        });
        self.described(self.events.clone(), streams.collect())
    }

    /// The layer with no other event types than `events`, and no other streams than `streams`.
    fn described(&self, events: Vec<EventDescription>, streams: Vec<StreamDescription>) -> Layer {
        Layer {
            kind: self.trace.kind,
            vm: self.trace.vm.clone(),
            host: None,
            path: self.path.clone(),
            uuid: self.trace.uuid,
            packet_size: self.place.packet_size,
            process: self.trace.process.clone(),
            events,
            flag_names: Vec::new(),
            limit: None,
            ended: None,
            another_kernel: false,
            streams,
        }
    }

    /// Writes event types from the one of number `first` on to the recording's journal, if it has one.
    fn append_to_journal(&self, first: usize) -> Result<(), WriteError> {
        let Some(path) = &self.place.journal else { return Ok(()) };
        let line = journal::line(&self.described(self.events[first..].to_vec(), Vec::new()));
        if let Some(rotation) = &self.place.rotation {
            rotation.reserve_journal(path, line.len() as u64)?;
        }
        append_line(path, &line).map_err(|source| WriteError::Write { path: path.clone(), source })
    }

    fn append_metadata(&mut self, text: &str) -> Result<(), WriteError> {
        let path = self.place.folder.join(METADATA_FILE);
        self.reserve_metadata(&path, self.metadata_bytes + text.len() as u64)?;
        let written = open_to_append(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| WriteError::Write { path, source })
    }

    fn write_metadata(&mut self) -> Result<(), WriteError> {
        let path = self.place.folder.join(METADATA_FILE);
        let text = tsdl(&self.trace, &self.events);
        self.reserve_metadata(&path, text.len() as u64)?;
        let readers = Readers::of(&self.place.folder);
        let written = readers.and_then(|readers| readers.write_atomically(&path, text.as_bytes()));
        written.map_err(|source| WriteError::Write { path, source })
    }

    /// Makes room for `metadata`, `path`, which becomes `bytes` long.
    fn reserve_metadata(&mut self, path: &Path, bytes: u64) -> Result<(), WriteError> {
        if let Some(rotation) = &self.place.rotation {
            rotation.reserve_description(path, self.metadata_bytes, bytes)?;
        }
        self.metadata_bytes = bytes;
        Ok(())
    }
}

impl Place {
    /// The stream of `cpu_id`, which is new.
    fn stream(&self, cpu_id: u32) -> Result<StreamWriter, WriteError> {
        let path = self.folder.join(stream_file(cpu_id));
        match &self.rotation {
            None => StreamWriter::create(&path, self.packet_size, self.uuid, self.compression),
            Some(rotation) => {
                let stream = rotation.stream(&self.folder, cpu_id, self.compression)?;
                Ok(StreamWriter::rotated(stream, &path, self.packet_size, self.uuid))
            }
        }
    }
}

impl LayerStream {
    fn append(&mut self, place: &Place, packet: &Packet<'_>) -> Result<(), WriteError> {
        let header = *packet.header();
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(place.stream(header.cpu_id)?),
        };
        writer.append(packet)?;
        self.lost = Lost { full: header.lost_full, wrapped: header.lost_wrapped, too_large: header.lost_too_large };
        self.rejected_bytes = header.rejected_bytes;
        self.last = Some(header);
        Ok(())
    }

    /// [Records](LayerWriter::record) what the packet that is being built did not take, or must not.
    #[cold]
    fn record_at_boundary(
        &mut self,
        place: &Place,
        cpu_id: u32,
        time: u64,
        id: u16,
        payload: &[u8],
    ) -> Result<(), WriteError> {
        if std::mem::take(&mut self.cut) {
            // What was lost lies between the last record and this one.
            self.flush_at(time, place)?;
        }
        let builder = self.builder.get_or_insert_with(|| PacketBuilder::new(place.uuid, cpu_id, place.packet_size));
        let mut pushed = builder.push(time, id, payload);
        if pushed == Push::Full {
            self.flush_at(0, place)?;
            pushed = self.builder.as_mut().map_or(Push::Refused, |builder| builder.push(time, id, payload));
        }
        self.cut = !matches!(pushed, Push::Stored);
        match pushed {
            Push::Stored | Push::Full => {}
            Push::TooLarge => self.lost.too_large += 1,
            Push::Refused => self.rejected_bytes = self.rejected_bytes.saturating_add(payload.len() as u64),
        }
        Ok(())
    }

    /// Writes the records that are in no packet yet, or an empty packet if only counts are not, and ends it at `time`.
    fn flush_at(&mut self, time: u64, place: &Place) -> Result<(), WriteError> {
        let following = || self.last.as_ref().map(PacketBuilder::following);
        let Some(mut builder) = self.builder.take().or_else(following) else { return Ok(()) };
        let (lost, rejected) = (self.lost, self.rejected_bytes);
        let finished = match self.gap {
            Gap::None => builder.finish_at(time, lost, rejected),
            Gap::Reported if builder.is_empty() => None,
            Gap::Reported | Gap::Untold => {
                self.gap = Gap::Reported;
                builder.finish_in_gap(time, lost, rejected)
            }
        };
        let written = match finished {
            Some(packet) => self.append(place, &packet),
            None => Ok(()),
        };
        self.builder = Some(builder);
        written
    }
}

/// Creates the folder `path` in `dir`; it must not exist, except that a layer that a recording may have several times
/// then gets the next free number.
fn create_folder(dir: &Path, path: String, kind: LayerKind, readers: Readers) -> Result<String, WriteError> {
    if let Some(above) = Path::new(&path).parent() {
        let created = readers.create_folders(dir, above);
        created.map_err(|source| WriteError::Create { path: dir.join(above), source })?;
    }
    let mut candidate = path.clone();
    let mut number = 1_u32;
    loop {
        match readers.create_folder(&dir.join(&candidate)) {
            Ok(()) => return Ok(candidate),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && has_several(kind) => {
                number += 1;
                candidate = format!("{path}-{number}");
            }
            Err(source) => return Err(WriteError::Create { path: dir.join(candidate), source }),
        }
    }
}

/// Whether a recording may have several layers of this kind, of one VM or host.
const fn has_several(kind: LayerKind) -> bool {
    matches!(kind, LayerKind::HostKernel | LayerKind::GuestUser)
}

fn refusal(event: &EventDescription, problem: &'static str) -> WriteError {
    WriteError::Event { name: event.name.clone(), id: event.id, problem }
}

/// What makes an event type impossible to describe in `metadata`, if anything does: one bad type would make a reader
/// refuse the whole layer.
fn event_problem(event: &EventDescription) -> Option<&'static str> {
    let short = |name: &str| !name.is_empty() && name.len() <= MAX_NAME;
    if event.id == HOLE_ID || event.id == EXTENDED_ID {
        return Some("its id is reserved");
    }
    if !short(&event.name) || event.name.chars().any(terminal::acts) {
        return Some("its name is empty, too long or not printable");
    }
    if event.fields.len() > MAX_FIELDS {
        return Some("it has too many fields");
    }
    let identifier = |name: &str| {
        short(name)
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    for (index, field) in event.fields.iter().enumerate() {
        if !identifier(&field.name) {
            return Some("a field's name is not a C identifier");
        }
        if event.fields[..index].iter().any(|earlier| earlier.name == field.name) {
            return Some("two fields have the same name");
        }
    }
    None
}

#[cfg(test)]
mod tests;
