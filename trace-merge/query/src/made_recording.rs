//! A recording made for tests: every table has rows.

use std::path::Path;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::test_trace::Field::{Arguments, Hex, Number, Text};
use tempfile::TempDir;
use trace_merge::report::scenario;

/// Number of `read`, and of `futex`.
const READ: i64 = 0;
const FUTEX: i64 = 202;

/// What `trace_merge::report::scenario` holds; then system calls, waits for locks, a disk's request, a packet, an interrupt
/// that KVM injects, a sample, an application's events and lost records. The folder must be kept.
#[must_use]
pub fn open() -> (TempDir, Trace) {
    let call = |number| [("id", Number(number)), ("args", Arguments([0x7000, 0]))];
    let returned = |number, result| [("id", Number(number)), ("ret", Number(result))];
    let lock = |flags| [("lock_addr", Hex(0xffff_8880_0000_1000)), ("flags", Number(flags))];
    let contended = [("lock_addr", Hex(0xffff_8880_0000_1000)), ("ret", Number(0))];
    let request = |done| {
        [
            ("disk", Number(0)),
            ("done", Number(done)),
            ("kind", Text("read")),
            ("sector", Number(2048)),
            ("bytes", Number(4096)),
        ]
    };
    let block = [("dev", Number(254 << 20)), ("sector", Number(2048)), ("nr_sector", Number(8)), ("rwbs", Text("R"))];
    let accepted = [("common_pid", Number(9)), ("apicid", Number(0)), ("vec", Number(236))];
    let injected =
        [("common_pid", Number(100)), ("vector", Number(236)), ("soft", Number(0)), ("reinjected", Number(0))];
    let timer = [("vector", Number(236))];
    let sample = [("ip", Hex(0xffff_ffff_8100_0004)), ("pid", Number(7)), ("user", Number(0))];
    let packet = [("skbaddr", Hex(0xffff_8880_0000_2000)), ("len", Number(98)), ("name", Text("eth0"))];
    let sent = |done| [("net", Number(0)), ("id", Number(1)), ("bytes", Number(98)), ("done", Number(done))];
    // Fields of the names that every table has.
    let answered = [("cpu", Number(-5)), ("comm", Text("a \"quoted\"\tname")), ("UTC", Number(1))];
    scenario::preempted_in_an_exit()
        .switch(1, 100_000, 0, 7)
        .guest(1, 101_000, "raw_syscalls:sys_enter", &call(READ))
        .guest(1, 103_000, "raw_syscalls:sys_exit", &returned(READ, -2))
        .guest(1, 104_000, "raw_syscalls:sys_enter", &call(FUTEX))
        .guest(1, 108_000, "raw_syscalls:sys_exit", &returned(FUTEX, 0))
        .guest(1, 109_000, "lock:contention_begin", &lock(1))
        .guest(1, 111_000, "lock:contention_end", &contended)
        .guest(0, 111_500, "block:block_rq_issue", &block)
        .vmm(2, 112_000, "vmm:block_request", &request(0))
        .vmm(2, 118_000, "vmm:block_request", &request(1))
        .guest(0, 118_500, "block:block_rq_complete", &block)
        .guest(0, 118_600, "net:net_dev_queue", &packet)
        .guest(0, 118_610, "net:net_dev_start_xmit", &packet)
        .vmm(2, 118_700, "vmm:net_send", &sent(0))
        .vmm(2, 118_720, "vmm:net_send", &sent(1))
        .host(0, 118_800, "kvm:kvm_apic_accept_irq", &accepted)
        .host(0, 118_820, "kvm:kvm_inj_virq", &injected)
        .guest(0, 118_900, "irq_vectors:local_timer_entry", &timer)
        .guest(0, 118_940, "irq_vectors:local_timer_exit", &timer)
        .guest(1, 118_950, "strata:sample", &sample)
        .symbol(118_960, 0xffff_ffff_8100_0000, "schedule")
        .user(7, 1, 119_000, "web:answered", &answered)
        .user(8, 1, 119_500, "web:answered", &answered)
        .lost(LayerKind::GuestUser, 1, 3)
        .guest(1, 130_000, "raw_syscalls:sys_enter", &call(READ))
        .switch(1, 140_000, 7, 0)
        .open()
}

/// Writes all tables of [`open`]'s recording below `folder`, and returns it.
///
/// # Panics
///
/// When that fails.
#[must_use]
#[allow(clippy::expect_used, reason = "a test that cannot be set up fails")]
pub fn export(folder: &Path) -> (TempDir, Trace) {
    let (dir, trace) = open();
    let options = strata_export::Options::default();
    crate::parquet::export(&trace, &options, folder, &crate::parquet::Selection::All).expect("an export");
    (dir, trace)
}
