//! A guest with Debian's own user land: systemd, and Strata's packages installed by dpkg, on a virtio disk.
//!
//! The root is made by `mmdebstrap`; the packages are installed in it where it is made, so that DKMS builds the module
//! for the guest's kernel there. What only building needs is then taken away, and the rest becomes an ext4 image. The
//! run leaves `debian.log`, the guest's console, on which `lab-report.service` shows what came of it, and
//! `debian.trace`.

use crate::build::initramfs::Initramfs;
use crate::fetch::apt::{self, PackageError};
use crate::fetch::kernel_packages::KernelChoice;
use crate::fetch::module_tree::ModuleTree;
use crate::fetch::tools::{self, Tool};
use crate::machine::disk_space::{self, DiskSpaceError};
use crate::machine::host::{HostResult, HostRun};
use crate::packaging::{self, PackagingError};
use crate::process;
use crate::progress;
use crate::provision::{Kernels, Lab};
use crate::scenarios::ScenarioError;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Room that making the root and the image takes on the disk.
const ROOT_BYTES: u64 = 2 << 30;
const TOOLS: [Tool; 1] = [Tool { program: "mmdebstrap", package: "mmdebstrap" }];
/// Packages of a guest that builds its own module.
const INCLUDED: &str = "systemd-sysv,udev,kmod,dkms,gcc,make,binutils,libelf1";

/// Installs the packages in `$1`, a new root out of the archive `$2`, with the kernel unpacked in `$3`; the packages
/// are the rest of the arguments.
const INSTALL: &str = r#"
set -e
root=$1 base=$2 kernel=$3
shift 3
rm -rf "$root"
mkdir "$root"
tar -x -f "$base" -C "$root"
cp -a "$kernel/boot/." "$root/boot/"
cp -a "$kernel/usr/." "$root/usr/"
cp -a "$kernel/lib/." "$root/usr/lib/"
mkdir "$root/packages"
cp "$@" "$root/packages/"
unshare --mount --pid --fork sh -e -c 'mount -t proc proc "$1/proc"; exec chroot "$1" sh -e -c "
    export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin
    dpkg --install /packages/*.deb
    dkms status"' sh "$root"
rm -r "$root/packages"
"#;

/// Makes the image `$2` of the root `$1` without what a running guest has no use for, and with the report's unit.
const MAKE_IMAGE: &str = r#"
set -e
root=$1 image=$2
cd "$root"
rm -rf usr/src/linux-headers-* usr/lib/linux-kbuild-* usr/lib/gcc usr/libexec/gcc usr/share/doc usr/share/locale usr/share/man \
    usr/share/perl usr/share/i18n usr/share/zoneinfo usr/lib/x86_64-linux-gnu/perl usr/lib/x86_64-linux-gnu/perl-base \
    usr/lib/x86_64-linux-gnu/*.a usr/lib/x86_64-linux-gnu/gconv usr/bin/*lto-dump* usr/include usr/lib/python3* usr/lib/modules/*/kernel boot/* var/lib/apt/lists/* \
    var/cache/apt/*.bin var/cache/apt/archives/*.deb
find usr/lib -name 'lib*san.so*' -delete
cat > usr/lib/systemd/system/lab-report.service << 'END'
[Unit]
Description=What the lab wants to know
After=multi-user.target systemd-udev-settle.service

[Service]
Type=oneshot
StandardOutput=journal+console
ExecStart=/usr/bin/lab-report
ExecStopPost=/usr/bin/systemctl poweroff --force

[Install]
WantedBy=graphical.target
END
# a first boot asks questions
echo 5f0e0c9a3d7b4b0c8f3e2d1c0b9a8f7e > etc/machine-id
ln -sf /usr/lib/systemd/system/graphical.target etc/systemd/system/default.target
mkdir -p etc/systemd/system/graphical.target.wants
ln -sf /usr/lib/systemd/system/lab-report.service etc/systemd/system/graphical.target.wants/
size=$(($(du -s --apparent-size -k . | cut -f 1) * 5 / 4 + 16384))
rm -f "$image"
PATH=$PATH:/sbin:/usr/sbin mke2fs -q -t ext4 -d . "$image" "${size}k"
"#;

/// What the guest shows on its console.
const REPORT: &str = r#"#!/bin/sh
echo "report: system $(systemctl is-system-running) on $(uname -r)"
echo "report: unit $(systemctl is-active strata-agent.service)"
echo "report: device $(stat -c '%U:%G %a' /dev/strata)"
dpkg-query --show --showformat 'report: package ${Package} ${Version} ${db:Status-Abbrev}\n' 'strata*'
strata-agent status 2>&1 | sed 's/^/report: /'
setpriv --reuid=nobody --regid=nogroup --groups="$(getent group strata | cut -d : -f 3)" workload --events 500 &&
    echo "report: workload done"
systemctl stop strata-agent.service
echo "report: after stopping: $(systemctl is-active strata-agent.service), $(lsmod | grep -c '^strata ') modules"
dmesg | grep 'strata: ' | sed 's/^/report: /'
"#;

/// The initrd's first program: the modules of the disk, and on to the disk's own init.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /root
while read -r module; do
    /bin/busybox insmod "/lib/strata-lab/$module"
done < /lib/strata-lab/order
/bin/busybox mount -t devtmpfs devtmpfs /dev
until [ -e /dev/vda ]; do /bin/busybox sleep 0.1; done
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
"#;

const HOST_SCRIPT: &str = r#"
timeout -s KILL 400 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/disk-initrd.cpio" --memory 768M --cpus 2 \
    --disk "$LAB/debian.img" --trace "$LAB_OUT/debian.trace" \
    --cmdline "console=ttyS0 panic=-1 quiet systemd.show_status=false" < /dev/null > "$LAB_OUT/debian.log" 2>&1
echo $? > "$LAB_OUT/debian.status"
tail -n 5 "$LAB_OUT/debian.log"
exit 0
"#;

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
    let initrd = lab.paths.images().join("disk-initrd.cpio");
    disk_initrd(&lab.kernels)?.write_file(&initrd).map_err(ScenarioError::from)?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("disk-initrd.cpio", &initrd)
        .file("debian.img", &image);
    request.timeout = Duration::from_secs(540);
    request.memory_mib = 6144;
    let result = lab.host.run(&lab.paths.runs(), &request).map_err(ScenarioError::from)?;
    Ok(result.success(name).map_err(ScenarioError::from)?)
}

/// An initrd that boots from the first virtio disk.
fn disk_initrd(kernels: &Kernels) -> Result<Initramfs, ScenarioError> {
    let modules = ModuleTree::open(&kernels.modules)?.closure(&["virtio_mmio", "virtio_blk", "ext4"])?;
    let archive = Initramfs::new().busybox(&kernels.busybox).modules(&modules);
    Ok(archive.folder("dev").bytes("init", 0o755, INIT))
}

fn disk_image(lab: &Lab) -> Result<PathBuf, DebianGuestError> {
    let paths = &lab.paths;
    let built = packaging::build(paths, &paths.builds().join("debs"))?;
    let for_guest = built
        .iter()
        .filter(|file| ["strata-agent_", "strata-dkms_"].iter().any(|name| file_name(file).starts_with(name)));
    let base = base_archive(lab)?;
    let root = paths.roots().join("debian-guest");
    let image = paths.images().join("debian.img");
    progress::step("installing the packages in a Debian root", || {
        let mut install = Command::new("sh");
        install.args(["-c", INSTALL, "install"]).arg(&root).arg(&base).arg(paths.kernel_root(KernelChoice::DEFAULT));
        process::run_logged(install.args(for_guest), &paths.logs().join("debian-install.log"))
    })
    .map_err(PackageError::from)?;
    let error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| PackageError::File { path, source }
    };
    let report = root.join("usr/bin/lab-report");
    fs::write(&report, REPORT).map_err(error(&report))?;
    fs::copy(&lab.binaries.workload, root.join("usr/bin/workload")).map_err(error(&root))?;
    process::capture(Command::new("chmod").arg("755").arg(&report)).map_err(PackageError::from)?;
    let mut make_image = Command::new("sh");
    make_image.args(["-c", MAKE_IMAGE, "make-image"]).arg(&root).arg(&image);
    process::run_logged(&mut make_image, &paths.logs().join("debian-image.log")).map_err(PackageError::from)?;
    fs::remove_dir_all(&root).map_err(error(&root))?;
    Ok(image)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The archive of a Debian 12 that can build modules. Made once and kept.
fn base_archive(lab: &Lab) -> Result<PathBuf, PackageError> {
    let archive = lab.paths.roots().join("debian-guest.tar");
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
