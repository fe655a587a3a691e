//! The KVM objects of a machine: the device itself, the virtual machine, its vCPUs.

pub(crate) mod probe;

use super::config::{Limits, MachineConfig};
use super::error::MachineError;
use crate::boot::{boot_state, cpuid};
use crate::memory::layout;
use kvm_bindings::{
    CpuId, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_MAX_CPUID_ENTRIES, KVM_PIT_SPEAKER_DUMMY, kvm_irqchip,
    kvm_pit_config,
};
use kvm_ioctls::{Cap, Kvm, VcpuFd, VmFd};
use strata_clock::{HostTime, guest_tsc};
use vmm_sys_util::errno;

/// Capabilities without which this machine cannot be built.
const REQUIRED: [Cap; 9] = [
    Cap::Irqchip,
    Cap::Irqfd,
    Cap::Ioeventfd,
    Cap::UserMemory,
    Cap::SetTssAddr,
    Cap::SetIdentityMapAddr,
    Cap::Pit2,
    Cap::ExtCpuid,
    Cap::ImmediateExit,
];
/// Names what KVM refused.
pub fn refused(action: &'static str) -> impl Fn(errno::Error) -> MachineError {
    move |source| MachineError::Kvm { action, source }
}

/// Why KVM could not be opened.
fn unopened(error: errno::Error) -> MachineError {
    match error.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => MachineError::NoKvm,
        libc::EACCES | libc::EPERM => MachineError::NoPermission,
        _ => MachineError::OpenKvm(error),
    }
}

/// Opens KVM and checks that it can do what the machine needs.
///
/// # Errors
/// There is no KVM, this user may not open it, or it lacks something.
pub fn open() -> Result<Kvm, MachineError> {
    let kvm = Kvm::new().map_err(unopened)?;
    match REQUIRED.into_iter().find(|capability| !kvm.check_extension(*capability)) {
        Some(missing) => Err(MachineError::Capability(missing)),
        None => Ok(kvm),
    }
}

/// What this host can give to one guest.
pub fn limits(kvm: &Kvm, supported: &CpuId) -> Limits {
    let info = rustix::system::sysinfo();
    Limits {
        max_cpus: u32::try_from(kvm.get_max_vcpus()).unwrap_or(u32::MAX),
        physical_bits: cpuid::physical_bits(supported.as_slice()),
        host_memory: info.totalram.saturating_mul(u64::from(info.mem_unit)),
    }
}

/// The CPUID leaves that KVM supports.
///
/// # Errors
/// KVM refuses.
pub fn supported_cpuid(kvm: &Kvm) -> Result<CpuId, MachineError> {
    kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(refused("list its CPUID leaves"))
}

/// Creates the virtual machine with its interrupt controllers and timer.
///
/// # Errors
/// KVM refuses one of the parts.
pub fn create_vm(kvm: &Kvm) -> Result<VmFd, MachineError> {
    let vm = kvm.create_vm().map_err(refused("create a virtual machine"))?;
    vm.set_identity_map_address(layout::KVM_IDENTITY_MAP).map_err(refused("set the identity map"))?;
    vm.set_tss_address(layout::KVM_TSS).map_err(refused("set the task state segment"))?;
    vm.create_irq_chip().map_err(refused("create the interrupt controllers"))?;
    // Hardware-reduced ACPI has no legacy PIC, so no guest initialises it: it must stay silent.
    for chip_id in [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE] {
        mask_pic(&vm, chip_id).map_err(refused("mask the legacy interrupt controller"))?;
    }
    let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
    vm.create_pit2(pit).map_err(refused("create the interval timer"))?;
    Ok(vm)
}

fn mask_pic(vm: &VmFd, chip_id: u32) -> Result<(), errno::Error> {
    let mut chip = kvm_irqchip { chip_id, ..Default::default() };
    vm.get_irqchip(&mut chip)?;
    chip.chip.pic.imr = 0xff;
    vm.set_irqchip(&chip)
}

/// Creates the vCPUs, with CPUID leaves and model-specific registers.
///
/// # Errors
/// KVM refuses a vCPU, its CPUID leaves or its registers.
pub fn create_vcpus(
    kvm: &Kvm,
    vm: &VmFd,
    supported: &CpuId,
    config: &MachineConfig,
) -> Result<Vec<VcpuFd>, MachineError> {
    let discovery = config.discovery.zip(config.trace_region()).map(|(leaf, region)| cpuid::Discovery {
        abi_version: leaf.abi_version,
        address: region.start,
        size: region.size,
    });
    let tsc_deadline = kvm.check_extension(Cap::TscDeadlineTimer);
    let cpuid_config = cpuid::CpuidConfig { cpus: config.cpus, tsc_deadline, discovery, extras: config.cpu_extras };
    (0..config.cpus)
        .map(|index| {
            let vcpu = vm.create_vcpu(u64::from(index)).map_err(refused("create a vCPU"))?;
            let entries = cpuid::entries(supported.as_slice(), index, &cpuid_config);
            let entries = CpuId::from_entries(&entries).map_err(|_| MachineError::CpuidLeaves)?;
            vcpu.set_cpuid2(&entries).map_err(refused("set a vCPU's CPUID leaves"))?;
            boot_state::set_msrs(&vcpu)?;
            Ok(vcpu)
        })
        .collect()
}

/// Gives all vCPUs the same TSC offset and reads it back; `None` if KVM knows no offsets and none was requested.
///
/// # Errors
/// KVM refuses the offset, or has another one afterwards on a host whose TSC is stable.
pub fn set_tsc_offsets(vcpus: &[VcpuFd], wanted: Option<i64>) -> Result<Option<Vec<i64>>, MachineError> {
    if wanted.is_none() && !guest_tsc::has_offset(&vcpus[0]) {
        return Ok(None);
    }
    let wanted = match wanted {
        Some(offset) => offset,
        None => guest_tsc::read_offset(&vcpus[0]).map_err(refused("read a TSC offset"))?,
    };
    let moves = HostTime::of_this_host() == HostTime::MonotonicRaw;
    let offsets = (0u32..).zip(vcpus).map(|(vcpu, fd)| {
        guest_tsc::set_offset(fd, wanted).map_err(refused("set a TSC offset"))?;
        let found = guest_tsc::read_offset(fd).map_err(refused("read a TSC offset"))?;
        // Where the host's kernel has given up the TSC, KVM moves the offset each time the vCPU is put on a CPU.
        if found == wanted || moves { Ok(found) } else { Err(MachineError::TscOffset { vcpu, wanted, found }) }
    });
    offsets.collect::<Result<Vec<_>, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_device_and_a_missing_permission_are_distinguished() {
        let errors = [libc::ENOENT, libc::EACCES].map(|code| unopened(errno::Error::new(code)));
        assert!(matches!(errors, [MachineError::NoKvm, MachineError::NoPermission]));
    }
}
