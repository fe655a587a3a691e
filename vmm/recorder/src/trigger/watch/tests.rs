use super::*;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use std::collections::BTreeMap;
use strata_recording::schema::Schema;

const HOST: LayerKind = LayerKind::HostKernel;
const VMM: LayerKind = LayerKind::Vmm;
const GUEST: LayerKind = LayerKind::GuestKernel;
/// Threads of vCPU 0 and of somebody else.
const VCPU: i64 = 100;
const OTHER: i64 = 200;
const PREEMPTED: i64 = 0x100;
const SLEEPS: i64 = 1;
/// Exit reasons of AMD's: a halt, and one for an I/O port.
const HLT: i64 = 0x78;
const IOIO: i64 = 0x7b;
/// KVM's own: a halt, and device memory.
const KVM_MMIO: i64 = 6;
/// A tick is half a nanosecond.
const TICKS_PER_SECOND: u64 = 2_000_000_000;
const US: u64 = 2_000;
const NONE: [u64; 0] = [];

#[derive(Clone, Copy)]
enum Field {
    Number(i64),
    Text(&'static str),
}

use Field::{Number, Text};

/// A watch for one trigger, and the records that it is shown.
struct Bench {
    watch: Watch,
    schemas: BTreeMap<(LayerKind, &'static str), Schema>,
}

impl Bench {
    fn new(trigger: &str) -> Self {
        let mut watch = Watch::new(TICKS_PER_SECOND);
        watch.arm(1, Trigger::parse(trigger).unwrap(), 0);
        watch.set_vcpus([(0, 100), (1, 101)].into_iter());
        Self { watch, schemas: BTreeMap::new() }
    }

    fn show(
        mut self,
        layer: LayerKind,
        cpu: u32,
        time: u64,
        name: &'static str,
        fields: &[(&'static str, Field)],
    ) -> Self {
        let id = u16::try_from(self.schemas.len() + 1).unwrap();
        let schema = self.schemas.entry((layer, name)).or_insert_with(|| {
            let describe = |&(name, value): &(&str, Field)| FieldDescription {
                name: name.into(),
                ty: if matches!(value, Text(_)) { FieldType::String } else { FieldType::I64 },
                hex: false,
            };
            Schema::new(EventDescription {
                id,
                class: 0,
                name: name.into(),
                fields: fields.iter().map(describe).collect(),
            })
        });
        let payload: Vec<u8> = fields
            .iter()
            .flat_map(|(_, value)| match value {
                Number(number) => number.to_le_bytes().to_vec(),
                Text(text) => [text.as_bytes(), b"\0"].concat(),
            })
            .collect();
        let record = StreamRecord { time, schema, payload: &payload, packet: 0, after_gap: false };
        self.watch.record(layer, cpu, &record);
        self
    }

    fn switch(self, layer: LayerKind, cpu: u32, time: u64, prev: (i64, i64), next: i64, comm: &'static str) -> Self {
        let fields = [
            ("prev_comm", Text("prev")),
            ("prev_pid", Number(prev.0)),
            ("prev_state", Number(prev.1)),
            ("next_comm", Text(comm)),
            ("next_pid", Number(next)),
        ];
        self.show(layer, cpu, time, "sched:sched_switch", &fields)
    }

    fn waking(self, layer: LayerKind, cpu: u32, time: u64, tid: i64) -> Self {
        self.show(layer, cpu, time, "sched:sched_waking", &[("comm", Text("task")), ("pid", Number(tid))])
    }

    fn kvm_exit(self, time: u64, reason: i64) -> Self {
        let fields =
            [("common_pid", Number(VCPU)), ("exit_reason", Number(reason)), ("isa", Number(2)), ("vcpu_id", Number(0))];
        self.show(HOST, 0, time, "kvm:kvm_exit", &fields)
    }

    fn kvm_entry(self, time: u64) -> Self {
        self.show(HOST, 0, time, "kvm:kvm_entry", &[("common_pid", Number(VCPU)), ("vcpu_id", Number(0))])
    }

    fn disk(self, time: u64, sector: i64, done: i64) -> Self {
        let fields = [
            ("disk", Number(0)),
            ("kind", Text("read")),
            ("sector", Number(sector)),
            ("bytes", Number(512)),
            ("done", Number(done)),
        ];
        self.show(VMM, 2, time, "vmm:block_request", &fields)
    }

    fn block(self, time: u64, name: &'static str, sector: i64) -> Self {
        self.show(GUEST, 0, time, name, &[("dev", Number(7)), ("sector", Number(sector)), ("nr_sector", Number(8))])
    }

    /// What it says when everything has come: the time and what happened, of each that fired.
    fn fired(mut self) -> Vec<(u64, String)> {
        self.watch.settle(u64::MAX);
        self.watch.take_fired().0.into_iter().map(|fired| (fired.time, fired.what)).collect()
    }

    fn times(self) -> Vec<u64> {
        self.fired().into_iter().map(|(time, _)| time).collect()
    }
}

/// vCPU 0 is preempted at 0, and runs again after `ticks`.
fn preempted_for(trigger: &str, ticks: u64) -> Bench {
    let bench = Bench::new(trigger).switch(HOST, 0, 0, (VCPU, PREEMPTED), OTHER, "hog");
    bench.switch(HOST, 0, ticks, (OTHER, SLEEPS), VCPU, "vcpu0")
}

#[test]
fn steal_fires_above_its_time_and_not_at_it() {
    assert_eq!(preempted_for("steal>1us", US).times(), NONE);

    let fired = preempted_for("steal>1us", US + 2).fired();

    assert_eq!(fired, [(US + 2, "vCPU 0 was to run, and the host ran something else for 1.001µs".into())]);
}

#[test]
fn steal_of_another_vcpu_than_the_one_that_is_meant_does_not_fire() {
    assert_eq!(preempted_for("steal>1us vcpu=0", 2 * US).times(), [2 * US]);
    assert_eq!(preempted_for("steal>1us vcpu=1", 2 * US).times(), NONE);
}

#[test]
fn vcpu_that_sleeps_is_not_stolen_from_until_it_is_woken() {
    let asleep =
        |trigger| Bench::new(trigger).switch(HOST, 0, 0, (VCPU, SLEEPS), OTHER, "hog").waking(HOST, 1, 9 * US, VCPU);

    let soon = asleep("steal>1us").switch(HOST, 0, 10 * US, (OTHER, SLEEPS), VCPU, "vcpu0");
    let late = asleep("steal>1us").switch(HOST, 0, 11 * US, (OTHER, SLEEPS), VCPU, "vcpu0");

    assert_eq!((soon.times(), late.times()), (vec![], vec![11 * US]));
}

#[test]
fn time_of_a_thread_that_is_no_vcpu_is_not_stolen() {
    let bench = Bench::new("steal>1us").switch(HOST, 0, 0, (OTHER, PREEMPTED), OTHER + 1, "hog");

    assert_eq!(bench.switch(HOST, 0, 9 * US, (OTHER + 1, SLEEPS), OTHER, "other").times(), NONE);
}

#[test]
fn wakeup_fires_for_the_task_that_is_meant_above_its_time() {
    let woken = |trigger, ticks, comm| {
        let bench = Bench::new(trigger).waking(GUEST, 1, 0, 42);
        bench.switch(GUEST, 0, ticks, (0, 0), 42, comm).times()
    };

    assert_eq!(woken("wakeup>5us task=web*", 6 * US, "web-1"), [6 * US]);
    assert_eq!(woken("wakeup>5us task=web*", 5 * US, "web-1"), NONE);
    assert_eq!(woken("wakeup>5us task=web*", 6 * US, "db"), NONE);
    assert_eq!(
        (woken("wakeup>5us tid=42", 6 * US, "db"), woken("wakeup>5us cpu=1", 6 * US, "db")),
        (vec![6 * US], vec![])
    );
}

#[test]
fn wakeup_is_timed_from_its_beginning_whatever_stream_comes_first() {
    let bench = Bench::new("wakeup>5us").switch(GUEST, 0, 6 * US, (0, 0), 42, "web");

    assert_eq!(bench.waking(GUEST, 1, 0, 42).times(), [6 * US]);
}

#[test]
fn task_that_is_woken_while_it_runs_does_not_fire_at_its_next_turn() {
    let bench = Bench::new("wakeup>5us").waking(GUEST, 1, US, 42).switch(GUEST, 0, 2 * US, (42, 0), 7, "other");

    assert_eq!(bench.switch(GUEST, 0, 20 * US, (7, SLEEPS), 42, "web").times(), NONE);
}

#[test]
fn facts_wait_until_everything_before_them_has_come() {
    let mut bench = preempted_for("steal>1us", 5 * US);

    bench.watch.settle(5 * US);
    let before = bench.watch.take_fired().0.len();

    assert_eq!((before, bench.times()), (0, vec![5 * US]));
}

#[test]
fn exit_fires_for_its_reason_above_its_time() {
    let out = |trigger, reason, ticks| Bench::new(trigger).kvm_exit(0, reason).kvm_entry(ticks).times();

    assert_eq!((out("exit:ioio>2us", IOIO, 3 * US), out("exit:ioio>2us", IOIO, 2 * US)), (vec![3 * US], vec![]));
    assert_eq!((out("exit:msr>2us", IOIO, 3 * US), out("exit:io*>2us", IOIO, 3 * US)), (vec![], vec![3 * US]));
    assert_eq!((out("exit>2us vcpu=0", IOIO, 3 * US), out("exit>2us vcpu=1", IOIO, 3 * US)), (vec![3 * US], vec![]));
}

#[test]
fn halt_fires_only_where_it_is_named() {
    let out = |trigger| Bench::new(trigger).kvm_exit(0, HLT).kvm_entry(3 * US).times();

    assert_eq!((out("exit>2us"), out("exit:hlt>2us")), (vec![], vec![3 * US]));
}

#[test]
fn exit_to_the_vmm_is_known_from_the_vmm() {
    let out = |trigger, ticks| {
        let bench =
            Bench::new(trigger).show(VMM, 0, 0, "vmm:vcpu_exit", &[("vcpu", Number(0)), ("reason", Number(KVM_MMIO))]);
        bench.show(VMM, 0, ticks, "vmm:vcpu_enter", &[("vcpu", Number(0))]).fired()
    };

    assert_eq!(out("exit:mmio>2us", 2 * US), []);
    assert_eq!(out("exit:mmio>2us", 3 * US), [(3 * US, "vCPU 0 was out of the guest for mmio for 3µs".into())]);
}

#[test]
fn disk_fires_above_its_time_in_the_vmm_and_in_the_guest() {
    let vmm = |ticks| Bench::new("disk>50us").disk(0, 8, 0).disk(ticks, 8, 1).times();
    let guest = |trigger, ticks| {
        Bench::new(trigger).block(0, "block:block_rq_issue", 8).block(ticks, "block:block_rq_complete", 8).times()
    };

    assert_eq!((vmm(50 * US), vmm(51 * US)), (vec![], vec![51 * US]));
    assert_eq!((guest("disk>50us", 50 * US), guest("disk>50us", 51 * US)), (vec![], vec![51 * US]));
    assert_eq!((guest("disk>50us sector=8", 51 * US), guest("disk>50us sector=9", 51 * US)), (vec![51 * US], vec![]));
}

#[test]
fn requests_of_other_sectors_are_distinguished() {
    let bench = Bench::new("disk>50us").disk(0, 8, 0).disk(0, 16, 0).disk(60 * US, 16, 1).disk(40 * US, 8, 1);

    assert_eq!(bench.times(), [60 * US]);
}

#[test]
fn event_fires_at_once_where_its_filters_hold() {
    let ended = |trigger, layer, comm| {
        Bench::new(trigger).show(
            layer,
            1,
            7,
            "sched:sched_process_exit",
            &[("comm", Text(comm)), ("prio", Number(120))],
        )
    };

    let trigger = "event:guest:sched:sched_process_exit comm==\"db\" prio>=120 cpu=1";
    assert_eq!(ended(trigger, GUEST, "db").fired(), [(7, "sched:sched_process_exit in guest-kernel, CPU 1".into())]);
    assert_eq!((ended(trigger, GUEST, "web").times(), ended(trigger, HOST, "db").times()), (vec![], vec![]));
    assert_eq!(ended("event:guest:sched:sched_process_exit prio>120", GUEST, "db").times(), NONE);
    assert_eq!(ended("event:guest:sched:sched_process_exit cpu=0", GUEST, "db").times(), NONE);
    assert_eq!(ended("event:guest:sched:sched_*", GUEST, "db").times(), [7]);
}

#[test]
fn guests_panic_and_victims_fire_and_other_news_do_not() {
    let control = |what| Bench::new("guest-panic").show(VMM, 2, 7, "vmm:control", &[("what", Text(what))]).times();
    let oom = |name| Bench::new("oom").show(GUEST, 0, 7, name, &[("pid", Number(42))]).times();

    assert_eq!((control("guest_panicked"), control("started")), (vec![7], vec![]));
    assert_eq!((oom("oom:mark_victim"), oom("oom:wake_reaper")), (vec![7], vec![]));
}

#[test]
fn storm_is_counted_and_not_kept() {
    let bench = (0..100)
        .fold(Bench::new("oom"), |bench, time| bench.show(GUEST, 0, time, "oom:mark_victim", &[("pid", Number(42))]));
    let mut watch = bench.watch;

    let (fired, beyond) = watch.take_fired();

    assert_eq!((fired.len(), beyond), (MAX_FIRED, BTreeMap::from([(1, 36)])));
    assert_eq!(watch.take_fired(), (vec![], BTreeMap::new()));
}

#[test]
fn what_never_ends_is_forgotten() {
    let tasks = i64::try_from(MAX_OPEN).unwrap() + 10;
    let mut bench = (1..=tasks).fold(Bench::new("wakeup>5us"), |bench, tid| bench.waking(GUEST, 0, 0, tid));

    bench.watch.settle(u64::MAX);

    assert!(bench.watch.wakeups.count() <= MAX_OPEN);
}

#[test]
fn layers_are_looked_at_that_conditions_are_about() {
    let layers = |trigger| {
        let watch = Bench::new(trigger).watch;
        LayerKind::ALL.into_iter().filter(|&layer| watch.looks_at(layer)).collect::<Vec<_>>()
    };

    assert_eq!((layers("steal>1ms"), layers("wakeup>1ms")), (vec![HOST], vec![GUEST]));
    assert_eq!((layers("exit>1ms"), layers("disk>1ms")), (vec![HOST, VMM], vec![VMM, GUEST]));
    assert_eq!((layers("guest-panic"), layers("event:host:kvm:kvm_exit")), (vec![VMM], vec![HOST]));
}

/// vCPU 0 runs from 0 on, and its guest's CPU makes its last record at `last`; what fires up to `until`.
fn silent(trigger: &str, last: Option<u64>, until: u64) -> Bench {
    let bench = Bench::new(trigger).switch(HOST, 0, 0, (OTHER, SLEEPS), VCPU, "vcpu0");
    let mut bench = last.into_iter().fold(bench, |bench, last| bench.switch(GUEST, 0, last, (0, 0), 42, "spinner"));
    bench.watch.settle(until);
    bench
}

/// Times at which it has fired so far.
fn fired_so_far(bench: &mut Bench) -> Vec<u64> {
    bench.watch.take_fired().0.into_iter().map(|fired| fired.time).collect()
}

#[test]
fn vcpu_that_runs_without_a_record_of_its_guest_hangs_above_its_time() {
    let fired = |trigger, until| fired_so_far(&mut silent(trigger, Some(US), until));

    assert_eq!((fired("guest-hang=10us", 11 * US), fired("guest-hang=10us", 11 * US + 2)), (vec![], vec![11 * US + 2]));
    assert_eq!(
        (fired("guest-hang=10us vcpu=0", 20 * US).len(), fired("guest-hang=10us vcpu=1", 20 * US).len()),
        (1, 0)
    );
}

#[test]
fn vcpu_that_is_halted_or_waits_for_the_host_does_not_hang() {
    let off = |prev_state| {
        let mut bench =
            silent("guest-hang=10us", Some(US), 2 * US).switch(HOST, 0, 3 * US, (VCPU, prev_state), OTHER, "hog");
        bench.watch.settle(30 * US);
        fired_so_far(&mut bench)
    };

    assert_eq!((off(SLEEPS), off(PREEMPTED)), (vec![], vec![]));
}

/// The recorder itself preempts a vCPU where a VM has all CPUs, and settles while it does.
#[test]
fn vcpu_that_is_preempted_hangs_by_the_time_that_it_runs() {
    let mut bench = silent("guest-hang=10us", Some(US), 2 * US);
    for round in 1..=10 {
        bench = bench.switch(HOST, 0, 3 * round * US, (VCPU, PREEMPTED), OTHER, "recorder");
        bench.watch.settle(3 * round * US + 1);
        bench = bench.switch(HOST, 0, (3 * round + 1) * US, (OTHER, SLEEPS), VCPU, "vcpu0");
    }
    let mut preempted = bench.switch(HOST, 0, 33 * US, (VCPU, PREEMPTED), OTHER, "recorder");

    preempted.watch.settle(34 * US);

    // 2 us up to 3, then 2 of each 3
    assert_eq!(fired_so_far(&mut preempted), vec![18 * US + 1]);
}

#[test]
fn record_of_the_guest_begins_the_count_anew_while_the_vcpu_is_preempted() {
    let bench = silent("guest-hang=10us", Some(US), 2 * US).switch(HOST, 0, 10 * US, (VCPU, PREEMPTED), OTHER, "hog");
    let bench = bench.switch(GUEST, 0, 9 * US, (0, 0), 42, "spinner");
    let mut bench = bench.switch(HOST, 0, 20 * US, (OTHER, SLEEPS), VCPU, "vcpu0");

    // 1 us before it was preempted, and 8 since
    bench.watch.settle(28 * US);
    let soon = fired_so_far(&mut bench);
    bench.watch.settle(32 * US);

    assert_eq!((soon, fired_so_far(&mut bench)), (vec![], vec![32 * US]));
}

#[test]
fn vcpu_that_was_halted_hangs_from_its_return_on() {
    let bench = silent("guest-hang=10us", Some(US), 2 * US).switch(HOST, 0, 3 * US, (VCPU, SLEEPS), OTHER, "hog");
    let mut bench = bench.switch(HOST, 0, 40 * US, (OTHER, SLEEPS), VCPU, "vcpu0");

    bench.watch.settle(45 * US);
    let soon = fired_so_far(&mut bench);
    bench.watch.settle(51 * US);

    assert_eq!((soon, fired_so_far(&mut bench)), (vec![], vec![51 * US]));
}

#[test]
fn guest_without_an_agent_or_without_a_session_does_not_hang() {
    let mut stopped = silent("guest-hang=10us", Some(US), 2 * US);
    stopped.watch.forget(LayerKind::GuestKernel);
    stopped.watch.settle(30 * US);

    assert_eq!(fired_so_far(&mut silent("guest-hang=10us", None, 30 * US)), NONE);
    assert_eq!(fired_so_far(&mut stopped), NONE);
}

#[test]
fn flood_that_is_looked_at_early_does_not_make_a_vcpu_silent() {
    let bench = silent("guest-hang=10us", Some(US), 2 * US);

    let mut bench = (0..=fact::MAX_FACTS).fold(bench, |bench, _| bench.waking(HOST, 1, 3 * US, VCPU));

    assert_eq!(fired_so_far(&mut bench), NONE);
}

#[test]
fn hang_is_reported_once_and_again_after_a_record() {
    let mut bench = silent("guest-hang=10us", Some(US), 20 * US);
    let first = fired_so_far(&mut bench).len();

    bench.watch.settle(40 * US);
    let still = fired_so_far(&mut bench).len();
    bench = bench.switch(GUEST, 0, 50 * US, (0, 0), 42, "spinner");
    bench.watch.settle(70 * US);

    assert_eq!((first, still, fired_so_far(&mut bench).len()), (1, 0, 1));
}

#[test]
fn load_of_the_host_fires_when_it_rises_above_its_share_and_not_at_it() {
    let mut bench = Bench::new("host-load>80%");
    let mut fires = |percent| {
        bench.watch.host_load(percent, 7);
        fired_so_far(&mut bench)
    };

    assert_eq!([fires(80), fires(81), fires(99), fires(80), fires(81)], [vec![], vec![7], vec![], vec![], vec![7]]);
}

#[test]
fn trigger_that_is_armed_later_fires_for_what_happens_from_then_on() {
    let bench = Bench::new("oom").show(GUEST, 0, 1, "oom:mark_victim", &[("pid", Number(1))]);
    let mut bench = bench;
    bench.watch.arm(2, Trigger::parse("event:guest:oom:*").unwrap(), 5);
    bench.watch.arm(3, Trigger::parse("event:host:oom:*").unwrap(), 5);

    let bench = bench.show(GUEST, 0, 4, "oom:mark_victim", &[("pid", Number(1))]);
    let bench = bench.show(HOST, 0, 4, "oom:mark_victim", &[("pid", Number(1))]);
    let bench = bench.show(HOST, 0, 5, "oom:mark_victim", &[("pid", Number(1))]);
    let mut bench = bench.show(GUEST, 0, 5, "oom:mark_victim", &[("pid", Number(1))]);

    let fired: Vec<_> = bench.watch.take_fired().0.into_iter().map(|fired| (fired.trigger, fired.time)).collect();
    assert_eq!(fired, [(1, 1), (1, 4), (3, 5), (1, 5), (2, 5)]);
}

#[test]
fn wakeup_that_was_before_its_trigger_is_not_timed() {
    let mut bench = Bench::new("steal>1us");
    bench.watch.arm(2, Trigger::parse("wakeup>5us").unwrap(), 2 * US);

    // Its end may be among what the ring had lost by then.
    let bench = bench.waking(GUEST, 1, US, 42).waking(GUEST, 1, 10 * US, 42);

    assert_eq!(bench.switch(GUEST, 0, 11 * US, (0, 0), 42, "web").times(), NONE);
}

#[test]
fn trigger_that_is_removed_fires_no_more_and_the_others_do() {
    let mut bench = preempted_for("steal>1us", 2 * US);
    bench.watch.arm(2, Trigger::parse("wakeup>5us").unwrap(), 0);
    bench.watch.disarm(1);

    let bench = bench.waking(GUEST, 1, 0, 42).switch(GUEST, 0, 6 * US, (0, 0), 42, "web");

    assert_eq!(bench.fired(), [(6 * US, "web/42 was woken and did not run for 6µs".to_owned())]);
}

#[test]
fn what_began_before_records_were_lost_does_not_fire() {
    let mut woken = Bench::new("wakeup>5us").waking(GUEST, 1, 0, 42);
    let mut preempted = Bench::new("steal>1us").switch(HOST, 0, 0, (VCPU, PREEMPTED), OTHER, "hog");
    let mut out = Bench::new("exit>1us").kvm_exit(0, IOIO);
    let mut asked = Bench::new("disk>1us").disk(0, 8, 0);
    for (bench, layer) in [(&mut woken, GUEST), (&mut preempted, HOST), (&mut out, HOST), (&mut asked, VMM)] {
        bench.watch.lost(layer);
        bench.watch.settle(US);
    }

    assert_eq!(woken.switch(GUEST, 0, 20 * US, (7, SLEEPS), 42, "web").times(), NONE);
    assert_eq!(preempted.switch(HOST, 0, 20 * US, (OTHER, SLEEPS), VCPU, "vcpu0").times(), NONE);
    assert_eq!(out.kvm_entry(20 * US).times(), NONE);
    assert_eq!(asked.disk(20 * US, 8, 1).times(), NONE);
}

#[test]
fn what_begins_after_records_were_lost_or_in_another_layer_fires() {
    let mut bench = Bench::new("wakeup>5us").waking(GUEST, 1, 0, 7);
    bench.watch.lost(GUEST);
    bench.watch.settle(US);
    let mut bench = bench.waking(GUEST, 1, 2 * US, 42);
    bench.watch.lost(HOST);
    bench.watch.settle(3 * US);

    assert_eq!(bench.switch(GUEST, 0, 20 * US, (9, SLEEPS), 42, "web").times(), [20 * US]);
}
