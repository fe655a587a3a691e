//! What recording cost in this very recording: CPU time of strata's own threads, time that they took from the guest,
//! time that probes took, and bytes on the disk.
//!
//! CPU times are the kernel's own account, from `session.json`: the recorder is left out of what it records, so that
//! its switches are in the recording only where it ran in place of a vCPU. Those tell what it took from the guest.
//!
//! What a record cost is measured where it was made: the time from one record of a CPU to the next holds the second
//! half of making the one and the first half of making the other, and whatever ran in between. Where nothing did, it is
//! what a record costs. The shortest of those times therefore are, and a thousandth of them is taken for such.

use crate::report::rows::columns::{self, Column, ReportRow, Unit, column};
use crate::report::scheduling::state_names;
use crate::report::sink::Sink;
use crate::report::statistics::distribution::Quantiles;
use crate::report::{Window, duration, percent};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::timeline::fused::Fused;
use strata_analysis::timeline::vcpu::{Preemptor, VcpuState};
use strata_analysis::timeline::{Change, Input, Timeline};
use strata_analysis::{Gap, Passed};
use strata_recording::files::compression::Compression;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{RECORDING_THREADS, StrataThread, Vm};
use strata_recording::reader::{Stream, Trace};
use strata_recording::text::terminal::harmless;

/// Fewer times between records than this do not tell what a record costs.
const LEAST_SPACINGS: u64 = 100;
/// So many thousandths of the times between two records of a CPU are taken for such in which nothing else ran.
const BACK_TO_BACK: u16 = 1;
/// Events that the agent makes by itself, one after the other in a loop, without a probe.
const AGENTS_OWN: &str = "strata:";
/// What names of strata's threads begin with, where the recording does not say which they are.
const THREAD_PREFIX: &str = "strata-";

/// What recording cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordingCost {
    /// For each VM: what strata's threads used, and what they took from it.
    pub vms: Vec<VmCost>,
    /// For each kind of layer with records: what making these took.
    #[serde(serialize_with = "columns::serialize")]
    pub records: Vec<RecordsCost>,
    /// Written to the disk for the streams of all layers, what was dropped since included, bytes.
    pub disk_bytes: u64,
    /// How they are compressed there, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
}

/// What strata's threads used, and took from a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VmCost {
    /// Name of the VM.
    pub vm: String,
    /// Strata's threads but for the vCPUs', the one that used most first; of the whole recording. Empty where the
    /// recording does not say.
    pub threads: Vec<StrataThread>,
    /// Time that vCPUs' threads spent in the VMM with exits, ns: what any VMM does, its own tracepoints included.
    pub vmm_ns: u64,
    /// Time in which vCPUs were in the guest, ns; in the guest or in KVM where nothing tells them apart.
    pub guest_ns: u64,
    /// Time in which vCPUs were to run and the host ran something else.
    pub vcpus_waited: Taken,
    /// The part of it in which the guest had a task running.
    pub tasks_stolen: Taken,
    /// Strata's threads that ran meanwhile, with the time stolen from tasks, ns; the worst one first.
    pub thieves: Vec<Thief>,
}

/// Time that somebody took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// All of it, whoever took it, ns.
    pub total_ns: u64,
    /// By strata's own threads, ns.
    pub by_strata_ns: u64,
    /// The part of that which was taken by the threads that record, ns. The others do what any VMM does: serve devices,
    /// write the console.
    pub by_recording_ns: u64,
}

/// One of strata's threads that ran in place of a vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Thief {
    /// Name and number, as all reports call it.
    pub thread: String,
    /// Stolen from tasks of the guest, ns.
    pub ns: u64,
    /// Whether it is there for the recording.
    pub records: bool,
}

/// What making the records of a kind of layer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordsCost {
    pub layer: LayerKind,
    /// Records that are there.
    pub records: u64,
    /// What one of them took, ns: a thousandth of the times between two records of one CPU are at most this. `None`
    /// where there are too few to tell.
    pub each_ns: Option<u64>,
    /// All together, ns: an estimate, since not every record costs the same.
    pub estimated_ns: Option<u64>,
}

impl ReportRow for RecordsCost {
    const COLUMNS: &'static [Column<Self>] = &[
        column("layer", "records of", Unit::Text, "The layers", |row| row.layer.name().into()),
        column("records", "number", Unit::Count, "Their records", |row| row.records.into()),
        column("each_ns", "each", Unit::Ns, "What one took", |row| row.each_ns.into()),
        column("estimated_ns", "all", Unit::Ns, "All together", |row| row.estimated_ns.into()),
    ];
}

impl RecordingCost {
    /// Whether `thread`, as reports call it, is one of strata's that ran in place of a vCPU of `vm`.
    #[must_use]
    pub fn is_thief(&self, vm: &str, thread: &str) -> bool {
        self.vms.iter().filter(|of| of.vm == vm).flat_map(|of| &of.thieves).any(|thief| thief.thread == thread)
    }
}

/// By VM: times by who ran in place of a vCPU, ticks.
type ByPreemptor = BTreeMap<usize, BTreeMap<Preemptor, u64>>;

/// The cost in the making. Takes memory for each stream, and each thread that ran in place of a vCPU.
#[derive(Debug)]
pub(super) struct CostBuilder {
    window: Window,
    /// By stream: when its last record was made; `None` after a gap.
    last: Vec<Option<u64>>,
    /// By kind of layer, in the order of [`LayerKind::ALL`]: times between two records.
    spacings: [Spacings; LayerKind::ALL.len()],
    waited: ByPreemptor,
    stolen: ByPreemptor,
    /// By VM: time in the guest and in the VMM, ticks.
    inside: BTreeMap<usize, (u64, u64)>,
}

/// Times between two records, ticks.
#[derive(Debug, Default)]
struct Spacings {
    count: u64,
    longest: u64,
    times: Quantiles,
}

impl CostBuilder {
    pub(super) fn new(window: Window) -> Self {
        Self {
            window,
            last: Vec::new(),
            spacings: Default::default(),
            waited: ByPreemptor::new(),
            stolen: ByPreemptor::new(),
            inside: BTreeMap::new(),
        }
    }

    pub(super) fn record(&mut self, input: &Input<'_>) {
        let time = input.time();
        if time >= self.window.end {
            return;
        }
        if self.last.len() <= input.source {
            self.last.resize(input.source + 1, None);
        }
        let Some(last) = self.last.get_mut(input.source) else { return };
        if input.record.schema.name().starts_with(AGENTS_OWN) {
            *last = None;
            return;
        }
        let last = last.replace(time);
        // Where the kernel could not date a record, it has the time of the one before.
        if let Some(spacing) = last.map(|last| time.saturating_sub(last)).filter(|&spacing| spacing > 0)
            && let Some(spacings) = self.spacings.get_mut(input.origin.layer() as usize)
        {
            spacings.count += 1;
            spacings.longest = spacings.longest.max(spacing);
            spacings.times.add(spacing);
        }
    }

    pub(super) fn gap(&mut self, gap: &Gap) {
        if let Some(last) = self.last.get_mut(gap.source) {
            *last = None;
        }
    }

    pub(super) fn change(&mut self, change: &Change) {
        // Only states that have ended concern it.
        let Some(window) = change.window().intersection(&Window { begin: 0, end: self.window.end }) else { return };
        let ticks = window.length();
        match *change {
            Change::Vcpu { vm, state: VcpuState::Stolen { by, .. }, .. } => {
                *self.waited.entry(vm).or_default().entry(by).or_default() += ticks;
            }
            Change::Vcpu { vm, state: VcpuState::Guest | VcpuState::KvmRun, .. } => {
                self.inside.entry(vm).or_default().0 += ticks;
            }
            Change::Vcpu { vm, state: VcpuState::Vmm(_), .. } => self.inside.entry(vm).or_default().1 += ticks,
            Change::Task { vm, state: Fused::Stolen(by), .. } => {
                *self.stolen.entry(vm).or_default().entry(by).or_default() += ticks;
            }
            _ => {}
        }
    }

    pub(super) fn finish(self, trace: &Trace, passed: &Passed) -> RecordingCost {
        let clock = trace.clock();
        let records = LayerKind::ALL.into_iter().zip(&self.spacings).filter_map(|(layer, spacings)| {
            let layers = trace.layers().iter().zip(&passed.totals);
            let of_kind = layers.filter(|(of, _)| of.description.kind == layer);
            let records = of_kind.map(|(_, totals)| totals.events).fold(0, u64::saturating_add);
            let [each] = spacings.times.quantiles([BACK_TO_BACK]);
            let each = (spacings.count >= LEAST_SPACINGS).then_some(each.min(spacings.longest));
            (records > 0).then(|| RecordsCost {
                layer,
                records,
                each_ns: each.map(|ticks| clock.ticks_to_ns(ticks)),
                estimated_ns: each.map(|ticks| clock.ticks_to_ns(ticks.saturating_mul(records))),
            })
        });
        let vms = trace.manifest().vms.iter().enumerate();
        RecordingCost {
            vms: vms.map(|(index, vm)| self.of_vm(index, vm, trace, &passed.timeline)).collect(),
            records: records.collect(),
            disk_bytes: trace.layers().iter().flat_map(|layer| &layer.streams).map(Stream::stored_bytes).sum(),
            compression: trace.manifest().compression,
        }
    }

    fn of_vm(&self, index: usize, vm: &Vm, trace: &Trace, timeline: &Timeline) -> VmCost {
        let (clock, host) = (trace.clock(), timeline.host_of(index));
        // Threads of any recorder on that host: one VM's may be another one's thief.
        let on_host = trace.manifest().vms.iter().filter(|other| other.host == vm.host);
        let of_vm = |vm| own_threads(vm).map(move |thread| (thread.tid, records(vm, &thread.name)));
        let known: BTreeMap<i32, bool> = on_host.flat_map(of_vm).collect();
        // Of one of strata's, whether it is there for a recording.
        let strata = |by: Preemptor| {
            let Preemptor::Thread(thread) = by else { return None };
            let by_name = || {
                let name = host?.thread_name(thread);
                name.starts_with(THREAD_PREFIX).then(|| RECORDING_THREADS.contains(&name.as_str()))
            };
            known.get(&thread.tid).copied().or_else(by_name)
        };
        let none = BTreeMap::new();
        let waited = self.waited.get(&index).unwrap_or(&none);
        let stolen = self.stolen.get(&index).unwrap_or(&none);
        let taken = |from: &BTreeMap<Preemptor, u64>| {
            let by = |is_meant: fn(bool) -> bool| {
                let of = from.iter().filter(|(by, _)| strata(**by).is_some_and(is_meant));
                clock.ticks_to_ns(of.map(|(_, ticks)| ticks).sum())
            };
            Taken {
                total_ns: clock.ticks_to_ns(from.values().sum()),
                by_strata_ns: by(|_| true),
                by_recording_ns: by(|records| records),
            }
        };
        let mut thieves: BTreeMap<String, (u64, bool)> = BTreeMap::new();
        for by in waited.keys().chain(stolen.keys()) {
            if let Some(records) = strata(*by) {
                let ticks = stolen.get(by).copied().unwrap_or(0);
                thieves.insert(state_names::preemptor(host, *by), (ticks, records));
            }
        }
        let thief = |(thread, (ticks, records))| Thief { thread, ns: clock.ticks_to_ns(ticks), records };
        let mut thieves: Vec<Thief> = thieves.into_iter().map(thief).collect();
        thieves.sort_by_key(|thief| Reverse(thief.ns));
        let mut threads: Vec<StrataThread> = own_threads(vm).cloned().collect();
        threads.sort_by_key(|thread| Reverse(thread.cpu_ns));
        let (guest, vmm) = self.inside.get(&index).copied().unwrap_or_default();
        VmCost {
            vm: vm.name.clone(),
            threads,
            vmm_ns: clock.ticks_to_ns(vmm),
            guest_ns: clock.ticks_to_ns(guest),
            vcpus_waited: taken(waited),
            tasks_stolen: taken(stolen),
            thieves,
        }
    }
}

/// The threads of the strata process that recorded `vm`, without those that are its vCPUs.
fn own_threads(vm: &Vm) -> impl Iterator<Item = &StrataThread> {
    vm.strata_threads.iter().filter(|thread| vm.vcpu_of_thread(thread.tid).is_none())
}

/// Whether the thread called `name` of the process that recorded `vm` is there for the recording: all are of one that is
/// attached to another process's VM.
fn records(vm: &Vm, name: &str) -> bool {
    vm.attached.is_some() || RECORDING_THREADS.contains(&name)
}

pub(super) fn write_cost(cost: &RecordingCost, out: &mut dyn Sink) -> io::Result<()> {
    writeln!(out, "\nwhat recording cost")?;
    for vm in &cost.vms {
        vm.write(out)?;
    }
    if !cost.records.is_empty() {
        columns::write(&cost.records, out)?;
        writeln!(
            out,
            "each: the shortest time between two records of a CPU in this recording; all: an estimate by it"
        )?;
    }
    let compressed = cost.compression.map_or_else(String::new, |form| format!(", compressed by {}", form.name()));
    writeln!(out, "written to the disk: {} KiB{compressed}", cost.disk_bytes >> 10)
}

impl VmCost {
    fn write(&self, out: &mut dyn Sink) -> io::Result<()> {
        let vm = harmless(&self.vm);
        match self.threads.as_slice() {
            [] => writeln!(out, "{vm}: CPU time of strata's threads: not known; it is written when a recording ends")?,
            threads => {
                let thread = |of: &StrataThread| format!("{} {}", harmless(&of.name), duration(of.cpu_ns));
                let used: Vec<String> = threads.iter().filter(|of| of.cpu_ns > 0).map(thread).collect();
                let total = threads.iter().map(|of| of.cpu_ns).fold(0, u64::saturating_add);
                writeln!(out, "{vm}: CPU time of strata's threads: {} ({})", duration(total), used.join(", "))?;
            }
        }
        writeln!(
            out,
            "{vm}: vCPUs in the VMM, for exits: {}; in the guest: {}",
            duration(self.vmm_ns),
            duration(self.guest_ns)
        )?;
        let taken = |taken: &Taken| {
            let share = |part| percent(part, taken.total_ns);
            format!(
                "{} of {} ({}), {} of it by those that record ({})",
                duration(taken.by_strata_ns),
                duration(taken.total_ns),
                share(taken.by_strata_ns),
                duration(taken.by_recording_ns),
                share(taken.by_recording_ns)
            )
        };
        let (waited, stolen) = (taken(&self.vcpus_waited), taken(&self.tasks_stolen));
        writeln!(out, "{vm}: taken by strata's threads of the time that vCPUs waited to run: {waited}")?;
        writeln!(out, "{vm}: taken by them of the time stolen from running tasks: {stolen}")
    }
}

#[cfg(test)]
mod tests;
