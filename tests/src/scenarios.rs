//! What guests and hosts do in the end-to-end tests: the scripts, and one image with all of the guest's.
//!
//! All scenarios run one after the other in one boot of the host; each leaves `NAME.log` (what `strata run` wrote),
//! `NAME.status` (its exit status) and `NAME.trace`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::guest::GuestImage;
use crate::host::{HostError, HostResult, HostRun};
use crate::initramfs::InitramfsError;
use crate::modules::ModulesError;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::provision::{self, Kernels, Lab};

/// Written by the guest's disk scenario, and looked for by the host afterwards.
pub const DISK_TEXT: &str = "written by the guest";
/// What the disk image holds before the guest sees it.
pub const DISK_ORIGINAL: &str = "written by the host";
/// The events of the large burst.
pub const BURST_EVENTS: u32 = 1_000_000;

/// The guest's scripts by name.
const GUEST_SCRIPTS: [(&str, &str); 7] = [
    ("hello", "echo hello from the guest; cat /proc/cmdline\n"),
    (
        // system calls, context switches, page faults, forks, and a console that exits for every byte
        "activity",
        "\
workload
i=0
while [ $i -lt 300 ]; do
    cat /proc/interrupts
    i=$((i + 1))
done > /tmp/interrupts
head -c 20000 /tmp/interrupts
dd if=/dev/zero of=/tmp/file bs=512 count=20000 2> /dev/null
md5sum /tmp/file
",
    ),
    (
        "disk",
        "\
mount -t ext4 /dev/vda /mnt || exit 1
cat /mnt/original
echo 'written by the guest' > /mnt/answer
dd if=/dev/urandom of=/mnt/random bs=64k count=32 2> /dev/null
sync
echo 3 > /proc/sys/vm/drop_caches
md5sum /mnt/random
md5sum /mnt/random | cut -d' ' -f1 > /mnt/random.md5
umount /mnt && echo 'disk unmounted'
",
    ),
    ("panic", "workload --events 1000\nsync\necho c > /proc/sysrq-trigger\nsleep 60\n"),
    ("reboot", "reboot -f\nsleep 60\n"),
    ("forever", "echo guest is up\nwhile true; do sleep 1; done\n"),
    // two bursts, and a second of computing without events to compare with
    ("burst", "workload --burst 1000 1000000\ntimeout 4 sh -c 'while :; do :; done'\n"),
];

const HOST_SCRIPT: &str = r#"
kernel=$LAB/vmlinux
guest() {
    scenario=$1
    shift
    echo "== $scenario, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    # a guest that hangs must not cost the results of the others, nor all together the host's time
    timeout -s KILL 75 strata run --kernel "$kernel" --initrd "$LAB/guest.cpio" --memory 512M \
        --agent "$LAB/strata.ko" --trace "$LAB_OUT/$scenario.trace" \
        --cmdline "console=ttyS0 quiet panic=-1 lab.script=$scenario" "$@" \
        < /dev/null > "$LAB_OUT/$scenario.log" 2>&1 &
    strata=$!
    echo $strata > "$LAB_OUT/$scenario.pid"
    wait $strata
    echo $? > "$LAB_OUT/$scenario.status"
    tail -n 3 "$LAB_OUT/$scenario.log"
}

guest activity --cpus 2
guest burst --cpus 2

cp "$LAB/disk.img" "$LAB_OUT/disk.img"
guest disk --cpus 1 --disk "$LAB_OUT/disk.img"

guest panic --cpus 2

# the kernel as it is distributed
kernel=$LAB/vmlinuz
guest reboot --cpus 1
kernel=$LAB/vmlinux

# an interrupt, as from the keyboard, once the guest is up
(
    waited=0
    until grep -q 'guest is up' "$LAB_OUT/forever.log" 2> /dev/null || [ $waited -ge 60 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    sleep 1
    kill -INT "$(cat "$LAB_OUT/forever.pid")"
) &
guest forever --cpus 2
wait

ls /sys/kernel/tracing/instances > "$LAB_OUT/instances"
exit 0
"#;

/// Why the scenarios could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The guest image lacks a module.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// The guest image could not be made.
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    /// The disk image could not be made.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The host failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// A guest image with every scenario's script, without the workload.
///
/// # Errors
///
/// When the kernel lacks a module.
pub fn guest_image(kernels: &Kernels) -> Result<GuestImage, ModulesError> {
    let image = kernels.guest_image()?;
    Ok(GUEST_SCRIPTS.iter().fold(image, |image, (name, text)| image.script(name, text)))
}

/// Makes an ext4 image of 32 MiB at `path` that holds the file `original`.
///
/// # Errors
///
/// When `mke2fs` fails.
pub fn make_disk(path: &Path, logs: &Path) -> Result<(), ProcessError> {
    let script = r#"
        rm -f "$1" && truncate -s 32M "$1" && mkdir -p "$1.content" && printf '%s\n' "$2" > "$1.content/original" &&
        PATH="$PATH:/sbin:/usr/sbin" mke2fs -q -t ext4 -d "$1.content" "$1" && rm -r "$1.content""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "make-disk"]).arg(path).arg(DISK_ORIGINAL);
    process::run_logged(&mut command, &logs.join("make-disk.log"))
}

/// What the first test to ask for the results leaves for the others.
#[derive(Debug, Serialize, Deserialize)]
enum Outcome {
    Done(HostResult),
    Failed(String),
}

/// Runs all scenarios once for all tests of one test run, however many processes the runner uses, and returns what came
/// of them. The results of earlier test runs are removed.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub fn once_per_test_run(paths: &Paths) -> Result<HostResult, String> {
    once(paths, "scenarios", run)
}

/// Has `run` run once for all tests of one test run, in a run folder whose name begins with `kind`.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub(crate) fn once(
    paths: &Paths,
    kind: &str,
    run: fn(&Lab, &str) -> Result<HostResult, ScenarioError>,
) -> Result<HostResult, String> {
    let prefix = format!("{kind}-");
    // nextest gives every test a process and tells them all the same id; cargo test runs all of a file's in one process
    let id = std::env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| std::process::id().to_string());
    let name = format!("{prefix}{id}");
    let runs = paths.runs();
    let record = runs.join(&name).join("outcome.json");
    let io_error = |error: io::Error| format!("cannot use {}: {error}", runs.display());
    fs::create_dir_all(&runs).map_err(io_error)?;
    let lock = fs::File::create(runs.join(format!("{kind}.lock"))).map_err(io_error)?;
    lock.lock().map_err(io_error)?;
    let known = fs::read(&record).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let outcome = match known {
        Some(outcome) => outcome,
        None => {
            for entry in fs::read_dir(&runs).map_err(io_error)?.flatten() {
                if entry.file_name().to_string_lossy().starts_with(&prefix) && entry.path().is_dir() {
                    fs::remove_dir_all(entry.path()).map_err(io_error)?;
                }
            }
            let outcome = match provision::lab(paths).map_err(|error| describe(&error)) {
                Ok(lab) => match run(&lab, &name) {
                    Ok(result) => Outcome::Done(result),
                    Err(error) => Outcome::Failed(describe(&error)),
                },
                Err(error) => Outcome::Failed(error),
            };
            fs::create_dir_all(runs.join(&name)).map_err(io_error)?;
            fs::write(&record, serde_json::to_vec(&outcome).unwrap_or_default()).map_err(io_error)?;
            outcome
        }
    };
    match outcome {
        Outcome::Done(result) => Ok(result),
        Outcome::Failed(message) => Err(message),
    }
}

/// An error with its sources on one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

/// Runs all scenarios in the run folder `name`.
///
/// # Errors
///
/// When an image cannot be made or the host fails; what a guest does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    let image = lab.paths.images().join("scenarios.cpio");
    guest_image(&lab.kernels)?.program("workload", &lab.binaries.workload).write_file(&image)?;
    let disk: PathBuf = lab.paths.images().join("disk.img");
    make_disk(&disk, &lab.paths.logs())?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("vmlinuz", &lab.kernels.bzimage)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent)
        .file("disk.img", &disk);
    request.timeout = Duration::from_secs(480);
    request.memory_mib = 6144;
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}
