//! apt with its own sources and lists, so that the machine's apt configuration is neither used nor changed.

use crate::lock::LockError;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian's packages come from.
pub const MIRROR: &str = "http://deb.debian.org/debian";

/// How long apt waits for another one that changes this machine's packages, seconds.
const LOCK_TIMEOUT_SECONDS: u32 = 600;

const SOURCES: &str = "\
deb http://deb.debian.org/debian bookworm main
deb http://deb.debian.org/debian bookworm-updates main
deb http://deb.debian.org/debian bookworm-backports main
deb http://deb.debian.org/debian-security bookworm-security main
";

/// Why packages could not be had.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Nobody knows whether another process fetches the same.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Packages are missing and this user may not install them.
    #[error("missing packages and not root: run as root, or install them: apt-get install {}", packages.join(" "))]
    NotRoot {
        /// The missing packages.
        packages: Vec<String>,
    },
    /// The lists of packages could not be had.
    #[error("cannot fetch the package lists: check the network and the mirror deb.debian.org; see {}", log.display())]
    Lists {
        /// What apt said.
        log: PathBuf,
    },
    /// apt knows no such package.
    #[error("the package lists have no {0}: check the network and the mirror deb.debian.org")]
    Unknown(String),
}

/// apt with its own sources, lists and archives.
pub(crate) struct Apt {
    folder: PathBuf,
    logs: PathBuf,
}

impl Apt {
    /// The one for tools, of this Debian and its backports.
    pub(super) fn prepare(paths: &Paths) -> Result<Self, PackageError> {
        Self::with_sources(paths, paths.apt(), SOURCES)
    }

    /// One that keeps its state in `folder` and has up-to-date lists of `sources`.
    pub(crate) fn with_sources(paths: &Paths, folder: PathBuf, sources_list: &str) -> Result<Self, PackageError> {
        let apt = Self { folder, logs: paths.logs() };
        for sub in ["lists/partial", "archives/partial"] {
            let path = apt.folder.join(sub);
            fs::create_dir_all(&path).map_err(|source| PackageError::File { path, source })?;
        }
        let sources = apt.folder.join("sources.list");
        fs::write(&sources, sources_list).map_err(|source| PackageError::File { path: sources, source })?;
        let log = apt.log("apt-update");
        // by default a list that cannot be had is a warning, and what is in it is missing later
        let update = process::run_logged(apt.command("apt-get").args(["update", "--error-on=any"]), &log);
        update.map_err(|_| PackageError::Lists { log })?;
        Ok(apt)
    }

    pub(crate) fn log(&self, step: &str) -> PathBuf {
        self.logs.join(format!("{step}.log"))
    }

    pub(crate) fn command(&self, program: &str) -> Command {
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
            // another apt, as of a run in another checkout, may be installing
            format!("DPkg::Lock::Timeout={LOCK_TIMEOUT_SECONDS}"),
        ] {
            command.args(["-o", &option]);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        command
    }

    pub(super) fn install(&self, packages: &[String], suite: Option<&str>) -> Result<(), PackageError> {
        let mut command = self.command("apt-get");
        command.args(["install", "-y", "--no-install-recommends"]);
        if let Some(suite) = suite {
            command.args(["-t", suite]);
        }
        let step = suite.map_or_else(|| "apt-install".to_owned(), |suite| format!("apt-install-{suite}"));
        process::run_logged(command.args(packages), &self.log(&step))?;
        Ok(())
    }

    /// Downloads `names` into the folder `downloads`, which is empty afterwards, and unpacks them into the new folder
    /// `root`.
    pub(crate) fn unpack(
        &self,
        names: impl IntoIterator<Item: AsRef<OsStr>>,
        downloads: &Path,
        root: &Path,
    ) -> Result<(), PackageError> {
        recreate(downloads)?;
        let mut download = self.command("apt-get");
        download.arg("download").args(names).current_dir(downloads);
        process::run_logged(&mut download, &self.log("apt-download"))?;
        recreate(root)?;
        let list = fs::read_dir(downloads).map_err(|source| PackageError::File { path: downloads.into(), source })?;
        for entry in list.flatten() {
            process::run_logged(Command::new("dpkg").arg("-x").arg(entry.path()).arg(root), &self.log("dpkg"))?;
        }
        // they are as large as the unpacked root, and not needed any more
        recreate(downloads)
    }

    /// The description of a package: of the version that would be installed.
    pub(crate) fn show(&self, package: &str) -> Result<String, PackageError> {
        process::capture(self.command("apt-cache").args(["show", "--no-all-versions", package]))
            .map_err(|_| PackageError::Unknown(package.to_owned()))
    }
}

/// The line by which this machine's apt sets `option`; `None` where it does not.
pub(crate) fn machine_setting(option: &str) -> Result<Option<String>, PackageError> {
    let dump = process::capture(Command::new("apt-config").args(["dump", "--no-empty", option]))?;
    Ok(dump.lines().find(|line| line.starts_with(option)).map(str::to_owned))
}

/// Makes an empty folder in place of what is there.
pub(crate) fn recreate(folder: &Path) -> Result<(), PackageError> {
    let error = |source| PackageError::File { path: folder.to_path_buf(), source };
    match fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(error(source)),
        _ => {}
    }
    fs::create_dir_all(folder).map_err(error)
}
