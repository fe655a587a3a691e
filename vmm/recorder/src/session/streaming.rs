//! Discard mode: every layer is drained into the trace folder while the machine runs.

use crate::drain::polling::{Found, MAX_POLLS};
use crate::layer::guest_processes::GuestProcesses;
use crate::layer::host::HostLayer;
use crate::layer::ring::Producers;
use crate::layer::written::WrittenLayer;
use crate::session::recording::Recording;
use crate::trigger::Triggers;
use crate::trigger::watch::Watch;
use shared_ring::event::EventDescription;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Missing};

/// Pause between two polls of a flush.
const FLUSH_PAUSE: Duration = Duration::from_millis(5);

/// The layers of a recording in discard mode.
pub struct Streaming {
    /// Folder of the recording.
    pub dir: PathBuf,
    /// The host's kernel, if it is traced.
    pub host: Option<HostLayer>,
    /// The VMM.
    pub vmm: Option<WrittenLayer>,
    /// The guest's kernel, if this process runs the VM.
    pub guest_kernel: Option<WrittenLayer>,
    /// The guest's processes, if this recording has them.
    pub processes: Option<GuestProcesses>,
}

/// What is watched for in `layer`, if anything is.
fn watch_of(triggers: Option<&mut Triggers>, layer: LayerKind) -> Option<&mut Watch> {
    triggers.filter(|triggers| triggers.looks_at(layer)).map(Triggers::watch)
}

impl Streaming {
    /// Drains every layer once: the guest's first, then those that say when the vCPUs were in the guest. So a trace that is
    /// read while it grows has the periods of its guest records. A layer that cannot be written ends: see
    /// [`ends`](Self::ends). `triggers` are shown what is new.
    pub fn drain(&mut self, recording: &Recording, guest: Producers, mut triggers: Option<&mut Triggers>) -> Found {
        let of_guest = self.drain_guest(recording, guest, triggers.as_deref_mut());
        of_guest.max(self.drain_host(recording, guest, triggers))
    }

    /// Whether a drain can wait, since there is room wherever something is recorded.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        let mut rings = self.vmm.iter().chain(&self.guest_kernel);
        rings.all(WrittenLayer::can_wait)
            && self.processes.as_ref().is_none_or(GuestProcesses::can_wait)
            && self.host.as_ref().is_none_or(HostLayer::can_wait)
    }

    fn drain_guest(&mut self, recording: &Recording, guest: Producers, mut triggers: Option<&mut Triggers>) -> Found {
        let latest = &|| recording.latest();
        let watch = watch_of(triggers.as_deref_mut(), LayerKind::GuestKernel);
        let kernel = self.guest_kernel.as_mut().map(|kernel| kernel.drain(guest, latest, watch)).unwrap_or_default();
        let watch = watch_of(triggers, LayerKind::GuestUser);
        let processes = self.processes.as_mut();
        let of_processes =
            processes.map(|processes| processes.drain(&self.dir, &recording.manifest, guest, latest, watch));
        kernel.found.max(of_processes.unwrap_or_default())
    }

    /// Drains the VMM and the host's kernel; says how much there was.
    fn drain_host(&mut self, recording: &Recording, guest: Producers, mut triggers: Option<&mut Triggers>) -> Found {
        let latest = &|| recording.latest();
        let watch = watch_of(triggers.as_deref_mut(), LayerKind::Vmm);
        let vmm = self.vmm.as_mut().map(|vmm| vmm.drain(guest, latest, watch).found).unwrap_or_default();
        let host = self.host.as_mut().map(|host| host.drain(triggers)).unwrap_or_default();
        vmm.max(host)
    }

    /// Event types of the host's kernel.
    #[must_use]
    pub fn host_events(&self) -> Vec<EventDescription> {
        self.host.as_ref().map(HostLayer::events).unwrap_or_default()
    }

    /// What is missing of layers that ended early since the last call.
    pub fn ends(&mut self) -> Vec<Missing> {
        let rings = self.vmm.iter_mut().chain(&mut self.guest_kernel).filter_map(WrittenLayer::report_end);
        let ends: Vec<_> = rings.collect();
        let processes = self.processes.iter_mut().filter_map(GuestProcesses::report_end);
        ends.into_iter().chain(processes).chain(self.host.iter_mut().filter_map(HostLayer::report_end)).collect()
    }

    /// Layers that have met their limits since the last call, a line for each.
    pub fn limits_met(&mut self) -> Vec<String> {
        let rings = self.vmm.iter_mut().chain(&mut self.guest_kernel).filter_map(WrittenLayer::report_limit);
        let met: Vec<_> = rings.collect();
        let processes = self.processes.iter_mut().filter_map(GuestProcesses::report_limit);
        met.into_iter().chain(processes).chain(self.host.iter_mut().filter_map(HostLayer::report_limit)).collect()
    }

    /// Asks the guest to deliver what its rings hold. Returns the requests that [`flush`](Self::flush) waits for.
    pub fn request_flush(&mut self) -> Vec<u64> {
        for layer in self.processes.iter_mut().flat_map(GuestProcesses::running) {
            // A process honours the request with its next sub-buffer or flush; nobody waits for it.
            layer.request_flush();
        }
        self.guest_kernel.as_mut().map(WrittenLayer::request_flush).unwrap_or_default()
    }

    /// Writes what the rings of the guest deliver at its `requests`, until `deadline`, and what the other layers hold;
    /// `flush_vmm` has the VMM's rings deliver it. `false` when a CPU of the guest did not answer in time.
    pub fn flush(
        &mut self,
        recording: &Recording,
        (requests, deadline): (&[u64], Instant),
        mut triggers: Option<&mut Triggers>,
        flush_vmm: impl FnOnce(),
    ) -> bool {
        let mut flushed = self.is_flushed(requests);
        while !flushed && Instant::now() < deadline {
            // Each time: a sub-buffer may have been opened while the guest looked.
            recording.guest.iter().for_each(|guest| guest.region.ring_doorbell());
            std::thread::sleep(FLUSH_PAUSE);
            self.drain(recording, Producers::Running, triggers.as_deref_mut());
            flushed = self.is_flushed(requests);
        }
        // What was requested is written, also of layers that are held back.
        let processes = self.processes.iter_mut().flat_map(GuestProcesses::running);
        let rings = self.vmm.iter_mut().chain(&mut self.guest_kernel).chain(processes);
        rings.for_each(WrittenLayer::lift_limit);
        self.drain_guest(recording, Producers::Running, triggers.as_deref_mut());
        flush_vmm();
        for _ in 0..MAX_POLLS {
            if !self.drain_host(recording, Producers::Running, triggers.as_deref_mut()).has_more() {
                break;
            }
        }
        if let Some(host) = &mut self.host {
            host.flush();
        }
        flushed
    }

    /// Whether the CPUs of the guest's kernel have honoured `requests`.
    fn is_flushed(&self, requests: &[u64]) -> bool {
        self.guest_kernel.as_ref().is_none_or(|kernel| kernel.is_flushed(requests))
    }

    /// Drains what stopped producers have left, and stops the host's layer; returns what is missing of that. `triggers`
    /// are shown what is new. Only the VMM, which may have a mark to make, can still record.
    pub fn stop(&mut self, recording: &Recording, mut triggers: Option<&mut Triggers>) -> Vec<Missing> {
        if let Some(kernel) = &mut self.guest_kernel {
            kernel.set_vcpus(recording.vcpus());
        }
        self.drain_guest(recording, Producers::Stopped, triggers.as_deref_mut());
        self.vmm.iter_mut().for_each(WrittenLayer::lift_limit);
        self.drain_host(recording, Producers::Running, triggers.as_deref_mut());
        self.host.as_mut().map(|host| host.finish(triggers)).unwrap_or_default()
    }

    /// Drains what the VMM has left, and returns what is missing that was not told yet.
    pub fn finish(&mut self, recording: &Recording) -> Vec<Missing> {
        let latest = &|| recording.latest();
        if let Some(vmm) = &mut self.vmm {
            vmm.drain(Producers::Stopped, latest, None);
        }
        self.host.iter().for_each(HostLayer::save_symbols);
        if let (Some(kernel), Some(symbols)) = (&self.guest_kernel, recording.symbols(&mut || {})) {
            kernel.save_symbols(symbols);
        }
        let mut missing = self.ends();
        missing.extend(self.processes.iter().flat_map(GuestProcesses::missing));
        missing
    }

    /// The layers as the manifest describes them.
    #[must_use]
    pub fn layers(&self) -> Vec<Layer> {
        let host = self.host.as_ref().map(HostLayer::layer);
        let vmm = self.vmm.as_ref().map(WrittenLayer::layer);
        let processes = self.processes.iter().flat_map(GuestProcesses::layers);
        let kernel = self.guest_kernel.as_ref().map(WrittenLayer::layer);
        host.into_iter().chain(vmm).chain(kernel).chain(processes).collect()
    }

    /// Event types of the guest's kernel.
    #[must_use]
    pub fn kernel_events(&self) -> &[EventDescription] {
        self.guest_kernel.as_ref().map_or(&[], WrittenLayer::events)
    }
}
