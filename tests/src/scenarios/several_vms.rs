//! VMs on one host: two of strata's at the same time, then five that are recorded from outside.
//!
//! `one` and `two` are the traces of two VMs called vm0, whose vCPUs share a CPU. `outside` is the recording that
//! `strata attach` made of a guest that runs under `strata run` without a trace, `qemu` that of a guest under QEMU that has a
//! trace region as a device and loads the agent's module, `pmem` that of one which has it as persistent memory, `tiny`
//! that of a VMM of a few lines. `region.log` holds what `strata region create` printed. `plugged` and `again` are two
//! recordings of another guest under QEMU, which is given a region for each of them while it runs; `refused.log` is what
//! is said of sockets that do not do, `left.log` what is in `/dev/shm` in the end. Beside them lie `NAME.log` and
//! `NAME.status` of each VMM, and `NAME-attach.log` and `NAME-attach.status`.

use crate::build::guest_image::{self, GuestImage};
use crate::build::{binaries, qemu_files};
use crate::fetch::module_tree::ModuleTree;
use crate::machine::host::{HostError, HostResult, HostRun};
use crate::machine::nested;
use crate::paths::Paths;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError};
use std::time::Duration;

/// Both are called vm0. Two seconds of computing in both at once make the host switch between them.
const HOST_SCRIPT: &str = r#"
start() {
    taskset 2 timeout -s KILL 240 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M \
        --cmdline 'console=ttyS0 quiet panic=-1 lab.script=work' \
        --agent "$LAB/strata.ko" --trace "$LAB_OUT/$1" < /dev/null > "$LAB_OUT/$1.log" 2>&1
    echo "$1: status $?"
    tail -n 8 "$LAB_OUT/$1.log"
}
start one &
start two &
wait

# records the process $2 until it ends, with the region $3 if there is one, and notes how that ended
attach() {
    strata attach "$2" --name "$1" --trace "$LAB_OUT/$1" ${3:+--region "$3"} > "$LAB_OUT/$1-attach.log" 2>&1
    echo $? > "$LAB_OUT/$1-attach.status"
    wait "$2"
    echo $? > "$LAB_OUT/$1.status"
    echo "$1: host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    cat "$LAB_OUT/$1-attach.log"
}
# starts the VMM of the guest $1, whose console goes to its log, and records it once that guest is up
record_guest() {
    name=$1
    shift
    "$@" < /dev/null > "$LAB_OUT/$name.log" 2>&1 &
    vmm=$!
    (sleep 200; kill -KILL $vmm) &
    limit=$!
    waited=0
    until grep -q 'guest is up' "$LAB_OUT/$name.log" || [ $waited -ge 60 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    attach "$name" $vmm $region
    kill $limit
}
arguments='console=ttyS0 quiet panic=-1 lab.script=compute'
record_guest outside strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
    --cmdline "$arguments"
mkdir -p /lib64
ln -s "$LAB/ld-linux-x86-64.so.2" /lib64/
export LD_LIBRARY_PATH="$LAB"
region=/qemu-region
strata region create $region --cpus 2 --size 64M > "$LAB_OUT/region.log" 2>&1
record_guest qemu qemu-system-x86_64 -L "$LAB" -name guest=web,debug-threads=on -nodefaults -display none -no-reboot \
    -machine q35 -accel kvm -cpu host -smp 2 -m 512 -serial stdio \
    -object memory-backend-file,id=strata,share=on,mem-path=$region,size=64M -device ivshmem-plain,memdev=strata \
    -kernel "$LAB/vmlinux" -initrd "$LAB/guest.cpio" -append 'console=ttyS0 quiet panic=-1 lab.script=traced'
region=/pmem-region
strata region create $region --cpus 2 --size 64M > /dev/null
record_guest pmem qemu-system-x86_64 -L "$LAB" -name guest=pmem,debug-threads=on -nodefaults -display none -no-reboot \
    -machine q35 -accel kvm -cpu host -smp 2 -m 512,slots=1,maxmem=1G -serial stdio \
    -object memory-backend-file,id=strata,share=on,mem-path=$region,size=64M -device virtio-pmem-pci,memdev=strata \
    -kernel "$LAB/vmlinux" -initrd "$LAB/pmem.cpio" -append 'console=ttyS0 quiet panic=-1 lab.script=pmem'
region=
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
qemu-system-x86_64 -L "$LAB" -name guest=plugged,debug-threads=on -nodefaults -display none -no-reboot \
    -machine q35 -accel kvm -cpu host -smp 2 -m 512 -serial stdio -qmp unix:/qmp,server=on,wait=off \
    -device pcie-root-port,id=strata-port,chassis=1,pref64-reserve=128M \
    -kernel "$LAB/vmlinux" -initrd "$LAB/guest.cpio" \
    -append 'console=ttyS0 quiet panic=-1 lab.script=plugged' < /dev/null > "$LAB_OUT/plugged.log" 2>&1 &
vmm=$!
(sleep 240; kill -KILL $vmm) &
limit=$!
until grep -q 'guest is up' "$LAB_OUT/plugged.log" || ! kill -0 $vmm; do sleep 1; done
for socket in /nonexistent /dev/null; do
    strata attach $vmm --qmp $socket --trace "$LAB_OUT/refused"
    echo "status $?"
done > "$LAB_OUT/refused.log" 2>&1
for name in plugged again; do
    strata attach $vmm --name $name --qmp /qmp --duration 5s --trace "$LAB_OUT/$name" \
        > "$LAB_OUT/$name-attach.log" 2>&1
    echo $? > "$LAB_OUT/$name-attach.status"
    cat "$LAB_OUT/$name-attach.log"
done
wait $vmm
echo $? > "$LAB_OUT/plugged.status"
kill $limit
ls -A /dev/shm > "$LAB_OUT/left.log"
tiny-vmm 6 2 > "$LAB_OUT/tiny.log" 2>&1 &
tiny=$!
sleep 1
attach tiny $tiny
exit 0
"#;

/// What the guest with persistent memory has besides, as a distribution's udev loads it: it makes the memory a disk.
const PMEM_MODULES: [&str; 3] = ["virtio_pci", "nd_pmem", "virtio_pmem"];

/// What the guests do.
const GUEST_SCRIPTS: [(&str, &str); 5] = [
    ("work", "workload --events 500\ntimeout 2 sh -c 'while :; do :; done'\nworkload --events 500\n"),
    // both vCPUs are at work when the recording begins: one that is halted is unknown until it wakes
    (
        "compute",
        "compute() { timeout 5 sh -c 'while :; do :; done'; }\necho guest is up\ncompute &\ncompute\nwait\nsleep 1\n",
    ),
    // the module is there before the host; applications come and go as long as both vCPUs compute: some before the
    // recording, and some while each of its layers is there
    (
        "traced",
        "insmod /strata.ko\ndmesg | grep strata\ncompute() { timeout 5 sh -c 'while :; do :; done'; }\n\
         echo guest is up\ncompute &\ncompute &\nwhile kill -0 $!; do workload --events 200; sleep 1; done\n\
         wait\ndmesg | grep -E 'BUG:|WARNING: CPU|Oops'\nsleep 1\n",
    ),
    // the region is a disk until the module is loaded, and again when the disks' driver is given the device back
    (
        "pmem",
        "disks() { echo \"$(ls /sys/block | grep -c pmem) disks $1\"; }\n\
         disk_appears() { for round in 1 2 3 4 5 6 7 8 9; do [ -e /sys/block/pmem0 ] || sleep 1; done; }\n\
         disk_appears\ndisks before\ninsmod /strata.ko\ndisks with\nrmmod strata\n\
         echo /sys/bus/virtio/devices/* | sed 's|.*/||' > /sys/bus/virtio/drivers/virtio_pmem/bind\n\
         disk_appears\ndisks after\ninsmod /strata.ko\ndmesg | grep strata\n\
         compute() { timeout 5 sh -c 'while :; do :; done'; }\n\
         echo guest is up\ncompute &\ncompute &\nwhile kill -0 $!; do workload --events 200; sleep 1; done\n\
         wait\ndmesg | grep -E 'BUG:|WARNING: CPU|Oops'\nsleep 1\n",
    ),
    // the module waits for a region, which comes and goes twice; an application of each outlives it
    (
        "plugged",
        "insmod /strata.ko wait=1\n\
         (timeout 200 sh -c 'while :; do :; done') &\necho guest is up\n\
         for round in 1 2; do\n\
             until [ -e /dev/strata ]; do sleep 1; done\n\
             workload --events 1000000000 > /dev/null &\n\
             long=$!\n\
             while [ -e /dev/strata ]; do workload --events 200 > /dev/null; sleep 1; done\n\
             sleep 1\n\
             kill -0 $long && kill $long && echo \"application $round outlives its region\"\n\
         done\n\
         rmmod strata\ndmesg | grep strata\ndmesg | grep -E 'BUG:|WARNING: CPU|Oops'\nsleep 1\n",
    ),
];

/// Runs the VMs once for all tests of one test run.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub fn once_per_test_run(paths: &Paths) -> Result<HostResult, String> {
    scenarios::once(paths, "several-vms", run)
}

/// Runs the VMs in the run folder `name`, on an emulated host: its CPUs are known.
///
/// # Errors
///
/// When an image cannot be made or the host fails; what a VM does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let image = lab.paths.images().join("several-vms.cpio");
    guest_with(lab, lab.kernels.guest_image()?).write_file(&image)?;
    let with_pmem = lab.paths.images().join("several-vms-pmem.cpio");
    let modules = ModuleTree::open(&lab.kernels.modules)?;
    let modules = modules.closure(&[&guest_image::MODULES[..], &PMEM_MODULES].concat())?;
    guest_with(lab, GuestImage::new(&lab.kernels.busybox, &modules)).write_file(&with_pmem)?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("tiny-vmm", &binaries::build_tiny_vmm(&lab.paths)?)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("pmem.cpio", &with_pmem)
        .file("strata.ko", &lab.agent);
    request.files.extend(qemu_files::files()?);
    request.timeout = Duration::from_secs(900);
    let host = lab.kernels.nested_host(&lab.paths)?;
    let result = nested::run(&host, &lab.paths.runs(), &request).map_err(HostError::from)?;
    Ok(result.success(name)?)
}

/// The guest with what all of these have.
fn guest_with(lab: &Lab, guest: GuestImage) -> GuestImage {
    let guest = guest.program("workload", &lab.binaries.workload).file("strata.ko", &lab.agent);
    GUEST_SCRIPTS.iter().fold(guest, |guest, (name, text)| guest.script(name, text))
}
