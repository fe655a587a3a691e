//! The guest's side of an attached recording: a region that the VM has as a device (`strata region create`).

use super::failure::AttachError;
use super::unplugging::Unplugging;
use super::vm::Look;
use shared_ring::layout::Mode;
use shared_ring::region::Rings;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use strata_clock::{EpochSink, HostTime};
use strata_recorder::region::region_file::RegionFile;
use strata_recorder::region::{MAIN_SESSION, TraceRegion};
use strata_recorder::selection::Selection;
use strata_recorder::session::Notify;
use strata_recorder::session::recording::{GuestSide, NO_AGENT, enabled_guest_events, epoch_sink};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Missing;
use uuid::Uuid;

/// How long the guest may take to let go of the rings of an earlier recording, or of this one. It looks ten times a second, but
/// attaching many events on a busy machine holds it up for seconds.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// After so long without the guest, a notice says that nothing comes from it.
pub const JOIN_LIMIT: Duration = Duration::from_secs(20);

/// The region that a VM's guest is recorded through, until this is dropped: then the guest learns that nobody reads it,
/// and a QEMU that was given it loses it.
#[derive(Debug)]
pub struct GuestRegion {
    pub region: Arc<TraceRegion>,
    /// The file that it lies in.
    pub file: PathBuf,
    rings: Rings,
    /// What takes it away from QEMU, if that was given it.
    plugged: Option<Unplugging>,
}

/// The file `path` of a region that process `pid` has as a device, fit for a recording in mode `mode` of the VM that `look` shows.
///
/// # Errors
/// It cannot be used for that.
pub fn open(path: &Path, pid: u32, mode: Mode, look: &Look) -> Result<RegionFile, AttachError> {
    let file = RegionFile::open(path)?;
    let config = file.config;
    if config.process_rings.mode != mode {
        return Err(AttachError::RegionMode { region: file.path, made_for: config.process_rings.mode.into() });
    }
    if look.vcpu_count() > config.vcpus {
        let (region, vcpus) = (file.path, config.vcpus);
        return Err(AttachError::FewVcpus { region, vcpus, needed: look.vcpu_count() });
    }
    if !file.is_mapped_by(pid) {
        return Err(AttachError::NotMapped { pid, region: file.path });
    }
    Ok(file)
}

/// Checks that times of the guest can be related to the host's clock, `time`, whose offsets KVM applies or not.
///
/// # Errors
/// They cannot.
pub fn check_clock(time: HostTime, offset_honoured: bool, look: &Look) -> Result<(), AttachError> {
    if time != HostTime::Tsc {
        return Err(AttachError::NoTsc);
    }
    match look.vcpus.iter().find(|vcpu| offset_honoured && vcpu.tsc.is_some_and(|tsc| tsc.is_scaled())) {
        Some(vcpu) => Err(AttachError::ScaledTsc { vcpu: vcpu.vcpu }),
        None => Ok(()),
    }
}

impl GuestRegion {
    /// Takes the region in `file`, from an earlier recording if there was one, for the clock `clock` of `frequency` Hz.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn take(file: RegionFile, clock: Uuid, frequency: u64, notify: Notify) -> Result<Self, AttachError> {
        let path = file.path.clone();
        // The kernel's rings as the region was made for them: `config` has them for each region.
        let rings = file.config.sessions[0].unwrap_or(file.config.process_rings);
        let region = Arc::new(TraceRegion::behind_device(file, clock, frequency)?);
        if !region.settle(RELEASE_LIMIT) {
            notify(&format!(
                "the guest has not let go of '{}' since an earlier recording (has it been reset, or is it paused?): taken from it",
                path.display()
            ));
        }
        Ok(Self { region, file: path, rings, plugged: None })
    }

    /// The same, which `plugged` takes away from QEMU behind it.
    pub(super) fn plugged_by(mut self, plugged: Option<Unplugging>) -> Self {
        self.plugged = plugged;
        self
    }

    /// Where new epochs of a vCPU's clock go: to the guest.
    #[must_use]
    pub fn epoch_sink(&self) -> EpochSink {
        epoch_sink(Arc::clone(&self.region), None)
    }

    /// Opens the session that records `selection`; the vCPUs' clocks are published already.
    ///
    /// # Errors
    /// The guest still writes to the rings.
    pub fn begin(&self, selection: &Selection) -> Result<GuestSide, AttachError> {
        let region = &self.region;
        region.open_session(0, MAIN_SESSION, self.rings)?;
        let registered = region.parts().kernel_registry().poll();
        region.set_enabled(0, &enabled_guest_events(&registered, selection));
        region.set_host_alive(true);
        Ok(GuestSide::new(Arc::clone(region), self.rings))
    }

    /// Tells the guest that nobody reads it any more, and takes it away from a QEMU that was given it, unless its VM has
    /// ended: whether that has lost it. If not, it is reported.
    pub(super) fn leave(mut self, has_vm_ended: bool) -> bool {
        let plugged = self.plugged.take();
        drop(self);
        match plugged {
            Some(plugged) if has_vm_ended => {
                plugged.forget();
                true
            }
            Some(plugged) => plugged.unplug(),
            None => true,
        }
    }

    /// Has the guest record no more, if it runs, so that what it has recorded can be read to its end.
    pub fn stop(&self) {
        self.region.end_sessions(RELEASE_LIMIT);
    }
}

impl Drop for GuestRegion {
    fn drop(&mut self) {
        self.region.end_sessions(Duration::ZERO);
        self.region.set_host_alive(false);
    }
}

/// The guest's layers, until its agent says hello.
pub fn missing_agent() -> impl Iterator<Item = Missing> {
    [LayerKind::GuestKernel, LayerKind::GuestUser].into_iter().map(|layer| Missing {
        layer,
        reason: NO_AGENT.into(),
        fix: "load the agent's kernel module in the guest (`modprobe strata`; `dmesg` says what is wrong)".into(),
    })
}
