//! Recordings made record by record, with a known answer.
//!
//! Shows: `strata why` names thief, lock holder, VMM, disk step, priority inversion; steps add up to the tick.

use super::*;
use crate::report::{Report, scenario, tasks};
use strata_recording::layer::LayerKind;
use strata_recording::test_trace::Field::{self, Arguments, Number, Text};
use strata_recording::test_trace::TestTrace;

/// Tasks of the guest.
const A: i64 = 10;
const B: i64 = 11;
const C: i64 = 12;
const M: i64 = 13;
/// Threads of the host.
const VCPU0: i64 = 100;
const HOG: i64 = 200;
const NOISY: i64 = 300;
const WORKER: i64 = 400;
const SECOND_WORKER: i64 = 401;

const IOIO: i64 = 0x7b;
const HLT: i64 = 0x78;
const CPUID: i64 = 0x72;
const NPF: i64 = 0x400;
const EXTERNAL_INTERRUPT: i64 = 0x60;
const FUTEX: i64 = 202;
const READ: i64 = 0;
const NANOSLEEP: i64 = 35;
const TIMER: i64 = 236;

const fn name(tid: i64) -> &'static str {
    match tid {
        A => "a",
        B => "b",
        C => "c",
        M => "middle",
        VCPU0 => "vcpu0",
        101 => "vcpu1",
        HOG => "hog",
        NOISY => "noisy",
        WORKER | SECOND_WORKER => "vhost-1",
        1 => "init",
        20..=39 => "web",
        14 => "first",
        _ => "swapper",
    }
}

/// A recording in the making.
struct Scene(TestTrace);

impl Scene {
    /// Both vCPUs are in the guest from 1000 on, on the host's CPUs 0 and 1. Interrupts of all kinds are recorded. The
    /// guest's CPU 0 is idle, CPU 1 runs `init`.
    fn new() -> Self {
        Self::of(TestTrace::new())
    }

    fn of(trace: TestTrace) -> Self {
        let mut scene = Self(trace)
            .host_switch(0, 900, 0, 0, VCPU0)
            .host_switch(1, 910, 0, 0, 101)
            .exit(0, 990, IOIO)
            .enter(0, 1000)
            .enter(1, 1010);
        for cpu in [0, 1] {
            let time = 1020 + 20 * u64::from(cpu);
            scene = scene.interrupt(cpu, (time, time + 1), "softirq", 9).interrupt(
                cpu,
                (time + 2, time + 3),
                "vector",
                TIMER,
            );
        }
        scene.switch(0, 1060, 14, 1, 0).switch(1, 1070, 14, 1, 1)
    }

    fn guest(self, cpu: u32, time: u64, event: &'static str, fields: &[(&'static str, Field)]) -> Self {
        Self(self.0.guest(cpu, time, event, fields))
    }

    fn host(self, cpu: u32, time: u64, event: &'static str, fields: &[(&'static str, Field)]) -> Self {
        Self(self.0.host(cpu, time, event, fields))
    }

    fn switch(self, cpu: u32, time: u64, prev: i64, state: i64, next: i64) -> Self {
        let fields = [
            ("prev_comm", Text(name(prev))),
            ("prev_pid", Number(prev)),
            ("prev_state", Number(state)),
            ("next_comm", Text(name(next))),
            ("next_pid", Number(next)),
        ];
        self.guest(cpu, time, "sched:sched_switch", &fields)
    }

    fn host_switch(self, cpu: u32, time: u64, prev: i64, state: i64, next: i64) -> Self {
        let fields = [
            ("common_pid", Number(prev)),
            ("prev_comm", Text(name(prev))),
            ("prev_pid", Number(prev)),
            ("prev_state", Number(state)),
            ("next_comm", Text(name(next))),
            ("next_pid", Number(next)),
        ];
        self.host(cpu, time, "sched:sched_switch", &fields)
    }

    fn wake(self, cpu: u32, time: u64, tid: i64, target: u32) -> Self {
        let fields = [("comm", Text(name(tid))), ("pid", Number(tid)), ("target_cpu", Number(target.into()))];
        self.guest(cpu, time, "sched:sched_waking", &fields)
    }

    fn host_wake(self, cpu: u32, time: u64, by: i64, tid: i64) -> Self {
        self.host_wake_on(cpu, time, by, (tid, cpu))
    }

    fn host_wake_on(self, cpu: u32, time: u64, by: i64, (tid, target): (i64, u32)) -> Self {
        let fields = [
            ("common_pid", Number(by)),
            ("comm", Text(name(tid))),
            ("pid", Number(tid)),
            ("target_cpu", Number(target.into())),
        ];
        self.host(cpu, time, "sched:sched_waking", &fields)
    }

    fn enter(self, vcpu: u32, time: u64) -> Self {
        let fields = [("common_pid", Number(VCPU0 + i64::from(vcpu))), ("vcpu_id", Number(vcpu.into()))];
        self.host(vcpu, time, "kvm:kvm_entry", &fields)
    }

    fn exit(self, vcpu: u32, time: u64, reason: i64) -> Self {
        let fields = [
            ("common_pid", Number(VCPU0 + i64::from(vcpu))),
            ("exit_reason", Number(reason)),
            ("isa", Number(2)),
            ("vcpu_id", Number(vcpu.into())),
        ];
        self.host(vcpu, time, "kvm:kvm_exit", &fields)
    }

    fn vmm(self, vcpu: u32, (left, entered): (u64, u64)) -> Self {
        let fields = [("vcpu", Number(vcpu.into())), ("reason", Number(2))];
        let trace = self.0.vmm(vcpu, left, "vmm:vcpu_exit", &fields);
        Self(trace.vmm(vcpu, entered, "vmm:vcpu_enter", &fields[..1]))
    }

    fn call(self, cpu: u32, time: u64, number: i64) -> Self {
        let fields = [("id", Number(number)), ("args", Arguments([0x1000, 0]))];
        self.guest(cpu, time, "raw_syscalls:sys_enter", &fields)
    }

    /// An interrupt of `kind`: `irq`, `softirq` or `vector`.
    fn interrupt(self, cpu: u32, times: (u64, u64), kind: &str, number: i64) -> Self {
        self.begin_interrupt(cpu, times.0, kind, number).end_interrupt(cpu, times.1, kind, number)
    }

    fn begin_interrupt(self, cpu: u32, time: u64, kind: &str, number: i64) -> Self {
        match kind {
            "irq" => self.guest(
                cpu,
                time,
                "irq:irq_handler_entry",
                &[("irq", Number(number)), ("name", Text(if number == 24 { "virtio0" } else { "virtio1-input.0" }))],
            ),
            "softirq" => self.guest(cpu, time, "irq:softirq_entry", &[("vec", Number(number))]),
            _ => self.guest(cpu, time, "irq_vectors:local_timer_entry", &[("vector", Number(number))]),
        }
    }

    fn end_interrupt(self, cpu: u32, time: u64, kind: &str, number: i64) -> Self {
        match kind {
            "irq" => self.guest(cpu, time, "irq:irq_handler_exit", &[("irq", Number(number))]),
            "softirq" => self.guest(cpu, time, "irq:softirq_exit", &[("vec", Number(number))]),
            _ => self.guest(cpu, time, "irq_vectors:local_timer_exit", &[("vector", Number(number))]),
        }
    }

    /// The last record, of the guest's CPU 0.
    fn end(self, time: u64) -> TestTrace {
        self.interrupt(0, (time - 1, time), "softirq", 9).0
    }
}

fn options(task: &str) -> CriticalPathOptions {
    CriticalPathOptions::of(task.parse().unwrap())
}

fn ask(trace: TestTrace, options: &CriticalPathOptions) -> Result<CriticalPaths, CriticalPathError> {
    let (_dir, trace) = trace.open();
    critical_paths(&trace, options).map(|(paths, _)| paths)
}

/// The longest wait of `task`.
fn worst(trace: TestTrace, task: &str) -> CriticalPath {
    let asked = CriticalPathOptions { worst: Some(1), ..options(task) };
    ask(trace, &asked).unwrap().paths.remove(0)
}

/// The steps that have none below them, in order: whose they are, what and more on it, ticks.
fn leaves(steps: &[Step]) -> Vec<(&str, Cause, &str, u64)> {
    let mut found = Vec::new();
    for step in steps {
        if step.steps.is_empty() {
            found.push((step.task.as_str(), step.cause, step.detail.as_deref().unwrap_or_default(), step.ticks));
        }
        found.extend(leaves(&step.steps));
    }
    found
}

/// The share of `cause`, ticks.
fn share(path: &CriticalPath, cause: Cause) -> u64 {
    path.shares.iter().filter(|share| share.cause == cause).map(|share| share.ticks).sum()
}

/// `a` waits for a futex that `b` holds, which runs on vCPU 1, from 2000 on; `b` wakes it at 12000, and it runs at
/// 12500.
fn futex_of_b(meanwhile: impl FnOnce(Scene) -> Scene) -> TestTrace {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).switch(1, 1600, 1, 1, B);
    let scene = meanwhile(scene.call(0, 1900, FUTEX).switch(0, 2000, A, 1, 0));
    let scene = scene.wake(1, 12_000, A, 0).switch(1, 12_400, B, 1, 0).switch(0, 12_500, 0, 0, A);
    let scene = scene.interrupt(1, (13_100, 13_110), "softirq", 9);
    scene.switch(0, 14_000, A, 1, 0).end(15_000)
}

#[test]
fn thief_on_the_host_is_named_with_its_share_and_what_told_of_it() {
    let asked = CriticalPathOptions { from: Some(Duration::from_nanos(1_000)), ..options("app") };

    let answer = ask(scenario::preempted_in_an_exit(), &asked).unwrap();

    let path = &answer.paths[0];
    // It runs from tick 11000 on; the first record is at 9000.
    let found: Vec<_> = leaves(&path.steps).into_iter().take(5).collect();
    assert_eq!(
        found,
        [
            ("app/10", Cause::Running, "", 9_000),
            ("app/10", Cause::Exit, "ioio", 2_000),
            ("app/10", Cause::Preempted, "hog/200", 18_000),
            ("app/10", Cause::Exit, "ioio", 5_000),
            ("app/10", Cause::Vmm, "ioio", 5_000),
        ]
    );
    let told = path.steps[2].since.clone().unwrap();
    let switch = RecordOf { ticks: 22_000, layer: "host-kernel", cpu: 0, event: "sched:sched_switch".into() };
    assert_eq!(told, switch);
    assert!(path.summary.contains("the host ran hog/200 in place of vCPU 0, which app/10 needed"), "{}", path.summary);
}

#[test]
fn thief_is_there_because_somebody_woke_it() {
    let trace = futex_of_b(|scene| {
        let scene = scene.host_wake(1, 3_900, 101, HOG).host_switch(1, 4_000, 101, 0x100, HOG);
        scene.host_switch(1, 9_000, HOG, 1, 101)
    });

    let path = worst(trace, "a");

    let stolen = path.steps[0].steps.iter().find(|step| step.cause == Cause::Preempted).unwrap();
    assert_eq!(stolen.why.as_deref(), Some("it had been woken 50 ns before, while thread 101 ran"));
}

#[test]
fn lock_holder_that_the_host_preempts_is_followed_to_the_thief() {
    let trace = futex_of_b(|scene| scene.host_switch(1, 4_000, 101, 0x100, HOG).host_switch(1, 9_000, HOG, 1, 101));

    let path = worst(trace, "a");

    assert_eq!(
        leaves(&path.steps),
        [
            ("b/11", Cause::Running, "", 2_000),
            ("b/11", Cause::Preempted, "hog/200", 5_000),
            ("b/11", Cause::Running, "", 3_000),
            ("a/10", Cause::WaitsForCpu, "nothing: it was idle and had yet to switch", 500),
        ]
    );
    let wait = &path.steps[0];
    assert_eq!(
        (wait.cause, wait.detail.as_deref(), wait.woken_by.as_deref()),
        (Cause::Blocked, Some("futex (futex)"), Some("b/11"))
    );
    assert_eq!(
        wait.until.as_ref().map(|until| (until.ticks, until.event.as_str())),
        Some((12_000, "sched:sched_waking"))
    );
    assert!(
        path.summary.contains(
            "For 2.500 µs (47.6 %) the host ran hog/200 in place of vCPU 1, which b/11 needed; a/10 was waiting for it."
        ),
        "{}",
        path.summary
    );
}

#[test]
fn delay_in_the_vmm_is_the_vmms() {
    let trace = futex_of_b(|scene| scene.exit(1, 4_000, IOIO).vmm(1, (4_100, 9_900)).enter(1, 10_000));

    let path = worst(trace, "a");

    assert_eq!((share(&path, Cause::Vmm), share(&path, Cause::Exit)), (5_800, 200));
    assert!(path.summary.contains("the VMM handled exits (ioio) of vCPU 1, which b/11 needed"), "{}", path.summary);
}

#[test]
fn task_that_the_guest_prefers_to_the_lock_holder_is_the_cause_of_a_priority_inversion() {
    let trace = futex_of_b(|scene| scene.switch(1, 3_000, B, 0, M).switch(1, 11_000, M, 1, B));

    let path = worst(trace, "a");

    assert_eq!(
        leaves(&path.steps)[..3],
        [
            ("b/11", Cause::Running, "", 1_000),
            ("b/11", Cause::WaitsForCpu, "middle/13", 8_000),
            ("b/11", Cause::Running, "", 1_000),
        ]
    );
}

#[test]
fn exits_and_interrupts_of_who_runs_instead_are_time_that_who_is_ready_waits_for_it() {
    let trace = futex_of_b(|scene| {
        let scene = scene.switch(1, 3_000, B, 0, M).exit(1, 4_000, IOIO).enter(1, 5_000);
        scene.interrupt(1, (6_000, 7_000), "vector", TIMER).switch(1, 11_000, M, 1, B)
    });

    let path = worst(trace, "a");

    let behind: Vec<_> = path
        .shares
        .iter()
        .filter(|share| share.runner.as_deref() == Some("middle/13"))
        .map(|share| (share.cause, share.detail.as_deref(), share.ticks))
        .collect();
    assert_eq!(
        behind,
        [
            (Cause::WaitsForCpu, Some("middle/13"), 6_000),
            (Cause::Exit, Some("ioio"), 1_000),
            (Cause::WaitsForCpu, Some("vector 236"), 1_000),
        ]
    );
    assert!(
        path.summary.contains(
            "For 4.000 µs (76.1 %) b/11 was ready and its guest ran middle/13 on vCPU 1, 1.000 µs of it under exits \
             and interrupts; a/10 was waiting for it."
        ),
        "{}",
        path.summary
    );
}

#[test]
fn thread_of_another_vm_is_named_as_its_vcpu() {
    let scene = Scene::of(TestTrace::new().with_neighbour("vm1", 300));
    let scene = scene.switch(0, 1500, 0, 0, A).host_switch(0, 2_000, VCPU0, 0x100, NOISY);
    let trace = scene.host_switch(0, 8_000, NOISY, 0x100, VCPU0).switch(0, 9_000, A, 1, 0).end(10_000);

    let path = ask(trace, &options("a")).unwrap().paths.remove(0);

    assert_eq!(share(&path, Cause::Preempted), 6_000);
    let thief = path.shares.iter().find(|share| share.cause == Cause::Preempted).unwrap();
    assert_eq!(thief.detail.as_deref(), Some("noisy/300 (vCPU 0 of vm1)"));
}

/// A request of `c` that it issues at `time`, on CPU 0, and that its completion wakes it from at `time + 810`.
fn disk_request(scene: Scene, time: u64) -> Scene {
    let block = [("dev", Number(254 << 20)), ("sector", Number(64)), ("nr_sector", Number(8)), ("rwbs", Text("R"))];
    let scene = scene.guest(0, time, "block:block_rq_issue", &block).switch(0, time + 10, C, 2, 0);
    let request = |done| {
        let of_disk = [("disk", Number(0)), ("kind", Text("read")), ("sector", Number(64))];
        [&of_disk[..], &[("bytes", Number(4096)), ("done", Number(done))]].concat()
    };
    let trace = scene.0.vmm(2, time + 100, "vmm:block_request", &request(0));
    let trace = trace.vmm(2, time + 700, "vmm:block_request", &request(1));
    let scene = Scene(trace.vmm(2, time + 710, "vmm:disk_interrupt", &[("disk", Number(0))]));
    let scene = scene.begin_interrupt(0, time + 800, "irq", 24).guest(0, time + 805, "block:block_rq_complete", &block);
    scene.wake(0, time + 810, C, 0).end_interrupt(0, time + 815, "irq", 24)
}

#[test]
fn chain_of_three_tasks_over_two_locks_ends_at_the_disk() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, C).switch(1, 1_600, 1, 1, B);
    // `b` waits for `c`, and `a` for `b`.
    let scene = scene.call(1, 1_700, FUTEX).switch(1, 1_800, B, 1, A).call(1, 1_900, FUTEX).switch(1, 2_000, A, 1, 0);
    let scene = disk_request(scene.call(0, 2_900, READ), 3_000);
    let scene = scene.switch(0, 3_900, 0, 0, C).wake(0, 4_000, B, 1).switch(1, 4_100, 0, 0, B);
    let trace = scene.wake(1, 4_500, A, 1).switch(1, 4_600, B, 1, A).switch(1, 5_000, A, 1, 0).end(6_000);

    let path = worst(trace, "a");

    let disk = |step| format!("read of disk 0: {step}");
    let expected = [
        ("c/12", Cause::Running, String::new(), 900),
        ("c/12", Cause::Running, "read".into(), 110),
        ("c/12", Cause::Request, disk("issued → started, guest driver, host: wake the VMM's thread, VMM queue"), 90),
        ("c/12", Cause::Request, disk("started → finished, VMM and host I/O"), 600),
        ("c/12", Cause::Request, disk("finished → raised, VMM: rest of the batch, answer"), 10),
        ("c/12", Cause::Request, disk("raised → handled, KVM: reach the vCPU, guest: enter the handler"), 90),
        ("c/12", Cause::Request, disk("handled → completed, guest: handler, soft interrupt"), 5),
        ("c/12", Cause::Request, disk("completed → woken, guest: wake the task"), 5),
        ("c/12", Cause::WaitsForCpu, "irq 24".into(), 5),
        ("c/12", Cause::WaitsForCpu, "nothing: it was idle and had yet to switch".into(), 85),
        ("c/12", Cause::Running, "read".into(), 100),
        ("b/11", Cause::WaitsForCpu, "nothing: it was idle and had yet to switch".into(), 100),
        ("b/11", Cause::Running, "futex".into(), 400),
        ("a/10", Cause::WaitsForCpu, "b/11".into(), 100),
    ];
    let found: Vec<_> = leaves(&path.steps)
        .into_iter()
        .map(|(task, cause, detail, ticks)| (task, cause, detail.to_owned(), ticks))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(path.wall_ticks, 2_600);
}

#[test]
fn task_that_slept_as_it_asked_for_is_late_only_from_being_woken_on() {
    let sleeper = || {
        let scene = Scene::new().switch(0, 1_500, 0, 0, A).call(0, 1_900, NANOSLEEP).switch(0, 2_000, A, 1, 0);
        let scene = scene
            .begin_interrupt(0, 9_000, "vector", TIMER)
            .wake(0, 9_100, A, 0)
            .end_interrupt(0, 9_200, "vector", TIMER);
        scene.switch(0, 9_900, 0, 0, A).switch(0, 11_000, A, 1, 0).end(12_000)
    };

    let (late, all) = (worst(sleeper(), "a"), ask(sleeper(), &options("a")).unwrap().paths.remove(0));

    assert_eq!((late.window.begin, late.wall_ticks), (9_100, 800));
    assert_eq!(share(&all, Cause::Sleep), 7_100);
}

#[test]
fn wake_up_of_a_halted_vcpu_is_the_hosts_from_when_its_thread_is_woken() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(0, 2_000, A, 1, 0);
    let scene = scene.exit(0, 2_500, HLT).host_switch(0, 2_600, VCPU0, 1, HOG).host_wake(0, 7_000, 0, VCPU0);
    let scene = scene.host_switch(0, 8_500, HOG, 0, VCPU0).enter(0, 8_700).begin_interrupt(0, 8_800, "irq", 25);
    let scene = scene.wake(0, 8_900, A, 0).end_interrupt(0, 8_950, "irq", 25).switch(0, 9_000, 0, 0, A);
    let trace = scene.switch(0, 9_500, A, 1, 0).end(10_000);

    let path = worst(trace, "a");

    let waited = &path.steps[0];
    assert_eq!((waited.cause, waited.woken_by.as_deref()), (Cause::Blocked, Some("irq 25 (virtio1-input.0)")));
    assert_eq!(
        leaves(&waited.steps),
        [
            ("a/10", Cause::Interrupt, "event", 5_000),
            ("a/10", Cause::WokenLate, "hog/200", 1_500),
            ("a/10", Cause::Exit, "hlt", 200),
            ("a/10", Cause::Handler, "on the way to its handler", 100),
            ("a/10", Cause::Handler, "irq 25", 100),
        ]
    );
}

/// The path of `a`, which sleeps on an idle vCPU until its timer at 8,800; the host runs something else there from
/// 2,600 until `back`.
fn sleeper_on_an_idle_vcpu(back: u64) -> CriticalPath {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).call(0, 1_900, NANOSLEEP).switch(0, 2_000, A, 1, 0);
    let scene = scene.exit(0, 2_500, CPUID).host_switch(0, 2_600, VCPU0, 0, HOG);
    let scene = scene.host_switch(0, back, HOG, 0, VCPU0).enter(0, back + 200);
    let scene = scene.begin_interrupt(0, 8_800, "vector", TIMER).wake(0, 8_900, A, 0);
    let scene = scene.end_interrupt(0, 8_950, "vector", TIMER).switch(0, 9_000, 0, 0, A);
    ask(scene.switch(0, 9_500, A, 1, 0).end(10_000), &options("a")).unwrap().paths.remove(0)
}

#[test]
fn sleep_that_ends_when_an_idle_vcpu_gets_its_cpu_back_was_held_up_by_who_ran_there() {
    let all = sleeper_on_an_idle_vcpu(8_500);

    let told = leaves(&all.steps);
    assert!(told.contains(&("a/10", Cause::Sleep, "sleep (nanosleep)", 600)), "{told:?}");
    assert!(told.contains(&("a/10", Cause::Preempted, "hog/200", 5_900)), "{told:?}");
}

#[test]
fn sleep_that_ends_long_after_an_idle_vcpu_got_its_cpu_back_was_not_held_up() {
    let all = sleeper_on_an_idle_vcpu(4_500);

    assert_eq!((share(&all, Cause::Preempted), share(&all, Cause::Sleep)), (0, 6_900));
}

/// `a` waits from 2000 on for a packet, which the guest's CPU 0 receives from 9000 on; it wakes `a` at 9100, and that
/// runs at 9500. The host's CPU 2 runs `hog` from 1800 on.
fn packet_for_a(trace: TestTrace, meanwhile: impl FnOnce(Scene) -> Scene) -> CriticalPath {
    let scene = Scene::of(trace).switch(0, 1500, 0, 0, A).host_switch(2, 1_800, 0, 0, HOG);
    let scene = meanwhile(scene.call(0, 1900, READ).switch(0, 2000, A, 1, 0));
    let scene = scene.begin_interrupt(0, 9_000, "softirq", 3).wake(0, 9_100, A, 0);
    let scene = scene.end_interrupt(0, 9_200, "softirq", 3).switch(0, 9_500, 0, 0, A);
    worst(scene.switch(0, 14_000, A, 1, 0).end(15_000), "a")
}

/// What the waits of [`packet_for_a`] are, and how long: up to the wake-up.
fn causes(path: &CriticalPath) -> Vec<(Cause, u64)> {
    path.steps[0].steps.iter().map(|step| (step.cause, step.ticks)).collect()
}

#[test]
fn packet_that_a_worker_was_kept_from_moving_is_held_up_by_what_ran_in_its_place() {
    let path = packet_for_a(TestTrace::new(), |scene| {
        let scene = scene.host_wake(2, 3_000, 101, WORKER).host_switch(2, 5_000, HOG, 1, NOISY);
        scene.host_switch(2, 7_000, NOISY, 0, WORKER).host_switch(2, 7_500, WORKER, 1, NOISY)
    });

    let held_up = |by: &str| format!("{by} in place of vhost-1/{WORKER}");
    let (hog, noisy) = (held_up("hog/200"), held_up("noisy/300"));
    let waited = path.steps[0].steps[0].detail.clone().unwrap_or_default();
    assert_eq!(
        leaves(&path.steps)[..4],
        [
            ("a/10", Cause::Interrupt, waited.as_str(), 1_000),
            ("a/10", Cause::PacketHeldUp, hog.as_str(), 2_000),
            ("a/10", Cause::PacketHeldUp, noisy.as_str(), 2_000),
            ("a/10", Cause::Interrupt, waited.as_str(), 2_100),
        ]
    );
    let said = "the host ran hog/200 in place of vhost-1/400, which was to move the packet that a/10 waited for";
    assert!(path.summary.contains(said), "{}", path.summary);
}

#[test]
fn worker_that_is_preempted_holds_up_its_packet_and_one_that_ran_at_once_does_not() {
    let preempted = packet_for_a(TestTrace::new(), |scene| {
        let scene = scene.host_switch(2, 2_500, HOG, 1, WORKER).host_switch(2, 4_000, WORKER, 0x100, NOISY);
        scene.host_switch(2, 7_000, NOISY, 1, WORKER)
    });
    let at_once = packet_for_a(TestTrace::new(), |scene| scene.host_switch(2, 4_000, HOG, 1, WORKER));

    assert_eq!(
        causes(&preempted),
        [(Cause::Interrupt, 2_000), (Cause::PacketHeldUp, 3_000), (Cause::Interrupt, 2_100)]
    );
    assert_eq!((at_once.steps[0].cause, causes(&at_once)), (Cause::Interrupt, Vec::new()));
}

#[test]
fn only_the_last_run_of_a_worker_before_the_guest_receives_counts() {
    let path = packet_for_a(TestTrace::new(), |scene| {
        let scene = scene.host_wake(2, 2_100, 101, WORKER).host_switch(2, 4_000, HOG, 0, WORKER);
        let scene = scene.host_switch(2, 4_100, WORKER, 1, HOG).host_wake(2, 6_000, 101, WORKER);
        scene.host_switch(2, 6_500, HOG, 0, WORKER).host_switch(2, 6_600, WORKER, 1, HOG)
    });

    assert_eq!(causes(&path), [(Cause::Interrupt, 4_000), (Cause::PacketHeldUp, 500), (Cause::Interrupt, 2_600)]);
}

/// `a` sends a packet right before it waits, by an exit of its vCPU for `reason`; the worker is kept from running until
/// 4000, and has its answer later, in a run to which something else wakes it.
fn sent_by_a(reason: i64, meanwhile: impl FnOnce(Scene) -> Scene) -> CriticalPath {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).host_switch(2, 1_600, 0, 0, HOG).call(0, 1_700, READ);
    let scene = scene.exit(0, 1_800, reason).host_wake_on(0, 1_850, VCPU0, (WORKER, 2)).enter(0, 1_900);
    let scene = scene.switch(0, 2000, A, 1, 0).host_switch(2, 4_000, HOG, 0, WORKER);
    let scene = meanwhile(scene.host_switch(2, 4_100, WORKER, 1, HOG));
    let scene = scene.host_wake(2, 7_000, NOISY, WORKER).host_switch(2, 7_500, HOG, 0, WORKER);
    let scene = scene.host_switch(2, 7_600, WORKER, 1, HOG).begin_interrupt(0, 9_000, "softirq", 3);
    let scene = scene.wake(0, 9_100, A, 0).end_interrupt(0, 9_200, "softirq", 3).switch(0, 9_500, 0, 0, A);
    worst(scene.switch(0, 14_000, A, 1, 0).end(15_000), "a")
}

#[test]
fn request_and_answer_that_wait_for_two_runs_of_a_worker_are_held_up_before_each() {
    let path = sent_by_a(NPF, |scene| scene);

    assert_eq!(
        causes(&path),
        [
            (Cause::PacketHeldUp, 2_000),
            (Cause::Interrupt, 3_000),
            (Cause::PacketHeldUp, 500),
            (Cause::Interrupt, 1_600),
        ]
    );
    assert!(path.steps[0].steps.iter().all(|step| !says_untold(step)), "{path:#?}");
}

#[test]
fn runs_between_request_and_answer_are_not_counted_and_that_is_said() {
    let path = sent_by_a(NPF, |scene| {
        let scene = scene.host_wake(2, 5_000, NOISY, WORKER).host_switch(2, 6_000, HOG, 0, WORKER);
        scene.host_switch(2, 6_100, WORKER, 1, HOG)
    });

    let steps = &path.steps[0].steps;
    assert_eq!(share(&path, Cause::PacketHeldUp), 2_500);
    assert_eq!(steps.iter().map(says_untold).collect::<Vec<_>>(), [false, true, false, false]);
    assert!(steps[1].detail.as_deref().unwrap().contains("500 ns"), "{steps:#?}");
}

#[test]
fn first_run_that_the_guest_did_not_ask_for_is_not_counted_and_that_is_said() {
    let path = sent_by_a(EXTERNAL_INTERRUPT, |scene| scene);

    let steps = &path.steps[0].steps;
    assert_eq!(causes(&path), [(Cause::Interrupt, 5_000), (Cause::PacketHeldUp, 500), (Cause::Interrupt, 1_600)]);
    assert_eq!(steps.iter().map(says_untold).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn packet_that_is_sent_in_an_interrupt_is_not_the_request_of_the_task_below_it() {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).host_switch(2, 1_600, 0, 0, HOG).call(0, 1_700, READ);
    let scene = scene.begin_interrupt(0, 1_750, "softirq", 9).exit(0, 1_800, NPF);
    let scene = scene.host_wake_on(0, 1_850, VCPU0, (WORKER, 2)).enter(0, 1_900);
    let scene = scene.end_interrupt(0, 1_950, "softirq", 9).switch(0, 2000, A, 1, 0);
    let scene = scene.host_switch(2, 4_000, HOG, 0, WORKER).host_switch(2, 4_100, WORKER, 1, HOG);
    let scene = scene.host_switch(2, 7_500, HOG, 0, WORKER).begin_interrupt(0, 9_000, "softirq", 3);
    let scene = scene.wake(0, 9_100, A, 0).end_interrupt(0, 9_200, "softirq", 3).switch(0, 9_500, 0, 0, A);

    let path = worst(scene.switch(0, 14_000, A, 1, 0).end(15_000), "a");

    assert_eq!((share(&path, Cause::PacketHeldUp), says_untold(&path.steps[0])), (0, true));
}

fn says_untold(step: &Step) -> bool {
    step.detail.as_deref().is_some_and(|detail| detail.contains("whether for this packet is not recorded"))
}

#[test]
fn hold_up_before_the_wait_is_no_part_of_it() {
    let path = packet_for_a(TestTrace::new(), |scene| {
        let scene = scene.host_wake(2, 1_950, 101, WORKER).host_switch(2, 7_000, HOG, 0, WORKER);
        scene.host_switch(2, 7_500, WORKER, 1, HOG)
    });

    assert_eq!(causes(&path), [(Cause::PacketHeldUp, 5_000), (Cause::Interrupt, 2_100)]);
}

#[test]
fn of_several_workers_and_of_those_of_others_it_is_not_guessed_who_moved_the_packet() {
    let late = |scene: Scene| scene.host_wake(2, 3_000, 101, WORKER).host_switch(2, 7_000, HOG, 0, WORKER);

    let two = packet_for_a(TestTrace::new(), |scene| late(scene).host_switch(1, 8_000, 101, 0, SECOND_WORKER));
    let ours = packet_for_a(TestTrace::new().strata_thread(1, "strata", 0), late);
    let of_others = packet_for_a(TestTrace::new().strata_thread(2, "strata", 0), late);

    assert!([&two, &of_others].iter().all(|path| share(path, Cause::PacketHeldUp) == 0), "{two:#?}");
    assert_eq!([&two, &of_others].map(|path| says_untold(&path.steps[0])), [true, false]);
    assert_eq!(share(&ours, Cause::PacketHeldUp), 4_000);
}

#[test]
fn nothing_is_held_up_where_records_of_the_host_are_lost() {
    let path = packet_for_a(TestTrace::new(), |scene| {
        let scene = Scene(scene.host_wake(2, 3_000, 101, WORKER).0.lost(LayerKind::HostKernel, 2, 5));
        scene.host_switch(2, 7_000, HOG, 0, WORKER)
    });

    assert_eq!(share(&path, Cause::PacketHeldUp), 0);
}

#[test]
fn task_that_runs_when_an_interrupt_wakes_another_did_not_wake_it() {
    let trace = futex_of_b(|scene| {
        let scene = scene.begin_interrupt(1, 6_000, "irq", 25).wake(1, 6_010, A, 0);
        scene.end_interrupt(1, 6_020, "irq", 25).switch(0, 6_500, 0, 0, A).switch(0, 7_000, A, 1, 0)
    });

    let asked = CriticalPathOptions { worst: Some(2), ..options("a") };
    let answer = ask(trace, &asked).unwrap();

    let [longer, shorter] = &answer.paths[..] else { panic!("{answer:#?}") };
    assert_eq!((longer.wall_ticks, longer.steps[0].woken_by.as_deref()), (5_500, Some("b/11")));
    assert_eq!((shorter.wall_ticks, shorter.steps[0].cause), (4_500, Cause::Interrupt));
}

#[test]
fn wait_is_not_followed_where_interrupts_were_not_recorded() {
    let scene = Scene(TestTrace::new()).host_switch(0, 900, 0, 0, VCPU0).enter(0, 1_000).exit(1, 1_001, IOIO);
    let scene = scene.switch(0, 1_060, 14, 1, 0).switch(1, 1_070, 14, 1, B).switch(0, 1_500, 0, 0, A);
    let trace = scene.switch(0, 2_000, A, 1, 0).wake(1, 3_000, A, 0).switch(0, 3_100, 0, 0, A).0;

    let asked = CriticalPathOptions { worst: Some(1), ..options("a") };
    let answer = ask(trace, &asked).unwrap();

    let wait = &answer.paths[0].steps[0];
    assert_eq!((wait.cause, wait.steps.len()), (Cause::WakerUnknown, 0));
    assert!(wait.detail.as_deref().unwrap().contains("interrupts were not recorded"), "{wait:?}");
    assert!(answer.warnings.iter().any(|warning| warning.contains("softirq_entry")), "{:?}", answer.warnings);
}

#[test]
fn what_the_waker_did_where_records_are_lost_is_not_known() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(1, 1_600, 1, 1, B).switch(0, 2_000, A, 1, 0);
    let scene = scene.call(1, 4_000, READ);
    let lost = Scene(scene.0.lost(strata_recording::layer::LayerKind::GuestKernel, 1, 5)).call(1, 7_000, READ);
    let scene = lost.switch(1, 8_000, B, 0, M).switch(1, 9_000, M, 1, B).wake(1, 9_500, A, 0);
    let trace = scene.switch(0, 9_600, 0, 0, A).end(10_000);

    let answer = ask(trace, &options("a")).unwrap();

    let path = &answer.paths[0];
    let lost = path.steps.iter().find(|step| step.begin == 4_000).unwrap();
    assert_eq!((lost.cause, lost.detail.as_deref(), lost.end), (Cause::Unknown, Some("records are lost here"), 9_500));
    assert!(path.summary.contains("it is not known what a/10 did: records are lost here"), "{}", path.summary);
}

#[test]
fn task_that_was_not_made_yet_is_followed_to_who_made_it() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(1, 1_600, 1, 1, B).switch(0, 2_000, A, 1, 0);
    let fork = [("parent_pid", Number(B)), ("child_comm", Text("c")), ("child_pid", Number(C))];
    let scene = scene.guest(1, 5_000, "sched:sched_process_fork", &fork).switch(1, 5_500, B, 1, C);
    let trace = scene.wake(1, 8_000, A, 0).switch(0, 8_100, 0, 0, A).end(9_000);

    let path = worst(trace, "a");

    assert_eq!(
        leaves(&path.steps)[..3],
        [
            ("b/11", Cause::Running, "", 3_000),
            ("c/12", Cause::WaitsForCpu, "b/11", 500),
            ("c/12", Cause::Running, "", 2_500),
        ]
    );
}

#[test]
fn task_is_called_by_its_last_name_also_where_it_had_another_one() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(0, 2_000, A, 0, M).switch(0, 6_000, M, 1, A);
    let fields = [
        ("prev_comm", Text("server")),
        ("prev_pid", Number(A)),
        ("prev_state", Number(1)),
        ("next_comm", Text("swapper")),
        ("next_pid", Number(0)),
    ];
    let trace = scene.guest(0, 7_000, "sched:sched_switch", &fields).end(8_000);

    let path = worst(trace, "server");

    assert_eq!(leaves(&path.steps), [("server/10", Cause::WaitsForCpu, "middle/13", 4_000)]);
    assert!(path.summary.contains("server/10 was ready and its guest ran middle/13"), "{}", path.summary);
    assert!(!path.summary.contains("was waiting for it"), "{}", path.summary);
}

#[test]
fn wait_that_goes_on_beyond_the_window_is_said_to() {
    let asked = CriticalPathOptions { to: Some(Duration::from_nanos(3_000)), ..options("a") };

    let path = ask(futex_of_b(|scene| scene), &asked).unwrap().paths.remove(0);

    // The first record is at tick 900, the window's end at 6900.
    assert_eq!(path.steps.last().map(|step| (step.cause, step.ticks)), Some((Cause::NotWoken, 4_900)));
}

/// `b` enters and leaves system calls from 3000 to 11000.
fn calls_of_b(scene: Scene) -> Scene {
    (0..40).fold(scene, |scene, number| scene.call(1, 3_000 + 200 * number, number.cast_signed()))
}

#[test]
fn more_than_is_kept_of_a_wait_is_not_known_and_said() {
    let (_dir, trace) = futex_of_b(calls_of_b).open();
    let asked = CriticalPathOptions { worst: Some(1), ..options("a") };

    let (answer, _) = critical_paths_within(&trace, &asked, 20).unwrap();

    let path = &answer.paths[0];
    let limit = path.limit_met.unwrap();
    assert_eq!(path.steps.last().map(|step| (step.cause, step.begin)), Some((Cause::Unknown, limit)));
    let mut text = Vec::new();
    answer.write_text(&mut text).unwrap();
    assert!(String::from_utf8(text).unwrap().contains("choose a shorter window"));
}

/// What `strata why` says of all that `a` does in `trace`, and the share that it was not allowed to run.
fn limited(trace: TestTrace) -> (u64, String) {
    let answer = ask(trace, &options("a")).unwrap();
    let mut text = Vec::new();
    answer.write_text(&mut text).unwrap();
    (share(&answer.paths[0], Cause::NotAllowed), String::from_utf8(text).unwrap())
}

#[test]
fn vcpu_that_its_host_passes_over_is_limited_and_not_late() {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).exit(0, 2_000, IOIO).host_switch(0, 2_100, VCPU0, 0, 0);
    let scene = scene.host_switch(0, 52_100, 0, 0, VCPU0).enter(0, 52_200).switch(0, 60_000, A, 1, 0);

    let (ticks, text) = limited(scene.end(61_000));

    assert_eq!(ticks, 50_000);
    assert!(text.contains("its CPU of the host was idle and did not run it: a CPU limit"), "{text}");
    assert!(!text.contains("had yet to begin"), "{text}");
}

#[test]
fn vcpu_that_an_idle_host_runs_late_by_tens_of_milliseconds_is_not_said_to_have_yet_to_begin() {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).exit(0, 2_000, IOIO).host_switch(0, 2_100, VCPU0, 1, 0);
    let scene = scene.host_wake(0, 3_000, 0, VCPU0).host_switch(0, 60_003_000, 0, 0, VCPU0).enter(0, 60_003_100);

    let (ticks, text) = limited(scene.switch(0, 60_010_000, A, 1, 0).end(60_011_000));

    assert_eq!(ticks, 60_000_000);
    assert!(text.contains("a CPU limit, or why is not recorded") && !text.contains("had yet to begin"), "{text}");
}

#[test]
fn task_that_its_guest_passes_over_is_limited_and_not_late() {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).switch(0, 2_000, A, 0, 0).switch(0, 42_000, 0, 0, A);

    let (ticks, text) = limited(scene.switch(0, 60_000, A, 1, 0).end(61_000));

    assert_eq!(ticks, 40_000);
    assert!(text.contains("was idle and did not run it: a CPU limit in the guest"), "{text}");
    assert!(!text.contains("had yet to begin"), "{text}");
}

#[test]
fn path_is_the_same_when_it_is_walked_in_parts() {
    let (_dir, trace) = futex_of_b(calls_of_b).open();
    let path = |most| critical_paths_within(&trace, &options("a"), most).unwrap().0.paths;

    let (whole, parts) = (path(1_000_000), path(200));

    let what = |paths: &[CriticalPath]| (paths.len(), paths[0].window, paths[0].shares.clone(), paths[0].limit_met);
    assert_eq!(what(&whole), what(&parts));
    // It runs when a part ends.
    assert_eq!(whole[0].steps.len() + 1, parts[0].steps.len());
}

#[test]
fn time_of_the_task_itself_is_that_of_the_report_on_tasks() {
    let (_dir, trace) = scenario::preempted_in_an_exit().open();
    let report = tasks::report(&trace, Window::ALL).unwrap();

    let (answer, _) = critical_paths(&trace, &options("app")).unwrap();

    let times = report.vms[0].tasks.iter().find(|task| task.tid == 10).unwrap().times;
    let path = &answer.paths[0];
    assert_eq!(share(path, Cause::Running), times.running);
    assert_eq!(share(path, Cause::Preempted), times.stolen);
    assert_eq!((share(path, Cause::Exit), share(path, Cause::Vmm)), (times.exits, times.vmm));
    assert_eq!(share(path, Cause::Unknown), times.unknown);
}

#[test]
fn intervals_end_with_the_next_event_of_the_task_that_matches() {
    let at = |scene: Scene, time, event| Scene(scene.0.user(10, 0, time, event, &[("n", Number(1))]));
    let scene = at(Scene::new().switch(0, 1_500, 0, 0, A), 2_000, "app:begin");
    let scene = at(at(scene, 2_700, "app:end"), 3_000, "app:begin").switch(0, 3_500, A, 0, M);
    let scene = at(at(scene, 4_000, "app:begin").switch(0, 5_000, M, 1, A), 6_000, "app:end");
    let trace = scene.switch(0, 7_000, A, 1, 0).end(8_000);

    let asked = CriticalPathOptions { event: Some("app:*".into()), ..options("a") };
    let answer = ask(trace, &asked).unwrap();

    let windows: Vec<_> = answer.paths.iter().map(|path| (path.window.begin, path.window.end)).collect();
    // The one at 4000 is another task's.
    assert_eq!(windows, [(3_000, 6_000), (2_000, 2_700), (2_700, 3_000)]);
    assert_eq!(share(&answer.paths[0], Cause::WaitsForCpu), 1_500);
}

#[test]
fn task_that_does_not_exist_is_refused_with_the_nearest() {
    let refused = |task: &str| ask(futex_of_b(|scene| scene), &options(task)).unwrap_err().to_string();

    assert_eq!(
        refused("frist"),
        "no task in the window is 'frist'; the nearest are first, init; strata report tasks lists all"
    );
    assert!(refused("99").contains("the nearest are 14, 11, 10"), "{}", refused("99"));
}

/// The threads of `web`: 20 waits on CPU 0 from 2000 to 12,500, 21 on CPU 1 from 3000 to 6000 and from 7000 to 20,000.
fn threads_of_web() -> TestTrace {
    threads(Scene::new()).switch(0, 21_000, 20, 1, 0).end(22_000)
}

fn threads(scene: Scene) -> Scene {
    let scene = scene.switch(0, 1_500, 0, 0, 20).switch(1, 1_600, 1, 1, 21).call(0, 1_900, FUTEX).call(1, 1_950, FUTEX);
    let scene = scene.switch(0, 2_000, 20, 1, 0).switch(1, 3_000, 21, 1, B).wake(1, 5_000, 21, 1);
    let scene = scene.switch(1, 6_000, B, 0, 21).switch(1, 7_000, 21, 1, B).wake(1, 12_000, 20, 0);
    scene.switch(0, 12_500, 0, 0, 20).wake(0, 19_000, 21, 1).switch(1, 20_000, B, 1, 21)
}

/// Whose waits are told, and when.
fn waits(answer: &CriticalPaths) -> Vec<(&str, u64, u64)> {
    answer.paths.iter().map(|path| (path.task.as_str(), path.window.begin, path.window.end)).collect()
}

#[test]
fn longest_waits_of_a_name_are_those_of_all_its_threads() {
    let answer = ask(threads_of_web(), &options("web")).unwrap();

    assert_eq!(waits(&answer), [("web/21", 7_000, 20_000), ("web/20", 2_000, 12_500), ("web/21", 3_000, 6_000)]);
    assert_eq!(answer.task_count, 2);
    assert!(answer.paths[1].summary.starts_with("web/20 of vm0 took 5.250 µs"), "{}", answer.paths[1].summary);
}

#[test]
fn only_the_longest_waits_of_all_threads_are_told() {
    let asked = CriticalPathOptions { worst: Some(1), ..options("w*") };

    assert_eq!(waits(&ask(threads_of_web(), &asked).unwrap()), [("web/21", 7_000, 20_000)]);
}

#[test]
fn one_thread_of_a_name_is_told_as_if_there_were_no_other() {
    let whole = |task: &str| ask(threads_of_web(), &options(task)).unwrap();
    let asked = CriticalPathOptions { worst: Some(2), ..options("web/21") };

    let (of_one, of_all) = (ask(threads_of_web(), &asked).unwrap(), ask(threads_of_web(), &options("web")).unwrap());

    assert_eq!(of_one.paths, [of_all.paths[0].clone(), of_all.paths[2].clone()]);
    let begin = |answer: &CriticalPaths| (answer.paths.len(), answer.task_count, answer.paths[0].window.begin);
    assert_eq!((begin(&whole("web/20")), begin(&whole("21/web"))), ((1, 1, 1_020), (1, 1, 1_020)));
}

#[test]
fn process_is_all_its_threads() {
    const CLONE_THREAD: i64 = 0x1_0000;
    let flags = [("pid", Number(21)), ("comm", Text("web")), ("clone_flags", Number(CLONE_THREAD))];
    let fork = [
        ("parent_comm", Text("web")),
        ("parent_pid", Number(20)),
        ("child_comm", Text("web")),
        ("child_pid", Number(21)),
    ];
    let scene = Scene::new().switch(1, 1_100, 1, 0, 20).guest(1, 1_200, "task:task_newtask", &flags);
    let scene = scene.guest(1, 1_210, "sched:sched_process_fork", &fork).switch(1, 1_300, 20, 1, 1);

    let answer = ask(threads(scene).end(22_000), &options("20")).unwrap();

    assert_eq!(waits(&answer)[..2], [("web/21", 7_000, 20_000), ("web/20", 2_000, 12_500)]);
}

#[test]
fn without_a_task_it_is_the_longest_waits_of_all_but_those_for_work_of_the_kernel() {
    // Task M waits in no system call until it is woken at 20,900.
    let scene = threads(Scene::new().switch(0, 1_100, 0, 0, M).switch(0, 1_200, M, 1, 0)).wake(1, 20_900, M, 0);
    let trace = scene.switch(0, 21_000, 20, 1, M).end(22_000);
    let asked = CriticalPathOptions { worst: Some(2), ..CriticalPathOptions::default() };

    let answer = ask(trace, &asked).unwrap();

    assert_eq!(waits(&answer), [("web/21", 7_000, 20_000), ("web/20", 2_000, 12_500)]);
}

#[test]
fn without_recorded_system_calls_no_task_is_taken_for_one_of_the_kernel() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(0, 2_000, A, 1, 0).wake(1, 12_000, A, 0);
    let trace = scene.switch(0, 12_500, 0, 0, A).end(14_000);
    let asked = CriticalPathOptions { worst: Some(1), ..CriticalPathOptions::default() };

    assert_eq!(waits(&ask(trace, &asked).unwrap()), [("a/10", 2_000, 12_500)]);
}

#[test]
fn what_is_not_kept_of_a_wait_is_missing_in_those_that_are_under_way_too() {
    let (_dir, trace) = threads_of_web().open();

    let (answer, _) = critical_paths_within(&trace, &options("web"), 12).unwrap();

    let limits: Vec<_> = answer.paths.iter().map(|path| path.limit_met.is_some()).collect();
    assert_eq!(limits, [true, true, false]);
}

#[test]
fn tasks_are_drawn_in_rows_of_their_own() {
    let answer = ask(threads_of_web(), &options("web")).unwrap();

    let rows = answer.by_task();

    let begins: Vec<Vec<u64>> = rows.iter().map(|row| row.iter().map(|path| path.window.begin).collect()).collect();
    assert_eq!(begins, [vec![2_000], vec![3_000, 7_000]]);
}

#[test]
fn window_without_records_and_empty_intervals_are_refused() {
    let refused = |options| ask(futex_of_b(|scene| scene), &options).unwrap_err().to_string();

    let late = refused(CriticalPathOptions { from: Some(Duration::from_secs(9)), ..options("a") });
    let event = refused(CriticalPathOptions { event: Some("app:*".into()), ..options("a") });
    let vm = refused(CriticalPathOptions { vm: Some("vm1".into()), ..options("a") });

    assert!(late.starts_with("no guest-kernel record in the window"), "{late}");
    assert!(event.starts_with("a/10 has not two records of one event that matches 'app:*'"), "{event}");
    assert_eq!(vm, "no VM is called 'vm1'; there is vm0");
}

#[test]
fn text_has_the_paragraph_and_a_tree_of_which_each_level_adds_up() {
    let trace = futex_of_b(|scene| scene.host_switch(1, 4_000, 101, 0x100, HOG).host_switch(1, 9_000, HOG, 1, 101));
    let asked = CriticalPathOptions { worst: Some(1), ..options("a") };
    let mut text = Vec::new();

    ask(trace, &asked).unwrap().write_text(&mut text).unwrap();

    let text = String::from_utf8(text).unwrap();
    let tree = "    5.250 µs  100.0 %  a/10\n    \
        5.000 µs   95.2 %    waits for futex (futex), until b/11 woke it  [0.000005550 guest-kernel sched:sched_waking 1]\n    \
        1.000 µs   19.0 %      b/11: runs on vCPU 1  [0.000000350 guest-kernel sched:sched_switch 1]\n    \
        2.500 µs   47.6 %      b/11: the host runs hog/200 in place of vCPU 1  [0.000001550 host-kernel sched:sched_switch 1]\n    \
        1.500 µs   28.5 %      b/11: runs on vCPU 1  [0.000004050 host-kernel sched:sched_switch 1]\n      \
        250 ns    4.7 %    ready; idle and yet to begin on vCPU 0  [0.000005550 guest-kernel sched:sched_waking 1]\n";
    assert!(text.contains(tree), "{text}");
}

#[test]
fn cpu_that_its_guest_does_not_use_takes_nothing_from_the_answer() {
    let asked = |trace: TestTrace| {
        let (_dir, trace) = trace.open();
        format!("{:?}", critical_paths(&trace, &options("app")).unwrap().0)
    };
    let recording = crate::report::scenario::preempted_in_an_exit;

    assert_eq!(asked(recording().never_joined(1)), asked(recording()));
}
