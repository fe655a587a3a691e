//! `cargo xtask bench instructions`: how many instructions a record takes on each path that matters, by callgrind, and
//! whether that is more than the counts in `docs/results/instructions.json` say. Other than a time, a count is the same
//! on a busy machine; it says nothing of cache misses and of what the kernel does.
//!
//! A path is taken twice, for few and for many records. The difference leaves out what is done once.

mod callgrind;
mod counts;

use self::counts::{Count, Counts};
use super::BenchFolder;
use super::merge;
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
#[derive(Debug, Clone, Copy)]
struct Way {
    /// What it is called in the results.
    name: &'static str,
    /// The most that it may take once it is as it should be.
    goal: Option<f64>,
    /// What the program is asked for.
    arguments: &'static [&'static str],
}

/// What stands around each case of `ring-bench`.
const AROUND: [&str; 2] = ["--case", "floor/call"];
/// Samples of a case: few, and more.
const SAMPLES: [u64; 2] = [1, 2];
/// Records of a recording: few, and more.
const RECORDS: [u64; 2] = [10_000, 100_000];
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

const fn way(name: &'static str, goal: Option<f64>, arguments: &'static [&'static str]) -> Way {
    Way { name, goal, arguments }
}

/// The programs that are counted.
struct Programs {
    strata: PathBuf,
    write_layers: PathBuf,
    ring_bench: PathBuf,
}

/// Counts, and compares with what the file says; or writes it with `update_document`, and the page that shows it.
///
/// # Errors
///
/// When something cannot be built or installed, a program fails, or a path takes more instructions than it may.
pub fn run(paths: &Paths, update_document: bool) -> anyhow::Result<()> {
    tools::install(paths, &[VALGRIND])?;
    let built = progress::step("building strata with optimisation", || merge::build(paths))?;
    let programs =
        Programs { strata: built.strata, write_layers: built.write_layers, ring_bench: super::ring::build(paths)? };
    let folder = BenchFolder::new(paths, "instructions-")?;
    let mut counted = count_recording(&programs.ring_bench, folder.path())?;
    counted.extend(count_reading(&programs, folder.path())?);
    let counts = Counts::of(counted)?;
    print!("{}", counts.table());
    if update_document {
        return counts.write(paths.workspace());
    }
    compare(&Counts::read(paths.workspace())?, &counts)
}

/// Counts the ways through the rings, which take seconds, and compares them with what the file says. Other compilers make
/// other programs: then nothing is compared, which is noted. Returns the counts as a table, empty where there are none.
///
/// # Errors
///
/// When something cannot be built or installed, a program fails, or a path takes more instructions than it may.
pub fn check_recording(paths: &Paths) -> anyhow::Result<String> {
    tools::install(paths, &[VALGRIND])?;
    let before = Counts::read(paths.workspace())?;
    let made_by = Counts::of(BTreeMap::new())?;
    if !before.is_comparable(&made_by) {
        progress::note(&format!("instructions are not compared: {}", before.difference(&made_by)));
        return Ok(String::new());
    }
    let ring_bench = super::ring::build(paths)?;
    let folder = BenchFolder::new(paths, "instructions-")?;
    let counts = Counts::of(count_recording(&ring_bench, folder.path())?)?;
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

/// The instructions of the ways through `strata`.
fn count_reading(programs: &Programs, folder: &Path) -> anyhow::Result<BTreeMap<String, Count>> {
    let mut counted = BTreeMap::new();
    let [small, large] = RECORDS;
    let small = write_recording(programs, &folder.join("small"), small)?;
    let large = write_recording(programs, &folder.join("large"), large)?;
    for way in READING {
        let of = |(recording, _): &(PathBuf, u64)| {
            let output = folder.join("output");
            let word = |word: &&str| if *word == OUTPUT { output.clone().into() } else { OsString::from(word) };
            let arguments: Vec<OsString> = way.arguments.iter().map(word).chain([recording.into()]).collect();
            callgrind::count(&programs.strata, &arguments, folder)
        };
        let costs = progress::step(&format!("counting {}", way.name), || anyhow::Ok([of(&small)?, of(&large)?]))?;
        counted.insert(way.name.to_owned(), Count::between(costs, [small.1, large.1]));
    }
    Ok(counted)
}

/// Writes a recording of `wanted` records, or a few more; how many they are.
fn write_recording(programs: &Programs, folder: &Path, wanted: u64) -> anyhow::Result<(PathBuf, u64)> {
    process::run_visible(Command::new(&programs.write_layers).arg(folder).arg(wanted.to_string()))?;
    let records = process::capture(Command::new(&programs.strata).arg("events").arg(folder).arg("--count"))?;
    Ok((folder.to_owned(), records.trim().parse()?))
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
