//! Flight recorder, control and recovery: one boot of the host in which somebody takes snapshots of a guest, which then panics,
//! and another one's VMM is killed.
//!
//! The guests work for as long as is requested: seconds in a test, minutes by `cargo xtask lab flight`.
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
const PANICKING: &str = include_str!("flight_recorder/panicking.sh");

/// A guest that works until the end of its world, while one of its processes leaves it as often as it can.
const WORKING: &str = include_str!("flight_recorder/working.sh");

const HOST_SCRIPT: &str = include_str!("flight_recorder/host.sh");

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
