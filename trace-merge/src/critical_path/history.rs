//! What the tasks and CPUs of one guest did during the windows of the question: the execution graph.
//!
//! Vertices are the moments in which a task changes its state, edges along a task the states between them, edges
//! between tasks the wake-ups. It is kept for one window at a time, and handed on when the window is over or the task
//! runs: memory does not grow with the recording, but with the longest wait, up to [`MOST_PIECES`].

use super::vhost::{WorkerRun, Workers};
use crate::report::devices::flows::{Flow, FlowTimes, Milestone};
use foldhash::{HashMap, HashSet};
use std::collections::BTreeMap;
use strata_analysis::event::{self, Event, Interrupt, Tid, WakeupStage};
use strata_analysis::timeline::states::{CpuView, Current, TaskIndex, TaskState};
use strata_analysis::timeline::vcpu::VcpuState;
use strata_analysis::timeline::{Change, ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Gap};
use strata_recording::reader::Trace;
use strata_recording::window::Window;

/// States of tasks and CPUs that are kept at most: about 400 MB. What comes after them in the window is not known.
pub(super) const MOST_PIECES: usize = 4_000_000;
/// Vector of the local APIC's timer (`LOCAL_TIMER_VECTOR`).
const TIMER_VECTOR: i32 = 0xec;
/// Soft interrupts that run expired timers (`TIMER_SOFTIRQ`, `HRTIMER_SOFTIRQ`).
const TIMER_SOFTIRQS: [i32; 2] = [1, 8];
/// The field of the host's events that names the thread which records them.
const THREAD: &str = "common_pid";

/// A record that tells of the beginning or the end of a state: where it was made, and which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    /// The CPU, or the VMM's thread.
    pub(super) cpu: u32,
    /// Index into [`Graph::events`].
    event: u32,
}

/// What a handler returns that has a thread do the rest, and what such threads are called.
const WAKES_THREAD: i64 = 2;
const IRQ_THREAD: &[u8] = b"irq/";

/// Who woke a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waker {
    Task(TaskIndex),
    Interrupt(Interrupt),
    Idle,
    /// The records do not tell, and why.
    Unknown(Unknown),
}

/// Why something is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Unknown {
    /// Records were lost.
    Lost,
    /// No record tells yet.
    NotReported,
    /// Interrupts were not recorded, so that a task that wakes another is not told from an interrupt on top of it.
    NoInterrupts,
    /// No record of the wake-up.
    NoWakeup,
    /// The limit of what is kept was met.
    Limit,
}

/// A wake-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wake {
    /// The CPU that woke.
    pub(super) cpu: u32,
    pub(super) by: Waker,
    pub(super) reported: Option<Reported>,
    /// Whether the task was made, and not woken.
    pub(super) is_fork: bool,
}

/// The state of a task from `begin` up to the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPiece {
    pub(super) begin: u64,
    pub(super) state: TaskState,
    pub(super) reported: Option<Reported>,
    /// Who ended the wait before it.
    pub(super) wake: Option<Wake>,
}

/// What a CPU of the guest did in `window`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuPiece {
    pub(super) window: Window,
    pub(super) view: CpuView,
    /// The record that ended it.
    pub(super) ended_by: Option<Reported>,
}

/// The host took the CPU from a vCPU and gave it to another thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preemption {
    pub(super) time: u64,
    pub(super) thief: Tid,
    /// When the thief was woken, and while which thread ran.
    pub(super) woken: (u64, Option<Tid>),
}

/// The execution graph of one window.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// By task, in time order; the first one may have begun before the window.
    tasks: HashMap<TaskIndex, Vec<TaskPiece>>,
    cpus: BTreeMap<u32, Vec<CpuPiece>>,
    /// Disk requests that have woken a task: when, in time order.
    flows: Vec<(u64, Flow)>,
    pub(super) preemptions: Vec<Preemption>,
    /// Runs of the vhost workers of the VM, by their begin.
    pub(super) worker_runs: Vec<WorkerRun>,
    /// Periods in which records of the guest's or the host's kernel or of the VMM are missing.
    lost: Vec<Window>,
    /// Layer and name of the event types that told something.
    events: Vec<(&'static str, String)>,
    /// Names of the handlers of device interrupts, by number.
    pub(super) handlers: HashMap<i32, String>,
    /// From when on nothing was kept, ticks.
    pub(super) full_at: Option<u64>,
}

impl Graph {
    /// The states of `task`.
    pub(super) fn task(&self, task: TaskIndex) -> &[TaskPiece] {
        self.tasks.get(&task).map_or(&[], Vec::as_slice)
    }

    /// What `cpu` did, in time order.
    pub(super) fn cpu(&self, cpu: u32) -> &[CpuPiece] {
        self.cpus.get(&cpu).map_or(&[], Vec::as_slice)
    }

    fn add_flow(&mut self, flow: Flow) {
        let woken = flow.steps.iter().find(|step| step.to == Milestone::Woken);
        if let Some(time) = woken.map(|step| step.end) {
            let place = self.flows.partition_point(|&(known, _)| known <= time);
            self.flows.insert(place, (time, flow));
        }
    }

    /// The disk requests that woke a task at `time`.
    pub(super) fn flows_at(&self, time: u64) -> impl Iterator<Item = &Flow> {
        let from = self.flows.partition_point(|&(known, _)| known < time);
        self.flows.iter().skip(from).take_while(move |&&(known, _)| known == time).map(|(_, flow)| flow)
    }

    /// Layer and name of the event of `reported`.
    pub(super) fn event(&self, reported: Reported) -> Option<(&'static str, &str)> {
        let (layer, name) = self.events.get(usize::try_from(reported.event).ok()?)?;
        Some((layer, name))
    }

    /// Whether records that could tell of a task are missing in `window`.
    pub(super) fn has_lost(&self, window: &Window) -> bool {
        self.lost.iter().any(|lost| lost.begin < window.end && window.begin <= lost.end)
    }
}

/// Whether the interrupt runs timers that have expired.
pub(super) fn is_timer(interrupt: Interrupt) -> bool {
    match interrupt {
        Interrupt::Irq(_) => false,
        Interrupt::Softirq(vector) => TIMER_SOFTIRQS.contains(&vector),
        Interrupt::Vector(vector) => vector == TIMER_VECTOR,
    }
}

/// A state whose record has not been met yet.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Task(TaskIndex),
    Cpu(u32),
}

/// A window of a task that is to be explained.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) window: Window,
    pub(super) task: TaskIndex,
}

/// Keeps the execution graph of one guest for each of `windows`, and has it walked when the window is over, or before
/// that in parts: between two moments in which the task runs, nothing of its path is known from elsewhere.
pub(super) struct History<W> {
    vm: usize,
    /// Those that are to come and those that are under way, with their numbers, the one that begins last first.
    windows: Vec<(usize, Wanted)>,
    /// When the first of them ends, ticks.
    next_end: u64,
    /// Whether the guest's interrupts were recorded.
    records_interrupts: bool,
    graph: Graph,
    pieces: usize,
    most_pieces: usize,
    pending: Vec<Pending>,
    /// By source of the merge and number of the event type: index into [`Graph::events`].
    event_indices: HashMap<(usize, u16), u32>,
    flow_times: FlowTimes,
    /// CPUs that are known to handle an interrupt or not: a switch was met since their records began or went
    /// on.
    settled: HashSet<u32>,
    /// By CPU: the interrupt whose handler has just asked for its thread, which is woken next.
    threaded: HashMap<u32, i32>,
    /// Threads of the host that were woken and have not run since: when, and while which thread ran.
    woken_threads: HashMap<Tid, (u64, Option<Tid>)>,
    workers: Workers,
    /// By source: since when records are missing, ticks.
    gaps: HashMap<usize, (u64, Origin)>,
    walk: W,
}

impl<W: FnMut(&Graph, usize, Wanted, &Timeline) + Send> History<W> {
    /// The history of the guest `vm` of `trace` in `windows`, which are in order of their begins. `walk` is called for each
    /// of them with its place among them, or for its parts one after the other.
    pub(super) fn new(
        trace: &Trace,
        vm: usize,
        windows: &[Wanted],
        records_interrupts: bool,
        most_pieces: usize,
        walk: W,
    ) -> Self {
        Self {
            vm,
            windows: windows.iter().copied().enumerate().rev().collect(),
            next_end: windows.iter().map(|wanted| wanted.window.end).min().unwrap_or(u64::MAX),
            records_interrupts,
            graph: Graph::default(),
            pieces: 0,
            most_pieces,
            pending: Vec::new(),
            event_indices: HashMap::default(),
            flow_times: FlowTimes::keeping_ended(trace),
            settled: HashSet::default(),
            threaded: HashMap::default(),
            woken_threads: HashMap::default(),
            workers: Workers::of(trace.manifest(), vm),
            gaps: HashMap::default(),
            walk,
        }
    }

    /// Hands on what is left when the recording has been read.
    pub(super) fn finish(&mut self, timeline: &Timeline) {
        let of_vm = self.flow_times.take_ended(timeline, true).into_iter().filter(|(vm, _)| *vm == self.vm);
        of_vm.for_each(|(_, flow)| self.graph.add_flow(flow));
        self.walk_until(u64::MAX, timeline);
    }

    /// Has the windows walked that end before `time`: all records of `time` may still be to come.
    fn walk_until(&mut self, time: u64, timeline: &Timeline) {
        if self.next_end >= time {
            return;
        }
        let over: Vec<_> = self.windows.extract_if(.., |(_, wanted)| wanted.window.end < time).collect();
        let last_end = over.iter().map(|(_, wanted)| wanted.window.end).max().unwrap_or(0);
        over.into_iter().rev().for_each(|(number, wanted)| self.walk_in(number, wanted, timeline));
        self.next_end = self.windows.iter().map(|(_, wanted)| wanted.window.end).min().unwrap_or(u64::MAX);
        let next_begin = self.windows.last().map_or(u64::MAX, |(_, next)| next.window.begin);
        let full_at = self.graph.full_at;
        self.forget(next_begin);
        if next_begin < last_end {
            // That one began before: what was not kept is missing in it, too.
            self.graph.full_at = full_at;
        }
    }

    fn walk_in(&mut self, number: usize, wanted: Wanted, timeline: &Timeline) {
        let window = wanted.window;
        let lasting = self.add_lasting(timeline, window);
        let known = self.graph.lost.len();
        let is_used = |origin| match origin {
            Origin::Guest { vm, cpu } => timeline.vm(vm).is_none_or(|vm| !vm.guest.is_unused(cpu)),
            _ => true,
        };
        let lost = self.gaps.values().filter(|&&(_, origin)| is_used(origin));
        self.graph.lost.extend(lost.map(|&(begin, _)| Window { begin, end: u64::MAX }));
        (self.walk)(&self.graph, number, wanted, timeline);
        self.graph.lost.truncate(known);
        for cpu in lasting {
            self.graph.cpus.get_mut(&cpu).and_then(Vec::pop);
        }
    }

    /// Has the part of the window walked that lies before `time`, when much is kept and the task has run for a while:
    /// what was before matters no more then.
    fn walk_part(&mut self, time: u64, timeline: &Timeline) {
        if self.pieces < self.most_pieces / 4 || self.graph.full_at.is_some() {
            return;
        }
        let is_under_way = |(_, wanted): &&mut (usize, Wanted)| wanted.window.begin < time;
        let mut under_way = self.windows.iter_mut().rev().take_while(is_under_way);
        // What was before matters to the others that are under way.
        let (Some((number, wanted)), None) = (under_way.next(), under_way.next()) else { return };
        let runs = |piece: &&TaskPiece| matches!(piece.state, TaskState::Running { .. }) && piece.begin < time;
        if self.graph.task(wanted.task).last().filter(runs).is_none() {
            return;
        }
        let (number, part) = (*number, Wanted { window: Window { end: time, ..wanted.window }, ..*wanted });
        wanted.window.begin = time;
        self.walk_in(number, part, timeline);
        self.forget(time);
    }

    /// Adds what the CPUs do that has not ended yet: which CPUs those are.
    fn add_lasting(&mut self, timeline: &Timeline, window: Window) -> Vec<u32> {
        let Some(vm) = timeline.vm(self.vm) else { return Vec::new() };
        let mut lasting = Vec::new();
        for cpu in vm.vcpus.numbers() {
            let Some((view, since)) = vm.guest.cpu(cpu).map(|cpu| cpu.view()) else { continue };
            if since < window.end {
                let piece = CpuPiece { window: Window { begin: since, end: u64::MAX }, view, ended_by: None };
                self.graph.cpus.entry(cpu).or_default().push(piece);
                lasting.push(cpu);
            }
        }
        lasting
    }

    /// Forgets what was before `time`.
    fn forget(&mut self, time: u64) {
        for pieces in self.graph.tasks.values_mut() {
            let keep = pieces.partition_point(|piece| piece.begin <= time).saturating_sub(1);
            pieces.drain(..keep);
        }
        for pieces in self.graph.cpus.values_mut() {
            let keep = pieces.partition_point(|piece| piece.window.end <= time).saturating_sub(1);
            pieces.drain(..keep);
        }
        self.graph.flows.retain(|&(woken, _)| woken >= time);
        self.graph.preemptions.retain(|preemption| preemption.time >= time);
        self.graph.worker_runs.retain(|run| run.begin >= time);
        self.graph.lost.retain(|lost| lost.end >= time);
        self.graph.full_at = None;
        self.pieces = self.graph.tasks.values().map(Vec::len).sum::<usize>()
            + self.graph.cpus.values().map(Vec::len).sum::<usize>();
    }

    /// Whether `time` lies in a window that is under way.
    fn is_wanted(&self, time: u64) -> bool {
        self.windows.last().is_some_and(|(_, wanted)| wanted.window.begin <= time)
    }

    /// Whether there is room for one more piece, which begins at `time`.
    fn has_room(&mut self, time: u64) -> bool {
        if self.graph.full_at.is_none() && self.pieces >= self.most_pieces {
            self.graph.full_at = Some(time);
        }
        self.pieces += usize::from(self.graph.full_at.is_none());
        self.graph.full_at.is_none()
    }

    /// The record `input`, as what told something.
    fn reported(&mut self, input: &Input<'_>) -> Reported {
        let cpu = match input.origin {
            Origin::Host { cpu, .. } | Origin::Guest { cpu, .. } | Origin::User { cpu, .. } => cpu,
            Origin::Vmm { thread, .. } => thread,
        };
        let events = &mut self.graph.events;
        let event =
            *self.event_indices.entry((input.source, input.record.schema.description().id)).or_insert_with(|| {
                events.push((input.origin.layer().name(), input.record.schema.name().to_owned()));
                u32::try_from(events.len() - 1).unwrap_or(u32::MAX)
            });
        Reported { cpu, event }
    }

    /// `reported` showed what was recorded last.
    fn settle_pending(&mut self, reported: Option<Reported>) {
        for pending in self.pending.drain(..) {
            match pending {
                Pending::Task(task) => {
                    if let Some(piece) = self.graph.tasks.get_mut(&task).and_then(|pieces| pieces.last_mut()) {
                        piece.reported = reported;
                    }
                }
                Pending::Cpu(cpu) => {
                    if let Some(piece) = self.graph.cpus.get_mut(&cpu).and_then(|pieces| pieces.last_mut()) {
                        piece.ended_by = reported;
                    }
                }
            }
        }
    }

    fn guest_record(&mut self, cpu: u32, input: &Input<'_>, event: &Event<'_>, timeline: &Timeline) {
        let Some(guest) = timeline.vm(self.vm).map(|vm| &vm.guest) else { return };
        if let Event::InterruptExit(Interrupt::Irq(number)) = event
            && event::handler_result(&input.record) == Some(WAKES_THREAD)
        {
            self.threaded.insert(cpu, *number);
            return;
        }
        let threaded = self.threaded.remove(&cpu);
        let (task, is_fork) = match event {
            Event::Switch { .. } => {
                self.settled.insert(cpu);
                return;
            }
            Event::InterruptEnter(Interrupt::Irq(number)) => {
                if let Some(name) = event::handler_name(&input.record)
                    && !self.graph.handlers.contains_key(number)
                {
                    self.graph.handlers.insert(*number, name.into_owned());
                }
                return;
            }
            Event::Wakeup { task, .. } => (task, false),
            Event::Fork { child, .. } => (child, true),
            _ => return,
        };
        let Some(woken) = guest.living(task.tid) else { return };
        // The record of the handler's end comes first.
        let threaded = threaded.filter(|_| task.comm.starts_with(IRQ_THREAD)).map(Interrupt::Irq);
        let interrupt = guest.cpu(cpu).and_then(|cpu| cpu.view().0.interrupt).or(threaded);
        let by = match (interrupt, timeline.recorder()) {
            (Some(interrupt), _) => Waker::Interrupt(interrupt),
            (None, Current::Unknown) => Waker::Unknown(Unknown::Lost),
            (None, _) if !self.settled.contains(&cpu) => Waker::Unknown(Unknown::Lost),
            (None, _) if !self.records_interrupts && !is_fork => Waker::Unknown(Unknown::NoInterrupts),
            (None, Current::Task(task)) => Waker::Task(task),
            (None, Current::Idle) => Waker::Idle,
        };
        let reported = self.reported(input);
        let piece = self.graph.tasks.get_mut(&woken).and_then(|pieces| pieces.last_mut());
        if let Some(piece) = piece.filter(|piece| piece.begin == input.time() && piece.wake.is_none())
            && matches!(piece.state, TaskState::Runnable { woken: true, .. })
        {
            piece.wake = Some(Wake { cpu, by, reported: Some(reported), is_fork });
        }
    }

    /// The guest's task that wakes a thread of the host by an access to a device, as `event` of the host tells. An
    /// interrupt of the host that comes meanwhile says the same of itself: only the exit tells that it was the guest.
    fn sender(&self, input: &Input<'_>, event: &Event<'_>, timeline: &Timeline) -> Option<TaskIndex> {
        let (Event::Wakeup { stage: WakeupStage::Waking, .. }, Origin::Host { host, .. }) = (event, input.origin)
        else {
            return None;
        };
        let by = Tid::try_from(input.record.number(THREAD)?).ok()?;
        let (_, cpu) = timeline.vcpu_of_thread(host, by).filter(|&(vm, _)| vm == self.vm)?;
        let (view, _) = timeline.vm(self.vm)?.guest.cpu(cpu)?.view();
        let is_access = matches!(view.vcpu, VcpuState::Kvm(Some(reason)) if reason.is_device_access());
        let is_known = self.settled.contains(&cpu) && self.records_interrupts && view.interrupt.is_none();
        match view.current {
            Current::Task(task) if is_access && is_known => Some(task),
            _ => None,
        }
    }

    fn host_record(&mut self, host: usize, input: &Input<'_>, event: &Event<'_>, timeline: &Timeline) {
        if timeline.vm(self.vm).is_none_or(|vm| vm.host != host) {
            return;
        }
        if let (Some(host), Origin::Host { cpu, .. }) = (timeline.hosts.get(host), input.origin) {
            let mut begun = None;
            let requested_by = self.sender(input, event, timeline);
            self.workers.record((input.time(), cpu), event, host, requested_by, |run| begun = Some(run));
            if let Some(run) = begun.filter(|run| self.is_wanted(run.begin) && self.has_room(run.begin)) {
                self.graph.worker_runs.push(run);
            }
        }
        match event {
            Event::Wakeup { task, stage: WakeupStage::Waking, .. } => {
                let by = input.record.number(THREAD).and_then(|tid| Tid::try_from(tid).ok());
                self.woken_threads.insert(task.tid, (input.time(), by));
            }
            Event::Switch { prev, next, .. } => {
                let woken = self.woken_threads.remove(&next.tid);
                if let Some(woken) = woken
                    && timeline.vcpu_of_thread(host, prev.tid).is_some_and(|(vm, _)| vm == self.vm)
                    && self.is_wanted(input.time())
                    && self.has_room(input.time())
                {
                    self.graph.preemptions.push(Preemption { time: input.time(), thief: next.tid, woken });
                }
            }
            _ => {}
        }
    }
}

impl<W: FnMut(&Graph, usize, Wanted, &Timeline) + Send> Analysis for History<W> {
    fn takes_change(&self, kind: ChangeKind) -> bool {
        matches!(kind, ChangeKind::Cpu | ChangeKind::TaskState)
    }

    // All that the timeline looks at: the record that follows shows a change.
    fn takes_record(&self, input: &Input<'_>) -> bool {
        input.event.is_some()
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        let time = input.time();
        if !self.pending.is_empty() {
            let reported = self.reported(input);
            self.settle_pending(Some(reported));
        }
        if FlowTimes::follows(input) {
            self.flow_times.record(input, timeline);
            for (vm, flow) in self.flow_times.take_ended(timeline, false) {
                if vm == self.vm && self.is_wanted(time) && self.has_room(time) {
                    self.graph.add_flow(flow);
                }
            }
        }
        if let Some(event) = &input.event {
            match input.origin {
                Origin::Guest { vm, cpu } if vm == self.vm => self.guest_record(cpu, input, event, timeline),
                Origin::Host { host, .. } => self.host_record(host, input, event, timeline),
                _ => {}
            }
        }
        self.walk_until(time, timeline);
        self.walk_part(time, timeline);
    }

    fn change(&mut self, change: &Change, _timeline: &Timeline) {
        match *change {
            Change::TaskState { vm, task, time, state } if vm == self.vm => {
                let is_wanted = self.is_wanted(time);
                let is_kept = is_wanted && self.has_room(time);
                let pieces = self.graph.tasks.entry(task).or_default();
                let full_at = self.graph.full_at.unwrap_or(u64::MAX);
                if !is_wanted {
                    pieces.clear();
                } else if !is_kept {
                    // The latest is what the next window begins with.
                    pieces.pop_if(|piece| piece.begin >= full_at);
                }
                // A record whose time is damaged may be before what is known already.
                let begin = pieces.last().map_or(time, |last| last.begin.max(time));
                pieces.push(TaskPiece { begin, state, reported: None, wake: None });
                self.pending.push(Pending::Task(task));
            }
            Change::Cpu { vm, cpu, window, view } if vm == self.vm => {
                let is_wanted = self.is_wanted(window.end);
                let is_kept = is_wanted && self.has_room(window.begin);
                let pieces = self.graph.cpus.entry(cpu).or_default();
                let full_at = self.graph.full_at.unwrap_or(u64::MAX);
                if !is_wanted {
                    pieces.clear();
                } else if !is_kept {
                    pieces.pop_if(|piece| piece.window.begin >= full_at);
                }
                pieces.push(CpuPiece { window, view, ended_by: None });
                self.pending.push(Pending::Cpu(cpu));
            }
            _ => {}
        }
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        self.settle_pending(None);
        self.flow_times.gap(gap, timeline);
        let is_concerned = match gap.origin {
            Origin::Host { host, .. } => timeline.vm(self.vm).is_some_and(|vm| vm.host == host),
            Origin::Vmm { vm, .. } | Origin::Guest { vm, .. } => vm == self.vm,
            Origin::User { .. } => false,
        };
        if !is_concerned {
            return;
        }
        if gap.begins {
            if let Origin::Guest { cpu, .. } = gap.origin {
                self.settled.remove(&cpu);
            }
            if let Origin::Host { only_kvm: false, .. } = gap.origin {
                self.woken_threads.clear();
                self.workers.lose();
            }
            self.gaps.insert(gap.source, (gap.time, gap.origin));
        } else if let Some((begin, _)) = self.gaps.remove(&gap.source)
            && self.is_wanted(gap.time)
        {
            self.graph.lost.push(Window { begin, end: gap.time });
        }
    }
}
