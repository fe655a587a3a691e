//! A trace region in a PCI device, as the kernel's sysfs shows it: what the module looks for, looked at without taking it.
#![allow(unsafe_code)] // The device's memory is mapped to read its first words.

use crate::device::Mapping;
use crate::offer::Offer;
use rustix::fs::{Mode, OFlags};
use rustix::mm::ProtFlags;
use shared_ring::layout::{MAGIC, PAGE_SIZE, Superblock};
use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where the kernel lists PCI devices.
pub(crate) const DEVICES: &str = "/sys/bus/pci/devices";
/// The line of a device's `resource` that is BAR 2's.
const BAR: usize = 2;

/// What one look at a device's memory showed.
enum Look {
    /// A region, of this layout version.
    Region(u32),
    /// Something else.
    Other,
    /// This user, or this kernel, cannot look.
    Unknown,
}

/// The first device in `devices` that holds a region, or may hold one where this user cannot look.
pub(crate) fn find(devices: &Path) -> Option<Offer> {
    let mut entries: Vec<_> = fs::read_dir(devices).ok()?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries.iter().find_map(|device| offer_of(device))
}

fn offer_of(device: &Path) -> Option<Offer> {
    let text = |name: &str| Some(fs::read_to_string(device.join(name)).ok()?.trim().to_owned());
    // QEMU's ivshmem-plain: revision 0 had another protocol.
    if text("vendor")? != "0x1af4" || text("device")? != "0x1110" || text("revision")? == "0x00" {
        return None;
    }
    let resources = text("resource")?;
    let mut numbers = resources
        .lines()
        .nth(BAR)?
        .split_whitespace()
        .map(|number| u64::from_str_radix(number.trim_start_matches("0x"), 16).ok());
    let (address, end) = (numbers.next()??, numbers.next()??);
    let size = end.checked_sub(address)?.checked_add(1).filter(|&size| size >= PAGE_SIZE as u64)?;
    let abi_version = match look(&device.join("resource2")) {
        Look::Other => return None,
        Look::Region(version) => Some(version),
        Look::Unknown => None,
    };
    Some(Offer { abi_version, address: Some(address), size: Some(size) })
}

fn look(memory: &Path) -> Look {
    let Ok(file) = rustix::fs::open(memory, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return Look::Unknown;
    };
    let Ok(mapping) = Mapping::new(&file, 0, PAGE_SIZE, ProtFlags::READ) else { return Look::Unknown };
    // SAFETY: both words lie in the page that is mapped, aligned; the host may write them meanwhile.
    let (magic, version) = unsafe {
        let magic = mapping.base().add(offset_of!(Superblock, magic)).cast();
        let version = mapping.base().add(offset_of!(Superblock, abi_version)).cast();
        (AtomicU64::from_ptr(magic).load(Ordering::Relaxed), AtomicU32::from_ptr(version).load(Ordering::Relaxed))
    };
    if magic == MAGIC { Look::Region(version) } else { Look::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of these ids, whose memory begins with `memory`.
    fn device(folder: &Path, name: &str, ids: [&str; 3], memory: Option<&[u8]>) {
        let path = folder.join(name);
        fs::create_dir(&path).unwrap();
        for (file, id) in ["vendor", "device", "revision"].into_iter().zip(ids) {
            fs::write(path.join(file), format!("{id}\n")).unwrap();
        }
        let bar = |start: u64, end: u64| format!("{start:#018x} {end:#018x} 0x000000000014220c\n");
        fs::write(path.join("resource"), [bar(1, 2), bar(0, 0), bar(0xc0_0000_0000, 0xc0_03ff_ffff)].concat()).unwrap();
        if let Some(memory) = memory {
            let mut page = vec![0; PAGE_SIZE];
            page[..memory.len()].copy_from_slice(memory);
            fs::write(path.join("resource2"), page).unwrap();
        }
    }

    #[test]
    fn device_is_recognised_by_its_ids_and_its_memory() {
        let folder = tempfile::tempdir().unwrap();
        let region = [&MAGIC.to_le_bytes()[..], &0x2_0004_u32.to_le_bytes()].concat();
        device(folder.path(), "0000:00:01.0", ["0x8086", "0x1110", "0x01"], Some(&region));
        device(folder.path(), "0000:00:02.0", ["0x1af4", "0x1110", "0x00"], Some(&region));
        device(folder.path(), "0000:00:03.0", ["0x1af4", "0x1110", "0x01"], Some(b"something else"));
        let before = find(folder.path());

        device(folder.path(), "0000:00:04.0", ["0x1af4", "0x1110", "0x01"], Some(&region));

        let offer = Offer { abi_version: Some(0x2_0004), address: Some(0xc0_0000_0000), size: Some(64 << 20) };
        assert_eq!((before, find(folder.path())), (None, Some(offer)));
    }

    #[test]
    fn device_that_cannot_be_looked_into_may_hold_a_region() {
        let folder = tempfile::tempdir().unwrap();
        device(folder.path(), "0000:00:03.0", ["0x1af4", "0x1110", "0x01"], None);

        assert_eq!(find(folder.path()).map(|offer| offer.abi_version), Some(None));
        assert!(find(&folder.path().join("nothing")).is_none());
    }
}
