//! The recording of the guest, and what its control socket answers.

use crate::machine::Ending;
use clock_sync::calibration::read_together;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use strata_clock::{ClockParameters, HostClock, VcpuClocks};
use strata_machine::probe_kvm;
use strata_recorder::control::directory::VmDescription;
use strata_recorder::control::protocol::{Answer, Mode, Request, Status};
use strata_recorder::control::server::ControlServer;
use strata_recorder::host_description::describe_host;
use strata_recorder::layer::host::HostHistory;
use strata_recorder::layer::limit::LayerLimits;
use strata_recorder::recorder::{Recorder, RecorderControl};
use strata_recorder::region::region_file::RegionFile;
use strata_recorder::session::Sources;
use strata_recorder::session::recording::{Recording, VcpuThreads};
use strata_recorder::session::selection::Selection;
use strata_recording::access::Readers;
use strata_recording::clock::VcpuRelation;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{FORMAT_VERSION, Manifest, Missing, Vm};
use strata_recording::reserve::Reserve;
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
        let VmDescription { name, vcpus, started, .. } = description.clone();
        let utc = read_together(|| clock.time.now(), clock.trace_frequency());
        let relation = |vcpu| VcpuRelation {
            vm: name.clone(),
            vcpu,
            tsc_offset: order.tsc_offset,
            how: "the time at which QEMU began to emulate the processor".into(),
        };
        let statement = clock.statement(Uuid::new_v4(), utc, (0..vcpus).map(relation).collect());
        let guest = GuestRegion::take(file, statement.uuid, clock.trace_frequency(), |line| eprintln!("{line}"))?;
        let parameters = ClockParameters {
            time: clock.time,
            frequency: clock.trace_frequency(),
            bound_ns: clock.error_bound_ns(),
            guest_tsc_hz: clock.frequency,
            first_offsets: Vec::new(),
            offset_honoured: true,
        };
        let clocks = Arc::new(VcpuClocks::new(&name, vcpus, parameters, guest.epoch_sink()));
        (0..vcpus).for_each(|vcpu| clocks.observe_offset(vcpu, order.tsc_offset));
        let selection = Selection::parse(order.events)?;
        let side = guest.begin(&selection)?;
        let manifest = Manifest {
            format: FORMAT_VERSION,
            strata: env!("CARGO_PKG_VERSION").into(),
            started,
            clock: statement,
            host: describe_host(probe_kvm().kind.name()),
            vms: vec![Vm { name: name.clone(), vcpus, region: Some(order.region.clone()), ..Vm::default() }],
            layers: Vec::new(),
            missing: missing().collect(),
            max_size: None,
            compression: None,
            outcome: None,
        };
        let recording = Recording {
            dir: Some(std::path::absolute(order.trace)?),
            readers: Readers::default(),
            rotation: None,
            reserve: Reserve::default(),
            manifest,
            vm: name,
            selection,
            vcpu_threads: VcpuThreads::default(),
            clocks,
            guest: Some(side),
        };
        let recorder = Recorder::start(Sources {
            recording,
            host: None,
            mode: Mode::Discard.into(),
            host_history: HostHistory { limit: 0, file: None },
            events: order.events.into(),
            limits: LayerLimits::default(),
            alarms: Arc::default(),
            process_descriptors: 256,
            say: |line| eprintln!("{line}"),
            triggers: None,
            host_load: None,
            at_snapshot: None,
            on_failure: None,
        })?;
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
        request => match recorder.ask(request) {
            Answer::Status(status) => {
                let VmDescription { name, pid, vcpus, memory, .. } = description.clone();
                let uptime_s = begun.elapsed().as_secs();
                let trace = status.trace;
                Answer::Status(Box::new(Status { name, pid, uptime_s, vcpus, memory, trace, ..Status::default() }))
            }
            other => other,
        },
    }
}
