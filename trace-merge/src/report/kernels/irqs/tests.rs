use super::*;
use crate::report::statistics::histogram::Histogram;
use strata_recording::test_trace::Field::{Number, Text};
use strata_recording::test_trace::TestTrace;

const ALL: Window = Window { begin: 0, end: u64::MAX };

fn irq(trace: TestTrace, cpu: u32, begin: u64, end: u64) -> TestTrace {
    trace.guest(cpu, begin, "irq:irq_handler_entry", &[("irq", Number(25)), ("name", Text("ttyS0"))]).guest(
        cpu,
        end,
        "irq:irq_handler_exit",
        &[("irq", Number(25)), ("ret", Number(1))],
    )
}

fn softirq(trace: TestTrace, time: u64, is_entry: bool) -> TestTrace {
    let name = if is_entry { "irq:softirq_entry" } else { "irq:softirq_exit" };
    trace.guest(0, time, name, &[("vec", Number(1))])
}

fn timer(trace: TestTrace, time: u64) -> TestTrace {
    trace.guest(0, time, "irq_vectors:local_timer_entry", &[("vector", Number(236))])
}

/// A trace whose guest records on both vCPUs.
fn recorded() -> TestTrace {
    TestTrace::new().guest(0, 1, "test:tick", &[]).guest(1, 2, "test:tick", &[])
}

fn accepted(trace: TestTrace, time: u64, vector: i64) -> TestTrace {
    let fields = [("common_pid", Number(9)), ("apicid", Number(0)), ("vec", Number(vector))];
    trace.host(0, time, "kvm:kvm_apic_accept_irq", &fields)
}

fn injected(trace: TestTrace, time: u64, vector: i64) -> TestTrace {
    let fields =
        [("common_pid", Number(100)), ("vector", Number(vector)), ("soft", Number(0)), ("reinjected", Number(0))];
    trace.host(0, time, "kvm:kvm_inj_virq", &fields)
}

fn made(trace: TestTrace) -> IrqsReport {
    let (_dir, trace) = trace.open();
    report(&trace, ALL).unwrap()
}

fn row(report: &IrqsReport, kind: InterruptKind) -> &Interrupt {
    report.handled[0].interrupts.iter().find(|row| row.kind == kind).unwrap()
}

#[test]
fn interrupts_are_timed_by_cpu_and_those_inside_are_part_of_the_outer() {
    let trace = softirq(TestTrace::new(), 10, true);
    let trace = softirq(irq(trace, 0, 20, 40), 110, false);

    let report = made(irq(trace, 1, 200, 206));

    let irq = row(&report, InterruptKind::Irq);
    assert_eq!((irq.number, &*irq.name), (25, "ttyS0"));
    // A tick is half a nanosecond.
    let histogram =
        Histogram { from_ns: 3, bins: vec![(3, 1), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (10, 0), (12, 1)] };
    assert_eq!(irq.times, Times { count: 2, total_ns: 13, max_ns: 10, histogram });
    let times = Times { count: 1, total_ns: 3, max_ns: 3, histogram: irq.cpus[1].times.histogram.clone() };
    assert_eq!(irq.cpus[1], CpuTimes { cpu: 1, times, unfinished: 0 });
    let softirq = row(&report, InterruptKind::Softirq);
    assert_eq!((&*softirq.name, softirq.times.total_ns), ("timer", 50));
}

#[test]
fn entries_and_exits_alone_are_counted_apart() {
    let trace = softirq(softirq(TestTrace::new(), 5, false), 10, true);
    let trace = trace.lost(LayerKind::GuestKernel, 0, 1);
    let trace = softirq(irq(softirq(trace, 20, true), 0, 30, 40), 50, false);

    let report = made(softirq(trace, 60, true));

    let row = row(&report, InterruptKind::Softirq);
    assert_eq!((row.times.count, row.times.total_ns, row.times.max_ns, row.unfinished), (1, 15, 15, 3));
}

#[test]
fn injected_timer_is_matched_by_its_vector() {
    let trace = injected(accepted(recorded(), 100, 236), 140, 236);

    let report = made(timer(softirq(softirq(trace, 150, true), 160, false), 240));

    let vector = &report.injected[0].vectors[0];
    assert_eq!((vector.vector, &*vector.handlers, vector.injected), (236, &["local_timer".to_string()][..], 1));
    assert_eq!((vector.pending.max_ns, vector.delivery.max_ns, vector.delivery.count), (20, 50, 1));
}

#[test]
fn injected_device_interrupt_is_matched_with_the_next_handler_of_its_vcpu() {
    let trace = irq(injected(recorded(), 100, 0x22), 1, 110, 115);

    let report = made(irq(trace, 0, 300, 400));

    let vector = &report.injected[0].vectors[0];
    assert_eq!((&*vector.handlers, vector.delivery.p50_ns), (&["ttyS0".to_string()][..], 100));
}

#[test]
fn injection_without_a_handler_is_not_timed() {
    let trace = injected(injected(recorded(), 100, 236), 200, 236);

    let report = made(timer(trace, 260));

    let vector = &report.injected[0].vectors[0];
    assert_eq!((vector.injected, vector.delivery.count, vector.delivery.max_ns), (2, 1, 30));
}

#[test]
fn injections_are_kept_as_often_as_they_are_counted() {
    let before_the_guest_records = injected(TestTrace::new(), 0, 0x30);
    let trace = before_the_guest_records.guest(0, 1, "test:tick", &[]);
    let handled = timer(injected(accepted(trace, 60, 236), 100, 236), 140);
    let (_dir, trace) = injected(injected(handled, 200, 236), 300, 0x31).open();
    let report = report(&trace, ALL).unwrap();
    let mut times = InterruptTimes::keeping_ended();

    let _ = strata_analysis::pass(&trace, ALL, &mut [&mut times]);

    let kept: Vec<_> =
        times.take_injected(true).map(|kept| (kept.vector, kept.pending, kept.begin, kept.end)).collect();
    assert_eq!(
        kept,
        [(0x30, None, 0, None), (236, Some(40), 100, Some(140)), (236, None, 200, None), (0x31, None, 300, None)]
    );
    assert_eq!(report.injected[0].vectors.iter().map(|vector| vector.injected).sum::<u64>(), kept.len() as u64);
}

#[test]
fn injection_before_the_guest_records_is_counted_but_waits_for_no_handler() {
    let trace = irq(injected(TestTrace::new(), 100, 0x22), 0, 900, 910);

    let report = made(trace);

    assert_eq!((report.injected[0].vectors[0].injected, report.injected[0].vectors[0].delivery.count), (1, 0));
}

#[test]
fn injections_of_other_threads_are_not_this_vms() {
    let fields = [("common_pid", Number(77)), ("vector", Number(236)), ("soft", Number(0)), ("reinjected", Number(0))];
    let trace = softirq(TestTrace::new(), 10, true).host(0, 20, "kvm:kvm_inj_virq", &fields);

    assert!(made(trace).injected.is_empty());
}

#[test]
fn table_shows_both_halves() {
    let (_dir, trace) = timer(injected(irq(TestTrace::new(), 0, 1, 3), 100, 236), 300).open();
    let mut out = Vec::new();

    report(&trace, ALL).unwrap().write_text(&mut out).unwrap();

    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("irq         25  ttyS0            1  1 ns     1 ns           0  0: 1\n"), "{text}");
    assert!(text.contains("0xec    local_timer         1"), "{text}");
}

#[test]
fn interrupt_that_is_injected_again_is_delivered_from_the_first_time_on() {
    let fields = [("common_pid", Number(100)), ("vector", Number(236)), ("soft", Number(0)), ("reinjected", Number(1))];
    let trace = injected(recorded(), 100, 236).host(0, 140, "kvm:kvm_inj_virq", &fields);

    let report = made(timer(trace, 240));

    let vector = &report.injected[0].vectors[0];
    assert_eq!((vector.injected, vector.reinjected), (1, 1));
    assert_eq!((vector.delivery.count, vector.delivery.max_ns), (1, 70));
}
