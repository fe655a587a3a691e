//! What a guest's task really does: what its kernel says, and where that says "running", what its vCPU does meanwhile.

use super::states::{BlockedOn, CpuView, TaskState};
use super::vcpu::{Preemptor, VcpuState, number_of};
use crate::event::Interrupt;
use crate::exit_reason::ExitReason;
use std::hash::{Hash, Hasher};

/// What a task's time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fused {
    /// It runs for real.
    Running(Running),
    /// It runs as far as the guest and the VMM can tell: without a host-kernel layer, KVM's exits and what the host runs
    /// instead are in here too; without the VMM's, its exits as well.
    RunningOrStolen(Running),
    /// The guest's kernel has it running; KVM handles an exit.
    Kvm(Option<ExitReason>),
    /// The guest's kernel has it running; the VMM handles an exit.
    Vmm(Option<ExitReason>),
    /// The guest's kernel has it running; the host runs something else.
    Stolen(Preemptor),
    /// The guest's kernel has it running; its vCPU is halted, as after a `hlt` of its own.
    Halted,
    /// The guest's kernel has it running; what its vCPU does is not known.
    VcpuUnknown,
    /// It is ready to run, and its vCPU runs something else of the guest or does not get to it.
    Runnable,
    /// It is ready to run, and its CPU is idle: it is not allowed to run. A limit of its control group, say.
    NotAllowed,
    /// It is ready to run, and the host runs something else in place of the vCPU that it waits for.
    RunnableStolen(Preemptor),
    /// It waits.
    Blocked(BlockedOn),
    /// Not known.
    Unknown,
}

/// In what a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Running {
    /// In its own code.
    Task,
    /// In a system call, by its [`short`](crate::names::syscall::short) number.
    Syscall(i16),
    /// In an interrupt that came while it ran.
    Interrupt(Interrupt),
}

/// One number, because what the library writes for each variant and field takes longer than to add up the time that a
/// state has lasted. States that differ may share it.
impl Hash for Fused {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let of_running = |running| match running {
            Running::Task => u64::MAX,
            Running::Syscall(number) => u64::from(number.cast_unsigned()),
            Running::Interrupt(Interrupt::Irq(number)) => u64::from(number.cast_unsigned()) | 1 << 32,
            Running::Interrupt(Interrupt::Softirq(number)) => u64::from(number.cast_unsigned()) | 2 << 32,
            Running::Interrupt(Interrupt::Vector(number)) => u64::from(number.cast_unsigned()) | 3 << 32,
        };
        let (variant, of_variant) = match *self {
            Self::Running(running) => (0, of_running(running)),
            Self::RunningOrStolen(running) => (1, of_running(running)),
            Self::Kvm(reason) => (2, number_of(reason)),
            Self::Vmm(reason) => (3, number_of(reason)),
            Self::Stolen(by) => (4, by.number()),
            Self::Halted => (5, 0),
            Self::VcpuUnknown => (6, 0),
            Self::Runnable => (7, 0),
            Self::NotAllowed => (8, 0),
            Self::RunnableStolen(by) => (9, by.number()),
            Self::Blocked(on) => (10, on as u64),
            Self::Unknown => (11, 0),
        };
        hasher.write_u64(of_variant << 4 | variant);
    }
}

impl Fused {
    /// What it was, where its vCPU was in `vcpu` for as long as that lasted.
    pub(super) const fn while_vcpu(self, vcpu: Option<VcpuState>) -> Self {
        match (self, vcpu) {
            (Self::Stolen(Preemptor::Idle), Some(VcpuState::Stolen { by, .. })) => Self::Stolen(by),
            (Self::RunnableStolen(Preemptor::Idle), Some(VcpuState::Stolen { by, .. })) => Self::RunnableStolen(by),
            (state, _) => state,
        }
    }
}

/// What a task in `state` really does. `view` is what the CPU does that it runs on or waits for; `vcpus_are_recorded` says
/// whether any layer tells of vCPUs: a trace that was recovered from the guest's rings alone has none.
pub(super) fn fuse(state: TaskState, view: Option<&CpuView>, vcpus_are_recorded: bool) -> Fused {
    match state {
        TaskState::Unknown | TaskState::Absent => Fused::Unknown,
        TaskState::Blocked { on, .. } => Fused::Blocked(on),
        TaskState::Runnable { passed_over, .. } => match view.map(|view| view.vcpu) {
            Some(VcpuState::Stolen { by, .. }) => Fused::RunnableStolen(by),
            _ if passed_over => Fused::NotAllowed,
            _ => Fused::Runnable,
        },
        TaskState::Running { syscall, .. } => {
            let Some(view) = view else { return Fused::VcpuUnknown };
            let of_task = syscall.map_or(Running::Task, Running::Syscall);
            let running = view.interrupt.map_or(of_task, Running::Interrupt);
            match view.vcpu {
                VcpuState::Unknown if !vcpus_are_recorded => Fused::RunningOrStolen(running),
                VcpuState::Guest => Fused::Running(running),
                VcpuState::KvmRun => Fused::RunningOrStolen(running),
                VcpuState::Unknown | VcpuState::Ended => Fused::VcpuUnknown,
                VcpuState::Kvm(reason) | VcpuState::BlockedInKvm(reason) => Fused::Kvm(reason),
                VcpuState::Vmm(reason) | VcpuState::BlockedInVmm(reason) => Fused::Vmm(reason),
                VcpuState::Stolen { by, .. } => Fused::Stolen(by),
                VcpuState::Halted => Fused::Halted,
            }
        }
    }
}
