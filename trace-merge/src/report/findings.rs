//! What cost most and is unusual in a recording: a few findings, each with its size, its evidence and the next command.
//!
//! Each rule is a pure function of reports that are made anyway, and has a threshold above which a finding is one. What
//! is below is not said to be well: it is not said at all.

mod loss;
mod silent;

use super::description::{Description, Requested};
use super::devices::flows::{FlowTimes, StepTimes, VmFlows};
use super::kernels::exits::{ExitTimes, ReasonExits, VmExits};
use super::kernels::irqs::{InterruptKind, InterruptTimes, LayerInterrupts};
use super::kernels::locks::{GuestLocks, LockTimes};
use super::next_command::NextCommand;
use super::rows::columns::{self, Column, ReportRow, Unit, Value, column};
use super::scheduling::state_names;
use super::scheduling::tasks::{Part, TaskReport, TaskTimes, VmTasks};
use super::statistics::distribution::Distribution;
use super::summary::cost::{RecordingCost, VmCost};
use super::summary::{Summary, SummaryBuilder};
use super::{Report, ReportBuilder, ReportError, Window, duration};
use crate::report::sink::Sink;
use serde::Serialize;
use silent::HostSilence;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::completeness::LayerCompleteness;
use strata_analysis::event::Tid;
use strata_analysis::{Analysis, Passed};
use strata_recording::clock::{Clock, rfc3339};
use strata_recording::layer::LayerKind;
use strata_recording::layer::loss::Setting;
use strata_recording::manifest::Layer;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "overview",
    about: "What cost most and is unusual, with the next command for each, and the summary",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: false,
    rows: &[columns::rows::<Finding>("findings[]")],
    begin: |trace, window, _| Ok(Box::new(OverviewBuilder::new(trace, window))),
};

/// Findings that are shown at most.
const MOST: usize = 5;
/// A thread of the host is a thief when it takes this much of the time in which tasks of the guest were to run,
/// thousandths.
const THIEF: u64 = 50;
/// Strata's own threads are a finding when they take this much of that time, thousandths, …
const OWN_COST: u64 = 10;
/// … and this much of the time that is stolen from tasks, thousandths.
const OWN_SHARE: u64 = 200;
/// Exits for one reason are a storm when handling them takes this much of that time, thousandths.
const EXIT_STORM: u64 = 100;
/// A function of the guest is named where one in so many exits for the reason is in it.
const NOTABLE_PART: u64 = 5;
/// A lock of the kernel is a convoy when tasks wait for it for this much of the window, all together, thousandths.
const CONVOY: u64 = 50;
/// A disk is slow when one in a hundred requests takes longer than this, ns.
const SLOW_DISK_NS: u64 = 10_000_000;
/// A step of requests is named when it takes this much of their time, thousandths.
const SLOW_STEP: u64 = 500;
/// Timer interrupts of a guest's CPU are a storm above this many in a second: a kernel ticks 100 to 1000 times.
const TIMER_STORM_HZ: u64 = 2_000;
/// A clock is worth a finding when its bound is above this, ns: it is some ten where all layers read one counter.
const CLOCK_BOUND_NS: u64 = 1_000;

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// Records are missing.
    Loss,
    /// The host's kernel was recorded, and nothing about vCPUs that ran.
    EmptyLayer,
    /// The host ran a thread in place of a guest.
    Thief,
    /// The host ran strata's own threads in place of a guest.
    Recording,
    /// Exits for one reason.
    ExitStorm,
    /// Waiting for one lock of a guest's kernel.
    Convoy,
    /// Requests to disks.
    SlowDisk,
    /// Timer interrupts of a guest.
    TimerStorm,
    /// Times of different layers agree less well than they could.
    Clock,
}

impl FindingKind {
    /// What JSON calls it.
    const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::EmptyLayer => "empty_layer",
            Self::Thief => "thief",
            Self::Recording => "recording",
            Self::ExitStorm => "exit_storm",
            Self::Convoy => "convoy",
            Self::SlowDisk => "slow_disk",
            Self::TimerStorm => "timer_storm",
            Self::Clock => "clock",
        }
    }
}

/// Something that cost much and is unusual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// What was found, with its size.
    pub text: String,
    /// What it cost, in thousandths of what it is a part of; of loss and the clock, which make all else doubtful, 1000.
    pub thousandths: u64,
    /// What tells of it.
    pub evidence: String,
    /// What to do next.
    pub next: Next,
}

impl ReportRow for Finding {
    const COLUMNS: &'static [Column<Self>] = &[
        column("kind", "kind", Unit::Text, "What it is about, as above", |row| row.kind.name().into()),
        column("thousandths", "‰", Unit::Number, "Its size, in thousandths of what it is a part of", |row| {
            row.thousandths.into()
        }),
        column("text", "finding", Unit::Text, "What was found", |row| (&row.text).into()),
        column("evidence", "evidence", Unit::Text, "What tells of it", |row| (&row.evidence).into()),
        column("next", "next", Unit::Text, "The next command, or what to do", |row| (&row.next.text).into()),
        column("next_task", "", Unit::Object, "The task it is about: `vm`, `comm`, `tid`", |row| {
            row.next.task.as_ref().map(Value::json).unwrap_or(Value::None)
        }),
        column("next_report", "", Unit::Text, "The report it is about", |row| row.next.report.into()),
    ];
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The command that says more, or what else to do, in words.
    pub text: String,
    /// The task that it is about.
    pub task: Option<NextTask>,
    /// Name of the report that it asks for.
    pub report: Option<&'static str>,
}

/// The task that a next step is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NextTask {
    /// Name of the VM.
    pub vm: String,
    /// Name of the task.
    pub comm: String,
    /// Its thread id.
    pub tid: Tid,
}

impl Next {
    /// What `text` says.
    fn other(text: impl Into<String>) -> Self {
        Self { text: text.into(), task: None, report: None }
    }

    /// The report called `name`.
    fn report(next: NextCommand<'_>, name: &'static str) -> Self {
        Self { text: next.report(name), task: None, report: Some(name) }
    }

    /// Why `task` of `vm` took so long.
    fn why(next: NextCommand<'_>, vm: &str, task: &TaskReport) -> Self {
        let (comm, tid) = (&task.comm, task.tid);
        let about = NextTask { vm: vm.into(), comm: comm.clone(), tid };
        Self { text: next.why(vm, (comm, tid)), task: Some(about), report: None }
    }
}

/// The findings, and the summary behind them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overview {
    /// What cost most, the costliest first.
    #[serde(serialize_with = "columns::serialize")]
    pub findings: Vec<Finding>,
    /// What was recorded.
    #[serde(flatten)]
    pub summary: Summary,
}

/// The overview in the making.
#[derive(Debug)]
pub struct OverviewBuilder {
    summary: SummaryBuilder,
    tasks: TaskTimes,
    exits: ExitTimes,
    locks: LockTimes,
    flows: FlowTimes,
    irqs: InterruptTimes,
    silence: HostSilence,
}

impl OverviewBuilder {
    /// An overview of `window` of `trace` before its first record.
    #[must_use]
    pub fn new(trace: &Trace, window: Window) -> Self {
        Self {
            summary: SummaryBuilder::new(window),
            tasks: TaskTimes::new(window),
            exits: ExitTimes::new(window),
            locks: LockTimes::default(),
            flows: FlowTimes::new(trace),
            irqs: InterruptTimes::default(),
            silence: HostSilence::new(window),
        }
    }
}

impl Analysis for OverviewBuilder {
    fn layers(&self) -> &'static [LayerKind] {
        &LayerKind::ALL
    }

    fn parts(&mut self) -> Option<Vec<&mut dyn Analysis>> {
        let Self { summary, tasks, exits, locks, flows, irqs, silence } = self;
        Some(vec![summary, tasks, exits, locks, flows, irqs, silence])
    }
}

/// A report, or `None` where the recording lacks what it is made of.
fn made<R>(report: Result<R, ReportError>) -> Result<Option<R>, ReportError> {
    match report {
        Err(ReportError::Nothing { .. }) => Ok(None),
        other => other.map(Some),
    }
}

impl ReportBuilder for OverviewBuilder {
    type Report = Overview;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<Overview, ReportError> {
        let (clock, next) = (trace.clock(), NextCommand::on(trace, passed));
        let is_limited = |of: &LayerCompleteness| {
            let met = |layer: &Layer| layer.vm == of.vm && layer.limit.is_some_and(|limit| limit.times > 0);
            trace.layers_of(of.layer).any(|layer| met(&layer.description))
        };
        let is_agentless = |of: &LayerCompleteness| {
            let vm = trace.manifest().vms.iter().find(|vm| of.vm.as_ref() == Some(&vm.name));
            vm.is_some_and(|vm| vm.guest.is_none())
        };
        let setting = |of: &LayerCompleteness| Setting { is_limited: is_limited(of), is_agentless: is_agentless(of) };
        let layers = passed.completeness.layers.iter();
        let mut findings: Vec<Finding> = layers
            .flat_map(|layer| loss::findings(layer, setting(layer), &loss::cut_files(trace, layer), next))
            .collect();
        findings.extend(self.silence.findings(trace.manifest(), passed));
        findings.extend(clock_given_up(clock, passed.window.map_or(u64::MAX, |window| window.end)));
        findings.extend(clock_bound(clock));
        let tasks = made(self.tasks.finish(trace, passed))?.map_or_else(Vec::new, |tasks| tasks.vms);
        let summary = self.summary.finish(trace, passed)?;
        findings.extend(tasks.iter().filter_map(|vm| thief(vm, &summary.cost, clock, next)));
        let of_vm = |vm: &str| tasks.iter().find(|tasks| tasks.vm == vm);
        let busy = |vm: &str| of_vm(vm).map(|tasks| clock.ticks_to_ns(busy(tasks)));
        findings.extend(summary.cost.vms.iter().filter_map(|cost| own_cost(cost, busy(&cost.vm)?)));
        let exits = made(self.exits.finish(trace, passed))?.map_or_else(Vec::new, |exits| exits.vms);
        findings.extend(exits.iter().filter_map(|exits| exit_storm(exits, of_vm(&exits.vm)?, busy(&exits.vm)?, next)));
        let window_ns = passed.window.map_or(0, |window| clock.ticks_to_ns(window.length()));
        let locks = made(self.locks.finish(trace, passed))?.map_or_else(Vec::new, |locks| locks.guests);
        findings.extend(locks.iter().filter_map(|locks| convoy(locks, window_ns, next)));
        let flows = made(self.flows.finish(trace, passed))?.map_or_else(Vec::new, |flows| flows.vms);
        findings.extend(flows.iter().filter_map(|flows| slow_disk(flows, window_ns, next)));
        let irqs = made(self.irqs.finish(trace, passed))?.map_or_else(Vec::new, |irqs| irqs.handled);
        findings.extend(irqs.iter().filter_map(|irqs| timer_storm(irqs, window_ns, next)));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.thousandths));
        findings.truncate(MOST);
        Ok(Overview { findings, summary })
    }
}

/// `part` of `whole` in thousandths.
fn thousandths(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 1000 / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

/// Thousandths as percent.
fn percents(thousandths: u64) -> String {
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

/// Time in which the guest's kernel had tasks running, all CPUs together, ticks.
fn busy(vm: &VmTasks) -> u64 {
    let of = |task: &TaskReport| {
        let times = &task.times;
        times.running + times.interrupted + times.stolen + times.exits + times.vmm
    };
    vm.tasks.iter().map(of).sum()
}

/// A clock that the host's kernel has given up before `end`, ticks.
fn clock_given_up(clock: &Clock, end: u64) -> Option<Finding> {
    let at = rfc3339(clock.utc_ns(clock.given_up_ticks.filter(|_| clock.is_given_up(end))?));
    Some(Finding {
        kind: FindingKind::Clock,
        text: "the host's kernel gave up the TSC: later times can be wrong by more than the stated bounds".into(),
        thousandths: 1000,
        evidence: format!("noticed at {at}, up to a second late"),
        next: Next::other("strata doctor, for what this host's TSC is worth"),
    })
}

/// A clock whose error bound is unusual.
fn clock_bound(clock: &Clock) -> Option<Finding> {
    (clock.error_bound_ns > CLOCK_BOUND_NS).then(|| Finding {
        kind: FindingKind::Clock,
        text: format!("times of different layers agree only within {}", duration(clock.error_bound_ns)),
        thousandths: 1000,
        evidence: clock.bound_derivation.clone(),
        next: Next::other("strata doctor, for what this host's TSC is worth"),
    })
}

/// What one thread of the host stole.
#[derive(Default)]
struct Stolen<'r> {
    /// From all tasks, ticks.
    ticks: u64,
    /// From the one that it stole most from, ticks.
    most: u64,
    /// That one.
    victim: Option<&'r TaskReport>,
}

/// The thread of the host that stole most, strata's own aside, which `cost` names.
fn thief(vm: &VmTasks, cost: &RecordingCost, clock: &Clock, next: NextCommand<'_>) -> Option<Finding> {
    let mut thieves: BTreeMap<&str, Stolen<'_>> = BTreeMap::new();
    for task in &vm.tasks {
        for part in task.parts.iter().filter(|part| part.state == "stolen") {
            let by = part.detail.as_deref().unwrap_or_default();
            if cost.is_thief(&vm.vm, by) || !state_names::is_thread(by) {
                continue;
            }
            let stolen = thieves.entry(by).or_default();
            stolen.ticks += part.ticks;
            if stolen.most < part.ticks {
                (stolen.most, stolen.victim) = (part.ticks, Some(task));
            }
        }
    }
    let (name, Stolen { ticks, victim, .. }) = thieves.into_iter().max_by_key(|(_, stolen)| stolen.ticks)?;
    let share = thousandths(ticks, busy(vm));
    let victim = victim.filter(|_| share >= THIEF)?;
    let victim_name = harmless(&victim.comm);
    Some(Finding {
        kind: FindingKind::Thief,
        text: format!(
            "the host ran {} for {}, {} of the time in which tasks of {} were to run",
            harmless(name),
            duration(clock.ticks_to_ns(ticks)),
            percents(share),
            harmless(&vm.vm)
        ),
        thousandths: share,
        evidence: format!("sched_switch of the host; most of it from {victim_name}/{}", victim.tid),
        next: Next::why(next, &vm.vm, victim),
    })
}

/// What the threads that record took of `busy_ns`, the time in which tasks of the guest were to run.
fn own_cost(cost: &VmCost, busy_ns: u64) -> Option<Finding> {
    let taken = cost.tasks_stolen;
    let (share, of_stolen) =
        (thousandths(taken.by_recording_ns, busy_ns), thousandths(taken.by_recording_ns, taken.total_ns));
    let worst = cost.thieves.iter().find(|thief| thief.records)?;
    (share >= OWN_COST && of_stolen >= OWN_SHARE).then(|| Finding {
        kind: FindingKind::Recording,
        text: format!(
            "recording itself took {} from tasks of {}: {} of all stolen time, {} of the time in which they were to run",
            duration(taken.by_recording_ns),
            harmless(&cost.vm),
            percents(of_stolen),
            percents(share)
        ),
        thousandths: share,
        evidence: format!("sched_switch of the host; {} of it by {}", duration(worst.ns), harmless(&worst.thread)),
        next: Next::other(
            "strata doctor, for CPUs to give to strata's threads; record with --recorder-cpus LIST or --drain idle",
        ),
    })
}

/// The exits for one reason that took most of `busy_ns`, halts aside: what most of them were about, and which of `tasks`
/// they kept from running.
fn exit_storm(exits: &VmExits, tasks: &VmTasks, busy_ns: u64, next: NextCommand<'_>) -> Option<Finding> {
    let handled = |reason: &ReasonExits| reason.kvm_ns + reason.vmm_ns;
    let worst = exits.reasons.iter().filter(|reason| reason.halted_ns == 0).max_by_key(|reason| handled(reason))?;
    let share = thousandths(handled(worst), busy_ns);
    if share < EXIT_STORM {
        return None;
    }
    let part = |count: u64, what: String| match count * 2 > worst.count {
        true => format!(", most of them ({count}) {what}"),
        false => format!(", {count} of them {what}"),
    };
    let operations = exits.operations.iter().filter(|operation| operation.reason == worst.reason);
    let about = operations.max_by_key(|operation| operation.time.count);
    let about = about.map(|operation| part(operation.time.count, operation.plural()));
    let functions = exits.functions.iter().filter(|function| function.reason == worst.reason && function.is_named);
    let largest = functions.max_by_key(|function| function.count);
    let place = largest.filter(|function| function.count * NOTABLE_PART >= worst.count);
    let place = place.map(|function| part(function.count, format!("in {}", harmless(&function.function))));
    let mut parts: String = about.into_iter().chain(place).collect();
    if !parts.is_empty() {
        parts.push(',');
    }
    let ticks = |task: &TaskReport| {
        let is_of_reason =
            |part: &&Part| matches!(part.state, "exit" | "vmm") && part.detail.as_ref() == Some(&worst.reason);
        task.parts.iter().filter(is_of_reason).map(|part| part.ticks).sum::<u64>()
    };
    let delayed = tasks.tasks.iter().max_by_key(|task| ticks(task)).filter(|task| ticks(task) > 0);
    let mut evidence = format!("{} of it in KVM, {} in the VMM", duration(worst.kvm_ns), duration(worst.vmm_ns));
    let next = match delayed {
        Some(task) => {
            evidence += &format!("; {}/{} lost most by it", harmless(&task.comm), task.tid);
            Next::why(next, &exits.vm, task)
        }
        None => Next::report(next, "exits"),
    };
    Some(Finding {
        kind: FindingKind::ExitStorm,
        text: format!(
            "{} of {} for {}{parts} took {}, {} of what its tasks were to run",
            counted(worst.count, "exit", "exits"),
            harmless(&exits.vm),
            worst.reason,
            duration(handled(worst)),
            percents(share)
        ),
        thousandths: share,
        evidence,
        next,
    })
}

/// The lock of the guest's kernel that was waited for longest.
fn convoy(locks: &GuestLocks, window_ns: u64, next: NextCommand<'_>) -> Option<Finding> {
    let worst = locks.kernel.first()?;
    let share = thousandths(worst.waits.total_ns, window_ns);
    (share >= CONVOY).then(|| {
        let name = worst.name.as_ref().map_or_else(|| format!("{:#x}", worst.address), |name| harmless(name));
        let waiter = worst.waiters.first();
        let who =
            waiter.map_or_else(String::new, |waiter| format!("; longest {}/{}", harmless(&waiter.comm), waiter.pid));
        Finding {
            kind: FindingKind::Convoy,
            text: format!(
                "tasks of {} waited {} for the {} {name}, {} all together, {} of the time",
                harmless(&locks.vm),
                counted(worst.waits.count, "time", "times"),
                worst.kind,
                duration(worst.waits.total_ns),
                percents(share)
            ),
            thousandths: share,
            evidence: format!("contention_begin and contention_end in {}{who}", worst.context),
            next: Next::report(next, "locks"),
        }
    })
}

/// Requests of disks that are slow, and the step that is most of that.
fn slow_disk(flows: &VmFlows, window_ns: u64, next: NextCommand<'_>) -> Option<Finding> {
    let total = &flows.total;
    let worst: &StepTimes = flows.steps.iter().max_by_key(|step| step.times.total_ns)?;
    let of_requests = thousandths(worst.times.total_ns, total.total_ns);
    (total.p99_ns > SLOW_DISK_NS && of_requests >= SLOW_STEP).then(|| Finding {
        kind: FindingKind::SlowDisk,
        text: format!(
            "{}: {} of the requests' time is {} ({})",
            slowest_of(total, &harmless(&flows.vm)),
            percents(of_requests),
            worst.whose(),
            worst.name()
        ),
        thousandths: thousandths(worst.times.total_ns, window_ns).min(1000),
        evidence: format!(
            "the step took {} at most, the slowest request {}",
            duration(worst.times.max_ns),
            duration(total.max_ns)
        ),
        next: Next::report(next, "flows"),
    })
}

/// How slow the slowest disk requests of `vm` are; of fewer than a hundred, how slow the slowest one.
fn slowest_of(total: &Distribution, vm: &str) -> String {
    match total.count {
        1 => format!("the one disk request of {vm} took {}", duration(total.max_ns)),
        2..100 => format!("the slowest of {} disk requests of {vm} took {}", total.count, duration(total.max_ns)),
        count => {
            format!("one in a hundred of {count} disk requests of {vm} took longer than {}", duration(total.p99_ns))
        }
    }
}

/// A guest's CPU whose timer interrupts it too often.
fn timer_storm(irqs: &LayerInterrupts, window_ns: u64, next: NextCommand<'_>) -> Option<Finding> {
    let vm = irqs.vm.as_ref()?;
    let is_timer = |kind, name: &str| kind == InterruptKind::Vector && name == "local_timer";
    let timer = irqs.interrupts.iter().find(|interrupt| is_timer(interrupt.kind, &interrupt.name))?;
    let worst = timer.cpus.iter().max_by_key(|cpu| cpu.times.count)?;
    let per_second = u64::try_from(u128::from(worst.times.count) * 1_000_000_000 / u128::from(window_ns.max(1)));
    let per_second = per_second.unwrap_or(u64::MAX);
    (per_second > TIMER_STORM_HZ).then(|| Finding {
        kind: FindingKind::TimerStorm,
        text: format!("the timer of CPU {} of {} interrupted {per_second} times in a second", worst.cpu, harmless(vm)),
        thousandths: thousandths(worst.times.total_ns, window_ns),
        evidence: format!(
            "{} local_timer vectors, {} in their handler",
            worst.times.count,
            duration(worst.times.total_ns)
        ),
        next: Next::report(next, "irqs"),
    })
}

impl Report for Overview {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        if !self.findings.is_empty() {
            writeln!(out, "What stands out:")?;
        }
        for (place, Finding { text, evidence, next, .. }) in (1..).zip(&self.findings) {
            writeln!(out, "{place}. {text}")?;
            writeln!(out, "   {evidence}")?;
            writeln!(out, "   next: {}", next.text)?;
        }
        if !self.findings.is_empty() {
            writeln!(out)?;
        }
        self.summary.write_text(out)
    }
}

#[cfg(test)]
mod tests;
