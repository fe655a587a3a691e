//! The layers of a session, by the mode of its rings.

use super::flight_recorder::{FlightRecorder, WrittenLayers};
use super::polling::Polled;
use super::recording::Recording;
use super::ring_layer::Producers;
use super::streaming::Streaming;
use super::written_layer::ends_early;
use crate::control::protocol::Watched;
use shared_ring::event::EventDescription;
use trace_merge::manifest::{Layer, Missing};

/// The layers of a session.
pub enum Layers {
    /// Written into the recording's folder while the guest runs.
    Streaming(Box<Streaming>),
    /// Held in memory until a snapshot is asked for or the session ends.
    FlightRecorder(Box<FlightRecorder>),
}

impl Layers {
    /// Polls every layer once.
    pub fn poll(&mut self, recording: &Recording) -> Polled {
        match self {
            Self::Streaming(layers) => layers.drain(recording, Producers::Running),
            Self::FlightRecorder(layers) => layers.poll(recording),
        }
    }

    /// What the host does for the VM's vCPUs, by the records of its kernel; `None` where these are not among the layers.
    pub fn watch(&mut self, recording: &Recording) -> Option<Watched> {
        let vm = recording.manifest.vm(&recording.vm)?;
        let (clock, time) = (&recording.manifest.clock, recording.clocks.time());
        match self {
            Self::Streaming(layers) => Some(layers.host.as_mut()?.watch(vm, clock, time)),
            Self::FlightRecorder(layers) => Some(layers.host()?.watch(vm, clock, time)),
        }
    }

    /// What is missing of layers that ended early since the last call; the others go on.
    pub fn ends(&mut self) -> Vec<Missing> {
        match self {
            Self::Streaming(layers) => layers.ends(),
            Self::FlightRecorder(layers) => layers.ends(),
        }
    }

    /// The events of the guest's kernel that are registered so far.
    #[must_use]
    pub fn kernel_events(&self) -> Vec<EventDescription> {
        match self {
            Self::Streaming(layers) => layers.kernel_events(),
            Self::FlightRecorder(layers) => layers.kernel_events().to_vec(),
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
    pub fn finish(&mut self, recording: &mut Recording) -> Vec<Layer> {
        let (missing, layers) = match self {
            Self::Streaming(streaming) => (streaming.finish(recording), streaming.layers()),
            Self::FlightRecorder(recorder) => {
                let mut missing = recorder.finish(recording);
                let written = recording.dir.as_ref().map(|dir| recorder.write(recording, dir, &recording.manifest));
                let WrittenLayers { layers, failures } = written.unwrap_or_default();
                missing.extend(failures.iter().map(|(kind, error)| ends_early(*kind, error)));
                missing.extend(recorder.missing_processes());
                (missing, layers)
            }
        };
        recording.manifest.missing.extend(missing);
        recording.manifest.missing.extend(recording.missing_at_end());
        layers
    }
}
