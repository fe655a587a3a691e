//! Debian packages: tools that are installed, and kernels that are only unpacked.
//!
//! apt is given its own sources and lists, so the machine's apt configuration is neither used nor changed. Only the
//! tools in [`TOOLS`] are installed, and only when they are missing; kernel packages are downloaded and unpacked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;

/// The oldest QEMU whose emulated SVM runs a Linux guest reliably.
pub const OLDEST_QEMU: u32 = 10;

const SOURCES: &str = "\
deb http://deb.debian.org/debian bookworm main
deb http://deb.debian.org/debian bookworm-updates main
deb http://deb.debian.org/debian bookworm-backports main
deb http://deb.debian.org/debian-security bookworm-security main
";

/// A program the lab calls, and the package that brings it.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// The program's name.
    pub program: &'static str,
    /// The Debian package.
    pub package: &'static str,
}

/// The tools that every use of the lab needs.
pub const TOOLS: [Tool; 9] = [
    Tool { program: "busybox", package: "busybox-static" },
    Tool { program: "babeltrace2", package: "babeltrace2" },
    Tool { program: "mke2fs", package: "e2fsprogs" },
    Tool { program: "debugfs", package: "e2fsprogs" },
    Tool { program: "make", package: "make" },
    Tool { program: "gcc-12", package: "gcc-12" },
    Tool { program: "ld", package: "binutils" },
    Tool { program: "objdump", package: "binutils" },
    Tool { program: "tar", package: "tar" },
];

/// The library that the kernel's `objtool` needs.
const LIBELF: &str = "/usr/lib/x86_64-linux-gnu/libelf.so.1";

/// Why packages could not be had.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Packages are missing and this user may not install them.
    #[error("missing packages and not root: run as root, or install them: apt-get install {}", packages.join(" "))]
    NotRoot {
        /// The missing packages.
        packages: Vec<String>,
    },
    /// apt knows no such package.
    #[error("the package lists have no {0}: check the network and the mirror deb.debian.org")]
    Unknown(String),
}

/// The kernel packages that were unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPackages {
    /// The kernel release, as `uname -r` says it: `6.1.0-56-cloud-amd64`.
    pub release: String,
    /// The version of the packages: `6.1.192-2`.
    pub version: String,
}

impl KernelPackages {
    /// The compressed kernel inside the unpacked root.
    #[must_use]
    pub fn bzimage(&self, root: &Path) -> PathBuf {
        root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The folder that module builds name with `make -C`.
    #[must_use]
    pub fn headers(&self, root: &Path) -> PathBuf {
        root.join("usr/src").join(format!("linux-headers-{}", self.release))
    }

    /// The folder of the kernel's modules.
    #[must_use]
    pub fn modules(&self, root: &Path) -> PathBuf {
        root.join("lib/modules").join(&self.release)
    }
}

/// apt with its own sources, lists and archives.
struct Apt {
    folder: PathBuf,
    logs: PathBuf,
}

impl Apt {
    fn prepare(paths: &Paths) -> Result<Self, PackageError> {
        Self::with_sources(paths, paths.apt(), SOURCES)
    }

    fn with_sources(paths: &Paths, folder: PathBuf, content: &str) -> Result<Self, PackageError> {
        let apt = Self { folder, logs: paths.logs() };
        for sub in ["lists/partial", "archives/partial"] {
            let path = apt.folder.join(sub);
            fs::create_dir_all(&path).map_err(|source| PackageError::File { path, source })?;
        }
        let sources = apt.folder.join("sources.list");
        fs::write(&sources, content).map_err(|source| PackageError::File { path: sources, source })?;
        process::run_logged(apt.command("apt-get").arg("update"), &apt.log("apt-update"))?;
        Ok(apt)
    }

    fn log(&self, step: &str) -> PathBuf {
        self.logs.join(format!("{step}.log"))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let folder = self.folder.display();
        for option in [
            format!("Dir::Etc::sourcelist={folder}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::lists={folder}/lists"),
            format!("Dir::Cache::archives={folder}/archives"),
            "Dir::Cache::pkgcache=".to_owned(),
            "Dir::Cache::srcpkgcache=".to_owned(),
            // the lab's folder need not be readable by apt's own user
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        command
    }

    fn install(&self, packages: &[String], suite: Option<&str>) -> Result<(), PackageError> {
        let mut command = self.command("apt-get");
        command.args(["install", "-y", "--no-install-recommends"]);
        if let Some(suite) = suite {
            command.args(["-t", suite]);
        }
        let step = suite.map_or_else(|| "apt-install".to_owned(), |suite| format!("apt-install-{suite}"));
        process::run_logged(command.args(packages), &self.log(&step))?;
        Ok(())
    }

    fn show(&self, package: &str) -> Result<String, PackageError> {
        process::capture(self.command("apt-cache").args(["show", "--no-all-versions", package]))
            .map_err(|_| PackageError::Unknown(package.to_owned()))
    }
}

/// Installs what is missing of `tools`. Does not touch apt when nothing is missing.
///
/// # Errors
///
/// When something is missing and this user is not root, or apt fails.
pub fn install(paths: &Paths, tools: &[Tool]) -> Result<(), PackageError> {
    let missing = missing_of(tools);
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        return Err(PackageError::NotRoot { packages: missing });
    }
    progress::step("installing tools", || Apt::prepare(paths)?.install(&missing, None))
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
pub fn install_tools(paths: &Paths, with_qemu: bool) -> Result<(), PackageError> {
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

/// Installs what is missing of `tools`. Does not touch apt when nothing is missing.
///
/// # Errors
///
/// As for [`install_tools`].
pub fn install_missing(paths: &Paths, tools: &[Tool]) -> Result<(), PackageError> {
    let missing: Vec<String> = tools
        .iter()
        .filter(|tool| process::find_program(tool.program).is_none())
        .map(|tool| tool.package.to_owned())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        return Err(PackageError::NotRoot { packages: missing });
    }
    progress::step("installing tools", || Apt::prepare(paths)?.install(&missing, None))
}

/// Downloads and unpacks Debian's current cloud kernel with its headers into [`Paths::kernel_root`]; the packages
/// found there by an earlier call are kept.
///
/// # Errors
///
/// When apt or dpkg fails, or a file cannot be written.
pub fn fetch_kernel(paths: &Paths) -> Result<KernelPackages, PackageError> {
    // written last, so that an interrupted call is repeated
    let record = paths.kernel_root().join("packages.json");
    if let Some(known) = fs::read(&record).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
        return Ok(known);
    }
    progress::step("fetching the kernel and its headers", || {
        let apt = Apt::prepare(paths)?;
        let image = apt.show("linux-image-cloud-amd64")?;
        let (release, version) =
            kernel_release(&image).ok_or_else(|| PackageError::Unknown("linux-image-cloud-amd64".to_owned()))?;
        let headers = apt.show(&format!("linux-headers-{release}"))?;
        let mut names = vec![format!("linux-image-{release}"), format!("linux-headers-{release}")];
        names.extend(
            dependencies(&headers)
                .filter(|name| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-"))
                .map(str::to_owned),
        );
        let folder = paths.packages();
        recreate(&folder)?;
        process::run_logged(
            apt.command("apt-get").arg("download").args(&names).current_dir(&folder),
            &apt.log("apt-download"),
        )?;
        let root = paths.kernel_root();
        recreate(&root)?;
        let list = fs::read_dir(&folder).map_err(|source| PackageError::File { path: folder.clone(), source })?;
        for entry in list.flatten() {
            process::run_logged(Command::new("dpkg").arg("-x").arg(entry.path()).arg(&root), &apt.log("dpkg"))?;
        }
        let packages = KernelPackages { release, version };
        let text = serde_json::to_vec(&packages).unwrap_or_default();
        fs::write(&record, text).map_err(|source| PackageError::File { path: record, source })?;
        Ok(packages)
    })
}

/// Downloads `package` of Debian's `suite` and unpacks it into the new folder `folder`, without what it depends on.
///
/// # Errors
///
/// When apt or dpkg fails, or a file cannot be written.
pub fn unpack(paths: &Paths, package: &str, suite: &str, folder: &Path) -> Result<(), PackageError> {
    let sources = format!("deb http://deb.debian.org/debian {suite} main\n");
    let apt = Apt::with_sources(paths, paths.apt().join(suite), &sources)?;
    let download = paths.packages().join(format!("{package}-{suite}"));
    recreate(&download)?;
    process::run_logged(
        apt.command("apt-get").arg("download").arg(package).current_dir(&download),
        &apt.log(&format!("apt-download-{package}")),
    )?;
    recreate(folder)?;
    let list = fs::read_dir(&download).map_err(|source| PackageError::File { path: download.clone(), source })?;
    for entry in list.flatten() {
        process::run_logged(Command::new("dpkg").arg("-x").arg(entry.path()).arg(folder), &apt.log("dpkg"))?;
    }
    Ok(())
}

fn recreate(folder: &Path) -> Result<(), PackageError> {
    let error = |source| PackageError::File { path: folder.to_path_buf(), source };
    match fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(error(source)),
        _ => {}
    }
    fs::create_dir_all(folder).map_err(error)
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

/// The release and the package version that the meta-package's description depends on.
fn kernel_release(description: &str) -> Option<(String, String)> {
    let release = dependencies(description).find_map(|name| name.strip_prefix("linux-image-"))?.to_owned();
    let version = description.lines().find_map(|line| line.strip_prefix("Version: "))?.trim().to_owned();
    Some((release, version))
}

/// The names on the `Depends:` line of a package description.
fn dependencies(description: &str) -> impl Iterator<Item = &str> {
    description
        .lines()
        .filter_map(|line| line.strip_prefix("Depends: "))
        .flat_map(|line| line.split(','))
        .filter_map(|item| item.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_release_is_read_from_the_meta_package() {
        let text = "Package: linux-image-cloud-amd64\nVersion: 6.1.192-2\n\
                    Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)\n";

        let found = kernel_release(text);

        assert_eq!(found, Some(("6.1.0-56-cloud-amd64".to_owned(), "6.1.192-2".to_owned())));
    }

    #[test]
    fn dependencies_drops_version_constraints() {
        let text = "Depends: linux-headers-6.1.0-56-common (= 6.1.192-2), linux-kbuild-6.1 (>= 6.1.192-2), x\n";

        let names: Vec<_> = dependencies(text).collect();

        assert_eq!(names, ["linux-headers-6.1.0-56-common", "linux-kbuild-6.1", "x"]);
    }

    #[test]
    fn major_version_reads_qemu_and_refuses_other_text() {
        assert_eq!(major_version("QEMU emulator version 10.0.2 (Debian 1:10)"), Some(10));
        assert_eq!(major_version("no such thing"), None);
    }
}
