use super::*;
use crate::made_recording;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt64Type};
use std::fs::{self, File};
use std::path::PathBuf;
use strata_recording::test_trace::{self, Field, TestTrace};
use tempfile::TempDir;
use trace_merge::events::{self, EventsOptions};
use trace_merge::report::devices::{blocks, flows, net_flows};
use trace_merge::report::kernels::{exits, functions, irqs, locks, syscalls};
use trace_merge::report::scenario;
use trace_merge::report::scheduling::{tasks, vcpus, wakeups};

/// The files of a table below `folder`.
fn files(folder: &Path, table: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.join(table)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// A table, read from its files.
struct Table(Vec<RecordBatch>);

impl Table {
    fn read(folder: &Path, table: &str) -> Self {
        let batches = |path: PathBuf| {
            let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
            reader.build().unwrap().map(Result::unwrap).collect::<Vec<_>>()
        };
        Self(files(folder, table).into_iter().flat_map(batches).collect())
    }

    fn rows(&self) -> u64 {
        self.0.iter().map(|batch| batch.num_rows() as u64).sum()
    }

    fn integers(&self, column: &str) -> Vec<Option<i64>> {
        let column = |batch: &RecordBatch| {
            batch.column_by_name(column).unwrap().as_primitive::<Int64Type>().iter().collect::<Vec<_>>()
        };
        self.0.iter().flat_map(column).collect()
    }

    fn moments(&self, column: &str) -> impl Iterator<Item = i64> {
        let column = |batch: &RecordBatch| {
            let column = batch.column_by_name(column).unwrap().as_primitive::<TimestampNanosecondType>();
            column.iter().flatten().collect::<Vec<_>>()
        };
        self.0.iter().flat_map(column).collect::<Vec<_>>().into_iter()
    }

    fn texts(&self, column: &str) -> Vec<Option<String>> {
        let column = |batch: &RecordBatch| {
            let column = batch.column_by_name(column).unwrap().as_string::<i32>();
            column.iter().map(|text| text.map(Into::into)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(column).collect()
    }

    /// The sum of an integer column over the rows in which the text column `by` is `value`.
    fn sum_where(&self, column: &str, by: &str, value: &str) -> u64 {
        let rows = self.integers(column).into_iter().zip(self.texts(by));
        let sum: i64 = rows.filter(|(_, by)| by.as_deref() == Some(value)).filter_map(|(number, _)| number).sum();
        sum.try_into().unwrap()
    }

    fn count_where(&self, by: &str, value: &str) -> u64 {
        self.texts(by).iter().filter(|by| by.as_deref() == Some(value)).count() as u64
    }
}

fn exported() -> (TempDir, TempDir, Trace) {
    let folder = TempDir::new().unwrap();
    let (dir, trace) = made_recording::export(folder.path());
    (folder, dir, trace)
}

/// The tables of what lies between `from` and `to`, ns after the first record.
fn part(trace: &Trace, from: Option<u64>, to: Option<u64>) -> TempDir {
    let folder = TempDir::new().unwrap();
    let [from, to] = [from, to].map(|ns| ns.map(std::time::Duration::from_nanos));
    export(trace, &Options { from, to, ..Options::default() }, folder.path(), &Selection::All).unwrap();
    folder
}

#[test]
fn gaps_lie_in_the_part_that_is_exported() {
    let (_dir, trace) = made_recording::open();
    let gaps = |from, to| {
        let table = Table::read(part(&trace, from, to).path(), "gaps");
        let rows = table.integers("begin_ns").into_iter().zip(table.integers("duration_ns"));
        rows.map(|(begin, duration)| (begin.unwrap(), duration.unwrap())).collect::<Vec<_>>()
    };

    let (whole, before, behind) = (gaps(None, None), gaps(None, Some(56_000)), gaps(Some(56_000), None));
    let from_an_end = gaps(Some(55_250), None);

    assert_eq!(whole, [(0, 55_250), (55_250, 10_250)]);
    assert_eq!(before, [(0, 55_250), (55_250, 750)]);
    assert_eq!(behind, [(56_000, 9_500)]);
    assert_eq!(from_an_end, [(55_250, 10_250)]);
}

#[test]
fn losses_of_parts_add_up_to_those_of_the_whole() {
    let (_dir, trace) = made_recording::open();
    let lost =
        |from, to| Table::read(part(&trace, from, to).path(), "losses").sum_where("lost_full", "layer", "guest-user");

    let whole = lost(None, None);
    let parts =
        [lost(None, Some(55_100)), lost(Some(55_100), Some(56_000)), lost(Some(56_000), None), lost(Some(0), None)];

    assert_eq!((whole, parts), (3, [0, 3, 0, 3]));
}

#[test]
fn duration_is_from_the_first_record_of_the_part_to_its_last_one() {
    let (_dir, trace) = made_recording::open();
    let duration = |from, to| Table::read(part(&trace, from, to).path(), "recordings").integers("duration_ns");

    let durations = [duration(None, None), duration(None, Some(56_000)), duration(Some(56_000), None)];

    assert_eq!(durations, [65_500, 55_250, 5_000].map(|ns| vec![Some(ns)]));
}

#[test]
fn every_record_is_in_the_table_of_its_type_which_begins_with_the_columns_of_events() {
    let (folder, _dir, trace) = exported();
    let expected: Vec<&str> = Fixed::find(EVENTS).unwrap().columns().map(|column| column.name).collect();

    let records: u64 =
        trace.layers().iter().map(|layer| strata_recording::reader::totals::Totals::of_layer(layer).events).sum();
    let names = table_names(&trace);
    let tables: Vec<Table> =
        names.iter().filter(|name| name.contains('.')).map(|name| Table::read(folder.path(), name)).collect();

    assert_eq!(tables.iter().map(Table::rows).sum::<u64>(), records);
    assert!(!folder.path().join(EVENTS).exists());
    for batch in tables.iter().flat_map(|table| &table.0) {
        let schema = batch.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names[..expected.len()], expected);
    }
}

#[test]
fn events_alone_are_all_records_without_their_fields() {
    let (folder, (_dir, trace)) = (TempDir::new().unwrap(), made_recording::open());

    let made =
        export(&trace, &Options::default(), folder.path(), &Selection::Named([EVENTS.to_string()].into())).unwrap();

    let switches = Table::read(folder.path(), "sched.sched_switch");
    assert_eq!(made.drawn, made.records);
    assert_eq!(switches.0[0].num_columns(), Fixed::find(EVENTS).unwrap().columns().count());
    assert_eq!(switches.count_where("event", "sched:sched_switch"), 10);
}

#[test]
fn every_fixed_table_has_rows_with_its_columns() {
    let (folder, _dir, _trace) = exported();

    for table in FIXED.iter().filter(|table| table.name != EVENTS) {
        let read = Table::read(folder.path(), table.name);
        // A recording of all layers misses none.
        assert!(read.rows() > 0 || table.name == "missing", "{}", table.name);
        for batch in &read.0 {
            let expected: Vec<&str> = table.columns().map(|column| column.name).collect();
            let schema = batch.schema();
            assert_eq!(schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), expected);
        }
    }
}

#[test]
fn time_counts_from_the_first_record_whose_utc_is_written() {
    let (folder, _dir, trace) = exported();
    let first = trace.clock().utc_ns(trace.start().unwrap());

    let (recordings, switches) =
        (Table::read(folder.path(), "recordings"), Table::read(folder.path(), "sched.sched_switch"));

    assert_eq!(recordings.moments("first_utc").map(i128::from).collect::<Vec<_>>(), [first]);
    let second = 1_000_000_000;
    let exact = switches.integers("time_ns").into_iter().map(|time| first + i128::from(time.unwrap()));
    let reported: Vec<i128> = switches.moments("utc").map(i128::from).collect();
    assert_eq!(reported, exact.map(|at| at.div_euclid(second) * second).collect::<Vec<_>>());
}

#[test]
fn states_of_vcpus_add_up_to_the_report() {
    let (folder, _dir, trace) = exported();
    let report = vcpus::report(&trace, Window::ALL).unwrap();

    let table = Table::read(folder.path(), "vcpu_states");

    let parts: Vec<_> = report.vms[0].vcpus.iter().flat_map(|vcpu| &vcpu.parts).collect();
    for state in parts.iter().map(|part| part.state) {
        let ticks: u64 = parts.iter().filter(|part| part.state == state).map(|part| part.ticks).sum();
        assert_eq!(table.sum_where("duration_ns", "state", state), trace.clock().ticks_to_ns(ticks), "{state}");
        assert_eq!(table.sum_where("duration_ticks", "state", state), ticks, "{state}");
    }
    assert_eq!(table.sum_where("duration_ns", "detail", "hog/200"), 9_000);
}

#[test]
fn thief_is_written_with_its_vm() {
    let folder = TempDir::new().unwrap();
    let (_dir, trace) = scenario::preempted_in_an_exit().with_neighbour("other", 200).open();

    export(&trace, &Options::default(), folder.path(), &Selection::All).unwrap();

    for name in ["vcpu_states", "task_states"] {
        let table = Table::read(folder.path(), name);
        let names = table.texts("detail").into_iter().zip(table.texts("thief_comm")).zip(table.integers("thief_tid"));
        let thieves: BTreeSet<_> = names.zip(table.texts("thief_vm")).filter(|(names, _)| names.1.is_some()).collect();
        let hog = (((Some("hog/200".into()), Some("hog".into())), Some(200)), Some("other".into()));
        assert_eq!(thieves, BTreeSet::from([hog]), "{name}");
    }
}

#[test]
fn names_stand_beside_the_numbers_of_fields() {
    let folder = TempDir::new().unwrap();
    let exit = [("common_pid", Field::Number(100)), ("exit_reason", Field::Number(0x78)), ("isa", Field::Number(2))];
    let begun = [("function", Field::Hex(0xffff_ffff_8100_0010))];
    let trace = TestTrace::new().host(0, 1, "kvm:kvm_exit", &exit).host(0, 2, "timer:hrtimer_expire_entry", &begun);
    let (_dir, trace) = trace.kallsyms("host-kernel", "ffffffff81000010 T hrtimer_wakeup\n").open();

    export(&trace, &Options::default(), folder.path(), &Selection::All).unwrap();

    let (exits, timers) =
        (Table::read(folder.path(), "kvm.kvm_exit"), Table::read(folder.path(), "timer.hrtimer_expire_entry"));
    assert_eq!(
        (&*exits.integers("exit_reason"), &*exits.texts("exit")),
        (&[Some(0x78)][..], &[Some("hlt".into())][..])
    );
    assert_eq!(timers.texts("function_symbol"), [Some("hrtimer_wakeup".into())]);
}

#[test]
fn interrupts_are_those_of_the_report() {
    let (folder, _dir, trace) = exported();
    let report = irqs::report(&trace, Window::ALL).unwrap();

    let (handled, injected) = (Table::read(folder.path(), "interrupts"), Table::read(folder.path(), "injections"));

    let interrupt = &report.handled[0].interrupts[0];
    assert_eq!(handled.rows(), interrupt.times.count);
    assert_eq!(handled.sum_where("duration_ns", "name", &interrupt.name), interrupt.times.total_ns);
    assert_eq!((&*handled.integers("vcpu"), &*handled.integers("cpu")), (&[Some(0)][..], &[None][..]));
    assert_eq!(
        (&*handled.texts("kind"), &*handled.integers("number")),
        (&[Some("vector".into())][..], &[Some(236)][..])
    );
    let vector = &report.injected[0].vectors[0];
    assert_eq!((injected.rows(), &*injected.integers("vector")), (vector.injected, &[Some(vector.vector)][..]));
    assert_eq!(injected.sum_where("duration_ns", "handler", &vector.handlers[0]), vector.delivery.total_ns);
    assert_eq!(injected.sum_where("pending_ns", "handler", &vector.handlers[0]), vector.pending.total_ns);
}

#[test]
fn samples_are_those_of_the_report() {
    let (folder, _dir, trace) = exported();
    let kernel = &functions::report(&trace, Window::ALL, None).unwrap().kernels[0];

    let table = Table::read(folder.path(), "samples");

    let function = &kernel.functions[0];
    assert_eq!((table.rows(), table.count_where("function", &function.function)), (kernel.samples, function.own));
    assert_eq!((&*table.texts("module"), &*table.integers("tid")), (&[Some("[kernel]".into())][..], &[Some(7)][..]));
    assert_eq!(table.texts("function"), [Some("schedule".into())]);
}

#[test]
fn block_requests_are_those_of_the_report() {
    let (folder, _dir, trace) = exported();
    let device = &blocks::report(&trace, Window::ALL).unwrap().kernels[0].devices[0];

    let table = Table::read(folder.path(), "block_requests");

    assert_eq!((table.rows(), table.count_where("device", &device.device)), (device.time.count, device.time.count));
    assert_eq!(table.sum_where("bytes", "operation", device.operation), device.bytes);
    assert_eq!(table.sum_where("duration_ns", "operation", device.operation), device.time.total_ns);
}

#[test]
fn states_of_tasks_add_up_to_the_report() {
    let (folder, _dir, trace) = exported();
    let report = tasks::report(&trace, Window::ALL).unwrap();

    let table = Table::read(folder.path(), "task_states");

    for task in &report.vms[0].tasks {
        let rows = table.integers("duration_ns").into_iter().zip(table.integers("tid"));
        let ns: i64 = rows.filter(|&(_, tid)| tid == Some(task.tid.into())).filter_map(|(ns, _)| ns).sum();
        assert_eq!(u64::try_from(ns).unwrap(), trace.clock().ticks_to_ns(task.wall_ticks), "{}", task.comm);
        let rows = table.integers("duration_ticks").into_iter().zip(table.integers("tid"));
        let ticks: i64 = rows.filter(|&(_, tid)| tid == Some(task.tid.into())).filter_map(|(ticks, _)| ticks).sum();
        assert_eq!(u64::try_from(ticks).unwrap(), task.wall_ticks, "{}", task.comm);
    }
    assert_eq!(table.count_where("comm", "late"), table.sum_where("tid", "comm", "late") / 11);
}

#[test]
fn wakeups_say_what_happened_meanwhile() {
    let (folder, _dir, trace) = exported();
    let report = wakeups::report(&trace, Window::ALL).unwrap();

    let table = Table::read(folder.path(), "wakeups");

    assert_eq!(table.rows(), report.vms[0].latency.count);
    let worst = &report.vms[0].worst[0];
    assert_eq!(table.sum_where("duration_ns", "comm", "late"), worst.latency_ns);
    let meanwhile = table.texts("meanwhile").remove(0).unwrap();
    assert_eq!(meanwhile, serde_json::to_string(&worst.meanwhile).unwrap());
}

#[test]
fn calls_are_counted_as_in_the_report_by_how_they_ended() {
    let (folder, _dir, trace) = exported();
    let report = syscalls::report(&trace, Window::ALL).unwrap();

    let table = Table::read(folder.path(), "syscalls");

    let rows = &report.guests[0].total.syscalls;
    let sum = |of: fn(&syscalls::SyscallRow) -> u64| rows.iter().map(of).sum::<u64>();
    let is_counted = ["returned", "interrupted", "never-returns"];
    let counted: u64 = is_counted.iter().map(|outcome| table.count_where("outcome", outcome)).sum();
    assert_eq!(counted, sum(|row| row.count));
    assert_eq!(table.count_where("outcome", "unfinished"), sum(|row| row.unfinished));
    assert_eq!(table.count_where("outcome", "return-only"), sum(|row| row.returns_only));
    assert_eq!(table.sum_where("duration_ns", "name", "read"), 1_000);
    assert_eq!(table.sum_where("cpu_ns", "outcome", "returned"), sum(|row| row.cpu_ns));
}

#[test]
fn waits_and_exits_and_requests_are_those_of_the_reports() {
    let (folder, _dir, trace) = exported();
    let (waits, exits, requests) = (
        locks::report(&trace, Window::ALL).unwrap(),
        exits::report(&trace, Window::ALL).unwrap(),
        flows::report(&trace, Window::ALL).unwrap(),
    );

    let [locks, exit, flow, steps] =
        ["locks", "exits", "flows", "flow_steps"].map(|name| Table::read(folder.path(), name));

    let guest = &waits.guests[0];
    assert_eq!(locks.sum_where("duration_ns", "what", "kernel"), guest.kernel[0].waits.total_ns);
    assert_eq!(locks.sum_where("duration_ns", "what", "futex"), guest.futexes[0].waits.total_ns);
    assert_eq!(locks.0[0].column_by_name("address").unwrap().as_primitive::<UInt64Type>().len(), 2);
    for reason in &exits.vms[0].reasons {
        assert_eq!(exit.count_where("reason", &reason.reason), reason.count, "{}", reason.reason);
        assert_eq!(exit.sum_where("duration_ns", "reason", &reason.reason), reason.time.total_ns);
        assert_eq!(exit.sum_where("vmm_ns", "reason", &reason.reason), reason.vmm_ns);
    }
    assert_eq!((flow.rows(), steps.rows()), (1, requests.vms[0].steps.len() as u64));
    assert_eq!(requests.vms[0].total.count, 1);
    let ns = |table: &Table| table.integers("duration_ns").into_iter().flatten().sum::<i64>();
    assert_eq!(ns(&flow), ns(&steps));
}

#[test]
fn packets_and_their_steps_are_those_of_the_report() {
    let (folder, _dir, trace) = exported();
    let report = net_flows::report(&trace, Window::ALL).unwrap();

    let [packets, steps] = ["packets", "packet_steps"].map(|name| Table::read(folder.path(), name));

    let sent = &report.vms[0].sent;
    assert_eq!((sent.total.count, packets.rows()), (1, 1));
    assert_eq!(packets.sum_where("bytes", "direction", "sent"), 98);
    assert_eq!(packets.sum_where("duration_ns", "device", "eth0"), sent.total.total_ns);
    let ns = |table: &Table| table.integers("duration_ns").into_iter().flatten().collect::<Vec<_>>();
    assert_eq!(ns(&packets), [60]);
    assert_eq!(ns(&steps), [5, 45, 10]);
    assert_eq!(steps.texts("step")[0].as_deref(), Some("queued → given to the driver"));
}

#[test]
fn losses_and_gaps_are_rows_and_what_lies_in_them_has_no_time() {
    let (folder, _dir, trace) = exported();

    let [losses, gaps, calls] = ["losses", "gaps", "syscalls"].map(|name| Table::read(folder.path(), name));

    assert_eq!(losses.sum_where("lost_full", "layer", "guest-user"), 3);
    // Before its first record and behind its last one: only the packet says that records were lost.
    assert_eq!((gaps.rows(), gaps.count_where("layer", "guest-user")), (2, 2));
    let unfinished =
        calls.texts("outcome").iter().position(|outcome| outcome.as_deref() == Some("unfinished")).unwrap();
    assert_eq!(calls.integers("duration_ns")[unfinished], None);
    let incomplete = Table::read(folder.path(), "recordings").texts("incomplete");
    assert_eq!(incomplete.len(), 1);
    assert!(incomplete[0].as_ref().is_some_and(|line| line.contains("lost")), "{incomplete:?}");
    assert_eq!(trace.layers().len(), 5);
}

#[test]
fn fields_whose_names_are_taken_get_others_and_processes_share_a_file() {
    let (folder, _dir, _trace) = exported();

    let table = Table::read(folder.path(), "web.answered");

    assert_eq!(files(folder.path(), "web.answered").len(), 1);
    assert_eq!(table.integers("field_cpu"), [Some(-5); 2]);
    assert_eq!(table.integers("field_UTC"), [Some(1); 2]);
    assert_eq!(table.texts("field_comm")[0].as_deref(), Some("a \"quoted\"\tname"));
    assert_eq!((table.integers("pid"), table.integers("vcpu")), (vec![Some(7), Some(8)], vec![Some(1); 2]));
}

#[test]
fn files_lie_by_host_boot_vm_and_hour_and_say_their_version() {
    let (folder, _dir, trace) = exported();

    let path = files(folder.path(), "exits").remove(0);

    let relative = path.strip_prefix(folder.path()).unwrap().parent().unwrap();
    let null = crate::tables::NULL_PARTITION;
    assert_eq!(relative, Path::new(&format!("exits/host={null}/boot={null}/vm=vm0/hour=2023-11-14T22")));
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
    let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let value = |key| metadata.iter().find(|entry| entry.key == key).and_then(|entry| entry.value.clone());
    assert_eq!(value(crate::tables::VERSION_KEY).as_deref(), Some(crate::tables::VERSION));
    assert_eq!(value(crate::tables::RECORDING_KEY), Some(trace.layers()[0].description.uuid.simple().to_string()));
}

#[test]
fn only_the_tables_that_are_requested_are_written() {
    let (folder, (_dir, trace)) = (TempDir::new().unwrap(), made_recording::open());
    let names = ["exits", "sched.sched_switch"].map(String::from);

    export(&trace, &Options::default(), folder.path(), &Selection::Named(names.clone().into())).unwrap();

    let mut made: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    made.sort();
    assert_eq!(made, names);
    assert_eq!(Table::read(folder.path(), "sched.sched_switch").rows(), 10);
}

#[test]
fn tables_that_are_chosen_are_written_with_what_they_are_of() {
    let (folder, (_dir, trace)) = (TempDir::new().unwrap(), made_recording::open());
    let selection = Selection::chosen(&["exits", EVENTS].map(String::from), &trace).unwrap();

    export(&trace, &Options::default(), folder.path(), &selection).unwrap();

    let mut made: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    made.retain(|name| !name.contains('.'));
    made.sort();
    assert_eq!(made, ["event_fields", "exits", "gaps", "losses", "recordings", "vms"]);
    let switches = Table::read(folder.path(), "sched.sched_switch");
    assert_eq!(switches.integers("next_pid").len(), 10);
    let path = files(folder.path(), "recordings").remove(0);
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let chosen = metadata.iter().find(|entry| entry.key == crate::tables::CHOSEN_KEY);
    assert_eq!(chosen.and_then(|entry| entry.value.as_deref()), Some("events,exits"));
}

#[test]
fn table_that_the_recording_has_not_is_not_chosen() {
    let (_dir, trace) = made_recording::open();
    let refused = |name: &str| Selection::chosen(&[name.into()], &trace).unwrap_err().to_string();

    let (misspelt, other) = (refused("exit"), refused("sched.sched_other"));

    assert!(misspelt.starts_with("there is no table 'exit'; nearest: exits"), "{misspelt}");
    assert!(other.starts_with("there is no table 'sched.sched_other'; "), "{other}");
}

#[test]
fn counted_rows_are_those_in_the_files() {
    let (folder, (_dir, trace)) = (tempfile::tempdir().unwrap(), made_recording::open());

    let reported = super::export(&trace, &Options::default(), folder.path(), &Selection::All).unwrap();

    assert_eq!(reported.drawn, Table::read(folder.path(), "").rows());
}

#[test]
fn part_of_a_recording_without_records_is_refused() {
    let (folder, (_dir, trace)) = (TempDir::new().unwrap(), made_recording::open());
    let options = Options { from: Some(std::time::Duration::from_secs(5)), ..Options::default() };

    let refused = export(&trace, &options, folder.path(), &Selection::All).unwrap_err();

    assert!(matches!(refused, ExportError::Nothing), "{refused}");
}

#[test]
fn folder_that_cannot_be_written_is_reported() {
    let (folder, (_dir, trace)) = (TempDir::new().unwrap(), made_recording::open());
    fs::write(folder.path().join("exits"), "a file in the place of a folder").unwrap();

    let refused = export(&trace, &Options::default(), folder.path(), &Selection::All).unwrap_err();

    assert!(matches!(refused, ExportError::Write(_)), "{refused}");
}

#[test]
fn state_of_a_task_that_calls_itself_otherwise_is_a_row_under_each_name() {
    let (_dir, trace) = TestTrace::new()
        .named_switch((0, 1_000), (0, "swapper"), 0, (7, "sh"))
        .rename(0, 2_000, 7, "sh", "dd")
        .rename(0, 2_400, 7, "dd", "cat")
        .named_switch((0, 4_000), (7, "cat"), 0, (8, "x"))
        .rename(1, 5_000, 7, "cat", "tac")
        .named_switch((0, 8_000), (8, "x"), 0, (7, "tac"))
        .open();
    let folder = TempDir::new().unwrap();
    export(&trace, &Options::default(), folder.path(), &Selection::All).unwrap();

    let table = Table::read(folder.path(), "task_states");

    let sum = |name: &str| table.sum_where("duration_ns", "comm", name);
    // A tick is half a nanosecond.
    assert_eq!(["sh", "dd", "cat", "tac"].map(sum), [500, 200, 800 + 500, 1_500]);
    let report = tasks::report(&trace, Window::ALL).unwrap();
    let of_report = |name: &str| {
        let rows = report.vms[0].tasks.iter().filter(|task| task.comm == name);
        rows.map(|task| task.wall_ns).sum::<u64>()
    };
    assert_eq!(["sh", "dd", "cat", "tac"].map(of_report), [500, 200, 1_300, 1_500]);
}

/// Time, event, thread and name of each record of `trace`, as `strata events` has them.
fn listed(trace: &Trace) -> Vec<(i64, String, Option<i64>, Option<String>)> {
    let mut out = Vec::new();
    let options = EventsOptions { json: true, ..EventsOptions::default() };
    events::list(trace, &options, &mut out).unwrap();
    let mut records: Vec<_> = String::from_utf8(out).unwrap().lines().map(of_listing).collect();
    records.sort();
    records
}

fn of_listing(line: &str) -> (i64, String, Option<i64>, Option<String>) {
    let record: serde_json::Value = serde_json::from_str(line).unwrap();
    // What an application recorded is of its process.
    let task = record.get("task").filter(|task| !task.is_null()).unwrap_or(&record);
    let text = |value: &serde_json::Value| value.as_str().map(String::from);
    (record["ticks"].as_i64().unwrap(), text(&record["event"]).unwrap(), task["tid"].as_i64(), text(&task["comm"]))
}

/// The same, as the tables of event types have them.
fn tabled(trace: &Trace) -> Vec<(i64, String, Option<i64>, Option<String>)> {
    let folder = TempDir::new().unwrap();
    export(trace, &Options::default(), folder.path(), &Selection::All).unwrap();
    let names = table_names(trace).into_iter().filter(|name| name.contains('.'));
    let mut records: Vec<_> = names.flat_map(|name| of_table(&Table::read(folder.path(), &name))).collect();
    records.sort();
    records
}

fn of_table(table: &Table) -> Vec<(i64, String, Option<i64>, Option<String>)> {
    let named = table.texts("event").into_iter().map(Option::unwrap).zip(table.integers("tid"));
    let times = table.integers("ticks").into_iter().flatten();
    times.zip(named).zip(table.texts("comm")).map(|((ticks, (event, tid)), comm)| (ticks, event, tid, comm)).collect()
}

#[test]
fn thread_and_name_of_every_record_are_those_of_the_listing() {
    let number = |number| test_trace::Field::Number(number);
    let text = test_trace::Field::Text;
    let of = |tid| [("common_pid", number(tid))];
    let host_switch = |prev, before, next, after| {
        [
            ("common_pid", number(prev)),
            ("prev_comm", text(before)),
            ("prev_pid", number(prev)),
            ("next_comm", text(after)),
            ("next_pid", number(next)),
        ]
    };
    let fork = [("child_comm", text("sh")), ("child_pid", number(9))];
    let exec = [("filename", text("/bin/ls")), ("pid", number(9)), ("old_pid", number(9))];
    let (_dir, trace) = TestTrace::new()
        .host(0, 1, "kvm:kvm_entry", &of(100))
        .host(1, 2, "sched:sched_switch", &host_switch(0, "swapper/1", 100, "vcpu0"))
        .host(1, 3, "kvm:kvm_entry", &of(100))
        .host(1, 4, "kvm:kvm_entry", &of(101))
        .host(0, 5, "sched:sched_switch", &host_switch(0, "swapper/0", 101, "vcpu1"))
        .host(0, 6, "kvm:kvm_entry", &of(101))
        .guest(0, 7, "test:tick", &[])
        .named_switch((0, 8), (7, "sh"), 1, (0, "swapper/0"))
        .guest(0, 9, "test:tick", &[])
        .named_switch((1, 10), (8, "eight"), 1, (0, "swapper/1"))
        .guest(1, 11, "test:tick", &[])
        .named_switch((0, 12), (0, "swapper/0"), 1, (7, "sh"))
        .guest(0, 13, "sched:sched_process_fork", &fork)
        .named_switch((0, 14), (7, "sh"), 1, (9, "sh"))
        .guest(0, 15, "sched:sched_process_exec", &exec)
        .rename(0, 16, 9, "sh", "ls")
        .guest(0, 17, "test:tick", &[])
        .lost(LayerKind::GuestKernel, 0, 2)
        .guest(0, 18, "test:tick", &[])
        .named_switch((0, 19), (9, "ls"), 1, (7, "sh"))
        .guest(0, 20, "test:tick", &[])
        .user(7, 0, 21, "web:answered", &[("status", number(200))])
        .open();

    let names = tabled(&trace);

    assert_eq!(names, listed(&trace));
    assert_eq!(names.iter().filter(|name| name.3.as_deref() == Some("swapper/1")).count(), 2, "{names:?}");
    assert!(names.contains(&(17, "test:tick".into(), Some(9), Some("ls".into()))), "{names:?}");
}

#[test]
fn thread_and_name_of_every_record_of_all_layers_are_those_of_the_listing() {
    let (_dir, trace) = made_recording::open();

    assert_eq!(tabled(&trace), listed(&trace));
}
