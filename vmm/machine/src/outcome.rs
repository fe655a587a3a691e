//! How a run ended.

pub(crate) mod fault_state;
pub(crate) mod run_end;

use fault_state::FaultState;
use std::fmt;
use std::thread::Thread;
use strata_observer::ControlEvent;
use vmm_sys_util::errno;

/// Why a run failed on the host's side.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// `KVM_RUN` failed.
    #[error("KVM cannot run vCPU {vcpu}")]
    Kvm {
        /// Index of the vCPU.
        vcpu: u32,
        /// KVM's answer.
        #[source]
        source: errno::Error,
    },
    /// `KVM_EXIT_FAIL_ENTRY`: the state of the vCPU is not one that the processor runs.
    #[error("the processor refused to enter the guest on vCPU {vcpu} (reason {hardware_reason:#x})")]
    EntryFailed {
        /// Index of the vCPU.
        vcpu: u32,
        /// The processor's reason, as KVM passes it on.
        hardware_reason: u64,
    },
    /// An exit for which this machine has no device.
    #[error("vCPU {vcpu} stopped for a reason that this machine does not handle (KVM exit {reason})")]
    Unexpected {
        /// Index of the vCPU.
        vcpu: u32,
        /// Reason of the exit, `KVM_EXIT_*`.
        reason: u32,
    },
    /// `KVM_EXIT_INTERNAL_ERROR`, other than an instruction that KVM cannot emulate.
    #[error("KVM stopped vCPU {vcpu} with an internal error ({suberror})")]
    Internal {
        /// Index of the vCPU.
        vcpu: u32,
        /// `KVM_INTERNAL_ERROR_*`.
        suberror: u32,
    },
    /// The thread of a vCPU or of a disk panicked: a bug.
    #[error("the thread '{thread}' panicked")]
    ThreadPanicked { thread: String },
    /// Waiting for events of the devices failed.
    #[error("the event loop failed")]
    EventLoop(#[source] event_manager::Error),
}

impl RunError {
    /// That `thread` panicked.
    #[must_use]
    pub fn panicked(thread: &Thread) -> Self {
        Self::ThreadPanicked { thread: thread.name().unwrap_or("?").into() }
    }
}

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// The guest switched its power off.
    PowerOff,
    /// The guest asked for a reset.
    Reboot,
    /// The guest said that its kernel panicked, and then ended in whatever way, or was stopped.
    Panic,
    /// A fault in the guest while it handled a double fault.
    TripleFault {
        vcpu: u32,
        /// Its state, if KVM gives it.
        state: Option<Box<FaultState>>,
    },
    /// KVM met an instruction that it had to emulate and could not.
    EmulationFailure {
        vcpu: u32,
        /// Its instruction pointer.
        rip: u64,
        /// The instruction's bytes, as far as KVM gives them.
        instruction: Vec<u8>,
    },
    /// The host asked for it.
    Stopped,
    /// The host could not go on.
    Failed(RunError),
}

impl Outcome {
    /// The event by which an observer learns of the end of the run.
    #[must_use]
    pub fn control_event(&self) -> ControlEvent {
        match self {
            Self::PowerOff => ControlEvent::PoweredOff,
            Self::Reboot => ControlEvent::Rebooted,
            Self::Panic => ControlEvent::Panicked,
            Self::TripleFault { .. } => ControlEvent::TripleFaulted,
            Self::EmulationFailure { .. } => ControlEvent::EmulationFailed,
            Self::Stopped => ControlEvent::Stopped,
            Self::Failed(_) => ControlEvent::Failed,
        }
    }

    /// The outcome of a guest that had said before that its kernel panicked: what follows a panic is its end.
    #[must_use]
    pub fn after_panic(self) -> Self {
        match self {
            Self::PowerOff | Self::Reboot | Self::TripleFault { .. } | Self::Stopped => Self::Panic,
            other => other,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerOff => f.write_str("the guest powered off"),
            Self::Reboot => f.write_str("the guest asked for a reboot"),
            Self::Panic => f.write_str("the guest's kernel panicked"),
            Self::TripleFault { vcpu, state: None } => write!(f, "triple fault on vCPU {vcpu}"),
            Self::TripleFault { vcpu, state: Some(state) } => write!(f, "triple fault on vCPU {vcpu}: {state}"),
            Self::EmulationFailure { vcpu, rip, instruction } => {
                write!(f, "KVM cannot emulate an instruction of the guest on vCPU {vcpu} at {rip:#x}")?;
                if !instruction.is_empty() {
                    f.write_str(" (bytes")?;
                    instruction.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
                    f.write_str(")")?;
                }
                Ok(())
            }
            Self::Stopped => f.write_str("stopped"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reboot_after_a_panic_is_a_panic() {
        assert!(matches!(Outcome::Reboot.after_panic(), Outcome::Panic));
    }

    #[test]
    fn failure_of_the_host_stays_one_after_a_panic() {
        let error = RunError::ThreadPanicked { thread: "vcpu0".into() };
        assert!(matches!(Outcome::Failed(error).after_panic(), Outcome::Failed(_)));
    }

    #[test]
    fn triple_fault_shows_the_vcpus_state() {
        let state = Some(Box::new(FaultState::default()));
        let outcome = Outcome::TripleFault { vcpu: 1, state };
        assert!(outcome.to_string().starts_with("triple fault on vCPU 1: rip 0x0 "), "{outcome}");
    }

    #[test]
    fn emulation_failure_shows_place_and_bytes() {
        let outcome = Outcome::EmulationFailure { vcpu: 1, rip: 0x20_0000, instruction: vec![0x0f, 0xc7] };
        assert_eq!(
            outcome.to_string(),
            "KVM cannot emulate an instruction of the guest on vCPU 1 at 0x200000 (bytes 0f c7)"
        );
    }
}
