use super::*;
use crate::report::scenario;
use strata_recording::test_trace::{Field, TestTrace, manifest};

#[test]
fn time_of_exits_is_split_between_kvm_vmm_host_and_halt() {
    let (_dir, trace) = scenario::preempted_in_an_exit().open();

    let report = report(&trace, Window::ALL).unwrap();

    let vm = &report.vms[0];
    assert_eq!((vm.count, vm.unfinished), (3, 0));
    let reason = |name: &str| vm.reasons.iter().find(|reason| reason.reason == name).unwrap();
    let io = reason("ioio");
    assert_eq!((io.count, io.time.p50_ns, io.time.max_ns, io.time.total_ns), (2, 1_500, 16_000, 17_500));
    assert_eq!((io.kvm_ns, io.vmm_ns, io.stolen_ns), (6_000, 2_500, 9_000));
    let longest = io.longest.unwrap();
    assert_eq!((trace.clock().ticks_to_ns(longest.ticks), longest.vcpu), (io.time.max_ns, 0));
    assert!(
        trace
            .layers()
            .iter()
            .flat_map(|layer| layer.records(&layer.streams[0]))
            .any(|record| record.time == longest.begin)
    );
    let halt = reason("hlt");
    assert_eq!((halt.time.total_ns, halt.halted_ns, halt.stolen_ns, halt.kvm_ns), (9_500, 7_500, 500, 1_500));
    assert_eq!((vm.accesses[0].place.as_str(), vm.accesses[0].time.total_ns), ("port 0x3f8", 2_500));
}

#[test]
fn summary_which_does_not_go_by_states_has_the_same_counts_and_times() {
    let (_dir, trace) = scenario::preempted_in_an_exit().open();

    let of_states = report(&trace, Window::ALL).unwrap();
    let summary = crate::report::summary::report(&trace, Window::ALL).unwrap();

    let of_states: Vec<_> = of_states.vms[0]
        .reasons
        .iter()
        .map(|reason| (reason.reason.clone(), reason.count, reason.time.total_ns, reason.time.max_ns))
        .collect();
    let of_summary: Vec<_> = summary.exits[0]
        .reasons
        .iter()
        .map(|reason| (reason.reason.clone(), reason.count, reason.total_ns, reason.max_ns))
        .collect();
    assert_eq!(of_states, of_summary);
}

/// A vCPU's exits for `ioio`, of 100 ns each, in which KVM records `events`.
fn vm_with_exits(events: &[(&'static str, &[(&'static str, Field)])]) -> VmExits {
    let thread = ("common_pid", Field::Number(100));
    let fields = [("vcpu", Field::Number(0)), ("tid", Field::Number(100))];
    let mut trace = TestTrace::new().vmm(0, 10, "vmm:vcpu_thread", &fields);
    trace = trace.host(0, 20, "kvm:kvm_entry", &[thread, ("vcpu_id", Field::Number(0))]);
    for (place, &(event, fields)) in (1..).zip(events) {
        let exit =
            [thread, ("exit_reason", Field::Number(0x7b)), ("isa", Field::Number(2)), ("vcpu_id", Field::Number(0))];
        trace = trace.host(0, 1_000 * place, "kvm:kvm_exit", &exit);
        trace = trace.host(0, 1_000 * place + 50, event, &[&[thread], fields].concat());
        trace = trace.host(0, 1_000 * place + 200, "kvm:kvm_entry", &[thread, ("vcpu_id", Field::Number(0))]);
    }
    let (_dir, trace) = trace.open();
    report(&trace, Window::ALL).unwrap().vms.remove(0)
}

#[test]
fn exits_are_broken_down_by_what_the_guest_did() {
    let msr = [("ecx", Field::Number(0x6e0)), ("write", Field::Number(1))];
    let unknown = [("ecx", Field::Number(0x1234)), ("write", Field::Number(0))];
    let mmio = [("type", Field::Number(2)), ("gpa", Field::Number(0xfee0_00b0)), ("val", Field::Number(0))];

    let vm = vm_with_exits(&[
        ("kvm:kvm_msr", &msr),
        ("kvm:kvm_msr", &msr),
        ("kvm:kvm_msr", &unknown),
        ("kvm:kvm_cpuid", &[("function", Field::Number(4))]),
        ("kvm:kvm_pio", &[("port", Field::Number(0x3f8)), ("rw", Field::Number(1))]),
        ("kvm:kvm_mmio", &mmio),
    ]);

    let words: Vec<_> = vm.operations.iter().map(|row| (row.plural(), row.time.count, row.time.total_ns)).collect();
    let expected = [
        ("writes of TSC_DEADLINE", 2, 200),
        ("reads of MSR 0x1234", 1, 100),
        ("reads of CPUID leaf 0x4", 1, 100),
        ("writes of port 0x3f8", 1, 100),
        ("writes of memory at 0xfee00000", 1, 100),
    ];
    assert_eq!(words, expected.map(|(text, count, ns)| (text.to_owned(), count, ns)));
    assert!(vm.operations.iter().all(|row| row.reason == "ioio"));
}

#[test]
fn operation_without_a_name_or_a_direction_has_none_in_json() {
    let operations = vm_with_exits(&[("kvm:kvm_cpuid", &[("function", Field::Number(0x4000_0000))])]).operations;

    let json = serde_json::to_value(columns::Object::of(&operations[0])).unwrap();

    let found = ["reason", "kind", "number", "name", "direction"].map(|key| json[key].clone());
    assert_eq!(serde_json::json!(found), serde_json::json!(["ioio", "cpuid", "0x40000000", null, null]));
}

/// Exits of the vCPU of the thread 100, of 100 ns each, for these reasons of AMD's processors at these instructions.
fn exits_at(exits: &[(i64, u64)]) -> TestTrace {
    let (thread, vcpu) = (("common_pid", Field::Number(100)), ("vcpu_id", Field::Number(0)));
    let fields = [("vcpu", Field::Number(0)), ("tid", Field::Number(100))];
    let mut trace =
        TestTrace::new().vmm(0, 10, "vmm:vcpu_thread", &fields).host(0, 20, "kvm:kvm_entry", &[thread, vcpu]);
    for (place, &(reason, instruction)) in (1..).zip(exits) {
        let exit = [
            thread,
            ("exit_reason", Field::Number(reason)),
            ("isa", Field::Number(2)),
            ("guest_rip", Field::Hex(instruction)),
            vcpu,
        ];
        trace = trace.host(0, 1_000 * place, "kvm:kvm_exit", &exit);
        trace = trace.host(0, 1_000 * place + 200, "kvm:kvm_entry", &[thread, vcpu]);
    }
    trace
}

/// Reason, function, number of exits and time of each row, and the text.
fn by_function(trace: TestTrace) -> (Vec<(String, String, u64, u64)>, String) {
    let (_dir, trace) = trace.open();
    let exits = report(&trace, Window::ALL).unwrap();
    let rows = &exits.vms[0].functions;
    let rows = rows.iter().map(|row| (row.reason.clone(), row.function.clone(), row.count, row.total_ns)).collect();
    let mut text = Vec::new();
    exits.write_text(&mut text).unwrap();
    (rows, String::from_utf8(text).unwrap())
}

const MSR: i64 = 0x7c;
const VMRUN: i64 = 0x80;
const FUNCTION: u64 = 0xffff_ffff_8100_0000;

#[test]
fn exits_are_broken_down_by_function_of_the_guest_and_by_address_where_it_has_no_name() {
    let exits = [(MSR, FUNCTION + 4), (MSR, FUNCTION + 8), (MSR, FUNCTION + 0x80), (0x7b, FUNCTION), (MSR, 0x40_1000)];

    let (rows, text) = by_function(exits_at(&exits).symbol(9_000, FUNCTION, "native_write_msr"));

    let row = |reason: &str, function: &str, count| (reason.to_owned(), function.to_owned(), count, 100 * count);
    let expected = [
        row("msr", "native_write_msr", 2),
        row("ioio", "native_write_msr", 1),
        row("msr", "0x401000", 1),
        row("msr", "0xffffffff81000080", 1),
    ];
    let mut sorted = rows[1..].to_vec();
    sorted.sort();
    assert_eq!((&rows[..1], &sorted[..]), (&expected[..1], &expected[1..]));
    assert!(text.contains("vm0: where in the guest the exits were"), "{text}");
    assert!(text.contains("native_write_msr") && !text.contains("NOTE"), "{text}");
}

#[test]
fn nothing_is_named_where_the_guest_runs_guests() {
    let exits = [(MSR, FUNCTION + 4), (VMRUN, FUNCTION + 8)];

    let (rows, text) = by_function(exits_at(&exits).symbol(9_000, FUNCTION, "native_write_msr"));

    assert_eq!(rows.iter().map(|row| &*row.1).collect::<Vec<_>>(), ["0xffffffff81000004", "0xffffffff81000008"]);
    assert!(text.contains("NOTE: vm0 runs guests of its own"), "{text}");
}

const EXIT: Longest = Longest { ticks: 2, begin: 1, vcpu: 0 };

#[test]
fn exits_at_places_beyond_the_limit_are_counted() {
    let mut instructions = Instructions::default();
    let reason = ExitReason { numbering: strata_analysis::exit_reason::ExitNumbering::Svm, number: 0x7c };
    (0..=1 << 16).for_each(|address| instructions.add(reason, address, EXIT));

    let functions = instructions.rows(|| None, &manifest().clock);

    // One had no room, and all but the rows have none.
    assert_eq!((functions.rows.len(), functions.others), (4096, 1 + (1 << 16) - 4096));
}

#[test]
fn window_counts_the_exits_that_begin_in_it() {
    let (_dir, trace) = scenario::preempted_in_an_exit().open();

    let count = |begin, end| report(&trace, Window { begin, end }).map(|report| report.vms[0].count).ok();

    assert_eq!((count(0, 21_000), count(21_000, 61_001), count(21_000, 61_000)), (Some(1), Some(1), None));
}

#[test]
fn exit_at_the_end_of_the_records_has_no_time() {
    let fields = |reason| [("vcpu", Field::Number(0)), ("reason", Field::Number(reason))];
    let trace = TestTrace::new()
        .vmm(0, 10, "vmm:vcpu_enter", &[("vcpu", Field::Number(0))])
        .vmm(0, 20, "vmm:vcpu_exit", &fields(2))
        .vmm(0, 30, "vmm:vcpu_enter", &[("vcpu", Field::Number(0))])
        .vmm(0, 40, "vmm:vcpu_exit", &fields(2));
    let (_dir, trace) = trace.open();

    let report = report(&trace, Window::ALL).unwrap();

    let vm = &report.vms[0];
    assert_eq!((vm.count, vm.unfinished, vm.warnings.len()), (2, 1, 1));
    assert_eq!((vm.reasons[0].time.count, vm.reasons[0].vmm_ns), (1, 5));
}

/// Reads of more MSRs than the report has rows for, each once and the first one twice.
fn exits_for_too_many_registers() -> VmExits {
    let registers: Vec<_> =
        (0..=4096).map(|register| [("ecx", Field::Number(register)), ("write", Field::Number(0))]).collect();
    let events: Vec<_> =
        registers.iter().chain(&registers[..1]).map(|fields| ("kvm:kvm_msr", fields.as_slice())).collect();
    vm_with_exits(&events)
}

#[test]
fn operations_beyond_the_limit_are_counted_and_take_no_memory() {
    let vm = exits_for_too_many_registers();

    assert_eq!((vm.operations.len(), vm.other_operations, vm.count), (4096, 1, 4098));
    assert_eq!((vm.operations[0].number(), vm.operations[0].time.count), (0, 2));
}

#[test]
fn text_and_json_say_how_many_exits_have_no_row() {
    let exits = Exits { vms: vec![exits_for_too_many_registers()] };

    let mut text = Vec::new();
    exits.write_text(&mut text).unwrap();
    let json = serde_json::to_value(&exits).unwrap();

    let printed = "1 exit was about other things than the first 4096, which have rows";
    assert!(String::from_utf8(text).unwrap().lines().any(|line| line == printed));
    assert_eq!((&json["vms"][0]["other_operations"], &json["vms"][0]["other_accesses"]), (&1.into(), &0.into()));
}

#[test]
fn accesses_beyond_the_limit_are_counted_and_take_no_memory() {
    let mut operations = Operations::default();

    (0..=4096).for_each(|page| operations.add_access(Access::Page(page), EXIT));
    operations.add_access(Access::Page(0), EXIT);

    let (_, accesses) = operations.rows(&manifest().clock);
    assert_eq!((accesses.rows.len(), accesses.others, accesses.rows[0].time.count), (4096, 1, 2));
}
