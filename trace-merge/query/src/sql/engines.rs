//! Ready questions on another engine: the same SQL about the same tables has the same answers. `cargo xtask query` runs
//! these tests, which need what those of `crate::duckdb` need.

use super::tests::answer;
use super::{Database, READY};
use crate::made_recording;
use crate::parquet::{Selection, export};
use crate::tables::EVENTS;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_export::Options;
use strata_recording::reader::Trace;

/// What an answer may differ by where it is a share, rounded to two decimals.
const SHARE: f64 = 0.011;
/// What a percentile may differ by, ns: a half is rounded up by one and down by the other.
const ROUNDING: f64 = 1.0;

/// The answers to the questions in the arguments about the tables in a folder: of each, rows as JSON objects.
const SCRIPT: &str = r#"
import duckdb, json, pathlib, sys
folder, questions = pathlib.Path(sys.argv[1]), sys.argv[2:]
duckdb.sql("set timezone = 'UTC'")
for table in folder.iterdir():
    schema, name = table.name.split(".") if "." in table.name else ("main", table.name)
    files = f"'{table}/**/*.parquet', hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
    duckdb.sql(f'create schema if not exists "{schema}"')
    duckdb.sql(f'create view "{schema}"."{name}" as select * from read_parquet({files})')
# All tables of event types are one.
files = f"'{folder}/*.*/**/*.parquet', hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
duckdb.sql(f"create view events as select * from read_parquet({files})")
def rows(question):
    answer = duckdb.sql(question)
    kinds = zip(answer.columns, answer.types)
    columns = [f'cast("{name}" as varchar)' if "TIMESTAMP" in str(kind) else f'"{name}"' for name, kind in kinds]
    return [dict(zip(answer.columns, row)) for row in answer.project(", ".join(columns)).fetchall()]
print(json.dumps([rows(question) for question in questions], default = str))
"#;

/// What DuckDB answers about the tables in `folder`.
fn duckdb(folder: &Path, questions: &[&str]) -> Vec<Vec<Map<String, Value>>> {
    let python = std::env::var_os("STRATA_DUCKDB_PYTHON").expect("cargo xtask query sets STRATA_DUCKDB_PYTHON");
    let output = Command::new(python).args(["-c", SCRIPT]).arg(folder).args(questions).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `text` to the second, where it is a time: engines write the rest in their own ways.
fn second(text: &str) -> Option<String> {
    let is_time = text.len() >= 19 && text.as_bytes()[13] == b':' && text.as_bytes()[16] == b':';
    is_time.then(|| text[..19].replace('T', " "))
}

fn is_alike(column: &str, ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::String(ours), Value::String(theirs)) => {
            ours == theirs || second(ours).is_some_and(|ours| Some(ours) == second(theirs))
        }
        (Value::Number(a), Value::Number(b)) => {
            let (of, other) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            let allowed = match column {
                "p50_ns" | "p99_ns" => ROUNDING,
                _ if a.is_f64() => SHARE,
                _ => 0.0,
            };
            (of - other).abs() <= allowed
        }
        (ours, theirs) => ours == theirs,
    }
}

/// Compares what DataFusion and DuckDB answer about the tables of `trace`: every ready question whose tables it has.
/// How many those are.
fn check(trace: &Trace) -> usize {
    let folder = tempfile::tempdir().unwrap();
    export(trace, &Options::default(), folder.path(), &Selection::All).unwrap();
    let database = Database::new().unwrap();
    let has = |table: &String| table == EVENTS || folder.path().join(table).is_dir();
    let is_there = |text| database.tables_of(text).unwrap().iter().all(has);
    let requested: Vec<_> = READY.iter().filter(|ready| is_there(ready.text)).collect();

    let answers = duckdb(folder.path(), &requested.iter().map(|ready| ready.text).collect::<Vec<_>>());

    for (ready, mut theirs) in requested.iter().zip(answers) {
        let ours = answer(&[folder.path()], ready.text).unwrap();
        assert_eq!(ours.len(), theirs.len(), "{}", ready.name);
        for row in ours {
            let Value::Object(row) = row else { panic!("{}: {row}", ready.name) };
            let is_same = |other: &Map<String, Value>| {
                row.len() == other.len()
                    && row
                        .iter()
                        .all(|(column, value)| other.get(column).is_some_and(|other| is_alike(column, value, other)))
            };
            let found = theirs.iter().position(is_same);
            theirs.remove(found.unwrap_or_else(|| panic!("{}: {row:?} is not in {theirs:?}", ready.name)));
        }
    }
    requested.len()
}

#[test]
#[ignore = "tier all: needs DuckDB: cargo xtask query"]
fn every_ready_question_has_the_same_answer_from_duckdb() {
    let (_dir, trace) = made_recording::open();

    assert_eq!(check(&trace), READY.len());
}

#[test]
#[ignore = "tier all: needs DuckDB: cargo xtask query"]
fn ready_questions_about_the_recording_that_is_given_have_the_same_answers_from_duckdb() {
    let Some(path) = std::env::var_os("STRATA_DUCKDB_TRACE").map(PathBuf::from) else { return };

    assert!(check(&Trace::open(&path).unwrap()) > 0);
}
