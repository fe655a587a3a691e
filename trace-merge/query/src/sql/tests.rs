use super::*;
use crate::made_recording;
use serde_json::{Value, json};
use std::fs;
use strata_recording::test_trace::Field::{Float, Hex, Number};
use strata_recording::test_trace::TestTrace;

/// The answer to `question` about what lies in `paths`, as rows.
pub(super) fn answer(paths: &[&Path], question: &str) -> Result<Vec<Value>, QueryError> {
    let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
    let (database, _tables) = Inputs::of(&paths)?.database(question)?;
    let mut out = Vec::new();
    database.answer(question, async |answer| print(answer, Form::Json, &mut out).await)?;
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
fn tables_in_a_folder_whose_name_looks_like_a_pattern_are_found() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("run [1] *100%?");
    fs::create_dir(&folder).unwrap();
    let _recording = made_recording::export(&folder);

    let rows = answer(&[folder.as_path()], "select count(*) as n from sched.sched_switch").unwrap();

    assert_eq!(rows, [json!({ "n": 10 })]);
}

#[test]
fn several_inputs_are_one_database() {
    let folder = tempfile::tempdir().unwrap();
    let ((first, _trace), _other) = (made_recording::open(), made_recording::export(folder.path()));
    let question = "select count(*) as n, count(distinct recording) as recordings from sched.sched_switch";

    let both = answer(&[first.path(), folder.path()], question).unwrap();

    assert_eq!(both, [json!({ "n": 20, "recordings": 2 })]);
}

#[test]
fn recording_that_is_given_again_counts_once() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (dir, trace) = made_recording::export(folder.path());
    parquet::export(&trace, &Options::default(), copy.path(), &Selection::All).unwrap();
    let question = "select count(*) as n from sched.sched_switch";
    let (recording, tables, again) = (dir.path(), folder.path(), copy.path());

    let counts = [
        vec![recording, recording],
        vec![recording, tables],
        vec![tables, recording, again],
        vec![tables, again],
        vec![tables, tables],
    ]
    .map(|paths| answer(&paths, question).unwrap());

    assert!(counts.iter().all(|rows| *rows == [json!({ "n": 10 })]), "{counts:?}");
}

#[test]
fn tables_of_a_recording_that_is_incomplete_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let _recording = made_recording::export(folder.path());
    let mut database = Database::new().unwrap();
    database.add(RECORDINGS, &[Folder { path: folder.path().into(), only: None }]).unwrap();

    let lines = database.incomplete().unwrap();

    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("recording ") && lines[0].contains(": INCOMPLETE: vm0/guest-user: 3 records lost"));
}

#[test]
fn parts_of_a_recording_add_up_and_count_once_beside_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, trace) = made_recording::open();
    let at = std::time::Duration::from_nanos(30_001);
    let part = |from, to| {
        let options = Options { from, to, ..Options::default() };
        parquet::export(&trace, &options, folder.path(), &Selection::All).unwrap().records
    };
    let (before, behind) = (part(None, Some(at)), part(Some(at), None));
    let count = "select count(*) as n from events";

    let parts = answer(&[folder.path()], count).unwrap();
    let whole = answer(&[dir.path()], count).unwrap();
    let both = answer(&[folder.path(), dir.path()], count).unwrap();
    let reported =
        answer(&[folder.path()], "select from_ns, until_ns from recordings order by from_ns nulls first").unwrap();

    assert!(before > 0 && behind > 0);
    assert_eq!((&parts, &both), (&whole, &whole));
    assert_eq!(parts, [json!({ "n": before + behind })]);
    assert_eq!(
        reported,
        [json!({ "from_ns": null, "until_ns": 30_001 }), json!({ "from_ns": 30_001, "until_ns": null })]
    );
}

#[test]
fn field_with_a_sign_and_without_one_is_a_number() {
    let (_dir, trace) = TestTrace::new()
        .user(7, 0, 1_000, "app:step", &[("n", Number(9))])
        .user(7, 0, 2_000, "app:step", &[("n", Number(-10))])
        .user(8, 1, 3_000, "app:step", &[("n", Hex(u64::MAX))])
        .open();
    let folder = tempfile::tempdir().unwrap();
    parquet::export(&trace, &Options::default(), folder.path(), &Selection::All).unwrap();

    let rows = answer(&[folder.path()], "select min(n) as least, max(n) as most from app.step").unwrap();

    assert_eq!(rows, [json!({ "least": -10, "most": u64::MAX })]);
}

#[test]
fn field_of_integers_and_of_floating_point_is_a_number() {
    let (_dir, trace) = TestTrace::new()
        .user(7, 0, 1_000, "app:step", &[("n", Number(9))])
        .user(8, 1, 2_000, "app:step", &[("n", Float(10.5))])
        .open();
    let folder = tempfile::tempdir().unwrap();
    parquet::export(&trace, &Options::default(), folder.path(), &Selection::All).unwrap();

    let rows = answer(&[folder.path()], "select max(n) as most, sum(n) as sum from app.step").unwrap();

    assert_eq!(rows, [json!({ "most": 10.5, "sum": 19.5 })]);
}

#[test]
fn recording_without_records_is_said() {
    let made = [
        Ok(Exported::default()),
        Err(ExportError::Nothing),
        Err(ExportError::Write(io::ErrorKind::StorageFull.into())),
    ];

    let [whole, empty, failed] = made.map(lacking);

    assert_eq!(whole.unwrap(), None);
    assert!(empty.unwrap().is_some_and(|line| line.starts_with("has no records")));
    assert!(matches!(failed, Err(ExportError::Write(_))));
}

#[test]
fn parts_count_once_wherever_they_are_given() {
    let (dir, trace) = made_recording::open();
    let folders = [(); 4].map(|()| tempfile::tempdir().unwrap());
    let at = std::time::Duration::from_nanos(30_001);
    let write = |folder: &TempDir, from, to| {
        let options = Options { from, to, ..Options::default() };
        parquet::export(&trace, &options, folder.path(), &Selection::All).unwrap();
    };
    let [first, both, mixed, whole] = &folders;
    write(first, None, Some(at));
    write(both, None, Some(at));
    write(both, Some(at), None);
    write(mixed, Some(at), None);
    write(mixed, None, None);
    write(whole, None, None);
    let [first, both, mixed, whole] = [first, both, mixed, whole].map(TempDir::path);
    let count = |paths: &[&Path]| answer(paths, "select count(*) as n from events").unwrap();

    let expected = count(&[dir.path()]);
    let counts = [
        vec![first, both],
        vec![both, first],
        vec![mixed],
        vec![first, mixed],
        vec![mixed, both, whole],
        vec![dir.path(), first, mixed],
    ]
    .map(|paths| count(&paths));

    assert!(counts.iter().all(|rows| *rows == expected), "{counts:?} and not {expected:?}");
}

#[test]
fn file_of_a_strangers_name_is_no_pattern_where_its_folder_counts_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, _trace) = made_recording::export(folder.path());
    let file = database::files_below(&folder.path().join(RECORDINGS)).unwrap().remove(0);
    fs::copy(&file, file.with_file_name("a[b]*?-0.parquet")).unwrap();

    let rows = answer(&[dir.path(), folder.path()], "select count(*) as n from recordings").unwrap();

    assert_eq!(rows, [json!({ "n": 2 })]);
}

#[test]
fn steps_by_kernel_count_once_where_a_recording_has_parts() {
    let (folder, (_dir, trace)) = (tempfile::tempdir().unwrap(), made_recording::open());
    let at = std::time::Duration::from_nanos(56_000);
    for (from, to) in [(None, Some(at)), (Some(at), None)] {
        let options = Options { from, to, ..Options::default() };
        parquet::export(&trace, &options, folder.path(), &Selection::All).unwrap();
    }

    let rows = answer(&[folder.path()], Ready::find("disk-steps-by-kernel").unwrap().text).unwrap();

    assert!(!rows.is_empty() && rows.iter().all(|row| row["times"] == 1), "{rows:?}");
}

#[test]
fn futexes_of_two_processes_at_one_address_are_two_locks() {
    let (dir, _trace) = made_recording::open();
    let waits = "with locks as (select 'r' as recording, 'h' as host, 'v' as vm, what, cast(null as text) as name,
        1 as address, pid, 'wait' as kind, '-' as context, 5 as duration_ns, 'waited' as outcome
        from (values ('futex', 10), ('futex', 20), ('kernel', 10), ('kernel', 20)) as t(what, pid))";
    let ready = Ready::find("locks").unwrap().text;

    let rows = answer(&[dir.path()], &format!("{waits}\n{ready}")).unwrap();

    let shown = |row: &Value| (row["what"] == "futex", row["futex_pid"].as_i64(), row["ns"].as_i64());
    let shown: Vec<_> = rows.iter().map(shown).collect();
    assert_eq!(shown, [(false, None, Some(10)), (true, Some(10), Some(5)), (true, Some(20), Some(5))]);
}

#[test]
fn kernel_of_another_host_than_that_of_the_recording_is_not_known() {
    let (dir, _trace) = made_recording::open();
    let tables = "with recordings as (select 'r' as recording, 'one' as host, '6.1' as kernel),
        vms as (select 'r' as recording, vm, '6.12' as kernel from (values ('a'), ('b')) as t(vm)),
        flow_steps as (select 'r' as recording, host, vm, 'whole' as step, duration_ns
            from (values ('one', 'a', 9), ('two', 'b', 5)) as t(host, vm, duration_ns))";
    let ready = Ready::find("disk-steps-by-kernel").unwrap().text;

    let rows = answer(&[dir.path()], &format!("{tables}\n{ready}")).unwrap();

    let shown: Vec<_> = rows.iter().map(|row| (row["host_kernel"].as_str(), row["p99_ns"].as_i64())).collect();
    assert_eq!(shown, [(Some("6.1"), Some(9)), (None, Some(5))]);
}

#[test]
fn time_that_was_never_spent_is_none_and_not_unknown() {
    let (dir, _trace) = made_recording::open();
    let one = |table: &str, state: &str| {
        format!(
            "with {table} as (select 'r' as recording, 'h' as host, 'v' as vm, '/c' as cgroup, '{state}' as state,
             100 as duration_ns)"
        )
    };
    let asked = |table: &str, state: &str, ready: &str| {
        let ready = Ready::find(ready).unwrap().text;
        answer(&[dir.path()], &format!("{}\n{ready}", one(table, state))).unwrap().remove(0)
    };

    let ready = asked("vcpu_states", "guest", "cpu-ready");
    let waiting = asked("task_states", "running", "cpu-by-cgroup");
    let running = asked("task_states", "runnable", "cpu-by-cgroup");

    assert_eq!((&ready["ready_ns"], &ready["percent"]), (&json!(0), &json!(0.0)));
    assert_eq!((&waiting["running_ns"], &waiting["waiting_ns"]), (&json!(100), &json!(0)));
    assert_eq!((&running["running_ns"], &running["waiting_ns"]), (&json!(0), &json!(100)));
}

#[test]
fn ready_time_is_a_share_of_the_time_that_vcpus_wanted_to_run() {
    let (dir, _trace) = made_recording::open();
    let states = "with vcpu_states as (select 'r' as recording, 'h' as host, 'v' as vm, state, duration_ns
        from (values ('guest', 60), ('vmm', 10), ('preempted', 10), ('woken', 5), ('not_allowed', 15), ('halted', 500),
            ('blocked_in_kvm', 9), ('blocked_in_vmm', 9), ('ended', 400), ('unknown', 9)) as t(state, duration_ns))";
    let ready = Ready::find("cpu-ready").unwrap().text;

    let rows = answer(&[dir.path()], &format!("{states}\n{ready}")).unwrap();

    let shown: Vec<_> = rows.iter().map(|row| (row["ready_ns"].as_i64(), row["percent"].as_f64())).collect();
    assert_eq!(shown, [(Some(30), Some(30.0))]);
}

#[test]
fn calls_by_process_are_those_that_the_report_counts() {
    let (dir, _trace) = made_recording::open();

    let rows = answer(&[dir.path()], Ready::find("syscalls-by-process").unwrap().text).unwrap();

    let shown: Vec<_> = rows.iter().map(|row| (row["name"].as_str(), row["calls"].as_i64())).collect();
    assert_eq!(shown, [(Some("futex"), Some(1)), (Some("read"), Some(1))]);
}

#[test]
fn parts_that_overlap_are_found() {
    let names = ["a", "b-from0until9", "b-from9until20", "c-from0until10", "c-from2until3", "c-from9until20"];

    let found = overlapping(&names.map(String::from).into()).into_iter().map(String::from).collect::<Vec<_>>();

    assert_eq!(found, ["c"]);
}

#[test]
fn percentiles_are_exact() {
    let (dir, _trace) = made_recording::open();
    let question = "select percentile_cont(0.99) within group (order by v) as up,
        percentile_cont(0.99) within group (order by v desc) as down,
        percentile_cont(0.5) within group (order by v) filter (where v < 0) as none
        from (values (1.0), (2.0), (1000000000.0), (null)) as t(v)";
    let grouped = "select g, percentile_cont(0.3) within group (order by v) as p
        from (values (1, 10), (1, 20), (2, 7), (3, null)) as t(g, v) group by g order by g";

    let rows = answer(&[dir.path()], question).unwrap();
    let groups = answer(&[dir.path()], grouped).unwrap();

    let [up, down] = ["up", "down"].map(|name| rows[0][name].as_f64().unwrap());
    let expected = [0.98_f64.mul_add(999_999_998.0, 2.0), 0.02_f64.mul_add(1.0, 1.0)];
    assert!((up - expected[0]).abs() < 1e-6 && (down - expected[1]).abs() < 1e-12, "{rows:?}");
    assert_eq!(rows[0]["none"], Value::Null);
    assert_eq!(groups, [json!({ "g": 1, "p": 13.0 }), json!({ "g": 2, "p": 7.0 }), json!({ "g": 3, "p": null })]);
}

#[test]
fn two_columns_of_one_name_are_refused() {
    let (dir, _trace) = made_recording::open();
    let question = "select a.duration_ns, b.duration_ns from flows a join flow_steps b on a.flow = b.flow";

    let refused = answer(&[dir.path()], question).unwrap_err();

    assert_eq!(refused.to_string(), "two columns of the answer are called duration_ns: name them with `as`");
}

#[test]
fn damaged_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let _recording = made_recording::export(folder.path());
    let place = folder.path().join("exits/host=h");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("half.parquet"), "PAR1").unwrap();

    let refused = answer(&[folder.path()], "select * from exits").unwrap_err().to_string();

    assert!(refused.contains("exits/host=h/half.parquet: is damaged: "), "{refused}");
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
fn tables_and_their_columns_can_be_listed() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, _trace) = made_recording::export(folder.path());
    let question = "select column_name from information_schema.columns
        where table_schema = 'sched' and table_name = 'sched_switch' and column_name in ('next_comm', 'host')";

    for path in [dir.path(), folder.path()] {
        let shown = answer(&[path], "show tables").unwrap();
        let described = answer(&[path], "describe sched.sched_switch").unwrap();
        let columns = answer(&[path], question).unwrap();
        let refused = answer(&[path], "describe exitz").unwrap_err().to_string();

        let has = |name: &str| shown.iter().any(|row| row["table_name"] == name);
        assert!(["exits", "missing", "sched_switch"].into_iter().all(has), "{shown:?}");
        assert!(described.iter().any(|row| row["column_name"] == "next_comm"), "{described:?}");
        assert_eq!(columns.len(), 2, "{columns:?}");
        assert!(refused.contains("nearest: exits"), "{refused}");
    }
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
        database.answer(question, async |answer| save(answer, &file).await)
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
fn lists_are_text_in_csv() {
    let (folder, (dir, _trace)) = (tempfile::tempdir().unwrap(), made_recording::open());
    let question = "select args from raw_syscalls.sys_enter where layer = 'guest-kernel' limit 1";
    let (database, _tables) = Inputs::of(&[dir.path().to_path_buf()]).unwrap().database(question).unwrap();
    let file = Saved::new(&folder.path().join("a.csv")).unwrap();

    database.answer(question, async |answer| save(answer, &file).await).unwrap();

    let text = fs::read_to_string(folder.path().join("a.csv")).unwrap();
    assert_eq!(text, "args\n\"[0, 0, 0, 0, 0, 0]\"\n");
}

#[test]
fn table_shows_nothing_that_acts_on_a_terminal() {
    let (dir, _trace) = made_recording::open();
    let question = "select 'a' || chr(27) || '[2J' as bad, cast(null as bigint) as none";
    let (database, _tables) = Inputs::of(&[dir.path().to_path_buf()]).unwrap().database(question).unwrap();
    let mut out = Vec::new();

    database.answer(question, async |answer| print(answer, Form::Table, &mut out).await).unwrap();

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
fn table_that_was_left_out_of_what_does_not_count_is_no_matter() {
    let (folder, (dir, trace)) = (tempfile::tempdir().unwrap(), made_recording::open());
    let chosen = Selection::chosen(&["exits".into()], &trace).unwrap();
    parquet::export(&trace, &Options::default(), folder.path(), &chosen).unwrap();

    let rows = answer(&[folder.path(), dir.path()], "select count(*) as n from wakeups").unwrap();

    assert_eq!(rows, [json!({ "n": 1 })]);
}

#[test]
fn export_with_more_tables_counts_wherever_it_is_given() {
    let (some, all) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_dir, trace) = made_recording::export(all.path());
    let chosen = Selection::chosen(&["exits".into()], &trace).unwrap();
    parquet::export(&trace, &Options::default(), some.path(), &chosen).unwrap();
    let question = "select count(*) as n from wakeups";

    let counts = [[some.path(), all.path()], [all.path(), some.path()]].map(|paths| answer(&paths, question).unwrap());

    assert_eq!(counts, [[json!({ "n": 1 })], [json!({ "n": 1 })]]);
}

#[test]
fn two_exports_of_a_recording_in_one_folder_are_refused() {
    let (folder, (_dir, trace)) = (tempfile::tempdir().unwrap(), made_recording::open());
    let export = |tables: [&str; 2]| {
        let chosen = Selection::chosen(&tables.map(String::from), &trace).unwrap();
        parquet::export(&trace, &Options::default(), folder.path(), &chosen).unwrap();
    };
    export(["exits", "wakeups"]);
    export(["locks", "wakeups"]);

    let refused = answer(&[folder.path()], "select count(*) as n from wakeups").unwrap_err().to_string();

    assert!(refused.contains("two exports of recording") && refused.ends_with("into a folder of its own"), "{refused}");
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
