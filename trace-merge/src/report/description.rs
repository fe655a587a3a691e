//! What describes a report: its name, what it shows, how it is requested and how it begins.

use super::rows::columns::Rows;
use super::{Report, ReportBuilder, ReportError, ReportOptions, Window};
use crate::report::sink::Sink;
use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;
use strata_analysis::completeness::Completeness;
use strata_analysis::{Analysis, Passed};
use strata_recording::reader::Trace;

/// Begins a report on a part of a recording; the path is the folder that holds the guest's root, where it was given.
pub type Begin = fn(&Trace, Window, Option<&Path>) -> Result<Box<dyn Part>, ReportError>;

/// What describes a report. Its command, help and completion, its place among all reports and its entry in the
/// documents follow from it.
#[derive(Clone, Copy)]
pub struct Description {
    /// Its name: what `report all` calls it and, unless [`Requested`] says otherwise, its command.
    pub name: &'static str,
    /// What it shows, in a line.
    pub about: &'static str,
    /// How it is requested.
    pub requested: Requested,
    /// Commands that show how it is used.
    pub examples: &'static [&'static str],
    /// Whether the folder with the guest's files tells it names.
    pub takes_symbols: bool,
    /// Whether `report all` has it.
    pub is_in_all: bool,
    /// Its rows that have columns.
    pub rows: &'static [Rows],
    /// How it begins.
    pub begin: Begin,
}

/// How a report is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requested {
    /// By a command of its own.
    Command,
    /// By an option of another report's command.
    Option {
        /// The name of that report.
        of: &'static str,
        /// The option, without its dashes.
        option: &'static str,
        /// What the option has to be; `None` for one without a value.
        value: Option<&'static str>,
    },
}

impl Description {
    /// The words that ask for it, behind `strata report`.
    #[must_use]
    pub fn words(&self) -> String {
        match self.requested {
            Requested::Command => self.name.into(),
            Requested::Option { of, option, value: None } => format!("{of} --{option}"),
            Requested::Option { of, option, value: Some(value) } => format!("{of} --{option} {value}"),
        }
    }

    /// Makes it of `trace`, and writes it to `out`, behind what was damaged, lost or is unknown in what
    /// it uses. `symbols` is the folder that holds the guest's root, where it was given. A reader that closes `out` is
    /// not an error. Says why the window holds nothing, where it lies outside of the trace's time.
    ///
    /// # Errors
    /// When the recording cannot be read, the window is empty, it lacks what the report is made of, or `out` fails.
    pub fn run(
        &self,
        trace: &Trace,
        options: &ReportOptions,
        symbols: Option<&Path>,
        out: &mut dyn Sink,
    ) -> Result<Option<String>, ReportError> {
        let Made { report, completeness, missed } = self.make(trace, options, symbols)?;
        report.write(completeness, options.json, out)?;
        Ok(missed)
    }

    /// Makes it, to be shown.
    pub(super) fn make(
        &self,
        trace: &Trace,
        options: &ReportOptions,
        symbols: Option<&Path>,
    ) -> Result<Made, ReportError> {
        let window = options.window(trace)?;
        let missed = super::missed_window(trace, options);
        let mut part = (self.begin)(trace, window, symbols)?;
        let analysis = part.analysis();
        let layers = analysis.layers();
        let passed = strata_analysis::pass(trace, window, &mut [analysis]);
        let completeness = passed.completeness.restricted_to(layers, None);
        let finished = part.finish(trace, &passed).map_err(|error| match (error, &missed) {
            // What else would have to be recorded is not advice then.
            (ReportError::Nothing { .. }, Some(missed)) => ReportError::nothing(missed, super::OTHER_PART),
            (error, _) => error.of_part(trace, &passed),
        });
        Ok(Made { report: finished?, completeness, missed })
    }
}

/// A report that is made.
pub(super) struct Made {
    pub(super) report: Box<dyn Shown>,
    /// What it does not include.
    pub(super) completeness: Completeness,
    /// Why the window holds nothing, where it lies outside of the trace's time.
    pub(super) missed: Option<String>,
}

impl fmt::Debug for Description {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Description({})", self.words())
    }
}

/// A report in the making whose type does not matter here.
pub trait Part: Send {
    /// What one pass over a recording feeds.
    fn analysis(&mut self) -> &mut dyn Analysis;

    /// The report.
    ///
    /// # Errors
    /// When the recording lacks what the report is made of.
    fn finish(self: Box<Self>, trace: &Trace, passed: &Passed) -> Result<Box<dyn Shown>, ReportError>;
}

/// A report whose type does not matter here.
pub trait Shown {
    /// Writes it for people.
    ///
    /// # Errors
    /// When `out` fails.
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()>;

    /// Writes it as JSON or else for people, behind what it does not include.
    ///
    /// # Errors
    /// When `out` fails.
    fn write(&self, completeness: Completeness, json: bool, out: &mut dyn Sink) -> Result<(), ReportError>;

    /// As JSON.
    ///
    /// # Errors
    /// When it has no form as JSON.
    fn to_json(&self) -> serde_json::Result<serde_json::Value>;

    /// The report itself.
    fn as_any(&self) -> &dyn Any;
}

impl<B: ReportBuilder> Part for B
where
    B::Report: 'static,
{
    fn analysis(&mut self) -> &mut dyn Analysis {
        self
    }

    fn finish(self: Box<Self>, trace: &Trace, passed: &Passed) -> Result<Box<dyn Shown>, ReportError> {
        Ok(Box::new(ReportBuilder::finish(*self, trace, passed)?))
    }
}

impl<R: Report + 'static> Shown for R {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        Report::write_text(self, out)
    }

    fn write(&self, completeness: Completeness, json: bool, out: &mut dyn Sink) -> Result<(), ReportError> {
        super::write(self, completeness, json, out)
    }

    fn to_json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry::REPORTS;
    use super::super::scenario;
    use super::*;
    use std::time::Duration;

    #[test]
    fn window_behind_the_end_is_reported_and_is_the_reason_where_there_is_no_report() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();
        let report = |name: &str, from| {
            let options = ReportOptions { from: Some(Duration::from_secs(from)), ..ReportOptions::default() };
            let report = REPORTS.into_iter().find(|report| report.name == name).unwrap();
            report.run(&trace, &options, None, &mut Vec::new())
        };

        let behind = "--from is after the end of the trace: its records are from 0 to 0.000041000 s";
        assert_eq!(report("overview", 0).unwrap(), None);
        assert_eq!(report("overview", 100).unwrap().as_deref(), Some(behind));
        let nothing = report("tasks", 100).unwrap_err().to_string();
        assert!(nothing.contains(behind) && nothing.ends_with(super::super::OTHER_PART), "{nothing}");
    }

    #[test]
    fn part_that_has_nothing_for_a_report_is_no_reason_to_record_anew() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();
        let of = |from, reports: &str| {
            let options = ReportOptions { from, ..ReportOptions::default() };
            let report = REPORTS.into_iter().find(|report| report.name == reports).unwrap();
            let mut text = Vec::new();
            let error = report.run(&trace, &options, None, &mut text).err().map(|error| error.to_string());
            error.unwrap_or(String::from_utf8(text).unwrap())
        };
        let part = Some(Duration::from_nanos(10));

        for (all, part) in [(of(None, "functions"), of(part, "functions")), (of(None, "all"), of(part, "all"))] {
            assert!(all.contains("no samples (strata:sample) were recorded; record with --events"), "{all}");
            assert!(
                part.contains("in this part, no samples (strata:sample) were recorded; leave out --from"),
                "{part}"
            );
        }
    }
}
