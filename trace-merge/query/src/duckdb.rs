//! What DuckDB reads in an export: every row, and the figures of the reports. `cargo xtask query` runs these tests;
//! they need a Python that has DuckDB, in `STRATA_DUCKDB_PYTHON`, and take a recording of yours in
//! `STRATA_DUCKDB_TRACE`.

use crate::made_recording;
use crate::parquet::{Selection, export, table_names};
use crate::tables::EVENTS;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_export::Options;
use strata_recording::reader::Trace;
use strata_recording::reader::totals::Totals;
use trace_merge::report::Window;
use trace_merge::report::devices::{flows, net_flows};
use trace_merge::report::kernels::{exits, locks, syscalls};
use trace_merge::report::scheduling::{tasks, vcpus, wakeups};

/// Answers to each of the questions in the arguments, as JSON: lists of rows. `{name}` stands for a table.
const SCRIPT: &str = r#"
import duckdb, json, re, sys
folder, questions = sys.argv[1], sys.argv[2:]
def table(match):
    name = "*.*" if match[1] == "events" else match[1]
    return f"read_parquet('{folder}/{name}/**/*.parquet', hive_partitioning = true, union_by_name = true)"
answers = [duckdb.sql(re.sub(r"\{([^}]*)\}", table, question)).fetchall() for question in questions]
print(json.dumps(answers, default = str))
"#;

/// What DuckDB answers about the tables in `folder`.
fn answers(folder: &Path, questions: &[String]) -> Vec<Vec<Vec<Value>>> {
    let python = std::env::var_os("STRATA_DUCKDB_PYTHON").expect("cargo xtask query sets STRATA_DUCKDB_PYTHON");
    let output = Command::new(python).args(["-c", SCRIPT]).arg(folder).args(questions).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> u64 {
    // Sums are integers of 128 bits, which may come as text.
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_default()
}

/// Rows of a name and a number.
fn by_name(rows: &[Vec<Value>]) -> BTreeMap<String, u64> {
    rows.iter().map(|row| (row[0].as_str().unwrap_or_default().into(), number(&row[1]))).collect()
}

/// Adds up numbers by name, those of 0 left out.
fn sums(parts: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    parts.filter(|&(_, number)| number > 0).for_each(|(name, number)| *sums.entry(name).or_default() += number);
    sums
}

/// Checks that `sum` is `whole`, ns, when each of its `rows` parts was rounded down.
fn assert_rounded(sum: u64, whole: u64, rows: u64) {
    assert!((sum..=sum + rows).contains(&whole), "{sum} ns in {rows} rows of {whole} ns");
}

/// Compares what DuckDB reads of the tables of `trace` with its reports.
fn check(trace: &Trace) {
    let folder = tempfile::tempdir().unwrap();
    export(trace, &Options::default(), folder.path(), &Selection::All).unwrap();
    let is_there = |table: &String| table == EVENTS || folder.path().join(table).is_dir();
    let tables: Vec<String> = table_names(trace).into_iter().filter(is_there).collect();

    let counts = answers(
        folder.path(),
        &tables.iter().map(|table| format!("select count(*) from {{{table}}}")).collect::<Vec<_>>(),
    );
    let counts: BTreeMap<&str, u64> =
        tables.iter().map(String::as_str).zip(counts.iter().map(|rows| number(&rows[0][0]))).collect();

    let records: u64 = trace.layers().iter().map(|layer| Totals::of_layer(layer).events).sum();
    assert_eq!(counts["events"], records);
    assert_eq!(counts.iter().filter(|(table, _)| table.contains('.')).map(|(_, count)| count).sum::<u64>(), records);
    let count = |table: &str| counts.get(table).copied().unwrap_or(0);
    if let Ok(report) = wakeups::report(trace, Window::ALL) {
        assert_eq!(count("wakeups"), report.vms.iter().map(|vm| vm.latency.count).sum::<u64>());
    }
    if let Ok(report) = flows::report(trace, Window::ALL) {
        assert_eq!(count("flows"), report.vms.iter().map(|vm| vm.total.count).sum::<u64>());
        let steps = report.vms.iter().flat_map(|vm| &vm.steps).map(|step| step.times.count).sum::<u64>();
        assert_eq!(count("flow_steps"), steps);
    }
    if let Ok(report) = net_flows::report(trace, Window::ALL) {
        let ways = || report.vms.iter().flat_map(|vm| [&vm.sent, &vm.received]);
        assert_eq!(count("packets"), ways().map(|way| way.total.count).sum::<u64>());
        let steps = ways().flat_map(|way| &way.steps).map(|step| step.times.count).sum::<u64>();
        assert_eq!(count("packet_steps"), steps);
    }
    if let Ok(report) = vcpus::report(trace, Window::ALL) {
        let question = "select state, sum(duration_ns), count(*) from {vcpu_states} group by 1";
        let reported = answers(folder.path(), &[question.into()]);
        let parts = report.vms.iter().flat_map(|vm| &vm.vcpus).flat_map(|vcpu| &vcpu.parts);
        let parts = sums(parts.map(|part| (part.state.to_string(), part.ticks)));
        for row in &reported[0] {
            let ticks = parts.get(row[0].as_str().unwrap_or_default()).copied().unwrap_or(0);
            assert_rounded(number(&row[1]), trace.clock().ticks_to_ns(ticks), number(&row[2]));
        }
    }
    if let Ok(report) = tasks::report(trace, Window::ALL) {
        let reported = answers(folder.path(), &["select sum(duration_ns), count(*) from {task_states}".into()]);
        let wall: u64 = report.vms.iter().flat_map(|vm| &vm.tasks).map(|task| task.wall_ticks).sum();
        assert_rounded(number(&reported[0][0][0]), trace.clock().ticks_to_ns(wall), number(&reported[0][0][1]));
    }
    if let Ok(report) = exits::report(trace, Window::ALL) {
        let reported = answers(folder.path(), &["select reason, count(*) from {exits} group by 1".into()]);
        let reasons = report.vms.iter().flat_map(|vm| &vm.reasons);
        assert_eq!(by_name(&reported[0]), sums(reasons.map(|reason| (reason.reason.clone(), reason.count))));
    }
    if let Ok(report) = syscalls::report(trace, Window::ALL) {
        let question = "select name, count(*) from {syscalls}
            where outcome in ('returned', 'interrupted', 'never-returns') group by 1";
        let reported = answers(folder.path(), &[question.into()]);
        let rows = report.guests.iter().flat_map(|guest| &guest.total.syscalls);
        assert_eq!(by_name(&reported[0]), sums(rows.map(|row| (row.name.clone(), row.count))));
    }
    if let Ok(report) = locks::report(trace, Window::ALL)
        && count("locks") > 0
    {
        let question = "select what, count(*) from {locks} where outcome in ('waited', 'timed-out') group by 1";
        let reported = answers(folder.path(), &[question.into()]);
        let kernel = report.guests.iter().flat_map(|guest| &guest.kernel).map(|lock| ("kernel", lock.waits.count));
        let futexes = report.guests.iter().flat_map(|guest| &guest.futexes).map(|lock| ("futex", lock.waits.count));
        assert_eq!(by_name(&reported[0]), sums(kernel.chain(futexes).map(|(what, count)| (what.to_string(), count))));
    }
}

#[test]
#[ignore = "tier all: needs DuckDB: cargo xtask query"]
fn made_recording_is_read_with_the_figures_of_the_reports() {
    let (_dir, trace) = made_recording::open();

    check(&trace);
}

#[test]
#[ignore = "tier all: needs DuckDB: cargo xtask query"]
fn recording_that_is_given_is_read_with_the_figures_of_the_reports() {
    let Some(path) = std::env::var_os("STRATA_DUCKDB_TRACE").map(PathBuf::from) else { return };

    check(&Trace::open(&path).unwrap());
}
