//! A recorder whose guest is a thread of the same process, for measurements without a machine.
#![allow(unsafe_code)] // Rings and registries are written through raw addresses, as a guest does.

use clock_sync::calibration::read_together;
use shared_ring::event::Event;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{Geometry, Mode};
use shared_ring::producer::Producer;
use shared_ring::region::{RegionConfig, Rings};
use shared_ring::registry::Registry;
use shared_ring::storage::{CpuLocal, Smp};
use std::fs;
use std::sync::Arc;
use strata_clock::{HostClock, HostTime, VcpuClocks};
use strata_recorder::drain::work_alarm::WorkAlarms;
use strata_recorder::live::vcpu_activity::VcpuThreads;
use strata_recorder::recorder::Recorder;
use strata_recorder::region::TraceRegion;
use strata_recorder::session::recording::GuestSide;
use strata_recorder::session::{RecordedVm, RecordingBuilder, RecordingRequest};
use strata_recorder::trigger::TriggerRequest;
use strata_recorder::vmm_events::VmmTracer;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Host, Vm};
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
        let Prepared { folder, region, rings, requested, vm } = Prepared::of(shape, mode, triggers, alarms)?;
        Ok(Self { folder, region, rings, recorder: Recorder::start(requested, vm)? })
    }
}

/// A recorder that would record as [`RecorderSide::start`] says.
pub struct Prepared {
    pub folder: TempDir,
    pub region: Arc<TraceRegion>,
    pub rings: Rings,
    pub requested: RecordingBuilder,
    pub vm: RecordedVm,
}

impl Prepared {
    /// # Errors
    /// When there is no memory, or the folder cannot be made.
    pub fn of(
        shape: Shape,
        mode: Mode,
        triggers: Option<TriggerRequest>,
        alarms: &Arc<WorkAlarms>,
    ) -> anyhow::Result<Self> {
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
        let guest = GuestSide { vmm: Some(vmm), ..GuestSide::new(Arc::clone(&region), rings) };
        let utc = read_together(|| HostTime::Tsc.now(), frequency);
        let vm = RecordedVm {
            vm: Vm { name: "vm0".into(), vcpus: shape.vcpus, ..Vm::default() },
            host: Host::default(),
            clock: clock.statement(uuid, utc, Vec::new()),
            clocks: Arc::new(VcpuClocks::new("vm0", shape.vcpus, clock.parameters(), Box::new(|_, _, _| ()))),
            vcpu_threads: VcpuThreads::default(),
        };
        let mut request = RecordingRequest::new(trace);
        (request.layers.mode, request.layers.events) = (mode, "guest:*".into());
        request.triggers = triggers.unwrap_or_default();
        let mut requested = RecordingBuilder::new(&request, &LayerKind::ALL)?;
        (requested.guest, requested.alarms) = (Some(guest), Arc::clone(alarms));
        requested.process_descriptors = shape.process_descriptors;
        Ok(Self { folder, region, rings, requested, vm })
    }
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
