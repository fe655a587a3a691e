//! A recorder whose guest is a thread of the same process, for measurements without a machine.
#![allow(unsafe_code)] // Rings and registries are written through raw addresses, as a guest does.

use clock_sync::calibration::read_together;
use shared_ring::event::Event;
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{Geometry, Mode};
use shared_ring::producer::Producer;
use shared_ring::region::{RegionConfig, Rings};
use shared_ring::registry::Registry;
use shared_ring::storage::{CpuLocal, Smp};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use strata_clock::{ClockParameters, HostClock, HostTime, VcpuClocks};
use strata_recorder::layer::host::HostHistory;
use strata_recorder::layer::limit::LayerLimits;
use strata_recorder::recorder::Recorder;
use strata_recorder::recorder::work_alarm::WorkAlarms;
use strata_recorder::region::TraceRegion;
use strata_recorder::session::Sources;
use strata_recorder::session::recording::{GuestSide, Recording, VcpuThreads};
use strata_recorder::session::selection::Selection;
use strata_recorder::trigger::TriggerRequest;
use strata_recorder::vmm_events::VmmTracer;
use strata_recording::access::Readers;
use strata_recording::manifest::{FORMAT_VERSION, Host, Manifest, Started, Vm};
use strata_recording::reserve::Reserve;
use tempfile::TempDir;
use uuid::Uuid;

/// Sub-buffers as `strata run` has them.
const RINGS: (u64, u32) = (128 << 10, 16);

/// What a guest's region has room for.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub vcpus: u32,
    /// Bytes and number of the sub-buffers of the rings of the guest's kernel and of the VMM.
    pub kernel_rings: (u64, u32),
    /// Sessions beside the one that a VM is started with.
    pub more_sessions: usize,
    pub process_slots: u32,
    /// Bytes and number of the sub-buffers of a process's rings.
    pub process_rings: (u64, u32),
    /// File descriptors for the streams of processes.
    pub process_descriptors: usize,
}

impl Shape {
    /// One vCPU, and rings as `strata run` has them.
    pub const SMALL: Self = Self {
        vcpus: 1,
        kernel_rings: RINGS,
        more_sessions: 0,
        process_slots: 16,
        process_rings: RINGS,
        process_descriptors: 64,
    };
}

/// A recorder at work.
pub struct RecorderSide {
    /// The recording's folder is `trace` in it.
    pub folder: TempDir,
    pub region: Arc<TraceRegion>,
    pub rings: Rings,
    pub recorder: Recorder,
}

impl RecorderSide {
    /// Begins to record in `mode`, watched for `triggers`, a guest of `shape`, whose work may ring `alarms`.
    ///
    /// # Errors
    /// When there is no memory, or the folder cannot be written.
    pub fn start(
        shape: Shape,
        mode: Mode,
        triggers: Option<TriggerRequest>,
        alarms: &Arc<WorkAlarms>,
    ) -> anyhow::Result<Self> {
        let (folder, region, rings, sources) = prepare(shape, mode, triggers, alarms)?;
        Ok(Self { folder, region, rings, recorder: Recorder::start(sources)? })
    }
}

/// The folder, the region, the kernel's rings, and what a recorder is made of that would record as
/// [`RecorderSide::start`] says.
///
/// # Errors
/// When there is no memory, or the folder cannot be made.
pub fn prepare(
    shape: Shape,
    mode: Mode,
    triggers: Option<TriggerRequest>,
    alarms: &Arc<WorkAlarms>,
) -> anyhow::Result<(TempDir, Arc<TraceRegion>, Rings, Sources)> {
    let folder = TempDir::new()?;
    let trace = folder.path().join("trace");
    fs::create_dir(&trace)?;
    let rings_of = |(size, count)| Ok::<_, anyhow::Error>(Rings { geometry: Geometry::new(size, count)?, mode });
    let rings = rings_of(shape.kernel_rings)?;
    let clock = HostClock { time: HostTime::Tsc, ..HostClock::observe(None) };
    let (uuid, frequency) = (Uuid::new_v4(), clock.trace_frequency());
    let config = RegionConfig {
        vcpus: shape.vcpus,
        sessions: std::array::from_fn(|slot| (slot <= shape.more_sessions).then_some(rings)),
        process_rings: rings_of(shape.process_rings)?,
        process_slots: shape.process_slots,
        registry_size: 64 << 10,
        process_registry_size: 60 << 10,
    };
    let region = Arc::new(TraceRegion::create(tempfile::tempfile()?, config, uuid, frequency)?);
    let memory = HostMemory::private(VmmTracer::memory_size(shape.vcpus, rings));
    let vmm = Arc::new(VmmTracer::new(shape.vcpus, rings, memory, HostTime::Tsc, |_| true, Box::new(|_, _| ())));
    let sides = (Arc::clone(&region), vmm);
    let sources = sources(&clock, uuid, trace, sides, (shape, rings), Arc::clone(alarms), triggers)?;
    Ok((folder, region, rings, sources))
}

/// What records on `vcpu` as the guest's kernel does.
pub fn producer(region: &TraceRegion, rings: Rings, vcpu: u32) -> Producer<CpuLocal> {
    let ring = region.memory().part(region.layout().kernel_ring(0, vcpu), rings.ring_size());
    // SAFETY: the storage covers its part, which the region keeps mapped; one thread at a time records there.
    unsafe { Producer::new(CpuLocal::new(ring.base()), rings.geometry, rings.mode) }
}

/// Registers `events` as the guest's kernel does. Call it once.
pub fn register(region: &TraceRegion, events: &[Event]) {
    let layout = region.layout();
    let registry = region.memory().part(layout.registry, layout.registry_size);
    // SAFETY: the storage covers its part, which the region keeps mapped; nobody else writes there.
    let registry = unsafe { Registry::new(Smp::new(registry.base()), layout.registry_size) };
    for event in events {
        registry.append(event);
    }
}

/// What the recorder is made of.
fn sources(
    clock: &HostClock,
    uuid: Uuid,
    trace: PathBuf,
    (region, vmm): (Arc<TraceRegion>, Arc<VmmTracer>),
    (shape, rings): (Shape, Rings),
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
        vms: vec![Vm { name: "vm0".into(), vcpus: shape.vcpus, ..Vm::default() }],
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
        clocks: Arc::new(VcpuClocks::new("vm0", shape.vcpus, parameters, Box::new(|_, _, _| ()))),
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
        process_descriptors: shape.process_descriptors,
        say: |_| (),
        on_failure: None,
        triggers,
        host_load: None,
        at_snapshot: None,
    })
}
