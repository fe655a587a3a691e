//! What one VM of a round is made of. The processes of a round get it as a file.

use crate::attack::Attack;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use shared_ring::layout::{Geometry, Mode};
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use std::fs;
use std::path::{Path, PathBuf};
use strata_recording::files::compression::Compression;
use strata_recording::layer::LayerKind;

/// vCPUs of each VM.
pub const VCPUS: u32 = 2;
/// The kernel's event registry, bytes.
const REGISTRY_SIZE: usize = 512 << 10;
/// A process's event registry, bytes.
const PROCESS_REGISTRY_SIZE: usize = 124 << 10;
/// Rings of the VMM layer: size (bytes) and number of sub-buffers.
const VMM_RINGS: (u64, u32) = (64 << 10, 16);
/// Room for rings of sessions that are made meanwhile.
const EXTRA_RINGS: (u64, u32) = (64 << 10, 8);

/// A VM of a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmSetup {
    pub name: String,
    /// Folder of its own for this round.
    pub folder: PathBuf,
    /// Where the folder with its region lies.
    pub runtime: PathBuf,
    /// Where its recording goes; not there yet.
    pub trace: PathBuf,
    /// Whether its rings overwrite their oldest records.
    pub flight_recorder: bool,
    /// Size (bytes) and number of sub-buffers of a ring of the kernel.
    pub kernel_rings: (u64, u32),
    /// The same of a process.
    pub process_rings: (u64, u32),
    /// Process slots.
    pub process_slots: u32,
    /// Size that the recording keeps within, bytes.
    pub max_size: Option<u64>,
    /// How the recording is compressed, if it is.
    pub compression: Option<Compression>,
    /// Limit of the records of each layer and each process, in a second.
    pub limit: Option<u64>,
    /// Limit of the recorder's open files.
    pub descriptors: u64,
    /// Records of an honest thread between two pauses, at most.
    pub burst: u64,
    /// Honest processes at a time; none where the guest's kernel is hostile.
    pub applications: usize,
    /// What hostile processes do; what the kernel does where it is hostile.
    pub attacks: Vec<Attack>,
    /// Whether the guest's kernel is hostile.
    pub hostile_kernel: bool,
    /// Where chance begins.
    pub seed: u64,
}

impl VmSetup {
    /// Reads what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Writes it to its folder; returns the file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self) -> anyhow::Result<PathBuf> {
        let path = self.folder.join("setup.json");
        fs::write(&path, serde_json::to_vec_pretty(self)?)?;
        Ok(path)
    }

    /// The file of the round's counts.
    #[must_use]
    pub fn tally(&self) -> PathBuf {
        self.folder.join("tally")
    }

    /// The mode of all rings.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        if self.flight_recorder { Mode::FlightRecorder } else { Mode::Discard }
    }

    /// Geometry and mode of the kernel's rings.
    ///
    /// # Errors
    /// When no ring can have them.
    pub fn kernel(&self) -> anyhow::Result<Rings> {
        rings(self.kernel_rings, self.mode())
    }

    /// Geometry and mode of the VMM's rings.
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn vmm(&self) -> anyhow::Result<Rings> {
        rings(VMM_RINGS, self.mode())
    }

    /// What the region has room for.
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn region(&self) -> anyhow::Result<RegionConfig> {
        let extra = Some(rings(EXTRA_RINGS, Mode::FlightRecorder)?);
        Ok(RegionConfig {
            vcpus: VCPUS,
            sessions: [Some(self.kernel()?), extra, None, None],
            process_rings: rings(self.process_rings, self.mode())?,
            process_slots: self.process_slots,
            registry_size: REGISTRY_SIZE,
            process_registry_size: PROCESS_REGISTRY_SIZE,
        })
    }

    /// Bytes of all rings of a layer, or of one process of it.
    #[must_use]
    pub fn rings_of(&self, layer: LayerKind) -> u64 {
        let ((size, count), rings) = match layer {
            LayerKind::Vmm => (VMM_RINGS, VCPUS + 1),
            LayerKind::GuestUser => (self.process_rings, VCPUS),
            LayerKind::GuestKernel | LayerKind::HostKernel => (self.kernel_rings, VCPUS),
        };
        size * u64::from(count) * u64::from(rings)
    }

    /// Where everything lies in the region.
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn layout(&self) -> anyhow::Result<RegionLayout> {
        Ok(RegionLayout::new(self.region()?)?)
    }
}

fn rings((size, count): (u64, u32), mode: Mode) -> anyhow::Result<Rings> {
    let geometry = Geometry::new(size, count).map_err(|error| anyhow::anyhow!("{size} bytes × {count}: {error:?}"))?;
    Ok(Rings { geometry, mode })
}
