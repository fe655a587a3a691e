//! The agent on kernels of the lab, under load, and where it cannot be loaded: guests whose processors are emulated.
//!
//! Each scenario leaves `NAME.log` (the guest's console), `NAME.status` and, with a trace, `NAME.trace`. Those named after a
//! kernel, and the one with a kernel that counts its calls, load and unload the module under load and take a CPU away and
//! back. `newer-region.log` says so when the guest of that name has not written to its region.

use crate::fetch::kernel_packages::{KernelChoice, Suite};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::{self, Kernels, Lab, ProvisionError};
use crate::scenarios::{ScenarioError, emulated};
use shared_ring::layout::{ABI_VERSION, SUPERBLOCK};
use std::path::PathBuf;

/// The oldest kernel and the newest one; [`COUNTED_CALLS`]'s lies between them.
pub const SAMPLE: [KernelChoice; 2] = [KernelChoice::DEFAULT, KernelChoice::realtime(Suite::TrixieBackports)];
/// A guest prints this when all went well and its kernel's log holds no warning.
pub const CLEAN: &str = "guest kernel log is clean";
/// A guest whose kernel counts its calls (`retbleed=stuff`).
pub const COUNTED_CALLS: &str = "counted-calls";
/// Its kernel.
const COUNTED_CALLS_KERNEL: KernelChoice = KernelChoice::cloud(Suite::BookwormBackports);
/// Functions of the module's Rust half that its C half calls. What the kernel has put before each is shown in a line
/// `before FUNCTION:` and 16 bytes.
pub const CALLED: [&str; 3] = ["strata_reserve", "strata_commit", "strata_process_close"];
/// Times that the module is unloaded and loaded again.
pub const RELOADS: u32 = 3;

/// What the module has to pass on every kernel. It lies where the boot overlay put it.
const HARDSHIP: &str = "\
workload --events 500 && echo 'workload done'
(while :; do cat /proc/interrupts; done > /dev/null) &
kernel_load=$!
(while :; do workload --events 20; sleep 0.2; done > /dev/null 2>&1) &
user_load=$!
i=0
while [ $i -lt 3 ]; do
    # a process that is just recording keeps the module
    until rmmod strata 2> /dev/null; do sleep 0.1; done
    cat /proc/interrupts > /dev/null
    insmod /strata/strata.ko || echo 'cannot load again'
    i=$((i + 1))
done
echo \"reloaded $i times\"
for state in 0 1 0 1; do
    echo $state > /sys/devices/system/cpu/cpu1/online && echo \"CPUs online: $(cat /sys/devices/system/cpu/online)\"
    cat /proc/interrupts > /dev/null
done
kill $kernel_load $user_load
wait
workload --events 500 && echo 'workload done again'
dmesg | grep 'strata: '
if dmesg | grep -v hw-vuln | grep -E 'BUG|WARNING|Oops|Call Trace|stall|general protection'; then
    echo 'guest kernel log has warnings'
else
    echo 'guest kernel log is clean'
fi
";

/// The hardship, and what lies before functions then: read from the kernel's memory, since its log names only the first
/// function that has no room before it, which is one of its own.
const COUNTED: &str = r#"sh /scripts/hardship
(cd /sys/devices/system/cpu/vulnerabilities && grep . spectre_v2 retbleed)
room() {
    from=$((0x$(sed -n "s/ [tT] $1	.*//p" /proc/kallsyms) - 16))
    # type and flags, offset, address, physical address, size, size in memory, alignment of each segment
    set -- $(od -A n -v -t x8 -j 64 -N 1120 /proc/kcore)
    while [ $# -ge 7 ]; do
        offset=$((0x$2)) begin=$((0x$3)) size=$((0x$6))
        if [ $begin -lt 0 ] && [ $from -ge $begin ] && [ $((from - begin)) -lt $size ]; then
            dd if=/proc/kcore bs=1 skip=$((offset + from - begin)) count=16 2> /dev/null | od -A n -t x1
            return
        fi
        shift 7
    done
}
for function in @CALLED@; do
    echo "before $function:$(room $function)"
done
"#;

/// A guest without an agent that works still does its work.
const WITHOUT: &str = "\
dmesg | grep 'strata: '
[ -e /dev/strata ] && echo 'there is a device'
workload --events 100 && echo 'workload done'
";

/// What stands between two `@` is filled in.
const HOST_SCRIPT: &str = r#"
on() {
    local name=$1 kernel=$2
    shift 2
    guest "$name" --kernel "$LAB/vmlinux-$kernel" --initrd "$LAB/guest-$kernel.cpio" --agent "$LAB/strata-$kernel.ko" "$@"
}

for kernel in @KERNELS@; do
    on $kernel $kernel --trace "$LAB_OUT/$kernel.trace" --cmdline "$GUEST lab.script=hardship"
done

on @COUNTED_CALLS@ @COUNTED_CALLS_KERNEL@ --trace "$LAB_OUT/@COUNTED_CALLS@.trace" \
    --cmdline "$GUEST lab.script=counted spectre_v2=retpoline retbleed=stuff"

on unsigned bookworm --trace "$LAB_OUT/unsigned.trace" --cmdline "$GUEST lab.script=without module.sig_enforce=1"

# no region, as on a hypervisor that is not strata
strata agent inject --initrd "$LAB/guest-bookworm.cpio" --module "$LAB/strata-bookworm.ko" --kernel "$LAB/vmlinux-bookworm" \
    --out "$LAB/injected.cpio" > "$LAB_OUT/inject.log" 2>&1
guest absent --kernel "$LAB/vmlinux-bookworm" --initrd "$LAB/injected.cpio" \
    --cmdline "$GUEST lab.script=without rdinit=/strata-init"

region=$STRATA_RUNTIME_DIR/newer
strata region create "$region" --cpus 2
printf '@VERSION@' | dd of="$region" bs=1 seek=@OFFSET@ conv=notrunc
cp "$region" "$region.before"
on newer bookworm --region "$region" --cmdline "$GUEST lab.script=without"
cmp "$region.before" "$region" && echo 'the guest has written nothing' > "$LAB_OUT/newer-region.log"
exit 0
"#;

/// Why the scenarios could not be run.
#[derive(Debug, thiserror::Error)]
pub enum AgentScenarioError {
    /// A kernel or its module could not be had.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// A guest or an image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Runs all scenarios in the run folder `name`, those under load on each of `kernels`.
///
/// # Errors
///
/// When a kernel cannot be had, its module not be built, or the script fails; what a guest does is for the caller to
/// judge.
pub fn run(lab: &Lab, name: &str, kernels: &[KernelChoice]) -> Result<HostResult, AgentScenarioError> {
    let mut request = HostRun::new(name, &host_script(kernels));
    let fixed = [KernelChoice::DEFAULT, COUNTED_CALLS_KERNEL];
    let others = fixed.into_iter().filter(|choice| !kernels.contains(choice));
    for choice in kernels.iter().copied().chain(others) {
        let (kernels, agent) = if choice == KernelChoice::DEFAULT {
            (lab.kernels.clone(), lab.agent.clone())
        } else {
            let kernels = provision::kernel(&lab.paths, choice)?;
            let agent = provision::agent_for(&lab.paths, &kernels)?;
            (kernels, agent)
        };
        let image = guest_image(lab, &kernels, choice)?;
        request = request
            .file(&format!("vmlinux-{choice}"), &kernels.vmlinux)
            .file(&format!("guest-{choice}.cpio"), &image)
            .file(&format!("strata-{choice}.ko"), &agent);
    }
    Ok(emulated(lab, &request)?)
}

fn guest_image(lab: &Lab, kernels: &Kernels, kernel: KernelChoice) -> Result<PathBuf, ScenarioError> {
    let image = lab.paths.images().join(format!("agent-{kernel}.cpio"));
    kernels
        .emulated_guest_image()?
        .script("hardship", HARDSHIP)
        .script("counted", &COUNTED.replace("@CALLED@", &CALLED.join(" ")))
        .script("without", WITHOUT)
        .program("workload", &lab.binaries.workload)
        .write_file(&image)?;
    Ok(image)
}

fn host_script(kernels: &[KernelChoice]) -> String {
    // a layout that is one major version ahead, as printf's octal escapes
    let newer = ABI_VERSION + (1 << 16);
    let bytes: String = newer.to_le_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect();
    let offset = SUPERBLOCK.fields.iter().find(|(name, _)| *name == "abi_version").map_or(0, |(_, offset)| *offset);
    HOST_SCRIPT
        .replace("@KERNELS@", &kernels.iter().map(KernelChoice::to_string).collect::<Vec<_>>().join(" "))
        .replace("@COUNTED_CALLS@", COUNTED_CALLS)
        .replace("@COUNTED_CALLS_KERNEL@", &COUNTED_CALLS_KERNEL.to_string())
        .replace("@VERSION@", &bytes)
        .replace("@OFFSET@", &offset.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_is_given_the_next_major_version() {
        let script = host_script(&SAMPLE);

        let (minor, major) = (ABI_VERSION & 0xffff, (ABI_VERSION >> 16) + 1);
        assert!(script.contains(&format!("\\{minor:03o}\\000\\{major:03o}\\000' | dd")), "{script}");
        assert!(
            script.contains("seek=8 ") && !["@OFFSET", "@KERNELS", "@COUNTED"].iter().any(|mark| script.contains(mark))
        );
    }
}
