//! The bounded critical path (the *active path*) of F. Giraldeau and M. Dagenais, "Wait analysis of distributed systems
//! using kernel tracing" (IEEE TPDS, 2016): the states of a task in a window; where it is blocked, the path of the task
//! that woke it takes the place of the wait, within the wait's bounds and no further back, and so on for that one.
//!
//! What the guest's kernel takes for running, or for ready, is cut further by what the vCPU did.

use super::history::{Graph, Reported, TaskPiece, Unknown, Wake, Waker, is_timer};
use super::vhost::RunsInWait;
use super::{Cause, RecordOf, Step};
use crate::report::devices::flows::Flow;
use crate::report::duration;
use crate::report::scheduling::state_names;
use strata_analysis::event::Interrupt;
use strata_analysis::timeline::states::{BlockedOn, CpuView, Current, TaskIndex, TaskState};
use strata_analysis::timeline::vcpu::{Preemptor, VcpuState};
use strata_analysis::timeline::{LONGEST_BEGIN_NS, Timeline};
use strata_recording::clock::Clock;
use strata_recording::text::terminal::harmless;
use strata_recording::window::Window;

/// Whom a guest's CPU runs that is idle while a task is ready for it.
pub(super) const IDLE: &str = "nothing: it was idle and had yet to switch";
/// The same of a task that was in that CPU's queue, and was passed over.
pub(super) const PASSED_OVER: &str = "nothing: it was idle, and did not run it (a CPU limit in the guest)";
/// The same where it was idle for longer than it takes to switch.
pub(super) const IDLE_FOR_LONG: &str =
    "nothing: it was idle for long (a CPU limit in the guest, or why is not recorded)";
/// The soft interrupt in which the network's packets are received (`NET_RX_SOFTIRQ`).
const NET_RX: Interrupt = Interrupt::Softirq(3);
/// Tasks that are followed one behind the other, at most.
const MOST_DEPTH: usize = 24;
/// Steps of a path, at most: what would be followed behind them is not.
const MOST_STEPS: usize = 200_000;

/// Walks the graph of one window.
pub(super) struct Follower<'g> {
    graph: &'g Graph,
    vm: usize,
    timeline: &'g Timeline,
    /// The task of the question, and its last name: it may have run another program since.
    requested: (TaskIndex, &'g str),
    steps_left: usize,
}

/// A stretch of a task's time with what it was.
struct Part {
    window: Window,
    cause: Cause,
    detail: Option<String>,
    vcpu: Option<u32>,
    runner: Option<String>,
    since: Option<RecordOf>,
    why: Option<String>,
}

/// How a task is there on a CPU of its guest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// It has the CPU.
    Runs,
    /// It could run there, and another one does.
    Ready,
    /// An interrupt is to wake it.
    Waits,
}

impl<'g> Follower<'g> {
    /// Walks `graph`, which is of the guest of a VM as `timeline` knows it, for the task `requested` of that name.
    pub(super) const fn new(
        graph: &'g Graph,
        (vm, timeline): (usize, &'g Timeline),
        requested: (TaskIndex, &'g str),
    ) -> Self {
        Self { graph, vm, timeline, requested, steps_left: MOST_STEPS }
    }

    /// The steps of `task` in `window`: one behind the other, without gaps.
    pub(super) fn path(&mut self, task: TaskIndex, window: Window, depth: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let kept = Window { end: window.end.min(self.graph.full_at.unwrap_or(u64::MAX)), ..window };
        let pieces = self.graph.task(task);
        let reported_from = pieces.first().map_or(u64::MAX, |piece| piece.begin);
        if let Some(before) = (Window { begin: 0, end: reported_from }).intersection(&kept) {
            self.before_first(task, pieces.first(), before, depth, &mut steps);
        }
        let first = pieces.partition_point(|piece| piece.begin <= kept.begin).saturating_sub(1);
        for (place, piece) in pieces.iter().enumerate().skip(first) {
            if piece.begin >= kept.end {
                break;
            }
            let next = pieces.get(place + 1);
            let lasts = Window { begin: piece.begin, end: next.map_or(u64::MAX, |next| next.begin) };
            if let Some(part) = lasts.intersection(&kept) {
                self.piece(task, (piece, next), part, depth, &mut steps);
            }
        }
        if let Some(rest) = (Window { begin: kept.end.max(window.begin), ..window }).intersection(&window) {
            self.unknown(task, rest, Unknown::Limit, &mut steps);
        }
        steps
    }

    /// Nothing is recorded of the task yet: it may not have been made.
    fn before_first(
        &mut self,
        task: TaskIndex,
        first: Option<&TaskPiece>,
        window: Window,
        depth: usize,
        steps: &mut Vec<Step>,
    ) {
        match first.and_then(|first| first.wake) {
            Some(wake) if wake.is_fork => self.woken(task, (Cause::NotMade, None, None), window, &wake, depth, steps),
            _ => self.unknown(task, window, self.lost_or(&window, Unknown::NotReported), steps),
        }
    }

    fn piece(
        &mut self,
        task: TaskIndex,
        (piece, next): (&TaskPiece, Option<&TaskPiece>),
        window: Window,
        depth: usize,
        steps: &mut Vec<Step>,
    ) {
        let reported = piece.reported.map(|reported| (piece.begin, reported));
        match piece.state {
            TaskState::Unknown => self.unknown(task, window, self.lost_or(&window, Unknown::NotReported), steps),
            TaskState::Absent => self.add(task, Part::new(window, Cause::Ended), steps),
            TaskState::Running { cpu, syscall } => {
                let within = syscall.map(state_names::syscall);
                let has_cpu = (cpu, Presence::Runs, reported);
                let parts = self.on_cpu(has_cpu, window, |view| running(view, within.as_deref()));
                parts.into_iter().for_each(|part| self.add(task, part, steps));
            }
            TaskState::Runnable { cpu: Some(cpu), passed_over, .. } => {
                let runner = |current| self.runner(current);
                let parts = self.on_cpu((cpu, Presence::Ready, reported), window, |view| match view.vcpu {
                    VcpuState::Stolen { .. } | VcpuState::Unknown => ready(view, runner),
                    _ if passed_over => (Cause::NotAllowed, Some(PASSED_OVER.into())),
                    _ => ready(view, runner),
                });
                parts.into_iter().for_each(|part| self.add(task, part, steps));
            }
            TaskState::Runnable { cpu: None, .. } => {
                self.add(
                    task,
                    Part::new(window, Cause::WaitsForCpu).since(self.record(piece.begin, piece.reported)),
                    steps,
                );
            }
            TaskState::Blocked { on, syscall } => {
                let on = (on, syscall.map(state_names::syscall));
                self.blocked(task, on, (piece, next), window, depth, steps);
            }
        }
    }

    /// Cuts `window` by what `cpu` does: each part, with the record that told of it, and its time.
    fn cut(&self, cpu: u32, window: Window, mut with: impl FnMut(Window, Option<CpuView>, Option<(u64, Reported)>)) {
        let pieces = self.graph.cpu(cpu);
        let first = pieces.partition_point(|piece| piece.window.end <= window.begin);
        let mut at = window.begin;
        let mut before = first.checked_sub(1).and_then(|before| pieces.get(before));
        for piece in pieces.get(first..).unwrap_or_default() {
            let Some(part) = piece.window.intersection(&Window { begin: at, ..window }) else { break };
            if at < part.begin {
                with(Window { begin: at, end: part.begin }, None, None);
            }
            let ended = before.filter(|before| before.window.end == piece.window.begin);
            with(part, Some(piece.view), ended.and_then(|before| Some((before.window.end, before.ended_by?))));
            (at, before) = (part.end, Some(piece));
        }
        if at < window.end {
            with(Window { begin: at, end: window.end }, None, None);
        }
    }

    /// What a task that has `cpu`, or waits for it, as `told` told, does in `window`; `name` says what that is by what the
    /// CPU does.
    fn on_cpu(
        &self,
        (cpu, presence, reported): (u32, Presence, Option<(u64, Reported)>),
        window: Window,
        name: impl Fn(&CpuView) -> (Cause, Option<String>),
    ) -> Vec<Part> {
        let is_reported = self.timeline.vm(self.vm).is_some_and(|vm| vm.vcpus_are_recorded);
        let longest_begin = self.clock().ns_to_ticks(LONGEST_BEGIN_NS);
        let mut parts = Vec::new();
        self.cut(cpu, window, |part, view, of_cpu| {
            let (cause, detail) = match &view {
                // No layer tells of vCPUs: a trace that was recovered from the guest's rings.
                Some(view) if view.vcpu == VcpuState::Unknown && !is_reported => {
                    name(&CpuView { vcpu: VcpuState::KvmRun, ..*view })
                }
                Some(view) => name(view),
                None => (Cause::Unknown, None),
            };
            let (cause, detail) = match (cause, detail.as_deref()) {
                (Cause::WaitsForCpu, Some(IDLE)) | (Cause::Halted, _)
                    if presence == Presence::Ready && part.length() > longest_begin =>
                {
                    (Cause::NotAllowed, Some(IDLE_FOR_LONG.into()))
                }
                _ => (cause, detail),
            };
            // Of what the task and its CPU do, what came last makes it what it is.
            let reported = of_cpu.into_iter().chain(reported).max_by_key(|&(time, _)| time);
            let since = reported.and_then(|(time, reported)| self.record(time, Some(reported)));
            let stolen_by = view.and_then(|view| match view.vcpu {
                VcpuState::Stolen { by, .. } => Some(by),
                _ => None,
            });
            let (detail, why) = match (cause, stolen_by) {
                (Cause::Preempted | Cause::WokenLate, Some(by)) => (Some(self.thief(by)), self.why(by, part.begin)),
                (Cause::Unknown, _) => (Some(reason(self.lost_or(&part, Unknown::NotReported)).into()), None),
                _ => (detail, None),
            };
            let runner = match view.map(|view| view.current) {
                Some(Current::Task(task)) if presence == Presence::Ready => Some(self.name(task)),
                _ => None,
            };
            parts.push(Part { window: part, cause, detail, vcpu: Some(cpu), runner, since, why });
        });
        parts
    }

    /// What the host ran in place of a vCPU.
    fn thief(&self, by: Preemptor) -> String {
        let name = state_names::preemptor(self.timeline.host_of(self.vm), by);
        let host = self.timeline.vm(self.vm).map(|vm| vm.host);
        let vcpu = match (by, host) {
            (Preemptor::Thread(thread), Some(host)) => self.timeline.vcpu_of_thread(host, thread.tid),
            _ => None,
        };
        match vcpu.and_then(|(vm, vcpu)| Some((self.timeline.vm(vm)?, vcpu))) {
            Some((vm, vcpu)) => format!("{} (vCPU {vcpu} of {})", harmless(&name), harmless(&vm.name)),
            None => harmless(&name),
        }
    }

    /// Why the thief was there, where that was recorded.
    fn why(&self, by: Preemptor, time: u64) -> Option<String> {
        let Preemptor::Thread(thread) = by else { return None };
        let preemptions = &self.graph.preemptions;
        let from = preemptions.partition_point(|preemption| preemption.time < time);
        let mut at_once = preemptions.get(from..)?.iter().take_while(|preemption| preemption.time == time);
        let (woken, by) = at_once.find(|preemption| preemption.thief == thread.tid)?.woken;
        let before = crate::report::duration(self.clock().ticks_to_ns(time.saturating_sub(woken)));
        let while_ran = by.map_or_else(String::new, |tid| match tid {
            0 => ", while its CPU was idle".into(),
            tid => format!(", while thread {tid} ran"),
        });
        Some(format!("it had been woken {before} before{while_ran}"))
    }

    /// The task waits for what `on` says, up to the end of `window` at most.
    fn blocked(
        &mut self,
        task: TaskIndex,
        (on, syscall): (BlockedOn, Option<String>),
        (piece, next): (&TaskPiece, Option<&TaskPiece>),
        window: Window,
        depth: usize,
        steps: &mut Vec<Step>,
    ) {
        let detail = match syscall {
            Some(call) => format!("{} ({call})", state_names::blocked_on(on)),
            None => state_names::blocked_on(on).into(),
        };
        let since = self.record(piece.begin, piece.reported);
        let Some(next) = next.filter(|next| next.begin <= window.end) else {
            let part = Part::new(window, Cause::NotWoken).detail(detail).since(since);
            return self.add(task, part, steps);
        };
        let unknown = match (next.state, next.wake) {
            (TaskState::Unknown, _) => Unknown::Lost,
            (_, None) => Unknown::NoWakeup,
            (_, Some(wake)) => {
                let cause = match (on, wake.by) {
                    (BlockedOn::Sleep, Waker::Interrupt(interrupt)) if is_timer(interrupt) => Cause::Sleep,
                    _ => Cause::Blocked,
                };
                return self.woken(task, (cause, Some(detail), since), window, &wake, depth, steps);
            }
        };
        let part = Part::new(window, Cause::WakerUnknown).detail(format!("{detail}: {}", reason(unknown))).since(since);
        self.add(task, part, steps);
    }

    /// The task waited in `window`, and `wake` ended that.
    fn woken(
        &mut self,
        task: TaskIndex,
        (cause, detail, since): (Cause, Option<String>, Option<RecordOf>),
        window: Window,
        wake: &Wake,
        depth: usize,
        steps: &mut Vec<Step>,
    ) {
        let until = self.record(window.end, wake.reported);
        let mut step = self.step(task, Part { detail, since, ..Part::new(window, cause) });
        step.until = until;
        match wake.by {
            Waker::Task(waker) if waker != task => {
                step.woken_by = Some(self.name(waker));
                if depth >= MOST_DEPTH || self.steps_left == 0 {
                    step.cause = Cause::NotFollowed;
                } else {
                    step.steps = self.path(waker, window, depth + 1);
                }
            }
            Waker::Interrupt(interrupt) => {
                step.woken_by = Some(self.interrupt(interrupt));
                self.interrupted(task, &mut step, window, (wake, interrupt), depth);
            }
            Waker::Task(_) | Waker::Idle => {
                step.woken_by = Some(format!("the idle loop of CPU {}", wake.cpu));
                step.cause = Cause::WakerUnknown;
            }
            Waker::Unknown(unknown) => {
                step.cause = Cause::WakerUnknown;
                let detail = step.detail.unwrap_or_default();
                step.detail = Some(format!("{detail}: {}", reason(unknown)));
            }
        }
        self.push(step, steps);
    }

    /// An interrupt ended the wait: a disk's, when a request's completion woke the task; else what it was for is not
    /// recorded, but how late it was where the vCPU had been halted, or the host had taken its CPU.
    fn interrupted(
        &mut self,
        task: TaskIndex,
        step: &mut Step,
        window: Window,
        (wake, interrupt): (&Wake, Interrupt),
        depth: usize,
    ) {
        if let Some(flow) = self.flow(task, window.end) {
            step.steps = self.request(task, flow, window, depth);
            return;
        }
        if step.cause == Cause::Blocked {
            step.cause = if is_timer(interrupt) { Cause::Timer } else { Cause::Interrupt };
        }
        let runs = if interrupt == NET_RX { self.worker_runs(task, wake.cpu, window) } else { RunsInWait::default() };
        let moved_at = runs.moved.last().map_or(window.begin, |run| run.begin);
        let since = self.held_up_since(wake.cpu, Window { begin: moved_at, ..window });
        let (cause, reported, detail) = (step.cause, step.since.clone(), step.detail.take());
        let clock = self.clock();
        let detail = |wait: Window| match runs.unreported(wait) {
            0 => detail.clone(),
            ticks => Some(format!(
                "{}, while vhost workers were ready and did not run for {}: whether for this packet is not recorded",
                detail.as_deref().unwrap_or("a packet"),
                duration(clock.ticks_to_ns(ticks))
            )),
        };
        step.detail = detail(window);
        if runs.moved.is_empty() && since.is_none() {
            return;
        }
        let mut steps = Vec::new();
        let waited = |follower: &mut Self, wait: Window, steps: &mut Vec<Step>| {
            if wait.begin < wait.end {
                let since = reported.clone().filter(|_| wait.begin == window.begin);
                let mut waited = follower.step(task, Part { detail: detail(wait), since, ..Part::new(wait, cause) });
                waited.woken_by.clone_from(&step.woken_by);
                follower.push(waited, steps);
            }
        };
        let mut known_until = window.begin;
        for run in &runs.moved {
            let ready = run.held_up.first().map_or(run.begin, |(part, _)| part.begin).max(known_until);
            waited(self, Window { begin: known_until, end: ready }, &mut steps);
            let worker = self.thief(Preemptor::Thread(run.worker));
            for &(part, by) in &run.held_up {
                let detail = format!("{} in place of {worker}", self.thief(by));
                if let Some(part) = part.intersection(&window) {
                    self.add(task, Part::new(part, Cause::PacketHeldUp).detail(detail), &mut steps);
                }
            }
            known_until = run.begin;
        }
        let handled_from = since.unwrap_or(window.end);
        waited(self, Window { begin: moved_at, end: handled_from }, &mut steps);
        if handled_from < window.end {
            let late = Window { begin: handled_from, ..window };
            let handled = self.on_cpu((wake.cpu, Presence::Waits, None), late, handling);
            handled.into_iter().for_each(|part| self.add(task, part, &mut steps));
        }
        step.cause = Cause::Blocked;
        step.steps = steps;
    }

    /// The runs of vhost workers in the wait of `task` in `window`, up to when `cpu` handled the interrupt that ended it:
    /// none where records are lost. A packet that came while the worker was ready came at some moment of that time: all
    /// of it is taken for held up.
    fn worker_runs(&self, task: TaskIndex, cpu: u32, window: Window) -> RunsInWait<'g> {
        if self.graph.has_lost(&window) {
            return RunsInWait::default();
        }
        let mut handled_from = None;
        self.cut(cpu, window, |part, view, _| {
            let is_handling = view.is_some_and(|view| view.interrupt.is_some());
            handled_from = is_handling.then(|| handled_from.unwrap_or(part.begin));
        });
        let end = handled_from.unwrap_or(window.end);
        RunsInWait::new(&self.graph.worker_runs, task, Window { end, ..window })
    }

    /// Since when what ended the wait was held up on `cpu`, which has been idle since: its vCPU was woken from a halt,
    /// or the host gave it its CPU back and it handled an interrupt next. In the second case the interrupt came at some
    /// moment of the time in which the host ran something else: all of that is taken for held up.
    fn held_up_since(&self, cpu: u32, window: Window) -> Option<u64> {
        let (mut halted_until, mut stolen): (Option<u64>, Option<Window>) = (None, None);
        self.cut(cpu, window, |part, view, _| match view {
            Some(CpuView { vcpu: VcpuState::Halted, .. }) => (halted_until, stolen) = (Some(part.end), None),
            Some(CpuView { current: Current::Idle, vcpu: VcpuState::Stolen { .. }, .. }) => {
                stolen = Some(Window { begin: stolen.map_or(part.begin, |stolen| stolen.begin), end: part.end });
            }
            Some(CpuView { current: Current::Idle, .. }) => {
                // longer than it was away: what came meanwhile would have been handled before
                stolen.take_if(|stolen| part.end - stolen.end > stolen.end - stolen.begin);
            }
            _ => (halted_until, stolen) = (None, None),
        });
        halted_until.or(stolen.map(|stolen| stolen.begin)).filter(|&since| since < window.end)
    }

    /// The disk request whose completion woke `task` at `time`; of several the last that was issued.
    fn flow(&self, task: TaskIndex, time: u64) -> Option<&'g Flow> {
        let tid = self.timeline.vm(self.vm)?.guest.task(task)?.tid;
        let is_it = |flow: &&Flow| flow.woken.as_ref().is_some_and(|woken| woken.tid == tid);
        self.graph.flows_at(time).filter(is_it).max_by_key(|flow| flow.begin)
    }

    /// The steps of the request in `window`. Before it was issued, whoever issued it is followed.
    fn request(&mut self, task: TaskIndex, flow: &Flow, window: Window, depth: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        if let Some(before) = (Window { begin: 0, end: flow.begin }).intersection(&window) {
            let guest = self.timeline.vm(self.vm).map(|vm| &vm.guest);
            let issuer = flow.issuer.as_ref().and_then(|issuer| guest?.living(issuer.tid));
            match issuer.filter(|&issuer| issuer != task && depth < MOST_DEPTH && self.steps_left > 0) {
                Some(issuer) => {
                    let mut step = self.step(task, Part::new(before, Cause::NotIssued));
                    step.woken_by = Some(self.name(issuer));
                    step.steps = self.path(issuer, before, depth + 1);
                    self.push(step, &mut steps);
                }
                None => self.add(task, Part::new(before, Cause::NotIssued), &mut steps),
            }
        }
        let disk = format!("{} of disk {}", harmless(&flow.kind), flow.disk);
        for of_flow in &flow.steps {
            let lasts = Window { begin: of_flow.end - of_flow.ticks, end: of_flow.end };
            if let Some(part) = lasts.intersection(&window) {
                let (step, whose) = (of_flow.name(), of_flow.whose());
                self.add(task, Part::new(part, Cause::Request).detail(format!("{disk}: {step}, {whose}")), &mut steps);
            }
        }
        steps
    }

    fn unknown(&mut self, task: TaskIndex, window: Window, why: Unknown, steps: &mut Vec<Step>) {
        self.add(task, Part::new(window, Cause::Unknown).detail(reason(why).into()), steps);
    }

    /// Whether records were lost in `window`; else `other` is why it is not known.
    fn lost_or(&self, window: &Window, other: Unknown) -> Unknown {
        if self.graph.has_lost(window) { Unknown::Lost } else { other }
    }

    fn add(&mut self, task: TaskIndex, part: Part, steps: &mut Vec<Step>) {
        let step = self.step(task, part);
        self.push(step, steps);
    }

    /// Adds `step`, or makes the one before it longer where that is the same.
    fn push(&mut self, step: Step, steps: &mut Vec<Step>) {
        if let Some(last) = steps.last_mut().filter(|last| last.goes_on_as(&step)) {
            (last.end, last.ticks) = (step.end, last.ticks + step.ticks);
            last.ns = self.clock().ticks_to_ns(last.ticks);
            return;
        }
        self.steps_left = self.steps_left.saturating_sub(1);
        steps.push(step);
    }

    fn step(&self, task: TaskIndex, part: Part) -> Step {
        let Part { window, cause, detail, vcpu, runner, since, why } = part;
        Step {
            task: self.name(task),
            cause,
            detail,
            vcpu,
            runner,
            begin: window.begin,
            end: window.end,
            ticks: window.length(),
            ns: self.clock().ticks_to_ns(window.length()),
            since,
            why,
            woken_by: None,
            until: None,
            steps: Vec::new(),
        }
    }

    /// The record `reported` of `time`, as it is shown.
    fn record(&self, time: u64, reported: Option<Reported>) -> Option<RecordOf> {
        let reported = reported?;
        let (layer, event) = self.graph.event(reported)?;
        Some(RecordOf { ticks: time, layer, cpu: reported.cpu, event: event.to_owned() })
    }

    fn clock(&self) -> &'g Clock {
        self.timeline.clock()
    }

    fn name(&self, task: TaskIndex) -> String {
        if task == self.requested.0 {
            return self.requested.1.to_owned();
        }
        let task = self.timeline.vm(self.vm).and_then(|vm| vm.guest.task(task));
        task.map_or_else(|| "?".into(), state_names::task)
    }

    /// Whom the guest runs.
    fn runner(&self, current: Current) -> Option<String> {
        match current {
            Current::Unknown => None,
            Current::Idle => Some(IDLE.into()),
            Current::Task(task) => Some(self.name(task)),
        }
    }

    fn interrupt(&self, interrupt: Interrupt) -> String {
        let name = state_names::interrupt(interrupt);
        match interrupt {
            Interrupt::Irq(number) => match self.graph.handlers.get(&number) {
                Some(handler) => format!("{name} ({})", harmless(handler)),
                None => name,
            },
            Interrupt::Vector(0xec) => format!("{name} (timer)"),
            Interrupt::Softirq(_) | Interrupt::Vector(_) => name,
        }
    }
}

impl Part {
    const fn new(window: Window, cause: Cause) -> Self {
        Self { window, cause, detail: None, vcpu: None, runner: None, since: None, why: None }
    }

    fn detail(self, detail: String) -> Self {
        Self { detail: Some(detail), ..self }
    }

    fn since(self, since: Option<RecordOf>) -> Self {
        Self { since, ..self }
    }
}

/// Why it is not known, in words.
const fn reason(unknown: Unknown) -> &'static str {
    match unknown {
        Unknown::Lost => "records are lost here",
        Unknown::NotReported => "no record tells",
        Unknown::NoInterrupts => "interrupts were not recorded, which could have woken it",
        Unknown::NoWakeup => "its wake-up was not recorded",
        Unknown::Limit => "more states than are kept; choose a shorter window with --from and --until",
    }
}

/// What a vCPU that is not in the guest does to whoever needs it; `None` while it is in the guest.
fn outside(vcpu: VcpuState) -> Option<(Cause, Option<String>)> {
    Some(match vcpu {
        VcpuState::Guest | VcpuState::KvmRun => return None,
        VcpuState::Unknown | VcpuState::Ended => (Cause::Unknown, None),
        VcpuState::Kvm(reason) | VcpuState::BlockedInKvm(reason) => (Cause::Exit, Some(state_names::reason(reason))),
        VcpuState::Vmm(reason) | VcpuState::BlockedInVmm(reason) => (Cause::Vmm, Some(state_names::reason(reason))),
        VcpuState::Stolen { by, .. } if state_names::is_limit(by) => {
            (Cause::NotAllowed, Some(state_names::preemptor(None, by)))
        }
        VcpuState::Stolen { woken: true, .. } => (Cause::WokenLate, None),
        VcpuState::Stolen { woken: false, .. } => (Cause::Preempted, None),
        VcpuState::Halted => (Cause::Halted, None),
    })
}

/// What a task does that the guest's kernel has running, in `within` of its system calls.
fn running(view: &CpuView, within: Option<&str>) -> (Cause, Option<String>) {
    if let Some(outside) = outside(view.vcpu) {
        return outside;
    }
    match (view.interrupt, view.vcpu) {
        (Some(interrupt), _) => (Cause::Interrupted, Some(state_names::interrupt(interrupt))),
        (None, VcpuState::KvmRun) => (Cause::RunningOrStolen, within.map(Into::into)),
        (None, _) => (Cause::Running, within.map(Into::into)),
    }
}

/// What a ready task waits for; `runner` names whom the guest runs.
fn ready(view: &CpuView, runner: impl Fn(Current) -> Option<String>) -> (Cause, Option<String>) {
    if let Some(outside) = outside(view.vcpu) {
        return outside;
    }
    match view.interrupt {
        Some(interrupt) => (Cause::WaitsForCpu, Some(state_names::interrupt(interrupt))),
        None => match runner(view.current) {
            Some(runner) => (Cause::WaitsForCpu, Some(runner)),
            None => (Cause::Unknown, None),
        },
    }
}

/// What a CPU does on its way from a halt to the handler that wakes a task.
fn handling(view: &CpuView) -> (Cause, Option<String>) {
    outside(view.vcpu).unwrap_or_else(|| {
        let handler = view.interrupt.map_or_else(|| "on the way to its handler".into(), state_names::interrupt);
        (Cause::Handler, Some(handler))
    })
}
