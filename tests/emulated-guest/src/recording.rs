//! The recording of the guest, and what its control socket answers.

use crate::machine::Ending;
use clock_sync::calibration::read_together;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use strata_clock::{HostClock, VcpuClocks};
use strata_machine::probe_kvm;
use strata_recorder::control::directory::VmDescription;
use strata_recorder::control::protocol::{Answer, Mode, Request};
use strata_recorder::control::server::ControlServer;
use strata_recorder::host_description::describe_host;
use strata_recorder::live::vcpu_activity::VcpuThreads;
use strata_recorder::recorder::{Recorder, RecorderControl};
use strata_recorder::region::region_file::RegionFile;
use strata_recorder::session::{RecordedVm, RecordingBuilder, RecordingRequest};
use strata_recording::clock::VcpuRelation;
use strata_recording::files::trace_folder::TraceFolder;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Missing, Vm};
use uuid::Uuid;
use vmm::attach::region::{GuestRegion, missing_agent};

/// What is recorded, and where it goes.
#[derive(Debug)]
pub struct Order<'a> {
    /// The region's file.
    pub region: PathBuf,
    /// Where the recording goes.
    pub trace: &'a Path,
    /// Which events are recorded.
    pub events: &'a str,
    /// What a full ring does.
    pub mode: Mode,
    /// Offset of the guest's TSC to this machine's, ticks.
    pub tsc_offset: i64,
}

/// A guest that is being recorded.
pub struct GuestRecording {
    recorder: Recorder,
    _control: ControlServer,
    /// Tells the guest, when it is dropped, that nobody reads the region any more.
    _guest: GuestRegion,
}

impl GuestRecording {
    /// Records the guest of `description`. Its control socket is `socket`, and `stop` stops it.
    ///
    /// # Errors
    /// The region, the recording or the socket cannot be had.
    pub fn start(
        description: VmDescription,
        clock: HostClock,
        order: &Order<'_>,
        socket: &Path,
        stop: impl FnMut() + Send + 'static,
    ) -> anyhow::Result<Self> {
        let file = RegionFile::open(&order.region)?;
        let VmDescription { name, vcpus, .. } = description.clone();
        let utc = read_together(|| clock.time.now(), clock.trace_frequency());
        let relation = |vcpu| VcpuRelation {
            vm: name.clone(),
            vcpu,
            tsc_offset: order.tsc_offset,
            how: "the time at which QEMU began to emulate the processor".into(),
        };
        let statement = clock.statement(Uuid::new_v4(), utc, (0..vcpus).map(relation).collect());
        let guest = GuestRegion::take(file, statement.uuid, clock.trace_frequency(), |line| eprintln!("{line}"))?;
        let clocks = Arc::new(VcpuClocks::new(&name, vcpus, clock.parameters(), guest.epoch_sink()));
        (0..vcpus).for_each(|vcpu| clocks.observe_offset(vcpu, order.tsc_offset));
        let mut request = RecordingRequest::new(order.trace);
        (request.layers.events, request.layers.mode) = (order.events.into(), order.mode.into());
        let mut requested = RecordingBuilder::new(&request, &LayerKind::ALL)?;
        requested.missing.extend(missing());
        let side = guest.begin(requested.selection())?;
        let vm = RecordedVm {
            vm: Vm { name, vcpus, region: Some(order.region.clone()), ..Vm::default() },
            host: describe_host(probe_kvm().kind.name()),
            clock: statement,
            clocks,
            vcpu_threads: VcpuThreads::default(),
        };
        (requested.guest, requested.process_descriptors) = (Some(side), 256);
        requested.notify = |line| eprintln!("{line}");
        TraceFolder::create(order.trace, request.files.readers)?.keep();
        let recorder = Recorder::start(requested, vm)?;
        let control = ControlServer::start(socket, answers(description, recorder.control(), stop))?;
        Ok(Self { recorder, _control: control, _guest: guest })
    }

    /// Completes the recording of a guest that has come to this `ending`.
    ///
    /// # Errors
    /// The recording is not complete.
    pub fn finish(self, ending: &Ending) -> anyhow::Result<()> {
        self.recorder.finish(ending.to_string())?;
        Ok(())
    }
}

/// The layers that nobody records here.
fn missing() -> impl Iterator<Item = Missing> {
    let nobody = |layer| Missing {
        layer,
        reason: "the guest's processor is emulated: there is no KVM to trace".into(),
        fix: "none is needed".into(),
    };
    [LayerKind::HostKernel, LayerKind::Vmm].into_iter().map(nobody).chain(missing_agent())
}

/// What the control socket answers.
fn answers(
    description: VmDescription,
    recorder: RecorderControl,
    mut stop: impl FnMut() + Send + 'static,
) -> impl FnMut(Request) -> Answer + Send + 'static {
    let begun = Instant::now();
    move |request| match request {
        Request::Stop => {
            stop();
            Answer::done("the guest is being stopped, and its trace completed")
        }
        Request::Pause | Request::Resume | Request::Balloon { .. } | Request::Detach => {
            Answer::refused("there is no such thing where the guest's processor is emulated")
        }
        request => match recorder.request(request) {
            Answer::Status(status) => Answer::Status(Box::new(description.status(begun.elapsed(), status.trace))),
            other => other,
        },
    }
}
