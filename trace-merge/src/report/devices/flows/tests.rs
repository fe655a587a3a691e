use super::*;
use crate::report::devices::flow_step::FlowMilestone;
use strata_recording::layer::LayerKind;
use strata_recording::test_trace::Field::{Number, Text};
use strata_recording::test_trace::TestTrace;
use strata_recording::test_trace::disk_request::{
    Place, VDA, VDB, guest_block, handle, inject, interrupt, issue, kick, notified, serve, whole,
};

const ALL: Window = Window { begin: 0, end: u64::MAX };

fn flows(trace: TestTrace) -> VmFlows {
    let (_dir, trace) = trace.open();
    report(&trace, ALL).unwrap().vms.remove(0)
}

/// How long it took from the beginning to the notification.
fn kicked(flow: &Flow) -> Option<u64> {
    flow.steps.iter().find(|step| step.to == Milestone::Kicked).map(|step| step.ticks)
}

#[test]
fn request_is_followed_through_all_layers() {
    let flows = flows(whole(TestTrace::new(), 10_000, Place(VDA, 0, 64)));

    let flow = &flows.slowest[0];
    let steps: Vec<_> = flow.steps.iter().map(|step| (step.to.name(), step.ticks)).collect();
    let expected = [
        ("kicked", 20),
        ("picked up", 80),
        ("started", 10),
        ("finished", 600),
        ("raised", 10),
        ("injected", 80),
        ("handled", 50),
        ("completed", 5),
        ("woken", 3),
        ("running", 142),
    ];
    assert_eq!(steps, expected);
    assert_eq!((flow.ticks, flow.total_ns, flow.begin), (1000, 500, 10_000));
    assert_eq!((flow.device.as_deref(), flow.sector, flow.bytes, &*flow.kind), (Some("254:0"), 64, 4096, "read"));
    assert_eq!((flow.issuer.as_ref().unwrap().tid, flow.woken.as_ref().unwrap().tid), (7, 7));
}

#[test]
fn steps_of_every_request_add_up() {
    let trace = (0..12).fold(TestTrace::new(), |trace, index| {
        whole(trace, 10_000 + 2000 * index, Place(VDA, 0, 64 * index.cast_signed()))
    });

    let flows = flows(trace);

    assert_eq!((flows.total.count, flows.slowest.len(), flows.unfinished), (12, 10, 0));
    let sums = flows.slowest.iter().map(|flow| (flow.steps.iter().map(|step| step.ticks).sum::<u64>(), flow.ticks));
    assert!(sums.clone().all(|(sum, ticks)| sum == ticks), "{:?}", sums.collect::<Vec<_>>());
    let longest = flows.steps.iter().max_by_key(|step| step.times.total_ns).unwrap();
    assert_eq!((longest.from, longest.to, longest.times.p50_ns), (Milestone::Started, Milestone::Finished, 300));
}

#[test]
fn equal_requests_of_two_disks_are_distinguished() {
    let (first, second) = (Place(VDA, 0, 64), Place(VDB, 1, 64));
    let trace = issue(issue(TestTrace::new().switch(0, 9, 0, 7), 10, first), 11, second);
    let trace = serve(serve(trace, 100, 200, second), 300, 1400, first);
    let trace = handle(interrupt(interrupt(trace, 1410, first), 1411, second), 1500, second);

    let flows = flows(handle(trace, 1600, first));

    let devices: Vec<_> = flows.slowest.iter().map(|flow| (flow.device.as_deref(), flow.disk)).collect();
    assert_eq!(devices, [(Some("254:0"), 0), (Some("254:16"), 1)]);
    let served = |flow: &Flow| flow.steps.iter().find(|step| step.to == Milestone::Finished).unwrap().ticks;
    assert_eq!((served(&flows.slowest[0]), served(&flows.slowest[1])), (1100, 100));
}

#[test]
fn request_that_waits_behind_another_has_no_pick_up_of_its_own() {
    let (first, second) = (Place(VDA, 0, 64), Place(VDA, 0, 128));
    let trace = notified(kick(issue(TestTrace::new().switch(0, 9, 0, 7), 10, first), 20, 0xd0000), 30, first);
    let trace = serve(kick(issue(trace, 40, second), 50, 0xd0000), 60, 500, first);
    let trace = handle(interrupt(serve(trace, 510, 900, second), 910, first), 1000, second);

    let flows = flows(trace);

    let steps: Vec<_> = flows.slowest[0].steps.iter().map(|step| (step.from, step.to, step.ticks)).take(2).collect();
    assert_eq!(steps, [(Milestone::Issued, Milestone::Kicked, 10), (Milestone::Kicked, Milestone::Started, 460)]);
    assert_eq!(flows.unfinished, 1);
}

#[test]
fn without_the_guests_block_events_requests_begin_and_end_with_the_vmm() {
    let place = Place(VDA, 0, 64);
    let trace = interrupt(serve(notified(TestTrace::new(), 10, place), 20, 120, place), 130, place);
    let entry = [("irq", Number(24)), ("name", Text("virtio0"))];

    let flows = flows(inject(trace, 140).guest(0, 150, "irq:irq_handler_entry", &entry));

    assert!(!flows.guest_block_events);
    let steps: Vec<_> = flows.slowest[0].steps.iter().map(|step| (step.to, step.ticks)).collect();
    let expected = [
        (Milestone::Started, 10),
        (Milestone::Finished, 100),
        (Milestone::Raised, 10),
        (Milestone::Injected, 10),
        (Milestone::Handled, 10),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn requests_under_way_when_records_are_lost_are_not_followed() {
    let place = Place(VDA, 0, 64);
    let trace = issue(TestTrace::new().switch(0, 9, 0, 7), 10, place).lost(LayerKind::GuestKernel, 0, 1);
    let trace = serve(issue(trace, 40, Place(VDA, 0, 128)), 60, 100, place);

    let flows = flows(guest_block(trace, "block:block_rq_complete", 0, 200, place));

    assert_eq!((flows.total.count, flows.across_lost_records, flows.unfinished), (0, 1, 1));
}

#[test]
fn table_shows_the_steps_and_the_slowest() {
    let (_dir, trace) = whole(TestTrace::new(), 10_000, Place(VDA, 0, 64)).open();
    let mut out = Vec::new();

    report(&trace, ALL).unwrap().write_text(&mut out).unwrap();

    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("vm0: 1 disk request\n"), "{text}");
    assert!(text.contains("started → finished   VMM and host I/O"), "{text}");
    assert!(
        text.contains("1. 500 ns: read of 4096 bytes at sector 64 of disk 0 (254:0 in the guest) by seven/7"),
        "{text}"
    );
}

#[test]
fn request_that_another_cpu_completes_in_a_soft_interrupt_is_followed() {
    let place = Place(VDA, 0, 64);
    let woken = |trace: TestTrace, time, pid, comm| {
        trace.guest(0, time, "sched:sched_wakeup", &[("pid", Number(pid)), ("comm", Text(comm))])
    };
    let block_softirq = [("vec", Number(4))];
    let trace = issue(TestTrace::new().switch(0, 9, 0, 7), 10, place);
    let trace = interrupt(serve(notified(kick(trace, 30, 0xd0000), 50, place), 60, 160, place), 170, place);
    let trace = trace.host(1, 200, "kvm:kvm_inj_virq", &[("common_pid", Number(101)), ("vector", Number(0x22))]);
    let trace = trace.guest(1, 230, "irq:irq_handler_entry", &[("irq", Number(24)), ("name", Text("virtio0"))]);
    let trace = trace.guest(1, 240, "irq:irq_handler_exit", &[("irq", Number(24))]);
    let trace =
        guest_block(trace.guest(0, 250, "irq:softirq_entry", &block_softirq), "block:block_rq_complete", 0, 260, place);
    let trace = woken(woken(trace, 265, 15, "ksoftirqd/0"), 270, 7, "seven");
    let trace = trace.guest(0, 280, "irq:softirq_exit", &block_softirq).switch(0, 300, 0, 7);

    let flows = flows(trace);

    let flow = &flows.slowest[0];
    let steps: Vec<_> = flow.steps.iter().map(|step| (step.to.name(), step.ticks)).skip(4).collect();
    let expected =
        [("raised", 10), ("injected", 30), ("handled", 30), ("completed", 30), ("woken", 10), ("running", 30)];
    assert_eq!(steps, expected);
    assert_eq!((flow.ticks, flow.woken.as_ref().unwrap().tid), (290, 7));
}

#[test]
fn wakeup_in_an_interrupt_on_top_of_the_completion_is_not_the_requests() {
    let place = Place(VDA, 0, 64);
    let woken = |trace: TestTrace, time, pid| trace.guest(0, time, "sched:sched_wakeup", &[("pid", Number(pid))]);
    let [softirq, irq] = [[("vec", Number(4))], [("irq", Number(30))]];
    let trace = issue(TestTrace::new().switch(0, 5, 7, 8).switch(0, 9, 8, 7), 10, place);
    let trace = interrupt(serve(trace, 60, 160, place), 170, place).guest(0, 250, "irq:softirq_entry", &softirq);
    let trace = guest_block(trace, "block:block_rq_complete", 0, 260, place);
    let trace = woken(trace.guest(0, 262, "irq:irq_handler_entry", &irq), 264, 8);
    let trace = woken(trace.guest(0, 266, "irq:irq_handler_exit", &irq), 270, 7);
    let trace = trace.guest(0, 280, "irq:softirq_exit", &softirq).switch(0, 300, 0, 7);

    let flows = flows(trace);

    let flow = &flows.slowest[0];
    assert_eq!((flow.woken.as_ref().unwrap().tid, flow.ticks), (7, 290));
}

#[test]
fn notifications_of_another_kind_of_device_do_not_hide_those_of_a_disk() {
    // A network device's, before the disk is used.
    let trace = kick(TestTrace::new(), 1_000, 0xd0008);

    let flows = flows(whole(whole(trace, 10_000, Place(VDA, 0, 64)), 20_000, Place(VDA, 0, 128)));

    assert_eq!(
        flows.slowest.iter().map(|flow| (flow.sector, kicked(flow))).collect::<Vec<_>>(),
        [(64, None), (128, Some(20))]
    );
}

#[test]
fn disk_does_not_get_the_notifications_of_the_disk_that_was_notified_with_it() {
    let [first, second] = [Place(VDA, 0, 64), Place(VDB, 1, 64)];
    let trace = kick(kick(TestTrace::new(), 1_000, 0xd0000), 1_010, 0xd0001);
    let trace = notified(kick(notified(trace, 1_020, first), 1_030, 0xd0000), 1_040, second);

    let flows = flows(whole(whole(trace, 10_000, first), 20_000, second));

    assert_eq!(flows.slowest.iter().map(kicked).collect::<Vec<_>>(), [Some(20), Some(20)]);
}

#[test]
fn block_io_of_the_host_belongs_to_the_disk_whose_thread_issued_it() {
    let (first, second) = (Place(VDA, 0, 64), Place(VDB, 1, 64));
    let trace = TestTrace::new().strata_thread(200, "strata-disk0", 0).strata_thread(201, "strata-disk1", 0);
    let request = |trace: TestTrace, time, place: Place, done| {
        let fields = [("disk", Number(place.1)), ("kind", Text("read")), ("sector", Number(place.2))];
        let fields = [&fields[..], &[("bytes", Number(4096)), ("done", Number(done))]].concat();
        trace.vmm(2, time, "vmm:block_request", &fields)
    };
    let host_block = |trace: TestTrace, time, name, thread, sector| {
        let fields = [("common_pid", Number(thread)), ("dev", Number(8 << 20)), ("sector", Number(sector))];
        trace.host(0, time, name, &fields)
    };
    let trace = issue(issue(trace.switch(0, 9, 0, 7), 10, first), 11, second);
    let trace = request(request(trace, 100, first, 0), 110, second, 0);
    let trace = host_block(trace, 120, "block:block_rq_issue", 200, 1000);
    let trace = host_block(trace, 130, "block:block_rq_issue", 201, 2000);
    let trace = host_block(trace, 230, "block:block_rq_complete", 0, 2000);
    let trace = host_block(trace, 420, "block:block_rq_complete", 0, 1000);
    let trace = request(request(trace, 500, second, 1), 600, first, 1);
    let trace = handle(interrupt(trace, 610, second), 700, second);

    let flows = flows(handle(interrupt(trace, 720, first), 800, first));

    let times: Vec<_> = flows.slowest.iter().map(|flow| (flow.disk, flow.host_io_ns)).collect();
    assert_eq!(times, [(0, Some(150)), (1, Some(50))]);
}

/// Enters and leaves the handler of an interrupt on CPU 1.
fn handled_on_cpu_1(trace: TestTrace, time: u64, number: i64) -> TestTrace {
    let irq = [("irq", Number(number)), ("name", Text("virtio1"))];
    trace.guest(1, time, "irq:irq_handler_entry", &irq).guest(1, time + 1, "irq:irq_handler_exit", &irq[..1])
}

#[test]
fn interrupt_of_another_device_while_a_disk_has_answered_does_not_become_the_disks() {
    let request = |trace, index: u64| {
        let begin = 10_000 + 4_000 * index;
        let place = Place(VDA, 0, 64 * index.cast_signed());
        handled_on_cpu_1(whole(trace, begin, place), begin + 2_000, 30)
    };
    let first = Place(VDA, 0, 4096);
    let trace = interrupt(serve(issue(TestTrace::new().switch(0, 9, 0, 7), 10, first), 20, 120, first), 130, first);
    let trace = handle(handled_on_cpu_1(trace, 135, 30), 150, first);

    let flows = flows((0..8).fold(trace, request));

    let handled = |flow: &&Flow| flow.steps.iter().any(|step| (step.to, step.ticks) == (Milestone::Handled, 50));
    assert_eq!((flows.total.count, flows.slowest.iter().filter(handled).count()), (9, 8));
}

#[test]
fn request_that_an_interrupt_issues_is_not_of_the_task_that_it_came_upon() {
    let place = Place(VDA, 0, 64);
    let [softirq, done] = [[("vec", Number(4))], [("vec", Number(4))]];
    let trace = TestTrace::new().switch(0, 5, 0, 7).guest(0, 9, "irq:softirq_entry", &softirq);
    let trace = issue(trace, 10, place).guest(0, 12, "irq:softirq_exit", &done);

    let flows = flows(handle(interrupt(serve(trace, 60, 160, place), 170, place), 200, place));

    assert_eq!(flows.slowest[0].issuer, None);
}
