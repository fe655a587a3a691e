//! The agent's ready-made kernel modules: a folder holds one for each kernel release, `RELEASE/strata.ko`, and the
//! guest's kernel says which of them is its own.

use crate::agent;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use strata_recording::text::terminal::shell_word;
use thiserror::Error;

/// What names the folder where strata is installed, in place of a module's file.
pub const AUTO: &str = "auto";
/// Where packages put the modules.
const INSTALLED: &str = "/usr/lib/strata/modules";
/// Where they lie from the folder of the program, when strata is installed below another prefix than `/usr`.
const BESIDE_PROGRAM: &str = "../lib/strata/modules";
/// Names the folder with the modules.
const FOLDER_VARIABLE: &str = "STRATA_AGENT_MODULES";
/// The module's file in the folder of its release.
const MODULE: &str = "strata.ko";
/// How many of the releases that are there a message names.
const MOST_NAMED: usize = 8;

/// Why there is no module for a guest.
#[derive(Debug, Error)]
pub enum ReadyMadeError {
    /// Which kernel it is, is not known.
    #[error("'{}' does not contain a kernel release, which chooses the module: name the module's file", .0.display())]
    NoRelease(PathBuf),
    /// No modules are installed.
    #[error(
        "no ready-made modules of the agent in '{}': install the package strata-modules, or build the guest's with \
         `strata agent build --kernel {} --kernel-headers DIR --out strata.ko`",
        folder.display(),
        shell_word(release)
    )]
    NoModules {
        folder: PathBuf,
        /// The kernel's release.
        release: String,
        #[source]
        source: io::Error,
    },
    /// There are some, but none for this kernel.
    #[error(
        "no ready-made module of the agent for kernel {release} in '{}' (it has {there}): build one with `strata agent \
         build --kernel {} --kernel-headers DIR --out strata.ko`, and name it with --agent strata.ko",
        folder.display(),
        shell_word(release)
    )]
    NoneForKernel {
        folder: PathBuf,
        /// The kernel's release.
        release: String,
        /// The releases that it has modules for, in words.
        there: String,
    },
}

/// The folder of ready-made modules that `named` is: the installed one for `auto`. `None` if it names a module's file.
#[must_use]
pub fn folder(named: &Path) -> Option<PathBuf> {
    // a file of that name is ./auto
    if named == Path::new(AUTO) { Some(installed()) } else { named.is_dir().then(|| named.into()) }
}

/// The module in `folder` for the kernel in the file `kernel` (with content `kernel_bytes`, bzImage or ELF).
///
/// # Errors
/// There is none for that kernel's release, or the kernel does not tell it.
pub fn pick(folder: &Path, kernel: &Path, kernel_bytes: &[u8]) -> Result<PathBuf, ReadyMadeError> {
    let Some(release) = agent::kernel_release(kernel_bytes) else {
        return Err(ReadyMadeError::NoRelease(kernel.into()));
    };
    let folder = folder.to_path_buf();
    // a release is part of a path from here on
    let module = folder.join(release.replace('/', "_")).join(MODULE);
    if module.is_file() {
        return Ok(module);
    }
    match releases(&folder) {
        Ok(there) => Err(ReadyMadeError::NoneForKernel { folder, release, there: in_words(&there) }),
        Err(source) => Err(ReadyMadeError::NoModules { folder, release, source }),
    }
}

/// The folder with the modules that are installed: the one that the environment names, else the first of the places
/// where it may be.
fn installed() -> PathBuf {
    if let Some(folder) = env::var_os(FOLDER_VARIABLE) {
        return folder.into();
    }
    let beside = env::current_exe().ok().and_then(|program| Some(program.parent()?.join(BESIDE_PROGRAM)));
    beside.filter(|folder| folder.is_dir()).unwrap_or_else(|| INSTALLED.into())
}

/// The releases that `folder` has modules for.
fn releases(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut there = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().join(MODULE).is_file() {
            there.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(there)
}

fn in_words(releases: &BTreeSet<String>) -> String {
    let named: Vec<&str> = releases.iter().take(MOST_NAMED).map(String::as_str).collect();
    match releases.len().saturating_sub(MOST_NAMED) {
        _ if named.is_empty() => "none".into(),
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &[u8] = b"\x7fELF Linux version 6.1.0-56-cloud-amd64 (debian)";

    fn folder_with(releases: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for release in releases {
            fs::create_dir(folder.path().join(release)).unwrap();
            fs::write(folder.path().join(release).join(MODULE), "module").unwrap();
        }
        folder
    }

    #[test]
    fn module_of_the_kernels_release_is_picked_from_a_folder() {
        let folder = folder_with(&["6.1.0-56-amd64", "6.1.0-56-cloud-amd64"]);

        let picked = pick(folder.path(), Path::new("vmlinuz"), KERNEL).unwrap();

        assert_eq!(picked, folder.path().join("6.1.0-56-cloud-amd64/strata.ko"));
    }

    #[test]
    fn module_that_is_named_by_its_file_is_not_looked_for() {
        let folder = tempfile::tempdir().unwrap();

        assert_eq!(super::folder(Path::new("/nonexistent.ko")), None);
        assert_eq!(super::folder(folder.path()).unwrap(), folder.path());
        assert!(super::folder(Path::new(AUTO)).is_some());
    }

    #[test]
    fn kernel_without_a_module_gets_the_command_that_builds_it() {
        let folder = folder_with(&["6.12.95-cloud-amd64", "7.3.4-amd64"]);
        fs::create_dir(folder.path().join("6.1.0-56-cloud-amd64")).unwrap();

        let error = pick(folder.path(), Path::new("k"), KERNEL).unwrap_err();

        let message = error.to_string();
        assert!(message.contains("for kernel 6.1.0-56-cloud-amd64"), "{message}");
        assert!(message.contains("(it has 6.12.95-cloud-amd64, 7.3.4-amd64)"), "{message}");
        assert!(message.contains("strata agent build --kernel 6.1.0-56-cloud-amd64"), "{message}");
    }

    #[test]
    fn release_does_nothing_in_the_command_that_is_copied() {
        let folder = folder_with(&[]);
        let kernel = b"Linux version 6;reboot (x)";
        let refusal = |folder: &Path| pick(folder, Path::new("k"), kernel).unwrap_err().to_string();

        let (empty, absent) = (refusal(folder.path()), refusal(&folder.path().join("absent")));

        assert!(empty.contains("--kernel '6;reboot' --kernel-headers"), "{empty}");
        assert!(absent.contains("--kernel '6;reboot' --kernel-headers"), "{absent}");
    }

    #[test]
    fn long_list_of_releases_is_cut() {
        let releases = (10..20).map(|minor| format!("6.{minor}.0")).collect();

        assert!(in_words(&releases).ends_with("6.16.0, 6.17.0 and 2 more"));
        assert_eq!(in_words(&BTreeSet::new()), "none");
    }

    #[test]
    fn kernel_that_does_not_tell_its_release_needs_the_modules_file() {
        let folder = folder_with(&["6.1.0-56-cloud-amd64"]);

        let error = pick(folder.path(), Path::new("k"), b"\x7fELF").unwrap_err();

        assert!(error.to_string().starts_with("'k' does not contain a kernel release"), "{error}");
    }

    #[test]
    fn release_stays_within_the_folder() {
        let folder = folder_with(&[]);

        let error = pick(folder.path(), Path::new("k"), b"Linux version 6/../../etc (debian)").unwrap_err();

        assert!(matches!(error, ReadyMadeError::NoneForKernel { .. }), "{error}");
    }
}
