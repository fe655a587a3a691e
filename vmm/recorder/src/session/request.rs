//! The request for a recording, and what of it is refused before anything is made.

use crate::control::protocol::LayerLimit;
use crate::drain::scheduling::{Scheduling, SchedulingError};
use crate::layer::limit::{LayerLimits, LimitError};
use crate::selection;
use crate::selection::{Selection, SelectionError};
use crate::trigger::expression::TriggerError;
use crate::trigger::{AFTER, TriggerRequest};
use shared_ring::layout::Mode;
use std::path::PathBuf;
use strata_recording::files::access::Readers;
use strata_recording::files::compression::Compression;
use strata_recording::files::trace_folder::{SnapshotFolder, TraceFolder, TraceFolderError};
use strata_recording::layer::LayerKind;
use thiserror::Error;

/// The host kernel's records that a flight recorder holds unless told otherwise, bytes.
pub const HOST_HISTORY: usize = 64 << 20;

/// The request for a recording.
#[derive(Clone, Debug)]
pub struct RecordingRequest {
    /// Which records it has.
    pub layers: LayersRequest,
    /// Where they go.
    pub files: FilesRequest,
    /// What is watched for, and leads to a snapshot.
    pub triggers: TriggerRequest,
    /// Where and when the recorder runs.
    pub scheduling: Scheduling,
}

/// Which records of each layer are recorded, and how many of them.
#[derive(Clone, Debug)]
pub struct LayersRequest {
    /// The choice of events, as [`Selection::parse`] reads it.
    pub events: String,
    /// Whether records are written as they come, or the newest are held in memory. The rings of a guest's side have the
    /// same mode.
    pub mode: Mode,
    /// The most records of layers each second.
    pub limits: Vec<LayerLimit>,
    /// The host kernel's records that a flight recorder holds, bytes: [`HOST_HISTORY`] unless given.
    pub host_history: Option<usize>,
}

/// Where a recording goes, and who may read it.
#[derive(Clone, Debug, Default)]
pub struct FilesRequest {
    /// Its folder.
    pub trace: PathBuf,
    /// Who may read it, and snapshots of it.
    pub readers: Readers,
    /// Bytes that it keeps within; without it, it grows.
    pub max_size: Option<u64>,
    /// How it is compressed, if it is.
    pub compression: Option<Compression>,
}

/// Why there is no recording as it is requested.
#[derive(Debug, Error)]
pub enum RequestError {
    /// A flight recorder keeps within its memory.
    #[error("--max-size is for --mode discard: what a flight recorder holds depends on its rings and --host-history")]
    BoundedBySize,
    /// Only a flight recorder keeps a history.
    #[error(
        "--host-history is for --mode flight-recorder: --mode discard writes the host kernel's records as they come"
    )]
    HistoryOfNoFlightRecorder,
    /// A layer's records cannot be limited so.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The recorder cannot run where or when it is to.
    #[error(transparent)]
    Scheduling(#[from] SchedulingError),
    /// The choice of events cannot be used.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// A trigger names what there is not, or cannot fire.
    #[error("--trigger")]
    Trigger(#[from] TriggerError),
}

impl RecordingRequest {
    /// A recording into the folder `trace` as it is without any option.
    #[must_use]
    pub fn new(trace: impl Into<PathBuf>) -> Self {
        Self {
            layers: LayersRequest {
                events: selection::DEFAULT.into(),
                mode: Mode::Discard,
                limits: Vec::new(),
                host_history: None,
            },
            files: FilesRequest { trace: trace.into(), ..FilesRequest::default() },
            triggers: TriggerRequest { after: AFTER, ..TriggerRequest::default() },
            scheduling: Scheduling::default(),
        }
    }

    /// The choice of events, the limits and the scheduling of a recording of `layers`, when all that is asked for can be
    /// had, but for draining in idle times.
    pub(super) fn check(&self, layers: &[LayerKind]) -> Result<(Selection, LayerLimits, Scheduling), RequestError> {
        if self.files.max_size.is_some() && self.layers.mode == Mode::FlightRecorder {
            return Err(RequestError::BoundedBySize);
        }
        if self.layers.host_history.is_some() && self.layers.mode == Mode::Discard {
            return Err(RequestError::HistoryOfNoFlightRecorder);
        }
        let limits = LayerLimits::new(&self.layers.limits, self.layers.mode, layers)?;
        let scheduling = self.scheduling.try_out()?;
        Ok((Selection::parse(&self.layers.events)?, limits, scheduling))
    }
}

impl FilesRequest {
    /// The recording's folder, as other processes find it too. A path that cannot be made absolute stays as it is.
    #[must_use]
    pub fn absolute_trace(&self) -> PathBuf {
        std::path::absolute(&self.trace).unwrap_or_else(|_| self.trace.clone())
    }

    /// Makes the folders of the recording and of its snapshots. Each is removed again when it is dropped: the first
    /// unless it is [kept](TraceFolder::keep), the second if nothing is in it.
    ///
    /// # Errors
    /// When one cannot be had.
    pub fn create(&self) -> Result<(TraceFolder, SnapshotFolder), TraceFolderError> {
        let folder = TraceFolder::create(&self.trace, self.readers)?;
        SnapshotFolder::create(&self.trace, self.readers).map(|snapshots| (folder, snapshots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_of_a_flight_recorder_is_refused() {
        let mut request = RecordingRequest::new("trace");
        request.files.max_size = Some(1 << 30);
        request.layers.mode = Mode::FlightRecorder;

        assert!(matches!(request.check(&LayerKind::ALL), Err(RequestError::BoundedBySize)));
    }

    #[test]
    fn history_is_refused_unless_the_recorder_is_a_flight_recorder() {
        let check = |mode| {
            let mut request = RecordingRequest::new("trace");
            request.layers.host_history = Some(HOST_HISTORY);
            request.layers.mode = mode;
            request.check(&LayerKind::ALL)
        };

        assert!(matches!(check(Mode::Discard), Err(RequestError::HistoryOfNoFlightRecorder)));
        assert!(check(Mode::FlightRecorder).is_ok());
    }

    #[test]
    fn folder_is_one_that_other_processes_find() {
        let trace = RecordingRequest::new("trace").files.absolute_trace();

        assert!(trace.is_absolute() && trace.ends_with("trace"), "{trace:?}");
    }
}
