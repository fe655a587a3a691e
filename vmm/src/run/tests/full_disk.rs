//! Recordings under the jail that fill what they may: a limited size, or a small disk.
//!
//! Shows: In the jail, a recording is completed on a full disk, with every counted record.

use super::vm_process::{FLOOD, LIMIT, NOBODY, Vm, instances_of};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use strata_export::{Options, ctf};
use strata_recorder::control::protocol::{Answer, Request, Status};
use strata_recording::files::compression::Compression;

/// A file system in memory at a VM's folder `traces`.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// One of `size`, with its unit, that belongs to nobody.
    fn mount(folder: &Path, size: &str) -> Self {
        let path = folder.join("traces");
        let options = std::ffi::CString::new(format!("size={size},uid=65534,gid=65534,mode=700")).unwrap();
        rustix::mount::mount("tmpfs", &path, "tmpfs", rustix::mount::MountFlags::empty(), options.as_c_str()).unwrap();
        Self(path)
    }

    /// Takes every byte that is free, again and again until `is_enough`.
    fn fill(&self, is_enough: impl Fn() -> bool) {
        let filler = fs::File::options().create(true).append(true).open(self.0.join("filler")).unwrap();
        let end = Instant::now() + LIMIT;
        while !is_enough() {
            assert!(Instant::now() < end, "the disk is not full enough");
            while std::io::Write::write_all(&mut &filler, &[0; 4096]).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Records of the trace `dir`, which babeltrace2 reads all of.
fn records_read_by_all(dir: &Path) -> u64 {
    let trace = strata_recording::reader::Trace::open(dir).unwrap();
    let records = strata_recording::reader::merge::Merge::new(trace.layers(), 0).count() as u64;
    assert_eq!(records_of_babeltrace2(dir), records);
    records
}

/// Records that babeltrace2 reads in `dir`. It has no complaint but what was lost in full rings, on a machine that has other
/// things to do.
fn records_of_babeltrace2(dir: &Path) -> u64 {
    const BEFORE_THE_FIRST: &str = "WARNING: Tracer may have discarded ";
    let read = std::process::Command::new("babeltrace2").arg(dir).output().unwrap();
    let complaints = String::from_utf8_lossy(&read.stderr).into_owned();
    // It cannot tell how many were lost before the first packet that is left of a stream.
    let is_loss = |line: &str| line.starts_with("WARNING: Tracer discarded ") || line.starts_with(BEFORE_THE_FIRST);
    assert!(complaints.lines().all(is_loss), "{complaints}");
    read.stdout.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// A VM whose trace rotates on a disk that then fills up, and has ended there as `reaction` says. While it is still
/// there, `meanwhile` is done.
fn rotating_on_a_full_disk(reaction: &str, meanwhile: impl FnOnce(&mut Vm, &SmallDisk)) {
    let arguments = ["--user", "65534:65534", "--max-size", "16M", "--on-trace-failure", reaction];
    let mut disk = None;
    let mut vm = Vm::start_in(FLOOD, NOBODY, &arguments, |folder, _| disk = Some(SmallDisk::mount(folder, "20m")));
    let disk = disk.unwrap();
    let trace = vm.path("traces/trace");
    let end = Instant::now() + LIMIT;
    while !has_dropped(&vm.status()) {
        assert!(Instant::now() < end, "it does not rotate: {}", vm.printed());
        std::thread::sleep(Duration::from_millis(20));
    }

    // Where the VM goes on, all layers that it has: the VMM's, and the host's where that can be traced.
    let layers: &[&str] = match reaction {
        "continue" if instances_of(vm.process.id()) > 0 => &["vmm: ", "host-kernel: "],
        "continue" => &["vmm: "],
        _ => &[""],
    };
    let has_ended = |layer: &&str| vm.printed().contains(&format!("{layer}the layer ends early"));
    disk.fill(|| layers.iter().all(has_ended));
    meanwhile(&mut vm, &disk);
    let ended = vm.end();

    // It is reported, and completed without a byte of room; no forbidden call is made on the way.
    let (printed, manifest) = (vm.printed(), vm.manifest());
    assert!(ended.success() && printed.contains("OUTCOME"), "{ended}: {printed}");
    assert!(printed.contains("No space left on device") && !printed.contains("recover"), "{printed}");
    assert!(manifest.outcome.is_some());
    assert!(manifest.missing.iter().any(|missing| missing.reason.contains("the layer ends early")), "{manifest:?}");
    let names: Vec<_> = fs::read_dir(&trace).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with('.')), "{names:?}");
    // What is there is what was written and has not given way.
    let streams: Vec<_> = manifest.layers.iter().flat_map(|layer| &layer.streams).collect();
    let dropped: u64 = streams.iter().filter_map(|stream| stream.dropped.as_ref()).map(|dropped| dropped.records).sum();
    let written: u64 = streams.iter().map(|stream| stream.records).sum();
    assert!(dropped > 0);
    assert_eq!(records_read_by_all(&trace), written - dropped);
}

fn has_dropped(status: &Status) -> bool {
    status.trace.iter().flat_map(|trace| &trace.layers).any(|layer| layer.dropped > 0)
}

#[test]
fn full_disk_ends_the_layers_and_stops_the_vm_in_good_order() {
    rotating_on_a_full_disk("stop", |vm, _| {
        vm.end();
        assert!(vm.printed().contains("the VM is stopped: its trace has failed"), "{}", vm.printed());
        assert!(vm.printed().contains("OUTCOME trace failed"), "{}", vm.printed());
    });
}

#[test]
fn full_disk_ends_the_layers_and_the_vm_goes_on() {
    rotating_on_a_full_disk("continue", |vm, _| {
        let status = vm.status();
        assert!(status.trace.unwrap().missing.iter().any(|line| line.raw().contains("ends early")));
        assert!(records_read_by_all(&vm.path("traces/trace")) > 0);
        vm.stop();
    });
}

#[test]
fn full_disk_ends_the_layers_and_pauses_the_vm_until_it_is_resumed() {
    rotating_on_a_full_disk("pause", |vm, disk| {
        let is_paused = |vm: &mut Vm| match vm.insist(&Request::Status) {
            Answer::Status(status) => status.paused,
            other => panic!("{other:?}"),
        };
        let end = Instant::now() + LIMIT;
        while !is_paused(vm) {
            assert!(Instant::now() < end, "it is not paused: {}", vm.printed());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(vm.printed().contains("strata ctl vm0 resume lets it go on"), "{}", vm.printed());
        fs::remove_file(disk.0.join("filler")).unwrap();
        vm.request(&Request::Resume).unwrap();
        assert!(!is_paused(vm));
        vm.stop();
    });
}

#[test]
fn flight_recorder_that_a_full_disk_does_not_take_is_kept_for_recovery() {
    let arguments = ["--user", "65534:65534", "--mode", "flight-recorder"];
    let mut disk = None;
    let mut vm = Vm::start_in(FLOOD, NOBODY, &arguments, |folder, _| disk = Some(SmallDisk::mount(folder, "4m")));
    vm.status();
    let is_filled = std::cell::Cell::new(false);
    disk.as_ref().unwrap().fill(|| is_filled.replace(true));

    vm.stop();

    let (printed, manifest) = (vm.printed(), vm.manifest());
    assert!(printed.contains("REFUSED") && printed.contains("No space left on device"), "{printed}");
    assert!(manifest.missing.iter().any(|missing| missing.reason.contains("the layer ends early")), "{manifest:?}");
    let left = fs::read_dir(vm.path("runtime")).unwrap().flatten().next().unwrap();
    // What is not one's own is not believed.
    std::os::unix::fs::chown(left.path(), Some(0), Some(0)).unwrap();
    strata_recorder::recover::recover(&left.path(), &vm.path("recovered")).unwrap();
    assert!(records_read_by_all(&vm.path("recovered")) > 0);
}

#[test]
fn recording_of_a_limited_size_rotates_under_the_jail() {
    let mut vm = Vm::start(FLOOD, NOBODY, &["--user", "65534:65534", "--max-size", "16M"]);

    let end = Instant::now() + LIMIT;
    while !has_dropped(&vm.status()) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = vm.stop();

    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{ended}: {}", vm.printed());
    assert!(vm.manifest().layers.iter().flat_map(|layer| &layer.streams).any(|stream| stream.dropped.is_some()));
}

#[test]
fn compressed_recording_is_made_under_the_jail_and_others_read_its_export() {
    let mut vm = Vm::start(FLOOD, NOBODY, &["--user", "65534:65534", "--compress", "zstd"]);
    let records = |status: &Status| {
        let layers = status.trace.iter().flat_map(|trace| &trace.layers);
        layers.map(|layer| layer.records).sum::<u64>()
    };
    let end = Instant::now() + LIMIT;
    while records(&vm.status()) < 10_000 {
        assert!(Instant::now() < end, "it records too little: {}", vm.printed());
        std::thread::sleep(Duration::from_millis(20));
    }

    let ended = vm.stop();
    let trace = strata_recording::reader::Trace::open(&vm.path("traces/trace")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let exported = ctf::export(&trace, ctf::Version::V1_8, &Options::default(), out.path()).unwrap();

    assert!(ended.success() && vm.printed().contains("OUTCOME"), "{ended}: {}", vm.printed());
    assert_eq!(vm.manifest().compression, Some(Compression::Zstd));
    assert_eq!(exported.records, strata_recording::reader::merge::Merge::new(trace.layers(), 0).count() as u64);
    assert_eq!(records_of_babeltrace2(out.path()), exported.records);
}
