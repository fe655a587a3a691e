//! An interrupt that the host raises in the guest, for software in it that knows what it means.

use crate::error::MachineError;
use crate::interrupt;
use crate::memory::layout;
use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::EventFd;

/// Raises an interrupt of its own in the guest, from any thread. The guest does not learn of it from the machine.
#[derive(Debug)]
pub struct Doorbell(EventFd);

impl Doorbell {
    pub(crate) fn new(vm: &VmFd) -> Result<Self, MachineError> {
        interrupt::line(vm, layout::DOORBELL_GSI).map(Self)
    }

    /// The interrupt, edge-triggered: the number of a global system interrupt, not 0.
    #[must_use]
    pub const fn gsi(&self) -> u32 {
        layout::DOORBELL_GSI
    }

    /// Raises the interrupt. A guest that does not take it, or is not running, is not disturbed.
    pub fn ring(&self) {
        // Fails only when the counter is full, that is when it is raised already.
        let _ = self.0.write(1);
    }
}
