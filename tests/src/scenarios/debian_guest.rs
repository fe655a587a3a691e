//! A Debian as people have it: its own kernel, initrd and systemd on one ext4 image, from which `strata run --image`
//! boots it, with a network device on a tap of its host. Strata's packages were installed in it by dpkg; it installs
//! another package itself, with apt-get over the network.
//!
//! The root is made by `mmdebstrap`; the packages are installed in it where it is made, so that DKMS builds the module
//! for the guest's kernel there, and initramfs-tools its initrd. What only building needs is then taken away, and the
//! rest becomes the image. The host serves a repository with one package over HTTP. The run leaves `debian.log`, the
//! guest's console, on which `lab-report.service` shows what came of it, `debian.status`, `debian.trace`, and what
//! `strata run` says of an image that another VM has, in `busy.log`.

use crate::build::binaries::Purpose;
use crate::fetch::apt::{self, PackageError};
use crate::fetch::kernel_packages::KernelChoice;
use crate::fetch::tools::{self, Tool};
use crate::machine::disk_space::{self, DiskSpaceError};
use crate::machine::host::{HostResult, HostRun};
use crate::packaging::{self, Form, PackagingError, Selection};
use crate::process;
use crate::progress;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError};
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Room that making the root and the image takes on the disk.
const ROOT_BYTES: u64 = 2 << 30;
const TOOLS: [Tool; 1] = [Tool { program: "mmdebstrap", package: "mmdebstrap" }];
/// What the guest gets of strata's packages: how the names of their files begin.
const INSTALLED: [&str; 5] = ["strata_", "strata-agent_", "strata-dkms_", "libstrata1_", "python3-strata_"];
/// Packages of a guest that builds its own module, and has a program in Python.
const INCLUDED: &str = "systemd-sysv,udev,kmod,dkms,gcc,make,binutils,libelf1,initramfs-tools,linux-base,zstd,python3";

/// Modules that the running guest loads for the machine's devices, and for systemd. Those of its disk are in the
/// initrd.
const KEPT_MODULES: [&str; 8] =
    ["virtio_net", "net_failover", "failover", "virtio-rng", "rng-core", "autofs4", "binfmt_misc", "fuse"];

/// Installs the packages in `$1`, a new root out of the archive `$2`, with the kernel unpacked in `$3`; the packages
/// are the rest of the arguments.
const INSTALL: &str = include_str!("debian_guest/install.sh");

/// Makes the image `$2` of the root `$1` without what a running guest has no use for, and with the report's unit.
const MAKE_IMAGE: &str = include_str!("debian_guest/make_image.sh");

/// What the guest shows on its console.
const REPORT: &str = include_str!("debian_guest/report.sh");

/// The repository in the folder `$1`: one package, whose program says that it is there.
const MAKE_REPOSITORY: &str = include_str!("debian_guest/make_repository.sh");

/// `@MODULES@` is filled in.
const HOST_SCRIPT: &str = include_str!("debian_guest/host.sh");

/// Why the guest could not be made or run.
#[derive(Debug, thiserror::Error)]
pub enum DebianGuestError {
    /// Strata's packages could not be made.
    #[error(transparent)]
    Packaging(#[from] PackagingError),
    /// There is no room for the root.
    #[error(transparent)]
    DiskSpace(#[from] DiskSpaceError),
    /// Debian's packages could not be had, or a program failed.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// The host or an image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Makes the packages and a disk image of a Debian that has them installed, and boots it in the run folder `name`.
///
/// # Errors
///
/// When a package cannot be made or installed (which includes DKMS' build of the module), or the host fails; what the
/// guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, DebianGuestError> {
    disk_space::require(lab.paths.lab(), ROOT_BYTES)?;
    let image = disk_image(lab)?;
    let repository = repository(lab)?;
    // With which the host makes a tap.
    let of_host = scenarios::host_modules(lab, &["tun"]).map_err(ScenarioError::from)?;
    let names: Vec<&str> = of_host.iter().map(|(name, _)| name.as_str()).collect();
    let request = HostRun::new(name, &HOST_SCRIPT.replace("@MODULES@", &names.join(" ")))
        .file("strata", &lab.binaries.strata)
        .file("Packages", &repository.join("Packages"))
        .file("lab-greeting.deb", &repository.join("lab-greeting.deb"))
        .file("debian.img", &image);
    let mut request = of_host.iter().fold(request, |request, (name, path)| request.file(name, path));
    request.timeout = Duration::from_secs(640);
    request.memory_mib = 6144;
    let result = lab.host.run(&lab.paths.runs(), &request).map_err(ScenarioError::from)?;
    Ok(result.success(name).map_err(ScenarioError::from)?)
}

/// The folder of a repository with one package.
fn repository(lab: &Lab) -> Result<PathBuf, PackageError> {
    let folder = lab.paths.builds().join("repository");
    let mut make = Command::new("sh");
    make.args(["-c", MAKE_REPOSITORY, "make-repository"]).arg(&folder);
    process::run_logged(&mut make, &lab.paths.logs().join("debian-repository.log"))?;
    Ok(folder)
}

fn disk_image(lab: &Lab) -> Result<PathBuf, DebianGuestError> {
    let paths = &lab.paths;
    let selection = Selection { forms: &[Form::Deb], kernels: &[], query: false };
    let built = packaging::build(paths, Purpose::Test, &paths.builds().join("debs"), selection)?;
    let installed = built.iter().filter(|file| INSTALLED.iter().any(|name| file_name(file).starts_with(name)));
    let base = base_archive(lab)?;
    let root = paths.roots().join("debian-guest");
    let image = paths.images().join("debian.img");
    progress::step("installing the packages in a Debian root", || {
        let mut install = Command::new("sh");
        install.args(["-c", INSTALL, "install"]).arg(&root).arg(&base).arg(paths.kernel_root(KernelChoice::DEFAULT));
        process::run_logged(install.args(installed), &paths.logs().join("debian-install.log"))
    })
    .map_err(PackageError::from)?;
    let error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| PackageError::File { path, source }
    };
    let report = root.join("usr/bin/lab-report");
    fs::write(&report, REPORT).map_err(error(&report))?;
    fs::copy(&lab.binaries.workload, root.join("usr/bin/workload")).map_err(error(&root))?;
    let shop = paths.workspace().join("guest-agent/c-api/examples/shop.py");
    fs::copy(&shop, root.join("usr/bin/shop.py")).map_err(error(&shop))?;
    process::capture(Command::new("chmod").arg("755").arg(&report)).map_err(PackageError::from)?;
    let mut make_image = Command::new("sh");
    make_image
        .args(["-c", &MAKE_IMAGE.replace("@KEPT@", &KEPT_MODULES.join("|")), "make-image"])
        .arg(&root)
        .arg(&image);
    process::run_logged(&mut make_image, &paths.logs().join("debian-image.log")).map_err(PackageError::from)?;
    fs::remove_dir_all(&root).map_err(error(&root))?;
    Ok(image)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The archive of a Debian 12 that can build modules. Made once and kept.
fn base_archive(lab: &Lab) -> Result<PathBuf, PackageError> {
    let mut packages = DefaultHasher::new();
    packages.write(INCLUDED.as_bytes());
    let archive = lab.paths.roots().join(format!("debian-bootable-{:016x}.tar", packages.finish()));
    if archive.is_file() {
        return Ok(archive);
    }
    tools::install(&lab.paths, &TOOLS)?;
    progress::step("making a Debian root for guests", || {
        let partial = lab.paths.roots().join("partial.tar");
        fs::create_dir_all(lab.paths.roots())
            .map_err(|source| PackageError::File { path: lab.paths.roots(), source })?;
        let mut command = Command::new("mmdebstrap");
        command
            .args(["--quiet", "--variant=minbase", &format!("--include={INCLUDED}")])
            .args(["--aptopt=APT::Sandbox::User \"root\"", "--aptopt=Acquire::Retries \"3\"", "bookworm"])
            .arg(&partial)
            .arg(apt::MIRROR);
        process::run_logged(&mut command, &lab.paths.logs().join("debian-root.log"))?;
        fs::rename(&partial, &archive).map_err(|source| PackageError::File { path: archive.clone(), source })
    })?;
    Ok(archive)
}
