//! The first pass: which tasks are meant, and which of their windows are looked at.

use super::history::Wanted;
use super::{CriticalPathError, CriticalPathOptions};
use crate::report::scheduling::state_names;
use foldhash::HashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use strata_analysis::event::{Event, Interrupt, Tid};
use strata_analysis::timeline::states::{BlockedOn, Current, TaskIndex, TaskState};
use strata_analysis::timeline::{Change, ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Gap, Passed};
use strata_recording::event_terms::{self, EventTerm, TermError};
use strata_recording::layer::LayerKind;
use strata_recording::text::nearest::{self, nearest};
use strata_recording::text::terminal::harmless;
use strata_recording::window::Window;

/// What is looked for in one task's history.
#[derive(Debug, Default)]
struct OfTask {
    names: Vec<Vec<u8>>,
    /// Whether it was in any state that is known.
    is_seen: bool,
    state: Option<TaskState>,
    /// Since when it has waited, where that is known.
    waits: Option<u64>,
    /// When it recorded an event that matches last, and how many gaps its VM had had by then.
    last_event: Option<(u64, u64)>,
    /// The longest waits, or intervals between events, the longest first.
    longest: Vec<Window>,
}

/// Finds the tasks, and their windows.
pub(super) struct Survey<'o> {
    options: &'o CriticalPathOptions,
    window: Window,
    events: Option<Vec<EventTerm>>,
    tasks: HashMap<(usize, TaskIndex), OfTask>,
    /// By VM: gaps so far, in which events may have been lost.
    gaps: HashMap<usize, u64>,
    /// VMs whose tasks were in system calls, so that these were recorded.
    with_calls: BTreeSet<usize>,
    /// By VM: whether interrupts of the kernel's own and soft interrupts were recorded.
    interrupts: HashMap<usize, (bool, bool)>,
    /// Events that match and that no task is known to have recorded.
    unattributed: u64,
}

/// The tasks that are meant.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) vm: usize,
    /// Name and thread id of those that have a window.
    pub(super) tasks: BTreeMap<TaskIndex, (String, Tid)>,
    /// How many are meant.
    pub(super) count: usize,
    /// Whether they are only a part of the time, the longest ones.
    pub(super) is_longest: bool,
    /// In order of their begins.
    pub(super) windows: Vec<Wanted>,
    pub(super) records_interrupts: bool,
    pub(super) unattributed: u64,
}

impl<'o> Survey<'o> {
    pub(super) fn new(options: &'o CriticalPathOptions, window: Window) -> Result<Self, TermError> {
        let events = options.event.as_deref().map(EventTerm::parse_all).transpose()?;
        let (tasks, interrupts) = (HashMap::default(), HashMap::default());
        let (gaps, with_calls) = (HashMap::default(), BTreeSet::new());
        Ok(Self { options, window, events, tasks, gaps, with_calls, interrupts, unattributed: 0 })
    }

    fn task_state(&mut self, key: (usize, TaskIndex), time: u64, state: TaskState, timeline: &Timeline) {
        let (most, within) = (self.options.most(), self.window);
        let task = timeline.vm(key.0).and_then(|vm| vm.guest.task(key.1));
        let (born, is_user) = task.map_or((None, false), |task| (task.born, task.is_user));
        let of_task = self.tasks.entry(key).or_default();
        of_task.is_seen |= state != TaskState::Unknown;
        let before = of_task.state.replace(state);
        if self.events.is_some() {
            return;
        }
        if is_user {
            self.with_calls.insert(key.0);
        }
        let has_run = matches!(before, Some(TaskState::Running { .. }));
        let is_of_kernel = !is_user && self.with_calls.contains(&key.0);
        let is_sleep = |state| match state {
            TaskState::Blocked { on: BlockedOn::Sleep, .. } => true,
            // A thread of the kernel has no work most of the time, which tells nothing of a VM.
            TaskState::Blocked { on: BlockedOn::Event, .. } => is_of_kernel && self.options.task.is_none(),
            _ => false,
        };
        let has_slept = before.is_some_and(is_sleep);
        match state {
            TaskState::Running { .. } => {
                if let Some(begin) = of_task.waits.take() {
                    of_task.keep(Window { begin, end: time }, &within, most);
                }
            }
            // A sleep that it asked for is not a wait: being late after it is.
            _ if is_sleep(state) => of_task.waits = None,
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
        let gaps = self.gaps.get(&vm).copied().unwrap_or(0);
        if let Some((begin, gaps_before)) = of_task.last_event.replace((time, gaps))
            && gaps == gaps_before
        {
            of_task.keep(Window { begin, end: time }, &within, most);
        }
    }

    /// Whether intervals begin and end with the record.
    fn is_wanted(&self, input: &Input<'_>) -> bool {
        let layer = match input.origin {
            Origin::Guest { .. } => LayerKind::GuestKernel,
            Origin::User { .. } => LayerKind::GuestUser,
            Origin::Host { .. } | Origin::Vmm { .. } => return false,
        };
        let name = input.record.schema.name();
        self.events.as_ref().is_some_and(|events| event_terms::choose(events, layer, name))
    }

    /// The tasks that are meant, and their windows.
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
        let meant = self.meant(timeline);
        let vms: BTreeSet<usize> = meant.iter().map(|&(vm, _)| vm).collect();
        let vm = match *vms.iter().collect::<Vec<_>>() {
            [&only] => only,
            [] => return Err(self.no_task(timeline)),
            _ => return Err(self.several_vms(&vms, timeline)),
        };
        let guest = timeline.vm(vm).map(|vm| &vm.guest);
        let span = timeline.vm(vm).and_then(|vm| vm.kernel_span?.intersection(&part));
        let is_longest = self.events.is_some() || self.options.worst.is_some() || meant.len() > 1;
        let mut windows: Vec<Wanted> = Vec::new();
        for &(_, task) in &meant {
            let Some(whole) = guest.and_then(|guest| guest.task(task)?.life(&span?)) else { continue };
            if is_longest {
                let longest = self.tasks.get(&(vm, task)).map_or(&[][..], |of_task| &of_task.longest);
                let parts = longest.iter().filter_map(|window| window.intersection(&whole));
                windows.extend(parts.map(|window| Wanted { window, task }));
            } else {
                windows.push(Wanted { window: whole, task });
            }
        }
        if windows.is_empty() {
            return Err(self.no_interval(vm, &meant, timeline));
        }
        let begin = |wanted: &Wanted| (wanted.window.begin, wanted.window.end, wanted.task);
        windows.sort_by_key(|wanted| (Reverse(wanted.window.length()), begin(wanted)));
        windows.truncate(self.options.most());
        windows.sort_unstable_by_key(begin);
        let name = |wanted: &Wanted| {
            let known = guest.and_then(|guest| guest.task(wanted.task));
            (wanted.task, known.map_or_else(Default::default, |task| (state_names::task(task), task.tid)))
        };
        let tasks = windows.iter().map(name).collect();
        let (vectors, softirqs) = self.interrupts.get(&vm).copied().unwrap_or_default();
        let records_interrupts = vectors && softirqs;
        let (count, unattributed) = (meant.len(), self.unattributed);
        Ok(Found { vm, tasks, count, is_longest, windows, records_interrupts, unattributed })
    }

    /// The tasks that are requested.
    fn meant(&self, timeline: &Timeline) -> Vec<(usize, TaskIndex)> {
        let of_name = |is_former| {
            let is_it =
                |&(&key, of_task): &(&(usize, TaskIndex), &OfTask)| self.is_meant(key, of_task, is_former, timeline);
            self.tasks.iter().filter(is_it).map(|(&key, _)| key).collect::<Vec<_>>()
        };
        let mut meant = of_name(false);
        if meant.is_empty() {
            // A program that runs another one goes on under the other's name.
            meant = of_name(true);
        }
        meant.sort_unstable();
        meant
    }

    /// Whether the task is requested, by its last name or, with `is_former`, by one that it had before.
    fn is_meant(&self, (vm, task): (usize, TaskIndex), of_task: &OfTask, is_former: bool, timeline: &Timeline) -> bool {
        let Some(known) = timeline.vm(vm) else { return false };
        let Some(guest_task) = known.guest.task(task) else { return false };
        let is_it = |comm: &Vec<u8>| {
            let Some(choice) = &self.options.task else { return true };
            let is_process = |tid| known.guest.task(known.guest.process(task)).is_some_and(|first| first.tid == tid);
            choice.is(guest_task.tid, Some(&String::from_utf8_lossy(comm))) || choice.tid.is_some_and(is_process)
        };
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
        let Some(choice) = &self.options.task else { return CriticalPathError::NothingInWindow };
        let wanted = choice.to_string();
        let near = match choice.tid {
            None => nearest(&wanted, names.iter().map(String::as_str)),
            Some(tid) => {
                let mut near: Vec<i32> = tids.into_iter().collect();
                near.sort_by_key(|known| (known.abs_diff(tid), *known));
                near.into_iter().take(3).map(|tid| tid.to_string()).collect()
            }
        };
        let nearest = nearest::in_words(&near);
        let one = if wanted.contains(',') { "; --task takes one name, which may be a glob" } else { "" };
        CriticalPathError::NoTask { nearest: format!("{nearest}{one}"), wanted }
    }

    fn several_vms(&self, vms: &BTreeSet<usize>, timeline: &Timeline) -> CriticalPathError {
        let names: Vec<_> =
            vms.iter().filter_map(|&vm| timeline.vm(vm)).map(|vm| vm.name.as_str()).map(harmless).collect();
        let what = self.options.task.as_ref().map_or_else(|| "tasks".into(), |choice| format!("a task '{choice}'"));
        CriticalPathError::SeveralVms { what, vms: names.join(", ") }
    }

    /// The tasks that are `meant` did nothing that the question is about.
    fn no_interval(&self, vm: usize, meant: &[(usize, TaskIndex)], timeline: &Timeline) -> CriticalPathError {
        let what = match &self.options.event {
            Some(glob) => format!("two records in the window of events that match '{glob}'"),
            None => "a wait that begins and ends in the window; without --worst, all of its time is explained".into(),
        };
        let who = match *meant {
            [(_, only)] => {
                let task = timeline.vm(vm).and_then(|vm| vm.guest.task(only));
                format!("{} does not have", task.map_or_else(String::new, state_names::task))
            }
            _ => format!("none of {} tasks has", meant.len()),
        };
        CriticalPathError::NoInterval { who, what }
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
        match self.events {
            Some(_) => &[LayerKind::GuestKernel, LayerKind::GuestUser],
            None => &[LayerKind::GuestKernel],
        }
    }

    fn takes_change(&self, kind: ChangeKind) -> bool {
        matches!(kind, ChangeKind::TaskState | ChangeKind::TaskName)
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        self.is_wanted(input) || matches!(input.event, Some(Event::InterruptEnter(_)))
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.interrupt(input);
        if !self.is_wanted(input) {
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
        if let Origin::Guest { vm, .. } | Origin::User { vm, .. } = gap.origin {
            *self.gaps.entry(vm).or_default() += 1;
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
