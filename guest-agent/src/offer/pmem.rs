//! A trace region in persistent memory (virtio-pmem), as the kernel's sysfs shows the device. Where the memory is stands in the
//! device's configuration, which sysfs does not show; what is in it can be seen while a driver has made it a disk.

use crate::offer::Offer;
use shared_ring::layout::{MAGIC, Superblock};
use std::fs::{self, File};
use std::io::Read;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

/// Where the kernel lists virtio devices.
pub(crate) const DEVICES: &str = "/sys/bus/virtio/devices";
/// Where disks are opened.
pub(crate) const DISKS: &str = "/dev";
/// What sysfs calls the type of persistent memory.
const PMEM: &str = "0x001b";
/// The folders between a device and its disk, by what their names begin with.
const FOLDERS: [&str; 5] = ["ndbus", "region", "namespace", "block", "pmem"];
/// Bytes of the superblock that tell what it is.
const LOOK: usize = offset_of!(Superblock, abi_version) + size_of::<u32>();

/// The first device in `devices` that holds a region, or may hold one where this user cannot look; `disks` is where disks are
/// opened.
pub(crate) fn find(devices: &Path, disks: &Path) -> Option<Offer> {
    let mut entries = below(devices, "");
    entries.sort();
    entries.iter().find_map(|device| offer_of(device, disks))
}

fn offer_of(device: &Path, disks: &Path) -> Option<Offer> {
    if fs::read_to_string(device.join("device")).ok()?.trim() != PMEM {
        return None;
    }
    let disk = FOLDERS.iter().try_fold(device.to_path_buf(), |folder, name| below(&folder, name).pop());
    // What the module has taken, and what no driver has, is not a disk.
    let begin = disk.and_then(|disk| begin_of(&disks.join(disk.file_name()?)));
    let abi_version = match begin {
        None => None,
        Some(begin) if begin.starts_with(&MAGIC.to_le_bytes()) => {
            Some(u32::from_le_bytes(*begin[offset_of!(Superblock, abi_version)..].first_chunk()?))
        }
        Some(_) => return None,
    };
    Some(Offer { abi_version, address: None, size: None })
}

/// The first bytes of a disk; `None` where this user cannot read it.
fn begin_of(disk: &Path) -> Option<[u8; LOOK]> {
    let mut begin = [0; LOOK];
    File::open(disk).ok()?.read_exact(&mut begin).ok()?;
    Some(begin)
}

/// What is in `folder` under a name that begins with `name`.
fn below(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(name)).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of devices, and one of disks.
    fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let [devices, disks] = ["devices", "disks"].map(|name| folder.path().join(name));
        fs::create_dir(&devices).unwrap();
        fs::create_dir(&disks).unwrap();
        (folder, devices, disks)
    }

    fn device(devices: &Path, name: &str, kind: &str) {
        fs::create_dir(devices.join(name)).unwrap();
        fs::write(devices.join(name).join("device"), format!("{kind}\n")).unwrap();
    }

    /// What its driver makes of a device, whose memory begins with `memory`.
    fn disk(devices: &Path, disks: &Path, device: &str, disk: &str, memory: &[u8]) {
        let namespace = devices.join(device).join("ndbus0/region0/namespace0.0/block");
        fs::create_dir_all(namespace.join(disk)).unwrap();
        let mut page = [0; 4096];
        page[..memory.len()].copy_from_slice(memory);
        fs::write(disks.join(disk), page).unwrap();
    }

    #[test]
    fn disk_is_recognised_by_its_first_bytes() {
        let (_folder, devices, disks) = folders();
        let region = [&MAGIC.to_le_bytes()[..], &0x2_0005_u32.to_le_bytes()].concat();
        device(&devices, "virtio0", "0x0002");
        disk(&devices, &disks, "virtio0", "pmem9", &region);
        device(&devices, "virtio1", PMEM);
        disk(&devices, &disks, "virtio1", "pmem0", b"somebody's disk");
        let before = find(&devices, &disks);

        device(&devices, "virtio2", PMEM);
        disk(&devices, &disks, "virtio2", "pmem1", &region);

        let offer = Offer { abi_version: Some(0x2_0005), address: None, size: None };
        assert_eq!((before, find(&devices, &disks)), (None, Some(offer)));
    }

    #[test]
    fn memory_that_is_not_a_disk_may_hold_a_region() {
        let (_folder, devices, disks) = folders();
        device(&devices, "virtio0", PMEM);

        assert_eq!(find(&devices, &disks).map(|offer| offer.abi_version), Some(None));
        assert!(find(&devices.join("nothing"), &disks).is_none());
    }
}
