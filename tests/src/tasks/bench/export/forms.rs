//! The forms that a recording is brought into: how fast on one processor, in how much memory, and how large they are.

use super::Programs;
use crate::process;
use crate::progress;
use crate::tasks::bench::goal::Goal;
use crate::tasks::bench::merge::{LARGER, figures::Taken};
use crate::tasks::bench::quantile;
use crate::tasks::bench::usage::{self, Usage};
use anyhow::{Context, ensure};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Processor time for a record, ns, that an export may take: 2 million records a second on one processor.
const MOST_NS: f64 = 500.0;
/// Bytes of a record, compressed, that an export may take.
const MOST_BYTES: f64 = 12.0;
/// Bytes of a record that the page may take: 15 MB for a million.
const MOST_PAGE_BYTES: f64 = 15.0;
/// How much more memory [`LARGER`] times the records may take.
const GROWTH: f64 = 1.25;

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Form {
    Events,
    Perfetto,
    Ctf2,
    Parquet,
    /// Of Parquet, the tables of event types: the records with their fields, and nothing that is made of them.
    ParquetEvents,
    Page,
    Babeltrace2,
}

impl Form {
    const ALL: [Self; 7] =
        [Self::Babeltrace2, Self::Events, Self::Perfetto, Self::Ctf2, Self::ParquetEvents, Self::Parquet, Self::Page];

    const fn label(self) -> &'static str {
        match self {
            Self::Events => "strata events",
            Self::Perfetto => "strata export --format perfetto",
            Self::Ctf2 => "strata export --format ctf2",
            Self::Parquet => "strata export --format parquet",
            Self::ParquetEvents => "strata export --format parquet --tables events",
            Self::Page => "strata report --html",
            Self::Babeltrace2 => "babeltrace2, text",
        }
    }

    /// Name of the file or folder that is written.
    pub(super) const fn file(self) -> &'static str {
        match self {
            Self::Events => "events.txt",
            Self::Perfetto => "perfetto",
            Self::Ctf2 => "ctf2",
            Self::Parquet => "parquet",
            Self::ParquetEvents => "parquet-events",
            Self::Page => "page.html",
            Self::Babeltrace2 => "babeltrace2.txt",
        }
    }

    /// The arguments of `strata export`, for the forms that it writes.
    const fn export(self) -> &'static [&'static str] {
        match self {
            Self::Perfetto => &["--format", "perfetto"],
            Self::Ctf2 => &["--format", "ctf2"],
            Self::Parquet => &["--format", "parquet"],
            Self::ParquetEvents => &["--format", "parquet", "--tables", "events"],
            Self::Events | Self::Page | Self::Babeltrace2 => &[],
        }
    }

    const fn is_parquet(self) -> bool {
        matches!(self, Self::Parquet | Self::ParquetEvents)
    }

    /// Whether it goes to standard output.
    const fn is_text(self) -> bool {
        matches!(self, Self::Events | Self::Babeltrace2)
    }

    /// The command that brings `recording` into this form, on one processor; `output` is new.
    fn command(self, programs: &Programs, recording: &Path, output: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]);
        match self {
            Self::Babeltrace2 => return quiet(command.arg("babeltrace2").arg(recording)),
            Self::Events => return quiet(command.arg(&programs.strata).arg("events").arg(recording)),
            Self::Page => {
                return quiet(command.arg(&programs.strata).arg("report").arg(recording).arg("--html").arg(output));
            }
            Self::Perfetto | Self::Ctf2 | Self::Parquet | Self::ParquetEvents => {}
        }
        if let Some(path) = programs.path() {
            command.env("PATH", path);
        }
        quiet(command.arg(&programs.strata).arg("export").arg(recording).args(self.export()).arg("-o").arg(output))
    }
}

/// `command` without input and output.
fn quiet(command: &mut Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    std::mem::replace(command, Command::new("true"))
}

impl Programs {
    /// `PATH` with the folder of `strata-query` in front.
    pub(super) fn path(&self) -> Option<OsString> {
        let old = std::env::var_os("PATH").unwrap_or_default();
        let folders = self.query.iter().cloned().chain(std::env::split_paths(&old));
        std::env::join_paths(folders).ok()
    }
}

/// What a form took.
#[derive(Debug, Serialize)]
pub(super) struct FormRow {
    form: Form,
    #[serde(flatten)]
    taken: Taken,
    /// Processor time for a record, ns: one for each turn.
    turns: Vec<f64>,
    /// Most memory with a recording that is [`LARGER`] times larger, KiB.
    larger_peak_kib: u64,
    /// Threads that it had at once, as far as was seen.
    threads: usize,
    /// Bytes of it for each record.
    bytes: f64,
    /// The same, compressed: by itself, or with gzip where that makes it smaller.
    compressed_bytes: f64,
}

/// Brings the first of `recordings`, of `events` records, into all forms, in turns, and the second one once. The tables
/// are left in `folder`.
#[allow(clippy::cast_precision_loss, reason = "far fewer records and bytes than a double counts exactly")]
pub(super) fn measure(
    programs: &Programs,
    folder: &Path,
    [small, large]: [&Path; 2],
    events: u64,
    repetitions: usize,
) -> anyhow::Result<Vec<FormRow>> {
    let forms = Form::ALL.into_iter().filter(|&form| !form.is_parquet() || programs.query.is_some());
    let mut measured: Vec<(Form, Sizes, Vec<Usage>)> = Vec::new();
    for form in forms {
        let title = format!("{}, once", form.label());
        measured.push((form, progress::step(&title, || sizes(programs, form, folder, small))?, Vec::new()));
    }
    for turn in 1..=repetitions {
        progress::step(&format!("turn {turn} of {repetitions}"), || {
            for (form, _, taken) in &mut measured {
                taken.push(once(programs, *form, folder, small)?);
            }
            anyhow::Ok(())
        })?;
    }
    let tables = folder.join(Form::Parquet.file());
    let kept = folder.join("kept");
    if tables.exists() {
        fs::rename(&tables, &kept).context("cannot keep the tables")?;
    }
    let mut rows = Vec::new();
    for (form, sizes, taken) in measured {
        let title = format!("{} of {LARGER} × as many records", form.label());
        let larger = progress::step(&title, || once(programs, form, folder, large))?;
        remove(&folder.join(form.file()))?;
        rows.push(FormRow {
            form,
            turns: taken.iter().map(|usage| usage.cpu * 1e9 / events as f64).collect(),
            taken: Taken::new(events, &taken),
            larger_peak_kib: larger.peak_kib,
            threads: sizes.threads,
            bytes: sizes.bytes as f64 / events as f64,
            compressed_bytes: sizes.compressed as f64 / events as f64,
        });
    }
    if kept.exists() {
        fs::rename(&kept, &tables).context("cannot keep the tables")?;
    }
    Ok(rows)
}

/// Runs the command of `form` once. What it wrote stays, unless it went to standard output.
fn once(programs: &Programs, form: Form, folder: &Path, recording: &Path) -> anyhow::Result<Usage> {
    let output = folder.join(form.file());
    remove(&output)?;
    usage::measure(&mut form.command(programs, recording, &output)).with_context(|| form.label())
}

/// What a first run, which is not measured, says of a form.
struct Sizes {
    threads: usize,
    bytes: u64,
    compressed: u64,
}

fn sizes(programs: &Programs, form: Form, folder: &Path, recording: &Path) -> anyhow::Result<Sizes> {
    let output = folder.join(form.file());
    let mut command = form.command(programs, recording, &output);
    if form.is_text() {
        command.stdout(File::create(&output).with_context(|| format!("cannot write {}", output.display()))?);
    }
    let mut child = command.spawn().with_context(|| form.label())?;
    let tasks = format!("/proc/{}/task", child.id());
    let mut threads = 1;
    let status = loop {
        threads = threads.max(fs::read_dir(&tasks).map_or(0, Iterator::count));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    ensure!(status.success(), "{} failed ({status})", form.label());
    let bytes = size(&output)?;
    let pipe = "tar -C \"$0\" -cf - \"$1\" | gzip -c | wc -c";
    let gzip = process::capture(Command::new("sh").args(["-c", pipe]).arg(folder).arg(form.file()))?;
    let compressed = gzip.trim().parse::<u64>().context("gzip counts nothing")?.min(bytes);
    remove(&output)?;
    Ok(Sizes { threads, bytes, compressed })
}

/// Bytes of a file, or of all files in a folder.
fn size(path: &Path) -> anyhow::Result<u64> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    if metadata.is_file() {
        return Ok(metadata.len());
    }
    fs::read_dir(path)?.map(|entry| size(&entry?.path())).sum()
}

fn remove(path: &Path) -> anyhow::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The goals, as far as what they speak of was measured; ratios come first.
#[allow(clippy::cast_precision_loss, reason = "memory in KiB")]
pub(super) fn goals(rows: &[FormRow]) -> Vec<Goal> {
    let of = |form| rows.iter().find(|row| row.form == form);
    let mut goals = Vec::new();
    if let Some(theirs) = of(Form::Babeltrace2) {
        for row in rows.iter().filter(|row| row.form != Form::Babeltrace2) {
            let title = format!("{}: processor time / babeltrace2, text", row.form.label());
            goals.push(Goal::of(title, 1.0, row.turns.len(), |turns| {
                Some(median(&row.turns, turns) / median(&theirs.turns, turns))
            }));
        }
    }
    for row in [Form::Perfetto, Form::ParquetEvents, Form::Parquet].into_iter().filter_map(of) {
        let title = format!("{}: processor time for a record, ns", row.form.label());
        goals.push(Goal::of(title, MOST_NS, row.turns.len(), |turns| Some(median(&row.turns, turns))));
        let title = format!("{}: bytes a record, compressed", row.form.label());
        goals.push(Goal::of(title, MOST_BYTES, row.turns.len(), |_| Some(row.compressed_bytes)));
    }
    if let Some(row) = of(Form::Page) {
        let title = format!("{}: bytes a record", row.form.label());
        goals.push(Goal::of(title, MOST_PAGE_BYTES, row.turns.len(), |_| Some(row.bytes)));
    }
    for row in rows.iter().filter(|row| row.form != Form::Babeltrace2) {
        let title = format!("{}: peak memory at {LARGER} × / at 1 ×", row.form.label());
        let growth = row.larger_peak_kib as f64 / row.taken.peak_kib.max(1) as f64;
        goals.push(Goal::of(title, GROWTH, row.turns.len(), |_| Some(growth)));
    }
    goals
}

/// The median of the turns that were chosen; one that was chosen twice counts twice.
pub(super) fn median(values: &[f64], turns: &[usize]) -> f64 {
    let mut chosen: Vec<f64> = turns.iter().map(|&turn| values[turn]).collect();
    quantile(&mut chosen, 2)
}

pub(super) fn write_table(text: &mut String, rows: &[FormRow]) -> std::fmt::Result {
    writeln!(text, "\nOn one processor, whatever number of threads:\n")?;
    writeln!(
        text,
        "| form | million records/s | quartiles | processor ns a record | peak memory, MiB | of {LARGER} × as many \
         records, MiB | threads | bytes a record | compressed |\n|---|---|---|---|---|---|---|---|---|"
    )?;
    for row in rows {
        let (label, columns, larger) = (row.form.label(), row.taken.columns(), row.larger_peak_kib.div_ceil(1024));
        let FormRow { threads, bytes, compressed_bytes, .. } = row;
        writeln!(text, "| {label} | {columns} | {larger} | {threads} | {bytes:.1} | {compressed_bytes:.1} |")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::bench::goal::Verdict;

    fn row(form: Form, ns: f64, bytes: f64, larger_peak_kib: u64) -> FormRow {
        let taken = Taken { events_per_second: 1.0, quartiles: [1.0; 2], cpu_ns: ns, peak_kib: 100 };
        let turns = (0..5).map(|turn| ns + f64::from(turn)).collect();
        let compressed_bytes = bytes;
        FormRow { form, taken, turns, larger_peak_kib, threads: 1, bytes, compressed_bytes }
    }

    #[test]
    fn forms_are_held_against_babeltrace2_and_the_goals() {
        let rows = [
            row(Form::Babeltrace2, 2000.0, 150.0, 100),
            row(Form::Perfetto, 400.0, 12.5, 110),
            row(Form::Page, 3000.0, 14.0, 160),
        ];

        let goals = goals(&rows);

        let found: Vec<_> = goals.iter().map(|goal| (goal.limit, goal.verdict)).collect();
        let (met, missed) = (Verdict::Met, Verdict::Missed);
        let speed = [(1.0, met), (1.0, missed), (MOST_NS, met)];
        let rest = [(MOST_BYTES, missed), (MOST_PAGE_BYTES, met), (GROWTH, met), (GROWTH, missed)];
        assert_eq!(found, [&speed[..], &rest].concat());
    }

    #[test]
    fn size_of_a_folder_is_that_of_its_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(folder.path().join("a"), "12").unwrap();
        fs::write(folder.path().join("inner/b"), "345").unwrap();

        assert_eq!(size(folder.path()).unwrap(), 5);
    }
}
