//! The list of the reports. Commands, help, completion, `report all`, the page's tabs and the documents follow from it.

use super::all::AllReports;
use super::description::{Description, Requested};
use super::devices::{blocks, flows, net_flows};
use super::kernels::{exits, functions, irqs, locks, syscalls};
use super::scheduling::{cgroups, tasks, vcpus, wakeups};
use super::{ReportError, Window, death, findings, summary};
use std::path::Path;
use strata_recording::reader::Trace;

/// The reports, in the order in which they are shown. A new one is added here.
pub static REPORTS: [&Description; 16] = [
    &findings::DESCRIPTION,
    &ALL,
    &summary::DESCRIPTION,
    &tasks::DESCRIPTION,
    &cgroups::DESCRIPTION,
    &vcpus::DESCRIPTION,
    &exits::DESCRIPTION,
    &wakeups::DESCRIPTION,
    &syscalls::DESCRIPTION,
    &locks::DESCRIPTION,
    &irqs::DESCRIPTION,
    &functions::DESCRIPTION,
    &flows::DESCRIPTION,
    &net_flows::DESCRIPTION,
    &blocks::DESCRIPTION,
    &death::DESCRIPTION,
];

/// What describes all reports together.
const ALL: Description = Description {
    name: "all",
    about: "All but overview, death and cgroups, in one pass",
    requested: Requested::Command,
    examples: &["strata report all trace --json --from 1.5 --until 2.5"],
    takes_symbols: true,
    is_in_all: false,
    rows: &[],
    begin: |trace, window, symbols| Ok(Box::new(all(trace, window, symbols)?)),
};

/// All reports in the making on `window` of `trace`; `symbols` is the folder that holds the guest's root, for the names
/// of its programs' functions.
///
/// # Errors
/// When there is no such folder.
pub fn all(trace: &Trace, window: Window, symbols: Option<&Path>) -> Result<AllReports, ReportError> {
    let descriptions = REPORTS.into_iter().filter(|description| description.is_in_all);
    AllReports::new(descriptions, trace, window, symbols)
}
