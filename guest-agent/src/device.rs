//! `/dev/strata`: maps the host's area (superblock, sessions, clock) and a slot of this process's own.
#![allow(unsafe_code)] // Mapping shared memory.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use shared_ring::guest::HostArea;
use shared_ring::layout::PAGE_SIZE;
use shared_ring::storage::{Smp, Storage};
use shared_ring::view::{RegionView, ViewError};
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use thiserror::Error;

/// The device that the guest's kernel module offers.
pub const DEVICE: &str = "/dev/strata";

/// Offset in the device of the process's own slot.
const SLOT: u64 = 0;
/// Offset of the host's area.
const HOST_AREA: u64 = 1 << 32;
/// The slot once more, for a process that was refused one and counted before.
const SLOT_AGAIN: u64 = 2 << 32;

/// Why the device cannot be used.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The kernel module is not loaded.
    #[error("there is no {DEVICE}: this machine is not traced by strata, or its agent is not loaded")]
    Absent,
    /// The user may not use it.
    #[error("no permission to use {DEVICE}: it is for members of the group strata")]
    NoPermission,
    /// The device cannot be opened.
    #[error("cannot open {DEVICE}")]
    Open(#[source] std::io::Error),
    /// The kernel refused to map the host's part.
    #[error("cannot map the trace region's settings")]
    MapHostArea(#[source] std::io::Error),
    /// What the device maps is not a region that this library understands.
    #[error(transparent)]
    View(#[from] ViewError),
    /// Every process slot is in use.
    #[error("every process slot of the trace region is in use")]
    NoSlot,
    /// The user's processes have as many slots as one user gets.
    #[error("this user's processes have as many process slots of the trace region as one user gets")]
    OverQuota,
    /// The process has as many slots as one process gets.
    #[error(
        "this process has as many slots of the trace region as one gets: let fewer copies of the library record in it"
    )]
    HasSlots,
    /// The kernel refused to map the slot.
    #[error("cannot map this process's rings")]
    MapSlot(#[source] std::io::Error),
}

/// A mapped part of the region; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is memory of the whole process; what is done with it is up to its users.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(device: &OwnedFd, offset: u64, size: usize, access: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), size, access, MapFlags::SHARED, device, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, size })
    }

    /// Address of the first byte.
    pub(crate) const fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Size of the mapping, bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nobody uses it any more. Failure leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base().cast(), self.size) };
    }
}

fn open() -> Result<OwnedFd, DeviceError> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => DeviceError::Absent,
        Errno::ACCESS | Errno::PERM => DeviceError::NoPermission,
        other => DeviceError::Open(other.into()),
    })
}

/// What the host tells everyone, mapped read-only.
#[derive(Debug)]
pub(crate) struct MappedHostArea {
    mapping: Mapping,
    area: HostArea,
}

impl MappedHostArea {
    /// What it says.
    pub(crate) const fn area(&self) -> &HostArea {
        &self.area
    }

    /// Address of the first byte.
    pub(crate) const fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    /// Bytes.
    pub(crate) const fn size(&self) -> usize {
        self.mapping.size()
    }
}

/// Maps what the host tells everyone, read-only. A child made by `fork` has the mapping too.
pub(crate) fn map_host_area() -> Result<MappedHostArea, DeviceError> {
    let file = open()?;
    let map = |size| {
        Mapping::new(&file, HOST_AREA, size, ProtFlags::READ).map_err(|error| DeviceError::MapHostArea(error.into()))
    };
    // How large the region is, only the superblock tells; the kernel module maps no more than a process may see.
    let page = map(PAGE_SIZE)?;
    // SAFETY: the superblock lies in the mapped page, which is aligned; nothing is written.
    let view = RegionView::read(|offset| unsafe { Smp::new(page.base()).load(offset) }, u64::MAX)?;
    let mapping = map(view.host_area_size())?;
    // SAFETY: the mapping has the size that the view says, and lives beside the area; nothing is written.
    let area = unsafe { HostArea::new(Smp::new(mapping.base()), view) };
    Ok(MappedHostArea { mapping, area })
}

/// Maps a slot of this process's own, which the kernel sets up now. `again` says that it was refused before. A child made by
/// `fork` does not have the mapping.
pub(crate) fn map_slot(host_area: &MappedHostArea, again: bool) -> Result<Mapping, DeviceError> {
    let size = host_area.area().view().process_slot_size();
    let offset = if again { SLOT_AGAIN } else { SLOT };
    Mapping::new(&open()?, offset, size, ProtFlags::READ | ProtFlags::WRITE).map_err(|error| match error {
        Errno::NOSPC => DeviceError::NoSlot,
        Errno::DQUOT => DeviceError::OverQuota,
        Errno::BUSY => DeviceError::HasSlots,
        other => DeviceError::MapSlot(other.into()),
    })
}
