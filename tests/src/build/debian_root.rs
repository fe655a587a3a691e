//! A root file system of another Debian release, to run programs in that this machine's release does not have.

use crate::fetch::apt::{self, PackageError};
use crate::fetch::tools::{self, Tool};
use crate::lock::Lock;
use crate::paths::Paths;
use crate::process;
use crate::progress;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// What makes and enters roots.
const TOOLS: [Tool; 2] =
    [Tool { program: "mmdebstrap", package: "mmdebstrap" }, Tool { program: "bwrap", package: "bubblewrap" }];

/// Whether apt takes lists that have expired, as those of a mirror that stands still: as on this machine, so in a root.
const EXPIRED_LISTS: &str = "Acquire::Check-Valid-Until";

/// Debian 13's name.
const TRIXIE: &str = "trixie";

/// The compilers of Debian's kernels, the releases that have them, and these releases' packages with `pahole`.
const COMPILERS: [(&str, &str, &str); 4] = [
    ("gcc-10", "bullseye", "dwarves"),
    ("gcc-12", "bookworm", "pahole"),
    ("gcc-14", TRIXIE, "pahole"),
    ("gcc-16", "forky", "pahole"),
];

/// Where programs lie in a root; up to Debian 11, /bin and /sbin are folders of their own.
const PATH: &str = "/usr/bin:/usr/sbin:/bin:/sbin";

/// A root file system with some programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebianRoot {
    folder: PathBuf,
}

impl DebianRoot {
    /// The release of Debian whose kernels `compiler` builds, with that and what else their modules are built with; `None`
    /// for a compiler of no release of Debian. Made once and kept.
    ///
    /// # Errors
    ///
    /// When packages cannot be had; that takes root.
    pub fn with_compiler(paths: &Paths, compiler: &str) -> Result<Option<Self>, PackageError> {
        let Some((_, release, pahole)) = COMPILERS.into_iter().find(|(known, ..)| *known == compiler) else {
            return Ok(None);
        };
        let root =
            Self::make(paths, release, release, &format!("making a root with {release}'s {compiler}"), |command| {
                command.args(["--variant=apt", &format!("--include=make,{compiler},binutils,{pahole}")]);
            })?;
        Ok(Some(root))
    }

    /// Debian 13 with what its kernels are built with. Made once and kept.
    ///
    /// # Errors
    ///
    /// When packages cannot be had; that takes root.
    pub fn kernel_builder(paths: &Paths) -> Result<Self, PackageError> {
        Self::make(paths, TRIXIE, "trixie-kernel", "making a root to build Debian 13's kernels in", |command| {
            let packages = "make,gcc-14,binutils,pahole,flex,bison,bc,libelf-dev,perl,python3,kmod";
            command.args(["--variant=apt", &format!("--include={packages}")]);
        })
    }

    /// The Rust of Debian 13, the oldest one that the library crates promise to build with, and the linker that it
    /// uses. Made once and kept.
    ///
    /// # Errors
    ///
    /// When packages cannot be had; that takes root.
    pub fn oldest_rust(paths: &Paths) -> Result<Self, PackageError> {
        Self::unpack(paths, "trixie-rust", "making a root with Debian 13's Rust", "rustc,cargo")
    }

    /// The babeltrace2 of Debian 13, which reads CTF 2. Made once and kept.
    ///
    /// # Errors
    ///
    /// When packages cannot be had; that takes root.
    pub fn babeltrace2(paths: &Paths) -> Result<Self, PackageError> {
        Self::unpack(paths, "trixie-babeltrace2", "making a root with Debian 13's babeltrace2", "babeltrace2")
    }

    /// Debian 13 with libvirt's daemons, QEMU and AppArmor, as they are installed. Made once and kept.
    ///
    /// # Errors
    ///
    /// When packages cannot be had; that takes root.
    pub fn libvirt(paths: &Paths) -> Result<Self, PackageError> {
        Self::make(paths, TRIXIE, "trixie-libvirt", "making a root with Debian 13's libvirt", |command| {
            let packages =
                "libvirt-daemon-system,libvirt-clients,libvirt-daemon-driver-qemu,qemu-system-x86,dbus,apparmor";
            command.args(["--variant=apt", &format!("--include={packages}")]);
        })
    }

    /// The folder that is its `/`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The root `name` of Debian 13 with `packages`, separated by commas, and what they need: unpacked, not installed. No
    /// script of a package has run.
    fn unpack(paths: &Paths, name: &str, step: &str, packages: &str) -> Result<Self, PackageError> {
        Self::make(paths, TRIXIE, name, step, |command| {
            command.args(["--variant=extract", &format!("--include={packages}")]);
            // scripts would make these
            command.arg("--extract-hook=cd \"$1\" && ln -s usr/bin bin && ln -s usr/lib lib && ln -s usr/lib64 lib64 && mkdir -p proc");
        })
    }

    /// The root `name` of `release` as `mmdebstrap` makes it with the options that `choose` adds.
    fn make(
        paths: &Paths,
        release: &str,
        name: &str,
        step: &str,
        choose: impl FnOnce(&mut Command),
    ) -> Result<Self, PackageError> {
        let folder = paths.roots().join(name);
        if folder.is_dir() {
            return Ok(Self { folder });
        }
        tools::install(paths, &TOOLS)?;
        let _lock = Lock::take(&folder.with_extension("lock"))?;
        if folder.is_dir() {
            return Ok(Self { folder });
        }
        progress::step(step, || {
            // renamed last, so that an interrupted call is repeated
            let partial = folder.with_extension("partial");
            apt::recreate(&partial)?;
            let mut command = Command::new("mmdebstrap");
            command.arg("--quiet").args(["--aptopt=APT::Sandbox::User \"root\"", "--aptopt=Acquire::Retries \"3\""]);
            command.args(apt::machine_setting(EXPIRED_LISTS)?.map(|line| format!("--aptopt={line}")));
            choose(&mut command);
            command.arg(release).arg(&partial).arg(apt::MIRROR);
            process::run_logged(&mut command, &paths.logs().join(format!("root-{name}.log")))?;
            fs::rename(&partial, &folder).map_err(|source| PackageError::File { path: folder.clone(), source })
        })?;
        Ok(Self { folder })
    }

    /// A command that runs `program` in the root, where the folders `shared` are under the names that they have here.
    /// Of environment variables it gets a `PATH` and those in `environment`.
    #[must_use]
    pub fn command(&self, program: &Path, shared: &[&Path], environment: &[(&str, OsString)]) -> Command {
        let mut command = Command::new("bwrap");
        command
            .arg("--die-with-parent")
            .arg("--bind")
            .arg(&self.folder)
            .args(["/", "--dev", "/dev", "--proc", "/proc"]);
        for top in top_folders(shared) {
            command.arg("--bind").arg(&top).arg(&top);
        }
        // what this machine's environment says is not true there
        command.args(["--clearenv", "--setenv", "PATH", PATH]);
        for (name, value) in environment {
            command.args(["--setenv", name]).arg(value);
        }
        command.args(["--chdir", "/"]).arg(program);
        command
    }
}

/// The folders just below `/` that hold these absolute paths: a source tree refers to its neighbours.
fn top_folders(paths: &[&Path]) -> Vec<PathBuf> {
    let mut tops: Vec<PathBuf> = paths
        .iter()
        .filter_map(|path| path.components().find(|component| matches!(component, Component::Normal(_))))
        .map(|component| Path::new("/").join(component))
        .collect();
    tops.sort();
    tops.dedup();
    tops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_folders_keep_their_names() {
        let root = DebianRoot { folder: "/lab/root".into() };

        let command = root.command(Path::new("/build"), &[Path::new("/sources/a"), Path::new("/sources/b")], &[]);

        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
        assert_eq!(arguments.iter().filter(|argument| *argument == "/sources").count(), 2);
        assert_eq!(arguments.last().unwrap(), "/build");
    }
}
