//! A traced VM: prepared, started, finished.

use super::answers::answers;
use super::failure::RunFailure;
use super::guest::{Ran, run_machine};
use super::guest_ring::{GuestRing, add_guest_ring};
use super::limits::{ConsoleLimits, LimitedDevices};
use super::manifest::{manifest, note_no_agent, vcpu_relations};
use super::plan::Plan;
use super::request::{Agent, RunRequest};
use super::rings::{kernel_rings, region_config, vmm_rings};
use super::trace_failure::on_failure;
use super::{RunReport, close, descriptors};
use clock_sync::calibration::{CrossTimestamp, read_together};
use rustix::thread::gettid;
use shared_ring::event::EventDescription;
use shared_ring::layout::{ABI_VERSION, Mode};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use strata_clock::{ClockParameters, EpochSink, HostClock, HostTime, RenewalThread, VcpuClocks};
use strata_host_kernel::HostTracer;
use strata_jail::Jail;
use strata_jail::policy::Thread;
use strata_machine::{DiscoveryLeaf, KvmProbe, Machine, SharedSlot};
use strata_recorder::control::directory::{VmDescription, VmDirectory};
use strata_recorder::control::server::ControlServer;
use strata_recorder::layer::host::HostHistory;
use strata_recorder::layer::host_tracer::{Traced, missing_host_layer, start_host_tracer};
use strata_recorder::recorder::Recorder;
use strata_recorder::recorder::cpu_list::CpuList;
use strata_recorder::recorder::work_alarm::WorkAlarms;
use strata_recorder::region::mapped_file;
use strata_recorder::region::{EnabledEvents, RegionSlot, TraceRegion};
use strata_recorder::session::recording::{GuestSide, Recording, VcpuThreads, enabled_guest_events};
use strata_recorder::session::selection::Selection;
use strata_recorder::session::{Say, Sources};
use strata_recorder::trigger::host_load::HostLoad;
use strata_recorder::vmm_events::{EVENTS, VcpuThreadHook, VmmTracer};
use strata_recording::layer::LayerKind;
use strata_recording::reserve::Reserve;
use strata_recording::trace_folder::{SnapshotFolder, TraceFolder};
use strata_recording::writer::Rotation;
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
    sources: Sources,
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
    /// Makes what `plan` needs: its region in `directory`, the machine, the tracers of host and VMM, and the folder
    /// `trace`. `say` is told what the user should know.
    ///
    /// # Errors
    /// The first part that cannot be made.
    pub(super) fn prepare(
        plan: Plan<'a>,
        trace: &Path,
        description: VmDescription,
        directory: VmDirectory,
        jail: Jail,
        say: Say,
    ) -> Result<Self, RunFailure> {
        let Plan { request, mut config, probed, selection, guest_events, limits, agentless, .. } = plan;
        let clock_uuid = Uuid::new_v4();
        let host_clock = HostClock::observe(probed.tsc_khz);
        let frequency = host_clock.trace_frequency();
        let region_file = jail.act(|| directory.create_region())??;
        let region = Arc::new(TraceRegion::create(region_file, region_config(request), clock_uuid, frequency)?);
        config.shared_slots = region.slots().into_iter().map(shared_slot).collect();
        config.discovery = Some(DiscoveryLeaf { abi_version: ABI_VERSION });
        let machine = Machine::new(config)?;
        let doorbell = machine.doorbell()?;
        region.set_doorbell(doorbell.gsi(), move || doorbell.ring());

        let mut missing = Vec::new();
        let process = std::process::id();
        // This thread starts all others of the machine: the kernel follows them.
        let starter = gettid().as_raw_nonzero().get().cast_unsigned();
        let traced = Traced { process, threads: vec![starter], takes_more: false };
        let host = start_host_tracer(&selection, host_clock.time, traced);
        // What keeps the layer from being had is noted, not fatal.
        let host = host.unwrap_or_else(|error| {
            missing.push(missing_host_layer(&error));
            None
        });
        let host_events = host.as_ref().map(HostTracer::events).unwrap_or_default();
        let vmm_events: Vec<EventDescription> = EVENTS.iter().map(EventDescription::from).collect();
        // Opened before the process is confined.
        let host_load = HostLoad::open().ok();
        request.triggers.check_host(host_load.is_some())?;
        request.triggers.check(LayerKind::HostKernel, &host_events, &selection)?;
        request.triggers.check(LayerKind::Vmm, &vmm_events, &selection)?;
        if !guest_events.is_empty() {
            request.triggers.check(LayerKind::GuestKernel, &guest_events, &selection)?;
        }
        let vcpu_threads = VcpuThreads::default();
        let alarms = Arc::new(WorkAlarms::new(request.cpus));
        let on_vcpu_thread = note_vcpu_threads(Arc::clone(&vcpu_threads), Arc::clone(&alarms));
        let vmm = Arc::new(vmm_tracer(
            request,
            &selection,
            &jail.act(|| directory.create_vmm_rings())??,
            host_clock.time,
            on_vcpu_thread,
        )?);

        let relations = vcpu_relations(&machine, &probed, &request.name, &mut missing);
        let has_clock = !relations.is_empty();
        // Without an agent of ours, too: the guest may bring its own.
        let enabled = if has_clock { enabled_guest_events(&guest_events, &selection) } else { EnabledEvents::NONE };
        region.set_enabled(0, &enabled);
        region.set_host_alive(has_clock);
        note_no_agent(&request.agent, agentless.is_some(), &mut missing);

        let has_stopped = Arc::new(AtomicBool::new(false));
        let clock = host_clock.statement(clock_uuid, utc_reading(&host_clock, &machine), relations);
        let manifest = manifest(request, &probed, clock, directory.region(), missing);
        let folder = jail.act(|| TraceFolder::create(trace, request.readers))??;
        let snapshots = jail.act(|| SnapshotFolder::create(trace, request.readers))??;
        let parameters = clock_parameters(&host_clock, &machine, &probed);
        let sink = epoch_sink(Arc::clone(&region), Arc::clone(&vmm));
        let clocks = Arc::new(VcpuClocks::new(&request.name, request.cpus, parameters, sink));
        let guest = GuestSide {
            region: Arc::clone(&region),
            slot: 0,
            rings: kernel_rings(request),
            vmm: Some(Arc::clone(&vmm)),
            events: guest_events.into(),
            agent: matches!(request.agent, Agent::Module(_)) && has_clock,
            beside_region: Some(directory.path().into()),
        };
        let recording = Recording {
            dir: request.absolute_trace(),
            readers: request.readers,
            rotation: request.max_size.map(Rotation::new),
            reserve: Reserve::default(),
            manifest,
            vm: request.name.clone(),
            selection,
            vcpu_threads,
            clocks: Arc::clone(&clocks),
            guest: Some(guest),
        };
        let is_kept = host.is_some() && request.mode == Mode::FlightRecorder;
        let history_file = is_kept.then(|| jail.act(|| directory.create_host_history())).transpose()?.transpose()?;
        let guest_ring = agentless.map(|agentless| Arc::new(GuestRing::new(agentless, &host_clock)));
        let sources = Sources {
            at_snapshot: guest_ring.as_ref().map(|ring| ring.at_snapshot(machine.control(), &request.name)),
            recording,
            host,
            mode: request.mode,
            host_history: HostHistory { limit: request.host_history, file: history_file },
            events: request.events.clone(),
            triggers: Some(request.triggers.clone()),
            host_load,
            limits,
            alarms,
            process_descriptors: descriptors::for_processes(request.cpus, request.vsock.is_some()),
            say,
            on_failure: on_failure(
                request.on_trace_failure,
                request.name.clone(),
                machine.control(),
                machine.stop_handle(),
                Arc::clone(&has_stopped),
                say,
            ),
        };
        let clocks = has_clock.then_some(clocks);
        Ok(Self {
            request,
            description,
            machine,
            clocks,
            region,
            vmm,
            sources,
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
            sources,
            folder,
            snapshots,
            directory,
            has_stopped,
            jail,
            guest_ring,
        } = self;
        let say = sources.say;
        for layer in &sources.recording.manifest.missing {
            say(&format!("{} is missing: {} ({})", layer.layer, layer.reason, layer.fix));
        }
        let closed = close(jail, &directory, request, Some((&folder, &snapshots)), say)?;
        let recorder = Recorder::start_with(&request.scheduling, sources)?;
        let console = ConsoleLimits::new(request);
        let limited = LimitedDevices::new(request, &machine, &console);
        let answers =
            answers(description, Some(recorder.control()), machine.control(), machine.stop_handle(), limited, closed);
        let control = ControlServer::start(&directory.socket(), answers)?;
        let trace = folder.path().display();
        match request.mode {
            Mode::Discard => say(&format!("tracing into {trace}")),
            Mode::FlightRecorder => say(&format!(
                "flight recorder on, written into {trace} at the end; strata ctl {} snapshot DIR writes it meanwhile",
                request.name
            )),
        }
        let cpus = request.scheduling.cpus.clone();
        let name = request.name.clone();
        Ok(StartedVm {
            name,
            machine,
            console,
            clocks,
            cpus,
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

/// The VMM's own events, in rings that outlive this process in `file`.
fn vmm_tracer(
    request: &RunRequest,
    selection: &Selection,
    file: &File,
    time: HostTime,
    on_vcpu_thread: VcpuThreadHook,
) -> Result<VmmTracer, RunFailure> {
    let rings = vmm_rings(request);
    let memory = mapped_file::map(file, VmmTracer::memory_size(request.cpus, rings))?;
    let chosen = |name: &str| selection.includes(LayerKind::Vmm, name);
    Ok(VmmTracer::new(request.cpus, rings, memory, time, chosen, on_vcpu_thread))
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
        time: clock.time,
        frequency: clock.trace_frequency(),
        bound_ns: clock.error_bound_ns(),
        guest_tsc_hz: machine.tsc_khz().map_or(clock.frequency, |khz| u64::from(khz) * 1000),
        first_offsets: machine.tsc_offsets().unwrap_or_default().to_vec(),
        offset_honoured: probed.tsc_offset_honoured != Some(false),
    }
}

/// Where new epochs of a vCPU's clock go: to the guest, which reads them from `region`, and to the VMM layer.
fn epoch_sink(region: Arc<TraceRegion>, vmm: Arc<VmmTracer>) -> EpochSink {
    Box::new(move |vcpu, epoch, bound_ns| {
        region.publish_clock(vcpu, &epoch.relation);
        vmm.clock_update(vcpu, epoch.number, &epoch.relation, epoch.cause, bound_ns);
    })
}
