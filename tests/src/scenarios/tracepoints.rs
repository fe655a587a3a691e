//! Every tracepoint of a guest's kernel: a guest whose processor is emulated records all events at once, tells how its own
//! kernel lays them out, and unloads the module under load; and another one's choice of events is changed while it runs.
//!
//! Leaves in the results: `all.trace` and `all.log`; `guest.tar` with the kernel's `format` files in `formats` and the
//! kernel's messages in `dmesg`; `chosen.trace`, and what `strata ctl` said in `control.log`.

use crate::machine::host::{HostResult, HostRun};
use crate::provision::{Kernels, Lab};
use crate::scenarios::{ScenarioError, emulated};
use std::path::Path;

/// Records everything, and ends with the module unloaded under load. The raw disk takes an archive.
const ALL: &str = "\
mkdir -p /tmp/out
mount -t tracefs tracefs /sys/kernel/tracing
ls /sys/kernel/tracing/events/*/*/format | grep -v -e /ftrace/ -e /syscalls/ | xargs cat > /tmp/out/formats
workload --events 200 > /dev/null
ls -lR /proc/sys > /dev/null
dd if=/dev/zero of=/dev/vdb bs=64k count=16 2> /dev/null
sync
(i=0; while [ $i -lt 60 ]; do ls / > /dev/null; i=$((i + 1)); done) &
sleep 2
rmmod strata; echo \"rmmod ended with $?\"
wait
ls / > /dev/null
dmesg > /tmp/out/dmesg
tar cf /dev/vda -C /tmp/out formats dmesg
sync
";

/// Works until it is stopped. What the module said is for whoever reads the log of a run that failed.
const CHOSEN: &str = "\
dmesg | grep strata
echo 'guest is up'
while :; do ls / > /dev/null; sleep 0.1; done
";

const HOST_SCRIPT: &str = r#"
start() {
    local name=$1
    shift
    guest "$name" --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --agent "$LAB/strata.ko" \
        --trace "$LAB_OUT/$name.trace" --cmdline "$GUEST lab.script=$name" "$@"
}
truncate -s 32M "$LAB_OUT/guest.tar" "$LAB_OUT/scratch"
start all --events all --disk "$LAB_OUT/guest.tar" --disk "$LAB_OUT/scratch" --sub-buffers 64
rm "$LAB_OUT/scratch"

exec > "$LAB_OUT/control.log" 2>&1
# Waits until the growing trace has events of this name, or its guest has ended.
recorded() {
    until strata events "$LAB_OUT/chosen.trace" --layer guest-kernel 2> /dev/null | grep -q "$1"; do
        [ ! -e "$LAB_OUT/chosen.status" ] || { echo "no $1 was recorded"; break; }
        sleep 1
    done
}
start chosen --events minimal &
recorded sched:sched_switch
strata ctl chosen session events main 'guest:raw_syscalls:*'
recorded raw_syscalls:sys_enter
sleep 2
strata ctl chosen session events main 'guest:nosuch:*'
strata ctl chosen stop
wait
exit 0
"#;

/// Runs it with guests of the kernel `kernels` and its agent `agent`, in the run folder `name`.
///
/// # Errors
///
/// When the guest image cannot be made or the script fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, kernels: &Kernels, agent: &Path, name: &str) -> Result<HostResult, ScenarioError> {
    let image = lab.paths.images().join(format!("{name}.cpio"));
    kernels
        .emulated_guest_image()?
        .script("all", ALL)
        .script("chosen", CHOSEN)
        .program("workload", &lab.binaries.workload)
        .write_file(&image)?;
    let request = HostRun::new(name, HOST_SCRIPT)
        .file("vmlinux", &kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", agent);
    emulated(lab, &request)
}
