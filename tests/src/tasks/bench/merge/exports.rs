//! Exports of a recording of all four layers: how fast each is written, in how much memory, and how large it is.

use super::super::usage::{self, Usage};
use super::figures::{Goal, Taken};
use super::{LARGER, Options, Programs, reports};
use crate::process;
use crate::progress;
use anyhow::Context;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The formats that are measured.
const FORMATS: [&str; 1] = ["perfetto"];
/// Records a second, millions, that an export has to reach on one processor.
const RATE: f64 = 2.0;
/// How much more memory [`LARGER`] times the records may take.
const GROWTH: f64 = 1.25;

/// What an export took.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ExportRow {
    format: &'static str,
    /// Whether it had one processor only; otherwise all there are.
    one_processor: bool,
    #[serde(flatten)]
    taken: Taken,
    /// Most memory with a recording that is [`LARGER`] times smaller, KiB.
    smaller_peak_kib: u64,
    /// Bytes of the export for each record.
    bytes: f64,
    /// The same, compressed with gzip.
    gzip_bytes: f64,
}

/// Exports a recording of `options.report_events` records, and once a smaller one.
#[allow(clippy::cast_precision_loss, reason = "far fewer records and bytes than a double counts exactly")]
pub(super) fn measure(programs: &Programs, folder: &Path, options: &Options) -> anyhow::Result<Vec<ExportRow>> {
    let (small, large, counted) = reports::recordings(programs, folder, options)?;
    let mut rows = Vec::new();
    for format in FORMATS {
        let file = folder.join(format);
        let mut export = Command::new(&programs.strata);
        export.arg("export").arg(&large).args(["--force", "--format", format, "-o"]).arg(&file);
        process::run_visible(export.stderr(Stdio::null()))?;
        let bytes = fs::metadata(&file).with_context(|| format!("cannot read {}", file.display()))?.len();
        let gzip = process::capture(Command::new("sh").args(["-c", "gzip -c \"$0\" | wc -c"]).arg(&file))?;
        let gzip: u64 = gzip.trim().parse().context("gzip counts nothing")?;
        for one_processor in [false, true] {
            let smaller = usage::measure(&mut command(programs, format, one_processor, &small))?;
            let title = format!("exporting to {format}{}", if one_processor { " on one processor" } else { "" });
            let samples: Vec<Usage> = progress::step(&title, || {
                (0..options.repetitions)
                    .map(|_| usage::measure(&mut command(programs, format, one_processor, &large)))
                    .collect::<Result<_, _>>()
            })
            .context("cannot measure")?;
            rows.push(ExportRow {
                format,
                one_processor,
                taken: Taken::new(counted, &samples),
                smaller_peak_kib: smaller.peak_kib,
                bytes: bytes as f64 / counted as f64,
                gzip_bytes: gzip as f64 / counted as f64,
            });
        }
    }
    Ok(rows)
}

fn command(programs: &Programs, format: &str, one_processor: bool, recording: &Path) -> Command {
    let mut command = if one_processor {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(&programs.strata);
        command
    } else {
        Command::new(&programs.strata)
    };
    command.arg("export").arg(recording).args(["--format", format, "-o", "-"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The goals, as far as what they speak of was measured.
#[allow(clippy::cast_precision_loss, reason = "memory in KiB")]
pub(super) fn goals(rows: &[ExportRow]) -> Vec<Goal> {
    let rate = rows.iter().filter(|row| row.one_processor).map(|row| {
        let goal = format!("export to {} on one processor, million records/s", row.format);
        Goal::at_least(goal, RATE, row.taken.events_per_second / 1e6)
    });
    let growth = rows.iter().filter(|row| !row.one_processor).map(|row| {
        let goal = format!("peak memory at {LARGER} × / at 1 ×, export to {}", row.format);
        Goal::at_most(goal, GROWTH, row.taken.peak_kib as f64 / row.smaller_peak_kib.max(1) as f64)
    });
    rate.chain(growth).collect()
}

pub(super) fn write_table(text: &mut String, events: u64, rows: &[ExportRow]) -> std::fmt::Result {
    writeln!(text, "\nExports of {events} records of all four layers, 16 streams:\n")?;
    writeln!(
        text,
        "| strata export --format | million records/s | quartiles | processor ns a record | peak memory, MiB | of a tenth of the records, MiB | bytes a record | with gzip |\n|---|---|---|---|---|---|---|---|"
    )?;
    for row in rows {
        let on = if row.one_processor { ", one processor" } else { "" };
        let (columns, smaller) = (row.taken.columns(), row.smaller_peak_kib.div_ceil(1024));
        writeln!(text, "| {}{on} | {columns} | {smaller} | {:.1} | {:.1} |", row.format, row.bytes, row.gzip_bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(one_processor: bool, rate: f64, peak_kib: u64) -> ExportRow {
        let taken = Taken { events_per_second: rate, quartiles: [rate; 2], cpu_ns: 1.0, peak_kib };
        ExportRow { format: "perfetto", one_processor, taken, smaller_peak_kib: 100, bytes: 60.0, gzip_bytes: 9.0 }
    }

    #[test]
    fn rate_is_required_of_one_processor_and_memory_of_all() {
        let goals = goals(&[row(false, 5e6, 130), row(true, 1e6, 900)]);

        let found: Vec<_> = goals.iter().map(Goal::outcome).collect();
        assert_eq!(found, [(1.0, false), (1.3, false)]);
    }
}
