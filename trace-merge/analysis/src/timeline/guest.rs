//! What a guest's CPUs and tasks do now, as its own kernel tells.

use super::fused::Fused;
use super::host::{PREV_STATE_ENDED, PREV_STATE_MASK};
use super::membership::{Membership, Memberships, OwnIds, Stay};
use super::states::{BlockedOn, CpuView, Current, Runner, TaskIndex, TaskState};
use super::vcpu::VcpuState;
use crate::event::{Event, Interrupt, Rename, Task, Tid, WakeupStage};
use crate::names;
use crate::timeline::by_number::ByNumber;
use foldhash::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use strata_recording::window::Window;

/// `CLONE_THREAD` of `clone(2)`: the child is a thread of its parent's process.
const CLONE_THREAD: u64 = 0x1_0000;
/// Bytes of a task's name (`TASK_COMM_LEN`), the NUL behind it not counted.
const COMM_BYTES: usize = 15;

/// A task of a guest.
#[derive(Clone, Debug)]
pub struct GuestTask {
    /// Thread id in the guest's initial namespace.
    pub tid: Tid,
    /// Its name now. The guest chose it.
    pub comm: Vec<u8>,
    /// Its name before that; empty where nothing tells it.
    pub former: Vec<u8>,
    /// What it does.
    pub state: TaskState,
    /// When it was made, ticks; `None` when the trace does not show that.
    pub born: Option<u64>,
    /// When it ended, ticks; `None` when it has not, or the trace does not show that.
    pub ended: Option<u64>,
    /// Where it belongs, and its numbers in its own pid namespace.
    membership: Membership,
    /// The thread that made it as a thread of its own process.
    maker: Option<TaskIndex>,
    syscall: Option<i16>,
    contending: bool,
    /// Whether it was seen in a system call: kernel threads never are.
    pub is_user: bool,
    /// Whether its name is the one that a record of its renaming said: the file that it runs next may be called
    /// otherwise.
    is_named: bool,
    /// Of a task that is ready: whether it is in its CPU's queue for sure, and not on the way there.
    queued: bool,
    /// Whether it is among [`Guest::known`].
    is_known: bool,
    /// The state that was reported last, and whether its name has changed since.
    pub(super) reported: TaskState,
    pub(super) renamed: bool,
    /// What it really does.
    pub fused: Fused,
    /// Since when, ticks; 0 from the beginning on.
    pub since: u64,
}

impl GuestTask {
    fn new(tid: Tid) -> Self {
        Self {
            tid,
            comm: Vec::new(),
            former: Vec::new(),
            state: TaskState::Unknown,
            born: None,
            ended: None,
            membership: Membership::UNKNOWN,
            maker: None,
            syscall: None,
            contending: false,
            is_user: false,
            is_named: false,
            queued: false,
            is_known: false,
            reported: TaskState::Unknown,
            renamed: false,
            fused: Fused::Unknown,
            since: 0,
        }
    }

    /// Its name, as text.
    #[must_use]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.comm).into_owned()
    }

    /// What it is called in its own pid namespace; `None` where that is the initial one, or not known.
    #[must_use]
    pub const fn own_ids(&self) -> Option<OwnIds> {
        self.membership.own
    }

    /// What of `window` it existed in, as far as the trace shows.
    #[must_use]
    pub fn life(&self, window: &Window) -> Option<Window> {
        Window { begin: self.born.unwrap_or(0), end: self.ended.unwrap_or(u64::MAX) }.intersection(window)
    }
}

/// A CPU of a guest at the moment that the timeline has come to.
#[derive(Clone, Debug)]
pub struct GuestCpu {
    /// Whose turn it is.
    pub current: Current,
    /// Whose turn it is as the switch to come tells, where there was no switch since the beginning or since records were
    /// lost.
    announced: Current,
    nested: Vec<Interrupt>,
    /// Flags of the last `clone`, which makes the next new task.
    clone_flags: Option<u64>,
    /// Tasks that are ready and in its queue.
    pub(super) queue: Vec<TaskIndex>,
    /// What it does.
    pub(super) view: CpuView,
    /// Since when, ticks.
    pub(super) since: u64,
    /// Whether `view` has been brought up to whose turn it is and to the interrupts that are handled.
    pub(super) is_settled: bool,
}

impl Default for GuestCpu {
    fn default() -> Self {
        Self {
            current: Current::Unknown,
            announced: Current::Unknown,
            nested: Vec::new(),
            clone_flags: None,
            queue: Vec::new(),
            view: CpuView { vcpu: VcpuState::Unknown, current: Current::Unknown, interrupt: None },
            since: 0,
            is_settled: false,
        }
    }
}

impl GuestCpu {
    /// The interrupt that it handles, the innermost of several.
    pub(super) fn interrupt(&self) -> Option<Interrupt> {
        self.nested.last().copied()
    }

    /// What it does, and since when, ticks.
    #[must_use]
    pub const fn view(&self) -> (CpuView, u64) {
        (self.view, self.since)
    }

    /// Who records what it records: [`current`](Self::current), or who the switch to come says.
    const fn recorder(&self) -> Current {
        match self.current {
            Current::Unknown => self.announced,
            current => current,
        }
    }
}

/// Interrupts nest at most this deep; what comes on top was left without a record.
const MAX_NESTED: usize = 16;

/// The kernel of a guest: its CPUs and tasks, at the moment that the timeline has come to.
#[derive(Clone, Debug, Default)]
pub struct Guest {
    /// All tasks that the trace showed so far, in the order in which it first did.
    pub tasks: Vec<GuestTask>,
    /// In which cgroups they are.
    pub memberships: Memberships,
    pub(super) cpus: ByNumber<GuestCpu>,
    /// The living tasks by thread id.
    by_tid: HashMap<Tid, TaskIndex>,
    /// CPUs whose records are missing at the moment, and which may run tasks.
    gaps: BTreeSet<u32>,
    /// CPUs that go offline: they run no tasks until they record again.
    offline: BTreeSet<u32>,
    /// CPUs that never record, and whose vCPUs have not been in the guest as far as records show: they run no tasks. With
    /// each, whether its vCPU may have been there before the kernel recorded anything.
    pub(super) unused: BTreeMap<u32, bool>,
    /// Whether the kernel has recorded anything.
    pub(super) has_begun: bool,
    /// The tasks that are known, and some that are not any more: what a gap has to go through.
    known: Vec<TaskIndex>,
    /// Flags with which tasks were made that have not forked yet, as `task:task_newtask` says.
    flags: HashMap<Tid, u64>,
    /// Tasks whose state the last event may have changed.
    pub(super) touched: Vec<TaskIndex>,
}

impl Guest {
    /// The CPU `cpu`; `None` before its first record.
    #[must_use]
    pub fn cpu(&self, cpu: u32) -> Option<&GuestCpu> {
        self.cpus.get(cpu)
    }

    #[inline]
    pub(super) fn cpu_mut(&mut self, cpu: u32) -> &mut GuestCpu {
        self.cpus.get_or_insert_with(cpu, GuestCpu::default)
    }

    pub(super) fn cpus_mut(&mut self) -> impl Iterator<Item = (u32, &mut GuestCpu)> {
        self.cpus.iter_mut()
    }

    /// Who records what `cpu` records now: whose turn it is there. Known also before the first switch on the CPU and after
    /// a gap, from the switch that follows.
    #[must_use]
    pub fn recorder(&self, cpu: u32) -> Current {
        self.cpus.get(cpu).map_or(Current::Unknown, GuestCpu::recorder)
    }

    /// The task `index`.
    #[must_use]
    pub fn task(&self, index: TaskIndex) -> Option<&GuestTask> {
        self.tasks.get(index)
    }

    /// The living task with thread id `tid`.
    #[must_use]
    pub fn living(&self, tid: Tid) -> Option<TaskIndex> {
        self.by_tid.get(&tid).copied()
    }

    /// Where the task is now, among [`memberships`](Self::memberships).
    #[must_use]
    pub fn stay(&self, task: &GuestTask) -> Stay {
        self.memberships.stay_of(&task.membership)
    }

    /// The first thread of the process that the thread `index` belongs to, as far as records tell: a thread that was made
    /// before the recording began, or by `clone3` where neither `task:task_newtask` nor samples were recorded, counts as a
    /// process of its own. Samples may tell later: ask when all records are in.
    #[must_use]
    pub fn process(&self, index: TaskIndex) -> TaskIndex {
        let mut index = index;
        // Samples may contradict each other, so that the makers could form a circle.
        for _ in 0..64 {
            match self.tasks.get(index).and_then(|task| task.maker) {
                Some(maker) => index = maker,
                None => break,
            }
        }
        index
    }

    /// Thread id and latest name of the task `index`; `?` where no record names it.
    #[must_use]
    pub fn task_name(&self, index: TaskIndex) -> (Tid, String) {
        let Some(task) = self.task(index) else { return (0, "?".into()) };
        (task.tid, if task.comm.is_empty() { "?".into() } else { task.name() })
    }

    /// Whether `runner` can have done something unseen while records of `cpu` are missing: not, while it runs on another CPU.
    #[must_use]
    pub fn is_lost_with(&self, runner: Runner, cpu: u32) -> bool {
        match runner {
            Runner::Idle(on) => on == cpu,
            Runner::Task(task) => {
                let state = self.task(task).map(|task| task.state);
                !matches!(state, Some(TaskState::Running { cpu: on, .. }) if on != cpu)
            }
        }
    }

    /// Whether records of any CPU that may run tasks are missing at the moment.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Whether `cpu` never records and has run no task so far, since its vCPU was not in the guest.
    #[must_use]
    pub fn is_unused(&self, cpu: u32) -> bool {
        self.unused.contains_key(&cpu)
    }

    /// Takes in an event of `cpu`. What it may have changed is in `touched`, `cpu` itself aside.
    pub(super) fn apply(&mut self, time: u64, cpu: u32, event: &Event<'_>) {
        match *event {
            Event::Switch { prev, prev_state, next } => self.switch(time, cpu, prev, prev_state, next),
            Event::Wakeup { task, cpu: target, stage } => self.wakeup(task, target, stage),
            Event::Migrate { tid, cpu } => self.migrate(tid, cpu),
            Event::NewTask { tid, clone_flags } => {
                self.flags.insert(tid, clone_flags);
            }
            Event::Fork { parent, child } => self.fork(time, cpu, parent, child),
            Event::Rename(ref rename) => self.rename(cpu, rename),
            Event::Exec { tid, old_tid, file } => {
                if let (Some(old), Some(new)) = (old_tid, tid) {
                    self.renumber(time, old, new);
                }
                self.exec(cpu, tid, file);
            }
            Event::Sample { process: Some(process), thread: Some(thread), .. } if process > 0 && process != thread => {
                let process = self.index_of(Task { tid: process, comm: &[] });
                let thread = self.index_of(Task { tid: thread, comm: &[] });
                if let Some(thread) = self.tasks.get_mut(thread) {
                    thread.maker = Some(process);
                }
            }
            Event::SyscallEnter { number, arguments } => {
                let is_clone = names::syscall::is_clone(number);
                let cpu = self.cpu_mut(cpu);
                cpu.clone_flags = if is_clone { arguments.get(0) } else { None };
                let current = cpu.current;
                // A number out of range is none that the kernel knows: it is shown as what it is not called by.
                self.set_syscall(current, Some(names::syscall::short(number)));
            }
            Event::SyscallExit { .. } => {
                if let Some(cpu) = self.cpus.get(cpu) {
                    self.set_syscall(cpu.current, None);
                }
            }
            Event::InterruptEnter(interrupt) => {
                let cpu = self.cpu_mut(cpu);
                cpu.is_settled = false;
                if cpu.nested.len() < MAX_NESTED {
                    cpu.nested.push(interrupt);
                }
            }
            Event::InterruptExit(interrupt) => {
                let cpu = self.cpu_mut(cpu);
                cpu.is_settled = false;
                // What came on top of it and is not left was left without a record.
                if let Some(at) = cpu.nested.iter().rposition(|&entered| entered == interrupt) {
                    cpu.nested.truncate(at);
                }
            }
            Event::TaskFound(ref found) => {
                self.memberships.found(time, found);
                self.take_membership(found.tid);
            }
            Event::Cgroup { id, path } => self.memberships.name(id, path),
            Event::CgroupAttach { tid, id, path } => {
                self.memberships.name(id, path);
                self.memberships.attach(time, tid, id);
                self.take_membership(tid);
            }
            Event::ContentionBegin { .. } => self.set_contending(cpu, true),
            Event::ContentionEnd { .. } => self.set_contending(cpu, false),
            Event::RecordingStops { is_offline: true } => {
                self.offline.insert(cpu);
            }
            _ => {}
        }
    }

    fn switch(&mut self, time: u64, cpu: u32, prev: Task<'_>, prev_state: u64, next: Task<'_>) {
        let before = self.cpu_mut(cpu).current;
        let prev_index = (prev.tid > 0).then(|| self.index_of(prev));
        if let Current::Task(index) = before
            && prev_index != Some(index)
            && let Some(task) = self.tasks.get_mut(index)
            && matches!(task.state, TaskState::Running { cpu: on, .. } if on == cpu)
        {
            // Its being switched out was not recorded.
            self.set(index, TaskState::Unknown);
        }
        if let Some(index) = prev_index {
            self.switch_out(time, cpu, index, prev_state);
        }
        let next_index = (next.tid > 0).then(|| self.index_of(next));
        if let Some(index) = next_index
            && let Some(task) = self.tasks.get_mut(index)
        {
            // Only a record that is missing could leave it contending while it runs again.
            task.contending = task.contending && self.gaps.is_empty();
            let state = TaskState::Running { cpu, syscall: task.syscall };
            self.set(index, state);
        }
        let state = self.cpu_mut(cpu);
        state.current = next_index.map_or(Current::Idle, Current::Task);
        (state.clone_flags, state.is_settled) = (None, false);
        // Nothing switches tasks in an interrupt: what is still entered was left without a record.
        state.nested.clear();
        self.pass_over(cpu, next_index.is_none());
    }

    /// Tasks in the queue of `cpu` that goes idle are not allowed to run; while it runs another one, they wait for that.
    fn pass_over(&mut self, cpu: u32, goes_idle: bool) {
        let mut place = 0;
        while let Some(&index) = self.cpus.get(cpu).and_then(|cpu| cpu.queue.get(place)) {
            place += 1;
            let Some(task) = self.tasks.get_mut(index) else { continue };
            let is_passed_over = goes_idle && task.queued;
            if let TaskState::Runnable { passed_over, .. } = &mut task.state
                && std::mem::replace(passed_over, is_passed_over) != is_passed_over
            {
                self.touched.push(index);
            }
        }
    }

    fn switch_out(&mut self, time: u64, cpu: u32, index: TaskIndex, prev_state: u64) {
        let anything_missing = !self.gaps.is_empty();
        let Some(task) = self.tasks.get_mut(index) else { return };
        task.queued = true;
        let bits = prev_state & PREV_STATE_MASK;
        let state = if bits & PREV_STATE_ENDED != 0 {
            TaskState::Absent
        } else if anything_missing {
            TaskState::Unknown
        } else if bits == 0 {
            TaskState::Runnable { cpu: Some(cpu), woken: false, passed_over: false }
        } else {
            TaskState::Blocked { on: task.blocked_on(bits), syscall: task.syscall }
        };
        if state == TaskState::Absent {
            task.ended = Some(time);
            let tid = task.tid;
            self.by_tid.remove(&tid);
            self.memberships.end(tid);
        }
        self.set(index, state);
    }

    /// The task `index` is in `state` from now on.
    fn set(&mut self, index: TaskIndex, state: TaskState) {
        let Some(task) = self.tasks.get_mut(index) else { return };
        let before = task.state;
        task.state = state;
        if !task.is_known && !matches!(state, TaskState::Unknown | TaskState::Absent) {
            task.is_known = true;
            self.known.push(index);
        }
        if let TaskState::Runnable { cpu: Some(cpu), .. } = before
            && let Some(cpu) = self.cpus.get_mut(cpu)
        {
            cpu.queue.retain(|&queued| queued != index);
        }
        if let TaskState::Runnable { cpu: Some(cpu), .. } = state {
            self.cpu_mut(cpu).queue.push(index);
        }
        self.touched.push(index);
    }

    fn wakeup(&mut self, task: Task<'_>, cpu: Option<u32>, stage: WakeupStage) {
        if task.tid <= 0 {
            return;
        }
        let may_run_unseen = self.may_run_unseen_on(cpu);
        let index = self.index_of(task);
        let Some(task) = self.tasks.get(index) else { return };
        let woken = match task.state {
            // A task that runs is not woken: it had only been about to sleep.
            TaskState::Running { .. } => return,
            // Nor is one that is in that queue already.
            TaskState::Runnable { cpu: on, .. } if task.queued && on == cpu && !may_run_unseen => return,
            TaskState::Runnable { woken, .. } => woken,
            TaskState::Unknown | TaskState::Blocked { .. } | TaskState::Absent => true,
        };
        let ready = TaskState::Runnable { cpu, woken, passed_over: false };
        self.set(index, if may_run_unseen { TaskState::Unknown } else { ready });
        if let Some(task) = self.tasks.get_mut(index) {
            task.queued = stage != WakeupStage::Waking;
        }
    }

    fn migrate(&mut self, tid: Tid, cpu: u32) {
        let may_run_unseen = self.may_run_unseen_on(Some(cpu));
        let Some(index) = self.living(tid) else { return };
        if let Some(&GuestTask { state: TaskState::Runnable { woken, .. }, .. }) = self.tasks.get(index) {
            let state = TaskState::Runnable { cpu: Some(cpu), woken, passed_over: false };
            self.set(index, if may_run_unseen { TaskState::Unknown } else { state });
            self.tasks.get_mut(index).into_iter().for_each(|task| task.queued = false);
        }
    }

    /// Whether a task in the queue of `cpu` may run without a record: any CPU that runs tasks may take it, and one that goes
    /// offline runs what is bound to it until it is gone.
    fn may_run_unseen_on(&self, cpu: Option<u32>) -> bool {
        !self.gaps.is_empty() || cpu.is_some_and(|cpu| self.offline.contains(&cpu))
    }

    fn fork(&mut self, time: u64, cpu: u32, parent: Option<Tid>, child: Task<'_>) {
        let clone_flags = self.cpu_mut(cpu).clone_flags.take();
        if child.tid <= 0 {
            return;
        }
        if let Some(index) = self.by_tid.remove(&child.tid) {
            // Its end was not recorded.
            if let Some(task) = self.tasks.get_mut(index) {
                task.ended = Some(time);
            }
            self.set(index, TaskState::Absent);
        }
        let flags = self.flags.remove(&child.tid).or(clone_flags).unwrap_or(0);
        let is_thread = flags & CLONE_THREAD != 0;
        self.memberships.fork(parent.filter(|&parent| parent > 0), child.tid, is_thread);
        let maker = parent.filter(|&parent| parent > 0 && is_thread);
        let maker = maker.map(|tid| self.index_of(Task { tid, comm: &[] }));
        let index = self.index_of(child);
        let Some(task) = self.tasks.get_mut(index) else { return };
        (task.born, task.maker, task.queued) = (Some(time), maker, false);
        let ready = TaskState::Runnable { cpu: Some(cpu), woken: true, passed_over: false };
        let state = if self.gaps.is_empty() { ready } else { TaskState::Unknown };
        self.set(index, state);
    }

    /// A task has another name. One that no record named so far had the name before.
    fn rename(&mut self, cpu: u32, rename: &Rename<'_>) {
        let index = match (rename.tid, self.recorder(cpu)) {
            (Some(tid), _) if tid > 0 => self.index_of(Task { tid, comm: &[] }),
            (None, Current::Task(index)) => index,
            _ => return,
        };
        let Some(task) = self.tasks.get_mut(index) else { return };
        if !rename.begins_with(Task { tid: task.tid, comm: &task.comm }) {
            return;
        }
        if task.comm.is_empty() {
            task.comm = rename.before.to_vec();
        }
        task.is_named = true;
        self.call(index, rename.after);
    }

    /// The task `index` is called `comm` from now on.
    fn call(&mut self, index: TaskIndex, comm: &[u8]) {
        if let Some(task) = self.tasks.get_mut(index).filter(|task| !comm.is_empty() && task.comm != comm) {
            task.former = std::mem::replace(&mut task.comm, comm.to_vec());
            task.renamed = true;
            self.touched.push(index);
        }
    }

    /// The kernel names a task that runs another program by the program's file, unless that has no name of its own
    /// (`fexecve`): the record of the renaming, which comes before, says it in any case.
    fn exec(&mut self, cpu: u32, tid: Option<Tid>, file: &[u8]) {
        let index = match (tid, self.recorder(cpu)) {
            (Some(tid), _) => self.living(tid),
            (None, Current::Task(index)) => Some(index),
            (None, Current::Unknown | Current::Idle) => None,
        };
        let name = file.rsplit(|&byte| byte == b'/').next().unwrap_or(file);
        let name = name.get(..COMM_BYTES).unwrap_or(name);
        if let Some(index) = index
            && let Some(task) = self.tasks.get_mut(index)
            && !std::mem::take(&mut task.is_named)
        {
            self.call(index, name);
        }
    }

    /// The task `old` is `new` from now on: a thread that runs another program takes over the number of its process's
    /// first one, which has ended. Records may have called it so already.
    fn renumber(&mut self, time: u64, old: Tid, new: Tid) {
        if old == new || new <= 0 {
            return;
        }
        let Some(index) = self.by_tid.remove(&old) else { return };
        self.memberships.renumber(old, new);
        let membership = self.memberships.of(new);
        let before = self.by_tid.insert(new, index).and_then(|before| Some((before, self.tasks.get_mut(before)?)));
        let renamed = before.map(|(before, task)| {
            if task.born.is_none() && task.state == TaskState::Unknown {
                task.born = Some(time);
            }
            task.ended = Some(time);
            (before, std::mem::take(&mut task.is_named).then(|| task.comm.clone()))
        });
        if let Some(task) = self.tasks.get_mut(index) {
            (task.tid, task.membership, task.maker) = (new, membership, None);
        }
        if let Some((before, comm)) = renamed {
            self.set(before, TaskState::Absent);
            if let Some(comm) = comm {
                self.call(index, &comm);
                if let Some(task) = self.tasks.get_mut(index) {
                    task.is_named = true;
                }
            }
        }
    }

    /// Takes over what has become known of the living task `tid`.
    fn take_membership(&mut self, tid: Tid) {
        if let Some(task) = self.living(tid).and_then(|index| self.tasks.get_mut(index)) {
            task.membership = self.memberships.of(tid);
        }
    }

    /// The task that is `current` on a CPU is in `syscall` from now on.
    fn set_syscall(&mut self, current: Current, syscall: Option<i16>) {
        let Current::Task(index) = current else { return };
        let Some(task) = self.tasks.get_mut(index) else { return };
        (task.syscall, task.is_user) = (syscall, true);
        if let TaskState::Running { cpu, .. } = task.state {
            task.state = TaskState::Running { cpu, syscall };
            self.touched.push(index);
        }
    }

    fn set_contending(&mut self, cpu: u32, contending: bool) {
        let cpu = self.cpu_mut(cpu);
        // An interrupt's handler waits for its own account.
        let (Current::Task(index), true) = (cpu.current, cpu.nested.is_empty()) else { return };
        if let Some(task) = self.tasks.get_mut(index) {
            task.contending = contending;
        }
    }

    /// Records of `cpu` are missing from now on: what it runs is not known, nor what becomes of the tasks that do not run on
    /// another CPU. While it is offline, the other CPUs record what becomes of them.
    pub(super) fn begin_gap(&mut self, cpu: u32) {
        if !self.offline.contains(&cpu) {
            self.gaps.insert(cpu);
        }
        let state = self.cpu_mut(cpu);
        (state.current, state.announced, state.clone_flags) = (Current::Unknown, Current::Unknown, None);
        state.is_settled = false;
        state.nested.clear();
        self.flags.clear();
        // Each task is gone through once for each time that something becomes known of it, however many gaps there are.
        let mut still_known = Vec::new();
        for index in std::mem::take(&mut self.known) {
            let Some(task) = self.tasks.get_mut(index) else { continue };
            if matches!(task.state, TaskState::Running { cpu: on, .. } if on != cpu) {
                still_known.push(index);
                continue;
            }
            task.is_known = false;
            if task.state != TaskState::Absent {
                (task.syscall, task.contending) = (None, false);
                self.set(index, TaskState::Unknown);
            }
        }
        self.known.append(&mut still_known);
    }

    /// The records of `cpu` go on.
    pub(super) fn end_gap(&mut self, cpu: u32) {
        self.gaps.remove(&cpu);
        self.offline.remove(&cpu);
        self.unused.remove(&cpu);
    }

    /// The switch to come on `cpu` will take it from `task`.
    pub(super) fn announce(&mut self, cpu: u32, task: Task<'_>) {
        let current = if task.tid > 0 { Current::Task(self.index_of(task)) } else { Current::Idle };
        self.cpu_mut(cpu).announced = current;
    }

    /// The living task that `task` names, made when there is none.
    fn index_of(&mut self, task: Task<'_>) -> TaskIndex {
        let index = *self.by_tid.entry(task.tid).or_insert_with(|| {
            self.tasks.push(GuestTask { membership: self.memberships.of(task.tid), ..GuestTask::new(task.tid) });
            self.tasks.len() - 1
        });
        self.call(index, task.comm);
        index
    }
}

/// Bits of `prev_state`: uninterruptible, and stopped or traced.
const UNINTERRUPTIBLE: u64 = 0x02;
const STOPPED: u64 = 0x04 | 0x08;

impl GuestTask {
    /// What it waits for, with the bits `state` of `prev_state`.
    fn blocked_on(&self, state: u64) -> BlockedOn {
        let name = self.syscall.and_then(|number| names::syscall::name(names::syscall::of_short(number)));
        if state & STOPPED != 0 {
            BlockedOn::Stopped
        } else if self.contending {
            BlockedOn::Lock
        } else if state & UNINTERRUPTIBLE != 0 {
            let on_files = |name| FILE_SYSCALLS.binary_search(&name).is_ok();
            if self.syscall.map_or(self.is_user, |_| name.is_some_and(on_files)) {
                BlockedOn::Io
            } else {
                BlockedOn::Uninterruptible
            }
        } else {
            match name {
                Some("futex" | "futex_wait" | "futex_waitv") => BlockedOn::Futex,
                Some("nanosleep" | "clock_nanosleep") => BlockedOn::Sleep,
                Some("io_getevents" | "io_pgetevents" | "io_uring_enter") => BlockedOn::Io,
                _ => BlockedOn::Event,
            }
        }
    }
}

/// System calls in which a task waits uninterruptibly for nothing but files, in alphabetical order.
const FILE_SYSCALLS: &[&str] = &[
    "access",
    "chdir",
    "chmod",
    "chown",
    "close",
    "copy_file_range",
    "creat",
    "execve",
    "execveat",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fallocate",
    "fchdir",
    "fchmod",
    "fchmodat",
    "fchown",
    "fchownat",
    "fdatasync",
    "fgetxattr",
    "fsetxattr",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "futimesat",
    "getcwd",
    "getdents",
    "getdents64",
    "getxattr",
    "io_submit",
    "io_uring_enter",
    "lchown",
    "lgetxattr",
    "link",
    "linkat",
    "listxattr",
    "lsetxattr",
    "lstat",
    "madvise",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "mmap",
    "mount",
    "mprotect",
    "msync",
    "munmap",
    "name_to_handle_at",
    "newfstatat",
    "open",
    "open_by_handle_at",
    "openat",
    "openat2",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readahead",
    "readlink",
    "readlinkat",
    "readv",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "sendfile",
    "setxattr",
    "splice",
    "stat",
    "statfs",
    "statx",
    "swapoff",
    "swapon",
    "symlink",
    "symlinkat",
    "sync",
    "sync_file_range",
    "syncfs",
    "tee",
    "truncate",
    "umount2",
    "unlink",
    "unlinkat",
    "utimensat",
    "write",
    "writev",
];

#[cfg(test)]
mod tests;
