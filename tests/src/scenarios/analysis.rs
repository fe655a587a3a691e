//! A guest with loads of known cost, for the end-to-end tests of the reports: what `strata report` says is compared
//! with what the loads know of themselves.
//!
//! One guest with two vCPUs and a slow disk does one load after the other. During the first, a process of the host
//! computes on the CPU that the second vCPU is kept on, and a session begins whose recording is `late.trace`. Beside the
//! logs there are the names of the host's `threads` that were traced for the guest.

use crate::build::binaries::{self, Purpose};
use crate::build::guest_image::{self, GuestImage};
use crate::fetch::module_tree::ModuleTree;
use crate::machine::host::{HostResult, HostRun};
use crate::paths::Paths;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Delay of each request to the disk, ms.
pub const DISK_DELAY_MS: u64 = 50;
/// Reads of the disk.
pub const READS: u64 = 25;
/// Threads of the convoy.
pub const CONVOY_THREADS: u64 = 4;
/// Share of the host's CPU that the hog takes, percent.
pub const HOG_PERCENT: u64 = 40;

/// Processor time that the contained load takes, ms.
pub const BURN_MS: u64 = 1500;
/// The cgroup of the load that computes, and that of the one in a pid namespace of its own.
pub const CGROUPS: [&str; 2] = ["/lab.slice/compute.service", "/lab.slice/contained.scope"];

const GUEST_SCRIPT: &str = r#"
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/lab.slice /sys/fs/cgroup/lab.slice/compute.service /sys/fs/cgroup/lab.slice/contained.scope
in_cgroup() {
    sh -c 'echo $$ > "/sys/fs/cgroup$0/cgroup.procs" && exec "$@"' "$@"
}
in_cgroup /lab.slice/compute.service known_load compute 1 8
known_load convoy 4 15 10
known_load reads /dev/vda 25
known_load syscalls
in_cgroup /lab.slice/contained.scope known_load contained 1500
"#;

const HOST_SCRIPT: &str = r#"
# two of the CPUs that this script may use
cpus=$(sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status)
first=${cpus%%[!0-9]*}
second=$((first + 1))
strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --cpus 2 --memory 512M \
    --agent "$LAB/strata.ko" --trace "$LAB_OUT/trace" --writable "$LAB_OUT" --disk "$LAB/disk.img,ro,delay=50ms" \
    --sub-buffers 64 --cmdline 'console=ttyS0 quiet panic=-1 lab.script=analysis' \
    < /dev/null > "$LAB_OUT/guest.log" 2>&1 &
strata=$!
(sleep 240; kill -KILL $strata) &
limit=$!
waited=0
until grep -q 'known: compute' "$LAB_OUT/guest.log" || [ $waited -ge 120 ]; do
    sleep 1
    waited=$((waited + 1))
done
for task in /proc/$strata/task/*; do
    case $(cat "$task/comm") in
        vcpu1) known_load pin "${task##*/}" $second ;;
        *) known_load pin "${task##*/}" $first ;;
    esac
done
for thread in $(cat /sys/kernel/tracing/instances/strata-$strata-*/set_event_pid); do
    case $thread in
        *[!0-9]*) ;;
        *) echo "$(cat /proc/$thread/comm)" ;;
    esac
done > "$LAB_OUT/threads"
strata ctl vm0 session create late --events minimal --trace "$LAB_OUT/late.trace" &&
    strata ctl vm0 session start late
known_load hog $second 3 40 > "$LAB_OUT/hog.log"
wait $strata
status=$?
kill $limit
cat "$LAB_OUT/hog.log"
grep 'known:' "$LAB_OUT/guest.log"
tail -n 5 "$LAB_OUT/guest.log"
exit $status
"#;

/// Runs the guest once for all tests of one test run; leaves `trace`, `guest.log`, `hog.log` and
/// `threads`.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub fn once_per_test_run(paths: &Paths) -> Result<HostResult, String> {
    scenarios::once(paths, "analysis", run)
}

/// Runs the guest in the run folder `name`.
///
/// # Errors
///
/// When an image cannot be made, or the host or the guest fails.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    run_loads(lab, name, &[("analysis", GUEST_SCRIPT)], HOST_SCRIPT, [&[], &[]])
}

/// Runs `host_script` in the run folder `name`, with the loads, a disk, and a guest that knows `guest_scripts`, each
/// with its name. `modules` are further ones of the guest and those of the host, whose files the script finds in the
/// place of `@MODULES@`.
///
/// # Errors
///
/// When an image cannot be made, or the script fails.
pub(super) fn run_loads(
    lab: &Lab,
    name: &str,
    guest_scripts: &[(&str, &str)],
    host_script: &str,
    [of_guest, of_host]: [&[&str]; 2],
) -> Result<HostResult, ScenarioError> {
    let load = binaries::build_example(&lab.paths, Purpose::Test, "known_load")?;
    let image = lab.paths.images().join(format!("{name}.cpio"));
    let tree = ModuleTree::open(&lab.kernels.modules)?;
    let guest_modules = tree.closure(&[&guest_image::MODULES, of_guest].concat())?;
    let host_modules = scenarios::host_modules(lab, of_host)?;
    let names: Vec<&str> = host_modules.iter().map(|(name, _)| name.as_str()).collect();
    let guest = GuestImage::new(&lab.kernels.busybox, &guest_modules).program("known_load", &load);
    guest_scripts.iter().fold(guest, |guest, (name, script)| guest.script(name, script)).write_file(&image)?;
    let disk = lab.paths.images().join(format!("{name}-disk.img"));
    scenarios::make_disk(&disk, &lab.paths.logs())?;
    let mut request = HostRun::new(name, &host_script.replace("@MODULES@", &names.join(" ")))
        .file("strata", &lab.binaries.strata)
        .file("known_load", &load)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent)
        .file("disk.img", &disk);
    request = host_modules.iter().fold(request, |request, (name, path)| request.file(name, path));
    request.timeout = Duration::from_secs(400);
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}

/// What the load `name` knows of itself, by key, from the log it printed to; `None` if it printed nothing.
#[must_use]
pub fn known(log: &Path, name: &str) -> Option<BTreeMap<String, u64>> {
    // a console's bytes need not be text
    let text = fs::read(log).ok()?;
    known_in(&String::from_utf8_lossy(&text), name)
}

fn known_in(text: &str, name: &str) -> Option<BTreeMap<String, u64>> {
    let mut words = text.lines().find_map(|line| {
        let mut words = line.trim().strip_prefix("known: ")?.split_whitespace();
        (words.next()? == name).then_some(words)
    })?;
    Some(words.by_ref().filter_map(|word| word.split_once('=')).filter_map(pair).collect())
}

fn pair((key, value): (&str, &str)) -> Option<(String, u64)> {
    Some((key.to_owned(), value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_load_knows_is_found_among_other_lines() {
        let log = "boot\r\nknown: hog pid=7 cpu_ns=12\r\nknown: compute pid=8 begins\r\nend";

        assert_eq!(known_in(log, "hog"), Some(BTreeMap::from([("pid".into(), 7), ("cpu_ns".into(), 12)])));
        assert_eq!(known_in(log, "compute").unwrap()["pid"], 8);
        assert_eq!(known_in(log, "reads"), None);
    }

    #[test]
    fn scripts_do_what_the_constants_say() {
        assert!(HOST_SCRIPT.contains(&format!("delay={DISK_DELAY_MS}ms")));
        assert!(HOST_SCRIPT.contains(&format!("hog $second 3 {HOG_PERCENT}")));
        assert!(GUEST_SCRIPT.contains(&format!("reads /dev/vda {READS}")));
        assert!(GUEST_SCRIPT.contains(&format!("convoy {CONVOY_THREADS} ")));
        assert!(GUEST_SCRIPT.contains(&format!("contained {BURN_MS}\n")));
        assert!(CGROUPS.iter().all(|path| GUEST_SCRIPT.contains(&format!("in_cgroup {path} known_load"))));
    }
}
