//! How it ended: what each CPU was doing, in the host and in the guest, when the guest's kernel recorded for the last
//! time.
//!
//! The moment is that of the last record of the guest's kernel in the window: of a guest that died, or hung, the last
//! sign of life. What the VMM recorded behind it is shown too, since it is what the host saw of the end. With a window
//! that ends earlier, it is a look at any moment.

mod last;
mod text;

use super::description::{Description, Requested};
use super::rows::columns::{self, Column, ReportRow, Unit, Value, column};
use super::scheduling::{state_names, vcpus};
use super::{ReportBuilder, ReportError, Window, duration, signed_duration};
use last::{Fields, LastRecords, Latest};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use strata_analysis::event::{self, Event, Tid};
use strata_analysis::kernel_symbols::{KERNEL_HALF, KernelSymbols};
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::host::{Host, HostCpuState};
use strata_analysis::timeline::states::{Current, TaskState};
use strata_analysis::timeline::vcpu::VcpuState;
use strata_analysis::timeline::{ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Passed};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::text::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "death",
    about: "How it ended: what each CPU of guest and host did when the guest's kernel recorded for the last time, its \
            console, and the last exits, samples and records; with --until, the same of any moment",
    requested: Requested::Command,
    examples: &["strata report death trace", "strata report death trace --until 12.5"],
    takes_symbols: false,
    is_in_all: false,
    rows: &[
        columns::rows::<CpuDeath>("vms[].cpus[]"),
        columns::rows::<HostCpuDeath>("vms[].host_cpus[]"),
        columns::rows::<Line>("vms[].console[]"),
        columns::rows::<LastExit>("vms[].cpus[].exits[]"),
        columns::rows::<LastRecord>("vms[].vmm[]"),
    ],
    begin: |trace, window, _| Ok(Box::new(LastMoments::new(trace, window))),
};

/// Exits of each vCPU that are kept.
const EXITS: usize = 5;
/// Lines of the guest's console that are kept: an oops and the panic that it leads to, each with registers and stack.
const LINES: usize = 200;
/// Functions of a stack that are kept.
const FRAMES: usize = 32;
/// A line of the guest's console (`printk:console`).
const CONSOLE: &str = "printk:console";
/// The field of the host's events that names the thread which records them.
const THREAD: &str = "common_pid";

/// How the VMs of a recording ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Death {
    /// What ended the recording.
    pub outcome: String,
    pub vms: Vec<VmDeath>,
    /// Whether only a part of the recording was looked at.
    #[serde(skip)]
    is_of_part: bool,
}

/// How a VM ended. Times are ns, and relative to the moment: those before it are below zero.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmDeath {
    /// Name of the VM.
    pub vm: String,
    /// The moment, ns after the first record of the recording.
    pub moment_ns: u64,
    /// Whether it is the last record of the guest's kernel; otherwise that layer is not there, and it is the last
    /// record of all.
    pub is_guests: bool,
    /// How long the window goes on behind it, ns.
    pub after_ns: u64,
    /// What the guest's kernel printed last.
    #[serde(serialize_with = "columns::serialize")]
    pub console: Vec<Line>,
    /// Its CPUs.
    #[serde(serialize_with = "columns::serialize")]
    pub cpus: Vec<CpuDeath>,
    /// Those of its host.
    #[serde(serialize_with = "columns::serialize")]
    pub host_cpus: Vec<HostCpuDeath>,
    /// The last records of the VMM, up to the end of the window.
    #[serde(serialize_with = "columns::serialize")]
    pub vmm: Vec<LastRecord>,
}

/// What a time is relative to.
const NS: &str = "When, relative to the moment";

/// A line of a console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub ns: i64,
    pub text: String,
}

impl ReportRow for Line {
    const COLUMNS: &'static [Column<Self>] = &[
        column("ns", "ns", Unit::Ns, NS, |row| row.ns.into()),
        column("text", "line", Unit::Text, "What the guest's kernel printed", |row| (&row.text).into()),
    ];
}

/// A CPU of a guest.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuDeath {
    pub cpu: u32,
    /// What it did, as the guest's kernel tells.
    pub guest: String,
    /// What its vCPU did, and why; where records end before, what it did last, and until when.
    pub vcpu: String,
    /// For how long, ns; `None` where that is not known.
    pub vcpu_ns: Option<u64>,
    /// When it recorded for the last time; `None` for a CPU without records.
    pub last_ns: Option<i64>,
    /// Its last exits.
    pub exits: Vec<LastExit>,
    /// Its last sample.
    pub sample: Option<LastSample>,
    /// Its last records.
    pub records: Vec<LastRecord>,
}

impl ReportRow for CpuDeath {
    const COLUMNS: &'static [Column<Self>] = &[
        column("cpu", "vCPU", Unit::Number, "Its number", |row| row.cpu.into()),
        column("guest", "guest", Unit::Text, "What it did, by the guest's kernel", |row| (&row.guest).into()),
        column("vcpu", "vCPU's thread", Unit::Text, "What its vCPU did, and why", |row| (&row.vcpu).into()),
        column("vcpu_ns", "for", Unit::Ns, "For how long", |row| row.vcpu_ns.into()),
        column("last_ns", "last record", Unit::Ns, "When it last recorded", |row| row.last_ns.into()),
        column("exits", "", Unit::Rows, "Its last exits", |row| Value::rows(&row.exits)),
        column("", "last exits", Unit::Text, "The last two", |row| last_two(&row.exits).into()),
        column("sample", "", Unit::Object, "Its last sample: `ns`, `stack`", |row| {
            row.sample.as_ref().map_or(Value::None, Value::json)
        }),
        column("records", "", Unit::Rows, "Its last records", |row| Value::rows(&row.records)),
    ];
}

/// The last two of `exits`, the last one first.
fn last_two(exits: &[LastExit]) -> String {
    let exit = |LastExit { ns, reason, at }: &LastExit| {
        let at = at.as_ref().map_or_else(String::new, |at| format!(" at {at}"));
        format!("{} {reason}{at}", signed_duration(*ns))
    };
    exits.iter().rev().take(2).map(exit).collect::<Vec<_>>().join(", ")
}

/// A CPU of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCpuDeath {
    pub cpu: u32,
    /// What it ran, by the last switch that was recorded of it: those that have nothing to do with the VM may not be.
    pub runs: String,
    /// When it recorded for the last time; `None` for a CPU without records.
    pub last_ns: Option<i64>,
    /// Its last records.
    pub records: Vec<LastRecord>,
}

impl ReportRow for HostCpuDeath {
    const COLUMNS: &'static [Column<Self>] = &[
        column("cpu", "host CPU", Unit::Number, "Its number", |row| row.cpu.into()),
        column("runs", "ran, when it recorded last", Unit::Text, "What it ran", |row| (&row.runs).into()),
        column("last_ns", "last record", Unit::Ns, "When it last recorded", |row| row.last_ns.into()),
        column("records", "", Unit::Rows, "Its last records", |row| Value::rows(&row.records)),
    ];
}

/// An exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastExit {
    pub ns: i64,
    pub reason: String,
    /// Where in the guest; `None` where the record does not say it.
    pub at: Option<String>,
}

impl ReportRow for LastExit {
    const COLUMNS: &'static [Column<Self>] = &[
        column("ns", "ns", Unit::Ns, NS, |row| row.ns.into()),
        column("reason", "reason", Unit::Text, "Name of the reason", |row| (&row.reason).into()),
        column("at", "at", Unit::Text, "Where in the guest", |row| row.at.as_ref().into()),
    ];
}

/// A sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastSample {
    pub ns: i64,
    /// Where, and who called that.
    pub stack: Vec<String>,
}

/// A record.
#[derive(Clone, Debug, PartialEq)]
pub struct LastRecord {
    pub ns: i64,
    /// Its event.
    pub event: String,
    /// Its fields.
    pub fields: Fields,
}

impl ReportRow for LastRecord {
    const COLUMNS: &'static [Column<Self>] = &[
        column("ns", "ns", Unit::Ns, NS, |row| row.ns.into()),
        column("event", "event", Unit::Text, "Its event", |row| (&row.event).into()),
        column("fields", "", Unit::Object, "Its fields", |row| Value::json(&row.fields)),
    ];
}

/// The report in the making. Its memory goes by CPUs, not by records.
#[derive(Debug)]
pub struct LastMoments {
    vms: Vec<Moment>,
    /// CPUs of each host that recorded.
    host_cpus: BTreeMap<usize, BTreeSet<u32>>,
}

/// What is kept of a VM.
#[derive(Debug, Default)]
struct Moment {
    /// Ticks; `None` when nothing was recorded.
    time: Option<u64>,
    is_guests: bool,
    last: LastRecords,
    console: Latest<(u64, String)>,
    /// By vCPU: when, why and where.
    exits: BTreeMap<u32, Latest<(u64, String, Option<u64>)>>,
    /// By CPU: when, where, and who called that.
    samples: BTreeMap<u32, (u64, Vec<u64>)>,
    /// By CPU of the host: what it ran last, as far as records tell. What came later may be missing.
    ran: BTreeMap<u32, HostCpuState>,
    /// By vCPU: what it did last that is known, and until when, ticks.
    did: BTreeMap<u32, (VcpuState, u64)>,
    seen: Seen,
}

/// What the timeline knew at the moment.
#[derive(Debug, Default)]
struct Seen {
    cpus: BTreeMap<u32, SeenCpu>,
    host_cpus: BTreeMap<u32, String>,
}

/// A CPU of a guest.
#[derive(Debug)]
struct SeenCpu {
    /// What the guest did.
    guest: String,
    /// What its vCPU did.
    vcpu: String,
    /// Since when, ticks; 0 where that is not known.
    since: u64,
    /// Until when, where that is not known any more, ticks.
    until: Option<u64>,
}

impl LastMoments {
    /// A report on the end of `window`. Reads the last packets of each stream.
    #[must_use]
    pub fn new(trace: &Trace, window: Window) -> Self {
        let timeline = Timeline::new(trace);
        let mut host_cpus: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
        let mut of_guest = vec![None; timeline.vms.len()];
        let mut of_any = of_guest.clone();
        for layer in trace.layers() {
            for stream in &layer.streams {
                let Some(origin) = timeline.origin(layer, stream.description.cpu_id) else { continue };
                if let Origin::Host { host, cpu, .. } = origin {
                    host_cpus.entry(host).or_default().insert(cpu);
                }
                let last = last::time_of_last(layer, stream, window);
                for (vm, state) in timeline.vms.iter().enumerate() {
                    let is_its = match origin {
                        Origin::Host { host, .. } => host == state.host,
                        Origin::Vmm { vm: its, .. } | Origin::Guest { vm: its, .. } => its == vm,
                        Origin::User { .. } => false,
                    };
                    if is_its {
                        of_any[vm] = last.max(of_any[vm]);
                    }
                    if is_its && origin.layer() == LayerKind::GuestKernel {
                        of_guest[vm] = last.max(of_guest[vm]);
                    }
                }
            }
        }
        let moment = |(of_guest, of_any): (Option<u64>, Option<u64>)| Moment {
            time: of_guest.or(of_any),
            is_guests: of_guest.is_some(),
            ..Moment::default()
        };
        Self { vms: of_guest.into_iter().zip(of_any).map(moment).collect(), host_cpus }
    }
}

impl Moment {
    /// Takes in a record of the VM, or of its host, up to the moment.
    fn record(&mut self, input: &Input<'_>, vm: usize, timeline: &Timeline) {
        let time = input.time();
        match (input.origin, &input.event) {
            (Origin::Guest { cpu, .. }, Some(Event::Sample { address: Some(address), .. })) => {
                let called_by = event::stack(&input.record);
                let stack = std::iter::once(*address).chain(called_by).take(FRAMES).collect();
                self.samples.insert(cpu, (time, stack));
            }
            (Origin::Guest { .. }, _) if input.record.schema.name() == CONSOLE => {
                let text = input.record.text("msg").map(|text| text.trim_end().to_owned()).unwrap_or_default();
                self.console.push((time, text), LINES);
            }
            (Origin::Host { host, .. }, &Some(Event::KvmExit { tid, vcpu, reason })) => {
                if let Some((its, vcpu)) = timeline.vcpu_of_event(host, tid, vcpu)
                    && its == vm
                {
                    let exit = (time, reason.name().into_owned(), input.record.unsigned("guest_rip"));
                    self.exits.entry(vcpu).or_default().push(exit, EXITS);
                }
            }
            _ => {}
        }
    }

    /// Takes in what the host's CPU `cpu` runs, and what the vCPUs do that its record is about: its thread's and the one
    /// that runs now.
    fn host_record(&mut self, input: &Input<'_>, (host, cpu): (usize, u32), (vm, timeline): (usize, &Timeline)) {
        let runs = timeline.hosts.get(host).map_or(HostCpuState::Unknown, |host| host.cpu(cpu));
        let running = if let HostCpuState::Running(thread) = runs { Some(thread.tid) } else { None };
        let recording = input.record.unsigned(THREAD).and_then(|tid| Tid::try_from(tid).ok());
        for tid in running.into_iter().chain(recording) {
            let Some((its, vcpu)) = timeline.vcpu_of_thread(host, tid) else { continue };
            let state = timeline.vm(vm).and_then(|state| state.vcpus.get(vcpu)).map(|vcpu| vcpu.state);
            if let Some(state) = state.filter(|&state| its == vm && state != VcpuState::Unknown) {
                self.did.insert(vcpu, (state, input.time()));
            }
        }
        if runs != HostCpuState::Unknown {
            self.ran.insert(cpu, runs);
        }
    }

    fn look(&mut self, vm: usize, timeline: &Timeline, host_cpus: &BTreeMap<usize, BTreeSet<u32>>) {
        let Some(state) = timeline.vm(vm) else { return };
        let host = timeline.host_of(vm);
        let cpus = state.vcpus.iter().map(|(cpu, vcpu)| {
            let left = self.did.get(&cpu).filter(|_| vcpu.state == VcpuState::Unknown);
            let (did, since, until) = match left {
                Some(&(did, until)) => (did, 0, Some(until)),
                None => (vcpu.state, vcpu.since, None),
            };
            let (name, cause) = vcpus::name(did, host);
            let name = name.replace('_', " ");
            let did = cause.map_or_else(|| name.clone(), |cause| format!("{name}: {cause}"));
            (cpu, SeenCpu { guest: guest_does(&state.guest, cpu), vcpu: did, since, until })
        });
        let of_host = host_cpus.get(&state.host).into_iter().flatten();
        let runs = |cpu| host.map_or_else(String::new, |host| host_runs(host, self.ran.get(cpu)));
        let host_cpus = of_host.map(|cpu| (*cpu, runs(cpu)));
        self.seen = Seen { cpus: cpus.collect(), host_cpus: host_cpus.collect() };
    }
}

/// What a CPU of a guest does, as its kernel tells.
fn guest_does(guest: &Guest, cpu: u32) -> String {
    let Some(state) = guest.cpu(cpu) else { return "not known".into() };
    let who = match state.current {
        Current::Unknown => "not known".into(),
        Current::Idle => "idle".into(),
        Current::Task(index) => match guest.task(index) {
            Some(task) => match task.state {
                TaskState::Running { syscall: Some(number), .. } => {
                    format!("{}, in {}", state_names::task(task), state_names::syscall(number))
                }
                _ => state_names::task(task),
            },
            None => "not known".into(),
        },
    };
    match state.view().0.interrupt {
        Some(interrupt) => format!("{} over {who}", state_names::interrupt(interrupt)),
        None => who,
    }
}

/// What a CPU of a host runs.
fn host_runs(host: &Host, state: Option<&HostCpuState>) -> String {
    match state {
        None | Some(HostCpuState::Unknown) => "not known".into(),
        Some(HostCpuState::Idle) => "idle".into(),
        Some(&HostCpuState::Running(thread)) => format!("{}/{}", harmless(&host.thread_name(thread)), thread.tid),
    }
}

impl Analysis for LastMoments {
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        let time = input.time();
        for (vm, moment) in self.vms.iter_mut().enumerate() {
            let Some(until) = moment.time else { continue };
            let (is_its, until) = match input.origin {
                Origin::Host { host, .. } => (timeline.vm(vm).is_some_and(|vm| vm.host == host), until),
                Origin::Guest { vm: its, .. } => (its == vm, until),
                // What the host saw of the end comes behind it.
                Origin::Vmm { vm: its, .. } => (its == vm, u64::MAX),
                Origin::User { .. } => continue,
            };
            if !is_its || time > until {
                continue;
            }
            moment.last.add(input.origin, time);
            if let Origin::Host { host, cpu, .. } = input.origin {
                moment.host_record(input, (host, cpu), (vm, timeline));
            }
            moment.record(input, vm, timeline);
            if moment.time == Some(time) {
                moment.look(vm, timeline, &self.host_cpus);
            }
        }
    }
}

impl ReportBuilder for LastMoments {
    type Report = Death;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<Death, ReportError> {
        let end = passed.window.map_or(0, |window| window.end);
        let vms = self.vms.into_iter().enumerate().filter_map(|(vm, moment)| {
            let time = moment.time?;
            let symbols = passed.kernel_symbols(trace, vm);
            let relative = Relative { clock: trace.clock(), moment: time };
            Some(moment.finish(passed.timeline.vm(vm)?.name.clone(), &relative, symbols, (trace, passed), end))
        });
        let vms: Vec<VmDeath> = vms.collect();
        if vms.is_empty() {
            return Err(ReportError::nothing("there is no record of a VM, its VMM or its host", "see strata report"));
        }
        Ok(Death { outcome: trace.manifest().outcome_text().into(), vms, is_of_part: passed.is_part(trace) })
    }
}

/// Times relative to a moment.
struct Relative<'t> {
    clock: &'t Clock,
    /// Ticks.
    moment: u64,
}

impl Relative<'_> {
    fn ns(&self, time: u64) -> i64 {
        let ns = |ticks| i64::try_from(self.clock.ticks_to_ns(ticks)).unwrap_or(i64::MAX);
        if time < self.moment { -ns(self.moment - time) } else { ns(time - self.moment) }
    }
}

impl Moment {
    fn finish(
        self,
        vm: String,
        relative: &Relative<'_>,
        symbols: Option<&KernelSymbols>,
        (trace, passed): (&Trace, &Passed),
        end: u64,
    ) -> VmDeath {
        let mut last = self.last.read(trace, &passed.timeline);
        let mut records = |is_wanted: &dyn Fn(Origin) -> bool| -> Vec<LastRecord> {
            let taken = last.extract_if(.., |(origin, ..)| is_wanted(*origin));
            taken.map(|(_, time, event, fields)| LastRecord { ns: relative.ns(time), event, fields }).collect()
        };
        let cpus = self.seen.cpus.into_iter().map(|(cpu, SeenCpu { guest, vcpu, since, until })| {
            let before = |until: u64| duration(relative.clock.ticks_to_ns(relative.moment.saturating_sub(until)));
            let vcpu = match until {
                Some(until) => format!("{vcpu} until {} before", before(until)),
                None => vcpu,
            };
            let records = records(&|origin| matches!(origin, Origin::Guest { cpu: its, .. } if its == cpu));
            let exits = self.exits.get(&cpu).into_iter().flat_map(Latest::iter);
            let exit = |(time, reason, at): &(u64, String, Option<u64>)| LastExit {
                ns: relative.ns(*time),
                reason: reason.clone(),
                at: at.map(|address| place(symbols, address)),
            };
            let sample = self.samples.get(&cpu).map(|(time, stack)| LastSample {
                ns: relative.ns(*time),
                stack: stack.iter().map(|&address| place(symbols, address)).collect(),
            });
            CpuDeath {
                cpu,
                guest,
                vcpu,
                vcpu_ns: (since > 0).then(|| relative.clock.ticks_to_ns(relative.moment.saturating_sub(since))),
                last_ns: records.last().map(|record| record.ns),
                exits: exits.map(exit).collect(),
                sample,
                records,
            }
        });
        let cpus = cpus.collect();
        let host_cpus = self.seen.host_cpus.into_iter().map(|(cpu, runs)| {
            let records = records(&|origin| matches!(origin, Origin::Host { cpu: its, .. } if its == cpu));
            HostCpuDeath { cpu, runs, last_ns: records.last().map(|record| record.ns), records }
        });
        let host_cpus = host_cpus.collect();
        let start = trace.start().unwrap_or(relative.moment);
        let line = |(time, text): &(u64, String)| Line { ns: relative.ns(*time), text: text.clone() };
        VmDeath {
            vm,
            moment_ns: relative.clock.ticks_to_ns(relative.moment.saturating_sub(start)),
            is_guests: self.is_guests,
            after_ns: relative.clock.ticks_to_ns(end.saturating_sub(relative.moment)),
            console: self.console.iter().map(line).collect(),
            cpus,
            host_cpus,
            vmm: records(&|origin| matches!(origin, Origin::Vmm { .. })),
        }
    }
}

/// The function of the kernel at `address` and how far in it; the address where no function is known.
fn place(symbols: Option<&KernelSymbols>, address: u64) -> String {
    match symbols.filter(|_| address >= KERNEL_HALF).and_then(|symbols| symbols.find(address)) {
        Some((symbol, offset)) => format!("{}+{offset:#x}", harmless(symbol.name)),
        None => format!("{address:#x}"),
    }
}

#[cfg(test)]
mod tests;
