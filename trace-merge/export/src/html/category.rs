//! What slices of time are coloured by: one set of categories for CPUs, vCPUs and tasks, so that a colour means the same
//! in each row.

use strata_analysis::timeline::Vm;
use strata_analysis::timeline::fused::{Fused, Running};
use strata_analysis::timeline::guest::GuestTask;
use strata_analysis::timeline::host::Host;
use strata_analysis::timeline::states::{BlockedOn, CpuView, Current};
use strata_analysis::timeline::vcpu::{Preemptor, VcpuState};
use trace_merge::report::scheduling::{state_names, tasks, vcpus};

/// What a slice of time is spent on. The page knows each by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(super) enum Category {
    NotRecorded,
    Running,
    Syscall,
    Interrupt,
    Kvm,
    Vmm,
    Stolen,
    Runnable,
    RunnableStolen,
    Io,
    Lock,
    Sleep,
    Waiting,
    Idle,
    OtherThread,
    RunningOrStolen,
    NotAllowed,
}

impl Category {
    /// All of them, in the order of their numbers.
    pub(super) const ALL: [Self; 17] = [
        Self::NotRecorded,
        Self::Running,
        Self::Syscall,
        Self::Interrupt,
        Self::Kvm,
        Self::Vmm,
        Self::Stolen,
        Self::Runnable,
        Self::RunnableStolen,
        Self::Io,
        Self::Lock,
        Self::Sleep,
        Self::Waiting,
        Self::Idle,
        Self::OtherThread,
        Self::RunningOrStolen,
        Self::NotAllowed,
    ];

    /// What stands for it in the page's legend and style.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NotRecorded => "not recorded",
            Self::Running => "running in the guest",
            Self::Syscall => "system call",
            Self::Interrupt => "interrupt",
            Self::Kvm => "exit, in KVM",
            Self::Vmm => "exit, in the VMM",
            Self::Stolen => "stolen by the host",
            Self::Runnable => "ready, waits for its CPU",
            Self::RunnableStolen => "ready, its vCPU stolen",
            Self::Io => "waits for I/O",
            Self::Lock => "waits for a lock",
            Self::Sleep => "sleeps",
            Self::Waiting => "waits",
            Self::Idle => "idle",
            Self::OtherThread => "other host thread",
            Self::RunningOrStolen => "running, or stolen: no host layer",
            Self::NotAllowed => "ready, not allowed to run: a CPU limit, say",
        }
    }
}

/// What a slice is called that the records do not tell.
pub(super) const NOT_RECORDED: &str = "not recorded";

fn joined((name, detail): (&'static str, Option<String>)) -> String {
    match detail {
        Some(detail) => format!("{}: {detail}", name.replace('_', " ")),
        None => name.replace('_', " "),
    }
}

/// What a vCPU in `state` is drawn as; `None` for one that has ended.
pub(super) fn of_vcpu(state: VcpuState, host: Option<&Host>) -> Option<(Category, String)> {
    let category = match state {
        VcpuState::Unknown => return Some((Category::NotRecorded, NOT_RECORDED.into())),
        VcpuState::Ended => return None,
        VcpuState::Guest => Category::Running,
        VcpuState::KvmRun => Category::RunningOrStolen,
        VcpuState::Kvm(_) => Category::Kvm,
        VcpuState::Vmm(_) => Category::Vmm,
        VcpuState::Stolen { by, .. } => kept_by(by, Category::Stolen),
        VcpuState::Halted => Category::Idle,
        VcpuState::BlockedInKvm(_) | VcpuState::BlockedInVmm(_) => Category::Waiting,
    };
    Some((category, joined(vcpus::name(state, host))))
}

/// What is drawn of a vCPU that does not run because of `by`: `stolen` where that is a thread.
const fn kept_by(by: Preemptor, stolen: Category) -> Category {
    match by {
        Preemptor::NotAllowed | Preemptor::IdleForLong => Category::NotAllowed,
        Preemptor::Idle => Category::Runnable,
        Preemptor::Thread(_) | Preemptor::Unknown => stolen,
    }
}

/// What a guest's task in `state` is drawn as.
pub(super) fn of_task(state: Fused, host: Option<&Host>) -> (Category, String) {
    let category = match state {
        Fused::Unknown | Fused::VcpuUnknown => return (Category::NotRecorded, NOT_RECORDED.into()),
        Fused::Running(running) => of_running(running),
        Fused::RunningOrStolen(Running::Interrupt(_)) => Category::Interrupt,
        Fused::RunningOrStolen(_) => Category::RunningOrStolen,
        Fused::Kvm(_) => Category::Kvm,
        Fused::Vmm(_) => Category::Vmm,
        Fused::NotAllowed => Category::NotAllowed,
        Fused::Stolen(by) => kept_by(by, Category::Stolen),
        Fused::RunnableStolen(by) => kept_by(by, Category::RunnableStolen),
        Fused::Halted => Category::Idle,
        Fused::Runnable => Category::Runnable,
        Fused::Blocked(BlockedOn::Io) => Category::Io,
        Fused::Blocked(BlockedOn::Lock | BlockedOn::Futex) => Category::Lock,
        Fused::Blocked(BlockedOn::Sleep) => Category::Sleep,
        Fused::Blocked(BlockedOn::Uninterruptible | BlockedOn::Event | BlockedOn::Stopped) => Category::Waiting,
    };
    (category, joined(tasks::name(state, host)))
}

const fn of_running(running: Running) -> Category {
    match running {
        Running::Task => Category::Running,
        Running::Syscall(_) => Category::Syscall,
        Running::Interrupt(_) => Category::Interrupt,
    }
}

/// What a CPU of the guest of `vm` is drawn as, where tasks are called as `name_of` says.
pub(super) fn of_guest_cpu(
    view: &CpuView,
    vm: &Vm,
    host: Option<&Host>,
    name_of: impl FnOnce(&GuestTask) -> String,
) -> (Category, String) {
    let whose = match view.current {
        Current::Unknown => None,
        Current::Idle => Some("idle".into()),
        Current::Task(task) => vm.guest.task(task).map(name_of),
    };
    let is_reported = match view.vcpu {
        // A recording without any layer that tells of vCPUs has the guest's own view.
        VcpuState::Unknown => !vm.vcpus_are_recorded,
        VcpuState::Ended => false,
        _ => true,
    };
    if !is_reported {
        return (Category::NotRecorded, NOT_RECORDED.into());
    }
    if let VcpuState::Guest | VcpuState::KvmRun | VcpuState::Unknown = view.vcpu {
        return match (view.interrupt, view.current, whose) {
            (Some(interrupt), _, Some(whose)) => {
                (Category::Interrupt, format!("{}, on {whose}", state_names::interrupt(interrupt)))
            }
            (Some(interrupt), ..) => (Category::Interrupt, state_names::interrupt(interrupt)),
            (None, Current::Idle, _) => (Category::Idle, "idle".into()),
            (None, _, Some(whose)) if view.vcpu == VcpuState::Guest => (Category::Running, whose),
            (None, _, Some(whose)) => (Category::RunningOrStolen, whose),
            (None, _, None) => (Category::NotRecorded, NOT_RECORDED.into()),
        };
    }
    let (category, state) = of_vcpu(view.vcpu, host).unwrap_or_else(|| (Category::NotRecorded, NOT_RECORDED.into()));
    match whose {
        Some(whose) if category != Category::Idle => (category, format!("{state}, of {whose}")),
        _ => (category, state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_cpu_that_has_yet_to_begin_steals_nothing() {
        let stolen = |by| of_vcpu(VcpuState::Stolen { by, woken: true }, None).map(|(category, _)| category);

        let drawn = [Preemptor::Idle, Preemptor::IdleForLong, Preemptor::NotAllowed, Preemptor::Unknown].map(stolen);

        let expected = [Category::Runnable, Category::NotAllowed, Category::NotAllowed, Category::Stolen];
        assert_eq!(drawn, expected.map(Some));
        assert_eq!(of_task(Fused::RunnableStolen(Preemptor::Idle), None).0, Category::Runnable);
    }
}
