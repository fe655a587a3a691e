//! A VM without a machine, whose guest is the test.
#![allow(unsafe_code)] // The test is the guest: it records through raw addresses.

use super::*;
use strata_recording::files::trace_folder::snapshots_of;

pub(super) const EVENT: Event =
    Event { id: 1, class: 0, name: "sched:test", fields: &[Field::new("number", FieldType::U64)] };

pub(super) const WAKING: Event = Event {
    id: 2,
    class: 0,
    name: "sched:sched_waking",
    fields: &[Field::new("comm", FieldType::CharArray(16)), Field::new("pid", FieldType::I32)],
};
pub(super) const SWITCH: Event = Event {
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
pub(super) struct Bench<R = Recorder> {
    pub(super) dir: TempDir,
    pub(super) region: Arc<TraceRegion>,
    pub(super) vmm: Arc<VmmTracer>,
    pub(super) recorder: R,
    /// The threads of the VM's vCPUs.
    pub(super) threads: VcpuThreads,
    /// How often the recorder did what is to happen when a layer ends early: it succeeds the second time.
    pub(super) failures: Arc<AtomicUsize>,
}

pub(super) fn rings(mode: Mode) -> Rings {
    Rings { geometry: Geometry::new(4096, 4).unwrap(), mode }
}

const EVENTS: &str = "guest:*,vmm:*,user:*";

/// A VM with one vCPU.
fn recorded_vm() -> RecordedVm {
    let parameters = ClockParameters {
        time: HostTime::Tsc,
        frequency: 2_000_000_000,
        bound_ns: 10,
        guest_tsc_hz: 2_000_000_000,
        offset_honoured: true,
        first_offsets: Vec::new(),
    };
    RecordedVm {
        vm: Vm { name: "vm0".into(), vcpus: 1, ..Vm::default() },
        host: Host::default(),
        clock: Clock {
            uuid: Uuid::from_u128(1),
            frequency_hz: 2_000_000_000,
            utc: UtcAnchor { ticks: 0, utc_ns: 0, uncertainty_ns: 0 },
            source: "x86-tsc".into(),
            vcpus: Vec::new(),
            error_bound_ns: 10,
            bound_derivation: "none".into(),
            given_up_ticks: None,
            epochs: Vec::new(),
        },
        clocks: Arc::new(VcpuClocks::new("vm0", 1, parameters, Box::new(|_, _, _| ()))),
        vcpu_threads: VcpuThreads::default(),
    }
}

pub(crate) fn manifest() -> Manifest {
    recording().manifest
}

/// A recording of a VM with one vCPU that is written nowhere.
pub(crate) fn recording() -> Recording {
    let request = RecordingRequest::new("trace");
    let selection = Selection::parse(EVENTS).unwrap();
    Recording { dir: None, ..recorded_vm().recording(&request, selection, None, Vec::new()) }
}

impl Bench {
    pub(super) fn new(mode: Mode) -> Self {
        Self::requested(&request(mode))
    }

    /// Its recording keeps within `size`.
    pub(super) fn within(size: u64) -> Self {
        let mut request = request(Mode::Discard);
        request.files.max_size = Some(size);
        Self::requested(&request)
    }

    /// Its layers keep within `limits`.
    pub(super) fn limited(limits: &[LayerLimit]) -> Self {
        let mut request = request(Mode::Discard);
        request.layers.limits = limits.to_vec();
        Self::requested(&request)
    }

    pub(super) fn region(mode: Mode) -> TraceRegion {
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
    pub(super) fn watched(triggers: &[&str]) -> Self {
        Self::watched_in(Mode::FlightRecorder, triggers)
    }

    pub(super) fn watched_in(mode: Mode, triggers: &[&str]) -> Self {
        Self::watched_with(mode, triggers, Duration::from_millis(1))
    }

    /// The same with a time after which a snapshot is taken.
    pub(super) fn watched_with(mode: Mode, triggers: &[&str], after: Duration) -> Self {
        let triggers = triggers.iter().map(|text| Trigger::parse(text).unwrap()).collect();
        let triggers = TriggerRequest { triggers, every: None, after };
        Self::requested(&RecordingRequest { triggers, ..request(mode) })
    }

    /// What has become of the triggers, once `is_enough` of it.
    pub(super) fn triggers(&self, is_enough: impl Fn(&[TriggerStatus]) -> bool) -> Vec<TriggerStatus> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let Answer::Status(status) = self.request(Request::Status) else { panic!() };
            let triggers = status.trace.unwrap().triggers;
            if is_enough(&triggers) {
                return triggers;
            }
            assert!(Instant::now() < end, "{triggers:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The vCPUs that have not begun to record, by the first session's status.
    pub(super) fn not_joined(&self) -> Vec<u32> {
        let Answer::Status(status) = self.request(Request::Status) else { panic!("no status") };
        status.trace.unwrap().sessions.remove(0).not_joined
    }

    /// Its guest has the region as a device of another VMM's.
    pub(super) fn behind_device(mode: Mode) -> Self {
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
        Self::of(dir, region, &request(mode))
    }

    /// It is recorded as `request` says, but for the folder.
    fn requested(request: &RecordingRequest) -> Self {
        Self::of(TempDir::new().unwrap(), Self::region(request.layers.mode), request)
    }

    fn of(dir: TempDir, region: TraceRegion, request: &RecordingRequest) -> Self {
        Self::started(dir, region, request, |requested, vm| Recorder::start(requested, vm).unwrap())
    }
}

/// The options of a recording in `mode`.
pub(super) fn request(mode: Mode) -> RecordingRequest {
    let mut request = RecordingRequest::new("");
    (request.layers.mode, request.layers.events) = (mode, EVENTS.into());
    request
}

impl<R> Bench<R> {
    pub(super) fn started(
        dir: TempDir,
        region: TraceRegion,
        request: &RecordingRequest,
        start: impl FnOnce(RecordingBuilder, RecordedVm) -> R,
    ) -> Self {
        let (mode, mut request) = (request.layers.mode, request.clone());
        let region = Arc::new(region);
        let trace = dir.path().join("trace");
        fs::create_dir(&trace).unwrap();
        fs::create_dir(snapshots_of(&trace).unwrap()).unwrap();
        request.files.trace = trace;
        let memory = HostMemory::private(VmmTracer::memory_size(1, rings(mode)));
        let vmm = Arc::new(VmmTracer::new(1, rings(mode), memory, HostTime::Tsc, |_| true, Box::new(|_, _| ())));
        assert!([&EVENT, &WAKING, &SWITCH].iter().all(|event| registry(&region).append(event)));
        let vmm_side = Some(Arc::clone(&vmm));
        let (symbols, reader) = GuestSymbols::new(Box::new(|at| Ok(format!("{at:016x} T schedule\n").into_bytes())));
        reader.start(|| ());
        let guest = GuestSide {
            vmm: vmm_side,
            agent: true,
            symbols: Some(symbols),
            ..GuestSide::new(Arc::clone(&region), rings(mode))
        };
        let failures = Arc::new(AtomicUsize::new(0));
        let failed = Arc::clone(&failures);
        let mut requested = RecordingBuilder::new(&request, &LayerKind::ALL).unwrap();
        (requested.guest, requested.process_descriptors, requested.notify) = (Some(guest), 64, notify);
        requested.on_failure = Some(Box::new(move || failed.fetch_add(1, Ordering::Relaxed) > 0));
        let vm = recorded_vm();
        let threads = Arc::clone(&vm.vcpu_threads);
        Self { dir, region, vmm, recorder: start(requested, vm), threads, failures }
    }

    /// The guest enters, and its vCPU records `count` events into the rings of session slot `slot`.
    pub(super) fn record(&self, slot: usize, mode: Mode, count: u64) {
        self.vmm.vcpu_enter(0);
        let producer = self.producer(slot, mode);
        for number in 0..count {
            producer.record(tsc::read_ordered, EVENT.id, &number.to_le_bytes());
        }
        producer.poll_flush_request(tsc::read_ordered);
        self.vmm.vcpu_exit(0, 0);
    }

    /// The guest loses a record of `bytes`, which no sub-buffer has room for.
    pub(super) fn lose_too_large(&self, slot: usize, mode: Mode, bytes: usize) {
        self.producer(slot, mode).record(tsc::read_ordered, EVENT.id, &vec![0; bytes]);
    }

    /// A vCPU's writer in the ring of session slot `slot`.
    pub(super) fn producer(&self, slot: usize, mode: Mode) -> Producer<Smp> {
        let ring = self.region.memory().part(self.region.layout().kernel_ring(slot, 0), rings(mode).ring_size());
        // SAFETY: the storage covers the ring, which the region keeps mapped; only one thread records there.
        unsafe { Producer::new(Smp::new(ring.base()), rings(mode).geometry, mode) }
    }

    /// The process in the only slot has this state.
    pub(super) fn set_process(&self, generation: u32, status: u32) {
        let entry = self.region.layout().process_table;
        let state = ProcessState { generation, status };
        self.region.memory().store(entry + offset_of!(ProcessEntry, state), state.to_word());
    }
}

impl Bench {
    /// The guest's vCPU records that the task `tid` is woken and runs, and leaves the sub-buffer open.
    pub(super) fn wake_up(&self, mode: Mode, tid: i32) {
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
    pub(super) fn process(&self, mode: Mode, generation: u32, name: &'static str) {
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
        self.request(Request::Status);
        producer.record(tsc::read_ordered, 1, &7_u64.to_le_bytes());
    }

    /// The process ends, and the host has read what it left.
    pub(super) fn end_process(&self, generation: u32) {
        self.set_process(generation, PROCESS_CLOSED);
        let end = Instant::now() + Duration::from_secs(20);
        while self.region.memory().load(self.region.layout().process_ack) != u64::from(generation) {
            assert!(Instant::now() < end, "the slot is not given back");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the guest's tasks waited for, once `is_enough` of it is reported.
    pub(super) fn live(&self, is_enough: impl Fn(&Live) -> bool) -> Live {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let Answer::Live(live) = self.request(Request::Live) else { panic!() };
            if is_enough(&live) {
                return *live;
            }
            assert!(Instant::now() < end, "{live:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The guest's agent announces itself.
    pub(super) fn greet(&self) {
        self.guest().announce(b"6.1.0-test", 0, AGENT_ALIVE);
    }

    /// The same of a kernel whose function `schedule` is at that address.
    pub(super) fn greet_from(&self, schedule_at: u64) {
        self.guest().announce(b"6.1.0-test", schedule_at, AGENT_ALIVE);
    }

    /// The guest's kernel is left for its crash kernel at `time`.
    pub(super) fn crash(&self, time: u64) {
        self.guest().note_crash_kernel(time);
    }

    fn guest(&self) -> shared_ring::guest::Region {
        let memory = self.region.memory();
        // SAFETY: the region stays mapped for as long as the bench lives.
        unsafe { shared_ring::guest::Region::open(memory.base(), memory.size() as u64) }.unwrap()
    }

    pub(super) fn request(&self, request: Request) -> Answer {
        self.recorder.control().request(request)
    }

    /// Asks for a flush while the guest records into the rings of session slot `slot`, which are in discard mode.
    pub(super) fn flush(&self, slot: usize) -> Answer {
        let control = self.recorder.control();
        let flush = std::thread::spawn(move || control.request(Request::Flush));
        while !flush.is_finished() {
            self.record(slot, Mode::Discard, 1);
            std::thread::sleep(Duration::from_millis(10));
        }
        flush.join().unwrap()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn arm(&self, trigger: &str) -> String {
        message(self.request(Request::TriggerAdd { trigger: trigger.into(), every_ms: None, after_ms: Some(1) }))
    }

    pub(super) fn disarm(&self, trigger: &str) -> String {
        message(self.request(Request::TriggerRemove { trigger: trigger.into() }))
    }

    pub(super) fn snapshot(&self, name: &str) -> Answer {
        self.request(Request::Snapshot { dir: self.path(name), session: None })
    }

    /// Records of a layer in the trace called `name`, which passes the check.
    pub(super) fn records(&self, name: &str, kind: LayerKind) -> u64 {
        let trace = Trace::open(&self.path(name)).unwrap();
        let result = trace_merge::check::check(&trace, 10).unwrap();
        assert!(result.passed(), "{result:?}");
        trace
            .layers_of(kind)
            .map(|layer| layer.streams.iter().map(|stream| layer.records(stream).count() as u64).sum::<u64>())
            .sum()
    }
}

/// The event types of the guest's kernel in `region`.
pub(super) fn registry(region: &TraceRegion) -> Registry<Smp> {
    let layout = region.layout();
    let registry = region.memory().part(layout.registry, layout.registry_size);
    // SAFETY: the storage covers the registry, which the region keeps mapped for as long as tests have it; only they
    // write there.
    unsafe { Registry::new(Smp::new(registry.base()), layout.registry_size) }
}

pub(super) fn message(answer: Answer) -> String {
    match answer {
        Answer::Done { message } | Answer::Refused { message } => message.into_raw(),
        Answer::Status(_) | Answer::Live(_) | Answer::Balloon(_) => String::new(),
    }
}

pub(super) fn create(name: &str, mode: protocol::Mode, trace: Option<PathBuf>) -> Request {
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

pub(super) fn create_within(size: u64, mode: protocol::Mode) -> Request {
    let mut request = create("a", mode, Some("/nowhere".into()));
    if let Request::SessionCreate { max_size, .. } = &mut request {
        *max_size = Some(size);
    }
    request
}

/// What recorders of these tests said.
pub(super) static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(super) fn notify(line: &str) {
    SAID.lock().unwrap().push(line.into());
}
