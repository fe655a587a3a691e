//! Copying a layer, whole or a part of it, into another recording: its records with the gaps between them, and no others.

use shared_ring::consumer::Lost;
use std::ops::RangeInclusive;
use std::path::Path;
use strata_recording::clock_snapshots::{self, ClockSnapshot};
use strata_recording::files::CLOCKS_FILE;
use strata_recording::files::access::Readers;
use strata_recording::files::kallsyms;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Manifest};
use strata_recording::reader::merge::{Merge, MergedRecord, Step};
use strata_recording::reader::{Damage, Stream, TraceLayer};
use strata_recording::writer::{LayerWriter, NewLayer, WriteError};

/// Where a copy goes, and what is copied.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    /// The recording's folder.
    pub(crate) out: &'a Path,
    /// What describes the recording.
    pub(crate) manifest: &'a Manifest,
    /// Folder in it for the layer's own; empty where that lies where it lay.
    pub(crate) folder: &'a str,
    /// What its VM is called there.
    pub(crate) vm: Option<String>,
    /// The host that it is of, when that is not the recording's.
    pub(crate) host: Option<String>,
    /// Only records of these times, ticks.
    pub(crate) times: RangeInclusive<u64>,
}

/// Copies `layer` to `target`, with the times of its records mapped.
///
/// Of a part, a stream begins late where it has records before, and is complete up to the part's end where nothing was
/// lost. Loss is counted from the part's beginning on.
pub(crate) fn copy(
    layer: &TraceLayer,
    target: &Target<'_>,
    map: impl Fn(u64) -> u64,
) -> Result<(Layer, Damage), WriteError> {
    let description = &layer.description;
    let new = NewLayer {
        kind: description.kind,
        vm: target.vm.clone(),
        process: description.process.clone(),
        packet_size: description.packet_size,
    };
    let folder = [target.folder, folder_of(description)];
    let folder = folder.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    let made = Readers::of(target.out).and_then(|readers| readers.create_folders(target.out, Path::new(&folder)));
    let dir = made.map_err(|source| WriteError::Create { path: target.out.join(&folder), source })?;
    let mut writer = LayerWriter::create(&dir, target.manifest, new)?;
    writer.add_events(&description.events)?;
    let mut damage = Damage::default();
    for stream in &layer.streams {
        damage = damage.plus(&copy_stream(layer, stream, &target.times, &mut writer, &map)?);
    }
    writer.flush()?;
    let to = *target.times.end();
    let is_whole = layer.streams.iter().all(|stream| is_at_end(stream, to));
    let has_ended = layer.has_ended() && is_whole;
    for stream in &layer.streams {
        let until = stream.complete_until().or_else(|| (!has_ended).then_some(to));
        if let Some(until) = until.map(|until| until.min(to)).filter(|&until| until > 0) {
            writer.set_complete_until(stream.description.cpu_id, map(until));
        }
    }
    let mut copied = writer.layer();
    copied.ended = Some(has_ended).filter(|&has_ended| has_ended != target.manifest.has_ended(&copied));
    copied.another_kernel = description.another_kernel && is_whole;
    copied.host.clone_from(&target.host);
    copied.flag_names.clone_from(&description.flag_names);
    copied.limit = description.limit.filter(|_| is_whole && is_from_the_beginning(layer, &target.times));
    if !folder.is_empty() {
        copied.path = format!("{folder}/{}", copied.path);
    }
    copy_symbols(layer, target.out, &copied.path)?;
    Ok((copied, damage))
}

/// Writes `clocks` beside the `session.json` in `out`.
pub(crate) fn write_clocks(clocks: &[ClockSnapshot], out: &Path) -> Result<(), WriteError> {
    clock_snapshots::write(clocks, out).map_err(|source| WriteError::Write { path: out.join(CLOCKS_FILE), source })
}

/// Copies the symbols of the kernel of `layer`, if there are any, beside its copy at `path` of the recording in `out`.
pub(crate) fn copy_symbols(layer: &TraceLayer, out: &Path, path: &str) -> Result<(), WriteError> {
    let Some(symbols) = layer.kallsyms() else { return Ok(()) };
    let failed = |source| WriteError::Write { path: out.join(kallsyms::file_of(path)), source };
    kallsyms::write(out, path, &symbols, &mut || {}).map_err(failed)
}

/// Copies the records of `times` of `stream`, which is one of `layer`'s.
fn copy_stream(
    layer: &TraceLayer,
    stream: &Stream,
    times: &RangeInclusive<u64>,
    writer: &mut LayerWriter,
    map: impl Fn(u64) -> u64,
) -> Result<Damage, WriteError> {
    let cpu = stream.description.cpu_id;
    let (&from, &to) = (times.start(), times.end());
    let mut merge = Merge::of_streams([layer], |other| std::ptr::eq(other, stream), from, to);
    let left_out = left_out_before(layer, stream, from);
    let mut gaps = Gaps { is_to_end: is_at_end(stream, to), ..Gaps::new(cpu) };
    if left_out > 0 {
        gaps.before = counted_before(&merge, layer, stream, times);
    }
    while let Some(step) = merge.next_step() {
        match step {
            Step::Record(MergedRecord { record, .. }) => {
                gaps.pass_record(writer)?;
                writer.record(cpu, map(record.time), record.schema.description().id, record.payload)?;
            }
            Step::GapBegin { source, .. } => gaps.begin(writer, &merge, source)?,
            Step::GapEnd { time, .. } => gaps.end(writer, &merge, map(time))?,
        }
    }
    gaps.finish(writer, &merge)?;
    writer.set_overwritten(cpu, stream.begins_late_by().saturating_add(left_out));
    // Who counted these did not say when they were.
    let is_counted = left_out == 0 && gaps.is_to_end;
    writer.set_nested(cpu, stream.description.nested.filter(|_| is_counted));
    writer.set_largest_lost(cpu, stream.description.largest_lost.clone().filter(|_| is_counted));
    if stream.description.never_joined {
        writer.set_never_joined(cpu);
    }
    Ok(merge.damage())
}

/// How many packets of `stream` a part from `from` on leaves out, at least in part.
fn left_out_before(layer: &TraceLayer, stream: &Stream, from: u64) -> u64 {
    let is_later = layer.records(stream).next().is_none_or(|first| first.time >= from);
    if is_later { 0 } else { (stream.packets_within(from, u64::MAX).start as u64).max(1) }
}

/// What was lost and rejected before the part `times` of `stream`: up to the first record of that, which is all that `merge`
/// has read, or up to the packet before, where some were lost in between.
fn counted_before(merge: &Merge<'_>, layer: &TraceLayer, stream: &Stream, times: &RangeInclusive<u64>) -> (Lost, u64) {
    let (&from, &to) = (times.start(), times.end());
    let packets_before = match layer.records(stream).within(from, to).next() {
        Some(first) if !first.after_gap => return counted(merge),
        Some(first) => first.packet,
        None => stream.packets_within(from, to).start,
    };
    let last = (0..packets_before).rev().find_map(|index| stream.header(index));
    last.map_or((NONE, 0), |header| {
        let lost = Lost { full: header.lost_full, wrapped: header.lost_wrapped, too_large: header.lost_too_large };
        (lost, header.rejected_bytes)
    })
}

/// What was lost and rejected of the sources of `merge`, as the packets say that were read so far.
fn counted(merge: &Merge<'_>) -> (Lost, u64) {
    sum(merge.sources().map(|(_, _, records)| {
        let counts = records.counts();
        (counts.lost, counts.rejected_bytes.saturating_add(records.unread_bytes()))
    }))
}

/// Whether `stream` has no packet that goes on behind `to`.
fn is_at_end(stream: &Stream, to: u64) -> bool {
    let last = (0..stream.packets()).rev().find_map(|index| stream.header(index));
    last.is_none_or(|last| last.time_end <= to)
}

/// Whether no record of `layer` lies before `times`.
fn is_from_the_beginning(layer: &TraceLayer, times: &RangeInclusive<u64>) -> bool {
    let first = |stream: &Stream| (0..stream.packets()).find_map(|index| stream.header(index));
    layer.streams.iter().all(|stream| first(stream).is_none_or(|first| first.time_begin >= *times.start()))
}

/// The folder that `layer` lies in, when that is not the recording's own: layers of other hosts have one.
fn folder_of(layer: &Layer) -> &str {
    let own = match layer.kind {
        LayerKind::HostKernel => 1,
        LayerKind::Vmm | LayerKind::GuestKernel => 2,
        LayerKind::GuestUser => 3,
    };
    let mut slashes = layer.path.rmatch_indices('/').map(|(at, _)| at);
    slashes.nth(own - 1).map_or("", |at| &layer.path[..at])
}

/// The gaps of a stream that is written from a merge of others: it is in one while any of them is.
pub(crate) struct Gaps {
    cpu: u32,
    /// Sources that are in a gap.
    open: usize,
    /// Sources that went on where they end: they are in a gap for the records of others.
    went_on: usize,
    /// Whether a record was written.
    has_records: bool,
    /// What was lost and rejected before what is copied.
    before: (Lost, u64),
    /// Whether the sources are copied up to their end.
    is_to_end: bool,
}

impl Gaps {
    pub(crate) const fn new(cpu: u32) -> Self {
        Self { cpu, open: 0, went_on: 0, has_records: false, before: (NONE, 0), is_to_end: true }
    }

    pub(crate) fn begin(
        &mut self,
        writer: &mut LayerWriter,
        merge: &Merge<'_>,
        source: usize,
    ) -> Result<(), WriteError> {
        if merge.sources().nth(source).is_some_and(|(.., records)| records.goes_on_from().is_some()) {
            self.went_on += 1;
            return Ok(());
        }
        self.add(1, writer)
    }

    /// A record follows.
    pub(crate) fn pass_record(&mut self, writer: &mut LayerWriter) -> Result<(), WriteError> {
        self.has_records = true;
        match std::mem::take(&mut self.went_on) {
            0 => Ok(()),
            went_on => self.add(went_on, writer),
        }
    }

    fn add(&mut self, sources: usize, writer: &mut LayerWriter) -> Result<(), WriteError> {
        let before = self.open;
        self.open += sources;
        if before == 0 { writer.begin_gap(self.cpu) } else { Ok(()) }
    }

    /// Ends the gap of one source at `time`. If that was the last one, what was lost and rejected up to here stands in
    /// the packets of the gap.
    pub(crate) fn end(&mut self, writer: &mut LayerWriter, merge: &Merge<'_>, time: u64) -> Result<(), WriteError> {
        self.open = self.open.saturating_sub(1);
        if self.open > 0 {
            return Ok(());
        }
        let (lost, rejected) = self.since(counted(merge));
        writer.set_loss(self.cpu, lost, rejected, false);
        writer.end_gap(self.cpu, Some(time))
    }

    /// What of `counts` was not before.
    const fn since(&self, counts: (Lost, u64)) -> (Lost, u64) {
        let (lost, before) = (counts.0, self.before.0);
        let lost = Lost {
            full: lost.full.saturating_sub(before.full),
            wrapped: lost.wrapped.saturating_sub(before.wrapped),
            too_large: lost.too_large.saturating_sub(before.too_large),
        };
        (lost, counts.1.saturating_sub(self.before.1))
    }

    /// Takes over the totals of a merge that is at its end. What is damaged counts as rejected: there is nothing else
    /// in a copy that could tell of it.
    pub(crate) fn finish(&mut self, writer: &mut LayerWriter, merge: &Merge<'_>) -> Result<(), WriteError> {
        let totals = merge
            .sources()
            .map(|(_, _, records)| (records.lost(), records.rejected_bytes().saturating_add(records.unread_bytes())));
        let (lost, rejected) = match (self.is_to_end, self.open) {
            (true, _) => self.since(sum(totals)),
            (false, 1..) => self.since(counted(merge)),
            // What its last packet counts was before, or is behind.
            (false, 0) => return Ok(()),
        };
        let any = |is: fn(&Stream) -> bool| merge.streams().any(|(_, stream)| is(stream));
        // Of a stream that lost everything the counts tell, and there is no packet. All that is known of one whose
        // packets are all gone is that it ended early.
        let is_empty_for_a_reason =
            self.is_to_end && any(|stream| stream.begins_late() || stream.description.never_joined);
        let is_reported = self.has_records || lost.total() > 0 || rejected > 0 || is_empty_for_a_reason;
        let is_corrupt = self.is_to_end && any(|stream| stream.description.corrupt) || self.open > 0 && !is_reported;
        writer.set_loss(self.cpu, lost, rejected, is_corrupt);
        if self.open > 0 && self.has_records { writer.end_gap(self.cpu, None) } else { Ok(()) }
    }
}

/// No records.
const NONE: Lost = Lost { full: 0, wrapped: 0, too_large: 0 };

/// Sums of records lost and of bytes rejected.
fn sum(counts: impl Iterator<Item = (Lost, u64)>) -> (Lost, u64) {
    counts.fold((Lost::default(), 0), |(lost, rejected), (more, bytes)| {
        (lost.plus(&more), rejected.saturating_add(bytes))
    })
}
