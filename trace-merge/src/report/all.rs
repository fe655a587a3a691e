//! Several reports on a recording, in one pass over it.

use super::description::{Description, Part, Shown};
use super::kernels::functions::FunctionsReport;
use super::rows::blocks::take_apart;
use super::{Report, ReportBuilder, ReportError, Window};
use crate::report::sink::{Block, Sink};
use serde::{Serialize, Serializer};
use std::io;
use std::path::Path;
use strata_analysis::{Analysis, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;

/// All reports in the making.
pub struct AllReports {
    parts: Vec<(&'static str, Box<dyn Part>)>,
}

impl AllReports {
    /// The reports that `descriptions` describe, on `window` of `trace`; `symbols` is the folder that holds the guest's
    /// root, for the names of its programs' functions.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn new<'d>(
        descriptions: impl IntoIterator<Item = &'d Description>,
        trace: &Trace,
        window: Window,
        symbols: Option<&Path>,
    ) -> Result<Self, ReportError> {
        let part = |of: &Description| Ok((of.name, (of.begin)(trace, window, symbols)?));
        Ok(Self { parts: descriptions.into_iter().map(part).collect::<Result<_, ReportError>>()? })
    }
}

/// A report, or what the recording lacks for it.
type Outcome = Result<Box<dyn Shown>, String>;

/// What a page shows of a report: its blocks, or what the recording lacks for it.
pub type ShownReport = Result<Vec<Block>, String>;

/// All reports, each by its name.
pub struct Reports {
    reports: Vec<(&'static str, Outcome)>,
}

impl Reports {
    /// The report on functions; `None` where there is none.
    #[must_use]
    pub fn functions(&self) -> Option<&FunctionsReport> {
        self.reports.iter().find_map(|(_, report)| report.as_ref().ok()?.as_any().downcast_ref())
    }

    /// What each says, in blocks; an error where one cannot be written.
    pub fn blocks(&self) -> impl Iterator<Item = (&'static str, io::Result<ShownReport>)> {
        let blocks = |report: &Outcome| match report {
            Ok(report) => take_apart(|out| report.write_text(out)).map(Ok),
            Err(missing) => Ok(Err(missing.clone())),
        };
        self.reports.iter().map(move |(name, report)| (*name, blocks(report)))
    }
}

impl Analysis for AllReports {
    fn layers(&self) -> &'static [LayerKind] {
        &LayerKind::ALL
    }

    fn parts(&mut self) -> Option<Vec<&mut dyn Analysis>> {
        Some(self.parts.iter_mut().map(|(_, part)| part.analysis()).collect())
    }
}

impl ReportBuilder for AllReports {
    type Report = Reports;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<Reports, ReportError> {
        let mut reports = Vec::with_capacity(self.parts.len());
        for (name, part) in self.parts {
            let report = match part.finish(trace, passed).map_err(|error| error.of_part(trace, passed)) {
                Err(ReportError::Nothing { missing, remedy }) => Err(format!("{missing}; {remedy}")),
                other => Ok(other?),
            };
            reports.push((name, report));
        }
        Ok(Reports { reports })
    }
}

impl Serialize for Reports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = |report: &Outcome| match report {
            Ok(report) => report.to_json(),
            Err(missing) => Ok(serde_json::json!({ "nothing": missing })),
        };
        let values = self.reports.iter().map(|(name, report)| Ok((*name, value(report)?)));
        let values: Vec<_> = values.collect::<serde_json::Result<_>>().map_err(serde::ser::Error::custom)?;
        serializer.collect_map(values)
    }
}

impl Report for Reports {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for (place, (name, report)) in self.reports.iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            writeln!(out, "{}\n{}", name, "=".repeat(name.len()))?;
            match report {
                Ok(report) => report.write_text(out)?,
                Err(missing) => writeln!(out, "no report: {missing}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{registry, scenario};

    fn report(trace: &Trace, window: Window) -> Reports {
        crate::report::make(trace, window, registry::all(trace, window, None).unwrap()).unwrap()
    }

    #[test]
    fn each_report_is_the_same_as_alone() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let all = serde_json::to_value(report(&trace, Window::ALL)).unwrap();

        let alone = |report: Result<serde_json::Value, serde_json::Error>| report.unwrap();
        let tasks = super::super::scheduling::tasks::report(&trace, Window::ALL).unwrap();
        let exits = super::super::kernels::exits::report(&trace, Window::ALL).unwrap();
        let wakeups = super::super::scheduling::wakeups::report(&trace, Window::ALL).unwrap();
        let summary = super::super::summary::report(&trace, Window::ALL).unwrap();
        assert_eq!(all["tasks"], alone(serde_json::to_value(tasks)));
        assert_eq!(all["exits"], alone(serde_json::to_value(exits)));
        assert_eq!(all["wakeups"], alone(serde_json::to_value(wakeups)));
        assert_eq!(all["summary"], alone(serde_json::to_value(summary)));
    }

    #[test]
    fn report_that_has_nothing_to_be_made_of_says_so_and_the_others_are_there() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();
        let mut out = Vec::new();

        let reports = report(&trace, Window::ALL);
        Report::write_text(&reports, &mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("functions\n=========\nno report: no samples"), "{text}");
        assert!(text.contains("tasks\n=====\nvm0: 2 tasks"), "{text}");
        let json = serde_json::to_value(&reports).unwrap();
        assert!(json["functions"]["nothing"].as_str().unwrap().contains("strata:sample"));
    }
}
