//! A kernel and an initrd, put into a guest's memory.

use crate::script::Input;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{Seek, Write};
use std::path::PathBuf;
use strata_machine::{CpuExtras, KernelFormat, MachineConfig, MemoryBacking, create_memory, kernel_format, load};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

/// The guest's memory, bytes: the kernel has its place above the first 16 MiB.
const MEMORY: u64 = 32 << 20;

fn file(bytes: &[u8]) -> File {
    let mut file = File::from(memfd_create("strata-fuzz-image", MemfdFlags::CLOEXEC).expect("a descriptor is left"));
    file.write_all(bytes).expect("there is memory for a small file");
    file.rewind().expect("it is a file");
    file
}

/// Runs an input: a command line, an initrd, and the kernel's image.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let cmdline = String::from_utf8_lossy(input.block()).into_owned();
    let initrd = input.block();
    let Ok(format) = kernel_format(input.0) else { return };
    let config = MachineConfig {
        kernel: PathBuf::new().into(),
        initrd: None,
        initrd_overlay: Vec::new(),
        cpus: 1,
        memory: MEMORY,
        disks: Vec::new(),
        nets: Vec::new(),
        entropy: false,
        vsock: None,
        balloon: false,
        cmdline,
        shared_slots: Vec::new(),
        discovery: None,
        tsc_offset: None,
        cpu_extras: CpuExtras::default(),
        memory_backing: MemoryBacking::default(),
    };
    let memory = create_memory(MEMORY, MemoryBacking::default()).expect("there is memory for a small guest");

    let initrd_file = (!initrd.is_empty()).then(|| (file(initrd), initrd.len() as u64));
    let Ok(entry) = load(&config, file(input.0), format, initrd_file, &memory) else { return };

    // The first instruction lies in memory, behind what a kernel of this kind leaves alone.
    let in_memory = memory.iter().any(|region| {
        let start = region.start_addr().0;
        (start..start + region.len()).contains(&entry)
    });
    assert!(in_memory && entry >= 1 << 20, "{format:?} is entered at {entry:#x}");
    assert!(matches!(format, KernelFormat::Elf | KernelFormat::BzImage));
}
