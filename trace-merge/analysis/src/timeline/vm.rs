//! A virtual machine: its vCPUs and its guest, and what becomes of their states with an event.

use super::by_number::ByNumber;
use super::change::{Change, ChangeKind, Changes};
use super::fused;
use super::guest::Guest;
use super::states::{CpuView, Current, TaskIndex, TaskState};
use super::vcpu::{Vcpu, VcpuState};
use std::collections::BTreeSet;
use strata_recording::window::Window;

/// A virtual machine at the moment that the timeline has come to.
#[derive(Clone, Debug)]
pub struct Vm {
    /// Name.
    pub name: String,
    /// Index of its host.
    pub host: usize,
    /// Its vCPUs.
    pub vcpus: ByNumber<Vcpu>,
    /// Its guest.
    pub guest: Guest,
    /// Whether KVM's events tell when vCPUs are in the guest; otherwise only the VMM's do.
    pub kvm_reports: bool,
    /// Whether the host's scheduler tells what ran instead.
    pub scheduler_reports: bool,
    /// First and last moment of the records of its guest's kernel, in the whole recording; `None` when there are none.
    pub kernel_span: Option<Window>,
    /// Whether any layer tells of its vCPUs.
    pub vcpus_are_recorded: bool,
    /// CPUs of its guest that never began to record.
    pub(super) never_joined: BTreeSet<u32>,
    /// Whether KVM's returns to the VMM are recorded.
    pub(super) returns_are_recorded: bool,
}

impl Vm {
    /// Tells what changed of the guest with an event of its `cpu`, at `time`, if it is that of the VM at `index`.
    pub(super) fn settle_guest(&mut self, changes: &mut Changes, (time, index): (u64, usize), cpu: u32) {
        if self.guest.cpu(cpu).is_none_or(|cpu| !cpu.is_settled) {
            self.settle_cpu(changes, (time, index), cpu, None);
        }
        let mut place = 0;
        while let Some(&task) = self.guest.touched.get(place) {
            self.settle_task(changes, (time, index), task, None);
            place += 1;
        }
        for &task in &self.guest.touched {
            let Some(state) = self.guest.tasks.get_mut(task) else { continue };
            if std::mem::take(&mut state.renamed) {
                changes.push_moment(ChangeKind::TaskName, || Change::TaskName { vm: index, task, time });
            }
            if changes.wants(ChangeKind::TaskState) && state.reported != state.state {
                state.reported = state.state;
                let state = state.state;
                changes.push_moment(ChangeKind::TaskState, || Change::TaskState { vm: index, task, time, state });
            }
        }
    }

    /// Tells what a CPU of the guest did until now, if it does something else now, and so for the tasks on it. `was` is what
    /// its vCPU did until now, where that has just ended.
    pub(super) fn settle_cpu(
        &mut self,
        changes: &mut Changes,
        (time, index): (u64, usize),
        cpu: u32,
        was: Option<VcpuState>,
    ) {
        let vcpu = self.vcpus.get(cpu).map_or(VcpuState::Unknown, |vcpu| vcpu.state);
        let state = self.guest.cpu_mut(cpu);
        state.is_settled = true;
        let now = CpuView { vcpu, current: state.current, interrupt: state.interrupt() };
        if now == state.view {
            return;
        }
        let window = Window { begin: state.since, end: time };
        let before = std::mem::replace(&mut state.view, now);
        state.since = time.max(state.since);
        changes.push(ChangeKind::Cpu, window, || {
            let view = CpuView { vcpu: was.unwrap_or(before.vcpu), ..before };
            Change::Cpu { vm: index, cpu, window, view }
        });
        let stolen = |view: &CpuView| matches!(view.vcpu, VcpuState::Stolen { .. });
        if (stolen(&before) || stolen(&now)) && before.vcpu != now.vcpu {
            let mut place = 0;
            while let Some(&task) = self.guest.cpu(cpu).and_then(|cpu| cpu.queue.get(place)) {
                self.settle_task(changes, (time, index), task, was);
                place += 1;
            }
        }
        if let Current::Task(task) = now.current {
            self.settle_task(changes, (time, index), task, was);
        }
    }

    /// Tells what a task did until now, if it does something else now. `was` is what the vCPU did until now that it runs on
    /// or waits for, where that has just ended.
    #[inline(always)]
    fn settle_task(
        &mut self,
        changes: &mut Changes,
        (time, index): (u64, usize),
        task: TaskIndex,
        was: Option<VcpuState>,
    ) {
        let guest = &mut self.guest;
        let Some(state) = guest.tasks.get_mut(task) else { return };
        let view = match state.state {
            TaskState::Running { cpu, .. } | TaskState::Runnable { cpu: Some(cpu), .. } => {
                self.vcpus.get(cpu).and_then(|_| guest.cpus.get(cpu)).map(|cpu| &cpu.view)
            }
            _ => None,
        };
        let now = fused::fuse(state.state, view, self.vcpus_are_recorded);
        if now != state.fused {
            let window = Window { begin: state.since, end: time };
            let before = std::mem::replace(&mut state.fused, now);
            state.since = time.max(state.since);
            changes.push(ChangeKind::Task, window, || Change::Task {
                vm: index,
                task,
                window,
                state: before.while_vcpu(was),
            });
        }
    }
}
