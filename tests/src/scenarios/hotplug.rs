//! What a kernel does beside being traced, all at once: a CPU goes and comes, modules with tracepoints go and come, and the
//! host changes which events it wants. One boot of the host.
//!
//! Leaves in the results: `hotplug.trace`, `hotplug.log`, `hotplug.status`, and what `strata ctl` said in `control.log`.

use crate::build::test_module::{self, TestModuleError};
use crate::fetch::module_tree::{ModuleTree, ModulesError};
use crate::machine::host::{HostResult, HostRun};
use crate::provision::Lab;
use crate::scenarios::ScenarioError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Times that the CPU goes and comes in a test.
pub const CYCLES: u64 = 12;
/// A guest prints this when its kernel's log holds no warning.
pub const CLEAN: &str = "guest kernel log is clean";
/// Real modules with tracepoints of their own.
const MODULES: [&str; 1] = ["jbd2"];

/// Why the scenario could not be run.
#[derive(Debug, thiserror::Error)]
pub enum HotplugError {
    /// The module with foreign tracepoints could not be built.
    #[error(transparent)]
    TestModule(#[from] TestModuleError),
    /// The kernel package lacks a module.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The host or the image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// `@CYCLES@` and `@MODULES@`, in the order of loading, are filled in.
const CHANGING: &str = "\
echo 'guest is up'
(while [ ! -e /tmp/done ]; do
    loaded=
    for module in @MODULES@; do insmod /modules/$module && loaded=\"${module%.ko} $loaded\"; done
    for module in $loaded; do rmmod $module && echo 'modules loaded'; done
done) > /tmp/modules 2>&1 &
i=0
while [ $i -lt @CYCLES@ ]; do
    echo 0 > /sys/devices/system/cpu/cpu1/online
    ls / > /dev/null
    echo 1 > /sys/devices/system/cpu/cpu1/online
    ls / > /dev/null
    i=$((i + 1))
    echo \"cycle $i\"
done
touch /tmp/done
wait
sort /tmp/modules | uniq -c | head
workload --events 200 > /dev/null && echo 'workload done'
until rmmod strata 2> /dev/null; do sleep 0.1; done
insmod /modules/other-release.ko && echo 'a module of another release was loaded'
dmesg | grep 'strata: '
if dmesg | grep -v hw-vuln | grep -E -A 20 'BUG|WARNING|Oops|Call Trace|stall|blocked for more|general protection'; then
    echo 'guest kernel log has warnings'
else
    echo 'guest kernel log is clean'
fi
";

/// `@SECONDS@` is filled in.
const HOST_SCRIPT: &str = r#"
export STRATA_RUNTIME_DIR=$(mktemp -d)
timeout -s KILL @SECONDS@ strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
    --agent "$LAB/strata.ko" --name hotplug --trace "$LAB_OUT/hotplug.trace" --events all --mode flight-recorder \
    --cmdline "console=ttyS0 quiet panic=-1 hung_task_panic=0 lab.script=changing" < /dev/null > "$LAB_OUT/hotplug.log" 2>&1 &
guest=$!
exec 3>&1 > "$LAB_OUT/control.log" 2>&1
until grep -q 'guest is up' "$LAB_OUT/hotplug.log" || ! kill -0 $guest; do sleep 0.2; done
# until the guest has ended
while strata ctl hotplug session events main minimal; do
    sleep 0.3
    strata ctl hotplug session events main all
    sleep 0.3
done
wait $guest
echo $? > "$LAB_OUT/hotplug.status"
tail -n 3 "$LAB_OUT/hotplug.log" >&3
exit 0
"#;

/// Runs it in the run folder `name`; the CPU goes and comes `cycles` times.
///
/// # Errors
///
/// When a module cannot be had, the guest image not be made or the host fails; what the guest does is for the caller to
/// judge.
pub fn run(lab: &Lab, name: &str, cycles: u64) -> Result<HostResult, HotplugError> {
    let colliding = test_module::build(&lab.paths, &lab.kernels, test_module::COLLIDING)?;
    let mut modules = ModuleTree::open(&lab.kernels.modules)?.closure(&MODULES)?;
    modules.push(colliding);
    let named = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names: Vec<String> = modules.iter().map(named).collect();
    let script = CHANGING.replace("@CYCLES@", &cycles.to_string()).replace("@MODULES@", &names.join(" "));
    let image = lab.paths.images().join("hotplug.cpio");
    let mut guest = lab.kernels.guest_image().map_err(ScenarioError::from)?;
    guest = guest.script("changing", &script).program("workload", &lab.binaries.workload);
    for (module, name) in modules.iter().zip(&names) {
        guest = guest.file(&format!("modules/{name}"), module);
    }
    let other = lab.paths.images().join("strata-other-release.ko");
    write_other_release(&lab.agent, &lab.kernels.packages.release, &other)
        .map_err(|source| HotplugError::File { path: other.clone(), source })?;
    guest = guest.file("modules/other-release.ko", &other);
    guest.write_file(&image).map_err(ScenarioError::from)?;
    let limit = 150 + 5 * cycles;
    let mut request = HostRun::new(name, &HOST_SCRIPT.replace("@SECONDS@", &limit.to_string()))
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    request.timeout = Duration::from_secs(2 * limit + 100);
    let result = lab.host.run(&lab.paths.runs(), &request).map_err(ScenarioError::from)?;
    Ok(result.success(name).map_err(ScenarioError::from)?)
}

/// Writes a copy of `module` that says everywhere that it is for another release than `release`. The kernel itself takes it:
/// it looks at the versions of symbols only.
fn write_other_release(module: &Path, release: &str, copy: &Path) -> io::Result<()> {
    let mut bytes = fs::read(module)?;
    let other: Vec<u8> =
        release.bytes().map(|byte| if byte.is_ascii_digit() { b'0' + (byte - b'0' + 1) % 10 } else { byte }).collect();
    let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(release.as_bytes())).collect();
    for at in places {
        bytes[at..at + other.len()].copy_from_slice(&other);
    }
    fs::write(copy, bytes)
}
