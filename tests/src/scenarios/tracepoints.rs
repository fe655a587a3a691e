//! Every tracepoint of a guest's kernel: one boot of the host in which a guest records all events at once, tells how
//! its own kernel lays them out, and unloads the module under load; and another one's choice of events is changed while
//! it runs.
//!
//! Leaves in the results: `all.trace` and `all.log`; `guest.tar` with the kernel's `format` files in `formats` and the
//! kernel's messages in `dmesg`; `chosen.trace`, and what `strata ctl` said in `control.log`.

use crate::machine::host::{HostResult, HostRun};
use crate::provision::{Kernels, Lab};
use crate::scenarios::ScenarioError;
use std::path::Path;
use std::time::Duration;

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
export STRATA_RUNTIME_DIR=$(mktemp -d)
start() {
    name=$1
    shift
    timeout -s KILL 200 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
        --agent "$LAB/strata.ko" --name "$name" --trace "$LAB_OUT/$name.trace" \
        --cmdline "console=ttyS0 quiet panic=-1 lab.script=$name" "$@" < /dev/null > "$LAB_OUT/$name.log" 2>&1
    echo $? > "$LAB_OUT/$name.status"
}
truncate -s 32M "$LAB_OUT/guest.tar" "$LAB_OUT/scratch"
start all --events all --disk "$LAB_OUT/guest.tar" --disk "$LAB_OUT/scratch" --sub-buffers 64
rm "$LAB_OUT/scratch"

exec > "$LAB_OUT/control.log" 2>&1
# Waits until the growing trace has events of this name, for a minute at most.
recorded() {
    waited=0
    until strata events "$LAB_OUT/chosen.trace" --layer guest-kernel 2> /dev/null | grep -q "$1"; do
        [ $waited -lt 60 ] || { echo "no $1 was recorded within a minute"; break; }
        sleep 1
        waited=$((waited + 1))
    done
}
start chosen --events minimal &
recorded sched:sched_switch
strata ctl chosen session events main 'guest:raw_syscalls:*'
recorded raw_syscalls:sys_enter
sleep 2
strata ctl chosen session events main 'guest:nosuch:*'
pid=$(ls "$STRATA_RUNTIME_DIR" | sed -n 's/^chosen-//p')
kill -INT "$pid"
wait
exit 0
"#;

/// Runs it with guests of the kernel `kernels` and its agent `agent`, in the run folder `name`.
///
/// # Errors
///
/// When the guest image cannot be made or the host fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, kernels: &Kernels, agent: &Path, name: &str) -> Result<HostResult, ScenarioError> {
    let image = lab.paths.images().join(format!("{name}.cpio"));
    kernels
        .guest_image()?
        .script("all", ALL)
        .script("chosen", CHOSEN)
        .program("workload", &lab.binaries.workload)
        .write_file(&image)?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", agent);
    request.timeout = Duration::from_secs(480);
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}
