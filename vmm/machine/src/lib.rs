//! The machine: a KVM virtual machine that boots a stock 64-bit Linux kernel. It knows nothing of tracing: what happens
//! goes to an [`Observer`], and memory that the guest shares with the host is a [`SharedSlot`].
//!
//! [`Machine::new`] checks the configuration, creates the virtual machine with its memory and vCPUs and loads the
//! kernel; [`Machine::run`] adds the devices, starts a thread per vCPU and drives the devices on the calling thread
//! until the guest ends or a [`StopHandle`] is used. [`probe_kvm`] says what kind of KVM a host has.
#![allow(missing_docs, reason = "no other project imports it: names say it, or a comment does")]

mod boot;
mod config;
mod devices;
mod error;
mod event_loop;
mod exit;
mod hypervisor;
mod interrupt;
mod memory;
mod outcome;
mod peripherals;
#[cfg(any(test, feature = "test-guests"))]
pub mod test_guest;
mod vcpu;
mod virtio;
mod virtual_machine;

pub use crate::boot::boot_state::BootStateError;
pub use crate::boot::cpuid::CpuExtras;
pub use crate::boot::loader::{CMDLINE_MAX, KernelFormat, KernelFormatError, LoadError, kernel_format, overlay_offset};
pub use crate::config::boot_file::BootFile;
pub use crate::config::image_lock::LockHolder;
pub use crate::config::network::{LinkConfig, LinkError, NetConfig};
pub use crate::devices::power::GuestRequest;
pub use crate::devices::serial::ConsoleOutput;
pub use crate::exit::{Bus, ExitAction, handle as handle_exit};
pub use crate::hypervisor::probe::{KvmKind, KvmProbe, probe_kvm};
pub use crate::interrupt::doorbell::Doorbell;
pub use crate::memory::layout::{Range, VIRTIO_MMIO, VIRTIO_MMIO_SIZE};
pub use crate::outcome::fault_state::FaultState;
pub use crate::virtio::mac_address::MacAddress;
pub use config::{ConfigError, DiscoveryLeaf, DiskConfig, Inputs, Limits, MachineConfig};
pub use error::MachineError;
pub use memory::{HugePagePool, MemoryBacking, MemoryError, SharedSlot, create as create_memory};
pub use outcome::{Outcome, RunError};
pub use peripherals::{DetachedDisk, DetachedNet, DetachedVsock, Peripherals};
pub use virtio::Notify;
pub use virtio::balloon::{BalloonRemote, BalloonState};
pub use virtio::block::DiskLimits;
pub use virtio::link::{FRAME_MAX, HEADER as PACKET_HEADER, Link};
pub use virtio::net::NetLimits;
pub use virtio::vhost_net::{VhostError, check as check_vhost_net};
pub use virtio::vsock::muxer::{CONNECTIONS_MAX as VSOCK_CONNECTIONS_MAX, VsockHost};
pub use virtio::vsock::socket::{CID_MAX, CID_MIN, VsockConfig, VsockError, VsockSocket};
pub use virtual_machine::control::{ControlError, MachineControl, RunningGuest};
pub use virtual_machine::{AtEnd, Machine, RunOptions, StopHandle, load};
