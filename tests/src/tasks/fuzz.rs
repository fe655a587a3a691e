//! Runs the fuzz targets of `fuzz/`: builds them with coverage instrumentation and AddressSanitizer, and lets as many
//! at a time as there are processors look for inputs that break something.
//!
//! The flags are those of `cargo fuzz`, which needs a nightly toolchain or this same way around it; calling the
//! compiler directly needs nothing that is not installed for building Strata itself.

use crate::build::binaries::{self, Purpose};
use crate::fetch::apt::PackageError;
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::process_group::GoesOnSignal;
use crate::progress;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Seconds that each target gets if nothing else is requested.
pub const SECONDS: u64 = 60;

/// Named explicitly, so that the flags of the build do not reach build scripts and procedural macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What libFuzzer needs to see of a program (its edges and comparisons), and the sanitizer.
const FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "--cfg fuzzing",
    "-Zsanitizer=address",
];

/// What counts as a finding beside a crash: an input that takes longer (s), more memory in all (MiB), or more memory
/// in one piece (MiB); and how long inputs get (bytes).
const LIMITS: [&str; 4] = ["-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=64", "-max_len=16384"];

/// Time that a target may take beyond what it was given, to load its corpus and to end.
const GRACE: Duration = Duration::from_secs(60);

/// What compiles libFuzzer itself.
const COMPILER: [Tool; 1] = [Tool { program: "c++", package: "g++" }];

/// Why fuzzing failed.
#[derive(Debug, thiserror::Error)]
pub enum FuzzError {
    /// The C++ compiler is missing.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// The targets could not be built or run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A folder could not be read or made.
    #[error("cannot use {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// There is no target of that name.
    #[error("there is no fuzz target \"{name}\"; there are {}", targets.join(", "))]
    NoTarget {
        name: String,
        /// What there is.
        targets: Vec<String>,
    },
    /// Inputs that break something were found.
    #[error("fuzzing found inputs that break something:\n{}", .0.join("\n"))]
    Findings(Vec<String>),
}

/// Where everything lies.
struct Folders {
    source: PathBuf,
    /// The programs.
    programs: PathBuf,
    /// What earlier runs on this machine found worth keeping, inputs that break something, and logs.
    work: PathBuf,
}

impl Folders {
    fn of(paths: &Paths) -> Self {
        let source = paths.workspace().join("fuzz");
        let programs = build_folder(paths).join(TARGET).join(Purpose::Test.profile());
        Self { source, programs, work: paths.lab().join("fuzz") }
    }

    /// The names of all targets, sorted.
    fn targets(&self) -> Result<Vec<String>, FuzzError> {
        let path = self.source.join("fuzz_targets");
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&path)? {
                let file = entry?.path();
                if file.extension().is_some_and(|extension| extension == "rs") {
                    names.extend(file.file_stem().map(|name| name.to_string_lossy().into_owned()));
                }
            }
            names.sort();
            Ok(names)
        };
        list().map_err(|source| FuzzError::Folder { path: path.clone(), source })
    }
}

fn build_folder(paths: &Paths) -> PathBuf {
    paths.builds().join("fuzz")
}

/// Builds the targets and runs all of them, or only `target`, for `seconds` each. The same `seed` makes the same inputs
/// where a target has one thread; 0 stands for another seed each time.
///
/// # Errors
///
/// When there is no such target, the build fails, or an input that breaks something is found.
pub fn run(paths: &Paths, seconds: u64, target: Option<&str>, seed: u32) -> Result<(), FuzzError> {
    let folders = Folders::of(paths);
    let mut targets = folders.targets()?;
    if let Some(name) = target {
        if !targets.iter().any(|target| target == name) {
            return Err(FuzzError::NoTarget { name: name.to_owned(), targets });
        }
        targets.retain(|target| target == name);
    }
    tools::install(paths, &COMPILER)?;
    progress::step("building the fuzz targets", || build(paths))?;
    let title = format!("fuzzing {} for {seconds} s each", targets.join(", "));
    let findings = progress::step(&title, || fuzz_all(&folders, targets, seconds, seed))?;
    if findings.is_empty() { Ok(()) } else { Err(FuzzError::Findings(findings)) }
}

fn build(paths: &Paths) -> Result<(), ProcessError> {
    let mut command = binaries::cargo(paths, &build_folder(paths));
    command
        .args(["build", "--profile", Purpose::Test.profile(), "--package", "strata-fuzz", "--features", "libfuzzer"])
        .args(["--bins", "--target", TARGET])
        .env("RUSTFLAGS", FLAGS.join(" "))
        // a finding's stack is all that there is of it
        .env("CARGO_PROFILE_VERIFICATION_DEBUG", "line-tables-only")
        // Sanitizers and coverage are unstable options; the toolchain that builds everything else has them.
        .env("RUSTC_BOOTSTRAP", "1");
    process::run_logged(&mut command, &paths.logs().join("build-fuzz.log"))
}

/// Runs all targets, a few at a time; returns a line for each that failed.
fn fuzz_all(folders: &Folders, targets: Vec<String>, seconds: u64, seed: u32) -> Result<Vec<String>, FuzzError> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(targets.len());
    let queue = Mutex::new(VecDeque::from(targets));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let worker = || {
        let mut findings = Vec::new();
        while let Some(target) = next() {
            findings.extend(fuzz(folders, &target, seconds, seed)?);
        }
        Ok(findings)
    };
    let results: Vec<Result<Vec<String>, FuzzError>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut findings = Vec::new();
    for result in results {
        findings.extend(result?);
    }
    Ok(findings)
}

/// Runs one target; returns what to say when it failed.
fn fuzz(folders: &Folders, target: &str, seconds: u64, seed: u32) -> Result<Option<String>, FuzzError> {
    let work = folders.work.join(target);
    let (grown, findings) = (work.join("corpus"), work.join("findings"));
    for path in [&grown, &findings] {
        fs::create_dir_all(path).map_err(|source| FuzzError::Folder { path: path.clone(), source })?;
    }
    let log = work.join("log");
    let output = fs::File::create(&log).map_err(|source| FuzzError::Folder { path: log.clone(), source })?;
    let errors = output.try_clone().map_err(|source| FuzzError::Folder { path: log.clone(), source })?;
    // Targets that write files do so in memory, and leave them behind when they end.
    let scratch = tempfile::Builder::new().prefix("strata-fuzz-").tempdir_in(scratch_root());
    let scratch = scratch.map_err(|source| FuzzError::Folder { path: scratch_root().to_path_buf(), source })?;
    let _goes = GoesOnSignal::new(scratch.path());
    let program = folders.programs.join(target);
    let mut command = Command::new(&program);
    command
        .args([format!("-max_total_time={seconds}"), format!("-seed={seed}")])
        .args(LIMITS)
        .arg("-print_final_stats=1")
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg(&grown)
        // Only read: what is found anew goes to the first folder.
        .arg(folders.source.join("corpus").join(target))
        .env("TMPDIR", scratch.path())
        .stdin(std::process::Stdio::null())
        .stdout(output)
        .stderr(errors);
    let status = process::wait_with_timeout(&mut command, Duration::from_secs(seconds) + GRACE, &log)?;
    let text = fs::read_to_string(&log).map_err(|source| FuzzError::Folder { path: log.clone(), source })?;
    if status.success() {
        progress::note(&format!("{target}: {}", statistics(&text)));
        return Ok(None);
    }
    let what = match finding(&text) {
        Some(input) => format!("{target}: {} {input}; see {}", program.display(), log.display()),
        None => format!("{target}: {status}; see {}", log.display()),
    };
    Ok(Some(what))
}

/// A folder for files that need not outlive a run: in memory where there is one.
fn scratch_root() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}

/// How much a run did, out of libFuzzer's output.
fn statistics(log: &str) -> String {
    let value = |name: &str| {
        let line = log.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()
    };
    let edges = log.lines().filter_map(|line| line.split_once("cov: ")?.1.split_whitespace().next()).next_back();
    format!(
        "{} inputs, {} edges, {} new in the corpus",
        value("stat::number_of_executed_units").unwrap_or("?"),
        edges.unwrap_or("?"),
        value("stat::new_units_added").unwrap_or("?"),
    )
}

/// The file that libFuzzer wrote the breaking input to.
fn finding(log: &str) -> Option<&str> {
    log.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| path.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "#2\tINITED cov: 10 ft: 11 corp: 1/1b\n#9\tDONE   cov: 345 ft: 900 corp: 25/9Kb\n\
                       stat::number_of_executed_units: 4711\nstat::new_units_added:          12\n";

    #[test]
    fn statistics_are_those_of_the_end() {
        assert_eq!(statistics(LOG), "4711 inputs, 345 edges, 12 new in the corpus");
    }

    #[test]
    fn finding_is_the_file_that_was_written() {
        let log = format!("{LOG}artifact_prefix='/x/'; Test unit written to /x/crash-1\n");

        assert_eq!((finding(LOG), finding(&log)), (None, Some("/x/crash-1")));
    }

    #[test]
    fn every_target_has_a_committed_corpus() {
        let folders = Folders::of(&Paths::of_workspace());

        let targets = folders.targets().unwrap();

        assert!(targets.iter().any(|target| target == "consumer"));
        let seeds = |target: &String| fs::read_dir(folders.source.join("corpus").join(target)).unwrap().count();
        assert!(targets.iter().all(|target| seeds(target) > 0));
    }

    #[test]
    fn unknown_target_is_named_with_those_that_there_are() {
        let error = run(&Paths::of_workspace(), 1, Some("consumers"), 1).unwrap_err().to_string();

        assert!(error.starts_with("there is no fuzz target \"consumers\"; there are "), "{error}");
        assert!(error.contains(" consumer,") && error.contains(" trigger,"), "{error}");
    }
}
