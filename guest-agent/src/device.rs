//! `/dev/strata`: mapping what the host tells everyone, and this process's own slot.
#![allow(unsafe_code)] // Mapping shared memory.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use shared_ring::layout::{ABI_VERSION, MAGIC, PAGE_SIZE, Superblock};
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use thiserror::Error;

/// The device that the guest's kernel module offers.
pub const DEVICE: &str = "/dev/strata";

/// Offset of the host's area in the device; the process's own slot is at 0.
const HOST_AREA: u64 = 1 << 32;

/// Why the device cannot be used.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The kernel module is not loaded.
    #[error("there is no {DEVICE}: this machine is not traced by strata, or its agent is not loaded")]
    Absent,
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

/// The open device. Mappings keep what they need of it when it is closed.
#[derive(Debug)]
pub(crate) struct Device {
    file: OwnedFd,
    host_area: Mapping,
}

impl Device {
    /// Opens the device and maps what the host tells everyone.
    pub(crate) fn open() -> Result<Self, DeviceError> {
        let file =
            rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| match error {
                Errno::NOENT | Errno::NXIO | Errno::NODEV => DeviceError::Absent,
                other => DeviceError::Open(other.into()),
            })?;
        let map = |size| {
            Mapping::new(&file, HOST_AREA, size, ProtFlags::READ)
                .map_err(|error| DeviceError::MapHostArea(error.into()))
        };
        let superblock = read_superblock(&map(PAGE_SIZE)?);
        if superblock.magic != MAGIC || superblock.abi_version >> 16 != ABI_VERSION >> 16 {
            return Err(DeviceError::OtherVersion);
        }
        let size = usize::try_from(superblock.guest_writable_offset).map_err(|_| DeviceError::OtherVersion)?;
        let host_area = map(size)?;
        Ok(Self { file, host_area })
    }

    /// What the host says about the region.
    pub(crate) fn superblock(&self) -> Superblock {
        read_superblock(&self.host_area)
    }

    /// The host's area, read-only.
    pub(crate) const fn host_area(&self) -> &Mapping {
        &self.host_area
    }

    /// Maps this process's own slot, which the kernel sets up at the first call, and closes the device. Returns the
    /// host's area and the slot.
    pub(crate) fn into_mappings(self) -> Result<(Mapping, Mapping), DeviceError> {
        let size = usize::try_from(self.superblock().process_stride).map_err(|_| DeviceError::OtherVersion)?;
        let slot =
            Mapping::new(&self.file, 0, size, ProtFlags::READ | ProtFlags::WRITE).map_err(|error| match error {
                Errno::NOSPC => DeviceError::NoSlot,
                other => DeviceError::MapSlot(other.into()),
            })?;
        Ok((self.host_area, slot))
    }
}

fn read_superblock(host_area: &Mapping) -> Superblock {
    // SAFETY: the mapping is at least a page, page-aligned, and lives; any bytes are a superblock. The host may be
    // writing its state words: a volatile copy takes them as they are.
    unsafe { host_area.base().cast::<Superblock>().read_volatile() }
}
