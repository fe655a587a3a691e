//! Discard mode: every layer is drained into the trace folder while the machine runs.

use super::guest_processes::GuestProcesses;
use super::host_layer::HostLayer;
use super::polling::{MAX_POLLS, Polled};
use super::recording::Recording;
use super::ring_layer::{Drained, Producers, RingLayer};
use shared_ring::event::EventDescription;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trace_merge::manifest::{Layer, LayerKind, Missing};
use trace_merge::writer::WriteError;

/// How long a flush waits for the guest's CPUs.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);
/// Pause between two polls of a flush.
const FLUSH_PAUSE: Duration = Duration::from_millis(5);

/// The layers of a recording in discard mode.
pub struct Streaming {
    /// Folder of the recording.
    pub dir: PathBuf,
    /// The host's kernel, if it is traced.
    pub host: Option<HostLayer>,
    /// The VMM.
    pub vmm: Option<RingLayer>,
    /// The guest's kernel.
    pub guest_kernel: RingLayer,
    /// The guest's processes, if this recording has them.
    pub processes: Option<GuestProcesses>,
}

/// Drains `layer`, whose producers are the guest's or stop with it.
fn drain_layer(layer: &mut RingLayer, guest: Producers, latest: u64) -> Result<Drained, WriteError> {
    match guest {
        Producers::Running => layer.drain(guest, latest),
        Producers::Stopped => layer.finish(latest),
    }
}

impl Streaming {
    /// Drains every layer once: the guest's first, then those that say when the vCPUs were in the guest. So a trace that is
    /// read while it grows has the periods of its guest records.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn drain(&mut self, recording: &Recording, guest: Producers) -> Result<Polled, WriteError> {
        let polled = self.drain_guest(recording, guest)?;
        let more = self.drain_host(recording, guest)?;
        Ok(Polled { more: polled.more || more, ..polled })
    }

    fn drain_guest(&mut self, recording: &Recording, guest: Producers) -> Result<Polled, WriteError> {
        let latest = recording.latest();
        let kernel = drain_layer(&mut self.guest_kernel, guest, latest)?;
        let processes = self.processes.as_mut();
        let (process_packets, processes_changed) = processes
            .map_or(Ok((0, false)), |processes| processes.drain(&self.dir, &recording.manifest, guest, latest))?;
        Ok(Polled {
            more: kernel.packets + process_packets > 0,
            manifest_changed: kernel.new_events > 0 || processes_changed,
            new_kernel_events: kernel.new_events > 0,
        })
    }

    /// Drains the VMM and the host's kernel; says whether there may be more.
    fn drain_host(&mut self, recording: &Recording, guest: Producers) -> Result<bool, WriteError> {
        let latest = recording.latest();
        let vmm =
            self.vmm.as_mut().map_or(Ok(0), |vmm| drain_layer(vmm, guest, latest).map(|drained| drained.packets))?;
        let host = self.host.as_mut().map_or(Ok(false), HostLayer::drain)?;
        Ok(vmm > 0 || host)
    }

    /// Has every ring deliver what it holds, and writes it; `flush_vmm` has the VMM's rings do so. `false` when a CPU of the
    /// guest did not answer in time.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn flush(&mut self, recording: &Recording, flush_vmm: impl FnOnce()) -> Result<bool, WriteError> {
        let requests = self.guest_kernel.request_flush();
        for layer in self.processes.iter_mut().flat_map(GuestProcesses::running) {
            // A process honours the request with its next sub-buffer or flush; nobody waits for it.
            layer.request_flush();
        }
        let begun = Instant::now();
        let mut flushed = self.guest_kernel.is_flushed(&requests);
        while !flushed && begun.elapsed() < FLUSH_LIMIT {
            std::thread::sleep(FLUSH_PAUSE);
            self.drain(recording, Producers::Running)?;
            flushed = self.guest_kernel.is_flushed(&requests);
        }
        self.drain_guest(recording, Producers::Running)?;
        flush_vmm();
        for _ in 0..MAX_POLLS {
            if !self.drain_host(recording, Producers::Running)? {
                break;
            }
        }
        if let Some(host) = &mut self.host {
            host.flush()?;
        }
        Ok(flushed)
    }

    /// Drains what stopped producers have left, and returns what is missing.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn finish(&mut self, recording: &Recording) -> Result<Vec<Missing>, WriteError> {
        self.drain(recording, Producers::Stopped)?;
        self.host.as_mut().map_or(Ok(Vec::new()), HostLayer::finish)
    }

    /// The layers as the manifest describes them.
    #[must_use]
    pub fn layers(&self) -> Vec<Layer> {
        let host = self.host.as_ref().map(HostLayer::layer);
        let vmm = self.vmm.as_ref().map(RingLayer::layer);
        let processes = self.processes.iter().flat_map(GuestProcesses::layers);
        host.into_iter().chain(vmm).chain([self.guest_kernel.layer()]).chain(processes).collect()
    }

    /// Event types of the guest's kernel.
    #[must_use]
    pub fn kernel_events(&self) -> Vec<EventDescription> {
        debug_assert_eq!(self.guest_kernel.writer().kind(), LayerKind::GuestKernel);
        self.guest_kernel.layer().events
    }

    /// Processes that were not recorded because there were too many.
    #[must_use]
    pub fn refused_processes(&self) -> u64 {
        self.processes.as_ref().map_or(0, GuestProcesses::refused)
    }
}
