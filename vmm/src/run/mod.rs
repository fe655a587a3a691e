//! `strata run`: from a checked request to a completed recording.

pub mod clock;
mod clock_keeper;
mod console;
pub mod trace_folder;

use crate::agent::{self, AgentError};
use crate::control::directory::{self, DirectoryError, VmDescription, VmDirectory};
use crate::control::protocol::{Answer, Request, Status};
use crate::control::server::{ControlServer, ServerError};
use crate::host_kernel::tracefs::Tracefs;
use crate::host_kernel::{HostTraceConfig, HostTraceError, HostTracer};
use crate::host_time::HostTime;
use crate::machine::{
    DiscoveryLeaf, DiskConfig, Limits, Machine, MachineConfig, MachineControl, MachineError, NoObserver, Observer,
    Outcome, RunOptions, StopHandle, VcpuClock,
};
use crate::probe::{self, KvmKind, KvmProbe};
use crate::tracing::facts::{Facts, NO_AGENT, enabled_guest_events};
use crate::tracing::mapped_file;
use crate::tracing::recorder::{Recorder, RecorderControl, RecorderError, Sources};
use crate::tracing::region::{EnabledEvents, RegionError, TraceRegion};
use crate::tracing::selection::{Layer, Selection, SelectionError};
use crate::tracing::vcpu_clocks::{HostFacts, VcpuClocks};
use crate::tracing::vmm_events::{EVENTS, VmmTracer};
use clock::HostClock;
use clock_keeper::ClockKeeper;
use clock_sync::calibration::read_together;
use console::Keyboard;
use shared_ring::event::EventDescription;
use shared_ring::layout::{ABI_VERSION, Geometry, Mode};
use shared_ring::region::{RegionConfig, Rings};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error as StdError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use trace_folder::{TraceFolder, TraceFolderError};
use trace_merge::clock::VcpuRelation;
use trace_merge::session::{FORMAT_VERSION, Host, LayerKind, Missing, Session, Started, Vm};
use uuid::Uuid;

/// The kernel's rings unless the user says otherwise: 16 sub-buffers of 128 KiB for each vCPU.
pub const KERNEL_RINGS: (u64, u32) = (128 << 10, 16);
/// Room for the kernel's rings of each session that is made while the VM runs: 16 MiB for each vCPU. It takes memory
/// only as far as it is used.
const EXTRA_RINGS: (u64, u32) = (128 << 10, 128);
/// A process's rings: 16 sub-buffers of 64 KiB for each vCPU.
const PROCESS_RINGS: (u64, u32) = (64 << 10, 16);
/// Processes that can record at the same time, unless the user says otherwise.
pub const PROCESS_SLOTS: u32 = 16;
/// The kernel's event registry, bytes.
const REGISTRY_SIZE: usize = 512 << 10;
/// A process's event registry, bytes.
const PROCESS_REGISTRY_SIZE: usize = 124 << 10;
/// The VMM's own rings: 16 sub-buffers of 64 KiB for each thread.
const VMM_RINGS: (u64, u32) = (64 << 10, 16);
/// The host kernel's buffer per CPU, KiB.
const HOST_BUFFER_KIB: u32 = 8 << 10;

/// What to run.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// Name of the VM; a folder of the recording bears it.
    pub name: String,
    /// Kernel image, ELF or bzImage.
    pub kernel: PathBuf,
    /// Initial RAM file system.
    pub initrd: Option<PathBuf>,
    /// Number of vCPUs.
    pub cpus: u32,
    /// RAM, bytes.
    pub memory: u64,
    /// Disk images.
    pub disks: Vec<DiskConfig>,
    /// The guest's kernel command line.
    pub cmdline: String,
    /// Where the recording goes; nothing is traced without it.
    pub trace: Option<PathBuf>,
    /// What goes into the guest to trace it.
    pub agent: Agent,
    /// Which events are recorded, as [`Selection::parse`] reads it.
    pub events: String,
    /// What rings do when they are full.
    pub mode: Mode,
    /// Geometry of the guest kernel's rings.
    pub geometry: Geometry,
    /// Processes of the guest that can record at the same time.
    pub process_slots: u32,
}

/// What goes into the guest to trace it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agent {
    /// This kernel module.
    Module(PathBuf),
    /// Nothing was said.
    Unspecified,
    /// Nothing, on purpose.
    None,
}

/// Why a guest was not run, or its recording is not complete.
#[derive(Debug, Error)]
pub enum RunFailure {
    /// The event selection cannot be used.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The trace folder cannot be used.
    #[error(transparent)]
    TraceFolder(#[from] TraceFolderError),
    /// The agent cannot be used with this guest.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A file cannot be read.
    #[error("cannot read '{}': check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// This host's KVM does not run stock guests.
    #[error("{0}; `strata doctor` says more")]
    Kvm(String),
    /// The trace region cannot be made.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The machine cannot be built or started.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The recording cannot be written.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// There is no place for the VM's region and control socket.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The VM cannot be controlled.
    #[error(transparent)]
    Control(#[from] ServerError),
    /// The recording failed; what is in the region can still be had.
    #[error("the recording is not complete; `strata recover {} -o DIR` gets what is left in the trace region", region.display())]
    Incomplete {
        /// File of the region.
        region: PathBuf,
        /// What went wrong.
        #[source]
        source: RecorderError,
    },
    /// Signals cannot be handled.
    #[error("cannot handle signals")]
    Signals(#[source] io::Error),
}

/// How a run went.
#[derive(Debug)]
pub struct RunReport {
    /// How the guest ended.
    pub outcome: Outcome,
    /// The recording, if there is one.
    pub session: Option<Session>,
}

/// Runs a guest as `request` says, with this process's standard input and output as its console, until it ends or a
/// signal asks to stop. `say` is told what the user should know meanwhile, a line each.
///
/// # Errors
/// Nothing was run, or the recording is not complete. Input is checked before anything is made, and a recording that
/// never began leaves nothing behind.
pub fn run(request: &RunRequest, say: &mut dyn FnMut(&str)) -> Result<RunReport, RunFailure> {
    let selection = Selection::parse(&request.events)?;
    let host_events = Tracefs::find().and_then(|tracefs| tracefs.available_events());
    let module = match &request.agent {
        Agent::Module(module) if request.trace.is_some() => Some((module, read(module)?)),
        _ => None,
    };
    let guest_events = match &module {
        Some((file, bytes)) => agent::events(file, bytes)?.events,
        // Those of an agent that the guest itself brings are known once it registers them.
        None => Vec::new(),
    };
    check_selection(&selection, host_events.as_deref().ok(), &guest_events)?;
    if let Some(trace) = &request.trace {
        // Tried and removed again: a run that is refused below leaves no folder.
        drop(TraceFolder::create(trace)?);
    }
    let mut config = MachineConfig {
        kernel: request.kernel.clone(),
        initrd: request.initrd.clone(),
        initrd_overlay: Vec::new(),
        cpus: request.cpus,
        memory: request.memory,
        disks: request.disks.clone(),
        cmdline: request.cmdline.clone(),
        shared_slots: Vec::new(),
        discovery: None,
        tsc_offset: None,
    };
    config.check(&Limits::without_kvm()).and_then(|()| config.open().map(drop)).map_err(MachineError::from)?;
    if let Some((module, module_bytes)) = module {
        let kernel = read(&request.kernel)?;
        agent::check_module(module, &module_bytes, &request.kernel, &kernel)?;
        config.initrd_overlay = agent::overlay(&module_bytes);
        config.cmdline = agent::append_cmdline(&config.cmdline);
    }
    let probed = probe::probe();
    if let Some(refusal) = probed.refusal() {
        return Err(RunFailure::Kvm(refusal));
    }
    let description = describe_vm(request);
    let mut directory = VmDirectory::create(&directory::runtime_folder()?, &description)?;
    match &request.trace {
        Some(trace) => {
            run_traced(request, config, &probed, selection, guest_events, trace, &description, &mut directory, say)
        }
        None => {
            let machine = Machine::new(config)?;
            let answers = answers(description, None, machine.control());
            let _control = ControlServer::start(&directory.socket(), answers)?;
            let outcome = run_machine(machine, Arc::new(NoObserver), None)?;
            Ok(RunReport { outcome, session: None })
        }
    }
}

fn describe_vm(request: &RunRequest) -> VmDescription {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    VmDescription {
        name: request.name.clone(),
        pid: std::process::id(),
        started: Started::at(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)),
        vcpus: request.cpus,
        memory: request.memory,
        trace: request.trace.as_ref().map(|path| absolute(path)),
        monitor: request.trace.is_some().then(|| vmm_rings(request).into()),
    }
}

/// `path` as others find it too; a path that cannot be made so stays as it is.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// What the control socket answers for the VM of `description`, with `recorder` if it is traced.
fn answers(
    description: VmDescription,
    recorder: Option<RecorderControl>,
    machine: MachineControl,
) -> impl FnMut(Request) -> Answer + Send + 'static {
    let begun = Instant::now();
    move |request| {
        let is_status = request == Request::Status;
        match request {
            Request::Pause => return paused(&machine),
            Request::Resume => return resumed(&machine),
            _ => {}
        }
        let answer = match &recorder {
            Some(recorder) => recorder.ask(request),
            None if is_status => Answer::Status(Box::default()),
            None => Answer::refused("this VM is not traced; run it with --trace"),
        };
        match answer {
            Answer::Status(status) => {
                let VmDescription { name, pid, vcpus, memory, .. } = description.clone();
                let uptime_s = begun.elapsed().as_secs();
                Answer::Status(Box::new(Status { name, pid, uptime_s, vcpus, memory, trace: status.trace }))
            }
            other => other,
        }
    }
}

fn paused(machine: &MachineControl) -> Answer {
    match machine.pause() {
        Ok(()) => Answer::done("paused"),
        Err(error) => Answer::refused(error.to_string()),
    }
}

fn resumed(machine: &MachineControl) -> Answer {
    match machine.resume() {
        Ok(paused) => Answer::done(format!("resumed after {:.3} s", paused.as_secs_f64())),
        Err(error) => Answer::refused(error.to_string()),
    }
}

#[allow(clippy::too_many_arguments, reason = "the parts of one run, each of its own kind")]
fn run_traced(
    request: &RunRequest,
    mut config: MachineConfig,
    probed: &KvmProbe,
    selection: Selection,
    guest_events: Vec<EventDescription>,
    trace: &Path,
    description: &VmDescription,
    directory: &mut VmDirectory,
    say: &mut dyn FnMut(&str),
) -> Result<RunReport, RunFailure> {
    let clock_uuid = Uuid::new_v4();
    let host_clock = HostClock::observe(probed.tsc_khz);
    let rings = Rings { geometry: request.geometry, mode: request.mode };
    let region_config = region_config(request.cpus, rings, request.process_slots);
    let frequency = host_clock.trace_frequency();
    let region = TraceRegion::create(directory.create_region()?, region_config, clock_uuid, frequency)?;
    config.shared_slots = region.slots();
    config.discovery = Some(DiscoveryLeaf { abi_version: ABI_VERSION });
    let machine = Machine::new(config)?;

    let vcpu_threads = Arc::new(Mutex::new(Vec::new()));
    let mut missing = Vec::new();
    let host = host_tracer(&selection, host_clock.time, &mut missing);
    let filter = host.as_ref().map(HostTracer::thread_filter);
    let threads = Arc::clone(&vcpu_threads);
    let on_vcpu_thread = Box::new(move |vcpu, tid| {
        threads.lock().unwrap_or_else(PoisonError::into_inner).push((vcpu, tid));
        // Without the filter the thread's events are missing; what there is says so by its absence.
        let _ = filter.as_ref().map(|filter| filter.add(tid));
    });
    let chosen = |name: &str| selection.includes(Layer::Vmm, name);
    let vmm_rings = vmm_rings(request);
    let vmm_memory = mapped_file::map(&directory.create_monitor()?, VmmTracer::memory_size(request.cpus, vmm_rings))?;
    let vmm = Arc::new(VmmTracer::new(request.cpus, vmm_rings, vmm_memory, host_clock.time, chosen, on_vcpu_thread));

    let relations = vcpu_relations(&machine, probed, &request.name, &mut missing);
    let has_clock = !relations.is_empty();
    let agent = matches!(request.agent, Agent::Module(_)) && has_clock;
    if has_clock {
        // Without an agent of ours, too: the guest may bring its own.
        region.set_enabled(0, &enabled_guest_events(&guest_events, &selection));
        region.set_host_alive(true);
    } else {
        region.set_enabled(0, &EnabledEvents::NONE);
    }
    note_no_agent(&request.agent, &mut missing);
    for layer in &missing {
        say(&format!("{} is missing: {} ({})", layer.layer, layer.reason, layer.fix));
    }
    let reading = match host_clock.time {
        HostTime::Tsc => machine.clock_reading(frequency),
        HostTime::MonotonicRaw => read_together(|| HostTime::MonotonicRaw.now(), frequency),
    };
    let session = Session {
        format: FORMAT_VERSION,
        strata: env!("CARGO_PKG_VERSION").into(),
        started: Started::at(reading.utc_ns),
        clock: host_clock.statement(clock_uuid, reading, relations),
        host: describe_host(probed),
        vms: vec![Vm {
            name: request.name.clone(),
            vcpus: request.cpus,
            region: Some(directory.region()),
            ..Vm::default()
        }],
        layers: Vec::new(),
        missing,
        outcome: None,
    };
    let mut folder = TraceFolder::create(trace)?;
    let region = Arc::new(region);
    let host_facts = HostFacts {
        time: host_clock.time,
        frequency,
        bound_ns: host_clock.error_bound_ns(),
        guest_tsc_hz: machine.tsc_khz().map_or(host_clock.frequency, |khz| u64::from(khz) * 1000),
        first_offsets: machine.tsc_offsets().unwrap_or_default().to_vec(),
        offset_honoured: probed.tsc_offset_honoured != Some(false),
    };
    let clocks = Arc::new(VcpuClocks::new(&request.name, host_facts, Arc::clone(&region), Arc::clone(&vmm)));
    let facts = Facts {
        dir: absolute(folder.path()),
        session,
        vm: request.name.clone(),
        region: Arc::clone(&region),
        selection,
        guest_events: guest_events.into(),
        vcpu_threads,
        clocks: Arc::clone(&clocks),
        agent,
        beside_region: Some(directory.path().into()),
    };
    let (events, region_file) = (request.events.clone(), directory.region());
    let recorder = Recorder::start(Sources { facts, vmm: Arc::clone(&vmm), host, rings, events, region_file })?;
    let control = ControlServer::start(
        &directory.socket(),
        answers(description.clone(), Some(recorder.control()), machine.control()),
    )?;
    match request.mode {
        Mode::Discard => say(&format!("tracing into {}", trace.display())),
        Mode::FlightRecorder => say(&format!(
            "flight recorder on, written into {} at the end; strata ctl {} snapshot DIR writes it meanwhile",
            trace.display(),
            request.name
        )),
    }
    let ran = {
        let _keeper = has_clock.then(|| ClockKeeper::start(machine.control(), clocks.interval_ns()));
        run_machine(machine, vmm, has_clock.then_some(clocks as Arc<dyn VcpuClock>))
    };
    region.set_host_alive(false);
    // From here on nobody asks any more: the recorder is to come to its end.
    drop(control);
    let outcome = match ran {
        Ok(outcome) => outcome,
        Err(error) => {
            // Nothing ran: the first error is the one to report, and the folder goes.
            let _ = recorder.finish("not started".into());
            return Err(error);
        }
    };
    folder.keep();
    match recorder.finish(outcome.to_string()) {
        Ok(session) => Ok(RunReport { outcome, session: Some(session) }),
        Err(source) => {
            directory.keep();
            Err(RunFailure::Incomplete { region: directory.region(), source })
        }
    }
}

fn run_machine(
    machine: Machine,
    observer: Arc<dyn Observer>,
    clock: Option<Arc<dyn VcpuClock>>,
) -> Result<Outcome, RunFailure> {
    stop_on_signals(machine.stop_handle())?;
    let (_keyboard, console_input) = Keyboard::take();
    let options = RunOptions { observer, console_output: console::screen(), console_input, clock };
    Ok(machine.run(options)?)
}

/// From now on the usual signals stop the run in good order instead of killing it.
fn stop_on_signals(stop: StopHandle) -> Result<(), RunFailure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(RunFailure::Signals)?;
    let wait = move || signals.forever().for_each(|_| stop.stop());
    std::thread::Builder::new().name("strata-signals".into()).spawn(wait).map_err(RunFailure::Signals)?;
    Ok(())
}

fn check_selection(
    selection: &Selection,
    host: Option<&[crate::host_kernel::schema::EventName]>,
    guest: &[EventDescription],
) -> Result<(), SelectionError> {
    let mut catalogues = vec![(Layer::Vmm, EVENTS.iter().map(|event| event.name.into()).collect())];
    if !guest.is_empty() {
        catalogues.push((Layer::Guest, guest.iter().map(|event| event.name.clone()).collect()));
    }
    catalogues.extend(host.map(|events| (Layer::Host, events.iter().map(ToString::to_string).collect())));
    selection.check(&catalogues)
}

/// Starts tracing the host's kernel; what keeps it from working is noted, not fatal.
fn host_tracer(selection: &Selection, time: HostTime, missing: &mut Vec<Missing>) -> Option<HostTracer> {
    let started = Tracefs::find().and_then(|tracefs| tracefs.available_events()).map_err(HostTraceError::Unavailable);
    let started = started.and_then(|available| {
        let wanted =
            |event: &crate::host_kernel::schema::EventName| selection.includes(Layer::Host, &event.to_string());
        let events: Vec<_> = available.into_iter().filter(wanted).collect();
        if events.is_empty() {
            return Ok(None);
        }
        let threads = vec![std::process::id()];
        let config = HostTraceConfig { events, threads, time, buffer_kib: HOST_BUFFER_KIB };
        HostTracer::start(&config).map(Some)
    });
    match started {
        Ok(tracer) => tracer,
        Err(error) => {
            let fix = match &error {
                HostTraceError::Unavailable(reason) => reason.fix().into(),
                _ => "run `strata doctor`".into(),
            };
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            missing.push(Missing { layer: LayerKind::HostKernel, reason, fix });
            None
        }
    }
}

/// How each vCPU's counter begins. None when KVM does not tell the TSC offsets.
fn vcpu_relations(machine: &Machine, probed: &KvmProbe, vm: &str, missing: &mut Vec<Missing>) -> Vec<VcpuRelation> {
    let Some(offsets) = machine.tsc_offsets() else {
        for layer in [LayerKind::GuestKernel, LayerKind::GuestUser] {
            missing.push(Missing {
                layer,
                reason: "this host's KVM does not tell the guest's TSC offset".into(),
                fix: "use Linux 5.16 or later on the host".into(),
            });
        }
        return Vec::new();
    };
    let (how, honoured) = match probed.tsc_offset_honoured {
        _ if HostTime::of_this_host() == HostTime::MonotonicRaw => {
            ("as KVM began; it moves the offset on this host, see the epochs", true)
        }
        Some(true) => ("set, read back, and seen to work in a probe guest", true),
        Some(false) => {
            ("KVM accepts an offset but ignores it (seen in a probe guest): the counters are the same", false)
        }
        None => ("set and read back", true),
    };
    let relations = (0..).zip(offsets).map(|(vcpu, &offset)| {
        let tsc_offset = if honoured { offset } else { 0 };
        VcpuRelation { vm: vm.into(), vcpu, tsc_offset, how: how.into() }
    });
    relations.collect()
}

/// Notes what is missing unless the guest brings an agent of its own.
fn note_no_agent(agent: &Agent, missing: &mut Vec<Missing>) {
    let fix = match agent {
        Agent::Unspecified => {
            "give --agent strata.ko, built for the guest's kernel, or install strata-agent in the guest"
        }
        Agent::None => "give --agent strata.ko instead of --no-agent, or install strata-agent in the guest",
        // Why the module is not used is noted already.
        Agent::Module(_) => return,
    };
    for layer in [LayerKind::GuestKernel, LayerKind::GuestUser] {
        missing.push(Missing { layer, reason: NO_AGENT.into(), fix: fix.into() });
    }
}

/// The monitor's rings: a flight recorder should reach as far back in them as in the guest kernel's.
fn vmm_rings(request: &RunRequest) -> Rings {
    let geometry = match request.mode {
        Mode::Discard => geometry(VMM_RINGS),
        Mode::FlightRecorder => request.geometry,
    };
    Rings { geometry, mode: request.mode }
}

fn region_config(vcpus: u32, rings: Rings, process_slots: u32) -> RegionConfig {
    let extra = Some(Rings { geometry: geometry(EXTRA_RINGS), mode: Mode::FlightRecorder });
    RegionConfig {
        vcpus,
        sessions: [Some(rings), extra, extra, extra],
        process_rings: Rings { geometry: geometry(PROCESS_RINGS), mode: rings.mode },
        process_slots,
        registry_size: REGISTRY_SIZE,
        process_registry_size: PROCESS_REGISTRY_SIZE,
    }
}

#[allow(clippy::expect_used, reason = "the constants of this module are powers of two within the layout's limits")]
fn geometry((sub_buffer_size, sub_buffers): (u64, u32)) -> Geometry {
    Geometry::new(sub_buffer_size, sub_buffers).expect("ring geometry is within the layout's limits")
}

fn describe_host(probed: &KvmProbe) -> Host {
    let system = rustix::system::uname();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Host {
        hostname: system.nodename().to_string_lossy().into(),
        kernel: system.release().to_string_lossy().into(),
        cpu: model.map(|(_, model)| model.into()).unwrap_or_default(),
        kvm: match probed.kind {
            KvmKind::Hardware => "hardware",
            _ => "emulating",
        }
        .into(),
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, RunFailure> {
    fs::read(path).map_err(|source| RunFailure::Read { path: path.into(), source })
}
