//! Applications in a guest, whose processor is emulated: programs record by every interface, are forked, killed and moved, are
//! more than there are slots, and try what they may not.
//!
//! Leaves in the results: `applications.trace`, `applications.log` (the guest's console), and `host-status.log`: what
//! `strata-agent status` says where there is no trace region.

use crate::build::binaries;
use crate::machine::host::{HostResult, HostRun};
use crate::provision::Lab;
use crate::scenarios::{ScenarioError, emulated};

/// Processes of a crowd of root's, who may have all slots.
pub const CROWD: u32 = 40;
/// Processes of a crowd of another user's, and of one of two users'.
pub const USERS_CROWD: u32 = 20;

/// Starts with one CPU; the second one comes online when a process records already.
const GUEST_SCRIPT: &str = "\
status() {
    echo \"== status $*\"
    strata-agent status \"$@\"
    echo \"== status ended with $?\"
}
try() {
    echo \"== $*\"
    \"$@\"
    echo \"== $1 ended with $?\"
}
# as udev's rule does, with a number for the group
chown 0:4242 /dev/strata
chmod 660 /dev/strata
processes late-cpu 1 &
sleep 1
echo 1 > /sys/devices/system/cpu/cpu1/online
wait
status
status --json
try isolation
try processes fork
try processes exec
try processes kill
try processes migrate
# as with a C library that registers no rseq areas
try env GLIBC_TUNABLES=glibc.pthread.rseq=0 processes migrate
try shop 1000
try baker
try orders
sleep 1
try processes crowd CROWD
sleep 1
try processes crowd USERS_CROWD 1000 4242
sleep 1
try processes crowd USERS_CROWD 1001 4242 2
status --json
try processes fork-in-handler
try rmmod strata
status
echo '== kernel log'
dmesg | grep -E 'BUG|WARNING|Oops|strata'
";

const HOST_SCRIPT: &str = r#"
"$LAB/strata-agent" status > "$LAB_OUT/host-status.log" 2>&1
echo "status ended with $?" >> "$LAB_OUT/host-status.log"
guest applications --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --agent "$LAB/strata.ko" \
    --trace "$LAB_OUT/applications.trace" --cmdline "$GUEST maxcpus=1 lab.script=applications"
exit "$(cat "$LAB_OUT/applications.status")"
"#;

/// Runs the guest in the run folder `name`.
///
/// # Errors
///
/// When a program cannot be built, the guest image cannot be made, or the guest fails; what the programs
/// in the guest do is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let programs = binaries::build_applications(&lab.paths)?;
    let image = lab.paths.images().join("applications.cpio");
    let script = GUEST_SCRIPT.replace("USERS_CROWD", &USERS_CROWD.to_string()).replace("CROWD", &CROWD.to_string());
    let guest = lab.kernels.emulated_guest_image()?.script("applications", &script);
    programs.iter().fold(guest, |guest, (name, file)| guest.program(name, file)).write_file(&image)?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    for (name, file) in programs.iter().filter(|(name, _)| *name == "strata-agent") {
        request = request.file(name, file);
    }
    emulated(lab, &request)
}
