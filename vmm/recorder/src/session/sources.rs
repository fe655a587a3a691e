//! What the first session of a recorder is made of.

use crate::layer::host::HostHistory;
use crate::layer::limit::LayerLimits;
use crate::recorder::work_alarm::WorkAlarms;
use crate::session::recording::{AtSnapshot, Recording};
use crate::trigger::TriggerRequest;
use crate::trigger::host_load::HostLoad;
use shared_ring::layout::Mode;
use std::sync::Arc;
use strata_host_kernel::HostTracer;

/// What the first session of a recorder is made of: that of a VM that this process starts, or one that is attached to
/// another process's VM.
pub struct Sources {
    /// The recording, without layers.
    pub recording: Recording,
    /// The host's kernel, if it can be traced.
    pub host: Option<HostTracer>,
    /// Whether records are written as they come. The rings of a guest's side have the same mode.
    pub mode: Mode,
    /// Where a flight recorder holds the host kernel's records.
    pub host_history: HostHistory,
    /// The choice of events as the user gave it.
    pub events: String,
    /// What keeps layers within rates.
    pub limits: LayerLimits,
    /// File descriptors that the streams of guest processes may take.
    pub process_descriptors: usize,
    /// What wakes the recorder when the guest works.
    pub alarms: Arc<WorkAlarms>,
    /// Told what the user should know at once, a line each.
    pub say: Say,
    /// Called when a layer has ended early.
    pub on_failure: Option<OnFailure>,
    /// What is watched for from the start.
    pub triggers: Option<TriggerRequest>,
    /// What tells the host's load, where that can be had.
    pub host_load: Option<HostLoad>,
    /// Takes what snapshots have beside the layers.
    pub at_snapshot: Option<AtSnapshot>,
}

/// What happens when a layer ends early; called again with the next poll while it returns `false`. It is called on the
/// recorder's thread.
pub type OnFailure = Box<dyn FnMut() -> bool + Send>;

/// Tells the user a line. It is called on the recorder's thread.
pub type Say = fn(&str);
