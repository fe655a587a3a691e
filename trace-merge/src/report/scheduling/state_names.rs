//! What states, and those who cause them, are called in reports.

use strata_analysis::event::{Access, Interrupt};
use strata_analysis::exit_reason::ExitReason;
use strata_analysis::names;
use strata_analysis::timeline::fused::Running;
use strata_analysis::timeline::guest::GuestTask;
use strata_analysis::timeline::host::Host;
use strata_analysis::timeline::states::BlockedOn;
use strata_analysis::timeline::vcpu::Preemptor;
use strata_recording::text::terminal::harmless;

/// What a CPU of the host runs that is idle while a vCPU's thread has been woken for it.
pub const IDLE_HOST_CPU: &str = "nothing: the CPU was idle and had yet to begin";

/// The same where the thread was in that CPU's queue, and was passed over.
pub const NOT_ALLOWED: &str = "nothing: the CPU was idle, and did not run it (a CPU limit)";

/// The same where the CPU was idle for longer than it takes to begin.
pub const IDLE_FOR_LONG: &str = "nothing: the CPU was idle for long (a CPU limit, or why is not recorded)";

/// Who it is that no record tells.
const NOT_KNOWN: &str = "not known";

/// Why a vCPU left the guest.
pub fn reason(reason: Option<ExitReason>) -> String {
    reason.map_or_else(|| "before the first entry".into(), |reason| reason.name().into_owned())
}

/// What the host ran in place of a vCPU.
pub fn preemptor(host: Option<&Host>, preemptor: Preemptor) -> String {
    match preemptor {
        Preemptor::Thread(thread) => format!("{}/{}", preemptor_name(host, preemptor), thread.tid),
        Preemptor::Idle | Preemptor::NotAllowed | Preemptor::IdleForLong | Preemptor::Unknown => {
            preemptor_name(host, preemptor)
        }
    }
}

/// The same without the number that tells threads of one name apart.
pub fn preemptor_name(host: Option<&Host>, preemptor: Preemptor) -> String {
    match preemptor {
        Preemptor::Thread(thread) => host.map_or_else(|| thread.tid.to_string(), |host| host.thread_name(thread)),
        Preemptor::Idle => IDLE_HOST_CPU.into(),
        Preemptor::NotAllowed => NOT_ALLOWED.into(),
        Preemptor::IdleForLong => IDLE_FOR_LONG.into(),
        Preemptor::Unknown => NOT_KNOWN.into(),
    }
}

/// Whether what kept a vCPU from running was no thread, but that it was not allowed to run, or may not have been.
pub const fn is_limit(preemptor: Preemptor) -> bool {
    matches!(preemptor, Preemptor::NotAllowed | Preemptor::IdleForLong)
}

/// Whether what [`preemptor`] called so is a thread.
pub fn is_thread(preemptor: &str) -> bool {
    ![IDLE_HOST_CPU, NOT_ALLOWED, IDLE_FOR_LONG, NOT_KNOWN].contains(&preemptor)
}

/// A task of a guest.
pub fn task(task: &GuestTask) -> String {
    named(task, &task.comm)
}

/// A task of a guest, by the name that it had before its last one.
pub fn task_formerly(task: &GuestTask) -> String {
    named(task, &task.former)
}

fn named(task: &GuestTask, comm: &[u8]) -> String {
    format!("{}/{}", harmless(&String::from_utf8_lossy(comm)), task.tid)
}

/// What a task waits for.
pub const fn blocked_on(on: BlockedOn) -> &'static str {
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
pub fn syscall(number: i16) -> String {
    let number = names::syscall::of_short(number);
    names::syscall::shown(number).map_or_else(|| format!("syscall {}", names::syscall::abi(number).1), Into::into)
}

/// An interrupt.
pub fn interrupt(interrupt: Interrupt) -> String {
    match interrupt {
        Interrupt::Irq(number) => format!("irq {number}"),
        Interrupt::Softirq(vector) => match names::softirq::name(vector.into()) {
            Some(name) => format!("softirq {name}"),
            None => format!("softirq {vector}"),
        },
        Interrupt::Vector(vector) => match names::vector::name(vector.into()) {
            Some(name) => format!("vector {name}"),
            None => format!("vector {vector}"),
        },
    }
}

/// In what a task ran; `None` for its own code.
pub fn running(running: Running) -> Option<String> {
    match running {
        Running::Task => None,
        Running::Syscall(number) => Some(syscall(number)),
        Running::Interrupt(of) => Some(interrupt(of)),
    }
}

/// What was accessed in the VMM.
pub fn access(access: Access) -> String {
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
    fn idle_cpu_and_unknown_preemptor_are_reported() {
        assert!(preemptor(None, Preemptor::Idle).contains("idle"));
        assert_eq!(preemptor(None, Preemptor::Unknown), "not known");
        let limits = [Preemptor::NotAllowed, Preemptor::IdleForLong].map(|by| preemptor(None, by));
        assert!(limits.iter().all(|name| name.contains("a CPU limit") && !name.contains("had yet")), "{limits:?}");
    }
}
