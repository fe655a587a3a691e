//! The host kernel's layer: records, not rings. Written as they come ([`HostLayer`]), or kept in memory up to a limit, the
//! oldest giving way ([`HostWindow`]), to be written when a flight recorder is.

use super::live::HostWatch;
use super::trigger::Triggers;
use super::written_layer::LayerEnd;
use crate::clock::HostTime;
use crate::control::protocol::Watched;
use crate::host_kernel::{EventSchemas, HostItem, HostTracer, ReaderError};
use shared_ring::event::EventDescription;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use trace_merge::clock::Clock;
use trace_merge::layer::LayerKind;
use trace_merge::manifest::{Layer, Manifest, Missing, Vm};
use trace_merge::writer::{LayerWriter, NewLayer, Rotation, WriteError};

/// Packet size of the host-kernel layer, bytes.
const PACKET_SIZE: u64 = 64 << 10;
/// Bytes of a window that give way together.
const CHUNK: usize = 1 << 20;

/// What came from a CPU of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item<'a> {
    Record { cpu: u32, time: u64, id: u16, payload: &'a [u8] },
    Lost { cpu: u32, records: u64 },
    Rejected { cpu: u32, bytes: u64 },
}

/// The host kernel's records, encoded as layers store them.
struct HostSource {
    tracer: HostTracer,
    schemas: Arc<EventSchemas>,
    payload: Vec<u8>,
    /// Why reading stopped early, if it did.
    failed: Option<ReaderError>,
    /// Whether the rest was taken: there is nothing more to come.
    finished: bool,
    /// Whether that was told.
    is_told: bool,
    /// Whether the recorder's own thread was left out of what is traced.
    left_out: bool,
    /// What it says of the VM, while somebody asks for that.
    watch: Option<Box<HostWatch>>,
}

impl HostSource {
    fn new(tracer: HostTracer) -> Self {
        let schemas = Arc::clone(tracer.schemas());
        Self {
            schemas,
            tracer,
            payload: Vec::new(),
            failed: None,
            is_told: false,
            finished: false,
            left_out: false,
            watch: None,
        }
    }

    fn events(&self) -> Vec<EventDescription> {
        self.schemas.iter().map(|schema| schema.description.clone()).collect()
    }

    /// Takes what the kernel has recorded since; `true` if there may be more.
    fn poll(&mut self, sink: &mut dyn FnMut(Item<'_>)) -> bool {
        if self.failed.is_some() || self.finished {
            return false;
        }
        if !self.left_out {
            self.left_out = true;
            // Where it cannot be, the trace holds its own recording as well.
            let _ = self.tracer.leave_out_this_thread();
        }
        self.watch.take_if(|watch| watch.is_forgotten());
        let begun = self.watch.as_ref().map(|watch| watch.begin_poll());
        let more = self.take(sink, |tracer, sink| tracer.poll(sink)).unwrap_or(false);
        if let (Some(watch), Some(begun), false) = (&mut self.watch, begun, more) {
            watch.end_poll(begun);
        }
        more
    }

    /// What the host does for the vCPUs of `vm`, whose threads are known: since it was first asked for, which may be now.
    fn watch(&mut self, vm: &Vm, clock: &Clock, time: HostTime) -> Watched {
        self.watch.take_if(|watch| !watch.is_of(vm));
        let events = self.schemas.iter().map(|schema| &schema.description);
        self.watch.get_or_insert_with(|| Box::new(HostWatch::new(vm, clock, time, events))).ask()
    }

    /// Takes the rest and stops tracing.
    fn finish(&mut self, sink: &mut dyn FnMut(Item<'_>)) {
        self.finished = true;
        if self.failed.is_none() {
            self.take(sink, |tracer, sink| tracer.finish(sink));
        }
    }

    /// Runs `read` with `sink`. A read that fails ends the layer.
    fn take<T>(
        &mut self,
        sink: &mut dyn FnMut(Item<'_>),
        read: impl FnOnce(&mut HostTracer, &mut dyn FnMut(HostItem<'_>)) -> Result<T, ReaderError>,
    ) -> Option<T> {
        let Self { tracer, schemas, payload, failed, watch, .. } = self;
        let mut encode = |item: HostItem<'_>| match item {
            HostItem::Lost { cpu, count } => {
                let records = count.unwrap_or(1);
                if let Some(watch) = watch {
                    watch.add_lost(cpu, records);
                }
                sink(Item::Lost { cpu, records });
            }
            HostItem::Record(record) => {
                let (cpu, time, id) = (record.cpu, record.time, record.event_id);
                payload.clear();
                match schemas.get(id).map(|schema| schema.encode(record.payload, payload)) {
                    Some(Ok(())) => {
                        if let Some(watch) = watch {
                            watch.add(cpu, time, id, payload);
                        }
                        sink(Item::Record { cpu, time, id, payload });
                    }
                    _ => sink(Item::Rejected { cpu, bytes: record.payload.len() as u64 }),
                }
            }
        };
        match read(tracer, &mut encode) {
            Ok(value) => Some(value),
            Err(error) => {
                *failed = Some(error);
                None
            }
        }
    }

    /// What the layer does not have although it was asked for, but for its end.
    fn missing(&self) -> Vec<Missing> {
        let not_enabled = self.tracer.not_enabled().iter().map(|event| Missing {
            layer: LayerKind::HostKernel,
            reason: format!("{} could not be enabled: {}", event.event, event.error),
            fix: "leave it out of --events".into(),
        });
        not_enabled.collect()
    }

    /// What is missing since reading stopped early; once.
    fn tell_end(&mut self) -> Option<Missing> {
        let error = self.failed.as_ref().filter(|_| !self.is_told)?;
        self.is_told = true;
        Some(Missing {
            layer: LayerKind::HostKernel,
            reason: format!("the layer ends early: {error}"),
            fix: "see the host's kernel log; trace again".into(),
        })
    }
}

fn create(
    rotation: Option<&Rotation>,
    dir: &Path,
    manifest: &Manifest,
    events: &[EventDescription],
) -> Result<LayerWriter, WriteError> {
    let layer = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size: PACKET_SIZE };
    let mut writer = LayerWriter::create_within(rotation, dir, manifest, layer)?;
    writer.add_events(events)?;
    Ok(writer)
}

/// Writes `item`, unless writing has failed already.
fn write(writer: &mut LayerWriter, written: &mut Result<(), WriteError>, item: Item<'_>) {
    match item {
        _ if written.is_err() => {}
        Item::Record { cpu, time, id, payload } => *written = writer.record(cpu, time, id, payload),
        Item::Lost { cpu, records } => writer.add_lost(cpu, records),
        Item::Rejected { cpu, bytes } => writer.add_rejected(cpu, bytes),
    }
}

/// The layer, written as its records come.
pub struct HostLayer {
    source: HostSource,
    writer: LayerWriter,
    end: LayerEnd,
}

impl HostLayer {
    /// The layer of what `tracer` records, in the recording `dir`; it keeps within the size of `rotation`, if there is one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(
        rotation: Option<&Rotation>,
        dir: &Path,
        manifest: &Manifest,
        tracer: HostTracer,
    ) -> Result<Self, WriteError> {
        let source = HostSource::new(tracer);
        let writer = create(rotation, dir, manifest, &source.events())?;
        Ok(Self { source, writer, end: LayerEnd::default() })
    }

    /// Takes what the kernel has recorded since; `true` if there may be more. A layer that cannot be written ends.
    pub fn drain(&mut self) -> bool {
        if self.end.has_come() {
            return false;
        }
        let mut written = Ok(());
        let writer = &mut self.writer;
        let more = self.source.poll(&mut |item| write(writer, &mut written, item));
        self.end.take(written);
        more
    }

    /// Makes what was taken readable.
    pub fn flush(&mut self) {
        if !self.end.has_come() {
            self.end.take(self.writer.flush());
        }
    }

    /// Takes the rest and stops tracing; returns what the layer does not have, but for what [`tell_end`](Self::tell_end)
    /// tells.
    pub fn finish(&mut self) -> Vec<Missing> {
        let mut written = Ok(());
        let writer = &mut self.writer;
        let has_ended = self.end.has_come();
        self.source.finish(&mut |item| {
            if !has_ended {
                write(writer, &mut written, item);
            }
        });
        self.end.take(written);
        self.flush();
        if self.source.failed.is_some() || self.end.has_come() {
            self.writer.set_corrupt();
        }
        self.source.missing()
    }

    /// What is missing since the layer ended early, because it could not be read or written; once.
    pub fn tell_end(&mut self) -> Option<Missing> {
        self.end.tell(LayerKind::HostKernel).or_else(|| self.source.tell_end())
    }

    /// What the host does for the vCPUs of `vm`.
    pub fn watch(&mut self, vm: &Vm, clock: &Clock, time: HostTime) -> Watched {
        self.source.watch(vm, clock, time)
    }

    /// What `session.json` says about the layer.
    #[must_use]
    pub fn layer(&self) -> Layer {
        self.writer.layer()
    }
}

/// The layer's last records, in memory.
pub struct HostWindow {
    source: HostSource,
    window: Window,
}

impl HostWindow {
    /// A window of `limit` bytes onto what `tracer` records.
    #[must_use]
    pub fn new(tracer: HostTracer, limit: usize) -> Self {
        Self { source: HostSource::new(tracer), window: Window::new(limit) }
    }

    /// Takes what the kernel has recorded since, and shows it to `triggers`; `true` if there may be more.
    pub fn poll(&mut self, mut triggers: Option<&mut Triggers>) -> bool {
        let window = &mut self.window;
        self.source.poll(&mut |item| {
            if let (Some(triggers), Item::Record { cpu, time, id, payload }) = (&mut triggers, item) {
                triggers.host_record(cpu, time, id, payload);
            }
            window.push(item);
        })
    }

    /// The types of its events.
    #[must_use]
    pub fn events(&self) -> Vec<EventDescription> {
        self.source.events()
    }

    /// What the host does for the vCPUs of `vm`.
    pub fn watch(&mut self, vm: &Vm, clock: &Clock, time: HostTime) -> Watched {
        self.source.watch(vm, clock, time)
    }

    /// Takes the rest and stops tracing; returns what the layer does not have.
    pub fn finish(&mut self) -> Vec<Missing> {
        let window = &mut self.window;
        self.source.finish(&mut |item| window.push(item));
        self.source.missing()
    }

    /// What is missing since reading stopped early; once.
    pub fn tell_end(&mut self) -> Option<Missing> {
        self.source.tell_end()
    }

    /// Writes what the window holds as the layer of the recording `dir`; it stays in the window.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, dir: &Path, manifest: &Manifest) -> Result<Layer, WriteError> {
        let mut writer = create(None, dir, manifest, &self.source.events())?;
        self.window.write(&mut writer)?;
        if self.source.failed.is_some() {
            writer.set_corrupt();
        }
        Ok(writer.layer())
    }
}

/// Records up to a number of bytes, the oldest giving way in chunks.
#[derive(Debug)]
struct Window {
    limit: usize,
    bytes: usize,
    chunks: VecDeque<Chunk>,
    /// Records that gave way, by CPU.
    overwritten: BTreeMap<u32, u64>,
    /// What was lost and rejected before all that is left, by CPU.
    unrecorded: BTreeMap<u32, Unrecorded>,
}

#[derive(Debug, Default)]
struct Chunk {
    entries: Vec<Entry>,
    payloads: Vec<u8>,
    /// What is not among the entries, each with the number of entries of the chunk before it and its CPU.
    unrecorded: Vec<(usize, u32, Unrecorded)>,
}

/// What came from a CPU and could not be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unrecorded {
    /// Records.
    lost: u64,
    /// Bytes.
    rejected: u64,
}

impl Unrecorded {
    fn tell(self, cpu: u32, writer: &mut LayerWriter) {
        if self.lost > 0 {
            writer.add_lost(cpu, self.lost);
        }
        if self.rejected > 0 {
            writer.add_rejected(cpu, self.rejected);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    time: u64,
    cpu: u32,
    id: u16,
    /// A record of the kernel's is at most a page.
    size: u16,
}

impl Chunk {
    const fn bytes(&self) -> usize {
        self.payloads.len() + self.entries.len() * size_of::<Entry>() + size_of_val(self.unrecorded.as_slice())
    }
}

impl Window {
    const fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, chunks: VecDeque::new(), overwritten: BTreeMap::new(), unrecorded: BTreeMap::new() }
    }

    fn push(&mut self, item: Item<'_>) {
        match item {
            Item::Lost { cpu, records } => self.note(cpu, Unrecorded { lost: records, rejected: 0 }),
            Item::Rejected { cpu, bytes } => self.note(cpu, Unrecorded { lost: 0, rejected: bytes }),
            Item::Record { cpu, payload, time, id } => match u16::try_from(payload.len()) {
                Ok(size) => self.add(|chunk| {
                    chunk.entries.push(Entry { time, cpu, id, size });
                    chunk.payloads.extend_from_slice(payload);
                }),
                Err(_) => self.note(cpu, Unrecorded { lost: 0, rejected: payload.len() as u64 }),
            },
        }
    }

    /// Keeps in mind that something is missing here.
    fn note(&mut self, cpu: u32, unrecorded: Unrecorded) {
        self.add(|chunk| chunk.unrecorded.push((chunk.entries.len(), cpu, unrecorded)));
    }

    fn add(&mut self, add: impl FnOnce(&mut Chunk)) {
        if self.chunks.back().is_none_or(|chunk| chunk.bytes() >= CHUNK.min(self.limit / 4)) {
            self.chunks.push_back(Chunk::default());
        }
        let Some(chunk) = self.chunks.back_mut() else { return };
        let before = chunk.bytes();
        add(chunk);
        self.bytes += chunk.bytes() - before;
        while self.bytes > self.limit && self.chunks.len() > 1 {
            let Some(oldest) = self.chunks.pop_front() else { break };
            self.bytes -= oldest.bytes();
            for entry in &oldest.entries {
                *self.overwritten.entry(entry.cpu).or_default() += 1;
            }
            for &(_, cpu, Unrecorded { lost, rejected }) in &oldest.unrecorded {
                let total = self.unrecorded.entry(cpu).or_default();
                total.lost = total.lost.saturating_add(lost);
                total.rejected = total.rejected.saturating_add(rejected);
            }
        }
    }

    fn write(&self, writer: &mut LayerWriter) -> Result<(), WriteError> {
        for (&cpu, unrecorded) in &self.unrecorded {
            unrecorded.tell(cpu, writer);
        }
        for chunk in &self.chunks {
            let mut payloads = chunk.payloads.as_slice();
            let mut unrecorded = chunk.unrecorded.iter().peekable();
            for (index, entry) in chunk.entries.iter().enumerate() {
                while let Some(&(_, cpu, unrecorded)) = unrecorded.next_if(|&&(before, ..)| before <= index) {
                    unrecorded.tell(cpu, writer);
                }
                let (payload, rest) = payloads.split_at(usize::from(entry.size));
                payloads = rest;
                writer.record(entry.cpu, entry.time, entry.id, payload)?;
            }
            unrecorded.for_each(|&(_, cpu, unrecorded)| unrecorded.tell(cpu, writer));
        }
        for (&cpu, &records) in &self.overwritten {
            writer.set_overwritten(cpu, records);
        }
        writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracing::recorder::tests::manifest;
    use shared_ring::event::{FieldDescription, FieldType};
    use shared_ring::packet::read_header;

    fn record(time: u64) -> Item<'static> {
        Item::Record { cpu: 3, time, id: 1, payload: &[7; 100] }
    }

    fn times(window: &Window) -> Vec<u64> {
        window.chunks.iter().flat_map(|chunk| chunk.entries.iter().map(|entry| entry.time)).collect()
    }

    #[test]
    fn window_keeps_everything_up_to_its_limit() {
        let mut window = Window::new(10_000);

        (0..50).for_each(|time| window.push(record(time)));

        assert_eq!(times(&window), (0..50).collect::<Vec<_>>());
        assert!(window.overwritten.is_empty());
    }

    #[test]
    fn oldest_records_give_way_and_are_counted() {
        let mut window = Window::new(10_000);

        (0..1000).for_each(|time| window.push(record(time)));

        let kept = times(&window);
        assert!(window.bytes <= 10_000, "{} bytes", window.bytes);
        assert_eq!(kept.last(), Some(&999));
        assert_eq!(window.overwritten[&3], kept[0]);
        assert!(kept.len() >= 40, "{} records", kept.len());
    }

    /// What the window writes of CPU 3: the packets' first times and what they count.
    fn written(window: &Window) -> Vec<(u64, u64, u64)> {
        let dir = tempfile::TempDir::new().unwrap();
        let field = FieldDescription { name: "bytes".into(), ty: FieldType::CharArray(100), hex: false };
        let event = EventDescription { id: 1, class: 0, name: "test:event".into(), fields: vec![field] };
        let mut writer = create(None, dir.path(), &manifest(), &[event]).unwrap();
        window.write(&mut writer).unwrap();
        let bytes = std::fs::read(dir.path().join("host-kernel/stream_3")).unwrap();
        let headers = bytes.chunks(usize::try_from(PACKET_SIZE).unwrap()).map(|packet| read_header(packet).unwrap());
        headers.map(|header| (header.time_begin, header.lost_full, header.rejected_bytes)).collect()
    }

    #[test]
    fn loss_is_written_where_it_happened() {
        let mut window = Window::new(1 << 20);

        (10..15).for_each(|time| window.push(record(time)));
        window.push(Item::Lost { cpu: 3, records: 2 });
        (20..25).for_each(|time| window.push(record(time)));
        window.push(Item::Rejected { cpu: 3, bytes: 8 });
        window.push(record(30));

        assert_eq!(written(&window), [(10, 2, 0), (20, 2, 8), (30, 2, 8)]);
    }

    #[test]
    fn loss_that_gave_way_with_its_records_is_written_at_the_beginning() {
        let mut window = Window::new(10_000);

        window.push(record(1));
        window.push(Item::Lost { cpu: 3, records: 2 });
        (2..1000).for_each(|time| window.push(record(time)));

        let written = written(&window);
        assert_eq!((written.len(), written[0].1), (1, 2));
        assert!(written[0].0 > 900, "{written:?}");
    }
}
