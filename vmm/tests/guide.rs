//! The commands of `docs/guide.md`: `strata` knows each of them. Those that only read recordings, and those of other pages,
//! do what they are shown for on the recording that comes with Strata, and print what the guide shows.
//!
//! Shows: Commands of README and docs that read traces work on `docs/example.strata`, and print what the guide shows.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use clap::Parser;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use vmm::cli::Cli;

const GUIDE: &str = include_str!("../../docs/guide.md");
/// Pages with commands that are tried.
const PAGES: [&str; 7] = [
    include_str!("../../README.md"),
    GUIDE,
    include_str!("../../docs/agentless.md"),
    include_str!("../../docs/attach.md"),
    include_str!("../../docs/events.md"),
    include_str!("../../docs/page.md"),
    include_str!("../../docs/perfetto.md"),
];
/// Commands that read recordings, and end by themselves.
const READERS: [&str; 7] = ["check", "cut", "diff", "events", "export", "report", "why"];
/// Recordings that the guide and README name.
const RECORDINGS: [&str; 6] =
    ["docs/example.strata", "recovered", "today", "trace", "trace-snapshots/trigger-1", "yesterday"];
/// Files that the commands write, and how these begin.
const WRITTEN: [(&str, &[u8]); 4] = [
    ("part.html", b"<!doctype html>"),
    ("part.strata", b"\x28\xb5\x2f\xfd"),
    ("trace.html", b"<!doctype html>"),
    ("trace.pftrace", b"\n"),
];
/// Bytes of the recording at most.
const LARGEST: u64 = 400_000;

/// The recording that comes with Strata.
fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/example.strata")
}

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

/// The blocks of `page` in the language `language`, each with what follows it.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<(&'p str, &'p str)> {
    let begin = format!("```{language}\n");
    page.split(&begin).skip(1).map(|rest| rest.split_once("```\n").unwrap()).collect()
}

/// The commands in a block of shell, each as its words, without `sudo`.
fn commands_of(block: &str) -> Vec<Vec<String>> {
    let block = block.replace("\\\n", " ");
    let lines = block.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let commands = lines.map(|line| words(line).into_iter().skip_while(|word| word == "sudo").collect());
    commands.filter(|words: &Vec<String>| !words.is_empty()).collect()
}

/// The commands in the blocks of shell of `page`.
fn commands(page: &str) -> Vec<Vec<String>> {
    blocks(page, "sh").into_iter().flat_map(|(block, _)| commands_of(block)).collect()
}

fn is_reader(command: &[String]) -> bool {
    // Tables are written by a program of its own, events are listed of a machine, and names are read from a guest's files.
    let others = ["parquet", "--list", "--symbols"].map(String::from);
    command[0] == "strata" && READERS.contains(&&*command[1]) && !others.iter().any(|word| command.contains(word))
}

/// A folder with the recording under the names that the pages give it.
fn recordings() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in RECORDINGS {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(example(), path).unwrap();
    }
    folder
}

/// What `command` does in `folder`.
fn run(command: &[String], folder: &Path) -> Output {
    let mut strata = Command::new(env!("CARGO_BIN_EXE_strata"));
    strata.args(&command[1..]).current_dir(folder).output().unwrap()
}

/// Whether `text` is what `shown` stands for, in which `…` stands for anything.
fn is_shown(text: &str, shown: &str) -> bool {
    let (begin, rest) = shown.split_once('…').unwrap_or((shown, ""));
    let Some(text) = text.strip_prefix(begin) else { return false };
    let (middle, end) = rest.rsplit_once('…').unwrap_or(("", rest));
    let found = middle.split('…').try_fold(text, |text, part| Some(text.split_once(part)?.1));
    found.is_some_and(|text| text.ends_with(end) && (shown.contains('…') || text.is_empty()))
}

#[test]
fn every_command_of_the_guide_is_one_of_strata() {
    let commands = commands(GUIDE);

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
fn commands_that_read_recordings_work() {
    let folder = recordings();

    let readers: Vec<_> = PAGES.into_iter().flat_map(commands).filter(|command| is_reader(command)).collect();

    assert!(readers.len() > 30, "{}", readers.len());
    let mut written = BTreeSet::new();
    for command in readers {
        let output = run(&command, folder.path());
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {complaint}");
        let leads_on = complaint.contains("open ") || complaint.contains("next: ");
        assert!(!output.stdout.is_empty() || leads_on, "{command:?}: {complaint}");
        // Another command may write it, too.
        for (file, begin) in WRITTEN {
            let path = folder.path().join(file);
            written.extend(fs::read(&path).is_ok_and(|bytes| bytes.starts_with(begin)).then_some(file));
            let _ = fs::remove_file(path);
        }
    }
    assert_eq!(written, BTreeSet::from(WRITTEN.map(|(file, _)| file)));
}

#[test]
fn commands_of_the_guide_print_what_it_shows() {
    let folder = recordings();

    // Output is shown right behind its commands.
    let shown = blocks(GUIDE, "sh").into_iter().filter_map(|(commands, behind)| {
        let shown =
            behind.strip_prefix("\n```text\n").filter(|_| commands_of(commands).iter().all(|one| is_reader(one)));
        Some((commands, shown?.split_once("```").unwrap().0))
    });
    let shown: Vec<_> = shown.collect();

    assert_eq!(shown.len(), 3, "{shown:?}");
    for (commands, shown) in shown {
        let outputs = commands_of(commands).into_iter().map(|command| run(&command, folder.path()).stdout);
        let text = String::from_utf8(outputs.collect::<Vec<_>>().concat()).unwrap();
        assert!(is_shown(&text, shown), "{commands} prints\n{text}\nand is shown to print\n{shown}");
    }
}

#[test]
fn what_is_shown_is_compared_but_for_what_is_left_out() {
    let text = "one\ntwo: 2 of 3\nthree\n";

    assert!(
        ["one\ntwo: 2 of 3\nthree\n", "one\n…", "…\nthree\n", "one\ntwo: … 3\n…", "…"]
            .iter()
            .all(|shown| is_shown(text, shown))
    );
    assert!(!["one\n", "two…", "one\ntwo: 1…", "…\ntwo\n…", ""].iter().any(|shown| is_shown(text, shown)));
}

#[test]
fn recording_that_comes_with_strata_is_small_whole_and_the_one_that_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let example_of = ["run", "--quiet", "-p", "strata-recording", "--example", "write_layers", "--"];
    let status = Command::new(cargo).args(example_of).arg(&made).arg("story").status().unwrap();
    assert!(status.success());
    let printed = |command: &str, trace: &Path| {
        let command = ["strata", command, trace.to_str().unwrap()].map(Into::into);
        String::from_utf8(run(&command, folder.path()).stdout).unwrap()
    };

    assert!(fs::metadata(example()).unwrap().len() < LARGEST);
    assert!(printed("check", &example()).contains("\n0 violations: "));
    assert!(printed("events", &example()) == printed("events", &made), "write_layers writes other records now");
    assert!(printed("report", &example()).contains("all of it is made up"));
}
