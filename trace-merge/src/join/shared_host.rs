//! One host-kernel layer of several, for VMs that ran on one host at the same time.
//!
//! Each run traces the host's kernel by itself, filtered to what concerns its VM, so that an event that concerns several
//! (one VM's thread giving way to another's) is in several recordings, each with the moment at which the kernel wrote it
//! into that recording's buffer. The kernel writes an event into one buffer after the other before the CPU goes on: so a
//! record is the same event as the one before it of its type on its CPU when the two come from different recordings, hold
//! the same, and are a moment apart at most. Such an event is kept once, with the earliest time; nothing else is left out.

use super::{JoinError, losses};
use crate::manifest::{Layer, LayerKind, Manifest};
use crate::reader::{Damage, StreamRecord, StreamRecords, TraceLayer};
use crate::writer::{LayerWriter, NewLayer};
use shared_ring::consumer::Lost;
use shared_ring::event::EventDescription;
use shared_ring::layout::EXTENDED_ID;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Most time between the kernel's writing an event into one buffer and into another, ns. On a processor of its own that is
/// less than a microsecond; a host that is a virtual machine itself may be stopped in between. The limit may be wide: two
/// events that hold the same concern the same threads, so that each run that has the one has the other too, unless it
/// began or ended in between.
const APART_NS: u64 = 100_000_000;

/// The layer that several became.
pub(super) struct SharedLayer {
    pub(super) layer: Layer,
    /// Records that were left out because they were there already.
    pub(super) duplicates: u64,
    pub(super) damage: Damage,
}

/// Writes one layer of `layers` into the recording `out`.
pub(super) fn copy(layers: &[&TraceLayer], out: &Path, manifest: &Manifest) -> Result<SharedLayer, JoinError> {
    let packet_size = layers.iter().map(|layer| layer.description.packet_size).max().unwrap_or_default();
    let new = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size };
    let mut writer = LayerWriter::create(out, manifest, new)?;
    let (events, ids) = union(layers);
    writer.add_events(&events)?;
    let cpus: BTreeSet<u32> =
        layers.iter().flat_map(|layer| layer.streams.iter().map(|stream| stream.description.cpu_id)).collect();
    let apart = manifest.clock.ns_to_ticks(APART_NS);
    let (mut duplicates, mut damage) = (0, Damage::default());
    for cpu in cpus {
        let mut streams = Streams::of_cpu(layers, &ids, cpu);
        let mut kept = Kept::new(apart);
        while let Some((number, record, id)) = streams.next() {
            if kept.has(number, &record, id) {
                duplicates += 1;
                continue;
            }
            if record.after_gap {
                let (lost, rejected) = streams.counts();
                writer.set_loss(cpu, lost, rejected, false);
                writer.add_lost(cpu, 0);
            }
            writer.record(cpu, record.time, id, record.payload)?;
        }
        let (lost, rejected) = streams.totals();
        writer.set_loss(cpu, lost, rejected, streams.any_corrupt());
        writer.set_overwritten(cpu, streams.overwritten());
        damage = damage.plus(&streams.damage());
    }
    writer.flush()?;
    Ok(SharedLayer { layer: writer.layer(), duplicates, damage })
}

/// The event types of all of `layers`, and for each layer the ids that its own get. They keep their ids where they can:
/// since one boot, the kernel's numbers mean the same, but for modules that were loaded again.
fn union(layers: &[&TraceLayer]) -> (Vec<EventDescription>, Vec<BTreeMap<u16, u16>>) {
    let mut events: BTreeMap<u16, EventDescription> = BTreeMap::new();
    let mut ids = Vec::new();
    for layer in layers {
        let mut of_layer = BTreeMap::new();
        for event in layer.schemas.iter().map(|schema| schema.description()) {
            let same = |other: &EventDescription| EventDescription { id: event.id, ..other.clone() } == *event;
            let found = events.values().find(|other| same(other)).map(|other| other.id);
            let free = || std::iter::once(event.id).chain((1..EXTENDED_ID).rev()).find(|id| !events.contains_key(id));
            // There are fewer event types than ids.
            let Some(id) = found.or_else(free) else { continue };
            events.entry(id).or_insert_with(|| EventDescription { id, ..event.clone() });
            of_layer.insert(event.id, id);
        }
        ids.push(of_layer);
    }
    (events.into_values().collect(), ids)
}

/// The records of one CPU in several layers, in the order of their times.
struct Streams<'t> {
    streams: Vec<OneStream<'t>>,
}

struct OneStream<'t> {
    /// Index of the layer.
    number: usize,
    stream: &'t crate::reader::Stream,
    ids: &'t BTreeMap<u16, u16>,
    records: StreamRecords<'t>,
    next: Option<StreamRecord<'t>>,
}

impl<'t> Streams<'t> {
    fn of_cpu(layers: &[&'t TraceLayer], ids: &'t [BTreeMap<u16, u16>], cpu: u32) -> Self {
        let of_layer = layers.iter().zip(ids).enumerate().flat_map(|(number, (layer, ids))| {
            let of_cpu = layer.streams.iter().filter(move |stream| stream.description.cpu_id == cpu);
            of_cpu.map(move |stream| {
                let mut records = layer.records(stream);
                let next = records.next();
                OneStream { number, stream, ids, records, next }
            })
        });
        Self { streams: of_layer.collect() }
    }

    /// The next record, with its layer's number and the id that its event type has in the result.
    fn next(&mut self) -> Option<(usize, StreamRecord<'t>, u16)> {
        loop {
            let waiting = self.streams.iter_mut().filter(|stream| stream.next.is_some());
            let stream = waiting.min_by_key(|stream| stream.next.map(|record| record.time))?;
            let record = stream.next.take()?;
            stream.next = stream.records.next();
            if let Some(&id) = stream.ids.get(&record.schema.description().id) {
                return Some((stream.number, record, id));
            }
        }
    }

    /// What was lost and rejected up to the packets that are being read.
    fn counts(&self) -> (Lost, u64) {
        let counts = self.streams.iter().map(|stream| (stream.records.counts(), stream.records.unread_bytes()));
        counts.fold((Lost::default(), 0), |(lost, rejected), (counted, unread)| {
            let rejected = [rejected, counted.rejected_bytes, unread].into_iter().fold(0, u64::saturating_add);
            ([lost, counted.lost].into_iter().sum(), rejected)
        })
    }

    /// What was lost and rejected in all.
    fn totals(&self) -> (Lost, u64) {
        let all = self.streams.iter().map(|stream| losses(stream.stream, &stream.records));
        all.fold((Lost::default(), 0), |(lost, rejected), (of_stream, bytes)| {
            ([lost, of_stream].into_iter().sum(), u64::saturating_add(rejected, bytes))
        })
    }

    fn any_corrupt(&self) -> bool {
        self.streams.iter().any(|stream| stream.stream.description.corrupt)
    }

    fn overwritten(&self) -> u64 {
        self.streams.iter().map(|stream| stream.stream.description.overwritten).sum()
    }

    fn damage(&self) -> Damage {
        self.streams.iter().fold(Damage::default(), |sum, stream| sum.plus(&stream.records.damage()))
    }
}

/// The records of one CPU that were kept last, one of each event type.
struct Kept<'t> {
    apart: u64,
    by_id: BTreeMap<u16, KeptRecord<'t>>,
}

struct KeptRecord<'t> {
    time: u64,
    payload: &'t [u8],
    /// The layers that it was found in.
    layers: Vec<usize>,
}

impl<'t> Kept<'t> {
    const fn new(apart: u64) -> Self {
        Self { apart, by_id: BTreeMap::new() }
    }

    /// Whether `record` of the layer `number`, whose event type is `id` in the result, was kept already. If not, it is
    /// from now on.
    fn has(&mut self, number: usize, record: &StreamRecord<'t>, id: u16) -> bool {
        let (time, payload) = (record.time, record.payload);
        if let Some(last) = self.by_id.get_mut(&id) {
            let is_same = !last.layers.contains(&number)
                && last.payload == payload
                && time.saturating_sub(last.time) <= self.apart;
            if is_same {
                last.layers.push(number);
                return true;
            }
        }
        self.by_id.insert(id, KeptRecord { time, payload, layers: vec![number] });
        false
    }
}
