//! Discard mode: every layer is drained into the trace folder while the machine runs.

use super::facts::Facts;
use super::guest_processes::GuestProcesses;
use super::host_layer::HostLayer;
use super::ring_layer::{Drained, Producers, RingLayer};
use shared_ring::event::EventDescription;
use std::time::{Duration, Instant};
use trace_merge::session::{Layer, LayerKind, Missing};
use trace_merge::writer::WriteError;

/// How long a flush waits for the guest's CPUs.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);
/// Most looks in a row at layers that have something new each time.
pub const MAX_LOOKS: usize = 256;
/// How long it waits between two looks.
const FLUSH_PAUSE: Duration = Duration::from_millis(5);

/// The layers of a recording in discard mode.
pub struct Streaming {
    /// The host's kernel, if it is traced.
    pub host: Option<HostLayer>,
    /// The monitor.
    pub vmm: Option<RingLayer>,
    /// The guest's kernel.
    pub guest_kernel: RingLayer,
    /// The guest's processes, if this recording has them.
    pub processes: Option<GuestProcesses>,
}

/// What a look at all layers found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Something was there: look again at once.
    pub busy: bool,
    /// `session.json` has something new to say.
    pub news: bool,
    /// The guest's kernel has registered event types.
    pub new_kernel_events: bool,
}

/// Takes what is in the rings of `layer`, whose producers are the guest's or stop with it.
fn take(layer: &mut RingLayer, guest: Producers, latest: u64) -> Result<Drained, WriteError> {
    match guest {
        Producers::Running => layer.drain(guest, latest),
        Producers::Stopped => layer.finish(latest),
    }
}

impl Streaming {
    /// One look at every layer: first the guest's, then those that tell when the vCPUs were in the guest, so that a trace
    /// that is read while it grows has the periods of its guest records.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn drain(&mut self, facts: &Facts, guest: Producers) -> Result<Looked, WriteError> {
        let looked = self.drain_guest(facts, guest)?;
        let busy = self.drain_host(facts, guest)?;
        Ok(Looked { busy: looked.busy || busy, ..looked })
    }

    fn drain_guest(&mut self, facts: &Facts, guest: Producers) -> Result<Looked, WriteError> {
        let latest = facts.latest();
        let kernel = take(&mut self.guest_kernel, guest, latest)?;
        let processes = self.processes.as_mut();
        let (process_packets, process_news) =
            processes.map_or(Ok((0, false)), |processes| processes.drain(&facts.dir, &facts.session, guest, latest))?;
        Ok(Looked {
            busy: kernel.packets + process_packets > 0,
            news: kernel.new_events > 0 || process_news,
            new_kernel_events: kernel.new_events > 0,
        })
    }

    /// The monitor and the host's kernel; says whether there may be more.
    fn drain_host(&mut self, facts: &Facts, guest: Producers) -> Result<bool, WriteError> {
        let latest = facts.latest();
        let vmm = self.vmm.as_mut().map_or(Ok(0), |vmm| take(vmm, guest, latest).map(|drained| drained.packets))?;
        let host = self.host.as_mut().map_or(Ok(false), HostLayer::drain)?;
        Ok(vmm > 0 || host)
    }

    /// Has every ring deliver what it holds, and writes it; `flush_monitor` does so for the monitor's. `false` when a CPU of
    /// the guest did not answer in time.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn flush(&mut self, facts: &Facts, flush_monitor: impl FnOnce()) -> Result<bool, WriteError> {
        let requests = self.guest_kernel.request_flush();
        for layer in self.processes.iter_mut().flat_map(GuestProcesses::running) {
            // A process honours it with its next sub-buffer or flush, and is not waited for.
            layer.request_flush();
        }
        let begun = Instant::now();
        let mut flushed = self.guest_kernel.is_flushed(&requests);
        while !flushed && begun.elapsed() < FLUSH_LIMIT {
            std::thread::sleep(FLUSH_PAUSE);
            self.drain(facts, Producers::Running)?;
            flushed = self.guest_kernel.is_flushed(&requests);
        }
        self.drain_guest(facts, Producers::Running)?;
        flush_monitor();
        for _ in 0..MAX_LOOKS {
            if !self.drain_host(facts, Producers::Running)? {
                break;
            }
        }
        if let Some(host) = &mut self.host {
            host.flush()?;
        }
        Ok(flushed)
    }

    /// Takes what stopped producers have left, and returns what is missing.
    ///
    /// # Errors
    /// When a layer cannot be written.
    pub fn finish(&mut self, facts: &Facts) -> Result<Vec<Missing>, WriteError> {
        self.drain(facts, Producers::Stopped)?;
        self.host.as_mut().map_or(Ok(Vec::new()), HostLayer::finish)
    }

    /// What `session.json` says about the layers.
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
