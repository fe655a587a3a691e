//! Guests in which a CPU may stop recording, or never begin: a task dies in a probe, a CPU is never there, and tasks that
//! nothing ordinary preempts keep every CPU. One boot of the host.
//!
//! Each scenario leaves `NAME.log`, `NAME.status` and `NAME.trace`; `absent-status.log` is what `strata ctl status` said of
//! the guest whose second CPU never comes, and `kept-control.log` what it said while all CPUs of another were kept.
//! There `kept-other.trace` and `kept-fresh.trace` are of sessions that were made meanwhile, the latter of an event that no
//! session had before.

use crate::build::binaries::{self, Purpose};
use crate::build::test_module::{self, TestModuleError};
use crate::fetch::kernel_packages::{KernelChoice, Suite};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::{self, Lab, ProvisionError};
use crate::scenarios::ScenarioError;
use std::time::Duration;

/// A task dies in a probe on vCPU 1. On each CPU `/tmp/before-CPU` is executed before that, and `/tmp/after-CPU` after it.
const DYING: &str = "\
mark() {
    for cpu in 0 1; do
        ln -s /bin/busybox /tmp/$1-$cpu
        taskset $((1 << cpu)) /tmp/$1-$cpu > /dev/null 2>&1
    done
}
mark before
taskset 2 insmod /modules/faulting.ko
echo \"insmod ended with status $?\"
sleep 1
for cpu in 0 1; do
    taskset $((1 << cpu)) workload --events 200 > /dev/null && echo \"workload done on CPU $cpu\"
done
mark after
dmesg | grep -E 'strata: |BUG: |faulting: '
";

/// The second CPU never comes.
const ABSENT: &str = "\
echo 'guest is up'
workload --events 100 > /dev/null
read -r line < /dev/ttyS0
workload --events 100 > /dev/null && echo 'workload done'
";

/// A task on each CPU that nothing but a task of a higher real-time priority preempts.
const KEPT: &str = "\
keep_cpus 15
workload --events 100 > /dev/null && echo 'workload done'
";

const HOST_SCRIPT: &str = r#"
export STRATA_RUNTIME_DIR=$(mktemp -d)
cmdline="console=ttyS0 quiet panic=-1 lab.script"
# on a kernel by its name in $LAB
guest() {
    name=$1 kernel=$2
    shift 2
    echo "== $name, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    timeout -s KILL 150 strata run --kernel "$LAB/vmlinux-$kernel" --initrd "$LAB/guest-$kernel.cpio" --memory 512M --cpus 2 \
        --agent "$LAB/strata-$kernel.ko" --name "$name" --trace "$LAB_OUT/$name.trace" --writable "$LAB_OUT" "$@" \
        > "$LAB_OUT/$name.log" 2>&1
    echo $? > "$LAB_OUT/$name.status"
    tail -n 2 "$LAB_OUT/$name.log"
}
until_said() {
    waited=0
    until grep -q "$2" "$LAB_OUT/$1.log" 2> /dev/null || [ $waited -ge 120 ]; do
        sleep 1
        waited=$((waited + 1))
    done
}

guest dying cloud --events all --cmdline "$cmdline=dying" < /dev/null

mkfifo /tmp/console
guest absent cloud --cmdline "$cmdline=absent maxcpus=1" < /tmp/console &
exec 3> /tmp/console
until_said absent 'guest is up'
strata ctl absent status > "$LAB_OUT/absent-status.log" 2>&1
echo >&3
wait
exec 3>&-

guest kept rt --events 'minimal,guest:raw_syscalls:*' --cmdline "$cmdline=kept" < /dev/null &
until_said kept 'CPUs are kept'
(
    strata ctl kept session create other --events 'guest:raw_syscalls:*' --trace "$LAB_OUT/kept-other.trace"
    strata ctl kept session start other
    strata ctl kept session create fresh --events 'guest:timer:hrtimer_expire_entry' --trace "$LAB_OUT/kept-fresh.trace"
    strata ctl kept session start fresh
    sleep 4
    strata ctl kept status
    strata ctl kept session destroy other
    strata ctl kept session destroy fresh
) > "$LAB_OUT/kept-control.log" 2>&1
wait
exit 0
"#;

/// Why the scenarios could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BlindedError {
    /// A kernel or its module could not be had.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// The module with the fault could not be built.
    #[error(transparent)]
    TestModule(#[from] TestModuleError),
    /// The host or an image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Runs all scenarios in the run folder `name`.
///
/// # Errors
///
/// When a kernel cannot be had, a module not be built, or the host fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, BlindedError> {
    let realtime = provision::kernel(&lab.paths, KernelChoice::realtime(Suite::Bookworm))?;
    let realtime_agent = provision::agent_for(&lab.paths, &realtime)?;
    let faulting = test_module::build(&lab.paths, &lab.kernels, test_module::FAULTING)?;
    let keep_cpus = binaries::build_example(&lab.paths, Purpose::Test, "keep_cpus").map_err(ScenarioError::from)?;
    let mut request = HostRun::new(name, HOST_SCRIPT).file("strata", &lab.binaries.strata);
    for (kernel, kernels, agent) in [("cloud", &lab.kernels, &lab.agent), ("rt", &realtime, &realtime_agent)] {
        let image = lab.paths.images().join(format!("blinded-{kernel}.cpio"));
        let mut guest = kernels.guest_image().map_err(ScenarioError::from)?;
        for (name, script) in [("dying", DYING), ("absent", ABSENT), ("kept", KEPT)] {
            guest = guest.script(name, script);
        }
        guest = guest.program("workload", &lab.binaries.workload).program("keep_cpus", &keep_cpus);
        guest = guest.file("modules/faulting.ko", &faulting);
        guest.write_file(&image).map_err(ScenarioError::from)?;
        request = request
            .file(&format!("vmlinux-{kernel}"), &kernels.vmlinux)
            .file(&format!("guest-{kernel}.cpio"), &image)
            .file(&format!("strata-{kernel}.ko"), agent);
    }
    request.timeout = Duration::from_secs(560);
    let result = lab.host.run(&lab.paths.runs(), &request).map_err(ScenarioError::from)?;
    Ok(result.success(name).map_err(ScenarioError::from)?)
}
