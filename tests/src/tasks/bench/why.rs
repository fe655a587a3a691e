//! `cargo xtask bench why`: how long `strata why` takes to find and explain the worst waits of a task, in how much
//! memory, what triggers cost the recorder for each record, and how long after an event its trigger is marked.

use super::BenchFolder;
use super::goal::{self, Goal};
use super::merge::{self, LARGER, report};
use super::quantile;
use super::usage::{self, Usage};
use crate::paths::Paths;
use crate::process;
use crate::progress;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whose waits are explained: a task of the recordings that are made for this.
const TASK: &str = "1001";
const WORST: &str = "10";
/// Seconds that it may take.
const SECONDS: f64 = 10.0;
/// How much more memory [`LARGER`] times the records may take.
const GROWTH: f64 = 1.25;
/// What ten triggers may cost for a record, ns.
const TRIGGERS_NS: f64 = 10.0;
/// How long after its event a trigger may be marked, ms: 99 of 100.
const DELAY_MS: f64 = 200.0;

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Turns; in each, every program runs once.
    pub repetitions: usize,
    /// Records of the recording.
    pub events: u64,
    /// Where to write the results as JSON.
    pub json: Option<PathBuf>,
}

/// What triggers cost, as the program says that measures it.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Cost {
    /// For a record with ten triggers.
    ns: f64,
    /// Without a trigger.
    ns_without: f64,
    /// For a record that no trigger is about, beyond that.
    ns_of_others: f64,
}

/// How long after an event, or the end of a time, its trigger is marked, as the program says that measures it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Delay {
    /// Of the recording: `flight-recorder` or `discard`.
    mode: String,
    /// Whether each CPU has something else to run.
    busy: bool,
    /// What the trigger is on: `event` or `time`.
    of: String,
    /// How many there were.
    events: u64,
    /// The median, ns.
    p50: f64,
    /// What 99 of 100 are below, ns.
    p99: f64,
}

/// Everything that one run measured.
#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    /// Load average over one minute at the beginning and at the end: others' work, mostly.
    load: [f64; 2],
    repetitions: usize,
    events: u64,
    /// Wall time of `strata why`, seconds: median and quartiles.
    seconds: [f64; 3],
    /// Processor time, seconds: median.
    cpu_seconds: f64,
    /// Most memory, KiB, and with a recording that is [`LARGER`] times smaller.
    peak_kib: [u64; 2],
    /// What a record costs with ten triggers, ns: median and quartiles.
    trigger_ns: [f64; 3],
    /// The same of a record that none of them is about.
    unconcerned_ns: [f64; 3],
    /// From an event to the mark of its trigger.
    delays: Vec<Delay>,
    goals: Vec<Goal>,
    missing: Vec<String>,
}

/// Runs the benchmark; its tables go to standard output.
///
/// # Errors
///
/// When something cannot be built, or a program fails.
pub fn run(paths: &Paths, options: &Options) -> anyhow::Result<()> {
    let built = progress::step("building strata with optimisation", || merge::build(paths))?;
    let trigger_cost =
        progress::step("building the measurement of triggers", || merge::build_example(paths, "vmm", "trigger_cost"))?;
    let trigger_delay =
        progress::step("building the measurement of delays", || merge::build_example(paths, "vmm", "trigger_delay"))?;
    let folder = BenchFolder::new(paths, "why-bench-")?;
    let load_before = report::load_average();
    let (small, large) = (folder.path().join("recording"), folder.path().join("larger"));
    let events = progress::step("writing two recordings of all layers", || {
        merge::reports::write(&built, &small, options.events / LARGER)?;
        merge::reports::write(&built, &large, options.events)
    })?;

    let why = |recording: &Path| usage::measure(&mut command(&built.strata, recording)).context("cannot measure");
    let smaller = progress::step("explaining the smaller recording", || why(&small))?;
    let (mut taken, mut costs) = (Vec::new(), Vec::new());
    for round in 1..=options.repetitions {
        progress::step(&format!("round {round} of {}", options.repetitions), || {
            taken.push(why(&large)?);
            let printed = process::capture(Command::new(&trigger_cost).arg(&small))?;
            costs.push(serde_json::from_str(&printed).context("the cost of triggers cannot be understood")?);
            anyhow::Ok(())
        })?;
    }
    let delays: Vec<Delay> = progress::step("timing triggers from their events to their marks", || {
        let printed = process::capture(&mut Command::new(&trigger_delay))?;
        serde_json::from_str(&printed).context("the delays of triggers cannot be understood")
    })?;
    let report = Report::new(options, events, smaller, (&taken, &costs, delays), [load_before, report::load_average()]);
    print!("{}", report.to_markdown());
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn command(strata: &Path, recording: &Path) -> Command {
    let mut command = Command::new(strata);
    command.arg("why").arg(recording).args(["--task", TASK, "--worst", WORST, "--json"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Median and quartiles.
fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    [2, 1, 3].map(|quarters| quantile(&mut values, quarters))
}

impl Report {
    fn new(
        options: &Options,
        events: u64,
        smaller: Usage,
        (taken, costs, delays): (&[Usage], &[Cost], Vec<Delay>),
        load: [f64; 2],
    ) -> Self {
        let peak = taken.iter().map(|usage| usage.peak_kib).max().unwrap_or(0);
        let [seconds, added] = [
            taken.iter().map(|usage| usage.wall).collect::<Vec<_>>(),
            costs.iter().map(|cost| cost.ns - cost.ns_without).collect(),
        ];
        Self {
            machine: report::machine(),
            load,
            repetitions: options.repetitions,
            events,
            seconds: quartiles(seconds.iter().copied()),
            cpu_seconds: quartiles(taken.iter().map(|usage| usage.cpu))[0],
            peak_kib: [peak, smaller.peak_kib],
            trigger_ns: quartiles(added.iter().copied()),
            unconcerned_ns: quartiles(costs.iter().map(|cost| cost.ns_of_others)),
            goals: goals(&seconds, (peak, smaller.peak_kib), &added, &delays),
            delays,
            missing: vec![
                "the delay from an event to the mark of its trigger beside a guest: a thread made the \
                 records as a guest's kernel does"
                    .into(),
            ],
        }
    }

    fn to_markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_markdown(&mut text);
        text
    }

    fn write_markdown(&self, text: &mut String) -> std::fmt::Result {
        let Self { seconds, trigger_ns, peak_kib, delays, .. } = self;
        let how = format!("{} records of all four layers; medians of {} turns.", self.events, self.repetitions);
        goal::write_head(text, (&self.machine, self.load), &how, &self.missing, &self.goals)?;
        text.push_str("\n| what | median | quartiles |\n|---|---|---|\n");
        let [median, low, high] = seconds;
        writeln!(text, "| strata why --task '{TASK}' --worst {WORST}, s | {median:.2} | {low:.2}–{high:.2} |")?;
        writeln!(text, "| its processor time, s | {:.2} | |", self.cpu_seconds)?;
        let [peak, smaller] = peak_kib.map(|kib| kib.div_ceil(1024));
        writeln!(text, "| its peak memory, MiB | {peak} | of a tenth of the records: {smaller} |")?;
        let [median, low, high] = trigger_ns;
        writeln!(text, "| ten triggers, ns a record | {median:.1} | {low:.1}–{high:.1} |")?;
        let [median, low, high] = self.unconcerned_ns;
        writeln!(text, "| the same, of records that none is about | {median:.1} | {low:.1}–{high:.1} |")?;
        text.push_str("\n| from an event to the mark of its trigger, ms | p50 | p99 |\n|---|---|---|\n");
        delays.iter().try_for_each(|Delay { mode, busy, of, events, p50, p99 }| {
            let load = if *busy { "each CPU busy" } else { "nothing else runs" };
            let [p50, p99] = [p50, p99].map(|ns| ns / 1e6);
            writeln!(text, "| {mode}, trigger on {of}, {load}, {events} of them | {p50:.1} | {p99:.1} |")
        })
    }
}

/// The goals. `peaks` are KiB of the recording and of the smaller one.
#[allow(clippy::cast_precision_loss, reason = "memory in KiB")]
fn goals(seconds: &[f64], peaks: (u64, u64), trigger_ns: &[f64], delays: &[Delay]) -> Vec<Goal> {
    let median_of = |values: &[f64], turns: &[usize]| {
        Some(quantile(&mut turns.iter().filter_map(|&turn| values.get(turn).copied()).collect::<Vec<_>>(), 2))
    };
    let longest = delays.iter().map(|delay| delay.p99 / 1e6).max_by(f64::total_cmp);
    let growth = peaks.0 as f64 / peaks.1.max(1) as f64;
    vec![
        Goal::of(format!("strata why --worst {WORST}, s"), SECONDS, seconds.len(), |turns| median_of(seconds, turns)),
        Goal::of(format!("its peak memory at {LARGER} × / at 1 ×"), GROWTH, seconds.len(), |_| Some(growth)),
        Goal::of("ten triggers, ns a record".into(), TRIGGERS_NS, trigger_ns.len(), |turns| {
            median_of(trigger_ns, turns)
        }),
        Goal::of("from an event to its mark, p99, ms".into(), DELAY_MS, seconds.len(), |_| longest),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::goal::Verdict;
    use super::*;

    fn delay(busy: bool, p99: f64) -> Delay {
        Delay { mode: "discard".into(), busy, of: "event".into(), events: 9, p50: 16e6, p99 }
    }

    fn verdicts(seconds: f64, peaks: (u64, u64), ns: f64, p99: f64) -> Vec<Verdict> {
        let delays = [delay(false, 20e6), delay(true, p99)];
        goals(&[seconds; 5], peaks, &[ns; 5], &delays).into_iter().map(|goal| goal.verdict).collect()
    }

    #[test]
    fn each_goal_is_missed_beyond_its_limit_alone() {
        let (met, missed) = (Verdict::Met, Verdict::Missed);

        assert_eq!(verdicts(10.0, (1250, 1000), 10.0, 200e6), [met; 4]);
        assert_eq!(verdicts(10.1, (1250, 1000), 10.0, 200e6), [missed, met, met, met]);
        assert_eq!(verdicts(10.0, (1251, 1000), 10.0, 200e6), [met, missed, met, met]);
        assert_eq!(verdicts(10.0, (1250, 1000), 10.1, 200e6), [met, met, missed, met]);
        assert_eq!(verdicts(10.0, (1250, 1000), 10.0, 201e6), [met, met, met, missed]);
    }

    #[test]
    fn what_a_trigger_costs_is_what_it_adds() {
        let usage = Usage { wall: 4.0, cpu: 7.0, peak_kib: 2048 };
        let options = Options { repetitions: 5, events: 1000, json: None };
        let costs = [Cost { ns: 9.0, ns_without: 1.0, ns_of_others: 2.0 }; 5];

        let measured = (&[usage; 5][..], &costs[..], vec![delay(true, 40e6)]);
        let report = Report::new(&options, 1000, usage, measured, [0.0; 2]);
        let text = report.to_markdown();

        assert!(text.contains("| ten triggers, ns a record | 8.0 | 8.0–8.0 |"), "{text}");
        assert!(text.contains("| discard, trigger on event, each CPU busy, 9 of them | 16.0 | 40.0 |"), "{text}");
    }
}
