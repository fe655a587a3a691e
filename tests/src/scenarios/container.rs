//! Containers of the image that `cargo xtask dist` makes, run by `runc` on an emulated host: each runs a guest.
//!
//! `usual` is a container as podman makes one that is only given `/dev/kvm`, `privileged` one with `--privileged --pid=host`,
//! and `doctor` asks `strata doctor` in one like the former. Each leaves `NAME.log` and `NAME.status`, and the first two
//! `NAME.trace`.

use crate::build::binaries::Purpose;
use crate::build::shared_objects;
use crate::fetch::tools::{self, Tool};
use crate::machine::host::{GUEST_CMDLINE, HostError, HostResult, HostRun};
use crate::machine::nested;
use crate::packaging::{self, Form, PackagingError, Selection};
use crate::process;
use crate::provision::Lab;
use crate::scenarios::ScenarioError;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What runs a container.
const RUNC: Tool = Tool { program: "runc", package: "runc" };

const GUEST_SCRIPT: &str = "workload --events 500 && echo 'workload done'\n";

const HOST_SCRIPT: &str = include_str!("container/host.sh");

/// What the image is given to run a guest: users mount what it needs in its working folder.
const RUN: &str = "run --kernel vmlinux --initrd guest.cpio --agent strata.ko --memory 512M --cpus 2";

/// What podman lets root do in a container.
const USUAL_CAPABILITIES: [&str; 11] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// What `--privileged` adds that matters to `strata`.
const MORE_CAPABILITIES: [&str; 8] =
    ["DAC_READ_SEARCH", "IPC_LOCK", "NET_ADMIN", "PERFMON", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE"];

/// Why the scenario could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The image could not be made.
    #[error(transparent)]
    Packaging(#[from] PackagingError),
    /// The host or the guest's image failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// What `umoci` unpacked has no such file, or one that cannot be used.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> ContainerError {
    let path = path.to_path_buf();
    |source| ContainerError::File { path, source }
}

/// Runs the containers in the run folder `name`, on an emulated host: what it mounts is known.
///
/// # Errors
///
/// When the image cannot be made or unpacked, or the host fails; what a container does is for the caller to judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ContainerError> {
    let work = tempfile::tempdir_in(lab.paths.lab()).map_err(file_error(lab.paths.lab()))?;
    let of_image = unpack_image(lab, work.path())?;
    let mut files = vec![("rootfs.tar".to_owned(), work.path().join("rootfs.tar"))];
    let words = |command: &str| command.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for (name, is_privileged) in [("usual", false), ("privileged", true), ("doctor", false)] {
        let mut command = words(if name == "doctor" { "doctor" } else { RUN });
        if name != "doctor" {
            command.extend(["--cmdline".to_owned(), format!("{GUEST_CMDLINE} lab.script=work")]);
            command.extend(["--trace".to_owned(), format!("traces/{name}.trace")]);
        }
        let file = work.path().join(format!("{name}.json"));
        let configuration = container(&of_image, &command, is_privileged);
        fs::write(&file, configuration.to_string()).map_err(file_error(&file))?;
        files.push((format!("{name}.json"), file));
    }
    Ok(run_with(lab, name, files)?)
}

/// Makes the image and unpacks it into the folder `work`, its files as `rootfs.tar`. Returns the configuration that a
/// container of it has unless one says otherwise.
fn unpack_image(lab: &Lab, work: &Path) -> Result<Value, ContainerError> {
    let out = lab.paths.builds().join("dist-container");
    let selection = Selection { forms: &[Form::Oci], kernels: &[], query: false };
    let image = packaging::build(&lab.paths, Purpose::Test, &out, selection)?.remove(0);
    let layout = work.join("layout");
    fs::create_dir(&layout).map_err(file_error(&layout))?;
    let unpack = |program: &str, arguments: &[&str]| {
        process::capture(Command::new(program).args(arguments).current_dir(work)).map_err(ScenarioError::from)
    };
    unpack("tar", &["-xf", &image.to_string_lossy(), "-C", "layout"])?;
    unpack("umoci", &["unpack", "--image", &format!("layout:{}", packaging::RELEASE), "bundle"])?;
    unpack("tar", &["-cf", "rootfs.tar", "-C", "bundle/rootfs", "."])?;
    let configuration = work.join("bundle/config.json");
    let text = fs::read(&configuration).map_err(file_error(&configuration))?;
    serde_json::from_slice(&text).map_err(io::Error::from).map_err(file_error(&configuration))
}

/// Runs the containers whose configurations and root are `files`, by their names on the host.
fn run_with(lab: &Lab, name: &str, files: Vec<(String, PathBuf)>) -> Result<HostResult, ScenarioError> {
    tools::install(&lab.paths, &[RUNC])?;
    let initrd = lab.paths.images().join("container.cpio");
    let guest = lab.kernels.guest_image()?.program("workload", &lab.binaries.workload);
    guest.script("work", GUEST_SCRIPT).write_file(&initrd)?;
    let mut request = HostRun::new(name, HOST_SCRIPT)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &initrd)
        .file("strata.ko", &lab.agent);
    request.files.extend(files);
    request.files.extend(shared_objects::with_program(RUNC.program)?);
    let host = lab.kernels.nested_host(&lab.paths)?;
    let result = nested::run(&host, &lab.paths.runs(), &request).map_err(HostError::from)?;
    Ok(result.success(name)?)
}

/// The configuration of a container of an image, whose own is `of_image`, for `runc`.
fn container(of_image: &Value, command: &[String], is_privileged: bool) -> Value {
    let mut container = of_image.clone();
    let program = container["process"]["args"][0].take();
    let process = &mut container["process"];
    process["terminal"] = json!(false);
    process["args"] = std::iter::once(program).chain(command.iter().map(|word| json!(word))).collect();
    let mut capabilities = USUAL_CAPABILITIES.to_vec();
    if is_privileged {
        capabilities.extend(MORE_CAPABILITIES);
    }
    let capabilities: Value = capabilities.iter().map(|name| format!("CAP_{name}")).collect();
    process["capabilities"] = json!({ "bounding": capabilities, "effective": capabilities, "permitted": capabilities });
    process["noNewPrivileges"] = json!(false);
    let linux = &mut container["linux"];
    linux["devices"] = json!([{ "path": "/dev/kvm", "type": "c", "major": 10, "minor": 232 }]);
    linux["resources"] = json!({ "devices": [{ "allow": true, "access": "rwm" }] });
    if is_privileged {
        linux["maskedPaths"] = json!([]);
        linux["readonlyPaths"] = json!([]);
        if let Some(namespaces) = linux["namespaces"].as_array_mut() {
            namespaces.retain(|namespace| namespace["type"] != "pid");
        }
    }
    if let Some(mounts) = container["mounts"].as_array_mut() {
        for mount in mounts.iter_mut().filter(|mount| is_privileged && mount["destination"] == "/sys") {
            mount["options"] = json!(["nosuid", "noexec", "nodev"]);
        }
        mounts.push(json!({ "destination": "/work", "source": "/lab", "type": "bind", "options": ["rbind", "rw"] }));
    }
    container
}
