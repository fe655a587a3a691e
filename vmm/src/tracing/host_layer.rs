//! The host kernel's layer: records, not rings. Written as they come ([`HostLayer`]), or kept in memory up to a limit, the
//! oldest giving way ([`HostWindow`]), to be written when a flight recorder is.

use super::written_layer::LayerEnd;
use crate::host_kernel::{EventSchemas, HostItem, HostTracer, ReaderError};
use shared_ring::event::EventDescription;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use trace_merge::manifest::{Layer, LayerKind, Manifest, Missing};
use trace_merge::writer::{LayerWriter, NewLayer, WriteError};

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
}

impl HostSource {
    fn new(tracer: HostTracer) -> Self {
        let schemas = Arc::clone(tracer.schemas());
        Self { schemas, tracer, payload: Vec::new(), failed: None, is_told: false, finished: false, left_out: false }
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
        self.take(sink, |tracer, sink| tracer.poll(sink)).unwrap_or(false)
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
        let Self { tracer, schemas, payload, failed, .. } = self;
        let mut encode = |item: HostItem<'_>| match item {
            HostItem::Lost { cpu, count } => sink(Item::Lost { cpu, records: count.unwrap_or(1) }),
            HostItem::Record(record) => {
                let (cpu, time, id) = (record.cpu, record.time, record.event_id);
                payload.clear();
                match schemas.get(id).map(|schema| schema.encode(record.payload, payload)) {
                    Some(Ok(())) => sink(Item::Record { cpu, time, id, payload }),
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

fn create(dir: &Path, manifest: &Manifest, events: &[EventDescription]) -> Result<LayerWriter, WriteError> {
    let layer = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size: PACKET_SIZE };
    let mut writer = LayerWriter::create(dir, manifest, layer)?;
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
    /// The layer of what `tracer` records, in the recording `dir`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(dir: &Path, manifest: &Manifest, tracer: HostTracer) -> Result<Self, WriteError> {
        let source = HostSource::new(tracer);
        let writer = create(dir, manifest, &source.events())?;
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
        self.source.missing()
    }

    /// What is missing since the layer ended early, because it could not be read or written; once.
    pub fn tell_end(&mut self) -> Option<Missing> {
        self.end.tell(LayerKind::HostKernel).or_else(|| self.source.tell_end())
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

    /// Takes what the kernel has recorded since; `true` if there may be more.
    pub fn poll(&mut self) -> bool {
        let window = &mut self.window;
        self.source.poll(&mut |item| window.push(item))
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
        let mut writer = create(dir, manifest, &self.source.events())?;
        self.window.write(&mut writer)?;
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
    lost: BTreeMap<u32, u64>,
    rejected: BTreeMap<u32, u64>,
}

#[derive(Debug, Default)]
struct Chunk {
    entries: Vec<Entry>,
    payloads: Vec<u8>,
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
        self.payloads.len() + self.entries.len() * size_of::<Entry>()
    }
}

impl Window {
    fn new(limit: usize) -> Self {
        let none = BTreeMap::new;
        Self { limit, bytes: 0, chunks: VecDeque::new(), overwritten: none(), lost: none(), rejected: none() }
    }

    fn push(&mut self, item: Item<'_>) {
        let add = |counts: &mut BTreeMap<u32, u64>, cpu, count| {
            let total: &mut u64 = counts.entry(cpu).or_default();
            *total = total.saturating_add(count);
        };
        match item {
            Item::Lost { cpu, records } => add(&mut self.lost, cpu, records),
            Item::Rejected { cpu, bytes } => add(&mut self.rejected, cpu, bytes),
            Item::Record { cpu, payload, time, id } => match u16::try_from(payload.len()) {
                Ok(size) => self.keep(Entry { time, cpu, id, size }, payload),
                Err(_) => add(&mut self.rejected, cpu, payload.len() as u64),
            },
        }
    }

    fn keep(&mut self, entry: Entry, payload: &[u8]) {
        if self.chunks.back().is_none_or(|chunk| chunk.bytes() >= CHUNK.min(self.limit / 4)) {
            self.chunks.push_back(Chunk::default());
        }
        let Some(chunk) = self.chunks.back_mut() else { return };
        let before = chunk.bytes();
        chunk.entries.push(entry);
        chunk.payloads.extend_from_slice(payload);
        self.bytes += chunk.bytes() - before;
        while self.bytes > self.limit && self.chunks.len() > 1 {
            let Some(oldest) = self.chunks.pop_front() else { break };
            self.bytes -= oldest.bytes();
            for entry in &oldest.entries {
                *self.overwritten.entry(entry.cpu).or_default() += 1;
            }
        }
    }

    fn write(&self, writer: &mut LayerWriter) -> Result<(), WriteError> {
        for (&cpu, &records) in &self.lost {
            writer.add_lost(cpu, records);
        }
        for (&cpu, &bytes) in &self.rejected {
            writer.add_rejected(cpu, bytes);
        }
        for chunk in &self.chunks {
            let mut payloads = chunk.payloads.as_slice();
            for entry in &chunk.entries {
                let (payload, rest) = payloads.split_at(usize::from(entry.size));
                payloads = rest;
                writer.record(entry.cpu, entry.time, entry.id, payload)?;
            }
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

    #[test]
    fn losses_are_totals() {
        let mut window = Window::new(10_000);

        window.push(Item::Lost { cpu: 0, records: 2 });
        window.push(Item::Lost { cpu: 0, records: 3 });
        window.push(Item::Rejected { cpu: 1, bytes: 8 });

        assert_eq!((window.lost[&0], window.rejected[&1]), (5, 8));
    }
}
