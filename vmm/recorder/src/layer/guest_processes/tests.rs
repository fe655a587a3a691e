//! The test is the guest: it writes the process table itself.
//!
//! Shows: A layer's limit holds, its loss is exact, others lose nothing.
#![allow(unsafe_code)] // It writes event registries through raw addresses.

use super::*;
use crate::control::protocol::LayerLimit;
use shared_ring::event::{Event, Field, FieldType};
use shared_ring::host::Parts;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{Geometry, Mode, PAGE_SIZE, PROCESS_ACTIVE, PROCESS_CLOSED, ProcessEntry};
use shared_ring::producer::Producer;
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use shared_ring::registry::Registry;
use shared_ring::storage::Smp;
use shared_ring::view::ProcessState;
use std::fs;
use std::mem::offset_of;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use strata_recording::files::MANIFEST_FILE;
use strata_recording::manifest::event_bytes;
use strata_recording::writer::NewLayer;
use tempfile::TempDir;

const SLOTS: u32 = 3;
const VCPUS: u32 = 2;
/// Ticks.
const SECOND: u64 = 1_000_000_000;

/// A guest's memory, and the recorder's side of its processes.
struct Bench {
    dir: TempDir,
    memory: HostMemory,
    layout: RegionLayout,
    processes: GuestProcesses,
}

impl Bench {
    fn new(descriptors: usize) -> Self {
        let rings = Rings { geometry: Geometry::new(4096, 2).unwrap(), mode: Mode::Discard };
        let layout = RegionLayout::new(RegionConfig {
            vcpus: VCPUS,
            sessions: [Some(rings), None, None, None],
            process_rings: rings,
            process_slots: SLOTS,
            registry_size: 4096,
            process_registry_size: 128 << 10,
        })
        .unwrap();
        let memory = HostMemory::private(layout.size);
        let table = ProcessTable::new(Parts::of(memory.clone(), &layout).unwrap(), "vm0".into(), 0);
        Self { dir: TempDir::new().unwrap(), memory, layout, processes: GuestProcesses::new(table, descriptors) }
            .patient()
    }

    /// Looks take as long as they take: the machine of a test may be busy.
    fn patient(mut self) -> Self {
        self.processes.look_time = Duration::from_secs(3600);
        self
    }

    /// Says that slot `slot` is in use `generation` of it, as `status`.
    fn set(&self, slot: u32, generation: u32, status: u32) {
        let entry = self.layout.process_table + slot as usize * size_of::<ProcessEntry>();
        self.memory.store(entry + offset_of!(ProcessEntry, pid), u64::from(100 + slot));
        let state = ProcessState { generation, status };
        self.memory.store(entry + offset_of!(ProcessEntry, state), state.to_word());
    }

    /// Fills the event registry of slot `slot`; returns how many event types it took.
    fn fill_registry(&self, slot: u32) -> u64 {
        const FIELDS: &[Field] = &[Field::new("a", FieldType::U64), Field::new("b", FieldType::U64)];
        let size = self.layout.process_registry_size;
        let registry = self.memory.part(self.layout.process_slot(slot) + PAGE_SIZE, size);
        registry.clear(0, size);
        // SAFETY: the storage covers the registry, which the bench keeps; nobody else writes there.
        let registry = unsafe { Registry::new(Smp::new(registry.base()), size) };
        let event = |id| Event { id, class: 0, name: "a:b", fields: FIELDS };
        (1..u16::MAX).take_while(|&id| registry.append(&event(id))).count() as u64
    }

    fn look(&mut self) {
        self.look_at(0);
    }

    /// Looks at `now`, ticks.
    fn look_at(&mut self, now: u64) {
        // A second of slack.
        self.processes.drain(self.dir.path(), &manifest(), Producers::Running, &|| now + SECOND, None);
    }

    /// Registers an event type and records it in slot `slot` on vCPU 0 at `time`, ticks.
    fn record(&self, slot: u32, time: u64) {
        let size = self.layout.process_registry_size;
        let registry = self.memory.part(self.layout.process_slot(slot) + PAGE_SIZE, size);
        // SAFETY: the storage covers the registry, which the bench keeps; nobody else writes there.
        let registry = unsafe { Registry::new(Smp::new(registry.base()), size) };
        assert!(registry.append(&Event { id: 1, class: 0, name: "a:b", fields: &[] }));
        self.record_again(slot, 1, time);
    }

    /// Records so many more of the events that [`record`](Self::record) registered.
    fn record_again(&self, slot: u32, events: u64, time: u64) {
        let Rings { geometry, mode } = self.layout.config.process_rings;
        let ring = self.memory.part(self.layout.process_ring(slot, 0), self.layout.process_ring_stride);
        // SAFETY: the storage covers the ring, which the bench keeps; nobody else writes there.
        let producer = unsafe { Producer::new(Smp::new(ring.base()), geometry, mode) };
        for _ in 0..events {
            producer.record(|| time, 1, &[]);
        }
    }

    /// Records in all streams.
    fn recorded(&self) -> u64 {
        let streams = self.processes.layers().flat_map(|layer| layer.streams);
        streams.map(|stream| stream.records).sum()
    }

    fn acknowledged(&self, slot: u32) -> u64 {
        self.memory.load(self.layout.process_ack + slot as usize * 8)
    }
}

fn manifest() -> Manifest {
    serde_json::from_value(serde_json::json!({
        "format": 1, "strata": "test", "started": {"utc": "", "utc_ns": 0},
        "clock": {
            "uuid": "00000000-0000-0000-0000-000000000001", "frequency_hz": 1_000_000_000,
            "utc": {"ticks": 0, "utc_ns": 0, "uncertainty_ns": 0}, "source": "x86-tsc", "vcpus": [],
            "error_bound_ns": 1, "bound_derivation": "none"
        },
        "host": {"hostname": "", "kernel": "", "cpu": "", "kvm": ""}, "vms": [], "layers": []
    }))
    .unwrap()
}

#[test]
fn process_over_its_limit_costs_another_one_no_record() {
    let mut bench = Bench::new(100);
    let limit = LayerLimit { layer: LayerKind::GuestUser, per_second: 1, burst: 100 };
    let limits = LayerLimits::new(&[limit], Mode::Discard, &[LayerKind::GuestUser]).unwrap();
    bench.processes = bench.processes.within_rate(limits);
    (0..2).for_each(|slot| bench.set(slot, 1, PROCESS_ACTIVE));
    (0..2).for_each(|slot| bench.record(slot, 1));

    for time in 2..=200 {
        // The first one fills its ring again and again, the second one records a little.
        bench.record_again(0, 600, time);
        bench.record_again(1, time % 2, time);
        bench.look_at(time);
    }
    let reported: Vec<_> = std::iter::from_fn(|| bench.processes.report_limit()).collect();
    (0..2).for_each(|slot| bench.set(slot, 1, PROCESS_CLOSED));
    bench.look_at(200);

    let layers: Vec<_> = bench.processes.layers().collect();
    let counts = |layer: &Layer| {
        let streams = layer.streams.iter();
        streams
            .fold((0, 0), |(all, lost), stream| (all + stream.records + stream.lost.total(), lost + stream.lost.full))
    };
    let [(flooded, lost), (all, none)] = [counts(&layers[0]), counts(&layers[1])];
    assert_eq!((flooded, all, none), (1 + 199 * 600, 1 + 99, 0));
    assert!(lost > flooded / 2, "{lost} {flooded}");
    let times = layers.iter().map(|layer| layer.limit.unwrap().times);
    assert_eq!((times.collect::<Vec<_>>(), reported.len()), (vec![1, 0], 1));
}

#[test]
fn ring_of_a_vcpu_that_sleeps_is_looked_at_when_it_has_run_or_the_process_ends() {
    let asleep = SleepingThread::start();
    let mut bench = Bench::new(100);
    bench.processes =
        bench.processes.following(VcpuActivity::of(Arc::new(Mutex::new([(0, asleep.tid)].into_iter().collect()))));
    bench.set(0, 1, PROCESS_ACTIVE);
    bench.record(0, 1);
    // The process is found, then its vCPU's time is known.
    (1..=3).for_each(|time| bench.look_at(time));

    // Who records is this thread, which is not the vCPU's.
    bench.record_again(0, 600, 4);
    bench.look_at(4);
    let while_it_sleeps = bench.recorded();
    asleep.run();
    bench.look_at(5);
    let when_it_has_run = bench.recorded();
    bench.record_again(0, 600, 6);
    bench.set(0, 1, PROCESS_CLOSED);
    bench.look_at(6);

    assert_eq!(while_it_sleeps, 0);
    assert!(when_it_has_run > 0 && bench.recorded() > when_it_has_run, "{when_it_has_run} {}", bench.recorded());
}

#[test]
fn flush_takes_what_is_in_the_ring_of_a_vcpu_that_sleeps() {
    let asleep = SleepingThread::start();
    let mut bench = Bench::new(100);
    bench.processes =
        bench.processes.following(VcpuActivity::of(Arc::new(Mutex::new([(0, asleep.tid)].into_iter().collect()))));
    bench.set(0, 1, PROCESS_ACTIVE);
    bench.record(0, 1);
    (1..=3).for_each(|time| bench.look_at(time));

    bench.record_again(0, 600, 4);
    bench.look_at(4);
    let before = bench.recorded();
    bench.processes.running().for_each(WrittenLayer::lift_limit);
    bench.look_at(5);

    assert!(before == 0 && bench.recorded() > 0, "{before} {}", bench.recorded());
}

#[test]
fn packets_that_a_limit_held_back_come_though_the_vcpu_sleeps() {
    let asleep = SleepingThread::start();
    // A packet has more records, which the time of a look makes good.
    let limit = LayerLimit { layer: LayerKind::GuestUser, per_second: 100_000, burst: 100 };
    let limits = LayerLimits::new(&[limit], Mode::Discard, &[LayerKind::GuestUser]).unwrap();
    let mut bench = Bench::new(100);
    bench.processes = bench.processes.within_rate(limits);
    bench.processes =
        bench.processes.following(VcpuActivity::of(Arc::new(Mutex::new([(0, asleep.tid)].into_iter().collect()))));
    bench.set(0, 1, PROCESS_ACTIVE);
    bench.record(0, 1);
    (1..=2).for_each(|time| bench.look_at(time));

    bench.record_again(0, 1000, 3);
    asleep.run();
    bench.look_at(3);
    let first = bench.recorded();
    std::thread::sleep(Duration::from_millis(50));
    bench.look_at(4);

    assert!(first > 100 && bench.recorded() > first, "{first} {}", bench.recorded());
}

/// A thread that sleeps.
struct SleepingThread {
    tid: u32,
    orders: Sender<()>,
    done: Receiver<u32>,
}

impl SleepingThread {
    fn start() -> Self {
        let (orders, received) = channel();
        let (reported, done) = channel();
        std::thread::spawn(move || {
            reported.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            for () in received {
                reported.send(0).unwrap();
            }
        });
        let tid = done.recv().unwrap();
        let thread = Self { tid, orders, done };
        thread.fall_asleep();
        thread
    }

    /// Has it do something; it sleeps again afterwards.
    fn run(&self) {
        self.orders.send(()).unwrap();
        self.done.recv().unwrap();
        self.fall_asleep();
    }

    /// Waits until the kernel says that it sleeps.
    fn fall_asleep(&self) {
        let status = format!("/proc/self/task/{}/status", self.tid);
        while !fs::read_to_string(&status).unwrap().contains("State:\tS") {
            std::thread::yield_now();
        }
    }
}

#[test]
fn processes_without_descriptors_are_refused_and_their_slots_given_back() {
    let mut bench = Bench::new(2 * VCPUS as usize);

    (0..SLOTS).for_each(|slot| bench.set(slot, 1, PROCESS_ACTIVE));
    bench.look();

    assert_eq!(bench.processes.layers().count(), 2);
    assert_eq!(bench.processes.refused(), Refused { without_descriptors: 1, ..Refused::default() });
    assert_eq!((bench.acknowledged(0), bench.acknowledged(2)), (0, 1));
    assert!(bench.processes.missing().next().unwrap().fix.contains("ulimit -Hn"));
}

#[test]
fn layer_of_a_process_that_has_ended_says_so_while_others_go_on() {
    let mut bench = Bench::new(2 * VCPUS as usize);

    bench.set(0, 1, PROCESS_ACTIVE);
    bench.set(1, 1, PROCESS_ACTIVE);
    bench.look();
    bench.set(0, 1, PROCESS_CLOSED);
    bench.look();

    assert_eq!(bench.processes.layers().map(|layer| layer.ended).collect::<Vec<_>>(), [Some(true), None]);
}

#[test]
fn slots_of_one_process_have_a_layer_each() {
    let mut bench = Bench::new(usize::MAX);

    (0..2).for_each(|slot| {
        bench.record(slot, 1);
        bench.set(slot, 1, PROCESS_ACTIVE);
    });
    // of the process that has slot 0
    let entry = bench.layout.process_table + size_of::<ProcessEntry>();
    bench.memory.store(entry + offset_of!(ProcessEntry, pid), 100);
    bench.look();
    (0..2).for_each(|slot| bench.set(slot, 1, PROCESS_CLOSED));
    bench.look();

    let paths: Vec<_> = bench.processes.layers().map(|layer| layer.path).collect();
    assert_eq!(paths, ["vm0/guest-user/100", "vm0/guest-user/100-2"]);
    let records: Vec<_> = bench.processes.layers().map(|layer| layer.streams[0].records).collect();
    assert_eq!(records, [1, 1]);
}

#[test]
fn descriptors_of_a_process_that_is_gone_are_for_the_next() {
    let mut bench = Bench::new(VCPUS as usize);

    bench.set(0, 1, PROCESS_ACTIVE);
    bench.look();
    bench.set(0, 1, PROCESS_CLOSED);
    bench.look();
    bench.set(1, 1, PROCESS_ACTIVE);
    bench.look();

    assert_eq!((bench.processes.layers().count(), bench.processes.refused()), (2, Refused::default()));
}

#[test]
fn process_whose_layer_cannot_be_made_is_counted_and_the_next_one_goes_on() {
    let mut bench = Bench::new(usize::MAX);
    let vm = bench.dir.path().join("vm0");

    fs::write(&vm, b"in the way").unwrap();
    bench.set(0, 1, PROCESS_ACTIVE);
    bench.set(1, 1, PROCESS_ACTIVE);
    bench.look();
    fs::remove_file(&vm).unwrap();
    bench.set(2, 1, PROCESS_ACTIVE);
    bench.look();
    let reported = [bench.processes.report_end(), bench.processes.report_end()];

    assert_eq!(bench.processes.refused(), Refused { not_written: 2, ..Refused::default() });
    assert!(reported[0].as_ref().unwrap().reason.contains("ends early") && reported[1].is_none(), "{reported:?}");
    assert_eq!((bench.acknowledged(0), bench.acknowledged(1)), (1, 1));
    assert_eq!(bench.processes.layers().count(), 1);
}

#[test]
fn event_types_of_a_process_are_described_up_to_a_limit_and_the_rest_is_counted() {
    let mut bench = Bench::new(usize::MAX);

    let registered = bench.fill_registry(0);
    bench.set(0, 1, PROCESS_ACTIVE);
    bench.look();
    bench.set(0, 1, PROCESS_CLOSED);
    bench.look();

    let described = bench.processes.layers().next().unwrap().events;
    let refused = bench.processes.refused().event_types;
    assert!(described.iter().map(event_bytes).sum::<u64>() <= MAX_PROCESS_DESCRIPTION);
    assert!(refused > 0 && described.len() as u64 + refused == registered, "{} {refused}", described.len());
    assert!(bench.processes.missing().any(|missing| missing.reason.contains("types of events")));
}

#[test]
fn processes_that_only_describe_themselves_cannot_fill_the_manifest() {
    let mut bench = Bench::new(usize::MAX);
    bench.fill_registry(0);

    for generation in 1..=60 {
        bench.set(0, generation, PROCESS_ACTIVE);
        bench.look();
        bench.set(0, generation, PROCESS_CLOSED);
        bench.look();
    }
    let manifest = Manifest { layers: bench.processes.layers().collect(), ..manifest() };
    manifest.save(bench.dir.path()).unwrap();

    let refused = bench.processes.refused();
    let bytes = fs::metadata(bench.dir.path().join(MANIFEST_FILE)).unwrap().len();
    assert!(bytes <= MAX_DESCRIPTIONS + (4 << 10), "{bytes}");
    assert!(refused.too_many > 0 && refused.event_types > 0, "{refused:?}");
    assert_eq!(bench.acknowledged(0), 60);
}

#[test]
fn record_from_before_its_process_had_the_slot_is_damage_and_counted() {
    let mut bench = Bench::new(usize::MAX);
    let now = 100 * SECOND;

    bench.look_at(now);
    [(0, now + 1), (1, 1)].into_iter().for_each(|(slot, time)| {
        bench.record(slot, time);
        bench.set(slot, 1, PROCESS_ACTIVE);
    });
    bench.look_at(now + SECOND);
    (0..2).for_each(|slot| bench.set(slot, 1, PROCESS_CLOSED));
    bench.look_at(now + 2 * SECOND);

    let counts: Vec<_> =
        bench.processes.layers().map(|layer| (layer.streams[0].records, layer.streams[0].rejected_bytes > 0)).collect();
    assert_eq!(counts, [(1, false), (0, true)]);
}

#[test]
fn record_that_was_made_while_a_look_was_held_up_is_not_taken_for_one_of_the_future() {
    let mut bench = Bench::new(usize::MAX);
    bench.record(0, 5 * SECOND);
    bench.set(0, 1, PROCESS_CLOSED);
    let times = std::cell::RefCell::new(vec![6 * SECOND, SECOND]);
    let latest = || times.borrow_mut().pop().unwrap_or(6 * SECOND);

    bench.processes.drain(bench.dir.path(), &manifest(), Producers::Running, &latest, None);

    let records: Vec<_> = bench.processes.layers().map(|layer| layer.streams[0].records).collect();
    assert_eq!(records, [1]);
}

#[test]
fn look_without_time_goes_on_where_the_last_one_ended() {
    let mut bench = Bench::new(usize::MAX);
    (0..SLOTS).for_each(|slot| {
        bench.record(slot, 1);
        bench.set(slot, 1, PROCESS_ACTIVE);
    });
    bench.look();
    (0..SLOTS).for_each(|slot| bench.set(slot, 1, PROCESS_CLOSED));

    bench.processes.look_time = Duration::ZERO;
    let hurried = bench.processes.drain(bench.dir.path(), &manifest(), Producers::Running, &|| SECOND, None);
    let acknowledged = (0..SLOTS).map(|slot| bench.acknowledged(slot)).collect::<Vec<_>>();
    bench.processes.drain(bench.dir.path(), &manifest(), Producers::Stopped, &|| SECOND, None);

    let records: u64 = bench.processes.layers().map(|layer| layer.streams[0].records).sum();
    let nothing_yet = (Found::Backlog, vec![0; SLOTS as usize]);
    assert_eq!(((hurried, acknowledged), records), (nothing_yet, u64::from(SLOTS)));
}

#[test]
fn process_of_which_nothing_is_left_in_a_recording_of_a_limited_size_is_forgotten_and_counted() {
    let rotation = Rotation::new(80 << 10);
    let mut bench = Bench::new(usize::MAX);
    bench.processes = bench.processes.within(Some(&rotation));
    bench.record(0, 1);
    bench.set(0, 1, PROCESS_ACTIVE);
    bench.look();
    bench.set(0, 1, PROCESS_CLOSED);
    bench.look();
    let described = bench.processes.described;

    bench.processes.forget_dropped(bench.dir.path());
    let before = bench.processes.layers().count();
    let host = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size: 4096 };
    let mut host = LayerWriter::create_in_progress(Some(&rotation), bench.dir.path(), &manifest(), host).unwrap();
    (0..2000).for_each(|number| host.record(0, SECOND + number, 1, &[0; 40]).unwrap());
    bench.processes.forget_dropped(bench.dir.path());

    assert_eq!((before, bench.processes.layers().count()), (1, 0));
    assert!(described > 0 && bench.processes.described == 0, "{described} {}", bench.processes.described);
    assert!(bench.processes.missing().any(|missing| missing.reason.starts_with("1 processes that ended")));
    assert!(!bench.dir.path().join("vm0/guest-user/100").exists());
}
