//! Where the time of a guest's tasks went: for real, in exits, stolen by the host, waiting. For each task the parts add
//! up to its wall time to the tick.

use super::columns::{self, Column, ReportRow, Unit, Value, column};
use super::description::{Asked, Description};
use super::next_command::NextCommand;
use super::samples::{Sampled, Samples, ToldBy, steady_name, told};
use super::table::{Align, Table};
use super::{Report, ReportBuilder, ReportError, Window, duration, percent, state_names};
use foldhash::HashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use strata_analysis::event;
use strata_analysis::timeline::fused::{self, Fused};
use strata_analysis::timeline::guest::GuestTask;
use strata_analysis::timeline::host::Host;
use strata_analysis::timeline::membership::{Memberships, NOWHERE, OwnIds, Stay};
use strata_analysis::timeline::states::{BlockedOn, TaskIndex};
use strata_analysis::timeline::{Change, ChangeKind, Input, Timeline, Vm};
use strata_analysis::{Analysis, Passed};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "tasks",
    about: "Where the time of each guest task went: running for real, stolen by the host and by whom, in exits, \
            waiting",
    asked: Asked::Command,
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
    /// Name.
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

/// What a task's time is made of, in ticks unless it is said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// It ran for real. Without a host-kernel layer also what that would tell apart.
    pub running: u64,
    /// Interrupts ran on top of it.
    pub interrupted: u64,
    /// It was ready, and the guest ran something else.
    pub runnable: u64,
    /// It was ready, and the host ran something else in place of the vCPU that it waited for.
    pub runnable_stolen: u64,
    /// The guest had it running, the host ran something else.
    pub stolen: u64,
    /// The guest had it running, KVM handled an exit.
    pub exits: u64,
    /// The guest had it running, the VMM handled an exit.
    pub vmm: u64,
    /// It waited for I/O.
    pub io: u64,
    /// It waited for a lock of the kernel or for a futex.
    pub lock: u64,
    /// It slept for a time.
    pub sleep: u64,
    /// It waited for something else.
    pub waiting: u64,
    /// Not known: the records do not tell.
    pub unknown: u64,
}

impl Times {
    fn add(&mut self, state: Fused, ticks: u64) {
        if let Some(part) = self.parts_mut().into_iter().nth(place_of(state)) {
            *part += ticks;
        }
    }

    /// Both.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut sum = *self;
        for (part, more) in sum.parts_mut().into_iter().zip(other.parts()) {
            *part = part.saturating_add(more);
        }
        sum
    }

    /// The same of ticks, ns, each rounded down.
    pub(super) fn in_ns(mut self, clock: &Clock) -> Self {
        self.parts_mut().into_iter().for_each(|part| *part = clock.ticks_to_ns(*part));
        self
    }

    /// All of them, in the order of the fields.
    #[must_use]
    pub const fn parts(&self) -> [u64; 12] {
        [
            self.running,
            self.interrupted,
            self.runnable,
            self.runnable_stolen,
            self.stolen,
            self.exits,
            self.vmm,
            self.io,
            self.lock,
            self.sleep,
            self.waiting,
            self.unknown,
        ]
    }

    const fn parts_mut(&mut self) -> [&mut u64; 12] {
        [
            &mut self.running,
            &mut self.interrupted,
            &mut self.runnable,
            &mut self.runnable_stolen,
            &mut self.stolen,
            &mut self.exits,
            &mut self.vmm,
            &mut self.io,
            &mut self.lock,
            &mut self.sleep,
            &mut self.waiting,
            &mut self.unknown,
        ]
    }

    /// How long it had the CPU or wanted it, as the guest sees it.
    pub(super) const fn wanted(&self) -> u64 {
        self.running + self.interrupted + self.runnable + self.runnable_stolen + self.stolen + self.exits + self.vmm
    }
}

/// Which of [`Times::parts`] the time in `state` is.
const fn place_of(state: Fused) -> usize {
    match state {
        Fused::Running(fused::Running::Interrupt(_)) | Fused::RunningOrStolen(fused::Running::Interrupt(_)) => 1,
        Fused::Running(_) | Fused::RunningOrStolen(_) => 0,
        Fused::Runnable | Fused::NotAllowed => 2,
        Fused::RunnableStolen(_) => 3,
        Fused::Stolen(_) => 4,
        Fused::Kvm(_) | Fused::Halted => 5,
        Fused::Vmm(_) => 6,
        Fused::Blocked(BlockedOn::Io) => 7,
        Fused::Blocked(BlockedOn::Lock | BlockedOn::Futex) => LOCK,
        Fused::Blocked(BlockedOn::Sleep) => 9,
        Fused::Blocked(BlockedOn::Uninterruptible | BlockedOn::Event | BlockedOn::Stopped) => 10,
        Fused::Unknown | Fused::VcpuUnknown => 11,
    }
}

/// The last of [`Times::parts`] that is not spent on waiting for something to do.
const LOCK: usize = 8;

impl ReportRow for Times {
    const COLUMNS: &'static [Column<Self>] = &[
        column("running", "running", Unit::PartNs, "It ran for real", |row| row.running.into()),
        column("interrupted", "interrupted", Unit::PartNs, "Interrupts ran on top of it", |row| row.interrupted.into()),
        column("runnable", "runnable", Unit::PartNs, "It was ready, the guest ran something else", |row| {
            row.runnable.into()
        }),
        column(
            "runnable_stolen",
            "runnable, stolen",
            Unit::PartNs,
            "It was ready, the host ran something else in place of its vCPU",
            |row| row.runnable_stolen.into(),
        ),
        column("stolen", "stolen", Unit::PartNs, "The guest had it running, the host ran something else", |row| {
            row.stolen.into()
        }),
        column("exits", "in exits", Unit::PartNs, "The guest had it running, KVM handled an exit", |row| {
            row.exits.into()
        }),
        column("vmm", "in VMM", Unit::PartNs, "The guest had it running, the VMM handled an exit", |row| {
            row.vmm.into()
        }),
        column("io", "I/O", Unit::PartNs, "It waited for I/O", |row| row.io.into()),
        column("lock", "lock", Unit::PartNs, "It waited for a lock of the kernel or for a futex", |row| {
            row.lock.into()
        }),
        column("sleep", "sleep", Unit::PartNs, "It slept for a time", |row| row.sleep.into()),
        column("waiting", "waiting", Unit::PartNs, "It waited for something else", |row| row.waiting.into()),
        column("unknown", "unknown", Unit::PartNs, "Not known: the records do not tell", |row| row.unknown.into()),
    ];
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
        column("born", "", Unit::Flag, "Whether it was made then", |row| row.born.into()),
        column("ended", "", Unit::Flag, "Whether it ended then", |row| row.ended.into()),
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

/// The table of times: a row for each of `rows`, which begins with the cells of `columns` and goes on with its times,
/// at `frequency` Hz. Parts that no row has are not worth a column.
pub(super) fn table_of_times(
    columns: &[(&str, Align)],
    frequency: u64,
    rows: impl IntoIterator<Item = (Vec<String>, Times)>,
) -> Table {
    let rows: Vec<_> = rows.into_iter().collect();
    let is_there = |part: usize| rows.iter().any(|(_, times)| times.parts()[part] > 0);
    let parts: Vec<_> = Times::COLUMNS.iter().enumerate().filter(|&(part, _)| is_there(part)).collect();
    let headings = parts.iter().map(|(_, column)| (column.heading, column.unit.align()));
    let mut table = Table::new(&columns.iter().copied().chain(headings).collect::<Vec<_>>());
    for (cells, times) in rows {
        let of_part = |&(part, _): &(usize, _)| shown(times.parts()[part], frequency);
        table.row(cells.into_iter().chain(parts.iter().map(of_part)));
    }
    table
}

/// `ticks` at `frequency` Hz for a table.
pub(super) fn shown(ticks: u64, frequency: u64) -> String {
    if ticks == 0 { "-".into() } else { duration(in_ns(ticks, frequency)) }
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
    super::make(trace, window, TaskTimes::new(window))
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
const TOLD_BY: [ToldBy; 13] = {
    let [switch, wake, entry, exit, returns, vmm_enter, vmm_exit] = super::vcpus::TOLD_BY;
    let guest = LayerKind::GuestKernel;
    let tasks = [
        told(guest, event::name::SWITCH),
        told(guest, "sched:sched_wak*"),
        told(guest, event::name::SYSCALL_ENTER),
        told(guest, event::name::CONTENTION_BEGIN),
        told(guest, "irq:softirq_entry"),
        told(guest, "irq_vectors:*"),
    ];
    let [guest_switch, guest_wake, call, lock, softirq, vector] = tasks;
    [switch, wake, entry, exit, returns, vmm_enter, vmm_exit, guest_switch, guest_wake, call, lock, softirq, vector]
};

impl Sampled for TaskTimes {
    fn samples(&mut self) -> Vec<(&'static [ToldBy], &mut Samples)> {
        vec![(&TOLD_BY, &mut self.samples)]
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
    /// A report on `window`, of which nothing is known yet.
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
        let of_state = place_of(state);
        if of_state <= LOCK
            && let Some(Column { heading, .. }) = Times::COLUMNS.get(of_state)
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
        let begin = time.max(self.window.begin);
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
            let missing = "no guest-kernel record in the window; record with --agent, and see strata report".into();
            return Err(ReportError::Nothing { missing });
        }
        let first = vms.iter().find_map(|vm| Some((&vm.vm, vm.tasks.first()?)));
        let next = first.map(|(vm, task)| NextCommand::on(trace).worst_waits(vm, (&task.comm, task.tid)));
        Ok(Tasks { frequency_hz: trace.clock().frequency_hz, vms, next })
    }
}

/// What a report on `vm` cannot tell for want of events.
pub(crate) fn warnings(vm: &Vm) -> Vec<String> {
    let mut warnings = Vec::new();
    if !vm.kvm_tells {
        warnings.push(
            "no kvm:kvm_entry and kvm:kvm_exit of the host's kernel: the guest, exits that KVM handles, and what the host \
             ran instead are not told apart"
                .into(),
        );
    } else if !vm.scheduler_tells {
        warnings.push("no sched:sched_switch of the host's kernel: what the host ran instead counts as exits".into());
    }
    warnings
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

/// Rows of the table of tasks; the others are one row.
const SHOWN: usize = 40;

impl Report for Tasks {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for vm in &self.vms {
            vm.write_text(self.frequency_hz, out)?;
        }
        super::write_next(self.next.as_deref(), out)
    }
}

/// A row of the table: one task, or several short-lived ones of one name.
struct Row<'r> {
    name: String,
    /// Where they were.
    cgroup: Option<&'r str>,
    /// Thread id of the first of them in its own pid namespace.
    own: Option<OwnIds>,
    /// Thread id of the first of them.
    tid: i32,
    tasks: usize,
    wall: u64,
    times: Times,
}

impl Row<'_> {
    fn name(&self) -> String {
        match self.tasks {
            1 => format!("{}/{}", self.name, self.tid),
            tasks => format!("{} ×{tasks}", self.name),
        }
    }

    /// Thread id in its own pid namespace, of one task.
    fn own_tid(&self) -> String {
        self.own.filter(|_| self.tasks == 1).map_or_else(|| "-".into(), |own| own.tid.to_string())
    }
}

impl VmTasks {
    fn write_text(&self, frequency: u64, out: &mut dyn Write) -> io::Result<()> {
        let (count, length) = (self.tasks.len(), shown(self.window.length(), frequency));
        writeln!(out, "{}: {count} tasks in {length} of its kernel's records", self.vm)?;
        for warning in &self.warnings {
            writeln!(out, "WARNING: {warning}")?;
        }
        let rows = self.rows();
        // Where all are at the root, nobody made cgroups.
        let has_cgroups = rows.iter().any(|row| row.cgroup.is_some_and(|path| path != "/"));
        let has_namespaces = rows.iter().any(|row| row.own.is_some());
        let mut headings = vec![("task", Align::Left)];
        headings.extend(has_namespaces.then_some(("own tid", Align::Right)));
        headings.extend(has_cgroups.then_some(("cgroup", Align::Left)));
        headings.push(("wall", Align::Right));
        let rows = rows.iter().map(|row| {
            let mut cells = vec![row.name()];
            cells.extend(has_namespaces.then(|| row.own_tid()));
            cells.extend(has_cgroups.then(|| row.cgroup.map_or_else(|| "-".into(), harmless)));
            cells.push(shown(row.wall, frequency));
            (cells, row.times)
        });
        table_of_times(&headings, frequency, rows).write(out)?;
        let by = |state: &'static str| move |part: &Part| part.state == state;
        self.write_details(out, frequency, "stolen while running", "by", &by("stolen"))?;
        self.write_details(out, frequency, "stolen while runnable", "by", &by("runnable_stolen"))?;
        self.write_details(out, frequency, "in exits, handled by KVM", "reason", &by("exit"))?;
        self.write_details(out, frequency, "in exits, handled by the VMM", "reason", &by("vmm"))
    }

    /// The rows: short-lived tasks of one name in one cgroup are one, and so are all after the first [`SHOWN`].
    fn rows(&self) -> Vec<Row<'_>> {
        let is_short = |task: &TaskReport| task.born && task.ended && task.wall_ticks < self.window.length() / 10;
        let mut rows: Vec<Row<'_>> = Vec::new();
        let mut groups: BTreeMap<(&str, Option<&str>), usize> = BTreeMap::new();
        for task in &self.tasks {
            let cgroup = task.cgroup.as_deref();
            let add = |row: Option<&mut Row<'_>>| match row {
                Some(row) => {
                    (row.tasks, row.wall) = (row.tasks + 1, row.wall.saturating_add(task.wall_ticks));
                    row.times = row.times.plus(&task.times);
                    false
                }
                None => true,
            };
            let group = groups.get(&(task.comm.as_str(), cgroup)).copied().filter(|_| is_short(task));
            if add(group.and_then(|index| rows.get_mut(index))) {
                if is_short(task) {
                    groups.insert((&task.comm, cgroup), rows.len());
                }
                let name = harmless(&task.comm);
                let (tid, own, wall) = (task.tid, task.own, task.wall_ticks);
                rows.push(Row { name, cgroup, own, tid, tasks: 1, wall, times: task.times });
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.times.wanted()));
        if rows.len() > SHOWN {
            let rest = rows.split_off(SHOWN);
            let times = Times::default();
            let others = Row { name: "others".into(), cgroup: None, own: None, tid: 0, tasks: 0, wall: 0, times };
            rows.push(rest.into_iter().fold(others, |sum, row| Row {
                tasks: sum.tasks + row.tasks,
                wall: sum.wall.saturating_add(row.wall),
                times: sum.times.plus(&row.times),
                ..sum
            }));
        }
        rows
    }

    /// A table of the parts that `wanted` accepts, over all tasks, by their details.
    fn write_details(
        &self,
        out: &mut dyn Write,
        frequency: u64,
        title: &str,
        heading: &str,
        wanted: &dyn Fn(&Part) -> bool,
    ) -> io::Result<()> {
        let mut sums: BTreeMap<&str, (u64, (u64, &TaskReport))> = BTreeMap::new();
        for task in &self.tasks {
            for part in task.parts.iter().filter(|part| wanted(part)) {
                let (sum, most) = sums.entry(part.detail.as_deref().unwrap_or("-")).or_insert((0, (0, task)));
                *sum = sum.saturating_add(part.ticks);
                if part.ticks > most.0 {
                    *most = (part.ticks, task);
                }
            }
        }
        if sums.is_empty() {
            return Ok(());
        }
        let total = sums.values().fold(0_u64, |total, (sum, _)| total.saturating_add(*sum));
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|&(_, (sum, _))| std::cmp::Reverse(sum));
        writeln!(out, "\n{}: {title}: {}", self.vm, duration(in_ns(total, frequency)))?;
        let columns =
            [(heading, Align::Left), ("time", Align::Right), ("share", Align::Right), ("most of it from", Align::Left)];
        let mut table = Table::new(&columns);
        for (detail, (sum, (most, task))) in sums {
            let from = format!("{}/{} ({})", harmless(&task.comm), task.tid, duration(in_ns(most, frequency)));
            table.row([harmless(detail), duration(in_ns(sum, frequency)), percent(sum, total), from]);
        }
        table.write(out)
    }
}

/// `ticks` at `frequency` Hz, ns, rounded down.
pub(super) fn in_ns(ticks: u64, frequency: u64) -> u64 {
    let ns = u128::from(ticks) * u128::from(strata_recording::clock::NS_PER_SECOND) / u128::from(frequency.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
