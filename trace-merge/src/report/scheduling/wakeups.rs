//! How long tasks of guests took from being woken until they ran, and what happened meanwhile.

use super::state_names;
use super::vcpu_events::warnings;
use crate::report::description::{Description, Requested};
use crate::report::next_command::NextCommand;
use crate::report::rows::columns;
use crate::report::rows::columns::figure::{Figure, Figures};
use crate::report::rows::columns::{Column, ReportRow, Unit, column, distribution};
use crate::report::sink::{Sink, rows_shown, write_histogram, write_place};
use crate::report::statistics::distribution::{Distribution, Durations};
use crate::report::statistics::ended::{Ended as EndedOne, Keep, KeepsEnded};
use crate::report::statistics::samples::{ReportedBy, Sampled, Samples, reported, steady_name};
use crate::report::{Report, ReportBuilder, ReportError, Window, duration, moment};
use foldhash::HashMap;
use serde::Serialize;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::event::{self, Interrupt};
use strata_analysis::timeline::states::{CpuView, Current, TaskIndex, TaskState};
use strata_analysis::timeline::vcpu::VcpuState;
use strata_analysis::timeline::{Change, ChangeKind, Input, LONGEST_BEGIN_NS, Timeline};
use strata_analysis::{Analysis, Passed};
use strata_recording::clock::{Clock, NS_PER_SECOND};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "wakeups",
    about: "How long guest tasks took from being woken until they ran, and what happened meanwhile in the ten worst \
            cases",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[columns::rows::<TaskWakeups>("vms[].tasks[]")],
    begin: |_, window, _| Ok(Box::new(WakeupTimes::new(window))),
};

/// The wakeups in all guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wakeups {
    /// The VMs whose guest's kernel was recorded.
    pub vms: Vec<VmWakeups>,
    /// The command that says more, for people.
    #[serde(skip)]
    pub next: Option<String>,
}

/// The wakeups in a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmWakeups {
    /// Name of the VM.
    pub vm: String,
    /// What the report shows less of than it could, and why.
    pub warnings: Vec<String>,
    /// Time from being woken until running.
    pub latency: Distribution,
    /// The same as a histogram: how many took less than this, and not less than half of it.
    pub histogram: Vec<Bucket>,
    /// By name of the task, the one with the longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub tasks: Vec<TaskWakeups>,
    /// The ten that took longest.
    pub worst: Vec<Wakeup>,
}

/// A class of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// A power of two, ns.
    pub below_ns: u64,
    /// Number of wakeups.
    pub count: u64,
}

/// The wakeups of the tasks of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskWakeups {
    pub comm: String,
    /// Time from being woken until running.
    pub latency: Distribution,
}

/// A wakeup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wakeup {
    /// Thread id.
    pub tid: i32,
    /// Name of the task.
    pub comm: String,
    /// When it was woken, ticks.
    pub ticks: u64,
    /// The same as seconds since the first record.
    pub seconds: String,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// Time until it ran, ns.
    pub latency_ns: u64,
    /// What its CPU did meanwhile, in order.
    pub meanwhile: Vec<Meanwhile>,
}

/// What a guest's CPU did while a task waited for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Meanwhile {
    /// What, in words.
    pub what: String,
    /// For how long, ns.
    pub ns: u64,
}

/// A wakeup whose task is known to have run, for [`WakeupTimes::take_ended`]. It begins when the task was woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeupEnd {
    /// The CPU that it ran on.
    pub cpu: u32,
    /// What its CPU did meanwhile, in order.
    pub meanwhile: Vec<Meanwhile>,
}

/// Number of the wakeups that are shown in full.
const WORST: usize = 10;

/// Reports on the wake-ups in `trace`.
///
/// # Errors
/// When no guest's kernel was recorded.
pub fn report(trace: &Trace, window: Window) -> Result<Wakeups, ReportError> {
    crate::report::make(trace, window, WakeupTimes::new(window))
}

/// The report in the making. Takes memory for each name of a task and each task that waits.
#[derive(Debug)]
pub struct WakeupTimes {
    window: Window,
    /// By VM.
    vms: BTreeMap<usize, VmSums>,
    /// Tasks that were woken and have not run yet, by VM and task.
    waits: HashMap<(usize, TaskIndex), Wait>,
    samples: Samples,
    kept: Keep<EndedOne<WakeupEnd>>,
}

/// What tells of wake-ups.
const REPORTED_BY: [ReportedBy; 3] = [
    reported(LayerKind::GuestKernel, "sched:sched_waking"),
    reported(LayerKind::GuestKernel, "sched:sched_wakeup*"),
    reported(LayerKind::GuestKernel, event::name::SWITCH),
];

impl Sampled for WakeupTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples)]
    }
}

#[derive(Debug, Default)]
struct VmSums {
    latency: Durations,
    histogram: BTreeMap<u64, u64>,
    by_name: BTreeMap<Vec<u8>, Durations>,
    /// The longest, the longest first.
    worst: Vec<Ended>,
}

/// A task that was woken and has not run yet.
#[derive(Debug)]
struct Wait {
    begin: u64,
    /// The CPU in whose queue it waits, where that is known.
    cpu: Option<u32>,
    /// Up to where `pieces` go, ticks.
    until: u64,
    pieces: Pieces,
}

/// Pieces of a wait, at most: a task may wait for as long as its guest likes.
const MOST_PIECES: usize = 4096;

/// What a CPU did while a task waited for it: in order, but for those that are too many; then each thing in one.
#[derive(Debug, Default)]
struct Pieces(Vec<Piece>);

#[derive(Clone, Copy, Debug)]
struct Piece {
    doing: Doing,
    ticks: u64,
    /// Of the longest, where it is several.
    longest: u64,
}

impl Pieces {
    fn add(&mut self, doing: Doing, ticks: u64) {
        match self.0.last_mut() {
            Some(last) if last.doing == doing => {
                (last.ticks, last.longest) = (last.ticks + ticks, last.longest + ticks);
            }
            _ => self.0.push(Piece { doing, ticks, longest: ticks }),
        }
        if self.0.len() >= MOST_PIECES {
            self.sum_up();
        }
    }

    /// Makes one piece of those in which the CPU did the same. Of those left, the longest keep their names.
    fn sum_up(&mut self) {
        let mut places: HashMap<Doing, usize> = HashMap::default();
        let mut sums: Vec<Piece> = Vec::new();
        for piece in self.0.drain(..) {
            let place = *places.entry(piece.doing).or_insert(sums.len());
            match sums.get_mut(place) {
                Some(sum) => {
                    (sum.ticks, sum.longest) = (sum.ticks + piece.ticks, sum.longest.max(piece.longest));
                }
                None => sums.push(piece),
            }
        }
        if sums.len() > MOST_PIECES / 2 {
            sums.sort_by_key(|sum| Reverse(sum.ticks));
            let rest = sums.split_off(MOST_PIECES / 2 - 1).into_iter().map(|rest| rest.ticks).sum();
            sums.push(Piece { doing: Doing::Unknown, ticks: rest, longest: rest });
        }
        self.0 = sums;
    }
}

/// A wait that is over.
#[derive(Debug)]
struct Ended {
    task: TaskIndex,
    comm: Vec<u8>,
    begin: u64,
    end: u64,
    /// Where it ran.
    cpu: u32,
    pieces: Pieces,
}

/// What a CPU of a guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    /// Not known.
    Unknown,
    /// It is not in the guest.
    Outside(VcpuState),
    /// It handles an interrupt.
    Interrupt(Interrupt),
    /// It runs a task.
    Runs(Current),
}

impl Doing {
    const fn of(view: &CpuView) -> Self {
        match (view.vcpu, view.interrupt) {
            (VcpuState::Guest | VcpuState::KvmRun, Some(interrupt)) => Self::Interrupt(interrupt),
            (VcpuState::Guest | VcpuState::KvmRun, None) => Self::Runs(view.current),
            (outside, _) => Self::Outside(outside),
        }
    }
}

impl Wait {
    /// Adds that its CPU did `doing` in `window`, as far as that was not added yet.
    fn add(&mut self, window: Window, doing: Doing) {
        let begin = window.begin.max(self.until);
        if begin >= window.end {
            return;
        }
        let ticks = window.end - begin;
        self.until = window.end;
        self.pieces.add(doing, ticks);
    }

    /// Adds what its CPU has done up to `time` and not told yet, because it still does it.
    fn catch_up(&mut self, time: u64, vm: usize, timeline: &Timeline) {
        let cpu = self.cpu.and_then(|cpu| timeline.vm(vm)?.guest.cpu(cpu));
        match cpu.map(|cpu| cpu.view()) {
            Some((view, since)) if since <= self.until => {
                self.add(Window { begin: since, end: time }, Doing::of(&view));
            }
            Some(_) => {}
            None => self.add(Window { begin: self.until, end: time }, Doing::Unknown),
        }
    }
}

impl WakeupTimes {
    /// A report on `window` before its first record.
    #[must_use]
    pub fn new(window: Window) -> Self {
        let (samples, kept) = (Samples::default(), Keep::default());
        Self { window, vms: BTreeMap::new(), waits: HashMap::default(), samples, kept }
    }

    /// The same, which keeps each wakeup whose task runs for [`take_ended`](Self::take_ended), and adds nothing up.
    #[must_use]
    pub fn keeping_ended(window: Window) -> Self {
        let mut times = Self::new(window);
        times.kept.begin();
        times
    }

    /// The wakeups whose tasks have come to run since the last call.
    pub fn take_ended(&mut self) -> impl Iterator<Item = EndedOne<WakeupEnd>> {
        self.kept.take()
    }

    fn task_state(&mut self, key: (usize, TaskIndex), time: u64, state: TaskState, timeline: &Timeline) {
        match state {
            TaskState::Runnable { cpu, woken: true, .. } => match self.waits.get_mut(&key) {
                // Being moved to another CPU does not end the wait.
                Some(wait) => {
                    wait.catch_up(time, key.0, timeline);
                    wait.cpu = cpu;
                }
                None => {
                    self.waits.insert(key, Wait { begin: time, cpu, until: time, pieces: Pieces::default() });
                }
            },
            TaskState::Running { cpu, .. } => {
                if let Some(mut wait) = self.waits.remove(&key) {
                    wait.catch_up(time, key.0, timeline);
                    self.end(key, wait, time, cpu, timeline);
                }
            }
            _ => drop(self.waits.remove(&key)),
        }
    }

    fn end(&mut self, (vm, task): (usize, TaskIndex), wait: Wait, time: u64, cpu: u32, timeline: &Timeline) {
        let Some(known) = timeline.vm(vm).and_then(|vm| vm.guest.task(task)) else { return };
        let ticks = time.saturating_sub(wait.begin);
        let is_kept = self.kept.add(|| {
            let meanwhile = meanwhile(&wait.pieces, vm, timeline, timeline.clock());
            let what = WakeupEnd { cpu, meanwhile };
            EndedOne { vm, task: Some(task), begin: Some(wait.begin), end: Some(time), what }
        });
        if is_kept {
            return;
        }
        let sums = self.vms.entry(vm).or_default();
        sums.latency.add(ticks);
        self.samples.add(Some(vm), time, ticks, || steady_name(&String::from_utf8_lossy(&known.comm)).to_string());
        let ns = timeline.clock().ticks_to_ns(ticks);
        let below = ns.saturating_add(1).checked_next_power_of_two().unwrap_or(u64::MAX);
        *sums.histogram.entry(below).or_default() += 1;
        match sums.by_name.get_mut(&known.comm) {
            Some(of_name) => of_name.add(ticks),
            None => sums.by_name.entry(known.comm.clone()).or_default().add(ticks),
        }
        let order = |ended: &Ended| (Reverse(ended.end.saturating_sub(ended.begin)), ended.begin);
        let place = sums.worst.partition_point(|ended| order(ended) <= (Reverse(ticks), wait.begin));
        if place < WORST {
            let (comm, begin, pieces) = (known.comm.clone(), wait.begin, wait.pieces);
            sums.worst.insert(place, Ended { task, comm, begin, end: time, cpu, pieces });
            sums.worst.truncate(WORST);
        }
    }
}

impl KeepsEnded for WakeupTimes {
    fn has_ended(&self) -> bool {
        !self.kept.is_empty()
    }
}

impl Analysis for WakeupTimes {
    fn takes_change(&self, kind: ChangeKind) -> bool {
        matches!(kind, ChangeKind::Cpu | ChangeKind::TaskState)
    }

    fn takes_record(&self, _input: &Input<'_>) -> bool {
        false
    }

    fn change(&mut self, change: &Change, timeline: &Timeline) {
        match *change {
            Change::Cpu { vm, cpu, window, view } => {
                // Few wait at a time.
                for (_, wait) in self.waits.iter_mut().filter(|((of, _), wait)| *of == vm && wait.cpu == Some(cpu)) {
                    wait.add(window, Doing::of(&view));
                }
            }
            Change::TaskState { vm, task, time, state } => self.task_state((vm, task), time, state, timeline),
            Change::Vcpu { .. } | Change::Task { .. } | Change::TaskName { .. } => {}
        }
    }
}

impl ReportBuilder for WakeupTimes {
    type Report = Wakeups;

    fn finish(mut self, trace: &Trace, passed: &Passed) -> Result<Wakeups, ReportError> {
        let (clock, start) = (trace.clock(), trace.start().unwrap_or(0));
        let mut vms = Vec::new();
        for (index, vm) in passed.timeline.vms.iter().enumerate() {
            if vm.kernel_span.and_then(|span| span.intersection(&self.window)).is_none() {
                continue;
            }
            let VmSums { latency, histogram, by_name, worst } = self.vms.remove(&index).unwrap_or_default();
            let of_name = |(comm, times): (Vec<u8>, Durations)| TaskWakeups {
                comm: String::from_utf8_lossy(&comm).into_owned(),
                latency: times.distribution(clock),
            };
            let mut tasks: Vec<TaskWakeups> = by_name.into_iter().map(of_name).collect();
            tasks.sort_by_key(|task| Reverse((task.latency.max_ns, task.latency.count)));
            let worst = worst.iter().map(|ended| Wakeup {
                tid: vm.guest.task(ended.task).map_or(0, |task| task.tid),
                comm: String::from_utf8_lossy(&ended.comm).into_owned(),
                ticks: ended.begin,
                seconds: moment(clock, start, ended.begin),
                cpu: ended.cpu,
                latency_ns: clock.ticks_to_ns(ended.end.saturating_sub(ended.begin)),
                meanwhile: meanwhile(&ended.pieces, index, &passed.timeline, clock),
            });
            vms.push(VmWakeups {
                vm: vm.name.clone(),
                warnings: warnings(vm),
                latency: latency.distribution(clock),
                histogram: histogram.into_iter().map(|(below_ns, count)| Bucket { below_ns, count }).collect(),
                tasks,
                worst: worst.collect(),
            });
        }
        if vms.is_empty() {
            return Err(ReportError::nothing(
                "there is no guest-kernel record",
                "record with --agent, and see strata report",
            ));
        }
        let worst = vms.iter().flat_map(|vm| vm.worst.iter().map(move |wakeup| (&vm.vm, wakeup)));
        let worst = worst.max_by_key(|(_, wakeup)| wakeup.latency_ns);
        let next = worst.map(|(vm, wakeup)| NextCommand::on(trace, passed).worst_waits(vm, (&wakeup.comm, wakeup.tid)));
        Ok(Wakeups { vms, next })
    }
}

/// What the CPU did meanwhile, in order.
fn meanwhile(pieces: &Pieces, vm: usize, timeline: &Timeline, clock: &Clock) -> Vec<Meanwhile> {
    let mut named: Vec<(String, u64)> = Vec::new();
    let longest_begin = clock.ns_to_ticks(LONGEST_BEGIN_NS);
    for &Piece { doing, ticks, longest } in &pieces.0 {
        let what = name(doing, longest > longest_begin, vm, timeline);
        match named.last_mut() {
            Some((last, sum)) if *last == what => *sum += ticks,
            _ => named.push((what, ticks)),
        }
    }
    named.into_iter().map(|(what, ticks)| Meanwhile { what, ns: clock.ticks_to_ns(ticks) }).collect()
}

/// What `doing` is called, which may have lasted for longer than an idle CPU takes to begin.
fn name(doing: Doing, is_long: bool, vm: usize, timeline: &Timeline) -> String {
    let state = match doing {
        Doing::Unknown => return "not known".into(),
        Doing::Interrupt(interrupt) => return format!("guest: {}", state_names::interrupt(interrupt)),
        Doing::Runs(Current::Idle) if is_long => {
            return "guest: idle for long (a CPU limit, or why is not recorded)".into();
        }
        Doing::Runs(Current::Idle) => return "guest: idle, had yet to switch".into(),
        Doing::Runs(Current::Unknown) => return "guest: not known".into(),
        Doing::Runs(Current::Task(task)) => {
            let task = timeline.vm(vm).and_then(|vm| vm.guest.task(task));
            return task
                .map_or_else(|| "guest: not known".into(), |task| format!("guest: {}", state_names::task(task)));
        }
        Doing::Outside(state) => state,
    };
    match state {
        VcpuState::Guest | VcpuState::KvmRun | VcpuState::Unknown => "vCPU: not known".into(),
        VcpuState::Kvm(reason) => format!("KVM handled {}", state_names::reason(reason)),
        VcpuState::Vmm(reason) => format!("the VMM handled {}", state_names::reason(reason)),
        VcpuState::Stolen { by, .. } if state_names::is_limit(by) => {
            format!("ready, but the host ran {}", state_names::preemptor(None, by))
        }
        VcpuState::Stolen { by, woken } => {
            let why = if woken { "woken, but the host ran" } else { "the host ran" };
            format!("{why} {}", harmless(&state_names::preemptor(timeline.host_of(vm), by)))
        }
        VcpuState::Halted => "vCPU halted".into(),
        VcpuState::BlockedInKvm(reason) => format!("KVM waited in {}", state_names::reason(reason)),
        VcpuState::BlockedInVmm(reason) => format!("the VMM waited in {}", state_names::reason(reason)),
        VcpuState::Ended => "vCPU ended".into(),
    }
}

/// Rows of the table of names.
const SHOWN: usize = 20;
/// Characters of the longest bar of the histogram.
const BAR: u64 = 40;

/// What the table shows of latencies.
const LATENCY: Figures =
    &[(Figure::Count, "count"), (Figure::P50, "p50"), (Figure::P99, "p99"), (Figure::Longest, "longest")];

impl ReportRow for TaskWakeups {
    const COLUMNS: &'static [Column<Self>] = &[
        column("comm", "task", Unit::Text, "Name of the tasks", |row| (&row.comm).into()),
        distribution("latency", LATENCY, "From being woken until running", |row| (&row.latency).into()),
    ];
}

impl Report for Wakeups {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for vm in &self.vms {
            vm.write_text(out)?;
        }
        crate::report::write_next(self.next.as_deref(), out)
    }
}

impl VmWakeups {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        let Distribution { count, p50_ns, p99_ns, max_ns, .. } = self.latency;
        let [p50, p99, max] = [p50_ns, p99_ns, max_ns].map(duration);
        let wakeups = counted(count, "wakeup", "wakeups");
        writeln!(out, "{}: {wakeups} until the task ran: p50 {p50}, p99 {p99}, longest {max}", self.vm)?;
        for warning in &self.warnings {
            writeln!(out, "WARNING: {warning}")?;
        }
        self.write_histogram(out)?;
        self.write_tasks(out)?;
        for wakeup in &self.worst {
            let Wakeup { tid, comm, seconds, ticks, cpu, latency_ns, .. } = wakeup;
            let (shown, latency) = (harmless(comm), duration(*latency_ns));
            writeln!(out)?;
            let place = || json!({ "vm": self.vm, "comm": comm, "tid": tid, "ticks": ticks, "latency_ns": latency_ns });
            write_place(out, place);
            writeln!(out, "{latency}: {shown}/{tid}, woken at {seconds}, ran on CPU {cpu}; meanwhile")?;
            for Meanwhile { what, ns } in wakeup.shown() {
                writeln!(out, "  {:>12}  {what}", duration(ns))?;
            }
        }
        Ok(())
    }

    fn write_histogram(&self, out: &mut dyn Sink) -> io::Result<()> {
        let rows = || self.histogram.iter().map(|bucket| json!({ "below_ns": bucket.below_ns, "count": bucket.count }));
        if write_histogram(out, || rows().collect()) {
            return Ok(());
        }
        let most = self.histogram.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
        for bucket in &self.histogram {
            let width = (u128::from(bucket.count) * u128::from(BAR)).div_ceil(u128::from(most));
            let bar = "#".repeat(usize::try_from(width).unwrap_or(0));
            writeln!(out, "  < {:>10}  {:>8}  {bar}", power_of_two(bucket.below_ns), bucket.count)?;
        }
        Ok(())
    }

    fn write_tasks(&self, out: &mut dyn Sink) -> io::Result<()> {
        writeln!(out)?;
        let shown = rows_shown(out, SHOWN);
        columns::write(self.tasks.iter().take(shown), out)?;
        match self.tasks.len().checked_sub(shown) {
            Some(more @ 1..) => writeln!(out, "… and {more} more names"),
            _ => Ok(()),
        }
    }
}

/// Lines of what happened during one wakeup.
const LINES: usize = 12;

impl Wakeup {
    /// What happened meanwhile; in order, but for what is too much for a page: then the longest, each thing in one.
    fn shown(&self) -> Vec<Meanwhile> {
        if self.meanwhile.len() <= LINES {
            return self.meanwhile.clone();
        }
        let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for Meanwhile { what, ns } in &self.meanwhile {
            let (sum, times) = sums.entry(what).or_default();
            (*sum, *times) = (*sum + ns, *times + 1);
        }
        let summed = |(what, (ns, times)): (&str, (u64, u64))| {
            let what = if times > 1 { format!("{what} ({times} times)") } else { what.into() };
            Meanwhile { what, ns }
        };
        let mut sums: Vec<Meanwhile> = sums.into_iter().map(summed).collect();
        sums.sort_by_key(|meanwhile| Reverse(meanwhile.ns));
        sums.truncate(LINES);
        sums
    }
}

/// A power of two in ns, in the unit that fits.
fn power_of_two(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{}.{} µs", ns / 1_000, ns % 1_000 / 100),
        1_000_000..NS_PER_SECOND => format!("{}.{} ms", ns / 1_000_000, ns % 1_000_000 / 100_000),
        _ => format!("{}.{} s", ns / NS_PER_SECOND, ns % NS_PER_SECOND / 100_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::scenario;
    use strata_recording::test_trace::Field::{Number, Text};
    use strata_recording::test_trace::TestTrace;

    #[test]
    fn wait_is_explained_by_what_its_cpu_did() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let report = report(&trace, Window::ALL).unwrap();

        let vm = &report.vms[0];
        assert_eq!((vm.latency.count, vm.latency.max_ns), (1, 4_000));
        let worst = &vm.worst[0];
        assert_eq!((worst.comm.as_str(), worst.cpu, worst.seconds.as_str()), ("late", 0, "0.000025500"));
        let meanwhile: Vec<(&str, u64)> =
            worst.meanwhile.iter().map(|Meanwhile { what, ns }| (what.as_str(), *ns)).collect();
        assert_eq!(meanwhile, [("guest: app/10", 500), ("KVM handled ioio", 1_500), ("guest: app/10", 2_000)]);
        assert_eq!(vm.histogram, [Bucket { below_ns: 4096, count: 1 }]);
    }

    #[test]
    fn wait_of_a_task_that_is_moved_is_explained_by_each_cpu_in_whose_queue_it_was() {
        let entry = |trace: TestTrace, cpu: u32| {
            let fields = [("common_pid", Number(100 + i64::from(cpu))), ("vcpu_id", Number(cpu.into()))];
            trace.host(cpu, 5, "kvm:kvm_entry", &fields)
        };
        // To show vCPUs, the layer has to have both event types.
        let left = [("common_pid", Number(77)), ("exit_reason", Number(0)), ("vcpu_id", Number(0))];
        let trace = entry(entry(TestTrace::new(), 0), 1).host(0, 6, "kvm:kvm_exit", &left);
        let waking = [("comm", Text("seven")), ("pid", Number(7)), ("target_cpu", Number(0))];
        let migrate = [("comm", Text("seven")), ("pid", Number(7)), ("dest_cpu", Number(1))];
        let trace = trace.switch(0, 10, 0, 8).switch(1, 12, 0, 1).guest(0, 100, "sched:sched_waking", &waking);
        let trace = trace.guest(0, 140, "sched:sched_migrate_task", &migrate).switch(1, 200, 1, 7);
        let (_dir, trace) = trace.open();

        let report = report(&trace, Window::ALL).unwrap();

        let worst = &report.vms[0].worst[0];
        let meanwhile: Vec<(&str, u64)> =
            worst.meanwhile.iter().map(|Meanwhile { what, ns }| (what.as_str(), *ns)).collect();
        assert_eq!(meanwhile, [("guest: eight/8", 20), ("guest: init/1", 30)]);
        assert_eq!((worst.comm.as_str(), worst.cpu, worst.latency_ns), ("seven", 1, 50));
    }

    #[test]
    fn wakeup_before_the_window_is_not_counted() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let count = |begin, end| report(&trace, Window { begin, end }).unwrap().vms[0].latency.count;

        assert_eq!((count(0, 67_000), count(60_000, 69_000), count(60_001, 69_000)), (0, 1, 0));
    }

    #[test]
    fn text_has_the_worst_in_full() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();
        let mut out = Vec::new();

        report(&trace, Window::ALL).unwrap().write_text(&mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("4.000 µs: late/11, woken at 0.000025500, ran on CPU 0; meanwhile"), "{text}");
        assert!(text.contains("      1.500 µs  KVM handled ioio\n"), "{text}");
    }

    #[test]
    fn wait_without_end_keeps_a_limited_number_of_pieces_and_all_of_its_time() {
        let mut pieces = Pieces::default();

        for number in 0..100_000 {
            let doing = if number % 2 == 0 { Doing::Runs(Current::Task(number)) } else { Doing::Runs(Current::Idle) };
            pieces.add(doing, 1 + number as u64 % 3);
        }

        assert!(pieces.0.len() < MOST_PIECES, "{}", pieces.0.len());
        assert_eq!(pieces.0.iter().map(|piece| piece.ticks).sum::<u64>(), 199_999);
        let idle = pieces.0.iter().filter(|piece| piece.doing == Doing::Runs(Current::Idle));
        let (ticks, longest) = idle.fold((0, 0), |(sum, most), piece| (sum + piece.ticks, most.max(piece.longest)));
        assert_eq!((ticks, longest), (99_999, 3));
    }

    #[test]
    fn long_story_is_summed_up() {
        let meanwhile = (0..40).map(|number| Meanwhile { what: format!("task {}", number % 2), ns: number }).collect();
        let wakeup =
            Wakeup { tid: 1, comm: "a".into(), ticks: 0, seconds: "0".into(), cpu: 0, latency_ns: 780, meanwhile };

        let shown: Vec<(String, u64)> = wakeup.shown().into_iter().map(|Meanwhile { what, ns }| (what, ns)).collect();

        assert_eq!(shown, [("task 1 (20 times)".into(), 400), ("task 0 (20 times)".into(), 380)]);
    }
}
