//! The records of requests to a disk, from the guest's task to the VMM and back.

use super::Field::{Hex, Number, Text};
use super::TestTrace;

/// The device of the first disk, as Linux numbers them.
pub const VDA: i64 = 254 << 20;
/// The device of the second disk.
pub const VDB: i64 = (254 << 20) + 16;

/// A request's place: device of the guest, disk of the VMM, first sector.
#[derive(Clone, Copy)]
pub struct Place(pub i64, pub i64, pub i64);

/// An event of the guest's block layer.
pub fn guest_block(trace: TestTrace, name: &'static str, cpu: u32, time: u64, place: Place) -> TestTrace {
    let fields = [("dev", Number(place.0)), ("sector", Number(place.2)), ("nr_sector", Number(8)), ("rwbs", Text("R"))];
    trace.guest(cpu, time, name, &fields)
}

/// The guest's kernel gives the request to the driver.
pub fn issue(trace: TestTrace, time: u64, place: Place) -> TestTrace {
    guest_block(trace, "block:block_rq_issue", 0, time, place)
}

/// The guest tells the host by a write to the queue register of the device in `page`.
pub fn kick(trace: TestTrace, time: u64, page: u64) -> TestTrace {
    let mmio = [("common_pid", Number(100)), ("type", Number(2)), ("gpa", Hex(page * 0x1000 + 0x50))];
    trace.host(0, time, "kvm:kvm_exit", &[("common_pid", Number(100))]).host(0, time + 3, "kvm:kvm_mmio", &mmio)
}

/// The VMM learns of it.
pub fn notified(trace: TestTrace, time: u64, place: Place) -> TestTrace {
    trace.vmm(2, time, "vmm:disk_notified", &[("disk", Number(place.1))])
}

/// The VMM serves it.
pub fn serve(trace: TestTrace, begin: u64, end: u64, place: Place) -> TestTrace {
    let request = |trace: TestTrace, time, done| {
        let place = [("disk", Number(place.1)), ("kind", Text("read")), ("sector", Number(place.2))];
        let fields = [&place[..], &[("bytes", Number(4096)), ("done", Number(done))]].concat();
        trace.vmm(2, time, "vmm:block_request", &fields)
    };
    request(request(trace, begin, 0), end, 1)
}

/// The VMM raises the disk's interrupt.
pub fn interrupt(trace: TestTrace, time: u64, place: Place) -> TestTrace {
    trace.vmm(2, time, "vmm:disk_interrupt", &[("disk", Number(place.1))])
}

/// KVM injects the interrupt into vCPU 0.
pub fn inject(trace: TestTrace, time: u64) -> TestTrace {
    trace.host(0, time, "kvm:kvm_inj_virq", &[("common_pid", Number(100)), ("vector", Number(0x22))])
}

/// The guest's handler on CPU 0, which completes the request at `time + 5` and wakes task 7 at `time + 8`.
pub fn handle(trace: TestTrace, time: u64, place: Place) -> TestTrace {
    let entry = [("irq", Number(24)), ("name", Text("virtio0"))];
    let trace = trace.guest(0, time, "irq:irq_handler_entry", &entry);
    let trace = guest_block(trace, "block:block_rq_complete", 0, time + 5, place);
    trace.guest(0, time + 8, "sched:sched_wakeup", &[("pid", Number(7))]).guest(
        0,
        time + 9,
        "irq:irq_handler_exit",
        &[("irq", Number(24))],
    )
}

/// A whole request of 1000 ticks that begins at `time`; the VMM takes 600 of them to serve it.
pub fn whole(trace: TestTrace, time: u64, place: Place) -> TestTrace {
    let trace = kick(issue(trace.switch(0, time - 1, 0, 7), time, place), time + 20, 0xd0000 + place.1.cast_unsigned());
    let trace = serve(notified(trace.switch(0, time + 50, 7, 0), time + 100, place), time + 110, time + 710, place);
    let trace = handle(inject(interrupt(trace, time + 720, place), time + 800), time + 850, place);
    trace.switch(0, time + 1000, 0, 7)
}
