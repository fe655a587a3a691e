//! Builds `strata-query`, which is a workspace of its own, and tests it with DuckDB, pandas and Spark beside it.
//!
//! Shows: Tables hold every record and the reports' figures; ready questions have DuckDB's answers (`--all`).
//! Shows: A fleet's recordings arrive exactly once though a worker is killed; Spark agrees (`--all`).

use crate::build::binaries;
use crate::fetch::apt::{PackageError, recreate};
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is installed for Python, and nowhere else.
const DUCKDB: &str = "duckdb==2.0.0";
const PANDAS: &str = "pandas==3.1.1";
/// What pandas reads with, and DuckDB hands answers on as.
const PYARROW: &str = "pyarrow==26.0.1";
const SPARK: &str = "pyspark==4.3.0";
/// What writes the fleet's lake, and what it needs.
const DELTA: &str = "deltalake==1.6.6";
/// DuckDB with its reader of Delta Lake, which comes in a package for this version.
const DUCKDB_FOR_DELTA: &str = "duckdb==1.4.4";
const DUCKDB_DELTA: &str = "duckdb-ext-delta==1.4.4.20260205";
/// An object store on this machine.
const MOTO: &str = "moto[server]==5.2.5";
/// What Spark runs on.
const JAVA: Tool = Tool { program: "java", package: "openjdk-17-jre-headless" };
/// Where it is built.
const TARGET: &str = "trace-merge/query/target";
/// The job on Spark, and its tests.
const JOB: &str = "trace-merge/query/spark";

/// Why it is not tested.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// A tool is missing.
    #[error(transparent)]
    Tools(#[from] PackageError),
    /// A step failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Checks format and lints, and runs its tests: DuckDB reads the tables of a made recording, and of `trace`, with the
/// figures of the reports, and answers the ready questions as DataFusion does; pandas reads them by partition.
///
/// # Errors
///
/// The first step that fails.
pub fn run(paths: &Paths, trace: Option<&Path>) -> Result<(), QueryError> {
    let python = progress::step("DuckDB and pandas", || duckdb(paths))?;
    progress::step("format check", || cargo(paths, &["fmt", "--check"], []))?;
    progress::step("lints", || lints(paths))?;
    let trace = trace.map(absolute);
    let trace = trace.as_deref().map(|trace| ("STRATA_DUCKDB_TRACE", trace.as_os_str()));
    let python = ("STRATA_DUCKDB_PYTHON", python.as_os_str());
    progress::step("tests, and what DuckDB and pandas read", || {
        cargo(paths, &["test", "--quiet", "--", "--include-ignored"], std::iter::once(python).chain(trace))
    })?;
    Ok(())
}

/// Its lints, with SQL.
///
/// # Errors
///
/// When there are some, or cargo fails.
pub(super) fn lints(paths: &Paths) -> Result<(), ProcessError> {
    cargo(paths, &["clippy", "--quiet", "--all-targets"], [])
}

/// Builds the program with optimisation: its folder.
///
/// # Errors
///
/// When cargo fails.
pub(super) fn build(paths: &Paths) -> Result<PathBuf, ProcessError> {
    cargo(paths, &["build", "--quiet", "--release", "--target-dir", TARGET], [])?;
    Ok(paths.workspace().join(TARGET).join("release"))
}

/// A Python that has DuckDB, and pandas.
///
/// # Errors
///
/// When that cannot be installed.
pub(super) fn duckdb(paths: &Paths) -> Result<PathBuf, ProcessError> {
    python(paths, "duckdb", &[DUCKDB, PANDAS, PYARROW])
}

/// The folder of the ready questions, a file each.
pub(super) fn questions(paths: &Paths) -> PathBuf {
    paths.workspace().join("trace-merge/query/queries")
}

/// Builds the program with optimisation and without SQL, which takes a few minutes.
///
/// # Errors
///
/// When cargo fails.
pub(super) fn exporter(paths: &Paths) -> Result<PathBuf, ProcessError> {
    let target = format!("{TARGET}/exporter");
    cargo(paths, &["build", "--quiet", "--release", "--no-default-features", "--target-dir", &target], [])?;
    Ok(paths.workspace().join(target).join("release/strata-query"))
}

/// A Python that has Spark, what the job needs, and what judges it.
///
/// # Errors
///
/// When that cannot be installed.
pub(super) fn spark(paths: &Paths) -> Result<PathBuf, QueryError> {
    tools::install(paths, &[JAVA])?;
    let packages = [SPARK, PYARROW, DELTA, DUCKDB_FOR_DELTA, DUCKDB_DELTA, MOTO];
    Ok(progress::step("Spark", || python(paths, "spark", &packages))?)
}

/// The folder of the job on Spark.
pub(super) fn job(paths: &Paths) -> PathBuf {
    paths.workspace().join(JOB)
}

/// Runs the tests of the job on Spark, with copies of a made recording or of `trace`. DataFusion is not built for them.
///
/// # Errors
///
/// The first step that fails.
pub fn run_on_spark(paths: &Paths, trace: Option<&Path>) -> Result<(), QueryError> {
    let python = spark(paths)?;
    progress::step("building strata-query", || {
        let programs = ["--no-default-features", "--bin", "strata-query", "--example", "made_recording"];
        cargo(paths, &[&["build", "--quiet", "--target-dir", TARGET][..], &programs].concat(), [])
    })?;
    let programs = paths.workspace().join(TARGET).join("debug");
    let trace = match trace {
        Some(trace) => absolute(trace),
        None => {
            let folder = paths.runs().join("spark");
            recreate(&folder)?;
            let made = folder.join("recording");
            process::run_visible(Command::new(programs.join("examples/made_recording")).arg(&made))?;
            made
        }
    };
    progress::step("tests on Spark, with a worker that is killed", || {
        let mut tests = Command::new(&python);
        tests.args(["-m", "unittest", "--verbose", "test_fleet"]).current_dir(job(paths));
        tests.env("STRATA_QUERY", programs.join("strata-query")).env("STRATA_FLEET_RECORDING", trace);
        process::run_visible(tests.env("PYTHONDONTWRITEBYTECODE", "1"))
    })?;
    Ok(())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// A Python of the lab's own, in the folder `name`, that has `packages`.
fn python(paths: &Paths, name: &str, packages: &[&str]) -> Result<PathBuf, ProcessError> {
    let folder = paths.lab().join(name);
    let python = folder.join("bin/python");
    let log = paths.logs().join(format!("{name}.log"));
    process::run_logged(Command::new("python3").args(["-m", "venv"]).arg(&folder), &log)?;
    process::run_logged(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages), &log)?;
    Ok(python)
}

/// Runs cargo there, visibly.
fn cargo<'v>(
    paths: &Paths,
    arguments: &[&str],
    variables: impl IntoIterator<Item = (&'static str, &'v OsStr)>,
) -> Result<(), ProcessError> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let (subcommand, rest) = arguments.split_at(1);
    command
        .current_dir(paths.workspace())
        .args(subcommand)
        .args(["--manifest-path", binaries::QUERY_MANIFEST])
        .args(rest);
    process::run_visible(command.envs(variables))
}
