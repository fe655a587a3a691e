#![allow(unsafe_code)] // The test is the guest: it records through raw addresses.

use super::*;
use crate::clock::{ClockParameters, HostTime, VcpuClocks};
use crate::control::protocol::{self, LayerLimit, Live, TriggerStatus};
use crate::machine::{BlockRequestKind, Observer};
use crate::tracing::host_layer::HostHistory;
use crate::tracing::record_limit::LayerLimits;
use crate::tracing::recording::{GuestSide, Recording, VcpuThreads};
use crate::tracing::region::{MAIN_SESSION, TraceRegion};
use crate::tracing::region_file::{self, RegionFile, RegionShape};
use crate::tracing::selection::Selection;
use crate::tracing::session::HOST_HISTORY;
use crate::tracing::trigger::TriggerRequest;
use crate::tracing::trigger::expression::Trigger;
use crate::tracing::vmm_events::VmmTracer;
use crate::tracing::work_alarm::WorkAlarms;
use clock_sync::tsc;
use shared_ring::event::{Event, EventDescription, Field, FieldType};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{
    AGENT_ALIVE, Geometry, MAGIC, Mode, PAGE_SIZE, PROCESS_ACTIVE, PROCESS_CLOSED, ProcessEntry,
};
use shared_ring::producer::Producer;
use shared_ring::region::{RegionConfig, Rings};
use shared_ring::registry::Registry;
use shared_ring::storage::Smp;
use shared_ring::view::ProcessState;
use std::fs;
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tempfile::TempDir;
use trace_merge::access::Readers;
use trace_merge::clock::{Clock, UtcAnchor};
use trace_merge::layer::LayerKind;
use trace_merge::manifest::{FORMAT_VERSION, Host, Started, Vm};
use trace_merge::reader::Trace;
use trace_merge::reserve::Reserve;
use trace_merge::writer::Rotation;
use uuid::Uuid;

const EVENT: Event = Event { id: 1, class: 0, name: "sched:test", fields: &[Field::new("number", FieldType::U64)] };

const WAKING: Event = Event {
    id: 2,
    class: 0,
    name: "sched:sched_waking",
    fields: &[Field::new("comm", FieldType::CharArray(16)), Field::new("pid", FieldType::I32)],
};
const SWITCH: Event = Event {
    id: 3,
    class: 0,
    name: "sched:sched_switch",
    fields: &[
        Field::new("prev_comm", FieldType::CharArray(16)),
        Field::new("prev_pid", FieldType::I32),
        Field::new("prev_state", FieldType::I64),
        Field::new("next_comm", FieldType::CharArray(16)),
        Field::new("next_pid", FieldType::I32),
    ],
};

/// A recorder of a VM without a machine, or its sessions alone: the test is the guest.
struct Bench<R = Recorder> {
    dir: TempDir,
    region: Arc<TraceRegion>,
    vmm: Arc<VmmTracer>,
    recorder: R,
    /// How often the recorder did what is to happen when a layer ends early: it succeeds the second time.
    failures: Arc<AtomicUsize>,
}

fn rings(mode: Mode) -> Rings {
    Rings { geometry: Geometry::new(4096, 4).unwrap(), mode }
}

pub(in crate::tracing) fn manifest() -> Manifest {
    Manifest {
        format: FORMAT_VERSION,
        strata: "test".into(),
        started: Started::at(0),
        clock: Clock {
            uuid: Uuid::from_u128(1),
            frequency_hz: 2_000_000_000,
            utc: UtcAnchor { ticks: 0, utc_ns: 0, uncertainty_ns: 0 },
            source: "x86-tsc".into(),
            vcpus: Vec::new(),
            error_bound_ns: 10,
            bound_derivation: "none".into(),
            epochs: Vec::new(),
            utc_readings: Vec::new(),
        },
        host: Host::default(),
        vms: vec![Vm { name: "vm0".into(), vcpus: 1, ..Vm::default() }],
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: None,
    }
}

/// A recording of a VM with one vCPU, in the folder `dir`.
pub(in crate::tracing) fn recording(dir: Option<PathBuf>) -> Recording {
    let parameters = ClockParameters {
        time: HostTime::Tsc,
        frequency: 2_000_000_000,
        bound_ns: 10,
        guest_tsc_hz: 2_000_000_000,
        offset_honoured: true,
        first_offsets: Vec::new(),
    };
    Recording {
        clocks: Arc::new(VcpuClocks::new("vm0", 1, parameters, Box::new(|_, _, _| ()))),
        dir,
        readers: Readers::Owner,
        rotation: None,
        reserve: Reserve::default(),
        manifest: manifest(),
        vm: "vm0".into(),
        selection: Selection::parse("guest:*,vmm:*,user:*").unwrap(),
        vcpu_threads: VcpuThreads::default(),
        guest: None,
    }
}

impl Bench {
    fn new(mode: Mode) -> Self {
        Self::within(mode, None)
    }

    /// Its recording keeps within the size of `rotation`, if there is one.
    fn within(mode: Mode, rotation: Option<Rotation>) -> Self {
        Self::of(TempDir::new().unwrap(), Self::region(mode), mode, rotation, None, &[])
    }

    /// Its layers keep within `limits`.
    fn limited(limits: &[LayerLimit]) -> Self {
        Self::of(TempDir::new().unwrap(), Self::region(Mode::Discard), Mode::Discard, None, None, limits)
    }

    fn region(mode: Mode) -> TraceRegion {
        let config = RegionConfig {
            vcpus: 1,
            sessions: [Some(rings(mode)), Some(rings(Mode::FlightRecorder)), None, None],
            process_rings: rings(mode),
            process_slots: 1,
            registry_size: 4096,
            process_registry_size: 4096,
        };
        let file = tempfile::tempfile().unwrap();
        TraceRegion::create(file, config, Uuid::from_u128(1), 2_000_000_000).unwrap()
    }

    /// A flight recorder that is watched for `triggers`.
    fn watched(triggers: &[&str]) -> Self {
        Self::watched_in(Mode::FlightRecorder, triggers)
    }

    fn watched_in(mode: Mode, triggers: &[&str]) -> Self {
        Self::watched_with(mode, triggers, Duration::from_millis(1))
    }

    /// The same with a time after which a snapshot is taken.
    fn watched_with(mode: Mode, triggers: &[&str], after: Duration) -> Self {
        let triggers = triggers.iter().map(|text| Trigger::parse(text).unwrap()).collect();
        let request = TriggerRequest { triggers, every: None, after };
        Self::of(TempDir::new().unwrap(), Self::region(mode), mode, None, Some(request), &[])
    }

    /// What has become of the triggers, once `is_enough` of it.
    fn triggers(&self, is_enough: impl Fn(&[TriggerStatus]) -> bool) -> Vec<TriggerStatus> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let Answer::Status(status) = self.ask(Request::Status) else { panic!() };
            let triggers = status.trace.unwrap().triggers;
            if is_enough(&triggers) {
                return triggers;
            }
            assert!(Instant::now() < end, "{triggers:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its guest has the region as a device of another VMM's.
    fn behind_device(mode: Mode) -> Self {
        let shape = RegionShape {
            vcpus: 1,
            process_slots: 1,
            mode,
            kernel_rings: (4096, 4),
            process_rings: (4096, 4),
            registry_size: 4096,
            process_registry_size: 4096,
        };
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("region");
        region_file::create(&path, shape, None).unwrap();
        let file = RegionFile::open(&path).unwrap();
        let region = TraceRegion::behind_device(file, Uuid::from_u128(1), 2_000_000_000).unwrap();
        region.open_session(0, MAIN_SESSION, rings(mode)).unwrap();
        Self::of(dir, region, mode, None, None, &[])
    }

    fn of(
        dir: TempDir,
        region: TraceRegion,
        mode: Mode,
        rotation: Option<Rotation>,
        triggers: Option<TriggerRequest>,
        limits: &[LayerLimit],
    ) -> Self {
        Self::started(dir, region, mode, rotation, triggers, limits, |sources| Recorder::start(sources).unwrap())
    }
}

impl<R> Bench<R> {
    fn started(
        dir: TempDir,
        region: TraceRegion,
        mode: Mode,
        rotation: Option<Rotation>,
        triggers: Option<TriggerRequest>,
        limits: &[LayerLimit],
        start: impl FnOnce(Sources) -> R,
    ) -> Self {
        let limits = LayerLimits::new(limits, mode, &LayerKind::ALL).unwrap();
        let region = Arc::new(region);
        let trace = dir.path().join("trace");
        fs::create_dir(&trace).unwrap();
        let memory = HostMemory::private(VmmTracer::memory_size(1, rings(mode)));
        let vmm = Arc::new(VmmTracer::new(1, rings(mode), memory, HostTime::Tsc, |_| true, Box::new(|_, _| ())));
        let layout = region.layout();
        let registry = region.memory().part(layout.registry, layout.registry_size);
        // SAFETY: the storage covers the registry, which the region keeps mapped; nobody else writes there.
        let registry = unsafe { Registry::new(Smp::new(registry.base()), layout.registry_size) };
        assert!([&EVENT, &WAKING, &SWITCH].iter().all(|event| registry.append(event)));
        let guest = GuestSide {
            region: Arc::clone(&region),
            slot: 0,
            rings: rings(mode),
            vmm: Some(Arc::clone(&vmm)),
            events: Vec::new().into(),
            agent: true,
            beside_region: None,
        };
        let recording = Recording { rotation, guest: Some(guest), ..recording(Some(trace)) };
        let events = "guest:*,vmm:*,user:*".into();
        let failures = Arc::new(AtomicUsize::new(0));
        let failed = Arc::clone(&failures);
        let alarms = Arc::new(WorkAlarms::default());
        let sources = Sources {
            recording,
            host: None,
            mode,
            host_history: HostHistory { limit: HOST_HISTORY, file: None },
            events,
            limits,
            alarms,
            process_descriptors: 64,
            say,
            triggers,
            host_load: None,
            at_snapshot: None,
            on_failure: Some(Box::new(move || failed.fetch_add(1, Ordering::Relaxed) > 0)),
        };
        Self { dir, region, vmm, recorder: start(sources), failures }
    }

    /// The guest enters, and its vCPU records `count` events into the rings of session slot `slot`.
    fn record(&self, slot: usize, mode: Mode, count: u64) {
        self.vmm.vcpu_enter(0);
        let ring = self.region.memory().part(self.region.layout().kernel_ring(slot, 0), rings(mode).ring_size());
        // SAFETY: the storage covers the ring, which the region keeps mapped; only this producer records there.
        let producer = unsafe { Producer::new(Smp::new(ring.base()), rings(mode).geometry, mode) };
        for number in 0..count {
            producer.record(tsc::read_ordered, EVENT.id, &number.to_le_bytes());
        }
        producer.poll_flush_request(tsc::read_ordered);
        self.vmm.vcpu_exit(0, 0);
    }

    /// The process in the only slot has this state.
    fn set_process(&self, generation: u32, status: u32) {
        let entry = self.region.layout().process_table;
        let state = ProcessState { generation, status };
        self.region.memory().store(entry + offset_of!(ProcessEntry, state), state.to_word());
    }
}

impl Bench {
    /// The guest's vCPU records that the task `tid` is woken and runs, and leaves the sub-buffer open.
    fn wake_up(&self, mode: Mode, tid: i32) {
        let ring = self.region.memory().part(self.region.layout().kernel_ring(0, 0), rings(mode).ring_size());
        // SAFETY: as for `record`.
        let producer = unsafe { Producer::new(Smp::new(ring.base()), rings(mode).geometry, mode) };
        let (name, prev) = (*b"web\0\0\0\0\0\0\0\0\0\0\0\0\0", [0; 28]);
        let waking = [&name[..], &tid.to_le_bytes()].concat();
        producer.record(tsc::read_ordered, WAKING.id, &waking);
        std::thread::sleep(Duration::from_millis(2));
        producer.record(tsc::read_ordered, SWITCH.id, &[&prev[..], &name, &tid.to_le_bytes()].concat());
    }

    /// A process takes the only slot as `generation` of it, and records an event called `name` with the number 7 on the
    /// vCPU. Each process numbers its types of events itself: this one's has the number 1. It leaves the sub-buffer open.
    fn process(&self, mode: Mode, generation: u32, name: &'static str) {
        const FIELDS: &[Field] = &[Field::new("number", FieldType::U64)];
        let (memory, layout) = (self.region.memory(), self.region.layout());
        let slot = memory.part(layout.process_slot(0), layout.process_ring(0, 0) - layout.process_slot(0));
        let ring = memory.part(layout.process_ring(0, 0), layout.process_ring_stride);
        slot.clear(0, slot.size());
        ring.clear(0, ring.size());
        let registry = memory.part(layout.process_slot(0) + PAGE_SIZE, layout.process_registry_size);
        // SAFETY: the storages cover their parts, which the region keeps mapped; nobody else writes there.
        let (registry, producer) = unsafe {
            let registry = Registry::new(Smp::new(registry.base()), layout.process_registry_size);
            (registry, Producer::new(Smp::new(ring.base()), rings(mode).geometry, mode))
        };
        assert!(registry.append(&Event { id: 1, class: 0, name, fields: FIELDS }));
        self.set_process(generation, PROCESS_ACTIVE);
        // The host has seen it.
        self.ask(Request::Status);
        producer.record(tsc::read_ordered, 1, &7_u64.to_le_bytes());
    }

    /// The process ends, and the host has read what it left.
    fn end_process(&self, generation: u32) {
        self.set_process(generation, PROCESS_CLOSED);
        let end = Instant::now() + Duration::from_secs(20);
        while self.region.memory().load(self.region.layout().process_ack) != u64::from(generation) {
            assert!(Instant::now() < end, "the slot is not given back");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the guest's tasks waited for, once `is_enough` of it is told.
    fn live(&self, is_enough: impl Fn(&Live) -> bool) -> Live {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let Answer::Live(live) = self.ask(Request::Live) else { panic!() };
            if is_enough(&live) {
                return *live;
            }
            assert!(Instant::now() < end, "{live:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The guest's agent announces itself.
    fn say_hello(&self) {
        let memory = self.region.memory();
        // SAFETY: the region stays mapped for as long as the bench lives.
        let guest = unsafe { shared_ring::guest::Region::open(memory.base(), memory.size() as u64) }.unwrap();
        guest.announce(b"6.1.0-test", AGENT_ALIVE);
    }

    fn ask(&self, request: Request) -> Answer {
        self.recorder.control().ask(request)
    }

    /// Asks for a flush while the guest records into the rings of session slot `slot`, which are in discard mode.
    fn flush(&self, slot: usize) -> Answer {
        let control = self.recorder.control();
        let flush = std::thread::spawn(move || control.ask(Request::Flush));
        while !flush.is_finished() {
            self.record(slot, Mode::Discard, 1);
            std::thread::sleep(Duration::from_millis(10));
        }
        flush.join().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn arm(&self, trigger: &str) -> String {
        message(self.ask(Request::TriggerAdd { trigger: trigger.into(), every_ms: None, after_ms: Some(1) }))
    }

    fn disarm(&self, trigger: &str) -> String {
        message(self.ask(Request::TriggerRemove { trigger: trigger.into() }))
    }

    fn snapshot(&self, name: &str) -> Answer {
        self.ask(Request::Snapshot { dir: self.path(name), session: None })
    }

    /// Records of a layer in the trace called `name`, which passes the check.
    fn records(&self, name: &str, kind: LayerKind) -> u64 {
        let trace = Trace::open(&self.path(name)).unwrap();
        let result = trace_merge::check::check(&trace, 10).unwrap();
        assert!(result.passed(), "{result:?}");
        trace
            .layers_of(kind)
            .map(|layer| layer.streams.iter().map(|stream| layer.records(stream).count() as u64).sum::<u64>())
            .sum()
    }
}

fn message(answer: Answer) -> String {
    match answer {
        Answer::Done { message } | Answer::Refused { message } => message,
        Answer::Status(_) | Answer::Live(_) | Answer::Balloon(_) => String::new(),
    }
}

fn create(name: &str, mode: protocol::Mode, trace: Option<PathBuf>) -> Request {
    let (sub_buffer_size, sub_buffers) = (Some(4096), Some(4));
    Request::SessionCreate {
        name: name.into(),
        mode,
        sub_buffer_size,
        sub_buffers,
        events: None,
        trace,
        max_size: None,
        limits: Vec::new(),
    }
}

fn create_within(size: u64, mode: protocol::Mode) -> Request {
    let mut request = create("a", mode, Some("/nowhere".into()));
    if let Request::SessionCreate { max_size, .. } = &mut request {
        *max_size = Some(size);
    }
    request
}

#[test]
fn event_of_the_test_is_one_that_a_guest_could_have() {
    assert!(EventDescription::from(&EVENT).accepts(&[0; 8]));
}

#[test]
fn guest_that_writes_over_the_hosts_words_while_it_is_drained_is_told_and_its_records_are_read() {
    let bench = Bench::behind_device(Mode::Discard);
    let (memory, host_area) = (bench.region.memory().clone(), bench.region.layout().guest_writable);
    bench.say_hello();

    for round in 0..10 {
        bench.record(0, Mode::Discard, 20);
        (0..host_area).step_by(8).for_each(|at| memory.store(at, 0xbad + round));
        std::thread::sleep(Duration::from_millis(20));
    }
    let Answer::Status(status) = bench.ask(Request::Status) else { panic!("no status") };
    let Bench { dir, region, recorder, .. } = bench;
    let manifest = recorder.finish("done".into()).unwrap();

    let restored = manifest.vms[0].restored_words;
    assert!(status.trace.is_some_and(|trace| (1..=restored).contains(&trace.restored_words)), "{restored}");
    assert_eq!((region.restore(), memory.load(0)), (restored, MAGIC));
    let told = SAID.lock().unwrap().iter().filter(|line| line.contains("has written over")).count();
    assert_eq!(told, 1);
    let trace = Trace::open(&dir.path().join("trace")).unwrap();
    assert!(trace_merge::check::check(&trace, 10).unwrap().passed());
    let kernel = trace.layers_of(LayerKind::GuestKernel).next().unwrap();
    assert_eq!(kernel.streams.iter().map(|stream| kernel.records(stream).count()).sum::<usize>(), 200);
}

/// What is told of wake-ups in `mode`, first of one in a sub-buffer that stays open, then of as many as fill the ring.
fn wakeups_in(mode: Mode) -> (u64, u64, String) {
    let bench = Bench::new(mode);
    bench.wake_up(mode, 7);
    bench.live(|live| live.guest.is_some());

    bench.wake_up(mode, 8);
    let first = bench.live(|live| live.guest.as_ref().unwrap().wakeups.count > 0).guest.unwrap();
    (9..200).for_each(|tid| bench.wake_up(mode, tid));
    let wakeups = |live: &Live| live.guest.as_ref().unwrap().wakeups.clone();
    let all = wakeups(&bench.live(|live| wakeups(live).count >= 192));
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(wakeups(&bench.live(|_| true)), all);

    bench.recorder.finish("done".into()).unwrap();
    assert!(all.total_ns >= all.count * 2_000_000 / 4, "{all:?}");
    (first.wakeups.count, all.count, first.worst[0].task.clone())
}

#[test]
fn wakeups_of_the_guest_are_told_while_it_is_written() {
    assert_eq!(wakeups_in(Mode::Discard), (1, 192, "web".into()));
}

#[test]
fn wakeups_of_the_guest_are_told_while_it_is_a_flight_recorder() {
    assert_eq!(wakeups_in(Mode::FlightRecorder), (1, 192, "web".into()));
}

/// One record a second: what comes together is owed for longer than a test takes.
const SCARCE: LayerLimit = LayerLimit { layer: LayerKind::GuestKernel, per_second: 1, burst: 1 };

/// The records and losses of the layers of kind `kind` in `manifest`.
fn delivered_and_lost(manifest: &Manifest, kind: LayerKind) -> (u64, u64) {
    let streams = manifest.layers.iter().filter(|layer| layer.kind == kind).flat_map(|layer| &layer.streams);
    streams.fold((0, 0), |(records, lost), stream| (records + stream.records, lost + stream.lost.total()))
}

#[test]
fn layer_over_its_limit_loses_what_does_not_fit_its_ring_and_costs_no_other_layer_a_record() {
    let bench = Bench::limited(&[LayerLimit { per_second: 3, ..SCARCE }]);
    let (rounds, each) = (20, 300);

    for _ in 0..rounds {
        bench.record(0, Mode::Discard, each);
        // The VMM's records are delivered each time.
        bench.vmm.flush();
        std::thread::sleep(Duration::from_millis(20));
    }
    let Answer::Status(status) = bench.ask(Request::Status) else { panic!("no status") };
    let trace = bench.path("trace");
    let failures = bench.failures.load(Ordering::Relaxed);
    let manifest = bench.recorder.finish("done".into()).unwrap();

    let (delivered, lost) = delivered_and_lost(&manifest, LayerKind::GuestKernel);
    assert_eq!(delivered + lost, rounds * each);
    // What was taken before the limit was met, what the ring held at the end, and no more.
    assert!(lost > rounds * each / 2, "{delivered} {lost}");
    assert_eq!(delivered_and_lost(&manifest, LayerKind::Vmm), (2 * rounds, 0));
    let limit = |kind| manifest.layers.iter().find(|layer| layer.kind == kind).unwrap().limit;
    let met = limit(LayerKind::GuestKernel).unwrap();
    assert_eq!((met.times, limit(LayerKind::Vmm)), (1, None));
    let layers = status.trace.unwrap().layers;
    assert!(layers.iter().any(|layer| layer.limit.is_some_and(|limit| limit.times == 1)), "{layers:?}");
    // It is within what was asked for, and not a failure of the recording.
    assert_eq!(failures, 0);
    let told = SAID
        .lock()
        .unwrap()
        .iter()
        .filter(|line| line.contains("guest-kernel makes more than 3 records a second"))
        .count();
    assert_eq!(told, 1);
    assert!(trace_merge::check::check(&Trace::open(&trace).unwrap(), 10).unwrap().passed());
}

#[test]
fn flush_writes_what_the_rings_of_a_limited_layer_hold() {
    let bench = Bench::limited(&[SCARCE]);
    // More than a sub-buffer holds.
    bench.record(0, Mode::Discard, 300);
    let kernel = || {
        let Answer::Status(status) = bench.ask(Request::Status) else { panic!("no status") };
        status.trace.unwrap().layers.into_iter().find(|layer| layer.path == "vm0/guest-kernel").unwrap()
    };
    let end = Instant::now() + Duration::from_secs(20);
    while kernel().limit.unwrap().times == 0 {
        assert!(Instant::now() < end, "the limit is not met");
        std::thread::sleep(Duration::from_millis(1));
    }

    bench.record(0, Mode::Discard, 300);
    std::thread::sleep(Duration::from_millis(50));
    let written = kernel().records;
    bench.flush(0);

    assert!(written < 300, "{written}");
    assert!(kernel().records >= 600, "{:?}", kernel());
    bench.recorder.finish("done".into()).unwrap();
}

#[test]
fn requests_to_a_disk_are_told_while_it_is_a_flight_recorder() {
    let bench = Bench::new(Mode::FlightRecorder);

    for is_done in [false, true] {
        bench.vmm.block_request(0, BlockRequestKind::Read, 8, 4096, is_done);
    }
    let disks = bench.live(|_| true).disks;
    bench.recorder.finish("done".into()).unwrap();

    assert_eq!(disks.iter().map(|disk| (disk.disk, disk.times.count)).collect::<Vec<_>>(), [(0, 1)]);
}

#[test]
fn snapshots_of_a_running_flight_recorder_hold_the_same_records_and_then_more() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.record(0, Mode::FlightRecorder, 20);

    bench.snapshot("first");
    bench.snapshot("second");
    bench.record(0, Mode::FlightRecorder, 5);
    bench.snapshot("third");

    let of = |name| (bench.records(name, LayerKind::GuestKernel), bench.records(name, LayerKind::Vmm));
    assert_eq!([of("first"), of("second"), of("third")], [(20, 2), (20, 2), (25, 4)]);
}

#[test]
fn trigger_takes_a_snapshot_beside_the_recording_and_one_that_nothing_meets_takes_none() {
    let bench = Bench::watched(&["event:guest:sched:test number=7", "event:guest:sched:test number=30"]);

    // Of a sub-buffer that is being written: nobody has closed it.
    bench.record(0, Mode::FlightRecorder, 10);
    let triggers = bench.triggers(|triggers| !triggers[0].snapshots.is_empty());

    assert_eq!((triggers[0].fired, triggers[1].fired, triggers[1].snapshots.len()), (1, 0, 0));
    assert_eq!(triggers[0].snapshots, [bench.path("trace-trigger-1")]);
    assert_eq!(bench.records("trace-trigger-1", LayerKind::GuestKernel), 10);
    let outcome = Trace::open(&bench.path("trace-trigger-1")).unwrap().manifest().outcome.clone().unwrap();
    assert!(outcome.contains("by trigger 'event:guest:sched:test number=7': sched:test in guest-kernel"), "{outcome}");
}

#[test]
fn each_record_is_judged_once_though_the_rings_are_overwritten_and_snapshots_are_taken() {
    let bench = Bench::watched(&["event:guest:sched:test number=7", "exit>1ns"]);
    let fired = |expected| bench.triggers(|triggers| triggers[0].fired >= expected).remove(0).fired;

    let seen: Vec<u64> = (1..=5)
        .map(|round| {
            bench.record(0, Mode::FlightRecorder, 300);
            bench.snapshot(&format!("snapshot{round}"));
            fired(round)
        })
        .collect();

    assert_eq!(seen, [1, 2, 3, 4, 5]);
    // From the first exit to the second entry, and so on.
    assert_eq!(bench.triggers(|triggers| triggers[1].fired >= 4)[1].fired, 4);
}

#[test]
fn trigger_in_discard_mode_is_marked_in_the_trace_and_takes_no_snapshot() {
    let bench =
        Bench::watched_in(Mode::Discard, &["event:guest:sched:test number=7", "event:guest:sched:test number=30"]);

    // Of a sub-buffer that is being written: nobody has closed it.
    bench.record(0, Mode::Discard, 10);
    let triggers = bench.triggers(|triggers| triggers[0].marks > 0);
    let (trace, snapshot) = (bench.path("trace"), bench.path("trace-trigger-1"));
    bench.recorder.finish("the test ended".into()).unwrap();

    let marks = |status: &TriggerStatus| (status.fired, status.marks, status.snapshots.len(), status.due);
    assert_eq!((marks(&triggers[0]), marks(&triggers[1])), ((1, 1, 0, false), (0, 0, 0, false)));
    assert!(!snapshot.exists());
    assert_eq!(marks_in(&trace), ["trigger_1"]);
}

/// What the marks of the VMM in the recording `dir` say.
fn marks_in(dir: &Path) -> Vec<String> {
    let trace = Trace::open(dir).unwrap();
    let vmm = trace.layers_of(LayerKind::Vmm).next().unwrap();
    let records = vmm.streams.iter().flat_map(|stream| vmm.records(stream));
    let marks = records.filter(|record| record.schema.name() == "vmm:control");
    marks.map(|record| record.text("what").unwrap().into_owned()).collect()
}

/// A recorder that is told of the end right behind the guest's last records; the marks in its recording, and its end.
fn ended_at_once(mode: Mode) -> (Vec<String>, String) {
    let triggers = ["event:guest:sched:test number=7", "exit>1ns", "event:guest:sched:test number=30"];
    let bench = Bench::watched_with(mode, &triggers, Duration::from_secs(3600));

    bench.record(0, mode, 10);
    bench.record(0, mode, 10);
    let trace = bench.path("trace");
    let manifest = bench.recorder.finish("the test ended".into()).unwrap();

    let mut marks = marks_in(&trace);
    marks.sort();
    assert!(!bench.dir.path().join("trace-trigger-1").exists());
    (marks, manifest.outcome.unwrap())
}

#[test]
fn trigger_that_is_met_right_before_the_end_is_marked() {
    let (marks, outcome) = ended_at_once(Mode::Discard);

    assert_eq!((marks, outcome.as_str()), (vec!["trigger_1".into(), "trigger_2".into()], "the test ended"));
}

#[test]
fn flight_recorder_says_with_its_end_which_trigger_was_met_right_before() {
    let (marks, outcome) = ended_at_once(Mode::FlightRecorder);

    assert_eq!(marks, ["trigger_1", "trigger_2"]);
    assert!(outcome.starts_with("the test ended; trigger 'event:guest:sched:test number=7': sched:test"), "{outcome}");
}

#[test]
fn each_record_is_judged_once_while_it_is_drained() {
    let bench = Bench::watched_in(Mode::Discard, &["event:guest:sched:test number=7", "exit>1ns"]);
    let fired = |expected| bench.triggers(|triggers| triggers[0].fired >= expected).remove(0).fired;

    let seen: Vec<u64> = (1..=5)
        .map(|round| {
            bench.record(0, Mode::Discard, 300);
            bench.flush(0);
            fired(round)
        })
        .collect();

    assert_eq!(seen, [1, 2, 3, 4, 5]);
    // From the first exit to the second entry, and so on.
    assert!(bench.triggers(|triggers| triggers[1].fired >= 4)[1].fired >= 4);
    assert!(bench.records("trace", LayerKind::GuestKernel) >= 5 * 200);
}

/// How often triggers on an event of applications fire: of a process that records it and one that records another, and
/// again of one that ends at once.
fn fired_by_applications(mode: Mode) -> Vec<u64> {
    let bench = Bench::watched_in(mode, &["event:user:app:late number>6", "event:user:app:late number>7"]);
    bench.process(mode, 1, "app:other");
    bench.end_process(1);
    bench.process(mode, 2, "app:late");
    bench.triggers(|triggers| triggers[0].fired == 1);
    bench.end_process(2);
    bench.process(mode, 3, "app:late");
    bench.end_process(3);
    bench.triggers(|triggers| triggers[0].fired == 2).iter().map(|trigger| trigger.fired).collect()
}

#[test]
fn record_of_an_application_fires_a_trigger_while_it_is_written() {
    assert_eq!(fired_by_applications(Mode::Discard), [2, 0]);
}

#[test]
fn record_of_an_application_fires_the_trigger_of_a_flight_recorder() {
    assert_eq!(fired_by_applications(Mode::FlightRecorder), [2, 0]);
}

#[test]
fn trigger_that_is_armed_while_the_vm_runs_fires_for_what_follows_only() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.record(0, Mode::FlightRecorder, 10);

    let armed = [bench.arm("event:guest:sched:test number=7"), bench.arm("event:guest:sched:test number=30")];
    bench.record(0, Mode::FlightRecorder, 9);
    let triggers = bench.triggers(|triggers| !triggers[0].snapshots.is_empty());
    let removed = bench.disarm("1");
    bench.record(0, Mode::FlightRecorder, 31);
    let left = bench.triggers(|triggers| !triggers[0].snapshots.is_empty());

    assert_eq!(armed[0], "trigger 1 is armed: event:guest:sched:test number=7");
    assert_eq!((triggers[0].fired, triggers[1].fired), (1, 0));
    assert_eq!(removed, "trigger event:guest:sched:test number=7 is removed");
    assert_eq!((left.len(), left[0].number, left[0].fired), (1, 2, 1));
}

#[test]
fn trigger_that_cannot_be_armed_is_refused_and_the_vm_goes_on() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.say_hello();
    bench.arm("event:guest:sched:test number=7");

    let said = [
        bench.arm("stael>1ms"),
        bench.arm("event:vmm:vmm:contrl"),
        bench.arm("event:vmm:vmm:control wath=x"),
        bench.arm("event:guest:sched:tset"),
        bench.arm("event:guest:sched:test number=7"),
        bench.arm("steal>1ms"),
        bench.arm("host-load>80%"),
        bench.disarm("event:guest:sched:none"),
    ];
    bench.record(0, Mode::FlightRecorder, 9);

    let expected = [
        "nearest: steal",
        "nearest: vmm:control",
        "nearest: what",
        "nearest: sched:test",
        "armed already",
        "'sched:sched_switch'",
        "/proc/pressure/cpu",
        "armed are 1 (event:guest:sched:test number=7)",
    ];
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected) && !said.contains('\n'), "{said}: {expected}");
    }
    assert_eq!(bench.triggers(|triggers| triggers[0].fired > 0).len(), 1);
}

#[test]
fn vcpu_that_has_not_joined_is_told_until_it_has() {
    let bench = Bench::new(Mode::FlightRecorder);
    let told = || match bench.ask(Request::Status) {
        Answer::Status(status) => status.trace.unwrap().sessions.remove(0).not_joined,
        other => panic!("{other:?}"),
    };
    let written = |name| {
        bench.snapshot(name);
        let trace = Trace::open(&bench.path(name)).unwrap();
        let stream = trace.layers_of(LayerKind::GuestKernel).next().unwrap().description.streams[0].clone();
        (stream.never_joined, stream.nested)
    };

    let without_agent = told();
    bench.say_hello();
    let (told_before, before) = (told(), written("before"));
    bench.record(0, Mode::FlightRecorder, 1);

    assert_eq!((without_agent, told_before, told()), (vec![], vec![0], vec![]));
    // This guest counts no nested records.
    assert_eq!((before, written("after")), ((true, None), (false, None)));
}

#[test]
fn flight_recorder_is_written_at_the_end_with_its_last_records() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.record(0, Mode::FlightRecorder, 3000);
    let trace = bench.path("trace");

    let manifest = bench.recorder.finish("the test ended".into()).unwrap();

    let layer = manifest.layers.iter().find(|layer| layer.kind == LayerKind::GuestKernel).unwrap();
    assert!(layer.streams[0].records > 300 && layer.streams[0].overwritten > 0, "{layer:?}");
    assert_eq!(Manifest::load(&trace).unwrap(), manifest);
    assert_eq!(manifest.outcome.as_deref(), Some("the test ended"));
}

#[test]
fn discard_mode_refuses_snapshots_and_flushes_on_demand() {
    let bench = Bench::new(Mode::Discard);
    bench.record(0, Mode::Discard, 7);

    let snapshot = message(bench.snapshot("snapshot"));
    let flushed = bench.flush(0);

    assert!(snapshot.contains("ctl VM flush"), "{snapshot}");
    assert!(!bench.path("snapshot").exists());
    assert_eq!(flushed, Answer::done("flushed"));
    assert!(bench.records("trace", LayerKind::GuestKernel) >= 7);
}

/// Bytes that the files below `dir` take on the disk.
fn disk_usage(dir: &Path) -> u64 {
    let below = fs::read_dir(dir).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        // What is replaced may be gone.
        let Ok(metadata) = fs::symlink_metadata(&path) else { return 0 };
        if metadata.is_dir() { disk_usage(&path) } else { metadata.blocks() * 512 }
    });
    below.sum()
}

#[test]
fn recording_within_a_size_keeps_the_newest_records_while_it_runs() {
    const LIMIT: u64 = 256 << 10;
    let bench = Bench::within(Mode::Discard, Some(Rotation::new(LIMIT)));
    bench.ask(Request::SessionStart { name: MAIN_SESSION.into() });

    let used = (0..40).map(|_| {
        bench.record(0, Mode::Discard, 600);
        bench.flush(0);
        disk_usage(&bench.path("trace"))
    });
    let most = used.max().unwrap();
    let Answer::Status(status) = bench.ask(Request::Status) else { panic!("status is answered") };
    let (meanwhile, trace) = (bench.records("trace", LayerKind::GuestKernel), bench.path("trace"));
    let manifest = bench.recorder.finish("the test ended".into()).unwrap();

    let layer = manifest.layers.iter().find(|layer| layer.kind == LayerKind::GuestKernel).unwrap();
    let (records, dropped) = (layer.streams[0].records, layer.streams[0].dropped.unwrap());
    let read = Trace::open(&trace).unwrap();
    let kept: usize = read
        .layers_of(LayerKind::GuestKernel)
        .flat_map(|layer| layer.streams.iter().map(|stream| layer.records(stream).count()))
        .sum();
    assert!(most <= LIMIT && most > LIMIT / 2, "{most}");
    assert!(meanwhile > 0 && dropped.records > 0);
    assert_eq!(kept as u64 + dropped.records, records);
    assert!(status.trace.unwrap().layers.iter().any(|layer| layer.dropped > 0));
    assert_eq!((manifest.max_size, Manifest::load(&trace).unwrap().max_size), (Some(LIMIT), Some(LIMIT)));
}

#[test]
fn flush_writes_the_sessions_in_discard_mode_beside_a_flight_recorder() {
    let bench = Bench::new(Mode::FlightRecorder);
    let refused = message(bench.ask(Request::Flush));

    bench.ask(create("extra", protocol::Mode::Discard, Some(bench.path("extra"))));
    bench.ask(Request::SessionStart { name: "extra".into() });
    bench.record(1, Mode::Discard, 3);
    let flushed = bench.flush(1);

    assert!(refused.contains("ctl VM snapshot"), "{refused}");
    assert_eq!(flushed, Answer::done("flushed"));
    assert!(bench.records("extra", LayerKind::GuestKernel) >= 3);
}

#[test]
fn snapshot_into_a_folder_that_holds_something_is_refused() {
    let bench = Bench::new(Mode::FlightRecorder);

    assert!(message(bench.snapshot("trace")).contains("not an empty folder"));
    assert!(message(bench.ask(Request::Snapshot { dir: "relative".into(), session: None })).contains("absolute"));
}

/// What recorders of these tests said.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn say(line: &str) {
    SAID.lock().unwrap().push(line.into());
}

#[test]
fn layer_that_cannot_be_written_ends_alone_and_is_told() {
    let bench = Bench::new(Mode::Discard);
    fs::remove_dir_all(bench.path("trace/vm0/guest-kernel")).unwrap();

    let flushed = bench.flush(0);
    let status = bench.ask(Request::Status);
    // Told again with the next look, as the first time was no use.
    let end = Instant::now() + Duration::from_secs(60);
    while bench.failures.load(Ordering::Relaxed) < 2 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let manifest = bench.recorder.finish("the test ended".into()).unwrap();

    let end = &manifest.missing.iter().find(|missing| missing.layer == LayerKind::GuestKernel).unwrap().reason;
    let vmm = manifest.layers.iter().find(|layer| layer.kind == LayerKind::Vmm).unwrap();
    assert_eq!(flushed, Answer::done("flushed"));
    assert!(end.contains("the layer ends early") && end.contains("No such file"), "{end}");
    assert!(format!("{status:?}").contains("the layer ends early"), "{status:?}");
    assert!(SAID.lock().unwrap().iter().any(|line| line.contains("session main: guest-kernel: the layer ends early")));
    assert!(vmm.streams.iter().any(|stream| stream.records > 0), "{vmm:?}");
    assert!(vmm.streams.iter().all(|stream| !stream.corrupt), "{vmm:?}");
    // nothing is known behind their last records
    let ended = manifest.layers.iter().find(|layer| layer.kind == LayerKind::GuestKernel).unwrap();
    assert!(ended.streams.iter().all(|stream| stream.corrupt), "{ended:?}");
    assert_eq!(bench.failures.load(Ordering::Relaxed), 2);
}

#[test]
fn main_session_stops_and_starts_but_is_not_destroyed() {
    let bench = Bench::new(Mode::FlightRecorder);
    let mask = || bench.region.memory().load(bench.region.layout().session_slot(0));
    let name = || MAIN_SESSION.to_owned();

    bench.ask(Request::SessionStart { name: name() });
    let started = mask();
    bench.ask(Request::SessionStop { name: name() });
    let stopped = mask();
    let destroyed = bench.ask(Request::SessionDestroy { name: name() });

    assert_eq!((started & 1, stopped), (1, 0));
    assert!(message(destroyed).contains("ends with the VM"));
}

#[test]
fn session_made_while_the_vm_runs_has_rings_and_a_trace_of_its_own() {
    let bench = Bench::new(Mode::Discard);
    let events = "guest:sched:*".to_owned();
    let request = Request::SessionCreate {
        name: "extra".into(),
        mode: protocol::Mode::FlightRecorder,
        sub_buffer_size: Some(4096),
        sub_buffers: Some(4),
        events: Some(events),
        trace: Some(bench.path("extra")),
        max_size: None,
        limits: Vec::new(),
    };
    let name = || "extra".to_owned();

    let created = bench.ask(request);
    bench.ask(Request::SessionStart { name: name() });
    bench.record(1, Mode::FlightRecorder, 9);
    let written = bench.ask(Request::Snapshot { dir: bench.path("extra-now"), session: Some(name()) });
    let destroyed = bench.ask(Request::SessionDestroy { name: name() });

    assert!(message(created).contains("is made"));
    assert!(message(written).starts_with("9 records"));
    assert_eq!(message(destroyed), "session extra is gone");
    assert_eq!(bench.records("extra-now", LayerKind::GuestKernel), 9);
    assert_eq!(bench.records("extra", LayerKind::GuestKernel), 9);
    assert!(bench.region.is_free(1));
}

#[test]
fn session_that_cannot_be_is_refused_and_takes_no_slot() {
    let bench = Bench::new(Mode::Discard);
    let flight = protocol::Mode::FlightRecorder;
    let large = Request::SessionCreate {
        name: "large".into(),
        mode: flight,
        sub_buffer_size: Some(1 << 20),
        sub_buffers: Some(4),
        events: None,
        trace: None,
        max_size: None,
        limits: Vec::new(),
    };

    let refusals = [
        (create("main", flight, None), "already"),
        (create("../x", flight, None), "not a session name"),
        (create("a", protocol::Mode::Discard, None), "--trace DIR"),
        (create("a", flight, Some("relative".into())), "absolute"),
        (large, "too large"),
        (create_within(1 << 20, protocol::Mode::Discard), "16 MiB or more"),
        (create_within(1 << 30, flight), "discard mode"),
        (Request::SessionStart { name: "none".into() }, "no session is called 'none'; there are main"),
        (Request::Pause, "does not serve"),
    ];

    for (request, expected) in refusals {
        let said = message(bench.ask(request));
        assert!(said.contains(expected), "{said}");
    }
    assert!(bench.region.is_free(1));
    bench.ask(create("a", flight, None));
    assert!(message(bench.ask(create("b", flight, None))).contains("destroy a session first"));
}

/// Sessions that nobody polls but the test, whose main one is in `mode`; they have been polled once.
fn sessions(mode: Mode) -> Bench<Sessions> {
    let (dir, region) = (TempDir::new().unwrap(), Bench::region(mode));
    let start = |sources| Sessions::start(sources).unwrap();
    let mut bench = Bench::started(dir, region, mode, None, None, &[], start);
    bench.recorder.poll();
    bench
}

#[test]
fn poll_can_wait_until_a_ring_is_a_quarter_full() {
    let mut bench = sessions(Mode::Discard);

    // Records of 16 bytes or more, in a ring of 16 KiB.
    let waits = [0, 100, 200].map(|count| {
        bench.record(0, Mode::Discard, count);
        bench.recorder.can_wait()
    });
    bench.recorder.poll();

    assert_eq!((waits, bench.recorder.can_wait()), ([true, true, false], true));
}

#[test]
fn poll_cannot_wait_when_an_event_type_is_new() {
    let mut bench = sessions(Mode::FlightRecorder);
    let layout = bench.region.layout();
    let registry = bench.region.memory().part(layout.registry, layout.registry_size);
    // SAFETY: the storage covers the registry, which the region keeps mapped; nobody else writes there.
    let registry = unsafe { Registry::new(Smp::new(registry.base()), layout.registry_size) };
    let before = bench.recorder.can_wait();

    assert!(registry.append(&Event { id: 4, name: "sched:new", ..EVENT }));
    let with_news = bench.recorder.can_wait();
    bench.recorder.poll();

    assert_eq!([before, with_news, bench.recorder.can_wait()], [true, false, true]);
}

#[test]
fn poll_cannot_wait_while_more_than_half_of_the_process_slots_are_taken() {
    for mode in [Mode::Discard, Mode::FlightRecorder] {
        let mut bench = sessions(mode);

        let waits = [PROCESS_ACTIVE, PROCESS_CLOSED].map(|status| {
            bench.set_process(1, status);
            let waits = bench.recorder.can_wait();
            bench.recorder.poll();
            [waits, bench.recorder.can_wait()]
        });

        // The slot of a process that has ended is given back by the poll.
        assert_eq!(waits, [[false, false], [false, true]], "{mode:?}");
    }
}
