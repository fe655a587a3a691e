//! Commands that read a trace select, cut, order and refuse as `strata` says, on a recording that is made.
//!
//! Shows: `strata events --where`, `strata cut` and rows of reports take what they say and refuse the rest in one line.
//! Shows: Commands that read traces read one file as they read its folder.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use tempfile::TempDir;

/// Records of the recording.
const RECORDS: &str = "20000";

/// A recording of all layers.
static MADE: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let example = ["run", "--quiet", "-p", "strata-recording", "--example", "write_layers", "--"];
    let status = Command::new(cargo).args(example).arg(&made).arg(RECORDS).status().unwrap();
    assert!(status.success());
    (folder, made)
});

fn strata(command: &str, trace: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strata")).arg(command).arg(trace).args(arguments).output().unwrap()
}

/// What a command that works prints on its standard output.
fn printed(command: &str, trace: &Path, arguments: &[&str]) -> String {
    let output = strata(command, trace, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The line in which a command refuses what it was asked for.
fn refusal(command: &str, trace: &Path, arguments: &[&str]) -> String {
    let output = strata(command, trace, arguments);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{arguments:?}: {complaint}");
    complaint
}

#[test]
fn filter_takes_the_records_of_whose_fields_it_holds() {
    let (_, trace) = &*MADE;
    let listed = |arguments: &[&str]| printed("events", trace, arguments);
    let exits = ["--event", "kvm:kvm_exit"];

    let all = listed(&[&exits[..], &["--count"]].concat());
    let halts = listed(&[&exits[..], &["--where", "exit_reason==hlt"]].concat());
    let others = listed(&[&exits[..], &["--where", "exit_reason!=hlt", "--json"]].concat());

    assert!(!halts.is_empty() && halts.lines().all(|line| line.contains("(hlt)")), "{halts}");
    assert!(!others.is_empty() && !others.contains(r#""exit":"hlt""#), "{others}");
    let sum = halts.lines().count() + others.lines().count();
    assert_eq!(sum.to_string(), all.trim());
}

#[test]
fn filter_of_what_no_event_has_is_refused_and_one_that_finds_nothing_says_so() {
    let (_, trace) = &*MADE;

    let unknown = refusal("events", trace, &["--event", "kvm:kvm_exit", "--where", "exit_raeson==hlt"]);
    let none = strata("events", trace, &["--where", "exit_reason == hlt && exit_reason == msr"]);

    assert!(unknown.contains("is not a field of kvm:kvm_exit (nearest: exit_reason"), "{unknown}");
    assert!(none.status.success() && none.stdout.is_empty());
    assert!(String::from_utf8_lossy(&none.stderr).contains("no record passes all of these filters"));
}

#[test]
fn part_that_is_cut_out_has_the_records_of_its_time_and_passes_the_check() {
    let (folder, trace) = &*MADE;
    let part = folder.path().join("part");
    let window = ["--from", "10ms", "--until", "20ms"];
    let wanted = printed("events", trace, &[&window[..], &["--count"]].concat());

    let cut = strata("cut", trace, &[&window[..], &["-o", part.to_str().unwrap()]].concat());
    let complaint = String::from_utf8(cut.stderr).unwrap();

    assert!(cut.status.success() && complaint.contains(&format!("{} records, ", wanted.trim())), "{complaint}");
    assert_eq!(printed("events", &part, &["--count"]), wanted);
    assert!(printed("check", &part, &[]).contains("0 violations"));
    let again = refusal("cut", trace, &[&window[..], &["-o", part.to_str().unwrap()]].concat());
    assert!(again.contains("exists and is not an empty folder"), "{again}");
}

#[test]
fn part_outside_of_the_recording_is_refused_and_leaves_nothing() {
    let (folder, trace) = &*MADE;
    let none = folder.path().join("none");
    let path = none.to_str().unwrap();
    let out = ["-o", path];
    let commands: [(&str, &[&str]); 6] = [
        ("cut", &out),
        ("export", &["--format", "perfetto", "-o", path]),
        ("export", &["--format", "ctf", "-o", path]),
        ("report", &["--html", path]),
        ("open", &["--port", "0", "--no-browser"]),
        ("why", &[]),
    ];

    for (command, arguments) in commands {
        let behind = refusal(command, trace, &[&["--from", "1h"][..], arguments].concat());
        assert!(
            behind.contains("--from is after the end of the trace: its records are from 0 to "),
            "{command}: {behind}"
        );
    }
    let others: [(&str, &[&str]); 3] = [("cut", &out), ("events", &[]), ("why", &[])];
    for (command, arguments) in others {
        let backwards = refusal(command, trace, &[&["--from", "2ms", "--until", "1ms"][..], arguments].concat());
        assert!(backwards.contains("--from is later than --until"), "{command}: {backwards}");
    }

    assert!(!none.exists());
}

/// Commands that read traces, with `TRACE` for one; what each prints of a trace does not depend on where that lies.
const READERS: [&str; 12] = [
    "events TRACE",
    "events TRACE --from -1ms --json",
    "report TRACE --json",
    "report all TRACE --json",
    "report wakeups TRACE --csv",
    "check TRACE --json",
    "why TRACE --worst 2 --json",
    "diff TRACE TRACE --json",
    "export TRACE --format perfetto -o -",
    "export TRACE --format ctf --until 2ms -o OUT",
    "cut TRACE --until 2ms -o OUT",
    "report TRACE --html OUT",
];

/// What `command` prints in `folder`, of `trace`; it has a folder of its own for temporary files, and leaves nothing there.
fn read(command: &str, trace: &str, folder: &Path) -> Output {
    let (out, temporary) = (folder.join("out"), folder.join("temporary"));
    fs::create_dir(&temporary).unwrap();
    let words = command.split(' ').map(|word| match word {
        "TRACE" => trace,
        "OUT" => out.to_str().unwrap(),
        word => word,
    });
    let mut strata = Command::new(env!("CARGO_BIN_EXE_strata"));
    let output = strata.args(words).env("TMPDIR", &temporary).current_dir(folder).output().unwrap();
    // Fails where something is left in it.
    fs::remove_dir(&temporary).unwrap();
    let _ = fs::remove_file(&out).or_else(|_| fs::remove_dir_all(&out));
    output
}

/// A folder with a part of the recording as the folder `trace` and as the file `trace.strata`.
fn folder_and_file() -> TempDir {
    let (_, whole) = &*MADE;
    let folder = tempfile::tempdir().unwrap();
    let [part, file] = ["trace", "trace.strata"].map(|name| folder.path().join(name).display().to_string());
    assert!(strata("cut", whole, &["--until", "10ms", "-o", &part]).status.success());
    assert!(strata("cut", Path::new(&part), &["-o", &file]).status.success());
    folder
}

/// What a command said, without the size of a page, which holds the recording's name in commands, and without progress,
/// which shows on a busy machine.
fn without_size(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let is_progress = |line: &&str| line.ends_with(" %");
    let lines = said
        .lines()
        .filter(|line| !is_progress(line))
        .map(|line| line.split_once(" are in the page, of ").map_or(line, |(records, _)| records));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn one_file_is_read_as_its_folder_is() {
    let folder = folder_and_file();
    for command in READERS {
        let [of_folder, of_file] = ["trace", "trace.strata"].map(|trace| read(command, trace, folder.path()));

        let complaint = without_size(&of_file.stderr);
        assert!(of_folder.status.success() && of_file.status.success(), "{command}: {complaint}");
        assert_eq!(complaint.replace("trace.strata", "trace"), without_size(&of_folder.stderr), "{command}");
        let printed = String::from_utf8_lossy(&of_file.stdout).replace("trace.strata", "trace");
        assert!(printed == String::from_utf8_lossy(&of_folder.stdout), "{command}");
    }
}

#[test]
fn files_of_layers_are_merged() {
    let folder = folder_and_file();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let trace = folder.path().join("trace.strata");
    let all = printed("events", &trace, &["--layer", "host", "--layer", "guest", "--count"]);
    for layer in ["host", "guest"] {
        printed("cut", &trace, &["--layer", layer, "-o", &path(&format!("{layer}.strata"))]);
    }

    printed("merge", &folder.path().join("host.strata"), &[&path("guest.strata"), "-o", &path("both")]);

    assert_eq!(printed("events", &folder.path().join("both"), &["--count"]), all);
}

#[test]
fn one_file_is_shown_in_the_viewer_and_a_signal_leaves_nothing() {
    let folder = folder_and_file();
    let file = folder.path().join("trace.strata");
    let temporary = tempfile::tempdir().unwrap();

    let mut open = Command::new(env!("CARGO_BIN_EXE_strata"));
    let open = open.arg("open").arg(&file).args(["--port", "0", "--no-browser"]).env("TMPDIR", temporary.path());
    let mut open = open.stderr(Stdio::piped()).spawn().unwrap();
    let shown = BufReader::new(open.stderr.take().unwrap()).lines().map_while(Result::ok);
    let is_served = shown.into_iter().any(|line| line.contains("/trace.pftrace"));
    let ended = Command::new("kill").arg(open.id().to_string()).status().unwrap();
    open.wait().unwrap();

    assert!(is_served && ended.success());
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn damaged_file_is_refused_in_one_line_and_leaves_nothing() {
    let folder = folder_and_file();
    let file = folder.path().join("trace.strata");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    for command in READERS {
        let refused = read(command, "trace.strata", folder.path());

        let complaint = String::from_utf8(refused.stderr).unwrap();
        let expected = "strata: trace.strata: truncated; copy the whole file again\n";
        assert_eq!((complaint.as_str(), refused.status.code()), (expected, Some(2)), "{command}");
    }
}

#[test]
fn rows_of_every_report_that_has_some_are_chosen_and_written_as_csv() {
    let (_, trace) = &*MADE;
    let reports = "summary tasks vcpus exits wakeups syscalls locks irqs functions flows blocks death";
    for report in reports.split(' ') {
        let path = trace.display().to_string();
        let output = strata("report", Path::new(report), &[&path, "--csv", "--limit", "2"]);
        let (rows, complaint) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        let fields: Vec<usize> = rows.lines().map(|line| line.split(',').count()).collect();

        assert!(output.status.success(), "{report}: {complaint}");
        assert!(
            fields.len() > 1 && fields.len() < 4 && fields.iter().all(|count| *count == fields[0]),
            "{report}: {rows}"
        );
    }
}

#[test]
fn findings_are_rows_that_are_chosen() {
    let (_, trace) = &*MADE;
    let path = trace.display().to_string();

    let json = printed("report", Path::new("overview"), &[&path, "--json", "--limit", "1"]);
    let csv = printed("report", Path::new("overview"), &[&path, "--csv"]);

    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.len() == 1 && rows[0]["next"].as_str().unwrap().starts_with("strata "), "{rows:?}");
    assert!(csv.starts_with("kind,thousandths,text,evidence,next,"), "{csv}");
}

#[test]
fn text_json_and_csv_have_the_same_rows_in_the_same_order() {
    let (_, trace) = &*MADE;
    let path = trace.display().to_string();
    let wakeups = |form: &[&str]| {
        let chosen = [&[&*path, "--sort", "p99_ns:desc", "--limit", "5", "--task", "worker/*"][..], form].concat();
        printed("report", Path::new("wakeups"), &chosen)
    };

    let json: serde_json::Value = serde_json::from_str(&wakeups(&["--json"])).unwrap();
    let (text, csv) = (wakeups(&[]), wakeups(&["--csv"]));

    let rows = json["rows"].as_array().unwrap();
    let times: Vec<u64> = rows.iter().map(|row| row["latency"]["p99_ns"].as_u64().unwrap()).collect();
    assert!(rows.len() == 5 && times.is_sorted_by(|left, right| left >= right), "{times:?}");
    for ((row, csv), text) in rows.iter().zip(csv.lines().skip(1)).zip(text.lines().skip(1)) {
        let comm = row["comm"].as_str().unwrap();
        assert!(csv.starts_with(&format!("vm0,{comm},")) && text.contains(comm), "{comm}: {csv}\n{text}");
    }
}

#[test]
fn report_without_a_row_of_the_task_names_the_nearest() {
    let (_, trace) = &*MADE;
    let path = trace.display().to_string();

    let none = strata("report", Path::new("wakeups"), &[&path, "--task", "Worker/3"]);

    let complaint = String::from_utf8(none.stderr).unwrap();
    assert!(
        none.status.code() == Some(2)
            && complaint.contains("no row is of a task 'Worker/3'; the nearest are worker/3, "),
        "{complaint}"
    );
}

#[test]
fn report_without_the_column_names_those_it_has() {
    let (_, trace) = &*MADE;
    let path = trace.display().to_string();

    let column = refusal("report", Path::new("exits"), &[&path, "--sort", "counts"]);
    let task = refusal("report", Path::new("blocks"), &[&path, "--task", "dd"]);

    assert!(column.contains("of the report exits has no column counts; it has count, "), "{column}");
    let no_task = "no row of the report blocks is of a task: --task does not choose among its rows";
    assert!(task.contains(no_task), "{task}");
}

#[test]
fn ready_questions_are_listed_without_the_program_that_answers() {
    let (folder, trace) = &*MADE;
    let list = |words: &[&str]| {
        let mut strata = Command::new(env!("CARGO_BIN_EXE_strata"));
        strata.arg("query").args(words).env("PATH", folder.path()).output().unwrap()
    };

    let [all, of_trace] = [&["--list"][..], &[trace.to_str().unwrap(), "--list"]].map(list);
    let unknown = list(&["--list", "stael"]);

    assert!(all.status.success() && all.stdout == of_trace.stdout);
    assert!(String::from_utf8_lossy(&all.stdout).contains("worst-wakeups"));
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("nearest: steal"));
}

#[test]
fn change_between_two_traces_is_the_exit_status() {
    let (folder, trace) = &*MADE;
    let slow = folder.path().join("slow");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let example = ["run", "--quiet", "-p", "strata-recording", "--example", "write_layers", "--"];
    let story = folder.path().join("story");
    assert!(Command::new(cargo).args(example).arg(&story).arg("story").status().unwrap().success());
    let [same, other, none] =
        [trace, &story, &slow].map(|other| strata("diff", trace, &[other.to_str().unwrap()]).status.code());

    assert_eq!([same, other, none], [Some(0), Some(1), Some(2)]);
}

/// Copies of a part of `session.json`, each told from the others by its number.
fn copies(original: &serde_json::Value, mark: impl Fn(&mut serde_json::Value, usize)) -> serde_json::Value {
    let marked = (0..20_000).map(|number| {
        let mut copy = original.clone();
        mark(&mut copy, number);
        copy
    });
    marked.collect()
}

#[test]
fn recordings_that_claim_very_many_parts_are_read_to_their_end() {
    let (folder, trace) = &*MADE;
    let made: serde_json::Value = serde_json::from_slice(&fs::read(trace.join("session.json")).unwrap()).unwrap();
    let layer = |kind: &str| made["layers"].as_array().unwrap().iter().find(|layer| layer["kind"] == kind).unwrap();
    let (kernel, application) = (layer("guest-kernel"), layer("guest-user"));
    let path = |layer: &mut serde_json::Value, number| {
        layer["path"] = format!("vm0/guest-user/{number}").into();
        layer["events"] = serde_json::json!([]);
    };
    let stream = |stream: &mut serde_json::Value, number: usize| {
        stream["cpu_id"] = number.into();
        stream["file"] = format!("stream_{number}").into();
    };
    let with = |key: &str, many| {
        let mut layer = kernel.clone();
        layer[key] = many;
        serde_json::Value::from(vec![layer])
    };
    let all = [
        ("processes", copies(application, path)),
        ("layers", copies(kernel, path)),
        ("streams", with("streams", copies(&kernel["streams"][0], stream))),
        ("events", with("events", copies(&kernel["events"][0], |event, number| event["id"] = number.into()))),
    ];

    for (name, layers) in all {
        let many = folder.path().join(name);
        fs::create_dir(&many).unwrap();
        let mut manifest = made.clone();
        manifest["layers"] = layers;
        fs::write(many.join("session.json"), manifest.to_string()).unwrap();

        let codes = ["check", "report"].map(|command| strata(command, &many, &[]).status.code());
        let all = strata("report", Path::new("all"), &[many.to_str().unwrap()]).status.code();

        assert_eq!((codes, all), ([Some(1), Some(0)], Some(0)), "{name}");
    }
}
