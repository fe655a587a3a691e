//! What to run, as the command line gives it.

use super::trace_failure::OnTraceFailure;
use crate::agentless::AgentlessRequest;
use shared_ring::layout::{Geometry, Mode};
use std::path::PathBuf;
use strata_jail::JailRequest;
use strata_machine::{CpuExtras, DiskConfig, MemoryBacking, NetConfig, VsockConfig};
use strata_rate_limit::RateLimit;
use strata_recorder::control::protocol::LayerLimit;
use strata_recorder::recorder::scheduling::Scheduling;
use strata_recorder::trigger::TriggerRequest;
use strata_recording::access::Readers;
use strata_recording::compression::Compression;

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
    /// Where the recording goes; nothing is traced without it.
    pub trace: Option<PathBuf>,
    /// What the VM's process gives up before the guest runs.
    pub jail: JailRequest,
    /// Bytes that the recording keeps within; without it, it grows.
    pub max_size: Option<u64>,
    /// How the recording is compressed, if it is.
    pub compression: Option<Compression>,
    /// Limits of layers' records.
    pub limits: Vec<LayerLimit>,
    /// The host kernel's records that a flight recorder holds, bytes.
    pub host_history: usize,
    /// What happens to the VM when a layer of the recording ends early.
    pub on_trace_failure: OnTraceFailure,
    /// Who may read the recording.
    pub readers: Readers,
    /// What goes into the guest to trace it.
    pub agent: Agent,
    /// How the guest's kernel is traced without an agent.
    pub agentless: Option<AgentlessRequest>,
    /// Which events are recorded, as [`Selection::parse`](strata_recorder::session::selection::Selection::parse) reads it.
    pub events: String,
    /// What rings do when they are full.
    pub mode: Mode,
    /// Geometry of the guest kernel's rings.
    pub geometry: Geometry,
    /// Processes of the guest that can record at the same time.
    pub process_slots: u32,
    /// What is watched for, and leads to a snapshot.
    pub triggers: TriggerRequest,
    /// Where and when the recorder runs.
    pub scheduling: Scheduling,
    /// Samples of each vCPU per second; the agent's default if there is none.
    pub sample_frequency: Option<u32>,
}

impl RunRequest {
    /// Where the recording goes, as other processes find it too. A path that cannot be made absolute stays as it is.
    #[must_use]
    pub fn absolute_trace(&self) -> Option<PathBuf> {
        self.trace.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()))
    }
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
    /// Nothing was said.
    Unspecified,
    /// Nothing, on purpose.
    None,
}
