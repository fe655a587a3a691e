//! `cargo xtask bench fleet`: taking recordings into a lake on Spark beside the exporter alone, and the ready questions
//! beside DuckDB.

use super::BenchFolder;
use super::merge::{self, report};
use crate::paths::Paths;
use crate::tasks::query;
use crate::{process, progress};
use anyhow::Context;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Records of the smallest recording.
const LEAST: u64 = 20_000;

/// Prints the tables of so many recordings, of 20,000 to `events` records.
///
/// # Errors
///
/// When something cannot be built or installed, or a program fails.
pub fn run(paths: &Paths, recordings: u16, events: u64) -> anyhow::Result<()> {
    let writer = merge::build_example(paths, "strata-recording", "write_layers")?;
    let exporter = progress::step("building the exporter with optimisation", || query::exporter(paths))?;
    let python = query::spark(paths)?;
    let folder = BenchFolder::new(paths, "fleet-bench-")?;
    let made = folder.path().join("recordings");
    fs::create_dir(&made).with_context(|| format!("cannot create {}", made.display()))?;
    progress::step("writing recordings", || write(&writer, &made, recordings, events))?;
    println!("{}; load {:.2}\n", report::machine(), report::load_average());
    let mut bench = Command::new(python);
    bench.arg("bench_fleet.py").arg(&made).arg(&exporter).current_dir(query::job(paths));
    // The job's tests, whose views it takes, read these.
    bench.env("STRATA_QUERY", &exporter).env("STRATA_FLEET_RECORDING", &made);
    process::run_visible(bench.env("PYTHONDONTWRITEBYTECODE", "1"))?;
    Ok(())
}

/// Writes recordings into the folder `folder`, each larger than the one before.
fn write(writer: &Path, folder: &Path, recordings: u16, events: u64) -> anyhow::Result<()> {
    for number in 0..recordings {
        let more = events.saturating_sub(LEAST) * u64::from(number) / u64::from(recordings.max(2) - 1);
        let mut command = Command::new(writer);
        command.arg(folder.join(format!("recording-{number:03}"))).arg((LEAST + more).to_string());
        process::capture(&mut command)?;
    }
    Ok(())
}
