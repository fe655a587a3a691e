//! What a vCPU's exit means: a function of the exit and the bus, without KVM, so that it can be tested.

use crate::devices::power::GuestRequest;
use kvm_bindings as kvm;
use kvm_ioctls::VcpuExit;
use strata_observer::Observer;

/// Everything a guest reaches by ports and by memory without RAM behind it.
pub trait Bus {
    /// Reads from a port. More than one byte may be one wide access or a string of narrow ones.
    fn port_read(&self, port: u16, data: &mut [u8]);
    /// Writes to a port, likewise, and says what the guest asks for by it.
    fn port_write(&self, port: u16, data: &[u8]) -> Option<GuestRequest>;
    /// Reads from memory.
    fn mmio_read(&self, address: u64, data: &mut [u8]);
    /// Writes to memory.
    fn mmio_write(&self, address: u64, data: &[u8]);
}

/// What to do after an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAction {
    /// Enter the guest again.
    Continue,
    /// The guest switched its power off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest's kernel panicked; it goes on for now.
    Panicked,
    /// The guest's kernel panicked, and its crash kernel goes on.
    CrashKernel,
    /// Triple fault.
    TripleFault,
    /// KVM could not go on; it has left the details in the vCPU's run page.
    InternalError,
    /// The processor refused to enter the guest.
    EntryFailed {
        /// The hardware's reason.
        hardware_reason: u64,
    },
    /// An exit that this machine never asked for.
    Unexpected {
        /// KVM's exit reason.
        reason: u32,
    },
}

/// KVM's number (`KVM_EXIT_*`) of an exit.
#[must_use]
pub fn reason(exit: &VcpuExit<'_>) -> u32 {
    match exit {
        VcpuExit::Unknown => kvm::KVM_EXIT_UNKNOWN,
        VcpuExit::Exception => kvm::KVM_EXIT_EXCEPTION,
        VcpuExit::IoOut(..) | VcpuExit::IoIn(..) => kvm::KVM_EXIT_IO,
        VcpuExit::Hypercall(_) => kvm::KVM_EXIT_HYPERCALL,
        VcpuExit::Debug(_) => kvm::KVM_EXIT_DEBUG,
        VcpuExit::Hlt => kvm::KVM_EXIT_HLT,
        VcpuExit::MmioRead(..) | VcpuExit::MmioWrite(..) => kvm::KVM_EXIT_MMIO,
        VcpuExit::IrqWindowOpen => kvm::KVM_EXIT_IRQ_WINDOW_OPEN,
        VcpuExit::Shutdown => kvm::KVM_EXIT_SHUTDOWN,
        VcpuExit::FailEntry(..) => kvm::KVM_EXIT_FAIL_ENTRY,
        VcpuExit::Intr => kvm::KVM_EXIT_INTR,
        VcpuExit::SetTpr => kvm::KVM_EXIT_SET_TPR,
        VcpuExit::TprAccess => kvm::KVM_EXIT_TPR_ACCESS,
        VcpuExit::S390Sieic => kvm::KVM_EXIT_S390_SIEIC,
        VcpuExit::S390Reset => kvm::KVM_EXIT_S390_RESET,
        VcpuExit::Dcr => kvm::KVM_EXIT_DCR,
        VcpuExit::Nmi => kvm::KVM_EXIT_NMI,
        VcpuExit::InternalError => kvm::KVM_EXIT_INTERNAL_ERROR,
        VcpuExit::Osi => kvm::KVM_EXIT_OSI,
        VcpuExit::PaprHcall => kvm::KVM_EXIT_PAPR_HCALL,
        VcpuExit::S390Ucontrol => kvm::KVM_EXIT_S390_UCONTROL,
        VcpuExit::Watchdog => kvm::KVM_EXIT_WATCHDOG,
        VcpuExit::S390Tsch => kvm::KVM_EXIT_S390_TSCH,
        VcpuExit::Epr => kvm::KVM_EXIT_EPR,
        VcpuExit::SystemEvent(..) => kvm::KVM_EXIT_SYSTEM_EVENT,
        VcpuExit::S390Stsi => kvm::KVM_EXIT_S390_STSI,
        VcpuExit::IoapicEoi(_) => kvm::KVM_EXIT_IOAPIC_EOI,
        VcpuExit::Hyperv => kvm::KVM_EXIT_HYPERV,
        VcpuExit::X86Rdmsr(_) => kvm::KVM_EXIT_X86_RDMSR,
        VcpuExit::X86Wrmsr(_) => kvm::KVM_EXIT_X86_WRMSR,
        VcpuExit::MemoryFault { .. } => kvm::KVM_EXIT_MEMORY_FAULT,
        VcpuExit::Unsupported(reason) => *reason,
    }
}

/// Carries out an exit of `vcpu` on the `bus`, tells the `observer` what was accessed, and decides what follows.
pub fn handle(vcpu: u32, exit: VcpuExit<'_>, bus: &impl Bus, observer: &dyn Observer) -> ExitAction {
    match exit {
        VcpuExit::IoOut(port, data) => {
            observer.port_access(vcpu, port, size(data), true, port_value(data));
            match bus.port_write(port, data) {
                None => ExitAction::Continue,
                Some(GuestRequest::PowerOff) => ExitAction::PowerOff,
                Some(GuestRequest::Reset) => ExitAction::Reset,
                Some(GuestRequest::Panicked) => ExitAction::Panicked,
                Some(GuestRequest::CrashKernel) => ExitAction::CrashKernel,
            }
        }
        VcpuExit::IoIn(port, data) => {
            bus.port_read(port, data);
            observer.port_access(vcpu, port, size(data), false, port_value(data));
            ExitAction::Continue
        }
        VcpuExit::MmioRead(address, data) => {
            bus.mmio_read(address, data);
            observer.mmio_access(vcpu, address, size(data), false, value(data));
            ExitAction::Continue
        }
        VcpuExit::MmioWrite(address, data) => {
            observer.mmio_access(vcpu, address, size(data), true, value(data));
            bus.mmio_write(address, data);
            ExitAction::Continue
        }
        VcpuExit::Intr | VcpuExit::IrqWindowOpen => ExitAction::Continue,
        VcpuExit::Shutdown => ExitAction::TripleFault,
        VcpuExit::SystemEvent(kvm::KVM_SYSTEM_EVENT_SHUTDOWN, _) => ExitAction::PowerOff,
        VcpuExit::SystemEvent(kvm::KVM_SYSTEM_EVENT_RESET, _) => ExitAction::Reset,
        VcpuExit::InternalError => ExitAction::InternalError,
        VcpuExit::FailEntry(hardware_reason, _) => ExitAction::EntryFailed { hardware_reason },
        other => ExitAction::Unexpected { reason: reason(&other) },
    }
}

fn size(data: &[u8]) -> u8 {
    u8::try_from(data.len()).unwrap_or(u8::MAX)
}

/// The first eight bytes as a little-endian number.
fn value(data: &[u8]) -> u64 {
    data.iter().take(8).rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The first four bytes as a little-endian number.
fn port_value(data: &[u8]) -> u32 {
    data.iter().take(4).rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct RecordingObserver {
        calls: Mutex<Vec<String>>,
        request: Option<GuestRequest>,
    }

    impl RecordingObserver {
        fn push(&self, call: String) {
            self.calls.lock().unwrap().push(call);
        }
    }

    impl Bus for RecordingObserver {
        fn port_read(&self, port: u16, data: &mut [u8]) {
            data.fill(0x5a);
            self.push(format!("port_read {port:#x}"));
        }
        fn port_write(&self, port: u16, data: &[u8]) -> Option<GuestRequest> {
            self.push(format!("port_write {port:#x} {data:x?}"));
            self.request
        }
        fn mmio_read(&self, address: u64, data: &mut [u8]) {
            data.fill(0xa5);
            self.push(format!("mmio_read {address:#x}"));
        }
        fn mmio_write(&self, address: u64, data: &[u8]) {
            self.push(format!("mmio_write {address:#x} {data:x?}"));
        }
    }

    impl Observer for RecordingObserver {
        fn port_access(&self, vcpu: u32, port: u16, size: u8, write: bool, value: u32) {
            self.push(format!("port {vcpu} {port:#x} {size} {write} {value:#x}"));
        }
        fn mmio_access(&self, vcpu: u32, address: u64, size: u8, write: bool, value: u64) {
            self.push(format!("mmio {vcpu} {address:#x} {size} {write} {value:#x}"));
        }
    }

    fn handled(exit: VcpuExit<'_>, request: Option<GuestRequest>) -> (ExitAction, Vec<String>) {
        let recorder = RecordingObserver { request, ..Default::default() };
        let action = handle(1, exit, &recorder, &recorder);
        (action, recorder.calls.into_inner().unwrap())
    }

    #[test]
    fn port_write_reaches_the_bus_and_the_observer() {
        let (action, calls) = handled(VcpuExit::IoOut(0x3f8, b"A"), None);
        assert_eq!(action, ExitAction::Continue);
        assert_eq!(calls, ["port 1 0x3f8 1 true 0x41", "port_write 0x3f8 [41]"]);
    }

    #[test]
    fn port_read_gives_the_guest_what_the_bus_says() {
        let mut data = [0; 2];
        let (action, calls) = handled(VcpuExit::IoIn(0x71, &mut data), None);
        assert_eq!((action, data), (ExitAction::Continue, [0x5a; 2]));
        assert_eq!(calls, ["port_read 0x71", "port 1 0x71 2 false 0x5a5a"]);
    }

    #[test]
    fn memory_write_reaches_the_bus_and_the_observer() {
        let (action, calls) = handled(VcpuExit::MmioWrite(0xd000_0070, &[3, 0, 0, 0]), None);
        assert_eq!(action, ExitAction::Continue);
        assert_eq!(calls, ["mmio 1 0xd0000070 4 true 0x3", "mmio_write 0xd0000070 [3, 0, 0, 0]"]);
    }

    #[test]
    fn memory_read_gives_the_guest_what_the_bus_says() {
        let mut data = [0; 8];
        let (action, calls) = handled(VcpuExit::MmioRead(0x1000, &mut data), None);
        assert_eq!((action, data), (ExitAction::Continue, [0xa5; 8]));
        assert_eq!(calls, ["mmio_read 0x1000", "mmio 1 0x1000 8 false 0xa5a5a5a5a5a5a5a5"]);
    }

    #[test]
    fn requests_of_the_guest_become_actions() {
        use GuestRequest::{CrashKernel, Panicked, PowerOff, Reset};
        let actions =
            [PowerOff, Reset, Panicked, CrashKernel].map(|request| handled(VcpuExit::IoOut(0, &[0]), Some(request)).0);
        let expected = [ExitAction::PowerOff, ExitAction::Reset, ExitAction::Panicked, ExitAction::CrashKernel];
        assert_eq!(actions, expected);
    }

    #[test]
    fn shutdown_is_a_triple_fault() {
        assert_eq!(handled(VcpuExit::Shutdown, None).0, ExitAction::TripleFault);
    }

    #[test]
    fn internal_error_is_diagnosed() {
        assert_eq!(handled(VcpuExit::InternalError, None).0, ExitAction::InternalError);
    }

    #[test]
    fn failed_entry_keeps_the_hardwares_reason() {
        let (action, _) = handled(VcpuExit::FailEntry(0x8000_0021, 0), None);
        assert_eq!(action, ExitAction::EntryFailed { hardware_reason: 0x8000_0021 });
    }

    #[test]
    fn interrupted_run_continues() {
        assert_eq!(handled(VcpuExit::Intr, None).0, ExitAction::Continue);
    }

    #[test]
    fn exit_nobody_requested_is_named() {
        let actions = [VcpuExit::Hlt, VcpuExit::Unsupported(77)].map(|exit| handled(exit, None).0);
        assert_eq!(actions, [5, 77].map(|reason| ExitAction::Unexpected { reason }));
    }

    #[test]
    fn string_of_more_bytes_than_a_register_is_shown_by_its_first_four() {
        let data: Vec<u8> = (1..=9).collect();
        let (_, calls) = handled(VcpuExit::IoOut(0x3f8, &data), None);
        assert_eq!(calls[0], "port 1 0x3f8 9 true 0x4030201");
    }
}
