//! From a checked plan to a [`PreparedVm`]: each step is a type that can only be made of the one before. What a step
//! makes goes when its type is dropped, whichever later step fails.

use super::descriptors;
use super::failure::RunFailure;
use super::plan::Plan;
use super::request::{Agent, RunRequest};
use super::rings::{region_config, vmm_rings};
use super::trace_failure::on_failure;
use super::traced::guest_ring::GuestRing;
use super::traced::guest_symbols::guest_symbols;
use super::traced::manifest::{note_no_agent, vcpu_relations};
use super::traced::{Folders, PreparedVm, TracedGuest};
use crate::agentless::Agentless;
use clock_sync::calibration::{CrossTimestamp, read_together};
use rustix::thread::gettid;
use shared_ring::event::EventDescription;
use shared_ring::layout::{ABI_VERSION, Mode};
use shared_ring::region::Rings;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use strata_clock::{ClockParameters, HostClock, HostTime, VcpuClocks};
use strata_jail::Jail;
use strata_machine::{DiscoveryLeaf, KvmProbe, Machine, SharedSlot};
use strata_recorder::control::directory::{VmDescription, VmDirectory};
use strata_recorder::drain::work_alarm::WorkAlarms;
use strata_recorder::guest_symbols::{GuestSymbols, SymbolsReader};
use strata_recorder::host_description::describe_host;
use strata_recorder::layer::host_tracer::{Traced, missing_host_layer};
use strata_recorder::live::vcpu_activity::VcpuThreads;
use strata_recorder::region::{EnabledEvents, RegionSlot, TraceRegion, mapped_file};
use strata_recorder::session::recording::{GuestSide, enabled_guest_events, epoch_sink};
use strata_recorder::session::{RecordedVm, RecordingBuilder};
use strata_recorder::vmm_events::{EVENTS, VcpuThreadHook, VmmTracer};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Vm;
use uuid::Uuid;

/// Where a VM is made, and by whom.
pub(super) struct Site {
    pub description: VmDescription,
    pub directory: VmDirectory,
    pub jail: Jail,
}

/// A VM whose machine is built, with the trace region in its memory.
struct BuiltVm<'a> {
    request: &'a RunRequest,
    recording: RecordingBuilder,
    site: Site,
    probed: KvmProbe,
    guest_events: Vec<EventDescription>,
    agentless: Option<Agentless>,
    clock: HostClock,
    clock_uuid: Uuid,
    rings: Rings,
    region: Arc<TraceRegion>,
    /// The symbols of the guest's kernel, and what reads them.
    symbols: (Arc<GuestSymbols>, SymbolsReader),
    machine: Machine,
}

/// A VM whose host and VMM are traced.
struct ObservedVm<'a> {
    built: BuiltVm<'a>,
    vmm: Arc<VmmTracer>,
    vcpu_threads: VcpuThreads,
    alarms: Arc<WorkAlarms>,
}

/// A VM whose guest may record, where its times can be related to the host's.
struct RelatedVm<'a> {
    observed: ObservedVm<'a>,
    has_clock: bool,
    recorded: RecordedVm,
}

impl<'a> PreparedVm<'a> {
    /// Makes at `site` what `plan` and its `recording` need.
    ///
    /// # Errors
    /// The first part that cannot be made.
    pub(super) fn prepare(plan: Plan<'a>, recording: RecordingBuilder, site: Site) -> Result<Self, RunFailure> {
        BuiltVm::build(plan, recording, site)?.trace_host_and_vmm()?.relate_clocks().prepare()
    }
}

impl<'a> BuiltVm<'a> {
    fn build(plan: Plan<'a>, recording: RecordingBuilder, site: Site) -> Result<Self, RunFailure> {
        let Plan { request, mut config, probed, guest_events, agentless, .. } = plan;
        let rings = Rings { geometry: request.geometry, mode: recording.request().layers.mode };
        let (clock, clock_uuid) = (HostClock::observe(probed.tsc_khz), Uuid::new_v4());
        let file = site.jail.act(|| site.directory.create_region())??;
        let shape = region_config(request, rings);
        let region = Arc::new(TraceRegion::create(file, shape, clock_uuid, clock.trace_frequency())?);
        config.shared_slots = region.slots().into_iter().map(shared_slot).collect();
        config.discovery = Some(DiscoveryLeaf { abi_version: ABI_VERSION });
        let kernel = config.kernel.open();
        let symbols =
            guest_symbols(kernel.map_err(|source| RunFailure::Read { path: config.kernel.name().into(), source })?);
        let machine = Machine::new(config)?;
        let doorbell = machine.doorbell()?;
        region.set_doorbell(doorbell.gsi(), move || doorbell.ring());
        Ok(Self {
            request,
            recording,
            site,
            probed,
            guest_events,
            agentless,
            clock,
            clock_uuid,
            rings,
            region,
            symbols,
            machine,
        })
    }

    fn trace_host_and_vmm(mut self) -> Result<ObservedVm<'a>, RunFailure> {
        // This thread starts all others of the machine: the kernel follows them.
        let starter = gettid().as_raw_nonzero().get().cast_unsigned();
        let traced = Traced { process: std::process::id(), threads: vec![starter], takes_more: false };
        // What keeps the layer from being had is noted, not fatal.
        if let Err(error) = self.recording.trace_host(self.clock.time, traced) {
            self.recording.missing.push(missing_host_layer(&error));
        }
        self.check_triggers()?;
        let cpus = self.request.cpus;
        let (vcpu_threads, alarms) = (VcpuThreads::default(), Arc::new(WorkAlarms::new(cpus)));
        let on_vcpu_thread = note_vcpu_threads(Arc::clone(&vcpu_threads), Arc::clone(&alarms));
        // The VMM's own events, in rings that outlive this process.
        let file = self.site.jail.act(|| self.site.directory.create_vmm_rings())??;
        let rings = vmm_rings(self.request, self.rings.mode);
        let memory = mapped_file::map(&file, VmmTracer::memory_size(cpus, rings))?;
        let chosen = |name: &str| self.recording.selection().includes(LayerKind::Vmm, name);
        let vmm = Arc::new(VmmTracer::new(cpus, rings, memory, self.clock.time, chosen, on_vcpu_thread));
        Ok(ObservedVm { built: self, vmm, vcpu_threads, alarms })
    }

    fn check_triggers(&self) -> Result<(), RunFailure> {
        let vmm: Vec<EventDescription> = EVENTS.iter().map(EventDescription::from).collect();
        let mut known = vec![(LayerKind::Vmm, &*vmm)];
        // Those of an agent that the guest itself brings are known once it registers them.
        if !self.guest_events.is_empty() {
            known.push((LayerKind::GuestKernel, &self.guest_events));
        }
        Ok(self.recording.check_triggers(&known)?)
    }
}

impl<'a> ObservedVm<'a> {
    fn relate_clocks(mut self) -> RelatedVm<'a> {
        let BuiltVm { request, machine, region, clock, probed, .. } = &self.built;
        let mut missing = Vec::new();
        let relations = vcpu_relations(machine, probed, &request.name, &mut missing);
        let has_clock = !relations.is_empty();
        // Without an agent of ours, too: the guest may bring its own.
        let selection = self.built.recording.selection();
        let enabled =
            if has_clock { enabled_guest_events(&self.built.guest_events, selection) } else { EnabledEvents::NONE };
        region.set_enabled(0, &enabled);
        region.set_host_alive(has_clock);
        note_no_agent(&request.agent, self.built.agentless.is_some(), &mut missing);
        let parameters = clock_parameters(clock, machine, probed);
        let sink = epoch_sink(Arc::clone(region), Some(Arc::clone(&self.vmm)));
        let recorded = RecordedVm {
            vm: Vm {
                name: request.name.clone(),
                vcpus: request.cpus,
                region: Some(self.built.site.directory.region()),
                ..Vm::default()
            },
            host: describe_host(probed.kind.name()),
            clock: clock.statement(self.built.clock_uuid, utc_reading(clock, machine), relations),
            clocks: Arc::new(VcpuClocks::new(&request.name, request.cpus, parameters, sink)),
            vcpu_threads: Arc::clone(&self.vcpu_threads),
        };
        self.built.recording.missing.extend(missing);
        RelatedVm { observed: self, has_clock, recorded }
    }
}

impl<'a> RelatedVm<'a> {
    fn prepare(self) -> Result<PreparedVm<'a>, RunFailure> {
        let Self { observed, has_clock, recorded } = self;
        let ObservedVm { built, vmm, alarms, .. } = observed;
        let BuiltVm { request, mut recording, site, guest_events, agentless, clock, rings, region, machine, .. } =
            built;
        let (symbols, symbols_reader) = built.symbols;
        let Site { description, directory, jail } = site;
        let (trace, snapshots) = jail.act(|| recording.request().files.create())??;
        let is_kept = recording.host().is_some() && rings.mode == Mode::FlightRecorder;
        let history = is_kept.then(|| jail.act(|| directory.create_host_history())).transpose()?.transpose()?;
        let guest = GuestSide {
            vmm: Some(Arc::clone(&vmm)),
            events: guest_events.into(),
            agent: matches!(request.agent, Agent::Module(_)) && has_clock,
            symbols: Some(Arc::clone(&symbols)),
            beside_region: Some(directory.path().into()),
            ..GuestSide::new(Arc::clone(&region), rings)
        };
        let ring = agentless.map(|agentless| Arc::new(GuestRing::new(agentless, symbols, &clock)));
        let has_stopped = Arc::new(AtomicBool::new(false));
        recording.history_file = history;
        recording.guest = Some(guest);
        recording.alarms = alarms;
        recording.process_descriptors = descriptors::for_processes(request.cpus, request.vsock.is_some());
        recording.at_snapshot = ring.as_ref().map(|ring| ring.at_snapshot(machine.control(), &request.name));
        recording.on_failure = on_failure(
            request.on_trace_failure,
            request.name.clone(),
            machine.control(),
            machine.stop_handle(),
            Arc::clone(&has_stopped),
            recording.notify,
        );
        let clocks = has_clock.then(|| Arc::clone(&recorded.clocks));
        Ok(PreparedVm {
            request,
            description,
            machine,
            recording,
            recorded,
            guest: TracedGuest { region, vmm, clocks, ring },
            folders: Folders { trace, snapshots, directory },
            symbols: symbols_reader,
            jail,
            has_stopped,
        })
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
        threads.lock().unwrap_or_else(PoisonError::into_inner).set(vcpu, tid);
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
