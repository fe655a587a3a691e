//! What recording an event costs: our ring beside the clock, the memory, LTTng-UST and ftrace, in one interleaved run.
//!
//! Called by `cargo xtask bench ring`, and for single cases by `cargo xtask bench instructions`.

mod counting;
mod drain;
mod ftrace;
mod lttng;
mod machine;
mod measured_program;
mod module;
mod primitives;
mod report;
mod ring_cases;
mod sampling;
mod scaling;
mod user_level;

use crate::machine::Machine;
use crate::report::{Report, goals};
use crate::sampling::{Case, TickRate, interleave};
use anyhow::{Context, ensure};
use clap::Parser;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures what recording an event costs, beside other tracers, on this machine.
#[derive(Parser)]
struct Arguments {
    /// Samples per case, at least 7.
    #[arg(long, value_name = "N", default_value_t = 11)]
    repetitions: usize,
    /// Write the results to FILE as JSON too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Put the tables between the markers of this Markdown document too.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Folder in which the guest kernel module was built, for a kernel of the 6.1 series.
    #[arg(long, value_name = "DIR")]
    module_objects: Option<PathBuf>,
    /// Folder on the file system that the consumer writes to.
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Only take so many samples of this case, and print how many operations they are: for counting instructions.
    #[arg(long, value_name = "CASE", requires = "samples")]
    case: Option<String>,
    /// Samples of the case.
    #[arg(long, value_name = "N", requires = "case")]
    samples: Option<u32>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let (Some(case), Some(samples)) = (&arguments.case, arguments.samples) {
        return counting::run(case, samples);
    }
    let repetitions = arguments.repetitions;
    ensure!(repetitions >= 7, "{repetitions} repetitions are too few for a median: use 7 or more");
    let folder = tempfile::TempDir::with_prefix_in("ring-bench-", &arguments.folder)
        .with_context(|| format!("cannot write to {}", arguments.folder.display()))?;
    let cpus = usable_cpus()?;
    let rate = TickRate::measure();
    let mut machine = Machine::describe(rate, cpus.len());
    let mut missing = Vec::new();
    // Its daemons must be free to run beside what is measured: started before this thread is pinned.
    let lttng = available(lttng::Session::start(), "LTTng-UST", &mut missing);
    // Before pinning too: its threads choose their CPUs themselves.
    let scaling = scaling::scaling(&cpus, rate, repetitions)?;
    scaling::pin(*cpus.last().context("no CPU to run on")?)?;

    let mut cases = ring_cases::floor_cases(rate)?;
    cases.extend(ring_cases::cases(rate)?);
    if let Some(session) = &lttng {
        machine.lttng = Some(session.version());
        cases.extend(available(session.cases(rate), "LTTng-UST", &mut missing).unwrap_or_default());
    }
    match &arguments.module_objects {
        Some(objects) => {
            let module = available(module::Module::start(objects), "the module's object code", &mut missing);
            cases.extend(module.into_iter().flat_map(module::Module::cases));
        }
        None => missing.push("the module's object code (--module-objects was not given)".to_owned()),
    }
    let instance = available(ftrace::Instance::create(), "ftrace", &mut missing);
    cases.extend(instance.iter().flat_map(|instance| instance.cases(rate)));
    let user: Vec<Case> = available(user_level::cases(rate), "user level", &mut missing).unwrap_or_default();
    let split = cases.len();
    cases.extend(user);
    let mut events = interleave(&mut cases, repetitions)?;
    let user_level = events.split_off(split);
    drop(cases);
    if let Some(session) = &lttng {
        session.check_recorded()?;
    }

    let primitives = interleave(&mut primitives::cases(rate)?, repetitions)?;
    let ring_sizes = scaling::ring_sizes(rate, repetitions)?;
    let drain = drain::drain(folder.path(), repetitions)?;
    machine.finish();
    let goals = goals(&events, &user_level, &scaling, &drain);
    let report =
        Report { machine, repetitions, events, user_level, primitives, ring_sizes, scaling, drain, missing, goals };
    print!("{}", report.to_markdown());
    if let Some(path) = &arguments.json {
        std::fs::write(path, report.to_json()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &arguments.document {
        report.write_into(path)?;
    }
    Ok(())
}

/// What could be set up; otherwise the reason is noted, and the rest of the run goes on.
fn available<T>(result: anyhow::Result<T>, what: &str, missing: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| missing.push(format!("{what} ({error:#})"))).ok()
}

fn usable_cpus() -> anyhow::Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot ask for this process's CPUs")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}
