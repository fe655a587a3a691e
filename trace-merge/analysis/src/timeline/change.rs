//! What a timeline reports: states that have ended, and moments in which something has become another.

use super::fused::Fused;
use super::states::{CpuView, TaskIndex, TaskState};
use super::vcpu::VcpuState;
use strata_recording::window::Window;

/// A state that has ended: it lasted from `begin` up to `end`, ticks, and longer than no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// What a vCPU did.
    Vcpu {
        /// Index of the VM.
        vm: usize,
        /// The vCPU.
        vcpu: u32,
        /// When.
        window: Window,
        /// What.
        state: VcpuState,
    },
    /// What a CPU of a guest did, from all layers.
    Cpu {
        /// Index of the VM.
        vm: usize,
        /// The CPU.
        cpu: u32,
        /// When.
        window: Window,
        /// What.
        view: CpuView,
    },
    /// What a task really did.
    Task {
        /// Index of the VM.
        vm: usize,
        /// The task.
        task: TaskIndex,
        /// When.
        window: Window,
        /// What.
        state: Fused,
    },
    /// A task of a guest has another name from now on.
    TaskName {
        /// Index of the VM.
        vm: usize,
        /// The task.
        task: TaskIndex,
        /// When.
        time: u64,
    },
    /// A task of a guest is in another state from now on, as the guest's kernel sees it. Told after the times before have
    /// been.
    TaskState {
        /// Index of the VM.
        vm: usize,
        /// The task.
        task: TaskIndex,
        /// When.
        time: u64,
        /// Its state from now on.
        state: TaskState,
    },
}

/// Kind of a [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// [`Change::Vcpu`].
    Vcpu,
    /// [`Change::Cpu`].
    Cpu,
    /// [`Change::Task`].
    Task,
    /// [`Change::TaskName`].
    TaskName,
    /// [`Change::TaskState`].
    TaskState,
}

impl ChangeKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Vcpu, Self::Cpu, Self::Task, Self::TaskName, Self::TaskState];
}

impl Change {
    /// Which it is.
    #[must_use]
    pub const fn kind(&self) -> ChangeKind {
        match self {
            Self::Vcpu { .. } => ChangeKind::Vcpu,
            Self::Cpu { .. } => ChangeKind::Cpu,
            Self::Task { .. } => ChangeKind::Task,
            Self::TaskName { .. } => ChangeKind::TaskName,
            Self::TaskState { .. } => ChangeKind::TaskState,
        }
    }

    /// When the state was, or the moment of the change.
    #[must_use]
    pub const fn window(&self) -> Window {
        match *self {
            Self::Vcpu { window, .. } | Self::Cpu { window, .. } | Self::Task { window, .. } => window,
            Self::TaskName { time, .. } | Self::TaskState { time, .. } => Window { begin: time, end: time },
        }
    }

    /// The part of it that lies in `within`; `None` when none does.
    #[must_use]
    pub fn within(self, within: &Window) -> Option<Self> {
        let mut part = self;
        match &mut part {
            Self::Vcpu { window, .. } | Self::Cpu { window, .. } | Self::Task { window, .. } => {
                *window = window.intersection(within)?;
            }
            Self::TaskName { time, .. } | Self::TaskState { time, .. } => {
                if !(within.begin..within.end).contains(time) {
                    return None;
                }
            }
        }
        Some(part)
    }
}

/// The changes that the last record or gap brought about, of the kinds that anybody wants.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    changes: Vec<Change>,
    /// By kind: whether nobody wants it.
    unwanted: [bool; ChangeKind::ALL.len()],
}

impl Changes {
    pub(super) fn all(&self) -> &[Change] {
        &self.changes
    }

    pub(super) fn report_only(&mut self, wanted: impl Fn(ChangeKind) -> bool) {
        self.unwanted = ChangeKind::ALL.map(|kind| !wanted(kind));
    }

    #[inline]
    pub(super) const fn wants(&self, kind: ChangeKind) -> bool {
        !self.unwanted[kind as usize]
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.changes.clear();
    }

    /// Adds the end of a state that lasted for `window`, if that is some time.
    #[inline]
    pub(super) fn push(&mut self, kind: ChangeKind, window: Window, make: impl FnOnce() -> Change) {
        if window.begin < window.end {
            self.push_moment(kind, make);
        }
    }

    /// Adds a change that happened in a moment.
    #[inline]
    pub(super) fn push_moment(&mut self, kind: ChangeKind, make: impl FnOnce() -> Change) {
        if self.wants(kind) {
            self.changes.push(make());
        }
    }
}
