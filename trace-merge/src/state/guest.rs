//! What a guest's CPUs and tasks did, as its own kernel saw it.

use super::event::{Event, Interrupt, Task};
use super::history::History;
use super::host::{PREV_STATE_ENDED, PREV_STATE_MASK};
use crate::syscall_names;
use crate::window::Window;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A task of a guest: index into [`Guest::tasks`]. A task that gets the thread id of one that has ended is another one.
pub type TaskIndex = usize;

/// What a guest's CPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestCpuState {
    /// Not known.
    Unknown,
    /// Its idle task.
    Idle,
    /// A task.
    Running(TaskIndex),
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockedOn {
    /// I/O: uninterruptibly in a system call on files, or in a page fault of a user's task.
    Io,
    /// Uninterruptibly for something that is not known to be I/O: a kernel thread, a child that has to `exec`, …
    Uninterruptible,
    /// A lock of the kernel.
    Lock,
    /// A futex: a lock or a condition of its process.
    Futex,
    /// The time to come that it asked for.
    Sleep,
    /// An event: a file that becomes ready, a child that ends, work for a kernel thread.
    Event,
    /// To be continued: it was stopped by a signal or a debugger.
    Stopped,
}

/// What a task does, as the guest's kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Not known.
    Unknown,
    /// It runs.
    Running {
        /// On this CPU.
        cpu: u32,
        /// The number of the system call that it is in.
        syscall: Option<i16>,
    },
    /// It is ready to run, and something else does.
    Runnable {
        /// The CPU that it waits for, where that is known.
        cpu: Option<u32>,
        /// Whether it was woken or is new, and not preempted.
        woken: bool,
    },
    /// It waits.
    Blocked {
        /// For what.
        on: BlockedOn,
        /// The number of the system call that it is in.
        syscall: Option<i16>,
    },
    /// It does not exist yet, or no longer.
    Absent,
}

/// A task of a guest.
#[derive(Clone, Debug)]
pub struct GuestTask {
    /// Thread id in the guest's initial namespace.
    pub tid: i32,
    /// Last name. The guest chose it.
    pub comm: Vec<u8>,
    /// What it did.
    pub state: History<TaskState>,
    /// When it was made; `None` when the trace does not show that.
    pub born: Option<u64>,
    /// When it ended; `None` when it had not by the end of the trace.
    pub ended: Option<u64>,
    syscall: Option<i16>,
    contending: bool,
    /// Whether it was seen in a system call: kernel threads never are.
    is_user: bool,
    /// Whether it is among [`Guest::known`].
    is_known: bool,
}

impl GuestTask {
    /// Its name and thread id.
    #[must_use]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.comm).into_owned()
    }

    /// What of `window` it existed in, as far as the trace shows.
    #[must_use]
    pub fn life(&self, window: &Window) -> Option<Window> {
        Window { begin: self.born.unwrap_or(0), end: self.ended.unwrap_or(u64::MAX) }.intersection(window)
    }
}

/// A CPU of a guest.
#[derive(Clone, Debug)]
pub struct GuestCpu {
    /// What it runs.
    pub current: History<GuestCpuState>,
    /// The interrupt that it handles, the innermost of several; `None` for none.
    pub interrupt: History<Option<Interrupt>>,
    nested: Vec<Interrupt>,
}

impl Default for GuestCpu {
    fn default() -> Self {
        Self { current: History::new(GuestCpuState::Unknown), interrupt: History::new(None), nested: Vec::new() }
    }
}

/// Interrupts nest at most this deep; what comes on top was left without a record.
const MAX_NESTED: usize = 16;

/// The kernel of a guest: its CPUs and tasks.
#[derive(Clone, Debug, Default)]
pub struct Guest {
    /// All tasks that the trace shows, in the order in which it first does.
    pub tasks: Vec<GuestTask>,
    /// Its CPUs.
    pub cpus: BTreeMap<u32, GuestCpu>,
    /// First and last moment of its kernel's records.
    pub span: Option<Window>,
    /// The living tasks by thread id.
    by_tid: HashMap<i32, TaskIndex>,
    /// CPUs whose records are missing at the moment.
    gaps: BTreeSet<u32>,
    /// The tasks of which something is known, and some that are not any more: what a gap has to go through.
    known: Vec<TaskIndex>,
}

impl Guest {
    /// Takes in that its kernel recorded something at `time`.
    pub fn note(&mut self, time: u64) {
        let span = self.span.get_or_insert(Window { begin: time, end: time });
        span.end = span.end.max(time);
    }

    /// Takes in an event of `cpu`.
    pub fn apply(&mut self, time: u64, cpu: u32, event: &Event<'_>) {
        match *event {
            Event::Switch { prev, prev_state, next } => self.switch(time, cpu, prev, prev_state, next),
            Event::Wakeup { task, cpu: target } => self.wakeup(time, task, target),
            Event::Migrate { tid, cpu } => {
                let Some(task) = self.by_tid.get(&tid).and_then(|&index| self.tasks.get_mut(index)) else { return };
                if let TaskState::Runnable { woken, .. } = task.state.current() {
                    task.state.set(time, TaskState::Runnable { cpu: Some(cpu), woken });
                }
            }
            Event::Fork { child } => self.fork(time, cpu, child),
            Event::SyscallEnter { number } => {
                // A number out of range is none that the kernel knows: it is shown as what it is not called by.
                let number = i16::try_from(number).unwrap_or(-1);
                self.set_syscall(time, cpu, Some(number));
            }
            Event::SyscallExit => self.set_syscall(time, cpu, None),
            Event::InterruptEnter(interrupt) => {
                let cpu = self.cpus.entry(cpu).or_default();
                if cpu.nested.len() < MAX_NESTED {
                    cpu.nested.push(interrupt);
                }
                cpu.interrupt.set(time, cpu.nested.last().copied());
            }
            Event::InterruptExit(interrupt) => {
                let cpu = self.cpus.entry(cpu).or_default();
                // What came on top of it and is not left was left without a record.
                if let Some(at) = cpu.nested.iter().rposition(|&entered| entered == interrupt) {
                    cpu.nested.truncate(at);
                }
                cpu.interrupt.set(time, cpu.nested.last().copied());
            }
            Event::ContentionBegin => self.set_contending(cpu, true),
            Event::ContentionEnd => self.set_contending(cpu, false),
            Event::GapBegin => self.lose(time, cpu),
            Event::GapEnd => drop(self.gaps.remove(&cpu)),
            _ => {}
        }
    }

    fn switch(&mut self, time: u64, cpu: u32, prev: Task<'_>, prev_state: u64, next: Task<'_>) {
        let before = self.cpus.entry(cpu).or_default().current.current();
        let prev_index = (prev.tid > 0).then(|| self.index_of(prev));
        if let GuestCpuState::Running(index) = before
            && prev_index != Some(index)
            && let Some(task) = self.tasks.get_mut(index)
            && matches!(task.state.current(), TaskState::Running { cpu: on, .. } if on == cpu)
        {
            // Its being switched out was not recorded.
            task.state.set(time, TaskState::Unknown);
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
            self.set(index, time, state);
        }
        let state = self.cpus.entry(cpu).or_default();
        state.current.set(time, next_index.map_or(GuestCpuState::Idle, GuestCpuState::Running));
        // Nothing switches tasks in an interrupt: what is still entered was left without a record.
        state.nested.clear();
        state.interrupt.set(time, None);
    }

    fn switch_out(&mut self, time: u64, cpu: u32, index: TaskIndex, prev_state: u64) {
        let anything_missing = !self.gaps.is_empty();
        let Some(task) = self.tasks.get_mut(index) else { return };
        let bits = prev_state & PREV_STATE_MASK;
        let state = if bits & PREV_STATE_ENDED != 0 {
            TaskState::Absent
        } else if anything_missing {
            TaskState::Unknown
        } else if bits == 0 {
            TaskState::Runnable { cpu: Some(cpu), woken: false }
        } else {
            TaskState::Blocked { on: task.blocked_on(bits), syscall: task.syscall }
        };
        if state == TaskState::Absent {
            task.ended = Some(time);
            let tid = task.tid;
            self.by_tid.remove(&tid);
        }
        self.set(index, time, state);
    }

    /// From `time` on the task `index` is in `state`.
    fn set(&mut self, index: TaskIndex, time: u64, state: TaskState) {
        let Some(task) = self.tasks.get_mut(index) else { return };
        task.state.set(time, state);
        if !task.is_known && !matches!(state, TaskState::Unknown | TaskState::Absent) {
            task.is_known = true;
            self.known.push(index);
        }
    }

    fn wakeup(&mut self, time: u64, task: Task<'_>, cpu: Option<u32>) {
        if task.tid <= 0 {
            return;
        }
        let anything_missing = !self.gaps.is_empty();
        let index = self.index_of(task);
        let Some(task) = self.tasks.get_mut(index) else { return };
        let woken = match task.state.current() {
            // A task that runs is not woken: it had only been about to sleep.
            TaskState::Running { .. } => return,
            TaskState::Runnable { woken, .. } => woken,
            TaskState::Unknown | TaskState::Blocked { .. } | TaskState::Absent => true,
        };
        let state = if anything_missing { TaskState::Unknown } else { TaskState::Runnable { cpu, woken } };
        self.set(index, time, state);
    }

    fn fork(&mut self, time: u64, cpu: u32, child: Task<'_>) {
        if child.tid <= 0 {
            return;
        }
        if let Some(task) = self.by_tid.remove(&child.tid).and_then(|index| self.tasks.get_mut(index)) {
            // Its end was not recorded.
            task.state.set(time, TaskState::Absent);
            task.ended = Some(time);
        }
        let index = self.index_of(child);
        let Some(task) = self.tasks.get_mut(index) else { return };
        task.born = Some(time);
        let state =
            if self.gaps.is_empty() { TaskState::Runnable { cpu: Some(cpu), woken: true } } else { TaskState::Unknown };
        self.set(index, time, state);
    }

    fn set_syscall(&mut self, time: u64, cpu: u32, syscall: Option<i16>) {
        let Some(task) = self.current_mut(cpu) else { return };
        (task.syscall, task.is_user) = (syscall, true);
        if let TaskState::Running { cpu, .. } = task.state.current() {
            task.state.set(time, TaskState::Running { cpu, syscall });
        }
    }

    fn set_contending(&mut self, cpu: u32, contending: bool) {
        // An interrupt's handler waits for its own account.
        let interrupted = self.cpus.get(&cpu).is_some_and(|cpu| !cpu.nested.is_empty());
        if let Some(task) = self.current_mut(cpu).filter(|_| !interrupted) {
            task.contending = contending;
        }
    }

    /// Records of `cpu` are missing from `time` on: what it runs is not known, nor what becomes of the tasks that do not run
    /// on another CPU.
    fn lose(&mut self, time: u64, cpu: u32) {
        self.gaps.insert(cpu);
        let state = self.cpus.entry(cpu).or_default();
        state.current.set(time, GuestCpuState::Unknown);
        state.nested.clear();
        state.interrupt.set(time, None);
        // Each task is gone through once for each time that something becomes known of it, however many gaps there are.
        let mut still_known = Vec::new();
        for index in std::mem::take(&mut self.known) {
            let Some(task) = self.tasks.get_mut(index) else { continue };
            if matches!(task.state.current(), TaskState::Running { cpu: on, .. } if on != cpu) {
                still_known.push(index);
                continue;
            }
            task.is_known = false;
            if task.state.current() != TaskState::Absent {
                task.state.set(time, TaskState::Unknown);
                (task.syscall, task.contending) = (None, false);
            }
        }
        self.known = still_known;
    }

    fn current_mut(&mut self, cpu: u32) -> Option<&mut GuestTask> {
        match self.cpus.get(&cpu)?.current.current() {
            GuestCpuState::Running(index) => self.tasks.get_mut(index),
            GuestCpuState::Unknown | GuestCpuState::Idle => None,
        }
    }

    /// The living task that `task` names, made when there is none.
    fn index_of(&mut self, task: Task<'_>) -> TaskIndex {
        let index = *self.by_tid.entry(task.tid).or_insert_with(|| {
            self.tasks.push(GuestTask {
                tid: task.tid,
                comm: Vec::new(),
                state: History::new(TaskState::Unknown),
                born: None,
                ended: None,
                syscall: None,
                contending: false,
                is_user: false,
                is_known: false,
            });
            self.tasks.len() - 1
        });
        if let Some(known) = self.tasks.get_mut(index).filter(|known| !task.comm.is_empty() && known.comm != task.comm)
        {
            known.comm = task.comm.to_vec();
        }
        index
    }
}

/// Bits of `prev_state`: uninterruptible, and stopped or traced.
const UNINTERRUPTIBLE: u64 = 0x02;
const STOPPED: u64 = 0x04 | 0x08;

impl GuestTask {
    /// What it waits for, with the bits `state` of `prev_state`.
    fn blocked_on(&self, state: u64) -> BlockedOn {
        let name = self.syscall.and_then(|number| syscall_names::name(number.into()));
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
mod tests {
    use super::*;

    const APP: Task<'_> = Task { tid: 10, comm: b"app" };
    const SH: Task<'_> = Task { tid: 11, comm: b"sh" };
    const IDLE: Task<'_> = Task { tid: 0, comm: b"swapper" };

    fn switch<'t>(prev: Task<'t>, prev_state: u64, next: Task<'t>) -> Event<'t> {
        Event::Switch { prev, prev_state, next }
    }

    fn guest(events: &[(u64, u32, Event<'_>)]) -> Guest {
        let mut guest = Guest::default();
        events.iter().for_each(|(time, cpu, event)| guest.apply(*time, *cpu, event));
        guest
    }

    fn task(guest: &Guest, tid: i32) -> &GuestTask {
        guest.tasks.iter().find(|task| task.tid == tid).unwrap()
    }

    /// What `app` waits for when it is switched out in `state` after `events`.
    fn blocked_on(events: &[Event<'_>], state: u64) -> TaskState {
        let mut guest = guest(&[(1, 0, switch(IDLE, 0, APP))]);
        events.iter().for_each(|event| guest.apply(2, 0, event));
        guest.apply(3, 0, &switch(APP, state, IDLE));
        task(&guest, 10).state.current()
    }

    fn in_syscall(number: i64, state: u64) -> BlockedOn {
        match blocked_on(&[Event::SyscallEnter { number }], state) {
            TaskState::Blocked { on, .. } => on,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn file_syscalls_are_sorted_and_exist() {
        assert!(FILE_SYSCALLS.is_sorted_by(|left, right| left < right));
        assert!(FILE_SYSCALLS.iter().all(|name| syscall_names::number(name).is_some()));
    }

    #[test]
    fn task_runs_in_and_out_of_system_calls() {
        let guest = guest(&[
            (10, 1, switch(IDLE, 0, APP)),
            (20, 1, Event::SyscallEnter { number: 1 }),
            (30, 1, switch(APP, 0x100, SH)),
            (40, 0, switch(IDLE, 0, APP)),
            (50, 0, Event::SyscallExit),
        ]);

        let states = [5, 10, 20, 30, 40, 50].map(|time| task(&guest, 10).state.at(time));
        assert_eq!(
            states,
            [
                TaskState::Unknown,
                TaskState::Running { cpu: 1, syscall: None },
                TaskState::Running { cpu: 1, syscall: Some(1) },
                TaskState::Runnable { cpu: Some(1), woken: false },
                TaskState::Running { cpu: 0, syscall: Some(1) },
                TaskState::Running { cpu: 0, syscall: None },
            ]
        );
    }

    #[test]
    fn what_a_task_waits_for_is_told_by_its_state_and_system_call() {
        assert_eq!(in_syscall(0, 2), BlockedOn::Io);
        assert_eq!(in_syscall(58, 2), BlockedOn::Uninterruptible);
        assert_eq!(in_syscall(0, 1), BlockedOn::Event);
        assert_eq!(in_syscall(202, 1), BlockedOn::Futex);
        assert_eq!(in_syscall(230, 1), BlockedOn::Sleep);
        assert_eq!(in_syscall(0, 4), BlockedOn::Stopped);
    }

    #[test]
    fn page_fault_of_a_user_waits_for_io_and_a_kernel_thread_for_what_is_not_known() {
        let user = blocked_on(&[Event::SyscallEnter { number: 1 }, Event::SyscallExit], 2);
        let kernel = blocked_on(&[], 2);

        assert_eq!(user, TaskState::Blocked { on: BlockedOn::Io, syscall: None });
        assert_eq!(kernel, TaskState::Blocked { on: BlockedOn::Uninterruptible, syscall: None });
    }

    #[test]
    fn task_that_contends_for_a_lock_waits_for_it_but_not_an_interrupt_on_top_of_it() {
        let own = blocked_on(&[Event::ContentionBegin], 2);
        let ended = blocked_on(&[Event::ContentionBegin, Event::ContentionEnd], 1);
        let softirq = Interrupt::Softirq(1);
        let of_interrupt =
            blocked_on(&[Event::InterruptEnter(softirq), Event::ContentionBegin, Event::InterruptExit(softirq)], 1);

        let on = |on| TaskState::Blocked { on, syscall: None };
        assert_eq!((own, ended, of_interrupt), (on(BlockedOn::Lock), on(BlockedOn::Event), on(BlockedOn::Event)));
    }

    #[test]
    fn woken_task_is_runnable_where_it_will_run_and_a_running_one_stays() {
        let guest = guest(&[
            (10, 0, switch(APP, 1, SH)),
            (20, 0, Event::Wakeup { task: APP, cpu: Some(0) }),
            (25, 0, Event::Migrate { tid: 10, cpu: 1 }),
            (26, 0, Event::Wakeup { task: SH, cpu: Some(1) }),
        ]);

        assert_eq!(task(&guest, 10).state.at(20), TaskState::Runnable { cpu: Some(0), woken: true });
        assert_eq!(task(&guest, 10).state.at(25), TaskState::Runnable { cpu: Some(1), woken: true });
        assert_eq!(task(&guest, 11).state.current(), TaskState::Running { cpu: 0, syscall: None });
    }

    #[test]
    fn task_lives_from_fork_to_exit_and_its_id_may_be_anothers_later() {
        let guest = guest(&[
            (10, 0, Event::Fork { child: APP }),
            (20, 0, switch(SH, 0, APP)),
            (30, 0, switch(APP, 0x10, SH)),
            (40, 0, Event::Fork { child: APP }),
        ]);

        let lives: Vec<_> =
            guest.tasks.iter().filter(|task| task.tid == 10).map(|task| (task.born, task.ended)).collect();
        assert_eq!(lives, [(Some(10), Some(30)), (Some(40), None)]);
        let first = task(&guest, 10);
        assert_eq!(first.life(&Window { begin: 0, end: 25 }), Some(Window { begin: 10, end: 25 }));
        assert_eq!(first.life(&Window { begin: 30, end: 50 }), None);
    }

    #[test]
    fn innermost_interrupt_counts_and_one_that_is_not_left_ends_with_the_one_below() {
        let (irq, softirq) = (Interrupt::Irq(4), Interrupt::Softirq(1));
        let guest = guest(&[
            (10, 0, Event::InterruptEnter(irq)),
            (20, 0, Event::InterruptEnter(softirq)),
            (30, 0, Event::InterruptExit(softirq)),
            (40, 0, Event::InterruptEnter(softirq)),
            (50, 0, Event::InterruptExit(irq)),
            (60, 0, Event::InterruptExit(softirq)),
        ]);

        let states = [10, 20, 30, 40, 50, 60].map(|time| guest.cpus[&0].interrupt.at(time));
        assert_eq!(states, [Some(irq), Some(softirq), Some(irq), Some(softirq), None, None]);
    }

    #[test]
    fn missing_records_make_tasks_unknown_that_do_not_run_elsewhere() {
        let guest = guest(&[
            (10, 0, switch(IDLE, 0, APP)),
            (10, 1, switch(IDLE, 0, SH)),
            (20, 0, Event::GapBegin),
            (25, 1, switch(SH, 1, IDLE)),
            (26, 1, Event::Wakeup { task: SH, cpu: Some(0) }),
            (30, 0, Event::GapEnd),
            (40, 0, switch(SH, 1, IDLE)),
        ]);

        assert_eq!(task(&guest, 10).state.current(), TaskState::Unknown);
        let states = [20, 25, 26, 39].map(|time| task(&guest, 11).state.at(time));
        assert_eq!(
            states,
            [TaskState::Running { cpu: 1, syscall: None }, TaskState::Unknown, TaskState::Unknown, TaskState::Unknown]
        );
        assert_eq!(task(&guest, 11).state.current(), TaskState::Blocked { on: BlockedOn::Event, syscall: None });
        assert_eq!(guest.cpus[&0].current.at(25), GuestCpuState::Unknown);
    }
}
