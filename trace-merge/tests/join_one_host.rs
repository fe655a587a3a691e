//! Recordings of VMs that ran on one host are put side by side: no clock is estimated, no event of the host is there twice.
//!
//! Shows: One host's VMs are merged without loss, doubles or clock change.
#![allow(missing_docs, clippy::unwrap_used)] // A test binary: nothing to document, may panic.

use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_analysis::vcpu::{SwitchSource, Switches};
use strata_recording::clock::{Clock, ClockEpoch};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Host, Manifest, Missing, Vm};
use strata_recording::reader::Trace;
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;
use trace_merge::check;
use trace_merge::cut::{CutOptions, cut};
use trace_merge::join::{JoinError, Joined, join};
use uuid::Uuid;

const ENTRY: u16 = 300;
const EXIT: u16 = 301;
const SWITCH: u16 = 302;
const TICK: u16 = 1;

/// A run on the host `boot`, whose one vCPU is the thread `thread`.
struct Run {
    name: &'static str,
    boot: &'static str,
    source: &'static str,
    thread: i32,
    /// Time, id and fields of the host's events of CPU 0.
    host: Vec<(u64, u16, Vec<i32>)>,
    /// Times of the guest's events.
    guest: Vec<u64>,
}

impl Run {
    /// `vm0`, in the guest from `begin` to `begin` + 1000 on thread `thread`.
    fn at(begin: u64, thread: i32) -> Self {
        let host = vec![(begin, ENTRY, vec![thread, 0]), (begin + 1000, EXIT, vec![thread, 0, 1, 1])];
        Self { name: "vm0", boot: "boot", source: "x86-tsc", thread, host, guest: vec![begin + 500] }
    }

    /// With a switch from thread to thread, which this run's kernel buffer got at `time`.
    fn switch(mut self, time: u64, from: i32, to: i32) -> Self {
        self.host.push((time, SWITCH, vec![from, from, to]));
        self.host.sort_by_key(|event| event.0);
        self
    }

    fn manifest(&self) -> Manifest {
        let epoch = ClockEpoch {
            vm: self.name.into(),
            vcpu: 0,
            number: 1,
            cause: "start".into(),
            from_ticks: 0,
            bound_ns: 7,
            derivation: "made up".into(),
        };
        let vm = Vm { name: self.name.into(), vcpus: 1, vcpu_threads: vec![self.thread], ..Vm::default() };
        let whole = strata_recording::test_trace::manifest_of(vec![vm]);
        let clock = Clock {
            uuid: Uuid::new_v4(),
            source: self.source.into(),
            error_bound_ns: 20,
            epochs: vec![epoch],
            ..whole.clock
        };
        Manifest { clock, host: Host { boot_id: self.boot.into(), ..whole.host }, ..whole }
    }

    /// Writes the run into the folder `name` of `dir`.
    fn write(&self, dir: &TempDir, name: &str) -> PathBuf {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        let mut manifest = self.manifest();
        let new = |kind, vm| NewLayer { kind, vm, process: None, packet_size: 4096 };
        if !self.host.is_empty() {
            let mut host = LayerWriter::create(&path, &manifest, new(LayerKind::HostKernel, None)).unwrap();
            host.add_events(&[
                event(ENTRY, "kvm:kvm_entry", &["common_pid", "vcpu_id"]),
                event(EXIT, "kvm:kvm_exit", &["common_pid", "vcpu_id", "exit_reason", "isa"]),
                event(SWITCH, "sched:sched_switch", &["common_pid", "prev_pid", "next_pid"]),
            ])
            .unwrap();
            for (time, id, fields) in &self.host {
                let payload: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
                host.record(0, *time, *id, &payload).unwrap();
            }
            host.flush().unwrap();
            manifest.layers.push(host.layer());
        }
        let guest = new(LayerKind::GuestKernel, Some(self.name.into()));
        let mut guest = LayerWriter::create(&path, &manifest, guest).unwrap();
        guest.add_events(&[event(TICK, "test:tick", &[])]).unwrap();
        self.guest.iter().for_each(|&time| guest.record(0, time, TICK, &[]).unwrap());
        guest.flush().unwrap();
        manifest.layers.push(guest.layer());
        if self.host.is_empty() {
            let (reason, fix) = ("not root".into(), "be root".into());
            manifest.missing.push(Missing { layer: LayerKind::HostKernel, reason, fix });
        }
        manifest.save(&path).unwrap();
        path
    }
}

fn event(id: u16, name: &str, fields: &[&str]) -> EventDescription {
    let field = |name: &&str| FieldDescription { name: (*name).into(), ty: FieldType::I32, hex: false };
    EventDescription { id, class: 0, name: name.into(), fields: fields.iter().map(field).collect() }
}

fn merge(dir: &TempDir, runs: &[Run]) -> Result<(Joined, Trace), JoinError> {
    let paths: Vec<_> = runs.iter().enumerate().map(|(index, run)| run.write(dir, &format!("run{index}"))).collect();
    let out = dir.path().join("merged");
    let joined = join(&paths[0], &paths[1..], &[], &out)?;
    Ok((joined, Trace::open(&out)?))
}

/// Time and event of all records of the host's kernel.
fn host_events(trace: &Trace) -> Vec<(u64, String)> {
    let layers: Vec<_> = trace.layers_of(LayerKind::HostKernel).collect();
    assert_eq!(layers.len(), 1, "one host has one layer");
    let records = layers[0].records(&layers[0].streams[0]);
    records.map(|record| (record.time, record.schema.name().to_owned())).collect()
}

/// The records of `whole` from so many ticks behind its first one up to so many, as the recording `name`.
fn part(dir: &TempDir, whole: &Path, name: &str, (from, to): (Option<u64>, Option<u64>)) -> PathBuf {
    let trace = Trace::open(whole).unwrap();
    let [from, to] = [from, to].map(|at| at.map(|ticks| Duration::from_nanos(trace.clock().ticks_to_ns(ticks))));
    let out = dir.path().join(name);
    cut(whole, &CutOptions { layers: Vec::new(), from, to }, &out).unwrap();
    out
}

/// Two parts of `whole`, with 100 ticks between them.
fn parts(dir: &TempDir, whole: &Path) -> (PathBuf, PathBuf) {
    (part(dir, whole, "first", (None, Some(450))), part(dir, whole, "second", (Some(550), None)))
}

/// When records of the host's kernel were made that have a gap before them.
fn after_gaps(trace: &Trace) -> Vec<u64> {
    let host = trace.layers_of(LayerKind::HostKernel).next().unwrap();
    host.records(&host.streams[0]).filter(|record| record.after_gap).map(|record| record.time).collect()
}

#[test]
fn recording_that_is_given_twice_is_refused() {
    let dir = TempDir::new().unwrap();
    let (one, other) = (Run::at(1_000, 100).write(&dir, "one"), Run::at(5_000, 200).write(&dir, "other"));
    let out = dir.path().join("merged");

    let error = join(&one, &[other, one.clone()], &[], &out).unwrap_err().to_string();

    let folder = one.display();
    assert!(error.starts_with(&format!("{folder} and {folder} both hold the layer host-kernel")), "{error}");
    assert!(!out.exists());
}

#[test]
fn parts_of_one_recording_that_overlap_are_refused_and_others_are_not() {
    let dir = TempDir::new().unwrap();
    let whole = Run { guest: vec![1_100, 1_300, 1_700, 1_900], ..Run::at(1_000, 100) }.write(&dir, "whole");
    let layers = vec![LayerKind::GuestKernel];
    let part = |name: &str, from: Option<u64>, to: Option<u64>| {
        let [from, to] = [from, to].map(|at| at.map(Duration::from_nanos));
        let out = dir.path().join(name);
        cut(&whole, &CutOptions { layers: layers.clone(), from, to }, &out).unwrap();
        out
    };
    let trace = Trace::open(&whole).unwrap();
    let half = trace.clock().ticks_to_ns(500);
    let (first, all) = (part("first", None, Some(half)), part("all", None, None));
    let second = part("second", Some(half), None);
    let merged = |one: &Path, other: &Path| join(one, &[other.to_path_buf()], &[], &dir.path().join("merged"));

    for (one, other) in [(&first, &all), (&all, &second), (&whole, &second)] {
        let error = merged(one, other).unwrap_err().to_string();
        assert!(error.contains("both hold the layer vm0/guest-kernel of one recording"), "{error}");
    }
    assert!(merged(&first, &second).is_ok());
}

#[test]
fn parts_of_one_recording_have_one_host() {
    let dir = TempDir::new().unwrap();
    let whole = Run { guest: vec![1_100, 1_300, 1_700, 1_900], ..Run::at(1_000, 100) }.write(&dir, "whole");
    let (first, second) = parts(&dir, &whole);

    join(&first, &[second], &[], &dir.path().join("merged")).unwrap();

    let merged = Trace::open(&dir.path().join("merged")).unwrap();
    assert_eq!(host_events(&merged), host_events(&Trace::open(&whole).unwrap()));
    assert!(merged.layers().iter().all(|layer| layer.description.host.is_none()));
}

#[test]
fn parts_of_one_recording_have_a_gap_between_them_and_none_before() {
    let dir = TempDir::new().unwrap();
    let run = Run { guest: vec![1_100, 1_900], ..Run::at(1_000, 100) };
    let whole = run.switch(1_200, 100, 0).switch(1_300, 0, 100).switch(1_800, 100, 0).write(&dir, "whole");
    let (first, second) = parts(&dir, &whole);

    join(&first, &[second], &[], &dir.path().join("merged")).unwrap();

    let merged = Trace::open(&dir.path().join("merged")).unwrap();
    let host = merged.layers_of(LayerKind::HostKernel).next().unwrap();
    assert_eq!((after_gaps(&merged), host.streams[0].begins_late()), (vec![1_800], false));
}

#[test]
fn parts_of_one_recording_end_as_the_last_of_them_does() {
    let dir = TempDir::new().unwrap();
    let run = Run { guest: vec![1_100, 1_700, 1_900], ..Run::at(1_000, 100) };
    let whole = run.switch(1_200, 100, 0).switch(1_800, 0, 100).write(&dir, "whole");
    let (first, to_the_end) = parts(&dir, &whole);
    let end_with = |name: &str, last: PathBuf| {
        join(&first, &[last], &[], &dir.path().join(name)).unwrap();
        let merged = Trace::open(&dir.path().join(name)).unwrap();
        let host = merged.layers_of(LayerKind::HostKernel).next().unwrap();
        (host.has_ended(), host.streams[0].description.complete_until > Some(1_800))
    };

    let with_end = end_with("with-end", to_the_end);
    let without_end = end_with("without-end", part(&dir, &whole, "middle", (Some(550), Some(860))));

    assert_eq!((with_end, without_end), ((true, false), (false, true)));
}

#[test]
fn records_of_another_vm_between_parts_of_one_recording_are_in_their_gap() {
    let dir = TempDir::new().unwrap();
    let run = Run { guest: vec![1_100, 1_900], ..Run::at(1_000, 100) };
    let whole = run.switch(1_200, 100, 0).switch(1_800, 0, 100).write(&dir, "whole");
    let run = Run { name: "vm1", ..Run::at(1_000, 200) };
    let other = run.switch(1_480, 200, 0).switch(1_520, 0, 200).write(&dir, "other");
    let (first, second) = parts(&dir, &whole);

    join(&first, &[second, other], &[], &dir.path().join("merged")).unwrap();

    let merged = Trace::open(&dir.path().join("merged")).unwrap();
    assert_eq!(after_gaps(&merged), [1_480, 1_520, 1_800]);
}

#[test]
fn vms_of_one_name_are_distinguished_and_share_the_host() {
    let dir = TempDir::new().unwrap();

    let (joined, trace) = merge(&dir, &[Run::at(1_000, 100), Run::at(5_000, 200), Run::at(9_000, 300)]).unwrap();

    let vms: Vec<_> = trace.manifest().vms.iter().map(|vm| (vm.name.as_str(), vm.host.as_deref())).collect();
    assert_eq!(vms, [("vm0", None), ("vm0-2", None), ("vm0-3", None)]);
    let paths: Vec<_> = trace.layers().iter().map(|layer| layer.description.path.as_str()).collect();
    assert_eq!(paths, ["host-kernel", "vm0-2/guest-kernel", "vm0-3/guest-kernel", "vm0/guest-kernel"]);
    assert!(joined.relation.is_none() && joined.manifest.clock.error_bound_ns == 20);
    let epochs: Vec<_> = trace.clock().epochs.iter().map(|epoch| epoch.vm.as_str()).collect();
    assert_eq!(epochs, ["vm0", "vm0-2", "vm0-3"]);
    let checked = check::check(&trace, 20).unwrap();
    assert!(checked.passed() && checked.guest_kernel_records == 3, "{checked:?}");
    for (vm, begin) in trace.manifest().vms.iter().zip([1_000, 5_000, 9_000]) {
        let times: Vec<_> = Switches::new(&trace, vm, SwitchSource::HostKernel).map(|switch| switch.time).collect();
        assert_eq!(times, [begin, begin + 1000], "{}", vm.name);
    }
}

#[test]
fn event_of_the_host_that_two_runs_have_is_kept_once() {
    let dir = TempDir::new().unwrap();
    let one = Run::at(1_000, 100).switch(3_000, 100, 200).switch(8_000, 200, 100).switch(8_500, 100, 200);
    let two = Run::at(5_000, 200).switch(3_300, 100, 200).switch(8_490, 200, 100).switch(8_730, 100, 200);

    let (joined, trace) = merge(&dir, &[one, two]).unwrap();

    let switches: Vec<u64> =
        host_events(&trace).iter().filter(|(_, name)| name == "sched:sched_switch").map(|(time, _)| *time).collect();
    assert_eq!((switches, joined.shared_host_events), (vec![3_000, 8_000, 8_500], 3));
}

#[test]
fn events_that_only_look_alike_are_all_kept() {
    let dir = TempDir::new().unwrap();
    // Twice in one run; of different threads; too far apart.
    let one = Run::at(1_000, 100).switch(3_000, 1, 2).switch(3_010, 1, 2).switch(91_000_000, 1, 3);
    let two = Run::at(500_000_000, 200).switch(4_010, 1, 4).switch(90_000_000, 1, 4).switch(191_000_001, 1, 3);

    let (joined, trace) = merge(&dir, &[one, two]).unwrap();

    assert_eq!((host_events(&trace).len(), joined.shared_host_events), (4 + 6, 0));
}

#[test]
fn run_without_a_host_layer_is_not_judged_by_that_of_another() {
    let dir = TempDir::new().unwrap();
    let without = Run { host: Vec::new(), name: "db", ..Run::at(5_000, 200) };

    let (_, trace) = merge(&dir, &[Run::at(1_000, 100), without]).unwrap();

    let db = trace.manifest().vm("db").unwrap();
    assert_eq!(SwitchSource::HostKernel.layers(&trace, db).count(), 0);
    assert_eq!(trace.manifest().missing[0].reason, "of db: not root");
}

#[test]
fn other_boot_or_counter_is_another_clock() {
    for other in [Run { boot: "later", ..Run::at(5_000, 200) }, Run { source: "mono_raw", ..Run::at(5_000, 200) }] {
        let dir = TempDir::new().unwrap();
        assert!(matches!(merge(&dir, &[Run::at(1_000, 100), other]), Err(JoinError::NoRule)));
    }
    let dir = TempDir::new().unwrap();
    let unknown = || Run { boot: "", ..Run::at(1_000, 100) };
    assert!(matches!(merge(&dir, &[unknown(), unknown()]), Err(JoinError::NoRule)));
}

#[test]
fn merged_trace_is_merged_again_with_the_next_run() {
    let dir = TempDir::new().unwrap();
    merge(&dir, &[Run::at(1_000, 100), Run::at(5_000, 200)]).unwrap();
    let third = Run::at(9_000, 300).write(&dir, "third");

    let all = join(&dir.path().join("merged"), &[third], &[], &dir.path().join("all")).unwrap();

    let names: Vec<_> = all.manifest.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["vm0", "vm0-2", "vm0-3"]);
    assert_eq!(host_events(&Trace::open(&dir.path().join("all")).unwrap()).len(), 6);
}
