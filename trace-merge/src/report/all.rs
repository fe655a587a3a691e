//! All reports of a recording, in one pass over it.

use super::functions::FunctionsReport;
use super::{Report, ReportBuilder, ReportError, Window};
use serde::{Serialize, Serializer};
use std::any::Any;
use std::io::{self, Write};
use std::path::Path;
use strata_analysis::{Analysis, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;

/// Begins a report on a part of a recording; the path is the folder that holds the guest's root, where it was given.
type Begin = fn(&Trace, Window, Option<&Path>) -> Result<Box<dyn Part>, ReportError>;

/// The reports by name, in the order in which they are shown. A new report is added here, and to the command line. The
/// overview is not among them: it is made of others.
const REPORTS: [(&str, Begin); 12] = [
    ("summary", |_, window, _| Ok(Box::new(super::summary::SummaryBuilder::new(window)))),
    ("tasks", |_, window, _| Ok(Box::new(super::tasks::TaskTimes::new(window)))),
    ("vcpus", |_, _, _| Ok(Box::new(super::vcpus::VcpuTimes::default()))),
    ("exits", |_, window, _| Ok(Box::new(super::exits::ExitTimes::new(window)))),
    ("wakeups", |_, window, _| Ok(Box::new(super::wakeups::WakeupTimes::new(window)))),
    ("syscalls", |_, _, _| Ok(Box::new(super::syscalls::SyscallTimes::default()))),
    ("locks", |_, _, _| Ok(Box::new(super::locks::LockTimes::default()))),
    ("irqs", |_, _, _| Ok(Box::new(super::irqs::InterruptTimes::default()))),
    ("functions", |trace, _, symbols| Ok(Box::new(super::functions::FunctionSampling::new(trace, symbols)?))),
    ("flows", |trace, _, _| Ok(Box::new(super::flows::FlowTimes::new(trace)))),
    ("net_flows", |trace, _, _| Ok(Box::new(super::net_flows::NetFlowTimes::new(trace)))),
    ("blocks", |_, _, _| Ok(Box::new(super::blocks::BlockTimes::default()))),
];

/// A report in the making whose type does not matter here.
trait Part: Send {
    fn analysis(&mut self) -> &mut dyn Analysis;

    fn finish(self: Box<Self>, trace: &Trace, passed: &Passed) -> Result<Box<dyn Shown>, ReportError>;
}

/// A report whose type does not matter here.
trait Shown {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()>;

    fn to_json(&self) -> serde_json::Result<serde_json::Value>;

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
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        Report::write_text(self, out)
    }

    fn to_json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// All reports in the making.
pub struct AllReports {
    parts: Vec<(&'static str, Box<dyn Part>)>,
}

impl AllReports {
    /// The reports on `window` of `trace`; `symbols` is the folder that holds the guest's root, for the names of its
    /// programs' functions.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn new(trace: &Trace, window: Window, symbols: Option<&Path>) -> Result<Self, ReportError> {
        let parts = REPORTS.iter().map(|(name, begin)| Ok((*name, begin(trace, window, symbols)?)));
        Ok(Self { parts: parts.collect::<Result<_, ReportError>>()? })
    }
}

/// A report, or what the recording lacks for it.
type Outcome = Result<Box<dyn Shown>, String>;

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
            let report = match part.finish(trace, passed) {
                Err(ReportError::Nothing { missing }) => Err(missing),
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
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
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

/// Makes all reports on `window` of `trace`.
///
/// # Errors
/// When a report finds a defect of its own.
pub fn report(trace: &Trace, window: Window, symbols: Option<&Path>) -> Result<Reports, ReportError> {
    let mut all = AllReports::new(trace, window, symbols)?;
    let passed = strata_analysis::pass(trace, window, &mut [&mut all]);
    all.finish(trace, &passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::scenario;

    #[test]
    fn each_report_is_the_same_as_alone() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let all = serde_json::to_value(report(&trace, Window::ALL, None).unwrap()).unwrap();

        let alone = |report: Result<serde_json::Value, serde_json::Error>| report.unwrap();
        let tasks = super::super::tasks::report(&trace, Window::ALL).unwrap();
        let exits = super::super::exits::report(&trace, Window::ALL).unwrap();
        let wakeups = super::super::wakeups::report(&trace, Window::ALL).unwrap();
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

        let reports = report(&trace, Window::ALL, None).unwrap();
        Report::write_text(&reports, &mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("functions\n=========\nno report: no samples"), "{text}");
        assert!(text.contains("tasks\n=====\nvm0: 2 tasks"), "{text}");
        let json = serde_json::to_value(&reports).unwrap();
        assert!(json["functions"]["nothing"].as_str().unwrap().contains("strata:sample"));
    }
}
