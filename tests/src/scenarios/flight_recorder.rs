//! Flight recorder, control and recovery: one boot of the host in which a guest is asked for snapshots and then panics,
//! and another one's VMM is killed.
//!
//! The guests work for as long as is asked for: seconds in a test, minutes by `cargo xtask lab flight`.
//!
//! Leaves in the results: `flight.trace-snapshots/trigger-1`, which a trigger on an application took that was armed while the
//! guest ran, `snapshot1.trace` and `snapshot2.trace` of the running guest, `calls.trace` of a session made
//! while it ran, `flight.trace` written when it panicked; `before.trace`, a snapshot taken just before the kill, and
//! `recovered.trace`; what `strata` said in `control.log`, its lists in `during.ps` and `after.ps`, and what the first
//! guest did for some seconds in `top.json`.

use crate::build::binaries::{self, Purpose};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError};
use std::time::Duration;

/// Delay of each request to the first guest's disk, ms.
pub const DISK_DELAY_MS: u64 = 5;

/// A guest that works, and reads its disk again and again, until a line comes from its console, and then panics.
const PANICKING: &str = "\
workload --events 2000
echo 'guest is up'
(while :; do workload --events 500 > /dev/null; done) &
(while :; do known_load reads /dev/vda 25 > /dev/null; sleep 1; done) &
read -r line < /dev/ttyS0
echo c > /proc/sysrq-trigger
sleep 60
";

/// A guest that works until the end of its world, while one of its processes leaves it as often as it can.
const WORKING: &str = "\
echo 'guest is up'
workload --exits &
while :; do workload --events 500 > /dev/null; done
";

const HOST_SCRIPT: &str = r#"
start() {
    name=$1
    history=$2
    timeout -s KILL $((150 + 2 * WORK)) strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
        --agent "$LAB/strata.ko" --name "$name" --trace "$LAB_OUT/$name.trace" --writable "$LAB_OUT" \
        --mode flight-recorder --sub-buffer-size 64K --sub-buffers 8 --host-history "$history" \
        --disk "$LAB/disk.img,ro,lock=off,delay=5ms" \
        --cmdline "console=ttyS0 quiet panic=-1 lab.script=$name" > "$LAB_OUT/$name.log" 2>&1
    echo $? > "$LAB_OUT/$name.status"
}
await() {
    waited=0
    until grep -q 'guest is up' "$LAB_OUT/$1.log" 2> /dev/null || [ $waited -ge 100 ]; do
        sleep 1
        waited=$((waited + 1))
    done
}

exec > "$LAB_OUT/control.log" 2>&1
export STRATA_RUNTIME_DIR=$(mktemp -d)
mkfifo /tmp/console
start flight 64M < /tmp/console &
exec 3> /tmp/console
await flight
sleep 2
strata ps > "$LAB_OUT/during.ps"
strata ctl flight status
strata top flight --once --json --interval 4 > "$LAB_OUT/top.json"
strata top flight --once --interval 0.5
strata ctl flight trigger add 'event:guest-user:workload:file_read bytes>0' --every 1s
strata ctl flight trigger add 'event:guest-user:workload:file_read bytes>1000000000'
strata ctl flight trigger add 'event:guest-kernel:sched:sched_swich'
strata ctl flight wait-trigger --timeout 60s
strata ctl flight trigger remove 1
strata ctl flight trigger list
strata ctl flight session create calls --mode flight-recorder --events 'guest:raw_syscalls:*' --sub-buffer-size 16K
strata ctl flight session start calls
sleep $((WORK / 2))
strata ctl flight snapshot "$LAB_OUT/snapshot1.trace"
sleep $((WORK - WORK / 2))
strata ctl flight snapshot "$LAB_OUT/snapshot2.trace"
strata ctl flight snapshot --session calls "$LAB_OUT/calls.trace"
strata ctl flight status --json > "$LAB_OUT/status.json"
strata ctl flight session destroy calls
strata ctl flight flush
echo >&3
wait
exec 3>&-

start killed 2M < /dev/null &
await killed
sleep $WORK
pid=$(ls "$STRATA_RUNTIME_DIR" | sed -n 's/^killed-//p')
strata ctl "$pid" snapshot "$LAB_OUT/before.trace"
kill -9 "$pid"
wait
strata ps > "$LAB_OUT/after.ps"
strata recover "$STRATA_RUNTIME_DIR/killed-$pid/region" -o "$LAB_OUT/recovered.trace"
exit 0
"#;

/// How long the guests work in a test, seconds.
pub const SECONDS: u64 = 4;

/// Runs it in the run folder `name`; each guest works for `seconds`.
///
/// # Errors
///
/// When the guest image cannot be made or the host fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str, seconds: u64) -> Result<HostResult, ScenarioError> {
    let load = binaries::build_example(&lab.paths, Purpose::Test, "known_load")?;
    let disk = lab.paths.images().join("flight-disk.img");
    scenarios::make_disk(&disk, &lab.paths.logs())?;
    let image = lab.paths.images().join("flight.cpio");
    lab.kernels
        .guest_image()?
        .script("flight", PANICKING)
        .script("killed", WORKING)
        .program("workload", &lab.binaries.workload)
        .program("known_load", &load)
        .write_file(&image)?;
    let mut request = HostRun::new(name, &format!("WORK={seconds}\n{HOST_SCRIPT}"))
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("disk.img", &disk)
        .file("strata.ko", &lab.agent);
    request.timeout = Duration::from_secs(400 + 4 * seconds);
    request.memory_mib = 4096;
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}
