//! What to run, as the command line gives it.

use super::trace_failure::OnTraceFailure;
use crate::agentless::AgentlessRequest;
use shared_ring::layout::Geometry;
use std::path::PathBuf;
use strata_jail::JailRequest;
use strata_machine::{CpuExtras, DiskConfig, MemoryBacking, NetConfig, VsockConfig};
use strata_rate_limit::RateLimit;
use strata_recorder::session::RecordingRequest;

/// What to run.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// Name of the VM; a folder of the recording bears it.
    pub name: String,
    /// Where its kernel comes from.
    pub boot: Boot,
    /// Number of vCPUs.
    pub cpus: u32,
    /// RAM, bytes.
    pub memory: u64,
    /// What it is made of.
    pub memory_backing: MemoryBacking,
    /// What the guest is given of the host's CPU beside the usual.
    pub cpu_extras: CpuExtras,
    /// Disk images.
    pub disks: Vec<DiskConfig>,
    /// Network devices.
    pub nets: Vec<NetConfig>,
    /// A source of random bytes for the guest.
    pub entropy: bool,
    /// A socket device.
    pub vsock: Option<VsockConfig>,
    /// A balloon, by which the guest gives memory back.
    pub balloon: bool,
    /// Limit of what the guest's console shows, bytes.
    pub console_bandwidth: Option<RateLimit>,
    /// The guest's kernel command line.
    pub cmdline: String,
    /// What is recorded; nothing is traced without it.
    pub recording: Option<RecordingRequest>,
    /// What the VM's process gives up before the guest runs.
    pub jail: JailRequest,
    /// What happens to the VM when a layer of the recording ends early.
    pub on_trace_failure: OnTraceFailure,
    /// What goes into the guest to trace it.
    pub agent: Agent,
    /// How the guest's kernel is traced without an agent.
    pub agentless: Option<AgentlessRequest>,
    /// Geometry of the guest kernel's rings.
    pub geometry: Geometry,
    /// Processes of the guest that can record at the same time.
    pub process_slots: u32,
    /// Samples of each vCPU per second; the agent's default if there is none.
    pub sample_frequency: Option<u32>,
}

/// Where a guest's kernel comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// Files of the host.
    Files {
        /// Kernel image, ELF or bzImage.
        kernel: PathBuf,
        /// Initial RAM file system.
        initrd: Option<PathBuf>,
    },
    /// The root on the first disk: its kernel and initrd.
    FirstDisk,
}

/// What goes into the guest to trace it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agent {
    /// This kernel module, or the one of the guest's kernel in a folder (see [`crate::ready_made_module::folder`]).
    Module(PathBuf),
    /// Nothing was given.
    Unspecified,
    /// Nothing, on purpose.
    None,
}
