//! What a guest's task really did: what its kernel says, and where that says "running", what its vCPU did meanwhile.

use super::event::Interrupt;
use super::guest::{BlockedOn, Guest, GuestTask, TaskState};
use super::history::Interval;
use super::vcpus::{Thief, Vcpu, VcpuState};
use crate::exit_reason::ExitReason;
use crate::window::Window;
use std::collections::BTreeMap;

/// What a task's time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fused {
    /// It ran for real.
    Running(Running),
    /// It ran as far as the guest and the VMM can tell: without a host-kernel layer, KVM's exits and what the host ran
    /// instead are in here too; without the VMM's, its exits as well.
    RunningOrStolen(Running),
    /// The guest's kernel had it running; KVM handled an exit.
    Kvm(Option<ExitReason>),
    /// The guest's kernel had it running; the VMM handled an exit.
    Vmm(Option<ExitReason>),
    /// The guest's kernel had it running; the host ran something else.
    Stolen(Thief),
    /// The guest's kernel had it running; its vCPU was halted, as after a `hlt` of its own.
    Halted,
    /// The guest's kernel had it running; what its vCPU did is not known.
    VcpuUnknown,
    /// It was ready to run, and its vCPU ran something else of the guest or did not get to it.
    Runnable,
    /// It was ready to run, and the host ran something else in place of the vCPU that it waited for.
    RunnableStolen(Thief),
    /// It waited.
    Blocked(BlockedOn),
    /// Not known.
    Unknown,
}

/// In what a task ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Running {
    /// In its own code.
    Task,
    /// In a system call, by its number.
    Syscall(i16),
    /// In an interrupt that came while it ran.
    Interrupt(Interrupt),
}

/// What `task` of `guest` really did in `window`, in order: without a gap, so that the lengths add up to the window's.
/// States of no length are left out, equal ones may follow each other.
pub fn over<'m>(
    task: &'m GuestTask,
    guest: &'m Guest,
    vcpus: &'m BTreeMap<u32, Vcpu>,
    window: Window,
) -> impl Iterator<Item = Interval<Fused>> + 'm {
    task.state.over(window).flat_map(move |interval| pieces(&interval, guest, vcpus))
}

/// The pieces that an interval of the guest's view is made of.
fn pieces(interval: &Interval<TaskState>, guest: &Guest, vcpus: &BTreeMap<u32, Vcpu>) -> Vec<Interval<Fused>> {
    let whole = |state| vec![Interval { begin: interval.begin, end: interval.end, state }];
    match interval.state {
        TaskState::Unknown | TaskState::Absent => whole(Fused::Unknown),
        TaskState::Blocked { on, .. } => whole(Fused::Blocked(on)),
        TaskState::Runnable { cpu, .. } => {
            let Some(vcpu) = cpu.and_then(|cpu| vcpus.get(&cpu)) else { return whole(Fused::Runnable) };
            let state = |state| match state {
                VcpuState::Stolen { by, .. } => Fused::RunnableStolen(by),
                _ => Fused::Runnable,
            };
            vcpu.state.over(interval.window()).map(|piece| with(&piece, state(piece.state))).collect()
        }
        TaskState::Running { cpu, syscall } => {
            let Some(vcpu) = vcpus.get(&cpu) else { return whole(Fused::VcpuUnknown) };
            let mut pieces = Vec::new();
            // No layer tells of the vCPU at all, as in a trace that was recovered from the guest's rings alone.
            if vcpu.state.last_change().is_none() {
                let piece = with(interval, VcpuState::Unknown);
                in_guest(&mut pieces, &piece, guest, cpu, syscall, Fused::RunningOrStolen);
                return pieces;
            }
            for piece in vcpu.state.over(interval.window()) {
                match piece.state {
                    VcpuState::Guest => in_guest(&mut pieces, &piece, guest, cpu, syscall, Fused::Running),
                    VcpuState::KvmRun => in_guest(&mut pieces, &piece, guest, cpu, syscall, Fused::RunningOrStolen),
                    other => pieces.push(with(&piece, out_of_guest(other))),
                }
            }
            pieces
        }
    }
}

/// Splits a piece in which the vCPU was in the guest by the interrupts that came.
fn in_guest(
    pieces: &mut Vec<Interval<Fused>>,
    piece: &Interval<VcpuState>,
    guest: &Guest,
    cpu: u32,
    syscall: Option<i16>,
    fused: fn(Running) -> Fused,
) {
    let of_task = syscall.map_or(Running::Task, Running::Syscall);
    match guest.cpus.get(&cpu) {
        None => pieces.push(with(piece, fused(of_task))),
        Some(cpu) => pieces.extend(cpu.interrupt.over(piece.window()).map(|part| {
            let running = part.state.map_or(of_task, Running::Interrupt);
            with(&part, fused(running))
        })),
    }
}

/// What a task that the guest's kernel has running does while its vCPU is in `state`, which is not in the guest.
const fn out_of_guest(state: VcpuState) -> Fused {
    match state {
        VcpuState::Unknown | VcpuState::Ended | VcpuState::Guest | VcpuState::KvmRun => Fused::VcpuUnknown,
        VcpuState::Kvm(reason) | VcpuState::BlockedInKvm(reason) => Fused::Kvm(reason),
        VcpuState::Vmm(reason) | VcpuState::BlockedInVmm(reason) => Fused::Vmm(reason),
        VcpuState::Stolen { by, .. } => Fused::Stolen(by),
        VcpuState::Halted => Fused::Halted,
    }
}

const fn with<A, B>(interval: &Interval<A>, state: B) -> Interval<B> {
    Interval { begin: interval.begin, end: interval.end, state }
}

/// How long `task` did what in `window`, ticks.
#[must_use]
pub fn times(task: &GuestTask, guest: &Guest, vcpus: &BTreeMap<u32, Vcpu>, window: Window) -> BTreeMap<Fused, u64> {
    let mut times = BTreeMap::new();
    for interval in over(task, guest, vcpus, window) {
        *times.entry(interval.state).or_insert(0) += interval.length();
    }
    times
}
