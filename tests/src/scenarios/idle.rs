//! A guest that does nothing, without the agent, with it and no session, and with a session: how often its CPUs wake up. One
//! boot of the host.
//!
//! Leaves in the results: `idle.trace`, `idle.log`, `idle.status`, and what `strata ctl` said in `control.log`. In the log, a
//! line `idle STATE: LABEL COUNT` for each kind of interrupt in each [`STATES`], and `own STATE COUNT`: how often the guest's
//! kernel ran anything of the agent.

use crate::machine::host::{HostResult, HostRun};
use crate::provision::Lab;
use crate::scenarios::ScenarioError;
use std::time::Duration;

/// What the guest is in, one after the other.
pub const STATES: [&str; 3] = ["without", "module", "session"];
/// How long the guest does nothing in each of [`STATES`], seconds.
pub const SECONDS: u64 = 20;

/// `@SECONDS@` is filled in. Sums what the CPUs have counted.
const IDLING: &str = "\
cd /sys/kernel/tracing 2> /dev/null && mount -t tracefs tracefs . || echo 'no tracefs'
cd /sys/kernel/tracing
for event in timer/hrtimer_expire_entry timer/timer_expire_entry workqueue/workqueue_execute_start irq/irq_handler_entry; do
    echo 1 > events/$event/enable
done
interrupts() {
    awk '$1 ~ /:$/ { sum = 0; for (i = 2; $i ~ /^[0-9]+$/; i++) sum += $i; print substr($1, 1, length($1) - 1), sum }' \\
        /proc/interrupts
}
# Until CPUs no longer have each other do things: attaching probes takes seconds where a CPU is emulated.
settle() {
    called=0
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        before=$called
        sleep 4
        called=$(interrupts | sed -n 's/^CAL //p')
        [ $((called - before)) -gt 20 ] || break
    done
}
idle() {
    settle
    echo > trace
    interrupts > /tmp/before
    sleep @SECONDS@
    interrupts > /tmp/after
    echo \"own $1 $(grep -v '^#' trace | grep -c strata)\"
    awk -v state=$1 'NR == FNR { before[$1] = $2; next } $2 > before[$1] { print \"idle \" state \": \" $1, $2 - before[$1] }' \\
        /tmp/before /tmp/after
}
echo 'guest is up'
sleep 5
idle without
insmod /modules/strata.ko
idle module
echo 'guest wants a session'
sleep 5
idle session
grep strata /proc/interrupts
echo 'guest wants a flush'
sleep 5
dmesg | grep 'strata: '
";

/// `@SECONDS@` is filled in.
const HOST_SCRIPT: &str = r#"
export STRATA_RUNTIME_DIR=$(mktemp -d)
timeout -s KILL @SECONDS@ strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
    --name idle --trace "$LAB_OUT/idle.trace" \
    --cmdline "console=ttyS0 quiet panic=-1 lab.script=idling" < /dev/null > "$LAB_OUT/idle.log" 2>&1 &
guest=$!
exec 3>&1 > "$LAB_OUT/control.log" 2>&1
said() {
    until grep -q "$1" "$LAB_OUT/idle.log" || ! kill -0 $guest; do sleep 0.2; done
}
said 'guest is up'
strata ctl idle session stop main
said 'guest wants a session'
strata ctl idle session start main
said 'guest wants a flush'
strata ctl idle flush
wait $guest
echo $? > "$LAB_OUT/idle.status"
tail -n 3 "$LAB_OUT/idle.log" >&3
exit 0
"#;

/// Runs it in the run folder `name`.
///
/// # Errors
///
/// When the guest image cannot be made or the host fails; what the guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let image = lab.paths.images().join("idle.cpio");
    let script = IDLING.replace("@SECONDS@", &SECONDS.to_string());
    let guest = lab.kernels.guest_image()?.script("idling", &script).file("modules/strata.ko", &lab.agent);
    guest.write_file(&image)?;
    let limit = 240 + 4 * SECONDS;
    let mut request = HostRun::new(name, &HOST_SCRIPT.replace("@SECONDS@", &limit.to_string()))
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image);
    request.timeout = Duration::from_secs(2 * limit + 100);
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}
