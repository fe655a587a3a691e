//! A recording as one page for a browser: the timeline of all layers, the records, and every report. It needs no
//! network and no server: what it shows lies in the file.
//!
//! The page is bounded, however long the recording is. Rows have levels of bins ([`pyramid`]) for the whole of it;
//! slices, records and arrows are kept from the beginning on up to a number, and the page says from when on they are
//! left out. `docs/page.md` says what is drawn, and what is not.

mod category;
mod counters;
mod drawing;
mod encoding;
mod flows;
mod host_cpus;
mod names;
mod page;
mod pyramid;
mod records;
mod reports;
mod rows;
mod stacks;
mod why;

use super::{ExportError, Exported, Options};
use drawing::Drawing;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use strata_recording::reader::Trace;
use trace_merge::critical_path::CriticalPaths;
use trace_merge::progress::DONE;
use trace_merge::report::findings::OverviewBuilder;
use trace_merge::report::{ReportBuilder, ReportError, registry};

/// Slices of all rows that are kept.
const MOST_SLICES: u64 = 2_500_000;
/// Records that are kept in full, and bytes of their fields.
const MOST_RECORDS: u64 = 1_100_000;
const MOST_FIELD_BYTES: usize = 24 << 20;
/// Arrows that are kept.
const MOST_ARROWS: u64 = 250_000;
/// Rows of tasks.
const MOST_TASKS: usize = 1000;

/// How much of a recording a page keeps.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    slices: u64,
    records: u64,
    field_bytes: usize,
    arrows: u64,
    tasks: usize,
}

const BOUNDS: Bounds = Bounds {
    slices: MOST_SLICES,
    records: MOST_RECORDS,
    field_bytes: MOST_FIELD_BYTES,
    arrows: MOST_ARROWS,
    tasks: MOST_TASKS,
};

/// Writes `trace` to `out`, and `why` a task took so long, if that is to be drawn; `symbols` is the folder that holds
/// the guest's root, for the names of its programs' functions.
///
/// # Errors
/// When the window ends before it begins or holds nothing, a report finds a defect of its own, and when `out` fails.
pub fn export(
    trace: &Trace,
    options: &Options<'_>,
    symbols: Option<&Path>,
    why: Option<&CriticalPaths>,
    out: impl Write,
) -> Result<Exported, ExportError> {
    export_within(BOUNDS, trace, options, symbols, why, out)
}

fn export_within(
    bounds: Bounds,
    trace: &Trace,
    options: &Options<'_>,
    symbols: Option<&Path>,
    why: Option<&CriticalPaths>,
    out: impl Write,
) -> Result<Exported, ExportError> {
    let window = trace.window(options.from, options.to).ok_or(ReportError::EmptyWindow)?;
    let mut drawing = Drawing::new(trace, window, bounds, options.progress).ok_or(ExportError::Nothing)?;
    let mut reports = registry::all(trace, window, symbols)?;
    let mut overview = OverviewBuilder::new(trace, window);
    let passed = strata_analysis::pass(trace, window, &mut [&mut drawing, &mut reports, &mut overview]);
    let part = crate::part_of(window, &passed)?;
    drawing.finish(&passed.timeline, part.end);
    why.into_iter().for_each(|paths| drawing.explain(paths));
    let contents = page::Contents {
        trace,
        part,
        reports: reports.finish(trace, &passed)?,
        findings: overview.finish(trace, &passed)?.findings,
        completeness: &passed.completeness,
        records: passed.totals.iter().map(|totals| totals.events).sum(),
        drawn: drawing,
    };
    let exported = contents.write(out).map_err(ExportError::Write)?;
    if let Some(progress) = options.progress {
        progress.store(DONE, Ordering::Relaxed);
    }
    Ok(exported)
}

#[cfg(test)]
mod tests;
