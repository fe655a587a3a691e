//! The machine: a KVM virtual machine that boots a stock 64-bit Linux kernel. It knows nothing of tracing: what happens
//! is told to an [`Observer`], and memory that the guest shares with the host is a [`SharedSlot`].
//!
//! [`Machine::new`] checks the configuration, creates the virtual machine with its memory and vCPUs and loads the
//! kernel; [`Machine::run`] adds the devices, starts a thread per vCPU and drives the devices on the calling thread
//! until the guest ends or a [`StopHandle`] is used. [`probe_kvm`] says what kind of KVM a host has.

mod acpi;
mod boot_file;
mod boot_state;
mod config;
mod control;
mod cpuid;
mod disk_format;
mod disk_thread;
mod doorbell;
mod error;
mod event_loop;
mod exit;
mod fault_state;
mod hypervisor;
mod image_lock;
mod interrupt;
mod layout;
mod loader;
mod mac_address;
mod memory;
mod net_config;
mod outcome;
mod peripherals;
mod power;
mod probe;
mod run_end;
mod serial;
#[cfg(any(test, feature = "test-guests"))]
pub mod test_guest;
#[cfg(test)]
mod tests;
mod vcpu;
mod virtio;
mod virtual_machine;

pub use boot_file::BootFile;
pub use boot_state::BootStateError;
pub use config::{ConfigError, DiscoveryLeaf, DiskConfig, Inputs, Limits, MachineConfig};
pub use control::{ControlError, MachineControl, RunningGuest};
pub use cpuid::CpuExtras;
pub use doorbell::Doorbell;
pub use error::MachineError;
pub use exit::{Bus, ExitAction, handle as handle_exit};
pub use fault_state::FaultState;
pub use image_lock::LockHolder;
pub use layout::{Range, VIRTIO_MMIO, VIRTIO_MMIO_SIZE};
pub use loader::{KernelFormat, KernelFormatError, LoadError, kernel_format};
pub use mac_address::MacAddress;
pub use memory::{HugePagePool, MemoryBacking, MemoryError, SharedSlot, create as create_memory};
pub use net_config::{LinkConfig, LinkError, NetConfig};
pub use outcome::{Outcome, RunError};
pub use peripherals::{DetachedDisk, DetachedNet, DetachedVsock, Peripherals};
pub use power::GuestRequest;
pub use probe::{KvmKind, KvmProbe, probe_kvm};
pub use serial::ConsoleOutput;
pub use virtio::balloon::{BalloonRemote, BalloonState};
pub use virtio::block::DiskLimits;
pub use virtio::link::{FRAME_MAX, HEADER as PACKET_HEADER, Link};
pub use virtio::net::NetLimits;
pub use virtio::vhost_net::{VhostError, check as check_vhost_net};
pub use virtio::vsock::muxer::{CONNECTIONS_MAX as VSOCK_CONNECTIONS_MAX, VsockHost};
pub use virtio::vsock::socket::{CID_MAX, CID_MIN, VsockConfig, VsockError, VsockSocket};
pub use virtual_machine::{AtEnd, Machine, RunOptions, StopHandle, load};
