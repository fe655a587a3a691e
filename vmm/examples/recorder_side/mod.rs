//! A recorder whose guest is a thread of the same process, for measurements without a machine.

use clock_sync::calibration::read_together;
use shared_ring::event::Event;
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{Geometry, Mode};
use shared_ring::producer::Producer;
use shared_ring::region::{RegionConfig, Rings};
use shared_ring::registry::Registry;
use shared_ring::storage::Smp;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use trace_merge::access::Readers;
use trace_merge::manifest::{FORMAT_VERSION, Host, Manifest, Started, Vm};
use trace_merge::reserve::Reserve;
use uuid::Uuid;
use vmm::clock::{ClockParameters, HostClock, HostTime, VcpuClocks};
use vmm::tracing::host_layer::HostHistory;
use vmm::tracing::record_limit::LayerLimits;
use vmm::tracing::recorder::Recorder;
use vmm::tracing::recording::{GuestSide, Recording, VcpuThreads};
use vmm::tracing::region::TraceRegion;
use vmm::tracing::selection::Selection;
use vmm::tracing::session::Sources;
use vmm::tracing::trigger::TriggerRequest;
use vmm::tracing::vmm_events::VmmTracer;
use vmm::tracing::work_alarm::WorkAlarms;

/// Sub-buffers as `strata run` has them.
const RINGS: (u64, u32) = (128 << 10, 16);

/// A recorder at work.
pub struct RecorderSide {
    /// The recording's folder is `trace` in it.
    pub folder: TempDir,
    pub region: Arc<TraceRegion>,
    pub rings: Rings,
    pub recorder: Recorder,
}

impl RecorderSide {
    /// Begins to record in `mode`, watched for `triggers`, a guest of one vCPU, whose work may ring `alarms`.
    ///
    /// # Errors
    /// When there is no memory, or the folder cannot be written.
    pub fn start(mode: Mode, triggers: Option<TriggerRequest>, alarms: &Arc<WorkAlarms>) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let trace = folder.path().join("trace");
        fs::create_dir(&trace)?;
        let rings = Rings { geometry: Geometry::new(RINGS.0, RINGS.1)?, mode };
        let clock = HostClock { time: HostTime::Tsc, ..HostClock::observe(None) };
        let (uuid, frequency) = (Uuid::new_v4(), clock.trace_frequency());
        let config = RegionConfig {
            vcpus: 1,
            sessions: [Some(rings), None, None, None],
            process_rings: rings,
            process_slots: 16,
            registry_size: 64 << 10,
            process_registry_size: 64 << 10,
        };
        let region = Arc::new(TraceRegion::create(tempfile::tempfile()?, config, uuid, frequency)?);
        let memory = HostMemory::private(VmmTracer::memory_size(1, rings));
        let vmm = Arc::new(VmmTracer::new(1, rings, memory, HostTime::Tsc, |_| true, Box::new(|_, _| ())));
        let sides = (Arc::clone(&region), vmm);
        let sources = sources(&clock, uuid, trace, sides, rings, Arc::clone(alarms), triggers)?;
        Ok(Self { folder, region, rings, recorder: Recorder::start(sources)? })
    }
}

/// Registers `events` as the guest's kernel does; returns what records them on the vCPU. Call it once.
pub fn guest(region: &TraceRegion, rings: Rings, events: &[Event]) -> Producer<Smp> {
    let layout = region.layout();
    let registry = region.memory().part(layout.registry, layout.registry_size);
    let ring = region.memory().part(layout.kernel_ring(0, 0), rings.ring_size());
    // SAFETY: the storages cover their parts, which the region keeps mapped; nobody else writes there.
    let (registry, producer) = unsafe {
        let registry = Registry::new(Smp::new(registry.base()), layout.registry_size);
        (registry, Producer::new(Smp::new(ring.base()), rings.geometry, rings.mode))
    };
    for event in events {
        registry.append(event);
    }
    producer
}

/// What the recorder is made of.
fn sources(
    clock: &HostClock,
    uuid: Uuid,
    trace: PathBuf,
    (region, vmm): (Arc<TraceRegion>, Arc<VmmTracer>),
    rings: Rings,
    alarms: Arc<WorkAlarms>,
    triggers: Option<TriggerRequest>,
) -> anyhow::Result<Sources> {
    let frequency = clock.trace_frequency();
    let utc = read_together(|| HostTime::Tsc.now(), frequency);
    let parameters = ClockParameters {
        time: HostTime::Tsc,
        frequency,
        bound_ns: clock.error_bound_ns(),
        guest_tsc_hz: frequency,
        offset_honoured: true,
        first_offsets: Vec::new(),
    };
    let guest = GuestSide {
        region,
        slot: 0,
        rings,
        vmm: Some(vmm),
        events: Vec::new().into(),
        agent: false,
        beside_region: None,
    };
    let manifest = Manifest {
        format: FORMAT_VERSION,
        strata: env!("CARGO_PKG_VERSION").into(),
        started: Started::at(utc.utc_ns),
        clock: clock.statement(uuid, utc, Vec::new()),
        host: Host::default(),
        vms: vec![Vm { name: "vm0".into(), vcpus: 1, ..Vm::default() }],
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: None,
    };
    let recording = Recording {
        dir: Some(trace),
        readers: Readers::Owner,
        rotation: None,
        reserve: Reserve::default(),
        manifest,
        vm: "vm0".into(),
        selection: Selection::parse("guest:*")?,
        vcpu_threads: Arc::new(Mutex::new(Vec::new())) as VcpuThreads,
        clocks: Arc::new(VcpuClocks::new("vm0", 1, parameters, Box::new(|_, _, _| ()))),
        guest: Some(guest),
    };
    Ok(Sources {
        recording,
        host: None,
        mode: rings.mode,
        host_history: HostHistory { limit: 0, file: None },
        limits: LayerLimits::default(),
        alarms,
        events: String::new(),
        process_descriptors: 64,
        say: |_| (),
        on_failure: None,
        triggers,
        host_load: None,
        at_snapshot: None,
    })
}
