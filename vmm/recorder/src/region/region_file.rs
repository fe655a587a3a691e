//! The file of a region that another VMM's guest sees behind a device (`ivshmem-plain`, `virtio-pmem`): made before the VM
//! starts, taken by whoever records it.
//!
//! The device shows the guest the first bytes of the file, a power of two of them. One page follows: what the region was laid
//! out for. So nobody has to read it from where the guest could have changed it, where the VMM can be told how much of the
//! file it is to show. Firecracker cannot: its guests may write what they like there, too, and what is read from it is bounded by
//! the size of the file, and has to fit it.

use crate::process_files;
use crate::region::cut_file::CutFile;
use crate::region::mapped_file::{MappedFileError, check_room, map_all, map_existing, no_room, reserve};
use rustix::fs::{FlockOperation, OFlags, flock, major, minor};
use serde::{Deserialize, Serialize};
use shared_ring::host::{HostError, Region};
use shared_ring::layout::{ABI_VERSION, Geometry, Mode, PAGE_SIZE};
use shared_ring::region::{LayoutError, RegionConfig, RegionLayout, Rings};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// What the last page begins with.
const MAGIC: [u8; 8] = *b"STRATAF\x01";
/// Smallest region, bytes: what persistent memory is counted in; libvirt takes half of it.
const MIN_SIZE: u64 = 2 << 20;
/// Most that is read of what a process maps, bytes: as many mappings as the kernel allows it (65530, unless somebody has
/// raised `vm.max_map_count`), with paths of usual length.
const MAX_MAPS: u64 = 8 << 20;

/// Why a region's file cannot be made or used.
#[derive(Debug, Error)]
pub enum RegionFileError {
    /// Something is there already.
    #[error("'{}' exists already: a running VM may have it, so delete it yourself, or choose another name", .0.display())]
    Exists(PathBuf),
    /// The file cannot be made, opened, read or written.
    #[error("cannot use '{}' as the file of a trace region", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The region would be too large.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The size that was requested is too small.
    #[error("{size} bytes are too small for what the region is to hold: leave the size out, or give {needed} or more")]
    TooSmall {
        /// Bytes that were requested.
        size: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// No device has such a size.
    #[error("the size of the device must be a power of two, 2M or more: {needed} bytes are enough here")]
    NotAPowerOfTwo {
        /// Bytes that are needed.
        needed: u64,
    },
    /// There is no memory for it.
    #[error(transparent)]
    Memory(#[from] MappedFileError),
    /// The region does not take what is written to it.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The file holds something else.
    #[error("'{}' is not the file of a trace region: make one with `strata region create`", .0.display())]
    NotARegion(PathBuf),
    /// It belongs to another version of strata.
    #[error(
        "the trace region in '{}' has version {}.{}, this strata has {}.x: make a new one with `strata region create`, and \
         start the VM with it",
        path.display(), .found >> 16, .found & 0xffff, ABI_VERSION >> 16
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// `major << 16 | minor`.
        found: u32,
    },
    /// Somebody records into it.
    #[error("'{}' is in use by another strata: one recording at a time (`strata ps` lists them)", .0.display())]
    InUse(PathBuf),
}

/// What a region is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionShape {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Number of processes that can record at the same time.
    pub process_slots: u32,
    /// What rings do when they are full.
    pub mode: Mode,
    /// Size in bytes, and number, of the sub-buffers of the kernel's rings.
    pub kernel_rings: (u64, u32),
    /// The same of a process's rings.
    pub process_rings: (u64, u32),
    /// The kernel's event registry, bytes.
    pub registry_size: usize,
    /// A process's event registry, bytes.
    pub process_registry_size: usize,
}

/// The last page.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    abi_version: u32,
    /// Bytes that the device shows.
    size: u64,
    shape: RegionShape,
}

impl RegionShape {
    /// The kernel's rings of the first session; `None` when they cannot be.
    fn kernel(&self) -> Option<Rings> {
        let (size, count) = self.kernel_rings;
        Some(Rings { geometry: Geometry::new(size, count).ok()?, mode: self.mode })
    }

    /// What the region has room for; `None` when there are no such rings. Sessions that are made later have room for rings of
    /// the first one's size, in either mode.
    #[must_use]
    pub fn config(&self) -> Option<RegionConfig> {
        let kernel = self.kernel()?;
        let extra = Some(Rings { mode: Mode::FlightRecorder, ..kernel });
        let (size, count) = self.process_rings;
        Some(RegionConfig {
            vcpus: self.vcpus,
            sessions: [Some(kernel), extra, extra, extra],
            process_rings: Rings { geometry: Geometry::new(size, count).ok()?, mode: self.mode },
            process_slots: self.process_slots,
            registry_size: self.registry_size,
            process_registry_size: self.process_registry_size,
        })
    }
}

/// The file of a region, held by this process alone while it is there.
#[derive(Debug)]
pub struct RegionFile {
    /// The file.
    pub file: File,
    /// Where it is, absolute.
    pub path: PathBuf,
    /// What the region is made for.
    pub config: RegionConfig,
    /// Bytes that the device shows.
    pub size: u64,
}

/// Makes the file `path` of a region of `shape`, which is private to this user: all of its memory set aside, the superblock in
/// it. `size` is that of the device, bytes; without it, the smallest that will do. Returns the device's size.
///
/// # Errors
/// There is a file already, the region is too large or `size` is not a size for it, or there is no room. No file is left.
pub fn create(path: &Path, shape: RegionShape, size: Option<u64>) -> Result<u64, RegionFileError> {
    let config = shape.config().ok_or_else(|| RegionFileError::NotARegion(path.into()))?;
    let layout = RegionLayout::new(config)?;
    let needed = (layout.size as u64).next_power_of_two().max(MIN_SIZE);
    let size = size.unwrap_or(needed);
    if size < layout.size as u64 {
        return Err(RegionFileError::TooSmall { size, needed });
    }
    if !size.is_power_of_two() || size < MIN_SIZE {
        return Err(RegionFileError::NotAPowerOfTwo { needed });
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => RegionFileError::Exists(path.into()),
        _ => RegionFileError::Io { path: path.into(), source },
    })?;
    fill(&file, path, &Description { abi_version: ABI_VERSION, size, shape }, layout).inspect_err(|_| {
        // The error that is reported says more than one about this.
        let _ = fs::remove_file(path);
    })?;
    Ok(size)
}

fn fill(file: &File, path: &Path, description: &Description, layout: RegionLayout) -> Result<(), RegionFileError> {
    let failed = |source| RegionFileError::Io { path: path.into(), source };
    let size = to_usize(description.size);
    let whole = size + PAGE_SIZE;
    check_room(file, whole)?;
    let mapping = Arc::new(map_all(file, whole).map_err(failed)?);
    reserve(file, 0..whole).map_err(|source| no_room(file, whole, source))?;
    let memory = crate::region::mapped_file::memory_of(mapping, size);
    Region::create(memory, layout, [0; 16], 0)?;
    let mut page = MAGIC.to_vec();
    page.extend(serde_json::to_vec(description).map_err(|error| failed(error.into()))?);
    file.write_all_at(&page, description.size).map_err(failed)
}

/// Whether the file `path` says of itself that it is a region; it is neither locked nor changed.
#[must_use]
pub fn is_region(path: &Path) -> bool {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits() | OFlags::NONBLOCK.bits()).unwrap_or_default();
    let begins = || {
        let file = OpenOptions::new().read(true).custom_flags(no_follow).open(path).ok()?;
        let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
        let mut begin = [0; MAGIC.len()];
        file.read_exact_at(&mut begin, metadata.len().checked_sub(PAGE_SIZE as u64)?).ok()?;
        Some(begin == MAGIC)
    };
    begins().unwrap_or(false)
}

impl RegionFile {
    /// The region's file `path`, which nobody else records into while it is open.
    ///
    /// # Errors
    /// It is not such a file, is of another version, or is in use.
    pub fn open(path: &Path) -> Result<Self, RegionFileError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let failed = |source| RegionFileError::Io { path: path.clone(), source };
        let no_follow = i32::try_from(OFlags::NOFOLLOW.bits() | OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = OpenOptions::new().read(true).write(true).custom_flags(no_follow).open(&path).map_err(failed)?;
        let not_a_region = || RegionFileError::NotARegion(path.clone());
        let metadata = file.metadata().map_err(failed)?;
        let size =
            metadata.len().checked_sub(PAGE_SIZE as u64).filter(|_| metadata.is_file()).ok_or_else(not_a_region)?;
        let mut page = [0; PAGE_SIZE];
        file.read_exact_at(&mut page, size).map_err(failed)?;
        let text = page.strip_prefix(&MAGIC).ok_or_else(not_a_region)?;
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        // What another version describes may look otherwise: its number comes first.
        let version = serde_json::from_slice::<serde_json::Value>(&text[..end]).ok();
        let version =
            version.and_then(|text| u32::try_from(text["abi_version"].as_u64()?).ok()).ok_or_else(not_a_region)?;
        if version >> 16 != ABI_VERSION >> 16 {
            return Err(RegionFileError::OtherVersion { path, found: version });
        }
        let description: Description = serde_json::from_slice(&text[..end]).map_err(|_| not_a_region())?;
        let config = description.shape.config().filter(|_| description.size == size).ok_or_else(not_a_region)?;
        let layout = RegionLayout::new(config)?;
        if layout.size as u64 > size {
            return Err(not_a_region());
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| RegionFileError::InUse(path.clone()))?;
        Ok(Self { file, path, config, size })
    }

    /// Whether process `pid` maps the file: as memory of a device, if it is QEMU.
    #[must_use]
    pub fn is_mapped_by(&self, pid: u32) -> bool {
        let (Ok(metadata), Ok(maps)) = (self.file.metadata(), process_files::maps(pid, MAX_MAPS)) else { return false };
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        is_mapped(&maps, metadata.dev(), metadata.ino(), &path)
    }

    /// Its memory as far as the device shows it, mapped.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn map(&self) -> Result<Arc<CutFile>, RegionFileError> {
        let mapped = map_existing(&self.file, to_usize(self.size)).and_then(CutFile::watch);
        Ok(Arc::new(mapped.map_err(|source| RegionFileError::Io { path: self.path.clone(), source })?))
    }
}

/// Whether `maps`, the contents of `/proc/PID/maps`, show the file `inode` of `device`, which lies at `path`.
fn is_mapped(maps: &str, device: u64, inode: u64, path: &Path) -> bool {
    let device = format!("{:02x}:{:02x}", major(device), minor(device));
    let (inode, path) = (inode.to_string(), format!(" {}", path.display()));
    maps.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (its_device, its_inode) = (fields.next(), fields.next());
        // On Btrfs, a file's device is that of its subvolume, and its mappings' that of the whole file system.
        its_inode == Some(inode.as_str()) && (its_device == Some(device.as_str()) || line.ends_with(&path))
    })
}

#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
const fn to_usize(size: u64) -> usize {
    size as usize
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::fs::makedev;
    use shared_ring::layout;
    use std::os::unix::fs::PermissionsExt;

    pub const SHAPE: RegionShape = RegionShape {
        vcpus: 2,
        process_slots: 2,
        mode: Mode::Discard,
        kernel_rings: (4096, 4),
        process_rings: (4096, 2),
        registry_size: 4096,
        process_registry_size: 4096,
    };

    fn made(shape: RegionShape) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        create(&path, shape, None).unwrap();
        (folder, path)
    }

    fn refusal(path: &Path, size: Option<u64>) -> String {
        create(path, SHAPE, size).unwrap_err().to_string()
    }

    #[test]
    fn file_is_private_reserved_and_begins_with_the_superblock() {
        let (_folder, path) = made(SHAPE);

        let metadata = fs::metadata(&path).unwrap();
        let found = RegionFile::open(&path).unwrap();

        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert!(found.size.is_power_of_two() && metadata.blocks() * 512 >= found.size);
        assert_eq!(Some(found.config), SHAPE.config());
        assert_eq!(found.map().unwrap().memory().load(0), layout::MAGIC);
        assert!(!found.is_mapped_by(1));
    }

    #[test]
    fn file_is_a_region_also_while_it_is_in_use() {
        let (folder, path) = made(SHAPE);
        let _in_use = RegionFile::open(&path).unwrap();
        let other = folder.path().join("other");
        fs::write(&other, vec![0; 3 * PAGE_SIZE]).unwrap();

        assert!(is_region(&path));
        assert!(!is_region(&other) && !is_region(folder.path()) && !is_region(Path::new("/nonexistent")));
    }

    #[test]
    fn process_that_maps_the_file_is_recognised() {
        let (_folder, path) = made(SHAPE);
        let found = RegionFile::open(&path).unwrap();
        let before = found.is_mapped_by(std::process::id());
        let _memory = found.map().unwrap();

        assert_eq!((before, found.is_mapped_by(std::process::id())), (false, true));
    }

    #[test]
    fn file_in_a_subvolume_is_recognised_by_its_number_and_path() {
        let maps = "7f00-7f01 rw-s 00000000 00:1f 257                        /srv/vm/region\n";
        let is_shown = |device, inode, path: &str| is_mapped(maps, makedev(0, device), inode, Path::new(path));

        assert!(is_shown(0x1f, 257, "/elsewhere") && is_shown(0x2a, 257, "/srv/vm/region"));
        assert!(!is_shown(0x2a, 258, "/srv/vm/region") && !is_shown(0x2a, 257, "/vm/region"));
    }

    #[test]
    fn what_cannot_be_made_is_refused_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");

        let small = refusal(&path, Some(65536));
        let odd = refusal(&path, Some(3 << 20));
        let many = create(&path, RegionShape { vcpus: 257, ..SHAPE }, None).unwrap_err().to_string();
        let left = path.exists();
        create(&path, SHAPE, Some(4 << 20)).unwrap();
        let again = refusal(&path, None);

        assert!(
            small.contains("too small") && odd.contains("power of two") && many.contains("257 vCPUs"),
            "{small} {odd} {many}"
        );
        assert!(!left && again.contains("exists already"), "{again}");
    }

    #[test]
    fn file_that_somebody_records_into_is_refused() {
        let (_folder, path) = made(SHAPE);

        let first = RegionFile::open(&path).unwrap();
        let second = RegionFile::open(&path).unwrap_err().to_string();
        drop(first);

        assert!(second.contains("in use by another strata"), "{second}");
        assert!(RegionFile::open(&path).is_ok());
    }

    #[test]
    fn what_the_guest_writes_does_not_change_what_the_region_is_made_for() {
        let (_folder, path) = made(SHAPE);
        let memory = RegionFile::open(&path).unwrap().map().unwrap().memory();

        (0..memory.size()).step_by(8).for_each(|at| memory.store(at, u64::MAX));
        drop(memory);

        assert_eq!(Some(RegionFile::open(&path).unwrap().config), SHAPE.config());
    }

    #[test]
    fn description_that_does_not_fit_its_file_is_refused() {
        let shapes = [
            RegionShape { process_slots: 200, ..SHAPE },
            RegionShape { vcpus: u32::MAX, ..SHAPE },
            RegionShape { kernel_rings: (u64::MAX, 4), ..SHAPE },
            RegionShape { registry_size: usize::MAX, ..SHAPE },
        ];
        let (_folder, path) = made(SHAPE);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let size = file.metadata().unwrap().len() - PAGE_SIZE as u64;

        for shape in shapes {
            let description = Description { abi_version: ABI_VERSION, size, shape };
            let page = [&MAGIC[..], &serde_json::to_vec(&description).unwrap(), &[0; 64]].concat();
            file.write_all_at(&page, size).unwrap();

            assert!(RegionFile::open(&path).is_err(), "{shape:?}");
        }
    }

    #[test]
    fn other_files_and_other_versions_are_refused() {
        let (folder, path) = made(SHAPE);
        let other = folder.path().join("other");
        fs::write(&other, vec![0; 8192]).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let at = file.metadata().unwrap().len() - PAGE_SIZE as u64;
        file.write_all_at(b"STRATAF\x01{\"abi_version\":196609}\0", at).unwrap();

        let foreign = RegionFile::open(&other).unwrap_err().to_string();
        let version = RegionFile::open(&path).unwrap_err().to_string();

        assert!(foreign.contains("is not the file of a trace region"), "{foreign}");
        assert!(version.contains("has version 3.1"), "{version}");
    }
}
