//! Snapshots of a flight recorder.

use super::{Session, SessionError};
use crate::layer::ring::Producers;
use crate::session::flight_recorder::{FlightRecorder, WrittenLayers};
use crate::session::layers::Layers;
use crate::session::recording::{Recording, RecordingError, note_threads};
use crate::trigger::Triggers;
use std::path::Path;
use strata_recording::clock_snapshots::{self, ClockLog};
use strata_recording::files::CLOCKS_FILE;
use strata_recording::files::trace_folder::TraceFolder;
use strata_recording::manifest::{Layer, Manifest, SNAPSHOT};
use strata_recording::writer::WriteError;

impl Session {
    /// Writes what a flight recorder holds to the new folder `dir`; tracing goes on. Returns the number of records.
    ///
    /// # Errors
    /// When the session is not a flight recorder, or `dir` cannot take a recording.
    pub fn snapshot(&mut self, dir: &Path) -> Result<u64, SessionError> {
        self.snapshot_as(dir, SNAPSHOT)
    }

    /// The same; its manifest has `outcome`, which begins with [`SNAPSHOT`].
    pub(super) fn snapshot_as(&mut self, dir: &Path, outcome: &str) -> Result<u64, SessionError> {
        let Layers::FlightRecorder(recorder) = &mut self.layers else {
            let dir = self.recording.dir.clone().unwrap_or_default();
            return Err(SessionError::NotFlightRecorder { name: self.name.clone(), dir });
        };
        if !dir.is_absolute() {
            return Err(SessionError::RelativePath(dir.into()));
        }
        let mut folder = TraceFolder::create(dir, self.recording.readers)?;
        self.recording.read_clocks(&mut self.clock_log);
        let mut triggers = self.triggers.as_mut().filter(|triggers| triggers.is_armed());
        recorder.poll(&self.recording, triggers.as_deref_mut());
        // Before the other layers, so that the vCPUs' periods cover the guest's records.
        let taken = self.at_snapshot.as_mut().map(|take| take(dir));
        let written = write_snapshot(recorder, &self.recording, &self.clock_log, triggers, dir, outcome);
        let completed = written.and_then(|manifest| match taken {
            Some(add) => add(manifest, None),
            None => Ok(manifest),
        });
        let manifest = completed.map_err(SessionError::NotWritten)?;
        folder.keep();
        let streams = manifest.layers.iter().flat_map(|layer| &layer.streams);
        Ok(streams.map(|stream| stream.records).fold(0, u64::saturating_add))
    }
}

fn write_snapshot(
    recorder: &mut FlightRecorder,
    recording: &Recording,
    clock_log: &ClockLog,
    triggers: Option<&mut Triggers>,
    dir: &Path,
    outcome: &str,
) -> Result<Manifest, RecordingError> {
    let mut manifest = recording.manifest.clone();
    manifest.outcome = Some(outcome.into());
    manifest.missing.extend(recording.missing_processes());
    note_threads(&mut manifest, &recording.vm, &recording.vcpu_threads);
    let crash_kernel_at = recording.crash_kernel_at();
    let WrittenLayers { mut layers, failures } =
        recorder.write(recording, Producers::Running, triggers, dir, &manifest);
    if let Some((_, error)) = failures.into_iter().next() {
        return Err(error.into());
    }
    Layer::note_crash_kernel(&mut layers, crash_kernel_at);
    manifest.layers = layers;
    // They were waited for with the layers.
    manifest.missing.extend(recording.missing_symbols());
    manifest.save(dir)?;
    clock_snapshots::write(clock_log.kept(), dir)
        .map_err(|source| WriteError::Write { path: dir.join(CLOCKS_FILE), source })?;
    Ok(manifest)
}
