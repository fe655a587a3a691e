//! QEMU, and what it needs to run a guest with KVM on a host that has nothing: the lab's emulated one.

use crate::process::{self, ProcessError};
use std::path::{Path, PathBuf};
use std::process::Command;

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
    let program = process::find_program(PROGRAM).unwrap_or_else(|| PROGRAM.into());
    let libraries = libraries(&process::capture(Command::new("ldd").arg(&program))?);
    let firmware = FIRMWARE.into_iter().filter_map(|name| {
        let places = FIRMWARE_FOLDERS.into_iter().map(|folder| Path::new(folder).join(name));
        Some((name.to_owned(), places.into_iter().find(|path| path.exists())?))
    });
    Ok(std::iter::once((PROGRAM.to_owned(), program.clone())).chain(libraries).chain(firmware).collect())
}

/// The files that lines of `ldd` name: `libm.so.6 => /lib/libm.so.6 (0x…)`, `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn libraries(text: &str) -> Vec<(String, PathBuf)> {
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.filter_map(|path| Some((Path::new(path).file_name()?.to_str()?.to_owned(), path.into()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_what_has_a_path() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibm.so.6 => /lib/libm.so.6 (0x00007f30)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f40)\n";

        let names: Vec<_> =
            libraries(text).into_iter().map(|(name, path)| format!("{name} {}", path.display())).collect();

        assert_eq!(names, ["libm.so.6 /lib/libm.so.6", "ld-linux-x86-64.so.2 /lib64/ld-linux-x86-64.so.2"]);
    }
}
