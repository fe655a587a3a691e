//! What states, and those who cause them, are called in reports.

use super::harmless;
use crate::exit_reason::ExitReason;
use crate::state::event::{Access, Interrupt};
use crate::state::fused::Running;
use crate::state::guest::{BlockedOn, GuestTask};
use crate::state::host::Host;
use crate::state::vcpus::Thief;
use crate::syscall_names;

/// Why a vCPU left the guest.
pub(super) fn reason(reason: Option<ExitReason>) -> String {
    reason.map_or_else(|| "before the first entry".into(), |reason| reason.name().into_owned())
}

/// What the host ran in place of a vCPU.
pub(super) fn thief(host: Option<&Host>, thief: Thief) -> String {
    match thief {
        Thief::Thread(tid) => {
            let name = host.map_or_else(|| tid.to_string(), |host| host.thread_name(tid));
            format!("{name}/{tid}")
        }
        Thief::Idle => "nothing: the CPU was idle and had yet to begin".into(),
        Thief::Unknown => "not known".into(),
    }
}

/// A task of a guest.
pub(super) fn task(task: &GuestTask) -> String {
    format!("{}/{}", harmless(&task.name()), task.tid)
}

/// What a task waits for.
pub(super) const fn blocked_on(on: BlockedOn) -> &'static str {
    match on {
        BlockedOn::Io => "io",
        BlockedOn::Uninterruptible => "uninterruptible",
        BlockedOn::Lock => "lock",
        BlockedOn::Futex => "futex",
        BlockedOn::Sleep => "sleep",
        BlockedOn::Event => "event",
        BlockedOn::Stopped => "stopped",
    }
}

/// A system call.
pub(super) fn syscall(number: i16) -> String {
    syscall_names::name(number.into()).map_or_else(|| format!("syscall {number}"), Into::into)
}

/// An interrupt.
pub(super) fn interrupt(interrupt: Interrupt) -> String {
    match interrupt {
        Interrupt::Irq(number) => format!("irq {number}"),
        Interrupt::Softirq(vector) => {
            let name = usize::try_from(vector).ok().and_then(|vector| SOFTIRQS.get(vector));
            format!("softirq {}", name.map_or_else(|| vector.to_string(), |&name| name.into()))
        }
        Interrupt::Vector(vector) => format!("vector {vector}"),
    }
}

/// Names of the soft interrupts, by their vectors (`linux/interrupt.h`).
const SOFTIRQS: [&str; 10] =
    ["hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu"];

/// In what a task ran; `None` for its own code.
pub(super) fn running(running: Running) -> Option<String> {
    match running {
        Running::Task => None,
        Running::Syscall(number) => Some(syscall(number)),
        Running::Interrupt(of) => Some(interrupt(of)),
    }
}

/// What was accessed in the VMM.
pub(super) fn access(access: Access) -> String {
    match access {
        Access::Port(port) => format!("port {port:#x}"),
        Access::Page(address) => format!("mmio {address:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_and_system_calls_are_named_where_they_have_names() {
        assert_eq!(interrupt(Interrupt::Softirq(9)), "softirq rcu");
        assert_eq!(interrupt(Interrupt::Softirq(-1)), "softirq -1");
        assert_eq!((syscall(1), syscall(-1)), ("write".into(), "syscall -1".into()));
    }

    #[test]
    fn unknown_thief_and_idle_cpu_are_said() {
        assert_eq!(thief(None, Thief::Thread(7)), "7/7");
        assert!(thief(None, Thief::Idle).contains("idle"));
    }
}
