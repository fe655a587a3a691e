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
use crate::packaging::{self, Form, PackagingError};
use crate::process;
use crate::progress;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Room that making the root and the image takes on the disk.
const ROOT_BYTES: u64 = 2 << 30;
const TOOLS: [Tool; 1] = [Tool { program: "mmdebstrap", package: "mmdebstrap" }];
/// Packages of a guest that builds its own module.
const INCLUDED: &str = "systemd-sysv,udev,kmod,dkms,gcc,make,binutils,libelf1,initramfs-tools,linux-base,zstd";

/// Modules that the running guest loads for the machine's devices, and for systemd. Those of its disk are in the
/// initrd.
const KEPT_MODULES: [&str; 8] =
    ["virtio_net", "net_failover", "failover", "virtio-rng", "rng-core", "autofs4", "binfmt_misc", "fuse"];

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
    export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin TMPDIR=/tmp
    dpkg --install /packages/*.deb
    dkms status
    cd /usr/lib/modules
    for release in *; do
        depmod \$release
        update-initramfs -c -k \$release
        linux-update-symlinks install \$release /boot/vmlinuz-\$release
    done"' sh "$root"
rm -r "$root/packages"
ls -l "$root" "$root/boot"
"#;

/// Makes the image `$2` of the root `$1` without what a running guest has no use for, and with the report's unit.
const MAKE_IMAGE: &str = r#"
set -e
root=$1 image=$2
cd "$root"
rm -rf usr/src/linux-headers-* usr/lib/linux-kbuild-* usr/lib/gcc usr/libexec/gcc usr/share/doc usr/share/locale \
    usr/share/man usr/share/perl usr/share/i18n usr/share/zoneinfo usr/lib/x86_64-linux-gnu/perl \
    usr/lib/x86_64-linux-gnu/*.a usr/lib/x86_64-linux-gnu/gconv usr/bin/*lto-dump* usr/include usr/lib/python3* \
    boot/System.map* var/lib/apt/lists/* var/cache/apt/*.bin var/cache/apt/archives/*.deb
find usr/lib -name 'lib*san.so*' -delete
find usr/lib/modules/*/kernel -name '*.ko' | grep -vE '/(@KEPT@)[.]ko$' | xargs rm
cat > usr/lib/systemd/system/lab-report.service << 'END'
[Unit]
Description=What the lab wants to know
After=multi-user.target systemd-udev-settle.service network-online.target
Wants=network-online.target

[Service]
Type=oneshot
StandardOutput=journal+console
ExecStart=/usr/bin/lab-report
ExecStopPost=/usr/bin/systemctl poweroff

[Install]
WantedBy=graphical.target
END
cat > usr/lib/systemd/network/20-lab.network << 'END'
[Match]
Driver=virtio_net

[Network]
Address=192.168.77.2/24
LinkLocalAddressing=no
END
chroot . /usr/bin/systemctl --quiet enable systemd-networkd.service
echo 'deb [trusted=yes] http://192.168.77.1:8080/ ./' > etc/apt/sources.list
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
echo "report: root $(findmnt --noheadings --output SOURCE,FSTYPE,OPTIONS / | tr -s ' ')"
echo "report: source of randomness $(cat /sys/class/misc/hw_random/rng_available)"
echo "report: network $(cd /sys/class/net && for one in *; do echo "$one $(cat $one/operstate);"; done | tr '\n' ' ')"
apt-get update 2>&1 | sed 's/^/report: apt: /'
DEBIAN_FRONTEND=noninteractive apt-get --yes install lab-greeting 2>&1 | sed 's/^/report: apt: /'
echo "report: installed $(lab-greeting)"
echo "report: unit $(systemctl is-active strata-agent.service)"
echo "report: device $(stat -c '%U:%G %a' /dev/strata)"
dpkg-query --show --showformat 'report: package ${Package} ${Version} ${db:Status-Abbrev}\n' 'strata*'
strata-agent status 2>&1 | sed 's/^/report: /'
setpriv --reuid=nobody --regid=nogroup --groups="$(getent group strata | cut -d : -f 3)" workload --events 500 &&
    echo "report: workload done"
systemctl stop strata-agent.service
echo "report: after stopping: $(systemctl is-active strata-agent.service), $(lsmod | grep -c '^strata ') modules"
dmesg | grep 'strata: ' | sed 's/^/report: /'
systemctl list-units --failed --no-legend --plain | sed 's/^/report: failed unit /'
echo "report: failed units: $(systemctl list-units --failed --no-legend --plain | wc -l)"
"#;

/// The repository in the folder `$1`: one package, whose program says that it is there.
const MAKE_REPOSITORY: &str = r#"
set -e
rm -rf "$1"
mkdir -p "$1/package/DEBIAN" "$1/package/usr/bin"
cat > "$1/package/DEBIAN/control" << 'END'
Package: lab-greeting
Version: 1.0
Architecture: all
Maintainer: The lab <lab@localhost>
Description: Says that it is installed
END
printf '#!/bin/sh\necho "a greeting of the lab"\n' > "$1/package/usr/bin/lab-greeting"
chmod 755 "$1/package/usr/bin/lab-greeting"
deb="$1/lab-greeting.deb"
dpkg-deb --root-owner-group --build "$1/package" "$deb"
{
    dpkg-deb --field "$deb"
    echo "Filename: ./lab-greeting.deb"
    echo "Size: $(stat -c %s "$deb")"
    echo "SHA256: $(sha256sum "$deb" | cut -d ' ' -f 1)"
} > "$1/Packages"
"#;

/// `@MODULES@` is filled in.
const HOST_SCRIPT: &str = r#"
for module in @MODULES@; do insmod "$LAB/$module" || echo "cannot load $module"; done
busybox tunctl -t strata7 || exit 1
trap 'busybox tunctl -d strata7' EXIT
echo 1 > /proc/sys/net/ipv6/conf/strata7/disable_ipv6
ip addr add 192.168.77.1/24 dev strata7
ip link set strata7 up
mkdir "$LAB/repository"
mv "$LAB/Packages" "$LAB/lab-greeting.deb" "$LAB/repository/"
busybox httpd -p 192.168.77.1:8080 -h "$LAB/repository"
timeout -s KILL 500 strata run --image "$LAB/debian.img" --memory 768M --cpus 2 --net tap=strata7 --rng \
    --trace "$LAB_OUT/debian.trace" --cmdline "console=ttyS0 panic=-1 quiet systemd.show_status=false" \
    < /dev/null > "$LAB_OUT/debian.log" 2>&1 &
guest=$!
until grep -q 'out of' "$LAB_OUT/debian.log" || ! kill -0 $guest; do sleep 0.2; done
sleep 2
strata run --name vm1 --image "$LAB/debian.img" --memory 768M < /dev/null > "$LAB_OUT/busy.log" 2>&1
wait $guest
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
    let built = packaging::build(paths, Purpose::Test, &paths.builds().join("debs"), &[Form::Deb], &[])?;
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
    let archive = lab.paths.roots().join("debian-bootable.tar");
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
