//! Recordings made record by record, with a known answer.
//!
//! Shows: `strata why` names thief, lock holder, VMM, disk step, priority inversion; steps add up to the tick.

mod answer;
mod causes;
mod packets;
mod renaming;
mod requested;
mod unknown;

use super::*;
use crate::report::scheduling::tasks;
use crate::report::{Report, scenario};
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

fn request(trace: TestTrace, options: &CriticalPathOptions) -> Result<CriticalPaths, CriticalPathError> {
    let (_dir, trace) = trace.open();
    critical_paths(&trace, options).map(|(paths, _)| paths)
}

/// The longest wait of `task`.
fn worst(trace: TestTrace, task: &str) -> CriticalPath {
    let requested = CriticalPathOptions { worst: Some(1), ..options(task) };
    request(trace, &requested).unwrap().paths.remove(0)
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

/// `b` enters and leaves system calls from 3000 to 11000.
fn calls_of_b(scene: Scene) -> Scene {
    (0..40).fold(scene, |scene, number| scene.call(1, 3_000 + 200 * number, number.cast_signed()))
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
