use super::*;
use crate::made_recording;
use serde_json::{Value, json};
use std::fs;

/// The answer to `question` about what lies in `paths`, as rows.
pub(super) fn answer(paths: &[&Path], question: &str) -> Result<Vec<Value>, QueryError> {
    let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
    let (database, _tables) = Inputs::of(&paths)?.database(question)?;
    let mut out = Vec::new();
    database.ask(question, async |answer| print(answer, Form::Json, &mut out).await)?;
    let text = String::from_utf8(out).unwrap();
    Ok(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn every_ready_question_has_an_answer_and_says_what_it_answers() {
    let (dir, _trace) = made_recording::open();

    for ready in READY {
        let answered = answer(&[dir.path()], ready.text);

        assert!(answered.as_ref().is_ok_and(|rows| !rows.is_empty()), "{}: {answered:?}", ready.name);
        assert!(ready.about().len() > 20, "{}", ready.name);
    }
    assert!(READY.len() >= 24);
}

#[test]
fn recording_and_its_tables_answer_alike() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, _trace) = made_recording::export(folder.path());
    let question = "select vm, state, sum(duration_ns) as ns from vcpu_states group by vm, state order by state";

    let (of_trace, of_tables) = (answer(&[dir.path()], question).unwrap(), answer(&[folder.path()], question).unwrap());

    assert_eq!(of_trace, of_tables);
    assert!(of_trace.contains(&json!({ "vm": "vm0", "state": "vmm", "ns": 2_500 })), "{of_trace:?}");
}

#[test]
fn several_inputs_are_one_database() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, _trace) = made_recording::export(folder.path());
    let question = "select count(*) as n, count(distinct recording) as recordings from sched.sched_switch";

    let both = answer(&[dir.path(), folder.path()], question).unwrap();

    assert_eq!(both, [json!({ "n": 20, "recordings": 1 })]);
}

#[test]
fn null_of_a_folders_name_is_a_null() {
    let (dir, _trace) = made_recording::open();
    let question = "select vm, host, count(*) as n from events where layer in ('host-kernel', 'vmm') group by vm, host
                    order by vm nulls first";

    let rows = answer(&[dir.path()], question).unwrap();

    assert_eq!((&rows[0]["vm"], &rows[0]["host"]), (&Value::Null, &Value::Null));
    assert_eq!(rows[1]["vm"], "vm0");
}

#[test]
fn table_without_rows_is_there() {
    let (dir, _trace) = made_recording::open();

    let rows = answer(&[dir.path()], "select count(*) as n, count(vm) as vms from missing").unwrap();

    assert_eq!(rows, [json!({ "n": 0, "vms": 0 })]);
}

#[test]
fn wrong_question_is_answered_in_one_line() {
    let (dir, _trace) = made_recording::open();
    let error = |question| answer(&[dir.path()], question).unwrap_err().to_string();

    let [misspelt, no_table, no_column, no_query] = [
        "selct * from events",
        "select * from evnts",
        "select colour from events",
        "create table mine as select * from events",
    ]
    .map(error);

    assert!(misspelt.contains("selct"), "{misspelt}");
    assert!(no_table.starts_with("there is no table 'evnts'; nearest: events"), "{no_table}");
    assert!(no_column.contains("colour"), "{no_column}");
    assert!(no_query.starts_with("only questions are answered"), "{no_query}");
    for line in [misspelt, no_table, no_column, no_query] {
        assert!(!line.contains('\n'), "{line}");
    }
}

#[test]
fn what_is_neither_recording_nor_tables_is_refused() {
    let folder = tempfile::tempdir().unwrap();

    let (empty, absent) = (
        answer(&[folder.path()], "select 1").unwrap_err(),
        answer(&[&folder.path().join("absent")], "select 1").unwrap_err(),
    );

    assert!(matches!(empty, QueryError::NoInput(_)), "{empty}");
    assert!(matches!(absent, QueryError::Read(_)), "{absent}");
}

#[test]
fn answer_is_saved_in_the_form_that_the_name_says_and_never_over_a_file() {
    let (folder, (dir, _trace)) = (tempfile::tempdir().unwrap(), made_recording::open());
    let question = "select vcpu, reason from exits order by begin_ns";
    let saved = |name: &str| {
        let file = Saved::new(&folder.path().join(name))?;
        let (database, _tables) = Inputs::of(&[dir.path().to_path_buf()])?.database(question)?;
        database.ask(question, async |answer| save(answer, &file).await)
    };

    let rows = ["a.csv", "a.json", "a.parquet"].map(|name| saved(name).unwrap());

    assert_eq!(rows, [3, 3, 3]);
    assert_eq!(fs::read_to_string(folder.path().join("a.csv")).unwrap(), "vcpu,reason\n0,ioio\n0,ioio\n0,hlt\n");
    let json = fs::read_to_string(folder.path().join("a.json")).unwrap();
    assert_eq!(json.lines().next(), Some("{\"vcpu\":0,\"reason\":\"ioio\"}"));
    assert_eq!(fs::read(folder.path().join("a.parquet")).unwrap()[..4], *b"PAR1");
    assert!(matches!(saved("a.csv").unwrap_err(), QueryError::Exists(_)));
    assert!(matches!(saved("a.txt").unwrap_err(), QueryError::Extension(_)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn table_shows_nothing_that_acts_on_a_terminal() {
    let (dir, _trace) = made_recording::open();
    let question = "select 'a' || chr(27) || '[2J' as bad, cast(null as bigint) as none";
    let (database, _tables) = Inputs::of(&[dir.path().to_path_buf()]).unwrap().database(question).unwrap();
    let mut out = Vec::new();

    database.ask(question, async |answer| print(answer, Form::Table, &mut out).await).unwrap();

    assert_eq!(String::from_utf8(out).unwrap(), "bad         none\na\\u{1b}[2J     -\n");
}

#[test]
fn table_that_was_left_out_is_not_one_without_rows() {
    let (folder, (_dir, trace)) = (tempfile::tempdir().unwrap(), made_recording::open());
    let chosen = Selection::chosen(&["exits".into(), "sched.sched_switch".into()], &trace).unwrap();
    parquet::export(&trace, &Options::default(), folder.path(), &chosen).unwrap();
    let count = |table: &str| answer(&[folder.path()], &format!("select count(*) as n from {table}"));

    let refused = ["wakeups", "events", "web.answered"].map(|table| count(table).unwrap_err().to_string());
    let answered = ["exits", "sched.sched_switch", "missing"].map(|table| count(table).unwrap());

    for line in &refused {
        assert!(line.contains("was exported with `--tables exits,sched.sched_switch`, without '"), "{line}");
    }
    assert_eq!(answered, [3, 10, 0].map(|n| vec![json!({ "n": n })]));
}

#[test]
fn tables_of_another_version_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let _recording = made_recording::export(folder.path());
    let place = folder.path().join("exits/host=h");
    fs::create_dir_all(&place).unwrap();
    let schema = std::sync::Arc::new(datafusion::arrow::datatypes::Schema::empty());
    let file = fs::File::create(place.join("old.parquet")).unwrap();
    datafusion::parquet::arrow::ArrowWriter::try_new(file, schema, None).unwrap().close().unwrap();

    let refused = answer(&[folder.path()], "select * from exits").unwrap_err();

    assert!(matches!(refused, QueryError::Version { .. }), "{refused}");
}
