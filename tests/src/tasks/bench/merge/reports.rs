//! Reports on a recording of all four layers: how fast each is made, and in how much memory.

use super::super::usage::{self, Usage};
use super::figures::{Goal, Taken};
use super::{LARGER, Options, Programs};
use crate::process;
use crate::progress;
use anyhow::{Context, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// All of them in one pass, which has a goal.
const ALL: &str = "all";
/// The reports that are made of both recordings.
const REPORTS: [&str; 12] =
    [ALL, "summary", "tasks", "vcpus", "exits", "wakeups", "syscalls", "flows", "functions", "irqs", "blocks", "locks"];
/// Records a second, millions, that all reports in one pass have to reach.
const RATE: f64 = 4.0;
/// How much more memory [`LARGER`] times the records may take.
const GROWTH: f64 = 1.25;

/// What a report took.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ReportRow {
    pub(super) report: &'static str,
    #[serde(flatten)]
    pub(super) taken: Taken,
    /// Most memory with a recording that is [`LARGER`] times smaller, KiB.
    pub(super) smaller_peak_kib: u64,
}

/// Makes all reports of a recording of `options.report_events` records, and once of a smaller one. A report that cannot
/// be made stands in `missing`.
pub(super) fn measure(
    programs: &Programs,
    folder: &Path,
    options: &Options,
    missing: &mut Vec<String>,
) -> anyhow::Result<Vec<ReportRow>> {
    let (small, large, counted) = recordings(programs, folder, options)?;
    let mut taken: Vec<(&str, u64, Vec<Usage>)> = Vec::new();
    progress::step("making each report once", || {
        for report in REPORTS {
            match usage::measure(&mut command(programs, report, &small)) {
                Ok(usage) => taken.push((report, usage.peak_kib, Vec::new())),
                Err(error) => missing.push(format!("strata report {report} ({error})")),
            }
        }
        anyhow::Ok(())
    })?;
    for round in 1..=options.repetitions {
        progress::step(&format!("reports, round {round} of {}", options.repetitions), || {
            for (report, _, samples) in &mut taken {
                samples.push(usage::measure(&mut command(programs, report, &large)).context("cannot measure")?);
            }
            anyhow::Ok(())
        })?;
    }
    let row = |(report, smaller_peak_kib, samples): (_, _, Vec<_>)| ReportRow {
        report,
        taken: Taken::new(counted, &samples),
        smaller_peak_kib,
    };
    Ok(taken.into_iter().map(row).collect())
}

/// A recording of a tenth of `options.report_events` records and one of all, which are written unless that has been
/// done, and how many records the larger one has.
pub(super) fn recordings(
    programs: &Programs,
    folder: &Path,
    options: &Options,
) -> anyhow::Result<(PathBuf, PathBuf, u64)> {
    let (small, large) = (folder.join("layers"), folder.join("layers-larger"));
    let counted = if large.exists() {
        count(programs, &large)?
    } else {
        progress::step("writing two recordings of all layers", || {
            write(programs, &small, options.report_events / LARGER)?;
            write(programs, &large, options.report_events)
        })?
    };
    Ok((small, large, counted))
}

/// Writes a recording of about `events` records: how many it has. `strata check` must find nothing wrong with it.
pub(in super::super) fn write(programs: &Programs, dir: &Path, events: u64) -> anyhow::Result<u64> {
    let mut writer = Command::new(&programs.write_layers);
    process::run_visible(writer.arg(dir).arg(events.to_string()))?;
    process::capture(Command::new(&programs.strata).arg("check").arg(dir))?;
    let counted = count(programs, dir)?;
    ensure!(counted >= events, "the recording has {counted} records in place of {events}");
    Ok(counted)
}

fn count(programs: &Programs, dir: &Path) -> anyhow::Result<u64> {
    let counted = process::capture(Command::new(&programs.strata).arg("events").arg(dir).arg("--count"))?;
    Ok(counted.trim().parse()?)
}

fn command(programs: &Programs, report: &str, recording: &Path) -> Command {
    let mut command = Command::new(&programs.strata);
    command.args(["report", report, "--json"]).arg(recording);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The goals, as far as what they speak of was measured.
#[allow(clippy::cast_precision_loss, reason = "memory in KiB")]
pub(super) fn goals(rows: &[ReportRow]) -> Vec<Goal> {
    let all = rows.iter().find(|row| row.report == ALL);
    let rate = all.map(|row| {
        let goal = "all reports in one pass, million records/s".into();
        Goal::at_least(goal, RATE, row.taken.events_per_second / 1e6)
    });
    let growth = rows.iter().map(|row| {
        let goal = format!("peak memory at {LARGER} × / at 1 ×, report {}", row.report);
        Goal::at_most(goal, GROWTH, row.taken.peak_kib as f64 / row.smaller_peak_kib.max(1) as f64)
    });
    rate.into_iter().chain(growth).collect()
}

pub(super) fn write_table(text: &mut String, events: u64, rows: &[ReportRow]) -> std::fmt::Result {
    writeln!(text, "\n{events} records of all four layers, 16 streams:\n")?;
    writeln!(
        text,
        "| strata report | million records/s | quartiles | processor ns a record | peak memory, MiB | of a tenth of the records, MiB |\n|---|---|---|---|---|---|"
    )?;
    for row in rows {
        writeln!(text, "| {} | {} | {} |", row.report, row.taken.columns(), row.smaller_peak_kib.div_ceil(1024))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(report: &'static str, rate: f64, peak_kib: u64) -> ReportRow {
        let taken = Taken { events_per_second: rate, quartiles: [rate; 2], cpu_ns: 1.0, peak_kib };
        ReportRow { report, taken, smaller_peak_kib: 100 }
    }

    #[test]
    fn rate_is_required_of_all_reports_together_and_memory_of_each() {
        let goals = goals(&[row("all", 5e6, 130), row("tasks", 1e6, 110)]);

        let found: Vec<_> = goals.iter().map(Goal::outcome).collect();
        assert_eq!(found, [(5.0, true), (1.3, false), (1.1, true)]);
    }
}
