//! The results: for machines as JSON, for readers as Markdown tables.

use super::exports::{self, ExportRow};
use super::figures::{Goal, Taken};
use super::reports::{self, ReportRow};
use super::{Case, Form, LARGER, MEMORY_STREAMS, Options, Program, STREAMS};
use crate::tasks::markers::{self, MarkersError};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Everything that one run measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: String,
    repetitions: usize,
    events: u64,
    /// Load average over one minute at the beginning and at the end: others' work, mostly.
    load: [f64; 2],
    rows: Vec<Row>,
    memory: Vec<MemoryRow>,
    report_events: u64,
    reports: Vec<ReportRow>,
    exports: Vec<ExportRow>,
    missing: Vec<String>,
    goals: Vec<Goal>,
}

/// What was measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) rows: Vec<Row>,
    pub(super) memory: Vec<MemoryRow>,
    pub(super) reports: Vec<ReportRow>,
    pub(super) exports: Vec<ExportRow>,
}

/// A case's results.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    program: Program,
    form: Form,
    streams: u32,
    #[serde(flatten)]
    taken: Taken,
}

/// The most memory that a form takes.
#[derive(Debug, Serialize)]
pub(super) struct MemoryRow {
    pub(super) form: Form,
    pub(super) smaller_kib: u64,
    pub(super) larger_kib: u64,
}

impl Row {
    pub(super) fn new(case: &Case) -> Self {
        let taken = Taken::new(case.events, &case.taken);
        Self { program: case.program, form: case.form, streams: case.streams, taken }
    }

    fn label(&self) -> &'static str {
        match (self.program, self.form) {
            (Program::Strata, Form::Count) => "strata events --count",
            (Program::Strata, Form::Text) => "strata events",
            (Program::Strata, Form::Json) => "strata events --json",
            (Program::Babeltrace2, Form::Count) => "babeltrace2, counter sink",
            (Program::Babeltrace2, _) => "babeltrace2, text",
            (Program::TraceCmd, _) => "trace-cmd report",
        }
    }
}

impl Report {
    pub(super) fn new(options: &Options, measured: Measured, missing: Vec<String>, load_before: f64) -> Self {
        let Measured { rows, memory, reports, exports } = measured;
        let mut goals = goals(&rows, &memory);
        goals.extend(reports::goals(&reports));
        goals.extend(exports::goals(&exports));
        Self {
            machine: machine(),
            repetitions: options.repetitions,
            events: options.events,
            load: [load_before, load_average()],
            goals,
            rows,
            memory,
            report_events: options.report_events,
            reports,
            exports,
            missing,
        }
    }

    /// The results as Markdown.
    pub(super) fn to_markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_markdown(&mut text);
        text
    }

    fn write_markdown(&self, text: &mut String) -> std::fmt::Result {
        let [before, after] = self.load;
        writeln!(
            text,
            "{}.\nLoad average {before:.1} before and {after:.1} after. Medians of {} samples.\n",
            self.machine, self.repetitions
        )?;
        for missing in &self.missing {
            writeln!(text, "Not measured: {missing}.\n")?;
        }
        writeln!(text, "| goal | limit | here | met |\n|---|---|---|---|")?;
        for Goal { goal, limit, value, met } in &self.goals {
            writeln!(text, "| {goal} | {limit} | {value:.2} | {} |", if *met { "yes" } else { "**no**" })?;
        }
        if !self.rows.is_empty() {
            self.write_records(text)?;
        }
        if !self.reports.is_empty() {
            reports::write_table(text, self.report_events, &self.reports)?;
        }
        if !self.exports.is_empty() {
            exports::write_table(text, self.report_events, &self.exports)?;
        }
        Ok(())
    }

    fn write_records(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\n{} records of a guest's kernel:\n", self.events)?;
        writeln!(
            text,
            "| what | streams | million records/s | quartiles | processor ns a record | peak memory, MiB |\n|---|---|---|---|---|---|"
        )?;
        for row in &self.rows {
            writeln!(text, "| {} | {} | {} |", row.label(), row.streams, row.taken.columns())?;
        }
        writeln!(text, "\nPeak memory, {MEMORY_STREAMS} streams:\n")?;
        writeln!(text, "| strata events | {} records, MiB | {LARGER} × as many, MiB |\n|---|---|---|", self.events)?;
        for MemoryRow { form, smaller_kib, larger_kib } in &self.memory {
            let (smaller, larger) = (smaller_kib.div_ceil(1024), larger_kib.div_ceil(1024));
            writeln!(text, "| {} | {smaller} | {larger} |", format!("{form:?}").to_lowercase())?;
        }
        Ok(())
    }

    /// Puts the tables into their part of `document`.
    pub(super) fn write_into(&self, document: &Path) -> Result<(), MarkersError> {
        markers::write_into(document, "merge-bench", &self.to_markdown())
    }
}

/// The goals, as far as what they speak of was measured.
#[allow(clippy::cast_precision_loss, reason = "memory in KiB")]
fn goals(rows: &[Row], memory: &[MemoryRow]) -> Vec<Goal> {
    let rate = |program, form, streams| {
        let row = rows.iter().find(|row| (row.program, row.form, row.streams) == (program, form, streams));
        row.map(|row| row.taken.events_per_second)
    };
    let mut goals = Vec::new();
    for (form, name, limit) in [(Form::Count, "counting", 20.0), (Form::Text, "text", 8.0)] {
        for streams in STREAMS {
            let (ours, theirs) = (rate(Program::Strata, form, streams), rate(Program::Babeltrace2, form, streams));
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                goals.push(Goal::at_least(format!("{name}, {streams} streams / babeltrace2"), limit, ours / theirs));
            }
        }
    }
    for row in memory {
        let goal = format!("peak memory at {LARGER} × / at 1 ×, {}", format!("{:?}", row.form).to_lowercase());
        goals.push(Goal::at_most(goal, 1.25, row.larger_kib as f64 / row.smaller_kib.max(1) as f64));
    }
    goals
}

/// The machine, as far as it bears on the results.
pub(in super::super) fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, model)| model.trim());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{cpus} CPUs of {model}, Linux {}", kernel.trim())
}

/// Load average over one minute.
pub(in super::super) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(program: Program, form: Form, rate: f64) -> Row {
        let taken = Taken { events_per_second: rate, quartiles: [rate; 2], cpu_ns: 1.0, peak_kib: 1 };
        Row { program, form, streams: 4, taken }
    }

    #[test]
    fn goals_compare_like_with_like() {
        let rows = [
            row(Program::Strata, Form::Count, 50.0),
            row(Program::Babeltrace2, Form::Count, 2.0),
            row(Program::Strata, Form::Text, 7.0),
            row(Program::Babeltrace2, Form::Text, 1.0),
        ];
        let memory = [MemoryRow { form: Form::Text, smaller_kib: 100, larger_kib: 130 }];

        let goals = goals(&rows, &memory);

        let found: Vec<_> = goals.iter().map(Goal::outcome).collect();
        assert_eq!(found, [(25.0, true), (7.0, false), (1.3, false)]);
    }
}
