//! The records of packets, from the guest's task to the host's tap and back.

use super::Field::{self, Hex, Number, Text};
use super::TestTrace;

/// The queue of a network device that sends.
pub const SEND: i64 = 1;
/// The queue of a network device that receives.
pub const RECEIVE: i64 = 0;
/// The fields of the system call `sendto`.
pub const CALL: [(&str, Field); 1] = [("id", Number(44))];

/// The fields of an event of a packet.
pub fn packet(skb: u64, bytes: i64, device: &'static str) -> [(&'static str, Field); 3] {
    [("skbaddr", Hex(skb)), ("len", Number(bytes)), ("name", Text(device))]
}

/// The guest's kernel queues a packet of a task's call, and gives it to the driver of `device` 10 ticks later.
pub fn give(trace: TestTrace, time: u64, skb: u64, bytes: i64, device: &'static str) -> TestTrace {
    let packet = packet(skb, bytes, device);
    trace.guest(0, time, "net:net_dev_queue", &packet).guest(0, time + 10, "net:net_dev_start_xmit", &packet)
}

/// The guest tells the host by a write to the queue register of the device in `page`.
pub fn kick(trace: TestTrace, time: u64, page: u64, queue: u64) -> TestTrace {
    let mmio =
        [("common_pid", Number(100)), ("type", Number(2)), ("gpa", Hex(page * 0x1000 + 0x50)), ("val", Hex(queue))];
    trace.host(0, time, "kvm:kvm_exit", &[("common_pid", Number(100))]).host(0, time + 3, "kvm:kvm_mmio", &mmio)
}

/// An event of a queue in the VMM.
pub fn of_queue(trace: TestTrace, time: u64, name: &'static str, net: i64, queue: i64) -> TestTrace {
    trace.vmm(2, time, name, &[("net", Number(net)), ("queue", Number(queue))])
}

/// An event of packet `id` of device `net` in the VMM.
pub fn in_vmm(
    trace: TestTrace,
    name: &'static str,
    (net, id): (i64, i64),
    bytes: i64,
    (time, done): (u64, i64),
) -> TestTrace {
    let fields = [("net", Number(net)), ("id", Number(id)), ("bytes", Number(bytes)), ("done", Number(done))];
    trace.vmm(2, time, name, &fields)
}

/// The VMM sends a packet in 20 ticks, and the host's tap has it after 5.
pub fn send(trace: TestTrace, time: u64, packet_id: (i64, i64), bytes: i64) -> TestTrace {
    let trace = in_vmm(trace, "vmm:net_send", packet_id, bytes, (time, 0));
    let trace = trace.host(1, time + 5, "net:netif_receive_skb", &packet(0x99, bytes - 14, "tap0"));
    in_vmm(trace, "vmm:net_send", packet_id, bytes, (time + 20, 1))
}

/// The VMM reads a packet and puts it into the guest's memory 10 ticks later.
pub fn deliver(trace: TestTrace, time: u64, packet_id: (i64, i64), bytes: i64) -> TestTrace {
    let trace = in_vmm(trace, "vmm:net_receive", packet_id, bytes, (time, 0));
    in_vmm(trace, "vmm:net_receive", packet_id, bytes, (time + 10, 1))
}

/// The guest's CPU 0 handles the interrupt, and begins to receive 20 ticks later.
pub fn handle(trace: TestTrace, time: u64) -> TestTrace {
    let entry = [("irq", Number(24)), ("name", Text("virtio0"))];
    let trace = trace.guest(0, time, "irq:irq_handler_entry", &entry);
    trace.guest(0, time + 5, "irq:irq_handler_exit", &[("irq", Number(24))]).guest(
        0,
        time + 20,
        "irq:softirq_entry",
        &[("vec", Number(3))],
    )
}

/// The driver has received the packet.
pub fn receive(trace: TestTrace, time: u64, skb: u64, bytes: i64) -> TestTrace {
    trace.guest(0, time, "net:napi_gro_receive_entry", &packet(skb, bytes - 14, "eth0"))
}

/// The driver passes the packet to the stack.
pub fn pass_up(trace: TestTrace, time: u64, skb: u64, bytes: i64) -> TestTrace {
    trace.guest(0, time, "net:netif_receive_skb", &packet(skb, bytes - 14, "eth0"))
}

/// The soft interrupt ends.
pub fn softirq_exit(trace: TestTrace, time: u64) -> TestTrace {
    trace.guest(0, time, "irq:softirq_exit", &[("vec", Number(3))])
}

/// A packet of 98 bytes that task 7 sends from `time` on, and the answer that wakes it.
pub fn there_and_back(trace: TestTrace, time: u64, id: i64) -> TestTrace {
    let other = [("vec", Number(7))];
    let trace = trace.guest(0, time - 9, "irq:softirq_entry", &other).guest(0, time - 8, "irq:softirq_exit", &other);
    let trace = trace.switch(0, time - 1, 0, 7).guest(0, time, "raw_syscalls:sys_enter", &CALL);
    let trace = kick(give(trace, time + 100, 0xa0, 98, "eth0"), time + 130, 0xd0000, 1);
    let trace = send(of_queue(trace, time + 200, "vmm:net_notified", 0, SEND), time + 210, (0, id), 98);
    let trace = trace.switch(0, time + 240, 7, 0);
    let trace = trace.host(1, time + 250, "net:net_dev_start_xmit", &packet(0xb0, 98, "tap0"));
    let trace = of_queue(trace, time + 300, "vmm:net_notified", 0, RECEIVE);
    let trace = of_queue(deliver(trace, time + 310, (0, id), 98), time + 325, "vmm:net_interrupt", 0, RECEIVE);
    let inject = [("common_pid", Number(100)), ("vector", Number(0x22))];
    let trace = handle(trace.host(0, time + 400, "kvm:kvm_inj_virq", &inject), time + 450);
    let trace = pass_up(receive(trace, time + 480, 0xc0, 98), time + 490, 0xc0, 98);
    let trace = trace.guest(0, time + 520, "sched:sched_waking", &[("pid", Number(7))]);
    softirq_exit(trace, time + 530).switch(0, time + 600, 0, 7)
}
