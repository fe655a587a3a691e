//! Sizes of a VM's rings and registries.

use super::request::RunRequest;
use shared_ring::layout::{Geometry, Mode};
use shared_ring::region::{RegionConfig, Rings};
use strata_recorder::region::region_file::RegionShape;

/// The kernel's rings unless the user says otherwise: 16 sub-buffers of 128 KiB for each vCPU.
pub const KERNEL_RINGS: (u64, u32) = (128 << 10, 16);
/// Room for the kernel's rings of each session that is made while the VM runs: 16 MiB for each vCPU. It takes memory
/// only while there is a session, as much as that has asked for.
const EXTRA_RINGS: (u64, u32) = (128 << 10, 128);
/// A process's rings: 16 sub-buffers of 64 KiB for each vCPU.
const PROCESS_RINGS: (u64, u32) = (64 << 10, 16);
/// Processes that can record at the same time, unless the user says otherwise.
pub const PROCESS_SLOTS: u32 = 16;
/// The kernel's event registry, bytes.
const REGISTRY_SIZE: usize = 512 << 10;
/// A process's event registry, bytes.
const PROCESS_REGISTRY_SIZE: usize = 124 << 10;
/// The VMM's own rings: 16 sub-buffers of 64 KiB for each thread.
const VMM_RINGS: (u64, u32) = (64 << 10, 16);

/// The rings of the VMM layer in a recording in `mode`: a flight recorder should reach as far back in them as in the
/// guest kernel's.
pub(super) fn vmm_rings(request: &RunRequest, mode: Mode) -> Rings {
    let geometry = match mode {
        Mode::Discard => geometry(VMM_RINGS),
        Mode::FlightRecorder => request.geometry,
    };
    Rings { geometry, mode }
}

/// What a region for a VM of another VMM's is made for, with `kernel_rings` (bytes and number of sub-buffers) in mode `mode`.
pub(crate) const fn foreign_region(
    vcpus: u32,
    process_slots: u32,
    mode: Mode,
    kernel_rings: (u64, u32),
) -> RegionShape {
    RegionShape {
        vcpus,
        process_slots,
        mode,
        kernel_rings,
        process_rings: PROCESS_RINGS,
        registry_size: REGISTRY_SIZE,
        process_registry_size: PROCESS_REGISTRY_SIZE,
    }
}

/// What the trace region of `request` has room for, where the session that the VM is started with has these `rings` of
/// the guest's kernel.
pub(super) fn region_config(request: &RunRequest, rings: Rings) -> RegionConfig {
    let extra = Some(Rings { geometry: geometry(EXTRA_RINGS), mode: Mode::FlightRecorder });
    RegionConfig {
        vcpus: request.cpus,
        sessions: [Some(rings), extra, extra, extra],
        process_rings: Rings { geometry: geometry(PROCESS_RINGS), mode: rings.mode },
        process_slots: request.process_slots,
        registry_size: REGISTRY_SIZE,
        process_registry_size: PROCESS_REGISTRY_SIZE,
    }
}

#[allow(clippy::expect_used, reason = "the constants of this module are powers of two within the layout's limits")]
fn geometry((sub_buffer_size, sub_buffers): (u64, u32)) -> Geometry {
    Geometry::new(sub_buffer_size, sub_buffers).expect("ring geometry is within the layout's limits")
}
