//! The trace clock in real guests: thousands of events of the VMM, each between two of the guest, on every vCPU,
//! with the guest paused and resumed meanwhile; on a host with a stable TSC, and on one that has given it up. Beside
//! them, what another reader of the host's kernel records.
//!
//! Shows: Events of guest and VMM that bracket each other are in order: pauses, stable and unstable TSC.
//! Shows: A thread switch has one `CLOCK_MONOTONIC`, by Perfetto's export and by another reader of ftrace.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::fetch::trace_processor::{self, Row};
use lab::machine::host::HostRun;
use lab::machine::nested;
use lab::paths::Paths;
use lab::{process, provision};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use strata_export::{Options, perfetto};
use strata_recording::clock_snapshots::ClockSnapshot;
use strata_recording::reader::Trace;
use strata_recording::reader::merge::Merge;
use strata_recording::schema::Value;
use trace_merge::check;

/// Exchanges on each of the two vCPUs, at least.
const EXCHANGES: u32 = 6_000;
/// Seconds for which each of the two vCPUs makes exchanges, at least: the guest is paused for one of two seconds, and
/// must be there the second time, however fast it is.
const SECONDS: u32 = 4;

const HOST_SCRIPT: &str = r#"
strata doctor | grep TSC
other=/sys/kernel/tracing/instances/other
mkdir $other
echo mono > $other/trace_clock
echo 'prev_comm ~ "vcpu*"' > $other/events/sched/sched_switch/filter
echo 1 > $other/events/sched/sched_switch/enable
strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --cpus 2 --memory 512M \
    --cmdline "$GUEST lab.script=exchange" \
    --agent "$LAB/strata.ko" --trace "$LAB_OUT/trace" < /dev/null > "$LAB_OUT/run.log" 2>&1 &
strata=$!
waited=0
until grep -q 'script exchange' "$LAB_OUT/run.log" 2> /dev/null || [ $waited -ge 600 ]; do
    sleep 0.2
    waited=$((waited + 1))
done
for round in 1 2 3; do
    strata ctl vm0 pause
    sleep 1
    strata ctl vm0 resume
    sleep 1
done
wait $strata
status=$?
echo 0 > $other/tracing_on
cat $other/trace > "$LAB_OUT/other.txt"
tail -n 12 "$LAB_OUT/run.log"
exit $status
"#;

fn record(name: &str, kernel_arguments: &str) -> Trace {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let exchange = binaries::build_example(&paths, Purpose::Test, "exchange").unwrap();
    let image = paths.images().join(format!("{name}.cpio"));
    let script = format!("exchange {EXCHANGES} {SECONDS}\n");
    let guest = lab.kernels.guest_image().unwrap().program("exchange", &exchange).script("exchange", &script);
    guest.write_file(&image).unwrap();
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    request.kernel_arguments = kernel_arguments.to_owned();
    let host = lab.kernels.nested_host(&paths).unwrap();
    let result = nested::run(&host, &paths.runs(), &request).unwrap().success(name).unwrap();
    let trace: PathBuf = result.output.join("trace");
    println!("{}", process::capture(std::process::Command::new("cat").arg(&result.script_log)).unwrap());
    Trace::open(&trace).unwrap()
}

/// What the exchanges of a trace show.
#[derive(Debug, Default)]
struct Brackets {
    whole: u64,
    inversions: u64,
    /// Inversions by more than the stated bound.
    beyond: u64,
    /// The worst inversion, ticks.
    worst: u64,
    /// The shortest times from the guest's event to the VMM's and back, ticks.
    shortest: Option<(u64, u64)>,
}

fn number(fields: impl Iterator<Item = (String, u64)>, name: &str) -> Option<u64> {
    fields.into_iter().find(|(field, _)| field == name).map(|(_, value)| value)
}

fn brackets(trace: &Trace) -> Brackets {
    let bound = trace.clock().error_bound_ns;
    let mut times: BTreeMap<u64, [Option<u64>; 3]> = BTreeMap::new();
    for merged in Merge::new(trace.layers(), 0) {
        let fields = || {
            merged.record.schema.fields(merged.record.payload).filter_map(|(field, value)| match value {
                Value::Unsigned(value) => Some((field.name.clone(), value)),
                _ => None,
            })
        };
        let (place, key) = match merged.record.schema.name() {
            "exchange:before" => (0, number(fields(), "number")),
            "vmm:port_access" if number(fields(), "port") == Some(0x2e0) => (1, number(fields(), "value")),
            "exchange:after" => (2, number(fields(), "number")),
            _ => continue,
        };
        times.entry(key.unwrap()).or_default()[place] = Some(merged.record.time);
    }
    let mut brackets = Brackets::default();
    for exchange in times.values() {
        let [Some(before), Some(vmm), Some(after)] = *exchange else { continue };
        brackets.whole += 1;
        let wrong = before.saturating_sub(vmm).max(vmm.saturating_sub(after));
        brackets.inversions += u64::from(wrong > 0);
        brackets.beyond += u64::from(trace.clock().ticks_to_ns(wrong) > bound);
        brackets.worst = brackets.worst.max(wrong);
        let (to, from) = (vmm.saturating_sub(before), after.saturating_sub(vmm));
        let (least_to, least_from) = brackets.shortest.unwrap_or((to, from));
        brackets.shortest = Some((least_to.min(to), least_from.min(from)));
    }
    brackets
}

fn causes(trace: &Trace, cause: &str) -> usize {
    trace.clock().epochs.iter().filter(|epoch| epoch.cause == cause).count()
}

/// The times at which vCPUs' threads left a CPU, `CLOCK_MONOTONIC` in ns, by CPU and thread.
type Switches = BTreeMap<(u64, u64), Vec<u64>>;

/// What Perfetto reads in the export of `trace`.
fn exported_switches(trace: &Trace) -> Switches {
    let folder = tempfile::tempdir().unwrap();
    let export = folder.path().join("trace.pftrace");
    perfetto::export(trace, &Options::default(), fs::File::create(&export).unwrap()).unwrap();
    let query = "select to_monotonic(ts_end) ns, cpu.cpu, tid from sched join cpu using (ucpu) join thread using (utid) \
                 where thread.name glob 'vcpu*' and cpu.machine_id = 0 and dur > 0 order by 1";
    let rows = trace_processor::fetch(&Paths::of_workspace()).unwrap().query(&export, &[query]).unwrap().remove(0);
    let number = |row: &Row, name: &str| row[name].as_u64().unwrap();
    let mut switches = Switches::new();
    for row in &rows {
        switches.entry((number(row, "cpu"), number(row, "tid"))).or_default().push(number(row, "ns"));
    }
    switches
}

/// What the kernel's text tells, whose times are in microseconds.
fn switches_in_text(text: &str) -> Switches {
    let mut switches = Switches::new();
    for line in text.lines().filter(|line| line.contains(": sched_switch: ")) {
        // vcpu0-131 [002] d..2. 5.123456: sched_switch: prev_comm=vcpu0 prev_pid=131 ...
        let (head, fields) = line.split_once(": sched_switch: ").unwrap();
        let tid = fields.split_once("prev_pid=").unwrap().1.split(' ').next().unwrap().parse().unwrap();
        let cpu = head.split(['[', ']']).nth(1).unwrap().parse().unwrap();
        let (seconds, micros) = head.rsplit(' ').next().unwrap().split_once('.').unwrap();
        let ns = seconds.parse::<u64>().unwrap() * 1_000_000_000 + micros.parse::<u64>().unwrap() * 1_000;
        switches.entry((cpu, tid)).or_default().push(ns);
    }
    switches
}

/// How wrong `CLOCK_MONOTONIC` of a record may be, and a time of the kernel's text with it, ns.
fn bound_of_monotonic(trace: &Trace) -> u64 {
    /// What one clock may drift from the other between two snapshots.
    const DRIFT: u64 = 20_000;
    const TEXT: u64 = 1_000;
    let width = |snapshot: &ClockSnapshot| snapshot.monotonic.uncertainty_ns + snapshot.monotonic_raw.uncertainty_ns;
    trace.clock_snapshots().iter().map(width).max().unwrap() + DRIFT + TEXT
}

/// Asserts that both readers of the host's kernel saw the same switches at the same times. The second one wrote its record
/// first; between the two, an emulated CPU may lose its turn.
#[track_caller]
fn assert_other_reader_agrees(trace: &Trace, text: &str) {
    let (here, elsewhere) = (exported_switches(trace), switches_in_text(text));
    let count = |switches: &Switches| switches.iter().map(|(&from, times)| (from, times.len())).collect::<Vec<_>>();
    assert_eq!(count(&here), count(&elsewhere));
    let pairs = here.values().flatten().zip(elsewhere.values().flatten());
    let mut later: Vec<_> = pairs.map(|(here, elsewhere)| here.cast_signed() - elsewhere.cast_signed()).collect();
    later.sort_unstable();
    let bound = bound_of_monotonic(trace).cast_signed();
    let within = later.partition_point(|ns| *ns <= bound);
    println!(
        "{} switches, {} to {} ns later; {within} within {bound} ns",
        later.len(),
        later[0],
        later[later.len() - 1]
    );
    assert!(later.len() > 1_000 && later[0] >= -bound, "{:?}", &later[..10]);
    assert!(within * 100 >= later.len() * 98, "{within} of {}", later.len());
}

#[test]
fn exchanges_are_in_order_on_a_stable_tsc() {
    let trace = record("clock-stable", "tsc=reliable");

    let brackets = brackets(&trace);
    let checked = check::check(&trace, 10).unwrap();
    println!("{brackets:?}\n{:?}\n{:?}", checked.supported, trace.clock());

    assert!(brackets.whole >= 10_000 && brackets.inversions == 0, "{brackets:?}");
    assert!(checked.passed(), "{:?}", checked.violations);
    assert_eq!(trace.clock().source, "x86-tsc");
    assert!(trace.clock().vcpus.iter().all(|vcpu| vcpu.tsc_offset != 0));
    assert!(causes(&trace, "resume") >= 2 && causes(&trace, "start") == 2);

    let other = fs::read_to_string(trace.path().parent().unwrap().join("other.txt")).unwrap();
    assert_other_reader_agrees(&trace, &other);
}

#[test]
fn exchanges_are_in_order_within_the_bound_where_the_tsc_is_given_up() {
    let trace = record("clock-unstable", "");

    let brackets = brackets(&trace);
    let checked = check::check(&trace, 10).unwrap();
    let bound = trace.clock().error_bound_ns;
    println!("{brackets:?}\n{:?}\nbound {bound} ns, {} epochs", checked.supported, trace.clock().epochs.len());

    assert_eq!((trace.clock().source.as_str(), trace.clock().frequency_hz), ("mono_raw", 1_000_000_000));
    // A counter that jumps between two comparisons, because this host's own CPUs are taken away, is seen by chance
    // only: the bound is an observation there (docs/clock.md), and rare inversions may exceed it. One in a hundred is
    // not rare: counters read when the vCPU has left the guest put one in thirty in the wrong order.
    assert!(brackets.whole >= 10_000 && brackets.beyond * 100 <= brackets.whole, "{brackets:?}, bound {bound}");
    let beyond: u64 = checked.beyond_observed.iter().map(|stretch| stretch.records).sum();
    assert!(checked.passed() && beyond * 100 <= checked.guest_records() - beyond, "{checked:?}");
    assert!(causes(&trace, "resume") >= 2 && causes(&trace, "start") == 2);
}
