//! Interrupts that the machine raises in the guest.

pub(crate) mod doorbell;

use super::error::MachineError;
use super::hypervisor::refused;
use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// An event that raises interrupt `gsi` (edge-triggered) in the guest.
pub(super) fn line(vm: &VmFd, gsi: u32) -> Result<EventFd, MachineError> {
    let event = EventFd::new(EFD_NONBLOCK).map_err(MachineError::Device)?;
    vm.register_irqfd(&event, gsi).map_err(refused("connect an interrupt"))?;
    Ok(event)
}
