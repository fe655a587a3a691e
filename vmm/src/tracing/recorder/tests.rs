#![allow(unsafe_code)] // The test is the guest: it records through raw addresses.

use super::*;
use crate::clock::{ClockParameters, HostTime, VcpuClocks};
use crate::control::protocol::{self, TriggerStatus};
use crate::machine::Observer;
use crate::tracing::recording::{GuestSide, Recording, VcpuThreads};
use crate::tracing::region::{MAIN_SESSION, TraceRegion};
use crate::tracing::region_file::{self, RegionFile, RegionShape};
use crate::tracing::selection::Selection;
use crate::tracing::session::HOST_HISTORY;
use crate::tracing::trigger::TriggerRequest;
use crate::tracing::trigger::expression::Trigger;
use crate::tracing::vmm_events::VmmTracer;
use clock_sync::tsc;
use shared_ring::event::{Event, EventDescription, Field, FieldType};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{AGENT_ALIVE, Geometry, MAGIC, Mode};
use shared_ring::producer::Producer;
use shared_ring::region::{RegionConfig, Rings};
use shared_ring::registry::Registry;
use shared_ring::storage::Smp;
use std::fs;
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

/// A recorder of a VM without a machine: the test is the guest.
struct Bench {
    dir: TempDir,
    region: Arc<TraceRegion>,
    vmm: Arc<VmmTracer>,
    recorder: Recorder,
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
        outcome: None,
    }
}

impl Bench {
    fn new(mode: Mode) -> Self {
        Self::within(mode, None)
    }

    /// Its recording keeps within the size of `rotation`, if there is one.
    fn within(mode: Mode, rotation: Option<Rotation>) -> Self {
        Self::of(TempDir::new().unwrap(), Self::region(mode), mode, rotation, None)
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
        let triggers = triggers.iter().map(|text| Trigger::parse(text).unwrap()).collect();
        let request = TriggerRequest { triggers, every: None, after: Duration::from_millis(1) };
        let region = Self::region(Mode::FlightRecorder);
        Self::of(TempDir::new().unwrap(), region, Mode::FlightRecorder, None, Some(request))
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
        Self::of(dir, region, mode, None, None)
    }

    fn of(
        dir: TempDir,
        region: TraceRegion,
        mode: Mode,
        rotation: Option<Rotation>,
        triggers: Option<TriggerRequest>,
    ) -> Self {
        let region = Arc::new(region);
        let trace = dir.path().join("trace");
        fs::create_dir(&trace).unwrap();
        let memory = HostMemory::private(VmmTracer::memory_size(1, rings(mode)));
        let vmm = Arc::new(VmmTracer::new(1, rings(mode), memory, HostTime::Tsc, |_| true, Box::new(|_, _| ())));
        let layout = region.layout();
        let registry = region.memory().part(layout.registry, layout.registry_size);
        // SAFETY: the storage covers the registry, which the region keeps mapped; nobody else writes there.
        let registry = unsafe { Registry::new(Smp::new(registry.base()), layout.registry_size) };
        assert!(registry.append(&EVENT));
        let parameters = ClockParameters {
            time: HostTime::Tsc,
            frequency: 2_000_000_000,
            bound_ns: 10,
            guest_tsc_hz: 2_000_000_000,
            offset_honoured: true,
            first_offsets: Vec::new(),
        };
        let clocks = Arc::new(VcpuClocks::new("vm0", 1, parameters, Box::new(|_, _, _| ())));
        let guest = GuestSide {
            region: Arc::clone(&region),
            slot: 0,
            rings: rings(mode),
            vmm: Some(Arc::clone(&vmm)),
            events: Vec::new().into(),
            agent: true,
            beside_region: None,
        };
        let recording = Recording {
            clocks,
            dir: Some(trace),
            readers: Readers::Owner,
            rotation,
            reserve: Reserve::default(),
            manifest: manifest(),
            vm: "vm0".into(),
            selection: Selection::parse("guest:*,vmm:*").unwrap(),
            vcpu_threads: VcpuThreads::default(),
            guest: Some(guest),
        };
        let events = "guest:*,vmm:*".into();
        let failures = Arc::new(AtomicUsize::new(0));
        let failed = Arc::clone(&failures);
        let sources = Sources {
            recording,
            host: None,
            mode,
            host_history: HOST_HISTORY,
            events,
            process_descriptors: 64,
            say,
            triggers,
            on_failure: Some(Box::new(move || failed.fetch_add(1, Ordering::Relaxed) > 0)),
        };
        let recorder = Recorder::start(sources).unwrap();
        Self { dir, region, vmm, recorder, failures }
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
        Answer::Status(_) | Answer::Live(_) => String::new(),
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
