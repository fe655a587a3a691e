//! The commands of `docs/guide.md`: `strata` knows each of them, and those that only read recordings do what they are
//! shown for, on a recording that is made.
//!
//! Shows: Commands of the guide that read recordings work.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use clap::Parser;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use vmm::cli::Cli;

const GUIDE: &str = include_str!("../../docs/guide.md");
/// Commands that read recordings, and end by themselves.
const READERS: [&str; 6] = ["check", "diff", "events", "export", "report", "why"];
/// The task that the guide asks about, and its number; in the recording that is made, it is the busiest.
const TASK: &str = "dd/145";
const TID: &str = "145";
/// Recordings that the guide names.
const RECORDINGS: [&str; 5] = ["recovered", "today", "trace", "trace-snapshots/trigger-1", "yesterday"];
/// Records of the recording: it is longer than the parts that the guide shows.
const RECORDS: &str = "100000";

/// The words of a command as a shell splits them; quotes as the guide has them.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for letter in command.chars() {
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), letter) if letter == open => quote = None,
            (None, ' ') => words.push(String::new()),
            (_, letter) => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The commands in the guide's blocks of shell, each as its words, without `sudo`.
fn commands() -> Vec<Vec<String>> {
    let blocks = GUIDE.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0.replace("\\\n", " "));
    let commands = blocks.flat_map(|block| block.lines().map(words).collect::<Vec<_>>());
    commands.map(|words| words.into_iter().skip_while(|word| word == "sudo").collect()).collect()
}

fn is_reader(command: &[String]) -> bool {
    // Tables are written by a program of its own.
    READERS.contains(&&*command[1]) && !command.contains(&"parquet".into())
}

/// A folder with recordings under the names that the guide gives them, and the busiest task in them: with its name, and
/// its number alone.
fn recordings(folder: &Path) -> [String; 2] {
    let made = folder.join("made");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let example = ["run", "--quiet", "-p", "strata-recording", "--example", "write_layers", "--"];
    let status = Command::new(cargo).args(example).arg(&made).arg(RECORDS).status().unwrap();
    assert!(status.success());
    fs::create_dir(folder.join("trace-snapshots")).unwrap();
    RECORDINGS.iter().for_each(|name| symlink(&made, folder.join(name)).unwrap());
    let mut strata = Command::new(env!("CARGO_BIN_EXE_strata"));
    let tasks = strata.args(["report", "tasks", "--json"]).arg(&made).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&tasks.stdout).unwrap();
    let task = &report["vms"][0]["tasks"][0];
    [format!("{}/{}", task["comm"].as_str().unwrap(), task["tid"]), task["tid"].to_string()]
}

#[test]
fn every_command_of_the_guide_is_one_of_strata() {
    let commands = commands();

    assert!(commands.len() > 30, "{}", commands.len());
    for command in commands {
        assert_eq!(command[0], "strata", "{command:?}");
        assert!(Cli::try_parse_from(&command).is_ok(), "{command:?}: {}", Cli::try_parse_from(&command).unwrap_err());
    }
}

#[test]
fn pictures_of_the_guide_are_small() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let pictures: Vec<_> = GUIDE.split("](").filter_map(|rest| rest.split(')').next()?.strip_suffix(".png")).collect();

    assert_eq!(pictures.len(), 4);
    for picture in pictures {
        let size = fs::metadata(docs.join(format!("{picture}.png"))).unwrap().len();
        assert!(size < 200_000, "{picture}: {size}");
    }
}

#[test]
fn commands_of_the_guide_that_read_recordings_work() {
    let folder = tempfile::tempdir().unwrap();
    let [task, tid] = recordings(folder.path());

    let readers: Vec<_> = commands().into_iter().filter(|command| is_reader(command)).collect();

    assert!(readers.len() > 15, "{}", readers.len());
    for command in readers {
        let arguments = command.iter().skip(1).map(|word| match &**word {
            TASK => &task,
            TID => &tid,
            // The recording is shorter than the guide's.
            "8.04" => "0.1",
            "8.06" => "0.2",
            _ => word,
        });
        let mut strata = Command::new(env!("CARGO_BIN_EXE_strata"));
        let output = strata.args(arguments).current_dir(folder.path()).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {complaint}");
        assert!(!output.stdout.is_empty() || complaint.contains("open "), "{command:?}: {complaint}");
    }
    for (file, begin) in
        [("trace.html", &b"<!doctype html>"[..]), ("part.html", b"<!doctype html>"), ("trace.pftrace", b"\n")]
    {
        assert!(fs::read(folder.path().join(file)).unwrap().starts_with(begin), "{file}");
    }
}
