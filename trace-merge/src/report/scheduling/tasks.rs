//! Where the time of a guest's tasks went: for real, in exits, stolen by the host, waiting. For each task the parts add
//! up to its wall time to the tick.

mod text;

use super::state_names;
use super::times::{self, Times};
use super::vcpu_events::warnings;
use crate::report::description::{Description, Requested};
use crate::report::next_command::NextCommand;
use crate::report::rows::columns;
use crate::report::rows::columns::{Column, ReportRow, Unit, Value, column};
use crate::report::statistics::samples::{ReportedBy, Sampled, Samples, reported, steady_name};
use crate::report::{ReportBuilder, ReportError, Window};
use foldhash::HashMap;
use serde::Serialize;
use strata_analysis::timeline::fused::Fused;
use strata_analysis::timeline::guest::GuestTask;
use strata_analysis::timeline::host::Host;
use strata_analysis::timeline::membership::{Memberships, NOWHERE, OwnIds, Stay};
use strata_analysis::timeline::states::TaskIndex;
use strata_analysis::timeline::{Change, ChangeKind, Input, Timeline, Vm};
use strata_analysis::{Analysis, Passed, event};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "tasks",
    about: "Where the time of each guest task went: running for real, stolen by the host and by whom, in exits, \
            waiting",
    requested: Requested::Command,
    examples: &["strata report tasks trace --by cgroup"],
    takes_symbols: false,
    is_in_all: true,
    rows: &[
        columns::rows::<TaskReport>("vms[].tasks[]"),
        columns::rows::<OwnIds>("vms[].tasks[].own"),
        columns::rows::<Times>("vms[].tasks[].times_ns"),
        columns::rows::<Part>("vms[].tasks[].parts[]"),
    ],
    begin: |_, window, _| Ok(Box::new(TaskTimes::new(window))),
};

/// Where the time of the tasks of all guests went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tasks {
    /// Ticks per second: times are in ticks where they have to add up.
    pub frequency_hz: u64,
    /// The VMs whose guest's kernel was recorded.
    pub vms: Vec<VmTasks>,
    /// The command that says more, for people.
    #[serde(skip)]
    pub next: Option<String>,
}

/// Where the time of the tasks of a guest went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmTasks {
    /// Name of the VM.
    pub vm: String,
    /// What is reported on: no longer than the guest's kernel was recorded.
    pub window: Window,
    /// What the parts mean less than they could, and why.
    pub warnings: Vec<String>,
    /// The tasks; the one that had the CPU, or wanted it, for longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub tasks: Vec<TaskReport>,
}

/// Where the time of a task went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskReport {
    /// Thread id.
    pub tid: i32,
    pub comm: String,
    /// Path of its cgroup in the default hierarchy; `#ID` where the path is not known.
    pub cgroup: Option<String>,
    /// What it is called in its own pid namespace, where that is not the initial one.
    pub own: Option<OwnIds>,
    /// Whether it was made within the window.
    pub born: bool,
    /// Whether it ended within the window.
    pub ended: bool,
    /// Time in the window, or from when it was made, or until it ended, ticks.
    pub wall_ticks: u64,
    /// The same, ns.
    pub wall_ns: u64,
    /// What the time is made of, in few parts, ticks; they add up to `wall_ticks`.
    pub times: Times,
    /// The same, ns, each rounded down.
    pub times_ns: Times,
    /// What the time is made of, in detail; the parts add up to `wall_ticks`.
    pub parts: Vec<Part>,
}

impl ReportRow for OwnIds {
    const COLUMNS: &'static [Column<Self>] = &[
        column("tid", "own tid", Unit::Number, "Thread id there", |row| row.tid.into()),
        column("pid", "", Unit::Number, "Process id there; 0 where it was about to end", |row| row.pid.into()),
        column("namespace", "", Unit::Number, "Inode of the namespace, as `/proc/PID/ns/pid` shows it", |row| {
            row.namespace.into()
        }),
    ];
}

impl ReportRow for TaskReport {
    const COLUMNS: &'static [Column<Self>] = &[
        column("comm", "task", Unit::Text, "Its name", |row| (&row.comm).into()),
        column("tid", "tid", Unit::Number, "Thread id", |row| row.tid.into()),
        column("own", "", Unit::Object, "What its own pid namespace calls it", |row| {
            Value::or_absent(row.own.as_ref().map(Value::object))
        }),
        column("cgroup", "cgroup", Unit::Text, "Its cgroup: path, or `#ID` without one", |row| {
            Value::or_absent(row.cgroup.as_ref())
        }),
        column("born", "", Unit::Flag, "Made within the window", |row| row.born.into()),
        column("ended", "", Unit::Flag, "Ended within the window", |row| row.ended.into()),
        column("wall_ticks", "", Unit::Ticks, "How long it was there", |row| row.wall_ticks.into()),
        column("wall_ns", "wall", Unit::Ns, "The same", |row| row.wall_ns.into()),
        column("times_ticks", "", Unit::Object, "Its parts, as below; they add up to `wall_ticks`", |row| {
            Value::object(&row.times)
        }),
        column("times_ns", "", Unit::Object, "The same, ns, each rounded down", |row| Value::object(&row.times_ns)),
        column("parts", "", Unit::Rows, "Its parts in detail; they add up to `wall_ticks`", |row| {
            Value::rows(&row.parts)
        }),
    ];
}

impl ReportRow for Part {
    const COLUMNS: &'static [Column<Self>] = &[
        column(
            "state",
            "",
            Unit::Text,
            "`running`, `running_or_stolen`, `exit`, `vmm`, `stolen`, `halted`, `runnable`, `runnable_stolen`, \
             `blocked`, `unknown` or `vcpu_unknown`",
            |row| row.state.into(),
        ),
        column("detail", "", Unit::Text, "In which call or interrupt, for which exit, by whom, on what", |row| {
            Value::or_absent(row.detail.as_ref())
        }),
        column("ticks", "", Unit::Ticks, "How long", |row| row.ticks.into()),
        column("ns", "", Unit::Ns, "The same", |row| row.ns.into()),
    ];
}

/// A part of a task's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it did: `running`, `running_or_stolen`, `exit`, `vmm`, `stolen`, `halted`, `runnable`, `runnable_stolen`,
    /// `blocked`, `unknown` or `vcpu_unknown`.
    pub state: &'static str,
    /// In which system call or interrupt, for which exit, by whom, on what.
    pub detail: Option<String>,
    /// Time, ticks.
    pub ticks: u64,
    /// The same, ns.
    pub ns: u64,
}

/// Reports on the tasks in `trace`.
///
/// # Errors
/// When no guest's kernel was recorded, or when the parts of a task do not add up.
pub fn report(trace: &Trace, window: Window) -> Result<Tasks, ReportError> {
    crate::report::make(trace, window, TaskTimes::new(window))
}

/// The report in the making. Takes memory for each task, for each name that it had, and for each thing that it did.
#[derive(Debug)]
pub struct TaskTimes {
    window: Window,
    /// By VM and task: its stretches under one name and in one cgroup.
    stretches: Vec<Vec<Vec<Stretch>>>,
    samples: Samples,
}

/// What tells of the states of tasks, beside what tells of those of vCPUs.
const REPORTED_BY: [ReportedBy; 13] = {
    let [switch, wake, entry, exit, returns, vmm_enter, vmm_exit] = super::vcpu_events::REPORTED_BY;
    let guest = LayerKind::GuestKernel;
    let tasks = [
        reported(guest, event::name::SWITCH),
        reported(guest, "sched:sched_wak*"),
        reported(guest, event::name::SYSCALL_ENTER),
        reported(guest, event::name::CONTENTION_BEGIN),
        reported(guest, "irq:softirq_entry"),
        reported(guest, "irq_vectors:*"),
    ];
    let [guest_switch, guest_wake, call, lock, softirq, vector] = tasks;
    [switch, wake, entry, exit, returns, vmm_enter, vmm_exit, guest_switch, guest_wake, call, lock, softirq, vector]
};

impl Sampled for TaskTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples)]
    }
}

/// The time in which a task had one name, since a program that runs another one goes on under the other's, and was in
/// one cgroup.
#[derive(Clone, Debug)]
struct Stretch {
    comm: Vec<u8>,
    /// Where it was; `None` before anything tells what it did.
    stay: Option<Stay>,
    begin: u64,
    end: u64,
    times: HashMap<Fused, u64>,
}

impl TaskTimes {
    /// A report on `window` before its first record.
    #[must_use]
    pub fn new(window: Window) -> Self {
        Self { window, stretches: Vec::new(), samples: Samples::default() }
    }

    /// The stretches of a task.
    fn of(&mut self, (vm, task): (usize, TaskIndex)) -> &mut Vec<Stretch> {
        let of_vm = place(&mut self.stretches, vm);
        place(of_vm, task)
    }

    /// Adds that the task did `state` in `window`, as far as it existed and that was not added already.
    fn add(&mut self, vm: &Vm, key: (usize, TaskIndex), window: Window, state: Fused) {
        let (Some(task), Some(span)) = (vm.guest.task(key.1), vm.kernel_span) else { return };
        let reported = span.intersection(&self.window).and_then(|span| task.life(&span));
        let Some(mut part) = reported.and_then(|reported| window.intersection(&reported)) else { return };
        let stretches = place(place(&mut self.stretches, key.0), key.1);
        if stretches.is_empty() {
            stretches.push(Stretch::new(part.begin));
        }
        let Some(stretch) = stretches.last_mut() else { return };
        part.begin = part.begin.max(stretch.end);
        if part.begin >= part.end {
            return;
        }
        if self.samples.is_on()
            && let Some(heading) = times::heading_of(state)
        {
            let comm = if stretch.comm.is_empty() { &task.comm } else { &stretch.comm };
            let row = || format!("{}: {heading}", steady_name(&String::from_utf8_lossy(comm)));
            self.samples.add_state(Some(key.0), part, row);
        }
        let stay = vm.guest.stay(task);
        if stretch.stay == Some(stay) {
            stretch.add(part, state);
            return;
        }
        // It came there in the midst of this: what was before is where it was then.
        let (_, since) = vm.guest.memberships.stay(stay);
        let moved = since.clamp(part.begin, part.end);
        if part.begin < moved {
            stretch.stay.get_or_insert(NOWHERE);
            stretch.add(Window { end: moved, ..part }, state);
        }
        if moved < part.end {
            let is_fresh = stretch.stay.is_none();
            if !is_fresh {
                let next = Stretch { comm: stretch.comm.clone(), ..Stretch::new(stretch.end) };
                stretches.push(next);
            }
            if let Some(stretch) = stretches.last_mut() {
                stretch.stay = Some(stay);
                stretch.add(Window { begin: moved, ..part }, state);
            }
        }
    }

    /// Notes the name that the task has from `time` on.
    fn name(&mut self, vm: &Vm, key: (usize, TaskIndex), time: u64) {
        let Some(task) = vm.guest.task(key.1) else { return };
        let last = self.of(key).last();
        if last.is_some_and(|stretch| stretch.comm == task.comm) {
            return;
        }
        if !task.former.is_empty() || last.is_some_and(|stretch| !stretch.comm.is_empty()) {
            // What it does lasts, and is another stretch's from now on.
            self.add(vm, key, Window { begin: task.since, end: time }, task.fused);
            let stretches = self.of(key);
            if let Some(last) = stretches.last_mut() {
                // What it was called before the window.
                if last.comm.is_empty() {
                    last.comm.clone_from(&task.former);
                }
                let (begin, stay) = (last.end, last.stay);
                stretches.push(Stretch { stay, ..Stretch::new(begin) });
            }
        }
        // It may have been there before anything told of it.
        let span = vm.kernel_span.and_then(|span| span.intersection(&self.window));
        let begin = span.and_then(|span| task.life(&span)).map_or(time.max(self.window.begin), |life| life.begin);
        let stretches = self.of(key);
        if stretches.is_empty() {
            stretches.push(Stretch::new(begin));
        }
        if let Some(stretch) = stretches.last_mut() {
            stretch.comm.clone_from(&task.comm);
        }
    }
}

/// The element of `all` at `index`, made when there is none.
#[inline]
fn place<T: Default>(all: &mut Vec<T>, index: usize) -> &mut T {
    if all.len() <= index {
        grow(all, index + 1);
    }
    &mut all[index]
}

#[cold]
#[inline(never)]
fn grow<T: Default>(all: &mut Vec<T>, length: usize) {
    all.resize_with(length, T::default);
}

impl Stretch {
    fn new(begin: u64) -> Self {
        Self { comm: Vec::new(), stay: None, begin, end: begin, times: HashMap::default() }
    }

    /// Adds that `state` lasted for `part`, which begins where the stretch ends.
    fn add(&mut self, part: Window, state: Fused) {
        *self.times.entry(state).or_default() += part.length();
        self.end = part.end;
    }
}

impl Analysis for TaskTimes {
    fn takes_change(&self, kind: ChangeKind) -> bool {
        matches!(kind, ChangeKind::Task | ChangeKind::TaskName)
    }

    fn takes_record(&self, _input: &Input<'_>) -> bool {
        false
    }

    fn change(&mut self, change: &Change, timeline: &Timeline) {
        match *change {
            Change::Task { vm, task, window, state } => {
                if let Some(known) = timeline.vm(vm) {
                    self.add(known, (vm, task), window, state);
                }
            }
            Change::TaskName { vm, task, time } => {
                if let Some(known) = timeline.vm(vm) {
                    self.name(known, (vm, task), time);
                }
            }
            Change::Vcpu { .. } | Change::Cpu { .. } | Change::TaskState { .. } => {}
        }
    }
}

impl ReportBuilder for TaskTimes {
    type Report = Tasks;

    fn finish(mut self, trace: &Trace, passed: &Passed) -> Result<Tasks, ReportError> {
        let mut vms = Vec::new();
        for (index, vm) in passed.timeline.vms.iter().enumerate() {
            let Some(window) = vm.kernel_span.and_then(|span| span.intersection(&self.window)) else { continue };
            let host = passed.timeline.host_of(index);
            let mut tasks = Vec::new();
            for (place, task) in vm.guest.tasks.iter().enumerate() {
                let mut stretches = std::mem::take(self.of((index, place)));
                stretches.retain(|stretch| stretch.begin < stretch.end);
                let last = stretches.len().saturating_sub(1);
                for (number, mut stretch) in stretches.into_iter().enumerate() {
                    if stretch.comm.is_empty() {
                        stretch.comm.clone_from(&task.comm);
                    }
                    let born = number == 0 && task.born.is_some_and(|born| born >= window.begin);
                    let ended = number == last && task.ended.is_some_and(|ended| ended <= window.end);
                    let cgroup = cgroup_of(&vm.guest.memberships, stretch.stay.unwrap_or(NOWHERE));
                    let reported = of_stretch(task, &stretch, host, trace.clock())?;
                    tasks.push(TaskReport { born, ended, cgroup, ..reported });
                }
            }
            tasks.sort_by_key(|task: &TaskReport| (std::cmp::Reverse(task.times.wanted()), task.tid));
            vms.push(VmTasks { vm: vm.name.clone(), window, warnings: warnings(vm), tasks });
        }
        if vms.is_empty() {
            return Err(ReportError::nothing(
                "there is no guest-kernel record",
                "record with --agent, and see strata report",
            ));
        }
        let first = vms.iter().find_map(|vm| Some((&vm.vm, vm.tasks.first()?)));
        let next = first.map(|(vm, task)| NextCommand::on(trace, passed).worst_waits(vm, (&task.comm, task.tid)));
        Ok(Tasks { frequency_hz: trace.clock().frequency_hz, vms, next })
    }
}

fn of_stretch(
    task: &GuestTask,
    stretch: &Stretch,
    host: Option<&Host>,
    clock: &Clock,
) -> Result<TaskReport, ReportError> {
    let mut sums = Times::default();
    let mut parts = Vec::with_capacity(stretch.times.len());
    let mut times: Vec<_> = stretch.times.iter().collect();
    times.sort_unstable_by_key(|&(&state, _)| state);
    for (&state, &ticks) in times {
        sums.add(state, ticks);
        let (state, detail) = name(state, host);
        parts.push(Part { state, detail, ticks, ns: clock.ticks_to_ns(ticks) });
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.ticks));
    let wall_ticks = stretch.end - stretch.begin;
    let by_state: u64 = stretch.times.values().sum();
    let by_part: u64 = sums.parts().iter().sum();
    if by_state != wall_ticks || by_part != wall_ticks {
        return Err(ReportError::Sum { of: state_names::task(task), parts: by_part, wall: wall_ticks });
    }
    Ok(TaskReport {
        tid: task.tid,
        comm: String::from_utf8_lossy(&stretch.comm).into_owned(),
        cgroup: None,
        own: task.own_ids(),
        born: false,
        ended: false,
        wall_ticks,
        wall_ns: clock.ticks_to_ns(wall_ticks),
        times: sums,
        times_ns: sums.in_ns(clock),
        parts,
    })
}

/// The path of the cgroup of a stay, or `#` and its id; `None` where it is not known.
#[must_use]
pub fn cgroup_of(memberships: &Memberships, stay: Stay) -> Option<String> {
    let id = memberships.stay(stay).0?;
    Some(memberships.path(id).unwrap_or_else(|| format!("#{id}")))
}

/// What a state is called, and its cause where it has one.
#[must_use]
pub fn name(state: Fused, host: Option<&Host>) -> (&'static str, Option<String>) {
    match state {
        Fused::Running(running) => ("running", state_names::running(running)),
        Fused::RunningOrStolen(running) => ("running_or_stolen", state_names::running(running)),
        Fused::Kvm(reason) => ("exit", Some(state_names::reason(reason))),
        Fused::Vmm(reason) => ("vmm", Some(state_names::reason(reason))),
        Fused::Stolen(by) => ("stolen", Some(state_names::preemptor(host, by))),
        Fused::Halted => ("halted", None),
        Fused::VcpuUnknown => ("vcpu_unknown", None),
        Fused::Runnable => ("runnable", None),
        Fused::NotAllowed => ("runnable", Some(state_names::NOT_ALLOWED.into())),
        Fused::RunnableStolen(by) => ("runnable_stolen", Some(state_names::preemptor(host, by))),
        Fused::Blocked(on) => ("blocked", Some(state_names::blocked_on(on).into())),
        Fused::Unknown => ("unknown", None),
    }
}

#[cfg(test)]
mod tests;
