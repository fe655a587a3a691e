//! Shows: A layer's limit holds, its loss is exact, others lose nothing.
//! Shows: A VM whose trace fails goes on, pauses or stops, as requested.
//! Shows: A recording keeps within its size, holds the newest records, and is readable while it grows.

mod bench;
mod sessions;
mod triggers;

pub(crate) use bench::{manifest, recording};

use super::*;
use crate::control::protocol::{self, LayerLimit, Live, TriggerStatus};
use crate::guest_symbols::GuestSymbols;
use crate::live::vcpu_activity::VcpuThreads;
use crate::region::region_file::{self, RegionFile, RegionShape};
use crate::region::{MAIN_SESSION, TraceRegion};
use crate::selection::Selection;
use crate::session::RecordingRequest;
use crate::session::recording::{GuestSide, Recording};
use crate::trigger::TriggerRequest;
use crate::trigger::expression::Trigger;
use crate::vmm_events::VmmTracer;
use bench::*;
use clock_sync::tsc;
use shared_ring::event::{Event, EventDescription, Field, FieldType};
use shared_ring::host::memory::HostMemory;
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
use strata_clock::{ClockParameters, HostTime, VcpuClocks};
use strata_observer::{BlockRequestKind, Observer};
use strata_recording::clock::{Clock, UtcAnchor};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Host, Layer, Vm};
use strata_recording::reader::Trace;
use tempfile::TempDir;
use uuid::Uuid;

#[test]
fn event_of_the_test_is_one_that_a_guest_could_have() {
    assert!(EventDescription::from(&EVENT).accepts(&[0; 8]));
}

#[test]
fn guest_that_writes_over_the_hosts_words_while_it_is_drained_is_reported_and_its_records_are_read() {
    let bench = Bench::behind_device(Mode::Discard);
    let (memory, host_area) = (bench.region.memory().clone(), bench.region.layout().guest_writable);
    bench.greet();

    for round in 0..10 {
        bench.record(0, Mode::Discard, 20);
        (0..host_area).step_by(8).for_each(|at| memory.store(at, 0xbad + round));
        std::thread::sleep(Duration::from_millis(20));
    }
    let Answer::Status(status) = bench.request(Request::Status) else { panic!("no status") };
    let Bench { dir, region, recorder, .. } = bench;
    let manifest = recorder.finish("done".into()).unwrap();

    let restored = manifest.vms[0].restored_words;
    assert!(status.trace.is_some_and(|trace| (1..=restored).contains(&trace.restored_words)), "{restored}");
    assert_eq!((region.restore(), memory.load(0)), (restored, MAGIC));
    let reported = SAID.lock().unwrap().iter().filter(|line| line.contains("has written over")).count();
    assert_eq!(reported, 1);
    let trace = Trace::open(&dir.path().join("trace")).unwrap();
    assert!(trace_merge::check::check(&trace, 10).unwrap().passed());
    let kernel = trace.layers_of(LayerKind::GuestKernel).next().unwrap();
    assert_eq!(kernel.streams.iter().map(|stream| kernel.records(stream).count()).sum::<usize>(), 200);
}

/// What triggers report of wake-ups in `mode`, first of one in a sub-buffer that stays open, then of as many as fill the ring.
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
    (first.wakeups.count, all.count, first.worst[0].task.raw().clone())
}

#[test]
fn wakeups_of_the_guest_are_reported_while_it_is_written() {
    assert_eq!(wakeups_in(Mode::Discard), (1, 192, "web".into()));
}

#[test]
fn wakeups_of_the_guest_are_reported_while_it_is_a_flight_recorder() {
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
    let Answer::Status(status) = bench.request(Request::Status) else { panic!("no status") };
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
    // It is within what was requested, and not a failure of the recording.
    assert_eq!(failures, 0);
    let reported = SAID
        .lock()
        .unwrap()
        .iter()
        .filter(|line| line.contains("guest-kernel makes more than 3 records a second"))
        .count();
    assert_eq!(reported, 1);
    assert!(trace_merge::check::check(&Trace::open(&trace).unwrap(), 10).unwrap().passed());
}

#[test]
fn flush_writes_what_the_rings_of_a_limited_layer_hold() {
    let bench = Bench::limited(&[SCARCE]);
    // More than a sub-buffer holds.
    bench.record(0, Mode::Discard, 300);
    let kernel = || {
        let Answer::Status(status) = bench.request(Request::Status) else { panic!("no status") };
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
fn requests_to_a_disk_are_reported_while_it_is_a_flight_recorder() {
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
fn streams_of_a_snapshot_go_on_and_are_complete_up_to_when_they_were_read() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.record(0, Mode::FlightRecorder, 20);

    let before = tsc::read_ordered();
    bench.snapshot("snapshot");
    let after = tsc::read_ordered();
    let snapshot = Trace::open(&bench.path("snapshot")).unwrap();
    let completed = bench.recorder.finish("done".into()).unwrap();

    let streams: Vec<_> = snapshot.layers().iter().flat_map(|layer| &layer.streams).collect();
    let was_read = |until| (before..=after).contains(&until);
    assert!(streams.iter().all(|stream| stream.description.complete_until.is_some_and(was_read)));
    assert!(streams.len() > 1 && streams.iter().all(|stream| stream.goes_on()));
    assert!(completed.layers.iter().all(|layer| completed.has_ended(layer)));
    assert!(completed.layers.iter().flat_map(|layer| &layer.streams).all(|stream| stream.complete_until.is_none()));
}

#[test]
fn guest_whose_crash_kernel_runs_is_known_until_that_took_over() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.greet();
    bench.record(0, Mode::FlightRecorder, 20);

    let crash = tsc::read_ordered();
    bench.crash(crash);
    bench.snapshot("snapshot");
    let snapshot = Manifest::load(&bench.path("snapshot")).unwrap();
    let completed = bench.recorder.finish("the guest's kernel panicked".into()).unwrap();

    let known = |manifest: &Manifest, kind| {
        let layer = manifest.layers.iter().find(|layer| layer.kind == kind).unwrap();
        (layer.another_kernel, layer.ended, layer.streams[0].complete_until)
    };
    let of_guest = [&snapshot, &completed].map(|manifest| known(manifest, LayerKind::GuestKernel));
    assert_eq!(of_guest, [(true, Some(false), Some(crash)); 2]);
    assert_eq!(known(&completed, LayerKind::Vmm), (false, None, None));
}

#[test]
fn crash_kernel_that_is_to_come_is_not_believed() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.greet();

    bench.crash(u64::MAX);
    let completed = bench.recorder.finish("done".into()).unwrap();

    let layer = completed.layers.iter().find(|layer| layer.kind == LayerKind::GuestKernel).unwrap();
    assert!(layer.streams[0].complete_until.unwrap() <= tsc::read_ordered());
}

/// The symbols of the guest's kernel in the recording at `path`.
fn saved_symbols(path: &Path) -> Option<String> {
    let trace = Trace::open(path).unwrap();
    trace.kallsyms(Some("vm0")).map(|text| String::from_utf8(text.into_owned()).unwrap())
}

#[test]
fn recordings_and_snapshots_hold_the_symbols_of_a_guests_kernel_that_says_where_it_lies() {
    for mode in [Mode::Discard, Mode::FlightRecorder] {
        let bench = Bench::new(mode);
        bench.greet_from(0xffff_ffff_81a0_0000);
        bench.request(create("extra", protocol::Mode::FlightRecorder, None));
        bench.request(Request::Snapshot { dir: bench.path("snapshot"), session: Some("extra".into()) });
        let (trace, snapshot, Bench { dir: _dir, recorder, .. }) = (bench.path("trace"), bench.path("snapshot"), bench);
        recorder.finish("done".into()).unwrap();

        let expected = Some("ffffffff81a00000 T schedule\n".to_owned());
        assert_eq!([saved_symbols(&snapshot), saved_symbols(&trace)], [expected.clone(), expected]);
    }
}

#[test]
fn recording_of_a_guest_whose_kernel_lies_nobody_knows_where_has_no_symbols_and_lacks_none() {
    let bench = Bench::new(Mode::Discard);
    bench.greet();
    let (trace, Bench { dir: _dir, recorder, .. }) = (bench.path("trace"), bench);

    let manifest = recorder.finish("done".into()).unwrap();

    assert_eq!((saved_symbols(&trace), manifest.missing), (None, Vec::new()));
}

#[test]
fn second_kernel_of_a_guest_is_reported_as_one_whose_symbols_are_not_there() {
    let bench = Bench::new(Mode::Discard);
    bench.greet_from(0xffff_ffff_81a0_0000);
    bench.flush(0);
    bench.greet_from(0xffff_ffff_a2a0_0000);
    let (trace, Bench { dir: _dir, recorder, .. }) = (bench.path("trace"), bench);

    let manifest = recorder.finish("done".into()).unwrap();

    assert_eq!(saved_symbols(&trace).as_deref(), Some("ffffffff81a00000 T schedule\n"));
    assert!(manifest.missing.iter().any(|missing| missing.reason.contains("another kernel")), "{:?}", manifest.missing);
}

#[test]
fn vcpu_that_has_not_joined_is_reported_until_it_has() {
    let bench = Bench::new(Mode::FlightRecorder);
    let written = |name| {
        bench.snapshot(name);
        let trace = Trace::open(&bench.path(name)).unwrap();
        let stream = trace.layers_of(LayerKind::GuestKernel).next().unwrap().description.streams[0].clone();
        (stream.never_joined, stream.nested)
    };

    let without_agent = bench.not_joined();
    bench.greet();
    let (reported_before, before) = (bench.not_joined(), written("before"));
    bench.record(0, Mode::FlightRecorder, 1);

    assert_eq!((without_agent, reported_before, bench.not_joined()), (vec![], vec![0], vec![]));
    // This guest counts no nested records.
    assert_eq!((before, written("after")), ((true, None), (false, None)));
}

#[test]
fn largest_record_that_fits_no_sub_buffer_is_named() {
    for mode in [Mode::Discard, Mode::FlightRecorder] {
        let bench = Bench::new(mode);
        bench.greet();
        bench.record(0, mode, 1);

        [70_000, 90_000, 80_000].into_iter().for_each(|bytes| bench.lose_too_large(0, mode, bytes));
        let completed = bench.recorder.finish("done".into()).unwrap();

        let layer = completed.layers.iter().find(|layer| layer.kind == LayerKind::GuestKernel).unwrap();
        let largest = layer.streams[0].largest_lost.as_ref().map(|lost| (lost.event.as_str(), lost.bytes));
        assert_eq!((layer.streams[0].lost.too_large, largest), (3, Some((EVENT.name, 90_000))), "{mode:?}");
    }
}

/// vCPUs of the guest's layer that never began to record.
fn never_joined(layers: &[Layer]) -> Vec<u32> {
    let layer = layers.iter().find(|layer| layer.kind == LayerKind::GuestKernel).unwrap();
    layer.streams.iter().filter(|stream| stream.never_joined).map(|stream| stream.cpu_id).collect()
}

#[test]
fn vcpu_that_is_added_beyond_the_regions_has_no_ring_and_is_missing_in_every_mode() {
    for mode in [Mode::Discard, Mode::FlightRecorder] {
        let bench = Bench::new(mode);
        bench.greet();
        bench.record(0, mode, 1);

        bench.threads.lock().unwrap().set(1, 71);
        let end = Instant::now() + Duration::from_secs(20);
        while bench.not_joined() != [1] {
            assert!(Instant::now() < end, "{mode:?}: {:?}", bench.not_joined());
            std::thread::sleep(Duration::from_millis(1));
        }
        let manifest = bench.recorder.finish("done".into()).unwrap();

        assert_eq!((manifest.vms[0].vcpus, never_joined(&manifest.layers)), (2, vec![1]), "{mode:?}");
        let trace = Trace::open(&bench.dir.path().join("trace")).unwrap();
        assert!(trace_merge::check::check(&trace, 10).unwrap().passed(), "{mode:?}");
    }
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

#[test]
fn clocks_of_the_host_are_in_a_recording_from_its_first_moment_on() {
    let bench = Bench::new(Mode::Discard);
    bench.record(0, Mode::Discard, 7);
    bench.flush(0);
    let Bench { dir, region: _region, recorder, .. } = bench;
    let folder = dir.path().join("trace");

    // As a recorder leaves it that is killed now.
    let while_it_runs = Trace::open(&folder).unwrap().clock_snapshots();
    recorder.finish("done".into()).unwrap();

    let clocks = Trace::open(&folder).unwrap().clock_snapshots();
    let (first, last) = (clocks.first().unwrap(), clocks.last().unwrap());
    assert_eq!(while_it_runs.first(), Some(first));
    assert!(first.ticks() < last.ticks() && first.monotonic_raw.ns < last.monotonic_raw.ns, "{clocks:?}");
}

#[test]
fn snapshot_of_a_flight_recorder_has_the_clocks_of_the_host() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.record(0, Mode::FlightRecorder, 7);

    bench.snapshot("snapshot");

    let clocks = Trace::open(&bench.path("snapshot")).unwrap().clock_snapshots();
    assert!(clocks.len() >= 2, "{clocks:?}");
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
    let bench = Bench::within(LIMIT);
    bench.request(Request::SessionStart { name: MAIN_SESSION.into() });

    let used = (0..40).map(|_| {
        bench.record(0, Mode::Discard, 600);
        bench.flush(0);
        disk_usage(&bench.path("trace"))
    });
    let most = used.max().unwrap();
    let Answer::Status(status) = bench.request(Request::Status) else { panic!("status is answered") };
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
    let refused = message(bench.request(Request::Flush));

    bench.request(create("extra", protocol::Mode::Discard, Some(bench.path("extra"))));
    bench.request(Request::SessionStart { name: "extra".into() });
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
    assert!(message(bench.request(Request::Snapshot { dir: "relative".into(), session: None })).contains("absolute"));
}

#[test]
fn recorder_that_is_dropped_has_completed_its_recording() {
    let bench = Bench::new(Mode::Discard);
    bench.record(0, Mode::Discard, 10);

    drop(bench.recorder);

    let trace = Trace::open(&bench.dir.path().join("trace")).unwrap();
    assert_eq!(trace.manifest().outcome.as_deref(), Some(FAILED));
}

#[test]
fn layer_that_cannot_be_written_ends_alone_and_is_reported() {
    let bench = Bench::new(Mode::Discard);
    fs::remove_dir_all(bench.path("trace/vm0/guest-kernel")).unwrap();

    let flushed = bench.flush(0);
    let status = bench.request(Request::Status);
    // Reported again with the next look, as the first time was no use.
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
