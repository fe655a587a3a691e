//! A recording as Parquet: a folder with a folder for each table.
//!
//! One pass over the recording feeds an analysis for each group of tables, with the timeline of `trace-merge` and the
//! builders of its reports: rows are what those count. Row groups go to a thread that encodes them and writes the files.
//! Memory is bounded: by what is kept of rows in the making, by row groups on their way, and by what lasts at a moment.

mod about;
mod activities;
mod columns;
mod files;
mod keyed;
mod lake;
mod names;
mod output;
mod places;
mod records;
mod rows;
mod states;
mod task;
mod waiting;

#[cfg(feature = "sql")]
use crate::tables::Column;
use crate::tables::{EVENTS, FIXED, Fixed, NoTable, check_names, is_chosen, table_of_event};
use about::About;
#[cfg(feature = "sql")]
pub(crate) use files::part_of_name;
use files::{Files, Folder};
use lake::LakeFiles;
#[cfg(feature = "sql")]
use names::NameColumn;
use output::Output;
#[cfg(feature = "sql")]
pub(crate) use output::recording_id;
use places::Places;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
#[cfg(feature = "sql")]
use strata_analysis::address_symbols::AddressSymbols;
use strata_analysis::timeline::{ChangeKind, Input, Timeline};
use strata_analysis::{Analysis, Passed};
use strata_export::{ExportError, Exported, Options};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::window::Window;
use trace_merge::progress::{self, DONE};
use trace_merge::report::ReportError;

/// Which tables are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// All.
    #[default]
    All,
    /// Those that somebody chose, [`EVENTS`] standing for those of all event types, and
    /// [`ALWAYS`](crate::tables::ALWAYS).
    Chosen(BTreeSet<String>),
    /// Those that a question names. The tables of event types that it does not name have no fields: [`EVENTS`] has none.
    Named(BTreeSet<String>),
}

impl Selection {
    /// The tables `names` of `trace`.
    ///
    /// # Errors
    /// When it has no table of one of these names.
    pub fn chosen(names: &[String], trace: &Trace) -> Result<Self, NoTable> {
        check_names(names, &table_names(trace))?;
        Ok(Self::Chosen(names.iter().cloned().collect()))
    }

    fn has(&self, table: &str) -> bool {
        match self {
            Self::All => true,
            Self::Chosen(names) => is_chosen(table, names),
            Self::Named(names) => names.contains(table),
        }
    }

    /// Whether the table of any event type is requested.
    fn has_event_tables(&self) -> bool {
        match self {
            Self::All => true,
            Self::Chosen(names) | Self::Named(names) => {
                names.iter().any(|name| name == EVENTS || Fixed::find(name).is_none())
            }
        }
    }

    /// The names of the tables that somebody chose, with commas between them.
    fn reported(&self) -> Option<String> {
        match self {
            Self::All | Self::Named(_) => None,
            Self::Chosen(names) => Some(names.iter().map(String::as_str).collect::<Vec<_>>().join(",")),
        }
    }
}

/// The names of all tables of `trace` that a question can name.
#[must_use]
pub fn table_names(trace: &Trace) -> BTreeSet<String> {
    let events = trace.layers().iter().flat_map(|layer| layer.schemas.iter()).map(|event| table_of_event(event.name()));
    FIXED.iter().map(|table| table.name.to_string()).chain(events).collect()
}

/// The columns of the table `name` of an event type of `trace`, but those of its place; `None` where it has no such one.
#[cfg(feature = "sql")]
pub(crate) fn columns_of_event_table(trace: &Trace, name: &str) -> Option<Vec<Column>> {
    let mut events = trace.layers().iter().flat_map(|layer| layer.schemas.iter().map(move |schema| (layer, schema)));
    let (layer, event) = events.find(|(_, event)| table_of_event(event.name()) == name)?;
    let names = NameColumn::all(layer, event, &mut AddressSymbols::new(trace));
    Some(records::columns_of_event(&event.description().fields, &names))
}

/// Writes the tables in `selection` of `trace` below the folder `folder`: a folder of files for each.
///
/// # Errors
/// When the window ends before it begins or holds nothing, and when files cannot be written. What was written by then
/// is left to the caller.
pub fn export(
    trace: &Trace,
    options: &Options<'_>,
    folder: &Path,
    selection: &Selection,
) -> Result<Exported, ExportError> {
    write(trace, options, folder, selection, Layout::Tables)
}

/// Writes the same rows as the files of a lake: `docs/fleet.md`.
///
/// # Errors
/// As [`export`] does.
pub fn export_for_lake(
    trace: &Trace,
    options: &Options<'_>,
    folder: &Path,
    selection: &Selection,
) -> Result<Exported, ExportError> {
    write(trace, options, folder, selection, Layout::Lake)
}

/// Which files rows go to.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Those of tables.
    Tables,
    /// Those of a lake.
    Lake,
}

fn write(
    trace: &Trace,
    options: &Options<'_>,
    folder: &Path,
    selection: &Selection,
    layout: Layout,
) -> Result<Exported, ExportError> {
    let window = trace.window(options.from, options.to).ok_or(ReportError::EmptyWindow)?;
    let places = Places::new(trace);
    let timeline = Timeline::new(trace);
    let (output, batches) = Output::new(trace);
    thread::scope(|scope| {
        let part = (options.from.is_some() || options.to.is_some()).then_some(window);
        let folder = Folder::new(folder, trace, part, selection.reported());
        let writing = scope.spawn(move || match layout {
            Layout::Tables => Files::new(folder, places).write_all(batches),
            Layout::Lake => LakeFiles::new(folder, places)?.write_all(batches),
        });
        let made = make(trace, &timeline, window, options, selection, output);
        let bytes =
            writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(ExportError::Write)?;
        made.map(|exported| Exported { bytes, ..exported })
    })
}

/// Makes the rows, and hands them to `output`.
fn make(
    trace: &Trace,
    timeline: &Timeline,
    window: Window,
    options: &Options<'_>,
    selection: &Selection,
    output: Output,
) -> Result<Exported, ExportError> {
    let progress = options.progress;
    let mut makers: Vec<Box<dyn Maker + '_>> = vec![Box::new(Progress { reported: progress, window, seen: 0 })];
    if selection.has_event_tables() {
        makers.push(Box::new(records::Records::new(trace, timeline, selection, &output)));
    }
    makers.extend(states::makers(window, selection, &output));
    makers.extend(activities::makers(trace, timeline, window, selection, &output));
    let passed = {
        let mut analyses: Vec<&mut dyn Analysis> = Vec::new();
        for maker in &mut makers {
            analyses.push(&mut **maker);
        }
        strata_analysis::pass(trace, window, &mut analyses)
    };
    if passed.totals.iter().all(|totals| totals.events == 0) {
        return Err(ExportError::Nothing);
    }
    makers.iter_mut().for_each(|maker| maker.finish(&passed));
    let records = passed.totals.iter().map(|totals| totals.events).sum();
    let incomplete = passed.completeness.line();
    let part = (options.from, options.to);
    About { trace, passed: &passed, part, incomplete: incomplete.as_deref(), records }.write(selection, &output);
    // What they still keep goes out.
    drop(makers);
    if let Some(progress) = progress {
        progress.store(DONE, Ordering::Relaxed);
    }
    let drawn = output.rows();
    Ok(Exported { bytes: 0, records, drawn, incomplete })
}

/// An analysis that makes rows.
trait Maker: Analysis {
    /// Makes the rows of what still lasts, when all of the window was taken in.
    fn finish(&mut self, passed: &Passed);
}

/// Tells how far the pass is. It asks for all layers, so that what is read does not depend on which tables are written.
struct Progress<'t> {
    reported: Option<&'t AtomicU64>,
    window: Window,
    seen: u64,
}

/// Records after which progress is reported again.
const REPORT_EVERY: u64 = 4096;

impl Analysis for Progress<'_> {
    fn layers(&self) -> &'static [LayerKind] {
        &LayerKind::ALL
    }

    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn needs_states(&self) -> bool {
        false
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.seen += 1;
        let (Some(reported), Some(span)) =
            (self.reported.filter(|_| self.seen.is_multiple_of(REPORT_EVERY)), timeline.span)
        else {
            return;
        };
        let part = Window { begin: span.begin.max(self.window.begin), end: span.end.min(self.window.end) };
        reported.store(progress::up_to(input.time(), part), Ordering::Relaxed);
    }
}

impl Maker for Progress<'_> {
    fn finish(&mut self, _passed: &Passed) {}
}

/// Makes ticks of a recording the times in its tables.
#[derive(Clone, Debug)]
struct Times {
    clock: Clock,
    start: u64,
}

impl Times {
    fn new(trace: &Trace) -> Self {
        Self { clock: trace.clock().clone(), start: trace.start().unwrap_or(0) }
    }

    /// Since the first record, ns; before it, less than 0.
    fn since_start(&self, ticks: u64) -> i64 {
        match ticks.checked_sub(self.start) {
            Some(after) => self.ns(after),
            None => -self.ns(self.start - ticks),
        }
    }

    /// Nanoseconds of `ticks`.
    fn ns(&self, ticks: u64) -> i64 {
        integer(self.clock.ticks_to_ns(ticks))
    }

    /// Ticks of a second.
    const fn second(&self) -> u64 {
        self.clock.frequency_hz
    }

    /// Nanoseconds since 1970; as far as 64 bits reach.
    fn utc(&self, ticks: u64) -> i64 {
        utc(&self.clock, ticks)
    }
}

/// Nanoseconds since 1970 at `ticks` of `clock`; as far as 64 bits reach.
fn utc(clock: &Clock, ticks: u64) -> i64 {
    let ns = clock.utc_ns(ticks);
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

/// The nearest integer that a column holds.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
