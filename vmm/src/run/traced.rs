//! A traced VM: prepared, started, finished.

use super::answers::answers;
use super::failure::RunFailure;
use super::guest::{Ran, run_machine};
use super::guest_ring::{GuestRing, add_guest_ring};
use super::limits::{ConsoleLimits, LimitedDevices};
use super::manifest::{note_no_agent, vcpu_relations};
use super::plan::Plan;
use super::request::{Agent, RunRequest};
use super::rings::{region_config, vmm_rings};
use super::trace_failure::on_failure;
use super::{RunReport, close, descriptors};
use clock_sync::calibration::{CrossTimestamp, read_together};
use rustix::thread::gettid;
use shared_ring::event::EventDescription;
use shared_ring::layout::{ABI_VERSION, Mode};
use shared_ring::region::Rings;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use strata_clock::{ClockParameters, EpochSink, HostClock, HostTime, RenewalThread, VcpuClocks};
use strata_jail::Jail;
use strata_jail::policy::Thread;
use strata_machine::{DiscoveryLeaf, KvmProbe, Machine, SharedSlot};
use strata_recorder::control::directory::{VmDescription, VmDirectory};
use strata_recorder::control::server::ControlServer;
use strata_recorder::host_description::describe_host;
use strata_recorder::layer::host_tracer::{Traced, missing_host_layer};
use strata_recorder::recorder::Recorder;
use strata_recorder::recorder::cpu_list::CpuList;
use strata_recorder::recorder::work_alarm::WorkAlarms;
use strata_recorder::region::mapped_file;
use strata_recorder::region::{EnabledEvents, RegionSlot, TraceRegion};
use strata_recorder::session::recording::{GuestSide, VcpuThreads, enabled_guest_events};
use strata_recorder::session::{RecordedVm, RecordingBuilder, RecordingRequest, Say};
use strata_recorder::vmm_events::{EVENTS, VcpuThreadHook, VmmTracer};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Vm;
use strata_recording::trace_folder::{SnapshotFolder, TraceFolder};
use uuid::Uuid;

/// A traced VM whose parts are all made: nothing of it runs. Dropping it leaves nothing behind.
pub(super) struct PreparedVm<'a> {
    request: &'a RunRequest,
    description: VmDescription,
    machine: Machine,
    /// The vCPUs' clocks, if the guest's counters can be related to the trace clock.
    clocks: Option<Arc<VcpuClocks>>,
    region: Arc<TraceRegion>,
    vmm: Arc<VmmTracer>,
    recording: RecordingBuilder,
    vm: RecordedVm,
    say: Say,
    folder: TraceFolder,
    snapshots: SnapshotFolder,
    directory: VmDirectory,
    jail: Jail,
    /// Whether the machine was stopped because a layer of the trace ended early.
    has_stopped: Arc<AtomicBool>,
    /// The ring of a guest without an agent.
    guest_ring: Option<Arc<GuestRing>>,
}

impl<'a> PreparedVm<'a> {
    /// Makes what `plan` needs: its region in `directory`, the machine, the tracers of host and VMM, and the folders of
    /// the `recording`. `say` is told what the user should know.
    ///
    /// # Errors
    /// The first part that cannot be made.
    pub(super) fn prepare(
        plan: Plan<'a>,
        mut recording: RecordingBuilder,
        description: VmDescription,
        directory: VmDirectory,
        jail: Jail,
        say: Say,
    ) -> Result<Self, RunFailure> {
        let Plan { request, mut config, probed, guest_events, agentless, .. } = plan;
        let rings = Rings { geometry: request.geometry, mode: recording.request().layers.mode };
        let clock_uuid = Uuid::new_v4();
        let host_clock = HostClock::observe(probed.tsc_khz);
        let frequency = host_clock.trace_frequency();
        let region_file = jail.act(|| directory.create_region())??;
        let region = Arc::new(TraceRegion::create(region_file, region_config(request, rings), clock_uuid, frequency)?);
        config.shared_slots = region.slots().into_iter().map(shared_slot).collect();
        config.discovery = Some(DiscoveryLeaf { abi_version: ABI_VERSION });
        let machine = Machine::new(config)?;
        let doorbell = machine.doorbell()?;
        region.set_doorbell(doorbell.gsi(), move || doorbell.ring());

        let process = std::process::id();
        // This thread starts all others of the machine: the kernel follows them.
        let starter = gettid().as_raw_nonzero().get().cast_unsigned();
        let traced = Traced { process, threads: vec![starter], takes_more: false };
        // What keeps the layer from being had is noted, not fatal.
        if let Err(error) = recording.trace_host(host_clock.time, traced) {
            recording.note_missing([missing_host_layer(&error)]);
        }
        let vmm_events: Vec<EventDescription> = EVENTS.iter().map(EventDescription::from).collect();
        let known = [(LayerKind::Vmm, &*vmm_events), (LayerKind::GuestKernel, &*guest_events)];
        // Those of an agent that the guest itself brings are known once it registers them.
        recording.check_triggers(&known[..if guest_events.is_empty() { 1 } else { 2 }])?;
        let vcpu_threads = VcpuThreads::default();
        let alarms = Arc::new(WorkAlarms::new(request.cpus));
        let on_vcpu_thread = note_vcpu_threads(Arc::clone(&vcpu_threads), Arc::clone(&alarms));
        let file = jail.act(|| directory.create_vmm_rings())??;
        let vmm_rings = vmm_rings(request, rings.mode);
        let memory = mapped_file::map(&file, VmmTracer::memory_size(request.cpus, vmm_rings))?;
        let chosen = |name: &str| recording.selection().includes(LayerKind::Vmm, name);
        let vmm = VmmTracer::new(request.cpus, vmm_rings, memory, host_clock.time, chosen, on_vcpu_thread);
        let vmm = Arc::new(vmm);

        let relations = vcpu_relations(&machine, &probed, &request.name, &mut recording);
        let has_clock = !relations.is_empty();
        // Without an agent of ours, too: the guest may bring its own.
        let enabled =
            if has_clock { enabled_guest_events(&guest_events, recording.selection()) } else { EnabledEvents::NONE };
        region.set_enabled(0, &enabled);
        region.set_host_alive(has_clock);
        note_no_agent(&request.agent, agentless.is_some(), &mut recording);

        let has_stopped = Arc::new(AtomicBool::new(false));
        let clock = host_clock.statement(clock_uuid, utc_reading(&host_clock, &machine), relations);
        let files = &recording.request().files;
        let (folder, snapshots) = jail.act(|| files.create())??;
        let parameters = clock_parameters(&host_clock, &machine, &probed);
        let sink = epoch_sink(Arc::clone(&region), Arc::clone(&vmm));
        let clocks = Arc::new(VcpuClocks::new(&request.name, request.cpus, parameters, sink));
        let guest = GuestSide {
            region: Arc::clone(&region),
            slot: 0,
            rings,
            vmm: Some(Arc::clone(&vmm)),
            events: guest_events.into(),
            agent: matches!(request.agent, Agent::Module(_)) && has_clock,
            beside_region: Some(directory.path().into()),
        };
        let is_kept = recording.host().is_some() && rings.mode == Mode::FlightRecorder;
        let history_file = is_kept.then(|| jail.act(|| directory.create_host_history())).transpose()?.transpose()?;
        let guest_ring = agentless.map(|agentless| Arc::new(GuestRing::new(agentless, &host_clock)));
        let recording = recording
            .host_history(history_file)
            .guest(Some(guest))
            .alarms(alarms)
            .process_descriptors(descriptors::for_processes(request.cpus, request.vsock.is_some()))
            .at_snapshot(guest_ring.as_ref().map(|ring| ring.at_snapshot(machine.control(), &request.name)))
            .say(say)
            .on_failure(on_failure(
                request.on_trace_failure,
                request.name.clone(),
                machine.control(),
                machine.stop_handle(),
                Arc::clone(&has_stopped),
                say,
            ));
        let vm = RecordedVm {
            vm: Vm {
                name: request.name.clone(),
                vcpus: request.cpus,
                region: Some(directory.region()),
                ..Vm::default()
            },
            host: describe_host(probed.kind.name()),
            clock,
            clocks: Arc::clone(&clocks),
            vcpu_threads,
        };
        let clocks = has_clock.then_some(clocks);
        Ok(Self {
            request,
            description,
            machine,
            clocks,
            region,
            vmm,
            recording,
            vm,
            say,
            folder,
            snapshots,
            directory,
            has_stopped,
            jail,
            guest_ring,
        })
    }

    /// Gives up what needs no longer be had, then begins to record and to answer what the control socket asks for. The
    /// user is told what the recording will lack, and where it goes.
    ///
    /// # Errors
    /// The process cannot be confined, or the recording or the control socket cannot be made.
    pub(super) fn start(self) -> Result<StartedVm, RunFailure> {
        let Self {
            request,
            description,
            machine,
            clocks,
            region,
            vmm,
            recording,
            vm,
            say,
            folder,
            snapshots,
            directory,
            has_stopped,
            jail,
            guest_ring,
        } = self;
        for layer in recording.missing() {
            say(&format!("{} is missing: {} ({})", layer.layer, layer.reason, layer.fix));
        }
        let closed = close(jail, &directory, request, Some((&folder, &snapshots)), say)?;
        let RecordingRequest { layers, scheduling, .. } = recording.request().clone();
        let recorder = Recorder::start(recording, vm)?;
        let console = ConsoleLimits::new(request);
        let limited = LimitedDevices::new(request, &machine, &console);
        let answers =
            answers(description, Some(recorder.control()), machine.control(), machine.stop_handle(), limited, closed);
        let control = ControlServer::start(&directory.socket(), answers)?;
        let trace = folder.path().display();
        match layers.mode {
            Mode::Discard => say(&format!("tracing into {trace}")),
            Mode::FlightRecorder => say(&format!(
                "flight recorder on, written into {trace} at the end; strata ctl {} snapshot DIR writes it meanwhile",
                request.name
            )),
        }
        let name = request.name.clone();
        Ok(StartedVm {
            name,
            machine,
            console,
            clocks,
            cpus: scheduling.cpus,
            region,
            vmm,
            control,
            recorder,
            folder,
            snapshots,
            directory,
            has_stopped,
            guest_ring,
        })
    }
}

/// A VM whose recorder and control socket run; its guest enters with [`finish`](Self::finish).
pub(super) struct StartedVm {
    name: String,
    machine: Machine,
    console: ConsoleLimits,
    clocks: Option<Arc<VcpuClocks>>,
    /// Where strata's threads run.
    cpus: Option<CpuList>,
    region: Arc<TraceRegion>,
    vmm: Arc<VmmTracer>,
    control: ControlServer,
    recorder: Recorder,
    folder: TraceFolder,
    snapshots: SnapshotFolder,
    directory: VmDirectory,
    has_stopped: Arc<AtomicBool>,
    guest_ring: Option<Arc<GuestRing>>,
}

impl StartedVm {
    /// Runs the guest until it ends, then completes the recording.
    ///
    /// # Errors
    /// The machine cannot be started, and nothing is left behind; or the recording is not complete, and its region is
    /// kept.
    pub(super) fn finish(self) -> Result<RunReport, RunFailure> {
        let Self {
            name,
            machine,
            console,
            clocks,
            cpus,
            region,
            vmm,
            control,
            recorder,
            mut folder,
            snapshots: _snapshots,
            mut directory,
            has_stopped,
            guest_ring,
        } = self;
        let (at_end, collected) = guest_ring.as_ref().map(GuestRing::at_end).unzip();
        let ran = {
            let machine_control = machine.control();
            let renew = move || machine_control.renew_clocks();
            let begin = move || {
                // Elsewhere it does its work as well.
                let _ = cpus.map(|cpus| cpus.place_this_thread());
                strata_jail::enter(Thread::Clock);
            };
            let _renewals = clocks.as_ref().map(|clocks| RenewalThread::start(clocks.interval_ns(), begin, renew));
            run_machine(machine, &console, vmm, clocks, at_end)
        };
        region.set_host_alive(false);
        // From here on nobody asks any more: the recorder is to come to its end.
        drop(control);
        let ran = match ran {
            Ok(ran) => ran,
            Err(error) => {
                // Nothing ran: the first error is the one to report, and the folder goes.
                let _ = recorder.finish("not started".into());
                return Err(error);
            }
        };
        folder.keep();
        let Ran { outcome, console_dropped } = ran;
        let trace_failed = has_stopped.load(Ordering::Relaxed);
        let told = match trace_failed {
            true => format!("{outcome}, because a layer of the trace ended early"),
            false => outcome.to_string(),
        };
        let last = collected.and_then(|collected| add_guest_ring(&collected, folder.path().into(), name));
        match recorder.finish_with(told, last) {
            Ok(manifest) => Ok(RunReport { outcome, manifest: Some(manifest), console_dropped, trace_failed }),
            Err(source) => {
                directory.keep();
                Err(RunFailure::Incomplete { region: directory.region(), source })
            }
        }
    }
}

/// The memory slot in which the machine shows the guest a part of the region.
fn shared_slot(slot: RegionSlot) -> SharedSlot {
    let RegionSlot { mapping, offset, size, read_only } = slot;
    SharedSlot { mapping, offset, size, read_only }
}

/// Notes each vCPU's host thread when it starts, and has its work wake the recorder.
fn note_vcpu_threads(threads: VcpuThreads, alarms: Arc<WorkAlarms>) -> VcpuThreadHook {
    Box::new(move |vcpu, tid| {
        threads.lock().unwrap_or_else(PoisonError::into_inner).push((vcpu, tid));
        alarms.watch_this_thread();
    })
}

/// The trace clock and UTC, read together.
fn utc_reading(clock: &HostClock, machine: &Machine) -> CrossTimestamp {
    let frequency = clock.trace_frequency();
    match clock.time {
        HostTime::Tsc => machine.cross_timestamp(frequency),
        HostTime::MonotonicRaw => read_together(|| HostTime::MonotonicRaw.now(), frequency),
    }
}

fn clock_parameters(clock: &HostClock, machine: &Machine, probed: &KvmProbe) -> ClockParameters {
    ClockParameters {
        guest_tsc_hz: machine.tsc_khz().map_or(clock.frequency, |khz| u64::from(khz) * 1000),
        first_offsets: machine.tsc_offsets().unwrap_or_default().to_vec(),
        offset_honoured: probed.tsc_offset_honoured != Some(false),
        ..clock.parameters()
    }
}

/// Where new epochs of a vCPU's clock go: to the guest, which reads them from `region`, and to the VMM layer.
fn epoch_sink(region: Arc<TraceRegion>, vmm: Arc<VmmTracer>) -> EpochSink {
    Box::new(move |vcpu, epoch, bound_ns| {
        region.publish_clock(vcpu, &epoch.relation);
        vmm.clock_update(vcpu, epoch.number, &epoch.relation, epoch.cause, bound_ns);
    })
}
