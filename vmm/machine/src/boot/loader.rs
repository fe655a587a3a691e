//! Puts kernel, initrd, command line and boot parameters into guest memory by Linux's 64-bit boot protocol.
//!
//! Reference: `Documentation/arch/x86/boot.rst` of the Linux kernel.

use crate::memory::layout;
use crate::memory::layout::{MemoryKind, Range};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::{self, KernelLoader};
use std::fs::File;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// `type_of_loader`: no number is assigned to this boot loader.
const LOADER_UNDEFINED: u8 = 0xff;
/// `boot_flag` of the setup header.
const BOOT_FLAG: u16 = 0xaa55;
/// `header` of the setup header: "HdrS".
const HEADER_MAGIC: u32 = 0x5372_6448;
/// Boot protocol 2.12: the first with `xloadflags`, hence with a documented 64-bit entry point.
const PROTOCOL_64_BIT: u16 = 0x020c;
/// The 64-bit entry point of a bzImage, from where its protected-mode part is loaded.
const BZIMAGE_ENTRY_64: u64 = 0x200;
/// Alignment of an ELF kernel, as the setup header says it.
const KERNEL_ALIGNMENT: u32 = 0x0100_0000;
/// Longest kernel command line, bytes, without its terminating NUL (`COMMAND_LINE_SIZE - 1` on x86).
pub const CMDLINE_MAX: usize = 2047;
/// Bytes from which [`kernel_format`] recognises every format.
const HEAD_SIZE: usize = 0x264;

/// Formats of kernel images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFormat {
    /// ELF, `vmlinux`.
    Elf,
    /// Compressed with its own decompressor, `bzImage`.
    BzImage,
}

/// Why a file is not a kernel for this machine.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelFormatError {
    /// Neither an ELF magic nor a setup header.
    #[error("it begins like neither of them")]
    Unknown,
    /// ELF of another word size, byte order or processor.
    #[error("it is an ELF file, but not a 64-bit little-endian one for x86-64")]
    ElfMachine,
    /// ELF of another type, such as an object file.
    #[error("it is an ELF file, but not an executable")]
    ElfType,
    /// A bzImage before boot protocol 2.12, or of a 32-bit kernel.
    #[error("it is a bzImage without a 64-bit entry point")]
    No64BitEntry,
}

/// Recognises a kernel by its first bytes (at least 612 of them, fewer if the file is shorter).
///
/// # Errors
/// The file is not a kernel for this machine.
pub fn kernel_format(head: &[u8]) -> Result<KernelFormat, KernelFormatError> {
    if head.starts_with(b"\x7fELF") {
        return elf_format(head);
    }
    if head.len() < HEAD_SIZE || head[0x202..0x206] != HEADER_MAGIC.to_le_bytes() {
        return Err(KernelFormatError::Unknown);
    }
    let version = u16::from_le_bytes([head[0x206], head[0x207]]);
    let xloadflags = u16::from_le_bytes([head[0x236], head[0x237]]);
    if version < PROTOCOL_64_BIT || xloadflags & loader::bootparam::XLF_KERNEL_64 == 0 {
        return Err(KernelFormatError::No64BitEntry);
    }
    Ok(KernelFormat::BzImage)
}

fn elf_format(head: &[u8]) -> Result<KernelFormat, KernelFormatError> {
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    const EXECUTABLE: u16 = 2;
    const SHARED: u16 = 3;
    const X86_64: u16 = 62;
    if head.len() < 64 || head[4] != CLASS_64 || head[5] != LITTLE_ENDIAN {
        return Err(KernelFormatError::ElfMachine);
    }
    if u16::from_le_bytes([head[18], head[19]]) != X86_64 {
        return Err(KernelFormatError::ElfMachine);
    }
    // A relocatable kernel may be linked as a shared object.
    match u16::from_le_bytes([head[16], head[17]]) {
        EXECUTABLE | SHARED => Ok(KernelFormat::Elf),
        _ => Err(KernelFormatError::ElfType),
    }
}

/// Why the guest could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The image cannot be loaded.
    #[error("cannot load the kernel image: it is damaged, or does not fit into {memory} bytes of guest memory")]
    Kernel {
        /// RAM of the guest, bytes.
        memory: u64,
        /// What the loader met.
        #[source]
        source: loader::Error,
    },
    /// The kernel would reach beyond the memory below the hole.
    #[error("the kernel needs memory up to {end:#x}, but the guest has {memory} bytes: give it more memory")]
    KernelDoesNotFit {
        /// First guest-physical address above what the kernel needs.
        end: u64,
        /// RAM of the guest, bytes.
        memory: u64,
    },
    /// Nothing was loaded where the kernel is to be entered.
    #[error("the kernel's entry point {entry:#x} lies outside the image")]
    Entry {
        /// Guest-physical address of the entry point.
        entry: u64,
    },
    /// No room is left for the initrd.
    #[error(
        "the initrd ({size} bytes with its overlay) does not fit beside the kernel into {memory} bytes of guest memory: give the guest more memory or a smaller initrd"
    )]
    InitrdDoesNotFit {
        /// Bytes, overlay included.
        size: u64,
        /// RAM of the guest, bytes.
        memory: u64,
    },
    /// The initrd became shorter, or cannot be read.
    #[error("cannot read the initrd into guest memory")]
    Initrd(#[source] vm_memory::GuestMemoryError),
    /// This kernel takes a shorter command line than the boot protocol allows.
    #[error("the kernel accepts a command line of {max} bytes, not {length}")]
    Cmdline {
        /// Bytes of the command line.
        length: usize,
        /// Most that the kernel takes, bytes.
        max: u32,
    },
    /// Boot parameters, command line or tables lie outside guest memory.
    #[error("cannot write the boot data into guest memory")]
    BootData(#[source] vm_memory::GuestMemoryError),
    /// The guest has more ranges of memory than the zero page holds.
    #[error("the memory map has {entries} entries, more than the boot protocol holds")]
    MemoryMap {
        /// Entries of the map.
        entries: usize,
    },
}

/// A kernel in guest memory.
#[derive(Clone, Copy, Debug)]
pub struct LoadedKernel {
    /// Guest-physical address of the 64-bit entry point.
    pub entry: u64,
    /// First address above everything the kernel uses before it has read the memory map.
    pub end: u64,
    /// The setup header of a bzImage.
    pub header: Option<setup_header>,
}

/// Loads the kernel into `memory`, whose size is `size` bytes.
///
/// # Errors
/// The image is damaged or needs more memory than there is.
pub fn load_kernel(
    memory: &GuestMemoryMmap,
    size: u64,
    file: &mut File,
    format: KernelFormat,
) -> Result<LoadedKernel, LoadError> {
    let high = Some(GuestAddress(layout::HIGH_RAM_START));
    let loaded = match format {
        KernelFormat::Elf => loader::Elf::load(memory, None, file, high),
        KernelFormat::BzImage => loader::BzImage::load(memory, None, file, high),
    }
    .map_err(|source| LoadError::Kernel { memory: size, source })?;
    let start = loaded.kernel_load.0;
    let kernel = match loaded.setup_header {
        None => LoadedKernel { entry: start, end: loaded.kernel_end, header: None },
        Some(header) => LoadedKernel {
            entry: start + BZIMAGE_ENTRY_64,
            // The decompressor works from the preferred address on, if that is higher.
            end: start.max(header.pref_address).saturating_add(u64::from(header.init_size)).max(loaded.kernel_end),
            header: Some(header),
        },
    };
    if kernel.end > size.min(layout::HOLE_START) {
        return Err(LoadError::KernelDoesNotFit { end: kernel.end, memory: size });
    }
    if kernel.entry >= kernel.end {
        return Err(LoadError::Entry { entry: kernel.entry });
    }
    Ok(kernel)
}

/// Where an initrd of `size` bytes goes: as high as kernel and memory allow, in whole pages.
fn place_initrd(kernel: &LoadedKernel, memory: u64, size: u64) -> Result<u64, LoadError> {
    let limit = kernel.header.map_or(u64::MAX, |header| u64::from(header.initrd_addr_max) + 1);
    let top = memory.min(layout::HOLE_START).min(limit);
    top.checked_sub(size)
        .map(|start| start & !0xfff)
        .filter(|start| *start >= kernel.end)
        .ok_or(LoadError::InitrdDoesNotFit { size, memory })
}

/// Where an archive begins that is appended to an initrd of so many bytes. The kernel wants it at a multiple of four, and
/// skips zeros before it. Four of them end a frame of LZ4, whose reader would take the archive for its next block.
#[must_use]
pub const fn overlay_offset(initrd_size: u64) -> u64 {
    if initrd_size == 0 { 0 } else { (initrd_size + 4).next_multiple_of(4) }
}

/// Loads the initrd and its overlay and says where they are; `None` if there is nothing to load.
///
/// # Errors
/// There is no room, or the file cannot be read.
pub fn load_initrd(
    memory: &GuestMemoryMmap,
    memory_size: u64,
    kernel: &LoadedKernel,
    initrd: Option<(File, u64)>,
    overlay: &[u8],
) -> Result<Option<Range>, LoadError> {
    let initrd_size = initrd.as_ref().map_or(0, |(_, size)| *size);
    let overlay_offset = if overlay.is_empty() { initrd_size } else { overlay_offset(initrd_size) };
    let size = overlay_offset + overlay.len() as u64;
    if size == 0 {
        return Ok(None);
    }
    let start = place_initrd(kernel, memory_size, size)?;
    if let Some((mut file, size)) = initrd {
        let size = usize::try_from(size).map_err(|_| LoadError::InitrdDoesNotFit { size, memory: memory_size })?;
        memory.read_exact_volatile_from(GuestAddress(start), &mut file, size).map_err(LoadError::Initrd)?;
    }
    memory.write_slice(overlay, GuestAddress(start + overlay_offset)).map_err(LoadError::Initrd)?;
    Ok(Some(Range { start, size }))
}

/// Writes command line and `boot_params`; the boot processor's RSI points at [`layout::ZERO_PAGE`].
///
/// # Errors
/// The command line is too long for the kernel, or guest memory is too small.
pub fn write_boot_params(
    memory: &GuestMemoryMmap,
    kernel: &LoadedKernel,
    cmdline: &str,
    initrd: Option<Range>,
    map: &[(Range, MemoryKind)],
) -> Result<(), LoadError> {
    let params = boot_parameters(kernel, cmdline, initrd, map)?;
    let mut bytes = cmdline.as_bytes().to_vec();
    bytes.push(0);
    memory.write_slice(&bytes, GuestAddress(layout::CMDLINE)).map_err(LoadError::BootData)?;
    memory.write_obj(params, GuestAddress(layout::ZERO_PAGE)).map_err(LoadError::BootData)
}

#[allow(clippy::cast_possible_truncation, reason = "addresses and sizes below 4 GiB by the layout, the count checked")]
fn boot_parameters(
    kernel: &LoadedKernel,
    cmdline: &str,
    initrd: Option<Range>,
    map: &[(Range, MemoryKind)],
) -> Result<boot_params, LoadError> {
    let mut header = kernel.header.unwrap_or(setup_header {
        boot_flag: BOOT_FLAG,
        header: HEADER_MAGIC,
        kernel_alignment: KERNEL_ALIGNMENT,
        cmdline_size: CMDLINE_MAX as u32,
        ..setup_header::default()
    });
    let max = header.cmdline_size;
    if cmdline.len() > max as usize {
        return Err(LoadError::Cmdline { length: cmdline.len(), max });
    }
    header.type_of_loader = LOADER_UNDEFINED;
    header.cmd_line_ptr = layout::CMDLINE as u32;
    if let Some(initrd) = initrd {
        header.ramdisk_image = initrd.start as u32;
        header.ramdisk_size = initrd.size as u32;
    }
    let mut params = boot_params { acpi_rsdp_addr: layout::ACPI_START, hdr: header, ..boot_params::default() };
    let mut table = params.e820_table;
    if map.len() > table.len() {
        return Err(LoadError::MemoryMap { entries: map.len() });
    }
    for (entry, (range, kind)) in table.iter_mut().zip(map) {
        *entry = boot_e820_entry { addr: range.start, size: range.size, r#type: kind.e820_type() };
    }
    params.e820_table = table;
    params.e820_entries = map.len() as u8;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest;
    use std::io::{Seek, Write};
    use vm_memory::GuestMemoryMmap;

    const MEMORY: u64 = 64 << 20;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 20)]).unwrap()
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    fn bzimage(version: u16, xloadflags: u16, init_size: u32) -> Vec<u8> {
        let mut image = vec![0u8; 0x400];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&version.to_le_bytes());
        image[0x211] = 1;
        image[0x214..0x218].copy_from_slice(&0x10_0000u32.to_le_bytes());
        image[0x22c..0x230].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
        image[0x236..0x238].copy_from_slice(&xloadflags.to_le_bytes());
        image[0x238..0x23c].copy_from_slice(&2047u32.to_le_bytes());
        image[0x258..0x260].copy_from_slice(&0x100_0000u64.to_le_bytes());
        image[0x260..0x264].copy_from_slice(&init_size.to_le_bytes());
        image.extend_from_slice(&[0x90; 0x300]);
        image
    }

    fn elf_kernel() -> LoadedKernel {
        LoadedKernel { entry: 0x100_0000, end: 0x180_0000, header: None }
    }

    #[test]
    fn elf_executable_is_recognised() {
        assert_eq!(kernel_format(&test_guest::elf(&[0xf4])), Ok(KernelFormat::Elf));
    }

    #[test]
    fn elf_file_for_another_processor_is_refused() {
        let mut image = test_guest::elf(&[0xf4]);
        image[18] = 183;
        assert_eq!(kernel_format(&image), Err(KernelFormatError::ElfMachine));
    }

    #[test]
    fn elf_object_file_is_refused() {
        let mut image = test_guest::elf(&[0xf4]);
        image[16] = 1;
        assert_eq!(kernel_format(&image), Err(KernelFormatError::ElfType));
    }

    #[test]
    fn truncated_elf_header_is_refused() {
        assert_eq!(kernel_format(b"\x7fELF\x02\x01"), Err(KernelFormatError::ElfMachine));
    }

    #[test]
    fn bzimage_is_recognised() {
        assert_eq!(kernel_format(&bzimage(0x020f, 1, 0)), Ok(KernelFormat::BzImage));
    }

    #[test]
    fn bzimage_without_64_bit_entry_is_refused() {
        assert_eq!(kernel_format(&bzimage(0x020f, 0, 0)), Err(KernelFormatError::No64BitEntry));
    }

    #[test]
    fn old_bzimage_is_refused() {
        assert_eq!(kernel_format(&bzimage(0x0206, 1, 0)), Err(KernelFormatError::No64BitEntry));
    }

    #[test]
    fn empty_file_is_refused() {
        assert_eq!(kernel_format(&[]), Err(KernelFormatError::Unknown));
    }

    #[test]
    fn elf_kernel_is_entered_at_its_entry_point() {
        let code = [0x90, 0xf4];
        let memory = memory();
        let kernel = load_kernel(&memory, MEMORY, &mut file(&test_guest::elf(&code)), KernelFormat::Elf).unwrap();
        let mut loaded = [0u8; 2];
        memory.read_slice(&mut loaded, GuestAddress(kernel.entry)).unwrap();
        assert_eq!((kernel.entry, loaded), (test_guest::LOAD_ADDRESS, code));
    }

    #[test]
    fn bzimage_is_entered_at_its_64_bit_entry_point() {
        let kernel =
            load_kernel(&memory(), MEMORY, &mut file(&bzimage(0x020f, 1, 0x10_0000)), KernelFormat::BzImage).unwrap();
        assert_eq!(kernel.entry, 0x10_0200);
    }

    #[test]
    fn bzimage_keeps_its_decompression_area_free() {
        let kernel =
            load_kernel(&memory(), MEMORY, &mut file(&bzimage(0x020f, 1, 0x10_0000)), KernelFormat::BzImage).unwrap();
        assert_eq!(kernel.end, 0x110_0000);
    }

    #[test]
    fn bzimage_that_needs_more_memory_is_refused() {
        let result = load_kernel(&memory(), MEMORY, &mut file(&bzimage(0x020f, 1, 0x1000_0000)), KernelFormat::BzImage);
        assert!(matches!(result, Err(LoadError::KernelDoesNotFit { end: 0x1100_0000, .. })));
    }

    #[test]
    fn truncated_elf_kernel_is_refused() {
        let image = test_guest::elf(&[0x90; 64]);
        let result = load_kernel(&memory(), MEMORY, &mut file(&image[..image.len() - 32]), KernelFormat::Elf);
        assert!(matches!(result, Err(LoadError::Kernel { .. })));
    }

    #[test]
    fn overlay_follows_the_initrd_at_a_multiple_of_four_behind_four_zeros() {
        let memory = memory();
        let initrd = Some((file(b"12345"), 5));
        let range = load_initrd(&memory, MEMORY, &elf_kernel(), initrd, b"over").unwrap().unwrap();
        let mut bytes = [0xffu8; 16];
        memory.read_slice(&mut bytes, GuestAddress(range.start)).unwrap();
        assert_eq!((range.size, &bytes), (16, b"12345\0\0\0\0\0\0\0over"));
    }

    #[test]
    fn overlay_stands_alone_without_an_initrd() {
        let memory = memory();
        let range = load_initrd(&memory, MEMORY, &elf_kernel(), None, b"over").unwrap().unwrap();
        assert_eq!(range, Range { start: MEMORY - 4096, size: 4 });
    }

    #[test]
    fn without_initrd_and_overlay_nothing_is_loaded() {
        assert_eq!(load_initrd(&memory(), MEMORY, &elf_kernel(), None, &[]).unwrap(), None);
    }

    #[test]
    fn initrd_that_reaches_into_the_kernel_is_refused() {
        let size = MEMORY - elf_kernel().end + 1;
        let result = place_initrd(&elf_kernel(), MEMORY, size);
        assert!(matches!(result, Err(LoadError::InitrdDoesNotFit { .. })));
    }

    #[test]
    fn initrd_stays_below_the_kernels_limit() {
        let header = setup_header { initrd_addr_max: 0x2ff_ffff, ..Default::default() };
        let kernel = LoadedKernel { header: Some(header), ..elf_kernel() };
        assert_eq!(place_initrd(&kernel, MEMORY, 4096).unwrap(), 0x2ff_f000);
    }

    #[test]
    fn boot_parameters_hold_command_line_initrd_and_memory_map() {
        let initrd = Range { start: 0x200_0000, size: 77 };
        let map = layout::e820(MEMORY, None);
        let params = boot_parameters(&elf_kernel(), "quiet", Some(initrd), &map).unwrap();
        let header = params.hdr;
        assert_eq!(
            ({ header.cmd_line_ptr }, { header.ramdisk_image }, { header.ramdisk_size }, params.e820_entries),
            (0x2_0000, 0x200_0000, 77, 3)
        );
    }

    #[test]
    fn command_line_longer_than_the_kernel_accepts_is_refused() {
        let header = setup_header { cmdline_size: 255, ..Default::default() };
        let kernel = LoadedKernel { header: Some(header), ..elf_kernel() };
        let result = boot_parameters(&kernel, &"x".repeat(256), None, &[]);
        assert!(matches!(result, Err(LoadError::Cmdline { length: 256, max: 255 })));
    }
}
