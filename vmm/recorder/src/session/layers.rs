//! The layers of a session, by the mode of its rings.

use crate::control::protocol::{LiveGuest, Watched};
use crate::drain::polling::Found;
use crate::layer::ring::Producers;
use crate::layer::written::{WrittenLayer, ends_early};
use crate::session::flight_recorder::{FlightRecorder, WrittenLayers};
use crate::session::recording::Recording;
use crate::session::streaming::Streaming;
use crate::trigger::host_load::HostLoad;
use crate::trigger::{Consequence, Triggers};
use shared_ring::event::EventDescription;
use strata_recording::manifest::{Layer, Missing};
use strata_recording::schema::SchemaTable;
use strata_recording::writer::WriteError;

/// The layers of a session.
pub enum Layers {
    /// Written into the recording's folder while the guest runs.
    Streaming(Box<Streaming>),
    /// Held in memory until a snapshot is requested or the session ends.
    FlightRecorder(Box<FlightRecorder>),
}

impl Layers {
    /// Polls every layer once; `triggers` are shown what is new.
    pub fn poll(&mut self, recording: &Recording, triggers: Option<&mut Triggers>) -> Found {
        match self {
            Self::Streaming(layers) => layers.drain(recording, Producers::Running, triggers),
            Self::FlightRecorder(layers) => layers.poll(recording, triggers),
        }
    }

    /// Whether a poll can wait, since there is room wherever something is recorded.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        match self {
            Self::Streaming(layers) => layers.can_wait(),
            Self::FlightRecorder(layers) => layers.can_wait(),
        }
    }

    /// Event types of the host's kernel; none where it is not among the layers.
    #[must_use]
    pub fn host_events(&self) -> Vec<EventDescription> {
        match self {
            Self::Streaming(layers) => layers.host_events(),
            Self::FlightRecorder(layers) => layers.host_events(),
        }
    }

    /// Triggers on what these layers record in the clock of `recording`; none is armed yet. `load` tells the
    /// host's load, where that can be had.
    #[must_use]
    pub fn triggers(&self, recording: &Recording, load: Option<HostLoad>) -> Triggers {
        let (consequence, tails) = match self {
            Self::Streaming(_) => (Consequence::Mark, Vec::new()),
            Self::FlightRecorder(layers) => (Consequence::Snapshot, layers.tails()),
        };
        let host = SchemaTable::new(&self.host_events());
        Triggers::new(consequence, host, tails, load, recording.manifest.clock.frequency_hz)
    }

    /// What the host does for the VM's vCPUs, by the records of its kernel; `None` where these are not among the
    /// layers.
    pub fn watch(&mut self, recording: &Recording) -> Option<Watched> {
        let vm = recording.manifest.vm(&recording.vm)?;
        let (clock, time) = (&recording.manifest.clock, recording.clocks.time());
        match self {
            Self::Streaming(layers) => Some(layers.host.as_mut()?.watch(vm, clock, time)),
            Self::FlightRecorder(layers) => Some(layers.host()?.watch(vm, clock, time)),
        }
    }

    /// What the guest's tasks wait for, by the records of its kernel; `None` where these are not among the layers.
    pub fn watch_guest(&mut self, recording: &Recording) -> Option<LiveGuest> {
        let (clock, time) = (&recording.manifest.clock, recording.clocks.time());
        match self {
            Self::Streaming(layers) => Some(layers.guest_kernel.as_mut()?.watch(clock, time)),
            Self::FlightRecorder(layers) => layers.watch_guest(clock, time),
        }
    }

    /// Other records of the guest's kernel are made from now on than so far.
    pub fn forget_guest(&mut self) {
        match self {
            Self::Streaming(layers) => layers.guest_kernel.iter_mut().for_each(WrittenLayer::forget_guest),
            Self::FlightRecorder(layers) => layers.forget_guest(),
        }
    }

    /// What is missing of layers that ended early since the last call; the others go on.
    pub fn ends(&mut self) -> Vec<Missing> {
        match self {
            Self::Streaming(layers) => layers.ends(),
            Self::FlightRecorder(layers) => layers.ends(),
        }
    }

    /// What the user is to know of layers that go on, a line each: that they met their limits since the last call, or
    /// would not outlive this process any more.
    pub fn notices(&mut self) -> Vec<String> {
        match self {
            Self::Streaming(layers) => layers.limits_met(),
            Self::FlightRecorder(layers) => layers.notices(),
        }
    }

    /// The events of the guest's kernel that are registered so far.
    #[must_use]
    pub fn kernel_events(&self) -> &[EventDescription] {
        match self {
            Self::Streaming(layers) => layers.kernel_events(),
            Self::FlightRecorder(layers) => layers.kernel_events(),
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

    /// Takes what stopped producers have left, and stops the host's layer; adds what is missing of that to the
    /// manifest. `triggers` are shown what is new.
    pub fn stop(&mut self, recording: &mut Recording, triggers: Option<&mut Triggers>) {
        let missing = match self {
            Self::Streaming(layers) => layers.stop(recording, triggers),
            Self::FlightRecorder(layers) => layers.stop(recording, triggers),
        };
        recording.manifest.missing.extend(missing);
    }

    /// Writes everything that is left into the recording's folder, if it has one, and adds what is missing to the
    /// manifest. The layers were [stopped](Self::stop) before. Of a flight recorder, all that there is is written now: that
    /// something of it could not be is returned, too.
    pub fn finish(&mut self, recording: &mut Recording) -> (Vec<Layer>, Option<WriteError>) {
        let mut failure = None;
        let (missing, layers) = match self {
            Self::Streaming(streaming) => (streaming.finish(recording), streaming.layers()),
            Self::FlightRecorder(recorder) => {
                let mut missing = Vec::new();
                let stopped = Producers::Stopped;
                let written = recording
                    .dir
                    .as_ref()
                    .map(|dir| recorder.write(recording, stopped, None, dir, &recording.manifest));
                let WrittenLayers { layers, failures } = written.unwrap_or_default();
                missing.extend(failures.iter().map(|(kind, error)| ends_early(*kind, error)));
                missing.extend(recorder.missing_processes());
                failure = failures.into_iter().next().map(|(_, error)| error);
                (missing, layers)
            }
        };
        recording.manifest.missing.extend(missing);
        recording.manifest.missing.extend(recording.missing_at_end());
        (layers, failure)
    }
}
