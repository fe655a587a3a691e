//! A guest whose tasks wait for causes that are known, for the end-to-end tests of `strata why`: each load says itself
//! how long it waited, and for whom.
//!
//! One guest with two vCPUs and a slow disk does one load after the other; those that others wait for run on its
//! second vCPU, which has a CPU of the host for itself. Five loads are disturbed from outside, once they have said
//! that they begin: by a pause of the machine, by a process that computes on that CPU, by one that does so in bursts
//! and before all others, by a second VM, which is paused but for that time, and by one like the second on the CPU of the
//! host's thread that moves the guest's packets (vhost-net). Beside `trace` and `guest.log` there
//! are what those know of themselves, `hog.log`, `bursts.log`, `holdup.log` and `neighbour.log`, the second VM's `neighbour`, and
//! `blind`, the trace of a session that began in the first VM before all loads and records no interrupts.

use crate::machine::host::HostResult;
use crate::paths::Paths;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError, analysis};

/// Name of the second VM.
pub const NEIGHBOUR: &str = "neighbour";
/// Delay of each request to the disk, ms.
pub const DISK_DELAY_MS: u64 = 500;
/// Reads of the disk, in each of the two loads that read.
pub const READS: u64 = 3;

/// Modules of the guest beside the usual ones, and those of its host.
const MODULES: [&[&str]; 2] = [&["virtio_net"], &["tun", "vhost_net"]];

const GUEST_SCRIPT: &str = r#"
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
echo guest is up
read -r go < /dev/ttyS0
known_load held sleeper sleeping 1500
known_load reads /dev/vda 3
known_load chain /dev/vda 3
known_load request 1500
known_load inversion 1200
known_load competition 1200
known_load sleeps nap 1 100 7
known_load child 3000
known_load cpuid 8000
known_load fresh-memory 64
known_load port 4096
known_load standstill 5000
known_load held preempted computing 6000
known_load sleeps late 1 20 150
known_load compute 1 6
# the driver lets go of its device and takes it again, which begins anew then
device=$(readlink /sys/class/net/eth0/device)
echo "${device##*/}" > /sys/bus/virtio/drivers/virtio_net/unbind
echo "${device##*/}" > /sys/bus/virtio/drivers/virtio_net/bind
ip addr add 192.168.78.2/24 dev eth0
ip link set eth0 up
# finds out where the host is
ping -c 2 192.168.78.1 > /dev/null
echo begins: packet
sleep 2
sh -c 'echo "known: packet pid=$$"; exec ping -c 1 -W 20 192.168.78.1'
"#;

const NEIGHBOUR_SCRIPT: &str = r#"
echo guest is up
while :; do :; done
"#;

const HOST_SCRIPT: &str = r#"
# two of the CPUs that this script may use
cpus=$(sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status)
first=${cpus%%[!0-9]*}
second=$((first + 1))
# waits until the log $1 has a line with $2
until_said() {
    waited=0
    until grep -q "$2" "$LAB_OUT/$1" || [ $waited -ge 900 ]; do
        usleep 100000
        waited=$((waited + 1))
    done
}
# keeps the vCPU $2 of the VM whose process is $1 on the CPU $second, and all of its other threads on the first one
place() {
    for task in /proc/$1/task/*; do
        case $(cat "$task/comm") in
            vcpu$2) known_load pin "${task##*/}" $second ;;
            *) known_load pin "${task##*/}" $first ;;
        esac
    done
}
# the thread of the process $1 that is called $2
thread_of() {
    for task in /proc/$1/task/*; do
        [ "$(cat "$task/comm")" = "$2" ] && echo "${task##*/}"
    done
}
# CPU time of the neighbour's vCPU, ns
neighbours_time() {
    sed 's/ .*//' /proc/$neighbour/task/$vcpu/schedstat
}

# the thread that moves the packets of the VM whose process is $1: the kernel's, or since Linux 6.4 its own
mover_of() {
    for thread in /proc/[0-9]* /proc/$1/task/*; do
        [ "$(cat "$thread/comm" 2> /dev/null)" = "vhost-$1" ] && echo "${thread##*/}" && return
    done
}

for module in @MODULES@; do insmod "$LAB/$module" || echo "cannot load $module"; done
busybox tunctl -t strata8 || exit 1
echo 1 > /proc/sys/net/ipv6/conf/strata8/disable_ipv6
ip addr add 192.168.78.1/24 dev strata8
ip link set strata8 up
strata run --name neighbour --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 256M \
    --trace "$LAB_OUT/neighbour" --cmdline 'console=ttyS0 quiet panic=-1 lab.script=neighbour' \
    < /dev/null > "$LAB_OUT/neighbour.console" 2>&1 &
neighbour=$!
mkfifo /tmp/input
strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --cpus 2 --memory 512M \
    --agent "$LAB/strata.ko" --trace "$LAB_OUT/trace" --writable "$LAB_OUT" --disk "$LAB/disk.img,ro,delay=500ms" \
    --net tap=strata8,vhost=on \
    --sub-buffers 64 --cmdline 'console=ttyS0 quiet panic=-1 lab.script=loads' \
    < /tmp/input > "$LAB_OUT/guest.log" 2>&1 &
strata=$!
exec 3> /tmp/input
# what this script runs from here on keeps off the CPU of those who are waited for
known_load pin $$ $first
(sleep 200; kill -KILL $strata $neighbour) &
limit=$!
until_said neighbour.console 'guest is up'
strata ctl $neighbour pause
until_said guest.log 'guest is up'
place $neighbour 0
place $strata 1
vcpu=$(thread_of $neighbour vcpu0)
own_vcpu=$(thread_of $strata vcpu1)
strata ctl $strata session create blind --events 'guest-kernel:sched:*' --trace "$LAB_OUT/blind" &&
    strata ctl $strata session start blind
# its probes are set by the guest itself, in the time that others have not asked for
sleep 2
echo go >&3

until_said guest.log 'known: sleeper'
strata ctl $strata session stop blind
until_said guest.log 'begins: standstill'
strata ctl $strata pause
sleep 2
strata ctl $strata resume
until_said guest.log 'begins: preempted'
known_load hog $second 2 50 > "$LAB_OUT/hog.log"
until_said guest.log 'begins: late'
known_load bursts $second 3 400 "$own_vcpu" > "$LAB_OUT/bursts.log"
until_said guest.log 'known: compute .* begins'
before=$(neighbours_time)
strata ctl $neighbour resume
sleep 2
strata ctl $neighbour pause
echo "known: neighbour pid=$vcpu cpu_ns=$(($(neighbours_time) - before))" > "$LAB_OUT/neighbour.log"
until_said guest.log 'begins: packet'
mover=$(mover_of $strata)
# a CPU that no vCPU is on, if there is one
third=0
[ $first = 0 ] && third=$((first + 2))
[ -d /sys/devices/system/cpu/cpu$third ] || third=$first
known_load pin "$mover" $third
# the burst is not to be interrupted in favour of others
echo -1 > /proc/sys/kernel/sched_rt_runtime_us
known_load bursts $third 1 4000 "$mover" > "$LAB_OUT/holdup.log"
wait $strata
status=$?
strata ctl $neighbour stop
wait $neighbour
kill $limit
echo "known: mover pid=$mover" >> "$LAB_OUT/holdup.log"
cat "$LAB_OUT/hog.log" "$LAB_OUT/bursts.log" "$LAB_OUT/neighbour.log" "$LAB_OUT/holdup.log"
grep 'known:' "$LAB_OUT/guest.log"
tail -n 5 "$LAB_OUT/guest.log"
exit $status
"#;

/// Runs the VMs once for all tests of one test run.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub fn once_per_test_run(paths: &Paths) -> Result<HostResult, String> {
    scenarios::once(paths, "known-answers", run)
}

/// Runs the VMs in the run folder `name`.
///
/// # Errors
///
/// When an image cannot be made, or the host or the first guest fails.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let scripts = [("loads", GUEST_SCRIPT), ("neighbour", NEIGHBOUR_SCRIPT)];
    analysis::run_loads(lab, name, &scripts, HOST_SCRIPT, MODULES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_vm_has_the_name_that_tests_look_for() {
        assert!(HOST_SCRIPT.contains(&format!("--name {NEIGHBOUR} ")));
    }

    #[test]
    fn scripts_do_what_the_constants_say() {
        assert!(HOST_SCRIPT.contains(&format!("delay={DISK_DELAY_MS}ms")));
        assert!(["reads", "chain"].iter().all(|load| GUEST_SCRIPT.contains(&format!("{load} /dev/vda {READS}\n"))));
    }
}
