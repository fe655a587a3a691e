//! `strata region`.

use super::values;
use crate::run::{KERNEL_RINGS, PROCESS_SLOTS};
use clap::{Args, Subcommand};
use shared_ring::layout::MAX_PROCESS_SLOTS;
use std::path::PathBuf;
use strata_recorder::control::protocol::Mode;
use strata_recorder::layer::kernel_rings::{sub_buffer_counts, sub_buffer_sizes};

/// Arguments of `strata region`.
#[derive(Debug, Args)]
pub struct RegionArgs {
    /// What to do
    #[command(subcommand)]
    pub command: RegionCommand,
}

/// What `strata region` does.
#[derive(Debug, Subcommand)]
pub enum RegionCommand {
    /// Make the file of a region before the VM starts, and print the settings for QEMU, libvirt, Cloud Hypervisor and
    /// Firecracker
    Create(CreateArgs),
}

/// Arguments of `strata region create`.
#[derive(Debug, Args)]
#[command(
    after_help = "The guest sees the region as a PCI device (ivshmem-plain) or as persistent memory (virtio-pmem), where the \
    agent's kernel module finds it. All of its memory is set aside at once. Put it into memory, as in /dev/shm, not on a \
    disk; a VM that is not root's needs the file to be its user's.\n\nExample:\n  \
    strata region create /dev/shm/web --cpus 4\n  \
    qemu-system-x86_64 … -smp 4 -object memory-backend-file,… -device ivshmem-plain,…\n  \
    strata attach $(pgrep -f guest=web) --region /dev/shm/web --trace trace"
)]
pub struct CreateArgs {
    /// File to make
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The VM's vCPUs, those that may be added later too: one more than the largest APIC id
    #[arg(long, value_name = "N", value_parser = values::number::<u32>)]
    pub cpus: u32,
    /// Size of the device, a power of two [default: the smallest that will do]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub size: Option<u64>,
    /// What rings do when they are full; give `strata attach` the same
    #[arg(long, value_name = "MODE", default_value = "discard", value_parser = values::mode())]
    pub mode: Mode,
    /// Size of a sub-buffer, bytes.
    #[arg(long, help = format!("Size of a sub-buffer of the guest kernel's rings: {}", sub_buffer_sizes()))]
    #[arg(value_name = "SIZE", default_value_t = KERNEL_RINGS.0, value_parser = values::sub_buffer_size)]
    pub sub_buffer_size: u64,
    /// Number of sub-buffers of each ring.
    #[arg(long, help = format!("Sub-buffers of each of the guest kernel's rings: {}", sub_buffer_counts()))]
    #[arg(value_name = "N", default_value_t = KERNEL_RINGS.1, value_parser = values::sub_buffers)]
    pub sub_buffers: u32,
    /// Processes of the guest that can record at the same time.
    #[arg(long, help = format!("Processes of the guest that can record at the same time, up to {MAX_PROCESS_SLOTS}; each \
        takes 1 MiB of memory for each vCPU"))]
    #[arg(value_name = "N", default_value_t = PROCESS_SLOTS, value_parser = values::number_in(0..=MAX_PROCESS_SLOTS))]
    pub process_slots: u32,
}
