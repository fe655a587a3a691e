//! Why a machine cannot be built or started.

use super::config::ConfigError;
use super::memory::MemoryError;
use crate::boot::boot_state::BootStateError;
use crate::boot::loader::LoadError;
use kvm_ioctls::Cap;
use std::io;
use vmm_sys_util::errno;

/// The device that KVM offers.
pub const KVM_DEVICE: &str = "/dev/kvm";

/// Why a machine cannot be built or started. What was made for it is gone again.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The host has no KVM.
    #[error("there is no {KVM_DEVICE}: enable virtualisation in the firmware and load kvm_intel or kvm_amd")]
    NoKvm,
    /// This user may not open KVM's device.
    #[error("no permission to open {KVM_DEVICE}: add this user to the group 'kvm', or run as root")]
    NoPermission,
    /// KVM's device cannot be opened for another reason.
    #[error("cannot open {KVM_DEVICE}")]
    OpenKvm(#[source] errno::Error),
    /// This KVM cannot do something that every machine needs.
    #[error("this host's KVM lacks {0:?}")]
    Capability(Cap),
    /// A request of KVM's failed.
    #[error("KVM refused to {action}")]
    Kvm {
        /// What was requested, an infinitive.
        action: &'static str,
        /// KVM's answer.
        #[source]
        source: errno::Error,
    },
    /// The configuration cannot be run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Kernel or initrd cannot be brought into guest memory.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The first vCPU's state cannot be set up.
    #[error(transparent)]
    BootState(#[from] BootStateError),
    /// Guest memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// More vCPUs or devices than the area for ACPI tables has room for.
    #[error("the ACPI tables do not fit into their area")]
    AcpiTables,
    /// More CPUID leaves than `KVM_SET_CPUID2` takes.
    #[error("the machine needs more CPUID leaves than KVM takes")]
    CpuidLeaves,
    /// KVM took a TSC offset and did not keep it, on a host whose TSC is stable.
    #[error("KVM accepted TSC offset {wanted} on vCPU {vcpu}, but has {found}")]
    TscOffset {
        /// Index of the vCPU.
        vcpu: u32,
        /// The offset set, ticks.
        wanted: i64,
        /// The offset read back, ticks.
        found: i64,
    },
    /// An event or a device's file cannot be made.
    #[error("cannot create a device")]
    Device(#[source] io::Error),
    /// A vCPU or a disk gets no thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The loop that serves the devices cannot be made.
    #[error("cannot set up the event loop")]
    EventLoop(#[source] event_manager::Error),
}
