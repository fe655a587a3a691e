//! `/dev/strata`: mapping what the host tells everyone, and this process's own slot.
#![allow(unsafe_code)] // Mapping shared memory.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use shared_ring::layout::{
    ABI_VERSION, CLOCK_OFFSET, MAGIC, PAGE_SIZE, SESSION_SLOT_SIZE, SESSION_SLOTS, SESSION_TABLE_OFFSET, SessionSlot,
    Superblock,
};
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
    /// It cannot be opened.
    #[error("cannot open {DEVICE}")]
    Open(#[source] std::io::Error),
    /// The kernel refused to map the host's part.
    #[error("cannot map the trace region's settings")]
    MapHostArea(#[source] std::io::Error),
    /// The kernel module and this library have different layouts.
    #[error("the trace region has another version than this program: build both from the same strata")]
    OtherVersion,
    /// Every process slot is in use.
    #[error("every process slot of the trace region is in use")]
    NoSlot,
    /// The user's processes have as many slots as one user gets.
    #[error("this user's processes have as many process slots of the trace region as one user gets")]
    OverQuota,
    /// The process has its slot already.
    #[error("this process has mapped its slot of the trace region already")]
    HasSlot,
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
    fn new(device: &OwnedFd, offset: u64, size: usize, access: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), size, access, MapFlags::SHARED, device, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, size })
    }

    /// Address of the first byte.
    pub(crate) const fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
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

/// Maps what the host tells everyone, read-only. A child made by `fork` has the mapping too.
pub(crate) fn map_host_area() -> Result<Mapping, DeviceError> {
    let file = open()?;
    let map = |size| {
        Mapping::new(&file, HOST_AREA, size, ProtFlags::READ).map_err(|error| DeviceError::MapHostArea(error.into()))
    };
    let superblock = read_superblock(&map(PAGE_SIZE)?);
    if superblock.magic != MAGIC || superblock.abi_version >> 16 != ABI_VERSION >> 16 {
        return Err(DeviceError::OtherVersion);
    }
    let size = usize::try_from(superblock.guest_writable_offset).map_err(|_| DeviceError::OtherVersion)?;
    if size < CLOCK_OFFSET {
        return Err(DeviceError::OtherVersion);
    }
    map(size)
}

/// Maps this process's own slot, which the kernel sets up now. `again` says that it was refused before. A child made by
/// `fork` does not have the mapping.
pub(crate) fn map_slot(host_area: &Mapping, again: bool) -> Result<Mapping, DeviceError> {
    let size = usize::try_from(read_superblock(host_area).process_stride).map_err(|_| DeviceError::OtherVersion)?;
    let offset = if again { SLOT_AGAIN } else { SLOT };
    Mapping::new(&open()?, offset, size, ProtFlags::READ | ProtFlags::WRITE).map_err(|error| match error {
        Errno::NOSPC => DeviceError::NoSlot,
        Errno::DQUOT => DeviceError::OverQuota,
        Errno::BUSY => DeviceError::HasSlot,
        other => DeviceError::MapSlot(other.into()),
    })
}

/// What the host says about the region.
pub(crate) fn read_superblock(host_area: &Mapping) -> Superblock {
    // SAFETY: the mapping is at least a page, page-aligned, and lives; any bytes are a superblock. The host may be
    // writing its state words: a volatile copy takes them as they are.
    unsafe { host_area.base().cast::<Superblock>().read_volatile() }
}

/// The settings of session `slot`.
///
/// # Panics
/// When there is no such slot.
pub(crate) fn read_session(host_area: &Mapping, slot: usize) -> SessionSlot {
    assert!(slot < SESSION_SLOTS);
    // SAFETY: `map_host_area` found the mapping to hold the whole session table; any bytes are a session, and the host
    // may be writing them: a volatile copy takes them as they are.
    unsafe {
        let at = host_area.base().add(SESSION_TABLE_OFFSET + slot * SESSION_SLOT_SIZE);
        at.cast::<SessionSlot>().read_volatile()
    }
}

/// The word at `offset` of the host's area; `None` when there is none.
pub(crate) fn read_word(host_area: &Mapping, offset: usize) -> Option<u64> {
    (offset.is_multiple_of(8) && offset.checked_add(8)? <= host_area.size()).then(|| {
        // SAFETY: an aligned word of the mapping (checked just above), which lives; the host writes it atomically.
        unsafe { host_area.base().add(offset).cast::<u64>().read_volatile() }
    })
}
