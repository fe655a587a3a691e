//! Exports: a recording in the form of another tool. Each is written in one pass, in memory that does not grow with the
//! recording, and shows where records are missing.

pub mod perfetto;

use crate::reader::ReadError;
use crate::report::ReportError;
use std::io;
use thiserror::Error;

/// Why a recording was not exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The window is empty.
    #[error(transparent)]
    Window(#[from] ReportError),
    /// Nothing of it lies in the window.
    #[error("no record lies in that part of the trace; see `strata report` for how long it is")]
    Nothing,
    /// The export cannot be written.
    #[error("the export cannot be written")]
    Write(#[source] io::Error),
}
