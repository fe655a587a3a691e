//! Why guests' tasks took so long: the critical path of their time through all layers.
//!
//! The wall time of a task in a window is cut into steps, exactly to the tick: what it ran, what the host ran in
//! place of its vCPU, exits, whom the guest ran instead. Where it waited, the wait is followed: to the task that woke
//! it, whose own steps take the wait's place, and so on; to the disk request that woke it, through every layer. This is
//! the bounded critical path of Giraldeau and Dagenais, see [`follow`]; a layer below was added to it, the vCPUs.
//!
//! The recording is read twice, however many tasks are asked about. The first pass reads the guest's layers and finds the
//! tasks and the windows ([`survey`]): the longest waits, say. The second one reads all layers and keeps what happened in
//! the waits that are under way ([`history`]).

mod follow;
mod history;
mod survey;
mod text;
mod vhost;

use crate::report::sink::Sink;
use crate::report::{self, ReportError, moment};
use follow::Follower;
use history::{Graph, History, Wanted};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use strata_analysis::Passed;
use strata_analysis::completeness::Completeness;
use strata_analysis::task_choice::TaskChoice;
use strata_analysis::timeline::Timeline;
use strata_recording::event_terms::TermError;
use strata_recording::reader::{ReadError, Trace};
use strata_recording::window::Window;
use survey::Survey;
use thiserror::Error;

/// Waits, or intervals between events, that are explained when nothing says how many.
const WINDOWS: usize = 3;

/// The question.
#[derive(Clone, Debug, Default)]
pub struct CriticalPathOptions {
    /// The tasks: a thread, all of a name, or all of a process by its number. `None` for all of the VM.
    pub task: Option<TaskChoice>,
    /// Only tasks of this VM.
    pub vm: Option<String>,
    /// Only what is this long after the first record of the recording, or later.
    pub from: Option<Duration>,
    /// Only what is earlier than this long after the first record of the recording.
    pub to: Option<Duration>,
    /// How many of all tasks' longest waits to explain, instead of all of one task's time. A wait lasts from when a
    /// task gave up or lost its CPU (after a sleep it asked for: was woken) until it ran again. Several tasks get waits
    /// even without a number.
    pub worst: Option<usize>,
    /// The longest intervals between two records of a task whose events these [terms](strata_recording::event_terms)
    /// choose, with no such record in between.
    pub event: Option<String>,
    /// JSON in place of text.
    pub json: bool,
}

impl CriticalPathOptions {
    /// Asks for all the time of `task`, or the longest waits where it means several, as text.
    #[must_use]
    pub fn of(task: TaskChoice) -> Self {
        Self { task: Some(task), ..Self::default() }
    }

    /// How many windows are explained at most.
    fn most(&self) -> usize {
        self.worst.unwrap_or(WINDOWS)
    }
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum CriticalPathError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The window cannot be had, the answer does not add up, or it cannot be written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A name of events is none.
    #[error(transparent)]
    Event(#[from] TermError),
    /// There is no record of a guest's kernel to look at.
    #[error(
        "no guest-kernel record in the window; record with --agent, choose another window, and see strata report for when \
         there are records"
    )]
    NothingInWindow,
    /// The window lies outside of the recording.
    #[error("{0}")]
    Outside(String),
    /// No VM has that name.
    #[error("no VM is called '{wanted}'; there is {present}")]
    NoVm {
        wanted: String,
        /// Those that there are.
        present: String,
    },
    /// No task is it.
    #[error("no task in the window is '{wanted}'{nearest}; strata report tasks lists all")]
    NoTask {
        wanted: String,
        /// The nearest ones, in words.
        nearest: String,
    },
    /// More than one VM has such tasks.
    #[error("several VMs have {what}: {vms}; choose one with --vm")]
    SeveralVms { what: String, vms: String },
    /// The tasks did nothing that the question is about.
    #[error("{who} {what}")]
    NoInterval {
        /// The tasks, with the verb.
        who: String,
        /// What was looked for.
        what: String,
    },
}

/// What a step's time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The task ran for real; `detail` is the system call.
    Running,
    /// The task ran, or the host kept it from that; no layer shows which.
    RunningOrStolen,
    /// An interrupt ran on top of it; `detail` is which.
    Interrupted,
    /// KVM handled an exit of its vCPU; `detail` is the reason.
    Exit,
    /// The VMM handled an exit of its vCPU; `detail` is the reason.
    Vmm,
    /// The host had taken the CPU from its vCPU; `detail` is what ran there.
    Preempted,
    /// Its vCPU was woken, and did not run yet; `detail` is what ran there.
    WokenLate,
    /// It, or its vCPU, was ready, and its CPU was idle and did not run it: a CPU limit, or what it was is not recorded;
    /// `detail` is which.
    NotAllowed,
    /// Its vCPU was halted.
    Halted,
    /// It was ready; `detail` is what its guest ran.
    WaitsForCpu,
    /// It waited; `steps` say what happened meanwhile. `detail` is what for.
    Blocked,
    /// It slept, as it had asked for.
    Sleep,
    /// It waited, and a timer ended that.
    Timer,
    /// It waited, and an interrupt ended that; no more is known.
    Interrupt,
    /// The interrupt that was to wake it was being handled; `detail` is which.
    Handler,
    /// It waited for a packet, which the host's vhost worker was to move; that was ready and did not run. `detail` is what
    /// ran there, and in whose place.
    PacketHeldUp,
    /// It waited for a disk's request; `detail` is the step of it.
    Request,
    /// It waited for a disk's request that was not issued yet.
    NotIssued,
    /// The task that is followed was not made yet.
    NotMade,
    /// It waited, and was not woken before the window's end.
    NotWoken,
    /// It had ended.
    Ended,
    /// It waited; who ended that is not known, and `detail` says why.
    WakerUnknown,
    /// It waited for a task that is not followed: the way there is too long.
    NotFollowed,
    /// Not known; `detail` says why.
    Unknown,
}

/// A record that a step follows from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordOf {
    /// Its time, ticks.
    pub ticks: u64,
    pub layer: &'static str,
    /// The CPU, or the VMM's thread.
    pub cpu: u32,
    pub event: String,
}

/// A stretch of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Whose time it is: the task of the question, or one that it waited for. `NAME/TID`.
    pub task: String,
    /// What it is spent on.
    pub cause: Cause,
    /// More on that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The vCPU, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    /// Of a task that is ready: whom its guest has on that CPU in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// First moment, ticks.
    #[serde(rename = "begin_ticks")]
    pub begin: u64,
    /// First moment after it, ticks.
    #[serde(rename = "end_ticks")]
    pub end: u64,
    /// Its length, ticks: what its `steps` add up to, if it has any.
    pub ticks: u64,
    /// The same, ns.
    pub ns: u64,
    /// The record that it begins with; none where that lies before the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<RecordOf>,
    /// Why the thief was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Of a wait: who ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub woken_by: Option<String>,
    /// Of a wait: the record that tells of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<RecordOf>,
    /// What happened meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Self>,
}

impl Step {
    /// What it is called, with its cause and whom it is due to; `below` is the task that it stands below, whose name is
    /// left out.
    #[must_use]
    pub fn label(&self, below: &str) -> String {
        text::label(self, below)
    }

    /// Whether `next` only goes on with what it is.
    fn goes_on_as(&self, next: &Self) -> bool {
        let is_leaf = self.steps.is_empty() && next.steps.is_empty() && self.until.is_none() && next.until.is_none();
        let what = |step: &Self| (step.cause, step.vcpu);
        is_leaf
            && self.end == next.begin
            && what(self) == what(next)
            && (&self.task, &self.detail, &self.runner, &self.why)
                == (&next.task, &next.detail, &next.runner, &next.why)
    }
}

/// What one cause took, over all steps that have none below them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    pub cause: Cause,
    /// More on that; of a wait that an interrupt or a timer ended: which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Whose time it is.
    pub task: String,
    /// The vCPU, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    /// Of a task that is ready: whom its guest has on that CPU in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// Time, ticks.
    pub ticks: u64,
    /// The same, ns.
    pub ns: u64,
}

/// The critical path of one window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CriticalPath {
    /// The task, `NAME/TID`.
    pub task: String,
    /// Its thread id.
    pub tid: i32,
    /// The window.
    pub window: Window,
    /// Its begin and end as seconds since the first record.
    pub seconds: [String; 2],
    /// Its length, ticks: what the steps add up to.
    pub wall_ticks: u64,
    /// The same, ns.
    pub wall_ns: u64,
    /// The answer in plain language.
    pub summary: String,
    /// What the time is made of, the largest first; they add up to `wall_ticks`.
    pub shares: Vec<Share>,
    /// The path: steps one behind the other.
    pub steps: Vec<Step>,
    /// From when on nothing was kept, because there was too much of it, ticks.
    #[serde(rename = "limit_met_ticks", skip_serializing_if = "Option::is_none")]
    pub limit_met: Option<u64>,
}

/// The critical paths of tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CriticalPaths {
    /// Ticks per second.
    pub frequency_hz: u64,
    /// Name of the VM.
    pub vm: String,
    /// How many tasks are what is requested.
    #[serde(rename = "tasks")]
    pub task_count: usize,
    /// Time of the first record, ticks: seconds count from there.
    #[serde(rename = "start_ticks")]
    pub start: u64,
    /// What limits the answer, and why.
    pub warnings: Vec<String>,
    /// Records whose event matches and that no task is known to have made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattributed: Option<u64>,
    /// By window: the longest first, where the longest are requested.
    pub paths: Vec<CriticalPath>,
}

impl CriticalPaths {
    /// The paths by task, each task's by begin, to be drawn in one row: those that overlap the one before are left out.
    /// Intervals between events do not overlap, nor do waits.
    #[must_use]
    pub fn by_task(&self) -> Vec<Vec<&CriticalPath>> {
        let mut paths: Vec<_> = self.paths.iter().collect();
        paths.sort_by_key(|path| path.window.begin);
        let mut rows: Vec<Vec<&CriticalPath>> = Vec::new();
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for path in paths {
            let place = *places.entry(&path.task).or_insert(rows.len());
            match rows.get_mut(place) {
                Some(row) if row.last().is_some_and(|last| path.window.begin < last.window.end) => {}
                Some(row) => row.push(path),
                None => rows.push(vec![path]),
            }
        }
        rows
    }
}

/// Answers `options` about `trace`, and says what was damaged, lost or is unknown up to the end of what it looked at.
///
/// # Errors
/// When the window is empty or holds nothing, no task or tasks of several VMs are meant, or the steps do not add up.
pub fn critical_paths(
    trace: &Trace,
    options: &CriticalPathOptions,
) -> Result<(CriticalPaths, Completeness), CriticalPathError> {
    critical_paths_within(trace, options, history::MOST_PIECES)
}

/// [`critical_paths`], which keeps `most_pieces` states at most.
fn critical_paths_within(
    trace: &Trace,
    options: &CriticalPathOptions,
    most_pieces: usize,
) -> Result<(CriticalPaths, Completeness), CriticalPathError> {
    let requested = report::ReportOptions { from: options.from, to: options.to, json: false };
    if let Some(missed) = report::missed_window(trace, &requested) {
        return Err(CriticalPathError::Outside(missed));
    }
    let window = requested.window(trace)?;
    let start = trace.start().unwrap_or(0);
    let mut survey = Survey::new(options, window)?;
    // A state follows from what was before the window.
    let passed = strata_analysis::pass(trace, Window { begin: start, ..window }, &mut [&mut survey]);
    let found = survey.find(&passed)?;
    let vm = found.vm;
    // Steps, and from when on nothing was kept, by number of the window.
    let mut walked: BTreeMap<usize, (Vec<Step>, Option<u64>)> = BTreeMap::new();
    let walk = |graph: &Graph, number: usize, Wanted { window, task }: Wanted, timeline: &Timeline| {
        let name = found.tasks.get(&task).map_or("", |(name, _)| name);
        let steps = Follower::new(graph, (vm, timeline), (task, name)).path(task, window, 0);
        let (all, limit) = walked.entry(number).or_default();
        all.extend(steps);
        *limit = limit.or(graph.full_at);
    };
    // Who ended the last wait is recorded at its end.
    let end = found.windows.iter().map(|wanted| wanted.window.end).max().map_or(start, |last| last.saturating_add(1));
    let read = Window { begin: start, end };
    let mut history = History::new(trace, vm, &found.windows, found.records_interrupts, most_pieces, walk);
    let passed = strata_analysis::pass(trace, read, &mut [&mut history]);
    history.finish(&passed.timeline);
    drop(history);
    let of_vm = passed.timeline.vm(vm);
    let vm_name = of_vm.map_or_else(String::new, |vm| strata_recording::text::terminal::harmless(&vm.name));
    let mut paths = Vec::with_capacity(walked.len());
    for (number, wanted) in found.windows.iter().enumerate() {
        let (Some((steps, limit_met)), Some((name, tid))) = (walked.remove(&number), found.tasks.get(&wanted.task))
        else {
            continue;
        };
        paths.push(path(&passed, start, (name, *tid, &vm_name), wanted.window, steps, limit_met)?);
    }
    if found.is_longest {
        paths.sort_by_key(|path| (std::cmp::Reverse(path.wall_ticks), path.window.begin));
    }
    let mut warnings = of_vm.map_or_else(Vec::new, report::scheduling::vcpu_events::warnings);
    if !found.records_interrupts {
        warnings.push(
            "no irq:softirq_entry or no irq_vectors:* of the guest's kernel: who woke a task cannot be distinguished from an interrupt \
             on top of it, so that waits are not followed"
                .into(),
        );
    }
    let answer = CriticalPaths {
        frequency_hz: trace.clock().frequency_hz,
        vm: vm_name,
        task_count: found.count,
        start,
        warnings,
        unattributed: options.event.as_ref().map(|_| found.unattributed),
        paths,
    };
    Ok((answer, passed.completeness))
}

/// Answers `options` about the recording in `dir`, and writes the answer to `out`, behind what was damaged, lost or is
/// unknown. A reader that closes `out` is not an error.
///
/// # Errors
/// Those of [`critical_paths`], and when the recording cannot be read or `out` fails.
pub fn run(dir: &Path, options: &CriticalPathOptions, out: &mut dyn Sink) -> Result<(), CriticalPathError> {
    let trace = Trace::open(dir)?;
    let (answer, completeness) = critical_paths(&trace, options)?;
    Ok(report::write(&answer, completeness, options.json, out)?)
}

/// The path that `steps` make.
fn path(
    passed: &Passed,
    start: u64,
    (task, tid, vm): (&str, i32, &str),
    window: Window,
    steps: Vec<Step>,
    limit_met: Option<u64>,
) -> Result<CriticalPath, ReportError> {
    let clock = passed.timeline.clock();
    check_sums(task, &steps, window)?;
    let mut sums = BTreeMap::new();
    steps.iter().for_each(|step| add_shares(step, &mut sums));
    let share = |(of, ticks): (Of, u64)| Share {
        cause: of.cause,
        detail: of.detail,
        task: of.task,
        vcpu: of.vcpu,
        runner: of.runner,
        ticks,
        ns: clock.ticks_to_ns(ticks),
    };
    let mut shares: Vec<Share> = sums.into_iter().map(share).collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.ticks));
    let seconds = [window.begin, window.end].map(|time| moment(clock, start, time));
    let wall_ns = clock.ticks_to_ns(window.length());
    let summary = text::summary((task, vm), &seconds, (window.length(), wall_ns), &shares, clock);
    let (task, wall_ticks) = (task.into(), window.length());
    Ok(CriticalPath { task, tid, window, seconds, wall_ticks, wall_ns, summary, shares, steps, limit_met })
}

/// What a share is of.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Of {
    cause: Cause,
    detail: Option<String>,
    task: String,
    vcpu: Option<u32>,
    runner: Option<String>,
}

fn add_shares(step: &Step, sums: &mut BTreeMap<Of, u64>) {
    if !step.steps.is_empty() {
        step.steps.iter().for_each(|step| add_shares(step, sums));
        return;
    }
    let detail = match step.cause {
        Cause::Interrupt | Cause::Timer => step.woken_by.clone().or_else(|| step.detail.clone()),
        _ => step.detail.clone(),
    };
    let Step { cause, vcpu, .. } = *step;
    let of = Of { cause, detail, task: step.task.clone(), vcpu, runner: step.runner.clone() };
    *sums.entry(of).or_default() += step.ticks;
}

/// Checks that `steps` lie one behind the other in `window` and fill it, and so for those below them.
fn check_sums(task: &str, steps: &[Step], window: Window) -> Result<(), ReportError> {
    let mut at = window.begin;
    for step in steps {
        let is_next = step.begin == at && step.end > step.begin && step.ticks == step.end - step.begin;
        if !is_next {
            break;
        }
        if !step.steps.is_empty() {
            check_sums(&step.task, &step.steps, Window { begin: step.begin, end: step.end })?;
        }
        at = step.end;
    }
    if at == window.end {
        return Ok(());
    }
    let parts = steps.iter().map(|step| step.ticks).sum();
    Err(ReportError::Sum { of: task.into(), parts, wall: window.length() })
}

#[cfg(test)]
mod tests;
