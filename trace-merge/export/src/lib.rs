//! Exports: a recording in the form of another tool. Each is written in one pass, in memory that does not grow with the
//! recording, and shows where records are missing.
#![allow(missing_docs, reason = "no other project imports it: names say it, or a comment does")]

pub mod ctf;
pub mod html;
pub mod perfetto;

use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use strata_analysis::Passed;
use strata_recording::reader::{ReadError, Stream, TraceLayer};
use strata_recording::window::Window;
use thiserror::Error;
use trace_merge::report::ReportError;

/// Why a recording was not exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The window is empty, or a report cannot be made.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Nothing of it lies in the window.
    #[error("no record lies in that part of the trace; see `strata report` for how long it is")]
    Nothing,
    /// The export cannot be written.
    #[error("the export cannot be written")]
    Write(#[source] io::Error),
}

/// What is exported.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'p> {
    /// Only what is this long after the first record of the recording, or later.
    pub from: Option<Duration>,
    /// Only what is earlier than this long after the first record of the recording.
    pub to: Option<Duration>,
    /// Where the export writes how far it is: [`DONE`](trace_merge::progress::DONE) at its end.
    pub progress: Option<&'p AtomicU64>,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Bytes.
    pub bytes: u64,
    /// Records that the part of the recording holds.
    pub records: u64,
    /// Records that are written, drawn, or whose states are drawn.
    pub drawn: u64,
    /// What is missing of the recording, one line; `None` when nothing is.
    pub incomplete: Option<String>,
}

/// The part of `window` that `passed` found records in. Where kernels and VMMs have none, it is that of applications.
fn part_of(window: Window, passed: &Passed) -> Result<Window, ExportError> {
    let first = passed.totals.iter().filter_map(|totals| totals.first).min();
    let last = passed.totals.iter().filter_map(|totals| totals.last).max();
    let of_all = first.zip(last).map(|(begin, end)| Window { begin, end: end.saturating_add(1).min(window.end) });
    passed.window.or(of_all).ok_or(ExportError::Nothing)
}

/// What a stream is called: its VM or host, layer, process and CPU.
fn stream_name(layer: &TraceLayer, stream: &Stream) -> String {
    let described = &layer.description;
    let vm = described.vm.as_ref().or(described.host.as_ref()).map_or_else(String::new, |name| format!("{name} "));
    let process = described.process.as_ref().map_or_else(String::new, |process| format!(" {}", process.pid));
    let (kind, number) = (described.kind, stream.description.cpu_id);
    format!("{vm}{kind}{process} {} {number}", kind.stream_of())
}

/// `bytes` in the unit in which there is at least one, with one digit after the point.
#[must_use]
pub fn readable_size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| (bytes >> shift) > 0) {
        Some((name, shift)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_in_the_unit_in_which_there_is_at_least_one() {
        let texts = [0, 1_023, 1_024, 1_536, (1 << 20) - 1, u64::MAX].map(readable_size);

        assert_eq!(texts, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "1023.9 KiB", "17179869183.9 GiB"]);
    }
}
