//! What a vCPU was doing when it could not go on: its registers and the event that was being delivered.

use kvm_bindings::{kvm_regs, kvm_sregs, kvm_vcpu_events};
use kvm_ioctls::VcpuFd;
use std::fmt;

/// Where a processor begins after a reset.
const RESET_RIP: u64 = 0xfff0;
/// Base of its code segment then.
const RESET_CS_BASE: u64 = 0xffff_0000;

/// A vCPU's state after its last exit.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultState {
    regs: kvm_regs,
    sregs: kvm_sregs,
    events: kvm_vcpu_events,
}

impl FaultState {
    /// Reads it from KVM; `None` if KVM does not give it.
    #[must_use]
    pub fn read(vcpu: &VcpuFd) -> Option<Self> {
        let (regs, sregs) = (vcpu.get_regs().ok()?, vcpu.get_sregs().ok()?);
        Some(Self { regs, sregs, events: vcpu.get_vcpu_events().unwrap_or_default() })
    }

    /// Whether this is the state after a reset and not that of the fault: after a triple fault KVM resets the vCPU
    /// where the processor (AMD's) leaves nothing of it.
    #[must_use]
    pub const fn is_reset(&self) -> bool {
        self.regs.rip == RESET_RIP && self.sregs.cs.base == RESET_CS_BASE
    }
}

impl fmt::Display for FaultState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_reset() {
            return f.write_str(
                "its registers are lost, KVM has reset it; kvm:kvm_exit, last of the host kernel's layer, has the \
                 instruction pointer and the exception",
            );
        }
        let (regs, sregs) = (&self.regs, &self.sregs);
        write!(f, "rip {:#x} rsp {:#x} rflags {:#x} cpl {}", regs.rip, regs.rsp, regs.rflags, sregs.cs.dpl)?;
        write!(f, " cr0 {:#x} cr2 {:#x} cr3 {:#x} cr4 {:#x}", sregs.cr0, sregs.cr2, sregs.cr3, sregs.cr4)?;
        write!(f, " efer {:#x} idt {:#x} gdt {:#x}", sregs.efer, sregs.idt.base, sregs.gdt.base)?;
        let (exception, interrupt) = (&self.events.exception, &self.events.interrupt);
        if exception.injected != 0 {
            write!(f, ", exception {} being delivered", exception.nr)?;
            if exception.has_error_code != 0 {
                write!(f, " (error code {:#x})", exception.error_code)?;
            }
        }
        if interrupt.injected != 0 {
            write!(f, ", interrupt {:#x} being delivered", interrupt.nr)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_shows_where_it_was_and_what_was_delivered() {
        let mut state = FaultState::default();
        state.regs.rip = 0xffff_ffff_8100_0000;
        state.sregs.cr2 = 0x7f29_ad47_1858;
        state.events.exception.injected = 1;
        state.events.exception.nr = 14;
        state.events.exception.has_error_code = 1;
        state.events.exception.error_code = 0x14;

        let text = state.to_string();

        assert!(text.starts_with("rip 0xffffffff81000000 ") && text.contains(" cr2 0x7f29ad471858 "), "{text}");
        assert!(text.ends_with(", exception 14 being delivered (error code 0x14)"), "{text}");
    }

    #[test]
    fn state_after_a_reset_is_not_taken_for_the_faults() {
        let mut state = FaultState::default();
        state.regs.rip = RESET_RIP;
        state.sregs.cs.base = RESET_CS_BASE;

        assert!(state.to_string().contains("KVM has reset it"), "{state}");
    }
}
