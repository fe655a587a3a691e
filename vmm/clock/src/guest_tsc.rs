//! The guest's time stamp counter as KVM sets and shows it, and KVM's reading of the host's clocks at one instant.
#![allow(unsafe_code)] // kvm-ioctls wraps no vCPU device attributes on x86

use clock_sync::calibration::{CrossTimestamp, read_together};
use kvm_bindings::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KVM_CLOCK_TSC_STABLE, KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, Msrs,
    kvm_clock_data, kvm_device_attr, kvm_msr_entry,
};
use kvm_ioctls::{VcpuFd, VmFd};
use request::{KVM_GET_DEVICE_ATTR, KVM_HAS_DEVICE_ATTR, KVM_SET_DEVICE_ATTR};
use std::ptr;
use vmm_sys_util::errno;
use vmm_sys_util::ioctl::ioctl_with_ref;

mod request {
    //! Numbers of the device attribute requests.
    #![allow(missing_docs, reason = "the macro takes no documentation")]

    use kvm_bindings::{KVMIO, kvm_device_attr};
    use vmm_sys_util::ioctl_iow_nr;

    ioctl_iow_nr!(KVM_SET_DEVICE_ATTR, KVMIO, 0xe1, kvm_device_attr);
    ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);
    ioctl_iow_nr!(KVM_HAS_DEVICE_ATTR, KVMIO, 0xe3, kvm_device_attr);
}

fn offset_attribute(value: *const u64) -> kvm_device_attr {
    kvm_device_attr { flags: 0, group: KVM_VCPU_TSC_CTRL, attr: u64::from(KVM_VCPU_TSC_OFFSET), addr: value as u64 }
}

/// Whether KVM lets the TSC offset of `vcpu` be set and read (Linux 5.16 and later).
#[must_use]
pub fn has_offset(vcpu: &VcpuFd) -> bool {
    let attribute = offset_attribute(ptr::null());
    // SAFETY: the file is a vCPU, the request only reads the structure, which outlives the call.
    unsafe { ioctl_with_ref(vcpu, KVM_HAS_DEVICE_ATTR(), &attribute) == 0 }
}

/// Sets guest TSC minus host TSC, ticks.
///
/// Some KVM builds accept an offset and ignore it: read it back, and observe it in a guest too.
///
/// # Errors
/// KVM does not know the attribute (`ENXIO`, `ENOTTY`).
pub fn set_offset(vcpu: &VcpuFd, offset: i64) -> Result<(), errno::Error> {
    let value = offset.cast_unsigned();
    let attribute = offset_attribute(&raw const value);
    // SAFETY: the file is a vCPU; KVM reads the structure and the eight bytes it points at; both
    // outlive the call.
    let result = unsafe { ioctl_with_ref(vcpu, KVM_SET_DEVICE_ATTR(), &attribute) };
    if result == 0 { Ok(()) } else { errno::errno_result() }
}

/// Reads guest TSC minus host TSC, ticks.
///
/// # Errors
/// KVM does not know the attribute (`ENXIO`, `ENOTTY`).
pub fn read_offset(vcpu: &VcpuFd) -> Result<i64, errno::Error> {
    let mut value = 0u64;
    let attribute = offset_attribute(&raw mut value);
    // SAFETY: the file is a vCPU; KVM reads the structure and writes the eight bytes it points at, both of
    // which outlive the call and are used by nobody else.
    let result = unsafe { ioctl_with_ref(vcpu, KVM_GET_DEVICE_ATTR(), &attribute) };
    if result == 0 { Ok(value.cast_signed()) } else { errno::errno_result() }
}

/// Number of the model-specific register that is the time stamp counter.
const MSR_IA32_TSC: u32 = 0x10;

/// Reads the guest's counter as KVM has it, ticks. The vCPU must be out of the guest.
///
/// # Errors
/// KVM does not give the register.
pub fn read_counter(vcpu: &VcpuFd) -> Result<u64, errno::Error> {
    let entry = kvm_msr_entry { index: MSR_IA32_TSC, ..Default::default() };
    let mut registers = Msrs::from_entries(&[entry]).map_err(|_| errno::Error::new(libc::ENOMEM))?;
    match vcpu.get_msrs(&mut registers)? {
        1 => Ok(registers.as_slice()[0].data),
        _ => Err(errno::Error::new(libc::EINVAL)),
    }
}

/// Reads TSC and wall clock together: at one instant by KVM where it can (flags of `KVM_GET_CLOCK`), else bracketed.
/// `frequency` is the TSC's rate, Hz.
#[must_use]
pub fn cross_timestamp(vm: &VmFd, frequency: u64) -> CrossTimestamp {
    vm.get_clock()
        .ok()
        .and_then(|clock| from_kvm(&clock))
        .unwrap_or_else(|| read_together(clock_sync::tsc::read_ordered, frequency))
}

/// What kvm-clock showed at a time of the host's TSC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvmClock {
    /// kvm-clock, ns.
    pub ns: u64,
    /// The host's TSC, ticks.
    pub tsc: u64,
}

/// What kvm-clock shows, and the host's TSC at that time; `None` where KVM does not derive all vCPUs' from one.
#[must_use]
pub fn kvm_clock(vm: &VmFd) -> Option<KvmClock> {
    let clock = vm.get_clock().ok()?;
    let both = KVM_CLOCK_TSC_STABLE | KVM_CLOCK_HOST_TSC;
    (clock.flags & both == both).then_some(KvmClock { ns: clock.clock, tsc: clock.host_tsc })
}

fn from_kvm(clock: &kvm_clock_data) -> Option<CrossTimestamp> {
    let both = KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
    (clock.flags & both == both).then_some(CrossTimestamp {
        ticks: clock.host_tsc,
        utc_ns: clock.realtime,
        uncertainty_ns: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvms_reading_is_used_when_it_has_both_clocks() {
        let clock = kvm_clock_data { flags: 0xe, realtime: 5, host_tsc: 7, ..Default::default() };
        assert_eq!(from_kvm(&clock), Some(CrossTimestamp { ticks: 7, utc_ns: 5, uncertainty_ns: 0 }));
    }

    #[test]
    fn kvms_reading_without_host_tsc_is_not_used() {
        let clock = kvm_clock_data { flags: 0x6, realtime: 5, ..Default::default() };
        assert_eq!(from_kvm(&clock), None);
    }
}
