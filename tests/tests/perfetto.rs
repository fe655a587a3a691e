//! What Perfetto's own `trace_processor` reads in an export: exactly what the recording holds, and the figures of the
//! reports. On recordings that are made here, and on one of a real host and guest.
//!
//! Shows: A Perfetto export holds exactly the records, shows what is missing, and gives the reports' figures.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::fetch::trace_processor::{self, Row, TraceProcessor};
use lab::paths::Paths;
use lab::process;
use lab::scenarios::analysis;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_analysis::completeness::Completeness;
use strata_analysis::names;
use strata_export::{Options, perfetto};
use strata_recording::clock_snapshots::{self, ClockReading, ClockSnapshot};
use strata_recording::layer::LayerKind;
use strata_recording::reader::{StreamRecord, Trace};
use strata_recording::text::terminal::harmless;
use trace_merge::critical_path::{CriticalPathOptions, critical_paths};
use trace_merge::report::Window;
use trace_merge::report::devices::flows;
use trace_merge::report::kernels::{exits, irqs, syscalls};
use trace_merge::report::scheduling::{tasks, vcpus};

const QUERIES: [&str; 17] = [
    "select name, severity, value from stats where severity in ('error', 'data_loss') and value > 0",
    "select machine_id machine, count(*) n from sched join thread using (utid)
     where thread.name is not 'not recorded' and thread.tid > 0 and dur != 0 group by 1",
    "select machine_id machine, name, count(*) n from ftrace_event join cpu using (ucpu) group by 1, 2",
    "select track.name || ' ' || slice.name name, count(*) n, sum(dur) ns from slice join track on track.id = track_id
     join track above on above.id = track.parent_id where above.name like '%: vCPUs' group by 1",
    "select slice.name, count(*) n, sum(dur) ns from slice join track on track.id = track_id
     where track.name = 'what it really does' group by 1",
    // A rate is that of the time until the next, of 10 ms at least.
    "select cast(sum(round(value * max(coalesce(until - ts, 0), 10000000) / 1e9)) as int) n from
     (select value, ts, lead(ts) over (partition by track_id order by ts) until from counter
     join track on track.id = track_id where track.name like 'vCPU %: exits')",
    "select count(*) n, coalesce(sum(dur), 0) ns from slice join track on track.id = track_id
     where track.name = 'requests'",
    "select count(*) n from flow",
    "select name, count(*) n from slice where name glob 'sys_*' group by 1",
    "select count(*) n, coalesce(sum(dur), 0) ns from slice join track on track.id = track_id
     join track above on above.id = track.parent_id where above.name = 'records may be missing'",
    "select track.name, count(*) n from slice join track on track.id = track_id
     where slice.name glob 'IRQ (*' and dur >= 0 group by 1",
    "select machine_id machine, count(*) n from sched join thread using (utid)
     where thread.name is not 'not recorded' and priority < 100 group by 1",
    // What Perfetto's viewer draws of threads that ended, whose state is none.
    "select state, count(*) n from thread_state
     where state not in ('Running', 'R', 'R+', 'S', 'D', 'I', 'T') group by 1",
    "select count(*) n from slice join track on track.id = track_id where track.name glob 'VMM: *'",
    "select name, count(distinct ftrace_event.id) n from ftrace_event join args using (arg_set_id)
     join cpu using (ucpu) where machine_id = 0 and name glob 'kvm_*' group by 1",
    "select count(*) n from slice join args using (arg_set_id) where name glob 'sys_*' and key = 'args[0]'",
    "select count(*) n from slice where name glob 'sys_*' and dur < 0",
];

/// Answers to [`QUERIES`].
struct Answers(Vec<Vec<Row>>);

fn number(row: &Row, column: &str) -> u64 {
    row[column].as_u64().unwrap_or_else(|| panic!("{column} of {row:?}"))
}

fn text(row: &Row, column: &str) -> String {
    row[column].as_str().unwrap_or_default().to_owned()
}

impl Answers {
    fn of(processor: &TraceProcessor, trace: &Trace, folder: &Path) -> Self {
        let path = folder.join("trace.pftrace");
        perfetto::export(trace, &Options::default(), fs::File::create(&path).unwrap()).unwrap();
        Self(processor.query(&path, &QUERIES).unwrap())
    }

    /// Number and ns of the only row of the answer `index`.
    fn one(&self, index: usize) -> (u64, u64) {
        let [row] = &self.0[index][..] else { panic!("{:?}", self.0[index]) };
        (number(row, "n"), if row.contains_key("ns") { number(row, "ns") } else { 0 })
    }

    /// Number and ns by name, of the answer `index`.
    fn named(&self, index: usize) -> BTreeMap<String, (u64, u64)> {
        let ns = |row: &Row| if row.contains_key("ns") { number(row, "ns") } else { 0 };
        self.0[index].iter().map(|row| (text(row, "name"), (number(row, "n"), ns(row)))).collect()
    }

    /// Number of a machine, of the answer `index`.
    fn of_machine(&self, index: usize, machine: u64) -> u64 {
        self.0[index].iter().filter(|row| number(row, "machine") == machine).map(|row| number(row, "n")).sum()
    }

    /// Records of a machine called `name`.
    fn ftrace(&self, machine: u64, name: &str) -> u64 {
        let is_it = |row: &&Row| number(row, "machine") == machine && text(row, "name") == name;
        self.0[2].iter().filter(is_it).map(|row| number(row, "n")).sum()
    }
}

/// How many records of the layers of `kind` are wanted.
fn count(trace: &Trace, kind: LayerKind, wanted: impl Fn(&StreamRecord<'_>) -> bool) -> u64 {
    let streams = trace.layers_of(kind).flat_map(|layer| layer.streams.iter().map(|stream| layer.records(stream)));
    streams.map(|records| records.filter(|record| wanted(record)).count() as u64).sum()
}

fn is(name: &str) -> impl Fn(&StreamRecord<'_>) -> bool {
    move |record| record.schema.name() == name
}

/// Whether `found` times, each with its borders rounded down to a nanosecond, are `told`, the sum of the same rounded.
fn agree(found: (u64, u64), reported: u64) -> bool {
    found.1.abs_diff(reported) <= found.0 + 1
}

fn state_name(state: &str, detail: Option<&str>) -> String {
    match (state, detail) {
        ("unknown" | "vcpu_unknown", _) => "not known".into(),
        (state, Some(detail)) => format!("{state}: {}", harmless(detail)),
        (state, None) => state.into(),
    }
}

/// What holds of every export.
fn verify(trace: &Trace, answers: &Answers) {
    assert_eq!(answers.0[0], Vec::<Row>::new(), "errors of the import");

    let begins = |record: &StreamRecord<'_>| {
        record.schema.name() == "sched:sched_switch" && record.number("next_pid").unwrap() != 0
    };
    for (machine, kind) in [(0, LayerKind::HostKernel), (1, LayerKind::GuestKernel)] {
        let switches = count(trace, kind, begins);
        assert!(switches > 100, "{switches} switches of {kind}");
        assert_eq!(answers.of_machine(1, machine), switches, "scheduling slices of {kind}");
        let of_real_time = count(trace, kind, |record| begins(record) && record.number("next_prio").unwrap() < 100);
        assert_eq!(answers.of_machine(11, machine), of_real_time, "slices of real-time threads of {kind}");
        for name in ["sched_waking", "sched_wakeup", "sched_wakeup_new"] {
            assert_eq!(
                answers.ftrace(machine, name),
                count(trace, kind, is(&format!("sched:{name}"))),
                "{kind} {name}"
            );
        }
    }
    let of_vmm = count(trace, LayerKind::Vmm, |_| true);
    assert_eq!(answers.one(13).0, of_vmm, "events of the VMM");
    let kvm = answers.named(14);
    assert!(kvm.len() > 2, "{kvm:?}");
    for (name, &(found, _)) in &kvm {
        assert_eq!(found, count(trace, LayerKind::HostKernel, is(&format!("kvm:{name}"))), "{name} with fields");
    }
    assert_eq!(answers.one(15).0, answers.named(8).values().map(|(n, _)| n).sum::<u64>(), "calls with arguments");
    let is_interrupt = |record: &StreamRecord<'_>| {
        let name = record.schema.name();
        name == "irq:irq_handler_entry" || name.starts_with("irq_vectors:") && name.ends_with("_entry")
    };
    let interrupts = count(trace, LayerKind::GuestKernel, is_interrupt);
    assert_eq!(answers.ftrace(1, "irq_handler_entry"), interrupts);
    let softirqs = count(trace, LayerKind::GuestKernel, is("irq:softirq_entry"));
    assert_eq!(answers.ftrace(1, "softirq_entry"), softirqs);

    assert_eq!(answers.0[12], Vec::<Row>::new(), "states of threads that ended");

    let report = vcpus::report(trace, Window::ALL).unwrap();
    let mut reported = BTreeMap::new();
    for vcpu in report.vms.iter().flat_map(|vm| &vm.vcpus) {
        for part in vcpu.parts.iter().filter(|part| part.ticks > 0) {
            let name = format!("vCPU {} {}", vcpu.vcpu, state_name(part.state, part.detail.as_deref()));
            reported.insert(name, (part.count, part.ns));
        }
    }
    let found = answers.named(3);
    assert_eq!(found.keys().collect::<Vec<_>>(), reported.keys().collect::<Vec<_>>());
    for (name, &found) in &found {
        assert!(
            found.0 == reported[name].0 && agree(found, reported[name].1),
            "{name}: {found:?}, not {:?}",
            reported[name]
        );
    }

    let report = tasks::report(trace, Window::ALL).unwrap();
    let mut reported: BTreeMap<String, u64> = BTreeMap::new();
    for part in report.vms.iter().flat_map(|vm| &vm.tasks).flat_map(|task| &task.parts) {
        *reported.entry(state_name(part.state, part.detail.as_deref())).or_default() += part.ns;
    }
    let found = answers.named(4);
    assert!(found.len() > 10, "{found:?}");
    for (name, &found) in found.iter().filter(|(name, _)| *name != "not known") {
        // The report rounds the sum of each task.
        let rounded = found.0 + report.vms.iter().map(|vm| vm.tasks.len() as u64).sum::<u64>();
        assert!(found.1.abs_diff(reported[name]) <= rounded, "{name}: {found:?}, not {}", reported[name]);
    }

    let report = exits::report(trace, Window::ALL).unwrap();
    assert_eq!(answers.one(5).0, report.vms.iter().map(|vm| vm.count).sum::<u64>(), "exits");

    let report = flows::report(trace, Window::ALL).unwrap();
    let [vm] = &report.vms[..] else { panic!("{} VMs with requests", report.vms.len()) };
    assert_eq!(answers.one(6).0, vm.total.count, "disk requests");
    assert!(agree(answers.one(6), vm.total.total_ns), "{:?}, not {:?}", answers.one(6), vm.total);
    let steps: u64 = vm.steps.iter().map(|step| step.times.count).sum();
    assert_eq!(answers.one(7).0, steps - vm.total.count, "arrows between steps");

    let completeness =
        Completeness::of(trace.layers(), Window { begin: trace.start().unwrap(), end: u64::MAX }, trace.manifest());
    let gaps: u64 = completeness.layers.iter().map(|layer| layer.gap_ns).sum();
    assert!(agree(answers.one(9), gaps), "gaps: {:?}, not {gaps} ns", answers.one(9));
}

/// What holds where no record is missing.
fn verify_complete(trace: &Trace, answers: &Answers) {
    assert!(answers.one(6).0 > 10, "{:?} disk requests", answers.one(6));

    let report = syscalls::report(trace, Window::ALL).unwrap();
    // Perfetto knows the calls of x86-64's own table only.
    let is_drawn = |row: &&syscalls::SyscallRow| {
        row.abi == "x86_64" || row.name.rsplit(':').next().is_some_and(|name| names::syscall::number(name).is_some())
    };
    let rows = || report.guests[0].total.syscalls.iter().filter(is_drawn);
    let unfinished: u64 = rows().map(|row| row.unfinished).sum();
    let slices: u64 = answers.named(8).values().map(|(n, _)| n).sum();
    let calls: u64 = rows().map(|row| row.count).sum();
    assert!(calls > 100 && (calls..=calls + unfinished).contains(&slices), "{slices} slices of {calls} calls");

    let report = irqs::report(trace, Window::ALL).unwrap();
    let guest = report.handled.iter().find(|layer| layer.layer == LayerKind::GuestKernel).unwrap();
    let hard = guest.interrupts.iter().filter(|interrupt| !matches!(interrupt.kind, irqs::InterruptKind::Softirq));
    let (handled, unfinished) =
        hard.fold((0, 0), |sum, interrupt| (sum.0 + interrupt.times.count, sum.1 + interrupt.unfinished));
    let slices: u64 = answers.named(10).values().map(|(n, _)| n).sum();
    assert!((handled..=handled + unfinished).contains(&slices), "{slices} slices of {handled} interrupts");
}

/// A recording of `records` records that is made, complete.
fn made(folder: &Path, records: u64) -> PathBuf {
    let paths = Paths::of_workspace();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let example = ["run", "--quiet", "-p", "strata-recording", "--example", "write_layers", "--"];
    let made = folder.join("made");
    cargo.current_dir(paths.workspace()).args(example).arg(&made).arg(records.to_string());
    process::capture(&mut cargo).unwrap();
    made
}

#[test]
fn export_of_a_complete_recording_holds_it_and_the_figures_of_its_reports() {
    let folder = tempfile::tempdir().unwrap();
    let processor = trace_processor::fetch(&Paths::of_workspace()).unwrap();
    let trace = Trace::open(&made(folder.path(), 60_000)).unwrap();

    let answers = Answers::of(&processor, &trace, folder.path());

    verify(&trace, &answers);
    verify_complete(&trace, &answers);
    assert_eq!(answers.one(9), (0, 0));
    let calls = count(&trace, LayerKind::GuestKernel, is("raw_syscalls:sys_enter"));
    assert_eq!((answers.ftrace(1, "sys_enter"), answers.one(16).0), (calls, 0), "calls, and those without an end");
}

#[test]
fn path_of_a_task_is_read_as_slices_that_lie_in_each_other_and_fill_it() {
    let folder = tempfile::tempdir().unwrap();
    let processor = trace_processor::fetch(&Paths::of_workspace()).unwrap();
    let trace = Trace::open(&made(folder.path(), 60_000)).unwrap();
    let task = CriticalPathOptions { worst: Some(10), ..CriticalPathOptions::of("*/1001".parse().unwrap()) };
    let (why, _) = critical_paths(&trace, &task).unwrap();
    let path = folder.path().join("why.pftrace");
    let file = fs::File::create(&path).unwrap();

    perfetto::export_with(&trace, &Options::default(), Some(&why), file).unwrap();

    let of_track = "from slice join track on track.id = track_id where track.name like 'vm0: why %'";
    let queries = [
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0".to_owned(),
        format!("select slice.depth depth, count(*) n, sum(slice.dur) ns {of_track} group by 1 order by 1"),
        format!("select slice.name name, count(*) n {of_track} and slice.depth = 1 group by 1"),
    ];
    let answers = processor.query(&path, &queries.each_ref().map(String::as_str)).unwrap();
    let [errors, depths, names] = &answers[..] else { panic!("{answers:?}") };
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(number(&depths[0], "n"), why.paths.len() as u64);
    assert_eq!(number(&depths[0], "ns"), number(&depths[1], "ns"));
    assert!(depths.len() > 2, "no wait is followed: {depths:?}");
    let wall: u64 = why.paths.iter().map(|path| path.wall_ns).sum();
    assert!(number(&depths[0], "ns").abs_diff(wall) <= why.paths.len() as u64, "{depths:?}: {wall}");
    let labels: BTreeSet<String> =
        why.paths.iter().flat_map(|path| path.steps.iter().map(|step| step.label(&path.task))).collect();
    assert_eq!(names.iter().map(|row| text(row, "name")).collect::<BTreeSet<_>>(), labels);
}

/// `CLOCK_MONOTONIC` of a host whose trace clock shows `ns`: 10 ppm faster, and a minute ahead.
fn monotonic(ns: u64) -> u64 {
    ns + ns / 100_000 + 60_000_000_000
}

#[test]
fn times_of_records_are_those_of_the_hosts_clocks_to_within_the_widths_of_the_snapshots() {
    const WIDTH: u64 = 20;
    const RAW: u64 = 3_000_000_000;
    const YEAR_2023: u64 = 1_700_000_000_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let processor = trace_processor::fetch(&Paths::of_workspace()).unwrap();
    let made = made(folder.path(), 60_000);
    let trace = Trace::open(&made).unwrap();
    let (clock, begin, end) = (trace.clock(), trace.start().unwrap(), trace.end().unwrap());
    let interval = (end - begin) / 50;
    let snapshot = |ticks: u64| {
        // Each is read a little later than the one before, as wrong as it may be.
        let read = |place: u64, show: &dyn Fn(u64) -> u64| {
            let ticks = ticks + 500 * place;
            ClockReading { ticks, ns: show(clock.ticks_to_ns(ticks)) + WIDTH, uncertainty_ns: WIDTH }
        };
        ClockSnapshot {
            host: None,
            monotonic_raw: read(0, &|ns| ns + RAW),
            monotonic: read(1, &monotonic),
            boottime: read(2, &monotonic),
            realtime: read(3, &|ns| monotonic(ns) + YEAR_2023),
        }
    };
    let snapshots: Vec<_> = (0..=50).map(|number| snapshot(begin + number * interval)).collect();
    clock_snapshots::write(&snapshots, &made).unwrap();
    let queries = [
        QUERIES[0],
        "select ts, to_monotonic(ts) monotonic, to_realtime(ts) realtime from ftrace_event order by ts",
        "select slice.ts from slice join track on track.id = track_id where track.name = 'what this trace holds'",
    ];
    let path = folder.path().join("trace.pftrace");
    let trace = Trace::open(&made).unwrap();
    perfetto::export(&trace, &Options::default(), fs::File::create(&path).unwrap()).unwrap();

    let answers = processor.query(&path, &queries).unwrap();

    verify(&trace, &Answers::of(&processor, &trace, folder.path()));
    assert_eq!(answers[0], Vec::<Row>::new());
    assert_eq!(number(&answers[2][0], "ts"), clock.ticks_to_ns(begin) + RAW + WIDTH);
    assert!(answers[1].len() > 1_000, "{}", answers[1].len());
    // Perfetto counts on from the snapshot before, while the clocks drift apart; it rounds to nanoseconds.
    let bound = 2 * WIDTH + clock.ticks_to_ns(interval) / 100_000 + 3;
    for row in &answers[1] {
        let truth = monotonic(number(row, "ts") - RAW - WIDTH);
        assert!(number(row, "monotonic").abs_diff(truth) <= bound, "{row:?} {truth}");
        assert!(number(row, "realtime").abs_diff(truth + YEAR_2023) <= bound, "{row:?} {truth}");
    }
}

#[test]
fn export_of_a_damaged_recording_holds_what_is_left_and_shows_what_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let processor = trace_processor::fetch(&Paths::of_workspace()).unwrap();
    let made = made(folder.path(), 60_000);
    for layer in Trace::open(&made).unwrap().layers() {
        // One packet in the middle of each longer stream of the two kernels can no longer be believed.
        if matches!(layer.description.kind, LayerKind::HostKernel | LayerKind::GuestKernel) {
            for stream in layer.streams.iter().filter(|stream| stream.packets() > 4) {
                let path = made.join(&layer.description.path).join(&stream.description.file);
                let place = (stream.packets() / 2) as u64 * layer.description.packet_size;
                OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0; 64], place).unwrap();
            }
        }
    }
    let trace = Trace::open(&made).unwrap();

    let answers = Answers::of(&processor, &trace, folder.path());

    verify(&trace, &answers);
    assert!(answers.one(9).0 >= 4 && answers.one(9).1 > 0, "{:?}", answers.one(9));
}

#[test]
fn export_of_a_real_host_and_guest_holds_what_they_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let paths = Paths::of_workspace();
    let processor = trace_processor::fetch(&paths).unwrap();
    let recorded = analysis::once_per_test_run(&paths).unwrap().output.join("trace");
    let trace = Trace::open(&recorded).unwrap();

    let answers = Answers::of(&processor, &trace, folder.path());

    verify(&trace, &answers);
    verify_complete(&trace, &answers);
}
