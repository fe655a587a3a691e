//! Reports on a recording: each is computed by its own module as a value that is shown as a table for people or as
//! JSON.

pub mod all;
pub mod chosen;
pub mod death;
pub mod description;
pub mod devices;
pub mod findings;
pub mod kernels;
mod next_command;
pub mod registry;
pub mod rows;
#[cfg(any(test, feature = "test-recordings"))]
pub mod scenario;
pub mod scheduling;
pub mod sink;
pub mod statistics;
pub mod summary;

pub use strata_recording::window::Window;

use crate::report::sink::Sink;
use rows::choice::ChoiceError;
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use strata_analysis::completeness::Completeness;
use strata_analysis::{Analysis, Passed};
use strata_recording::clock::{Clock, NS_PER_SECOND};
use strata_recording::reader::merge::Merge;
use strata_recording::reader::{ReadError, Trace};
use strata_recording::text::terminal::{HarmlessJson, HarmlessText, harmless};
use thiserror::Error;

/// Version of the reports' JSON: it is raised when a key goes, or means something else.
pub const JSON_VERSION: u32 = 2;

/// What is reported on, and how it is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportOptions {
    /// JSON in place of text.
    pub json: bool,
    /// Only what is this long after the first record of the recording, or later.
    pub from: Option<Duration>,
    /// Only what is earlier than this long after the first record of the recording.
    pub to: Option<Duration>,
}

impl ReportOptions {
    /// The part of `trace` that they ask for.
    ///
    /// # Errors
    /// When it ends before it begins.
    pub fn window(&self, trace: &Trace) -> Result<Window, ReportError> {
        trace.window(self.from, self.to).ok_or(ReportError::EmptyWindow)
    }
}

/// Why the window that `options` ask for holds no record of `trace`, where it holds none.
#[must_use]
pub fn missed_window(trace: &Trace, options: &ReportOptions) -> Option<String> {
    // All of a recording is never nothing, and not looked for.
    options.from.or(options.to)?;
    let (start, end) = (trace.start()?, trace.end()?);
    match options.window(trace) {
        Err(error) => Some(error.to_string()),
        Ok(window) if window.begin > end => {
            let lasts = trace.clock().ticks_to_ns(end.saturating_sub(start));
            Some(format!("--from is after the end of the trace: its records are from 0 to {}", seconds(lasts)))
        }
        Ok(window) => {
            let next = Merge::new(trace.layers(), window.begin).next()?.record.time;
            let at = seconds(trace.clock().ticks_to_ns(next.saturating_sub(start)));
            (next >= window.end).then(|| format!("no record is in that part of the trace: the next one is at {at}"))
        }
    }
}

/// What to do where a part of a trace has nothing.
const OTHER_PART: &str = "leave out --from and --until, or choose another part";

impl ReportError {
    /// What is `missing`, and the `remedy`.
    pub(crate) fn nothing(missing: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Nothing { missing: missing.into(), remedy: remedy.into() }
    }

    /// The same of a report on a part of `trace`, if `passed` was one: the rest may have what this one lacks.
    fn of_part(self, trace: &Trace, passed: &Passed) -> Self {
        match self {
            Self::Nothing { missing, .. } if passed.is_part(trace) => {
                Self::nothing(format!("in this part, {missing}"), OTHER_PART)
            }
            other => other,
        }
    }
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The recording lacks what the report is made of.
    #[error("this trace has nothing to make the report of: {missing}; {remedy}")]
    Nothing {
        /// What is missing.
        missing: String,
        /// What to do about it.
        remedy: String,
    },
    /// There is no folder with the guest's files.
    #[error("{}: cannot be opened; give the folder that holds the guest's root folder", .path.display())]
    SymbolFolder {
        path: std::path::PathBuf,
        #[source]
        source: io::Error,
    },
    /// The report has no such rows.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The window is empty.
    #[error("--from is later than --until")]
    EmptyWindow,
    /// The parts of a time are not the whole: a defect of the report itself.
    #[error("the parts of {of} are {parts} ticks and not its {wall}: a defect in strata; please report it")]
    Sum {
        /// Whose time it is.
        of: String,
        /// What its parts add up to, ticks.
        parts: u64,
        /// What it is, ticks.
        wall: u64,
    },
    /// The report cannot be written.
    #[error("the report cannot be written")]
    Write(#[source] io::Error),
}

/// A report that is ready to be shown. Its JSON is what serde makes of it.
pub trait Report: Serialize {
    /// Writes it for people.
    ///
    /// # Errors
    /// When `out` fails.
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()>;
}

/// A report in the making: what one pass over a recording feeds, and what is made of it then.
pub trait ReportBuilder: Analysis {
    type Report: Report;

    /// Makes the report, when all of the window was taken in.
    ///
    /// # Errors
    /// When the recording lacks what the report is made of.
    fn finish(self, trace: &Trace, passed: &Passed) -> Result<Self::Report, ReportError>;
}

/// Makes the one report that `builder` builds of the part `window` of `trace`.
///
/// # Errors
/// When the recording lacks what the report is made of.
pub fn make<B: ReportBuilder>(trace: &Trace, window: Window, mut builder: B) -> Result<B::Report, ReportError> {
    let passed = strata_analysis::pass(trace, window, &mut [&mut builder]);
    builder.finish(trace, &passed)
}

/// A report together with what it does not include, which stands first.
#[derive(Serialize)]
struct WithCompleteness<'r, R: Serialize> {
    json_version: u32,
    /// What was damaged, lost or is unknown in the layers that the report uses.
    completeness: Completeness,
    #[serde(flatten)]
    report: &'r R,
}

/// Makes the report on the recording in `dir` that `builder` begins, and writes it to `out`, behind what was damaged,
/// lost or is unknown in what it uses. A reader that closes `out` is not an error.
///
/// # Errors
/// When the recording cannot be read, the window is empty, it lacks what the report is made of, or `out` fails.
pub fn run<B: ReportBuilder>(
    dir: &Path,
    options: &ReportOptions,
    out: &mut dyn Sink,
    builder: impl FnOnce(&Trace, Window) -> Result<B, ReportError>,
) -> Result<B::Report, ReportError> {
    let trace = Trace::open(dir)?;
    let window = options.window(&trace)?;
    let mut builder = builder(&trace, window)?;
    let passed = strata_analysis::pass(&trace, window, &mut [&mut builder]);
    let completeness = passed.completeness.restricted_to(builder.layers(), None);
    let report = builder.finish(&trace, &passed)?;
    write(&report, completeness, options.json, out)?;
    Ok(report)
}

pub(crate) fn write<R: Report>(
    report: &R,
    completeness: Completeness,
    json: bool,
    out: &mut dyn Sink,
) -> Result<(), ReportError> {
    let written = if json {
        let report = WithCompleteness { json_version: JSON_VERSION, completeness, report };
        serde_json::to_writer_pretty(HarmlessJson(&mut *out), &report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        // What a recording says is its maker's text.
        let mut out = HarmlessText(&mut *out);
        let mut line = completeness.line().into_iter();
        line.try_for_each(|line| writeln!(out, "{}", harmless(&line))).and_then(|()| report.write_text(&mut out))
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ReportError::Write(error)),
        _ => Ok(()),
    }
}

/// Writes the command that says more than a report, if there is one.
fn write_next(next: Option<&str>, out: &mut dyn Sink) -> io::Result<()> {
    next.map_or(Ok(()), |next| writeln!(out, "\nNext: {next}"))
}

/// `ns` nanoseconds as seconds with nine decimals.
#[must_use]
pub fn seconds(ns: u64) -> String {
    format!("{}.{:09} s", ns / NS_PER_SECOND, ns % NS_PER_SECOND)
}

/// `ns` nanoseconds in the unit in which they have one to three digits before the point: `ns`, `µs`, `ms` or `s`.
#[must_use]
pub fn duration(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..NS_PER_SECOND => (1_000_000, "ms"),
        _ => (NS_PER_SECOND, "s"),
    };
    // Rounded down, as all times here are.
    format!("{}.{:03} {name}", ns / unit, ns % unit * 1000 / unit)
}

/// `ns` nanoseconds after a moment, with a plus, or before it, with a minus.
#[must_use]
pub fn signed_duration(ns: i64) -> String {
    let sign = match ns {
        ..0 => "-",
        0 => "",
        _ => "+",
    };
    format!("{sign}{}", duration(ns.unsigned_abs()))
}

/// `part` of `whole` in percent with one decimal, rounded down; `-` of nothing.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let thousandths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

/// A moment as seconds since the first record at `start`, as `strata events` shows it.
#[must_use]
pub fn moment(clock: &Clock, start: u64, time: u64) -> String {
    let ns = clock.ticks_to_ns(time.saturating_sub(start));
    format!("{}.{:09}", ns / NS_PER_SECOND, ns % NS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_the_unit_that_fits() {
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_500), "1.500 µs");
        assert_eq!(duration(12_345_678), "12.345 ms");
        assert_eq!(duration(61_000_000_000), "61.000 s");
        assert_eq!([-1_500, 0, 999].map(signed_duration), ["-1.500 µs", "0 ns", "+999 ns"]);
    }

    #[test]
    fn percents_are_rounded_down_and_of_nothing_there_is_none() {
        assert_eq!((percent(1, 3), percent(3, 3), percent(1, 0)), ("33.3 %".into(), "100.0 %".into(), "-".into()));
    }
}
