use super::*;
use shared_ring::event::{EventDescription, FieldType};
use std::fs;
use strata_analysis::vcpu::Period;
use strata_recording::clock::{Clock, ClockEpoch};
use strata_recording::manifest::{Process, VcpuThread};
use strata_recording::test_trace::event;
use strata_recording::test_trace::manifest;
use strata_recording::test_trace::{Field, TestTrace};
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;

const ENTER: u16 = 1;
const EXIT: u16 = 2;

/// A recording under construction: one VM of two vCPUs, whose threads are 100 and 101, and a clock of 2 GHz that is
/// exact to 100 ns (200 ticks).
struct Builder {
    dir: TempDir,
    manifest: strata_recording::manifest::Manifest,
}

impl Builder {
    fn new() -> Self {
        let mut manifest = manifest();
        manifest.vms[0].vcpu_threads = vec![100, 101];
        Self { dir: TempDir::new().unwrap(), manifest }
    }

    fn layer(&self, kind: LayerKind, events: &[EventDescription]) -> LayerWriter {
        let process = (kind == LayerKind::GuestUser).then(|| Process { pid: 42, comm: "app".into() });
        let vm = (kind != LayerKind::HostKernel).then(|| "vm0".into());
        let new = NewLayer { kind, vm, process, packet_size: 4096 };
        let mut layer = LayerWriter::create(self.dir.path(), &self.manifest, new).unwrap();
        layer.add_events(events).unwrap();
        layer
    }

    fn add(mut self, mut layer: LayerWriter) -> Self {
        layer.flush().unwrap();
        self.manifest.layers.push(layer.layer());
        self
    }

    /// The host's layer with `(time, entered, thread, vcpu)`, on one host CPU, and `lost` records.
    fn host(self, switches: &[(u64, bool, i32, u32)], lost: u64) -> Self {
        let mut events = [
            event(ENTER, "kvm:kvm_entry", &["pid", "vcpu_id"]),
            event(EXIT, "kvm:kvm_exit", &["pid", "exit_reason", "vcpu_id"]),
        ];
        for event in &mut events {
            (event.fields[0].name, event.fields[0].ty) = ("common_pid".into(), FieldType::I32);
        }
        let mut layer = self.layer(LayerKind::HostKernel, &events);
        for &(time, entered, thread, vcpu) in switches {
            let (id, reason) = if entered { (ENTER, &[][..]) } else { (EXIT, &[0; 4][..]) };
            layer.record(0, time, id, &[&thread.to_le_bytes()[..], reason, &vcpu.to_le_bytes()].concat()).unwrap();
        }
        layer.add_lost(0, lost);
        self.add(layer)
    }

    /// The VMM's layer with `(time, entered, vcpu)`, on one thread.
    fn vmm(self, switches: &[(u64, bool, u32)]) -> Self {
        let events = [event(ENTER, "vmm:vcpu_enter", &["vcpu"]), event(EXIT, "vmm:vcpu_exit", &["vcpu", "reason"])];
        let mut layer = self.layer(LayerKind::Vmm, &events);
        for &(time, entered, vcpu) in switches {
            let (id, reason) = if entered { (ENTER, &[][..]) } else { (EXIT, &[0; 4][..]) };
            layer.record(0, time, id, &[&vcpu.to_le_bytes(), reason].concat()).unwrap();
        }
        self.add(layer)
    }

    /// A guest layer with records at `(vcpu, time)`.
    fn guest(self, kind: LayerKind, records: &[(u32, u64)]) -> Self {
        let mut layer = self.layer(kind, &[event(1, "sched:sched_switch", &[])]);
        for &(vcpu, time) in records {
            layer.record(vcpu, time, 1, &[]).unwrap();
        }
        self.add(layer)
    }

    fn check(&self) -> Result<CheckResult, CheckError> {
        self.manifest.save(self.dir.path()).unwrap();
        check(&Trace::open(self.dir.path()).unwrap(), DEFAULT_SHOWN)
    }

    fn text(&self) -> String {
        self.manifest.save(self.dir.path()).unwrap();
        let mut out = Vec::new();
        run(self.dir.path(), &CheckOptions::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }
}

/// vCPU 0 in the guest from 10000 to 20000 and from 30000 on; vCPU 1 from 12000 to 40000.
const HOST: &[(u64, bool, i32, u32)] = &[
    (10_000, true, 100, 0),
    (12_000, true, 101, 1),
    (20_000, false, 100, 0),
    (30_000, true, 100, 0),
    (40_000, false, 101, 1),
];

fn outside(result: &CheckResult) -> Vec<(Option<u64>, Option<u64>)> {
    let of = |violation: &Violation| match violation.problem {
        Problem::Outside { outside_ns, .. } => Some((violation.ticks, outside_ns)),
        _ => None,
    };
    result.violations.iter().filter_map(of).collect()
}

#[test]
fn records_inside_their_vcpus_periods_pass() {
    let records = [(0, 10_500), (0, 19_999), (0, 31_000), (0, 9_000_000), (1, 25_000)];

    let result = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &records).check().unwrap();

    assert!(result.passed(), "{result:?}");
    assert_eq!((result.guest_kernel_records, result.records), (5, 10));
    assert_eq!((result.periods[0].source, result.periods[0].count), (SwitchSource::HostKernel, 3));
}

#[test]
fn vcpu_that_changes_its_thread_is_in_the_guest_on_both() {
    let switches = [(10_000, true, 110, 0), (20_000, false, 110, 0), (30_000, true, 100, 0), (40_000, false, 100, 0)];
    let mut builder = Builder::new().host(&switches, 0).guest(LayerKind::GuestKernel, &[(0, 15_000), (0, 35_000)]);

    let last_one_only = builder.check().unwrap();
    builder.manifest.vms[0].earlier_vcpu_threads = vec![VcpuThread { vcpu: 0, tid: 110 }];
    let both = builder.check().unwrap();

    assert_eq!((last_one_only.outside, last_one_only.periods[0].count), (1, 1));
    assert!(both.passed(), "{both:?}");
    assert_eq!((both.periods[0].count, both.guest_kernel_records), (2, 2));
}

#[test]
fn one_shifted_record_is_found() {
    let records = [(0, 10_500), (0, 25_000), (0, 31_000)];

    let result = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &records).check().unwrap();

    let expected = Violation {
        stream: "vm0/guest-kernel/stream_0".into(),
        ticks: Some(25_000),
        event: Some("sched:sched_switch".into()),
        problem: Problem::Outside {
            vcpu: Some(0),
            nearest: Some(Period { begin: 10_000, end: 20_000 }),
            outside_ns: Some(2500),
        },
    };
    assert_eq!((result.outside, result.violations), (1, vec![expected]));
}

#[test]
fn edges_count_as_inside_up_to_the_clocks_error() {
    let inside = [(0, 9_800), (0, 10_000), (0, 20_000), (0, 20_200), (0, 29_800)];
    let beyond = [(0, 9_799), (0, 20_201), (0, 29_799)];

    let passed = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &inside).check().unwrap();
    let failed = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &beyond).check().unwrap();

    assert!(passed.passed(), "{passed:?}");
    assert_eq!(outside(&failed), [(Some(9_799), Some(100)), (Some(20_201), Some(100)), (Some(29_799), Some(100))]);
}

#[test]
fn tolerance_is_that_of_the_vcpus_epoch() {
    let mut builder = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &[(0, 20_600), (0, 29_300)]);
    // 2 ticks are a nanosecond: 600 ticks are allowed at first, 1000 later.
    for (number, from_ticks, bound_ns) in [(1, 0, 300), (2, 25_000, 500)] {
        builder.manifest.clock.epochs.push(ClockEpoch {
            vm: "vm0".into(),
            vcpu: 0,
            number,
            cause: "periodic".into(),
            from_ticks,
            bound_ns,
            derivation: "measured".into(),
        });
    }
    let passed = builder.check().unwrap();
    builder.manifest.clock.epochs[1].bound_ns = 349;
    let failed = builder.check().unwrap();

    assert!(passed.passed(), "{passed:?}");
    assert_eq!(outside(&failed), [(Some(29_300), Some(350))]);
}

#[test]
fn trace_says_how_wrong_a_constant_error_could_be() {
    let records = [(0, 10_500), (0, 19_400), (0, 31_000)];

    let builder = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &records);
    let result = builder.check().unwrap();

    let expected = SupportedBound {
        vm: "vm0".into(),
        vcpu: Some(0),
        records: 3,
        ahead_ns: Some(250),
        behind_ns: Some(300),
        outside: 0,
        early_ns: 0,
        late_ns: 0,
    };
    assert_eq!(result.supported, [expected]);
    assert!(
        builder.text().contains("vm0 vcpu 0: by the trace itself its clock is at most 250 ns ahead and 300 ns behind")
    );
}

#[test]
fn kernel_record_needs_its_own_vcpu_and_user_record_any() {
    let records = [(0, 25_000)];

    let kernel = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &records).check().unwrap();
    let user = Builder::new().host(HOST, 0).guest(LayerKind::GuestUser, &records).check().unwrap();

    assert_eq!((kernel.outside, user.outside, user.guest_user_records), (1, 0, 1));
}

#[test]
fn nothing_may_be_before_the_first_entry() {
    let result = Builder::new().host(HOST, 0).guest(LayerKind::GuestUser, &[(0, 5000)]).check().unwrap();

    assert_eq!(outside(&result), [(Some(5000), Some(2500))]);
}

#[test]
fn vcpu_that_never_ran_has_no_nearest_period() {
    let result = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &[(5, 15_000)]).check().unwrap();

    assert_eq!(outside(&result), [(Some(15_000), None)]);
}

#[test]
fn threads_of_other_machines_are_passed_over() {
    let others = [(10_000, true, 900, 0), (50_000, true, 100, 0)];

    let result = Builder::new().host(&others, 0).guest(LayerKind::GuestKernel, &[(0, 20_000)]).check().unwrap();

    assert_eq!((result.outside, result.periods[0].count), (1, 1));
}

#[test]
fn loss_in_the_host_layer_falls_back_to_the_vmm() {
    let vmm = [(9_000, true, 0), (26_000, false, 0)];
    let host = &[(10_000, true, 100, 0), (20_000, false, 100, 0)];

    let builder = Builder::new().host(host, 3).vmm(&vmm).guest(LayerKind::GuestKernel, &[(0, 25_000)]);
    let result = builder.check().unwrap();

    assert!(result.passed(), "{result:?}");
    assert_eq!(result.periods[0].source, SwitchSource::Vmm);
    assert!(result.periods[0].remark.as_ref().unwrap().contains("the host-kernel layer has gaps"), "{result:?}");
    assert!(builder.text().contains("from the vmm layer"));
}

#[test]
fn entry_outside_the_runs_of_its_vcpu_is_a_violation() {
    let vmm = [(9_000, true, 0), (29_800, false, 0)];

    let builder = Builder::new().host(HOST, 0).vmm(&vmm);
    let result = builder.check().unwrap();

    let problems: Vec<_> = result.violations.iter().map(|violation| &violation.problem).collect();
    // The error of the clock (200 ticks) is allowed to vCPU 0; vCPU 1 never ran.
    assert_eq!(problems, [&Problem::OutsideRun { vcpu: 1, outside_ns: None }]);
    assert_eq!((result.entries_checked, result.outside_runs), (3, 1));
    assert!(builder.text().contains("(kvm:kvm_entry): vcpu 1 never ran"), "{}", builder.text());
}

#[test]
fn half_of_a_pair_is_a_violation_where_changes_of_the_events_are_recorded() {
    let twice = [(9_000, true, 0), (20_000, false, 0), (26_000, false, 0)];

    let lenient = Builder::new().vmm(&twice).check().unwrap();
    let mut strict = Builder::new().vmm(&twice);
    let control = event(9, "vmm:control", &[]);
    strict.manifest.layers[0].events.push(control);
    let strict = strict.check().unwrap();

    assert!(lenient.passed() && lenient.pairs[0].pairs[0].unbalanced == 1, "{lenient:?}");
    // The metadata knows nothing of the event that was made up.
    let is_of_records = |violation: &&Violation| !matches!(violation.problem, Problem::Damaged { .. });
    let of_records = strict.violations.iter().filter(is_of_records).count();
    assert_eq!((strict.unbalanced(), strict.passed(), of_records), (1, false, 1));
}

/// vCPU 0 records in the guest, and once more far behind what the host's kernel and the VMM tell.
fn ends_early(outcome: Option<&str>) -> Builder {
    let host = [(10_000, true, 100, 0), (20_000, false, 100, 0)];
    let mut builder = Builder::new().host(&host, 0).guest(LayerKind::GuestKernel, &[(0, 15_000), (0, 90_000)]);
    builder.manifest.outcome = outcome.map(Into::into);
    builder
}

#[test]
fn record_behind_the_end_of_the_hosts_stream_is_a_violation_only_if_that_came_to_its_end() {
    let finished = ends_early(Some("power-off")).check().unwrap();
    let [running, snapshot] =
        [None, Some("snapshot of a running VM, by trigger 'oom'")].map(|outcome| ends_early(outcome).check().unwrap());
    let mut ended = ends_early(None);
    ended.manifest.layers[0].ended = Some(true);
    let ended = ended.check().unwrap();

    let found = |result: &CheckResult| (result.outside, result.unchecked, result.guest_kernel_records);
    assert_eq!([&finished, &running, &snapshot, &ended].map(found), [(1, 0, 2), (0, 1, 1), (0, 1, 1), (1, 0, 2)]);
    assert!(running.passed() && snapshot.passed());
    assert_eq!(running.completeness.layers[0].went_on, 1);
}

#[test]
fn entry_behind_the_end_of_the_vmms_stream_is_a_violation_only_if_that_came_to_its_end() {
    let host = [(10_000, true, 100, 0), (20_000, false, 100, 0), (80_000, true, 100, 0)];
    let vmm = [(9_000, true, 0), (26_000, false, 0)];
    let mut builder = Builder::new().host(&host, 0).vmm(&vmm);
    // The VMM has no other thread.
    builder.manifest.vms[0].vcpus = 0;

    let finished = builder.check().unwrap();
    builder.manifest.outcome = None;
    let running = builder.check().unwrap();

    assert_eq!([&finished, &running].map(|result| (result.outside_runs, result.entries_checked)), [(1, 2), (0, 1)]);
    assert!(running.passed());
}

#[test]
fn guest_records_are_not_judged_before_the_first_packet_of_a_vmm_that_goes_on() {
    let mut builder = Builder::new().vmm(&[]).guest(LayerKind::GuestKernel, &[(0, 25_000)]);

    let finished = builder.check();
    builder.manifest.outcome = None;
    let running = builder.check().unwrap();

    assert!(matches!(finished, Err(CheckError::NoPeriods { .. })), "{finished:?}");
    assert_eq!((running.passed(), running.unchecked), (true, 1));
}

#[test]
fn what_tasks_do_behind_the_end_of_another_cpus_stream_is_judged_only_if_that_came_to_its_end() {
    let call = |trace: TestTrace, cpu, time, name| trace.guest(cpu, time, name, &[("id", Field::Number(1))]);
    let recording = || {
        let started = TestTrace::new().vmm(2, 50, "vmm:control", &[("what", Field::Text("started"))]);
        let vcpu = |vcpu: u32| [("vcpu", Field::Number(vcpu.into()))];
        let enters = |trace: TestTrace, thread| trace.vmm(thread, 50, "vmm:vcpu_enter", &vcpu(thread));
        let exits = |trace: TestTrace, thread| trace.vmm(thread, 300, "vmm:vcpu_exit", &vcpu(thread));
        let trace = [0, 1].into_iter().fold(started, enters);
        let trace = call(trace.switch(1, 60, 0, 8).switch(0, 100, 0, 7), 0, 110, "raw_syscalls:sys_enter");
        let trace = call(call(trace, 0, 120, "raw_syscalls:sys_exit"), 0, 200, "raw_syscalls:sys_enter");
        let trace = call(trace, 0, 210, "raw_syscalls:sys_enter");
        // All of the VMM's streams end later.
        let trace = trace.vmm(2, 300, "vmm:control", &[("what", Field::Text("stopped"))]);
        [0, 1].into_iter().fold(trace, exits)
    };
    let judged = |trace: TestTrace| {
        let (_dir, trace) = trace.open();
        check(&trace, DEFAULT_SHOWN).unwrap().unbalanced()
    };

    assert_eq!([judged(recording()), judged(recording().unfinished())], [1, 0]);
}

#[test]
fn manifest_that_claims_less_loss_than_its_packets_is_a_violation() {
    let mut builder = Builder::new().host(&HOST[..1], 7);
    builder.manifest.layers[0].streams[0].lost.full = 6;

    builder.manifest.outcome = None;
    let running = builder.check().unwrap();
    builder.manifest.outcome = Some("power-off".into());
    let ended = builder.check().unwrap();

    assert_eq!((running.loss_contradictions, ended.loss_contradictions), (0, 1));
    assert!(builder.text().contains("session.json counts 6 lost records, its packets 7"), "{}", builder.text());
}

#[test]
fn missing_host_layer_falls_back_to_the_vmm() {
    let vmm = [(9_000, true, 0), (26_000, false, 0)];

    let result = Builder::new().vmm(&vmm).guest(LayerKind::GuestKernel, &[(0, 25_000), (0, 27_000)]).check().unwrap();

    assert_eq!((result.periods[0].source, outside(&result)), (SwitchSource::Vmm, vec![(Some(27_000), Some(500))]));
}

#[test]
fn trace_without_periods_is_an_error_only_if_there_are_guest_records() {
    let error = Builder::new().guest(LayerKind::GuestKernel, &[(0, 1)]).check().unwrap_err().to_string();
    let empty = Builder::new().guest(LayerKind::GuestKernel, &[]);

    assert!(error.starts_with("vm0: no layer tells"), "{error}");
    assert!(empty.check().unwrap().passed());
    assert!(empty.text().contains("no guest record in this trace"));
}

#[test]
fn time_that_goes_back_is_found() {
    let builder = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &[(0, 10_500), (0, 11_000)]);
    let stream = builder.dir.path().join("vm0/guest-kernel/stream_0");
    let mut bytes = fs::read(&stream).unwrap();
    // The second record becomes one of time 10500, the first one of 11000.
    bytes[128..132].copy_from_slice(&11_000_u32.to_le_bytes());
    bytes[136..140].copy_from_slice(&10_500_u32.to_le_bytes());
    fs::write(&stream, bytes).unwrap();

    let result = builder.check().unwrap();

    assert_eq!((result.out_of_order, result.outside), (1, 0));
    assert_eq!(result.violations[0].problem, Problem::OutOfOrder { earlier_ns: 250 });
}

#[test]
fn damaged_and_missing_packets_are_violations() {
    let builder = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &[(0, 10_500)]);
    let stream = builder.dir.path().join("vm0/guest-kernel/stream_0");
    let mut bytes = fs::read(&stream).unwrap();
    bytes[56] = 1;
    fs::write(&stream, &bytes).unwrap();
    let skipped = builder.check().unwrap();
    fs::write(&stream, &bytes[..100]).unwrap();
    let truncated = builder.check().unwrap();

    assert_eq!(skipped.damaged, 1);
    assert_eq!(skipped.violations[0].problem, Problem::Damaged { what: "1 missing packet".into() });
    assert_eq!(truncated.damaged, 1);
}

#[test]
fn violations_beyond_those_shown_are_counted() {
    let records: Vec<(u32, u64)> = (0..100).map(|number| (0, 22_000 + number)).collect();
    let builder = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &records);

    let result = builder.check().unwrap();
    let text = builder.text();

    assert_eq!((result.outside, result.violations.len()), (100, DEFAULT_SHOWN));
    assert!(text.contains("… and 80 more\n100 violations: 100 outside the periods"), "{text}");
    assert!(text.contains("vm0/guest-kernel/stream_0 at 0.000006000 (sched:sched_switch): 1000 ns outside"), "{text}");
}

#[test]
fn json_says_whether_it_passed() {
    let builder = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &[(0, 25_000)]);
    builder.manifest.save(builder.dir.path()).unwrap();
    let mut out = Vec::new();

    run(builder.dir.path(), &CheckOptions { json: true, ..CheckOptions::default() }, &mut out).unwrap();

    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((&json["passed"], &json["outside"]), (&false.into(), &1.into()));
    assert_eq!(json["violations"][0]["kind"], "outside");
}

#[test]
fn guest_records_older_than_what_a_flight_recorder_holds_are_counted_not_judged() {
    // The first entries were overwritten: vCPU 0 is first seen leaving.
    let mut builder = Builder::new();
    let events = [event(ENTER, "vmm:vcpu_enter", &["vcpu"]), event(EXIT, "vmm:vcpu_exit", &["vcpu", "reason"])];
    let mut layer = builder.layer(LayerKind::Vmm, &events);
    layer.record(0, 20_000, EXIT, &[0; 8]).unwrap();
    layer.record(0, 30_000, ENTER, &[0; 4]).unwrap();
    layer.set_overwritten(0, 3);
    builder = builder.add(layer);

    let result =
        builder.guest(LayerKind::GuestKernel, &[(0, 100), (0, 20_000), (0, 25_000), (0, 31_000)]).check().unwrap();

    assert_eq!((result.unchecked, result.guest_kernel_records, result.outside), (1, 3, 1));
    assert_eq!((result.periods[0].from, outside(&result)[0].0), (20_000, Some(25_000)));
}

#[test]
fn recovered_trace_is_checked_for_order_and_says_loudly_that_causality_is_not() {
    let mut builder = Builder::new().guest(LayerKind::GuestKernel, &[(0, 100), (0, 200)]);
    builder.manifest.missing.push(strata_recording::manifest::Missing {
        layer: LayerKind::Vmm,
        reason: "strata was killed".into(),
        fix: "none".into(),
    });

    let result = builder.check().unwrap();
    let text = builder.text();

    assert!(result.passed());
    assert_eq!((result.unchecked, result.guest_records(), result.records), (2, 0, 2));
    assert!(text.contains("WARNING: CAUSALITY WAS NOT CHECKED for vm0"), "{text}");
}

#[test]
fn half_where_another_stream_of_a_flight_recorder_has_nothing_left_is_no_violation() {
    use strata_recording::manifest::Manifest;
    use strata_recording::test_trace::Field::{Number, Text};
    use strata_recording::test_trace::TestTrace;
    let call = |trace: TestTrace, time, name: &'static str| trace.guest(0, time, name, &[("id", Number(39))]);
    let pair = |trace, time| call(call(trace, time, "raw_syscalls:sys_enter"), time + 1, "raw_syscalls:sys_exit");
    let trace = TestTrace::new().vmm(2, 1, "vmm:control", &[("what", Text("started"))]);
    let run = |trace: TestTrace, vcpu, time, name| trace.vmm(vcpu, time, name, &[("vcpu", Number(vcpu.into()))]);
    let trace = run(run(trace, 0, 2, "vmm:vcpu_enter"), 1, 2, "vmm:vcpu_enter");
    let trace = run(run(trace, 0, 100, "vmm:vcpu_exit"), 1, 100, "vmm:vcpu_exit");
    // Task 7 leaves its call on CPU 1, whose records of that time are overwritten.
    let trace = call(pair(trace.switch(0, 10, 0, 7), 20), 30, "raw_syscalls:sys_enter").switch(0, 31, 7, 0);
    let trace = pair(trace.switch(0, 60, 0, 7), 70).switch(0, 80, 7, 0);
    let (dir, trace) = trace.switch(1, 50, 0, 8).switch(1, 90, 8, 0).open();
    let unbalanced = |trace: &Trace| check(trace, 9).unwrap().unbalanced();

    let whole = unbalanced(&trace);
    let mut manifest = Manifest::load(dir.path()).unwrap();
    let guest = manifest.layers.iter_mut().find(|layer| layer.kind == LayerKind::GuestKernel).unwrap();
    guest.streams[1].overwritten = 5;
    manifest.save(dir.path()).unwrap();
    let cut = unbalanced(&Trace::open(dir.path()).unwrap());

    assert_eq!((whole, cut), (1, 0));
}

/// Whether records that lie 500 ticks after an entry and 600 before an exit of `vcpu` pass, moved by `error` ticks.
fn passes_with_clock_error(vcpu: u32, error: i64) -> bool {
    let [begin, end] = [[10_000, 20_000], [12_000, 40_000]][vcpu as usize];
    let times = [begin + 500, end - 600].map(|time: u64| (vcpu, time.checked_add_signed(error).unwrap()));
    Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &times).check().unwrap().passed()
}

#[test]
fn clock_errors_up_to_margin_and_bound_pass_and_larger_ones_fail() {
    // A nanosecond is two ticks; the bound is 200 ticks.
    for vcpu in [0, 1] {
        let verdicts = [-700, -702, 800, 802].map(|error| passes_with_clock_error(vcpu, error));
        assert_eq!(verdicts, [true, false, true, false], "vCPU {vcpu}");
    }
}

#[test]
fn record_outside_its_period_by_less_than_the_bound_disproves_what_the_trace_supports() {
    let records = [(0, 9_900), (0, 15_000), (0, 20_150)];
    let builder = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &records);

    let result = builder.check().unwrap();

    assert!(result.passed());
    let SupportedBound { records, outside, early_ns, late_ns, ahead_ns, behind_ns, .. } = result.supported[0];
    assert_eq!((records, outside, early_ns, late_ns, ahead_ns, behind_ns), (3, 2, 50, 75, None, None));
    assert!(builder.text().contains("WARNING: vm0 vcpu 0: 2 of 3 records lie outside the periods, up to 50 ns before"));
}

#[test]
fn record_beyond_a_bound_that_was_only_observed_is_no_violation_and_is_reported() {
    let records = [(0, 15_000), (0, 20_900), (0, 21_400)];
    let mut builder = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &records);

    let guaranteed = builder.check().unwrap();
    let guaranteed_clock = builder.manifest.clock.clone();
    builder.manifest.clock.source = strata_recording::clock::MONOTONIC_RAW.into();
    let observed = builder.check().unwrap();
    builder.manifest.clock = Clock { given_up_ticks: Some(21_000), ..guaranteed_clock };
    let given_up_meanwhile = builder.check().unwrap();

    assert_eq!((guaranteed.outside, guaranteed.beyond_observed), (2, vec![]));
    assert_eq!(given_up_meanwhile.beyond_observed, observed.beyond_observed);
    let stretch = BeyondObserved {
        vm: "vm0".into(),
        vcpu: 0,
        records: 2,
        from_ticks: 20_900,
        to_ticks: 21_400,
        most_ns: 700,
        bound_ns: 100,
    };
    assert!(observed.passed(), "{:?}", observed.violations);
    assert_eq!(observed.beyond_observed, [stretch]);
    let line = "2 records lie up to 700 ns outside the periods, comparisons saw 100 ns";
    assert!(builder.text().contains(line), "{}", builder.text());
}

#[test]
fn record_of_a_vcpu_that_was_never_in_the_guest_is_a_violation_on_any_clock() {
    let mut builder = Builder::new().host(HOST, 0).guest(LayerKind::GuestKernel, &[(2, 15_000)]);
    builder.manifest.clock.source = strata_recording::clock::MONOTONIC_RAW.into();

    assert_eq!(builder.check().unwrap().outside, 1);
}

#[test]
fn records_of_processes_outside_the_periods_are_reported() {
    let records = [(0, 9_900), (0, 15_000)];

    let result = Builder::new().host(HOST, 0).guest(LayerKind::GuestUser, &records).check().unwrap();

    assert!(result.passed());
    assert_eq!((result.supported[0].vcpu, result.supported[0].outside, result.supported[0].early_ns), (None, 1, 50));
}

#[test]
fn records_in_a_gap_of_the_periods_are_counted_not_judged() {
    // What is lost lies around the packet: only between its first record and its last one the periods are known.
    let records = [(0, 9_000), (0, 15_000), (0, 25_000), (0, 45_000)];

    let result = Builder::new().host(HOST, 3).guest(LayerKind::GuestKernel, &records).check().unwrap();

    assert_eq!((result.unchecked, result.guest_kernel_records, result.outside), (2, 2, 1));
    assert_eq!(outside(&result), [(Some(25_000), Some(2_500))]);
    assert!(!result.completeness.complete);
}

#[test]
fn first_line_says_what_is_incomplete() {
    let text = Builder::new().host(HOST, 3).text();

    assert!(text.starts_with("INCOMPLETE: host-kernel: 3 records lost"), "{text}");
}

#[test]
fn part_in_which_only_the_guest_recorded_is_checked_as_far_as_it_can_be() {
    let vcpu = [("common_pid", Field::Number(100)), ("vcpu_id", Field::Number(0))];
    let exit = [vcpu[0], vcpu[1], ("exit_reason", Field::Number(0x7b)), ("isa", Field::Number(2))];
    let trace = TestTrace::new().host(0, 1_000, "kvm:kvm_entry", &vcpu).guest(0, 1_500, "test:event", &[]);
    let trace = trace.host(0, 2_000, "kvm:kvm_exit", &exit).guest(0, 100_000, "test:event", &[]);
    let (_dir, trace) = trace.open();
    let dir = TempDir::new().unwrap();
    let late = crate::cut::CutOptions { from: Some(std::time::Duration::from_micros(40)), ..Default::default() };
    crate::cut::cut_trace(&trace, &late, &dir.path().join("part")).unwrap();

    let result = check(&Trace::open(&dir.path().join("part")).unwrap(), 10).unwrap();

    assert!(result.violations.is_empty(), "{:?}", result.violations);
}
