//! The ports by which a guest powers off, resets, or says that it panicked.

use std::sync::atomic::{AtomicU8, Ordering};

/// ACPI sleep control register.
pub const SLEEP_CONTROL_PORT: u16 = 0x600;
/// ACPI sleep status register.
pub const SLEEP_STATUS_PORT: u16 = 0x601;
/// ACPI reset register.
pub const RESET_PORT: u16 = 0x602;
/// What a guest writes into the reset register.
pub const RESET_VALUE: u8 = 1;
/// The sleep type that the DSDT gives for soft-off.
pub const SLEEP_TYPE_OFF: u8 = 5;
pub use strata_abi::PANIC_PORT;
/// Command port of the 8042 keyboard controller.
pub const KEYBOARD_COMMAND_PORT: u16 = 0x64;
/// The 8042 command that pulses the processor's reset line.
const KEYBOARD_RESET: u8 = 0xfe;
/// Sleep control register: enter the sleep state.
const SLEEP_ENABLE: u8 = 1 << 5;
/// pvpanic events this machine understands.
const PANIC_EVENTS: u8 = strata_abi::PANIC_PORT_PANICKED | strata_abi::PANIC_PORT_CRASH_KERNEL;

/// What a guest asks of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestRequest {
    /// Switch the power off.
    PowerOff,
    /// Reset all processors.
    Reset,
    /// Nothing, but its kernel panicked and may yet reset.
    Panicked,
    /// Nothing, but its kernel panicked and a crash kernel takes over.
    CrashKernel,
}

/// State of the power ports.
#[derive(Debug, Default)]
pub struct PowerPorts {
    /// What the guest has said of panics: a bit each, as at the port.
    panics: AtomicU8,
}

impl PowerPorts {
    /// Reads a byte from `port`; `None` if the port is none of these.
    pub fn read(&self, port: u16) -> Option<u8> {
        match port {
            SLEEP_CONTROL_PORT | SLEEP_STATUS_PORT | RESET_PORT => Some(0),
            // An empty, idle keyboard controller: a guest that waits for it goes on at once.
            KEYBOARD_COMMAND_PORT => Some(0),
            PANIC_PORT => Some(PANIC_EVENTS),
            _ => None,
        }
    }

    /// Writes a byte to `port` and says what the guest wants by it.
    pub fn write(&self, port: u16, value: u8) -> Option<GuestRequest> {
        match port {
            SLEEP_CONTROL_PORT if value == SLEEP_ENABLE | SLEEP_TYPE_OFF << 2 => Some(GuestRequest::PowerOff),
            RESET_PORT if value == RESET_VALUE => Some(GuestRequest::Reset),
            KEYBOARD_COMMAND_PORT if value == KEYBOARD_RESET => Some(GuestRequest::Reset),
            PANIC_PORT => self.panic(value & PANIC_EVENTS),
            _ => None,
        }
    }

    /// What the guest says for the first time: a notifier and a driver may both tell of one panic.
    fn panic(&self, events: u8) -> Option<GuestRequest> {
        let new = events & !self.panics.fetch_or(events, Ordering::Relaxed);
        if new & strata_abi::PANIC_PORT_PANICKED != 0 {
            return Some(GuestRequest::Panicked);
        }
        (new != 0).then_some(GuestRequest::CrashKernel)
    }

    /// Whether the guest has said that its kernel panicked, be there a crash kernel or not.
    #[must_use]
    pub fn panicked(&self) -> bool {
        self.panics.load(Ordering::Relaxed) != 0
    }

    /// Whether a kernel panicked behind which no crash kernel comes: the guest's own, or its crash kernel.
    #[must_use]
    pub fn is_at_its_end(&self) -> bool {
        self.panics.load(Ordering::Relaxed) & strata_abi::PANIC_PORT_PANICKED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_off_asks_for_power_off() {
        let request = PowerPorts::default().write(SLEEP_CONTROL_PORT, 0x34);
        assert_eq!(request, Some(GuestRequest::PowerOff));
    }

    #[test]
    fn another_sleep_state_is_ignored() {
        assert_eq!(PowerPorts::default().write(SLEEP_CONTROL_PORT, 0x24), None);
    }

    #[test]
    fn reset_register_resets() {
        let request = PowerPorts::default().write(RESET_PORT, RESET_VALUE);
        assert_eq!(request, Some(GuestRequest::Reset));
    }

    #[test]
    fn keyboard_controller_resets() {
        assert_eq!(PowerPorts::default().write(0x64, 0xfe), Some(GuestRequest::Reset));
    }

    #[test]
    fn panic_is_remembered() {
        let ports = PowerPorts::default();
        let request = ports.write(PANIC_PORT, 1);
        assert_eq!((request, ports.panicked()), (Some(GuestRequest::Panicked), true));
    }

    #[test]
    fn panic_that_the_guest_reports_twice_is_one() {
        let ports = PowerPorts::default();
        let requests = [1, 1].map(|event| ports.write(PANIC_PORT, event));
        assert_eq!(requests, [Some(GuestRequest::Panicked), None]);
    }

    #[test]
    fn crash_kernel_comes_behind_a_panic_and_may_panic_itself() {
        let ports = PowerPorts::default();
        let first = (ports.write(PANIC_PORT, 2), ports.panicked(), ports.is_at_its_end());
        let second = (ports.write(PANIC_PORT, 1), ports.panicked(), ports.is_at_its_end());
        assert_eq!(first, (Some(GuestRequest::CrashKernel), true, false));
        assert_eq!(second, (Some(GuestRequest::Panicked), true, true));
    }

    #[test]
    fn event_that_the_port_does_not_know_is_none() {
        let ports = PowerPorts::default();
        assert_eq!((ports.write(PANIC_PORT, 4), ports.panicked()), (None, false));
    }

    #[test]
    fn keyboard_controller_looks_idle() {
        assert_eq!(PowerPorts::default().read(0x64), Some(0));
    }
}
