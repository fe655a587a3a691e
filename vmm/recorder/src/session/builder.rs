//! A recording before it begins: what was requested, checked, and the parts that whoever records brings.
//!
//! A monitor makes a [`RecordingBuilder`] of a request before it makes anything else, gives it what is to be recorded
//! as it comes to have that, and starts a [`Recorder`](crate::recorder::Recorder) with it and with the VM.

use crate::drain::scheduling::{Drain, Scheduling};
use crate::drain::work_alarm::WorkAlarms;
use crate::layer::host_tracer::{Traced, start_host_tracer};
use crate::layer::limit::LayerLimits;
use crate::live::vcpu_activity::VcpuThreads;
use crate::selection::Selection;
use crate::session::recording::{AtSnapshot, GuestSide, Recording};
use crate::session::request::{RecordingRequest, RequestError};
use crate::trigger::host_load::HostLoad;
use shared_ring::event::EventDescription;
use std::fs::File;
use std::sync::Arc;
use strata_clock::{HostTime, VcpuClocks};
use strata_host_kernel::{HostTraceError, HostTracer};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{FORMAT_VERSION, Host, Manifest, Missing, Started, Vm};
use strata_recording::writer::Rotation;

/// What happens when a layer ends early; called again with the next poll while it returns `false`. It is called on the
/// recorder's thread.
pub type OnFailure = Box<dyn FnMut() -> bool + Send>;

/// Tells the user a line. It is called on the recorder's thread.
pub type Notify = fn(&str);

/// A recording before it begins. It is made without any part: it has no layers, tells nobody anything, and goes on with
/// the other layers when one fails.
pub struct RecordingBuilder {
    pub(super) request: RecordingRequest,
    /// Draining in idle times was requested and cannot be had.
    lacks_idle_times: bool,
    pub(super) selection: Selection,
    pub(super) limits: LayerLimits,
    pub(super) host: Option<HostTracer>,
    pub(super) host_load: Option<HostLoad>,
    /// An empty file in which a flight recorder holds the host kernel's records, so that they outlive the process.
    pub history_file: Option<File>,
    /// The guest's side, and the VMM's own events.
    pub guest: Option<GuestSide>,
    /// What wakes the recorder when the guest works.
    pub alarms: Arc<WorkAlarms>,
    /// File descriptors that the streams of guest processes may take.
    pub process_descriptors: usize,
    /// The layers that the recording will lack, as far as that is known.
    pub missing: Vec<Missing>,
    /// Gets what the user should know at once, a line each.
    pub notify: Notify,
    /// Called when a layer has ended early.
    pub on_failure: Option<OnFailure>,
    /// Takes what snapshots have beside the layers.
    pub at_snapshot: Option<AtSnapshot>,
}

/// The VM that is recorded, and the clock of its recording.
pub struct RecordedVm {
    /// What the recording says of the VM at first.
    pub vm: Vm,
    /// What it says of the host.
    pub host: Host,
    /// What it says of its clock at first.
    pub clock: Clock,
    /// The vCPUs' clocks.
    pub clocks: Arc<VcpuClocks>,
    /// Index and host thread of each vCPU, filled in as they start or are found.
    pub vcpu_threads: VcpuThreads,
}

impl RecordingBuilder {
    /// The recording that `request` asks for, of these `layers` at most.
    ///
    /// # Errors
    /// When it cannot be had as it is requested.
    pub fn new(request: &RecordingRequest, layers: &[LayerKind]) -> Result<Self, RequestError> {
        let (selection, limits, scheduling) = request.check(layers)?;
        let lacks_idle_times = scheduling.drain != request.scheduling.drain;
        Ok(Self {
            request: RecordingRequest { scheduling, ..request.clone() },
            lacks_idle_times,
            selection,
            limits,
            host: None,
            host_load: None,
            history_file: None,
            guest: None,
            alarms: Arc::default(),
            process_descriptors: 0,
            missing: Vec::new(),
            notify: |_| (),
            on_failure: None,
            at_snapshot: None,
        })
    }

    /// Starts to trace the host's kernel for `traced`, if any of its events are wanted, with times of `time`. Do this
    /// before the process gives up what that needs.
    ///
    /// # Errors
    /// The kernel cannot be traced here or by this user, or none of the wanted events can be. Everything else can still
    /// be recorded.
    pub fn trace_host(&mut self, time: HostTime, traced: Traced) -> Result<(), HostTraceError> {
        self.host_load = HostLoad::open().ok();
        self.host = start_host_tracer(&self.selection, time, traced)?;
        Ok(())
    }

    /// Checks the triggers against the events of the host's kernel and those of other layers that are `known`. A layer
    /// without events is not recorded, and what is missing says why; events of one that is left out are not known yet.
    ///
    /// # Errors
    /// When a trigger is on something that is not recorded, or on the host's load where that is not told.
    pub fn check_triggers(&self, known: &[(LayerKind, &[EventDescription])]) -> Result<(), RequestError> {
        let triggers = &self.request.triggers;
        triggers.check_host(self.host_load.is_some())?;
        let host = self.host.as_ref().map(HostTracer::events).unwrap_or_default();
        let known: Vec<_> = [(LayerKind::HostKernel, &*host)].into_iter().chain(known.iter().copied()).collect();
        Ok(triggers.check(&known, &self.selection, &self.missing)?)
    }

    /// What wakes the recorder's thread, and how that runs.
    pub(crate) fn begin(&mut self) -> (Arc<WorkAlarms>, Scheduling) {
        if self.lacks_idle_times {
            (self.notify)(
                "--drain idle does not work here: without capabilities, the recorder cannot get its normal priority back \
                 (raise `ulimit -e`, which needs CAP_SYS_RESOURCE); it drains as with --drain always",
            );
        }
        if self.request.scheduling.drain == Drain::Idle {
            // A look that has begun when the recorder is late is ended at normal priority.
            self.host.iter_mut().for_each(HostTracer::poll_briefly);
        }
        (Arc::clone(&self.alarms), self.request.scheduling.clone())
    }

    /// What was requested.
    #[must_use]
    pub const fn request(&self) -> &RecordingRequest {
        &self.request
    }

    /// Which events are wanted.
    #[must_use]
    pub const fn selection(&self) -> &Selection {
        &self.selection
    }

    /// What traces the host's kernel, once it is traced.
    #[must_use]
    pub const fn host(&self) -> Option<&HostTracer> {
        self.host.as_ref()
    }
}

impl RecordedVm {
    /// The recording of it that `request` asks for, with the events of `selection`, the `guest`'s side and what is
    /// `missing`.
    pub(crate) fn recording(
        self,
        request: &RecordingRequest,
        selection: Selection,
        guest: Option<GuestSide>,
        missing: Vec<Missing>,
    ) -> Recording {
        let Self { vm, host, clock, clocks, vcpu_threads } = self;
        let name = vm.name.clone();
        let manifest = Manifest {
            format: FORMAT_VERSION,
            strata: env!("CARGO_PKG_VERSION").into(),
            started: Started::at(clock.utc.utc_ns),
            clock,
            host,
            vms: vec![vm],
            layers: Vec::new(),
            missing,
            max_size: None,
            compression: request.files.compression,
            outcome: None,
        };
        Recording {
            dir: Some(request.files.absolute_trace()),
            readers: request.files.readers,
            rotation: request.files.max_size.map(Rotation::new),
            vcpu_threads,
            guest,
            ..Recording::new(manifest, name, selection, clocks)
        }
    }
}
