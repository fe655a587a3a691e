//! What a machine is made of, and the checks that need neither KVM nor a guest.

pub(crate) mod boot_file;
pub(crate) mod disk_format;
pub(crate) mod image_lock;
pub(crate) mod network;

use super::memory::{HUGE_PAGE, MemoryBacking, PAGE_SIZE, SharedSlot};
use super::virtio::block::{DiskLimits, SECTOR_SIZE};
use super::virtio::vsock::socket::VsockSocket;
use crate::boot::cpuid::CpuExtras;
use crate::boot::loader::{CMDLINE_MAX, KernelFormat, KernelFormatError, kernel_format};
use crate::memory::layout;
use boot_file::BootFile;
use disk_format::DiskFormat;
use image_lock::LockHolder;
use network::{LinkError, NetConfig};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Least memory a guest may be given, bytes.
pub const MEMORY_MIN: u64 = 32 << 20;
/// Most vCPUs: APIC identifiers are eight bits wide and 255 means all of them.
pub const CPUS_MAX: u32 = 254;

/// A disk image to attach as a virtio block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Raw image: a regular file or a block device.
    pub path: PathBuf,
    /// Refuse writes by the guest.
    pub read_only: bool,
    /// Time by which each request to the disk's content takes longer than it has to: a slow disk, for experiments.
    pub delay: Duration,
    /// What the guest may do with it in a time.
    pub limits: DiskLimits,
    /// Lock the image, so that no other VM has it at once: alone, or together with others that only read it.
    pub lock: bool,
    /// The file's bytes are the disk's, whatever they look like; otherwise images of other formats are refused.
    pub is_raw: bool,
}

impl DiskConfig {
    /// The image at `path`, locked, to be written, as fast as it is.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            read_only: false,
            delay: Duration::ZERO,
            limits: DiskLimits::default(),
            lock: true,
            is_raw: false,
        }
    }

    /// Opens the image, locks it unless it is not to be locked, and tells its size in bytes.
    ///
    /// # Errors
    /// It cannot be a disk, or somebody else has it.
    pub fn open(&self) -> Result<(File, u64), ConfigError> {
        let path = || self.path.clone();
        let failed = |source: io::Error| {
            let hint = match source.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if !self.read_only => {
                    ": make it writable, or attach it read-only"
                }
                io::ErrorKind::NotFound => ": check the path",
                _ => "",
            };
            ConfigError::Disk { path: path(), hint, source }
        };
        let mut file =
            boot_file::open(&self.path, OpenOptions::new().read(true).write(!self.read_only)).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(ConfigError::DiskNotAFile { path: path() });
        }
        let format = if self.is_raw { None } else { DiskFormat::of(&file).map_err(failed)? };
        if let Some(format) = format {
            return Err(ConfigError::DiskFormat { path: path(), format });
        }
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if size == 0 {
            return Err(ConfigError::DiskEmpty { path: path() });
        }
        if !size.is_multiple_of(SECTOR_SIZE) {
            return Err(ConfigError::DiskSize { path: path(), size });
        }
        // Two writers, or a writer behind a reader's back, destroy a file system.
        if self.lock {
            image_lock::lock(&file, self.read_only)
                .map_err(|holder| ConfigError::DiskInUse { path: path(), holder })?;
        }
        Ok((file, size))
    }
}

/// The CPUID leaf by which a guest finds the trace region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryLeaf {
    /// ABI version of the trace region.
    pub abi_version: u32,
}

/// Everything a [`super::Machine`] is built from.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Kernel image: ELF `vmlinux` or bzImage.
    pub kernel: BootFile,
    /// Initial RAM file system, any format the kernel understands.
    pub initrd: Option<BootFile>,
    /// A cpio archive that follows the initrd (4-byte aligned), or stands alone without one. May be empty.
    pub initrd_overlay: Vec<u8>,
    /// Number of vCPUs.
    pub cpus: u32,
    /// Guest RAM, bytes.
    pub memory: u64,
    /// What it is made of.
    pub memory_backing: MemoryBacking,
    /// Disks, in the order in which the guest finds them.
    pub disks: Vec<DiskConfig>,
    /// Network devices, in the order in which the guest finds them.
    pub nets: Vec<NetConfig>,
    /// A source of random bytes for the guest.
    pub entropy: bool,
    /// A socket device, by its socket on the host.
    pub vsock: Option<Arc<VsockSocket>>,
    /// A balloon, by which the guest gives memory back while it runs; its RAM is of normal pages then.
    pub balloon: bool,
    /// The kernel command line, complete: devices are described by ACPI, nothing is appended.
    pub cmdline: String,
    /// The trace region, in slots.
    pub shared_slots: Vec<SharedSlot>,
    /// Tell the guest by CPUID where the shared slots are.
    pub discovery: Option<DiscoveryLeaf>,
    /// Guest TSC minus host TSC, ticks, for every vCPU; KVM's own choice (guest starts near 0) when absent.
    pub tsc_offset: Option<i64>,
    /// What the guest is given of the host's CPU beside the usual.
    pub cpu_extras: CpuExtras,
}

/// What the host can give to one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most vCPUs of a virtual machine (`KVM_CAP_MAX_VCPUS`).
    pub max_cpus: u32,
    /// Width of a guest-physical address, bits.
    pub physical_bits: u32,
    /// RAM of the host, bytes.
    pub host_memory: u64,
}

/// The files that a configuration names, opened and checked.
#[derive(Debug)]
pub struct Inputs {
    /// The kernel image.
    pub kernel: File,
    /// Format of the kernel image.
    pub kernel_format: KernelFormat,
    /// The initrd and its size in bytes.
    pub initrd: Option<(File, u64)>,
    /// One per disk: the image and its size in bytes.
    pub disks: Vec<(File, u64)>,
}

impl Limits {
    /// What can be known without KVM: no host gives more than this.
    #[must_use]
    pub fn without_kvm() -> Self {
        let info = rustix::system::sysinfo();
        Self {
            max_cpus: CPUS_MAX,
            physical_bits: 52,
            host_memory: info.totalram.saturating_mul(u64::from(info.mem_unit)),
        }
    }
}

/// Why a configuration cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The kernel image cannot be opened or read.
    #[error("cannot read the kernel image '{}': check the path and its permissions", path.display())]
    Kernel {
        /// Path of the file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel image has no format that the machine boots.
    #[error("'{}' is not a kernel: give an x86-64 ELF vmlinux or a bzImage", path.display())]
    KernelFormat {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: KernelFormatError,
    },
    /// The initrd cannot be opened.
    #[error("cannot read the initrd '{}': check the path and its permissions", path.display())]
    Initrd {
        /// Path of the file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The initrd is a folder, a device or the like.
    #[error("the initrd '{}' is not a regular file", path.display())]
    InitrdNotAFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// The initrd alone would fill guest memory.
    #[error(
        "the initrd ({size} bytes with its overlay) does not fit into {memory} bytes of guest memory: give the guest more memory or a smaller initrd"
    )]
    InitrdTooLarge {
        /// Bytes of the initrd, overlay included.
        size: u64,
        /// Guest memory, bytes.
        memory: u64,
    },
    /// A disk image cannot be opened.
    #[error("cannot open the disk image '{}'{}", path.display(), hint)]
    Disk {
        /// Path of the file.
        path: PathBuf,
        /// What to do, appended to the message; empty where nothing helps.
        hint: &'static str,
        #[source]
        source: io::Error,
    },
    /// A disk image is a folder, a pipe or the like.
    #[error("the disk image '{}' is neither a regular file nor a block device", path.display())]
    DiskNotAFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// A disk image ends inside a sector.
    #[error("the disk image '{}' has {size} bytes, which is not a multiple of 512: give a raw image, padded to whole sectors", path.display())]
    DiskSize {
        /// Path of the file.
        path: PathBuf,
        /// Bytes.
        size: u64,
    },
    /// A disk image is none byte for byte.
    #[error(
        "'{}' {}, or add ',format=raw' if the guest is to have these bytes as its disk",
        path.display(),
        format.way_out(path)
    )]
    DiskFormat {
        /// Path of the file.
        path: PathBuf,
        format: DiskFormat,
    },
    /// A disk image has no sector.
    #[error("the disk image '{}' is empty: create it with its full size first", path.display())]
    DiskEmpty {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another program has locked a disk image, or it was given twice and not read-only.
    #[error("the disk image '{}' {holder}", path.display())]
    DiskInUse {
        /// Path of the file.
        path: PathBuf,
        /// Who has locked it.
        holder: LockHolder,
    },
    /// There are not enough interrupts for the devices.
    #[error("{count} disks and other devices are too many: at most {max}")]
    TooManyDevices {
        /// How many were given.
        count: usize,
        /// Most that there can be.
        max: usize,
    },
    /// A network device has no link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The guest would have no vCPU.
    #[error("a guest needs at least one vCPU")]
    NoCpus,
    /// KVM or the machine takes fewer vCPUs.
    #[error("{cpus} vCPUs are too many: this host allows at most {max}")]
    TooManyCpus {
        /// How many were given.
        cpus: u32,
        /// Most that there can be.
        max: u32,
    },
    /// A kernel would not fit.
    #[error("{memory} bytes of guest memory are too little: give at least {min}")]
    MemoryTooSmall {
        /// Guest memory, bytes.
        memory: u64,
        /// Least that a guest needs, bytes.
        min: u64,
    },
    /// Guest memory is not made of whole pages.
    #[error("{memory} bytes of guest memory are not a multiple of {page}")]
    MemoryUnaligned {
        /// Bytes of a page.
        page: u64,
        /// Guest memory, bytes.
        memory: u64,
    },
    /// Huge pages that are reserved for the guest would not become anybody else's.
    #[error(
        "--balloon has no use with --memory-backing huge, whose pages stay reserved for the VM: leave out one of them"
    )]
    BalloonOfHugePages,
    /// More than the host has, or than a guest's processor can address.
    #[error("{memory} bytes of guest memory are more than this host can give: at most {max}")]
    MemoryTooLarge {
        /// Guest memory, bytes.
        memory: u64,
        /// Most that there can be, bytes.
        max: u64,
    },
    /// The boot protocol takes a shorter command line.
    #[error("the kernel command line has {length} bytes: at most {CMDLINE_MAX}")]
    CmdlineTooLong {
        /// Bytes of the command line.
        length: usize,
    },
    /// The kernel would take the NUL for the end.
    #[error("the kernel command line contains a NUL character")]
    CmdlineNul,
    /// A shared slot is not made of whole pages inside its mapping.
    #[error("shared slot {index} (offset {offset:#x}, {size:#x} bytes) is not made of whole pages inside its mapping")]
    SharedSlot {
        /// Index among the shared slots.
        index: usize,
        /// Where in the mapping it begins, bytes.
        offset: usize,
        /// Its size, bytes.
        size: usize,
    },
    /// CPUID is to announce a region that is not there.
    #[error("a discovery leaf needs at least one shared slot to point at")]
    DiscoveryWithoutSlots,
}

impl MachineConfig {
    /// How many virtio devices the machine has.
    #[must_use]
    pub fn virtio_devices(&self) -> usize {
        let others = [self.entropy, self.vsock.is_some(), self.balloon];
        self.disks.len() + self.nets.len() + others.into_iter().filter(|is_there| *is_there).count()
    }

    /// Bytes of all shared slots together.
    #[must_use]
    pub fn trace_region_size(&self) -> u64 {
        self.shared_slots.iter().map(|slot| slot.size as u64).sum()
    }

    /// Where the shared slots lie in the guest, if there are any.
    #[must_use]
    pub fn trace_region(&self) -> Option<layout::Range> {
        let size = self.trace_region_size();
        (size > 0).then(|| layout::Range { start: layout::trace_region_start(self.memory), size })
    }

    /// Checks every number against `limits`, without touching a file.
    ///
    /// # Errors
    /// The first value that cannot be run.
    pub fn check(&self, limits: &Limits) -> Result<(), ConfigError> {
        if self.cpus == 0 {
            return Err(ConfigError::NoCpus);
        }
        let max = limits.max_cpus.min(CPUS_MAX);
        if self.cpus > max {
            return Err(ConfigError::TooManyCpus { cpus: self.cpus, max });
        }
        self.check_memory(limits)?;
        let count = self.virtio_devices();
        if count > layout::VIRTIO_DEVICES_MAX {
            return Err(ConfigError::TooManyDevices { count, max: layout::VIRTIO_DEVICES_MAX });
        }
        if self.cmdline.len() > CMDLINE_MAX {
            return Err(ConfigError::CmdlineTooLong { length: self.cmdline.len() });
        }
        if self.cmdline.contains('\0') {
            return Err(ConfigError::CmdlineNul);
        }
        if self.discovery.is_some() && self.shared_slots.is_empty() {
            return Err(ConfigError::DiscoveryWithoutSlots);
        }
        self.shared_slots.iter().enumerate().try_for_each(|(index, slot)| check_slot(index, slot))
    }

    fn check_memory(&self, limits: &Limits) -> Result<(), ConfigError> {
        let memory = self.memory;
        if memory < MEMORY_MIN {
            return Err(ConfigError::MemoryTooSmall { memory, min: MEMORY_MIN });
        }
        let page = match self.memory_backing {
            MemoryBacking::Normal => PAGE_SIZE,
            MemoryBacking::Huge => HUGE_PAGE as u64,
        };
        if !memory.is_multiple_of(page) {
            return Err(ConfigError::MemoryUnaligned { memory, page });
        }
        if self.balloon && self.memory_backing == MemoryBacking::Huge {
            return Err(ConfigError::BalloonOfHugePages);
        }
        // Leave room for the hole and for the trace region at the top of the address space.
        let addressable = 1u64 << limits.physical_bits.clamp(33, 52);
        let reserved = self.trace_region_size().saturating_add(2 * layout::HOLE_END);
        let max = limits.host_memory.min(addressable.saturating_sub(reserved));
        if memory > max {
            return Err(ConfigError::MemoryTooLarge { memory, max });
        }
        Ok(())
    }

    /// Opens every file the configuration names and checks what can be known without loading it.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn open(&self) -> Result<Inputs, ConfigError> {
        let (kernel, kernel_format) = open_kernel(&self.kernel)?;
        let initrd = self.initrd.as_ref().map(open_initrd).transpose()?;
        let size = initrd.as_ref().map_or(0, |(_, size)| *size);
        let size = size.saturating_add(self.initrd_overlay.len() as u64);
        if size >= self.memory {
            return Err(ConfigError::InitrdTooLarge { size, memory: self.memory });
        }
        let disks = self.disks.iter().map(DiskConfig::open).collect::<Result<Vec<_>, _>>()?;
        self.nets.iter().try_for_each(NetConfig::check)?;
        Ok(Inputs { kernel, kernel_format, initrd, disks })
    }
}

fn check_slot(index: usize, slot: &SharedSlot) -> Result<(), ConfigError> {
    let SharedSlot { offset, size, .. } = *slot;
    let page = 4096;
    let whole = size > 0 && size.is_multiple_of(page) && offset.is_multiple_of(page);
    let inside = offset.checked_add(size).is_some_and(|end| end <= slot.mapping.len());
    if whole && inside { Ok(()) } else { Err(ConfigError::SharedSlot { index, offset, size }) }
}

fn open_kernel(kernel: &BootFile) -> Result<(File, KernelFormat), ConfigError> {
    let path = kernel.name();
    let failed = |source| ConfigError::Kernel { path: path.to_owned(), source };
    let mut file = kernel.open().map_err(failed)?;
    let mut head = Vec::new();
    file.by_ref().take(1024).read_to_end(&mut head).map_err(failed)?;
    file.rewind().map_err(failed)?;
    let format = kernel_format(&head).map_err(|source| ConfigError::KernelFormat { path: path.to_owned(), source })?;
    Ok((file, format))
}

fn open_initrd(initrd: &BootFile) -> Result<(File, u64), ConfigError> {
    let path = initrd.name();
    let failed = |source| ConfigError::Initrd { path: path.to_owned(), source };
    let file = initrd.open().map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(ConfigError::InitrdNotAFile { path: path.to_owned() });
    }
    Ok((file, metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::super::test_guest;
    use super::*;
    use memmap2::MmapRaw;
    use std::error::Error as _;
    use std::fs;
    use tempfile::TempDir;

    const LIMITS: Limits = Limits { max_cpus: 64, physical_bits: 40, host_memory: 8 << 30 };

    fn config(folder: &TempDir) -> MachineConfig {
        test_guest::config(folder, &[0xf4])
    }

    fn disk(folder: &TempDir, bytes: u64) -> DiskConfig {
        let path = folder.path().join("disk.img");
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        DiskConfig::new(path)
    }

    #[test]
    fn small_config_passes() {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);
        config.check(&LIMITS).unwrap();
        config.open().unwrap();
    }

    #[test]
    fn zero_cpus_are_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { cpus: 0, ..config(&folder) };
        assert!(matches!(config.check(&LIMITS), Err(ConfigError::NoCpus)));
    }

    #[test]
    fn more_cpus_than_the_host_allows_are_refused_with_the_limit() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { cpus: 65, ..config(&folder) };
        let message = config.check(&LIMITS).unwrap_err().to_string();
        assert_eq!(message, "65 vCPUs are too many: this host allows at most 64");
    }

    #[test]
    fn more_cpus_than_apic_identifiers_are_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { cpus: 255, ..config(&folder) };
        let limits = Limits { max_cpus: 4096, ..LIMITS };
        assert!(matches!(config.check(&limits), Err(ConfigError::TooManyCpus { max: CPUS_MAX, .. })));
    }

    #[test]
    fn balloon_of_huge_pages_is_refused_and_one_of_normal_pages_is_a_device() {
        let folder = TempDir::new().unwrap();
        let normal = MachineConfig { balloon: true, ..config(&folder) };
        let huge = MachineConfig { memory_backing: MemoryBacking::Huge, ..normal.clone() };

        let refused = huge.check(&LIMITS).unwrap_err().to_string();

        assert!(refused.starts_with("--balloon has no use with --memory-backing huge"), "{refused}");
        assert!(normal.check(&LIMITS).is_ok());
        assert_eq!(normal.virtio_devices(), 1);
    }

    #[test]
    fn too_little_memory_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { memory: 1 << 20, ..config(&folder) };
        assert!(matches!(config.check(&LIMITS), Err(ConfigError::MemoryTooSmall { .. })));
    }

    #[test]
    fn more_memory_than_the_host_has_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { memory: 9 << 30, ..config(&folder) };
        assert!(matches!(
            config.check(&LIMITS),
            Err(ConfigError::MemoryTooLarge { max, .. }) if max == 8 << 30
        ));
    }

    #[test]
    fn memory_beyond_the_address_width_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { memory: 1 << 36, ..config(&folder) };
        let limits = Limits { physical_bits: 36, host_memory: 1 << 40, ..LIMITS };
        assert!(matches!(config.check(&limits), Err(ConfigError::MemoryTooLarge { .. })));
    }

    #[test]
    fn memory_in_part_of_a_page_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { memory: (64 << 20) + 1, ..config(&folder) };
        assert!(matches!(config.check(&LIMITS), Err(ConfigError::MemoryUnaligned { .. })));
    }

    #[test]
    fn memory_of_huge_pages_is_made_of_whole_ones() {
        let folder = TempDir::new().unwrap();
        let config =
            |memory| MachineConfig { memory, memory_backing: MemoryBacking::Huge, ..config(&folder) }.check(&LIMITS);

        assert!(matches!(config(65 << 20), Err(ConfigError::MemoryUnaligned { .. })));
        assert!(config(66 << 20).is_ok());
    }

    #[test]
    fn command_line_beyond_the_protocol_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { cmdline: "x".repeat(2048), ..config(&folder) };
        assert!(matches!(config.check(&LIMITS), Err(ConfigError::CmdlineTooLong { length: 2048 })));
    }

    #[test]
    fn too_many_disks_are_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { disks: vec![disk(&folder, 512); 20], ..config(&folder) };
        assert!(matches!(config.check(&LIMITS), Err(ConfigError::TooManyDevices { .. })));
    }

    #[test]
    fn shared_slot_outside_its_mapping_is_refused() {
        let folder = TempDir::new().unwrap();
        let mapping = Arc::new(MmapRaw::from(memmap2::MmapMut::map_anon(8192).unwrap()));
        let slot = SharedSlot { mapping, offset: 4096, size: 8192, read_only: false };
        let config = MachineConfig { shared_slots: vec![slot], ..config(&folder) };
        assert!(matches!(config.check(&LIMITS), Err(ConfigError::SharedSlot { index: 0, .. })));
    }

    #[test]
    fn missing_kernel_is_named() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { kernel: folder.path().join("absent").into(), ..config(&folder) };
        let error = config.open().unwrap_err();
        assert!(error.to_string().contains("/absent'"), "{error}");
        assert!(error.source().unwrap().to_string().contains("No such file"));
    }

    #[test]
    fn kernel_that_is_a_folder_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { kernel: folder.path().to_owned().into(), ..config(&folder) };
        assert!(matches!(config.open(), Err(ConfigError::Kernel { .. })));
    }

    #[test]
    fn kernel_that_is_neither_elf_nor_bzimage_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);
        fs::write(config.kernel.name(), "#!/bin/sh\n").unwrap();
        assert!(matches!(config.open(), Err(ConfigError::KernelFormat { .. })));
    }

    #[test]
    fn missing_initrd_is_named() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { initrd: Some(folder.path().join("absent").into()), ..config(&folder) };
        assert!(config.open().unwrap_err().to_string().contains("/absent'"));
    }

    #[test]
    fn initrd_larger_than_memory_is_refused() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("initrd");
        fs::File::create(&path).unwrap().set_len(65 << 20).unwrap();
        let config = MachineConfig { initrd: Some(path.into()), ..config(&folder) };
        assert!(matches!(config.open(), Err(ConfigError::InitrdTooLarge { .. })));
    }

    #[test]
    fn missing_disk_is_named() {
        let folder = TempDir::new().unwrap();
        let absent = DiskConfig { read_only: true, ..DiskConfig::new(folder.path().join("absent")) };
        let config = MachineConfig { disks: vec![absent], ..config(&folder) };
        assert!(config.open().unwrap_err().to_string().ends_with("/absent': check the path"));
    }

    #[test]
    fn disk_with_part_of_a_sector_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { disks: vec![disk(&folder, 1000)], ..config(&folder) };
        assert!(matches!(config.open(), Err(ConfigError::DiskSize { size: 1000, .. })));
    }

    #[test]
    fn disk_of_another_format_is_refused_unless_its_option_says_raw() {
        let folder = TempDir::new().unwrap();
        let disk = disk(&folder, 1000);
        fs::write(&disk.path, [&b"QFI\xfb"[..], &[0; 508]].concat()).unwrap();
        let config = |is_raw| MachineConfig { disks: vec![DiskConfig { is_raw, ..disk.clone() }], ..config(&folder) };

        let (looked_at, raw) = (config(false).open(), config(true).open());

        let error = looked_at.unwrap_err().to_string();
        assert!(error.contains("is a qcow2 image: make a raw one with `qemu-img convert -O raw "), "{error}");
        assert!(error.contains("',format=raw'"), "{error}");
        assert_eq!(raw.unwrap().disks.len(), 1);
    }

    #[test]
    fn empty_disk_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { disks: vec![disk(&folder, 0)], ..config(&folder) };
        assert!(matches!(config.open(), Err(ConfigError::DiskEmpty { .. })));
    }

    #[test]
    fn disk_that_is_a_folder_is_refused() {
        let folder = TempDir::new().unwrap();
        let disk = DiskConfig { read_only: true, ..DiskConfig::new(folder.path()) };
        let config = MachineConfig { disks: vec![disk], ..config(&folder) };
        assert!(matches!(config.open(), Err(ConfigError::DiskNotAFile { .. })));
    }

    #[test]
    fn disk_given_twice_is_refused() {
        let folder = TempDir::new().unwrap();
        let config = MachineConfig { disks: vec![disk(&folder, 512); 2], ..config(&folder) };
        assert!(matches!(config.open(), Err(ConfigError::DiskInUse { holder: LockHolder::Ourselves, .. })));
    }

    #[test]
    fn disk_that_somebody_else_has_locked_can_be_had_without_a_lock() {
        let folder = TempDir::new().unwrap();
        let disk = disk(&folder, 512);
        let somebody = File::open(&disk.path).unwrap();
        somebody.lock().unwrap();
        let config = |lock| MachineConfig { disks: vec![DiskConfig { lock, ..disk.clone() }], ..config(&folder) };

        let (locked, unlocked) = (config(true).open(), config(false).open());

        assert!(matches!(locked, Err(ConfigError::DiskInUse { .. })), "{locked:?}");
        assert_eq!(unlocked.unwrap().disks.len(), 1);
    }

    #[test]
    fn read_only_disk_may_be_shared() {
        let folder = TempDir::new().unwrap();
        let disk = DiskConfig { read_only: true, ..disk(&folder, 512) };
        let config = MachineConfig { disks: vec![disk.clone(), disk], ..config(&folder) };
        assert_eq!(config.open().unwrap().disks.len(), 2);
    }

    #[test]
    fn fifo_in_place_of_a_file_is_not_waited_for() {
        let folder = TempDir::new().unwrap();
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let disk = DiskConfig { read_only: true, ..DiskConfig::new(&fifo) };

        let kernel = MachineConfig { kernel: fifo.clone().into(), ..config(&folder) }.open();
        let initrd = MachineConfig { initrd: Some(fifo.into()), ..config(&folder) }.open();
        let disk = MachineConfig { disks: vec![disk], ..config(&folder) }.open();

        assert!(matches!(kernel, Err(ConfigError::KernelFormat { .. } | ConfigError::Kernel { .. })), "{kernel:?}");
        assert!(matches!(initrd, Err(ConfigError::InitrdNotAFile { .. })), "{initrd:?}");
        assert!(matches!(disk, Err(ConfigError::DiskNotAFile { .. })), "{disk:?}");
    }
}
