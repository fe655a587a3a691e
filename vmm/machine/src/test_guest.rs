//! Hand-written guests for tests: a few instructions in an ELF executable, a machine for them, and its console.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use super::config::MachineConfig;
use super::memory::MemoryBacking;
use crate::boot::cpuid::CpuExtras;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// Where the code of a test guest is loaded and entered.
pub const LOAD_ADDRESS: u64 = 0x20_0000;

/// Wraps `code` into an ELF executable that is entered at its first byte.
pub fn elf(code: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    let size = code.len() as u64;
    let mut image = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    image.extend_from_slice(&2u16.to_le_bytes()); // e_type: executable
    image.extend_from_slice(&62u16.to_le_bytes()); // e_machine: x86-64
    image.extend_from_slice(&1u32.to_le_bytes()); // e_version
    image.extend_from_slice(&LOAD_ADDRESS.to_le_bytes()); // e_entry
    image.extend_from_slice(&64u64.to_le_bytes()); // e_phoff
    image.extend_from_slice(&0u64.to_le_bytes()); // e_shoff
    image.extend_from_slice(&0u32.to_le_bytes()); // e_flags
    for half in [64u16, 56, 1, 0, 0, 0] {
        image.extend_from_slice(&half.to_le_bytes()); // sizes and counts of the headers
    }
    image.extend_from_slice(&1u32.to_le_bytes()); // p_type: load
    image.extend_from_slice(&7u32.to_le_bytes()); // p_flags
    for word in [HEADERS, LOAD_ADDRESS, LOAD_ADDRESS, size, size, 1] {
        image.extend_from_slice(&word.to_le_bytes());
    }
    image.extend_from_slice(code);
    image
}

/// A machine with one vCPU that runs `code`, which is written to `folder`.
pub fn config(folder: &TempDir, code: &[u8]) -> MachineConfig {
    let kernel = folder.path().join("guest");
    std::fs::write(&kernel, elf(code)).unwrap();
    MachineConfig {
        kernel: kernel.into(),
        initrd: None,
        initrd_overlay: Vec::new(),
        cpus: 1,
        memory: 64 << 20,
        disks: Vec::new(),
        nets: Vec::new(),
        entropy: false,
        vsock: None,
        balloon: false,
        cmdline: String::new(),
        shared_slots: Vec::new(),
        discovery: None,
        tsc_offset: None,
        cpu_extras: CpuExtras::default(),
        memory_backing: MemoryBacking::default(),
    }
}

/// Keeps what a console shows.
#[derive(Clone, Default)]
pub struct Console(Arc<Mutex<Vec<u8>>>);

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Console {
    /// What it showed so far.
    pub fn written(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// What the kernel says (`VmFlags` of `/proc/self/smaps`) of the mapping of this process that holds `address`.
pub fn mapping_flags(address: usize) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let range = |line: &str| {
        let (begin, end) = line.split(' ').next()?.split_once('-')?;
        Some(usize::from_str_radix(begin, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    let mut lines = maps.lines().skip_while(|line| !range(line).is_some_and(|range| range.contains(&address)));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags: ")).unwrap();
    flags.split_whitespace().map(str::to_owned).collect()
}
