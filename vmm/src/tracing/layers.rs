//! The layers of a session, by the mode of its rings.

use super::flight_recorder::FlightRecorder;
use super::polling::Polled;
use super::recording::{Recording, RecordingError};
use super::region::EnabledEvents;
use super::ring_layer::Producers;
use super::streaming::Streaming;
use trace_merge::manifest::Layer;
use trace_merge::writer::WriteError;

/// The layers of a session.
pub enum Layers {
    /// Written into the recording's folder while the guest runs.
    Streaming(Box<Streaming>),
    /// Held in memory until a snapshot is asked for or the session ends.
    FlightRecorder(Box<FlightRecorder>),
}

impl Layers {
    /// Polls every layer once.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn poll(&mut self, recording: &Recording) -> Result<Polled, WriteError> {
        match self {
            Self::Streaming(layers) => layers.drain(recording, Producers::Running),
            Self::FlightRecorder(layers) => Ok(layers.poll(recording)),
        }
    }

    /// The enable bits of the session, by the guest's events that are registered so far.
    #[must_use]
    pub fn enabled(&self, recording: &Recording) -> EnabledEvents {
        match self {
            Self::Streaming(layers) => recording.enabled(&layers.kernel_events()),
            Self::FlightRecorder(layers) => recording.enabled(layers.kernel_events()),
        }
    }

    /// Whether the guest's applications are among the layers.
    #[must_use]
    pub const fn has_processes(&self) -> bool {
        match self {
            Self::Streaming(layers) => layers.processes.is_some(),
            Self::FlightRecorder(layers) => layers.has_processes(),
        }
    }

    /// The layers that have been written so far.
    #[must_use]
    pub fn written(&self) -> Vec<Layer> {
        match self {
            Self::Streaming(layers) => layers.layers(),
            Self::FlightRecorder(_) => Vec::new(),
        }
    }

    /// Writes everything that stopped producers have left into the recording's folder, if it has one, and adds what is
    /// missing to the manifest.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn finish(&mut self, recording: &mut Recording) -> Result<Vec<Layer>, RecordingError> {
        let (missing, layers, dropped) = match self {
            Self::Streaming(streaming) => {
                let missing = streaming.finish(recording)?;
                (missing, streaming.layers(), streaming.refused_processes())
            }
            Self::FlightRecorder(recorder) => {
                let missing = recorder.finish(recording);
                let layers = match &recording.dir {
                    Some(dir) => recorder.write(recording, dir, &recording.manifest)?,
                    None => Vec::new(),
                };
                (missing, layers, recorder.dropped_processes())
            }
        };
        recording.manifest.missing.extend(missing);
        recording.manifest.missing.extend(recording.missing_at_end(dropped));
        Ok(layers)
    }
}
