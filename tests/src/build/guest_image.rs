//! Guest images: an initramfs with busybox, the modules for its disks, a workload, and named scripts of which the
//! kernel command line chooses one (`lab.script=NAME`). The guest powers off when its script ends.

use crate::build::initramfs::{Initramfs, InitramfsError};
use std::path::{Path, PathBuf};

/// The modules of the guest, besides what they depend on: what a distribution's udev loads for the devices that the
/// machine describes.
pub const MODULES: [&str; 3] = ["virtio_mmio", "virtio_blk", "pvpanic-mmio"];
/// The same of a guest whose machine is QEMU's.
pub const MODULES_ON_PCI: [&str; 2] = ["virtio_pci", "virtio_blk"];
/// What the kernel command line sets to the serial port on which a guest is to say that it lives, every few seconds.
pub const HEARTBEAT: &str = "lab.heartbeat";

const INIT: &str = r#"#!/bin/busybox sh
# The guest: mount what a Linux system has, run the script that the kernel command line names, power off.
/bin/busybox mkdir -p /proc /sys /dev /tmp /mnt
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
export PATH=/bin
[ -d /sys/kernel ] || mount -t sysfs sysfs /sys
[ -e /dev/kmsg ] || mount -t devtmpfs devtmpfs /dev
while read -r module; do
    insmod "/lib/strata-lab/$module" || echo "guest: cannot load $module"
done < /lib/strata-lab/order
name= heartbeat=
for word in $(cat /proc/cmdline); do
    case $word in
        lab.script=*) name=${word#lab.script=} ;;
        lab.heartbeat=*) heartbeat=/dev/${word#lab.heartbeat=} ;;
    esac
done
if [ -n "$heartbeat" ]; then
    (while echo alive; do sleep 5; done) > "$heartbeat" &
fi
echo "guest: script ${name:-(none)} on $(nproc) processors"
if [ -n "$name" ]; then
    sh "/scripts/$name" < /dev/null
    echo "guest: script $name ended with status $?"
fi
poweroff -f
"#;

/// A guest image in the making.
#[derive(Clone, Debug)]
pub struct GuestImage {
    archive: Initramfs,
}

impl GuestImage {
    /// An image with busybox, these module files in the order of loading, and no script yet.
    #[must_use]
    pub fn new(busybox: &Path, modules: &[PathBuf]) -> Self {
        let archive = Initramfs::new().busybox(busybox).modules("order", modules).bytes("init", 0o755, INIT);
        Self { archive }
    }

    /// Adds a program as `/bin/NAME`.
    #[must_use]
    pub fn program(mut self, name: &str, path: &Path) -> Self {
        self.archive = self.archive.file(&format!("bin/{name}"), 0o755, path);
        self
    }

    /// Adds a file under the same permissions as a program; `name` is its path in the guest.
    #[must_use]
    pub fn file(mut self, name: &str, path: &Path) -> Self {
        self.archive = self.archive.file(name, 0o755, path);
        self
    }

    /// Adds a file of these bytes; `name` is its path in the guest.
    #[must_use]
    pub fn bytes(mut self, name: &str, bytes: Vec<u8>) -> Self {
        self.archive = self.archive.bytes(name, 0o644, bytes);
        self
    }

    /// Adds a shell script that the command line can choose as `lab.script=NAME`.
    #[must_use]
    pub fn script(mut self, name: &str, text: &str) -> Self {
        self.archive = self.archive.bytes(&format!("scripts/{name}"), 0o755, text);
        self
    }

    /// Writes the image to the file `path`.
    ///
    /// # Errors
    ///
    /// When a file of it cannot be read or the image not be written.
    pub fn write_file(&self, path: &Path) -> Result<(), InitramfsError> {
        self.archive.write_file(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_takes_the_word_for_its_heartbeat() {
        assert!(INIT.contains(&format!("{HEARTBEAT}=*) heartbeat=")));
    }
}
