//! Causality: a guest record must lie inside a period when its vCPU was in the guest. Whatever is wrong with the clock,
//! with the recorder or with the trace shows here.
//!
//! - A record of a guest kernel: inside a period of the vCPU whose stream holds it.
//! - A record of a guest process: inside a period of any vCPU of its VM, since a thread may move to another one between
//!   choosing the ring and reading the clock.
//! - An entry into a guest (`kvm:kvm_entry`): inside a run of its vCPU that the VMM records (`vmm:vcpu_enter` to
//!   `vmm:vcpu_exit`).
//! - A task that slept without being interruptible: runs again only after it was woken, by whichever CPU.
//! - All records: times never decrease within a stream, and no packet is damaged or missing. The counts of lost records
//!   only grow, and `session.json` does not claim less loss than the streams.
//! - Events that come in pairs are not alone without a reason (see [`pairs`]).
//!
//! The periods are the host kernel's when that layer is complete, else the VMM's, which are wider. A flight recorder may
//! hold guest records that are older than its oldest period: those are counted, and only their order is checked. So it
//! is with a trace that was recovered from a region alone, which has no periods at all.

pub mod pairs;
mod text;

use crate::clock::{Clock, Tolerances};
use crate::guest_tasks::{GuestTasks, kernel_layers};
use crate::merge::{Merge, MergedRecord};
use crate::reader::{ReadError, Stream, Tail, Trace, TraceLayer};
use crate::session::{LayerKind, Vm};
use crate::totals::Totals;
use crate::vcpu::{Period, Periods, SwitchSource, Switches};
use crate::window::Window;
use pairs::{PairCount, Pairs};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use thiserror::Error;

/// How many violations are kept one by one, unless asked otherwise; the others are counted.
pub const DEFAULT_SHOWN: usize = 20;

/// How a check is shown.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// JSON in place of text.
    pub json: bool,
    /// How many violations are shown.
    pub shown: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { json: false, shown: DEFAULT_SHOWN }
    }
}

/// Why a recording cannot be checked.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No layer tells when the vCPUs were in the guest.
    #[error(
        "{vm}: no layer tells when its vCPUs were in the guest (neither kvm:kvm_entry and kvm:kvm_exit of the host's \
         kernel nor vmm:vcpu_enter and vmm:vcpu_exit); record again with one of them"
    )]
    NoPeriods {
        /// Name of the VM.
        vm: String,
    },
    /// The result cannot be written.
    #[error("the result cannot be written")]
    Write(#[source] io::Error),
}

/// What a check came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CheckResult {
    /// Guest kernel records that were checked against periods.
    pub guest_kernel_records: u64,
    /// Guest user records that were checked against periods.
    pub guest_user_records: u64,
    /// Guest records that could not be checked against periods, because there are none of that time.
    pub unchecked: u64,
    /// VMs whose guest records could not be checked at all, because no layer that tells periods was left.
    pub without_periods: Vec<String>,
    /// Records of all layers whose order was checked.
    pub records: u64,
    /// The clock's error bound: how far outside a period a record may lie, ns.
    pub tolerance_ns: u64,
    /// For each VM, the periods.
    pub periods: Vec<PeriodSummary>,
    /// For each vCPU, what the trace itself says about its clock.
    pub supported: Vec<SupportedBound>,
    /// Guest records outside the periods.
    pub outside: u64,
    /// Records that are older than the one before them in their stream.
    pub out_of_order: u64,
    /// Streams that are not whole: packets damaged, truncated or missing, or bytes or records that cannot be read.
    pub damaged: u64,
    /// Entries into guests outside the runs of their vCPUs that the VMM recorded.
    pub outside_runs: u64,
    /// Entries into guests that were looked up in those runs.
    pub entries_checked: u64,
    /// Streams whose counts of lost records contradict each other.
    pub loss_contradictions: u64,
    /// For each VM, the events that come in pairs.
    pub pairs: Vec<VmPairs>,
    /// The first violations.
    pub violations: Vec<Violation>,
}

/// The events of a VM that come in pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmPairs {
    /// Name of the VM.
    pub vm: String,
    /// By kind of pair.
    pub pairs: Vec<PairCount>,
    /// Why pairs that are not whole are no violations here, if so.
    pub lenient: Option<String>,
}

impl CheckResult {
    /// Number of violations.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.outside
            + self.out_of_order
            + self.damaged
            + self.outside_runs
            + self.loss_contradictions
            + self.unbalanced()
    }

    /// Events that are alone for no known reason.
    #[must_use]
    pub fn unbalanced(&self) -> u64 {
        let strict = self.pairs.iter().filter(|vm| vm.lenient.is_none());
        strict.flat_map(|vm| &vm.pairs).map(|pair| pair.unbalanced).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.total() == 0
    }

    /// Guest records that were checked against periods.
    #[must_use]
    pub const fn guest_records(&self) -> u64 {
        self.guest_kernel_records + self.guest_user_records
    }
}

/// The periods that a VM's records were checked against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeriodSummary {
    /// Name of the VM.
    pub vm: String,
    /// The layer that they come from.
    pub source: SwitchSource,
    /// Number of periods.
    pub count: usize,
    /// Why not from a better layer, or why they are not to be trusted.
    pub remark: Option<String>,
    /// Where they begin, ticks, when a flight recorder overwrote the earlier ones; else 0.
    pub from: u64,
}

/// What a trace itself says about a vCPU's clock: if its error is the same all the time, it lies between the two limits,
/// since each record of the guest's kernel lies between an entry and an exit. The stated bound needs no such assumption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SupportedBound {
    /// Name of the VM.
    pub vm: String,
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Records inside periods.
    pub records: u64,
    /// The clock is ahead of the host's by no more than this: the least time from an entry to a record, ns.
    pub ahead_ns: u64,
    /// It is behind by no more than this: the least time from a record to an exit, ns; `None` without a period that ends.
    pub behind_ns: Option<u64>,
}

/// What is wrong with a record or stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Problem {
    /// Outside the periods.
    Outside {
        /// The vCPU whose period is nearest; `None` when there is no period at all.
        vcpu: Option<u32>,
        /// The nearest period.
        nearest: Option<Period>,
        /// Distance from it, ns.
        outside_ns: Option<u64>,
    },
    /// Older than the record before it.
    OutOfOrder {
        /// By this much, ns.
        earlier_ns: u64,
    },
    /// An entry into a guest outside the runs of its vCPU.
    OutsideRun {
        /// The vCPU.
        vcpu: u32,
        /// Distance from the nearest run, ns; `None` when the vCPU never ran.
        outside_ns: Option<u64>,
    },
    /// Half of a pair.
    Unbalanced {
        /// What is wrong.
        what: String,
    },
    /// Counts of lost records contradict each other.
    Loss {
        /// How.
        what: String,
    },
    /// The stream is not whole.
    Damaged {
        /// What is wrong with it.
        what: String,
    },
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    /// The stream's file, relative to the recording's folder.
    pub stream: String,
    /// Time of the record, ticks; `None` when a whole stream is concerned.
    pub ticks: Option<u64>,
    /// Its event's name.
    pub event: Option<String>,
    /// What is wrong.
    #[serde(flatten)]
    pub problem: Problem,
}

/// Checks the recording in `dir` and writes the result to `out`. Whether it passed is in the result.
///
/// # Errors
/// When the recording cannot be read or checked, or `out` fails.
pub fn run(dir: &Path, options: &CheckOptions, out: &mut dyn Write) -> Result<CheckResult, CheckError> {
    let trace = Trace::open(dir)?;
    let result = check(&trace, options.shown)?;
    let written = if options.json {
        serde_json::to_writer_pretty(&mut *out, &Json { passed: result.passed(), result: &result })
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        text::write(&result, &trace, out)
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CheckError::Write(error)),
        _ => Ok(result),
    }
}

#[derive(Serialize)]
struct Json<'r> {
    passed: bool,
    #[serde(flatten)]
    result: &'r CheckResult,
}

/// Checks `trace`, keeping the first `shown` violations.
///
/// # Errors
/// When no layer tells when a VM was in the guest, though there are records of its guest.
pub fn check(trace: &Trace, shown: usize) -> Result<CheckResult, CheckError> {
    let mut checker = Checker {
        clock: trace.clock(),
        is_complete: trace.session().outcome.is_some(),
        shown,
        result: CheckResult { tolerance_ns: trace.clock().error_bound_ns, ..CheckResult::default() },
    };
    let is_guest =
        |layer: &&TraceLayer| matches!(layer.description.kind, LayerKind::GuestKernel | LayerKind::GuestUser);
    let (guests, hosts): (Vec<_>, Vec<_>) = trace.layers().iter().partition(is_guest);
    let mut vms: Vec<&str> = guests.iter().filter_map(|layer| layer.description.vm.as_deref()).collect();
    vms.sort_unstable();
    vms.dedup();
    for layer in hosts {
        checker.check_layer(layer, None);
    }
    for name in vms {
        let vm = trace.session().vm(name).cloned().unwrap_or_else(|| Vm { name: name.into(), ..Vm::default() });
        let layers: Vec<_> = guests.iter().filter(|layer| layer.description.vm.as_deref() == Some(name)).collect();
        let records =
            layers.iter().any(|layer| layer.streams.iter().any(|stream| layer.records(stream).next().is_some()));
        let periods = if records { checker.periods(trace, &vm)? } else { Some(Known::default()) };
        for layer in layers {
            checker.check_layer(layer, periods.as_ref());
        }
    }
    for vm in &trace.session().vms {
        checker.check_runs(trace, vm);
        checker.check_pairs(trace, vm);
    }
    Ok(checker.result)
}

struct Checker<'t> {
    clock: &'t Clock,
    /// Whether the recorder came to its end: then `session.json` is the last word.
    is_complete: bool,
    shown: usize,
    result: CheckResult,
}

impl Checker<'_> {
    /// The periods of `vm`, from the best layer that has them; `None` when the layers that could tell are missing and
    /// the recording says so.
    fn periods(&mut self, trace: &Trace, vm: &Vm) -> Result<Option<Known>, CheckError> {
        let host = usable(trace, vm, SwitchSource::HostKernel);
        let vmm = usable(trace, vm, SwitchSource::Vmm);
        let (source, remark) = match (host, vmm) {
            (Usable::Whole, _) => (SwitchSource::HostKernel, None),
            (Usable::Incomplete(lost), Usable::Whole) => {
                (SwitchSource::Vmm, Some(format!("the host-kernel layer is incomplete: {lost}")))
            }
            (Usable::No, Usable::Whole) => (SwitchSource::Vmm, Some("the host-kernel layer has no KVM events".into())),
            (Usable::Incomplete(lost), _) => {
                (SwitchSource::HostKernel, Some(format!("not to be trusted, the layer is incomplete: {lost}")))
            }
            (Usable::No, Usable::Incomplete(lost)) => {
                (SwitchSource::Vmm, Some(format!("not to be trusted, the layer is incomplete: {lost}")))
            }
            (Usable::No, Usable::No)
                if trace.session().missing.iter().any(|missing| missing.layer == LayerKind::Vmm) =>
            {
                self.result.without_periods.push(vm.name.clone());
                return Ok(None);
            }
            (Usable::No, Usable::No) => return Err(CheckError::NoPeriods { vm: vm.name.clone() }),
        };
        let from = source.layers(trace, vm).filter_map(remaining_from).max();
        let switches = Switches::new(trace, vm, source);
        let periods = if from.is_some() { Periods::of_remaining(switches) } else { Periods::new(switches) };
        let (count, known) = (periods.count(), Known { periods, from: from.unwrap_or(0) });
        self.result.periods.push(PeriodSummary { vm: vm.name.clone(), source, count, remark, from: known.from });
        Ok(Some(known))
    }

    /// Entries into the guest of `vm` lie inside runs of its vCPUs.
    fn check_runs(&mut self, trace: &Trace, vm: &Vm) {
        let source = SwitchSource::Vmm;
        if !matches!(usable(trace, vm, source), Usable::Whole)
            || SwitchSource::HostKernel.layers(trace, vm).next().is_none()
        {
            return;
        }
        let from = source.layers(trace, vm).filter_map(remaining_from).max();
        let switches = Switches::new(trace, vm, source);
        let runs = if from.is_some() { Periods::of_remaining(switches) } else { Periods::new(switches) };
        let tolerance = self.clock.ns_to_ticks(self.clock.error_bound_ns);
        let mut cursors: Vec<_> =
            runs.vcpus().map(|vcpu| Cursor::new(vcpu, &runs, self.clock.tolerances(&vm.name, vcpu))).collect();
        let entries = Switches::new(trace, vm, SwitchSource::HostKernel).filter(|switch| switch.exit.is_none());
        for entry in entries.filter(|entry| entry.time >= from.unwrap_or(0)) {
            let cursor = cursors.iter_mut().find(|cursor| cursor.vcpu == entry.vcpu);
            let distance = cursor.and_then(|cursor| cursor.nearest(entry.time)).map(|(_, ticks)| ticks);
            self.result.entries_checked += 1;
            if distance.is_some_and(|ticks| ticks <= tolerance) {
                continue;
            }
            self.result.outside_runs += 1;
            let problem = Problem::OutsideRun {
                vcpu: entry.vcpu,
                outside_ns: distance.map(|ticks| self.clock.ticks_to_ns(ticks)),
            };
            let [event, _] = SwitchSource::HostKernel.events();
            let stream = LayerKind::HostKernel.name().into();
            self.keep(|| Violation { stream, ticks: Some(entry.time), event: Some(event.into()), problem });
        }
    }

    /// Events of `vm` that come in pairs are whole.
    fn check_pairs(&mut self, trace: &Trace, vm: &Vm) {
        let everything = Window { begin: 0, end: u64::MAX };
        let of_vm = |layer: &&TraceLayer| layer.description.vm.as_ref() == Some(&vm.name);
        let vmm: Vec<_> = trace.layers_of(LayerKind::Vmm).filter(of_vm).collect();
        let host = trace.layers_of(LayerKind::HostKernel).filter(|layer| layer.description.host == vm.host);
        let layers: Vec<_> = host.chain(vmm.iter().copied()).chain(kernel_layers(trace, &vm.name)).collect();
        let tolerance = (0..vm.vcpus).map(|vcpu| self.clock.tolerances(&vm.name, vcpu).largest()).max().unwrap_or(0);
        let room = self.shown.saturating_sub(self.result.violations.len());
        let tasks = GuestTasks::new(trace, &vm.name, everything);
        let mut pairs = Pairs::new(tasks, &vm.vcpu_threads, tolerance.saturating_mul(2), room);
        // The streams of a flight recorder begin and end at different times: a half may lie where another one has none.
        let cut = kernel_layers(trace, &vm.name)
            .filter_map(remaining)
            .reduce(|one, other| Window { begin: one.begin.max(other.begin), end: one.end.min(other.end) });
        let Window { begin, end } = cut.unwrap_or(everything);
        let of_guest = |merged: &MergedRecord<'_>| merged.layer.description.kind == LayerKind::GuestKernel;
        for merged in Merge::new(layers, begin) {
            if merged.record.time <= end || !of_guest(&merged) {
                pairs.add(&merged);
            }
        }
        let (pairs, alone) = pairs.finish();
        if pairs.is_empty() {
            return;
        }
        // What stopped and started a session is in the VMM's layer.
        let knows_changes = vmm.iter().any(|layer| layer.schemas.iter().any(|schema| schema.name() == "vmm:control"));
        let lenient = (!knows_changes).then(|| {
            "without vmm:control it is not known whether the events were changed or stopped in between".to_string()
        });
        if lenient.is_none() {
            for alone in alone {
                let problem = Problem::Unbalanced { what: alone.what };
                let (stream, ticks, event) = (alone.stream, Some(alone.time), Some(alone.event));
                self.keep(|| Violation { stream, ticks, event, problem });
            }
        }
        self.result.pairs.push(VmPairs { vm: vm.name.clone(), pairs, lenient });
    }

    /// Counts of lost records agree with each other.
    fn check_loss(&mut self, trace_is_complete: bool, stream: &Stream, tail: &Tail, file: impl FnOnce() -> String) {
        let said = &stream.description;
        let (in_session, in_stream) = (said.lost.total(), tail.lost.total());
        let what = if tail.counts_went_back {
            "its packets' counts of lost records went back".to_string()
        } else if trace_is_complete && !stream.absent && in_session < in_stream {
            format!("session.json counts {in_session} lost records, its packets {in_stream}")
        } else {
            return;
        };
        self.result.loss_contradictions += 1;
        self.keep(|| Violation { stream: file(), ticks: None, event: None, problem: Problem::Loss { what } });
    }

    fn check_layer(&mut self, layer: &TraceLayer, known: Option<&Known>) {
        for stream in &layer.streams {
            let inside = known.map(|Known { periods, from }| {
                let vcpus = match layer.description.kind {
                    LayerKind::GuestUser => periods.vcpus().collect(),
                    _ => vec![stream.description.cpu_id],
                };
                let vm = layer.description.vm.as_deref().unwrap_or_default();
                let cursor = |vcpu| Cursor::new(vcpu, periods, self.clock.tolerances(vm, vcpu));
                let vcpus = vcpus.into_iter().map(cursor).collect();
                Inside { from: *from, vcpus, margins: Margins::default() }
            });
            self.check_stream(layer, stream, inside);
        }
    }

    fn check_stream(&mut self, layer: &TraceLayer, stream: &Stream, mut inside: Option<Inside<'_>>) {
        let file = || format!("{}/{}", layer.description.path, stream.description.file);
        let mut records = layer.records(stream);
        let mut latest = 0;
        let (mut count, mut unchecked) = (0, 0);
        for record in records.by_ref() {
            count += 1;
            let violation = |problem| Violation {
                stream: file(),
                ticks: Some(record.time),
                event: Some(record.schema.name().into()),
                problem,
            };
            if record.time < latest {
                self.result.out_of_order += 1;
                let earlier_ns = self.clock.ticks_to_ns(latest - record.time);
                self.keep(|| violation(Problem::OutOfOrder { earlier_ns }));
            }
            latest = latest.max(record.time);
            let Some(inside) = inside.as_mut().filter(|inside| record.time >= inside.from) else {
                unchecked += 1;
                continue;
            };
            if let Err(nearest) = inside.look_up(record.time) {
                self.result.outside += 1;
                let outside_ns = nearest.map(|(_, _, ticks)| self.clock.ticks_to_ns(ticks));
                let (vcpu, nearest) = (nearest.map(|(vcpu, ..)| vcpu), nearest.map(|(_, period, _)| period));
                self.keep(|| violation(Problem::Outside { vcpu, nearest, outside_ns }));
            }
        }
        self.result.records += count;
        let margins = inside.filter(|_| layer.description.kind == LayerKind::GuestKernel).map(|inside| inside.margins);
        if let Some(Margins { records, after_entry: Some(ahead), before_exit }) = margins {
            self.result.supported.push(SupportedBound {
                vm: layer.description.vm.clone().unwrap_or_default(),
                vcpu: stream.description.cpu_id,
                records,
                ahead_ns: self.clock.ticks_to_ns(ahead),
                behind_ns: before_exit.map(|ticks| self.clock.ticks_to_ns(ticks)),
            });
        }
        match layer.description.kind {
            LayerKind::GuestKernel => self.result.guest_kernel_records += count - unchecked,
            LayerKind::GuestUser => self.result.guest_user_records += count - unchecked,
            LayerKind::HostKernel | LayerKind::Vmm => unchecked = 0,
        }
        self.result.unchecked += unchecked;
        self.check_loss(self.is_complete, stream, &records.tail(), file);
        let damage = records.damage();
        let absent = stream.absent.then(|| "its file is empty or gone".to_string());
        if let Some(what) = absent.or_else(|| damage.any().then(|| damage.to_string())) {
            self.result.damaged += 1;
            self.keep(|| Violation { stream: file(), ticks: None, event: None, problem: Problem::Damaged { what } });
        }
    }

    fn keep(&mut self, violation: impl FnOnce() -> Violation) {
        if self.result.violations.len() < self.shown {
            self.result.violations.push(violation());
        }
    }
}

/// Whether a layer can tell when vCPUs were in the guest.
enum Usable {
    /// It has the events, and nothing of it is lost.
    Whole,
    /// It has the events, but not all.
    Incomplete(String),
    /// It has them not.
    No,
}

fn usable(trace: &Trace, vm: &Vm, source: SwitchSource) -> Usable {
    let totals = source.layers(trace, vm).map(Totals::of_layer).reduce(|sum, layer| sum.plus(&layer));
    match totals {
        None => Usable::No,
        Some(Totals { events: 0, .. }) => Usable::No,
        Some(totals) => totals.incomplete().map_or(Usable::Whole, Usable::Incomplete),
    }
}

/// The periods of a VM, and since when they are known.
#[derive(Default)]
struct Known {
    periods: Periods,
    /// Ticks; 0 when nothing was overwritten.
    from: u64,
}

/// Since when every stream of `layer` is there, ticks, if a flight recorder overwrote the beginning of any.
fn remaining_from(layer: &TraceLayer) -> Option<u64> {
    let mut cut = layer.streams.iter().filter(|stream| stream.description.overwritten > 0).peekable();
    cut.peek()?;
    // What a stream lost of which nothing is left was older than the others' rest; without any rest, nothing is known.
    Some(cut.filter_map(|stream| layer.records(stream).next()).map(|record| record.time).max().unwrap_or(u64::MAX))
}

/// From when to when every stream of `layer` has records, ticks, if a flight recorder overwrote the beginning of any.
fn remaining(layer: &TraceLayer) -> Option<Window> {
    let begin = remaining_from(layer)?;
    let last = layer.streams.iter().filter_map(|stream| Totals::of_stream(layer, stream).last).min();
    Some(Window { begin, end: last.unwrap_or(0) })
}

/// The periods that a stream's records may lie in.
struct Inside<'p> {
    /// Earlier records cannot be judged.
    from: u64,
    vcpus: Vec<Cursor<'p>>,
    margins: Margins,
}

/// The least times between records and the ends of their periods, ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Margins {
    records: u64,
    after_entry: Option<u64>,
    before_exit: Option<u64>,
}

impl Margins {
    fn add(&mut self, period: &Period, time: u64) {
        self.records += 1;
        let least = |old: Option<u64>, new: u64| Some(old.map_or(new, |old| old.min(new)));
        self.after_entry = least(self.after_entry, time - period.begin);
        if period.end != u64::MAX {
            self.before_exit = least(self.before_exit, period.end - time);
        }
    }
}

/// A place in the periods of a vCPU: records come in order, so that the next look-up is near the last.
struct Cursor<'p> {
    vcpu: u32,
    periods: &'p [Period],
    at: usize,
    tolerances: Tolerances,
}

impl Inside<'_> {
    /// Whether `time` lies in a period, give or take what the vCPU's clock may be wrong; else the nearest period and the
    /// distance from it.
    fn look_up(&mut self, time: u64) -> Result<(), Option<(u32, Period, u64)>> {
        let mut nearest: Option<(u32, Period, u64)> = None;
        for cursor in &mut self.vcpus {
            let Some((period, distance)) = cursor.nearest(time) else { continue };
            if distance == 0 {
                self.margins.add(&period, time);
            }
            if distance <= cursor.tolerances.at(time) {
                return Ok(());
            }
            if nearest.is_none_or(|(_, _, least)| distance < least) {
                nearest = Some((cursor.vcpu, period, distance));
            }
        }
        Err(nearest)
    }
}

impl<'p> Cursor<'p> {
    fn new(vcpu: u32, periods: &'p Periods, tolerances: Tolerances) -> Self {
        Self { vcpu, periods: periods.of(vcpu), at: 0, tolerances }
    }

    /// The period nearest to `time` and the distance from it, ticks: 0 inside.
    fn nearest(&mut self, time: u64) -> Option<(Period, u64)> {
        let begins_by = |index: usize| self.periods.get(index).is_some_and(|period| period.begin <= time);
        // The last period that begins by `time` is at or just after the last look-up's, unless time went back or far.
        if begins_by(self.at + 1) || !begins_by(self.at) {
            self.at = self.periods.partition_point(|period| period.begin <= time).saturating_sub(1);
        }
        let here = self.periods.get(self.at)?;
        let distance = |period: &Period| period.begin.saturating_sub(time).max(time.saturating_sub(period.end));
        let next = self.periods.get(self.at + 1).filter(|next| distance(next) < distance(here));
        let period = next.unwrap_or(here);
        Some((*period, distance(period)))
    }
}

#[cfg(test)]
mod tests;
