//! `cargo xtask bench host`: what recording the host's kernel costs the recorder for each record, and whether it keeps
//! up, beside `trace-cmd record`, and beside nothing but moving the kernel's pages into files as they are.

use super::BenchFolder;
use super::goal::{self, Goal};
use super::merge::{self, report};
use super::quantile;
use crate::fetch::tools::{self, TRACE_CMD};
use crate::paths::Paths;
use crate::process;
use crate::progress;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Processor time that a record may take of the recorder, ns.
const NS: f64 = 40.0;
/// What that may be of the time it takes `trace-cmd record`, or just to move the pages as they are.
const BESIDE_OTHERS: f64 = 1.0;
/// System calls that each thread of the load makes a second. Each is two records.
const CALLS_PER_SECOND: u64 = 1_250_000;
/// Threads of the load.
const THREADS: u64 = 2;
/// Memory that is used and freed before each recording, bytes: more than the page cache takes for one.
const MEMORY: usize = 1 << 30;

/// The events that are recorded: for people, as a selection, and as the kernel's `set_event` takes them.
const EVENTS: [(&str, &str, &str); 2] = [
    ("system calls", "host-kernel:raw_syscalls:*", "raw_syscalls:*"),
    ("system calls and `sched`", "host-kernel:raw_syscalls:*,host-kernel:sched:*", "raw_syscalls:*,sched:*"),
];

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Turns; in each, every way records once.
    pub repetitions: usize,
    /// System calls of each thread.
    pub calls: u64,
    /// Another build of `vmm/examples/host_layer_cost.rs`, to compare with.
    pub beside: Option<PathBuf>,
    /// Where to write the results as JSON.
    pub json: Option<PathBuf>,
}

/// A way of recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    Strata,
    Beside,
    TraceCmd,
    Pages,
}

impl Way {
    /// The arguments of the measured program.
    const fn mode(self) -> &'static str {
        match self {
            Self::Strata | Self::Beside => "record",
            Self::TraceCmd => "trace-cmd",
            Self::Pages => "splice",
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Strata => "Strata",
            Self::Beside => "the build to compare with",
            Self::TraceCmd => "trace-cmd record",
            Self::Pages => "pages as they are, spliced",
        }
    }
}

/// What one recording took, as the program says that makes it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Sample {
    records: u64,
    lost: u64,
    cpu_ns: f64,
    wall_s: f64,
}

impl Sample {
    /// Processor time of the recorder for a record, ns.
    #[allow(clippy::cast_precision_loss, reason = "far fewer than a double counts exactly")]
    fn ns(&self) -> f64 {
        self.cpu_ns / self.records.max(1) as f64
    }

    #[allow(clippy::cast_precision_loss, reason = "far fewer than a double counts exactly")]
    fn million_per_second(&self) -> f64 {
        (self.records + self.lost) as f64 / self.wall_s.max(1e-9) / 1e6
    }
}

/// A way, what it recorded, and its turns.
#[derive(Debug, Serialize)]
struct Row {
    way: Way,
    events: &'static str,
    samples: Vec<Sample>,
}

/// Everything that one run measured.
#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    /// Load average over one minute at the beginning and at the end: others' work, and this one's.
    load: [f64; 2],
    rows: Vec<Row>,
    goals: Vec<Goal>,
}

/// Runs the benchmark; its tables go to standard output.
///
/// # Errors
///
/// When something cannot be built, the kernel not be traced, or a program fails.
pub fn run(paths: &Paths, options: &Options) -> anyhow::Result<()> {
    let program = progress::step("building the measurement of the host layer", || {
        merge::build_example(paths, "vmm", "host_layer_cost")
    })?;
    let folder = BenchFolder::new(paths, "host-bench-")?;
    let load_before = report::load_average();
    let row = |events, way: &Way| Row { way: *way, events, samples: Vec::new() };
    let mut ways = vec![Way::Strata, Way::Pages];
    ways.extend(options.beside.as_ref().map(|_| Way::Beside));
    let tried = tools::install(paths, &[TRACE_CMD])
        .map_err(anyhow::Error::from)
        .and_then(|()| sample(&program, &row(EVENTS[0].0, &Way::TraceCmd), folder.path(), CALLS_PER_SECOND));
    match tried {
        Ok(_) => ways.push(Way::TraceCmd),
        // Everything else can be measured without.
        Err(error) => progress::note(&format!("trace-cmd record is not measured: {error:#}")),
    }
    let mut rows: Vec<Row> = EVENTS.iter().flat_map(|(events, ..)| ways.iter().map(|way| row(*events, way))).collect();
    for round in 1..=options.repetitions {
        progress::step(&format!("round {round} of {}", options.repetitions), || {
            rows.iter_mut().try_for_each(|row| {
                let program = options.beside.as_ref().filter(|_| row.way == Way::Beside).unwrap_or(&program);
                row.samples.push(sample(program, row, folder.path(), options.calls)?);
                anyhow::Ok(())
            })
        })?;
    }
    let goals = goals(&rows);
    let report = Report { machine: report::machine(), load: [load_before, report::load_average()], rows, goals };
    print!("{}", report.to_markdown());
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Records once, below `folder`, and removes what was recorded.
fn sample(program: &Path, row: &Row, folder: &Path, calls: u64) -> anyhow::Result<Sample> {
    let folder = tempfile::TempDir::with_prefix_in("turn-", folder)?;
    let trace = folder.path().join("trace");
    let events = EVENTS.iter().find(|(events, ..)| *events == row.events);
    let (_, selection, kernels) = events.context("an event of the table")?;
    let events = if matches!(row.way, Way::Strata | Way::Beside) { selection } else { kernels };
    let mut command = Command::new(program);
    command.arg(row.way.mode()).arg(&trace).arg(events);
    command.args([THREADS, calls, CALLS_PER_SECOND].map(|number| number.to_string()));
    use_memory();
    let printed = process::capture(&mut command)?;
    let sample: Sample = serde_json::from_str(&printed).context("what was measured cannot be understood")?;
    folder.close()?;
    // What was lost was there: losing is what a busy machine shows, not a failure of the measurement.
    let seen = sample.records + sample.lost;
    ensure!(seen >= calls, "{} saw {seen} records only", row.way.label());
    Ok(sample)
}

/// Uses memory and frees it. A hypervisor may take memory that has been free for seconds (free page reporting of a
/// balloon): each page that is used then costs microseconds, as many as hundreds of records, of whoever records first.
fn use_memory() {
    drop(std::hint::black_box(vec![1_u8; MEMORY]));
}

/// The goals of each choice of events.
fn goals(rows: &[Row]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (events, ..) in EVENTS {
        let of = |way| rows.iter().find(|row| row.way == way && row.events == events).map(|row| &row.samples[..]);
        let Some(ours) = of(Way::Strata) else { continue };
        let name = |what: &str| format!("{events}: {what}");
        let ns = |samples: &[Sample], turns: &[usize]| median(turns.iter().map(|&turn| samples[turn].ns()));
        goals.push(Goal::of(name("processor time of a record, ns"), NS, ours.len(), |turns| Some(ns(ours, turns))));
        for (way, what) in [
            (Way::TraceCmd, "that / of trace-cmd record"),
            (Way::Pages, "that / of pages as they are"),
            (Way::Beside, "that / of the build to compare with"),
        ] {
            let Some(other) = of(way) else { continue };
            let ratio = |turns: &[usize]| Some(ns(ours, turns) / ns(other, turns));
            goals.push(Goal::of(name(what), BESIDE_OTHERS, ours.len(), ratio));
        }
        #[allow(clippy::cast_precision_loss, reason = "far fewer than a double counts exactly")]
        let lost = |turns: &[usize]| Some(turns.iter().map(|&turn| ours[turn].lost as f64).sum());
        goals.push(Goal::of(name("records lost"), 0.0, ours.len(), lost));
    }
    goals
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(&mut values.collect::<Vec<_>>(), 2)
}

impl Report {
    fn to_markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_markdown(&mut text);
        text
    }

    fn write_markdown(&self, text: &mut String) -> std::fmt::Result {
        let Self { load, machine, rows, goals } = self;
        let turns = rows.first().map_or(0, |row| row.samples.len());
        goal::write_head(text, (machine, *load), &format!("Medians of {turns} turns."), &[], goals)?;
        text.push_str("\n| events | recorder | ns a record | quartiles | million records/s | lost |\n");
        text.push_str("|---|---|---|---|---|---|\n");
        for Row { way, events, samples } in rows {
            let mut ns: Vec<f64> = samples.iter().map(Sample::ns).collect();
            let [low, middle, high] = [1, 2, 3].map(|quarters| quantile(&mut ns, quarters));
            let rate = median(samples.iter().map(Sample::million_per_second));
            let lost: u64 = samples.iter().map(|sample| sample.lost).sum();
            let label = way.label();
            writeln!(text, "| {events} | {label} | {middle:.1} | {low:.1}–{high:.1} | {rate:.2} | {lost} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::goal::Verdict;
    use super::*;

    fn rows(ours: Sample, pages: Sample) -> Vec<Row> {
        let row = |way, sample| Row { way, events: EVENTS[0].0, samples: vec![sample; 5] };
        vec![row(Way::Strata, ours), row(Way::Pages, pages)]
    }

    fn sample(lost: u64, cpu_ns: f64) -> Sample {
        Sample { records: 1000, lost, cpu_ns, wall_s: 0.001 }
    }

    fn verdicts(ours: Sample, pages: Sample) -> Vec<Verdict> {
        goals(&rows(ours, pages)).into_iter().map(|goal| goal.verdict).collect()
    }

    #[test]
    fn each_goal_is_missed_beyond_its_limit_alone() {
        let pages = sample(0, 40_000.0);

        assert_eq!(verdicts(sample(0, 40_000.0), pages), [Verdict::Met; 3]);
        assert_eq!(verdicts(sample(0, 41_000.0), sample(0, 50_000.0)), [Verdict::Missed, Verdict::Met, Verdict::Met]);
        assert_eq!(verdicts(sample(0, 30_000.0), sample(0, 20_000.0)), [Verdict::Met, Verdict::Missed, Verdict::Met]);
        assert_eq!(verdicts(sample(1, 40_000.0), pages), [Verdict::Met, Verdict::Met, Verdict::Missed]);
    }

    #[test]
    fn rate_counts_what_was_lost() {
        let rows = rows(sample(1000, 30_000.0), sample(0, 20_000.0));
        let report = Report { machine: String::new(), load: [0.0; 2], goals: goals(&rows), rows };

        let text = report.to_markdown();

        assert!(text.contains("| system calls | Strata | 30.0 | 30.0–30.0 | 2.00 | 5000 |"), "{text}");
    }
}
