//! A recording with a known answer, for the tests of reports on states.

use strata_recording::test_trace::{Field, TestTrace};

const HOST_THREAD: i64 = 100;
const HOG: i64 = 200;
const IOIO: i64 = 0x7b;
const HLT: i64 = 0x78;

fn host_switch(
    trace: TestTrace,
    time: u64,
    prev: (i64, &'static str),
    prev_state: i64,
    next: (i64, &'static str),
) -> TestTrace {
    let fields = [
        ("common_pid", Field::Number(prev.0)),
        ("prev_comm", Field::Text(prev.1)),
        ("prev_pid", Field::Number(prev.0)),
        ("prev_state", Field::Number(prev_state)),
        ("next_comm", Field::Text(next.1)),
        ("next_pid", Field::Number(next.0)),
    ];
    trace.host(0, time, "sched:sched_switch", &fields)
}

fn guest_switch(
    trace: TestTrace,
    time: u64,
    prev: (i64, &'static str),
    prev_state: i64,
    next: (i64, &'static str),
) -> TestTrace {
    let fields = [
        ("prev_comm", Field::Text(prev.1)),
        ("prev_pid", Field::Number(prev.0)),
        ("prev_state", Field::Number(prev_state)),
        ("next_comm", Field::Text(next.1)),
        ("next_pid", Field::Number(next.0)),
    ];
    trace.guest(0, time, "sched:sched_switch", &fields)
}

fn entry(trace: TestTrace, time: u64) -> TestTrace {
    let fields = [("common_pid", Field::Number(HOST_THREAD)), ("vcpu_id", Field::Number(0))];
    trace.host(0, time, "kvm:kvm_entry", &fields)
}

fn exit(trace: TestTrace, time: u64, reason: i64) -> TestTrace {
    let fields = [
        ("common_pid", Field::Number(HOST_THREAD)),
        ("exit_reason", Field::Number(reason)),
        ("isa", Field::Number(2)),
        ("vcpu_id", Field::Number(0)),
    ];
    trace.host(0, time, "kvm:kvm_exit", &fields)
}

/// vCPU 0 (a tick is half a nanosecond):
///
/// | ticks | |
/// |---|---|
/// | 10000 | enters the guest |
/// | 11000 | the guest switches to `app` |
/// | 20000 | exit for port 0x3f8 |
/// | 22000 – 40000 | preempted by `hog` |
/// | 45000 – 50000 | in the VMM |
/// | 52000 | enters the guest |
/// | 60000 | `app` wakes `late`, and runs until 68000 in the guest's view |
/// | 61000 | exit for port 0x3f8, until 64000, handled by KVM |
/// | 68000 | `app` gives way to `late`: it sleeps |
/// | 70000 | `late` ends, the CPU is idle |
/// | 71000 – 90000 | halted: off the CPU from 72000, woken at 87000, on it from 88000 |
/// | 91000 | the last record |
#[must_use]
pub fn preempted_in_an_exit() -> TestTrace {
    preempted_and(|trace| trace)
}

/// The same, in which `then` follows the host's record of the preemption.
#[must_use]
pub fn preempted_and(then: impl FnOnce(TestTrace) -> TestTrace) -> TestTrace {
    let (vcpu, hog, idle) = ((HOST_THREAD, "vcpu0"), (HOG, "hog"), (0, "swapper/0"));
    let (app, late) = ((10, "app"), (11, "late"));
    let number = Field::Number;
    let mut trace = TestTrace::new();
    trace = host_switch(trace, 9_000, idle, 0, vcpu);
    trace = entry(trace, 10_000);
    trace = guest_switch(trace, 11_000, idle, 0, app);
    trace = exit(trace, 20_000, IOIO);
    trace = host_switch(trace, 22_000, vcpu, 0x100, hog);
    trace = then(trace);
    trace = host_switch(trace, 40_000, hog, 1, vcpu);
    trace = trace.vmm(0, 45_000, "vmm:vcpu_exit", &[("vcpu", number(0)), ("reason", number(2))]);
    trace = trace.vmm(0, 46_000, "vmm:port_access", &[("vcpu", number(0)), ("port", number(0x3f8))]);
    trace = trace.vmm(0, 50_000, "vmm:vcpu_enter", &[("vcpu", number(0))]);
    trace = entry(trace, 52_000);
    let late_fields = [("comm", Field::Text("late")), ("pid", number(11)), ("target_cpu", number(0))];
    trace = trace.guest(0, 60_000, "sched:sched_waking", &late_fields);
    trace = exit(trace, 61_000, IOIO);
    trace = entry(trace, 64_000);
    trace =
        trace.guest(0, 65_000, "raw_syscalls:sys_enter", &[("id", number(230)), ("args", Field::Arguments([0, 0]))]);
    trace = guest_switch(trace, 68_000, app, 1, late);
    trace = guest_switch(trace, 70_000, late, 0x10, idle);
    trace = exit(trace, 71_000, HLT);
    trace = host_switch(trace, 72_000, vcpu, 1, idle);
    let waking = [
        ("common_pid", number(0)),
        ("comm", Field::Text("vcpu0")),
        ("pid", number(HOST_THREAD)),
        ("target_cpu", number(0)),
    ];
    trace = trace.host(0, 87_000, "sched:sched_waking", &waking);
    trace = host_switch(trace, 88_000, idle, 0, vcpu);
    trace = entry(trace, 90_000);
    let timer = [("vector", number(236))];
    trace.guest(0, 91_000, "irq_vectors:local_timer_entry", &timer)
}
