//! The first pass: which task is meant, and which windows are looked at.

use super::{CriticalPathError, CriticalPathOptions};
use foldhash::HashMap;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use strata_analysis::event::{Event, Interrupt};
use strata_analysis::timeline::states::{BlockedOn, Current, TaskIndex, TaskState};
use strata_analysis::timeline::{Change, ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Gap, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::nearest::nearest;
use strata_recording::window::Window;
use wildmatch::WildMatch;

/// Tasks that an error lists.
const MOST_LISTED: usize = 10;

/// What is looked for in one task's history.
#[derive(Debug, Default)]
struct OfTask {
    names: Vec<Vec<u8>>,
    /// Whether it was in any state that is known.
    is_seen: bool,
    state: Option<TaskState>,
    /// Since when it has waited, where that is known.
    waits: Option<u64>,
    /// When it recorded an event that matches last, where none was lost since.
    last_event: Option<u64>,
    /// The longest waits, or intervals between events, the longest first.
    longest: Vec<Window>,
}

/// Finds the task, and its windows.
pub(super) struct Survey<'o> {
    options: &'o CriticalPathOptions,
    window: Window,
    glob: Option<WildMatch>,
    tasks: HashMap<(usize, TaskIndex), OfTask>,
    /// By VM: whether interrupts of the kernel's own and soft interrupts were recorded.
    interrupts: HashMap<usize, (bool, bool)>,
    /// Events that match and that no task is known to have recorded.
    unattributed: u64,
}

/// The task that is meant.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) vm: usize,
    pub(super) task: TaskIndex,
    /// In time order.
    pub(super) windows: Vec<Window>,
    pub(super) tells_interrupts: bool,
    pub(super) unattributed: u64,
}

impl<'o> Survey<'o> {
    pub(super) fn new(options: &'o CriticalPathOptions, window: Window) -> Self {
        let glob = options.event.as_deref().map(WildMatch::new);
        let (tasks, interrupts) = (HashMap::default(), HashMap::default());
        Self { options, window, glob, tasks, interrupts, unattributed: 0 }
    }

    fn task_state(&mut self, key: (usize, TaskIndex), time: u64, state: TaskState, timeline: &Timeline) {
        let wants_waits = self.options.worst.is_some() && self.glob.is_none();
        let (most, within) = (self.options.most(), self.window);
        let born = timeline.vm(key.0).and_then(|vm| vm.guest.task(key.1)?.born);
        let of_task = self.tasks.entry(key).or_default();
        of_task.is_seen |= state != TaskState::Unknown;
        let before = of_task.state.replace(state);
        if !wants_waits {
            return;
        }
        let has_run = matches!(before, Some(TaskState::Running { .. }));
        let has_slept = matches!(before, Some(TaskState::Blocked { on: BlockedOn::Sleep, .. }));
        match state {
            TaskState::Running { .. } => {
                if let Some(begin) = of_task.waits.take() {
                    of_task.keep(Window { begin, end: time }, &within, most);
                }
            }
            // A sleep that it asked for is no wait: being late after it is.
            TaskState::Blocked { on: BlockedOn::Sleep, .. } => of_task.waits = None,
            TaskState::Blocked { .. } | TaskState::Runnable { .. } => {
                if has_run || has_slept || born == Some(time) {
                    of_task.waits = Some(time);
                }
            }
            TaskState::Unknown | TaskState::Absent => of_task.waits = None,
        }
    }

    fn event(&mut self, vm: usize, current: Current, time: u64) {
        let Current::Task(task) = current else {
            self.unattributed += 1;
            return;
        };
        let (most, within) = (self.options.most(), self.window);
        let of_task = self.tasks.entry((vm, task)).or_default();
        of_task.is_seen = true;
        if let Some(begin) = of_task.last_event.replace(time) {
            of_task.keep(Window { begin, end: time }, &within, most);
        }
    }

    /// The task that is meant, and its windows.
    pub(super) fn find(self, passed: &Passed) -> Result<Found, CriticalPathError> {
        let timeline = &passed.timeline;
        let part = passed.window.and_then(|read| read.intersection(&self.window));
        let part = part.ok_or(CriticalPathError::NothingInWindow)?;
        if timeline.vms.iter().all(|vm| vm.kernel_span.and_then(|span| span.intersection(&part)).is_none()) {
            return Err(CriticalPathError::NothingInWindow);
        }
        if let Some(wanted) = &self.options.vm
            && !timeline.vms.iter().any(|vm| vm.name == *wanted)
        {
            let names: Vec<_> = timeline.vms.iter().map(|vm| vm.name.as_str()).collect();
            let near = nearest(wanted, names.iter().copied());
            let present = if near.is_empty() { names.join(", ") } else { near.join(", ") };
            return Err(CriticalPathError::NoVm { wanted: wanted.clone(), present });
        }
        let meant = |is_former| {
            let is_it =
                |&(&key, of_task): &(&(usize, TaskIndex), &OfTask)| self.is_meant(key, of_task, is_former, timeline);
            self.tasks.iter().filter(is_it).map(|(&key, _)| key).collect::<Vec<_>>()
        };
        let mut matching = meant(false);
        if matching.is_empty() {
            // A program that runs another one goes on under the other's name.
            matching = meant(true);
        }
        matching.sort_unstable();
        let (vm, task) = match *matching {
            [only] => only,
            [] => return Err(self.no_task(timeline)),
            _ => return Err(self.several(&matching, timeline)),
        };
        let span = timeline.vm(vm).and_then(|vm| vm.kernel_span?.intersection(&part));
        let life = timeline.vm(vm).and_then(|vm| vm.guest.task(task)?.life(&span?));
        let whole = life.ok_or(CriticalPathError::NothingInWindow)?;
        let mut windows = match (&self.glob, self.options.worst) {
            (None, None) => vec![whole],
            _ => self.tasks.get(&(vm, task)).map_or_else(Vec::new, |of_task| of_task.longest.clone()),
        };
        windows.retain_mut(|window| window.intersection(&whole).map(|part| *window = part).is_some());
        if windows.is_empty() {
            let what = match &self.options.event {
                Some(glob) => format!("two records of one event that matches '{glob}'"),
                None => "a wait from its begin to its end".into(),
            };
            return Err(CriticalPathError::NoInterval { task: named(timeline, (vm, task)), what });
        }
        windows.sort_by_key(|window| (window.begin, window.end));
        let (vectors, softirqs) = self.interrupts.get(&vm).copied().unwrap_or_default();
        Ok(Found { vm, task, windows, tells_interrupts: vectors && softirqs, unattributed: self.unattributed })
    }

    /// Whether the task is asked for, by its last name or, with `is_former`, by one that it had before.
    fn is_meant(&self, (vm, task): (usize, TaskIndex), of_task: &OfTask, is_former: bool, timeline: &Timeline) -> bool {
        let Some(known) = timeline.vm(vm) else { return false };
        let Some(guest_task) = known.guest.task(task) else { return false };
        let is_it = |comm: &Vec<u8>| self.options.task.is(guest_task.tid, Some(&String::from_utf8_lossy(comm)));
        let is_it = if is_former { of_task.names.iter().any(is_it) } else { is_it(&guest_task.comm) };
        let is_of_vm = self.options.vm.as_ref().is_none_or(|wanted| *wanted == known.name);
        is_of_vm && of_task.is_seen && is_it && guest_task.life(&self.window).is_some()
    }

    fn no_task(&self, timeline: &Timeline) -> CriticalPathError {
        let mut names = BTreeSet::new();
        let mut tids = BTreeSet::new();
        for (&(vm, task), of_task) in self.tasks.iter().filter(|(_, of_task)| of_task.is_seen) {
            let Some(guest_task) = timeline.vm(vm).and_then(|vm| vm.guest.task(task)) else { continue };
            tids.insert(guest_task.tid);
            let all = of_task.names.iter().chain([&guest_task.comm]).filter(|name| !name.is_empty());
            names.extend(all.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
        let wanted = self.options.task.to_string();
        let near = match self.options.task.tid {
            None => nearest(&wanted, names.iter().map(String::as_str)),
            Some(tid) => {
                let mut near: Vec<i32> = tids.into_iter().collect();
                near.sort_by_key(|known| (known.abs_diff(tid), *known));
                near.into_iter().take(3).map(|tid| tid.to_string()).collect()
            }
        };
        let nearest = if near.is_empty() { String::new() } else { format!("; the nearest are {}", near.join(", ")) };
        CriticalPathError::NoTask { wanted, nearest }
    }

    fn several(&self, matching: &[(usize, TaskIndex)], timeline: &Timeline) -> CriticalPathError {
        let mut vms: Vec<_> = matching.iter().map(|&(vm, _)| vm).collect();
        vms.dedup();
        let mut names: Vec<String> = matching.iter().take(MOST_LISTED).map(|&key| named(timeline, key)).collect();
        if matching.len() > MOST_LISTED {
            names.push(format!("and {} more", matching.len() - MOST_LISTED));
        }
        let hint = match (vms.len(), self.options.task.tid) {
            (2.., _) => "choose one with --vm and its thread id",
            (_, Some(_)) => "that thread id was given again: choose one with --from and --to",
            (_, None) => "choose one by its thread id",
        };
        let (wanted, tasks) = (self.options.task.to_string(), names.join(", "));
        CriticalPathError::SeveralTasks { wanted, tasks, hint }
    }
}

/// A task, with its VM where there are several.
fn named(timeline: &Timeline, (vm, task): (usize, TaskIndex)) -> String {
    let Some(known) = timeline.vm(vm) else { return String::new() };
    let task = known.guest.task(task).map_or_else(String::new, crate::report::state_names::task);
    if timeline.vms.len() > 1 {
        format!("{task} of {}", strata_recording::terminal::harmless(&known.name))
    } else {
        task
    }
}

impl OfTask {
    /// Keeps `window`, which lies in `within`, if it is among the `most` longest.
    fn keep(&mut self, window: Window, within: &Window, most: usize) {
        if window.begin < within.begin || window.end > within.end {
            return;
        }
        let order = |window: &Window| (Reverse(window.length()), window.begin);
        let place = self.longest.partition_point(|known| order(known) <= order(&window));
        if place < most && window.length() > 0 {
            self.longest.insert(place, window);
            self.longest.truncate(most);
        }
    }
}

impl Analysis for Survey<'_> {
    fn layers(&self) -> &'static [LayerKind] {
        match self.glob {
            Some(_) => &[LayerKind::GuestKernel, LayerKind::GuestUser],
            None => &[LayerKind::GuestKernel],
        }
    }

    fn takes_change(&self, kind: ChangeKind) -> bool {
        matches!(kind, ChangeKind::TaskState | ChangeKind::TaskName)
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        let is_wanted = self.glob.as_ref().is_some_and(|glob| glob.matches(input.record.schema.name()));
        is_wanted || matches!(input.event, Some(Event::InterruptEnter(_)))
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.interrupt(input);
        if !self.glob.as_ref().is_some_and(|glob| glob.matches(input.record.schema.name())) {
            return;
        }
        match input.origin {
            Origin::Guest { vm, .. } => self.event(vm, timeline.recorder(), input.time()),
            Origin::User { vm, cpu } => {
                let current = timeline.vm(vm).map_or(Current::Unknown, |vm| vm.guest.recorder(cpu));
                self.event(vm, current, input.time());
            }
            Origin::Host { .. } | Origin::Vmm { .. } => {}
        }
    }

    fn gap(&mut self, gap: &Gap, _timeline: &Timeline) {
        // Events may have been lost in between.
        if let Origin::Guest { vm, .. } | Origin::User { vm, .. } = gap.origin {
            self.tasks.iter_mut().filter(|((of, _), _)| *of == vm).for_each(|(_, of_task)| of_task.last_event = None);
        }
    }

    fn change(&mut self, change: &Change, timeline: &Timeline) {
        match *change {
            Change::TaskState { vm, task, time, state } => self.task_state((vm, task), time, state, timeline),
            Change::TaskName { vm, task, .. } => {
                let Some(known) = timeline.vm(vm).and_then(|vm| vm.guest.task(task)) else { return };
                let of_task = self.tasks.entry((vm, task)).or_default();
                for name in [&known.former, &known.comm] {
                    if !name.is_empty() && of_task.names.last() != Some(name) && !of_task.names.contains(name) {
                        of_task.names.push(name.clone());
                    }
                }
            }
            Change::Vcpu { .. } | Change::Cpu { .. } | Change::Task { .. } => {}
        }
    }
}

impl Survey<'_> {
    fn interrupt(&mut self, input: &Input<'_>) {
        let (Origin::Guest { vm, .. }, Some(Event::InterruptEnter(interrupt))) = (input.origin, &input.event) else {
            return;
        };
        let (vectors, softirqs) = self.interrupts.entry(vm).or_default();
        match interrupt {
            Interrupt::Irq(_) => {}
            Interrupt::Softirq(_) => *softirqs = true,
            Interrupt::Vector(_) => *vectors = true,
        }
    }
}
