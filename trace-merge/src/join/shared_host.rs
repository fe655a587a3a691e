//! One host-kernel layer of several, for VMs that ran on one host at the same time.
//!
//! Each run traces the host's kernel by itself, filtered to what concerns its VM, so that an event that concerns several
//! (one VM's thread giving way to another's) is in several recordings, each with the moment at which the kernel wrote it
//! into that recording's buffer. The kernel writes an event into one buffer after the other before the CPU goes on: so a
//! record is the same event as the one before it of its type on its CPU when the two come from different recordings, hold
//! the same, and are a moment apart at most. Such an event is kept once, with the earliest time; nothing else is left out.

use super::JoinError;
use crate::layer_copy::{Gaps, copy_symbols};
use shared_ring::event::EventDescription;
use shared_ring::layout::EXTENDED_ID;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Manifest};
use strata_recording::reader::merge::{Merge, MergedRecord, Step};
use strata_recording::reader::{Damage, Stream, StreamRecord, TraceLayer};
use strata_recording::writer::{LayerWriter, NewLayer};

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

/// Writes one layer of `layers` into the recording `out`; `is_one_recording` tells of two of them whether they are of
/// parts of one recording.
pub(super) fn copy(
    layers: &[&TraceLayer],
    is_one_recording: &dyn Fn(&TraceLayer, &TraceLayer) -> bool,
    out: &Path,
    manifest: &Manifest,
) -> Result<SharedLayer, JoinError> {
    let packet_size = layers.iter().map(|layer| layer.description.packet_size).max().unwrap_or_default();
    let new = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size };
    let mut writer = LayerWriter::create(out, manifest, new)?;
    let (events, ids) = union(layers);
    writer.add_events(&events)?;
    let cpus: BTreeSet<u32> =
        layers.iter().flat_map(|layer| layer.streams.iter().map(|stream| stream.description.cpu_id)).collect();
    let apart = manifest.clock.ns_to_ticks(APART_NS);
    let (mut duplicates, mut damage) = (0, Damage::default());
    for &cpu in &cpus {
        let is_of_cpu = |stream: &Stream| stream.description.cpu_id == cpu;
        let mut merge = Merge::of_streams(layers.iter().copied(), is_of_cpu, 0, u64::MAX);
        let numbers: Vec<usize> = merge.streams().map(|(layer, _)| number_of(layers, layer)).collect();
        let ends_before: Vec<Option<u64>> =
            merge.streams().map(|(layer, stream)| end_before(layers, layer, stream, is_one_recording)).collect();
        // Sources whose beginning is missing, and up to when earlier parts have it.
        let mut before_part: Vec<(usize, u64)> = Vec::new();
        let (mut kept, mut gaps) = (Kept::new(apart), Gaps::new(cpu));
        while let Some(step) = merge.next_step() {
            match step {
                Step::Record(MergedRecord { record, source, .. }) => {
                    let number = numbers[source];
                    let Some(&id) = ids[number].get(&record.schema.description().id) else { continue };
                    if kept.has(number, &record, id) {
                        duplicates += 1;
                        continue;
                    }
                    for (between, _) in before_part.extract_if(.., |(_, end)| *end < record.time) {
                        gaps.begin(&mut writer, &merge, between)?;
                    }
                    gaps.pass_record(&mut writer)?;
                    writer.record(cpu, record.time, id, record.payload)?;
                }
                Step::GapBegin { source, time } => match ends_before[source] {
                    // All that may be missing lies between the parts.
                    Some(end) if time == 0 => before_part.push((source, end)),
                    _ => gaps.begin(&mut writer, &merge, source)?,
                },
                Step::GapEnd { source, time } => {
                    if let Some(place) = before_part.iter().position(|&(of, _)| of == source) {
                        before_part.swap_remove(place);
                        gaps.begin(&mut writer, &merge, source)?;
                    }
                    gaps.end(&mut writer, &merge, time)?;
                }
            }
        }
        gaps.finish(&mut writer, &merge)?;
        let beginnings = merge.streams().zip(&ends_before).filter(|(_, end_before)| end_before.is_none());
        writer.set_overwritten(cpu, beginnings.map(|((_, stream), _)| stream.begins_late_by()).sum());
        damage = damage.plus(&merge.damage());
    }
    writer.flush()?;
    let last: Vec<&TraceLayer> =
        layers.iter().copied().filter(|layer| !is_continued(layers, layer, is_one_recording)).collect();
    for cpu in cpus {
        if let Some(until) = complete_until(&last, cpu) {
            writer.set_complete_until(cpu, until);
        }
    }
    let mut layer = writer.layer();
    for names in layers.iter().flat_map(|of| &of.description.flag_names) {
        if !layer.flag_names.contains(names) {
            layer.flag_names.push(names.clone());
        }
    }
    // One boot has one kernel.
    if let Some(with_symbols) = layers.iter().find(|layer| layer.kallsyms().is_some()) {
        copy_symbols(with_symbols, out, &layer.path)?;
    }
    let has_ended = last.iter().all(|layer| layer.has_ended());
    layer.ended = Some(has_ended).filter(|&has_ended| has_ended != manifest.has_ended(&layer));
    Ok(SharedLayer { layer, duplicates, damage })
}

/// Up to when others of `layers`, of earlier parts of its recording, have what `stream` of `layer` may lack at its
/// beginning, ticks; `None` where there is no earlier part.
fn end_before(
    layers: &[&TraceLayer],
    layer: &TraceLayer,
    stream: &Stream,
    is_one_recording: &dyn Fn(&TraceLayer, &TraceLayer) -> bool,
) -> Option<u64> {
    let begin = begin_of(layer, stream)?;
    let parts = layers.iter().filter(|other| !std::ptr::eq(**other, layer) && is_one_recording(other, layer));
    let streams = parts.flat_map(|layer| layer.streams.iter().map(move |stream| (*layer, stream)));
    let earlier = streams.filter(|(layer, other)| {
        other.description.cpu_id == stream.description.cpu_id
            && begin_of(layer, other).is_some_and(|earlier| earlier < begin)
    });
    earlier.map(|(_, other)| end_of(other)).max()
}

/// Up to when `stream` is there, ticks.
fn end_of(stream: &Stream) -> u64 {
    let last = || (0..stream.packets()).rev().find_map(|index| stream.header(index));
    stream.complete_until().unwrap_or_else(|| last().map_or(0, |last| last.time_end))
}

/// Whether another one of `layers`, of a part of its recording that begins behind it, goes on with all streams of
/// `layer`: how that one ends counts.
fn is_continued(
    layers: &[&TraceLayer],
    layer: &TraceLayer,
    is_one_recording: &dyn Fn(&TraceLayer, &TraceLayer) -> bool,
) -> bool {
    let begin = |layer: &TraceLayer| layer.streams.iter().filter_map(|stream| begin_of(layer, stream)).min();
    let cpus = |layer: &TraceLayer| -> BTreeSet<u32> {
        layer.streams.iter().map(|stream| stream.description.cpu_id).collect()
    };
    let end = layer.streams.iter().map(end_of).max();
    let goes_on = |other: &TraceLayer| begin(other) > end && cpus(other).is_superset(&cpus(layer));
    layers.iter().any(|other| is_one_recording(other, layer) && goes_on(other))
}

/// When the first record of `stream` of `layer` was made, ticks.
fn begin_of(layer: &TraceLayer, stream: &Stream) -> Option<u64> {
    layer.records(stream).next().map(|record| record.time)
}

/// Up to when the streams of `cpu` are complete of all those `layers` that go on, ticks, if that is known of each.
fn complete_until(layers: &[&TraceLayer], cpu: u32) -> Option<u64> {
    let of = |layer: &&TraceLayer| {
        let stream = layer.streams.iter().find(|stream| stream.description.cpu_id == cpu)?;
        stream.complete_until().filter(|&until| until > 0)
    };
    layers.iter().filter(|layer| !layer.has_ended()).map(of).min().flatten()
}

/// The event types of all of `layers`, and for each layer the ids that its own get. They keep their ids where they can:
/// since one boot, the kernel's numbers mean the same, but for modules that were loaded again.
fn union(layers: &[&TraceLayer]) -> (Vec<EventDescription>, Vec<BTreeMap<u16, u16>>) {
    let mut events: BTreeMap<u16, EventDescription> = BTreeMap::new();
    let mut ids = Vec::new();
    for layer in layers {
        let mut of_layer = BTreeMap::new();
        for event in layer.schemas.iter().map(|schema| schema.description()) {
            let same = |other: &EventDescription| {
                (other.class, &other.name, &other.fields) == (event.class, &event.name, &event.fields)
            };
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

/// Number of `layer` among `layers`, which hold it.
fn number_of(layers: &[&TraceLayer], layer: &TraceLayer) -> usize {
    layers.iter().position(|other| std::ptr::eq(*other, layer)).unwrap_or(0)
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
