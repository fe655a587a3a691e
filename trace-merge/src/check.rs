//! Causality: a guest record must lie inside a period when its vCPU was in the guest. Whatever is wrong with the clock,
//! with the recorder or with the trace shows here.
//!
//! - A record of a guest kernel: inside a period of the vCPU whose stream holds it.
//! - A record of a guest process: inside a period of any vCPU of its VM, since a thread may move to another one between
//!   choosing the ring and reading the clock.
//! - An entry into a guest (`kvm:kvm_entry`): inside a run of its vCPU that the VMM records (`vmm:vcpu_enter` to
//!   `vmm:vcpu_exit`).
//! - A task that slept without being interruptible: runs again only after it was woken, by whichever CPU.
//! - All records: times never decrease within a stream, and no packet is damaged or missing. Each layer has the `metadata`
//!   that other readers of CTF need. The counts of lost records
//!   only grow, and the manifest does not claim less loss than the streams.
//! - Events that come in pairs are not alone without a reason (see [`pairs`]).
//!
//! Where the host's kernel has given up the TSC, a guest record beyond its vCPU's bound is not a violation: that bound was
//! observed, and the stretch is called not bounded.
//!
//! The periods are the host kernel's where nothing of that layer is missing, else the VMM's, which are wider. Where
//! records of both may be missing (a gap is open, or the vCPU has not entered or left the guest since one), guest records
//! are counted, and only their order is checked. So it is with a trace that was recovered from a region alone, which has no
//! periods at all.
//!
//! [`Check`] takes the steps of one merge in bounded memory.

pub mod pairs;
mod periods;
mod result;
mod text;

pub use result::{BeyondObserved, CheckResult, PeriodSummary, Problem, SupportedBound, Violation, VmPairs};

use pairs::Pairs;
use periods::{Candidate, Margins, Periods, Position};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use strata_analysis::completeness::GapTotals;
use strata_analysis::event::{self, Decoder};
use strata_analysis::timeline::by_number::ByNumber;
use strata_analysis::vcpu::{self, SwitchSource};
use strata_recording::clock::Tolerances;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Guest, Vm};
use strata_recording::reader::merge::{Merge, MergedRecord, Step};
use strata_recording::reader::{Damage, ReadError, Stream, StreamRecords, Trace, TraceLayer};
use strata_recording::text::terminal::{HarmlessJson, HarmlessText};
use strata_recording::window::Window;
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

/// Checks the recording in `dir` and writes the result to `out`. Whether it passed is in the result.
///
/// # Errors
/// When the recording cannot be read or checked, or `out` fails.
pub fn run(dir: &Path, options: &CheckOptions, out: &mut dyn Write) -> Result<CheckResult, CheckError> {
    let trace = Trace::open(dir)?;
    let result = check(&trace, options.shown)?;
    let written = if options.json {
        serde_json::to_writer_pretty(HarmlessJson(&mut *out), &Json { passed: result.passed(), result: &result })
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        text::write(&result, &trace, &mut HarmlessText(&mut *out))
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
    let mut merge = Merge::new(trace.layers(), 0);
    let mut check = Check::new(trace, shown)?;
    while let Some(step) = merge.next_step() {
        check.step(&step);
    }
    Ok(check.finish(&merge))
}

/// A check under way: takes the steps of a merge of all of a recording's layers, from its beginning to its end.
#[derive(Debug)]
pub struct Check<'t> {
    trace: &'t Trace,
    shown: usize,
    result: CheckResult,
    gaps: GapTotals,
    decoder: Decoder,
    /// By source of the merge.
    sources: Vec<Source<'t>>,
    vms: Vec<VmCheck<'t>>,
    /// What was decided with the last step.
    decided: Vec<(Candidate<'t>, Position)>,
}

/// A source of the merge.
#[derive(Debug)]
struct Source<'t> {
    layer: &'t TraceLayer,
    stream: &'t Stream,
    /// Time of the latest record, ticks.
    latest: u64,
    /// The VMs that its records concern.
    vms: Vec<OfVm>,
}

/// What a source is for one VM.
#[derive(Debug)]
struct OfVm {
    index: usize,
    /// Whether its vCPUs' entries and exits are recorded there.
    reports: bool,
}

/// The checks of a VM.
#[derive(Debug)]
struct VmCheck<'t> {
    vm: Vm,
    /// When its vCPUs were in the guest, as the host's kernel and as the VMM say.
    host_kernel: Option<Periods<'t>>,
    vmm: Option<Periods<'t>>,
    /// The VMM's periods again, which entries into the guest must lie inside.
    runs: Option<Periods<'t>>,
    tolerances: ByNumber<Tolerances>,
    /// How far clocks may be apart when nothing else is known, ticks.
    error_bound: u64,
    pairs: Pairs,
    /// Why pairs that are not whole are not violations, if so.
    lenient: Option<String>,
}

impl<'t> Check<'t> {
    /// A check of `trace`, which keeps the first `shown` violations.
    ///
    /// # Errors
    /// When no layer tells when a VM was in the guest, though there are records of its guest.
    pub fn new(trace: &'t Trace, shown: usize) -> Result<Self, CheckError> {
        let streams: Vec<_> =
            trace.layers().iter().flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream))).collect();
        let mut result = CheckResult { tolerance_ns: trace.clock().error_bound_ns, ..CheckResult::default() };
        let mut vms = Vec::new();
        for vm in vms_of(trace) {
            let periods = |source: SwitchSource| {
                // Those of a layer that goes on may come, and those of a part may have been before: its streams are gaps.
                let reports = |layer: &TraceLayer| {
                    let is_gap = |stream: &Stream| !layer.has_ended() || stream.begins_late();
                    has_records(layer) || layer.streams.iter().any(is_gap)
                };
                source.layers(trace, &vm).any(reports).then(|| Periods::new(source, &vm))
            };
            let (host_kernel, vmm) = (periods(SwitchSource::HostKernel), periods(SwitchSource::Vmm));
            let runs = host_kernel.as_ref().and_then(|_| periods(SwitchSource::Vmm));
            if host_kernel.is_none() && vmm.is_none() && guest_layers(trace, &vm.name).any(has_records) {
                if trace.manifest().missing.iter().all(|missing| missing.layer != LayerKind::Vmm) {
                    return Err(CheckError::NoPeriods { vm: vm.name });
                }
                result.without_periods.push(vm.name.clone());
            }
            vms.push(VmCheck::new(trace, vm, [host_kernel, vmm, runs], shown));
        }
        let sources = streams.iter().map(|&(layer, stream)| Source::new(trace, layer, stream, &vms)).collect();
        let gaps = GapTotals::new(streams.len(), Window::ALL);
        Ok(Self { trace, shown, result, gaps, decoder: Decoder::of_pairs(), sources, vms, decided: Vec::new() })
    }

    /// Takes the next step of the merge.
    pub fn step(&mut self, step: &Step<'t>) {
        self.gaps.step(step);
        match *step {
            Step::Record(ref merged) => self.record(merged),
            Step::GapBegin { source, time } => self.begin_gap(source, time),
            Step::GapEnd { source, time } => self.end_gap(source, time),
        }
        self.settle();
    }

    /// The result, after the last step of `merge`.
    #[must_use]
    pub fn finish(mut self, merge: &Merge<'_>) -> CheckResult {
        let decided = &mut self.decided;
        for vm in &mut self.vms {
            let periods = [&mut vm.host_kernel, &mut vm.vmm, &mut vm.runs];
            periods.into_iter().flatten().for_each(|periods| periods.finish(decided));
        }
        self.settle();
        let is_complete = self.trace.manifest().outcome.is_some();
        for (layer, stream, records) in merge.sources() {
            self.check_loss(is_complete, layer, stream, records);
            let damage = records.damage();
            let absent = stream.absent.then(|| "its file is empty or gone".to_string());
            if let Some(what) = absent.or_else(|| (damage != Damage::default()).then(|| damage.to_string())) {
                self.result.damaged += 1;
                let stream = file(layer, stream);
                self.keep(|| Violation { stream, ticks: None, event: None, problem: Problem::Damaged { what } });
            }
        }
        for layer in self.trace.layers() {
            if let Some(what) = layer.metadata_problem() {
                self.result.damaged += 1;
                let stream = format!("{}/metadata", layer.description.path);
                self.keep(|| Violation { stream, ticks: None, event: None, problem: Problem::Damaged { what } });
            }
        }
        for vm in std::mem::take(&mut self.vms) {
            self.sum_up(vm);
        }
        self.result.completeness = self.gaps.finish(merge, self.trace.manifest());
        self.result
    }

    fn record(&mut self, merged: &MergedRecord<'t>) {
        let Some(source) = self.sources.get_mut(merged.source) else { return };
        let (layer, record) = (source.layer, &merged.record);
        self.result.records += 1;
        let earlier = source.latest.saturating_sub(record.time);
        source.latest = source.latest.max(record.time);
        let event = self.decoder.event(merged);
        for of_vm in &source.vms {
            let Some(vm) = self.vms.get_mut(of_vm.index) else { continue };
            match layer.description.kind {
                LayerKind::HostKernel | LayerKind::Vmm => {
                    let Some(event) = &event else { continue };
                    let switch = vcpu::switch(event, &vm.vm).filter(|_| of_vm.reports);
                    if let Some((vcpu, exit)) = switch {
                        let is_inside = vm.switch(merged, vcpu, exit.is_none(), &mut self.decided);
                        self.result.entries_checked += u64::from(is_inside);
                    }
                    vm.pairs.record(merged, event);
                }
                LayerKind::GuestKernel => {
                    let vcpu = Some(merged.stream.description.cpu_id);
                    match vm.judge(merged, vcpu, &mut self.decided) {
                        Some(is_inside) => self.result.guest_kernel_records += u64::from(is_inside),
                        None => self.result.unchecked += 1,
                    }
                    if let Some(event) = &event {
                        vm.pairs.record(merged, event);
                    }
                }
                LayerKind::GuestUser => match vm.judge(merged, None, &mut self.decided) {
                    Some(is_inside) => self.result.guest_user_records += u64::from(is_inside),
                    None => self.result.unchecked += 1,
                },
            }
        }
        if earlier > 0 {
            self.result.out_of_order += 1;
            let problem = Problem::OutOfOrder { earlier_ns: self.trace.clock().ticks_to_ns(earlier) };
            self.keep(|| violation(merged.layer, merged.stream, record.time, record.schema.name(), problem));
        }
    }

    fn begin_gap(&mut self, source: usize, time: u64) {
        let Some(source) = self.sources.get(source) else { return };
        let kind = source.layer.description.kind;
        for of_vm in &source.vms {
            let Some(vm) = self.vms.get_mut(of_vm.index) else { continue };
            vm.pairs.begin_gap(kind, source.stream.description.cpu_id);
            if of_vm.reports {
                for periods in vm.periods_of(kind) {
                    periods.begin_gap(time, &mut self.decided);
                }
            }
        }
    }

    fn end_gap(&mut self, source: usize, time: u64) {
        let Some(source) = self.sources.get(source) else { return };
        let kind = source.layer.description.kind;
        for of_vm in &source.vms {
            let Some(vm) = self.vms.get_mut(of_vm.index) else { continue };
            vm.pairs.end_gap(kind, source.stream.description.cpu_id);
            if of_vm.reports {
                vm.periods_of(kind).for_each(|periods| periods.end_gap(time));
            }
        }
    }

    /// Takes in what was decided.
    #[inline]
    fn settle(&mut self) {
        if !self.decided.is_empty() {
            self.settle_decided();
        }
    }

    #[inline(never)]
    fn settle_decided(&mut self) {
        let mut decided = std::mem::take(&mut self.decided);
        for (candidate, position) in decided.drain(..) {
            let Some(&Source { layer, stream, .. }) = self.sources.get(candidate.source) else { continue };
            let clock = self.trace.clock();
            let kind = layer.description.kind;
            let count = match kind {
                LayerKind::GuestKernel => &mut self.result.guest_kernel_records,
                LayerKind::GuestUser => &mut self.result.guest_user_records,
                LayerKind::HostKernel | LayerKind::Vmm => &mut self.result.entries_checked,
            };
            let is_guest = matches!(kind, LayerKind::GuestKernel | LayerKind::GuestUser);
            if let Position::Unknown = position {
                self.result.unchecked += u64::from(is_guest);
                continue;
            }
            *count += 1;
            let Position::Outside(nearest) = position else { continue };
            if nearest.is_some_and(|(_, _, ticks)| ticks <= candidate.tolerance) {
                continue;
            }
            if let Some((vcpu, _, ticks)) =
                nearest.filter(|_| is_guest && clock.guest_bounds_are_observed(candidate.time))
            {
                let Some(vm) = layer.description.vm.as_deref() else { continue };
                let stretch = self.result.stretch_beyond_observed(vm, vcpu, candidate.time);
                stretch.records += 1;
                stretch.to_ticks = stretch.to_ticks.max(candidate.time);
                stretch.most_ns = stretch.most_ns.max(clock.ticks_to_ns(ticks));
                stretch.bound_ns = stretch.bound_ns.max(clock.ticks_to_ns(candidate.tolerance));
                continue;
            }
            let outside_ns = nearest.map(|(_, _, ticks)| clock.ticks_to_ns(ticks));
            let problem = if is_guest {
                self.result.outside += 1;
                let (vcpu, nearest) = (nearest.map(|(vcpu, ..)| vcpu), nearest.map(|(_, period, _)| period));
                Problem::Outside { vcpu, nearest, outside_ns }
            } else {
                self.result.outside_runs += 1;
                Problem::OutsideRun { vcpu: candidate.vcpu.unwrap_or_default(), outside_ns }
            };
            self.keep(|| violation(layer, stream, candidate.time, candidate.schema.name(), problem));
        }
        // Its memory is used again.
        self.decided = decided;
    }

    /// Counts of lost records agree with each other.
    fn check_loss(&mut self, is_complete: bool, layer: &TraceLayer, stream: &Stream, records: &StreamRecords<'_>) {
        let read = records.counts();
        let (in_manifest, in_stream) = (stream.description.lost.total(), read.lost.total());
        let what = if read.counts_went_back {
            "its packets' counts of lost records went back".to_string()
        } else if is_complete && !stream.absent && in_manifest < in_stream {
            format!("session.json counts {in_manifest} lost records, its packets {in_stream}")
        } else {
            return;
        };
        self.result.loss_contradictions += 1;
        let stream = file(layer, stream);
        self.keep(|| Violation { stream, ticks: None, event: None, problem: Problem::Loss { what } });
    }

    fn sum_up(&mut self, vm: VmCheck<'t>) {
        let clock = self.trace.clock();
        let name = &vm.vm.name;
        let all: Vec<&Periods<'t>> = [&vm.host_kernel, &vm.vmm].into_iter().flatten().collect();
        let mut by_vcpu: BTreeMap<u32, Margins> = BTreeMap::new();
        let mut any = Margins::default();
        for periods in &all {
            for (vcpu, margins) in periods.margins() {
                let sum = by_vcpu.entry(vcpu).or_default();
                *sum = sum.plus(&margins);
            }
            any = any.plus(&periods.any_margins());
        }
        let bounds = by_vcpu.into_iter().map(|(vcpu, margins)| (Some(vcpu), margins)).filter(|(_, of)| of.records > 0);
        for (vcpu, margins) in bounds.chain([(None, any)].into_iter().filter(|(_, of)| of.outside > 0)) {
            let ns = |ticks: Option<u64>| ticks.filter(|_| margins.outside == 0).map(|ticks| clock.ticks_to_ns(ticks));
            self.result.supported.push(SupportedBound {
                vm: name.clone(),
                vcpu,
                records: margins.records,
                ahead_ns: ns(margins.after_entry),
                behind_ns: ns(margins.before_exit),
                outside: margins.outside,
                early_ns: clock.ticks_to_ns(margins.early),
                late_ns: clock.ticks_to_ns(margins.late),
            });
        }
        let first = all.first().map(|periods| periods.source);
        for periods in &all {
            let is_used = periods.judged > 0 || Some(periods.source) == first && all.iter().all(|of| of.judged == 0);
            let remark = match (periods.source, &vm.host_kernel) {
                (SwitchSource::HostKernel, _) => None,
                (SwitchSource::Vmm, None) => Some("the host-kernel layer has no KVM events".to_string()),
                (SwitchSource::Vmm, Some(_)) => {
                    Some("the host-kernel layer has gaps, in which the vmm layer's periods count".to_string())
                }
            };
            if is_used {
                let &Periods { source, count, judged: records, from, .. } = *periods;
                let from = from.unwrap_or(u64::MAX);
                self.result.periods.push(PeriodSummary { vm: name.clone(), source, count, records, remark, from });
            }
        }
        let (pairs, alone) = vm.pairs.finish();
        if pairs.is_empty() {
            return;
        }
        if vm.lenient.is_none() {
            for alone in alone {
                let problem = Problem::Unbalanced { what: alone.what };
                let (stream, ticks, event) = (alone.stream, Some(alone.time), Some(alone.event));
                self.keep(|| Violation { stream, ticks, event, problem });
            }
        }
        self.result.pairs.push(VmPairs { vm: vm.vm.name, pairs, lenient: vm.lenient });
    }

    fn keep(&mut self, violation: impl FnOnce() -> Violation) {
        if self.result.violations.len() < self.shown {
            self.result.violations.push(violation());
        }
    }
}

impl<'t> Source<'t> {
    fn new(trace: &Trace, layer: &'t TraceLayer, stream: &'t Stream, vms: &[VmCheck<'t>]) -> Self {
        let kind = layer.description.kind;
        let source = match kind {
            LayerKind::HostKernel => Some(SwitchSource::HostKernel),
            LayerKind::Vmm => Some(SwitchSource::Vmm),
            LayerKind::GuestKernel | LayerKind::GuestUser => None,
        };
        let of_vm = |vm: &Vm| match kind {
            LayerKind::HostKernel => layer.description.host == vm.host,
            _ => layer.description.vm.as_ref() == Some(&vm.name),
        };
        let vms = vms.iter().enumerate().filter(|(_, check)| of_vm(&check.vm)).map(|(index, check)| {
            let reports = |source: &SwitchSource| source.layers(trace, &check.vm).any(|of| std::ptr::eq(of, layer));
            OfVm { index, reports: source.filter(reports).is_some() }
        });
        Self { layer, stream, latest: 0, vms: vms.collect() }
    }
}

impl<'t> VmCheck<'t> {
    fn new(trace: &Trace, vm: Vm, periods: [Option<Periods<'t>>; 3], shown: usize) -> Self {
        let clock = trace.clock();
        let vcpus = guest_layers(trace, &vm.name).flat_map(|layer| &layer.streams);
        let known = clock.epochs.iter().filter(|epoch| epoch.vm == vm.name).map(|epoch| epoch.vcpu);
        let vcpus = vcpus.map(|stream| stream.description.cpu_id).chain(known);
        let tolerances: ByNumber<Tolerances> = vcpus.map(|vcpu| (vcpu, clock.tolerances(&vm.name, vcpu))).collect();
        let largest = tolerances.values().map(Tolerances::largest).max().unwrap_or(0);
        let of_vm = |layer: &&TraceLayer| layer.description.vm.as_ref() == Some(&vm.name);
        let mut vmm = trace.layers_of(LayerKind::Vmm).filter(of_vm);
        // What stopped and started a session is in the VMM's layer.
        let knows_changes = vmm.any(|layer| event::is_recorded(layer, event::name::CONTROL));
        let lenient = (!knows_changes).then(|| {
            "without vmm:control it is not known whether the events were changed or stopped in between".to_string()
        });
        let mut pairs =
            Pairs::new(vm.all_vcpu_threads().map(|(_, tid)| tid).collect(), largest.saturating_mul(2), shown);
        if vm.guest.as_ref().is_some_and(Guest::is_preemptible_rt) {
            pairs = pairs.with_preemptible_soft_interrupts();
        }
        let [host_kernel, vmm, runs] = periods;
        let error_bound = clock.error_bound_ticks();
        Self { vm, host_kernel, vmm, runs, tolerances, error_bound, pairs, lenient }
    }

    /// The periods that a layer of `kind` tells.
    fn periods_of(&mut self, kind: LayerKind) -> impl Iterator<Item = &mut Periods<'t>> {
        let [one, other] = match kind {
            LayerKind::HostKernel => [self.host_kernel.as_mut(), None],
            _ => [self.vmm.as_mut(), self.runs.as_mut()],
        };
        one.into_iter().chain(other)
    }

    /// `merged`: `vcpu` enters or leaves the guest. Whether it enters inside a run; where that is not so, or not decided yet,
    /// it is put out.
    fn switch(
        &mut self,
        merged: &MergedRecord<'t>,
        vcpu: u32,
        enters: bool,
        decided: &mut Vec<(Candidate<'t>, Position)>,
    ) -> bool {
        let (time, kind) = (merged.record.time, merged.layer.description.kind);
        for periods in self.periods_of(kind) {
            periods.switch(time, vcpu, enters, decided);
        }
        if let (LayerKind::HostKernel, true, Some(runs)) = (kind, enters, &mut self.runs) {
            let tolerance = self.error_bound;
            let (source, schema) = (merged.source, merged.record.schema);
            return runs.judge(Candidate { time, tolerance, source, schema, vcpu: Some(vcpu) }, decided);
        }
        false
    }

    /// Judges `merged`, a record of the guest on `vcpu` or on any: whether it lies inside a period, `None` when no layer
    /// tells where that was. One that lies elsewhere, or where that is not decided yet, is put out.
    fn judge(
        &mut self,
        merged: &MergedRecord<'t>,
        vcpu: Option<u32>,
        decided: &mut Vec<(Candidate<'t>, Position)>,
    ) -> Option<bool> {
        let (time, otherwise) = (merged.record.time, self.error_bound);
        let tolerance = match vcpu {
            Some(vcpu) => self.tolerances.get(vcpu).map_or(otherwise, |tolerances| tolerances.at(time)),
            None => periods::widest(&self.tolerances, time, otherwise),
        };
        let (source, schema) = (merged.source, merged.record.schema);
        let candidate = Candidate { time, tolerance, source, schema, vcpu };
        let mut all = [&mut self.host_kernel, &mut self.vmm].into_iter().flatten();
        all.find_map(|periods| periods.judge_known(candidate, decided))
    }
}

/// The VMs of `trace`: those of the manifest, and those that only have layers.
fn vms_of(trace: &Trace) -> Vec<Vm> {
    let mut vms = trace.manifest().vms.clone();
    for name in trace.layers().iter().filter_map(|layer| layer.description.vm.as_ref()) {
        if vms.iter().all(|vm| vm.name != *name) {
            vms.push(Vm { name: name.clone(), ..Vm::default() });
        }
    }
    vms
}

/// The layers of the guest of the VM called `vm`.
fn guest_layers<'t>(trace: &'t Trace, vm: &str) -> impl Iterator<Item = &'t TraceLayer> {
    let is_guest =
        |layer: &&TraceLayer| matches!(layer.description.kind, LayerKind::GuestKernel | LayerKind::GuestUser);
    trace.layers().iter().filter(is_guest).filter(move |layer| layer.description.vm.as_deref() == Some(vm))
}

fn has_records(layer: &TraceLayer) -> bool {
    layer.streams.iter().any(|stream| layer.records(stream).next().is_some())
}

fn file(layer: &TraceLayer, stream: &Stream) -> String {
    format!("{}/{}", layer.description.path, stream.description.file)
}

fn violation(layer: &TraceLayer, stream: &Stream, ticks: u64, event: &str, problem: Problem) -> Violation {
    Violation { stream: file(layer, stream), ticks: Some(ticks), event: Some(event.into()), problem }
}

#[cfg(test)]
mod tests;
