//! `cargo xtask bench instructions`: how many instructions a record takes on each path that matters, by callgrind, and
//! whether that is more than the counts in `docs/results/instructions.json` say. Other than a time, a count is the same
//! on a busy machine; it says nothing of cache misses and of what the kernel does.
//!
//! A path is taken twice, for few and for many records. The difference leaves out what is done once.

mod callgrind;
mod counts;

use self::callgrind::Costs;
use self::counts::{Count, Counts};
use super::BenchFolder;
use super::merge;
use crate::build::binaries::{self, Purpose};
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::process;
use crate::progress;
use anyhow::ensure;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What counts instructions.
const VALGRIND: Tool = Tool { program: "valgrind", package: "valgrind" };

/// A way of a record through a program.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// What it is called in the results.
    name: &'static str,
    /// The most that it may take once it is as it should be.
    goal: Option<f64>,
    /// The program's arguments.
    arguments: &'static [&'static str],
}

/// What stands around each case of `ring-bench`.
const AROUND: [&str; 2] = ["--case", "floor/call"];
/// Samples of a case: few, and more.
const SAMPLES: [u64; 2] = [1, 2];
/// Records of a recording: few, and more.
const RECORDS: [u64; 2] = [10_000, 100_000];
/// The example that writes them.
const WRITER: &str = "write_layers";
/// The file that an export makes, in place of its name.
const OUTPUT: &str = "OUTPUT";

/// Ways through the rings, by cases of `ring-bench`; less the loop and the call around each.
const RECORDING: [Way; 5] = [
    way("record of 16 B, discard", Some(50.0), &["--case", "ring/discard/local/16"]),
    way("the same, guest's trace clock", None, &["--case", "ring/trace-clock/local/16"]),
    way("record of 16 B, flight recorder", Some(60.0), &["--case", "ring/flight/local/16"]),
    way("application's event, SMP atomics", None, &["--case", "user/event-locked"]),
    way("bare minimum", None, &["--case", "floor/minimum"]),
];

/// A record that the host's kernel made, by an example that decodes as many as requested, or a few more.
const HOST: Way = way("record of the host's kernel, decoded", None, &[]);
/// The example, its package, and records: few, and more.
const DECODER: (&str, &str, [u64; 2]) = ("decode_pages", "strata-host-kernel", [1_000, 21_000]);

/// What so many triggers, which nothing fires, add to a record that they look at.
const TRIGGERS: [(Way, usize); 2] =
    [(way("record seen by one trigger", None, &[]), 1), (way("record seen by ten triggers", None, &[]), 10)];

/// Ways through `strata`; a recording of all four layers comes behind the arguments.
const READING: [Way; 7] = [
    way("events --count", Some(141.0), &["events", "--count"]),
    way("events", Some(900.0), &["events"]),
    way("events --json", Some(1100.0), &["events", "--json"]),
    way("check", Some(700.0), &["check"]),
    way("report tasks", Some(900.0), &["report", "tasks"]),
    way("report all", Some(1800.0), &["report", "all"]),
    way("export, Perfetto", Some(1800.0), &["export", "--force", "--format", "perfetto", "-o", OUTPUT]),
];

/// Those that `cargo xtask test` counts, in the build that it tests, which has every check of the language on.
const READING_AS_TESTED: [Way; 2] =
    [way("events --count, tests' build", None, &["events", "--count"]), way("check, tests' build", None, &["check"])];

const fn way(name: &'static str, goal: Option<f64>, arguments: &'static [&'static str]) -> Way {
    Way { name, goal, arguments }
}

/// Counts, and compares with what the file says; or writes it with `update_document`, and the page that shows it.
///
/// # Errors
///
/// When something cannot be built or installed, a program fails, or a path takes more instructions than it may.
pub fn run(paths: &Paths, update_document: bool) -> anyhow::Result<()> {
    tools::install(paths, &[VALGRIND])?;
    let programs = progress::step("building strata with optimisation", || merge::build(paths))?;
    let ring_bench = super::ring::build(paths)?;
    let tested = progress::step("building strata as it is tested", || binaries::build(paths, Purpose::Test))?.strata;
    let folder = BenchFolder::new(paths, "instructions-")?;
    let mut counted = count_recording(&ring_bench, folder.path())?;
    counted.insert(HOST.name.to_owned(), count_decoding(paths, folder.path())?);
    let recordings = write_recordings(&programs.strata, &programs.write_layers, folder.path())?;
    counted.extend(count_triggers(paths, &recordings[1].0, folder.path())?);
    counted.extend(count_reading(&programs.strata, &READING, &recordings, folder.path())?);
    counted.extend(count_reading(&tested, &READING_AS_TESTED, &recordings, folder.path())?);
    let counts = Counts::of(counted)?;
    print!("{}", counts.table());
    if update_document {
        return counts.write(paths.workspace());
    }
    compare(&Counts::read(paths.workspace())?, &counts)
}

/// Counts the ways through the rings, which take seconds, and compares them with what the file says. Returns the counts as
/// a table, empty where there is nothing to compare with.
///
/// # Errors
///
/// When something cannot be built or installed, a program fails, or a path takes more instructions than it may.
pub fn check_recording(paths: &Paths) -> anyhow::Result<String> {
    check(paths, |folder| count_recording(&super::ring::build(paths)?, folder))
}

/// The same for reading, by the program that `cargo xtask test` has built.
///
/// # Errors
///
/// As for recording.
pub fn check_reading(paths: &Paths) -> anyhow::Result<String> {
    check(paths, |folder| {
        let strata = binaries::located(paths, Purpose::Test).strata;
        let build = ["build", "-p", "strata-recording", "--example", WRITER];
        process::run_logged(
            binaries::cargo(paths, &paths.target()).args(build),
            &paths.logs().join("write-layers.log"),
        )?;
        let recordings = write_recordings(&strata, &paths.target().join("debug/examples").join(WRITER), folder)?;
        count_reading(&strata, &READING_AS_TESTED, &recordings, folder)
    })
}

/// Compares what `count` counts with what the file says. Other compilers make other programs: then nothing is counted,
/// which is noted.
fn check(
    paths: &Paths,
    count: impl FnOnce(&Path) -> anyhow::Result<BTreeMap<String, Count>>,
) -> anyhow::Result<String> {
    tools::install(paths, &[VALGRIND])?;
    let before = Counts::read(paths.workspace())?;
    let made_by = Counts::of(BTreeMap::new())?;
    if !before.is_comparable(&made_by) {
        progress::note(&format!("instructions are not compared: {}", before.difference(&made_by)));
        return Ok(String::new());
    }
    let folder = BenchFolder::new(paths, "instructions-")?;
    let counts = Counts::of(count(folder.path())?)?;
    compare(&before, &counts)?;
    Ok(counts.table())
}

/// Fails where a path of `now` takes more than it may `before`.
fn compare(before: &Counts, now: &Counts) -> anyhow::Result<()> {
    let grown = before.grown(now);
    ensure!(
        grown.is_empty(),
        "more instructions than {} says, beyond {} %:\n{}\n`cargo xtask bench instructions --update-document` makes these \
         the ones to compare with",
        counts::FILE,
        counts::ALLOWED_PERCENT,
        grown.join("\n"),
    );
    Ok(())
}

/// The instructions of the ways through the rings.
fn count_recording(ring_bench: &Path, folder: &Path) -> anyhow::Result<BTreeMap<String, Count>> {
    let around = of_case(ring_bench, &AROUND, folder)?;
    let of = |way: Way| Ok((way.name.to_owned(), of_case(ring_bench, way.arguments, folder)?.without(&around)));
    RECORDING.into_iter().map(of).collect()
}

/// The instructions of a record that the host's kernel made.
fn count_decoding(paths: &Paths, folder: &Path) -> anyhow::Result<Count> {
    let (name, package, [few, many]) = DECODER;
    let program = progress::step("building the decoder", || merge::build_example(paths, package, name))?;
    let of = |wanted: u64| -> anyhow::Result<(Costs, u64)> {
        let wanted = wanted.to_string();
        let decoded = process::capture(Command::new(&program).arg(&wanted))?.trim().parse()?;
        Ok((callgrind::count(&program, &[wanted.into()], folder)?, decoded))
    };
    let ((few, fewer), (many, more)) = (of(few)?, of(many)?);
    Ok(Count::between([few, many], [fewer, more]))
}

/// The instructions that triggers add to each record of `recording`.
fn count_triggers(paths: &Paths, recording: &Path, folder: &Path) -> anyhow::Result<BTreeMap<String, Count>> {
    let program =
        progress::step("building the measurement of triggers", || merge::build_example(paths, "vmm", "trigger_cost"))?;
    let arguments = |triggers: usize| -> [OsString; 3] {
        [recording.into(), RECORDS[1].to_string().into(), triggers.to_string().into()]
    };
    let records = process::capture(Command::new(&program).args(arguments(0)))?.trim().parse()?;
    let without = callgrind::count(&program, &arguments(0), folder)?;
    let of = |(way, triggers): (Way, usize)| {
        let with = callgrind::count(&program, &arguments(triggers), folder)?;
        Ok((way.name.to_owned(), Count::between([without.clone(), with], [0, records])))
    };
    TRIGGERS.into_iter().map(of).collect()
}

/// A recording, and how many records it has.
type Recording = (PathBuf, u64);

/// The instructions of `ways` through `strata`.
fn count_reading(
    strata: &Path,
    ways: &[Way],
    recordings: &[Recording; 2],
    folder: &Path,
) -> anyhow::Result<BTreeMap<String, Count>> {
    let mut counted = BTreeMap::new();
    let [small, large] = recordings;
    for way in ways {
        let of = |(recording, _): &Recording| {
            let output = folder.join("output");
            let word = |word: &&str| if *word == OUTPUT { output.clone().into() } else { OsString::from(word) };
            let arguments: Vec<OsString> = way.arguments.iter().map(word).chain([recording.into()]).collect();
            callgrind::count(strata, &arguments, folder)
        };
        let costs = progress::step(&format!("counting {}", way.name), || anyhow::Ok([of(small)?, of(large)?]))?;
        counted.insert(way.name.to_owned(), Count::between(costs, [small.1, large.1]));
    }
    Ok(counted)
}

/// Has `write_layers` write the two recordings into `folder`, of as many records as wanted, or a few more.
fn write_recordings(strata: &Path, write_layers: &Path, folder: &Path) -> anyhow::Result<[Recording; 2]> {
    let write = |name, wanted: u64| {
        let recording = folder.join(name);
        process::run_visible(Command::new(write_layers).arg(&recording).arg(wanted.to_string()))?;
        let records = process::capture(Command::new(strata).arg("events").arg(&recording).arg("--count"))?;
        anyhow::Ok((recording, records.trim().parse()?))
    };
    let [few, many] = RECORDS;
    Ok([write("small", few)?, write("large", many)?])
}

/// The instructions of an operation of the case of `ring-bench` that `arguments` name.
fn of_case(ring_bench: &Path, arguments: &[&str], folder: &Path) -> anyhow::Result<Count> {
    let with = |samples: u64| -> Vec<OsString> {
        arguments.iter().map(Into::into).chain(["--samples".into(), samples.to_string().into()]).collect()
    };
    let operations: u64 = process::capture(Command::new(ring_bench).args(with(1)))?.trim().parse()?;
    let of = |samples| {
        let mut costs = callgrind::count(ring_bench, &with(samples), folder)?;
        // A ring in discard mode is cleared once it is full, which no record does.
        costs.retain(|name, _| !name.starts_with("__memset"));
        anyhow::Ok(costs)
    };
    let [few, many] = SAMPLES;
    let costs = progress::step(&format!("counting {}", arguments.join(" ")), || anyhow::Ok([of(few)?, of(many)?]))?;
    Ok(Count::between(costs, SAMPLES.map(|samples| samples * operations)))
}
