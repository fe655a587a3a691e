use super::*;
use crate::control::directory::tests::{description, runtime};
use crate::control::directory::{VmDescription, VmDirectory};
use crate::region::TraceRegion;
use crate::region::mapped_file;
use crate::vmm_events::VmmTracer;
use rustix::fs::{CWD, FileType, mknodat};
use shared_ring::event::{Event, Field, FieldType};
use shared_ring::layout::Geometry;
use shared_ring::producer::Producer;
use shared_ring::region::{RegionConfig, Rings};
use shared_ring::registry::Registry;
use shared_ring::storage::Smp;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use strata_clock::HostTime;
use strata_observer::Observer;
use strata_recording::test_trace::clock_snapshot;
use tempfile::TempDir;
use trace_merge::check;

const EVENT: Event = Event { id: 1, class: 0, name: "test:event", fields: &[Field::new("number", FieldType::U64)] };

/// Leaves a region behind in which vCPU 0 recorded events at `times`, with sessions called `others` beside the one that
/// recorded.
fn leave_region(directory: &VmDirectory, mode: Mode, times: impl IntoIterator<Item = u64>, others: &[&str]) {
    let rings = Rings { geometry: Geometry::new(4096, 4).unwrap(), mode };
    let config = RegionConfig {
        vcpus: 2,
        sessions: [Some(rings); SESSION_SLOTS],
        process_rings: rings,
        process_slots: 1,
        registry_size: 4096,
        process_registry_size: 4096,
    };
    let file = directory.create_region().unwrap();
    let region = TraceRegion::create(file, config, Uuid::from_u128(7), 1_000_000_000).unwrap();
    let layout = region.layout();
    let ring = region.memory().part(layout.kernel_ring(0, 0), rings.ring_size());
    let registry = region.memory().part(layout.registry, layout.registry_size);
    // SAFETY: both storages cover their parts, which the region keeps mapped; nobody else writes there.
    let (registry, producer) = unsafe {
        (
            Registry::new(Smp::new(registry.base()), layout.registry_size),
            Producer::new(Smp::new(ring.base()), rings.geometry, mode),
        )
    };
    assert!(registry.append(&EVENT));
    for time in times {
        producer.record(|| time, EVENT.id, &time.to_le_bytes());
    }
    for (slot, name) in (1..).zip(others) {
        region.open_session(slot, name, rings).unwrap();
    }
}

/// A VM's folder whose process is dead, with such a region of records at the times 1 to `count`.
fn dead(mode: Mode, count: u64) -> (TempDir, PathBuf) {
    dead_after(mode, 1..=count)
}

/// A VM's folder whose process is dead, with such a region of records at `times`.
fn dead_after(mode: Mode, times: impl IntoIterator<Item = u64>) -> (TempDir, PathBuf) {
    let runtime = runtime();
    let mut directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
    leave_region(&directory, mode, times, &[]);
    directory.keep();
    let region = directory.region();
    (runtime, region)
}

fn records(manifest: &Manifest) -> u64 {
    manifest.layers.iter().flat_map(|layer| &layer.streams).map(|stream| stream.records).sum()
}

#[test]
fn everything_committed_is_recovered_twice_and_the_region_stays_as_it_was() {
    let (runtime, region) = dead(Mode::Discard, 10);
    let before = fs::read(&region).unwrap();

    let first = recover(&region, &runtime.path().join("first")).unwrap();
    let second = recover(region.parent().unwrap(), &runtime.path().join("second")).unwrap();

    assert_eq!((records(&first.traces[0].1), records(&second.traces[0].1)), (10, 10));
    assert_eq!(first.written_before, Some("/tmp/trace".into()));
    assert!(fs::read(&region).unwrap() == before);
}

#[test]
fn clocks_beside_the_region_are_recovered_where_they_belong_to_it() {
    let snapshots: Vec<ClockSnapshot> = [1, 3, 8, 20, 30].into_iter().map(clock_snapshot).collect();
    let recovered = |uuid: Uuid| {
        let (runtime, region) = dead_after(Mode::Discard, [5, 9, 12]);
        let mut manifest = strata_recording::test_trace::manifest();
        manifest.clock.uuid = uuid;
        manifest.save(region.parent().unwrap()).unwrap();
        clock_snapshots::write(&snapshots, region.parent().unwrap()).unwrap();
        let out = runtime.path().join("out");
        recover(&region, &out).unwrap();
        Trace::open(&out).unwrap().clock_snapshots().iter().map(ClockSnapshot::ticks).collect::<Vec<_>>()
    };

    assert_eq!((recovered(Uuid::from_u128(7)), recovered(Uuid::from_u128(8))), (vec![3, 8, 20], vec![]));
}

#[test]
fn record_of_a_time_that_no_trace_can_tell_is_refused() {
    let (runtime, region) = dead_after(Mode::Discard, [1, 2, 1 << 63]);

    let recovered = recover(&region, &runtime.path().join("out")).unwrap();

    let stream = &recovered.traces[0].1.layers[0].streams[0];
    assert_eq!(stream.records, 2);
    assert!(stream.rejected_bytes > 0);
}

#[test]
fn flight_recorder_holds_the_last_records_before_the_death() {
    let (runtime, region) = dead(Mode::FlightRecorder, 5000);
    let out = runtime.path().join("out");

    let recovered = recover(&region, &out).unwrap();

    let manifest = &recovered.traces[0].1;
    let trace = strata_recording::reader::Trace::open(&out).unwrap();
    let layer = &trace.layers()[0];
    let times: Vec<u64> = layer.records(&layer.streams[0]).map(|record| record.time).collect();
    assert_eq!(times.last(), Some(&5000));
    assert_eq!(times.len() as u64, 5000 - times[0] + 1);
    assert!(manifest.layers[0].streams[0].overwritten > 0 && recovered.written_before.is_none());
}

#[test]
fn recovered_trace_passes_the_check_which_says_what_it_could_not() {
    let (runtime, region) = dead(Mode::FlightRecorder, 100);
    let out = runtime.path().join("out");
    recover(&region, &out).unwrap();

    let result = check::check(&strata_recording::reader::Trace::open(&out).unwrap(), 10).unwrap();

    assert!(result.passed(), "{result:?}");
    assert_eq!((result.records, result.unchecked, result.without_periods.len()), (100, 100, 1));
}

#[test]
fn sessions_that_a_damaged_region_calls_the_same_are_recovered_side_by_side() {
    let runtime = runtime();
    let mut directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
    leave_region(&directory, Mode::Discard, 1..=10, &["disk-3", "disk", "disk"]);
    directory.keep();
    let region = directory.region();
    drop(directory);

    let recovered = recover(&region, &runtime.path().join("out")).unwrap();

    let names = recovered.traces.iter().map(|(dir, _)| dir.file_name().unwrap().to_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["out", "out-disk-3", "out-disk", "out-disk-3-3"]);
    assert_eq!(recovered.damage, ["session slot 3: an earlier session has its name, \"disk\""]);
}

#[test]
fn each_session_becomes_one_file_where_the_name_says_so() {
    let runtime = runtime();
    let mut directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
    leave_region(&directory, Mode::Discard, 1..=10, &["disk"]);
    directory.keep();
    let (region, out) = (directory.region(), TempDir::new().unwrap());
    drop(directory);

    let recovered = recover(&region, &out.path().join("out.strata")).unwrap();
    let again = recover(&region, &out.path().join("out.strata")).unwrap_err().to_string();

    let mut files: Vec<_> = fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["out-disk.strata", "out.strata"]);
    for (path, manifest) in &recovered.traces {
        assert_eq!(Trace::open(path).unwrap().manifest(), manifest);
    }
    assert!(again.contains("out.strata: is there already"), "{again}");
}

#[test]
fn region_of_a_running_vm_is_refused() {
    let runtime = runtime();
    let directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
    leave_region(&directory, Mode::Discard, 1..=1, &[]);

    let error = recover(&directory.region(), &runtime.path().join("out")).unwrap_err();

    assert!(error.to_string().contains("still running"), "{error}");
    assert!(!runtime.path().join("out").exists());
}

#[test]
fn file_that_is_no_region_is_refused_and_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let junk = dir.path().join("junk");
    fs::write(&junk, vec![0x5a; 1 << 16]).unwrap();
    let empty = dir.path().join("empty");
    fs::write(&empty, []).unwrap();

    let errors = [&junk, &empty, &dir.path().join("nothing")].map(|path| recover(path, &out).unwrap_err().to_string());

    assert!(errors.iter().zip(["junk", "empty", "nothing"]).all(|(error, name)| error.contains(name)), "{errors:?}");
    assert!(!out.exists());
}

#[test]
fn vmm_records_are_recovered_beside_the_guests() {
    let runtime = runtime();
    let rings = Rings { geometry: Geometry::new(4096, 4).unwrap(), mode: Mode::FlightRecorder };
    let vm = VmDescription { vmm_rings: Some(rings.into()), ..description("a") };
    let mut directory = VmDirectory::create(runtime.path(), &vm).unwrap();
    leave_region(&directory, Mode::FlightRecorder, 1..=10, &[]);
    let memory = mapped_file::map(&directory.create_vmm_rings().unwrap(), VmmTracer::memory_size(2, rings)).unwrap();
    let tracer = VmmTracer::new(2, rings, memory, HostTime::Tsc, |_| true, Box::new(|_, _| ()));
    tracer.vcpu_enter(0);
    tracer.vcpu_exit(0, 2);
    tracer.vcpu_enter(1);
    directory.keep();
    let region = directory.region();
    drop(directory);

    let recovered = recover(&region, &runtime.path().join("out")).unwrap();

    let manifest = &recovered.traces[0].1;
    let layer = manifest.layers.iter().find(|layer| layer.kind == LayerKind::Vmm).unwrap();
    let records: Vec<(u32, u64)> = layer.streams.iter().map(|stream| (stream.cpu_id, stream.records)).collect();
    assert_eq!(records, [(0, 2), (1, 1), (2, 0)]);
    assert!(manifest.missing.iter().all(|missing| missing.layer != LayerKind::Vmm));
}

#[test]
fn what_a_flight_recorder_kept_of_the_hosts_kernel_is_recovered_up_to_the_first_time_that_cannot_be() {
    let runtime = runtime();
    let mut directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
    leave_region(&directory, Mode::FlightRecorder, 1..=10, &[]);
    host_history::tests::leave(directory.create_host_history().unwrap(), (1..=20).chain([u64::MAX, 21]));
    directory.keep();
    let region = directory.region();
    drop(directory);

    let recovered = recover(&region, &runtime.path().join("out")).unwrap();

    let (_, manifest) = &recovered.traces[0];
    let of_host = manifest.layers.iter().find(|layer| layer.kind == LayerKind::HostKernel).unwrap();
    // What came between the last look at it and the death is missing.
    let of_guest = manifest.layers.iter().find(|layer| layer.kind == LayerKind::GuestKernel).unwrap();
    assert_eq!((of_host.streams[0].records, manifest.has_ended(of_host)), (20, false));
    assert!(manifest.has_ended(of_guest));
    assert!(manifest.missing.iter().all(|missing| missing.layer != LayerKind::HostKernel), "{:?}", manifest.missing);
}

#[test]
fn what_lies_beside_a_region_in_a_folder_open_to_others_is_not_believed() {
    let (_runtime, region) = dead(Mode::FlightRecorder, 10);
    let open = TempDir::new().unwrap();
    for name in ["region", "vm.json"] {
        fs::copy(region.with_file_name(name), open.path().join(name)).unwrap();
    }
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let out = TempDir::new().unwrap();

    let recovered = recover(&open.path().join("region"), &out.path().join("trace")).unwrap();

    assert_eq!(records(&recovered.traces[0].1), 10);
    assert!(recovered.damage.iter().any(|line| line.contains("not yours alone")), "{:?}", recovered.damage);
}

#[test]
fn fifo_in_place_of_a_file_is_not_waited_for() {
    let folder = TempDir::new().unwrap();
    for name in ["region", "vm.json", "lock"] {
        let path = folder.path().join(name);
        mknodat(CWD, &path, FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR, 0).unwrap();
    }

    let recovered = recover(&folder.path().join("region"), &folder.path().join("trace"));

    assert!(matches!(recovered, Err(RecoverError::Read { .. })), "{recovered:?}");
}
