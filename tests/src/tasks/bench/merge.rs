//! `cargo xtask bench merge`: how fast recordings are read, merged and shown, beside babeltrace2 on the same bytes and
//! trace-cmd on as many records of its own form; how fast reports are made of all four layers, and how fast these are
//! exported.

mod exports;
pub(super) mod figures;
mod ftrace_data;
pub(super) mod report;
pub(super) mod reports;

use self::report::{Measured, MemoryRow, Report, Row};
use super::BenchFolder;
use super::usage::{self, Usage};
use crate::fetch::tools::{self, TRACE_CMD, Tool};
use crate::paths::Paths;
use crate::process;
use crate::progress;
use anyhow::{Context, ensure};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is measured beside Strata.
const OTHERS: [Tool; 2] = [Tool { program: "babeltrace2", package: "babeltrace2" }, TRACE_CMD];
/// Numbers of streams that the records are spread over.
const STREAMS: [u32; 3] = [1, 4, 16];
/// Streams of the recordings that memory is measured with.
const MEMORY_STREAMS: u32 = 4;
/// How much larger the larger of them is.
pub(super) const LARGER: u64 = 10;

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Listing and counting the records of a guest's kernel, beside other programs.
    Records,
    /// Reports on all four layers.
    Reports,
    /// Exports of all four layers.
    Exports,
}

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Samples per case.
    pub repetitions: usize,
    /// Records of each recording.
    pub events: u64,
    /// Records of the recording that reports are made of.
    pub report_events: u64,
    /// Only this part; `None` for all.
    pub only: Option<Part>,
    /// Where to write the results as JSON.
    pub json: Option<PathBuf>,
    /// Whether to put the tables into `docs/performance.md`.
    pub update_document: bool,
}

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Form {
    Count,
    Text,
    Json,
}

/// The program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Program {
    Strata,
    Babeltrace2,
    TraceCmd,
}

/// A program with what it reads.
struct Case {
    program: Program,
    form: Form,
    streams: u32,
    events: u64,
    data: PathBuf,
    taken: Vec<Usage>,
}

/// Runs the benchmark; its tables go to standard output.
///
/// Where trace-cmd cannot be had or ftrace not be used, the rest is measured and the tables say what is missing.
///
/// # Errors
///
/// When something cannot be built, or a program fails or counts another number of records than there are.
pub fn run(paths: &Paths, options: &Options) -> anyhow::Result<()> {
    let programs = progress::step("building strata with optimisation", || build(paths))?;
    let folder = BenchFolder::new(paths, "merge-bench-")?;
    let load_before = report::load_average();
    let mut missing = Vec::new();
    let (mut rows, mut memory, mut reports, mut exports) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let wanted = |part| options.only.is_none_or(|only| only == part);
    if wanted(Part::Records) {
        (rows, memory) = records(paths, &programs, folder.path(), options, &mut missing)?;
    }
    if wanted(Part::Reports) {
        reports = reports::measure(&programs, folder.path(), options, &mut missing)?;
    }
    if wanted(Part::Exports) {
        exports = exports::measure(&programs, folder.path(), options)?;
    }
    let measured = Measured { rows, memory, reports, exports };
    let report = Report::new(options, measured, missing, load_before);
    print!("{}", report.to_markdown());
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.update_document {
        report.write_into(&super::ring::document(paths))?;
    }
    Ok(())
}

/// Lists and counts records.
fn records(
    paths: &Paths,
    programs: &Programs,
    folder: &Path,
    options: &Options,
    missing: &mut Vec<String>,
) -> anyhow::Result<(Vec<Row>, Vec<MemoryRow>)> {
    tools::install(paths, &OTHERS[..1])?;
    let mut cases = cases(paths, programs, folder, options, missing)?;
    progress::step("reading each recording once", || cases.iter().try_for_each(|case| check(programs, case)))?;
    for round in 1..=options.repetitions {
        progress::step(&format!("round {round} of {}", options.repetitions), || {
            cases.iter_mut().try_for_each(|case| {
                let usage = usage::measure(&mut command(programs, case)).context("cannot measure")?;
                case.taken.push(usage);
                anyhow::Ok(())
            })
        })?;
    }
    let memory = progress::step("reading a larger recording", || memory(programs, folder, options.events))?;
    Ok((cases.iter().map(Row::new).collect(), memory))
}

/// Programs built for this.
pub(super) struct Programs {
    pub(super) strata: PathBuf,
    write_recording: PathBuf,
    pub(super) write_layers: PathBuf,
}

pub(super) fn build(paths: &Paths) -> anyhow::Result<Programs> {
    let cargo = |what: &[&str], log: &str| {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(paths.workspace()).args(["build", "--release"]).args(what);
        process::run_logged(&mut command, &paths.logs().join(format!("{log}.log")))
    };
    cargo(&["-p", "vmm", "--bin", "strata"], "merge-bench-strata")?;
    let writers = ["-p", "strata-recording", "--example", "write_recording", "--example", "write_layers"];
    cargo(&writers, "merge-bench-writers")?;
    let release = release(paths);
    let example = |name| release.join("examples").join(name);
    Ok(Programs {
        strata: release.join("strata"),
        write_recording: example("write_recording"),
        write_layers: example("write_layers"),
    })
}

/// Builds the example `name` of `package` with optimisation; its program.
pub(super) fn build_example(paths: &Paths, package: &str, name: &str) -> anyhow::Result<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(paths.workspace()).args(["build", "--release", "-p", package, "--example", name]);
    process::run_logged(&mut command, &paths.logs().join(format!("{name}.log")))?;
    Ok(release(paths).join("examples").join(name))
}

/// The folder of programs that are built with optimisation.
fn release(paths: &Paths) -> PathBuf {
    paths.target().join("release")
}

fn cases(
    paths: &Paths,
    programs: &Programs,
    folder: &Path,
    options: &Options,
    missing: &mut Vec<String>,
) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    let case = |program, form, streams, events, data: &Path| Case {
        program,
        form,
        streams,
        events,
        data: data.to_owned(),
        taken: Vec::new(),
    };
    for streams in STREAMS {
        let data = folder.join(format!("streams-{streams}"));
        progress::step(&format!("writing a recording of {streams} streams"), || {
            write_recording(programs, &data, options.events, streams)
        })?;
        for (program, form) in [
            (Program::Strata, Form::Count),
            (Program::Strata, Form::Text),
            (Program::Strata, Form::Json),
            (Program::Babeltrace2, Form::Count),
            (Program::Babeltrace2, Form::Text),
        ] {
            cases.push(case(program, form, streams, options.events, &data));
        }
    }
    let recorded = tools::install(paths, &OTHERS[1..])
        .map_err(anyhow::Error::from)
        .and_then(|()| progress::step("recording with ftrace", || ftrace_data::record(folder, options.events)));
    match recorded {
        Ok(recorded) => cases.push(case(Program::TraceCmd, Form::Text, 1, recorded.events, &recorded.file)),
        Err(error) => missing.push(format!("trace-cmd ({error:#})")),
    }
    Ok(cases)
}

fn write_recording(programs: &Programs, dir: &Path, events: u64, streams: u32) -> anyhow::Result<()> {
    let mut command = Command::new(&programs.write_recording);
    command.arg(dir).args([events.to_string(), streams.to_string()]);
    Ok(process::run_visible(&mut command)?)
}

/// The command of `case`; what it shows is thrown away.
fn command(programs: &Programs, case: &Case) -> Command {
    let mut command = match case.program {
        Program::Strata => Command::new(&programs.strata),
        Program::Babeltrace2 => Command::new("babeltrace2"),
        Program::TraceCmd => Command::new("trace-cmd"),
    };
    match (case.program, case.form) {
        (Program::Strata, Form::Count) => command.arg("events").arg(&case.data).arg("--count"),
        (Program::Strata, Form::Text) => command.arg("events").arg(&case.data),
        (Program::Strata, Form::Json) => command.arg("events").arg(&case.data).arg("--json"),
        // A step of 0 shows the number at the end only.
        (Program::Babeltrace2, Form::Count) => {
            command.arg(&case.data).args(["--component=sink.utils.counter", "--params=step=+0"])
        }
        (Program::Babeltrace2, _) => command.arg(&case.data),
        (Program::TraceCmd, _) => command.args(["report", "-i"]).arg(&case.data),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs `case` once, which also brings its data into memory, and compares the number of records that it shows.
fn check(programs: &Programs, case: &Case) -> anyhow::Result<()> {
    let lines = |command: &mut Command| {
        let mut child = command.spawn()?;
        let mut counted = 0;
        if let Some(mut out) = child.stdout.take() {
            let mut buffer = vec![0; 1 << 20];
            loop {
                match std::io::Read::read(&mut out, &mut buffer)? {
                    0 => break,
                    read => counted += buffer[..read].iter().filter(|&&byte| byte == b'\n').count() as u64,
                }
            }
        }
        child.wait()?;
        anyhow::Ok(counted)
    };
    let mut command = command(programs, case);
    command.stdout(Stdio::piped());
    let found = match (case.program, case.form) {
        (Program::Strata, Form::Count) => process::capture(&mut command)?.trim().parse()?,
        (Program::Babeltrace2, Form::Count) => {
            let text = process::capture(&mut command)?;
            let line =
                text.lines().find(|line| line.contains("Event messages")).context("babeltrace2 counts nothing")?;
            line.split_whitespace().next().unwrap_or_default().parse()?
        }
        // One line says how many CPUs there are.
        (Program::TraceCmd, _) => lines(&mut command)?.saturating_sub(1),
        _ => lines(&mut command)?,
    };
    ensure!(found == case.events, "{:?} {:?} shows {found} records of {}", case.program, case.form, case.events);
    Ok(())
}

/// The most memory that each form takes, with a recording and with a larger one.
fn memory(programs: &Programs, folder: &Path, events: u64) -> anyhow::Result<Vec<MemoryRow>> {
    let smaller = folder.join(format!("streams-{MEMORY_STREAMS}"));
    let larger = folder.join("larger");
    write_recording(programs, &larger, events * LARGER, MEMORY_STREAMS)?;
    let rows = [Form::Count, Form::Text, Form::Json].map(|form| {
        let peak = |data: &Path, events| {
            let case = Case {
                program: Program::Strata,
                form,
                streams: MEMORY_STREAMS,
                events,
                data: data.to_owned(),
                taken: Vec::new(),
            };
            usage::measure(&mut command(programs, &case)).context("cannot measure").map(|usage| usage.peak_kib)
        };
        Ok(MemoryRow { form, smaller_kib: peak(&smaller, events)?, larger_kib: peak(&larger, events * LARGER)? })
    });
    rows.into_iter().collect()
}
