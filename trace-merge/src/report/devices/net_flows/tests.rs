use super::*;
use strata_recording::layer::LayerKind;
use strata_recording::test_trace::Field::{Number, Text};
use strata_recording::test_trace::TestTrace;
use strata_recording::test_trace::packet::{
    RECEIVE, SEND, deliver, give, handle, in_vmm, kick, of_queue, packet, pass_up, receive, send, softirq_exit,
    there_and_back,
};

fn flows(trace: TestTrace) -> VmNetFlows {
    let (_dir, trace) = trace.open();
    report(&trace, Window::ALL).unwrap().vms.remove(0)
}

fn steps(flow: &PacketFlow) -> Vec<(&'static str, u64)> {
    flow.steps.iter().map(|step| (step.to.name(), step.ticks)).collect()
}

#[test]
fn packet_is_followed_from_the_guests_task_to_the_hosts_tap() {
    let flows = flows(there_and_back(TestTrace::new(), 10_000, 1));

    let flow = &flows.sent.slowest[0];
    let expected = [
        ("queued", 100),
        ("given to the driver", 10),
        ("kicked", 20),
        ("picked up", 70),
        ("taken", 10),
        ("on the tap", 5),
        ("sent", 15),
    ];
    assert_eq!(steps(flow), expected);
    assert_eq!((flow.ticks, flow.total_ns, flow.begin), (230, 115, 10_000));
    assert_eq!((flow.net, flow.id, flow.bytes, flow.device.as_deref()), (0, 1, 98, Some("eth0")));
    assert_eq!(flow.task.as_ref().unwrap().tid, 7);
}

#[test]
fn packet_is_followed_from_the_hosts_tap_to_the_guests_task() {
    let flows = flows(there_and_back(TestTrace::new(), 10_000, 1));

    let flow = &flows.received.slowest[0];
    let expected = [
        ("noticed", 50),
        ("read", 10),
        ("delivered", 10),
        ("raised", 5),
        ("injected", 75),
        ("handled", 50),
        ("polled", 20),
        ("received", 10),
        ("passed up", 10),
        ("woken", 30),
        ("running", 80),
    ];
    assert_eq!(steps(flow), expected);
    assert_eq!((flow.ticks, flow.task.as_ref().unwrap().tid), (350, 7));
    assert!(flows.sent.never_met.is_empty() && flows.received.never_met.is_empty(), "{flows:?}");
}

#[test]
fn notifications_of_another_kind_of_device_do_not_hide_those_of_a_network_device() {
    // A balloon's second queue, before the network is used.
    let trace = kick(TestTrace::new(), 1_000, 0xd0003, 1);

    let flows = flows(there_and_back(there_and_back(trace, 10_000, 1), 20_000, 2));

    let kicked: Vec<bool> = [1, 2]
        .map(|id| {
            let flow = flows.sent.slowest.iter().find(|flow| flow.id == id).unwrap();
            flow.steps.iter().any(|step| step.to == Milestone::Kicked)
        })
        .into();
    assert_eq!((kicked, flows.sent.never_met.len()), (vec![false, true], 0));
}

#[test]
fn steps_of_every_packet_add_up() {
    let ids = (0..9).zip(1..);
    let flows = flows(ids.fold(TestTrace::new(), |trace, (at, id)| there_and_back(trace, 10_000 + 1000 * at, id)));

    for of in [&flows.sent, &flows.received] {
        assert_eq!((of.total.count, of.slowest.len(), of.unmatched, of.unfinished, of.dropped), (9, 5, 0, 0, 0));
        let sums = of.slowest.iter().map(|flow| (flow.steps.iter().map(|step| step.ticks).sum::<u64>(), flow.ticks));
        assert!(sums.clone().all(|(sum, ticks)| sum == ticks), "{:?}", sums.collect::<Vec<_>>());
    }
}

#[test]
fn packet_that_never_comes_to_the_ring_is_counted_and_the_next_one_is_followed() {
    let trace = give(TestTrace::new().switch(0, 9, 0, 7), 10, 0xa0, 60, "eth0");
    let trace = send(give(trace, 30, 0xa1, 98, "eth0"), 100, (0, 1), 98);

    let sent = flows(trace).sent;

    assert_eq!((sent.total.count, sent.unmatched, sent.slowest[0].begin), (1, 1, 30));
}

#[test]
fn packet_that_the_guest_never_gave_to_its_driver_is_counted() {
    let trace = send(give(TestTrace::new().switch(0, 9, 0, 7), 10, 0xa0, 60, "eth0"), 100, (0, 1), 60);

    let sent = flows(send(trace, 200, (0, 2), 60)).sent;

    assert_eq!((sent.total.count, sent.unmatched), (1, 1));
}

#[test]
fn packet_that_the_driver_refused_is_followed_from_its_second_try() {
    let trace = TestTrace::new().switch(0, 1, 0, 7);
    let answered = |rc| [&packet(0xa0, 60, "eth0")[..], &[("rc", Number(rc))]].concat();
    let trace = give(trace.guest(0, 5, "net:net_dev_xmit", &answered(0)), 10, 0xa0, 60, "eth0").guest(
        0,
        25,
        "net:net_dev_xmit",
        &answered(16),
    );
    let trace = send(trace.guest(0, 50, "net:net_dev_start_xmit", &packet(0xa0, 60, "eth0")), 100, (0, 1), 60);

    let sent = flows(trace).sent;

    assert_eq!((sent.total.count, sent.unmatched, sent.slowest[0].begin), (1, 0, 50));
}

#[test]
fn packet_of_a_bridge_is_followed_from_the_bridge_on() {
    let trace = give(TestTrace::new().switch(0, 9, 0, 7), 10, 0xa0, 60, "br0");

    let flow = flows(send(give(trace, 30, 0xa0, 60, "eth0"), 100, (0, 1), 60)).sent.slowest.remove(0);

    assert_eq!((flow.begin, flow.device.as_deref()), (10, Some("eth0")));
    assert_eq!(steps(&flow)[..2], [("given to the driver", 30), ("taken", 60)]);
}

#[test]
fn devices_are_distinguished_by_the_lengths_of_their_packets() {
    let trace = give(TestTrace::new().switch(0, 9, 0, 7), 10, 0xa0, 60, "eth0");
    let trace = send(give(trace, 30, 0xa1, 98, "eth1"), 100, (1, 1), 98);

    let sent = flows(send(trace, 200, (0, 1), 60)).sent;

    let devices: Vec<_> = sent.slowest.iter().map(|flow| (flow.net, flow.device.as_deref().unwrap())).collect();
    assert_eq!(devices, [(0, "eth0"), (1, "eth1")]);
}

#[test]
fn packets_that_the_loopback_device_carries_are_none_of_the_vmms() {
    let trace = give(TestTrace::new().switch(0, 9, 0, 7), 10, 0xa0, 60, "lo");

    let sent = flows(send(trace, 100, (0, 1), 60)).sent;

    assert_eq!((sent.total.count, sent.slowest[0].begin, sent.slowest[0].device.as_deref()), (1, 100, None));
    assert!(sent.never_met.contains(&Milestone::Given));
}

#[test]
fn packet_that_the_vmm_lost_is_counted_and_not_followed() {
    let trace = give(TestTrace::new().switch(0, 9, 0, 7), 10, 0xa0, 60, "eth0");
    let trace = in_vmm(trace, "vmm:net_send", (0, 1), 60, (100, 0));
    let trace = in_vmm(trace, "vmm:net_send", (0, 1), 60, (110, 2));
    let trace = in_vmm(trace, "vmm:net_receive", (0, 1), 60, (120, 0));

    let flows = flows(in_vmm(trace, "vmm:net_receive", (0, 1), 60, (130, 2)));

    assert_eq!((flows.sent.total.count, flows.sent.dropped), (0, 1));
    assert_eq!((flows.received.total.count, flows.received.dropped), (0, 1));
}

#[test]
fn without_the_guests_events_packets_begin_and_end_with_the_vmm() {
    let trace = of_queue(TestTrace::new(), 10, "vmm:net_notified", 0, SEND);
    let trace = of_queue(send(trace, 20, (0, 1), 60), 50, "vmm:net_notified", 0, RECEIVE);

    let flows = flows(of_queue(deliver(trace, 60, (0, 1), 60), 75, "vmm:net_interrupt", 0, RECEIVE));

    assert_eq!(steps(&flows.sent.slowest[0]), [("taken", 10), ("on the tap", 5), ("sent", 15)]);
    assert_eq!(steps(&flows.received.slowest[0]), [("read", 10), ("delivered", 10), ("raised", 5)]);
    assert!(flows.received.never_met.contains(&Milestone::Received));
}

#[test]
fn packet_that_was_merged_into_another_ends_with_the_driver() {
    let trace = of_queue(TestTrace::new().switch(0, 9, 7, 0), 10, "vmm:net_notified", 0, RECEIVE);
    let trace = deliver(deliver(trace, 20, (0, 1), 98), 40, (0, 2), 60);
    let trace = handle(of_queue(trace, 60, "vmm:net_interrupt", 0, RECEIVE), 100);
    let trace = receive(receive(trace, 130, 0xc0, 98), 140, 0xc1, 60);

    let received = flows(softirq_exit(pass_up(trace, 150, 0xc0, 158), 160)).received;

    let last: Vec<_> = received.slowest.iter().map(|flow| (flow.id, flow.steps.last().unwrap().to)).collect();
    assert_eq!(last, [(1, Milestone::PassedUp), (2, Milestone::Received)]);
}

#[test]
fn packet_that_the_guest_did_not_tell_of_does_not_shift_those_behind_it() {
    let trace = there_and_back(TestTrace::new(), 10_000, 1);
    let trace = of_queue(trace, 12_000, "vmm:net_notified", 0, RECEIVE);
    let trace = of_queue(deliver(trace, 12_010, (0, 2), 98), 12_030, "vmm:net_interrupt", 0, RECEIVE);

    let flows = flows(there_and_back(trace, 13_000, 3));

    let ids: Vec<_> = flows.received.slowest.iter().map(|flow| (flow.id, flow.ticks)).collect();
    assert_eq!((ids, flows.received.unmatched), (vec![(1, 350), (3, 350)], 1));
}

#[test]
fn interrupt_of_another_device_is_the_networks_only_until_its_own_comes() {
    let other = [("irq", Number(30)), ("name", Text("virtio1"))];
    let trace = of_queue(TestTrace::new().switch(0, 9, 7, 0), 10, "vmm:net_notified", 0, RECEIVE);
    let trace = of_queue(deliver(trace, 20, (0, 1), 98), 40, "vmm:net_interrupt", 0, RECEIVE);
    let trace = trace.guest(0, 50, "irq:irq_handler_entry", &other).guest(0, 55, "irq:irq_handler_exit", &other[..1]);
    // The driver polls: its own interrupt does not come.
    let trace = softirq_exit(receive(trace.guest(0, 60, "irq:softirq_entry", &[("vec", Number(3))]), 70, 0xc1, 98), 80);

    let received = flows(there_and_back(there_and_back(trace, 10_000, 2), 20_000, 3)).received;

    let handled = |id| {
        let flow = received.slowest.iter().find(|flow| flow.id == id).unwrap();
        steps(flow).into_iter().find(|&(name, _)| name == "handled").map(|(_, ticks)| ticks)
    };
    assert_eq!([handled(1), handled(2), handled(3)], [Some(10), Some(50), Some(50)]);
}

#[test]
fn packet_that_was_not_seen_on_the_tap_takes_no_other_ones_record() {
    let trace = there_and_back(TestTrace::new(), 10_000, 1);
    let trace = trace.host(1, 12_000, "net:net_dev_start_xmit", &packet(0xb1, 98, "tap0"));
    let trace = of_queue(trace, 12_050, "vmm:net_notified", 0, RECEIVE);
    let trace = deliver(deliver(trace, 12_060, (0, 2), 98), 12_080, (0, 3), 98);
    let trace = handle(of_queue(trace, 12_100, "vmm:net_interrupt", 0, RECEIVE), 12_150);
    let trace = receive(receive(trace, 12_180, 0xc1, 98), 12_190, 0xc2, 98);

    let received = flows(softirq_exit(trace, 12_200)).received;

    let first: Vec<_> = received.slowest.iter().map(|flow| (flow.id, flow.steps[0].from)).collect();
    assert_eq!(first, [(1, Milestone::FromHost), (3, Milestone::Noticed), (2, Milestone::Noticed)]);
}

#[test]
fn where_only_protocols_tell_packets_are_theirs_by_order_and_length() {
    let trace = of_queue(TestTrace::new().switch(0, 9, 7, 0), 10, "vmm:net_notified", 0, RECEIVE);
    let trace = handle(of_queue(deliver(trace, 20, (0, 1), 98), 40, "vmm:net_interrupt", 0, RECEIVE), 100);

    let received = flows(softirq_exit(pass_up(trace, 150, 0xc0, 98), 160)).received;

    assert_eq!(steps(&received.slowest[0])[3..], [("handled", 60), ("polled", 20), ("passed up", 30)]);
}

#[test]
fn packets_under_way_when_records_are_lost_are_not_followed() {
    let trace = give(TestTrace::new().switch(0, 9, 0, 7), 10, 0xa0, 60, "eth0").lost(LayerKind::GuestKernel, 0, 1);
    let trace = send(give(trace, 50, 0xa1, 98, "eth0"), 100, (0, 2), 98);

    let flows = flows(trace);

    assert_eq!((flows.sent.total.count, flows.across_lost_records), (1, 1));
}

#[test]
fn packet_received_after_the_choice_of_events_changed_takes_no_other_ones_reception() {
    let trace = there_and_back(TestTrace::new(), 10_000, 1);
    let trace = of_queue(deliver(trace, 12_000, (0, 2), 98), 12_015, "vmm:net_interrupt", 0, RECEIVE);
    let trace = trace.vmm(2, 12_050, "vmm:control", &[("what", Text("events_set"))]);
    let trace = deliver(of_queue(trace, 12_100, "vmm:net_notified", 0, RECEIVE), 12_110, (0, 4), 98);
    // that of packet 2
    let trace = softirq_exit(receive(handle(trace, 12_150), 12_180, 0xc2, 98), 12_190);

    let flows = flows(there_and_back(trace, 13_000, 5));

    let ids: Vec<_> = flows.received.slowest.iter().map(|flow| (flow.id, flow.ticks)).collect();
    assert_eq!(ids, [(1, 350), (5, 350)]);
}

#[test]
fn packet_sent_after_a_loss_takes_no_other_ones_task() {
    let trace = there_and_back(TestTrace::new(), 10_000, 1).lost(LayerKind::GuestKernel, 0, 1);
    // the VMM takes one that was given meanwhile before this one
    let trace = send(give(trace, 12_000, 0xa1, 98, "eth0"), 12_020, (0, 2), 98);

    let flows = flows(there_and_back(trace, 13_000, 3));

    let ids: Vec<_> = flows.sent.slowest.iter().map(|flow| (flow.id, flow.ticks)).collect();
    assert_eq!(ids, [(1, 230), (3, 230)]);
}

#[test]
fn table_shows_the_steps_what_no_packet_met_and_the_slowest() {
    let trace = give(TestTrace::new().switch(0, 9, 0, 7), 10, 0xa0, 60, "eth0");
    let (_dir, trace) = send(trace, 100, (0, 1), 60).open();
    let mut out = Vec::new();

    report(&trace, Window::ALL).unwrap().write_text(&mut out).unwrap();

    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("vm0: 1 packet sent\n"), "{text}");
    assert!(text.contains("NOTE: no packet met: called (guest-kernel:raw_syscalls:sys_enter), kicked ("), "{text}");
    assert!(text.contains("1. 55 ns: packet 1 of 60 bytes, sent on network 0 (eth0 in the guest)"), "{text}");
}

#[test]
fn device_whose_packets_the_hosts_kernel_moves_is_named_as_not_followed() {
    let begin = [("net", Number(1)), ("moves", Number(1))];
    let trace = there_and_back(TestTrace::new().vmm(2, 5_000, "vmm:net_vhost", &begin), 10_000, 1);
    let (_dir, trace) = trace.open();
    let mut out = Vec::new();

    let report = report(&trace, Window::ALL).unwrap();
    report.write_text(&mut out).unwrap();

    let (vm, text) = (&report.vms[0], String::from_utf8(out).unwrap());
    assert_eq!((vm.sent.total.count, vm.moved_by_host_kernel.clone()), (1, BTreeSet::from([1])));
    assert!(text.contains("NOTE: the host's kernel moved packets of network 1 past the VMM (vhost=on)"), "{text}");
}

#[test]
fn recording_without_packets_says_what_to_record() {
    let (_dir, trace) = TestTrace::new().switch(0, 9, 0, 7).open();

    let error = report(&trace, Window::ALL).unwrap_err().to_string();

    assert!(error.contains("--net") && error.contains("guest:net:*,host:net:*"), "{error}");
}
