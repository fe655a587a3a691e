//! A guest with loads of known cost, for the end-to-end tests of the reports: what `strata report` says is compared
//! with what the loads know of themselves.
//!
//! One guest with two vCPUs and a slow disk does one load after the other. During the first, a process of the host
//! computes on the CPU that the second vCPU is kept on, and a session begins whose recording is `late.trace`; after it a
//! control group limits that vCPU. Beside the logs there are the names of the host's `threads` that were traced for the
//! guest.

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

const GUEST_SCRIPT: &str = include_str!("analysis/guest.sh");

const HOST_SCRIPT: &str = include_str!("analysis/host.sh");

/// Runs the guest once for all tests of one test run; leaves `trace`, `late.trace`, `guest.log`, `hog.log`,
/// `limited.log` and `threads`.
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
