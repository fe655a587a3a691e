//! A disk image that a guest is to boot from, looked through for its kernel.
//!
//! An input is what of an image is not zero: pieces, each a place (`u16`, in units of [`UNIT`]), a length (`u16`) and
//! bytes.

use crate::script::Input;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use vmm::bootable_disk::find_without_limit;

/// Bytes of the image.
const SIZE: u64 = 1 << 20;
/// Places of pieces are multiples of so many bytes.
pub const UNIT: usize = 64;

/// The input that stands for `image`.
///
/// # Panics
/// When the image is larger than places reach.
#[must_use]
pub fn input(image: &[u8]) -> Vec<u8> {
    let mut input = Vec::new();
    let mut rest = image.chunks(UNIT).enumerate().filter(|(_, unit)| unit.iter().any(|byte| *byte != 0)).peekable();
    while let Some((place, unit)) = rest.next() {
        let mut bytes = unit.to_vec();
        while let Some((_, unit)) = rest.next_if(|(next, _)| *next == place + bytes.len() / UNIT) {
            bytes.extend_from_slice(unit);
        }
        input.extend(u16::try_from(place).expect("images are small").to_le_bytes());
        input.extend(u16::try_from(bytes.len()).expect("most of an image is zero").to_le_bytes());
        input.extend(bytes);
    }
    input
}

/// Runs an input.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let image = File::from(memfd_create("strata-fuzz-disk", MemfdFlags::CLOEXEC).expect("a descriptor is left"));
    image.set_len(SIZE).expect("it is a file");
    let mut input = Input(data);
    while !input.0.is_empty() {
        let place = u64::from(input.u16()) * UNIT as u64 % SIZE;
        let bytes = input.block();
        let room = bytes.len().min(usize::try_from(SIZE - place).unwrap_or(usize::MAX));
        image.write_all_at(&bytes[..room], place).expect("there is memory for a small file");
    }

    let Ok(found) = find_without_limit(Path::new("disk"), image, SIZE) else { return };

    // No file is larger than the disk that it lies on.
    let size =
        |file: &strata_machine::BootFile| file.open().and_then(|file| file.metadata()).expect("it is held").len();
    assert!(size(&found.kernel) <= SIZE && found.initrd.as_ref().is_none_or(|initrd| size(initrd) <= SIZE));
    assert!(found.kernel.name().is_absolute(), "{found:?}");
}
