//! Two halves of one recording, the second with another clock, are merged back: the truth lies within the
//! reported bound.
//!
//! Shows: Two unrelated clocks' relation lies inside its bound.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)] // A test binary: nothing to document, may panic.

use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use std::path::Path;
use std::process::Command;
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, Vm};
use strata_recording::reader::Trace;
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;
use trace_merge::check;
use trace_merge::join::{JoinError, Joined, join};
use trace_merge::match_rule::MatchRule;
use uuid::Uuid;

const ENTER: u16 = 1;
const EXIT: u16 = 2;
const DEVICE: u16 = 3;
const RESUMED: u16 = 1;
const WRITES: u16 = 2;
/// Error bound of each half, ns.
const HALF_BOUND: u64 = 20;

struct Draws(u64);

impl Draws {
    fn up_to(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % (most + 1)
    }
}

/// Another clock than the truth, which counts nanoseconds: it showed `offset` at 0 and is `ppb` fast.
#[derive(Clone, Copy)]
struct OtherClock {
    offset: u64,
    ppb: i64,
}

impl OtherClock {
    fn at(self, truth: u64) -> u64 {
        let drift = i128::from(truth) * i128::from(self.ppb) / 1_000_000_000;
        u64::try_from(i128::from(truth) + drift + i128::from(self.offset)).unwrap()
    }
}

fn manifest(uuid: Uuid) -> Manifest {
    let whole = strata_recording::test_trace::manifest_of(vec![Vm { name: "vm0".into(), vcpus: 1, ..Vm::default() }]);
    Manifest { clock: Clock { uuid, error_bound_ns: HALF_BOUND, ..whole.clock.clone() }, ..whole }
}

fn event(id: u16, name: &str, fields: &[&str]) -> EventDescription {
    let field = |name: &&str| FieldDescription { name: (*name).into(), ty: FieldType::U32, hex: false };
    EventDescription { id, class: 0, name: name.into(), fields: fields.iter().map(field).collect() }
}

fn write(
    dir: &Path,
    mut manifest: Manifest,
    kind: LayerKind,
    events: &[EventDescription],
    records: &[(u64, u16, Vec<u32>)],
) {
    let new = NewLayer { kind, vm: Some("vm0".into()), process: None, packet_size: 4096 };
    let mut layer = LayerWriter::create(dir, &manifest, new).unwrap();
    layer.add_events(events).unwrap();
    for (time, id, fields) in records {
        let payload: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        layer.record(0, *time, *id, &payload).unwrap();
    }
    layer.flush().unwrap();
    manifest.layers.push(layer.layer());
    manifest.save(dir).unwrap();
}

/// Writes the two halves of a vCPU's life into `dir/a` and `dir/b`; returns the guest's true times in order.
fn halves(dir: &Path, clock: OtherClock, draws: &mut Draws) -> Vec<u64> {
    let (mut host, mut guest, mut truth) = (Vec::new(), Vec::new(), Vec::new());
    let mut now = 1_000_000;
    for seq in 0..200 {
        host.push((now, ENTER, vec![0]));
        now += 300 + draws.up_to(5_000);
        guest.push((clock.at(now), RESUMED, vec![seq]));
        truth.push(now);
        now += 100 + draws.up_to(1_000_000);
        guest.push((clock.at(now), WRITES, vec![seq]));
        truth.push(now);
        now += 300 + draws.up_to(5_000);
        host.push((now, EXIT, vec![0, 2]));
        now += 50 + draws.up_to(200);
        host.push((now, DEVICE, vec![seq]));
        now += draws.up_to(100_000);
    }
    for half in ["a", "b"] {
        std::fs::create_dir(dir.join(half)).unwrap();
    }
    let vmm = [
        event(ENTER, "vmm:vcpu_enter", &["vcpu"]),
        event(EXIT, "vmm:vcpu_exit", &["vcpu", "reason"]),
        event(DEVICE, "vmm:device", &["seq"]),
    ];
    let kernel = [event(RESUMED, "guest:resumed", &["seq"]), event(WRITES, "guest:writes", &["number"])];
    write(&dir.join("a"), manifest(Uuid::new_v4()), LayerKind::Vmm, &vmm, &host);
    write(&dir.join("b"), manifest(Uuid::new_v4()), LayerKind::GuestKernel, &kernel, &guest);
    truth
}

fn rules(texts: &[&str]) -> Vec<MatchRule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn merge(dir: &Path, texts: &[&str]) -> Result<Joined, JoinError> {
    join(&dir.join("a"), &[dir.join("b")], &rules(texts), &dir.join("merged"))
}

const RULES: [&str; 2] = ["vmm:vcpu_enter before guest:resumed", "vmm:vcpu_exit after guest:writes"];

#[test]
fn truth_lies_within_the_bound_in_a_hundred_random_cases() {
    let mut draws = Draws(42);
    for case in 0..100 {
        let dir = TempDir::new().unwrap();
        let ppb = i64::try_from(draws.up_to(400_000)).unwrap() - 200_000;
        let clock = OtherClock { offset: draws.up_to(1 << 50), ppb };
        let truth = halves(dir.path(), clock, &mut draws);

        let joined = merge(dir.path(), &RULES).unwrap();

        let trace = Trace::open(&dir.path().join("merged")).unwrap();
        let layer = trace.layers_of(LayerKind::GuestKernel).next().unwrap();
        let times = layer.records(&layer.streams[0]).map(|record| record.time);
        let worst = times.zip(&truth).map(|(time, &truth)| time.abs_diff(truth)).max().unwrap();
        assert!(worst <= joined.relation_bound_ns, "case {case}: {worst} > {}", joined.relation_bound_ns);
        // The delays are between 300 and 5300 ns each way, so that much must come out.
        assert!(joined.relation_bound_ns < 3_000, "case {case}: {}", joined.relation_bound_ns);
        let checked = check::check(&trace, 20).unwrap();
        assert!(checked.passed() && checked.guest_kernel_records == 400, "case {case}: {checked:?}");
        assert_eq!(trace.clock().error_bound_ns, joined.relation_bound_ns + 2 * HALF_BOUND);
    }
}

#[test]
fn babeltrace2_reads_the_merged_trace() {
    let dir = TempDir::new().unwrap();
    halves(dir.path(), OtherClock { offset: 1 << 40, ppb: -30_000 }, &mut Draws(7));
    merge(dir.path(), &RULES).unwrap();

    let output = Command::new("babeltrace2").arg(dir.path().join("merged")).output().expect("babeltrace2 is installed");

    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.iter().filter(|&&byte| byte == b'\n').count(), 1_000);
}

#[test]
fn clocks_that_differ_need_a_rule() {
    let dir = TempDir::new().unwrap();
    halves(dir.path(), OtherClock { offset: 5, ppb: 0 }, &mut Draws(1));

    let error = merge(dir.path(), &[]).unwrap_err();

    assert!(error.to_string().contains("--match"), "{error}");
    assert!(!dir.path().join("merged").exists());
}

#[test]
fn rules_that_contradict_each_other_are_refused() {
    let dir = TempDir::new().unwrap();
    halves(dir.path(), OtherClock { offset: 5, ppb: 0 }, &mut Draws(1));

    let error =
        merge(dir.path(), &["vmm:vcpu_enter after guest:resumed", "vmm:vcpu_exit before guest:writes"]).unwrap_err();

    assert!(matches!(error, JoinError::Hull(_)) && error.to_string().contains("contradict each other"), "{error}");
    assert!(!dir.path().join("merged").exists());
}

#[test]
fn rule_whose_fields_do_not_match_says_so() {
    let dir = TempDir::new().unwrap();
    halves(dir.path(), OtherClock { offset: 5, ppb: 0 }, &mut Draws(1));

    // The other way round the fields have other names.
    let renamed =
        merge(dir.path(), &["vmm:vcpu_enter before guest:resumed", "vmm:device after guest:writes by seq=number"]);
    assert_eq!(renamed.unwrap().relation.unwrap().pairs(), 400);
    let absent = merge(dir.path(), &["vmm:device after guest:nothing by seq"]).unwrap_err();
    let field = merge(dir.path(), &["vmm:device after guest:writes by seq"]).unwrap_err();

    assert!(absent.to_string().contains("the second trace has no record of guest:nothing"), "{absent}");
    assert!(field.to_string().contains("no record of guest:writes with these fields"), "{field}");
}

#[test]
fn recordings_of_two_machines_with_one_clock_are_kept_apart() {
    let dir = TempDir::new().unwrap();
    let uuid = Uuid::new_v4();
    let vmm = [event(ENTER, "vmm:vcpu_enter", &["vcpu"]), event(EXIT, "vmm:vcpu_exit", &["vcpu", "reason"])];
    for (half, time) in [("a", 10), ("b", 20)] {
        std::fs::create_dir(dir.path().join(half)).unwrap();
        write(&dir.path().join(half), manifest(uuid), LayerKind::Vmm, &vmm, &[(time, ENTER, vec![0])]);
    }

    let joined = merge(dir.path(), &[]).unwrap();

    let names: Vec<_> = joined.manifest.vms.iter().map(|vm| (vm.name.as_str(), vm.host.as_deref())).collect();
    assert_eq!(names, [("vm0", None), ("vm0-2", Some("trace-2"))]);
    let trace = Trace::open(&dir.path().join("merged")).unwrap();
    let paths: Vec<_> = trace.layers().iter().map(|layer| layer.description.path.as_str()).collect();
    assert_eq!(paths, ["trace-2/vm0-2/vmm", "vm0/vmm"]);
    assert_eq!(joined.manifest.clock.uuid, uuid);
}

#[test]
fn damaged_packet_is_a_gap_of_the_merged_trace_too() {
    let dir = TempDir::new().unwrap();
    let uuid = Uuid::new_v4();
    let tick = [event(1, "guest:tick", &["number"])];
    for (half, begin) in [("a", 1_000), ("b", 1_001)] {
        std::fs::create_dir(dir.path().join(half)).unwrap();
        let records: Vec<_> = (0..1_000).map(|number: u32| (begin + u64::from(number), 1, vec![number])).collect();
        write(&dir.path().join(half), manifest(uuid), LayerKind::GuestKernel, &tick, &records);
    }
    let stream = dir.path().join("a/vm0/guest-kernel/stream_0");
    let mut bytes = std::fs::read(&stream).unwrap();
    bytes[4096] ^= 1;
    std::fs::write(&stream, bytes).unwrap();

    merge(dir.path(), &[]).unwrap();

    let gaps = |trace: &Trace, vm: &str| {
        let of_vm = |layer: &&strata_recording::reader::TraceLayer| layer.description.vm.as_deref() == Some(vm);
        let layer = trace.layers().iter().find(of_vm).unwrap();
        let records = layer.records(&layer.streams[0]);
        records.filter(|record| record.after_gap).map(|record| record.time).collect::<Vec<_>>()
    };
    let damaged = gaps(&Trace::open(&dir.path().join("a")).unwrap(), "vm0");
    let merged = Trace::open(&dir.path().join("merged")).unwrap();
    assert_eq!(damaged.len(), 1);
    assert!(gaps(&merged, "vm0").contains(&damaged[0]), "{:?}", gaps(&merged, "vm0"));
    assert!(gaps(&merged, "vm0-2").is_empty());
}
