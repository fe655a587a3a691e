//! Shows: `strata report death` tells each CPU's last state; its text cannot act on a terminal.

use super::*;
use crate::report::Report;
use strata_recording::manifest::Manifest;
use strata_recording::test_trace::{Field, TestTrace};

const IDLE: u64 = 0xffff_ffff_8100_0000;
const PANIC: u64 = 0xffff_ffff_8200_0000;

/// vCPU 0 panics in a write of `sh` at tick 30000; vCPU 1 has been idle from 12000 on. The VMM hears of it at 32000.
fn panicked() -> TestTrace {
    let host =
        |trace: TestTrace, cpu, time, name, fields: &[(&'static str, Field)]| trace.host(cpu, time, name, fields);
    let entry = |tid: i64, vcpu: i64| [("common_pid", Field::Number(tid)), ("vcpu_id", Field::Number(vcpu))];
    let switch = |prev: i64, prev_comm, next: i64, next_comm| {
        [
            ("prev_comm", Field::Text(prev_comm)),
            ("prev_pid", Field::Number(prev)),
            ("prev_state", Field::Number(1)),
            ("next_comm", Field::Text(next_comm)),
            ("next_pid", Field::Number(next)),
        ]
    };
    let host_switch = |tid: i64, comm: &'static str| {
        let [a, b, c, _, _] = switch(0, "swapper/0", tid, comm);
        [("common_pid", Field::Number(0)), a, b, c, ("next_comm", Field::Text(comm)), ("next_pid", Field::Number(tid))]
    };
    let trace = TestTrace::new().symbol(10_000, IDLE, "pv_idle").symbol(10_001, PANIC, "sysrq_crash");
    let trace = host(trace, 0, 10_010, "sched:sched_switch", &host_switch(100, "vcpu0"));
    let trace = host(trace, 0, 10_020, "kvm:kvm_entry", &entry(100, 0));
    let trace = host(trace, 1, 10_030, "sched:sched_switch", &host_switch(101, "vcpu1"));
    let trace = host(trace, 1, 10_040, "kvm:kvm_entry", &entry(101, 1));
    let trace = trace.guest(0, 11_000, "sched:sched_switch", &switch(0, "swapper/0", 77, "sh"));
    let trace = trace.guest(1, 12_000, "sched:sched_switch", &switch(88, "cat", 0, "swapper/1"));
    let hlt = [
        ("common_pid", Field::Number(101)),
        ("exit_reason", Field::Number(0x78)),
        ("isa", Field::Number(2)),
        ("vcpu_id", Field::Number(1)),
        ("guest_rip", Field::Hex(IDLE + 0x10)),
    ];
    let trace = host(trace, 1, 13_000, "kvm:kvm_exit", &hlt);
    let trace = trace.guest(0, 14_000, "raw_syscalls:sys_enter", &[("id", Field::Number(1))]);
    let sample = [
        ("ip", Field::Hex(PANIC + 4)),
        ("pid", Field::Number(77)),
        ("tid", Field::Number(77)),
        ("user", Field::Number(0)),
        ("stack", Field::Stack(&[IDLE + 8])),
    ];
    let trace = trace.guest(0, 20_000, "strata:sample", &sample);
    let console = |text| [("msg", Field::Text(text))];
    let trace = trace.guest(0, 29_000, CONSOLE, &console("sysrq: Trigger a crash\n"));
    let trace = trace.guest(0, 30_000, CONSOLE, &console("Kernel panic - \u{1b}[2Jnot syncing\n"));
    let trace = trace.vmm(2, 32_000, "vmm:control", &[("what", Field::Text("guest_panic"))]);
    trace.vmm(0, 31_000, "vmm:vcpu_exit", &[("vcpu", Field::Number(0)), ("reason", Field::Number(2))])
}

fn death(trace: TestTrace, window: Window) -> Death {
    let (_folder, trace) = trace.open();
    super::super::make(&trace, window, LastMoments::new(&trace, window)).unwrap()
}

#[test]
fn each_cpu_is_reported_as_it_was_at_the_guests_last_record() {
    let death = death(panicked(), Window::ALL);

    let [vm] = death.vms.as_slice() else { panic!("{death:?}") };
    assert_eq!((vm.is_guests, vm.moment_ns, vm.after_ns), (true, 10_000, 1_000));
    let cpus: Vec<_> = vm.cpus.iter().map(|cpu| (cpu.guest.as_str(), cpu.vcpu.as_str())).collect();
    assert_eq!(cpus, [("sh/77, in write", "guest"), ("idle", "kvm: hlt")]);
    assert_eq!((vm.cpus[0].last_ns, vm.cpus[1].last_ns), (Some(0), Some(-9_000)));
    assert_eq!((vm.cpus[0].vcpu_ns, vm.cpus[1].vcpu_ns), (Some(9_990), Some(8_500)));
    let runs: Vec<_> = vm.host_cpus.iter().map(|cpu| (cpu.runs.as_str(), cpu.last_ns)).collect();
    assert_eq!(runs, [("vcpu0/100", Some(-9_990)), ("vcpu1/101", Some(-8_500))]);
}

#[test]
fn console_exits_and_stacks_are_those_before_the_end() {
    let death = death(panicked(), Window::ALL);

    let vm = &death.vms[0];
    let texts: Vec<_> = vm.console.iter().map(|line| (line.ns, line.text.as_str())).collect();
    assert_eq!(texts, [(-500, "sysrq: Trigger a crash"), (0, "Kernel panic - \u{1b}[2Jnot syncing")]);
    let sample = vm.cpus[0].sample.clone().unwrap();
    assert_eq!((sample.ns, sample.stack), (-5_000, vec!["sysrq_crash+0x4".to_owned(), "pv_idle+0x8".into()]));
    let exit = &vm.cpus[1].exits[0];
    assert_eq!((exit.ns, exit.reason.as_str(), exit.at.as_deref()), (-8_500, "hlt", Some("pv_idle+0x10")));
    let vmm: Vec<_> = vm.vmm.iter().map(|record| (record.ns, record.event.as_str())).collect();
    assert_eq!(vmm, [(500, "vmm:vcpu_exit"), (1_000, "vmm:control")]);
}

#[test]
fn only_the_last_records_of_a_cpu_are_kept() {
    let tick = [("n", Field::Number(1))];
    let trace = (0..100).fold(panicked(), |trace, n| trace.guest(1, 15_000 + n, "app:tick", &tick));

    let death = death(trace, Window::ALL);

    let records = &death.vms[0].cpus[1].records;
    assert_eq!((records.len(), records[0].ns, records[9].ns), (10, -7_455, -7_450));
}

#[test]
fn window_that_ends_earlier_looks_at_that_moment() {
    let death = death(panicked(), Window { begin: 0, end: 12_500 });

    let vm = &death.vms[0];
    assert_eq!((vm.moment_ns, vm.cpus[0].guest.as_str(), vm.cpus[1].vcpu.as_str()), (1_000, "sh/77", "guest"));
    assert!(vm.console.is_empty());
    let mut text = Vec::new();
    crate::report::Report::write_text(&death, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("the last record of the guest's kernel in this part is 1.000 µs after"), "{text}");
}

#[test]
fn without_a_guest_layer_the_last_record_of_all_counts() {
    let trace = TestTrace::new().vmm(2, 10_000, "vmm:control", &[("what", Field::Text("stop"))]);

    let death = death(trace, Window::ALL);

    let vm = &death.vms[0];
    assert_eq!((vm.is_guests, vm.vmm.len(), vm.cpus[0].guest.as_str()), (false, 1, "not known"));
}

#[test]
fn guest_without_its_hosts_layers_is_described_by_its_own_records() {
    let call = [("id", Field::Number(1))];
    let trace = TestTrace::new().guest(0, 10_000, "raw_syscalls:sys_enter", &call).guest(1, 9_000, "app:tick", &call);

    let death = death(trace, Window::ALL);

    let vm = &death.vms[0];
    assert_eq!((vm.is_guests, vm.cpus[0].vcpu.as_str(), vm.cpus[0].last_ns), (true, "unknown", Some(0)));
    assert_eq!((vm.cpus[1].last_ns, vm.host_cpus.len(), vm.vmm.len()), (Some(-500), 0, 0));
}

#[test]
fn recording_without_a_record_has_no_end() {
    let (_folder, trace) = TestTrace::new().open();
    let window = Window::ALL;

    let error = super::super::make(&trace, window, LastMoments::new(&trace, window)).unwrap_err();

    assert!(error.to_string().contains("no record of a VM"), "{error}");
}

#[test]
fn text_says_all_of_it_and_acts_on_no_terminal() {
    let mut text = Vec::new();

    death(panicked(), Window::ALL).write_text(&mut text).unwrap();

    let text = String::from_utf8(text).unwrap();
    for wanted in [
        "vm0: the last record of the guest's kernel is 10.000 µs after the first",
        "Kernel panic - \\u{1b}[2Jnot syncing",
        "sh/77, in write",
        "-8.500 µs hlt at pv_idle+0x10",
        "sysrq_crash+0x4",
        "+1.000 µs  vmm:control: what = \"guest_panic\"",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
    }
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn what_was_known_last_is_reported_where_the_hosts_records_end_before_the_guests() {
    let (folder, _) = panicked().open();
    let mut manifest = Manifest::load(folder.path()).unwrap();
    let of_host = manifest.layers.iter_mut().filter(|layer| layer.kind == LayerKind::HostKernel);
    of_host.flat_map(|layer| &mut layer.streams).for_each(|stream| stream.corrupt = true);
    manifest.save(folder.path()).unwrap();
    let trace = Trace::open(folder.path()).unwrap();

    let death = super::super::make(&trace, Window::ALL, LastMoments::new(&trace, Window::ALL)).unwrap();

    let vm = &death.vms[0];
    let vcpus: Vec<_> = vm.cpus.iter().map(|cpu| (cpu.vcpu.as_str(), cpu.vcpu_ns)).collect();
    assert_eq!(vcpus, [("guest until 9.990 µs before", None), ("kvm: hlt until 8.500 µs before", None)]);
    assert!(vm.host_cpus.iter().all(|cpu| cpu.runs.starts_with("vcpu")), "{:?}", vm.host_cpus);
}
