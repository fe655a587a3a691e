//! What a guest's kernel tells of its CPUs and tasks: whose turn it is, and what each of them does.

use super::vcpu::VcpuState;
use crate::event::Interrupt;

/// A task of a guest: index into [`Guest::tasks`](super::guest::Guest::tasks). A task that gets the thread id of one that
/// has ended is another one.
pub type TaskIndex = usize;

/// Whose turn it is on a guest's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Current {
    /// Not known.
    Unknown,
    /// The CPU's idle task.
    Idle,
    /// A task.
    Task(TaskIndex),
}

/// Whose turn it is on a CPU, distinct from all others: each CPU has an idle task of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runner {
    /// The idle task of a CPU.
    Idle(u32),
    /// A task.
    Task(TaskIndex),
}

impl Current {
    /// Who that is on `cpu`; `None` when it is not known.
    #[must_use]
    pub const fn runner(self, cpu: u32) -> Option<Runner> {
        match self {
            Self::Unknown => None,
            Self::Idle => Some(Runner::Idle(cpu)),
            Self::Task(task) => Some(Runner::Task(task)),
        }
    }
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
        /// The system call that it is in, by its [`short`](crate::names::syscall::short) number.
        syscall: Option<i16>,
    },
    /// It is ready to run, and something else does.
    Runnable {
        /// The CPU in whose queue it waits, where that is known.
        cpu: Option<u32>,
        /// Whether it was woken or is new, and not preempted.
        woken: bool,
        /// Whether that CPU has gone idle with the task in its queue, so that it is not allowed to run.
        passed_over: bool,
    },
    /// It waits.
    Blocked {
        /// For what.
        on: BlockedOn,
        /// The system call that it is in, by its [`short`](crate::names::syscall::short) number.
        syscall: Option<i16>,
    },
    /// It does not exist yet, or no longer.
    Absent,
}

impl TaskState {
    /// The CPU that it runs on or is ready for, where that is known.
    #[must_use]
    pub const fn cpu(self) -> Option<u32> {
        match self {
            Self::Running { cpu, .. } => Some(cpu),
            Self::Runnable { cpu, .. } => cpu,
            Self::Unknown | Self::Blocked { .. } | Self::Absent => None,
        }
    }
}

/// What a CPU of a guest does, from all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuView {
    /// What its vCPU does.
    pub vcpu: VcpuState,
    /// Whose turn it is in the guest.
    pub current: Current,
    /// The interrupt that it handles, the innermost of several; `None` for none.
    pub interrupt: Option<Interrupt>,
}
