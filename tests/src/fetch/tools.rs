//! The programs that the lab calls: installed when they are missing.

use super::apt::{Apt, PackageError};
use crate::lock::{Lock, LockError};
use crate::paths::Paths;
use crate::process;
use crate::progress;
use std::path::Path;
use std::process::Command;

/// The oldest QEMU whose emulated SVM runs a Linux guest reliably.
pub const OLDEST_QEMU: u32 = 10;

/// A program the lab calls, and the package that brings it.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// The program's name.
    pub program: &'static str,
    /// The Debian package.
    pub package: &'static str,
}

/// Records and shows what the kernel traces.
pub const TRACE_CMD: Tool = Tool { program: "trace-cmd", package: "trace-cmd" };

/// The tools that every use of the lab needs.
pub const TOOLS: [Tool; 13] = [
    Tool { program: "busybox", package: "busybox-static" },
    Tool { program: "babeltrace2", package: "babeltrace2" },
    TRACE_CMD,
    Tool { program: "mke2fs", package: "e2fsprogs" },
    Tool { program: "debugfs", package: "e2fsprogs" },
    Tool { program: "make", package: "make" },
    Tool { program: "pahole", package: "dwarves" },
    Tool { program: "gcc-12", package: "gcc-12" },
    Tool { program: "ld", package: "binutils" },
    Tool { program: "objdump", package: "binutils" },
    Tool { program: "tar", package: "tar" },
    Tool { program: "xz", package: "xz-utils" },
    Tool { program: "lzop", package: "lzop" },
];

/// The library that the kernel's `objtool` needs.
const LIBELF: &str = "/usr/lib/x86_64-linux-gnu/libelf.so.1";

/// Installs what is missing of `tools`. Does not touch apt when nothing is missing.
///
/// # Errors
///
/// When something is missing and this user is not root, or apt fails.
pub fn install(paths: &Paths, tools: &[Tool]) -> Result<(), PackageError> {
    if missing_of(tools).is_empty() {
        return Ok(());
    }
    let _lock = lock(paths)?;
    let missing = missing_of(tools);
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        return Err(PackageError::NotRoot { packages: missing });
    }
    progress::step("installing tools", || Apt::prepare(paths)?.install(&missing, None))
}

/// Installs the package of a library unless its `file` is there.
///
/// # Errors
///
/// When it is missing and this user is not root, or apt fails.
pub fn install_library(paths: &Paths, file: &Path, package: &str) -> Result<(), PackageError> {
    let missing = [package.to_owned()];
    if file.exists() {
        return Ok(());
    }
    let _lock = lock(paths)?;
    if !is_root() {
        return Err(PackageError::NotRoot { packages: missing.into() });
    }
    progress::step(&format!("installing {package}"), || Apt::prepare(paths)?.install(&missing, None))
}

/// Keeps other processes from installing, until it is dropped: apt refuses two at once.
fn lock(paths: &Paths) -> Result<Lock, LockError> {
    Lock::take(&paths.lab().join("tools.lock"))
}

/// The packages of those of `tools` that are not installed.
fn missing_of(tools: &[Tool]) -> Vec<String> {
    let missing = tools.iter().filter(|tool| process::find_program(tool.program).is_none());
    missing.map(|tool| tool.package.to_owned()).collect()
}

/// Installs what is missing of [`TOOLS`], and QEMU when `with_qemu` is set. Does not touch apt when nothing is missing.
///
/// # Errors
///
/// When something is missing and this user is not root, or apt fails.
pub fn install_all(paths: &Paths, with_qemu: bool) -> Result<(), PackageError> {
    let _lock = lock(paths)?;
    let mut missing = missing_of(&TOOLS);
    if !Path::new(LIBELF).exists() {
        missing.push("libelf1".to_owned());
    }
    missing.dedup();
    let qemu_missing = with_qemu && qemu_major_version().is_none_or(|major| major < OLDEST_QEMU);
    if missing.is_empty() && !qemu_missing {
        return Ok(());
    }
    if !is_root() {
        if qemu_missing {
            missing.push("qemu-system-x86/bookworm-backports".to_owned());
        }
        return Err(PackageError::NotRoot { packages: missing });
    }
    progress::step("installing tools", || {
        let apt = Apt::prepare(paths)?;
        if !missing.is_empty() {
            apt.install(&missing, None)?;
        }
        if qemu_missing {
            apt.install(&["qemu-system-x86".to_owned()], Some("bookworm-backports"))?;
        }
        Ok(())
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn qemu_major_version() -> Option<u32> {
    let text = process::capture(Command::new("qemu-system-x86_64").arg("--version")).ok()?;
    major_version(&text)
}

/// The major version in a line like `QEMU emulator version 10.0.2 (Debian ...)`.
fn major_version(text: &str) -> Option<u32> {
    let version = text.split("version ").nth(1)?;
    version.split('.').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_reads_qemu_and_refuses_other_text() {
        assert_eq!(major_version("QEMU emulator version 10.0.2 (Debian 1:10)"), Some(10));
        assert_eq!(major_version("no such thing"), None);
    }
}
