use super::*;
use strata_analysis::event::Decoder;
use strata_analysis::event::name::RECORDING_STOPS;
use strata_recording::reader::merge::{Merge, Step};
use strata_recording::test_trace::Field::{Hex, Number, Text};
use strata_recording::test_trace::TestTrace;

fn enter(trace: TestTrace, time: u64, id: i64) -> TestTrace {
    trace.guest(0, time, "raw_syscalls:sys_enter", &[("id", Number(id))])
}

fn exit(trace: TestTrace, time: u64, id: i64) -> TestTrace {
    trace.guest(0, time, "raw_syscalls:sys_exit", &[("id", Number(id)), ("ret", Number(0))])
}

fn softirq(trace: TestTrace, time: u64, name: &'static str) -> TestTrace {
    trace.guest(0, time, name, &[("vec", Number(1))])
}

fn irq(trace: TestTrace, time: u64, name: &'static str) -> TestTrace {
    trace.guest(0, time, name, &[("irq", Number(4))])
}

const SOFTIRQ: [&str; 2] = ["irq:softirq_entry", "irq:softirq_exit"];
const IRQ: [&str; 2] = ["irq:irq_handler_entry", "irq:irq_handler_exit"];

/// A trace in which task 7 runs on CPU 0 after a whole call and a whole soft interrupt.
fn running() -> TestTrace {
    let trace = TestTrace::new().switch(0, 1, 0, 7);
    let trace = softirq(softirq(trace, 2, SOFTIRQ[0]), 3, SOFTIRQ[1]);
    exit(enter(trace, 4, 0), 5, 0)
}

fn found(trace: TestTrace) -> (Vec<PairCount>, Vec<Alone>) {
    found_by(Pairs::new(vec![100, 101], 20, 10), trace)
}

fn found_by(mut pairs: Pairs, trace: TestTrace) -> (Vec<PairCount>, Vec<Alone>) {
    let (_dir, trace) = trace.open();
    let mut decoder = Decoder::default();
    let mut merge = Merge::new(trace.layers(), 0);
    let streams: Vec<_> = merge.streams().collect();
    while let Some(step) = merge.next_step() {
        match step {
            Step::Record(merged) => decoder.event(&merged).into_iter().for_each(|event| pairs.record(&merged, &event)),
            Step::GapBegin { source, .. } => {
                let (layer, stream) = streams[source];
                pairs.begin_gap(layer.description.kind, stream.description.cpu_id);
            }
            Step::GapEnd { source, .. } => {
                let (layer, stream) = streams[source];
                pairs.end_gap(layer.description.kind, stream.description.cpu_id);
            }
        }
    }
    pairs.finish()
}

/// Balanced, explained and unbalanced events of `pair`.
fn counts(found: &(Vec<PairCount>, Vec<Alone>), pair: Pair) -> (u64, u64, u64) {
    let count = found.0.iter().find(|count| count.pair == pair).unwrap();
    (count.balanced, count.explained, count.unbalanced)
}

#[test]
fn whole_pairs_are_counted() {
    let found = found(running());

    assert_eq!((counts(&found, Pair::Syscall), counts(&found, Pair::Softirq)), ((1, 0, 0), (1, 0, 0)));
    assert!(found.1.is_empty());
}

#[test]
fn call_inside_a_call_is_a_violation() {
    let found = found(exit(enter(enter(running(), 10, 0), 20, 1), 30, 1));

    assert_eq!(counts(&found, Pair::Syscall), (2, 0, 1));
    assert_eq!((found.1[0].time, &*found.1[0].what), (20, "task 7 begins a call, but has not returned from read"));
    assert!(found.1[0].stream.ends_with("stream_0"), "{:?}", found.1);
}

#[test]
fn return_from_another_call_is_a_violation() {
    let found = found(exit(enter(running(), 10, 0), 20, 1));

    assert_eq!(counts(&found, Pair::Syscall), (1, 0, 1));
    assert_eq!(found.1[0].what, "task 7 returns from write, but is in read");
}

#[test]
fn loss_explains_what_is_alone() {
    let lost = |trace: TestTrace| trace.lost(LayerKind::GuestKernel, 0, 1).switch(0, 15, 7, 7);
    let trace = exit(enter(lost(enter(running(), 10, 0)), 20, 1), 30, 1);

    let found = found(trace);

    assert_eq!(counts(&found, Pair::Syscall), (2, 1, 0));
}

#[test]
fn call_that_another_cpus_open_gap_may_have_ended_is_not_matched() {
    let call = |trace: TestTrace, time, id| trace.guest(0, time, "raw_syscalls:sys_enter", &[("id", Number(id))]);
    let other = |trace: TestTrace, time| trace.guest(1, time, "test:other", &[]);
    // Task 7 begins a call on CPU 0, returns on CPU 1 while records of that are lost, and begins another one.
    let trace = call(other(running(), 8), 10, 0).lost(LayerKind::GuestKernel, 1, 2);
    let trace = other(call(trace, 20, 1), 30);

    let found = found(exit(enter(exit(trace, 40, 1), 50, 2), 60, 2));

    assert_eq!(counts(&found, Pair::Syscall).2, 0, "{found:?}");
    assert_eq!(counts(&found, Pair::Syscall).0, 1, "{found:?}");
}

#[test]
fn returns_of_another_abi_belong_to_another_call() {
    let call = |trace: TestTrace, time, event, id, abi| {
        trace.guest(0, time, event, &[("id", Number(id)), ("abi", Number(abi))])
    };
    let [enter, exit] = ["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"];
    let running = call(call(TestTrace::new().switch(0, 1, 0, 7), 2, enter, 0, 0), 3, exit, 0, 0);

    // A program of one ABI that begins one of the other; then a number that means another call on return.
    let begun = call(call(running, 10, enter, 59, 0), 11, exit, 11, 1);
    let found = found(call(call(begun, 20, enter, 4, 1), 21, exit, 4, 0));

    let (pairs, alone) = &found;
    assert_eq!(counts(&found, Pair::Syscall), (2, 0, 1), "{pairs:?}");
    assert_eq!(alone[0].what, "task 7 returns from stat, but is in i386:write");
}

#[test]
fn change_of_the_recorded_events_explains_what_is_alone() {
    let changed = |trace: TestTrace| trace.vmm(2, 15, "vmm:control", &[("what", Text("events_off"))]);
    let trace = exit(enter(changed(enter(running(), 10, 0)), 20, 1), 30, 1);

    assert_eq!(counts(&found(trace), Pair::Syscall), (2, 1, 0));
}

#[test]
fn calls_that_do_not_return_as_they_began_are_known() {
    // exit_group, then a task of the same number whose first event is a return.
    let trace = enter(running(), 10, 231).guest(0, 11, "sched:sched_process_exit", &[("pid", Number(7))]);
    let trace = exit(trace, 20, 56);
    // A return from a signal handler.
    let trace = exit(enter(trace, 30, 15), 40, -1);

    let found = found(trace);

    assert_eq!(counts(&found, Pair::Syscall), (2, 2, 0));
}

fn stops(trace: TestTrace, cpu: u32, time: u64, offline: i64) -> TestTrace {
    trace.guest(cpu, time, RECORDING_STOPS, &[("offline", Number(offline))])
}

#[test]
fn agent_that_is_unloaded_explains_what_is_alone() {
    // The agent goes and comes back; the call that removed it does not return.
    let removed = stops(enter(running(), 10, 176), 0, 11, 0);
    let trace = exit(enter(removed.switch(0, 20, 7, 7), 30, 1), 40, 1);

    assert_eq!(counts(&found(trace), Pair::Syscall), (2, 1, 0));
}

#[test]
fn removal_of_another_module_hides_no_violation() {
    let trace = enter(enter(running(), 10, 176), 20, 1);

    let found = found(exit(trace, 30, 0));

    assert_eq!(counts(&found, Pair::Syscall), (1, 0, 2));
}

#[test]
fn tasks_are_matched_while_a_cpu_is_offline_and_not_while_its_agent_is_unloaded() {
    let trace = |offline| {
        let stopped = stops(running().switch(1, 6, 0, 8), 1, 10, offline).switch(0, 15, 7, 7);
        exit(enter(stopped, 20, 0), 30, 1)
    };

    let [offline, unloaded] = [1, 0].map(|offline| counts(&found(trace(offline)), Pair::Syscall));

    assert_eq!((offline, unloaded), ((1, 0, 1), (1, 0, 0)));
}

#[test]
fn task_of_a_preemptible_rt_kernel_is_switched_while_it_handles_a_soft_interrupt() {
    let trace = || {
        let begun = softirq(running(), 10, SOFTIRQ[0]).switch(0, 20, 7, 8);
        let other = softirq(softirq(begun, 21, SOFTIRQ[0]), 22, SOFTIRQ[1]).switch(0, 30, 8, 7);
        softirq(other, 31, SOFTIRQ[1])
    };
    let pairs = Pairs::new(vec![100, 101], 20, 10);

    let preemptible = found_by(pairs.with_preemptible_soft_interrupts(), trace());

    assert_eq!(counts(&preemptible, Pair::Softirq), (3, 0, 0));
    assert_ne!(counts(&found(trace()), Pair::Softirq).2, 0);
}

#[test]
fn exec_in_a_thread_takes_the_first_threads_number() {
    let trace = enter(running().switch(0, 6, 7, 8), 10, 59);
    let exec = [("pid", Number(7)), ("old_pid", Number(8))];
    let trace = trace.guest(0, 20, "sched:sched_process_exec", &exec).switch(0, 30, 7, 7);

    assert_eq!(counts(&found(exit(trace, 40, 59)), Pair::Syscall), (2, 0, 0));
}

#[test]
fn nested_interrupts_are_whole_and_crossed_ones_are_not() {
    let nested = softirq(running(), 10, SOFTIRQ[0]);
    let nested = softirq(irq(irq(nested, 11, IRQ[0]), 12, IRQ[1]), 13, SOFTIRQ[1]);
    let crossed = |trace: TestTrace| irq(softirq(trace, 20, SOFTIRQ[0]), 21, IRQ[0]);

    let whole = found(softirq(irq(irq(softirq(running(), 10, SOFTIRQ[0]), 11, IRQ[0]), 12, IRQ[1]), 13, SOFTIRQ[1]));
    let crossed = found(softirq(crossed(nested), 22, SOFTIRQ[1]));

    assert_eq!((counts(&whole, Pair::Softirq), counts(&whole, Pair::Irq)), ((2, 0, 0), (1, 0, 0)));
    assert_eq!(counts(&crossed, Pair::Irq), (1, 0, 1));
}

#[test]
fn exit_before_the_tracepoint_of_its_entry_is_enabled_is_explained() {
    let vector = |trace: TestTrace, time, name| trace.guest(0, time, name, &[("vector", Number(251))]);
    let [entry, exit] = ["irq_vectors:call_function_single_entry", "irq_vectors:call_function_single_exit"];

    let early = found(vector(running(), 10, exit));
    let late = found(vector(vector(vector(running(), 10, entry), 11, exit), 12, exit));

    assert_eq!((counts(&early, Pair::Vector), counts(&late, Pair::Vector)), ((0, 1, 0), (1, 0, 1)));
}

#[test]
fn interrupt_that_has_not_ended_when_tasks_are_switched_is_a_violation() {
    let found = found(softirq(running(), 10, SOFTIRQ[0]).switch(0, 20, 7, 0));

    assert_eq!(counts(&found, Pair::Softirq), (1, 0, 1));
}

#[test]
fn halves_at_the_ends_of_the_recording_are_explained() {
    let trace = softirq(TestTrace::new(), 1, SOFTIRQ[1]);

    let found = found(softirq(exit(trace, 2, 0).switch(0, 3, 0, 7), 4, SOFTIRQ[0]));

    assert_eq!(counts(&found, Pair::Softirq), (0, 1, 0));
}

#[test]
fn vcpu_leaves_the_guest_once_per_entry() {
    let entry = |trace: TestTrace, time| trace.host(0, time, "kvm:kvm_entry", &[("common_pid", Number(100))]);
    let exit = |trace: TestTrace, time| trace.host(0, time, "kvm:kvm_exit", &[("common_pid", Number(100))]);

    // Entered again without an exit, as KVM does; then left twice.
    let found = found(exit(exit(entry(entry(exit(TestTrace::new(), 1), 2), 3), 4), 5));

    assert_eq!(counts(&found, Pair::GuestEntry), (1, 2, 1));
}

#[test]
fn runs_of_a_vcpu_alternate() {
    let begin = |trace: TestTrace, time| trace.vmm(0, time, "vmm:vcpu_enter", &[("vcpu", Number(0))]);
    let end = |trace: TestTrace, time| trace.vmm(0, time, "vmm:vcpu_exit", &[("vcpu", Number(0))]);

    let found = found(begin(begin(end(begin(TestTrace::new(), 1), 2), 3), 4));

    assert_eq!(counts(&found, Pair::Run), (1, 0, 1));
    assert_eq!(found.1[0].what, "a run of vCPU 0 begins twice");
}

/// A switch of CPU 1 away from task 8, which sleeps in `state`.
fn sleeps(trace: TestTrace, time: u64, state: u64) -> TestTrace {
    let fields = [("prev_pid", Number(8)), ("prev_state", Hex(state)), ("next_pid", Number(0))];
    trace.guest(1, time, "test:first", &[]).guest(1, time + 1, "sched:sched_switch", &fields)
}

fn runs(trace: TestTrace, time: u64, prev: i64, next: i64) -> TestTrace {
    let fields = [("prev_pid", Number(prev)), ("prev_state", Hex(0)), ("next_pid", Number(next))];
    trace.guest(1, time, "sched:sched_switch", &fields)
}

fn wakes(trace: TestTrace, time: u64) -> TestTrace {
    trace.guest(0, time, "sched:sched_wakeup", &[("pid", Number(8))])
}

#[test]
fn sleeper_runs_after_it_was_woken() {
    let first = wakes(TestTrace::new(), 1);

    let found = found(runs(wakes(sleeps(first, 10, 2), 20), 30, 0, 8));

    assert_eq!(counts(&found, Pair::Wakeup), (1, 0, 0));
}

#[test]
fn sleeper_that_runs_before_it_is_woken_is_a_violation_beyond_the_clocks_error() {
    let sleeping = || sleeps(wakes(TestTrace::new(), 1), 10, 2);

    let within = found(runs(wakes(runs(sleeping(), 30, 0, 8), 50), 60, 8, 0));
    let beyond = found(runs(wakes(runs(sleeping(), 30, 0, 8), 51), 60, 8, 0));

    assert_eq!(counts(&within, Pair::Wakeup), (1, 0, 0));
    assert_eq!(counts(&beyond, Pair::Wakeup), (0, 0, 1));
}

#[test]
fn sleeper_may_have_been_woken_by_a_cpu_that_goes_offline() {
    let trace = runs(sleeps(stops(wakes(TestTrace::new(), 1), 0, 5, 1), 10, 2), 30, 0, 8);

    let (_, alone) = found(runs(trace, 60, 8, 0));

    assert!(alone.is_empty(), "{alone:?}");
}

#[test]
fn sleeper_that_is_being_killed_may_run_unwoken() {
    let trace = runs(runs(sleeps(wakes(TestTrace::new(), 1), 10, 2), 30, 0, 8), 40, 8, 8);

    let found = found(trace.guest(1, 50, "sched:sched_process_exit", &[("pid", Number(8))]));

    assert_eq!(counts(&found, Pair::Wakeup), (0, 1, 0));
}

#[test]
fn tasks_that_ran_unwoken_are_counted_each_time_and_kept_once() {
    let again = |trace, time| runs(runs(sleeps(trace, time, 2), time + 20, 0, 8), time + 30, 8, 8);
    let trace = again(again(wakes(TestTrace::new(), 1), 10), 100);

    let alive = found(trace);

    assert_eq!(counts(&alive, Pair::Wakeup), (0, 0, 2));
    assert_eq!(alive.1.len(), 1, "{:?}", alive.1);
}
