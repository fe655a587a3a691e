//! Guests that end in every way: the scripts, and one image with all of the guest's.
//!
//! All scenarios run one after the other in one boot of the host; each leaves `NAME.log` (what `strata run` wrote),
//! `NAME.status` (its exit status) and `NAME.trace`.

use crate::build::guest_image::GuestImage;
use crate::fetch::module_tree::ModulesError;
use crate::machine::host::{HostResult, HostRun};
use crate::paths::Paths;
use crate::provision::{Kernels, Lab};
use crate::scenarios::{self, ScenarioError};
use std::path::PathBuf;
use std::time::Duration;

/// Written by the guest's disk scenario, and looked for by the host afterwards.
pub const DISK_TEXT: &str = "written by the guest";
/// A limit that the host's script gives to a device.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// Bytes each second.
    pub per_second: u64,
    /// Bytes at once after a pause.
    pub burst: u64,
}

/// What the disk of the disk scenario may move: `bandwidth=1M:256K`.
pub const DISK_BANDWIDTH: Bandwidth = Bandwidth { per_second: 1 << 20, burst: 256 << 10 };
/// The events of the large burst.
pub const BURST_EVENTS: u32 = 1_000_000;

/// The guest's scripts by name.
const GUEST_SCRIPTS: [(&str, &str); 9] = [
    ("hello", "echo hello from the guest; cat /proc/cmdline\n"),
    (
        // system calls, context switches, page faults, forks, and a console that exits for every byte
        "activity",
        "\
workload
i=0
while [ $i -lt 300 ]; do
    cat /proc/interrupts
    i=$((i + 1))
done > /tmp/interrupts
head -c 20000 /tmp/interrupts
dd if=/dev/zero of=/tmp/file bs=512 count=20000 2> /dev/null
md5sum /tmp/file
",
    ),
    (
        "disk",
        "\
mount -t ext4 /dev/vda /mnt || exit 1
cat /mnt/original
echo 'written by the guest' > /mnt/answer
dd if=/dev/urandom of=/mnt/random bs=64k count=32 2> /dev/null
sync
echo 3 > /proc/sys/vm/drop_caches
md5sum /mnt/random
md5sum /mnt/random | cut -d' ' -f1 > /mnt/random.md5
umount /mnt && echo 'disk unmounted'
",
    ),
    ("panic", "workload --events 1000\nsync\necho c > /proc/sysrq-trigger\nsleep 60\n"),
    // with its own symbols but for those of modules, which lie where the kernel was moved at random
    ("reboot", "echo \"symbols: $(grep -v ']$' /proc/kallsyms | md5sum)\"\nreboot -f\nsleep 60\n"),
    // the disk tells the first boot from the second
    (
        "reboot-once",
        "\
mount -t ext4 /dev/vda /mnt || exit 1
if [ -e /mnt/rebooted ]; then
    umount /mnt
    echo 'guest is up again'
    exit 0
fi
touch /mnt/rebooted
umount /mnt
reboot -f
sleep 60
",
    ),
    (
        "reboot-and-stay",
        "\
mount -t ext4 /dev/vda /mnt || exit 1
if [ -e /mnt/rebooted ]; then
    umount /mnt
    echo 'guest is up again'
    while true; do sleep 1; done
fi
touch /mnt/rebooted
umount /mnt
reboot -f
sleep 60
",
    ),
    ("forever", "echo guest is up\nwhile true; do sleep 1; done\n"),
    // two bursts, and a second of computing without events to compare with
    ("burst", "workload --burst 1000 1000000\ntimeout 4 sh -c 'while :; do :; done'\n"),
];

const HOST_SCRIPT: &str = include_str!("guests/host.sh");

/// A guest image with every scenario's script, without the workload.
///
/// # Errors
///
/// When the kernel lacks a module.
pub fn guest_image(kernels: &Kernels) -> Result<GuestImage, ModulesError> {
    let image = kernels.guest_image()?;
    Ok(GUEST_SCRIPTS.iter().fold(image, |image, (name, text)| image.script(name, text)))
}

/// Runs all scenarios once for all tests of one test run, however many processes the runner uses, and returns what came
/// of them. The results of earlier test runs are removed.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub fn once_per_test_run(paths: &Paths) -> Result<HostResult, String> {
    scenarios::once(paths, "guests", run)
}

/// Runs all scenarios in the run folder `name`.
///
/// # Errors
///
/// When an image cannot be made or the host fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let image = lab.paths.images().join("scenarios.cpio");
    guest_image(&lab.kernels)?.program("workload", &lab.binaries.workload).write_file(&image)?;
    let disk: PathBuf = lab.paths.images().join("disk.img");
    scenarios::make_disk(&disk, &lab.paths.logs())?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("vmlinuz", &lab.kernels.bzimage)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent)
        .file("disk.img", &disk);
    request.timeout = Duration::from_secs(480);
    request.memory_mib = 6144;
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}
