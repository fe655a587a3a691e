//! Shows: A file of symbols is moved as its kernel was (KASLR); one that the trace contradicts is refused.

use super::*;
use object::write::{Object as WrittenObject, StandardSection, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SymbolFlags, SymbolScope};
use strata_recording::test_trace::{Field, TestTrace};
use tempfile::TempDir;

const TEXT: u64 = 0xffff_ffff_8100_0000;
const MOVED: u64 = 0x1a20_0000;

/// Functions of a made kernel: names, and where they begin behind its text.
const FUNCTIONS: [(&str, u64); 6] = [
    ("hrtimer_wakeup", 0x10),
    ("tick_nohz_handler", 0x340),
    ("process_timeout", 0x1230),
    ("delayed_work_timer_fn", 0x5450),
    ("vmstat_update", 0x9990),
    ("wq_barrier_func", 0x1_2340),
];

fn kallsyms(text: u64) -> String {
    let lines = FUNCTIONS.iter().map(|(name, begin)| format!("{:016x} t {name}\n", text + begin));
    lines.collect::<String>() + &format!("{:016x} t helper\t[strata]\n", 0xffff_ffff_c010_0000_u64)
}

/// A trace whose host has timers with these functions of a kernel with its text at `text`.
fn trace_of(text: u64, functions: &[u64]) -> (TempDir, Trace) {
    let trace =
        functions.iter().zip(0..).fold(TestTrace::new().releases("6.1.0-50-amd64", "6.12.1"), |trace, (at, time)| {
            trace.host(
                0,
                time,
                "timer:hrtimer_start",
                &[("common_pid", Field::Number(100)), ("function", Field::Hex(text + at))],
            )
        });
    trace.open()
}

fn file(content: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("symbols");
    fs::write(&path, content).unwrap();
    (dir, path)
}

fn give(trace: &mut Trace, kernel: &str, content: impl AsRef<[u8]>) -> Result<Option<String>, String> {
    let (dir, path) = file(content);
    let given = SymbolFile { kernel: Some(kernel.into()), path }.give_to(trace);
    drop(dir);
    given.map_err(|error| error.to_string().split_once("symbols: ").unwrap_or_default().1.to_owned())
}

fn named(trace: &Trace, address: u64) -> Option<String> {
    let text = trace.kallsyms(None)?;
    KernelSymbols::of_kallsyms(&text).named(address).map(|named| named.to_string())
}

const ALL: [u64; 6] = [0x10, 0x340, 0x1230, 0x5450, 0x9990, 0x1_2340];

#[test]
fn symbols_of_the_boot_that_was_recorded_are_taken_as_they_are() {
    let (_dir, mut trace) = trace_of(TEXT + MOVED, &ALL[..1]);

    assert_eq!(give(&mut trace, "host", kallsyms(TEXT + MOVED)), Ok(None));

    assert_eq!(named(&trace, TEXT + MOVED + 0x344).as_deref(), Some("tick_nohz_handler+0x4"));
    assert_eq!(named(&trace, 0xffff_ffff_c010_0000).as_deref(), Some("helper [strata]"));
}

#[test]
fn symbols_of_another_boot_are_moved_to_where_functions_of_the_trace_begin() {
    let (_dir, mut trace) = trace_of(TEXT + MOVED, &ALL);

    assert_eq!(give(&mut trace, "host", kallsyms(TEXT)), Ok(None));

    assert_eq!(named(&trace, TEXT + MOVED + 0x1230).as_deref(), Some("process_timeout"));
    assert_eq!(named(&trace, 0xffff_ffff_c010_0000), None, "where modules were is not known");
}

#[test]
fn few_functions_do_not_tell_where_a_kernel_was() {
    let (_dir, mut trace) = trace_of(TEXT + MOVED, &ALL[..3]);

    let refused = give(&mut trace, "host", kallsyms(TEXT)).unwrap_err();

    assert!(
        refused.starts_with("host's kernel lay elsewhere (KASLR), and the trace names too few functions (3)"),
        "{refused}"
    );
}

#[test]
fn symbols_of_another_kernel_are_refused() {
    let (_dir, mut trace) = trace_of(TEXT, &[0x18, 0x358, 0x1258, 0x5478, 0x99b8]);

    let refused = give(&mut trace, "host", kallsyms(TEXT)).unwrap_err();

    assert!(refused.starts_with("does not fit the kernel of host: "), "{refused}");
    assert_eq!(named(&trace, TEXT + 0x18), None);
}

#[test]
fn symbol_that_lies_where_no_kernel_moves_itself_is_of_another_one() {
    let (_dir, mut trace) = TestTrace::new().symbol(1, TEXT + MOVED + 0x1010, "hrtimer_wakeup").open();

    let refused = give(&mut trace, "vm0", kallsyms(TEXT)).unwrap_err();

    assert!(refused.ends_with("1 of 1 functions in the trace lie elsewhere in this file"), "{refused}");
}

#[test]
fn symbols_that_a_guest_recorded_show_where_its_kernel_was() {
    let reported = |trace: TestTrace, name| trace.symbol(1, TEXT + MOVED + 0x10, name).open();
    let (_dir, mut trace) = reported(TestTrace::new(), "hrtimer_wakeup");
    let (_other_dir, mut other) = reported(TestTrace::new(), "something_else");

    assert_eq!(give(&mut trace, "vm0", kallsyms(TEXT)), Ok(None));
    let refused = give(&mut other, "vm0", kallsyms(TEXT)).unwrap_err();

    let symbols = KernelSymbols::of_guest(&trace, "vm0");
    assert_eq!(
        symbols.named(TEXT + MOVED + 0x345).map(|named| named.to_string()).as_deref(),
        Some("tick_nohz_handler+0x5")
    );
    assert!(refused.ends_with("1 of 1 functions in the trace lie elsewhere in this file"), "{refused}");
}

#[test]
fn symbols_of_a_guest_without_records_of_its_own_are_taken_as_uncertain() {
    let (_dir, mut trace) = trace_of(TEXT, &ALL);

    let printed = give(&mut trace, "vm0", kallsyms(TEXT)).unwrap().unwrap();

    assert!(printed.ends_with("the trace cannot show whether this file fits the kernel of vm0"), "{printed}");
    assert!(trace.kallsyms(Some("vm0")).is_some());
}

#[test]
fn symbols_need_an_owner_where_there_are_several_kernels() {
    let (_dir, mut trace) = trace_of(TEXT, &ALL);
    let of = |text: &str| SymbolFile::from_str(text).unwrap().give_to(&mut trace).unwrap_err().to_string();

    let [whose, unknown] = ["/nowhere/a=b", "web=/nowhere"].map(of);

    assert_eq!(whose, "/nowhere/a=b: say whose symbols they are: host=FILE or vm0=FILE");
    assert_eq!(unknown, "this trace has no kernel 'web' to take symbols for; it has host, vm0");
}

/// A `vmlinux` with [`FUNCTIONS`] and this banner. Its text begins where the image of kernels does.
fn vmlinux(release: &str) -> Vec<u8> {
    let mut written = WrittenObject::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let banner = format!("%s version %s\0Linux version {release} (builder) #1\0");
    let data = written.section_id(StandardSection::ReadOnlyData);
    written.append_section_data(data, banner.as_bytes(), 1);
    let text = written.section_id(StandardSection::Text);
    for (name, begin) in FUNCTIONS {
        written.add_symbol(Symbol {
            name: name.into(),
            value: TEXT + begin,
            size: 16,
            kind: SymbolKind::Text,
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(text),
            flags: SymbolFlags::None,
        });
    }
    let mut bytes = written.write().unwrap();
    // An executable, ET_EXEC.
    bytes[16..18].copy_from_slice(&2_u16.to_le_bytes());
    bytes
}

#[test]
fn vmlinux_is_taken_if_it_is_of_the_release_that_ran() {
    let (_dir, mut trace) = trace_of(TEXT + MOVED, &ALL);

    let refused = give(&mut trace, "host", vmlinux("6.1.0-51-amd64")).unwrap_err();
    assert_eq!(give(&mut trace, "host", vmlinux("6.1.0-50-amd64")), Ok(None));

    assert_eq!(refused, "is of kernel 6.1.0-51-amd64, and host ran 6.1.0-50-amd64");
    assert_eq!(named(&trace, TEXT + MOVED + 0x10).as_deref(), Some("hrtimer_wakeup"));
}

#[test]
fn what_has_no_symbols_of_a_kernel_is_refused() {
    let (_dir, mut trace) = trace_of(TEXT, &ALL);
    let mut refused = |content: &[u8]| give(&mut trace, "host", content).unwrap_err();

    assert!(refused(b"0000000000000000 T _text\n").starts_with("all addresses are 0"));
    assert!(refused(b"#!/bin/sh\n").starts_with("has no symbols of a kernel"));
    let whole = vmlinux("6.1.0-50-amd64");
    assert!(refused(&whole[..40]).starts_with("is a damaged or incomplete vmlinux"));
    let module = [&whole[..16], &1_u16.to_le_bytes(), &whole[18..]].concat();
    assert!(refused(&module).starts_with("has no symbols of a kernel"));
}
