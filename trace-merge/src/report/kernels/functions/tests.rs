use super::*;
use strata_analysis::user_symbols::own_function::own_function;
use strata_recording::test_trace::Field::{Hex, Number, Stack, Text};
use strata_recording::test_trace::TestTrace;
use tempfile::TempDir;

const ALL: Window = Window { begin: 0, end: u64::MAX };
const KERNEL: u64 = 0xffff_ffff_8100_0000;

fn sample(trace: TestTrace, time: u64, pid: i64, ip: u64) -> TestTrace {
    let user = i64::from(ip < KERNEL_HALF);
    trace.guest(0, time, "strata:sample", &[("ip", Hex(ip)), ("pid", Number(pid)), ("user", Number(user))])
}

fn mapping(trace: TestTrace, time: u64, pid: i64, begin: u64, offset: u64, path: &'static str) -> TestTrace {
    let fields = [
        ("pid", Number(pid)),
        ("begin", Hex(begin)),
        ("end", Hex(begin + 0x10_0000)),
        ("offset", Hex(offset)),
        ("path", Text(path)),
    ];
    trace.guest(0, time, "strata:mapping", &fields)
}

/// Opens a recording that ends with the symbols of a kernel of three functions.
fn open(trace: TestTrace) -> (TempDir, Trace) {
    let trace = trace.symbol(1000, KERNEL, "schedule").symbol(1000, KERNEL + 0x100, "memcpy");
    trace.symbol(1000, 0xffff_ffff_c000_0000, "probe [strata]").open()
}

fn rows(functions: &[FunctionSamples]) -> Vec<(&str, &str, u64)> {
    functions.iter().map(|row| (&*row.function, &*row.module, row.own)).collect()
}

#[test]
fn samples_are_counted_by_function_and_process() {
    let mut trace = TestTrace::new().switch(0, 1, 0, 7);
    for (time, pid, ip) in [(2, 7, KERNEL + 4), (3, 7, KERNEL + 8), (4, 8, KERNEL + 0x104), (5, 0, KERNEL)] {
        trace = sample(trace, time, pid, ip);
    }
    let (_dir, trace) = open(sample(trace, 6, 8, 0xffff_ffff_c000_0010));

    let report = report(&trace, ALL, None).unwrap();

    let kernel = &report.kernels[0];
    assert_eq!((kernel.samples, kernel.idle, kernel.unnamed), (5, 1, 0));
    let expected = [("schedule", "[kernel]", 2), ("memcpy", "[kernel]", 1), ("probe", "[strata]", 1)];
    assert_eq!(rows(&kernel.functions), expected);
    let of_process: Vec<_> = kernel.processes.iter().map(|process| (process.pid, process.samples)).collect();
    assert_eq!(of_process, [(7, 2), (8, 2)]);
    assert_eq!(kernel.processes[0].comm, "seven");
}

#[test]
fn without_symbols_pages_are_shown_as_unnamed() {
    let trace = mapping(TestTrace::new(), 1, 7, 0x40_0000, 0x2000, "/bin/app");
    let trace = sample(sample(sample(trace, 2, 7, 0x40_1234), 3, 7, 0x7000_0042), 4, 7, KERNEL + 0x42);
    let (_dir, trace) = trace.open();

    let report = report(&trace, ALL, None).unwrap();

    let kernel = &report.kernels[0];
    assert_eq!((kernel.unnamed, kernel.has_kernel_symbols), (3, false));
    let mut rows = rows(&kernel.functions);
    rows.sort_unstable();
    let expected = [("+0x3000", "/bin/app", 1), ("0x70000000", "?", 1), ("0xffffffff81000000", "[kernel]", 1)];
    assert_eq!(rows, expected);
}

#[test]
fn functions_of_programs_are_named_from_their_files() {
    let (path, offset) = own_function();
    let path: &'static str = path.leak();
    let begin = 0x55_0000_0000;
    let trace = mapping(TestTrace::new(), 1, 7, begin, offset / PAGE * PAGE, path);
    let (_dir, trace) = sample(trace, 2, 7, begin + offset % PAGE + 1).open();

    let report = report(&trace, ALL, Some(Path::new("/"))).unwrap();

    let row = &report.kernels[0].functions[0];
    assert!(row.is_named && row.function.contains("function_to_be_found"), "{row:?}");
    assert_eq!(row.module, path);
}

#[test]
fn mappings_from_before_the_window_hold_in_it() {
    let trace = mapping(TestTrace::new(), 1, 7, 0x40_0000, 0, "/bin/app");
    let (_dir, trace) = sample(sample(trace, 2, 7, 0x40_0001), 10, 7, 0x40_0002).open();

    let report = report(&trace, Window { begin: 5, end: 20 }, None).unwrap();

    assert_eq!(rows(&report.kernels[0].functions), [("+0x0", "/bin/app", 1)]);
}

#[test]
fn function_counts_once_for_a_sample_however_often_it_is_called() {
    let mut counts = Counts::default();
    counts.add(&[1, 2, 1, 3]);
    counts.add(&[2]);

    let of = |id| counts.functions.get(&id).map(|counts| (counts.own, counts.total));
    assert_eq!([1, 2, 3].map(of), [(1, 1), (1, 2), (0, 1)].map(Some));
}

#[test]
fn callers_have_the_sample_in_their_total() {
    const STACK: &[u64] = &[KERNEL + 0x108, 0xffff_ffff_c000_0010];
    let fields = [("ip", Hex(KERNEL + 4)), ("pid", Number(7)), ("user", Number(0)), ("stack", Stack(STACK))];
    let (_dir, trace) = open(TestTrace::new().guest(0, 1, "strata:sample", &fields));

    let report = report(&trace, ALL, None).unwrap();

    let rows: Vec<_> = report.kernels[0].functions.iter().map(|row| (&*row.function, row.own, row.total)).collect();
    assert_eq!(rows, [("schedule", 1, 1), ("memcpy", 0, 1), ("probe", 0, 1)]);
}

#[test]
fn folder_of_symbols_that_is_not_there_is_named() {
    let (_dir, trace) = sample(TestTrace::new(), 1, 7, KERNEL).open();

    let error = report(&trace, ALL, Some(Path::new("/no/such/root"))).unwrap_err().to_string();

    assert!(error.contains("/no/such/root"), "{error}");
}

#[test]
fn trace_without_samples_says_so() {
    let (_dir, trace) = TestTrace::new().switch(0, 1, 0, 7).open();

    assert!(report(&trace, ALL, None).unwrap_err().to_string().contains("strata:sample"));
}

#[test]
fn file_of_a_process_is_not_certain_behind_missing_records() {
    let trace = sample(mapping(TestTrace::new(), 1, 7, 0x40_0000, 0, "/bin/app"), 2, 7, 0x40_0000);
    let trace = sample(trace.lost(LayerKind::GuestKernel, 0, 1), 3, 7, 0x40_0000);
    let (_dir, trace) = trace.open();

    let report = report(&trace, ALL, None).unwrap();

    let mut text = Vec::new();
    report.write_text(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let certain: Vec<_> = report.kernels[0].functions.iter().map(|row| (row.is_certain, row.own)).collect();
    assert_eq!(certain, [(true, 1), (false, 1)]);
    assert!(text.contains("  /bin/app\n") && text.contains("  /bin/app?\n"), "{text}");
}
