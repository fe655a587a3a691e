//! `strata diff`: what changed between two recordings.
//!
//! The reports are made of both, each in one pass. The time of each is cut into 20 equal parts, and for each part a row
//! of a report has values: how often per second, how much time per second, and the quantiles of how long. A change is a
//! difference between the parts of one recording and those of the other that exceeds the variation within both
//! ([`statistics`]). Parts in which records may be missing are left out, and rows that follow from events that
//! only one of the two has are not compared.

mod coverage;
mod statistics;
mod text;

use crate::progress::{self, DONE};
use crate::report::sink::Sink;
use crate::report::statistics::samples::{PARTS, Part, Parts, ReportedBy, Sampled, Series};
use crate::report::{self, ReportError, ReportOptions, Window};
use coverage::Coverage;
use serde::Serialize;
use statistics::{Comparison, FEWEST};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use strata_analysis::completeness::Completeness;
use strata_analysis::timeline::Timeline;
use strata_recording::clock::{Clock, NS_PER_SECOND};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Host, Manifest};
use strata_recording::reader::{ReadError, Trace};
use strata_recording::text::terminal::{HarmlessJson, HarmlessText};
use thiserror::Error;
use wildmatch::WildMatch;

/// Most changes that may be wrong, as a share of those that are reported.
const WRONG: f64 = 0.01;
/// A difference below this share of the larger of both values is none, however sure it is.
const NEGLIGIBLE: f64 = 0.02;
/// Times that a part has to hold at least for its quantiles: the percentile, and how many.
const QUANTILES: [(u64, &str, u64); 3] = [(50, "p50", 5), (90, "p90", 30), (99, "p99", 100)];

/// Why two recordings cannot be compared.
#[derive(Debug, Error)]
pub enum DiffError {
    /// One of them cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// One of them cannot be reported on.
    #[error("{}", .trace)]
    Report {
        trace: String,
        #[source]
        source: ReportError,
    },
    /// The result cannot be written.
    #[error("the comparison cannot be written")]
    Write(#[source] io::Error),
}

/// What changed from recording A to recording B.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// The first recording.
    pub a: Side,
    /// The second one.
    pub b: Side,
    /// What the machines and guests have that is not the same.
    pub machines: Vec<MachineDifference>,
    /// What was not compared, and why.
    pub not_compared: Vec<NotCompared>,
    /// How many values were compared.
    pub compared: usize,
    /// How many of them changed.
    pub changed: usize,
    /// The rows of the reports that have one that changed, and then the others; the one that costs most, or saves most,
    /// first, and what waits for something to do last.
    pub rows: Vec<RowDiff>,
}

/// A recording that was compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// Its folder.
    pub trace: String,
    /// What was looked at, ns.
    pub ns: u64,
    /// What was damaged, lost or is unknown in it.
    pub completeness: Completeness,
}

/// Something about the machines that is not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineDifference {
    pub what: String,
    /// In A.
    pub a: String,
    /// In B.
    pub b: String,
}

/// What was not compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NotCompared {
    /// The VM; `None` for the host, or for all.
    pub vm: Option<String>,
    pub report: String,
    pub reason: String,
}

/// A row of a report in both recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowDiff {
    pub report: &'static str,
    /// The VM; `None` for the host.
    pub vm: Option<String>,
    pub what: String,
    /// Whether its time is spent on waiting for something to do.
    pub waits: bool,
    /// How much more time it takes in B, ns per second of the recording.
    pub cost_ns_per_second: f64,
    /// Its values.
    pub values: Vec<Value>,
    /// How its times are distributed; empty for a share of time.
    pub histogram: Vec<Bucket>,
}

/// A value of a row in both recordings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Value {
    /// `per_second`, `p50`, `p90`, `p99`, or `time_per_second`: times in ns.
    pub value: &'static str,
    /// In A, over all parts that count.
    pub a: f64,
    /// In B.
    pub b: f64,
    /// By how much it is larger in a part of B than in one of A.
    pub difference: f64,
    /// Where that lies, with a probability of 99 %.
    pub low: f64,
    /// Up to where.
    pub high: f64,
    /// The share of wrong ones among changes that are as sure as this one.
    pub by_chance: f64,
    /// Whether it is a change.
    pub changed: bool,
}

/// Times of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// A power of two, ns: they take less, and not less than half of it.
    pub below_ns: u64,
    /// Number in A.
    pub a: u64,
    /// Number in B.
    pub b: u64,
}

/// A report whose rows are compared.
struct Measured {
    report: &'static str,
    builder: Box<dyn Sampled>,
}

/// The reports that are compared, beginning on `window` of `trace`.
fn reports(trace: &Trace, window: Window) -> Vec<Measured> {
    let all: [(&'static str, Box<dyn Sampled>); 10] = [
        ("vcpus", Box::new(report::scheduling::vcpus::VcpuTimes::default())),
        ("exits", Box::new(report::kernels::exits::ExitTimes::new(window))),
        ("tasks", Box::new(report::scheduling::tasks::TaskTimes::new(window))),
        ("wakeups", Box::new(report::scheduling::wakeups::WakeupTimes::new(window))),
        ("syscalls", Box::new(report::kernels::syscalls::SyscallTimes::default())),
        ("locks", Box::new(report::kernels::locks::LockTimes::default())),
        ("irqs", Box::new(report::kernels::irqs::InterruptTimes::default())),
        ("flows", Box::new(report::devices::flows::FlowTimes::keeping_ended(trace))),
        ("net_flows", Box::new(report::devices::net_flows::NetFlowTimes::keeping_ended(trace))),
        ("blocks", Box::new(report::devices::blocks::BlockTimes::default())),
    ];
    all.into_iter().map(|(report, builder)| Measured { report, builder }).collect()
}

/// What of a report follows from the same events: its name, and which of its sets.
type Source = (&'static str, usize);

/// The rows of one source, of one VM or of the hosts.
struct Rows {
    reported_by: &'static [ReportedBy],
    /// By what they are.
    rows: BTreeMap<String, Series>,
}

/// A recording, taken in.
struct Recording {
    name: String,
    trace: Trace,
    timeline: Timeline,
    parts: Arc<Parts>,
    coverage: Coverage,
    completeness: Completeness,
    sources: BTreeMap<(Source, Option<String>), Rows>,
    /// Times that had no place for a row.
    refused: u64,
    ns: u64,
}

impl Recording {
    /// Takes in the recording in `dir`; `report_progress` gets how much of it, of [`DONE`].
    fn take_in(dir: &Path, options: &ReportOptions, report_progress: impl Fn(u64)) -> Result<Self, ReportError> {
        let trace = Trace::open(dir)?;
        let window = options.window(&trace)?;
        let timeline = Timeline::new(&trace);
        let missing = || "there is no record".into();
        let nothing = || {
            let missing = report::missed_window(&trace, options).unwrap_or_else(missing);
            ReportError::nothing(missing, "see strata report")
        };
        let parts = Arc::new(Parts::new(&timeline, &window).ok_or_else(nothing)?);
        let mut coverage = Coverage::new(&trace, &timeline, Arc::clone(&parts));
        let mut reports = reports(&trace, window);
        for (_, samples) in reports.iter_mut().flat_map(|measured| measured.builder.samples()) {
            samples.begin(Arc::clone(&parts));
        }
        let mut analyses: Vec<&mut dyn strata_analysis::Analysis> = vec![&mut coverage];
        for measured in &mut reports {
            analyses.push(&mut *measured.builder);
        }
        let part = parts.window(None);
        let passed = strata_analysis::pass_reporting(&trace, window, &mut analyses, |time| {
            report_progress(progress::up_to(time, part));
        });
        let timeline = passed.timeline;
        coverage.finish(&timeline);
        let (mut sources, mut refused) = (BTreeMap::new(), 0_u64);
        for measured in &mut reports {
            for (number, (reported_by, samples)) in measured.builder.samples().into_iter().enumerate() {
                let (rows, too_many) = samples.take();
                refused = refused.saturating_add(too_many);
                let owners = (0..timeline.vms.len()).map(Some).chain([None]);
                for vm in owners {
                    let name = vm.and_then(|vm| timeline.vm(vm)).map(|vm| vm.name.clone());
                    let source = ((measured.report, number), name);
                    sources.insert(source, Rows { reported_by, rows: BTreeMap::new() });
                }
                for ((vm, what), series) in rows {
                    let name = vm.and_then(|vm| timeline.vm(vm)).map(|vm| vm.name.clone());
                    if let Some(of_source) = sources.get_mut(&((measured.report, number), name)) {
                        of_source.rows.insert(what, series);
                    }
                }
            }
        }
        let ns = trace.clock().ticks_to_ns(parts.window(None).length());
        let (name, completeness) = (dir.display().to_string(), passed.completeness);
        Ok(Self { name, timeline, parts, coverage, completeness, sources, refused, ns, trace })
    }

    fn clock(&self) -> &Clock {
        self.trace.clock()
    }

    fn vm(&self, name: Option<&str>) -> Option<usize> {
        self.timeline.vms.iter().position(|vm| Some(vm.name.as_str()) == name)
    }

    /// Whether the events of `reported` of the VM, or host, were recorded.
    fn records(&self, reported: &ReportedBy, vm: Option<&str>) -> bool {
        let kind = layer_of(reported, vm);
        let glob = WildMatch::new(reported.event);
        let is_its = |layer: &&strata_recording::reader::TraceLayer| {
            kind == LayerKind::HostKernel || layer.description.vm.as_deref() == vm
        };
        let mut schemas = self.trace.layers_of(kind).filter(is_its).flat_map(|layer| layer.schemas.iter());
        schemas.any(|schema| glob.matches(schema.name()))
    }

    /// The parts in which nothing is missing of what tells of rows of the VM, or host.
    fn whole(&self, reported_by: &[ReportedBy], vm: Option<&str>) -> Vec<usize> {
        self.coverage.whole(reported_by.iter().map(|reported| layer_of(reported, vm)), self.vm(vm))
    }

    /// Length of a part of the VM, or host, seconds.
    fn part_seconds(&self, vm: Option<&str>) -> f64 {
        let window = self.parts.window(self.vm(vm));
        seconds(self.clock().ticks_to_ns(window.length())) / parts_f64()
    }

    fn side(self) -> Side {
        Side { trace: self.name, ns: self.ns, completeness: self.completeness }
    }
}

const fn layer_of(reported: &ReportedBy, vm: Option<&str>) -> LayerKind {
    match (reported.layer, vm) {
        (Some(layer), _) => layer,
        (None, None) => LayerKind::HostKernel,
        (None, Some(_)) => LayerKind::GuestKernel,
    }
}

fn seconds(ns: u64) -> f64 {
    as_f64(ns) / as_f64(NS_PER_SECOND)
}

fn parts_f64() -> f64 {
    as_f64(PARTS as u64)
}

/// A count or time as a float, right to 53 bits.
#[expect(clippy::cast_precision_loss, reason = "what is below the 53rd bit of a count or time is no change")]
const fn as_f64(number: u64) -> f64 {
    number as f64
}

/// Compares the recordings in `a` and `b`, in the window of `options` of each; `progress` counts up to [`DONE`]
/// meanwhile.
///
/// # Errors
/// When one of them cannot be read or holds nothing in the window.
pub fn diff(a: &Path, b: &Path, options: &ReportOptions, progress: &AtomicU64) -> Result<Diff, DiffError> {
    let of = |dir: &Path, before: u64| {
        let trace = dir.display().to_string();
        let report_progress = |done: u64| progress.store((before + done) / 2, Ordering::Relaxed);
        Recording::take_in(dir, options, report_progress).map_err(|error| match error {
            ReportError::Read(error) => DiffError::Read(error),
            source => DiffError::Report { trace, source },
        })
    };
    let (a, b) = (of(a, 0)?, of(b, DONE)?);
    progress.store(DONE, Ordering::Relaxed);
    let mut not_compared = unmatched_vms(&a, &b);
    let mut rows = Vec::new();
    for ((source, vm), of_a) in &a.sources {
        let key = (*source, vm.clone());
        let Some(of_b) = b.sources.get(&key) else { continue };
        match compare(&a, &b, (*source, vm.as_deref()), (of_a, of_b)) {
            Ok(compared) => rows.extend(compared),
            Err(reason) => not_compared.push(NotCompared { vm: vm.clone(), report: source.0.into(), reason }),
        }
    }
    for (name, recording) in [("A", &a), ("B", &b)] {
        if recording.refused > 0 {
            let reason = format!("{} times in {name} have more names than are kept", recording.refused);
            not_compared.push(NotCompared { vm: None, report: "all".into(), reason });
        }
    }
    not_compared.sort();
    not_compared.dedup();
    decide(&mut rows);
    let values = || rows.iter().flat_map(|row: &RowDiff| &row.values);
    let (compared, changed) = (values().count(), values().filter(|value| value.changed).count());
    let machines = machine_differences(a.trace.manifest(), b.trace.manifest());
    Ok(Diff { a: a.side(), b: b.side(), machines, not_compared, compared, changed, rows })
}

/// Writes `diff` to `out`, as JSON if `json`. A reader that closes `out` is not an error.
///
/// # Errors
/// When `out` fails.
pub fn write(diff: &Diff, json: bool, out: &mut dyn Sink) -> Result<(), DiffError> {
    let written = if json {
        serde_json::to_writer_pretty(HarmlessJson(&mut *out), diff)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        diff.write_text(&mut HarmlessText(&mut *out))
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(DiffError::Write(error)),
        _ => Ok(()),
    }
}

fn unmatched_vms(a: &Recording, b: &Recording) -> Vec<NotCompared> {
    let names = |recording: &Recording| -> BTreeSet<String> {
        recording.timeline.vms.iter().map(|vm| vm.name.clone()).collect()
    };
    let (of_a, of_b) = (names(a), names(b));
    let only = |vm: &String| {
        let which = if of_a.contains(vm) { "A" } else { "B" };
        NotCompared { vm: Some(vm.clone()), report: "all".into(), reason: format!("the VM is in {which} only") }
    };
    of_a.symmetric_difference(&of_b).map(only).collect()
}

/// What of the machines is not the same.
fn machine_differences(a: &Manifest, b: &Manifest) -> Vec<MachineDifference> {
    let of_host = |host: &Host| {
        [("host", &host.hostname), ("host's kernel", &host.kernel), ("host's CPU", &host.cpu), ("KVM", &host.kvm)]
            .map(|(what, value)| (what.to_string(), value.clone()))
    };
    let of_vms = |manifest: &Manifest| -> Vec<(String, String)> {
        let vms = manifest.vms.iter().flat_map(|vm| {
            let kernel = vm.guest.as_ref().map_or("not known", |guest| &guest.kernel);
            [
                (format!("{}'s kernel", vm.name), kernel.to_string()),
                (format!("{}'s vCPUs", vm.name), vm.vcpus.to_string()),
            ]
        });
        vms.collect()
    };
    let all = |manifest: &Manifest| -> BTreeMap<String, String> {
        let strata = ("strata".to_string(), manifest.strata.clone());
        of_host(&manifest.host).into_iter().chain(of_vms(manifest)).chain([strata]).collect()
    };
    let (a, mut b) = (all(a), all(b));
    let pair = |(what, a): (String, String)| Some(MachineDifference { b: b.remove(&what)?, what, a });
    a.into_iter().filter_map(pair).filter(|difference| difference.a != difference.b).collect()
}

/// Compares the rows of one source of a VM, or of the hosts.
///
/// # Errors
/// Why they cannot be compared.
fn compare(
    a: &Recording,
    b: &Recording,
    (source, vm): (Source, Option<&str>),
    (of_a, of_b): (&Rows, &Rows),
) -> Result<Vec<RowDiff>, String> {
    let reported_by = of_a.reported_by;
    if of_a.rows.is_empty() && of_b.rows.is_empty() {
        return Ok(Vec::new());
    }
    let only = |in_one: &Recording, other: &Recording| -> Vec<String> {
        let only = reported_by.iter().filter(|reported| in_one.records(reported, vm) && !other.records(reported, vm));
        only.map(|reported| format!("{}:{}", layer_of(reported, vm), reported.event)).collect()
    };
    for (name, only) in [("A", only(a, b)), ("B", only(b, a))] {
        if !only.is_empty() {
            return Err(format!("recorded in {name} only: {}", only.join(", ")));
        }
    }
    let (whole_a, whole_b) = (a.whole(reported_by, vm), b.whole(reported_by, vm));
    for (name, whole) in [("A", &whole_a), ("B", &whole_b)] {
        if whole.len() < FEWEST {
            let missing = PARTS - whole.len();
            return Err(format!("records are missing in {missing} of the {PARTS} parts of {name}"));
        }
    }
    let none = Series { waits: false, is_share: false, parts: vec![Part::default(); PARTS] };
    let names: BTreeSet<&String> = of_a.rows.keys().chain(of_b.rows.keys()).collect();
    let row = |what: &String| {
        let (in_a, in_b) = (of_a.rows.get(what), of_b.rows.get(what));
        let known = in_a.or(in_b).unwrap_or(&none);
        let side = |recording: &Recording, series: Option<&Series>, whole: &[usize]| SideOfRow {
            parts: whole.iter().filter_map(|&part| series.unwrap_or(&none).parts.get(part).cloned()).collect(),
            part_seconds: recording.part_seconds(vm),
            ns_per_tick: as_f64(NS_PER_SECOND) / as_f64(recording.clock().frequency_hz.max(1)),
        };
        let (a, b) = (side(a, in_a, &whole_a), side(b, in_b, &whole_b));
        RowDiff {
            report: source.0,
            vm: vm.map(Into::into),
            what: what.clone(),
            waits: known.waits,
            cost_ns_per_second: b.time_per_second() - a.time_per_second(),
            values: values(&a, &b, known.is_share),
            histogram: if known.is_share { Vec::new() } else { histogram(&a, &b) },
        }
    };
    Ok(names.into_iter().map(row).collect())
}

/// A row in one recording: the parts that count.
struct SideOfRow {
    parts: Vec<Part>,
    part_seconds: f64,
    ns_per_tick: f64,
}

impl SideOfRow {
    fn all(&self) -> Part {
        self.parts.iter().fold(Part::default(), Part::plus)
    }

    /// `value` of each part, and the same of all, per second.
    fn per_second(&self, value: impl Fn(&Part) -> f64) -> (f64, Vec<f64>) {
        let values: Vec<f64> = self.parts.iter().map(|part| value(part) / self.part_seconds).collect();
        let mean = values.iter().sum::<f64>() / as_f64(values.len().max(1) as u64);
        (mean, values)
    }

    fn ns(&self, ticks: u64) -> f64 {
        as_f64(ticks) * self.ns_per_tick
    }

    fn time_per_second(&self) -> f64 {
        self.per_second(|part| self.ns(part.ticks)).0
    }

    /// The quantile of all times, and that of each part that holds `at_least` so many.
    fn quantiles(&self, percent: u64, at_least: u64) -> (f64, Vec<f64>) {
        let enough = self.parts.iter().filter(|part| part.count >= at_least);
        let values = enough.map(|part| self.ns(part.quantile(percent))).collect();
        (self.ns(self.all().quantile(percent)), values)
    }
}

/// The values of a row that can be compared.
fn values(a: &SideOfRow, b: &SideOfRow, is_share: bool) -> Vec<Value> {
    let mut values = Vec::new();
    let mut add = |value: &'static str, (a, of_a): (f64, Vec<f64>), (b, of_b): (f64, Vec<f64>)| {
        if let Some(Comparison { difference, interval: (low, high), by_chance }) = statistics::compare(&of_a, &of_b) {
            values.push(Value { value, a, b, difference, low, high, by_chance, changed: false });
        }
    };
    if !is_share {
        let count = |part: &Part| as_f64(part.count);
        add("per_second", a.per_second(count), b.per_second(count));
        for (percent, name, at_least) in QUANTILES {
            add(name, a.quantiles(percent, at_least), b.quantiles(percent, at_least));
        }
    }
    add("time_per_second", a.per_second(|part| a.ns(part.ticks)), b.per_second(|part| b.ns(part.ticks)));
    values
}

/// How the times of both are distributed.
fn histogram(a: &SideOfRow, b: &SideOfRow) -> Vec<Bucket> {
    let mut buckets: BTreeMap<u64, Bucket> = BTreeMap::new();
    for (side, is_a) in [(a, true), (b, false)] {
        for (ticks, count) in side.all().classes() {
            // Not negative, and below 2^64 times a few.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
            let ns = side.ns(ticks) as u64;
            let below_ns = ns.saturating_add(1).checked_next_power_of_two().unwrap_or(u64::MAX);
            let bucket = buckets.entry(below_ns).or_insert(Bucket { below_ns, ..Bucket::default() });
            *(if is_a { &mut bucket.a } else { &mut bucket.b }) += count;
        }
    }
    buckets.into_values().collect()
}

/// Decides which differences are changes, and puts the rows in order.
fn decide(rows: &mut [RowDiff]) {
    let probabilities: Vec<f64> = rows.iter().flat_map(|row| &row.values).map(|value| value.by_chance).collect();
    let shares = statistics::shares_of_wrong(&probabilities);
    for (value, share) in rows.iter_mut().flat_map(|row| &mut row.values).zip(shares) {
        value.by_chance = share;
        let is_sure = share <= WRONG;
        let is_large = value.difference.abs() > NEGLIGIBLE * value.a.max(value.b);
        // What the parts say and what all of it says may differ where few of many events take most of the time.
        let agrees = (value.b - value.a) * value.difference > 0.0;
        value.changed = is_sure && is_large && agrees;
    }
    rows.sort_by(|one, other| {
        let rank = |row: &RowDiff| (!row.changed(), row.waits);
        let by_cost = other.cost_ns_per_second.abs().total_cmp(&one.cost_ns_per_second.abs());
        rank(one).cmp(&rank(other)).then(by_cost)
    });
}

impl RowDiff {
    /// Whether any of its values changed.
    #[must_use]
    pub fn changed(&self) -> bool {
        self.values.iter().any(|value| value.changed)
    }
}

#[cfg(test)]
mod tests;
