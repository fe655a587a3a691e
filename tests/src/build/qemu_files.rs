//! QEMU, and what it needs to run a guest with KVM on a host that has nothing: the lab's emulated one.

use crate::build::shared_objects;
use crate::process::ProcessError;
use std::path::{Path, PathBuf};

/// The program, and its name on the host.
pub const PROGRAM: &str = "qemu-system-x86_64";
/// What a `q35` machine without devices and with a kernel of its own loads, in the order in which it is looked for; the
/// last is `microvm`'s.
const FIRMWARE: [&str; 5] = ["bios-256k.bin", "kvmvapic.bin", "linuxboot_dma.bin", "pvh.bin", "qboot.rom"];
/// Where Debian's packages have it.
const FIRMWARE_FOLDERS: [&str; 2] = ["/usr/share/seabios", "/usr/share/qemu"];

/// The files by the names under which they have to lie in one folder: the program, its dynamic loader
/// (`ld-linux-x86-64.so.2`), its libraries and its firmware.
///
/// # Errors
///
/// When QEMU is not installed, or `ldd` does not know what it needs.
pub fn files() -> Result<Vec<(String, PathBuf)>, ProcessError> {
    let firmware = FIRMWARE.into_iter().filter_map(|name| {
        let places = FIRMWARE_FOLDERS.into_iter().map(|folder| Path::new(folder).join(name));
        Some((name.to_owned(), places.into_iter().find(|path| path.exists())?))
    });
    Ok(shared_objects::with_program(PROGRAM)?.into_iter().chain(firmware).collect())
}
