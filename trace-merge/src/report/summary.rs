//! The summary of a recording: what each layer holds and lost, why and for how long vCPUs were out of the guest, what
//! the clock is worth, what is missing, and what recording cost.

pub mod cost;

use super::description::{Description, Requested};
use super::kernels::exits::{Crossing, is_crossing};
use super::rows::columns::{self, Column, ReportRow, Unit, Value, column};
use super::rows::table::{Align, Table};
use super::statistics::distribution::DurationSum;
use super::{Report, ReportBuilder, ReportError, Window, duration, seconds};
use crate::report::sink::Sink;
use cost::{CostBuilder, RecordingCost, RecordsCost, write_cost};
use foldhash::HashMap;
use serde::Serialize;
use serde_json::json;
use shared_ring::consumer::Lost;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::exit_reason::{ExitNumbering, ExitReason};
use strata_analysis::timeline::{Change, ChangeKind, Input, Timeline};
use strata_analysis::vcpu::SwitchSource;
use strata_analysis::{Analysis, Gap, Passed};
use strata_recording::clock::{Clock, rfc3339};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Missing, Process, RecordLimit, Throttled, Vm};
use strata_recording::reader::totals::Totals;
use strata_recording::reader::{Stream, Trace};
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "summary",
    about: "Layers, losses, exits by reason, the clock and its error bound",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[
        columns::rows::<LayerReport>("layers[]"),
        columns::rows::<ReasonReport>("exits[].reasons[]"),
        columns::rows::<RecordsCost>("cost.records[]"),
    ],
    begin: |_, window, _| Ok(Box::new(SummaryBuilder::new(window))),
};

/// The summary of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Version of Strata that recorded.
    pub strata: String,
    /// When the recording began, RFC 3339.
    pub started: String,
    /// UTC of the first record, RFC 3339.
    pub first_utc: String,
    /// How it ended.
    pub outcome: String,
    /// From the first record to the last, ns.
    pub duration_ns: u64,
    /// The machine that recorded.
    pub host: strata_recording::manifest::Host,
    /// The virtual machines.
    pub vms: Vec<Vm>,
    /// The clock of all layers.
    pub clock: Clock,
    /// How wrong its UTC was at most where the host's clock was read.
    pub utc_bound_ns: u64,
    #[serde(serialize_with = "columns::serialize")]
    pub layers: Vec<LayerReport>,
    /// The size that the recording keeps within, bytes, if it does.
    #[serde(rename = "max_size_bytes", skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u64>,
    /// The exits of each VM whose exits are known.
    pub exits: Vec<ExitReport>,
    /// The layers that are missing, and why.
    pub missing: Vec<Missing>,
    /// What recording cost.
    pub cost: RecordingCost,
}

/// What a layer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerReport {
    /// Kind.
    pub layer: LayerKind,
    /// Folder.
    pub path: String,
    /// The process, for a user layer.
    pub process: Option<Process>,
    /// Number of streams.
    pub streams: usize,
    /// What they hold.
    pub totals: Totals,
    /// Everything that is not there, in one line.
    pub incomplete: Option<String>,
    /// Whether a stream begins later than what it records did: its beginning was overwritten in flight-recorder mode,
    /// or written elsewhere before this was recovered.
    pub begins_late: bool,
    /// Where the beginning was dropped to keep the recording within its size: from when on all streams are there, ns
    /// after the first record of the recording.
    pub dropped_until_ns: Option<u64>,
    /// The limit of its records, if it had one, and how often it met that.
    pub limit: Option<RecordLimit>,
}

impl ReportRow for LayerReport {
    const COLUMNS: &'static [Column<Self>] = &[
        column("layer", "", Unit::Text, "Its kind", |row| row.layer.name().into()),
        column("path", "layer", Unit::Text, "Its folder", |row| (&row.path).into()),
        column("process", "", Unit::Object, "The process: `pid`, `comm`", |row| {
            row.process.as_ref().map_or(Value::None, Value::json)
        }),
        column("events", "records", Unit::Count, "Its records", |row| row.totals.events.into()),
        column("bytes", "bytes", Unit::Bytes, "Their size", |row| row.totals.bytes.into()),
        column("streams", "streams", Unit::Count, "Its streams", |row| row.streams.into()),
        column("packets", "", Unit::Count, "Packets of them", |row| row.totals.packets.into()),
        column("", "lost", Unit::Count, "Records lost", |row| row.totals.lost.total().into()),
        column("lost", "", Unit::Object, "The same by reason", |row| Value::json(&row.totals.lost)),
        column("rejected_bytes", "", Unit::Bytes, "What the host refused", |row| row.totals.rejected_bytes.into()),
        column("corrupt_streams", "", Unit::Count, "Streams whose ring was damaged", |row| {
            row.totals.corrupt_streams.into()
        }),
        column("absent_streams", "", Unit::Count, "Streams whose file is missing", |row| {
            row.totals.absent_streams.into()
        }),
        column("damage", "", Unit::Object, "What cannot be read", |row| Value::json(&row.totals.damage)),
        column("first_ticks", "", Unit::Ticks, "Its first record", |row| row.totals.first.into()),
        column("last_ticks", "", Unit::Ticks, "Its last record", |row| row.totals.last.into()),
        column("incomplete", "", Unit::Text, "All that is missing, in words", |row| row.incomplete.as_ref().into()),
        column("begins_late", "", Unit::Flag, "Whether a beginning was overwritten", |row| row.begins_late.into()),
        column("dropped_until_ns", "", Unit::Ns, "Since when all streams are there, under `--max-size`", |row| {
            Value::or_absent(row.dropped_until_ns)
        }),
        column("limit", "", Unit::Object, "Its `--limit`, and how often it was met", |row| {
            Value::or_absent(row.limit.as_ref().map(Value::json))
        }),
    ];
}

/// Why and for how long the vCPUs of a VM were out of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExitReport {
    /// Name of the VM.
    pub vm: String,
    /// The layer that tells.
    pub source: SwitchSource,
    /// All exits.
    pub count: u64,
    /// By reason, the one that took longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub reasons: Vec<ReasonReport>,
}

/// The exits for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonReport {
    pub reason: String,
    /// Number, as the processor or KVM gives it.
    pub number: u32,
    /// Who gives it.
    pub numbering: ExitNumbering,
    /// Number of exits.
    pub count: u64,
    /// Time until the vCPU was in the guest again, all exits together, ns.
    pub total_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
}

impl ReportRow for ReasonReport {
    const COLUMNS: &'static [Column<Self>] = &[
        column("reason", "reason", Unit::Text, "Name of the reason", |row| (&row.reason).into()),
        column("number", "", Unit::Number, "Its number", |row| row.number.into()),
        column("numbering", "", Unit::Text, "Whose: vmx, svm, kvm", |row| Value::json(&row.numbering)),
        column("count", "count", Unit::Count, "How many", |row| row.count.into()),
        column("total_ns", "total", Unit::Ns, "Until in the guest again", |row| row.total_ns.into()),
        column("max_ns", "longest", Unit::Ns, "The longest", |row| row.max_ns.into()),
    ];
}

/// Summarises the part `window` of `trace`.
///
/// # Errors
/// None of its own.
pub fn report(trace: &Trace, window: Window) -> Result<Summary, ReportError> {
    super::make(trace, window, SummaryBuilder::new(window))
}

/// The summary in the making. Takes memory for each layer and each reason of exits.
#[derive(Debug)]
pub struct SummaryBuilder {
    window: Window,
    /// By VM.
    exits: BTreeMap<usize, HashMap<ExitReason, DurationSum>>,
    /// By VM and vCPU: the exit that is not over.
    open: HashMap<(usize, u32), OpenExit>,
    cost: CostBuilder,
}

#[derive(Clone, Copy, Debug)]
struct OpenExit {
    reason: ExitReason,
    begin: u64,
    /// How often its vCPU's location had been lost when it began.
    lost: u64,
}

impl SummaryBuilder {
    /// A summary of `window` of a recording before its first record.
    #[must_use]
    pub fn new(window: Window) -> Self {
        Self { window, exits: BTreeMap::new(), open: HashMap::default(), cost: CostBuilder::new(window) }
    }

    /// The vCPU's exit is over at `time`; it has no time where that is `None`.
    fn end(&mut self, key: (usize, u32), exit: OpenExit, time: Option<u64>) {
        let sums = self.exits.entry(key.0).or_default().entry(exit.reason).or_default();
        sums.add(time.map_or(0, |time| time.saturating_sub(exit.begin)));
    }

    /// The exits of the VM at `index`.
    fn exits_of(&self, index: usize, trace: &Trace, passed: &Passed) -> Option<ExitReport> {
        let (vm, clock) = (passed.timeline.vm(index)?, trace.clock());
        let source = if vm.kvm_reports { SwitchSource::HostKernel } else { SwitchSource::Vmm };
        let reason = |(reason, sums): (&ExitReason, &DurationSum)| ReasonReport {
            reason: reason.name().into_owned(),
            number: reason.number,
            numbering: reason.numbering,
            count: sums.count,
            total_ns: clock.ticks_to_ns(sums.total),
            max_ns: clock.ticks_to_ns(sums.max),
        };
        let mut by_reason: Vec<_> = self.exits.get(&index)?.iter().collect();
        by_reason.sort_unstable_by_key(|&(&reason, _)| reason);
        let mut reasons: Vec<_> = by_reason.into_iter().map(reason).collect();
        reasons.sort_by_key(|reason| std::cmp::Reverse((reason.total_ns, reason.count)));
        let count = reasons.iter().map(|reason| reason.count).sum();
        Some(ExitReport { vm: vm.name.clone(), source, count, reasons })
    }
}

impl Analysis for SummaryBuilder {
    fn layers(&self) -> &'static [LayerKind] {
        &LayerKind::ALL
    }

    fn takes_change(&self, kind: ChangeKind) -> bool {
        matches!(kind, ChangeKind::Vcpu | ChangeKind::Task)
    }

    fn change(&mut self, change: &Change, _timeline: &Timeline) {
        self.cost.change(change);
    }

    fn gap(&mut self, gap: &Gap, _timeline: &Timeline) {
        self.cost.gap(gap);
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.cost.record(input);
        if !is_crossing(input) {
            return;
        }
        let Some(Crossing { key, vcpu, exit }) = Crossing::of(input, timeline) else { return };
        if let Some(open) = self.open.remove(&key) {
            self.end(key, open, (open.lost == vcpu.lost).then_some(input.time()));
        }
        if let Some(reason) = exit
            && input.time() < self.window.end
        {
            self.open.insert(key, OpenExit { reason, begin: input.time(), lost: vcpu.lost });
        }
    }

    /// Exits that begin in the window may be over after it.
    fn is_unfinished(&self) -> bool {
        !self.open.is_empty()
    }
}

impl ReportBuilder for SummaryBuilder {
    type Report = Summary;

    fn finish(mut self, trace: &Trace, passed: &Passed) -> Result<Summary, ReportError> {
        for (key, open) in std::mem::take(&mut self.open) {
            self.end(key, open, None);
        }
        let manifest = trace.manifest();
        let first = passed.totals.iter().filter_map(|totals| totals.first).min().unwrap_or(0);
        let part = passed.is_part(trace).then(|| (passed.requested, trace.start().unwrap_or(0)));
        let totals = trace.layers().iter().zip(&passed.totals).map(|(layer, &totals)| match part {
            Some((window, start)) => (layer, within_part(totals, Totals::lacking(layer, window, start))),
            None => (layer, totals),
        });
        let layers = totals.map(|(layer, totals)| LayerReport {
            layer: layer.description.kind,
            path: layer.description.path.clone(),
            process: layer.description.process.clone(),
            streams: layer.streams.len(),
            totals,
            incomplete: totals.incomplete(),
            begins_late: layer.streams.iter().any(|stream| stream.description.overwritten > 0),
            dropped_until_ns: layer
                .streams
                .iter()
                .filter_map(Stream::dropped_until)
                .max()
                .map(|until| manifest.clock.ticks_to_ns(until.saturating_sub(first))),
            limit: layer.description.limit,
        });
        let layers: Vec<_> = layers.collect();
        let last = layers.iter().filter_map(|layer| layer.totals.last).max().unwrap_or(first);
        let vms = 0..passed.timeline.vms.len();
        Ok(Summary {
            strata: manifest.strata.clone(),
            started: manifest.started.utc.clone(),
            first_utc: rfc3339(manifest.clock.utc_ns(first)),
            outcome: manifest.outcome_text().into(),
            duration_ns: manifest.clock.ticks_to_ns(last.saturating_sub(first)),
            host: manifest.host.clone(),
            vms: manifest.vms.clone(),
            clock: manifest.clock.clone(),
            utc_bound_ns: trace.utc_bound_ns(),
            layers,
            max_size: manifest.max_size,
            exits: vms.filter_map(|vm| self.exits_of(vm, trace, passed)).collect(),
            missing: manifest.missing.clone(),
            cost: self.cost.finish(trace, passed),
        })
    }
}

impl Report for Summary {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        write_summary(self, out)
    }
}

fn write_summary(report: &Summary, out: &mut dyn Sink) -> io::Result<()> {
    for missing in &report.missing {
        writeln!(out, "MISSING: the {} layer: {}", missing.layer, harmless(&missing.reason))?;
        writeln!(out, "         {}", harmless(&missing.fix))?;
    }
    let (strata, first, length) = (harmless(&report.strata), &report.first_utc, seconds(report.duration_ns));
    writeln!(out, "recorded by strata {strata} from {first}, {length}")?;
    writeln!(out, "ended:   {}", harmless(&report.outcome))?;
    let [kernel, cpu, kvm] = [&report.host.kernel, &report.host.cpu, &report.host.kvm].map(|text| harmless(text));
    writeln!(out, "host:    {kernel}, {cpu}, KVM: {kvm}")?;
    for vm in &report.vms {
        write!(out, "VM:      {}, {}, ", vm.name, counted(vm.vcpus, "vCPU", "vCPUs"))?;
        match (&vm.attached, &vm.guest) {
            (Some(attached), _) => {
                writeln!(out, "attached from outside to process {} ({})", attached.pid, attached.comm)?;
            }
            // The guest chose this text: nothing in it may act on a terminal.
            (None, Some(guest)) => writeln!(out, "guest kernel: {}", guest.kernel.escape_default())?,
            (None, None) => writeln!(out, "guest kernel: no agent spoke")?,
        }
    }
    for vm in &report.vms {
        write_limits(vm, out)?;
    }
    write_clock(&report.clock, report.utc_bound_ns, out)?;
    write_layers(&report.layers, report.max_size, out)?;
    for exits in &report.exits {
        write_exits(exits, out)?;
    }
    write_cost(&report.cost, out)
}

/// `totals` of a layer with what it lost in the part alone. A ring that was given up, and a file that is not there, lack in
/// every part.
const fn within_part(totals: Totals, lacking: Totals) -> Totals {
    let Totals { lost, rejected_bytes, .. } = lacking;
    Totals { lost, rejected_bytes, ..totals }
}

/// What control groups of the host kept from `vm`, where they kept anything.
fn write_limits(vm: &Vm, out: &mut dyn Sink) -> io::Result<()> {
    for limit in vm.cpu_limits.iter().filter(|limit| limit.counted().throttled > 0) {
        let Throttled { periods, throttled, throttled_ns } = limit.counted();
        let quota = limit.quota_us.map_or_else(|| "no limit now".into(), |quota| format!("{quota} µs"));
        writeln!(
            out,
            "limit:   control group {} of {}'s host ({quota} of CPU time in {} µs): threads kept from running for {}, all \
             CPUs together, in {throttled} of {periods} periods",
            harmless(&limit.cgroup),
            harmless(&vm.name),
            limit.period_us,
            duration(throttled_ns)
        )?;
    }
    Ok(())
}

fn write_clock(clock: &Clock, utc_bound_ns: u64, out: &mut dyn Sink) -> io::Result<()> {
    let (frequency, bound) = (clock.frequency_hz, clock.error_bound_ns);
    writeln!(out, "clock:   {} at {frequency} Hz, error at most {bound} ns between layers", harmless(&clock.source))?;
    writeln!(out, "         {}", harmless(&clock.bound_derivation))?;
    writeln!(out, "         UTC is known to within {utc_bound_ns} ns")?;
    for relation in &clock.vcpus {
        let (vm, vcpu, offset) = (harmless(&relation.vm), relation.vcpu, relation.tsc_offset);
        let how = harmless(&relation.how.to_string());
        writeln!(out, "         {vm} vcpu {vcpu}: TSC offset {offset} ({how})")?;
    }
    Ok(())
}

/// A row of the table of layers: a layer, or those of several processes of one name.
struct Row {
    name: String,
    comm: Option<String>,
    layers: usize,
    totals: Totals,
    streams: usize,
}

/// The rows of the table: the layers in order, but processes of a VM that have the same name together, since there may
/// be hundreds of them.
fn rows(layers: &[LayerReport]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut groups: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for layer in layers {
        let comm = layer.process.as_ref().map(|process| process.comm.as_str());
        // Up to the process id, which is the last part of the folder.
        let folder = layer.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let known = comm.and_then(|comm| groups.get(&(folder, comm)).copied()).and_then(|index| rows.get_mut(index));
        if let Some(row) = known {
            row.name = format!("{folder}/*");
            (row.layers, row.streams) = (row.layers + 1, row.streams + layer.streams);
            row.totals = row.totals.plus(&layer.totals);
            continue;
        }
        if let Some(comm) = comm {
            groups.insert((folder, comm), rows.len());
        }
        rows.push(Row {
            name: harmless(&layer.path),
            comm: comm.map(Into::into),
            layers: 1,
            totals: layer.totals,
            streams: layer.streams,
        });
    }
    rows
}

fn write_layers(layers: &[LayerReport], max_size: Option<u64>, out: &mut dyn Sink) -> io::Result<()> {
    let rows = rows(layers);
    let right = Align::Right;
    let mut table = Table::new(&[
        ("layer", Align::Left),
        ("records", right),
        ("bytes", right),
        ("streams", right),
        ("lost", right),
        ("", Align::Left),
    ]);
    for Row { name, comm, layers, totals, streams } in rows {
        let comm = match (comm, layers) {
            (Some(comm), 1) => harmless(&comm),
            (Some(comm), processes) => format!("{} ({processes} processes)", harmless(&comm)),
            (None, _) => String::new(),
        };
        let cells = [
            name,
            totals.events.to_string(),
            totals.bytes.to_string(),
            streams.to_string(),
            totals.lost.total().to_string(),
            comm,
        ];
        table.row_of(cells, json!({}));
    }
    let records: u64 = layers.iter().map(|layer| layer.totals.events).sum();
    let bytes: u64 = layers.iter().map(|layer| layer.totals.bytes).sum();
    let streams: usize = layers.iter().map(|layer| layer.streams).sum();
    let lost = layers.iter().map(|layer| layer.totals.lost).sum::<Lost>().total();
    table.row(["all".into(), records.to_string(), bytes.to_string(), streams.to_string(), lost.to_string()]);
    writeln!(out)?;
    table.write(out)?;
    for layer in layers {
        if let Some(incomplete) = &layer.incomplete {
            writeln!(out, "INCOMPLETE: {}: {incomplete}", layer.path)?;
        }
        if let Some(limit) = layer.limit.filter(|limit| limit.times > 0) {
            writeln!(
                out,
                "LIMITED: {}: to {} records/s (burst {}), which it met {} and for {}; what it made meanwhile is \
                 partly lost; give a higher --limit, or record less with --events",
                layer.path,
                limit.per_second,
                limit.burst,
                counted(limit.times, "time", "times"),
                seconds(limit.held_ns)
            )?;
        }
        if layer.begins_late {
            writeln!(
                out,
                "BEGINS LATE: {}: what came before was overwritten by the flight recorder, cut off, or written elsewhere",
                layer.path
            )?;
        }
    }
    if let Some(size) = max_size {
        write_dropped(layers, size, out)?;
    }
    Ok(())
}

/// Says from when on layers are there of a recording that keeps within `size` bytes. Processes are one.
fn write_dropped(layers: &[LayerReport], size: u64, out: &mut dyn Sink) -> io::Result<()> {
    let mut from: BTreeMap<&str, u64> = BTreeMap::new();
    for (layer, until) in layers.iter().filter_map(|layer| Some((layer, layer.dropped_until_ns?))) {
        let name = match layer.process {
            Some(_) => layer.layer.name(),
            None => &layer.path,
        };
        let latest = from.entry(name).or_default();
        *latest = until.max(*latest);
    }
    let mib = size >> 20;
    if from.is_empty() {
        return writeln!(out, "KEPT: the recording keeps the last {mib} MiB; nothing was dropped");
    }
    writeln!(out, "KEPT: the recording keeps the last {mib} MiB; what is older was dropped")?;
    for (name, until) in from {
        writeln!(out, "KEPT: {name}: complete from {} on", seconds(until))?;
    }
    Ok(())
}

fn write_exits(exits: &ExitReport, out: &mut dyn Sink) -> io::Result<()> {
    let ExitReport { vm, source, count, reasons } = exits;
    let (exits, layer) = (counted(*count, "exit", "exits"), source.layer());
    writeln!(out, "\n{vm}: {exits} (from the {layer} layer), and the time until the vCPU was in the guest again")?;
    columns::write(reasons, out)
}

#[cfg(test)]
mod tests {
    use super::super::{ReportOptions, run};
    use super::*;
    use strata_recording::clock::NS_PER_SECOND;
    use strata_recording::manifest::{Guest, Manifest};
    use strata_recording::test_trace::{self, TestTrace, event, manifest};
    use strata_recording::writer::{LayerWriter, NewLayer};
    use tempfile::TempDir;

    /// A VMM layer in which vCPU 0 left for I/O twice (for 500 and 1500 ticks of 0.5 ns) and for a halt, with loss, and
    /// no host-kernel layer.
    fn recording() -> TempDir {
        let dir = TempDir::new().unwrap();
        let mut manifest = manifest();
        let new = NewLayer { kind: LayerKind::Vmm, vm: Some("vm0".into()), process: None, packet_size: 4096 };
        let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
        layer
            .add_events(&[event(1, "vmm:vcpu_enter", &["vcpu"]), event(2, "vmm:vcpu_exit", &["vcpu", "reason"])])
            .unwrap();
        let exits: [(u64, u64, u8); 3] = [(2000, 2500, 2), (4000, 5500, 2), (6000, 2_000_001_000, 5)];
        layer.record(0, 1000, 1, &[0; 4]).unwrap();
        for (left, entered, reason) in exits {
            layer.record(0, left, 2, &[0, 0, 0, 0, reason, 0, 0, 0]).unwrap();
            layer.record(0, entered, 1, &[0; 4]).unwrap();
        }
        layer.add_lost(0, 9);
        layer.set_overwritten(0, 4);
        layer.flush().unwrap();
        manifest.layers.push(layer.layer());
        manifest.vms[0].guest =
            Some(Guest { kernel: "6.1\x1b[2J".into(), agent_abi: 1, processes_refused: 0, processes_over_quota: 0 });
        manifest.missing.push(Missing {
            layer: LayerKind::HostKernel,
            reason: "tracefs is not mounted".into(),
            fix: "run as root".into(),
        });
        Manifest::save(&manifest, dir.path()).unwrap();
        dir
    }

    fn text() -> String {
        let mut out = Vec::new();
        run(recording().path(), &ReportOptions::default(), &mut out, |_, window| Ok(SummaryBuilder::new(window)))
            .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn layers_and_exits_are_added_up() {
        let dir = recording();

        let report = report(&Trace::open(dir.path()).unwrap(), Window::ALL).unwrap();

        let layer = &report.layers[0];
        assert_eq!((layer.totals.events, layer.totals.lost.full, layer.streams), (7, 9, 1));
        assert_eq!(layer.totals.bytes, 128 + 4 * 16 + 3 * 16 - 4);
        assert_eq!(report.duration_ns, NS_PER_SECOND);
        let exits = &report.exits[0];
        assert_eq!((exits.source, exits.count), (SwitchSource::Vmm, 3));
        let reason = |name: &str| exits.reasons.iter().find(|reason| reason.reason == name).unwrap();
        assert_eq!((reason("io").count, reason("io").total_ns, reason("io").max_ns), (2, 1000, 750));
        assert_eq!(exits.reasons[0].reason, "hlt");
    }

    #[test]
    fn losses_of_parts_add_up_to_those_of_the_whole() {
        let trace = TestTrace::new().guest(1, 1_000, "test:event", &[]).guest(0, 2_000, "test:event", &[]);
        let trace = trace.lost(LayerKind::GuestKernel, 0, 3).guest(0, 6_000, "test:event", &[]);
        let (_dir, trace) = trace.guest(1, 9_000, "test:event", &[]).open();
        let parts = [(0, u64::MAX), (0, 1_500), (1_500, 7_000), (7_000, u64::MAX)];

        let lost = parts.map(|(begin, end)| {
            let layer = &report(&trace, Window { begin, end }).unwrap().layers[0];
            (layer.totals.lost.full, layer.incomplete.is_some())
        });

        assert_eq!(lost, [(3, true), (0, false), (3, true), (0, false)]);
    }

    #[test]
    fn stream_that_is_not_there_is_missing_in_every_part() {
        let totals = Totals { corrupt_streams: 1, absent_streams: 2, ..Totals::default() };

        let part = within_part(totals, Totals::default());

        assert_eq!(part, totals);
    }

    #[test]
    fn what_is_missing_comes_first_and_loud() {
        let text = text();

        assert!(text.starts_with("INCOMPLETE: vm0/vmm: 9 records lost"), "{text}");
        assert!(
            text.contains("\nMISSING: the host-kernel layer: tracefs is not mounted\n         run as root\n"),
            "{text}"
        );
        assert!(text.contains("INCOMPLETE: vm0/vmm: 9 records lost because a ring was full\n"), "{text}");
        assert!(text.contains("BEGINS LATE: vm0/vmm: what came before was overwritten"), "{text}");
        assert!(text.contains("ended:   power-off\n"), "{text}");
    }

    #[test]
    fn utc_is_known_as_well_as_the_hosts_clock_agreed_with_it() {
        let of = |later_ns: u64| {
            let mut snapshot = test_trace::clock_snapshot(9_000);
            let utc = test_trace::clock().utc_ns(snapshot.realtime.ticks);
            snapshot.realtime.ns = u64::try_from(utc).unwrap() + later_ns;
            snapshot.realtime.uncertainty_ns = 20;
            let (_dir, trace) = TestTrace::new().switch(0, 1_000, 0, 7).clocks(&[snapshot]).open();
            trace.utc_bound_ns()
        };

        let anchors = test_trace::clock().utc.uncertainty_ns;

        assert_eq!([of(0), of(7_000)], [anchors.max(20), 7_020]);
    }

    #[test]
    fn clock_is_stated_with_its_bound_and_where_that_comes_from() {
        let text = text();

        assert!(text.contains("clock:   x86-tsc at 2000000000 Hz, error at most 100 ns between layers\n"), "{text}");
        assert!(text.contains("         one counter\n"), "{text}");
    }

    #[test]
    fn text_of_the_guest_is_harmless() {
        assert!(text().contains("guest kernel: 6.1\\u{1b}[2J\n"), "{}", text());
    }

    #[test]
    fn no_text_of_the_recording_acts_on_a_terminal() {
        let hostile = "\x1b[2J\nended: well\u{202e}";
        let dir = recording();
        let mut manifest = Manifest::load(dir.path()).unwrap();
        manifest.outcome = Some(hostile.into());
        manifest.strata = hostile.into();
        manifest.clock.bound_derivation = hostile.into();
        manifest.save(dir.path()).unwrap();
        let mut out = Vec::new();

        run(dir.path(), &ReportOptions::default(), &mut out, |_, window| Ok(SummaryBuilder::new(window))).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\\u{1b}[2J\\nended: well\\u{202e}").count(), 3, "{text}");
        assert!(!text.contains(['\x1b', '\u{202e}']), "{text}");
    }

    #[test]
    fn exits_are_a_table() {
        let text = text();

        assert!(text.contains("vm0: 3 exits (from the vmm layer)"), "{text}");
        assert!(text.contains("io          2    1.000 µs      750 ns\n"), "{text}");
    }

    #[test]
    fn processes_of_one_name_are_one_row() {
        let layer = |pid: u32, comm: &str, events| LayerReport {
            layer: LayerKind::GuestUser,
            path: format!("vm0/guest-user/{pid}"),
            process: Some(Process { pid, comm: comm.into() }),
            streams: 2,
            totals: Totals { events, ..Totals::default() },
            incomplete: None,
            begins_late: false,
            dropped_until_ns: None,
            limit: None,
        };

        let rows = rows(&[layer(7, "sh", 1), layer(8, "ls", 2), layer(9, "sh", 4)]);

        let rows: Vec<_> =
            rows.iter().map(|row| (row.name.as_str(), row.layers, row.streams, row.totals.events)).collect();
        assert_eq!(rows, [("vm0/guest-user/*", 2, 4, 5), ("vm0/guest-user/8", 1, 2, 2)]);
    }

    #[test]
    fn layer_that_met_its_limit_is_named_and_one_that_did_not_is_not() {
        let layer = |path: &str, times| LayerReport {
            layer: LayerKind::Vmm,
            path: path.into(),
            process: None,
            streams: 1,
            totals: Totals::default(),
            incomplete: None,
            begins_late: false,
            dropped_until_ns: None,
            limit: Some(RecordLimit { per_second: 500, burst: 70, times, held_ns: 1_500_000_000 }),
        };
        let mut out = Vec::new();

        write_layers(&[layer("a/vmm", 3), layer("b/vmm", 0)], None, &mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
        let limited: Vec<_> = text.lines().filter(|line| line.starts_with("LIMITED: ")).collect();
        assert_eq!(limited.len(), 1, "{text}");
        assert!(limited[0].contains("a/vmm: to 500 records/s (burst 70), which it met 3 times"), "{text}");
        assert!(limited[0].contains("for 1.500000000 s"), "{text}");
    }

    #[test]
    fn json_is_the_report() {
        let mut out = Vec::new();

        run(recording().path(), &ReportOptions { json: true, ..ReportOptions::default() }, &mut out, |_, _| {
            Ok(SummaryBuilder::new(Window::ALL))
        })
        .unwrap();

        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&json["layers"][0]["events"], &json["layers"][0]["lost"]["full"]), (&7.into(), &9.into()));
        assert_eq!(json["missing"][0]["layer"], "host-kernel");
    }
}
