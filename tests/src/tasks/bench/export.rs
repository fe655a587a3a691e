//! `cargo xtask bench export`: what it takes to bring a recording of all four layers into each form, beside text by
//! babeltrace2 of the same bytes, and how long the ready questions take about its tables, beside DuckDB on the same
//! files.

mod forms;
mod questions;

use self::forms::{Form, FormRow};
use self::questions::QuestionRow;
use super::BenchFolder;
use super::goal::{self, Goal};
use super::merge::{self, LARGER, report};
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::progress;
use crate::tasks::query;
use anyhow::Context;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;

/// What is measured beside Strata.
const BABELTRACE: Tool = Tool { program: "babeltrace2", package: "babeltrace2" };

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Turns; in each, every program runs once.
    pub repetitions: usize,
    /// Records of the recording.
    pub events: u64,
    /// Whether Parquet is measured, and questions about it: `strata-query` is built for that.
    pub parquet: bool,
    /// Where to write the results as JSON.
    pub json: Option<PathBuf>,
}

/// The programs that are measured.
#[derive(Debug)]
struct Programs {
    strata: PathBuf,
    /// The folder of `strata-query`, where `strata` looks for it.
    query: Option<PathBuf>,
}

/// Everything that one run measured.
#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    /// Load average over one minute at the beginning and at the end: others' work, mostly.
    load: [f64; 2],
    repetitions: usize,
    events: u64,
    goals: Vec<Goal>,
    forms: Vec<FormRow>,
    questions: Vec<QuestionRow>,
    missing: Vec<String>,
}

/// Runs the benchmark; its tables go to standard output.
///
/// # Errors
///
/// When something cannot be built or installed, or a program fails.
pub fn run(paths: &Paths, options: &Options) -> anyhow::Result<()> {
    let built = progress::step("building strata with optimisation", || merge::build(paths))?;
    tools::install(paths, &[BABELTRACE])?;
    let mut missing = Vec::new();
    let query = if options.parquet {
        Some(progress::step("building strata-query with optimisation", || query::build(paths))?)
    } else {
        missing.push("parquet, and questions about it (--parquet builds strata-query for them)".to_owned());
        None
    };
    let folder = BenchFolder::new(paths, "export-bench-")?;
    let load_before = report::load_average();
    let (small, large) = (folder.path().join("recording"), folder.path().join("larger"));
    let events = progress::step("writing two recordings of all layers", || {
        merge::reports::write(&built, &large, options.events * LARGER)?;
        merge::reports::write(&built, &small, options.events)
    })?;
    let programs = Programs { strata: built.strata, query };

    let forms = forms::measure(&programs, folder.path(), [&small, &large], events, options.repetitions)?;
    let mut questions = Vec::new();
    if programs.query.is_some() {
        let tables = folder.path().join(Form::Parquet.file());
        let python = progress::step("DuckDB", || query::duckdb(paths))?;
        questions = questions::measure(paths, &programs, &python, &tables, options.repetitions)?;
    }
    let report = Report {
        machine: report::machine(),
        load: [load_before, report::load_average()],
        repetitions: options.repetitions,
        events,
        goals: forms::goals(&forms),
        forms,
        questions,
        missing,
    };
    print!("{}", report.to_markdown());
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

impl Report {
    fn to_markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_markdown(&mut text);
        text
    }

    fn write_markdown(&self, text: &mut String) -> std::fmt::Result {
        let how = format!("{} records of all four layers; medians of {} turns.", self.events, self.repetitions);
        goal::write_head(text, (&self.machine, self.load), &how, &self.missing, &self.goals)?;
        forms::write_table(text, &self.forms)?;
        if !self.questions.is_empty() {
            questions::write_table(text, &self.questions)?;
        }
        Ok(())
    }
}
