//! A guest with a network device on a tap of its host, a socket device, a source of random bytes and a balloon: it
//! gives memory back to the host and gets it again, pings the host and sends it bytes over TCP, is got into by ssh, and
//! reads random bytes; then the host calls it, and it the host, over the socket device. Another guest has its network
//! through passt, asks for its address, and sends the same bytes. One boot of the host.
//!
//! Leaves in the results: `network.trace`, `network.log`, `network.status`, the bytes as the host got them in
//! `received`, what a shell of the guest said over ssh in `by-ssh`, what the guest gave back of a call in `given-back`
//! and what it sent itself in `served`, what is left of the socket in `sockets`, what became of requests to the balloon
//! in `inflated.json` and `deflated.json`, how much anonymous memory the VM's process had meanwhile in `resident`, and
//! what `strata run` says of taps that cannot be had in `missing.log` and `busy.log`. Of the guest behind passt there
//! are `passt.trace`, `passt.log`, `passt.status`, and the bytes in `received-by-passt`.

use crate::build::binaries::{self, Purpose};
use crate::build::guest_image::GuestImage;
use crate::build::shared_objects;
use crate::fetch::module_tree::ModuleTree;
use crate::fetch::tools::{self, Tool};
use crate::machine::host::{HostResult, HostRun};
use crate::paths::Paths;
use crate::process;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError};
use std::process::Command;
use std::time::Duration;

/// How often the guest pings the host.
pub const PINGS: u32 = 5;
/// Bytes that the guest sends over TCP.
pub const SENT: usize = 256 << 10;
/// Bytes that go to the guest over the socket device and back.
pub const GIVEN_BACK: usize = 512 << 10;
/// Random bytes that the guest reads.
pub const RANDOM: u64 = 300;
/// Memory that the host wants back, MiB.
pub const WANTED: u64 = 48;
/// Pieces of a MiB that the guest fills first. It frees every other one: so what it gives back had been in use, and no
/// report of free memory tells of pieces as small as that.
pub const PIECES: u64 = 128;
/// Modules of the guest.
const GUEST_MODULES: [&str; 6] =
    ["virtio_mmio", "virtio_net", "vmw_vsock_virtio_transport", "virtio-rng", "virtio_balloon", "pvpanic-mmio"];
/// The host's module that makes taps.
const HOST_MODULE: &str = "tun";
/// Programs of the host, and one of a guest that the host gets into by ssh.
const TOOLS: [Tool; 4] = [
    Tool { program: "passt", package: "passt" },
    Tool { program: "dbclient", package: "dropbear-bin" },
    Tool { program: "dropbearkey", package: "dropbear-bin" },
    Tool { program: SSH_SERVER, package: "dropbear-bin" },
];
const SSH_SERVER: &str = "dropbear";
/// Makes the key `$1` of the host's user.
const MAKE_KEY: &str = include_str!("network/make_key.sh");

const GUEST_SCRIPT: &str = include_str!("network/guest.sh");

/// What passt offers is what its host has: the address, and the gateway, by which the guest reaches the host itself.
const PASST_GUEST_SCRIPT: &str = include_str!("network/passt_guest.sh");

/// Runs with a network of its own, whose tap is what passt sees of a network, and with a root of its own, which passt
/// can leave: it cannot leave the one that a kernel begins with. As root it becomes the user `nobody`.
const PASST_SCRIPT: &str = include_str!("network/passt.sh");

/// `@MODULES@` and `@PASST@` are filled in.
const HOST_SCRIPT: &str = include_str!("network/host.sh");

/// Runs the guest once for all tests of one test run.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub fn once_per_test_run(paths: &Paths) -> Result<HostResult, String> {
    scenarios::once(paths, "network", run)
}

/// Runs the guest in the run folder `name`.
///
/// # Errors
///
/// When a module is missing, the guest image cannot be made or the host fails; what the guest does is for the caller to
/// judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    tools::install(&lab.paths, &TOOLS)?;
    let key = lab.paths.images().join("ssh-key");
    let mut make_key = Command::new("sh");
    process::run_logged(make_key.args(["-c", MAKE_KEY, "sh"]).arg(&key), &lab.paths.logs().join("ssh-key.log"))?;
    let dropbear = process::find_program(SSH_SERVER).unwrap_or_else(|| SSH_SERVER.into());
    let modules = ModuleTree::open(&lab.kernels.modules)?;
    let sockets = binaries::build_example(&lab.paths, Purpose::Test, "sockets")?;
    let image = lab.paths.images().join("network.cpio");
    let guest = GuestImage::new(&lab.kernels.busybox, &modules.closure(&GUEST_MODULES)?);
    let guest = guest.program("sockets", &sockets).script("network", GUEST_SCRIPT);
    let guest = guest.file("root/.ssh/authorized_keys", &key.with_extension("pub"));
    let guest = shared_objects::of(std::slice::from_ref(&dropbear))?
        .iter()
        .fold(guest.program(SSH_SERVER, &dropbear), |guest, path| guest.file(&path.display().to_string(), path));
    guest.script("passt", PASST_GUEST_SCRIPT).write_file(&image)?;
    let of_host = scenarios::host_modules(lab, &[HOST_MODULE])?;
    let names: Vec<&str> = of_host.iter().map(|(name, _)| name.as_str()).collect();
    let script = HOST_SCRIPT.replace("@MODULES@", &names.join(" ")).replace("@PASST@", PASST_SCRIPT.trim());
    let request = HostRun::new(name, &script)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("sockets", &sockets)
        .file("ssh-key", &key)
        .file("strata.ko", &lab.agent);
    let mut request = of_host.iter().fold(request, |request, (name, path)| request.file(name, path));
    request.files.extend(shared_objects::with_program(TOOLS[0].program)?);
    request.files.extend(shared_objects::with_program(TOOLS[1].program)?);
    request.timeout = Duration::from_secs(580);
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_do_what_the_constants_say() {
        assert!(GUEST_SCRIPT.contains(&format!("ping -c {PINGS} ")));
        assert!([GUEST_SCRIPT, PASST_GUEST_SCRIPT].iter().all(|script| script.contains(&format!("head -c {SENT} "))));
        assert!(GUEST_SCRIPT.contains(&format!("head -c {RANDOM} ")));
        assert!(HOST_SCRIPT.contains(&format!("head -c {GIVEN_BACK} ")));
        assert!(GUEST_SCRIPT.contains(&format!("seq {PIECES})")));
        assert!(HOST_SCRIPT.contains(&format!("before - {}))", (PIECES << 10) / 2)));
        assert!(HOST_SCRIPT.contains(&format!("balloon {WANTED}M ")));
        assert!(HOST_SCRIPT.contains(&format!("\"given\": {}'", WANTED << 20)));
    }
}
