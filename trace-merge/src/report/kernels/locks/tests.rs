use super::*;
use strata_analysis::names::lock::flag;
use strata_recording::layer::LayerKind;
use strata_recording::test_trace::Field::{Arguments, Hex, Number, Stack};
use strata_recording::test_trace::TestTrace;

const ALL: Window = Window { begin: 0, end: u64::MAX };
const LOCK: u64 = 0xffff_ffff_8200_0000;

fn begin(trace: TestTrace, cpu: u32, time: u64, lock: u64, flags: u64) -> TestTrace {
    trace.guest(cpu, time, "lock:contention_begin", &[("lock_addr", Hex(lock)), ("flags", Hex(flags))])
}

fn end(trace: TestTrace, cpu: u32, time: u64, lock: u64) -> TestTrace {
    trace.guest(cpu, time, "lock:contention_end", &[("lock_addr", Hex(lock)), ("ret", Number(0))])
}

fn enter(trace: TestTrace, time: u64, id: i64, arg0: u64, arg1: u64) -> TestTrace {
    trace.guest(0, time, "raw_syscalls:sys_enter", &[("id", Number(id)), ("args", Arguments([arg0, arg1]))])
}

fn exit(trace: TestTrace, time: u64, id: i64, ret: i64) -> TestTrace {
    trace.guest(0, time, "raw_syscalls:sys_exit", &[("id", Number(id)), ("ret", Number(ret))])
}

/// A trace in which task 7 runs on CPU 0 and task 8 on CPU 1.
fn running() -> TestTrace {
    TestTrace::new().switch(0, 1, 0, 7).switch(1, 2, 0, 8)
}

fn guest(trace: TestTrace) -> GuestLocks {
    let (_dir, trace) = trace.open();
    report(&trace, ALL).unwrap().guests.remove(0)
}

/// Number, sum and longest, ns.
fn sums(waits: &Times) -> (u64, u64, u64) {
    assert_eq!(waits.histogram.bins.iter().map(|bin| bin.1).sum::<u64>(), waits.count);
    (waits.count, waits.total_ns, waits.max_ns)
}

#[test]
fn waits_are_summed_by_lock_and_context() {
    let trace = end(begin(enter(running(), 5, 1, 0, 0), 0, 10, LOCK, flag::SPIN), 0, 110, LOCK);
    let trace = end(begin(trace, 0, 200, LOCK, flag::SPIN), 0, 500, LOCK);

    let guest = guest(end(begin(trace, 1, 600, LOCK + 64, flag::WRITE), 1, 640, LOCK + 64));

    let rows: Vec<_> =
        guest.kernel.iter().map(|row| (row.address, &*row.kind, &*row.context, sums(&row.waits))).collect();
    let first = (2, 200, 150);
    let second = (1, 20, 20);
    assert_eq!(rows, [(LOCK, "spinlock", "write", first), (LOCK + 64, "rwsem (write)", "-", second)]);
    assert_eq!((guest.kernel[0].waiters[0].pid, guest.kernel[1].waiters[0].pid), (7, 8));
}

#[test]
fn mutex_that_spins_and_then_sleeps_is_waited_for_once() {
    let trace = begin(begin(running(), 0, 10, LOCK, flag::MUTEX | flag::SPIN), 0, 50, LOCK, flag::MUTEX);
    let trace = trace.switch(0, 60, 7, 0).switch(0, 200, 0, 7);

    let guest = guest(end(trace, 0, 210, LOCK));

    assert_eq!(guest.kernel.len(), 1);
    assert_eq!(sums(&guest.kernel[0].waits), (1, 100, 100));
    assert_eq!(guest.kernel[0].kind, "mutex");
}

#[test]
fn wait_in_an_interrupt_lies_inside_that_of_the_task() {
    let trace = begin(running(), 0, 10, LOCK, flag::MUTEX);
    let trace = begin(trace.guest(0, 20, "irq:softirq_entry", &[("vec", Number(1))]), 0, 30, LOCK + 8, flag::SPIN);
    let trace = end(trace, 0, 50, LOCK + 8).guest(0, 60, "irq:softirq_exit", &[("vec", Number(1))]);

    let guest = guest(end(trace, 0, 110, LOCK));

    let rows: Vec<_> = guest.kernel.iter().map(|row| (row.address, &*row.context, row.waits.total_ns)).collect();
    assert_eq!(rows, [(LOCK, "-", 50), (LOCK + 8, "interrupt", 10)]);
}

#[test]
fn waits_without_an_end_or_across_lost_records_are_counted_apart() {
    let trace = begin(running(), 0, 10, LOCK, 0).lost(LayerKind::GuestKernel, 0, 1);
    let trace = begin(end(trace, 0, 20, LOCK).switch(0, 30, 7, 7), 1, 40, LOCK, 0);

    let guest = guest(trace);

    assert_eq!((guest.kernel.len(), guest.unfinished), (0, 2));
}

#[test]
fn context_is_unknown_until_something_tells_it_where_the_beginning_was_overwritten() {
    let overwritten = TestTrace::new().lost(LayerKind::GuestKernel, 0, 9).lost(LayerKind::GuestKernel, 1, 9);
    let trace = end(begin(overwritten.switch(0, 1, 0, 7), 0, 10, LOCK, 0), 0, 30, LOCK);
    let trace = exit(trace, 40, 1, 0);

    let guest = guest(end(begin(trace, 0, 50, LOCK, 0), 0, 60, LOCK));

    let rows: Vec<_> = guest.kernel.iter().map(|row| (&*row.context, row.waits.total_ns)).collect();
    assert_eq!((rows, guest.unfinished), (vec![("unknown", 10), ("-", 5)], 0));
}

#[test]
fn lock_that_is_a_variable_has_its_name() {
    let trace = end(begin(running(), 0, 10, LOCK + 4, 0), 0, 20, LOCK + 4);
    let (_dir, trace) = trace.symbol(30, LOCK, "tasklist_lock").open();

    let report = report(&trace, ALL).unwrap();

    assert_eq!(report.guests[0].kernel[0].name.as_deref(), Some("tasklist_lock+0x4"));
}

#[test]
fn call_sites_of_one_lock_are_rows_of_their_own() {
    const STACKS: [&[u64]; 2] = [&[0xffff_ffff_8100_0010, 0xffff_ffff_8100_0100], &[0xffff_ffff_8100_0210]];
    let wait = |trace: TestTrace, time: u64, stack: &'static [u64]| {
        let trace =
            begin(trace, 0, time, LOCK, flag::SPIN).guest(0, time + 1, "strata:stack", &[("stack", Stack(stack))]);
        end(trace, 0, time + 10 * stack.len() as u64, LOCK)
    };
    let functions =
        [(0xffff_ffff_8100_0000, "inner"), (0xffff_ffff_8100_0080, "outer"), (0xffff_ffff_8100_0200, "other")];
    let trace = wait(wait(running(), 10, STACKS[0]), 40, STACKS[1]);
    let trace = functions.iter().fold(trace, |trace, &(begin, name)| trace.symbol(100, begin, name));
    let (_dir, trace) = trace.open();

    let guest = report(&trace, ALL).unwrap().guests.remove(0);

    let sites: Vec<_> = guest.kernel.iter().map(|row| (row.calls.join(" "), row.waits.total_ns)).collect();
    assert_eq!(sites, [("inner+0x10 outer+0x80".into(), 10), ("other+0x10".into(), 5)]);
}

#[test]
fn futex_waits_are_distinguished_from_wakes_and_by_their_ends() {
    const FUTEX: i64 = 202;
    const PRIVATE: u64 = 128;
    let trace = exit(enter(running(), 10, FUTEX, 0x1000, PRIVATE), 210, FUTEX, 0);
    let trace = exit(enter(trace, 300, FUTEX, 0x1000, PRIVATE), 320, FUTEX, EAGAIN);
    let trace = exit(enter(trace, 400, FUTEX, 0x1000, PRIVATE), 500, FUTEX, ETIMEDOUT);
    let trace = exit(enter(trace, 600, FUTEX, 0x1000, PRIVATE | 1), 700, FUTEX, 1);

    let guest = guest(enter(trace, 800, FUTEX, 0x2000, PRIVATE | 9));

    let first = &guest.futexes[0];
    assert_eq!((first.pid, first.address, &*first.operation), (7, 0x1000, "wait"));
    assert_eq!(sums(&first.waits), (2, 150, 100));
    assert_eq!((first.timed_out, first.not_needed), (1, 1));
    assert_eq!((guest.futexes[1].unfinished, &*guest.futexes[1].operation), (1, "wait_bitset"));
}

#[test]
fn table_says_what_was_not_recorded() {
    let (_dir, trace) = exit(enter(running(), 10, 202, 0x1000, 0), 2010, 202, 0).open();
    let mut out = Vec::new();

    report(&trace, ALL).unwrap().write_text(&mut out).unwrap();

    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("locks of the guest's kernel were not recorded"), "{text}");
    assert!(text.contains("0x1000  wait       seven/7      1  1.000 µs"), "{text}");
}

#[test]
fn idle_tasks_of_two_cpus_are_distinguished() {
    let idle = TestTrace::new().switch(0, 1, 7, 0).switch(1, 2, 8, 0);
    let trace = begin(begin(idle, 0, 10, LOCK, flag::SPIN), 1, 20, LOCK, flag::SPIN);

    let guest = guest(end(end(trace, 1, 30, LOCK), 0, 110, LOCK));

    let waits: Vec<_> = guest.kernel.iter().map(|row| sums(&row.waits)).collect();
    assert_eq!(waits, [(2, 55, 50)]);
    assert_eq!(guest.unfinished, 0);
}
