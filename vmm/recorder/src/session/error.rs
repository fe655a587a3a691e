//! Why a request to a session is refused, or fails.

use super::MAX_NAME;
use crate::layer::kernel_rings::{sub_buffer_counts, sub_buffer_sizes};
use crate::layer::limit::LimitError;
use crate::region::RegionError;
use crate::selection::SelectionError;
use crate::session::recording::RecordingError;
use crate::trigger::ArmError;
use std::path::PathBuf;
use strata_recording::files::trace_folder::TraceFolderError;
use strata_recording::writer::MIN_ROTATED_SIZE;
use thiserror::Error;

/// Why a request to a session is refused, or fails.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The name cannot be a session's.
    #[error("'{0}' is not a session name: use up to {MAX_NAME} letters, digits, '.', '_' and '-'")]
    Name(String),
    /// The name is taken.
    #[error("there is a session '{0}' already")]
    Exists(String),
    /// No session has the name.
    #[error("no session is called '{name}'; there are {}", known.join(", "))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The rings have an impossible geometry.
    #[error("the size of a sub-buffer must be {}, and their number {}", sub_buffer_sizes(), sub_buffer_counts())]
    Geometry,
    /// A session in discard mode has no folder.
    #[error("a session in discard mode needs a folder to be written to: give --trace DIR")]
    NoFolder,
    /// A flight recorder keeps within its rings.
    #[error("--max-size is for sessions in discard mode: what a flight recorder holds depends on its rings")]
    BoundedBySize,
    /// The size that the recording is to keep within leaves no room.
    #[error("a recording can keep within {} MiB or more", MIN_ROTATED_SIZE >> 20)]
    TooSmall,
    /// A layer's records cannot be limited so.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A path would mean another place for the VM's process.
    #[error("'{}' is not an absolute path", .0.display())]
    RelativePath(PathBuf),
    /// All slots are in use.
    #[error("all session slots are in use: destroy a session first")]
    NoSlot,
    /// The rings do not fit a slot.
    #[error(
        "rings of {size} bytes are too large for a session made while the VM runs: {room} bytes are reserved for each"
    )]
    TooLarge {
        /// Size of one ring, bytes.
        size: usize,
        /// Bytes reserved for one ring.
        room: usize,
    },
    /// The slot cannot be had, or there is no memory for the rings.
    #[error(transparent)]
    Slot(#[from] RegionError),
    /// Another process runs the VM.
    #[error(
        "this recording is attached to a VM that another process runs, and has no layer of its guest to choose sessions \
         or events of; `strata ctl VM detach` ends it"
    )]
    Attached,
    /// The first session cannot be destroyed.
    #[error("session {0} ends with the VM; `session stop {0}` stops it")]
    EndsWithVm(String),
    /// There is nothing to take a snapshot of.
    #[error(
        "session {name} is written to {} all the time: read that, after `strata ctl VM flush`; snapshots are for sessions \
         in flight-recorder mode",
        dir.display()
    )]
    NotFlightRecorder {
        /// The session.
        name: String,
        /// Folder of its recording.
        dir: PathBuf,
    },
    /// No session is written while the guest runs.
    #[error("a flight recorder is written by a snapshot: use `strata ctl VM snapshot DIR`")]
    NothingToFlush,
    /// A trigger cannot be armed, or removed.
    #[error(transparent)]
    Trigger(#[from] ArmError),
    /// The request is not about the recording.
    #[error("the recorder does not serve this request")]
    NotServed,
    /// The choice of events cannot be used.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The folder cannot take a recording.
    #[error(transparent)]
    Folder(#[from] TraceFolderError),
    /// A snapshot, or the beginning or end of a session's recording, cannot be written.
    #[error(transparent)]
    NotWritten(RecordingError),
}
