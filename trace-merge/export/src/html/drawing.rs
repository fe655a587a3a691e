//! The timeline of the page in the making: one pass over the recording feeds its rows, records and arrows.

mod arrows;
mod counting;

use super::flows::{Flows, NewFlow};
use super::host_cpus::HostCpu;
use super::records::Records;
use super::rows::{RowKind, RowNumber, Rows};
use super::{Bounds, category, why};
use arrows::{ArrowKind, Arrows, End};
use counting::Counting;
use foldhash::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use strata_analysis::event::runner::RunnerEvents;
use strata_analysis::event::{Event, Tid, WakeupStage};
use strata_analysis::timeline::fused::Fused;
use strata_analysis::timeline::host::{HostCpuState, HostThread};
use strata_analysis::timeline::states::{Current, TaskIndex, TaskState};
use strata_analysis::timeline::{Change, ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Gap};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::reader::merge::Merge;
use strata_recording::reader::{Trace, TraceLayer};
use strata_recording::window::Window;
use trace_merge::critical_path::CriticalPaths;
use trace_merge::progress;
use trace_merge::report::devices::flow_step::FlowTask;
use trace_merge::report::devices::flows::FlowTimes;
use trace_merge::report::devices::net_flows::{Direction, NetFlowTimes};
use trace_merge::report::scheduling::state_names;

/// Records after which progress is reported again.
const REPORT_EVERY: u64 = 4096;

/// A task of a guest: VM, and which of its tasks.
type TaskOf = (usize, TaskIndex);

/// A stream of the merge.
struct Source {
    /// Its layer, among those of the recording.
    layer: usize,
    /// How the records of a host's kernel tell which thread made them.
    recorded_by: Option<RunnerEvents>,
    /// Of a process: who makes its records.
    process: Option<u32>,
    /// The row in which they are marked.
    row: RowNumber,
}

/// The rows of CPUs.
#[derive(Debug, Default)]
struct CpuRows {
    hosts: BTreeMap<(usize, u32), HostCpu>,
    vcpus: BTreeMap<(usize, u32), RowNumber>,
    guests: BTreeMap<(usize, u32), RowNumber>,
}

/// The timeline in the making.
pub(super) struct Drawing<'t> {
    clock: Clock,
    /// What is drawn, ticks; times of the page begin with it.
    part: Window,
    progress: Option<&'t AtomicU64>,
    seen: u64,
    pub(super) rows: Rows,
    pub(super) records: Records,
    pub(super) arrows: Arrows,
    pub(super) flows: Flows,
    pub(super) counting: Counting<'t>,
    sources: Vec<Source>,
    cpus: CpuRows,
    /// The rows of tasks: at most so many.
    tasks: HashMap<TaskOf, RowNumber>,
    most_tasks: usize,
    /// Tasks that have no row, with a slice that would be drawn.
    pub(super) tasks_left_out: BTreeSet<TaskOf>,
    requests: FlowTimes,
    packets: NetFlowTimes,
    /// Tasks that were woken and have not run yet: when, and in which row by whom.
    woken: HashMap<TaskOf, End>,
    /// Numbers of those who make records.
    task_names: HashMap<TaskOf, u32>,
    thread_names: HashMap<(usize, HostThread), u32>,
    tid_names: HashMap<(usize, Tid), u32>,
}

impl<'t> Drawing<'t> {
    /// The timeline of `window` of `trace` before anything is drawn; `None` when nothing lies in it.
    pub(super) fn new(
        trace: &'t Trace,
        window: Window,
        bounds: Bounds,
        progress: Option<&'t AtomicU64>,
    ) -> Option<Self> {
        let timeline = Timeline::new(trace);
        // Where kernels and VMMs recorded nothing, applications may have.
        let all = || Window { begin: trace.start()?, end: trace.end()?.saturating_add(1) }.intersection(&window);
        let part = timeline.span.and_then(|span| span.intersection(&window)).or_else(all)?;
        let mut rows = Rows::new(bounds.slices);
        let cpus = CpuRows::new(trace, &timeline, &mut rows);
        let length = ns(trace.clock(), part, part.end);
        let counting = Counting::new(trace, &timeline, length, |layer| group_of(trace, &timeline, layer));
        let mut records = Records::new(bounds.records, bounds.field_bytes);
        // In the order of the merge of a pass, which reads all layers.
        let merge = Merge::new(trace.layers(), 0);
        let mut others = BTreeMap::new();
        let sources = merge.streams().map(|(layer, stream)| {
            let place = timeline.origin(layer, stream.description.cpu_id);
            let described = &layer.description;
            let number = trace.layers().iter().position(|known| std::ptr::eq(known, layer)).unwrap_or(0);
            let row = place.and_then(|origin| cpus.row(origin)).unwrap_or_else(|| {
                let group = described.vm.as_deref().unwrap_or_default();
                let name = match &described.process {
                    Some(process) => format!("{}/{}: events", process.comm, process.pid),
                    None => format!("{}: other threads", described.kind),
                };
                *others.entry(number).or_insert_with(|| rows.row(RowKind::Records, group, &name))
            });
            let name = |process: &strata_recording::manifest::Process| format!("{}/{}", process.comm, process.pid);
            Source {
                layer: number,
                recorded_by: (described.kind == LayerKind::HostKernel).then(|| RunnerEvents::new(layer)),
                process: described
                    .process
                    .as_ref()
                    .map(|process| records.whos.number(category::Category::Running, &name(process))),
                row,
            }
        });
        let sources = sources.collect();
        Some(Self {
            clock: trace.clock().clone(),
            part,
            progress,
            seen: 0,
            rows,
            records,
            arrows: Arrows::new(bounds.arrows),
            flows: Flows::default(),
            counting,
            sources,
            cpus,
            tasks: HashMap::default(),
            most_tasks: bounds.tasks,
            tasks_left_out: BTreeSet::new(),
            requests: FlowTimes::keeping_ended(trace),
            packets: NetFlowTimes::keeping_ended(trace),
            woken: HashMap::default(),
            task_names: HashMap::default(),
            thread_names: HashMap::default(),
            tid_names: HashMap::default(),
        })
    }

    /// Nanoseconds of the page at `ticks`: since the part begins.
    fn ns(&self, ticks: u64) -> u64 {
        ns(&self.clock, self.part, ticks)
    }

    /// Who made the record `input`: number among those who made any.
    fn who(&mut self, input: &Input<'_>, timeline: &Timeline) -> (Option<Tid>, u32) {
        let source = self.sources.get(input.source);
        match input.origin {
            Origin::Host { host, cpu, .. } => {
                let by = source.and_then(|source| source.recorded_by.as_ref()?.recorded_by(&input.record)).flatten();
                (by, by.map_or(0, |tid| self.thread_number(timeline, (host, cpu), tid)))
            }
            Origin::Guest { vm, .. } => (None, self.task_number(timeline, vm, timeline.recorder())),
            Origin::User { .. } => (None, source.and_then(|source| source.process).unwrap_or(0)),
            Origin::Vmm { .. } => (None, 0),
        }
    }

    fn thread_number(&mut self, timeline: &Timeline, (host, cpu): (usize, u32), tid: Tid) -> u32 {
        let whos = &mut self.records.whos;
        let known = timeline.hosts.get(host);
        match known.map(|known| (known, known.cpu(cpu))) {
            Some((known, HostCpuState::Running(thread))) if thread.tid == tid => {
                *self.thread_names.entry((host, thread)).or_insert_with(|| {
                    whos.number(category::Category::Running, &format!("{}/{tid}", known.thread_name(thread)))
                })
            }
            _ => *self.tid_names.entry((host, tid)).or_insert_with(|| {
                let name = if tid == 0 { "idle".into() } else { tid.to_string() };
                whos.number(category::Category::Running, &name)
            }),
        }
    }

    fn task_number(&mut self, timeline: &Timeline, vm: usize, current: Current) -> u32 {
        let whos = &mut self.records.whos;
        match current {
            Current::Unknown => 0,
            Current::Idle => whos.number(category::Category::Running, "idle"),
            Current::Task(task) => {
                let name = || timeline.vm(vm)?.guest.task(task).map(state_names::task);
                *self
                    .task_names
                    .entry((vm, task))
                    .or_insert_with(|| name().map_or(0, |name| whos.own_number(category::Category::Running, &name)))
            }
        }
    }

    /// Follows a record for what it changes, whether or not it is drawn itself.
    fn follow(&mut self, input: &Input<'_>, timeline: &Timeline, by: Option<Tid>) {
        let time = self.ns(input.time());
        match input.origin {
            Origin::Host { host, cpu, .. } => {
                if let Some(cpu) = self.cpus.hosts.get_mut(&(host, cpu)) {
                    cpu.record(&mut self.rows, timeline, time, input.event.as_ref(), by);
                }
            }
            Origin::Guest { vm, cpu } => {
                if let Some(Event::Wakeup { task, stage: WakeupStage::Waking | WakeupStage::New, .. }) = input.event
                    && let Some(woken) = timeline.vm(vm).and_then(|vm| vm.guest.living(task.tid))
                {
                    let row = match timeline.recorder() {
                        Current::Task(waker) => self.tasks.get(&(vm, waker)).copied(),
                        Current::Idle | Current::Unknown => None,
                    };
                    // A wake-up from an interrupt of an idle CPU is that CPU's.
                    if let Some(row) = row.or_else(|| self.cpus.guests.get(&(vm, cpu)).copied()) {
                        self.woken.insert((vm, woken), End { row, time });
                    }
                }
            }
            Origin::Vmm { .. } | Origin::User { .. } => {}
        }
    }

    /// Draws the CPU that a guest's task runs on under the name that it had up to `time`.
    fn draw_formerly(&mut self, timeline: &Timeline, (vm, task): TaskOf, time: u64) {
        let Some(known) = timeline.vm(vm).filter(|vm| vm.guest.task(task).is_some_and(|task| !task.former.is_empty()))
        else {
            return;
        };
        for (&(_, cpu), &row) in self.cpus.guests.range((vm, 0)..=(vm, u32::MAX)) {
            let Some((view, since)) = known.guest.cpu(cpu).map(|cpu| cpu.view()) else { continue };
            if view.current == Current::Task(task) {
                let (category, name) =
                    category::of_guest_cpu(&view, known, timeline.host_of(vm), state_names::task_formerly);
                let window = (ns(&self.clock, self.part, since), ns(&self.clock, self.part, time));
                self.rows.slice(row, window, category, &name);
            }
        }
    }

    /// The row of a guest's task, which is made if there is none and may be one more.
    fn task_row(&mut self, timeline: &Timeline, of: TaskOf) -> Option<RowNumber> {
        if let Some(&row) = self.tasks.get(&of) {
            return Some(row);
        }
        if self.tasks.len() >= self.most_tasks {
            self.tasks_left_out.insert(of);
            return None;
        }
        let vm = timeline.vm(of.0)?;
        let row = self.rows.row(RowKind::Task, &vm.name, &vm.guest.task(of.1).map(state_names::task)?);
        self.tasks.insert(of, row);
        Some(row)
    }

    fn draw_requests(&mut self, timeline: &Timeline, at_end: bool) {
        for (vm, flow) in self.requests.take_ended(timeline, at_end) {
            let drawn = NewFlow::request(&flow, |ticks| self.ns(ticks));
            let Some(row) = self.draw_flow(timeline, vm, flow.begin, drawn) else { continue };
            let (Some(first), Some(last)) = (flow.steps.first(), flow.steps.last()) else { continue };
            let issuer = self.row_of(timeline, vm, flow.issuer.as_ref());
            let woken = self.row_of(timeline, vm, flow.woken.as_ref());
            self.draw_arrow(ArrowKind::Issue, (issuer, flow.begin), (Some(row), first.end));
            self.draw_arrow(ArrowKind::Completion, (Some(row), last.end.saturating_sub(last.ticks)), (woken, last.end));
        }
    }

    fn draw_packets(&mut self, timeline: &Timeline, at_end: bool) {
        for (vm, (direction, flow)) in self.packets.take_ended(timeline, at_end) {
            let drawn = NewFlow::packet(direction, &flow, |ticks| self.ns(ticks));
            let Some(row) = self.draw_flow(timeline, vm, flow.begin, drawn) else { continue };
            let (Some(first), Some(last)) = (flow.steps.first(), flow.steps.last()) else { continue };
            let task = self.row_of(timeline, vm, flow.task.as_ref());
            let (kind, from, to) = match direction {
                Direction::Sent => (ArrowKind::Send, (task, flow.begin), (Some(row), first.end)),
                Direction::Received => {
                    (ArrowKind::Receive, (Some(row), last.end.saturating_sub(last.ticks)), (task, last.end))
                }
            };
            self.draw_arrow(kind, from, to);
        }
    }

    /// Draws what began at `begin` ticks, unless that is before the page; the row that it is drawn in.
    fn draw_flow(&mut self, timeline: &Timeline, vm: usize, begin: u64, flow: NewFlow) -> Option<RowNumber> {
        if begin < self.part.begin {
            return None;
        }
        let group = &timeline.vm(vm)?.name;
        self.flows.draw(&mut self.rows, (vm, group), flow)
    }

    /// The row of `task` of the VM at `vm`, if it has one.
    fn row_of(&self, timeline: &Timeline, vm: usize, task: Option<&FlowTask>) -> Option<RowNumber> {
        let task = timeline.vm(vm)?.guest.living(task?.tid)?;
        self.tasks.get(&(vm, task)).copied()
    }

    /// An arrow from one row and time, ticks, to another, if there are such rows.
    fn draw_arrow(&mut self, kind: ArrowKind, from: (Option<RowNumber>, u64), to: (Option<RowNumber>, u64)) {
        let end = |(row, ticks): (Option<RowNumber>, u64)| Some(End { row: row?, time: self.ns(ticks) });
        if let (Some(from), Some(to)) = (end(from), end(to)) {
            self.arrows.add(kind, from, to);
        }
    }

    fn report_progress(&self, time: u64) {
        let Some(progress) = self.progress else { return };
        progress.store(progress::up_to(time, self.part), Ordering::Relaxed);
    }

    /// Ends at `end` ticks what still lasts.
    pub(super) fn finish(&mut self, timeline: &Timeline, end: u64) {
        self.draw_requests(timeline, true);
        self.draw_packets(timeline, true);
        let end = self.ns(end);
        for cpu in self.cpus.hosts.values_mut() {
            cpu.finish(&mut self.rows, timeline, end);
        }
        for (&(vm, task), &row) in &self.tasks {
            // By the name that it had last.
            if let Some(task) = timeline.vm(vm).and_then(|vm| vm.guest.task(task)) {
                self.rows.rename(row, &state_names::task(task));
            }
        }
        let row_of = |(of, &who)| Some((who, *self.tasks.get(of)?));
        self.records.set_rows_of_tasks(self.task_names.iter().filter_map(row_of));
    }

    /// Draws why a task took so long.
    pub(super) fn explain(&mut self, paths: &CriticalPaths) {
        let (clock, part) = (&self.clock, self.part);
        why::draw(&mut self.rows, paths, |ticks| ns(clock, part, ticks));
    }

    /// Length of what is drawn, ns.
    pub(super) fn length_ns(&self) -> u64 {
        self.ns(self.part.end)
    }
}

/// The last moment of a page, ns: the page counts in doubles, which are exact up to here. It is 104 days.
const LAST_MOMENT: u64 = 1 << 53;

/// Nanoseconds since `part` begins at `ticks`.
fn ns(clock: &Clock, part: Window, ticks: u64) -> u64 {
    clock.ticks_to_ns(ticks.min(part.end)).saturating_sub(clock.ticks_to_ns(part.begin)).min(LAST_MOMENT)
}

/// What the rows of the host at `host` are drawn below.
fn group_of_host(trace: &Trace, timeline: &Timeline, host: usize) -> String {
    let name = timeline.hosts.get(host).and_then(|host| host.name.as_deref());
    format!("host {}", name.unwrap_or(&trace.manifest().host.hostname))
}

/// What the rows of a layer are drawn below.
fn group_of(trace: &Trace, timeline: &Timeline, layer: &TraceLayer) -> String {
    match timeline.origin(layer, 0) {
        Some(Origin::Host { host, .. }) => group_of_host(trace, timeline, host),
        _ => layer.description.vm.clone().unwrap_or_default(),
    }
}

impl CpuRows {
    /// Rows for all CPUs and vCPUs that may have something to draw, from above to below.
    fn new(trace: &Trace, timeline: &Timeline, rows: &mut Rows) -> Self {
        let mut cpus = Self::default();
        let mut host_cpus: Vec<(usize, u32)> = trace
            .layers_of(LayerKind::HostKernel)
            .flat_map(|layer: &TraceLayer| layer.streams.iter().map(move |stream| (layer, stream)))
            .filter_map(|(layer, stream)| match timeline.origin(layer, stream.description.cpu_id)? {
                Origin::Host { host, cpu, .. } => Some((host, cpu)),
                _ => None,
            })
            .collect();
        host_cpus.sort_unstable();
        // Its records may be in two layers.
        host_cpus.dedup();
        for (host, cpu) in host_cpus {
            let group = group_of_host(trace, timeline, host);
            let row = rows.row(RowKind::HostCpu, &group, &format!("CPU {cpu}"));
            cpus.hosts.insert((host, cpu), HostCpu::new(host, row));
        }
        for (index, vm) in timeline.vms.iter().enumerate() {
            for vcpu in vm.vcpus.numbers() {
                let row = rows.row(RowKind::Vcpu, &vm.name, &format!("vCPU {vcpu}"));
                cpus.vcpus.insert((index, vcpu), row);
            }
            for cpu in vm.vcpus.numbers().filter(|_| vm.kernel_span.is_some()) {
                let row = rows.row(RowKind::GuestCpu, &vm.name, &format!("guest CPU {cpu}"));
                cpus.guests.insert((index, cpu), row);
            }
        }
        cpus
    }

    /// The row in which records from `origin` are marked; `None` where that is not a CPU's.
    fn row(&self, origin: Origin) -> Option<RowNumber> {
        match origin {
            Origin::Host { host, cpu, .. } => self.hosts.get(&(host, cpu)).map(HostCpu::row),
            Origin::Vmm { vm, thread } => self.vcpus.get(&(vm, thread)).copied(),
            Origin::Guest { vm, cpu } => self.guests.get(&(vm, cpu)).copied(),
            Origin::User { .. } => None,
        }
    }
}

impl Analysis for Drawing<'_> {
    fn layers(&self) -> &'static [LayerKind] {
        &LayerKind::ALL
    }

    fn takes_change(&self, _: ChangeKind) -> bool {
        true
    }

    fn before(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.counting.before(input);
        let (by, _) = self.who(input, timeline);
        self.follow(input, timeline, by);
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        let (by, who) = self.who(input, timeline);
        self.follow(input, timeline, by);
        let time = self.ns(input.time());
        let (clock, part) = (&self.clock, self.part);
        self.counting.record(input, timeline, time, |ticks| ns(clock, part, ticks));
        if let Some(Source { layer, row, .. }) = self.sources.get(input.source) {
            self.records.add(input, *layer, *row, time, who);
        }
        if FlowTimes::follows(input) {
            self.requests.record(input, timeline);
            self.draw_requests(timeline, false);
        }
        if NetFlowTimes::follows(input) {
            self.packets.record(input, timeline);
            self.draw_packets(timeline, false);
        }
        self.seen += 1;
        if self.seen.is_multiple_of(REPORT_EVERY) {
            self.report_progress(input.time());
        }
    }

    fn change(&mut self, change: &Change, timeline: &Timeline) {
        let (clock, part) = (&self.clock, self.part);
        let window_ns = |window: &Window| (ns(clock, part, window.begin), ns(clock, part, window.end));
        match *change {
            Change::Vcpu { vm, vcpu, ref window, state } => {
                if let Some(&row) = self.cpus.vcpus.get(&(vm, vcpu))
                    && let Some((category, name)) = category::of_vcpu(state, timeline.host_of(vm))
                {
                    self.rows.slice(row, window_ns(window), category, &name);
                }
            }
            Change::Cpu { vm, cpu, ref window, view } => {
                if let (Some(&row), Some(known)) = (self.cpus.guests.get(&(vm, cpu)), timeline.vm(vm)) {
                    let (category, name) =
                        category::of_guest_cpu(&view, known, timeline.host_of(vm), state_names::task);
                    self.rows.slice(row, window_ns(window), category, &name);
                }
            }
            Change::Task { vm, task, ref window, state } => {
                // As in the report on tasks: while the guest's kernel was recorded, and the task existed.
                let Some(known) = timeline.vm(vm) else { return };
                let recorded = known.kernel_span.and_then(|span| span.intersection(window));
                let Some(life) = recorded.and_then(|recorded| known.guest.task(task)?.life(&recorded)) else { return };
                let window = window_ns(&life);
                // Before a task is met there is nothing to be known.
                if state == Fused::Unknown && !self.tasks.contains_key(&(vm, task)) {
                    return;
                }
                let (category, name) = category::of_task(state, timeline.host_of(vm));
                if let Some(row) = self.task_row(timeline, (vm, task)) {
                    self.rows.slice(row, window, category, &name);
                }
            }
            Change::TaskName { vm, task, time } => {
                self.task_names.remove(&(vm, task));
                self.draw_formerly(timeline, (vm, task), time);
            }
            Change::TaskState { vm, task, time, state } => match state {
                TaskState::Running { .. } => {
                    let time = self.ns(time);
                    if let Some(from) = self.woken.remove(&(vm, task))
                        && let Some(&row) = self.tasks.get(&(vm, task))
                    {
                        self.arrows.add(ArrowKind::WakeUp, from, End { row, time });
                    }
                }
                TaskState::Unknown | TaskState::Absent => drop(self.woken.remove(&(vm, task))),
                TaskState::Runnable { .. } | TaskState::Blocked { .. } => {}
            },
        }
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        if gap.begins
            && let Origin::Host { host, cpu, only_kvm: false } = gap.origin
        {
            let time = self.ns(gap.time);
            if let Some(cpu) = self.cpus.hosts.get_mut(&(host, cpu)) {
                cpu.lose(&mut self.rows, timeline, time);
            }
        }
        self.requests.gap(gap, timeline);
        self.packets.gap(gap, timeline);
    }
}
